/* chameleon.c - the language part of Chameleon (arXiv 2405.09818): Llama with a LayerNorm of each head of q and k,
 * with a vector for each; the larger model has post-norms instead of pre-norms. Tokens of images are never
 * generated. */
#include <cjson/cJSON.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

enum { FIRST_OF_PICTURES = 4, END_OF_PICTURES = 8196 };

static const struct pp_arch_name names[] = {
    {.hf = "model.layers.{}.self_attn.q_norm", .gguf = "blk.{}.attn_q_norm", .rows = PP_ROWS_Q},
    {.hf = "model.layers.{}.self_attn.k_norm", .gguf = "blk.{}.attn_k_norm", .rows = PP_ROWS_K},
    {.hf = "model.layers.{}.self_attn.q_proj", .gguf = "blk.{}.attn_q", .rows = PP_ROWS_Q},
    {.hf = "model.layers.{}.self_attn.k_proj", .gguf = "blk.{}.attn_k", .rows = PP_ROWS_K},
    {.hf = NULL},
};
static const char *const classes[] = {"ChameleonForConditionalGeneration", "ChameleonForCausalLM", "chameleon", NULL};
static const char *const prefixes[] = {NULL};
static const char *const others[] = {"model.vqmodel.", NULL};
static const struct pp_arch_parts parts = {.model_type = "chameleon", .prefixes = prefixes, .others = others};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 65536, \"hidden_size\": 4096, \"intermediate_size\": 11008, \"num_hidden_layers\": 32,"
             "\"num_attention_heads\": 32, \"num_key_value_heads\": 32, \"max_position_embeddings\": 4096,"
             "\"rms_norm_eps\": 1e-5}"},
    {.json = NULL},
};

/* Only artificial models have a vocabulary without image tokens. */
static void finish(struct pp_hparams *hp)
{
    hp->qk_norm = true;
    if (hp->n_vocab <= END_OF_PICTURES)
        return;
    hp->suppressed[0].first = FIRST_OF_PICTURES;
    hp->suppressed[0].end = END_OF_PICTURES;
}

/* GGUF files assume a fixed range of image tokens: the vocabulary must agree. */
static enum pp_code check_vocabulary(const cJSON *map, struct pp_error *err)
{
    static const char begin[] = "IMGIMG";
    const cJSON *token;
    if (!cJSON_IsObject(map)) /* items of a list have no names */
        return PP_OK;
    cJSON_ArrayForEach(token, map)
        if (strncmp(token->string, begin, sizeof begin - 1) == 0 &&
            !(cJSON_IsNumber(token) && token->valuedouble >= FIRST_OF_PICTURES && token->valuedouble < END_OF_PICTURES))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: vocabulary_map has other tokens for pictures than %d "
                           "to %d, which is not supported", FIRST_OF_PICTURES, END_OF_PICTURES - 1);
    return PP_OK;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    hp->norms_after = pp_config_flag(config, "swin_norm", false);
    finish(hp);
    return code ? code : check_vocabulary(pp_json_member(config, "vocabulary_map"), err);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)err;
    pp_gguf_bool(g, "chameleon.swin_norm", &hp->norms_after);
    finish(hp);
    return PP_OK;
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_gguf_add_bool(w, "chameleon.swin_norm", hp->norms_after);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    cJSON_AddBoolToObject(config, "swin_norm", hp->norms_after);
    pp_config_put(config, "model_parallel_size", 1);
}

const struct pp_arch pp_arch_chameleon = {
    .name = "chameleon",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .parts = &parts,
    .defaults = defaults,
    .decoder = {.qk_norm = PP_QK_OPTIONAL, .layer_norm_heads = true, .head_eps = 1e-5f},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
