/* granite.c - IBM's Granite 3 (transformers, models/granite, granitemoe, granitemoeshared): Llama with four
 * multipliers, of embeddings, scores, residual additions and logits; and its mixture of experts, some with a shared
 * expert. Tele-FLM, which has two of the multipliers. And HyperCLOVA X, which may have post-norms as well, and
 * multiplies logits instead of dividing them; only pippin makes GGUF files of that. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>

#include "engine/arch/families.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

static const char *const classes[] = {"GraniteForCausalLM", "granite", "TeleFLMForCausalLM", "TeleFLM", NULL};
static const struct pp_arch_default defaults[] = {
    {"TeleFLM", "TeleFLMForCausalLM", "{\"rms_norm_eps\": 1e-5}"},
    {.json = NULL},
};

static enum pp_code divide_logits(float by, struct pp_hparams *hp, struct pp_error *err)
{
    if (!(1.0f / by > 0) || !isfinite(1.0f / by))
        return pp_fail(err, PP_ERR_FORMAT, "the model says that its logits are divided by %g; that must be positive",
                       (double)by);
    hp->logit_scale = 1.0f / by;
    return PP_OK;
}

/* A multiplier. 0 is refused, since in hparams it means that there is none. */
static enum pp_code read_multiplier(const cJSON *config, const char *key, float *by, struct pp_error *err)
{
    const enum pp_code code = pp_config_float(config, key, by, err);
    if (!code && (!(*by > 0) || !isfinite(*by)))
        return pp_fail(err, PP_ERR_FORMAT, "config.json: %s is %g; it must be positive", key, (double)*by);
    return code;
}

enum pp_code pp_granite_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    float divisor = 1;
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    hp->attn_scale = hp->embd_scale = hp->residual_scale = 1;
    if (!code)
        code = read_multiplier(config, "attention_multiplier", &hp->attn_scale, err);
    if (!code)
        code = read_multiplier(config, "embedding_multiplier", &hp->embd_scale, err);
    if (!code)
        code = read_multiplier(config, "residual_multiplier", &hp->residual_scale, err);
    if (!code)
        code = pp_config_float(config, "logits_scaling", &divisor, err);
    return code ? code : divide_logits(divisor, hp, err);
}

/* With use_mup, Tele-FLM multiplies embeddings and logits; the latter by a number relative to the width of the small
 * model that its hyperparameters were tuned on. */
static enum pp_code flm_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    float out = 1, scale = 1;
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    hp->attn_scale = 1.0f / sqrtf((float)hp->head_dim);
    hp->embd_scale = hp->residual_scale = 1;
    if (code || !pp_config_flag(config, "use_mup", false))
        return code ? code : divide_logits(1, hp, err);
    code = read_multiplier(config, "input_mult", &hp->embd_scale, err);
    if (!code)
        code = pp_config_float(config, "output_mult", &out, err);
    if (!code)
        code = pp_config_float(config, "mup_scale_factor", &scale, err);
    return code ? code : divide_logits(scale / out, hp, err);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    return pp_arch_is_kind(config, "TeleFLM", "TeleFLMForCausalLM") ? flm_from_config(config, hp, err)
                                                                    : pp_granite_from_config(config, hp, err);
}

/* The key logit_scale divides logits. */
enum pp_code pp_granite_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    char key[128];
    bool rotated = true;
    snprintf(key, sizeof key, "%s.rope.scaling.finetuned", hp->arch); /* is used as a flag for that */
    pp_gguf_bool(g, key, &rotated);
    if (!rotated)
        pp_layers_every(hp, 1, PP_LAYER_UNROTATED);
    return hp->logit_scale != 0.0f ? divide_logits(hp->logit_scale, hp, err) : PP_OK;
}

void pp_granite_to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    const float attn = hp->attn_scale != 0.0f ? hp->attn_scale : 1.0f / sqrtf((float)hp->head_dim);
    pp_config_put_float(config, "attention_multiplier", attn);
    pp_config_put_float(config, "embedding_multiplier", hp->embd_scale != 0.0f ? hp->embd_scale : 1);
    pp_config_put_float(config, "residual_multiplier", hp->residual_scale != 0.0f ? hp->residual_scale : 1);
    pp_config_put_float(config, "logits_scaling", hp->logit_scale != 0.0f ? 1.0f / hp->logit_scale : 1);
}

const struct pp_arch pp_arch_granite = {
    .name = "granite",
    .hf_classes = classes,
    .names = pp_interleaved_names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .from_config = from_config,
    .from_gguf = pp_granite_from_gguf,
    .gguf_divides_logits = true,
    .to_config = pp_granite_to_config,
};

/* --- experts ---------------------------------------------------------------------------------------------------- */

static const struct pp_arch_name moe_names[] = {
    {.hf = "model.layers.{}.self_attn.q_proj", .gguf = "blk.{}.attn_q", .rows = PP_ROWS_Q},
    {.hf = "model.layers.{}.self_attn.k_proj", .gguf = "blk.{}.attn_k", .rows = PP_ROWS_K},
    {.hf = "model.layers.{}.block_sparse_moe.router.layer", .gguf = "blk.{}.ffn_gate_inp"},
    {.hf = "model.layers.{}.block_sparse_moe.input_linear.weight", .gguf = "blk.{}.ffn_gate_exps.weight",
     .second = "blk.{}.ffn_up_exps.weight", .form = PP_HF_HALVES, .whole = true},
    {.hf = "model.layers.{}.block_sparse_moe.output_linear", .gguf = "blk.{}.ffn_down_exps"},
    {.hf = "model.layers.{}.shared_mlp.input_linear.weight", .gguf = "blk.{}.ffn_gate_shexp.weight",
     .second = "blk.{}.ffn_up_shexp.weight", .form = PP_HF_HALVES, .whole = true},
    {.hf = "model.layers.{}.shared_mlp.output_linear", .gguf = "blk.{}.ffn_down_shexp"},
    {.hf = "model.layers.{}.block_sparse_moe.switch_mlp.gate_proj", .gguf = "blk.{}.ffn_gate_exps", .mlx = true},
    {.hf = "model.layers.{}.block_sparse_moe.switch_mlp.up_proj", .gguf = "blk.{}.ffn_up_exps", .mlx = true},
    {.hf = "model.layers.{}.block_sparse_moe.switch_mlp.down_proj", .gguf = "blk.{}.ffn_down_exps", .mlx = true},
    {.hf = NULL},
};
static const char *const moe_classes[] = {"GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM", "granitemoe",
                                          "granitemoeshared", NULL};
static const struct pp_expert_keys expert_keys = {.n = "num_local_experts", .n_used = "num_experts_per_tok",
                                                  .n_ff = "intermediate_size"};
static const struct pp_arch_default moe_defaults[] = {
    {.json = "{\"num_local_experts\": 8, \"num_experts_per_tok\": 2}"},
    {.json = NULL},
};

static enum pp_code moe_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_granite_from_config(config, hp, err);
    return code ? code : pp_config_experts(config, &expert_keys, hp, err);
}

static void moe_to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    pp_granite_to_config(hp, config);
    pp_config_put_experts(hp, &expert_keys, config);
    if (!hp->n_ff_shared)
        return;
    pp_config_put_class(config, "GraniteMoeSharedForCausalLM", "granitemoeshared");
    pp_config_put(config, "shared_intermediate_size", hp->n_ff_shared);
}

const struct pp_arch pp_arch_granitemoe = {
    .name = "granitemoe",
    .hf_classes = moe_classes,
    .names = moe_names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = moe_defaults,
    .from_config = moe_from_config,
    .from_gguf = pp_granite_from_gguf,
    .gguf_divides_logits = true,
    .to_config = moe_to_config,
};

/* --- HyperCLOVA X ------------------------------------------------------------------------------------------------- */

static const char *const clova_classes[] = {"HyperCLOVAXForCausalLM", "hyperclovax", NULL};
static const struct pp_arch_name clova_names[] = {
    {.hf = "model.layers.{}.post_norm1", .gguf = "blk.{}.post_attention_norm"},
    {.hf = "model.layers.{}.post_norm2", .gguf = "blk.{}.post_ffw_norm"},
    {.hf = NULL},
};

static enum pp_code clova_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const struct {
        const char *key;
        float *v;
    } scales[] = {{"attention_multiplier", &hp->attn_scale}, {"embedding_multiplier", &hp->embd_scale},
                  {"residual_multiplier", &hp->residual_scale}, {"logits_scaling", &hp->logit_scale}};
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    for (size_t i = 0; i < sizeof scales / sizeof *scales && !code; i++)
        code = pp_config_float(config, scales[i].key, scales[i].v, err);
    hp->post_norms = pp_config_flag(config, "use_post_norm", true);
    return code;
}

static enum pp_code clova_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)err;
    hp->post_norms = pp_gguf_tensor(g, "blk.0.post_attention_norm.weight") != NULL;
    return PP_OK;
}

static void clova_to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    pp_granite_to_config(hp, config);
    pp_config_put_float(config, "logits_scaling", hp->logit_scale != 0.0f ? hp->logit_scale : 1);
    cJSON_AddBoolToObject(config, "use_post_norm", hp->post_norms);
}

const struct pp_arch pp_arch_hyperclovax = {
    .name = "hyperclovax",
    .hf_classes = clova_classes,
    .names = clova_names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .from_config = clova_from_config,
    .from_gguf = clova_from_gguf,
    .to_config = clova_to_config,
};
