/* aria.c - the language model of Aria (arXiv 2410.05993): Llama with experts, some of them shared. Folders store the
 * experts' matrices transposed. Only pippin makes GGUF files of it. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/hparams.h"

static const struct pp_arch_name names[] = {
    {.hf = "model.layers.{}.mlp.router", .gguf = "blk.{}.ffn_gate_inp"},
    {.hf = "model.layers.{}.mlp.experts.fc1.weight", .gguf = "blk.{}.ffn_gate_exps.weight",
     .second = "blk.{}.ffn_up_exps.weight", .form = PP_HF_EXPERTS_HALVES, .whole = true},
    {.hf = "model.layers.{}.mlp.experts.fc2.weight", .gguf = "blk.{}.ffn_down_exps.weight",
     .form = PP_HF_EXPERTS_TRANSPOSED, .whole = true},
    {.hf = "model.layers.{}.mlp.shared_experts.gate_proj", .gguf = "blk.{}.ffn_gate_shexp"},
    {.hf = "model.layers.{}.mlp.shared_experts.up_proj", .gguf = "blk.{}.ffn_up_shexp"},
    {.hf = "model.layers.{}.mlp.shared_experts.down_proj", .gguf = "blk.{}.ffn_down_shexp"},
    {.hf = NULL},
};
static const char *const classes[] = {"AriaTextForCausalLM", "aria_text", "aria_moe_lm", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 32000, \"hidden_size\": 4096, \"intermediate_size\": 4096, \"num_hidden_layers\": 32,"
             "\"num_attention_heads\": 32, \"max_position_embeddings\": 2048, \"moe_num_experts\": 8, \"moe_topk\": 2,"
             "\"moe_num_shared_experts\": 2}"},
    {.json = NULL},
};
static const struct pp_expert_keys keys = {.n = "moe_num_experts", .n_used = "moe_topk", .n_ff = "intermediate_size",
                                           .n_shared = "moe_num_shared_experts"};

/* The model's own code has another key for the experts' width. */
static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (!code)
        code = pp_config_experts(config, &keys, hp, err);
    return code ? code : pp_config_int(config, "moe_intermediate_size", &hp->n_ff_expert, err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put_text(config, "hidden_act", "silu");
    pp_config_put_experts(hp, &keys, config);
}

const struct pp_arch pp_arch_aria = {
    .name = "aria_text",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .from_config = from_config,
    .to_config = to_config,
};
