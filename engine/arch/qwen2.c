/* qwen2.c - Qwen 1.5, 2 and 2.5 (arXiv 2407.10671): Llama with biases of q, k and v. Of Qwen 2 VL and 2.5 VL the
 * language model; for text the three numbers of a position are equal. MiMo, without its multi-token prediction. Qwen
 * 1.5 MoE and 2 MoE, with a shared expert weighted by a sigmoid. And the first Qwen (arXiv 2309.16609), with a fused
 * qkv. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

static const char *const other_names[] = {"qwen2vl", "qwen25vl", NULL}; /* the latter in ollama's files */
static const char *const classes[] = {
    "Qwen2ForCausalLM", "Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration", "qwen2", "qwen2_vl",
    "qwen2_5_vl", "qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text", "MiMoForCausalLM", "mimo", NULL};
static const char *const others[] = {"visual.", "model.visual.", "model.mtp_layers.", NULL}; /* the last ones MiMo's */
static const struct pp_arch_parts parts = {
    .model_type = "qwen2", .prefixes = pp_qwen_prefixes, .others = others};

static enum pp_code from_config(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    return code ? code : pp_config_qwen_window(config, hp, err);
}

#define USUAL_VL "{\"num_key_value_heads\": 8, \"rms_norm_eps\": 1e-5, \"rope_theta\": 1000000.0}"

static const struct pp_arch_default defaults[] = {
    {"qwen2_vl", NULL, USUAL_VL},
    {"qwen2_vl_text", NULL, USUAL_VL},
    {"qwen2_5_vl", NULL, USUAL_VL},
    {"qwen2_5_vl_text", NULL, USUAL_VL},
    {"qwen2_5_omni_text", NULL, "{\"num_key_value_heads\": 4, \"rope_theta\": 1000000.0}"},
    {.json = "{\"num_key_value_heads\": 32, \"max_position_embeddings\": 32768}"},
    {.json = NULL},
};

const struct pp_arch pp_arch_qwen2 = {
    .name = "qwen2",
    .other_names = other_names,
    .hf_classes = classes,
    .names = pp_common_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .from_config = from_config,
    .defaults = defaults,
    .parts = &parts,
    .to_config = pp_config_put_qwen_window,
};

/* --- the mixture ------------------------------------------------------------------------------------------------- */

#define SHARED "model.layers.{}.mlp.shared_expert"

static const struct pp_arch_name moe_names[] = {
    {.hf = SHARED ".gate_proj", .gguf = "blk.{}.ffn_gate_shexp"},
    {.hf = SHARED ".up_proj", .gguf = "blk.{}.ffn_up_shexp"},
    {.hf = SHARED ".down_proj", .gguf = "blk.{}.ffn_down_shexp"},
    {.hf = SHARED "_gate", .gguf = "blk.{}.ffn_gate_inp_shexp", .form = PP_HF_ONE_ROW},
    {.hf = NULL},
};

static const char *const moe_classes[] = {"Qwen2MoeForCausalLM", "qwen2_moe", NULL};

static const struct pp_expert_keys expert_keys = {
    .n = "num_experts", .n_used = "num_experts_per_tok", .n_ff = "moe_intermediate_size",
    .shared_n_ff = "shared_expert_intermediate_size", .norm_topk = "norm_topk_prob"};

static enum pp_code moe_from_config(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = from_config(config, hp, err);
    if (!code)
        code = pp_config_experts(config, &expert_keys, hp, err);
    return code ? code : pp_config_qwen_dense(config, hp, err);
}

static enum pp_code moe_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)err;
    if (!pp_gguf_has(g, "qwen2moe.expert_feed_forward_length") && hp->n_expert_used > 0)
        hp->n_ff_expert = hp->n_ff / hp->n_expert_used;
    return PP_OK;
}

static void moe_to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    pp_config_put_qwen_window(hp, config);
    pp_config_put_experts(hp, &expert_keys, config);
    pp_config_put_qwen_dense(hp, config);
}

static const struct pp_arch_default moe_defaults[] = {
    {.json = "{\"num_key_value_heads\": 16, \"max_position_embeddings\": 32768, \"num_experts\": 60,"
             "\"num_experts_per_tok\": 4, \"moe_intermediate_size\": 1408}"},
    {.json = NULL},
};

const struct pp_arch pp_arch_qwen2moe = {
    .name = "qwen2moe",
    .hf_classes = moe_classes,
    .names = moe_names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .gguf_default_no_renorm = true,
    .from_config = moe_from_config,
    .from_gguf = moe_from_gguf,
    .defaults = moe_defaults,
    .to_config = moe_to_config,
};

/* --- the first one ---------------------------------------------------------------------------------------------- */

#define FIRST(hf_name, gguf_name) {.hf = "transformer.h.{}." hf_name, .gguf = "blk.{}." gguf_name}

static const struct pp_arch_name first_names[] = {
    {.hf = "transformer.wte", .gguf = "token_embd"},
    {.hf = "transformer.ln_f", .gguf = "output_norm"},
    {.hf = "lm_head", .gguf = "output"},
    FIRST("ln_1", "attn_norm"),
    FIRST("attn.c_attn", "attn_qkv"),
    FIRST("attn.c_proj", "attn_output"),
    FIRST("ln_2", "ffn_norm"),
    FIRST("mlp.w2", "ffn_gate"),
    FIRST("mlp.w1", "ffn_up"),
    FIRST("mlp.c_proj", "ffn_down"),
    {.hf = NULL},
};
static const char *const first_classes[] = {"QWenLMHeadModel", "qwen", NULL};

/* intermediate_size counts gate and up together. Contexts are limited to seq_length, beyond which scores and
 * frequencies would change (use_logn_attn, use_dynamic_ntk). */
static enum pp_code first_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_int(config, "seq_length", &hp->n_ctx_train, err);
    hp->n_ff /= 2;
    if (!code)
        code = pp_config_float(config, "rotary_emb_base", &hp->rope_base, err);
    return code ? code : pp_config_float(config, "layer_norm_epsilon", &hp->norm_eps, err);
}

static enum pp_code first_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g, (void)err;
    hp->n_ff /= 2;
    return PP_OK;
}

static void first_to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put(config, "intermediate_size", 2 * hp->n_ff);
    pp_config_put(config, "seq_length", hp->n_ctx_train);
    pp_config_put(config, "kv_channels", hp->head_dim);
    pp_config_put_float(config, "rotary_emb_base", hp->rope_base);
    cJSON_AddTrueToObject(config, "no_bias");
}

const struct pp_arch pp_arch_qwen = {
    .name = "qwen",
    .hf_classes = first_classes,
    .names = first_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .gguf_doubles_ff = true,
    .decoder = {.fused_qkv = true},
    .from_config = first_from_config,
    .from_gguf = first_from_gguf,
    .to_config = first_to_config,
    .hf_eps = "layer_norm_epsilon",
};
