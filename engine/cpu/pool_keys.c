/* pool_keys.c - stages that pool the keys of a block of positions for an index (PP_OP_POOL). Each value becomes its
 * mean over the block's positions up to the row's own: a plain mean, or one weighted by the softmax of the value's
 * scores at these positions.
 *
 * A position's keys are cached as a row, followed by their scores. As in a convolution, columns are independent: they
 * are divided among threads, each of which takes the rows of the batch one after the other. A few hundred values over a
 * few positions are too little work to justify kernels for each instruction set. */
#include <math.h>
#include <string.h>

#include "engine/cpu/program.h"

enum {
    FEW_VALUES = 1 << 10, /* of all rows together: one item computes them all */
    COLUMNS = 16,         /* of an item, if there are more */
};

enum pp_code pp_cpu_pool_add(struct pp_cpu *c, struct stage *s, const struct pp_op *op, struct pp_error *err)
{
    s->in = op->in;
    s->out = op->out;
    s->tier = op->tier;
    s->layer = op->tier_layer;
    s->n_taps = (int)op->period;
    s->width = c->model->plan.slots[op->out].width;
    if (op->weight)
        s->taps = pp_cpu_float_vector(c, op->weight, err);
    return s->taps || !op->weight ? PP_OK : err->code;
}

static int64_t columns_of_item(const struct stage *s, int m)
{
    return m * s->width <= FEW_VALUES ? s->width : COLUMNS;
}

int pp_cpu_pool_items(const struct stage *s, int m)
{
    const int64_t columns = columns_of_item(s, m);
    return (int)((s->width + columns - 1) / columns);
}

/* The plain mean of one value in the rows at[0 .. n - 1]. */
static float mean_of(float *const *at, int n, int64_t column)
{
    float sum = 0;
    for (int j = 0; j < n; j++)
        sum += at[j][column];
    return sum / (float)n;
}

/* The same weighted by the softmax of the value's scores, each `width` values later in its row, plus s->taps. */
static float weighted_mean_of(const struct stage *s, float *const *at, int n, int64_t column)
{
    const int64_t stride = pp_cpu_padded(s->width);
    float share[PP_MAX_TAPS], largest = -INFINITY, sum = 0, mean = 0;
    for (int j = 0; j < n; j++) {
        share[j] = at[j][s->width + column] + s->taps[j * stride + column];
        largest = fmaxf(largest, share[j]);
    }
    for (int j = 0; j < n; j++)
        sum += share[j] = expf(share[j] - largest);
    for (int j = 0; j < n; j++)
        mean += share[j] / sum * at[j][column];
    return mean;
}

void pp_cpu_pool_item(struct pp_cpu *c, const struct stage *s, int m, int item)
{
    const int64_t columns = columns_of_item(s, m), first = item * columns;
    const int64_t end = first + columns < s->width ? first + columns : s->width;
    const size_t bytes = (size_t)(end - first) * sizeof(float), scores = s->taps ? bytes : 0;
    for (int i = 0; i < m; i++) {
        const struct pp_batch_row *r = &c->batch->rows[i];
        const int n = (int)((pp_cpu_row_length(r) - 1) % s->n_taps) + 1; /* positions of the block up to the row's */
        const float *x = slot_row(c, s->in, i);
        float *at[PP_MAX_TAPS], *y = slot_row(c, s->out, i);
        pp_cpu_rows_before(c, s, r, n, at);
        memcpy(at[n - 1] + first, x + first, bytes);
        if (scores)
            memcpy(at[n - 1] + s->width + first, x + s->width + first, scores);
        for (int64_t k = first; k < end; k++)
            y[k] = s->taps ? weighted_mean_of(s, at, n, k) : mean_of(at, n, k);
    }
}
