#include "tests/convolved.h"

#include <string.h>

#include "engine/model.h"
#include "tests/support.h"

const struct pp_tensor *plan_numbers(struct pp_plan *p, int64_t rows, int64_t cols, unsigned seed)
{
    struct pp_error err;
    struct pp_tensor *t = (struct pp_tensor *)(uintptr_t)pp_plan_ones(p, rows * cols, &err);
    assert_non_null(t);
    float *f = (float *)(uintptr_t)t->data;
    for (int64_t i = 0; i < rows * cols; i++) {
        seed = seed * 1664525u + 1013904223u;
        f[i] = ((float)(seed >> 8) / 8388608.0f - 1.0f) * 0.3f;
    }
    t->ne[0] = cols;
    t->ne[1] = rows;
    t->n_dims = rows > 1 ? 2 : 1;
    return t;
}

void insert_ops(struct pp_plan *p, int at, const struct pp_op *ops, int n)
{
    for (int i = 0; i < n; i++)
        pp_plan_add(p, ops[i]);
    memmove(p->ops + at + n, p->ops + at, (size_t)(p->n_ops - n - at) * sizeof *ops);
    memcpy(p->ops + at, ops, (size_t)n * sizeof *ops);
}

int first_norm_of(const struct pp_plan *p, int layer)
{
    int i = 0;
    while (p->ops[i].kind != PP_OP_NORM || p->ops[i].layer != layer)
        i++;
    return i;
}

void convolve_layers(struct pp_model *m, int n_taps)
{
    struct pp_plan *p = &m->plan;
    const int n_layer = (int)m->info.n_layer, x = p->ops[first_norm_of(p, 0)].in;
    const int64_t width = m->info.n_embd;
    const int in = pp_plan_slot(p, width), y = pp_plan_slot(p, width), square = pp_plan_slot(p, width);
    for (int l = 0; l < n_layer; l++) {
        const struct pp_op square_x = {.kind = PP_OP_MULTIPLY, .layer = l, .in = x, .in2 = x, .out = in};
        const struct pp_op sum = {.kind = PP_OP_ADD, .layer = l, .in = y, .in2 = -1, .out = x};
        struct pp_op convolve = {.kind = PP_OP_CONVOLVE, .layer = l, .window = n_taps, .in = in, .in2 = -1, .out = y,
                                 .weight = plan_numbers(p, width, n_taps, 7u + (unsigned)l)};
        if (l % 2 == 0) {
            insert_ops(p, first_norm_of(p, l), (const struct pp_op[]){square_x, convolve, sum}, 3);
            continue;
        }
        convolve.in = x;
        convolve.bias = plan_numbers(p, 1, width, 70u + (unsigned)l);
        insert_ops(p, first_norm_of(p, l),
               (const struct pp_op[]){
                   {.kind = PP_OP_MULTIPLY, .layer = l, .in = x, .in2 = x, .out = square}, /* not part of a
                                                                                              convolution */
                   convolve,
                   {.kind = PP_OP_APPLY, .fn = PP_FN_SILU, .layer = l, .in = y, .in2 = -1, .out = y},
                   {.kind = PP_OP_MULTIPLY, .layer = l, .in = y, .in2 = square, .out = y},
                   sum,
               }, 5);
    }
    assert_false(p->bad);
}

void recur_layers(struct pp_model *m)
{
    struct pp_plan *p = &m->plan;
    const int n_layer = (int)m->info.n_layer, x = p->ops[first_norm_of(p, 0)].in, y = pp_plan_slot(p, 256);
    const struct pp_recurrence r = {
        .shape = {.n_key_head = 2, .n_head = 4, .key_dim = 32, .value_dim = 64}, .neighbours = 2, .stride = 5,
        .q = pp_plan_part(p, x, 0, 64), .k = pp_plan_part(p, x, 64, 64), .v = x,
        .decay = pp_plan_part(p, x, 20, 7), .beta = pp_plan_part(p, x, 130, 7)};
    assert_int_equal(m->info.n_embd, 256);
    for (int l = 0; l < n_layer; l++) {
        struct pp_recurrence of_layer = r;
        of_layer.tiled = l % 2;
        of_layer.rate = plan_numbers(p, 1, 4, 5u + (unsigned)l);
        of_layer.bias = plan_numbers(p, 1, 4, 50u + (unsigned)l);
        float *rate = (float *)(uintptr_t)of_layer.rate->data;
        for (int i = 0; i < 4; i++)
            rate[i] = -0.2f - 0.5f * rate[i];
        insert_ops(p, first_norm_of(p, l),
               (const struct pp_op[]){
                   {.kind = PP_OP_RECUR, .layer = l, .recurrence = pp_plan_recurrence(p, &of_layer),
                    .weight = plan_numbers(p, 1, 64, 500u + (unsigned)l), .in = x, .in2 = -1, .out = y},
                   {.kind = PP_OP_ADD, .layer = l, .in = y, .in2 = -1, .out = x},
               }, 2);
    }
    assert_false(p->bad);
}
