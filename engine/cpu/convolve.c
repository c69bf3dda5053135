/* convolve.c - stages of short convolutions: each value of a row is a weighted sum of its inputs at the last few
 * positions, which are cached as rows.
 *
 * Columns are independent and divided among threads. Each thread takes the rows of the batch in order, so that a row's
 * predecessors are in the cache whether they are from this pass or an earlier one. */
#include <string.h>

#include "engine/cpu/program.h"
#include "engine/quant.h"

enum {
    FEW_VALUES = 1 << 14,   /* up to so many values in all rows are not divided among threads */
    COLUMNS = 256,          /* of an item otherwise: a multiple of all vectors, and its taps stay in the L1 cache */
};

/* Converts the weights of a stage, [width or fewer channels, n_taps], to float32, transposed to [n_taps, stride]. */
static enum pp_code add_taps(struct pp_cpu *c, struct stage *s, const struct pp_op *op, struct pp_error *err)
{
    const struct pp_tensor *t = op->weight;
    const int64_t width = s->width, each = width / t->ne[1], stride = pp_cpu_padded(width);
    const int n_taps = s->n_taps;
    float *taps = pp_cpu_memory_keep(c, n_taps * stride, sizeof *taps), one[PP_MAX_TAPS];
    if (!taps)
        return pp_fail_nomem(err, t->name);
    for (int64_t r = 0; r < width; r++) {
        const uint8_t *row = (const uint8_t *)t->data + (size_t)(r / each) * pp_type_row_bytes(t->type, n_taps);
        if (!pp_row_finite(t->type, row, n_taps))
            return pp_fail_values(t, err);
        pp_dequantize_row(t->type, row, one, n_taps);
        for (int j = 0; j < n_taps; j++)
            taps[j * stride + r] = one[j];
    }
    s->taps = taps;
    return PP_OK;
}

enum pp_code pp_cpu_convolve_add(struct pp_cpu *c, struct stage *s, const struct pp_op *op, struct pp_error *err)
{
    s->tier = op->tier;
    s->layer = op->tier_layer;
    s->n_taps = op->weight ? (int)op->weight->ne[0] : (int)op->window;
    s->tap_step = op->period ? (int)op->period : 1;
    s->width = c->model->plan.slots[op->in].width;
    if (op->bias && !(s->bias = pp_cpu_float_vector(c, op->bias, err)))
        return err->code;
    return op->weight ? add_taps(c, s, op, err) : PP_OK;
}

void pp_cpu_rows_before(const struct pp_cpu *c, const struct stage *s, const struct pp_batch_row *r, int n,
                        float *at[PP_MAX_TAPS])
{
    const struct pp_kv_layout *kv = &c->attend[s->tier].kv;
    uint64_t tree = r->tree_mask;
    int64_t before = tree ? r->tree_base : r->slot + 1; /* slots below this are the row's consecutive ancestors */
    for (int j = n - 1; j >= 0; j--) {
        int64_t slot;
        if (tree) {
            const int newest = 63 - __builtin_clzll(tree);
            tree &= ~((uint64_t)1 << newest);
            slot = r->tree_base + newest;
        } else {
            slot = before > 0 ? --before : -1;
        }
        at[j] = slot < 0 ? NULL : pp_kv_row(kv, r->pages[s->tier][slot / PP_PAGE_TOKENS], s->layer,
                                            (int)(slot % PP_PAGE_TOKENS));
    }
}

static int64_t columns_of_item(const struct stage *s, int m)
{
    return m * s->width <= FEW_VALUES ? s->width : COLUMNS;
}

int pp_cpu_convolve_items(const struct stage *s, int m)
{
    const int64_t columns = columns_of_item(s, m);
    return (int)((s->width + columns - 1) / columns);
}

/* Convolves n columns with taps of this row, [n, n_taps], which are transposed for the kernel COLUMNS at a time. */
static void convolve_by_row_taps(struct pp_cpu *c, const struct stage *s, float *const *at, const float *taps,
                                 int64_t n, float *y)
{
    float transposed[PP_MAX_TAPS * COLUMNS], *x[PP_MAX_TAPS];
    for (int64_t first = 0; first < n; first += COLUMNS) {
        const int64_t few = n - first < COLUMNS ? n - first : COLUMNS, whole = pp_cpu_padded(few);
        for (int j = 0; j < s->n_taps; j++) {
            float *column = transposed + j * COLUMNS;
            for (int64_t i = 0; i < few; i++)
                column[i] = taps[(first + i) * s->n_taps + j];
            memset(column + few, 0, (size_t)(whole - few) * sizeof *column);
            x[j] = at[j] ? at[j] + first : NULL;
        }
        c->ops->convolve(s->n_taps, x, transposed, COLUMNS, NULL, few, y + first);
    }
}

void pp_cpu_convolve_item(struct pp_cpu *c, const struct stage *s, int m, int item)
{
    const int64_t columns = columns_of_item(s, m), first = item * columns, stride = pp_cpu_padded(s->width);
    const int64_t n = s->width - first < columns ? s->width - first : columns;
    const int window = (s->n_taps - 1) * s->tap_step + 1;
    for (int i = 0; i < m; i++) {
        float *at[PP_MAX_TAPS], *y = slot_row(c, s->out, i) + first;
        const float *x = slot_row(c, s->in, i) + first;
        pp_cpu_rows_before(c, s, &c->batch->rows[i], window, at);
        for (int j = 0; j < s->n_taps; j++)
            at[j] = at[j * s->tap_step] ? at[j * s->tap_step] + first : NULL;
        if (s->in2 >= 0)
            c->ops->multiply(x, slot_row(c, s->in2, i) + first, n, at[s->n_taps - 1]);
        else
            memcpy(at[s->n_taps - 1], x, (size_t)n * sizeof *x);
        if (s->taps)
            c->ops->convolve(s->n_taps, at, s->taps + first, stride, s->bias ? s->bias + first : NULL, n, y);
        else
            convolve_by_row_taps(c, s, at, slot_row(c, s->row_taps, i) + first * s->n_taps, n, y);
        if (s->epilogue == EPILOGUE_APPLY)
            c->ops->apply(s->fn, s->scale, y, n, y);
        if (s->gate >= 0)
            c->ops->multiply(y, slot_row(c, s->gate, i) + first, n, y);
    }
}
