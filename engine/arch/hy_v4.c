/* hy_v4.c - Tencent's HY V4 (transformers, models/hy_v4): DeepSeek V3.2 with indexers in some layers, whose picks the
 * others share, attention sinks and gates, bounded gates in experts, and several residual streams with
 * hyper-connections, without a matrix that mixes them.
 *
 * Published folders have the names below and rotate neighbouring pairs, as llama.cpp and vLLM do; transformers' own
 * model has other names and rotates other pairs. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

#define LAYER "model.layers.{}."
#define CONNECTION(before, gguf_name)                                                                                 \
    {.hf = before "hc_fn", .gguf = gguf_name "_fn.weight", .whole = true},                                            \
    {.hf = before "hc_base", .gguf = gguf_name "_base.weight", .whole = true},                                        \
    {.hf = before "hc_scale", .gguf = gguf_name "_scale.weight", .whole = true}

static const struct pp_arch_name names[] = {
    CONNECTION(LAYER "hc_attn_layer.hc_pre.", "blk.{}.hc_attn"),
    CONNECTION(LAYER "hc_mlp_layer.hc_pre.", "blk.{}.hc_ffn"),
    {.hf = "model.hc_head.hc_head_fn", .gguf = "output_hc_fn.weight", .whole = true},
    {.hf = "model.hc_head.hc_head_base", .gguf = "output_hc_base.weight", .whole = true},
    {.hf = "model.hc_head.hc_head_scale", .gguf = "output_hc_scale.weight", .whole = true},
    {.hf = LAYER "self_attn.linear_gate", .gguf = "blk.{}.attn_gate"},
    {.hf = LAYER "self_attn.learnable_sink_param", .gguf = "blk.{}.attn_sinks.weight", .whole = true},
    {.hf = LAYER "mlp.experts.gate_up_proj", .gguf = "blk.{}.ffn_gate_exps.weight",
     .second = "blk.{}.ffn_up_exps.weight", .form = PP_HF_HALVES, .whole = true},
    {.hf = LAYER "mlp.experts.down_proj", .gguf = "blk.{}.ffn_down_exps.weight", .whole = true},
    PP_INDEX_NAMES,
    PP_LATENT_NAMES,
    {.hf = NULL},
};
static const char *const classes[] = {"HYV4ForCausalLM", "hy_v4", NULL};
static const char first_name[] = "hyv4"; /* in files older than llama.cpp's support */
static const char *const other_names[] = {first_name, NULL};
static const char *const other_parts[] = {"model.mtp_layers.", NULL}; /* multi-token prediction */
static const char sparse_word[] = "deepseek_sparse_attention";
static const struct pp_arch_parts parts = {.model_type = "hy_v4", .prefixes = NULL, .others = other_parts};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 120832, \"hidden_size\": 2816, \"intermediate_size\": 6912,"
             "\"moe_intermediate_size\": 768, \"num_hidden_layers\": 34, \"num_attention_heads\": 32,"
             "\"max_position_embeddings\": 262144, \"rms_norm_eps\": 1e-5, \"n_routed_experts\": 256,"
             "\"n_shared_experts\": 1, \"num_experts_per_tok\": 8, \"routed_scaling_factor\": 2.827,"
             "\"norm_topk_prob\": true, \"n_group\": 1, \"topk_group\": 1, \"first_k_dense_replace\": 1,"
             "\"q_lora_rank\": 1536, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 192, \"qk_rope_head_dim\": 64,"
             "\"v_head_dim\": 256, \"index_topk\": 2048, \"index_head_dim\": 128, \"index_n_heads\": 16,"
             "\"hc_mult\": 4, \"hc_magnitude\": 2.0, \"hc_eps\": 1e-6, \"swiglu_limit\": 10.0}"},
    {.json = NULL},
};

/* --- config.json -------------------------------------------------------------------------------------------------- */

static enum pp_code refuse_others(const cJSON *config, struct pp_error *err)
{
    static const char *const always[] = {"enable_ihc", "gated_mla", "learnable_sink"};
    const char *gating = cJSON_GetStringValue(pp_json_member(config, "gating_type"));
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        if (!pp_config_flag(config, always[i], true))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s is false, which is not supported for this family",
                           always[i]);
    if (gating && strcmp(gating, "elementwise") != 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: gating_type \"%.40s\" is not supported; elementwise is",
                       gating);
    return PP_OK;
}

/* *sparse: whether layers have sparse attention; unlisted layers do. All must be of the same kind. */
static enum pp_code kinds_from_config(const cJSON *config, int64_t n_layer, bool *sparse, struct pp_error *err)
{
    const cJSON *types = pp_json_member(config, "layer_types"), *item;
    int64_t n_full = 0;
    *sparse = true;
    if (!types || cJSON_IsNull(types))
        return PP_OK;
    if (!cJSON_IsArray(types) || cJSON_GetArraySize(types) != n_layer)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: layer_types does not name %lld layers", (long long)n_layer);
    cJSON_ArrayForEach(item, types)
    {
        const bool full = pp_config_is_layer_word(item, "full_attention");
        if (!full && !pp_config_is_layer_word(item, sparse_word))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: layer_types has \"%.40s\", which is not supported "
                           "for this family; %s and full_attention are", cJSON_IsString(item) ? item->valuestring : "",
                           sparse_word);
        n_full += full;
    }
    *sparse = n_full == 0;
    if (*sparse || n_full == n_layer)
        return PP_OK;
    return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: layer_types has layers that see all positions beside "
                   "others, which is not supported for this family");
}

/* Without a list layers 0, 4, 8 ... have an indexer. */
static enum pp_code index_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    bool sparse;
    enum pp_code code = kinds_from_config(config, hp->n_layer, &sparse, err);
    if (code || !sparse)
        return code;
    code = pp_index_from_config(config, hp, err);
    if (code)
        return code;
    if (cJSON_IsArray(pp_json_member(config, "indexer_types")))
        code = pp_config_layer_words(config, "indexer_types", "shared", "full", PP_LAYER_PICKED_BEFORE, hp, err);
    else
        for (int64_t l = 2; l < hp->n_layer && l < PP_MAX_LAYERS; l++)
            hp->layer[l] |= (l - 1) % 4 ? PP_LAYER_PICKED_BEFORE : 0;
    return code ? code : pp_index_check(hp, err);
}

static enum pp_code connection_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_int(config, "hc_mult", &hp->n_stream, err);
    if (!code)
        code = pp_config_float(config, "hc_magnitude", &hp->connection.write_scale, err);
    if (!code)
        code = pp_config_float(config, "hc_eps", &hp->connection.eps, err);
    hp->connection.write_eps = hp->connection.eps;
    hp->hyper = true;
    return code;
}

/* 0: none */
static enum pp_code bound_experts(struct pp_hparams *hp, float most, const char *label, struct pp_error *err)
{
    if (!isfinite(most) || most < 0)
        return pp_fail(err, PP_ERR_FORMAT, "%s is %g; bounds of experts' gates are finite and not below 0", label,
                       (double)most);
    for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        hp->expert_bound[l] = most;
    return PP_OK;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    float most = 0;
    enum pp_code code = refuse_others(config, err);
    if (!code)
        code = pp_deepseek_from_config(config, hp, err);
    if (!code)
        code = pp_config_mlp_types(config, hp, err);
    if (!code)
        code = index_from_config(config, hp, err);
    if (!code)
        code = connection_from_config(config, hp, err);
    if (!code)
        code = pp_config_float(config, "swiglu_limit", &most, err);
    return code ? code : bound_experts(hp, most, "config.json: swiglu_limit", err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    const char *kind = hp->index_top_k ? sparse_word : "full_attention";
    cJSON *kinds = cJSON_AddArrayToObject(config, "layer_types");
    for (int64_t l = 0; l < hp->n_layer; l++)
        cJSON_AddItemToArray(kinds, cJSON_CreateString(kind));
    pp_deepseek_to_config(hp, config);
    pp_config_put_class(config, classes[0], classes[1]);
    pp_config_put_mlp_types(hp, config);
    if (hp->index_top_k) {
        pp_index_to_config(hp, config);
        cJSON_DeleteItemFromObjectCaseSensitive(config, "indexer_types");
        cJSON *types = cJSON_AddArrayToObject(config, "indexer_types"); /* an absent list would mean the default one */
        for (int64_t l = 0; l < hp->n_layer; l++)
            cJSON_AddItemToArray(types, cJSON_CreateString(hp->layer[l] & PP_LAYER_PICKED_BEFORE ? "shared" : "full"));
    }
    pp_config_put(config, "hc_mult", hp->n_stream);
    pp_config_put_float(config, "hc_magnitude", hp->connection.write_scale);
    pp_config_put_float(config, "hc_eps", hp->connection.eps);
    pp_config_put_float(config, "swiglu_limit", hp->expert_bound[hp->n_layer - 1]);
    cJSON_AddTrueToObject(config, "enable_ihc");
    cJSON_AddTrueToObject(config, "gated_mla");
    cJSON_AddTrueToObject(config, "learnable_sink");
    pp_config_put_text(config, "gating_type", "elementwise");
}

/* --- GGUF --------------------------------------------------------------------------------------------------------- */

static const char bound_key[] = "swiglu_clamp_exp", count_key[] = "hyper_connection.count",
                  least_key[] = "hyper_connection.epsilon", most_key[] = "hyper_connection.magnitude";

/* The key with the file's general.architecture. */
static const char *key_in(const struct pp_gguf *g, const char *name, char full[160])
{
    const bool first = pp_gguf_string_is(g, "general.architecture", first_name);
    snprintf(full, 160, "%s.%s", first ? first_name : "hy_v4", name);
    return full;
}

/* A number, or an array with one for each layer, all equal in layers with experts. */
static enum pp_code gate_bound_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    char full[160], label[180];
    double most = 0, other = 0;
    if (!pp_gguf_float(g, key_in(g, bound_key, full), &most))
        pp_gguf_array_float(g, full, (size_t)hp->n_layer - 1, &most);
    for (int64_t l = 0; l < hp->n_layer; l++)
        if (!(hp->layer[l] & PP_LAYER_DENSE) && pp_gguf_array_float(g, full, (size_t)l, &other) && other != most)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "metadata %s is not the same for all layers with experts, which "
                           "is not supported for this family", full);
    snprintf(label, sizeof label, "metadata %s", full);
    return bound_experts(hp, (float)most, label, err);
}

/* An optional list, which has another key in files older than llama.cpp's support. */
static enum pp_code index_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    char full[160];
    enum pp_code code = PP_OK;
    if (!pp_gguf_int(g, key_in(g, "attention.indexer.top_k", full), &hp->index_top_k)) {
        if (!pp_gguf_tensor(g, "blk.0.indexer.attn_k.weight"))
            return PP_OK;
        return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks %s, or it is not an integer", full);
    }
    pp_gguf_int(g, key_in(g, "attention.indexer.head_count", full), &hp->n_index_head);
    pp_gguf_int(g, key_in(g, "attention.indexer.key_length", full), &hp->index_dim);
    if (pp_gguf_has(g, key_in(g, "attention.indexer.types", full)) ||
        pp_gguf_has(g, key_in(g, "attention.indexer.is_full", full)))
        code = pp_index_layers_from_gguf(g, full, hp, err);
    return code ? code : pp_index_check(hp, err);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    char full[160];
    double least = 0, most = 0;
    enum pp_code code = pp_deepseek_from_gguf(g, hp, err);
    if (!code)
        code = index_from_gguf(g, hp, err);
    if (!code)
        code = gate_bound_from_gguf(g, hp, err);
    pp_gguf_int(g, key_in(g, count_key, full), &hp->n_stream);
    pp_gguf_float(g, key_in(g, least_key, full), &least);
    pp_gguf_float(g, key_in(g, most_key, full), &most);
    hp->connection.eps = hp->connection.write_eps = (float)least;
    hp->connection.write_scale = (float)most;
    hp->hyper = true;
    return code;
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    char full[160];
    pp_deepseek_to_gguf(hp, w);
    if (hp->index_top_k)
        pp_index_to_gguf(hp, w);
    snprintf(full, sizeof full, "hy_v4.%s", bound_key);
    if (hp->expert_bound[hp->n_layer - 1] != 0.0f)
        pp_gguf_add_f32_array(w, full, hp->expert_bound, (size_t)hp->n_layer);
    snprintf(full, sizeof full, "hy_v4.%s", count_key);
    pp_gguf_add_u32(w, full, (uint32_t)hp->n_stream);
    snprintf(full, sizeof full, "hy_v4.%s", least_key);
    pp_gguf_add_f32(w, full, hp->connection.eps);
    snprintf(full, sizeof full, "hy_v4.%s", most_key);
    pp_gguf_add_f32(w, full, hp->connection.write_scale);
}

const struct pp_arch pp_arch_hy_v4 = {
    .name = "hy_v4",
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
    .decoder = {.gated_attention = true, .sinks = true, .clamp_before_silu = true, .index_rope_last = true,
                .index_default_eps = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
