/* cca_formulas.c - a layer of ZAYA1 (arXiv 2511.17127) in double precision: compressed convolutional attention (arXiv
 * 2510.04476) as transformers computes it, and a mixture whose router picks one expert, or none. */
#include "tests/cca_formulas.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/decoder_formulas.h"
#include "tests/support.h"

enum { WIDEST = 512 };

static void root_mean_square(const struct matrix *w, const double *x, double *y)
{
    double sum = 0;
    for (int64_t i = 0; i < w->cols; i++)
        sum += x[i] * x[i];
    for (int64_t i = 0; i < w->cols; i++)
        y[i] = x[i] / sqrt(sum / (double)w->cols + (double)DECODER_EPSILON) * (double)w->values[i];
}

static void scale(const struct decoder *d, int l, const char *kind, double *x)
{
    const float *w = decoder_part(d, l, kind, ".weight")->values, *b = decoder_part(d, l, kind, ".bias")->values;
    for (int i = 0; i < d->s.n_embd; i++)
        x[i] = (x[i] + (double)b[i]) * (double)w[i];
}

void cca_begin(const struct decoder *d, double *x, int n)
{
    for (int r = 0; r < n; r++)
        scale(d, -1, "embd_scale", x + r * d->s.n_embd);
}

static void merge(const struct decoder *d, int l, const char *part, double *x, double *result)
{
    char name[32];
    snprintf(name, sizeof name, "%s_residual", part);
    scale(d, l, name, x);
    snprintf(name, sizeof name, "%s_result", part);
    scale(d, l, name, result);
    for (int i = 0; i < d->s.n_embd; i++)
        x[i] += result[i];
}

/* --- attention -------------------------------------------------------------------------------------------------- */

static bool is_wide(const struct decoder_shape *s, int l)
{
    return !s->window || (l + !s->wide_first) % s->wide == 0;
}

static void turn(const struct decoder_shape *s, bool wide, int position, double *head)
{
    const int half = s->rope_dim / 2;
    const double base = (double)(wide ? DECODER_ROPE_BASE : s->base);
    for (int i = 0; i < half; i++) {
        const double angle = position * pow(base, -2.0 * i / s->rope_dim), a = head[i], b = head[i + half];
        head[i] = a * cos(angle) - b * sin(angle);
        head[i + half] = a * sin(angle) + b * cos(angle);
    }
}

static void make_long(double *head, int dim, double times)
{
    double sum = 0;
    for (int i = 0; i < dim; i++)
        sum += head[i] * head[i];
    for (int i = 0; i < dim; i++)
        head[i] *= times * sqrt(dim / sum);
}

/* Two convolutions of two taps each, the first depthwise, the second over the channels of a head. `at`, `before` and
 * `earlier` are the inputs at a position and at the two before it, or NULL before the text, where the output of the
 * first convolution is its bias. */
static void convolve(const struct decoder *d, int l, const double *at, const double *before, const double *earlier,
                     double *y)
{
    const struct decoder_shape *s = &d->s;
    const struct matrix *taps = decoder_part(d, l, "attn_qk_conv", ".weight");
    const float *bias = decoder_part(d, l, "attn_qk_conv", ".bias")->values;
    const float *behind = decoder_part(d, l, "attn_qk_mix", ".bias")->values;
    const float *last = decoder_part(d, l, "attn_qk_mix_last", ".weight")->values;
    const float *own = decoder_part(d, l, "attn_qk_mix", ".weight")->values;
    const int dim = s->head_dim, n = (int)taps->rows;
    double first[WIDEST], second[WIDEST];
    assert_true(n <= WIDEST);
    for (int i = 0; i < n; i++) {
        const double w[] = {(double)taps->values[2 * i], (double)taps->values[2 * i + 1]};
        first[i] = (double)bias[i] + (before ? w[1] * before[i] : 0) + (earlier ? w[0] * earlier[i] : 0);
        second[i] = (double)bias[i] + w[1] * at[i] + (before ? w[0] * before[i] : 0);
    }
    for (int i = 0; i < n; i++) {
        y[i] = (double)behind[i];
        for (int j = 0; j < dim; j++)
            y[i] += (double)last[i * dim + j] * first[i / dim * dim + j] +
                    (double)own[i * dim + j] * second[i / dim * dim + j];
    }
}

/* The queries and keys of position r; qk: those of all positions before the convolutions. */
static void heads_of(const struct decoder *d, int l, const double *qk, int r, double *q, double *k)
{
    const struct decoder_shape *s = &d->s;
    const int dim = s->head_dim, n_q = s->n_head * dim, n = n_q + s->n_head_kv * dim, each = s->n_head / s->n_head_kv;
    const double *at = qk + r * n;
    double y[WIDEST];
    convolve(d, l, at, r > 0 ? at - n : NULL, r > 1 ? at - 2 * n : NULL, y);
    memcpy(k, y + n_q, (size_t)(n - n_q) * sizeof *k);
    for (int h = 0; h < s->n_head; h++)
        for (int i = 0; i < dim; i++) {
            const double mean = (at[h * dim + i] + at[n_q + h / each * dim + i]) / 2;
            q[h * dim + i] = y[h * dim + i] + mean;
            k[h / each * dim + i] += mean / each;
        }
    for (int h = 0; h < s->n_head; h++) {
        make_long(q + h * dim, dim, 1);
        turn(s, is_wide(s, l), r, q + h * dim);
    }
    for (int h = 0; h < s->n_head_kv; h++) {
        make_long(k + h * dim, dim, (double)decoder_part(d, l, "attn_k_scale", ".weight")->values[h]);
        turn(s, is_wide(s, l), r, k + h * dim);
    }
}

static void attend(const struct decoder *d, int l, const double *q, const double *k, const double *v, int r,
                   double *out)
{
    const struct decoder_shape *s = &d->s;
    const int dim = s->head_dim, n_kv = s->n_head_kv * dim;
    const int first = is_wide(s, l) || r < s->window ? 0 : r - s->window + 1;
    for (int h = 0; h < s->n_head; h++) {
        const int at = h / (s->n_head / s->n_head_kv) * dim;
        double sum = 0, y[WIDEST] = {0};
        for (int p = first; p <= r; p++) {
            double score = 0;
            for (int i = 0; i < dim; i++)
                score += q[h * dim + i] * k[p * n_kv + at + i];
            const double share = exp(score / sqrt(dim));
            sum += share;
            for (int i = 0; i < dim; i++)
                y[i] += share * v[p * n_kv + at + i];
        }
        for (int i = 0; i < dim; i++)
            out[h * dim + i] = y[i] / sum;
    }
}

static void attention(const struct decoder *d, int l, double *x, int n)
{
    const struct decoder_shape *s = &d->s;
    const int n_q = s->n_head * s->head_dim, n_kv = s->n_head_kv * s->head_dim, width = n_q + n_kv;
    double *qk = pp_calloc((size_t)(n * width), sizeof *qk), *k = pp_calloc((size_t)(n * n_kv), sizeof *k);
    double *v = pp_calloc((size_t)((n + 1) * n_kv), sizeof *v), in[WIDEST], q[WIDEST], y[WIDEST], half[WIDEST];
    assert_non_null(qk);
    assert_non_null(k);
    assert_non_null(v);
    for (int r = 0; r < n; r++) {
        root_mean_square(decoder_part(d, l, "attn_norm", ".weight"), x + r * s->n_embd, in);
        decoder_linear(d, l, "attn_q", in, qk + r * width);
        decoder_linear(d, l, "attn_k", in, qk + r * width + n_q);
        decoder_linear(d, l, "attn_v", in, v + r * n_kv);
        decoder_linear(d, l, "attn_v_last", in, half); /* values of the next position use it */
        memcpy(v + (r + 1) * n_kv + n_kv / 2, half, (size_t)(n_kv / 2) * sizeof *v);
        heads_of(d, l, qk, r, q, k + r * n_kv);
        attend(d, l, q, k, v, r, y);
        decoder_linear(d, l, "attn_output", y, in);
        merge(d, l, "attn", x + r * s->n_embd, in);
    }
    pp_free(qk);
    pp_free(k);
    pp_free(v);
}

/* --- experts ---------------------------------------------------------------------------------------------------- */

static double gelu(double x)
{
    return x * (1 + erf(x / sqrt(2))) / 2;
}

static void expert(const struct decoder *d, int l, int e, const double *in, double *out)
{
    double gate[WIDEST], up[WIDEST];
    decoder_linear_of(d, l, "ffn_gate_exps", e, in, gate);
    decoder_linear_of(d, l, "ffn_up_exps", e, in, up);
    for (int i = 0; i < d->s.n_ff; i++)
        gate[i] *= up[i] / (1 + exp(-gate[i]));
    decoder_linear_of(d, l, "ffn_down_exps", e, gate, out);
}

/* The index of the chosen expert (n_expert: no expert), and its weight. */
static int choose(const struct decoder *d, int l, const double *in, double *routed, double *weight)
{
    const int n = d->s.n_router, n_all = d->s.n_expert + 1;
    const float *bias = decoder_part(d, l, "exp_probs_b", ".bias")->values;
    double y[WIDEST], z[WIDEST], sum = 0;
    int best = 0;
    decoder_linear(d, l, "ffn_router_in", in, y);
    for (int i = 0; i < n; i++)
        routed[i] = y[i] + (l ? routed[i] * (double)decoder_part(d, l, "ffn_router_carry", ".weight")->values[i] : 0);
    root_mean_square(decoder_part(d, l, "ffn_router_norm", ".weight"), routed, y);
    decoder_linear(d, l, "ffn_router_1", y, z);
    for (int i = 0; i < n; i++)
        z[i] = gelu(z[i]);
    decoder_linear(d, l, "ffn_router_2", z, y);
    for (int i = 0; i < n; i++)
        y[i] = gelu(y[i]);
    decoder_linear(d, l, "ffn_gate_inp", y, z);
    for (int e = 0; e < n_all; e++)
        sum += z[e] = exp(z[e]);
    for (int e = 1; e < n_all; e++)
        best = z[e] / sum + (double)bias[e] > z[best] / sum + (double)bias[best] ? e : best;
    *weight = z[best] / sum;
    return best;
}

void cca_layer(const struct decoder *d, int l, double *x, double *routed, int n)
{
    const struct decoder_shape *s = &d->s;
    attention(d, l, x, n);
    for (int r = 0; r < n; r++) {
        double in[WIDEST], out[WIDEST] = {0}, weight;
        root_mean_square(decoder_part(d, l, "ffn_norm", ".weight"), x + r * s->n_embd, in);
        const int e = choose(d, l, in, routed + r * s->n_router, &weight);
        if (e < s->n_expert)
            expert(d, l, e, in, out);
        for (int i = 0; i < s->n_embd; i++)
            out[i] *= weight;
        merge(d, l, "ffn", x + r * s->n_embd, out);
    }
}
