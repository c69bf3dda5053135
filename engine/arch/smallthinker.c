/* smallthinker.c - SmallThinker (arXiv 2507.20984): experts with ReLU gates are chosen before attention; in the larger
 * models layers 0, 4, 8 ... have full attention without RoPE, the others a window. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

#define EXPERTS "model.layers.{}.block_sparse_moe."

static const struct pp_arch_name names[] = {
    {.hf = EXPERTS "primary_router", .gguf = "blk.{}.ffn_gate_inp"},
    {.hf = EXPERTS "experts.{}.gate", .gguf = "blk.{}.ffn_gate.{}"},
    {.hf = EXPERTS "experts.{}.up", .gguf = "blk.{}.ffn_up.{}"},
    {.hf = EXPERTS "experts.{}.down", .gguf = "blk.{}.ffn_down.{}"},
    {.hf = NULL},
};
static const char *const classes[] = {"SmallThinkerForCausalLM", "SmallthinkerForCausalLM", "smallthinker", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"head_dim\": 128, \"rope_theta\": 1000000.0, \"max_position_embeddings\": 131072,"
             "\"moe_num_primary_experts\": 32, \"moe_num_active_primary_experts\": 4, \"moe_ffn_hidden_size\": 768,"
             "\"tie_word_embeddings\": true}"},
    {.json = NULL},
};
static const struct pp_expert_keys expert_keys = {
    .n = "moe_num_primary_experts", .n_used = "moe_num_active_primary_experts", .n_ff = "moe_ffn_hidden_size"};

/* Item l of a list of 0 and 1; `otherwise` if there is no list. */
static bool list_flag(const cJSON *list, int64_t l, bool otherwise)
{
    const cJSON *item = cJSON_GetArrayItem(list, (int)l);
    return cJSON_IsNumber(item) ? item->valueint != 0 : otherwise;
}

/* If some layers have a window, those without one must be the ones without RoPE. */
static enum pp_code layers_from(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *windows = pp_json_member(config, "sliding_window_layout");
    const cJSON *ropes = pp_json_member(config, "rope_layout");
    bool some = false;
    for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS; l++) {
        const bool windowed = list_flag(windows, l, false);
        some = some || windowed;
        hp->layer[l] |= windowed ? 0 : PP_LAYER_WIDE;
    }
    for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        if (list_flag(ropes, l, true) != (!some || list_flag(windows, l, false)))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: layer %lld is rotated and has no window, or has one "
                           "and is not rotated, which is not supported", (long long)l);
    if (!some)
        return PP_OK;
    hp->window = 4096;
    pp_layers_rotate_windows(hp);
    return pp_config_int(config, "sliding_window_size", &hp->window, err);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const char *const not_known[] = {"moe_enable_secondary_experts", "use_qk_norm"};
    enum pp_code code = pp_config_experts(config, &expert_keys, hp, err);
    hp->expert_sigmoids = !pp_config_flag(config, "moe_primary_router_apply_softmax", false);
    for (int i = 0; i < 2 && !code; i++)
        if (pp_config_flag(config, not_known[i], false))
            code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s is true, which is not supported", not_known[i]);
    return code ? code : layers_from(config, hp, err);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)err;
    for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS && hp->window; l += 4)
        if (!pp_gguf_has(g, "smallthinker.attention.sliding_window_pattern"))
            hp->layer[l] |= PP_LAYER_WIDE;
    if (hp->window)
        pp_layers_rotate_windows(hp);
    return PP_OK;
}

static void put_layer_flags(const struct pp_hparams *hp, cJSON *config, const char *key, bool without)
{
    cJSON *list = cJSON_AddArrayToObject(config, key);
    for (int64_t l = 0; l < hp->n_layer; l++) {
        const bool windowed = hp->window && !(hp->layer[l] & PP_LAYER_WIDE);
        cJSON_AddItemToArray(list, cJSON_CreateNumber(hp->window ? windowed : without));
    }
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put_experts(hp, &expert_keys, config);
    cJSON_DeleteItemFromObjectCaseSensitive(config, "intermediate_size");
    cJSON_AddBoolToObject(config, "moe_primary_router_apply_softmax", !hp->expert_sigmoids);
    pp_config_put(config, "sliding_window_size", hp->window ? hp->window : 4096);
    put_layer_flags(hp, config, "sliding_window_layout", false);
    put_layer_flags(hp, config, "rope_layout", true);
}

const struct pp_arch pp_arch_smallthinker = {
    .name = "smallthinker",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .gguf_default_sigmoids = true,
    .decoder = {.early_router = true, .fn = PP_FN_RELU},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_config = to_config,
};
