/* decoder_shared.c - Klear's mixtures: what experts give and what the one gives that every row uses are not added as
 * they are, but multiplied by the softmax of two numbers. */
#include "engine/arch/decoder_int.h"

/* The softmax of two numbers: by the sigmoid of how much larger it is than the other the shared expert's result is
 * multiplied, which its last matrix does as well, and by that of the opposite what the others give. */
bool pp_shared_share(struct builder *b, int l)
{
    if (!b->hp->n_ff_shared) {
        pp_fail(b->err, PP_ERR_UNSUPPORTED, "%s: a model of this family without an expert that every row uses is not "
                "supported", pp_source_path(b->s));
        return false;
    }
    const int both = pp_plan_linear(b->p, b->s, 2, b->hp->n_embd, b->err, "blk.%d.ffn_share", l);
    if (both < 0)
        return false;
    add_linear(b, l, both, b->normed, b->shared_both_shares);
    add_take(b, l, b->shared_both_shares, 2, 0, 1, b->expert_part);
    add_take(b, l, b->shared_both_shares, 2, 1, 1, b->shared_weight);
    add(b, (struct pp_op){.kind = PP_OP_ADD, .layer = l, .scale = -1, .in = b->expert_part, .in2 = NONE,
                          .out = b->shared_weight});
    add(b, (struct pp_op){.kind = PP_OP_APPLY, .fn = PP_FN_SCALE, .scale = -1, .layer = l, .in = b->shared_weight,
                          .in2 = NONE, .out = b->expert_part});
    add(b, (struct pp_op){.kind = PP_OP_WEIGH, .fn = PP_FN_SIGMOID, .layer = l, .in = b->shared_weight,
                          .in2 = b->shared_act, .out = b->shared_act});
    return true;
}
