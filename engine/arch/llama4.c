/* llama4.c - the language model of Llama 4 (Scout, Maverick; transformers, models/llama4): in three of four layers
 * chunked attention with rotated heads, normalised without weights in some models; in the others full attention
 * without RoPE and scores that grow with the position. One routed expert, whose input is multiplied by its sigmoid
 * weight, and one shared expert. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

#define LAYER "model.layers.{}."
#define FF LAYER "feed_forward."

static const struct pp_arch_name names[] = {
    {.hf = LAYER "self_attn.q_proj", .gguf = "blk.{}.attn_q", .rows = PP_ROWS_Q},
    {.hf = LAYER "self_attn.k_proj", .gguf = "blk.{}.attn_k", .rows = PP_ROWS_K},
    {.hf = FF "gate_proj", .gguf = "blk.{}.ffn_gate"},
    {.hf = FF "up_proj", .gguf = "blk.{}.ffn_up"},
    {.hf = FF "down_proj", .gguf = "blk.{}.ffn_down"},
    {.hf = FF "router", .gguf = "blk.{}.ffn_gate_inp"},
    {.hf = FF "experts.gate_up_proj", .gguf = "blk.{}.ffn_gate_exps.weight", .second = "blk.{}.ffn_up_exps.weight",
     .form = PP_HF_EXPERTS_HALVES, .whole = true},
    {.hf = FF "experts.down_proj", .gguf = "blk.{}.ffn_down_exps.weight", .form = PP_HF_EXPERTS_TRANSPOSED,
     .whole = true},
    {.hf = FF "shared_expert.gate_proj", .gguf = "blk.{}.ffn_gate_shexp"},
    {.hf = FF "shared_expert.up_proj", .gguf = "blk.{}.ffn_up_shexp"},
    {.hf = FF "shared_expert.down_proj", .gguf = "blk.{}.ffn_down_shexp"},
    {.hf = NULL},
};

static const char *const classes[] = {"Llama4ForCausalLM", "llama4_text", "Llama4ForConditionalGeneration", "llama4",
                                      NULL};
static const char *const prefixes[] = {"language_model.model.", "model.", "language_model.lm_head", "lm_head", NULL};
static const char *const others[] = {"vision_model.", "multi_modal_projector.", NULL};
static const struct pp_arch_parts parts = {.model_type = "llama4_text", .prefixes = prefixes, .others = others};

static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 202048, \"hidden_size\": 5120, \"intermediate_size\": 8192,"
             "\"intermediate_size_mlp\": 16384, \"num_hidden_layers\": 48, \"num_attention_heads\": 40,"
             "\"num_key_value_heads\": 8, \"head_dim\": 128, \"max_position_embeddings\": 131072,"
             "\"rms_norm_eps\": 1e-5, \"rope_theta\": 500000.0, \"num_local_experts\": 16,"
             "\"num_experts_per_tok\": 1}"},
    {.json = NULL},
};

enum { WITHOUT_NORMS = 128 }; /* GGUF files have no key for it: the model with so many experts has no norms of heads */

/* A list; NULL: it is empty or absent. */
static const cJSON *list_of(const cJSON *config, const char *key)
{
    const cJSON *list = pp_json_member(config, key);
    return cJSON_GetArraySize(list) > 0 ? list : NULL;
}

static enum pp_code read_rotations(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *list = list_of(config, "no_rope_layers"); /* 1: rotated */
    int64_t step = 4, l = 0;
    enum pp_code code = pp_config_int(config, "no_rope_layer_interval", &step, err);
    const cJSON *item;
    if (!list)
        pp_layers_every(hp, step < 1 ? PP_MAX_LAYERS : step, PP_LAYER_UNROTATED | PP_LAYER_WIDE);
    else if (cJSON_GetArraySize(list) != hp->n_layer)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: no_rope_layers does not name %lld layers",
                       (long long)hp->n_layer);
    cJSON_ArrayForEach(item, list)
    {
        if (cJSON_IsNumber(item) && item->valueint == 0)
            hp->layer[l] |= PP_LAYER_UNROTATED | PP_LAYER_WIDE;
        l++;
    }
    if (!code)
        code = pp_config_int(config, "attention_chunk_size", &hp->window, err);
    hp->chunked = true;
    if (!code && list_of(config, "layer_types"))
        code = pp_config_layer_words(config, "layer_types", "full_attention", "chunked_attention", PP_LAYER_WIDE, hp,
                                     err);
    return code;
}

static enum pp_code read_experts(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const struct pp_expert_keys keys = {.n = "num_local_experts", .n_used = "num_experts_per_tok"};
    const cJSON *list = list_of(config, "moe_layers"), *item;
    int64_t step = 1;
    enum pp_code code = pp_config_experts(config, &keys, hp, err);
    hp->expert_sigmoids = hp->expert_no_renorm = true;
    if (!code)
        code = pp_config_int(config, "interleave_moe_layer_step", &step, err);
    if (!code)
        code = pp_config_int(config, "intermediate_size_mlp", &hp->n_ff, err);
    for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        if (list || step < 1 || (l + 1) % step != 0)
            hp->layer[l] |= PP_LAYER_DENSE;
    cJSON_ArrayForEach(item, list)
        if (cJSON_IsNumber(item) && item->valueint >= 0 && item->valueint < PP_MAX_LAYERS)
            hp->layer[item->valueint] &= (uint8_t)~PP_LAYER_DENSE;
    return code;
}

static void set_temperature(struct pp_hparams *hp, float scale, int64_t length)
{
    hp->attn_temperature = scale;
    hp->attn_temperature_length = length;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *tuned = pp_json_member(config, "attn_temperature_tuning"); /* flag or number */
    int64_t length = 8192;
    float scale = 0.1f;
    hp->window = 8192;
    hp->qk_norm = pp_config_flag(config, "use_qk_norm", true);
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (!code)
        code = read_rotations(config, hp, err);
    if (!code)
        code = read_experts(config, hp, err);
    if (!code)
        code = pp_config_int(config, "floor_scale", &length, err);
    if (!code)
        code = pp_config_float(config, "attn_scale", &scale, err);
    set_temperature(hp, cJSON_IsFalse(tuned) || (cJSON_IsNumber(tuned) && tuned->valueint == 0) ? 0 : scale, length);
    return code;
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    double scale = 0.1;
    int64_t length = 8192;
    if (pp_gguf_has(g, "llama4.attention.sliding_window") && !hp->window)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "a model of the family llama4 without chunks is not supported");
    hp->window = hp->window ? hp->window : 8192;
    hp->chunked = true;
    pp_layers_every(hp, 4, PP_LAYER_UNROTATED);
    if (!pp_gguf_has(g, "llama4.attention.sliding_window_pattern"))
        pp_layers_every(hp, 4, PP_LAYER_WIDE);
    hp->qk_norm = hp->n_expert != WITHOUT_NORMS;
    pp_gguf_float(g, "llama4.attention.temperature_scale", &scale);
    pp_gguf_int(g, "llama4.attention.temperature_length", &length);
    set_temperature(hp, (float)scale, length);
    return PP_OK;
}

static int64_t first_mixture(const struct pp_hparams *hp)
{
    int64_t l = 0;
    while (l < hp->n_layer && hp->layer[l] & PP_LAYER_DENSE)
        l++;
    return l;
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_gguf_add_u32(w, "llama4.interleave_moe_layer_step", (uint32_t)(first_mixture(hp) + 1));
    pp_gguf_add_u32(w, "llama4.attention.temperature_length", (uint32_t)hp->attn_temperature_length);
    if (hp->attn_temperature == 0.0f)
        pp_gguf_add_f32(w, "llama4.attention.temperature_scale", 0);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    cJSON *rotated = cJSON_AddArrayToObject(config, "no_rope_layers");
    cJSON *mixtures = cJSON_AddArrayToObject(config, "moe_layers");
    cJSON *types = cJSON_AddArrayToObject(config, "layer_types");
    for (int64_t l = 0; l < hp->n_layer; l++) {
        const bool wide = hp->layer[l] & PP_LAYER_WIDE || !hp->window;
        cJSON_AddItemToArray(rotated, cJSON_CreateNumber(!(hp->layer[l] & PP_LAYER_UNROTATED)));
        cJSON_AddItemToArray(types, cJSON_CreateString(wide ? "full_attention" : "chunked_attention"));
        if (!(hp->layer[l] & PP_LAYER_DENSE))
            cJSON_AddItemToArray(mixtures, cJSON_CreateNumber((double)l));
    }
    pp_config_put(config, "attention_chunk_size", hp->window);
    pp_config_put(config, "num_local_experts", hp->n_expert);
    pp_config_put(config, "num_experts_per_tok", hp->n_expert_used);
    pp_config_put(config, "intermediate_size", hp->n_ff_expert);
    pp_config_put(config, "intermediate_size_mlp", hp->n_ff);
    pp_config_put(config, "interleave_moe_layer_step", first_mixture(hp) + 1);
    cJSON_AddBoolToObject(config, "use_qk_norm", hp->qk_norm);
    cJSON_AddBoolToObject(config, "attn_temperature_tuning", hp->attn_temperature != 0.0f);
    pp_config_put_float(config, "attn_scale", hp->attn_temperature != 0.0f ? hp->attn_temperature : 0.1f);
    pp_config_put(config, "floor_scale", hp->attn_temperature_length);
}

const struct pp_arch pp_arch_llama4 = {
    .name = "llama4",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .parts = &parts,
    .hf_pairs = true,
    .layer_pattern = 4,
    .unrotated_pattern = 4,
    .gguf_has_window_key = true,
    .gguf_default_no_renorm = true,
    .gguf_default_sigmoids = true,
    .decoder = {.unweighted_qk_norm = true, .norm_after_rope = true, .weighted_inputs = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
