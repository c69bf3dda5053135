/* scan_formulas.c - the first Mamba in double precision, as in the slow forward pass of transformers' MambaMixer and
 * in the variants of FalconMamba and Jamba: each channel by itself, one position after the other. */
#include <math.h>

#include "engine/base/mem.h"
#include "tests/expert_model_int.h"
#include "tests/small_model.h"
#include "tests/support.h"

static const float *values_of(const struct expert_model *m, int l, const char *kind)
{
    const struct array *a = expert_find(m, l, kind);
    assert_non_null(a);
    return a->values;
}

/* y = W x, rows [first, end) of W */
static void product(const float *w, int first, int end, int cols, const double *x, double *y)
{
    for (int o = first; o < end; o++)
        y[o - first] = small_dot(w + (int64_t)o * cols, x, cols);
}

static double silu(double x)
{
    return x / (1 + exp(-x));
}

/* RMSNorm of n values in place; weights may be NULL. */
static void rms(const float *weights, int n, double *x)
{
    double square = 0;
    for (int i = 0; i < n; i++)
        square += x[i] * x[i] / n;
    for (int i = 0; i < n; i++)
        x[i] *= (weights ? (double)weights[i] : 1) / sqrt(square + EXPERT_EPSILON);
}

/* Normalises dt's low-rank input, B and C, each by itself (RMSNorm), where the family does. */
static void norm_small(const struct expert_model *m, int l, double *small)
{
    const struct expert_shape *s = &m->s;
    const bool weighed = s->scan_norm == SCAN_NORM_WEIGHTED;
    const int at[] = {0, s->rank, s->rank + s->key_dim, s->rank + 2 * s->key_dim};
    static const char *const kinds[] = {"ssm_dt_norm.weight", "ssm_b_norm.weight", "ssm_c_norm.weight"};
    for (int i = 0; s->scan_norm != SCAN_PLAIN && i < 3; i++)
        rms(weighed ? values_of(m, l, kinds[i]) : NULL, at[i + 1] - at[i], small + at[i]);
}

void expert_scan(const struct expert_model *m, int l, const double *in, int n, double *out)
{
    const struct expert_shape *s = &m->s;
    const int width = s->n_state * s->value_dim, N = s->key_dim;
    const float *W = values_of(m, l, "ssm_in.weight"), *taps = values_of(m, l, "ssm_conv1d.weight");
    const float *A = values_of(m, l, "ssm_a"), *bias = values_of(m, l, "ssm_dt.bias");
    double *x = doubles(n * width), *u = doubles(width), *z = doubles(width), *state = doubles(width * N);
    double *small = doubles(s->rank + 2 * N), *step = doubles(width);
    for (int r = 0; r < n; r++) {
        product(W, 0, width, s->n_embd, in + r * s->n_embd, x + r * width);
        product(W, width, 2 * width, s->n_embd, in + r * s->n_embd, z);
        for (int c = 0; c < width; c++) {
            double sum = (double)values_of(m, l, "ssm_conv1d.bias")[c];
            for (int t = 0; t < s->state_taps; t++)
                if (r - s->state_taps + 1 + t >= 0)
                    sum += x[(r - s->state_taps + 1 + t) * width + c] * (double)taps[c * s->state_taps + t];
            u[c] = silu(sum);
        }
        product(values_of(m, l, "ssm_x.weight"), 0, s->rank + 2 * N, width, u, small);
        norm_small(m, l, small);
        product(values_of(m, l, "ssm_dt.weight"), 0, width, s->rank, small, step);
        for (int c = 0; c < width; c++) {
            const double delta = log1p(exp(step[c] + (double)bias[c]));
            double y = (double)values_of(m, l, "ssm_d")[c] * u[c];
            for (int d = 0; d < N; d++) {
                double *h = &state[c * N + d];
                *h = exp(delta * (double)A[c * N + d]) * *h + delta * small[s->rank + d] * u[c];
                y += *h * small[s->rank + N + d];
            }
            out[r * width + c] = y * silu(z[c]);
        }
    }
    double *all[] = {x, u, z, state, small, step};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        pp_free(all[i]);
}
