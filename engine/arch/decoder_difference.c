/* decoder_difference.c - attention that is the difference of two (arXiv 2410.05258) as DiffLlama has it: the second
 * half of the heads sees the same values as the first, and what it gives is taken off what the first half gives, times
 * a number of the layer. A head's values are two of the usual kind side by side, so that there are half as many heads
 * of results, each twice as long; they are normed without weights. */
#include <math.h>

#include "engine/arch/decoder_int.h"
#include "engine/base/mem.h"
#include "engine/rows.h"

/* What each layer's number begins with, and what is left of results: a layer's own constant, and 1 less it. */
static double initial(int l)
{
    return 0.8 - 0.6 * exp(-0.3 * l);
}

/* The exponential of what two vectors have in common. False: *err is set. */
static bool find_factor(struct builder *b, int l, int which, double *factor)
{
    const int64_t n = b->shape.head_dim;
    const struct pp_tensor *of[2] = {pp_plan_tensor(b->s, 0, n, b->err, "blk.%d.attn_lambda_q%d", l, which), NULL};
    float *v = of[0] ? pp_calloc(2 * (size_t)n, sizeof *v) : NULL;
    double sum = 0;
    if (of[0] && !v)
        pp_fail_nomem(b->err, "the plan of attention");
    bool good = v && (of[1] = pp_plan_tensor(b->s, 0, n, b->err, "blk.%d.attn_lambda_k%d", l, which)) != NULL;
    for (int i = 0; i < 2 && good; i++)
        good = pp_tensor_floats(of[i], 0, 1, v + i * n, b->err) == PP_OK;
    for (int64_t i = 0; i < n && good; i++)
        sum += (double)v[i] * (double)v[n + i];
    pp_free(v);
    *factor = exp(sum);
    if (good && !isfinite(*factor)) {
        pp_fail(b->err, PP_ERR_FORMAT, "blk.%d.attn_lambda_q%d and attn_lambda_k%d make no number of the layer", l,
                which, which);
        return false;
    }
    return good;
}

bool pp_difference_values(struct builder *b, int l)
{
    const int64_t dim = b->shape.head_dim, half = b->shape.n_head_kv / 2;
    for (int64_t i = 0; i < half; i++) /* heads i and i + half side by side */
        add_take(b, l, b->values, half * dim, i * dim, dim, pp_plan_part(b->p, b->pairs, 2 * i * dim, 2 * dim));
    add_repeat(b, l, b->pairs, b->n_kv, 2, b->v);
    return true;
}

bool pp_difference_result(struct builder *b, int l)
{
    const int64_t n = b->n_att / 2, dim = 2 * b->shape.head_dim;
    const int first = pp_plan_part(b->p, b->att, 0, n), second = pp_plan_part(b->p, b->att, n, n);
    double factors[2];
    float *numbers;
    if (!find_factor(b, l, 1, &factors[0]) || !find_factor(b, l, 2, &factors[1]))
        return false;
    const struct pp_tensor *left = pp_plan_numbers(b->p, dim, &numbers, b->err);
    for (int64_t i = 0; left && i < dim; i++)
        numbers[i] = (float)(1 - initial(l));
    const float taken = (float)(factors[0] - factors[1] + initial(l));
    if (taken != 0.0f)
        add(b, (struct pp_op){.kind = PP_OP_ADD, .layer = l, .scale = -taken, .in = second, .in2 = NONE,
                              .out = first});
    add(b, (struct pp_op){.kind = PP_OP_HEAD_NORM, .layer = l, .weight = left, .in = first, .in2 = NONE,
                          .out = first});
    return left != NULL;
}

void pp_difference_slots(struct builder *b)
{
    b->values = pp_plan_slot(b->p, b->n_kv);
    b->pairs = pp_plan_slot(b->p, b->n_kv);
}
