/* granite_hybrid.c - Granite 4 (transformers, models/granitemoehybrid): Mamba 2 (arXiv 2405.21060) in most layers, in
 * the others attention, mostly without positions; Granite's multipliers; and a feed-forward part, alone or as the
 * shared expert of a mixture. */
#include <cjson/cJSON.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

#define LAYER "model.layers.{}."
#define HALVES(from, gate, up) \
    .hf = LAYER from ".input_linear.weight", .gguf = gate, .second = up, .form = PP_HF_HALVES, .whole = true

/* In folders the dense feed-forward part and the shared expert have the same name. */
static const struct pp_arch_name names[] = {
    {.hf = LAYER "self_attn.q_proj", .gguf = "blk.{}.attn_q", .rows = PP_ROWS_Q},
    {.hf = LAYER "self_attn.k_proj", .gguf = "blk.{}.attn_k", .rows = PP_ROWS_K},
    {.hf = LAYER "mamba.in_proj", .gguf = "blk.{}.ssm_in"},
    {.hf = LAYER "mamba.conv1d.weight", .gguf = "blk.{}.ssm_conv1d.weight", .form = PP_HF_CONV, .whole = true},
    {.hf = LAYER "mamba.conv1d.bias", .gguf = "blk.{}.ssm_conv1d.bias", .whole = true},
    {.hf = LAYER "mamba.A_log", .gguf = "blk.{}.ssm_a", .form = PP_HF_MINUS_EXP_COLUMN, .whole = true},
    {.hf = LAYER "mamba.D", .gguf = "blk.{}.ssm_d", .form = PP_HF_COLUMN, .whole = true},
    {.hf = LAYER "mamba.dt_bias", .gguf = "blk.{}.ssm_dt.bias", .whole = true},
    {.hf = LAYER "mamba.norm", .gguf = "blk.{}.ssm_norm", .form = PP_HF_VECTOR_OR_ROW},
    {.hf = LAYER "mamba.out_proj", .gguf = "blk.{}.ssm_out"},
    {HALVES("shared_mlp", "blk.{}.ffn_gate.weight", "blk.{}.ffn_up.weight"), .dense = true},
    {.hf = LAYER "shared_mlp.output_linear", .gguf = "blk.{}.ffn_down", .dense = true},
    {HALVES("shared_mlp", "blk.{}.ffn_gate_shexp.weight", "blk.{}.ffn_up_shexp.weight")},
    {.hf = LAYER "shared_mlp.output_linear", .gguf = "blk.{}.ffn_down_shexp"},
    {.hf = LAYER "block_sparse_moe.router.layer", .gguf = "blk.{}.ffn_gate_inp"},
    {HALVES("block_sparse_moe", "blk.{}.ffn_gate_exps.weight", "blk.{}.ffn_up_exps.weight")},
    {.hf = LAYER "block_sparse_moe.output_linear", .gguf = "blk.{}.ffn_down_exps"},
    {.hf = LAYER "block_sparse_moe.switch_mlp.gate_proj", .gguf = "blk.{}.ffn_gate_exps", .mlx = true},
    {.hf = LAYER "block_sparse_moe.switch_mlp.up_proj", .gguf = "blk.{}.ffn_up_exps", .mlx = true},
    {.hf = LAYER "block_sparse_moe.switch_mlp.down_proj", .gguf = "blk.{}.ffn_down_exps", .mlx = true},
    {.hf = NULL},
};
static const char *const classes[] = {"GraniteMoeHybridForCausalLM", "granitemoehybrid", NULL};
static const struct pp_expert_keys expert_keys = {.n = "num_local_experts", .n_used = "num_experts_per_tok",
                                                  .n_ff = "intermediate_size"};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"num_local_experts\": 8, \"num_experts_per_tok\": 2, \"shared_intermediate_size\": 1024,"
             "\"mamba_n_heads\": 128, \"mamba_n_groups\": 1, \"mamba_d_state\": 256, \"mamba_d_conv\": 4,"
             "\"mamba_expand\": 2}"},
    {.json = NULL},
};

/* --- GGUF -------------------------------------------------------------------------------------------------------- */

static bool has_states(const struct pp_hparams *hp)
{
    for (int64_t l = 0; l < hp->n_layer; l++)
        if (hp->layer[l] & PP_LAYER_RECURRENT)
            return true;
    return false;
}

static enum pp_code states_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    const enum pp_code code = pp_mamba_from_gguf(g, hp, err);
    return code ? code : pp_mamba_in_one_group(hp, err);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    const enum pp_code code = pp_granite_from_gguf(g, hp, err);
    return !code && has_states(hp) ? states_from_gguf(g, hp, err) : code;
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_gguf_add_bool(w, "granitehybrid.rope.scaling.finetuned", !(hp->layer[0] & PP_LAYER_UNROTATED));
    if (hp->mamba)
        pp_states_to_gguf(hp, w);
}

/* --- config.json ------------------------------------------------------------------------------------------------- */

/* layer_types; without a list all layers have states. */
static enum pp_code layer_types(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const char *positions =
        cJSON_GetStringValue(pp_json_member(config, "position_embedding_type"));
    pp_layers_every(hp, 1, PP_LAYER_RECURRENT); /* by default */
    enum pp_code code = pp_config_layer_words(config, "layer_types", "mamba", "attention", PP_LAYER_RECURRENT, hp, err);
    if (!positions || strcmp(positions, "rope") != 0)
        pp_layers_every(hp, 1, PP_LAYER_UNROTATED);
    return code;
}

static enum pp_code states_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const enum pp_code code = pp_mamba_expanded_from_config(config, &pp_mamba_keys, hp, err);
    return code ? code : pp_mamba_in_one_group(hp, err);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_granite_from_config(config, hp, err);
    if (!code)
        code = pp_config_experts(config, &expert_keys, hp, err);
    if (!code)
        code = layer_types(config, hp, err);
    if (!code && !hp->n_expert)
        code = pp_config_int(config, "shared_intermediate_size", &hp->n_ff, err);
    return !code && has_states(hp) ? states_from_config(config, hp, err) : code;
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    cJSON *types = cJSON_AddArrayToObject(config, "layer_types");
    const bool rotated = !(hp->layer[0] & PP_LAYER_UNROTATED);
    for (int64_t l = 0; l < hp->n_layer; l++)
        cJSON_AddItemToArray(types, cJSON_CreateString(hp->layer[l] & PP_LAYER_RECURRENT ? "mamba" : "attention"));
    pp_granite_to_config(hp, config);
    pp_config_put_text(config, "position_embedding_type", rotated ? "rope" : "nope");
    pp_config_put(config, "num_local_experts", hp->n_expert);
    pp_config_put(config, "num_experts_per_tok", hp->n_expert_used);
    pp_config_put(config, "intermediate_size", hp->n_expert ? hp->n_ff_expert : hp->n_ff);
    pp_config_put(config, "shared_intermediate_size", hp->n_expert ? hp->n_ff_shared : hp->n_ff);
    if (!hp->mamba)
        return;
    pp_mamba_expanded_to_config(hp, &pp_mamba_keys, config);
    cJSON_AddTrueToObject(config, "mamba_conv_bias");
    cJSON_AddFalseToObject(config, "mamba_proj_bias");
}

const struct pp_arch pp_arch_granitehybrid = {
    .name = "granitehybrid",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .from_config = from_config,
    .from_gguf = from_gguf,
    .gguf_divides_logits = true,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
