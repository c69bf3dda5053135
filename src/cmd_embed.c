/* cmd_embed.c - pippin embed: a line of text in, a vector of length 1 out, as a JSON array a line.
 *
 * The vector is what the model has computed behind its last norm: of the last token (last, the default: the only one
 * that has seen the whole text), or the mean of all tokens (mean). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "src/cmd_common.h"
#include "src/commands.h"

struct embed {
    const struct pp_options *o;
    const struct pp_cancel *cancel;
    struct pp_cli_model m;
    bool mean;
    int64_t n_embd;
    double *sum;         /* [n_embd] */
    struct pp_row *rows; /* [max_rows] */
    size_t line;
};

static void add_row(struct embed *e, const float *hidden)
{
    for (int64_t i = 0; i < e->n_embd; i++)
        e->sum[i] += (double)hidden[i];
}

/* The sum of what is wanted of these tokens. */
static enum pp_code compute(struct embed *e, struct pp_seq *seq, const int32_t *tokens, size_t n, struct pp_error *err)
{
    const size_t most = (size_t)pp_engine_max_rows(e->m.engine);
    enum pp_code code = PP_OK;
    memset(e->sum, 0, (size_t)e->n_embd * sizeof *e->sum);
    pp_seq_activate(seq, tokens, (int64_t)n);
    for (size_t begin = 0; begin < n && !code; begin += most) {
        const size_t count = n - begin < most ? n - begin : most;
        for (size_t i = 0; i < count; i++)
            e->rows[i] = (struct pp_row){.seq = seq, .token = tokens[begin + i], .parent = PP_PARENT_PREVIOUS,
                                         .out = e->mean || begin + i == n - 1 ? PP_OUT_HIDDEN : PP_OUT_NONE};
        code = pp_step(e->m.engine, e->rows, (int)count, e->cancel, err);
        for (size_t i = 0; i < count && !code; i++)
            if (e->rows[i].out == PP_OUT_HIDDEN)
                add_row(e, pp_step_output(e->m.engine, (int)i));
    }
    return code;
}

static enum pp_code print_unit(struct embed *e, struct pp_error *err)
{
    struct pp_buf out = {0};
    double squares = 0;
    for (int64_t i = 0; i < e->n_embd; i++)
        squares += e->sum[i] * e->sum[i];
    const double length = sqrt(squares);
    if (!isfinite(length) || length == 0)
        return pp_fail(err, PP_ERR_FORMAT, "line %zu has no direction; are the model's weights damaged?", e->line);
    for (int64_t i = 0; i < e->n_embd; i++)
        pp_buf_fmt(&out, "%s%.8g", i ? "," : "[", e->sum[i] / length);
    pp_buf_str(&out, "]\n");
    enum pp_code code = out.bad ? pp_fail_nomem(err, "the vector") : PP_OK;
    if (!code)
        pp_cli_print(out.data, out.len);
    pp_buf_free(&out);
    return code;
}

static enum pp_code embed_line(struct embed *e, const char *text, size_t n, struct pp_error *err)
{
    int32_t *ids = NULL;
    size_t n_ids = 0;
    struct pp_seq *seq = NULL;
    enum pp_code code =
        pp_tokenize(pp_model_tokenizer(e->m.model), text, n, PP_TOKENIZE_BOS, &ids, &n_ids, err);
    if (!code && !n_ids)
        code = pp_fail(err, PP_ERR_USAGE, "line %zu has no tokens", e->line);
    if (!code && (int64_t)n_ids > pp_engine_n_ctx(e->m.engine))
        code = pp_fail(err, PP_ERR_CONTEXT,
                       "line %zu has %zu tokens and the context holds %lld; give a larger --ctx-size", e->line,
                       n_ids, (long long)pp_engine_n_ctx(e->m.engine));
    if (!code)
        code = pp_cli_model_seq(&e->m, &seq, err);
    if (!code)
        code = compute(e, seq, ids, n_ids, err);
    if (!code)
        code = print_unit(e, err);
    pp_seq_free(seq);
    pp_free(ids);
    return code;
}

static enum pp_code embed_all(struct embed *e, const struct pp_buf *text, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (size_t at = 0; at < text->len && !code;) {
        const char *line = text->data + at, *end = memchr(line, '\n', text->len - at);
        const size_t n = end ? (size_t)(end - line) : text->len - at;
        e->line++;
        code = embed_line(e, line, n && line[n - 1] == '\r' ? n - 1 : n, err);
        at += n + 1;
    }
    return code;
}

int pp_cmd_embed(const struct pp_options *o, const struct pp_paths *p)
{
    struct embed e = {.o = o, .cancel = pp_cli_begin(), .mean = o->pooling && strcmp(o->pooling, "mean") == 0};
    struct pp_engine_options opt = pp_cli_engine_options(o);
    struct pp_buf text = {0};
    struct pp_error err = {0};
    enum pp_code code = pp_cli_args(o, 0, 0, "", &err);
    if (!code)
        code = pp_cli_input(o, &text, &err);
    if (!code)
        code = pp_cli_model_open(&e.m, p, o->model, &opt, &err);
    if (!code && !pp_model_tokenizer(e.m.model))
        code = pp_fail(&err, PP_ERR_USAGE, "%s has no vocabulary, so it reads no text", e.m.path);
    if (!code)
        code = pp_cli_model_adapters(&e.m, o, &err);
    if (!code) {
        e.n_embd = pp_model_info(e.m.model)->n_embd;
        e.sum = pp_calloc((size_t)e.n_embd, sizeof *e.sum);
        e.rows = pp_calloc((size_t)pp_engine_max_rows(e.m.engine), sizeof *e.rows);
        code = e.sum && e.rows ? embed_all(&e, &text, &err) : pp_fail_nomem(&err, "the vectors");
    }
    pp_free(e.sum);
    pp_free(e.rows);
    pp_cli_model_close(&e.m);
    pp_buf_free(&text);
    return pp_cli_end(code, &err);
}
