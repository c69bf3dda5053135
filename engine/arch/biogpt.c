/* biogpt.c - BioGPT (arXiv 2210.10341; transformers, models/biogpt): learned positions, scaled embeddings, LayerNorm,
 * GELU without a gate, biases everywhere. Tables of positions in folders start with two unused rows. The epsilon in
 * config.json is not used by transformers' layers. Only pippin makes GGUF files of it. */
#include <cjson/cJSON.h>
#include <math.h>

#include "engine/arch/families.h"

enum { RESERVED = 2 };
static const float EPS = 1e-5f;

#define LAYER(hf_name, gguf_name) {.hf = "biogpt.layers.{}." hf_name, .gguf = "blk.{}." gguf_name}

static const struct pp_arch_name names[] = {
    {.hf = "biogpt.embed_tokens", .gguf = "token_embd"},
    {.hf = "biogpt.embed_positions", .gguf = "position_embd", .form = PP_HF_AFTER_RESERVED},
    {.hf = "biogpt.layer_norm", .gguf = "output_norm"},
    {.hf = "output_projection", .gguf = "output"},
    LAYER("self_attn_layer_norm", "attn_norm"),
    LAYER("self_attn.q_proj", "attn_q"),
    LAYER("self_attn.k_proj", "attn_k"),
    LAYER("self_attn.v_proj", "attn_v"),
    LAYER("self_attn.out_proj", "attn_output"),
    LAYER("final_layer_norm", "ffn_norm"),
    LAYER("fc1", "ffn_up"),
    LAYER("fc2", "ffn_down"),
    {.hf = NULL},
};

static const char *const classes[] = {"BioGptForCausalLM", "biogpt", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 42384, \"hidden_size\": 1024, \"num_hidden_layers\": 24, \"num_attention_heads\": 16,"
             "\"intermediate_size\": 4096, \"max_position_embeddings\": 1024, \"tie_word_embeddings\": true}"},
    {.json = NULL},
};

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    hp->norm_eps = EPS;
    hp->n_reserved_positions = RESERVED;
    hp->embd_scale = pp_config_flag(config, "scale_embedding", true) ? sqrtf((float)hp->n_embd) : 0;
    return pp_config_function(config, "hidden_act", PP_ACTIVATION_GELU, hp, err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put_text(config, "hidden_act", pp_config_function_name(&pp_arch_biogpt.decoder, hp));
    cJSON_AddBoolToObject(config, "scale_embedding", hp->embd_scale != 0.0f);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g;
    hp->n_reserved_positions = RESERVED;
    if (hp->embd_scale != 0.0f && fabsf(hp->embd_scale / sqrtf((float)hp->n_embd) - 1) > 1e-4f)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "metadata biogpt.embedding_scale is %g, not the square root of %lld",
                       (double)hp->embd_scale, (long long)hp->n_embd);
    if (hp->norm_eps != EPS)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "metadata biogpt.attention.layer_norm_epsilon is %g; that of the "
                       "family's norms is %g", (double)hp->norm_eps, (double)EPS);
    return PP_OK;
}

const struct pp_arch pp_arch_biogpt = {
    .name = "biogpt",
    .hf_classes = classes,
    .names = names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .decoder = {.layer_norm = true, .norm_bias = true, .ungated = true, .fn = PP_FN_GELU,
                .positions = PP_POS_LEARNED},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_config = to_config,
    .hf_eps = "layer_norm_eps",
};
