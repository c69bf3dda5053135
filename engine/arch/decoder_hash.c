/* decoder_hash.c - Qwen 4's n-gram embeddings: hashes of a token and those before it select rows of a large table,
 * from which a value is projected, and a key for each residual stream. To each stream is added the value, weighted by
 * how well its key matches the stream, and a convolution of such weighted values over a few positions. The tokens
 * before the row's own come from the cache, as in decoder_ngram.c. */
#include <math.h>
#include <stdio.h>

#include "engine/arch/decoder_int.h"

/* From the row's token and those before it to the selected rows of the table, side by side. */
static bool add_rows(struct builder *b, int l, int out)
{
    const struct pp_hashed *h = &b->hp->hashed;
    const int tokens = pp_plan_slot(b->p, h->size - 1), before = pp_plan_slot(b->p, h->size - 1);
    int64_t n = h->parts, needed = 0;
    struct pp_op convolve = {.kind = PP_OP_CONVOLVE, .layer = l, .window = h->size, .in = tokens, .in2 = NONE,
                             .out = before};
    struct pp_op hash = {.kind = PP_OP_HASH, .layer = l, .hashed = h, .in = before, .in2 = NONE, .out = out};
    hash.tables = pp_plan_tables(b->p, b->s, "per_layer_token_embd.weight", &n, h->width, b->err, "blk.%d.ple_embd", l);
    if (!hash.tables || !(convolve.weight = pp_plan_history(b->p, h->size - 1, b->err)))
        return false;
    hash.weight = hash.tables[0];
    hash.count = n;
    for (int64_t i = 0; i < (h->size - 1) * h->heads; i++)
        needed += h->n_rows[i];
    if (hash.weight->ne[1] > INT64_MAX / n || hash.weight->ne[1] * n < needed) {
        pp_fail(b->err, PP_ERR_FORMAT, "%s: %lld rows of embeddings of several tokens are needed, and there are fewer",
                pp_source_path(b->s), (long long)needed);
        return false;
    }
    add(b, (struct pp_op){.kind = PP_OP_TOKEN, .layer = l, .at = 1, .in = NONE, .in2 = NONE, .out = tokens});
    add(b, convolve);
    add(b, hash);
    return true;
}

static bool add_stream_norm(struct builder *b, int l, const char *kind, int streams)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%d.ple_norm_%s", l, kind);
    return pp_hyper_norm(b, l, name, streams);
}

bool pp_hash_embeddings(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    const struct pp_hashed *h = &hp->hashed;
    const int64_t n = hp->n_stream, n_embd = hp->n_embd, wide = n * n_embd, n_in = (h->size - 1) * h->heads * h->width;
    const int rows = pp_plan_slot(b->p, n_in), value = b->delta, query = b->streams[1], key = b->stream_gates;
    const int values = pp_plan_slot(b->p, wide), roots = pp_plan_slot(b->p, n);
    const int key_proj = pp_plan_linear(b->p, b->s, wide, n_in, b->err, "blk.%d.ple_key", l);
    const int value_proj = key_proj < 0 ? -1 : pp_plan_linear(b->p, b->s, n_embd, n_in, b->err, "blk.%d.ple_value", l);
    struct pp_op convolve = {.kind = PP_OP_CONVOLVE, .layer = l, .window = (h->taps - 1) * h->size + 1,
                             .period = h->size, .in = query, .in2 = NONE, .out = key};
    if (value_proj < 0 ||
        !(convolve.weight = pp_plan_flat(b->p, b->s, wide, h->taps, b->err, "blk.%d.ple_conv1d.weight", l)) ||
        !add_rows(b, l, rows))
        return false;
    add_linear(b, l, key_proj, rows, key);
    add_linear(b, l, value_proj, rows, value);
    if (!add_stream_norm(b, l, "key", key))
        return false;
    add_copy(b, l, b->streams[0], query);
    if (!add_stream_norm(b, l, "query", query))
        return false;
    add(b, (struct pp_op){.kind = PP_OP_ROOTS, .layer = l, .count = n, .scale = 1.0f / sqrtf((float)n_embd), .in = key,
                          .in2 = query, .out = roots});
    add_repeat(b, l, value, n_embd, n, values);
    add_weighed(b, l, PP_FN_SIGMOID, roots, values, values);
    add_copy(b, l, values, query);
    if (!add_stream_norm(b, l, "conv", query))
        return false;
    add(b, convolve);
    add_fn(b, l, PP_FN_SILU, 0, key, key);
    add_to(b, l, values, b->streams[0]);
    add_to(b, l, key, b->streams[0]);
    return true;
}
