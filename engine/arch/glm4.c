/* glm4.c - GLM 4 of 2024 (GGUF: chatglm) and 2025 (glm4): half of each head is rotated, neighbours together, in
 * folders, too; gate and value are one matrix. That of 2025 has norms behind attention and feed-forward part, besides
 * those before them. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/hparams.h"

static const struct pp_arch_name names[] = {
    {.hf = "model.layers.{}.post_self_attn_layernorm", .gguf = "blk.{}.post_attention_norm"},
    {.hf = "model.layers.{}.post_mlp_layernorm", .gguf = "blk.{}.post_ffw_norm"},
    {.hf = "model.layers.{}.mlp.gate_up_proj", .gguf = "blk.{}.ffn_up"},
    {.hf = NULL},
};

static const char *const classes[] = {"Glm4ForCausalLM", "glm4", NULL};
static const struct pp_arch_usual usual[] = {
    {.json = "{\"num_key_value_heads\": 2, \"head_dim\": 128, \"max_position_embeddings\": 131072,"
             "\"rms_norm_eps\": 1.5625e-7, \"partial_rotary_factor\": 0.5}"},
    {.json = NULL},
};

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    (void)hp;
    return pp_config_activation(config, "hidden_act", pp_silu_names, err);
}

/* Its factor is half of a head if nothing is said. */
static void to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    pp_config_put_float(config, "partial_rotary_factor", (float)hp->rope_dim / (float)hp->head_dim);
}

const struct pp_arch pp_arch_glm4 = {
    .name = "glm4",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .usual = usual,
    .hf_pairs = true,
    .decoder = {.post_norm = true, .fused_gate = true},
    .from_config = from_config,
    .to_config = to_config,
};

/* --- of 2024 ---------------------------------------------------------------------------------------------------- */

static const char *const classes1[] = {"GlmForCausalLM", "glm", NULL};

const struct pp_arch pp_arch_chatglm = {
    .name = "chatglm",
    .hf_classes = classes1,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .usual = usual,
    .hf_pairs = true,
    .decoder = {.fused_gate = true},
    .from_config = from_config,
    .to_config = to_config,
};
