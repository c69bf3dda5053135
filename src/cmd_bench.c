/* cmd_bench.c - pippin bench: how fast a prompt is taken in (prefill) and an answer given out (decode).
 *
 * Every repetition computes n_prompt random tokens in batches, then n_gen passes of one row behind them, each with the
 * most likely token of the pass before. Only forward passes are timed; choosing the token is counted apart. A run
 * before the first is thrown away. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "src/cmd_common.h"
#include "src/commands.h"

struct sample {
    double prefill_tps, decode_tps;
    double choose_us; /* a token */
};

struct bench {
    struct pp_cli_model model;
    struct pp_seq *seq;
    int32_t *prompt;         /* [n_prompt] */
    int64_t n_prompt, n_gen, n_vocab;
    struct sample *samples;  /* [repetitions] */
    int repetitions;
    const struct pp_cancel *cancel;
};

static int32_t most_likely(const float *logits, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return (int32_t)best;
}

static enum pp_code take_choice(void *user, size_t i, const float *logits, struct pp_error *err)
{
    struct bench *b = user;
    (void)i;
    (void)err;
    b->prompt[b->n_prompt] = most_likely(logits, b->n_vocab); /* the place behind the prompt is for it */
    return PP_OK;
}

static double rate(int64_t tokens, uint64_t ns)
{
    return ns ? (double)tokens * 1e9 / (double)ns : 0;
}

static enum pp_code decode(struct bench *b, struct sample *s, struct pp_error *err)
{
    uint64_t pass_ns = 0, choose_ns = 0;
    int32_t token = b->prompt[b->n_prompt];
    for (int64_t i = 0; i < b->n_gen; i++) {
        struct pp_row row = {.seq = b->seq, .token = token, .parent = -1, .out = PP_OUT_LOGITS};
        uint64_t start = pp_now_ns();
        enum pp_code code = pp_step(b->model.engine, &row, 1, b->cancel, err);
        if (code)
            return code;
        uint64_t computed = pp_now_ns();
        token = most_likely(pp_step_output(b->model.engine, 0), b->n_vocab);
        pass_ns += computed - start;
        choose_ns += pp_now_ns() - computed;
    }
    s->decode_tps = rate(b->n_gen, pass_ns);
    s->choose_us = b->n_gen ? (double)choose_ns / 1e3 / (double)b->n_gen : 0;
    return PP_OK;
}

static enum pp_code one_run(struct bench *b, struct sample *s, struct pp_error *err)
{
    *s = (struct sample){0};
    pp_seq_truncate(b->seq, 0);
    uint64_t start = pp_now_ns();
    enum pp_code code = pp_cli_feed(b->model.engine, b->seq, b->prompt, (size_t)b->n_prompt, (size_t)b->n_prompt - 1,
                                    take_choice, b, b->cancel, err);
    s->prefill_tps = rate(b->n_prompt, pp_now_ns() - start);
    return code ? code : decode(b, s, err);
}

/* --- summary ---------------------------------------------------------------------------------------------- */

struct summary {
    double median, least, most, deviation;
};

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* field: offset of a double in struct sample. False: out of memory. */
static bool summarise(const struct bench *b, size_t field, struct summary *out)
{
    size_t n = (size_t)b->repetitions;
    double *v = pp_malloc(n * sizeof *v), sum = 0, squares = 0;
    if (!v)
        return false;
    for (size_t i = 0; i < n; i++) {
        memcpy(&v[i], (const char *)&b->samples[i] + field, sizeof v[i]);
        sum += v[i];
    }
    for (size_t i = 0; i < n; i++)
        squares += (v[i] - sum / (double)n) * (v[i] - sum / (double)n);
    qsort(v, n, sizeof *v, ascending);
    *out = (struct summary){
        .median = n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2,
        .least = v[0],
        .most = v[n - 1],
        .deviation = n > 1 ? sqrt(squares / (double)(n - 1)) : 0,
    };
    pp_free(v);
    return true;
}

static void json_spread(struct pp_buf *b, const char *name, const struct summary *s)
{
    pp_cli_json_name(b, name);
    pp_buf_char(b, '{');
    pp_cli_json_real(b, "median", s->median, 2);
    pp_cli_json_real(b, "min", s->least, 2);
    pp_cli_json_real(b, "max", s->most, 2);
    pp_cli_json_real(b, "stddev", s->deviation, 2);
    pp_buf_char(b, '}');
}

static void print_json(const struct bench *b, const struct summary *prefill, const struct summary *dec,
                       const struct summary *choose)
{
    const struct pp_model_info *info = pp_model_info(b->model.model);
    struct pp_buf out = {0};
    pp_buf_char(&out, '{');
    pp_cli_json_real(&out, "prefill_tps", prefill->median, 2);
    pp_cli_json_real(&out, "decode_tps", dec->median, 2);
    json_spread(&out, "prefill", prefill);
    json_spread(&out, "decode", dec);
    pp_cli_json_real(&out, "choose_us", choose->median, 2);
    pp_cli_json_int(&out, "n_prompt", b->n_prompt);
    pp_cli_json_int(&out, "n_gen", b->n_gen);
    pp_cli_json_int(&out, "repetitions", b->repetitions);
    pp_cli_json_int(&out, "n_threads", pp_engine_n_threads(b->model.engine));
    pp_cli_json_str(&out, "kernels", pp_engine_kernels(b->model.engine));
    pp_cli_json_str(&out, "model", info->name);
    pp_cli_json_str(&out, "type", info->type_name);
    pp_cli_json_int(&out, "n_params", info->n_params);
    pp_cli_json_count(&out, "bytes", info->bytes);
    pp_cli_json_count(&out, "engine_bytes", pp_engine_stats(b->model.engine)->engine_bytes);
    pp_cli_json_str(&out, "kv_type", pp_kv_type_name(pp_engine_kv_type(b->model.engine)));
    pp_cli_json_int(&out, "adapters", b->model.n_adapters);
    pp_buf_str(&out, "}\n");
    fputs(pp_buf_cstr(&out), stdout);
    pp_buf_free(&out);
}

static void print_text(const struct bench *b, const struct summary *prefill, const struct summary *dec,
                       const struct summary *choose)
{
    const struct pp_model_info *info = pp_model_info(b->model.model);
    struct pp_buf head = {0};
    pp_buf_fmt(&head, "%s  %s  %.1f MB  %d threads  %s  KV %s\n", info->name, info->type_name,
               (double)info->bytes / 1e6, pp_engine_n_threads(b->model.engine), pp_engine_kernels(b->model.engine),
               pp_kv_type_name(pp_engine_kv_type(b->model.engine)));
    pp_cli_print(pp_buf_cstr(&head), head.len);
    pp_buf_free(&head);
    printf("prefill %6lld tokens  %10.1f tokens/s  (%.1f to %.1f)\n", (long long)b->n_prompt, prefill->median,
           prefill->least, prefill->most);
    printf("decode  %6lld tokens  %10.1f tokens/s  (%.1f to %.1f), and %.1f us to choose a token\n",
           (long long)b->n_gen, dec->median, dec->least, dec->most, choose->median);
}

static enum pp_code report(const struct pp_options *o, const struct bench *b, struct pp_error *err)
{
    struct summary prefill, dec, choose;
    if (!summarise(b, offsetof(struct sample, prefill_tps), &prefill) ||
        !summarise(b, offsetof(struct sample, decode_tps), &dec) ||
        !summarise(b, offsetof(struct sample, choose_us), &choose))
        return pp_fail_nomem(err, "the figures");
    (o->json ? print_json : print_text)(b, &prefill, &dec, &choose);
    return PP_OK;
}

/* --- the command ------------------------------------------------------------------------------------------ */

/* The same tokens on every machine; what they are does not matter to a dense model. */
static void fill_prompt(struct bench *b)
{
    uint32_t x = 2463534242u;
    for (int64_t i = 0; i < b->n_prompt; i++) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        b->prompt[i] = (int32_t)(x % (uint64_t)b->n_vocab);
    }
}

static enum pp_code prepare(const struct pp_options *o, const struct pp_paths *p, struct bench *b, struct pp_error *err)
{
    enum { MOST_TOKENS = 1 << 24, MOST_REPETITIONS = 10000 };
    struct pp_engine_options opt = pp_cli_engine_options(o);
    enum pp_code code = pp_cli_args(o, 0, 0, "", err);
    if (code)
        return code;
    if (b->n_prompt < 1 || b->n_gen < 0 || b->n_prompt > MOST_TOKENS || b->n_gen > MOST_TOKENS || b->repetitions < 1 ||
        b->repetitions > MOST_REPETITIONS)
        return pp_fail(err, PP_ERR_USAGE, "bench needs a prompt of at least one token and at least one repetition");
    if (opt.n_ctx == 0)
        opt.n_ctx = b->n_prompt + b->n_gen;
    if ((code = pp_cli_model_open(&b->model, p, o->model, &opt, err)) ||
        (code = pp_cli_model_adapters(&b->model, o, err)) || (code = pp_cli_model_seq(&b->model, &b->seq, err)))
        return code;
    b->n_vocab = pp_model_info(b->model.model)->n_vocab;
    b->prompt = pp_malloc((size_t)(b->n_prompt + 1) * sizeof *b->prompt);
    b->samples = pp_calloc((size_t)b->repetitions, sizeof *b->samples);
    if (!b->prompt || !b->samples)
        return pp_fail_nomem(err, "the prompt");
    fill_prompt(b);
    return PP_OK;
}

int pp_cmd_bench(const struct pp_options *o, const struct pp_paths *p)
{
    struct pp_error err = {0};
    struct pp_cli_bar bar = {0};
    struct sample warm_up;
    struct bench b = {
        .n_prompt = o->n_prompt,
        .n_gen = o->n_gen,
        .repetitions = o->repetitions,
        .cancel = pp_cli_begin(),
    };
    enum pp_code code = prepare(o, p, &b, &err);
    if (!code)
        code = one_run(&b, &warm_up, &err);
    for (int i = 0; !code && i < b.repetitions; i++) {
        pp_cli_bar_show(&bar, "measuring", (uint64_t)i, (uint64_t)b.repetitions);
        code = one_run(&b, &b.samples[i], &err);
    }
    pp_cli_bar_clear(&bar);
    if (!code)
        code = report(o, &b, &err);
    if (b.seq)
        pp_seq_free(b.seq);
    pp_cli_model_close(&b.model);
    pp_free(b.prompt);
    pp_free(b.samples);
    return pp_cli_end(code, &err);
}
