/* decoder_cca.c - compressed convolutional attention (arXiv 2510.04476) as in ZAYA (arXiv 2511.17127): queries and keys
 * go through two convolutions over two positions, the first depthwise, the second with a matrix for each head; the mean
 * of each query and its key is added; all heads are scaled to the same length, and keys then by a number of their head.
 * Half of the values are projected from the position before.
 *
 * And ZAYA's router: a narrow vector, to which the previous layer's is added, and three matrices. */
#include "engine/arch/decoder_int.h"

/* The epsilon of the scaling of queries and keys, which only guards against a division by 0. */
static const float UNIT_EPS = 1e-14f;

static bool add_previous(struct builder *b, int l, int in, const struct pp_tensor *bias, int out)
{
    if (!b->prev_taps && !(b->prev_taps = pp_plan_last(b->p, b->err)))
        return false;
    add(b, (struct pp_op){.kind = PP_OP_CONVOLVE, .layer = l, .window = 2, .weight = b->prev_taps, .bias = bias,
                          .in = in, .in2 = NONE, .out = out});
    return true;
}

/* Multiplies each head of queries and keys by a matrix of its own. */
static bool add_head_matrices(struct builder *b, int l, const char *kind, int in, int out)
{
    const int64_t n = b->shape.n_head + b->shape.n_head_kv, dim = b->shape.head_dim;
    const int heads = pp_plan_heads(b->p, b->s, (int)n, dim, dim, b->err, "blk.%d.%s.weight", l, kind);
    add(b, (struct pp_op){.kind = PP_OP_HEADS, .layer = l, .heads = heads, .in = in, .in2 = NONE, .out = out});
    return heads >= 0;
}

/* From qk_in to q and k. Before the first position the first convolution's input is 0, and the second one's the
 * first one's output for zeros, which is its bias. */
static bool add_convolutions(struct builder *b, int l)
{
    const int64_t n = b->n_q + b->n_kv;
    struct pp_op first = {.kind = PP_OP_CONVOLVE, .layer = l, .window = 2, .in = b->qk_in, .in2 = NONE,
                          .out = b->qk_first};
    struct pp_op bias = {.kind = PP_OP_AFFINE, .layer = l, .in = b->qk_first, .in2 = NONE, .out = b->qk_first};
    first.weight = pp_plan_tensor(b->s, n, 2, b->err, "blk.%d.attn_qk_conv.weight", l);
    bias.bias = !first.weight ? NULL : pp_plan_tensor(b->s, 0, n, b->err, "blk.%d.attn_qk_conv.bias", l);
    if (!bias.bias)
        return false;
    add(b, first);
    if (!add_previous(b, l, b->qk_first, bias.bias, b->qk_prev))
        return false;
    add(b, bias);
    if (!add_head_matrices(b, l, "attn_qk_mix_last", b->qk_prev, b->qkv) ||
        !add_head_matrices(b, l, "attn_qk_mix", b->qk_first, b->qk_now))
        return false;
    add_to(b, l, b->qk_now, b->qkv);
    bias.in = bias.out = b->qkv;
    bias.bias = pp_plan_tensor(b->s, 0, n, b->err, "blk.%d.attn_qk_mix.bias", l);
    add(b, bias);
    return bias.bias != NULL;
}

static void add_unit_norm(struct builder *b, int l, int slot)
{
    add(b, (struct pp_op){.kind = PP_OP_HEAD_NORM, .layer = l, .weight = b->head_ones, .scale = UNIT_EPS, .in = slot,
                          .in2 = NONE, .out = slot});
}

/* To each query its mean with the key of its group is added, and to each key the mean of those means; then both are
 * scaled to the same length. (The two scalings are kept apart: next to each other, the backend would fuse them into
 * attention, which has no room for the keys' factors after them.) */
static bool add_means(struct builder *b, int l)
{
    struct pp_op scale = {.kind = PP_OP_AFFINE, .layer = l, .in = b->k, .in2 = NONE, .out = b->k};
    const int64_t dim = b->shape.head_dim, each = b->shape.n_head / b->shape.n_head_kv;
    add_repeat(b, l, pp_plan_part(b->p, b->qk_in, b->n_q, b->n_kv), dim, each, b->means);
    add_to(b, l, pp_plan_part(b->p, b->qk_in, 0, b->n_q), b->means);
    add_fn(b, l, PP_FN_SCALE, 0.5f, b->means, b->means);
    add_to(b, l, b->means, b->q);
    add_unit_norm(b, l, b->q);
    for (int64_t i = 0; i < each; i++) {
        add_take(b, l, b->means, each * dim, i * dim, dim, b->key_means);
        add_sum(b, l, 1.0f / (float)each, b->key_means, b->k);
    }
    add_unit_norm(b, l, b->k);
    scale.weight = pp_plan_tensor(b->s, 0, b->shape.n_head_kv, b->err, "blk.%d.attn_k_scale.weight", l);
    add(b, scale);
    return scale.weight != NULL;
}

bool pp_convolved_heads(struct builder *b, int l)
{
    const int64_t n = b->hp->n_embd, half = b->n_v / 2;
    const struct {
        const char *kind;
        int64_t n_out;
        int out;
    } parts[] = {{"attn_q", b->n_q, pp_plan_part(b->p, b->qk_in, 0, b->n_q)},
                 {"attn_k", b->n_kv, pp_plan_part(b->p, b->qk_in, b->n_q, b->n_kv)},
                 {"attn_v", half, pp_plan_part(b->p, b->v, 0, half)},
                 {"attn_v_last", half, b->v_prev}};
    for (int i = 0; i < 4; i++) {
        const int linear = pp_plan_linear(b->p, b->s, parts[i].n_out, n, b->err, "blk.%d.%s", l, parts[i].kind);
        if (linear < 0)
            return false;
        add_linear(b, l, linear, b->normalised, parts[i].out);
    }
    return add_previous(b, l, b->v_prev, NULL, pp_plan_part(b->p, b->v, half, half)) && add_convolutions(b, l) &&
           add_means(b, l);
}

void pp_convolved_slots(struct builder *b)
{
    const int64_t n = b->n_q + b->n_kv;
    b->qk_in = pp_plan_slot(b->p, n);
    b->qk_first = pp_plan_slot(b->p, n);
    b->qk_prev = pp_plan_slot(b->p, n);
    b->qk_now = pp_plan_slot(b->p, n);
    b->qkv = pp_plan_slot(b->p, n);
    b->q = pp_plan_part(b->p, b->qkv, 0, b->n_q);
    b->k = pp_plan_part(b->p, b->qkv, b->n_q, b->n_kv);
    b->v = pp_plan_slot(b->p, b->n_v);
    b->v_prev = pp_plan_slot(b->p, b->n_v / 2);
    b->means = pp_plan_slot(b->p, b->n_q);
    b->key_means = pp_plan_slot(b->p, b->n_kv);
}

/* ZAYA's router, from `normalised` to the logits. */
bool pp_mlp_router(struct builder *b, int l)
{
    static const char *const kinds[] = {"ffn_router_1", "ffn_router_2", "ffn_gate_inp"};
    const struct pp_hparams *hp = b->hp;
    const int64_t n = hp->router_rank;
    const int slots[] = {b->router_tmp[0], b->router_tmp[1], b->router_tmp[0], b->router};
    const int in = pp_plan_linear(b->p, b->s, n, hp->n_embd, b->err, "blk.%d.ffn_router_in", l);
    struct pp_op carry = {.kind = PP_OP_MULTIPLY, .layer = l, .in = b->router_state, .in2 = NONE,
                          .out = b->router_state};
    struct pp_op norm = {.kind = PP_OP_NORM, .layer = l, .in = b->router_state, .in2 = NONE, .out = slots[0]};
    if (in < 0)
        return false;
    add_linear(b, l, in, b->normalised, l ? slots[0] : b->router_state);
    if (l && !(carry.weight = pp_plan_tensor(b->s, 0, n, b->err, "blk.%d.ffn_router_carry.weight", l)))
        return false;
    if (l) {
        add(b, carry);
        add_to(b, l, slots[0], b->router_state);
    }
    if (!(norm.weight = pp_plan_tensor(b->s, 0, n, b->err, "blk.%d.ffn_router_norm.weight", l)))
        return false;
    add(b, norm);
    for (int i = 0; i < 3; i++) {
        const int64_t n_out = i < 2 ? n : hp->n_expert + hp->n_expert_idle;
        const int linear = pp_plan_linear(b->p, b->s, n_out, n, b->err, "blk.%d.%s", l, kinds[i]);
        if (linear < 0)
            return false;
        add_linear(b, l, linear, slots[i], slots[i + 1]);
        if (i < 2)
            add_fn(b, l, PP_FN_GELU, 0, slots[i + 1], slots[i + 1]);
    }
    return true;
}
