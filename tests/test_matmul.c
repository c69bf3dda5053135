/* test_matmul.c - matrix products: the scalar kernels against double precision, and every other kernel set against the
 * scalar results bit by bit. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/cpu/matmul.h"
#include "engine/cpu/stream_ahead.h"
#include "engine/quant.h"
#include "engine/safetensors.h"
#include "tests/kernel_builds.h"
#include "tests/support.h"

static const uint32_t packed_types[] = {
    PP_TYPE_Q8_0,    PP_TYPE_Q4_0,   PP_TYPE_Q4_K,   PP_TYPE_Q6_K,  PP_TYPE_Q4_1,    PP_TYPE_Q5_0,
    PP_TYPE_Q5_1,    PP_TYPE_IQ4_NL, PP_TYPE_MXFP4,  PP_TYPE_Q2_K,  PP_TYPE_Q3_K,    PP_TYPE_Q5_K,
    PP_TYPE_IQ4_XS,  PP_TYPE_TQ1_0,  PP_TYPE_TQ2_0,  PP_TYPE_IQ1_S, PP_TYPE_IQ1_M,   PP_TYPE_IQ2_XXS,
    PP_TYPE_IQ2_XS,  PP_TYPE_IQ2_S,  PP_TYPE_IQ3_XXS, PP_TYPE_IQ3_S,
};
/* Types with loops of their own, and one for each kind of the others and of their units (engine/cpu/unpack_units.h). */
static const uint32_t looped_types[] = {
    PP_TYPE_Q8_0,   PP_TYPE_Q4_0,   PP_TYPE_Q4_K, PP_TYPE_Q6_K, PP_TYPE_IQ4_XS,
    PP_TYPE_Q5_K,   PP_TYPE_IQ2_XS, PP_TYPE_Q2_K, PP_TYPE_Q3_K,
};
static const uint32_t float_types[] = {PP_TYPE_F32, PP_TYPE_F16, PP_TYPE_BF16};
enum {
    N_PACKED = sizeof packed_types / sizeof *packed_types,
    N_LOOPED = sizeof looped_types / sizeof *looped_types,
    N_FLOAT = 3,
};

/* --- material ----------------------------------------------------------------------------------------------------- */

static uint64_t rng_state;

static uint32_t rnd(void)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33);
}

static float rnd_float(void) /* the sum of four even random numbers, nearly normal, variance 1 */
{
    const uint32_t a = rnd(), b = rnd();
    const uint32_t sum = (a & 0x7fff) + (a >> 15 & 0x7fff) + (b & 0x7fff) + (b >> 15 & 0x7fff);
    return ((float)sum / 32768.0f - 2) * 1.7320508f;
}

enum kind { ORDINARY, EXTREME, SPARSE, SOLID /* sums as large as they get */, HEAVY /* of Q6_K, and so rounded */ };

/* Scales: ordinary ones about 0.01; else zeros, subnormals, the largest, negatives. */
static uint16_t rnd_scale(enum kind kind)
{
    static const uint16_t odd[] = {0, 0x8000, 1, 0x83ff, 0x7bff, 0xfbff, 0x3c00, 0x0400};
    if (kind == EXTREME)
        return odd[rnd() % 8];
    if (kind == SPARSE && rnd() % 4)
        return 0;
    return pp_f32_to_f16((rnd_float() + 4) * 0.01f);
}

static void put16(uint8_t *p, uint16_t h)
{
    memcpy(p, &h, sizeof h);
}

/* Puts the bits into the highest 4 bits of four words. */
static void scatter16(uint8_t *p, uint16_t h)
{
    for (int k = 0; k < 4; k++)
        p[2 * k + 1] = (uint8_t)((p[2 * k + 1] & 15) | (h >> 4 * k & 15) << 4);
}

/* A matrix in file format, with random contents. */
static uint8_t *make_weights(uint32_t type, int64_t n_rows, int64_t n_cols, enum kind kind)
{
    size_t row = pp_type_row_bytes(type, n_cols), size = row * (size_t)n_rows;
    uint8_t *w = pp_malloc(size + 1);
    assert_non_null(w);
    assert_int_not_equal(row, 0);
    for (size_t i = 0; i < size; i++) {
        static const uint8_t edges[] = {0x80, 0x7f, 0xff, 0x00};
        w[i] = kind == EXTREME ? edges[rnd() % 4] : kind == SOLID ? edges[2 + i / row % 2] : (uint8_t)rnd();
    }
    size_t block = (size_t)pp_type_info(type)->block_bytes;
    for (size_t at = 0; at < size; at += block) {
        float f = rnd_float();
        uint16_t h = type == PP_TYPE_F16 ? pp_f32_to_f16(f) : pp_f32_to_bf16(f);
        switch (type) {
        case PP_TYPE_F32:
            memcpy(w + at, &f, sizeof f);
            break;
        case PP_TYPE_F16:
        case PP_TYPE_BF16:
            put16(w + at, h);
            break;
        case PP_TYPE_Q4_K:
            put16(w + at + 2, rnd_scale(kind));
            put16(w + at, rnd_scale(kind));
            break;
        case PP_TYPE_Q6_K:
            put16(w + at + 208, rnd_scale(kind));
            for (int k = 128; k < 192 && kind == HEAVY; k++) /* weights from 16 on */
                w[at + (size_t)k] = 0xff;
            for (int k = 192; k < 208 && kind == HEAVY; k++)
                w[at + (size_t)k] = (uint8_t)(120 + rnd() % 8);
            break;
        case PP_TYPE_Q2_K:
            put16(w + at + 80, rnd_scale(kind));
            put16(w + at + 82, rnd_scale(kind));
            break;
        case PP_TYPE_Q3_K:
        case PP_TYPE_TQ1_0:
        case PP_TYPE_TQ2_0: /* at the end */
            put16(w + at + block - 2, rnd_scale(kind));
            break;
        case PP_TYPE_MXFP4:
            w[at] = kind == EXTREME ? (uint8_t)(rnd() % 253) : (uint8_t)(120 + rnd() % 4);
            break;
        case PP_TYPE_IQ1_M:
            scatter16(w + at + 48, rnd_scale(kind));
            break;
        case PP_TYPE_Q4_1:
        case PP_TYPE_Q5_1:
        case PP_TYPE_Q5_K:
            put16(w + at + 2, rnd_scale(kind));
            put16(w + at, rnd_scale(kind));
            break;
        default:
            put16(w + at, rnd_scale(kind));
        }
    }
    return w;
}

static uint8_t scratch[2 * PP_MATMUL_SCRATCH] __attribute__((aligned(64)));

/* Activations in both forms, in one allocation each. */
struct input {
    float *f32;
    int8_t *q;
    float *d;
    int32_t *sum;
    struct pp_acts acts;
};

/* Prepares activations; twins: in the order that a matrix of such a type reads, next to the usual one. */
static struct input make_input(int64_t m, int64_t n, bool twins, enum kind kind)
{
    struct input in = {0};
    int64_t padded = (n + 63) / 64 * 64, blocks = padded / 32 + 1;
    in.f32 = pp_calloc((size_t)(m * (n + 3)), sizeof *in.f32);
    in.q = pp_aligned(64, (size_t)(m * padded));
    in.d = pp_calloc((size_t)(m * blocks), sizeof *in.d);
    in.sum = pp_calloc((size_t)(m * blocks), sizeof *in.sum);
    assert_true(in.f32 && in.q && in.d && in.sum);
    for (int64_t i = 0; i < m; i++) {
        float *row = in.f32 + i * (n + 3);
        for (int64_t k = 0; k < n; k++) {
            row[k] = rnd_float();
            if (kind == EXTREME)
                row[k] = rnd() % 2 ? 1e4f : -1e4f;
            if (kind == SOLID || kind == HEAVY)
                row[k] = i % 3 == 1 ? -1.0f : 1.0f;
            if (kind == SPARSE && (k / 32) % 3)
                row[k] = 0;
        }
        pp_matmul_kernels(PP_ISA_SCALAR)->quantize(row, n, twins, in.q + i * padded, in.d + i * blocks,
                                                   in.sum + i * blocks);
    }
    in.acts = (struct pp_acts){.f32 = in.f32, .f32_stride = n + 3, .q = in.q, .q_stride = padded, .d = in.d,
                               .sum = in.sum, .b_stride = blocks};
    return in;
}

static void free_input(struct input *in)
{
    pp_free(in->f32);
    pp_free(in->q);
    pp_free(in->d);
    pp_free(in->sum);
}

/* The matrix in the form that kernels read; the caller frees *packed. */
static struct pp_matrix as_matrix(uint32_t type, const uint8_t *w, int64_t n_rows, int64_t n_cols, uint8_t **packed)
{
    struct pp_matrix matrix = {type, n_rows, n_cols, .data = w};
    *packed = NULL;
    if (pp_pack_needed(type)) {
        *packed = pp_aligned(64, pp_pack_bytes(type, n_rows, n_cols));
        assert_non_null(*packed);
        int64_t middle = n_rows / 32 * 16; /* packed in two parts, the second one first */
        pp_pack_rows(type, w, n_rows, n_cols, middle, n_rows, *packed);
        pp_pack_rows(type, w, n_rows, n_cols, 0, middle, *packed);
        matrix.data = *packed;
    }
    return matrix;
}

static bool same(float a, float b)
{
    return (isnan(a) && isnan(b)) || memcmp(&a, &b, sizeof a) == 0;
}

/* --- against double precision ------------------------------------------------------------------------------------- */

static void scalar_products_match_doubles(void **state)
{
    (void)state;
    rng_state = 1;
    for (int t = 0; t < N_PACKED + N_FLOAT; t++) {
        bool quantised = t < N_PACKED;
        uint32_t type = quantised ? packed_types[t] : float_types[t - N_PACKED];
        int64_t n = quantised ? 512 : 173, rows = 21, m = 3;
        uint8_t *w = make_weights(type, rows, n, ORDINARY), *packed;
        struct input in = make_input(m, n, pp_type_twins(type), ORDINARY);
        struct pp_matrix matrix = as_matrix(type, w, rows, n, &packed);
        float y[3 * 21], wf[512];
        pp_matmul_kernels(PP_ISA_SCALAR)->by_type[type](&matrix, 0, rows, &in.acts, m, y, rows, scratch);
        for (int64_t i = 0; i < m; i++)
            for (int64_t r = 0; r < rows; r++) {
                double expect = 0, size = 0;
                pp_dequantize_row(type, w + (size_t)r * pp_type_row_bytes(type, n), wf, n);
                for (int64_t k = 0; k < n; k++) {
                    double x = quantised ? (double)in.q[i * in.acts.q_stride + k] * in.d[i * in.acts.b_stride + k / 32]
                                         : in.f32[i * in.acts.f32_stride + k];
                    expect += wf[k] * x;
                    size += fabs(wf[k] * x);
                }
                if (fabs(y[i * rows + r] - expect) > 1e-6 * size)
                    fail_msg("%s row %d: %g, not %g", pp_type_info(type)->name, (int)r, (double)y[i * rows + r],
                             expect);
            }
        free_input(&in);
        pp_free(packed);
        pp_free(w);
    }
}

#if !defined(PP_KERNEL_TESTS) /* the cross-built tests contain no code that reads files */
static void reference_products(void **state)
{
    (void)state;
    const char *path = testdata("quants/matmul.safetensors");
    if (!path)
        return;
    struct pp_error err;
    struct pp_safetensors *file;
    assert_ok(pp_safetensors_open(path, &file, &err), err);
    enum { M = 7, N = 1024, ROWS = 512 };
    const float *x = pp_safetensors_find(file, "x")->data;
    struct input in = make_input(M, N, false, ORDINARY);
    static float y[M * ROWS];
    for (int isa = 0; isa < PP_ISA_COUNT; isa++) {
        int checked = 0;
        if (!pp_isa_runs((enum pp_isa)isa))
            continue;
        const struct pp_matmul_kernels *kernels = pp_matmul_kernels((enum pp_isa)isa);
        for (int t = 0; t < N_PACKED; t++) {
            char name[32];
            snprintf(name, sizeof name, "%s.blocks", pp_type_info(packed_types[t])->name);
            if (!pp_safetensors_find(file, name))
                continue;
            for (int i = 0; i < M; i++)
                kernels->quantize(x + i * N, N, pp_type_twins(packed_types[t]), in.q + i * in.acts.q_stride,
                                  in.d + i * in.acts.b_stride, in.sum + i * in.acts.b_stride);
            const uint8_t *w = pp_safetensors_find(file, name)->data;
            checked++;
            snprintf(name, sizeof name, "%s.y", pp_type_info(packed_types[t])->name);
            const double *expect = pp_safetensors_find(file, name)->data;
            uint8_t *packed;
            struct pp_matrix matrix = as_matrix(packed_types[t], w, ROWS, N, &packed);
            kernels->by_type[packed_types[t]](&matrix, 0, ROWS, &in.acts, M, y, ROWS, scratch);
            double error = 0, size = 0;
            for (int i = 0; i < M * ROWS; i++) {
                error += (y[i] - expect[i]) * (y[i] - expect[i]);
                size += expect[i] * expect[i];
            }
            if (sqrt(error / size) > 0.006)
                fail_msg("%s, %s: rms error %g", name, pp_isa_name((enum pp_isa)isa), sqrt(error / size));
            pp_free(packed);
        }
        assert_int_equal(checked, 5);
    }
    free_input(&in);
    pp_safetensors_close(file);
}
#endif

/* --- every set of kernels against the scalar bits ----------------------------------------------------------------- */

/* The prefetching that the next call uses: cycles through all ways, whatever this processor's own is. */
static enum pp_stream_way next_way(void)
{
    static int turn;
    return (enum pp_stream_way)(turn++ % PP_STREAM_WAYS);
}

/* Rows [0, n_rows) in two calls that meet at a multiple of 16, each with activations of its own. */
static void compare_calls(enum pp_isa isa, const struct pp_matrix *w, const struct pp_acts *first,
                          const struct pp_acts *second, int64_t m, const float *expect)
{
    pp_matmul_fn *fn = pp_matmul_kernels(isa)->by_type[w->type];
    int64_t rows = w->n_rows, stride = rows + 5, split = rows / 48 * 16;
    float *y = pp_calloc((size_t)(m * stride), sizeof *y);
    assert_non_null(y);
    const enum pp_stream_way here = pp_stream_way;
    pp_stream_way = next_way();
    fn(w, split, rows, second, m, y, stride, scratch);
    pp_stream_way = next_way();
    fn(w, 0, split, first, m, y, stride, scratch);
    pp_stream_way = here;
    for (int64_t i = 0; i < m; i++) {
        for (int64_t r = 0; r < rows; r++)
            if (!same(y[i * stride + r], expect[i * rows + r]))
                fail_msg("%s %s [%d x %d] m %d: act %d row %d: %.9g, not %.9g", pp_isa_name(isa),
                         pp_type_info(w->type)->name, (int)rows, (int)w->n_cols, (int)m, (int)i, (int)r,
                         (double)y[i * stride + r], (double)expect[i * rows + r]);
        for (int64_t r = rows; r < stride; r++)
            assert_true(y[i * stride + r] == 0);
    }
    pp_free(y);
}

/* The call reads weights in this way and has the larger scratch. */
static void compare_way(enum pp_isa isa, const struct pp_matrix *w, const struct pp_acts *x, int64_t m,
                        enum pp_weights_way way, const float *expect)
{
    struct pp_acts other = *x;
    other.way = way;
    other.scratch_bytes = sizeof scratch;
    compare_calls(isa, w, m % 2 ? x : &other, m % 2 ? &other : x, m, expect);
}

/* The same with activations that are arranged by lanes, which are all that is read. An arrangement of another number of
 * rows is not used. */
static void compare_by_lane(enum pp_isa isa, const struct pp_matrix *w, const struct pp_acts *x, int64_t m,
                            const float *expect)
{
    const struct pp_by_lane *lanes = &pp_matmul_kernels(isa)->by_lane;
    const int64_t n = w->n_cols, n_tiles = (m + lanes->rows - 1) / lanes->rows;
    const int64_t n_floats = pp_by_lane_floats(lanes->rows, m, n);
    float *arranged = pp_calloc((size_t)n_floats + 1, sizeof *arranged), *none = pp_calloc((size_t)n, sizeof *none);
    uint16_t *panel = pp_aligned(64, (size_t)pp_by_lane_panel(lanes->panel_rows, n) * sizeof *panel);
    assert_true(arranged && none && panel);
    for (int64_t k = 0; k < n_floats; k++)
        arranged[k] = NAN;
    for (int64_t k = 0; k < n; k++)
        none[k] = NAN;
    struct pp_acts by_lane = *x;
    struct pp_arranged to = {arranged, m + 1, panel};
    by_lane.by_lane = &to;
    compare_calls(isa, w, x, &by_lane, m, expect);
    for (int64_t t = n_tiles - 1; t >= 0; t--) {
        const int64_t row = t * lanes->rows, left = m - row;
        lanes->arrange(x->f32 + row * x->f32_stride, x->f32_stride, left < lanes->rows ? (int)left : lanes->rows, n, t,
                       n_tiles, arranged);
    }
    assert_true(arranged[n_floats] == 0);
    to.rows = m;
    by_lane.f32 = none;
    by_lane.f32_stride = 0;
    compare_calls(isa, w, x, &by_lane, m, expect);
    compare_calls(isa, w, &by_lane, &by_lane, m, expect);
    pp_free(arranged);
    pp_free(none);
    pp_free(panel);
}

static void compare_kernels(enum pp_isa isa, const struct pp_matrix *w, const struct pp_acts *x, int64_t m,
                            const float *expect)
{
    static int turn;
    const int first = PP_WAY_USUAL + 1, n = PP_WEIGHTS_WAYS - first, only = first + turn++ % n;
    for (int way = first; way < PP_WEIGHTS_WAYS; way++)
        if (m <= 2 || way == only)
            compare_way(isa, w, x, m, (enum pp_weights_way)way, expect);
    if (pp_matmul_kernels(isa)->by_lane.from && (w->type == PP_TYPE_F16 || w->type == PP_TYPE_BF16))
        compare_by_lane(isa, w, x, m, expect);
}

/* Emulators are slow: they test two of every seven large matrices, in rotation, so that every shape and type gets some
 * (a type has three to five). PIPPIN_TEST_SMALL: none, where they were tested for another processor. */
static bool is_left_out(int64_t rows, int64_t cols, int64_t most)
{
    const bool large = rows * cols > 40 * 1024 || most > 65;
#if defined(PP_KERNEL_TESTS)
    static int turn;
    if (large && !getenv("PIPPIN_TEST_SMALL"))
        return turn++ % 7 > 1;
#endif
    return large && getenv("PIPPIN_TEST_SMALL");
}

/* Whether the machine runs this set, and the type's products are not those of a lower set, which are tested for that
 * one. */
static bool is_tested(enum pp_isa isa, uint32_t type)
{
    if (!pp_isa_runs(isa))
        return false;
    for (int lower = 0; lower < (int)isa; lower++)
        if (pp_isa_runs((enum pp_isa)lower) &&
            pp_matmul_kernels((enum pp_isa)lower)->by_type[type] == pp_matmul_kernels(isa)->by_type[type])
            return false;
    return true;
}

static void check_shape(uint32_t type, int64_t rows, int64_t cols, const int *ms, int n_ms, enum kind kind)
{
    int64_t most = 0;
    for (int i = 0; i < n_ms; i++)
        most = ms[i] > most ? ms[i] : most;
    if (is_left_out(rows, cols, most))
        return;
    uint8_t *w = make_weights(type, rows, cols, kind), *packed;
    if (!pp_pack_needed(type)) /* mapped files promise no alignment */
        memmove(w + 1, w, pp_type_row_bytes(type, cols) * (size_t)rows);
    struct input in = make_input(most, cols, pp_type_twins(type) || rows % 2, kind);
    struct pp_matrix matrix = as_matrix(type, pp_pack_needed(type) ? w : w + 1, rows, cols, &packed);
    float *expect = pp_calloc((size_t)(most * rows), sizeof *expect);
    assert_non_null(expect);
    pp_matmul_kernels(PP_ISA_SCALAR)->by_type[type](&matrix, 0, rows, &in.acts, most, expect, rows, scratch);
    for (int isa = PP_ISA_SCALAR + 1; isa < PP_ISA_COUNT; isa++)
        for (int i = 0; i < n_ms && is_tested((enum pp_isa)isa, type); i++)
            compare_kernels((enum pp_isa)isa, &matrix, &in.acts, ms[i], expect);
    pp_free(expect);
    pp_free(packed);
    pp_free(w);
    free_input(&in);
}

#define CHECK(type, rows, cols, kind, ...)                                                    \
    do {                                                                                      \
        const int ms_[] = {__VA_ARGS__};                                                      \
        check_shape(type, rows, cols, ms_, (int)(sizeof ms_ / sizeof *ms_), kind);            \
    } while (0)

/* Numbers of activation rows just below, at and above what kernels take at once. */
#define ROW_COUNTS 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16, 23, 31, 32, 33, 64, 65

static void packed_products_have_the_scalar_bits(void **state)
{
    (void)state;
    rng_state = 2;
    for (int t = 0; t < N_PACKED; t++) {
        uint32_t type = packed_types[t];
        CHECK(type, 77, 512, ORDINARY, ROW_COUNTS);
        CHECK(type, 21, 768, ORDINARY, 1, 2, 3, 4, 5, 8, 9, 13, 33);
        CHECK(type, 19, 1280, ORDINARY, 127, 129, 257); /* more rows and columns than kernels take at once */
        CHECK(type, 131, 2048, ORDINARY, 66);
        CHECK(type, 1, 1280, ORDINARY, 1, 2, 8, 9);
        CHECK(type, 18, 8192 + 4096 + 256, ORDINARY, 1, 5, 23);
        CHECK(type, 37, 768, EXTREME, 1, 2, 3, 4, 5, 7, 8, 11, 17, 58);
        CHECK(type, 37, 768, SPARSE, 1, 4, 7, 33);
        CHECK(type, 20, 256, SOLID, 1, 2, 4, 9, 58);
        if (type == PP_TYPE_Q6_K)
            CHECK(type, 150, 512, HEAVY, 1, 2, 5, 9, 58);
        if (pp_type_info(type)->block_elements == 32) {
            CHECK(type, 35, 32, ORDINARY, ROW_COUNTS);
            CHECK(type, 33, 96, ORDINARY, ROW_COUNTS);
            CHECK(type, 17, 512 + 32, ORDINARY, 1, 4, 6, 130); /* a single block after full tiles */
        }
    }
    for (int t = 0; t < N_LOOPED; t++) {
        uint32_t type = looped_types[t];
        CHECK(type, 21, 768, ORDINARY, ROW_COUNTS);
        CHECK(type, 48, 256, ORDINARY, 512, 1);
        CHECK(type, 19, 1280, ORDINARY, 127, 129, 130, 257);
        CHECK(type, 163, 2048 + 256, ORDINARY, 1, 3, 12);
        CHECK(type, 9, 32768 + 256, ORDINARY, 1, 4, 8); /* columns for few rows, too */
        /* More rows and columns than a kernel keeps, and groups of weight rows that are read in parallel. */
        CHECK(type, 275, 1792, ORDINARY, 1, 2, 16, 31);
    }
}

static void float_products_have_the_scalar_bits(void **state)
{
    (void)state;
    static const int64_t cols[] = {1, 15, 16, 17, 64 + 3, 172, 256, 1280};
    rng_state = 3;
    for (int t = 0; t < N_FLOAT; t++) {
        for (int c = 0; c < 8; c++)
            CHECK(float_types[t], 37, cols[c], ORDINARY, ROW_COUNTS);
        CHECK(float_types[t], 50, 96, ORDINARY, 129, 512);
        CHECK(float_types[t], 163, 2048 + 256 + 5, ORDINARY, 1, 4, 9, 70);
        CHECK(float_types[t], 9, 8192 + 4096 + 7, ORDINARY, 1, 5, 70);
        CHECK(float_types[t], 19, 80, SPARSE, 1, 6);
    }
}

static void dot_has_the_scalar_bits(void **state)
{
    (void)state;
    rng_state = 4;
    float a[303], b[303];
    for (int n = 0; n <= 303; n++) {
        for (int k = 0; k < n; k++) {
            a[k] = rnd_float();
            b[k] = rnd_float();
        }
        float expect = pp_matmul_kernels(PP_ISA_SCALAR)->dot(a, b, n);
        for (int isa = 0; isa < PP_ISA_COUNT; isa++)
            if (pp_isa_runs((enum pp_isa)isa))
                assert_true(same(pp_matmul_kernels((enum pp_isa)isa)->dot(a, b, n), expect));
    }
}

/* --- activations -------------------------------------------------------------------------------------------------- */

static void compare_quantize_as(const float *x, int64_t n, bool twins)
{
    enum { MAX = 320 };
    int8_t q[2][MAX];
    float d[2][MAX / 32];
    int32_t sum[2][MAX / 32];
    int64_t blocks = (n + 31) / 32;
    pp_matmul_kernels(PP_ISA_SCALAR)->quantize(x, n, twins, q[0], d[0], sum[0]);
    for (int isa = PP_ISA_SCALAR + 1; isa < PP_ISA_COUNT; isa++) {
        if (!pp_isa_runs((enum pp_isa)isa))
            continue;
        memset(q[1], 99, MAX);
        pp_matmul_kernels((enum pp_isa)isa)->quantize(x, n, twins, q[1], d[1], sum[1]);
        assert_memory_equal(q[0], q[1], (size_t)blocks * 32);
        assert_memory_equal(sum[0], sum[1], (size_t)blocks * sizeof sum[0][0]);
        for (int64_t b = 0; b < blocks; b++)
            assert_true(same(d[0][b], d[1][b]));
    }
}

static void compare_quantize(const float *x, int64_t n)
{
    compare_quantize_as(x, n, false);
    compare_quantize_as(x, n, true);
}

static void activations_have_the_scalar_bits(void **state)
{
    (void)state;
    static const float scales[] = {1, 1e-20f, 1e30f, FLT_MAX / 8, 1e-37f, 1e-38f, 3e-39f, 1e-40f, 1e-44f, 0};
    rng_state = 5;
    float x[320];
    for (int n = 1; n <= 320; n += n < 70 ? 1 : 50)
        for (int s = 0; s < 10; s++) {
            for (int k = 0; k < n; k++)
                x[k] = rnd_float() * scales[(s + k / 32) % 10];
            compare_quantize(x, n);
        }
    for (int k = 0; k < 64; k++) /* ties: 127 makes the scale 1 */
        x[k] = k % 32 ? (float)(k - 32) + 0.5f : -127;
    compare_quantize(x, 64);
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        x[40] = bad[i];
        compare_quantize(x, 64);
        compare_quantize(x, 41);
    }
}

static void activations_follow_the_formula(void **state)
{
    (void)state;
    float x[96] = {0};
    int8_t q[96];
    float d[3];
    int32_t sum[3];
    x[3] = 254;
    x[5] = -3;   /* -1.5 to even */
    x[6] = 1;    /* 0.5 to even */
    x[70] = NAN;
    pp_matmul_kernels(PP_ISA_SCALAR)->quantize(x, 71, false, q, d, sum);
    assert_true(d[0] == 2 && d[1] == 0 && isnan(d[2]));
    assert_int_equal(q[3], 127);
    assert_int_equal(q[5], -2);
    assert_int_equal(q[6], 0);
    assert_int_equal(sum[0], 125);
    assert_int_equal(sum[1], 0);
    for (int k = 64; k < 96; k++)
        assert_int_equal(q[k], 0);
}

static void twins_have_one_scale(void **state)
{
    (void)state;
    float x[96] = {0};
    int8_t q[96];
    float d[3];
    int32_t sum[3];
    x[3] = 10;
    x[40] = -254;
    x[64] = 127; /* this block has no twin */
    pp_matmul_kernels(PP_ISA_SCALAR)->quantize(x, 96, true, q, d, sum);
    assert_true(d[0] == 2 && d[1] == 2 && d[2] == 1);
    assert_int_equal(q[3], 5);
    assert_int_equal(q[40], -127);
    assert_int_equal(q[64], 127);
    assert_int_equal(sum[0], 5);
    assert_int_equal(sum[1], -127);
    x[3] = INFINITY;
    pp_matmul_kernels(PP_ISA_SCALAR)->quantize(x, 96, true, q, d, sum);
    assert_true(isnan(d[0]) && isnan(d[1]) && d[2] == 1);
}

static void a_broken_activation_shows(void **state)
{
    (void)state;
    rng_state = 6;
    uint8_t *packed, *w = make_weights(PP_TYPE_Q4_K, 16, 256, ORDINARY);
    struct input in = make_input(1, 256, false, ORDINARY);
    struct pp_matrix matrix = as_matrix(PP_TYPE_Q4_K, w, 16, 256, &packed);
    in.f32[77] = NAN;
    for (int isa = 0; isa < PP_ISA_COUNT; isa++) {
        if (!pp_isa_runs((enum pp_isa)isa))
            continue;
        float y[16] = {0};
        const struct pp_matmul_kernels *kernels = pp_matmul_kernels((enum pp_isa)isa);
        kernels->quantize(in.f32, 256, false, in.q, in.d, in.sum);
        kernels->by_type[PP_TYPE_Q4_K](&matrix, 0, 16, &in.acts, 1, y, 16, scratch);
        for (int r = 0; r < 16; r++)
            assert_true(isnan(y[r]));
    }
    free_input(&in);
    pp_free(packed);
    pp_free(w);
}

TEST_GROUP(matmul)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalar_products_match_doubles),
#if !defined(PP_KERNEL_TESTS)
        cmocka_unit_test(reference_products),
#endif
        cmocka_unit_test(packed_products_have_the_scalar_bits),
        cmocka_unit_test(float_products_have_the_scalar_bits),
        cmocka_unit_test(dot_has_the_scalar_bits),
        cmocka_unit_test(activations_have_the_scalar_bits),
        cmocka_unit_test(activations_follow_the_formula),
        cmocka_unit_test(twins_have_one_scale),
        cmocka_unit_test(a_broken_activation_shows),
    };
    return RUN_WITH_BOTH_BUILDS("matmul", tests);
}
