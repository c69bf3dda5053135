/* ops_body.h - the functions of ops.h, written once over vec.h. Included by ops_scalar.c, ops_avx2.c, ops_avx512.c and
 * so on, which define OPS_TABLE, the name of the table, and what attention_body.h has to know about the registers; and
 * PP_OPS_AMX if there are AMX tiles. */
#include <float.h>

#include "engine/cpu/ops.h"

#ifdef PP_VEC_SCALAR /* where a vector is a loop of its own: unrolled twice, it takes the compiler twice as long */
#define UNROLL
#define UNROLL_TWICE
#elif !defined(UNROLL)
#define UNROLL       _Pragma("GCC unroll 8")
#define UNROLL_TWICE _Pragma("GCC unroll 2")
#endif

enum {
#if defined(PP_VEC_AVX512)
    LOW_RANK_ROWS = 8,   /* batch rows that share the reading of an adapter, */
    LOW_RANK_GROUPS = 4, /* and groups of outputs of one row at a time: as many sums as registers hold, twice */
#elif defined(PP_VEC_AVX2) && !defined(PP_VEC_VNNI)
    LOW_RANK_ROWS = 4,
    LOW_RANK_GROUPS = 4,
#else
    LOW_RANK_ROWS = 4,
    LOW_RANK_GROUPS = 2,
#endif
    LOW_RANK_PART = 256, /* of a rank, whose sums fit 32 bits */
    LOW_RANK_MOST = 127 * 257, /* of its whole numbers */
};

static void rms_norm(const float *x, const float *w, float eps, int64_t n, float *y)
{
    v16 sum = v_zero();
    for (int64_t i = 0; i < n; i += LANES) {
        v16 a = v_load_n(x + i, n - i, 0);
        sum = v_fma(a, a, sum);
    }
    v16 s = v_set1(1.0f / sqrtf(v_sum(sum) / (float)n + eps));
    for (int64_t i = 0; i < n; i += LANES)
        v_store_n(y + i, v_mul(v_mul(v_load_n(x + i, n - i, 0), s), v_load_n(w + i, n - i, 0)), n - i);
}

static void layer_norm(const float *x, const float *w, const float *b, float eps, int64_t n, float *y)
{
    v16 sum = v_zero(), squares = v_zero();
    for (int64_t i = 0; i < n; i += LANES)
        sum = v_add(sum, v_load_n(x + i, n - i, 0));
    const float mean = v_sum(sum) / (float)n;
    const v16 m = v_set1(mean);
    for (int64_t i = 0; i < n; i += LANES) {
        v16 a = v_sub(v_load_n(x + i, n - i, mean), m);
        squares = v_fma(a, a, squares);
    }
    v16 s = v_set1(1.0f / sqrtf(v_sum(squares) / (float)n + eps));
    for (int64_t i = 0; i < n; i += LANES) {
        v16 a = v_mul(v_sub(v_load_n(x + i, n - i, 0), m), s), scale = v_load_n(w + i, n - i, 0);
        v_store_n(y + i, b ? v_fma(a, scale, v_load_n(b + i, n - i, 0)) : v_mul(a, scale), n - i);
    }
}

/* x / (1 + exp(-k x)) */
ALWAYS_INLINE v16 v_sigmoid_times(v16 x, float k)
{
    return v_div(x, v_add(v_set1(1.0f), v_exp(v_mul(x, v_set1(-k)))));
}

/* 1 - 2 / (exp(2 x) + 1), within 2e-7; NaN if x is not finite, which v_exp would hide */
ALWAYS_INLINE v16 v_tanh(v16 x)
{
    v16 e = v_exp(v_add(x, x)); /* at most exp(88) */
    v16 bad = v_sub(x, x);      /* or 0 */
    return v_add(v_sub(v_set1(1.0f), v_div(v_set1(2.0f), v_add(e, v_set1(1.0f)))), bad);
}

/* max(x, 0) + ln(1 + e) with e = exp(-|x|). With t = e / (2 + e) the logarithm is 2 artanh t. As t is at most 1 / 3, a
 * few terms of its series are as precise as floats. */
ALWAYS_INLINE v16 v_softplus(v16 x)
{
    const v16 minus = v_sub(v_zero(), x), e = v_exp(v_min(x, minus));
    const v16 t = v_div(e, v_add(v_set1(2.0f), e)), square = v_mul(t, t);
    v16 p = v_set1(1.0f / 15);
    p = v_fma(p, square, v_set1(1.0f / 13));
    p = v_fma(p, square, v_set1(1.0f / 11));
    p = v_fma(p, square, v_set1(1.0f / 9));
    p = v_fma(p, square, v_set1(1.0f / 7));
    p = v_fma(p, square, v_set1(1.0f / 5));
    p = v_fma(p, square, v_set1(1.0f / 3));
    p = v_fma(p, square, v_set1(1.0f));
    return v_fma(v_add(t, t), p, v_max(v_zero(), x)); /* the latter is NaN where x is */
}

/* The error function within 2e-7: Abramowitz and Stegun, 7.1.26. */
ALWAYS_INLINE v16 v_erf(v16 x)
{
    v16 size = v_max(x, v_sub(v_zero(), x));
    v16 t = v_div(v_set1(1.0f), v_fma(size, v_set1(0.3275911f), v_set1(1.0f)));
    v16 p = v_set1(1.061405429f);
    p = v_fma(p, t, v_set1(-1.453152027f));
    p = v_fma(p, t, v_set1(1.421413741f));
    p = v_fma(p, t, v_set1(-0.284496736f));
    p = v_fma(p, t, v_set1(0.254829592f));
    v16 rest = v_mul(v_mul(p, t), v_exp(v_sub(v_zero(), v_mul(x, x))));
    v16 positive = v_sub(v_set1(1.0f), rest);
    return v_add(v_zero_where_less(x, v_zero(), positive),
                 v_zero_where_less(v_sub(v_zero(), x), v_set1(0x1p-149f), v_sub(v_zero(), positive)));
}

ALWAYS_INLINE v16 v_fn(const enum pp_fn fn, float number, v16 x)
{
    switch (fn) {
    case PP_FN_SILU:
        return v_div(x, v_add(v_set1(1.0f), v_exp(v_sub(v_zero(), x))));
    case PP_FN_GELU: {
        v16 half = v_mul(x, v_set1(0.5f));
        return v_fma(half, v_erf(v_mul(x, v_set1(0.70710678f))), half);
    }
    case PP_FN_GELU_TANH: { /* (1 + tanh(u)) / 2 is 1 / (1 + exp(-2 u)) */
        v16 cube = v_mul(v_mul(x, x), x), u = v_fma(cube, v_set1(0.044715f), x);
        return v_div(x, v_add(v_set1(1.0f), v_exp(v_mul(u, v_set1(-1.59576912f)))));
    }
    case PP_FN_SIGMOID:
        return v_div(v_set1(1.0f), v_add(v_set1(1.0f), v_exp(v_sub(v_zero(), x))));
    case PP_FN_SCALE:
        return v_mul(x, v_set1(number));
    case PP_FN_CAP:
        return v_mul(v_tanh(v_div(x, v_set1(number))), v_set1(number));
    case PP_FN_CLAMP:
        return v_min(v_set1(number), v_max(v_set1(-number), x));
    case PP_FN_RELU:
        return v_max(v_zero(), x);
    case PP_FN_SOFTPLUS:
        return v_softplus(x);
    case PP_FN_DECAY: {
        const v16 part = v_div(v_set1(-0.60653066f), v_add(v_set1(1.0f), v_exp(v_sub(v_zero(), x))));
        return v_exp(part);
    }
    case PP_FN_DOUBLE_EXP:
        return v_add(v_exp(v_sub(v_zero(), v_min(v_exp(x), v_set1(number)))),
                     v_sub(x, x)); /* which is 0, or NaN, which v_exp would hide */
    case PP_FN_EXP:
        return v_add(v_exp(x), v_sub(x, x)); /* NaN stays what it is */
    case PP_FN_RELU2: {
        v16 positive = v_max(v_zero(), x);
        return v_mul(positive, positive);
    }
    default:
        return x;
    }
}

ALWAYS_INLINE void gate_all(const enum pp_fn fn, float number, const float *g, const float *u, int64_t n, float *y)
{
    for (int64_t i = 0; i < n; i += LANES) {
        v16 a = v_load_n(g + i, n - i, 0), b = v_load_n(u + i, n - i, 0);
        if (fn == PP_FN_CLAMPED) {
            a = v_sigmoid_times(v_min(a, v_set1(number)), 1.702f);
            b = v_add(v_min(v_max(b, v_set1(-number)), v_set1(number)), v_set1(1.0f));
        } else if (fn == PP_FN_SILU_BOUNDED) {
            a = v_min(v_fn(PP_FN_SILU, 0, a), v_set1(number));
            b = v_min(v_max(b, v_set1(-number)), v_set1(number));
        } else if (fn == PP_FN_SILU_WITHIN) {
            a = v_fn(PP_FN_SILU, 0, v_min(a, v_set1(number)));
            b = v_min(v_max(b, v_set1(-number)), v_set1(number));
        } else if (fn == PP_FN_SITU) {
            a = v_mul(v_fn(PP_FN_CAP, 4.0f, a), v_fn(PP_FN_SIGMOID, 0, a));
            b = v_fn(PP_FN_CAP, 25.0f, b);
        } else {
            a = v_fn(fn, 0, a);
        }
        v_store_n(y + i, v_mul(a, b), n - i);
    }
}

ALWAYS_INLINE void apply_all(const enum pp_fn fn, float number, const float *x, int64_t n, float *y)
{
    for (int64_t i = 0; i < n; i += LANES)
        v_store_n(y + i, v_fn(fn, number, v_load_n(x + i, n - i, 0)), n - i);
}

static void gate(enum pp_fn fn, float number, const float *g, const float *u, int64_t n, float *y)
{
    switch (fn) {
    case PP_FN_GELU: gate_all(PP_FN_GELU, 0, g, u, n, y); break;
    case PP_FN_GELU_TANH: gate_all(PP_FN_GELU_TANH, 0, g, u, n, y); break;
    case PP_FN_SIGMOID: gate_all(PP_FN_SIGMOID, 0, g, u, n, y); break;
    case PP_FN_CLAMPED: gate_all(PP_FN_CLAMPED, number != 0.0f ? number : 7.0f, g, u, n, y); break;
    case PP_FN_SILU_BOUNDED: gate_all(PP_FN_SILU_BOUNDED, number, g, u, n, y); break;
    case PP_FN_SILU_WITHIN: gate_all(PP_FN_SILU_WITHIN, number, g, u, n, y); break;
    case PP_FN_SITU: gate_all(PP_FN_SITU, 0, g, u, n, y); break;
    case PP_FN_RELU2: gate_all(PP_FN_RELU2, 0, g, u, n, y); break;
    case PP_FN_RELU: gate_all(PP_FN_RELU, 0, g, u, n, y); break;
    default: gate_all(PP_FN_SILU, 0, g, u, n, y); break;
    }
}

static void apply(enum pp_fn fn, float number, const float *x, int64_t n, float *y)
{
    switch (fn) {
    case PP_FN_GELU: apply_all(PP_FN_GELU, 0, x, n, y); break;
    case PP_FN_GELU_TANH: apply_all(PP_FN_GELU_TANH, 0, x, n, y); break;
    case PP_FN_SIGMOID: apply_all(PP_FN_SIGMOID, 0, x, n, y); break;
    case PP_FN_SCALE: apply_all(PP_FN_SCALE, number, x, n, y); break;
    case PP_FN_CAP: apply_all(PP_FN_CAP, number, x, n, y); break;
    case PP_FN_CLAMP: apply_all(PP_FN_CLAMP, number, x, n, y); break;
    case PP_FN_RELU: apply_all(PP_FN_RELU, 0, x, n, y); break;
    case PP_FN_RELU2: apply_all(PP_FN_RELU2, 0, x, n, y); break;
    case PP_FN_SOFTPLUS: apply_all(PP_FN_SOFTPLUS, 0, x, n, y); break;
    case PP_FN_DECAY: apply_all(PP_FN_DECAY, 0, x, n, y); break;
    case PP_FN_DOUBLE_EXP: apply_all(PP_FN_DOUBLE_EXP, number != 0.0f ? number : INFINITY, x, n, y); break;
    case PP_FN_EXP: apply_all(PP_FN_EXP, 0, x, n, y); break;
    default: apply_all(PP_FN_SILU, 0, x, n, y); break;
    }
}

static void xielu(const struct pp_xielu *f, const float *x, int64_t n, float *y)
{
    for (int64_t i = 0; i < n; i += LANES) {
        const v16 v = v_load_n(x + i, n - i, 0), minus = v_sub(v_zero(), v);
        const v16 square = v_mul(v_mul(v, v), v_set1(f->positive));
        const v16 rest = v_sub(v_sub(v_exp(v_min(v, v_set1(f->most))), v_set1(1.0f)), v);
        const v16 up = v_zero_where_less(v, v_set1(0x1p-149f), square);
        const v16 down = v_zero_where_less(minus, v_zero(), v_mul(rest, v_set1(f->negative)));
        v_store_n(y + i, v_fma(v, v_set1(f->linear), v_add(up, down)), n - i);
    }
}

static void multiply(const float *x, const float *u, int64_t n, float *y)
{
    for (int64_t i = 0; i < n; i += LANES)
        v_store_n(y + i, v_mul(v_load_n(x + i, n - i, 0), v_load_n(u + i, n - i, 0)), n - i);
}

static void convolve(int n_taps, float *const *x, const float *w, int64_t stride, const float *b, int64_t n, float *y)
{
    for (int64_t i = 0; i < n; i += LANES) {
        v16 sum = b ? v_load_n(b + i, n - i, 0) : v_zero();
        for (int j = 0; j < n_taps; j++)
            if (x[j])
                sum = v_fma(v_load_n(x[j] + i, n - i, 0), v_load(w + j * stride + i), sum);
        v_store_n(y + i, sum, n - i);
    }
}

static void add(float *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += LANES)
        v_store_n(y + i, v_add(v_load_n(y + i, n - i, 0), v_load_n(x + i, n - i, 0)), n - i);
}

static void widen(const void *x, int64_t n, float *y)
{
    const uint8_t *p = x;
    int64_t i = 0;
    uint16_t rest[LANES] = {0};
    for (; i + LANES <= n; i += LANES) {
        memcpy(rest, p + 2 * i, sizeof rest);
        v_store(y + i, v_load_f16(rest));
    }
    memcpy(rest, p + 2 * i, (size_t)(n - i) * sizeof *rest);
    v_store_n(y + i, v_load_f16(rest), n - i);
}

static void add_scaled(float *y, const float *x, float scale, int64_t n)
{
    for (int64_t i = 0; i < n; i += LANES)
        v_store_n(y + i, v_fma(v_load_n(x + i, n - i, 0), v_set1(scale), v_load_n(y + i, n - i, 0)), n - i);
}

/* Where B's values for some groups of 16 outputs are: from one of a block's quarters on. */
struct low_rank_at {
    const uint8_t *block;
    int quarter;
};

static struct low_rank_at low_rank_place(const struct pp_low_rank *b, int64_t r, size_t block_bytes)
{
    return (struct low_rank_at){b->data + (size_t)(r / PP_LOW_RANK_ROWS) * block_bytes,
                                (int)(r % PP_LOW_RANK_ROWS / LANES)};
}

ALWAYS_INLINE void low_rank_floats(const struct low_rank_at *at, int rank, const struct pp_low_rank_rows *rows, int i0,
                                   const int N, const int G, const bool f16, v16 *sum)
{
    const float *down = rows->down + i0 * rows->down_stride;
    for (int k = 0; k < rank; k++)
        for (int g = 0; g < G; g++) {
            const size_t from = ((size_t)(at->quarter + g) * (size_t)rank + (size_t)k) * LANES;
            v16 w = f16 ? v_load_f16((const uint16_t *)(const void *)at->block + from)
                        : v_load((const float *)(const void *)at->block + from);
            for (int i = 0; i < N; i++)
                sum[g * N + i] = v_fma(v_set1(down[i * rows->down_stride + k]), w, sum[g * N + i]);
        }
}

/* Computes outputs r to r + 16 G - 1, but at most n of them, for N batch rows from i0 on. */
ALWAYS_INLINE void low_rank_floats_to(const struct pp_low_rank *b, const struct low_rank_at *at,
                                      const struct pp_low_rank_rows *rows, int i0, const int N, const int G,
                                      float scale, int64_t r, int64_t n)
{
    v16 sum[LOW_RANK_ROWS];
    for (int k = 0; k < N * G; k++)
        sum[k] = v_zero();
    if (b->type == PP_TYPE_F16)
        low_rank_floats(at, b->rank, rows, i0, N, G, true, sum);
    else
        low_rank_floats(at, b->rank, rows, i0, N, G, false, sum);
    for (int g = 0; g < G; g++)
        for (int i = 0; i < N; i++) {
            float *y = rows->y + (i0 + i) * rows->y_stride + r + g * LANES;
            v_store_n(y, v_fma(v_set1(scale), sum[g * N + i], v_load_n(y, n - g * LANES, 0)), n - g * LANES);
        }
}

/* Rounds n values, at most LOW_RANK_PART, to integers, followed by zeros up to a multiple of LANES; returns the factor
 * that converts them back. If a value is not finite, the results become NaN, too. */
static float low_rank_round(const float *down, int n, int16_t *whole)
{
    float x[LOW_RANK_PART];
    v16 most = v_zero(), check = v_zero();
    for (int k = 0; k < n; k += LANES) {
        const v16 d = v_load_n(down + k, n - k, 0);
        most = v_max(most, v_max(d, v_sub(v_zero(), d)));
        check = v_fma(d, v_zero(), check);
    }
    const float largest = v_largest(most), inverse = LOW_RANK_MOST / largest, round = 12582912.0f;
    const bool numbers = v_sum(check) == 0, small = !(inverse <= FLT_MAX);
    for (int k = 0; k < n; k += LANES)
        v_store(x + k, v_mul(v_load_n(down + k, n - k, 0), v_set1(numbers && !small ? inverse : 0.0f)));
    for (int k = 0; k < (n + LANES - 1) / LANES * LANES; k++)
        whole[k] = numbers ? (int16_t)((x[k] + round) - round) : 0;
    return numbers ? largest / LOW_RANK_MOST : NAN;
}

/* A row's A x converted for a B in Q8_0: two words for each four k (vec.h), and after these, for each part of the rank,
 * its factor and the sum of its integers. */
struct low_rank_part {
    float gain;
    int32_t all;
};

static int low_rank_quads(int rank)
{
    return (rank + 3) / 4;
}

static const struct low_rank_part *low_rank_parts(const float *down, int rank)
{
    return (const struct low_rank_part *)(const void *)(down + 2 * low_rank_quads(rank));
}

/* In place: the words that are written never reach the floats that are still to be read; the parts are written after
 * all floats have been read. */
static void round_low_rank(float *down, int rank)
{
    int16_t whole[LOW_RANK_PART];
    struct low_rank_part parts[PP_LOW_RANK_MAX / LOW_RANK_PART];
    int n_parts = 0;
    for (int k0 = 0; k0 < rank; k0 += LOW_RANK_PART) {
        const int n = rank - k0 < LOW_RANK_PART ? rank - k0 : LOW_RANK_PART;
        struct low_rank_part *part = &parts[n_parts++];
        *part = (struct low_rank_part){low_rank_round(down + k0, n, whole), 0};
        for (int k = 0; k < n; k += 4) {
            int32_t words[2];
            wide_words(whole + k, words);
            memcpy(down + (k0 + k) / 2, words, sizeof words);
            part->all += whole[k] + whole[k + 1] + whole[k + 2] + whole[k + 3];
        }
    }
    memcpy(down + 2 * low_rank_quads(rank), parts, (size_t)n_parts * sizeof *parts);
}

/* The input of N batch rows for one part of the rank. */
struct low_rank_words {
    const int32_t *words;  /* of the first row */
    int64_t stride;        /* words from a row to the next */
    int n_quads;
    float gain[LOW_RANK_ROWS];
    int32_t all[LOW_RANK_ROWS];
};

/* acc += the products of four k for G groups of outputs and N rows. ask: distance in bytes at which a line of each
 * group is prefetched, because B is too short for the hardware prefetchers to detect a stream; 0: none. Prefetching
 * beyond the end of memory is harmless. */
ALWAYS_INLINE void low_rank_quad(const uint8_t *values, const int32_t *words, int64_t stride, size_t ask, const int N,
                                 const int G, i_wide *acc)
{
    UNROLL for (int g = 0; g < G; g++)
    {
        const uint8_t *line = values + g * 4 * LANES;
        if (ask)
            __builtin_prefetch((const void *)((uintptr_t)line + ask), 0, 2);
        UNROLL for (int i = 0; i < N; i++)
            acc[g * N + i] = wide_dot(acc[g * N + i], line, words + i * stride);
    }
}

/* Computes n outputs, in G groups from `at` on, for N batch rows. k0: where the part of the rank begins; y: of the
 * first row and output. */
ALWAYS_INLINE void low_rank_whole_to(struct low_rank_at at, const struct low_rank_words *x, int k0, size_t ask,
                                     const int N, const int G, float *y, int64_t y_stride, int64_t n)
{
    enum { TOGETHER = 4, QUAD_BYTES = 4 * PP_LOW_RANK_ROWS };
    const uint8_t *values = at.block + PP_LOW_RANK_ROWS * (sizeof(uint16_t) + (size_t)k0) + at.quarter * 4 * LANES;
    const uint16_t *scales = (const uint16_t *)(const void *)at.block + at.quarter * LANES;
    const int32_t *words = x->words;
    i_wide acc[LOW_RANK_ROWS]; /* G or N is 1 */
    int q = 0;
    UNROLL for (int g = 0; g < G; g++)
        UNROLL for (int i = 0; i < N; i++)
            acc[g * N + i] = wide_begin(x->all[i]);
    for (; q + TOGETHER <= x->n_quads; q += TOGETHER)
        UNROLL for (int t = 0; t < TOGETHER; t++, values += QUAD_BYTES, words += 2)
            low_rank_quad(values, words, x->stride, ask, N, G, acc);
    for (; q < x->n_quads; q++, values += QUAD_BYTES, words += 2)
        low_rank_quad(values, words, x->stride, ask, N, G, acc);
    UNROLL for (int g = 0; g < G; g++)
    {
        const v16 d = v_load_f16(scales + g * LANES);
        if (ask)
            __builtin_prefetch((const void *)((uintptr_t)(scales + g * LANES) + ask), 0, 2);
        UNROLL for (int i = 0; i < N; i++) {
            float *to = y + i * y_stride + g * LANES;
            const v16 sum = v_mul(i_to_float(wide_sum(acc[g * N + i])), d);
            if (G > 1)
                v_store(to, v_fma(v_set1(x->gain[i]), sum, v_load(to)));
            else
                v_store_n(to, v_fma(v_set1(x->gain[i]), sum, v_load_n(to, n, 0)), n);
        }
    }
}

/* Computes outputs row0 .. row1 - 1 of one batch row, as far as possible in whole blocks. */
static void low_rank_whole_row(const struct pp_low_rank *b, const struct low_rank_words *x, int k0, float *y,
                               int64_t row0, int64_t row1)
{
    const size_t block_bytes = pp_low_rank_block_bytes(b->type, b->rank), ask = pp_low_rank_ahead();
    for (int64_t r = row0; r < row1;) {
        struct low_rank_at at = low_rank_place(b, r, block_bytes);
        if (at.quarter || row1 - r < PP_LOW_RANK_ROWS) {
            low_rank_whole_to(at, x, k0, 0, 1, 1, y + r, 0, row1 - r);
            r += LANES;
            continue;
        }
        for (; row1 - r >= PP_LOW_RANK_ROWS; r += PP_LOW_RANK_ROWS, at.block += block_bytes)
            for (at.quarter = 0; at.quarter < 4; at.quarter += LOW_RANK_GROUPS)
                low_rank_whole_to(at, x, k0, ask, 1, LOW_RANK_GROUPS, y + r + at.quarter * LANES, 0, PP_LOW_RANK_ROWS);
    }
}

static void add_low_rank_whole(const struct pp_low_rank *b, const struct pp_low_rank_rows *rows, float scale,
                               int64_t row0, int64_t row1)
{
    const size_t block_bytes = pp_low_rank_block_bytes(b->type, b->rank);
    const float by = scale * b->unit;
    struct low_rank_words x = {.stride = rows->down_stride};
    for (int k0 = 0; k0 < b->rank; k0 += LOW_RANK_PART)
        for (int i = 0, n; i < rows->n; i += n) {
            const float *down = rows->down + i * rows->down_stride;
            float *y = rows->y + i * rows->y_stride;
            x.n_quads = low_rank_quads(b->rank - k0 < LOW_RANK_PART ? b->rank - k0 : LOW_RANK_PART);
            x.words = (const int32_t *)(const void *)down + k0 / 2;
            n = rows->n - i < LOW_RANK_ROWS ? 1 : LOW_RANK_ROWS;
            for (int k = 0; k < n; k++) {
                const struct low_rank_part *part = low_rank_parts(down + k * rows->down_stride, b->rank);
                x.gain[k] = by * part[k0 / LOW_RANK_PART].gain;
                x.all[k] = part[k0 / LOW_RANK_PART].all;
            }
            for (int64_t r = row0; n > 1 && r < row1; r += LANES)
                low_rank_whole_to(low_rank_place(b, r, block_bytes), &x, k0, 0, LOW_RANK_ROWS, 1, y + r,
                                  rows->y_stride, row1 - r);
            if (n == 1)
                low_rank_whole_row(b, &x, k0, y, row0, row1);
        }
}

/* Prefetches what follows a block by pp_low_rank_ahead() bytes, as low_rank_quad() does. */
static void low_rank_ahead(const uint8_t *block, size_t block_bytes)
{
    enum { LINE = 64 };
    const uintptr_t from = (uintptr_t)block + pp_low_rank_ahead();
    for (uintptr_t at = from; at < from + block_bytes; at += LINE)
        __builtin_prefetch((const void *)at, 0, 2);
}

static void add_low_rank(const struct pp_low_rank *b, const struct pp_low_rank_rows *rows, float scale, int64_t row0,
                         int64_t row1)
{
    const size_t block_bytes = pp_low_rank_block_bytes(b->type, b->rank);
    const int together = rows->n / LOW_RANK_ROWS * LOW_RANK_ROWS;
    if (b->type == PP_TYPE_Q8_0) {
        add_low_rank_whole(b, rows, scale, row0, row1);
        return;
    }
    for (int64_t r = row0; r < row1; r += LANES) {
        const struct low_rank_at at = low_rank_place(b, r, block_bytes);
        for (int i = 0; i < together; i += LOW_RANK_ROWS)
            low_rank_floats_to(b, &at, rows, i, LOW_RANK_ROWS, 1, scale, r, row1 - r);
    }
    for (int i = together; i < rows->n; i++)
        for (int64_t r = row0, next; r < row1; r = next) {
            const struct low_rank_at at = low_rank_place(b, r, block_bytes);
            const bool whole = !at.quarter && row1 - r >= PP_LOW_RANK_ROWS;
            next = r + (whole ? PP_LOW_RANK_ROWS : LANES);
            if (whole) {
                low_rank_ahead(at.block, block_bytes);
                low_rank_floats_to(b, &at, rows, i, 1, PP_LOW_RANK_ROWS / LANES, scale, r, PP_LOW_RANK_ROWS);
            } else {
                low_rank_floats_to(b, &at, rows, i, 1, 1, scale, r, row1 - r);
            }
        }
}

static void rope(float *x, int64_t rope_dim, bool neox, const float *cos_sin)
{
    int64_t half = rope_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        float *a = neox ? x + i : x + 2 * i;
        float *b = neox ? x + i + half : x + 2 * i + 1;
        float c = cos_sin[2 * i], s = cos_sin[2 * i + 1];
        float x0 = *a, x1 = *b;
        /* Fused by name: some compilers fuse the plain expression even when told not to, but only in vector code. */
        *a = fmaf(x0, c, -(x1 * s));
        *b = fmaf(x0, s, x1 * c);
    }
}

/* The butterflies of the Hadamard transform: sums and differences of values that are `from`, 2 from, 4 from and so on
 * apart, up to half a segment. */
static void wide_butterflies(float *seg, int block, int from)
{
    for (int step = from; step < block; step *= 2)
        for (int i = 0; i < block; i += 2 * step)
            for (int j = i; j < i + step; j += LANES) {
                v16 a = v_load(seg + j), b = v_load(seg + j + step);
                v_store(seg + j, v_add(a, b));
                v_store(seg + j + step, v_sub(a, b));
            }
}

static void short_hadamard(float *seg, int block, float norm)
{
    for (int step = 1; step < block; step *= 2)
        for (int i = 0; i < block; i += 2 * step)
            for (int j = i; j < i + step; j++) {
                float a = seg[j], b = seg[j + step];
                seg[j] = a + b;
                seg[j + step] = a - b;
            }
    for (int i = 0; i < block; i++)
        seg[i] *= norm;
}

static void hadamard(float *x, int64_t n, int block)
{
    const float norm = 1.0f / sqrtf((float)block);
    for (float *seg = x; seg < x + n; seg += block) {
        if (block < LANES) {
            short_hadamard(seg, block, norm);
            continue;
        }
        for (int i = 0; i < block; i += LANES) {
            v16 a = v_butterflies(v_butterflies(v_load(seg + i), 1), 2);
            v_store(seg + i, v_butterflies(v_butterflies(a, 4), 8));
        }
        wide_butterflies(seg, block, LANES);
        for (int i = 0; i < block; i += LANES)
            v_store(seg + i, v_mul(v_load(seg + i), v_set1(norm)));
    }
}

/* --- the KV cache ------------------------------------------------------------------------------------------ */

/* x [n] -> q, d = max|x| / 127; q = round to nearest even(x / d); n: a multiple of 16. Returns d: NaN with zeros in q
 * if a value is not finite. */
static float quantize_values(const float *x, int n, int8_t *q)
{
    const v16 minus = v_set1(-0.0f), rounder = v_set1(V_ROUNDER);
    v16 top = v_zero(), check = v_zero();
    for (int i = 0; i < n; i += LANES) {
        const v16 a = v_load(x + i);
        top = v_max(top, v_max(a, v_sub(minus, a)));
        check = v_fma(a, v_zero(), check); /* not 0 if something is NaN or infinite */
    }
    const float amax = v_largest(top), d = amax / 127.0f, inverse = 127.0f / amax;
    const bool bad = v_sum(check) != 0;
    if (bad || fabsf(inverse) > FLT_MAX) { /* all zeros, some of them negative perhaps, or too near to it */
        memset(q, 0, (size_t)n);
        return bad ? NAN : 0;
    }
    for (int i = 0; i < n; i += LANES) { /* |x * inverse| <= 127: rounds to nearest even */
        float whole[LANES];
        v_store(whole, v_sub(v_add(v_mul(v_load(x + i), v_set1(inverse)), rounder), rounder));
        for (int j = 0; j < LANES; j++)
            q[i + j] = (int8_t)whole[j];
    }
    return d;
}

/* x [32] -> q in -8 .. 7, d: the value that is largest by size becomes -8. NaN and zeros as above. */
static float quantize_block4(const float *x, int8_t *q)
{
    float amax = 0, top = 0;
    int bad = 0;
    for (int i = 0; i < PP_KV_BLOCK; i++) {
        top = fabsf(x[i]) > amax ? x[i] : top;
        amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
        bad |= !(fabsf(x[i]) <= FLT_MAX);
    }
    float d = top / -8.0f, inverse = -8.0f / top;
    if (bad || fabsf(inverse) > FLT_MAX) {
        memset(q, 0, PP_KV_BLOCK);
        return bad ? NAN : 0;
    }
    for (int i = 0; i < PP_KV_BLOCK; i++) {
        float whole = (x[i] * inverse + 12582912.0f) - 12582912.0f;
        q[i] = (int8_t)(whole < 7 ? whole : 7);
    }
    return d;
}

/* The nearest E4M3, ties to even; |x| <= 448 or a rounding error above. */
static uint8_t to_e4m3(float x)
{
    uint32_t bits, code;
    float size = fabsf(x);
    if (size < 0.015625f) { /* below 2^-6 steps are 2^-9 wide */
        code = (uint32_t)((size * 512.0f + 12582912.0f) - 12582912.0f);
    } else {
        memcpy(&bits, &size, 4);
        bits += 0x7FFFF + (bits >> 20 & 1);
        code = (bits >> 20) - ((127 - 7) << 3);
    }
    return (uint8_t)((code < 0x7E ? code : 0x7E) | (signbit(x) ? 0x80 : 0));
}

/* x [n] -> E4M3; returns the scale for values divided by 256 (vec.h), with 448 for the largest. */
static float quantize_fp8(const float *x, int n, uint8_t *q)
{
    float amax = 0;
    int bad = 0;
    for (int i = 0; i < n; i++) {
        amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
        bad |= !(fabsf(x[i]) <= FLT_MAX);
    }
    float inverse = 448.0f / amax;
    if (bad || inverse > FLT_MAX) {
        memset(q, 0, (size_t)n);
        return bad ? NAN : 0;
    }
    for (int i = 0; i < n; i++)
        q[i] = to_e4m3(x[i] * inverse);
    return amax * (256.0f / 448.0f);
}

/* Copies the n values of a head that share the b-th scale, with zeros after the end of the head. */
static void take_block(const float *from, int b, int n, int head_dim, float *x)
{
    for (int i = 0; i < n; i++)
        x[i] = b * n + i < head_dim ? from[b * n + i] : 0;
}

static float quantize_block(const struct pp_kv_layout *kv, const float *x, int8_t *q)
{
    return kv->type == PP_KV_Q4_0 ? quantize_block4(x, q) : quantize_values(x, kv->scale_dims, q);
}

static void store_integers(const struct pp_kv_layout *kv, uint8_t *head, int slot, const float *k, const float *v)
{
    const bool half = kv->type == PP_KV_Q4_0; /* two values in a byte */
    const int parts = half ? 2 : 1, group = slot / PP_KV_GROUP, lane = slot % PP_KV_GROUP;
    const int dims = kv->scale_dims, n_scales = kv->head_pad / dims;
    uint8_t *kq = head + (size_t)(group * kv->head_pad / parts) * PP_KV_GROUP + lane * 4;
    uint16_t *kd = (uint16_t *)(head + kv->k_scales) + group * n_scales * PP_KV_GROUP;
    uint8_t *vq = head + kv->v + (size_t)(slot / 2 * 2 * kv->v_pad / parts) + slot % 2;
    uint16_t *vd = (uint16_t *)(head + kv->v_scales);
    float x[PP_KV_MOST_SCALED];
    int8_t q[PP_KV_MOST_SCALED];
    for (int b = 0; b < n_scales; b++) {
        take_block(k, b, dims, kv->head_dim, x);
        kd[b * PP_KV_GROUP + lane] = pp_f32_to_f16(quantize_block(kv, x, q));
        for (int i = 0; i < dims; i += half ? 8 : 4, kq += PP_KV_GROUP * 4)
            for (int j = i; j < i + 4; j++)
                kq[j - i] = (uint8_t)(half ? (q[j] + 8) | (q[j + 4] + 8) << 4 : q[j] + 128);
    }
    for (int b = 0; b < kv->v_pad / dims && !kv->v_in_k; b++) {
        take_block(v, b, dims, kv->v_dim, x);
        vd[b * PP_PAGE_TOKENS + slot] = pp_f32_to_f16(quantize_block(kv, x, q));
        for (int i = 0; i < (half ? dims / 2 : dims); i++, vq += 2)
            *vq = (uint8_t)(half ? (q[i] + 8) | (q[i + 16] + 8) << 4 : q[i]);
    }
}

static void store_fp8(const struct pp_kv_layout *kv, uint8_t *head, int slot, const float *k, const float *v)
{
    uint8_t q[PP_MAX_HEAD_DIM] = {0};
    uint8_t *kq = head + (size_t)(slot / PP_KV_GROUP) * (size_t)kv->head_pad * PP_KV_GROUP + slot % PP_KV_GROUP;
    ((uint16_t *)(head + kv->k_scales))[slot] = pp_f32_to_f16(quantize_fp8(k, kv->head_dim, q));
    for (int d = 0; d < kv->head_pad; d++)
        kq[d * PP_KV_GROUP] = q[d];
    if (kv->v_in_k)
        return;
    memset(q, 0, sizeof q);
    ((uint16_t *)(head + kv->v_scales))[slot] = pp_f32_to_f16(quantize_fp8(v, kv->v_dim, q));
    memcpy(head + kv->v + (size_t)slot * (size_t)kv->v_pad, q, (size_t)kv->v_pad);
}

static void store_floats(const struct pp_kv_layout *kv, uint8_t *head, int slot, const float *k, const float *v)
{
    size_t k0 = (size_t)(slot / PP_KV_GROUP) * (size_t)kv->head_pad * PP_KV_GROUP + (size_t)(slot % PP_KV_GROUP);
    size_t v0 = (size_t)slot * (size_t)kv->v_pad;
    for (int d = 0; d < kv->head_pad; d++) {
        const float kx = d < kv->head_dim ? k[d] : 0;
        const size_t at = k0 + (size_t)d * PP_KV_GROUP;
        if (kv->type == PP_KV_F16)
            ((uint16_t *)head)[at] = pp_f32_to_f16(kx);
        else
            ((float *)head)[at] = kx;
    }
    for (int d = 0; d < kv->v_pad && !kv->v_in_k; d++) {
        const float vx = d < kv->v_dim ? v[d] : 0;
        if (kv->type == PP_KV_F16)
            ((uint16_t *)(head + kv->v))[v0 + (size_t)d] = pp_f32_to_f16(vx);
        else
            ((float *)(head + kv->v))[v0 + (size_t)d] = vx;
    }
}

static void kv_store(const struct pp_kv_layout *kv, uint8_t *page, size_t head_offset, int slot, const float *k,
                     const float *v)
{
    uint8_t *head = page + head_offset;
    if (pp_kv_integers(kv))
        store_integers(kv, head, slot, k, v);
    else if (kv->type == PP_KV_FP8)
        store_fp8(kv, head, slot, k, v);
    else
        store_floats(kv, head, slot, k, v);
}

#include "engine/cpu/recur_body.h"

#include "engine/cpu/attention_latent.h"
#include "engine/cpu/attention_body.h"
#include "engine/cpu/index_body.h"

#if defined(PP_OPS_AMX)
#include "engine/cpu/attention_amx.h"
#define ATTENTION_CHUNK attention_chunk_tiles
#else
#define ATTENTION_CHUNK attention_chunk
#endif

const struct pp_cpu_ops OPS_TABLE = {
    .rms_norm = rms_norm,
    .layer_norm = layer_norm,
    .gate = gate,
    .apply = apply,
    .xielu = xielu,
    .multiply = multiply,
    .convolve = convolve,
    .add = add,
    .rope = rope,
    .hadamard = hadamard,
    .kv_store = kv_store,
    .attention_query = attention_query,
    .attention_chunk = ATTENTION_CHUNK,
    .attention_merge = attention_merge,
    .attention_finish = attention_finish,
    .index_query = index_query,
    .index_dots = index_dots,
    .index_scores = index_scores,
    .widen = widen,
    .add_scaled = add_scaled,
    .round_low_rank = round_low_rank,
    .add_low_rank = add_low_rank,
    .products = products,
    .recur_row = recur_row,
    .recur_next = recur_next,
    .scan_step = scan_step,
    .delta_step = delta_step,
    .decay_step = decay_step,
};
