/* gptneox.c - GPT-NeoX (arXiv 2204.06745) and Pythia: a fused qkv ordered head by head, a quarter of each head
 * rotated, attention and feed-forward part in parallel, each after its own LayerNorm. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"

#define LAYER(hf_name, gguf_name, how)                                                                                 \
    {.hf = "gpt_neox.layers.{}." hf_name, .gguf = "blk.{}." gguf_name, .form = how},                                   \
    {.hf = "model.h.{}." hf_name, .gguf = "blk.{}." gguf_name, .form = how, .mlx = true}

/* MLX's names. */
static const struct pp_arch_name names[] = {
    {.hf = "gpt_neox.embed_in", .gguf = "token_embd"},
    {.hf = "embed_out", .gguf = "output"},
    {.hf = "gpt_neox.final_layer_norm", .gguf = "output_norm"},
    {.hf = "model.embed_in", .gguf = "token_embd", .mlx = true},
    {.hf = "model.embed_out", .gguf = "output", .mlx = true},
    {.hf = "model.final_layer_norm", .gguf = "output_norm", .mlx = true},
    LAYER("input_layernorm", "attn_norm", PP_HF_SAME),
    LAYER("post_attention_layernorm", "ffn_norm", PP_HF_SAME),
    LAYER("attention.query_key_value", "attn_qkv", PP_HF_QKV_FUSED_BY_GROUP),
    LAYER("attention.dense", "attn_output", PP_HF_SAME),
    LAYER("mlp.dense_h_to_4h", "ffn_up", PP_HF_SAME),
    LAYER("mlp.dense_4h_to_h", "ffn_down", PP_HF_SAME),
    {.hf = NULL},
};

static const char *const classes[] = {"GPTNeoXForCausalLM", "gpt_neox", NULL};

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *rope = pp_json_member(config, "rope_parameters");
    float part = 0.25f;
    hp->parallel = pp_config_flag(config, "use_parallel_residual", true);
    hp->norm_eps = 1e-5f;
    enum pp_code code = pp_config_gelu(config, "hidden_act", PP_ACTIVATION_GELU, hp, err);
    if (!code)
        code = pp_config_float(config, "layer_norm_eps", &hp->norm_eps, err);
    if (!code) /* transformers 4's names; version 5's were read before and remain */
        code = pp_config_float(config, "rotary_pct", &part, err);
    if (!code && !pp_json_member(rope, "rope_theta"))
        code = pp_config_float(config, "rotary_emb_base", &hp->rope_base, err);
    if (!pp_json_member(rope, "partial_rotary_factor"))
        hp->rope_dim = part >= 0 && part <= 1 ? (int64_t)((float)hp->head_dim * part) : 0;
    return code;
}

static void to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    cJSON_AddBoolToObject(config, "use_parallel_residual", hp->parallel);
    pp_config_put_float(config, "rotary_pct", (float)hp->rope_dim / (float)hp->head_dim);
    pp_config_put_float(config, "rotary_emb_base", hp->rope_base);
    cJSON_ReplaceItemInObjectCaseSensitive(config, "attention_bias", cJSON_CreateTrue());
}

const struct pp_arch pp_arch_gptneox = {
    .name = "gptneox",
    .hf_classes = classes,
    .names = names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .decoder = {.layer_norm = true, .norm_bias = true, .fused_qkv = true, .ungated = true,
                .fn = PP_FN_GELU},
    .from_config = from_config,
    .gguf_has_parallel_key = true,
    .to_config = to_config,
    .hf_eps = "layer_norm_eps",
};
