/* qwen3.c - Qwen 3 (arXiv 2505.09388): Llama with norms of the heads of q and k; and its mixture of experts. Of Qwen 3
 * VL the language model; for text the three numbers of a position are equal. Mellum 2 is that mixture with a window in
 * most layers, where RoPE is not scaled. */
#include <cjson/cJSON.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

static const struct pp_arch_name names[] = {
    {.hf = "model.layers.{}.self_attn.q_norm", .gguf = "blk.{}.attn_q_norm"},
    {.hf = "model.layers.{}.self_attn.k_norm", .gguf = "blk.{}.attn_k_norm"},
    {.hf = NULL},
};

static const struct pp_arch_name moe_names[] = {
    {.hf = "model.layers.{}.self_attn.q_norm", .gguf = "blk.{}.attn_q_norm"},
    {.hf = "model.layers.{}.self_attn.k_norm", .gguf = "blk.{}.attn_k_norm"},
    {.hf = "model.layers.{}.mlp.experts.gate_up_proj", .gguf = "blk.{}.ffn_gate_exps.weight",
     .second = "blk.{}.ffn_up_exps.weight", .form = PP_HF_EXPERTS_HALVES, .whole = true, .read_only = true},
    {.hf = "model.layers.{}.mlp.experts.down_proj", .gguf = "blk.{}.ffn_down_exps.weight",
     .form = PP_HF_EXPERTS_TRANSPOSED, .whole = true, .read_only = true}, /* of vision models */
    {.hf = NULL},
};

static const char *const other_names[] = {"qwen3vl", NULL};
static const char *const moe_other_names[] = {"qwen3vlmoe", NULL};
static const char *const classes[] = {
    "Qwen3ForCausalLM", "Qwen3VLForConditionalGeneration", "qwen3", "qwen3_vl", "qwen3_vl_text", NULL};
static const char *const moe_classes[] = {"Qwen3MoeForCausalLM", "Qwen3VLMoeForConditionalGeneration", "qwen3_moe",
                                          "qwen3_vl_moe", "qwen3_vl_moe_text", "qwen3_omni_moe_text", "enggpt_moe",
                                          NULL};
static const struct pp_arch_parts parts = {
    .model_type = "qwen3", .prefixes = pp_qwen_prefixes, .others = pp_qwen_others};
static const struct pp_arch_parts moe_parts = {
    .model_type = "qwen3_moe", .prefixes = pp_qwen_prefixes, .others = pp_qwen_others};

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    return code ? code : pp_config_qwen_window(config, hp, err);
}

static const struct pp_expert_keys expert_keys = {
    .n = "num_experts", .n_used = "num_experts_per_tok", .n_ff = "moe_intermediate_size",
    .norm_topk = "norm_topk_prob"};

static enum pp_code moe_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = from_config(config, hp, err);
    const bool sees = pp_arch_is_kind(config, "qwen3_vl_moe_text", NULL);
    hp->n_expert = sees ? 60 : pp_arch_is_kind(config, "enggpt_moe", NULL) ? 64 : 128;
    if (!code) /* transformers 5's key */
        code = pp_config_int(config, "num_local_experts", &hp->n_expert, err);
    if (!code)
        code = pp_config_experts(config, &expert_keys, hp, err);
    return code ? code : pp_config_qwen_dense(config, hp, err);
}

static enum pp_code moe_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)err;
    if (!pp_gguf_has(g, "qwen3moe.expert_feed_forward_length") &&
        !pp_gguf_has(g, "qwen3vlmoe.expert_feed_forward_length") && hp->n_expert_used > 0)
        hp->n_ff_expert = hp->n_ff / hp->n_expert_used;
    return PP_OK;
}

#define USUAL_VL "{\"rope_theta\": 500000.0, \"max_position_embeddings\": 128000}"

static const struct pp_arch_default defaults[] = {
    {"qwen3_vl_text", NULL, USUAL_VL},
    {"qwen3_vl", NULL, USUAL_VL},
    {.json = "{\"num_key_value_heads\": 32, \"head_dim\": 128, \"max_position_embeddings\": 32768}"},
    {.json = NULL},
};
/* In vision and audio models experts' weights are normalised; the vision models' config.json has no key for it. */
static const struct pp_arch_default moe_defaults[] = {
    {"qwen3_vl_moe_text", NULL,
     "{\"num_key_value_heads\": 16, \"max_position_embeddings\": 128000, \"rope_theta\": 500000.0,"
     "\"num_experts_per_tok\": 4, \"moe_intermediate_size\": 1408, \"norm_topk_prob\": true}"},
    {"qwen3_omni_moe_text", NULL, "{\"rope_theta\": 1000000.0, \"norm_topk_prob\": true}"},
    {"enggpt_moe", NULL,
     "{\"head_dim\": 128, \"rope_theta\": 1000000.0, \"moe_intermediate_size\": 1080, \"norm_topk_prob\": true}"},
    {.json = "{\"num_key_value_heads\": 4, \"max_position_embeddings\": 32768, \"num_experts_per_tok\": 8,"
             "\"moe_intermediate_size\": 768}"},
    {.json = NULL},
};

const struct pp_arch pp_arch_qwen3 = {
    .name = "qwen3",
    .other_names = other_names,
    .parts = &parts,
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD},
    .from_config = from_config,
    .defaults = defaults,
    .to_config = pp_config_put_qwen_window,
};

static void moe_to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    pp_config_put_qwen_window(hp, config);
    pp_config_put_experts(hp, &expert_keys, config);
    pp_config_put_qwen_dense(hp, config);
}

const struct pp_arch pp_arch_qwen3moe = {
    .name = "qwen3moe",
    .other_names = moe_other_names,
    .parts = &moe_parts,
    .hf_classes = moe_classes,
    .names = moe_names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD},
    .from_config = moe_from_config,
    .defaults = moe_defaults,
    .from_gguf = moe_from_gguf,
    .to_config = moe_to_config,
};

/* --- Mellum 2 ----------------------------------------------------------------------------------------------------- */

static const char *const mellum_classes[] = {"MellumForCausalLM", "mellum", NULL};
static const struct pp_arch_default mellum_defaults[] = {
    {.json = "{\"num_key_value_heads\": 4, \"head_dim\": 128, \"max_position_embeddings\": 131072,"
             "\"num_experts_per_tok\": 8, \"moe_intermediate_size\": 896, \"norm_topk_prob\": true,"
             "\"sliding_window\": 1024, \"rope_parameters\": {"
             "\"full_attention\": {\"rope_type\": \"default\", \"rope_theta\": 500000.0},"
             "\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0}}}"},
    {.json = NULL},
};

/* Without layer_types all layers have full attention. */
static enum pp_code mellum_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *both = pp_json_member(config, "rope_parameters"), *type;
    const cJSON *local = pp_json_member(both, "sliding_attention");
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    hp->n_expert = 64;
    if (!code) /* transformers' format */
        code = pp_config_int(config, "num_local_experts", &hp->n_expert, err);
    if (!code)
        code = pp_config_experts(config, &expert_keys, hp, err);
    if (!code)
        code = pp_config_qwen_dense(config, hp, err);
    if (!code && pp_config_flag(config, "use_sliding_window", true) && pp_json_member(config, "layer_types"))
        code = pp_config_window(config, 0, hp, err);
    if (!code)
        code = pp_config_layer_types(config, hp, err);
    if (!code)
        code = pp_config_unscaled(local, err);
    if (!code)
        code = pp_config_float(local, "rope_theta", &hp->rope_base_local, err);
    cJSON_ArrayForEach(type, pp_json_member(config, "mlp_layer_types"))
        if (!code && (!cJSON_IsString(type) || strcmp(type->valuestring, "sparse") != 0))
            code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: mlp_layer_types has others than sparse, which is not "
                           "supported");
    pp_layers_unscaled_windows(hp);
    return code;
}

static enum pp_code mellum_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    double local = 0;
    (void)err;
    if (pp_gguf_float(g, "mellum.rope.freq_base_swa", &local))
        hp->rope_base_local = (float)local;
    pp_layers_unscaled_windows(hp);
    return PP_OK;
}

static void mellum_to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    if (hp->window && hp->rope_base_local != hp->rope_base)
        pp_gguf_add_f32(w, "mellum.rope.freq_base_swa", hp->rope_base_local);
}

static void mellum_to_config(const struct pp_hparams *hp, cJSON *config)
{
    cJSON *both = cJSON_CreateObject(), *local = cJSON_AddObjectToObject(both, "sliding_attention");
    cJSON *full = cJSON_DetachItemFromObjectCaseSensitive(config, "rope_scaling");
    if (!full && (full = cJSON_CreateObject()))
        pp_config_put_text(full, "rope_type", "default");
    pp_config_put_float(full, "rope_theta", hp->rope_base);
    pp_config_put_text(local, "rope_type", "default");
    pp_config_put_float(local, "rope_theta", hp->rope_base_local);
    cJSON_AddItemToObject(both, "full_attention", full);
    cJSON_AddItemToObject(config, "rope_parameters", both);
    pp_config_put_experts(hp, &expert_keys, config);
    pp_config_put_layer_types(config, hp);
}

const struct pp_arch pp_arch_mellum = {
    .name = "mellum",
    .hf_classes = mellum_classes,
    .names = names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .defaults = mellum_defaults,
    .gguf_neox = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD},
    .from_config = mellum_from_config,
    .from_gguf = mellum_from_gguf,
    .to_gguf = mellum_to_gguf,
    .to_config = mellum_to_config,
};
