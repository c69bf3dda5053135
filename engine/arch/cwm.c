/* cwm.c - Llama with a window in some layers, as layer_types or a pattern says: CWM (arXiv 2510.02387), with full
 * attention in every fourth layer, starting with the first, and Llama 3's RoPE scaling; and the Ministral of 2024
 * (transformers, models/ministral). Only pippin makes GGUF files of either, as other programs' Llama has no windows. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/hparams.h"

static const char *const classes[] = {"CwmForCausalLM", "cwm", NULL};
static const char *const ministral_classes[] = {"MinistralForCausalLM", "ministral", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"num_key_value_heads\": 8, \"head_dim\": 128, \"max_position_embeddings\": 131072,"
             "\"rms_norm_eps\": 1e-5, \"rope_theta\": 1000000.0}"},
    {.json = NULL},
};
static const struct pp_arch_default ministral_defaults[] = {
    {.json = "{\"num_key_value_heads\": 8, \"max_position_embeddings\": 131072}"},
    {.json = NULL},
};

/* All layers share one RoPE, so parameters given for each kind of layer must be equal. */
static enum pp_code check_kinds(const cJSON *config, struct pp_error *err)
{
    const cJSON *rope = pp_json_member(config, "rope_parameters");
    const cJSON *local = pp_json_member(rope, "sliding_attention");
    const cJSON *wide = pp_json_member(rope, "full_attention");
    if (!local || cJSON_Compare(local, wide, true))
        return PP_OK;
    return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: rope_parameters of sliding_attention are not those of "
                   "full_attention, which pippin does not support for this family");
}

static enum pp_code windows(const cJSON *config, int64_t window, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (!code)
        code = check_kinds(config, err);
    if (!code)
        code = pp_config_window(config, window, hp, err);
    return code ? code : pp_config_layer_types(config, hp, err);
}

/* Without any RoPE parameters, Llama 3's scaling is the default. */
static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    for (int64_t l = 0; l < hp->n_layer; l += 4)
        hp->layer[l] |= PP_LAYER_WIDE;
    if (!cJSON_IsObject(pp_json_member(config, "rope_parameters")) &&
        !cJSON_IsObject(pp_json_member(config, "rope_scaling"))) {
        hp->rope_scaling = PP_ROPE_LLAMA3;
        hp->rope_factor = 16;
        hp->rope_low_freq = 1;
        hp->rope_high_freq = 4;
        hp->rope_orig_ctx = 8192;
    }
    return windows(config, 8192, hp, err);
}

static enum pp_code ministral_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    return windows(config, 4096, hp, err);
}

static void ministral_to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    pp_config_put_layer_types(config, hp);
}

static void to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    ministral_to_config(hp, config);
    pp_config_put_unscaled(config, hp);
}

const struct pp_arch pp_arch_cwm = {
    .name = "cwm",
    .hf_classes = classes,
    .names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .from_config = from_config,
    .to_config = to_config,
};

const struct pp_arch pp_arch_ministral = {
    .name = "ministral",
    .hf_classes = ministral_classes,
    .names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = ministral_defaults,
    .gguf_neox = true,
    .from_config = ministral_from_config,
    .to_config = ministral_to_config,
};
