/* gpt2.c - GPT-2 (transformers, models/gpt2): learned positions, LayerNorm, fused qkv; matrices are stored as [n_in,
 * n_out], by MLX as [n_out, n_in]. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"

#define LAYER(hf_name, gguf_name, how)                                                                                 \
    {.hf = "transformer.h.{}." hf_name ".weight", .gguf = "blk.{}." gguf_name ".weight", .form = how, .whole = true},  \
    {.hf = "transformer.h.{}." hf_name ".bias", .gguf = "blk.{}." gguf_name ".bias", .whole = true},                   \
    {.hf = "h.{}." hf_name ".weight", .gguf = "blk.{}." gguf_name ".weight", .form = how, .whole = true},              \
    {.hf = "h.{}." hf_name ".bias", .gguf = "blk.{}." gguf_name ".bias", .whole = true},                               \
    {.hf = "model.h.{}." hf_name, .gguf = "blk.{}." gguf_name, .mlx = true}

/* The first published folder's names lack "transformer."; MLX's have "model." */
static const struct pp_arch_name names[] = {
    {.hf = "transformer.wte", .gguf = "token_embd"},
    {.hf = "transformer.wpe", .gguf = "position_embd"},
    {.hf = "transformer.ln_f", .gguf = "output_norm"},
    {.hf = "wte", .gguf = "token_embd"},
    {.hf = "wpe", .gguf = "position_embd"},
    {.hf = "ln_f", .gguf = "output_norm"},
    {.hf = "model.wte", .gguf = "token_embd", .mlx = true},
    {.hf = "model.wpe", .gguf = "position_embd", .mlx = true},
    {.hf = "model.ln_f", .gguf = "output_norm", .mlx = true},
    {.hf = "lm_head", .gguf = "output"},
    LAYER("ln_1", "attn_norm", PP_HF_SAME),
    LAYER("attn.c_attn", "attn_qkv", PP_HF_TRANSPOSED),
    LAYER("attn.c_proj", "attn_output", PP_HF_TRANSPOSED),
    LAYER("ln_2", "ffn_norm", PP_HF_SAME),
    LAYER("mlp.c_fc", "ffn_up", PP_HF_TRANSPOSED),
    LAYER("mlp.c_proj", "ffn_down", PP_HF_TRANSPOSED),
    {.hf = NULL},
};

static const char *const classes[] = {"GPT2LMHeadModel", "gpt2", NULL};

enum pp_code pp_config_gpt2(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_gelu(config, "activation_function", PP_ACTIVATION_GELU_TANH, hp, err);
    hp->norm_eps = 1e-5f;
    hp->n_ctx_train = 1024;
    if (pp_config_flag(config, "scale_attn_by_inverse_layer_idx", false))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: scale_attn_by_inverse_layer_idx is not supported");
    if (!pp_config_flag(config, "scale_attn_weights", true))
        hp->attn_scale = 1;
    if (!code)
        code = pp_config_float(config, "layer_norm_epsilon", &hp->norm_eps, err);
    if (!code)
        code = pp_config_int(config, "n_positions", &hp->n_ctx_train, err);
    return code ? code : pp_config_int(config, "n_inner", &hp->n_ff, err);
}

void pp_config_put_gpt2(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put_text(config, "activation_function", hp->activation == PP_ACTIVATION_GELU ? "gelu" : "gelu_new");
    pp_config_put(config, "n_embd", hp->n_embd);
    pp_config_put(config, "n_layer", hp->n_layer);
    pp_config_put(config, "n_head", hp->n_head);
    pp_config_put(config, "n_positions", hp->n_ctx_train);
    pp_config_put(config, "n_ctx", hp->n_ctx_train);
    pp_config_put(config, "n_inner", hp->n_ff);
}

static const struct pp_arch_default defaults[] = {
    {.json = "{\"tie_word_embeddings\": true}"},
    {.json = NULL},
};

const struct pp_arch pp_arch_gpt2 = {
    .name = "gpt2",
    .hf_classes = classes,
    .names = names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .decoder = {.layer_norm = true, .norm_bias = true, .fused_qkv = true, .ungated = true,
                .fn = PP_FN_GELU_TANH, .positions = PP_POS_LEARNED},
    .from_config = pp_config_gpt2,
    .defaults = defaults,
    .gguf_untied = true,
    .to_config = pp_config_put_gpt2,
    .hf_eps = "layer_norm_epsilon",
};
