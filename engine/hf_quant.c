/* hf_quant.c - what config.json states about quantisation, and which tensors belong together. hf_quant_open.c
 * describes the matrices that they make up. */
#include <cjson/cJSON.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/word.h"
#include "engine/hf_quant_int.h"
#include "engine/hparams.h"

enum { MAX_LAYERS = 1 << 14 }; /* most layers with settings of their own (MLX), and groups (compressed-tensors) */

/* --- config.json -------------------------------------------------------------------------------------------------- */

static const char advice[] = "use the model in another format: FP8, MXFP4, NVFP4, 4-bit bitsandbytes, GPTQ, AWQ, "
                             "compressed-tensors, MLX, unquantised, or GGUF";

static enum pp_code fail_key(const char *key, const char *want, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s of the quantisation is not %s; %s", key, want, advice);
}

static enum pp_code read_block(const cJSON *c, const char *key, struct pp_hf_quant *q, struct pp_error *err)
{
    const cJSON *block = pp_json_member(c, key);
    if (!block || cJSON_IsNull(block))
        return PP_OK;
    const cJSON *rows = cJSON_GetArrayItem(block, 0), *cols = cJSON_GetArrayItem(block, 1);
    if (cJSON_GetArraySize(block) != 2 || !cJSON_IsNumber(rows) || !cJSON_IsNumber(cols) || rows->valueint < 1 ||
        cols->valueint < 1)
        return fail_key(key, "two positive numbers", err);
    q->block_rows = rows->valueint;
    q->block_cols = cols->valueint;
    return PP_OK;
}

static enum pp_code read_fp8(const cJSON *c, struct pp_hf_quant *q, struct pp_error *err)
{
    q->method = PP_QUANT_FP8;
    q->block_rows = q->block_cols = 128;
    return read_block(c, "weight_block_size", q, err);
}

/* Reads one group of layers of compressed-tensors. Their tensors tell bits, groups and zero points. */
static enum pp_code read_scheme(const cJSON *group, struct pp_hf_quant *q, struct pp_error *err)
{
    const cJSON *w = pp_json_member(group, "weights");
    const bool is_float = strcmp(pp_json_text(w, "type"), "float") == 0;
    int64_t bits = 8;
    if (!w || cJSON_IsNull(w)) /* only activations are quantised, at run time */
        return PP_OK;
    if (!pp_json_int(w, "num_bits", &bits) || (bits != 4 && bits != 8 && !(bits == 2 && !is_float)))
        return fail_key("num_bits", is_float ? "4 or 8" : "2, 4 or 8", err);
    return read_block(w, "block_structure", q, err);
}

/* Whether activations must be rotated before they are multiplied. The key may be there without any transform. */
static bool transforms(const cJSON *transform)
{
    const cJSON *groups = pp_json_member(transform, "config_groups");
    if (!transform || cJSON_IsNull(transform) || (cJSON_IsObject(transform) && !transform->child))
        return false;
    return !cJSON_IsObject(groups) || groups->child;
}

static enum pp_code read_compressed(const cJSON *c, struct pp_hf_quant *q, struct pp_error *err)
{
    static const char *const known[] = {"", "dense", "pack-quantized", "int-quantized", "float-quantized",
                                        "naive-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized",
                                        "mxfp8-quantized", "mixed-precision", NULL};
    const cJSON *groups = pp_json_member(c, "config_groups"), *group;
    const cJSON *sparse = pp_json_member(c, "sparsity_config");
    const char *sparsity = pp_json_text(sparse, "format"), *format = pp_json_text(c, "format");
    int i = 0, n = 0;
    enum pp_code code = PP_OK;
    q->method = PP_QUANT_COMPRESSED;
    q->block_rows = q->block_cols = 128;
    while (known[i] && strcmp(known[i], format) != 0)
        i++;
    if (!known[i])
        return fail_key("format", "one that pippin knows (pack-quantized, int-quantized, float-quantized, "
                        "naive-quantized, nvfp4-pack-quantized, mxfp4-pack-quantized, mxfp8-quantized)", err);
    if (*sparsity && strcmp(sparsity, "dense") != 0)
        return fail_key("sparsity_config", "dense, and sparse matrices cannot be read", err);
    if (transforms(pp_json_member(c, "transform_config")))
        return fail_key("transform_config", "empty, and the activation transforms that it asks for (Hadamard or other "
                                            "rotations) are not supported", err);
    cJSON_ArrayForEach(group, groups) {
        if (++n > MAX_LAYERS)
            return pp_fail(err, PP_ERR_FORMAT, "config.json: the quantisation has more than %d groups", MAX_LAYERS);
        if ((code = read_scheme(group, q, err)))
            return code;
    }
    return PP_OK;
}

/* Whether this is an algorithm of modelopt that we read. Tensors tell which of them a matrix has. */
static bool is_modelopt_algorithm(const char *name)
{
    static const char *const known[] = {"FP8",   "FP8_PB_WO",   "FP8_PER_CHANNEL_PER_TOKEN",
                                        "NVFP4", "W4A16_NVFP4", "MXFP8", NULL};
    int i = 0;
    while (known[i] && strcmp(known[i], name) != 0)
        i++;
    return known[i] != NULL;
}

static enum pp_code read_modelopt(const cJSON *c, struct pp_hf_quant *q, struct pp_error *err)
{
    const char *algorithm = pp_json_text(c, "quant_algo");
    const bool mixed = strcmp(algorithm, "MIXED_PRECISION") == 0;
    const cJSON *layers = mixed ? pp_json_member(c, "quantized_layers") : NULL, *layer;
    bool known = mixed ? cJSON_IsObject(layers) : is_modelopt_algorithm(algorithm);
    q->method = PP_QUANT_MODELOPT;
    q->block_rows = q->block_cols = 128;
    cJSON_ArrayForEach(layer, layers)
        known = known && is_modelopt_algorithm(pp_json_text(layer, "quant_algo"));
    return known ? PP_OK : fail_key("quant_algo", "FP8, FP8_PB_WO, FP8_PER_CHANNEL_PER_TOKEN, NVFP4, W4A16_NVFP4, "
                                    "MXFP8, or MIXED_PRECISION of these", err);
}

static enum pp_code read_bnb(const cJSON *c, struct pp_hf_quant *q, struct pp_error *err)
{
    q->method = PP_QUANT_BNB;
    if (!cJSON_IsTrue(pp_json_member(c, "load_in_8bit")))
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
    static const int mlx[] = {2, 3, 4, 5, 6, 8, 0}, gptq[] = {2, 3, 4, 8, 0}, awq[] = {4, 0};
    const int *known = q->method == PP_QUANT_MLX ? mlx : q->method == PP_QUANT_GPTQ ? gptq : awq;
    if (!pp_json_int(c, "bits", &q->bits) || !is_one_of(q->bits, known))
        return fail_key("bits", known == mlx ? "2, 3, 4, 5, 6 or 8" : known == gptq ? "2, 3, 4 or 8" : "4", err);
    if (!pp_json_int(c, "group_size", &q->group) || q->group > INT32_MAX ||
        (q->group < 1 && !(q->group == -1 && q->method != PP_QUANT_MLX)))
        return fail_key("group_size", "a positive number", err);
    return PP_OK;
}

static enum pp_code read_gptq(const cJSON *c, struct pp_hf_quant *q, struct pp_error *err)
{
    const char *format = pp_json_text(c, "checkpoint_format");
    q->method = PP_QUANT_GPTQ;
    q->group = 128;
    q->zeros_less_one = strcmp(format, "gptq_v2") != 0;
    if (*format && strcmp(format, "gptq") != 0 && strcmp(format, "gptq_v2") != 0)
        return fail_key("checkpoint_format", "gptq or gptq_v2", err);
    return read_sizes(c, q, err);
}

static enum pp_code read_awq(const cJSON *c, struct pp_hf_quant *q, struct pp_error *err)
{
    const char *version = pp_json_text(c, "version");
    q->method = PP_QUANT_AWQ;
    q->group = 128;
    q->along = pp_casecmp(version, "gemv") == 0;
    if (*version && !q->along && pp_casecmp(version, "gemm") != 0)
        return fail_key("version", "gemm or gemv", err);
    if (cJSON_IsFalse(pp_json_member(c, "zero_point")))
        return fail_key("zero_point", "true", err);
    return read_sizes(c, q, err);
}

/* BitNet. Models that quantise their weights only at run time are refused: they store other weights. */
static enum pp_code read_ternary(const cJSON *c, struct pp_hf_quant *q, struct pp_error *err)
{
    q->method = PP_QUANT_TERNARY;
    q->divided = strcmp(pp_json_text(c, "linear_class"), "autobitlinear") != 0;
    if (strcmp(pp_json_text(c, "quantization_mode"), "online") == 0)
        return fail_key("quantization_mode", "offline", err);
    return PP_OK;
}

/* Reads MLX's bits, group size and mode, for all layers or for one. */
static enum pp_code read_mode(const cJSON *c, struct pp_hf_quant *q, struct pp_error *err)
{
    static const struct {
        const char *name;
        enum pp_mlx_mode mode;
        int64_t bits, group;
    } modes[] = {{"affine", PP_MLX_AFFINE, 4, 64}, {"mxfp4", PP_MLX_MXFP4, 4, 32}, {"mxfp8", PP_MLX_MXFP8, 8, 32},
                 {"nvfp4", PP_MLX_NVFP4, 4, 16}};
    const char *mode = pp_json_text(c, "mode");
    size_t i = 0;
    while (*mode && i < sizeof modes / sizeof *modes && strcmp(modes[i].name, mode) != 0)
        i++;
    if (i == sizeof modes / sizeof *modes)
        return fail_key("mode", "affine, mxfp4, mxfp8 or nvfp4", err);
    q->mode = modes[i].mode;
    q->bits = modes[i].bits;
    q->group = modes[i].group;
    enum pp_code code = read_sizes(c, q, err);
    if (!code && q->mode != PP_MLX_AFFINE && (q->bits != modes[i].bits || q->group != modes[i].group))
        return fail_key("group_size", "the one of its mode (mxfp4 and mxfp8: 32, nvfp4: 16)", err);
    return code;
}

enum pp_code pp_hf_quant_layer(const struct pp_hf_quant *q, const char *module, struct pp_hf_quant *own,
                               struct pp_error *err)
{
    const cJSON *item = pp_json_member(q->layers, module);
    enum pp_code code = PP_OK;
    *own = *q;
    if (cJSON_IsObject(item) && (code = read_mode(item, own, err)))
        pp_fail_prefix(err, "%.200s", module);
    return code;
}

static enum pp_code read_mlx(const cJSON *c, struct pp_hf_quant *q, struct pp_error *err)
{
    q->method = PP_QUANT_MLX;
    q->layers = c;
    if (cJSON_GetArraySize(c) > MAX_LAYERS) /* looked through for each matrix */
        return pp_fail(err, PP_ERR_FORMAT, "config.json: the quantisation names more than %d layers", MAX_LAYERS);
    return read_mode(c, q, err);
}

/* Chooses by quant_method, which transformers writes. */
static enum pp_code read_method(const cJSON *c, struct pp_hf_quant *q, struct pp_error *err)
{
    const char *method = pp_json_text(c, "quant_method"), *format = pp_json_text(c, "format");
    if (strcmp(method, "fp8") == 0 || strcmp(method, "fbgemm_fp8") == 0)
        return read_fp8(c, q, err);
    if (strcmp(method, "compressed-tensors") == 0)
        return read_compressed(c, q, err);
    if (strcmp(method, "modelopt") == 0)
        return read_modelopt(c, q, err);
    if (strcmp(method, "mxfp4") == 0) {
        q->method = PP_QUANT_MXFP4;
        return PP_OK;
    }
    if (strcmp(method, "bitsandbytes") == 0)
        return read_bnb(c, q, err);
    if (strcmp(method, "gptq") == 0)
        return read_gptq(c, q, err);
    if (strcmp(method, "awq") == 0)
        return read_awq(c, q, err);
    if (strcmp(method, "bitnet") == 0)
        return read_ternary(c, q, err);
    if (!*method && pp_json_member(c, "group_size")) /* MLX writes both keys */
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
        const cJSON *mlx = pp_json_member(places[i], "quantization");
        const cJSON *hf = pp_json_member(places[i], "quantization_config");
        if (cJSON_IsObject(mlx))
            return read_mlx(mlx, q, err);
        if (cJSON_IsObject(hf))
            return read_method(hf, q, err);
    }
    return PP_OK;
}

/* --- names -------------------------------------------------------------------------------------------------------- */

const char *pp_hf_replaced(const char *name, size_t n, const char *end, struct pp_buf *b)
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

/* Whether a name ends like one in the list (which NULL ends), and there is a tensor with `lead` instead of that ending
 * and this dtype (NULL: any). */
static bool is_part(const struct pp_hf *hf, const char *name, const char *const *ends, const char *lead,
                    const char *dtype, struct pp_buf *b)
{
    for (; *ends; ends++)
        if (pp_ends_with(name, *ends) && has(hf, pp_hf_replaced(name, strlen(*ends), lead, b), dtype))
            return true;
    return false;
}

static const char *const bnb_states[] = {".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4", NULL};

const struct pp_tensor *pp_hf_bnb_state(const struct pp_hf *hf, const char *name, struct pp_buf *b)
{
    const struct pp_tensor *t = NULL;
    for (const char *const *s = bnb_states; *s && !t; s++)
        t = pp_hf_find(hf, pp_hf_replaced(name, 0, *s, b), NULL);
    return t;
}

/* Whether bytes hold pairs of four-bit floats, as DeepSeek V4's experts do among FP8 weights. */
static bool is_fp4(const char *dtype)
{
    return strcmp(dtype, "I8") == 0 || strcmp(dtype, "U8") == 0;
}

static bool is_packed(const struct pp_hf_quant *q, const struct pp_hf *hf, const char *name, const char *dtype,
                      struct pp_buf *b)
{
    switch (q->method) {
    case PP_QUANT_FP8:
        return pp_ends_with(name, ".weight") &&
               (strcmp(dtype, "F8_E4M3") == 0 || (is_fp4(dtype) && has(hf, pp_hf_replaced(name, strlen(".weight"),
                                                                                          ".scale", b), NULL)));
    case PP_QUANT_BNB:
        return pp_ends_with(name, ".weight") && pp_hf_bnb_state(hf, name, b);
    case PP_QUANT_GPTQ:
    case PP_QUANT_AWQ:
        return pp_ends_with(name, ".qweight");
    case PP_QUANT_MLX:
        return pp_ends_with(name, ".weight") && strcmp(dtype, "U32") == 0;
    case PP_QUANT_MXFP4:
        return pp_ends_with(name, "_blocks");
    case PP_QUANT_COMPRESSED:
        return pp_ends_with(name, ".weight_packed") ||
               (pp_ends_with(name, ".weight") && (strcmp(dtype, "I8") == 0 || strcmp(dtype, "F8_E4M3") == 0));
    case PP_QUANT_TERNARY:
        return pp_ends_with(name, ".weight") && strcmp(dtype, "U8") == 0;
    case PP_QUANT_MODELOPT:
        return pp_ends_with(name, ".weight") && (strcmp(dtype, "U8") == 0 || strcmp(dtype, "F8_E4M3") == 0);
    default:
        return false;
    }
}

/* Scales of a quantised KV cache, which are not needed. */
static bool is_cache_scale(const char *name)
{
    return pp_ends_with(name, ".self_attn.k_scale") || pp_ends_with(name, ".self_attn.v_scale") ||
           pp_ends_with(name, ".self_attn.q_scale") || pp_ends_with(name, ".k_proj.k_scale") ||
           pp_ends_with(name, ".v_proj.v_scale");
}

static bool is_part_of_packed(const struct pp_hf_quant *q, const struct pp_hf *hf, const char *name, struct pp_buf *b)
{
    static const char *const fp8[] = {".weight_scale_inv", ".weight_scale", ".scale", ".input_scale",
                                      ".activation_scale", NULL};
    static const char *const fp4[] = {".scale", NULL};
    static const char *const words[] = {".qzeros", ".scales", ".g_idx", NULL};
    static const char *const mlx[] = {".scales", ".biases", NULL}, *const mxfp4[] = {"_scales", NULL};
    static const char *const compressed[] = {".weight_scale", ".weight_zero_point", ".weight_shape", ".weight_g_idx",
                                             ".weight_global_scale", ".input_scale", ".input_zero_point",
                                             ".input_global_scale", ".output_scale", ".output_zero_point", NULL};
    static const char *const ternary[] = {".weight_scale", NULL};
    static const char *const modelopt[] = {".weight_scale", ".weight_scale_2", ".input_scale", NULL};
    static const char *const bnb[] = {".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map",
                                      ".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4", NULL};
    switch (q->method) {
    case PP_QUANT_FP8:
        return is_part(hf, name, fp8, ".weight", "F8_E4M3", b) || is_part(hf, name, fp4, ".weight", "I8", b) ||
               is_part(hf, name, fp4, ".weight", "U8", b) || is_cache_scale(name);
    case PP_QUANT_BNB:
        return is_part(hf, name, bnb, "", "U8", b);
    case PP_QUANT_GPTQ:
    case PP_QUANT_AWQ:
        return is_part(hf, name, words, ".qweight", NULL, b);
    case PP_QUANT_MLX:
        return is_part(hf, name, mlx, ".weight", "U32", b);
    case PP_QUANT_MXFP4:
        return is_part(hf, name, mxfp4, "_blocks", NULL, b);
    case PP_QUANT_COMPRESSED:
        return is_part(hf, name, compressed, ".weight_packed", NULL, b) ||
               is_part(hf, name, compressed, ".weight", NULL, b) || is_cache_scale(name);
    case PP_QUANT_TERNARY:
        return is_part(hf, name, ternary, ".weight", "U8", b);
    case PP_QUANT_MODELOPT:
        return is_part(hf, name, modelopt, ".weight", NULL, b) || is_cache_scale(name);
    default:
        return false;
    }
}

size_t pp_hf_lead_end(const struct pp_hf_quant *q, const char *name)
{
    if (q->method == PP_QUANT_MXFP4)
        return strlen("_blocks");
    return strlen(pp_ends_with(name, ".qweight") ? ".qweight" : pp_ends_with(name, ".weight_packed") ? ".weight_packed"
                                                                                               : ".weight");
}

enum pp_hf_role pp_hf_quant_role(const struct pp_hf_quant *q, const struct pp_hf *hf, size_t i, struct pp_buf *name)
{
    const char *own = pp_hf_at(hf, i)->name;
    struct pp_buf b = {0};
    enum pp_hf_role role = PP_HF_PLAIN;
    pp_buf_clear(name);
    if (is_packed(q, hf, own, pp_hf_dtype(hf, i), &b)) {
        role = PP_HF_PACKED;
        pp_hf_replaced(own, pp_hf_lead_end(q, own), q->method == PP_QUANT_MXFP4 ? "" : ".weight", name);
    } else if (is_part_of_packed(q, hf, own, &b)) {
        role = PP_HF_PART;
    }
    name->bad |= b.bad;
    pp_buf_free(&b);
    return role;
}
