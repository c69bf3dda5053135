#include "engine/hf_quant.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "engine/export.h"
#include "engine/hparams.h"
#include "engine/quant.h"

enum {
    MAX_STATE = 1 << 16,  /* bytes of bitsandbytes' JSON */
    MAX_LAYERS = 1 << 14, /* that may differ with MLX */
};

/* --- config.json -------------------------------------------------------------------------------------------------- */

static const char advice[] = "take the model in another form: in FP8, bitsandbytes in 4 bits, GPTQ, AWQ or MLX, not "
                             "quantised, or a GGUF file";

static const char *text_of(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsString(item) ? item->valuestring : "";
}

static enum pp_code fail_key(const char *key, const char *want, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s of the quantisation is not %s; %s", key, want, advice);
}

static enum pp_code read_fp8(const cJSON *c, struct pp_hf_quant *q, struct pp_error *err)
{
    const cJSON *block = cJSON_GetObjectItemCaseSensitive(c, "weight_block_size");
    q->method = PP_QUANT_FP8;
    q->block_rows = q->block_cols = 128;
    if (!block || cJSON_IsNull(block))
        return PP_OK;
    const cJSON *rows = cJSON_GetArrayItem(block, 0), *cols = cJSON_GetArrayItem(block, 1);
    if (cJSON_GetArraySize(block) != 2 || !cJSON_IsNumber(rows) || !cJSON_IsNumber(cols) || rows->valueint < 1 ||
        cols->valueint < 1)
        return fail_key("weight_block_size", "two positive numbers", err);
    q->block_rows = rows->valueint;
    q->block_cols = cols->valueint;
    return PP_OK;
}

static enum pp_code read_bnb(const cJSON *c, struct pp_hf_quant *q, struct pp_error *err)
{
    q->method = PP_QUANT_BNB;
    if (!cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(c, "load_in_8bit")))
        return PP_OK;
    return fail_key("load_in_8bit", "false, and only the four bits of load_in_4bit can be read", err);
}

static bool is_one_of(int64_t v, const int *list)
{
    while (*list && *list != v)
        list++;
    return *list != 0;
}

static enum pp_code read_sizes(const cJSON *c, struct pp_hf_quant *q, struct pp_error *err)
{
    static const int mlx[] = {2, 3, 4, 5, 6, 8, 0}, gptq[] = {2, 4, 8, 0}, awq[] = {4, 0};
    const int *known = q->method == PP_QUANT_MLX ? mlx : q->method == PP_QUANT_GPTQ ? gptq : awq;
    if (!pp_json_int(c, "bits", &q->bits) || !is_one_of(q->bits, known))
        return fail_key("bits", known == mlx ? "2, 3, 4, 5, 6 or 8" : known == gptq ? "2, 4 or 8" : "4", err);
    if (!pp_json_int(c, "group_size", &q->group) || q->group > INT32_MAX ||
        (q->group < 1 && !(q->group == -1 && q->method != PP_QUANT_MLX)))
        return fail_key("group_size", "a positive number", err);
    return PP_OK;
}

static enum pp_code read_gptq(const cJSON *c, struct pp_hf_quant *q, struct pp_error *err)
{
    const char *format = text_of(c, "checkpoint_format");
    q->method = PP_QUANT_GPTQ;
    q->group = 128;
    q->zeros_less_one = strcmp(format, "gptq_v2") != 0;
    if (*format && strcmp(format, "gptq") != 0 && strcmp(format, "gptq_v2") != 0)
        return fail_key("checkpoint_format", "gptq or gptq_v2", err);
    return read_sizes(c, q, err);
}

static enum pp_code read_awq(const cJSON *c, struct pp_hf_quant *q, struct pp_error *err)
{
    const char *version = text_of(c, "version");
    q->method = PP_QUANT_AWQ;
    q->group = 128;
    if (*version && strcasecmp(version, "gemm") != 0)
        return fail_key("version", "gemm", err);
    if (cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(c, "zero_point")))
        return fail_key("zero_point", "true", err);
    return read_sizes(c, q, err);
}

static enum pp_code read_mlx(const cJSON *c, struct pp_hf_quant *q, struct pp_error *err)
{
    const char *mode = text_of(c, "mode");
    q->method = PP_QUANT_MLX;
    q->group = 64;
    q->bits = 4;
    q->layers = c;
    if (*mode && strcmp(mode, "affine") != 0)
        return fail_key("mode", "affine", err);
    if (cJSON_GetArraySize(c) > MAX_LAYERS) /* each matrix looks through them */
        return pp_fail(err, PP_ERR_FORMAT, "config.json: the quantisation names more than %d layers", MAX_LAYERS);
    return read_sizes(c, q, err);
}

/* By what a transformers folder calls its method. */
static enum pp_code read_method(const cJSON *c, struct pp_hf_quant *q, struct pp_error *err)
{
    const char *method = text_of(c, "quant_method"), *format = text_of(c, "format");
    if (strcmp(method, "fp8") == 0 || strcmp(method, "fbgemm_fp8") == 0 ||
        (strcmp(method, "compressed-tensors") == 0 && strcmp(format, "float-quantized") == 0))
        return read_fp8(c, q, err);
    if (strcmp(method, "bitsandbytes") == 0)
        return read_bnb(c, q, err);
    if (strcmp(method, "gptq") == 0)
        return read_gptq(c, q, err);
    if (strcmp(method, "awq") == 0)
        return read_awq(c, q, err);
    if (!*method && cJSON_HasObjectItem(c, "group_size")) /* MLX writes both keys */
        return read_mlx(c, q, err);
    return pp_fail(err, PP_ERR_UNSUPPORTED,
                   "config.json: quantization_config names the method \"%.40s\"%s%.40s, which pippin cannot read; %s",
                   method, *format ? " in the format " : "", format, advice);
}

enum pp_code pp_hf_quant_read(const cJSON *config, const cJSON *text, struct pp_hf_quant *q, struct pp_error *err)
{
    const cJSON *const places[] = {config, text};
    *q = (struct pp_hf_quant){.method = PP_QUANT_NONE};
    for (int i = 0; i < 2; i++) {
        const cJSON *mlx = cJSON_GetObjectItemCaseSensitive(places[i], "quantization");
        const cJSON *hf = cJSON_GetObjectItemCaseSensitive(places[i], "quantization_config");
        if (cJSON_IsObject(mlx))
            return read_mlx(mlx, q, err);
        if (cJSON_IsObject(hf))
            return read_method(hf, q, err);
    }
    return PP_OK;
}

/* --- names -------------------------------------------------------------------------------------------------------- */

static bool ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

/* The name with `end` in place of its last n characters. */
static const char *replaced(const char *name, size_t n, const char *end, struct pp_buf *b)
{
    pp_buf_clear(b);
    pp_buf_fmt(b, "%.*s%s", (int)(strlen(name) - n), name, end);
    return pp_buf_cstr(b);
}

static bool has(const struct pp_hf *hf, const char *name, const char *dtype)
{
    const char *found = "";
    return pp_hf_find(hf, name, &found) && (!dtype || strcmp(found, dtype) == 0);
}

/* Whether it ends like one of the list (NULL at its end), and `lead`, of this dtype if not NULL, is in that place. */
static bool is_part(const struct pp_hf *hf, const char *name, const char *const *ends, const char *lead,
                    const char *dtype, struct pp_buf *b)
{
    for (; *ends; ends++)
        if (ends_with(name, *ends) && has(hf, replaced(name, strlen(*ends), lead, b), dtype))
            return true;
    return false;
}

static const char *const bnb_states[] = {".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4", NULL};

/* The JSON of bitsandbytes that goes with a weight, or NULL. */
static const struct pp_tensor *bnb_state(const struct pp_hf *hf, const char *name, struct pp_buf *b)
{
    const struct pp_tensor *t = NULL;
    for (const char *const *s = bnb_states; *s && !t; s++)
        t = pp_hf_find(hf, replaced(name, 0, *s, b), NULL);
    return t;
}

static bool is_packed(const struct pp_hf_quant *q, const struct pp_hf *hf, const char *name, const char *dtype,
                      struct pp_buf *b)
{
    switch (q->method) {
    case PP_QUANT_FP8:
        return ends_with(name, ".weight") && strcmp(dtype, "F8_E4M3") == 0;
    case PP_QUANT_BNB:
        return ends_with(name, ".weight") && bnb_state(hf, name, b);
    case PP_QUANT_GPTQ:
    case PP_QUANT_AWQ:
        return ends_with(name, ".qweight");
    case PP_QUANT_MLX:
        return ends_with(name, ".weight") && strcmp(dtype, "U32") == 0;
    default:
        return false;
    }
}

static bool is_part_of_packed(const struct pp_hf_quant *q, const struct pp_hf *hf, const char *name, struct pp_buf *b)
{
    static const char *const fp8[] = {".weight_scale_inv", ".weight_scale", ".input_scale", ".activation_scale", NULL};
    static const char *const words[] = {".qzeros", ".scales", ".g_idx", NULL};
    static const char *const mlx[] = {".scales", ".biases", NULL};
    static const char *const bnb[] = {".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map",
                                      ".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4", NULL};
    switch (q->method) {
    case PP_QUANT_FP8: /* scales of a quantised cache are not needed */
        return is_part(hf, name, fp8, ".weight", "F8_E4M3", b) || ends_with(name, ".self_attn.k_scale") ||
               ends_with(name, ".self_attn.v_scale");
    case PP_QUANT_BNB:
        return is_part(hf, name, bnb, "", "U8", b);
    case PP_QUANT_GPTQ:
    case PP_QUANT_AWQ:
        return is_part(hf, name, words, ".qweight", NULL, b);
    case PP_QUANT_MLX:
        return is_part(hf, name, mlx, ".weight", "U32", b);
    default:
        return false;
    }
}

enum pp_hf_role pp_hf_quant_role(const struct pp_hf_quant *q, const struct pp_hf *hf, size_t i, struct pp_buf *name)
{
    const char *own = pp_hf_at(hf, i)->name;
    struct pp_buf b = {0};
    enum pp_hf_role role = PP_HF_PLAIN;
    pp_buf_clear(name);
    if (is_packed(q, hf, own, pp_hf_dtype(hf, i), &b)) {
        role = PP_HF_PACKED;
        replaced(own, ends_with(own, ".qweight") ? strlen(".qweight") : strlen(".weight"), ".weight", name);
    } else if (is_part_of_packed(q, hf, own, &b)) {
        role = PP_HF_PART;
    }
    name->bad |= b.bad;
    pp_buf_free(&b);
    return role;
}

/* --- pieces ------------------------------------------------------------------------------------------------------- */

/* A matrix being opened. */
struct opening {
    const struct pp_hf_quant *q;
    const struct pp_hf *hf;
    const struct pp_tensor *lead;
    const char *dtype;          /* of lead */
    struct pp_buf name;         /* room for another's */
    struct pp_rows *rows;
    struct pp_tensor *t;
    struct pp_error *err;
};

static enum pp_code fail_piece(const struct opening *o, const char *name, const char *what)
{
    return pp_fail(o->err, PP_ERR_FORMAT, "tensor %.200s %s; the model is damaged or incomplete, get it again", name,
                   what);
}

static enum pp_code fail_shape(const struct opening *o, const struct pp_tensor *t)
{
    return pp_fail(o->err, PP_ERR_FORMAT,
                   "tensor %.200s has %lld x %lld x %lld values, which do not fit those of %.200s and the quantisation "
                   "in config.json",
                   t->name, (long long)t->ne[2], (long long)t->ne[1], (long long)t->ne[0], o->lead->name);
}

/* The tensor that has `end` in place of the lead's ending of n characters. */
static const struct pp_tensor *piece(struct opening *o, size_t n, const char *end, const char **dtype)
{
    return pp_hf_find(o->hf, replaced(o->lead->name, n, end, &o->name), dtype);
}

static enum pp_code need_piece(struct opening *o, size_t n, const char *end, const struct pp_tensor **t,
                               const char **dtype)
{
    *t = piece(o, n, end, dtype);
    return *t ? PP_OK : fail_piece(o, pp_buf_cstr(&o->name), "is missing");
}

static enum pp_code need_dtype(const struct opening *o, const struct pp_tensor *t, const char *dtype, const char *want)
{
    char what[64];
    if (strcmp(dtype, want) == 0)
        return PP_OK;
    snprintf(what, sizeof what, "is %.20s, not %.20s", dtype, want);
    return fail_piece(o, t->name, what);
}

static enum pp_code take_numbers(const struct opening *o, const struct pp_tensor *t, const char *dtype,
                                 struct pp_numbers *n)
{
    static const struct {
        const char *dtype;
        enum pp_number_kind kind;
    } kinds[] = {{"F32", PP_NUMBER_F32}, {"F16", PP_NUMBER_F16}, {"BF16", PP_NUMBER_BF16}, {"F8_E8M0", PP_NUMBER_E8M0}};
    n->data = t->data;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(dtype, kinds[i].dtype) == 0) {
            n->kind = kinds[i].kind;
            return PP_OK;
        }
    return fail_piece(o, t->name, "does not hold floats");
}

static bool has_shape(const struct pp_tensor *t, int64_t n0, int64_t n1, int64_t n2)
{
    return t->ne[0] == n0 && t->ne[1] == n1 && t->ne[2] == n2 && t->ne[3] == 1;
}

static int64_t n_elements(const struct pp_tensor *t)
{
    return t->size ? t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3] : 0; /* it is in a file: no overflow */
}

static void set_shape(struct opening *o, int n_dims, int64_t n_cols, int64_t n_rows, int64_t n_matrices)
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

static enum pp_code fp8_scales(struct opening *o, const struct pp_tensor *scale)
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
        if (!has_shape(scale, r->scale_stride, (n_rows - 1) / r->block_rows + 1, 1))
            return fail_shape(o, scale);
    }
    return PP_OK;
}

static enum pp_code open_fp8(struct opening *o)
{
    const size_t end = strlen(".weight");
    const struct pp_tensor *lead = o->lead, *scale;
    const char *dtype;
    if (lead->n_dims != 2)
        return fail_shape(o, lead);
    set_shape(o, 2, lead->ne[0], lead->ne[1], 1);
    enum pp_code code = PP_OK;
    if (!(scale = piece(o, end, ".weight_scale_inv", &dtype)))
        code = need_piece(o, end, ".weight_scale", &scale, &dtype);
    o->rows->form = PP_FORM_FP8;
    if (!code)
        code = take_numbers(o, scale, dtype, &o->rows->scales);
    return code ? code : fp8_scales(o, scale);
}

/* --- bitsandbytes ------------------------------------------------------------------------------------------------- */

/* What the JSON says; all else is in tensors. */
struct bnb_state {
    int64_t block, nested_block, n_rows, n_cols;
    float offset;
};

static enum pp_code read_bnb_state(struct opening *o, struct bnb_state *s)
{
    const struct pp_tensor *t = bnb_state(o->hf, o->lead->name, &o->name);
    cJSON *json = t && t->size <= MAX_STATE ? cJSON_ParseWithLength(t->data, t->size) : NULL;
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(json, "shape");
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

/* n floats of a tensor that is called like the lead with `end` behind. */
static enum pp_code bnb_table(struct opening *o, const char *end, float *to, int64_t n)
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

/* The scales' own scales. */
static enum pp_code bnb_nested(struct opening *o, const struct bnb_state *s, const struct pp_tensor *absmax)
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

static enum pp_code open_bnb(struct opening *o)
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
    r->form = PP_FORM_TABLE;
    r->block = s.block;
    if (!code)
        code = strcmp(dtype, "U8") == 0 ? bnb_nested(o, &s, absmax) : take_numbers(o, absmax, dtype, &r->scales);
    return code ? code : bnb_table(o, ".quant_map", r->table, 16);
}

/* --- GPTQ and AWQ ------------------------------------------------------------------------------------------------- */

/* Each column's group. In order it need not be kept. */
static enum pp_code take_order(struct opening *o, const struct pp_tensor *order, const char *dtype)
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
            code = fail_piece(o, order->name, "names a group that there is not");
    }
    if (!in_order)
        r->group_of = order->data;
    return code;
}

/* Whether all zero points are in the middle. */
static bool is_symmetric(const struct pp_rows *r)
{
    const int middle = 1 << (r->bits - 1);
    const uint8_t byte = (uint8_t)(middle - r->zero_bias);
    const uint8_t want = r->bits == 8 ? byte : (uint8_t)(byte | byte << 4);
    const int64_t n = r->n_groups * r->n_rows * r->bits / 8;
    if (r->bits < 4)
        return false;
    for (int64_t i = 0; i < n; i++)
        if (r->zeros[i] != want)
            return false;
    return true;
}

static enum pp_code open_words(struct opening *o)
{
    const bool down = o->q->method == PP_QUANT_GPTQ;
    const size_t end = strlen(".qweight");
    const int64_t per = 32 / o->q->bits, n0 = o->lead->ne[0], n1 = o->lead->ne[1];
    struct pp_rows *r = o->rows;
    const struct pp_tensor *scales, *zeros, *order;
    const char *scales_dtype, *zeros_dtype, *dtype;
    r->form = down ? PP_FORM_DOWN : PP_FORM_ACROSS;
    r->bits = (int)o->q->bits;
    r->zero_bias = o->q->zeros_less_one;
    if (o->lead->n_dims != 2)
        return fail_shape(o, o->lead);
    enum pp_code code = need_dtype(o, o->lead, o->dtype, "I32");
    if (code)
        return code;
    set_shape(o, 2, down ? n1 * per : n1, down ? n0 : n0 * per, 1);
    r->group = o->q->group == -1 ? r->n_cols : o->q->group;
    r->n_groups = (r->n_cols - 1) / r->group + 1;
    if ((code = need_piece(o, end, ".scales", &scales, &scales_dtype)) ||
        (code = need_piece(o, end, ".qzeros", &zeros, &zeros_dtype)) ||
        (code = take_numbers(o, scales, scales_dtype, &r->scales)) ||
        (code = need_dtype(o, zeros, zeros_dtype, "I32")))
        return code;
    r->zeros = zeros->data;
    if (!has_shape(scales, r->n_rows, r->n_groups, 1))
        return fail_shape(o, scales);
    if (r->n_rows % per != 0 || !has_shape(zeros, r->n_rows / per, r->n_groups, 1))
        return fail_shape(o, zeros);
    order = down ? piece(o, end, ".g_idx", &dtype) : NULL;
    return order ? take_order(o, order, dtype) : PP_OK;
}

/* --- MLX ---------------------------------------------------------------------------------------------------------- */

/* Bits and group of this one, which config.json may have under the name of its module. */
static enum pp_code mlx_sizes(struct opening *o, struct pp_hf_quant *own)
{
    const char *module = replaced(o->lead->name, strlen(".weight"), "", &o->name);
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(o->q->layers, module);
    *own = *o->q;
    enum pp_code code = PP_OK;
    if (cJSON_IsObject(item)) {
        const char *mode = text_of(item, "mode");
        code = *mode && strcmp(mode, "affine") != 0 ? fail_key("mode", "affine", o->err)
                                                    : read_sizes(item, own, o->err);
        if (code)
            pp_fail_prefix(o->err, "%.200s", module);
    }
    return code;
}

static enum pp_code open_mlx(struct opening *o)
{
    const size_t end = strlen(".weight");
    const struct pp_tensor *lead = o->lead, *scales, *offsets;
    const char *scales_dtype, *offsets_dtype;
    struct pp_rows *r = o->rows;
    struct pp_hf_quant own;
    enum pp_code code = mlx_sizes(o, &own);
    if (code)
        return code;
    if (lead->n_dims > 3 || lead->n_dims < 2 || lead->ne[0] > INT64_MAX / 32 || lead->ne[0] * 32 % own.bits != 0)
        return fail_shape(o, lead);
    set_shape(o, lead->n_dims, lead->ne[0] * 32 / own.bits, lead->ne[1], lead->ne[2]);
    r->form = PP_FORM_STREAM;
    r->bits = (int)own.bits;
    r->group = own.group;
    r->n_groups = r->n_cols / r->group;
    if ((code = need_piece(o, end, ".scales", &scales, &scales_dtype)) ||
        (code = need_piece(o, end, ".biases", &offsets, &offsets_dtype)) ||
        (code = take_numbers(o, scales, scales_dtype, &r->scales)) ||
        (code = take_numbers(o, offsets, offsets_dtype, &r->offsets)))
        return code;
    if (r->n_cols % r->group != 0 || !has_shape(scales, r->n_groups, lead->ne[1], lead->ne[2]))
        return fail_shape(o, scales);
    return has_shape(offsets, r->n_groups, lead->ne[1], lead->ne[2]) ? PP_OK : fail_shape(o, offsets);
}

/* --- what it becomes ---------------------------------------------------------------------------------------------- */

static uint32_t blocks_for(const struct pp_rows *r)
{
    const bool words = r->form == PP_FORM_DOWN || r->form == PP_FORM_ACROSS;
    const bool fits = (words || r->form == PP_FORM_STREAM) && !r->group_of && r->n_cols % 32 == 0 &&
                      (r->group % 32 == 0 || r->n_groups == 1);
    if (!fits)
        return PP_TYPE_LIMIT;
    if (words && (r->bits == 4 || r->bits == 8) && is_symmetric(r))
        return r->bits == 4 ? PP_TYPE_Q4_0 : PP_TYPE_Q8_0;
    return r->bits <= 4 ? PP_TYPE_Q4_1 : r->bits == 5 ? PP_TYPE_Q5_1 : PP_TYPE_LIMIT;
}

enum pp_code pp_hf_quant_open(const struct pp_hf_quant *q, const struct pp_hf *hf, size_t i, struct pp_rows *rows,
                              struct pp_tensor *t, struct pp_error *err)
{
    struct opening o = {.q = q, .hf = hf, .lead = pp_hf_at(hf, i), .dtype = pp_hf_dtype(hf, i), .rows = rows, .t = t,
                        .err = err};
    *rows = (struct pp_rows){.weights = o.lead->data};
    *t = (struct pp_tensor){0};
    if (o.lead->size == 0)
        return fail_piece(&o, o.lead->name, "is empty");
    enum pp_code code = q->method == PP_QUANT_FP8   ? open_fp8(&o)
                        : q->method == PP_QUANT_BNB ? open_bnb(&o)
                        : q->method == PP_QUANT_MLX ? open_mlx(&o)
                                                    : open_words(&o);
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
    return PP_OK;
}
