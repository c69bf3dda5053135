/* cmd_logits.c - pippin logits: writes the logits for every position of a text to a file. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/safetensors.h"
#include "src/cmd_common.h"
#include "src/commands.h"
#include "src/overflow.h"

/* Logits are quickly computed again, so an existing file of them may be replaced, but no other file. */
static bool is_logits(const char *path)
{
    struct pp_safetensors *s;
    if (pp_safetensors_open(path, &s, NULL))
        return false;
    const bool is = pp_safetensors_n(s) == 1 && pp_safetensors_find(s, "logits");
    pp_safetensors_close(s);
    return is;
}

/* Reads --ids, or else the list in the file of -f or on stdin. */
static enum pp_code read_ids(const struct pp_options *o, int32_t **ids, size_t *n, struct pp_error *err)
{
    struct pp_buf text = {0};
    enum pp_code code = PP_OK;
    *ids = NULL;
    if (o->ids)
        pp_buf_str(&text, o->ids);
    else
        code = pp_cli_input(o, &text, err);
    pp_cli_drop_mark(&text);
    if (!code)
        code = pp_cli_parse_ids(pp_buf_cstr(&text), text.len, ids, n, err);
    pp_buf_free(&text);
    if (!code && *n == 0)
        code = pp_fail(err, PP_ERR_USAGE, "logits needs at least one token id: --ids 1,2,3");
    return code;
}

static enum pp_code check_ids(const int32_t *ids, size_t n, int64_t n_vocab, struct pp_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= n_vocab)
            return pp_fail(err, PP_ERR_USAGE, "token id %d is outside the vocabulary of %lld tokens", ids[i],
                           (long long)n_vocab);
    return PP_OK;
}

static enum pp_code check_room(const struct pp_cli_model *m, size_t n, struct pp_error *err)
{
    const int64_t n_ctx = pp_engine_n_ctx(m->engine);
    const struct pp_larger larger = pp_overflow_larger(n_ctx, pp_model_info(m->model)->n_ctx_train);
    if ((int64_t)n <= n_ctx)
        return PP_OK;
    return pp_fail(err, PP_ERR_CONTEXT, "%zu token ids were given, but the context holds %lld; give %s%s", n,
                   (long long)n_ctx, larger.text[0] ? "" : "fewer", larger.text);
}

static enum pp_code compute(struct pp_cli_model *m, const int32_t *ids, size_t n, const char *output,
                            const struct pp_cancel *cancel, struct pp_error *err)
{
    struct pp_cli_rows t = {.n_vocab = (size_t)pp_model_info(m->model)->n_vocab};
    struct pp_seq *seq = NULL;
    size_t bytes;
    if (__builtin_mul_overflow(n, t.n_vocab * sizeof(float), &bytes) || !(t.values = pp_malloc(bytes)))
        return pp_fail_nomem(err, "the logits");
    enum pp_code code = pp_cli_model_seq(m, &seq, err);
    if (!code)
        code = pp_cli_feed(m->engine, seq, ids, n, 0, pp_cli_store_row, &t, cancel, err);
    if (!code) {
        struct pp_tensor tensor = {
            .name = "logits",
            .type = PP_TYPE_F32,
            .n_dims = 2,
            .ne = {(int64_t)t.n_vocab, (int64_t)n},
            .data = t.values,
            .size = bytes,
        };
        code = pp_safetensors_write(output, &tensor, 1, err);
    }
    pp_seq_free(seq);
    pp_free(t.values);
    return code;
}

static enum pp_code logits(const struct pp_options *o, const struct pp_paths *p, const struct pp_cancel *cancel,
                           struct pp_error *err)
{
    struct pp_cli_model m = pp_cli_model_asked(o);
    struct pp_engine_options opt = pp_cli_engine_options(o);
    int32_t *ids = NULL;
    size_t n = 0;
    m.exact_adapters = true;
    if (!o->kv_type_given)
        opt.kv_type = PP_KV_F32;
    enum pp_code code = pp_cli_args(o, 0, 0, "", err);
    if (!code && !o->output)
        code = pp_fail(err, PP_ERR_USAGE, "logits needs an output file: -o FILE.safetensors");
    if (!code)
        code = pp_cli_apart(o->output, o->file, err);
    if (!code)
        code = pp_cli_may_replace(o->output, is_logits, "a file of logits", err);
    if (!code)
        code = read_ids(o, &ids, &n, err);
    if (!code)
        code = pp_cli_model_open(&m, p, o->model, &opt, err);
    if (!code)
        code = check_ids(ids, n, pp_model_info(m.model)->n_vocab, err);
    if (!code)
        code = check_room(&m, n, err);
    if (!code)
        code = pp_cli_model_adapters(&m, o, err);
    if (!code)
        code = pp_cli_model_apart(o, &m, o->output, err);
    if (!code)
        code = compute(&m, ids, n, o->output, cancel, err);
    pp_cli_model_close(&m);
    pp_free(ids);
    return code;
}

int pp_cmd_logits(const struct pp_options *o, const struct pp_paths *p)
{
    struct pp_error err = {0};
    const struct pp_cancel *cancel = pp_cli_begin();
    return pp_cli_end(logits(o, p, cancel, &err), &err);
}
