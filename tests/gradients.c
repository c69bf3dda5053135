/* gradients.c - see gradients.h. */
#include "tests/gradients.h"

#include <math.h>

static const double STEP = 1e-5;

static uint32_t random_state = 1;

void random_from(uint32_t seed)
{
    random_state = seed;
}

double random_value(void)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (double)(random_state >> 8) / 8388608.0 - 1.0;
}

void fill(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)random_value();
}

double derivative(double (*f)(void *user), void *user, double *x)
{
    double at = *x, above, below;
    *x = at + STEP;
    above = f(user);
    *x = at - STEP;
    below = f(user);
    *x = at;
    return (above - below) / (2 * STEP);
}

void widen(double *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = (double)from[i];
}

void ref_norm(const double *x, const float *w, double eps, int64_t n, double *y)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] / sqrt(sum / (double)n + eps) * (double)w[i];
}

double ref_silu(double g)
{
    return g / (1 + exp(-g));
}

double ref_cross_entropy(const double *logits, int64_t n, int64_t target)
{
    double most = logits[0], sum = 0;
    for (int64_t i = 0; i < n; i++)
        most = logits[i] > most ? logits[i] : most;
    for (int64_t i = 0; i < n; i++)
        sum += exp(logits[i] - most);
    return log(sum) + most - logits[target];
}
