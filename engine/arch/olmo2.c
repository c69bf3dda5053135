/* olmo2.c - OLMo 2 (arXiv 2501.00656): norms behind attention and feed-forward part instead of before them, and of all
 * queries and all keys together. */
#include "engine/arch/families.h"
#include "engine/hparams.h"

static const struct pp_arch_name names[] = {
    {.hf = "model.layers.{}.post_attention_layernorm", .gguf = "blk.{}.post_attention_norm"},
    {.hf = "model.layers.{}.post_feedforward_layernorm", .gguf = "blk.{}.post_ffw_norm"},
    {.hf = "model.layers.{}.self_attn.q_norm", .gguf = "blk.{}.attn_q_norm"},
    {.hf = "model.layers.{}.self_attn.k_norm", .gguf = "blk.{}.attn_k_norm"},
    {.hf = NULL},
};

static const char *const classes[] = {"Olmo2ForCausalLM", "olmo2", NULL};

static enum pp_code from_config(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    (void)hp;
    return pp_config_activation(config, "hidden_act", pp_silu_names, err);
}

const struct pp_arch pp_arch_olmo2 = {
    .name = "olmo2",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .decoder = {.no_pre_norm = true, .post_norm = true, .qk_norm = PP_QK_WHOLE},
    .from_config = from_config,
    .to_config = pp_config_put_nothing,
};
