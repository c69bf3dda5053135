/* convolved.h - a small model whose layers begin with short convolutions, or states, for tests of what those leave in
 * the cache. */
#ifndef PP_TESTS_CONVOLVED_H
#define PP_TESTS_CONVOLVED_H

struct pp_model;

/* Changes the plan of an opened model: in front of each layer the residual stream x becomes x + f(x), f being a
 * convolution over n_taps positions, in the second layer with a bias, a function and a gate. Layers are not placed in
 * tiers again. */
void convolve_layers(struct pp_model *m, int n_taps);

/* Likewise with the gated delta rule, whose queries, keys, values and all else are parts of x. */
void recur_layers(struct pp_model *m);

#endif
