/* decoder_filter.c - Yuan 2's localised filtering (arXiv 2311.15786): queries and keys read norm(h + conv2(conv1(h))),
 * h being the normalised input. A convolution multiplies the position by one matrix and the position before by
 * another. */
#include "engine/arch/decoder_int.h"

static const float FILTER_EPS = 1e-6f; /* of that norm */

/* last = what `in` was at the position before */
static bool add_previous(struct builder *b, int l, int in, int64_t n, int which, int last)
{
    if (!b->filter_taps[which] && !(b->filter_taps[which] = pp_plan_shift(b->p, n, b->err)))
        return false;
    add(b, (struct pp_op){.kind = PP_OP_CONVOLVE, .layer = l, .window = 2, .weight = b->filter_taps[which], .in = in,
                          .in2 = NONE, .out = last});
    add_to(b, l, in, last); /* the taps gave before - present */
    return true;
}

/* A convolution from n_in to n_out values. last, room: scratch slots of n_in and n_out values. */
static bool add_filter(struct builder *b, int l, int which, int in, int64_t n_in, int last, int64_t n_out, int room,
                       int out)
{
    const int before = pp_plan_linear(b->p, b->s, n_out, n_in, b->err, "blk.%d.filter_%d_last", l, which + 1);
    const int own = before < 0 ? -1 : pp_plan_linear(b->p, b->s, n_out, n_in, b->err, "blk.%d.filter_%d", l, which + 1);
    if (own < 0 || !add_previous(b, l, in, n_in, which, last))
        return false;
    add_linear(b, l, before, last, out);
    add_linear(b, l, own, in, room);
    add_to(b, l, room, out);
    return true;
}

bool pp_filtered_heads(struct builder *b, int l)
{
    const int64_t n = b->hp->n_embd, dim = b->shape.head_dim;
    const int q = pp_plan_linear(b->p, b->s, b->n_q, n, b->err, "blk.%d.attn_q", l);
    const int k = q < 0 ? -1 : pp_plan_linear(b->p, b->s, b->n_kv, n, b->err, "blk.%d.attn_k", l);
    const int v = k < 0 ? -1 : pp_plan_linear(b->p, b->s, b->n_v, n, b->err, "blk.%d.attn_v", l);
    struct pp_op norm = {.kind = PP_OP_NORM, .layer = l, .scale = FILTER_EPS, .in = b->filtered, .in2 = NONE,
                         .out = b->filtered};
    if (v < 0 || !add_filter(b, l, 0, b->normalised, n, b->filter_prev, n / 2, b->filter_part, b->filter_half) ||
        !add_filter(b, l, 1, b->filter_half, n / 2, b->filter_part, n, b->delta, b->filtered) ||
        !(norm.weight = pp_plan_tensor(b->s, 0, n, b->err, "blk.%d.filter_norm.weight", l)))
        return false;
    add_to(b, l, b->normalised, b->filtered);
    add(b, norm);
    add_linear(b, l, q, b->filtered, pp_plan_part(b->p, b->filter_qk, 0, b->n_q));
    add_linear(b, l, k, b->filtered, pp_plan_part(b->p, b->filter_qk, b->n_q, b->n_kv));
    add_take(b, l, b->filter_qk, 2 * dim, 0, dim, b->q);
    add_take(b, l, b->filter_qk, 2 * dim, dim, dim, b->k);
    add_linear(b, l, v, b->normalised, b->v);
    return true;
}

void pp_filter_slots(struct builder *b)
{
    const int64_t n = b->hp->n_embd;
    b->filter_prev = pp_plan_slot(b->p, n);
    b->filter_half = pp_plan_slot(b->p, n / 2);
    b->filter_part = pp_plan_slot(b->p, n / 2);
    b->filtered = pp_plan_slot(b->p, n);
    b->filter_qk = pp_plan_slot(b->p, b->n_q + b->n_kv);
}
