/* decoder_lightning.c - lightning attention (arXiv 2401.04658, 2501.08313) as a part of a decoder's layers: linear
 * attention whose states forget at a rate that the head and the layer have from the start. What states give is normed,
 * all heads together, and goes through a gate. */
#include <math.h>

#include "engine/arch/decoder_int.h"

static const float NORM_EPS = 1e-6f; /* of what states give, whatever the model's is */

/* ln of what is left of a state behind a position: ALiBi's slopes, for n a power of two, which later layers have less
 * of. */
static const struct pp_tensor *make_rates(struct builder *b, int l)
{
    const int64_t n = b->hp->n_state_head;
    const double depth = 1 - l / ((double)b->hp->n_layer - 1 + 1e-5) + 1e-5;
    float *numbers;
    const struct pp_tensor *t = pp_plan_numbers(b->p, n, &numbers, b->err);
    for (int64_t h = 0; t && h < n; h++)
        numbers[h] = (float)(-depth * exp2(-8.0 * (double)(h + 1) / (double)n));
    return t;
}

/* What files call the matrices: pippin's own did otherwise before other programs had such models. */
static const struct lightning_names {
    const char *in, *gate, *norm, *out;
} usual_names = {"attn_qkv", "attn_gate", "attn_norm_2", "attn_output"},
  first_names = {"ssm_in", "ssm_gate", "ssm_norm", "ssm_out"};

/* From the stream, which is normed, to `delta`. */
bool pp_lightning_result(struct builder *b, int l)
{
    const struct lightning_names *names = pp_decoder_has(b, l, "ssm_in.weight") ? &first_names : &usual_names;
    const struct pp_hparams *hp = b->hp;
    const int64_t dim = hp->state_key_dim, n = hp->n_state_head * dim;
    struct pp_recurrence r = {.kind = PP_RECUR_LIGHTNING, .q = b->state_q, .k = b->state_k, .v = b->state_v,
                              .decay = b->state_v, .beta = NONE, .look = NONE};
    struct pp_op norm = {.kind = PP_OP_NORM, .layer = l, .scale = NORM_EPS, .in = b->state, .in2 = NONE,
                         .out = b->state_normed};
    const int slots[] = {b->state_q, b->state_k, b->state_v};
    const int in = pp_plan_linear(b->p, b->s, 3 * n, hp->n_embd, b->err, "blk.%d.%s", l, names->in);
    const int gate = in < 0 ? -1 : pp_plan_linear(b->p, b->s, n, hp->n_embd, b->err, "blk.%d.%s", l, names->gate);
    const int out = gate < 0 ? -1 : pp_plan_linear(b->p, b->s, hp->n_embd, n, b->err, "blk.%d.%s", l, names->out);
    if (out < 0 || !(norm.weight = pp_plan_tensor(b->s, 0, n, b->err, "blk.%d.%s.weight", l, names->norm)) ||
        !(r.rate = make_rates(b, l)))
        return false;
    r.shape = (struct pp_state_shape){.n_key_head = (int)hp->n_state_head, .n_head = (int)hp->n_state_head,
                                      .key_dim = (int)dim, .value_dim = (int)dim};
    add_linear(b, l, in, b->x, b->state_in);
    add_linear(b, l, gate, b->x, b->state_gate);
    add(b, (struct pp_op){.kind = PP_OP_APPLY, .fn = PP_FN_SILU, .layer = l, .in = b->state_in, .in2 = NONE,
                          .out = b->state_in});
    for (int i = 0; i < 3; i++) /* of each head all three lie together */
        add_take(b, l, b->state_in, 3 * dim, i * dim, dim, slots[i]);
    add(b, (struct pp_op){.kind = PP_OP_RECUR, .layer = l, .recurrence = pp_plan_recurrence(b->p, &r), .in = NONE,
                          .in2 = NONE, .out = b->state});
    add(b, norm);
    add(b, (struct pp_op){.kind = PP_OP_GATE, .fn = PP_FN_SIGMOID, .layer = l, .in = b->state_gate,
                          .in2 = b->state_normed, .out = b->state_normed});
    add_linear(b, l, out, b->state_normed, b->delta);
    return true;
}

void pp_lightning_slots(struct builder *b)
{
    int *const slots[] = {&b->state_q, &b->state_k, &b->state_v, &b->state_gate, &b->state, &b->state_normed};
    const int64_t n = b->hp->n_state_head * b->hp->state_key_dim;
    b->state_in = pp_plan_slot(b->p, 3 * n);
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++)
        *slots[i] = pp_plan_slot(b->p, n);
}
