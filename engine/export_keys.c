/* export_keys.c - a GGUF file's metadata: made from a folder, or copied from a file, except for what the new types
 * change. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "engine/arch/arch.h"
#include "engine/engine.h"
#include "engine/export.h"
#include "engine/gguf.h"
#include "engine/hparams.h"
#include "engine/rope.h"
#include "engine/text.h"
#include "engine/xielu.h"

static const char quantization_version[] = "general.quantization_version"; /* of the block formats; 2 since 2023 */
enum { QUANTIZATION_VERSION = 2 };

/* Keys of the form "llama.context_length". */
struct keys {
    struct pp_gguf_writer *w;
    const char *arch;
    char full[128];
};

static const char *key(struct keys *k, const char *name)
{
    snprintf(k->full, sizeof k->full, "%s.%s", k->arch, name);
    return k->full;
}

static void add_number(struct keys *k, const char *name, int64_t v)
{
    pp_gguf_add_u32(k->w, key(k, name), (uint32_t)v);
}

/* Keys of linear, YaRN and LongRoPE scaling; llama3's is the tensor rope_freqs.weight. */
static void add_rope_scaling(struct keys *k, const struct pp_hparams *hp)
{
    if (hp->rope_scaling == PP_ROPE_LONG) {
        add_number(k, "rope.scaling.original_context_length", hp->rope_orig_ctx);
        pp_gguf_add_f32(k->w, key(k, "rope.scaling.attn_factor"), pp_rope_long_magnitude(hp));
    }
    if (hp->attn_temperature != 0.0f && !hp->attn_temperature_length && hp->rope_scaling != PP_ROPE_YARN)
        add_number(k, "rope.scaling.original_context_length", hp->rope_orig_ctx);
    if (hp->rope_scaling != PP_ROPE_LINEAR && hp->rope_scaling != PP_ROPE_YARN)
        return;
    bool yarn = hp->rope_scaling == PP_ROPE_YARN;
    pp_gguf_add_text(k->w, key(k, "rope.scaling.type"), yarn ? "yarn" : "linear");
    pp_gguf_add_f32(k->w, key(k, "rope.scaling.factor"), hp->rope_factor);
    if (!yarn)
        return;
    add_number(k, "rope.scaling.original_context_length", hp->rope_orig_ctx);
    if (hp->rope_attn_factor != 0.0f && !hp->kv_lora_rank &&
        !hp->compressed) /* GGUF's value multiplies the usual scale, ours replaces it */
        pp_gguf_add_f32(k->w, key(k, "rope.scaling.attn_factor"),
                        hp->rope_attn_factor / (0.1f * logf(hp->rope_factor) + 1.0f));
    if (hp->rope_beta_fast != 32.0f)
        pp_gguf_add_f32(k->w, key(k, "rope.scaling.yarn_beta_fast"), hp->rope_beta_fast);
    if (hp->rope_beta_slow != 1.0f)
        pp_gguf_add_f32(k->w, key(k, "rope.scaling.yarn_beta_slow"), hp->rope_beta_slow);
}

static bool has_bit(const struct pp_hparams *hp, int64_t layer, uint8_t bit)
{
    return hp->layer[layer] & bit;
}

/* Whether each step-th layer, beginning with the first or the step-th, has the bit, and no other does; step 0: none has
 * it. */
static bool is_every(const struct pp_hparams *hp, int step, bool from_first, uint8_t bit)
{
    for (int64_t l = 0; l < hp->n_layer; l++)
        if (has_bit(hp, l, bit) != (step && (l + !from_first) % step == 0))
            return false;
    return true;
}

/* The window, and which layers have it, if it differs from what the family's files imply. */
static void add_windows(struct keys *k, const struct pp_arch *arch, const struct pp_hparams *hp)
{
    bool windowed[PP_MAX_LAYERS];
    if (hp->window || arch->gguf_has_window_key) /* an encoder's window is counted from end to end */
        add_number(k, "attention.sliding_window", pp_arch_encodes(arch) ? 2 * (hp->window - 1) : hp->window);
    if (!hp->window || is_every(hp, arch->layer_pattern, arch->pattern_from_first, PP_LAYER_WIDE))
        return;
    for (int64_t l = 0; l < hp->n_layer; l++)
        windowed[l] = !has_bit(hp, l, PP_LAYER_WIDE);
    pp_gguf_add_bool_array(k->w, key(k, "attention.sliding_window_pattern"), windowed, (size_t)hp->n_layer);
}

/* Both numbers of each layer; 0: no experts. */
static void add_uneven_experts(struct keys *k, const struct pp_hparams *hp)
{
    int32_t n_used[PP_MAX_LAYERS], n_ff[PP_MAX_LAYERS];
    for (int64_t l = 0; l < hp->n_layer; l++) {
        n_used[l] = hp->layer_experts[l].n_used;
        n_ff[l] = hp->layer_experts[l].n_ff;
    }
    pp_gguf_add_i32_array(k->w, key(k, "expert_used_count"), n_used, (size_t)hp->n_layer);
    pp_gguf_add_i32_array(k->w, key(k, "expert_feed_forward_length"), n_ff, (size_t)hp->n_layer);
}

static void add_experts(struct keys *k, const struct pp_arch *arch, const struct pp_hparams *hp)
{
    enum { SOFTMAX = 1, SIGMOIDS = 2, ROOTS = 4 };
    int64_t n_dense = 0;
    while (n_dense < hp->n_layer && has_bit(hp, n_dense, PP_LAYER_DENSE))
        n_dense++;
    add_number(k, "expert_count", hp->n_expert);
    if (hp->experts_vary) {
        add_uneven_experts(k, hp);
    } else {
        add_number(k, "expert_used_count", hp->n_expert_used);
        add_number(k, "expert_feed_forward_length", hp->n_ff_expert);
    }
    if (hp->n_ff_shared) {
        const bool several = !hp->experts_vary && hp->n_ff_shared % hp->n_ff_expert == 0;
        add_number(k, "expert_shared_count", several ? hp->n_ff_shared / hp->n_ff_expert : 1);
        add_number(k, "expert_shared_feed_forward_length", hp->n_ff_shared);
    }
    if (n_dense || hp->n_ff_shared) /* other programs need a 0, too */
        add_number(k, "leading_dense_block_count", n_dense);
    if (hp->n_expert_group > 1) {
        add_number(k, "expert_group_count", hp->n_expert_group);
        add_number(k, "expert_group_used_count", hp->n_expert_group_used);
    }
    if (hp->expert_sigmoids || arch->gguf_default_sigmoids)
        add_number(k, "expert_gating_func",
                   hp->expert_sqrt_softplus ? ROOTS : hp->expert_sigmoids ? SIGMOIDS : SOFTMAX);
    if (hp->expert_scale != 0.0f)
        pp_gguf_add_f32(k->w, key(k, "expert_weights_scale"), hp->expert_scale);
    if (hp->expert_no_renorm != arch->gguf_default_no_renorm)
        pp_gguf_add_bool(k->w, key(k, "expert_weights_norm"), !hp->expert_no_renorm);
}

/* Keys of a few families only; 0: absent. */
static void add_rare(struct keys *k, const struct pp_arch *arch, const struct pp_hparams *hp)
{
    const bool divides = arch->gguf_divides_logits && hp->logit_scale != 0.0f;
    const struct {
        const char *name;
        float v;
    } floats[] = {
        {arch->gguf_output_scale ? "attention.output_scale" : "attention.scale",
         hp->kv_lora_rank ? 0.0f : hp->attn_scale}, /* the family computes it */
        {"attention.clamp_kqv", hp->qkv_clamp}, {"attention.value_scale", hp->attn_value_scale},
        {"attention.max_alibi_bias", hp->alibi},
        {"attention.temperature_scale", hp->attn_temperature},
        {"attn_logit_softcapping", hp->attn_softcap},
        {"final_logit_softcapping", hp->final_softcap}, {"router_logit_softcapping", hp->router_softcap},
        {"embedding_scale", hp->embd_scale},
        {"residual_scale", hp->residual_scale},
        {"logit_scale", divides                    ? 1.0f / hp->logit_scale
                        : arch->gguf_scaled_output ? 0.0f
                                                   : hp->logit_scale},
    };
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++)
        if (floats[i].v != 0.0f)
            pp_gguf_add_f32(k->w, key(k, floats[i].name), floats[i].v);
    if (arch->gguf_has_parallel_key)
        pp_gguf_add_bool(k->w, key(k, "use_parallel_residual"), hp->parallel);
    if (hp->activation != PP_ACTIVATION_USUAL)
        pp_gguf_add_text(k->w, key(k, "hidden_activation"), pp_activation_names[hp->activation]);
    if (hp->n_expert)
        add_experts(k, arch, hp);
    if (arch->to_gguf)
        arch->to_gguf(hp, k->w);
}

/* Keys that other programs need for an encoder. */
static void add_encoder(struct keys *k, const struct pp_hparams *hp)
{
    pp_gguf_add_bool(k->w, key(k, "attention.causal"), false);
    pp_gguf_add_u32(k->w, "tokenizer.ggml.token_type_count", (uint32_t)(hp->n_segments ? hp->n_segments : 1));
}

/* Refuses what GGUF has no key for. */
static enum pp_code check_words(const struct pp_arch *arch, const struct pp_hparams *hp, struct pp_error *err)
{
    const char *what = NULL;
    if (hp->rope_scaling == PP_ROPE_DYNAMIC)
        what = "dynamic RoPE scaling";
    else if (hp->rope_scaling == PP_ROPE_YARN && hp->rope_no_truncate != arch->yarn_no_truncate)
        what = "YaRN scaling of this kind";
    else if (arch->unrotated_pattern && !is_every(hp, arch->unrotated_pattern, false, PP_LAYER_UNROTATED))
        what = "which layers are not rotated";
    return what ? pp_fail(err, PP_ERR_UNSUPPORTED, "GGUF files of the family %s cannot express %s", arch->name, what)
                : PP_OK;
}

/* "152K", "1.4M", "7B": at least two digits. */
static void size_label(int64_t n_params, char out[32])
{
    static const struct {
        double one;
        const char *suffix;
    } units[] = {{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "K"}};
    size_t u = 0;
    while (u < 3 && (double)n_params <= units[u].one)
        u++;
    double scaled = (double)n_params / units[u].one;
    snprintf(out, 32, "%.*f%s", rint(scaled) >= 10 ? 0 : 1, scaled, units[u].suffix);
}

static const char *const length_keys[] = {"attention.head_count_kv", "attention.key_length", "attention.value_length",
                                          "attention.key_length_mla", "attention.value_length_mla",
                                          "attention.key_length_swa", "attention.value_length_swa",
                                          "attention.key_length_mla_swa", "attention.value_length_mla_swa", NULL};

/* Whether layers without attention have no KV heads. */
static bool has_layers_without(const struct pp_hparams *hp)
{
    const bool mamba_alone = hp->mamba && !hp->states_parallel && !hp->n_shared_block;
    return hp->conv_taps && (!hp->n_state_head || hp->kda || hp->lru_width || mamba_alone);
}

static void add_layers_without(struct keys *k, const struct pp_hparams *hp)
{
    int32_t n_head_kv[PP_MAX_LAYERS];
    for (int64_t l = 0; l < hp->n_layer; l++)
        n_head_kv[l] = has_bit(hp, l, PP_LAYER_CONVOLVED | PP_LAYER_RECURRENT)
                           ? 0 : (int32_t)pp_layer_shape(hp, l).n_head_kv;
    pp_gguf_add_i32_array(k->w, key(k, length_keys[0]), n_head_kv, (size_t)hp->n_layer);
    if (!hp->n_state_head)
        add_number(k, "shortconv.l_cache", hp->conv_taps);
}

/* A size that may differ between layers; place: its offset in a layer's shape. */
static void add_of_layers(struct keys *k, const char *name, const struct pp_hparams *hp, size_t place, int64_t factor)
{
    int32_t sizes[PP_MAX_LAYERS];
    bool differ = false;
    for (int64_t l = 0; l < hp->n_layer; l++) {
        const struct pp_layer_shape shape = pp_layer_shape(hp, l);
        sizes[l] = (int32_t)(*(const int64_t *)(const void *)((const char *)&shape + place) * factor);
        differ = differ || sizes[l] != sizes[0];
    }
    if (differ)
        pp_gguf_add_i32_array(k->w, key(k, name), sizes, (size_t)hp->n_layer);
    else
        add_number(k, name, sizes[0]);
}

/* Sizes of heads; with latent attention those of the cached vectors and of what is made from them. Files with kv_b in
 * one do not know the former. */
static void add_lengths(struct keys *k, const struct pp_hparams *hp)
{
    const bool joined = pp_arch_by_name(hp->arch)->gguf_joined_kv_b;
    const int64_t rank = hp->kv_lora_rank, key = hp->qk_nope_dim + hp->rope_dim, value = hp->v_head_dim;
    const int64_t usual[] = {hp->n_head_kv, hp->head_dim, rank ? rank : value ? value : hp->head_dim, key, value};
    const int64_t of_heads[] = {hp->n_head, key, value};
    for (int i = has_layers_without(hp) ? 1 : 0; i < (rank && !joined ? 5 : 3); i++)
        if (i == 0 && !rank)
            add_of_layers(k, length_keys[i], hp, offsetof(struct pp_layer_shape, n_head_kv), 1);
        else
            add_number(k, length_keys[i], joined ? of_heads[i] : usual[i]);
    if (hp->kv_lora_rank_local) {
        add_number(k, "attention.key_length_mla_swa", hp->qk_nope_dim_local + hp->rope_dim);
        add_number(k, "attention.value_length_mla_swa", hp->v_head_dim_local);
    }
    if (hp->head_dim_local) {
        add_number(k, "attention.key_length_swa", hp->head_dim_local);
        add_number(k, "attention.value_length_swa", rank ? hp->kv_lora_rank_local : hp->head_dim_local);
    }
}

static void add_hparams(struct pp_gguf_writer *w, const struct pp_hparams *hp, int64_t n_params)
{
    const struct pp_arch *arch = pp_arch_by_name(hp->arch);
    const char *name = pp_arch_file_name(hp);
    struct keys k = {.w = w, .arch = name};
    char label[32];
    size_label(n_params, label);
    pp_gguf_add_text(w, "general.architecture", name);
    if (arch->file_name)
        pp_gguf_add_text(w, pp_family_key, arch->name);
    pp_gguf_add_text(w, "general.type", "model");
    pp_gguf_add_text(w, "general.name", hp->name);
    pp_gguf_add_text(w, "general.size_label", label);
    add_number(&k, "block_count", hp->high_cycles ? hp->n_layer / 2 * hp->high_cycles * (hp->low_cycles + 1)
                                                  : hp->n_layer);
    add_number(&k, "context_length", hp->n_ctx_train);
    add_number(&k, "embedding_length", hp->n_embd);
    if (arch->gguf_ff_of_experts)
        add_number(&k, "feed_forward_length", hp->n_ff_expert);
    else
        add_of_layers(&k, "feed_forward_length", hp, offsetof(struct pp_layer_shape, n_ff),
                      arch->gguf_doubles_ff ? 2 : 1);
    if (hp->rwkv) { /* other programs use any number of heads or keys as that of states */
        add_number(&k, "attention.head_count", 0);
    } else {
        add_of_layers(&k, "attention.head_count", hp, offsetof(struct pp_layer_shape, n_head), 1);
        add_windows(&k, arch, hp);
        pp_gguf_add_f32(w, key(&k, "rope.freq_base"), hp->compressed ? hp->rope_base_local : hp->rope_base);
        add_rope_scaling(&k, hp);
    }
    pp_gguf_add_f32(w, key(&k, arch->encoder || (arch->decoder.layer_norm && !hp->rms_norm)
                                    ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon"),
                    hp->norm_eps);
    if (!hp->rwkv)
        add_lengths(&k, hp);
    if (has_layers_without(hp))
        add_layers_without(&k, hp);
    add_number(&k, "vocab_size", hp->n_vocab);
    if (!hp->rwkv)
        add_number(&k, "rope.dimension_count", arch->gguf_doubles_rope ? 2 * hp->rope_dim : hp->rope_dim);
    if (hp->rope_dim_local)
        add_number(&k, "rope.dimension_count_swa", hp->rope_dim_local);
    if (hp->kv_lora_rank)
        add_number(&k, "attention.kv_lora_rank", hp->kv_lora_rank);
    if (hp->kv_lora_rank_local)
        add_number(&k, "attention.kv_lora_rank_swa", hp->kv_lora_rank_local);
    if (hp->q_lora_rank)
        add_number(&k, "attention.q_lora_rank", hp->q_lora_rank);
    add_rare(&k, arch, hp);
    if (pp_arch_encodes(arch))
        add_encoder(&k, hp);
    if (hp->pooling != PP_POOLING_UNKNOWN)
        add_number(&k, "pooling_type", hp->pooling - 1);
}

static enum pp_code add_tokenizer(struct pp_gguf_writer *w, const struct pp_source *s, struct pp_error *err)
{
    struct pp_tokenizer *t;
    enum pp_code code = pp_tokenizer_from_source(s, &t, err);
    if (code == PP_ERR_NOT_FOUND) { /* a model without a vocabulary runs on ids */
        pp_gguf_add_text(w, "tokenizer.ggml.model", "no_vocab");
        return PP_OK;
    }
    if (code)
        return code;
    code = pp_tokenizer_to_gguf(t, pp_source_hparams(s)->n_vocab, w, err);
    pp_tokenizer_free(t);
    size_t n_suppressed;
    const int32_t *suppressed = pp_source_suppressed(s, &n_suppressed);
    if (n_suppressed)
        pp_gguf_add_i32_array(w, pp_suppressed_key, suppressed, n_suppressed);
    if (!code && pp_source_chat_template(s))
        pp_gguf_add_text(w, "tokenizer.chat_template", pp_source_chat_template(s));
    if (!code && pp_source_tool_template(s) != pp_source_chat_template(s)) {
        static const struct pp_str names[] = {{"tool_use", 8}};
        pp_gguf_add_str_array(w, "tokenizer.chat_templates", names, 1);
        pp_gguf_add_text(w, "tokenizer.chat_template.tool_use", pp_source_tool_template(s));
    }
    return code;
}

/* Whether a key is one of these sizes, which older files with latent attention have differently. */
static bool is_length(const struct pp_hparams *hp, struct pp_str name)
{
    char full[128];
    for (const char *const *k = length_keys; hp->kv_lora_rank && *k; k++) {
        snprintf(full, sizeof full, "%s.%s", hp->arch, *k);
        if (name.len == strlen(full) && memcmp(name.data, full, name.len) == 0)
            return true;
    }
    return false;
}

/* Copies all keys that the new types do not change. Our files are always aligned to 32 bytes. */
static void copy_metadata(struct pp_gguf_writer *w, const struct pp_gguf *from, const struct pp_hparams *hp)
{
    static const char *const ours[] = {"general.file_type", "general.alignment", quantization_version,
                                       "split.no", "split.count", "split.tensors.count", "quantize.imatrix.file",
                                       "quantize.imatrix.dataset", "quantize.imatrix.entries_count",
                                       "quantize.imatrix.chunks_count"};
    for (size_t i = 0; i < pp_gguf_n_kv(from); i++) {
        struct pp_str name = pp_gguf_kv_key(from, i);
        bool skip = is_length(hp, name);
        for (size_t o = 0; o < sizeof ours / sizeof *ours; o++)
            skip = skip || (name.len == strlen(ours[o]) && memcmp(name.data, ours[o], name.len) == 0);
        if (!skip)
            pp_gguf_add_copy(w, from, i);
    }
}

/* Names the importance matrix, under llama-quantize's keys. */
static void add_imatrix(struct pp_gguf_writer *w, const struct pp_convert_options *opt)
{
    const struct pp_imatrix_info info = pp_imatrix_info(opt->imatrix);
    pp_gguf_add_text(w, "quantize.imatrix.file", opt->imatrix_name ? opt->imatrix_name : "");
    if (info.n_datasets)
        pp_gguf_add_text(w, "quantize.imatrix.dataset", pp_imatrix_dataset(opt->imatrix, 0));
    pp_gguf_add_u32(w, "quantize.imatrix.entries_count", (uint32_t)info.n_tensors);
    pp_gguf_add_u32(w, "quantize.imatrix.chunks_count", info.chunks);
}

enum pp_code pp_export_keys(struct pp_gguf_writer *w, const struct pp_source *s, int file_type,
                            const struct pp_convert_options *opt, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    if (pp_source_gguf(s)) {
        copy_metadata(w, pp_source_gguf(s), pp_source_hparams(s));
        struct keys k = {.w = w, .arch = pp_source_hparams(s)->arch};
        if (pp_source_hparams(s)->kv_lora_rank)
            add_lengths(&k, pp_source_hparams(s));
        if (pp_source_hparams(s)->kda) /* some layers have no KV heads */
            add_layers_without(&k, pp_source_hparams(s));
    } else {
        code = check_words(pp_arch_by_name(pp_source_hparams(s)->arch), pp_source_hparams(s), err);
        add_hparams(w, pp_source_hparams(s), pp_source_n_params(s));
        code = code ? code : pp_xielu_write(s, w, err);
        code = code ? code : add_tokenizer(w, s, err);
    }
    if (file_type >= 0)
        pp_gguf_add_u32(w, "general.file_type", (uint32_t)file_type);
    pp_gguf_add_u32(w, quantization_version, QUANTIZATION_VERSION);
    if (opt && opt->imatrix)
        add_imatrix(w, opt);
    return code;
}
