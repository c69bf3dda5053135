/* hf_quant_open.c - finds the tensors that make up a quantised matrix, checks them against each other, and describes
 * the matrix as rows (rows.h). */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/utf8.h"
#include "engine/export.h"
#include "engine/hf_quant_int.h"
#include "engine/hparams.h"

enum { MAX_STATE = 1 << 16 }; /* bytes of bitsandbytes' JSON */

/* --- pieces ------------------------------------------------------------------------------------------------------- */

/* A quantised matrix while it is described. */
struct quantised {
    const struct pp_hf_quant *q;
    const struct pp_hf *hf;
    const struct pp_tensor *lead;
    const char *dtype;          /* of lead */
    struct pp_buf name;         /* memory for the name of another tensor */
    struct pp_rows *rows;
    struct pp_tensor *t;
    struct pp_error *err;
};

static enum pp_code fail_piece(const struct quantised *o, const char *name, const char *what)
{
    return pp_fail(o->err, PP_ERR_FORMAT, "tensor %.200s %s; the model is damaged or incomplete: download it again",
                   name,
                   what);
}

static enum pp_code fail_shape(const struct quantised *o, const struct pp_tensor *t)
{
    return pp_fail(o->err, PP_ERR_FORMAT,
                   "tensor %.200s has the shape %lld x %lld x %lld, which does not match %.200s and the quantisation "
                   "in config.json",
                   t->name, (long long)t->ne[2], (long long)t->ne[1], (long long)t->ne[0], o->lead->name);
}

/* The tensor whose name is the lead's with its last n characters replaced by `end`. */
static const struct pp_tensor *piece(struct quantised *o, size_t n, const char *end, const char **dtype)
{
    return pp_hf_find(o->hf, pp_hf_replaced(o->lead->name, n, end, &o->name), dtype);
}

static enum pp_code need_piece(struct quantised *o, size_t n, const char *end, const struct pp_tensor **t,
                               const char **dtype)
{
    *t = piece(o, n, end, dtype);
    return *t ? PP_OK : fail_piece(o, pp_buf_cstr(&o->name), "is missing");
}

static enum pp_code need_dtype(const struct quantised *o, const struct pp_tensor *t, const char *dtype,
                               const char *want)
{
    char what[64];
    if (strcmp(dtype, want) == 0)
        return PP_OK;
    pp_utf8_print(what, sizeof what, "is %.20s, not %.20s", dtype, want);
    return fail_piece(o, t->name, what);
}

static enum pp_code take_numbers(const struct quantised *o, const struct pp_tensor *t, const char *dtype,
                                 struct pp_numbers *n)
{
    static const struct {
        const char *dtype;
        enum pp_number_kind kind;
    } kinds[] = {{"F32", PP_NUMBER_F32}, {"F16", PP_NUMBER_F16}, {"BF16", PP_NUMBER_BF16},
                 {"F8_E8M0", PP_NUMBER_E8M0}, {"F8_E4M3", PP_NUMBER_E4M3}};
    n->data = t->data;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(dtype, kinds[i].dtype) == 0) {
            n->kind = kinds[i].kind;
            return PP_OK;
        }
    return fail_piece(o, t->name, "does not hold floats");
}

/* Scales of one byte, whose dtype may be their kind or just bytes. */
static enum pp_code take_bytes(const struct quantised *o, const struct pp_tensor *t, const char *dtype,
                               enum pp_number_kind kind, struct pp_numbers *n)
{
    *n = (struct pp_numbers){.data = t->data, .kind = kind};
    if (strcmp(dtype, "U8") == 0)
        return PP_OK;
    return need_dtype(o, t, dtype, kind == PP_NUMBER_E4M3 ? "F8_E4M3" : "F8_E8M0");
}

/* The value of a tensor with a single number. */
static enum pp_code take_one(const struct quantised *o, const struct pp_tensor *t, const char *dtype, float *v)
{
    struct pp_numbers n;
    enum pp_code code = take_numbers(o, t, dtype, &n);
    if (code)
        return code;
    if (!t->size || t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3] != 1)
        return fail_piece(o, t->name, "is not one number");
    *v = pp_number(&n, 0);
    return PP_OK;
}

static bool has_shape(const struct pp_tensor *t, int64_t n0, int64_t n1, int64_t n2)
{
    return t->ne[0] == n0 && t->ne[1] == n1 && t->ne[2] == n2 && t->ne[3] == 1;
}

static int64_t n_elements(const struct pp_tensor *t)
{
    return t->size ? t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3] : 0; /* no overflow: it fits in a file */
}

static void set_shape(struct quantised *o, int n_dims, int64_t n_cols, int64_t n_rows, int64_t n_matrices)
{
    struct pp_rows *r = o->rows;
    r->n_cols = n_cols;
    r->n_rows = n_rows * n_matrices;
    o->t->n_dims = n_dims;
    o->t->ne[0] = n_cols;
    o->t->ne[1] = n_rows;
    o->t->ne[2] = n_matrices;
    o->t->ne[3] = 1;
}

/* --- FP8 ---------------------------------------------------------------------------------------------------------- */

/* Whether these are scales of blocks, perhaps in modelopt's shape with sizes of 1 between: [rows, 1, columns, 1]. */
static bool are_blocks(const struct pp_tensor *t, int64_t n_cols, int64_t n_rows)
{
    return has_shape(t, n_cols, n_rows, 1) ||
           (t->n_dims == 4 && t->ne[0] == 1 && t->ne[1] == n_cols && t->ne[2] == 1 && t->ne[3] == n_rows);
}

static enum pp_code fp8_scales(struct quantised *o, const struct pp_tensor *scale)
{
    struct pp_rows *r = o->rows;
    const int64_t n = n_elements(scale), n_cols = r->n_cols, n_rows = r->n_rows;
    if (n == 1) {
        r->block_rows = n_rows;
        r->block_cols = n_cols;
    } else if (n == n_rows && (scale->n_dims == 1 || scale->ne[0] == 1)) {
        r->block_rows = r->scale_stride = 1;
        r->block_cols = n_cols;
    } else {
        r->block_rows = o->q->block_rows;
        r->block_cols = o->q->block_cols;
        r->scale_stride = (n_cols - 1) / r->block_cols + 1;
        if (are_blocks(scale, r->scale_stride, (n_rows - 1) / r->block_rows + 1))
            return PP_OK;
        r->block_rows = 1; /* groups within a row */
        r->scale_stride = scale->ne[0];
        r->block_cols = n_cols / (r->scale_stride > 0 ? r->scale_stride : 1);
        const bool by_groups = o->q->method == PP_QUANT_COMPRESSED || o->q->method == PP_QUANT_MODELOPT;
        if (!by_groups || !has_shape(scale, r->scale_stride, n_rows, 1) ||
            r->block_cols * r->scale_stride != n_cols)
            return fail_shape(o, scale);
    }
    return PP_OK;
}

static enum pp_code describe_pairs(struct quantised *o);

static enum pp_code describe_fp8(struct quantised *o)
{
    const size_t end = strlen(".weight");
    const struct pp_tensor *lead = o->lead, *scale;
    const char *dtype;
    if (lead->n_dims != 2)
        return fail_shape(o, lead);
    if (o->q->method == PP_QUANT_FP8 && strcmp(o->dtype, "F8_E4M3") != 0)
        return describe_pairs(o);
    set_shape(o, 2, lead->ne[0], lead->ne[1], 1);
    enum pp_code code = PP_OK;
    if (!(scale = piece(o, end, ".weight_scale_inv", &dtype)) && !(scale = piece(o, end, ".scale", &dtype)))
        code = need_piece(o, end, ".weight_scale", &scale, &dtype);
    o->rows->form = PP_FORM_FP8;
    if (!code)
        code = strcmp(dtype, "U8") == 0 ? take_bytes(o, scale, dtype, PP_NUMBER_E8M0, &o->rows->scales)
                                        : take_numbers(o, scale, dtype, &o->rows->scales);
    return code ? code : fp8_scales(o, scale);
}

/* --- bitsandbytes ------------------------------------------------------------------------------------------------- */

/* What the JSON states; all else is in tensors. */
struct bnb_state {
    int64_t block, nested_block, n_rows, n_cols;
    float offset;
};

static enum pp_code read_bnb_state(struct quantised *o, struct bnb_state *s)
{
    const struct pp_tensor *t = pp_hf_bnb_state(o->hf, o->lead->name, &o->name);
    cJSON *json = t && t->size <= MAX_STATE ? cJSON_ParseWithLength(t->data, t->size) : NULL;
    const cJSON *shape = pp_json_member(json, "shape");
    const cJSON *rows = cJSON_GetArrayItem(shape, 0), *cols = cJSON_GetArrayItem(shape, 1);
    const double most = 1e15;
    const bool good = cJSON_IsObject(json) && pp_json_int(json, "blocksize", &s->block) && s->block > 0 &&
                      pp_json_int(json, "nested_blocksize", &s->nested_block) &&
                      pp_json_float(json, "nested_offset", &s->offset) && cJSON_GetArraySize(shape) == 2 &&
                      cJSON_IsNumber(rows) && cJSON_IsNumber(cols) && rows->valuedouble >= 1 &&
                      cols->valuedouble >= 1 && rows->valuedouble * cols->valuedouble < most;
    if (good) {
        s->n_rows = (int64_t)rows->valuedouble;
        s->n_cols = (int64_t)cols->valuedouble;
    }
    cJSON_Delete(json);
    return good ? PP_OK : fail_piece(o, pp_buf_cstr(&o->name), "does not describe how its weight is quantised");
}

/* n floats of the tensor whose name is the lead's with `end` appended. */
static enum pp_code bnb_table(struct quantised *o, const char *end, float *to, int64_t n)
{
    const struct pp_tensor *t;
    struct pp_numbers numbers;
    const char *dtype;
    enum pp_code code = need_piece(o, 0, end, &t, &dtype);
    if (!code)
        code = take_numbers(o, t, dtype, &numbers);
    if (!code && n_elements(t) != n)
        code = fail_shape(o, t);
    for (int64_t i = 0; i < n && !code; i++)
        to[i] = pp_number(&numbers, i);
    return code;
}

/* Double quantisation: the scales of the scales. */
static enum pp_code bnb_nested(struct quantised *o, const struct bnb_state *s, const struct pp_tensor *absmax)
{
    struct pp_rows *r = o->rows;
    const struct pp_tensor *t;
    const char *dtype;
    enum pp_code code = need_piece(o, 0, ".nested_absmax", &t, &dtype);
    if (!code)
        code = take_numbers(o, t, dtype, &r->scales);
    if (!code && (s->nested_block < 1 || n_elements(t) != (n_elements(absmax) - 1) / s->nested_block + 1))
        code = fail_shape(o, t);
    r->codes = absmax->data;
    r->code_block = s->nested_block;
    r->code_offset = s->offset;
    return code ? code : bnb_table(o, ".nested_quant_map", r->levels, 256);
}

static enum pp_code describe_bnb(struct quantised *o)
{
    struct pp_rows *r = o->rows;
    struct bnb_state s = {0};
    const struct pp_tensor *absmax;
    const char *dtype;
    enum pp_code code = read_bnb_state(o, &s);
    if (!code)
        code = need_dtype(o, o->lead, o->dtype, "U8");
    if (!code)
        set_shape(o, 2, s.n_cols, s.n_rows, 1);
    if (!code && (s.n_cols * s.n_rows + 1) / 2 != n_elements(o->lead))
        code = fail_shape(o, o->lead);
    if (!code)
        code = need_piece(o, 0, ".absmax", &absmax, &dtype);
    if (!code && n_elements(absmax) != (s.n_cols * s.n_rows - 1) / s.block + 1)
        code = fail_shape(o, absmax);
    r->form = PP_FORM_BNB;
    r->block = s.block;
    if (!code)
        code = strcmp(dtype, "U8") == 0 ? bnb_nested(o, &s, absmax) : take_numbers(o, absmax, dtype, &r->scales);
    return code ? code : bnb_table(o, ".quant_map", r->table, 16);
}

/* --- GPTQ and AWQ ------------------------------------------------------------------------------------------------- */

/* Reads the group of each column (g_idx). It is not needed if groups are consecutive. */
static enum pp_code take_order(struct quantised *o, const struct pp_tensor *order, const char *dtype)
{
    struct pp_rows *r = o->rows;
    bool in_order = true;
    enum pp_code code = need_dtype(o, order, dtype, "I32");
    if (!code && n_elements(order) != r->n_cols)
        code = fail_shape(o, order);
    for (int64_t c = 0; c < r->n_cols && !code; c++) {
        int32_t g;
        memcpy(&g, (const uint8_t *)order->data + 4 * c, sizeof g);
        in_order = in_order && g == c / r->group;
        if (g < 0 || g >= r->n_groups)
            code = fail_piece(o, order->name, "refers to a group that does not exist");
    }
    if (!in_order)
        r->group_of = order->data;
    return code;
}

/* Whether all zero points are in the middle of the range. Not looked up for layouts of bytes or partly filled words. */
static bool is_symmetric(const struct pp_rows *r)
{
    const int middle = 1 << (r->bits - 1);
    const uint8_t byte = (uint8_t)(middle - r->zero_bias);
    const uint8_t want = r->bits == 8 ? byte : (uint8_t)(byte | byte << 4);
    const int64_t n = r->n_groups * r->n_rows * r->bits / 8;
    if (!r->zeros)
        return r->zero_bias == middle;
    if (r->bits < 4 || r->n_rows * r->bits % 32 != 0 || r->zeros_layout == PP_ZEROS_AWQ_GEMV ||
        r->zeros_layout == PP_ZEROS_BYTES)
        return false;
    for (int64_t i = 0; i < n; i++)
        if (r->zeros[i] != want)
            return false;
    return true;
}

/* Tensors that GPTQ and AWQ share. */
struct words {
    const struct pp_tensor *scales, *zeros;
};

static enum pp_code take_words(struct quantised *o, struct words *w)
{
    const size_t end = strlen(".qweight");
    const char *scales_dtype, *zeros_dtype;
    enum pp_code code;
    if ((code = need_piece(o, end, ".scales", &w->scales, &scales_dtype)) ||
        (code = need_piece(o, end, ".qzeros", &w->zeros, &zeros_dtype)) ||
        (code = take_numbers(o, w->scales, scales_dtype, &o->rows->scales)) ||
        (code = need_dtype(o, w->zeros, zeros_dtype, "I32")))
        return code;
    o->rows->zeros = w->zeros->data;
    return PP_OK;
}

static enum pp_code describe_words(struct quantised *o)
{
    const bool down = o->q->method == PP_QUANT_GPTQ;
    const int64_t bits = o->q->bits, n0 = o->lead->ne[0], n1 = o->lead->ne[1];
    struct pp_rows *r = o->rows;
    const struct pp_tensor *order;
    const char *dtype;
    struct words w;
    r->form = down ? PP_FORM_GPTQ : PP_FORM_AWQ;
    r->zeros_layout = down ? PP_ZEROS_GPTQ : PP_ZEROS_AWQ;
    r->bits = (int)bits;
    r->zero_bias = o->q->zeros_less_one;
    if (o->lead->n_dims != 2 || (down ? n1 : n0) > INT64_MAX / 32 || (down ? n1 : n0) * 32 % bits != 0)
        return fail_shape(o, o->lead);
    enum pp_code code = need_dtype(o, o->lead, o->dtype, "I32");
    if (code)
        return code;
    set_shape(o, 2, down ? n1 * 32 / bits : n1, down ? n0 : n0 * 32 / bits, 1);
    r->group = o->q->group == -1 ? r->n_cols : o->q->group;
    r->n_groups = (r->n_cols - 1) / r->group + 1;
    if ((code = take_words(o, &w)))
        return code;
    if (!has_shape(w.scales, r->n_rows, r->n_groups, 1))
        return fail_shape(o, w.scales);
    if (r->n_rows * bits % 32 != 0 || !has_shape(w.zeros, r->n_rows * bits / 32, r->n_groups, 1))
        return fail_shape(o, w.zeros);
    order = down ? piece(o, strlen(".qweight"), ".g_idx", &dtype) : NULL;
    return order ? take_order(o, order, dtype) : PP_OK;
}

/* AWQ's gemv layout: words hold weights of one row; so do zero points, padded after the last group like the scales. */
static enum pp_code describe_along(struct quantised *o)
{
    const int64_t per = 32 / o->q->bits, n0 = o->lead->ne[0], n_rows = o->lead->ne[1];
    struct pp_rows *r = o->rows;
    struct words w;
    r->form = PP_FORM_STREAM;
    r->zeros_layout = PP_ZEROS_AWQ_GEMV;
    r->bits = (int)o->q->bits;
    if (o->lead->n_dims != 2 || n0 > INT64_MAX / 32)
        return fail_shape(o, o->lead);
    enum pp_code code = need_dtype(o, o->lead, o->dtype, "I32");
    if (code || (code = take_words(o, &w)))
        return code;
    set_shape(o, 2, n0 * per, n_rows, 1);
    r->row_bytes = 4 * n0;
    r->group = o->q->group == -1 ? r->n_cols : o->q->group;
    r->n_groups = (r->n_cols - 1) / r->group + 1;
    r->zero_stride = w.zeros->ne[0];
    r->scale_stride = w.scales->ne[0];
    if (!has_shape(w.scales, r->scale_stride, n_rows, 1) || r->scale_stride < r->n_groups)
        return fail_shape(o, w.scales);
    if (!has_shape(w.zeros, r->zero_stride, n_rows, 1) || r->zero_stride < (r->n_groups - 1) / per + 1)
        return fail_shape(o, w.zeros);
    return PP_OK;
}

/* --- four-bit floats ---------------------------------------------------------------------------------------------- */

/* Describes bytes [.., n_cols / 2] with scales of one byte, [.., n_cols / group]. */
static enum pp_code describe_fp4(struct quantised *o, const struct pp_tensor *scales, const char *dtype,
                                 enum pp_number_kind kind)
{
    struct pp_rows *r = o->rows;
    r->form = PP_FORM_FP4;
    r->bits = 4;
    r->group = kind == PP_NUMBER_E4M3 ? 16 : 32;
    r->n_groups = r->scale_stride = r->n_cols / r->group;
    r->factor = 1;
    if (r->n_cols % r->group != 0 || !has_shape(scales, r->n_groups, o->t->ne[1], o->t->ne[2]))
        return fail_shape(o, scales);
    return take_bytes(o, scales, dtype, kind, &r->scales);
}

/* DeepSeek V4's experts among FP8 weights: bytes of two values, the first in the low bits, and a scale for 32 values of
 * a row. */
static enum pp_code describe_pairs(struct quantised *o)
{
    const struct pp_tensor *lead = o->lead, *scales;
    const char *dtype;
    if (lead->ne[0] > INT64_MAX / 2)
        return fail_shape(o, lead);
    set_shape(o, 2, 2 * lead->ne[0], lead->ne[1], 1);
    const enum pp_code code = need_piece(o, strlen(".weight"), ".scale", &scales, &dtype);
    return code ? code : describe_fp4(o, scales, dtype, PP_NUMBER_E8M0);
}

/* gpt-oss: a stack of experts [n_expert, n_out, n_in / 32, 16]. */
static enum pp_code describe_mxfp4(struct quantised *o)
{
    const struct pp_tensor *lead = o->lead, *scales;
    const char *dtype;
    if (lead->n_dims != 4 || lead->ne[0] != 16 || lead->ne[1] > INT64_MAX / 32)
        return fail_shape(o, lead);
    enum pp_code code = need_dtype(o, lead, o->dtype, "U8");
    if (!code)
        code = need_piece(o, strlen("_blocks"), "_scales", &scales, &dtype);
    if (code)
        return code;
    set_shape(o, 3, 32 * lead->ne[1], lead->ne[2], lead->ne[3]);
    return describe_fp4(o, scales, dtype, PP_NUMBER_E8M0);
}

/* modelopt: NVFP4 as bytes with a further scale for the whole matrix, or FP8. */
static enum pp_code describe_modelopt(struct quantised *o)
{
    const size_t end = strlen(".weight");
    const struct pp_tensor *lead = o->lead, *scales, *whole;
    const char *dtype, *whole_dtype;
    if (strcmp(o->dtype, "U8") != 0)
        return describe_fp8(o);
    if (lead->n_dims != 2 || lead->ne[0] > INT64_MAX / 2)
        return fail_shape(o, lead);
    set_shape(o, 2, 2 * lead->ne[0], lead->ne[1], 1);
    enum pp_code code = need_piece(o, end, ".weight_scale", &scales, &dtype);
    if (!code)
        code = describe_fp4(o, scales, dtype, PP_NUMBER_E4M3);
    if (!code)
        code = need_piece(o, end, ".weight_scale_2", &whole, &whole_dtype);
    return code ? code : take_one(o, whole, whole_dtype, &o->rows->factor);
}

/* --- BitNet ------------------------------------------------------------------------------------------------------- */

static enum pp_code describe_ternary(struct quantised *o)
{
    const struct pp_tensor *lead = o->lead, *scale;
    struct pp_rows *r = o->rows;
    const char *dtype;
    if (lead->n_dims != 2 || lead->ne[1] > INT64_MAX / 4)
        return fail_shape(o, lead);
    set_shape(o, 2, lead->ne[0], 4 * lead->ne[1], 1);
    r->form = PP_FORM_BITNET;
    r->bits = 2;
    r->zero_bias = 1;
    r->group = r->n_cols;
    r->n_groups = 1;
    enum pp_code code = need_piece(o, strlen(".weight"), ".weight_scale", &scale, &dtype);
    if (!code)
        code = take_one(o, scale, dtype, &r->factor);
    if (!code && o->q->divided)
        r->factor = 1 / r->factor;
    return code;
}

/* --- compressed-tensors ------------------------------------------------------------------------------------------- */

static enum pp_code compressed_fp4(struct quantised *o, size_t end)
{
    const struct pp_tensor *lead = o->lead, *scales, *whole = NULL;
    const char *dtype, *whole_dtype;
    float divisor = 1;
    if (lead->n_dims != 2 || lead->ne[0] > INT64_MAX / 2)
        return fail_shape(o, lead);
    set_shape(o, 2, 2 * lead->ne[0], lead->ne[1], 1);
    enum pp_code code = need_piece(o, end, ".weight_scale", &scales, &dtype);
    if (code)
        return code;
    const bool nv = strcmp(dtype, "F8_E4M3") == 0;
    code = describe_fp4(o, scales, dtype, nv ? PP_NUMBER_E4M3 : PP_NUMBER_E8M0);
    if (!code && nv)
        code = need_piece(o, end, ".weight_global_scale", &whole, &whole_dtype);
    if (!code && nv)
        code = take_one(o, whole, whole_dtype, &divisor);
    if (!code && nv && !(divisor > 0))
        code = fail_piece(o, whole->name, "is not a positive number");
    o->rows->factor = 1 / divisor;
    return code;
}

/* One scale for the matrix, for each row, or for each group of a row. */
static enum pp_code compressed_scales(struct quantised *o, size_t end)
{
    struct pp_rows *r = o->rows;
    const struct pp_tensor *scales;
    const char *dtype;
    enum pp_code code = need_piece(o, end, ".weight_scale", &scales, &dtype);
    if (!code)
        code = take_numbers(o, scales, dtype, &r->scales);
    if (code)
        return code;
    const int64_t n = n_elements(scales);
    const bool by_row = n == r->n_rows && (scales->n_dims == 1 || scales->ne[0] == 1);
    r->n_groups = n == 1 || by_row ? 1 : scales->ne[0];
    r->scale_stride = n == 1 && !by_row ? 0 : r->n_groups;
    r->group = r->n_cols / (r->n_groups > 0 ? r->n_groups : 1);
    if (n != 1 && !by_row && (!has_shape(scales, r->n_groups, r->n_rows, 1) || r->group * r->n_groups != r->n_cols))
        return fail_shape(o, scales);
    return PP_OK;
}

/* Zero points: packed in words if the integers are, otherwise bytes. Without them all are in the middle. */
static enum pp_code compressed_zeros(struct quantised *o, size_t end)
{
    struct pp_rows *r = o->rows;
    const int64_t per = 32 / r->bits;
    const char *dtype;
    const struct pp_tensor *zeros = piece(o, end, ".weight_zero_point", &dtype);
    r->zero_bias = r->invert_bits || !zeros ? 1 << (r->bits - 1) : 0;
    if (!zeros)
        return PP_OK;
    r->zeros = zeros->data;
    if (r->invert_bits) {
        r->zeros_layout = PP_ZEROS_BYTES;
        r->zero_stride = r->scale_stride;
        const int64_t n = r->scale_stride ? r->n_rows * r->n_groups : 1;
        return n_elements(zeros) != n ? fail_shape(o, zeros) : need_dtype(o, zeros, dtype, "I8");
    }
    r->zeros_layout = PP_ZEROS_STACKED;
    if (!has_shape(zeros, r->n_groups, (r->n_rows - 1) / per + 1, 1) || !r->scale_stride)
        return fail_shape(o, zeros);
    return need_dtype(o, zeros, dtype, "I32");
}

/* The group of each column (act-order); if all are -1, groups are consecutive. */
static enum pp_code compressed_order(struct quantised *o, size_t end)
{
    const char *dtype;
    const struct pp_tensor *order = piece(o, end, ".weight_g_idx", &dtype);
    int32_t first = -1;
    if (order && order->size >= sizeof first)
        memcpy(&first, order->data, sizeof first);
    return first == -1 ? PP_OK : take_order(o, order, dtype);
}

/* Reads the number of columns from weight_shape, since the last word of a row need not be full. */
static enum pp_code packed_shape(struct quantised *o, size_t end, int64_t *n_cols)
{
    const char *dtype;
    const struct pp_tensor *t;
    int64_t v[2] = {0};
    enum pp_code code = need_piece(o, end, ".weight_shape", &t, &dtype);
    if (code)
        return code;
    const bool wide = strcmp(dtype, "I64") == 0;
    if (n_elements(t) != 2 || (!wide && strcmp(dtype, "I32") != 0))
        return fail_piece(o, t->name, "is not two integers");
    for (int i = 0; i < 2; i++) {
        int32_t narrow;
        if (wide) {
            memcpy(&v[i], (const uint8_t *)t->data + 8 * i, sizeof v[i]);
        } else {
            memcpy(&narrow, (const uint8_t *)t->data + 4 * i, sizeof narrow);
            v[i] = narrow;
        }
    }
    if (v[0] != o->lead->ne[1] || v[1] < 1)
        return fail_piece(o, t->name, "has a different number of rows than its weights");
    *n_cols = v[1];
    return PP_OK;
}

static enum pp_code compressed_words(struct quantised *o, size_t end)
{
    const struct pp_tensor *lead = o->lead;
    struct pp_rows *r = o->rows;
    int64_t n_cols = 0;
    if (lead->n_dims != 2 || lead->ne[0] > INT32_MAX)
        return fail_shape(o, lead);
    enum pp_code code = packed_shape(o, end, &n_cols);
    if (code)
        return code;
    for (int bits = 8; bits >= 2 && !r->bits; bits /= 2) /* the number of bits that fills the words */
        if (n_cols <= lead->ne[0] * 32 && (n_cols - 1) / (32 / bits) + 1 == lead->ne[0])
            r->bits = bits;
    if (!r->bits)
        return fail_shape(o, lead);
    set_shape(o, 2, n_cols, lead->ne[1], 1);
    r->row_bytes = 4 * lead->ne[0];
    return PP_OK;
}

static enum pp_code describe_compressed(struct quantised *o)
{
    const size_t end = pp_hf_lead_end(o->q, o->lead->name);
    const struct pp_tensor *lead = o->lead;
    struct pp_rows *r = o->rows;
    enum pp_code code = PP_OK;
    if (strcmp(o->dtype, "U8") == 0)
        return compressed_fp4(o, end);
    if (strcmp(o->dtype, "F8_E4M3") == 0)
        return describe_fp8(o);
    r->form = PP_FORM_STREAM;
    if (strcmp(o->dtype, "I8") == 0) {
        if (lead->n_dims != 2)
            return fail_shape(o, lead);
        set_shape(o, 2, lead->ne[0], lead->ne[1], 1);
        r->bits = 8;
        r->invert_bits = 128;
        r->row_bytes = lead->ne[0];
    } else if (!(code = need_dtype(o, lead, o->dtype, "I32"))) {
        code = compressed_words(o, end);
    }
    if (!code)
        code = compressed_scales(o, end);
    if (!code)
        code = compressed_zeros(o, end);
    return code ? code : compressed_order(o, end);
}

/* --- MLX ---------------------------------------------------------------------------------------------------------- */

/* MLX's affine mode: a scale and an offset for each group of a row. */
static enum pp_code mlx_affine(struct quantised *o, const struct pp_tensor *scales, const char *dtype)
{
    const struct pp_tensor *lead = o->lead, *offsets;
    const char *offsets_dtype;
    struct pp_rows *r = o->rows;
    enum pp_code code;
    r->form = PP_FORM_STREAM;
    r->row_bytes = 4 * lead->ne[0];
    r->n_groups = r->scale_stride = r->n_cols / r->group;
    if ((code = need_piece(o, strlen(".weight"), ".biases", &offsets, &offsets_dtype)) ||
        (code = take_numbers(o, scales, dtype, &r->scales)) ||
        (code = take_numbers(o, offsets, offsets_dtype, &r->offsets)))
        return code;
    if (r->n_cols % r->group != 0 || !has_shape(scales, r->n_groups, lead->ne[1], lead->ne[2]))
        return fail_shape(o, scales);
    return has_shape(offsets, r->n_groups, lead->ne[1], lead->ne[2]) ? PP_OK : fail_shape(o, offsets);
}

/* E4M3 with a power of two for each 32 values. */
static enum pp_code mlx_mxfp8(struct quantised *o, const struct pp_tensor *scales, const char *dtype)
{
    struct pp_rows *r = o->rows;
    r->form = PP_FORM_FP8;
    r->block_rows = 1;
    r->block_cols = r->group;
    r->scale_stride = r->n_cols / r->group;
    if (r->n_cols % r->group != 0 || !has_shape(scales, r->scale_stride, o->lead->ne[1], o->lead->ne[2]))
        return fail_shape(o, scales);
    return take_bytes(o, scales, dtype, PP_NUMBER_E8M0, &r->scales);
}

static enum pp_code describe_mlx(struct quantised *o)
{
    const size_t end = strlen(".weight");
    const struct pp_tensor *lead = o->lead, *scales;
    const char *dtype;
    struct pp_hf_quant own;
    enum pp_code code = pp_hf_quant_layer(o->q, pp_hf_replaced(lead->name, end, "", &o->name), &own, o->err);
    if (code)
        return code;
    if (lead->n_dims > 3 || lead->n_dims < 2 || lead->ne[0] > INT64_MAX / 32 || lead->ne[0] * 32 % own.bits != 0)
        return fail_shape(o, lead);
    set_shape(o, lead->n_dims, lead->ne[0] * 32 / own.bits, lead->ne[1], lead->ne[2]);
    o->rows->bits = (int)own.bits;
    o->rows->group = own.group;
    if ((code = need_piece(o, end, ".scales", &scales, &dtype)))
        return code;
    switch (own.mode) {
    case PP_MLX_MXFP4:
        return describe_fp4(o, scales, dtype, PP_NUMBER_E8M0);
    case PP_MLX_NVFP4:
        return describe_fp4(o, scales, dtype, PP_NUMBER_E4M3);
    case PP_MLX_MXFP8:
        return mlx_mxfp8(o, scales, dtype);
    default:
        return mlx_affine(o, scales, dtype);
    }
}

/* --- what it becomes ---------------------------------------------------------------------------------------------- */

static uint32_t blocks_for(const struct pp_rows *r)
{
    const bool integers = r->form == PP_FORM_GPTQ || r->form == PP_FORM_AWQ || r->form == PP_FORM_STREAM ||
                          r->form == PP_FORM_BITNET;
    if (r->form == PP_FORM_FP4 && r->scales.kind == PP_NUMBER_E8M0)
        return PP_TYPE_MXFP4;
    if (r->form == PP_FORM_BITNET && r->n_cols % 256 == 0)
        return PP_TYPE_TQ2_0;
    if (!integers || r->group_of || r->n_cols % 32 != 0 || (r->group % 32 != 0 && r->n_groups != 1))
        return PP_TYPE_LIMIT;
    if (!r->offsets.data && (r->bits == 4 || r->bits == 8) && is_symmetric(r))
        return r->bits == 4 ? PP_TYPE_Q4_0 : PP_TYPE_Q8_0;
    return r->bits <= 4 ? PP_TYPE_Q4_1 : r->bits == 5 ? PP_TYPE_Q5_1 : PP_TYPE_LIMIT;
}

enum pp_code pp_hf_quant_open(const struct pp_hf_quant *q, const struct pp_hf *hf, size_t i, struct pp_rows *rows,
                              struct pp_tensor *t, struct pp_error *err)
{
    struct quantised o = {.q = q, .hf = hf, .lead = pp_hf_at(hf, i), .dtype = pp_hf_dtype(hf, i), .rows = rows, .t = t,
                          .err = err};
    *rows = (struct pp_rows){.weights = o.lead->data, .row_step = 1};
    *t = (struct pp_tensor){0};
    if (o.lead->size == 0)
        return fail_piece(&o, o.lead->name, "is empty");
    enum pp_code code = q->method == PP_QUANT_FP8          ? describe_fp8(&o)
                        : q->method == PP_QUANT_BNB        ? describe_bnb(&o)
                        : q->method == PP_QUANT_MLX        ? describe_mlx(&o)
                        : q->method == PP_QUANT_MXFP4      ? describe_mxfp4(&o)
                        : q->method == PP_QUANT_COMPRESSED ? describe_compressed(&o)
                        : q->method == PP_QUANT_MODELOPT   ? describe_modelopt(&o)
                        : q->method == PP_QUANT_TERNARY    ? describe_ternary(&o)
                        : q->along                         ? describe_along(&o)
                                                           : describe_words(&o);
    if (!code && o.name.bad)
        code = pp_fail_nomem(err, "the list of tensors");
    pp_buf_free(&o.name);
    if (code)
        return code;
    const uint32_t type = blocks_for(rows);
    rows->as_blocks = type != PP_TYPE_LIMIT;
    rows->type = rows->as_blocks ? type : pp_quantize_fitting_type(PP_TYPE_Q8_0, rows->n_cols);
    t->type = rows->type;
    t->rows = rows;
    t->size = pp_type_row_bytes(t->type, rows->n_cols) * (size_t)rows->n_rows;
    pp_rows_release_pages(rows, 0, rows->n_rows); /* reading one number has brought a large page into memory */
    return PP_OK;
}
