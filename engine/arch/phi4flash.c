/* phi4flash.c - Phi 4 mini Flash (SambaY, arXiv 2507.06607): in the first half of the layers Mamba and windowed
 * attention alternate. In the second half, gated memory units, which gate the scan output of the middle Mamba layer,
 * alternate with attention to the keys and values of the layer after that. Attention is differential
 * (decoder_difference.c), without positions. Only pippin makes GGUF files of it; folders are only read. */
#include <cjson/cJSON.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/hparams.h"

#define LAYER "model.layers.{}."
#define PART LAYER "attn."
#define NUMBERS(name)                                                                                                  \
    {.hf = PART "inner_cross_attn.lambda_" name, .gguf = "blk.{}.attn_lambda_" name, .whole = true}

static const struct pp_arch_name names[] = {
    {.hf = "model.final_layernorm", .gguf = "output_norm"},
    {.hf = LAYER "mlp.fc1.weight", .gguf = "blk.{}.ffn_gate.weight", .second = "blk.{}.ffn_up.weight",
     .form = PP_HF_HALVES, .whole = true},
    {.hf = LAYER "mlp.fc2", .gguf = "blk.{}.ffn_down"},
    {.hf = PART "in_proj", .gguf = "blk.{}.ssm_in"},
    {.hf = PART "conv1d.weight", .gguf = "blk.{}.ssm_conv1d.weight", .form = PP_HF_CONV, .whole = true},
    {.hf = PART "conv1d.bias", .gguf = "blk.{}.ssm_conv1d.bias", .whole = true},
    {.hf = PART "x_proj", .gguf = "blk.{}.ssm_x"},
    {.hf = PART "dt_proj", .gguf = "blk.{}.ssm_dt"},
    {.hf = PART "A_log", .gguf = "blk.{}.ssm_a", .form = PP_HF_MINUS_EXP, .whole = true},
    {.hf = PART "D", .gguf = "blk.{}.ssm_d", .whole = true},
    {.hf = PART "out_proj", .gguf = "blk.{}.ssm_out", .recurrent = true},
    {.hf = PART "out_proj", .gguf = "blk.{}.attn_output"},
    {.hf = PART "Wqkv", .gguf = "blk.{}.attn_q", .shared_block = true},
    {.hf = PART "Wqkv", .gguf = "blk.{}.attn_qkv", .form = PP_HF_QKV_STACKED},
    {.hf = PART "inner_cross_attn.subln", .gguf = "blk.{}.attn_sub_norm"},
    NUMBERS("q1"), NUMBERS("k1"), NUMBERS("q2"), NUMBERS("k2"),
    {.hf = NULL},
};
static const char *const classes[] = {"Phi4FlashForCausalLM", "phi4flash", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 51200, \"hidden_size\": 2560, \"intermediate_size\": 9216, \"num_hidden_layers\": 32,"
             "\"num_attention_heads\": 40, \"num_key_value_heads\": 4, \"max_position_embeddings\": 4096,"
             "\"layer_norm_eps\": 1e-5, \"tie_word_embeddings\": true}"},
    {.json = NULL},
};
static const struct pp_scan_keys scan_keys = {.taps = "mamba_d_conv", .key_dim = "mamba_d_state",
                                              .rank = "mamba_dt_rank", .expand = "mamba_expand"};

/* The kinds of layers follow from their number. */
static enum pp_code finish(struct pp_hparams *hp, struct pp_error *err)
{
    const int64_t middle = hp->n_layer / 2;
    if (hp->n_layer < 4 || hp->n_layer > PP_MAX_LAYERS || hp->n_layer % 4 != 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "a model of this family with %lld layers is not supported; they come "
                       "in fours", (long long)hp->n_layer);
    if (hp->n_head_kv < 2 || hp->n_head_kv % 2 != 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the model has %lld key heads, which cannot be paired",
                       (long long)hp->n_head_kv);
    hp->differential = hp->heads_alternate = true;
    hp->memory_layer = middle;
    pp_layers_every(hp, 1, PP_LAYER_UNROTATED);
    for (int64_t l = 0; l < hp->n_layer; l++) {
        if (l % 2 == 0)
            hp->layer[l] |= l <= middle ? PP_LAYER_RECURRENT : PP_LAYER_SHARING;
        else if (l > middle)
            hp->layer[l] |= PP_LAYER_WIDE | (l > middle + 1 ? PP_LAYER_SHARED | PP_LAYER_SHARING : 0);
    }
    return PP_OK;
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    const enum pp_code code = finish(hp, err);
    return code ? code : pp_scan_from_gguf(g, hp, err);
}

/* sliding_window: a number, or a list for all layers that must agree with their kinds. */
static enum pp_code read_window(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *said = pp_json_member(config, "sliding_window"), *item;
    int64_t l = 0;
    hp->window = 2047;
    if (!cJSON_IsArray(said))
        return said ? pp_config_int(config, "sliding_window", &hp->window, err) : PP_OK;
    hp->window = 0;
    cJSON_ArrayForEach(item, said)
    {
        const bool has = l < hp->n_layer / 2 && l % 2 == 1;
        const int64_t window = cJSON_IsNumber(item) && item->valuedouble > 0 && item->valuedouble < 1e9
                                   ? (int64_t)item->valuedouble : 0;
        if (has != (window > 0) || (hp->window && window && window != hp->window))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: sliding_window has %lld for layer %lld, which is not "
                           "supported in this family", (long long)window, (long long)l);
        hp->window = window ? window : hp->window;
        l++;
    }
    return PP_OK;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const char *const biased[] = {"mamba_proj_bias", "mlp_bias", "lm_head_bias"};
    int64_t period = 2;
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (!code)
        code = pp_config_int(config, "mb_per_layer", &period, err);
    if (!code && period != 2)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: mb_per_layer is %lld, which is not supported in this "
                       "family", (long long)period);
    for (size_t i = 0; i < sizeof biased / sizeof *biased && !code; i++)
        if (pp_config_flag(config, biased[i], false))
            code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s is true, which is not supported in this family",
                           biased[i]);
    if (!code)
        code = pp_config_float(config, "layer_norm_eps", &hp->norm_eps, err);
    if (!code)
        code = finish(hp, err);
    if (!code)
        code = read_window(config, hp, err);
    return code ? code : pp_scan_from_config(config, &scan_keys, 0, hp, err);
}

const struct pp_arch pp_arch_phi4flash = {
    .name = "phi4flash",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .decoder = {.layer_norm = true, .norm_bias = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = pp_scan_to_gguf,
    .hf_eps = "layer_norm_eps",
};
