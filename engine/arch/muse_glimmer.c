/* muse_glimmer.c - the language model of Muse Glimmer (transformers, models/muse_glimmer): pre-norms and post-norms,
 * the latter with an epsilon of their own; embeddings and heads normalised without weights; queries multiplied by a
 * constant; attention gated by sigmoids; a window in three of four layers, the others without RoPE. GGUF files have
 * the constant in norms of heads. */
#include <cjson/cJSON.h>
#include <stdio.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

#define LAYER "model.layers.{}."

static const struct pp_arch_name names[] = {
    {.hf = LAYER "input_layernorm", .gguf = "blk.{}.attn_norm", .form = PP_HF_PLUS_ONE},
    {.hf = LAYER "post_attention_layernorm", .gguf = "blk.{}.post_attention_norm", .form = PP_HF_PLUS_ONE},
    {.hf = LAYER "pre_feedforward_layernorm", .gguf = "blk.{}.ffn_norm", .form = PP_HF_PLUS_ONE},
    {.hf = LAYER "post_feedforward_layernorm", .gguf = "blk.{}.post_ffw_norm", .form = PP_HF_PLUS_ONE},
    {.hf = LAYER "self_attn.q_proj", .gguf = "blk.{}.attn_q", .rows = PP_ROWS_Q},
    {.hf = LAYER "self_attn.k_proj", .gguf = "blk.{}.attn_k", .rows = PP_ROWS_K},
    {.hf = LAYER "self_attn.gate_proj", .gguf = "blk.{}.attn_gate"},
    {.hf = NULL},
};

static const char *const classes[] = {"MuseGlimmerForCausalLM", "muse_glimmer_text",
                                      "MuseGlimmerForConditionalGeneration", "muse_glimmer", NULL};
static const char *const others[] = {"model.vision_tower.", "model.vision_adapter.", "model.vision_projection.", NULL};
static const struct pp_arch_parts parts = {
    .model_type = "muse_glimmer_text", .prefixes = pp_qwen_prefixes, .others = others};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 202048, \"hidden_size\": 6656, \"intermediate_size\": 19968,"
             "\"num_hidden_layers\": 52, \"num_attention_heads\": 32, \"num_key_value_heads\": 2, \"head_dim\": 128,"
             "\"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-5, \"qk_scale_factor\": 3.87,"
             "\"output_multiplier\": 0.19611613513818404, \"final_logit_softcapping\": 20.0}"},
    {.json = NULL},
};

enum { STEP = 4 }; /* the last layer and every 4th before it have full attention */
#define POST_NORM_EPS 1e-8f /* not in GGUF files */

static enum pp_code check_rotations(const cJSON *config, const struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *list = pp_json_member(config, "layer_rope_theta"), *base;
    int64_t l = 0;
    if (!cJSON_IsArray(list))
        return PP_OK;
    if (cJSON_GetArraySize(list) != hp->n_layer)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: layer_rope_theta does not name %lld layers",
                       (long long)hp->n_layer);
    cJSON_ArrayForEach(base, list)
    {
        const float want = hp->layer[l++] & PP_LAYER_UNROTATED ? 0 : hp->rope_base;
        if (!cJSON_IsNumber(base) || (float)base->valuedouble != want)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: layer_rope_theta of layer %lld is not %g, which is "
                           "not supported", (long long)l - 1, (double)want);
    }
    return PP_OK;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    float eps = POST_NORM_EPS;
    enum pp_code code = pp_config_activation(config, "hidden_activation", pp_silu_names, err);
    if (!code)
        code = pp_config_float(config, "post_norm_eps", &eps, err);
    if (!code && eps != POST_NORM_EPS)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: post_norm_eps is %g; only %g is supported", (double)eps,
                       (double)POST_NORM_EPS);
    if (!code)
        code = pp_config_float(config, "qk_scale_factor", &hp->query_scale, err);
    if (!code && !(hp->query_scale > 0))
        code = pp_fail(err, PP_ERR_FORMAT, "config.json: qk_scale_factor is %g; it must be positive",
                       (double)hp->query_scale);
    if (!code)
        code = pp_config_float(config, "output_multiplier", &hp->logit_scale, err);
    if (!code)
        code = pp_config_float(config, "final_logit_softcapping", &hp->final_softcap, err);
    if (!code)
        code = pp_config_window(config, 2048, hp, err);
    for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        hp->layer[l] |= (hp->n_layer - 1 - l) % STEP == 0 ? PP_LAYER_WIDE : 0;
    if (!code)
        code = pp_config_layer_types(config, hp, err);
    pp_layers_rotate_windows(hp);
    return code ? code : check_rotations(config, hp, err);
}

/* The value of a vector whose elements are all equal; 0: they differ, or it is missing. */
static float same_number(const struct pp_gguf *g, int64_t l, const char *kind)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%lld.%s.weight", (long long)l, kind);
    const struct pp_tensor *t = pp_gguf_tensor(g, name);
    const float *v = t && t->type == PP_TYPE_F32 && t->n_dims == 1 ? t->data : NULL;
    for (int64_t i = 1; v && i < t->ne[0]; i++)
        if (v[i] != v[0])
            return 0;
    return v ? v[0] : 0;
}

/* The constant as folders have it, from the norms of heads. 0: they are not constant; the model runs with the vectors,
 * but no folder can be written. */
static float find_query_scale(const struct pp_gguf *g, const struct pp_hparams *hp)
{
    const float scale = same_number(g, 0, "attn_q_norm");
    for (int64_t l = 0; l < hp->n_layer; l++)
        if (same_number(g, l, "attn_q_norm") != scale || same_number(g, l, "attn_k_norm") != 1.0f)
            return 0;
    return scale;
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)err;
    hp->query_scale = find_query_scale(g, hp);
    if (!pp_gguf_has(g, "muse-glimmer.attention.sliding_window_pattern"))
        pp_layers_every(hp, STEP, PP_LAYER_WIDE);
    pp_layers_rotate_windows(hp);
    return PP_OK;
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put_layer_types(config, hp);
    cJSON *bases = cJSON_AddArrayToObject(config, "layer_rope_theta");
    for (int64_t l = 0; l < hp->n_layer; l++)
        cJSON_AddItemToArray(bases, cJSON_CreateNumber(hp->layer[l] & PP_LAYER_UNROTATED ? 0 : (double)hp->rope_base));
    pp_config_put_text(config, "hidden_activation", "silu");
    pp_config_put_float(config, "post_norm_eps", POST_NORM_EPS);
    pp_config_put_float(config, "qk_scale_factor", hp->query_scale);
    pp_config_put_float(config, "output_multiplier", hp->logit_scale != 0.0f ? hp->logit_scale : 1);
    pp_config_put_float(config, "final_logit_softcapping", hp->final_softcap);
}

const struct pp_arch pp_arch_muse_glimmer = {
    .name = "muse-glimmer",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .parts = &parts,
    .defaults = defaults,
    .layer_pattern = STEP,
    .gguf_untied = true,
    .decoder = {.post_norm = true, .post_norm_eps = POST_NORM_EPS, .embd_norm = true, .plain_embd_norm = true,
                .qk_norm = PP_QK_BY_HEAD, .gated_attention = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_config = to_config,
};
