/* decoder_scans.c - formulas of layers that small random decoders have in place of attention or interleaved with it:
 * short convolutions, the recurrent states of PLaMo 2, Griffin, xLSTM and Zamba, and the attention blocks that Zamba's
 * layers share. */
#include "tests/decoder_formulas.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/small_model.h"
#include "tests/support.h"

/* LFM2: [B, C, x] = W_in h, and W_out (C * conv(B * x)). */
void decoder_convolved_layer(const struct decoder *d, int l, double *x, int n)
{
    const int width = d->s.n_embd;
    const struct matrix *taps = decoder_part(d, l, "shortconv.conv", ".weight");
    const struct matrix *bias = decoder_part(d, l, "shortconv.conv", ".bias");
    double *in = doubles(width), *three = doubles(3 * width), *product = doubles(n * width), *delta = doubles(width);
    for (int r = 0; r < n; r++) {
        double *row = x + r * width;
        decoder_before(d, l, "attn_norm", row, in);
        decoder_linear(d, l, "shortconv.in_proj", in, three);
        for (int i = 0; i < width; i++)
            product[r * width + i] = three[i] * three[2 * width + i];
        convolve_row(taps->values, d->s.taps, bias ? bias->values : NULL, product, r, width, in);
        for (int i = 0; i < width; i++)
            in[i] *= three[width + i];
        decoder_linear(d, l, "shortconv.out_proj", in, delta);
        decoder_post_norm(d, l, "post_attention_norm", delta, row);
        decoder_before(d, l, d->s.ffn_norm, row, in);
        decoder_feed_forward(d, l, in, delta);
        decoder_post_norm(d, l, "post_ffw_norm", delta, row);
    }
    double *all[] = {in, three, product, delta};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        pp_free(all[i]);
}

/* PLaMo 2's states at one position: S = a S + B dt x', y = (S' C + D x) silu(z) for each head. B, C and dt are
 * projected from the convolved x; z and x are the two halves of a head's input. */
static void states_row(const struct decoder *d, int l, const double *in, int r, double *x, double *states, double *y)
{
    const int dim = d->s.head_dim, key = d->s.key_dim, rank = d->s.state_rank, width = d->s.n_state * dim;
    const struct matrix *A = decoder_part(d, l, "ssm_a", ""), *D = decoder_part(d, l, "ssm_d", "");
    double *both = doubles(2 * width), *u = doubles(width), *dt = doubles(d->s.n_state);
    double *small = doubles(rank + 2 * key);
    decoder_linear(d, l, "ssm_in", in, both);
    for (int i = 0; i < width; i++)
        x[r * width + i] = both[i / dim * 2 * dim + dim + i % dim];
    convolve_row(decoder_part(d, l, "ssm_conv1d", ".weight")->values, DECODER_STATE_TAPS, NULL, x, r, width, u);
    for (int i = 0; i < width; i++)
        u[i] /= 1 + exp(-u[i]);
    decoder_linear(d, l, "ssm_x", u, small);
    decoder_norm(d, l, "ssm_b_norm", 0, small, small);
    decoder_norm(d, l, "ssm_c_norm", 0, small + key, small + key);
    decoder_norm(d, l, "ssm_dt_norm", 0, small + 2 * key, small + 2 * key);
    decoder_linear(d, l, "ssm_dt", small + 2 * key, dt);
    for (int i = 0; i < width; i++) {
        const int h = i / dim;
        const double step = log1p(exp(dt[h])), a = exp(step * (double)A->values[h]), z = both[h * 2 * dim + i % dim];
        y[i] = (double)D->values[h] * u[i];
        for (int n = 0; n < key; n++) {
            states[i * key + n] = a * states[i * key + n] + small[n] * step * u[i];
            y[i] += states[i * key + n] * small[key + n];
        }
        y[i] *= z / (1 + exp(-z));
    }
    double *all[] = {both, u, small, dt};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        pp_free(all[i]);
}

/* Computes the output y [width] of a layer's states at position r, and updates `states`. x: [positions, width], the
 * convolution's inputs, whose row r it writes. */
typedef void state_row_fn(const struct decoder *d, int l, const double *in, int r, double *x, double *states,
                          double *y);

static void go_through_states(const struct decoder *d, int l, double *x, int n, state_row_fn *state_row, int width,
                              int n_states, const char *out)
{
    const int embd = d->s.n_embd;
    double *in = doubles(embd), *delta = doubles(embd), *y = doubles(width);
    double *all_x = doubles(n * width), *states = doubles(n_states);
    for (int r = 0; r < n; r++) {
        double *row = x + r * embd;
        decoder_before(d, l, "attn_norm", row, in);
        state_row(d, l, in, r, all_x, states, y);
        decoder_linear(d, l, out, y, delta);
        decoder_post_norm(d, l, "post_attention_norm", delta, row);
        decoder_before(d, l, d->s.ffn_norm, row, in);
        decoder_feed_forward(d, l, in, delta);
        decoder_post_norm(d, l, "post_ffw_norm", delta, row);
    }
    double *all[] = {in, delta, y, all_x, states};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        pp_free(all[i]);
}

void decoder_states_layer(const struct decoder *d, int l, double *x, int n)
{
    const int width = d->s.n_state * d->s.head_dim;
    go_through_states(d, l, x, n, states_row, width, width * d->s.key_dim, "ssm_out");
}

/* Griffin's gate of channel i: a sigmoid of a block-diagonal projection of the convolution's output. */
static double lru_gate(const struct decoder *d, int l, const char *kind, int i, const double *in)
{
    const struct matrix *w = decoder_part(d, l, kind, ".weight"), *b = decoder_part(d, l, kind, ".bias");
    const int size = d->s.lru_width / d->s.n_head, block = i / size;
    double sum = (double)b->values[i];
    for (int k = 0; k < size; k++)
        sum += (double)w->values[(int64_t)i * size + k] * in[block * size + k];
    return 1 / (1 + exp(-sum));
}

/* Griffin's RG-LRU at one position: h = a h + sqrt(1 - a^2) gate x, where x is the convolution's output; at the first
 * position the root is left out. The output is h times the GELU of a parallel branch. */
static void lru_row(const struct decoder *d, int l, const double *in, int r, double *x, double *h, double *y)
{
    const int n = d->s.lru_width;
    const struct matrix *param = decoder_part(d, l, "lru_a", "");
    double *u = doubles(n);
    decoder_linear(d, l, "lru_x", in, x + r * n);
    decoder_linear(d, l, "lru_y", in, y);
    convolve_row(decoder_part(d, l, "lru_conv1d", ".weight")->values, DECODER_STATE_TAPS,
                 decoder_part(d, l, "lru_conv1d", ".bias")->values, x, r, n, u);
    for (int i = 0; i < n; i++) {
        const double ln_a = -8 * lru_gate(d, l, "lru_a_gate", i, u) * log1p(exp((double)param->values[i]));
        const double part_of = r ? sqrt(1 - exp(2 * ln_a)) : 1;
        h[i] = exp(ln_a) * h[i] + part_of * lru_gate(d, l, "lru_in_gate", i, u) * u[i];
        y[i] = decoder_gelu_tanh(y[i]) * h[i];
    }
    pp_free(u);
}

void decoder_lru_layer(const struct decoder *d, int l, double *x, int n)
{
    go_through_states(d, l, x, n, lru_row, d->s.lru_width, d->s.lru_width, "lru_out");
}

/* The inputs of xLSTM's heads at one position. left, counts: the logarithms of the forget and input gates; gate: of
 * the output. Queries are divided by the square root of their size. */
struct mlstm_inputs {
    double *q, *k, *v, *gate, *left, *counts;
};

static void mlstm_inputs(const struct decoder *d, int l, const double *in, const struct mlstm_inputs *to)
{
    const int heads = d->s.mlstm.n_head, key = d->s.mlstm.key_dim, n_k = heads * key, n_v = heads * d->s.head_dim;
    const double cap = (double)d->s.mlstm.cap;
    double *all = doubles(2 * (n_k + n_v)), *gates = doubles(2 * heads);
    if (d->s.mlstm.fused) {
        decoder_linear(d, l, "mlstm_in", in, all);
        decoder_linear(d, l, "mlstm_gates", in, gates);
    } else {
        decoder_linear(d, l, "attn_q", in, all);
        decoder_linear(d, l, "attn_k", in, all + n_k);
        decoder_linear(d, l, "attn_v", in, all + 2 * n_k);
        decoder_linear(d, l, "attn_gate", in, all + 2 * n_k + n_v);
        decoder_linear(d, l, "mlstm_in_gate", in, gates);
        decoder_linear(d, l, "mlstm_forget_gate", in, gates + heads);
    }
    for (int i = 0; i < n_k; i++) {
        to->q[i] = all[i] / sqrt(key);
        to->k[i] = all[n_k + i];
    }
    memcpy(to->v, all + 2 * n_k, (size_t)n_v * sizeof *all);
    memcpy(to->gate, all + 2 * n_k + n_v, (size_t)n_v * sizeof *all);
    for (int h = 0; h < heads; h++) {
        to->counts[h] = cap * tanh(gates[h] / cap);
        to->left[h] = -log1p(exp(-cap * tanh(gates[heads + h] / cap)));
    }
    pp_free(all);
    pp_free(gates);
}

/* A head's states. C and n are stored divided by exp(m). */
struct mlstm_state {
    double *C, *n, m;
};

/* C = e^f C + e^i k v' and n = e^f n + e^i k, both divided by e^m. */
static void mlstm_add(struct mlstm_state *s, double f, double i, double m, const double *k, const double *v, int key,
                      int value)
{
    const double left = exp(f + s->m - m), counts = exp(i - m);
    for (int a = 0; a < key; a++) {
        s->n[a] = left * s->n[a] + counts * k[a];
        for (int b = 0; b < value; b++)
            s->C[a * value + b] = left * s->C[a * value + b] + counts * k[a] * v[b];
    }
    s->m = m;
}

static double dot(const double *a, const double *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* A head's position by position: m = max(f + m, i), and out = C' q / (max(|n . q|, e^-m) + eps). x: [n] */
static void mlstm_by_steps(const struct decoder *d, const struct mlstm_inputs *x, int n, int h, double *out)
{
    const int key = d->s.mlstm.key_dim, value = d->s.head_dim, n_v = d->s.mlstm.n_head * value;
    struct mlstm_state s = {.C = doubles(key * value), .n = doubles(key)};
    for (int t = 0; t < n; t++) {
        const double *q = x[t].q + h * key, f = x[t].left[h], i = x[t].counts[h];
        mlstm_add(&s, f, i, fmax(f + s.m, i), x[t].k + h * key, x[t].v + h * value, key, value);
        const double by = fmax(fabs(dot(s.n, q, key)), exp(-s.m)) + (double)d->s.mlstm.eps;
        for (int b = 0; b < value; b++) {
            double sum = 0;
            for (int a = 0; a < key; a++)
                sum += s.C[a * value + b] * q[a];
            out[t * n_v + h * value + b] = sum / by;
        }
    }
    pp_free(s.C);
    pp_free(s.n);
}

/* The chunkwise form of mlstm_by_steps, for n positions: *s are the states before the chunk, then those after it. With
 * F[t] the sum of f up to t, position j has the weight e^(F[t] - F[j] + i[j]) at t. */
static void mlstm_piece(const struct decoder *d, const struct mlstm_inputs *x, int n, int h, struct mlstm_state *s,
                        double *out)
{
    const int key = d->s.mlstm.key_dim, value = d->s.head_dim, n_v = d->s.mlstm.n_head * value;
    double *F = doubles(n), most = 0;
    for (int t = 0; t < n; t++) {
        const double *q = x[t].q + h * key;
        double *y = out + t * n_v + h * value, below = 0;
        F[t] = (t ? F[t - 1] : 0) + x[t].left[h];
        most = F[t] + s->m;
        for (int j = 0; j <= t; j++)
            most = fmax(most, F[t] - F[j] + x[j].counts[h]);
        const double before = exp(F[t] + s->m - most);
        below = before * dot(s->n, q, key);
        for (int b = 0; b < value; b++) {
            y[b] = 0;
            for (int a = 0; a < key; a++)
                y[b] += before * s->C[a * value + b] * q[a];
        }
        for (int j = 0; j <= t; j++) {
            const double score = exp(F[t] - F[j] + x[j].counts[h] - most) * dot(x[j].k + h * key, q, key);
            below += score;
            for (int b = 0; b < value; b++)
                y[b] += score * x[j].v[h * value + b];
        }
        for (int b = 0; b < value; b++)
            y[b] /= fmax(fabs(below), exp(-most)) + (double)d->s.mlstm.eps;
    }
    for (int j = 0; j < n; j++) /* the old states decay once, with the first position */
        mlstm_add(s, j ? 0 : F[n - 1], F[n - 1] - F[j] + x[j].counts[h], most, x[j].k + h * key, x[j].v + h * value,
                  key, value);
    pp_free(F);
}

/* The heads' output, [n, values], by the recurrent form; asserts that the chunkwise form gives the same. */
static void mlstm_heads(const struct decoder *d, const struct mlstm_inputs *x, int n, double *out)
{
    enum { PIECE = 25 };
    const int key = d->s.mlstm.key_dim, value = d->s.head_dim, n_v = d->s.mlstm.n_head * value;
    double *other = doubles(n * n_v);
    for (int h = 0; h < d->s.mlstm.n_head; h++) {
        struct mlstm_state s = {.C = doubles(key * value), .n = doubles(key)};
        mlstm_by_steps(d, x, n, h, out);
        for (int t = 0; t < n; t += PIECE)
            mlstm_piece(d, x + t, n - t < PIECE ? n - t : PIECE, h, &s, other + t * n_v);
        pp_free(s.C);
        pp_free(s.n);
    }
    for (int i = 0; i < n * n_v; i++)
        assert_true(fabs(out[i] - other[i]) <= 1e-9 * (1 + fabs(out[i])));
    pp_free(other);
}

/* LayerNorm of each head by its part of the vectors, times the sigmoid of the output gate. The norm would cancel the
 * heads' divisor but for its epsilon, which these models therefore make large. */
static void mlstm_result(const struct decoder *d, int l, const struct mlstm_inputs *x, double *y)
{
    const struct matrix *w = decoder_part(d, l, "mlstm_norm", ".weight");
    const struct matrix *b = decoder_part(d, l, "mlstm_norm", ".bias");
    const int value = d->s.head_dim;
    for (int at = 0; at < d->s.mlstm.n_head * value; at += value) {
        double mean = 0, square = 0;
        for (int i = at; i < at + value; i++)
            mean += y[i] / value;
        for (int i = at; i < at + value; i++)
            square += (y[i] - mean) * (y[i] - mean) / value;
        for (int i = at; i < at + value; i++)
            y[i] = ((y[i] - mean) / sqrt(square + (double)d->s.epsilon) * (double)w->values[i] +
                    (b ? (double)b->values[i] : 0)) / (1 + exp(-x->gate[i]));
    }
}

void decoder_mlstm_layer(const struct decoder *d, int l, double *x, int n)
{
    const int embd = d->s.n_embd, heads = d->s.mlstm.n_head, n_k = heads * d->s.mlstm.key_dim,
              n_v = heads * d->s.head_dim, each = 2 * (n_k + n_v + heads);
    double *room = doubles(n * each), *y = doubles(n * n_v), *in = doubles(embd), *delta = doubles(embd);
    struct mlstm_inputs *inputs = pp_calloc((size_t)n, sizeof *inputs);
    assert_non_null(inputs);
    for (int r = 0; r < n; r++) {
        double *own = room + r * each;
        inputs[r] = (struct mlstm_inputs){.q = own, .k = own + n_k, .v = own + 2 * n_k, .gate = own + 2 * n_k + n_v,
                                          .left = own + 2 * (n_k + n_v), .counts = own + 2 * (n_k + n_v) + heads};
        decoder_norm(d, l, "attn_norm", 0, x + r * embd, in);
        mlstm_inputs(d, l, in, &inputs[r]);
    }
    mlstm_heads(d, inputs, n, y);
    for (int r = 0; r < n; r++) {
        double *row = x + r * embd;
        mlstm_result(d, l, &inputs[r], y + r * n_v);
        decoder_linear(d, l, "attn_output", y + r * n_v, delta);
        for (int i = 0; i < embd; i++)
            row[i] += delta[i];
        decoder_norm(d, l, "ffn_norm", 0, row, in);
        decoder_feed_forward(d, l, in, delta);
        for (int i = 0; i < embd; i++)
            row[i] += delta[i];
    }
    double *all[] = {room, y, in, delta};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        pp_free(all[i]);
    pp_free(inputs);
}

/* Zamba2: the product with a shared block's matrix, plus the low-rank adapter (_a, _b) of this use of the block. */
static void adapted(const struct decoder *d, int at, const char *kind, int use, bool more, const double *in,
                    double *out)
{
    char down[40], up[40];
    const int64_t n = decoder_part(d, at, kind, ".weight")->rows;
    double *low = doubles(d->s.zamba.rank), *add = doubles(n);
    decoder_linear(d, at, kind, in, out);
    snprintf(down, sizeof down, "%s_a.%d", kind, use);
    snprintf(up, sizeof up, "%s_b.%d", kind, use);
    if (more) {
        decoder_linear(d, at, down, in, low);
        decoder_linear(d, at, up, low, add);
    }
    for (int64_t i = 0; i < n; i++)
        out[i] += add[i];
    pp_free(low);
    pp_free(add);
}

/* Zamba's shared block at position r: attention and a feed-forward part, whose input is the stream concatenated with
 * the embedding, followed by the layer's own projection. k, v: of all positions of this layer. */
static void block_row(const struct decoder *d, int l, const double *x, const double *embedding, int r, double *k,
                      double *v, double *out)
{
    const struct decoder_shape *s = &d->s;
    const int n = s->n_embd, dim = s->head_dim, n_q = s->n_head * dim, n_kv = s->n_head_kv * dim;
    const int group = s->n_head / s->n_head_kv;
    int use;
    const int at = decoder_zamba_block(s, l, &use);
    double *both = doubles(2 * n), *q = doubles(n_q), *att = doubles(n_q), *delta = doubles(n);
    double *gate = doubles(2 * s->n_ff);
    memcpy(both, x, (size_t)n * sizeof *both);
    memcpy(both + n, embedding, (size_t)n * sizeof *both);
    decoder_norm(d, at, "shared_norm", 0, both, both);
    adapted(d, at, "shared_q", use, s->zamba.adapted, both, q);
    adapted(d, at, "shared_k", use, s->zamba.adapted, both, k + r * n_kv);
    adapted(d, at, "shared_v", use, s->zamba.adapted, both, v + r * n_kv);
    if (!s->zamba.n_scan) {
        decoder_heads(d, l, "", s->n_head, r, q);
        decoder_heads(d, l, "", s->n_head_kv, r, k + r * n_kv);
    }
    for (int h = 0; h < s->n_head; h++) /* the scale is that of heads of half the size */
        attend_query(q + h * dim, k + h / group * dim, v + h / group * dim, 0, r, dim, n_kv, 1 / sqrt(dim / 2.0), 0,
                     att + h * dim);
    decoder_linear(d, at, "shared_output", att, delta);
    decoder_norm(d, at, "shared_ffn_norm", 0, delta, delta);
    if (s->zamba.n_scan) {
        decoder_linear(d, at, "shared_gate", delta, gate);
        decoder_linear(d, at, "shared_up", delta, gate + s->n_ff);
    } else {
        adapted(d, at, "shared_up", use, true, delta, gate);
    }
    for (int i = 0; i < s->n_ff; i++)
        gate[i] = decoder_gelu(gate[i]) * gate[s->n_ff + i];
    decoder_linear(d, at, "shared_down", gate, delta);
    decoder_linear(d, l, "shared_out", delta, out);
    double *all[] = {both, q, att, delta, gate};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        pp_free(all[i]);
}

/* Mamba 2 at one position: S = a S + B dt x', y = RMSNorm((S' C + D x) silu(z)) in groups. */
static void mamba2_row(const struct decoder *d, int l, const double *in, int r, double *mixed, double *states,
                       double *y)
{
    const int n_head = d->s.zamba.n_head, n_group = d->s.zamba.n_group, key = d->s.key_dim, dim = 16;
    const int width = n_head * dim, all = width + 2 * n_group * key, each = width / n_group;
    const struct matrix *taps = decoder_part(d, l, "ssm_conv1d", ".weight");
    const struct matrix *bias = decoder_part(d, l, "ssm_conv1d", ".bias");
    const struct matrix *weight = decoder_part(d, l, "ssm_norm", ".weight");
    double *row = doubles(width + all + n_head), *u = doubles(all);
    decoder_linear(d, l, "ssm_in", in, row);
    memcpy(mixed + r * all, row + width, (size_t)all * sizeof *mixed);
    convolve_row(taps->values, DECODER_STATE_TAPS, bias->values, mixed, r, all, u);
    for (int i = 0; i < all; i++)
        u[i] /= 1 + exp(-u[i]);
    for (int i = 0; i < width; i++) {
        const int h = i / dim, g = h / (n_head / n_group);
        const double *B = u + width + g * key, *C = B + n_group * key, z = row[i];
        const double dt = log1p(exp(row[width + all + h] + (double)decoder_part(d, l, "ssm_dt", ".bias")->values[h]));
        const double a = exp(dt * (double)decoder_part(d, l, "ssm_a", "")->values[h]);
        y[i] = (double)decoder_part(d, l, "ssm_d", "")->values[h] * u[i];
        for (int n = 0; n < key; n++) {
            states[i * key + n] = a * states[i * key + n] + B[n] * dt * u[i];
            y[i] += states[i * key + n] * C[n];
        }
        y[i] *= z / (1 + exp(-z));
    }
    for (int g = 0; g < n_group; g++) {
        double square = 0;
        for (int i = g * each; i < (g + 1) * each; i++)
            square += y[i] * y[i] / each;
        for (int i = g * each; i < (g + 1) * each; i++)
            y[i] *= (double)weight->values[i] / sqrt(square + (double)DECODER_EPSILON);
    }
    pp_free(row);
    pp_free(u);
}

/* The first Zamba's Mamba at one position: the input projection interleaves u, which is convolved, and the gates z.
 * Each scan computes dt, B and C from its own channels: S[c] = exp(A[c] dt[c]) S[c] + B dt[c] u[c], y[c] = (S[c]' C +
 * D[c] u[c]) silu(z[c]). */
static void scans_row(const struct decoder *d, int l, const double *in, int r, double *mixed, double *states, double *y)
{
    const int key = d->s.key_dim, rank = d->s.zamba.rank, width = 16 * d->s.zamba.n_head;
    const int one = width / d->s.zamba.n_scan;
    double *both = doubles(2 * width), *u = doubles(width), *small = doubles(rank + 2 * key), *dt = doubles(one);
    decoder_linear(d, l, "ssm_in", in, both);
    for (int i = 0; i < width; i++)
        mixed[r * width + i] = both[2 * i];
    convolve_row(decoder_part(d, l, "ssm_conv1d", ".weight")->values, DECODER_STATE_TAPS,
                 decoder_part(d, l, "ssm_conv1d", ".bias")->values, mixed, r, width, u);
    for (int i = 0; i < width; i++)
        u[i] /= 1 + exp(-u[i]);
    for (int h = 0; h < d->s.zamba.n_scan; h++) {
        const struct matrix *of_x = decoder_part(d, l, "ssm_x", ".weight");
        const struct matrix *of_dt = decoder_part(d, l, "ssm_dt", ".weight");
        for (int o = 0; o < rank + 2 * key; o++) {
            small[o] = 0;
            for (int i = 0; i < one; i++)
                small[o] += (double)of_x->values[(h * (rank + 2 * key) + o) * one + i] * u[h * one + i];
        }
        for (int c = 0; c < one; c++) {
            const int i = h * one + c;
            dt[c] = (double)decoder_part(d, l, "ssm_dt", ".bias")->values[i];
            for (int k = 0; k < rank; k++)
                dt[c] += (double)of_dt->values[i * rank + k] * small[k];
            dt[c] = log1p(exp(dt[c]));
            y[i] = (double)decoder_part(d, l, "ssm_d", "")->values[i] * u[i];
            for (int k = 0; k < key; k++) {
                const double a = exp((double)decoder_part(d, l, "ssm_a", "")->values[i * key + k] * dt[c]);
                states[i * key + k] = a * states[i * key + k] + small[rank + k] * dt[c] * u[i];
                y[i] += states[i * key + k] * small[rank + key + k];
            }
            y[i] *= both[2 * i + 1] / (1 + exp(-both[2 * i + 1]));
        }
    }
    double *all[] = {both, u, small, dt};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        pp_free(all[i]);
}

void decoder_zamba_layer(const struct decoder *d, int l, const double *embeddings, double *x, int n)
{
    const struct decoder_shape *s = &d->s;
    const int embd = s->n_embd, n_kv = s->n_head_kv * s->head_dim, width = 16 * s->zamba.n_head;
    const int all = width + 2 * s->zamba.n_group * s->key_dim;
    double *k = doubles(n * n_kv), *v = doubles(n * n_kv), *in = doubles(embd), *y = doubles(width);
    double *mixed = doubles(n * all), *states = doubles(width * s->key_dim), *delta = doubles(embd);
    for (int r = 0; r < n; r++) {
        double *row = x + r * embd;
        memset(in, 0, (size_t)embd * sizeof *in);
        if (s->zamba.layers[l] == 'h')
            block_row(d, l, row, embeddings + r * embd, r, k, v, in);
        for (int i = 0; i < embd; i++)
            in[i] += row[i];
        decoder_norm(d, l, "attn_norm", 0, in, in);
        (s->zamba.n_scan ? scans_row : mamba2_row)(d, l, in, r, mixed, states, y);
        decoder_linear(d, l, "ssm_out", y, delta);
        for (int i = 0; i < embd; i++)
            row[i] += delta[i];
    }
    double *rooms[] = {k, v, in, y, mixed, states, delta};
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++)
        pp_free(rooms[i]);
}
