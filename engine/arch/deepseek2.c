/* deepseek2.c - the families with latent attention (MLA), which decoder_mixers.c computes: DeepSeek V2 (arXiv
 * 2405.04434) and V3 (arXiv 2412.19437), and models of the same architecture: R1, Kimi K2, Moonlight, GLM 4.7 Flash.
 * Dense ones: Youtu-LLM, MiniCPM 3 and PLM, which has ReLU^2 without a gate. Mistral Large 3, and Mistral 4 as a
 * family of its own, scale queries by position as Ministral 3 does, and weight experts by a softmax. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

static const char *const classes[] = {
    "DeepseekV3ForCausalLM", "deepseek_v3", "DeepseekV2ForCausalLM", "deepseek_v2", "Glm4MoeLiteForCausalLM",
    "glm4_moe_lite", "kimi_k2", "KimiK2ForCausalLM", "YoutuForCausalLM", "youtu", "youtu_llm",
    "SarvamMLAForCausalLM", "sarvam_mla", NULL};

#define ATTENTION "model.layers.{}.self_attn."

static const struct pp_arch_name names[] = {
    PP_LATENT_NAMES,
    {.hf = ATTENTION "embed_q", .gguf = "blk.{}.attn_k_b", .mlx = true},
    {.hf = ATTENTION "unembed_out", .gguf = "blk.{}.attn_v_b", .mlx = true},
    {.hf = NULL},
};

/* Defaults of transformers' own models; folders with code of their own have all keys. */
static const struct pp_arch_default defaults[] = {
    {.model_type = "glm4_moe_lite", .hf_class = "Glm4MoeLiteForCausalLM",
     .json = "{\"max_position_embeddings\": 202752, \"rms_norm_eps\": 1e-5, \"q_lora_rank\": 768,"
             "\"qk_nope_head_dim\": 192, \"v_head_dim\": 256, \"n_routed_experts\": 64, \"num_experts_per_tok\": 4,"
             "\"moe_intermediate_size\": 1536, \"n_shared_experts\": 1, \"first_k_dense_replace\": 1,"
             "\"routed_scaling_factor\": 1.8, \"norm_topk_prob\": true, \"n_group\": 1, \"topk_group\": 1}"},
    {.model_type = "deepseek_v3", .hf_class = "DeepseekV3ForCausalLM",
     .json = "{\"max_position_embeddings\": 4096, \"q_lora_rank\": 1536, \"n_routed_experts\": 256,"
             "\"num_experts_per_tok\": 8, \"moe_intermediate_size\": 2048, \"n_shared_experts\": 1,"
             "\"first_k_dense_replace\": 3, \"routed_scaling_factor\": 2.5, \"norm_topk_prob\": true, \"n_group\": 8,"
             "\"topk_group\": 4}"},
    {.model_type = "youtu", .hf_class = "YoutuForCausalLM",
     .json = "{\"vocab_size\": 128256, \"hidden_size\": 2048, \"intermediate_size\": 6144,"
             "\"num_hidden_layers\": 32, \"num_attention_heads\": 16, \"max_position_embeddings\": 131072,"
             "\"q_lora_rank\": 1536, \"tie_word_embeddings\": true}"},
    {.model_type = "sarvam_mla", .hf_class = "SarvamMLAForCausalLM",
     .json = "{\"q_lora_rank\": null, \"num_shared_experts\": 1, \"first_k_dense_replace\": 1,"
             "\"routed_scaling_factor\": 2.5, \"norm_topk_prob\": true}"},
    {.model_type = "deepseek_v2", .hf_class = "DeepseekV2ForCausalLM",
     .json = "{\"q_lora_rank\": 1536, \"n_routed_experts\": 64, \"n_shared_experts\": 2,"
             "\"moe_intermediate_size\": 1407}"},
    {.json = "{\"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64, \"v_head_dim\": 128,"
             "\"routed_scaling_factor\": 1.0}"},
    {.json = NULL},
};

static const struct pp_expert_keys expert_keys = {
    .n = "n_routed_experts", .n_used = "num_experts_per_tok", .n_ff = "moe_intermediate_size",
    .n_groups = "n_group", .n_groups_used = "topk_group", .n_shared = "n_shared_experts",
    .n_dense = "first_k_dense_replace", .norm_topk = "norm_topk_prob", .scale = "routed_scaling_factor"};

/* Sarvam 105B is V3 with these names. */
static const struct pp_expert_keys sarvam_keys = {
    .n = "num_experts", .n_used = "num_experts_per_tok", .n_ff = "moe_intermediate_size",
    .n_groups = "n_group", .n_groups_used = "topk_group", .n_shared = "num_shared_experts",
    .n_dense = "first_k_dense_replace", .norm_topk = "norm_topk_prob", .scale = "routed_scaling_factor"};

/* The scale of scores for heads of this size. YaRN's magnitude goes into it, squared, instead of into cosines and
 * sines. */
static void set_scale(struct pp_hparams *hp)
{
    hp->attn_scale = pp_latent_yarn_growth(hp) / sqrtf((float)(hp->qk_nope_dim + hp->rope_dim));
}

/* --- config.json -------------------------------------------------------------------------------------------------- */

/* RoPE's parameters are under one of two keys. */
static const cJSON *rope_of(const cJSON *config)
{
    const cJSON *rope = pp_json_member(config, "rope_parameters");
    return cJSON_IsObject(rope) ? rope : pp_json_member(config, "rope_scaling");
}

static bool has_word(const cJSON *config, const char *key, const char *text)
{
    const char *said = cJSON_GetStringValue(pp_json_member(config, key));
    return said && strcmp(said, text) == 0;
}

enum pp_code pp_latent_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const struct {
        const char *key;
        int64_t *v;
    } sizes[] = {{"kv_lora_rank", &hp->kv_lora_rank}, {"q_lora_rank", &hp->q_lora_rank},
                 {"qk_nope_head_dim", &hp->qk_nope_dim}, {"qk_rope_head_dim", &hp->rope_dim},
                 {"v_head_dim", &hp->v_head_dim}};
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && !code; i++)
        code = pp_config_int(config, sizes[i].key, sizes[i].v, err);
    if (!code && (hp->kv_lora_rank < 1 || hp->kv_lora_rank > 1 << 20 || hp->rope_dim < 0 || hp->rope_dim > 1 << 20))
        code = pp_fail(err, PP_ERR_FORMAT, "config.json: kv_lora_rank %lld and qk_rope_head_dim %lld are not valid",
                       (long long)hp->kv_lora_rank, (long long)hp->rope_dim);
    hp->n_head_kv = 1;
    hp->head_dim = hp->kv_lora_rank + hp->rope_dim;
    return code;
}

static enum pp_code check_sarvam(const cJSON *config, struct pp_error *err)
{
    int64_t step = 1;
    const enum pp_code code = pp_config_int(config, "moe_layer_freq", &step, err);
    const char *what = step != 1                                   ? "moe_layer_freq"
                       : has_word(config, "score_function", "softmax") ? "score_function"
                                                                   : NULL;
    return code || !what ? code
                         : pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s says something that pippin does not "
                                                            "support in this "
                                   "family", what);
}

/* V2's config.json has topk_method, V3's scoring_func, transformers' own V3 neither. */
static enum pp_code routing_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const bool v2 = pp_arch_is_kind(config, "deepseek_v2", "DeepseekV2ForCausalLM");
    const bool mistral = pp_arch_is_kind(config, "mistral4", "Mistral4ForCausalLM");
    const bool sarvam = pp_arch_is_kind(config, "sarvam_mla", "SarvamMLAForCausalLM");
    static const char *const scores[] = {"sigmoid", "softmax", NULL};
    static const char *const choices[] = {"noaux_tc", "greedy", "group_limited_greedy", NULL};
    int64_t step = 1;
    enum pp_code code = pp_config_experts(config, sarvam ? &sarvam_keys : &expert_keys, hp, err);
    if (!code)
        code = pp_config_word(config, "scoring_func", scores, err);
    if (!code)
        code = pp_config_word(config, "topk_method", choices, err);
    if (!code && sarvam)
        code = check_sarvam(config, err);
    if (!code)
        code = pp_config_int(config, "moe_layer_freq", &step, err);
    for (int64_t l = 0; step > 0 && l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        hp->layer[l] |= l % step ? PP_LAYER_DENSE : 0;
    hp->expert_sigmoids = v2 ? has_word(config, "scoring_func", "sigmoid")
                             : !mistral && !has_word(config, "scoring_func", "softmax");
    hp->expert_group_largest = has_word(config, "topk_method", "group_limited_greedy");
    if (has_word(config, "topk_method", "greedy") || (v2 && !pp_json_member(config, "topk_method")))
        hp->n_expert_group = hp->n_expert_group_used = 0;
    return code ? code : pp_config_mlp_types(config, hp, err); /* GLM's; overrides first_k_dense_replace */
}

void pp_latent_to_config(const struct pp_hparams *hp, cJSON *config)
{
    cJSON_DeleteItemFromObjectCaseSensitive(config, "head_dim");
    cJSON_DeleteItemFromObjectCaseSensitive(config, "partial_rotary_factor");
    pp_config_put(config, "num_key_value_heads", hp->n_head);
    pp_config_put(config, "kv_lora_rank", hp->kv_lora_rank);
    if (hp->q_lora_rank)
        pp_config_put(config, "q_lora_rank", hp->q_lora_rank);
    else
        cJSON_AddNullToObject(config, "q_lora_rank");
    pp_config_put(config, "qk_nope_head_dim", hp->qk_nope_dim);
    pp_config_put(config, "qk_rope_head_dim", hp->rope_dim);
    pp_config_put(config, "v_head_dim", hp->v_head_dim);
}

enum pp_code pp_latent_yarn_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    float all_dim = 0;
    enum pp_code code = PP_OK;
    if (cJSON_IsObject(rope_of(config)))
        code = pp_config_float(rope_of(config), "mscale_all_dim", &all_dim, err);
    hp->yarn_log_multiplier = 0.1f * all_dim;
    return code;
}

void pp_latent_yarn_to_config(const struct pp_hparams *hp, cJSON *config)
{
    cJSON *rope = cJSON_GetObjectItemCaseSensitive(config, "rope_scaling");
    const float all_dim = hp->yarn_log_multiplier / 0.1f;
    if (hp->rope_scaling != PP_ROPE_YARN)
        return;
    cJSON_DeleteItemFromObjectCaseSensitive(rope, "attention_factor");
    pp_config_put_text(rope, "type", "yarn");
    if (all_dim != 0.0f) { /* mscale / mscale_all_dim is 1 */
        pp_config_put_float(rope, "mscale", all_dim);
        pp_config_put_float(rope, "mscale_all_dim", all_dim);
    }
}

float pp_latent_yarn_growth(const struct pp_hparams *hp)
{
    const float more = hp->rope_scaling == PP_ROPE_YARN && hp->rope_factor > 1
                           ? 1.0f + hp->yarn_log_multiplier * logf(hp->rope_factor) : 1.0f;
    return more * more;
}

enum pp_code pp_deepseek_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (!code && !pp_config_flag(config, "rope_interleave", true))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: rope_interleave is false, which pippin does not support");
    if (!code)
        code = pp_latent_from_config(config, hp, err);
    if (!code)
        code = pp_latent_yarn_from_config(config, hp, err);
    set_scale(hp);
    return code ? code : routing_from_config(config, hp, err);
}

static void put_experts(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put_experts(hp, &expert_keys, config);
    if (!hp->expert_sigmoids)
        pp_config_put_class(config, "DeepseekV2ForCausalLM", "deepseek_v2");
    pp_config_put(config, "moe_layer_freq", 1);
    pp_config_put_text(config, "scoring_func", hp->expert_sigmoids ? "sigmoid" : "softmax");
    pp_config_put_text(config, "topk_method", hp->expert_sigmoids              ? "noaux_tc"
                                              : hp->expert_group_largest ? "group_limited_greedy"
                                                                                : "greedy");
}

void pp_deepseek_to_config(const struct pp_hparams *hp, cJSON *config)
{
    if (hp->n_expert)
        put_experts(hp, config);
    else
        pp_config_put_class(config, "YoutuForCausalLM", "youtu");
    pp_latent_to_config(hp, config);
    pp_latent_yarn_to_config(hp, config);
}

/* --- GGUF --------------------------------------------------------------------------------------------------------- */

/* Writes "deepseek2.rope.scaling.factor" or the like to the caller's buffer. */
static const char *key_of(const struct pp_hparams *hp, const char *name, char full[160])
{
    snprintf(full, 160, "%s.%s", hp->arch, name);
    return full;
}

/* The same with the file's general.architecture, which may differ from hp->arch. */
static const char *key_in(const struct pp_gguf *g, const char *name, char full[160])
{
    struct pp_str family = {"", 0};
    pp_gguf_string(g, "general.architecture", &family);
    snprintf(full, 160, "%.*s.%s", (int)(family.len < 64 ? family.len : 64), family.data, name);
    return full;
}

/* The position-dependent scale of queries, whose original context length is under either of two keys. */
static enum pp_code temperature_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    char full[160];
    double beta = 0;
    int64_t length = 0;
    pp_gguf_float(g, key_in(g, "attention.temperature_scale", full), &beta);
    pp_gguf_int(g, key_in(g, "attention.temperature_length", full), &length);
    hp->attn_temperature = (float)beta;
    if (beta != 0 && length && hp->rope_scaling == PP_ROPE_YARN && length != hp->rope_orig_ctx)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "metadata %s is %lld, not the original context of the RoPE scaling, "
                       "which pippin needs", full, (long long)length);
    if (beta != 0 && length)
        hp->rope_orig_ctx = length;
    return PP_OK;
}

enum pp_code pp_deepseek_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    double log_multiplier = 0;
    char full[160];
    if (!hp->kv_lora_rank)
        return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks %s", key_in(g, "attention.kv_lora_rank", full));
    pp_gguf_float(g, key_in(g, "rope.scaling.yarn_log_multiplier", full), &log_multiplier);
    hp->yarn_log_multiplier = (float)log_multiplier;
    hp->rope_attn_factor = hp->rope_scaling == PP_ROPE_YARN ? 1.0f : 0.0f;
    set_scale(hp);
    /* Early files of GLM 4.7 Flash lack expert_gating_func: the bias for the choice of experts implies sigmoids. */
    if (!pp_gguf_has(g, key_in(g, "expert_gating_func", full)) && pp_gguf_tensor(g, "blk.1.exp_probs_b.bias"))
        hp->expert_sigmoids = true;
    hp->expert_group_largest = hp->n_expert_group > 1 && !hp->expert_sigmoids;
    return temperature_from_gguf(g, hp, err);
}

void pp_deepseek_to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    char full[160];
    if (hp->rope_scaling == PP_ROPE_YARN)
        pp_gguf_add_f32(w, key_of(hp, "rope.scaling.yarn_log_multiplier", full), hp->yarn_log_multiplier);
    if (hp->attn_temperature != 0.0f)
        pp_gguf_add_u32(w, key_of(hp, "attention.temperature_length", full), (uint32_t)hp->rope_orig_ctx);
}

const struct pp_arch pp_arch_deepseek2 = {
    .name = "deepseek2",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .hf_pairs = true,
    .gguf_default_no_renorm = true,
    .defaults = defaults,
    .from_config = pp_deepseek_from_config,
    .from_gguf = pp_deepseek_from_gguf,
    .to_gguf = pp_deepseek_to_gguf,
    .to_config = pp_deepseek_to_config,
};

/* --- Mistral 4 ---------------------------------------------------------------------------------------------------- */

static const char *const mistral_classes[] = {"Mistral4ForCausalLM", "mistral4", NULL};
static const struct pp_arch_name mistral_names[] = {
    {.hf = "model.layers.{}.mlp.experts.gate_up_proj", .gguf = "blk.{}.ffn_gate_exps.weight",
     .second = "blk.{}.ffn_up_exps.weight", .form = PP_HF_HALVES, .whole = true},
    {.hf = "model.layers.{}.mlp.experts.down_proj", .gguf = "blk.{}.ffn_down_exps.weight", .whole = true},
    PP_LATENT_NAMES,
    {.hf = NULL},
};
static const struct pp_arch_default mistral_defaults[] = {
    {.json = "{\"vocab_size\": 131072, \"hidden_size\": 4096, \"intermediate_size\": 12288, \"num_hidden_layers\": 36,"
             "\"num_attention_heads\": 32, \"max_position_embeddings\": 1048576, \"kv_lora_rank\": 256,"
             "\"q_lora_rank\": 1024, \"qk_rope_head_dim\": 64, \"qk_nope_head_dim\": 64, \"v_head_dim\": 128,"
             "\"n_routed_experts\": 128, \"num_experts_per_tok\": 4, \"moe_intermediate_size\": 2048,"
             "\"n_shared_experts\": 1, \"first_k_dense_replace\": 0, \"norm_topk_prob\": true, \"n_group\": 1,"
             "\"topk_group\": 1, \"routed_scaling_factor\": 1.0, \"rope_parameters\": {\"rope_type\": \"yarn\","
             "\"rope_theta\": 10000.0, \"factor\": 128.0, \"original_max_position_embeddings\": 8192,"
             "\"beta_fast\": 32.0, \"beta_slow\": 1.0, \"mscale\": 1.0, \"mscale_all_dim\": 1.0,"
             "\"llama_4_scaling_beta\": 0.1}}"},
    {.json = NULL},
};

/* YaRN does not change the scores here, whatever mscale_all_dim is (transformers' modeling_mistral4.py). */
static enum pp_code mistral_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *rope = rope_of(config);
    enum pp_code code = pp_deepseek_from_config(config, hp, err);
    if (!code)
        code = pp_config_float(rope, "llama_4_scaling_beta", &hp->attn_temperature, err);
    if (!code)
        code = pp_config_int(rope, "original_max_position_embeddings", &hp->rope_orig_ctx, err);
    hp->yarn_log_multiplier = 0;
    set_scale(hp);
    return code;
}

static void mistral_to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_deepseek_to_config(hp, config);
    pp_config_put_class(config, mistral_classes[0], mistral_classes[1]);
    cJSON *rope = cJSON_GetObjectItemCaseSensitive(config, "rope_scaling");
    if (!rope) {
        rope = cJSON_AddObjectToObject(config, "rope_scaling");
        pp_config_put_text(rope, "rope_type", "default");
    }
    pp_config_put_float(rope, "rope_theta", hp->rope_base);
    pp_config_put(rope, "original_max_position_embeddings", hp->rope_orig_ctx);
    pp_config_put_float(rope, "llama_4_scaling_beta", hp->attn_temperature);
    pp_config_put_float(rope, "mscale", 1);
    pp_config_put_float(rope, "mscale_all_dim", 1);
    cJSON *parameters = cJSON_DetachItemFromObjectCaseSensitive(config, "rope_scaling");
    cJSON_AddItemToObject(config, "rope_parameters", parameters); /* other absent keys have defaults */
}

const struct pp_arch pp_arch_mistral4 = {
    .name = "mistral4",
    .hf_classes = mistral_classes,
    .parts = &pp_mistral_parts,
    .names = mistral_names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .hf_pairs = true,
    .gguf_default_no_renorm = true,
    .defaults = mistral_defaults,
    .from_config = mistral_from_config,
    .from_gguf = pp_deepseek_from_gguf,
    .to_gguf = pp_deepseek_to_gguf,
    .to_config = mistral_to_config,
};

/* --- MiniCPM 3 ---------------------------------------------------------------------------------------------------- */

static const char *const minicpm3_classes[] = {"MiniCPM3ForCausalLM", "minicpm3", NULL};
static const struct pp_arch_default minicpm3_defaults[] = {
    {.json = "{\"tie_word_embeddings\": true, \"kv_lora_rank\": 256, \"q_lora_rank\": 768, \"qk_nope_head_dim\": 64,"
             "\"qk_rope_head_dim\": 32}"},
    {.json = NULL},
};

static enum pp_code minicpm3_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    float depth = 1, base = 1;
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    hp->embd_scale = 1;
    hp->v_head_dim = hp->n_embd / hp->n_head;
    if (!code)
        code = pp_latent_from_config(config, hp, err);
    if (!code)
        code = pp_config_float(config, "scale_emb", &hp->embd_scale, err);
    if (!code)
        code = pp_config_float(config, "scale_depth", &depth, err);
    if (!code)
        code = pp_config_float(config, "dim_model_base", &base, err);
    hp->residual_scale = depth / sqrtf((float)hp->n_layer);
    hp->logit_scale = base / (float)hp->n_embd;
    set_scale(hp);
    return code;
}

/* Files lack what is constant in the family or follows from other sizes. */
static enum pp_code minicpm3_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    if (!hp->kv_lora_rank)
        return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks minicpm3.attention.kv_lora_rank");
    if (!pp_gguf_has(g, "minicpm3.attention.value_length") && hp->n_head > 0)
        hp->v_head_dim = hp->n_embd / hp->n_head;
    if (!pp_gguf_has(g, "minicpm3.embedding_scale"))
        hp->embd_scale = 12;
    if (!pp_gguf_has(g, "minicpm3.residual_scale"))
        hp->residual_scale = 1.4f / sqrtf((float)hp->n_layer);
    hp->logit_scale = hp->logit_scale != 0.0f ? 1.0f / hp->logit_scale : 256.0f / (float)hp->n_embd;
    set_scale(hp);
    return PP_OK;
}

static void minicpm3_to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_latent_to_config(hp, config);
    pp_config_put_float(config, "scale_emb", hp->embd_scale);
    pp_config_put_float(config, "scale_depth", hp->residual_scale * sqrtf((float)hp->n_layer));
    pp_config_put_float(config, "dim_model_base", hp->logit_scale * (float)hp->n_embd);
}

const struct pp_arch pp_arch_minicpm3 = {
    .name = "minicpm3",
    .hf_classes = minicpm3_classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .gguf_divides_logits = true,
    .gguf_joined_kv_b = true,
    .defaults = minicpm3_defaults,
    .from_config = minicpm3_from_config,
    .from_gguf = minicpm3_from_gguf,
    .to_config = minicpm3_to_config,
};

/* --- PLM ---------------------------------------------------------------------------------------------------------- */

static const char *const plm_classes[] = {"PLMForCausalLM", "plm", NULL};
static const struct pp_arch_default plm_defaults[] = {
    {.json = "{\"tie_word_embeddings\": true, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128,"
             "\"qk_rope_head_dim\": 64, \"v_head_dim\": 128}"},
    {.json = NULL},
};

static enum pp_code plm_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_relu2_names, err);
    if (!code)
        code = pp_latent_from_config(config, hp, err);
    set_scale(hp);
    return code;
}

static enum pp_code plm_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g;
    if (!hp->kv_lora_rank)
        return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks plm.attention.kv_lora_rank");
    set_scale(hp);
    return PP_OK;
}

const struct pp_arch pp_arch_plm = {
    .name = "plm",
    .hf_classes = plm_classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .hf_pairs = true,
    .gguf_joined_kv_b = true,
    .defaults = plm_defaults,
    .decoder = {.ungated = true, .fn = PP_FN_RELU2},
    .from_config = plm_from_config,
    .from_gguf = plm_from_gguf,
    .to_config = pp_latent_to_config,
};
