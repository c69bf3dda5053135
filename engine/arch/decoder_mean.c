/* decoder_mean.c - Hymba's layers (arXiv 2411.13676): attention and Mamba in parallel, with one input matrix for both.
 * The mean of their normalised outputs, which are equally wide, goes through one output matrix. Some layers use the
 * keys and values of the layer before. */
#include "engine/arch/decoder_int.h"

static int64_t channels(const struct builder *b)
{
    return b->hp->n_state_head * b->hp->state_value_dim;
}

/* The input matrix's rows: queries; keys and values, unless they are another layer's; the convolution's input;
 * gates. */
bool pp_mean_input(struct builder *b, int l)
{
    const bool shared = b->hp->layer[l] & PP_LAYER_SHARED;
    const int64_t n = channels(b), before = b->n_q + (shared ? 0 : b->n_kv + b->n_v);
    const int in = pp_plan_linear(b->p, b->s, before + 2 * n, b->hp->n_embd, b->err, "blk.%d.ssm_in", l);
    if (in < 0 || !add_norm(b, l, "attn_norm", b->x, b->normalised))
        return false;
    b->q = pp_plan_part(b->p, b->state_in, 0, b->n_q);
    b->k = pp_plan_part(b->p, b->state_in, b->n_q, b->n_kv);
    b->v = pp_plan_part(b->p, b->state_in, b->n_q + b->n_kv, b->n_v);
    b->mixed = pp_plan_part(b->p, b->state_in, before, n);
    b->state_gate = pp_plan_part(b->p, b->state_in, before + n, n);
    add_linear(b, l, in, b->normalised, pp_plan_part(b->p, b->state_in, 0, before + 2 * n));
    return true;
}

static void add_rotation(struct builder *b, int l, int slot)
{
    if (!(b->hp->layer[l] & PP_LAYER_UNROTATED))
        add(b, (struct pp_op){.kind = PP_OP_ROPE, .layer = l, .in = slot, .in2 = NONE, .out = slot});
}

bool pp_mean_result(struct builder *b, int l)
{
    const int64_t n = channels(b), window = b->hp->layer[l] & PP_LAYER_WIDE ? 0 : b->hp->window;
    const int out = pp_plan_linear(b->p, b->s, b->hp->n_embd, n, b->err, "blk.%d.ssm_out", l);
    add_rotation(b, l, b->q);
    if (!(b->hp->layer[l] & PP_LAYER_SHARED)) {
        add_rotation(b, l, b->k);
        add(b, (struct pp_op){.kind = PP_OP_KV_STORE, .layer = l, .window = window, .in = b->k, .in2 = b->v,
                              .out = NONE});
    }
    add(b, (struct pp_op){.kind = PP_OP_ATTENTION, .layer = l, .window = window, .in = b->q, .in2 = NONE,
                          .out = b->att});
    if (out < 0 || !pp_scan_states(b, l) || !pp_decoder_norm(b, l, "attn_sub_norm", n, b->att, b->att) ||
        !pp_decoder_norm(b, l, "ssm_norm", n, b->state, b->state))
        return false;
    add_to(b, l, b->state, b->att);
    add_fn(b, l, PP_FN_SCALE, 0.5f, b->att, b->att);
    add_linear(b, l, out, b->att, b->delta);
    return true;
}

/* For a layer with keys of its own; pp_mean_input sets them anew for each layer. */
void pp_mean_slots(struct builder *b)
{
    b->q = pp_plan_part(b->p, b->state_in, 0, b->n_q);
    b->k = pp_plan_part(b->p, b->state_in, b->n_q, b->n_kv);
    b->v = pp_plan_part(b->p, b->state_in, b->n_q + b->n_kv, b->n_v);
}
