/* decoder_mlstm.c - xLSTM's matrix memory, mLSTM (arXiv 2405.04517, 2503.13427): linear attention with a forget gate
 * and an exponential input gate for each head. The output is normalised by head and multiplied by a sigmoid gate for
 * each value. */
#include <math.h>
#include <stdio.h>

#include "engine/arch/decoder_int.h"

/* A projection of the normalised input. */
static bool add_projection(struct builder *b, int l, const char *kind, int64_t n_out, int out)
{
    const int linear = pp_plan_linear(b->p, b->s, n_out, b->hp->n_embd, b->err, "blk.%d.%s", l, kind);
    add_linear(b, l, linear, b->normalised, out);
    return linear >= 0;
}

/* The logits of gates, for which a bias is required. */
static bool add_gates(struct builder *b, int l, const char *kind, int64_t n, int out)
{
    return pp_plan_tensor(b->s, 0, n, b->err, "blk.%d.%s.bias", l, kind) && add_projection(b, l, kind, n, out);
}

static bool add_input(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    const int64_t n_head = hp->n_state_head, n_k = n_head * hp->state_key_dim, n_v = n_head * hp->state_value_dim;
    if (hp->fused_parts)
        return add_projection(b, l, "mlstm_in", 2 * (n_k + n_v), b->state_in) &&
               add_gates(b, l, "mlstm_gates", 2 * n_head, b->state_ba);
    return add_projection(b, l, "attn_q", n_k, b->state_q) && add_projection(b, l, "attn_k", n_k, b->state_k) &&
           add_projection(b, l, "attn_v", n_v, b->state_v) && add_projection(b, l, "attn_gate", n_v, b->state_gate) &&
           add_gates(b, l, "mlstm_in_gate", n_head, b->beta) && add_gates(b, l, "mlstm_forget_gate", n_head, b->decay);
}

/* The norm of the output by head, with weights for all values. */
static bool find_norm(struct builder *b, int l, struct pp_op *op)
{
    static const char kind[] = "mlstm_norm";
    const int64_t n = b->hp->n_state_head * b->hp->state_value_dim;
    if (!(op->weight = pp_plan_tensor(b->s, 0, n, b->err, "blk.%d.%s.weight", l, kind)))
        return false;
    return !pp_decoder_has(b, l, "mlstm_norm.bias") ||
           (op->bias = pp_plan_tensor(b->s, 0, n, b->err, "blk.%d.%s.bias", l, kind)) != NULL;
}

bool pp_mlstm_result(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    const int n_head = (int)hp->n_state_head;
    struct pp_recurrence r = {.kind = PP_RECUR_MLSTM, .sigmoids = true, .eps = hp->state_eps, .q = b->state_q,
                              .k = b->state_k, .v = b->state_v, .decay = b->decay, .beta = b->beta, .removal_key = NONE,
                              .neighbours = n_head, .stride = n_head};
    struct pp_op recur = {.kind = PP_OP_RECUR, .layer = l, .in = b->state_gate, .in2 = NONE, .out = b->state};
    r.shape = (struct pp_state_shape){.n_key_head = n_head, .n_head = n_head, .key_dim = (int)hp->state_key_dim,
                                      .value_dim = (int)hp->state_value_dim + PP_STATE_EXTRA_COLUMNS};
    if (!add_norm(b, l, "attn_norm", b->x, b->normalised) || !add_input(b, l) || !find_norm(b, l, &recur))
        return false;
    add_fn(b, l, PP_FN_CAP, hp->gate_cap, b->state_ba, b->state_ba);
    add_fn(b, l, PP_FN_SCALE, 1.0f / sqrtf((float)hp->state_key_dim), b->state_q, b->state_q);
    recur.recurrence = pp_plan_recurrence(b->p, &r);
    add(b, recur);
    const int out = pp_plan_linear(b->p, b->s, hp->n_embd, n_head * hp->state_value_dim, b->err, "blk.%d.attn_output",
                                   l);
    add_linear(b, l, out, b->state, b->delta);
    return out >= 0;
}

/* The fused matrices' rows: queries, keys, values and output gates; input gates, then forget gates. */
void pp_mlstm_slots(struct builder *b)
{
    const int64_t n_head = b->hp->n_state_head, n_k = n_head * b->hp->state_key_dim,
                  n_v = n_head * b->hp->state_value_dim;
    b->state_in = pp_plan_slot(b->p, 2 * (n_k + n_v));
    b->state_q = pp_plan_part(b->p, b->state_in, 0, n_k);
    b->state_k = pp_plan_part(b->p, b->state_in, n_k, n_k);
    b->state_v = pp_plan_part(b->p, b->state_in, 2 * n_k, n_v);
    b->state_gate = pp_plan_part(b->p, b->state_in, 2 * n_k + n_v, n_v);
    b->state_ba = pp_plan_slot(b->p, 2 * n_head);
    b->beta = pp_plan_part(b->p, b->state_ba, 0, n_head);
    b->decay = pp_plan_part(b->p, b->state_ba, n_head, n_head);
    b->state = pp_plan_slot(b->p, n_v);
}
