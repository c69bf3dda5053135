/* falcon.c - Falcon (arXiv 2311.16867): attention and feed-forward part in parallel after one LayerNorm, or each after
 * its own (attn_norm_2 is attention's), and multi-query or grouped-query attention with a fused qkv, in folders
 * ordered by group. Falcon RW has ALiBi instead of RoPE, sequential parts, and biases. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

#define LAYER "transformer.h.{}."

static const struct pp_arch_name names[] = {
    {.hf = "transformer.word_embeddings", .gguf = "token_embd"},
    {.hf = "transformer.ln_f", .gguf = "output_norm"},
    {.hf = "lm_head", .gguf = "output"},
    {.hf = LAYER "ln_mlp", .gguf = "blk.{}.attn_norm", .two_norms = true},
    {.hf = LAYER "input_layernorm", .gguf = "blk.{}.attn_norm"},
    {.hf = LAYER "ln_attn", .gguf = "blk.{}.attn_norm_2"},
    {.hf = LAYER "post_attention_layernorm", .gguf = "blk.{}.ffn_norm"},
    {.hf = LAYER "self_attention.query_key_value", .gguf = "blk.{}.attn_qkv", .form = PP_HF_QKV_FUSED_BY_GROUP},
    {.hf = LAYER "self_attention.dense", .gguf = "blk.{}.attn_output"},
    {.hf = LAYER "mlp.dense_h_to_4h", .gguf = "blk.{}.ffn_up"},
    {.hf = LAYER "mlp.dense_4h_to_h", .gguf = "blk.{}.ffn_down"},
    {.hf = NULL},
};

/* The first folders of the 7B and the 40B have model_type "RefinedWeb" and the like. */
static const char *const classes[] = {"FalconForCausalLM", "falcon", "RWForCausalLM", "RefinedWeb", "RefinedWebModel",
                                      NULL};

static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 65024, \"hidden_size\": 4544, \"tie_word_embeddings\": true}"},
    {"falcon", "FalconForCausalLM", "{\"num_hidden_layers\": 32, \"num_attention_heads\": 71}"},
    {.json = NULL},
};

/* Without new_decoder_architecture (the 40B's) there is either one KV head or as many as query heads. */
static enum pp_code read_heads(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const char *key = pp_json_member(config, "num_kv_heads") ? "num_kv_heads" : "n_head_kv";
    const bool both = pp_config_flag(config, "new_decoder_architecture", pp_json_member(config, "n_head_kv"));
    int64_t n_norms = both ? 2 : 1;
    enum pp_code code = pp_config_int(config, "num_ln_in_parallel_attn", &n_norms, err);
    hp->two_norms = both && n_norms == 2;
    if (both)
        return code ? code : pp_config_int(config, key, &hp->n_head_kv, err);
    if (pp_config_flag(config, "multi_query", true))
        hp->n_head_kv = 1;
    return code;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = read_heads(config, hp, err);
    hp->norm_eps = 1e-5f;
    hp->parallel = pp_config_flag(config, "parallel_attn", true);
    if (pp_config_flag(config, "alibi", false))
        hp->alibi = 8;
    if (!code)
        code = pp_config_gelu(config, "activation", PP_ACTIVATION_GELU, hp, err);
    return code ? code : pp_config_float(config, "layer_norm_epsilon", &hp->norm_eps, err);
}

/* A key that only our files have. */
static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)err;
    hp->parallel = true;
    pp_gguf_bool(g, "falcon.use_parallel_residual", &hp->parallel);
    hp->alibi = pp_hparams_alibi(g, "falcon");
    return PP_OK;
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    const bool biases = pp_config_flag(config, "attention_bias", false);
    const bool groups = hp->two_norms || (hp->n_head_kv != 1 && hp->n_head_kv != hp->n_head);
    pp_config_put(config, "num_kv_heads", hp->n_head_kv);
    pp_config_put(config, "ffn_hidden_size", hp->n_ff);
    pp_config_put_text(config, "activation", hp->activation == PP_ACTIVATION_GELU_TANH ? "gelu_pytorch_tanh" : "gelu");
    cJSON_AddBoolToObject(config, "new_decoder_architecture", groups);
    cJSON_AddBoolToObject(config, "multi_query", hp->n_head_kv == 1);
    cJSON_AddBoolToObject(config, "parallel_attn", hp->parallel);
    cJSON_AddBoolToObject(config, "bias", biases);
    cJSON_AddBoolToObject(config, "alibi", hp->alibi != 0.0f);
    if (groups)
        pp_config_put(config, "num_ln_in_parallel_attn", hp->two_norms ? 2 : 1);
}

const struct pp_arch pp_arch_falcon = {
    .name = "falcon",
    .hf_classes = classes,
    .names = names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .gguf_has_parallel_key = true,
    .decoder = {.layer_norm = true, .norm_bias = true, .fused_qkv = true, .ungated = true, .fn = PP_FN_GELU,
                .scaled_alibi = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_config = to_config,
    .hf_eps = "layer_norm_epsilon",
};
