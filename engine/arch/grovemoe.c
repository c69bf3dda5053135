/* grovemoe.c - Grove MoE (arXiv 2508.07785): Qwen 3's mixture with adjugate experts: each group of neighbouring
 * experts shares a small one that reads the same input, weighted by the sum of their weights times a constant. This
 * constant and the groups' size are not in config.json but in modeling_grove_moe.py. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

#define LAYER "model.layers.{}."

static const struct pp_arch_name names[] = {
    {.hf = LAYER "self_attn.q_norm", .gguf = "blk.{}.attn_q_norm"},
    {.hf = LAYER "self_attn.k_norm", .gguf = "blk.{}.attn_k_norm"},
    {.hf = LAYER "mlp.chunk_experts.{}.gate_proj", .gguf = "blk.{}.ffn_gate_ch.{}"},
    {.hf = LAYER "mlp.chunk_experts.{}.up_proj", .gguf = "blk.{}.ffn_up_ch.{}"},
    {.hf = LAYER "mlp.chunk_experts.{}.down_proj", .gguf = "blk.{}.ffn_down_ch.{}"},
    {.hf = NULL},
};

/* expert_bias is not used for choosing experts. */
static const char *const ignored[] = {".rotary_emb.inv_freq", ".mlp.expert_bias", NULL};
static const char *const classes[] = {"GroveMoeForCausalLM", "grove_moe", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"num_key_value_heads\": 4, \"max_position_embeddings\": 32768, \"num_experts\": 128,"
             "\"num_experts_per_tok\": 8, \"moe_intermediate_size\": 768}"},
    {.json = NULL},
};

/* Weights are always normalised, whatever norm_topk_prob says. */
static const struct pp_expert_keys keys = {
    .n = "num_experts", .n_used = "num_experts_per_tok", .n_ff = "moe_intermediate_size"};

static void set_constants(struct pp_hparams *hp)
{
    hp->n_expert_share = 2;
    hp->expert_share_scale = 0.05f;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    set_constants(hp);
    if (!code)
        code = pp_config_experts(config, &keys, hp, err);
    if (!code)
        code = pp_config_qwen_dense(config, hp, err);
    return code ? code : pp_config_qwen_window(config, hp, err);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    double scale;
    (void)err;
    set_constants(hp);
    pp_gguf_int(g, "grovemoe.experts_per_group", &hp->n_expert_share);
    if (pp_gguf_float(g, "grovemoe.expert_group_scale", &scale))
        hp->expert_share_scale = (float)scale;
    return PP_OK;
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_gguf_add_u32(w, "grovemoe.experts_per_group", (uint32_t)hp->n_expert_share);
    pp_gguf_add_f32(w, "grovemoe.expert_group_scale", hp->expert_share_scale);
    pp_gguf_add_u32(w, "grovemoe.expert_chunk_feed_forward_length", (uint32_t)hp->n_ff_share);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put_qwen_window(hp, config);
    pp_config_put_experts(hp, &keys, config);
    pp_config_put_qwen_dense(hp, config);
    cJSON_AddTrueToObject(config, "norm_topk_prob");
}

const struct pp_arch pp_arch_grovemoe = {
    .name = "grovemoe",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_expert_names,
    .ignored = ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
