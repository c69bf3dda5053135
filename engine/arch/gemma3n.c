/* gemma3n.c - Gemma 3n (transformers, models/gemma3n): several residual streams of which a layer computes one (AltUp),
 * a low-rank branch in parallel with attention (LAuReL), sparse gates in the first layers, per-layer inputs, and last
 * layers that share the keys and values of earlier ones. Norms' weights are stored as they are. */
#include <cjson/cJSON.h>
#include <math.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

#define LAYER "model.layers.{}."
#define BLOCK "blk.{}."

static const struct pp_arch_name names[] = {
    PP_LAYER_INPUT_NAMES,
    {.hf = "model.altup_projections.{}", .gguf = "altup_proj.{}"},
    {.hf = "model.altup_unembed_projections.{}", .gguf = "altup_unembd_proj.{}"},
    {.hf = LAYER "altup.correct_output_scale", .gguf = BLOCK "altup_correct_scale.weight", .whole = true},
    {.hf = LAYER "altup.correction_coefs", .gguf = BLOCK "altup_correct_coef"},
    {.hf = LAYER "altup.prediction_coefs", .gguf = BLOCK "altup_predict_coef"},
    {.hf = LAYER "altup.modality_router", .gguf = BLOCK "altup_router"},
    {.hf = LAYER "altup.router_norm", .gguf = BLOCK "altup_router_norm"},
    {.hf = LAYER "laurel.linear_left", .gguf = BLOCK "laurel_l"},
    {.hf = LAYER "laurel.linear_right", .gguf = BLOCK "laurel_r"},
    {.hf = LAYER "laurel.post_laurel_norm", .gguf = BLOCK "laurel_post_norm"},
    {.hf = NULL},
};

static const char *const classes[] = {
    "Gemma3nForCausalLM", "Gemma3nForConditionalGeneration", "gemma3n_text", "gemma3n", NULL};
static const struct pp_arch_parts parts = {
    .model_type = "gemma3n_text", .prefixes = pp_text_prefixes, .others = pp_gemma_others};

/* A text_config has only what differs from these defaults. */
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 262400, \"hidden_size\": 2048, \"intermediate_size\": 16384, \"num_hidden_layers\": 35,"
             "\"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"head_dim\": 256,"
             "\"max_position_embeddings\": 32768, \"rms_norm_eps\": 1e-6, \"rope_theta\": 1000000.0,"
             "\"tie_word_embeddings\": true, \"hidden_size_per_layer_input\": 256, \"altup_num_inputs\": 4,"
             "\"laurel_rank\": 64, \"num_kv_shared_layers\": 15, \"final_logit_softcapping\": 30.0}"},
    {.json = NULL},
};

enum { SPARSE_LAYERS = 10, USUAL_STREAMS = 4 };
static const float USUAL_SPARSITY = 1.6448536f; /* the normal distribution's 95 % quantile */

void pp_gemma_scales(struct pp_hparams *hp)
{
    hp->embd_scale = sqrtf((float)hp->n_embd);
    hp->attn_scale = 1;
    if (hp->window)
        pp_layers_local_rope(hp);
}

/* The quantile of the normal distribution, in standard deviations. */
static double normal_quantile(double part)
{
    double low = 0, high = 40;
    for (int i = 0; i < 100; i++) {
        const double middle = (low + high) / 2;
        *((1 + erf(middle / sqrt(2))) / 2 < part ? &low : &high) = middle;
    }
    return high;
}

static enum pp_code sparsity_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *list = pp_json_member(config, "activation_sparsity_pattern"), *item;
    int64_t l = 0;
    for (; !cJSON_IsArray(list) && hp->n_layer > SPARSE_LAYERS && l < SPARSE_LAYERS; l++)
        hp->sparsity[l] = USUAL_SPARSITY;
    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsNumber(item) || !((item->valuedouble >= 0.5 && item->valuedouble < 1) || item->valuedouble == 0))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: activation_sparsity_pattern has something other than "
                           "0 and parts from a half to 1");
        if (l < hp->n_layer)
            hp->sparsity[l++] = item->valuedouble > 0 ? (float)normal_quantile(item->valuedouble) : 0;
    }
    return PP_OK;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *both = pp_json_member(config, "rope_parameters");
    const cJSON *local = pp_json_member(both, "sliding_attention");
    int64_t active = 0, shared = 0;
    enum pp_code code = pp_config_activation(config, "hidden_activation", pp_gelu_tanh_names, err);
    if (!code)
        code = pp_config_window(config, 512, hp, err);
    pp_layers_every(hp, 5, PP_LAYER_WIDE);
    if (!code)
        code = pp_config_layer_types(config, hp, err);
    hp->rope_base_local = 10000;
    if (!code)
        code = pp_config_float(config, "rope_local_base_freq", &hp->rope_base_local, err);
    if (!code)
        code = pp_config_unscaled(local, err);
    if (!code)
        code = pp_config_float(local, "rope_theta", &hp->rope_base_local, err);
    const struct {
        const char *key;
        int64_t *v;
    } numbers[] = {{"hidden_size_per_layer_input", &hp->n_embd_layer}, {"altup_num_inputs", &hp->n_stream},
                   {"altup_active_idx", &active}, {"laurel_rank", &hp->laurel_rank},
                   {"num_kv_shared_layers", &shared}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && !code; i++)
        code = pp_config_int(config, numbers[i].key, numbers[i].v, err);
    if (!code)
        code = pp_config_float(config, "final_logit_softcapping", &hp->final_softcap, err);
    if (!code && (active || !pp_config_flag(config, "altup_correct_scale", true)))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: altup_active_idx or altup_correct_scale is not what "
                       "published models have, which pippin needs");
    if (!code)
        code = pp_layers_share(hp, shared, err);
    pp_gemma_scales(hp);
    return code ? code : sparsity_from_config(config, hp, err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    cJSON *sparsity = cJSON_AddArrayToObject(config, "activation_sparsity_pattern");
    cJSON *ff = cJSON_CreateArray();
    for (int64_t l = 0; l < hp->n_layer; l++) {
        const double part = (1 + erf((double)hp->sparsity[l] / sqrt(2))) / 2;
        cJSON_AddItemToArray(sparsity, cJSON_CreateNumber(hp->sparsity[l] != 0.0f ? part : 0));
        cJSON_AddItemToArray(ff, cJSON_CreateNumber((double)pp_layer_shape(hp, l).n_ff));
    }
    cJSON_DeleteItemFromObjectCaseSensitive(config, "intermediate_size");
    cJSON_AddItemToObject(config, "intermediate_size", ff);
    pp_config_put_text(config, "hidden_activation", "gelu_pytorch_tanh");
    pp_config_put_layer_types(config, hp);
    pp_config_put_float(config, "rope_local_base_freq", hp->rope_base_local);
    pp_config_put(config, "hidden_size_per_layer_input", hp->n_embd_layer);
    pp_config_put(config, "vocab_size_per_layer_input", hp->n_vocab);
    pp_config_put(config, "altup_num_inputs", hp->n_stream);
    pp_config_put(config, "altup_active_idx", 0);
    cJSON_AddTrueToObject(config, "altup_correct_scale");
    pp_config_put(config, "laurel_rank", hp->laurel_rank);
    pp_config_put(config, "num_kv_shared_layers", pp_layers_shared(hp));
    if (hp->final_softcap != 0.0f)
        pp_config_put_float(config, "final_logit_softcapping", hp->final_softcap);
    else
        cJSON_AddNullToObject(config, "final_logit_softcapping");
}

/* --- GGUF --------------------------------------------------------------------------------------------------------- */

static void sparsity_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp)
{
    enum pp_gguf_type type;
    size_t n = 0;
    double v;
    const bool listed = pp_gguf_array(g, "gemma3n.activation_sparsity_scale", &type, &n);
    for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS; l++) {
        if (!listed)
            hp->sparsity[l] = l < SPARSE_LAYERS && hp->n_layer > SPARSE_LAYERS ? USUAL_SPARSITY : 0;
        else if ((size_t)l < n && pp_gguf_array_float(g, "gemma3n.activation_sparsity_scale", (size_t)l, &v))
            hp->sparsity[l] = v > 0 ? (float)v : 0; /* minus infinity: not sparse */
    }
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    const struct pp_tensor *laurel = pp_gguf_tensor(g, "blk.0.laurel_l.weight");
    int64_t shared = 0, active = 0;
    double base = 10000;
    hp->n_stream = USUAL_STREAMS;
    pp_gguf_int(g, "gemma3n.altup.num_inputs", &hp->n_stream);
    pp_gguf_int(g, "gemma3n.altup.active_idx", &active);
    pp_gguf_int(g, "gemma3n.embedding_length_per_layer_input", &hp->n_embd_layer);
    pp_gguf_int(g, "gemma3n.attention.shared_kv_layers", &shared);
    pp_gguf_float(g, "gemma3n.rope.freq_base_swa", &base);
    hp->rope_base_local = (float)base;
    hp->laurel_rank = laurel ? laurel->ne[1] : 0;
    if (!pp_gguf_has(g, "gemma3n.rope.freq_base"))
        hp->rope_base = 1e6f;
    if (!pp_gguf_has(g, "gemma3n.final_logit_softcapping"))
        hp->final_softcap = 30;
    if (!pp_gguf_has(g, "gemma3n.attention.sliding_window_pattern"))
        pp_layers_every(hp, 5, PP_LAYER_WIDE);
    if (active)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "metadata gemma3n.altup.active_idx is %lld, which pippin does not "
                       "compute", (long long)active);
    sparsity_from_gguf(g, hp);
    pp_gemma_scales(hp);
    return pp_layers_share(hp, shared, err);
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    float sparsity[PP_MAX_LAYERS];
    for (int64_t l = 0; l < hp->n_layer; l++)
        sparsity[l] = hp->sparsity[l] != 0.0f ? hp->sparsity[l] : -INFINITY; /* as other programs write it */
    pp_gguf_add_u32(w, "gemma3n.altup.num_inputs", (uint32_t)hp->n_stream);
    pp_gguf_add_u32(w, "gemma3n.altup.active_idx", 0);
    pp_gguf_add_u32(w, "gemma3n.embedding_length_per_layer_input", (uint32_t)hp->n_embd_layer);
    pp_gguf_add_u32(w, "gemma3n.attention.shared_kv_layers", (uint32_t)pp_layers_shared(hp));
    pp_gguf_add_f32_array(w, "gemma3n.activation_sparsity_scale", sparsity, (size_t)hp->n_layer);
    pp_gguf_add_f32(w, "gemma3n.rope.freq_base_swa", hp->rope_base_local);
    if (hp->final_softcap == 0.0f)
        pp_gguf_add_f32(w, "gemma3n.final_logit_softcapping", 0);
}

const struct pp_arch pp_arch_gemma3n = {
    .name = "gemma3n",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .defaults = defaults,
    .parts = &parts,
    .decoder = {.fn = PP_FN_GELU_TANH, .post_norm = true, .qk_norm = PP_QK_BY_HEAD, .unweighted_v_norm = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
