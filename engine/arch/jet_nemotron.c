/* jet_nemotron.c - Jet-Nemotron (arXiv 2508.15884): Qwen 2, in most layers with the gated delta rule in place of
 * attention and values convolved by taps that are computed for each position (decoder_delta.c); some of the other
 * layers have a window. Of JetVLM's folders the language model (wrapped.c). Only pippin makes GGUF files of it, with
 * Qwen3-Next's keys. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"
#include "engine/hparams_int.h"

#define MIXER "model.layers.{}.self_attn."

static const struct pp_arch_name names[] = {
    {.hf = MIXER "o_proj", .gguf = "blk.{}.ssm_out", .recurrent = true},
    {.hf = MIXER "g_proj", .gguf = "blk.{}.attn_gate"},
    {.hf = MIXER "a_proj", .gguf = "blk.{}.ssm_alpha"},
    {.hf = MIXER "b_proj", .gguf = "blk.{}.ssm_beta"},
    {.hf = MIXER "A_log", .gguf = "blk.{}.ssm_a", .form = PP_HF_MINUS_EXP, .whole = true},
    {.hf = MIXER "dt_bias", .gguf = "blk.{}.ssm_dt.bias", .whole = true},
    {.hf = MIXER "o_norm", .gguf = "blk.{}.ssm_norm"},
    {.hf = MIXER "dynamic_conv1d.kernel_generator.w1", .gguf = "blk.{}.ssm_taps_a"},
    {.hf = MIXER "dynamic_conv1d.kernel_generator.w2", .gguf = "blk.{}.ssm_taps_b"},
    {.hf = NULL},
};
static const char *const classes[] = {"JetNemotronForCausalLM", "jet_nemotron", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 151936, \"hidden_size\": 1536, \"intermediate_size\": 8960, \"num_hidden_layers\": 28,"
             "\"num_attention_heads\": 12, \"num_key_value_heads\": 2, \"max_position_embeddings\": 32768,"
             "\"rope_theta\": 1000000.0, \"tie_word_embeddings\": true}"},
    {.json = NULL},
};
static const char states_word[] = "jet", window_word[] = "swa", all_word[] = "attn";
static const char parts_key[] = "efficient_attention_config", types_key[] = "layer_types";
static const float usual_eps = 1e-5f; /* of the norm of the states' output */

static int64_t n_values(const struct pp_hparams *hp)
{
    return hp->n_state_head * hp->state_value_dim;
}

/* A state_eps of 0 would stand for the model's epsilon. */
static enum pp_code check_eps(const struct pp_hparams *hp, struct pp_error *err)
{
    return hp->state_eps > 0 ? PP_OK
                             : pp_fail(err, PP_ERR_FORMAT, "the model's epsilon of states is %g, which is not valid",
                                       (double)hp->state_eps);
}

/* --- GGUF -------------------------------------------------------------------------------------------------------- */

static const char rank_key[] = "jet_nemotron.ssm.tap_rank", eps_key[] = "jet_nemotron.ssm.layer_norm_rms_epsilon";

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    if (!pp_gguf_has(g, rank_key))
        return PP_OK; /* there are no layers with states */
    enum pp_code code = pp_delta_from_gguf(g, hp, err);
    if (!code)
        code = pp_gguf_need_int(g, rank_key, &hp->dynamic_conv_rank, err);
    if (!code)
        code = pp_gguf_need_float(g, eps_key, &hp->state_eps, err);
    if (!code)
        code = check_eps(hp, err);
    if (!code)
        code = pp_check_range("rank of a convolution's taps", hp->dynamic_conv_rank, 1, n_values(hp), err);
    if (!code && n_values(hp) / (n_values(hp) / hp->dynamic_conv_rank) != hp->dynamic_conv_rank)
        code = pp_fail(err, PP_ERR_FORMAT, "metadata %s is %lld, which does not divide %lld values", rank_key,
                       (long long)hp->dynamic_conv_rank, (long long)n_values(hp));
    return code;
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    if (!hp->dynamic_conv_rank)
        return;
    pp_delta_to_gguf(hp, w);
    pp_gguf_add_u32(w, rank_key, (uint32_t)hp->dynamic_conv_rank);
    pp_gguf_add_f32(w, eps_key, hp->state_eps);
}

/* --- config.json ------------------------------------------------------------------------------------------------- */

/* A number, which published configurations have as a string. */
static enum pp_code read_eps(const cJSON *states, float *eps, struct pp_error *err)
{
    const cJSON *item = pp_json_member(states, "norm_eps");
    const char *text = cJSON_GetStringValue(item);
    char *end = NULL;
    if (!text)
        return pp_config_float(states, "norm_eps", eps, err);
    *eps = strtof(text, &end);
    return *text && !*end ? PP_OK
                          : pp_fail(err, PP_ERR_FORMAT, "config.json: norm_eps of %s is not the number it should be",
                                    parts_key);
}

static enum pp_code read_states(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *states = pp_json_member(pp_json_member(config, parts_key), states_word);
    const cJSON *said = pp_json_member(states, "expand_v");
    double growth = 2;
    int64_t part = 8;
    const struct {
        const char *key;
        int64_t *v;
        int64_t most;
    } numbers[] = {
        {"num_heads", &hp->n_state_head, 1 << 12}, {"head_dim", &hp->state_key_dim, 1 << 10},
        {"conv_size", &hp->conv_taps, PP_MAX_TAPS}, {"dconv_generator_reduction", &part, 1 << 20},
    };
    enum pp_code code = PP_OK;
    if (!cJSON_IsObject(states))
        return pp_fail(err, PP_ERR_FORMAT, "config.json: %s has no object %s, which layers of that kind need",
                       parts_key, states_word);
    hp->n_state_head = 6;
    hp->state_key_dim = 256;
    hp->conv_taps = 4;
    hp->state_eps = usual_eps;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && !code; i++)
        if (!(code = pp_config_int(states, numbers[i].key, numbers[i].v, err)))
            code = pp_check_range(numbers[i].key, *numbers[i].v, 1, numbers[i].most, err);
    if (!code)
        code = read_eps(states, &hp->state_eps, err);
    if (!code)
        code = check_eps(hp, err);
    if (code)
        return code;
    if (said && !cJSON_IsNull(said))
        growth = cJSON_IsNumber(said) ? said->valuedouble : 0;
    const double values = (double)hp->state_key_dim * growth;
    if (!(values >= 1 && values <= 1 << 20) || values - trunc(values) > 1e-5 * values)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: expand_v of %s is not a number that makes whole values of "
                       "%lld", parts_key, (long long)hp->state_key_dim);
    hp->n_state_key_head = hp->n_state_head;
    hp->state_value_dim = (int64_t)values;
    hp->dynamic_conv_rank = n_values(hp) / part;
    return pp_check_range("rank of a convolution's taps", hp->dynamic_conv_rank, 1, n_values(hp), err);
}

static enum pp_code read_window(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *window = pp_json_member(pp_json_member(config, parts_key), window_word);
    const enum pp_code code = pp_config_int(window, "window_size", &hp->window, err);
    if (code || hp->window > 0)
        return code;
    return pp_fail(err, PP_ERR_FORMAT, "config.json: %s has no window_size for %s, which layers of that kind need",
                   parts_key, window_word);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *types = pp_json_member(config, types_key), *item;
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    bool recurs = false, windowed = false;
    int64_t l = 0;
    if (code || !types || cJSON_IsNull(types))
        return code; /* all layers have full attention */
    if (!cJSON_IsArray(types) || cJSON_GetArraySize(types) != hp->n_layer)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: %s does not name %lld layers", types_key,
                       (long long)hp->n_layer);
    cJSON_ArrayForEach(item, types)
    {
        const char *word = cJSON_IsString(item) ? item->valuestring : "";
        const bool states = strcmp(word, states_word) == 0, all = strcmp(word, all_word) == 0;
        if (!states && !all && strcmp(word, window_word) != 0)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s has \"%.40s\", which is not supported for this "
                           "family", types_key, word);
        hp->layer[l++] |= states ? PP_LAYER_RECURRENT : all ? PP_LAYER_WIDE : 0;
        recurs = recurs || states;
        windowed = windowed || (!states && !all);
    }
    if (recurs)
        code = read_states(config, hp, err);
    if (!code && windowed)
        code = read_window(config, hp, err);
    for (l = 0; l < hp->n_layer && !windowed; l++)
        hp->layer[l] &= (uint8_t)~PP_LAYER_WIDE;
    return code;
}

/* n / m, slightly larger if it is not whole, so that truncating n / quotient gives m again. */
static double quotient(int64_t n, int64_t m)
{
    return n % m ? (double)n / (double)m * (1 + 1e-9) : (double)(n / m);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    cJSON *types = cJSON_AddArrayToObject(config, types_key), *parts = cJSON_AddObjectToObject(config, parts_key);
    for (int64_t l = 0; l < hp->n_layer; l++) {
        const bool wide = !hp->window || hp->layer[l] & PP_LAYER_WIDE;
        const char *word = hp->layer[l] & PP_LAYER_RECURRENT ? states_word : wide ? all_word : window_word;
        cJSON_AddItemToArray(types, cJSON_CreateString(word));
    }
    if (hp->window)
        cJSON_AddNumberToObject(cJSON_AddObjectToObject(parts, window_word), "window_size", (double)hp->window);
    if (!hp->dynamic_conv_rank)
        return;
    cJSON *states = cJSON_AddObjectToObject(parts, states_word);
    pp_config_put_text(states, "mode", "chunk");
    pp_config_put(states, "num_heads", hp->n_state_head);
    pp_config_put(states, "head_dim", hp->state_key_dim);
    cJSON_AddNumberToObject(states, "expand_v", quotient(hp->state_value_dim, hp->state_key_dim));
    pp_config_put(states, "conv_size", hp->conv_taps);
    pp_config_put(states, "dconv_generator_reduction", n_values(hp) / hp->dynamic_conv_rank);
    pp_config_put_text(states, "dconv_implementation", "triton");
    pp_config_put_float(states, "norm_eps", hp->state_eps);
}

const struct pp_arch pp_arch_jet_nemotron = {
    .name = "jet_nemotron",
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
