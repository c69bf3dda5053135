/* qwen3.c - Qwen 3: queries and keys of each head are normed; and its mixture of experts. Of Qwen 3 VL the part that
 * reads and writes text, for which its three numbers of a position are one. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

static const struct pp_arch_name names[] = {
    {.hf = "model.layers.{}.self_attn.q_norm", .gguf = "blk.{}.attn_q_norm"},
    {.hf = "model.layers.{}.self_attn.k_norm", .gguf = "blk.{}.attn_k_norm"},
    {.hf = "model.layers.{}.mlp.gate", .gguf = "blk.{}.ffn_gate_inp"},
    {.hf = "model.layers.{}.mlp.experts.{}.gate_proj", .gguf = "blk.{}.ffn_gate.{}"},
    {.hf = "model.layers.{}.mlp.experts.{}.up_proj", .gguf = "blk.{}.ffn_up.{}"},
    {.hf = "model.layers.{}.mlp.experts.{}.down_proj", .gguf = "blk.{}.ffn_down.{}"},
    {.hf = "model.layers.{}.mlp.switch_mlp.gate_proj", .gguf = "blk.{}.ffn_gate_exps", .mlx = true},
    {.hf = "model.layers.{}.mlp.switch_mlp.up_proj", .gguf = "blk.{}.ffn_up_exps", .mlx = true},
    {.hf = "model.layers.{}.mlp.switch_mlp.down_proj", .gguf = "blk.{}.ffn_down_exps", .mlx = true},
    {.hf = NULL},
};

static const char *const other_names[] = {"qwen3vl", NULL};
static const char *const moe_other_names[] = {"qwen3vlmoe", NULL};
static const char *const classes[] = {
    "Qwen3ForCausalLM", "Qwen3VLForConditionalGeneration", "qwen3", "qwen3_vl", "qwen3_vl_text", NULL};
static const char *const moe_classes[] = {"Qwen3MoeForCausalLM", "qwen3_moe", NULL};
static const struct pp_arch_parts parts = {
    .model_type = "qwen3", .prefixes = pp_qwen_prefixes, .others = pp_qwen_others};

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    return code ? code : pp_config_qwen_window(config, hp, err);
}

/* Some layers may be without experts: those that are listed, and all but every decoder_sparse_step-th. */
static enum pp_code dense_layers(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(config, "mlp_only_layers"), *item;
    int64_t step = 1;
    enum pp_code code = pp_config_int(config, "decoder_sparse_step", &step, err);
    for (int64_t l = 0; !code && l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        if (step < 1 || (l + 1) % step != 0)
            hp->layer[l] |= PP_LAYER_DENSE;
    cJSON_ArrayForEach(item, list)
        if (cJSON_IsNumber(item) && item->valueint >= 0 && item->valueint < PP_MAX_LAYERS)
            hp->layer[item->valueint] |= PP_LAYER_DENSE;
    return code;
}

static enum pp_code moe_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = from_config(config, hp, err);
    hp->n_expert = 128;
    hp->n_expert_used = 8;
    hp->n_ff_expert = 768;
    hp->expert_shares = !pp_config_flag(config, "norm_topk_prob", false);
    if (!code)
        code = pp_config_int(config, "num_local_experts", &hp->n_expert, err); /* transformers 5 */
    if (!code)
        code = pp_config_int(config, "num_experts", &hp->n_expert, err);
    if (!code)
        code = pp_config_int(config, "num_experts_per_tok", &hp->n_expert_used, err);
    if (!code)
        code = pp_config_int(config, "moe_intermediate_size", &hp->n_ff_expert, err);
    return code ? code : dense_layers(config, hp, err);
}

static enum pp_code moe_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    bool normed = true;
    (void)err;
    pp_gguf_bool(g, "qwen3moe.expert_weights_norm", &normed);
    if (!pp_gguf_has(g, "qwen3moe.expert_feed_forward_length") &&
        !pp_gguf_has(g, "qwen3vlmoe.expert_feed_forward_length") && hp->n_expert_used > 0)
        hp->n_ff_expert = hp->n_ff / hp->n_expert_used;
    hp->expert_shares = !normed;
    return PP_OK;
}

static void moe_to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    if (hp->expert_shares)
        pp_gguf_add_bool(w, "qwen3moe.expert_weights_norm", false);
}

static const struct pp_arch_usual usual[] = {
    {.json = "{\"num_key_value_heads\": 32, \"head_dim\": 128, \"max_position_embeddings\": 32768}"},
    {.json = NULL},
};
static const struct pp_arch_usual moe_usual[] = {
    {.json = "{\"num_key_value_heads\": 4, \"max_position_embeddings\": 32768}"},
    {.json = NULL},
};

const struct pp_arch pp_arch_qwen3 = {
    .name = "qwen3",
    .other_names = other_names,
    .parts = &parts,
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD},
    .from_config = from_config,
    .usual = usual,
    .to_config = pp_config_put_qwen_window,
};

static void moe_to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    cJSON *dense = cJSON_AddArrayToObject(config, "mlp_only_layers");
    pp_config_put_qwen_window(hp, config);
    pp_config_put(config, "num_experts", hp->n_expert);
    pp_config_put(config, "num_experts_per_tok", hp->n_expert_used);
    pp_config_put(config, "moe_intermediate_size", hp->n_ff_expert);
    pp_config_put(config, "decoder_sparse_step", 1);
    cJSON_AddBoolToObject(config, "norm_topk_prob", !hp->expert_shares);
    for (int64_t l = 0; l < hp->n_layer; l++)
        if (hp->layer[l] & PP_LAYER_DENSE)
            cJSON_AddItemToArray(dense, cJSON_CreateNumber((double)l));
}

const struct pp_arch pp_arch_qwen3moe = {
    .name = "qwen3moe",
    .other_names = moe_other_names,
    .hf_classes = moe_classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD},
    .from_config = moe_from_config,
    .usual = moe_usual,
    .from_gguf = moe_from_gguf,
    .to_gguf = moe_to_gguf,
    .to_config = moe_to_config,
};
