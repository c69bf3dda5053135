/* ctrl.c - CTRL (arXiv 1909.05858): sinusoidal positions are added to scaled embeddings; LayerNorm, ReLU without a
 * gate, biases everywhere, including the output's. Only pippin makes GGUF files of it. */
#include <cjson/cJSON.h>
#include <math.h>

#include "engine/arch/families.h"

#define LAYER(hf_name, gguf_name) {.hf = "transformer.h.{}." hf_name, .gguf = "blk.{}." gguf_name}

static const struct pp_arch_name names[] = {
    {.hf = "transformer.w", .gguf = "token_embd"},
    {.hf = "transformer.layernorm", .gguf = "output_norm"},
    {.hf = "lm_head", .gguf = "output"},
    LAYER("multi_head_attention.Wq", "attn_q"),
    LAYER("multi_head_attention.Wk", "attn_k"),
    LAYER("multi_head_attention.Wv", "attn_v"),
    LAYER("multi_head_attention.dense", "attn_output"),
    LAYER("layernorm1", "attn_norm"),
    LAYER("layernorm2", "ffn_norm"),
    LAYER("ffn.0", "ffn_up"),
    LAYER("ffn.2", "ffn_down"),
    {.hf = NULL},
};
static const char *const classes[] = {"CTRLLMHeadModel", "ctrl", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 246534, \"n_positions\": 256, \"n_embd\": 1280, \"dff\": 8192, \"n_layer\": 48,"
             "\"n_head\": 16, \"tie_word_embeddings\": true}"},
    {.json = NULL},
};
#define EPSILON 1e-6f /* of the layers' norms in transformers; config.json's is that of the last norm only */

static enum pp_code check(const struct pp_hparams *hp, struct pp_error *err)
{
    if (hp->embd_scale != 0.0f && fabsf(hp->embd_scale / sqrtf((float)hp->n_embd) - 1) > 1e-4f)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "embeddings are multiplied by %g, not by the square root of %lld",
                       (double)hp->embd_scale, (long long)hp->n_embd);
    return PP_OK;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_int(config, "dff", &hp->n_ff, err);
    hp->norm_eps = EPSILON;
    hp->embd_scale = sqrtf((float)hp->n_embd);
    hp->n_ctx_train = 256;
    if (!code)
        code = pp_config_float(config, "layer_norm_epsilon", &hp->norm_eps, err);
    if (!code)
        code = pp_config_int(config, "n_positions", &hp->n_ctx_train, err);
    if (!code && fabsf(hp->norm_eps / EPSILON - 1) > 1e-4f)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: layer_norm_epsilon is %g; only %g is supported in this "
                       "family", (double)hp->norm_eps, (double)EPSILON);
    return code ? code : check(hp, err);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g;
    if (hp->embd_scale == 0.0f)
        return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks ctrl.embedding_scale");
    return check(hp, err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put(config, "n_embd", hp->n_embd);
    pp_config_put(config, "n_layer", hp->n_layer);
    pp_config_put(config, "n_head", hp->n_head);
    pp_config_put(config, "n_positions", hp->n_ctx_train);
    pp_config_put(config, "dff", hp->n_ff);
}

const struct pp_arch pp_arch_ctrl = {
    .name = "ctrl",
    .hf_classes = classes,
    .names = names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .decoder = {.layer_norm = true, .norm_bias = true, .ungated = true, .fn = PP_FN_RELU,
                .positions = PP_POS_SINUSOIDS, .head_bias = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_config = to_config,
    .hf_eps = "layer_norm_epsilon",
};
