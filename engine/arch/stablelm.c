/* stablelm.c - StableLM 2 and 3B (arXiv 2402.17834): Llama with LayerNorm and a quarter of each head rotated; some
 * have biases of q, k and v, and the 12B norms of q and k with a vector for each head. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/hparams.h"

static const char *const classes[] = {"StableLmForCausalLM", "StableLMEpochForCausalLM", "stablelm", "stablelm_epoch",
                                      NULL};

static const struct pp_arch_name names[] = {
    {.hf = "model.layers.{}.self_attn.q_layernorm.norms.{}", .gguf = "blk.{}.attn_q_norm.{}"},
    {.hf = "model.layers.{}.self_attn.k_layernorm.norms.{}", .gguf = "blk.{}.attn_k_norm.{}"},
    {.hf = NULL},
};

static enum pp_code from_config(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    hp->parallel = pp_config_flag(config, "use_parallel_residual", false);
    float part = -1; /* its former key */
    hp->norm_eps = 1e-5f;
    hp->qk_norm = pp_config_flag(config, "qk_layernorm", false);
    enum pp_code code = pp_config_float(config, "norm_eps", &hp->norm_eps, err);
    if (!code)
        code = pp_config_float(config, "layer_norm_eps", &hp->norm_eps, err);
    if (!code)
        code = pp_config_float(config, "rope_pct", &part, err);
    if (!code && part >= 0 && part <= 1)
        hp->rope_dim = (int64_t)((float)hp->head_dim * part);
    return code ? code : pp_config_activation(config, "hidden_act", pp_silu_names, err);
}

static void to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    cJSON_AddBoolToObject(config, "use_parallel_residual", hp->parallel);
    cJSON_AddBoolToObject(config, "qk_layernorm", hp->qk_norm);
    cJSON_AddBoolToObject(config, "use_qkv_bias", cJSON_IsTrue(pp_json_member(config, "attention_bias")));
}

static const struct pp_arch_default defaults[] = {
    {.json = "{\"partial_rotary_factor\": 0.25, \"max_position_embeddings\": 4096, \"num_key_value_heads\": 32}"},
    {.json = NULL},
};

const struct pp_arch pp_arch_stablelm = {
    .name = "stablelm",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .decoder = {.layer_norm = true, .norm_bias = true, .qk_norm = PP_QK_OPTIONAL},
    .from_config = from_config,
    .defaults = defaults,
    .gguf_has_parallel_key = true,
    .to_config = to_config,
    .hf_eps = "layer_norm_eps",
};
