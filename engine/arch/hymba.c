/* hymba.c - Hymba (arXiv 2411.13676): Mamba and attention in parallel in each layer, on the same input
 * (decoder_mean.c); a window in most layers; some layers share the keys of the layer before; and learned vectors
 * ("meta tokens") before every text, which all layers can always see. Only pippin makes GGUF files of it. */
#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

#define LAYER "model.layers.{}."
#define MIXER LAYER "mamba."
#define PART LAYER "moe.experts.0."

static const struct pp_arch_name names[] = {
    {.hf = "model.memory_tokens", .gguf = "token_start.weight", .whole = true},
    {.hf = "model.final_layernorm", .gguf = "output_norm"},
    {.hf = LAYER "pre_moe_layernorm", .gguf = "blk.{}.ffn_norm"},
    {.hf = MIXER "in_proj", .gguf = "blk.{}.ssm_in"},
    {.hf = MIXER "conv1d.weight", .gguf = "blk.{}.ssm_conv1d.weight", .form = PP_HF_CONV, .whole = true},
    {.hf = MIXER "conv1d.bias", .gguf = "blk.{}.ssm_conv1d.bias", .whole = true},
    {.hf = MIXER "x_proj.0", .gguf = "blk.{}.ssm_x"},
    {.hf = MIXER "dt_layernorm", .gguf = "blk.{}.ssm_dt_norm"},
    {.hf = MIXER "B_layernorm", .gguf = "blk.{}.ssm_b_norm"},
    {.hf = MIXER "C_layernorm", .gguf = "blk.{}.ssm_c_norm"},
    {.hf = MIXER "dt_proj.0", .gguf = "blk.{}.ssm_dt"},
    {.hf = MIXER "A_log.0", .gguf = "blk.{}.ssm_a", .form = PP_HF_MINUS_EXP, .whole = true},
    {.hf = MIXER "D.0", .gguf = "blk.{}.ssm_d", .whole = true},
    {.hf = MIXER "pre_avg_layernorm1", .gguf = "blk.{}.attn_sub_norm"},
    {.hf = MIXER "pre_avg_layernorm2", .gguf = "blk.{}.ssm_norm"},
    {.hf = MIXER "out_proj", .gguf = "blk.{}.ssm_out"},
    {.hf = PART "gate_proj", .gguf = "blk.{}.ffn_gate"},
    {.hf = PART "up_proj", .gguf = "blk.{}.ffn_up"},
    {.hf = PART "down_proj", .gguf = "blk.{}.ffn_down"},
    {.hf = NULL},
};
static const char *const classes[] = {"HymbaForCausalLM", "hymba", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 65536, \"hidden_size\": 4096, \"intermediate_size\": 14336, \"num_hidden_layers\": 32,"
             "\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"max_position_embeddings\": 262144,"
             "\"num_experts\": 16}"},
    {.json = NULL},
};
static const struct pp_scan_keys scan_keys = {.taps = "mamba_d_conv", .key_dim = "mamba_d_state",
                                              .rank = "mamba_dt_rank", .expand = "mamba_expand"};
static const char start_key[] = "hymba.start_count", shared_key[] = "hymba.attention.shared_layers";

/* Layers without keys of their own share those of the last layer that has some, and must have the same window. */
static enum pp_code finish(struct pp_hparams *hp, struct pp_error *err)
{
    int64_t own = -1;
    hp->states_parallel = hp->states_mean = true;
    pp_layers_every(hp, 1, PP_LAYER_RECURRENT);
    for (int64_t l = 0; l < hp->n_layer; l++) {
        if (!(hp->layer[l] & PP_LAYER_SHARED))
            own = l;
        else if (own < 0 || pp_has_window(hp, l) != pp_has_window(hp, own))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "layer %lld is to see the keys of a layer with another window, "
                           "which is not supported", (long long)l);
    }
    return PP_OK;
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    pp_gguf_int(g, start_key, &hp->n_meta_tokens);
    for (int64_t l = 0; l < hp->n_layer; l++) {
        bool shared = false;
        pp_gguf_array_bool(g, shared_key, (size_t)l, &shared);
        hp->layer[l] |= shared ? PP_LAYER_SHARED : 0;
    }
    const enum pp_code code = pp_scan_from_gguf(g, hp, err);
    return code ? code : finish(hp, err);
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    bool shared[PP_MAX_LAYERS];
    for (int64_t l = 0; l < hp->n_layer; l++)
        shared[l] = hp->layer[l] & PP_LAYER_SHARED;
    pp_gguf_add_u32(w, start_key, (uint32_t)hp->n_meta_tokens);
    pp_gguf_add_bool_array(w, shared_key, shared, (size_t)hp->n_layer);
    pp_scan_to_gguf(hp, w);
}

/* --- config.json ------------------------------------------------------------------------------------------------- */

/* A list item as a layer's index; -1: it is none. */
static int64_t layer_of(const cJSON *item, const struct pp_hparams *hp)
{
    const double l = cJSON_IsNumber(item) ? item->valuedouble : -1;
    return l >= 0 && l < (double)hp->n_layer && trunc(l) == l ? (int64_t)l : -1;
}

/* kv_reuse_group: lists of layers which share the keys of the list's first one. */
static enum pp_code read_groups(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const char key[] = "kv_reuse_group";
    const cJSON *list = pp_json_member(config, key), *group, *item;
    cJSON_ArrayForEach(group, list)
    {
        int64_t last = -1;
        cJSON_ArrayForEach(item, group)
        {
            const int64_t l = layer_of(item, hp);
            if (l < 0 || (last >= 0 && l != last + 1))
                return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s has a group of layers that are not "
                               "consecutive, which is not supported", key);
            hp->layer[l] |= last >= 0 ? PP_LAYER_SHARED : 0;
            last = l;
        }
    }
    return PP_OK;
}

static enum pp_code read_windows(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const char key[] = "global_attn_idx";
    const cJSON *item;
    const enum pp_code code = pp_config_int(config, "sliding_window", &hp->window, err);
    cJSON_ArrayForEach(item, pp_json_member(config, key))
    {
        const int64_t l = layer_of(item, hp);
        if (l < 0)
            return pp_fail(err, PP_ERR_FORMAT, "config.json: %s has something that is no layer's number", key);
        hp->layer[l] |= hp->window ? PP_LAYER_WIDE : 0;
    }
    if (!code && hp->window) /* theirs does not count the row's own position */
        hp->window++;
    return code;
}

/* NTK-aware scaling by the ratio of the context to that of the first training. */
static enum pp_code read_rope(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const char *const kinds[] = {"ntk", "default", NULL};
    const char *kind = cJSON_GetStringValue(pp_json_member(config, "rope_type"));
    int64_t first = 0;
    enum pp_code code = pp_config_word(config, "rope_type", kinds, err);
    if (!code)
        code = pp_config_int(config, "orig_max_position_embeddings", &first, err);
    if (code)
        return code;
    if (!pp_config_flag(config, "rope", false))
        pp_layers_every(hp, 1, PP_LAYER_UNROTATED);
    if (!kind || strcmp(kind, "ntk") != 0)
        return PP_OK;
    if (first < 1 || hp->n_ctx_train < first || hp->rope_dim < 4)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: orig_max_position_embeddings is %lld, which RoPE cannot be "
                       "stretched from", (long long)first);
    const double stretched = 2 * (double)hp->n_ctx_train / (double)first - 1, n = (double)hp->rope_dim;
    hp->rope_base = (float)((double)hp->rope_base * pow(stretched, n / (n - 2)));
    return PP_OK;
}

/* Refuses options of the family's code that no model uses. */
static enum pp_code refuse_others(const cJSON *config, const struct pp_hparams *hp, struct pp_error *err)
{
    static const char *const none[] = {"none", NULL};
    const struct {
        const char *key;
        int64_t least, most;
    } numbers[] = {{"num_experts", 1, 1}, {"num_mamba", 1, 1}, {"kv_reuse_every_i_layer", INT64_MIN, 1},
                   {"memory_tokens_interspersed_every", INT64_MIN, 0}, {"attn_hidden_size", INT64_MIN, 0},
                   {"kq_head_dim", INT64_MIN, 0}};
    enum pp_code code = pp_config_word(config, "kq_norm", none, err);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && !code; i++) {
        int64_t v = numbers[i].most;
        code = pp_config_int(config, numbers[i].key, &v, err);
        const bool usual_heads = i == 5 && v == hp->head_dim;
        if (!code && !usual_heads && (v < numbers[i].least || v > numbers[i].most))
            code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s is %lld, which is not supported in this family",
                           numbers[i].key, (long long)v);
    }
    if (!code && pp_config_flag(config, "mamba_proj_bias", false))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: mamba_proj_bias is true, which is not supported in this "
                       "family");
    return code;
}

/* All heads of attention's values together are as wide as Mamba's channels. */
static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (!code)
        code = pp_config_activation(config, "mlp_hidden_act", pp_silu_names, err);
    if (!code)
        code = refuse_others(config, hp, err);
    if (!code)
        code = read_windows(config, hp, err);
    if (!code)
        code = read_groups(config, hp, err);
    if (!code)
        code = read_rope(config, hp, err);
    if (!code)
        code = pp_config_int(config, "num_memory_tokens", &hp->n_meta_tokens, err);
    if (!code)
        code = pp_scan_from_config(config, &scan_keys, 0, hp, err);
    if (code)
        return code;
    const int64_t inner = hp->n_state_head * hp->state_value_dim;
    if (inner % hp->n_head != 0)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: %lld channels are no values of %lld heads", (long long)inner,
                       (long long)hp->n_head);
    hp->v_head_dim = inner / hp->n_head != hp->head_dim ? inner / hp->n_head : 0;
    return finish(hp, err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    const bool rotated = !(hp->layer[0] & PP_LAYER_UNROTATED);
    cJSON_DeleteItemFromObjectCaseSensitive(config, "sliding_window");
    if (hp->window) {
        cJSON *wide = cJSON_AddArrayToObject(config, "global_attn_idx");
        cJSON_AddNumberToObject(config, "sliding_window", (double)(hp->window - 1));
        for (int64_t l = 0; l < hp->n_layer; l++)
            if (hp->layer[l] & PP_LAYER_WIDE)
                cJSON_AddItemToArray(wide, cJSON_CreateNumber((double)l));
    }
    cJSON *groups = cJSON_AddArrayToObject(config, "kv_reuse_group"), *group = NULL;
    for (int64_t l = 0; l < hp->n_layer; l++) {
        const bool shared = hp->layer[l] & PP_LAYER_SHARED;
        if (shared && l > 0 && !(hp->layer[l - 1] & PP_LAYER_SHARED)) {
            group = cJSON_CreateArray();
            cJSON_AddItemToArray(groups, group);
            cJSON_AddItemToArray(group, cJSON_CreateNumber((double)(l - 1)));
        }
        if (shared && group)
            cJSON_AddItemToArray(group, cJSON_CreateNumber((double)l));
    }
    pp_scan_to_config(hp, &scan_keys, config);
    pp_config_put(config, "num_memory_tokens", hp->n_meta_tokens);
    pp_config_put(config, "num_experts", 1);
    pp_config_put(config, "num_experts_per_tok", 1);
    pp_config_put(config, "v_head_dim", hp->v_head_dim ? hp->v_head_dim : hp->head_dim);
    cJSON_AddBoolToObject(config, "rope", rotated);
    cJSON_AddNullToObject(config, "rope_type");
    pp_config_put_text(config, "kq_norm", "none");
    pp_config_put_text(config, "mlp_hidden_act", pp_silu_names[0]);
    cJSON_AddTrueToObject(config, "mamba_conv_bias");
    cJSON_AddFalseToObject(config, "mamba_proj_bias");
}

const struct pp_arch pp_arch_hymba = {
    .name = "hymba",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
