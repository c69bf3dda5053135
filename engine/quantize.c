/* quantize.c - which tensor gets which type. The rules are those of llama-quantize (February 2025, no importance
 * matrix), so that files of the same name have the same quality and size as elsewhere. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "engine/base/word.h"
#include "engine/convert.h"
#include "engine/export.h"
#include "engine/file_type.h"
#include "engine/source.h"

static const struct mix {
    const char *name;
    uint32_t type; /* of most matrices */
    char size;     /* 'S', 'M' or 'L' where there are several mixtures */
} mixes[] = {
    {"Q8_0", PP_TYPE_Q8_0, 0},     {"Q6_K", PP_TYPE_Q6_K, 0},     {"Q5_K_M", PP_TYPE_Q5_K, 'M'},
    {"Q5_K_S", PP_TYPE_Q5_K, 'S'}, {"Q5_1", PP_TYPE_Q5_1, 0},     {"Q5_0", PP_TYPE_Q5_0, 0},
    {"Q4_K_M", PP_TYPE_Q4_K, 'M'}, {"Q4_K_S", PP_TYPE_Q4_K, 'S'}, {"Q4_1", PP_TYPE_Q4_1, 0},
    {"Q4_0", PP_TYPE_Q4_0, 0},     {"IQ4_NL", PP_TYPE_IQ4_NL, 0}, {"IQ4_XS", PP_TYPE_IQ4_XS, 0},
    {"Q3_K_L", PP_TYPE_Q3_K, 'L'}, {"Q3_K_M", PP_TYPE_Q3_K, 'M'}, {"Q3_K_S", PP_TYPE_Q3_K, 'S'},
    {"Q2_K", PP_TYPE_Q2_K, 'M'},   {"Q2_K_S", PP_TYPE_Q2_K, 'S'}, {"F16", PP_TYPE_F16, 0},
    {"BF16", PP_TYPE_BF16, 0},     {"F32", PP_TYPE_F32, 0},
};

enum { N_MIXES = sizeof mixes / sizeof *mixes };

const char *pp_quantize_type(size_t i)
{
    return i < N_MIXES ? mixes[i].name : NULL;
}

const char *pp_quantize_name(const char *name)
{
    for (size_t i = 0; i < N_MIXES; i++) {
        const size_t n = strlen(mixes[i].name) - (mixes[i].size == 'M' && mixes[i].type != PP_TYPE_Q2_K ? 2 : 0);
        if (pp_casecmp(mixes[i].name, name) == 0 || (strlen(name) == n && pp_ncasecmp(mixes[i].name, name, n) == 0))
            return mixes[i].name;
    }
    return NULL;
}

static const struct mix *mix_of(int file_type)
{
    for (size_t i = 0; i < N_MIXES; i++)
        if (pp_file_type_by_name(mixes[i].name) == file_type)
            return &mixes[i];
    return NULL;
}

static bool is_float(uint32_t type)
{
    return type == PP_TYPE_F32 || type == PP_TYPE_F16 || type == PP_TYPE_BF16;
}

/* Only matrices, except those that steer the computation. */
static bool is_quantized(const struct pp_tensor *t)
{
    return t->n_dims >= 2 && pp_ends_with(t->name, "weight") && !pp_export_keeps_f32(t) &&
           !pp_ends_with(t->name, "ffn_gate_inp.weight") && strcmp(t->name, "token_start.weight") != 0;
}

/* The layers whose values and down projections matter most: the first and last eighth, and every third in between. */
static bool more_bits(int64_t layer, int64_t n_layer)
{
    return layer < n_layer / 8 || layer >= 7 * n_layer / 8 || (layer - n_layer / 8) % 3 == 2;
}

static bool is_iq4(const struct mix *mix)
{
    return mix->type == PP_TYPE_IQ4_NL || mix->type == PP_TYPE_IQ4_XS;
}

/* Query heads that share a value head. */
static int shared_by(const struct pp_hparams *hp)
{
    return hp->n_head_kv > 0 ? (int)(hp->n_head / hp->n_head_kv) : 1;
}

static uint32_t values_type(const struct mix *mix, const struct pp_hparams *hp, int64_t layer)
{
    const char size = mix->size;
    uint32_t type = mix->type;
    if (hp->n_expert == 8) /* with eight experts, keys and values are small compared with those, and worth a byte
                              each */
        return PP_TYPE_Q8_0;
    if (mix->type == PP_TYPE_Q2_K && size == 'M')
        type = shared_by(hp) >= 4 ? PP_TYPE_Q4_K : PP_TYPE_Q3_K;
    else if (mix->type == PP_TYPE_Q2_K && shared_by(hp) >= 4)
        type = PP_TYPE_Q4_K;
    else if (mix->type == PP_TYPE_Q3_K && size == 'M')
        type = layer < 2 ? PP_TYPE_Q5_K : PP_TYPE_Q4_K;
    else if ((mix->type == PP_TYPE_Q3_K && size == 'L') || (is_iq4(mix) && shared_by(hp) >= 4))
        type = PP_TYPE_Q5_K;
    else if ((mix->type == PP_TYPE_Q4_K || mix->type == PP_TYPE_Q5_K) && size == 'M' && more_bits(layer, hp->n_layer))
        type = PP_TYPE_Q6_K;
    else if (mix->type == PP_TYPE_Q4_K && size == 'S' && layer < 4)
        type = PP_TYPE_Q5_K;
    /* In 80-layer models eight query heads share a value head: the matrix is small, and gets more bits. */
    const bool small = hp->n_layer == 80 && hp->n_head != hp->n_head_kv;
    return small && (type == PP_TYPE_Q3_K || type == PP_TYPE_Q4_K) ? PP_TYPE_Q5_K : type;
}

static uint32_t down_type(const struct mix *mix, const struct pp_hparams *hp, int64_t layer)
{
    const bool early = layer < hp->n_layer / 8;
    switch (mix->type) {
    case PP_TYPE_Q2_K:
        return mix->size == 'M' ? PP_TYPE_Q3_K : early ? PP_TYPE_Q4_K : PP_TYPE_Q2_K;
    case PP_TYPE_Q3_K:
        if (mix->size == 'M')
            return layer < hp->n_layer / 16 ? PP_TYPE_Q5_K : PP_TYPE_Q4_K;
        return mix->size == 'L' ? PP_TYPE_Q5_K : PP_TYPE_Q3_K;
    case PP_TYPE_Q4_K:
    case PP_TYPE_Q5_K:
        if (mix->size == 'M')
            return more_bits(layer, hp->n_layer) ? PP_TYPE_Q6_K : mix->type;
        return mix->type == PP_TYPE_Q4_K && early ? PP_TYPE_Q5_K : mix->type;
    case PP_TYPE_IQ4_NL:
    case PP_TYPE_IQ4_XS:
        return early ? PP_TYPE_Q5_K : mix->type;
    default:
        return mix->type;
    }
}

static uint32_t attention_output_type(const struct mix *mix, const struct pp_hparams *hp)
{
    if (hp->n_expert == 8) {
        const bool few_bits = mix->type == PP_TYPE_Q4_K || is_iq4(mix) ||
                              (mix->type == PP_TYPE_Q3_K && mix->size != 'L') ||
                              (mix->type == PP_TYPE_Q2_K && mix->size == 'M');
        return few_bits ? PP_TYPE_Q5_K : mix->type;
    }
    if (mix->type == PP_TYPE_Q2_K && mix->size == 'M')
        return PP_TYPE_Q3_K;
    if (mix->type == PP_TYPE_Q3_K && mix->size != 'S')
        return mix->size == 'M' ? PP_TYPE_Q4_K : PP_TYPE_Q5_K;
    return mix->type;
}

static uint32_t queries_keys_values_type(const struct mix *mix)
{
    if (mix->type == PP_TYPE_Q3_K && mix->size != 'S')
        return PP_TYPE_Q4_K;
    if (mix->size == 'M' && (mix->type == PP_TYPE_Q4_K || mix->type == PP_TYPE_Q5_K))
        return mix->type == PP_TYPE_Q4_K ? PP_TYPE_Q5_K : PP_TYPE_Q6_K;
    return mix->type;
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
    bool down = pp_ends_with(t->name, ".ffn_down.weight") || pp_ends_with(t->name, ".ffn_down_exps.weight") ||
                pp_ends_with(t->name, ".ffn_down_shexp.weight") || strstr(t->name, ".ffn_down.") != NULL ||
                strstr(t->name, ".ffn_down_ch") != NULL;
    if (layer < 0 || mix->type == PP_TYPE_Q8_0)
        return mix->type;
    if (strstr(t->name, ".ffn_router_")) /* small, and a wrong expert costs more than rounding */
        return PP_TYPE_Q8_0;
    if (down)
        return down_type(mix, hp, layer);
    if (pp_ends_with(t->name, ".attn_v.weight"))
        return values_type(mix, hp, layer);
    if (pp_ends_with(t->name, ".attn_k.weight"))
        return hp->n_expert == 8 ? PP_TYPE_Q8_0 : mix->type;
    if (pp_ends_with(t->name, ".attn_output.weight"))
        return attention_output_type(mix, hp);
    return pp_ends_with(t->name, ".attn_qkv.weight") ? queries_keys_values_type(mix) : mix->type;
}

/* The type for rows that a type's blocks do not divide. */
uint32_t pp_quantize_fitting_type(uint32_t type, int64_t n_cols)
{
    if (n_cols % pp_type_info(type)->block_elements == 0)
        return type;
    if (n_cols % 32 != 0)
        return PP_TYPE_F16;
    switch (type) {
    case PP_TYPE_Q2_K:
    case PP_TYPE_Q3_K:
    case PP_TYPE_IQ4_XS:
        return PP_TYPE_IQ4_NL;
    case PP_TYPE_Q4_K:
        return PP_TYPE_Q5_0;
    case PP_TYPE_Q5_K:
        return PP_TYPE_Q5_1;
    default:
        return PP_TYPE_Q8_0;
    }
}

uint32_t pp_quantize_tensor_type(int file_type, const struct pp_hparams *hp, bool tied, const struct pp_tensor *t)
{
    if (t->type == PP_TYPE_I32)
        return PP_TYPE_I32; /* a table of integers */
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
    struct pp_buf known = {0};
    for (size_t i = 0; i < N_MIXES; i++)
        pp_buf_fmt(&known, "%s%s", i ? ", " : "", mixes[i].name);
    const enum pp_code code = pp_fail(err, PP_ERR_USAGE, "cannot quantise to \"%.40s\"; choose from %s", type,
                                      pp_buf_cstr(&known));
    pp_buf_free(&known);
    return code;
}

enum pp_code pp_quantize_file(const char *src, const char *dst, const char *type, const struct pp_convert_options *opt,
                              struct pp_error *err)
{
    struct pp_source *s;
    const char *name = pp_quantize_name(type);
    if (!name)
        return fail_type(type, err);
    const int file_type = pp_file_type_by_name(name);
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
