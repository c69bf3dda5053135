/* decoder_loops.c - IQuest Coder Loop's attention in the second pass through the layers, which also sees the cache of
 * the first pass. With the queries q of the second pass,
 *
 *   first = attention to the layer's keys and values of the first pass, at all positions
 *   second = attention to those of the second pass, within a window
 *   out = g first + (1 - g) second,  g = sigmoid(q . w + b)
 *
 * where each head has its own w and b. */
#include "engine/arch/decoder_int.h"

static void add_rope(struct builder *b, int l, int slot, int64_t period)
{
    add(b, (struct pp_op){.kind = PP_OP_ROPE, .layer = l, .neox = period && b->hp->rope_neox, .period = period,
                          .in = slot, .in2 = NONE, .out = slot});
}

/* A RoPE right before attention is fused into it and its result is not stored, so gates and the attention to the first
 * pass read a rotated copy of the queries. The second pass's queries and keys are left to that fusion: the cache has to
 * know how its keys are rotated. */
static void add_rotations(struct builder *b, int l)
{
    add_copy(b, l, b->q, b->loop_q);
    add_rope(b, l, b->loop_q, b->shape.head_dim);
    add_rope(b, l, b->q, 0);
    add_rope(b, l, b->k, 0);
}

bool pp_loop_attention(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    const int64_t n = b->shape.n_head;
    const int gates = pp_plan_heads(b->p, b->s, (int)n, 1, b->shape.head_dim, b->err, "blk.%d.loop_gate.weight", l);
    const int o = gates < 0 ? -1 : pp_plan_linear(b->p, b->s, hp->n_embd, b->n_att, b->err, "blk.%d.attn_output", l);
    struct pp_op bias = {.kind = PP_OP_AFFINE, .layer = l, .in = b->loop_gate, .in2 = NONE, .out = b->loop_gate};
    if (o < 0 || !(bias.bias = pp_plan_tensor(b->s, 0, n, b->err, "blk.%d.loop_gate.bias", l)))
        return false;
    add_rotations(b, l);
    add(b, (struct pp_op){.kind = PP_OP_KV_STORE, .layer = l, .window = hp->window, .in = b->k, .in2 = b->v,
                          .out = NONE});
    add(b, (struct pp_op){.kind = PP_OP_ATTENTION, .layer = l, .window = hp->window, .in = b->q, .in2 = NONE,
                          .out = b->att});
    add(b, (struct pp_op){.kind = PP_OP_ATTENTION, .layer = l, .seen = l + 1, .in = b->loop_q, .in2 = NONE,
                          .out = b->first_att});
    add(b, (struct pp_op){.kind = PP_OP_HEADS, .layer = l, .heads = gates, .in = b->loop_q, .in2 = NONE,
                          .out = b->loop_gate});
    add(b, bias);
    add_sum(b, l, -1, b->att, b->first_att);
    add_weighed(b, l, PP_FN_SIGMOID, b->loop_gate, b->first_att, b->first_att);
    add_sum(b, l, 1, b->first_att, b->att);
    add_linear(b, l, o, b->att, b->delta);
    return true;
}

void pp_loop_slots(struct builder *b)
{
    b->first_att = pp_plan_slot(b->p, b->n_att);
    b->loop_q = pp_plan_slot(b->p, b->n_q);
    b->loop_gate = pp_plan_slot(b->p, b->shape.n_head);
}
