/* decoder.c - the plan of a decoder: attention and a feed-forward part layer by layer, each added to a residual stream.
 *
 * What families have in common stands here once; struct pp_decoder and the hparams say in what they differ. The shapes
 * of the blocks: Vaswani et al., arXiv 1706.03762; norms in front: GPT-2; grouped queries: arXiv 2305.13245; attention
 * and feed-forward part side by side: GPT-J, PaLM (arXiv 2204.02311), Phi, Cohere; experts: arXiv 2401.04088. */
#include <math.h>
#include <stdio.h>

#include "engine/arch/arch.h"
#include "engine/xielu.h"

/* A plan in the making. */
struct builder {
    const struct pp_source *s;
    const struct pp_hparams *hp;
    const struct pp_decoder *d;
    struct pp_plan *p;
    struct pp_error *err;
    struct pp_layer_shape shape; /* of the layer that is built */
    int64_t n_q, n_kv;       /* values of all its queries, of all its keys */
    bool fused_qkv;          /* one matrix for q, k and v */
    const struct pp_tensor *ones; /* of norms without weights; or NULL */
    const struct pp_tensor *head_ones, *local_ones; /* of those of heads; of heads of layers with a window */
    int x, normed, delta;    /* the residual stream; a normed copy; what is to be added */
    int inputs, projected;   /* of all layers, their own: [n_layer][n_embd_layer] */
    int input;               /* of the layer, weighed */
    int streams[2];          /* residual streams side by side, as they are and as they will be; x: the first's copy */
    int modalities, mixing, spreading; /* what tells how streams are mixed; how they are, and how far a result goes */
    int low, laurel;         /* what stands beside attention, and half-way there */
    int qkv, q, k, v, att, att_gate;
    int q_low, q_low_normed, head_q, values; /* of latent attention, whose k is q's part of the cache, v a part of k */
    int convolution[3], product, convolved; /* of a layer without attention: B, C and x, B x, and what comes of it */
    int q_gate;              /* with gated_queries: queries and gates in turns */
    /* Of layers with states: what the convolution reads; queries, keys and values, the parts of both; the
     * gate; beta and decay; those that are in one matrix; what states give. */
    int mixed, state_q, state_k, state_v, mixed_q, mixed_k, mixed_v, state_gate, beta, decay, state_in,
        state_ba, state_decays, state, state_normed;
    int gate_up, gate, up, act, router;
    int shared_gate, shared_up, shared_act, shared_weight, shared; /* of the expert that every row uses */
};

static const int NONE = -1;

enum pp_fn pp_decoder_fn(const struct pp_decoder *d, const struct pp_hparams *hp)
{
    return hp->gelu == PP_GELU_EXACT ? PP_FN_GELU : hp->gelu == PP_GELU_TANH ? PP_FN_GELU_TANH : d->fn;
}

static void add(struct builder *b, struct pp_op op)
{
    pp_plan_add(b->p, op);
}

static void add_linear(struct builder *b, int l, int linear, int in, int out)
{
    add(b, (struct pp_op){.kind = PP_OP_LINEAR, .layer = l, .linear = linear, .in = in, .in2 = NONE, .out = out});
}

/* out = of each `period` values of `in`, `count` from the at-th on */
static void add_take(struct builder *b, int l, int in, int64_t period, int64_t at, int64_t count, int out)
{
    add(b, (struct pp_op){.kind = PP_OP_TAKE, .layer = l, .in = in, .in2 = NONE, .out = out, .period = period,
                          .at = at, .count = count});
}

static void add_residual(struct builder *b, int l)
{
    add(b, (struct pp_op){.kind = PP_OP_ADD, .layer = l, .scale = b->hp->residual_scale, .in = b->delta, .in2 = NONE,
                          .out = b->x});
}

/* Something that only some families' models have. */
static bool has(const struct builder *b, int l, const char *kind)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s", l, kind);
    return pp_source_tensor(b->s, name) != NULL;
}

/* --- norms ---------------------------------------------------------------------------------------------------- */

/* The vectors of a norm of n values called NAME; what is added behind may be there in any family. False: *err is
 * set. */
static bool find_norm(struct builder *b, const char *name, int64_t n, struct pp_op *norm)
{
    norm->centred = b->d->layer_norm;
    norm->weight = b->d->plain_norm ? b->ones : pp_plan_tensor(b->s, 0, n, b->err, "%s.weight", name);
    char bias[80];
    snprintf(bias, sizeof bias, "%s.bias", name);
    const bool added = norm->weight && (b->d->norm_bias || pp_source_tensor(b->s, bias));
    if (added)
        norm->bias = pp_plan_tensor(b->s, 0, n, b->err, "%s", bias);
    return norm->weight && (norm->bias || !added);
}

static bool add_norm(struct builder *b, int l, const char *kind, int in, int out)
{
    struct pp_op norm = {.kind = PP_OP_NORM, .layer = l, .in = in, .in2 = NONE, .out = out};
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s", l, kind);
    if (!find_norm(b, name, b->hp->n_embd, &norm))
        return false;
    add(b, norm);
    return true;
}

/* The vectors of a norm of heads: one for all of them, with what is added behind if there is something, or one for
 * each. */
static bool find_head_norm(struct builder *b, const char *name, int64_t n_heads, struct pp_op *norm)
{
    const int64_t n = b->shape.head_dim;
    char full[80];
    snprintf(full, sizeof full, "%s.weight", name);
    const struct pp_tensor *t = pp_source_tensor(b->s, full);
    norm->centred = b->d->layer_norm;
    norm->weight = pp_plan_tensor(b->s, t && t->n_dims > 1 ? n_heads : 0, n, b->err, "%s", full);
    snprintf(full, sizeof full, "%s.bias", name);
    if (norm->weight && pp_source_tensor(b->s, full) &&
        !(norm->bias = pp_plan_tensor(b->s, norm->weight->n_dims > 1 ? n_heads : 0, n, b->err, "%s", full)))
        return false;
    return norm->weight != NULL;
}

/* Queries or keys, in place; n: their width. */
static bool add_qk_norm(struct builder *b, int l, const char *kind, int slot, int64_t n)
{
    const bool whole = b->d->qk_norm == PP_QK_WHOLE || b->d->qk_norm == PP_QK_WHOLE_PERHAPS;
    struct pp_op norm = {.kind = whole ? PP_OP_NORM : PP_OP_HEAD_NORM, .layer = l, .in = slot, .in2 = NONE,
                         .out = slot};
    const int64_t n_heads = n / b->shape.head_dim;
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s", l, kind);
    if (b->d->qk_norm == PP_QK_PERHAPS
            ? !find_head_norm(b, name, n_heads, &norm)
            : !find_norm(b, name, b->d->qk_norm == PP_QK_BY_HEAD ? b->shape.head_dim : n, &norm))
        return false;
    add(b, norm);
    return true;
}

/* --- attention ------------------------------------------------------------------------------------------------ */

/* Whether a layer reads another one's keys and values. */
static bool is_shared(const struct builder *b, int l)
{
    return b->hp->layer[l] & PP_LAYER_SHARED;
}

/* Whether its values are what keys are made of. */
static bool keys_are_values(const struct builder *b, int l)
{
    return b->hp->keys_as_values && (!b->hp->window || b->hp->layer[l] & PP_LAYER_WIDE);
}

/* q, k and v of a normed input, or of the residual stream itself. */
static bool add_qkv(struct builder *b, int l)
{
    const int in = b->d->no_pre_norm ? b->x : b->normed;
    const int64_t n_embd = b->hp->n_embd;
    int q, k, v;
    if (!b->d->no_pre_norm && !add_norm(b, l, b->hp->two_norms ? "attn_norm_2" : "attn_norm", b->x, b->normed))
        return false;
    if (b->fused_qkv) {
        int qkv = pp_plan_linear(b->p, b->s, b->n_q + 2 * b->n_kv, n_embd, b->err, "blk.%d.attn_qkv", l);
        add_linear(b, l, qkv, in, b->qkv);
        return qkv >= 0;
    }
    const bool gated = b->d->gated_queries, shared = is_shared(b, l), same = keys_are_values(b, l);
    if ((q = pp_plan_linear(b->p, b->s, gated ? 2 * b->n_q : b->n_q, n_embd, b->err, "blk.%d.attn_q", l)) < 0)
        return false;
    add_linear(b, l, q, in, gated ? b->q_gate : b->q);
    if (shared)
        return true;
    if ((k = pp_plan_linear(b->p, b->s, b->n_kv, n_embd, b->err, "blk.%d.attn_k", l)) < 0)
        return false;
    add_linear(b, l, k, in, b->k);
    if (same) {
        add(b, (struct pp_op){.kind = PP_OP_APPLY, .fn = PP_FN_SCALE, .scale = 1, .layer = l, .in = b->k, .in2 = NONE,
                              .out = b->v});
        return true;
    }
    if ((v = pp_plan_linear(b->p, b->s, b->n_kv, n_embd, b->err, "blk.%d.attn_v", l)) < 0)
        return false;
    add_linear(b, l, v, in, b->v);
    if (gated) {
        add_take(b, l, b->q_gate, 2 * b->hp->head_dim, 0, b->hp->head_dim, b->q);
        add_take(b, l, b->q_gate, 2 * b->hp->head_dim, b->hp->head_dim, b->hp->head_dim, b->att_gate);
    }
    return true;
}

/* Behind q, k and v, which read the same. */
static bool add_attention_gate(struct builder *b, int l)
{
    const int gate = pp_plan_linear(b->p, b->s, b->n_q, b->hp->n_embd, b->err, "blk.%d.attn_gate", l);
    add_linear(b, l, gate, b->d->no_pre_norm ? b->x : b->normed, b->att_gate);
    return gate >= 0;
}

static void add_one_rope(struct builder *b, int l, int slot)
{
    add(b, (struct pp_op){.kind = PP_OP_ROPE, .layer = l, .local_rope = b->hp->layer[l] & PP_LAYER_LOCAL_ROPE,
                          .in = slot, .in2 = NONE, .out = slot});
}

static void add_clamp(struct builder *b, int l, int slot)
{
    add(b, (struct pp_op){.kind = PP_OP_APPLY, .fn = PP_FN_CLAMP, .scale = b->hp->qkv_clamp, .layer = l, .in = slot,
                          .in2 = NONE, .out = slot});
}

static void add_rope(struct builder *b, int l)
{
    if (b->d->positions != PP_POS_ROTATED || b->hp->alibi != 0.0f || b->hp->layer[l] & PP_LAYER_UNROTATED)
        return;
    add_one_rope(b, l, b->q);
    if (!is_shared(b, l))
        add_one_rope(b, l, b->k);
}

/* Heads, by nothing but their length. */
static void add_unit_norm(struct builder *b, int l, int slot)
{
    const bool local = b->shape.head_dim != b->hp->head_dim;
    add(b, (struct pp_op){.kind = PP_OP_HEAD_NORM, .layer = l, .in = slot, .in2 = NONE, .out = slot,
                          .weight = local ? b->local_ones : b->head_ones});
}

static bool add_qk_norms(struct builder *b, int l)
{
    if (b->d->unit_heads && b->hp->qk_norm && !(b->hp->layer[l] & PP_LAYER_UNROTATED)) {
        add_unit_norm(b, l, b->q);
        add_unit_norm(b, l, b->k);
    }
    const bool perhaps = b->d->qk_norm == PP_QK_PERHAPS || b->d->qk_norm == PP_QK_WHOLE_PERHAPS;
    const bool normed = perhaps ? b->hp->qk_norm : b->d->qk_norm != PP_QK_PLAIN;
    if (normed && (!add_qk_norm(b, l, "attn_q_norm", b->q, b->n_q) ||
                   (!is_shared(b, l) && !add_qk_norm(b, l, "attn_k_norm", b->k, b->n_kv))))
        return false;
    if (b->d->unit_values && !is_shared(b, l))
        add_unit_norm(b, l, b->v);
    return true;
}

static float alibi_scale(const struct builder *b)
{
    const float scale = b->hp->attn_scale;
    return !b->d->scaled_alibi ? 0 : scale != 0.0f ? scale : 1.0f / sqrtf((float)b->shape.head_dim);
}

/* From q, k and v to `delta`. */
static bool add_attention(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    const int64_t window = hp->layer[l] & PP_LAYER_WIDE ? 0 : hp->window;
    const struct pp_tensor *sinks = NULL;
    if (b->d->sinks && !(sinks = pp_plan_tensor(b->s, 0, b->shape.n_head, b->err, "blk.%d.attn_sinks.weight", l)))
        return false;
    if (hp->qkv_clamp != 0.0f) {
        add_clamp(b, l, b->q);
        add_clamp(b, l, b->k);
        add_clamp(b, l, b->v);
    }
    if (b->d->norm_behind_rope)
        add_rope(b, l);
    if (!add_qk_norms(b, l))
        return false;
    if (!b->d->norm_behind_rope)
        add_rope(b, l);
    if (!is_shared(b, l))
        add(b, (struct pp_op){.kind = PP_OP_KV_STORE, .layer = l, .window = window, .in = b->k, .in2 = b->v,
                              .out = NONE});
    add(b, (struct pp_op){.kind = PP_OP_ATTENTION, .layer = l, .window = window, .weight = sinks,
                          .scale = hp->attn_softcap, .alibi = hp->alibi, .alibi_scale = alibi_scale(b),
                          .in = b->q, .in2 = NONE, .out = b->att});
    if (b->d->gated_attention || b->d->gated_queries)
        add(b, (struct pp_op){.kind = PP_OP_GATE, .fn = PP_FN_SIGMOID, .layer = l, .in = b->att_gate, .in2 = b->att,
                              .out = b->att});
    int o = pp_plan_linear(b->p, b->s, hp->n_embd, b->n_q, b->err, "blk.%d.attn_output", l);
    if (o < 0)
        return false;
    add_linear(b, l, o, b->att, b->delta);
    return true;
}

/* --- latent attention -------------------------------------------------------------------------------------------- */

/* DeepSeek V2 (arXiv 2405.04434) makes keys and values of each head out of one vector c: k = [W_k c, r], v = W_v c, r
 * being a rotated key of all heads. As q . k = (W_k' q_nope) . c + q_rope . r and sum p v = W_v (sum p c), queries are
 * brought to c instead, and what attention gives of c to values: the cache keeps c and r, and neither keys nor values
 * are ever made. */

static bool add_vector_norm(struct builder *b, int l, const char *kind, int64_t n, int in, int out)
{
    struct pp_op norm = {.kind = PP_OP_NORM, .layer = l, .in = in, .in2 = NONE, .out = out};
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s", l, kind);
    if (!find_norm(b, name, n, &norm))
        return false;
    add(b, norm);
    return true;
}

/* Queries of all heads, and beside them c and r. */
static bool add_latents(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    const int64_t n_heads_q = hp->n_head * (hp->qk_nope_dim + hp->rope_dim);
    const bool low = hp->q_lora_rank > 0;
    int q, kv, q_b = 0;
    if (!add_norm(b, l, "attn_norm", b->x, b->normed) ||
        (q = pp_plan_linear(b->p, b->s, low ? hp->q_lora_rank : n_heads_q, hp->n_embd, b->err,
                            low ? "blk.%d.attn_q_a" : "blk.%d.attn_q", l)) < 0 ||
        (kv = pp_plan_linear(b->p, b->s, hp->head_dim, hp->n_embd, b->err, "blk.%d.attn_kv_a_mqa", l)) < 0 ||
        (low && (q_b = pp_plan_linear(b->p, b->s, n_heads_q, hp->q_lora_rank, b->err, "blk.%d.attn_q_b", l)) < 0))
        return false;
    add_linear(b, l, q, b->normed, low ? b->q_low : b->head_q);
    add_linear(b, l, kv, b->normed, b->k);
    if (low) {
        if (!add_vector_norm(b, l, "attn_q_a_norm", hp->q_lora_rank, b->q_low, b->q_low_normed))
            return false;
        add_linear(b, l, q_b, b->q_low_normed, b->head_q);
    }
    return add_vector_norm(b, l, "attn_kv_a_norm", hp->kv_lora_rank, b->v, b->v);
}

static bool add_heads(struct builder *b, int l, const char *kind, int64_t n_out, int64_t n_in, int in, int out)
{
    const int heads = pp_plan_heads(b->p, b->s, (int)b->hp->n_head, n_out, n_in, b->err, "blk.%d.%s.weight", l, kind);
    add(b, (struct pp_op){.kind = PP_OP_HEADS, .layer = l, .heads = heads, .in = in, .in2 = NONE, .out = out});
    return heads >= 0;
}

/* From the residual stream to `delta`. */
static bool add_latent_attention(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    if (!add_latents(b, l) || !add_heads(b, l, "attn_k_b", hp->kv_lora_rank, hp->qk_nope_dim, b->head_q, b->q))
        return false;
    add_rope(b, l);
    add(b, (struct pp_op){.kind = PP_OP_KV_STORE, .layer = l, .in = b->k, .in2 = b->v, .out = NONE});
    add(b, (struct pp_op){.kind = PP_OP_ATTENTION, .layer = l, .in = b->q, .in2 = NONE, .out = b->att});
    if (!add_heads(b, l, "attn_v_b", hp->v_head_dim, hp->kv_lora_rank, b->att, b->values))
        return false;
    const int o = pp_plan_linear(b->p, b->s, hp->n_embd, hp->n_head * hp->v_head_dim, b->err, "blk.%d.attn_output", l);
    if (o < 0)
        return false;
    add_linear(b, l, o, b->values, b->delta);
    return true;
}

static void make_latent_slots(struct builder *b)
{
    const struct pp_hparams *hp = b->hp;
    b->q_low = pp_plan_slot(b->p, hp->q_lora_rank ? hp->q_lora_rank : 1);
    b->q_low_normed = pp_plan_slot(b->p, hp->q_lora_rank ? hp->q_lora_rank : 1);
    b->head_q = pp_plan_slot(b->p, hp->n_head * (hp->qk_nope_dim + hp->rope_dim));
    b->q = pp_plan_slot(b->p, b->n_q);
    b->k = pp_plan_slot(b->p, hp->head_dim);
    b->v = pp_plan_part(b->p, b->k, 0, hp->kv_lora_rank);
    b->att = pp_plan_slot(b->p, hp->n_head * hp->kv_lora_rank);
    b->values = pp_plan_slot(b->p, hp->n_head * hp->v_head_dim);
}

/* --- short convolutions ------------------------------------------------------------------------------------------- */

/* LFM2 (arXiv 2511.23404): [B, C, x] = W_in h, and W_out (C * conv(B * x)), where conv weighs each value's last few.
 * From the residual stream to `delta`. */
static bool add_convolution(struct builder *b, int l)
{
    const int64_t n = b->hp->n_embd, taps = b->hp->conv_taps;
    const int B = b->convolution[0], C = b->convolution[1], x = b->convolution[2];
    struct pp_op convolve = {.kind = PP_OP_CONVOLVE, .layer = l, .window = taps, .in = b->product, .in2 = NONE,
                             .out = b->convolved};
    const int in = pp_plan_linear(b->p, b->s, 3 * n, n, b->err, "blk.%d.shortconv.in_proj", l);
    if (in < 0 || !add_norm(b, l, "attn_norm", b->x, b->normed) ||
        !(convolve.weight = pp_plan_tensor(b->s, n, taps, b->err, "blk.%d.shortconv.conv.weight", l)) ||
        (has(b, l, "shortconv.conv.bias") &&
         !(convolve.bias = pp_plan_tensor(b->s, 0, n, b->err, "blk.%d.shortconv.conv.bias", l))))
        return false;
    const int out = pp_plan_linear(b->p, b->s, n, n, b->err, "blk.%d.shortconv.out_proj", l);
    add_linear(b, l, in, b->normed, b->p->bad ? 0 : b->p->slots[B].base);
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

/* --- states ------------------------------------------------------------------------------------------------------ */

/* Whether a matrix of this layer gives queries, keys, values and gates of one key head after the other, beta and decay
 * likewise: Qwen3-Next's folders, and old files of it. */
static bool is_by_key_head(const struct builder *b, int l, const char *kind)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s.weight", l, kind);
    return pp_source_tensor(b->s, name) != NULL;
}

/* What the convolution reads, and the gate. */
static bool add_state_input(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    const int64_t keys = hp->n_state_key_head * hp->state_key_dim, values = hp->n_state_head * hp->state_value_dim;
    if (!is_by_key_head(b, l, "ssm_in")) {
        const int qkv = pp_plan_linear(b->p, b->s, 2 * keys + values, hp->n_embd, b->err, "blk.%d.attn_qkv", l);
        const int gate = qkv < 0 ? -1 : pp_plan_linear(b->p, b->s, values, hp->n_embd, b->err, "blk.%d.attn_gate", l);
        add_linear(b, l, qkv, b->normed, b->mixed);
        add_linear(b, l, gate, b->normed, b->state_gate);
        return gate >= 0;
    }
    const int in = pp_plan_linear(b->p, b->s, 2 * (keys + values), hp->n_embd, b->err, "blk.%d.ssm_in", l);
    add_linear(b, l, in, b->normed, b->state_in);
    return in >= 0;
}

/* Takes apart what is by key head. */
static void take_state_input(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    const int64_t key = hp->state_key_dim, value = hp->n_state_head / hp->n_state_key_head * hp->state_value_dim;
    const int64_t period = 2 * (key + value);
    add_take(b, l, b->state_in, period, 0, key, b->mixed_q);
    add_take(b, l, b->state_in, period, key, key, b->mixed_k);
    add_take(b, l, b->state_in, period, 2 * key, value, b->mixed_v);
    add_take(b, l, b->state_in, period, 2 * key + value, value, b->state_gate);
}

/* beta and decay of each head; *r learns where they are. */
static bool add_state_numbers(struct builder *b, int l, struct pp_recurrence *r)
{
    const int64_t n = b->hp->n_state_head, share = n / b->hp->n_state_key_head;
    *r = (struct pp_recurrence){.beta = b->beta, .decay = b->decay, .neighbours = (int)n, .stride = (int)n};
    if (is_by_key_head(b, l, "ssm_ba")) {
        const int ba = pp_plan_linear(b->p, b->s, 2 * n, b->hp->n_embd, b->err, "blk.%d.ssm_ba", l);
        add_linear(b, l, ba, b->normed, b->state_ba);
        r->beta = b->state_ba;
        r->decay = b->state_decays;
        r->neighbours = (int)share;
        r->stride = 2 * (int)share;
        return ba >= 0;
    }
    const int beta = pp_plan_linear(b->p, b->s, n, b->hp->n_embd, b->err, "blk.%d.ssm_beta", l);
    const int decay = beta < 0 ? -1 : pp_plan_linear(b->p, b->s, n, b->hp->n_embd, b->err, "blk.%d.ssm_alpha", l);
    add_linear(b, l, beta, b->normed, b->beta);
    add_linear(b, l, decay, b->normed, b->decay);
    return decay >= 0;
}

/* The gated delta rule behind a short convolution, as Qwen3-Next has it: from the residual stream to `delta`. */
static bool add_states(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    const int64_t values = hp->n_state_head * hp->state_value_dim;
    const int64_t width = 2 * hp->n_state_key_head * hp->state_key_dim + values;
    struct pp_recurrence r;
    if (!add_norm(b, l, "attn_norm", b->x, b->normed) || !add_state_input(b, l) || !add_state_numbers(b, l, &r))
        return false;
    if (is_by_key_head(b, l, "ssm_in"))
        take_state_input(b, l);
    const struct pp_tensor *taps = pp_plan_tensor(b->s, width, hp->conv_taps, b->err, "blk.%d.ssm_conv1d.weight", l);
    const struct pp_tensor *norm = pp_plan_tensor(b->s, 0, hp->state_value_dim, b->err, "blk.%d.ssm_norm.weight", l);
    const int out = pp_plan_linear(b->p, b->s, hp->n_embd, values, b->err, "blk.%d.ssm_out", l);
    r.rate = pp_plan_tensor(b->s, 0, hp->n_state_head, b->err, "blk.%d.ssm_a", l);
    r.bias = pp_plan_tensor(b->s, 0, hp->n_state_head, b->err, "blk.%d.ssm_dt.bias", l);
    if (!taps || !norm || out < 0 || !r.rate || !r.bias)
        return false;
    r.shape = (struct pp_state_shape){.n_key_head = (int)hp->n_state_key_head, .n_head = (int)hp->n_state_head,
                                      .key_dim = (int)hp->state_key_dim, .value_dim = (int)hp->state_value_dim};
    r.tiled = hp->state_tiled;
    r.q = b->state_q;
    r.k = b->state_k;
    r.v = b->state_v;
    add(b, (struct pp_op){.kind = PP_OP_CONVOLVE, .layer = l, .window = hp->conv_taps, .weight = taps,
                          .in = b->mixed, .in2 = NONE, .out = b->convolved});
    add(b, (struct pp_op){.kind = PP_OP_APPLY, .fn = PP_FN_SILU, .layer = l, .in = b->convolved, .in2 = NONE,
                          .out = b->convolved});
    add(b, (struct pp_op){.kind = PP_OP_RECUR, .layer = l, .recurrence = pp_plan_recurrence(b->p, &r), .weight = norm,
                          .in = b->state_gate, .in2 = NONE, .out = b->state});
    add_linear(b, l, out, b->state, b->delta);
    return true;
}

/* The numbers of each head of Mamba's, which files have one below the other. */
static const struct pp_tensor *find_numbers(struct builder *b, int l, const char *kind)
{
    return pp_plan_tensor(b->s, b->hp->n_state_head, 1, b->err, "blk.%d.%s", l, kind);
}

/* Mamba 2 as Granite 4 has it: the convolution reads x, B and C, and what states give is normed behind the gate. */
static bool add_mamba(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    const int64_t keys = hp->n_state_key_head * hp->state_key_dim, values = hp->n_state_head * hp->state_value_dim;
    const int64_t width = values + 2 * keys, n = hp->n_state_head;
    struct pp_recurrence r = {.mamba = true, .q = b->state_q, .k = b->state_k, .v = b->state_v, .decay = b->decay,
                              .beta = NONE, .neighbours = (int)n, .stride = (int)n};
    struct pp_op convolve = {.kind = PP_OP_CONVOLVE, .layer = l, .window = hp->conv_taps, .in = b->mixed, .in2 = NONE,
                             .out = b->convolved};
    struct pp_op norm = {.kind = PP_OP_NORM, .layer = l, .in = b->state, .in2 = NONE, .out = b->state_normed};
    char name[64];
    snprintf(name, sizeof name, "blk.%d.ssm_norm.weight", l);
    const struct pp_tensor *weight = pp_source_tensor(b->s, name);
    const int in = pp_plan_linear(b->p, b->s, values + width + n, hp->n_embd, b->err, "blk.%d.ssm_in", l);
    const int out = in < 0 ? -1 : pp_plan_linear(b->p, b->s, hp->n_embd, values, b->err, "blk.%d.ssm_out", l);
    if (out < 0 || !add_norm(b, l, "attn_norm", b->x, b->normed) ||
        !(convolve.weight = pp_plan_tensor(b->s, width, hp->conv_taps, b->err, "blk.%d.ssm_conv1d.weight", l)) ||
        (has(b, l, "ssm_conv1d.bias") &&
         !(convolve.bias = pp_plan_tensor(b->s, 0, width, b->err, "blk.%d.ssm_conv1d.bias", l))) ||
        !(norm.weight = pp_plan_tensor(b->s, weight && weight->n_dims == 2, values, b->err, "%s", name)) ||
        !(r.rate = find_numbers(b, l, "ssm_a")) || !(r.direct = find_numbers(b, l, "ssm_d")) ||
        !(r.bias = pp_plan_tensor(b->s, 0, n, b->err, "blk.%d.ssm_dt.bias", l)))
        return false;
    r.shape = (struct pp_state_shape){.n_key_head = (int)hp->n_state_key_head, .n_head = (int)n,
                                      .key_dim = (int)hp->state_key_dim, .value_dim = (int)hp->state_value_dim};
    add_linear(b, l, in, b->normed, b->state_in);
    add(b, convolve);
    add(b, (struct pp_op){.kind = PP_OP_APPLY, .fn = PP_FN_SILU, .layer = l, .in = b->convolved, .in2 = NONE,
                          .out = b->convolved});
    add(b, (struct pp_op){.kind = PP_OP_RECUR, .layer = l, .recurrence = pp_plan_recurrence(b->p, &r),
                          .in = b->state_gate, .in2 = NONE, .out = b->state});
    add(b, norm);
    add_linear(b, l, out, b->state_normed, b->delta);
    return true;
}

/* One matrix gives the gate, x, B, C and what decays are made of. */
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
    b->state_normed = pp_plan_slot(p, values);
}

static void make_state_slots(struct builder *b)
{
    const struct pp_hparams *hp = b->hp;
    struct pp_plan *p = b->p;
    const int64_t keys = hp->n_state_key_head * hp->state_key_dim, values = hp->n_state_head * hp->state_value_dim;
    const int64_t n = hp->n_state_head, share = n / hp->n_state_key_head;
    b->mixed = pp_plan_slot(p, 2 * keys + values);
    b->mixed_q = pp_plan_part(p, b->mixed, 0, keys);
    b->mixed_k = pp_plan_part(p, b->mixed, keys, keys);
    b->mixed_v = pp_plan_part(p, b->mixed, 2 * keys, values);
    b->convolved = pp_plan_slot(p, 2 * keys + values);
    b->state_q = pp_plan_part(p, b->convolved, 0, keys);
    b->state_k = pp_plan_part(p, b->convolved, keys, keys);
    b->state_v = pp_plan_part(p, b->convolved, 2 * keys, values);
    b->state_gate = pp_plan_slot(p, values);
    b->beta = pp_plan_slot(p, n);
    b->decay = pp_plan_slot(p, n);
    b->state_in = pp_plan_slot(p, 2 * (keys + values));
    b->state_ba = pp_plan_slot(p, 2 * n);
    b->state_decays = pp_plan_part(p, b->state_ba, share, 2 * n - share);
    b->state = pp_plan_slot(p, values);
}

/* --- the feed-forward part -------------------------------------------------------------------------------------- */

static bool add_fn(struct builder *b, int l, int in, int in2)
{
    struct pp_op op = {.kind = in2 == NONE ? PP_OP_APPLY : PP_OP_GATE, .fn = pp_decoder_fn(b->d, b->hp), .layer = l,
                       .in = in, .in2 = in2, .out = b->act};
    for (int i = 0; op.fn == PP_FN_XIELU && i < PP_XIELU_NUMBERS; i++)
        if (!(op.xielu[i] = pp_plan_tensor(b->s, 0, 1, b->err, "blk.%d.xielu.%s", l, pp_xielu_names[i])))
            return false;
    add(b, op);
    return true;
}

/* From an input to `act`. */
static bool add_up(struct builder *b, int l, int in)
{
    const int64_t n_ff = b->shape.n_ff, n_embd = b->hp->n_embd;
    const bool fused = b->d->fused_gate;
    int gate = 0, up;
    if (!fused && !b->d->ungated &&
        (gate = pp_plan_linear(b->p, b->s, n_ff, n_embd, b->err, "blk.%d.ffn_gate", l)) < 0)
        return false;
    if ((up = pp_plan_linear(b->p, b->s, fused ? 2 * n_ff : n_ff, n_embd, b->err, "blk.%d.ffn_up", l)) < 0)
        return false;
    if (!fused && !b->d->ungated)
        add_linear(b, l, gate, in, b->gate);
    add_linear(b, l, up, in, fused ? b->gate_up : b->up);
    if (b->hp->sparsity[l] != 0.0f)
        add(b, (struct pp_op){.kind = PP_OP_SPARSEN, .scale = b->hp->sparsity[l], .layer = l, .in = b->gate,
                              .in2 = NONE, .out = b->gate});
    return b->d->ungated ? add_fn(b, l, b->up, NONE) : add_fn(b, l, b->gate, b->up);
}

static bool add_down(struct builder *b, int l)
{
    int down = pp_plan_linear(b->p, b->s, b->hp->n_embd, b->shape.n_ff, b->err, "blk.%d.ffn_down", l);
    add_linear(b, l, down, b->act, b->delta);
    return down >= 0;
}

/* Its norm; with attention beside it a family may have only one norm for both. */
static bool add_ffn_norm(struct builder *b, int l)
{
    const char *kind = b->d->ffn_norm ? b->d->ffn_norm : "ffn_norm";
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s.weight", l, kind);
    if (b->hp->parallel && !pp_source_tensor(b->s, name))
        kind = "attn_norm";
    return add_norm(b, l, kind, b->x, b->normed);
}

/* The biases of a mixture's matrices, if the family has them. */
static bool find_biases(struct builder *b, int l, struct pp_experts *e)
{
    const struct {
        const char *kind;
        int64_t n_out;
        const struct pp_tensor **to;
    } biases[] = {{"gate", b->hp->n_ff_expert, &e->gate_b},
                  {"up", b->hp->n_ff_expert, &e->up_b},
                  {"down", b->hp->n_embd, &e->down_b}};
    for (int i = 0; i < 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.ffn_%s_exps.bias", l, biases[i].kind);
        if (pp_source_tensor(b->s, name) &&
            !(*biases[i].to = pp_plan_tensor(b->s, e->n, biases[i].n_out, b->err, "%s", name)))
            return false;
    }
    return true;
}

/* The expert that every row uses, from the residual stream to `shared_act`. */
static bool add_shared_up(struct builder *b, int l)
{
    const int64_t n_ff = b->hp->n_ff_shared, n_embd = b->hp->n_embd;
    const int gate = pp_plan_linear(b->p, b->s, n_ff, n_embd, b->err, "blk.%d.ffn_gate_shexp", l);
    const int up = gate < 0 ? -1 : pp_plan_linear(b->p, b->s, n_ff, n_embd, b->err, "blk.%d.ffn_up_shexp", l);
    if (up < 0 || !add_ffn_norm(b, l))
        return false;
    add_linear(b, l, gate, b->normed, b->shared_gate);
    add_linear(b, l, up, b->normed, b->shared_up);
    add(b, (struct pp_op){.kind = PP_OP_GATE, .fn = pp_decoder_fn(b->d, b->hp), .layer = l, .in = b->shared_gate,
                          .in2 = b->shared_up, .out = b->shared_act});
    return true;
}

/* And from there to a slot. */
static bool add_shared_down(struct builder *b, int l, int out)
{
    const int down = pp_plan_linear(b->p, b->s, b->hp->n_embd, b->hp->n_ff_shared, b->err, "blk.%d.ffn_down_shexp", l);
    add_linear(b, l, down, b->shared_act, out);
    return down >= 0;
}

/* The norm of what chooses experts, where that is one of its own. */
static bool add_router_norm(struct builder *b, int l)
{
    struct pp_op norm = {.kind = PP_OP_NORM, .layer = l, .in = b->x, .in2 = NONE, .out = b->normed};
    norm.weight = pp_plan_tensor(b->s, 0, b->hp->n_embd, b->err, "blk.%d.ffn_gate_inp.scale", l);
    add(b, norm);
    return norm.weight != NULL;
}

/* The norm of what goes into experts. */
static bool add_expert_norm(struct builder *b, int l)
{
    return b->d->mixture_beside ? add_norm(b, l, "pre_ffw_norm_2", b->x, b->normed) : add_ffn_norm(b, l);
}

/* Each expert's logit, and that of the shared one if its result has a weight, too. */
static bool add_router(struct builder *b, int l)
{
    const int router = pp_plan_linear(b->p, b->s, b->hp->n_expert, b->hp->n_embd, b->err, "blk.%d.ffn_gate_inp", l);
    int weight = -1;
    if (router < 0 || !(b->d->mixture_beside ? add_router_norm(b, l) : add_ffn_norm(b, l)))
        return false;
    add_linear(b, l, router, b->normed, b->router);
    if (b->d->mixture_beside) /* the root of the width, by which the norm's result would be divided */
        add(b, (struct pp_op){.kind = PP_OP_APPLY, .fn = PP_FN_SCALE, .scale = 1.0f / sqrtf((float)b->hp->n_embd),
                              .layer = l, .in = b->router, .in2 = NONE, .out = b->router});
    if (!b->hp->n_ff_shared || !has(b, l, "ffn_gate_inp_shexp.weight"))
        return true;
    if ((weight = pp_plan_linear(b->p, b->s, 1, b->hp->n_embd, b->err, "blk.%d.ffn_gate_inp_shexp", l)) < 0)
        return false;
    add_linear(b, l, weight, b->normed, b->shared_weight);
    add(b, (struct pp_op){.kind = PP_OP_WEIGH, .layer = l, .in = b->shared_weight, .in2 = b->shared_act,
                          .out = b->shared_act}); /* its matrix multiplies the weight as well */
    return true;
}

/* A mixture of experts, from the residual stream to `delta`. */
static bool add_experts(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    const int64_t n_embd = hp->n_embd, n_ff = hp->n_ff_expert;
    struct pp_experts e = {.n = (int)hp->n_expert, .n_used = (int)hp->n_expert_used, .shares = hp->expert_shares,
                           .sigmoids = hp->expert_sigmoids, .mixer = hp->expert_mixer, .scale = hp->expert_scale,
                           .weighed_inputs = b->d->weighed_inputs, .fn = pp_decoder_fn(b->d, hp)};
    if (hp->n_expert_group > 1) {
        e.n_groups = (int)hp->n_expert_group;
        e.n_groups_used = (int)hp->n_expert_group_used;
        e.groups_by_largest = hp->expert_group_largest;
    }
    if (has(b, l, "exp_probs_b.bias") &&
        !(e.choice_bias = pp_plan_tensor(b->s, 0, hp->n_expert, b->err, "blk.%d.exp_probs_b.bias", l)))
        return false;
    if (has(b, l, "ffn_down_exps.scale") &&
        !(e.scales = pp_plan_tensor(b->s, 0, hp->n_expert, b->err, "blk.%d.ffn_down_exps.scale", l)))
        return false;
    if (!add_router(b, l) || !find_biases(b, l, &e) ||
        !(e.gate = pp_plan_matrices(b->p, b->s, e.n, n_ff, n_embd, b->err, "blk.%d.ffn_gate", l)) ||
        !(e.up = pp_plan_matrices(b->p, b->s, e.n, n_ff, n_embd, b->err, "blk.%d.ffn_up", l)) ||
        !(e.down = pp_plan_matrices(b->p, b->s, e.n, n_embd, n_ff, b->err, "blk.%d.ffn_down", l)))
        return false;
    if (!add_expert_norm(b, l)) /* once more: what a projection reads is not kept */
        return false;
    add(b, (struct pp_op){.kind = PP_OP_EXPERTS, .layer = l, .experts = pp_plan_experts(b->p, &e), .in = b->normed,
                          .in2 = b->router, .out = b->delta});
    return true;
}

/* --- layers ----------------------------------------------------------------------------------------------------- */

/* What attention or the feed-forward part gave goes into the residual stream. */
static bool add_result(struct builder *b, int l, const char *post_norm)
{
    if (b->d->post_norm && !add_norm(b, l, post_norm, b->delta, b->delta))
        return false;
    add_residual(b, l);
    return true;
}

/* Both kinds of feed-forward part, whose results are normed, added up and normed again. */
static bool add_both(struct builder *b, int l)
{
    if (!add_ffn_norm(b, l) || !add_up(b, l, b->normed) || !add_down(b, l) ||
        !add_norm(b, l, "post_ffw_norm_1", b->delta, b->shared) || !add_experts(b, l) ||
        !add_norm(b, l, "post_ffw_norm_2", b->delta, b->delta))
        return false;
    add(b, (struct pp_op){.kind = PP_OP_ADD, .layer = l, .in = b->shared, .in2 = NONE, .out = b->delta});
    return add_result(b, l, "post_ffw_norm");
}

/* The feed-forward part of a layer with experts. */
static bool add_mixture(struct builder *b, int l)
{
    if (b->d->mixture_beside)
        return add_both(b, l);
    if (!b->hp->n_ff_shared)
        return add_experts(b, l) && add_result(b, l, "post_ffw_norm");
    if (!add_shared_up(b, l) || !add_experts(b, l))
        return false;
    if (!b->d->post_norm) { /* one after the other: each is added where it is made */
        add_residual(b, l);
        return add_shared_down(b, l, b->delta) && add_result(b, l, NULL);
    }
    if (!add_shared_down(b, l, b->shared))
        return false;
    add(b, (struct pp_op){.kind = PP_OP_ADD, .layer = l, .in = b->shared, .in2 = NONE, .out = b->delta});
    return add_result(b, l, "post_ffw_norm");
}

/* The layer's own input, weighed by a gate that reads the stream, goes into that as well. */
static bool add_layer_input(struct builder *b, int l)
{
    const int64_t n = b->hp->n_embd_layer, n_embd = b->hp->n_embd;
    const int gate = pp_plan_linear(b->p, b->s, n, n_embd, b->err, "blk.%d.inp_gate", l);
    const int proj = gate < 0 ? -1 : pp_plan_linear(b->p, b->s, n_embd, n, b->err, "blk.%d.proj", l);
    if (proj < 0)
        return false;
    add_linear(b, l, gate, b->x, b->input);
    add(b, (struct pp_op){.kind = PP_OP_GATE, .fn = pp_decoder_fn(b->d, b->hp), .layer = l, .in = b->input,
                          .in2 = pp_plan_part(b->p, b->inputs, l * n, n), .out = b->input});
    add_linear(b, l, proj, b->input, b->delta);
    if (!add_norm(b, l, "post_norm", b->delta, b->delta))
        return false;
    add_residual(b, l);
    return true;
}

/* What the stream is multiplied by behind the layer. */
static bool add_layer_scale(struct builder *b, int l)
{
    const struct pp_tensor *scale = pp_plan_tensor(b->s, 0, 1, b->err, "blk.%d.layer_output_scale.weight", l);
    add(b, (struct pp_op){.kind = PP_OP_APPLY, .fn = PP_FN_SCALE, .weight = scale, .layer = l, .in = b->x, .in2 = NONE,
                          .out = b->x});
    return scale != NULL;
}

/* A layer that may lack attention, or has a projection in its place, or lacks the feed-forward part. */
static bool add_what_is_there(struct builder *b, int l)
{
    const int64_t n = b->hp->n_embd;
    int instead = 0;
    if (b->shape.n_head_kv && (!add_qkv(b, l) || !add_attention(b, l)))
        return false;
    if (b->shape.n_head && !b->shape.n_head_kv) {
        if (!add_norm(b, l, "attn_norm", b->x, b->normed) ||
            (instead = pp_plan_linear(b->p, b->s, n, n, b->err, "blk.%d.attn_output", l)) < 0)
            return false;
        add_linear(b, l, instead, b->normed, b->delta);
    }
    if (b->shape.n_head)
        add_residual(b, l);
    if (!b->shape.n_ff)
        return true;
    if (!add_ffn_norm(b, l) || !add_up(b, l, b->normed) || !add_down(b, l))
        return false;
    add_residual(b, l);
    return true;
}

static bool add_parts(struct builder *b, int l)
{
    const bool parallel = b->hp->parallel, pre = !b->d->no_pre_norm, latent = b->hp->kv_lora_rank > 0;
    const bool convolved = b->hp->layer[l] & PP_LAYER_CONVOLVED, recurs = b->hp->layer[l] & PP_LAYER_RECURRENT;
    bool (*const attention)(struct builder *, int) = convolved ? add_convolution
                                                     : recurs  ? (b->hp->mamba ? add_mamba : add_states)
                                                     : latent  ? add_latent_attention
                                                               : add_attention;
    if (!latent && !convolved && !recurs &&
        (!add_qkv(b, l) || (b->d->gated_attention && !add_attention_gate(b, l))))
        return false;
    if (b->hp->n_expert && !(b->hp->layer[l] & PP_LAYER_DENSE))
        return attention(b, l) && add_result(b, l, "post_attention_norm") && add_mixture(b, l);
    /* Beside attention, the feed-forward part reads the stream before anything is added to it. */
    if (parallel && (!add_ffn_norm(b, l) || !add_up(b, l, b->normed)))
        return false;
    if (!attention(b, l) || !add_result(b, l, "post_attention_norm"))
        return false;
    if (!parallel && ((pre && !add_ffn_norm(b, l)) || !add_up(b, l, pre ? b->normed : b->x)))
        return false;
    return add_down(b, l) && add_result(b, l, "post_ffw_norm");
}

/* --- several streams -------------------------------------------------------------------------------------------- */

/* AltUp (arXiv 2301.13310), as Gemma 3n has it: a layer guesses what the streams will be out of what they are, computes
 * the first one, and corrects all by how far off that guess was. What the layer's own input makes of it goes into the
 * others. Attention has a product of low rank beside it (arXiv 2411.07501). */

static void add_op(struct builder *b, enum pp_op_kind kind, int l, float scale, int in, int in2, int out)
{
    add(b, (struct pp_op){.kind = kind, .layer = l, .fn = PP_FN_SCALE, .scale = scale, .count = b->hp->n_stream,
                          .in = in, .in2 = in2, .out = out});
}

static int stream(struct builder *b, int which, int i)
{
    return pp_plan_part(b->p, b->streams[which], i * b->hp->n_embd, b->hp->n_embd);
}

/* From a stream to the numbers by which streams are mixed, or by which a result is spread. */
static bool add_coefficients(struct builder *b, int l, int from, const char *kind, int out)
{
    const int64_t n = b->hp->n_stream;
    const int router = pp_plan_linear(b->p, b->s, n, b->hp->n_embd, b->err, "blk.%d.altup_router", l);
    const int64_t n_out = out == b->mixing ? n * n : n;
    const int coefficients = router < 0 ? -1 : pp_plan_linear(b->p, b->s, n_out, n, b->err, "blk.%d.%s", l, kind);
    if (coefficients < 0 || !add_norm(b, l, "altup_router_norm", from, b->normed))
        return false;
    add_linear(b, l, router, b->normed, b->modalities);
    add_op(b, PP_OP_APPLY, l, 1.0f / (float)b->hp->n_embd, b->modalities, NONE, b->modalities);
    add(b, (struct pp_op){.kind = PP_OP_APPLY, .fn = PP_FN_CAP, .scale = 1, .layer = l, .in = b->modalities,
                          .in2 = NONE, .out = b->modalities}); /* tanh */
    add_linear(b, l, coefficients, b->modalities, out);
    return true;
}

/* What goes into attention comes out of a product of low rank as well; q, k and v are made beside it. */
static bool add_laurel(struct builder *b, int l)
{
    const int64_t n = b->hp->laurel_rank, n_embd = b->hp->n_embd;
    const int left = pp_plan_linear(b->p, b->s, n, n_embd, b->err, "blk.%d.laurel_l", l);
    const int right = left < 0 ? -1 : pp_plan_linear(b->p, b->s, n_embd, n, b->err, "blk.%d.laurel_r", l);
    if (right < 0)
        return false;
    add_linear(b, l, left, b->normed, b->low);
    add_linear(b, l, right, b->low, b->laurel);
    if (!add_norm(b, l, "laurel_post_norm", b->laurel, b->laurel) || !add_norm(b, l, "attn_norm", b->x, b->normed))
        return false;
    add_op(b, PP_OP_ADD, l, 0, b->normed, NONE, b->laurel);
    return true;
}

/* The layer's own input, read behind a vector of weights, goes into all streams but the first. */
static bool add_stream_input(struct builder *b, int l)
{
    const int64_t n = b->hp->n_embd_layer, n_embd = b->hp->n_embd;
    const struct pp_tensor *scale = pp_plan_tensor(b->s, 0, n_embd, b->err, "blk.%d.altup_correct_scale.weight", l);
    const int gate = !scale ? -1 : pp_plan_linear(b->p, b->s, n, n_embd, b->err, "blk.%d.inp_gate", l);
    const int proj = gate < 0 ? -1 : pp_plan_linear(b->p, b->s, n_embd, n, b->err, "blk.%d.proj", l);
    if (proj < 0)
        return false;
    add(b, (struct pp_op){.kind = PP_OP_MULTIPLY, .weight = scale, .layer = l, .in = stream(b, 1, 0), .in2 = NONE,
                          .out = b->x});
    add_linear(b, l, gate, b->x, b->input);
    add(b, (struct pp_op){.kind = PP_OP_GATE, .fn = pp_decoder_fn(b->d, b->hp), .layer = l, .in = b->input,
                          .in2 = pp_plan_part(b->p, b->inputs, l * n, n), .out = b->input});
    add_linear(b, l, proj, b->input, b->delta);
    if (!add_norm(b, l, "post_norm", b->delta, b->delta))
        return false;
    for (int i = 1; i < b->hp->n_stream; i++)
        add_op(b, PP_OP_ADD, l, 0, b->delta, NONE, stream(b, 1, i));
    return true;
}

static bool add_stream_layer(struct builder *b, int l)
{
    const int guessed = b->streams[1];
    if (!add_coefficients(b, l, stream(b, 0, 0), "altup_predict_coef", b->mixing))
        return false;
    add_op(b, PP_OP_MIX, l, 0, b->streams[0], b->mixing, guessed);
    add_op(b, PP_OP_APPLY, l, 1, stream(b, 1, 0), NONE, b->x);
    if (!add_qkv(b, l) || !add_laurel(b, l) || !add_attention(b, l) || !add_result(b, l, "post_attention_norm"))
        return false;
    add_op(b, PP_OP_ADD, l, 0, b->laurel, NONE, b->x);
    add_op(b, PP_OP_APPLY, l, sqrtf(0.5f), b->x, NONE, b->x);
    if (!add_ffn_norm(b, l) || !add_up(b, l, b->normed) || !add_down(b, l) || !add_result(b, l, "post_ffw_norm") ||
        !add_coefficients(b, l, b->x, "altup_correct_coef", b->spreading))
        return false;
    add_op(b, PP_OP_ADD, l, -1, stream(b, 1, 0), NONE, b->x);
    add_op(b, PP_OP_SPREAD, l, 0, b->x, b->spreading, guessed);
    if (!add_stream_input(b, l))
        return false;
    b->streams[1] = b->streams[0];
    b->streams[0] = guessed;
    return true;
}

/* The first stream is the embedding; the others are projections of it, as long as it is. */
static bool add_streams(struct builder *b)
{
    const int64_t n = b->hp->n_embd;
    add_op(b, PP_OP_APPLY, 0, 1, b->x, NONE, stream(b, 0, 0));
    for (int i = 1; i < b->hp->n_stream; i++) {
        const int proj = pp_plan_linear(b->p, b->s, n, n, b->err, "altup_proj.%d", i - 1);
        if (proj < 0)
            return false;
        add_linear(b, 0, proj, b->x, b->delta);
        add_op(b, PP_OP_MATCH, 0, 0, b->delta, b->x, stream(b, 0, i));
    }
    return true;
}

/* And back: their mean. */
static bool join_streams(struct builder *b)
{
    const int64_t n = b->hp->n_embd;
    const int l = (int)b->hp->n_layer, first = stream(b, 0, 0);
    add_op(b, PP_OP_APPLY, l, 1, first, NONE, b->x);
    for (int i = 1; i < b->hp->n_stream; i++) {
        const int proj = pp_plan_linear(b->p, b->s, n, n, b->err, "altup_unembd_proj.%d", i - 1);
        if (proj < 0)
            return false;
        add_linear(b, l, proj, stream(b, 0, i), b->delta);
        add_op(b, PP_OP_MATCH, l, 0, b->delta, first, b->delta);
        add_op(b, PP_OP_ADD, l, 0, b->delta, NONE, b->x);
    }
    add_op(b, PP_OP_APPLY, l, 1.0f / (float)b->hp->n_stream, b->x, NONE, b->x);
    return true;
}

static void make_stream_slots(struct builder *b)
{
    const int64_t n = b->hp->n_stream;
    b->streams[0] = pp_plan_slot(b->p, n * b->hp->n_embd);
    b->streams[1] = pp_plan_slot(b->p, n * b->hp->n_embd);
    b->modalities = pp_plan_slot(b->p, n);
    b->mixing = pp_plan_slot(b->p, n * n);
    b->spreading = pp_plan_slot(b->p, n);
    b->low = pp_plan_slot(b->p, b->hp->laurel_rank);
    b->laurel = pp_plan_slot(b->p, b->hp->n_embd);
}

/* Queries, keys and values of the layer within the one slot that has all three. */
static void make_qkv_parts(struct builder *b)
{
    b->q = pp_plan_part(b->p, b->qkv, 0, b->n_q);
    b->k = pp_plan_part(b->p, b->qkv, b->n_q, b->n_kv);
    b->v = pp_plan_part(b->p, b->qkv, b->n_q + b->n_kv, b->n_kv);
}

static void set_shape(struct builder *b, struct pp_layer_shape shape)
{
    b->shape = shape;
    b->n_q = shape.n_head * shape.head_dim;
    b->n_kv = shape.n_head_kv * shape.head_dim;
}

static bool add_layer(struct builder *b, int l)
{
    const int64_t n_q = b->n_q, n_kv = b->n_kv;
    set_shape(b, pp_layer_shape(b->hp, l));
    if (b->fused_qkv && (b->n_q != n_q || b->n_kv != n_kv))
        make_qkv_parts(b);
    if (b->hp->n_stream)
        return add_stream_layer(b, l);
    if (b->hp->gaps)
        return add_what_is_there(b, l);
    return add_parts(b, l) && (!b->hp->n_embd_layer || add_layer_input(b, l)) &&
           (!has(b, l, "layer_output_scale.weight") || add_layer_scale(b, l));
}

/* As wide as the widest layer needs. */
static struct pp_layer_shape widest_shape(const struct pp_hparams *hp)
{
    struct pp_layer_shape widest = {.n_head = hp->n_head, .n_head_kv = hp->n_head_kv, .head_dim = hp->head_dim,
                                    .n_ff = hp->n_ff};
    if (hp->head_dim_local > widest.head_dim)
        widest.head_dim = hp->head_dim_local;
    return widest;
}

static void make_slots(struct builder *b)
{
    struct pp_plan *p = b->p;
    const struct pp_hparams *hp = b->hp;
    b->x = pp_plan_slot(p, hp->n_embd);
    b->normed = pp_plan_slot(p, hp->n_embd);
    b->delta = pp_plan_slot(p, hp->n_embd);
    if (!hp->kv_lora_rank)
        b->att = pp_plan_slot(p, b->n_q);
    if (b->d->gated_attention || b->d->gated_queries)
        b->att_gate = pp_plan_slot(p, b->n_q);
    if (b->d->gated_queries)
        b->q_gate = pp_plan_slot(p, 2 * b->n_q);
    if (hp->n_state_head)
        (hp->mamba ? make_mamba_slots : make_state_slots)(b);
    if (hp->kv_lora_rank) {
        make_latent_slots(b);
    } else if (b->fused_qkv) {
        b->qkv = pp_plan_slot(p, b->n_q + 2 * b->n_kv);
        make_qkv_parts(b);
    } else {
        b->q = pp_plan_slot(p, b->n_q);
        b->k = pp_plan_slot(p, b->n_kv);
        b->v = pp_plan_slot(p, b->n_kv);
    }
    if (hp->conv_taps && !hp->n_state_head)
        make_convolution_slots(b);
    if (b->d->fused_gate) {
        b->gate_up = pp_plan_slot(p, 2 * hp->n_ff);
        b->gate = pp_plan_part(p, b->gate_up, 0, hp->n_ff);
        b->up = pp_plan_part(p, b->gate_up, hp->n_ff, hp->n_ff);
    } else {
        b->gate = pp_plan_slot(p, hp->n_ff);
        b->up = pp_plan_slot(p, hp->n_ff);
    }
    b->act = pp_plan_slot(p, hp->n_ff);
    b->router = pp_plan_slot(p, hp->n_expert ? hp->n_expert : 1);
    if (hp->n_embd_layer) {
        b->inputs = pp_plan_slot(p, hp->n_layer * hp->n_embd_layer);
        b->projected = pp_plan_slot(p, hp->n_layer * hp->n_embd_layer);
        b->input = pp_plan_slot(p, hp->n_embd_layer);
    }
    if (hp->n_stream)
        make_stream_slots(b);
    if (hp->n_ff_shared || b->d->mixture_beside)
        b->shared = pp_plan_slot(p, hp->n_embd);
    if (!hp->n_ff_shared)
        return;
    b->shared_gate = pp_plan_slot(p, hp->n_ff_shared);
    b->shared_up = pp_plan_slot(p, hp->n_ff_shared);
    b->shared_act = pp_plan_slot(p, hp->n_ff_shared);
    b->shared_weight = pp_plan_slot(p, 1);
}

static bool add_embedding(struct builder *b)
{
    const struct pp_hparams *hp = b->hp;
    struct pp_op embed = {.kind = PP_OP_EMBED, .scale = hp->embd_scale, .in = NONE, .in2 = NONE, .out = b->x};
    const bool positions = b->d->positions == PP_POS_LEARNED ||
                           (b->d->positions == PP_POS_LEARNED_OR_ALIBI && hp->alibi == 0.0f);
    embed.weight = pp_plan_tensor(b->s, hp->n_vocab, hp->n_embd, b->err, "token_embd.weight");
    if (embed.weight && positions)
        embed.bias = pp_plan_tensor(b->s, hp->n_ctx_train, hp->n_embd, b->err, "position_embd.weight");
    b->p->n_positions = positions ? hp->n_ctx_train : 0;
    add(b, embed);
    if (!embed.weight || (positions && !embed.bias))
        return false;
    struct pp_op norm = {.kind = PP_OP_NORM, .in = b->x, .in2 = NONE, .out = b->x};
    if (!b->d->embd_norm)
        return true;
    if (!find_norm(b, "token_embd_norm", hp->n_embd, &norm))
        return false;
    add(b, norm);
    return true;
}

/* Layers' own inputs: what a table has for the token, and a projection of what goes into the first layer, normed layer
 * by layer; both added up, by the root of a half. */
static bool add_layer_inputs(struct builder *b)
{
    const struct pp_hparams *hp = b->hp;
    const int64_t n = hp->n_layer * hp->n_embd_layer;
    const struct pp_tensor *table = pp_source_tensor(b->s, "per_layer_token_embd.weight"), *norm;
    const int64_t n_rows = table && table->n_dims == 2 && table->ne[1] < hp->n_vocab ? table->ne[1] : hp->n_vocab;
    const int proj = pp_plan_linear(b->p, b->s, n, hp->n_embd, b->err, "per_layer_model_proj");
    if (proj < 0 || !(table = pp_plan_tensor(b->s, n_rows, n, b->err, "per_layer_token_embd.weight")) ||
        !(norm = pp_plan_tensor(b->s, 0, hp->n_embd_layer, b->err, "per_layer_proj_norm.weight")))
        return false;
    add_linear(b, 0, proj, b->x, b->projected);
    add(b, (struct pp_op){.kind = PP_OP_APPLY, .fn = PP_FN_SCALE, .scale = 1.0f / sqrtf((float)hp->n_embd),
                          .in = b->projected, .in2 = NONE, .out = b->projected});
    add(b, (struct pp_op){.kind = PP_OP_LOOKUP, .weight = table, .scale = sqrtf((float)hp->n_embd_layer), .in = NONE,
                          .in2 = NONE, .out = b->inputs});
    add(b, (struct pp_op){.kind = PP_OP_HEAD_NORM, .weight = norm, .in = b->projected, .in2 = NONE,
                          .out = b->projected});
    add(b, (struct pp_op){.kind = PP_OP_ADD, .in = b->projected, .in2 = NONE, .out = b->inputs});
    add(b, (struct pp_op){.kind = PP_OP_APPLY, .fn = PP_FN_SCALE, .scale = sqrtf(0.5f), .in = b->inputs, .in2 = NONE,
                          .out = b->inputs});
    return true;
}

/* Logits, of the rows that want an output. */
static bool add_output(struct builder *b)
{
    const struct pp_hparams *hp = b->hp;
    const int n_layer = (int)hp->n_layer;
    const int logits = pp_plan_slot(b->p, hp->n_vocab);
    struct pp_op norm = {.kind = PP_OP_NORM, .layer = n_layer, .in = b->x, .in2 = NONE, .out = b->normed};
    const char *head = pp_source_tensor(b->s, "output.weight") ? "output" : "token_embd"; /* tied embeddings */
    if (!find_norm(b, b->d->output_norm ? b->d->output_norm : "output_norm", hp->n_embd, &norm))
        return false;
    int w = pp_plan_linear(b->p, b->s, hp->n_vocab, hp->n_embd, b->err, "%s", head);
    if (w < 0)
        return false;
    add(b, (struct pp_op){.kind = PP_OP_SELECT, .layer = n_layer, .in = b->x, .in2 = NONE, .out = b->x});
    add(b, norm);
    add_linear(b, n_layer, w, b->normed, logits);
    const struct {
        enum pp_fn fn;
        float number;
    } behind[] = {{PP_FN_SCALE, hp->logit_scale}, {PP_FN_CAP, hp->final_softcap}};
    for (int i = 0; i < 2; i++)
        if (behind[i].number != 0.0f)
            add(b, (struct pp_op){.kind = PP_OP_APPLY, .fn = behind[i].fn, .scale = behind[i].number, .layer = n_layer,
                                  .in = logits, .in2 = NONE, .out = logits});
    add(b, (struct pp_op){.kind = PP_OP_RESULT, .layer = n_layer, .in = b->normed, .in2 = logits, .out = NONE});
    return true;
}

enum pp_code pp_plan_decoder(const struct pp_source *s, const struct pp_decoder *d, struct pp_plan *plan,
                             struct pp_error *err)
{
    const struct pp_hparams *hp = pp_source_hparams(s);
    struct builder b = {.s = s, .hp = hp, .d = d, .p = plan, .err = err,
                        .fused_qkv = (pp_source_tensor(s, "blk.0.attn_qkv.weight") && !hp->n_state_head) ||
                                     (d->fused_qkv && !pp_source_tensor(s, "blk.0.attn_q.weight"))};
    if (hp->n_expert && (hp->parallel || d->no_pre_norm))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s: a mixture of experts in a model of this family is not supported",
                       pp_source_path(s));
    if (d->plain_norm && !(b.ones = pp_plan_ones(plan, hp->n_embd, err)))
        return err->code;
    if (((d->unit_heads && hp->qk_norm) || d->unit_values) && !(b.head_ones = pp_plan_ones(plan, hp->head_dim, err)))
        return err->code;
    if (b.head_ones && hp->head_dim_local && !(b.local_ones = pp_plan_ones(plan, hp->head_dim_local, err)))
        return err->code;
    set_shape(&b, widest_shape(hp));
    make_slots(&b);
    bool good = add_embedding(&b) && (!hp->n_embd_layer || add_layer_inputs(&b)) && (!hp->n_stream || add_streams(&b));
    for (int l = 0; good && l < (int)hp->n_layer; l++)
        good = add_layer(&b, l);
    good = good && (!hp->n_stream || join_streams(&b)) && add_output(&b);
    return good ? PP_OK : err->code;
}
