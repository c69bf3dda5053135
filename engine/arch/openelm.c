/* openelm.c - OpenELM (arXiv 2404.14619): Llama with norms of heads, a fused qkv, and layers that differ in numbers of
 * heads and widths, given as lists and factors in config.json. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/hparams.h"

static const struct pp_arch_name names[] = {
    {.hf = "transformer.token_embeddings", .gguf = "token_embd"},
    {.hf = "transformer.norm", .gguf = "output_norm"},
    {.hf = "lm_head", .gguf = "output"},
    {.hf = "transformer.layers.{}.attn_norm", .gguf = "blk.{}.attn_norm"},
    {.hf = "transformer.layers.{}.attn.qkv_proj", .gguf = "blk.{}.attn_qkv"},
    {.hf = "transformer.layers.{}.attn.q_norm", .gguf = "blk.{}.attn_q_norm"},
    {.hf = "transformer.layers.{}.attn.k_norm", .gguf = "blk.{}.attn_k_norm"},
    {.hf = "transformer.layers.{}.attn.out_proj", .gguf = "blk.{}.attn_output"},
    {.hf = "transformer.layers.{}.ffn_norm", .gguf = "blk.{}.ffn_norm"},
    {.hf = "transformer.layers.{}.ffn.proj_1.weight", .gguf = "blk.{}.ffn_gate.weight",
     .second = "blk.{}.ffn_up.weight", .form = PP_HF_HALVES, .whole = true},
    {.hf = "transformer.layers.{}.ffn.proj_2", .gguf = "blk.{}.ffn_down"},
    {.hf = NULL},
};

static const char *const classes[] = {"OpenELMForCausalLM", "openelm", NULL};

/* Placeholders for the common reader, which lists replace. */
static const struct pp_arch_default defaults[] = {
    {.json = "{\"num_attention_heads\": 1, \"intermediate_size\": 1, \"ffn_dim_divisor\": 256, \"head_dim\": 128,"
             "\"ffn_with_glu\": true, \"normalize_qk_projections\": true, \"share_input_output_layers\": true}"},
    {.json = NULL},
};

/* Reads a list with a number of 0 to 1 << 20 for each layer. */
static const cJSON *list_of(const cJSON *config, const char *key, const struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *list = pp_json_member(config, key), *item;
    bool good = cJSON_IsArray(list) && cJSON_GetArraySize(list) == hp->n_layer;
    for (item = good ? list->child : NULL; item; item = item->next)
        good = good && cJSON_IsNumber(item) && item->valuedouble > 0 && item->valuedouble <= 1 << 20;
    if (good)
        return list;
    pp_fail(err, PP_ERR_FORMAT, "config.json: %s does not have a number for each of %lld layers", key,
            (long long)hp->n_layer);
    return NULL;
}

/* make_divisible: rounds to the nearest multiple, and up if that would be more than 10 % less. */
static int32_t width_of(double v, int64_t divisor)
{
    int64_t width = (int64_t)(v + (double)divisor / 2) / divisor * divisor;
    width = width < divisor ? divisor : width;
    return (int32_t)((double)width < 0.9 * v ? width + divisor : width);
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static enum pp_code read_layers(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *q = list_of(config, "num_query_heads", hp, err), *kv = NULL, *factors = NULL;
    int64_t divisor = 256, l = 0;
    enum pp_code code = pp_config_int(config, "ffn_dim_divisor", &divisor, err);
    if (q && (kv = list_of(config, "num_kv_heads", hp, err)))
        factors = list_of(config, "ffn_multipliers", hp, err);
    if (code || !factors)
        return code ? code : err->code;
    if (divisor < 1 || divisor > 1 << 20 || hp->n_embd > 1 << 20)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: ffn_dim_divisor or model_dim is not a number that fits");
    pp_layers_vary_sizes(hp);
    hp->n_head = hp->n_head_kv = hp->n_ff = 0;
    for (q = q->child, kv = kv->child, factors = factors->child; q; q = q->next, kv = kv->next, l++) {
        const double width = factors->valuedouble * (double)hp->n_embd;
        hp->sizes[l] = (struct pp_layer_sizes){.n_head = q->valueint, .n_head_kv = kv->valueint,
                                               .n_ff = width_of(width < 1 << 22 ? width : 1 << 22, divisor)};
        hp->n_head = larger(hp->n_head, q->valueint);
        hp->n_head_kv = larger(hp->n_head_kv, kv->valueint);
        hp->n_ff = larger(hp->n_ff, hp->sizes[l].n_ff);
        factors = factors->next;
    }
    return PP_OK;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    if (!pp_config_flag(config, "ffn_with_glu", true) || !pp_config_flag(config, "normalize_qk_projections", true))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: layers without gates or norms of heads are not "
                       "supported for this family");
    enum pp_code code = pp_config_activation(config, "activation_fn_name", pp_silu_names, err);
    if (!code)
        code = pp_config_int(config, "max_context_length", &hp->n_ctx_train, err);
    if (!code)
        code = pp_config_float(config, "rope_freq_constant", &hp->rope_base, err);
    return code ? code : read_layers(config, hp, err);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g, (void)hp, (void)err;
    return PP_OK;
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    cJSON *q = cJSON_AddArrayToObject(config, "num_query_heads"), *kv = cJSON_AddArrayToObject(config, "num_kv_heads");
    cJSON *factors = cJSON_AddArrayToObject(config, "ffn_multipliers");
    for (int64_t l = 0; l < hp->n_layer; l++) {
        const struct pp_layer_shape s = pp_layer_shape(hp, l);
        cJSON_AddItemToArray(q, cJSON_CreateNumber((double)s.n_head));
        cJSON_AddItemToArray(kv, cJSON_CreateNumber((double)s.n_head_kv));
        cJSON_AddItemToArray(factors, cJSON_CreateNumber((double)s.n_ff / (double)hp->n_embd));
    }
    pp_config_put(config, "ffn_dim_divisor", 1);
    pp_config_put(config, "model_dim", hp->n_embd);
    pp_config_put(config, "num_transformer_layers", hp->n_layer);
    pp_config_put(config, "max_context_length", hp->n_ctx_train);
    pp_config_put_float(config, "rope_freq_constant", hp->rope_base);
    pp_config_put_text(config, "activation_fn_name", "swish");
}

const struct pp_arch pp_arch_openelm = {
    .name = "openelm",
    .hf_classes = classes,
    .names = names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .decoder = {.fn = PP_FN_SILU, .qk_norm = PP_QK_BY_HEAD, .fused_qkv = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_config = to_config,
};
