/* gemma4.c - Gemma 4 (transformers, models/gemma4): layers with and without a window differ in head size; the latter
 * rotate only a part of their pairs and may use their keys as values; values are normalised without weights. Small
 * models have per-layer inputs, and last layers that share the keys and values of earlier ones; the mixture has
 * experts in parallel with the dense feed-forward part. Norms' weights are stored as they are, unlike Gemma 3's. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

#define LAYER "model.layers.{}."
#define BLOCK "blk.{}."

static const struct pp_arch_name names[] = {
    PP_LAYER_INPUT_NAMES,
    {.hf = LAYER "layer_scalar", .gguf = BLOCK "layer_output_scale.weight", .whole = true},
    {.hf = LAYER "router.proj", .gguf = BLOCK "ffn_gate_inp"},
    {.hf = LAYER "router.scale", .gguf = BLOCK "ffn_gate_inp.scale", .whole = true},
    {.hf = LAYER "router.per_expert_scale", .gguf = BLOCK "ffn_down_exps.scale", .whole = true},
    {.hf = LAYER "experts.gate_up_proj", .gguf = BLOCK "ffn_gate_exps.weight", .second = BLOCK "ffn_up_exps.weight",
     .form = PP_HF_HALVES, .whole = true},
    {.hf = LAYER "experts.down_proj", .gguf = BLOCK "ffn_down_exps.weight", .whole = true},
    {.hf = LAYER "pre_feedforward_layernorm_2", .gguf = BLOCK "pre_ffw_norm_2"},
    {.hf = LAYER "post_feedforward_layernorm_1", .gguf = BLOCK "post_ffw_norm_1"},
    {.hf = LAYER "post_feedforward_layernorm_2", .gguf = BLOCK "post_ffw_norm_2"},
    {.hf = NULL},
};

static const char *const classes[] = {
    "Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", "gemma4_text", "gemma4", "Gemma4UnifiedForCausalLM",
    "Gemma4UnifiedForConditionalGeneration", "gemma4_unified_text", "gemma4_unified", NULL};
static const struct pp_arch_parts parts = {
    .model_type = "gemma4_text", .prefixes = pp_text_prefixes, .others = pp_gemma_others};

/* A text_config has only what differs from these defaults. */
static const struct pp_arch_default defaults[] = {
    {"gemma4_unified_text", NULL,
     "{\"hidden_size_per_layer_input\": 0, \"sliding_window\": 1024, \"max_position_embeddings\": 262144}"},
    {.json = "{\"vocab_size\": 262144, \"hidden_size\": 2304, \"intermediate_size\": 9216, \"num_hidden_layers\": 30,"
             "\"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"head_dim\": 256,"
             "\"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-6, \"tie_word_embeddings\": true,"
             "\"hidden_size_per_layer_input\": 256, \"rope_parameters\": {"
             "\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0},"
             "\"full_attention\": {\"rope_type\": \"proportional\", \"partial_rotary_factor\": 0.25,"
             "\"rope_theta\": 1000000.0}}}"},
    {.json = NULL},
};

static bool is_wide(const struct pp_hparams *hp, int64_t l)
{
    return !hp->window || hp->layer[l] & PP_LAYER_WIDE;
}

/* --- config.json -------------------------------------------------------------------------------------------------- */

/* Whether settings of single layers are given for all layers without a window, alike, and for no others. */
static bool is_for_wide_layers(const cJSON *layers, const struct pp_hparams *hp)
{
    const cJSON *item, *first = layers->child;
    cJSON_ArrayForEach(item, layers) {
        char *end;
        const long l = strtol(item->string, &end, 10);
        if (end == item->string || *end || l < 0 || l >= hp->n_layer || !is_wide(hp, l) ||
            !cJSON_Compare(item, first, true))
            return false;
    }
    return true;
}

enum pp_code pp_gemma_wide_from_config(const cJSON *config, float part, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *layers = pp_json_member(config, "per_layer_config");
    const cJSON *one = cJSON_IsObject(layers) ? layers->child : NULL;
    const cJSON *rope = pp_json_member(config, "rope_parameters");
    const int64_t local_kv = hp->n_head_kv;
    int64_t dim = 512, n_head_kv = local_kv;
    float local_part = 1;
    enum pp_code code = pp_config_int(config, "global_head_dim", &dim, err);
    if (!code && one && !is_for_wide_layers(layers, hp))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: per_layer_config has layers with a window, or layers "
                       "that differ from each other, which is not supported");
    hp->keys_as_values = pp_config_flag(config, "attention_k_eq_v", false);
    if (!code && hp->keys_as_values)
        code = pp_config_int(config, "num_global_key_value_heads", &n_head_kv, err);
    if (!code)
        code = pp_config_int(one, "head_dim", &dim, err);
    if (!code)
        code = pp_config_int(one, "num_key_value_heads", &n_head_kv, err);
    if (!code)
        code = pp_config_float(pp_json_member(rope, "full_attention"), "partial_rotary_factor",
                               &part, err);
    if (!code)
        code = pp_config_float(pp_json_member(rope, "sliding_attention"), "partial_rotary_factor",
                               &local_part, err);
    if (!code && !(part > 0 && part <= 1 && local_part > 0 && local_part <= 1 && dim > 0 && dim <= 1 << 12 &&
                   n_head_kv > 0 && n_head_kv <= hp->n_head && local_kv <= hp->n_head))
        code = pp_fail(err, PP_ERR_FORMAT, "config.json: the sizes of layers without a window are not valid");
    if (code)
        return code;
    hp->head_dim_local = hp->head_dim;
    hp->rope_dim_local = (int64_t)((float)hp->head_dim * local_part);
    hp->head_dim = hp->rope_dim = dim;
    hp->rope_n_pairs = (int64_t)((float)dim * part / 2);
    if (n_head_kv == local_kv)
        return PP_OK;
    pp_layers_vary_sizes(hp);
    hp->n_head_kv = n_head_kv > local_kv ? n_head_kv : local_kv;
    for (int64_t l = 0; l < hp->n_layer; l++)
        hp->sizes[l].n_head_kv = (int32_t)(is_wide(hp, l) ? n_head_kv : local_kv);
    return PP_OK;
}

/* Layers that share keys and values may have feed-forward parts twice as wide (use_double_wide_mlp). */
static enum pp_code shared_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t n = 0;
    enum pp_code code = pp_config_int(config, "num_kv_shared_layers", &n, err);
    if (!code)
        code = pp_layers_share(hp, n, err);
    if (code || n == 0 || !pp_config_flag(config, "use_double_wide_mlp", false))
        return code;
    if (hp->n_ff > 1 << 21)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: intermediate_size %lld is too large", (long long)hp->n_ff);
    if (!hp->sizes_vary)
        pp_layers_vary_sizes(hp);
    for (int64_t l = hp->n_layer - n; l < hp->n_layer; l++)
        hp->sizes[l].n_ff *= 2;
    hp->n_ff *= 2;
    return PP_OK;
}

static enum pp_code experts_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const struct pp_expert_keys keys = {.n = "num_experts", .n_used = "top_k_experts",
                                               .n_ff = "moe_intermediate_size"};
    return pp_config_flag(config, "enable_moe_block", false) ? pp_config_experts(config, &keys, hp, err) : PP_OK;
}

enum pp_code pp_gemma_local_rope(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *rope = pp_json_member(config, "rope_parameters");
    const cJSON *local = pp_json_member(rope, "sliding_attention");
    hp->rope_base_local = 10000;
    const enum pp_code code = pp_config_unscaled(local, err);
    return code ? code : pp_config_float(local, "rope_theta", &hp->rope_base_local, err);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "hidden_activation", pp_gelu_tanh_names, err);
    if (!code)
        code = pp_config_window(config, 512, hp, err);
    pp_layers_every(hp, 6, PP_LAYER_WIDE);
    hp->layer[hp->n_layer - 1] |= PP_LAYER_WIDE;
    if (!code)
        code = pp_config_layer_types(config, hp, err);
    if (!code)
        code = pp_gemma_local_rope(config, hp, err);
    if (!code)
        code = pp_config_float(config, "final_logit_softcapping", &hp->final_softcap, err);
    if (!code)
        code = pp_config_int(config, "hidden_size_per_layer_input", &hp->n_embd_layer, err);
    if (!code)
        code = pp_gemma_wide_from_config(config, 0.25f, hp, err);
    if (!code)
        code = shared_from_config(config, hp, err);
    pp_gemma_scales(hp);
    return code ? code : experts_from_config(config, hp, err);
}

static cJSON *rope_object(const char *type, float base)
{
    cJSON *rope = cJSON_CreateObject();
    pp_config_put_text(rope, "rope_type", type);
    pp_config_put_float(rope, "rope_theta", base);
    return rope;
}

static void put_rope(const struct pp_hparams *hp, cJSON *config)
{
    const float turning = hp->rope_n_pairs ? 2 * (float)hp->rope_n_pairs / (float)hp->head_dim : 1;
    cJSON *rope = cJSON_AddObjectToObject(config, "rope_parameters");
    cJSON *wide = rope_object("proportional", hp->rope_base);
    pp_config_put_float(wide, "partial_rotary_factor", turning);
    cJSON_DeleteItemFromObjectCaseSensitive(config, "rope_theta");
    cJSON_DeleteItemFromObjectCaseSensitive(config, "partial_rotary_factor");
    cJSON_AddItemToObject(rope, "full_attention", wide);
    cJSON_AddItemToObject(rope, "sliding_attention", rope_object("default", hp->rope_base_local));
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    int64_t wide = hp->n_layer - 1, local = 0;
    while (wide > 0 && !is_wide(hp, wide))
        wide--;
    while (local < hp->n_layer - 1 && is_wide(hp, local))
        local++;
    const struct pp_layer_shape of_wide = pp_layer_shape(hp, wide), of_local = pp_layer_shape(hp, local);
    pp_config_put_text(config, "hidden_activation", "gelu_pytorch_tanh");
    pp_config_put_layer_types(config, hp);
    put_rope(hp, config);
    pp_config_put(config, "head_dim", of_local.head_dim);
    pp_config_put(config, "global_head_dim", of_wide.head_dim);
    pp_config_put(config, "num_key_value_heads", of_local.n_head_kv);
    if (of_wide.n_head_kv != of_local.n_head_kv)
        pp_config_put(config, "num_global_key_value_heads", of_wide.n_head_kv);
    else
        cJSON_AddNullToObject(config, "num_global_key_value_heads");
    cJSON_AddBoolToObject(config, "attention_k_eq_v", hp->keys_as_values);
    pp_config_put(config, "intermediate_size", pp_layer_shape(hp, 0).n_ff);
    cJSON_AddBoolToObject(config, "use_double_wide_mlp",
                          pp_layer_shape(hp, hp->n_layer - 1).n_ff != pp_layer_shape(hp, 0).n_ff);
    pp_config_put(config, "num_kv_shared_layers", pp_layers_shared(hp));
    pp_config_put(config, "hidden_size_per_layer_input", hp->n_embd_layer);
    pp_config_put(config, "vocab_size_per_layer_input", hp->n_vocab);
    if (hp->final_softcap != 0.0f)
        pp_config_put_float(config, "final_logit_softcapping", hp->final_softcap);
    cJSON_AddBoolToObject(config, "enable_moe_block", hp->n_expert > 0);
    if (!hp->n_expert)
        return;
    pp_config_put(config, "num_experts", hp->n_expert);
    pp_config_put(config, "top_k_experts", hp->n_expert_used);
    pp_config_put(config, "moe_intermediate_size", hp->n_ff_expert);
}

/* --- GGUF --------------------------------------------------------------------------------------------------------- */

/* rope_freqs.weight, divisors of the frequencies, has 1 for the rotated pairs, and after these a huge number for pairs
 * that are not rotated. */
static void find_rotated_pairs(const struct pp_gguf *g, struct pp_hparams *hp)
{
    const struct pp_tensor *t = pp_gguf_tensor(g, "rope_freqs.weight");
    const float *divisors = t && t->type == PP_TYPE_F32 && t->ne[0] == hp->rope_dim / 2 ? t->data : NULL;
    int64_t n = 0;
    while (divisors && n < t->ne[0] && divisors[n] == 1.0f)
        n++;
    for (int64_t i = n; divisors && i < t->ne[0]; i++)
        if (divisors[i] < 1e20f)
            return; /* not of that form */
    hp->rope_n_pairs = divisors && n < t->ne[0] ? n : 0;
}

/* Whether the first layer without a window has no projection for values. */
static bool lacks_values(const struct pp_gguf *g, const struct pp_hparams *hp)
{
    int64_t l = 0;
    char name[64];
    while (l < hp->n_layer - 1 && !is_wide(hp, l))
        l++;
    snprintf(name, sizeof name, "blk.%lld.attn_v.weight", (long long)l);
    if (pp_gguf_tensor(g, name))
        return false;
    snprintf(name, sizeof name, "blk.%lld.attn_k.weight", (long long)l);
    return pp_gguf_tensor(g, name) != NULL;
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t shared = 0, values = 0;
    double base = 10000;
    pp_gguf_int(g, "gemma4.attention.key_length_swa", &hp->head_dim_local);
    values = hp->head_dim_local;
    pp_gguf_int(g, "gemma4.attention.value_length_swa", &values);
    if (values != hp->head_dim_local)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "keys and values of different sizes (%lld, %lld) are not supported",
                       (long long)hp->head_dim_local, (long long)values);
    hp->rope_dim_local = hp->head_dim_local;
    pp_gguf_int(g, "gemma4.rope.dimension_count_swa", &hp->rope_dim_local);
    pp_gguf_float(g, "gemma4.rope.freq_base_swa", &base);
    hp->rope_base_local = (float)base;
    if (!pp_gguf_has(g, "gemma4.rope.freq_base"))
        hp->rope_base = 1e6f;
    pp_gguf_int(g, "gemma4.embedding_length_per_layer_input", &hp->n_embd_layer);
    pp_gguf_int(g, "gemma4.attention.shared_kv_layers", &shared);
    if (!pp_gguf_has(g, "gemma4.attention.sliding_window_pattern"))
        pp_layers_every(hp, 6, PP_LAYER_WIDE);
    hp->keys_as_values = lacks_values(g, hp);
    pp_gemma_scales(hp);
    find_rotated_pairs(g, hp);
    return pp_layers_share(hp, shared, err);
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_gguf_add_f32(w, "gemma4.rope.freq_base_swa", hp->rope_base_local);
    pp_gguf_add_u32(w, "gemma4.attention.shared_kv_layers", (uint32_t)pp_layers_shared(hp));
    pp_gguf_add_u32(w, "gemma4.embedding_length_per_layer_input", (uint32_t)hp->n_embd_layer);
}

const struct pp_arch pp_arch_gemma4 = {
    .name = "gemma4",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .defaults = defaults,
    .parts = &parts,
    .decoder = {.fn = PP_FN_GELU_TANH, .post_norm = true, .qk_norm = PP_QK_BY_HEAD, .unweighted_v_norm = true,
                .experts_plus_dense = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
