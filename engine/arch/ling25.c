/* ling25.c - Ring linear 2.0 (arXiv 2510.19338) and Ling 2.5 (inclusionAI): layers come in groups, all but the last of
 * a group with lightning attention (arXiv 2401.04658), whose queries and keys are normalised and rotated and whose
 * output is normalised by group of heads. The last has ordinary attention in Ring linear, latent attention in Ling
 * 2.5. Experts are Ling 2.0's. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

#define ATTENTION "model.layers.{}.attention."
#define COMMON_NAMES                                                                                                  \
    {.hf = "model.word_embeddings", .gguf = "token_embd"},                                                            \
    {.hf = ATTENTION "query_key_value", .gguf = "blk.{}.attn_qkv"},                                                   \
    {.hf = ATTENTION "query_layernorm", .gguf = "blk.{}.attn_q_norm"},                                                \
    {.hf = ATTENTION "key_layernorm", .gguf = "blk.{}.attn_k_norm"},                                                  \
    {.hf = ATTENTION "g_proj", .gguf = "blk.{}.attn_gate"},                                                           \
    {.hf = ATTENTION "g_norm", .gguf = "blk.{}.attn_norm_2"},                                                         \
    {.hf = ATTENTION "dense", .gguf = "blk.{}.attn_output"},                                                          \
    {.hf = "model.layers.{}.mlp.gate.expert_bias", .gguf = "blk.{}.exp_probs_b.bias", .whole = true}

static const struct pp_arch_name linear_names[] = {COMMON_NAMES, {.hf = NULL}};
static const struct pp_arch_name hybrid_names[] = {
    COMMON_NAMES,
    {.hf = ATTENTION "q_proj", .gguf = "blk.{}.attn_q"},
    {.hf = ATTENTION "q_a_proj", .gguf = "blk.{}.attn_q_a"},
    {.hf = ATTENTION "q_a_layernorm", .gguf = "blk.{}.attn_q_a_norm"},
    {.hf = ATTENTION "q_b_proj", .gguf = "blk.{}.attn_q_b"},
    {.hf = ATTENTION "kv_a_proj_with_mqa", .gguf = "blk.{}.attn_kv_a_mqa"},
    {.hf = ATTENTION "kv_a_layernorm", .gguf = "blk.{}.attn_kv_a_norm"},
    {.hf = ATTENTION "kv_b_proj", .gguf = "blk.{}.attn_kv_b"},
    {.hf = NULL},
};
static const char *const linear_classes[] = {"BailingMoeLinearV2ForCausalLM", "bailing_moe_linear",
                                             "bailing_moe_linear_v2", NULL};
/* Their model_type bailing_hybrid is also Ling 3's; a folder without a class is taken for Ling 3. */
static const char *const hybrid_classes[] = {"BailingMoeV2_5ForCausalLM", "bailing_moe_v2_5", NULL};
static const struct pp_arch_default linear_defaults[] = {
    {.json = "{\"partial_rotary_factor\": 0.5, \"num_experts_per_tok\": 8, \"norm_topk_prob\": true,"
             "\"group_norm_size\": 1}"},
    {.json = NULL},
};
static const struct pp_arch_default hybrid_defaults[] = {
    {.json = "{\"partial_rotary_factor\": 0.5, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128,"
             "\"qk_rope_head_dim\": 64, \"v_head_dim\": 128, \"num_experts_per_tok\": 8, \"norm_topk_prob\": true,"
             "\"num_shared_experts\": 1, \"group_norm_size\": 1}"},
    {.json = NULL},
};

/* One square state for each head. */
static void set_states(struct pp_hparams *hp, int64_t head_dim)
{
    hp->lightning = true;
    hp->n_state_head = hp->n_state_key_head = hp->n_head;
    hp->state_key_dim = hp->state_value_dim = head_dim;
    if (hp->kv_lora_rank)
        hp->attn_scale = 1.0f / sqrtf((float)(hp->qk_nope_dim + hp->rope_dim));
}

/* state_groups of 0 would stand for MiniMax's variant. */
static enum pp_code check_groups(const struct pp_hparams *hp, struct pp_error *err)
{
    if (hp->state_groups < 1)
        return pp_fail(err, PP_ERR_FORMAT, "the model normalises the output of its states in %lld groups; there must "
                       "be at least 1", (long long)hp->state_groups);
    return pp_ling_check_groups(hp, err);
}

/* --- config.json ------------------------------------------------------------------------------------------------- */

/* Refuses settings that no published model has. */
static enum pp_code check_words(const cJSON *config, struct pp_error *err)
{
    static const char *const absent[] = {"norm_head", "use_low_rank", "use_linear_gqa", "use_mla_nope", "use_nGPT",
                                         "value_norm", "up_proj_norm", "use_sliding_window"};
    const char *rotary = cJSON_GetStringValue(pp_json_member(config, "rotary_type"));
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        if (pp_config_flag(config, absent[i], false))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s is true, which is not supported", absent[i]);
    if (rotary && strcmp(rotary, "full-1d") != 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: rotary_type \"%.40s\" is not supported; full-1d is",
                       rotary);
    if (!pp_config_flag(config, "use_qk_norm", true))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: use_qk_norm is false, which is not supported");
    if (!pp_config_flag(config, "rope_interleave", true))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: rope_interleave is false, which is not supported");
    return pp_config_activation(config, "hidden_act", pp_silu_names, err);
}

static enum pp_code common_from_config(const cJSON *config, int64_t head_dim, struct pp_hparams *hp,
                                       struct pp_error *err)
{
    const char *score = cJSON_GetStringValue(pp_json_member(config, "score_function"));
    enum pp_code code = check_words(config, err);
    hp->state_silu = pp_config_flag(config, "use_linear_silu", pp_config_flag(config, "linear_silu", false));
    hp->state_rotated = pp_config_flag(config, "linear_rope", true);
    if (!code)
        code = pp_config_int(config, "group_norm_size", &hp->state_groups, err);
    if (!code)
        code = pp_ling_groups_from_config(config, hp, err);
    if (!code)
        code = pp_config_experts(config, &pp_ling_expert_keys, hp, err);
    if (!code && score && strcmp(score, "sigmoid") != 0 && strcmp(score, "softmax") != 0)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: score_function \"%.40s\" is not supported; sigmoid and "
                       "softmax are", score);
    hp->expert_sigmoids = !score || strcmp(score, "softmax") != 0;
    set_states(hp, head_dim);
    return code ? code : check_groups(hp, err);
}

static enum pp_code linear_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    return common_from_config(config, hp->head_dim, hp, err);
}

/* Both kinds of layers share one RoPE. */
static enum pp_code hybrid_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const int64_t head_dim = hp->head_dim;
    int64_t rotated = hp->rope_dim;
    enum pp_code code = pp_config_int(config, "rotary_dim", &rotated, err);
    if (!code)
        code = pp_ling_check_rope(hp, err);
    if (!code)
        code = pp_latent_from_config(config, hp, err);
    if (!code)
        code = common_from_config(config, head_dim, hp, err);
    if (!code && hp->state_rotated && rotated != hp->rope_dim)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: lightning attention rotates %lld values of a head and "
                       "latent attention %lld; only as many are supported", (long long)rotated,
                       (long long)hp->rope_dim);
    return code;
}

static void linear_to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put_experts(hp, &pp_ling_expert_keys, config);
    pp_config_put(config, "layer_group_size", pp_ling_group(hp));
    pp_config_put(config, "group_norm_size", hp->state_groups);
    cJSON_AddBoolToObject(config, "linear_silu", hp->state_silu);
    cJSON_AddBoolToObject(config, "linear_rope", hp->state_rotated);
    pp_config_put_text(config, "score_function", hp->expert_sigmoids ? "sigmoid" : "softmax");
    cJSON_AddTrueToObject(config, "use_qk_norm");
    cJSON_AddBoolToObject(config, "moe_router_enable_expert_bias", hp->expert_sigmoids);
}

static void hybrid_to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_latent_to_config(hp, config);
    linear_to_config(hp, config);
    pp_config_put_class(config, hybrid_classes[0], "bailing_hybrid");
    pp_config_put(config, "head_dim", hp->state_key_dim);
    pp_config_put(config, "rotary_dim", hp->rope_dim);
    pp_config_put_float(config, "partial_rotary_factor", (float)hp->rope_dim / (float)hp->state_key_dim);
    cJSON_AddTrueToObject(config, "rope_interleave");
}

/* --- GGUF, as only pippin writes it ------------------------------------------------------------------------------ */

static const char *key_of(const struct pp_hparams *hp, const char *name, char full[128])
{
    snprintf(full, 128, "%s.lightning.%s", hp->arch, name);
    return full;
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    char full[128];
    int64_t head_dim = hp->head_dim;
    hp->two_norms = false;
    hp->state_rotated = true;
    pp_recurrent_from_gguf(g, 8, hp);
    pp_gguf_bool(g, key_of(hp, "silu", full), &hp->state_silu);
    pp_gguf_bool(g, key_of(hp, "rotated", full), &hp->state_rotated);
    if (!pp_gguf_int(g, key_of(hp, "group_count", full), &hp->state_groups) ||
        !pp_gguf_int(g, key_of(hp, "head_dim", full), &head_dim))
        return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks %s.lightning.group_count or %s", hp->arch,
                       key_of(hp, "head_dim", full));
    if (strcmp(hp->arch, "bailing_hybrid") == 0 && !hp->kv_lora_rank)
        return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks %s.attention.kv_lora_rank", hp->arch);
    if (hp->kv_lora_rank && pp_ling_check_rope(hp, err))
        return err->code;
    set_states(hp, head_dim);
    return check_groups(hp, err);
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    char full[128];
    pp_recurrent_to_gguf(hp, w);
    pp_gguf_add_u32(w, key_of(hp, "group_count", full), (uint32_t)hp->state_groups);
    pp_gguf_add_u32(w, key_of(hp, "head_dim", full), (uint32_t)hp->state_key_dim);
    pp_gguf_add_bool(w, key_of(hp, "silu", full), hp->state_silu);
    pp_gguf_add_bool(w, key_of(hp, "rotated", full), hp->state_rotated);
}

const struct pp_arch pp_arch_bailing_linear = {
    .name = "bailing_moe_linear",
    .hf_classes = linear_classes,
    .names = linear_names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .defaults = linear_defaults,
    .gguf_neox = true,
    .gguf_default_no_renorm = true,
    .gguf_default_sigmoids = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD, .fused_qkv = true},
    .from_config = linear_from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = linear_to_config,
};

const struct pp_arch pp_arch_bailing_hybrid = {
    .name = "bailing_hybrid",
    .hf_classes = hybrid_classes,
    .names = hybrid_names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .defaults = hybrid_defaults,
    .hf_pairs = true,
    .gguf_default_no_renorm = true,
    .gguf_default_sigmoids = true,
    .from_config = hybrid_from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = hybrid_to_config,
};
