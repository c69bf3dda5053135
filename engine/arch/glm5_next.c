/* glm5_next.c - GLM 5 Next (GLM 5.3 Flash): in three of four layers Kimi Linear's delta rule with bounded decays; in
 * the fourth latent attention without positions, with an indexer that picks blocks of positions by one key each; four
 * residual streams with manifold-constrained hyper-connections (arXiv 2512.24880), whose mean is the output; and
 * bounded gates, in experts and in dense layers.
 *
 * llama.cpp's main branch has no graph of it yet. Published GGUF files follow its proposals, which agree except for
 * general.architecture. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

#define LAYER "model.layers.{}."
#define ATTENTION LAYER "self_attn."
#define CONNECTION(part)                                                                                              \
    {.hf = LAYER "hc_" part "_fn", .gguf = "blk.{}.hc_" part "_fn.weight", .whole = true},                            \
    {.hf = LAYER "hc_" part "_base", .gguf = "blk.{}.hc_" part "_base.weight", .whole = true},                        \
    {.hf = LAYER "hc_" part "_scale", .gguf = "blk.{}.hc_" part "_scale.weight", .whole = true}
#define TAPS(letter)                                                                                                  \
    {.hf = ATTENTION letter "_conv1d.weight", .gguf = "blk.{}.ssm_conv1d_" letter ".weight", .whole = true,            \
     .form = PP_HF_CONV_3D}

static const struct pp_arch_name names[] = {
    CONNECTION("attn"),
    CONNECTION("ffn"),
    {.hf = ATTENTION "indexer.index_kpool_compress_gate", .gguf = "blk.{}.indexer_compressor_gate.weight",
     .whole = true},
    {.hf = ATTENTION "indexer.index_kpool_compress_ape", .gguf = "blk.{}.indexer_compressor_ape.weight",
     .whole = true},
    PP_INDEX_NAMES,
    PP_LATENT_NAMES,
    TAPS("q"),
    TAPS("k"),
    TAPS("v"),
    PP_KDA_NAMES,
    PP_KDA_GATE_NAMES,
    {.hf = ATTENTION "A_log", .gguf = "blk.{}.ssm_a", .form = PP_HF_MINUS_EXP, .whole = true},
    {.hf = NULL},
};
static const char *const classes[] = {"Glm5NextForCausalLM", "Glm5NextForConditionalGeneration", "glm5_next",
                                      "glm5_next_text", NULL};
static const char other_name[] = "glm5-next"; /* general.architecture in another of the proposals */
static const char *const other_names[] = {other_name, NULL};
static const struct pp_arch_parts parts = {
    .model_type = "glm5_next", .prefixes = pp_qwen_prefixes, .others = pp_qwen_others};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 154880, \"hidden_size\": 4096, \"intermediate_size\": 12288,"
             "\"moe_intermediate_size\": 2048, \"num_hidden_layers\": 45, \"num_attention_heads\": 64,"
             "\"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-5, \"n_routed_experts\": 288,"
             "\"n_shared_experts\": 1, \"num_experts_per_tok\": 8, \"routed_scaling_factor\": 2.5,"
             "\"norm_topk_prob\": true, \"n_group\": 1, \"topk_group\": 1, \"q_lora_rank\": 1536,"
             "\"kv_lora_rank\": 512, \"qk_nope_head_dim\": 256, \"qk_rope_head_dim\": 0, \"v_head_dim\": 256,"
             "\"index_topk\": 2048, \"index_head_dim\": 128, \"index_n_heads\": 32, \"index_kpool\": 16,"
             "\"hc_mult\": 4, \"hc_eps\": 1e-6, \"hc_sinkhorn_iters\": 20, \"swiglu_limit\": 10.0}"},
    {.json = NULL},
};
static const struct pp_expert_keys expert_keys = {
    .n = "n_routed_experts", .n_used = "num_experts_per_tok", .n_ff = "moe_intermediate_size", .n_groups = "n_group",
    .n_groups_used = "topk_group", .n_shared = "n_shared_experts", .n_dense = "first_k_dense_replace",
    .norm_topk = "norm_topk_prob", .scale = "routed_scaling_factor"};

/* Fixed properties of the family: square states, one for each head; coefficients of writing within 0 .. 2; and an
 * indexer in layers without states. */
static enum pp_code set_known(struct pp_hparams *hp, int64_t head_dim, float decay_bound, struct pp_error *err)
{
    int64_t n_attending = 0;
    if (!(decay_bound < 0 && isfinite(decay_bound)))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the bound of decays is %g; only models with one below 0 are supported",
                       (double)decay_bound);
    if (hp->rope_dim != 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%lld values of a head are rotated, which is not supported for this "
                       "family", (long long)hp->rope_dim);
    hp->kda = hp->hyper = hp->stream_mean = hp->index_pooled = true;
    hp->n_state_head = hp->n_state_key_head = hp->n_head;
    hp->state_key_dim = hp->state_value_dim = head_dim;
    hp->decay_bound = decay_bound;
    hp->connection.write_scale = 2;
    hp->connection.write_eps = 0;
    hp->attn_scale = 1.0f / sqrtf((float)hp->qk_nope_dim);
    for (int64_t l = 0; l < hp->n_layer; l++) {
        n_attending += !(hp->layer[l] & PP_LAYER_RECURRENT);
        if (!(hp->layer[l] & PP_LAYER_RECURRENT) && hp->layer[l] & PP_LAYER_PICKED_BEFORE)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "layer %lld has attention but no index, which is not supported for "
                           "this family", (long long)l);
        hp->layer[l] &= (uint8_t)~PP_LAYER_PICKED_BEFORE;
    }
    if (n_attending == hp->n_layer) /* only states keep a cache's positions, and with them blocks, in place */
        return pp_fail(err, PP_ERR_UNSUPPORTED, "a model of this family without states is not supported");
    if (hp->connection.sinkhorn_iters < 1)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "streams that no matrix mixes are not supported for this family");
    return pp_index_check(hp, err);
}

enum pp_code pp_bound_gates(struct pp_hparams *hp, float most, const char *label, struct pp_error *err)
{
    if (!isfinite(most) || most < 0)
        return pp_fail(err, PP_ERR_FORMAT, "%s is %g; bounds of gates are finite and not below 0", label, (double)most);
    for (int64_t l = 0; l < hp->n_layer; l++)
        hp->gate_bound[l] = hp->expert_bound[l] = most;
    return PP_OK;
}

/* --- config.json -------------------------------------------------------------------------------------------------- */

static enum pp_code refuse_others(const cJSON *config, struct pp_error *err)
{
    static const char *const always[] = {"mla_use_nope", "mhc", "index_kpool_compress",
                                         "index_kpool_always_select_tail"};
    const char *score = cJSON_GetStringValue(pp_json_member(config, "scoring_func"));
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        if (!pp_config_flag(config, always[i], true))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s is false, which is not supported for this family",
                           always[i]);
    if (score && strcmp(score, "sigmoid") != 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: scoring_func \"%.40s\" is not supported; sigmoid is",
                       score);
    return pp_config_activation(config, "hidden_act", pp_silu_names, err);
}

/* Without a list every fourth layer has attention. */
static enum pp_code layers_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const char key[] = "layer_types";
    const cJSON *list = pp_json_member(config, key), *item;
    int64_t l = 0;
    for (int64_t i = 0; i < hp->n_layer && !cJSON_IsArray(list); i++)
        hp->layer[i] |= i % 4 != 3 ? PP_LAYER_RECURRENT : 0;
    if (!cJSON_IsArray(list))
        return PP_OK;
    if (cJSON_GetArraySize(list) != hp->n_layer)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: %s does not name %lld layers", key, (long long)hp->n_layer);
    cJSON_ArrayForEach(item, list)
    {
        const bool linear = pp_config_is_layer_word(item, "linear_attention");
        if (!linear && !pp_config_is_layer_word(item, "deepseek_sparse_attention") &&
            !pp_config_is_layer_word(item, "full_attention"))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s has \"%.40s\", which is not supported for this "
                           "family; linear_attention and deepseek_sparse_attention are", key,
                           cJSON_IsString(item) ? item->valuestring : "");
        hp->layer[l++] |= linear ? PP_LAYER_RECURRENT : 0;
    }
    return PP_OK;
}

/* The first three layers are dense by default. */
static enum pp_code experts_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_experts(config, &expert_keys, hp, err);
    hp->expert_sigmoids = true;
    if (cJSON_IsArray(pp_json_member(config, "mlp_layer_types")))
        return code ? code : pp_config_mlp_types(config, hp, err);
    for (int64_t l = 0; l < 3 && l < hp->n_layer && !pp_json_member(config, expert_keys.n_dense); l++)
        hp->layer[l] |= PP_LAYER_DENSE;
    return code;
}

/* transformers has the sizes of states on the top level as well. */
static enum pp_code states_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *own = pp_json_member(config, "linear_attn_config");
    int64_t n_heads = hp->n_head, head_dim = 128;
    float bound = -5;
    const struct {
        const char *key, *own_key;
        int64_t *v;
    } sizes[] = {{"linear_num_heads", "num_heads", &n_heads}, {"linear_head_dim", "head_dim", &head_dim},
                 {"linear_conv_kernel_dim", "short_conv_kernel_size", &hp->conv_taps}};
    enum pp_code code = PP_OK;
    hp->conv_taps = 4;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && !code; i++) {
        code = pp_config_int(config, sizes[i].key, sizes[i].v, err);
        if (!code)
            code = pp_config_int(own, sizes[i].own_key, sizes[i].v, err);
    }
    if (!code)
        code = pp_config_float(config, "linear_lower_bound", &bound, err);
    if (!code)
        code = pp_config_float(own, "gate_lower_bound", &bound, err);
    if (!code && n_heads != hp->n_head)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %lld heads of states beside %lld of attention are not "
                       "supported", (long long)n_heads, (long long)hp->n_head);
    return code ? code : set_known(hp, head_dim, bound, err);
}

static enum pp_code index_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_index_from_config(config, hp, err);
    if (!code)
        code = pp_config_int(config, "index_kpool", &hp->index_block, err);
    return code ? code : pp_config_layer_words(config, "indexer_types", "shared", "full", PP_LAYER_PICKED_BEFORE, hp,
                                               err);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    float most = 0;
    enum pp_code code = refuse_others(config, err);
    if (!code)
        code = pp_latent_from_config(config, hp, err);
    if (!code)
        code = layers_from_config(config, hp, err);
    if (!code)
        code = experts_from_config(config, hp, err);
    if (!code)
        code = index_from_config(config, hp, err);
    if (!code)
        code = pp_config_int(config, "hc_mult", &hp->n_stream, err);
    if (!code)
        code = pp_config_float(config, "hc_eps", &hp->connection.eps, err);
    if (!code)
        code = pp_config_int(config, "hc_sinkhorn_iters", &hp->connection.sinkhorn_iters, err);
    if (!code)
        code = pp_config_float(config, "swiglu_limit", &most, err);
    if (!code)
        code = states_from_config(config, hp, err);
    return code ? code : pp_bound_gates(hp, most, "config.json: swiglu_limit", err);
}

static void put_layers(const struct pp_hparams *hp, cJSON *config, cJSON *states)
{
    cJSON *types = cJSON_AddArrayToObject(config, "layer_types"), *indexes = cJSON_AddArrayToObject(config,
                                                                                                 "indexer_types");
    cJSON *recurrent = cJSON_AddArrayToObject(states, "kda_layers");
    cJSON *attending = cJSON_AddArrayToObject(states, "full_attn_layers");
    for (int64_t l = 0; l < hp->n_layer; l++) {
        const bool linear = hp->layer[l] & PP_LAYER_RECURRENT;
        cJSON_AddItemToArray(linear ? recurrent : attending, cJSON_CreateNumber((double)l));
        cJSON_AddItemToArray(types, cJSON_CreateString(linear ? "linear_attention" : "deepseek_sparse_attention"));
        cJSON_AddItemToArray(indexes, cJSON_CreateString("full"));
    }
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    static const char *const always[] = {"mla_use_nope", "mhc", "index_kpool_compress",
                                         "index_kpool_always_select_tail", "indexer_rope_interleave"};
    cJSON *states = cJSON_AddObjectToObject(config, "linear_attn_config");
    pp_config_put(states, "num_heads", hp->n_state_head);
    pp_config_put(states, "head_dim", hp->state_key_dim);
    pp_config_put(states, "short_conv_kernel_size", hp->conv_taps);
    pp_config_put_float(states, "gate_lower_bound", hp->decay_bound);
    put_layers(hp, config, states);
    pp_latent_to_config(hp, config);
    pp_config_put_experts(hp, &expert_keys, config);
    pp_config_put_text(config, "scoring_func", "sigmoid");
    pp_config_put_text(config, "topk_method", "noaux_tc");
    pp_config_put_mlp_types(hp, config);
    pp_config_put(config, "index_n_heads", hp->n_index_head);
    pp_config_put(config, "index_head_dim", hp->index_dim);
    pp_config_put(config, "index_topk", hp->index_top_k);
    pp_config_put(config, "index_kpool", hp->index_block);
    pp_config_put(config, "hc_mult", hp->n_stream);
    pp_config_put_float(config, "hc_eps", hp->connection.eps);
    pp_config_put(config, "hc_sinkhorn_iters", hp->connection.sinkhorn_iters);
    pp_config_put_float(config, "swiglu_limit", hp->expert_bound[0]);
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        cJSON_AddTrueToObject(config, always[i]);
}

/* --- GGUF --------------------------------------------------------------------------------------------------------- */

enum { HEAD_COUNT, KEY_LENGTH, TOP_K, POOL, STATE, TAPS_KEY, STREAMS, ROUNDS, N_NUMBERS };
static const char *const number_keys[N_NUMBERS] = {
    [HEAD_COUNT] = "attention.indexer.head_count", [KEY_LENGTH] = "attention.indexer.key_length",
    [TOP_K] = "attention.indexer.top_k", [POOL] = "attention.indexer.kpool", [STATE] = "kda.head_dim",
    [TAPS_KEY] = "ssm.conv_kernel", [STREAMS] = "hyper_connection.count",
    [ROUNDS] = "hyper_connection.sinkhorn_iterations"};
static const char decay_key[] = "kda.gate_lower_bound", least_key[] = "hyper_connection.epsilon",
                  tail_key[] = "attention.indexer.kpool_select_tail", epsilon_key[] = "attention.layer_norm_epsilon",
                  usual_epsilon_key[] = "attention.layer_norm_rms_epsilon",
                  expert_bounds[] = "swiglu_clamp_exp", shared_bounds[] = "swiglu_clamp_shexp";

/* The key with the file's general.architecture. */
static const char *key_in(const struct pp_gguf *g, const char *name, char full[160])
{
    struct pp_str family = {"", 0};
    pp_gguf_string(g, "general.architecture", &family);
    snprintf(full, 160, "%.*s.%s", (int)(family.len < 64 ? family.len : 64), family.data, name);
    return full;
}

/* A number, or an array with the same number for each layer. */
static enum pp_code gate_bound_from_gguf(const struct pp_gguf *g, const char *key, const struct pp_hparams *hp,
                                         double *most, struct pp_error *err)
{
    char full[160];
    double other = 0;
    if (pp_gguf_float(g, key_in(g, key, full), most))
        return PP_OK;
    pp_gguf_array_float(g, full, 0, most);
    for (int64_t l = 1; l < hp->n_layer; l++)
        if (pp_gguf_array_float(g, full, (size_t)l, &other) && other != *most)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "metadata %s is not the same for all layers, which is not "
                           "supported for this family", full);
    return PP_OK;
}

enum pp_code pp_bounds_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    char full[160], label[180];
    double most = 0, shared = 0;
    enum pp_code code = gate_bound_from_gguf(g, expert_bounds, hp, &most, err);
    shared = most;
    if (!code)
        code = gate_bound_from_gguf(g, shared_bounds, hp, &shared, err);
    snprintf(label, sizeof label, "metadata %s", key_in(g, expert_bounds, full));
    if (!code && shared != most)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "%s is %g, and that of shared experts %g; only bounds that are the "
                       "same are supported for this family", label, most, shared);
    return code ? code : pp_bound_gates(hp, (float)most, label, err);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    char full[160];
    int64_t head_dim = 0;
    double bound = 0, least = 0, epsilon = 0;
    bool tail = true;
    int64_t *const numbers[N_NUMBERS] = {
        [HEAD_COUNT] = &hp->n_index_head, [KEY_LENGTH] = &hp->index_dim, [TOP_K] = &hp->index_top_k,
        [POOL] = &hp->index_block, [STATE] = &head_dim, [TAPS_KEY] = &hp->conv_taps, [STREAMS] = &hp->n_stream,
        [ROUNDS] = &hp->connection.sinkhorn_iters};
    if (!hp->kv_lora_rank)
        return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks %s", key_in(g, "attention.kv_lora_rank", full));
    for (int i = 0; i < N_NUMBERS; i++)
        if (!pp_gguf_int(g, key_in(g, number_keys[i], full), numbers[i]))
            return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks %s, or it is not an integer", full);
    if (!pp_gguf_float(g, key_in(g, decay_key, full), &bound) || !pp_gguf_float(g, key_in(g, least_key, full), &least))
        return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks %s", full);
    pp_gguf_bool(g, key_in(g, tail_key, full), &tail);
    if (!tail)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "metadata %s is false, which is not supported", full);
    hp->connection.eps = (float)least;
    if (pp_gguf_float(g, key_in(g, usual_epsilon_key, full), &epsilon)) /* the other key is for the indexer's keys */
        hp->norm_eps = (float)epsilon;
    const enum pp_code code = set_known(hp, head_dim, (float)bound, err);
    return code ? code : pp_bounds_from_gguf(g, hp, err);
}

void pp_bounds_to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    char full[160];
    if (hp->expert_bound[0] == 0.0f)
        return;
    snprintf(full, sizeof full, "%s.%s", hp->arch, expert_bounds);
    pp_gguf_add_f32_array(w, full, hp->expert_bound, (size_t)hp->n_layer);
    snprintf(full, sizeof full, "%s.%s", hp->arch, shared_bounds);
    pp_gguf_add_f32_array(w, full, hp->gate_bound, (size_t)hp->n_layer);
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    char full[160];
    const int64_t numbers[N_NUMBERS] = {
        [HEAD_COUNT] = hp->n_index_head, [KEY_LENGTH] = hp->index_dim, [TOP_K] = hp->index_top_k,
        [POOL] = hp->index_block, [STATE] = hp->state_key_dim, [TAPS_KEY] = hp->conv_taps, [STREAMS] = hp->n_stream,
        [ROUNDS] = hp->connection.sinkhorn_iters};
    const struct {
        const char *key;
        float v;
    } floats[] = {{decay_key, hp->decay_bound}, {least_key, hp->connection.eps}, {epsilon_key, 1e-6f}};
    for (int i = 0; i < N_NUMBERS; i++) {
        snprintf(full, sizeof full, "glm5next.%s", number_keys[i]);
        pp_gguf_add_u32(w, full, (uint32_t)numbers[i]);
    }
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        snprintf(full, sizeof full, "glm5next.%s", floats[i].key);
        pp_gguf_add_f32(w, full, floats[i].v);
    }
    pp_bounds_to_gguf(hp, w);
}

const struct pp_arch pp_arch_glm5_next = {
    .name = "glm5next",
    .other_names = other_names,
    .hf_classes = classes,
    .names = names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .parts = &parts,
    .hf_pairs = true,
    .gguf_default_no_renorm = true,
    .gguf_default_sigmoids = true,
    .decoder = {.clamp_before_silu = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
