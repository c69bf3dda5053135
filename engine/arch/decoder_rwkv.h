/* decoder_rwkv.h - what the layers of RWKV 4, 6 and 7 share. Private to decoder_rwkv.c, decoder_rwkv4.c and
 * decoder_rwkv6.c. */
#ifndef PP_ENGINE_ARCH_DECODER_RWKV_H
#define PP_ENGINE_ARCH_DECODER_RWKV_H

#include "engine/arch/decoder_int.h"

static inline void add_fn(struct builder *b, int l, enum pp_fn fn, float scale, int slot, int out)
{
    add(b, (struct pp_op){.kind = PP_OP_APPLY, .fn = fn, .scale = scale, .layer = l, .in = slot, .in2 = NONE,
                          .out = out});
}

static inline void add_sum(struct builder *b, int l, float scale, int in, int out)
{
    add(b, (struct pp_op){.kind = PP_OP_ADD, .layer = l, .scale = scale, .in = in, .in2 = NONE, .out = out});
}

static inline const struct pp_tensor *find_vector(struct builder *b, int l, const char *kind)
{
    return pp_plan_tensor(b->s, 0, b->hp->n_embd, b->err, "blk.%d.%s.weight", l, kind);
}

/* From the residual stream to a normed input, and by how much the last position's is larger. */
bool pp_rwkv_shift(struct builder *b, int l, const char *norm);
/* blend = normed + shift * weight */
void pp_rwkv_blend(struct builder *b, int l, const struct pp_tensor *weight);
/* Norm, mixing and the two matrices of the feed-forward part, into delta; false: *err is set. */
bool pp_rwkv_feed_forward(struct builder *b, int l);
/* All of RWKV 6's feed-forward part, which a gate ends, added to the residual stream; false: *err is set. */
bool pp_rwkv_channel_mix(struct builder *b, int l);
/* The n vectors of all ways to mix, in one tensor whose dimensions of one some files have in the middle; NULL: *err is
 * set. */
const struct pp_tensor *pp_rwkv_mixes(struct builder *b, int l, int n);

#endif
