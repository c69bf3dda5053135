/* nemotron_h.c - Nemotron-H and Nemotron 3 (arXiv 2504.03624, 2512.20848): each layer is one part: Mamba 2 with
 * several groups, attention without positions, a feed-forward part with ReLU^2 and no gate, or experts of that kind,
 * which may be narrower than the stream. In pruned models (NemotronHPuzzleForCausalLM) layers differ in their experts'
 * width and in how many a row uses; their config.json describes every layer. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams_int.h"

#define LAYER "backbone.layers.{}."
#define MIXER LAYER "mixer."

static const struct pp_arch_name names[] = {
    {.hf = "backbone.embeddings", .gguf = "token_embd"},
    {.hf = "backbone.embedding", .gguf = "token_embd", .read_only = true},
    {.hf = "backbone.norm_f", .gguf = "output_norm"},
    {.hf = LAYER "norm", .gguf = "blk.{}.attn_norm"},
    {.hf = MIXER "q_proj", .gguf = "blk.{}.attn_q"},
    {.hf = MIXER "k_proj", .gguf = "blk.{}.attn_k"},
    {.hf = MIXER "v_proj", .gguf = "blk.{}.attn_v"},
    {.hf = MIXER "o_proj", .gguf = "blk.{}.attn_output"},
    {.hf = MIXER "in_proj", .gguf = "blk.{}.ssm_in"},
    {.hf = MIXER "conv1d.weight", .gguf = "blk.{}.ssm_conv1d.weight", .form = PP_HF_CONV, .whole = true},
    {.hf = MIXER "conv1d.bias", .gguf = "blk.{}.ssm_conv1d.bias", .whole = true},
    {.hf = MIXER "A_log", .gguf = "blk.{}.ssm_a", .form = PP_HF_MINUS_EXP_COLUMN, .whole = true},
    {.hf = MIXER "D", .gguf = "blk.{}.ssm_d", .form = PP_HF_COLUMN, .whole = true},
    {.hf = MIXER "dt_bias", .gguf = "blk.{}.ssm_dt.bias", .whole = true},
    {.hf = MIXER "norm", .gguf = "blk.{}.ssm_norm", .form = PP_HF_FLAT_GROUPS},
    {.hf = MIXER "out_proj", .gguf = "blk.{}.ssm_out"},
    {.hf = MIXER "up_proj", .gguf = "blk.{}.ffn_up"},
    {.hf = MIXER "down_proj", .gguf = "blk.{}.ffn_down"},
    {.hf = MIXER "gate.e_score_correction_bias", .gguf = "blk.{}.exp_probs_b.bias", .whole = true},
    {.hf = MIXER "gate", .gguf = "blk.{}.ffn_gate_inp"},
    {.hf = MIXER "fc1_latent_proj", .gguf = "blk.{}.ffn_latent_down"},
    {.hf = MIXER "fc2_latent_proj", .gguf = "blk.{}.ffn_latent_up"},
    {.hf = MIXER "shared_experts.up_proj", .gguf = "blk.{}.ffn_up_shexp"},
    {.hf = MIXER "shared_experts.down_proj", .gguf = "blk.{}.ffn_down_shexp"},
    {.hf = MIXER "experts.{}.up_proj", .gguf = "blk.{}.ffn_up.{}"},
    {.hf = MIXER "experts.{}.down_proj", .gguf = "blk.{}.ffn_down.{}"},
    {.hf = MIXER "experts.up_proj", .gguf = "blk.{}.ffn_up_exps.weight", .whole = true, .read_only = true},
    {.hf = MIXER "experts.down_proj", .gguf = "blk.{}.ffn_down_exps.weight", .whole = true, .read_only = true},
    {.hf = MIXER "switch_mlp.fc1", .gguf = "blk.{}.ffn_up_exps", .mlx = true},
    {.hf = MIXER "switch_mlp.fc2", .gguf = "blk.{}.ffn_down_exps", .mlx = true},
    {.hf = NULL},
};
static const char *const classes[] = {"NemotronHForCausalLM", "nemotron_h", "NemotronHPuzzleForCausalLM",
                                      "nemotron_h_puzzle", NULL};
static const char *const other_names[] = {"nemotron_h_moe", NULL};
static const char *const prefixes[] = {"model.", "backbone.", NULL};
static const char *const others[] = {"mtp.", NULL}; /* multi-token prediction */
static const struct pp_arch_parts parts = {.model_type = "nemotron_h", .prefixes = prefixes, .others = others};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"intermediate_size\": 21504, \"max_position_embeddings\": 4096, \"num_key_value_heads\": 8,"
             "\"n_groups\": 8, \"mamba_num_heads\": 128, \"mamba_head_dim\": 64, \"ssm_state_size\": 128,"
             "\"conv_kernel\": 4, \"n_routed_experts\": 8, \"num_experts_per_tok\": 2,"
             "\"moe_intermediate_size\": 7688, \"norm_topk_prob\": true}"},
    {.json = NULL},
};
static const struct pp_expert_keys expert_keys = {
    .n = "n_routed_experts", .n_used = "num_experts_per_tok", .n_ff = "moe_intermediate_size", .n_groups = "n_group",
    .n_groups_used = "topk_group", .shared_n_ff = "moe_shared_expert_intermediate_size",
    .norm_topk = "norm_topk_prob", .scale = "routed_scaling_factor"};
static const struct pp_mamba_keys mamba_keys = {.taps = "conv_kernel", .key_dim = "ssm_state_size",
                                                .n_groups = "n_groups", .n_heads = "mamba_num_heads",
                                                .head_dim = "mamba_head_dim"};

/* --- kinds of layers --------------------------------------------------------------------------------------------- */

enum kind { MAMBA = 'M', ATTENTION = '*', FEED_FORWARD = '-', EXPERTS = 'E' };

static void set_kind(struct pp_hparams *hp, int64_t l, enum kind kind, int64_t n_ff)
{
    hp->sizes[l] = (struct pp_layer_sizes){.n_head = (int32_t)hp->n_head, /* files have one number for all layers */
                                           .n_head_kv = kind == ATTENTION ? (int32_t)hp->n_head_kv : 0,
                                           .n_ff = (int32_t)n_ff};
    hp->layer[l] |= PP_LAYER_UNROTATED;
    hp->layer[l] |= kind == MAMBA ? PP_LAYER_RECURRENT : 0;
    hp->layer[l] |= kind == FEED_FORWARD && hp->n_expert ? PP_LAYER_DENSE : 0;
    hp->sizes_vary = hp->parts_missing = hp->one_part = true;
}

static enum kind kind_of(const struct pp_hparams *hp, int64_t l)
{
    return hp->layer[l] & PP_LAYER_RECURRENT                   ? MAMBA
           : hp->sizes[l].n_head_kv                            ? ATTENTION
           : hp->n_expert && !(hp->layer[l] & PP_LAYER_DENSE) ? EXPERTS
                                                               : FEED_FORWARD;
}

/* With experts_vary, checks each layer's number of experts used and their width. */
static enum pp_code check_mixtures(const struct pp_hparams *hp, struct pp_error *err)
{
    for (int64_t l = 0; l < hp->n_layer && hp->experts_vary; l++) {
        const struct pp_layer_experts of = hp->layer_experts[l];
        if (kind_of(hp, l) == EXPERTS && (of.n_used < 1 || of.n_used > hp->n_expert || of.n_ff < 1))
            return pp_fail(err, PP_ERR_FORMAT, "layer %lld has experts of %d values, of which each row uses %d; that "
                           "cannot be", (long long)l, (int)of.n_ff, (int)of.n_used);
    }
    return PP_OK;
}

/* --- GGUF -------------------------------------------------------------------------------------------------------- */

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    for (int64_t l = 0; l < hp->n_layer; l++)
        set_kind(hp, l, kind_of(hp, l), hp->sizes[l].n_ff);
    pp_gguf_int(g, "nemotron_h_moe.moe_latent_size", &hp->n_embd_expert);
    const enum pp_code code = check_mixtures(hp, err);
    return code ? code : pp_mamba_from_gguf(g, hp, err);
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_states_to_gguf(hp, w);
    if (hp->n_embd_expert)
        pp_gguf_add_u32(w, "nemotron_h_moe.moe_latent_size", (uint32_t)hp->n_embd_expert);
}

/* --- config.json ------------------------------------------------------------------------------------------------- */

/* The kind of layer for a word; 0: unknown. */
static enum kind kind_called(const char *word)
{
    static const struct {
        const char *word;
        enum kind kind;
    } kinds[] = {{"mamba", MAMBA}, {"linear_attention", MAMBA}, {"attention", ATTENTION},
                 {"full_attention", ATTENTION}, {"mlp", FEED_FORWARD}, {"moe", EXPERTS}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].word, word) == 0)
            return kinds[i].kind;
    return 0;
}

/* A number of a block's experts, or the default for all. */
static enum pp_code read_block(const cJSON *block, int64_t l, struct pp_hparams *hp, struct pp_error *err)
{
    static const char *const same[] = {"n_routed_experts", "moe_latent_size", "moe_shared_expert_intermediate_size"};
    const int64_t want[] = {hp->n_expert, hp->n_embd_expert, hp->n_ff_shared};
    int64_t n_used = hp->n_expert_used, n_ff = hp->n_ff_expert;
    enum pp_code code = pp_config_int(block, "num_experts_per_tok", &n_used, err);
    if (!code)
        code = pp_config_int(block, "moe_intermediate_size", &n_ff, err);
    for (size_t i = 0; i < sizeof same / sizeof *same && !code; i++) {
        int64_t v = want[i];
        code = pp_config_int(block, same[i], &v, err);
        if (!code && v != want[i])
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s of layer %lld is %lld, and %lld in others; only "
                           "num_experts_per_tok and moe_intermediate_size may differ", same[i], (long long)l,
                           (long long)v, (long long)want[i]);
    }
    if (!code)
        code = pp_check_range("number of experts used", n_used, 1, PP_MAX_EXPERTS_USED, err);
    if (!code)
        code = pp_check_range("feed-forward size of an expert", n_ff, 1, 1 << 22, err);
    if (!code)
        hp->layer_experts[l] = (struct pp_layer_experts){(int32_t)n_used, (int32_t)n_ff};
    return code;
}

/* The experts of single layers, after the common defaults were read. */
static enum pp_code read_mixtures(const cJSON *config, const char *kinds, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *blocks = pp_json_member(config, "block_configs"), *block;
    int64_t l = 0, n_used = 0, n_ff = 0;
    enum pp_code code = PP_OK;
    if (!cJSON_IsArray(blocks))
        return PP_OK;
    hp->experts_vary = true;
    cJSON_ArrayForEach(block, blocks)
    {
        if (code)
            return code;
        if (kinds[l] == EXPERTS)
            code = read_block(block, l, hp, err);
        n_used = hp->layer_experts[l].n_used > n_used ? hp->layer_experts[l].n_used : n_used;
        n_ff = hp->layer_experts[l].n_ff > n_ff ? hp->layer_experts[l].n_ff : n_ff;
        l++;
    }
    hp->n_expert_used = n_used;
    hp->n_ff_expert = n_ff;
    return code;
}

/* The kinds of layers: from hybrid_override_pattern, a letter for each, from a list of words or, taking precedence,
 * from block_configs. */
static enum pp_code read_kinds(const cJSON *config, int64_t n_layer, char kinds[PP_MAX_LAYERS + 1],
                               struct pp_error *err)
{
    const char *pattern =
        cJSON_GetStringValue(pp_json_member(config, "hybrid_override_pattern"));
    const cJSON *list = pp_json_member(config, "layers_block_type"), *item;
    const cJSON *blocks = pp_json_member(config, "block_configs");
    const bool unlike = cJSON_IsArray(blocks) && cJSON_GetArraySize(blocks) != n_layer; /* each layer needs one */
    size_t n = 0;
    if (!cJSON_IsArray(list))
        list = pp_json_member(config, "layer_types");
    memset(kinds, 0, PP_MAX_LAYERS + 1);
    if (cJSON_IsArray(blocks)) {
        cJSON_ArrayForEach(item, blocks)
        {
            const char *word = cJSON_GetStringValue(pp_json_member(item, "block_type"));
            if (n < PP_MAX_LAYERS)
                kinds[n++] = (char)kind_called(word ? word : "");
        }
    } else if (pattern)
        snprintf(kinds, PP_MAX_LAYERS + 1, "%s", pattern);
    else
        cJSON_ArrayForEach(item, list)
            if (n < PP_MAX_LAYERS)
                kinds[n++] = (char)kind_called(cJSON_IsString(item) ? item->valuestring : "");
    if (unlike || strspn(kinds, "M*-E") != strlen(kinds) || (int64_t)strlen(kinds) != n_layer)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: what the %lld layers are is not said, or in other words "
                       "than pippin knows", (long long)n_layer);
    return PP_OK;
}

/* The head size is under one of two keys. */
static enum pp_code read_heads(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t head_dim = 128;
    enum pp_code code = pp_config_int(config, "attention_head_dim", &head_dim, err);
    if (!code)
        code = pp_config_int(config, "head_dim", &head_dim, err);
    hp->head_dim = hp->rope_dim = head_dim;
    return code;
}

/* Refuses settings that no published model has. */
static enum pp_code check_words(const cJSON *config, struct pp_error *err)
{
    if (cJSON_IsNumber(pp_json_member(config, "sliding_window")))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: sliding_window is set, which is not supported for this "
                       "family");
    return pp_config_word(config, "mamba_hidden_act", pp_silu_names, err);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    char kinds[PP_MAX_LAYERS + 1];
    int64_t n_ff = hp->n_ff;
    enum pp_code code = pp_config_activation(config, "mlp_hidden_act", pp_relu2_names, err);
    /* With block_configs the common reader has skipped it. */
    if (!code && cJSON_IsArray(pp_json_member(config, "block_configs")))
        code = pp_config_int(config, "intermediate_size", &n_ff, err);
    if (!code)
        code = pp_check_range("feed-forward size", n_ff, 0, INT64_MAX, err);
    if (!code)
        code = check_words(config, err);
    hp->norm_eps = 1e-5f;
    if (!code)
        code = pp_config_float(config, "layer_norm_epsilon", &hp->norm_eps, err);
    if (!code)
        code = read_heads(config, hp, err);
    if (!code)
        code = read_kinds(config, hp->n_layer, kinds, err);
    if (!code && strchr(kinds, EXPERTS)) {
        hp->expert_sigmoids = true;
        code = pp_config_experts(config, &expert_keys, hp, err);
        if (!code)
            code = pp_config_int(config, "moe_latent_size", &hp->n_embd_expert, err);
        if (!code)
            code = read_mixtures(config, kinds, hp, err);
    }
    if (code || n_ff > 1 << 22 || hp->n_ff_expert > 1 << 22 || hp->n_head > 1 << 13 || hp->n_head_kv > 1 << 13)
        return code; /* pp_hparams_check refuses such sizes */
    hp->n_ff = 0;
    for (int64_t l = 0; l < hp->n_layer; l++) {
        const enum kind kind = (enum kind)kinds[l];
        const int64_t n = kind == EXPERTS ? pp_layer_experts(hp, l).n_ff : kind == FEED_FORWARD ? n_ff : 0;
        set_kind(hp, l, kind, n);
        hp->n_ff = n > hp->n_ff ? n : hp->n_ff;
    }
    if (!hp->n_ff)
        hp->n_ff = n_ff; /* no layer has it */
    return pp_mamba_from_config(config, &mamba_keys, 0, hp, err);
}

/* The experts of single layers. */
static void put_blocks(const struct pp_hparams *hp, cJSON *config)
{
    cJSON *blocks = cJSON_AddArrayToObject(config, "block_configs");
    for (int64_t l = 0; l < hp->n_layer; l++) {
        const enum kind kind = kind_of(hp, l);
        cJSON *block = cJSON_CreateObject();
        cJSON_AddStringToObject(block, "block_type", kind == MAMBA       ? "mamba"
                                                     : kind == ATTENTION ? "attention"
                                                     : kind == EXPERTS   ? "moe"
                                                                         : "mlp");
        if (kind == EXPERTS) {
            pp_config_put(block, "moe_intermediate_size", hp->layer_experts[l].n_ff);
            pp_config_put(block, "num_experts_per_tok", hp->layer_experts[l].n_used);
        }
        cJSON_AddItemToArray(blocks, block);
    }
    cJSON_DeleteItemFromObjectCaseSensitive(config, "hybrid_override_pattern");
    pp_config_put_class(config, "NemotronHPuzzleForCausalLM", "nemotron_h_puzzle");
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    char kinds[PP_MAX_LAYERS + 1] = "";
    int64_t n_ff = hp->n_ff;
    for (int64_t l = 0; l < hp->n_layer; l++) {
        kinds[l] = (char)kind_of(hp, l);
        n_ff = kinds[l] == FEED_FORWARD ? hp->sizes[l].n_ff : n_ff;
    }
    pp_config_put_text(config, "hybrid_override_pattern", kinds);
    pp_config_put(config, "intermediate_size", n_ff);
    pp_config_put_text(config, "mlp_hidden_act", "relu2");
    pp_config_put(config, "attention_head_dim", hp->head_dim);
    pp_mamba_to_config(hp, &mamba_keys, config);
    cJSON_AddTrueToObject(config, "use_conv_bias");
    cJSON_AddFalseToObject(config, "use_bias");
    if (!hp->n_expert)
        return;
    pp_config_put_experts(hp, &expert_keys, config);
    pp_config_put(config, "n_shared_experts", hp->n_ff_shared ? 1 : 0);
    if (hp->n_embd_expert)
        pp_config_put(config, "moe_latent_size", hp->n_embd_expert);
    if (hp->experts_vary)
        put_blocks(hp, config);
}

const struct pp_arch pp_arch_nemotron_h = {
    .name = "nemotron_h",
    .other_names = other_names,
    .mixture_name = "nemotron_h_moe",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .parts = &parts,
    .gguf_default_sigmoids = true,
    .experts_vary = true,
    .decoder = {.ungated = true, .fn = PP_FN_RELU2, .ffn_norm = "attn_norm"},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
    .hf_eps = "layer_norm_epsilon",
};
