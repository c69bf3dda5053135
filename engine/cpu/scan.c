/* scan.c - recurrent layers whose state is computed step by step (kv.h), because the decay of a head is more than a
 * single number: Mamba's selective scan, RWKV 4, 6 and 7, gated linear attention, Kimi Linear's delta rule, and
 * Griffin's recurrence.
 *
 * A row stores its inputs, and makes one step from the state after the position before it. If the page's latest state
 * is another one, because tokens were removed or a page was copied, the steps from the page's beginning are repeated
 * first, which gives the same bits. Heads are independent: an item processes one head, and for it the rows of the batch
 * one after the other. */
#include <math.h>
#include <string.h>

#include "engine/cpu/program.h"
#include "engine/quant.h"

/* --- weights ---------------------------------------------------------------------------------------------------- */

/* Transposes the rate from [channels, key_dim] to [n_head, key_dim, value_dim]; NULL: *err is set. */
static const float *transposed_rate(struct pp_cpu *c, const struct pp_tensor *t, const struct pp_state_shape *shape,
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

/* Sets the norm of each head's output in RWKV, if there is one. */
static enum pp_code add_head_norm(struct pp_cpu *c, struct stage *s, const struct pp_op *op, struct pp_error *err)
{
    if (!op->weight)
        return PP_OK;
    s->norm = (struct norm){.centred = true, .stride = s->recurrence->shape.value_dim, .eps = op->scale};
    if (!(s->norm.weight = pp_cpu_float_vector(c, op->weight, err)) ||
        !(s->norm.bias = pp_cpu_float_vector(c, op->bias, err)))
        return err->code;
    return PP_OK;
}

/* RWKV 7: the norm, and the weights with which RMSNorm scales a vector to length 1. */
static enum pp_code add_rwkv7(struct pp_cpu *c, struct stage *s, const struct pp_op *op, struct pp_error *err)
{
    const int n = s->recurrence->shape.key_dim;
    float *unit = pp_cpu_memory_keep(c, n, sizeof *unit);
    if (!unit)
        return pp_fail_nomem(err, "the model's program");
    for (int i = 0; i < n; i++)
        unit[i] = (float)(1 / sqrt(n));
    s->unit_key = unit;
    return add_head_norm(c, s, op, err);
}

static enum pp_code add_kda(struct pp_cpu *c, struct stage *s, const struct pp_op *op, struct pp_error *err)
{
    const struct pp_recurrence *r = s->recurrence;
    if (!(s->rate = pp_cpu_recur_numbers(c, r->rate, err)) ||
        !(s->norm.weight = pp_cpu_float_vector(c, op->weight, err)))
        return err->code;
    s->norm.eps = op->scale;
    return pp_cpu_recur_units(c, s, r->shape.key_dim, err);
}

/* Griffin: the factor of the recurrence gate's sigmoid in the logarithm of the decay, -c softplus(parameter). */
static enum pp_code add_lru(struct pp_cpu *c, struct stage *s, struct pp_error *err)
{
    const struct pp_recurrence *r = s->recurrence;
    const int64_t n = r->rate->ne[0];
    float *rate = pp_cpu_memory_keep(c, n, sizeof *rate);
    const float *from = pp_cpu_recur_numbers(c, r->rate, err);
    if (!from || !(s->bias = pp_cpu_recur_numbers(c, r->bias, err)) ||
        !(s->direct = pp_cpu_recur_numbers(c, r->direct, err)))
        return err->code;
    if (!rate)
        return pp_fail_nomem(err, "the model's program");
    for (int64_t i = 0; i < n; i++) /* softplus; x itself where exp might overflow */
        rate[i] = -8 * (from[i] > 20 ? from[i] : log1pf(expf(from[i])));
    s->rate = rate;
    return PP_OK;
}

enum pp_code pp_cpu_scan_add(struct pp_cpu *c, struct stage *s, const struct pp_op *op, struct pp_error *err)
{
    const struct pp_recurrence *r = s->recurrence;
    if (r->kind == PP_RECUR_KDA)
        return add_kda(c, s, op, err);
    if (r->kind == PP_RECUR_LRU)
        return add_lru(c, s, err);
    if (r->kind == PP_RECUR_GLA)
        return PP_OK;
    if (!(s->direct = pp_cpu_recur_numbers(c, r->direct, err)))
        return err->code;
    if (r->kind == PP_RECUR_WKV)
        return (s->rate = pp_cpu_recur_numbers(c, r->rate, err)) ? PP_OK : err->code;
    if (r->kind == PP_RECUR_RWKV6)
        return add_head_norm(c, s, op, err);
    if (r->kind == PP_RECUR_RWKV7)
        return add_rwkv7(c, s, op, err);
    return (s->rate = transposed_rate(c, r->rate, &r->shape, err)) ? PP_OK : err->code;
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

/* --- Mamba's: a position's inputs are D, D v, and the key ------------------------------------------------------- */

static void take_mamba(const struct scan *x, int row, float *inputs)
{
    const struct pp_recurrence *r = x->s->recurrence;
    const int64_t width = r->shape.value_dim, at = x->head * width;
    const float *step = slot_row(x->c, r->decay, row) + at;
    memcpy(inputs, step, (size_t)width * sizeof *step);
    x->c->ops->multiply(step, slot_row(x->c, r->v, row) + at, width, inputs + width);
    memcpy(inputs + 2 * width, slot_row(x->c, r->k, row), (size_t)r->shape.key_dim * sizeof *inputs);
}

static void step_mamba(const struct scan *x, const float *inputs, int row, float *state, float *out)
{
    const struct pp_recurrence *r = x->s->recurrence;
    const int64_t key = r->shape.key_dim, width = r->shape.value_dim, first = x->head * width;
    struct pp_scan_step step = {.key_dim = key, .width = width, .rate = x->s->rate + first * key, .step = inputs,
                                .u = inputs + width, .key = inputs + 2 * width, .state = state};
    if (row >= 0) {
        step.query = slot_row(x->c, r->q, row);
        step.direct = x->s->direct + first;
        step.v = slot_row(x->c, r->v, row) + first;
        step.out = out;
    }
    x->c->ops->scan_step(&step);
    if (row >= 0 && x->s->in >= 0)
        x->c->ops->gate(PP_FN_SILU, 0, slot_row(x->c, x->s->in, row) + first, out, width, out);
}

/* --- RWKV 7's: decays, the key, `removal_key`, what is subtracted along it, and the value ------------------------- */

static const float UNIT_EPS = 1e-24f; /* of the squares of its length */

static void take_rwkv7(const struct scan *x, int row, float *inputs)
{
    const struct pp_recurrence *r = x->s->recurrence;
    const int64_t n = r->shape.key_dim, width = r->shape.value_dim, at = x->head * n;
    float *removal_key = inputs + 2 * n, *removal = inputs + 3 * n;
    memcpy(inputs, slot_row(x->c, r->decay, row) + at, (size_t)n * sizeof *inputs);
    memcpy(inputs + n, slot_row(x->c, r->k, row) + at, (size_t)n * sizeof *inputs);
    x->c->ops->rms_norm(slot_row(x->c, r->removal_key, row) + at, x->s->unit_key, UNIT_EPS / (float)n, n, removal_key);
    x->c->ops->multiply(removal_key, slot_row(x->c, r->beta, row) + at, n, removal);
    x->c->ops->apply(PP_FN_SCALE, -1, removal, n, removal);
    memcpy(inputs + 4 * n, slot_row(x->c, r->v, row) + x->head * width, (size_t)width * sizeof *inputs);
}

/* The weight of the row's own value in the output: the sum over the key's dimensions of direct k q, or of k q if there
 * is no `direct`. */
static float direct_part(const struct scan *x, int row)
{
    const struct pp_recurrence *r = x->s->recurrence;
    const int n = r->shape.key_dim, at = x->head * n;
    const float *q = slot_row(x->c, r->q, row) + at, *k = slot_row(x->c, r->k, row) + at;
    float sum = 0;
    for (int d = 0; d < n; d++)
        sum += q[d] * k[d] * (x->s->direct ? x->s->direct[at + d] : 1);
    return sum;
}

static void step_rwkv7(const struct scan *x, const float *inputs, int row, float *state, float *out)
{
    const struct pp_recurrence *r = x->s->recurrence;
    const int64_t n = r->shape.key_dim, width = r->shape.value_dim;
    const float *v = inputs + 4 * n;
    x->c->ops->delta_step(&(struct pp_delta_step){
        .key_dim = n, .width = width, .decay = inputs, .key = inputs + n, .removal_key = inputs + 2 * n,
        .removal = inputs + 3 * n, .v = v, .state = state,
        .query = row >= 0 ? slot_row(x->c, r->q, row) + x->head * n : NULL, .out = out});
    if (row < 0)
        return;
    if (x->s->norm.weight) {
        const struct norm norm = pp_cpu_norm_of_head(&x->s->norm, x->head);
        pp_cpu_norm(x->c, &norm, out, width, out);
    }
    x->c->ops->add_scaled(out, v, direct_part(x, row), width);
    if (x->s->in >= 0)
        x->c->ops->multiply(out, slot_row(x->c, x->s->in, row) + x->head * width, width, out);
}

/* --- RWKV 6's: decays, the key and the value ---------------------------------------------------------------------- */

static void take_rwkv6(const struct scan *x, int row, float *inputs)
{
    const struct pp_recurrence *r = x->s->recurrence;
    const int64_t n = r->shape.key_dim, width = r->shape.value_dim, at = x->head * n;
    memcpy(inputs, slot_row(x->c, r->decay, row) + at, (size_t)n * sizeof *inputs);
    memcpy(inputs + n, slot_row(x->c, r->k, row) + at, (size_t)n * sizeof *inputs);
    memcpy(inputs + 2 * n, slot_row(x->c, r->v, row) + x->head * width, (size_t)width * sizeof *inputs);
}

static void step_rwkv6(const struct scan *x, const float *inputs, int row, float *state, float *out)
{
    const struct pp_recurrence *r = x->s->recurrence;
    const int64_t n = r->shape.key_dim, width = r->shape.value_dim;
    const float *v = inputs + 2 * n;
    x->c->ops->decay_step(&(struct pp_delta_step){
        .key_dim = n, .width = width, .decay = inputs, .key = inputs + n, .v = v, .state = state,
        .query = row >= 0 ? slot_row(x->c, r->q, row) + x->head * n : NULL, .out = out});
    if (row < 0)
        return;
    const struct norm norm = pp_cpu_norm_of_head(&x->s->norm, x->head);
    x->c->ops->add_scaled(out, v, direct_part(x, row), width);
    pp_cpu_norm(x->c, &norm, out, width, out);
    x->c->ops->gate(PP_FN_SILU, 0, slot_row(x->c, x->s->in, row) + x->head * width, out, width, out);
}

enum { MOST_KEYS = 1 << 10 }; /* values of a key: hparams_check.c */

/* Gated linear attention, whose inputs are those of RWKV 6. The output comes from the state after the position:
 * (a S)' q + (k . q) v, where (a S)' q = S' (a q). */
static void step_gla(const struct scan *x, const float *inputs, int row, float *state, float *out)
{
    const struct pp_recurrence *r = x->s->recurrence;
    const int64_t n = r->shape.key_dim, width = r->shape.value_dim;
    float query[MOST_KEYS];
    if (row >= 0)
        x->c->ops->multiply(slot_row(x->c, r->q, row) + x->head * n, inputs, n, query);
    x->c->ops->decay_step(&(struct pp_delta_step){
        .key_dim = n, .width = width, .decay = inputs, .key = inputs + n, .v = inputs + 2 * n, .state = state,
        .query = row >= 0 ? query : NULL, .out = out});
    if (row >= 0)
        x->c->ops->add_scaled(out, inputs + 2 * n, direct_part(x, row), width);
}

/* --- Kimi Linear's: decays, the key, the value, and beta -------------------------------------------------------- */

static void take_kda(const struct scan *x, int row, float *inputs)
{
    const struct pp_recurrence *r = x->s->recurrence;
    const int64_t n = r->shape.key_dim, width = r->shape.value_dim, at = x->head * n;
    const float *beta = slot_row(x->c, r->beta, row) + x->head;
    const float rate = r->bound != 0.0f ? fabsf(x->s->rate[x->head]) : x->s->rate[x->head];
    x->c->ops->apply(PP_FN_SCALE, rate, slot_row(x->c, r->decay, row) + at, n, inputs);
    if (r->bound != 0.0f) {
        x->c->ops->apply(PP_FN_SIGMOID, 0, inputs, n, inputs);
        x->c->ops->apply(PP_FN_SCALE, r->bound, inputs, n, inputs);
    }
    for (int64_t d = 0; d < n; d++)
        inputs[d] = expf(inputs[d]);
    x->c->ops->rms_norm(slot_row(x->c, r->k, row) + at, x->s->unit_key, pp_cpu_recur_unit_eps / (float)n, n,
                        inputs + n);
    memcpy(inputs + 2 * n, slot_row(x->c, r->v, row) + x->head * width, (size_t)width * sizeof *inputs);
    memset(inputs + 2 * n + width, 0, (size_t)(r->shape.n_inputs - 2 * n - width) * sizeof *inputs);
    inputs[2 * n + width] = 1 / (1 + expf(-*beta));
}

/* The delta rule needs the decayed state's output for the key, (a S)' k = S' (a k). */
static void step_kda(const struct scan *x, const float *inputs, int row, float *state, float *out)
{
    const struct pp_recurrence *r = x->s->recurrence;
    const int64_t n = r->shape.key_dim, width = r->shape.value_dim;
    const float *key = inputs + n, beta = inputs[2 * n + width];
    float removal_key[MOST_KEYS], more[MOST_KEYS], less[MOST_KEYS], query[MOST_KEYS];
    x->c->ops->multiply(key, inputs, n, removal_key);
    x->c->ops->apply(PP_FN_SCALE, beta, key, n, more);
    x->c->ops->apply(PP_FN_SCALE, -beta, key, n, less);
    if (row >= 0)
        x->c->ops->rms_norm(slot_row(x->c, r->q, row) + x->head * n, x->s->unit_query,
                            pp_cpu_recur_unit_eps / (float)n, n, query);
    x->c->ops->delta_step(&(struct pp_delta_step){.key_dim = n, .width = width, .decay = inputs, .key = more,
                                                  .removal_key = removal_key, .removal = less,
                                                  .v = inputs + 2 * n, .state = state,
                                                  .query = row >= 0 ? query : NULL, .out = out});
    if (row < 0)
        return;
    pp_cpu_norm(x->c, &x->s->norm, out, width, out);
    x->c->ops->gate(PP_FN_SIGMOID, 0, slot_row(x->c, x->s->in, row) + x->head * width, out, width, out);
}

/* --- Griffin's: decays, and what is added ------------------------------------------------------------------------ */

static int64_t channels_of(const struct pp_recurrence *r)
{
    return (int64_t)r->shape.key_dim * r->shape.value_dim / (r->kind == PP_RECUR_WKV ? 4 : 1);
}

/* out = sigmoid(gate + bias) of the head's channels */
static void sigmoid_gate(const struct scan *x, int slot, int row, const float *bias, int64_t at, int64_t n, float *out)
{
    memcpy(out, slot_row(x->c, slot, row) + at, (size_t)n * sizeof *out);
    x->c->ops->add(out, bias + at, n);
    x->c->ops->apply(PP_FN_SIGMOID, 0, out, n, out);
}

static void take_lru(const struct scan *x, int row, float *inputs)
{
    const struct pp_recurrence *r = x->s->recurrence;
    const int64_t n = channels_of(r), at = x->head * n;
    const bool first = x->c->batch->rows[row].slot == 0;
    float *a = inputs, *u = inputs + n;
    sigmoid_gate(x, r->decay, row, x->s->bias, at, n, a);
    sigmoid_gate(x, r->beta, row, x->s->direct, at, n, u);
    x->c->ops->multiply(u, slot_row(x->c, r->v, row) + at, n, u);
    for (int64_t i = 0; i < n; i++) {
        const float ln_a = a[i] * x->s->rate[at + i];
        a[i] = expf(ln_a);
        u[i] *= first ? 1 : sqrtf(-expm1f(2 * ln_a)); /* 1 - a^2, which is small */
    }
}

static void step_lru(const struct scan *x, const float *inputs, int row, float *state, float *out)
{
    const int64_t n = channels_of(x->s->recurrence);
    x->c->ops->multiply(state, inputs, n, state);
    x->c->ops->add(state, inputs + n, n);
    if (row >= 0)
        memcpy(out, state, (size_t)n * sizeof *out);
}

/* --- RWKV 4's: keys and values ------------------------------------------------------------------------------------ */

static void take_wkv(const struct scan *x, int row, float *inputs)
{
    const struct pp_recurrence *r = x->s->recurrence;
    const int64_t n = channels_of(r), at = x->head * n;
    memcpy(inputs, slot_row(x->c, r->k, row) + at, (size_t)n * sizeof *inputs);
    memcpy(inputs + n, slot_row(x->c, r->v, row) + at, (size_t)n * sizeof *inputs);
}

/* The sums are kept scaled so that their largest term is 1, to avoid overflow whatever the keys are. */
static void step_wkv(const struct scan *x, const float *inputs, int row, float *state, float *out)
{
    const int64_t n = channels_of(x->s->recurrence), first = x->head * n;
    const float *k = inputs, *v = inputs + n, *rate = x->s->rate + first, *direct = x->s->direct + first;
    float *a = state, *b = state + n, *m = state + 2 * n;
    for (int64_t i = 0; i < n; i++) {
        const bool begins = b[i] == 0; /* no position before */
        if (row >= 0) {
            const float own = direct[i] + k[i], most = begins || own > m[i] ? own : m[i];
            const float before = begins ? 0 : expf(m[i] - most), now = expf(own - most);
            out[i] = (before * a[i] + now * v[i]) / (before * b[i] + now);
        }
        const float left = m[i] + rate[i], most = begins || k[i] > left ? k[i] : left;
        const float before = begins ? 0 : expf(left - most), now = expf(k[i] - most);
        a[i] = before * a[i] + now * v[i];
        b[i] = before * b[i] + now;
        m[i] = most;
    }
}

/* --- all kinds ---------------------------------------------------------------------------------------------------- */

/* Makes the step of a position with these inputs, and computes the output for `row`; row -1: no output is wanted. */
static void step(const struct scan *x, const float *inputs, int row, float *state, float *out)
{
    switch (x->s->recurrence->kind) {
    case PP_RECUR_RWKV6: step_rwkv6(x, inputs, row, state, out); break;
    case PP_RECUR_GLA: step_gla(x, inputs, row, state, out); break;
    case PP_RECUR_RWKV7: step_rwkv7(x, inputs, row, state, out); break;
    case PP_RECUR_KDA: step_kda(x, inputs, row, state, out); break;
    case PP_RECUR_LRU: step_lru(x, inputs, row, state, out); break;
    case PP_RECUR_WKV: step_wkv(x, inputs, row, state, out); break;
    default: step_mamba(x, inputs, row, state, out); break;
    }
}

static void take_inputs(const struct scan *x, int row, float *inputs)
{
    switch (x->s->recurrence->kind) {
    case PP_RECUR_RWKV6:
    case PP_RECUR_GLA: take_rwkv6(x, row, inputs); break;
    case PP_RECUR_RWKV7: take_rwkv7(x, row, inputs); break;
    case PP_RECUR_KDA: take_kda(x, row, inputs); break;
    case PP_RECUR_LRU: take_lru(x, row, inputs); break;
    case PP_RECUR_WKV: take_wkv(x, row, inputs); break;
    default: take_mamba(x, row, inputs); break;
    }
}

/* Repeats the steps of a page's first n positions, from the state at its beginning. */
static void repeat(const struct scan *x, const struct pp_kv_steps *page, int n, float *state)
{
    const struct pp_state_shape *shape = &x->s->recurrence->shape;
    memcpy(state, page->start, (size_t)shape->key_dim * (size_t)shape->value_dim * sizeof *state);
    for (int i = 0; i < n; i++)
        step(x, page->inputs + i * shape->n_inputs, -1, state, NULL);
}

/* Computes the state at a page's beginning. before: the page before it, which is full; or NULL. */
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
    const bool by_channel = r->kind == PP_RECUR_LRU || r->kind == PP_RECUR_WKV;
    const int64_t width = by_channel ? channels_of(r) : r->shape.value_dim;
    for (int i = 0; i < m; i++) {
        const struct pp_batch_row *row = &c->batch->rows[i];
        const int64_t p = row->slot / PP_PAGE_TOKENS;
        const int at = (int)(row->slot % PP_PAGE_TOKENS);
        uint8_t *const *pages = row->pages[s->tier];
        const struct pp_kv_steps page = page_of(&x, pages[p]);
        float *inputs = page.inputs + at * r->shape.n_inputs;
        if (at == 0)
            begin_page(&x, p > 0 ? pages[p - 1] : NULL, &page);
        if (at == 0 || *page.n != at)
            repeat(&x, &page, at, page.latest);
        take_inputs(&x, i, inputs);
        step(&x, inputs, i, page.latest, slot_row(c, s->out, i) + item * width);
        *page.n = at + 1;
    }
}
