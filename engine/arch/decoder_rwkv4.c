/* decoder_rwkv4.c - the layers of RWKV 4 (arXiv 2305.13048): keys, values and gates read static blends with the
 * position before, and each channel has a weighted mean of its values (WKV), in which newer ones and those with larger
 * keys count more. The channel mix is RWKV 6's. */
#include "engine/arch/decoder_rwkv.h"

/* A projection of the input blended with weights `lerp`. */
static bool add_shifted(struct builder *b, int l, const char *lerp, const char *kind, int out)
{
    const int64_t n = b->hp->n_embd;
    const struct pp_tensor *weight = find_vector(b, l, lerp);
    const int linear = !weight ? -1 : pp_plan_linear(b->p, b->s, n, n, b->err, "blk.%d.time_mix_%s", l, kind);
    if (linear < 0)
        return false;
    pp_rwkv_blend(b, l, weight);
    add_linear(b, l, linear, b->blend, out);
    return true;
}

static bool add_time_mix(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    const int dim = (int)hp->state_key_dim, n_head = (int)hp->n_state_head;
    struct pp_recurrence r = {.kind = PP_RECUR_WKV, .q = b->state_k, .k = b->state_k, .v = b->state_v,
                              .decay = b->state_k, .beta = NONE, .removal_key = NONE};
    const int out = pp_plan_linear(b->p, b->s, hp->n_embd, hp->n_embd, b->err, "blk.%d.time_mix_output", l);
    if (out < 0 || !pp_rwkv_shift(b, l, "attn_norm") || !add_shifted(b, l, "time_mix_lerp_k", "key", b->state_k) ||
        !add_shifted(b, l, "time_mix_lerp_v", "value", b->state_v) ||
        !add_shifted(b, l, "time_mix_lerp_r", "receptance", b->state_gate) ||
        !(r.rate = find_vector(b, l, "time_mix_decay")) || !(r.direct = find_vector(b, l, "time_mix_first")))
        return false;
    r.shape = (struct pp_state_shape){.n_key_head = n_head, .n_head = n_head, .key_dim = dim, .value_dim = dim,
                                      .n_inputs = 2 * (int)(hp->n_embd / n_head)};
    add(b, (struct pp_op){.kind = PP_OP_RECUR, .layer = l, .recurrence = pp_plan_recurrence(b->p, &r), .in = NONE,
                          .in2 = NONE, .out = b->state});
    add_gated(b, l, PP_FN_SIGMOID, b->state_gate, b->state, b->state);
    add_linear(b, l, out, b->state, b->delta);
    return true;
}

bool pp_rwkv4_layer(struct builder *b, int l)
{
    if (!add_time_mix(b, l))
        return false;
    add_sum(b, l, 1, b->delta, b->x);
    return pp_rwkv_channel_mix(b, l);
}

void pp_rwkv4_slots(struct builder *b)
{
    int *const slots[] = {&b->shift, &b->blend, &b->scratch, &b->state_k, &b->state_v, &b->state_gate, &b->state};
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++)
        *slots[i] = pp_plan_slot(b->p, b->hp->n_embd);
}
