#include "engine/hparams.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/engine.h"
#include "engine/gguf.h"
#include "engine/plan.h"

/* --- names --------------------------------------------------------------------------------------------- */

static bool printable(int32_t cp)
{
    bool control = cp < 0x20 || (cp >= 0x7f && cp < 0xa0) || cp == 0x2028 || cp == 0x2029;
    bool direction = cp == 0x200e || cp == 0x200f || (cp >= 0x202a && cp <= 0x202e) || (cp >= 0x2066 && cp <= 0x2069);
    return !control && !direction; /* what is no UTF-8 comes as -1, a control character */
}

void pp_clean_name(const char *s, size_t n, char *out, size_t out_size)
{
    size_t len = 0;
    for (size_t i = 0; i < n;) {
        int32_t cp;
        size_t bytes = pp_utf8_decode(s + i, n - i, &cp);
        bool good = printable(cp);
        size_t need = good ? bytes : 1;
        if (len + need >= out_size)
            break;
        memcpy(out + len, good ? s + i : "?", need);
        len += need;
        i += bytes;
    }
    out[len] = 0;
}

static bool is_lower_ascii(char c)
{
    return c >= 'a' && c <= 'z';
}

static bool is_letter_ascii(char c)
{
    return is_lower_ascii(c) || (c >= 'A' && c <= 'Z');
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Capitalises a word in place unless it has capitals of its own, or is a number or a version ("v2"). */
static void title_word(char *word, size_t n)
{
    bool lower = false;
    for (size_t i = 0; i < n; i++) {
        if (is_letter_ascii(word[i]) && !is_lower_ascii(word[i]))
            return;
        lower = lower || is_lower_ascii(word[i]);
    }
    if (!lower || is_digit(word[0]) || (word[0] == 'v' && n > 1 && is_digit(word[1])))
        return;
    for (size_t i = 0; i < n; i++)
        if (is_lower_ascii(word[i]) && (i == 0 || !is_letter_ascii(word[i - 1])))
            word[i] = (char)(word[i] - 'a' + 'A');
}

void pp_name_of_path(const char *path, char *out, size_t out_size)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    if (end - begin > 5 && strncmp(path + end - 5, ".gguf", 5) == 0)
        end -= 5;
    pp_clean_name(path + begin, end - begin, out, out_size);
}

void pp_title_of_path(const char *path, char *out, size_t out_size)
{
    pp_name_of_path(path, out, out_size);
    size_t n = strlen(out), word = 0;
    for (size_t i = 0; i <= n; i++) {
        if (i < n && out[i] != '-' && out[i] != ' ')
            continue;
        title_word(out + word, i - word);
        if (i < n)
            out[i] = ' ';
        word = i + 1;
    }
}

/* --- limits -------------------------------------------------------------------------------------------- */

static enum pp_code check_range(const char *what, int64_t v, int64_t least, int64_t most, struct pp_error *err)
{
    if (v >= least && v <= most)
        return PP_OK;
    return pp_fail(err, PP_ERR_FORMAT, "the model says its %s is %lld; it must be %lld to %lld", what, (long long)v,
                   (long long)least, (long long)most);
}

/* Before anything is noted of each layer. */
static enum pp_code check_layers(const struct pp_hparams *hp, struct pp_error *err)
{
    return check_range("number of layers", hp->n_layer, 1, PP_MAX_LAYERS, err);
}

static enum pp_code check_positive(const char *what, float v, struct pp_error *err)
{
    if (isfinite(v) && v > 0)
        return PP_OK;
    return pp_fail(err, PP_ERR_FORMAT, "the model says its %s is %g; it must be a positive number", what, (double)v);
}

static enum pp_code check_rope(const struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = check_positive("RoPE base", hp->rope_base, err);
    if (!code && hp->attn_temperature != 0.0f)
        code = check_range("original context length", hp->attn_temperature_length ? hp->attn_temperature_length
                                                                                 : hp->rope_orig_ctx,
                           1, INT32_MAX, err);
    if (!code)
        code = check_range("number of rotated dimensions", hp->rope_dim, 2, hp->head_dim, err);
    if (!code && (hp->rope_dim % 2 != 0 || hp->head_dim % 2 != 0))
        code =
            pp_fail(err, PP_ERR_FORMAT, "the model rotates %lld of a head's %lld dimensions; they must come in pairs",
                    (long long)hp->rope_dim, (long long)hp->head_dim);
    if (!code && hp->rope_base_local != 0.0f)
        code = check_positive("local RoPE base", hp->rope_base_local, err);
    if (code || hp->rope_scaling == PP_ROPE_NONE)
        return code;
    if (!(isfinite(hp->rope_attn_factor) && hp->rope_attn_factor >= 0))
        return pp_fail(err, PP_ERR_FORMAT, "the model says its RoPE attention factor is %g; it must be positive",
                       (double)hp->rope_attn_factor);
    code = check_positive("RoPE scaling factor", hp->rope_factor, err);
    if (!code && hp->rope_scaling != PP_ROPE_LINEAR)
        code = check_range("original context length", hp->rope_orig_ctx, 1, INT32_MAX, err);
    if (!code && hp->rope_scaling == PP_ROPE_LLAMA3 &&
        !(hp->rope_low_freq > 0 && hp->rope_high_freq >= hp->rope_low_freq && isfinite(hp->rope_high_freq)))
        code = pp_fail(err, PP_ERR_FORMAT,
                       "the model's RoPE frequency factors are %g and %g; the first must not be the larger",
                       (double)hp->rope_low_freq, (double)hp->rope_high_freq);
    if (!code && hp->rope_scaling == PP_ROPE_YARN &&
        !(hp->rope_beta_slow > 0 && hp->rope_beta_fast >= hp->rope_beta_slow && isfinite(hp->rope_beta_fast) &&
          hp->rope_attn_factor >= 0 && isfinite(hp->rope_attn_factor)))
        code =
            pp_fail(err, PP_ERR_FORMAT, "the model's YaRN numbers make no sense (beta %g to %g, attention factor %g)",
                    (double)hp->rope_beta_slow, (double)hp->rope_beta_fast, (double)hp->rope_attn_factor);
    return code;
}

/* Numbers that things are multiplied or bounded by; 0 stands for absent. */
static enum pp_code check_scales(const struct pp_hparams *hp, struct pp_error *err)
{
    const struct {
        const char *what;
        float v;
    } scales[] = {
        {"attention scale", hp->attn_scale},       {"attention soft cap", hp->attn_softcap},
        {"largest ALiBi bias", hp->alibi},
        {"attention temperature", hp->attn_temperature}, {"scale of values", hp->attn_value_scale},
        {"logit soft cap", hp->final_softcap},     {"router's soft cap", hp->router_softcap},
        {"embedding scale", hp->embd_scale},
        {"bound of queries, keys and values", hp->qkv_clamp},
        {"residual scale", hp->residual_scale},    {"logit scale", hp->logit_scale},
        {"scale of experts' weights", hp->expert_scale}, {"scale of shared experts", hp->expert_share_scale},
    };
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < sizeof scales / sizeof *scales && !code; i++)
        if (scales[i].v != 0.0f)
            code = check_positive(scales[i].what, scales[i].v, err);
    return code;
}

/* Whatever groups are chosen, they have as many experts as a row uses. */
static enum pp_code check_groups(const struct pp_hparams *hp, struct pp_error *err)
{
    const int64_t n = hp->n_expert_group, used = hp->n_expert_group_used;
    enum pp_code code = check_range("number of groups of experts", n, 0, hp->n_expert, err);
    if (code || n < 2)
        return code;
    code = check_range("number of groups of experts used", used, 1, n, err);
    if (!code && (hp->n_expert % n != 0 || hp->n_expert / n * used < hp->n_expert_used))
        code = pp_fail(err, PP_ERR_FORMAT, "the model says that %lld of its %lld experts come from %lld of %lld "
                       "groups, which cannot be", (long long)hp->n_expert_used, (long long)hp->n_expert,
                       (long long)used, (long long)n);
    return code;
}

static enum pp_code check_experts(const struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = check_range("number of experts", hp->n_expert, 0, PP_MAX_EXPERTS, err);
    if (!code && hp->n_expert)
        code = check_range("number of experts used", hp->n_expert_used, 1,
                           hp->n_expert < PP_MAX_EXPERTS_USED ? hp->n_expert : PP_MAX_EXPERTS_USED, err);
    if (!code && hp->n_expert)
        code = check_range("feed-forward size of an expert", hp->n_ff_expert, 1, 1 << 22, err);
    if (!code && hp->n_expert)
        code = check_range("feed-forward size of the shared expert", hp->n_ff_shared, 0, 1 << 22, err);
    if (!code && hp->n_expert_share)
        code = check_range("number of experts that share one", hp->n_expert_share, 1, hp->n_expert, err);
    if (!code && hp->n_expert_share && hp->n_expert % hp->n_expert_share != 0)
        code = pp_fail(err, PP_ERR_FORMAT, "the model has %lld experts, of which %lld cannot share one evenly",
                       (long long)hp->n_expert, (long long)hp->n_expert_share);
    if (!code)
        code = check_range("size of what goes into experts", hp->n_embd_expert, 0, 1 << 20, err);
    if (!code)
        code = check_range("size between the matrices behind an encoder", hp->n_dense, 0, 1 << 20, err);
    return code || !hp->n_expert ? code : check_groups(hp, err);
}

static enum pp_code check_latent(const struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = check_range("rank of keys and values", hp->kv_lora_rank, 2, 1 << 12, err);
    if (!code)
        code = check_range("rank of queries", hp->q_lora_rank, 0, 1 << 16, err);
    if (!code)
        code = check_range("number of dimensions that are not rotated", hp->qk_nope_dim, 1, 1 << 12, err);
    if (!code)
        code = check_range("size of a head's values", hp->v_head_dim, 1, 1 << 12, err);
    return code ? code : check_range("number of positions that an index picks", hp->index_top_k, 0, INT32_MAX, err);
}

static enum pp_code check_values(const struct pp_hparams *hp, struct pp_error *err)
{
    if (hp->v_head_dim <= hp->head_dim && !(hp->v_head_dim && hp->head_dim_local))
        return check_range("size of a head's values", hp->v_head_dim, 0, 1 << 12, err);
    return pp_fail(err, PP_ERR_UNSUPPORTED, "keys of %lld and values of %lld numbers are not supported: only smaller "
                   "values are, of the same size in all layers", (long long)hp->head_dim, (long long)hp->v_head_dim);
}

/* Layers with something else in place of attention. */
static enum pp_code check_convolutions(const struct pp_hparams *hp, struct pp_error *err)
{
    int64_t n = 0;
    for (int64_t l = 0; l < hp->n_layer; l++)
        n += (hp->layer[l] & (PP_LAYER_CONVOLVED | PP_LAYER_RECURRENT)) != 0;
    if (n && !hp->conv_taps)
        return pp_fail(err, PP_ERR_FORMAT, "the model does not say at how many positions its convolutions look");
    if (n == hp->n_layer && !hp->mamba && !hp->rwkv)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "a model of which no layer has attention is not supported");
    return check_range("number of positions that a convolution looks at", hp->conv_taps, 0, PP_MAX_TAPS, err);
}

static enum pp_code check_states(const struct pp_hparams *hp, struct pp_error *err)
{
    const struct {
        const char *what;
        int64_t v, most;
    } limits[] = {
        {"number of heads with states", hp->n_state_head, 1 << 12},
        {"number of keys of states", hp->n_state_key_head, hp->n_state_head},
        {"size of a state's keys", hp->state_key_dim, 1 << 10},
        {"size of a state's values", hp->state_value_dim, 1 << 10},
    };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        enum pp_code code = check_range(limits[i].what, limits[i].v, 1, limits[i].most, err);
        if (code)
            return code;
    }
    if (hp->n_state_head % hp->n_state_key_head != 0)
        return pp_fail(err, PP_ERR_FORMAT, "the model has %lld states, which %lld keys cannot share evenly",
                       (long long)hp->n_state_head, (long long)hp->n_state_key_head);
    if (hp->state_key_dim % 16 != 0 || hp->state_value_dim % 16 != 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "states of %lld x %lld values are not supported; multiples of 16 are",
                       (long long)hp->state_key_dim, (long long)hp->state_value_dim);
    for (int i = 0; hp->rwkv && i < 4; i++)
        if (check_range("size between two matrices", hp->rwkv_ranks[i], 1, 1 << 16, err))
            return err->code;
    if (hp->state_rank && hp->state_eps != 0.0f && check_positive("epsilon of states", hp->state_eps, err))
        return err->code;
    return check_range("number of values that steps of states are made of", hp->state_rank, 0, 1 << 16, err);
}

/* Sizes that differ between layers; the largest are within their limits. */
static enum pp_code check_sizes(const struct pp_hparams *hp, struct pp_error *err)
{
    const int64_t least = hp->gaps ? 0 : 1;
    enum pp_code code = PP_OK;
    for (int64_t l = 0; l < hp->n_layer && !code; l++) {
        const struct pp_layer_shape s = pp_layer_shape(hp, l);
        code = check_range("feed-forward size", s.n_ff, least, hp->n_ff, err);
        if (!code)
            code = check_range("number of heads", s.n_head, least, hp->n_head, err);
        if (!code)
            code = check_range("number of key heads", s.n_head_kv, least, s.n_head, err);
        if (!code && s.n_head_kv && s.n_head % s.n_head_kv != 0)
            code = pp_fail(err, PP_ERR_FORMAT, "the model has %lld heads, which %lld key heads cannot share evenly",
                           (long long)s.n_head, (long long)s.n_head_kv);
    }
    return code;
}

static enum pp_code check_local(const struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    if (hp->head_dim_local)
        code = check_range("head size of layers with a window", hp->head_dim_local, 2, 1 << 12, err);
    if (!code && hp->rope_dim_local)
        code = check_range("number of rotated dimensions of layers with a window", hp->rope_dim_local, 2,
                           hp->head_dim_local ? hp->head_dim_local : hp->head_dim, err);
    if (!code && (hp->head_dim_local % 2 != 0 || hp->rope_dim_local % 2 != 0))
        code = pp_fail(err, PP_ERR_FORMAT, "the dimensions of heads of layers with a window must come in pairs");
    if (!code)
        code = check_range("size of each layer's own input", hp->n_embd_layer, 0, 1 << 16, err);
    if (!code)
        code = check_range("number of residual streams", hp->n_stream, 0, 16, err);
    if (!code && hp->n_stream)
        code = check_range("rank beside attention", hp->laurel_rank, 1, 1 << 16, err);
    if (!code && hp->n_stream && !hp->n_embd_layer)
        code = pp_fail(err, PP_ERR_FORMAT, "the model has several streams, but no inputs of each layer's own");
    for (int64_t l = 0; l < hp->n_layer && !code; l++)
        if (!(hp->sparsity[l] >= 0 && hp->sparsity[l] <= 100))
            code = pp_fail(err, PP_ERR_FORMAT, "the model says something impossible of how sparse gates are");
    for (int64_t l = 0; l < hp->n_layer && !code; l++)
        if (!(hp->gate_bound[l] >= 0 && isfinite(hp->gate_bound[l]) && hp->expert_bound[l] >= 0 &&
              isfinite(hp->expert_bound[l])))
            code = pp_fail(err, PP_ERR_FORMAT, "the model says something impossible of how large gates are");
    return code ? code : check_range("number of pairs that are rotated", hp->rope_turning, 0, hp->rope_dim / 2, err);
}

enum pp_code pp_hparams_check(const struct pp_hparams *hp, struct pp_error *err)
{
    const struct {
        const char *what;
        int64_t v, most;
    } limits[] = {
        {"vocabulary size", hp->n_vocab, 1 << 24},
        {"embedding size", hp->n_embd, 1 << 20},
        {"feed-forward size", hp->n_ff, 1 << 22},
        {"number of heads", hp->n_head, 1 << 13},
        {"number of key heads", hp->n_head_kv, hp->n_head},
        {"head size", hp->head_dim, 1 << 12},
        {"context length", hp->n_ctx_train, INT32_MAX},
    };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        enum pp_code code = check_range(limits[i].what, limits[i].v, 1, limits[i].most, err);
        if (code)
            return code;
    }
    if (hp->kv_lora_rank) {
        const enum pp_code code = check_latent(hp, err);
        if (code)
            return code;
    }
    enum pp_code code = check_layers(hp, err);
    if (!code && !hp->kv_lora_rank)
        code = check_values(hp, err);
    if (!code)
        code = check_sizes(hp, err);
    if (!code)
        code = check_local(hp, err);
    if (!code)
        code = check_range("attention window", hp->window, 0, INT32_MAX, err);
    if (!code && hp->attn_log_length)
        code = check_range("position from which on scores grow", hp->attn_log_length, 2, INT32_MAX, err);
    if (!code)
        code = check_convolutions(hp, err);
    if (!code)
        code = check_positive("norm epsilon", hp->norm_eps, err);
    if (!code)
        code = check_scales(hp, err);
    if (!code)
        code = check_experts(hp, err);
    if (!code && (hp->n_state_head || hp->mamba || hp->rwkv))
        code = check_states(hp, err);
    return code ? code : check_rope(hp, err);
}

/* --- GGUF ---------------------------------------------------------------------------------------------- */

const char *const pp_activation_names[PP_N_ACTIVATIONS] = {
    [PP_ACTIVATION_GELU] = "gelu", [PP_ACTIVATION_GELU_TANH] = "gelu_pytorch_tanh", [PP_ACTIVATION_SILU] = "silu",
    [PP_ACTIVATION_RELU2] = "relu2"};

struct section {
    const struct pp_gguf *g;
    const char *arch;
    const struct pp_source *source; /* or NULL, where tensors are not asked for */
};

static void full_key(const struct section *s, const char *key, char out[192])
{
    snprintf(out, 192, "%s.%s", s->arch, key);
}

/* A number for each layer that is the same for all. */
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
    return pp_fail(err, PP_ERR_UNSUPPORTED, "metadata %s is not one integer for all layers, which pippin needs", full);
}

/* A number that may be another for each layer, which stands at `place` in what the model knows of each; *v: the
 * largest. */
static enum pp_code gguf_of_layers(const struct section *s, const char *key, bool required, size_t place, int64_t *v,
                                   struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_gguf_type type;
    size_t n = 0;
    int64_t same = *v;
    char full[192];
    full_key(s, key, full);
    const bool differs = pp_gguf_array(s->g, full, &type, &n) && !same_for_all(s, full, &same);
    enum pp_code code = differs ? PP_OK : gguf_int(s, key, required, v, err);
    if (differs && n < (size_t)hp->n_layer)
        return pp_fail(err, PP_ERR_FORMAT, "metadata %s has %zu numbers for %lld layers", full, n,
                       (long long)hp->n_layer);
    for (int64_t l = 0; l < hp->n_layer && !code; l++) {
        int64_t of_layer = *v;
        if (differs && (!pp_gguf_array_int(s->g, full, (size_t)l, &of_layer) || of_layer < 0 || of_layer > INT32_MAX))
            return pp_fail(err, PP_ERR_FORMAT, "metadata %s has something else than sizes", full);
        if (differs)
            *v = l == 0 || of_layer > *v ? of_layer : *v;
        else if (of_layer < 0 || of_layer > INT32_MAX)
            return PP_OK; /* will be refused */
        memcpy((char *)&hp->sizes[l] + place, &(int32_t){(int32_t)of_layer}, sizeof(int32_t));
    }
    hp->uneven |= differs;
    return code;
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

/* The vocabulary's size stands in a key, or follows from the embeddings, or from the list of tokens. */
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

/* Either kind of norm. It may be missing where the family has a usual one, which is there then. */
static enum pp_code gguf_epsilon(const struct section *s, struct pp_hparams *hp, struct pp_error *err)
{
    char full[192];
    full_key(s, "attention.layer_norm_epsilon", full);
    return gguf_float(s, pp_gguf_has(s->g, full) ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
                      hp->norm_eps == 0.0f, &hp->norm_eps, err);
}

/* Of which kind the model's vectors of texts are: GGUF's -1 says that it is not known. */
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

/* What experts' weights are made of their logits by: softmax, which 3 says is that of those used, or sigmoids. */
static enum pp_code gguf_gating(const struct section *s, struct pp_hparams *hp, struct pp_error *err)
{
    enum { USUAL, SOFTMAX, SIGMOIDS, SOFTMAX_OF_USED };
    int64_t gating = USUAL;
    enum pp_code code = gguf_int(s, "expert_gating_func", false, &gating, err);
    if (!code && (gating < USUAL || gating > SOFTMAX_OF_USED))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "metadata %s.expert_gating_func is %lld, which pippin does not "
                       "compute; it is 1 for softmax and 2 for sigmoids", s->arch, (long long)gating);
    if (gating != USUAL)
        hp->expert_sigmoids = gating == SIGMOIDS;
    return code;
}

/* What only some families have; what their keys mean is the same in all of them unless from_gguf says otherwise. */
static enum pp_code gguf_rare(const struct section *s, struct pp_hparams *hp, struct pp_error *err)
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
        {"expert_used_count", &hp->n_expert_used},
        {"expert_feed_forward_length", &hp->n_ff_expert},
        {"expert_group_count", &hp->n_expert_group},
        {"expert_group_used_count", &hp->n_expert_group_used},
    };
    enum pp_code code = PP_OK;
    bool normed = !hp->expert_shares;
    char full[192];
    hp->n_ff_expert = hp->n_ff;
    for (size_t i = 0; i < sizeof floats / sizeof *floats && !code; i++)
        code = gguf_float(s, floats[i].key, false, floats[i].v, err);
    for (size_t i = 0; i < sizeof ints / sizeof *ints && !code; i++)
        code = gguf_int(s, ints[i].key, false, ints[i].v, err);
    full_key(s, "use_parallel_residual", full);
    pp_gguf_bool(s->g, full, &hp->parallel);
    full_key(s, "expert_weights_norm", full);
    pp_gguf_bool(s->g, full, &normed);
    hp->expert_shares = !normed;
    if (!code)
        code = gguf_gating(s, hp, err);
    return code ? code : gguf_pooling(s, hp, err);
}

/* Which layers have the window: a flag for each, or a number: each such layer has none. Families that have their own
 * way, but no such key, add it. */
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

float pp_hparams_yarn_magnitude(float factor, float mscale, float mscale_all_dim)
{
    float log_factor = factor > 1 ? logf(factor) : 0;
    return (0.1f * mscale * log_factor + 1.0f) / (0.1f * mscale_all_dim * log_factor + 1.0f);
}

/* GGUF's attention factor multiplies the usual 0.1 ln(factor) + 1, or the quotient that a multiplier of the logarithm
 * gives; ours replaces it. */
static enum pp_code gguf_yarn(const struct section *s, struct pp_hparams *hp, struct pp_error *err)
{
    float attn = 1, log_multiplier = 0;
    hp->rope_scaling = PP_ROPE_YARN;
    hp->rope_orig_ctx = hp->n_ctx_train;
    hp->rope_beta_fast = 32;
    hp->rope_beta_slow = 1;
    enum pp_code code = gguf_int(s, "rope.scaling.original_context_length", false, &hp->rope_orig_ctx, err);
    if (!code)
        code = gguf_float(s, "rope.scaling.attn_factor", false, &attn, err);
    if (!code)
        code = gguf_float(s, "rope.scaling.yarn_attn_factor", false, &attn, err);
    if (!code)
        code = gguf_float(s, "rope.scaling.yarn_beta_fast", false, &hp->rope_beta_fast, err);
    if (!code)
        code = gguf_float(s, "rope.scaling.yarn_beta_slow", false, &hp->rope_beta_slow, err);
    if (!code)
        code = gguf_float(s, "rope.scaling.yarn_log_multiplier", false, &log_multiplier, err);
    if (!code && log_multiplier != 0.0f)
        hp->rope_attn_factor = attn * pp_hparams_yarn_magnitude(hp->rope_factor, 1, log_multiplier);
    else if (!code && attn != 1.0f)
        hp->rope_attn_factor = attn * (0.1f * logf(hp->rope_factor) + 1.0f);
    return code;
}

static enum pp_code gguf_rope(const struct section *s, struct pp_hparams *hp, struct pp_error *err)
{
    char full[192];
    struct pp_str type = {"", 0};
    enum pp_code code = gguf_int(s, "rope.dimension_count", false, &hp->rope_dim, err);
    if (!code)
        code = gguf_float(s, "rope.freq_base", false, &hp->rope_base, err);
    if (!code)
        code = gguf_float(s, "rope.scale_linear", false, &hp->rope_factor, err); /* before there were types */
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
            return pp_fail(err, PP_ERR_UNSUPPORTED, "RoPE scaling \"%.*s\" is not supported; linear and yarn are",
                           (int)(type.len < 40 ? type.len : 40), type.data);
        hp->rope_factor = 1;
    }
    hp->rope_scaling = hp->rope_factor != 1.0f ? PP_ROPE_LINEAR : PP_ROPE_NONE;
    return PP_OK;
}

/* A number of either kind; 0: there is none. */
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

/* Numbers by which a decoder of the families that we know computes something else than it usually does. */
enum pp_code pp_hparams_refuse(const struct pp_gguf *g, const char *arch, const struct pp_hparams *hp,
                               struct pp_error *err)
{
    const struct {
        const char *key;
        double usual, usual_too;
    } keys[] = {{"attention.max_alibi_bias", 0, (double)hp->alibi},
                {"attention.value_scale", 0, hp->kv_lora_rank ? 1 : (double)hp->attn_value_scale},
                {"attention.output_scale", 0, strcmp(hp->arch, "grok") == 0 ? (double)hp->attn_scale : 1},
                {"swin_norm", 0, 0}};
    const struct section s = {g, arch, NULL};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const double v = number_of(&s, keys[i].key);
        if (v != keys[i].usual && v != keys[i].usual_too)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "metadata %s.%s is %g, which pippin does not compute", arch,
                           keys[i].key, v);
    }
    return PP_OK;
}

/* The function of the feed-forward parts, where it is not the family's. */
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
    return pp_fail(err, PP_ERR_UNSUPPORTED, "metadata %s is \"%.*s\", which pippin does not compute", full,
                   (int)(name.len < 40 ? name.len : 40), name.data);
}

/* Layers with one feed-forward part in a model that has experts, or with both. */
static void find_dense(const struct pp_source *source, struct pp_hparams *hp)
{
    for (int64_t l = 0; hp->n_expert > 0 && l < hp->n_layer && l < PP_MAX_LAYERS; l++) {
        char router[64], up[64];
        snprintf(router, sizeof router, "blk.%lld.ffn_gate_inp.weight", (long long)l);
        snprintf(up, sizeof up, "blk.%lld.ffn_up.weight", (long long)l);
        const bool chosen = pp_source_tensor(source, router), dense = pp_source_tensor(source, up);
        hp->layer[l] |= dense && !chosen ? PP_LAYER_DENSE : 0;
        hp->dense_beside = hp->dense_beside || (dense && chosen);
    }
}

/* Layers with a short convolution in place of attention, or Mamba's states. */
static enum pp_code find_convolutions(const struct section *s, struct pp_hparams *hp, struct pp_error *err)
{
    for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS; l++) {
        char taps[64], bias[64], direct[64];
        snprintf(taps, sizeof taps, "blk.%lld.shortconv.conv.weight", (long long)l);
        snprintf(bias, sizeof bias, "blk.%lld.shortconv.in_proj.bias", (long long)l);
        hp->layer[l] |= pp_source_tensor(s->source, taps) ? PP_LAYER_CONVOLVED : 0;
        snprintf(direct, sizeof direct, "blk.%lld.ssm_d", (long long)l);
        hp->layer[l] |= pp_source_tensor(s->source, direct) ? PP_LAYER_RECURRENT : 0;
        hp->conv_bias = hp->conv_bias || pp_source_tensor(s->source, bias);
    }
    hp->state_norm = pp_source_tensor(s->source, "blk.0.ssm_norm.weight") != NULL;
    return gguf_int(s, "shortconv.l_cache", false, &hp->conv_taps, err);
}

/* Key heads: as many in all layers, but for those that have none because something is in place of attention. */
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
        return gguf_of_layers(s, "attention.head_count_kv", false, place, &hp->n_head_kv, hp, err);
    for (size_t l = 0; l < n && l < (size_t)hp->n_layer && alike; l++) {
        const bool attends = !(hp->layer[l] & (PP_LAYER_CONVOLVED | PP_LAYER_RECURRENT));
        alike = pp_gguf_array_int(s->g, full, l, &v) && (v == 0 ? !attends : !most || v == most);
        most = alike && v ? v : most;
    }
    if (!alike || !most)
        return gguf_of_layers(s, "attention.head_count_kv", true, place, &hp->n_head_kv, hp, err);
    hp->n_head_kv = most;
    for (int64_t l = 0; l < hp->n_layer; l++)
        hp->sizes[l].n_head_kv = (int32_t)most;
    return PP_OK;
}

void pp_hparams_find_shared(const struct pp_source *source, struct pp_hparams *hp)
{
    const struct pp_tensor *up = NULL;
    for (int64_t l = 0; hp->n_expert > 0 && l < hp->n_layer && !up; l++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%lld.ffn_up_shexp.weight", (long long)l);
        up = pp_source_tensor(source, name);
    }
    hp->n_ff_shared = up ? up->ne[1] : 0;
    up = pp_source_tensor(source, "blk.0.ffn_up_chexps.weight");
    up = up ? up : pp_source_tensor(source, "blk.0.ffn_up_ch.0.weight");
    hp->n_ff_share = up ? up->ne[1] : 0;
}

/* Latent attention. Files with k_b and v_b apart tell the cache's sizes under the usual keys, and those of heads under
 * keys that end with _mla; older ones, with both in one matrix, have those of heads under the usual keys. */
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
        code = check_range("rank of keys and values", hp->kv_lora_rank, 2, 1 << 12, err);
    if (!code)
        code = check_range("head size", key_length, 3, 1 << 12, err);
    if (!code)
        code = check_range("number of rotated dimensions", hp->rope_dim, 2, key_length - 1, err);
    if (code)
        return code;
    hp->qk_nope_dim = key_length - hp->rope_dim;
    hp->n_head_kv = 1;
    hp->head_dim = hp->kv_lora_rank + hp->rope_dim;
    return PP_OK;
}

/* The layers that are counted may include some that guess further tokens. */
static enum pp_code gguf_nextn(const struct section *s, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = gguf_int(s, "nextn_predict_layers", false, &hp->n_nextn, err);
    if (!code && hp->n_nextn)
        code = check_range("number of layers that guess further tokens", hp->n_nextn, 0, hp->n_layer - 1, err);
    hp->n_layer -= code ? 0 : hp->n_nextn;
    return code;
}

/* A mixture without dense layers need not say how wide those would be. */
static enum pp_code gguf_ff(const struct section *s, struct pp_hparams *hp, struct pp_error *err)
{
    const size_t place = offsetof(struct pp_layer_sizes, n_ff);
    char full[192];
    full_key(s, "feed_forward_length", full);
    if (pp_gguf_has(s->g, full))
        return gguf_of_layers(s, "feed_forward_length", true, place, &hp->n_ff, hp, err);
    full_key(s, "expert_feed_forward_length", full);
    const char *key = pp_gguf_has(s->g, full) ? "expert_feed_forward_length" : "feed_forward_length";
    return gguf_of_layers(s, key, true, place, &hp->n_ff, hp, err);
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
    if ((code = gguf_int(&s, "block_count", true, &hp->n_layer, err)) || (code = check_layers(hp, err)) ||
        (code = gguf_nextn(&s, hp, err)) || (code = gguf_int(&s, "embedding_length", true, &hp->n_embd, err)) ||
        (code = gguf_ff(&s, hp, err)) ||
        (code = gguf_int(&s, "context_length", true, &hp->n_ctx_train, err)) ||
        (code = gguf_of_layers(&s, "attention.head_count", true, offsetof(struct pp_layer_sizes, n_head), &hp->n_head,
                               hp, err)) ||
        (code = gguf_epsilon(&s, hp, err)) || (code = gguf_rare(&s, hp, err)) ||
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
    pp_hparams_find_shared(source, hp);
    hp->qk_norm = pp_source_tensor(source, "blk.0.attn_q_norm.weight") != NULL;
    hp->two_norms = pp_source_tensor(source, "blk.0.attn_norm_2.weight") != NULL;
    const struct pp_tensor *dense = pp_source_tensor(source, "dense_2.weight");
    hp->n_dense = dense ? dense->ne[1] : 0;
    const struct pp_tensor *gate = pp_source_tensor(source, "blk.0.attn_gate.weight");
    hp->head_gates = gate && gate->n_dims == 2 && gate->ne[1] == pp_layer_shape(hp, 0).n_head;
    if (hp->kv_lora_rank)
        return gguf_latent(&s, value_length, hp, err);
    hp->v_head_dim = value_length != hp->head_dim ? value_length : 0;
    return PP_OK;
}

/* --- config.json --------------------------------------------------------------------------------------- */

bool pp_json_int(const cJSON *object, const char *key, int64_t *v)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!item || cJSON_IsNull(item))
        return true;
    if (!cJSON_IsNumber(item) || !(fabs(item->valuedouble) <= 9007199254740992.0) ||
        trunc(item->valuedouble) != item->valuedouble)
        return false;
    *v = (int64_t)item->valuedouble;
    return true;
}

bool pp_json_float(const cJSON *object, const char *key, float *v)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!item || cJSON_IsNull(item))
        return true;
    if (!cJSON_IsNumber(item))
        return false;
    *v = (float)item->valuedouble;
    return true;
}

static enum pp_code fail_number(const char *key, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_FORMAT, "config.json: %s is not the number it should be", key);
}

static enum pp_code config_yarn(const cJSON *rope, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *factor = cJSON_GetObjectItemCaseSensitive(rope, "factor");
    float mscale = 0, mscale_all_dim = 0;
    if (!cJSON_IsNumber(factor) && hp->rope_orig_ctx > 0)
        hp->rope_factor = (float)((double)hp->n_ctx_train / (double)hp->rope_orig_ctx);
    hp->rope_scaling = PP_ROPE_YARN;
    hp->rope_beta_fast = 32;
    hp->rope_beta_slow = 1;
    if (!pp_json_float(rope, "beta_fast", &hp->rope_beta_fast) ||
        !pp_json_float(rope, "beta_slow", &hp->rope_beta_slow) ||
        !pp_json_float(rope, "attention_factor", &hp->rope_attn_factor) || !pp_json_float(rope, "mscale", &mscale) ||
        !pp_json_float(rope, "mscale_all_dim", &mscale_all_dim))
        return fail_number("a member of the YaRN scaling", err);
    hp->rope_no_truncate = cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(rope, "truncate"));
    if (hp->rope_attn_factor == 0 && mscale > 0 && mscale_all_dim > 0)
        hp->rope_attn_factor = pp_hparams_yarn_magnitude(hp->rope_factor, mscale, mscale_all_dim);
    return PP_OK;
}

/* Its factors become tensors: pp_hparams_rope_factors. The original length may stand beside or inside the scaling; what
 * is no factor follows from both lengths. */
static enum pp_code config_long(const cJSON *config, const cJSON *rope, struct pp_hparams *hp, struct pp_error *err)
{
    hp->rope_scaling = PP_ROPE_LONG;
    hp->rope_factor = 1;
    if (!pp_json_int(config, "original_max_position_embeddings", &hp->rope_orig_ctx) ||
        !pp_json_int(rope, "original_max_position_embeddings", &hp->rope_orig_ctx))
        return fail_number("original_max_position_embeddings", err);
    if (!pp_json_float(rope, "attention_factor", &hp->rope_attn_factor))
        return fail_number("the RoPE attention factor", err);
    return PP_OK;
}

enum pp_code pp_hparams_rope_factors(const cJSON *config, const char *key, int64_t n, float *factors,
                                     struct pp_error *err)
{
    const cJSON *rope = cJSON_GetObjectItemCaseSensitive(config, "rope_parameters"), *item;
    if (!cJSON_IsObject(rope))
        rope = cJSON_GetObjectItemCaseSensitive(config, "rope_scaling");
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(rope, key);
    int64_t i = 0;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != n)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: %s of the RoPE scaling is not a list of %lld numbers", key,
                       (long long)n);
    cJSON_ArrayForEach(item, list)
        factors[i++] = cJSON_IsNumber(item) ? (float)item->valuedouble : NAN;
    return PP_OK;
}

static enum pp_code config_scaling(const cJSON *config, const cJSON *rope, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(rope, "rope_type");
    if (!cJSON_IsString(type))
        type = cJSON_GetObjectItemCaseSensitive(rope, "type");
    const char *name = cJSON_IsString(type) ? type->valuestring : "default";
    if (strcmp(name, "yarn") == 0 && cJSON_HasObjectItem(rope, "long_factor"))
        name = "longrope"; /* what Phi 3 calls so */
    if (strcmp(name, "default") == 0 || strcmp(name, "mrope") == 0 || strcmp(name, "xdrope") == 0)
        /* for text these are the same; what an xdrope has an alpha for is the family's business */
        return PP_OK;
    if (!pp_json_float(rope, "factor", &hp->rope_factor))
        return fail_number("the RoPE scaling factor", err);
    if (strcmp(name, "proportional") == 0) {
        hp->rope_scaling = hp->rope_factor != 1.0f ? PP_ROPE_LINEAR : PP_ROPE_NONE;
        return PP_OK;
    }
    if (strcmp(name, "linear") == 0) {
        hp->rope_scaling = PP_ROPE_LINEAR;
        return PP_OK;
    }
    hp->rope_orig_ctx = hp->n_ctx_train;
    if (!pp_json_int(rope, "original_max_position_embeddings", &hp->rope_orig_ctx))
        return fail_number("original_max_position_embeddings", err);
    if (strcmp(name, "yarn") == 0)
        return config_yarn(rope, hp, err);
    if (strcmp(name, "dynamic") == 0) {
        hp->rope_scaling = PP_ROPE_DYNAMIC;
        return PP_OK;
    }
    if (strcmp(name, "longrope") == 0 || strcmp(name, "su") == 0)
        return config_long(config, rope, hp, err);
    if (strcmp(name, "llama3") != 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED,
                       "RoPE scaling \"%.40s\" is not supported; linear, dynamic, llama3, yarn and longrope are", name);
    hp->rope_scaling = PP_ROPE_LLAMA3;
    if (!pp_json_float(rope, "low_freq_factor", &hp->rope_low_freq) ||
        !pp_json_float(rope, "high_freq_factor", &hp->rope_high_freq))
        return fail_number("a frequency factor", err);
    return PP_OK;
}

/* Whether a part of the pairs is rotated, as fast as if all were. */
static bool is_proportional(const cJSON *rope)
{
    const char *type = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(rope, "rope_type"));
    return type && strcmp(type, "proportional") == 0;
}

static enum pp_code config_rope(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *rope = cJSON_GetObjectItemCaseSensitive(config, "rope_parameters");
    const cJSON *by_type = cJSON_GetObjectItemCaseSensitive(rope, "full_attention");
    float part = 1;
    if (cJSON_IsObject(by_type)) /* and "sliding_attention": the family's business */
        rope = by_type;
    hp->rope_base = 10000;
    hp->rope_factor = 1;
    if (!cJSON_IsObject(rope))
        rope = cJSON_GetObjectItemCaseSensitive(config, "rope_scaling");
    const bool listed = cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(config, "rope_theta"));
    if ((!listed && !pp_json_float(config, "rope_theta", &hp->rope_base)) || /* lists are the family's business */
        !pp_json_float(config, "partial_rotary_factor", &part))
        return fail_number("rope_theta or partial_rotary_factor", err);
    if (cJSON_IsObject(rope)) {
        if (!pp_json_float(rope, "rope_theta", &hp->rope_base) || !pp_json_float(rope, "partial_rotary_factor", &part))
            return fail_number("rope_theta or partial_rotary_factor", err);
        enum pp_code code = config_scaling(config, rope, hp, err);
        if (code)
            return code;
    }
    if (!(part > 0 && part <= 1))
        return fail_number("partial_rotary_factor", err);
    hp->rope_dim = part == 1.0f ? hp->head_dim : (int64_t)((float)hp->head_dim * part);
    if (is_proportional(rope)) {
        hp->rope_turning = hp->rope_dim / 2;
        hp->rope_dim = hp->head_dim;
    }
    return PP_OK;
}

/* A size under one of several names. */
static enum pp_code config_size(const cJSON *config, const char *const *keys, int64_t *v, struct pp_error *err)
{
    const char *const *key = keys;
    while (key[1] && !cJSON_HasObjectItem(config, *key))
        key++;
    if (!pp_json_int(config, *key, v) || *v <= 0)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: %s is missing or not a positive integer", *key);
    return PP_OK;
}

/* The feed-forward parts' size, or a list of them. */
static enum pp_code config_ff(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const char *const keys[] = {"ffn_hidden_size", "moe_ffn_hidden_size", "intermediate_size", NULL};
    static const char each[] = "intermediate_size";
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(config, each), *item;
    int64_t l = 0;
    if (!cJSON_IsArray(list) && cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(config, "block_configs")))
        return PP_OK; /* which say it */
    if (!cJSON_IsArray(list))
        return config_size(config, keys, &hp->n_ff, err);
    if (cJSON_GetArraySize(list) < hp->n_layer)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: %s does not name %lld layers", each,
                       (long long)hp->n_layer);
    pp_layers_uneven(hp);
    hp->n_ff = hp->uneven = 0;
    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsNumber(item) || !(item->valuedouble >= 1 && item->valuedouble <= 1 << 22))
            return fail_number(each, err);
        if (l == hp->n_layer)
            break;
        hp->uneven = hp->uneven || (l && item->valueint != hp->sizes[0].n_ff);
        hp->n_ff = item->valueint > hp->n_ff ? item->valueint : hp->n_ff;
        hp->sizes[l++].n_ff = item->valueint;
    }
    return PP_OK;
}

enum pp_code pp_hparams_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const char *const vocab[] = {"padded_vocab_size", "vocab_size", NULL};
    static const char *const embd[] = {"n_embd", "n_embed", "d_model", "hidden_size", "model_dim", NULL};
    static const char *const layers[] = {"n_layer", "n_layers", "num_layers", "num_hidden_layers",
                                         "num_transformer_layers", NULL};
    static const char *const heads[] = {"n_head", "n_heads", "num_attention_heads", NULL};
    enum pp_code code;
    if ((code = config_size(config, vocab, &hp->n_vocab, err)) ||
        (code = config_size(config, embd, &hp->n_embd, err)) ||
        (code = config_size(config, layers, &hp->n_layer, err)) || (code = check_layers(hp, err)) ||
        (code = config_size(config, heads, &hp->n_head, err)))
        return code;
    hp->n_ff = 4 * hp->n_embd; /* GPT-2 need not say it */
    if (!cJSON_HasObjectItem(config, "n_embd") && (code = config_ff(config, hp, err)))
        return code;
    hp->n_head_kv = hp->n_head;
    hp->head_dim = hp->n_embd / hp->n_head;
    hp->n_ctx_train = 2048;
    hp->norm_eps = 1e-6f;
    if (!pp_json_int(config, "num_key_value_heads", &hp->n_head_kv) ||
        !pp_json_int(config, "head_dim", &hp->head_dim) ||
        !pp_json_int(config, "max_position_embeddings", &hp->n_ctx_train) ||
        !pp_json_float(config, "rms_norm_eps", &hp->norm_eps))
        return fail_number("num_key_value_heads, head_dim, max_position_embeddings or rms_norm_eps", err);
    if (!pp_json_int(config, "num_nextn_predict_layers", &hp->n_nextn) || hp->n_nextn < 0)
        return fail_number("num_nextn_predict_layers", err);
    for (int64_t l = 0; l < hp->n_layer && hp->uneven; l++) {
        hp->sizes[l].n_head = (int32_t)hp->n_head;
        hp->sizes[l].n_head_kv = (int32_t)hp->n_head_kv;
    }
    return config_rope(config, hp, err);
}

enum pp_code pp_config_activation(const cJSON *config, const char *key, const char *const *known, struct pp_error *err)
{
    const cJSON *fn = cJSON_GetObjectItemCaseSensitive(config, key);
    const char *const *k = known;
    while (cJSON_IsString(fn) && *k && strcmp(*k, fn->valuestring) != 0)
        k++;
    if (*k)
        return PP_OK;
    return pp_fail(err, PP_ERR_UNSUPPORTED, "activation \"%.40s\" is not supported for this family; %s is",
                   fn->valuestring, known[0]);
}

enum pp_code pp_config_layer_types(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *types = cJSON_GetObjectItemCaseSensitive(config, "layer_types"), *item;
    int64_t l = 0;
    if (!cJSON_IsArray(types))
        return PP_OK;
    if (cJSON_GetArraySize(types) != hp->n_layer)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: layer_types does not name %lld layers",
                       (long long)hp->n_layer);
    cJSON_ArrayForEach(item, types)
    {
        const char *type = cJSON_IsString(item) ? item->valuestring : "";
        const bool wide = strcmp(type, "full_attention") == 0;
        if (!wide && strcmp(type, "sliding_attention") != 0)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "layers of the type \"%.40s\" are not supported", type);
        hp->layer[l] = (uint8_t)((hp->layer[l] & ~PP_LAYER_WIDE) | (wide ? PP_LAYER_WIDE : 0));
        l++;
    }
    return PP_OK;
}

void pp_layers_every(struct pp_hparams *hp, int64_t step, uint8_t bits)
{
    for (int64_t l = step - 1; l >= 0 && l < hp->n_layer && l < PP_MAX_LAYERS; l += step)
        hp->layer[l] |= bits;
}

void pp_layers_uneven(struct pp_hparams *hp)
{
    hp->uneven = true;
    for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        hp->sizes[l] = (struct pp_layer_sizes){.n_head = (int32_t)hp->n_head, .n_head_kv = (int32_t)hp->n_head_kv,
                                               .n_ff = (int32_t)hp->n_ff};
}

enum pp_code pp_layers_share(struct pp_hparams *hp, int64_t n, struct pp_error *err)
{
    if (n < 0 || n >= hp->n_layer)
        return pp_fail(err, PP_ERR_FORMAT, "%lld of %lld layers cannot share keys and values", (long long)n,
                       (long long)hp->n_layer);
    for (int64_t l = hp->n_layer - n; l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        hp->layer[l] |= PP_LAYER_SHARED;
    return PP_OK;
}

int64_t pp_layers_shared(const struct pp_hparams *hp)
{
    int64_t n = 0;
    while (n < hp->n_layer && hp->layer[hp->n_layer - 1 - n] & PP_LAYER_SHARED)
        n++;
    return n;
}

void pp_layers_rotate_windows(struct pp_hparams *hp)
{
    for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        hp->layer[l] |= hp->layer[l] & PP_LAYER_WIDE ? PP_LAYER_UNROTATED : 0;
}
