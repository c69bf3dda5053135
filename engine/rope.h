/* rope.h - rotary position frequencies (RoFormer, arXiv 2104.09864) and their scalings. */
#ifndef PP_ENGINE_ROPE_H
#define PP_ENGINE_ROPE_H

#include "engine/source.h"

/* inv_freq: float [rope_dim / 2]. n_ctx: positions of a sequence, on which DYNAMIC scaling depends. factors: from
 * pp_rope_factors for this n_ctx, or NULL. *magnitude: a factor of cosines and sines (YaRN, LongRoPE; otherwise 1). */
void pp_rope_frequencies(const struct pp_hparams *hp, int64_t n_ctx, const float *factors, float *inv_freq,
                         float *magnitude);
/* Divisors of frequencies: float [rope_dim / 2], from rope_freqs.weight, or LongRoPE's for sequences of n_ctx
 * positions; pp_free. *factors NULL: the model has none. PP_ERR_FORMAT: some are missing or not positive. */
enum pp_code pp_rope_factors(const struct pp_source *s, int64_t n_ctx, float **factors, struct pp_error *err);
/* The *magnitude of LongRoPE. */
float pp_rope_long_magnitude(const struct pp_hparams *hp);
/* Whether frequencies for the one context differ from those for the other. */
static inline bool pp_rope_depends_on_context(const struct pp_hparams *hp)
{
    return hp->rope_scaling == PP_ROPE_DYNAMIC || hp->rope_scaling == PP_ROPE_LONG;
}

#endif
