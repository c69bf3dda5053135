/* talkie.c - Talkie (talkie-1930-13b): Llama whose norms, including those of heads after RoPE, have no weights, with
 * learned scalars instead: one for each query head, one for the output of attention and of the feed-forward part in
 * each layer, one for the logits. And the embeddings are added to each layer's output, times a scalar of the layer
 * (decoder_gains.c).
 *
 * Folders are those of the port that comes with code of its own (TalkieForCausalLM). Their heads rotate in the
 * opposite direction; in GGUF files half of the rows of each head have their sign flipped instead. GGUF files may have
 * the parts' scalars multiplied into the matrices. */
#include <cjson/cJSON.h>
#include <float.h>

#include "engine/arch/families.h"
#include "engine/hparams.h"

#define LAYER "model.blocks.{}."

static const struct pp_arch_name names[] = {
    {.hf = "model.embed", .gguf = "token_embd"},
    {.hf = "lm_head", .gguf = "output.weight", .whole = true},
    {.hf = "lm_head", .gguf = "output", .read_only = true},
    {.hf = LAYER "attn.attn_query", .gguf = "blk.{}.attn_q", .form = PP_HF_HALF_NEGATED},
    {.hf = LAYER "attn.attn_key", .gguf = "blk.{}.attn_k", .form = PP_HF_HALF_NEGATED},
    {.hf = LAYER "attn.attn_value", .gguf = "blk.{}.attn_v"},
    {.hf = LAYER "attn.attn_resid", .gguf = "blk.{}.attn_output"},
    {.hf = LAYER "attn.head_gain.head_g", .gguf = "blk.{}.attn_q_norm.weight", .form = PP_HF_COLUMN, .whole = true},
    {.hf = LAYER "attn_gain.a_g", .gguf = "blk.{}.attn_output.scale", .whole = true},
    {.hf = LAYER "mlp.mlp_gate", .gguf = "blk.{}.ffn_gate"},
    {.hf = LAYER "mlp.mlp_linear", .gguf = "blk.{}.ffn_up"},
    {.hf = LAYER "mlp.mlp_resid", .gguf = "blk.{}.ffn_down"},
    {.hf = LAYER "mlp_gain.a_g", .gguf = "blk.{}.ffn_down.scale", .whole = true},
    {.hf = LAYER "embed_skip.a_g", .gguf = "blk.{}.layer_output_scale.weight", .whole = true},
    {.hf = NULL},
};
static const char *const classes[] = {"TalkieForCausalLM", "talkie", NULL};
static const char output_gain[] = "lm_head_gain.w_g";
static const char *const ignored[] = {output_gain, NULL}; /* it becomes hparams.logit_scale */
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 65540, \"hidden_size\": 5120, \"intermediate_size\": 13696, \"num_hidden_layers\": 40,"
             "\"num_attention_heads\": 40, \"head_dim\": 128, \"max_position_embeddings\": 2048,"
             "\"rope_theta\": 1000000}"},
    {.json = NULL},
};

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    hp->qk_norm = true;
    hp->norm_eps = FLT_EPSILON; /* PyTorch's default */
    return pp_config_activation(config, "hidden_act", pp_silu_names, err);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g, (void)err;
    hp->qk_norm = true;
    return PP_OK;
}

const struct pp_arch pp_arch_talkie = {
    .name = "talkie",
    .hf_classes = classes,
    .names = names,
    .ignored = ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .hf_logit_scale = output_gain,
    .decoder = {.plain_norm = true, .embd_norm = true, .unweighted_qk_norm = true, .norm_after_rope = true,
                .gains = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
};
