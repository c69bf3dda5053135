/* granite_switch.c - Granite Switch: Granite 4 without states or experts, with built-in LoRA adapters of all its
 * matrices, which special tokens in the text switch on (switched.c). Such a token is embedded as another one. */
#include <cjson/cJSON.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"
#include "engine/hparams_int.h"

#define LAYER "model.layers.{}."
#define HALF(hf_name, letter, gguf_name) \
    .hf = LAYER hf_name, .gguf = "blk.{}." gguf_name ".lora_" letter, .form = PP_HF_ADAPTERS, .whole = true
#define SLICE(module, i, gguf_name)                                                                                   \
    {HALF(module ".lora_A_slices." i, "a", gguf_name)}, {HALF(module ".lora_B_slices." i, "b", gguf_name)}
#define ROTATED_SLICE(module, i, gguf_name, order)                                                                    \
    {HALF(module ".lora_A_slices." i, "a", gguf_name)},                                                               \
    {HALF(module ".lora_B_slices." i, "b", gguf_name), .rows = order}
#define WHOLE(module, gguf_name)                                                                                      \
    {HALF(module ".lora_A", "a", gguf_name)}, {HALF(module ".lora_B", "b", gguf_name)}
#define GATE_UP(module)                                                                                               \
    {.hf = LAYER module ".weight", .gguf = "blk.{}.ffn_gate.weight", .second = "blk.{}.ffn_up.weight",                \
     .form = PP_HF_HALVES, .whole = true}

/* A folder lists which of the four modules have adapters; the others lack ".base_layer" in their names. */
static const struct pp_arch_name names[] = {
    {.hf = LAYER "self_attn.qkv_proj.base_layer", .gguf = "blk.{}.attn_qkv", .rows = PP_ROWS_QKV},
    {.hf = LAYER "self_attn.qkv_proj", .gguf = "blk.{}.attn_qkv", .rows = PP_ROWS_QKV, .read_only = true},
    ROTATED_SLICE("self_attn.qkv_proj", "0", "attn_q", PP_ROWS_Q),
    ROTATED_SLICE("self_attn.qkv_proj", "1", "attn_k", PP_ROWS_K),
    SLICE("self_attn.qkv_proj", "2", "attn_v"),
    {.hf = LAYER "self_attn.o_proj.base_layer", .gguf = "blk.{}.attn_output"},
    WHOLE("self_attn.o_proj", "attn_output"),
    GATE_UP("shared_mlp.input_linear.base_layer"),
    GATE_UP("shared_mlp.input_linear"),
    SLICE("shared_mlp.input_linear", "0", "ffn_gate"),
    SLICE("shared_mlp.input_linear", "1", "ffn_up"),
    {.hf = LAYER "shared_mlp.output_linear.base_layer", .gguf = "blk.{}.ffn_down"},
    {.hf = LAYER "shared_mlp.output_linear", .gguf = "blk.{}.ffn_down", .read_only = true},
    WHOLE("shared_mlp.output_linear", "ffn_down"),
    {.hf = NULL},
};
static const struct pp_arch_name more_names[] = { /* and the names that users' adapters have */
    {.hf = LAYER "self_attn.q_proj", .gguf = "blk.{}.attn_q", .rows = PP_ROWS_Q},
    {.hf = LAYER "self_attn.k_proj", .gguf = "blk.{}.attn_k", .rows = PP_ROWS_K},
    {.hf = LAYER "self_attn.v_proj", .gguf = "blk.{}.attn_v"},
    {.hf = LAYER "self_attn.o_proj", .gguf = "blk.{}.attn_output"},
    {.hf = LAYER "input_layernorm", .gguf = "blk.{}.attn_norm"},
    {.hf = LAYER "post_attention_layernorm", .gguf = "blk.{}.ffn_norm"},
    {.hf = "model.embed_tokens", .gguf = "token_embd"},
    {.hf = "model.norm", .gguf = "output_norm"},
    {.hf = "lm_head", .gguf = "output"},
    {.hf = NULL},
};
static const char *const classes[] = {"GraniteSwitchForCausalLM", "granite_switch", NULL};
/* Ignored: tables that follow from the configuration. */
static const char *const ignored[] = {"adapter_token_ids", "control_to_substitute_lut", ".rotary_emb.inv_freq", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"num_local_experts\": 0, \"tie_word_embeddings\": true}"},
    {.json = NULL},
};
static const float usual_gain = 15;

static enum pp_code check(const struct pp_hparams *hp, struct pp_error *err)
{
    const struct pp_switched_tokens *t = &hp->switched;
    if (!(t->gain >= 0 && t->gain <= 1000))
        return pp_fail(err, PP_ERR_FORMAT, "the model switches its adapters on with a gain of %g, which is not valid",
                       (double)t->gain);
    for (int64_t k = 0; k < t->n; k++) {
        enum pp_code code = pp_check_range("token that switches an adapter on", t->token[k], 0, hp->n_vocab - 1, err);
        if (!code)
            code = pp_check_range("token that stands for one that does", t->read_as[k], 0, hp->n_vocab - 1, err);
        for (int64_t i = 0; i < k && !code; i++)
            if (t->token[i] == t->token[k])
                code = pp_fail(err, PP_ERR_FORMAT, "token %d switches two adapters on", t->token[k]);
        if (code)
            return code;
    }
    return PP_OK;
}

/* --- config.json -------------------------------------------------------------------------------------------------- */

static enum pp_code take_tokens(const cJSON *config, const char *key, int64_t n, int32_t *tokens, struct pp_error *err)
{
    const cJSON *list = pp_json_member(config, key), *item;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != n)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: %s does not list the tokens of %lld adapters", key,
                       (long long)n);
    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsNumber(item) || item->valuedouble != (double)item->valueint || item->valueint < 0)
            return pp_fail(err, PP_ERR_FORMAT, "config.json: %s has something other than tokens", key);
        *tokens++ = item->valueint;
    }
    return PP_OK;
}

static enum pp_code switched_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    struct pp_switched_tokens *t = &hp->switched;
    enum pp_code code = pp_config_int(config, "num_adapters", &t->n, err);
    t->gain = usual_gain;
    if (!code)
        code = pp_check_range("number of adapters", t->n, 0, PP_MAX_SWITCHED, err);
    if (code || !t->n)
        return code;
    code = take_tokens(config, "adapter_token_ids", t->n, t->token, err);
    if (!code)
        code = take_tokens(config, "adapter_substitute_token_ids", t->n, t->read_as, err);
    if (!code)
        code = pp_config_float(config, "control_token_gain", &t->gain, err);
    if (!code)
        code = pp_config_int(config, "max_lora_rank", &t->rank, err);
    hp->n_layer--; /* the last one is the switch */
    return code;
}

static enum pp_code refuse_others(const cJSON *config, struct pp_error *err)
{
    static const char *const one[] = {"single", NULL};
    static const char *const rotated[] = {"rope", "nope", NULL};
    int64_t hidden = 0, n_expert = 0;
    enum pp_code code = pp_config_int(config, "control_dims", &hidden, err);
    if (!code)
        code = pp_config_int(config, "num_local_experts", &n_expert, err);
    if (!code && hidden)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: control_dims is %lld: tokens that others do not see are "
                       "not supported; models that have others in their place are", (long long)hidden);
    if (!code && n_expert)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: num_local_experts is %lld; experts are not supported for "
                       "this family", (long long)n_expert);
    if (!code && pp_config_flag(config, "qk_norm", false))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: qk_norm is true, which is not supported for this family");
    if (!code)
        code = pp_config_word(config, "switch_type", one, err);
    return code ? code : pp_config_word(config, "position_embedding_type", rotated, err);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const char *rotated = cJSON_GetStringValue(pp_json_member(config, "position_embedding_type"));
    enum pp_code code = refuse_others(config, err);
    if (!code)
        code = switched_from_config(config, hp, err);
    if (!code)
        code = pp_check_range("number of layers", hp->n_layer, 1, PP_MAX_LAYERS, err);
    if (!code)
        code = pp_granite_from_config(config, hp, err);
    if (!code)
        code = pp_config_int(config, "shared_intermediate_size", &hp->n_ff, err);
    if (!code && rotated && strcmp(rotated, "rope") != 0)
        pp_layers_every(hp, 1, PP_LAYER_UNROTATED);
    return code ? code : check(hp, err);
}

/* --- GGUF --------------------------------------------------------------------------------------------------------- */

static const char n_key[] = "graniteswitch.adapters.count", token_key[] = "graniteswitch.adapters.token_ids_activate",
                  read_key[] = "graniteswitch.adapters.token_ids_substitute",
                  gain_key[] = "graniteswitch.adapters.router_gain", rank_key[] = "graniteswitch.adapters.lora_rank";

static enum pp_code tokens_from_gguf(const struct pp_gguf *g, const char *key, int64_t n, int32_t *tokens,
                                     struct pp_error *err)
{
    enum pp_gguf_type type;
    size_t n_there = 0;
    bool good = pp_gguf_array(g, key, &type, &n_there) && n_there == (size_t)n;
    for (size_t i = 0; good && i < (size_t)n; i++) {
        int64_t token = -1;
        good = pp_gguf_array_int(g, key, i, &token) && token >= 0 && token <= INT32_MAX;
        tokens[i] = (int32_t)token;
    }
    return good ? PP_OK : pp_fail(err, PP_ERR_FORMAT, "metadata %s does not list the tokens of %lld adapters", key,
                                  (long long)n);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    struct pp_switched_tokens *t = &hp->switched;
    double gain = (double)usual_gain;
    pp_gguf_int(g, n_key, &t->n);
    pp_gguf_int(g, rank_key, &t->rank);
    pp_gguf_float(g, gain_key, &gain);
    t->gain = (float)gain;
    enum pp_code code = pp_check_range("number of adapters", t->n, 0, PP_MAX_SWITCHED, err);
    if (!code && t->n)
        code = tokens_from_gguf(g, token_key, t->n, t->token, err);
    if (!code && t->n)
        code = tokens_from_gguf(g, read_key, t->n, t->read_as, err);
    if (!code)
        code = pp_granite_from_gguf(g, hp, err);
    return code ? code : check(hp, err);
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    const struct pp_switched_tokens *t = &hp->switched;
    pp_gguf_add_u32(w, n_key, (uint32_t)t->n);
    pp_gguf_add_u32(w, rank_key, (uint32_t)t->rank);
    pp_gguf_add_i32_array(w, token_key, t->token, (size_t)t->n);
    pp_gguf_add_i32_array(w, read_key, t->read_as, (size_t)t->n);
    pp_gguf_add_f32(w, gain_key, t->gain);
    if (hp->layer[0] & PP_LAYER_UNROTATED)
        pp_gguf_add_bool(w, "graniteswitch.rope.scaling.finetuned", false);
}

const struct pp_arch pp_arch_granite_switch = {
    .name = "graniteswitch",
    .hf_classes = classes,
    .names = names,
    .more_names = more_names,
    .ignored = ignored,
    .defaults = defaults,
    .gguf_divides_logits = true,
    .decoder = {.fused_qkv = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
};
