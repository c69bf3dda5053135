/* neobert.c - NeoBERT (arXiv 2502.19587): an encoder with a decoder's layers and neighbouring pairs rotated.
 *
 * Folders have qkv ordered head by head. GGUF files are read as llama.cpp interprets them: all of q, then k, then v. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/base/word.h"
#include "engine/engine.h"

#define LAYER "model.transformer_encoder.{}."

static const struct pp_arch_name names[] = {
    {.hf = "model.encoder", .gguf = "token_embd"},
    {.hf = "model.layer_norm", .gguf = "enc.output_norm"},
    {.hf = LAYER "attention_norm", .gguf = "blk.{}.attn_norm"},
    {.hf = LAYER "qkv", .gguf = "blk.{}.attn_qkv", .form = PP_HF_QKV_FUSED_BY_GROUP},
    {.hf = LAYER "wo", .gguf = "blk.{}.attn_output"},
    {.hf = LAYER "ffn_norm", .gguf = "blk.{}.ffn_norm"},
    {.hf = LAYER "ffn.w12", .gguf = "blk.{}.ffn_up"},
    {.hf = LAYER "ffn.w3", .gguf = "blk.{}.ffn_down"},
    {.hf = NULL},
};

/* Ignored: the head for masked words. */
static const char *const ignored[] = {"decoder.weight", "decoder.bias", ".freqs_cis", NULL};
static const char *const classes[] = {"NeoBERT", "NeoBERTLMHead", "neobert", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"max_length\": 1024, \"norm_eps\": 1e-6, \"hidden_act\": \"SwiGLU\", \"intermediate_size\": 3072}"},
    {.json = NULL},
};

/* config.json has the width of an ungated feed-forward part; ours is 2/3 of it, rounded up to a multiple of 8. */
static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const char *fn = cJSON_GetStringValue(pp_json_member(config, "hidden_act"));
    if ((fn && pp_casecmp(fn, "swiglu") != 0) || !pp_config_flag(config, "rope", true) ||
        pp_config_flag(config, "ngpt", false))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: only SwiGLU and rotated heads are supported for this "
                       "family");
    hp->n_ff = hp->n_ff > 0 && hp->n_ff < 1 << 24 ? (2 * hp->n_ff / 3 + 7) / 8 * 8 : 0;
    hp->pooling = PP_POOLING_CLS;
    enum pp_code code = pp_config_int(config, "max_length", &hp->n_ctx_train, err);
    return code ? code : pp_config_float(config, "norm_eps", &hp->norm_eps, err);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g, (void)hp, (void)err;
    return PP_OK;
}

const struct pp_arch pp_arch_neobert = {
    .name = "neo-bert",
    .hf_classes = classes,
    .names = names,
    .ignored = ignored,
    .defaults = defaults,
    .hf_pairs = true,
    .decoder = {.fn = PP_FN_SILU, .fused_qkv = true, .fused_gate = true, .bidirectional = true,
                .output_norm = "enc.output_norm"},
    .from_config = from_config,
    .from_gguf = from_gguf,
};
