/* minimax.c - MiniMax-Text-01 and M1 (arXiv 2501.08313, 2506.13585; transformers, models/minimax): lightning attention
 * in most layers, softmax attention in the others, experts in all. The residual added to is a part's normalised input,
 * not the stream before the norm, and both summands are scaled. GGUF files have one scale for all parts; where they
 * differ, and in early files, the keys are pippin's own. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

#define LAYER "model.layers.{}."
#define EXPERTS LAYER "block_sparse_moe."

static const struct pp_arch_name names[] = {
    {.hf = LAYER "self_attn.qkv_proj", .gguf = "blk.{}.attn_qkv"},
    {.hf = LAYER "self_attn.output_gate", .gguf = "blk.{}.attn_gate"},
    {.hf = LAYER "self_attn.norm", .gguf = "blk.{}.attn_norm_2"},
    {.hf = LAYER "self_attn.out_proj", .gguf = "blk.{}.attn_output", .recurrent = true},
    {.hf = LAYER "self_attn.qkv_proj", .gguf = "blk.{}.ssm_in"}, /* in early files of pippin's */
    {.hf = LAYER "self_attn.output_gate", .gguf = "blk.{}.ssm_gate"},
    {.hf = LAYER "self_attn.norm", .gguf = "blk.{}.ssm_norm"},
    {.hf = LAYER "self_attn.out_proj", .gguf = "blk.{}.ssm_out"},
    {.hf = EXPERTS "gate", .gguf = "blk.{}.ffn_gate_inp"},
    {.hf = EXPERTS "experts.{}.w1", .gguf = "blk.{}.ffn_gate.{}"},
    {.hf = EXPERTS "experts.{}.w2", .gguf = "blk.{}.ffn_down.{}"},
    {.hf = EXPERTS "experts.{}.w3", .gguf = "blk.{}.ffn_up.{}"},
    {.hf = EXPERTS "switch_mlp.gate_proj", .gguf = "blk.{}.ffn_gate_exps", .mlx = true},
    {.hf = EXPERTS "switch_mlp.up_proj", .gguf = "blk.{}.ffn_up_exps", .mlx = true},
    {.hf = EXPERTS "switch_mlp.down_proj", .gguf = "blk.{}.ffn_down_exps", .mlx = true},
    {.hf = NULL},
};
static const char *const classes[] = {"MiniMaxForCausalLM", "MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM",
                                      "minimax", "minimax_text_01", "minimax_m1", NULL};
/* Ignored: tables that transformers stores although they follow from the sizes. */
static const char *const ignored[] = {".rotary_emb.inv_freq", ".self_attn.slope_rate", ".self_attn.query_decay",
                                      ".self_attn.key_decay", ".self_attn.diagonal_decay", NULL};
static const struct pp_expert_keys expert_keys = {
    .n = "num_local_experts", .n_used = "num_experts_per_tok", .n_ff = "intermediate_size"};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"num_key_value_heads\": 8, \"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-5,"
             "\"rope_theta\": 1000000.0, \"num_local_experts\": 8, \"num_experts_per_tok\": 2}"},
    {.json = NULL},
};

/* Scales of the stream and of a part's output: transformers' keys, and the model's own. */
static const char *const scale_names[PP_N_STREAM_SCALES][2][2] = {
    [PP_STREAM_STATES] = {{"linear_attn_alpha_factor", "layernorm_linear_attention_alpha"},
                          {"linear_attn_beta_factor", "layernorm_linear_attention_beta"}},
    [PP_STREAM_ATTENTION] = {{"full_attn_alpha_factor", "layernorm_full_attention_alpha"},
                             {"full_attn_beta_factor", "layernorm_full_attention_beta"}},
    [PP_STREAM_FF] = {{"mlp_alpha_factor", "layernorm_mlp_alpha"}, {"mlp_beta_factor", "layernorm_mlp_beta"}},
};
/* One scale of the stream for all parts, the outputs' being 1; or all six, in the order of scale_names; and the latter
 * in early files. */
static const char scale_key[] = "minimax-01.residual_scale", scales_key[] = "minimax-01.residual_scales";
static const char first_scales_key[] = "minimax.residual_scales";
static const char *const other_names[] = {"minimax", NULL};

static void fill_states(struct pp_hparams *hp)
{
    hp->lightning = true;
    hp->n_state_head = hp->n_state_key_head = hp->n_head;
    hp->state_key_dim = hp->state_value_dim = hp->head_dim;
}

/* A scale of 0 would be taken for 1 by PP_OP_ADD. */
static enum pp_code check_scales(const struct pp_hparams *hp, struct pp_error *err)
{
    for (int i = 0; i < 2 * PP_N_STREAM_SCALES; i++)
        if (hp->stream_scales[i / 2][i % 2] == 0.0f)
            return pp_fail(err, PP_ERR_FORMAT, "the model says that %s (%s) is 0, which cannot be",
                           scale_names[i / 2][i % 2][0], scale_names[i / 2][i % 2][1]);
    return PP_OK;
}

/* --- GGUF -------------------------------------------------------------------------------------------------------- */

static enum pp_code list_from_gguf(const struct pp_gguf *g, const char *key, struct pp_hparams *hp,
                                   struct pp_error *err)
{
    enum pp_gguf_type type;
    size_t n = 0;
    double v = 0;
    if (!pp_gguf_array(g, key, &type, &n) || n != 2 * PP_N_STREAM_SCALES)
        return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks %s, or it has not %d numbers", key,
                       2 * PP_N_STREAM_SCALES);
    for (size_t i = 0; i < n; i++) {
        if (!pp_gguf_array_float(g, key, i, &v))
            return pp_fail(err, PP_ERR_FORMAT, "the metadata's %s is no list of numbers", key);
        hp->stream_scales[i / 2][i % 2] = (float)v;
    }
    return PP_OK;
}

/* In early files the tensors tell which layers have states. */
static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    const bool first = pp_gguf_string_is(g, "general.architecture", other_names[0]);
    const float scale = hp->residual_scale;
    enum pp_code code = PP_OK;
    fill_states(hp);
    hp->residual_scale = 0; /* the key has another meaning in other families */
    hp->two_norms = false;
    if (!first)
        pp_recurrent_from_gguf(g, 8, hp);
    for (int i = 0; i < PP_N_STREAM_SCALES; i++) {
        hp->stream_scales[i][0] = scale;
        hp->stream_scales[i][1] = 1;
    }
    if (first || pp_gguf_has(g, scales_key))
        code = list_from_gguf(g, first ? first_scales_key : scales_key, hp, err);
    else if (!pp_gguf_has(g, scale_key))
        code = pp_fail(err, PP_ERR_FORMAT, "the metadata lacks %s", scale_key);
    return code ? code : check_scales(hp, err);
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    const float(*scales)[2] = hp->stream_scales;
    bool one = true;
    for (int i = 0; i < PP_N_STREAM_SCALES; i++)
        one = one && scales[i][0] == scales[0][0] && scales[i][1] == 1.0f;
    if (one)
        pp_gguf_add_f32(w, scale_key, scales[0][0]);
    else
        pp_gguf_add_f32_array(w, scales_key, scales[0], 2 * PP_N_STREAM_SCALES);
    pp_recurrent_to_gguf(hp, w);
}

/* --- config.json ------------------------------------------------------------------------------------------------- */

/* layer_types, or attn_type_list with 0 for lightning attention; by default every second layer has it. */
static enum pp_code read_layers(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *list = pp_json_member(config, "attn_type_list"), *item;
    int64_t l = 0;
    pp_layers_every(hp, 2, PP_LAYER_RECURRENT);
    if (!cJSON_IsArray(list))
        return pp_config_layer_words(config, "layer_types", "linear_attention", "full_attention", PP_LAYER_RECURRENT,
                                     hp, err);
    if (cJSON_GetArraySize(list) < hp->n_layer)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: attn_type_list does not name %lld layers",
                       (long long)hp->n_layer);
    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsNumber(item) || (item->valuedouble != 0 && item->valuedouble != 1))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: attn_type_list has something other than 0 and 1");
        if (l == hp->n_layer)
            break;
        hp->layer[l] = (uint8_t)(item->valuedouble == 0 ? hp->layer[l] | PP_LAYER_RECURRENT
                                                        : hp->layer[l] & ~PP_LAYER_RECURRENT);
        l++;
    }
    return PP_OK;
}

static enum pp_code read_scales(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (int i = 0; i < 4 * PP_N_STREAM_SCALES && !code; i++) {
        float *v = &hp->stream_scales[i / 4][i / 2 % 2];
        *v = i % 2 ? *v : 1;
        code = pp_config_float(config, scale_names[i / 4][i / 2 % 2][i % 2], v, err);
    }
    return code ? code : check_scales(hp, err);
}

/* Refuses what is computed differently: postnorm must be true, which is the default in transformers but not in the
 * models' own code. */
static enum pp_code check_config(const cJSON *config, struct pp_error *err)
{
    const bool otherwise = pp_arch_is_kind(config, "minimax", "MiniMaxForCausalLM");
    int64_t shared = 0;
    enum pp_code code = pp_config_int(config, "shared_intermediate_size", &shared, err);
    if (!code && shared)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: shared_intermediate_size is %lld; an expert that every "
                       "token uses is not supported in this family", (long long)shared);
    if (!code && !pp_config_flag(config, "postnorm", otherwise))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: postnorm is not true, which pippin needs");
    return code;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (!code)
        code = check_config(config, err);
    if (!code)
        code = pp_config_experts(config, &expert_keys, hp, err);
    if (!code)
        code = pp_config_int(config, "rotary_dim", &hp->rope_dim, err);
    if (!code)
        code = pp_config_window(config, 0, hp, err);
    if (!code)
        code = read_layers(config, hp, err);
    fill_states(hp);
    return code ? code : read_scales(config, hp, err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    cJSON *types = cJSON_AddArrayToObject(config, "layer_types");
    for (int64_t l = 0; l < hp->n_layer; l++)
        cJSON_AddItemToArray(types, cJSON_CreateString(hp->layer[l] & PP_LAYER_RECURRENT ? "linear_attention"
                                                                                         : "full_attention"));
    for (int i = 0; i < 2 * PP_N_STREAM_SCALES; i++)
        pp_config_put_float(config, scale_names[i / 2][i % 2][0], hp->stream_scales[i / 2][i % 2]);
    pp_config_put_experts(hp, &expert_keys, config);
    if (hp->rope_dim != hp->head_dim)
        pp_config_put(config, "rotary_dim", hp->rope_dim);
    if (hp->window)
        pp_config_put(config, "sliding_window", hp->window);
}

const struct pp_arch pp_arch_minimax = {
    .name = "minimax-01",
    .other_names = other_names,
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .decoder = {.no_pre_norm = true, .norm_replaces_stream = true, .experts_read_stream = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
