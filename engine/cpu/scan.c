/* scan.c - stages of layers whose states are made again step by step (kv.h), because each value decays by itself:
 * Mamba's selective scan.
 *
 * A row leaves behind what it brings, and takes a step from the state behind the position before it. If that is not the
 * page's latest one, because tokens were taken back or a page was copied, the steps from the page's beginning are taken
 * again first: they have the same bits. No head needs another one's: an item takes one of them, and the rows of the
 * batch one after the other. */
#include <string.h>

#include "engine/cpu/program.h"
#include "engine/quant.h"

/* --- weights ---------------------------------------------------------------------------------------------------- */

/* [channels, key_dim] as [n_head, key_dim, value_dim]; NULL: *err says why. */
static const float *turned_rate(struct pp_cpu *c, const struct pp_tensor *t, const struct pp_state_shape *shape,
                                struct pp_error *err)
{
    const int64_t n = t->ne[0], width = shape->value_dim;
    float *rate = pp_cpu_memory_keep(c, n * t->ne[1], sizeof *rate), *row = pp_cpu_memory_keep(c, n, sizeof *row);
    if (!rate || !row) {
        pp_fail_nomem(err, t->name);
        return NULL;
    }
    for (int64_t r = 0; r < t->ne[1]; r++) {
        const uint8_t *from = (const uint8_t *)t->data + (size_t)r * pp_type_row_bytes(t->type, n);
        if (!pp_row_finite(t->type, from, n)) {
            pp_fail_values(t, err);
            return NULL;
        }
        pp_dequantize_row(t->type, from, row, n);
        for (int64_t d = 0; d < n; d++)
            rate[(r / width * n + d) * width + r % width] = row[d];
    }
    return rate;
}

enum pp_code pp_cpu_scan_add(struct pp_cpu *c, struct stage *s, const struct pp_op *op, struct pp_error *err)
{
    const struct pp_recurrence *r = &c->model->plan.recurrences[op->recurrence];
    s->in = op->in;
    s->out = op->out;
    s->tier = op->tier;
    s->layer = op->tier_layer;
    s->recurrence = r;
    if (!(s->rate = turned_rate(c, r->rate, &r->shape, err)) ||
        !(s->direct = pp_cpu_float_vector(c, r->direct, err)))
        return err->code;
    return PP_OK;
}

/* --- items ------------------------------------------------------------------------------------------------------ */

int pp_cpu_scan_items(const struct stage *s)
{
    return s->recurrence->shape.n_head;
}

int pp_cpu_scan_at_once(int m)
{
    enum { FEW_ROWS = 8, HEADS = 4 };
    return m <= FEW_ROWS ? HEADS : 1;
}

/* A head in a stage. */
struct scan {
    struct pp_cpu *c;
    const struct stage *s;
    const struct pp_kv_layout *kv;
    int head;
};

static struct pp_kv_steps page_of(const struct scan *x, uint8_t *page)
{
    return pp_kv_steps_head(x->kv, page, x->s->layer, x->head);
}

/* The step of a position that brings these inputs: D, D v, and the key. Without a query it only changes the state. */
static struct pp_scan_step step_of(const struct scan *x, const float *inputs, float *state)
{
    const struct pp_state_shape *shape = &x->s->recurrence->shape;
    const int64_t key = shape->key_dim, width = shape->value_dim;
    return (struct pp_scan_step){.key_dim = key, .width = width, .rate = x->s->rate + x->head * key * width,
                                 .step = inputs, .u = inputs + width, .key = inputs + 2 * width, .state = state};
}

/* What a row brings. */
static void take_inputs(const struct scan *x, int row, float *inputs)
{
    const struct pp_recurrence *r = x->s->recurrence;
    const int64_t width = r->shape.value_dim, at = x->head * width;
    const float *step = slot_row(x->c, r->decay, row) + at;
    memcpy(inputs, step, (size_t)width * sizeof *step);
    x->c->ops->multiply(step, slot_row(x->c, r->v, row) + at, width, inputs + width);
    memcpy(inputs + 2 * width, slot_row(x->c, r->k, row), (size_t)r->shape.key_dim * sizeof *inputs);
}

/* The steps of a page's first n positions, from the state at its beginning. */
static void repeat(const struct scan *x, const struct pp_kv_steps *page, int n, float *state)
{
    const struct pp_state_shape *shape = &x->s->recurrence->shape;
    memcpy(state, page->start, (size_t)shape->key_dim * (size_t)shape->value_dim * sizeof *state);
    for (int i = 0; i < n; i++) {
        const struct pp_scan_step step = step_of(x, page->inputs + i * shape->n_inputs, state);
        x->c->ops->scan_step(&step);
    }
}

/* The state at a page's beginning. before: the page before it, which is full; or NULL. */
static void begin_page(const struct scan *x, uint8_t *before, const struct pp_kv_steps *page)
{
    const struct pp_state_shape *shape = &x->s->recurrence->shape;
    const size_t bytes = (size_t)shape->key_dim * (size_t)shape->value_dim * sizeof *page->start;
    const struct pp_kv_steps last = before ? page_of(x, before) : (struct pp_kv_steps){0};
    if (!before)
        memset(page->start, 0, bytes);
    else if (*last.n == PP_PAGE_TOKENS)
        memcpy(page->start, last.latest, bytes);
    else
        repeat(x, &last, PP_PAGE_TOKENS, page->start);
    *page->n = -1;
}

void pp_cpu_scan_item(struct pp_cpu *c, const struct stage *s, int m, int item)
{
    const struct pp_recurrence *r = s->recurrence;
    const struct scan x = {.c = c, .s = s, .kv = &c->attend[s->tier].kv, .head = item};
    const int width = r->shape.value_dim, first = item * width;
    for (int i = 0; i < m; i++) {
        const struct pp_batch_row *row = &c->batch->rows[i];
        const int64_t p = row->slot / PP_PAGE_TOKENS;
        const int at = (int)(row->slot % PP_PAGE_TOKENS);
        uint8_t *const *pages = row->pages[s->tier];
        const struct pp_kv_steps page = page_of(&x, pages[p]);
        float *inputs = page.inputs + at * r->shape.n_inputs, *out = slot_row(c, s->out, i) + first;
        if (at == 0)
            begin_page(&x, p > 0 ? pages[p - 1] : NULL, &page);
        if (at == 0 || *page.n != at)
            repeat(&x, &page, at, page.latest);
        take_inputs(&x, i, inputs);
        struct pp_scan_step step = step_of(&x, inputs, page.latest);
        step.query = slot_row(c, r->q, i);
        step.direct = s->direct + first;
        step.v = slot_row(c, r->v, i) + first;
        step.out = out;
        c->ops->scan_step(&step);
        *page.n = at + 1;
        c->ops->gate(PP_FN_SILU, 0, slot_row(c, s->in, i) + first, out, width, out);
    }
}
