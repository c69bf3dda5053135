/* decoder_shared.c - Klear's experts: the outputs of the routed experts and of the shared one are weighted by the
 * softmax of two logits. */
#include "engine/arch/decoder_int.h"

/* The softmax of two numbers is the sigmoid of their difference, in either direction. The shared expert's weight is
 * applied before its down matrix, which is linear; expert_share is the difference for the routed experts. */
bool pp_shared_expert_mix(struct builder *b, int l)
{
    if (!b->hp->n_ff_shared) {
        pp_fail(b->err, PP_ERR_UNSUPPORTED, "%s: a model of this family without a shared expert is not supported",
                pp_source_path(b->s));
        return false;
    }
    const int logits = pp_plan_linear(b->p, b->s, 2, b->hp->n_embd, b->err, "blk.%d.ffn_share", l);
    if (logits < 0)
        return false;
    add_linear(b, l, logits, b->normalised, b->mix_logits);
    add_take(b, l, b->mix_logits, 2, 0, 1, b->expert_share);
    add_take(b, l, b->mix_logits, 2, 1, 1, b->shared_weight);
    add_sum(b, l, -1, b->expert_share, b->shared_weight);
    add_fn(b, l, PP_FN_SCALE, -1, b->shared_weight, b->expert_share);
    add_weighed(b, l, PP_FN_SIGMOID, b->shared_weight, b->shared_act, b->shared_act);
    return true;
}
