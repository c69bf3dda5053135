/* deepseek32.c - DeepSeek V3.2 (arXiv 2512.02556) and GLM 5: DeepSeek V3 with an indexer that picks the positions
 * which a row sees. decoder_mixers.c computes it.
 *
 * The two rotate different pairs in the indexer's heads. In GLM 5.2 most layers have no indexer and use the picks of
 * the last layer before them that has one. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"
#include "engine/hparams_int.h"

static const char *const v32_classes[] = {"DeepseekV32ForCausalLM", "deepseek_v32", NULL};
static const char *const glm_classes[] = {"GlmMoeDsaForCausalLM", "glm_moe_dsa", NULL};
static const struct pp_arch_name names[] = {
    PP_INDEX_NAMES,
    PP_LATENT_NAMES,
    {.hf = NULL},
};
static const struct pp_arch_default defaults[] = {
    {.model_type = "glm_moe_dsa", .hf_class = "GlmMoeDsaForCausalLM",
     .json = "{\"q_lora_rank\": 2048, \"qk_nope_head_dim\": 192, \"v_head_dim\": 256, \"index_n_heads\": 32,"
             "\"n_group\": 1, \"topk_group\": 1, \"rms_norm_eps\": 1e-5, \"max_position_embeddings\": 202752}"},
    {.json = "{\"kv_lora_rank\": 512, \"q_lora_rank\": 1536, \"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64,"
             "\"v_head_dim\": 128, \"n_routed_experts\": 256, \"num_experts_per_tok\": 8, \"n_shared_experts\": 1,"
             "\"moe_intermediate_size\": 2048, \"first_k_dense_replace\": 3, \"norm_topk_prob\": true,"
             "\"routed_scaling_factor\": 2.5, \"n_group\": 8, \"topk_group\": 4, \"index_n_heads\": 64,"
             "\"index_head_dim\": 128, \"index_topk\": 2048, \"max_position_embeddings\": 163840}"},
    {.json = NULL},
};

static bool is_glm(const struct pp_hparams *hp)
{
    return strcmp(hp->arch, "glm-dsa") == 0;
}

/* Whether some layers have no indexer of their own. */
static bool has_idle_layers(const struct pp_hparams *hp)
{
    bool has = false;
    for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        has = has || hp->layer[l] & PP_LAYER_PICKED_BEFORE;
    return has;
}

enum pp_code pp_index_check(const struct pp_hparams *hp, struct pp_error *err)
{
    if (hp->index_top_k < 1)
        return pp_fail(err, PP_ERR_FORMAT, "the model's index picks %lld positions; it must be at least 1",
                       (long long)hp->index_top_k);
    if (hp->n_layer > 0 && hp->layer[0] & PP_LAYER_PICKED_BEFORE)
        return pp_fail(err, PP_ERR_FORMAT, "the first layer has no index, and there is none before it whose picks it "
                       "could see");
    return PP_OK;
}

/* Common to folders and files: fixed properties of the two families. */
static enum pp_code check(struct pp_hparams *hp, struct pp_error *err)
{
    const enum pp_code code = pp_index_check(hp, err);
    hp->index_neox = !is_glm(hp);
    if (!code && !is_glm(hp) && has_idle_layers(hp))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "a DeepSeek V3.2 of which some layers have no index is not supported; "
                       "only GLM 5's layers share one");
    return code;
}

/* --- config.json -------------------------------------------------------------------------------------------------- */

/* index_topk_pattern: "FFSS", a letter for each layer, or a list of words like indexer_types. */
static enum pp_code take_pattern(const char *pattern, struct pp_hparams *hp, struct pp_error *err)
{
    if ((int64_t)strlen(pattern) != hp->n_layer || strspn(pattern, "FS") != strlen(pattern))
        return pp_fail(err, PP_ERR_FORMAT, "config.json: index_topk_pattern must have an F or an S for each of %lld "
                       "layers", (long long)hp->n_layer);
    for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        hp->layer[l] |= pattern[l] == 'S' ? PP_LAYER_PICKED_BEFORE : 0;
    return PP_OK;
}

/* Every index_topk_freq-th layer has an indexer, starting with layer index_skip_topk_offset - 1. */
static enum pp_code take_steps(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t step = 1, offset = 2;
    enum pp_code code = pp_config_int(config, "index_topk_freq", &step, err);
    if (!code)
        code = pp_config_int(config, "index_skip_topk_offset", &offset, err);
    if (!code)
        code = pp_check_range("step between layers that have an index", step, 1, PP_MAX_LAYERS, err);
    if (!code)
        code = pp_check_range("number of layers before those without an index", offset, 0, PP_MAX_LAYERS, err);
    for (int64_t l = offset; !code && l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        hp->layer[l] |= (l - offset + 1) % step ? PP_LAYER_PICKED_BEFORE : 0;
    return code;
}

/* Which layers have no indexer. */
static enum pp_code take_layers(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *pattern = pp_json_member(config, "index_topk_pattern");
    if (cJSON_IsArray(pp_json_member(config, "indexer_types")))
        return pp_config_layer_words(config, "indexer_types", "shared", "full", PP_LAYER_PICKED_BEFORE, hp, err);
    if (cJSON_IsArray(pattern))
        return pp_config_layer_words(config, "index_topk_pattern", "shared", "full", PP_LAYER_PICKED_BEFORE, hp, err);
    return cJSON_IsString(pattern) ? take_pattern(pattern->valuestring, hp, err) : take_steps(config, hp, err);
}

enum pp_code pp_index_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_int(config, "index_n_heads", &hp->n_index_head, err);
    if (!code)
        code = pp_config_int(config, "index_head_dim", &hp->index_dim, err);
    return code ? code : pp_config_int(config, "index_topk", &hp->index_top_k, err);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_deepseek_from_config(config, hp, err);
    if (!code && pp_config_flag(config, "indexer_rope_interleave", is_glm(hp)) != is_glm(hp))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: indexer_rope_interleave is %s, which is not supported "
                       "for this family", is_glm(hp) ? "false" : "true");
    if (!code)
        code = pp_index_from_config(config, hp, err);
    if (!code)
        code = take_layers(config, hp, err);
    return code ? code : check(hp, err);
}

void pp_index_to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put(config, "index_n_heads", hp->n_index_head);
    pp_config_put(config, "index_head_dim", hp->index_dim);
    pp_config_put(config, "index_topk", hp->index_top_k);
    cJSON *types = has_idle_layers(hp) ? cJSON_AddArrayToObject(config, "indexer_types") : NULL;
    for (int64_t l = 0; types && l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        cJSON_AddItemToArray(types, cJSON_CreateString(hp->layer[l] & PP_LAYER_PICKED_BEFORE ? "shared" : "full"));
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    const char *const *classes = is_glm(hp) ? glm_classes : v32_classes;
    pp_deepseek_to_config(hp, config);
    pp_config_put_class(config, classes[0], classes[1]);
    pp_index_to_config(hp, config);
}

/* --- GGUF --------------------------------------------------------------------------------------------------------- */

static const char *key_of(const struct pp_hparams *hp, const char *name, char full[160])
{
    snprintf(full, 160, "%s.attention.indexer.%s", hp->arch, name);
    return full;
}

enum pp_code pp_index_layers_from_gguf(const struct pp_gguf *g, const char *full, struct pp_hparams *hp,
                                       struct pp_error *err)
{
    enum pp_gguf_type type;
    size_t n = 0;
    pp_gguf_array(g, full, &type, &n);
    if (n < (size_t)hp->n_layer)
        return pp_fail(err, PP_ERR_FORMAT, "metadata %s has %zu values for %lld layers", full, n,
                       (long long)hp->n_layer);
    for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS; l++) {
        bool has = false;
        int64_t number = 0;
        if (pp_gguf_array_int(g, full, (size_t)l, &number))
            has = number != 0;
        else if (!pp_gguf_array_bool(g, full, (size_t)l, &has))
            return pp_fail(err, PP_ERR_FORMAT, "metadata %s is not a list of booleans", full);
        hp->layer[l] = (uint8_t)((hp->layer[l] & ~PP_LAYER_PICKED_BEFORE) | (has ? 0 : PP_LAYER_PICKED_BEFORE));
    }
    return PP_OK;
}

/* A list tells which layers have an indexer. For older files without that list the tensors do (hparams_gguf.c). GLM 5
 * and 5.1 have an indexer in all layers. A file of 5.2, recognised by its context length, that has all layers' tensors
 * is ambiguous and refused. */
static enum pp_code layers_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    enum { CONTEXT_OF_5_2 = 1 << 20 };
    char full[160];
    if (!pp_gguf_has(g, key_of(hp, "types", full))) {
        if (is_glm(hp) && !has_idle_layers(hp) && hp->n_ctx_train >= CONTEXT_OF_5_2)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "this seems to be GLM 5.2, but the metadata lacks %s, which says "
                           "which layers have an index of their own; convert the model again", full);
        return PP_OK;
    }
    return pp_index_layers_from_gguf(g, full, hp, err);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    char full[160];
    enum pp_code code = pp_deepseek_from_gguf(g, hp, err);
    pp_gguf_int(g, key_of(hp, "head_count", full), &hp->n_index_head);
    pp_gguf_int(g, key_of(hp, "key_length", full), &hp->index_dim);
    if (!code && !pp_gguf_int(g, key_of(hp, "top_k", full), &hp->index_top_k))
        code = pp_fail(err, PP_ERR_FORMAT, "the metadata lacks %s, or it is not an integer", full);
    if (!code)
        code = layers_from_gguf(g, hp, err);
    return code ? code : check(hp, err);
}

void pp_index_to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    bool has[PP_MAX_LAYERS];
    char full[160];
    pp_gguf_add_u32(w, key_of(hp, "head_count", full), (uint32_t)hp->n_index_head);
    pp_gguf_add_u32(w, key_of(hp, "key_length", full), (uint32_t)hp->index_dim);
    pp_gguf_add_u32(w, key_of(hp, "top_k", full), (uint32_t)hp->index_top_k);
    for (int64_t l = 0; l < hp->n_layer; l++)
        has[l] = !(hp->layer[l] & PP_LAYER_PICKED_BEFORE);
    if (has_idle_layers(hp))
        pp_gguf_add_bool_array(w, key_of(hp, "types", full), has, (size_t)hp->n_layer);
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_deepseek_to_gguf(hp, w);
    pp_index_to_gguf(hp, w);
}

const struct pp_arch pp_arch_deepseek32 = {
    .name = "deepseek32",
    .hf_classes = v32_classes,
    .names = names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .hf_pairs = true,
    .gguf_default_no_renorm = true,
    .gguf_default_sigmoids = true,
    .defaults = defaults,
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};

const struct pp_arch pp_arch_glm_dsa = {
    .name = "glm-dsa",
    .hf_classes = glm_classes,
    .names = names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .hf_pairs = true,
    .gguf_default_no_renorm = true,
    .gguf_default_sigmoids = true,
    .defaults = defaults,
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
