/* gptneo.c - GPT-Neo (transformers, models/gpt_neo): learned positions, LayerNorm, unscaled attention scores, and a
 * window in every other layer. Only pippin makes GGUF files of it. */
#include <cjson/cJSON.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/hparams.h"

#define LAYER(hf_name, gguf_name) {.hf = "transformer.h.{}." hf_name, .gguf = "blk.{}." gguf_name}

static const struct pp_arch_name names[] = {
    {.hf = "transformer.wte", .gguf = "token_embd"},
    {.hf = "transformer.wpe", .gguf = "position_embd"},
    {.hf = "transformer.ln_f", .gguf = "output_norm"},
    {.hf = "lm_head", .gguf = "output"},
    LAYER("ln_1", "attn_norm"),
    LAYER("attn.attention.q_proj", "attn_q"),
    LAYER("attn.attention.k_proj", "attn_k"),
    LAYER("attn.attention.v_proj", "attn_v"),
    LAYER("attn.attention.out_proj", "attn_output"),
    LAYER("ln_2", "ffn_norm"),
    LAYER("mlp.c_fc", "ffn_up"),
    LAYER("mlp.c_proj", "ffn_down"),
    {.hf = NULL},
};

static const char *const classes[] = {"GPTNeoForCausalLM", "gpt_neo", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 50257, \"hidden_size\": 2048, \"num_layers\": 24, \"num_heads\": 16,"
             "\"max_position_embeddings\": 2048, \"intermediate_size\": null,"
             "\"attention_types\": [[[\"global\", \"local\"], 12]], \"window_size\": 256,"
             "\"tie_word_embeddings\": true}"},
    {.json = NULL},
};

static const char types_key[] = "attention_types", layers_key[] = "attention_layers";
static const char wide_word[] = "global", narrow_word[] = "local";

static enum pp_code fail_types(const struct pp_hparams *hp, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s does not give %s or %s for each of %lld layers", types_key,
                   wide_word, narrow_word, (long long)hp->n_layer);
}

/* attention_types, [[["global", "local"], 12]]: lists of words, each with a number of repetitions. */
static enum pp_code types_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *runs = pp_json_member(config, types_key), *run, *word;
    int64_t l = 0;
    cJSON_ArrayForEach(run, runs)
    {
        const cJSON *words = cJSON_GetArrayItem(run, 0), *times = cJSON_GetArrayItem(run, 1);
        if (!cJSON_IsArray(words) || !cJSON_GetArraySize(words) || !cJSON_IsNumber(times) ||
            !(times->valuedouble >= 0 && times->valuedouble <= PP_MAX_LAYERS))
            return fail_types(hp, err);
        for (int i = 0; i < times->valueint; i++)
            cJSON_ArrayForEach(word, words)
            {
                const char *text = cJSON_IsString(word) ? word->valuestring : "";
                const bool wide = strcmp(text, wide_word) == 0;
                if (l >= hp->n_layer || (!wide && strcmp(text, narrow_word) != 0))
                    return fail_types(hp, err);
                hp->layer[l++] |= wide ? PP_LAYER_WIDE : 0;
            }
    }
    return l == hp->n_layer ? PP_OK : fail_types(hp, err);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_function(config, "activation_function", PP_ACTIVATION_GELU_TANH, hp, err);
    bool narrow = false;
    hp->norm_eps = 1e-5f;
    hp->attn_scale = 1;
    if (!code)
        code = pp_config_float(config, "layer_norm_epsilon", &hp->norm_eps, err);
    if (!code)
        code = pp_config_int(config, "window_size", &hp->window, err);
    if (!code && hp->window < 1)
        code = pp_fail(err, PP_ERR_FORMAT, "config.json: window_size is missing or not positive");
    if (!code) /* attention_layers, the expanded list, takes precedence if it is there */
        code = cJSON_IsArray(pp_json_member(config, layers_key))
                   ? pp_config_layer_words(config, layers_key, wide_word, narrow_word, PP_LAYER_WIDE, hp, err)
                   : types_from_config(config, hp, err);
    for (int64_t l = 0; l < hp->n_layer; l++)
        narrow = narrow || !(hp->layer[l] & PP_LAYER_WIDE);
    hp->window = narrow ? hp->window : 0;
    return code;
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    cJSON *layers = cJSON_AddArrayToObject(config, layers_key), *types = cJSON_AddArrayToObject(config, types_key);
    cJSON *run = cJSON_CreateArray();
    for (int64_t l = 0; l < hp->n_layer; l++) {
        const bool wide = !hp->window || hp->layer[l] & PP_LAYER_WIDE;
        cJSON_AddItemToArray(layers, cJSON_CreateString(wide ? wide_word : narrow_word));
    }
    cJSON_AddItemToArray(run, cJSON_Duplicate(layers, true));
    cJSON_AddItemToArray(run, cJSON_CreateNumber(1));
    cJSON_AddItemToArray(types, run);
    pp_config_put_text(config, "activation_function", pp_config_function_name(&pp_arch_gptneo.decoder, hp));
    pp_config_put(config, "num_layers", hp->n_layer);
    pp_config_put(config, "num_heads", hp->n_head);
    pp_config_put(config, "window_size", hp->window ? hp->window : 256);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g, (void)err;
    hp->attn_scale = hp->attn_scale != 0.0f ? hp->attn_scale : 1;
    return PP_OK;
}

const struct pp_arch pp_arch_gptneo = {
    .name = "gpt_neo",
    .hf_classes = classes,
    .names = names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .decoder = {.layer_norm = true, .norm_bias = true, .ungated = true, .fn = PP_FN_GELU_TANH,
                .positions = PP_POS_LEARNED},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_config = to_config,
    .hf_eps = "layer_norm_epsilon",
};
