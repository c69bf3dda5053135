/* cmd_perplexity.c - pippin perplexity: measures how well a model predicts a text.
 *
 * Two measures that are comparable with published ones; special tokens in the text are parsed:
 *
 *   chunks (the default, as llama-perplexity does): BOS and the text are cut into chunks of -c tokens;
 *     the first token of each is replaced by BOS; the predictions in the second half are scored, -c / 2 - 1 per
 *     chunk.
 *   --windows: the text in windows of -c tokens without BOS; every next token is scored, including the one after
 *   the
 *     window.
 *
 * Perplexity is exp of the mean of -log p; its standard error is derived from the variance of -log p. */
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "src/cmd_common.h"
#include "src/commands.h"

enum { DEFAULT_CHUNK = 512, OUTPUT_ROWS = 256 };

struct score {
    double sum, sum_squares; /* of -log p */
    uint64_t n;
    const int32_t *next;     /* the token that follows row i of the current chunk */
    int64_t n_vocab;
    size_t last;             /* index of the last row that is scored */
};

/* log softmax(logits)[token]. Single precision suffices for the terms, which are at most 1: their errors, of either
 * sign, are far below the digits shown after summation. NaN anywhere gives NaN. */
static double log_probability(const float *logits, int64_t n, int32_t token)
{
    float most = logits[0];
    for (int64_t i = 1; i < n; i++)
        most = logits[i] > most ? logits[i] : most;
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)expf(logits[i] - most);
    return (double)logits[token] - (double)most - log(sum);
}

static enum pp_code score_row(void *user, size_t i, const float *logits, struct pp_error *err)
{
    struct score *s = user;
    if (i > s->last)
        return PP_OK;
    double nll = -log_probability(logits, s->n_vocab, s->next[i]);
    if (!isfinite(nll))
        return pp_fail(err, PP_ERR_FORMAT,
                       "the model gives no finite probability to token %d; are its weights damaged?", s->next[i]);
    s->sum += nll;
    s->sum_squares += nll * nll;
    s->n++;
    return PP_OK;
}

static double perplexity_of(const struct score *s)
{
    return exp(s->sum / (double)s->n);
}

static double standard_error(const struct score *s)
{
    if (s->n < 2)
        return NAN;
    double mean = s->sum / (double)s->n;
    double variance = s->sum_squares / (double)s->n - mean * mean;
    return perplexity_of(s) * sqrt(fmax(variance, 0) / (double)(s->n - 1));
}

static void show_running(const struct score *s, size_t done, size_t total, uint64_t began_ns)
{
    double each = (double)(pp_now_ns() - began_ns) / 1e9 / (double)done;
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K%zu of %zu: %.4f, %.0f s left", done, total, perplexity_of(s),
                each * (double)(total - done));
}

static void show_result(const struct pp_options *o, const struct pp_cli_model *m, const struct score *s, size_t chunks,
                        size_t n_ctx, double seconds)
{
    if (!o->json) {
        printf("%.4f +/- %.4f\n", perplexity_of(s), standard_error(s));
        return;
    }
    struct pp_buf b = {0};
    const struct pp_model_info *info = pp_model_info(m->model);
    pp_buf_char(&b, '{');
    pp_cli_json_real(&b, "perplexity", perplexity_of(s), 6);
    pp_cli_json_real(&b, "standard_error", standard_error(s), 6);
    pp_cli_json_str(&b, "kind", o->windows ? "windows" : "chunks");
    pp_cli_json_count(&b, "chunks", chunks);
    pp_cli_json_count(&b, "chunk_tokens", n_ctx);
    pp_cli_json_count(&b, "scored", s->n);
    pp_cli_json_str(&b, "model", info->name);
    pp_cli_json_str(&b, "type", info->type_name);
    pp_cli_json_str(&b, "kv_type", pp_kv_type_name(pp_engine_kv_type(m->engine)));
    pp_cli_json_str(&b, "kernels", pp_engine_kernels(m->engine));
    pp_cli_json_int(&b, "n_threads", pp_engine_n_threads(m->engine));
    pp_cli_json_real(&b, "seconds", seconds, 3);
    pp_buf_str(&b, "}\n");
    fputs(pp_buf_cstr(&b), stdout);
    pp_buf_free(&b);
}

/* tokens [n]: for chunks, with room for BOS in front. */
static enum pp_code measure(const struct pp_options *o, struct pp_cli_model *m, int32_t *tokens, size_t n, size_t n_ctx,
                            const struct pp_cancel *cancel, struct pp_error *err)
{
    int32_t bos = o->windows ? -1 : pp_tokenizer_bos(pp_model_tokenizer(m->model));
    size_t first = o->windows ? 0 : n_ctx / 2;
    size_t total = (o->windows && n ? n - 1 : n) / n_ctx;
    if (o->chunks > 0 && (size_t)o->chunks < total)
        total = (size_t)o->chunks;
    if (total == 0)
        return pp_cli_too_short(n, n_ctx, err);
    struct score s = {.n_vocab = pp_model_info(m->model)->n_vocab, .last = o->windows ? n_ctx - 1 : n_ctx - 2};
    struct pp_seq *seq = NULL;
    uint64_t began = pp_now_ns();
    enum pp_code code = pp_cli_model_seq(m, &seq, err);
    for (size_t k = 0; !code && k < total; k++) {
        int32_t *chunk = tokens + k * n_ctx;
        int32_t replaced = chunk[0];
        if (bos >= 0)
            chunk[0] = bos;
        s.next = chunk + 1;
        pp_seq_truncate(seq, 0);
        code = pp_cli_feed(m->engine, seq, chunk, n_ctx, first, score_row, &s, cancel, err);
        chunk[0] = replaced;
        if (!code)
            show_running(&s, k + 1, total, began);
    }
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
    if (!code)
        show_result(o, m, &s, total, n_ctx, (double)(pp_now_ns() - began) / 1e9);
    pp_seq_free(seq);
    return code;
}

static enum pp_code perplexity(const struct pp_options *o, const struct pp_paths *p, const struct pp_cancel *cancel,
                               struct pp_error *err)
{
    struct pp_cli_model m = pp_cli_model_asked(o);
    struct pp_engine_options opt = pp_cli_engine_options(o);
    int32_t *tokens = NULL;
    size_t n = 0;
    size_t n_ctx = o->ctx_size > 0 ? (size_t)o->ctx_size : DEFAULT_CHUNK;
    opt.n_ctx = (int64_t)n_ctx;
    m.chunks = true;
    opt.max_rows = OUTPUT_ROWS; /* the logits of these rows take most of the memory */
    if (!o->kv_type_given)
        opt.kv_type = PP_KV_F32;
    enum pp_code code = pp_cli_args(o, 0, 0, "", err);
    if (!code && n_ctx < 4)
        code = pp_fail(err, PP_ERR_USAGE, "a chunk needs at least 4 tokens, not -c %zu", n_ctx);
    if (!code)
        code = pp_cli_model_open(&m, p, o->model, &opt, err);
    if (!code)
        code = pp_cli_model_adapters(&m, o, err);
    if (!code)
        code = pp_cli_text_ids(o, &m, !o->windows, &tokens, &n, err);
    if (!code)
        code = measure(o, &m, tokens, n, n_ctx, cancel, err);
    pp_free(tokens);
    pp_cli_model_close(&m);
    return code;
}

int pp_cmd_perplexity(const struct pp_options *o, const struct pp_paths *p)
{
    struct pp_error err = {0};
    const struct pp_cancel *cancel = pp_cli_begin();
    return pp_cli_end(perplexity(o, p, cancel, &err), &err);
}
