/* gigachat35.c - GigaChat 3.5 (ai-sage; formulas from vLLM's and SGLang's models and llama.cpp's graph): in most
 * layers Qwen3-Next's gated delta rule, with output gates 2 sigmoid(x); in the others latent attention with a gate for
 * each value, and queries and latent vectors scaled by sqrt(n_embd / rank) as in LongCat-Flash; DeepSeek V3's experts
 * with bounded gates. All norms, pre-norms and post-norms, have low-rank gates 2 sigmoid(x).
 *
 * Folders group the inputs of states by key head, and store all norms' weights without 1. */
#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/hparams.h"

#define LAYER "model.layers.{}."
#define ATTENTION LAYER "self_attn."
#define NORM(hf_name, gguf_name)                                                                                      \
    {.hf = hf_name ".gate_up_projection", .gguf = gguf_name "_gate_up"},                                              \
    {.hf = hf_name ".gate_down_projection", .gguf = gguf_name "_gate_down"},                                          \
    {.hf = hf_name, .gguf = gguf_name, .form = PP_HF_PLUS_ONE}

static const struct pp_arch_name names[] = {
    NORM("model.norm", "output_norm"),
    NORM(LAYER "input_layernorm", "blk.{}.attn_norm"),
    NORM(LAYER "post_self_attn_layernorm", "blk.{}.post_attention_norm"),
    NORM(LAYER "post_attention_layernorm", "blk.{}.ffn_norm"),
    NORM(LAYER "post_feedforward_layernorm", "blk.{}.post_ffw_norm"),
    NORM(ATTENTION "q_a_layernorm", "blk.{}.attn_q_a_norm"),
    NORM(ATTENTION "kv_a_layernorm", "blk.{}.attn_kv_a_norm"),
    {.hf = ATTENTION "gate_proj", .gguf = "blk.{}.attn_gate"},
    {.hf = ATTENTION "in_proj_qkvz", .gguf = "blk.{}.ssm_in"},
    {.hf = ATTENTION "in_proj_ba", .gguf = "blk.{}.ssm_ba"},
    {.hf = ATTENTION "conv1d.weight", .gguf = "blk.{}.ssm_conv1d.weight", .form = PP_HF_CONV, .whole = true},
    {.hf = ATTENTION "A_log", .gguf = "blk.{}.ssm_a", .form = PP_HF_MINUS_EXP, .whole = true},
    {.hf = ATTENTION "dt_bias", .gguf = "blk.{}.ssm_dt.bias", .whole = true},
    {.hf = ATTENTION "norm", .gguf = "blk.{}.ssm_norm", .form = PP_HF_PLUS_ONE},
    {.hf = ATTENTION "out_proj", .gguf = "blk.{}.ssm_out"},
    PP_LATENT_NAMES,
    {.hf = NULL},
};
static const char *const classes[] = {"GigaChat35ForCausalLM", "gigachat3_5", NULL};
/* Defaults of vLLM's configuration. */
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 128256, \"hidden_size\": 7168, \"intermediate_size\": 18432,"
             "\"moe_intermediate_size\": 2048, \"num_hidden_layers\": 40, \"num_attention_heads\": 64,"
             "\"n_shared_experts\": 1, \"n_routed_experts\": 256, \"routed_scaling_factor\": 2.5,"
             "\"kv_lora_rank\": 512, \"q_lora_rank\": 1536, \"qk_rope_head_dim\": 64, \"v_head_dim\": 128,"
             "\"qk_nope_head_dim\": 128, \"n_group\": 1, \"topk_group\": 1, \"num_experts_per_tok\": 8,"
             "\"first_k_dense_replace\": 3, \"norm_topk_prob\": true, \"max_position_embeddings\": 131072,"
             "\"rms_norm_eps\": 1e-6, \"rope_theta\": 100000.0, \"linear_key_head_dim\": 128,"
             "\"linear_value_head_dim\": 128, \"linear_conv_kernel_dim\": 4, \"linear_num_key_heads\": 32,"
             "\"linear_num_value_heads\": 64, \"swiglu_limit\": 10.0}"},
    {.json = NULL},
};
enum { NORM_RANK = 16 }; /* a constant of the family */
static const float most_gate = 2; /* of norms' gates, and of states' output gates */
static const char layers_key[] = "full_attention_layers";

/* Fixed properties of the family. */
static enum pp_code set_known(struct pp_hparams *hp, struct pp_error *err)
{
    hp->norm_rank = NORM_RANK;
    hp->state_scale = most_gate;
    hp->state_sigmoids = true;
    hp->per_head_gates = false;
    if (hp->n_expert < 1)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "a model of this family without experts is not supported");
    if (hp->q_lora_rank > 0)
        hp->attn_scale *= sqrtf((float)hp->n_embd / (float)hp->q_lora_rank);
    hp->latent_scale = sqrtf((float)hp->n_embd / (float)hp->kv_lora_rank);
    return PP_OK;
}

/* --- config.json -------------------------------------------------------------------------------------------------- */

/* Refuses settings that no published model has. */
static enum pp_code check_words(const cJSON *config, const struct pp_hparams *hp, struct pp_error *err)
{
    static const struct {
        const char *key, *word;
    } words[] = {{"norm_type", "ZeroCenteredGatedNorm"},       {"layernorm_type", "pre_post"},
                 {"linear_attention_type", "Qwen3NextGatedDeltaNet"},
                 {"linear_gating_type", "gated_rmsnorm_sigmoid_zero_centered"},
                 {"output_gate_type", "sigmoid"},              {"scoring_func", "sigmoid"}};
    static const struct {
        const char *key;
        bool usual;
    } flags[] = {{"gated_attention", true},           {"use_mla_scaling_factor", true},
                 {"linear_use_short_conv", true},     {"use_shared_expert_sigmoid", false},
                 {"linear_use_legacy_qkvz_layout", false}, {"attention_bias", false}, {"use_embed_ln", false}};
    const struct {
        const char *key;
        float usual;
    } numbers[] = {{"layernorm_gating_weight", most_gate}, {"linear_sigmoid_gate_scale", most_gate},
                   {"num_krope_heads", 1}, {"embed_scale", 1}, {"moe_layer_freq", 1},
                   {"linear_attn_o_norm_eps", hp->norm_eps}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const cJSON *item = pp_json_member(config, words[i].key);
        if (item && !(cJSON_IsString(item) && strcmp(item->valuestring, words[i].word) == 0))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s is not %s, which is not supported for this family",
                           words[i].key, words[i].word);
    }
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (pp_config_flag(config, flags[i].key, flags[i].usual) != flags[i].usual)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s is %s, which is not supported for this family",
                           flags[i].key, flags[i].usual ? "false" : "true");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const cJSON *item = pp_json_member(config, numbers[i].key);
        if (item && !cJSON_IsNull(item) && !(cJSON_IsNumber(item) && (float)item->valuedouble == numbers[i].usual))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s is not %g, which is not supported for this family",
                           numbers[i].key, (double)numbers[i].usual);
    }
    return PP_OK;
}

/* The layers with attention: a list of indices, or layer_types. */
static enum pp_code layers_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *list = pp_json_member(config, layers_key), *item;
    if (!cJSON_IsArray(list) && !cJSON_IsArray(pp_json_member(config, "layer_types")))
        return pp_fail(err, PP_ERR_FORMAT, "config.json: neither %s nor layer_types says which layers have attention",
                       layers_key);
    if (!cJSON_IsArray(list))
        return pp_config_layer_words(config, "layer_types", "linear_attention", "full_attention", PP_LAYER_RECURRENT,
                                     hp, err);
    pp_layers_every(hp, 1, PP_LAYER_RECURRENT);
    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble < (double)hp->n_layer))
            return pp_fail(err, PP_ERR_FORMAT, "config.json: %s lists what is none of %lld layers", layers_key,
                           (long long)hp->n_layer);
        hp->layer[item->valueint] &= (uint8_t)~PP_LAYER_RECURRENT;
    }
    return PP_OK;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    float most = 0;
    enum pp_code code = check_words(config, hp, err);
    if (!code)
        code = pp_deepseek_from_config(config, hp, err);
    if (!code)
        code = pp_delta_sizes_from_config(config, hp, err);
    if (!code)
        code = layers_from_config(config, hp, err);
    if (!code)
        code = pp_config_float(config, "swiglu_limit", &most, err);
    if (!code)
        code = set_known(hp, err);
    return code ? code : pp_bound_gates(hp, most, "config.json: swiglu_limit", err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_deepseek_to_config(hp, config);
    pp_config_put_class(config, classes[0], classes[1]);
    pp_delta_to_config(hp, config);
    cJSON_DeleteItemFromObjectCaseSensitive(config, "layer_types");
    cJSON *list = cJSON_AddArrayToObject(config, layers_key);
    for (int64_t l = 0; l < hp->n_layer; l++)
        if (!(hp->layer[l] & PP_LAYER_RECURRENT))
            cJSON_AddItemToArray(list, cJSON_CreateNumber((double)l));
    pp_config_put_float(config, "swiglu_limit", hp->expert_bound[0]);
    pp_config_put_text(config, "norm_type", "ZeroCenteredGatedNorm");
    pp_config_put_text(config, "layernorm_type", "pre_post");
    pp_config_put_float(config, "layernorm_gating_weight", most_gate);
    pp_config_put_text(config, "linear_attention_type", "Qwen3NextGatedDeltaNet");
    pp_config_put_text(config, "linear_gating_type", "gated_rmsnorm_sigmoid_zero_centered");
    pp_config_put_text(config, "output_gate_type", "sigmoid");
    pp_config_put_float(config, "linear_sigmoid_gate_scale", most_gate);
    cJSON_AddTrueToObject(config, "gated_attention");
    cJSON_AddTrueToObject(config, "use_mla_scaling_factor");
    cJSON_AddTrueToObject(config, "rope_interleave");
}

/* --- GGUF --------------------------------------------------------------------------------------------------------- */

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_deepseek_from_gguf(g, hp, err);
    if (!code)
        code = pp_delta_from_gguf(g, hp, err);
    if (!code && !hp->expert_sigmoids)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "metadata gigachat35.expert_gating_func is not that of sigmoids, which "
                       "is not supported for this family");
    if (!code)
        code = set_known(hp, err);
    return code ? code : pp_bounds_from_gguf(g, hp, err);
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_deepseek_to_gguf(hp, w);
    pp_delta_to_gguf(hp, w);
    pp_bounds_to_gguf(hp, w);
}

const struct pp_arch pp_arch_gigachat35 = {
    .name = "gigachat35",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .hf_pairs = true,
    .gguf_default_no_renorm = true,
    .gguf_default_sigmoids = true,
    .gguf_split_states = true,
    .decoder = {.post_norm = true, .gated_attention = true, .clamp_before_silu = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
