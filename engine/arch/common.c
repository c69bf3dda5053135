/* common.c - names of tensors, and readers and writers of config.json, that many families share. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/hparams.h"

#define COMMON_NAMES                                                                                                  \
    {.hf = "model.embed_tokens", .gguf = "token_embd"},                                                               \
    {.hf = "model.norm", .gguf = "output_norm"},                                                                      \
    {.hf = "lm_head", .gguf = "output"},                                                                              \
    {.hf = "model.layers.{}.input_layernorm", .gguf = "blk.{}.attn_norm"},                                            \
    {.hf = "model.layers.{}.self_attn.q_proj", .gguf = "blk.{}.attn_q"},                                              \
    {.hf = "model.layers.{}.self_attn.k_proj", .gguf = "blk.{}.attn_k"},                                              \
    {.hf = "model.layers.{}.self_attn.v_proj", .gguf = "blk.{}.attn_v"},                                              \
    {.hf = "model.layers.{}.self_attn.o_proj", .gguf = "blk.{}.attn_output"},                                         \
    {.hf = "model.layers.{}.post_attention_layernorm", .gguf = "blk.{}.ffn_norm"},                                    \
    {.hf = "model.layers.{}.mlp.gate_proj", .gguf = "blk.{}.ffn_gate"},                                               \
    {.hf = "model.layers.{}.mlp.up_proj", .gguf = "blk.{}.ffn_up"},                                                   \
    {.hf = "model.layers.{}.mlp.down_proj", .gguf = "blk.{}.ffn_down"}

const struct pp_arch_name pp_common_names[] = {COMMON_NAMES, {.hf = NULL}};

const struct pp_arch_name pp_expert_names[] = {
    {.hf = "model.layers.{}.mlp.gate", .gguf = "blk.{}.ffn_gate_inp"},
    {.hf = "model.layers.{}.mlp.experts.{}.gate_proj", .gguf = "blk.{}.ffn_gate.{}"},
    {.hf = "model.layers.{}.mlp.experts.{}.up_proj", .gguf = "blk.{}.ffn_up.{}"},
    {.hf = "model.layers.{}.mlp.experts.{}.down_proj", .gguf = "blk.{}.ffn_down.{}"},
    {.hf = "model.layers.{}.mlp.switch_mlp.gate_proj", .gguf = "blk.{}.ffn_gate_exps", .mlx = true},
    {.hf = "model.layers.{}.mlp.switch_mlp.up_proj", .gguf = "blk.{}.ffn_up_exps", .mlx = true},
    {.hf = "model.layers.{}.mlp.switch_mlp.down_proj", .gguf = "blk.{}.ffn_down_exps", .mlx = true},
    {.hf = "model.layers.{}.mlp.shared_experts.gate_proj", .gguf = "blk.{}.ffn_gate_shexp"},
    {.hf = "model.layers.{}.mlp.shared_experts.up_proj", .gguf = "blk.{}.ffn_up_shexp"},
    {.hf = "model.layers.{}.mlp.shared_experts.down_proj", .gguf = "blk.{}.ffn_down_shexp"},
    {.hf = "model.layers.{}.mlp.gate.e_score_correction_bias", .gguf = "blk.{}.exp_probs_b.bias", .whole = true},
    COMMON_NAMES,
    {.hf = NULL},
};

const struct pp_arch_name pp_interleaved_names[] = {
    {.hf = "model.layers.{}.self_attn.q_proj", .gguf = "blk.{}.attn_q", .rows = PP_ROWS_Q},
    {.hf = "model.layers.{}.self_attn.k_proj", .gguf = "blk.{}.attn_k", .rows = PP_ROWS_K},
    {.hf = NULL},
};

const char *const pp_common_ignored[] = {".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias", ".attention.bias",
                                         ".attention.masked_bias", NULL};

const char *const pp_text_prefixes[] = {
    "model.language_model.model.", "model.", "model.language_model.lm_head", "lm_head",
    "model.language_model.", "model.", "language_model.model.", "model.", "language_model.lm_head", "lm_head", NULL};
const char *const pp_picture_parts[] = {"vision_tower.", "multi_modal_projector.", "model.vision_tower.",
                                        "model.multi_modal_projector.", NULL};
const char *const pp_gemma_others[] = {"model.vision_tower.", "model.embed_vision.", "model.audio_tower.",
                                       "model.embed_audio.", "model.vision_embedder.", NULL};
const char *const pp_qwen_prefixes[] = {"model.language_model.", "model.", "language_model.model.", "model.", NULL};
const char *const pp_qwen_others[] = {"visual.", "model.visual.", NULL};

const char *const pp_silu_names[] = {"silu", "swish", NULL};
const char *const pp_relu2_names[] = {"relu2", NULL};
const char *const pp_gelu_tanh_names[] = {"gelu_pytorch_tanh", "gelu_new", "gelu_fast", NULL};

enum pp_code pp_config_gelu(const cJSON *config, const char *key, enum pp_activation usual,
                            struct pp_hparams *hp, struct pp_error *err)
{
    static const char *const known[] = {"gelu", "gelu_python", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", NULL};
    const cJSON *fn = pp_json_member(config, key);
    if (!cJSON_IsString(fn))
        return PP_OK;
    const bool exact = strcmp(fn->valuestring, known[0]) == 0 || strcmp(fn->valuestring, known[1]) == 0;
    const enum pp_activation gelu = exact ? PP_ACTIVATION_GELU : PP_ACTIVATION_GELU_TANH;
    hp->activation = gelu == usual ? PP_ACTIVATION_USUAL : gelu;
    return pp_config_activation(config, key, known, err);
}

enum pp_code pp_config_function(const cJSON *config, const char *key, enum pp_activation usual, struct pp_hparams *hp,
                                struct pp_error *err)
{
    static const struct {
        const char *name;
        enum pp_activation fn;
    } known[] = {{"relu", PP_ACTIVATION_RELU}, {"gelu", PP_ACTIVATION_GELU}, {"gelu_python", PP_ACTIVATION_GELU},
                 {"gelu_new", PP_ACTIVATION_GELU_TANH}, {"gelu_fast", PP_ACTIVATION_GELU_TANH},
                 {"gelu_pytorch_tanh", PP_ACTIVATION_GELU_TANH}, {"silu", PP_ACTIVATION_SILU},
                 {"swish", PP_ACTIVATION_SILU}, {"relu2", PP_ACTIVATION_RELU2}};
    const cJSON *fn = pp_json_member(config, key);
    if (!cJSON_IsString(fn))
        return PP_OK;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, fn->valuestring) == 0) {
            hp->activation = known[i].fn == usual ? PP_ACTIVATION_USUAL : known[i].fn;
            return PP_OK;
        }
    return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s \"%.40s\" is not supported for this family; relu, gelu, "
                   "gelu_new, silu and relu2 are", key, fn->valuestring);
}

const char *pp_config_function_name(const struct pp_decoder *d, const struct pp_hparams *hp)
{
    switch (pp_decoder_fn(d, hp)) {
    case PP_FN_RELU: return "relu";
    case PP_FN_RELU2: return "relu2";
    case PP_FN_GELU: return "gelu";
    case PP_FN_SILU: return "silu";
    default: return "gelu_new";
    }
}

bool pp_config_flag(const cJSON *config, const char *key, bool otherwise)
{
    const cJSON *item = pp_json_member(config, key);
    return cJSON_IsBool(item) ? cJSON_IsTrue(item) : otherwise;
}

enum pp_code pp_config_float(const cJSON *config, const char *key, float *v, struct pp_error *err)
{
    if (pp_json_float(config, key, v))
        return PP_OK;
    return pp_fail(err, PP_ERR_FORMAT, "config.json: %s is not the number it should be", key);
}

enum pp_code pp_config_int(const cJSON *config, const char *key, int64_t *v, struct pp_error *err)
{
    if (pp_json_int(config, key, v))
        return PP_OK;
    return pp_fail(err, PP_ERR_FORMAT, "config.json: %s is not the number it should be", key);
}

enum pp_code pp_config_window(const cJSON *config, int64_t otherwise, struct pp_hparams *hp, struct pp_error *err)
{
    if (!pp_json_member(config, "sliding_window"))
        hp->window = otherwise;
    return pp_config_int(config, "sliding_window", &hp->window, err);
}

enum pp_code pp_config_unscaled(const cJSON *rope, struct pp_error *err)
{
    const cJSON *type = pp_json_member(rope, "rope_type");
    if (!cJSON_IsString(type) || strcmp(type->valuestring, "default") == 0)
        return PP_OK;
    return pp_fail(err, PP_ERR_UNSUPPORTED, "RoPE scaling \"%.40s\" of layers with a window is not supported",
                   type->valuestring);
}

enum pp_code pp_config_qwen_window(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t first = 28;
    enum pp_code code = PP_OK;
    if (!pp_config_flag(config, "use_sliding_window", false))
        return PP_OK;
    code = pp_config_window(config, 4096, hp, err);
    if (!code)
        code = pp_config_int(config, "max_window_layers", &first, err);
    for (int64_t l = 0; l < first && l < PP_MAX_LAYERS; l++)
        hp->layer[l] |= PP_LAYER_WIDE;
    return code ? code : pp_config_layer_types(config, hp, err);
}

bool pp_config_has_rope(const cJSON *config)
{
    return pp_json_member(config, "rope_parameters") || pp_json_member(config, "rope_scaling");
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

static void put_item(cJSON *config, const char *key, cJSON *item)
{
    cJSON_DeleteItemFromObjectCaseSensitive(config, key);
    cJSON_AddItemToObject(config, key, item);
}

void pp_config_put(cJSON *config, const char *key, int64_t v)
{
    put_item(config, key, cJSON_CreateNumber((double)v));
}

void pp_config_put_float(cJSON *config, const char *key, float v)
{
    char text[32];
    snprintf(text, sizeof text, "%.9g", (double)v);
    put_item(config, key, cJSON_CreateRaw(text));
}

void pp_config_put_text(cJSON *config, const char *key, const char *v)
{
    put_item(config, key, cJSON_CreateString(v));
}

void pp_config_put_class(cJSON *config, const char *hf_class, const char *model_type)
{
    put_item(config, "architectures", cJSON_CreateStringArray(&hf_class, 1));
    pp_config_put_text(config, "model_type", model_type);
}

void pp_config_put_unscaled(cJSON *config, const struct pp_hparams *hp)
{
    if (hp->rope_scaling != PP_ROPE_NONE)
        return;
    cJSON *rope = cJSON_AddObjectToObject(config, "rope_parameters");
    pp_config_put_text(rope, "rope_type", "default");
    pp_config_put_float(rope, "rope_theta", hp->rope_base);
}

void pp_config_put_layer_types(cJSON *config, const struct pp_hparams *hp)
{
    cJSON *types = cJSON_CreateArray();
    pp_config_put(config, "sliding_window", hp->window);
    for (int64_t l = 0; l < hp->n_layer; l++) {
        const bool wide = !hp->window || hp->layer[l] & PP_LAYER_WIDE;
        cJSON_AddItemToArray(types, cJSON_CreateString(wide ? "full_attention" : "sliding_attention"));
    }
    put_item(config, "layer_types", types);
}

void pp_config_put_ropes(cJSON *config, const struct pp_hparams *hp)
{
    cJSON *both = cJSON_CreateObject(), *full = cJSON_DetachItemFromObjectCaseSensitive(config, "rope_scaling");
    if (!full && (full = cJSON_CreateObject()))
        pp_config_put_text(full, "rope_type", "default");
    pp_config_put_float(full, "rope_theta", hp->rope_base);
    pp_config_put_float(full, "partial_rotary_factor", (float)hp->rope_dim / (float)hp->head_dim);
    cJSON_AddItemToObject(both, "full_attention", full);
    if (hp->window) {
        cJSON *local = cJSON_AddObjectToObject(both, "sliding_attention");
        pp_config_put_text(local, "rope_type", "default");
        pp_config_put_float(local, "rope_theta", hp->rope_base_local);
        pp_config_put_float(local, "partial_rotary_factor", (float)hp->rope_dim_local / (float)hp->head_dim);
    }
    cJSON_DeleteItemFromObjectCaseSensitive(config, "partial_rotary_factor");
    cJSON_AddItemToObject(config, "rope_parameters", both);
}

void pp_config_put_qwen_window(const struct pp_hparams *hp, cJSON *config)
{
    cJSON_AddBoolToObject(config, "use_sliding_window", hp->window != 0);
    if (hp->window)
        pp_config_put_layer_types(config, hp);
}
