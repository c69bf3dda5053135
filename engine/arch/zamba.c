/* zamba.c - the first Zamba (arXiv 2405.16712): Mamba in every layer, in several scans side by side
 * (decoder_scan_heads.c), and in some layers a block of attention and a feed-forward part that they all share
 * (decoder_zamba.c). Only pippin makes GGUF files of it. */
#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"
#include "engine/hparams_int.h"

#define LAYER "model.layers.{}."
#define SHARED LAYER "shared_transf."
/* The names of a layer's Mamba, which has a prefix in layers with the block. */
#define MAMBA(prefix, ...)                                                                                            \
    {.hf = LAYER prefix "input_layernorm", .gguf = "blk.{}.attn_norm", __VA_ARGS__},                                  \
    {.hf = LAYER prefix "mamba.in_proj", .gguf = "blk.{}.ssm_in", __VA_ARGS__},                                       \
    {.hf = LAYER prefix "mamba.conv1d.weight", .gguf = "blk.{}.ssm_conv1d.weight", .form = PP_HF_CONV,                \
     .whole = true, __VA_ARGS__},                                                                                     \
    {.hf = LAYER prefix "mamba.conv1d.bias", .gguf = "blk.{}.ssm_conv1d.bias", .whole = true, __VA_ARGS__},           \
    {.hf = LAYER prefix "mamba.x_proj_weight", .gguf = "blk.{}.ssm_x.weight", .whole = true, __VA_ARGS__},            \
    {.hf = LAYER prefix "mamba.dt_proj_weight", .gguf = "blk.{}.ssm_dt.weight", .whole = true, __VA_ARGS__},          \
    {.hf = LAYER prefix "mamba.dt_proj_bias", .gguf = "blk.{}.ssm_dt.bias", .whole = true, __VA_ARGS__},              \
    {.hf = LAYER prefix "mamba.A_log", .gguf = "blk.{}.ssm_a", .form = PP_HF_MINUS_EXP, .whole = true, __VA_ARGS__},  \
    {.hf = LAYER prefix "mamba.D", .gguf = "blk.{}.ssm_d", .whole = true, __VA_ARGS__},                               \
    {.hf = LAYER prefix "mamba.out_proj", .gguf = "blk.{}.ssm_out", __VA_ARGS__}

static const struct pp_arch_name names[] = {
    MAMBA("mamba_decoder.", .shared_block = true),
    MAMBA("", .read_only = false),
    {.hf = "model.final_layernorm", .gguf = "output_norm"},
    PP_SHARED_BLOCK_NAMES(SHARED),
    {.hf = SHARED "feed_forward.gate_proj", .gguf = "blk.{}.shared_gate"},
    {.hf = SHARED "feed_forward.up_proj", .gguf = "blk.{}.shared_up"},
    {.hf = NULL},
};
static const char *const classes[] = {"ZambaForCausalLM", "zamba", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 32000, \"hidden_size\": 3712, \"intermediate_size\": 14848, \"num_hidden_layers\": 76,"
             "\"num_attention_heads\": 16, \"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-5,"
             "\"n_mamba_heads\": 2, \"attn_layer_period\": 6, \"attn_layer_offset\": 4,"
             "\"tie_word_embeddings\": true}"},
    {.json = NULL},
};
static const struct pp_scan_keys keys = {.taps = "mamba_d_conv", .key_dim = "mamba_d_state", .rank = "mamba_dt_rank",
                                         .expand = "mamba_expand"};
static const char layers_key[] = "zamba.shared.layers", scans_key[] = "zamba.ssm.scan_count";
enum { BEGIN = 3 }; /* of the first three layers only the last has the block, whatever the period */

/* Completes the fields, once it is known which layers have the block. Heads read 2 n_embd values, but the scores are
 * scaled as if they were half as large. */
static enum pp_code finish(struct pp_hparams *hp, struct pp_error *err)
{
    bool any = false;
    pp_layers_every(hp, 1, PP_LAYER_RECURRENT | PP_LAYER_UNROTATED);
    for (int64_t l = 0; l < hp->n_layer; l++)
        any = any || hp->layer[l] & PP_LAYER_SHARING;
    if (!any)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the model has no layer with attention, which is not supported for "
                       "this family (%s)", hp->arch);
    hp->n_shared_block = 1;
    hp->attn_scale = hp->head_dim > 0 ? sqrtf(2.0f / (float)hp->head_dim) : 0;
    return PP_OK;
}

enum pp_code pp_sharing_from_gguf(const struct pp_gguf *g, const char *key, struct pp_hparams *hp,
                                  struct pp_error *err)
{
    for (int64_t l = 0; l < hp->n_layer; l++) {
        bool shares = false;
        if (!pp_gguf_array_bool(g, key, (size_t)l, &shares))
            return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks %s, or it does not name %lld layers", key,
                           (long long)hp->n_layer);
        hp->layer[l] |= shares ? PP_LAYER_SHARING : 0;
    }
    return PP_OK;
}

void pp_sharing_to_gguf(const struct pp_hparams *hp, const char *key, struct pp_gguf_writer *w)
{
    bool shares[PP_MAX_LAYERS];
    for (int64_t l = 0; l < hp->n_layer; l++)
        shares[l] = hp->layer[l] & PP_LAYER_SHARING;
    pp_gguf_add_bool_array(w, key, shares, (size_t)hp->n_layer);
}

void pp_sharing_to_config(const struct pp_hparams *hp, cJSON *config)
{
    cJSON *types = cJSON_AddArrayToObject(config, "layers_block_type");
    for (int64_t l = 0; l < hp->n_layer; l++)
        cJSON_AddItemToArray(types, cJSON_CreateString(hp->layer[l] & PP_LAYER_SHARING ? "hybrid" : "mamba"));
}

/* To be checked before channels are divided by it. */
static enum pp_code check_scans(const struct pp_hparams *hp, struct pp_error *err)
{
    return pp_check_range("number of scans", hp->n_scan_head, 1, 1 << 12, err);
}

/* --- GGUF -------------------------------------------------------------------------------------------------------- */

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    if (!pp_gguf_int(g, scans_key, &hp->n_scan_head))
        return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks %s", scans_key);
    if (check_scans(hp, err))
        return err->code;
    enum pp_code code = pp_sharing_from_gguf(g, layers_key, hp, err);
    if (!code)
        code = pp_scan_from_gguf(g, hp, err);
    return code ? code : finish(hp, err);
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_scan_to_gguf(hp, w);
    pp_gguf_add_u32(w, scans_key, (uint32_t)hp->n_scan_head);
    pp_sharing_to_gguf(hp, layers_key, w);
}

/* --- config.json ------------------------------------------------------------------------------------------------- */

/* Whether a layer has the block, by config.json. */
static bool has_block(int64_t l, int64_t period, int64_t offset)
{
    return l < BEGIN ? l == BEGIN - 1 : (l - BEGIN) % period == offset;
}

/* Which layers have the block: a list or, without one, a period and an offset. */
static enum pp_code read_layers(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t period = 6, offset = 4;
    enum pp_code code = pp_config_int(config, "attn_layer_period", &period, err);
    if (!code)
        code = pp_config_int(config, "attn_layer_offset", &offset, err);
    if (!code)
        code = pp_check_range("attn_layer_period", period, 1, PP_MAX_LAYERS, err);
    if (!code)
        code = pp_check_range("num_hidden_layers", hp->n_layer, BEGIN, PP_MAX_LAYERS, err);
    for (int64_t l = 0; l < hp->n_layer && !code; l++)
        hp->layer[l] |= has_block(l, period, offset) ? PP_LAYER_SHARING : 0;
    if (code)
        return code;
    return pp_config_layer_words(config, "layers_block_type", "hybrid", "mamba", PP_LAYER_SHARING, hp, err);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const char *fn = cJSON_GetStringValue(pp_json_member(config, "hidden_mamba_act"));
    enum pp_code code = pp_config_gelu(config, "hidden_act", PP_ACTIVATION_GELU, hp, err);
    hp->head_dim = 2 * hp->n_embd / hp->n_head;
    hp->n_scan_head = 2;
    if (!code && fn && strcmp(fn, "silu") != 0)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: hidden_mamba_act is \"%.40s\"; only silu is supported",
                       fn);
    if (!code)
        code = pp_config_int(config, "attention_head_dim", &hp->head_dim, err);
    hp->rope_dim = hp->head_dim;
    if (!code)
        code = read_layers(config, hp, err);
    if (!code)
        code = pp_config_int(config, "n_mamba_heads", &hp->n_scan_head, err);
    if (!code)
        code = check_scans(hp, err);
    if (!code)
        code = pp_scan_from_config(config, &keys, 0, hp, err);
    return code ? code : finish(hp, err);
}

/* The reverse: a period and an offset, if there are some that fit. */
static void put_layers(const struct pp_hparams *hp, cJSON *config)
{
    for (int64_t period = 1; period <= hp->n_layer; period++)
        for (int64_t offset = 0; offset < period; offset++) {
            int64_t l = 0;
            while (l < hp->n_layer && has_block(l, period, offset) == !!(hp->layer[l] & PP_LAYER_SHARING))
                l++;
            if (l < hp->n_layer)
                continue;
            pp_config_put(config, "attn_layer_period", period);
            pp_config_put(config, "attn_layer_offset", offset);
            return;
        }
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_sharing_to_config(hp, config);
    put_layers(hp, config);
    cJSON_DeleteItemFromObjectCaseSensitive(config, "head_dim");
    pp_config_put(config, "attention_head_dim", hp->head_dim);
    pp_config_put(config, "n_mamba_heads", hp->n_scan_head);
    pp_scan_to_config(hp, &keys, config);
}

const struct pp_arch pp_arch_zamba = {
    .name = "zamba",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .decoder = {.fn = PP_FN_GELU},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
