/* decoder_lru.c - Griffin's RG-LRU block (arXiv 2402.19427): a short convolution, two gates with block-diagonal
 * matrices, a state of one number for each channel, and a GELU branch that multiplies the output. */
#include "engine/arch/decoder_int.h"

/* A gate's block-diagonal matrix; its bias is added by the recurrence. */
static bool add_gate(struct builder *b, int l, const char *kind, int out)
{
    const int64_t n = b->hp->n_head, size = b->hp->lru_width / n;
    const int heads = pp_plan_heads(b->p, b->s, (int)n, size, size, b->err, "blk.%d.%s.weight", l, kind);
    add(b, (struct pp_op){.kind = PP_OP_HEADS, .layer = l, .heads = heads, .in = b->convolved, .in2 = NONE,
                          .out = out});
    return heads >= 0;
}

/* A gate's bias, a row for each block. */
static const struct pp_tensor *find_biases(struct builder *b, int l, const char *kind)
{
    return pp_plan_tensor(b->s, b->hp->n_head, b->hp->lru_width / b->hp->n_head, b->err, "blk.%d.%s.bias", l, kind);
}

bool pp_lru_result(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    const int64_t n = hp->lru_width;
    const int heads = (int)hp->n_state_head, dim = (int)hp->state_key_dim;
    struct pp_recurrence r = {.kind = PP_RECUR_LRU, .q = b->convolved, .k = b->convolved, .v = b->convolved,
                              .decay = b->decay, .beta = b->beta, .removal_key = NONE};
    struct pp_op convolve = {.kind = PP_OP_CONVOLVE, .layer = l, .window = hp->conv_taps, .in = b->mixed, .in2 = NONE,
                             .out = b->convolved};
    const int x = pp_plan_linear(b->p, b->s, n, hp->n_embd, b->err, "blk.%d.lru_x", l);
    const int y = x < 0 ? -1 : pp_plan_linear(b->p, b->s, n, hp->n_embd, b->err, "blk.%d.lru_y", l);
    const int out = y < 0 ? -1 : pp_plan_linear(b->p, b->s, hp->n_embd, n, b->err, "blk.%d.lru_out", l);
    if (out < 0 || !add_norm(b, l, "attn_norm", b->x, b->normalised) ||
        !(convolve.weight = pp_plan_tensor(b->s, n, hp->conv_taps, b->err, "blk.%d.lru_conv1d.weight", l)) ||
        !(convolve.bias = pp_plan_tensor(b->s, 0, n, b->err, "blk.%d.lru_conv1d.bias", l)) ||
        !(r.rate = pp_plan_tensor(b->s, 0, n, b->err, "blk.%d.lru_a", l)) ||
        !(r.bias = find_biases(b, l, "lru_a_gate")) || !(r.direct = find_biases(b, l, "lru_in_gate")))
        return false;
    add_linear(b, l, x, b->normalised, b->mixed);
    add_linear(b, l, y, b->normalised, b->state_gate);
    add(b, convolve);
    if (!add_gate(b, l, "lru_a_gate", b->decay) || !add_gate(b, l, "lru_in_gate", b->beta))
        return false;
    r.shape = (struct pp_state_shape){.n_key_head = heads, .n_head = heads, .key_dim = dim, .value_dim = dim,
                                      .n_inputs = 2 * dim * dim};
    add(b, (struct pp_op){.kind = PP_OP_RECUR, .layer = l, .recurrence = pp_plan_recurrence(b->p, &r), .in = NONE,
                          .in2 = NONE, .out = b->state});
    add_gated(b, l, pp_decoder_fn(b->d, hp), b->state_gate, b->state, b->state);
    add_linear(b, l, out, b->state, b->delta);
    return true;
}

void pp_lru_slots(struct builder *b)
{
    int *const slots[] = {&b->mixed, &b->convolved, &b->state_gate, &b->decay, &b->beta, &b->state};
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++)
        *slots[i] = pp_plan_slot(b->p, b->hp->lru_width);
}
