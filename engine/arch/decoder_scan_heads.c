/* decoder_scan_heads.c - the first Zamba's Mamba (arXiv 2405.16712): several scans side by side, each of a part of the
 * channels with dt, B and C of its own. The rows of ssm_in alternate between the convolution's input and the gate. */

#include "engine/arch/decoder_int.h"

/* The number of channels of one scan, and of its dt, B and C together. */
static int64_t channels(const struct builder *b)
{
    return b->hp->n_state_head * b->hp->state_value_dim;
}

static int64_t n_steps(const struct builder *b)
{
    return b->hp->state_rank + 2 * b->hp->state_key_dim;
}

static bool add_heads(struct builder *b, int l, const char *kind, int64_t n_out, int64_t n_in, int in, int out)
{
    const int heads = pp_plan_heads(b->p, b->s, (int)b->hp->n_scan_head, n_out, n_in, b->err, "blk.%d.%s.weight", l,
                                    kind);
    add(b, (struct pp_op){.kind = PP_OP_HEADS, .layer = l, .heads = heads, .in = in, .in2 = NONE, .out = out});
    return heads >= 0;
}

/* dt, B and C of all scans from the convolution's output, and the steps from dt. */
static bool add_steps(struct builder *b, int l)
{
    const int64_t n = channels(b), rank = b->hp->state_rank;
    const struct pp_tensor *bias = pp_plan_tensor(b->s, b->hp->n_scan_head, n, b->err, "blk.%d.ssm_dt.bias", l);
    if (!bias || !add_heads(b, l, "ssm_x", n_steps(b), n, b->convolved, b->state_steps))
        return false;
    add_take(b, l, b->state_steps, n_steps(b), 0, rank, b->state_low);
    if (!add_heads(b, l, "ssm_dt", n, rank, b->state_low, b->decay))
        return false;
    for (int64_t h = 0; h < b->hp->n_scan_head; h++) { /* the same for every row: looked up in tables of one row */
        const struct pp_tensor *row = pp_plan_row(b->p, bias, h, b->err);
        add(b, (struct pp_op){.kind = PP_OP_LOOKUP, .by_position = true, .layer = l, .weight = row, .in = NONE,
                              .in2 = NONE, .out = pp_plan_part(b->p, b->step_bias, h * n, n)});
        if (!row)
            return false;
    }
    add_to(b, l, b->step_bias, b->decay);
    add_fn(b, l, PP_FN_SOFTPLUS, 0, b->decay, b->decay);
    return true;
}

static bool add_scan(struct builder *b, int l, int64_t h, const struct pp_tensor *rates,
                     const struct pp_tensor *direct)
{
    const int64_t n = channels(b), key = b->hp->state_key_dim, at = h * n_steps(b) + b->hp->state_rank;
    struct pp_recurrence r = {.kind = PP_RECUR_MAMBA, .q = pp_plan_part(b->p, b->state_steps, at + key, key),
                              .k = pp_plan_part(b->p, b->state_steps, at, key),
                              .v = pp_plan_part(b->p, b->convolved, h * n, n),
                              .decay = pp_plan_part(b->p, b->decay, h * n, n), .beta = NONE,
                              .rate = pp_plan_matrix_of(b->p, rates, h, b->err),
                              .direct = pp_plan_row(b->p, direct, h, b->err)};
    const int64_t width = b->hp->state_value_dim;
    r.shape = (struct pp_state_shape){.n_key_head = 1, .n_head = (int)b->hp->n_state_head, .key_dim = (int)key,
                                      .value_dim = (int)width, .n_inputs = (int)(2 * width + key)};
    add(b, (struct pp_op){.kind = PP_OP_RECUR, .layer = l, .recurrence = pp_plan_recurrence(b->p, &r),
                          .in = pp_plan_part(b->p, b->state_gate, h * n, n), .in2 = NONE,
                          .out = pp_plan_part(b->p, b->state, h * n, n)});
    return r.rate && r.direct;
}

bool pp_scan_heads_result(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    const int64_t heads = hp->n_scan_head, one = channels(b), n = heads * one;
    struct pp_op convolve = {.kind = PP_OP_CONVOLVE, .layer = l, .window = hp->conv_taps, .in = b->mixed,
                             .in2 = NONE, .out = b->convolved};
    const int in = pp_plan_linear(b->p, b->s, 2 * n, hp->n_embd, b->err, "blk.%d.ssm_in", l);
    const int out = in < 0 ? -1 : pp_plan_linear(b->p, b->s, hp->n_embd, n, b->err, "blk.%d.ssm_out", l);
    const struct pp_tensor *rates, *direct;
    if (out < 0 ||
        !(convolve.weight = pp_plan_tensor(b->s, n, hp->conv_taps, b->err, "blk.%d.ssm_conv1d.weight", l)) ||
        (pp_decoder_has(b, l, "ssm_conv1d.bias") &&
         !(convolve.bias = pp_plan_tensor(b->s, 0, n, b->err, "blk.%d.ssm_conv1d.bias", l))) ||
        !(rates = pp_plan_stack(b->s, heads, one, hp->state_key_dim, b->err, "blk.%d.ssm_a", l)) ||
        !(direct = pp_plan_tensor(b->s, heads, one, b->err, "blk.%d.ssm_d", l)))
        return false;
    add_linear(b, l, in, b->normalised, b->state_in);
    add_take(b, l, b->state_in, 2, 0, 1, b->mixed);
    add_take(b, l, b->state_in, 2, 1, 1, b->state_gate);
    add(b, convolve);
    add_fn(b, l, PP_FN_SILU, 0, b->convolved, b->convolved);
    if (!add_steps(b, l))
        return false;
    for (int64_t h = 0; h < heads; h++)
        if (!add_scan(b, l, h, rates, direct))
            return false;
    add_linear(b, l, out, b->state, b->delta);
    return true;
}

void pp_scan_heads_slots(struct builder *b)
{
    struct pp_plan *p = b->p;
    const int64_t heads = b->hp->n_scan_head, n = heads * channels(b);
    b->state_in = pp_plan_slot(p, 2 * n);
    b->mixed = pp_plan_slot(p, n);
    b->state_gate = pp_plan_slot(p, n);
    b->convolved = pp_plan_slot(p, n);
    b->state_steps = pp_plan_slot(p, heads * n_steps(b));
    b->state_low = pp_plan_slot(p, heads * b->hp->state_rank);
    b->decay = pp_plan_slot(p, n);
    b->step_bias = pp_plan_slot(p, n);
    b->state = pp_plan_slot(p, n);
}
