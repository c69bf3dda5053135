/* decoder_scan.c - Mamba (arXiv 2312.00752): a short convolution, and a selective scan whose steps (dt), B and C are
 * projected from the convolution's output. In PLaMo 2 (arXiv 2509.04897) they are, too, but there is one step for each
 * head and the states are Mamba 2's. Slots state_k and state_q are B and C. */
#include <stdio.h>

#include "engine/arch/decoder_int.h"

static int64_t channels(const struct builder *b)
{
    return b->hp->n_state_head * b->hp->state_value_dim;
}

bool pp_scan_input(struct builder *b, int l)
{
    const int in = pp_plan_linear(b->p, b->s, 2 * channels(b), b->hp->n_embd, b->err, "blk.%d.ssm_in", l);
    add_linear(b, l, in, b->normalised, b->state_in);
    return in >= 0;
}

/* Whether dt, B and C are normalised: without weights in Falcon Mamba, with weights in Jamba and PLaMo 2, but not in
 * Mamba. */
static bool has_dt_bc_norms(const struct builder *b, int l)
{
    return b->hp->dt_bc_norms || b->hp->state_by_head || pp_decoder_has(b, l, "ssm_dt_norm.weight");
}

/* The norm of one of the three. *ones: the weight of norms without one, made at the first use. */
static bool add_dt_bc_norm(struct builder *b, int l, const char *kind, const struct pp_tensor **ones, int64_t n,
                           int in, int out)
{
    struct pp_op norm = {.kind = PP_OP_NORM, .layer = l, .scale = b->hp->state_eps, .in = in, .in2 = NONE, .out = out};
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s", l, kind);
    if (!b->hp->dt_bc_norms)
        pp_decoder_find_norm(b, name, n, &norm);
    else if (*ones || (*ones = pp_plan_ones(b->p, n, b->err)))
        norm.weight = *ones;
    add(b, norm);
    return norm.weight != NULL;
}

/* The number of steps of a row: one for each head or for each channel. */
static int64_t n_steps(const struct builder *b)
{
    return b->hp->state_by_head ? b->hp->n_state_head : channels(b);
}

/* dt, B and C from the convolution's output. */
static bool add_steps(struct builder *b, int l)
{
    const int64_t rank = b->hp->state_rank, key = b->hp->state_key_dim;
    const int all = pp_plan_linear(b->p, b->s, rank + 2 * key, channels(b), b->err, "blk.%d.ssm_x", l);
    const int step = all < 0 ? -1 : pp_plan_linear(b->p, b->s, n_steps(b), rank, b->err, "blk.%d.ssm_dt", l);
    if (step < 0)
        return false;
    add_linear(b, l, all, b->convolved, b->state_steps);
    if (!has_dt_bc_norms(b, l))
        add_take(b, l, b->state_steps, rank + 2 * key, 0, rank, b->state_low);
    else if (!add_dt_bc_norm(b, l, "ssm_b_norm", &b->key_ones, key, b->state_k, b->state_k) ||
             !add_dt_bc_norm(b, l, "ssm_c_norm", &b->key_ones, key, b->state_q, b->state_q) ||
             !add_dt_bc_norm(b, l, "ssm_dt_norm", &b->low_ones, rank, b->state_raw, b->state_low))
        return false;
    add_linear(b, l, step, b->state_low, b->decay);
    if (b->hp->state_by_head)
        pp_plan_linear_bias(b->p, step, NULL); /* the recurrence adds it and applies softplus */
    else
        add_fn(b, l, PP_FN_SOFTPLUS, 0, b->decay, b->decay);
    return true;
}

/* The weights of a scan by head. */
static bool find_weights_by_head(struct builder *b, int l, struct pp_recurrence *r)
{
    const int64_t n = b->hp->n_state_head;
    r->kind = PP_RECUR_MAMBA2;
    r->neighbours = r->stride = (int)n;
    r->rate = pp_plan_tensor(b->s, 0, n, b->err, "blk.%d.ssm_a", l);
    r->bias = !r->rate ? NULL : pp_plan_tensor(b->s, 0, n, b->err, "blk.%d.ssm_dt.bias", l);
    r->direct = !r->bias ? NULL : pp_plan_tensor(b->s, 0, n, b->err, "blk.%d.ssm_d", l);
    return r->direct != NULL;
}

/* The weights of a scan by channel. */
static bool find_weights_by_channel(struct builder *b, int l, struct pp_recurrence *r)
{
    const int64_t n = channels(b), key = b->hp->state_key_dim;
    r->kind = PP_RECUR_MAMBA;
    r->rate = pp_plan_tensor(b->s, n, key, b->err, "blk.%d.ssm_a", l);
    r->direct = !r->rate ? NULL : pp_plan_tensor(b->s, 0, n, b->err, "blk.%d.ssm_d", l);
    return r->direct != NULL;
}

/* Phi 4 Flash's gated memory unit (arXiv 2507.06607): state = silu(gate) * the kept output of a layer's scan. */
static void add_memory_gate(struct builder *b, int l)
{
    add_gated(b, l, PP_FN_SILU, b->state_gate, b->memory, b->state);
}

bool pp_scan_states(struct builder *b, int l)
{
    const int64_t n = channels(b), key = b->hp->state_key_dim, width = b->hp->state_value_dim;
    const bool by_head = b->hp->state_by_head;
    struct pp_recurrence r = {.q = b->state_q, .k = b->state_k, .v = b->state_v, .decay = b->decay, .beta = NONE};
    struct pp_op convolve = {.kind = PP_OP_CONVOLVE, .layer = l, .window = b->hp->conv_taps, .in = b->mixed,
                             .in2 = NONE, .out = b->convolved};
    if (!(convolve.weight = pp_plan_tensor(b->s, n, b->hp->conv_taps, b->err, "blk.%d.ssm_conv1d.weight", l)) ||
        (pp_decoder_has(b, l, "ssm_conv1d.bias") &&
         !(convolve.bias = pp_plan_tensor(b->s, 0, n, b->err, "blk.%d.ssm_conv1d.bias", l))))
        return false;
    if (by_head) { /* the input projection is ordered by head: gate, then the convolution's input */
        add_take(b, l, b->state_in, 2 * width, 0, width, b->state_gate);
        add_take(b, l, b->state_in, 2 * width, width, width, b->mixed);
    }
    add(b, convolve);
    add_fn(b, l, PP_FN_SILU, 0, b->convolved, b->convolved);
    if (!add_steps(b, l) || !(by_head ? find_weights_by_head : find_weights_by_channel)(b, l, &r))
        return false;
    r.shape = (struct pp_state_shape){.n_key_head = 1, .n_head = (int)b->hp->n_state_head, .key_dim = (int)key,
                                      .value_dim = (int)width, .n_inputs = by_head ? 0 : (int)(2 * width + key)};
    const bool is_memory = b->hp->memory_layer && l == b->hp->memory_layer;
    add(b, (struct pp_op){.kind = PP_OP_RECUR, .layer = l, .recurrence = pp_plan_recurrence(b->p, &r),
                          .in = is_memory ? NONE : b->state_gate, .in2 = NONE,
                          .out = is_memory ? b->memory : b->state});
    if (is_memory)
        add_memory_gate(b, l);
    return true;
}

bool pp_scan_result(struct builder *b, int l)
{
    const int out = pp_plan_linear(b->p, b->s, b->hp->n_embd, channels(b), b->err, "blk.%d.ssm_out", l);
    if (out < 0 || !pp_scan_states(b, l))
        return false;
    add_linear(b, l, out, b->state, b->delta);
    return true;
}

bool pp_reads_memory(const struct builder *b, int l)
{
    return b->hp->memory_layer && (b->hp->layer[l] & (PP_LAYER_SHARING | PP_LAYER_SHARED)) == PP_LAYER_SHARING;
}

bool pp_memory_result(struct builder *b, int l)
{
    const int in = pp_plan_linear(b->p, b->s, channels(b), b->hp->n_embd, b->err, "blk.%d.ssm_in", l);
    const int out = in < 0 ? -1 : pp_plan_linear(b->p, b->s, b->hp->n_embd, channels(b), b->err, "blk.%d.attn_output",
                                                 l);
    add_linear(b, l, in, b->normalised, b->state_gate);
    add_memory_gate(b, l);
    add_linear(b, l, out, b->state, b->delta);
    return out >= 0;
}

/* Rows of ssm_in: the convolution's input, then the gate. Rows of ssm_x: dt, B, C; in PLaMo 2 B, C, dt. */
void pp_scan_slots(struct builder *b)
{
    struct pp_plan *p = b->p;
    const int64_t n = channels(b), rank = b->hp->state_rank, key = b->hp->state_key_dim;
    const bool by_head = b->hp->state_by_head;
    b->state_in = pp_plan_slot(p, 2 * n + (b->hp->states_mean ? b->n_q + b->n_kv + b->n_v : 0));
    b->mixed = by_head ? pp_plan_slot(p, n) : pp_plan_part(p, b->state_in, 0, n);
    b->state_gate = by_head ? pp_plan_slot(p, n) : pp_plan_part(p, b->state_in, n, n);
    b->convolved = b->state_v = pp_plan_slot(p, n);
    b->state_steps = pp_plan_slot(p, rank + 2 * key);
    b->state_raw = pp_plan_part(p, b->state_steps, by_head ? 2 * key : 0, rank);
    b->state_k = pp_plan_part(p, b->state_steps, by_head ? 0 : rank, key);
    b->state_q = pp_plan_part(p, b->state_steps, by_head ? key : rank + key, key);
    b->state_low = pp_plan_slot(p, rank);
    b->decay = pp_plan_slot(p, n_steps(b));
    b->state = pp_plan_slot(p, n);
    if (b->hp->memory_layer)
        b->memory = pp_plan_slot(p, n);
}
