/* lfm2.c - LFM2 (Liquid AI; arXiv 2511.23404) and its mixtures of experts with DeepSeek-V3's routing: most layers have
 * a gated short convolution in place of attention, out_proj(C * conv(B * x)) with B, C, x = in_proj(h). GGUF files
 * call the norm after the last layer token_embd_norm. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/hparams.h"

#define LAYER "model.layers.{}."

#define LFM2_NAMES                                                                                                    \
    {.hf = "model.embedding_norm", .gguf = "token_embd_norm"},                                                        \
    {.hf = LAYER "operator_norm", .gguf = "blk.{}.attn_norm"},                                                        \
    {.hf = LAYER "ffn_norm", .gguf = "blk.{}.ffn_norm"},                                                              \
    {.hf = LAYER "self_attn.q_layernorm", .gguf = "blk.{}.attn_q_norm"},                                              \
    {.hf = LAYER "self_attn.k_layernorm", .gguf = "blk.{}.attn_k_norm"},                                              \
    {.hf = LAYER "self_attn.out_proj", .gguf = "blk.{}.attn_output"},                                                 \
    {.hf = LAYER "conv.conv.weight", .gguf = "blk.{}.shortconv.conv.weight", .form = PP_HF_CONV, .whole = true},      \
    {.hf = LAYER "conv.conv.bias", .gguf = "blk.{}.shortconv.conv.bias", .whole = true},                              \
    {.hf = LAYER "conv.in_proj", .gguf = "blk.{}.shortconv.in_proj"},                                                 \
    {.hf = LAYER "conv.out_proj", .gguf = "blk.{}.shortconv.out_proj"}

#define FEED_FORWARD_NAMES                                                                                            \
    {.hf = LAYER "feed_forward.w1", .gguf = "blk.{}.ffn_gate"},                                                       \
    {.hf = LAYER "feed_forward.w2", .gguf = "blk.{}.ffn_down"},                                                       \
    {.hf = LAYER "feed_forward.w3", .gguf = "blk.{}.ffn_up"}

static const struct pp_arch_name names[] = {LFM2_NAMES, FEED_FORWARD_NAMES, {.hf = NULL}};

static const struct pp_arch_name moe_names[] = {
    LFM2_NAMES,
    {.hf = LAYER "feed_forward.gate_proj", .gguf = "blk.{}.ffn_gate", .mlx = true},
    {.hf = LAYER "feed_forward.down_proj", .gguf = "blk.{}.ffn_down", .mlx = true},
    {.hf = LAYER "feed_forward.up_proj", .gguf = "blk.{}.ffn_up", .mlx = true},
    FEED_FORWARD_NAMES,
    {.hf = LAYER "feed_forward.gate", .gguf = "blk.{}.ffn_gate_inp"},
    {.hf = LAYER "feed_forward.expert_bias", .gguf = "blk.{}.exp_probs_b.bias", .whole = true},
    {.hf = LAYER "feed_forward.experts.{}.w1", .gguf = "blk.{}.ffn_gate.{}"},
    {.hf = LAYER "feed_forward.experts.{}.w2", .gguf = "blk.{}.ffn_down.{}"},
    {.hf = LAYER "feed_forward.experts.{}.w3", .gguf = "blk.{}.ffn_up.{}"},
    {.hf = LAYER "feed_forward.switch_mlp.gate_proj", .gguf = "blk.{}.ffn_gate_exps", .mlx = true},
    {.hf = LAYER "feed_forward.switch_mlp.down_proj", .gguf = "blk.{}.ffn_down_exps", .mlx = true},
    {.hf = LAYER "feed_forward.switch_mlp.up_proj", .gguf = "blk.{}.ffn_up_exps", .mlx = true},
    {.hf = NULL},
};

static const char *const classes[] = {"Lfm2ForCausalLM", "LFM2ForCausalLM", "Lfm2VlForConditionalGeneration", "lfm2",
                                      "lfm2_vl", "lfm2-vl", NULL};
static const char *const moe_classes[] = {"Lfm2MoeForCausalLM", "lfm2_moe", NULL};
static const char *const others[] = {"vision_tower.", "model.vision_tower.", "multi_modal_projector.",
                                     "model.multi_modal_projector.", NULL};
static const struct pp_arch_parts parts = {.model_type = "lfm2", .prefixes = pp_qwen_prefixes, .others = others};

#define USUAL                                                                                                         \
    "\"num_key_value_heads\": 8, \"max_position_embeddings\": 128000, \"rope_theta\": 1000000.0, \"norm_eps\": 1e-5," \
    "\"conv_L_cache\": 3, \"conv_bias\": false, \"tie_word_embeddings\": true"
static const struct pp_arch_default defaults[] = {
    {.json = "{" USUAL ", \"intermediate_size\": 12288, \"block_auto_adjust_ff_dim\": true,"
             "\"block_multiple_of\": 256, \"block_ffn_dim_multiplier\": 1.0}"},
    {.json = NULL},
};
static const struct pp_arch_default moe_defaults[] = {
    {.json = "{" USUAL ", \"intermediate_size\": 7168, \"moe_intermediate_size\": 1792, \"num_dense_layers\": 2,"
             "\"num_experts\": 32, \"num_experts_per_tok\": 4, \"norm_topk_prob\": true,"
             "\"routed_scaling_factor\": 1.0}"},
    {.json = NULL},
};

/* --- config.json ------------------------------------------------------------------------------------------------- */

/* layer_types; early configurations list the layers with attention instead. */
static enum pp_code layer_types(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *full = pp_json_member(config, "full_attn_idxs"), *item;
    if (cJSON_IsArray(full))
        pp_layers_every(hp, 1, PP_LAYER_CONVOLVED);
    cJSON_ArrayForEach(item, full)
        if (cJSON_IsNumber(item) && item->valueint >= 0 && item->valueint < hp->n_layer)
            hp->layer[item->valueint] &= (uint8_t)~PP_LAYER_CONVOLVED;
    return pp_config_layer_words(config, "layer_types", "conv", "full_attention", PP_LAYER_CONVOLVED, hp, err);
}

/* The width of the feed-forward part with block_auto_adjust_ff_dim. */
static enum pp_code feed_forward(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    float part = 1;
    int64_t step = 256;
    enum pp_code code = pp_config_int(config, "block_ff_dim", &hp->n_ff, err);
    if (code || !pp_config_flag(config, "block_auto_adjust_ff_dim", false))
        return code;
    if ((code = pp_config_float(config, "block_ffn_dim_multiplier", &part, err)) ||
        (code = pp_config_int(config, "block_multiple_of", &step, err)))
        return code;
    if (hp->n_ff < 1 || hp->n_ff > 1 << 24 || step < 1 || step > 1 << 20 || !(part > 0 && part <= 64))
        return pp_fail(err, PP_ERR_FORMAT, "config.json: no feed-forward part is as wide as block_ff_dim, "
                       "block_ffn_dim_multiplier and block_multiple_of say");
    hp->n_ff = (int64_t)((double)part * (double)(2 * hp->n_ff / 3));
    hp->n_ff = (hp->n_ff + step - 1) / step * step;
    return PP_OK;
}

static enum pp_code common_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    hp->conv_bias = pp_config_flag(config, "conv_bias", false);
    if (!pp_config_flag(config, "tie_embedding", true))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: tie_embedding is false, which pippin does not read");
    enum pp_code code = pp_config_int(config, "conv_L_cache", &hp->conv_taps, err);
    if (!code)
        code = pp_config_float(config, "norm_eps", &hp->norm_eps, err);
    return code ? code : layer_types(config, hp, err);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const enum pp_code code = common_from_config(config, hp, err);
    return code ? code : feed_forward(config, hp, err);
}

static const struct pp_expert_keys expert_keys = {
    .n = "num_experts", .n_used = "num_experts_per_tok", .n_ff = "moe_intermediate_size", .n_dense = "num_dense_layers",
    .norm_topk = "norm_topk_prob", .scale = "routed_scaling_factor"};

static enum pp_code moe_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const enum pp_code code = common_from_config(config, hp, err);
    hp->expert_sigmoids = true;
    return code ? code : pp_config_experts(config, &expert_keys, hp, err);
}

static void common_to_config(const struct pp_hparams *hp, cJSON *config)
{
    cJSON *types = cJSON_AddArrayToObject(config, "layer_types");
    for (int64_t l = 0; l < hp->n_layer; l++)
        cJSON_AddItemToArray(types, cJSON_CreateString(hp->layer[l] & PP_LAYER_CONVOLVED ? "conv" : "full_attention"));
    pp_config_put(config, "conv_L_cache", hp->conv_taps);
    cJSON_AddBoolToObject(config, "conv_bias", hp->conv_bias);
    cJSON_DeleteItemFromObject(config, "attention_bias");
    cJSON_DeleteItemFromObject(config, "mlp_bias");
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    common_to_config(hp, config);
    pp_config_put(config, "block_dim", hp->n_embd); /* MLX requires it */
    pp_config_put(config, "block_ff_dim", hp->n_ff);
    cJSON_AddFalseToObject(config, "block_auto_adjust_ff_dim");
    pp_config_put(config, "block_multiple_of", 256);
    pp_config_put_float(config, "block_ffn_dim_multiplier", 1);
}

static void moe_to_config(const struct pp_hparams *hp, cJSON *config)
{
    common_to_config(hp, config);
    pp_config_put_experts(hp, &expert_keys, config);
    cJSON_AddTrueToObject(config, "use_expert_bias");
}

const struct pp_arch pp_arch_lfm2 = {
    .name = "lfm2",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .parts = &parts,
    .gguf_neox = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD, .output_norm = "token_embd_norm"},
    .from_config = from_config,
    .to_config = to_config,
    .hf_eps = "norm_eps",
};

const struct pp_arch pp_arch_lfm2moe = {
    .name = "lfm2moe",
    .hf_classes = moe_classes,
    .names = moe_names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = moe_defaults,
    .gguf_neox = true,
    .gguf_default_sigmoids = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD, .output_norm = "token_embd_norm"},
    .from_config = moe_from_config,
    .to_config = moe_to_config,
    .hf_eps = "norm_eps",
};
