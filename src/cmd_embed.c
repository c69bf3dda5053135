/* cmd_embed.c - pippin embed: computes a vector of length 1 for each line of text, and prints it as a line of JSON.
 *
 * Token vectors are the outputs of the model's last norm. How they are pooled is determined by the model or
 * --pooling. By default it is the mean of all for an encoder, and for other models the last one, the only token that
 * attends to the whole text. Short texts are computed in one batch. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "src/cmd_common.h"
#include "src/commands.h"
#include "src/overflow.h"

enum { MAX_TEXTS = 16 }; /* computed in one batch */

struct text {
    size_t line;
    struct pp_seq *seq;
    int32_t *ids;        /* [n] */
    size_t n;
};

struct embed {
    const struct pp_options *o;
    const struct pp_cancel *cancel;
    struct pp_cli_model m;
    enum pp_pooling pooling;
    bool encoder;
    int64_t n_embd, n_ctx;
    double *sum;         /* [n_embd] */
    struct pp_row *rows; /* [max_rows] */
    size_t line;         /* number of the text that was read last */
    struct text texts[MAX_TEXTS];
    int n_texts;         /* waiting for a pass */
    size_t n_rows;       /* the number of their tokens */
    struct pp_buf out;
};

/* --- vectors -------------------------------------------------------------------------------------------------- */

/* Whether token i of a text contributes to its vector. */
static bool is_wanted(const struct embed *e, size_t i, size_t n)
{
    return e->pooling == PP_POOLING_LAST ? i + 1 == n : e->pooling == PP_POOLING_CLS ? i == 0 : true;
}

/* Prints the sum normalised to length 1, and resets it. */
static enum pp_code add_unit(struct embed *e, size_t line, struct pp_error *err)
{
    double squares = 0;
    for (int64_t i = 0; i < e->n_embd; i++)
        squares += e->sum[i] * e->sum[i];
    const double length = sqrt(squares);
    if (!isfinite(length) || length == 0)
        return pp_fail(err, PP_ERR_FORMAT, "line %zu: the vector is zero or not finite; are the model's weights "
                                           "damaged?", line);
    for (int64_t i = 0; i < e->n_embd; i++) {
        pp_buf_fmt(&e->out, "%s%.8g", i ? "," : "[", e->sum[i] / length);
        e->sum[i] = 0;
    }
    pp_buf_char(&e->out, ']');
    return PP_OK;
}

/* Adds the output of row `row`, token i of the text. */
static enum pp_code take_row(struct embed *e, const struct text *t, size_t i, int row, struct pp_error *err)
{
    const float *hidden = pp_step_output(e->m.engine, row);
    for (int64_t k = 0; hidden && k < e->n_embd; k++)
        e->sum[k] += (double)hidden[k];
    if (e->pooling != PP_POOLING_NONE)
        return PP_OK;
    pp_buf_char(&e->out, i ? ',' : '[');
    return add_unit(e, t->line, err);
}

/* Completes a text after all its rows have been added. */
static enum pp_code end_text(struct embed *e, const struct text *t, struct pp_error *err)
{
    enum pp_code code = e->pooling == PP_POOLING_NONE ? PP_OK : add_unit(e, t->line, err);
    pp_buf_str(&e->out, e->pooling == PP_POOLING_NONE ? "]\n" : "\n");
    if (!code && e->out.bad)
        code = pp_fail_nomem(err, "the vector");
    if (!code)
        pp_cli_print(e->out.data, e->out.len);
    pp_buf_clear(&e->out);
    return code;
}

/* --- passes --------------------------------------------------------------------------------------------------- */

/* Adds `count` tokens from `first` on as rows, beginning at row `at`. */
static void add_rows(struct embed *e, const struct text *t, size_t first, size_t count, size_t at)
{
    for (size_t i = 0; i < count; i++)
        e->rows[at + i] = (struct pp_row){.seq = t->seq, .token = t->ids[first + i], .parent = PP_PARENT_PREVIOUS,
                                          .out = is_wanted(e, first + i, t->n) ? PP_OUT_HIDDEN : PP_OUT_NONE};
}

/* Computes one text, in several passes if necessary. */
static enum pp_code compute_alone(struct embed *e, const struct text *t, struct pp_error *err)
{
    const size_t most = (size_t)pp_engine_max_rows(e->m.engine);
    enum pp_code code = PP_OK;
    for (size_t begin = 0; begin < t->n && !code; begin += most) {
        const size_t count = t->n - begin < most ? t->n - begin : most;
        add_rows(e, t, begin, count, 0);
        code = pp_step(e->m.engine, e->rows, (int)count, e->cancel, err);
        for (size_t i = 0; i < count && !code; i++)
            code = take_row(e, t, begin + i, (int)i, err);
    }
    return code ? code : end_text(e, t, err);
}

/* Computes all waiting texts in one pass. *fits: false if there is not enough memory for that; then none has been
 * computed. */
static enum pp_code compute_together(struct embed *e, bool *fits, struct pp_error *err)
{
    size_t at = 0;
    for (int k = 0; k < e->n_texts; at += e->texts[k++].n)
        add_rows(e, &e->texts[k], 0, e->texts[k].n, at);
    enum pp_code code = pp_step(e->m.engine, e->rows, (int)at, e->cancel, err);
    *fits = code != PP_ERR_NOMEM;
    at = 0;
    for (int k = 0; k < e->n_texts && !code; at += e->texts[k++].n) {
        for (size_t i = 0; i < e->texts[k].n && !code; i++)
            code = take_row(e, &e->texts[k], i, (int)(at + i), err);
        if (!code)
            code = end_text(e, &e->texts[k], err);
    }
    return code;
}

static void free_text(struct text *t)
{
    pp_seq_free(t->seq);
    pp_free(t->ids);
    *t = (struct text){0};
}

/* Computes and prints the waiting texts, one by one if there is not enough memory for all. */
static enum pp_code flush(struct embed *e, struct pp_error *err)
{
    const size_t most = (size_t)pp_engine_max_rows(e->m.engine);
    enum pp_code code = PP_OK;
    bool fits = e->n_rows <= most;
    if (e->n_texts && fits)
        code = compute_together(e, &fits, err);
    if (e->n_rows > most || (!fits && e->n_texts > 1)) {
        code = PP_OK;
        for (int k = 0; k < e->n_texts && !code; k++) {
            code = compute_alone(e, &e->texts[k], err);
            pp_seq_truncate(e->texts[k].seq, 0); /* releases its pages for the next one */
        }
    }
    for (int k = 0; k < e->n_texts; k++)
        free_text(&e->texts[k]);
    e->n_texts = 0;
    e->n_rows = 0;
    return code;
}

/* --- texts ---------------------------------------------------------------------------------------------------- */

/* Truncates a text that is too long for an encoder, keeping its end token; an error for other models. */
static enum pp_code fit(struct embed *e, struct text *t, struct pp_error *err)
{
    const int32_t last = t->n ? t->ids[t->n - 1] : -1;
    const struct pp_larger larger = pp_overflow_larger(e->n_ctx, pp_model_info(e->m.model)->n_ctx_train);
    if ((int64_t)t->n <= e->n_ctx)
        return PP_OK;
    if (!e->encoder)
        return pp_fail(err, PP_ERR_CONTEXT, "line %zu has %zu tokens, but the context holds %lld; %s%s", t->line, t->n,
                       (long long)e->n_ctx, larger.text[0] ? "give " : "split the line", larger.text);
    pp_cli_say("line %zu has %zu tokens, but the model reads at most %lld; the rest is ignored", t->line, t->n,
               (long long)e->n_ctx);
    t->n = (size_t)e->n_ctx;
    if (last == pp_tokenizer_eos(pp_model_tokenizer(e->m.model)))
        t->ids[t->n - 1] = last;
    return PP_OK;
}

/* A line without tokens, as an empty one is for models without BOS, has no vector. It is printed as [], so that the
 * output has as many lines as the input. */
static enum pp_code embed_nothing(struct embed *e, struct pp_error *err)
{
    enum pp_code code = flush(e, err);
    if (code)
        return code;
    pp_cli_say("line %zu is empty, so it has no vector; [] is printed for it", e->line);
    pp_cli_print("[]\n", 3);
    return PP_OK;
}

static enum pp_code embed_line(struct embed *e, const char *text, size_t n, struct pp_error *err)
{
    struct text t = {.line = e->line};
    enum pp_code code =
        pp_tokenize(pp_model_tokenizer(e->m.model), text, n, PP_TOKENIZE_BOS, &t.ids, &t.n, err);
    if (!code && !t.n) {
        free_text(&t);
        return embed_nothing(e, err);
    }
    if (!code)
        code = fit(e, &t, err);
    if (!code && (e->n_texts == MAX_TEXTS || e->n_rows + t.n > (size_t)pp_engine_max_rows(e->m.engine)))
        code = flush(e, err);
    if (!code)
        code = pp_cli_model_seq(&e->m, &t.seq, err);
    if (code) {
        free_text(&t);
        return code;
    }
    pp_seq_activate(t.seq, t.ids, (int64_t)t.n);
    e->texts[e->n_texts++] = t;
    e->n_rows += t.n;
    return PP_OK;
}

/* Stops when the reader of stdout has gone away. */
static enum pp_code embed_all(struct embed *e, const struct pp_buf *text, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (size_t at = 0; at < text->len && !code && !ferror(stdout);) {
        const char *line = text->data + at, *end = memchr(line, '\n', text->len - at);
        const size_t n = end ? (size_t)(end - line) : text->len - at;
        e->line++;
        code = embed_line(e, line, n && line[n - 1] == '\r' ? n - 1 : n, err);
        at += n + 1;
    }
    struct pp_error later;
    const enum pp_code rest = code == PP_ERR_CANCELLED || ferror(stdout) ? PP_OK : flush(e, code ? &later : err);
    return code ? code : rest; /* the vectors of the lines before an error are printed */
}

/* --- the command ---------------------------------------------------------------------------------------------- */

static enum pp_code choose_pooling(struct embed *e, struct pp_error *err)
{
    static const char *const names[] = {[PP_POOLING_NONE] = "none", [PP_POOLING_MEAN] = "mean",
                                        [PP_POOLING_CLS] = "cls", [PP_POOLING_LAST] = "last"};
    const struct pp_model_info *info = pp_model_info(e->m.model);
    e->encoder = info->encoder;
    e->pooling = info->pooling;
    for (int i = PP_POOLING_NONE; e->o->pooling && i <= PP_POOLING_LAST; i++)
        if (strcmp(e->o->pooling, names[i]) == 0)
            e->pooling = (enum pp_pooling)i;
    if (e->pooling == PP_POOLING_RANK)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s is a reranker: it scores pairs of texts and has no embeddings of "
                                                "its own; --pooling cls or mean gives its hidden states", e->m.path);
    if (e->pooling == PP_POOLING_UNKNOWN)
        e->pooling = e->encoder ? PP_POOLING_MEAN : PP_POOLING_LAST;
    return PP_OK;
}

static enum pp_code prepare(struct embed *e, struct pp_error *err)
{
    if (!pp_model_tokenizer(e->m.model))
        return pp_fail(err, PP_ERR_USAGE, "%s has no vocabulary, so it cannot read text", e->m.path);
    e->n_embd = pp_model_info(e->m.model)->n_embd_out;
    e->n_ctx = pp_engine_n_ctx(e->m.engine);
    e->sum = pp_calloc((size_t)e->n_embd, sizeof *e->sum);
    e->rows = pp_calloc((size_t)pp_engine_max_rows(e->m.engine), sizeof *e->rows);
    return e->sum && e->rows ? choose_pooling(e, err) : pp_fail_nomem(err, "the vectors");
}

int pp_cmd_embed(const struct pp_options *o, const struct pp_paths *p)
{
    struct embed e = {.o = o, .cancel = pp_cli_begin(), .m = pp_cli_model_asked(o)};
    struct pp_engine_options opt = pp_cli_engine_options(o);
    struct pp_buf text = {0};
    struct pp_error err = {0};
    enum pp_code code = pp_cli_args(o, 0, 0, "", &err);
    e.m.embeds = true;
    if (!code)
        code = pp_cli_input(o, &text, &err);
    pp_cli_drop_mark(&text);
    if (!code)
        code = pp_cli_model_open(&e.m, p, o->model, &opt, &err);
    if (!code)
        code = pp_cli_model_adapters(&e.m, o, &err);
    if (!code)
        code = prepare(&e, &err);
    if (!code)
        code = embed_all(&e, &text, &err);
    for (int k = 0; k < e.n_texts; k++)
        free_text(&e.texts[k]);
    pp_free(e.sum);
    pp_free(e.rows);
    pp_buf_free(&e.out);
    pp_cli_model_close(&e.m);
    pp_buf_free(&text);
    return pp_cli_end(code, &err);
}
