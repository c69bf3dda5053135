/* deepseek2.c - the families with latent attention: DeepSeek V2 (arXiv 2405.04434) and V3 (arXiv 2412.19437) with those
 * that are built as it is: R1, Kimi K2, Moonlight; GLM 4.7 Flash; and MiniCPM 3, which is dense. decoder_mixers.c
 * computes it. */
#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

static const char *const classes[] = {
    "DeepseekV3ForCausalLM", "deepseek_v3", "DeepseekV2ForCausalLM", "deepseek_v2", "Glm4MoeLiteForCausalLM",
    "glm4_moe_lite", "kimi_k2", "KimiK2ForCausalLM", NULL};

#define ATTENTION "model.layers.{}.self_attn."

static const struct pp_arch_name names[] = {
    {.hf = ATTENTION "q_a_proj", .gguf = "blk.{}.attn_q_a"},
    {.hf = ATTENTION "q_a_layernorm", .gguf = "blk.{}.attn_q_a_norm"},
    {.hf = ATTENTION "q_b_proj", .gguf = "blk.{}.attn_q_b"},
    {.hf = ATTENTION "kv_a_proj_with_mqa", .gguf = "blk.{}.attn_kv_a_mqa"},
    {.hf = ATTENTION "kv_a_layernorm", .gguf = "blk.{}.attn_kv_a_norm"},
    {.hf = ATTENTION "kv_b_proj", .gguf = "blk.{}.attn_kv_b"},
    {.hf = ATTENTION "embed_q", .gguf = "blk.{}.attn_k_b", .mlx = true},
    {.hf = ATTENTION "unembed_out", .gguf = "blk.{}.attn_v_b", .mlx = true},
    {.hf = NULL},
};

/* transformers' own models take these for granted; those that bring their code along say everything. */
static const struct pp_arch_usual usual[] = {
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
    .n_dense = "first_k_dense_replace", .normed = "norm_topk_prob", .scale = "routed_scaling_factor"};

/* Scores of heads of this size; YaRN makes them larger, and cosines and sines as they are. */
static void set_scale(struct pp_hparams *hp)
{
    const float more = hp->rope_scaling == PP_ROPE_YARN && hp->rope_factor > 1
                           ? 1.0f + hp->yarn_log_multiplier * logf(hp->rope_factor) : 1.0f;
    hp->attn_scale = more * more / sqrtf((float)(hp->qk_nope_dim + hp->rope_dim));
}

/* --- config.json -------------------------------------------------------------------------------------------------- */

/* What scales RoPE is under one of two keys. */
static cJSON *rope_of(const cJSON *config)
{
    cJSON *rope = cJSON_GetObjectItemCaseSensitive(config, "rope_parameters");
    return cJSON_IsObject(rope) ? rope : cJSON_GetObjectItemCaseSensitive(config, "rope_scaling");
}

static bool says(const cJSON *config, const char *key, const char *text)
{
    const char *said = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(config, key));
    return said && strcmp(said, text) == 0;
}

static enum pp_code sizes_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
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
    if (!code && (hp->kv_lora_rank < 1 || hp->kv_lora_rank > 1 << 20 || hp->rope_dim < 2 || hp->rope_dim > 1 << 20))
        code = pp_fail(err, PP_ERR_FORMAT, "config.json: kv_lora_rank %lld and qk_rope_head_dim %lld cannot be",
                       (long long)hp->kv_lora_rank, (long long)hp->rope_dim);
    hp->n_head_kv = 1;
    hp->head_dim = hp->kv_lora_rank + hp->rope_dim;
    return code;
}

/* V2 says how experts are chosen, V3 that they are weighed by sigmoids, or, in transformers' own, nothing. */
static enum pp_code routing_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const bool v2 = pp_arch_is_kind(config, "deepseek_v2", "DeepseekV2ForCausalLM");
    int64_t step = 1;
    enum pp_code code = pp_config_experts(config, &expert_keys, hp, err);
    if (!code)
        code = pp_config_int(config, "moe_layer_freq", &step, err);
    for (int64_t l = 0; step > 0 && l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        hp->layer[l] |= l % step ? PP_LAYER_DENSE : 0;
    hp->expert_sigmoids = v2 ? says(config, "scoring_func", "sigmoid") : !says(config, "scoring_func", "softmax");
    hp->expert_group_largest = says(config, "topk_method", "group_limited_greedy");
    if (says(config, "topk_method", "greedy") || (v2 && !cJSON_HasObjectItem(config, "topk_method")))
        hp->n_expert_group = hp->n_expert_group_used = 0;
    return code;
}

static void sizes_to_config(const struct pp_hparams *hp, cJSON *config)
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

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    float all_dim = 0;
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (!code && !pp_config_flag(config, "rope_interleave", true))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: rope_interleave is false, which pippin does not compute");
    if (!code)
        code = sizes_from_config(config, hp, err);
    if (!code && cJSON_IsObject(rope_of(config)))
        code = pp_config_float(rope_of(config), "mscale_all_dim", &all_dim, err);
    hp->yarn_log_multiplier = 0.1f * all_dim;
    set_scale(hp);
    return code ? code : routing_from_config(config, hp, err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    cJSON *rope = cJSON_GetObjectItemCaseSensitive(config, "rope_scaling");
    const float all_dim = hp->yarn_log_multiplier / 0.1f;
    pp_config_put_experts(hp, &expert_keys, config);
    if (!hp->expert_sigmoids)
        pp_config_put_class(config, "DeepseekV2ForCausalLM", "deepseek_v2");
    sizes_to_config(hp, config);
    pp_config_put(config, "moe_layer_freq", 1);
    pp_config_put_text(config, "scoring_func", hp->expert_sigmoids ? "sigmoid" : "softmax");
    pp_config_put_text(config, "topk_method", hp->expert_sigmoids              ? "noaux_tc"
                                              : hp->expert_group_largest ? "group_limited_greedy"
                                                                                : "greedy");
    if (hp->rope_scaling != PP_ROPE_YARN)
        return;
    cJSON_DeleteItemFromObjectCaseSensitive(rope, "attention_factor");
    pp_config_put_text(rope, "type", "yarn");
    if (all_dim != 0.0f)
        pp_config_put_float(rope, "mscale", all_dim); /* their quotient is 1 */
    if (all_dim != 0.0f)
        pp_config_put_float(rope, "mscale_all_dim", all_dim);
}

/* --- GGUF --------------------------------------------------------------------------------------------------------- */

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    double log_multiplier = 0;
    if (!hp->kv_lora_rank)
        return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks deepseek2.attention.kv_lora_rank");
    pp_gguf_float(g, "deepseek2.rope.scaling.yarn_log_multiplier", &log_multiplier);
    hp->yarn_log_multiplier = (float)log_multiplier;
    hp->rope_attn_factor = hp->rope_scaling == PP_ROPE_YARN ? 1.0f : 0.0f;
    set_scale(hp);
    /* The first files of GLM 4.7 Flash do not say that it is sigmoids, but have what is added to those. */
    if (!pp_gguf_has(g, "deepseek2.expert_gating_func") && pp_gguf_tensor(g, "blk.1.exp_probs_b.bias"))
        hp->expert_sigmoids = true;
    hp->expert_group_largest = hp->n_expert_group > 1 && !hp->expert_sigmoids;
    return PP_OK;
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    if (hp->rope_scaling == PP_ROPE_YARN)
        pp_gguf_add_f32(w, "deepseek2.rope.scaling.yarn_log_multiplier", hp->yarn_log_multiplier);
}

const struct pp_arch pp_arch_deepseek2 = {
    .name = "deepseek2",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .hf_pairs = true,
    .gguf_shares = true,
    .usual = usual,
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};

/* --- MiniCPM 3 ---------------------------------------------------------------------------------------------------- */

static const char *const minicpm3_classes[] = {"MiniCPM3ForCausalLM", "minicpm3", NULL};
static const struct pp_arch_usual minicpm3_usual[] = {
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
        code = sizes_from_config(config, hp, err);
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

/* Files do not say what is the same in all models of the family, or follows from other sizes. */
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
    sizes_to_config(hp, config);
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
    .gguf_joined_heads = true,
    .usual = minicpm3_usual,
    .from_config = minicpm3_from_config,
    .from_gguf = minicpm3_from_gguf,
    .to_config = minicpm3_to_config,
};
