/* jetmoe.c - JetMoE (arXiv 2404.07413): experts in the feed-forward part and in attention (decoder_head_mixture.c),
 * each with a bias for their sum. Only pippin makes GGUF files of it. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/hparams.h"
#include "engine/hparams_int.h"

#define HEADS "model.layers.{}.self_attention.experts."
#define FF "model.layers.{}.mlp."

static const struct pp_arch_name names[] = {
    {.hf = HEADS "router.layer", .gguf = "blk.{}.attn_gate_inp"},
    {.hf = HEADS "input_linear.weight", .gguf = "blk.{}.attn_q_exps.weight", .whole = true},
    {.hf = HEADS "output_linear.weight", .gguf = "blk.{}.attn_output_exps.weight", .whole = true},
    {.hf = HEADS "bias", .gguf = "blk.{}.attn_output.bias", .whole = true},
    {.hf = "model.layers.{}.self_attention.kv_proj.weight", .gguf = "blk.{}.attn_k.weight",
     .second = "blk.{}.attn_v.weight", .form = PP_HF_HALVES, .whole = true},
    {.hf = FF "router.layer", .gguf = "blk.{}.ffn_gate_inp"},
    {.hf = FF "input_linear.weight", .gguf = "blk.{}.ffn_gate_exps.weight", .second = "blk.{}.ffn_up_exps.weight",
     .form = PP_HF_HALVES, .whole = true},
    {.hf = FF "output_linear.weight", .gguf = "blk.{}.ffn_down_exps.weight", .whole = true},
    {.hf = FF "bias", .gguf = "blk.{}.ffn_output.bias", .whole = true},
    {.hf = NULL},
};
static const char *const classes[] = {"JetMoeForCausalLM", "jetmoe", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 32000, \"hidden_size\": 2048, \"intermediate_size\": 5632, \"num_hidden_layers\": 12,"
             "\"num_attention_heads\": 32, \"num_key_value_heads\": 16, \"kv_channels\": 128,"
             "\"max_position_embeddings\": 4096, \"num_local_experts\": 8, \"num_experts_per_tok\": 2,"
             "\"tie_word_embeddings\": true}"},
    {.json = NULL},
};
static const struct pp_expert_keys expert_keys = {.n = "num_local_experts", .n_used = "num_experts_per_tok",
                                                  .n_ff = "intermediate_size"};

/* Query head i of every expert uses KV head i. */
static enum pp_code finish(struct pp_hparams *hp, struct pp_error *err)
{
    hp->head_mixture = hp->heads_tiled = true;
    if (!hp->sizes_vary && hp->n_head == hp->n_expert_used * hp->n_head_kv)
        return PP_OK;
    return pp_fail(err, PP_ERR_FORMAT, "the model has %lld heads of queries, which are not %lld of keys for each of "
                   "%lld experts", (long long)hp->n_head, (long long)hp->n_head_kv, (long long)hp->n_expert_used);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "activation_function", pp_silu_names, err);
    if (!code)
        code = pp_config_experts(config, &expert_keys, hp, err);
    if (!code)
        code = pp_config_int(config, "kv_channels", &hp->head_dim, err);
    hp->rope_dim = hp->head_dim;
    if (!code)
        code = pp_check_range("num_experts_per_tok", hp->n_expert_used, 1, PP_MAX_EXPERTS_USED, err);
    if (!code)
        code = pp_check_range("num_key_value_heads", hp->n_head_kv, 1, 1 << 12, err);
    if (code)
        return code;
    hp->n_head = hp->n_expert_used * hp->n_head_kv; /* whatever num_attention_heads says */
    return finish(hp, err);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g;
    return finish(hp, err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put_experts(hp, &expert_keys, config);
    pp_config_put_text(config, "activation_function", "silu");
    pp_config_put(config, "kv_channels", hp->head_dim);
    cJSON_DeleteItemFromObjectCaseSensitive(config, "head_dim"); /* it is kv_channels here */
}

const struct pp_arch pp_arch_jetmoe = {
    .name = "jetmoe",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_config = to_config,
};
