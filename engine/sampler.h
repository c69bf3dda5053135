/* sampler.h - from logits to a token; private to the engine. The chain's order: struct pp_sampling in engine.h. */
#ifndef PP_ENGINE_SAMPLER_H
#define PP_ENGINE_SAMPLER_H

#include "engine/candidates.h"
#include "engine/engine.h"

/* Work space for one vocabulary; the choices themselves allocate nothing. */
struct pp_sampler {
    int32_t n_vocab;                /* may be lowered for a while: later logits are then ignored */
    float *logits;                  /* [n_vocab]: after penalties and bias */
    struct pp_candidates candidates;
    int32_t *counts;                /* [n_vocab]: all zero between calls */
    const int32_t *suppressed;      /* [n_suppressed]: tokens that are never chosen; the caller's, none at first */
    size_t n_suppressed;
    const uint64_t *allowed;        /* a bit per token: no other is chosen; the caller's. NULL: all may be */
};

/* Makes its arrays; PP_ERR_NOMEM leaves nothing to be freed. */
enum pp_code pp_sampler_init(struct pp_sampler *s, int64_t n_vocab, struct pp_error *err);
void pp_sampler_free(struct pp_sampler *s);

/* A choice, and the second best, which a tree of draft tokens includes. margin: how much lower its score was (score:
 * the logit or, at a temperature, the logit over the temperature plus noise); where it is large, another model would
 * choose alike. */
struct pp_choice {
    int32_t token, second; /* -1: none */
    float margin;
};
/* The token at index n_history of a text whose tokens so far are history [n_history]. logits: float [n_vocab], not
 * changed; NaN and -INFINITY forbid a token. The same arguments always give the same token. -1: all are forbidden. */
struct pp_choice pp_sampler_choose(struct pp_sampler *s, const struct pp_sampling *p, const float *logits,
                                   const int32_t *history, int64_t n_history);

#endif
