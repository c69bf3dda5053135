/* deci.c - DeciLM and Nemotron's models made by neural architecture search (51B, Super 49B, Ultra 253B; arXiv
 * 2411.19146): Llama's layers with individual numbers of KV heads and feed-forward widths. A layer may lack attention
 * or have a projection in its place, and may lack the feed-forward part. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/hparams.h"

static const struct pp_arch_name names[] = {
    {.hf = "model.layers.{}.self_attn.q_proj", .gguf = "blk.{}.attn_q", .rows = PP_ROWS_Q},
    {.hf = "model.layers.{}.self_attn.k_proj", .gguf = "blk.{}.attn_k", .rows = PP_ROWS_K},
    {.hf = "model.layers.{}.self_attn.linear_attn", .gguf = "blk.{}.attn_output", .projection_only = true},
    {.hf = NULL},
};

static const char *const classes[] = {"DeciLMForCausalLM", "nemotron-nas", "deci", NULL};

static bool is_true(const cJSON *part, const char *key)
{
    return cJSON_IsTrue(pp_json_member(part, key));
}

/* The feed-forward width from ffn_mult, rounded up to a multiple of 256. */
static int64_t width_of(double factor, int64_t n_embd)
{
    enum { STEP = 256 };
    return ((int64_t)(2 * factor * (double)n_embd / 3) + STEP - 1) / STEP * STEP;
}

static enum pp_code fail_block(int64_t l, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: block_configs says something of layer %lld that pippin does "
                   "not compute", (long long)l);
}

static enum pp_code read_block(const cJSON *block, int64_t l, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *attention = pp_json_member(block, "attention");
    const cJSON *ffn = pp_json_member(block, "ffn");
    struct pp_layer_sizes *s = &hp->sizes[l];
    double factor = 0;
    int64_t group = 0;
    float f = 0;
    if (!pp_json_int(attention, "n_heads_in_group", &group) || !pp_json_float(ffn, "ffn_mult", &f) || group < 0 ||
        group > hp->n_head || (group && hp->n_head % group != 0) || !(f >= 0 && f <= 64) ||
        is_true(ffn, "replace_with_linear"))
        return fail_block(l, err);
    if (cJSON_IsNumber(pp_json_member(ffn, "ffn_mult")))
        factor = pp_json_member(ffn, "ffn_mult")->valuedouble;
    s->n_ff = (int32_t)(is_true(ffn, "no_op") ? 0 : width_of(factor, hp->n_embd));
    s->n_head_kv = group && !is_true(attention, "no_op") ? (int32_t)(hp->n_head / group) : 0;
    s->n_head = s->n_head_kv || is_true(attention, "replace_with_linear") ? (int32_t)hp->n_head : 0;
    return PP_OK;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *blocks = pp_json_list(config, "block_configs"), *item;
    const cJSON *kv = pp_json_list(config, "num_key_value_heads_per_layer");
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    int64_t l = 0;
    hp->parts_missing = true;
    pp_layers_vary_sizes(hp);
    if ((blocks && cJSON_GetArraySize(blocks) != hp->n_layer) || (kv && cJSON_GetArraySize(kv) != hp->n_layer) ||
        hp->n_embd > 1 << 20)
        return fail_block(hp->n_layer, err);
    cJSON_ArrayForEach(item, kv)
        hp->sizes[l++].n_head_kv = cJSON_IsNumber(item) ? item->valueint : -1;
    l = 0;
    cJSON_ArrayForEach(item, blocks)
        if (!code)
            code = read_block(item, l++, hp, err);
    hp->n_head_kv = hp->n_ff = 0;
    for (l = 0; l < hp->n_layer; l++) {
        hp->n_head_kv = hp->sizes[l].n_head_kv > hp->n_head_kv ? hp->sizes[l].n_head_kv : hp->n_head_kv;
        hp->n_ff = hp->sizes[l].n_ff > hp->n_ff ? hp->sizes[l].n_ff : hp->n_ff;
    }
    return code;
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g, (void)err;
    hp->parts_missing = true;
    return PP_OK;
}

static void put_or_null(cJSON *object, const char *key, double v)
{
    cJSON_AddItemToObject(object, key, v > 0 ? cJSON_CreateNumber(v) : cJSON_CreateNull());
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    cJSON *blocks = cJSON_AddArrayToObject(config, "block_configs");
    for (int64_t l = 0; l < hp->n_layer; l++) {
        const struct pp_layer_shape s = pp_layer_shape(hp, l);
        cJSON *block = cJSON_CreateObject();
        cJSON *attention = cJSON_AddObjectToObject(block, "attention"), *ffn = cJSON_AddObjectToObject(block, "ffn");
        put_or_null(attention, "n_heads_in_group", s.n_head_kv ? (double)(s.n_head / s.n_head_kv) : 0);
        cJSON_AddBoolToObject(attention, "no_op", s.n_head == 0);
        cJSON_AddBoolToObject(attention, "replace_with_linear", s.n_head && !s.n_head_kv);
        put_or_null(ffn, "ffn_mult", 1.5 * (double)s.n_ff / (double)hp->n_embd);
        cJSON_AddBoolToObject(ffn, "no_op", s.n_ff == 0);
        cJSON_AddFalseToObject(ffn, "replace_with_linear");
        cJSON_AddItemToArray(blocks, block);
    }
    cJSON_DeleteItemFromObjectCaseSensitive(config, "intermediate_size");
    cJSON_AddNullToObject(config, "intermediate_size");
    cJSON_DeleteItemFromObjectCaseSensitive(config, "num_key_value_heads");
    cJSON_AddNullToObject(config, "num_key_value_heads");
}

const struct pp_arch pp_arch_deci = {
    .name = "deci",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_config = to_config,
};
