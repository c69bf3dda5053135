/* deepseek4.c - DeepSeek V4: attention to a window and, before that, to compressed blocks, with the heads' outputs
 * projected in groups; experts that a table assigns to tokens in the first layers, and weights that are roots of a
 * softplus in all; and hyper-connections. decoder_compressed.c and decoder_hyper.c compute it.
 *
 * Names are those of the published folders; those of transformers' own model are read as well. Only layers with blocks
 * have a scaled RoPE, with a base of its own, which is our rope_base; the other layers' is rope_base_local. YaRN
 * changes neither the magnitude of cosines and sines nor the scores. */
#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"
#include "engine/hparams_int.h"

#define LAYER "layers.{}."
#define ATTENTION LAYER "attn."
#define OTHERS LAYER "self_attn."
#define CONNECTION(name, gguf_name)                                                                                    \
    {.hf = name "_fn", .gguf = gguf_name "_fn.weight", .whole = true},                                                \
    {.hf = name "_base", .gguf = gguf_name "_base.weight", .whole = true},                                            \
    {.hf = name "_scale", .gguf = gguf_name "_scale.weight", .whole = true}
#define OTHER_CONNECTION(before, gguf_name)                                                                            \
    {.hf = before "fn", .gguf = gguf_name "_fn.weight", .whole = true, .read_only = true},                            \
    {.hf = before "base", .gguf = gguf_name "_base.weight", .whole = true, .read_only = true},                        \
    {.hf = before "scale", .gguf = gguf_name "_scale.weight", .whole = true, .read_only = true}
#define OTHER(name, gguf_name) {.hf = name, .gguf = gguf_name, .read_only = true}
#define OTHER_WHOLE(name, gguf_name) {.hf = name, .gguf = gguf_name, .whole = true, .read_only = true}

static const struct pp_arch_name names[] = {
    {.hf = "embed", .gguf = "token_embd"},
    {.hf = "norm", .gguf = "output_norm"},
    {.hf = "head", .gguf = "output"},
    CONNECTION("hc_head", "output_hc"),
    CONNECTION(LAYER "hc_attn", "blk.{}.hc_attn"),
    CONNECTION(LAYER "hc_ffn", "blk.{}.hc_ffn"),
    {.hf = LAYER "attn_norm", .gguf = "blk.{}.attn_norm"},
    {.hf = LAYER "ffn_norm", .gguf = "blk.{}.ffn_norm"},
    {.hf = ATTENTION "attn_sink", .gguf = "blk.{}.attn_sinks.weight", .whole = true},
    {.hf = ATTENTION "wq_a", .gguf = "blk.{}.attn_q_a"},
    {.hf = ATTENTION "q_norm", .gguf = "blk.{}.attn_q_a_norm"},
    {.hf = ATTENTION "wq_b", .gguf = "blk.{}.attn_q_b"},
    {.hf = ATTENTION "wkv", .gguf = "blk.{}.attn_kv"},
    {.hf = ATTENTION "kv_norm", .gguf = "blk.{}.attn_kv_a_norm"},
    {.hf = ATTENTION "wo_a", .gguf = "blk.{}.attn_output_a"},
    {.hf = ATTENTION "wo_b", .gguf = "blk.{}.attn_output_b"},
    {.hf = ATTENTION "compressor.ape", .gguf = "blk.{}.attn_compressor_ape.weight", .whole = true},
    {.hf = ATTENTION "compressor.wkv", .gguf = "blk.{}.attn_compressor_kv"},
    {.hf = ATTENTION "compressor.wgate", .gguf = "blk.{}.attn_compressor_gate"},
    {.hf = ATTENTION "compressor.norm", .gguf = "blk.{}.attn_compressor_norm"},
    {.hf = ATTENTION "indexer.wq_b", .gguf = "blk.{}.indexer.attn_q_b"},
    {.hf = ATTENTION "indexer.weights_proj", .gguf = "blk.{}.indexer.proj"},
    {.hf = ATTENTION "indexer.compressor.ape", .gguf = "blk.{}.indexer_compressor_ape.weight", .whole = true},
    {.hf = ATTENTION "indexer.compressor.wkv", .gguf = "blk.{}.indexer_compressor_kv"},
    {.hf = ATTENTION "indexer.compressor.wgate", .gguf = "blk.{}.indexer_compressor_gate"},
    {.hf = ATTENTION "indexer.compressor.norm", .gguf = "blk.{}.indexer_compressor_norm"},
    {.hf = LAYER "ffn.gate.bias", .gguf = "blk.{}.exp_probs_b.bias", .whole = true},
    {.hf = LAYER "ffn.gate.tid2eid", .gguf = "blk.{}.ffn_gate_tid2eid.weight", .form = PP_HF_INTEGERS, .whole = true},
    {.hf = LAYER "ffn.gate", .gguf = "blk.{}.ffn_gate_inp"},
    {.hf = LAYER "ffn.experts.{}.w1", .gguf = "blk.{}.ffn_gate.{}"},
    {.hf = LAYER "ffn.experts.{}.w2", .gguf = "blk.{}.ffn_down.{}"},
    {.hf = LAYER "ffn.experts.{}.w3", .gguf = "blk.{}.ffn_up.{}"},
    {.hf = LAYER "ffn.shared_experts.w1", .gguf = "blk.{}.ffn_gate_shexp"},
    {.hf = LAYER "ffn.shared_experts.w2", .gguf = "blk.{}.ffn_down_shexp"},
    {.hf = LAYER "ffn.shared_experts.w3", .gguf = "blk.{}.ffn_up_shexp"},
    {.hf = NULL},
};
/* transformers' own names, without the prefix "model." */
static const struct pp_arch_name other_names[] = {
    OTHER("embed_tokens", "token_embd"),
    OTHER("lm_head", "output"),
    OTHER_WHOLE("hc_head.hc_fn", "output_hc_fn.weight"),
    OTHER_WHOLE("hc_head.hc_base", "output_hc_base.weight"),
    OTHER_WHOLE("hc_head.hc_scale", "output_hc_scale.weight"),
    OTHER_CONNECTION(LAYER "attn_hc.", "blk.{}.hc_attn"),
    OTHER_CONNECTION(LAYER "ffn_hc.", "blk.{}.hc_ffn"),
    OTHER(LAYER "input_layernorm", "blk.{}.attn_norm"),
    OTHER(LAYER "post_attention_layernorm", "blk.{}.ffn_norm"),
    OTHER_WHOLE(OTHERS "sinks", "blk.{}.attn_sinks.weight"),
    OTHER(OTHERS "q_a_proj", "blk.{}.attn_q_a"),
    OTHER(OTHERS "q_a_norm", "blk.{}.attn_q_a_norm"),
    OTHER(OTHERS "q_b_proj", "blk.{}.attn_q_b"),
    OTHER(OTHERS "kv_proj", "blk.{}.attn_kv"),
    OTHER(OTHERS "kv_norm", "blk.{}.attn_kv_a_norm"),
    OTHER(ATTENTION "norm", "blk.{}.attn_kv_a_norm"), /* transformers 5.17 saves it among published names */
    OTHER(OTHERS "o_a_proj", "blk.{}.attn_output_a"),
    OTHER(OTHERS "o_b_proj", "blk.{}.attn_output_b"),
    OTHER_WHOLE(OTHERS "compressor.position_bias", "blk.{}.attn_compressor_ape.weight"),
    OTHER(OTHERS "compressor.kv_proj", "blk.{}.attn_compressor_kv"),
    OTHER(OTHERS "compressor.gate_proj", "blk.{}.attn_compressor_gate"),
    OTHER(OTHERS "compressor.kv_norm", "blk.{}.attn_compressor_norm"),
    OTHER(OTHERS "compressor.indexer.q_b_proj", "blk.{}.indexer.attn_q_b"),
    OTHER(OTHERS "compressor.indexer.scorer.weights_proj", "blk.{}.indexer.proj"),
    OTHER(OTHERS "compressor.indexer.weights_proj", "blk.{}.indexer.proj"),
    OTHER_WHOLE(OTHERS "compressor.indexer.position_bias", "blk.{}.indexer_compressor_ape.weight"),
    OTHER(OTHERS "compressor.indexer.kv_proj", "blk.{}.indexer_compressor_kv"),
    OTHER(OTHERS "compressor.indexer.gate_proj", "blk.{}.indexer_compressor_gate"),
    OTHER(OTHERS "compressor.indexer.kv_norm", "blk.{}.indexer_compressor_norm"),
    OTHER_WHOLE(LAYER "mlp.gate.e_score_correction_bias", "blk.{}.exp_probs_b.bias"),
    {.hf = LAYER "mlp.gate.tid2eid", .gguf = "blk.{}.ffn_gate_tid2eid.weight", .form = PP_HF_INTEGERS, .whole = true,
     .read_only = true},
    OTHER(LAYER "mlp.gate", "blk.{}.ffn_gate_inp"),
    {.hf = LAYER "mlp.experts.gate_up_proj", .gguf = "blk.{}.ffn_gate_exps.weight",
     .second = "blk.{}.ffn_up_exps.weight", .form = PP_HF_HALVES, .whole = true, .read_only = true},
    OTHER_WHOLE(LAYER "mlp.experts.down_proj", "blk.{}.ffn_down_exps.weight"),
    OTHER(LAYER "mlp.shared_experts.gate_proj", "blk.{}.ffn_gate_shexp"),
    OTHER(LAYER "mlp.shared_experts.up_proj", "blk.{}.ffn_up_shexp"),
    OTHER(LAYER "mlp.shared_experts.down_proj", "blk.{}.ffn_down_shexp"),
    {.hf = NULL},
};
static const char *const classes[] = {"DeepseekV4ForCausalLM", "deepseek_v4", NULL};
static const char *const prefixes[] = {"model.", "", NULL};
static const char *const other_parts[] = {"mtp.", "model.mtp.", NULL}; /* multi-token prediction */
static const struct pp_arch_parts parts = {.model_type = "deepseek_v4", .prefixes = prefixes, .others = other_parts};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 129280, \"hidden_size\": 4096, \"moe_intermediate_size\": 2048,"
             "\"num_hidden_layers\": 43, \"num_attention_heads\": 64, \"num_key_value_heads\": 1, \"head_dim\": 512,"
             "\"q_lora_rank\": 1024, \"num_experts_per_tok\": 6, \"n_routed_experts\": 256, \"n_shared_experts\": 1,"
             "\"norm_topk_prob\": true, \"routed_scaling_factor\": 1.5, \"max_position_embeddings\": 1048576,"
             "\"rope_theta\": 10000.0, \"compress_rope_theta\": 160000.0, \"hc_mult\": 4,"
             "\"hc_sinkhorn_iters\": 20, \"hc_eps\": 1e-6, \"swiglu_limit\": 10.0, \"sliding_window\": 128,"
             "\"o_groups\": 8, \"o_lora_rank\": 1024, \"index_n_heads\": 64, \"index_head_dim\": 128,"
             "\"index_topk\": 512, \"rms_norm_eps\": 1e-6, \"intermediate_size\": null}"},
    {.json = NULL},
};
static const struct pp_expert_keys expert_keys = {
    .n = "n_routed_experts", .n_used = "num_experts_per_tok", .n_ff = "moe_intermediate_size",
    .n_shared = "n_shared_experts", .norm_topk = "norm_topk_prob", .scale = "routed_scaling_factor"};
static const char windowed[] = "sliding_attention", picked[] = "compressed_sparse_attention",
                  all_seen[] = "heavily_compressed_attention", by_table[] = "hash_moe", scored[] = "moe";

/* --- both --------------------------------------------------------------------------------------------------------- */

/* Fills in what follows from the other fields. base: RoPE's in layers with blocks. */
static enum pp_code complete_fields(struct pp_hparams *hp, float base, float bound, const char *label,
                                    struct pp_error *err)
{
    if (!isfinite(bound) || bound < 0)
        return pp_fail(err, PP_ERR_FORMAT, "%s is %g; bounds of gates are finite and not below 0", label,
                       (double)bound);
    if (hp->expert_no_renorm)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "experts whose weights do not add up to 1 are not supported in this "
                       "family");
    hp->compressed = hp->hyper = hp->expert_sqrt_softplus = true;
    hp->connection.write_scale = 2;
    hp->rope_base_local = hp->rope_base;
    hp->rope_base = base;
    hp->rope_attn_factor = hp->rope_scaling == PP_ROPE_YARN ? 1.0f : 0.0f;
    for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS; l++) {
        hp->layer[l] = hp->compress[l] ? 0 : PP_LAYER_LOCAL_ROPE;
        hp->gate_bound[l] = hp->expert_bound[l] = bound;
    }
    return PP_OK;
}

/* --- config.json -------------------------------------------------------------------------------------------------- */

static enum pp_code fail_list(const char *key, const struct pp_hparams *hp, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_FORMAT, "config.json: %s does not name %lld layers", key, (long long)hp->n_layer);
}

/* The block size of each kind of layer, from a dictionary or from older keys. */
static enum pp_code rates_from_config(const cJSON *config, int64_t *of_picked, int64_t *of_all, struct pp_error *err)
{
    const cJSON *rates = pp_json_member(config, "compress_rates");
    enum pp_code code = cJSON_IsObject(rates) ? pp_config_int(rates, picked, of_picked, err) : PP_OK;
    if (!code && cJSON_IsObject(rates))
        code = pp_config_int(rates, all_seen, of_all, err);
    if (!code)
        code = pp_config_int(config, "compress_rate_csa", of_picked, err);
    if (!code)
        code = pp_config_int(config, "compress_rate_hca", of_all, err);
    if (!code && *of_picked != PP_COMPRESS_PICKED)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: blocks of %lld positions that an index picks are not "
                       "supported; of %d are", (long long)*of_picked, PP_COMPRESS_PICKED);
    if (!code)
        code = pp_check_range("number of positions of a block", *of_all, 2 * PP_COMPRESS_PICKED, 1 << 16, err);
    return code;
}

/* Each layer's block size: by words, by numbers, or by transformers' default: two layers that see all blocks, then
 * alternately layers with an indexer and such ones. The list of numbers may be longer than the layers. */
static enum pp_code blocks_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *types = pp_json_member(config, "layer_types"), *ratios = pp_json_member(config, "compress_ratios");
    int64_t of_picked = PP_COMPRESS_PICKED, of_all = 128;
    enum pp_code code = rates_from_config(config, &of_picked, &of_all, err);
    const bool by_words = cJSON_IsArray(types), by_numbers = !by_words && cJSON_IsArray(ratios);
    const char *key = by_words ? "layer_types" : "compress_ratios";
    if (!code && (by_words || by_numbers) && cJSON_GetArraySize(by_words ? types : ratios) < hp->n_layer)
        return fail_list(key, hp, err);
    for (int64_t l = 0; !code && l < hp->n_layer && l < PP_MAX_LAYERS; l++) {
        const cJSON *item = cJSON_GetArrayItem(by_words ? types : ratios, (int)l);
        const char *word = !by_words ? (l < 2 || l % 2 == 0 ? all_seen : picked)
                           : cJSON_IsString(item) ? item->valuestring : "";
        hp->compress[l] = (int32_t)(strcmp(word, picked) == 0 ? of_picked : strcmp(word, all_seen) == 0 ? of_all : 0);
        if (by_words && !hp->compress[l] && strcmp(word, windowed) != 0)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: layer_types has \"%.40s\", which is not supported "
                           "for this family; %s, %s and %s are", word, windowed, picked, all_seen);
        if (by_numbers && (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble <= 1 << 16)))
            return pp_fail(err, PP_ERR_FORMAT, "config.json: compress_ratios has something other than sizes of blocks");
        if (by_numbers)
            hp->compress[l] = item->valueint;
    }
    return code;
}

/* The number of first layers with tables of experts, from a number or a list of words. */
static enum pp_code tables_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *types = pp_json_member(config, "mlp_layer_types"), *item;
    int64_t n = 3, l = 0;
    enum pp_code code = pp_config_int(config, "num_hash_layers", &n, err);
    hp->n_hash_routed_layers = n < hp->n_layer ? n : hp->n_layer;
    if (code || !cJSON_IsArray(types))
        return code;
    if (cJSON_GetArraySize(types) < hp->n_layer)
        return fail_list("mlp_layer_types", hp, err);
    hp->n_hash_routed_layers = 0;
    cJSON_ArrayForEach(item, types)
    {
        const char *word = cJSON_IsString(item) ? item->valuestring : "";
        const bool has = strcmp(word, by_table) == 0;
        if (l == hp->n_layer)
            break;
        if ((!has && strcmp(word, scored) != 0) || (has && hp->n_hash_routed_layers != l))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: mlp_layer_types has \"%.40s\" where it is not "
                           "supported; layers with %s come first, then those with %s", word, by_table, scored);
        hp->n_hash_routed_layers += has;
        l++;
    }
    return PP_OK;
}

/* RoPE as transformers writes it, with an object for each of two kinds of layers, or as one object whose scaling is
 * for layers with blocks. */
static enum pp_code rope_from_config(const cJSON *config, struct pp_hparams *hp, float *base, struct pp_error *err)
{
    const cJSON *rope = pp_json_member(config, "rope_parameters");
    const cJSON *plain = pp_json_member(rope, "main"), *blocks = pp_json_member(rope, "compress");
    enum pp_code code = pp_config_float(config, "compress_rope_theta", base, err);
    int64_t rope_dim = pp_json_member(config, "partial_rotary_factor") ? hp->rope_dim : hp->head_dim / 8;
    if (!code)
        code = pp_config_int(config, "qk_rope_head_dim", &rope_dim, err);
    hp->rope_dim = rope_dim;
    if (code || !cJSON_IsObject(plain) || !cJSON_IsObject(blocks))
        return code;
    cJSON *alone = cJSON_CreateObject(), *copy = cJSON_Duplicate(blocks, true);
    float part = (float)rope_dim / (float)hp->head_dim;
    if (!alone || !copy || !cJSON_AddItemToObject(alone, "rope_parameters", copy)) {
        cJSON_Delete(alone);
        return pp_fail_nomem(err, "config.json");
    }
    code = pp_config_unscaled(plain, err);
    if (!code)
        code = pp_config_rope(alone, hp, err);
    *base = hp->rope_base;
    if (!code)
        code = pp_config_float(plain, "rope_theta", &hp->rope_base, err);
    if (!code)
        code = pp_config_float(blocks, "partial_rotary_factor", &part, err);
    hp->rope_dim = (int64_t)(part * (float)hp->head_dim);
    cJSON_Delete(alone);
    return code;
}

static enum pp_code sizes_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const struct {
        const char *key;
        int64_t *v;
    } sizes[] = {{"q_lora_rank", &hp->q_lora_rank}, {"o_groups", &hp->o_groups}, {"o_lora_rank", &hp->o_rank},
                 {"sliding_window", &hp->window}, {"index_n_heads", &hp->n_index_head},
                 {"index_head_dim", &hp->index_dim}, {"index_topk", &hp->index_top_k}, {"hc_mult", &hp->n_stream},
                 {"hc_sinkhorn_iters", &hp->connection.sinkhorn_iters}};
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && !code; i++)
        code = pp_config_int(config, sizes[i].key, sizes[i].v, err);
    return code ? code : pp_config_float(config, "hc_eps", &hp->connection.eps, err);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const char *scoring = cJSON_GetStringValue(pp_json_member(config, "scoring_func"));
    float bound = 0, base = hp->rope_base;
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (!code && scoring && strcmp(scoring, "sqrtsoftplus") != 0)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: scoring_func \"%.40s\" is not supported for this family; "
                       "sqrtsoftplus is", scoring);
    if (!code)
        code = sizes_from_config(config, hp, err);
    if (!code)
        code = pp_config_experts(config, &expert_keys, hp, err);
    hp->n_ff = hp->n_ff_expert; /* there are no dense layers */
    if (!code)
        code = blocks_from_config(config, hp, err);
    if (!code)
        code = tables_from_config(config, hp, err);
    if (!code)
        code = rope_from_config(config, hp, &base, err);
    if (!code)
        code = pp_config_float(config, "swiglu_limit", &bound, err);
    return code ? code : complete_fields(hp, base, bound, "config.json: swiglu_limit", err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    cJSON *rope = cJSON_GetObjectItemCaseSensitive(config, "rope_scaling"), *ratios;
    cJSON_DeleteItemFromObjectCaseSensitive(config, "intermediate_size");
    cJSON_DeleteItemFromObjectCaseSensitive(config, "partial_rotary_factor");
    cJSON_DeleteItemFromObjectCaseSensitive(rope, "attention_factor"); /* it is 1 */
    pp_config_put_experts(hp, &expert_keys, config);
    pp_config_put_text(config, "scoring_func", "sqrtsoftplus");
    pp_config_put_text(config, "topk_method", "noaux_tc");
    pp_config_put(config, "q_lora_rank", hp->q_lora_rank);
    pp_config_put(config, "qk_rope_head_dim", hp->rope_dim);
    pp_config_put(config, "o_groups", hp->o_groups);
    pp_config_put(config, "o_lora_rank", hp->o_rank);
    pp_config_put(config, "sliding_window", hp->window);
    pp_config_put_float(config, "rope_theta", hp->rope_base_local);
    pp_config_put_float(config, "compress_rope_theta", hp->rope_base);
    pp_config_put(config, "index_n_heads", hp->n_index_head);
    pp_config_put(config, "index_head_dim", hp->index_dim);
    pp_config_put(config, "index_topk", hp->index_top_k);
    pp_config_put(config, "num_hash_layers", hp->n_hash_routed_layers);
    pp_config_put(config, "hc_mult", hp->n_stream);
    pp_config_put(config, "hc_sinkhorn_iters", hp->connection.sinkhorn_iters);
    pp_config_put_float(config, "hc_eps", hp->connection.eps);
    pp_config_put_float(config, "swiglu_limit", hp->expert_bound[hp->n_layer - 1]);
    ratios = cJSON_AddArrayToObject(config, "compress_ratios");
    for (int64_t l = 0; l < hp->n_layer; l++)
        cJSON_AddItemToArray(ratios, cJSON_CreateNumber((double)hp->compress[l]));
}

/* --- GGUF --------------------------------------------------------------------------------------------------------- */

#define KEY "deepseek4."
static const char ratios_key[] = KEY "attention.compress_ratios", base_key[] = KEY "attention.compress_rope_freq_base",
                  bound_key[] = KEY "swiglu_clamp_exp", shared_bound_key[] = KEY "swiglu_clamp_shexp",
                  least_key[] = KEY "hyper_connection.epsilon";

static enum pp_code fail_key(const char *key, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks %s, or it is not what it should be", key);
}

/* A number, or an array with the same number for each layer; otherwise: the default. */
static enum pp_code gate_bound_from_gguf(const struct pp_gguf *g, const char *key, const struct pp_hparams *hp,
                                         double otherwise, double *bound, struct pp_error *err)
{
    double other;
    *bound = otherwise;
    if (!pp_gguf_has(g, key) || pp_gguf_float(g, key, bound))
        return PP_OK;
    if (!pp_gguf_array_float(g, key, 0, bound))
        return fail_key(key, err);
    for (int64_t l = 1; l < hp->n_layer; l++)
        if (!pp_gguf_array_float(g, key, (size_t)l, &other) || other != *bound)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "metadata %s is not the same for all layers, which is not "
                           "supported for this family", key);
    return PP_OK;
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    const struct {
        const char *key;
        int64_t *v;
    } sizes[] = {{KEY "attention.q_lora_rank", &hp->q_lora_rank},
                 {KEY "attention.output_group_count", &hp->o_groups},
                 {KEY "attention.output_lora_rank", &hp->o_rank},
                 {KEY "attention.indexer.head_count", &hp->n_index_head},
                 {KEY "attention.indexer.key_length", &hp->index_dim},
                 {KEY "attention.indexer.top_k", &hp->index_top_k},
                 {KEY "hyper_connection.count", &hp->n_stream},
                 {KEY "hyper_connection.sinkhorn_iterations", &hp->connection.sinkhorn_iters},
                 {KEY "hash_layer_count", &hp->n_hash_routed_layers}};
    double base, least, bound, shared;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (!pp_gguf_int(g, sizes[i].key, sizes[i].v))
            return fail_key(sizes[i].key, err);
    if (!pp_gguf_float(g, base_key, &base))
        return fail_key(base_key, err);
    if (!pp_gguf_float(g, least_key, &least))
        return fail_key(least_key, err);
    hp->connection.eps = (float)least;
    for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS; l++) {
        int64_t ratio;
        if (!pp_gguf_array_int(g, ratios_key, (size_t)l, &ratio) || ratio < 0 || ratio > 1 << 16)
            return fail_key(ratios_key, err);
        hp->compress[l] = (int32_t)ratio;
    }
    if (!hp->expert_sqrt_softplus)
        return fail_key(KEY "expert_gating_func", err);
    enum pp_code code = gate_bound_from_gguf(g, bound_key, hp, 0, &bound, err);
    if (!code)
        code = gate_bound_from_gguf(g, shared_bound_key, hp, bound, &shared, err);
    if (!code && shared != bound)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "metadata %s is another than %s, which is not supported for this "
                       "family", shared_bound_key, bound_key);
    return code ? code : complete_fields(hp, (float)base, (float)bound, "metadata deepseek4.swiglu_clamp_exp", err);
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_gguf_add_u32(w, KEY "attention.output_group_count", (uint32_t)hp->o_groups);
    pp_gguf_add_u32(w, KEY "attention.output_lora_rank", (uint32_t)hp->o_rank);
    pp_gguf_add_i32_array(w, ratios_key, hp->compress, (size_t)hp->n_layer);
    pp_gguf_add_f32(w, base_key, hp->rope_base);
    pp_gguf_add_u32(w, KEY "attention.indexer.head_count", (uint32_t)hp->n_index_head);
    pp_gguf_add_u32(w, KEY "attention.indexer.key_length", (uint32_t)hp->index_dim);
    pp_gguf_add_u32(w, KEY "attention.indexer.top_k", (uint32_t)hp->index_top_k);
    pp_gguf_add_u32(w, KEY "hyper_connection.count", (uint32_t)hp->n_stream);
    pp_gguf_add_u32(w, KEY "hyper_connection.sinkhorn_iterations", (uint32_t)hp->connection.sinkhorn_iters);
    pp_gguf_add_f32(w, least_key, hp->connection.eps);
    pp_gguf_add_u32(w, KEY "hash_layer_count", (uint32_t)hp->n_hash_routed_layers);
    pp_gguf_add_f32_array(w, bound_key, hp->expert_bound, (size_t)hp->n_layer);
}

const struct pp_arch pp_arch_deepseek4 = {
    .name = "deepseek4",
    .hf_classes = classes,
    .names = names,
    .more_names = other_names,
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
