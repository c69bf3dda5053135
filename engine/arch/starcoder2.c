/* starcoder2.c - StarCoder 2 (arXiv 2402.19173): LayerNorm, GELU without a gate, biases everywhere. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/hparams.h"

static const struct pp_arch_name names[] = {
    {.hf = "model.layers.{}.mlp.c_fc", .gguf = "blk.{}.ffn_up"},
    {.hf = "model.layers.{}.mlp.c_proj", .gguf = "blk.{}.ffn_down"},
    {.hf = NULL},
};

static const char *const classes[] = {"Starcoder2ForCausalLM", "starcoder2", NULL};

static enum pp_code from_config(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    hp->norm_eps = 1e-5f;
    enum pp_code code = pp_config_float(config, "norm_epsilon", &hp->norm_eps, err);
    if (!code)
        code = pp_config_activation(config, "hidden_act", pp_gelu_tanh_names, err);
    return code ? code : pp_config_window(config, 0, hp, err);
}

static void to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    cJSON_AddBoolToObject(config, "use_bias", true);
    if (hp->window)
        pp_config_put(config, "sliding_window", hp->window);
    else
        cJSON_AddNullToObject(config, "sliding_window");
}

static const struct pp_arch_usual usual[] = {
    {.json = "{\"num_key_value_heads\": 2, \"max_position_embeddings\": 4096, \"tie_word_embeddings\": true}"},
    {.json = NULL},
};

const struct pp_arch pp_arch_starcoder2 = {
    .name = "starcoder2",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .decoder = {.layer_norm = true, .norm_bias = true, .ungated = true, .fn = PP_FN_GELU_TANH},
    .from_config = from_config,
    .usual = usual,
    .to_config = to_config,
    .hf_eps = "norm_epsilon",
};
