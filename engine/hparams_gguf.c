/* hparams_gguf.c - hyperparameters from a GGUF file's metadata and from the names and shapes of its tensors. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "engine/arch/arch.h"
#include "engine/engine.h"
#include "engine/gguf.h"
#include "engine/hparams_int.h"

struct section {
    const struct pp_gguf *g;
    const char *arch;
    const struct pp_source *source; /* NULL where no tensors are looked up */
};

static void full_key(const struct section *s, const char *key, char out[192])
{
    snprintf(out, 192, "%s.%s", s->arch, key);
}

/* Whether the value is an array with one number for each layer, all equal: that number. */
static bool same_for_all(const struct section *s, const char *full, int64_t *v)
{
    enum pp_gguf_type type;
    size_t n = 0;
    int64_t first, other;
    if (!pp_gguf_array(s->g, full, &type, &n) || n == 0 || !pp_gguf_array_int(s->g, full, 0, &first))
        return false;
    for (size_t i = 1; i < n; i++)
        if (!pp_gguf_array_int(s->g, full, i, &other) || other != first)
            return false;
    *v = first;
    return true;
}

/* Reads arch.key; absent leaves *v alone unless it is required. */
static enum pp_code gguf_int(const struct section *s, const char *key, bool required, int64_t *v, struct pp_error *err)
{
    char full[192];
    full_key(s, key, full);
    if (pp_gguf_int(s->g, full, v) || same_for_all(s, full, v) || (!required && !pp_gguf_has(s->g, full)))
        return PP_OK;
    if (!pp_gguf_has(s->g, full))
        return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks %s", full);
    return pp_fail(err, PP_ERR_UNSUPPORTED, "metadata %s is not a single integer for all layers, as pippin needs",
                   full);
}

/* Reads a number that is one for all layers or, if may_differ, an array with one for each. The number of layer l is
 * stored as an int32_t at `at + l * stride`, the largest in *v; *differ is set if they are not all equal. */
static enum pp_code gguf_per_layer(const struct section *s, const char *key, bool required, bool may_differ, char *at,
                                   size_t stride, int64_t n_layer, int64_t *v, bool *differ, struct pp_error *err)
{
    enum pp_gguf_type type;
    size_t n = 0;
    int64_t same = *v;
    char full[192];
    full_key(s, key, full);
    const bool differs = may_differ && pp_gguf_array(s->g, full, &type, &n) && !same_for_all(s, full, &same);
    enum pp_code code = differs ? PP_OK : gguf_int(s, key, required, v, err);
    if (differs && n < (size_t)n_layer)
        return pp_fail(err, PP_ERR_FORMAT, "metadata %s has %zu numbers for %lld layers", full, n, (long long)n_layer);
    for (int64_t l = 0; l < n_layer && !code; l++, at += stride) {
        int64_t of_layer = *v;
        if (differs && (!pp_gguf_array_int(s->g, full, (size_t)l, &of_layer) || of_layer < 0 || of_layer > INT32_MAX))
            return pp_fail(err, PP_ERR_FORMAT, "metadata %s contains something other than sizes", full);
        if (differs)
            *v = l == 0 || of_layer > *v ? of_layer : *v;
        else if (of_layer < 0 || of_layer > INT32_MAX)
            return PP_OK; /* pp_hparams_check refuses it */
        memcpy(at, &(int32_t){(int32_t)of_layer}, sizeof(int32_t));
    }
    *differ |= differs;
    return code;
}

/* The same for the member of struct pp_layer_sizes at offset `place`. */
static enum pp_code gguf_layer_size(const struct section *s, const char *key, bool required, size_t place, int64_t *v,
                                    struct pp_hparams *hp, struct pp_error *err)
{
    return gguf_per_layer(s, key, required, true, (char *)hp->sizes + place, sizeof *hp->sizes, hp->n_layer, v,
                          &hp->sizes_vary, err);
}

static enum pp_code gguf_float(const struct section *s, const char *key, bool required, float *v, struct pp_error *err)
{
    char full[192];
    double wide;
    full_key(s, key, full);
    if (pp_gguf_float(s->g, full, &wide)) {
        *v = (float)wide;
        return PP_OK;
    }
    if (!required && !pp_gguf_has(s->g, full))
        return PP_OK;
    return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks %s, or it is not a number", full);
}

/* The vocabulary's size: from its key, else from the embeddings, else from the list of tokens. */
static enum pp_code gguf_vocab(const struct section *s, struct pp_hparams *hp, struct pp_error *err)
{
    const struct pp_tensor *embd = pp_source_tensor(s->source, "token_embd.weight");
    enum pp_gguf_type type;
    size_t n;
    enum pp_code code = gguf_int(s, "vocab_size", false, &hp->n_vocab, err);
    if (code || hp->n_vocab)
        return code;
    if (embd && embd->n_dims == 2)
        hp->n_vocab = embd->ne[1];
    else if (pp_gguf_array(s->g, "tokenizer.ggml.tokens", &type, &n) && n < INT32_MAX)
        hp->n_vocab = (int64_t)n;
    return PP_OK;
}

/* The epsilon of LayerNorm or of RMSNorm. The key may be missing if the caller has set norm_eps to the family's. */
static enum pp_code gguf_epsilon(const struct section *s, struct pp_hparams *hp, struct pp_error *err)
{
    char full[192];
    full_key(s, "attention.layer_norm_epsilon", full);
    return gguf_float(s, pp_gguf_has(s->g, full) ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
                      hp->norm_eps == 0.0f, &hp->norm_eps, err);
}

/* How the model pools an embedding. GGUF counts from -1 (unspecified), enum pp_pooling from 0. */
static enum pp_code gguf_pooling(const struct section *s, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t pooling = -1;
    enum pp_code code = gguf_int(s, "pooling_type", false, &pooling, err);
    if (!code && (pooling < -1 || pooling > (int)PP_POOLING_RANK - 1))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "metadata %s.pooling_type is %lld, a kind of pooling that pippin does "
                       "not know", s->arch, (long long)pooling);
    hp->pooling = (int)pooling + 1;
    return code;
}

/* How the router's logits become weights: llama.cpp's enum of gating functions. 3 is a softmax over the chosen experts,
 * which is the softmax over all when normalised. */
static enum pp_code gguf_gating(const struct section *s, struct pp_hparams *hp, struct pp_error *err)
{
    enum { USUAL, SOFTMAX, SIGMOIDS, SOFTMAX_OF_USED, ROOTS };
    int64_t gating = USUAL;
    enum pp_code code = gguf_int(s, "expert_gating_func", false, &gating, err);
    /* sqrt(softplus(x)); config.json can express it in this family only */
    const bool roots = gating == ROOTS && strcmp(s->arch, "deepseek4") == 0;
    if (!code && !roots && (gating < USUAL || gating > SOFTMAX_OF_USED))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "metadata %s.expert_gating_func is %lld, which pippin does not "
                                                "support; 1 is softmax, 2 is sigmoid", s->arch, (long long)gating);
    if (gating != USUAL)
        hp->expert_sigmoids = gating == SIGMOIDS;
    hp->expert_sqrt_softplus = roots;
    return code;
}

/* Reads into the member of struct pp_layer_experts at offset `place`; layers may differ if the family allows it. */
static enum pp_code gguf_layer_experts(const struct section *s, const char *key, size_t place, int64_t *v,
                                       struct pp_hparams *hp, struct pp_error *err)
{
    const struct pp_arch *arch = pp_arch_by_name(hp->arch);
    return gguf_per_layer(s, key, false, arch && arch->experts_vary, (char *)hp->layer_experts + place,
                          sizeof *hp->layer_experts, hp->n_layer, v, &hp->experts_vary, err);
}

/* Keys that only some families have. They mean the same in all of them, unless a family's from_gguf says otherwise. */
static enum pp_code gguf_optional(const struct section *s, struct pp_hparams *hp, struct pp_error *err)
{
    const struct {
        const char *key;
        float *v;
    } floats[] = {
        {"attention.scale", &hp->attn_scale},
        {"attention.clamp_kqv", &hp->qkv_clamp},
        {"attention.value_scale", &hp->attn_value_scale},
        {"attn_logit_softcapping", &hp->attn_softcap},
        {"final_logit_softcapping", &hp->final_softcap},
        {"router_logit_softcapping", &hp->router_softcap},
        {"embedding_scale", &hp->embd_scale},
        {"residual_scale", &hp->residual_scale},
        {"logit_scale", &hp->logit_scale},
        {"expert_weights_scale", &hp->expert_scale},
    };
    const struct {
        const char *key;
        int64_t *v;
    } ints[] = {
        {"expert_count", &hp->n_expert},
        {"expert_group_count", &hp->n_expert_group},
        {"expert_group_used_count", &hp->n_expert_group_used},
    };
    enum pp_code code = PP_OK;
    bool norm_topk = !hp->expert_no_renorm;
    char full[192];
    hp->n_ff_expert = hp->n_ff;
    for (size_t i = 0; i < sizeof floats / sizeof *floats && !code; i++)
        code = gguf_float(s, floats[i].key, false, floats[i].v, err);
    for (size_t i = 0; i < sizeof ints / sizeof *ints && !code; i++)
        code = gguf_int(s, ints[i].key, false, ints[i].v, err);
    if (!code)
        code = gguf_layer_experts(s, "expert_used_count", offsetof(struct pp_layer_experts, n_used), &hp->n_expert_used,
                                  hp, err);
    if (!code)
        code = gguf_layer_experts(s, "expert_feed_forward_length", offsetof(struct pp_layer_experts, n_ff),
                                  &hp->n_ff_expert, hp, err);
    full_key(s, "use_parallel_residual", full);
    pp_gguf_bool(s->g, full, &hp->parallel);
    full_key(s, "norm_top_k_prob", full); /* ollama's name */
    pp_gguf_bool(s->g, full, &norm_topk);
    full_key(s, "expert_weights_norm", full);
    pp_gguf_bool(s->g, full, &norm_topk);
    hp->expert_no_renorm = !norm_topk;
    if (!code)
        code = gguf_gating(s, hp, err);
    return code ? code : gguf_pooling(s, hp, err);
}

/* Which layers have the window: a flag for each layer, or a number n, every n-th layer having none. Families with a
 * fixed pattern and no key set it in their from_gguf. */
static void gguf_pattern(const struct section *s, struct pp_hparams *hp)
{
    enum pp_gguf_type type;
    size_t n = 0;
    int64_t step = 0;
    char full[192];
    full_key(s, "attention.sliding_window_pattern", full);
    if (pp_gguf_int(s->g, full, &step))
        pp_layers_every(hp, step, PP_LAYER_WIDE);
    else if (pp_gguf_array(s->g, full, &type, &n))
        for (size_t l = 0; l < n && l < PP_MAX_LAYERS; l++) {
            int64_t number = 1;
            bool windowed = true;
            if (!pp_gguf_array_bool(s->g, full, l, &windowed) && pp_gguf_array_int(s->g, full, l, &number))
                windowed = number != 0;
            hp->layer[l] |= windowed ? 0 : PP_LAYER_WIDE;
        }
}

/* yarn_ext_factor blends interpolated and original frequencies. We compute 1 with YaRN and 0 without it; a negative
 * value asks for this default. */
static enum pp_code refuse_extrapolation(const struct section *s, float usual, struct pp_error *err)
{
    float v = -1;
    enum pp_code code = gguf_float(s, "rope.scaling.yarn_ext_factor", false, &v, err);
    if (!code && !(v < 0 || v == usual))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "metadata %s.rope.scaling.yarn_ext_factor is %g, but pippin supports "
                                                "only %g%s", s->arch, (double)v, (double)usual,
                                                usual == 0.0f ? " without YaRN" : "");
    return code;
}

/* The factor on YaRN's cosines and sines. Ours, rope_attn_factor, replaces the default 0.1 ln(factor) + 1.
 *
 * A file's attn_factor multiplies that default, or the quotient that yarn_log_multiplier gives. Files of OLMo 3 however
 * have config.json's number there, which replaces the default: a value equal to the default is therefore taken as such,
 * since nobody means its square. yarn_attn_factor is always config.json's number; 1 is Grok's, and what converters
 * write if config.json has none. */
static enum pp_code gguf_magnitude(const struct section *s, struct pp_hparams *hp, struct pp_error *err)
{
    const float usual = 0.1f * logf(hp->rope_factor) + 1.0f;
    float factor = 1, whole = 1, log_multiplier = 0;
    enum pp_code code = gguf_float(s, "rope.scaling.attn_factor", false, &factor, err);
    if (!code)
        code = gguf_float(s, "rope.scaling.yarn_attn_factor", false, &whole, err);
    if (!code)
        code = gguf_float(s, "rope.scaling.yarn_log_multiplier", false, &log_multiplier, err);
    if (code)
        return code;
    if (fabsf(factor / usual - 1.0f) < 1e-4f)
        factor = 1;
    if (log_multiplier != 0.0f)
        hp->rope_attn_factor = factor * pp_hparams_yarn_magnitude(hp->rope_factor, 1, log_multiplier);
    else if (factor != 1.0f)
        hp->rope_attn_factor = factor * usual;
    else if (whole != 1.0f && fabsf(whole / usual - 1.0f) >= 1e-4f)
        hp->rope_attn_factor = whole;
    return PP_OK;
}

static enum pp_code gguf_yarn(const struct section *s, struct pp_hparams *hp, struct pp_error *err)
{
    hp->rope_scaling = PP_ROPE_YARN;
    hp->rope_orig_ctx = hp->n_ctx_train;
    hp->rope_beta_fast = 32;
    hp->rope_beta_slow = 1;
    enum pp_code code = gguf_int(s, "rope.scaling.original_context_length", false, &hp->rope_orig_ctx, err);
    if (!code)
        code = gguf_float(s, "rope.scaling.yarn_beta_fast", false, &hp->rope_beta_fast, err);
    if (!code)
        code = gguf_float(s, "rope.scaling.yarn_beta_slow", false, &hp->rope_beta_slow, err);
    if (!code)
        code = refuse_extrapolation(s, 1, err);
    return code ? code : gguf_magnitude(s, hp, err);
}

/* attn_factor scales the scores, which only YaRN and LongRoPE do. */
static enum pp_code refuse_magnitude(const struct section *s, struct pp_error *err)
{
    float v = 1;
    enum pp_code code = gguf_float(s, "rope.scaling.attn_factor", false, &v, err);
    if (!code && v != 1.0f)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "metadata %s.rope.scaling.attn_factor is %g, which pippin supports "
                                                "only with YaRN or LongRoPE", s->arch, (double)v);
    return code ? code : refuse_extrapolation(s, 0, err);
}

static enum pp_code gguf_rope(const struct section *s, struct pp_hparams *hp, struct pp_error *err)
{
    char full[192];
    struct pp_str type = {"", 0};
    enum pp_code code = gguf_int(s, "rope.dimension_count", false, &hp->rope_dim, err);
    if (!code)
        code = gguf_float(s, "rope.freq_base", false, &hp->rope_base, err);
    if (!code)
        code = gguf_float(s, "rope.scale_linear", false, &hp->rope_factor, err); /* older than rope.scaling.type */
    if (!code)
        code = gguf_float(s, "rope.scaling.factor", false, &hp->rope_factor, err);
    if (code)
        return code;
    if (pp_source_tensor(s->source, "rope_factors_long.weight")) {
        hp->rope_scaling = PP_ROPE_LONG;
        hp->rope_orig_ctx = hp->n_ctx_train;
        code = gguf_int(s, "rope.scaling.original_context_length", false, &hp->rope_orig_ctx, err);
        return code ? code : gguf_float(s, "rope.scaling.attn_factor", false, &hp->rope_attn_factor, err);
    }
    full_key(s, "rope.scaling.type", full);
    bool named = pp_gguf_string(s->g, full, &type);
    if (named && type.len == 4 && memcmp(type.data, "yarn", 4) == 0)
        return gguf_yarn(s, hp, err);
    if (named && !(type.len == 6 && memcmp(type.data, "linear", 6) == 0)) {
        if (!(type.len == 4 && memcmp(type.data, "none", 4) == 0))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "RoPE scaling \"%.*s\" is not supported; supported are linear and "
                                                    "yarn",
                           (int)(type.len < 40 ? type.len : 40), type.data);
        hp->rope_factor = 1;
    }
    hp->rope_scaling = hp->rope_factor != 1.0f ? PP_ROPE_LINEAR : PP_ROPE_NONE;
    return refuse_magnitude(s, err);
}

/* A key's number, whether float or integer; 0: the key is missing. */
static double number_of(const struct section *s, const char *key)
{
    char full[192];
    int64_t whole = 0;
    double v = 0;
    full_key(s, key, full);
    return pp_gguf_float(s->g, full, &v) || !pp_gguf_int(s->g, full, &whole) ? v : (double)whole;
}

float pp_hparams_alibi(const struct pp_gguf *g, const char *arch)
{
    return (float)number_of(&(struct section){g, arch, NULL}, "attention.max_alibi_bias");
}

/* Keys that other programs interpret and that change the computation: each must have the value that means no change, or
 * the one that hp holds. */
enum pp_code pp_hparams_refuse(const struct pp_gguf *g, const char *arch, const struct pp_hparams *hp,
                               struct pp_error *err)
{
    const struct {
        const char *key;
        double usual, usual_too;
    } keys[] = {{"attention.max_alibi_bias", 0, (double)hp->alibi},
                {"attention.value_scale", 0, hp->kv_lora_rank ? 1 : (double)hp->attn_value_scale},
                {"attention.output_scale", 0, strcmp(hp->arch, "grok") == 0 ? (double)hp->attn_scale : 1},
                {"swin_norm", 0, hp->norms_after}};
    const struct section s = {g, arch, NULL};
    bool causal = true;
    char full[192];
    full_key(&s, "attention.causal", full);
    pp_gguf_bool(g, full, &causal);
    if (!causal)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "metadata %s is false: bidirectional attention is not supported in "
                                                "this family", full);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const double v = number_of(&s, keys[i].key);
        if (v != keys[i].usual && v != keys[i].usual_too)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "metadata %s.%s is %g, which pippin does not support", arch,
                           keys[i].key, v);
    }
    return PP_OK;
}

/* The activation function of the feed-forward parts, if not the family's. */
static enum pp_code gguf_activation(const struct section *s, struct pp_hparams *hp, struct pp_error *err)
{
    char full[192];
    struct pp_str name = {"", 0};
    full_key(s, "hidden_activation", full);
    if (!pp_gguf_string(s->g, full, &name))
        return PP_OK;
    for (size_t i = 0; i < PP_N_ACTIVATIONS; i++)
        if (pp_activation_names[i] && strlen(pp_activation_names[i]) == name.len &&
            memcmp(pp_activation_names[i], name.data, name.len) == 0) {
            hp->activation = (enum pp_activation)i;
            return PP_OK;
        }
    return pp_fail(err, PP_ERR_UNSUPPORTED, "metadata %s is \"%.*s\", which pippin does not support", full,
                   (int)(name.len < 40 ? name.len : 40), name.data);
}

/* In a model with experts, finds the layers with a dense feed-forward part instead, and whether layers have both. */
static void find_dense(const struct pp_source *source, struct pp_hparams *hp)
{
    for (int64_t l = 0; hp->n_expert > 0 && l < hp->n_layer && l < PP_MAX_LAYERS; l++) {
        char router[64], up[64];
        snprintf(router, sizeof router, "blk.%lld.ffn_gate_inp.weight", (long long)l);
        snprintf(up, sizeof up, "blk.%lld.ffn_up.weight", (long long)l);
        const bool chosen = pp_source_tensor(source, router), dense = pp_source_tensor(source, up);
        hp->layer[l] |= dense && !chosen ? PP_LAYER_DENSE : 0;
        hp->dense_parallel = hp->dense_parallel || (dense && chosen);
    }
}

/* In a model with indexers, finds the layers that reuse an earlier layer's picks. The first pass only learns whether
 * there are any. */
static void find_indexes(const struct pp_source *source, struct pp_hparams *hp)
{
    bool any = false;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS; l++) {
            char key[64];
            snprintf(key, sizeof key, "blk.%lld.indexer.attn_k.weight", (long long)l);
            const bool has = pp_source_tensor(source, key) != NULL;
            any = any || has;
            hp->layer[l] |= pass && any && !has ? PP_LAYER_PICKED_BEFORE : 0;
        }
}

/* Finds the layers that have a short convolution or recurrent states in place of attention, by their tensors. */
static enum pp_code find_convolutions(const struct section *s, struct pp_hparams *hp, struct pp_error *err)
{
    static const char *const of_states[] = {"ssm_d", "ssm_conv1d_q.weight", "lru_a", "ssm_gate.weight"};
    for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS; l++) {
        char taps[64], bias[64], name[64];
        snprintf(taps, sizeof taps, "blk.%lld.shortconv.conv.weight", (long long)l);
        snprintf(bias, sizeof bias, "blk.%lld.shortconv.in_proj.bias", (long long)l);
        hp->layer[l] |= pp_source_tensor(s->source, taps) ? PP_LAYER_CONVOLVED : 0;
        for (size_t i = 0; i < sizeof of_states / sizeof *of_states; i++) {
            snprintf(name, sizeof name, "blk.%lld.%s", (long long)l, of_states[i]);
            hp->layer[l] |= pp_source_tensor(s->source, name) ? PP_LAYER_RECURRENT : 0;
        }
        hp->conv_bias = hp->conv_bias || pp_source_tensor(s->source, bias);
    }
    hp->state_norm = pp_source_tensor(s->source, strcmp(s->arch, "arwkv7") == 0 ? "blk.0.time_mix_ln.weight"
                                                                                 : "blk.0.ssm_norm.weight") != NULL;
    return gguf_int(s, "shortconv.l_cache", false, &hp->conv_taps, err);
}

/* The number of KV heads. An array that is 0 exactly in layers without attention, and otherwise constant, counts as one
 * number for all. */
static enum pp_code gguf_key_heads(const struct section *s, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_gguf_type type;
    int64_t most = 0, v;
    size_t n = 0;
    char full[192];
    bool alike = true;
    const size_t place = offsetof(struct pp_layer_sizes, n_head_kv);
    full_key(s, "attention.head_count_kv", full);
    if (!pp_gguf_array(s->g, full, &type, &n))
        return gguf_layer_size(s, "attention.head_count_kv", false, place, &hp->n_head_kv, hp, err);
    for (size_t l = 0; l < n && l < (size_t)hp->n_layer && alike; l++) {
        const bool attends = !(hp->layer[l] & (PP_LAYER_CONVOLVED | PP_LAYER_RECURRENT));
        alike = pp_gguf_array_int(s->g, full, l, &v) && (v == 0 ? !attends : !most || v == most);
        most = alike && v ? v : most;
    }
    if (!alike || !most)
        return gguf_layer_size(s, "attention.head_count_kv", true, place, &hp->n_head_kv, hp, err);
    hp->n_head_kv = most;
    for (int64_t l = 0; l < hp->n_layer; l++)
        hp->sizes[l].n_head_kv = (int32_t)most;
    return PP_OK;
}

void pp_hparams_find_shared(const struct pp_source *source, struct pp_hparams *hp)
{
    const struct pp_tensor *up = NULL;
    for (int64_t l = 0; l < hp->n_layer && !up; l++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%lld.ffn_up_shexp.weight", (long long)l);
        up = pp_source_tensor(source, name);
    }
    const struct pp_arch *arch = pp_arch_by_name(hp->arch);
    const bool fused = arch && arch->decoder.fused_shared;
    hp->n_ff_shared = up ? up->ne[1] / (fused ? 2 : 1) : 0;
    up = pp_source_tensor(source, "blk.0.ffn_up_chexps.weight");
    up = up ? up : pp_source_tensor(source, "blk.0.ffn_up_ch.0.weight");
    hp->n_ff_share = up ? up->ne[1] : 0;
}

/* Latent attention (MLA). Files with attn_k_b and attn_v_b have the sizes of the cached vectors in key_length and
 * value_length, and those of heads in key_length_mla and value_length_mla. Older files, with attn_kv_b, have the sizes
 * of heads in key_length and value_length. */
static enum pp_code gguf_latent(const struct section *s, int64_t value_length, struct pp_hparams *hp,
                                struct pp_error *err)
{
    int64_t key_length = hp->head_dim;
    enum pp_code code = gguf_int(s, "attention.q_lora_rank", false, &hp->q_lora_rank, err);
    hp->v_head_dim = value_length;
    if (!code)
        code = gguf_int(s, "attention.key_length_mla", false, &key_length, err);
    if (!code)
        code = gguf_int(s, "attention.value_length_mla", false, &hp->v_head_dim, err);
    if (!code)
        code = pp_check_range("rank of keys and values", hp->kv_lora_rank, 2, 1 << 12, err);
    if (!code)
        code = pp_check_range("head size", key_length, 3, 1 << 12, err);
    if (!code)
        code = pp_check_range("number of rotated dimensions", hp->rope_dim, 0, key_length - 1, err);
    if (code)
        return code;
    hp->qk_nope_dim = key_length - hp->rope_dim;
    hp->n_head_kv = 1;
    hp->head_dim = hp->kv_lora_rank + hp->rope_dim;
    return PP_OK;
}

/* block_count may include layers for multi-token prediction, which are not the model's. */
static enum pp_code gguf_nextn(const struct section *s, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = gguf_int(s, "nextn_predict_layers", false, &hp->n_nextn, err);
    char name[64];
    snprintf(name, sizeof name, "blk.%lld.nextn.eh_proj.weight", (long long)(hp->n_layer - hp->n_nextn));
    if (strcmp(s->arch, "deepseek4") == 0 && !pp_source_tensor(s->source, name))
        hp->n_nextn = 0; /* files of DeepSeek V4 may have the key, but not the layer */
    if (!code && hp->n_nextn)
        code = pp_check_range("number of layers that predict further tokens", hp->n_nextn, 0, hp->n_layer - 1, err);
    hp->n_layer -= code ? 0 : hp->n_nextn;
    return code;
}

/* The width of the feed-forward parts; a model whose layers all have experts may lack the key. */
static enum pp_code gguf_ff(const struct section *s, struct pp_hparams *hp, struct pp_error *err)
{
    const size_t place = offsetof(struct pp_layer_sizes, n_ff);
    char full[192];
    full_key(s, "feed_forward_length", full);
    if (pp_gguf_has(s->g, full))
        return gguf_layer_size(s, "feed_forward_length", true, place, &hp->n_ff, hp, err);
    full_key(s, "expert_feed_forward_length", full);
    const char *key = pp_gguf_has(s->g, full) ? "expert_feed_forward_length" : "feed_forward_length";
    return gguf_layer_size(s, key, true, place, &hp->n_ff, hp, err);
}

enum pp_code pp_hparams_from_gguf(const struct pp_source *source, const char *arch, struct pp_hparams *hp,
                                  struct pp_error *err)
{
    const struct pp_gguf *g = pp_source_gguf(source);
    const struct section s = {g, arch, source};
    struct pp_str name;
    enum pp_code code;
    hp->rope_base = 10000;
    hp->rope_factor = 1;
    snprintf(hp->arch, sizeof hp->arch, "%s", arch);
    if (pp_gguf_string(g, "general.name", &name))
        pp_clean_name(name.data, name.len, hp->name, sizeof hp->name);
    if ((code = gguf_int(&s, "block_count", true, &hp->n_layer, err)) || (code = pp_check_layers(hp, err)) ||
        (code = gguf_nextn(&s, hp, err)) || (code = gguf_int(&s, "embedding_length", true, &hp->n_embd, err)) ||
        (code = gguf_ff(&s, hp, err)) ||
        (code = gguf_int(&s, "context_length", true, &hp->n_ctx_train, err)) ||
        (code = gguf_layer_size(&s, "attention.head_count", true, offsetof(struct pp_layer_sizes, n_head), &hp->n_head,
                                hp, err)) ||
        (code = gguf_epsilon(&s, hp, err)) || (code = gguf_optional(&s, hp, err)) ||
        (code = gguf_activation(&s, hp, err)) ||
        (code = gguf_vocab(&s, hp, err)))
        return code;
    hp->n_head_kv = hp->n_head;
    hp->head_dim = hp->n_head > 0 ? hp->n_embd / hp->n_head : 0;
    if ((code = find_convolutions(&s, hp, err)) || (code = gguf_key_heads(&s, hp, err)) ||
        (code = gguf_int(&s, "attention.key_length", false, &hp->head_dim, err)) ||
        (code = gguf_int(&s, "attention.sliding_window", false, &hp->window, err)))
        return code;
    gguf_pattern(&s, hp);
    int64_t value_length = hp->head_dim;
    hp->rope_dim = hp->head_dim;
    if ((code = gguf_int(&s, "attention.value_length", false, &value_length, err)) ||
        (code = gguf_int(&s, "attention.kv_lora_rank", false, &hp->kv_lora_rank, err)) ||
        (code = gguf_rope(&s, hp, err)))
        return code;
    find_dense(source, hp);
    find_indexes(source, hp);
    pp_hparams_find_shared(source, hp);
    hp->qk_norm = pp_source_tensor(source, "blk.0.attn_q_norm.weight") != NULL;
    hp->two_norms = pp_source_tensor(source, "blk.0.attn_norm_2.weight") != NULL;
    const struct pp_tensor *dense = pp_source_tensor(source, "dense_2.weight");
    hp->n_dense = dense ? dense->ne[1] : 0;
    const struct pp_tensor *gate = pp_source_tensor(source, "blk.0.attn_gate.weight");
    hp->per_head_gates = gate && gate->n_dims == 2 && gate->ne[1] == pp_layer_shape(hp, 0).n_head;
    if (hp->kv_lora_rank)
        return gguf_latent(&s, value_length, hp, err);
    hp->v_head_dim = value_length != hp->head_dim ? value_length : 0;
    return PP_OK;
}
