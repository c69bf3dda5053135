/* afmoe.c - Arcee's Trinity (AFMoE; transformers, models/afmoe): pre-norms and post-norms, attention's output gated by
 * sigmoids, a sliding window in three of four layers with the fourth not rotated, and experts routed as in
 * DeepSeek-V3. */
#include <cjson/cJSON.h>
#include <math.h>

#include "engine/arch/families.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

static const struct pp_arch_name names[] = {
    {.hf = "model.layers.{}.post_attention_layernorm", .gguf = "blk.{}.post_attention_norm"},
    {.hf = "model.layers.{}.pre_mlp_layernorm", .gguf = "blk.{}.ffn_norm"},
    {.hf = "model.layers.{}.post_mlp_layernorm", .gguf = "blk.{}.post_ffw_norm"},
    {.hf = "model.layers.{}.self_attn.q_norm", .gguf = "blk.{}.attn_q_norm"},
    {.hf = "model.layers.{}.self_attn.k_norm", .gguf = "blk.{}.attn_k_norm"},
    {.hf = "model.layers.{}.self_attn.gate_proj", .gguf = "blk.{}.attn_gate"},
    {.hf = "model.layers.{}.mlp.router.gate", .gguf = "blk.{}.ffn_gate_inp"},
    {.hf = "model.layers.{}.mlp.expert_bias", .gguf = "blk.{}.exp_probs_b.bias", .whole = true},
    {.hf = NULL},
};
static const char *const classes[] = {"AfmoeForCausalLM", "afmoe", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"head_dim\": 128, \"max_position_embeddings\": 16384, \"rms_norm_eps\": 1e-5, \"num_experts\": 64,"
             "\"num_experts_per_tok\": 6, \"moe_intermediate_size\": 1408, \"num_shared_experts\": 2,"
             "\"num_dense_layers\": 1, \"route_norm\": true, \"route_scale\": 1.0}"},
    {.json = NULL},
};
static const struct pp_expert_keys expert_keys = {
    .n = "num_experts", .n_used = "num_experts_per_tok", .n_ff = "moe_intermediate_size",
    .n_groups = "n_group", .n_groups_used = "topk_group", .n_shared = "num_shared_experts",
    .n_dense = "num_dense_layers", .norm_topk = "route_norm", .scale = "route_scale"};

static void finish(struct pp_hparams *hp)
{
    hp->embd_scale = sqrtf((float)hp->n_embd);
    pp_layers_rotate_windows(hp);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t step = 4;
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    hp->expert_sigmoids = true;
    if (!code && !pp_config_flag(config, "mup_enabled", false)) /* GGUF files cannot express its absence */
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: mup_enabled is not true, which is not supported");
    if (!code)
        code = pp_config_experts(config, &expert_keys, hp, err);
    if (!code)
        code = pp_config_window(config, 1024, hp, err);
    if (!code)
        code = pp_config_int(config, "global_attn_every_n_layers", &step, err);
    if (!code && step > 0)
        pp_layers_every(hp, step, PP_LAYER_WIDE);
    if (!code)
        code = pp_config_layer_types(config, hp, err);
    finish(hp);
    return code;
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)err;
    if (!pp_gguf_has(g, "afmoe.attention.sliding_window_pattern"))
        pp_layers_every(hp, 4, PP_LAYER_WIDE);
    finish(hp);
    return PP_OK;
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put_layer_types(config, hp);
    pp_config_put_experts(hp, &expert_keys, config);
    pp_config_put(config, "global_attn_every_n_layers", 4);
    pp_config_put_text(config, "score_func", "sigmoid");
    cJSON_AddTrueToObject(config, "mup_enabled");
}

const struct pp_arch pp_arch_afmoe = {
    .name = "afmoe",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .gguf_default_no_renorm = true,
    .gguf_default_sigmoids = true,
    .layer_pattern = 4,
    .decoder = {.post_norm = true, .qk_norm = PP_QK_BY_HEAD, .gated_attention = true},
    .defaults = defaults,
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_config = to_config,
};
