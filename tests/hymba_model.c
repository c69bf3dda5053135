/* hymba_model.c - a small model in the form of Hymba (arXiv 2411.13676). Its formulas follow the reference, one
 * position after the other; attention and Mamba share one input matrix, as in folders. */
#include "tests/hymba_model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/gguf_file.h"
#include "tests/random_array.h"
#include "tests/small_model.h"
#include "tests/support.h"

enum { N = 64, HEADS = 4, KEY_HEADS = 2, HEAD = N / HEADS, FF = 96, LAYERS = 6, INNER = 2 * N, VALUE = INNER / HEADS,
       STATE = 16, RANK = 4, TAPS = 4, QUERIES = N, KEYS = KEY_HEADS * HEAD, VALUES = KEY_HEADS * VALUE, MOST = 160 };

static const float BASE = 20000;
static struct array arrays[MOST];
static int n_arrays;
static uint32_t random_state;

static void add(int l, const char *kind, int64_t rows, int64_t cols, float middle, float range)
{
    assert_true(n_arrays < MOST);
    array_make(&arrays[n_arrays++], l, kind, 0, rows, cols, middle, range, &random_state);
}

/* Layers in the middle come in pairs; the second of a pair reads the first one's keys and values. */
static bool is_shared(int l)
{
    return l > 0 && l < LAYERS - 1 && l % 2 == 0;
}

static bool is_wide(int l)
{
    return l == 0 || l == LAYERS - 1;
}

void hymba_make(void)
{
    random_state = 11;
    n_arrays = 0;
    add(-1, "token_embd.weight", HYMBA_VOCAB, N, 0, 1);
    add(-1, "token_start.weight", HYMBA_START, N, 0, 1);
    add(-1, "output_norm.weight", 0, N, 1, 0.3f);
    for (int l = 0; l < LAYERS; l++) {
        add(l, "attn_norm.weight", 0, N, 1, 0.3f);
        add(l, "ssm_in.weight", QUERIES + (is_shared(l) ? 0 : KEYS + VALUES) + 2 * INNER, N, 0, 0.3f);
        add(l, "ssm_conv1d.weight", INNER, TAPS, 0, 0.5f);
        add(l, "ssm_conv1d.bias", 0, INNER, 0, 0.3f);
        add(l, "ssm_x.weight", RANK + 2 * STATE, INNER, 0, 0.2f);
        add(l, "ssm_dt_norm.weight", 0, RANK, 1, 0.3f);
        add(l, "ssm_b_norm.weight", 0, STATE, 1, 0.3f);
        add(l, "ssm_c_norm.weight", 0, STATE, 1, 0.3f);
        add(l, "ssm_dt.weight", INNER, RANK, 0, 0.3f);
        add(l, "ssm_dt.bias", 0, INNER, 0, 0.3f);
        add(l, "ssm_a", INNER, STATE, -0.6f, 0.4f);
        add(l, "ssm_d", 0, INNER, 1, 0.5f);
        add(l, "attn_sub_norm.weight", 0, INNER, 1, 0.3f);
        add(l, "ssm_norm.weight", 0, INNER, 1, 0.3f);
        add(l, "ssm_out.weight", N, INNER, 0, 0.2f);
        add(l, "ffn_norm.weight", 0, N, 1, 0.3f);
        add(l, "ffn_gate.weight", FF, N, 0, 0.3f);
        add(l, "ffn_up.weight", FF, N, 0, 0.3f);
        add(l, "ffn_down.weight", N, FF, 0, 0.2f);
    }
}

void hymba_drop(void)
{
    while (n_arrays > 0)
        pp_free(arrays[--n_arrays].values);
}

static const struct array *find(int l, const char *kind)
{
    const int i = small_find(arrays[0].name, sizeof *arrays, n_arrays, l, kind, "");
    if (i < 0)
        fail_msg("no %s in layer %d", kind, l);
    return &arrays[i];
}

const char *hymba_file(void)
{
    static const struct {
        const char *key;
        uint32_t v;
    } numbers[] = {{"block_count", LAYERS}, {"context_length", 512}, {"embedding_length", N},
                   {"feed_forward_length", FF}, {"attention.head_count", HEADS}, {"attention.head_count_kv", KEY_HEADS},
                   {"attention.sliding_window", HYMBA_WINDOW}, {"attention.key_length", HEAD},
                   {"attention.value_length", VALUE}, {"ssm.conv_kernel", TAPS}, {"ssm.state_size", STATE},
                   {"ssm.time_step_rank", RANK}, {"ssm.inner_size", INNER}, {"vocab_size", HYMBA_VOCAB},
                   {"start_count", HYMBA_START}};
    const char *path = fresh_path("hymba.gguf");
    struct pp_tensor tensors[MOST];
    bool shared[LAYERS], windowed[LAYERS];
    char key[64];
    struct pp_gguf_writer *w = gguf_file_begin(path);
    pp_gguf_add_text(w, "general.architecture", "hymba");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        snprintf(key, sizeof key, "hymba.%s", numbers[i].key);
        pp_gguf_add_u32(w, key, numbers[i].v);
    }
    for (int l = 0; l < LAYERS; l++) {
        shared[l] = is_shared(l);
        windowed[l] = !is_wide(l);
    }
    pp_gguf_add_bool_array(w, "hymba.attention.shared_layers", shared, LAYERS);
    pp_gguf_add_bool_array(w, "hymba.attention.sliding_window_pattern", windowed, LAYERS);
    pp_gguf_add_f32(w, "hymba.rope.freq_base", BASE);
    pp_gguf_add_f32(w, "hymba.attention.layer_norm_rms_epsilon", 1e-6f);
    pp_gguf_add_text(w, "tokenizer.ggml.model", "no_vocab");
    for (int i = 0; i < n_arrays; i++)
        tensors[i] = array_tensor(&arrays[i]);
    gguf_file_end(w, tensors, (size_t)n_arrays);
    return path;
}

/* --- formulas ----------------------------------------------------------------------------------------------------- */

static double silu(double v)
{
    return v / (1 + exp(-v));
}

static void multiply(int l, const char *kind, const double *x, double *y)
{
    const struct array *w = find(l, kind);
    for (int64_t r = 0; r < w->rows; r++)
        y[r] = small_dot(w->values + r * w->cols, x, w->cols);
}

static void norm(int l, const char *kind, const double *x, int n, double *y)
{
    const struct array *w = find(l, kind);
    double square = 0;
    for (int i = 0; i < n; i++)
        square += x[i] * x[i] / n;
    for (int i = 0; i < n; i++)
        y[i] = x[i] / sqrt(square + 1e-6) * (double)w->values[i];
}

static void rotate(double *x, int n_heads, int t)
{
    for (int h = 0; h < n_heads; h++)
        for (int i = 0; i < HEAD / 2; i++) {
            double *a = x + h * HEAD + i, *b = a + HEAD / 2;
            const double angle = t * pow((double)BASE, -2.0 * i / HEAD), c = cos(angle), s = sin(angle), was = *a;
            *a = was * c - *b * s;
            *b = *b * c + was * s;
        }
}

/* A layer's cache: keys and values of all positions, the last inputs of the convolution, and states. */
struct past {
    double *k, *v, *mixed, *state;
};

/* Whether position t attends to s: to the meta tokens before the text always, in windowed layers also to the last
 * positions, in others to all. */
static bool is_seen(int l, int t, int s)
{
    return is_wide(l) || s < HYMBA_START || t - s < HYMBA_WINDOW;
}

static void attend(int l, const double *q, const struct past *keys, int t, double *out)
{
    double *weights = doubles(t + 1);
    for (int h = 0; h < HEADS; h++) {
        const int hk = h / (HEADS / KEY_HEADS);
        double sum = 0;
        for (int s = 0; s <= t; s++) {
            double score = 0;
            for (int i = 0; i < HEAD; i++)
                score += q[h * HEAD + i] * keys->k[s * KEYS + hk * HEAD + i];
            sum += weights[s] = is_seen(l, t, s) ? exp(score / sqrt(HEAD)) : 0;
        }
        for (int i = 0; i < VALUE; i++) {
            out[h * VALUE + i] = 0;
            for (int s = 0; s <= t; s++)
                out[h * VALUE + i] += weights[s] / sum * keys->v[s * VALUES + hk * VALUE + i];
        }
    }
    pp_free(weights);
}

/* Mamba at position t. gate: [INNER] */
static void scan(int l, struct past *past, const double *gate, int t, double *out)
{
    const struct array *taps = find(l, "ssm_conv1d.weight"), *bias = find(l, "ssm_conv1d.bias");
    const struct array *a = find(l, "ssm_a"), *direct = find(l, "ssm_d"), *added = find(l, "ssm_dt.bias");
    double u[INNER], small[RANK + 2 * STATE], low[RANK], b[STATE], c[STATE], step[INNER];
    for (int i = 0; i < INNER; i++) {
        double sum = (double)bias->values[i];
        for (int k = 0; k < TAPS && k <= t; k++)
            sum += (double)taps->values[i * TAPS + TAPS - 1 - k] * past->mixed[(t - k) * INNER + i];
        u[i] = silu(sum);
    }
    multiply(l, "ssm_x.weight", u, small);
    norm(l, "ssm_dt_norm.weight", small, RANK, low);
    norm(l, "ssm_b_norm.weight", small + RANK, STATE, b);
    norm(l, "ssm_c_norm.weight", small + RANK + STATE, STATE, c);
    multiply(l, "ssm_dt.weight", low, step);
    for (int i = 0; i < INNER; i++) {
        const double dt = log1p(exp(step[i] + (double)added->values[i]));
        double y = (double)direct->values[i] * u[i];
        for (int k = 0; k < STATE; k++) {
            double *s = &past->state[i * STATE + k];
            *s = *s * exp(dt * (double)a->values[i * STATE + k]) + dt * b[k] * u[i];
            y += *s * c[k];
        }
        out[i] = y * silu(gate[i]);
    }
}

static void layer(int l, struct past *past, struct past *keys, int t, double *x)
{
    double normalised[N], in[QUERIES + KEYS + VALUES + 2 * INNER], seen[INNER], scanned[INNER], a[INNER], b[INNER];
    double y[N];
    double gate[FF], up[FF];
    const double *mixed = in + QUERIES + (is_shared(l) ? 0 : KEYS + VALUES);
    norm(l, "attn_norm.weight", x, N, normalised);
    multiply(l, "ssm_in.weight", normalised, in);
    rotate(in, HEADS, t);
    if (!is_shared(l)) {
        rotate(in + QUERIES, KEY_HEADS, t);
        memcpy(past->k + t * KEYS, in + QUERIES, KEYS * sizeof *in);
        memcpy(past->v + t * VALUES, in + QUERIES + KEYS, VALUES * sizeof *in);
    }
    memcpy(past->mixed + t * INNER, mixed, INNER * sizeof *in);
    attend(l, in, keys, t, seen);
    scan(l, past, mixed + INNER, t, scanned);
    norm(l, "attn_sub_norm.weight", seen, INNER, a);
    norm(l, "ssm_norm.weight", scanned, INNER, b);
    for (int i = 0; i < INNER; i++)
        a[i] = (a[i] + b[i]) / 2;
    multiply(l, "ssm_out.weight", a, y);
    for (int i = 0; i < N; i++)
        x[i] += y[i];
    norm(l, "ffn_norm.weight", x, N, normalised);
    multiply(l, "ffn_gate.weight", normalised, gate);
    multiply(l, "ffn_up.weight", normalised, up);
    for (int i = 0; i < FF; i++)
        gate[i] = silu(gate[i]) * up[i];
    multiply(l, "ffn_down.weight", gate, y);
    for (int i = 0; i < N; i++)
        x[i] += y[i];
}

void hymba_compute(const int32_t *ids, int n, double *logits)
{
    const struct array *embd = find(-1, "token_embd.weight"), *start = find(-1, "token_start.weight");
    struct past past[LAYERS];
    for (int l = 0; l < LAYERS; l++)
        past[l] = (struct past){doubles(n * KEYS), doubles(n * VALUES), doubles(n * INNER), doubles(INNER * STATE)};
    for (int t = 0; t < n; t++) {
        const bool before = ids[t] >= HYMBA_VOCAB;
        double x[N], y[N];
        for (int i = 0; i < N; i++)
            x[i] = (double)(before ? start->values[(ids[t] - HYMBA_VOCAB) * N + i] : embd->values[ids[t] * N + i]);
        for (int l = 0; l < LAYERS; l++)
            layer(l, &past[l], &past[is_shared(l) ? l - 1 : l], t, x);
        norm(-1, "output_norm.weight", x, N, y);
        for (int i = 0; i < HYMBA_VOCAB; i++)
            logits[t * HYMBA_VOCAB + i] = small_dot(embd->values + i * N, y, N);
    }
    for (int l = 0; l < LAYERS; l++) {
        pp_free(past[l].k);
        pp_free(past[l].v);
        pp_free(past[l].mixed);
        pp_free(past[l].state);
    }
}
