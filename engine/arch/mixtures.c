/* mixtures.c - mixtures of experts whose layers are Llama's, Qwen 3's or OLMo 2's. The first DeepSeek MoE (arXiv
 * 2401.06066), with shared experts. With DeepSeek V3's routing (arXiv 2412.19437: sigmoids, and a bias for the choice
 * only): dots.llm1, GLM 4.5 and 4.6, MiniMax M2, Ling 2.0, Klear and G9v3. ERNIE 4.5 has such a bias with a softmax. */
#include <cjson/cJSON.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

#define QK_NORMS                                                                                                      \
    {.hf = "model.layers.{}.self_attn.q_norm", .gguf = "blk.{}.attn_q_norm"},                                         \
    {.hf = "model.layers.{}.self_attn.k_norm", .gguf = "blk.{}.attn_k_norm"}

/* DeepSeek's keys, which most families adopted. */
static const struct pp_expert_keys expert_keys = {
    .n = "n_routed_experts", .n_used = "num_experts_per_tok", .n_ff = "moe_intermediate_size",
    .n_groups = "n_group", .n_groups_used = "topk_group", .n_shared = "n_shared_experts",
    .n_dense = "first_k_dense_replace", .norm_topk = "norm_topk_prob", .scale = "routed_scaling_factor"};

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    return code ? code : pp_config_experts(config, &expert_keys, hp, err);
}

static enum pp_code sigmoids_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    hp->expert_sigmoids = true;
    return from_config(config, hp, err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put_experts(hp, &expert_keys, config);
}

/* --- Klear -------------------------------------------------------------------------------------------------------- */

static const char *const klear_classes[] = {"KlearMoeForCausalLM", "Klear", "klear", NULL};
static const struct pp_arch_name klear_names[] = {
    QK_NORMS,
    {.hf = "model.layers.{}.mlp.coefficient", .gguf = "blk.{}.ffn_share"},
    {.hf = "model.layers.{}.mlp.expert_bias", .gguf = "blk.{}.exp_probs_b.bias", .whole = true},
    {.hf = "model.layers.{}.mlp.experts.gate_proj", .gguf = "blk.{}.ffn_gate_exps", .mlx = true},
    {.hf = "model.layers.{}.mlp.experts.up_proj", .gguf = "blk.{}.ffn_up_exps", .mlx = true},
    {.hf = "model.layers.{}.mlp.experts.down_proj", .gguf = "blk.{}.ffn_down_exps", .mlx = true},
    {.hf = NULL},
};
/* Its routed_scaling_factor is not used by its own code. */
static const struct pp_expert_keys klear_keys = {
    .n = "num_experts", .n_used = "num_experts_per_tok", .n_ff = "moe_intermediate_size",
    .n_shared = "n_shared_experts", .norm_topk = "norm_topk_prob"};

static enum pp_code klear_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    hp->expert_sigmoids = true;
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (!code)
        code = pp_config_experts(config, &klear_keys, hp, err);
    return code ? code : pp_config_qwen_dense(config, hp, err);
}

static void klear_to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put_experts(hp, &klear_keys, config);
    pp_config_put_qwen_dense(hp, config);
    cJSON_DeleteItemFromObjectCaseSensitive(config, "head_dim"); /* it follows from the others */
}

const struct pp_arch pp_arch_klear = {
    .name = "klear",
    .hf_classes = klear_classes,
    .names = klear_names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .gguf_default_no_renorm = true,
    .gguf_default_sigmoids = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD, .shared_expert_mix = true},
    .from_config = klear_from_config,
    .to_config = klear_to_config,
};

/* --- DeepSeek MoE ------------------------------------------------------------------------------------------------ */

static const char *const deepseek_classes[] = {"DeepseekForCausalLM", "deepseek", NULL};
static const struct pp_arch_default deepseek_defaults[] = {
    {.json = "{\"max_position_embeddings\": 2048, \"moe_intermediate_size\": 1407, \"num_experts_per_tok\": 2}"},
    {.json = NULL},
};

static enum pp_code deepseek_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t step = 1;
    enum pp_code code = from_config(config, hp, err);
    if (!code)
        code = pp_config_int(config, "moe_layer_freq", &step, err);
    for (int64_t l = 0; step > 0 && l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        hp->layer[l] |= l % step ? PP_LAYER_DENSE : 0;
    return code;
}

static void deepseek_to_config(const struct pp_hparams *hp, cJSON *config)
{
    to_config(hp, config);
    pp_config_put(config, "moe_layer_freq", 1);
    pp_config_put_text(config, "scoring_func", "softmax");
}

const struct pp_arch pp_arch_deepseek = {
    .name = "deepseek",
    .hf_classes = deepseek_classes,
    .names = pp_interleaved_names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .gguf_default_no_renorm = true,
    .defaults = deepseek_defaults,
    .from_config = deepseek_from_config,
    .to_config = deepseek_to_config,
};

/* --- dots.llm1 --------------------------------------------------------------------------------------------------- */

static const char *const dots1_classes[] = {"Dots1ForCausalLM", "dots1", NULL};
static const struct pp_arch_name dots1_names[] = {QK_NORMS, {.hf = NULL}};
static const struct pp_arch_default dots1_defaults[] = {
    {.json = "{\"num_key_value_heads\": 32, \"max_position_embeddings\": 2048}"},
    {.json = NULL},
};

/* Layers from max_window_layers on, or those in layer_types, would have a window; no published model has. */
static enum pp_code dots1_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *types = pp_json_member(config, "layer_types"), *type;
    const bool windowed = !cJSON_IsNull(pp_json_member(config, "sliding_window"));
    int64_t first = 62;
    enum pp_code code = pp_config_int(config, "max_window_layers", &first, err);
    bool some = windowed && !cJSON_IsArray(types) && first < hp->n_layer;
    cJSON_ArrayForEach(type, types)
        some |= cJSON_IsString(type) && strcmp(type->valuestring, "sliding_attention") == 0;
    if (!code && some)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: layers with a window are not supported for this family");
    return code ? code : sigmoids_from_config(config, hp, err);
}

const struct pp_arch pp_arch_dots1 = {
    .name = "dots1",
    .hf_classes = dots1_classes,
    .names = dots1_names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .gguf_default_no_renorm = true,
    .gguf_default_sigmoids = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD},
    .defaults = dots1_defaults,
    .from_config = dots1_from_config,
    .to_config = to_config,
};

/* --- GLM 4.5 ----------------------------------------------------------------------------------------------------- */

static const char *const glm_classes[] = {"Glm4MoeForCausalLM", "Glm4vMoeForConditionalGeneration", "glm4_moe",
                                          "glm4v_moe", "glm4v_moe_text", "SolarOpenForCausalLM", "solar_open", NULL};
static const struct pp_arch_parts glm_parts = {
    .model_type = "glm4_moe", .prefixes = pp_qwen_prefixes, .others = pp_qwen_others};
static const struct pp_arch_name glm_names[] = {
    QK_NORMS,
    {.hf = "model.layers.{}.post_attention_layernorm", .gguf = "blk.{}.post_attention_norm"},
    {.hf = NULL},
};
static const struct pp_arch_default glm_defaults[] = {
    {.model_type = "solar_open", .hf_class = "SolarOpenForCausalLM",
     .json = "{\"vocab_size\": 196608, \"hidden_size\": 4096, \"num_hidden_layers\": 48,"
             "\"num_attention_heads\": 64, \"head_dim\": 128, \"partial_rotary_factor\": 1.0,"
             "\"rope_theta\": 1000000.0, \"moe_intermediate_size\": 1280, \"first_k_dense_replace\": 0}"},
    {.json = "{\"num_key_value_heads\": 8, \"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-5,"
             "\"partial_rotary_factor\": 0.5, \"n_routed_experts\": 128, \"num_experts_per_tok\": 8,"
             "\"moe_intermediate_size\": 1408, \"n_shared_experts\": 1, \"first_k_dense_replace\": 1,"
             "\"norm_topk_prob\": true}"},
    {.json = NULL},
};

static enum pp_code glm_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    hp->qk_norm = pp_config_flag(config, "use_qk_norm", false);
    return sigmoids_from_config(config, hp, err);
}

static void glm_to_config(const struct pp_hparams *hp, cJSON *config)
{
    to_config(hp, config);
    cJSON_AddBoolToObject(config, "use_qk_norm", hp->qk_norm);
}

const struct pp_arch pp_arch_glm4moe = {
    .name = "glm4moe",
    .hf_classes = glm_classes,
    .parts = &glm_parts,
    .names = glm_names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .gguf_default_no_renorm = true,
    .gguf_default_sigmoids = true,
    .decoder = {.qk_norm = PP_QK_OPTIONAL, .ffn_norm = "post_attention_norm"},
    .defaults = glm_defaults,
    .from_config = glm_from_config,
    .to_config = glm_to_config,
};

/* --- G9v3 --------------------------------------------------------------------------------------------------------- */

/* Attention is gated by sigmoids. In folders the gates' rows follow each head's queries in q_proj. */
static const char *const g9v3_classes[] = {"G9v3ForCausalLM", "g9v3", NULL};
static const struct pp_arch_name g9v3_names[] = {
    {.hf = "model.layers.{}.self_attn.q_proj.weight", .gguf = "blk.{}.attn_q.weight",
     .second = "blk.{}.attn_gate.weight", .form = PP_HF_HALVES_BY_HEAD, .whole = true},
    {.hf = NULL},
};
static const struct pp_arch_default g9v3_defaults[] = {
    {.json = "{\"num_key_value_heads\": 2, \"head_dim\": 128, \"max_position_embeddings\": 131072,"
             "\"rope_theta\": 5000000.0, \"n_routed_experts\": 320, \"num_experts_per_tok\": 32,"
             "\"moe_intermediate_size\": 512, \"n_shared_experts\": 1, \"first_k_dense_replace\": 1,"
             "\"norm_topk_prob\": true, \"routed_scaling_factor\": 3.66}"},
    {.json = NULL},
};

static enum pp_code g9v3_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const char *const flags[] = {"use_gated_attention", "attention_bias"};
    for (int i = 0; i < 2; i++)
        if (pp_config_flag(config, flags[i], i == 0) != (i == 0))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s is %s, which is not supported for this family",
                           flags[i], i ? "true" : "false");
    return sigmoids_from_config(config, hp, err);
}

static void g9v3_to_config(const struct pp_hparams *hp, cJSON *config)
{
    to_config(hp, config);
    cJSON_AddTrueToObject(config, "use_gated_attention");
}

const struct pp_arch pp_arch_g9v3 = {
    .name = "g9v3",
    .hf_classes = g9v3_classes,
    .names = g9v3_names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .gguf_default_no_renorm = true,
    .gguf_default_sigmoids = true,
    .decoder = {.gated_attention = true},
    .defaults = g9v3_defaults,
    .from_config = g9v3_from_config,
    .to_config = g9v3_to_config,
};

/* --- MiniMax M2 -------------------------------------------------------------------------------------------------- */

#define MIXTURE "model.layers.{}.block_sparse_moe."

static const char *const minimax_classes[] = {"MiniMaxM2ForCausalLM", "minimax_m2", NULL};
static const struct pp_arch_name minimax_names[] = {
    QK_NORMS,
    {.hf = MIXTURE "gate", .gguf = "blk.{}.ffn_gate_inp"},
    {.hf = MIXTURE "e_score_correction_bias", .gguf = "blk.{}.exp_probs_b.bias", .whole = true},
    {.hf = MIXTURE "experts.{}.w1", .gguf = "blk.{}.ffn_gate.{}"},
    {.hf = MIXTURE "experts.{}.w2", .gguf = "blk.{}.ffn_down.{}"},
    {.hf = MIXTURE "experts.{}.w3", .gguf = "blk.{}.ffn_up.{}"},
    {.hf = MIXTURE "switch_mlp.gate_proj", .gguf = "blk.{}.ffn_gate_exps", .mlx = true},
    {.hf = MIXTURE "switch_mlp.up_proj", .gguf = "blk.{}.ffn_up_exps", .mlx = true},
    {.hf = MIXTURE "switch_mlp.down_proj", .gguf = "blk.{}.ffn_down_exps", .mlx = true},
    {.hf = NULL},
};
static const struct pp_arch_default minimax_defaults[] = {
    {.json = "{\"num_key_value_heads\": 8, \"head_dim\": 128, \"max_position_embeddings\": 196608,"
             "\"rope_theta\": 5000000.0, \"num_local_experts\": 256, \"num_experts_per_tok\": 8}"},
    {.json = NULL},
};
static const struct pp_expert_keys minimax_keys = {.n = "num_local_experts", .n_used = "num_experts_per_tok"};

/* M2 has no layers of M1's other kinds. */
static enum pp_code minimax_check(const cJSON *config, struct pp_error *err)
{
    static const char *const scores[] = {"sigmoid", NULL};
    const cJSON *kind;
    cJSON_ArrayForEach(kind, pp_json_member(config, "attn_type_list"))
        if (!cJSON_IsNumber(kind) || kind->valuedouble != 1)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: attn_type_list has something other than 1, which is "
                           "not supported for this family");
    return pp_config_word(config, "scoring_func", scores, err);
}

static enum pp_code minimax_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    hp->expert_sigmoids = true;
    if (!code)
        code = minimax_check(config, err);
    if (!code)
        code = pp_config_int(config, "rotary_dim", &hp->rope_dim, err);
    return code ? code : pp_config_experts(config, &minimax_keys, hp, err);
}

static void minimax_to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put_experts(hp, &minimax_keys, config);
    pp_config_put(config, "intermediate_size", hp->n_ff_expert);
    pp_config_put(config, "rotary_dim", hp->rope_dim);
    pp_config_put_text(config, "scoring_func", "sigmoid");
    cJSON_AddTrueToObject(config, "use_qk_norm");
    cJSON_AddTrueToObject(config, "use_routing_bias");
}

const struct pp_arch pp_arch_minimax_m2 = {
    .name = "minimax-m2",
    .hf_classes = minimax_classes,
    .names = minimax_names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .gguf_default_sigmoids = true,
    .decoder = {.qk_norm = PP_QK_WHOLE},
    .defaults = minimax_defaults,
    .from_config = minimax_from_config,
    .to_config = minimax_to_config,
};

/* --- ERNIE 4.5 MoE ----------------------------------------------------------------------------------------------- */

static const char *const ernie_classes[] = {"Ernie4_5_MoeForCausalLM", "ernie4_5_moe", NULL};
static const struct pp_arch_name ernie_names[] = {
    {.hf = "model.layers.{}.mlp.moe_statics.e_score_correction_bias", .gguf = "blk.{}.exp_probs_b.bias",
     .form = PP_HF_ONE_ROW, .whole = true},
    {.hf = NULL},
};
static const char *const ernie_prefixes[] = {NULL};
static const char *const ernie_others[] = {"model.mtp_", NULL}; /* multi-token prediction */
static const struct pp_arch_parts ernie_parts = {
    .model_type = "ernie4_5_moe", .prefixes = ernie_prefixes, .others = ernie_others};
static const struct pp_arch_default ernie_defaults[] = {
    {.json = "{\"num_key_value_heads\": 4, \"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-5,"
             "\"rope_theta\": 500000.0, \"tie_word_embeddings\": true, \"moe_num_experts\": 64, \"moe_k\": 6,"
             "\"moe_intermediate_size\": 1536, \"moe_layer_start_index\": 1}"},
    {.json = NULL},
};
static const struct pp_expert_keys ernie_keys = {
    .n = "moe_num_experts", .n_used = "moe_k", .n_ff = "moe_intermediate_size", .n_shared = "moe_num_shared_experts",
    .n_dense = "moe_layer_start_index"};

static enum pp_code ernie_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t last = -1, step = 1;
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (!code)
        code = pp_config_experts(config, &ernie_keys, hp, err);
    if (!code)
        code = pp_config_int(config, "moe_layer_end_index", &last, err);
    if (!code)
        code = pp_config_int(config, "moe_layer_interval", &step, err);
    for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        if ((last >= 0 && l > last) || (step > 0 && (l + 1) % step != 0))
            hp->layer[l] |= PP_LAYER_DENSE;
    return code;
}

static void ernie_to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put_experts(hp, &ernie_keys, config);
    pp_config_put(config, "moe_layer_interval", 1);
    pp_config_put(config, "moe_layer_end_index", hp->n_layer - 1);
    cJSON_AddBoolToObject(config, "use_bias", cJSON_IsTrue(pp_json_member(config, "attention_bias")));
}

static void ernie_to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    (void)hp;
    pp_gguf_add_u32(w, "ernie4_5-moe.interleave_moe_layer_step", 1);
}

const struct pp_arch pp_arch_ernie45_moe = {
    .name = "ernie4_5-moe",
    .hf_classes = ernie_classes,
    .names = ernie_names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .parts = &ernie_parts,
    .hf_pairs = true,
    .defaults = ernie_defaults,
    .from_config = ernie_from_config,
    .to_gguf = ernie_to_gguf,
    .to_config = ernie_to_config,
};

/* --- ERNIE 4.5 VL ------------------------------------------------------------------------------------------------ */

/* The language model is ERNIE 4.5 MoE. Its folders also have experts for images, numbered after those for text, with a
 * router of their own; routers are stored transposed, and both biases in one matrix. The numbers of experts are lists
 * of two. For text the three numbers of a position are equal. */
static const char *const ernie_vl_classes[] = {
    "Ernie4_5_VLMoeForConditionalGeneration", "Ernie4_5_VLMoeForCausalLM", "ernie4_5_moe_vl", "ernie4_5_vl_moe", NULL};
static const struct pp_arch_name ernie_vl_names[] = {
    {.hf = "model.layers.{}.mlp.gate.weight", .gguf = "blk.{}.ffn_gate_inp.weight", .form = PP_HF_TRANSPOSED,
     .whole = true},
    {.hf = "model.layers.{}.mlp.moe_statics.e_score_correction_bias", .gguf = "blk.{}.exp_probs_b.bias",
     .form = PP_HF_FIRST_ROW, .whole = true},
    {.hf = NULL},
};
static const char *const ernie_vl_ignored[] = {".rotary_emb.inv_freq", ".mlp.gate.weight_1", NULL};
static const char *const ernie_vl_others[] = {"vision_model.", "model.vision_model.", "model.resampler_model.",
                                              "model.mtp_", NULL};
static const struct pp_arch_parts ernie_vl_parts = {
    .model_type = "ernie4_5_moe_vl", .prefixes = ernie_prefixes, .others = ernie_vl_others};

static enum pp_code ernie_vl_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const char *const lists[] = {"moe_num_experts", "moe_intermediate_size", "moe_layer_start_index",
                                        "moe_layer_end_index"};
    cJSON *text = cJSON_Duplicate(config, true);
    if (!text)
        return pp_fail_nomem(err, "the model's configuration");
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        const cJSON *list = pp_json_member(text, lists[i]);
        cJSON *first = cJSON_IsArray(list) && list->child ? cJSON_Duplicate(list->child, true) : NULL;
        if (first)
            cJSON_ReplaceItemInObjectCaseSensitive(text, lists[i], first);
    }
    hp->vision_experts = true;
    const enum pp_code code = ernie_from_config(text, hp, err);
    cJSON_Delete(text);
    return code;
}

const struct pp_arch pp_arch_ernie45_vl = {
    .name = "ernie4_5-moe",
    .hf_classes = ernie_vl_classes,
    .names = ernie_vl_names,
    .more_names = pp_expert_names,
    .ignored = ernie_vl_ignored,
    .parts = &ernie_vl_parts,
    .hf_pairs = true,
    .defaults = ernie_defaults,
    .from_config = ernie_vl_from_config,
};

/* --- Ling and Ring ----------------------------------------------------------------------------------------------- */

static const char *const bailing_classes[] = {"BailingMoeForCausalLM", "bailing_moe", NULL};
static const char *const bailing2_classes[] = {"BailingMoeV2ForCausalLM", "bailing_moe_v2", "SarvamMoEForCausalLM",
                                              "sarvam_moe", "Param2MoEForCausalLM", "param2moe", NULL};
static const struct pp_arch_name bailing_names[] = {
    {.hf = "model.word_embeddings", .gguf = "token_embd"},
    {.hf = "model.layers.{}.attention.query_key_value", .gguf = "blk.{}.attn_qkv", .form = PP_HF_QKV_STACKED},
    {.hf = "model.layers.{}.attention.q_proj", .gguf = "blk.{}.attn_q", .rows = PP_ROWS_Q},
    {.hf = "model.layers.{}.attention.k_proj", .gguf = "blk.{}.attn_k", .rows = PP_ROWS_K},
    {.hf = "model.layers.{}.attention.dense", .gguf = "blk.{}.attn_output"},
    {.hf = NULL},
};
static const struct pp_arch_name bailing2_names[] = {
    {.hf = "model.word_embeddings", .gguf = "token_embd"},
    {.hf = "model.layers.{}.attention.query_key_value", .gguf = "blk.{}.attn_qkv"},
    {.hf = "model.layers.{}.attention.query_layernorm", .gguf = "blk.{}.attn_q_norm"},
    {.hf = "model.layers.{}.attention.key_layernorm", .gguf = "blk.{}.attn_k_norm"},
    {.hf = "model.layers.{}.attention.dense", .gguf = "blk.{}.attn_output"},
    {.hf = "model.layers.{}.mlp.gate.expert_bias", .gguf = "blk.{}.exp_probs_b.bias", .whole = true},
    {.hf = NULL},
};
static const struct pp_arch_default bailing2_defaults[] = {
    {.model_type = "sarvam_moe", .hf_class = "SarvamMoEForCausalLM", .json = "{\"partial_rotary_factor\": 1.0}"},
    {.model_type = "param2moe", .hf_class = "Param2MoEForCausalLM",
     .json = "{\"partial_rotary_factor\": 1.0, \"norm_topk_prob\": true}"},
    {.json = "{\"partial_rotary_factor\": 0.5, \"num_experts_per_tok\": 8, \"norm_topk_prob\": true}"},
    {.json = NULL},
};
static const struct pp_expert_keys bailing_keys = {
    .n = "num_experts", .n_used = "num_experts_per_tok", .n_ff = "moe_intermediate_size",
    .n_groups = "n_group", .n_groups_used = "topk_group", .n_shared = "num_shared_experts",
    .shared_n_ff = "moe_shared_expert_intermediate_size", .n_dense = "first_k_dense_replace",
    .norm_topk = "norm_topk_prob", .scale = "routed_scaling_factor"};

static enum pp_code bailing_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (!code && pp_config_flag(config, "norm_head", false))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: norm_head is true, which pippin does not support");
    return code ? code : pp_config_experts(config, &bailing_keys, hp, err);
}

static enum pp_code bailing2_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *score = pp_json_member(config, "score_function");
    hp->expert_sigmoids = !cJSON_IsString(score) || strcmp(score->valuestring, "softmax") != 0;
    return bailing_from_config(config, hp, err);
}

static void bailing_to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put_experts(hp, &bailing_keys, config);
}

static void bailing2_to_config(const struct pp_hparams *hp, cJSON *config)
{
    bailing_to_config(hp, config);
    pp_config_put_class(config, "BailingMoeV2ForCausalLM", "bailing_moe");
    pp_config_put_text(config, "score_function", hp->expert_sigmoids ? "sigmoid" : "softmax");
    cJSON_AddTrueToObject(config, "use_qk_norm");
    cJSON_AddTrueToObject(config, "moe_router_enable_expert_bias");
}

const struct pp_arch pp_arch_bailingmoe = {
    .name = "bailingmoe",
    .hf_classes = bailing_classes,
    .names = bailing_names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .gguf_default_no_renorm = true,
    .from_config = bailing_from_config,
    .to_config = bailing_to_config,
};

const struct pp_arch pp_arch_bailingmoe2 = {
    .name = "bailingmoe2",
    .hf_classes = bailing2_classes,
    .names = bailing2_names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .gguf_default_no_renorm = true,
    .gguf_default_sigmoids = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD, .fused_qkv = true},
    .defaults = bailing2_defaults,
    .from_config = bailing2_from_config,
    .to_config = bailing2_to_config,
};
