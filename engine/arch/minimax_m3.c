/* minimax_m3.c - MiniMax M3 (transformers, models/minimax_m3_vl): M2's routing with a shared expert, gpt-oss's gates,
 * norms of heads, and sparse attention to blocks that an indexer picks for each KV head (decoder_blocks.c). The first
 * layers have neither experts nor an indexer. */
#include <cjson/cJSON.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"
#include "engine/hparams_int.h"

#define LAYER "model.layers.{}."
#define MIXTURE LAYER "block_sparse_moe."
#define NORM(hf_name, gguf_name) {.hf = hf_name, .gguf = gguf_name, .form = PP_HF_PLUS_ONE}

static const struct pp_arch_name names[] = {
    NORM("model.norm", "output_norm"),
    NORM(LAYER "input_layernorm", "blk.{}.attn_norm"),
    NORM(LAYER "post_attention_layernorm", "blk.{}.ffn_norm"),
    NORM(LAYER "self_attn.q_norm", "blk.{}.attn_q_norm"),
    NORM(LAYER "self_attn.k_norm", "blk.{}.attn_k_norm"),
    NORM(LAYER "self_attn.index_q_norm", "blk.{}.indexer.q_norm"),
    NORM(LAYER "self_attn.index_k_norm", "blk.{}.indexer.k_norm"),
    {.hf = LAYER "self_attn.index_q_proj", .gguf = "blk.{}.indexer.q_proj"},
    {.hf = LAYER "self_attn.index_k_proj", .gguf = "blk.{}.indexer.k_proj"},
    {.hf = MIXTURE "gate", .gguf = "blk.{}.ffn_gate_inp"},
    {.hf = MIXTURE "e_score_correction_bias", .gguf = "blk.{}.exp_probs_b.bias", .whole = true},
    {.hf = MIXTURE "experts.{}.w1", .gguf = "blk.{}.ffn_gate.{}"},
    {.hf = MIXTURE "experts.{}.w2", .gguf = "blk.{}.ffn_down.{}"},
    {.hf = MIXTURE "experts.{}.w3", .gguf = "blk.{}.ffn_up.{}"},
    {.hf = MIXTURE "switch_mlp.gate_proj", .gguf = "blk.{}.ffn_gate_exps", .mlx = true},
    {.hf = MIXTURE "switch_mlp.up_proj", .gguf = "blk.{}.ffn_up_exps", .mlx = true},
    {.hf = MIXTURE "switch_mlp.down_proj", .gguf = "blk.{}.ffn_down_exps", .mlx = true},
    {.hf = MIXTURE "shared_experts.gate_proj", .gguf = "blk.{}.ffn_gate_shexp"},
    {.hf = MIXTURE "shared_experts.up_proj", .gguf = "blk.{}.ffn_up_shexp"},
    {.hf = MIXTURE "shared_experts.down_proj", .gguf = "blk.{}.ffn_down_shexp"},
    {.hf = NULL},
};
static const char *const classes[] = {
    "MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration", "MiniMaxM3VLForConditionalGeneration",
    "MiniMaxM3VLForCausalLM", "MiniMaxM3ForCausalLM", "minimax_m3_vl_text", "minimax_m3_vl", "minimax_m3", NULL};
/* Vision, and multi-token prediction. */
static const char *const others[] = {"vision_tower.", "multi_modal_projector.", "patch_merge_mlp.",
                                     "model.vision_tower.", "model.multi_modal_projector.", "model.patch_merge_mlp.",
                                     "model.mtp.", "language_model.model.mtp.", NULL};
static const struct pp_arch_parts parts = {.model_type = "minimax_m3_vl_text", .other_type = "minimax_m2",
                                           .prefixes = pp_text_prefixes, .others = others};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 200064, \"hidden_size\": 6144, \"intermediate_size\": 3072,"
             "\"dense_intermediate_size\": 12288, \"num_hidden_layers\": 60, \"num_attention_heads\": 64,"
             "\"num_key_value_heads\": 4, \"head_dim\": 128, \"max_position_embeddings\": 524288,"
             "\"rope_theta\": 5000000.0, \"num_local_experts\": 128, \"num_experts_per_tok\": 4,"
             "\"routed_scaling_factor\": 2.0}"},
    {.json = NULL},
};
static const struct pp_expert_keys expert_keys = {
    .n = "num_local_experts", .n_used = "num_experts_per_tok", .scale = "routed_scaling_factor"};

/* The indexer: number and size of heads, number and size of the blocks it picks, number of last blocks seen in any
 * case. */
struct index {
    int64_t n_head, dim, n_blocks, block, n_local;
};

static enum pp_code set_index(const struct index *x, struct pp_hparams *hp, struct pp_error *err)
{
    enum { MOST = 1 << 16 };
    enum pp_code code = pp_check_range("number of blocks that an index picks", x->n_blocks, 1, MOST, err);
    if (!code)
        code = pp_check_range("number of positions of a block", x->block, 1, MOST, err);
    hp->n_index_head = x->n_head;
    hp->index_dim = x->dim;
    hp->index_block = x->block;
    hp->index_top_k = code ? 0 : x->n_blocks * x->block;
    hp->index_n_local = x->n_local;
    return code;
}

/* --- GGUF --------------------------------------------------------------------------------------------------------- */

static const char *const index_keys[] = {
    "minimax-m3.attention.indexer.head_count", "minimax-m3.attention.indexer.key_length",
    "minimax-m3.attention.indexer.top_k", "minimax-m3.attention.indexer.block_size",
    "minimax-m3.attention.indexer.local_blocks"};
enum { N_INDEX_KEYS = sizeof index_keys / sizeof *index_keys };

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    struct index x = {0};
    int64_t *const numbers[N_INDEX_KEYS] = {&x.n_head, &x.dim, &x.n_blocks, &x.block, &x.n_local};
    int n = 0;
    hp->index_neox = true;
    if (hp->expert_no_renorm)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "metadata minimax-m3.expert_weights_norm is false; experts whose "
                       "weights do not add up to 1 are not supported in this family");
    for (int i = 0; i < N_INDEX_KEYS; i++)
        n += pp_gguf_has(g, index_keys[i]);
    for (int i = 0; i < N_INDEX_KEYS && n; i++)
        if (!pp_gguf_int(g, index_keys[i], numbers[i]))
            return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks %s, or it is not an integer", index_keys[i]);
    return n ? set_index(&x, hp, err) : PP_OK;
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    const int64_t block = hp->index_block ? hp->index_block : 1;
    const int64_t numbers[N_INDEX_KEYS] = {hp->n_index_head, hp->index_dim, hp->index_top_k / block, block,
                                           hp->index_n_local};
    for (int i = 0; i < N_INDEX_KEYS && hp->index_block; i++)
        pp_gguf_add_u32(w, index_keys[i], (uint32_t)numbers[i]);
    pp_gguf_add_bool(w, "minimax-m3.expert_weights_norm", true); /* other programs' default is false */
}

/* --- config.json -------------------------------------------------------------------------------------------------- */

/* Refuses any other word under a key. */
static enum pp_code check_word(const cJSON *config, const char *key, const char *known, struct pp_error *err)
{
    const char *word = cJSON_GetStringValue(pp_json_member(config, key));
    if (word && strcmp(word, known) != 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s is \"%.40s\", which is not supported for this family; "
                       "%s is", key, word, known);
    return PP_OK;
}

/* Refuses settings that are not implemented. */
static enum pp_code check_config(const cJSON *config, struct pp_error *err)
{
    static const char *const activations[] = {"swigluoai", "silu", "swish", NULL};
    float alpha = 1.702f, limit = 7;
    enum pp_code code = pp_config_activation(config, "hidden_act", activations, err);
    if (!code)
        code = check_word(config, "qk_norm_type", "per_head", err);
    if (!code)
        code = check_word(config, "scoring_func", "sigmoid", err);
    if (!code)
        code = pp_config_float(config, "swiglu_alpha", &alpha, err);
    if (!code)
        code = pp_config_float(config, "swiglu_limit", &limit, err);
    if (!code && (alpha != 1.702f || limit != 7.0f))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: swiglu_alpha is %g and swiglu_limit %g; only 1.702 and 7 "
                       "are supported", (double)alpha, (double)limit);
    if (!code && (!pp_config_flag(config, "use_gemma_norm", true) || !pp_config_flag(config, "use_qk_norm", true)))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: use_gemma_norm or use_qk_norm is false, which is not "
                       "supported in this family");
    return code;
}

/* A list of 0 and 1 for each layer; has: the bits that 1 sets. *there: whether there is such a list. */
static enum pp_code read_flags(const cJSON *object, const char *key, const struct pp_hparams *hp,
                               bool has[PP_MAX_LAYERS], bool *there, struct pp_error *err)
{
    const cJSON *list = pp_json_member(object, key), *item;
    int64_t l = 0;
    *there = cJSON_IsArray(list);
    if (!*there)
        return PP_OK;
    if (cJSON_GetArraySize(list) != hp->n_layer)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: %s does not name %lld layers", key, (long long)hp->n_layer);
    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsBool(item) && !(cJSON_IsNumber(item) && (item->valuedouble == 0 || item->valuedouble == 1)))
            return pp_fail(err, PP_ERR_FORMAT, "config.json: %s has something other than 0 and 1", key);
        has[l++] = cJSON_IsTrue(item) || item->valuedouble == 1;
    }
    return PP_OK;
}

static enum pp_code read_dense(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    bool mixed[PP_MAX_LAYERS] = {false}, there;
    enum pp_code code = read_flags(config, "moe_layer_freq", hp, mixed, &there, err);
    for (int64_t l = 0; !code && there && l < hp->n_layer; l++)
        hp->layer[l] |= mixed[l] ? 0 : PP_LAYER_DENSE;
    return code ? code : pp_config_mlp_types(config, hp, err);
}

/* Which layers have an indexer: transformers' words, else the models' own numbers; without either none has. */
static enum pp_code read_index_layers(const cJSON *config, const cJSON *own, const struct pp_hparams *hp,
                                      bool has[PP_MAX_LAYERS], struct pp_error *err)
{
    const cJSON *list = pp_json_member(config, "layer_types"), *item;
    bool there;
    int64_t l = 0;
    if (!cJSON_IsArray(list))
        return read_flags(own, "sparse_attention_freq", hp, has, &there, err);
    if (cJSON_GetArraySize(list) != hp->n_layer)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: layer_types does not name %lld layers",
                       (long long)hp->n_layer);
    cJSON_ArrayForEach(item, list)
    {
        const char *word = cJSON_IsString(item) ? item->valuestring : "";
        has[l] = strcmp(word, "minimax_m3_sparse") == 0;
        if (!has[l++] && strcmp(word, "full_attention") != 0)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: layer_types has \"%.40s\", which is not supported "
                           "for this family; minimax_m3_sparse and full_attention are", word);
    }
    return PP_OK;
}

/* Refuses features of the indexer that no known model uses. */
static enum pp_code check_index(const cJSON *own, const struct pp_hparams *hp, struct pp_error *err)
{
    bool silent[PP_MAX_LAYERS], there, speaks = false;
    int64_t n_first = 0;
    enum pp_code code = pp_config_int(own, "sparse_init_block", &n_first, err);
    if (!code)
        code = check_word(own, "sparse_score_type", "max", err);
    if (!code)
        code = read_flags(own, "sparse_disable_index_value", hp, silent, &there, err);
    for (int64_t l = 0; !code && there && l < hp->n_layer; l++)
        speaks = speaks || (!silent[l] && !(hp->layer[l] & PP_LAYER_DENSE));
    const char *what = n_first                                              ? "sparse_init_block"
                       : speaks                                              ? "sparse_disable_index_value"
                       : !pp_config_flag(own, "use_sparse_attention", true) ? "use_sparse_attention"
                                                                             : NULL;
    if (!code && what)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s says something that pippin does not support in this "
                                                "family",
                       what);
    return code;
}

static enum pp_code read_index(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *own = pp_json_member(config, "sparse_attention_config");
    struct index x = {.n_head = 4, .dim = 128, .n_blocks = 16, .block = 128, .n_local = 1};
    const struct {
        const char *key, *own_key;
        int64_t *v;
    } numbers[] = {
        {"index_n_heads", "sparse_num_index_heads", &x.n_head}, {"index_head_dim", "sparse_index_dim", &x.dim},
        {"index_topk_blocks", "sparse_topk_blocks", &x.n_blocks}, {"index_block_size", "sparse_block_size", &x.block},
        {"index_local_blocks", "sparse_local_block", &x.n_local},
    };
    bool picked[PP_MAX_LAYERS] = {false}, any = false;
    enum pp_code code = read_index_layers(config, own, hp, picked, err);
    for (int64_t l = 0; !code && l < hp->n_layer; l++)
        any = any || picked[l];
    for (int64_t l = 0; !code && any && l < hp->n_layer; l++)
        if (picked[l] != !(hp->layer[l] & PP_LAYER_DENSE))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: layer %lld has %s, which is not supported in this "
                           "family", (long long)l, picked[l] ? "an index, but no experts" : "experts, but no index");
    if (code || !any)
        return code;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && !code; i++) {
        code = pp_config_int(config, numbers[i].key, numbers[i].v, err);
        if (!code)
            code = pp_config_int(own, numbers[i].own_key, numbers[i].v, err);
    }
    if (!code)
        code = check_index(own, hp, err);
    return code ? code : set_index(&x, hp, err);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = check_config(config, err);
    hp->expert_sigmoids = hp->index_neox = true;
    if (!code)
        code = pp_config_experts(config, &expert_keys, hp, err);
    if (!code)
        code = pp_config_int(config, "dense_intermediate_size", &hp->n_ff, err);
    if (!code)
        code = pp_config_int(config, "rotary_dim", &hp->rope_dim, err);
    if (!code)
        code = read_dense(config, hp, err);
    return code ? code : read_index(config, hp, err);
}

static void put_flags(const struct pp_hparams *hp, const char *key, cJSON *object)
{
    cJSON *list = cJSON_AddArrayToObject(object, key);
    for (int64_t l = 0; l < hp->n_layer; l++)
        cJSON_AddItemToArray(list, cJSON_CreateNumber(hp->layer[l] & PP_LAYER_DENSE ? 0 : 1));
}

static void put_index(const struct pp_hparams *hp, cJSON *config)
{
    cJSON *own = cJSON_AddObjectToObject(config, "sparse_attention_config");
    cJSON_AddTrueToObject(own, "use_sparse_attention");
    pp_config_put(own, "sparse_num_index_heads", hp->n_index_head);
    pp_config_put(own, "sparse_index_dim", hp->index_dim);
    pp_config_put(own, "sparse_topk_blocks", hp->index_top_k / hp->index_block);
    pp_config_put(own, "sparse_block_size", hp->index_block);
    pp_config_put(own, "sparse_local_block", hp->index_n_local);
    pp_config_put(own, "sparse_init_block", 0);
    pp_config_put_text(own, "sparse_score_type", "max");
    put_flags(hp, "sparse_disable_index_value", own);
    put_flags(hp, "sparse_attention_freq", own);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put_experts(hp, &expert_keys, config);
    pp_config_put(config, "intermediate_size", hp->n_ff_expert);
    pp_config_put(config, "dense_intermediate_size", hp->n_ff);
    pp_config_put(config, "shared_intermediate_size", hp->n_ff_shared);
    pp_config_put(config, "n_shared_experts", 1);
    pp_config_put(config, "rotary_dim", hp->rope_dim);
    pp_config_put_text(config, "hidden_act", "swigluoai");
    pp_config_put_text(config, "qk_norm_type", "per_head");
    pp_config_put_text(config, "scoring_func", "sigmoid");
    cJSON_AddTrueToObject(config, "use_qk_norm");
    cJSON_AddTrueToObject(config, "use_gemma_norm");
    cJSON_AddTrueToObject(config, "use_routing_bias");
    pp_config_put_float(config, "swiglu_alpha", 1.702f);
    pp_config_put_float(config, "swiglu_limit", 7);
    put_flags(hp, "moe_layer_freq", config);
    if (hp->index_block)
        put_index(hp, config);
}

const struct pp_arch pp_arch_minimax_m3 = {
    .name = "minimax-m3",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .parts = &parts,
    .defaults = defaults,
    .gguf_neox = true,
    .gguf_default_sigmoids = true,
    .decoder = {.fn = PP_FN_CLAMPED, .qk_norm = PP_QK_BY_HEAD},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
