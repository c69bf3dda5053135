/* qwen3next.c - Qwen3-Next, Qwen 3.5 with and without experts, and Agnes 3.0: the gated delta rule (arXiv 2412.06464)
 * in three of four layers, gated attention in the fourth. Of Qwen 3.5 and Agnes, which are multimodal, the language
 * model; for text the three numbers of a position are equal. */
#include <cjson/cJSON.h>
#include <stdio.h>

#include "engine/arch/families.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

void pp_recurrent_from_gguf(const struct pp_gguf *g, int64_t usual_step, struct pp_hparams *hp)
{
    char interval[128], list[128];
    int64_t step = usual_step;
    snprintf(interval, sizeof interval, "%s.full_attention_interval", hp->arch);
    snprintf(list, sizeof list, "%s.attention.recurrent_layers", hp->arch);
    pp_gguf_int(g, interval, &step);
    for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS; l++) {
        int64_t number = step > 0 && (l + 1) % step != 0;
        bool recurs = number != 0;
        if (!pp_gguf_array_bool(g, list, (size_t)l, &recurs) && pp_gguf_array_int(g, list, (size_t)l, &number))
            recurs = number != 0;
        hp->layer[l] |= recurs ? PP_LAYER_RECURRENT : 0;
    }
}

enum pp_code pp_delta_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    const enum pp_code code = pp_states_from_gguf(g, hp, err);
    if (code)
        return code;
    pp_recurrent_from_gguf(g, 4, hp);
    return PP_OK;
}

/* tiled: value head h uses key head h modulo their number. Some converters write a key for it; a file whose key
 * disagrees with the family's usual order is refused. */
static enum pp_code heads_from_gguf(const struct pp_gguf *g, bool tiled, struct pp_hparams *hp, struct pp_error *err)
{
    char key[96];
    bool said = tiled;
    snprintf(key, sizeof key, "%.60s.ssm.v_head_reordered", hp->arch);
    pp_gguf_bool(g, key, &said);
    if (said != tiled)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "metadata %s is %s, which is not supported for this family", key,
                       said ? "true" : "false");
    hp->state_tiled = tiled;
    return pp_delta_from_gguf(g, hp, err);
}

static enum pp_code next_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    return heads_from_gguf(g, false, hp, err);
}

static enum pp_code tiled_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    return heads_from_gguf(g, true, hp, err);
}

/* --- config.json ------------------------------------------------------------------------------------------------- */

/* layer_types; by default all but every full_attention_interval-th layer have states. */
static enum pp_code layer_types(const cJSON *config, const char *interval, const char *with, const char *without,
                                struct pp_hparams *hp, struct pp_error *err)
{
    int64_t step = 4;
    enum pp_code code = pp_config_int(config, interval, &step, err);
    for (int64_t l = 0; step > 0 && l < hp->n_layer; l++)
        hp->layer[l] |= (l + 1) % step ? PP_LAYER_RECURRENT : 0;
    return code ? code : pp_config_layer_words(config, "layer_types", with, without, PP_LAYER_RECURRENT, hp, err);
}

enum pp_code pp_delta_sizes_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const struct {
        const char *key;
        int64_t *v;
    } numbers[] = {
        {"linear_conv_kernel_dim", &hp->conv_taps}, {"linear_key_head_dim", &hp->state_key_dim},
        {"linear_value_head_dim", &hp->state_value_dim}, {"linear_num_key_heads", &hp->n_state_key_head},
        {"linear_num_value_heads", &hp->n_state_head},
    };
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && !code; i++)
        code = pp_config_int(config, numbers[i].key, numbers[i].v, err);
    return code;
}

enum pp_code pp_delta_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const enum pp_code code = pp_delta_sizes_from_config(config, hp, err);
    return code ? code : layer_types(config, "full_attention_interval", "linear_attention",
                                     "full_attention", hp, err);
}

static void delta_to_config(const struct pp_hparams *hp, const char *with, const char *without, cJSON *config)
{
    cJSON *types = cJSON_AddArrayToObject(config, "layer_types");
    pp_config_put(config, "linear_conv_kernel_dim", hp->conv_taps);
    pp_config_put(config, "linear_key_head_dim", hp->state_key_dim);
    pp_config_put(config, "linear_value_head_dim", hp->state_value_dim);
    pp_config_put(config, "linear_num_key_heads", hp->n_state_key_head);
    pp_config_put(config, "linear_num_value_heads", hp->n_state_head);
    for (int64_t l = 0; l < hp->n_layer; l++) {
        const bool recurs = hp->layer[l] & PP_LAYER_RECURRENT;
        cJSON_AddItemToArray(types, cJSON_CreateString(recurs ? with : without));
    }
}

void pp_delta_to_config(const struct pp_hparams *hp, cJSON *config)
{
    delta_to_config(hp, "linear_attention", "full_attention", config);
}

static void put_states(const struct pp_hparams *hp, cJSON *config)
{
    pp_delta_to_config(hp, config);
    pp_config_put_float(config, "partial_rotary_factor", (float)hp->rope_dim / (float)hp->head_dim);
}

/* --- and GGUF's words -------------------------------------------------------------------------------------------- */

void pp_recurrent_to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    bool recurs[PP_MAX_LAYERS], regular = true;
    char full[128];
    int64_t step = 1;
    while (step < hp->n_layer && hp->layer[step - 1] & PP_LAYER_RECURRENT)
        step++;
    for (int64_t l = 0; l < hp->n_layer; l++) {
        recurs[l] = hp->layer[l] & PP_LAYER_RECURRENT;
        regular = regular && recurs[l] == ((l + 1) % step != 0);
    }
    snprintf(full, sizeof full, "%s.full_attention_interval", hp->arch);
    pp_gguf_add_u32(w, full, (uint32_t)step);
    snprintf(full, sizeof full, "%s.attention.recurrent_layers", hp->arch);
    if (!regular)
        pp_gguf_add_bool_array(w, full, recurs, (size_t)hp->n_layer);
}

void pp_delta_to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_states_to_gguf(hp, w);
    pp_recurrent_to_gguf(hp, w);
}

/* M-RoPE's sections: the pairs are dealt out to the three numbers of a position. For text these are equal. */
void pp_qwen_to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    const int32_t pairs = (int32_t)(hp->rope_dim / 2);
    const int32_t sections[] = {(pairs + 2) / 3, (pairs + 1) / 3, pairs / 3, 0};
    char full[128];
    pp_delta_to_gguf(hp, w);
    snprintf(full, sizeof full, "%s.rope.dimension_sections", hp->arch);
    pp_gguf_add_i32_array(w, full, sections, 4);
}

/* --- names ------------------------------------------------------------------------------------------------------- */

#define LINEAR "model.layers.{}.linear_attn."
#define NAMES                                                                                                         \
    {.hf = "model.norm", .gguf = "output_norm", .form = PP_HF_PLUS_ONE},                                              \
    {.hf = "model.layers.{}.input_layernorm", .gguf = "blk.{}.attn_norm", .form = PP_HF_PLUS_ONE},                    \
    {.hf = "model.layers.{}.post_attention_layernorm", .gguf = "blk.{}.post_attention_norm",                          \
     .form = PP_HF_PLUS_ONE},                                                                                         \
    PP_DELTA_NAMES

/* --- Qwen3-Next -------------------------------------------------------------------------------------------------- */

static const struct pp_arch_name next_names[] = {
    NAMES,
    {.hf = LINEAR "in_proj_qkvz", .gguf = "blk.{}.ssm_in"},
    {.hf = LINEAR "in_proj_ba", .gguf = "blk.{}.ssm_ba"},
    {.hf = NULL},
};
static const char *const prefixes[] = {NULL};
static const char *const others[] = {"mtp.", "model.mtp.", NULL}; /* multi-token prediction */
static const struct pp_arch_parts next_parts = {.model_type = "qwen3_next", .prefixes = prefixes, .others = others};
static const char *const next_classes[] = {"Qwen3NextForCausalLM", "qwen3_next", NULL};
#define USUAL                                                                                                         \
    "\"head_dim\": 256, \"max_position_embeddings\": 32768, \"partial_rotary_factor\": 0.25,"                          \
    "\"linear_conv_kernel_dim\": 4, \"linear_key_head_dim\": 128, \"linear_value_head_dim\": 128,"                     \
    "\"linear_num_key_heads\": 16, \"linear_num_value_heads\": 32"
#define USUAL_EXPERTS "\"moe_intermediate_size\": 512, \"shared_expert_intermediate_size\": 512"
static const struct pp_arch_default next_defaults[] = {
    {.json = "{" USUAL ", " USUAL_EXPERTS ", \"num_key_value_heads\": 2, \"intermediate_size\": 5632,"
             "\"num_experts\": 512, \"num_experts_per_tok\": 10, \"norm_topk_prob\": true}"},
    {.json = NULL},
};
static const struct pp_expert_keys next_keys = {
    .n = "num_experts", .n_used = "num_experts_per_tok", .n_ff = "moe_intermediate_size",
    .shared_n_ff = "shared_expert_intermediate_size", .norm_topk = "norm_topk_prob"};

static enum pp_code next_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_delta_from_config(config, hp, err);
    if (!code)
        code = pp_config_experts(config, &next_keys, hp, err);
    return code ? code : pp_config_qwen_dense(config, hp, err);
}

static void next_to_config(const struct pp_hparams *hp, cJSON *config)
{
    put_states(hp, config);
    pp_config_put_experts(hp, &next_keys, config);
    pp_config_put_qwen_dense(hp, config);
}

const struct pp_arch pp_arch_qwen3next = {
    .name = "qwen3next",
    .hf_classes = next_classes,
    .names = next_names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .defaults = next_defaults,
    .parts = &next_parts,
    .gguf_neox = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD, .gated_queries = true, .ffn_norm = "post_attention_norm"},
    .from_config = next_from_config,
    .from_gguf = next_from_gguf,
    .to_gguf = pp_delta_to_gguf,
    .to_config = next_to_config,
};

/* --- Qwen 3.5 ---------------------------------------------------------------------------------------------------- */

static const struct pp_arch_name names[] = {
    NAMES,
    PP_DELTA_APART_NAMES,
    {.hf = NULL},
};
static const char *const classes[] = {"Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration", "qwen3_5_text",
                                      "qwen3_5", NULL};
static const char *const moe_classes[] = {"Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration",
                                          "qwen3_5_moe_text", "qwen3_5_moe",
                                          "InternS2PreviewForConditionalGeneration", "intern_s2_preview",
                                          "interns2_preview_text", NULL};
/* And InternS2's encoder of time series. */
static const char *const seeing_others[] = {"visual.", "model.visual.", "mtp.", "model.mtp.", "time_series.",
                                            "model.time_series.", "time_series_forecaster.",
                                            "model.time_series_forecaster.", NULL};
static const struct pp_arch_parts parts = {
    .model_type = "qwen3_5_text", .prefixes = pp_qwen_prefixes, .others = seeing_others};
static const struct pp_arch_parts moe_parts = {
    .model_type = "qwen3_5_moe_text", .prefixes = pp_qwen_prefixes, .others = seeing_others};
static const struct pp_arch_default defaults[] = {
    {.json = "{" USUAL ", \"num_key_value_heads\": 4}"},
    {.json = NULL},
};
static const struct pp_arch_default moe_defaults[] = {
    {.json = "{" USUAL ", " USUAL_EXPERTS ", \"num_key_value_heads\": 2, \"intermediate_size\": 512,"
             "\"num_experts\": 256, \"num_experts_per_tok\": 8}"},
    {.json = NULL},
};
static const struct pp_expert_keys expert_keys = {
    .n = "num_experts", .n_used = "num_experts_per_tok", .n_ff = "moe_intermediate_size",
    .shared_n_ff = "shared_expert_intermediate_size"};

static enum pp_code moe_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const enum pp_code code = pp_delta_from_config(config, hp, err);
    return code ? code : pp_config_experts(config, &expert_keys, hp, err);
}

static void moe_to_config(const struct pp_hparams *hp, cJSON *config)
{
    put_states(hp, config);
    pp_config_put_experts(hp, &expert_keys, config);
}

/* The language model alone has a class of its own. */
static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    put_states(hp, config);
}

const struct pp_arch pp_arch_qwen35 = {
    .name = "qwen35",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .parts = &parts,
    .gguf_neox = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD, .gated_queries = true, .ffn_norm = "post_attention_norm"},
    .from_config = pp_delta_from_config,
    .from_gguf = tiled_from_gguf,
    .to_gguf = pp_qwen_to_gguf,
    .to_config = to_config,
};

const struct pp_arch pp_arch_qwen35moe = {
    .name = "qwen35moe",
    .hf_classes = moe_classes,
    .names = names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .defaults = moe_defaults,
    .parts = &moe_parts,
    .gguf_neox = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD, .gated_queries = true, .ffn_norm = "post_attention_norm"},
    .from_config = moe_from_config,
    .from_gguf = tiled_from_gguf,
    .to_gguf = pp_qwen_to_gguf,
    .to_config = moe_to_config,
};

/* --- Agnes 3.0 --------------------------------------------------------------------------------------------------- */

/* Qwen 3.5's layers with other names, each with a second feed-forward part on the same input. */
#define DELTA "model.layers.{}.delta_attn."
#define GLOBAL "model.layers.{}.global_attn."
#define BESIDE "model.layers.{}.mlp.parallel_ffn."
static const char delta_layer[] = "agnes_delta_attention", global_layer[] = "agnes_global_attention";
static const struct pp_arch_name agnes_names[] = {
    {.hf = DELTA "in_proj_qkv", .gguf = "blk.{}.attn_qkv"},
    {.hf = DELTA "in_proj_z", .gguf = "blk.{}.attn_gate"},
    {.hf = DELTA "in_proj_b", .gguf = "blk.{}.ssm_beta"},
    {.hf = DELTA "in_proj_a", .gguf = "blk.{}.ssm_alpha"},
    {.hf = DELTA "conv1d.weight", .gguf = "blk.{}.ssm_conv1d.weight", .form = PP_HF_CONV, .whole = true},
    {.hf = DELTA "A_log", .gguf = "blk.{}.ssm_a", .form = PP_HF_MINUS_EXP, .whole = true},
    {.hf = DELTA "dt_bias", .gguf = "blk.{}.ssm_dt.bias", .whole = true},
    {.hf = DELTA "norm", .gguf = "blk.{}.ssm_norm"},
    {.hf = DELTA "out_proj", .gguf = "blk.{}.ssm_out"},
    {.hf = GLOBAL "q_proj", .gguf = "blk.{}.attn_q"},
    {.hf = GLOBAL "k_proj", .gguf = "blk.{}.attn_k"},
    {.hf = GLOBAL "v_proj", .gguf = "blk.{}.attn_v"},
    {.hf = GLOBAL "o_proj", .gguf = "blk.{}.attn_output"},
    {.hf = GLOBAL "q_norm", .gguf = "blk.{}.attn_q_norm", .form = PP_HF_PLUS_ONE},
    {.hf = GLOBAL "k_norm", .gguf = "blk.{}.attn_k_norm", .form = PP_HF_PLUS_ONE},
    {.hf = BESIDE "gate_proj", .gguf = "blk.{}.ffn_gate_shexp"},
    {.hf = BESIDE "up_proj", .gguf = "blk.{}.ffn_up_shexp"},
    {.hf = BESIDE "down_proj", .gguf = "blk.{}.ffn_down_shexp"},
    NAMES,
    {.hf = NULL},
};
static const char *const agnes_classes[] = {"AgnesForCausalLM", "AgnesForConditionalGeneration", "agnes_text", "agnes",
                                            NULL};
static const struct pp_arch_parts agnes_parts = {
    .model_type = "agnes_text", .prefixes = pp_qwen_prefixes, .others = seeing_others};

static enum pp_code agnes_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_delta_sizes_from_config(config, hp, err);
    if (!code)
        code = pp_config_word(config, "output_gate_type", pp_silu_names, err);
    if (!code && !pp_config_flag(config, "attn_output_gate", true))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: attn_output_gate is false, which is not supported for "
                       "this family");
    return code ? code : layer_types(config, "global_attention_interval", delta_layer, global_layer, hp, err);
}

static void agnes_to_config(const struct pp_hparams *hp, cJSON *config)
{
    delta_to_config(hp, delta_layer, global_layer, config);
    pp_config_put_float(config, "partial_rotary_factor", (float)hp->rope_dim / (float)hp->head_dim);
    pp_config_put(config, "parallel_ffn_intermediate_size", hp->n_ff_shared);
    pp_config_put_text(config, "output_gate_type", "swish");
    cJSON_AddTrueToObject(config, "attn_output_gate");
}

const struct pp_arch pp_arch_agnes = {
    .name = "agnes",
    .hf_classes = agnes_classes,
    .names = agnes_names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .parts = &agnes_parts,
    .gguf_neox = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD, .gated_queries = true, .ffn_norm = "post_attention_norm"},
    .from_config = agnes_from_config,
    .from_gguf = next_from_gguf,
    .to_gguf = pp_delta_to_gguf,
    .to_config = agnes_to_config,
};
