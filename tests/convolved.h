/* convolved.h - changes to the plans of small models after they were opened, for tests of what layers cache: layers
 * begin with short convolutions or recurrent states; and other additions to a plan. */
#ifndef PP_TESTS_CONVOLVED_H
#define PP_TESTS_CONVOLVED_H

#include <stdint.h>

struct pp_model;
struct pp_op;
struct pp_plan;
struct pp_tensor;

/* Inserts n operations before operation `at`. */
void insert_ops(struct pp_plan *p, int at, const struct pp_op *ops, int n);
/* The index of a layer's first norm in the plan. */
int first_norm_of(const struct pp_plan *p, int layer);
/* A matrix of values between about -0.3 and 0.3, which the plan owns. */
const struct pp_tensor *plan_numbers(struct pp_plan *p, int64_t rows, int64_t cols, unsigned seed);

/* Changes the plan of an opened model: before each layer the residual stream x becomes x + f(x), where f is a
 * convolution over n_taps positions, in the second layer with a bias, a function and a gate. Tiers are not assigned
 * anew. */
void convolve_layers(struct pp_model *m, int n_taps);

/* The same with the gated delta rule, whose queries, keys, values and other inputs are parts of x. */
void recur_layers(struct pp_model *m);

#endif
