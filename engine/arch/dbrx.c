/* dbrx.c - DBRX (databricks/dbrx-instruct; transformers, models/dbrx): LayerNorm without biases, clamped queries, keys
 * and values, and experts. Folders have one matrix with the rows of all experts of a layer; those of the down
 * projections are transposed. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/hparams.h"

#define LAYER "transformer.blocks.{}."

static const struct pp_arch_name names[] = {
    {.hf = "transformer.wte", .gguf = "token_embd"},
    {.hf = "transformer.norm_f", .gguf = "output_norm"},
    {.hf = "lm_head", .gguf = "output"},
    {.hf = LAYER "norm_attn_norm.norm_1", .gguf = "blk.{}.attn_norm"},
    {.hf = LAYER "norm_attn_norm.norm_2", .gguf = "blk.{}.attn_output_norm"},
    {.hf = LAYER "norm_attn_norm.attn.Wqkv", .gguf = "blk.{}.attn_qkv"},
    {.hf = LAYER "norm_attn_norm.attn.out_proj", .gguf = "blk.{}.attn_output"},
    {.hf = LAYER "ffn.router.layer", .gguf = "blk.{}.ffn_gate_inp"},
    {.hf = LAYER "ffn.experts.mlp.w1", .gguf = "blk.{}.ffn_gate_exps.weight", .form = PP_HF_EXPERTS_FLAT,
     .whole = true, .not_mlx = true},
    {.hf = LAYER "ffn.experts.mlp.v1", .gguf = "blk.{}.ffn_up_exps.weight", .form = PP_HF_EXPERTS_FLAT,
     .whole = true, .not_mlx = true},
    {.hf = LAYER "ffn.experts.mlp.w2", .gguf = "blk.{}.ffn_down_exps.weight", .form = PP_HF_EXPERTS_FLAT_TRANSPOSED,
     .whole = true, .not_mlx = true},
    {.hf = LAYER "ffn.experts.{}.w1", .gguf = "blk.{}.ffn_gate.{}", .mlx = true},
    {.hf = LAYER "ffn.experts.{}.v1", .gguf = "blk.{}.ffn_up.{}", .mlx = true},
    {.hf = LAYER "ffn.experts.{}.w2", .gguf = "blk.{}.ffn_down.{}", .mlx = true},
    {.hf = NULL},
};

static const char *const classes[] = {"DbrxForCausalLM", "dbrx", NULL};

/* The feed-forward width is in ffn_config; this one only satisfies the common reader. */
static const struct pp_arch_default defaults[] = {
    {.json = "{\"intermediate_size\": 1, \"max_seq_len\": 2048}"},
    {.json = NULL},
};

static const struct pp_expert_keys keys = {
    .n = "moe_num_experts", .n_used = "moe_top_k", .n_ff = "ffn_hidden_size"};

static enum pp_code read_attention(const cJSON *own, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_float(own, "clip_qkv", &hp->qkv_clamp, err);
    hp->n_head_kv = 1;
    if (!code)
        code = pp_config_int(own, "kv_n_heads", &hp->n_head_kv, err);
    return code ? code : pp_config_float(own, "rope_theta", &hp->rope_base, err);
}

static enum pp_code read_experts(const cJSON *own, struct pp_hparams *hp, struct pp_error *err)
{
    static const char norm_topk[] = "moe_normalize_expert_weights";
    const cJSON *fn = pp_json_member(own, "ffn_act_fn");
    const cJSON *power = pp_json_member(own, norm_topk);
    enum pp_code code = pp_config_activation(fn, "name", pp_silu_names, err);
    hp->n_expert = 4;
    hp->n_expert_used = 1;
    hp->n_ff = 3584;
    hp->expert_no_renorm = cJSON_IsNull(power);
    if (!code && cJSON_IsNumber(power) && power->valuedouble != 1)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s is %g; 1 and null are supported", norm_topk,
                       power->valuedouble);
    if (!code)
        code = pp_config_experts(own, &keys, hp, err);
    hp->n_ff = hp->n_ff_expert;
    return code;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = read_attention(pp_json_member(config, "attn_config"), hp, err);
    hp->norm_eps = 1e-5f;
    if (!code)
        code = read_experts(pp_json_member(config, "ffn_config"), hp, err);
    return code ? code : pp_config_int(config, "max_seq_len", &hp->n_ctx_train, err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    cJSON *attn = cJSON_AddObjectToObject(config, "attn_config"), *ffn = cJSON_AddObjectToObject(config, "ffn_config");
    static const char *const others[] = {"rope_theta", "intermediate_size", "hidden_act", "head_dim"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        cJSON_DeleteItemFromObjectCaseSensitive(config, others[i]);
    pp_config_put(config, "d_model", hp->n_embd);
    pp_config_put(config, "n_heads", hp->n_head);
    pp_config_put(config, "n_layers", hp->n_layer);
    pp_config_put(config, "max_seq_len", hp->n_ctx_train);
    pp_config_put(attn, "kv_n_heads", hp->n_head_kv);
    pp_config_put_float(attn, "rope_theta", hp->rope_base);
    if (hp->qkv_clamp != 0.0f)
        pp_config_put_float(attn, "clip_qkv", hp->qkv_clamp);
    pp_config_put_text(cJSON_AddObjectToObject(ffn, "ffn_act_fn"), "name", "silu");
    pp_config_put_experts(hp, &keys, ffn);
    if (hp->expert_no_renorm)
        cJSON_AddNullToObject(ffn, "moe_normalize_expert_weights");
    else
        pp_config_put(ffn, "moe_normalize_expert_weights", 1);
}

const struct pp_arch pp_arch_dbrx = {
    .name = "dbrx",
    .hf_classes = classes,
    .names = names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .decoder = {.layer_norm = true, .fused_qkv = true, .ffn_norm = "attn_output_norm"},
    .from_config = from_config,
    .to_config = to_config,
};
