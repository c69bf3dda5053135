#include "engine/convert.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "engine/adapter_file.h"
#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "engine/export.h"
#include "engine/file_type.h"
#include "engine/gguf.h"
#include "engine/hf.h"
#include "engine/source.h"

/* --- what type -------------------------------------------------------------------------------------------- */

/* -1: as stored. */
static enum pp_code wanted_type(const struct pp_convert_options *opt, int *type, struct pp_error *err)
{
    *type = opt && opt->out_type ? pp_type_by_name(opt->out_type) : -1;
    if (*type == PP_TYPE_F32 || *type == PP_TYPE_F16 || *type == PP_TYPE_BF16 || !opt || !opt->out_type)
        return PP_OK;
    return pp_fail(err, PP_ERR_USAGE, "cannot convert to \"%.40s\"; possible are F32, F16, BF16 (and pippin quantize)",
                   opt->out_type);
}

/* --- a model ------------------------------------------------------------------------------------------- */

/* The file is named after the type that most of it has. */
static int file_type_for(const struct pp_source *s, const uint32_t *types)
{
    int64_t elements[PP_TYPE_LIMIT] = {0};
    uint32_t most = PP_TYPE_F32;
    for (size_t i = 0; i < pp_source_n_tensors(s); i++) {
        const int64_t *ne = pp_source_tensor_at(s, i)->ne;
        elements[types[i]] += ne[0] * ne[1] * ne[2] * ne[3];
    }
    for (uint32_t t = 0; t < PP_TYPE_LIMIT; t++)
        if (elements[t] > elements[most])
            most = t;
    return pp_file_type_of(most);
}

static enum pp_code convert_model(const char *src, const char *dst, int wanted, const struct pp_convert_options *opt,
                                  struct pp_error *err)
{
    struct pp_source *s;
    enum pp_code code = pp_source_open(src, &s, err);
    if (code)
        return code;
    size_t n = pp_source_n_tensors(s);
    uint32_t *types = pp_calloc(n, sizeof *types);
    if (!types)
        code = pp_fail_nomem(err, "the list of tensors");
    for (size_t i = 0; i < n && !code; i++) {
        const struct pp_tensor *t = pp_source_tensor_at(s, i);
        types[i] = pp_export_keeps_f32(t) ? PP_TYPE_F32 : wanted >= 0 ? (uint32_t)wanted : t->type;
    }
    if (!code)
        code = pp_export_model(s, dst, types, file_type_for(s, types), opt, err);
    pp_free(types);
    pp_source_close(s);
    return code;
}

/* --- an adapter ---------------------------------------------------------------------------------------- */

/* The folder that holds the adapter's, as a path; pp_free. */
static char *parent_of(const char *folder)
{
    size_t n = strlen(folder);
    while (n > 1 && folder[n - 1] == '/')
        n--;
    struct pp_buf path = {0};
    pp_buf_add(&path, folder, n);
    pp_buf_str(&path, "/..");
    return pp_buf_take(&path);
}

/* Opens the model that an adapter belongs to: the one the caller names, else the one the adapter names if that is a
 * path, else the adapter's parent folder. */
static enum pp_code open_base(const struct pp_adapter_file *f, const char *src, const char *wanted,
                              struct pp_source **base, struct pp_error *err)
{
    const char *named = pp_adapter_file_base(f);
    if (wanted)
        return pp_source_open(wanted, base, err);
    if (named && *named && pp_source_open(named, base, NULL) == PP_OK)
        return PP_OK; /* usually it is a name on a hub instead */
    char *parent = parent_of(src);
    enum pp_code code = parent ? pp_source_open(parent, base, err) : pp_fail_nomem(err, "a file name");
    pp_free(parent);
    if (code == PP_ERR_NOT_FOUND)
        return pp_fail(err, PP_ERR_USAGE,
                       "converting %s takes the numbers of the model it was trained on: say where that model is", src);
    return code;
}

static enum pp_code check_fit(const struct pp_source *base, const struct pp_adapter_target *t, struct pp_error *err)
{
    const struct pp_tensor *w = pp_source_tensor(base, t->name);
    if (!w)
        return pp_fail(err, PP_ERR_MISMATCH, "the adapter changes %s, which %s does not have", t->name,
                       pp_source_path(base));
    if (w->ne[0] != t->a.ne[0] || w->ne[1] != t->b.ne[1])
        return pp_fail(err, PP_ERR_MISMATCH, "the adapter's %s is %lld x %lld, but that of %s is %lld x %lld", t->name,
                       (long long)t->b.ne[1], (long long)t->a.ne[0], pp_source_path(base), (long long)w->ne[1],
                       (long long)w->ne[0]);
    return PP_OK;
}

/* GGUF has one alpha for all matrices, divided by the rank of each; where a target's scale differs from that, the rest
 * goes into its B. */
static float file_alpha(const struct pp_adapter_file *f)
{
    const struct pp_adapter_target *t = pp_adapter_file_at(f, 0);
    float alpha = t->scale * (float)t->a.ne[1], given = pp_adapter_file_alpha(f);
    return fabsf(alpha - given) <= 1e-6f * fabsf(given) ? given : alpha;
}

static float rest_of_scale(const struct pp_adapter_target *t, float alpha)
{
    float rest = t->scale * (float)t->a.ne[1] / alpha;
    return fabsf(rest - 1.0f) < 1e-6f ? 1.0f : rest;
}

static enum pp_code list_adapter(const struct pp_adapter_file *f, const struct pp_source *base, float alpha, int wanted,
                                 struct pp_export_item *items, struct pp_buf *names, struct pp_error *err)
{
    size_t n = pp_adapter_file_n(f);
    bool permuted = pp_adapter_file_hf_order(f) && !pp_arch_by_name(pp_adapter_file_arch(f))->gguf_neox;
    for (size_t i = 0; i < n; i++) {
        const struct pp_adapter_target *t = pp_adapter_file_at(f, i);
        if (t->a_turned || t->b_turned || !pp_adapter_target_plain(t))
            return pp_fail(err, PP_ERR_UNSUPPORTED,
                           "the adapter of %s is more than plain LoRA as PEFT has it, which cannot be converted",
                           t->name);
        enum pp_code code = check_fit(base, t, err);
        if (code)
            return code;
        int64_t head_dim = permuted && t->rows != PP_ROWS_SAME ? pp_source_hparams(base)->head_dim : 0;
        items[2 * i] = (struct pp_export_item){&t->a, NULL, wanted >= 0 ? (uint32_t)wanted : t->a.type, 0, 1.0f};
        items[2 * i + 1] = (struct pp_export_item){&t->b, NULL, wanted >= 0 ? (uint32_t)wanted : t->b.type, head_dim,
                                                   rest_of_scale(t, alpha)};
        pp_buf_fmt(names, "%s.lora_a%c%s.lora_b%c", t->name, 0, t->name, 0);
    }
    if (names->bad)
        return pp_fail_nomem(err, "the list of tensors");
    const char *name = names->data;
    for (size_t i = 0; i < 2 * n; i++, name += strlen(name) + 1)
        items[i].name = name;
    return PP_OK;
}

static void add_text(struct pp_gguf_writer *w, const char *key, const char *text)
{
    pp_gguf_add_str(w, key, text, strlen(text));
}

static enum pp_code write_adapter(const struct pp_adapter_file *f, const struct pp_source *base, const char *dst,
                                  int wanted, const struct pp_convert_options *opt, struct pp_error *err)
{
    float alpha = file_alpha(f);
    size_t n = 2 * pp_adapter_file_n(f);
    struct pp_buf names = {0};
    struct pp_gguf_writer *w = NULL;
    if (alpha == 0.0f)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the adapter's alpha is 0: it changes nothing");
    struct pp_export_item *items = pp_calloc(n, sizeof *items);
    enum pp_code code = items ? list_adapter(f, base, alpha, wanted, items, &names, err)
                              : pp_fail_nomem(err, "the list of tensors");
    if (!code)
        code = pp_gguf_writer_new(dst, &w, err);
    if (!code) {
        add_text(w, "general.architecture", pp_adapter_file_arch(f));
        add_text(w, "general.type", "adapter");
        add_text(w, "adapter.type", "lora");
        add_text(w, "general.name", pp_adapter_file_name(f));
        pp_gguf_add_f32(w, "adapter.lora.alpha", alpha);
        pp_gguf_add_u32(w, "general.quantization_version", 2);
        code = pp_export_items(w, items, n, opt, err);
    }
    if (!code)
        code = pp_adapter_file_check(f, err);
    if (!code)
        code = pp_gguf_writer_finish(w, err);
    pp_gguf_writer_free(w);
    pp_buf_free(&names);
    pp_free(items);
    return code;
}

static enum pp_code convert_adapter(const char *src, const char *dst, int wanted, const struct pp_convert_options *opt,
                                    struct pp_error *err)
{
    struct pp_adapter_file *f;
    struct pp_source *base;
    enum pp_code code = pp_adapter_file_open(src, &f, err);
    if (code)
        return code;
    code = open_base(f, src, opt ? opt->base : NULL, &base, err);
    if (!code) {
        code = write_adapter(f, base, dst, wanted, opt, err);
        pp_source_close(base);
    }
    pp_adapter_file_close(f);
    return code;
}

enum pp_code pp_convert_to_gguf(const char *src, const char *dst, const struct pp_convert_options *opt,
                                struct pp_error *err)
{
    int wanted;
    enum pp_code code = wanted_type(opt, &wanted, err);
    if (code)
        return code;
    return pp_is_adapter(src) ? convert_adapter(src, dst, wanted, opt, err) : convert_model(src, dst, wanted, opt, err);
}
