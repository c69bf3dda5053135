#include "engine/convert.h"

#include "engine/adapter_file.h"
#include "engine/base/mem.h"
#include "engine/export.h"
#include "engine/file_type.h"
#include "engine/source.h"

/* --- what type -------------------------------------------------------------------------------------------- */

/* *type -1: as stored. */
static enum pp_code wanted_type(const struct pp_convert_options *opt, int *type, struct pp_error *err)
{
    *type = opt && opt->out_type ? pp_type_by_name(opt->out_type) : -1;
    if (*type == PP_TYPE_F32 || *type == PP_TYPE_F16 || *type == PP_TYPE_BF16 || !opt || !opt->out_type)
        return PP_OK;
    return pp_fail(err, PP_ERR_USAGE, "cannot convert to \"%.40s\"; choose F32, F16 or BF16, or use `pippin quantize`",
                   opt->out_type);
}

/* --- a model ------------------------------------------------------------------------------------------- */

/* The file type that names the type of most matrices. */
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
        types[i] = pp_export_keeps_f32(t)                     ? PP_TYPE_F32
                   : wanted >= 0 && t->type != PP_TYPE_I32 ? (uint32_t)wanted
                                                              : t->type;
    }
    if (!code)
        code = pp_export_model(s, dst, types, file_type_for(s, types), opt, err);
    pp_free(types);
    pp_source_close(s);
    return code;
}

enum pp_code pp_convert_to_gguf(const char *src, const char *dst, const struct pp_convert_options *opt,
                                struct pp_error *err)
{
    int wanted;
    enum pp_code code = wanted_type(opt, &wanted, err);
    if (code)
        return code;
    return pp_is_adapter(src) ? pp_convert_adapter(src, dst, wanted, opt, err)
                              : convert_model(src, dst, wanted, opt, err);
}
