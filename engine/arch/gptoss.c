/* gptoss.c - gpt-oss (arXiv 2508.10925): experts with biases and a clamped gate, attention sinks, a window in every
 * other layer, and YaRN whose ramp has fractional bounds. */
#include "engine/arch/families.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

#define EXPERTS(hf_name, how, gguf_name, ...)                                                                          \
    {.hf = "model.layers.{}.mlp.experts." hf_name, .gguf = "blk.{}." gguf_name, .form = how, .whole = true, __VA_ARGS__}

static const struct pp_arch_name names[] = {
    {.hf = "model.layers.{}.post_attention_layernorm", .gguf = "blk.{}.post_attention_norm"},
    {.hf = "model.layers.{}.self_attn.sinks", .gguf = "blk.{}.attn_sinks.weight", .whole = true},
    {.hf = "model.layers.{}.mlp.router", .gguf = "blk.{}.ffn_gate_inp"},
    EXPERTS("gate_up_proj", PP_HF_EXPERTS_INTERLEAVED, "ffn_gate_exps.weight", .second = "blk.{}.ffn_up_exps.weight"),
    EXPERTS("gate_up_proj_bias", PP_HF_BIASES_INTERLEAVED, "ffn_gate_exps.bias", .second = "blk.{}.ffn_up_exps.bias"),
    EXPERTS("down_proj", PP_HF_EXPERTS_TRANSPOSED, "ffn_down_exps.weight", .second = NULL),
    EXPERTS("down_proj_bias", PP_HF_SAME, "ffn_down_exps.bias", .second = NULL),
    {.hf = "model.layers.{}.mlp.experts.gate_proj", .gguf = "blk.{}.ffn_gate_exps", .mlx = true},
    {.hf = "model.layers.{}.mlp.experts.up_proj", .gguf = "blk.{}.ffn_up_exps", .mlx = true},
    {.hf = "model.layers.{}.mlp.experts.down_proj", .gguf = "blk.{}.ffn_down_exps", .mlx = true},
    {.hf = NULL},
};

static const char *const other_names[] = {"gptoss", NULL}; /* ollama's */
static const char *const classes[] = {"GptOssForCausalLM", "gpt_oss", NULL};

/* PP_FN_CLAMPED has these constants built in: others are refused. */
static enum pp_code check_gate(const struct cJSON *config, struct pp_error *err)
{
    static const struct {
        const char *key;
        float v;
    } numbers[] = {{"swiglu_limit", 7}, {"swiglu_alpha", 1.702f}};
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && !code; i++) {
        float v = numbers[i].v;
        code = pp_config_float(config, numbers[i].key, &v, err);
        if (!code && v != numbers[i].v)
            code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s is %g; only %g is supported", numbers[i].key,
                           (double)v, (double)numbers[i].v);
    }
    return code;
}

static enum pp_code from_config(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    if (!pp_config_has_rope(config)) {
        hp->rope_scaling = PP_ROPE_YARN;
        hp->rope_factor = 32;
        hp->rope_beta_fast = 32;
        hp->rope_beta_slow = 1;
        hp->rope_no_truncate = true;
        hp->rope_orig_ctx = 4096;
    }
    hp->n_expert = 128;
    hp->n_expert_used = 4;
    hp->n_ff_expert = hp->n_ff;
    pp_layers_every(hp, 2, PP_LAYER_WIDE);
    enum pp_code code = pp_config_int(config, "num_local_experts", &hp->n_expert, err);
    if (!code)
        code = pp_config_int(config, "num_experts_per_tok", &hp->n_expert_used, err);
    if (!code)
        code = pp_config_window(config, 128, hp, err);
    if (!code)
        code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (!code)
        code = check_gate(config, err);
    return code ? code : pp_config_layer_types(config, hp, err);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)err;
    hp->rope_no_truncate = true;
    if (!pp_gguf_has(g, "gpt-oss.attention.sliding_window_pattern"))
        pp_layers_every(hp, 2, PP_LAYER_WIDE);
    if (pp_gguf_has(g, "gptoss.rope.scaling.factor") && !pp_gguf_has(g, "gptoss.rope.scaling.type")) { /* ollama's */
        hp->rope_scaling = PP_ROPE_YARN;
        hp->rope_beta_fast = 32;
        hp->rope_beta_slow = 1;
        hp->rope_orig_ctx = 4096;
        pp_gguf_int(g, "gptoss.rope.scaling.original_context_length", &hp->rope_orig_ctx);
    }
    return PP_OK;
}

static void to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    pp_config_put_layer_types(config, hp);
    pp_config_put(config, "num_local_experts", hp->n_expert);
    pp_config_put(config, "num_experts_per_tok", hp->n_expert_used);
    pp_config_put(config, "intermediate_size", hp->n_ff_expert);
    pp_config_put_float(config, "swiglu_limit", 7);
    pp_config_put_unscaled(config, hp);
}

static const struct pp_arch_default defaults[] = {
    {.json = "{\"num_key_value_heads\": 8, \"head_dim\": 64, \"max_position_embeddings\": 131072,"
             "\"rope_theta\": 150000.0, \"rms_norm_eps\": 1e-5}"},
    {.json = NULL},
};

const struct pp_arch pp_arch_gptoss = {
    .name = "gpt-oss",
    .other_names = other_names,
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .decoder = {.fn = PP_FN_CLAMPED, .sinks = true, .ffn_norm = "post_attention_norm"},
    .from_config = from_config,
    .defaults = defaults,
    .from_gguf = from_gguf,
    .layer_pattern = 2,
    .yarn_no_truncate = true,
    .to_config = to_config,
};
