/* hunyuan.c - Hunyuan's dense models: Llama with norms of each head of q and k, behind the rotation; and its mixture of
 * experts (A13B), where every row uses one expert more. */
#include <cjson/cJSON.h>
#include <math.h>

#include "engine/arch/families.h"
#include "engine/hparams.h"

static const struct pp_arch_name names[] = {
    {.hf = "model.layers.{}.self_attn.query_layernorm", .gguf = "blk.{}.attn_q_norm"},
    {.hf = "model.layers.{}.self_attn.key_layernorm", .gguf = "blk.{}.attn_k_norm"},
    {.hf = NULL},
};
static const char *const classes[] = {"HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", NULL};
static const struct pp_arch_usual usual[] = {
    {.json = "{\"rms_norm_eps\": 1e-5}"},
    {.json = NULL},
};

/* What it calls dynamic has, beside a factor of no use, an alpha by which the base is larger at any length; such models
 * read 256 Ki tokens. */
static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *rope = cJSON_GetObjectItemCaseSensitive(config, "rope_parameters");
    float alpha = 0;
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (!cJSON_IsObject(rope))
        rope = cJSON_GetObjectItemCaseSensitive(config, "rope_scaling");
    if (!code)
        code = pp_config_float(rope, "alpha", &alpha, err);
    if (!code && alpha > 0 && hp->rope_scaling == PP_ROPE_DYNAMIC && hp->head_dim > 2) {
        const double dim = (double)hp->head_dim;
        hp->rope_base = (float)((double)hp->rope_base * pow((double)alpha, dim / (dim - 2)));
        hp->rope_scaling = PP_ROPE_NONE;
        hp->rope_factor = 1;
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
    .usual = usual,
    .gguf_neox = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD, .norm_behind_rope = true},
    .from_config = from_config,
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
static const struct pp_arch_usual moe_usual[] = {
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
    .usual = moe_usual,
    .gguf_neox = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD, .norm_behind_rope = true},
    .from_config = moe_from_config,
    .to_config = moe_to_config,
};
