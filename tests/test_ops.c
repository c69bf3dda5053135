/* test_ops.c - the operations of a forward pass: the fast builds against the scalar one bit for bit, and the scalar one
 * against formulas in double precision. */
#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/cpu/ops.h"
#include "engine/quant.h"
#include "tests/kernel_builds.h"
#include "tests/support.h"

/* Whether the machine runs this set, and its operations are not those of a lower set, which are tested for that one. */
static bool is_tested(enum pp_isa isa)
{
    for (int lower = 0; lower < (int)isa; lower++)
        if (pp_isa_runs((enum pp_isa)lower) && pp_cpu_ops((enum pp_isa)lower) == pp_cpu_ops(isa))
            return false;
    return pp_isa_runs(isa);
}

static uint32_t random_state = 1;

static float random_float(void) /* about -2 to 2 */
{
    random_state = random_state * 1664525u + 1013904223u;
    return ((float)(random_state >> 8) / 8388608.0f - 1.0f) * 2.0f;
}

static float *random_floats(int64_t n)
{
    float *f = pp_malloc((size_t)n * sizeof *f);
    assert_non_null(f);
    for (int64_t i = 0; i < n; i++)
        f[i] = random_float();
    return f;
}

static const int64_t lengths[] = {1, 2, 15, 16, 17, 31, 64, 100, 172, 512, 1280};

static void norm_and_activations(void **state)
{
    (void)state;
    const struct pp_cpu_ops *scalar = pp_cpu_ops(PP_ISA_SCALAR);
    for (size_t k = 0; k < sizeof lengths / sizeof lengths[0]; k++) {
        int64_t n = lengths[k];
        float *x = random_floats(n), *w = random_floats(n), *a = pp_calloc((size_t)n, 4), *b = pp_calloc((size_t)n, 4);
        double sum = 0;
        for (int64_t i = 0; i < n; i++)
            sum += (double)x[i] * (double)x[i];
        scalar->rms_norm(x, w, 1e-5f, n, a);
        for (int64_t i = 0; i < n; i++)
            assert_near(a[i], (double)x[i] * (double)w[i] / sqrt(sum / (double)n + 1e-5), 1e-5);
        for (int isa = 1; isa < PP_ISA_COUNT; isa++) {
            if (!is_tested((enum pp_isa)isa))
                continue;
            pp_cpu_ops((enum pp_isa)isa)->rms_norm(x, w, 1e-5f, n, b);
            assert_memory_equal(a, b, (size_t)n * 4);
        }
        for (int64_t i = 0; i < n; i++)
            x[i] *= i % 7 == 0 ? 60 : 1; /* also where exp() saturates */
        scalar->gate(PP_FN_SILU, 0, x, w, n, a);
        for (int64_t i = 0; i < n; i++)
            assert_near(a[i], (double)x[i] / (1 + exp(-(double)x[i])) * (double)w[i], 1e-5 * (1 + fabs((double)a[i])));
        for (int isa = 1; isa < PP_ISA_COUNT; isa++) {
            if (!is_tested((enum pp_isa)isa))
                continue;
            const struct pp_cpu_ops *fast = pp_cpu_ops((enum pp_isa)isa);
            fast->gate(PP_FN_SILU, 0, x, w, n, b);
            assert_memory_equal(a, b, (size_t)n * 4);
            float *y = pp_malloc((size_t)n * 4), *z = pp_malloc((size_t)n * 4);
            memcpy(y, w, (size_t)n * 4);
            memcpy(z, w, (size_t)n * 4);
            scalar->add(y, x, n);
            fast->add(z, x, n);
            scalar->add_scaled(y, x, 0.37f, n);
            fast->add_scaled(z, x, 0.37f, n);
            assert_memory_equal(y, z, (size_t)n * 4);
            pp_free(y);
            pp_free(z);
        }
        pp_free(x), pp_free(w), pp_free(a), pp_free(b);
    }
}

/* Products, and sums over a few rows; the first row may be missing. */
static void convolutions(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof lengths / sizeof lengths[0]; k++)
        for (int n_taps = 1; n_taps <= 4; n_taps++) {
            const int64_t n = lengths[k], stride = (n + 15) / 16 * 16;
            float *x = random_floats(n * n_taps), *w = random_floats(stride * n_taps), *bias = random_floats(n);
            float *y = pp_calloc((size_t)n, 4), *z = pp_calloc((size_t)n, 4), *rows[4];
            for (int missing = 0; missing < n_taps; missing++) {
                const float *b = missing % 2 ? NULL : bias;
                for (int j = 0; j < n_taps; j++)
                    rows[j] = j < missing ? NULL : x + j * n;
                pp_cpu_ops(PP_ISA_SCALAR)->convolve(n_taps, rows, w, stride, b, n, y);
                for (int64_t i = 0; i < n; i++) {
                    double sum = b ? (double)b[i] : 0;
                    for (int j = missing; j < n_taps; j++)
                        sum += (double)w[j * stride + i] * (double)rows[j][i];
                    assert_near(y[i], sum, 1e-5);
                }
                for (int isa = 1; isa < PP_ISA_COUNT; isa++) {
                    if (!is_tested((enum pp_isa)isa))
                        continue;
                    pp_cpu_ops((enum pp_isa)isa)->convolve(n_taps, rows, w, stride, b, n, z);
                    assert_memory_equal(y, z, (size_t)n * 4);
                }
            }
            for (int isa = 0; isa < PP_ISA_COUNT; isa++) {
                if (!is_tested((enum pp_isa)isa))
                    continue;
                memcpy(z, x, (size_t)n * 4);
                pp_cpu_ops((enum pp_isa)isa)->multiply(z, bias, n, z);
                for (int64_t i = 0; i < n; i++)
                    assert_true(z[i] == x[i] * bias[i]);
            }
            pp_free(x), pp_free(w), pp_free(bias), pp_free(y), pp_free(z);
        }
}

/* All 2^16 halves, and any number of them, from an odd address. */
static void halves_to_floats(void **state)
{
    enum { N = 0x10000 };
    static uint8_t halves[2 * N + 1];
    static float exact[N], y[N];
    (void)state;
    for (uint32_t h = 0; h < N; h++) {
        const uint16_t half = (uint16_t)h;
        memcpy(halves + 1 + 2 * h, &half, sizeof half);
        exact[h] = pp_f16_to_f32(half);
    }
    for (int isa = 0; isa < PP_ISA_COUNT; isa++) {
        if (!is_tested((enum pp_isa)isa))
            continue;
        pp_cpu_ops((enum pp_isa)isa)->widen(halves + 1, N, y);
        assert_memory_equal(y, exact, sizeof y);
        for (int64_t n = 0; n < 40; n++) {
            memset(y, 0, sizeof y);
            pp_cpu_ops((enum pp_isa)isa)->widen(halves + 1 + 2 * 0x3c00, n, y);
            assert_memory_equal(y, exact + 0x3c00, (size_t)n * sizeof *y);
            assert_true(y[n] == 0);
        }
    }
}

/* --- functions of one number ----------------------------------------------------------------------------------- */

static double exact_fn(enum pp_fn fn, double number, double x)
{
    switch (fn) {
    case PP_FN_SILU: return x / (1 + exp(-x));
    case PP_FN_GELU: return x * (1 + erf(x / sqrt(2))) / 2;
    case PP_FN_GELU_TANH: return x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x))) / 2;
    case PP_FN_SIGMOID: return 1 / (1 + exp(-x));
    case PP_FN_SCALE: return number * x;
    case PP_FN_CAP: return number * tanh(x / number);
    case PP_FN_CLAMP: return fmax(-number, fmin(number, x));
    case PP_FN_RELU: return x > 0 ? x : 0;
    case PP_FN_RELU2: return x > 0 ? x * x : 0;
    case PP_FN_DECAY: return exp(-exp(-0.5) / (1 + exp(-x)));
    case PP_FN_DOUBLE_EXP: return exp(-(number != 0 ? fmin(exp(x), number) : exp(x)));
    case PP_FN_EXP: return exp(fmin(x, 88)); /* its bound, near which the largest float is */
    case PP_FN_SOFTPLUS: return fmax(x, 0) + log1p(exp(-fabs(x)));
    default: return NAN;
    }
}

static const float BOUND = 0.75f;

static double exact_gate(enum pp_fn fn, double most, double g, double u)
{
    if (fn == PP_FN_SILU_BOUNDED)
        return fmin(most, exact_fn(PP_FN_SILU, 0, g)) * fmax(-most, fmin(most, u));
    if (fn == PP_FN_SILU_WITHIN)
        return exact_fn(PP_FN_SILU, 0, fmin(most, g)) * fmax(-most, fmin(most, u));
    if (fn == PP_FN_SITU)
        return exact_fn(PP_FN_CAP, 4, g) * exact_fn(PP_FN_SIGMOID, 0, g) * exact_fn(PP_FN_CAP, 25, u);
    if (fn != PP_FN_CLAMPED)
        return exact_fn(fn, 0, g) * u;
    most = most == 0 ? 7 : most;
    g = fmin(most, g);
    u = fmax(-most, fmin(most, u));
    return g / (1 + exp(-1.702 * g)) * (u + 1);
}

/* All functions against their formulas, near 0 and where they saturate; the fast builds bit for bit, also in place. */
static void functions(void **state)
{
    static const enum pp_fn applied[] = {PP_FN_SILU, PP_FN_GELU, PP_FN_GELU_TANH, PP_FN_SIGMOID, PP_FN_SCALE,
                                         PP_FN_CAP, PP_FN_CLAMP, PP_FN_RELU, PP_FN_RELU2, PP_FN_SOFTPLUS,
                                         PP_FN_DECAY, PP_FN_DOUBLE_EXP, PP_FN_EXP};
    static const enum pp_fn gated[] = {PP_FN_SILU, PP_FN_GELU, PP_FN_GELU_TANH, PP_FN_SIGMOID, PP_FN_CLAMPED,
                                         PP_FN_SILU_BOUNDED, PP_FN_SILU_WITHIN, PP_FN_SITU, PP_FN_RELU2, PP_FN_RELU};
    static const float sizes[] = {1e-4f, 0.3f, 2, 9, 70, 1e4f};
    const struct pp_cpu_ops *scalar = pp_cpu_ops(PP_ISA_SCALAR);
    enum { N = 147 };
    (void)state;
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        float *x = random_floats(N), *u = random_floats(N), a[N], b[N];
        for (int i = 0; i < N; i++)
            x[i] *= sizes[k];
        for (size_t f = 0; f < sizeof applied / sizeof *applied; f++) {
            const bool bounded = applied[f] == PP_FN_DOUBLE_EXP && k % 2; /* if not, there is no bound */
            const float number = applied[f] == PP_FN_CAP          ? 30
                                 : applied[f] != PP_FN_DOUBLE_EXP ? 0.25f
                                 : bounded                        ? 5
                                                                  : 0;
            scalar->apply(applied[f], number, x, N, a);
            for (int i = 0; i < N; i++)
                assert_near(a[i], exact_fn(applied[f], (double)number, (double)x[i]),
                            2e-6 * (1 + fabs((double)x[i]) + fabs((double)a[i])) +
                                (applied[f] == PP_FN_CAP ? 1e-5 : 0));
            for (int isa = 1; isa < PP_ISA_COUNT; isa++)
                if (is_tested((enum pp_isa)isa)) {
                    memcpy(b, x, sizeof b);
                    pp_cpu_ops((enum pp_isa)isa)->apply(applied[f], number, b, N, b);
                    assert_memory_equal(a, b, sizeof a);
                }
        }
        for (size_t f = 0; f < sizeof gated / sizeof *gated; f++) {
            const float most = gated[f] == PP_FN_CLAMPED && k % 2 ? 0 : BOUND;
            scalar->gate(gated[f], most, x, u, N, a);
            for (int i = 0; i < N; i++)
                assert_near(a[i], exact_gate(gated[f], (double)most, (double)x[i], (double)u[i]),
                            1e-5 * (1 + fabs((double)x[i])) + 1e-6 * fabs((double)a[i]));
            for (int isa = 1; isa < PP_ISA_COUNT; isa++)
                if (is_tested((enum pp_isa)isa)) {
                    pp_cpu_ops((enum pp_isa)isa)->gate(gated[f], most, x, u, N, b);
                    assert_memory_equal(a, b, sizeof a);
                }
        }
        pp_free(x), pp_free(u);
    }
    const float bad[3] = {NAN, INFINITY, 1};
    float capped[3];
    scalar->apply(PP_FN_CAP, 30, bad, 3, capped); /* NaN stays NaN */
    assert_true(isnan(capped[0]) && isnan(capped[1]) && capped[2] > 0.99f);
    scalar->apply(PP_FN_SOFTPLUS, 0, bad, 3, capped);
    assert_true(isnan(capped[0]) && isinf(capped[1]));
    const float below = -20; /* small values keep their digits */
    scalar->apply(PP_FN_SOFTPLUS, 0, &below, 1, capped);
    assert_near(capped[0], log1p(exp(-20)), 1e-6 * exp(-20));
}

static void xielu_of_four_numbers(void **state)
{
    static const struct pp_xielu f = {.positive = 0.7f, .negative = 1.3f, .linear = 0.5f, .most = -1e-6f};
    static const float sizes[] = {1e-4f, 0.3f, 2, 9, 70, 1e4f};
    enum { N = 147 };
    (void)state;
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        float *x = random_floats(N), a[N], b[N];
        for (int i = 0; i < N; i++)
            x[i] *= sizes[k];
        x[3] = 0;
        pp_cpu_ops(PP_ISA_SCALAR)->xielu(&f, x, N, a);
        for (int i = 0; i < N; i++) {
            const double v = (double)x[i], negative = expm1(fmin(v, -1e-6)) - v;
            const double want = 0.5 * v + (v > 0 ? (double)f.positive * v * v : (double)f.negative * negative);
            assert_near(a[i], want, 1e-6 * (1 + fabs(want)));
        }
        for (int isa = 1; isa < PP_ISA_COUNT; isa++)
            if (is_tested((enum pp_isa)isa)) {
                memcpy(b, x, sizeof b);
                pp_cpu_ops((enum pp_isa)isa)->xielu(&f, b, N, b);
                assert_memory_equal(a, b, sizeof a);
            }
        pp_free(x);
    }
}

static void layer_norms(void **state)
{
    const struct pp_cpu_ops *scalar = pp_cpu_ops(PP_ISA_SCALAR);
    (void)state;
    for (size_t k = 0; k < sizeof lengths / sizeof lengths[0]; k++) {
        const int64_t n = lengths[k];
        const size_t bytes = (size_t)n * sizeof(float);
        float *x = random_floats(n), *w = random_floats(n), *b = random_floats(n), *y = pp_malloc(bytes),
              *z = pp_malloc(bytes);
        double mean = 0, square = 0;
        for (int64_t i = 0; i < n; i++) {
            x[i] += 3; /* the mean is large relative to the deviation */
            mean += (double)x[i] / (double)n;
        }
        for (int64_t i = 0; i < n; i++)
            square += ((double)x[i] - mean) * ((double)x[i] - mean) / (double)n;
        for (int biased = 0; biased < 2; biased++) {
            scalar->layer_norm(x, w, biased ? b : NULL, 1e-5f, n, y);
            for (int64_t i = 0; i < n; i++)
                assert_near(y[i], ((double)x[i] - mean) / sqrt(square + 1e-5) * (double)w[i] +
                                      (biased ? (double)b[i] : 0), n == 1 ? 1e-3 : 2e-5);
            for (int isa = 1; isa < PP_ISA_COUNT; isa++)
                if (is_tested((enum pp_isa)isa)) {
                    memcpy(z, x, bytes); /* in place, too */
                    pp_cpu_ops((enum pp_isa)isa)->layer_norm(z, w, biased ? b : NULL, 1e-5f, n, z);
                    assert_memory_equal(y, z, bytes);
                }
        }
        pp_free(x), pp_free(w), pp_free(b), pp_free(y), pp_free(z);
    }
}

/* Element [r][k] of a block's B, as its layout says. */
static double low_rank_value(const struct pp_low_rank *b, int64_t r, int k)
{
    const uint8_t *block = b->data + (size_t)(r / 64) * pp_low_rank_block_bytes(b->type, b->rank);
    size_t at = ((size_t)(r % 64 / 16) * (size_t)b->rank + (size_t)k) * 16 + (size_t)(r % 16);
    if (b->type == PP_TYPE_F32)
        return (double)((const float *)block)[at];
    if (b->type == PP_TYPE_F16)
        return (double)pp_f16_to_f32(((const uint16_t *)block)[at]);
    const uint8_t *q = block + 64 * 2;
    const double d = (double)pp_f16_to_f32(((const uint16_t *)block)[r % 64]);
    return d * (double)(q[k / 4 * 256 + (int)(r % 64) * 4 + k % 4] - 128) * (double)b->unit;
}

static uint8_t *random_low_rank(uint32_t type, int rank, int64_t n_blocks)
{
    size_t block_bytes = pp_low_rank_block_bytes(type, rank), bytes = (size_t)n_blocks * block_bytes;
    uint8_t *data = pp_aligned(64, bytes);
    assert_non_null(data);
    for (size_t i = 0; type == PP_TYPE_F32 && i < bytes / 4; i++)
        ((float *)data)[i] = random_float();
    for (size_t i = 0; type == PP_TYPE_F16 && i < bytes / 2; i++)
        ((uint16_t *)data)[i] = pp_f32_to_f16(random_float());
    for (int64_t b = 0; type == PP_TYPE_Q8_0 && b < n_blocks; b++)
        for (int r = 0; r < 64; r++) {
            uint8_t *block = data + (size_t)b * block_bytes, *row = block + 64 * 2 + 4 * r;
            ((uint16_t *)block)[r] = pp_f32_to_f16(random_float() / 50);
            for (int k = 0; k < (rank + 3) / 4 * 4; k++)
                row[k / 4 * 256 + k % 4] = k < rank ? (uint8_t)(128.5f + 63 * random_float()) : 128;
        }
    return data;
}

/* The upper half of adapters: any rank, rows that do not fill a block, and the same bits however the rows are split. */
static void low_rank(void **state)
{
    static const uint32_t types[] = {PP_TYPE_F32, PP_TYPE_F16, PP_TYPE_Q8_0};
    static const int ranks[] = {1, 3, 8, 15, 16, 17, 64, 531};
    enum { ROWS = 154, BLOCKS = 3, N = 14 /* batch rows */ };
    (void)state;
    for (int i = 0; i < 3 * 8; i++) {
        const int rank = ranks[i / 3], stride = pp_low_rank_room(rank);
        uint8_t *data = random_low_rank(types[i % 3], rank, BLOCKS);
        const struct pp_low_rank b = {.type = types[i % 3], .rank = rank, .data = data, .unit = 0.25f};
        float *down = random_floats(N * rank), *before = random_floats(N * ROWS), first[N * ROWS] = {0}, y[N * ROWS];
        float *read = random_floats(N * stride);
        for (int isa = 0; isa < PP_ISA_COUNT; isa++) {
            if (!is_tested((enum pp_isa)isa))
                continue;
            const struct pp_cpu_ops *ops = pp_cpu_ops((enum pp_isa)isa);
            for (int at = 0; at < N; at++) {
                memcpy(read + at * stride, down + at * rank, (size_t)rank * sizeof *down);
                if (b.type == PP_TYPE_Q8_0)
                    ops->round_low_rank(read + at * stride, rank);
            }
            for (int step = 16; step <= 160; step += 16) {
                memcpy(y, before, sizeof y);
                for (int r = 0, n; r < ROWS; r += step)
                    for (int at = 0; at < N; at += n) { /* all at once, or in parts whose number of rows depends on the
                                                           step */
                        n = step == 16 ? N : 1 + step / 16 % 3 * 4;
                        n = at + n < N ? n : N - at;
                        const struct pp_low_rank_rows rows = {
                            .n = n, .y = y + at * ROWS, .y_stride = ROWS, .down = read + at * stride,
                            .down_stride = stride};
                        ops->add_low_rank(&b, &rows, 0.37f, r, r + step < ROWS ? r + step : ROWS);
                    }
                if (isa == 0 && step == 16)
                    memcpy(first, y, sizeof y);
                assert_memory_equal(first, y, sizeof y);
            }
        }
        for (int r = 0; r < N * ROWS; r++) {
            double sum = 0;
            for (int k = 0; k < rank; k++)
                sum += low_rank_value(&b, r % ROWS, k) * (double)down[r / ROWS * rank + k];
            assert_near(first[r], (double)before[r] + 0.37 * sum, rank > 17 ? 1e-3 : 1e-4);
        }
        pp_free(data);
        pp_free(down);
        pp_free(read);
        pp_free(before);
    }
}

static void rope_and_hadamard(void **state)
{
    (void)state;
    for (int isa = 0; isa < PP_ISA_COUNT; isa++) {
        if (!is_tested((enum pp_isa)isa))
            continue;
        const struct pp_cpu_ops *ops = pp_cpu_ops((enum pp_isa)isa);
        for (int neox = 0; neox < 2; neox++) {
            float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, cs[6];
            for (int i = 0; i < 3; i++) {
                cs[2 * i] = cosf((float)(i + 1));
                cs[2 * i + 1] = sinf((float)(i + 1));
            }
            ops->rope(x, 6, neox, cs); /* 6 of 8 values rotate */
            for (int i = 0; i < 3; i++) {
                int p = neox ? i : 2 * i, q = neox ? i + 3 : 2 * i + 1;
                double a = p + 1, b = q + 1;
                assert_near(x[p], a * cos(i + 1) - b * sin(i + 1), 1e-5);
                assert_near(x[q], a * sin(i + 1) + b * cos(i + 1), 1e-5);
            }
            assert_true(x[6] == 7 && x[7] == 8);
        }
        /* Each column of the matrix, twice transformed, is itself; the transform keeps lengths. */
        for (int n = 16; n <= 128; n *= 2)
            for (int column = 0; column < n; column++) {
                float x[128] = {0};
                double length = 0;
                x[column] = 1;
                ops->hadamard(x, n, n);
                for (int i = 0; i < n; i++) {
                    length += (double)x[i] * (double)x[i];
                    assert_near(fabsf(x[i]), 1 / sqrt(n), 1e-6);
                    assert_true((x[i] < 0) == (__builtin_popcount((unsigned)(i & column)) % 2 == 1));
                }
                assert_near(length, 1, 1e-5);
                ops->hadamard(x, n, n);
                for (int i = 0; i < n; i++)
                    assert_near(x[i], i == column, 1e-6);
            }
    }
}

static void rotations_same_bits(void **state)
{
    (void)state;
    for (int block = 4; block <= 128; block *= 2) {
        const int neox = block % 3 == 1;
        float first[128], cs[128];
        for (int i = 0; i < 64; i++) {
            cs[2 * i] = cosf(0.37f * (float)i);
            cs[2 * i + 1] = sinf(0.37f * (float)i);
        }
        for (int isa = 0; isa < PP_ISA_COUNT; isa++) {
            if (!is_tested((enum pp_isa)isa))
                continue;
            float x[128];
            for (int i = 0; i < 128; i++)
                x[i] = sinf(1.7f * (float)i + 0.3f);
            pp_cpu_ops((enum pp_isa)isa)->rope(x, 128, neox, cs);
            pp_cpu_ops((enum pp_isa)isa)->hadamard(x, 128, block);
            if (isa == 0)
                memcpy(first, x, sizeof x);
            assert_memory_equal(first, x, sizeof x);
        }
    }
}

/* --- attention ------------------------------------------------------------------------------------------------- */

struct cache {
    struct pp_kv_layout layout;
    uint8_t **pages;
    int n_pages;
    float *k, *v; /* [n, head_dim]: as given to kv_store() */
    double *is_k, *is_v; /* [n, head_dim]: as stored; NULL until reference() needs it */
};

/* For the tests that follow. latent_dim: V is this many first values of K; 0: V is stored. value_dim: the width of V;
 * 0: that of K. */
static int latent_dim, value_dim;

/* The distance between two positions' values in c.v, which is at least as wide as K: a V that is a part of K is not
 * read. */
static int value_stride(const struct pp_kv_layout *l)
{
    return l->v_dim > l->head_dim ? l->v_dim : l->head_dim;
}

static struct cache make_cache(enum pp_kv_type type, int head_dim, int n, const struct pp_cpu_ops *ops)
{
    struct cache c = {0};
    if (latent_dim)
        pp_kv_layout_init_latent(&c.layout, type, 2, 3, head_dim, latent_dim);
    else
        pp_kv_layout_init_values(&c.layout, type, 2, 3, head_dim, value_dim ? value_dim : head_dim);
    c.n_pages = (n + PP_PAGE_TOKENS - 1) / PP_PAGE_TOKENS;
    c.pages = pp_calloc((size_t)c.n_pages, sizeof *c.pages);
    for (int i = 0; i < c.n_pages; i++) {
        c.pages[i] = pp_aligned(64, c.layout.page_bytes + PP_KV_PADDING);
        memset(c.pages[i], 0xA5, c.layout.page_bytes + PP_KV_PADDING); /* what earlier users left must not matter */
    }
    random_state = 77;
    c.k = random_floats((int64_t)n * head_dim);
    c.v = random_floats((int64_t)n * value_stride(&c.layout));
    for (int i = 0; i < n; i++)
        ops->kv_store(&c.layout, c.pages[i / PP_PAGE_TOKENS], pp_kv_head_offset(&c.layout, 1, 2), i % PP_PAGE_TOKENS,
                      c.k + i * head_dim, c.v + i * value_stride(&c.layout));
    return c;
}

static void free_cache(struct cache *c)
{
    for (int i = 0; i < c->n_pages; i++)
        pp_free(c->pages[i]);
    pp_free(c->pages);
    pp_free(c->k);
    pp_free(c->v);
    pp_free(c->is_k);
    pp_free(c->is_v);
}

/* Decodes the stored K or V of a position as kv.h describes the formats. */
static double stored(const struct pp_kv_layout *l, const uint8_t *head, int slot, int d, bool value)
{
    static const double e4m3_steps = 1.0 / 512;
    value = value && !l->v_in_k;
    const int pad = value ? l->v_pad : l->head_pad, n_blocks = pad / PP_KV_BLOCK;
    const int group = slot / PP_KV_GROUP, lane = slot % PP_KV_GROUP;
    const uint8_t *at = head + (value ? l->v : 0);
    const uint16_t *scales = (const uint16_t *)(head + (value ? l->v_scales : l->k_scales));
    size_t i = (size_t)(value ? slot * pad + d : (group * pad + d) * PP_KV_GROUP + lane);
    int block = d / PP_KV_BLOCK, byte;
    double scale;
    switch (l->type) {
    case PP_KV_F32: return (double)((const float *)at)[i];
    case PP_KV_F16: return (double)pp_f16_to_f32(((const uint16_t *)at)[i]);
    case PP_KV_FP8: {
        int exponent = at[i] >> 3 & 15, mantissa = at[i] & 7;
        double size = exponent ? ldexp(8 + mantissa, exponent - 1) * e4m3_steps : mantissa * e4m3_steps;
        return (at[i] >> 7 ? -size : size) / 256 * (double)pp_f16_to_f32(scales[slot]);
    }
    default: break;
    }
    const int shared = d / l->scale_dims, n_scales = pad / l->scale_dims;
    scale = (double)pp_f16_to_f32(value ? scales[shared * PP_PAGE_TOKENS + slot]
                                        : scales[(group * n_scales + shared) * PP_KV_GROUP + lane]);
    if (l->type == PP_KV_Q8 || l->type == PP_KV_Q8_0)
        return scale * (value ? (int8_t)at[(slot / 2 * pad + d) * 2 + slot % 2]
                              : at[(group * pad / 4 + d / 4) * 64 + lane * 4 + d % 4] - 128);
    byte = value ? at[(slot / 2 * n_blocks + block) * 32 + d % 16 * 2 + slot % 2]
                 : at[(group * pad / 8 + d / 8) * 64 + lane * 4 + d % 4];
    bool high = value ? d % 32 >= 16 : d % 8 >= 4;
    return scale * ((high ? byte >> 4 : byte & 15) - 8);
}

static double softcap; /* bounds the scores in the tests that follow; 0: no bound */
static double alibi;   /* in the tests that follow the scores of head h fall by (h + 1) times this per position of
                          distance; 0: not */

static void read_stored(struct cache *c)
{
    const int n = c->n_pages * PP_PAGE_TOKENS, head_dim = c->layout.head_dim, v_dim = c->layout.v_dim;
    const size_t head = pp_kv_head_offset(&c->layout, 1, 2);
    c->is_k = pp_malloc((size_t)(n * head_dim) * sizeof *c->is_k);
    c->is_v = pp_malloc((size_t)(n * v_dim) * sizeof *c->is_v);
    for (int i = 0; i < n; i++) {
        const uint8_t *at = c->pages[i / PP_PAGE_TOKENS] + head;
        for (int d = 0; d < head_dim; d++)
            c->is_k[i * head_dim + d] = stored(&c->layout, at, i % PP_PAGE_TOKENS, d, false);
        for (int d = 0; d < v_dim; d++)
            c->is_v[i * v_dim + d] = stored(&c->layout, at, i % PP_PAGE_TOKENS, d, true);
    }
}

/* Softmax attention in double precision over the stored K and V of positions begin .. n - 1. */
static void reference(struct cache *c, const float *q, int h, int begin, int n, double *out)
{
    const int head_dim = c->layout.head_dim, v_dim = c->layout.v_dim;
    double *s = pp_malloc((size_t)n * sizeof *s), top = -INFINITY, total = 0;
    if (!c->is_k)
        read_stored(c);
    for (int i = begin; i < n; i++) {
        s[i] = 0;
        for (int d = 0; d < head_dim; d++)
            s[i] += (double)q[d] * c->is_k[i * head_dim + d];
        s[i] /= sqrt(head_dim);
        s[i] = softcap != 0 ? softcap * tanh(s[i] / softcap) : s[i];
        s[i] -= alibi * (h + 1) * (n - 1 - i);
        if (s[i] > top)
            top = s[i];
    }
    for (int d = 0; d < v_dim; d++)
        out[d] = 0;
    for (int i = begin; i < n; i++) {
        double p = exp(s[i] - top);
        total += p;
        for (int d = 0; d < v_dim; d++)
            out[d] += p * c->is_v[i * v_dim + d];
    }
    for (int d = 0; d < v_dim; d++)
        out[d] /= total;
    pp_free(s);
}

/* Stored values differ from the originals by at most `share` of the largest value of their block (or head). */
static void check_stored(const struct cache *c, int n)
{
    const double shares[] = {[PP_KV_F32] = 0, [PP_KV_F16] = 1.0 / 2048, [PP_KV_FP8] = 1.0 / 15,
                             [PP_KV_Q8] = 1.0 / 220, [PP_KV_Q8_0] = 1.0 / 220, [PP_KV_Q4_0] = 1.0 / 7.9};
    int head_dim = c->layout.head_dim;
    size_t head = pp_kv_head_offset(&c->layout, 1, 2);
    for (int i = 0; i < n; i++)
        for (int value = 0; value < (c->layout.v_in_k ? 1 : 2); value++) {
            const float *x = value ? c->v + i * value_stride(&c->layout) : c->k + i * head_dim;
            for (int d = 0; d < (value ? c->layout.v_dim : head_dim); d++)
                assert_near(stored(&c->layout, c->pages[i / PP_PAGE_TOKENS] + head, i % PP_PAGE_TOKENS, d, value),
                            (double)x[d], 2 * shares[c->layout.type]); /* random values are at most 2 */
        }
}

/* The part of a chunk that is visible to a row that sees the first n positions, or the last `window` of them; may be
 * empty. */
static struct pp_span in_chunk(int n, int window, int chunk)
{
    const int first = window && n > window ? n - window : 0;
    const int begin = first > chunk ? first - chunk : 0, end = n - chunk < PP_KV_CHUNK ? n - chunk : PP_KV_CHUNK;
    return begin < end ? (struct pp_span){begin, end} : (struct pp_span){0, 0};
}

/* Begins sums without any position. */
static void begin_sums(const struct pp_attention *a, const struct pp_attention_sums *sums)
{
    const int n_q = a->n_rows * a->group;
    for (int i = 0; i < n_q; i++) {
        sums->m[i] = -INFINITY;
        sums->l[i] = 0;
    }
    memset(sums->o, 0, (size_t)n_q * (size_t)a->kv->v_pad * sizeof *sums->o);
}

/* Adds one chunk to the sums of neighbouring rows first .. end - 1, all of which see a part of it. apart: separate
 * sums, which are then merged; or NULL. */
static void attend_rows(const struct pp_cpu_ops *ops, const struct cache *c, struct pp_attention *a, int chunk,
                        int first, int end, const struct pp_span *see, const struct pp_attention_sums *apart)
{
    const uint8_t *heads[PP_CHUNK_PAGES] = {NULL};
    for (int r = first; r < end; r++)
        for (int p = see[r].begin / PP_PAGE_TOKENS; p * PP_PAGE_TOKENS < see[r].end; p++)
            heads[p] = c->pages[chunk / PP_PAGE_TOKENS + p] + pp_kv_head_offset(&c->layout, 1, 2);
    for (int p = 0; p < PP_CHUNK_PAGES; p++) /* the next pages are only prefetched: known or not, results are the
                                                same */
        a->next[p] = (chunk / PP_KV_CHUNK + p) % 3 ? heads[p] : NULL;
    a->unasked = chunk / PP_KV_CHUNK % 2 == 0;
    ops->attention_chunk(a, heads, first, end - first, see, apart ? apart : &a->total);
    if (apart)
        ops->attention_merge(a, first, end - first, apart, &a->total);
}

/* Attention of n_rows rows of `group` queries in one tile; row i sees the first n[i] positions, or the last `window` of
 * those. */
static void attend(const struct pp_cpu_ops *ops, const struct cache *c, int group, int n_rows, const int *n, int window,
                   const float *q, float *out)
{
    struct pp_attention a = {.n_rows = n_rows, .group = group, .softcap = (float)softcap * 1.44269504f};
    const int n_q = n_rows * group, width = group * c->layout.head_dim, v_width = group * c->layout.v_dim;
    float slopes[PP_TILE_QUERIES];
    for (int h = 0; h < group; h++)
        slopes[h] = (float)(alibi * (h + 1)) * 1.44269504f;
    a.slopes = alibi != 0 ? slopes : NULL;
    size_t bytes = pp_attention_bytes(&c->layout, n_q);
    void *memory = pp_aligned(64, bytes);
    memset(memory, 0xFF, bytes); /* NaN everywhere: so reads of what was never written would show */
    pp_attention_init(&a, &c->layout, n_q, memory);
    for (int i = 0; i < n_rows; i++)
        ops->attention_query(&a, i, q + i * width, 1 / sqrtf((float)c->layout.head_dim));
    float *room = pp_malloc((size_t)(n_q * (c->layout.v_pad + 2)) * sizeof *room);
    const struct pp_attention_sums apart = {.m = room, .l = room + n_q, .o = room + 2 * n_q};
    begin_sums(&a, &a.total);
    for (int chunk = 0; chunk < n[n_rows - 1]; chunk += PP_KV_CHUNK) {
        struct pp_span see[PP_TILE_QUERIES];
        for (int i = 0; i < n_rows; i++) {
            see[i] = in_chunk(n[i], window, chunk);
            a.at[i] = (float)(n[i] - 1 - chunk);
        }
        for (int i = 0, end; i < n_rows; i = end) {
            for (end = i + 1; see[i].end && end < n_rows && see[end].end;)
                end++;
            begin_sums(&a, &apart);
            if (see[i].end)
                attend_rows(ops, c, &a, chunk, i, end, see, chunk / PP_KV_CHUNK % 2 ? &apart : NULL);
        }
    }
    for (int i = 0; i < n_rows; i++)
        ops->attention_finish(&a, i, &a.total, out + i * v_width);
    pp_free(room);
    pp_free(memory);
}

static const enum pp_kv_type kv_types[] = {PP_KV_F32, PP_KV_F16, PP_KV_FP8, PP_KV_Q8, PP_KV_Q8_0, PP_KV_Q4_0};
enum { N_KV_TYPES = sizeof kv_types / sizeof kv_types[0] };

static void attention_of_shape(enum pp_kv_type type, int head_dim, int n_q, int n)
{
    const int v_dim = latent_dim ? latent_dim : value_dim ? value_dim : head_dim;
    const size_t out_bytes = (size_t)(n_q * v_dim) * sizeof(float);
    float *first = NULL;
    for (int isa = 0; isa < PP_ISA_COUNT; isa++) {
        if (!is_tested((enum pp_isa)isa))
            continue;
        const struct pp_cpu_ops *ops = pp_cpu_ops((enum pp_isa)isa);
        struct cache c = make_cache(type, head_dim, n, ops);
        float *q = random_floats(n_q * head_dim), *out = pp_malloc(out_bytes);
        attend(ops, &c, n_q, 1, &n, 0, q, out);
        if (isa == 0) {
            double expected[PP_MAX_HEAD_DIM], tolerance = pp_kv_integers(&c.layout) ? 3e-2 : 1e-5;
            check_stored(&c, n);
            for (int h = 0; h < n_q; h++) {
                reference(&c, q + h * head_dim, h, 0, n, expected);
                for (int j = 0; j < v_dim; j++)
                    assert_near(out[h * v_dim + j], expected[j], tolerance);
            }
            first = out;
        } else {
            if (memcmp(first, out, out_bytes) != 0)
                fail_msg("%s kernels, KV %s: other bits for %d heads of %d, %d positions",
                         pp_isa_name((enum pp_isa)isa), pp_kv_type_name(type), n_q, head_dim, n);
            pp_free(out);
        }
        pp_free(q);
        free_cache(&c);
    }
    pp_free(first);
}

/* An emulator is slow: every fourth combination suffices there. */
#if defined(PP_KERNEL_TESTS)
enum { SHAPE_STEP = 4 };
#else
enum { SHAPE_STEP = 1 };
#endif

static void attention_shapes(void **state)
{
    static const int head_dims[] = {16, 24, 32, 64, 80, 96, 128, 256};
    static const int lengths_kv[] = {1, 2, 16, 17, 63, 64, 65, 255, 256, 257, 600};
    (void)state;
    for (size_t t = 0; t < N_KV_TYPES; t++)
        for (size_t d = 0; d < sizeof head_dims / sizeof head_dims[0]; d++)
            for (size_t l = 0; l < sizeof lengths_kv / sizeof lengths_kv[0]; l++) {
                if ((head_dims[d] > 96 && lengths_kv[l] > 257) || (t + d + l) % SHAPE_STEP)
                    continue; /* the scalar build is slow */
                int n_q = (int)(1 + (d + l) % 9 + (l % 4 ? 0 : 16)); /* some fill tiles of 16 */
                attention_of_shape(kv_types[t], head_dims[d], n_q, lengths_kv[l]);
            }
}

/* Scores with a bound, in all types: with most of them at the bound, and with none there. */
static void attention_capped(void **state)
{
    static const double caps[] = {0.3, 2, 50};
    (void)state;
    for (size_t i = 0; i < 3; i++)
        for (int type = 0; type < (int)N_KV_TYPES; type++) {
            softcap = caps[i];
            attention_of_shape(kv_types[type], 64, 4, 300);
            attention_of_shape(kv_types[type], 80, 3, 77);
        }
    softcap = 0;
}

/* Scores that fall with the distance, in all types; some rows fill tiles of 16. */
static void attention_alibi(void **state)
{
    (void)state;
    for (int type = 0; type < (int)N_KV_TYPES; type++) {
        alibi = 0.03;
        attention_of_shape(kv_types[type], 64, 20, 300);
        alibi = 0.4;
        attention_of_shape(kv_types[type], 80, 3, 77);
    }
    alibi = 0;
}

/* V that is a part of K, in all types. */
static void attention_latent(void **state)
{
    static const struct { int head_dim, v_dim, n_q, n; } shapes[] = {
        {576, 512, 16, 70}, {576, 512, 20, 17}, {96, 64, 33, 300}, {48, 32, 4, 257}, {40, 24, 1, 64}, {72, 40, 9, 130}};
    (void)state;
    for (size_t t = 0; t < N_KV_TYPES; t++)
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            if ((t + i) % SHAPE_STEP)
                continue;
            latent_dim = shapes[i].v_dim;
            attention_of_shape(kv_types[t], shapes[i].head_dim, shapes[i].n_q, shapes[i].n);
        }
    latent_dim = 0;
}

/* V that is shorter than K, or longer, in all types. */
static void attention_other_values(void **state)
{
    static const struct { int head_dim, v_dim, n_q, n; } shapes[] = {
        {64, 128, 16, 300}, {64, 128, 5, 70}, {12, 24, 4, 17}, {96, 192, 33, 257}, {32, 64, 1, 600}, {8, 72, 9, 130},
        {192, 128, 16, 300}, {192, 128, 5, 70}, {96, 64, 33, 17}, {48, 32, 4, 257}, {40, 24, 1, 64}, {72, 8, 9, 130}};
    (void)state;
    for (size_t t = 0; t < N_KV_TYPES; t++)
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            if ((t + i) % SHAPE_STEP)
                continue;
            value_dim = shapes[i].v_dim;
            attention_of_shape(kv_types[t], shapes[i].head_dim, shapes[i].n_q, shapes[i].n);
        }
    value_dim = 0;
}

/* Rows in one tile, across the borders of vectors, pages and chunks, have the same bits as each of them alone. */
static void attention_tiles(void **state)
{
    static const struct { int rows, group, head_dim, last, latent_dim; } shapes[] = {
        {2, 1, 64, 17, 0}, {7, 1, 32, 64, 0}, {8, 8, 64, 260, 0}, {64, 1, 16, 300, 0}, {9, 7, 80, 130, 0},
        {16, 4, 96, 258, 0}, {5, 3, 128, 66, 0}, {33, 1, 48, 40, 0}, {13, 2, 64, 13, 0}, {3, 16, 256, 70, 0},
        {4, 16, 64, 258, 0}, {4, 16, 96, 258, 64}, {3, 20, 48, 66, 32}, {6, 3, 128, 260, 0}, {3, 20, 192, 66, 128}};
    (void)state;
    for (size_t t = 0; t < N_KV_TYPES; t++)
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
            for (int isa = 0; isa < PP_ISA_COUNT; isa++) {
                const int rows = shapes[i].rows, group = shapes[i].group, width = group * shapes[i].head_dim;
                const int v_width = shapes[i].latent_dim ? group * shapes[i].latent_dim : width;
                if (!is_tested((enum pp_isa)isa) || (t + i) % SHAPE_STEP)
                    continue;
                const struct pp_cpu_ops *ops = pp_cpu_ops((enum pp_isa)isa);
                latent_dim = shapes[i].latent_dim;
                struct cache c = make_cache(kv_types[t], shapes[i].head_dim, shapes[i].last, ops);
                float *q = random_floats(rows * width), *together = pp_malloc((size_t)(rows * width) * sizeof *q);
                float *alone = pp_malloc((size_t)width * sizeof *alone);
                int n[PP_TILE_QUERIES];
                for (int r = 0; r < rows; r++)
                    n[r] = shapes[i].last - rows + 1 + r;
                attend(ops, &c, group, rows, n, 0, q, together);
                for (int r = 0; r < rows; r++) {
                    attend(ops, &c, group, 1, &n[r], 0, q + r * width, alone);
                    if (memcmp(alone, together + r * v_width, (size_t)v_width * sizeof *alone) != 0)
                        fail_msg("%s kernels, KV %s, shape %zu: row %d has other bits in a tile",
                                 pp_isa_name((enum pp_isa)isa), pp_kv_type_name(kv_types[t]), i, r);
                }
                pp_free(q), pp_free(together), pp_free(alone);
                free_cache(&c);
            }
    latent_dim = 0;
}

/* Makes NaN of positions below `end`, which no row may read. */
static void spoil(const struct pp_cpu_ops *ops, struct cache *c, int end)
{
    float nothing[PP_MAX_HEAD_DIM];
    for (int d = 0; d < c->layout.head_dim; d++)
        nothing[d] = NAN;
    for (int i = 0; i < end; i++)
        ops->kv_store(&c->layout, c->pages[i / PP_PAGE_TOKENS], pp_kv_head_offset(&c->layout, 1, 2),
                      i % PP_PAGE_TOKENS, nothing, nothing);
}

struct window_case {
    int rows, group, head_dim, last, window;
};

/* Rows whose windows begin anywhere: the scalar kernels agree with the formula, the others have the same bits; a row
 * alone has the same bits as in its tile; nothing before the first window is read. first: the result of the scalar
 * kernels. */
static void window_case(const struct window_case *w, enum pp_kv_type type, enum pp_isa isa, float *first)
{
    const struct pp_cpu_ops *ops = pp_cpu_ops(isa);
    const int rows = w->rows, width = w->group * w->head_dim;
    struct cache c = make_cache(type, w->head_dim, w->last, ops);
    float *q = random_floats(rows * width), *together = pp_malloc((size_t)(rows * width) * sizeof *q);
    float *alone = pp_malloc((size_t)width * sizeof *alone);
    int n[PP_TILE_QUERIES] = {0};
    for (int r = 0; r < rows; r++)
        n[r] = w->last - rows + 1 + r;
    if (n[0] > w->window)
        spoil(ops, &c, n[0] - w->window);
    attend(ops, &c, w->group, rows, n, w->window, q, together);
    for (int r = 0; r < rows; r++) {
        attend(ops, &c, w->group, 1, &n[r], w->window, q + r * width, alone);
        if (memcmp(alone, together + r * width, (size_t)width * sizeof *alone) != 0)
            fail_msg("%s kernels, KV %s, window %d: row %d of %d has other bits in a tile", pp_isa_name(isa),
                     pp_kv_type_name(type), w->window, r, rows);
        double expected[PP_MAX_HEAD_DIM], tolerance = pp_kv_integers(&c.layout) ? 6e-2 : 1e-5;
        for (int h = 0; isa == PP_ISA_SCALAR && h < w->group; h++) {
            reference(&c, q + r * width + h * w->head_dim, h, n[r] > w->window ? n[r] - w->window : 0, n[r], expected);
            for (int d = 0; d < w->head_dim; d++)
                assert_near(together[r * width + h * w->head_dim + d], expected[d], tolerance);
        }
    }
    if (isa == PP_ISA_SCALAR)
        memcpy(first, together, (size_t)(rows * width) * sizeof *first);
    if (memcmp(first, together, (size_t)(rows * width) * sizeof *first) != 0)
        fail_msg("%s kernels, KV %s: other bits for %d rows of %d heads of %d, %d positions, window %d",
                 pp_isa_name(isa), pp_kv_type_name(type), rows, w->group, w->head_dim, w->last, w->window);
    pp_free(q), pp_free(together), pp_free(alone);
    free_cache(&c);
}

static void attention_windows(void **state)
{
    static const int windows[] = {1, 5, 16, 17, 63, 64, 65, 255, 256, 257, 1000};
    static const struct window_case shapes[] = {
        {.rows = 1, .group = 5, .head_dim = 64, .last = 300},   {.rows = 40, .group = 1, .head_dim = 32, .last = 275},
        {.rows = 16, .group = 4, .head_dim = 48, .last = 530},  {.rows = 9, .group = 3, .head_dim = 96, .last = 66},
        {.rows = 2, .group = 16, .head_dim = 64, .last = 257},  {.rows = 12, .group = 2, .head_dim = 128, .last = 290},
    };
    (void)state;
    float *first = pp_malloc((size_t)(PP_TILE_QUERIES * 128) * sizeof *first);
    for (size_t t = 0; t < N_KV_TYPES; t++)
        for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++)
            for (size_t j = 0; j < sizeof shapes / sizeof shapes[0]; j++) {
                if ((t + i + j) % SHAPE_STEP)
                    continue;
                struct window_case w = shapes[j];
                w.window = windows[i];
                for (int isa = 0; isa < PP_ISA_COUNT; isa++)
                    if (is_tested((enum pp_isa)isa))
                        window_case(&w, kv_types[t], (enum pp_isa)isa, first);
            }
    pp_free(first);
}

/* A position whose V is NaN spoils the rows that see it, and no others. */
static void broken_values(void **state)
{
    (void)state;
    for (size_t t = 0; t < N_KV_TYPES; t++)
        for (int isa = 0; isa < PP_ISA_COUNT; isa++) {
            if (!is_tested((enum pp_isa)isa))
                continue;
            const struct pp_cpu_ops *ops = pp_cpu_ops((enum pp_isa)isa);
            struct cache c = make_cache(kv_types[t], 32, 80, ops);
            float v[32] = {NAN}, *q = random_floats(3 * 32), out[3 * 32];
            static const int n[] = {69, 70, 71};
            ops->kv_store(&c.layout, c.pages[1], pp_kv_head_offset(&c.layout, 1, 2), 70 - PP_PAGE_TOKENS, c.k, v);
            attend(ops, &c, 1, 3, n, 0, q, out);
            for (int d = 0; d < 32; d++)
                assert_true(isfinite(out[d]) && isfinite(out[32 + d]));
            assert_true(isnan(out[64]));
            pp_free(q);
            free_cache(&c);
        }
}

/* Zeros of either sign are stored in the same way, as the same bytes. */
static void signed_zeros(void **state)
{
    (void)state;
    for (size_t t = 0; t < N_KV_TYPES; t++)
        for (int isa = 0; isa < PP_ISA_COUNT; isa++) {
            enum { HEAD = 128 };
            float zeros[3][HEAD] = {{0}}, value[HEAD] = {1};
            if (!is_tested((enum pp_isa)isa) || kv_types[t] == PP_KV_F32 || kv_types[t] == PP_KV_F16)
                continue;
            for (int i = 0; i < HEAD; i++) {
                zeros[1][i] = -0.0f;
                zeros[2][i] = i % 3 ? 0.0f : -0.0f;
            }
            const struct pp_cpu_ops *ops = pp_cpu_ops((enum pp_isa)isa);
            struct cache c = make_cache(kv_types[t], HEAD, 64, ops);
            uint8_t *first = pp_malloc(c.layout.page_bytes);
            assert_non_null(first);
            for (int z = 0; z < 3; z++) {
                ops->kv_store(&c.layout, c.pages[0], pp_kv_head_offset(&c.layout, 1, 2), 5, zeros[z], value);
                if (z == 0)
                    memcpy(first, c.pages[0], c.layout.page_bytes);
                assert_memory_equal(first, c.pages[0], c.layout.page_bytes);
            }
            pp_free(first);
            free_cache(&c);
        }
}

/* How many values share a scale: in Q8 those that are rotated together, up to 128; in the other types 32. */
static void shared_scales(void **state)
{
    static const struct { int head_dim, v_dim, want; } shapes[] = {
        {16, 16, 32},  {32, 32, 32},   {64, 64, 64},   {80, 80, 32},    {96, 96, 32},   {128, 128, 128},
        {160, 160, 32}, {192, 192, 64}, {192, 128, 64}, {256, 256, 128}, {512, 512, 128}};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct pp_kv_layout q8, q8_0;
        pp_kv_layout_init_values(&q8, PP_KV_Q8, 1, 1, shapes[i].head_dim, shapes[i].v_dim);
        pp_kv_layout_init_values(&q8_0, PP_KV_Q8_0, 1, 1, shapes[i].head_dim, shapes[i].v_dim);
        assert_int_equal(q8.scale_dims, shapes[i].want);
        assert_int_equal(q8_0.scale_dims, 32);
        assert_int_equal(q8_0.head_bytes - q8.head_bytes,
                         2 * PP_PAGE_TOKENS * (q8.head_pad + q8.v_pad) * (1.0 / 32 - 1.0 / q8.scale_dims));
    }
}

/* The largest possible sums, of either sign: all values of K and of queries are the largest of their block. */
static void largest_sums(void **state)
{
    enum { HEAD = 128, N = 40, QUERIES = 16 };
    float x[HEAD], minus[HEAD], *q = pp_malloc(QUERIES * HEAD * sizeof *q), out[QUERIES * HEAD];
    (void)state;
    for (int d = 0; d < HEAD; d++) {
        x[d] = d % 3 ? 2 : -2;
        minus[d] = -x[d];
    }
    for (int i = 0; i < QUERIES; i++)
        memcpy(q + i * HEAD, i % 2 ? x : minus, sizeof x);
    for (int isa = 0; isa < PP_ISA_COUNT; isa++) {
        if (!is_tested((enum pp_isa)isa))
            continue;
        const struct pp_cpu_ops *ops = pp_cpu_ops((enum pp_isa)isa);
        struct cache c = make_cache(PP_KV_Q8, HEAD, N, ops);
        for (int i = 0; i < N; i++)
            ops->kv_store(&c.layout, c.pages[0], pp_kv_head_offset(&c.layout, 1, 2), i, i == 7 ? x : minus,
                          i == 7 ? x : minus);
        const int n = N;
        attend(ops, &c, QUERIES, 1, &n, 0, q, out);
        for (int i = 0; i < QUERIES; i++)
            for (int d = 0; d < HEAD; d++)
                assert_near(out[i * HEAD + d], i % 2 ? x[d] : minus[d], 1e-3);
        free_cache(&c);
    }
    pp_free(q);
}

/* Copying a position to another one copies its keys and values. */
static void copied_positions(void **state)
{
    enum { HEAD = 64 };
    const struct pp_cpu_ops *ops = pp_cpu_ops(PP_ISA_SCALAR);
    (void)state;
    for (size_t t = 0; t < N_KV_TYPES; t++) {
        struct cache c = make_cache(kv_types[t], HEAD, 64, ops), d = make_cache(kv_types[t], HEAD, 64, ops);
        for (int i = 0; i < 20; i++) /* d: positions 3i of c, moved forward */
            pp_kv_copy_position(&c.layout, c.pages[0], 3 * i, d.pages[0], i);
        for (int i = 0; i < 20; i++) {
            memmove(d.k + i * HEAD, c.k + 3 * i * HEAD, HEAD * sizeof(float));
            memmove(d.v + i * HEAD, c.v + 3 * i * HEAD, HEAD * sizeof(float));
        }
        struct cache e = make_cache(kv_types[t], HEAD, 64, ops);
        for (int i = 0; i < 20; i++)
            ops->kv_store(&e.layout, e.pages[0], pp_kv_head_offset(&e.layout, 1, 2), i, d.k + i * HEAD, d.v + i * HEAD);
        size_t head = pp_kv_head_offset(&c.layout, 1, 2);
        assert_memory_equal(d.pages[0] + head, e.pages[0] + head, c.layout.head_bytes);
        free_cache(&c);
        free_cache(&d);
        free_cache(&e);
    }
}

/* --- an index -------------------------------------------------------------------------------------------------- */

/* Computes the scores of n positions with these kernels: [n], in room for a chunk; and the products with each head:
 * [n_heads][PP_KV_CHUNK]. */
static void index_of_shape(const struct pp_cpu_ops *ops, enum pp_kv_type type, int n_heads, int dim, int n,
                           const float *k, const float *q, const float *w, float *scores, float *dots)
{
    const uint8_t *heads[PP_CHUNK_PAGES] = {NULL};
    struct pp_kv_layout l;
    struct pp_attention a = {.n_rows = 1, .group = n_heads};
    pp_kv_layout_init_index(&l, type, 2, dim);
    void *memory = pp_aligned(64, pp_attention_bytes(&l, n_heads));
    assert_non_null(memory);
    assert_int_equal(l.head_bytes, (size_t)PP_PAGE_TOKENS * (size_t)l.head_pad * (type == PP_KV_F32 ? 4 : 2));
    pp_attention_init(&a, &l, n_heads, memory);
    for (int i = 0; i * PP_PAGE_TOKENS < n; i++) {
        uint8_t *page = pp_aligned(64, l.page_bytes);
        assert_non_null(page);
        memset(page, 0xA5, l.page_bytes);
        for (int p = i * PP_PAGE_TOKENS; p < n && p < (i + 1) * PP_PAGE_TOKENS; p++)
            ops->kv_store(&l, page, pp_kv_head_offset(&l, 1, 0), p % PP_PAGE_TOKENS, k + p * dim, NULL);
        heads[i] = page + pp_kv_head_offset(&l, 1, 0);
    }
    ops->index_query(&a, q);
    ops->index_scores(&a, w, heads, n, scores);
    ops->index_dots(&a, heads, n, dots);
    for (int i = 0; i < PP_CHUNK_PAGES; i++)
        pp_free(heads[i] ? (void *)(uintptr_t)(heads[i] - pp_kv_head_offset(&l, 1, 0)) : NULL);
    pp_free(memory);
}

static void index_scores(void **state)
{
    static const struct { int n_heads, dim, n; } shapes[] = {{64, 128, 256}, {32, 128, 70}, {1, 64, 1}, {3, 20, 200},
                                                             {7, 16, 17}, {128, 32, 33}, {5, 100, 64}};
    (void)state;
    for (int t = 0; t < 2; t++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            const int n_heads = shapes[s].n_heads, dim = shapes[s].dim, n = shapes[s].n;
            const enum pp_kv_type type = t ? PP_KV_Q8_0 : PP_KV_F32; /* as for caches of the other types */
            float *k = random_floats(n * dim), *q = random_floats(n_heads * dim), *w = random_floats(n_heads);
            float first[PP_KV_CHUNK] = {0}, scores[PP_KV_CHUNK];
            float *dots = pp_calloc((size_t)(2 * n_heads * PP_KV_CHUNK), sizeof *dots);
            float *first_dots = dots + n_heads * PP_KV_CHUNK;
            assert_non_null(dots);
            k[n * dim - 1] = NAN;
            for (int isa = 0; isa < PP_ISA_COUNT; isa++) {
                if (!is_tested((enum pp_isa)isa))
                    continue;
                index_of_shape(pp_cpu_ops((enum pp_isa)isa), type, n_heads, dim, n, k, q, w, scores, dots);
                assert_true(isnan(scores[n - 1]));
                if (isa == 0)
                    memcpy(first, scores, (size_t)n * sizeof *scores);
                if (isa == 0)
                    memcpy(first_dots, dots, (size_t)(n_heads * PP_KV_CHUNK) * sizeof *dots);
                for (int h = 0; h < n_heads; h++) {
                    const int at = h * PP_KV_CHUNK;
                    assert_true(isnan(dots[at + n - 1]));
                    if (memcmp(first_dots + at, dots + at, (size_t)(n - 1) * sizeof *dots) != 0)
                        fail_msg("%s kernels: other products", pp_isa_name((enum pp_isa)isa));
                }
                if (memcmp(first, scores, (size_t)(n - 1) * sizeof *scores) != 0)
                    fail_msg("%s kernels: other scores of %d heads of %d", pp_isa_name((enum pp_isa)isa), n_heads, dim);
            }
            for (int p = 0; p < n - 1; p++) {
                double want = 0, size = 0;
                for (int h = 0; h < n_heads; h++) {
                    double dot = 0, length = 0;
                    for (int d = 0; d < dim; d++) {
                        const float key = k[p * dim + d];
                        const double part = (double)q[h * dim + d] *
                                            (double)(t ? pp_f16_to_f32(pp_f32_to_f16(key)) : key);
                        dot += part;
                        length += fabs(part);
                    }
                    assert_near(first_dots[h * PP_KV_CHUNK + p], dot, 1e-6 * (1 + length));
                    want += (double)w[h] * fmax(0, dot);
                    size += fabs((double)w[h] * dot);
                }
                assert_near(first[p], want, 1e-6 * (1 + size));
            }
            pp_free(k);
            pp_free(q);
            pp_free(w);
            pp_free(dots);
        }
}

TEST_GROUP(ops)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norm_and_activations), cmocka_unit_test(convolutions),
        cmocka_unit_test(halves_to_floats), cmocka_unit_test(rope_and_hadamard),
        cmocka_unit_test(functions),            cmocka_unit_test(xielu_of_four_numbers),
                   cmocka_unit_test(layer_norms),
        cmocka_unit_test(attention_capped),     cmocka_unit_test(attention_alibi),
        cmocka_unit_test(attention_latent),     cmocka_unit_test(attention_other_values),
        cmocka_unit_test(rotations_same_bits),  cmocka_unit_test(attention_shapes),
        cmocka_unit_test(attention_tiles),      cmocka_unit_test(broken_values),
        cmocka_unit_test(copied_positions),     cmocka_unit_test(attention_windows),
        cmocka_unit_test(low_rank),             cmocka_unit_test(signed_zeros),
        cmocka_unit_test(shared_scales),        cmocka_unit_test(largest_sums),
        cmocka_unit_test(index_scores),
    };
    return RUN_WITH_BOTH_BUILDS("ops", tests);
}
