/* decoder_rwkv.c - the layers of RWKV 7 (arXiv 2503.14456). The time mix reads six static blends of its input with the
 * position before, the channel mix one. Decays, beta, gates and the share of the first layer's values in a layer's own
 * come from low-rank pairs of matrices. ARWKV (arXiv 2501.15570) has the time mix only, in Qwen 2's layers, and may
 * lack the gates and the norm of the heads' output. */
#include <stdio.h>

#include "engine/arch/decoder_rwkv.h"

enum mix { MIX_R, MIX_W, MIX_K, MIX_V, MIX_A, MIX_G, N_MIXES }; /* rows of time_mix_lerp_fused */
enum low { LOW_W, LOW_A, LOW_V, LOW_G };                        /* indices of hparams.rwkv_ranks */

static const float QWEN_NORM_EPS = 64e-5f; /* of the heads' output in Qwen 2's layers */

static bool has_gates(const struct builder *b)
{
    return b->hp->rwkv_ranks[LOW_G] > 0;
}

/* out = in * the layer's vector KIND */
static bool add_product(struct builder *b, int l, const char *kind, int in, int out)
{
    const struct pp_tensor *weight = find_vector(b, l, kind);
    add(b, (struct pp_op){.kind = PP_OP_MULTIPLY, .layer = l, .weight = weight, .in = in, .in2 = NONE, .out = out});
    return weight != NULL;
}

/* --- token shift -------------------------------------------------------------------------------------------------- */

bool pp_rwkv_shift(struct builder *b, int l, const char *norm)
{
    if (!b->shift_taps && !(b->shift_taps = pp_plan_shift(b->p, b->hp->n_embd, b->err)))
        return false;
    if (!add_norm(b, l, norm, b->x, b->normalised))
        return false;
    add(b, (struct pp_op){.kind = PP_OP_CONVOLVE, .layer = l, .window = 2, .weight = b->shift_taps, .in = b->normalised,
                          .in2 = NONE, .out = b->shift});
    return true;
}

void pp_rwkv_blend(struct builder *b, int l, const struct pp_tensor *weight)
{
    add(b, (struct pp_op){.kind = PP_OP_MULTIPLY, .layer = l, .weight = weight, .in = b->shift, .in2 = NONE,
                          .out = b->blend});
    add_sum(b, l, 1, b->normalised, b->blend);
}

const struct pp_tensor *pp_rwkv_mixes(struct builder *b, int l, int n)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%d.time_mix_lerp_fused.weight", l);
    const struct pp_tensor *t = pp_source_tensor(b->s, name);
    if (t && t->ne[0] == b->hp->n_embd && t->ne[1] * t->ne[2] * t->ne[3] == n && pp_type_info(t->type)->runnable)
        return t;
    pp_fail(b->err, PP_ERR_FORMAT, "%s: tensor %s is missing, or is not %d vectors of %lld values",
            pp_source_path(b->s), name, n, (long long)b->hp->n_embd);
    return NULL;
}

/* A projection of the input blended with row `mix` of the weights. */
static bool add_shifted(struct builder *b, int l, const struct pp_tensor *mixes, enum mix mix, const char *kind,
                        int out)
{
    const int64_t n = b->hp->n_embd;
    const struct pp_tensor *weight = pp_plan_row(b->p, mixes, mix, b->err);
    const int linear = !weight ? -1 : pp_plan_linear(b->p, b->s, n, n, b->err, "blk.%d.time_mix_%s", l, kind);
    if (linear < 0)
        return false;
    pp_rwkv_blend(b, l, weight);
    add_linear(b, l, linear, b->blend, out);
    return true;
}

/* --- low-rank pairs ----------------------------------------------------------------------------------------------- */

/* From the last blend: fn2(bias + W2 fn1(W1 blend)). */
static bool add_low_rank(struct builder *b, int l, enum low low, char letter, int out)
{
    const int64_t n = b->hp->n_embd, rank = b->hp->rwkv_ranks[low];
    const int first = pp_plan_linear(b->p, b->s, rank, n, b->err, "blk.%d.time_mix_%c1", l, letter);
    const int second =
        first < 0 ? -1 : pp_plan_linear(b->p, b->s, n, rank, b->err, "blk.%d.time_mix_%c2", l, letter);
    const struct pp_tensor *bias = NULL;
    if (second < 0 || (low != LOW_G && !(bias = pp_plan_tensor(b->s, 0, n, b->err, "blk.%d.time_mix_%c0.weight", l,
                                                                letter))))
        return false;
    pp_plan_linear_bias(b->p, second, bias);
    add_linear(b, l, first, b->blend, b->low_rank[low]);
    if (low == LOW_W)
        add_fn(b, l, PP_FN_CAP, 1, b->low_rank[low], b->low_rank[low]); /* tanh */
    if (low == LOW_G)
        add_fn(b, l, PP_FN_SIGMOID, 0, b->low_rank[low], b->low_rank[low]);
    add_linear(b, l, second, b->low_rank[low], out);
    if (low != LOW_G)
        add_fn(b, l, low == LOW_W ? PP_FN_DECAY : PP_FN_SIGMOID, 0, out, out);
    return true;
}

/* --- time mix ----------------------------------------------------------------------------------------------------- */

/* Values: the first layer's stay in a slot of their own; in other layers v += (first_v - v) * a low-rank share. */
static bool add_values(struct builder *b, int l, const struct pp_tensor *mixes)
{
    if (!add_shifted(b, l, mixes, MIX_V, "value", l ? b->state_v : b->first_v))
        return false;
    if (l == 0)
        return true;
    if (!add_low_rank(b, l, LOW_V, 'v', b->scratch))
        return false;
    add_fn(b, l, PP_FN_SCALE, 1, b->first_v, b->removal_key);
    add_sum(b, l, -1, b->state_v, b->removal_key);
    add(b, (struct pp_op){.kind = PP_OP_MULTIPLY, .layer = l, .in = b->removal_key, .in2 = b->scratch,
                          .out = b->removal_key});
    add_sum(b, l, 1, b->removal_key, b->state_v);
    return true;
}

/* Keys: removal_key = k_k k, by which the state is read for removal; then k += (beta - 1) k_a k. */
static bool add_keys(struct builder *b, int l, const struct pp_tensor *mixes)
{
    if (!add_shifted(b, l, mixes, MIX_K, "key", b->state_k) ||
        !add_product(b, l, "time_mix_k_a", b->state_k, b->scratch))
        return false;
    add(b, (struct pp_op){.kind = PP_OP_MULTIPLY, .layer = l, .in = b->scratch, .in2 = b->beta, .out = b->blend});
    if (!add_product(b, l, "time_mix_k_k", b->state_k, b->removal_key))
        return false;
    add_sum(b, l, -1, b->scratch, b->blend);
    add_sum(b, l, 1, b->blend, b->state_k);
    return true;
}

/* Decays, beta and gates. */
static bool add_decay_beta_gate(struct builder *b, int l, const struct pp_tensor *mixes)
{
    static const struct {
        enum mix mix;
        enum low low;
        char letter;
    } numbers[] = {{MIX_W, LOW_W, 'w'}, {MIX_A, LOW_A, 'a'}, {MIX_G, LOW_G, 'g'}};
    const int out[] = {b->decay, b->beta, b->state_gate};
    for (size_t i = 0; i < (has_gates(b) ? sizeof numbers / sizeof *numbers : 2); i++) {
        const struct pp_tensor *weight = pp_plan_row(b->p, mixes, numbers[i].mix, b->err);
        if (!weight)
            return false;
        pp_rwkv_blend(b, l, weight);
        if (!add_low_rank(b, l, numbers[i].low, numbers[i].letter, out[i]))
            return false;
    }
    return true;
}

/* The norm of the heads' output, which may be missing in Qwen 2's layers. */
static bool find_norm_of_heads(struct builder *b, int l, struct pp_op *recur)
{
    if (b->hp->rwkv_qwen && !b->hp->state_norm)
        return true;
    return (recur->weight = find_vector(b, l, "time_mix_ln")) &&
           (recur->bias = pp_plan_tensor(b->s, 0, b->hp->n_embd, b->err, "blk.%d.time_mix_ln.bias", l));
}

bool pp_rwkv7_result(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    const int dim = (int)hp->state_key_dim;
    struct pp_recurrence r = {.kind = PP_RECUR_RWKV7, .q = b->state_q, .k = b->state_k,
                              .v = l ? b->state_v : b->first_v,
                              .decay = b->decay, .beta = b->beta, .removal_key = b->removal_key};
    struct pp_op recur = {.kind = PP_OP_RECUR, .layer = l,
                          .scale = hp->rwkv_qwen ? QWEN_NORM_EPS : (float)dim * hp->norm_eps,
                          .in = has_gates(b) ? b->state_gate : NONE, .in2 = NONE, .out = b->state};
    const struct pp_tensor *mixes = pp_rwkv_mixes(b, l, has_gates(b) ? N_MIXES : N_MIXES - 1);
    const int out = !mixes ? -1 : pp_plan_linear(b->p, b->s, hp->n_embd, hp->n_embd, b->err,
                                                 "blk.%d.time_mix_output", l);
    r.shape = (struct pp_state_shape){.n_key_head = (int)hp->n_state_head, .n_head = (int)hp->n_state_head,
                                      .key_dim = dim, .value_dim = dim, .n_inputs = 5 * dim};
    if (out < 0 || !pp_rwkv_shift(b, l, "attn_norm") || !add_shifted(b, l, mixes, MIX_R, "receptance", b->state_q) ||
        !add_decay_beta_gate(b, l, mixes) || !add_values(b, l, mixes) || !add_keys(b, l, mixes) ||
        !(r.direct = find_vector(b, l, "time_mix_r_k")) || !find_norm_of_heads(b, l, &recur))
        return false;
    recur.recurrence = pp_plan_recurrence(b->p, &r);
    add(b, recur);
    add_linear(b, l, out, b->state, b->delta);
    return true;
}

/* --- channel mix -------------------------------------------------------------------------------------------------- */

bool pp_rwkv_feed_forward(struct builder *b, int l)
{
    const int64_t n = b->hp->n_embd, n_ff = b->hp->n_ff;
    const struct pp_tensor *weight = find_vector(b, l, "channel_mix_lerp_k");
    const int up = !weight ? -1 : pp_plan_linear(b->p, b->s, n_ff, n, b->err, "blk.%d.channel_mix_key", l);
    const int down = up < 0 ? -1 : pp_plan_linear(b->p, b->s, n, n_ff, b->err, "blk.%d.channel_mix_value", l);
    if (down < 0 || !pp_rwkv_shift(b, l, "attn_norm_2"))
        return false;
    pp_rwkv_blend(b, l, weight);
    add_linear(b, l, up, b->blend, b->up);
    add_fn(b, l, PP_FN_RELU2, 0, b->up, b->act);
    add_linear(b, l, down, b->act, b->delta);
    return true;
}

bool pp_rwkv7_layer(struct builder *b, int l)
{
    if (!pp_rwkv7_result(b, l))
        return false;
    add_sum(b, l, 1, b->delta, b->x);
    if (!pp_rwkv_feed_forward(b, l))
        return false;
    add_sum(b, l, 1, b->delta, b->x);
    return true;
}

void pp_rwkv7_slots(struct builder *b)
{
    const int64_t n = b->hp->n_embd;
    int *const slots[] = {&b->shift, &b->blend, &b->removal_key, &b->scratch, &b->first_v, &b->state_q, &b->state_k,
                          &b->state_v, &b->decay, &b->beta, &b->state_gate, &b->state};
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++)
        *slots[i] = pp_plan_slot(b->p, n);
    for (int i = 0; i < 4; i++)
        b->low_rank[i] = pp_plan_slot(b->p, b->hp->rwkv_ranks[i] ? b->hp->rwkv_ranks[i] : 1);
}
