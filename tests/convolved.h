/* convolved.h - plans of small models that are changed once they are open: layers that begin with short convolutions or
 * states, for tests of what those leave in the cache; and what else a test puts into a plan. */
#ifndef PP_TESTS_CONVOLVED_H
#define PP_TESTS_CONVOLVED_H

#include <stdint.h>

struct pp_model;
struct pp_op;
struct pp_plan;
struct pp_tensor;

/* Puts n operations in front of the at-th. */
void insert_ops(struct pp_plan *p, int at, const struct pp_op *ops, int n);
/* Where a layer's first norm stands in the plan. */
int first_norm_of(const struct pp_plan *p, int layer);
/* Numbers of about -0.3 .. 0.3, rows of cols; the plan's. */
const struct pp_tensor *plan_numbers(struct pp_plan *p, int64_t rows, int64_t cols, unsigned seed);

/* Changes the plan of an opened model: in front of each layer the residual stream x becomes x + f(x), f being a
 * convolution over n_taps positions, in the second layer with a bias, a function and a gate. Layers are not placed in
 * tiers again. */
void convolve_layers(struct pp_model *m, int n_taps);

/* Likewise with the gated delta rule, whose queries, keys, values and all else are parts of x. */
void recur_layers(struct pp_model *m);

#endif
