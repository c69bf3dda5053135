/* nemotron.c - Nemotron 3 and 4 and Minitron (arXiv 2402.16819, 2407.14679): LayerNorm whose weights folders store
 * without 1, half of each head rotated, ReLU^2 without a gate. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/hparams.h"

#define NORM(hf_name, gguf_name)                                                                                       \
    {.hf = hf_name ".weight", .gguf = gguf_name ".weight", .form = PP_HF_PLUS_ONE, .whole = true},                     \
    {.hf = hf_name ".bias", .gguf = gguf_name ".bias", .whole = true}

static const struct pp_arch_name names[] = {
    NORM("model.norm", "output_norm"),
    NORM("model.layers.{}.input_layernorm", "blk.{}.attn_norm"),
    NORM("model.layers.{}.post_attention_layernorm", "blk.{}.ffn_norm"),
    {.hf = NULL},
};
static const char *const classes[] = {"NemotronForCausalLM", "nemotron", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"max_position_embeddings\": 4096, \"partial_rotary_factor\": 0.5}"},
    {.json = NULL},
};

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    hp->norm_eps = 1e-5f;
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_relu2_names, err);
    return code ? code : pp_config_float(config, "norm_eps", &hp->norm_eps, err);
}

/* partial_rotary_factor is 0.5 by default. */
static void to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    pp_config_put_float(config, "partial_rotary_factor", (float)hp->rope_dim / (float)hp->head_dim);
}

const struct pp_arch pp_arch_nemotron = {
    .name = "nemotron",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .decoder = {.layer_norm = true, .norm_bias = true, .ungated = true, .fn = PP_FN_RELU2},
    .from_config = from_config,
    .to_config = to_config,
    .hf_eps = "norm_eps",
};
