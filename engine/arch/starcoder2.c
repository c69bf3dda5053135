/* starcoder2.c - StarCoder 2 (arXiv 2402.19173): LayerNorm, GELU without a gate, biases everywhere. The first
 * StarCoder (arXiv 2305.06161): GPT-2 with multi-query attention. CodeShell: the same with grouped queries and RoPE. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/hparams.h"

static const struct pp_arch_name names[] = {
    {.hf = "model.layers.{}.mlp.c_fc", .gguf = "blk.{}.ffn_up"},
    {.hf = "model.layers.{}.mlp.c_proj", .gguf = "blk.{}.ffn_down"},
    {.hf = NULL},
};

static const char *const classes[] = {"Starcoder2ForCausalLM", "starcoder2", NULL};

static enum pp_code from_config(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    hp->norm_eps = 1e-5f;
    enum pp_code code = pp_config_float(config, "norm_epsilon", &hp->norm_eps, err);
    if (!code)
        code = pp_config_activation(config, "hidden_act", pp_gelu_tanh_names, err);
    return code ? code : pp_config_window(config, 0, hp, err);
}

static void to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    cJSON_AddBoolToObject(config, "use_bias", true);
    if (hp->window)
        pp_config_put(config, "sliding_window", hp->window);
    else
        cJSON_AddNullToObject(config, "sliding_window");
}

static const struct pp_arch_default defaults[] = {
    {.json = "{\"num_key_value_heads\": 2, \"max_position_embeddings\": 4096, \"tie_word_embeddings\": true}"},
    {.json = NULL},
};

const struct pp_arch pp_arch_starcoder2 = {
    .name = "starcoder2",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .decoder = {.layer_norm = true, .norm_bias = true, .ungated = true, .fn = PP_FN_GELU_TANH},
    .from_config = from_config,
    .defaults = defaults,
    .to_config = to_config,
    .hf_eps = "norm_epsilon",
};

/* --- the first one ---------------------------------------------------------------------------------------------- */

#define LAYER(hf_name, gguf_name) {.hf = "transformer.h.{}." hf_name, .gguf = "blk.{}." gguf_name}

static const struct pp_arch_name first_names[] = {
    {.hf = "transformer.wte", .gguf = "token_embd"},
    {.hf = "transformer.wpe", .gguf = "position_embd"},
    {.hf = "transformer.ln_f", .gguf = "output_norm"},
    {.hf = "lm_head", .gguf = "output"},
    LAYER("ln_1", "attn_norm"),
    LAYER("attn.c_attn", "attn_qkv"),
    LAYER("attn.c_proj", "attn_output"),
    LAYER("ln_2", "ffn_norm"),
    LAYER("mlp.c_fc", "ffn_up"),
    LAYER("mlp.c_proj", "ffn_down"),
    {.hf = NULL},
};
static const char *const first_classes[] = {"GPTBigCodeForCausalLM", "gpt_bigcode", NULL};
static const struct pp_arch_default first_defaults[] = {
    {.json = "{\"vocab_size\": 50257, \"n_embd\": 768, \"n_layer\": 12, \"n_head\": 12,"
             "\"tie_word_embeddings\": true}"},
    {.json = NULL},
};

static enum pp_code first_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    hp->n_head_kv = 1;
    if (!pp_config_flag(config, "multi_query", true))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: multi_query is false, which pippin does not support");
    return pp_config_gpt2(config, hp, err);
}

static void first_to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put_text(config, "activation_function",
                       hp->activation == PP_ACTIVATION_GELU ? "gelu" : "gelu_pytorch_tanh");
    pp_config_put(config, "n_embd", hp->n_embd);
    pp_config_put(config, "n_layer", hp->n_layer);
    pp_config_put(config, "n_head", hp->n_head);
    pp_config_put(config, "n_positions", hp->n_ctx_train);
    pp_config_put(config, "n_inner", hp->n_ff);
    cJSON_AddTrueToObject(config, "multi_query");
}

const struct pp_arch pp_arch_starcoder = {
    .name = "starcoder",
    .hf_classes = first_classes,
    .names = first_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .decoder = {.layer_norm = true, .norm_bias = true, .fused_qkv = true, .ungated = true, .fn = PP_FN_GELU_TANH,
                .positions = PP_POS_LEARNED},
    .from_config = first_from_config,
    .defaults = first_defaults,
    .to_config = first_to_config,
    .hf_eps = "layer_norm_epsilon",
};

/* --- CodeShell ---------------------------------------------------------------------------------------------------- */

static const char *const shell_classes[] = {"CodeShellForCausalLM", "codeshell", NULL};

static enum pp_code shell_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    if (pp_config_flag(config, "group_query_attention", true) &&
        pp_config_int(config, "num_query_groups", &hp->n_head_kv, err))
        return err->code;
    return pp_config_gpt2(config, hp, err);
}

static void shell_to_config(const struct pp_hparams *hp, cJSON *config)
{
    first_to_config(hp, config);
    cJSON_DeleteItemFromObjectCaseSensitive(config, "multi_query");
    cJSON_AddTrueToObject(config, "group_query_attention");
    pp_config_put(config, "num_query_groups", hp->n_head_kv);
    pp_config_put_text(config, "position_embedding_type", "rope");
}

const struct pp_arch pp_arch_codeshell = {
    .name = "codeshell",
    .hf_classes = shell_classes,
    .names = first_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .decoder = {.layer_norm = true, .norm_bias = true, .fused_qkv = true, .ungated = true, .fn = PP_FN_GELU_TANH},
    .from_config = shell_from_config,
    .to_config = shell_to_config,
    .hf_eps = "layer_norm_epsilon",
};
