/* mpt.c - MPT (MosaicML; transformers, models/mpt): ALiBi or learned positions, LayerNorm mostly without biases, a
 * fused qkv that may be clamped, and in some models norms over all queries and over all keys. */
#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/hparams.h"

#define LAYER "transformer.blocks.{}."

static const struct pp_arch_name names[] = {
    {.hf = "transformer.wte", .gguf = "token_embd"},
    {.hf = "transformer.wpe", .gguf = "position_embd"},
    {.hf = "transformer.norm_f", .gguf = "output_norm"},
    {.hf = "lm_head", .gguf = "output"},
    {.hf = LAYER "norm_1", .gguf = "blk.{}.attn_norm"},
    {.hf = LAYER "norm_2", .gguf = "blk.{}.ffn_norm"},
    {.hf = LAYER "attn.Wqkv", .gguf = "blk.{}.attn_qkv"},
    {.hf = LAYER "attn.q_ln", .gguf = "blk.{}.attn_q_norm"},
    {.hf = LAYER "attn.k_ln", .gguf = "blk.{}.attn_k_norm"},
    {.hf = LAYER "attn.out_proj", .gguf = "blk.{}.attn_output"},
    {.hf = LAYER "ffn.up_proj", .gguf = "blk.{}.ffn_up"},
    {.hf = LAYER "ffn.down_proj", .gguf = "blk.{}.ffn_down"},
    {.hf = NULL},
};

static const char *const classes[] = {"MptForCausalLM", "MPTForCausalLM", "mpt", NULL};

static const struct pp_arch_default defaults[] = {
    {.json = "{\"d_model\": 2048, \"n_heads\": 16, \"n_layers\": 24, \"vocab_size\": 50368, \"max_seq_len\": 2048,"
             "\"attn_config\": {}, \"tie_word_embeddings\": true}"},
    {.json = NULL},
};

static enum pp_code refuse(const char *what, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s, which pippin does not support", what);
}

static bool is_layer_norm(const cJSON *config)
{
    const cJSON *type = pp_json_member(config, "norm_type");
    const char *name = cJSON_IsString(type) ? type->valuestring : "layernorm";
    return strcmp(name, "layernorm") == 0 || strcmp(name, "low_precision_layernorm") == 0;
}

static enum pp_code read_attention(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *attn = pp_json_member(config, "attn_config");
    float most = 8;
    if (pp_config_flag(attn, "prefix_lm", false))
        return refuse("prefix_lm is true", err);
    if (pp_config_flag(attn, "rope", false))
        return refuse("rope is true", err);
    enum pp_code code = pp_config_float(attn, "alibi_bias_max", &most, err);
    if (!code)
        code = pp_config_float(attn, "clip_qkv", &hp->qkv_clamp, err);
    if (!code)
        code = pp_config_float(attn, "softmax_scale", &hp->attn_scale, err);
    if (!code)
        code = pp_config_int(attn, "kv_n_heads", &hp->n_head_kv, err);
    hp->alibi = pp_config_flag(attn, "alibi", true) ? most : 0;
    hp->qk_norm = pp_config_flag(attn, "qk_ln", false);
    if (!code && !hp->alibi && !pp_config_flag(config, "learned_pos_emb", true))
        code = refuse("there are no positions", err);
    return code;
}

/* logit_scale: a number, or "inv_sqrt_d_model". */
static enum pp_code read_logit_scale(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *scale = pp_json_member(config, "logit_scale");
    if (!cJSON_IsString(scale))
        return pp_config_float(config, "logit_scale", &hp->logit_scale, err);
    if (strcmp(scale->valuestring, "inv_sqrt_d_model") != 0)
        return refuse("logit_scale is not a number", err);
    hp->logit_scale = 1 / sqrtf((float)hp->n_embd);
    return PP_OK;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    float times = 4;
    hp->norm_eps = 1e-5f;
    if (!is_layer_norm(config))
        return refuse("norm_type is not a LayerNorm", err);
    enum pp_code code = read_attention(config, hp, err);
    if (!code)
        code = pp_config_float(config, "layer_norm_epsilon", &hp->norm_eps, err);
    if (!code)
        code = pp_config_int(config, "max_seq_len", &hp->n_ctx_train, err);
    if (!code)
        code = pp_config_float(config, "expansion_ratio", &times, err);
    if (!code)
        code = read_logit_scale(config, hp, err);
    hp->n_ff = times > 0 && times < 1024 ? (int64_t)((float)hp->n_embd * times) : 0;
    return code;
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)err;
    hp->alibi = pp_hparams_alibi(g, "mpt");
    return PP_OK;
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    const bool biases = pp_config_flag(config, "attention_bias", false);
    cJSON *attn = cJSON_AddObjectToObject(config, "attn_config");
    pp_config_put(config, "d_model", hp->n_embd);
    pp_config_put(config, "n_heads", hp->n_head);
    pp_config_put(config, "n_layers", hp->n_layer);
    pp_config_put(config, "max_seq_len", hp->n_ctx_train);
    pp_config_put_float(config, "expansion_ratio", (float)hp->n_ff / (float)hp->n_embd);
    pp_config_put_text(config, "norm_type", "low_precision_layernorm");
    cJSON_AddBoolToObject(config, "no_bias", !biases);
    cJSON_AddBoolToObject(config, "learned_pos_emb", hp->alibi == 0.0f);
    cJSON_AddBoolToObject(attn, "alibi", hp->alibi != 0.0f);
    cJSON_AddBoolToObject(attn, "qk_ln", hp->qk_norm);
    if (hp->alibi != 0.0f)
        pp_config_put_float(attn, "alibi_bias_max", hp->alibi);
    if (hp->qkv_clamp != 0.0f)
        pp_config_put_float(attn, "clip_qkv", hp->qkv_clamp);
    if (hp->attn_scale != 0.0f)
        pp_config_put_float(attn, "softmax_scale", hp->attn_scale);
    if (hp->logit_scale != 0.0f)
        pp_config_put_float(config, "logit_scale", hp->logit_scale);
    if (hp->n_head_kv != hp->n_head) {
        pp_config_put_text(attn, "attn_type", "grouped_query_attention");
        pp_config_put(attn, "kv_n_heads", hp->n_head_kv);
    }
}

const struct pp_arch pp_arch_mpt = {
    .name = "mpt",
    .hf_classes = classes,
    .names = names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .decoder = {.layer_norm = true, .fused_qkv = true, .ungated = true, .fn = PP_FN_GELU,
                .positions = PP_POS_LEARNED_OR_ALIBI, .qk_norm = PP_QK_WHOLE_OPTIONAL},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_config = to_config,
    .hf_eps = "layer_norm_epsilon",
};
