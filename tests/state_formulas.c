/* state_formulas.c - recurrent states in double precision, one position after the other: the gated delta rule as in
 * transformers' Qwen3NextGatedDeltaNet, Kimi Linear's as in KimiDeltaAttention, and Mamba 2 as in
 * GraniteMoeHybridMambaLayer. The state always holds the positions so far. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/expert_model_int.h"
#include "tests/small_model.h"
#include "tests/support.h"

/* Row o of a matrix times a vector. */
static double row_of(const struct expert_model *m, int l, const char *kind, int64_t o, const double *x)
{
    const struct array *w = expert_find(m, l, kind);
    assert_non_null(w);
    return small_dot(w->values + o * w->cols, x, w->cols);
}

static double number(const struct expert_model *m, int l, const char *kind, int h)
{
    const struct array *w = expert_find(m, l, kind);
    assert_non_null(w);
    return (double)w->values[h];
}

static int key_of(const struct expert_shape *s, int h)
{
    return s->tiled ? h % s->n_state_key : h / (s->n_state / s->n_state_key);
}

/* The convolution's input `mixed` (all queries, then keys, then values) and the output gates. */
static void project(const struct expert_model *m, int l, const double *in, double *mixed, double *gate)
{
    const struct expert_shape *s = &m->s;
    const int key = s->key_dim, n_key = s->n_state_key, values = s->n_state * s->value_dim, value = values / n_key;
    for (int i = 0; s->apart && i < 2 * n_key * key + values; i++)
        mixed[i] = i < n_key * key       ? row_of(m, l, "attn_q.weight", i, in)
                   : i < 2 * n_key * key ? row_of(m, l, "attn_k.weight", i - n_key * key, in)
                                         : row_of(m, l, "attn_v.weight", i - 2 * n_key * key, in);
    for (int i = 0; s->apart && i < values; i++)
        gate[i] = row_of(m, l, "attn_gate.weight", i, in);
    if (s->apart)
        return;
    if (!s->by_key_head) {
        for (int i = 0; i < 2 * n_key * key + values; i++)
            mixed[i] = row_of(m, l, "attn_qkv.weight", i, in);
        for (int i = 0; i < values; i++)
            gate[i] = row_of(m, l, "attn_gate.weight", i, in);
        return;
    }
    for (int k = 0; k < n_key; k++) {
        const int first = k * 2 * (key + value);
        for (int i = 0; i < key; i++) {
            mixed[k * key + i] = row_of(m, l, "ssm_in.weight", first + i, in);
            mixed[(n_key + k) * key + i] = row_of(m, l, "ssm_in.weight", first + key + i, in);
        }
        for (int i = 0; i < value; i++) {
            mixed[2 * n_key * key + k * value + i] = row_of(m, l, "ssm_in.weight", first + 2 * key + i, in);
            gate[k * value + i] = row_of(m, l, "ssm_in.weight", first + 2 * key + value + i, in);
        }
    }
}

static double beta_of(const struct expert_model *m, int l, int h, const double *in)
{
    const int share = m->s.n_state / m->s.n_state_key;
    const double x = m->s.joined_numbers ? row_of(m, l, "ssm_ba.weight", h / share * 2 * share + h % share, in)
                                         : row_of(m, l, "ssm_beta.weight", h, in);
    return (m->s.twice ? 2 : 1) / (1 + exp(-x));
}

static double ln_a_of(const struct expert_model *m, int l, int h, const double *in)
{
    const int share = m->s.n_state / m->s.n_state_key;
    const double x = m->s.joined_numbers ? row_of(m, l, "ssm_ba.weight", h / share * 2 * share + share + h % share, in)
                                         : row_of(m, l, "ssm_alpha.weight", h, in);
    return number(m, l, "ssm_a", h) * log1p(exp(x + number(m, l, "ssm_dt.bias", h)));
}

/* Jet-Nemotron's taps of values at one position: taps [n_state * value_dim, state_taps]. */
static void make_taps(const struct expert_model *m, int l, const double *in, double *taps)
{
    double *low = doubles(m->s.dynamic_conv_rank + 1);
    for (int i = 0; i < m->s.dynamic_conv_rank; i++) {
        const double x = row_of(m, l, "ssm_taps_a.weight", i, in);
        low[i] = x / (1 + exp(-x));
    }
    for (int i = 0; m->s.dynamic_conv_rank && i < m->s.n_state * m->s.value_dim * m->s.state_taps; i++)
        taps[i] = row_of(m, l, "ssm_taps_b.weight", i, low) + number(m, l, "ssm_taps_b.bias", i);
    pp_free(low);
}

/* Tap t of the convolution of channel i; made: taps computed for this position (Jet-Nemotron). */
static double tap(const struct expert_model *m, int l, int64_t i, int t, const double *made)
{
    const struct expert_shape *s = &m->s;
    const int64_t keys = s->n_state_key * s->key_dim;
    const int part = i < keys ? 0 : i < 2 * keys ? 1 : 2;
    char name[40] = "ssm_conv1d.weight";
    if (s->dynamic_conv_rank)
        return part == 2 ? made[(i - 2 * keys) * s->state_taps + t] : t == s->state_taps - 1;
    if (s->apart)
        snprintf(name, sizeof name, "ssm_conv1d_%c.weight", "qkv"[part]);
    const struct array *taps = expert_find(m, l, name);
    assert_non_null(taps);
    return (double)taps->values[(s->apart ? i - part * keys : i) * s->state_taps + t];
}

static void unit(const double *x, int n, double scale, double *y)
{
    double sum = 1e-6;
    for (int i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (int i = 0; i < n; i++)
        y[i] = x[i] / sqrt(sum) * scale;
}

/* One position of one head: s [key_dim, value_dim]. */
static void step(const struct expert_shape *s, double *state, const double *q, const double *k, const double *v,
                 double beta, double a, double *out)
{
    for (int c = 0; c < s->value_dim; c++) {
        double known = 0;
        out[c] = 0;
        for (int d = 0; d < s->key_dim; d++)
            known += (state[d * s->value_dim + c] *= a) * k[d];
        for (int d = 0; d < s->key_dim; d++)
            out[c] += (state[d * s->value_dim + c] += k[d] * beta * (v[c] - known)) * q[d];
    }
}

static void norm_and_gate(const struct expert_model *m, int l, const double *gate, double *out)
{
    const double eps = m->s.state_eps != 0.0f ? (double)m->s.state_eps : EXPERT_EPSILON;
    const int n = m->s.value_dim;
    double square = 0;
    for (int i = 0; i < n; i++)
        square += out[i] * out[i] / n;
    for (int i = 0; i < n; i++)
        out[i] = out[i] / sqrt(square + eps) * number(m, l, "ssm_norm.weight", i) *
                 (m->s.state_sigmoids ? 1 : gate[i]) / (1 + exp(-gate[i])) *
                 (m->s.state_scale != 0.0f ? (double)m->s.state_scale : 1);
}

void expert_states(const struct expert_model *m, int l, const double *in, int n, double *out)
{
    const struct expert_shape *s = &m->s;
    const int keys = s->n_state_key * s->key_dim, values = s->n_state * s->value_dim, width = 2 * keys + values;
    double *mixed = doubles(n * width), *x = doubles(width), *gate = doubles(values);
    double *states = doubles(s->n_state * s->key_dim * s->value_dim);
    double *q = doubles(s->key_dim), *k = doubles(s->key_dim), *taps = doubles(values * s->state_taps);
    for (int r = 0; r < n; r++) {
        const double *row = in + r * s->n_embd;
        project(m, l, row, mixed + r * width, gate);
        make_taps(m, l, row, taps);
        for (int i = 0; i < width; i++) {
            double sum = 0;
            for (int t = 0; t < s->state_taps; t++)
                if (r - s->state_taps + 1 + t >= 0)
                    sum += mixed[(r - s->state_taps + 1 + t) * width + i] * tap(m, l, i, t, taps);
            x[i] = sum / (1 + exp(-sum));
        }
        for (int h = 0; h < s->n_state; h++) {
            double *head = out + r * values + h * s->value_dim;
            unit(x + key_of(s, h) * s->key_dim, s->key_dim, 1 / sqrt(s->key_dim), q);
            unit(x + keys + key_of(s, h) * s->key_dim, s->key_dim, 1, k);
            step(s, states + h * s->key_dim * s->value_dim, q, k, x + 2 * keys + h * s->value_dim,
                 beta_of(m, l, h, row), exp(ln_a_of(m, l, h, row)), head);
            norm_and_gate(m, l, gate + h * s->value_dim, head);
        }
    }
    double *all[] = {mixed, x, gate, states, q, k, taps};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        pp_free(all[i]);
}

/* --- Kimi Linear's ------------------------------------------------------------------------------------------------ */

/* Value i of a low-rank projection of the input, by the pair of matrices that `letter` names. */
static double low_rank(const struct expert_model *m, int l, char letter, int i, const double *in)
{
    const int dim = m->s.key_dim;
    char name[40];
    if (m->s.full_rank_gates && letter == 'g')
        return row_of(m, l, "ssm_g.weight", i, in);
    snprintf(name, sizeof name, "ssm_%c_a.weight", letter);
    if (m->s.full_rank)
        return row_of(m, l, name, i, in);
    double *low = doubles(dim);
    for (int d = 0; d < dim; d++)
        low[d] = row_of(m, l, name, d, in);
    snprintf(name, sizeof name, "ssm_%c_b.weight", letter);
    const double value = row_of(m, l, name, i, low);
    pp_free(low);
    return value;
}

/* Value i of queries, keys or values at row r after the convolution. */
static double convolved(const struct expert_model *m, int l, int part, int i, const double *in, int r)
{
    const struct expert_shape *s = &m->s;
    char name[40], taps[40];
    double sum = 0;
    snprintf(name, sizeof name, "attn_%c.weight", "qkv"[part]);
    snprintf(taps, sizeof taps, "ssm_conv1d_%c.weight", "qkv"[part]);
    for (int t = 0; t < s->state_taps; t++)
        if (r - s->state_taps + 1 + t >= 0)
            sum += row_of(m, l, name, i, in + (r - s->state_taps + 1 + t) * s->n_embd) *
                   number(m, l, taps, i * s->state_taps + t);
    return sum / (1 + exp(-sum));
}

void expert_kda(const struct expert_model *m, int l, const double *in, int n, double *out)
{
    const struct expert_shape *s = &m->s;
    const int dim = s->key_dim;
    double *state = doubles(dim * dim), *x[3] = {doubles(dim), doubles(dim), doubles(dim)};
    for (int h = 0; h < s->n_state; h++) {
        memset(state, 0, (size_t)(dim * dim) * sizeof *state);
        for (int r = 0; r < n; r++) {
            const double *row = in + r * s->n_embd;
            double *y = out + (r * s->n_state + h) * dim, square = 0;
            for (int i = 0; i < 3 * dim; i++)
                x[i / dim][i % dim] = convolved(m, l, i / dim, h * dim + i % dim, in, r);
            unit(x[0], dim, 1 / sqrt(dim), x[0]);
            unit(x[1], dim, 1, x[1]);
            for (int d = 0; d < dim; d++) {
                const double f = low_rank(m, l, 'f', h * dim + d, row) + number(m, l, "ssm_dt.bias", h * dim + d);
                const double a = number(m, l, "ssm_a", h);
                const double ln = s->decay_bound != 0.0f ? (double)s->decay_bound / (1 + exp(-fabs(a) * f))
                                                         : a * log1p(exp(f));
                for (int c = 0; c < dim; c++)
                    state[d * dim + c] *= exp(ln);
            }
            step(s, state, x[0], x[1], x[2], beta_of(m, l, h, row), 1, y);
            for (int i = 0; i < dim; i++)
                square += y[i] * y[i] / dim;
            for (int i = 0; i < dim; i++)
                y[i] *= number(m, l, "ssm_norm.weight", i) / sqrt(square + EXPERT_EPSILON) /
                        (1 + exp(-low_rank(m, l, 'g', h * dim + i, row)));
        }
    }
    double *all[] = {state, x[0], x[1], x[2]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        pp_free(all[i]);
}

/* --- Mamba 2 ----------------------------------------------------------------------------------------------------- */

/* Mamba 2's gated norm: y silu(z), then RMSNorm over the heads that share a group of B and C. */
static void gate_and_norm(const struct expert_model *m, int l, const double *z, double *y)
{
    const int n = m->s.n_state * m->s.value_dim / m->s.n_state_key;
    for (int first = 0; first < n * m->s.n_state_key; first += n) {
        double square = 0;
        for (int i = first; i < first + n; i++) {
            y[i] *= z[i] / (1 + exp(-z[i]));
            square += y[i] * y[i] / n;
        }
        for (int i = first; !m->s.no_state_norm && i < first + n; i++)
            y[i] *= number(m, l, "ssm_norm.weight", i) / sqrt(square + EXPERT_EPSILON);
    }
}

/* One position of one head: S = a S + B dt x', y = S' C + D x. */
static void mamba_step(const struct expert_shape *s, double *state, const double *B, const double *C, const double *x,
                       double dt, double a, double D, double *y)
{
    for (int c = 0; c < s->value_dim; c++) {
        y[c] = D * x[c];
        for (int d = 0; d < s->key_dim; d++) {
            double *at = &state[d * s->value_dim + c];
            *at = a * *at + B[d] * dt * x[c];
            y[c] += *at * C[d];
        }
    }
}

void expert_mamba(const struct expert_model *m, int l, const double *in, int n, double *out)
{
    const struct expert_shape *s = &m->s;
    const int keys = s->n_state_key * s->key_dim, values = s->n_state * s->value_dim, width = values + 2 * keys;
    const struct array *taps = expert_find(m, l, "ssm_conv1d.weight");
    double *all = doubles(n * width), *x = doubles(width), *z = doubles(values);
    double *states = doubles(values * s->key_dim);
    for (int r = 0; r < n; r++) {
        const double *row = in + r * s->n_embd;
        for (int i = 0; i < values; i++)
            z[i] = row_of(m, l, "ssm_in.weight", i, row);
        for (int i = 0; i < width; i++) {
            double sum = number(m, l, "ssm_conv1d.bias", i);
            all[r * width + i] = row_of(m, l, "ssm_in.weight", values + i, row);
            for (int t = 0; t < s->state_taps; t++)
                if (r - s->state_taps + 1 + t >= 0)
                    sum += all[(r - s->state_taps + 1 + t) * width + i] * (double)taps->values[i * s->state_taps + t];
            x[i] = sum / (1 + exp(-sum));
        }
        for (int h = 0; h < s->n_state; h++) {
            const double *B = x + values + key_of(s, h) * s->key_dim;
            const double dt = log1p(exp(row_of(m, l, "ssm_in.weight", values + width + h, row) +
                                        number(m, l, "ssm_dt.bias", h)));
            mamba_step(s, states + h * s->key_dim * s->value_dim, B, B + keys, x + h * s->value_dim, dt,
                       exp(number(m, l, "ssm_a", h) * dt), number(m, l, "ssm_d", h),
                       out + r * values + h * s->value_dim);
        }
        gate_and_norm(m, l, z, out + r * values);
    }
    pp_free(all);
    pp_free(x);
    pp_free(z);
    pp_free(states);
}
