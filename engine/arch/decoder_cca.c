/* decoder_cca.c - compressed convolutional attention (arXiv 2510.04476) as ZAYA has it (arXiv 2511.17127): queries and
 * keys go through two convolutions of two positions, the first value by value, the second head by head; the mean of
 * each query and its key is added, all are made as long, and keys are multiplied by a number of their head. Half of the
 * values are those of the position before. And what experts are chosen by: a few values, to which those of the layer
 * before are added, and three matrices. */
#include "engine/arch/decoder_int.h"

/* Of the length of queries and keys, which has none but what keeps 0 from being divided by. */
static const float UNIT_EPS = 1e-14f;

static void add_sum(struct builder *b, int l, float scale, int in, int out)
{
    add(b, (struct pp_op){.kind = PP_OP_ADD, .layer = l, .scale = scale, .in = in, .in2 = NONE, .out = out});
}

static bool add_last(struct builder *b, int l, int in, const struct pp_tensor *bias, int out)
{
    if (!b->last_taps && !(b->last_taps = pp_plan_last(b->p, b->err)))
        return false;
    add(b, (struct pp_op){.kind = PP_OP_CONVOLVE, .layer = l, .window = 2, .weight = b->last_taps, .bias = bias,
                          .in = in, .in2 = NONE, .out = out});
    return true;
}

/* Each head by a matrix of its own. */
static bool add_mix(struct builder *b, int l, const char *kind, int in, int out)
{
    const int64_t n = b->shape.n_head + b->shape.n_head_kv, dim = b->shape.head_dim;
    const int heads = pp_plan_heads(b->p, b->s, (int)n, dim, dim, b->err, "blk.%d.%s.weight", l, kind);
    add(b, (struct pp_op){.kind = PP_OP_HEADS, .layer = l, .heads = heads, .in = in, .in2 = NONE, .out = out});
    return heads >= 0;
}

/* From qk_before to q and k. What comes before the first position is nothing for the first convolution, and what that
 * makes of nothing, its bias, for the second. */
static bool add_convolutions(struct builder *b, int l)
{
    const int64_t n = b->n_q + b->n_kv;
    struct pp_op first = {.kind = PP_OP_CONVOLVE, .layer = l, .window = 2, .in = b->qk_before, .in2 = NONE,
                          .out = b->qk_first};
    struct pp_op bias = {.kind = PP_OP_AFFINE, .layer = l, .in = b->qk_first, .in2 = NONE, .out = b->qk_first};
    first.weight = pp_plan_tensor(b->s, n, 2, b->err, "blk.%d.attn_qk_conv.weight", l);
    bias.bias = !first.weight ? NULL : pp_plan_tensor(b->s, 0, n, b->err, "blk.%d.attn_qk_conv.bias", l);
    if (!bias.bias)
        return false;
    add(b, first);
    if (!add_last(b, l, b->qk_first, bias.bias, b->qk_last))
        return false;
    add(b, bias);
    if (!add_mix(b, l, "attn_qk_mix_last", b->qk_last, b->qkv) || !add_mix(b, l, "attn_qk_mix", b->qk_first, b->qk_own))
        return false;
    add_sum(b, l, 0, b->qk_own, b->qkv);
    bias.in = bias.out = b->qkv;
    bias.bias = pp_plan_tensor(b->s, 0, n, b->err, "blk.%d.attn_qk_mix.bias", l);
    add(b, bias);
    return bias.bias != NULL;
}

static void make_long(struct builder *b, int l, int slot)
{
    add(b, (struct pp_op){.kind = PP_OP_HEAD_NORM, .layer = l, .weight = b->head_ones, .scale = UNIT_EPS, .in = slot,
                          .in2 = NONE, .out = slot});
}

/* Of each query the mean with its key goes into it, and the mean of those into the key; then both are made long. (Not
 * side by side: attention would take them for norms of its own, behind which keys are not scaled.) */
static bool add_means(struct builder *b, int l)
{
    struct pp_op scale = {.kind = PP_OP_AFFINE, .layer = l, .in = b->k, .in2 = NONE, .out = b->k};
    const int64_t dim = b->shape.head_dim, each = b->shape.n_head / b->shape.n_head_kv;
    add_repeat(b, l, pp_plan_part(b->p, b->qk_before, b->n_q, b->n_kv), dim, each, b->means);
    add_sum(b, l, 0, pp_plan_part(b->p, b->qk_before, 0, b->n_q), b->means);
    add(b, (struct pp_op){.kind = PP_OP_APPLY, .fn = PP_FN_SCALE, .scale = 0.5f, .layer = l, .in = b->means,
                          .in2 = NONE, .out = b->means});
    add_sum(b, l, 0, b->means, b->q);
    make_long(b, l, b->q);
    for (int64_t i = 0; i < each; i++) {
        add_take(b, l, b->means, each * dim, i * dim, dim, b->key_means);
        add_sum(b, l, 1.0f / (float)each, b->key_means, b->k);
    }
    make_long(b, l, b->k);
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
    } parts[] = {{"attn_q", b->n_q, pp_plan_part(b->p, b->qk_before, 0, b->n_q)},
                 {"attn_k", b->n_kv, pp_plan_part(b->p, b->qk_before, b->n_q, b->n_kv)},
                 {"attn_v", half, pp_plan_part(b->p, b->v, 0, half)},
                 {"attn_v_last", half, b->v_last}};
    for (int i = 0; i < 4; i++) {
        const int linear = pp_plan_linear(b->p, b->s, parts[i].n_out, n, b->err, "blk.%d.%s", l, parts[i].kind);
        if (linear < 0)
            return false;
        add_linear(b, l, linear, b->normed, parts[i].out);
    }
    return add_last(b, l, b->v_last, NULL, pp_plan_part(b->p, b->v, half, half)) && add_convolutions(b, l) &&
           add_means(b, l);
}

void pp_convolved_slots(struct builder *b)
{
    const int64_t n = b->n_q + b->n_kv;
    b->qk_before = pp_plan_slot(b->p, n);
    b->qk_first = pp_plan_slot(b->p, n);
    b->qk_last = pp_plan_slot(b->p, n);
    b->qk_own = pp_plan_slot(b->p, n);
    b->qkv = pp_plan_slot(b->p, n);
    b->q = pp_plan_part(b->p, b->qkv, 0, b->n_q);
    b->k = pp_plan_part(b->p, b->qkv, b->n_q, b->n_kv);
    b->v = pp_plan_slot(b->p, b->n_v);
    b->v_last = pp_plan_slot(b->p, b->n_v / 2);
    b->means = pp_plan_slot(b->p, b->n_q);
    b->key_means = pp_plan_slot(b->p, b->n_kv);
}

/* From `normed` to `router`. */
bool pp_deep_router(struct builder *b, int l)
{
    static const char *const kinds[] = {"ffn_router_1", "ffn_router_2", "ffn_gate_inp"};
    const struct pp_hparams *hp = b->hp;
    const int64_t n = hp->router_rank;
    const int slots[] = {b->routed_part[0], b->routed_part[1], b->routed_part[0], b->router};
    const int in = pp_plan_linear(b->p, b->s, n, hp->n_embd, b->err, "blk.%d.ffn_router_in", l);
    struct pp_op carry = {.kind = PP_OP_MULTIPLY, .layer = l, .in = b->routed, .in2 = NONE, .out = b->routed};
    struct pp_op norm = {.kind = PP_OP_NORM, .layer = l, .in = b->routed, .in2 = NONE, .out = slots[0]};
    if (in < 0)
        return false;
    add_linear(b, l, in, b->normed, l ? slots[0] : b->routed);
    if (l && !(carry.weight = pp_plan_tensor(b->s, 0, n, b->err, "blk.%d.ffn_router_carry.weight", l)))
        return false;
    if (l) {
        add(b, carry);
        add_sum(b, l, 0, slots[0], b->routed);
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
            add(b, (struct pp_op){.kind = PP_OP_APPLY, .fn = PP_FN_GELU, .layer = l, .in = slots[i + 1], .in2 = NONE,
                                  .out = slots[i + 1]});
    }
    return true;
}
