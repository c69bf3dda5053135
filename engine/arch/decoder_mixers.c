/* decoder_mixers.c - the parts of a decoder's layers that look at other positions: attention, latent attention, short
 * convolutions and Mamba 2; and the choice among these and the parts in other files.
 *
 * Attention: Vaswani et al., arXiv 1706.03762; grouped queries: arXiv 2305.13245; sources of the others are below. */
#include <math.h>
#include <stdio.h>

#include "engine/arch/decoder_int.h"

/* --- attention ------------------------------------------------------------------------------------------------ */

/* Fills in the vectors of a norm of heads: one of head_dim for all heads, or one for each head, as rows of a matrix or
 * (flat_head_norms) concatenated in a vector; and the bias, if there is one. */
static bool find_head_norm(struct builder *b, const char *name, int64_t n_heads, struct pp_op *norm)
{
    const int64_t n = b->shape.head_dim;
    char full[80];
    snprintf(full, sizeof full, "%s.weight", name);
    const struct pp_tensor *t = pp_source_tensor(b->s, full);
    norm->centred = b->d->layer_norm || b->d->layer_norm_heads;
    norm->scale = b->d->head_eps;
    norm->weight = b->hp->flat_head_norms
                       ? pp_plan_rows(b->p, b->s, n_heads, n, b->err, "%s", full)
                       : pp_plan_tensor(b->s, t && t->n_dims > 1 ? n_heads : 0, n, b->err, "%s", full);
    snprintf(full, sizeof full, "%s.bias", name);
    if (norm->weight && pp_source_tensor(b->s, full) &&
        !(norm->bias = pp_plan_tensor(b->s, norm->weight->n_dims > 1 ? n_heads : 0, n, b->err, "%s", full)))
        return false;
    return norm->weight != NULL;
}

/* Normalises queries or keys, n values, in place. */
static bool add_qk_norm(struct builder *b, int l, const char *kind, int slot, int64_t n)
{
    const bool whole = b->d->qk_norm == PP_QK_WHOLE || b->d->qk_norm == PP_QK_WHOLE_OPTIONAL;
    struct pp_op norm = {.kind = whole ? PP_OP_NORM : PP_OP_HEAD_NORM, .layer = l, .in = slot, .in2 = NONE,
                         .out = slot};
    const int64_t n_heads = n / b->shape.head_dim;
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s", l, kind);
    if (b->d->qk_norm == PP_QK_OPTIONAL
            ? !find_head_norm(b, name, n_heads, &norm)
            : !pp_decoder_find_norm(b, name, b->d->qk_norm == PP_QK_BY_HEAD ? b->shape.head_dim : n, &norm))
        return false;
    add(b, norm);
    return true;
}

/* Whether the layer reads another layer's keys and values. */
static bool is_shared(const struct builder *b, int l)
{
    return b->hp->layer[l] & PP_LAYER_SHARED;
}

/* Whether the layer's values are its keys, before their norm and RoPE. */
static bool keys_are_values(const struct builder *b, int l)
{
    return b->hp->keys_as_values && (!b->hp->window || b->hp->layer[l] & PP_LAYER_WIDE);
}

/* Reorders heads from [n_q / n / dim][n] to [n][n_q / n / dim]: head i of `in` belongs to group i mod n, and `out` has
 * all heads of the first group, then all of the second, and so on. */
static void add_head_grouping(struct builder *b, int l, int in, int64_t n, int out)
{
    const int64_t dim = b->shape.head_dim, each = b->n_q / n;
    for (int64_t i = 0; i < n; i++)
        add_take(b, l, in, n * dim, i * dim, dim, pp_plan_part(b->p, out, i * each, each));
}

/* JetMoE: keys and values of `normalised`, and queries from the experts that a row uses. */
static bool add_head_mixture(struct builder *b, int l)
{
    const int64_t n_embd = b->hp->n_embd;
    const int k = pp_plan_linear(b->p, b->s, b->n_kv, n_embd, b->err, "blk.%d.attn_k", l);
    const int v = k < 0 ? -1 : pp_plan_linear(b->p, b->s, b->n_v, n_embd, b->err, "blk.%d.attn_v", l);
    if (v < 0)
        return false;
    add_linear(b, l, k, b->normalised, b->k);
    add_linear(b, l, v, b->normalised, b->v);
    if (!pp_head_mixture_queries(b, l))
        return false;
    add_head_grouping(b, l, b->tiled, b->shape.n_head_kv, b->q);
    return true;
}

/* Keys and values of `normalised`, and queries by a low-rank pair with a norm in between. */
static bool add_low_rank_queries(struct builder *b, int l)
{
    const int64_t n = b->hp->n_embd, low = b->hp->q_lora_rank;
    const int a = pp_plan_linear(b->p, b->s, low, n, b->err, "blk.%d.attn_q_a", l);
    const int k = a < 0 ? -1 : pp_plan_linear(b->p, b->s, b->n_kv, n, b->err, "blk.%d.attn_k", l);
    const int v = k < 0 ? -1 : pp_plan_linear(b->p, b->s, b->n_v, n, b->err, "blk.%d.attn_v", l);
    const int q = v < 0 ? -1 : pp_plan_linear(b->p, b->s, b->n_q, low, b->err, "blk.%d.attn_q_b", l);
    if (q < 0)
        return false;
    add_linear(b, l, a, b->normalised, b->q_low);
    add_linear(b, l, k, b->normalised, b->k);
    add_linear(b, l, v, b->normalised, b->v);
    if (!pp_decoder_norm(b, l, "attn_q_a_norm", low, b->q_low, b->q_low_normalised))
        return false;
    add_linear(b, l, q, b->q_low_normalised, b->q);
    return true;
}

/* q, k and v, from the normalised residual stream or, without a pre-norm, from the stream itself. */
static bool add_qkv(struct builder *b, int l)
{
    const bool plain = b->d->no_pre_norm || b->hp->norms_after || (b->d->no_first_attn_norm && l == 0);
    const int in = plain ? b->x : b->normalised;
    const int64_t n_embd = b->hp->n_embd;
    int q, k, v;
    if (!plain && !add_norm(b, l, b->hp->two_norms ? "attn_norm_2" : "attn_norm", b->x, b->normalised))
        return false;
    if (b->hp->localized_filtering)
        return pp_filtered_heads(b, l);
    if (b->hp->convolved_heads)
        return pp_convolved_heads(b, l);
    if (b->hp->q_lora_rank)
        return add_low_rank_queries(b, l);
    if (b->fused_qkv) {
        int qkv = pp_plan_linear(b->p, b->s, b->n_q + b->n_kv + b->n_v, n_embd, b->err, "blk.%d.attn_qkv", l);
        add_linear(b, l, qkv, in, b->qkv);
        return qkv >= 0;
    }
    const bool gated = b->d->gated_queries, shared = is_shared(b, l), k_is_v = keys_are_values(b, l);
    if (b->hp->head_mixture)
        return add_head_mixture(b, l);
    const int64_t n_q = gated ? 2 * b->n_q : pp_difference_queries(b);
    if ((q = pp_plan_linear(b->p, b->s, n_q, n_embd, b->err, "blk.%d.attn_q", l)) < 0)
        return false;
    add_linear(b, l, q, in, gated ? b->q_gate : b->hp->heads_tiled || b->hp->heads_alternate ? b->tiled : b->q);
    if (b->hp->heads_tiled)
        add_head_grouping(b, l, b->tiled, b->shape.n_head_kv, b->q);
    if (shared)
        return true;
    if ((k = pp_plan_linear(b->p, b->s, b->n_kv, n_embd, b->err, "blk.%d.attn_k", l)) < 0)
        return false;
    add_linear(b, l, k, in, b->hp->heads_alternate ? b->pairs : b->k);
    if (k_is_v) {
        add_copy(b, l, b->k, b->v);
        return true;
    }
    const bool paired = b->hp->differential;
    if (pp_has_mixed_values(b, l))
        return pp_mixed_values_router(b, l);
    if ((v = pp_plan_linear(b->p, b->s, paired ? b->n_kv : b->n_v, n_embd, b->err, "blk.%d.attn_v", l)) < 0)
        return false;
    add_linear(b, l, v, in, paired ? b->values : b->v);
    if (gated) {
        add_take(b, l, b->q_gate, 2 * b->hp->head_dim, 0, b->hp->head_dim, b->q);
        add_take(b, l, b->q_gate, 2 * b->hp->head_dim, b->hp->head_dim, b->hp->head_dim, b->att_gate);
    }
    return true;
}

static bool has_attention_gate(const struct builder *b)
{
    return b->d->gated_attention || b->hp->binary_gates;
}

/* The logits of attention's gate, one for each value or each head. They come right after q, k and v, which read the
 * same slot, so that the backend can run all four together. */
static bool add_attention_gate(struct builder *b, int l)
{
    b->n_gates = b->hp->per_head_gates ? b->shape.n_head : b->n_att;
    const int gate = pp_plan_linear(b->p, b->s, b->n_gates, b->hp->n_embd, b->err, "blk.%d.attn_gate", l);
    b->gates = pp_plan_part(b->p, b->att_gate, 0, b->n_gates);
    add_linear(b, l, gate, b->d->no_pre_norm ? b->x : b->normalised, b->gates);
    return gate >= 0;
}

/* Multiplies attention's output by log2(1 + 2^g) = softplus(g ln 2) / ln 2. */
static void add_binary_gating(struct builder *b, int l)
{
    const float ln2 = 0.69314718f;
    add_fn(b, l, PP_FN_SCALE, ln2, b->att_gate, b->att_gate);
    add_fn(b, l, PP_FN_SOFTPLUS, 0, b->att_gate, b->att_gate);
    add_fn(b, l, PP_FN_SCALE, 1 / ln2, b->att_gate, b->att_gate);
    add(b, (struct pp_op){.kind = PP_OP_MULTIPLY, .layer = l, .in = b->att_gate, .in2 = b->att, .out = b->att});
}

/* Multiplies attention's output by its gates. */
static void add_gating(struct builder *b, int l)
{
    if (b->hp->binary_gates) {
        add_binary_gating(b, l);
    } else if (b->d->gated_attention && (b->d->softplus_gates || b->hp->per_head_gates)) {
        const int att = pp_plan_part(b->p, b->att, 0, b->n_att);
        add_weighed(b, l, b->d->softplus_gates ? PP_FN_SOFTPLUS : PP_FN_SIGMOID, b->gates, att, att);
    } else {
        add_gated(b, l, PP_FN_SIGMOID, b->att_gate, b->att, b->att);
    }
}

static void add_rope_op(struct builder *b, int l, int slot)
{
    add(b, (struct pp_op){.kind = PP_OP_ROPE, .layer = l, .local_rope = b->hp->layer[l] & PP_LAYER_LOCAL_ROPE,
                          .in = slot, .in2 = NONE, .out = slot});
}

static void add_clamp(struct builder *b, int l, int slot)
{
    add_fn(b, l, PP_FN_CLAMP, b->hp->qkv_clamp, slot, slot);
}

/* Rotates queries and keys, if the layer has RoPE. */
static void add_rope(struct builder *b, int l, int q, int k)
{
    if (b->d->positions != PP_POS_ROTATED || b->hp->alibi != 0.0f || b->hp->layer[l] & PP_LAYER_UNROTATED ||
        !b->hp->rope_dim)
        return;
    add_rope_op(b, l, q);
    if (!is_shared(b, l))
        add_rope_op(b, l, k);
}

/* RMSNorm of heads without weights. */
static void add_unit_norm(struct builder *b, int l, int slot)
{
    const bool local = b->shape.head_dim != b->hp->head_dim;
    add(b, (struct pp_op){.kind = PP_OP_HEAD_NORM, .layer = l, .in = slot, .in2 = NONE, .out = slot,
                          .weight = local ? b->local_ones : b->head_ones});
}

static bool add_qk_norms(struct builder *b, int l)
{
    if (b->d->unweighted_qk_norm && b->hp->qk_norm && !(b->hp->layer[l] & PP_LAYER_UNROTATED)) {
        if (!b->d->gains)
            add_unit_norm(b, l, b->q);
        else if (!pp_gains_queries(b, l))
            return false;
        add_unit_norm(b, l, b->k);
    }
    const bool optional = b->d->qk_norm == PP_QK_OPTIONAL || b->d->qk_norm == PP_QK_WHOLE_OPTIONAL;
    const bool normalised = optional ? b->hp->qk_norm : b->d->qk_norm != PP_QK_NONE;
    if (normalised && (!add_qk_norm(b, l, "attn_q_norm", b->q, b->n_q) ||
                       (!is_shared(b, l) && !add_qk_norm(b, l, "attn_k_norm", b->k, b->n_kv))))
        return false;
    if (b->d->unweighted_v_norm && !is_shared(b, l))
        add_unit_norm(b, l, b->v);
    return true;
}

/* Norms of queries and keys, each before its heads are extended by a score. */
static bool add_scored(struct builder *b, int l)
{
    return add_qk_norm(b, l, "attn_q_norm", b->q, b->n_q) && pp_scored_queries(b, l) &&
           add_qk_norm(b, l, "attn_k_norm", b->k, b->n_kv) && pp_scored_keys(b, l);
}

static float alibi_scale(const struct builder *b)
{
    const float scale = b->hp->attn_scale;
    return !b->d->scaled_alibi ? 0 : scale != 0.0f ? scale : 1.0f / sqrtf((float)b->shape.head_dim);
}

/* A depthwise convolution of keys or values over the last kv_taps positions, with taps by head. */
static bool add_head_taps(struct builder *b, int l, const char *kind, int slot)
{
    struct pp_op convolve = {.kind = PP_OP_CONVOLVE, .layer = l, .window = b->hp->kv_taps, .in = slot, .in2 = NONE,
                             .out = slot};
    convolve.weight = pp_plan_tensor(b->s, b->shape.n_head_kv, b->hp->kv_taps, b->err, "blk.%d.%s.weight", l, kind);
    add(b, convolve);
    return convolve.weight != NULL;
}

/* Pairs of values for differential attention, norms of heads, and RoPE. q, k: the slots that attention reads. */
static bool add_norms_and_rope(struct builder *b, int l, int q, int k)
{
    const struct pp_hparams *hp = b->hp;
    if (hp->differential && !pp_difference_values(b, l))
        return false;
    if (b->d->norm_after_rope)
        add_rope(b, l, q, k);
    if (!(hp->key_scores ? add_scored : add_qk_norms)(b, l))
        return false;
    if (!b->d->norm_after_rope)
        add_rope(b, l, q, k);
    return true;
}

/* Stores keys and values, unless they are another layer's, and attends to them; the result is `att`. */
static bool add_kv_and_attention(struct builder *b, int l, int q, int k)
{
    const struct pp_hparams *hp = b->hp;
    const int64_t window = hp->layer[l] & PP_LAYER_WIDE ? 0 : hp->window;
    const int64_t n_picked = pp_blocks_picked(b, l) ? hp->index_top_k : 0;
    const struct pp_tensor *sinks = NULL;
    if ((b->d->sinks || (b->d->some_sinks && pp_decoder_has(b, l, "attn_sinks.weight"))) &&
        !(sinks = pp_plan_tensor(b->s, 0, b->shape.n_head, b->err, "blk.%d.attn_sinks.weight", l)))
        return false;
    if (!is_shared(b, l))
        add(b, (struct pp_op){.kind = PP_OP_KV_STORE, .layer = l, .window = window, .in = k, .in2 = b->v,
                              .out = NONE, .count = n_picked, .period = n_picked ? hp->index_block : 0,
                              .pooled = n_picked && hp->index_pooled});
    add(b, (struct pp_op){.kind = PP_OP_ATTENTION, .layer = l, .window = window, .weight = sinks,
                          .scale = hp->attn_softcap, .alibi = hp->alibi, .alibi_scale = alibi_scale(b),
                          .in = q, .in2 = NONE, .out = b->att, .count = n_picked,
                          .period = n_picked ? hp->index_block : 0, .pooled = n_picked && hp->index_pooled});
    return true;
}

/* From `att` to `delta`: gates, scale, norm and the output projection. */
static bool add_attention_output(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    const int o_in = hp->heads_tiled ? b->tiled : hp->differential ? pp_plan_part(b->p, b->att, 0, b->n_q) : b->att;
    if (hp->differential && !pp_difference_result(b, l))
        return false;
    if (has_attention_gate(b) || b->d->gated_queries)
        add_gating(b, l);
    if (hp->attn_value_scale != 0.0f)
        add_fn(b, l, PP_FN_SCALE, hp->attn_value_scale, b->att, b->att);
    if (b->d->sub_norms && !pp_decoder_norm(b, l, "attn_sub_norm", b->n_att, b->att, b->att))
        return false;
    if (hp->head_mixture) {
        add_head_grouping(b, l, b->att, b->shape.n_head / b->shape.n_head_kv, b->tiled);
        return pp_head_mixture_result(b, l);
    }
    const int64_t n_results = hp->differential ? b->n_q : b->n_att;
    const int o = pp_plan_linear(b->p, b->s, hp->n_embd, n_results, b->err, "blk.%d.attn_output", l);
    if (o < 0)
        return false;
    if (hp->heads_tiled)
        add_head_grouping(b, l, b->att, b->shape.n_head / b->shape.n_head_kv, o_in);
    add_linear(b, l, o, o_in, b->delta);
    return true;
}

/* From q, k and v to `delta`. */
static bool add_attention(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    const int q = hp->key_scores ? b->wide_q : b->q, k = hp->key_scores ? b->wide_k : b->k;
    if (pp_blocks_picked(b, l) && !pp_blocks_pick(b, l))
        return false;
    if (hp->kv_taps && !(add_head_taps(b, l, "attn_k_conv", b->k) && add_head_taps(b, l, "attn_v_conv", b->v)))
        return false;
    if (hp->qkv_clamp != 0.0f) {
        add_clamp(b, l, b->q);
        add_clamp(b, l, b->k);
        add_clamp(b, l, b->v);
    }
    if (hp->loops_mixed && b->loop)
        return pp_loop_attention(b, l);
    return add_norms_and_rope(b, l, q, k) && add_kv_and_attention(b, l, q, k) && add_attention_output(b, l);
}

/* --- latent attention -------------------------------------------------------------------------------------------- */

/* DeepSeek V2 (arXiv 2405.04434) computes the keys and values of all heads from one latent vector c: k = [W_k c, r] and
 * v = W_v c, where r is a rotated key that all heads share. Since q . k = (W_k' q_nope) . c + q_rope . r and
 * sum p v = W_v (sum p c), we project queries into the latent space instead, and attention's output back from it: the
 * cache holds c and r, and keys and values are never computed. */

/* DeepSeek V3.2's indexer (arXiv 2512.02556): the score of position s for a row at t is the sum over the indexer's
 * heads of w_h(t) max(0, q_h(t) . k(s)), and attention sees the positions with the largest scores. The published code
 * also divides the weights by sqrt(heads * head size), which does not change the order, and multiplies queries and keys
 * by a Hadamard matrix, which does not change the products; we do neither.
 *
 * GLM 5 Next has a key only for each block of positions: value by value a mean of the positions' keys, weighted by a
 * softmax over the block of another projection plus a learned number for the place in the block. Blocks are picked by
 * these keys. */
struct index_ops {
    bool has;          /* the layer has an indexer of its own */
    int q, k, weights; /* linears */
    int scores;        /* the logits of pooling; -1 without pooled keys */
};

/* Whether the layer has a window, and with it other sizes of latent attention. */
static bool has_local_latents(const struct builder *b, int l)
{
    return b->hp->kv_lora_rank_local && pp_has_window(b->hp, l);
}

/* Whether the layer sees only what an indexer picks. */
static bool is_sparse(const struct builder *b, int l)
{
    return b->hp->index_top_k && !has_local_latents(b, l);
}

static bool find_index(struct builder *b, int l, struct index_ops *x)
{
    const struct pp_hparams *hp = b->hp;
    *x = (struct index_ops){.has = is_sparse(b, l) && !(hp->layer[l] & PP_LAYER_PICKED_BEFORE), .scores = -1};
    if (x->has && hp->index_pooled && (x->scores = pp_plan_linear(b->p, b->s, hp->index_dim, hp->n_embd, b->err,
                                                                  "blk.%d.indexer_compressor_gate", l)) < 0)
        return false;
    return !x->has || ((x->q = pp_plan_linear(b->p, b->s, hp->n_index_head * hp->index_dim, hp->q_lora_rank, b->err,
                                              "blk.%d.indexer.attn_q_b", l)) >= 0 &&
                       (x->k = pp_plan_linear(b->p, b->s, hp->index_dim, hp->n_embd, b->err, "blk.%d.indexer.attn_k",
                                              l)) >= 0 &&
                       (x->weights = pp_plan_linear(b->p, b->s, hp->n_index_head, hp->n_embd, b->err,
                                                    "blk.%d.indexer.proj", l)) >= 0);
}

/* The norm of the indexer's key is a LayerNorm, whatever the model's norms are, in most families with 1e-6. */
static bool add_index(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    const int key = hp->index_pooled ? b->index_own_k : b->index_k;
    struct pp_op norm = {.kind = PP_OP_NORM, .layer = l, .centred = true,
                         .scale = b->d->index_default_eps ? 0 : 1e-6f, .in = key, .in2 = NONE, .out = key};
    struct pp_op pool = {.kind = PP_OP_POOL, .layer = l, .period = hp->index_block, .in = b->index_scored,
                         .in2 = NONE, .out = b->index_k};
    if (!(norm.weight = pp_plan_tensor(b->s, 0, hp->index_dim, b->err, "blk.%d.indexer.k_norm.weight", l)) ||
        !(norm.bias = pp_plan_tensor(b->s, 0, hp->index_dim, b->err, "blk.%d.indexer.k_norm.bias", l)))
        return false;
    add(b, norm);
    if (hp->index_pooled) {
        pool.weight = pp_plan_tensor(b->s, hp->index_block, hp->index_dim, b->err,
                                     "blk.%d.indexer_compressor_ape.weight", l);
        if (!pool.weight)
            return false;
        add(b, pool);
    }
    add(b, (struct pp_op){.kind = PP_OP_PICK, .layer = l, .neox = hp->index_neox, .in = b->index_q,
                          .in2 = b->index_k, .in3 = b->index_weights, .out = NONE, .count = hp->index_top_k,
                          .period = hp->index_pooled ? hp->index_block : 0, .pooled = hp->index_pooled,
                          .at = b->d->index_rope_last ? hp->index_dim - hp->rope_dim : 0});
    return true;
}

/* Sets the slots to the parts that are as wide as the layer needs. */
static void select_latent_slots(struct builder *b, int l, const struct pp_latent_shape *shape)
{
    const int *of = b->latent[has_local_latents(b, l)], keys = b->p->bad ? 0 : b->p->slots[of[LATENT_K]].base;
    b->head_q = of[LATENT_HEAD_Q];
    b->q = of[LATENT_Q];
    b->k = of[LATENT_K];
    b->v = pp_plan_part(b->p, keys, 0, shape->rank);
    b->k_rotated = pp_plan_part(b->p, keys, shape->rank, b->hp->rope_dim);
    b->att = of[LATENT_ATT];
    b->values = of[LATENT_VALUES];
}

/* Queries of all heads, c and r, gates, and the indexer with its picks. */
static bool add_latents(struct builder *b, int l, const struct pp_latent_shape *shape)
{
    struct index_ops index;
    const struct pp_hparams *hp = b->hp;
    int gate = -1;
    const int64_t n_heads_q = shape->n_head * (shape->n_key + hp->rope_dim);
    const bool low = hp->q_lora_rank > 0;
    int q, kv, q_b = 0;
    if (!add_norm(b, l, "attn_norm", b->x, b->normalised) ||
        (q = pp_plan_linear(b->p, b->s, low ? hp->q_lora_rank : n_heads_q, hp->n_embd, b->err,
                            low ? "blk.%d.attn_q_a" : "blk.%d.attn_q", l)) < 0 ||
        !find_index(b, l, &index) ||
        (kv = pp_plan_linear(b->p, b->s, shape->rank + hp->rope_dim, hp->n_embd, b->err, "blk.%d.attn_kv_a_mqa",
                             l)) < 0 ||
        (low && (q_b = pp_plan_linear(b->p, b->s, n_heads_q, hp->q_lora_rank, b->err, "blk.%d.attn_q_b", l)) < 0))
        return false;
    add_linear(b, l, q, b->normalised, low ? b->q_low : b->head_q);
    add_linear(b, l, kv, b->normalised, b->k);
    if (b->d->gated_attention) { /* a number for each head or for each value */
        b->n_gates = hp->per_head_gates ? shape->n_head : shape->n_head * shape->n_value;
        if ((gate = pp_plan_linear(b->p, b->s, b->n_gates, hp->n_embd, b->err, "blk.%d.attn_gate", l)) < 0)
            return false;
        b->gates = pp_plan_part(b->p, b->att_gate, 0, b->n_gates);
        add_linear(b, l, gate, b->normalised, b->gates);
    }
    if (index.has) {
        add_linear(b, l, index.k, b->normalised, hp->index_pooled ? b->index_own_k : b->index_k);
        add_linear(b, l, index.weights, b->normalised, b->index_weights);
    }
    if (index.scores >= 0)
        add_linear(b, l, index.scores, b->normalised, b->index_k_scores);
    if (low) {
        if (!pp_decoder_norm(b, l, "attn_q_a_norm", hp->q_lora_rank, b->q_low, b->q_low_normalised))
            return false;
        add_linear(b, l, q_b, b->q_low_normalised, b->head_q);
    }
    if (index.has)
        add_linear(b, l, index.q, b->q_low_normalised, b->index_q);
    if (index.has && !add_index(b, l))
        return false;
    if (!pp_decoder_norm(b, l, "attn_kv_a_norm", shape->rank, b->v, b->v) ||
        (b->d->k_rope_norm && !pp_decoder_norm(b, l, "attn_k_norm", hp->rope_dim, b->k_rotated, b->k_rotated)))
        return false;
    if (hp->latent_scale != 0.0f)
        add_fn(b, l, PP_FN_SCALE, hp->latent_scale, b->v, b->v);
    return true;
}

static bool add_heads(struct builder *b, int l, const char *kind, int64_t n_out, int64_t n_in, int in, int out)
{
    const int heads = pp_plan_heads(b->p, b->s, (int)b->shape.n_head, n_out, n_in, b->err, "blk.%d.%s.weight", l, kind);
    add(b, (struct pp_op){.kind = PP_OP_HEADS, .layer = l, .heads = heads, .in = in, .in2 = NONE, .out = out});
    return heads >= 0;
}

/* Latent attention, from the residual stream to `delta`. */
static bool add_latent_attention(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    const struct pp_latent_shape shape = pp_latent_shape(hp, l);
    const struct pp_tensor *sinks = NULL;
    if (b->d->sinks && !(sinks = pp_plan_tensor(b->s, 0, shape.n_head, b->err, "blk.%d.attn_sinks.weight", l)))
        return false;
    select_latent_slots(b, l, &shape);
    if (!add_latents(b, l, &shape) || !add_heads(b, l, "attn_k_b", shape.rank, shape.n_key, b->head_q, b->q))
        return false;
    add_rope(b, l, b->q, b->k);
    const int64_t period = hp->index_pooled ? hp->index_block : 0, n_picked = is_sparse(b, l) ? hp->index_top_k : 0;
    const int64_t window = has_local_latents(b, l) ? hp->window : 0;
    add(b, (struct pp_op){.kind = PP_OP_KV_STORE, .layer = l, .window = window, .in = b->k, .in2 = b->v, .out = NONE,
                          .count = n_picked, .period = period, .pooled = hp->index_pooled});
    add(b, (struct pp_op){.kind = PP_OP_ATTENTION, .layer = l, .window = window, .weight = sinks, .in = b->q,
                          .in2 = NONE, .out = b->att, .count = n_picked, .period = period,
                          .pooled = hp->index_pooled});
    if (!add_heads(b, l, "attn_v_b", shape.n_value, shape.rank, b->att, b->values))
        return false;
    const int o = pp_plan_linear(b->p, b->s, hp->n_embd, shape.n_head * shape.n_value, b->err, "blk.%d.attn_output", l);
    if (o < 0)
        return false;
    if (b->d->gated_attention)
        add_weighed(b, l, PP_FN_SIGMOID, b->gates, b->values, b->values);
    add_linear(b, l, o, b->values, b->delta);
    return true;
}

/* Layers with and without a window may have different widths; their slots are parts of common ones, as wide as the
 * wider. of_kind: a layer of each kind. */
static void make_latent_widths(struct builder *b)
{
    const struct pp_hparams *hp = b->hp;
    int64_t widths[2][N_LATENT_SLOTS], of_kind[2] = {0, 0};
    for (int l = 0; l < (int)hp->n_layer; l++)
        if (!(hp->layer[l] & (PP_LAYER_CONVOLVED | PP_LAYER_RECURRENT)))
            of_kind[has_local_latents(b, l)] = l;
    for (int i = 0; i < 2; i++) {
        const struct pp_latent_shape s = pp_latent_shape(hp, of_kind[i]);
        const int64_t key = s.rank + hp->rope_dim;
        widths[i][LATENT_HEAD_Q] = s.n_head * (s.n_key + hp->rope_dim);
        widths[i][LATENT_Q] = s.n_head * key;
        widths[i][LATENT_K] = key;
        widths[i][LATENT_ATT] = s.n_head * s.rank;
        widths[i][LATENT_VALUES] = s.n_head * s.n_value;
    }
    for (int s = 0; s < N_LATENT_SLOTS; s++) {
        const int base = pp_plan_slot(b->p, widths[widths[1][s] > widths[0][s]][s]);
        for (int i = 0; i < 2; i++)
            b->latent[i][s] = pp_plan_part(b->p, base, 0, widths[i][s]);
    }
    if (b->d->gated_attention)
        b->att_gate = pp_plan_slot(b->p, widths[widths[1][LATENT_VALUES] > widths[0][LATENT_VALUES]][LATENT_VALUES]);
}

static void make_latent_slots(struct builder *b)
{
    const struct pp_hparams *hp = b->hp;
    b->q_low = pp_plan_slot(b->p, hp->q_lora_rank ? hp->q_lora_rank : 1);
    b->q_low_normalised = pp_plan_slot(b->p, hp->q_lora_rank ? hp->q_lora_rank : 1);
    make_latent_widths(b);
    if (!hp->index_top_k)
        return;
    b->index_q = pp_plan_slot(b->p, hp->n_index_head * hp->index_dim);
    b->index_k = pp_plan_slot(b->p, hp->index_dim);
    b->index_weights = pp_plan_slot(b->p, hp->n_index_head);
    if (!hp->index_pooled)
        return;
    b->index_scored = pp_plan_slot(b->p, 2 * hp->index_dim);
    b->index_own_k = pp_plan_part(b->p, b->index_scored, 0, hp->index_dim);
    b->index_k_scores = pp_plan_part(b->p, b->index_scored, hp->index_dim, hp->index_dim);
}

/* --- short convolutions ------------------------------------------------------------------------------------------- */

/* LFM2's gated short convolution (arXiv 2511.23404): [B, C, x] = W_in h, then W_out (C * conv(B * x)) with a depthwise
 * convolution. From the residual stream to `delta`. */
static bool add_convolution(struct builder *b, int l)
{
    const int64_t n = b->hp->n_embd, taps = b->hp->conv_taps;
    const int B = b->convolution[0], C = b->convolution[1], x = b->convolution[2];
    struct pp_op convolve = {.kind = PP_OP_CONVOLVE, .layer = l, .window = taps, .in = b->product, .in2 = NONE,
                             .out = b->convolved};
    const int in = pp_plan_linear(b->p, b->s, 3 * n, n, b->err, "blk.%d.shortconv.in_proj", l);
    if (in < 0 || !add_norm(b, l, "attn_norm", b->x, b->normalised) ||
        !(convolve.weight = pp_plan_tensor(b->s, n, taps, b->err, "blk.%d.shortconv.conv.weight", l)) ||
        (pp_decoder_has(b, l, "shortconv.conv.bias") &&
         !(convolve.bias = pp_plan_tensor(b->s, 0, n, b->err, "blk.%d.shortconv.conv.bias", l))))
        return false;
    const int out = pp_plan_linear(b->p, b->s, n, n, b->err, "blk.%d.shortconv.out_proj", l);
    add_linear(b, l, in, b->normalised, b->p->bad ? 0 : b->p->slots[B].base);
    add(b, (struct pp_op){.kind = PP_OP_MULTIPLY, .layer = l, .in = B, .in2 = x, .out = b->product});
    add(b, convolve);
    add(b, (struct pp_op){.kind = PP_OP_MULTIPLY, .layer = l, .in = b->convolved, .in2 = C, .out = b->convolved});
    add_linear(b, l, out, b->convolved, b->delta);
    return out >= 0;
}

static void make_convolution_slots(struct builder *b)
{
    const int64_t n = b->hp->n_embd;
    const int all = pp_plan_slot(b->p, 3 * n);
    for (int i = 0; i < 3; i++)
        b->convolution[i] = pp_plan_part(b->p, all, i * n, n);
    b->product = pp_plan_slot(b->p, n);
    b->convolved = pp_plan_slot(b->p, n);
}

/* --- Mamba 2 ----------------------------------------------------------------------------------------------------- */

/* One number for each head, stored as a column. */
static const struct pp_tensor *find_head_column(struct builder *b, int l, const char *kind)
{
    return pp_plan_tensor(b->s, b->hp->n_state_head, 1, b->err, "blk.%d.%s", l, kind);
}

/* The norm of the gated output of states, over all values or by group (key head). *out: the slot with the result. */
static bool add_mamba_norm(struct builder *b, int l, int64_t values, int *out)
{
    const int64_t n_groups = b->hp->n_state_key_head;
    const bool groups = n_groups > 1;
    struct pp_op norm = {.kind = groups ? PP_OP_HEAD_NORM : PP_OP_NORM, .layer = l, .in = b->state, .in2 = NONE,
                         .out = groups ? b->state : b->state_normalised};
    char name[64];
    snprintf(name, sizeof name, "blk.%d.ssm_norm.weight", l);
    const struct pp_tensor *weight = pp_source_tensor(b->s, name);
    *out = b->state;
    if (b->hp->states_parallel && !b->hp->state_norm)
        return true;
    const int64_t n_rows = groups ? n_groups : weight && weight->n_dims == 2;
    norm.weight = pp_plan_tensor(b->s, n_rows, values / n_groups, b->err, "%s", name);
    add(b, norm);
    *out = norm.out;
    return norm.weight != NULL;
}

/* The input projection: gate, x, B, C and dt, from `normalised`. */
static bool add_mamba_input(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    const int64_t keys = hp->n_state_key_head * hp->state_key_dim, values = hp->n_state_head * hp->state_value_dim;
    const int in = pp_plan_linear(b->p, b->s, 2 * (values + keys) + hp->n_state_head, hp->n_embd, b->err,
                                  "blk.%d.ssm_in", l);
    add_linear(b, l, in, b->normalised, b->state_in);
    return in >= 0;
}

/* The rest of Mamba 2 (arXiv 2405.21060), to `delta`: convolution of x, B and C, states, gate and norm. */
static bool add_mamba(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    const int64_t keys = hp->n_state_key_head * hp->state_key_dim, values = hp->n_state_head * hp->state_value_dim;
    const int64_t width = values + 2 * keys, n = hp->n_state_head;
    struct pp_recurrence r = {.kind = PP_RECUR_MAMBA2, .q = b->state_q, .k = b->state_k, .v = b->state_v,
                              .decay = b->decay, .beta = NONE, .neighbours = (int)n, .stride = (int)n};
    struct pp_op convolve = {.kind = PP_OP_CONVOLVE, .layer = l, .window = hp->conv_taps, .in = b->mixed, .in2 = NONE,
                             .out = b->convolved};
    int normalised;
    const int out = pp_plan_linear(b->p, b->s, hp->n_embd, values, b->err, "blk.%d.ssm_out", l);
    if (out < 0 ||
        !(convolve.weight = pp_plan_tensor(b->s, width, hp->conv_taps, b->err, "blk.%d.ssm_conv1d.weight", l)) ||
        (pp_decoder_has(b, l, "ssm_conv1d.bias") &&
         !(convolve.bias = pp_plan_tensor(b->s, 0, width, b->err, "blk.%d.ssm_conv1d.bias", l))) ||
        !(r.rate = find_head_column(b, l, "ssm_a")) || !(r.direct = find_head_column(b, l, "ssm_d")) ||
        !(r.bias = pp_plan_tensor(b->s, 0, n, b->err, "blk.%d.ssm_dt.bias", l)))
        return false;
    r.shape = (struct pp_state_shape){.n_key_head = (int)hp->n_state_key_head, .n_head = (int)n,
                                      .key_dim = (int)hp->state_key_dim, .value_dim = (int)hp->state_value_dim};
    add(b, convolve);
    add_fn(b, l, PP_FN_SILU, 0, b->convolved, b->convolved);
    add(b, (struct pp_op){.kind = PP_OP_RECUR, .layer = l, .recurrence = pp_plan_recurrence(b->p, &r),
                          .in = b->state_gate, .in2 = NONE, .out = b->state});
    if (!add_mamba_norm(b, l, values, &normalised))
        return false;
    add_linear(b, l, out, normalised, b->delta);
    return true;
}

bool pp_mamba_result(struct builder *b, int l)
{
    return add_mamba_input(b, l) && add_mamba(b, l);
}

/* The input projection's slot has, in this order, the gate, x, B, C and dt. */
static void make_mamba_slots(struct builder *b)
{
    const struct pp_hparams *hp = b->hp;
    struct pp_plan *p = b->p;
    const int64_t keys = hp->n_state_key_head * hp->state_key_dim, values = hp->n_state_head * hp->state_value_dim;
    const int64_t width = values + 2 * keys;
    b->state_in = pp_plan_slot(p, values + width + hp->n_state_head);
    b->state_gate = pp_plan_part(p, b->state_in, 0, values);
    b->mixed = pp_plan_part(p, b->state_in, values, width);
    b->decay = pp_plan_part(p, b->state_in, values + width, hp->n_state_head);
    b->convolved = pp_plan_slot(p, width);
    b->state_v = pp_plan_part(p, b->convolved, 0, values);
    b->state_k = pp_plan_part(p, b->convolved, values, keys);
    b->state_q = pp_plan_part(p, b->convolved, values + keys, keys);
    b->state = pp_plan_slot(p, values);
    b->state_normalised = pp_plan_slot(p, values);
}

/* --- all of them -------------------------------------------------------------------------------------------------- */

static bool is_attention(const struct builder *b, int l)
{
    const int others = PP_LAYER_CONVOLVED | (b->hp->states_parallel ? 0 : PP_LAYER_RECURRENT);
    return !b->hp->kv_lora_rank && !b->hp->compressed && !(b->hp->layer[l] & others) && !pp_reads_memory(b, l);
}

static bool is_mamba(const struct builder *b, int l)
{
    return b->hp->mamba && b->hp->layer[l] & PP_LAYER_RECURRENT;
}

bool pp_mixer_input(struct builder *b, int l)
{
    if (b->hp->states_mean)
        return pp_mean_input(b, l);
    if (is_attention(b, l) && (!add_qkv(b, l) || (has_attention_gate(b) && !add_attention_gate(b, l)) ||
                               (pp_has_mixed_values(b, l) && !pp_mixed_values(b, l)) ||
                               (pp_blocks_picked(b, l) && !pp_blocks_input(b, l))))
        return false;
    if (pp_reads_memory(b, l))
        return add_norm(b, l, "attn_norm", b->x, b->normalised);
    if (!is_mamba(b, l))
        return true;
    return (is_attention(b, l) || add_norm(b, l, "attn_norm", b->x, b->normalised)) &&
           (b->hp->state_rank ? pp_scan_input : add_mamba_input)(b, l);
}

/* Falcon-H1: Mamba and attention in parallel; both read the stream before either was added to it. */
static bool add_parallel_states(struct builder *b, int l)
{
    if (!add_mamba(b, l))
        return false;
    add_to(b, l, b->delta, b->x);
    return add_attention(b, l);
}

bool pp_mixer_result(struct builder *b, int l)
{
    if (b->hp->states_mean)
        return pp_mean_result(b, l);
    if (pp_reads_memory(b, l))
        return pp_memory_result(b, l);
    if (b->hp->layer[l] & PP_LAYER_CONVOLVED)
        return add_convolution(b, l);
    if (b->hp->layer[l] & PP_LAYER_RECURRENT)
        return b->hp->states_parallel ? add_parallel_states(b, l)
               : b->hp->lightning     ? pp_lightning_result(b, l)
               : b->hp->mlstm         ? pp_mlstm_result(b, l)
               : b->hp->lru_width     ? pp_lru_result(b, l)
               : b->hp->rwkv          ? (b->hp->rwkv6 ? pp_rwkv6_result : pp_rwkv7_result)(b, l)
               : b->hp->state_rank    ? pp_scan_result(b, l)
               : b->hp->mamba         ? add_mamba(b, l)
                                      : pp_delta_result(b, l);
    return b->hp->compressed ? pp_compressed_result(b, l)
           : b->hp->kv_lora_rank  ? add_latent_attention(b, l)
                                  : add_attention(b, l);
}

/* The layer's queries, keys and values as parts of the output of attn_qkv. */
static void make_qkv_parts(struct builder *b)
{
    b->q = pp_plan_part(b->p, b->qkv, 0, b->n_q);
    b->k = pp_plan_part(b->p, b->qkv, b->n_q, b->n_kv);
    b->v = pp_plan_part(b->p, b->qkv, b->n_q + b->n_kv, b->n_v);
}

static void set_shape(struct builder *b, struct pp_layer_shape shape)
{
    b->shape = shape;
    b->n_q = shape.n_head * shape.head_dim;
    b->n_kv = shape.n_head_kv * shape.head_dim;
    b->n_v = shape.n_head_kv * shape.v_dim;
    b->n_att = shape.n_head * shape.v_dim;
}

void pp_mixer_shape(struct builder *b, struct pp_layer_shape shape)
{
    const int64_t n_q = b->n_q, n_kv = b->n_kv;
    set_shape(b, shape);
    if (b->fused_qkv && (b->n_q != n_q || b->n_kv != n_kv))
        make_qkv_parts(b);
}

/* The slots of attention's variants, besides those of queries, keys and values. */
static void make_variant_slots(struct builder *b)
{
    const struct pp_hparams *hp = b->hp;
    if (hp->heads_tiled)
        b->tiled = pp_plan_slot(b->p, b->n_q);
    if (hp->head_mixture || hp->n_value_expert)
        b->head_router = pp_plan_slot(b->p, hp->head_mixture ? hp->n_expert : hp->n_value_expert);
    if (hp->differential)
        pp_difference_slots(b);
    if (hp->loops_mixed)
        pp_loop_slots(b);
    if (hp->localized_filtering)
        pp_filter_slots(b);
    if (hp->key_scores)
        pp_scored_slots(b);
    if (hp->index_block && !hp->kv_lora_rank)
        pp_blocks_slots(b);
    if (b->d->gated_queries)
        b->q_gate = pp_plan_slot(b->p, 2 * b->n_q);
}

static void make_state_slots(struct builder *b)
{
    const struct pp_hparams *hp = b->hp;
    (hp->lightning     ? pp_lightning_slots
     : hp->mlstm       ? pp_mlstm_slots
     : hp->lru_width   ? pp_lru_slots
     : hp->rwkv4       ? pp_rwkv4_slots
     : hp->rwkv6       ? pp_rwkv6_slots
     : hp->rwkv        ? pp_rwkv7_slots
     : hp->n_scan_head ? pp_scan_heads_slots
     : hp->state_rank  ? pp_scan_slots
     : hp->mamba       ? make_mamba_slots
                       : pp_delta_slots)(b);
}

static void make_qkv_slots(struct builder *b)
{
    const struct pp_hparams *hp = b->hp;
    if (b->fused_qkv) {
        b->qkv = pp_plan_slot(b->p, b->n_q + b->n_kv + b->n_v);
        make_qkv_parts(b);
        return;
    }
    b->q = pp_plan_slot(b->p, b->n_q);
    b->k = pp_plan_slot(b->p, b->n_kv);
    b->v = pp_plan_slot(b->p, b->n_v);
    if (hp->q_lora_rank) {
        b->q_low = pp_plan_slot(b->p, hp->q_lora_rank);
        b->q_low_normalised = pp_plan_slot(b->p, hp->q_lora_rank);
    }
}

void pp_mixer_slots(struct builder *b, struct pp_layer_shape widest)
{
    const struct pp_hparams *hp = b->hp;
    set_shape(b, widest);
    if (!hp->kv_lora_rank)
        b->att = pp_plan_slot(b->p, b->n_att);
    if ((has_attention_gate(b) || b->d->gated_queries) && !hp->kv_lora_rank)
        b->att_gate = pp_plan_slot(b->p, b->n_att);
    make_variant_slots(b);
    if (hp->n_state_head)
        make_state_slots(b);
    if (hp->compressed)
        pp_compressed_slots(b);
    else if (hp->states_mean)
        pp_mean_slots(b);
    else if (hp->convolved_heads)
        pp_convolved_slots(b);
    else if (hp->kv_lora_rank)
        make_latent_slots(b);
    else
        make_qkv_slots(b);
    if (hp->conv_taps && !hp->n_state_head)
        make_convolution_slots(b);
}
