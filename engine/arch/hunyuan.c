/* hunyuan.c - Tencent's Hunyuan (transformers, models/hunyuan_v1_dense, hunyuan_v1_moe). Dense models: Llama with
 * norms of the heads of q and k after RoPE; of vision models the language model, for whose text the three or four
 * numbers of a position are equal. Its mixture of experts (A13B), with a shared expert. And HY V3, with these norms
 * before RoPE and DeepSeek-V3's routing. */
#include <cjson/cJSON.h>
#include <math.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

static const struct pp_arch_name names[] = {
    {.hf = "model.layers.{}.self_attn.query_layernorm", .gguf = "blk.{}.attn_q_norm"},
    {.hf = "model.layers.{}.self_attn.key_layernorm", .gguf = "blk.{}.attn_k_norm"},
    {.hf = NULL},
};
static const char *const classes[] = {"HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"rms_norm_eps\": 1e-5}"},
    {.json = NULL},
};

/* NTK-aware scaling with a fixed alpha: the base times alpha^(d / (d - 2)), whatever the length. */
static void enlarge_base(struct pp_hparams *hp, double alpha)
{
    const double dim = (double)hp->head_dim;
    if (hp->head_dim <= 2)
        return; /* pp_hparams_check refuses it */
    hp->rope_base = (float)((double)hp->rope_base * pow(alpha, dim / (dim - 2)));
    hp->rope_scaling = PP_ROPE_NONE;
    hp->rope_factor = 1;
}

static enum pp_code alpha_from_config(const cJSON *config, float *alpha, struct pp_error *err)
{
    const cJSON *rope = pp_json_member(config, "rope_parameters");
    if (!cJSON_IsObject(rope))
        rope = pp_json_member(config, "rope_scaling");
    return pp_config_float(rope, "alpha", alpha, err);
}

/* Its "dynamic" scaling has an alpha, while the factor is unused; such models have a context of 256 Ki tokens. */
static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    float alpha = 0;
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (!code)
        code = alpha_from_config(config, &alpha, err);
    if (!code && alpha > 0 && hp->rope_scaling == PP_ROPE_DYNAMIC) {
        enlarge_base(hp, (double)alpha);
        hp->n_ctx_train = 256 * 1024;
    }
    return code;
}

static void to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    (void)hp, (void)config;
}

const struct pp_arch pp_arch_hunyuan_dense = {
    .name = "hunyuan-dense",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD, .norm_after_rope = true},
    .from_config = from_config,
    .to_config = to_config,
};

/* --- those that see ---------------------------------------------------------------------------------------------- */

static const char *const vl_classes[] = {"HunYuanVLForConditionalGeneration", "hunyuan_vl", "hunyuan_vl_text", NULL};
static const char *const vl_prefixes[] = {"model.language_model.", "model.", NULL};
static const char *const vl_others[] = {"vit.", "visual.", "model.vit.", "model.visual.", NULL};
static const struct pp_arch_parts vl_parts = {
    .model_type = "hunyuan_vl", .prefixes = vl_prefixes, .others = vl_others};

static enum pp_code vl_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    float alpha = 0;
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (!code)
        code = pp_config_int(config, "attention_head_dim", &hp->head_dim, err); /* its former name */
    hp->rope_dim = hp->head_dim;
    if (!code)
        code = alpha_from_config(config, &alpha, err);
    if (!code && alpha > 0)
        enlarge_base(hp, (double)alpha);
    return code;
}

static enum pp_code vl_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    double alpha = 0;
    (void)err;
    if (pp_gguf_float(g, "hunyuan_vl.rope.scaling.alpha", &alpha) && alpha > 0)
        enlarge_base(hp, alpha);
    return PP_OK;
}

const struct pp_arch pp_arch_hunyuan_vl = {
    .name = "hunyuan_vl",
    .hf_classes = vl_classes,
    .parts = &vl_parts,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD, .norm_after_rope = true},
    .from_config = vl_from_config,
    .from_gguf = vl_from_gguf,
    .to_config = to_config,
};

/* --- the mixture ------------------------------------------------------------------------------------------------- */

static const struct pp_arch_name moe_names[] = {
    {.hf = "model.layers.{}.self_attn.query_layernorm", .gguf = "blk.{}.attn_q_norm"},
    {.hf = "model.layers.{}.self_attn.key_layernorm", .gguf = "blk.{}.attn_k_norm"},
    {.hf = "model.layers.{}.mlp.gate.wg", .gguf = "blk.{}.ffn_gate_inp"},
    {.hf = "model.layers.{}.mlp.shared_mlp.gate_proj", .gguf = "blk.{}.ffn_gate_shexp"},
    {.hf = "model.layers.{}.mlp.shared_mlp.up_proj", .gguf = "blk.{}.ffn_up_shexp"},
    {.hf = "model.layers.{}.mlp.shared_mlp.down_proj", .gguf = "blk.{}.ffn_down_shexp"},
    {.hf = NULL},
};
static const char *const moe_classes[] = {"HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe", NULL};
static const struct pp_arch_default moe_defaults[] = {
    {.json = "{\"rms_norm_eps\": 1e-5, \"num_experts\": 1, \"moe_topk\": 1}"},
    {.json = NULL},
};
static const struct pp_expert_keys expert_keys = {
    .n = "num_experts", .n_used = "moe_topk", .n_ff = "moe_intermediate_size", .n_shared = "num_shared_expert"};

static enum pp_code moe_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = from_config(config, hp, err);
    return code ? code : pp_config_experts(config, &expert_keys, hp, err);
}

static void moe_to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    pp_config_put_experts(hp, &expert_keys, config);
    cJSON_AddTrueToObject(config, "use_qk_norm");
}

const struct pp_arch pp_arch_hunyuan_moe = {
    .name = "hunyuan-moe",
    .hf_classes = moe_classes,
    .names = moe_names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .defaults = moe_defaults,
    .gguf_neox = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD, .norm_after_rope = true},
    .from_config = moe_from_config,
    .to_config = moe_to_config,
};

/* --- HY V3 -------------------------------------------------------------------------------------------------------- */

#define MLP "model.layers.{}.mlp."

/* The published folders' names; transformers' own are partly DeepSeek's. */
static const struct pp_arch_name v3_names[] = {
    {.hf = "model.layers.{}.self_attn.q_norm", .gguf = "blk.{}.attn_q_norm"},
    {.hf = "model.layers.{}.self_attn.k_norm", .gguf = "blk.{}.attn_k_norm"},
    {.hf = MLP "router.gate", .gguf = "blk.{}.ffn_gate_inp"},
    {.hf = MLP "expert_bias", .gguf = "blk.{}.exp_probs_b.bias", .whole = true},
    {.hf = MLP "router.expert_bias", .gguf = "blk.{}.exp_probs_b.bias", .whole = true, .read_only = true},
    {.hf = MLP "e_score_correction_bias", .gguf = "blk.{}.exp_probs_b.bias", .whole = true, .read_only = true},
    {.hf = MLP "shared_mlp.gate_proj", .gguf = "blk.{}.ffn_gate_shexp"},
    {.hf = MLP "shared_mlp.up_proj", .gguf = "blk.{}.ffn_up_shexp"},
    {.hf = MLP "shared_mlp.down_proj", .gguf = "blk.{}.ffn_down_shexp"},
    {.hf = MLP "experts.gate_up_proj", .gguf = "blk.{}.ffn_gate_exps.weight", .second = "blk.{}.ffn_up_exps.weight",
     .form = PP_HF_HALVES, .whole = true, .read_only = true},
    {.hf = MLP "experts.down_proj", .gguf = "blk.{}.ffn_down_exps.weight", .whole = true, .read_only = true},
    {.hf = NULL},
};
static const char *const v3_classes[] = {"HYV3ForCausalLM", "hy_v3", NULL};
static const struct pp_arch_default v3_defaults[] = {
    {.json = "{\"num_key_value_heads\": 8, \"head_dim\": 128, \"max_position_embeddings\": 131072,"
             "\"rms_norm_eps\": 1e-5, \"rope_theta\": 11158840.0, \"num_experts\": 192, \"num_experts_per_tok\": 8,"
             "\"num_shared_experts\": 1, \"moe_intermediate_size\": 1536, \"router_scaling_factor\": 2.826,"
             "\"first_k_dense_replace\": 1, \"route_norm\": true}"},
    {.json = NULL},
};
static const struct pp_expert_keys v3_keys = {
    .n = "num_experts", .n_used = "num_experts_per_tok", .n_ff = "moe_intermediate_size",
    .n_shared = "num_shared_experts", .n_dense = "first_k_dense_replace", .norm_topk = "route_norm",
    .scale = "router_scaling_factor"};

static enum pp_code v3_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    hp->expert_sigmoids = pp_config_flag(config, "moe_router_use_sigmoid", true);
    if (!code && !pp_config_flag(config, "qk_norm", true))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: qk_norm is false, which is not supported");
    if (!code)
        code = pp_config_experts(config, &v3_keys, hp, err);
    return code ? code : pp_config_mlp_types(config, hp, err);
}

static void v3_to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put_experts(hp, &v3_keys, config);
    pp_config_put_mlp_types(hp, config);
    pp_config_put(config, "expert_hidden_dim", hp->n_ff_expert);
    cJSON_AddTrueToObject(config, "qk_norm");
    cJSON_AddBoolToObject(config, "moe_router_use_sigmoid", hp->expert_sigmoids);
    cJSON_AddTrueToObject(config, "moe_router_enable_expert_bias");
}

const struct pp_arch pp_arch_hy_v3 = {
    .name = "hy_v3",
    .hf_classes = v3_classes,
    .names = v3_names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .defaults = v3_defaults,
    .gguf_neox = true,
    .gguf_default_no_renorm = true,
    .gguf_default_sigmoids = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD},
    .from_config = v3_from_config,
    .to_config = v3_to_config,
};
