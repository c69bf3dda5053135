/* decoder_lightning.c - lightning attention (arXiv 2401.04658, 2501.08313): linear attention with a fixed decay for
 * each head and layer. The output is normalised, over all heads together (MiniMax) or in groups, and gated. Queries
 * and keys of Ling and of MiniCPM-SALA are normalised and rotated; in the latter all layers have the same decays. */
#include <math.h>
#include <stdio.h>

#include "engine/arch/decoder_int.h"

static const float NORM_EPS = 1e-6f; /* MiniMax: of the output's norm, whatever the model's epsilon is */

/* The logarithms of the decays: ALiBi's slopes, for n a power of two, scaled down with the layer's depth. (The
 * transformers code that comes with Ling's models counts layers from one less; they were trained with this formula.) */
static const struct pp_tensor *make_rates(struct builder *b, int l)
{
    const int64_t n = b->hp->n_state_head;
    const double more = b->hp->state_groups ? 0 : 1e-5, last = (double)b->hp->n_layer - 1 + more;
    const double depth = b->hp->same_decays ? 1 : 1 - (l ? l / last : 0) + 1e-5;
    float *numbers;
    const struct pp_tensor *t = pp_plan_numbers(b->p, n, &numbers, b->err);
    for (int64_t h = 0; t && h < n; h++)
        numbers[h] = (float)(-depth * exp2(-8.0 * (double)(h + 1) / (double)n));
    return t;
}

/* Names of the matrices. GGUF files that pippin wrote before other programs supported such models have old_names. */
static const struct lightning_names {
    const char *in, *gate, *norm, *out;
} present_names = {"attn_qkv", "attn_gate", "attn_norm_2", "attn_output"},
  old_names = {"ssm_in", "ssm_gate", "ssm_norm", "ssm_out"};

/* Queries, keys and values of x, from one matrix, or from three where the file has those. */
static bool add_projections(struct builder *b, int l, const char *joined, int64_t n, int x)
{
    const char *const names[] = {"attn_q", "attn_k", "attn_v"};
    const int slots[] = {b->state_q, b->state_k, b->state_v};
    if (!b->hp->state_groups || !pp_decoder_has(b, l, "attn_q.weight")) {
        const int in = pp_plan_linear(b->p, b->s, 3 * n, b->hp->n_embd, b->err, "blk.%d.%s", l, joined);
        add_linear(b, l, in, x, b->state_in);
        return in >= 0;
    }
    for (int i = 0; i < 3; i++) {
        const int in = pp_plan_linear(b->p, b->s, n, b->hp->n_embd, b->err, "blk.%d.%s", l, names[i]);
        if (in < 0)
            return false;
        add_linear(b, l, in, x, slots[i]);
    }
    return true;
}

/* The norm of queries or keys, if there is one, and their RoPE. */
static bool add_heads(struct builder *b, int l, const char *kind, int slot)
{
    const struct pp_hparams *hp = b->hp;
    struct pp_op norm = {.kind = PP_OP_HEAD_NORM, .layer = l, .in = slot, .in2 = NONE, .out = slot};
    char name[64];
    snprintf(name, sizeof name, "%s.weight", kind);
    if (pp_decoder_has(b, l, name)) {
        if (!(norm.weight = pp_plan_tensor(b->s, 0, hp->state_key_dim, b->err, "blk.%d.%s", l, name)))
            return false;
        add(b, norm);
    }
    if (hp->state_rotated)
        add(b, (struct pp_op){.kind = PP_OP_ROPE, .layer = l, .neox = true, .period = hp->state_key_dim, .in = slot,
                              .in2 = NONE, .out = slot});
    return true;
}

/* From state_in to q, k and v. MiniMax's projection is ordered by head, [q, k, v] each; Ling's has all q first, which
 * are parts of the slot already. */
static bool add_input(struct builder *b, int l)
{
    const int64_t dim = b->hp->state_key_dim;
    const int slots[] = {b->state_q, b->state_k, b->state_v};
    if (!b->hp->state_groups || b->hp->state_silu)
        add_fn(b, l, PP_FN_SILU, 0, b->state_in, b->state_in);
    for (int i = 0; i < 3 && !b->hp->state_groups; i++)
        add_take(b, l, b->state_in, 3 * dim, i * dim, dim, slots[i]);
    if (!b->hp->state_groups)
        return true;
    if (!add_heads(b, l, "attn_q_norm", b->state_q))
        return false;
    add_fn(b, l, PP_FN_SCALE, 1.0f / sqrtf((float)dim), b->state_q, b->state_q);
    return add_heads(b, l, "attn_k_norm", b->state_k);
}

/* The norm of the states' output, over all values or by group, from `state` to `state_normalised`. */
static bool add_output_norm(struct builder *b, int l, const char *kind)
{
    const int64_t n = b->hp->n_state_head * b->hp->state_value_dim, n_groups = b->hp->state_groups;
    struct pp_op norm = {.kind = PP_OP_NORM, .layer = l, .scale = n_groups ? 0 : NORM_EPS, .in = b->state, .in2 = NONE,
                         .out = b->state_normalised};
    const struct pp_tensor *weight = pp_plan_tensor(b->s, 0, n, b->err, "blk.%d.%s.weight", l, kind);
    norm.weight = weight;
    if (n_groups > 1) {
        if (!b->state_ones)
            b->state_ones = pp_plan_ones(b->p, n / n_groups, b->err);
        norm.kind = PP_OP_HEAD_NORM;
        norm.weight = b->state_ones;
        norm.out = b->state;
    }
    if (!weight || !norm.weight)
        return false;
    add(b, norm);
    if (n_groups > 1)
        add(b, (struct pp_op){.kind = PP_OP_MULTIPLY, .layer = l, .weight = weight, .in = b->state, .in2 = NONE,
                              .out = b->state_normalised});
    return true;
}

/* norm_replaces_stream: x is normalised already. */
bool pp_lightning_result(struct builder *b, int l)
{
    const struct lightning_names *names = pp_decoder_has(b, l, "ssm_in.weight") ? &old_names : &present_names;
    const struct pp_hparams *hp = b->hp;
    const int64_t dim = hp->state_key_dim, n = hp->n_state_head * dim;
    const int x = b->d->norm_replaces_stream ? b->x : b->normalised;
    struct pp_recurrence r = {.kind = PP_RECUR_LIGHTNING, .q = b->state_q, .k = b->state_k, .v = b->state_v,
                              .decay = b->state_v, .beta = NONE, .removal_key = NONE};
    if (!b->d->norm_replaces_stream && !add_norm(b, l, "attn_norm", b->x, b->normalised))
        return false;
    if (!add_projections(b, l, names->in, n, x))
        return false;
    const int gate = pp_plan_linear(b->p, b->s, n, hp->n_embd, b->err, "blk.%d.%s", l, names->gate);
    const int out = gate < 0 ? -1 : pp_plan_linear(b->p, b->s, hp->n_embd, n, b->err, "blk.%d.%s", l, names->out);
    if (out < 0 || !(r.rate = make_rates(b, l)))
        return false;
    r.shape = (struct pp_state_shape){.n_key_head = (int)hp->n_state_head, .n_head = (int)hp->n_state_head,
                                      .key_dim = (int)dim, .value_dim = (int)dim};
    add_linear(b, l, gate, x, b->state_gate);
    if (!add_input(b, l))
        return false;
    add(b, (struct pp_op){.kind = PP_OP_RECUR, .layer = l, .recurrence = pp_plan_recurrence(b->p, &r), .in = NONE,
                          .in2 = NONE, .out = b->state});
    if (!add_output_norm(b, l, names->norm))
        return false;
    add_gated(b, l, PP_FN_SIGMOID, b->state_gate, b->state_normalised, b->state_normalised);
    add_linear(b, l, out, b->state_normalised, b->delta);
    return true;
}

void pp_lightning_slots(struct builder *b)
{
    int *const parts[] = {&b->state_q, &b->state_k, &b->state_v};
    int *const slots[] = {&b->state_gate, &b->state, &b->state_normalised};
    const int64_t n = b->hp->n_state_head * b->hp->state_key_dim;
    b->state_in = pp_plan_slot(b->p, 3 * n);
    for (int i = 0; i < 3; i++)
        *parts[i] = b->hp->state_groups ? pp_plan_part(b->p, b->state_in, i * n, n) : pp_plan_slot(b->p, n);
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++)
        *slots[i] = pp_plan_slot(b->p, n);
}
