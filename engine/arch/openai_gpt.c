/* openai_gpt.c - the first GPT (2018; transformers, models/openai): learned positions, fused qkv, and post-norms of
 * the sums of stream and output; no norm after the last layer. Only pippin makes GGUF files of it. */
#include <cjson/cJSON.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/hparams.h"

#define BOTH(hf_name, gguf_name, how, end)                                                                            \
    {.hf = "transformer." hf_name end, .gguf = gguf_name end, .form = how, .whole = true},                            \
    {.hf = hf_name end, .gguf = gguf_name end, .form = how, .whole = true, .read_only = true}
#define LAYER(hf_name, gguf_name, how)                                                                                \
    BOTH("h.{}." hf_name, "blk.{}." gguf_name, how, ".weight"),                                                       \
    BOTH("h.{}." hf_name, "blk.{}." gguf_name, PP_HF_SAME, ".bias")

static const struct pp_arch_name names[] = {
    BOTH("tokens_embed", "token_embd", PP_HF_SAME, ".weight"),
    BOTH("positions_embed", "position_embd", PP_HF_SAME, ".weight"),
    {.hf = "lm_head", .gguf = "output"},
    LAYER("attn.c_attn", "attn_qkv", PP_HF_TRANSPOSED),
    LAYER("attn.c_proj", "attn_output", PP_HF_TRANSPOSED),
    LAYER("ln_1", "attn_norm", PP_HF_SAME),
    LAYER("mlp.c_fc", "ffn_up", PP_HF_TRANSPOSED),
    LAYER("mlp.c_proj", "ffn_down", PP_HF_TRANSPOSED),
    LAYER("ln_2", "ffn_norm", PP_HF_SAME),
    {.hf = NULL},
};
static const char *const classes[] = {"OpenAIGPTLMHeadModel", "openai-gpt", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 40478, \"n_positions\": 512, \"n_embd\": 768, \"n_layer\": 12, \"n_head\": 12,"
             "\"tie_word_embeddings\": true}"},
    {.json = NULL},
};

static void norm_sums(struct pp_hparams *hp)
{
    hp->post_ln = hp->norms_after = hp->no_output_norm = true;
}

/* Its "gelu" is what others call "gelu_new". */
static enum pp_code find_function(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const char *fn = cJSON_GetStringValue(pp_json_member(config, "afn"));
    hp->activation = !fn || strcmp(fn, "gelu") == 0                          ? PP_ACTIVATION_USUAL
                     : strcmp(fn, "relu") == 0                               ? PP_ACTIVATION_RELU
                     : strcmp(fn, "silu") == 0 || strcmp(fn, "swish") == 0 ? PP_ACTIVATION_SILU
                                                                             : PP_ACTIVATION_GELU;
    if (hp->activation != PP_ACTIVATION_GELU)
        return PP_OK;
    return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: afn \"%.40s\" is not known for this family; gelu, relu and "
                   "silu are", fn);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = find_function(config, hp, err);
    norm_sums(hp);
    hp->norm_eps = 1e-5f;
    hp->n_ctx_train = 512;
    if (!code)
        code = pp_config_float(config, "layer_norm_epsilon", &hp->norm_eps, err);
    return code ? code : pp_config_int(config, "n_positions", &hp->n_ctx_train, err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    const enum pp_fn fn = pp_decoder_fn(&pp_arch_openai_gpt.decoder, hp);
    pp_config_put_text(config, "afn", fn == PP_FN_RELU ? "relu" : fn == PP_FN_SILU ? "silu" : "gelu");
    pp_config_put(config, "n_embd", hp->n_embd);
    pp_config_put(config, "n_layer", hp->n_layer);
    pp_config_put(config, "n_head", hp->n_head);
    pp_config_put(config, "n_positions", hp->n_ctx_train);
}

/* Without hidden_activation the function is the family's. */
static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g, (void)err;
    norm_sums(hp);
    return PP_OK;
}

const struct pp_arch pp_arch_openai_gpt = {
    .name = "openai-gpt",
    .hf_classes = classes,
    .names = names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .decoder = {.layer_norm = true, .norm_bias = true, .fused_qkv = true, .ungated = true, .fn = PP_FN_GELU_TANH,
                .positions = PP_POS_LEARNED},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_config = to_config,
    .hf_eps = "layer_norm_epsilon",
};
