/* passes.h - runs a text through a model in several passes. */
#ifndef PP_TESTS_PASSES_H
#define PP_TESTS_PASSES_H

#include <stdint.h>

struct pp_engine;
struct pp_seq;

/* Computes n tokens after those in s, at most `rows` in a pass, and stores the logits of each: [n, n_vocab]. */
void run_in_passes(struct pp_engine *e, struct pp_seq *s, const int32_t *tokens, int n, int rows, float *logits);

#endif
