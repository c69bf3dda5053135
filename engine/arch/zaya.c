/* zaya.c - ZAYA1 (arXiv 2511.17127; transformers, models/zaya): compressed convolutional attention (decoder_cca.c), in
 * some models with a window in some layers; one expert for each row, or none, chosen by a narrow vector that is passed
 * from layer to layer; stream and parts' outputs are scaled value by value. Only pippin makes GGUF files of it;
 * zaya.router_length is the width of that vector.
 *
 * Early folders, with attention and experts in layers of their own, are refused. */
#include <cjson/cJSON.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

#define LAYER "model.layers.{}."
#define HEADS LAYER "self_attn.qkv_proj."
#define SCALED(hf_part, gguf_part)                                                                                     \
    {.hf = LAYER hf_part "_residual_scale.hidden_states_scale", .gguf = "blk.{}." gguf_part "_result.weight",          \
     .whole = true},                                                                                                   \
    {.hf = LAYER hf_part "_residual_scale.hidden_states_bias", .gguf = "blk.{}." gguf_part "_result.bias",             \
     .whole = true},                                                                                                   \
    {.hf = LAYER hf_part "_residual_scale.residual_scale", .gguf = "blk.{}." gguf_part "_residual.weight",             \
     .whole = true},                                                                                                   \
    {.hf = LAYER hf_part "_residual_scale.residual_bias", .gguf = "blk.{}." gguf_part "_residual.bias", .whole = true}

static const struct pp_arch_name names[] = {
    {.hf = "model.input_hidden_states_scale", .gguf = "embd_scale.weight", .whole = true},
    {.hf = "model.input_hidden_states_bias", .gguf = "embd_scale.bias", .whole = true},
    {.hf = HEADS "q_proj", .gguf = "blk.{}.attn_q"},
    {.hf = HEADS "k_proj", .gguf = "blk.{}.attn_k"},
    {.hf = HEADS "v_proj_current", .gguf = "blk.{}.attn_v"},
    {.hf = HEADS "v_proj_delayed", .gguf = "blk.{}.attn_v_last"},
    {.hf = HEADS "conv_qk_depthwise.weight", .gguf = "blk.{}.attn_qk_conv.weight", .form = PP_HF_CONV,
     .whole = true},
    {.hf = HEADS "conv_qk_depthwise.bias", .gguf = "blk.{}.attn_qk_conv.bias", .whole = true},
    {.hf = HEADS "conv_qk_grouped.weight", .gguf = "blk.{}.attn_qk_mix_last.weight",
     .second = "blk.{}.attn_qk_mix.weight", .form = PP_HF_TWO_TAPS_3D, .whole = true},
    {.hf = HEADS "conv_qk_grouped.bias", .gguf = "blk.{}.attn_qk_mix.bias", .whole = true},
    {.hf = LAYER "self_attn.qk_norm.temp", .gguf = "blk.{}.attn_k_scale.weight", .whole = true},
    {.hf = LAYER "mlp.gate.down_proj", .gguf = "blk.{}.ffn_router_in"},
    {.hf = LAYER "mlp.gate.router_states_scale", .gguf = "blk.{}.ffn_router_carry.weight", .whole = true},
    {.hf = LAYER "mlp.gate.router_mlp.norm", .gguf = "blk.{}.ffn_router_norm"},
    {.hf = LAYER "mlp.gate.router_mlp.fc1", .gguf = "blk.{}.ffn_router_1"},
    {.hf = LAYER "mlp.gate.router_mlp.fc2", .gguf = "blk.{}.ffn_router_2"},
    {.hf = LAYER "mlp.gate.router_mlp.out_proj", .gguf = "blk.{}.ffn_gate_inp"},
    {.hf = LAYER "mlp.gate.balancing_biases", .gguf = "blk.{}.exp_probs_b.bias", .whole = true},
    {.hf = LAYER "mlp.experts.gate_up_proj", .gguf = "blk.{}.ffn_gate_exps.weight",
     .second = "blk.{}.ffn_up_exps.weight", .form = PP_HF_HALVES, .whole = true},
    {.hf = LAYER "mlp.experts.down_proj", .gguf = "blk.{}.ffn_down_exps.weight", .whole = true},
    SCALED("post_attention", "attn"),
    SCALED("post_mlp", "ffn"),
    {.hf = NULL},
};
static const char *const classes[] = {"ZayaForCausalLM", "zaya", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 262272, \"hidden_size\": 2048, \"num_hidden_layers\": 40, \"num_attention_heads\": 8,"
             "\"num_key_value_heads\": 2, \"head_dim\": 128, \"max_position_embeddings\": 131072, \"num_experts\": 16,"
             "\"intermediate_size\": 2048, \"rms_norm_eps\": 1e-5, \"num_experts_per_tok\": 1,"
             "\"moe_intermediate_size\": 2048, \"router_hidden_size\": 256, \"tie_word_embeddings\": true}"},
    {.json = NULL},
};
static const struct pp_expert_keys expert_keys = {
    .n = "num_experts", .n_used = "num_experts_per_tok", .n_ff = "moe_intermediate_size"};
static const char all[] = "hybrid", windows[] = "hybrid_sliding"; /* words of layer_types */
static const float LOCAL_BASE = 10000;

/* Fixed properties: an additional expert without output, weights from the softmax over all experts. */
static enum pp_code set_heads(struct pp_hparams *hp, struct pp_error *err)
{
    hp->convolved_heads = true;
    hp->expert_no_renorm = true;
    hp->n_expert_idle = 1;
    hp->idle_output_zero = true;
    if (hp->n_head_kv < 1 || hp->n_head % hp->n_head_kv != 0 || hp->n_head_kv * hp->head_dim % 2 != 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "a model of this family with %lld heads of queries and %lld of keys of "
                       "%lld values is not supported", (long long)hp->n_head, (long long)hp->n_head_kv,
                       (long long)hp->head_dim);
    if (hp->n_expert_used != 1 || hp->router_rank < 1)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "a model of this family of whose experts %lld are used, which are "
                       "chosen by %lld values, is not supported", (long long)hp->n_expert_used,
                       (long long)hp->router_rank);
    return PP_OK;
}

/* --- config.json -------------------------------------------------------------------------------------------------- */

/* Refuses settings that no published model has. */
static enum pp_code check_words(const cJSON *config, struct pp_error *err)
{
    static const char *const taps[] = {"cca_time0", "cca_time1"};
    static const char *const absent[] = {"attention_bias", "lm_head_bias"};
    if (pp_json_member(config, "zaya_layers") || pp_json_member(config, "cca"))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json is of the family's first form, in which attention and "
                       "experts have layers of their own; take the model as transformers has it");
    for (int i = 0; i < 2; i++) {
        int64_t n = 2;
        if (pp_config_int(config, taps[i], &n, err))
            return err->code;
        if (n != 2)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s is %lld; 2 is supported", taps[i], (long long)n);
        if (pp_config_flag(config, absent[i], false))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s is true, which is not supported", absent[i]);
    }
    return pp_config_activation(config, "hidden_act", pp_silu_names, err);
}

/* RoPE's base for a kind of layers, and the rotated part of a head. */
static enum pp_code rope_from(const cJSON *config, const char *kind, float *base, float *part, struct pp_error *err)
{
    const cJSON *rope = pp_json_member(config, "rope_parameters");
    const cJSON *of = pp_json_member(rope, kind);
    enum pp_code code = pp_config_unscaled(of, err);
    if (!code)
        code = pp_config_float(of, "rope_theta", base, err);
    return code ? code : pp_config_float(of, "partial_rotary_factor", part, err);
}

static enum pp_code layers_from(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *list = pp_json_list(config, "layer_types"), *item;
    int64_t l = 0, n_narrow = 0;
    enum pp_code code = pp_config_window(config, 0, hp, err);
    for (int64_t i = 0; i < hp->n_layer && i < PP_MAX_LAYERS; i++)
        hp->layer[i] |= PP_LAYER_WIDE;
    if (!code && list && cJSON_GetArraySize(list) != hp->n_layer)
        code = pp_fail(err, PP_ERR_FORMAT, "config.json: layer_types does not name %lld layers",
                       (long long)hp->n_layer);
    if (code)
        return code;
    cJSON_ArrayForEach(item, list)
    {
        const char *name = cJSON_IsString(item) ? item->valuestring : "";
        const bool narrow = strcmp(name, windows) == 0;
        if (!narrow && strcmp(name, all) != 0)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: layer_types has \"%.40s\", which is not supported; "
                           "%s and %s are", name, all, windows);
        if (narrow)
            hp->layer[l] = (uint8_t)(hp->layer[l] & ~PP_LAYER_WIDE);
        n_narrow += narrow;
        l++;
    }
    if (n_narrow && !hp->window)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: layers have a window, but sliding_window is missing");
    hp->window = n_narrow ? hp->window : 0;
    return PP_OK;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    float part = 0.5f, local = 0.5f;
    hp->rope_base = 5e6f;
    hp->rope_base_local = LOCAL_BASE;
    enum pp_code code = check_words(config, err);
    if (!code)
        code = pp_config_experts(config, &expert_keys, hp, err);
    if (!code)
        code = pp_config_int(config, "router_hidden_size", &hp->router_rank, err);
    if (!code)
        code = layers_from(config, hp, err);
    if (!code)
        code = rope_from(config, all, &hp->rope_base, &part, err);
    if (!code)
        code = rope_from(config, windows, &hp->rope_base_local, &local, err);
    if (!code && (!(part > 0 && part <= 1) || (hp->window && part != local)))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: of heads a part of %g is rotated, in layers with a "
                       "window of %g, which is not supported", (double)part, (double)local);
    hp->rope_dim = code ? 0 : (int64_t)((float)hp->head_dim * part);
    if (hp->window)
        pp_layers_local_rope(hp);
    else
        hp->rope_base_local = 0;
    return code ? code : set_heads(hp, err);
}

static void put_rope(const struct pp_hparams *hp, const char *kind, float base, cJSON *both)
{
    cJSON *rope = cJSON_AddObjectToObject(both, kind);
    pp_config_put_text(rope, "rope_type", "default");
    pp_config_put_float(rope, "rope_theta", base);
    pp_config_put_float(rope, "partial_rotary_factor", (float)hp->rope_dim / (float)hp->head_dim);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    static const char *const elsewhere[] = {"rope_scaling", "rope_theta", "partial_rotary_factor", "intermediate_size",
                                            "rope_parameters", "layer_types"};
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        cJSON_DeleteItemFromObjectCaseSensitive(config, elsewhere[i]);
    cJSON *both = cJSON_AddObjectToObject(config, "rope_parameters");
    put_rope(hp, all, hp->rope_base, both);
    put_rope(hp, windows, hp->window ? hp->rope_base_local : LOCAL_BASE, both);
    cJSON *list = cJSON_AddArrayToObject(config, "layer_types");
    for (int64_t l = 0; l < hp->n_layer; l++)
        cJSON_AddItemToArray(list, cJSON_CreateString(!hp->window || hp->layer[l] & PP_LAYER_WIDE ? all : windows));
    if (hp->window)
        pp_config_put(config, "sliding_window", hp->window);
    pp_config_put_experts(hp, &expert_keys, config);
    pp_config_put(config, "router_hidden_size", hp->router_rank);
}

/* --- GGUF --------------------------------------------------------------------------------------------------------- */

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    double base = (double)LOCAL_BASE;
    pp_gguf_int(g, "zaya.router_length", &hp->router_rank);
    pp_gguf_float(g, "zaya.rope.freq_base_swa", &base);
    if (hp->window) {
        hp->rope_base_local = (float)base;
        pp_layers_local_rope(hp);
    }
    return set_heads(hp, err);
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_gguf_add_u32(w, "zaya.router_length", (uint32_t)hp->router_rank);
    if (hp->window)
        pp_gguf_add_f32(w, "zaya.rope.freq_base_swa", hp->rope_base_local);
}

const struct pp_arch pp_arch_zaya = {
    .name = "zaya",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .gguf_default_no_renorm = true,
    .decoder = {.affine_residual = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
