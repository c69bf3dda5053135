/* ling3.c - Ling 3 and Ring 3 (inclusionAI): Kimi Linear's delta rule in most layers, with bounded decays and single
 * matrices in place of its low-rank pairs; in the last layer of each group, and in layers after the last whole group,
 * latent attention with a gate for each head; DeepSeek V3's experts. */
#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"
#include "engine/hparams_int.h"

#define ATTENTION "model.layers.{}.attention."
#define TAPS(letter)                                                                                                  \
    {.hf = ATTENTION letter "_conv1d.weight", .gguf = "blk.{}.ssm_conv1d_" letter ".weight", .whole = true,            \
     .form = PP_HF_CONV_3D}

static const struct pp_arch_name names[] = {
    {.hf = "model.word_embeddings", .gguf = "token_embd"},
    {.hf = ATTENTION "q_proj", .gguf = "blk.{}.attn_q"},
    {.hf = ATTENTION "k_proj", .gguf = "blk.{}.attn_k"},
    {.hf = ATTENTION "v_proj", .gguf = "blk.{}.attn_v"},
    TAPS("q"),
    TAPS("k"),
    TAPS("v"),
    {.hf = ATTENTION "f_proj", .gguf = "blk.{}.ssm_f_a"},
    {.hf = ATTENTION "g_proj", .gguf = "blk.{}.ssm_g_a", .recurrent = true},
    {.hf = ATTENTION "g_proj", .gguf = "blk.{}.attn_gate"},
    {.hf = ATTENTION "b_proj", .gguf = "blk.{}.ssm_beta"},
    {.hf = ATTENTION "A_log", .gguf = "blk.{}.ssm_a", .form = PP_HF_EXP_4D, .whole = true},
    {.hf = ATTENTION "dt_bias", .gguf = "blk.{}.ssm_dt.bias", .whole = true},
    {.hf = ATTENTION "o_norm", .gguf = "blk.{}.ssm_norm"},
    {.hf = ATTENTION "o_proj", .gguf = "blk.{}.attn_output", .recurrent = true},
    {.hf = ATTENTION "dense", .gguf = "blk.{}.attn_output"},
    {.hf = ATTENTION "q_a_proj", .gguf = "blk.{}.attn_q_a"},
    {.hf = ATTENTION "q_a_layernorm", .gguf = "blk.{}.attn_q_a_norm"},
    {.hf = ATTENTION "q_b_proj", .gguf = "blk.{}.attn_q_b"},
    {.hf = ATTENTION "kv_a_proj_with_mqa", .gguf = "blk.{}.attn_kv_a_mqa"},
    {.hf = ATTENTION "kv_a_layernorm", .gguf = "blk.{}.attn_kv_a_norm"},
    {.hf = ATTENTION "kv_b_proj", .gguf = "blk.{}.attn_kv_b"},
    {.hf = "model.layers.{}.mlp.gate.expert_bias", .gguf = "blk.{}.exp_probs_b.bias", .whole = true},
    {.hf = NULL},
};
static const char *const classes[] = {"BailingMoeV3ForCausalLM", "bailing_hybrid", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64, \"v_head_dim\": 128,"
             "\"head_dim\": 128, \"kda_safe_gate\": true, \"kda_lower_bound\": -5.0, \"short_conv_kernel_size\": 4,"
             "\"norm_topk_prob\": true, \"num_shared_experts\": 1, \"routed_scaling_factor\": 1.0}"},
    {.json = NULL},
};
const struct pp_expert_keys pp_ling_expert_keys = {
    .n = "num_experts", .n_used = "num_experts_per_tok", .n_ff = "moe_intermediate_size", .n_groups = "n_group",
    .n_groups_used = "topk_group", .n_shared = "num_shared_experts",
    .shared_n_ff = "moe_shared_expert_intermediate_size", .n_dense = "first_k_dense_replace",
    .norm_topk = "norm_topk_prob", .scale = "routed_scaling_factor"};

/* Fixed properties: one square state for each head, bounded decays. */
static enum pp_code set_states(struct pp_hparams *hp, int64_t head_dim, float bound, struct pp_error *err)
{
    if (!(bound < 0 && isfinite(bound)))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the bound of decays is %g; only models with one below 0 are supported",
                       (double)bound);
    hp->kda = hp->per_head_gates = true;
    hp->n_state_head = hp->n_state_key_head = hp->n_head;
    hp->state_key_dim = hp->state_value_dim = head_dim;
    hp->decay_bound = bound;
    hp->attn_scale = 1.0f / sqrtf((float)(hp->qk_nope_dim + hp->rope_dim));
    return PP_OK;
}

static bool is_attention(int64_t l, int64_t group, int64_t n_layer)
{
    return (l + 1) % group == 0 || l >= n_layer / group * group;
}

int64_t pp_ling_group(const struct pp_hparams *hp)
{
    int64_t l = 0;
    while (l < hp->n_layer && hp->layer[l] & PP_LAYER_RECURRENT)
        l++;
    return l + 1;
}

enum pp_code pp_ling_check_groups(const struct pp_hparams *hp, struct pp_error *err)
{
    const int64_t group = pp_ling_group(hp);
    for (int64_t l = 0; l < hp->n_layer; l++)
        if (is_attention(l, group, hp->n_layer) != !(hp->layer[l] & PP_LAYER_RECURRENT))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "layer %lld %s attention, unlike what groups of %lld layers have, "
                           "which is not supported", (long long)l,
                           hp->layer[l] & PP_LAYER_RECURRENT ? "has no" : "has", (long long)group);
    return PP_OK;
}

enum pp_code pp_ling_check_rope(const struct pp_hparams *hp, struct pp_error *err)
{
    if (hp->rope_scaling == PP_ROPE_NONE)
        return PP_OK;
    return pp_fail(err, PP_ERR_UNSUPPORTED, "RoPE scaling is not supported in models of this family");
}

enum pp_code pp_ling_groups_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t group = 0;
    enum pp_code code = pp_config_int(config, "layer_group_size", &group, err);
    if (!code)
        code = pp_check_range("number of layers in a group (layer_group_size)", group, 1, hp->n_layer, err);
    for (int64_t l = 0; !code && l < hp->n_layer; l++)
        hp->layer[l] |= is_attention(l, group, hp->n_layer) ? 0 : PP_LAYER_RECURRENT;
    return code;
}

/* --- config.json ------------------------------------------------------------------------------------------------- */

/* Bounds of gates by layer, of experts and of the shared expert; null and 0: none. */
static void bounds_from(const cJSON *config, const char *key, const struct pp_hparams *hp, float *bounds)
{
    const cJSON *list = pp_json_member(config, key);
    for (int l = 0; l < (int)hp->n_layer; l++) {
        const double v = cJSON_GetNumberValue(cJSON_GetArrayItem(list, l));
        bounds[l] = v > 0 && !(hp->layer[l] & PP_LAYER_DENSE) ? (float)v : 0.0f;
    }
}

static bool is_set(const cJSON *config, const char *key)
{
    const cJSON *item = pp_json_member(config, key);
    return cJSON_IsTrue(item) || (cJSON_IsNumber(item) && item->valuedouble != 0);
}

/* Refuses settings that no published model has. */
static enum pp_code check_words(const cJSON *config, struct pp_error *err)
{
    static const char gates[] = "gated_attention_proj_granularity_type";
    static const char *const absent[] = {"use_mla_nope", "use_nGPT", "value_norm", "up_proj_norm", "use_bias",
                                         "use_qkv_bias", "scale_router_input", "pregate_inference",
                                         "num_kv_heads_for_linear_attn"};
    const char *of_heads = cJSON_GetStringValue(pp_json_member(config, gates));
    const char *score = cJSON_GetStringValue(pp_json_member(config, "score_function"));
    if (!pp_config_flag(config, "no_kda_lora", false) || !pp_config_flag(config, "kda_safe_gate", true))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: no_kda_lora and kda_safe_gate are not both true, as they "
                       "are in the models of Ling 3; those of Ling 2.5, which have the same type, say that they are "
                       "BailingMoeV2_5ForCausalLM (architectures)");
    if (!of_heads || strcmp(of_heads, "head_wise") != 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s is not \"head_wise\"; other gates of attention are "
                       "not supported", gates);
    if (score && strcmp(score, "sigmoid") != 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: score_function \"%.40s\" is not supported; sigmoid is",
                       score);
    if (!pp_config_flag(config, "rope_interleave", true))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: rope_interleave is false, which is not supported");
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        if (is_set(config, absent[i]))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s is set, which is not supported", absent[i]);
    return pp_config_activation(config, "hidden_act", pp_silu_names, err);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const int64_t head_dim = hp->head_dim;
    float bound = 0;
    enum pp_code code = check_words(config, err);
    if (!code)
        code = pp_ling_check_rope(hp, err);
    if (!code)
        code = pp_latent_from_config(config, hp, err);
    if (!code)
        code = pp_ling_groups_from_config(config, hp, err);
    if (!code)
        code = pp_config_int(config, "short_conv_kernel_size", &hp->conv_taps, err);
    if (!code)
        code = pp_config_float(config, "kda_lower_bound", &bound, err);
    if (!code)
        code = set_states(hp, head_dim, bound, err);
    if (!code)
        code = pp_config_experts(config, &pp_ling_expert_keys, hp, err);
    hp->expert_sigmoids = true;
    bounds_from(config, "expert_swiglu_limit_list", hp, hp->expert_bound);
    bounds_from(config, "share_expert_swiglu_limit_list", hp, hp->gate_bound);
    return code;
}

static void put_bounds(const struct pp_hparams *hp, cJSON *config, const char *key, const float *bounds)
{
    bool any = false;
    for (int64_t l = 0; l < hp->n_layer; l++)
        any = any || bounds[l] != 0.0f;
    cJSON *list = any ? cJSON_AddArrayToObject(config, key) : NULL;
    for (int64_t l = 0; l < hp->n_layer && any; l++)
        cJSON_AddItemToArray(list, cJSON_CreateNumber((double)bounds[l]));
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_latent_to_config(hp, config);
    pp_config_put(config, "head_dim", hp->state_key_dim);
    pp_config_put(config, "layer_group_size", pp_ling_group(hp));
    pp_config_put(config, "short_conv_kernel_size", hp->conv_taps);
    pp_config_put_float(config, "kda_lower_bound", hp->decay_bound);
    cJSON_AddTrueToObject(config, "kda_safe_gate");
    cJSON_AddTrueToObject(config, "no_kda_lora");
    cJSON_AddTrueToObject(config, "rope_interleave");
    pp_config_put_text(config, "gated_attention_proj_granularity_type", "head_wise");
    pp_config_put_experts(hp, &pp_ling_expert_keys, config);
    pp_config_put_text(config, "score_function", "sigmoid");
    cJSON_AddTrueToObject(config, "moe_router_enable_expert_bias");
    put_bounds(hp, config, "expert_swiglu_limit_list", hp->expert_bound);
    put_bounds(hp, config, "share_expert_swiglu_limit_list", hp->gate_bound);
}

/* --- GGUF -------------------------------------------------------------------------------------------------------- */

static const char head_key[] = "bailingmoe3.kda.head_dim", taps_key[] = "bailingmoe3.ssm.conv_kernel",
                  bound_key[] = "bailingmoe3.kda.gate_lower_bound", safe_key[] = "bailingmoe3.kda.safe_gate",
                  expert_bounds[] = "bailingmoe3.swiglu_clamp_exp", shared_bounds[] = "bailingmoe3.swiglu_clamp_shexp";

static void bounds_from_gguf(const struct pp_gguf *g, const char *key, const struct pp_hparams *hp, float *bounds)
{
    for (int64_t l = 0; l < hp->n_layer; l++) {
        double v = 0;
        if (!pp_gguf_array_float(g, key, (size_t)l, &v))
            pp_gguf_float(g, key, &v);
        bounds[l] = hp->layer[l] & PP_LAYER_DENSE ? 0.0f : (float)v;
    }
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t head_dim = 0;
    double bound = 0;
    bool safe = true;
    if (!hp->kv_lora_rank || !pp_gguf_int(g, head_key, &head_dim) || !pp_gguf_int(g, taps_key, &hp->conv_taps) ||
        !pp_gguf_float(g, bound_key, &bound))
        return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks %s, %s, %s or bailingmoe3.attention.kv_lora_rank",
                       head_key, taps_key, bound_key);
    pp_gguf_bool(g, safe_key, &safe);
    if (!safe)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "metadata %s is false, which is not supported", safe_key);
    if (pp_ling_check_rope(hp, err) || pp_ling_check_groups(hp, err))
        return err->code;
    bounds_from_gguf(g, expert_bounds, hp, hp->expert_bound);
    bounds_from_gguf(g, shared_bounds, hp, hp->gate_bound);
    return set_states(hp, head_dim, (float)bound, err);
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_gguf_add_u32(w, head_key, (uint32_t)hp->state_key_dim);
    pp_gguf_add_u32(w, taps_key, (uint32_t)hp->conv_taps);
    pp_gguf_add_bool(w, safe_key, true);
    pp_gguf_add_f32(w, bound_key, hp->decay_bound);
    pp_gguf_add_f32_array(w, expert_bounds, hp->expert_bound, (size_t)hp->n_layer);
    pp_gguf_add_f32_array(w, shared_bounds, hp->gate_bound, (size_t)hp->n_layer);
}

const struct pp_arch pp_arch_bailingmoe3 = {
    .name = "bailingmoe3",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .hf_pairs = true,
    .gguf_default_no_renorm = true,
    .gguf_default_sigmoids = true,
    .decoder = {.gated_attention = true, .full_rank = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
