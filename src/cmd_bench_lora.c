/* cmd_bench_lora.c - what adapters cost: prompts and answers with none, one and four of them, measured in turn, and how
 * long it takes to load one and to switch one on. They are random ones of rank 16 on all projections, or those of
 * --lora. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "src/cmd_bench.h"

enum { RANK = 16, MOST = 4, SETS = 3 };

static const int set_sizes[SETS] = {0, 1, MOST};

struct lora {
    struct bench *b;
    struct pp_engine *engine;
    struct pp_adapter *adapters[MOST];
    struct pp_adapter_use uses[MOST];
    int32_t *prompt;                 /* [n_prompt] */
    char paths[MOST][1100];
    bool written[MOST];
    size_t prefill[SETS], decode[SETS], load, attach; /* results */
};

static enum pp_code add_result(struct lora *l, size_t *at, const char *what, const char *name, const char *unit,
                               struct pp_error *err)
{
    struct bench_result *r = bench_add(&l->b->report, l->b->repetitions);
    if (!r)
        return pp_fail_nomem(err, "the results");
    *at = l->b->report.n - 1;
    r->what = what;
    r->unit = unit;
    r->more_is_better = unit[0] == 't';
    snprintf(r->name, sizeof r->name, "%s", name);
    return PP_OK;
}

static enum pp_code add_results(struct lora *l, struct pp_error *err)
{
    char name[96];
    enum pp_code code = PP_OK;
    for (int i = 0; i < 2 * SETS && !code; i++) {
        int n = set_sizes[i % SETS];
        bool prefill = i < SETS;
        snprintf(name, sizeof name, n == 1 ? "%s %lld, %d adapter" : "%s %lld, %d adapters",
                 prefill ? "prefill" : "decode", (long long)(prefill ? l->b->n_prompt : l->b->n_gen), n);
        code = add_result(l, prefill ? &l->prefill[i] : &l->decode[i - SETS], prefill ? "lora_prefill" : "lora_decode",
                          name, "tokens/s", err);
    }
    if (!code)
        code = add_result(l, &l->load, "lora_load", "an adapter loaded, its file in memory", "ms", err);
    return code ? code : add_result(l, &l->attach, "lora_attach", "an adapter switched on", "ms", err);
}

static void add_sample(struct lora *l, size_t at, double x)
{
    struct bench_result *r = &l->b->report.results[at];
    if (r->n < l->b->repetitions)
        r->samples[r->n++] = x;
}

/* Files of random adapters, where none are given. */
static enum pp_code find_files(struct lora *l, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (int i = 0; i < MOST && !code; i++) {
        char ending[32];
        if (l->b->o->n_lora) {
            snprintf(l->paths[i], sizeof l->paths[i], "%s", l->b->o->lora[i % l->b->o->n_lora].path);
            continue;
        }
        snprintf(ending, sizeof ending, ".lora%d.gguf", i);
        bench_temporary(l->paths[i], sizeof l->paths[i], ending);
        l->written[i] = true;
        code = pp_random_adapter_write(l->b->model, RANK, true, (uint64_t)i + 1, l->paths[i], err);
    }
    return code;
}

static enum pp_code load_all(struct lora *l, bool counts, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (int i = 0; i < MOST && !code; i++) {
        uint64_t t0 = pp_now_ns();
        pp_adapter_free(l->adapters[i]);
        l->adapters[i] = NULL;
        code = pp_adapter_load(l->b->model, l->paths[i], &l->adapters[i], err);
        if (counts && i == 0)
            add_sample(l, l->load, (double)(pp_now_ns() - t0) / 1e6);
        l->uses[i] = (struct pp_adapter_use){.adapter = l->adapters[i], .scale = 0.5f};
    }
    return code;
}

/* One prompt and one answer with the first n adapters. */
static enum pp_code answer(struct lora *l, int set, bool counts, struct pp_error *err)
{
    const struct bench *b = l->b;
    struct pp_gen_options opt = {.sampling = pp_sampling_default(), .max_tokens = b->n_gen, .ignore_end = true};
    struct pp_seq *seq = NULL;
    struct pp_gen *gen = NULL;
    struct pp_buf text = {0};
    enum pp_finish finish = PP_FINISH_NONE;
    int n = 0;
    opt.sampling.temp = 0;
    enum pp_code code = pp_seq_new(l->engine, &seq, err);
    uint64_t t0 = pp_now_ns();
    if (!code)
        code = pp_seq_set_adapters(seq, l->uses, set_sizes[set], err);
    uint64_t t1 = pp_now_ns();
    l->prompt[0] = (l->prompt[0] + 1) % 97; /* no page of an earlier round fits */
    if (!code)
        code = pp_gen_start(seq, l->prompt, b->n_prompt, &opt, b->cancel, &gen, err);
    uint64_t t2 = pp_now_ns();
    while (!code && finish == PP_FINISH_NONE)
        code = pp_gen_next(gen, b->cancel, &text, &n, &finish, err);
    uint64_t t3 = pp_now_ns();
    if (!code && counts) {
        if (set_sizes[set] == 1)
            add_sample(l, l->attach, (double)(t1 - t0) / 1e6);
        add_sample(l, l->prefill[set], (double)b->n_prompt * 1e9 / (double)(t2 - t1));
        add_sample(l, l->decode[set], (double)(b->n_gen - 1) * 1e9 / (double)(t3 - t2)); /* one came with the prompt */
    }
    pp_gen_free(gen);
    pp_seq_free(seq);
    pp_buf_free(&text);
    return code;
}

/* Cost beside none: the ratio of the times. */
static void note_ratios(struct lora *l, const size_t *at)
{
    struct bench_result *all = l->b->report.results;
    struct bench_summary none, these;
    for (int i = 1; i < SETS; i++)
        if (bench_summarise(all[at[0]].samples, all[at[0]].n, &none) &&
            bench_summarise(all[at[i]].samples, all[at[i]].n, &these))
            all[at[i]].ratio = none.median / these.median;
}

enum pp_code bench_lora(struct bench *b, struct pp_error *err)
{
    struct lora l = {.b = b};
    struct pp_engine_options opt = pp_cli_engine_options(b->o);
    opt.cache_dir = b->temporary ? NULL : b->paths->cache;
    opt.n_threads = (int)b->threads[0];
    opt.kv_type = (enum pp_kv_type)b->kv_types[0];
    if (opt.n_ctx == 0)
        opt.n_ctx = b->n_prompt + b->n_gen + 1;
    enum pp_code code = b->n_gen > 1 ? PP_OK : pp_fail(err, PP_ERR_USAGE, "bench lora needs -n 2 or more");
    if (!code && !(l.prompt = pp_calloc((size_t)b->n_prompt, sizeof *l.prompt)))
        code = pp_fail_nomem(err, "the prompt");
    for (int64_t i = 0; !code && i < b->n_prompt; i++)
        l.prompt[i] = (int32_t)(i * 7 % 97);
    if (!code)
        code = pp_engine_new(b->model, &opt, NULL, NULL, &l.engine, err);
    if (!code)
        code = pp_engine_settle(l.engine, b->cancel, err);
    if (!code)
        code = find_files(&l, err);
    if (!code)
        code = add_results(&l, err);
    for (int round = -1; round < b->repetitions && !code; round++) { /* the first warms up */
        pp_cli_bar_show(&b->bar, "adapters", (uint64_t)(round + 1), (uint64_t)b->repetitions + 1);
        code = load_all(&l, round >= 0, err);
        for (int set = 0; set < SETS && !code; set++)
            code = answer(&l, set, round >= 0, err);
    }
    note_ratios(&l, l.prefill);
    note_ratios(&l, l.decode);
    pp_cli_bar_clear(&b->bar);
    pp_engine_free(l.engine);
    for (int i = 0; i < MOST; i++) {
        pp_adapter_free(l.adapters[i]);
        if (l.written[i])
            unlink(l.paths[i]);
    }
    pp_free(l.prompt);
    return code;
}
