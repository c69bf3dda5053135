/* decoder_altup.c - AltUp (arXiv 2301.13310) as in Gemma 3n: several residual streams. A layer predicts the streams
 * from their present values, computes the first one, and corrects all by the error of the first one's prediction. The
 * per-layer input is added to all but the first. In parallel with attention there is LAuReL's low-rank branch (arXiv
 * 2411.07501). */
#include <math.h>

#include "engine/arch/decoder_int.h"

static void add_op(struct builder *b, enum pp_op_kind kind, int l, int in, int in2, int out)
{
    add(b, (struct pp_op){.kind = kind, .layer = l, .count = b->hp->n_stream, .in = in, .in2 = in2, .out = out});
}

static int stream(struct builder *b, int which, int i)
{
    return pp_plan_part(b->p, b->streams[which], i * b->hp->n_embd, b->hp->n_embd);
}

/* The coefficients of the prediction (n * n, in b->mixing) or of the correction (n, in b->spreading), from a stream. */
static bool add_coefficients(struct builder *b, int l, int from, const char *kind, int out)
{
    const int64_t n = b->hp->n_stream;
    const int router = pp_plan_linear(b->p, b->s, n, b->hp->n_embd, b->err, "blk.%d.altup_router", l);
    const int64_t n_out = out == b->mixing ? n * n : n;
    const int coefficients = router < 0 ? -1 : pp_plan_linear(b->p, b->s, n_out, n, b->err, "blk.%d.%s", l, kind);
    if (coefficients < 0 || !add_norm(b, l, "altup_router_norm", from, b->normalised))
        return false;
    add_linear(b, l, router, b->normalised, b->modalities);
    add_fn(b, l, PP_FN_SCALE, 1.0f / (float)b->hp->n_embd, b->modalities, b->modalities);
    add_fn(b, l, PP_FN_CAP, 1, b->modalities, b->modalities); /* tanh */
    add_linear(b, l, coefficients, b->modalities, out);
    return true;
}

/* LAuReL: attention's normalised input plus norm(W_r W_l input). For the sum the input is normalised once more, since a
 * norm that is fused into projections is not stored. */
static bool add_laurel(struct builder *b, int l)
{
    const int64_t n = b->hp->laurel_rank, n_embd = b->hp->n_embd;
    const int left = pp_plan_linear(b->p, b->s, n, n_embd, b->err, "blk.%d.laurel_l", l);
    const int right = left < 0 ? -1 : pp_plan_linear(b->p, b->s, n_embd, n, b->err, "blk.%d.laurel_r", l);
    if (right < 0)
        return false;
    add_linear(b, l, left, b->normalised, b->low);
    add_linear(b, l, right, b->low, b->laurel);
    if (!add_norm(b, l, "laurel_post_norm", b->laurel, b->laurel) || !add_norm(b, l, "attn_norm", b->x, b->normalised))
        return false;
    add_to(b, l, b->normalised, b->laurel);
    return true;
}

/* The per-layer input, gated by the first stream times a vector, is added to all streams but the first. */
static bool add_stream_input(struct builder *b, int l)
{
    const int64_t n = b->hp->n_embd_layer, n_embd = b->hp->n_embd;
    const struct pp_tensor *scale = pp_plan_tensor(b->s, 0, n_embd, b->err, "blk.%d.altup_correct_scale.weight", l);
    const int gate = !scale ? -1 : pp_plan_linear(b->p, b->s, n, n_embd, b->err, "blk.%d.inp_gate", l);
    const int proj = gate < 0 ? -1 : pp_plan_linear(b->p, b->s, n_embd, n, b->err, "blk.%d.proj", l);
    if (proj < 0)
        return false;
    add(b, (struct pp_op){.kind = PP_OP_MULTIPLY, .weight = scale, .layer = l, .in = stream(b, 1, 0), .in2 = NONE,
                          .out = b->x});
    add_linear(b, l, gate, b->x, b->input);
    add_gated(b, l, pp_decoder_fn(b->d, b->hp), b->input, pp_plan_part(b->p, b->inputs, l * n, n), b->input);
    add_linear(b, l, proj, b->input, b->delta);
    if (!add_norm(b, l, "post_norm", b->delta, b->delta))
        return false;
    for (int i = 1; i < b->hp->n_stream; i++)
        add_to(b, l, b->delta, stream(b, 1, i));
    return true;
}

bool pp_altup_layer(struct builder *b, int l)
{
    const int predicted = b->streams[1];
    if (!add_coefficients(b, l, stream(b, 0, 0), "altup_predict_coef", b->mixing))
        return false;
    add_op(b, PP_OP_MIX, l, b->streams[0], b->mixing, predicted);
    add_copy(b, l, stream(b, 1, 0), b->x);
    if (!pp_mixer_input(b, l) || !add_laurel(b, l) || !pp_mixer_result(b, l) ||
        !pp_attention_added(b, l))
        return false;
    add_to(b, l, b->laurel, b->x);
    add_fn(b, l, PP_FN_SCALE, sqrtf(0.5f), b->x, b->x);
    if (!pp_ff_norm(b, l) || !pp_ff_up(b, l, b->normalised) || !pp_ff_down(b, l) || !pp_ff_added(b, l) ||
        !add_coefficients(b, l, b->x, "altup_correct_coef", b->spreading))
        return false;
    add_sum(b, l, -1, stream(b, 1, 0), b->x);
    add_op(b, PP_OP_SPREAD, l, b->x, b->spreading, predicted);
    if (!add_stream_input(b, l))
        return false;
    b->streams[1] = b->streams[0];
    b->streams[0] = predicted;
    return true;
}

/* The first stream is the embedding, the others are projections of it, scaled to its length. */
bool pp_altup_split(struct builder *b)
{
    const int64_t n = b->hp->n_embd;
    add_copy(b, 0, b->x, stream(b, 0, 0));
    for (int i = 1; i < b->hp->n_stream; i++) {
        const int proj = pp_plan_linear(b->p, b->s, n, n, b->err, "altup_proj.%d", i - 1);
        if (proj < 0)
            return false;
        add_linear(b, 0, proj, b->x, b->delta);
        add_op(b, PP_OP_MATCH, 0, b->delta, b->x, stream(b, 0, i));
    }
    return true;
}

/* The mean of the first stream and of projections of the others, scaled to the first one's length. */
bool pp_altup_join(struct builder *b)
{
    const int64_t n = b->hp->n_embd;
    const int l = (int)b->hp->n_layer, first = stream(b, 0, 0);
    add_copy(b, l, first, b->x);
    for (int i = 1; i < b->hp->n_stream; i++) {
        const int proj = pp_plan_linear(b->p, b->s, n, n, b->err, "altup_unembd_proj.%d", i - 1);
        if (proj < 0)
            return false;
        add_linear(b, l, proj, stream(b, 0, i), b->delta);
        add_op(b, PP_OP_MATCH, l, b->delta, first, b->delta);
        add_to(b, l, b->delta, b->x);
    }
    add_fn(b, l, PP_FN_SCALE, 1.0f / (float)b->hp->n_stream, b->x, b->x);
    return true;
}

void pp_altup_slots(struct builder *b)
{
    const int64_t n = b->hp->n_stream;
    b->streams[0] = pp_plan_slot(b->p, n * b->hp->n_embd);
    b->streams[1] = pp_plan_slot(b->p, n * b->hp->n_embd);
    b->modalities = pp_plan_slot(b->p, n);
    b->mixing = pp_plan_slot(b->p, n * n);
    b->spreading = pp_plan_slot(b->p, n);
    b->low = pp_plan_slot(b->p, b->hp->laurel_rank);
    b->laurel = pp_plan_slot(b->p, b->hp->n_embd);
}
