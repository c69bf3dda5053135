/* laguna.c - Laguna (transformers, models/laguna): attention gated by a softplus for each head or for each value;
 * DeepSeek-V3's routing with a shared expert. Smaller models have a window in three of four layers, with another
 * number of heads and a RoPE of their own. */
#include <cjson/cJSON.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

#define LAYER "model.layers.{}."

static const struct pp_arch_name names[] = {
    {.hf = LAYER "self_attn.q_norm", .gguf = "blk.{}.attn_q_norm"},
    {.hf = LAYER "self_attn.k_norm", .gguf = "blk.{}.attn_k_norm"},
    {.hf = LAYER "self_attn.g_proj", .gguf = "blk.{}.attn_gate"},
    {.hf = LAYER "mlp.experts.e_score_correction_bias", .gguf = "blk.{}.exp_probs_b.bias", .whole = true},
    {.hf = LAYER "mlp.shared_expert.gate_proj", .gguf = "blk.{}.ffn_gate_shexp"},
    {.hf = LAYER "mlp.shared_expert.up_proj", .gguf = "blk.{}.ffn_up_shexp"},
    {.hf = LAYER "mlp.shared_expert.down_proj", .gguf = "blk.{}.ffn_down_shexp"},
    {.hf = LAYER "mlp.experts.gate_up_proj", .gguf = "blk.{}.ffn_gate_exps.weight",
     .second = "blk.{}.ffn_up_exps.weight", .form = PP_HF_HALVES, .whole = true, .read_only = true},
    {.hf = LAYER "mlp.experts.down_proj", .gguf = "blk.{}.ffn_down_exps.weight", .whole = true, .read_only = true},
    {.hf = NULL},
};
static const char *const classes[] = {"LagunaForCausalLM", "laguna", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"head_dim\": 128, \"num_key_value_heads\": 8, \"max_position_embeddings\": 131072,"
             "\"num_experts\": 256, \"num_experts_per_tok\": 8, \"moe_intermediate_size\": 512,"
             "\"moe_routed_scaling_factor\": 1.0, \"rope_parameters\": {\"full_attention\": {\"rope_theta\": 500000.0,"
             "\"partial_rotary_factor\": 0.5}, \"sliding_attention\": {\"rope_theta\": 10000.0}}}"},
    {.json = NULL},
};
static const struct pp_expert_keys expert_keys = {
    .n = "num_experts", .n_used = "num_experts_per_tok", .n_ff = "moe_intermediate_size",
    .shared_n_ff = "shared_expert_intermediate_size", .scale = "moe_routed_scaling_factor"};

/* --- config.json -------------------------------------------------------------------------------------------------- */

static enum pp_code heads_from(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const char key[] = "num_attention_heads_per_layer";
    const cJSON *list = pp_json_member(config, key), *item;
    int64_t l = 0;
    if (!cJSON_IsArray(list))
        return PP_OK;
    if (cJSON_GetArraySize(list) != hp->n_layer)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: %s does not name %lld layers", key, (long long)hp->n_layer);
    pp_layers_vary_sizes(hp);
    hp->n_head = 0;
    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsNumber(item) || item->valueint < 1 || item->valueint > 1 << 13)
            return pp_fail(err, PP_ERR_FORMAT, "config.json: %s has something other than numbers of heads", key);
        hp->sizes[l++].n_head = item->valueint;
        hp->n_head = item->valueint > hp->n_head ? item->valueint : hp->n_head;
    }
    return PP_OK;
}

static enum pp_code windows_from(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *rope = pp_json_member(config, "rope_parameters");
    const cJSON *local = pp_json_member(rope, "sliding_attention");
    float part = 1;
    enum pp_code code = PP_OK;
    if (!pp_json_member(config, "layer_types"))
        return PP_OK; /* all layers have full attention */
    code = pp_config_window(config, 512, hp, err);
    if (!code)
        code = pp_config_layer_types(config, hp, err);
    if (!code)
        code = pp_config_unscaled(local, err);
    hp->rope_base_local = 10000;
    if (!code)
        code = pp_config_float(local, "rope_theta", &hp->rope_base_local, err);
    if (!code)
        code = pp_config_float(local, "partial_rotary_factor", &part, err);
    hp->rope_dim_local = part >= 0 && part <= 1 ? (int64_t)((float)hp->head_dim * part) : 0;
    if (hp->window)
        pp_layers_local_rope(hp);
    return code;
}

static enum pp_code gates_from(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *gating = pp_json_member(config, "gating");
    const char *word = cJSON_GetStringValue(gating);
    hp->per_head_gates = !word || strcmp(word, "per-head") == 0 || strcmp(word, "per_head") == 0;
    if (hp->per_head_gates || strcmp(word, "per-element") == 0 || strcmp(word, "per_element") == 0)
        return PP_OK;
    return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: gating is \"%.40s\", which is not supported", word);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const char *score = cJSON_GetStringValue(pp_json_member(config, "moe_router_score_func"));
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    hp->expert_sigmoids = true;
    if (!code && score && strcmp(score, "sigmoid") != 0)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: moe_router_score_func \"%.40s\" is not supported for "
                       "this family; sigmoid is", score);
    if (!code && pp_config_flag(config, "moe_apply_router_weight_on_input", false))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: moe_apply_router_weight_on_input is not supported");
    if (!code)
        code = pp_config_experts(config, &expert_keys, hp, err);
    if (!code && !pp_json_member(config, "mlp_layer_types"))
        hp->layer[0] |= PP_LAYER_DENSE;
    if (!code)
        code = pp_config_mlp_types(config, hp, err);
    if (!code)
        code = pp_config_float(config, "moe_router_logit_softcapping", &hp->router_softcap, err);
    if (!code)
        code = gates_from(config, hp, err);
    if (!code)
        code = heads_from(config, hp, err);
    return code ? code : windows_from(config, hp, err);
}

static void put_heads(const struct pp_hparams *hp, cJSON *config)
{
    cJSON *list = cJSON_AddArrayToObject(config, "num_attention_heads_per_layer");
    for (int64_t l = 0; l < hp->n_layer; l++)
        cJSON_AddItemToArray(list, cJSON_CreateNumber((double)pp_layer_shape(hp, l).n_head));
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put_experts(hp, &expert_keys, config);
    pp_config_put_mlp_types(hp, config);
    pp_config_put_ropes(config, hp);
    pp_config_put(config, "num_attention_heads", pp_layer_shape(hp, 0).n_head);
    if (hp->sizes_vary)
        put_heads(hp, config);
    if (hp->window)
        pp_config_put_layer_types(config, hp);
    if (hp->router_softcap != 0.0f)
        pp_config_put_float(config, "moe_router_logit_softcapping", hp->router_softcap);
    pp_config_put_text(config, "gating", hp->per_head_gates ? "per-head" : "per-element");
}

/* --- GGUF --------------------------------------------------------------------------------------------------------- */

/* Without a list in the file, layers 0, 4, 8 ... have no window. */
static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    double base = (double)hp->rope_base;
    int64_t local = hp->rope_dim;
    enum pp_gguf_type type;
    size_t n;
    (void)err;
    if (!hp->window)
        return PP_OK;
    if (!pp_gguf_array(g, "laguna.attention.sliding_window_pattern", &type, &n))
        for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS; l++)
            hp->layer[l] = (uint8_t)((hp->layer[l] & ~PP_LAYER_WIDE) | (l % 4 ? 0 : PP_LAYER_WIDE));
    pp_gguf_float(g, "laguna.rope.freq_base_swa", &base);
    pp_gguf_int(g, "laguna.rope.dimension_count_swa", &local);
    hp->rope_base_local = (float)base;
    hp->rope_dim_local = local;
    if (hp->window)
        pp_layers_local_rope(hp);
    return PP_OK;
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    if (hp->window)
        pp_gguf_add_f32(w, "laguna.rope.freq_base_swa", hp->rope_base_local);
}

const struct pp_arch pp_arch_laguna = {
    .name = "laguna",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .gguf_default_sigmoids = true,
    .layer_pattern = 4,
    .pattern_from_first = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD, .gated_attention = true, .softplus_gates = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
