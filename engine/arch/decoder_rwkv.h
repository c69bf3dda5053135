/* decoder_rwkv.h - shared by the layers of RWKV 4, 6 and 7. Private to decoder_rwkv.c, decoder_rwkv4.c and
 * decoder_rwkv6.c.
 *
 * A layer is a time mix, which has the states, and a channel mix, the feed-forward part. The inputs of both are blends
 * of the present position and the one before ("token shift"), with a weight for each value. */
#ifndef PP_ENGINE_ARCH_DECODER_RWKV_H
#define PP_ENGINE_ARCH_DECODER_RWKV_H

#include "engine/arch/decoder_int.h"

static inline const struct pp_tensor *find_vector(struct builder *b, int l, const char *kind)
{
    return pp_plan_tensor(b->s, 0, b->hp->n_embd, b->err, "blk.%d.%s.weight", l, kind);
}

/* normalised = the norm of the residual stream; shift = the previous position's normalised - normalised */
bool pp_rwkv_shift(struct builder *b, int l, const char *norm);
/* blend = normalised + shift * weight */
void pp_rwkv_blend(struct builder *b, int l, const struct pp_tensor *weight);
/* The channel mix without its gate, from the residual stream to delta; false: *err is set. */
bool pp_rwkv_feed_forward(struct builder *b, int l);
/* RWKV 4's and 6's whole channel mix, with its gate, added to the residual stream; false: *err is set. */
bool pp_rwkv_channel_mix(struct builder *b, int l);
/* time_mix_lerp_fused, the n vectors of blend weights in one tensor, which may have dimensions of 1 in the middle;
 * NULL: *err is set. */
const struct pp_tensor *pp_rwkv_mixes(struct builder *b, int l, int n);

#endif
