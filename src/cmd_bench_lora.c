/* cmd_bench_lora.c - the cost of adapters: prompts and answers with none, one and four LoRAs, a DoRA and an IA3, and
 * the time to load one and to switch one on and off. The adapters are random, of rank --rank on all projections; or
 * those of --lora are used as the one and the four.
 *
 * The answers are interleaved token by token, and each token's time is compared with that of the answer without
 * adapters in the same turn, so that disturbances affect all alike. An answer's first token is part of its prompt's
 * time, as it is chosen from the logits of the prompt's last row. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "src/cmd_bench.h"

enum { RANK = 16, MANY = 4, DORA = MANY, IA3, N_FILES, LORA_SETS = 3, SETS = 5 };
static const uint64_t MAX_EXPERT_BYTES = 1 << 30; /* per file; the largest mixtures would fill disks */

/* The sets that are compared; the adapters of a set are consecutive. */
static const struct {
    const char *name;
    int first, n;
} sets[SETS] = {
    {"0 adapters", 0, 0}, {"1 adapter", 0, 1}, {"4 adapters", 0, MANY}, {"a DoRA", DORA, 1}, {"an IA3", IA3, 1},
};

struct lora {
    struct bench *b;
    struct pp_engine *engine;
    int n_sets;                      /* number of sets in use: only random adapters come in all kinds */
    struct pp_adapter *adapters[N_FILES];
    struct pp_adapter_use uses[N_FILES];
    int32_t *prompt;                 /* [n_prompt] */
    char paths[N_FILES][1100];
    bool written[N_FILES];
    double *steps;                   /* [n_sets][n_gen - 1] times of a round's tokens in ns */
    double *ratios[SETS];            /* [repetitions * (n_gen - 1)]: token times relative to those of the first set */
    double *prefill_ratios[SETS];    /* [repetitions] */
    int n_ratios, n_prefill_ratios;
    size_t prefill[SETS], decode[SETS], load[SETS], on[SETS], off[SETS]; /* results */
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

/* Size of the adapter files of a set. */
static double file_mb(const struct lora *l, int set)
{
    return (double)pp_adapter_info(l->adapters[sets[set].first])->bytes / 1e6;
}

static enum pp_code add_speeds(struct lora *l, struct pp_error *err)
{
    char name[96];
    enum pp_code code = PP_OK;
    for (int i = 0; i < l->n_sets && !code; i++) {
        snprintf(name, sizeof name, "prefill %lld, %s", (long long)l->b->n_prompt, sets[i].name);
        code = add_result(l, &l->prefill[i], "lora_prefill", name, "tokens/s", err);
    }
    for (int i = 0; i < l->n_sets && !code; i++) {
        snprintf(name, sizeof name, "decode %lld, %s", (long long)l->b->n_gen, sets[i].name);
        code = add_result(l, &l->decode[i], "lora_decode", name, "tokens/s", err);
    }
    return code;
}

static enum pp_code add_switches(struct lora *l, struct pp_error *err)
{
    char name[96];
    enum pp_code code = PP_OK;
    for (int i = 1; i < l->n_sets && !code; i++) {
        if (sets[i].n > 1)
            continue;
        snprintf(name, sizeof name, "%s loaded, %.1f MB, in memory", sets[i].name, file_mb(l, i));
        code = add_result(l, &l->load[i], "lora_load", name, "ms", err);
    }
    for (int i = 1; i < l->n_sets && !code; i++) {
        snprintf(name, sizeof name, "%s switched on", sets[i].name);
        code = add_result(l, &l->on[i], "lora_attach", name, "ms", err);
        if (code)
            break;
        snprintf(name, sizeof name, "%s switched off", sets[i].name);
        code = add_result(l, &l->off[i], "lora_detach", name, "ms", err);
    }
    return code;
}

static void add_sample(struct lora *l, size_t at, double x)
{
    struct bench_result *r = &l->b->report.results[at];
    if (r->n < l->b->repetitions)
        r->samples[r->n++] = x;
}

/* --- adapters ------------------------------------------------------------------------------------------------- */

/* Chooses the files: those of --lora, or else names for random adapters. */
static enum pp_code find_files(struct lora *l, struct pp_error *err)
{
    const struct pp_options *o = l->b->o;
    enum pp_code code = PP_OK;
    for (int i = 0; i < (o->n_lora ? MANY : N_FILES) && !code; i++) {
        const struct pp_random_adapter spec = {
            .kind = i == DORA ? PP_RANDOM_DORA : i == IA3 ? PP_RANDOM_IA3 : PP_RANDOM_LORA,
            .rank = o->train.rank ? o->train.rank : RANK, .all = true, .expert_bytes = MAX_EXPERT_BYTES,
            .seed = (uint64_t)i + 1};
        char ending[32];
        if (o->n_lora) {
            snprintf(l->paths[i], sizeof l->paths[i], "%s", o->lora[i % o->n_lora].path);
            continue;
        }
        snprintf(ending, sizeof ending, ".lora%d%s", i, spec.kind == PP_RANDOM_LORA ? ".gguf" : "");
        bench_temporary(l->paths[i], sizeof l->paths[i], ending);
        l->written[i] = true;
        code = pp_random_adapter_write(l->b->model, &spec, l->paths[i], err);
    }
    return code;
}

static void remove_files(const struct lora *l)
{
    static const char *const in_folder[] = {"adapter_model.safetensors", "adapter_config.json"};
    for (int i = 0; i < N_FILES; i++) {
        if (!l->written[i])
            continue;
        for (int k = 0; k < 2 && i >= MANY; k++) {
            char path[1200];
            snprintf(path, sizeof path, "%s/%s", l->paths[i], in_folder[k]);
            unlink(path);
        }
        if (i >= MANY)
            rmdir(l->paths[i]);
        else
            unlink(l->paths[i]);
    }
}

static enum pp_code load_one(struct lora *l, int i, struct pp_error *err)
{
    const enum pp_code code = pp_adapter_load(l->b->model, l->paths[i], &l->adapters[i], err);
    l->uses[i] = (struct pp_adapter_use){.adapter = l->adapters[i], .scale = 0.5f};
    return code;
}

static enum pp_code load_all(struct lora *l, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (int i = 0; i < N_FILES && !code; i++)
        if (l->paths[i][0])
            code = load_one(l, i, err);
    return code;
}

/* Measures loading the first adapter of each kind again. */
static enum pp_code measure_loads(struct lora *l, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (int i = 1; i < l->n_sets && !code; i++) {
        if (sets[i].n > 1)
            continue;
        pp_adapter_free(l->adapters[sets[i].first]);
        l->adapters[sets[i].first] = NULL;
        const uint64_t t0 = pp_now_ns();
        code = load_one(l, sets[i].first, err);
        add_sample(l, l->load[i], (double)(pp_now_ns() - t0) / 1e6);
    }
    return code;
}

/* Measures switching in a conversation that has been continued without adapters. */
static enum pp_code measure_switches(struct lora *l, struct pp_seq *seq, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (int i = 1; i < l->n_sets && !code; i++) {
        const uint64_t t0 = pp_now_ns();
        code = pp_seq_set_adapters(seq, l->uses + sets[i].first, sets[i].n, err);
        const uint64_t t1 = pp_now_ns();
        if (!code)
            code = pp_seq_set_adapters(seq, NULL, 0, err);
        add_sample(l, l->on[i], (double)(t1 - t0) / 1e6);
        add_sample(l, l->off[i], (double)(pp_now_ns() - t1) / 1e6);
    }
    return code;
}

/* --- a round --------------------------------------------------------------------------------------------------- */

struct answer {
    struct pp_seq *seq;
    struct pp_gen *gen;
};

static enum pp_code decode_token(struct lora *l, struct answer *a, double *ns, struct pp_error *err)
{
    struct pp_buf text = {0};
    enum pp_finish finish;
    int n = 0;
    const uint64_t t0 = pp_now_ns();
    const enum pp_code code = pp_gen_next(a->gen, l->b->cancel, &text, &n, &finish, err);
    *ns = (double)(pp_now_ns() - t0);
    pp_buf_free(&text);
    return code;
}

static enum pp_code begin_answer(struct lora *l, int set, struct answer *a, double *ns, struct pp_error *err)
{
    struct pp_gen_options opt = {.sampling = pp_sampling_default(),
                                 .max_tokens = l->b->n_gen,
                                 .ignore_end = true,
                                 .progress = bench_show_prompt,
                                 .user = l->b};
    double first = 0;
    opt.sampling.temp = 0;
    enum pp_code code = pp_seq_new(l->engine, &a->seq, err);
    if (!code)
        code = pp_seq_set_adapters(a->seq, l->uses + sets[set].first, sets[set].n, err);
    const uint64_t t0 = pp_now_ns();
    if (!code)
        code = pp_gen_start(a->seq, l->prompt, l->b->n_prompt, &opt, l->b->cancel, &a->gen, err);
    if (!code)
        code = decode_token(l, a, &first, err);
    *ns = (double)(pp_now_ns() - t0);
    return code;
}

/* One token for each answer; the order rotates. */
static enum pp_code decode_round(struct lora *l, struct answer *answers, int64_t step, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (int k = 0; k < l->n_sets && !code; k++) {
        const int i = (int)((k + step) % l->n_sets);
        code = decode_token(l, &answers[i], &l->steps[i * (l->b->n_gen - 1) + step], err);
    }
    return code;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The median; sorts x. */
static double median(double *x, int64_t n)
{
    qsort(x, (size_t)n, sizeof *x, by_size);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

static void note_round(struct lora *l, const double *prefill)
{
    const int64_t n = l->b->n_gen - 1;
    for (int i = 0; i < l->n_sets; i++) {
        l->prefill_ratios[i][l->n_prefill_ratios] = prefill[i] / prefill[0];
        for (int64_t k = 0; k < n; k++)
            l->ratios[i][l->n_ratios + k] = l->steps[i * n + k] / l->steps[k];
    }
    for (int i = 0; i < l->n_sets; i++) {
        add_sample(l, l->prefill[i], (double)l->b->n_prompt * 1e9 / prefill[i]);
        add_sample(l, l->decode[i], 1e9 / median(l->steps + i * n, n));
    }
    l->n_prefill_ratios++;
    l->n_ratios += (int)n;
}

static enum pp_code measure_round(struct lora *l, int round, struct pp_error *err)
{
    struct answer answers[SETS] = {0};
    double prefill[SETS];
    enum pp_code code = PP_OK;
    for (int k = 0; k < l->n_sets && !code; k++) {
        const int i = (k + round + 1) % l->n_sets;
        l->prompt[0] = (l->prompt[0] + 1) % 97; /* so that no pages of an earlier round match */
        code = begin_answer(l, i, &answers[i], &prefill[i], err);
    }
    for (int64_t step = 0; step < l->b->n_gen - 1 && !code; step++)
        code = decode_round(l, answers, step, err);
    if (!code && round >= 0) {
        note_round(l, prefill);
        code = measure_switches(l, answers[0].seq, err);
    }
    for (int i = 0; i < l->n_sets; i++) {
        pp_gen_free(answers[i].gen);
        pp_seq_free(answers[i].seq);
    }
    return code || round < 0 ? code : measure_loads(l, err);
}

/* --- setup and the whole measurement ---------------------------------------------------------------------------- */

static enum pp_code make_room(struct lora *l, struct pp_error *err)
{
    const size_t n = (size_t)l->b->n_gen - 1, rounds = (size_t)l->b->repetitions;
    l->prompt = pp_calloc((size_t)l->b->n_prompt, sizeof *l->prompt);
    l->steps = pp_calloc((size_t)l->n_sets * n, sizeof *l->steps);
    bool ok = l->prompt && l->steps;
    for (int i = 0; i < l->n_sets; i++) {
        l->ratios[i] = pp_calloc(rounds * n, sizeof **l->ratios);
        l->prefill_ratios[i] = pp_calloc(rounds, sizeof **l->prefill_ratios);
        ok = ok && l->ratios[i] && l->prefill_ratios[i];
    }
    for (int64_t i = 0; ok && i < l->b->n_prompt; i++)
        l->prompt[i] = (int32_t)(i * 7 % 97);
    return ok ? PP_OK : pp_fail_nomem(err, "the measurements");
}

static enum pp_code prepare(struct lora *l, struct pp_error *err)
{
    const struct bench *b = l->b;
    struct pp_engine_options opt = pp_cli_engine_options(b->o);
    opt.cache_dir = b->temporary ? NULL : b->paths->cache;
    opt.n_threads = (int)b->threads[0];
    opt.kv_type = (enum pp_kv_type)b->kv_types[0];
    if (opt.n_ctx == 0)
        opt.n_ctx = b->n_prompt + b->n_gen + 1;
    enum pp_code code = b->n_gen > 1 ? PP_OK : pp_fail(err, PP_ERR_USAGE, "bench lora needs -n 2 or more");
    if (!code)
        code = make_room(l, err);
    if (!code)
        code = pp_engine_new(b->model, &opt, NULL, NULL, &l->engine, err);
    if (!code)
        code = pp_engine_settle(l->engine, b->cancel, err);
    if (!code)
        code = find_files(l, err);
    if (!code)
        code = load_all(l, err);
    if (!code)
        code = add_speeds(l, err);
    return code ? code : add_switches(l, err);
}

enum pp_code bench_lora(struct bench *b, struct pp_error *err)
{
    struct lora l = {.b = b, .n_sets = b->o->n_lora ? LORA_SETS : SETS};
    enum pp_code code = prepare(&l, err);
    for (int round = -1; round < b->repetitions && !code; round++) { /* the first round warms up */
        bench_show(b, "adapters", (uint64_t)(round + 1), (uint64_t)b->repetitions + 1);
        code = measure_round(&l, round, err);
    }
    for (int i = 1; i < l.n_sets && !code && l.n_ratios; i++) {
        b->report.results[l.prefill[i]].ratio = median(l.prefill_ratios[i], l.n_prefill_ratios);
        b->report.results[l.decode[i]].ratio = median(l.ratios[i], l.n_ratios);
    }
    pp_cli_bar_clear(&b->bar);
    pp_engine_free(l.engine);
    for (int i = 0; i < N_FILES; i++)
        pp_adapter_free(l.adapters[i]);
    for (int i = 0; i < SETS; i++) {
        pp_free(l.ratios[i]);
        pp_free(l.prefill_ratios[i]);
    }
    remove_files(&l);
    pp_free(l.steps);
    pp_free(l.prompt);
    return code;
}
