/* gptj.c - GPT-J (transformers, models/gptj): attention without biases in parallel with a feed-forward part that has
 * them, after one LayerNorm; the first dimensions of each head are rotated in neighbouring pairs, also in folders. And
 * CodeGen (arXiv 2203.13474), the same with q, v and k in one matrix, in as many pieces as it was split into for
 * training; only pippin makes GGUF files of that. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/tensor_forms.h"

#define LAYER "transformer.h.{}."
#define COMMON                                                                                                        \
    {.hf = "transformer.wte", .gguf = "token_embd"},                                                                  \
    {.hf = "transformer.ln_f", .gguf = "output_norm"},                                                                \
    {.hf = "lm_head", .gguf = "output"},                                                                              \
    {.hf = LAYER "ln_1", .gguf = "blk.{}.attn_norm"},                                                                 \
    {.hf = LAYER "attn.out_proj", .gguf = "blk.{}.attn_output"},                                                      \
    {.hf = LAYER "mlp.fc_in", .gguf = "blk.{}.ffn_up"},                                                               \
    {.hf = LAYER "mlp.fc_out", .gguf = "blk.{}.ffn_down"},                                                            \
    {.hf = NULL}

static const struct pp_arch_name names[] = {
    {.hf = LAYER "attn.q_proj", .gguf = "blk.{}.attn_q"},
    {.hf = LAYER "attn.k_proj", .gguf = "blk.{}.attn_k"},
    {.hf = LAYER "attn.v_proj", .gguf = "blk.{}.attn_v"},
    COMMON,
};
static const char *const classes[] = {"GPTJForCausalLM", "gptj", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 50400, \"n_embd\": 4096, \"n_layer\": 28, \"n_head\": 16, \"n_positions\": 2048,"
             "\"rotary_dim\": 64}"},
    {.json = NULL},
};

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_gpt2(config, hp, err);
    hp->parallel = true;
    return code ? code : pp_config_int(config, "rotary_dim", &hp->rope_dim, err);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g, (void)err;
    hp->parallel = true;
    return PP_OK;
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put_gpt2(hp, config);
    pp_config_put(config, "rotary_dim", hp->rope_dim);
}

const struct pp_arch pp_arch_gptj = {
    .name = "gptj",
    .hf_classes = classes,
    .names = names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .hf_pairs = true,
    .decoder = {.layer_norm = true, .norm_bias = true, .ungated = true, .fn = PP_FN_GELU_TANH},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_config = to_config,
    .hf_eps = "layer_norm_epsilon",
};

/* --- CodeGen ------------------------------------------------------------------------------------------------------ */

static const struct pp_arch_name codegen_names[] = {
    {.hf = LAYER "attn.qkv_proj", .gguf = "blk.{}.attn_qkv", .form = PP_HF_QKV_IN_PIECES},
    COMMON,
};
static const char *const codegen_classes[] = {"CodeGenForCausalLM", "codegen", NULL};
static const char *const codegen_ignored[] = {".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias",
                                              ".attn.causal_mask", NULL};

static enum pp_code check_pieces(const struct pp_hparams *hp, struct pp_error *err)
{
    const int64_t n = pp_hf_qkv_pieces(hp);
    if (hp->n_head % n != 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the model has %lld heads, which is not a multiple of %lld",
                       (long long)hp->n_head, (long long)n);
    if (hp->n_head_kv != hp->n_head)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the model has %lld query heads and %lld key heads; this family needs "
                                                "as many of both", (long long)hp->n_head, (long long)hp->n_head_kv);
    return PP_OK;
}

static enum pp_code codegen_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    if (cJSON_IsNull(pp_json_member(config, "rotary_dim")))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: rotary_dim is null, which pippin does not support");
    enum pp_code code = from_config(config, hp, err);
    hp->attn_scale = 0; /* scale_attn_weights has no effect in transformers' code */
    /* The smaller two of CodeGen 2 were trained in twice as many pieces, which is only in their own code. They are
     * recognised by a key for the head size, which no other CodeGen has. */
    const bool has_head_dim = cJSON_IsNumber(pp_json_member(config, "head_dim"));
    if (has_head_dim && (hp->head_dim == 128 || hp->head_dim == 256))
        hp->qkv_pieces = 2 * PP_HF_QKV_PIECES;
    if (!code && hp->n_head * hp->head_dim != hp->n_embd)
        code = pp_fail(err, PP_ERR_FORMAT, "config.json: %lld heads of %lld make no %lld", (long long)hp->n_head,
                       (long long)hp->head_dim, (long long)hp->n_embd);
    return code ? code : check_pieces(hp, err);
}

static enum pp_code codegen_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    from_gguf(g, hp, err);
    return check_pieces(hp, err);
}

static void codegen_to_config(const struct pp_hparams *hp, cJSON *config)
{
    to_config(hp, config);
    if (!hp->qkv_pieces)
        cJSON_DeleteItemFromObjectCaseSensitive(config, "head_dim");
}

const struct pp_arch pp_arch_codegen = {
    .name = "codegen",
    .hf_classes = codegen_classes,
    .names = codegen_names,
    .ignored = codegen_ignored,
    .defaults = defaults,
    .hf_pairs = true,
    .decoder = {.layer_norm = true, .norm_bias = true, .ungated = true, .fn = PP_FN_GELU_TANH},
    .from_config = codegen_from_config,
    .from_gguf = codegen_from_gguf,
    .to_config = codegen_to_config,
    .hf_eps = "layer_norm_epsilon",
};
