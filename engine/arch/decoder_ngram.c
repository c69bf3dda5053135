/* decoder_ngram.c - LongCat-Flash-Lite's n-gram embeddings: a token and those before it are hashed into tables of
 * different sizes, each followed by a matrix, and the mean with the token's own embedding is taken.
 *
 * The earlier tokens come from a convolution whose input is the token's number and whose taps select one position each:
 * so they are kept, dropped and restored with the rest of a sequence's cache. */
#include "engine/arch/decoder_int.h"

/* One embedding of n_tokens tokens, added to the stream. before: the slot of earlier tokens; low: of the embedding. */
static bool add_ngram(struct builder *b, int index, int64_t n_tokens, int before, int low)
{
    const struct pp_hparams *hp = b->hp;
    const int64_t width = hp->n_embd / (hp->ngram.splits * (hp->ngram.size - 1));
    struct pp_op op = {.kind = PP_OP_NGRAM, .count = n_tokens - 1, .at = hp->ngram.end, .period = hp->n_vocab,
                       .in = before, .in2 = NONE, .out = low};
    const int proj = pp_plan_linear(b->p, b->s, hp->n_embd, width, b->err, "ngram_proj.%d", index);
    op.weight = pp_plan_tensor(b->s, hp->ngram.base + 2 * index + 1, width, b->err, "ngram_embd.%d.weight", index);
    if (proj < 0 || !op.weight)
        return false;
    add(b, op);
    add_linear(b, 0, proj, low, b->delta);
    add_to(b, 0, b->delta, b->x);
    return true;
}

bool pp_ngram_embeddings(struct builder *b)
{
    const int64_t size = b->hp->ngram.size, splits = b->hp->ngram.splits, n = splits * (size - 1);
    const int tokens = pp_plan_slot(b->p, size - 1), before = pp_plan_slot(b->p, size - 1);
    const int low = pp_plan_slot(b->p, b->hp->n_embd / n);
    struct pp_op convolve = {.kind = PP_OP_CONVOLVE, .window = size, .in = tokens, .in2 = NONE, .out = before};
    if (!(convolve.weight = pp_plan_history(b->p, size - 1, b->err)))
        return false;
    add(b, (struct pp_op){.kind = PP_OP_TOKEN, .in = NONE, .in2 = NONE, .out = tokens});
    add(b, convolve);
    for (int i = 0; i < n; i++)
        if (!add_ngram(b, i, 2 + i / splits, before, low))
            return false;
    add_fn(b, 0, PP_FN_SCALE, 1.0f / (float)(1 + n), b->x, b->x);
    return true;
}
