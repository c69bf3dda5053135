/* minicpm_sala.c - MiniCPM-SALA (OpenBMB): MiniCPM whose layers have either lightning attention (arXiv 2401.04658),
 * with normalised and rotated queries and keys, or gated attention without positions. Only pippin makes GGUF files of
 * it.
 *
 * In contexts of dense_len or more, attention would be sparse (InfLLM), which is not implemented: contexts are limited
 * to less. */
#include <cjson/cJSON.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/hparams.h"
#include "engine/hparams_int.h"

#define ATTENTION "model.layers.{}.self_attn."

static const struct pp_arch_name names[] = {
    {.hf = ATTENTION "z_proj", .gguf = "blk.{}.attn_gate", .recurrent = true},
    {.hf = ATTENTION "o_gate", .gguf = "blk.{}.attn_gate"},
    {.hf = ATTENTION "q_norm", .gguf = "blk.{}.attn_q_norm"},
    {.hf = ATTENTION "k_norm", .gguf = "blk.{}.attn_k_norm"},
    {.hf = ATTENTION "o_norm", .gguf = "blk.{}.attn_norm_2"},
    {.hf = NULL},
};
static const char *const classes[] = {"MiniCPMSALAForCausalLM", "minicpm_sala", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"rms_norm_eps\": 1e-6, \"tie_word_embeddings\": false}"},
    {.json = NULL},
};
static const char lightning[] = "lightning-attn", full[] = "minicpm4", scale[] = "1/sqrt(d)";
static const char *const needed[] = {"qk_norm", "use_output_norm", "use_output_gate", "attn_use_output_gate",
                                     "lightning_use_rope"};

/* One state for each query head, of the same size. */
static enum pp_code finish(struct pp_hparams *hp, struct pp_error *err)
{
    int64_t n = 0;
    hp->lightning = hp->state_rotated = hp->same_decays = true;
    hp->two_norms = false;
    hp->state_groups = 1;
    hp->n_state_head = hp->n_state_key_head = hp->n_head;
    hp->state_key_dim = hp->state_value_dim = hp->head_dim;
    for (int64_t l = 0; l < hp->n_layer; l++) {
        const bool states = hp->layer[l] & PP_LAYER_RECURRENT;
        hp->layer[l] |= states ? 0 : PP_LAYER_UNROTATED;
        n += states;
    }
    if (hp->sizes_vary || hp->per_head_gates)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the model has layers that differ in their heads or widths, or a gate "
                       "for each head, which is not supported for this family (%s)", hp->arch);
    return n ? PP_OK
             : pp_fail(err, PP_ERR_UNSUPPORTED, "the model does not say which layers have lightning attention (%s)",
                       hp->arch);
}

static enum pp_code refuse(const char *key, const char *word, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s is not %s, which is not supported for this family", key,
                   word);
}

/* Requires settings that all published models have. */
static enum pp_code check_words(const cJSON *config, const struct pp_hparams *hp, struct pp_error *err)
{
    const char *said = cJSON_GetStringValue(pp_json_member(config, "lightning_scale"));
    const struct {
        const char *key, *as;
        int64_t v;
    } sizes[] = {{"lightning_nh", "num_attention_heads", hp->n_head},
                 {"lightning_nkv", "num_attention_heads", hp->n_head},
                 {"lightning_head_dim", "head_dim", hp->head_dim}};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!pp_config_flag(config, needed[i], false))
            return refuse(needed[i], "true", err);
    if (pp_config_flag(config, "attn_use_rope", true))
        return refuse("attn_use_rope", "false", err);
    if (!said || strcmp(said, scale) != 0)
        return refuse("lightning_scale", scale, err);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t n = -1;
        if (pp_config_int(config, sizes[i].key, &n, err))
            return err->code;
        if (n != sizes[i].v)
            return refuse(sizes[i].key, sizes[i].as, err);
    }
    return PP_OK;
}

/* Limits contexts to those with full attention. */
static enum pp_code limit_context(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *sparse = pp_json_member(config, "sparse_config");
    int64_t dense = 8192;
    if (!cJSON_IsObject(sparse))
        return PP_OK;
    enum pp_code code = pp_config_int(sparse, "dense_len", &dense, err);
    if (!code)
        code = pp_check_range("dense_len", dense, 2, INT32_MAX, err);
    if (!code && hp->n_ctx_train >= dense)
        hp->n_ctx_train = dense - 1;
    return code;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_minicpm_from_config(config, hp, err);
    if (!code)
        code = check_words(config, hp, err);
    if (!code)
        code = pp_config_layer_words(config, "mixer_types", lightning, full, PP_LAYER_RECURRENT, hp, err);
    if (!code)
        code = limit_context(config, hp, err);
    return code ? code : finish(hp, err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    cJSON *mixers = cJSON_AddArrayToObject(config, "mixer_types");
    pp_minicpm_to_config(hp, config);
    for (int64_t l = 0; l < hp->n_layer; l++)
        cJSON_AddItemToArray(mixers, cJSON_CreateString(hp->layer[l] & PP_LAYER_RECURRENT ? lightning : full));
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        cJSON_AddTrueToObject(config, needed[i]);
    cJSON_AddFalseToObject(config, "attn_use_rope");
    pp_config_put_text(config, "lightning_scale", scale);
    pp_config_put(config, "lightning_nh", hp->n_head);
    pp_config_put(config, "lightning_nkv", hp->n_head);
    pp_config_put(config, "lightning_head_dim", hp->head_dim);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    pp_recurrent_from_gguf(g, 4, hp);
    hp->logit_scale = hp->logit_scale != 0.0f ? 1.0f / hp->logit_scale : 0;
    return finish(hp, err);
}

const struct pp_arch pp_arch_minicpm_sala = {
    .name = "minicpm_sala",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .gguf_divides_logits = true,
    .decoder = {.gated_attention = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = pp_recurrent_to_gguf,
    .to_config = to_config,
};
