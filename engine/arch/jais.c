/* jais.c - the first Jais (arXiv 2308.16149): GPT-2 with ALiBi, a gate in the feed-forward part, and scores divided by
 * the head size. Folders have multipliers of embeddings and logits; in GGUF files the weights are multiplied
 * already. */
#include <cjson/cJSON.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/hparams.h"

#define LAYER(hf_name, gguf_name, how)                                                                                 \
    {.hf = "transformer.h.{}." hf_name ".weight", .gguf = "blk.{}." gguf_name ".weight", .form = how, .whole = true},  \
    {.hf = "transformer.h.{}." hf_name ".bias", .gguf = "blk.{}." gguf_name ".bias", .whole = true}

static const struct pp_arch_name names[] = {
    {.hf = "transformer.wte", .gguf = "token_embd", .form = PP_HF_SCALED},
    {.hf = "transformer.ln_f", .gguf = "output_norm"},
    {.hf = "lm_head", .gguf = "output", .form = PP_HF_SCALED},
    LAYER("ln_1", "attn_norm", PP_HF_SAME),
    LAYER("attn.c_attn", "attn_qkv", PP_HF_TRANSPOSED),
    LAYER("attn.c_proj", "attn_output", PP_HF_TRANSPOSED),
    LAYER("ln_2", "ffn_norm", PP_HF_SAME),
    LAYER("mlp.c_fc", "ffn_up", PP_HF_TRANSPOSED),
    LAYER("mlp.c_fc2", "ffn_gate", PP_HF_TRANSPOSED),
    LAYER("mlp.c_proj", "ffn_down", PP_HF_TRANSPOSED),
    {.hf = NULL},
};
/* Ignored: ALiBi's slopes, which follow from the number of heads. */
static const char *const ignored[] = {".attn.bias", ".attn.masked_bias", "relative_pe.slopes", NULL};
static const char *const classes[] = {"JAISLMHeadModel", "jais", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"tie_word_embeddings\": true}"},
    {.json = NULL},
};
static const float ALIBI = 8; /* in all models so far */

static enum pp_code expect_word(const cJSON *config, const char *key, const char *word, struct pp_error *err)
{
    const char *said = cJSON_GetStringValue(pp_json_member(config, key));
    if (said && strcmp(said, word) == 0)
        return PP_OK;
    return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s is not %s, which is not supported in this family", key,
                   word);
}

/* A number under either of two keys. */
static enum pp_code read_either(const cJSON *config, const char *key, const char *other, float *v, struct pp_error *err)
{
    return pp_config_float(config, pp_json_member(config, key) ? key : other, v, err);
}

static enum pp_code read_scales(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    struct pp_folder_scales *s = &hp->scales;
    float alpha = 1;
    *s = (struct pp_folder_scales){.any = true, .embd = 1, .output = 1};
    enum pp_code code = read_either(config, "mup_embeddings_scale", "embeddings_scale", &s->embd, err);
    if (!code)
        code = read_either(config, "mup_width_scale", "width_scale", &s->output, err);
    if (!code)
        code = pp_config_float(config, "mup_output_alpha", &alpha, err);
    s->output *= alpha;
    s->any = s->embd != 1.0f || s->output != 1.0f;
    if (pp_config_flag(config, "tie_word_embeddings", false) && s->embd != 0.0f && s->output != s->embd)
        hp->logit_scale = s->output / s->embd;
    return code;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const bool by_size = pp_config_flag(config, "scale_qk_dot_by_d", false) ||
                         pp_config_flag(config, "mup_scale_qk_dot_by_d", false);
    enum pp_code code = expect_word(config, "activation_function", "swiglu", err);
    hp->alibi = ALIBI;
    hp->norm_eps = 1e-5f;
    if (!code)
        code = expect_word(config, "position_embedding_type", "alibi", err);
    if (!code && cJSON_IsObject(pp_json_member(config, "alibi_scaling")))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: alibi_scaling is not supported");
    if (!code)
        code = pp_config_int(config, "n_positions", &hp->n_ctx_train, err);
    if (!code)
        code = pp_config_int(config, "n_inner", &hp->n_ff, err);
    if (!code)
        code = pp_config_float(config, "layer_norm_epsilon", &hp->norm_eps, err);
    hp->attn_scale = by_size && hp->head_dim > 0 ? 1.0f / (float)hp->head_dim : 0.0f;
    return code ? code : read_scales(config, hp, err);
}

/* Only our files have a key for the scale of scores. */
static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    const float alibi = pp_hparams_alibi(g, "jais");
    (void)err;
    hp->alibi = alibi != 0.0f ? alibi : ALIBI;
    if (hp->attn_scale == 0.0f && hp->head_dim > 0)
        hp->attn_scale = 1.0f / (float)hp->head_dim;
    return PP_OK;
}

/* Embeddings are multiplied already; if they are the output, its logits are not. */
static void scaled_config(const struct pp_hparams *hp, bool tied, cJSON *config)
{
    static const char *const gone[] = {"mup_embeddings_scale", "embeddings_scale", "mup_width_scale", "width_scale",
                                       "mup_output_alpha"};
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++)
        cJSON_DeleteItemFromObjectCaseSensitive(config, gone[i]);
    pp_config_put_float(config, "mup_embeddings_scale", 1);
    pp_config_put_float(config, "mup_width_scale", tied && hp->logit_scale != 0.0f ? hp->logit_scale : 1);
    pp_config_put_float(config, "mup_output_alpha", 1);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put_gpt2(hp, config);
    pp_config_put_text(config, "activation_function", "swiglu");
    pp_config_put_text(config, "position_embedding_type", "alibi");
    cJSON_AddBoolToObject(config, "mup_scale_qk_dot_by_d", hp->attn_scale * (float)hp->head_dim > 0.999f);
    scaled_config(hp, false, config);
}

const struct pp_arch pp_arch_jais = {
    .name = "jais",
    .hf_classes = classes,
    .names = names,
    .ignored = ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .gguf_untied = true,
    .gguf_scaled_output = true,
    .decoder = {.layer_norm = true, .norm_bias = true, .fused_qkv = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_config = to_config,
    .scaled_config = scaled_config,
    .hf_eps = "layer_norm_epsilon",
};
