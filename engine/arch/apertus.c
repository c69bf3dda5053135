/* apertus.c - Apertus (arXiv 2509.14233): Llama with norms of the heads of q and k, and a feed-forward part without a
 * gate whose activation function, xIELU, has learned parameters in each layer. Of version 1.5, which is multimodal by
 * tokens of its own, the text part. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/hparams.h"

#define LAYER "model.layers.{}."
#define NUMBER(name, how)                                                                                              \
    {.hf = LAYER "mlp.act_fn." name, .gguf = "blk.{}.xielu." name, .whole = true, .form = how}

static const struct pp_arch_name names[] = {
    {.hf = LAYER "attention_layernorm", .gguf = "blk.{}.attn_norm"},
    {.hf = LAYER "feedforward_layernorm", .gguf = "blk.{}.ffn_norm"},
    {.hf = LAYER "self_attn.q_norm", .gguf = "blk.{}.attn_q_norm"},
    {.hf = LAYER "self_attn.k_norm", .gguf = "blk.{}.attn_k_norm"},
    NUMBER("alpha_p", PP_HF_SAME),
    NUMBER("alpha_n", PP_HF_SAME),
    NUMBER("beta", PP_HF_SCALAR),
    NUMBER("eps", PP_HF_SCALAR),
    {.hf = NULL},
};
static const char *const classes[] = {"ApertusForCausalLM", "apertus", "Apertus1p5TextForCausalLM", "apertus1p5_text",
                                      NULL};

static const struct pp_arch_default defaults[] = {
    {.model_type = "apertus1p5_text", .json = "{\"vocab_size\": 266752}"},
    {.json = "{\"vocab_size\": 131072, \"hidden_size\": 4096, \"intermediate_size\": 14336, \"num_hidden_layers\": 32,"
             "\"num_attention_heads\": 32, \"max_position_embeddings\": 65536, \"rms_norm_eps\": 1e-5,"
             "\"rope_theta\": 12000000.0}"},
    {.json = NULL},
};

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const char *const known[] = {"xielu", NULL};
    const cJSON *norms = pp_json_member(config, "qk_norm");
    const cJSON *after = pp_json_member(config, "post_norm");
    if (cJSON_IsFalse(norms) || cJSON_IsTrue(after))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: qk_norm or post_norm is not what Apertus has");
    if (!pp_config_has_rope(config)) {
        hp->rope_scaling = PP_ROPE_LLAMA3;
        hp->rope_factor = 8;
        hp->rope_low_freq = 1;
        hp->rope_high_freq = 4;
        hp->rope_orig_ctx = 8192;
    }
    return pp_config_activation(config, "hidden_act", known, err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    cJSON_AddTrueToObject(config, "qk_norm");
    cJSON_AddFalseToObject(config, "post_norm");
    pp_config_put_unscaled(config, hp);
}

const struct pp_arch pp_arch_apertus = {
    .name = "apertus",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD, .ungated = true, .fn = PP_FN_XIELU},
    .from_config = from_config,
    .to_config = to_config,
};
