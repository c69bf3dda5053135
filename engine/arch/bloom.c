/* bloom.c - Bloom (arXiv 2211.05100): ALiBi, LayerNorm with biases everywhere, also after the embeddings, and a fused
 * qkv, whose rows in folders are ordered head by head. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"

#define NAME(hf_name, gguf_name)                                                                                       \
    {.hf = "transformer." hf_name, .gguf = gguf_name},                                                                 \
    {.hf = hf_name, .gguf = gguf_name}
#define QKV "h.{}.self_attention.query_key_value"

/* The first published folders' names lack "transformer." */
static const struct pp_arch_name names[] = {
    NAME("word_embeddings", "token_embd"),
    NAME("word_embeddings_layernorm", "token_embd_norm"),
    NAME("ln_f", "output_norm"),
    {.hf = "lm_head", .gguf = "output"},
    NAME("h.{}.input_layernorm", "blk.{}.attn_norm"),
    NAME("h.{}.post_attention_layernorm", "blk.{}.ffn_norm"),
    {.hf = "transformer." QKV, .gguf = "blk.{}.attn_qkv", .form = PP_HF_QKV_FUSED_BY_GROUP},
    {.hf = QKV, .gguf = "blk.{}.attn_qkv", .form = PP_HF_QKV_FUSED_BY_GROUP},
    NAME("h.{}.self_attention.dense", "blk.{}.attn_output"),
    NAME("h.{}.mlp.dense_h_to_4h", "blk.{}.ffn_up"),
    NAME("h.{}.mlp.dense_4h_to_h", "blk.{}.ffn_down"),
    {.hf = NULL},
};

static const char *const classes[] = {"BloomForCausalLM", "BloomModel", "bloom", NULL};

static const struct pp_arch_default defaults[] = {
    {.json = "{\"tie_word_embeddings\": true}"},
    {.json = NULL},
};

enum { MAX_BIAS = 8 };

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    hp->alibi = MAX_BIAS;
    hp->norm_eps = 1e-5f;
    if (pp_config_flag(config, "apply_residual_connection_post_layernorm", false))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: apply_residual_connection_post_layernorm is true, which "
                       "pippin does not compute");
    enum pp_code code = pp_config_float(config, "layer_norm_epsilon", &hp->norm_eps, err);
    return code ? code : pp_config_int(config, "seq_length", &hp->n_ctx_train, err);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g, (void)err;
    hp->alibi = MAX_BIAS;
    return PP_OK;
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put(config, "n_layer", hp->n_layer);
    pp_config_put(config, "n_head", hp->n_head);
    pp_config_put(config, "seq_length", hp->n_ctx_train);
    cJSON_AddFalseToObject(config, "apply_residual_connection_post_layernorm");
}

const struct pp_arch pp_arch_bloom = {
    .name = "bloom",
    .hf_classes = classes,
    .names = names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .decoder = {.layer_norm = true, .norm_bias = true, .embd_norm = true, .fused_qkv = true, .ungated = true,
                .fn = PP_FN_GELU_TANH},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_config = to_config,
    .hf_eps = "layer_norm_epsilon",
};
