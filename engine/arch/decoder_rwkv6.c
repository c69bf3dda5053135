/* decoder_rwkv6.c - the layers of RWKV 6 (arXiv 2404.05892). The time mix reads five blends of its input with the
 * position before, whose weights depend on the input (by a low-rank pair each); the channel mix reads two static
 * blends. Decays come from a low-rank pair.
 *
 * In Qwen 2's layers (arXiv 2505.03005) there is the time mix only, and the states are gated linear attention's: heads
 * share keys and values, keys are multiplied by 1 - decay, and the output is not normalised. */
#include <math.h>
#include <stdio.h>

#include "engine/arch/decoder_rwkv.h"

enum mix { MIX_W, MIX_K, MIX_V, MIX_R, MIX_G, N_MIXES }; /* rows of time_mix_lerp_fused */
enum low { LOW_W, LOW_MIX };                             /* indices of hparams.rwkv_ranks */

static const float NORM_EPS = 64e-5f; /* of the heads' output */
static const float QWEN_DECAY = 5;    /* in Qwen 2's layers decays are at least exp(-5) */

/* --- token shift -------------------------------------------------------------------------------------------------- */

/* The static part of a blend's weights; early GGUF files have a tensor for each blend. */
static const struct pp_tensor *find_mix(struct builder *b, int l, enum mix mix)
{
    char kind[32], own[40];
    snprintf(kind, sizeof kind, "time_mix_lerp_%c", "wkvrg"[mix]);
    snprintf(own, sizeof own, "%s.weight", kind);
    if (pp_decoder_has(b, l, own))
        return find_vector(b, l, kind);
    const struct pp_tensor *all = pp_rwkv_mixes(b, l, N_MIXES);
    return all ? pp_plan_row(b->p, all, mix, b->err) : NULL;
}

/* The dynamic part of all blends' weights: W2 tanh(W1 blend_x), the blend being one with weights of its own. */
static bool add_dynamic_mixes(struct builder *b, int l)
{
    const int64_t n = b->hp->n_embd, rank = b->hp->rwkv_ranks[LOW_MIX];
    const struct pp_tensor *weight = find_vector(b, l, "time_mix_lerp_x");
    const int first =
        !weight ? -1 : pp_plan_linear(b->p, b->s, N_MIXES * rank, n, b->err, "blk.%d.time_mix_w1", l);
    const int second = first < 0 ? -1 : pp_plan_heads(b->p, b->s, N_MIXES, n, rank, b->err,
                                                      "blk.%d.time_mix_w2.weight", l);
    if (second < 0)
        return false;
    pp_rwkv_blend(b, l, weight);
    add_linear(b, l, first, b->blend, b->low_rank[LOW_MIX]);
    add_fn(b, l, PP_FN_CAP, 1, b->low_rank[LOW_MIX], b->low_rank[LOW_MIX]); /* tanh */
    add(b, (struct pp_op){.kind = PP_OP_HEADS, .layer = l, .heads = second, .in = b->low_rank[LOW_MIX], .in2 = NONE,
                          .out = b->dynamic_mixes});
    return true;
}

/* blend = normalised + shift * (static + dynamic weights) */
static bool add_mix(struct builder *b, int l, enum mix mix)
{
    const struct pp_tensor *weight = find_mix(b, l, mix);
    const int dynamic = b->dynamic_mix[mix];
    if (!weight)
        return false;
    add(b, (struct pp_op){.kind = PP_OP_MULTIPLY, .layer = l, .in = b->shift, .in2 = dynamic, .out = dynamic});
    pp_rwkv_blend(b, l, weight);
    add_sum(b, l, 1, dynamic, b->blend);
    return true;
}

/* A projection to n_out values of the blend `mix`. */
static bool add_shifted(struct builder *b, int l, enum mix mix, const char *kind, int64_t n_out, int out)
{
    const int linear = pp_plan_linear(b->p, b->s, n_out, b->hp->n_embd, b->err, "blk.%d.time_mix_%s", l, kind);
    if (linear < 0 || !add_mix(b, l, mix))
        return false;
    add_linear(b, l, linear, b->blend, out);
    return true;
}

/* Keys or values, which neighbouring heads may share. */
static bool add_shared(struct builder *b, int l, enum mix mix, const char *kind, int out)
{
    const int64_t n_few = b->hp->n_state_key_head, n = b->hp->n_state_head, dim = b->hp->state_key_dim;
    if (n_few == n)
        return add_shifted(b, l, mix, kind, n * dim, out);
    if (!add_shifted(b, l, mix, kind, n_few * dim, b->shared_kv))
        return false;
    add_repeat(b, l, b->shared_kv, dim, n / n_few, out);
    return true;
}

static bool add_decays(struct builder *b, int l)
{
    const int64_t n = b->hp->n_embd, rank = b->hp->rwkv_ranks[LOW_W];
    const struct pp_tensor *bias = find_vector(b, l, "time_mix_decay");
    const int first = !bias ? -1 : pp_plan_linear(b->p, b->s, rank, n, b->err, "blk.%d.time_mix_decay_w1", l);
    const int second = first < 0 ? -1 : pp_plan_linear(b->p, b->s, n, rank, b->err, "blk.%d.time_mix_decay_w2", l);
    if (second < 0 || !add_mix(b, l, MIX_W))
        return false;
    pp_plan_linear_bias(b->p, second, bias);
    add_linear(b, l, first, b->blend, b->low_rank[LOW_W]);
    add_fn(b, l, PP_FN_CAP, 1, b->low_rank[LOW_W], b->low_rank[LOW_W]); /* tanh */
    add_linear(b, l, second, b->low_rank[LOW_W], b->decay);
    add_fn(b, l, PP_FN_DOUBLE_EXP, b->hp->rwkv_qwen ? QWEN_DECAY : 0, b->decay, b->decay);
    return true;
}

/* --- time mix ----------------------------------------------------------------------------------------------------- */

/* The learned weights of the recurrence. */
static bool find_weights(struct builder *b, int l, struct pp_recurrence *r, struct pp_op *recur)
{
    return (r->direct = pp_plan_tensor(b->s, b->hp->n_state_head, b->hp->state_key_dim, b->err,
                                       "blk.%d.time_mix_first.weight", l)) &&
           (recur->weight = find_vector(b, l, "time_mix_ln")) &&
           (recur->bias = pp_plan_tensor(b->s, 0, b->hp->n_embd, b->err, "blk.%d.time_mix_ln.bias", l));
}

/* In Qwen 2's layers: k *= 1 - decay, q /= sqrt(dim). */
static void add_gla_scaling(struct builder *b, int l)
{
    add(b, (struct pp_op){.kind = PP_OP_MULTIPLY, .layer = l, .in = b->state_k, .in2 = b->decay, .out = b->scratch});
    add_sum(b, l, -1, b->scratch, b->state_k);
    add_fn(b, l, PP_FN_SCALE, 1.0f / sqrtf((float)b->hp->state_key_dim), b->state_q, b->state_q);
}

bool pp_rwkv6_result(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    const int dim = (int)hp->state_key_dim, n_head = (int)hp->n_state_head;
    const int64_t n = hp->n_embd;
    struct pp_recurrence r = {.kind = hp->rwkv_qwen ? PP_RECUR_GLA : PP_RECUR_RWKV6, .q = b->state_q, .k = b->state_k,
                              .v = b->state_v, .decay = b->decay, .beta = NONE, .removal_key = NONE};
    struct pp_op recur = {.kind = PP_OP_RECUR, .layer = l, .scale = NORM_EPS,
                          .in = hp->rwkv_qwen ? NONE : b->state_gate, .in2 = NONE, .out = b->state};
    const int out = pp_plan_linear(b->p, b->s, n, n, b->err, "blk.%d.time_mix_output", l);
    r.shape = (struct pp_state_shape){.n_key_head = n_head, .n_head = n_head, .key_dim = dim, .value_dim = dim,
                                      .n_inputs = 3 * dim};
    if (out < 0 || !pp_rwkv_shift(b, l, "attn_norm") || !add_dynamic_mixes(b, l) || !add_decays(b, l) ||
        !add_shared(b, l, MIX_K, "key", b->state_k) || !add_shared(b, l, MIX_V, "value", b->state_v) ||
        !add_shifted(b, l, MIX_R, "receptance", n, b->state_q) || !add_shifted(b, l, MIX_G, "gate", n, b->state_gate) ||
        (!hp->rwkv_qwen && !find_weights(b, l, &r, &recur)))
        return false;
    if (hp->rwkv_qwen)
        add_gla_scaling(b, l);
    recur.recurrence = pp_plan_recurrence(b->p, &r);
    add(b, recur);
    if (hp->rwkv_qwen)
        add_gated(b, l, PP_FN_SIGMOID, b->state_gate, b->state, b->state);
    add_linear(b, l, out, b->state, b->delta);
    return true;
}

/* --- channel mix -------------------------------------------------------------------------------------------------- */

/* The gate reads a blend with weights of its own. */
bool pp_rwkv_channel_mix(struct builder *b, int l)
{
    const int64_t n = b->hp->n_embd;
    const struct pp_tensor *of_gate = !pp_rwkv_feed_forward(b, l) ? NULL : find_vector(b, l, "channel_mix_lerp_r");
    const int gate = !of_gate ? -1 : pp_plan_linear(b->p, b->s, n, n, b->err, "blk.%d.channel_mix_receptance", l);
    if (gate < 0)
        return false;
    pp_rwkv_blend(b, l, of_gate);
    add_linear(b, l, gate, b->blend, b->scratch);
    add_gated(b, l, PP_FN_SIGMOID, b->scratch, b->delta, b->delta);
    add_sum(b, l, 1, b->delta, b->x);
    return true;
}

bool pp_rwkv6_layer(struct builder *b, int l)
{
    if (!pp_rwkv6_result(b, l))
        return false;
    add_sum(b, l, 1, b->delta, b->x);
    if (!pp_rwkv_channel_mix(b, l))
        return false;
    if (b->hp->rescale_every && (l + 1) % b->hp->rescale_every == 0)
        add_fn(b, l, PP_FN_SCALE, 0.5f, b->x, b->x);
    return true;
}

void pp_rwkv6_slots(struct builder *b)
{
    const int64_t n = b->hp->n_embd;
    int *const slots[] = {&b->shift, &b->blend, &b->scratch, &b->state_q, &b->state_k, &b->state_v, &b->decay,
                          &b->state_gate, &b->state};
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++)
        *slots[i] = pp_plan_slot(b->p, n);
    b->shared_kv = pp_plan_slot(b->p, b->hp->n_state_key_head * b->hp->state_key_dim);
    b->low_rank[LOW_W] = pp_plan_slot(b->p, b->hp->rwkv_ranks[LOW_W]);
    b->low_rank[LOW_MIX] = pp_plan_slot(b->p, N_MIXES * b->hp->rwkv_ranks[LOW_MIX]);
    b->dynamic_mixes = pp_plan_slot(b->p, N_MIXES * n);
    for (int i = 0; i < N_MIXES; i++)
        b->dynamic_mix[i] = pp_plan_part(b->p, b->dynamic_mixes, i * n, n);
}
