/* rope.h - rotary position frequencies (RoFormer, arXiv 2104.09864) and their scalings. */
#ifndef PP_ENGINE_ROPE_H
#define PP_ENGINE_ROPE_H

#include "engine/source.h"

/* inv_freq: float [rope_dim / 2]. n_ctx: positions of a sequence, which DYNAMIC scaling goes by. factors: of
 * pp_rope_factors for this n_ctx, or NULL. *magnitude: what cosines and sines are multiplied by (YaRN, LongRoPE;
 * otherwise 1). */
void pp_rope_frequencies(const struct pp_hparams *hp, int64_t n_ctx, const float *factors, float *inv_freq,
                         float *magnitude);
/* What frequencies are divided by: float [rope_dim / 2], of rope_freqs.weight, or LongRoPE's for sequences of n_ctx
 * positions; pp_free. *factors NULL: the model has none. PP_ERR_FORMAT: they are no such numbers, or missing. */
enum pp_code pp_rope_factors(const struct pp_source *s, int64_t n_ctx, float **factors, struct pp_error *err);
/* That of LongRoPE. */
float pp_rope_long_magnitude(const struct pp_hparams *hp);
/* Whether frequencies for the one context differ from those for the other. */
static inline bool pp_rope_depends_on_context(const struct pp_hparams *hp)
{
    return hp->rope_scaling == PP_ROPE_DYNAMIC || hp->rope_scaling == PP_ROPE_LONG;
}

#endif
