/* granite.c - Granite 3: Llama with four multipliers: of the input, the scores, what layers add, and the logits. */
#include <math.h>

#include "engine/arch/families.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

static const char *const classes[] = {"GraniteForCausalLM", "granite", NULL};

static enum pp_code divide_logits(float by, struct pp_hparams *hp, struct pp_error *err)
{
    if (!(by > 0))
        return pp_fail(err, PP_ERR_FORMAT, "the model says that its logits are divided by %g; that must be positive",
                       (double)by);
    hp->logit_scale = 1.0f / by;
    return PP_OK;
}

static enum pp_code from_config(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    float divisor = 1;
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    hp->attn_scale = hp->embd_scale = hp->residual_scale = 1;
    if (!code)
        code = pp_config_float(config, "attention_multiplier", &hp->attn_scale, err);
    if (!code)
        code = pp_config_float(config, "embedding_multiplier", &hp->embd_scale, err);
    if (!code)
        code = pp_config_float(config, "residual_multiplier", &hp->residual_scale, err);
    if (!code)
        code = pp_config_float(config, "logits_scaling", &divisor, err);
    return code ? code : divide_logits(divisor, hp, err);
}

/* The key logit_scale says by what logits are divided. */
static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    bool rotated = true;
    pp_gguf_bool(g, "granite.rope.scaling.finetuned", &rotated); /* is used for this */
    if (!rotated)
        pp_layers_every(hp, 1, PP_LAYER_UNROTATED);
    return hp->logit_scale != 0.0f ? divide_logits(hp->logit_scale, hp, err) : PP_OK;
}

static void to_config(const struct pp_hparams *hp, struct cJSON *config)
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
    .from_config = from_config,
    .from_gguf = from_gguf,
    .gguf_divides_logits = true,
    .to_config = to_config,
};
