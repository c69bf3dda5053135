#include "engine/hf_form.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/quant.h"
#include "engine/tensor_forms.h"

/* Allocates a tensor of this shape, all zeros. */
static enum pp_code make(uint32_t type, int64_t n_cols, int64_t n_rows, int64_t n_matrices, struct pp_tensor *out,
                         struct pp_error *err)
{
    *out = (struct pp_tensor){.type = type, .n_dims = n_matrices ? 3 : n_rows ? 2 : 1,
                              .ne = {n_cols, n_rows ? n_rows : 1, n_matrices ? n_matrices : 1, 1}};
    out->size = pp_type_row_bytes(type, n_cols) * (size_t)out->ne[1] * (size_t)out->ne[2];
    out->data = pp_calloc(out->size, 1);
    return out->data ? PP_OK : pp_fail_nomem(err, "weights in another order");
}

static uint8_t *bytes_of(struct pp_tensor *t)
{
    return (uint8_t *)(uintptr_t)t->data; /* allocated by make, so writable */
}

/* A copy with other dimensions. */
static enum pp_code reshaped(const struct pp_tensor *t, int64_t n_cols, int64_t n_rows, int64_t n_matrices,
                             struct pp_tensor *out, struct pp_error *err)
{
    const enum pp_code code = make(t->type, n_cols, n_rows, n_matrices, out, err);
    if (!code)
        memcpy(bytes_of(out), t->data, out->size);
    return code;
}

/* Whether the type stores each value by itself, not in blocks. */
static bool by_values(const struct pp_tensor *t)
{
    return pp_type_info(t->type)->block_elements == 1;
}

enum pp_code pp_hf_fail_shape(const struct pp_tensor *t, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_FORMAT, "tensor %.200s has the shape %lld x %lld x %lld, which is not the one expected",
                   t->name, (long long)t->ne[2], (long long)t->ne[1], (long long)t->ne[0]);
}

float pp_hf_added(enum pp_hf_form form)
{
    switch (form) {
    case PP_HF_PLUS_ONE: return 1;
    case PP_HF_PLUS_0_2: return 0.2f;
    case PP_HF_PLUS_0_2_POW_1_5: return 0.08944272f;
    default: return 0;
    }
}

/* w + `added` in F32, where the sum of a bfloat16 and 1 is exact. */
static enum pp_code add_constant(const struct pp_tensor *t, float added, struct pp_tensor *out, struct pp_error *err)
{
    enum pp_code code = t->n_dims == 1 ? make(PP_TYPE_F32, t->ne[0], 0, 0, out, err) : pp_hf_fail_shape(t, err);
    if (code)
        return code;
    float *f = (float *)bytes_of(out);
    pp_dequantize_row(t->type, t->data, f, t->ne[0]);
    for (int64_t i = 0; i < t->ne[0]; i++)
        f[i] += added;
    return PP_OK;
}

/* Separates the interleaved biases of gate and value, of each expert or of one vector. */
static enum pp_code split_biases(const struct pp_tensor *t, int n_dims, struct pp_tensor out[2], struct pp_error *err)
{
    const size_t size = (size_t)pp_type_info(t->type)->block_bytes;
    if (!by_values(t) || t->n_dims != n_dims || t->ne[0] % 2 != 0)
        return pp_hf_fail_shape(t, err);
    for (int part = 0; part < 2; part++) {
        enum pp_code code = make(t->type, t->ne[0] / 2, n_dims == 1 ? 0 : t->ne[1], 0, &out[part], err);
        for (int64_t i = 0; !code && i < t->ne[0] / 2 * t->ne[1]; i++)
            memcpy(bytes_of(&out[part]) + (size_t)i * size, (const uint8_t *)t->data + (size_t)(2 * i + part) * size,
                   size);
        if (code)
            return code;
    }
    return PP_OK;
}

/* Reorders a bias [n_head_kv][q ..., k, v][head_dim] to all of q, then k, then v. */
static enum pp_code fused_qkv(const struct pp_tensor *t, const struct pp_hparams *hp, struct pp_tensor *out,
                              struct pp_error *err)
{
    const int64_t before[] = {0, hp->n_head, hp->n_head + hp->n_head_kv}; /* heads before q, k and v */
    const size_t size = pp_type_row_bytes(t->type, 1);
    if (hp->head_dim <= 0 || t->n_dims != 1 || t->ne[0] != (hp->n_head + 2 * hp->n_head_kv) * hp->head_dim || !size)
        return pp_hf_fail_shape(t, err);
    enum pp_code code = make(t->type, t->ne[0], 0, 0, out, err);
    for (int64_t r = 0, in; !code && r < t->ne[0]; r++) {
        const int part = pp_hf_qkv_row(PP_HF_QKV_BY_GROUP, hp, r, &in);
        memcpy(bytes_of(out) + (size_t)(before[part] * hp->head_dim + in) * size,
               (const uint8_t *)t->data + (size_t)r * size, size);
    }
    return code;
}

/* A table without its first rows. */
static enum pp_code drop_reserved(const struct pp_tensor *t, int64_t n_reserved, struct pp_tensor *out,
                                  struct pp_error *err)
{
    const size_t row = pp_type_row_bytes(t->type, t->ne[0]);
    if (t->n_dims != 2 || n_reserved >= t->ne[1] || !row)
        return pp_hf_fail_shape(t, err);
    enum pp_code code = make(t->type, t->ne[0], t->ne[1] - n_reserved, 0, out, err);
    if (!code)
        memcpy(bytes_of(out), (const uint8_t *)t->data + (size_t)n_reserved * row, out->size);
    return code;
}

/* A matrix of one row as a vector; vectors stay. */
static enum pp_code one_row(const struct pp_tensor *t, struct pp_tensor *out, struct pp_error *err)
{
    return t->n_dims > 2 || t->ne[1] != 1 ? pp_hf_fail_shape(t, err) : reshaped(t, t->ne[0], 0, 0, out, err);
}

/* The taps of each channel, wherever the shape has a dimension of 1. */
static enum pp_code channels(const struct pp_tensor *t, struct pp_tensor *out, struct pp_error *err)
{
    if (t->n_dims != 3 || (t->ne[0] != 1 && t->ne[1] != 1) || !by_values(t))
        return pp_hf_fail_shape(t, err);
    return reshaped(t, t->ne[0] * t->ne[1], t->ne[2], 0, out, err);
}

/* The taps of heads, between dimensions of 1. */
static enum pp_code head_taps(const struct pp_tensor *t, struct pp_tensor *out, struct pp_error *err)
{
    if (t->n_dims < 3 || t->ne[1] != 1 || t->ne[3] != 1 || !by_values(t))
        return pp_hf_fail_shape(t, err);
    return reshaped(t, t->ne[0], t->ne[2], 0, out, err);
}

/* The taps of channels, with the dimension of 1 in the middle, or without it. */
static enum pp_code channels_3d(const struct pp_tensor *t, struct pp_tensor *out, struct pp_error *err)
{
    if (t->n_dims == 2 && by_values(t))
        return reshaped(t, t->ne[0], 1, t->ne[1], out, err);
    const enum pp_code code = channels(t, out, err);
    out->n_dims = 3;
    out->ne[2] = out->ne[1];
    out->ne[1] = 1;
    return code;
}

/* exp, with a sign, of a tensor that stores logarithms. */
static enum pp_code exponentials(const struct pp_tensor *t, float sign, struct pp_tensor *out, struct pp_error *err)
{
    const int64_t n = t->ne[0] * t->ne[1] * t->ne[2];
    if (t->n_dims > 3 || !by_values(t))
        return pp_hf_fail_shape(t, err);
    enum pp_code code = make(PP_TYPE_F32, t->ne[0], t->n_dims > 1 ? t->ne[1] : 0, t->n_dims > 2 ? t->ne[2] : 0, out,
                             err);
    if (code)
        return code;
    float *f = (float *)bytes_of(out);
    pp_dequantize_row(t->type, t->data, f, n);
    for (int64_t i = 0; i < n; i++)
        f[i] = sign * expf(f[i]);
    return PP_OK;
}

/* Decay rates of states from their logarithms; Kimi K3 stores more than are used. */
static enum pp_code rates(const struct pp_tensor *t, const struct pp_hparams *hp, struct pp_tensor *out,
                          struct pp_error *err)
{
    const enum pp_code code = exponentials(t, -1, out, err);
    if (!code && hp->kda && out->n_dims == 1 && out->ne[0] > hp->n_state_head) {
        out->ne[0] = hp->n_state_head;
        out->size = (size_t)out->ne[0] * sizeof(float);
    }
    return code;
}

/* A vector as a matrix of one column. sign: that of exponentials; 0: copied. */
static enum pp_code column(const struct pp_tensor *t, float sign, struct pp_tensor *out, struct pp_error *err)
{
    if (t->n_dims != 1 || !by_values(t))
        return pp_hf_fail_shape(t, err);
    const enum pp_code code = sign != 0.0f ? exponentials(t, sign, out, err) : reshaped(t, t->ne[0], 0, 0, out, err);
    if (code)
        return code;
    out->n_dims = 2;
    out->ne[1] = out->ne[0];
    out->ne[0] = 1;
    return PP_OK;
}

/* The same for a vector with any dimensions of 1. */
static enum pp_code column_of_many_dims(const struct pp_tensor *t, float sign, struct pp_tensor *out,
                                         struct pp_error *err)
{
    struct pp_tensor vector = *t;
    for (int d = 1; d < 4; d++)
        vector.ne[0] = t->ne[d] > vector.ne[0] ? t->ne[d] : vector.ne[0];
    vector.n_dims = 1;
    vector.ne[1] = vector.ne[2] = vector.ne[3] = 1;
    if (t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3] != vector.ne[0])
        return pp_hf_fail_shape(t, err);
    return column(&vector, sign, out, err);
}

/* A matrix as a vector. */
static enum pp_code flattened(const struct pp_tensor *t, struct pp_tensor *out, struct pp_error *err)
{
    if (t->n_dims > 2 || !by_values(t))
        return pp_hf_fail_shape(t, err);
    return reshaped(t, t->ne[0] * t->ne[1], 0, 0, out, err);
}

/* [1, 1, n] as a vector. */
static enum pp_code vector_of_3d(const struct pp_tensor *t, struct pp_tensor *out, struct pp_error *err)
{
    if (t->ne[1] * t->ne[2] * t->ne[3] != 1 || !by_values(t))
        return pp_hf_fail_shape(t, err);
    return reshaped(t, t->ne[0], 0, 0, out, err);
}

/* 1 - x in F32, which is exact for bfloat16 values from 0 to 1. */
static enum pp_code one_minus(const struct pp_tensor *t, struct pp_tensor *out, struct pp_error *err)
{
    if (t->ne[1] * t->ne[2] * t->ne[3] != 1 || !by_values(t))
        return pp_hf_fail_shape(t, err);
    enum pp_code code = make(PP_TYPE_F32, t->ne[0], 0, 0, out, err);
    if (code)
        return code;
    float *f = (float *)bytes_of(out);
    pp_dequantize_row(t->type, t->data, f, t->ne[0]);
    for (int64_t i = 0; i < t->ne[0]; i++)
        f[i] = 1 - f[i];
    return PP_OK;
}

/* A vector as a matrix of n_rows rows. */
static enum pp_code matrix_of_vector(const struct pp_tensor *t, int64_t n_rows, struct pp_tensor *out,
                                      struct pp_error *err)
{
    if (t->n_dims != 1 || n_rows < 1 || t->ne[0] % n_rows != 0 || !by_values(t))
        return pp_hf_fail_shape(t, err);
    return reshaped(t, t->ne[0] / n_rows, n_rows, 0, out, err);
}

/* Splits a convolution of two taps into a matrix for each. */
static enum pp_code split_taps(const struct pp_tensor *t, bool is_4d, struct pp_tensor out[2], struct pp_error *err)
{
    const size_t size = (size_t)pp_type_info(t->type)->block_bytes;
    const int64_t *ne = t->ne + is_4d; /* after a dimension of 1 */
    if (!by_values(t) || (is_4d && t->ne[0] != 1) || ne[0] != 2 || t->n_dims != 3 + is_4d)
        return pp_hf_fail_shape(t, err);
    for (int tap = 0; tap < 2; tap++) {
        const enum pp_code code = make(t->type, ne[1], ne[2], 0, &out[tap], err);
        if (code)
            return code;
        for (int64_t i = 0; i < ne[1] * ne[2]; i++)
            memcpy(bytes_of(&out[tap]) + (size_t)i * size, (const uint8_t *)t->data + (size_t)(2 * i + tap) * size,
                   size);
    }
    return PP_OK;
}

enum { N_MIXES = 5 };
static const int mix_order[N_MIXES] = {1, 2, 3, 0, 4}; /* from w, k, v, r, g to r, w, k, v, g */

/* Reorders RWKV 6's pieces of rows; apart: each is a vector. */
static enum pp_code mixes_of_rows(const struct pp_tensor *t, bool apart, struct pp_tensor *out, struct pp_error *err)
{
    if (t->n_dims != 2 || t->ne[1] % N_MIXES != 0 || (apart && t->ne[1] != N_MIXES) || !by_values(t))
        return pp_hf_fail_shape(t, err);
    enum pp_code code = make(t->type, t->ne[0], t->ne[1], 0, out, err);
    const size_t size = out->size / N_MIXES;
    for (size_t i = 0; i < N_MIXES && !code; i++)
        memcpy(bytes_of(out) + i * size, (const uint8_t *)t->data + (size_t)mix_order[i] * size, size);
    if (!code && apart) {
        out->n_dims = 4;
        out->ne[1] = 1;
        out->ne[3] = N_MIXES;
    }
    return code;
}

/* Makes a matrix of each piece of columns. */
static enum pp_code mixes_of_columns(const struct pp_tensor *t, struct pp_tensor *out, struct pp_error *err)
{
    const int64_t n = t->ne[0] / N_MIXES;
    const size_t size = pp_type_row_bytes(t->type, n);
    if (t->n_dims != 2 || t->ne[0] % N_MIXES != 0 || !by_values(t))
        return pp_hf_fail_shape(t, err);
    enum pp_code code = make(t->type, n, t->ne[1], N_MIXES, out, err);
    for (int64_t i = 0; i < N_MIXES * t->ne[1] && !code; i++)
        memcpy(bytes_of(out) + (size_t)i * size,
               (const uint8_t *)t->data + (size_t)(i % t->ne[1] * N_MIXES + mix_order[i / t->ne[1]]) * size, size);
    return code;
}

/* On failure out holds what was made. */
static enum pp_code transform(const struct pp_tensor *t, enum pp_hf_form form, const struct pp_hparams *hp,
                              struct pp_tensor out[2], struct pp_error *err)
{
    switch (form) {
    case PP_HF_PLUS_ONE:
    case PP_HF_PLUS_0_2:
    case PP_HF_PLUS_0_2_POW_1_5:
        return add_constant(t, pp_hf_added(form), out, err);
    case PP_HF_BIASES_INTERLEAVED:
        return split_biases(t, 2, out, err);
    case PP_HF_INTERLEAVED:
        return split_biases(t, 1, out, err);
    case PP_HF_QKV_FUSED_BY_GROUP:
        return fused_qkv(t, hp, out, err);
    case PP_HF_AFTER_RESERVED:
        return drop_reserved(t, hp->n_reserved_positions, out, err);
    case PP_HF_ONE_ROW:
        return one_row(t, out, err);
    case PP_HF_CONV:
        return channels(t, out, err);
    case PP_HF_CONV_BY_HEAD:
        return head_taps(t, out, err);
    case PP_HF_CONV_3D:
        return channels_3d(t, out, err);
    case PP_HF_MINUS_EXP_4D:
        return column_of_many_dims(t, -1, out, err);
    case PP_HF_EXP_4D:
        return column_of_many_dims(t, 1, out, err);
    case PP_HF_MINUS_EXP:
        return rates(t, hp, out, err);
    case PP_HF_COLUMN:
    case PP_HF_MINUS_EXP_COLUMN:
        return column(t, form == PP_HF_MINUS_EXP_COLUMN ? -1 : 0, out, err);
    case PP_HF_STATE_HEAD_ROWS:
        return flattened(t, out, err);
    case PP_HF_VECTOR_3D:
        return vector_of_3d(t, out, err);
    case PP_HF_FLA_MIX_W1:
    case PP_HF_FLA_MIX_BIAS:
        return mixes_of_rows(t, form == PP_HF_FLA_MIX_BIAS, out, err);
    case PP_HF_FLA_MIX_W2:
        return mixes_of_columns(t, out, err);
    case PP_HF_TWO_TAPS_4D:
    case PP_HF_TWO_TAPS_3D:
        return split_taps(t, form == PP_HF_TWO_TAPS_4D, out, err);
    case PP_HF_ONE_MINUS:
        return one_minus(t, out, err);
    case PP_HF_FLAT_GROUPS:
        return matrix_of_vector(t, hp->n_state_key_head, out, err);
    /* Done elsewhere: in hf_rows.c, tensor_forms.c, source_folder.c, pp_hf_stack and pp_hf_whole. */
    case PP_HF_SAME:
    case PP_HF_TRANSPOSED:
    case PP_HF_EXPERTS_TRANSPOSED:
    case PP_HF_EXPERTS_INTERLEAVED:
    case PP_HF_EXPERTS_HALVES:
    case PP_HF_QKV_STACKED:
    case PP_HF_GATE_QKV:
    case PP_HF_QKV_BY_GROUP:
    case PP_HF_QKV_IN_PIECES:
    case PP_HF_HALVES_BY_HEAD:
    case PP_HF_INDEXER_Q_K:
    case PP_HF_FIRST_ROW:
    case PP_HF_EXPERTS_FLAT:
    case PP_HF_EXPERTS_FLAT_TRANSPOSED:
    case PP_HF_UNIT_ROWS:
    case PP_HF_MIX_W1:
    case PP_HF_MIX_W2:
    case PP_HF_HALF_NEGATED:
    case PP_HF_TIMES_EIGHT:
    case PP_HF_ADAPTERS:
    case PP_HF_HALVES:
    case PP_HF_SCALAR:
    case PP_HF_VECTOR_OR_ROW:
    case PP_HF_SCALED:
    case PP_HF_LERP:
    case PP_HF_PRODUCT:
    case PP_HF_INTEGERS:
        break;
    }
    return pp_hf_fail_shape(t, err);
}

enum pp_code pp_hf_transform(const struct pp_tensor *t, enum pp_hf_form form, const struct pp_hparams *hp,
                             struct pp_tensor out[2], int *n, struct pp_error *err)
{
    const bool two = form == PP_HF_TWO_TAPS_4D || form == PP_HF_TWO_TAPS_3D || form == PP_HF_BIASES_INTERLEAVED ||
                     form == PP_HF_INTERLEAVED;
    out[0] = out[1] = (struct pp_tensor){0};
    *n = two ? 2 : 1;
    const enum pp_code code = transform(t, form, hp, out, err);
    for (int i = 0; code && i < 2; i++) {
        pp_free((void *)(uintptr_t)out[i].data);
        out[i].data = NULL;
    }
    return code;
}

enum pp_code pp_hf_whole(const struct pp_tensor *t, const char *dtype, struct pp_tensor *out, struct pp_error *err)
{
    const bool wide = strcmp(dtype, "I64") == 0;
    *out = (struct pp_tensor){0};
    if ((!wide && strcmp(dtype, "I32") != 0) || t->n_dims != 2 || !t->size)
        return pp_fail(err, PP_ERR_FORMAT, "tensor %.200s is not a matrix of integers", t->name);
    const enum pp_code code = make(PP_TYPE_I32, t->ne[0], t->ne[1], 0, out, err);
    for (int64_t i = 0; !code && i < t->ne[0] * t->ne[1]; i++) {
        int64_t number = 0;
        int32_t narrow = 0;
        memcpy(wide ? (void *)&number : (void *)&narrow, (const uint8_t *)t->data + i * (wide ? 8 : 4), wide ? 8 : 4);
        if (wide) /* too large for any index: invalid, like -1 */
            narrow = number < INT32_MIN || number > INT32_MAX ? -1 : (int32_t)number;
        memcpy(bytes_of(out) + 4 * i, &narrow, sizeof narrow);
    }
    return code;
}

/* A vector of n floats, under this name or that of the model's text part; or NULL. */
static const struct pp_tensor *find_vector(const struct pp_hf *hf, const char *name, int64_t n)
{
    static const char *const before[] = {"", "language_model."};
    for (int i = 0; i < 2; i++) {
        char full[120];
        snprintf(full, sizeof full, "%s%s", before[i], name);
        const struct pp_tensor *t = pp_hf_find(hf, full, NULL);
        if (t && t->type < PP_TYPE_LIMIT && pp_type_info(t->type)->block_elements == 1 &&
            t->size == pp_type_row_bytes(t->type, n))
            return t;
    }
    return NULL;
}

enum pp_code pp_hf_product(const struct pp_hf *hf, const char *stem, int64_t n, struct pp_tensor *out,
                           struct pp_error *err)
{
    const struct pp_tensor *both[2];
    for (int i = 0; i < 2; i++) {
        char from[100];
        snprintf(from, sizeof from, "%s_%s.weight", stem, i ? "norm" : "proj");
        if (!(both[i] = find_vector(hf, from, n))) {
            *out = (struct pp_tensor){.data = NULL};
            return PP_OK;
        }
    }
    float *norm = pp_calloc((size_t)n, sizeof *norm);
    enum pp_code code = norm ? make(PP_TYPE_F32, n, 0, 0, out, err) : pp_fail_nomem(err, stem);
    if (!code) {
        float *f = (float *)bytes_of(out);
        pp_dequantize_row(both[0]->type, both[0]->data, f, n);
        pp_dequantize_row(both[1]->type, both[1]->data, norm, n);
        for (int64_t i = 0; i < n; i++)
            f[i] *= norm[i];
    }
    pp_free(norm);
    return code;
}
