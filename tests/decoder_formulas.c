/* decoder_formulas.c - reference outputs of small random decoders, computed in double precision: each step follows the
 * family's paper and its model in transformers. Layers with recurrent states in place of attention are in
 * decoder_scans.c. */
#include "tests/decoder_formulas.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/cca_formulas.h"
#include "tests/small_model.h"
#include "tests/support.h"

const struct matrix *decoder_part(const struct decoder *d, int l, const char *kind, const char *end)
{
    const int i = small_find(d->t[0].name, sizeof d->t[0], d->n, l, kind, end);
    return i < 0 ? NULL : &d->t[i];
}

void decoder_linear_of(const struct decoder *d, int l, const char *kind, int which, const double *x, double *y)
{
    const struct matrix *w = decoder_part(d, l, kind, ".weight"), *b = decoder_part(d, l, kind, ".bias");
    assert_non_null(w);
    for (int64_t o = 0; o < w->rows; o++)
        y[o] = (b ? (double)b->values[o] : 0) + small_dot(w->values + (which * w->rows + o) * w->cols, x, w->cols);
}

void decoder_linear(const struct decoder *d, int l, const char *kind, const double *x, double *y)
{
    decoder_linear_of(d, l, kind, 0, x, y);
}

void decoder_norm(const struct decoder *d, int l, const char *kind, int row, const double *x, double *y)
{
    const struct matrix *w = decoder_part(d, l, kind, ".weight"), *b = decoder_part(d, l, kind, ".bias");
    const int size = d->s.norm_groups ? d->s.n_embd / d->s.norm_groups : 0;
    for (int from = 0; size && from < d->s.n_embd; from += size) {
        double sum = 0;
        for (int i = from; i < from + size; i++)
            sum += x[i] * x[i] / size;
        for (int i = from; i < from + size; i++)
            y[i] = x[i] / sqrt(sum + (double)DECODER_EPSILON) * (double)w->values[i];
    }
    if (size)
        return;
    const int64_t n = w ? w->cols : d->s.n_embd, at = w && w->rows ? row * n : 0;
    const bool centred = d->s.centred || (d->s.heads_centred && strncmp(kind, "attn_", 5) == 0 && kind[6] == '_');
    double mean = 0, square = 0;
    for (int64_t i = 0; i < n && centred; i++)
        mean += x[i] / (double)n;
    for (int64_t i = 0; i < n; i++)
        square += (x[i] - mean) * (x[i] - mean) / (double)n;
    const bool head = d->s.heads_eps != 0.0f && strncmp(kind, "attn_", 5) == 0 && kind[6] == '_';
    const bool out = d->s.post_norm_eps != 0.0f && strncmp(kind, "post_", 5) == 0;
    const float usual = d->s.epsilon != 0.0f ? d->s.epsilon : DECODER_EPSILON;
    const double root = sqrt(square + (double)(head ? d->s.heads_eps : out ? d->s.post_norm_eps : usual));
    for (int64_t i = 0; i < n; i++)
        y[i] = (x[i] - mean) / root * (w ? (double)w->values[at + i] : 1) + (b ? (double)b->values[at + i] : 0);
}

/* Whether layer l has full attention while other layers have a sliding window. */
static bool is_wide(const struct decoder *d, int l)
{
    return d->s.window && (l + !d->s.wide_first) % d->s.wide == 0;
}

/* RoPE: pair i of a head is rotated by the angle position / base^(2 i / rope_dim). */
static void rotate(const struct decoder *d, int l, double *head, int position)
{
    const double base = (double)(d->s.base != 0.0f && (!d->s.window || !is_wide(d, l)) ? d->s.base : DECODER_ROPE_BASE);
    const int dim = d->s.wide_rope && is_wide(d, l) ? d->s.wide_rope : d->s.rope_dim;
    for (int i = 0; i < dim / 2; i++) {
        double *x = &head[d->s.neighbours ? 2 * i : i], *y = &head[d->s.neighbours ? 2 * i + 1 : i + dim / 2];
        const double turn = d->s.backwards ? -position : position, a = *x, b = *y;
        const double angle = turn * pow(base, -2.0 * i / dim) / decoder_stretch(&d->s, i);
        *x = a * cos(angle) - b * sin(angle);
        *y = b * cos(angle) + a * sin(angle);
    }
}

/* RMSNorm without weights, of one head or of all together: x then has length sqrt(n). */
static void unit(double *x, int n)
{
    double square = 0;
    for (int i = 0; i < n; i++)
        square += x[i] * x[i] / n;
    for (int i = 0; i < n; i++)
        x[i] /= sqrt(square + (double)DECODER_EPSILON);
}

static void head_norm(const struct decoder *d, int l, const char *name, int h, double *head)
{
    if (d->s.heads_unit)
        unit(head, d->s.head_dim);
    else
        decoder_norm(d, l, name, h, head, head);
}

void decoder_heads(const struct decoder *d, int l, const char *kind, int n_heads, int position, double *x)
{
    char name[32];
    snprintf(name, sizeof name, "%s_norm", kind);
    if (d->s.heads == HEADS_WHOLE)
        decoder_norm(d, l, name, 0, x, x);
    for (int h = 0; h < n_heads; h++) {
        double *head = x + h * d->s.head_dim;
        const bool normalised = d->s.heads == HEADS_SHARE_NORM || d->s.heads == HEADS_EACH;
        if (normalised && !d->s.norm_after_rope)
            head_norm(d, l, name, h, head);
        if (!(is_wide(d, l) && d->s.wide_unrotated) && !d->s.unrotated && (!d->s.rotated || d->s.rotated[l] == '1'))
            rotate(d, l, head, position);
        if (normalised && d->s.norm_after_rope)
            head_norm(d, l, name, h, head);
    }
}

/* The scale of scores: 1 / sqrt(head_dim), for Ministral 3 times a factor that grows with the position. */
static double scale_at(const struct decoder *d, int position)
{
    const double scale = d->s.attn_scale != 0.0f ? (double)d->s.attn_scale : 1 / sqrt(d->s.head_dim);
    if (d->s.temperature == 0.0f)
        return scale;
    return scale * (1 + (double)d->s.temperature * log(1 + floor((double)position / d->s.context)));
}

/* ALiBi's slope of head h. With n the largest power of two up to the number of heads, the first n heads have r, r^2,
 * r^3 ... where r = 2^(-max / n); the others have sqrt(r)^1, sqrt(r)^3, sqrt(r)^5 ... */
static double slope_of(const struct decoder *d, int h)
{
    int n = 1;
    while (2 * n <= d->s.n_head)
        n *= 2;
    const double most = (double)d->s.alibi / n;
    const double slope = h < n ? exp2(-most * (h + 1)) : exp2(-most / 2 * (2 * (h - n) + 1));
    return d->s.alibi == 0.0f ? 0 : d->s.alibi_scaled ? slope * scale_at(d, 0) : slope;
}

double decoder_gelu(double x)
{
    return x * (1 + erf(x / sqrt(2))) / 2;
}

double decoder_gelu_tanh(double x)
{
    return x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x))) / 2;
}

/* xIELU. Its alphas are the softplus of the values in the file; beta is added to the second. */
static double xielu(int l, double x)
{
    const double p = log1p(exp((double)decoder_xielu(l, 0))), beta = (double)decoder_xielu(l, 2);
    const double n = beta + log1p(exp((double)decoder_xielu(l, 1)));
    return x > 0 ? p * x * x + beta * x : (expm1(fmin(x, (double)decoder_xielu(l, 3))) - x) * n + beta * x;
}

/* Phi 3 small's gated GELU, in its sigmoid form: g sigmoid(1.702 g) (u + 1), with g <= most and |u| <= most. */
static double clamped(double g, double u, double most)
{
    g = fmin(g, most);
    return g / (1 + exp(-1.702 * g)) * (fmax(-most, fmin(most, u)) + 1);
}

/* Motif's PolyNorm of n gates: a weighted sum of RMSNorm(g^3), RMSNorm(g^2) and RMSNorm(g), plus a bias. The weights
 * and the bias belong to the layer. */
static void poly(const struct decoder *d, int l, int n, double *gate)
{
    const float *w = decoder_part(d, l, "ffn_poly", ".weight")->values;
    double squares[3] = {1e-6, 1e-6, 1e-6};
    for (int i = 0; i < n; i++)
        for (int k = 0; k < 3; k++)
            squares[k] += pow(gate[i], 2 * (3 - k)) / n;
    for (int i = 0; i < n; i++) {
        double sum = (double)decoder_part(d, l, "ffn_poly", ".bias")->values[0];
        for (int k = 0; k < 3; k++)
            sum += (double)w[k] * pow(gate[i], 3 - k) / sqrt(squares[k]);
        gate[i] = sum;
    }
}

/* A feed-forward part n values wide. end: the suffix of its tensors' names; e: the index of the expert in stacks. */
static void one_feed_forward(const struct decoder *d, int l, const char *end, int e, int n, const double *in,
                             double *out)
{
    double *gate = doubles(2 * n), *up = gate + n;
    char kind[3][32];
    snprintf(kind[0], sizeof kind[0], "ffn_gate%s", end);
    snprintf(kind[1], sizeof kind[1], d->s.mlstm.fused ? "ffn_gate_up%s" : "ffn_up%s", end);
    snprintf(kind[2], sizeof kind[2], "ffn_down%s", end);
    decoder_linear_of(d, l, kind[1], e, in, d->s.ff == FF_SILU_FUSED || d->s.ff == FF_GELU_FUSED ? gate : up);
    if (decoder_has_gate(d))
        decoder_linear_of(d, l, kind[0], e, in, gate);
    if (d->s.ff == FF_POLY)
        poly(d, l, n, gate);
    for (int i = 0; i < n; i++)
        switch (d->s.ff) {
        case FF_GELU: up[i] = decoder_gelu_tanh(up[i]); break;
        case FF_GELU_EXACT: up[i] = decoder_gelu(up[i]); break;
        case FF_GELU_FUSED:
        case FF_GELU_EXACT_GATE: up[i] *= decoder_gelu(gate[i]); break;
        case FF_GELU_GATE: up[i] *= decoder_gelu_tanh(gate[i]); break;
        case FF_XIELU: up[i] = xielu(l, up[i]); break;
        case FF_RELU2_GATE: up[i] *= gate[i] > 0 ? gate[i] * gate[i] : 0; break;
        case FF_CLAMPED: up[i] = clamped(gate[i], up[i], (double)d->s.gate_bound); break;
        case FF_POLY: up[i] *= gate[i]; break;
        case FF_RELU: up[i] = fmax(up[i], 0); break;
        case FF_RELU2: up[i] = up[i] > 0 ? up[i] * up[i] : 0; break;
        default: up[i] *= gate[i] / (1 + exp(-gate[i])); break;
        }
    if (d->s.sub_norms)
        decoder_norm(d, l, "ffn_sub_norm", 0, up, up);
    decoder_linear_of(d, l, kind[2], e, up, out);
    pp_free(gate);
}

/* The shared expert, whose gate and up projections are one matrix: first the rows of the gate, then those of up. */
static void fused_shared(const struct decoder *d, int l, const double *in, double *out)
{
    const int n = d->s.n_ff_shared;
    double *both = doubles(2 * n);
    decoder_linear(d, l, "ffn_up_shexp", in, both);
    for (int i = 0; i < n; i++)
        both[i] *= both[n + i] / (1 + exp(-both[i]));
    decoder_linear(d, l, "ffn_down_shexp", both, out);
    pp_free(both);
}

/* SparseMixer: the largest of what is left has its share of the softmax of those that are near. */
static double mixer_weight(const struct decoder *d, const double *logits, const int *chosen, int i)
{
    const double top = logits[chosen[i]];
    double sum = 0;
    for (int e = 0; e < d->s.n_expert; e++) {
        bool taken = false;
        for (int j = 0; j < i; j++)
            taken = taken || chosen[j] == e;
        if (!taken && (top - logits[e]) / fmax(fabs(logits[e]), top) <= 2 * (double)d->s.mixer)
            sum += exp(logits[e] - top);
    }
    return 1 / sum;
}

/* The indices of the n_used experts with the largest p, the largest first. */
static void choose(const struct decoder *d, const double *p, int chosen[8])
{
    for (int i = 0; i < d->s.n_used; i++) {
        chosen[i] = -1;
        for (int e = 0; e < d->s.n_expert; e++) {
            bool taken = false;
            for (int j = 0; j < i; j++)
                taken = taken || chosen[j] == e;
            if (!taken && (chosen[i] < 0 || p[e] > p[chosen[i]]))
                chosen[i] = e;
        }
    }
}

/* A mixture of the experts with the largest logits; their weights are a softmax over all experts, or over the
 * chosen. */
static void mixture(const struct decoder *d, int l, const double *in, double *out)
{
    double *p = doubles(d->s.n_expert), *logits = doubles(d->s.n_expert), *one = doubles(d->s.n_embd);
    double sum = 0, used = 0;
    int chosen[8];
    decoder_linear(d, l, "ffn_gate_inp", in, logits);
    for (int e = 0; e < d->s.n_expert; e++)
        sum += p[e] = exp(logits[e]);
    choose(d, p, chosen);
    for (int i = 0; i < d->s.n_used; i++)
        used += p[chosen[i]];
    memset(out, 0, (size_t)d->s.n_embd * sizeof *out);
    for (int i = 0; i < d->s.n_embd && d->s.head_mixture; i++)
        out[i] = (double)decoder_part(d, l, "ffn_output", ".bias")->values[i];
    if (d->s.fused_shared)
        fused_shared(d, l, in, out);
    else if (d->s.n_ff_shared)
        one_feed_forward(d, l, "_shexp", 0, d->s.n_ff_shared, in, out);
    for (int i = 0; i < d->s.n_used; i++) {
        one_feed_forward(d, l, "_exps", chosen[i], d->s.n_ff, in, one);
        const double weight = d->s.mixer != 0.0f ? mixer_weight(d, logits, chosen, i)
                                                 : p[chosen[i]] / (d->s.shares ? sum : used);
        for (int j = 0; j < d->s.n_embd; j++)
            out[j] += one[j] * weight;
    }
    pp_free(p);
    pp_free(logits);
    pp_free(one);
}

void decoder_feed_forward(const struct decoder *d, int l, const double *in, double *out)
{
    if (d->s.n_expert)
        mixture(d, l, in, out);
    else
        one_feed_forward(d, l, "", 0, d->s.n_ff, in, out);
}

/* Queries, keys and values of an input. */
static void project(const struct decoder *d, int l, const double *in, double *q, double *k, double *v)
{
    const int n_q = d->s.n_head * d->s.head_dim, n_kv = d->s.n_head_kv * d->s.head_dim;
    if (d->s.head_mixture) {
        int chosen[8];
        double *logits = doubles(d->s.n_expert);
        decoder_linear(d, l, "attn_gate_inp", in, logits);
        choose(d, logits, chosen);
        for (int i = 0; i < d->s.n_used; i++)
            decoder_linear_of(d, l, "attn_q_exps", chosen[i], in, q + i * n_kv);
        decoder_linear(d, l, "attn_k", in, k);
        decoder_linear(d, l, "attn_v", in, v);
        pp_free(logits);
        return;
    }
    if (!d->s.joined) {
        double *low = doubles(d->s.q_rank + 1);
        if (d->s.q_rank) {
            decoder_linear(d, l, "attn_q_a", in, low);
            decoder_norm(d, l, "attn_q_a_norm", 0, low, low);
            decoder_linear(d, l, "attn_q_b", low, q);
        } else {
            decoder_linear(d, l, "attn_q", in, q);
        }
        decoder_linear(d, l, "attn_k", in, k);
        decoder_linear(d, l, "attn_v", in, v);
        pp_free(low);
        return;
    }
    double *all = doubles(n_q + 2 * n_kv);
    decoder_linear(d, l, "attn_qkv", in, all);
    memcpy(q, all, (size_t)n_q * sizeof *q);
    memcpy(k, all + n_q, (size_t)n_kv * sizeof *k);
    memcpy(v, all + n_q + n_kv, (size_t)n_kv * sizeof *v);
    pp_free(all);
}

enum { FILTER_WIDTH = 64, FILTER_LAYERS = 4 };

/* One convolution of position r over x [position][width]: y = W x_r + W' x_(r-1) + b. */
static void filter(const struct decoder *d, int l, const char *own, const char *last, double x[][FILTER_WIDTH], int r,
                   double *y)
{
    double before[FILTER_WIDTH] = {0};
    decoder_linear(d, l, own, x[r], y);
    if (r > 0)
        decoder_linear(d, l, last, x[r - 1], before);
    for (int64_t i = 0; i < decoder_part(d, l, own, ".weight")->rows; i++)
        y[i] += before[i];
}

/* The input of Yuan's queries and keys: the layer's input plus the output of both convolutions, normalised. */
static void filter_row(const struct decoder *d, int l, int r, const double *in, double *out)
{
    static double kept[FILTER_LAYERS][SMALL_TEXT][FILTER_WIDTH], half[FILTER_LAYERS][SMALL_TEXT][FILTER_WIDTH];
    const int n = d->s.n_embd;
    double square = 0;
    assert_true(l < FILTER_LAYERS && r < SMALL_TEXT && n <= FILTER_WIDTH);
    memcpy(kept[l][r], in, (size_t)n * sizeof *in);
    filter(d, l, "filter_1", "filter_1_last", kept[l], r, half[l][r]);
    filter(d, l, "filter_2", "filter_2_last", half[l], r, out);
    for (int i = 0; i < n; i++) {
        out[i] += in[i];
        square += out[i] * out[i] / n;
    }
    for (int i = 0; i < n; i++)
        out[i] *= (double)decoder_part(d, l, "filter_norm", ".weight")->values[i] / sqrt(square + 1e-6);
}

/* Yuan: of the heads of [q, k] the even ones become the queries, the odd ones the keys. */
static void share_heads(const struct decoder *d, double *q, double *k)
{
    const int dim = d->s.head_dim, n = d->s.n_head * dim;
    double *both = doubles(2 * n);
    memcpy(both, q, (size_t)n * sizeof *q);
    memcpy(both + n, k, (size_t)n * sizeof *k);
    for (int i = 0; i < n; i++) {
        q[i] = both[i / dim * 2 * dim + i % dim];
        k[i] = both[i / dim * 2 * dim + dim + i % dim];
    }
    pp_free(both);
}

void decoder_before(const struct decoder *d, int l, const char *kind, const double *x, double *in)
{
    if (d->s.norms == POST_NORM)
        memcpy(in, x, (size_t)d->s.n_embd * sizeof *in);
    else
        decoder_norm(d, l, kind, 0, x, in);
}

void decoder_post_norm(const struct decoder *d, int l, const char *kind, double *delta, double *x)
{
    const char *name = !d->s.swin                                 ? kind
                       : strcmp(kind, "post_attention_norm") == 0 ? "attn_norm"
                                                                  : "ffn_norm";
    if (d->s.norms != PRE_NORM && !d->s.sums)
        decoder_norm(d, l, name, 0, delta, delta);
    for (int i = 0; i < d->s.n_embd && d->s.key_scores; i++)
        x[i] *= (double)decoder_part(d, l, name[5] == 'a' ? "attn_residual" : "ffn_residual", "")->values[i];
    for (int i = 0; i < d->s.n_embd; i++)
        x[i] += delta[i] * (d->s.residual_scale != 0.0f ? (double)d->s.residual_scale : 1);
    if (d->s.sums)
        decoder_norm(d, l, name, 0, x, x);
}

static void clamp(const struct decoder *d, double *x, int n)
{
    const double most = (double)d->s.qkv_clamp;
    for (int i = 0; most != 0 && i < n; i++)
        x[i] = fmax(-most, fmin(most, x[i]));
}

/* Baichuan M1: keys or values convolved over two positions, with two taps for each head: y = w0 last + w1 y. */
static void add_before(const struct decoder *d, int l, const char *kind, const double *last, double *y)
{
    const struct matrix *w = decoder_part(d, l, kind, ".weight");
    for (int i = 0; i < d->s.n_head_kv * d->s.head_dim; i++) {
        const float *taps = w->values + 2 * (i / d->s.head_dim);
        y[i] = (double)taps[0] * last[i] + (double)taps[1] * y[i];
    }
}

static void sum_with_last(const struct decoder *d, int l, const double *x, int r, double *k, double *v)
{
    const int n_q = d->s.n_head * d->s.head_dim, n_kv = d->s.n_head_kv * d->s.head_dim;
    double *in = doubles(d->s.n_embd), *last = doubles(n_q + 2 * n_kv);
    if (r > 0) {
        decoder_before(d, l, "attn_norm", x - d->s.n_embd, in);
        project(d, l, in, last, last + n_q, last + n_q + n_kv);
    }
    add_before(d, l, "attn_k_conv", last + n_q, k);
    add_before(d, l, "attn_v_conv", last + n_q + n_kv, v);
    pp_free(in);
    pp_free(last);
}

/* Queries, keys and values of position r; x: the stream at r, which follows the rows of earlier positions in memory. */
static void attention_inputs(const struct decoder *d, int l, const double *x, int r, double *q, double *k, double *v)
{
    const struct decoder_shape *s = &d->s;
    double *in = doubles(s->n_embd);
    if (s->no_first_attn_norm && l == 0)
        memcpy(in, x, (size_t)s->n_embd * sizeof *in);
    else
        decoder_before(d, l, s->two_norms ? "attn_norm_2" : "attn_norm", x, in);
    project(d, l, in, q, k, v);
    if (s->filtered) {
        double filtered[FILTER_WIDTH];
        filter_row(d, l, r, in, filtered);
        decoder_linear(d, l, "attn_q", filtered, q);
        decoder_linear(d, l, "attn_k", filtered, k);
        share_heads(d, q, k);
    }
    if (s->head_taps)
        sum_with_last(d, l, x, r, k, v);
    clamp(d, q, s->n_head * s->head_dim);
    clamp(d, k, s->n_head_kv * s->head_dim);
    clamp(d, v, s->n_head_kv * s->head_dim);
    decoder_heads(d, l, "attn_q", s->n_head, r, q);
    decoder_heads(d, l, "attn_k", s->n_head_kv, r, k);
    pp_free(in);
}

/* Multiplies attention's output by sigmoid(W_gate x). */
static void gate(const struct decoder *d, int l, const double *x, double *att)
{
    const int n = d->s.n_head * d->s.head_dim;
    double *in = doubles(d->s.n_embd), *g = doubles(n);
    decoder_before(d, l, "attn_norm", x, in);
    decoder_linear(d, l, "attn_gate", in, g);
    for (int i = 0; i < n; i++)
        att[i] /= 1 + exp(-g[d->s.per_head_gates ? i / d->s.head_dim : i]);
    pp_free(in);
    pp_free(g);
}

/* exp(q . k) of two vectors of the layer: a term of DiffLlama's lambda. */
static double factor(const struct decoder *d, int l, const char *q, const char *k)
{
    const struct matrix *a = decoder_part(d, l, q, ""), *b = decoder_part(d, l, k, "");
    double sum = 0;
    for (int i = 0; i < d->s.head_dim; i++)
        sum += (double)a->values[i] * (double)b->values[i];
    return exp(sum);
}

/* DiffLlama's differential attention: heads h and h + n / 2 each attend to the values of both, concatenated; the second
 * result is subtracted from the first, and the difference is normalised. k, v: of all positions up to `last`. */
static void difference(const struct decoder *d, int l, const double *q, const double *k, const double *v, int last,
                       double *att)
{
    const bool turns = d->s.alternate;
    const int dim = d->s.head_dim, half = d->s.n_head / 2, n_kv = d->s.n_head_kv * dim;
    const int group = d->s.n_head / d->s.n_head_kv, n_pairs = d->s.n_head_kv / 2;
    const int first = d->s.n_noise ? half / d->s.n_noise : 1; /* heads that share one noise head */
    const double initial = 0.8 - 0.6 * exp(-0.3 * (turns ? l - 1 : l));
    const double lambda = factor(d, l, "attn_lambda_q1", "attn_lambda_k1") -
                          factor(d, l, "attn_lambda_q2", "attn_lambda_k2") + initial;
    double *one = doubles(2 * dim), *two = doubles(2 * dim);
    for (int h = 0; h < half; h++) {
        double square = 0;
        for (int i = 0; i < 4; i++) { /* both heads' weights, each with both heads' values */
            const int head = turns ? h / first * (first + 1) + (i / 2 ? first : h % first) : h + i / 2 * half;
            const int key = turns ? h / group * 2 + i / 2 : head / group;
            const int value = turns ? h / group * 2 + i % 2 : h / group + i % 2 * n_pairs;
            attend_capped(q + head * dim, k + key * dim, v + value * dim, 0, last, dim, n_kv, scale_at(d, last), 0, 0,
                          1, (i / 2 ? two : one) + i % 2 * dim);
        }
        for (int i = 0; i < 2 * dim; i++) {
            one[i] -= lambda * two[i];
            square += one[i] * one[i] / (2 * dim);
        }
        const double root = sqrt(square + (turns ? 1e-5 : (double)DECODER_EPSILON));
        for (int i = 0; i < 2 * dim; i++)
            att[h * 2 * dim + i] = (1 - initial) * one[i] / root *
                                   (turns ? (double)decoder_part(d, l, "attn_sub_norm", ".weight")->values[i] : 1);
    }
    pp_free(one);
    pp_free(two);
}

/* Doge: the terms added to the scores of positions up to `last`, computed from their values v, for one KV head. */
static void key_scores(const struct decoder *d, int l, const double *v, int last, int h, double *scores)
{
    const int n_kv = d->s.n_head_kv * d->s.head_dim;
    double *all = doubles(d->s.n_head_kv);
    for (int p = 0; p <= last; p++) {
        decoder_linear(d, l, "attn_key_score", v + p * n_kv, all);
        scores[p] = exp((double)decoder_part(d, l, "attn_key_score_a", "")->values[h] * log1p(exp(all[h])));
    }
    pp_free(all);
}

/* Attention of one head, with the terms of key_scores added to its scores. */
static void scored(const struct decoder *d, const double *scores, const double *q, const double *k, const double *v,
                   int last, double *out)
{
    const int dim = d->s.head_dim, stride = d->s.n_head_kv * dim;
    double sum = 0;
    memset(out, 0, (size_t)dim * sizeof *out);
    for (int p = 0; p <= last; p++) {
        double score = scores[p], weight;
        for (int i = 0; i < dim; i++)
            score += q[i] * k[p * stride + i] * scale_at(d, last);
        sum += weight = exp(score);
        for (int i = 0; i < dim; i++)
            out[i] += weight * v[p * stride + i];
    }
    for (int i = 0; i < dim; i++)
        out[i] /= sum;
}

static void scored_attention(const struct decoder *d, int l, const double *q, const double *k, const double *v,
                             int last, double *att)
{
    const int dim = d->s.head_dim, group = d->s.n_head / d->s.n_head_kv;
    double *scores = doubles(last + 1);
    for (int h = 0; h < d->s.n_head; h++) {
        key_scores(d, l, v, last, h / group, scores);
        scored(d, scores, q + h * dim, k + h / group * dim, v + h / group * dim, last, att + h * dim);
    }
    pp_free(scores);
}

/* JetMoE: query h reads key h modulo the number of keys. The heads of each chosen expert go through that expert's
 * output matrix, and the results are summed with the softmax of the experts' logits as weights. x: the stream. */
static void mixed_heads(const struct decoder *d, int l, const double *x, const double *q, const double *k,
                        const double *v, int last, double *delta)
{
    const int dim = d->s.head_dim, n_kv = d->s.n_head_kv * dim;
    double *logits = doubles(d->s.n_expert), *in = doubles(d->s.n_embd), *att = doubles(n_kv), sum = 0;
    int chosen[8];
    decoder_before(d, l, "attn_norm", x, in);
    decoder_linear(d, l, "attn_gate_inp", in, logits);
    choose(d, logits, chosen);
    for (int i = 0; i < d->s.n_used; i++)
        sum += exp(logits[chosen[i]]);
    for (int i = 0; i < d->s.n_embd; i++)
        delta[i] = (double)decoder_part(d, l, "attn_output", ".bias")->values[i];
    for (int i = 0; i < d->s.n_used; i++) {
        for (int h = 0; h < d->s.n_head_kv; h++)
            attend_capped(q + i * n_kv + h * dim, k + h * dim, v + h * dim, 0, last, dim, n_kv, scale_at(d, last), 0,
                          0, 1, att + h * dim);
        decoder_linear_of(d, l, "attn_output_exps", chosen[i], att, in);
        for (int o = 0; o < d->s.n_embd; o++)
            delta[o] += in[o] * exp(logits[chosen[i]]) / sum;
    }
    pp_free(logits);
    pp_free(in);
    pp_free(att);
}

/* An attention sink takes its share of the softmax and has no value: each head's output is scaled down by that
 * share. */
static void sink(const struct decoder *d, int l, const double *q, const double *k, int first, int last, double *att)
{
    const int dim = d->s.head_dim, n_kv = d->s.n_head_kv * dim, group = d->s.n_head / d->s.n_head_kv;
    for (int h = 0; h < d->s.n_head; h++) {
        const double own = (double)decoder_part(d, l, "attn_sinks", ".weight")->values[h];
        double sum = 0;
        for (int p = first; p <= last; p++) {
            double score = 0;
            for (int i = 0; i < dim; i++)
                score += q[h * dim + i] * k[p * n_kv + h / group * dim + i];
            sum += exp(score * scale_at(d, last) - own);
        }
        for (int i = 0; i < dim; i++)
            att[h * dim + i] *= sum / (1 + sum);
    }
}

enum { BLOCK = 64 };

/* Whether head h sees `position` from position `from` in Phi 3 small's block-sparse layers: its block is one of the
 * last near_blocks, or one of every vert_stride-th, shifted by one from head to head. */
static bool sees(const struct decoder_shape *s, int h, int from, int position)
{
    const int shift = s->vert_stride / s->n_head > 1 ? s->vert_stride / s->n_head : 1, block = position / BLOCK;
    return from / BLOCK - block < s->near_blocks || (block + h * shift + 1) % s->vert_stride == 0;
}

static void blocks(const struct decoder *d, const double *q, const double *k, const double *v, int last, double *att)
{
    const int dim = d->s.head_dim, n_kv = d->s.n_head_kv * dim, group = d->s.n_head / d->s.n_head_kv;
    memset(att, 0, (size_t)(d->s.n_head * dim) * sizeof *att);
    for (int h = 0; h < d->s.n_head; h++) {
        double sum = 0;
        for (int p = 0; p <= last; p++) {
            const int at = p * n_kv + h / group * dim;
            double score = 0;
            if (!sees(&d->s, h, last, p))
                continue;
            for (int i = 0; i < dim; i++)
                score += q[h * dim + i] * k[at + i];
            score = exp(score * scale_at(d, last));
            sum += score;
            for (int i = 0; i < dim; i++)
                att[h * dim + i] += score * v[at + i];
        }
        for (int i = 0; i < dim; i++)
            att[h * dim + i] /= sum;
    }
}

static void layer(const struct decoder *d, int l, double *x, int n)
{
    const struct decoder_shape *s = &d->s;
    const int n_q = s->n_head * s->head_dim, n_kv = s->n_head_kv * s->head_dim, group = s->n_head / s->n_head_kv;
    double *k = doubles(n * n_kv), *v = doubles(n * n_kv), *q = doubles(n * n_q), *att = doubles(n_q);
    double *in = doubles(s->n_embd), *delta = doubles(s->n_embd), *ff = doubles(s->n_embd);
    for (int r = 0; r < n; r++)
        attention_inputs(d, l, x + r * s->n_embd, r, q + r * n_q, k + r * n_kv, v + r * n_kv);
    for (int r = 0; r < n; r++) {
        const bool narrow = s->window && !is_wide(d, l);
        const int first = narrow && r >= s->window ? r - s->window + 1 : 0;
        const int last = !s->bidirectional ? r : narrow && r + s->window < n ? r + s->window - 1 : n - 1;
        double *row = x + r * s->n_embd;
        if (s->differential)
            difference(d, l, q + r * n_q, k, v, r, att);
        if (s->key_scores)
            scored_attention(d, l, q + r * n_q, k, v, r, att);
        for (int h = 0; h < s->n_head && !s->differential && !s->key_scores && !s->head_mixture; h++)
            attend_capped(q + r * n_q + h * s->head_dim, k + h / group * s->head_dim, v + h / group * s->head_dim,
                          first, last, s->head_dim, n_kv, scale_at(d, r), slope_of(d, h), (double)s->attn_cap, 1,
                          att + h * s->head_dim);
        if (s->near_blocks && (!s->dense_step || (l + 1) % s->dense_step != 0))
            blocks(d, q + r * n_q, k, v, r, att);
        if (s->sinks)
            sink(d, l, q + r * n_q, k, first, last, att);
        if (s->gated)
            gate(d, l, row, att);
        if (s->sub_norms)
            decoder_norm(d, l, "attn_sub_norm", 0, att, att);
        if (s->head_mixture)
            mixed_heads(d, l, row, q + r * n_q, k, v, r, delta);
        else
            decoder_linear(d, l, "attn_output", att, delta);
        if (s->parallel) {
            decoder_before(d, l, "attn_norm", row, in);
            decoder_feed_forward(d, l, in, ff);
        }
        decoder_post_norm(d, l, "post_attention_norm", delta, row);
        if (!s->parallel) {
            decoder_before(d, l, s->ffn_norm, row, in);
            decoder_feed_forward(d, l, in, ff);
        }
        decoder_post_norm(d, l, "post_ffw_norm", ff, row);
    }
    double *all[] = {k, v, q, att, in, delta, ff};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        pp_free(all[i]);
}

/* IQuest Coder Loop: the first pass keeps its keys and values. In the second pass each head attends to those, and to
 * its own ones within the window; a sigmoid of its query mixes both results. */
static void looped_layer(const struct decoder *d, int l, double *x, int n, bool first, double *keys, double *values)
{
    const struct decoder_shape *s = &d->s;
    const int dim = s->head_dim, n_q = s->n_head * dim, n_kv = s->n_head_kv * dim, group = s->n_head / s->n_head_kv;
    const struct matrix *w = decoder_part(d, l, "loop_gate", ".weight"), *b = decoder_part(d, l, "loop_gate", ".bias");
    double *k = doubles(n * n_kv), *v = doubles(n * n_kv), *q = doubles(n * n_q), *old = doubles(n_q);
    double *att = doubles(n_q), *in = doubles(s->n_embd), *delta = doubles(s->n_embd);
    for (int r = 0; r < n; r++)
        attention_inputs(d, l, x + r * s->n_embd, r, q + r * n_q, (first ? keys : k) + r * n_kv,
                         (first ? values : v) + r * n_kv);
    for (int r = 0; r < n && !first; r++) {
        const int begin = r >= s->window ? r - s->window + 1 : 0;
        for (int h = 0; h < s->n_head; h++) {
            const double *query = q + r * n_q + h * dim;
            const int at = h / group * dim;
            double score = (double)b->values[h];
            for (int i = 0; i < dim; i++)
                score += query[i] * (double)w->values[h * dim + i];
            const double share = 1 / (1 + exp(-score));
            attend_capped(query, keys + at, values + at, 0, r, dim, n_kv, scale_at(d, r), 0, 0, 1, old + h * dim);
            attend_capped(query, k + at, v + at, begin, r, dim, n_kv, scale_at(d, r), 0, 0, 1, att + h * dim);
            for (int i = h * dim; i < (h + 1) * dim; i++)
                att[i] = share * old[i] + (1 - share) * att[i];
        }
        double *row = x + r * s->n_embd;
        decoder_linear(d, l, "attn_output", att, delta);
        decoder_post_norm(d, l, "post_attention_norm", delta, row);
        decoder_before(d, l, s->ffn_norm, row, in);
        decoder_feed_forward(d, l, in, delta);
        decoder_post_norm(d, l, "post_ffw_norm", delta, row);
    }
    if (first)
        layer(d, l, x, n);
    double *all[] = {k, v, q, old, att, in, delta};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        pp_free(all[i]);
}

static void mixed_loops(const struct decoder *d, double *x, int n)
{
    const int size = n * d->s.n_head_kv * d->s.head_dim;
    double *keys = doubles(2 * size * d->s.n_layer), *values = keys + size * d->s.n_layer;
    for (int i = 0; i < 2 * d->s.n_layer; i++) {
        const int l = i % d->s.n_layer;
        looped_layer(d, l, x, n, i < d->s.n_layer, keys + l * size, values + l * size);
    }
    pp_free(keys);
}

/* MiniMax's lightning attention: S = a S + k v', out = S' q, where a is a constant of the head and the layer. One
 * matrix gives q, k and v of each head, in that order, and SiLU follows it. The output is normalised over all heads
 * together, with an epsilon of its own, and is then gated. */
static void lightning_row(const struct decoder *d, int l, const double *in, double *states, double *out)
{
    const int dim = d->s.head_dim, n = d->s.n_head * dim;
    const struct matrix *norm = decoder_part(d, l, decoder_lightning_name(d, 2), ".weight");
    double *qkv = doubles(3 * n), *gate = doubles(n), square = 0;
    decoder_linear(d, l, decoder_lightning_name(d, 0), in, qkv);
    decoder_linear(d, l, decoder_lightning_name(d, 1), in, gate);
    for (int i = 0; i < 3 * n; i++)
        qkv[i] /= 1 + exp(-qkv[i]);
    for (int h = 0; h < d->s.n_head; h++) {
        const double depth = 1 - l / (d->s.n_layer - 1 + 1e-5) + 1e-5;
        const double a = exp(-depth * pow(2, -8.0 * (h + 1) / d->s.n_head));
        const double *q = qkv + 3 * h * dim, *k = q + dim, *v = k + dim;
        double *S = states + h * dim * dim;
        for (int c = 0; c < dim; c++) {
            out[h * dim + c] = 0;
            for (int i = 0; i < dim; i++)
                out[h * dim + c] += (S[i * dim + c] = a * S[i * dim + c] + k[i] * v[c]) * q[i];
        }
    }
    for (int i = 0; i < n; i++)
        square += out[i] * out[i] / n;
    for (int i = 0; i < n; i++)
        out[i] = out[i] / sqrt(square + 1e-6) * (double)norm->values[i] / (1 + exp(-gate[i]));
    pp_free(qkv);
    pp_free(gate);
}

/* MiniMax's residual: the normalised stream and the part's output are added, each multiplied by a constant. */
static void add_scaled(const struct decoder *d, int which, const double *delta, double *row)
{
    for (int i = 0; i < d->s.n_embd; i++)
        row[i] = row[i] * (double)d->s.stream_scales[which][0] + delta[i] * (double)d->s.stream_scales[which][1];
}

static void normed_stream_layer(const struct decoder *d, int l, double *x, int n)
{
    const struct decoder_shape *s = &d->s;
    const bool states = decoder_has_lightning(d, l);
    const int dim = s->head_dim, n_q = s->n_head * dim, n_kv = s->n_head_kv * dim, group = s->n_head / s->n_head_kv;
    double *k = doubles(n * n_kv), *v = doubles(n * n_kv), *q = doubles(n_q), *att = doubles(n_q);
    double *delta = doubles(s->n_embd), *all_states = doubles(n_q * dim);
    struct decoder raw = *d;
    raw.s.norms = POST_NORM; /* the stream is normalised already: no norm before parts */
    for (int r = 0; r < n; r++) {
        double *row = x + r * s->n_embd;
        decoder_norm(d, l, "attn_norm", 0, row, row);
        if (states)
            lightning_row(d, l, row, all_states, att);
        else
            attention_inputs(&raw, l, row, r, q, k + r * n_kv, v + r * n_kv);
        for (int h = 0; !states && h < s->n_head; h++)
            attend_query(q + h * dim, k + h / group * dim, v + h / group * dim, 0, r, dim, n_kv, scale_at(d, r), 0,
                         att + h * dim);
        decoder_linear(d, l, states ? decoder_lightning_name(d, 3) : "attn_output", att, delta);
        add_scaled(d, states ? 0 : 1, delta, row);
        decoder_norm(d, l, "ffn_norm", 0, row, row);
        decoder_feed_forward(d, l, row, delta);
        add_scaled(d, 2, delta, row);
    }
    double *all[] = {k, v, q, att, delta, all_states};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        pp_free(all[i]);
}

/* Attention or the projection in its place, then the feed-forward part; a part that the layer lacks adds nothing. */
static void gapped_layer(const struct decoder *d, int l, double *x, int n)
{
    const int width = d->s.n_embd;
    double *in = doubles(width), *delta = doubles(width);
    if (d->s.n_head_kv && d->s.n_ff) {
        layer(d, l, x, n);
        n = 0;
    }
    assert_true(!d->s.n_head_kv || d->s.n_ff); /* layer() computes both */
    for (int r = 0; r < n; r++) {
        double *row = x + r * width;
        if (d->s.n_head) {
            decoder_before(d, l, "attn_norm", row, in);
            decoder_linear(d, l, "attn_output", in, delta);
            decoder_post_norm(d, l, "", delta, row);
        }
        if (d->s.n_ff) {
            decoder_before(d, l, d->s.ffn_norm, row, in);
            decoder_feed_forward(d, l, in, delta);
            decoder_post_norm(d, l, "", delta, row);
        }
    }
    pp_free(in);
    pp_free(delta);
}

/* An encoder's vector, from the output of the last norm. */
static void vector(const struct decoder *d, const double *in, double *out)
{
    double *wide = doubles(d->s.n_dense + 1);
    if (d->s.n_dense) {
        decoder_linear(d, -1, "dense_2", in, wide);
        decoder_linear(d, -1, "dense_3", wide, out);
    } else {
        memcpy(out, in, (size_t)d->s.n_embd * sizeof *out);
    }
    pp_free(wide);
}

/* ModernBERT's decoders: a matrix, a GELU and a norm follow the last norm. */
static void dense_head(const struct decoder *d, double *x)
{
    double *y = doubles(d->s.n_embd);
    decoder_linear(d, -1, "output_dense", x, y);
    for (int i = 0; i < d->s.n_embd; i++)
        y[i] = decoder_gelu(y[i]);
    decoder_norm(d, -1, "output_dense_norm", 0, y, x);
    pp_free(y);
}

static double capped(const struct decoder *d, double logit)
{
    const double cap = (double)d->s.final_cap;
    return cap != 0 ? cap * tanh(logit / cap) : logit;
}

/* Solar Pro: the input of some layers is kept in one of two slots of `kept`, and mixed into the input of later
 * layers. */
static void mix_skipped(const struct decoder *d, int l, double *x, int n, double *kept)
{
    const int bits = d->s.skips ? decoder_skips(&d->s, l) : 0, size = n * d->s.n_embd;
    const double share = (double)d->s.skip_share;
    for (int i = 0; i < 4 * size; i++) {
        double *value = &x[i % size], *place = &kept[i % (2 * size)];
        if (bits >> i / size & 1) {
            if (i < 2 * size)
                *place = *value;
            else
                *value = share * *place + (1 - share) * *value;
        }
    }
}

void decoder_compute(const struct decoder *d, const int32_t *ids, int n, double *logits)
{
    const int width = d->s.n_embd, n_vocab = d->s.n_vocab;
    const struct matrix *table = decoder_find(d, "token_embd.weight");
    const double in_scale = d->s.embd_scale != 0.0f ? (double)d->s.embd_scale : 1;
    const double number = d->s.logit_scale != 0.0f ? (double)d->s.logit_scale : 1;
    const double out_scale = d->s.logit_divided ? 1 / number : number;
    double *x = doubles(n * width), *in = doubles(width), *narrow = doubles(table->cols);
    for (int r = 0; r < n; r++) {
        for (int64_t i = 0; i < table->cols; i++)
            narrow[i] = (double)table->values[ids[r] * table->cols + i] * in_scale;
        if (d->s.n_embd_in)
            decoder_linear(d, -1, "embd_proj", narrow, x + r * width);
        else
            memcpy(x + r * width, narrow, (size_t)width * sizeof *x);
    }
    if (d->s.positions)
        for (int i = 0; i < n * width; i++)
            x[i] += (double)decoder_find(d, "position_embd.weight")->values[i];
    for (int i = 0; i < n * width && d->s.sinusoids; i++) {
        const int half = width / 2, k = i % width;
        const double position = i / width + (d->s.fairseq ? 2 : 0);
        const double angle = position * exp(-log(10000) * (k % half) / (d->s.fairseq ? half - 1 : half));
        x[i] += k < half ? sin(angle) : cos(angle);
    }
    for (int r = 0; r < n && d->s.embd_norm; r++)
        decoder_norm(d, -1, "token_embd_norm", 0, x + r * width, x + r * width);
    double *embeddings = doubles(n * width);
    memcpy(embeddings, x, (size_t)(n * width) * sizeof *x);
    for (int l = 0; l < d->s.n_layer && d->s.zamba.layers; l++)
        decoder_zamba_layer(d, l, embeddings, x, n);
    pp_free(embeddings);
    double *routed = doubles(n * (d->s.n_router + 1));
    if (d->s.cca)
        cca_begin(d, x, n);
    for (int l = 0; l < d->s.n_layer && d->s.cca; l++)
        cca_layer(d, l, x, routed, n);
    pp_free(routed);
    double *kept = doubles(2 * n * width);
    const int n_times = d->s.loops ? d->s.n_layer * d->s.loops : d->s.n_layer;
    if (d->s.loops_mixed)
        mixed_loops(d, x, n);
    for (int i = 0; i < n_times && !d->s.zamba.layers && !d->s.cca && !d->s.loops_mixed; i++) {
        struct decoder of_layer = *d;
        const int l = i % d->s.n_layer;
        for (int r = 0; r < n && i > 0 && l == 0 && !d->s.loops_plain; r++)
            decoder_norm(d, -1, d->s.output_norm, 0, x + r * width, x + r * width);
        of_layer.s = decoder_shape_of(&d->s, l);
        mix_skipped(d, l, x, n, kept);
        (decoder_convolves(d, l)    ? decoder_convolved_layer
         : decoder_has_states(d, l) ? decoder_states_layer
         : decoder_has_lru(d, l)    ? decoder_lru_layer
         : decoder_has_mlstm(d)     ? decoder_mlstm_layer
         : d->s.lightning           ? normed_stream_layer
         : d->s.uneven              ? gapped_layer
                                    : layer)(&of_layer, l, x, n);
    }
    pp_free(kept);
    for (int r = 0; r < n; r++) {
        if (d->s.no_output_norm)
            memcpy(in, x + r * width, (size_t)width * sizeof *in);
        else
            decoder_norm(d, -1, d->s.output_norm, 0, x + r * width, in);
        if (d->s.bidirectional) {
            vector(d, in, logits + r * width);
            continue;
        }
        if (d->s.n_embd_in)
            decoder_linear(d, -1, "output_proj", in, narrow);
        if (d->s.dense_head)
            dense_head(d, in);
        decoder_linear(d, -1, d->s.tied ? "token_embd" : "output", d->s.n_embd_in ? narrow : in, logits + r * n_vocab);
        for (int t = 0; t < n_vocab && d->s.biases & BIAS_OUTPUT && d->s.tied; t++) /* otherwise decoder_linear() has
                                                                                       added it */
            logits[r * n_vocab + t] += (double)decoder_find(d, "output.bias")->values[t];
        for (int t = 0; t < n_vocab; t++)
            logits[r * n_vocab + t] =
                t >= 4 && t < d->s.silent_end ? -1e30 : capped(d, logits[r * n_vocab + t] * out_scale);
    }
    pp_free(x);
    pp_free(in);
    pp_free(narrow);
}
