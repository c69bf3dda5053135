/* olmo.c - OLMo of 2024 (arXiv 2402.00838): Llama whose LayerNorms have no weights, and perhaps bounds for queries,
 * keys and values. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/hparams.h"

static const char *const classes[] = {"OlmoForCausalLM", "olmo", NULL};

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    hp->norm_eps = 1e-5f;
    return code ? code : pp_config_float(config, "clip_qkv", &hp->qkv_clamp, err);
}

static void to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    if (hp->qkv_clamp != 0.0f)
        pp_config_put_float(config, "clip_qkv", hp->qkv_clamp);
    else
        cJSON_AddNullToObject(config, "clip_qkv");
}

const struct pp_arch pp_arch_olmo = {
    .name = "olmo",
    .hf_classes = classes,
    .names = pp_interleaved_names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .decoder = {.layer_norm = true, .plain_norm = true},
    .from_config = from_config,
    .to_config = to_config,
    .hf_eps = "layer_norm_eps",
};
