/* rope.h - rotary position frequencies (RoFormer, arXiv 2104.09864) and their scalings. */
#ifndef PP_ENGINE_ROPE_H
#define PP_ENGINE_ROPE_H

#include "engine/source.h"

/* inv_freq: float [rope_dim / 2]. factors: rope_freqs.weight of a GGUF file, float [rope_dim / 2], or NULL. *magnitude:
 * what cosines and sines are multiplied by (YaRN; otherwise 1). */
void pp_rope_frequencies(const struct pp_hparams *hp, const float *factors, float *inv_freq, float *magnitude);

#endif
