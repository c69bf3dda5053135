/* kimi_linear.c - Kimi Linear (arXiv 2510.26692): in three of four layers Kimi delta attention, a delta rule with a
 * decay for each row of a state; in the fourth latent attention without positions; DeepSeek V3's experts in all but
 * the first layers. And Kimi K3, with bounded decays, gated latent attention, narrower experts, and attention
 * residuals (decoder.c); its configurations have the same model_type. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"
#include "engine/hparams_int.h"

#define ATTENTION "model.layers.{}.self_attn."
#define EXPERTS "model.layers.{}.block_sparse_moe."
#define MLX "model.layers.{}.mlp."
#define TAPS(letter)                                                                                                  \
    {.hf = ATTENTION letter "_conv.conv.weight", .gguf = "blk.{}.ssm_conv1d_" letter ".weight", .whole = true,         \
     .form = PP_HF_CONV_3D, .mlx = true},                                                                             \
    {.hf = ATTENTION letter "_conv1d.weight", .gguf = "blk.{}.ssm_conv1d_" letter ".weight", .whole = true,            \
     .form = PP_HF_CONV_3D}
#define MIXTURE                                                                                                       \
    {.hf = EXPERTS "gate.e_score_correction_bias", .gguf = "blk.{}.exp_probs_b.bias", .whole = true},                 \
    {.hf = EXPERTS "gate", .gguf = "blk.{}.ffn_gate_inp"},                                                            \
    {.hf = EXPERTS "experts.{}.w1", .gguf = "blk.{}.ffn_gate.{}"},                                                    \
    {.hf = EXPERTS "experts.{}.w3", .gguf = "blk.{}.ffn_up.{}"},                                                      \
    {.hf = EXPERTS "experts.{}.w2", .gguf = "blk.{}.ffn_down.{}"},                                                    \
    {.hf = EXPERTS "shared_experts.gate_proj", .gguf = "blk.{}.ffn_gate_shexp"},                                      \
    {.hf = EXPERTS "shared_experts.up_proj", .gguf = "blk.{}.ffn_up_shexp"},                                          \
    {.hf = EXPERTS "shared_experts.down_proj", .gguf = "blk.{}.ffn_down_shexp"}

static const struct pp_arch_name names[] = {
    PP_LATENT_NAMES,
    {.hf = ATTENTION "embed_q", .gguf = "blk.{}.attn_k_b", .mlx = true},
    {.hf = ATTENTION "unembed_out", .gguf = "blk.{}.attn_v_b", .mlx = true},
    TAPS("q"),
    TAPS("k"),
    TAPS("v"),
    PP_KDA_NAMES,
    PP_KDA_GATE_NAMES,
    {.hf = ATTENTION "A_log", .gguf = "blk.{}.ssm_a", .form = PP_HF_MINUS_EXP_4D, .whole = true},
    {.hf = MLX "e_score_correction_bias", .gguf = "blk.{}.exp_probs_b.bias", .whole = true, .mlx = true},
    {.hf = MLX "gate", .gguf = "blk.{}.ffn_gate_inp", .mlx = true},
    {.hf = MLX "shared_experts.gate_proj", .gguf = "blk.{}.ffn_gate_shexp", .mlx = true},
    {.hf = MLX "shared_experts.up_proj", .gguf = "blk.{}.ffn_up_shexp", .mlx = true},
    {.hf = MLX "shared_experts.down_proj", .gguf = "blk.{}.ffn_down_shexp", .mlx = true},
    MIXTURE,
    {.hf = NULL},
};
static const char *const classes[] = {"KimiLinearForCausalLM", "kimi_linear", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64, \"v_head_dim\": 128,"
             "\"moe_renormalize\": true, \"norm_topk_prob\": true, \"routed_scaling_factor\": 1.0}"},
    {.json = NULL},
};
static const struct pp_expert_keys expert_keys = {
    .n = "num_experts", .n_used = "num_experts_per_token", .n_ff = "moe_intermediate_size",
    .n_groups = "num_expert_group", .n_groups_used = "topk_group", .n_shared = "num_shared_experts",
    .n_dense = "first_k_dense_replace", .norm_topk = "moe_renormalize", .scale = "routed_scaling_factor"};

/* transformers' names. */
static const struct pp_expert_keys plain_keys = {
    .n = "n_routed_experts", .n_used = "num_experts_per_tok", .n_ff = "moe_intermediate_size",
    .n_groups = "n_group", .n_groups_used = "topk_group", .n_shared = "n_shared_experts",
    .norm_topk = "norm_topk_prob", .scale = "routed_scaling_factor"};

/* Fixed properties: one square state for each head; no RoPE. */
static void set_states(struct pp_hparams *hp, int64_t head_dim)
{
    hp->kda = true;
    hp->n_state_head = hp->n_state_key_head = hp->n_head;
    hp->state_key_dim = hp->state_value_dim = head_dim;
    hp->attn_scale = 1.0f / sqrtf((float)(hp->qk_nope_dim + hp->rope_dim));
    pp_layers_every(hp, 1, PP_LAYER_UNROTATED);
}

/* --- GGUF -------------------------------------------------------------------------------------------------------- */

static const char head_key[] = "kda.head_dim", taps_key[] = "ssm.conv_kernel";

/* Writes "kimi-linear.kda.head_dim" or the like to the caller's buffer. */
static const char *key_of(const struct pp_hparams *hp, const char *name, char full[80])
{
    snprintf(full, 80, "%s.%s", hp->arch, name);
    return full;
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t head_dim = 0;
    char head[80], taps[80];
    if (!hp->kv_lora_rank || !pp_gguf_int(g, key_of(hp, head_key, head), &head_dim) ||
        !pp_gguf_int(g, key_of(hp, taps_key, taps), &hp->conv_taps))
        return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks %s, %s or %s.attention.kv_lora_rank",
                       key_of(hp, head_key, head), key_of(hp, taps_key, taps), hp->arch);
    set_states(hp, head_dim);
    return PP_OK;
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    char full[80];
    pp_gguf_add_u32(w, key_of(hp, head_key, full), (uint32_t)hp->state_key_dim);
    pp_gguf_add_u32(w, key_of(hp, taps_key, full), (uint32_t)hp->conv_taps);
}

/* --- config.json ------------------------------------------------------------------------------------------------- */

/* Whether it is transformers' format, without linear_attn_config and with other families' keys. */
static bool is_plain(const cJSON *config)
{
    return pp_json_member(config, "linear_head_dim");
}

/* Refuses Kimi K3's configurations, which have the same model_type. */
static enum pp_code check_known(const cJSON *config, const cJSON *states, struct pp_error *err)
{
    static const char *const others[] = {"routed_expert_hidden_size", "gate_lower_bound"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (cJSON_IsNumber(pp_json_member(config, others[i])) ||
            cJSON_IsNumber(pp_json_member(states, others[i])))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s is there, but not attn_res_block_size, which "
                           "is not supported", others[i]);
    if (pp_config_flag(config, "mla_use_output_gate", false) || pp_config_flag(states, "use_full_rank_gate", false))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: there are gates of Kimi K3, but not "
                       "attn_res_block_size, which is not supported");
    if (!pp_config_flag(config, "mla_use_nope", is_plain(config)))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: mla_use_nope is not true, and attention that is rotated "
                       "is not supported in this family");
    return pp_config_activation(config, "hidden_act", pp_silu_names, err);
}

/* Layers are numbered from 1. */
static enum pp_code layers_from_config(const cJSON *states, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *list = pp_json_member(states, "kda_layers"), *item;
    if (!cJSON_IsArray(list))
        return pp_fail(err, PP_ERR_FORMAT, "config.json: linear_attn_config does not list kda_layers");
    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsNumber(item) || !(item->valuedouble >= 1 && item->valuedouble <= (double)hp->n_layer))
            return pp_fail(err, PP_ERR_FORMAT, "config.json: kda_layers lists what is none of %lld layers",
                           (long long)hp->n_layer);
        hp->layer[item->valueint - 1] |= PP_LAYER_RECURRENT;
    }
    return PP_OK;
}

static enum pp_code states_from_config(const cJSON *config, const cJSON *states, struct pp_hparams *hp,
                                       struct pp_error *err)
{
    static const char *const keys[2][3] = {{"num_heads", "head_dim", "short_conv_kernel_size"},
                                           {"linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim"}};
    const bool plain = is_plain(config);
    int64_t n_heads = hp->n_head, head_dim = 0, *const numbers[] = {&n_heads, &head_dim, &hp->conv_taps};
    enum pp_code code = PP_OK;
    for (int i = 0; i < 3 && !code; i++)
        code = pp_config_int(plain ? config : states, keys[plain][i], numbers[i], err);
    if (!code && n_heads != hp->n_head)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %lld heads of states beside %lld of attention are not "
                       "supported", (long long)n_heads, (long long)hp->n_head);
    set_states(hp, head_dim);
    if (!code && plain && cJSON_IsArray(pp_json_member(config, "layer_types")))
        return pp_config_layer_words(config, "layer_types", "linear_attention", "full_attention", PP_LAYER_RECURRENT,
                                     hp, err);
    return code ? code : layers_from_config(states, hp, err);
}

static enum pp_code experts_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const char key[] = "moe_router_activation_func";
    const char *chosen = cJSON_GetStringValue(pp_json_member(config, key));
    int64_t step = 1;
    enum pp_code code = pp_config_experts(config, is_plain(config) ? &plain_keys : &expert_keys, hp, err);
    if (!code)
        code = pp_config_int(config, "moe_layer_freq", &step, err);
    for (int64_t l = 0; step > 0 && l < hp->n_layer; l++)
        hp->layer[l] |= l % step ? PP_LAYER_DENSE : 0;
    hp->expert_sigmoids = !chosen || strcmp(chosen, "sigmoid") == 0;
    if (!code && !hp->expert_sigmoids && strcmp(chosen, "softmax") != 0)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s \"%.40s\" is not supported", key, chosen);
    return code;
}

static enum pp_code sizes_from_config(const cJSON *config, const cJSON *states, struct pp_hparams *hp,
                                      struct pp_error *err)
{
    enum pp_code code = pp_latent_from_config(config, hp, err);
    if (!code && !pp_json_member(config, "max_position_embeddings"))
        code = pp_config_int(config, "model_max_length", &hp->n_ctx_train, err);
    if (!code)
        code = states_from_config(config, states, hp, err);
    if (!code)
        code = experts_from_config(config, hp, err);
    return code ? code : pp_config_mlp_types(config, hp, err);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *states = pp_json_member(config, "linear_attn_config");
    const enum pp_code code = check_known(config, states, err);
    return code ? code : sizes_from_config(config, states, hp, err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    cJSON *states = cJSON_AddObjectToObject(config, "linear_attn_config");
    cJSON *recurrent = cJSON_AddArrayToObject(states, "kda_layers");
    cJSON *attending = cJSON_AddArrayToObject(states, "full_attn_layers");
    for (int64_t l = 0; l < hp->n_layer; l++)
        cJSON_AddItemToArray(hp->layer[l] & PP_LAYER_RECURRENT ? recurrent : attending,
                             cJSON_CreateNumber((double)(l + 1)));
    pp_config_put(states, "num_heads", hp->n_state_head);
    pp_config_put(states, "head_dim", hp->state_key_dim);
    pp_config_put(states, "short_conv_kernel_size", hp->conv_taps);
    pp_latent_to_config(hp, config);
    pp_config_put_experts(hp, &expert_keys, config);
    pp_config_put(config, "moe_layer_freq", 1);
    pp_config_put(config, "model_max_length", hp->n_ctx_train);
    pp_config_put_text(config, "moe_router_activation_func", hp->expert_sigmoids ? "sigmoid" : "softmax");
    cJSON_AddBoolToObject(config, "use_grouped_topk", hp->n_expert_group > 1);
    cJSON_AddTrueToObject(config, "mla_use_nope");
}

const struct pp_arch pp_arch_kimi_linear = {
    .name = "kimi-linear",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .hf_pairs = true,
    .gguf_default_sigmoids = true,
    .attn_res_variant = &pp_arch_kimi_k3,
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};

/* --- Kimi K3 ------------------------------------------------------------------------------------------------------ */

static const struct pp_arch_name k3_names[] = {
    {.hf = "model.layers.{}.self_attention_res_proj", .gguf = "blk.{}.attn_res_score", .form = PP_HF_PRODUCT},
    {.hf = "model.layers.{}.self_attention_res_norm", .gguf = "blk.{}.attn_res_score.ones", .form = PP_HF_PRODUCT},
    {.hf = "model.layers.{}.mlp_res_proj", .gguf = "blk.{}.ffn_res_score", .form = PP_HF_PRODUCT},
    {.hf = "model.layers.{}.mlp_res_norm", .gguf = "blk.{}.ffn_res_score.ones", .form = PP_HF_PRODUCT},
    {.hf = "model.output_attn_res_proj", .gguf = "output_res_score", .form = PP_HF_PRODUCT},
    {.hf = "model.output_attn_res_norm", .gguf = "output_res_score.ones", .form = PP_HF_PRODUCT},
    {.hf = ATTENTION "g_proj", .gguf = "blk.{}.ssm_g", .recurrent = true},
    {.hf = ATTENTION "g_proj", .gguf = "blk.{}.attn_gate"},
    {.hf = ATTENTION "A_log", .gguf = "blk.{}.ssm_a", .form = PP_HF_MINUS_EXP, .whole = true},
    {.hf = EXPERTS "routed_expert_down_proj", .gguf = "blk.{}.ffn_routed_down"},
    {.hf = EXPERTS "routed_expert_up_proj", .gguf = "blk.{}.ffn_routed_up"},
    {.hf = EXPERTS "routed_expert_norm", .gguf = "blk.{}.ffn_routed_norm"},
    PP_LATENT_NAMES,
    TAPS("q"),
    TAPS("k"),
    TAPS("v"),
    PP_KDA_NAMES,
    MIXTURE,
    {.hf = NULL},
};
static const char *const k3_classes[] = {"KimiK3ForCausalLM", NULL};
static const float beta = 4, linear_beta = 25; /* PP_FN_SITU's */

static enum pp_code check_k3(const struct pp_hparams *hp, float first, float second, struct pp_error *err)
{
    if (first != beta || second != linear_beta)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "gates lie between bounds of %g and %g; only %g and %g are supported",
                       (double)first, (double)second, (double)beta, (double)linear_beta);
    if (!(hp->decay_bound < 0 && isfinite(hp->decay_bound)))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the bound of decays is %g; only models with one below 0 are supported",
                       (double)hp->decay_bound);
    return pp_check_range("number of layers to each that is kept (attn_res)", hp->attn_res_block, 1, PP_MAX_LAYERS,
                          err);
}

static enum pp_code k3_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    double first = 0, second = 0, bound = 0;
    const enum pp_code code = from_gguf(g, hp, err);
    pp_gguf_float(g, "kimi-k3.activation.situ_beta", &first);
    pp_gguf_float(g, "kimi-k3.activation.situ_linear_beta", &second);
    pp_gguf_float(g, "kimi-k3.kda.gate_lower_bound", &bound);
    pp_gguf_int(g, "kimi-k3.attn_res.block_size", &hp->attn_res_block);
    if (!pp_gguf_int(g, "kimi-k3.expert_latent_length", &hp->n_embd_expert))
        pp_gguf_int(g, "kimi-k3.moe_latent_size", &hp->n_embd_expert);
    hp->decay_bound = (float)bound;
    return code ? code : check_k3(hp, (float)first, (float)second, err);
}

static void k3_to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    to_gguf(hp, w);
    pp_gguf_add_f32(w, "kimi-k3.activation.situ_beta", beta);
    pp_gguf_add_f32(w, "kimi-k3.activation.situ_linear_beta", linear_beta);
    pp_gguf_add_f32(w, "kimi-k3.kda.gate_lower_bound", hp->decay_bound);
    pp_gguf_add_u32(w, "kimi-k3.attn_res.block_size", (uint32_t)hp->attn_res_block);
    if (hp->n_embd_expert)
        pp_gguf_add_u32(w, "kimi-k3.expert_latent_length", (uint32_t)hp->n_embd_expert);
}

static enum pp_code k3_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const char *const gates[] = {"mla_use_output_gate", "mla_use_nope"};
    const cJSON *states = pp_json_member(config, "linear_attn_config");
    float first = 0, second = 0;
    enum pp_code code = pp_config_flag(states, "use_full_rank_gate", false)
                            ? PP_OK
                            : pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: use_full_rank_gate is not true, which is "
                                      "not supported for Kimi K3");
    for (int i = 0; i < 2 && !code; i++)
        if (!pp_config_flag(config, gates[i], false))
            code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s is not true, which is not supported for Kimi K3",
                           gates[i]);
    if (!code)
        code = pp_config_float(config, "activation_situ_beta", &first, err);
    if (!code)
        code = pp_config_float(config, "activation_situ_linear_beta", &second, err);
    if (!code)
        code = pp_config_float(states, "gate_lower_bound", &hp->decay_bound, err);
    if (!code)
        code = pp_config_int(config, "attn_res_block_size", &hp->attn_res_block, err);
    if (!code)
        code = pp_config_int(config, "routed_expert_hidden_size", &hp->n_embd_expert, err);
    if (!code)
        code = check_k3(hp, first, second, err);
    return code ? code : sizes_from_config(config, states, hp, err);
}

static void k3_to_config(const struct pp_hparams *hp, cJSON *config)
{
    to_config(hp, config);
    cJSON *states = cJSON_GetObjectItemCaseSensitive(config, "linear_attn_config");
    pp_config_put_class(config, "KimiLinearForCausalLM", "kimi_linear");
    pp_config_put_float(states, "gate_lower_bound", hp->decay_bound);
    cJSON_AddTrueToObject(states, "use_full_rank_gate");
    cJSON_AddTrueToObject(config, "mla_use_output_gate");
    cJSON_AddBoolToObject(config, "latent_moe_use_norm", hp->n_embd_expert != 0);
    pp_config_put(config, "attn_res_block_size", hp->attn_res_block);
    pp_config_put_float(config, "activation_situ_beta", beta);
    pp_config_put_float(config, "activation_situ_linear_beta", linear_beta);
    if (hp->n_embd_expert)
        pp_config_put(config, "routed_expert_hidden_size", hp->n_embd_expert);
}

const struct pp_arch pp_arch_kimi_k3 = {
    .name = "kimi-k3",
    .hf_classes = k3_classes,
    .names = k3_names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .hf_pairs = true,
    .gguf_default_no_renorm = true,
    .gguf_default_sigmoids = true,
    .decoder = {.fn = PP_FN_SITU, .gated_attention = true, .full_rank_gates = true},
    .from_config = k3_from_config,
    .from_gguf = k3_from_gguf,
    .to_gguf = k3_to_gguf,
    .to_config = k3_to_config,
};
