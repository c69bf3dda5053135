/* decoder_hyper.c - several residual streams, of which every part of a layer reads a sum and to all of which it writes:
 * hyper-connections (arXiv 2409.19606), and manifold-constrained ones (arXiv 2512.24880). plan.h has the formulas. */
#include <stdio.h>

#include "engine/arch/decoder_int.h"

/* The numbers of a part called NAME, from all streams, normed together; and what it reads, in the stream's slot.
 * `ends`: behind the last layer, where nothing is written. */
static bool connect(struct builder *b, int l, const char *name, bool ends)
{
    const struct pp_hparams *hp = b->hp;
    const int64_t n = hp->n_stream, width = n * hp->n_embd;
    const bool mixes = hp->connection.rounds > 0;
    const int64_t n_numbers = ends ? n : mixes ? 2 * n + n * n : 2 * n;
    const int linear = pp_plan_linear(b->p, b->s, n_numbers, width, b->err, "%s_fn", name);
    const int product = pp_plan_part(b->p, b->mixing, 0, n_numbers);
    struct pp_op op = {.kind = PP_OP_CONNECT, .layer = l, .count = n, .in = product, .in2 = NONE,
                       .out = pp_plan_part(b->p, b->spreading, 0, n_numbers)};
    op.connection = (struct pp_connection){.least = hp->connection.least, .most = hp->connection.most,
                                           .write_least = hp->connection.write_least,
                                           .rounds = (int)hp->connection.rounds};
    if (linear < 0 ||
        !(op.weight = pp_plan_tensor(b->s, 0, ends ? 1 : mixes ? 3 : 2, b->err, "%s_scale.weight", name)) ||
        !(op.bias = pp_plan_tensor(b->s, 0, n_numbers, b->err, "%s_base.weight", name)))
        return false;
    add(b, (struct pp_op){.kind = PP_OP_NORM, .layer = l, .weight = b->stream_ones, .in = b->streams[0], .in2 = NONE,
                          .out = b->streams[1]});
    add_linear(b, l, linear, b->streams[1], product);
    add(b, op);
    add(b, (struct pp_op){.kind = PP_OP_READ_STREAMS, .layer = l, .count = n, .in = b->streams[0], .in2 = op.out,
                          .out = b->x});
    return true;
}

bool pp_hyper_begin(struct builder *b, int l, const char *part)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%d.hc_%s", l, part);
    return connect(b, l, name, false);
}

void pp_hyper_end(struct builder *b, int l)
{
    add(b, (struct pp_op){.kind = PP_OP_WRITE_STREAMS, .layer = l, .count = b->hp->n_stream, .in = b->delta,
                          .in2 = b->spreading, .out = b->streams[0]});
}

bool pp_hyper_split(struct builder *b)
{
    const int64_t n = b->hp->n_stream, n_embd = b->hp->n_embd;
    b->streams[0] = pp_plan_slot(b->p, n * n_embd);
    b->streams[1] = pp_plan_slot(b->p, n * n_embd);
    b->mixing = pp_plan_slot(b->p, 2 * n + (b->hp->connection.rounds ? n * n : 0));
    b->spreading = pp_plan_slot(b->p, 2 * n + (b->hp->connection.rounds ? n * n : 0));
    if (!(b->stream_ones = pp_plan_ones(b->p, n * n_embd, b->err)))
        return false;
    add_repeat(b, 0, b->x, n_embd, n, b->streams[0]);
    return true;
}

/* Behind the last layer. */
static void add_mean(struct builder *b)
{
    const int64_t n = b->hp->n_stream, n_embd = b->hp->n_embd;
    const float part = 1.0f / (float)n;
    const int l = (int)b->hp->n_layer;
    add(b, (struct pp_op){.kind = PP_OP_APPLY, .fn = PP_FN_SCALE, .scale = part, .layer = l,
                          .in = pp_plan_part(b->p, b->streams[0], 0, n_embd), .in2 = NONE, .out = b->x});
    for (int64_t i = 1; i < n; i++)
        add(b, (struct pp_op){.kind = PP_OP_ADD, .scale = part, .layer = l, .in2 = NONE, .out = b->x,
                              .in = pp_plan_part(b->p, b->streams[0], i * n_embd, n_embd)});
}

bool pp_hyper_join(struct builder *b)
{
    if (b->hp->stream_mean) {
        add_mean(b);
        return true;
    }
    return connect(b, (int)b->hp->n_layer, "output_hc", true);
}
