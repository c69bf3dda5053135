/* arctic.c - Snowflake Arctic (Snowflake/snowflake-arctic-base, modeling_arctic.py): Llama's layers with feed-forward
 * parts only as wide as the stream, and experts in parallel with the whole layer, which read the layer's input. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/hparams.h"

#define LAYER "model.layers.{}."

static const struct pp_arch_name names[] = {
    {.hf = LAYER "self_attn.q_proj", .gguf = "blk.{}.attn_q", .rows = PP_ROWS_Q},
    {.hf = LAYER "self_attn.k_proj", .gguf = "blk.{}.attn_k", .rows = PP_ROWS_K},
    {.hf = LAYER "residual_layernorm", .gguf = "blk.{}.ffn_norm"},
    {.hf = LAYER "residual_mlp.w1", .gguf = "blk.{}.ffn_gate"},
    {.hf = LAYER "residual_mlp.w2", .gguf = "blk.{}.ffn_down"},
    {.hf = LAYER "residual_mlp.w3", .gguf = "blk.{}.ffn_up"},
    {.hf = LAYER "post_attention_layernorm", .gguf = "blk.{}.ffn_norm_exps"},
    {.hf = LAYER "block_sparse_moe.gate", .gguf = "blk.{}.ffn_gate_inp"},
    {.hf = LAYER "block_sparse_moe.experts.{}.w1", .gguf = "blk.{}.ffn_gate.{}"},
    {.hf = LAYER "block_sparse_moe.experts.{}.w2", .gguf = "blk.{}.ffn_down.{}"},
    {.hf = LAYER "block_sparse_moe.experts.{}.w3", .gguf = "blk.{}.ffn_up.{}"},
    {.hf = NULL},
};

static const char *const classes[] = {"ArcticForCausalLM", "arctic", NULL};

static const struct pp_arch_default defaults[] = {
    {.json = "{\"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-5, \"rope_theta\": 1000000.0,"
             "\"num_local_experts\": 8, \"num_experts_per_tok\": 1, \"moe_layer_frequency\": 2}"},
    {.json = NULL},
};

static const struct pp_expert_keys keys = {.n = "num_local_experts", .n_used = "num_experts_per_tok"};

/* Files and folders have one width only, that of the experts; the dense part is as wide as the stream. */
static void take_sizes(struct pp_hparams *hp)
{
    hp->n_ff = hp->n_embd;
    hp->dense_parallel = true;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t step = 1;
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (!code)
        code = pp_config_experts(config, &keys, hp, err);
    if (!code)
        code = pp_config_int(config, "moe_layer_frequency", &step, err);
    if (!code && (step != 1 || !pp_config_flag(config, "parallel_attn_mlp_res", false)))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: only models with experts in every layer are supported "
                                                "(moe_layer_frequency 1, parallel_attn_mlp_res true)");
    if (!code)
        code = pp_config_window(config, 0, hp, err);
    take_sizes(hp);
    return code;
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g, (void)err;
    take_sizes(hp);
    return PP_OK;
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put_experts(hp, &keys, config);
    pp_config_put(config, "intermediate_size", hp->n_ff_expert);
    pp_config_put(config, "moe_layer_frequency", 1);
    cJSON_AddTrueToObject(config, "parallel_attn_mlp_res");
    cJSON_AddTrueToObject(config, "use_residual");
}

const struct pp_arch pp_arch_arctic = {
    .name = "arctic",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_ff_of_experts = true,
    .decoder = {.mixture_norm = "ffn_norm_exps"},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_config = to_config,
};
