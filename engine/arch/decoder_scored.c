/* decoder_scored.c - Doge's dynamic mask attention (arXiv 2412.11834): keys have a score of their own. A matrix
 * projects a position's values, of all heads, to a number n for each KV head, and exp(a softplus(n)), with the head's
 * a, is added to all attention scores of that position.
 *
 * We append it to the key, and a constant to the query, so that their product adds it and the cache keeps it. It is
 * repeated PP_KEY_SCORE times, which fills a block of a quantised cache: a block of equal values loses nothing. */
#include <math.h>

#include "engine/arch/decoder_int.h"

/* A part of head h in a slot of extended heads. */
static int head_part(struct builder *b, int slot, int64_t h, int64_t at, int64_t width)
{
    return pp_plan_part(b->p, slot, h * (b->shape.head_dim + PP_KEY_SCORE) + at, width);
}

/* Copies head h of n into a slot of extended heads. */
static void add_spread(struct builder *b, int l, int in, int64_t n, int64_t h, int out)
{
    const int64_t dim = b->shape.head_dim;
    add_take(b, l, in, n * dim, h * dim, dim, head_part(b, out, h, 0, dim));
}

/* Extends queries. The constants are the same for every row: a table of one row is looked up. */
bool pp_scored_queries(struct builder *b, int l)
{
    const int64_t wide = b->shape.head_dim + PP_KEY_SCORE, n = b->shape.n_head * wide;
    const float scale = b->hp->attn_scale != 0.0f ? b->hp->attn_scale : 1.0f / sqrtf((float)b->shape.head_dim);
    float *numbers;
    if (!b->constants) {
        b->constants = pp_plan_numbers(b->p, n, &numbers, b->err);
        for (int64_t i = 0; b->constants && i < n; i++)
            numbers[i] = i % wide < b->shape.head_dim ? 0 : 1 / scale / PP_KEY_SCORE;
    }
    add(b, (struct pp_op){.kind = PP_OP_LOOKUP, .by_position = true, .layer = l, .weight = b->constants, .in = NONE,
                          .in2 = NONE, .out = b->wide_q});
    for (int64_t h = 0; h < b->shape.n_head; h++)
        add_spread(b, l, b->q, b->shape.n_head, h, b->wide_q);
    return b->constants != NULL;
}

bool pp_scored_keys(struct builder *b, int l)
{
    const int64_t n = b->shape.n_head_kv;
    const int proj = pp_plan_linear(b->p, b->s, n, b->n_v, b->err, "blk.%d.attn_key_score", l);
    const struct pp_tensor *a = proj < 0 ? NULL : pp_plan_tensor(b->s, 0, n, b->err, "blk.%d.attn_key_score_a", l);
    if (!a)
        return false;
    add_linear(b, l, proj, b->v, b->key_scores);
    add_fn(b, l, PP_FN_SOFTPLUS, 0, b->key_scores, b->key_scores);
    add(b, (struct pp_op){.kind = PP_OP_MULTIPLY, .weight = a, .layer = l, .in = b->key_scores, .in2 = NONE,
                          .out = b->key_scores});
    add_fn(b, l, PP_FN_EXP, 0, b->key_scores, b->key_scores);
    for (int64_t h = 0; h < n; h++) {
        add_spread(b, l, b->k, n, h, b->wide_k);
        add(b, (struct pp_op){.kind = PP_OP_TAKE, .layer = l, .in = b->key_scores, .in2 = NONE, .period = n, .at = h,
                              .count = 1, .times = PP_KEY_SCORE,
                              .out = head_part(b, b->wide_k, h, b->shape.head_dim, PP_KEY_SCORE)});
    }
    return true;
}

void pp_scored_slots(struct builder *b)
{
    const int64_t wide = b->shape.head_dim + PP_KEY_SCORE;
    b->wide_q = pp_plan_slot(b->p, b->shape.n_head * wide);
    b->wide_k = pp_plan_slot(b->p, b->shape.n_head_kv * wide);
    b->key_scores = pp_plan_slot(b->p, b->shape.n_head_kv);
}
