/* decoder_poly.c - PolyNorm (arXiv 2411.03884), Motif's activation function. The gates g of a row become
 *
 *   w[0] norm(g^3) + w[1] norm(g^2) + w[2] norm(g) + b
 *
 * where norm is RMSNorm without weights over the row, and w and b are numbers of the layer. */
#include "engine/arch/decoder_int.h"
#include "engine/rows.h"

enum { POWERS = 3 };
static const float EPS = 1e-6f; /* of these norms, whatever the model's epsilon is */

/* A vector of n_ff times the same number; NULL: b->err is set. */
static const struct pp_tensor *constant_vector(struct builder *b, float number)
{
    const int64_t n = b->shape.n_ff;
    float *to;
    const struct pp_tensor *t = pp_plan_numbers(b->p, n, &to, b->err);
    for (int64_t i = 0; t && i < n; i++)
        to[i] = number;
    return t;
}

static void add_product(struct builder *b, int l, int in, int out)
{
    add(b, (struct pp_op){.kind = PP_OP_MULTIPLY, .layer = l, .in = in, .in2 = b->gate, .out = out});
}

bool pp_poly_gate(struct builder *b, int l)
{
    const int slots[POWERS] = {b->cube, b->square, b->gate};
    const struct pp_tensor *w = pp_plan_tensor(b->s, 0, POWERS, b->err, "blk.%d.ffn_poly.weight", l), *bias = NULL;
    float numbers[POWERS + 1];
    if (!w || !(bias = pp_plan_tensor(b->s, 0, 1, b->err, "blk.%d.ffn_poly.bias", l)) ||
        pp_tensor_floats(w, 0, 1, numbers, b->err) || pp_tensor_floats(bias, 0, 1, numbers + POWERS, b->err))
        return false;
    add_product(b, l, b->gate, b->square);
    add_product(b, l, b->square, b->cube);
    for (int i = POWERS - 1; i >= 0; i--) {
        struct pp_op norm = {.kind = PP_OP_NORM, .layer = l, .scale = EPS, .in = slots[i], .in2 = NONE,
                             .out = slots[i]};
        const bool first = i == POWERS - 1;
        if (!(norm.weight = constant_vector(b, numbers[i])) ||
            (first && !(norm.bias = constant_vector(b, numbers[POWERS]))))
            return false;
        add(b, norm);
        if (!first)
            add_sum(b, l, 1, slots[i], b->gate);
    }
    add(b, (struct pp_op){.kind = PP_OP_MULTIPLY, .layer = l, .in = b->gate, .in2 = b->up, .out = b->act});
    return true;
}

void pp_poly_slots(struct builder *b)
{
    b->square = pp_plan_slot(b->p, b->hp->n_ff);
    b->cube = pp_plan_slot(b->p, b->hp->n_ff);
}
