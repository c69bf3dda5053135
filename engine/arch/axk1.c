/* axk1.c - A.X K1 (SK Telecom): DeepSeek V3 with a post-norm for the output of the experts (transformers,
 * models/axk1). Only pippin makes GGUF files of it. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"

static const struct pp_arch_name names[] = {
    {.hf = "model.layers.{}.post_mlp_layernorm", .gguf = "blk.{}.post_ffw_norm"},
    {.hf = "model.layers.{}.mlp.post_mlp_layernorm", .gguf = "blk.{}.post_ffw_norm", .read_only = true},
    {.hf = "model.layers.{}.mlp.experts.gate_up_proj", .gguf = "blk.{}.ffn_gate_exps.weight",
     .second = "blk.{}.ffn_up_exps.weight", .form = PP_HF_HALVES, .whole = true, .read_only = true},
    {.hf = "model.layers.{}.mlp.experts.down_proj", .gguf = "blk.{}.ffn_down_exps.weight", .whole = true,
     .read_only = true},
    PP_LATENT_NAMES,
    {.hf = NULL},
};
static const char *const classes[] = {"AXK1ForCausalLM", "axk1", "AXK1", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 163840, \"hidden_size\": 7168, \"intermediate_size\": 18432, \"num_hidden_layers\": 61,"
             "\"num_attention_heads\": 64, \"max_position_embeddings\": 32768, \"q_lora_rank\": 1536,"
             "\"kv_lora_rank\": 512, \"qk_rope_head_dim\": 64, \"qk_nope_head_dim\": 128, \"v_head_dim\": 128,"
             "\"n_routed_experts\": 192, \"n_shared_experts\": 1, \"num_experts_per_tok\": 8,"
             "\"moe_intermediate_size\": 2048, \"first_k_dense_replace\": 1, \"routed_scaling_factor\": 2.5,"
             "\"norm_topk_prob\": true, \"n_group\": 8, \"topk_group\": 4}"},
    {.json = NULL},
};

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_deepseek_to_config(hp, config);
    pp_config_put_class(config, classes[0], "AXK1");
}

const struct pp_arch pp_arch_axk1 = {
    .name = "axk1",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .hf_pairs = true,
    .gguf_default_no_renorm = true,
    .defaults = defaults,
    .decoder = {.experts_post_norm = true},
    .from_config = pp_deepseek_from_config,
    .from_gguf = pp_deepseek_from_gguf,
    .to_gguf = pp_deepseek_to_gguf,
    .to_config = to_config,
};
