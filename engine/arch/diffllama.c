/* diffllama.c - DiffLlama (transformers, models/diffllama): Llama with differential attention (decoder_difference.c).
 * Only pippin makes GGUF files of it. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/hparams.h"

#define NUMBERS(name)                                                                                                  \
    {.hf = "model.layers.{}.self_attn.lambda_" name, .gguf = "blk.{}.attn_lambda_" name, .whole = true}

static const struct pp_arch_name names[] = {
    NUMBERS("q1"), NUMBERS("k1"), NUMBERS("q2"), NUMBERS("k2"),
    {.hf = NULL},
};
static const char *const classes[] = {"DiffLlamaForCausalLM", "diffllama", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 32000, \"hidden_size\": 2048, \"intermediate_size\": 8192, \"num_hidden_layers\": 16,"
             "\"num_attention_heads\": 32, \"max_position_embeddings\": 2048, \"rms_norm_eps\": 1e-5}"},
    {.json = NULL},
};

/* Each half of the query heads must use KV heads of its own half. */
static enum pp_code finish(struct pp_hparams *hp, struct pp_error *err)
{
    hp->differential = true;
    if (hp->sizes_vary)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the model has layers that differ in heads or sizes, which is not "
                                                "supported with differential attention (%s)", hp->arch);
    if (hp->n_head_kv % 2 == 0)
        return PP_OK;
    return pp_fail(err, PP_ERR_UNSUPPORTED, "the model has %lld key heads, which cannot be halved",
                   (long long)hp->n_head_kv);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    return code ? code : finish(hp, err);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g;
    return finish(hp, err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    (void)hp;
    pp_config_put_text(config, "hidden_act", "silu");
}

const struct pp_arch pp_arch_diffllama = {
    .name = "diffllama",
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
