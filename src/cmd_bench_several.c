/* cmd_bench_several.c - the throughput of several conversations answered at the same time, compared with a single
 * one. Each has its own prompt, which is processed before the measurement. */
#include <stdio.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "src/cmd_bench.h"

enum { LIMIT = PP_MAX_GEN_ITEMS };

struct several {
    struct bench *b;
    struct pp_engine *engine;
    int64_t counts[BENCH_MAX_LIST];
    int n_counts;
    size_t results[BENCH_MAX_LIST];
    int32_t *prompt;                /* [n_prompt] */
};

struct talk {
    struct pp_seq *seq;
    struct pp_gen *gen;
    struct pp_buf text;
};

static enum pp_code begin(struct several *s, struct talk *t, int number, struct pp_error *err)
{
    struct pp_gen_options opt = {.sampling = pp_sampling_default(),
                                 .max_tokens = s->b->n_gen,
                                 .ignore_end = true,
                                 .progress = bench_show_prompt,
                                 .user = s->b};
    int64_t n_vocab = pp_model_info(s->b->model)->n_vocab;
    opt.sampling.seed = (uint64_t)number;
    for (int64_t i = 0; i < s->b->n_prompt; i++)
        s->prompt[i] = (int32_t)((i * 7 + (number + 1) * 131) % n_vocab);
    enum pp_code code = pp_seq_new(s->engine, &t->seq, err);
    if (!code)
        code = pp_seq_set_adapters(t->seq, s->b->uses, s->b->n_adapters, err);
    return code ? code : pp_gen_begin(t->seq, s->prompt, s->b->n_prompt, &opt, &t->gen, err);
}

/* One pass for all; adds the sampled tokens to *n_tokens. */
static enum pp_code pass(struct several *s, struct talk *talks, int n, int64_t *n_tokens, bool *over,
                         struct pp_error *err)
{
    struct pp_gen_item items[LIMIT];
    for (int i = 0; i < n; i++) {
        pp_buf_clear(&talks[i].text);
        items[i] = (struct pp_gen_item){.gen = talks[i].gen, .text = &talks[i].text};
    }
    enum pp_code code = pp_gen_step(items, n, s->b->cancel, err);
    *over = true;
    for (int i = 0; i < n && !code; i++) {
        *n_tokens += items[i].n_tokens;
        *over = *over && items[i].finish != PP_FINISH_NONE;
        if ((code = items[i].code) && err)
            *err = items[i].err;
    }
    return code;
}

/* Tokens per second of n conversations in total, after all prompts have been processed. */
static enum pp_code measure(struct several *s, int n, double *rate, struct pp_error *err)
{
    struct talk talks[LIMIT] = {0};
    enum pp_code code = PP_OK;
    bool over = false, reading = true;
    int64_t before = 0, tokens = 0;
    for (int i = 0; i < n && !code; i++)
        code = begin(s, &talks[i], i, err);
    while (!code && !over && reading) {
        code = pass(s, talks, n, &before, &over, err);
        reading = false;
        for (int i = 0; i < n; i++)
            reading = reading || pp_gen_computing_prompt(talks[i].gen);
    }
    uint64_t t0 = pp_now_ns();
    while (!code && !over)
        code = pass(s, talks, n, &tokens, &over, err);
    *rate = (double)tokens * 1e9 / (double)(pp_now_ns() - t0);
    for (int i = 0; i < n; i++) {
        pp_gen_free(talks[i].gen);
        pp_seq_free(talks[i].seq);
        pp_buf_free(&talks[i].text);
    }
    return code;
}

static enum pp_code add_results(struct several *s, struct pp_error *err)
{
    for (int i = 0; i < s->n_counts; i++) {
        struct bench_result *r = bench_add(&s->b->report, s->b->repetitions);
        if (!r)
            return pp_fail_nomem(err, "the results");
        s->results[i] = s->b->report.n - 1;
        r->what = "several";
        r->unit = "tokens/s";
        r->more_is_better = true;
        r->tokens = s->b->n_gen;
        r->rows = (int)s->counts[i];
        snprintf(r->name, sizeof r->name, s->counts[i] == 1 ? "%lld conversation" : "%lld conversations",
                 (long long)s->counts[i]);
    }
    return PP_OK;
}

static enum pp_code rounds(struct several *s, struct pp_error *err)
{
    enum pp_code code = add_results(s, err);
    for (int round = -1; round < s->b->repetitions && !code; round++) { /* the first round warms up */
        bench_show(s->b, "several conversations", (uint64_t)(round + 1), (uint64_t)s->b->repetitions + 1);
        for (int i = 0; i < s->n_counts && !code; i++) {
            double rate;
            code = measure(s, (int)s->counts[i], &rate, err);
            struct bench_result *r = &s->b->report.results[s->results[i]];
            if (!code && round >= 0)
                r->samples[r->n++] = rate;
        }
    }
    struct bench_summary one, these;
    for (int i = 0; i < s->n_counts && !code; i++) {
        struct bench_result *r = s->b->report.results;
        if (bench_summarise(r[s->results[0]].samples, r[s->results[0]].n, &one) &&
            bench_summarise(r[s->results[i]].samples, r[s->results[i]].n, &these) && s->counts[0] == 1)
            r[s->results[i]].ratio = these.median / one.median;
    }
    return code;
}

enum pp_code bench_several(struct bench *b, struct pp_error *err)
{
    static const int64_t usual[] = {1, 2, 4, 8};
    struct several s = {.b = b};
    struct pp_engine_options opt = pp_cli_engine_options(b->o);
    int64_t most = 1;
    bool chosen = b->o->bench.rows;
    s.n_counts = chosen ? (int)b->n_rows : (int)(sizeof usual / sizeof *usual);
    for (int i = 0; i < s.n_counts; i++) {
        s.counts[i] = chosen ? b->rows[i] : usual[i];
        most = s.counts[i] > most ? s.counts[i] : most;
    }
    if (most > LIMIT)
        return pp_fail(err, PP_ERR_USAGE, "at most %d conversations are answered at once", LIMIT);
    if (b->n_gen < 2) /* the first token is computed with the prompt */
        return pp_fail(err, PP_ERR_USAGE, "bench several needs -n 2 or more");
    opt.cache_dir = b->temporary ? NULL : b->paths->cache;
    opt.n_threads = (int)b->threads[0];
    opt.kv_type = (enum pp_kv_type)b->kv_types[0];
    if (opt.n_ctx == 0)
        opt.n_ctx = b->n_prompt + b->n_gen + 1;
    s.prompt = pp_malloc((size_t)b->n_prompt * sizeof *s.prompt);
    enum pp_code code = s.prompt ? pp_engine_new(b->model, &opt, NULL, NULL, &s.engine, err)
                                 : pp_fail_nomem(err, "the prompts");
    if (!code)
        code = pp_engine_settle(s.engine, b->cancel, err);
    if (!code)
        code = rounds(&s, err);
    pp_cli_bar_clear(&b->bar);
    pp_free(s.prompt);
    pp_engine_free(s.engine);
    return code;
}
