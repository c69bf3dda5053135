/* mimo2.c - Xiaomi's MiMo V2 Flash (transformers, models/mimo_v2_flash): a window in most layers, with attention
 * sinks, another number of KV heads and a RoPE of their own; values narrower than keys, and attention's output scaled;
 * DeepSeek-V3's routing. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

static const struct pp_arch_name names[] = {
    {.hf = "model.layers.{}.self_attn.attention_sink_bias", .gguf = "blk.{}.attn_sinks.weight", .whole = true},
    {.hf = "model.layers.{}.self_attn.qkv_proj", .gguf = "blk.{}.attn_qkv"},
    {.hf = NULL},
};
static const char *const classes[] = {"MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM", "mimo_v2_flash", "mimo_v2", NULL};
static const char *const other_parts[] = {"model.mtp.", "visual.", "audio_encoder.", "speech_embeddings.", NULL};
static const struct pp_arch_parts parts = {.model_type = "mimo_v2_flash", .prefixes = NULL, .others = other_parts};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"layernorm_epsilon\": 1e-5, \"scoring_func\": \"sigmoid\", \"norm_topk_prob\": true}"},
    {.json = NULL},
};
static const struct pp_expert_keys expert_keys = {
    .n = "n_routed_experts", .n_used = "num_experts_per_tok", .n_ff = "moe_intermediate_size",
    .n_groups = "n_group", .n_groups_used = "topk_group", .norm_topk = "norm_topk_prob",
    .scale = "routed_scaling_factor"};

/* --- config.json -------------------------------------------------------------------------------------------------- */

/* A list with a number for each layer: sets these bits where the number is `v`. */
static enum pp_code layers_from(const cJSON *config, const char *key, int v, uint8_t bits, struct pp_hparams *hp,
                                struct pp_error *err)
{
    const cJSON *list = pp_json_member(config, key), *item;
    int64_t l = 0;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) < hp->n_layer)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: %s does not name %lld layers", key, (long long)hp->n_layer);
    cJSON_ArrayForEach(item, list)
    {
        if (l < hp->n_layer && cJSON_IsNumber(item) && item->valueint == v)
            hp->layer[l] |= bits;
        l++;
    }
    return PP_OK;
}

static void layers_to(const struct pp_hparams *hp, cJSON *config, const char *key, uint8_t bits)
{
    cJSON *list = cJSON_AddArrayToObject(config, key);
    for (int64_t l = 0; l < hp->n_layer; l++)
        cJSON_AddItemToArray(list, cJSON_CreateNumber(hp->layer[l] & bits ? 0 : 1));
}

/* Layers with a window may have another number of KV heads, but no other sizes. */
static enum pp_code heads_from(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t n_head = hp->n_head, n_head_kv = hp->n_head_kv, head_dim = hp->head_dim, v_dim;
    enum pp_code code = pp_config_int(config, "v_head_dim", &hp->v_head_dim, err);
    v_dim = hp->v_head_dim;
    if (!code)
        code = pp_config_int(config, "swa_num_attention_heads", &n_head, err);
    if (!code)
        code = pp_config_int(config, "swa_num_key_value_heads", &n_head_kv, err);
    if (!code)
        code = pp_config_int(config, "swa_head_dim", &head_dim, err);
    if (!code)
        code = pp_config_int(config, "swa_v_head_dim", &v_dim, err);
    if (!code && (n_head != hp->n_head || head_dim != hp->head_dim || v_dim != hp->v_head_dim))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: heads of layers with a window are not as large and as "
                       "many as the others, which is not supported");
    if (!code && (n_head_kv < 1 || n_head_kv > n_head))
        code = pp_fail(err, PP_ERR_FORMAT, "config.json: swa_num_key_value_heads is %lld", (long long)n_head_kv);
    hp->v_head_dim = hp->v_head_dim == hp->head_dim ? 0 : hp->v_head_dim;
    if (code || n_head_kv == hp->n_head_kv)
        return code;
    pp_layers_vary_sizes(hp);
    for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        if (!(hp->layer[l] & PP_LAYER_WIDE))
            hp->sizes[l].n_head_kv = (int32_t)n_head_kv;
    hp->n_head_kv = n_head_kv > hp->n_head_kv ? n_head_kv : hp->n_head_kv;
    return PP_OK;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const char *const scores[] = {"sigmoid", NULL}, *const choices[] = {"noaux_tc", NULL};
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    hp->expert_sigmoids = true;
    hp->rope_base_local = hp->rope_base;
    if (!code)
        code = pp_config_word(config, "scoring_func", scores, err);
    if (!code)
        code = pp_config_word(config, "topk_method", choices, err);
    if (!code)
        code = pp_config_float(config, "layernorm_epsilon", &hp->norm_eps, err);
    if (!code)
        code = pp_config_experts(config, &expert_keys, hp, err);
    if (!code)
        code = layers_from(config, "hybrid_layer_pattern", 0, PP_LAYER_WIDE, hp, err);
    if (!code)
        code = layers_from(config, "moe_layer_freq", 0, PP_LAYER_DENSE, hp, err);
    hp->window = 128;
    if (!code)
        code = pp_config_int(config, "sliding_window_size", &hp->window, err);
    if (!code)
        code = pp_config_window(config, hp->window, hp, err);
    if (!code)
        code = heads_from(config, hp, err);
    if (!code)
        code = pp_config_float(config, "swa_rope_theta", &hp->rope_base_local, err);
    if (!code)
        code = pp_config_float(config, "attention_value_scale", &hp->attn_value_scale, err);
    pp_layers_local_rope(hp);
    return code;
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    const int64_t v_dim = hp->v_head_dim ? hp->v_head_dim : hp->head_dim;
    int64_t n_wide = hp->n_head_kv, n_local = hp->n_head_kv;
    for (int64_t l = 0; l < hp->n_layer; l++)
        *(hp->layer[l] & PP_LAYER_WIDE ? &n_wide : &n_local) = pp_layer_shape(hp, l).n_head_kv;
    pp_config_put_experts(hp, &expert_keys, config);
    pp_config_put_text(config, "scoring_func", "sigmoid");
    pp_config_put_text(config, "topk_method", "noaux_tc");
    cJSON_DeleteItemFromObjectCaseSensitive(config, "rms_norm_eps");
    pp_config_put_float(config, "layernorm_epsilon", hp->norm_eps);
    pp_config_put(config, "num_key_value_heads", n_wide);
    pp_config_put(config, "v_head_dim", v_dim);
    pp_config_put(config, "swa_num_attention_heads", hp->n_head);
    pp_config_put(config, "swa_num_key_value_heads", n_local);
    pp_config_put(config, "swa_head_dim", hp->head_dim);
    pp_config_put(config, "swa_v_head_dim", v_dim);
    pp_config_put_float(config, "swa_rope_theta", hp->rope_base_local);
    pp_config_put(config, "sliding_window", hp->window);
    if (hp->attn_value_scale != 0.0f)
        pp_config_put_float(config, "attention_value_scale", hp->attn_value_scale);
    cJSON_AddTrueToObject(config, "add_swa_attention_sink_bias");
    cJSON_AddFalseToObject(config, "add_full_attention_sink_bias");
    layers_to(hp, config, "hybrid_layer_pattern", PP_LAYER_WIDE);
    layers_to(hp, config, "moe_layer_freq", PP_LAYER_DENSE);
}

/* --- GGUF --------------------------------------------------------------------------------------------------------- */

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    double base = (double)hp->rope_base;
    (void)err;
    pp_gguf_float(g, "mimo2.rope.freq_base_swa", &base);
    hp->rope_base_local = (float)base;
    pp_layers_local_rope(hp);
    return PP_OK;
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_gguf_add_f32(w, "mimo2.rope.freq_base_swa", hp->rope_base_local);
}

const struct pp_arch pp_arch_mimo2 = {
    .name = "mimo2",
    .hf_classes = classes,
    .parts = &parts,
    .names = names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .gguf_default_sigmoids = true,
    .decoder = {.some_sinks = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
    .hf_eps = "layernorm_epsilon",
};
