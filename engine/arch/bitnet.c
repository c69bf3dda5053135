/* bitnet.c - BitNet b1.58 (arXiv 2402.17764): Llama with ternary weights and further norms before the output
 * projections of attention and feed-forward part (sub-norms). Microsoft's 2B4T (arXiv 2504.12285) has ReLU^2 in its
 * gates, earlier models have SiLU. GGUF files call both "bitnet" and name the function, but bitnet.cpp's files of 2B4T
 * say "bitnet-b1.58". */
#include <cjson/cJSON.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/hparams.h"

static const struct pp_arch_name names[] = {
    {.hf = "model.layers.{}.self_attn.attn_sub_norm", .gguf = "blk.{}.attn_sub_norm"},
    {.hf = "model.layers.{}.mlp.ffn_sub_norm", .gguf = "blk.{}.ffn_sub_norm"},
    {.hf = "model.layers.{}.self_attn.inner_attn_ln", .gguf = "blk.{}.attn_sub_norm", .read_only = true},
    {.hf = "model.layers.{}.mlp.ffn_layernorm", .gguf = "blk.{}.ffn_sub_norm", .read_only = true},
    {.hf = NULL},
};

static const char *const classes[] = {"BitNetForCausalLM", "BitnetForCausalLM", "bitnet", NULL};
static const char *const functions[] = {"relu2", "silu", "swish", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"max_position_embeddings\": 2048, \"rms_norm_eps\": 1e-5, \"rope_theta\": 500000.0,"
             "\"hidden_act\": \"relu2\"}"},
    {.json = NULL},
};
static const char *const other_names[] = {"bitnet-b1.58", "bitnet-25", NULL};

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const char *fn = cJSON_GetStringValue(pp_json_member(config, "hidden_act"));
    hp->activation = fn && strcmp(fn, "relu2") == 0 ? PP_ACTIVATION_RELU2 : PP_ACTIVATION_USUAL;
    return pp_config_activation(config, "hidden_act", functions, err);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g, (void)err;
    if (strcmp(hp->arch, "bitnet") != 0 && hp->activation == PP_ACTIVATION_USUAL)
        hp->activation = PP_ACTIVATION_RELU2;
    return PP_OK;
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    (void)hp, (void)config;
}

const struct pp_arch pp_arch_bitnet = {
    .name = "bitnet",
    .other_names = other_names,
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .decoder = {.sub_norms = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_config = to_config,
};
