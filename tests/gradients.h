/* gradients.h - references for the tests of training: finite differences, and operations in double precision. */
#ifndef PP_TESTS_GRADIENTS_H
#define PP_TESTS_GRADIENTS_H

#include <stdint.h>

/* Random numbers from -1 to 1 of a sequence that depends on the seed: each group of tests begins with one, so that
 * other groups do not matter. */
void random_from(uint32_t seed);
double random_value(void);
/* x: [n] such values. */
void fill(float *x, int64_t n);
void widen(double *to, const float *from, int64_t n);
/* Derivative of f(user) by *x, from both sides. */
double derivative(double (*f)(void *user), void *user, double *x);

/* y: [n], x over its root mean square, times w. */
void ref_norm(const double *x, const float *w, double eps, int64_t n, double *y);
double ref_silu(double g);
/* -log of the probability of target under the softmax of logits: [n]. */
double ref_cross_entropy(const double *logits, int64_t n, int64_t target);

#endif
