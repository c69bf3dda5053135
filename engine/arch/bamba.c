/* bamba.c - Bamba (arXiv 2405.21060 for Mamba 2): Mamba 2 in most layers, attention with half of each head rotated in
 * the others, and a feed-forward part in every layer. Other programs convert it to Granite 4 Hybrid, with neighbouring
 * pairs and as if whole heads were rotated; we write files of a family of its own. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/hparams.h"

#define LAYER "model.layers.{}."

static const struct pp_arch_name names[] = {
    {.hf = "model.final_layernorm", .gguf = "output_norm"},
    {.hf = LAYER "pre_ff_layernorm", .gguf = "blk.{}.ffn_norm"},
    {.hf = LAYER "mamba.in_proj", .gguf = "blk.{}.ssm_in"},
    {.hf = LAYER "mamba.conv1d.weight", .gguf = "blk.{}.ssm_conv1d.weight", .form = PP_HF_CONV, .whole = true},
    {.hf = LAYER "mamba.conv1d.bias", .gguf = "blk.{}.ssm_conv1d.bias", .whole = true},
    {.hf = LAYER "mamba.A_log", .gguf = "blk.{}.ssm_a", .form = PP_HF_MINUS_EXP_COLUMN, .whole = true},
    {.hf = LAYER "mamba.D", .gguf = "blk.{}.ssm_d", .form = PP_HF_COLUMN, .whole = true},
    {.hf = LAYER "mamba.dt_bias", .gguf = "blk.{}.ssm_dt.bias", .whole = true},
    {.hf = LAYER "mamba.norm", .gguf = "blk.{}.ssm_norm", .form = PP_HF_VECTOR_OR_ROW},
    {.hf = LAYER "mamba.out_proj", .gguf = "blk.{}.ssm_out"},
    {.hf = LAYER "feed_forward.gate_proj", .gguf = "blk.{}.ffn_gate"},
    {.hf = LAYER "feed_forward.up_proj", .gguf = "blk.{}.ffn_up"},
    {.hf = LAYER "feed_forward.down_proj", .gguf = "blk.{}.ffn_down"},
    {.hf = NULL},
};
static const char *const classes[] = {"BambaForCausalLM", "bamba", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"num_key_value_heads\": 8, \"max_position_embeddings\": 262144, \"rms_norm_eps\": 1e-5,"
             "\"partial_rotary_factor\": 0.5, \"mamba_n_heads\": 128, \"mamba_n_groups\": 1, \"mamba_d_state\": 256,"
             "\"mamba_d_conv\": 4, \"mamba_expand\": 2}"},
    {.json = NULL},
};

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    const enum pp_code code = pp_mamba_from_gguf(g, hp, err);
    return code ? code : pp_mamba_in_one_group(hp, err);
}

/* --- config.json ------------------------------------------------------------------------------------------------- */

/* The layers with attention: a list of their indices, or layer_types. */
static enum pp_code read_layers(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *list = pp_json_member(config, "attn_layer_indices"), *item;
    pp_layers_every(hp, 1, PP_LAYER_RECURRENT);
    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsNumber(item) || item->valueint < 0 || item->valueint >= hp->n_layer)
            return pp_fail(err, PP_ERR_FORMAT, "config.json: attn_layer_indices names something other than one of %lld "
                           "layers", (long long)hp->n_layer);
        hp->layer[item->valueint] &= (uint8_t)~PP_LAYER_RECURRENT;
    }
    return pp_config_layer_words(config, "layers_block_type", "mamba", "attention", PP_LAYER_RECURRENT, hp, err);
}

/* Refuses what would be computed differently: bounds of dt, another share of rotated dimensions. */
static enum pp_code check_config(const cJSON *config, const struct pp_hparams *hp, struct pp_error *err)
{
    int64_t rotated = hp->rope_dim;
    enum pp_code code = pp_config_int(config, "attn_rotary_emb", &rotated, err);
    if (!code && rotated != hp->rope_dim)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: attn_rotary_emb is %lld, but half of a head of %lld is "
                       "rotated in this family", (long long)rotated, (long long)hp->head_dim);
    return code;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (!code)
        code = read_layers(config, hp, err);
    if (!code)
        code = check_config(config, hp, err);
    if (!code)
        code = pp_mamba_expanded_from_config(config, &pp_mamba_keys, hp, err);
    return code ? code : pp_mamba_in_one_group(hp, err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    cJSON *list = cJSON_AddArrayToObject(config, "attn_layer_indices");
    for (int64_t l = 0; l < hp->n_layer; l++)
        if (!(hp->layer[l] & PP_LAYER_RECURRENT))
            cJSON_AddItemToArray(list, cJSON_CreateNumber((double)l));
    pp_config_put(config, "attn_rotary_emb", hp->rope_dim);
    pp_mamba_expanded_to_config(hp, &pp_mamba_keys, config);
    cJSON_AddTrueToObject(config, "mamba_conv_bias");
    cJSON_AddFalseToObject(config, "mamba_proj_bias");
}

const struct pp_arch pp_arch_bamba = {
    .name = "bamba",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = pp_states_to_gguf,
    .to_config = to_config,
};
