/* cohere2.c - Cohere's families, with attention and feed-forward part in parallel after one LayerNorm without bias
 * (transformers, models/cohere, cohere2).
 *
 * Command R7B and similar (cohere2): every fourth layer has full attention and no RoPE, the others have a window.
 * Command R and Aya before it (command-r): full attention in all layers; larger models have a norm with its own vector
 * for each head of q and k. North Micro Vision's language model (cohere_compass_text): as cohere2, but with the other
 * pairs of rotated dimensions (rope_neox); only pippin makes GGUF files of it. Command A+ and North Mini Code after
 * them (cohere2moe): experts in parallel with attention. */
#include <cjson/cJSON.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

static const char *const classes[] = {"Cohere2ForCausalLM", "Cohere2VisionForConditionalGeneration", "cohere2",
                                      "cohere2_vision", NULL};
static const char *const prefixes[] = {"model.language_model.", "model.", "language_model.", "", NULL};
static const char *const others[] = {"model.vision_tower.", "model.multi_modal_projector.", "vision_tower.",
                                     "multi_modal_projector.", NULL};
static const struct pp_arch_parts parts = {.model_type = "cohere2", .prefixes = prefixes, .others = others};

/* Common to both. */
static enum pp_code common_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    hp->parallel = true;
    hp->norm_eps = 1e-5f;
    hp->logit_scale = 0.0625f;
    if (!code)
        code = pp_config_float(config, "layer_norm_eps", &hp->norm_eps, err);
    return code ? code : pp_config_float(config, "logit_scale", &hp->logit_scale, err);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t pattern = 4;
    enum pp_code code = common_config(config, hp, err);
    if (!code)
        code = pp_config_window(config, 4096, hp, err);
    if (!code)
        code = pp_config_int(config, "sliding_window_pattern", &pattern, err);
    if (!code)
        code = pp_config_int(config, "_sliding_window_pattern", &pattern, err);
    if (!code && pattern > 0)
        pp_layers_every(hp, pattern, PP_LAYER_WIDE);
    if (!code)
        code = pp_config_layer_types(config, hp, err);
    pp_layers_rotate_windows(hp);
    return code;
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)err;
    hp->parallel = true;
    if (!pp_gguf_has(g, "cohere2.attention.sliding_window_pattern"))
        pp_layers_every(hp, 4, PP_LAYER_WIDE);
    pp_layers_rotate_windows(hp);
    return PP_OK;
}

static void to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    pp_config_put_layer_types(config, hp);
    pp_config_put_float(config, "logit_scale", hp->logit_scale != 0.0f ? hp->logit_scale : 1);
}

static const struct pp_arch_default defaults[] = {
    {.json = "{\"max_position_embeddings\": 8192, \"tie_word_embeddings\": true}"},
    {.json = NULL},
};

const struct pp_arch pp_arch_cohere2 = {
    .name = "cohere2",
    .hf_classes = classes,
    .parts = &parts,
    .names = pp_common_names,
    .ignored = pp_common_ignored,
    .hf_pairs = true,
    .decoder = {.layer_norm = true},
    .from_config = from_config,
    .defaults = defaults,
    .from_gguf = from_gguf,
    .layer_pattern = 4,
    .to_config = to_config,
    .hf_eps = "layer_norm_eps",
};

/* --- North Micro Vision ------------------------------------------------------------------------------------------ */

static const char *const compass_classes[] = {"CohereCompassForCausalLM", "CohereCompassForConditionalGeneration",
                                              "cohere_compass", "cohere_compass_text", NULL};
static const struct pp_arch_parts compass_parts = {
    .model_type = "cohere_compass_text", .prefixes = pp_qwen_prefixes, .others = pp_qwen_others};
static const struct pp_arch_default compass_defaults[] = {
    {.json = "{\"vocab_size\": 256000, \"hidden_size\": 8192, \"intermediate_size\": 22528, \"num_hidden_layers\": 40,"
             "\"num_attention_heads\": 64, \"max_position_embeddings\": 8192, \"tie_word_embeddings\": true}"},
    {.json = NULL},
};

/* Layers with full attention are not rotated; the configuration must agree. */
static enum pp_code compass_rope(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *both = pp_json_member(config, "rope_parameters");
    const cJSON *local = pp_json_member(both, "sliding_attention");
    const cJSON *type = pp_json_member(local, "rope_type");
    if (cJSON_IsObject(pp_json_member(both, "full_attention")))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: rope_parameters of full_attention is not null, which is "
                       "not supported for this family");
    if (!cJSON_IsObject(local) || (cJSON_IsString(type) && strcmp(type->valuestring, "default") != 0))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: rope_parameters of sliding_attention must have the type "
                                                "\"default\"; others are not supported for this family");
    return pp_config_float(local, "rope_theta", &hp->rope_base, err);
}

static enum pp_code compass_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = common_config(config, hp, err);
    if (!cJSON_IsNumber(pp_json_member(config, "logit_scale")))
        hp->logit_scale = 1;
    if (!code)
        code = pp_config_window(config, 4096, hp, err);
    pp_layers_every(hp, 1, PP_LAYER_WIDE); /* if there is no list */
    if (!code)
        code = pp_config_layer_types(config, hp, err);
    pp_layers_rotate_windows(hp);
    return code ? code : compass_rope(config, hp, err);
}

static enum pp_code compass_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g, (void)err;
    hp->parallel = true;
    pp_layers_rotate_windows(hp);
    return PP_OK;
}

static void compass_to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    to_config(hp, config);
    cJSON_DeleteItemFromObjectCaseSensitive(config, "rope_theta");
    cJSON *both = cJSON_AddObjectToObject(config, "rope_parameters");
    cJSON_AddNullToObject(both, "full_attention");
    cJSON *local = cJSON_AddObjectToObject(both, "sliding_attention");
    pp_config_put_text(local, "rope_type", "default");
    pp_config_put_float(local, "rope_theta", hp->rope_base);
}

const struct pp_arch pp_arch_cohere_compass = {
    .name = "cohere_compass_text",
    .hf_classes = compass_classes,
    .parts = &compass_parts,
    .names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = compass_defaults,
    .gguf_neox = true,
    .decoder = {.layer_norm = true},
    .from_config = compass_from_config,
    .from_gguf = compass_from_gguf,
    .to_config = compass_to_config,
    .hf_eps = "layer_norm_eps",
};

/* --- Command R -------------------------------------------------------------------------------------------------- */

static const struct pp_arch_name command_r_names[] = {
    {.hf = "model.layers.{}.self_attn.q_norm", .gguf = "blk.{}.attn_q_norm"},
    {.hf = "model.layers.{}.self_attn.k_norm", .gguf = "blk.{}.attn_k_norm"},
    {.hf = NULL},
};
static const char *const command_r_classes[] = {"CohereForCausalLM", "cohere", NULL};
static const struct pp_arch_default command_r_defaults[] = {
    {.json = "{\"max_position_embeddings\": 8192, \"tie_word_embeddings\": true, \"rope_theta\": 500000.0}"},
    {.json = NULL},
};

/* max_position_embeddings is less than what the models were trained for, which some have in model_max_length. */
static enum pp_code command_r_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = common_config(config, hp, err);
    hp->qk_norm = pp_config_flag(config, "use_qk_norm", false);
    return code ? code : pp_config_int(config, "model_max_length", &hp->n_ctx_train, err);
}

static enum pp_code command_r_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g, (void)err;
    hp->parallel = true;
    return PP_OK;
}

static void command_r_to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    pp_config_put_float(config, "logit_scale", hp->logit_scale != 0.0f ? hp->logit_scale : 1);
    cJSON_AddBoolToObject(config, "use_qk_norm", hp->qk_norm);
}

const struct pp_arch pp_arch_command_r = {
    .name = "command-r",
    .hf_classes = command_r_classes,
    .names = command_r_names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = command_r_defaults,
    .hf_pairs = true,
    .decoder = {.layer_norm = true, .qk_norm = PP_QK_OPTIONAL},
    .from_config = command_r_from_config,
    .from_gguf = command_r_from_gguf,
    .to_config = command_r_to_config,
    .hf_eps = "layer_norm_eps",
};

/* --- mixtures ---------------------------------------------------------------------------------------------------- */

static const char *const moe_classes[] = {"Cohere2MoeForCausalLM", "cohere2_moe", NULL};
static const char *const moe_other_names[] = {"cohere2_moe", NULL}; /* ik_llama.cpp's */
static const struct pp_expert_keys expert_keys = {
    .n = "num_experts", .n_used = "num_experts_per_tok", .n_ff = "intermediate_size", .n_shared = "num_shared_experts",
    .n_dense = "first_k_dense_replace", .norm_topk = "norm_topk_prob"};
static const struct pp_arch_default moe_defaults[] = {
    {.json = "{\"head_dim\": 128, \"max_position_embeddings\": 8192, \"tie_word_embeddings\": true, \"num_experts\": 8,"
             "\"num_experts_per_tok\": 2, \"norm_topk_prob\": true}"},
    {.json = NULL},
};

/* Layers with full attention are not rotated, except for those without experts. */
static void moe_finish(struct pp_hparams *hp)
{
    hp->parallel = true;
    hp->shared_mean = true;
    pp_layers_rotate_windows(hp);
    for (int64_t l = 0; l < hp->n_layer; l++)
        if (hp->layer[l] & PP_LAYER_DENSE)
            hp->layer[l] &= (uint8_t)~PP_LAYER_UNROTATED;
}

/* Layers without experts come first and may have a pattern of windows of their own. */
static enum pp_code moe_layers(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t pattern = 4, dense_pattern = 1, n_dense = 0;
    enum pp_code code = pp_config_int(config, "sliding_window_pattern", &pattern, err);
    if (!code)
        code = pp_config_int(config, "prefix_dense_sliding_window_pattern", &dense_pattern, err);
    if (!code)
        code = pp_config_int(config, "first_k_dense_replace", &n_dense, err);
    for (int64_t l = 0; !code && pattern > 0 && dense_pattern > 0 && l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        if (l < n_dense ? (l + 1) % dense_pattern == 0 : (l - n_dense + 1) % pattern == 0)
            hp->layer[l] |= PP_LAYER_WIDE;
    if (!code)
        code = pp_config_layer_types(config, hp, err);
    if (!code)
        code = pp_config_mlp_types(config, hp, err);
    for (int64_t l = 0; !code && dense_pattern != 1 && l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        if (hp->layer[l] & PP_LAYER_DENSE && hp->layer[l] & PP_LAYER_WIDE) /* GGUF files cannot express it */
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: prefix_dense_sliding_window_pattern is not 1, which "
                           "is not supported");
    return code;
}

static enum pp_code moe_routing(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *fn = pp_json_member(config, "expert_selection_fn");
    const cJSON *mean = pp_json_member(config, "shared_expert_combination_strategy");
    int64_t n_shared = 0;
    enum pp_code code = pp_config_experts(config, &expert_keys, hp, err);
    hp->expert_sigmoids = cJSON_IsString(fn) && strcmp(fn->valuestring, "sigmoid") == 0;
    hp->expert_no_renorm = hp->expert_no_renorm && hp->expert_sigmoids; /* a softmax is over the chosen experts */
    if (!code && cJSON_IsString(fn) && !hp->expert_sigmoids && strcmp(fn->valuestring, "softmax") != 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: expert_selection_fn is \"%.40s\", which is not supported",
                       fn->valuestring);
    if (!code)
        code = pp_config_int(config, "num_shared_experts", &n_shared, err);
    if (!code && n_shared && cJSON_IsString(mean) && strcmp(mean->valuestring, "average") != 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: shared_expert_combination_strategy is \"%.40s\", which "
                       "is not supported", mean->valuestring);
    return code ? code : pp_config_int(config, "prefix_dense_intermediate_size", &hp->n_ff, err);
}

static enum pp_code moe_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const float rms_eps = hp->norm_eps;
    enum pp_code code = common_config(config, hp, err);
    hp->rms_norm = cJSON_IsNumber(pp_json_member(config, "rms_norm_eps"));
    if (hp->rms_norm)
        hp->norm_eps = rms_eps;
    if (!code)
        code = pp_config_window(config, 4096, hp, err);
    if (!code)
        code = moe_routing(config, hp, err);
    if (!code)
        code = moe_layers(config, hp, err);
    moe_finish(hp);
    return code;
}

/* Files may have both epsilons: then norms are RMSNorm. */
static enum pp_code moe_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    static const char *const keys[] = {"cohere2moe.attention.layer_norm_rms_epsilon",
                                       "cohere2_moe.attention.layer_norm_rms_epsilon"};
    double eps = 0;
    (void)err;
    for (int i = 0; i < 2; i++)
        if (pp_gguf_float(g, keys[i], &eps) && eps != 0) {
            hp->rms_norm = true;
            hp->norm_eps = (float)eps;
        }
    moe_finish(hp);
    return PP_OK;
}

static void moe_to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    to_config(hp, config);
    if (hp->rms_norm)
        pp_config_put_float(config, "rms_norm_eps", hp->norm_eps);
    pp_config_put(config, "prefix_dense_intermediate_size", hp->n_ff);
    pp_config_put(config, "prefix_dense_sliding_window_pattern", 1);
    pp_config_put_experts(hp, &expert_keys, config);
    pp_config_put_text(config, "expert_selection_fn", hp->expert_sigmoids ? "sigmoid" : "softmax");
    pp_config_put_text(config, "shared_expert_combination_strategy", "average");
}

const struct pp_arch pp_arch_cohere2moe = {
    .name = "cohere2moe",
    .other_names = moe_other_names,
    .hf_classes = moe_classes,
    .parts = &parts,
    .names = pp_expert_names,
    .ignored = pp_common_ignored,
    .hf_pairs = true,
    .gguf_default_no_renorm = true,
    .gguf_default_sigmoids = true,
    .decoder = {.layer_norm = true, .parallel_experts = true},
    .from_config = moe_from_config,
    .defaults = moe_defaults,
    .from_gguf = moe_from_gguf,
    .to_config = moe_to_config,
    .hf_eps = "layer_norm_eps",
};
