/* cmd_imatrix.c - pippin imatrix: measures which columns of a model's matrices matter when it processes a text.
 *
 * The text is cut as in `pippin perplexity`: chunks of -c tokens, the first of each replaced by BOS. The file is
 * written every --output-frequency chunks and at the end, so that an interrupted run, even a killed one, can
 * continue after the last chunk that was written. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "src/cmd_common.h"
#include "src/commands.h"

enum { DEFAULT_CHUNK = 512, OUTPUT_ROWS = 256 };

struct work {
    const struct pp_options *o;
    const struct pp_cancel *cancel;
    const char *output;
    const char *text;          /* name of the text */
    struct pp_imatrix *imatrix;
    uint32_t n_ctx;
    size_t skip;               /* chunks that are in the output already */
    size_t total;              /* chunks of the text, including those */
    size_t written;            /* chunks that the output contains */
    double seconds;
};

static void show_running(const struct work *w, size_t done, uint64_t began_ns)
{
    const double each = (double)(pp_now_ns() - began_ns) / 1e9 / (double)(done - w->skip);
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K%zu of %zu chunks, %.0f s left", done, w->total, each * (double)(w->total - done));
}

static void clear_line(void)
{
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
}

static enum pp_code write_output(struct work *w, size_t done, struct pp_error *err)
{
    enum pp_code code = pp_imatrix_write(w->imatrix, w->output, err);
    w->written = code ? w->written : done;
    return code;
}

/* A full disk is not an error yet: there may be room again at the end, and hours of work would be lost. */
static enum pp_code write_midway(struct work *w, size_t done, struct pp_error *err)
{
    const enum pp_code code = write_output(w, done, err);
    if (code != PP_ERR_IO)
        return code;
    clear_line();
    pp_cli_say("after chunk %zu of %zu: %s; continuing, and saving will be tried again", done, w->total, err->text);
    return PP_OK;
}

static enum pp_code read_chunk(struct work *w, struct pp_cli_model *m, struct pp_seq *seq, int32_t *chunk,
                               struct pp_error *err)
{
    const int32_t bos = pp_tokenizer_bos(pp_model_tokenizer(m->model)), replaced = chunk[0];
    if (bos >= 0)
        chunk[0] = bos;
    pp_seq_truncate(seq, 0);
    enum pp_code code = pp_cli_feed(m->engine, seq, chunk, w->n_ctx, w->o->imatrix.process_output ? 0 : w->n_ctx, NULL,
                                    NULL, w->cancel, err);
    chunk[0] = replaced;
    return code ? code : pp_imatrix_count(w->imatrix, w->text, 1, w->n_ctx, err);
}

static enum pp_code read_chunks(struct work *w, struct pp_cli_model *m, int32_t *tokens, struct pp_error *err)
{
    struct pp_seq *seq = NULL;
    const uint64_t began = pp_now_ns();
    const size_t every = (size_t)w->o->imatrix.output_frequency;
    enum pp_code code = pp_cli_model_seq(m, &seq, err);
    for (size_t k = w->skip; !code && k < w->total; k++) {
        code = read_chunk(w, m, seq, tokens + k * w->n_ctx, err);
        if (!code && k + 1 == w->total)
            code = write_output(w, k + 1, err);
        else if (!code && (k + 1 - w->skip) % every == 0)
            code = write_midway(w, k + 1, err);
        if (!code)
            show_running(w, k + 1, began);
    }
    w->seconds = (double)(pp_now_ns() - began) / 1e9;
    clear_line();
    pp_seq_free(seq);
    if (code && w->written)
        pp_cli_say("stopped; %s contains the first %zu of %zu chunks; --continue resumes there", w->output,
                   w->written, w->total);
    return code;
}

static enum pp_code read_text(struct work *w, const struct pp_paths *p, struct pp_error *err)
{
    struct pp_cli_model m = pp_cli_model_asked(w->o);
    struct pp_engine_options opt = pp_cli_engine_options(w->o);
    int32_t *tokens = NULL;
    size_t n = 0;
    opt.n_ctx = w->n_ctx;
    m.chunks = true;
    opt.imatrix = w->imatrix;
    if (w->o->imatrix.process_output)
        opt.max_rows = OUTPUT_ROWS; /* the logits of these rows take most of the memory */
    if (!w->o->kv_type_given)
        opt.kv_type = PP_KV_F32;
    enum pp_code code = pp_cli_model_open(&m, p, w->o->model, &opt, err);
    if (!code)
        code = pp_cli_model_adapters(&m, w->o, err);
    if (!code)
        code = pp_cli_model_apart(w->o, &m, w->output, err);
    if (!code)
        code = pp_cli_text_ids(w->o, &m, true, &tokens, &n, err);
    w->total = n / w->n_ctx;
    if (w->o->chunks > 0 && (size_t)w->o->chunks < w->total)
        w->total = (size_t)w->o->chunks;
    if (!code && !w->total)
        code = pp_cli_too_short(n, w->n_ctx, err);
    if (!code)
        code = read_chunks(w, &m, tokens, err);
    pp_free(tokens);
    pp_cli_model_close(&m);
    return code;
}

/* Reads the existing output for --continue; it must be from the same model and text. */
static enum pp_code take_up(struct work *w, struct pp_error *err)
{
    if (!w->o->resume_latest || access(w->output, F_OK) != 0)
        return pp_imatrix_new(&w->imatrix, err);
    if (w->o->imatrix.n_in_files)
        return pp_fail(err, PP_ERR_USAGE, "--continue resumes %s, which already contains what was merged in; leave "
                                          "--in-file "
                       "out", w->output);
    enum pp_code code = pp_imatrix_read(w->output, &w->imatrix, err);
    if (code)
        return code;
    const struct pp_imatrix_info info = pp_imatrix_info(w->imatrix);
    if (info.n_datasets != 1 || strcmp(pp_imatrix_dataset(w->imatrix, 0), w->text) != 0 ||
        info.chunk_size != w->n_ctx)
        return pp_fail(err, PP_ERR_MISMATCH,
                       "%s was not made from %s alone in chunks of %u tokens, so --continue does not know where to "
                       "resume; merge it with --in-file and write to another -o", w->output, w->text, w->n_ctx);
    w->skip = w->written = info.chunks;
    return PP_OK;
}

/* Whether the existing output is contained in the new one. */
static bool keeps_output(const struct work *w)
{
    for (int i = 0; i < w->o->imatrix.n_in_files; i++)
        if (pp_cli_apart(w->output, w->o->imatrix.in_files[i], NULL))
            return true;
    return w->o->resume_latest;
}

/* Refuses to overwrite an existing matrix, which may have taken hours: without -o it has the default name, and
 * --continue is easily forgotten. */
static enum pp_code check_output(const struct work *w, struct pp_error *err)
{
    struct stat st;
    enum pp_code code = pp_check_target(w->output, err);
    if (!code)
        code = pp_cli_apart(w->output, w->o->file, err);
    if (code || keeps_output(w) || stat(w->output, &st) != 0 || !st.st_size)
        return code;
    code = pp_cli_may_replace(w->output, pp_cli_is_imatrix, "an importance matrix", err);
    return code ? code
                : pp_fail(err, PP_ERR_USAGE, "%s exists and was left unchanged; --continue resumes it, --in-file "
                                             "merges it, or give another -o", w->output);
}

static enum pp_code add_files(struct work *w, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (int i = 0; !code && i < w->o->imatrix.n_in_files; i++) {
        struct pp_imatrix *from = NULL;
        code = pp_imatrix_read(w->o->imatrix.in_files[i], &from, err);
        if (!code && (code = pp_imatrix_merge(w->imatrix, from, err)))
            pp_fail_prefix(err, "%s", w->o->imatrix.in_files[i]);
        pp_imatrix_free(from);
    }
    return code;
}

static void report(const struct work *w)
{
    const struct pp_imatrix_info info = pp_imatrix_info(w->imatrix);
    const size_t read = w->total - (w->skip < w->total ? w->skip : w->total);
    pp_cli_say("%s: %zu tensors after %u chunk%s", w->output, info.n_tensors, info.chunks, info.chunks == 1 ? "" : "s");
    if (info.n_partial)
        pp_cli_say("in %zu of them some experts were never used; all their columns will have equal weight",
                   info.n_partial);
    if (!w->o->json)
        return;
    struct pp_buf b = {0};
    pp_buf_char(&b, '{');
    pp_cli_json_str(&b, "file", w->output);
    pp_cli_json_count(&b, "tensors", info.n_tensors);
    pp_cli_json_count(&b, "partial", info.n_partial);
    pp_cli_json_count(&b, "chunks", info.chunks);
    pp_cli_json_count(&b, "chunk_tokens", info.chunk_size);
    pp_cli_json_count(&b, "tokens_read", read * w->n_ctx);
    pp_cli_json_real(&b, "seconds", w->seconds, 3);
    pp_buf_str(&b, "}\n");
    fputs(pp_buf_cstr(&b), stdout);
    pp_buf_free(&b);
}

int pp_cmd_imatrix(const struct pp_options *o, const struct pp_paths *p)
{
    struct pp_error err = {0};
    struct work w = {
        .o = o,
        .cancel = pp_cli_begin(),
        .output = o->output ? o->output : "imatrix.gguf",
        .text = o->file && strcmp(o->file, "-") != 0 ? pp_base_name(o->file) : "stdin",
        .n_ctx = o->ctx_size > 0 ? (uint32_t)o->ctx_size : DEFAULT_CHUNK,
    };
    const bool only_adds = o->imatrix.n_in_files && !o->file;
    enum pp_code code = pp_cli_args(o, 0, 0, "", &err);
    if (!code && w.n_ctx < 4)
        code = pp_fail(&err, PP_ERR_USAGE, "a chunk needs at least 4 tokens, not -c %u", w.n_ctx);
    if (!code)
        code = check_output(&w, &err); /* before anything expensive */
    if (!code)
        code = take_up(&w, &err);
    if (!code)
        code = add_files(&w, &err);
    if (!code)
        code = only_adds ? write_output(&w, 0, &err) : read_text(&w, p, &err);
    if (!code)
        report(&w);
    pp_imatrix_free(w.imatrix);
    return pp_cli_end(code, &err);
}
