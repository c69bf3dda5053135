/* mamba2.c - models of Mamba 2 layers only (arXiv 2405.21060). */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/hparams.h"

#define MIXER "backbone.layers.{}.mixer."

static const struct pp_arch_name names[] = {
    {.hf = MIXER "A_log", .gguf = "blk.{}.ssm_a", .form = PP_HF_MINUS_EXP_COLUMN, .whole = true},
    {.hf = MIXER "D", .gguf = "blk.{}.ssm_d", .form = PP_HF_COLUMN, .whole = true},
    {.hf = MIXER "dt_bias", .gguf = "blk.{}.ssm_dt.bias", .whole = true},
    {.hf = MIXER "norm", .gguf = "blk.{}.ssm_norm", .form = PP_HF_FLAT_GROUPS},
    {.hf = NULL},
};
static const char *const classes[] = {"Mamba2ForCausalLM", "mamba2", NULL};
static const char *const prefixes[] = {"model.backbone.", "backbone.", "model.lm_head.", "lm_head.", NULL};
static const char *const others[] = {NULL};
static const struct pp_arch_parts parts = {.model_type = "mamba2", .prefixes = prefixes, .others = others};
/* Placeholders for the common reader, whose keys are absent or mean something else here; see from_config. */
static const struct pp_arch_default defaults[] = {
    {.json = "{\"num_attention_heads\": 1, \"intermediate_size\": 1, \"max_position_embeddings\": 1048576,"
             "\"num_heads\": 128, \"head_dim\": 64, \"state_size\": 128, \"n_groups\": 8, \"conv_kernel\": 4,"
             "\"num_hidden_layers\": 64, \"hidden_size\": 4096}"},
    {.json = NULL},
};
static const struct pp_mamba_keys keys = {.taps = "conv_kernel", .key_dim = "state_size", .n_groups = "n_groups",
                                          .n_heads = "num_heads", .head_dim = "head_dim"};

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    pp_mamba_alone(hp);
    return pp_mamba_from_gguf(g, hp, err);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    pp_mamba_alone(hp);
    hp->norm_eps = 1e-5f;
    if (!code)
        code = pp_config_float(config, "layer_norm_epsilon", &hp->norm_eps, err);
    return code ? code : pp_mamba_from_config(config, &keys, 0, hp, err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    static const char *const gone[] = {"num_attention_heads", "num_key_value_heads", "intermediate_size", "rope_theta"};
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++)
        cJSON_DeleteItemFromObjectCaseSensitive(config, gone[i]);
    pp_mamba_to_config(hp, &keys, config);
    pp_config_put(config, "expand", hp->n_state_head * hp->state_value_dim / hp->n_embd);
    cJSON_AddTrueToObject(config, "use_conv_bias");
    cJSON_AddFalseToObject(config, "use_bias");
}

const struct pp_arch pp_arch_mamba2 = {
    .name = "mamba2",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_mamba_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .parts = &parts,
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = pp_states_to_gguf,
    .to_config = to_config,
    .hf_eps = "layer_norm_epsilon",
};
