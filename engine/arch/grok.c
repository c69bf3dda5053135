/* grok.c - Grok 1 (github.com/xai-org/grok-1, model.py) and Grok 2: pre-norms and post-norms, soft caps of scores,
 * router logits and logits, scales of embeddings and logits. Grok 2 has a dense feed-forward part in parallel with its
 * experts, scores that grow with the position after their cap, and a large RoPE base.
 *
 * Grok 2 was published for SGLang (python/sglang/srt/models/grok.py), which we follow where llama.cpp differs: an
 * expert's weight is its share of the softmax over all experts, router logits are capped, and "rope_type": "original"
 * means no scaling. A GGUF file's keys are taken literally: one with YaRN gets YaRN. Folders whose matrices are split
 * for several GPUs, like the published one, must be merged with other tools. */
#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

#define LAYER "model.layers.{}."
#define EXPERTS LAYER "block_sparse_moe."
#define OLD_EXPERTS LAYER "moe_block."

static const struct pp_arch_name names[] = {
    {.hf = LAYER "pre_attn_norm", .gguf = "blk.{}.attn_norm"},
    {.hf = LAYER "post_attn_norm", .gguf = "blk.{}.attn_output_norm"},
    {.hf = LAYER "pre_moe_norm", .gguf = "blk.{}.ffn_norm"},
    {.hf = LAYER "post_moe_norm", .gguf = "blk.{}.post_ffw_norm"},
    {.hf = LAYER "post_moe_norm", .gguf = "blk.{}.layer_output_norm"}, /* in early files of Grok 1 */
    {.hf = EXPERTS "gate", .gguf = "blk.{}.ffn_gate_inp"},
    {.hf = EXPERTS "experts.{}.w1", .gguf = "blk.{}.ffn_gate.{}"},
    {.hf = EXPERTS "experts.{}.w2", .gguf = "blk.{}.ffn_down.{}"},
    {.hf = EXPERTS "experts.{}.w3", .gguf = "blk.{}.ffn_up.{}"},
    /* Folders of Grok 1: */
    {.hf = LAYER "attn.q_proj", .gguf = "blk.{}.attn_q", .read_only = true},
    {.hf = LAYER "attn.k_proj", .gguf = "blk.{}.attn_k", .read_only = true},
    {.hf = LAYER "attn.v_proj", .gguf = "blk.{}.attn_v", .read_only = true},
    {.hf = LAYER "attn.o_proj", .gguf = "blk.{}.attn_output", .read_only = true},
    {.hf = OLD_EXPERTS "gate", .gguf = "blk.{}.ffn_gate_inp", .read_only = true},
    {.hf = OLD_EXPERTS "experts.{}.linear", .gguf = "blk.{}.ffn_gate.{}", .read_only = true},
    {.hf = OLD_EXPERTS "experts.{}.linear_v", .gguf = "blk.{}.ffn_up.{}", .read_only = true},
    {.hf = OLD_EXPERTS "experts.{}.linear_1", .gguf = "blk.{}.ffn_down.{}", .read_only = true},
    {.hf = NULL},
};

static const char *const classes[] = {"Grok1ForCausalLM", "Grok1ModelForCausalLM", "GrokForCausalLM", "grok-1", "grok",
                                      "grok1", NULL};

/* Grok 1's constants. */
static const struct pp_arch_default defaults[] = {
    {.json = "{\"rms_norm_eps\": 1e-5, \"embedding_multiplier_scale\": 78.38367176906169,"
             "\"output_multiplier_scale\": 0.5773502691896257, \"attn_logit_softcapping\": 30.0,"
             "\"router_logit_softcapping\": 30.0, \"num_experts_per_tok\": 2, \"max_position_embeddings\": 8192}"},
    {.json = NULL},
};

static const struct pp_expert_keys keys = {
    .n = "num_local_experts", .n_used = "num_experts_per_tok", .n_ff = "moe_intermediate_size"};
static const struct pp_expert_keys old_keys = {.n = "num_experts", .n_used = "num_experts_per_tok"};

static enum pp_code read_floats(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const struct {
        const char *key;
        float *v;
    } floats[] = {
        {"embedding_multiplier_scale", &hp->embd_scale}, {"output_multiplier_scale", &hp->logit_scale},
        {"attn_output_multiplier", &hp->attn_scale}, {"attn_logit_softcapping", &hp->attn_softcap},
        {"max_attn_value", &hp->attn_softcap}, {"router_logit_softcapping", &hp->router_softcap},
        {"final_logit_softcapping", &hp->final_softcap},
    };
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < sizeof floats / sizeof *floats && !code; i++)
        code = pp_config_float(config, floats[i].key, floats[i].v, err);
    return code;
}

/* YaRN's parameters are on the top level. "original" means no scaling, and SGLang's YaRN leaves the magnitude alone. */
static enum pp_code read_yarn(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const char *type = cJSON_GetStringValue(pp_json_member(config, "rope_type"));
    float beyond = 1;
    if (!type || strcmp(type, "original") == 0)
        return PP_OK;
    if (strcmp(type, "yarn") != 0 && strcmp(type, "yarn_linear") != 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: rope_type \"%.40s\" is not supported; original and yarn "
                       "are", type);
    hp->rope_scaling = PP_ROPE_YARN;
    hp->rope_orig_ctx = hp->n_ctx_train;
    hp->rope_beta_fast = 32;
    hp->rope_beta_slow = hp->rope_attn_factor = 1;
    enum pp_code code = pp_config_float(config, "scaling_factor", &hp->rope_factor, err);
    if (!code)
        code = pp_config_float(config, "beta_fast", &hp->rope_beta_fast, err);
    if (!code)
        code = pp_config_float(config, "beta_slow", &hp->rope_beta_slow, err);
    if (!code)
        code = pp_config_float(config, "extrapolation_factor", &beyond, err);
    if (!code && beyond != 1.0f)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: extrapolation_factor is %g; 1 is supported",
                       (double)beyond);
    return code ? code : pp_config_int(config, "original_max_position_embeddings", &hp->rope_orig_ctx, err);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const char *const fns[] = {"gelu", "gelu_new", "gelu_pytorch_tanh", NULL};
    const bool old = !pp_json_member(config, "num_local_experts");
    enum pp_code code = pp_config_activation(config, "hidden_act", fns, err);
    if (!code)
        code = pp_config_experts(config, old ? &old_keys : &keys, hp, err);
    hp->expert_no_renorm = true;
    hp->attn_scale = 1.0f / sqrtf((float)(hp->head_dim > 0 ? hp->head_dim : 1));
    hp->dense_parallel = pp_config_flag(config, "residual_moe", false);
    hp->rope_dim /= pp_config_flag(config, "rope_rotate_half_dims", false) ? 2 : 1;
    if (!code)
        code = read_floats(config, hp, err);
    if (!code)
        code = pp_config_int(config, "attn_temperature_len", &hp->attn_log_length, err);
    hp->attn_log_length = hp->attn_log_length > 0 ? hp->attn_log_length : 0; /* -1: none */
    return code ? code : read_yarn(config, hp, err);
}

/* Keys that early files of Grok 1 lack. */
static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    const struct {
        const char *key;
        float *v, otherwise;
    } floats[] = {
        {"grok.embedding_scale", &hp->embd_scale, 78.38367176906169f},
        {"grok.logit_scale", &hp->logit_scale, 0.5773502691896257f},
        {"grok.attention.output_scale", &hp->attn_scale, 0.08838834764831845f},
        {"grok.attn_logit_softcapping", &hp->attn_softcap, 30},
        {"grok.router_logit_softcapping", &hp->router_softcap, 30},
    };
    double v;
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++)
        *floats[i].v = pp_gguf_float(g, floats[i].key, &v) ? (float)v : floats[i].otherwise;
    if (hp->rope_scaling == PP_ROPE_YARN && !pp_gguf_has(g, "grok.rope.scaling.yarn_beta_fast"))
        hp->rope_beta_fast = 8;
    if (pp_gguf_float(g, "grok.rope.scaling.yarn_ext_factor", &v) && v != 1)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "metadata grok.rope.scaling.yarn_ext_factor is %g; 1 is supported", v);
    if (!pp_gguf_int(g, "grok.attention.temperature_length", &hp->attn_log_length) || hp->attn_log_length < 0)
        hp->attn_log_length = 0;
    return PP_OK;
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    if (hp->attn_log_length)
        pp_gguf_add_u32(w, "grok.attention.temperature_length", (uint32_t)hp->attn_log_length);
    if (hp->rope_scaling == PP_ROPE_YARN)
        pp_gguf_add_f32(w, "grok.rope.scaling.yarn_ext_factor", 1);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put_experts(hp, &keys, config);
    pp_config_put_text(config, "hidden_act", "gelu");
    cJSON_AddBoolToObject(config, "residual_moe", hp->dense_parallel);
    cJSON_AddBoolToObject(config, "rope_rotate_half_dims", hp->rope_dim < hp->head_dim);
    cJSON_DeleteItemFromObjectCaseSensitive(config, "partial_rotary_factor");
    pp_config_put_float(config, "embedding_multiplier_scale", hp->embd_scale);
    pp_config_put_float(config, "output_multiplier_scale", hp->logit_scale);
    pp_config_put_float(config, "attn_output_multiplier", hp->attn_scale);
    pp_config_put_float(config, "attn_logit_softcapping", hp->attn_softcap);
    pp_config_put_float(config, "router_logit_softcapping", hp->router_softcap);
    if (hp->final_softcap != 0.0f)
        pp_config_put_float(config, "final_logit_softcapping", hp->final_softcap);
    pp_config_put(config, "attn_temperature_len", hp->attn_log_length ? hp->attn_log_length : -1);
}

const struct pp_arch pp_arch_grok = {
    .name = "grok",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .gguf_default_no_renorm = true,
    .gguf_output_scale = true,
    .decoder = {.fn = PP_FN_GELU_TANH, .post_norm = true, .attn_post_norm = "attn_output_norm",
                .ffn_post_norm = "layer_output_norm"},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
