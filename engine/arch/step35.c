/* step35.c - Step 3.5 Flash: a window in three of four layers, with more query heads and a RoPE of their own; each
 * head's output is gated by a sigmoid; DeepSeek-V3's routing with a shared expert; gates are bounded in the last
 * layers. */
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

#define LAYER "model.layers.{}."

static const struct pp_arch_name names[] = {
    {.hf = "model.norm", .gguf = "output_norm", .form = PP_HF_PLUS_ONE},
    {.hf = LAYER "input_layernorm", .gguf = "blk.{}.attn_norm", .form = PP_HF_PLUS_ONE},
    {.hf = LAYER "post_attention_layernorm", .gguf = "blk.{}.ffn_norm", .form = PP_HF_PLUS_ONE},
    {.hf = LAYER "self_attn.q_norm", .gguf = "blk.{}.attn_q_norm", .form = PP_HF_PLUS_ONE},
    {.hf = LAYER "self_attn.k_norm", .gguf = "blk.{}.attn_k_norm", .form = PP_HF_PLUS_ONE},
    {.hf = LAYER "self_attn.g_proj", .gguf = "blk.{}.attn_gate"},
    {.hf = LAYER "moe.gate", .gguf = "blk.{}.ffn_gate_inp"},
    {.hf = LAYER "moe.router_bias", .gguf = "blk.{}.exp_probs_b.bias", .whole = true},
    {.hf = LAYER "moe.gate_proj", .gguf = "blk.{}.ffn_gate_exps"},
    {.hf = LAYER "moe.up_proj", .gguf = "blk.{}.ffn_up_exps"},
    {.hf = LAYER "moe.down_proj", .gguf = "blk.{}.ffn_down_exps"},
    {.hf = LAYER "share_expert.gate_proj", .gguf = "blk.{}.ffn_gate_shexp"},
    {.hf = LAYER "share_expert.up_proj", .gguf = "blk.{}.ffn_up_shexp"},
    {.hf = LAYER "share_expert.down_proj", .gguf = "blk.{}.ffn_down_shexp"},
    {.hf = NULL},
};
static const char *const classes[] = {"Step3p5ForCausalLM", "step3p5", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"rms_norm_eps\": 1e-5, \"norm_expert_weight\": true}"},
    {.json = NULL},
};
static const struct pp_expert_keys expert_keys = {
    .n = "moe_num_experts", .n_used = "moe_top_k", .n_ff = "moe_intermediate_size", .norm_topk = "norm_expert_weight",
    .scale = "moe_router_scaling_factor"};

/* --- config.json -------------------------------------------------------------------------------------------------- */

/* Lists have further items for layers of multi-token prediction. */
static enum pp_code list_of(const cJSON *config, const char *key, int64_t n, const cJSON **list, struct pp_error *err)
{
    *list = pp_json_member(config, key);
    if (cJSON_IsArray(*list) && cJSON_GetArraySize(*list) >= n)
        return PP_OK;
    return pp_fail(err, PP_ERR_FORMAT, "config.json: %s does not name %lld layers", key, (long long)n);
}

static enum pp_code windows_from(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *types, *bases, *parts;
    enum pp_code code = list_of(config, "layer_types", hp->n_layer, &types, err);
    if (!code)
        code = list_of(config, "rope_theta", hp->n_layer, &bases, err);
    if (!code)
        code = list_of(config, "partial_rotary_factors", hp->n_layer, &parts, err);
    hp->rope_dim_local = hp->head_dim;
    for (int l = 0; l < (int)hp->n_layer && l < PP_MAX_LAYERS && !code; l++) {
        const char *type = cJSON_GetStringValue(cJSON_GetArrayItem(types, l));
        const bool local = type && strcmp(type, "sliding_attention") == 0;
        const double base = cJSON_GetNumberValue(cJSON_GetArrayItem(bases, l));
        const double part = cJSON_GetNumberValue(cJSON_GetArrayItem(parts, l));
        hp->layer[l] |= local ? 0 : PP_LAYER_WIDE;
        *(local ? &hp->rope_base_local : &hp->rope_base) = (float)base;
        if (part >= 0 && part <= 1)
            *(local ? &hp->rope_dim_local : &hp->rope_dim) = (int64_t)((double)hp->head_dim * part);
    }
    if (!code)
        code = pp_config_window(config, 512, hp, err);
    pp_layers_local_rope(hp);
    return code;
}

/* The sizes of layers with a window. */
static enum pp_code heads_from(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *other = pp_json_member(config, "attention_other_setting");
    enum pp_code code = pp_config_int(config, "num_attention_groups", &hp->n_head_kv, err);
    int64_t n_head = hp->n_head, n_head_kv = hp->n_head_kv;
    if (!code)
        code = pp_config_int(other, "num_attention_heads", &n_head, err);
    if (!code)
        code = pp_config_int(other, "num_attention_groups", &n_head_kv, err);
    if (!code && (n_head < 1 || n_head > 1 << 13 || n_head_kv < 1 || n_head_kv > n_head))
        code = pp_fail(err, PP_ERR_FORMAT, "config.json: layers with a window cannot have %lld heads over %lld",
                       (long long)n_head, (long long)n_head_kv);
    if (code || (n_head == hp->n_head && n_head_kv == hp->n_head_kv))
        return code;
    pp_layers_vary_sizes(hp);
    for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        if (!(hp->layer[l] & PP_LAYER_WIDE)) {
            hp->sizes[l].n_head = (int32_t)n_head;
            hp->sizes[l].n_head_kv = (int32_t)n_head_kv;
        }
    hp->n_head = n_head > hp->n_head ? n_head : hp->n_head;
    hp->n_head_kv = n_head_kv > hp->n_head_kv ? n_head_kv : hp->n_head_kv;
    return PP_OK;
}

/* moe_layers_enum, "3,4,5": the layers with experts; by default all but the first. */
static enum pp_code mixtures_from(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const char *said = cJSON_GetStringValue(pp_json_member(config, "moe_layers_enum"));
    if (!said) {
        hp->layer[0] |= PP_LAYER_DENSE;
        return PP_OK;
    }
    pp_layers_every(hp, 1, PP_LAYER_DENSE);
    for (char *end; *said; said = *end == ',' ? end + 1 : end) {
        const long l = strtol(said, &end, 10);
        if (end == said || l < 0 || l >= hp->n_layer || (*end && *end != ','))
            return pp_fail(err, PP_ERR_FORMAT, "config.json: moe_layers_enum does not name layers");
        hp->layer[l] &= (uint8_t)~PP_LAYER_DENSE;
    }
    return PP_OK;
}

/* null and 0: none. */
static void bounds_from(const cJSON *config, const char *key, int64_t n_layer, float *bounds)
{
    const cJSON *list = pp_json_member(config, key);
    for (int l = 0; l < (int)n_layer && l < PP_MAX_LAYERS; l++) {
        const cJSON *item = cJSON_GetArrayItem(list, l);
        bounds[l] = cJSON_IsNumber(item) ? (float)item->valuedouble : 0.0f;
    }
}

/* Refuses settings that no published model has. */
static enum pp_code check_words(const cJSON *config, struct pp_error *err)
{
    const char *fn = cJSON_GetStringValue(pp_json_member(config, "moe_router_activation"));
    const cJSON *rotated;
    if (fn && strcmp(fn, "sigmoid") != 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: moe_router_activation is not sigmoid, which is not "
                       "supported for this family");
    cJSON_ArrayForEach(rotated, pp_json_member(config, "use_rope_layers"))
        if (cJSON_IsFalse(rotated))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: use_rope_layers has layers that are not rotated, "
                           "which is not supported for this family");
    return PP_OK;
}

/* yarn_only_types: RoPE is scaled in layers of these types only; in all layers if none is listed. */
static enum pp_code check_scaled(const cJSON *config, const struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *types = pp_json_member(config, "yarn_only_types"), *type;
    bool full = false, local = false;
    cJSON_ArrayForEach(type, types)
    {
        const char *word = cJSON_GetStringValue(type);
        full |= word && strcmp(word, "full_attention") == 0;
        local |= word && strcmp(word, "sliding_attention") == 0;
    }
    if (hp->rope_scaling == PP_ROPE_NONE || (full && !local))
        return PP_OK;
    return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: yarn_only_types does not name full_attention alone, and RoPE "
                   "that is scaled in layers with a window is not supported for this family");
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = check_words(config, err);
    if (!code)
        code = check_scaled(config, hp, err);
    if (!code)
        code = pp_config_experts(config, &expert_keys, hp, err);
    hp->expert_sigmoids = hp->per_head_gates = true;
    if (!code && !pp_config_flag(config, "use_head_wise_attn_gate", true))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: use_head_wise_attn_gate is false, which is not "
                       "supported");
    if (!code)
        code = windows_from(config, hp, err);
    if (!code)
        code = heads_from(config, hp, err);
    if (!code)
        code = mixtures_from(config, hp, err);
    bounds_from(config, "swiglu_limits", hp->n_layer, hp->expert_bound);
    bounds_from(config, "swiglu_limits_shared", hp->n_layer, hp->gate_bound);
    return code;
}

static void put_mixtures(const struct pp_hparams *hp, cJSON *config)
{
    struct pp_buf text = {0};
    for (int l = 0; l < (int)hp->n_layer; l++)
        if (!(hp->layer[l] & PP_LAYER_DENSE))
            pp_buf_fmt(&text, "%s%d", text.len ? "," : "", l);
    pp_config_put_text(config, "moe_layers_enum", text.len ? pp_buf_cstr(&text) : "");
    pp_buf_free(&text);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    cJSON *other = cJSON_AddObjectToObject(config, "attention_other_setting"), *base, *parts, *limits, *shared;
    cJSON *full = cJSON_AddArrayToObject(config, "yarn_only_types");
    int64_t wide = 0, local = 0;
    pp_config_put_experts(hp, &expert_keys, config);
    pp_config_put_layer_types(config, hp);
    cJSON_DeleteItemFromObjectCaseSensitive(config, "rope_theta");
    cJSON_DeleteItemFromObjectCaseSensitive(config, "partial_rotary_factor");
    base = cJSON_AddArrayToObject(config, "rope_theta");
    parts = cJSON_AddArrayToObject(config, "partial_rotary_factors");
    limits = cJSON_AddArrayToObject(config, "swiglu_limits");
    shared = cJSON_AddArrayToObject(config, "swiglu_limits_shared");
    for (int64_t l = 0; l < hp->n_layer; l++) {
        const bool is_wide = hp->layer[l] & PP_LAYER_WIDE;
        const int64_t rotated = is_wide ? hp->rope_dim : hp->rope_dim_local;
        *(is_wide ? &wide : &local) = l;
        cJSON_AddItemToArray(base, cJSON_CreateNumber((double)(is_wide ? hp->rope_base : hp->rope_base_local)));
        cJSON_AddItemToArray(parts, cJSON_CreateNumber((double)rotated / (double)hp->head_dim));
        cJSON_AddItemToArray(limits, cJSON_CreateNumber((double)hp->expert_bound[l]));
        cJSON_AddItemToArray(shared, cJSON_CreateNumber((double)hp->gate_bound[l]));
    }
    pp_config_put(config, "num_attention_heads", pp_layer_shape(hp, wide).n_head);
    pp_config_put(config, "num_attention_groups", pp_layer_shape(hp, wide).n_head_kv);
    pp_config_put_text(other, "attention_type", "sliding_attention");
    pp_config_put(other, "num_attention_heads", pp_layer_shape(hp, local).n_head);
    pp_config_put(other, "num_attention_groups", pp_layer_shape(hp, local).n_head_kv);
    pp_config_put(other, "head_dim", hp->head_dim);
    cJSON_AddItemToArray(full, cJSON_CreateString("full_attention"));
    put_mixtures(hp, config);
    pp_config_put(config, "share_expert_dim", hp->n_ff_shared);
    pp_config_put_text(config, "moe_router_activation", "sigmoid");
    cJSON_AddTrueToObject(config, "use_moe_router_bias");
    cJSON_AddTrueToObject(config, "use_qk_norm");
    cJSON_AddTrueToObject(config, "use_head_wise_attn_gate");
}

/* --- GGUF --------------------------------------------------------------------------------------------------------- */

static void bounds_from_gguf(const struct pp_gguf *g, const char *key, int64_t n_layer, float *bounds)
{
    for (int64_t l = 0; l < n_layer && l < PP_MAX_LAYERS; l++) {
        double v = 0;
        pp_gguf_array_float(g, key, (size_t)l, &v);
        bounds[l] = (float)v;
    }
}

/* rope.dimension_count is that of layers with a window; the others rotate half as many. */
static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    double base = (double)hp->rope_base;
    (void)err;
    pp_gguf_float(g, "step35.rope.freq_base_swa", &base);
    hp->rope_base_local = (float)base;
    hp->rope_dim_local = hp->rope_dim;
    hp->rope_dim /= 2;
    bounds_from_gguf(g, "step35.swiglu_clamp_exp", hp->n_layer, hp->expert_bound);
    bounds_from_gguf(g, "step35.swiglu_clamp_shexp", hp->n_layer, hp->gate_bound);
    pp_layers_local_rope(hp);
    return PP_OK;
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_gguf_add_f32(w, "step35.rope.freq_base_swa", hp->rope_base_local);
    pp_gguf_add_f32_array(w, "step35.swiglu_clamp_exp", hp->expert_bound, (size_t)hp->n_layer);
    pp_gguf_add_f32_array(w, "step35.swiglu_clamp_shexp", hp->gate_bound, (size_t)hp->n_layer);
}

const struct pp_arch pp_arch_step35 = {
    .name = "step35",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .gguf_default_no_renorm = true,
    .gguf_default_sigmoids = true,
    .gguf_doubles_rope = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD, .gated_attention = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
