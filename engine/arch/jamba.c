/* jamba.c - Jamba (arXiv 2403.19887): Mamba in most layers, with norms of dt, B and C; attention without positions in
 * every attn_layer_period-th; and a feed-forward part in every layer, in every expert_layer_period-th one as
 * experts. */
#include <cjson/cJSON.h>
#include <stdio.h>

#include "engine/arch/families.h"
#include "engine/hparams.h"

#define LAYER "model.layers.{}."
#define PART LAYER "feed_forward."

static const struct pp_arch_name names[] = {
    {.hf = "model.final_layernorm", .gguf = "output_norm"},
    {.hf = LAYER "pre_ff_layernorm", .gguf = "blk.{}.ffn_norm"},
    {.hf = LAYER "mamba.in_proj", .gguf = "blk.{}.ssm_in"},
    {.hf = LAYER "mamba.conv1d.weight", .gguf = "blk.{}.ssm_conv1d.weight", .form = PP_HF_CONV, .whole = true},
    {.hf = LAYER "mamba.conv1d.bias", .gguf = "blk.{}.ssm_conv1d.bias", .whole = true},
    {.hf = LAYER "mamba.x_proj", .gguf = "blk.{}.ssm_x"},
    {.hf = LAYER "mamba.dt_layernorm", .gguf = "blk.{}.ssm_dt_norm"},
    {.hf = LAYER "mamba.b_layernorm", .gguf = "blk.{}.ssm_b_norm"},
    {.hf = LAYER "mamba.c_layernorm", .gguf = "blk.{}.ssm_c_norm"},
    {.hf = LAYER "mamba.dt_proj", .gguf = "blk.{}.ssm_dt"},
    {.hf = LAYER "mamba.A_log", .gguf = "blk.{}.ssm_a", .form = PP_HF_MINUS_EXP, .whole = true},
    {.hf = LAYER "mamba.D", .gguf = "blk.{}.ssm_d", .whole = true},
    {.hf = LAYER "mamba.out_proj", .gguf = "blk.{}.ssm_out"},
    {.hf = PART "router", .gguf = "blk.{}.ffn_gate_inp"},
    {.hf = PART "experts.{}.gate_proj", .gguf = "blk.{}.ffn_gate.{}"},
    {.hf = PART "experts.{}.up_proj", .gguf = "blk.{}.ffn_up.{}"},
    {.hf = PART "experts.{}.down_proj", .gguf = "blk.{}.ffn_down.{}"},
    {.hf = PART "switch_mlp.gate_proj", .gguf = "blk.{}.ffn_gate_exps", .mlx = true},
    {.hf = PART "switch_mlp.up_proj", .gguf = "blk.{}.ffn_up_exps", .mlx = true},
    {.hf = PART "switch_mlp.down_proj", .gguf = "blk.{}.ffn_down_exps", .mlx = true},
    {.hf = PART "gate_proj", .gguf = "blk.{}.ffn_gate"},
    {.hf = PART "up_proj", .gguf = "blk.{}.ffn_up"},
    {.hf = PART "down_proj", .gguf = "blk.{}.ffn_down"},
    {.hf = NULL},
};
static const char *const classes[] = {"JambaForCausalLM", "jamba", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 65536, \"hidden_size\": 4096, \"intermediate_size\": 14336, \"num_hidden_layers\": 32,"
             "\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"max_position_embeddings\": 262144,"
             "\"num_experts\": 16, \"num_experts_per_tok\": 2}"},
    {.json = NULL},
};
static const struct pp_scan_keys scan_keys = {.taps = "mamba_d_conv", .key_dim = "mamba_d_state",
                                              .rank = "mamba_dt_rank", .expand = "mamba_expand"};
static const struct pp_expert_keys expert_keys = {.n = "num_experts", .n_used = "num_experts_per_tok"};

/* A mixture of one expert counts as none; no layer is rotated. */
static void finish(struct pp_hparams *hp)
{
    int64_t n_dense = 0;
    for (int64_t l = 0; l < hp->n_layer; l++)
        n_dense += (hp->layer[l] & PP_LAYER_DENSE) != 0;
    if (hp->n_expert == 1 || n_dense == hp->n_layer)
        hp->n_expert = hp->n_expert_used = hp->n_ff_expert = 0;
    pp_layers_every(hp, 1, PP_LAYER_UNROTATED);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    finish(hp);
    return pp_scan_from_gguf(g, hp, err);
}

/* --- config.json ------------------------------------------------------------------------------------------------- */

/* Layers of a kind: KIND_layer_period and KIND_layer_offset, the first of them. */
struct every {
    int64_t period, offset;
};

static enum pp_code read_every(const cJSON *config, const char *kind, struct every *e, struct pp_error *err)
{
    char key[64];
    snprintf(key, sizeof key, "%s_layer_period", kind);
    enum pp_code code = pp_config_int(config, key, &e->period, err);
    snprintf(key, sizeof key, "%s_layer_offset", kind);
    if (!code)
        code = pp_config_int(config, key, &e->offset, err);
    if (!code && (e->offset < 0 || e->period <= e->offset))
        return pp_fail(err, PP_ERR_FORMAT, "config.json: %s is %lld, which is none of %lld layers", key,
                       (long long)e->offset, (long long)e->period);
    return code;
}

static bool is_one(const struct every *e, int64_t l)
{
    return l % e->period == e->offset;
}

/* The reverse: a period and offset for the layers that have, or lack, a bit. */
static void put_every(const struct pp_hparams *hp, uint8_t bit, const char *kind, cJSON *config)
{
    struct every e = {.period = 0, .offset = hp->n_layer};
    char key[64];
    for (int64_t l = 0; l < hp->n_layer && !e.period; l++)
        if (!(hp->layer[l] & bit)) {
            e.period = e.offset < l ? l - e.offset : 0;
            e.offset = e.period ? e.offset : l;
        }
    if (!e.period) /* there is only one such layer */
        e.period = e.offset < hp->n_layer ? hp->n_layer : hp->n_layer + 1;
    snprintf(key, sizeof key, "%s_layer_period", kind);
    pp_config_put(config, key, e.period);
    snprintf(key, sizeof key, "%s_layer_offset", kind);
    pp_config_put(config, key, e.offset);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    struct every attention = {8, 4}, experts = {2, 1};
    int64_t window = 0;
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (!code)
        code = pp_config_int(config, "sliding_window", &window, err);
    if (!code && window && window < hp->n_ctx_train)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "a window of attention is not supported in this family");
    if (!code)
        code = read_every(config, "attn", &attention, err);
    if (!code)
        code = read_every(config, "expert", &experts, err);
    if (!code)
        code = pp_config_experts(config, &expert_keys, hp, err);
    if (code)
        return code;
    hp->expert_no_renorm = true;
    for (int64_t l = 0; l < hp->n_layer; l++)
        hp->layer[l] |= (is_one(&attention, l) ? 0 : PP_LAYER_RECURRENT) | (is_one(&experts, l) ? 0 : PP_LAYER_DENSE);
    finish(hp);
    return pp_scan_from_config(config, &scan_keys, 0, hp, err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    cJSON_DeleteItemFromObjectCaseSensitive(config, "rope_theta");
    put_every(hp, PP_LAYER_RECURRENT, "attn", config);
    if (hp->n_expert)
        put_every(hp, PP_LAYER_DENSE, "expert", config);
    pp_config_put(config, "num_experts", hp->n_expert ? hp->n_expert : 1);
    pp_config_put(config, "num_experts_per_tok", hp->n_expert ? hp->n_expert_used : 1);
    pp_scan_to_config(hp, &scan_keys, config);
    cJSON_AddTrueToObject(config, "mamba_conv_bias");
    cJSON_AddFalseToObject(config, "mamba_proj_bias");
}

const struct pp_arch pp_arch_jamba = {
    .name = "jamba",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_default_no_renorm = true,
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = pp_scan_to_gguf,
    .to_config = to_config,
};
