/* step3.c - the language model of Step 3 (arXiv 2507.19427): multi-matrix factorisation attention (arXiv 2412.19255),
 * that is, one KV head, and queries from a low-rank pair with a norm in between; experts with softmax weights and a
 * shared expert. Only pippin makes GGUF files of it. */
#include <cjson/cJSON.h>
#include <stdlib.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

#define LAYER "model.layers.{}."

static const struct pp_arch_name names[] = {
    {.hf = LAYER "self_attn.q_proj", .gguf = "blk.{}.attn_q_a"},
    {.hf = LAYER "self_attn.inter_norm", .gguf = "blk.{}.attn_q_a_norm"},
    {.hf = LAYER "self_attn.wq", .gguf = "blk.{}.attn_q_b"},
    {.hf = LAYER "moe.gate", .gguf = "blk.{}.ffn_gate_inp"},
    {.hf = LAYER "moe.gate_proj", .gguf = "blk.{}.ffn_gate_exps"},
    {.hf = LAYER "moe.up_proj", .gguf = "blk.{}.ffn_up_exps"},
    {.hf = LAYER "moe.down_proj", .gguf = "blk.{}.ffn_down_exps"},
    {.hf = LAYER "share_expert.gate_proj", .gguf = "blk.{}.ffn_gate_shexp"},
    {.hf = LAYER "share_expert.up_proj", .gguf = "blk.{}.ffn_up_shexp"},
    {.hf = LAYER "share_expert.down_proj", .gguf = "blk.{}.ffn_down_shexp"},
    {.hf = NULL},
};
static const char *const classes[] = {"Step3TextForCausalLM", "step3_text", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 128815, \"hidden_size\": 7168, \"intermediate_size\": 18432, \"num_hidden_layers\": 61,"
             "\"num_attention_heads\": 64, \"num_attention_groups\": 1, \"head_dim\": 256, \"share_q_dim\": 2048,"
             "\"moe_num_experts\": 48, \"moe_top_k\": 3, \"moe_intermediate_size\": 5120, \"share_expert_dim\": 5120,"
             "\"norm_expert_weight\": false, \"rms_norm_eps\": 1e-5, \"rope_theta\": 500000,"
             "\"max_position_embedding\": 65536}"},
    {.json = NULL},
};
static const struct pp_expert_keys expert_keys = {
    .n = "moe_num_experts", .n_used = "moe_top_k", .n_ff = "moe_intermediate_size", .shared_n_ff = "share_expert_dim",
    .norm_topk = "norm_expert_weight"};

static enum pp_code check_heads(const struct pp_hparams *hp, struct pp_error *err)
{
    if (hp->n_head_kv == 1 && hp->q_lora_rank >= 1 && hp->q_lora_rank <= 1 << 16)
        return PP_OK;
    return pp_fail(err, PP_ERR_UNSUPPORTED, "a model of this family with %lld heads of keys, and queries made of %lld "
                   "values, is not supported", (long long)hp->n_head_kv, (long long)hp->q_lora_rank);
}

/* moe_layers_enum, "4,5,6" or a list: the layers with experts; by default 4 to 59. */
static enum pp_code mixtures_from(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum { FIRST = 4, END = 60 };
    const cJSON *said = pp_json_member(config, "moe_layers_enum"), *item;
    const char *text = cJSON_GetStringValue(said);
    const cJSON *list = cJSON_IsArray(said) ? said : NULL;
    pp_layers_every(hp, 1, PP_LAYER_DENSE);
    for (int64_t l = FIRST; l < END && l < hp->n_layer && !text && !list; l++)
        hp->layer[l] &= (uint8_t)~PP_LAYER_DENSE;
    cJSON_ArrayForEach(item, list)
    {
        const double l = cJSON_IsNumber(item) ? item->valuedouble : -1;
        if (!(l >= 0 && l < (double)hp->n_layer))
            return pp_fail(err, PP_ERR_FORMAT, "config.json: moe_layers_enum does not name layers");
        hp->layer[(int64_t)l] &= (uint8_t)~PP_LAYER_DENSE;
    }
    for (char *end; text && *text; text = *end == ',' ? end + 1 : end) {
        const long l = strtol(text, &end, 10);
        if (end == text || l < 0 || l >= hp->n_layer || (*end && *end != ','))
            return pp_fail(err, PP_ERR_FORMAT, "config.json: moe_layers_enum does not name layers");
        hp->layer[l] &= (uint8_t)~PP_LAYER_DENSE;
    }
    return PP_OK;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    hp->n_head_kv = 1;
    enum pp_code code = pp_config_int(config, "num_attention_groups", &hp->n_head_kv, err);
    if (!code)
        code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (!code)
        code = pp_config_int(config, "share_q_dim", &hp->q_lora_rank, err);
    if (!code)
        code = pp_config_int(config, "max_position_embedding", &hp->n_ctx_train, err);
    if (!code)
        code = pp_config_experts(config, &expert_keys, hp, err);
    if (!code)
        code = mixtures_from(config, hp, err);
    return code ? code : check_heads(hp, err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    struct pp_buf text = {0};
    pp_config_put_experts(hp, &expert_keys, config);
    cJSON_DeleteItemFromObjectCaseSensitive(config, "num_key_value_heads");
    cJSON_DeleteItemFromObjectCaseSensitive(config, "max_position_embeddings");
    pp_config_put(config, "num_attention_groups", hp->n_head_kv);
    pp_config_put(config, "share_q_dim", hp->q_lora_rank);
    pp_config_put(config, "max_position_embedding", hp->n_ctx_train);
    for (int64_t l = 0; l < hp->n_layer; l++)
        if (!(hp->layer[l] & PP_LAYER_DENSE))
            pp_buf_fmt(&text, "%s%d", text.len ? "," : "", (int)l);
    pp_config_put_text(config, "moe_layers_enum", text.len ? pp_buf_cstr(&text) : "");
    pp_buf_free(&text);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    pp_gguf_int(g, "step3_text.attention.q_lora_rank", &hp->q_lora_rank);
    return check_heads(hp, err);
}

const struct pp_arch pp_arch_step3 = {
    .name = "step3_text",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .gguf_default_no_renorm = true,
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_config = to_config,
};
