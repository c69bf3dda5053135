/* xglm.c - XGLM (arXiv 2112.10668; transformers, models/xglm): sinusoidal positions are added to scaled embeddings;
 * LayerNorm, GELU without a gate, biases everywhere. Only pippin makes GGUF files of it. */
#include <cjson/cJSON.h>
#include <math.h>

#include "engine/arch/families.h"

#define LAYER(hf_name, gguf_name) {.hf = "model.layers.{}." hf_name, .gguf = "blk.{}." gguf_name}

static const struct pp_arch_name names[] = {
    {.hf = "model.layer_norm", .gguf = "output_norm"},
    LAYER("self_attn_layer_norm", "attn_norm"),
    LAYER("self_attn.out_proj", "attn_output"),
    LAYER("final_layer_norm", "ffn_norm"),
    LAYER("fc1", "ffn_up"),
    LAYER("fc2", "ffn_down"),
    {.hf = NULL},
};

static const char *const classes[] = {"XGLMForCausalLM", "xglm", NULL};
static const char *const ignored[] = {".embed_positions.weights", NULL}; /* a table of sinusoids */
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 256008, \"d_model\": 1024, \"num_layers\": 24, \"attention_heads\": 16,"
             "\"ffn_dim\": 4096, \"max_position_embeddings\": 2048, \"tie_word_embeddings\": true}"},
    {.json = NULL},
};

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    hp->norm_eps = 1e-5f;
    hp->embd_scale = pp_config_flag(config, "scale_embedding", true) ? sqrtf((float)hp->n_embd) : 0;
    if (pp_config_flag(config, "add_cross_attention", false))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: add_cross_attention is true, which pippin does not "
                       "compute");
    return pp_config_function(config, "activation_function", PP_ACTIVATION_GELU, hp, err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put_text(config, "activation_function", pp_config_function_name(&pp_arch_xglm.decoder, hp));
    pp_config_put(config, "d_model", hp->n_embd);
    pp_config_put(config, "num_layers", hp->n_layer);
    pp_config_put(config, "attention_heads", hp->n_head);
    pp_config_put(config, "ffn_dim", hp->n_ff);
    cJSON_AddBoolToObject(config, "scale_embedding", hp->embd_scale != 0.0f);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g;
    if (hp->embd_scale == 0.0f || fabsf(hp->embd_scale / sqrtf((float)hp->n_embd) - 1) < 1e-4f)
        return PP_OK;
    return pp_fail(err, PP_ERR_UNSUPPORTED, "metadata xglm.embedding_scale is %g, not the root of %lld",
                   (double)hp->embd_scale, (long long)hp->n_embd);
}

const struct pp_arch pp_arch_xglm = {
    .name = "xglm",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .decoder = {.layer_norm = true, .norm_bias = true, .ungated = true, .fn = PP_FN_GELU,
                .positions = PP_POS_FAIRSEQ_SINUSOIDS},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_config = to_config,
    .hf_eps = "layer_norm_eps",
};
