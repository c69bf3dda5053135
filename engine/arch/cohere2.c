/* cohere2.c - Command R7B and its like: one LayerNorm without bias for attention and feed-forward part beside each
 * other; every fourth layer sees everything and is not rotated, the others have a window. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

static const char *const classes[] = {"Cohere2ForCausalLM", "cohere2", NULL};

static void rotate_windows(struct pp_hparams *hp)
{
    for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        hp->layer[l] |= hp->layer[l] & PP_LAYER_WIDE ? PP_LAYER_UNROTATED : 0;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t pattern = 4;
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    hp->parallel = true;
    hp->norm_eps = 1e-5f;
    hp->logit_scale = 0.0625f;
    if (!code)
        code = pp_config_float(config, "layer_norm_eps", &hp->norm_eps, err);
    if (!code)
        code = pp_config_float(config, "logit_scale", &hp->logit_scale, err);
    if (!code)
        code = pp_config_window(config, 4096, hp, err);
    if (!code)
        code = pp_config_int(config, "sliding_window_pattern", &pattern, err);
    if (!code)
        code = pp_config_int(config, "_sliding_window_pattern", &pattern, err);
    if (!code && pattern > 0)
        pp_layers_every(hp, pattern, PP_LAYER_WIDE);
    if (!code)
        code = pp_config_layer_types(config, hp, err);
    rotate_windows(hp);
    return code;
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)err;
    hp->parallel = true;
    if (!pp_gguf_has(g, "cohere2.attention.sliding_window_pattern"))
        pp_layers_every(hp, 4, PP_LAYER_WIDE);
    rotate_windows(hp);
    return PP_OK;
}

static void to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    pp_config_put_layer_types(config, hp);
    pp_config_put_float(config, "logit_scale", hp->logit_scale != 0.0f ? hp->logit_scale : 1);
}

static const struct pp_arch_usual usual[] = {
    {.json = "{\"max_position_embeddings\": 8192, \"tie_word_embeddings\": true}"},
    {.json = NULL},
};

const struct pp_arch pp_arch_cohere2 = {
    .name = "cohere2",
    .hf_classes = classes,
    .names = pp_common_names,
    .ignored = pp_common_ignored,
    .hf_pairs = true,
    .decoder = {.layer_norm = true},
    .from_config = from_config,
    .usual = usual,
    .from_gguf = from_gguf,
    .layer_pattern = 4,
    .to_config = to_config,
    .hf_eps = "layer_norm_eps",
};
