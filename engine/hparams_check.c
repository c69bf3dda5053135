/* hparams_check.c - the limits of hyperparameters, whatever they were read from. */
#include <math.h>
#include <stdint.h>

#include "engine/arch/arch.h"
#include "engine/hparams_int.h"
#include "engine/plan.h"

enum pp_code pp_check_range(const char *what, int64_t v, int64_t least, int64_t most, struct pp_error *err)
{
    if (v >= least && v <= most)
        return PP_OK;
    return pp_fail(err, PP_ERR_FORMAT, "the model's %s is %lld; it must be from %lld to %lld", what, (long long)v,
                   (long long)least, (long long)most);
}

enum pp_code pp_check_layers(const struct pp_hparams *hp, struct pp_error *err)
{
    return pp_check_range("number of layers", hp->n_layer, 1, PP_MAX_LAYERS, err);
}

static enum pp_code check_positive(const char *what, float v, struct pp_error *err)
{
    if (isfinite(v) && v > 0)
        return PP_OK;
    return pp_fail(err, PP_ERR_FORMAT, "the model's %s is %g; it must be a positive number", what, (double)v);
}

static enum pp_code check_rope(const struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = check_positive("RoPE base", hp->rope_base, err);
    if (!code && hp->attn_temperature != 0.0f)
        code = pp_check_range("original context length", hp->attn_temperature_length ? hp->attn_temperature_length
                                                                                 : hp->rope_orig_ctx,
                           1, INT32_MAX, err);
    if (!code)
        code = pp_check_range("number of rotated dimensions", hp->rope_dim, hp->kv_lora_rank ? 0 : 2, hp->head_dim,
                              err);
    if (!code && (hp->rope_dim % 2 != 0 || hp->head_dim % 2 != 0))
        code =
            pp_fail(err, PP_ERR_FORMAT, "the model rotates %lld of a head's %lld dimensions; the number must be even",
                    (long long)hp->rope_dim, (long long)hp->head_dim);
    if (!code && hp->rope_base_local != 0.0f)
        code = check_positive("local RoPE base", hp->rope_base_local, err);
    if (code || hp->rope_scaling == PP_ROPE_NONE)
        return code;
    if (!(isfinite(hp->rope_attn_factor) && hp->rope_attn_factor >= 0))
        return pp_fail(err, PP_ERR_FORMAT, "the model's RoPE attention factor is %g; it must be positive",
                       (double)hp->rope_attn_factor);
    code = check_positive("RoPE scaling factor", hp->rope_factor, err);
    if (!code && hp->rope_scaling != PP_ROPE_LINEAR)
        code = pp_check_range("original context length", hp->rope_orig_ctx, 1, INT32_MAX, err);
    if (!code && hp->rope_scaling == PP_ROPE_LLAMA3 &&
        !(hp->rope_low_freq > 0 && hp->rope_high_freq >= hp->rope_low_freq && isfinite(hp->rope_high_freq)))
        code = pp_fail(err, PP_ERR_FORMAT,
                       "the model's RoPE frequency factors are %g and %g; the first must not be larger than the second",
                       (double)hp->rope_low_freq, (double)hp->rope_high_freq);
    if (!code && hp->rope_scaling == PP_ROPE_YARN &&
        !(hp->rope_beta_slow > 0 && hp->rope_beta_fast >= hp->rope_beta_slow && isfinite(hp->rope_beta_fast) &&
          hp->rope_attn_factor >= 0 && isfinite(hp->rope_attn_factor)))
        code =
            pp_fail(err, PP_ERR_FORMAT, "the model's YaRN parameters are invalid (beta %g to %g, attention factor %g)",
                    (double)hp->rope_beta_slow, (double)hp->rope_beta_fast, (double)hp->rope_attn_factor);
    return code;
}

/* Factors and bounds must be positive and finite, or 0, which means that there is none. */
static enum pp_code check_scales(const struct pp_hparams *hp, struct pp_error *err)
{
    const struct {
        const char *what;
        float v;
    } scales[] = {
        {"attention scale", hp->attn_scale},       {"attention soft cap", hp->attn_softcap},
        {"largest ALiBi bias", hp->alibi},
        {"scale of keys' and values' vector", hp->latent_scale}, {"scale of states' results", hp->state_scale},
        {"attention temperature", hp->attn_temperature}, {"scale of values", hp->attn_value_scale},
        {"logit soft cap", hp->final_softcap},     {"router's soft cap", hp->router_softcap},
        {"embedding scale", hp->embd_scale},
        {"bound of queries, keys and values", hp->qkv_clamp},
        {"residual scale", hp->residual_scale},    {"logit scale", hp->logit_scale},
        {"scale of the stream in layers with states", hp->stream_scales[PP_STREAM_STATES][0]},
        {"scale of what those add", hp->stream_scales[PP_STREAM_STATES][1]},
        {"scale of the stream in layers with attention", hp->stream_scales[PP_STREAM_ATTENTION][0]},
        {"scale of what those add", hp->stream_scales[PP_STREAM_ATTENTION][1]},
        {"scale of the stream before experts", hp->stream_scales[PP_STREAM_FF][0]},
        {"scale of what experts add", hp->stream_scales[PP_STREAM_FF][1]},
        {"scale of experts' weights", hp->expert_scale}, {"scale of shared experts", hp->expert_share_scale},
    };
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < sizeof scales / sizeof *scales && !code; i++)
        if (scales[i].v != 0.0f)
            code = check_positive(scales[i].what, scales[i].v, err);
    return code;
}

/* Groups of experts are equal in size, and any n_expert_group_used of them have at least n_expert_used experts. */
static enum pp_code check_groups(const struct pp_hparams *hp, struct pp_error *err)
{
    const int64_t n = hp->n_expert_group, used = hp->n_expert_group_used;
    enum pp_code code = pp_check_range("number of groups of experts", n, 0, hp->n_expert, err);
    if (code || n < 2)
        return code;
    code = pp_check_range("number of groups of experts used", used, 1, n, err);
    if (!code && (hp->n_expert % n != 0 || hp->n_expert / n * used < hp->n_expert_used))
        code = pp_fail(err, PP_ERR_FORMAT, "the model chooses %lld of its %lld experts from %lld of %lld groups, "
                                           "which is impossible", (long long)hp->n_expert_used, (long long)hp->n_expert,
                       (long long)used, (long long)n);
    return code;
}

/* Whether the family's layers are defined with experts only, or config.json cannot express a model without. */
static bool needs_experts(const struct pp_hparams *hp)
{
    const struct pp_arch *arch = pp_arch_by_name(hp->arch);
    return hp->head_mixture || hp->hyper || hp->router_rank ||
           (arch && (arch->decoder.shortcut || arch->decoder.norm_replaces_stream));
}

static enum pp_code check_experts(const struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_check_range("number of experts", hp->n_expert, needs_experts(hp), PP_MAX_EXPERTS, err);
    if (!code)
        code = pp_check_range("number of experts that compute nothing", hp->n_expert_idle, 0,
                              hp->n_expert && hp->n_expert_group < 2 ? PP_MAX_EXPERTS - hp->n_expert : 0, err);
    const int64_t all = code ? 0 : hp->n_expert + hp->n_expert_idle;
    if (!code && hp->n_expert)
        code = pp_check_range("number of experts used", hp->n_expert_used, 1,
                           all < PP_MAX_EXPERTS_USED ? all : PP_MAX_EXPERTS_USED, err);
    if (!code && hp->n_expert)
        code = pp_check_range("feed-forward size of an expert", hp->n_ff_expert, 1, 1 << 22, err);
    if (!code && hp->n_expert)
        code = pp_check_range("feed-forward size of the shared expert", hp->n_ff_shared, 0, 1 << 22, err);
    if (!code)
        code = pp_check_range("number of experts of values", hp->n_value_expert, 0, PP_MAX_EXPERTS, err);
    if (!code && hp->n_value_expert)
        code = pp_check_range("number of experts of values used", hp->n_value_expert_used, 1,
                              hp->n_value_expert < PP_MAX_EXPERTS_USED ? hp->n_value_expert : PP_MAX_EXPERTS_USED, err);
    if (!code && hp->n_expert_share)
        code = pp_check_range("number of experts that share one", hp->n_expert_share, 1, hp->n_expert, err);
    if (!code && hp->n_expert_share && hp->n_expert % hp->n_expert_share != 0)
        code = pp_fail(err, PP_ERR_FORMAT, "the model has %lld experts, which is not a multiple of the %lld that "
                                           "share one",
                       (long long)hp->n_expert, (long long)hp->n_expert_share);
    if (!code)
        code = pp_check_range("size of what goes into experts", hp->n_embd_expert, 0, 1 << 20, err);
    if (!code)
        code = pp_check_range("size of what experts are chosen by", hp->router_rank, 0, 1 << 16, err);
    if (!code)
        code = pp_check_range("size between the dense layers after an encoder", hp->n_dense, 0, 1 << 20, err);
    if (!code)
        code = pp_check_range("size of an encoder's vectors", hp->n_embd_out, 0, 1 << 20, err);
    return code || !hp->n_expert ? code : check_groups(hp, err);
}

/* Blocks that an indexer picks for each KV head. A position's low bits are its place within a block. */
static enum pp_code check_blocks(const struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_check_range("number of positions of a block", hp->index_block, 1, hp->index_top_k, err);
    if (!code)
        code = pp_check_range("number of positions that keys are made of", hp->kv_taps, 0, PP_MAX_TAPS, err);
    if (!code)
        code = pp_check_range("number of blocks that are seen in any case", hp->index_n_local, 1,
                              hp->index_top_k / hp->index_block, err);
    if (!code && (hp->index_block & (hp->index_block - 1)) != 0)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "blocks of %lld positions are not supported; the number must be a "
                                                "power of two",
                       (long long)hp->index_block);
    if (!code && (hp->sizes_vary || hp->n_index_head != hp->n_head_kv))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "the model's index has %lld heads, but there are %lld key heads, each "
                                                "of which needs one", (long long)hp->n_index_head,
                                                (long long)hp->n_head_kv);
    return code;
}

/* Blocks that an indexer picks for all heads, by one key pooled from those of the block's positions. */
static enum pp_code check_pools(const struct pp_hparams *hp, struct pp_error *err)
{
    if (hp->index_block < 2 || hp->index_block > PP_MAX_TAPS || (hp->index_block & (hp->index_block - 1)) != 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "an index whose keys cover %lld positions each is not supported; "
                                                "choose 2, 4, 8 or 16", (long long)hp->index_block);
    if (hp->index_top_k % hp->index_block != 0)
        return pp_fail(err, PP_ERR_FORMAT, "the model's index picks %lld positions, which is not a multiple of the "
                                           "block size %lld", (long long)hp->index_top_k, (long long)hp->index_block);
    return PP_OK;
}

/* The limits bound memory: the picks of every row of a batch, and an indexer's key for every position. Those keys are
 * rotated in rope_dim dimensions, as attention's are. */
static enum pp_code check_index(const struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_check_range("number of positions that an index picks", hp->index_top_k, 0, 1 << 16, err);
    if (code || !hp->index_top_k)
        return code;
    code = pp_check_range("number of heads of an index", hp->n_index_head, 1, 1 << 7, err);
    if (!code)
        code = pp_check_range("size of an index's heads", hp->index_dim, hp->rope_dim, 1 << 9, err);
    if (!code && hp->index_dim % 2 != 0)
        code = pp_fail(err, PP_ERR_FORMAT, "the model's index has a head size of %lld; it must be even",
                       (long long)hp->index_dim);
    if (!code && hp->kv_lora_rank && !hp->q_lora_rank)
        code = pp_fail(err, PP_ERR_FORMAT, "the model has an index, but no rank of queries (q_lora_rank), which it "
                                           "needs");
    if (!code && hp->index_pooled)
        code = check_pools(hp, err);
    if (!code && !hp->index_pooled && !hp->kv_lora_rank && !hp->compressed)
        code = check_blocks(hp, err);
    if (!code && hp->window && !hp->kv_lora_rank && !hp->compressed) /* a window counts positions, but the keys that
                                                                        were picked are not consecutive */
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "an index of blocks together with an attention window (%lld "
                       "positions) is not supported", (long long)hp->window);
    return code;
}

/* DeepSeek V4's compressed attention. Sizes of blocks are powers of two, so that blocks begin at multiples of them. */
static enum pp_code check_compressed(const struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_check_range("rank of queries", hp->q_lora_rank, 1, 1 << 16, err);
    if (!code)
        code = pp_check_range("number of groups of what attention gives", hp->o_groups, 1, hp->n_head, err);
    if (!code)
        code = pp_check_range("rank of those groups", hp->o_rank, 1, 1 << 16, err);
    if (!code)
        code = pp_check_range("number of key heads", hp->n_head_kv, 1, 1, err);
    if (!code)
        code = pp_check_range("attention window", hp->window, 1, INT32_MAX, err);
    if (!code)
        code = pp_check_range("number of layers with tables of experts", hp->n_hash_routed_layers, 0, hp->n_layer, err);
    if (!code && (hp->n_head % hp->o_groups != 0 || hp->sizes_vary))
        code = pp_fail(err, PP_ERR_FORMAT, "the model has %lld heads, which cannot be divided into %lld groups",
                       (long long)hp->n_head, (long long)hp->o_groups);
    for (int64_t l = 0; l < hp->n_layer && !code; l++) {
        const int64_t n = hp->compress[l];
        if (n && (n < PP_COMPRESS_PICKED || n > 1 << 16 || (n & (n - 1)) != 0))
            code = pp_fail(err, PP_ERR_UNSUPPORTED, "layer %lld makes one of %lld positions, which is not supported; "
                           "powers of two from %d on are", (long long)l, (long long)n, PP_COMPRESS_PICKED);
        if (!code && n == PP_COMPRESS_PICKED)
            code = pp_check_range("number of blocks that an index picks", hp->index_top_k, 1, 1 << 16, err);
    }
    return code;
}

static enum pp_code check_local_latent(const struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_check_range("rank of keys and values of layers with a window", hp->kv_lora_rank_local, 2,
                                       1 << 12, err);
    if (!code)
        code = pp_check_range("number of dimensions that are not rotated in layers with a window",
                              hp->qk_nope_dim_local, 1, 1 << 12, err);
    if (!code)
        code = pp_check_range("size of a head's values in layers with a window", hp->v_head_dim_local, 1, 1 << 12, err);
    return code ? code : check_positive("scale of scores of layers with a window", hp->attn_scale_local, err);
}

static enum pp_code check_latent(const struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_check_range("rank of keys and values", hp->kv_lora_rank, 2, 1 << 12, err);
    if (!code)
        code = pp_check_range("rank of queries", hp->q_lora_rank, 0, 1 << 16, err);
    if (!code)
        code = pp_check_range("number of dimensions that are not rotated", hp->qk_nope_dim, 1, 1 << 12, err);
    if (!code)
        code = pp_check_range("size of a head's values", hp->v_head_dim, 1, 1 << 12, err);
    if (!code && hp->kv_lora_rank_local)
        code = check_local_latent(hp, err);
    return code ? code : check_index(hp, err);
}

static enum pp_code check_values(const struct pp_hparams *hp, struct pp_error *err)
{
    if ((hp->v_head_dim <= hp->head_dim || hp->states_mean) && !(hp->v_head_dim && hp->head_dim_local))
        return pp_check_range("size of a head's values", hp->v_head_dim, 0, 1 << 12, err);
    return pp_fail(err, PP_ERR_UNSUPPORTED, "keys of %lld and values of %lld numbers are not supported: only smaller "
                   "values are, of the same size in all layers", (long long)hp->head_dim, (long long)hp->v_head_dim);
}

/* Layers with a convolution or recurrent states in place of attention. */
static enum pp_code check_convolutions(const struct pp_hparams *hp, struct pp_error *err)
{
    int64_t n = 0;
    for (int64_t l = 0; l < hp->n_layer; l++)
        n += (hp->layer[l] & (PP_LAYER_CONVOLVED | PP_LAYER_RECURRENT)) != 0;
    if (n && !hp->conv_taps && !hp->lightning && !hp->mlstm)
        return pp_fail(err, PP_ERR_FORMAT, "the model does not give the length of its convolutions");
    if (n == hp->n_layer && !hp->mamba && !hp->rwkv && !hp->mlstm)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "a model without any attention layer is not supported");
    return pp_check_range("number of positions that a convolution looks at", hp->conv_taps, 0, PP_MAX_TAPS, err);
}

/* Ling's lightning attention. Its decays follow ALiBi's slopes, whose simple formula is for powers of two. */
static enum pp_code check_lightning(const struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_check_range("number of groups in the norm of states", hp->state_groups, 0,
                                       hp->n_state_head, err);
    if (code || !hp->state_groups)
        return code;
    if (hp->n_state_head % hp->state_groups != 0)
        return pp_fail(err, PP_ERR_FORMAT, "the model has %lld states, which cannot be normalised in %lld groups",
                       (long long)hp->n_state_head, (long long)hp->state_groups);
    if ((hp->n_state_head & (hp->n_state_head - 1)) != 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "lightning attention with %lld heads is not supported in this family; "
                                                "the number must be a power of two", (long long)hp->n_state_head);
    if (hp->state_rotated && hp->rope_dim > hp->state_key_dim)
        return pp_fail(err, PP_ERR_FORMAT, "the model says that %lld values of keys of states are rotated, which have "
                       "%lld", (long long)hp->rope_dim, (long long)hp->state_key_dim);
    return PP_OK;
}

/* xLSTM's exponential gates: e^40 (2e17) a million times over is still far from a float's maximum of 3e38. */
static enum pp_code check_gates(const struct pp_hparams *hp, struct pp_error *err)
{
    const float most = 40;
    if (hp->gate_cap > 0 && hp->gate_cap <= most)
        return PP_OK;
    return pp_fail(err, PP_ERR_UNSUPPORTED, "the model's gates, which are exponents, are capped by %g; that must be "
                   "more than 0 and at most %g", (double)hp->gate_cap, (double)most);
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
        enum pp_code code = pp_check_range(limits[i].what, limits[i].v, 1, limits[i].most, err);
        if (code)
            return code;
    }
    if (hp->n_state_head % hp->n_state_key_head != 0)
        return pp_fail(err, PP_ERR_FORMAT, "the model has %lld states, which is not a multiple of its %lld keys",
                       (long long)hp->n_state_head, (long long)hp->n_state_key_head);
    if (hp->state_key_dim % 16 != 0 || hp->state_value_dim % 16 != 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "states of %lld x %lld values are not supported; both must be "
                                                "multiples of 16",
                       (long long)hp->state_key_dim, (long long)hp->state_value_dim);
    for (int i = 0; hp->rwkv && !hp->rwkv4 && i < (hp->rwkv6 ? 2 : 4); i++)
        if (pp_check_range("size between two matrices", hp->rwkv_ranks[i], hp->rwkv_qwen && i == 3 ? 0 : 1, 1 << 16,
                           err))
            return err->code;
    if (hp->state_eps != 0.0f && check_positive("epsilon of states", hp->state_eps, err))
        return err->code;
    if (hp->lightning && check_lightning(hp, err))
        return err->code;
    if (hp->mlstm && check_gates(hp, err))
        return err->code;
    return pp_check_range("number of values that steps of states are made of", hp->state_rank, 0, 1 << 16, err);
}

/* Layers with latent attention may differ in their number of heads only between those with and without a window. */
static enum pp_code check_latent_heads(const struct pp_hparams *hp, struct pp_error *err)
{
    int64_t n_head[2] = {0, 0};
    for (int64_t l = 0; l < hp->n_layer; l++) {
        const bool local = hp->kv_lora_rank_local && pp_has_window(hp, l);
        const int64_t n = pp_latent_shape(hp, l).n_head;
        if (hp->layer[l] & (PP_LAYER_CONVOLVED | PP_LAYER_RECURRENT))
            continue;
        if (n < 1 || (n_head[local] && n_head[local] != n))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "layers with latent attention of %lld and of %lld heads are not "
                           "supported", (long long)n_head[local], (long long)n);
        n_head[local] = n;
    }
    return PP_OK;
}

/* Sizes of single layers. The model's, which are the largest, were checked before. */
static enum pp_code check_sizes(const struct pp_hparams *hp, struct pp_error *err)
{
    const int64_t least = hp->parts_missing ? 0 : 1;
    enum pp_code code = PP_OK;
    for (int64_t l = 0; l < hp->n_layer && !code; l++) {
        const struct pp_layer_shape s = pp_layer_shape(hp, l);
        code = pp_check_range("feed-forward size", s.n_ff, least, hp->n_ff, err);
        if (!code)
            code = pp_check_range("number of heads", s.n_head, least, hp->n_head, err);
        if (!code)
            code = pp_check_range("number of key heads", s.n_head_kv, least, s.n_head, err);
        if (!code && s.n_head_kv && s.n_head % s.n_head_kv != 0)
            code = pp_fail(err, PP_ERR_FORMAT, "the model has %lld heads, which is not a multiple of its %lld key "
                                               "heads",
                           (long long)s.n_head, (long long)s.n_head_kv);
    }
    return code;
}

/* Hyper-connections: constants of struct pp_connection. eps is added to a divisor. */
static enum pp_code check_connection(const struct pp_hparams *hp, struct pp_error *err)
{
    const float scale = hp->connection.write_scale, eps = hp->connection.eps, write_eps = hp->connection.write_eps;
    if (!(scale > 0 && scale <= 1000 && eps > 0 && eps <= 1 && write_eps >= 0 && write_eps <= 1))
        return pp_fail(err, PP_ERR_FORMAT, "the model says something impossible of how its residual streams are "
                       "connected: a magnitude of %g, an epsilon of %g", (double)scale, (double)eps);
    return pp_check_range("number of rounds in which streams' numbers are balanced", hp->connection.sinkhorn_iters, 0,
                          1000, err);
}

static enum pp_code check_ngrams(const struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_check_range("number of tokens that have an embedding together", hp->ngram.size, 2,
                                       PP_MAX_TAPS, err);
    if (!code)
        code = pp_check_range("number of embeddings of as many tokens", hp->ngram.splits, 1, 1 << 8, err);
    if (!code)
        code = pp_check_range("number of rows of embeddings of several tokens", hp->ngram.base, 1, INT32_MAX / 2, err);
    if (!code)
        code = pp_check_range("token that n-grams do not look beyond", hp->ngram.end, 0, hp->n_vocab - 1, err);
    if (!code && hp->n_embd % (hp->ngram.splits * (hp->ngram.size - 1)) != 0)
        code = pp_fail(err, PP_ERR_FORMAT, "an embedding of %lld values cannot be divided into %lld equal parts",
                       (long long)hp->n_embd, (long long)(hp->ngram.splits * (hp->ngram.size - 1)));
    return code;
}

static enum pp_code check_hashes(const struct pp_hparams *hp, struct pp_error *err)
{
    const struct pp_hashed *h = &hp->hashed;
    const struct {
        const char *what;
        int64_t v, least, most;
    } ranges[] = {
        {"number of tokens that have an embedding together", h->size, 2, PP_HASH_TOKENS},
        {"number of embeddings of as many tokens", h->heads, 1, PP_HASH_HEADS / (h->size > 1 ? h->size - 1 : 1)},
        {"size of the rows of embeddings of several tokens", h->width, 1, 1 << 16},
        {"number of positions that their convolution looks at", h->taps, 1, 1 + (PP_MAX_TAPS - 1) / h->size},
        {"layer that embeddings of several tokens go into", h->layer, 0, hp->n_layer - 1},
        {"token that n-grams do not look beyond", h->end, 0, hp->n_vocab - 1},
        {"number of tables of embeddings of several tokens", h->parts, 1, 1 << 12},
    };
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges && !code; i++)
        code = pp_check_range(ranges[i].what, ranges[i].v, ranges[i].least, ranges[i].most, err);
    for (int64_t i = 0; i < h->size && !code; i++)
        if (h->multiplier[i] < 1 || h->multiplier[i] > INT64_MAX / hp->n_vocab)
            code = pp_fail(err, PP_ERR_FORMAT, "the model multiplies tokens by %lld to hash them, which cannot be",
                           (long long)h->multiplier[i]);
    for (int64_t i = 0; i < (h->size - 1) * h->heads && !code; i++)
        code = pp_check_range("number of rows of embeddings of several tokens", h->n_rows[i], 1, INT32_MAX, err);
    return code;
}

static enum pp_code check_local(const struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    if (hp->head_dim_local)
        code = pp_check_range("head size of layers with a window", hp->head_dim_local, 2, 1 << 12, err);
    if (!code && hp->rope_dim_local)
        code = pp_check_range("number of rotated dimensions of layers with a window", hp->rope_dim_local, 2,
                           hp->head_dim_local ? hp->head_dim_local : hp->head_dim, err);
    if (!code && (hp->head_dim_local % 2 != 0 || hp->rope_dim_local % 2 != 0))
        code = pp_fail(err, PP_ERR_FORMAT, "the head dimensions of layers with a window must be even");
    if (!code) /* an adapter's scratch buffers are n_embd wide */
        code = pp_check_range("size of a token's embedding", hp->n_embd_in, 0, hp->n_embd, err);
    if (!code)
        code = pp_check_range("size of each layer's own input", hp->n_embd_layer, 0, 1 << 16, err);
    if (!code)
        code = pp_check_range("rank of norms' gates", hp->norm_rank, 0, 1 << 10, err);
    if (!code && hp->ngram.size)
        code = check_ngrams(hp, err);
    if (!code)
        code = pp_check_range("number of residual streams", hp->n_stream, hp->hyper, PP_MAX_STREAMS, err);
    if (!code && hp->hyper && !hp->stream_rank)
        code = check_connection(hp, err);
    if (!code && hp->hyper)
        code = pp_check_range("rank of streams' gates", hp->stream_rank, 0, 1 << 16, err);
    if (!code && hp->hashed.size)
        code = check_hashes(hp, err);
    if (!code && hp->n_stream && !hp->hyper)
        code = pp_check_range("rank beside attention", hp->laurel_rank, 1, 1 << 16, err);
    if (!code && hp->n_stream && !hp->hyper && !hp->n_embd_layer)
        code = pp_fail(err, PP_ERR_FORMAT, "the model has several streams, but no inputs of each layer's own");
    for (int64_t l = 0; l < hp->n_layer && !code; l++)
        if (!(hp->sparsity[l] >= 0 && hp->sparsity[l] <= 100))
            code = pp_fail(err, PP_ERR_FORMAT, "the model says something impossible of how sparse gates are");
    for (int64_t l = 0; l < hp->n_layer && !code; l++)
        if (!(hp->gate_bound[l] >= 0 && isfinite(hp->gate_bound[l]) && hp->expert_bound[l] >= 0 &&
              isfinite(hp->expert_bound[l])))
            code = pp_fail(err, PP_ERR_FORMAT, "the model says something impossible of how large gates are");
    return code ? code : pp_check_range("number of pairs that are rotated", hp->rope_n_pairs, 0, hp->rope_dim / 2, err);
}

static bool has_states(const struct pp_hparams *hp)
{
    bool recurs = hp->n_state_head || hp->mamba || hp->rwkv;
    for (int64_t l = 0; l < hp->n_layer; l++)
        recurs = recurs || hp->layer[l] & PP_LAYER_RECURRENT;
    return recurs;
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
        enum pp_code code = pp_check_range(limits[i].what, limits[i].v, 1, limits[i].most, err);
        if (code)
            return code;
    }
    if (hp->kv_lora_rank) {
        const enum pp_code code = check_latent(hp, err);
        if (code)
            return code;
    }
    enum pp_code code = pp_check_layers(hp, err);
    if (!code && !hp->kv_lora_rank)
        code = check_values(hp, err);
    if (!code && !hp->kv_lora_rank)
        code = check_index(hp, err);
    if (!code && hp->compressed)
        code = check_compressed(hp, err);
    if (!code)
        code = check_sizes(hp, err);
    if (!code && hp->kv_lora_rank)
        code = check_latent_heads(hp, err);
    if (!code)
        code = check_local(hp, err);
    if (!code)
        code = pp_check_range("attention window", hp->window, 0, INT32_MAX, err);
    if (!code) /* they must fit into one chunk of attention */
        code = pp_check_range("number of vectors before a text", hp->n_meta_tokens, 0, PP_KV_CHUNK, err);
    if (!code)
        code = pp_check_range("number of blocks that are seen in any case", hp->n_local_blocks, 0, 1 << 20, err);
    if (!code && hp->n_local_blocks)
        code = pp_check_range("distance of blocks that are seen", hp->vert_stride, 1, 1 << 20, err);
    if (!code && hp->n_local_blocks)
        code = pp_check_range("distance of layers that see all", hp->dense_attn_step, 0, PP_MAX_LAYERS, err);
    if (!code && hp->attn_log_length)
        code = pp_check_range("position from which on scores grow", hp->attn_log_length, 2, INT32_MAX, err);
    if (!code)
        code = check_convolutions(hp, err);
    if (!code)
        code = check_positive("norm epsilon", hp->norm_eps, err);
    if (!code)
        code = check_scales(hp, err);
    if (!code)
        code = check_experts(hp, err);
    if (!code && has_states(hp))
        code = check_states(hp, err);
    return code ? code : check_rope(hp, err);
}
