/* dots3.c - the language model of dots3-note: DeepSeek V3.2 with a norm of the key's rotated part and a gate for each
 * head of attention. Three of four layers have a window instead of an indexer, and latent attention of other sizes
 * with a RoPE of its own. Queries and the latent vector are scaled by sqrt(n_embd / their size): a flag in
 * config.json, part of the norms' weights in GGUF files.
 *
 * The indexer's heads rotate neighbouring pairs, as in transformers, vLLM and SGLang, but not in llama.cpp; the
 * difference shows only in contexts longer than index_topk. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"
#include "engine/hparams_int.h"

#define ATTENTION "model.layers.{}.self_attn."

static const struct pp_arch_name names[] = {
    {.hf = ATTENTION "q_a_layernorm", .gguf = "blk.{}.attn_q_a_norm", .form = PP_HF_SCALED},
    {.hf = ATTENTION "kv_a_layernorm", .gguf = "blk.{}.attn_kv_a_norm", .form = PP_HF_SCALED},
    {.hf = ATTENTION "k_rope_only_layernorm", .gguf = "blk.{}.attn_k_norm"},
    {.hf = ATTENTION "g_proj", .gguf = "blk.{}.attn_gate"},
    PP_INDEX_NAMES,
    PP_LATENT_NAMES,
    {.hf = NULL},
};
static const char *const classes[] = {"Dots3NoteTextForCausalLM", "dots3_note_text",
                                      "Dots3NoteForConditionalGeneration", "Dots3NoteForCausalLM", "dots3_note", NULL};
/* Images, sound and multi-token prediction. */
static const char *const others[] = {"vision_encoder.", "audio_encoder.", "model.vision_encoder.",
                                     "model.audio_encoder.", "model.mtp.", NULL};
static const struct pp_arch_parts parts = {
    .model_type = "dots3_note_text", .prefixes = pp_text_prefixes, .others = others};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 152064, \"hidden_size\": 5120, \"intermediate_size\": 13824,"
             "\"num_hidden_layers\": 46, \"num_attention_heads\": 128, \"max_position_embeddings\": 524288,"
             "\"rms_norm_eps\": 1e-5, \"rope_theta\": 80000000.0, \"q_lora_rank\": 1024, \"kv_lora_rank\": 512,"
             "\"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64, \"v_head_dim\": 128, \"index_n_heads\": 64,"
             "\"index_head_dim\": 128, \"index_topk\": 2048, \"n_routed_experts\": 256, \"n_shared_experts\": 1,"
             "\"num_experts_per_tok\": 8, \"moe_intermediate_size\": 1536, \"norm_topk_prob\": true,"
             "\"routed_scaling_factor\": 1.0, \"n_group\": 1, \"topk_group\": 1, \"first_k_dense_replace\": 1}"},
    {.json = NULL},
};
static const char window_word[] = "sliding_attention", sparse_word[] = "deepseek_sparse_attention",
                  grown_word[] = "apply_mla_qkv_lora_rescale";

/* Completes the fields of layers with a window, if there are any; n_head: their number of heads. */
static enum pp_code set_local(int64_t n_head, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_check_range("number of heads of layers with a window", n_head, 1, 1 << 13, err);
    if (!code)
        code = pp_check_range("attention window", hp->window, 1, INT32_MAX, err);
    if (code)
        return code;
    hp->head_dim_local = hp->kv_lora_rank_local + hp->rope_dim;
    hp->attn_scale_local = 1.0f / sqrtf((float)(hp->qk_nope_dim_local + hp->rope_dim));
    pp_layers_local_rope(hp);
    return PP_OK;
}

static enum pp_code check(struct pp_hparams *hp, struct pp_error *err)
{
    hp->per_head_gates = true;
    if (hp->rope_scaling != PP_ROPE_NONE)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "scaled RoPE is not supported for this family");
    return pp_index_check(hp, err);
}

/* --- config.json -------------------------------------------------------------------------------------------------- */

/* Refuses settings that no published model has. */
static enum pp_code refuse_others(const cJSON *config, struct pp_error *err)
{
    static const struct {
        const char *key, *word;
    } words[] = {{"normalization", "RMSNorm"},        {"final_norm", "RMSNorm"},
                 {"attention_gate_type", "headwise"}, {"swa_attention_gate_type", "headwise"},
                 {"softmax_type", "vanilla"},         {"scoring_func", "sigmoid"},
                 {"topk_method", "noaux_tc"}};
    static const struct {
        const char *key;
        bool usual;
    } flags[] = {{"use_dsa", true},          {"k_rope_only_layernorm", true}, {"multi_latent_attention", true},
                 {"attention_bias", false}, {"use_dynamic_rsf", false},      {"moe_gating_fp32", false}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const char *said = cJSON_GetStringValue(pp_json_member(config, words[i].key));
        if (said && strcmp(said, words[i].word) != 0)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s \"%.40s\" is not supported for this family; %s is",
                           words[i].key, said, words[i].word);
    }
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (pp_config_flag(config, flags[i].key, flags[i].usual) != flags[i].usual)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s is %s, which is not supported for this family",
                           flags[i].key, flags[i].usual ? "false" : "true");
    return PP_OK;
}

/* Which layers have the window; *first: the first of them, or -1. */
static enum pp_code layers_from_config(const cJSON *config, struct pp_hparams *hp, int64_t *first, struct pp_error *err)
{
    const cJSON *list = pp_json_member(config, "layer_types"), *item;
    int64_t n = 0;
    *first = -1;
    if (cJSON_IsArray(list) && cJSON_GetArraySize(list) < hp->n_layer)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: layer_types does not name %lld layers",
                       (long long)hp->n_layer);
    item = cJSON_IsArray(list) ? list->child : NULL;
    for (; n < hp->n_layer && n < PP_MAX_LAYERS; n++, item = item ? item->next : NULL) {
        const bool usual_window = pp_config_flag(config, "use_sliding_window", true) && n >= 2 && n % 4 != 1;
        const bool windowed = item ? pp_config_is_layer_word(item, window_word) : usual_window;
        if (item && !windowed && !pp_config_is_layer_word(item, "full_attention") &&
            !pp_config_is_layer_word(item, sparse_word))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: layer_types has \"%.40s\", which is not supported "
                           "for this family", cJSON_IsString(item) ? item->valuestring : "");
        hp->layer[n] |= windowed ? 0 : PP_LAYER_WIDE;
        *first = windowed && *first < 0 ? n : *first;
    }
    return PP_OK;
}

/* A size of layers with a window: under "swa_KEY" in published folders; in transformers' format, layer by layer. */
static enum pp_code local_size(const cJSON *config, int64_t layer, const char *key, int64_t *v, struct pp_error *err)
{
    const cJSON *of_layers = pp_json_member(config, "per_layer_config");
    char name[64];
    snprintf(name, sizeof name, "%lld", (long long)layer);
    const cJSON *of_layer = pp_json_member(of_layers, name);
    if (cJSON_IsObject(of_layer))
        return pp_config_int(of_layer, key, v, err);
    snprintf(name, sizeof name, "swa_%s", key);
    return pp_config_int(config, name, v, err);
}

/* layer: one with the window */
static enum pp_code local_from_config(const cJSON *config, int64_t layer, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *ropes = pp_json_member(config, "rope_parameters");
    const cJSON *rope = pp_json_member(ropes, window_word);
    int64_t n_head = 64, low = 1024, rotated = 64;
    hp->kv_lora_rank_local = 1024;
    hp->qk_nope_dim_local = 192;
    hp->v_head_dim_local = 128;
    hp->rope_base_local = 50000;
    const struct {
        const char *key;
        int64_t *v;
    } sizes[] = {{"num_attention_heads", &n_head},         {"q_lora_rank", &low},
                 {"kv_lora_rank", &hp->kv_lora_rank_local}, {"qk_nope_head_dim", &hp->qk_nope_dim_local},
                 {"qk_rope_head_dim", &rotated},            {"v_head_dim", &hp->v_head_dim_local}};
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && !code; i++)
        code = local_size(config, layer, sizes[i].key, sizes[i].v, err);
    if (!code)
        code = pp_config_float(config, "swa_rope_theta", &hp->rope_base_local, err);
    if (!code && rope)
        code = pp_config_float(rope, "rope_theta", &hp->rope_base_local, err);
    if (!code)
        code = pp_config_unscaled(rope, err);
    if (!code && (low != hp->q_lora_rank || rotated != hp->rope_dim))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: layers with a window have another q_lora_rank or "
                       "qk_rope_head_dim than the others, which is not supported");
    hp->window = 512;
    if (!code)
        code = pp_config_int(config, "sliding_window_size", &hp->window, err);
    if (!code)
        code = pp_config_int(config, "sliding_window", &hp->window, err);
    if (!code)
        code = set_local(n_head, hp, err);
    if (code || n_head == hp->n_head)
        return code;
    pp_layers_vary_sizes(hp);
    for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        hp->sizes[l].n_head = (int32_t)(hp->layer[l] & PP_LAYER_WIDE ? hp->n_head : n_head);
    hp->n_head = n_head > hp->n_head ? n_head : hp->n_head;
    return PP_OK;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *ropes = pp_json_member(config, "rope_parameters");
    const cJSON *wide = pp_json_member(ropes, sparse_word);
    int64_t first = -1;
    enum pp_code code = refuse_others(config, err);
    if (!code)
        code = pp_deepseek_from_config(config, hp, err);
    if (!code)
        code = pp_index_from_config(config, hp, err);
    if (!code && wide)
        code = pp_config_float(wide, "rope_theta", &hp->rope_base, err);
    if (!code)
        code = pp_config_unscaled(wide, err);
    if (!code)
        code = layers_from_config(config, hp, &first, err);
    hp->window = 0;
    if (!code && first >= 0)
        code = local_from_config(config, first, hp, err);
    hp->scales.any = hp->scales.latents = pp_config_flag(config, grown_word, true);
    return code ? code : check(hp, err);
}

/* The scales are part of the norms' weights now. */
static void scaled_config(const struct pp_hparams *hp, bool tied, cJSON *config)
{
    (void)hp, (void)tied;
    cJSON_DeleteItemFromObjectCaseSensitive(config, grown_word);
    cJSON_AddFalseToObject(config, grown_word);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    cJSON *kinds = cJSON_AddArrayToObject(config, "layer_types");
    int64_t wide = 0, local = -1;
    for (int64_t l = 0; l < hp->n_layer; l++) {
        const bool windowed = pp_has_window(hp, l);
        *(windowed ? &local : &wide) = l;
        cJSON_AddItemToArray(kinds, cJSON_CreateString(windowed ? window_word : "full_attention"));
    }
    pp_deepseek_to_config(hp, config);
    pp_config_put_class(config, classes[0], classes[1]);
    pp_index_to_config(hp, config);
    pp_config_put(config, "num_attention_heads", pp_layer_shape(hp, wide).n_head);
    pp_config_put(config, "num_key_value_heads", pp_layer_shape(hp, wide).n_head);
    pp_config_put_text(config, "attention_gate_type", "headwise");
    cJSON_AddTrueToObject(config, "use_dsa");
    cJSON_AddTrueToObject(config, "k_rope_only_layernorm");
    pp_config_put(config, "moe_shared_expert_intermediate_size", hp->n_ff_expert);
    scaled_config(hp, false, config);
    if (local < 0)
        return;
    const struct pp_latent_shape shape = pp_latent_shape(hp, local);
    pp_config_put(config, "swa_num_attention_heads", shape.n_head);
    pp_config_put(config, "swa_num_key_value_heads", shape.n_head);
    pp_config_put(config, "swa_q_lora_rank", hp->q_lora_rank);
    pp_config_put(config, "swa_kv_lora_rank", shape.rank);
    pp_config_put(config, "swa_head_dim", shape.n_key + hp->rope_dim);
    pp_config_put(config, "swa_qk_nope_head_dim", shape.n_key);
    pp_config_put(config, "swa_qk_rope_head_dim", hp->rope_dim);
    pp_config_put(config, "swa_v_head_dim", shape.n_value);
    pp_config_put_float(config, "swa_rope_theta", hp->rope_base_local);
    pp_config_put(config, "sliding_window_size", hp->window);
    pp_config_put_text(config, "swa_attention_gate_type", "headwise");
}

/* --- GGUF --------------------------------------------------------------------------------------------------------- */

static const char base_key[] = "dots3note.rope.freq_base_swa", types_key[] = "dots3note.attention.indexer.types";

static enum pp_code local_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t length = 0;
    double base = 0;
    if (!pp_gguf_int(g, "dots3note.attention.kv_lora_rank_swa", &hp->kv_lora_rank_local) ||
        !pp_gguf_int(g, "dots3note.attention.key_length_mla_swa", &length) ||
        !pp_gguf_int(g, "dots3note.attention.value_length_mla_swa", &hp->v_head_dim_local) ||
        !pp_gguf_float(g, base_key, &base))
        return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks %s, or one of the sizes of layers with a window "
                       "(kv_lora_rank_swa, key_length_mla_swa, value_length_mla_swa)", base_key);
    enum pp_code code = pp_check_range("rank of keys and values of layers with a window", hp->kv_lora_rank_local, 2,
                                       1 << 12, err);
    if (!code)
        code = pp_check_range("head size of layers with a window", length, hp->rope_dim + 1, 1 << 12, err);
    hp->qk_nope_dim_local = length - hp->rope_dim;
    hp->rope_base_local = (float)base;
    return code ? code : set_local(hp->n_head, hp, err);
}

/* Exactly the layers without a window have an indexer. */
static enum pp_code index_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    if (!pp_gguf_int(g, "dots3note.attention.indexer.top_k", &hp->index_top_k))
        return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks dots3note.attention.indexer.top_k, or it is no whole "
                       "number");
    pp_gguf_int(g, "dots3note.attention.indexer.head_count", &hp->n_index_head);
    pp_gguf_int(g, "dots3note.attention.indexer.key_length", &hp->index_dim);
    if (pp_gguf_has(g, types_key))
        code = pp_index_layers_from_gguf(g, types_key, hp, err);
    for (int64_t l = 0; l < hp->n_layer && !code; l++) {
        if (!(hp->layer[l] & PP_LAYER_PICKED_BEFORE) == pp_has_window(hp, l))
            code = pp_fail(err, PP_ERR_UNSUPPORTED, "layer %lld has %s, which is not supported for this family",
                           (long long)l, pp_has_window(hp, l) ? "an index and a window" : "neither index nor window");
        hp->layer[l] &= (uint8_t)~PP_LAYER_PICKED_BEFORE;
    }
    return code;
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_deepseek_from_gguf(g, hp, err);
    bool any = false;
    for (int64_t l = 0; l < hp->n_layer; l++) {
        any = any || pp_has_window(hp, l);
        hp->sizes[l].n_head_kv = 1;
    }
    hp->window = any ? hp->window : 0;
    if (!code && any)
        code = local_from_gguf(g, hp, err);
    if (!code)
        code = index_from_gguf(g, hp, err);
    return code ? code : check(hp, err);
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    bool has[PP_MAX_LAYERS];
    for (int64_t l = 0; l < hp->n_layer; l++)
        has[l] = !pp_has_window(hp, l);
    pp_deepseek_to_gguf(hp, w);
    pp_index_to_gguf(hp, w);
    pp_gguf_add_bool_array(w, types_key, has, (size_t)hp->n_layer);
    if (hp->window)
        pp_gguf_add_f32(w, base_key, hp->rope_base_local);
}

const struct pp_arch pp_arch_dots3note = {
    .name = "dots3note",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .parts = &parts,
    .hf_pairs = true,
    .gguf_default_no_renorm = true,
    .gguf_default_sigmoids = true,
    .decoder = {.gated_attention = true, .k_rope_norm = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
    .scaled_config = scaled_config,
};
