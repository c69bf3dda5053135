/* decoder_difference.c - differential attention (arXiv 2410.05258) as in DiffLlama: the second half of the heads sees
 * the same values as the first half, and its output, times lambda, a number of the layer, is subtracted from that of
 * the first half. A head's values are two ordinary heads of values side by side. So there are half as many heads of
 * results, each twice as wide; they are normalised (RMSNorm without weights) and multiplied by 1 - lambda_init.
 *
 * In Phi 4 Flash (arXiv 2507.06607) heads of the two kinds alternate instead of being halves, so that a pair of values
 * is adjacent already, and norms have weights. Motif (arXiv 2508.09148) is the same with rotated heads. In Motif 2
 * (arXiv 2510.06949) queries come in groups whose last one is of the second kind. We repeat it as often as there are
 * others in its group, so that all heads of keys have the same number of queries. */
#include <math.h>

#include "engine/arch/decoder_int.h"
#include "engine/base/mem.h"
#include "engine/rows.h"

static const float WEIGHTED_EPS = 1e-5f; /* of norms with weights, whatever the model's epsilon is */

/* lambda_init, the layer's constant. */
static double lambda_init(const struct builder *b, int l)
{
    return 0.8 - 0.6 * exp(-0.3 * (b->hp->lambda_of_previous ? l - 1 : l));
}

/* exp(lambda_q . lambda_k), for the pair of vectors `which`. */
static bool find_lambda_term(struct builder *b, int l, int which, double *factor)
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
        pp_fail(b->err, PP_ERR_FORMAT, "blk.%d.attn_lambda_q%d and attn_lambda_k%d give NaN or infinity", l,
                which, which);
        return false;
    }
    return good;
}

/* Sorts alternating heads: all of the first kind, then all of the second; n values from one slot to another. */
static void split_alternating(struct builder *b, int l, int in, int64_t n, int out)
{
    const int64_t dim = b->shape.head_dim;
    for (int64_t i = 0; i < 2; i++)
        add_take(b, l, in, 2 * dim, i * dim, dim, pp_plan_part(b->p, out, i * n / 2, n / 2));
}

/* The number of queries of the first kind in a group. */
static int64_t queries_per_noise_head(const struct builder *b)
{
    return b->hp->n_noise_head ? b->shape.n_head / 2 / b->hp->n_noise_head : 1;
}

int64_t pp_difference_queries(const struct builder *b)
{
    return b->hp->n_noise_head ? b->n_q / 2 + b->hp->n_noise_head * b->shape.head_dim : b->n_q;
}

static void add_alternating_heads(struct builder *b, int l)
{
    const int64_t dim = b->shape.head_dim, n = queries_per_noise_head(b), half = b->n_q / 2;
    add_take(b, l, b->tiled, (n + 1) * dim, 0, n * dim, pp_plan_part(b->p, b->q, 0, half));
    add(b, (struct pp_op){.kind = PP_OP_TAKE, .layer = l, .in = b->tiled, .in2 = NONE,
                          .out = pp_plan_part(b->p, b->q, half, half), .period = (n + 1) * dim, .at = n * dim,
                          .count = dim, .times = n});
    if (b->hp->layer[l] & PP_LAYER_SHARED)
        return;
    split_alternating(b, l, b->pairs, b->n_kv, b->k);
    add_repeat(b, l, b->values, b->n_kv, 2, b->v);
}

bool pp_difference_values(struct builder *b, int l)
{
    const int64_t dim = b->shape.head_dim, half = b->shape.n_head_kv / 2;
    if (b->hp->heads_alternate) {
        add_alternating_heads(b, l);
        return true;
    }
    for (int64_t i = 0; i < half; i++) /* heads i and i + half side by side */
        add_take(b, l, b->values, half * dim, i * dim, dim, pp_plan_part(b->p, b->pairs, 2 * i * dim, 2 * dim));
    add_repeat(b, l, b->pairs, b->n_kv, 2, b->v);
    return true;
}

bool pp_difference_result(struct builder *b, int l)
{
    const int64_t n = b->n_att / 2, dim = 2 * b->shape.head_dim;
    const int first = pp_plan_part(b->p, b->att, 0, n), second = pp_plan_part(b->p, b->att, n, n);
    double terms[2];
    float *numbers;
    if (!find_lambda_term(b, l, 1, &terms[0]) || !find_lambda_term(b, l, 2, &terms[1]))
        return false;
    const struct pp_tensor *norm_weight = pp_plan_numbers(b->p, dim, &numbers, b->err), *weight = NULL;
    if (!norm_weight || (b->hp->heads_alternate &&
                         (!(weight = pp_plan_tensor(b->s, 0, dim, b->err, "blk.%d.attn_sub_norm.weight", l)) ||
                          pp_tensor_floats(weight, 0, 1, numbers, b->err) != PP_OK)))
        return false;
    for (int64_t i = 0; i < dim; i++)
        numbers[i] = (float)((1 - lambda_init(b, l)) * (weight ? (double)numbers[i] : 1));
    const float lambda = (float)(terms[0] - terms[1] + lambda_init(b, l));
    if (lambda != 0.0f)
        add_sum(b, l, -lambda, second, first);
    add(b, (struct pp_op){.kind = PP_OP_HEAD_NORM, .layer = l, .scale = weight ? WEIGHTED_EPS : 0,
                          .weight = norm_weight, .in = first, .in2 = NONE, .out = first});
    return true;
}

void pp_difference_slots(struct builder *b)
{
    b->values = pp_plan_slot(b->p, b->n_kv);
    b->pairs = pp_plan_slot(b->p, b->n_kv);
    if (b->hp->heads_alternate)
        b->tiled = pp_plan_slot(b->p, pp_difference_queries(b));
}
