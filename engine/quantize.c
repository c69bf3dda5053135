/* quantize.c - which tensor gets which type. The rules are those of llama-quantize (February 2025, no importance
 * matrix), so that files of the same name have the same quality and size as elsewhere. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/export.h"
#include "engine/file_type.h"
#include "engine/source.h"

static const struct mix {
    const char *name;
    uint32_t type; /* of most matrices */
} mixes[] = {
    {"Q8_0", PP_TYPE_Q8_0}, {"Q6_K", PP_TYPE_Q6_K}, {"Q4_K_M", PP_TYPE_Q4_K}, {"Q4_0", PP_TYPE_Q4_0},
    {"F16", PP_TYPE_F16},   {"BF16", PP_TYPE_BF16}, {"F32", PP_TYPE_F32},
};

enum { N_MIXES = sizeof mixes / sizeof *mixes };

const char *pp_quantize_type(size_t i)
{
    return i < N_MIXES ? mixes[i].name : NULL;
}

static const struct mix *mix_of(int file_type)
{
    for (size_t i = 0; i < N_MIXES; i++)
        if (pp_file_type_by_name(mixes[i].name) == file_type)
            return &mixes[i];
    return NULL;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

static bool is_float(uint32_t type)
{
    return type == PP_TYPE_F32 || type == PP_TYPE_F16 || type == PP_TYPE_BF16;
}

/* Matrices only; never what steers the computation rather than carrying it. */
static bool is_quantized(const struct pp_tensor *t)
{
    return t->n_dims >= 2 && ends_with(t->name, "weight") && !pp_export_keeps_f32(t) &&
           !ends_with(t->name, "ffn_gate_inp.weight");
}

/* The layers whose values and down projections matter most: the first and last eighth, and every third between. */
static bool more_bits(int64_t layer, int64_t n_layer)
{
    return layer < n_layer / 8 || layer >= 7 * n_layer / 8 || (layer - n_layer / 8) % 3 == 2;
}

/* The mixture's exceptions, for matrices whose rows fit its blocks. */
static uint32_t mixed_type(const struct mix *mix, const struct pp_hparams *hp, bool tied, const struct pp_tensor *t)
{
    bool head = strcmp(t->name, "output.weight") == 0 || (tied && strcmp(t->name, "token_embd.weight") == 0);
    if (is_float(mix->type))
        return mix->type;
    if (head) {
        if (t->ne[0] % pp_type_info(PP_TYPE_Q6_K)->block_elements != 0)
            return PP_TYPE_Q8_0;
        return mix->type == PP_TYPE_Q8_0 ? PP_TYPE_Q8_0 : PP_TYPE_Q6_K;
    }
    long layer = strncmp(t->name, "blk.", 4) == 0 ? strtol(t->name + 4, NULL, 10) : -1;
    bool down = ends_with(t->name, ".ffn_down.weight") || ends_with(t->name, ".ffn_down_exps.weight") ||
                strstr(t->name, ".ffn_down.") != NULL;
    bool sensitive = ends_with(t->name, ".attn_v.weight") || down;
    if (mix->type != PP_TYPE_Q4_K || layer < 0)
        return mix->type;
    /* Beside eight experts, keys and values are small, and worth a byte each. */
    if (hp->n_expert == 8 && (ends_with(t->name, ".attn_k.weight") || ends_with(t->name, ".attn_v.weight")))
        return PP_TYPE_Q8_0;
    if (ends_with(t->name, ".attn_qkv.weight")) /* where llama-quantize takes Q5_K, which cannot be run here */
        return PP_TYPE_Q6_K;
    if (!sensitive)
        return mix->type;
    if (more_bits(layer, hp->n_layer))
        return PP_TYPE_Q6_K;
    /* In models of 80 layers eight query heads share a value head: it is small, and gets more. (llama-quantize takes
     * Q5_K, which cannot be run here.) */
    bool shared = ends_with(t->name, ".attn_v.weight") && hp->n_layer == 80 && hp->n_head != hp->n_head_kv;
    return shared ? PP_TYPE_Q6_K : mix->type;
}

/* For rows that a type's blocks do not divide. llama-quantize goes from Q4_K to Q5_0, which cannot be run here. */
uint32_t pp_quantize_fitting_type(uint32_t type, int64_t n_cols)
{
    if (n_cols % pp_type_info(type)->block_elements == 0)
        return type;
    return n_cols % pp_type_info(PP_TYPE_Q8_0)->block_elements == 0 ? PP_TYPE_Q8_0 : PP_TYPE_F16;
}

uint32_t pp_quantize_tensor_type(int file_type, const struct pp_hparams *hp, bool tied, const struct pp_tensor *t)
{
    return is_quantized(t) ? pp_quantize_fitting_type(mixed_type(mix_of(file_type), hp, tied, t), t->ne[0])
                           : PP_TYPE_F32;
}

void pp_quantize_plan(const struct pp_source *s, int file_type, uint32_t *types)
{
    bool tied = !pp_source_tensor(s, "output.weight");
    for (size_t i = 0; i < pp_source_n_tensors(s); i++)
        types[i] = pp_quantize_tensor_type(file_type, pp_source_hparams(s), tied, pp_source_tensor_at(s, i));
}

static enum pp_code fail_type(const char *type, struct pp_error *err)
{
    char known[128] = "";
    size_t n = 0;
    for (size_t i = 0; i < N_MIXES; i++)
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", mixes[i].name);
    return pp_fail(err, PP_ERR_USAGE, "cannot quantise to \"%.40s\"; possible are %s", type, known);
}

enum pp_code pp_quantize_file(const char *src, const char *dst, const char *type, const struct pp_convert_options *opt,
                              struct pp_error *err)
{
    struct pp_source *s;
    int file_type = pp_file_type_by_name(type);
    if (!mix_of(file_type))
        return fail_type(type, err);
    enum pp_code code = pp_source_open(src, &s, err);
    if (code)
        return code;
    uint32_t *types = pp_calloc(pp_source_n_tensors(s), sizeof *types);
    if (!types) {
        code = pp_fail_nomem(err, "the list of tensors");
    } else {
        pp_quantize_plan(s, file_type, types);
        code = pp_export_model(s, dst, types, file_type, opt, err);
    }
    pp_free(types);
    pp_source_close(s);
    return code;
}
