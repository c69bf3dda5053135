/* olmoe.c - OLMoE (arXiv 2409.02060): experts weighted by the softmax over all of them, and norms over all queries and
 * over all keys. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/hparams.h"

static const struct pp_arch_name names[] = {
    {.hf = "model.layers.{}.self_attn.q_norm", .gguf = "blk.{}.attn_q_norm"},
    {.hf = "model.layers.{}.self_attn.k_norm", .gguf = "blk.{}.attn_k_norm"},
    {.hf = NULL},
};
static const char *const classes[] = {"OlmoeForCausalLM", "olmoe", NULL};
static const struct pp_expert_keys expert_keys = {
    .n = "num_experts", .n_used = "num_experts_per_tok", .n_ff = "intermediate_size", .norm_topk = "norm_topk_prob"};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-5, \"num_experts_per_tok\": 8}"},
    {.json = NULL},
};

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (!code)
        code = pp_config_float(config, "clip_qkv", &hp->qkv_clamp, err);
    hp->n_expert = 64;
    if (!code) /* transformers 5's key */
        code = pp_config_int(config, "num_local_experts", &hp->n_expert, err);
    return code ? code : pp_config_experts(config, &expert_keys, hp, err);
}

static void to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    pp_config_put_experts(hp, &expert_keys, config);
    if (hp->qkv_clamp != 0.0f)
        pp_config_put_float(config, "clip_qkv", hp->qkv_clamp);
}

const struct pp_arch pp_arch_olmoe = {
    .name = "olmoe",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .gguf_default_no_renorm = true,
    .decoder = {.qk_norm = PP_QK_WHOLE},
    .from_config = from_config,
    .to_config = to_config,
};
