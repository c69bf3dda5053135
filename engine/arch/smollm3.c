/* smollm3.c - SmolLM 3 (Hugging Face; transformers, models/smollm3): Llama without RoPE in every fourth layer. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/hparams.h"

static const char *const classes[] = {"SmolLM3ForCausalLM", "smollm3", NULL};

/* no_rope_layers has a 0 for each layer without RoPE. */
static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *list = pp_json_list(config, "no_rope_layers"), *item;
    int64_t step = 4, l = 0;
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (!code)
        code = pp_config_int(config, "no_rope_layer_interval", &step, err);
    if (!code && list && cJSON_GetArraySize(list) != hp->n_layer)
        code = pp_fail(err, PP_ERR_FORMAT, "config.json: no_rope_layers does not name %lld layers",
                       (long long)hp->n_layer);
    if (code)
        return code;
    if (!list && step > 0)
        pp_layers_every(hp, step, PP_LAYER_UNROTATED);
    cJSON_ArrayForEach(item, list)
    {
        if (l < PP_MAX_LAYERS && cJSON_IsNumber(item) && item->valueint == 0)
            hp->layer[l] |= PP_LAYER_UNROTATED;
        l++;
    }
    return pp_config_qwen_window(config, hp, err);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g, (void)err;
    pp_layers_every(hp, 4, PP_LAYER_UNROTATED);
    return PP_OK;
}

static void to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    cJSON *list = cJSON_AddArrayToObject(config, "no_rope_layers");
    for (int64_t l = 0; l < hp->n_layer; l++)
        cJSON_AddItemToArray(list, cJSON_CreateNumber(hp->layer[l] & PP_LAYER_UNROTATED ? 0 : 1));
    pp_config_put_qwen_window(hp, config);
}

static const struct pp_arch_default defaults[] = {
    {.json = "{\"num_key_value_heads\": 4, \"max_position_embeddings\": 32768, \"rope_theta\": 2000000.0,"
             "\"tie_word_embeddings\": true}"},
    {.json = NULL},
};

const struct pp_arch pp_arch_smollm3 = {
    .name = "smollm3",
    .hf_classes = classes,
    .names = pp_interleaved_names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .from_config = from_config,
    .defaults = defaults,
    .from_gguf = from_gguf,
    .unrotated_pattern = 4,
    .to_config = to_config,
};
