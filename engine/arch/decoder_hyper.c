/* decoder_hyper.c - several residual streams. Every part of a layer reads a weighted sum of them and writes to all:
 * hyper-connections (arXiv 2409.19606) and manifold-constrained ones (arXiv 2512.24880), whose formulas are in plan.h.
 * Or, in Qwen 4, gated residuals: parts read the mean of all streams, each value multiplied by a gate of its own. */
#include <stdio.h>

#include "engine/arch/decoder_int.h"

/* Computes the coefficients of the connection NAME from all streams, normalised together, and x, which the part reads.
 * ends: it is the one after the last layer, which only reads. */
static bool add_connection(struct builder *b, int l, const char *name, bool last)
{
    const struct pp_hparams *hp = b->hp;
    const int64_t n = hp->n_stream, width = n * hp->n_embd;
    const bool mixes = hp->connection.sinkhorn_iters > 0;
    const int64_t n_coefficients = last ? n : mixes ? 2 * n + n * n : 2 * n;
    const int linear = pp_plan_linear(b->p, b->s, n_coefficients, width, b->err, "%s_fn", name);
    const int product = pp_plan_part(b->p, b->mixing, 0, n_coefficients);
    struct pp_op op = {.kind = PP_OP_CONNECT, .layer = l, .count = n, .in = product, .in2 = NONE,
                       .out = pp_plan_part(b->p, b->spreading, 0, n_coefficients)};
    op.connection = (struct pp_connection){.eps = hp->connection.eps, .write_scale = hp->connection.write_scale,
                                           .write_eps = hp->connection.write_eps,
                                           .sinkhorn_iters = (int)hp->connection.sinkhorn_iters};
    if (linear < 0 ||
        !(op.weight = pp_plan_tensor(b->s, 0, last ? 1 : mixes ? 3 : 2, b->err, "%s_scale.weight", name)) ||
        !(op.bias = pp_plan_tensor(b->s, 0, n_coefficients, b->err, "%s_base.weight", name)))
        return false;
    add(b, (struct pp_op){.kind = PP_OP_NORM, .layer = l, .weight = b->stream_ones, .in = b->streams[0], .in2 = NONE,
                          .out = b->streams[1]});
    add_linear(b, l, linear, b->streams[1], product);
    add(b, op);
    add(b, (struct pp_op){.kind = PP_OP_READ_STREAMS, .layer = l, .count = n, .in = b->streams[0], .in2 = op.out,
                          .out = b->x});
    return true;
}

/* x = the mean of the streams in a slot. */
static void add_mean(struct builder *b, int l, int streams)
{
    const int64_t n = b->hp->n_stream, n_embd = b->hp->n_embd;
    const float part = 1.0f / (float)n;
    add_fn(b, l, PP_FN_SCALE, part, pp_plan_part(b->p, streams, 0, n_embd), b->x);
    for (int64_t i = 1; i < n; i++)
        add_sum(b, l, part, pp_plan_part(b->p, streams, i * n_embd, n_embd), b->x);
}

bool pp_hyper_norm(struct builder *b, int l, const char *name, int streams)
{
    struct pp_op norm = {.kind = PP_OP_HEAD_NORM, .layer = l, .in = streams, .in2 = NONE, .out = streams};
    norm.weight = pp_plan_rows(b->p, b->s, b->hp->n_stream, b->hp->n_embd, b->err, "%s.weight", name);
    add(b, norm);
    return norm.weight != NULL;
}

/* Qwen 4: computes a gate for each value of all streams, from the streams normalised one by one, x, and the
 * coefficients by which the part's output is written. ends: as above. */
static bool add_gated_residual(struct builder *b, int l, const char *name, bool last)
{
    const int64_t n = b->hp->n_stream, width = n * b->hp->n_embd;
    const float part = 1.0f / (float)n;
    const int down = pp_plan_linear(b->p, b->s, b->hp->stream_rank, width, b->err, "%s_down", name);
    const int up = down < 0 ? -1 : pp_plan_linear(b->p, b->s, width, b->hp->stream_rank, b->err, "%s_up", name);
    const int inject = last || up < 0 ? 0 : pp_plan_linear(b->p, b->s, n, width, b->err, "%s_inject", name);
    const int write = pp_plan_part(b->p, b->spreading, n, n);
    char norm[80];
    snprintf(norm, sizeof norm, "%s_norm", name);
    if (up < 0 || inject < 0)
        return false;
    add_copy(b, l, b->streams[0], b->streams[1]);
    if (!pp_hyper_norm(b, l, norm, b->streams[1]))
        return false;
    add_linear(b, l, down, b->streams[1], b->mixing);
    if (!last)
        add_linear(b, l, inject, b->streams[1], write);
    add_fn(b, l, PP_FN_SCALE, part, b->mixing, b->mixing);
    add_fn(b, l, PP_FN_SILU, 0, b->mixing, b->mixing);
    if (!last) {
        add_fn(b, l, PP_FN_SCALE, part, write, write);
        add_fn(b, l, PP_FN_SIGMOID, 0, write, write);
        add_fn(b, l, PP_FN_SCALE, 2, write, write);
    }
    add_linear(b, l, up, b->mixing, b->stream_gates);
    add_gated(b, l, PP_FN_SIGMOID, b->stream_gates, b->streams[1], b->stream_gates);
    add_mean(b, l, b->stream_gates);
    return true;
}

bool pp_hyper_begin(struct builder *b, int l, const char *part)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%d.hc_%s", l, part);
    return (b->hp->stream_rank ? add_gated_residual : add_connection)(b, l, name, false);
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
    if (b->hp->stream_rank) {
        b->mixing = pp_plan_slot(b->p, b->hp->stream_rank);
        b->spreading = pp_plan_slot(b->p, 2 * n);
        b->stream_gates = pp_plan_slot(b->p, n * n_embd);
        add_repeat(b, 0, b->x, n_embd, n, b->streams[0]);
        return true;
    }
    b->mixing = pp_plan_slot(b->p, 2 * n + (b->hp->connection.sinkhorn_iters ? n * n : 0));
    b->spreading = pp_plan_slot(b->p, 2 * n + (b->hp->connection.sinkhorn_iters ? n * n : 0));
    if (!(b->stream_ones = pp_plan_ones(b->p, n * n_embd, b->err)))
        return false;
    add_repeat(b, 0, b->x, n_embd, n, b->streams[0]);
    return true;
}

bool pp_hyper_join(struct builder *b)
{
    const int l = (int)b->hp->n_layer;
    if (b->hp->stream_mean) {
        add_mean(b, l, b->streams[0]);
        return true;
    }
    return (b->hp->stream_rank ? add_gated_residual : add_connection)(b, l, "output_hc", true);
}
