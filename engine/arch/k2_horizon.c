/* k2_horizon.c - K2 Horizon (0.9B, 7B, 36B-A4B; transformers, models/k2_horizon): Llama whose norms of the stream are
 * by groups, each with its own mean square. Layers with experts (DeepSeek V3's, with sigmoids and a bias for the
 * choice) have experts for values as well (MoVA, decoder_head_mixture.c); heads may have norms with a vector for each,
 * and attention may be gated. Partly rotated heads are refused, as programs do not agree on them. */
#include <cjson/cJSON.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"
#include "engine/source.h"

#define LAYER "model.layers.{}."

static const struct pp_arch_name names[] = {
    {.hf = LAYER "self_attn.q_norm", .gguf = "blk.{}.attn_q_norm"},
    {.hf = LAYER "self_attn.k_norm", .gguf = "blk.{}.attn_k_norm"},
    {.hf = LAYER "self_attn.gate_proj", .gguf = "blk.{}.attn_gate"},
    {.hf = LAYER "self_attn.v_router", .gguf = "blk.{}.attn_v_gate"},
    {.hf = LAYER "self_attn.v_experts.{}", .gguf = "blk.{}.attn_v.{}"},
    {.hf = LAYER "self_attn.v_experts", .gguf = "blk.{}.attn_v_exps", .mlx = true},
    {.hf = LAYER "mlp.gate.bias", .gguf = "blk.{}.exp_probs_b.bias", .whole = true},
    {.hf = NULL},
};
static const char *const classes[] = {"K2HorizonForCausalLM", "k2_horizon", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 64256, \"hidden_size\": 1536, \"intermediate_size\": 5120, \"num_hidden_layers\": 28,"
             "\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"head_dim\": 64, \"rms_norm_eps\": 1e-6,"
             "\"max_position_embeddings\": 131072, \"rope_theta\": 1000000, \"layernorm_num_groups\": 1,"
             "\"num_experts_per_tok\": 8, \"moe_intermediate_size\": 768, \"mova_num_experts_per_tok\": 4,"
             "\"norm_topk_prob\": true}"},
    {.json = NULL},
};
static const struct pp_expert_keys expert_keys = {
    .n = "num_experts", .n_used = "num_experts_per_tok", .n_ff = "moe_intermediate_size",
    .n_shared = "num_shared_experts", .norm_topk = "norm_topk_prob", .scale = "router_scaling_factor"};
static const char *const scores[] = {"sigmoid", "softmax", NULL};
static const char groups_key[] = "k2-horizon.attention.group_norm_groups";
static const char values_key[] = "k2-horizon.attention.value_expert_count";
static const char used_key[] = "k2-horizon.attention.value_expert_used_count";

static enum pp_code finish(struct pp_hparams *hp, int64_t n, struct pp_error *err)
{
    if (n < 1 || n > hp->n_embd || hp->n_embd % n != 0)
        return pp_fail(err, PP_ERR_FORMAT, "the model normalises %lld values in %lld groups, which is impossible",
                       (long long)hp->n_embd, (long long)n);
    hp->norm_groups = n > 1 ? n : 0;
    hp->flat_head_norms = hp->qk_norm;
    if (!hp->n_expert) { /* only layers with experts have experts for values */
        hp->n_value_expert = hp->n_value_expert_used = 0;
        hp->expert_no_renorm = hp->expert_sigmoids = false;
    }
    if (hp->n_value_expert && hp->expert_no_renorm) /* implementations disagree on normalising these weights */
        return pp_fail(err, PP_ERR_UNSUPPORTED, "experts of values whose weights do not add up to 1 are not supported");
    return PP_OK;
}

/* --- config.json -------------------------------------------------------------------------------------------------- */

static enum pp_code refuse_others(const cJSON *config, const struct pp_hparams *hp, struct pp_error *err)
{
    static const char *const gates[] = {"softplus", NULL};
    int64_t rotated = hp->head_dim;
    enum pp_code code = PP_OK;
    if (pp_config_flag(config, "use_sliding_window", false))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: use_sliding_window is true, which is not supported for "
                       "this family");
    code = pp_config_word(config, "attention_gate_func", gates, err);
    if (!code)
        code = pp_config_int(config, "rope_head_dim", &rotated, err);
    if (!code && rotated != hp->head_dim)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: rope_head_dim is %lld, and heads have %lld values; only "
                       "all are supported", (long long)rotated, (long long)hp->head_dim);
    return code ? code : pp_config_activation(config, "hidden_act", pp_silu_names, err);
}

/* Layers without experts must come first: GGUF files cannot express another order. */
static enum pp_code read_dense(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t n = 0;
    enum pp_code code = pp_config_qwen_dense(config, hp, err);
    if (!code)
        code = pp_config_int(config, "num_dense_layers", &n, err);
    for (int64_t l = 0; l < n && l < PP_MAX_LAYERS; l++)
        hp->layer[l] |= PP_LAYER_DENSE;
    for (int64_t l = 1; !code && l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        if (hp->layer[l] & PP_LAYER_DENSE && !(hp->layer[l - 1] & PP_LAYER_DENSE))
            code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: layer %lld has no experts but follows a layer with "
                                                    "experts, which is not supported for this family", (long long)l);
    return code;
}

static enum pp_code read_experts(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *score = pp_json_member(config, "router_score_func");
    enum pp_code code = pp_config_int(config, "num_experts", &hp->n_expert, err);
    hp->expert_sigmoids = !cJSON_IsString(score) || strcmp(score->valuestring, scores[0]) == 0;
    if (code || !hp->n_expert)
        return code;
    code = pp_config_word(config, "router_score_func", scores, err);
    if (!code)
        code = pp_config_experts(config, &expert_keys, hp, err);
    if (!code)
        code = pp_config_int(config, "mova_num_experts", &hp->n_value_expert, err);
    if (!code && hp->n_value_expert)
        code = pp_config_int(config, "mova_num_experts_per_tok", &hp->n_value_expert_used, err);
    return code ? code : read_dense(config, hp, err);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t n = 1;
    enum pp_code code = refuse_others(config, hp, err);
    if (!code)
        code = read_experts(config, hp, err);
    if (!code)
        code = pp_config_int(config, "layernorm_num_groups", &n, err);
    hp->qk_norm = pp_config_flag(config, "query_key_norm", false);
    hp->binary_gates = cJSON_IsString(pp_json_member(config, "attention_gate_func"));
    return code ? code : finish(hp, n, err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put(config, "layernorm_num_groups", hp->norm_groups ? hp->norm_groups : 1);
    pp_config_put(config, "rope_head_dim", hp->head_dim);
    cJSON_AddBoolToObject(config, "query_key_norm", hp->qk_norm);
    if (hp->binary_gates)
        pp_config_put_text(config, "attention_gate_func", "softplus");
    if (!hp->n_expert)
        return;
    pp_config_put_experts(hp, &expert_keys, config);
    pp_config_put_qwen_dense(hp, config);
    pp_config_put_text(config, "router_score_func", scores[hp->expert_sigmoids ? 0 : 1]);
    pp_config_put(config, "mova_num_experts", hp->n_value_expert);
    pp_config_put(config, "mova_num_experts_per_tok", hp->n_value_expert_used);
}

/* --- GGUF --------------------------------------------------------------------------------------------------------- */

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t n = 0;
    pp_gguf_int(g, groups_key, &n);
    pp_gguf_int(g, values_key, &hp->n_value_expert);
    pp_gguf_int(g, used_key, &hp->n_value_expert_used);
    hp->qk_norm = pp_gguf_tensor(g, "blk.0.attn_q_norm.weight") != NULL;
    hp->binary_gates = pp_gguf_tensor(g, "blk.0.attn_gate.weight") != NULL;
    return finish(hp, n ? n : 1, err);
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_gguf_add_u32(w, groups_key, (uint32_t)(hp->norm_groups ? hp->norm_groups : 1));
    if (hp->n_expert)
        pp_gguf_add_u32(w, "k2-horizon.moe_every_n_layers", 1);
    if (!hp->n_value_expert)
        return;
    pp_gguf_add_u32(w, values_key, (uint32_t)hp->n_value_expert);
    pp_gguf_add_u32(w, used_key, (uint32_t)hp->n_value_expert_used);
}

const struct pp_arch pp_arch_k2_horizon = {
    .name = "k2-horizon",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .gguf_default_no_renorm = true,
    .gguf_default_sigmoids = true,
    .decoder = {.qk_norm = PP_QK_OPTIONAL},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
