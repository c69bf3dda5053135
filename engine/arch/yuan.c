/* yuan.c - Yuan 2 (arXiv 2311.15786): Llama whose queries and keys read the input through two short convolutions over
 * two positions each (decoder_filter.c); one matrix makes both, each head's queries next to its keys. Only pippin
 * makes GGUF files of it. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/hparams.h"

#define FILTER "model.layers.{}.self_attn.lf_gate."
#define CONVOLUTION(n)                                                                                   \
    {.hf = FILTER "conv" n ".weight", .gguf = "blk.{}.filter_" n "_last.weight",                         \
     .second = "blk.{}.filter_" n ".weight", .form = PP_HF_TWO_TAPS_4D, .whole = true},                  \
    {.hf = FILTER "conv" n ".bias", .gguf = "blk.{}.filter_" n ".bias", .whole = true}

static const struct pp_arch_name names[] = {
    CONVOLUTION("1"),
    CONVOLUTION("2"),
    {.hf = FILTER "output_layernorm", .gguf = "blk.{}.filter_norm"},
    /* the activation function is applied to up_proj, not to gate_proj */
    {.hf = "model.layers.{}.mlp.up_proj", .gguf = "blk.{}.ffn_gate"},
    {.hf = "model.layers.{}.mlp.gate_proj", .gguf = "blk.{}.ffn_up"},
    {.hf = NULL},
};
static const char *const classes[] = {"YuanForCausalLM", "yuan", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 135040, \"hidden_size\": 2048, \"intermediate_size\": 8192, \"num_hidden_layers\": 24, "
             "\"num_attention_heads\": 32, \"max_position_embeddings\": 8192, \"tie_word_embeddings\": true}"},
    {.json = NULL},
};

static enum pp_code set_filter(struct pp_hparams *hp, struct pp_error *err)
{
    hp->localized_filtering = true;
    if (hp->n_embd % 2 != 0 || hp->n_head != hp->n_head_kv)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "a model of this family that is %lld wide, with %lld heads of queries "
                       "and %lld of keys, is not supported", (long long)hp->n_embd, (long long)hp->n_head,
                       (long long)hp->n_head_kv);
    return PP_OK;
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g;
    return set_filter(hp, err);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *experts = pp_json_member(config, "moe_config");
    if (pp_config_flag(config, "use_moe", false) || cJSON_IsObject(experts))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the model has experts that attention among them chooses, which pippin "
                       "does not compute");
    if (pp_config_flag(config, "use_shareqk", false))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: use_shareqk is true, which pippin does not support");
    const enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    return code ? code : set_filter(hp, err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    (void)hp;
    cJSON_DeleteItemFromObjectCaseSensitive(config, "num_key_value_heads");
    cJSON_AddFalseToObject(config, "use_moe");
}

const struct pp_arch pp_arch_yuan = {
    .name = "yuan",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_config = to_config,
};
