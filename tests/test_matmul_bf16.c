/* test_matmul_bf16.c - products of F16 and BF16 weights with activations in one or two bfloat16 parts: the definition
 * against values worked out by hand and against double precision, every other set against its bits. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/cpu/matmul_bf16.h"
#include "engine/quant.h"
#include "tests/kernel_builds.h"
#include "tests/support.h"

#if defined(__x86_64__)
extern const struct pp_bf16_kernels pp_bf16_amx_soft, pp_bf16_avx512_soft; /* built with software models of the
                                                                              instructions */
#endif

static uint64_t rng_state;
static uint8_t scratch[PP_MATMUL_SCRATCH] __attribute__((aligned(64)));

static uint32_t rnd(void)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33);
}

/* The i-th set besides the scalar one; NULL: there are no more. Some may be the same. */
static const struct pp_bf16_kernels *other_set(int i)
{
    static const struct pp_bf16_kernels *found[PP_ISA_COUNT + 2];
    int n = 0;
    for (int isa = PP_ISA_SCALAR + 1; isa < PP_ISA_COUNT; isa++)
        if (pp_isa_runs((enum pp_isa)isa) && pp_bf16_kernels((enum pp_isa)isa) != &pp_bf16_scalar)
            found[n++] = pp_bf16_kernels((enum pp_isa)isa);
#if defined(__x86_64__)
    if (pp_isa_runs(PP_ISA_AVX2)) {
        found[n++] = &pp_bf16_amx_soft;
        found[n++] = &pp_bf16_avx512_soft;
    }
#endif
    return i < n ? found[i] : NULL;
}

static bool same(float a, float b)
{
    return (isnan(a) && isnan(b)) || memcmp(&a, &b, sizeof a) == 0;
}

/* y = w x for one row of each by the definition; w: exact in its type. */
static float one_of(uint32_t type, int parts, const float *w, const float *x, int64_t n)
{
    uint16_t h[64], xb[128];
    float y;
    for (int64_t k = 0; k < n; k++)
        h[k] = type == PP_TYPE_F16 ? pp_f32_to_f16(w[k]) : pp_f32_to_bf16(w[k]);
    pp_bf16_scalar.split(x, n, parts, xb);
    const struct pp_matrix matrix = {type, 1, n, .data = h};
    const struct pp_acts acts = {.bf16 = xb, .bf16_stride = 128, .bf16_parts = parts};
    pp_bf16_scalar.matmul(&matrix, 0, 1, &acts, 1, &y, 1, scratch);
    return y;
}

static float one(const float *w, const float *x, int64_t n)
{
    return one_of(PP_TYPE_BF16, 1, w, x, n);
}

static void the_order_of_sums(void **state)
{
    (void)state;
    float w[64], x[64] = {0};
    for (int k = 0; k < 64; k++)
        w[k] = 1;
    x[0] = 1;
    x[16] = x[17] = 0x1p-24f;
    assert_true(one(w, x, 18) == 1 + 0x1p-23f); /* the small products are added to each other first */
    x[16] = 0;
    x[1] = 0x1p-24f;
    assert_true(one(w, x, 18) == 1); /* each is lost alone: one in the first half, one in the second */
    x[1] = x[17] = 0;
    x[32] = x[33] = 0x1p-24f;
    assert_true(one(w, x, 64) == 1 + 0x1p-23f); /* another block */
    x[0] = 1 + 0x1p-8f; /* rounds to the even 1 */
    x[32] = x[33] = 0;
    assert_true(one(w, x, 64) == 1);
    x[0] = 1 + 0x1.8p-7f;
    assert_true(one(w, x, 64) == 1 + 0x1p-6f);
}

/* The contribution of each part, and the product that is left out. */
static void the_parts(void **state)
{
    (void)state;
    const float w[] = {1 + 0x1p-10f}, x[] = {1 + 0x1p-12f}, fine[] = {1 + 0x1p-12f + 0x1p-22f}, ones[] = {1};
    assert_true(one_of(PP_TYPE_F16, 1, w, ones, 1) == 1 + 0x1p-10f);
    assert_true(one_of(PP_TYPE_F16, 1, w, x, 1) == 1 + 0x1p-10f);
    assert_true(one_of(PP_TYPE_BF16, 1, ones, x, 1) == 1);
    assert_true(one_of(PP_TYPE_BF16, 2, ones, x, 1) == 1 + 0x1p-12f);
    assert_true(one_of(PP_TYPE_BF16, 2, ones, fine, 1) == 1 + 0x1p-12f);
    assert_true(one_of(PP_TYPE_F16, 2, w, x, 1) == 1 + 0x1p-10f + 0x1p-12f); /* without their product, 2^-22 */
    const float below[] = {1 + 0x1.8p-8f}; /* 1 + 2^-7 - 2^-9 */
    assert_true(one_of(PP_TYPE_BF16, 2, ones, below, 1) == 1 + 0x1.8p-8f);
    /* Lower parts of weights come first: after 1 they would be lost one by one. */
    const float big[] = {1, 1 + 0x1p-10f}, beside[] = {0x1p+14f, 1};
    assert_true(one_of(PP_TYPE_F16, 2, big, beside, 2) == 0x1p+14f + 1 + 0x1p-10f);
    const float tiny[] = {0x1p-24f}, subnormal[] = {0x1.ffp-16f}, thousand[] = {1024};
    assert_true(one_of(PP_TYPE_F16, 2, tiny, thousand, 1) == 0x1p-14f);
    assert_true(one_of(PP_TYPE_F16, 2, subnormal, thousand, 1) == 0x1.ffp-6f);
}

/* Every F16 number is the sum of its parts. */
static void weights_lose_nothing(void **state)
{
    (void)state;
    const float x[] = {1};
    for (uint32_t h = 0; h < 0x10000; h++) {
        const float w[] = {pp_f16_to_f32((uint16_t)h)};
        if (isfinite(w[0]))
            assert_true(one_of(PP_TYPE_F16, 2, w, x, 1) == w[0]);
        else
            assert_true(!isfinite(one_of(PP_TYPE_F16, 2, w, x, 1)));
    }
}

static void large_activations(void **state)
{
    (void)state;
    const float w[] = {1}, half[] = {0.5f}, most[] = {FLT_MAX}, least[] = {-FLT_MAX}, infinite[] = {INFINITY};
    const float none[] = {NAN};
    for (int parts = 1; parts <= 2; parts++) {
        const float y = one_of(PP_TYPE_F16, parts, half, most, 1);
        assert_true(isfinite(y) && fabsf(y / FLT_MAX - 0.5f) < 0x1p-8f);
        assert_true(one_of(PP_TYPE_F16, parts, half, least, 1) == -y);
        assert_true(!isfinite(one_of(PP_TYPE_F16, parts, w, infinite, 1)));
        assert_true(isinf(one_of(PP_TYPE_BF16, 1, w, infinite, 1)));
        assert_true(isnan(one_of(PP_TYPE_F16, parts, w, none, 1)) && isnan(one_of(PP_TYPE_BF16, parts, w, none, 1)));
    }
}

static void subnormals_are_zeros(void **state)
{
    (void)state;
    const float tiny[] = {0x1p-127f}, small[] = {0x1p-126f}, large[] = {0x1p+100f}, half[] = {0.5f};
    assert_true(one(tiny, large, 1) == 0 && one(large, tiny, 1) == 0);
    assert_true(one(small, half, 1) == 0);
    assert_true(one(small, large, 1) == 0x1p-26f);
    const float w[] = {0x1p-126f, 0x1p-100f}, x[] = {1, 0x1p-49f};
    assert_true(one(w, x, 2) == 0x1.000002p-126f);
    const float v[17] = {0x1.8p-126f, [16] = -0x1p-126f}, ones[17] = {1, [16] = 1};
    assert_true(one(v, ones, 17) == 0);
    /* 2^-126 minus 0.75 units of 2^-150, which no float can represent, but which is less than the smallest normal
     * number. */
    const float a[] = {0x1p-126f, -0x1.8p-100f}, b[] = {1, 0x1p-51f};
    assert_true(one(a, b, 2) == 0);
    const float c[] = {0x1p-126f, -0x1p-100f}; /* half a unit: a tie, which goes to 2^-126 */
    assert_true(one(c, b, 2) == 0x1p-126f);
    const float without_end[] = {INFINITY}, zero[] = {0};
    assert_true(isnan(one(without_end, zero, 1)));
}

enum kind { ORDINARY, WIDE /* every exponent, NaN and infinity now and then */, TINY /* about the smallest ones */ };

static float rnd_float(enum kind kind)
{
    static const float odd[] = {0.0f, -0.0f, 0x1p-126f, -0x1p-126f, FLT_MAX, INFINITY, NAN, 0x1p-133f};
    float mantissa = 1 + (float)(rnd() & 0xffff) / 65536.0f;
    mantissa = rnd() % 2 ? -mantissa : mantissa;
    if (kind == ORDINARY)
        return mantissa * (float)(rnd() & 0xfff) / 4096.0f;
    if (kind == TINY)
        return ldexpf(mantissa, -60 - (int)(rnd() % 12));
    return rnd() % 500 ? ldexpf(mantissa, (int)(rnd() % 276) - 149) : odd[rnd() % 8];
}

struct problem {
    uint32_t type;
    int parts;
    int64_t rows, cols, m, stride;
    uint8_t *w;      /* at an odd address */
    float *x;        /* [m, cols] */
    uint16_t *xb;    /* [m, stride], in the form of the set compared last */
    float *expect;   /* [m, rows] by the definition */
};

static struct pp_acts acts_of(const struct problem *p)
{
    return (struct pp_acts){.bf16 = p->xb, .bf16_stride = p->stride, .bf16_parts = p->parts};
}

static void split_all(const struct pp_bf16_kernels *set, const struct problem *p)
{
    memset(p->xb, 0xff, (size_t)(p->m * p->stride) * sizeof *p->xb); /* NaN after the padding */
    for (int64_t i = 0; i < p->m; i++)
        set->split(p->x + i * p->cols, p->cols, p->parts, p->xb + i * p->stride);
}

static struct problem make_problem(uint32_t type, int parts, int64_t rows, int64_t cols, int64_t m, enum kind kind)
{
    struct problem p = {.type = type, .parts = parts, .rows = rows, .cols = cols, .m = m};
    p.stride = (cols + 31) / 32 * 32 * parts + 32;
    p.w = pp_malloc((size_t)(rows * cols * 2 + 1));
    p.x = pp_malloc((size_t)(m * cols) * sizeof *p.x);
    p.xb = pp_aligned(64, (size_t)(m * p.stride) * sizeof *p.xb);
    p.expect = pp_malloc((size_t)(m * rows) * sizeof *p.expect);
    assert_true(p.w && p.x && p.xb && p.expect);
    for (int64_t i = 0; i < rows * cols; i++) {
        const float w = rnd_float(kind);
        uint16_t h = type == PP_TYPE_F16 ? pp_f32_to_f16(w) : pp_f32_to_bf16(w);
        memcpy(p.w + 1 + 2 * i, &h, sizeof h);
    }
    for (int64_t i = 0; i < m * cols; i++)
        p.x[i] = rnd_float(kind);
    split_all(&pp_bf16_scalar, &p);
    const struct pp_matrix w = {type, rows, cols, .data = p.w + 1};
    const struct pp_acts acts = acts_of(&p);
    pp_bf16_scalar.matmul(&w, 0, rows, &acts, m, p.expect, rows, scratch);
    return p;
}

static void free_problem(struct problem *p)
{
    pp_free(p->w);
    pp_free(p->x);
    pp_free(p->xb);
    pp_free(p->expect);
}

static void compare(const struct pp_bf16_kernels *set, const struct problem *p, int64_t m)
{
    int64_t stride = p->rows + 3, split = p->rows / 48 * 16;
    float *y = pp_calloc((size_t)(m * stride), sizeof *y);
    assert_non_null(y);
    const struct pp_matrix w = {p->type, p->rows, p->cols, .data = p->w + 1};
    const struct pp_acts acts = acts_of(p);
    set->matmul(&w, split, p->rows, &acts, m, y, stride, scratch);
    set->matmul(&w, 0, split, &acts, m, y, stride, scratch);
    for (int64_t i = 0; i < m; i++) {
        for (int64_t r = 0; r < p->rows; r++)
            if (!same(y[i * stride + r], p->expect[i * p->rows + r]))
                fail_msg("%s [%d x %d], %d parts, m %d: act %d row %d: %a, not %a", pp_type_info(p->type)->name,
                         (int)p->rows, (int)p->cols, p->parts, (int)m, (int)i, (int)r,
                         (double)y[i * stride + r], (double)p->expect[i * p->rows + r]);
        for (int64_t r = p->rows; r < stride; r++)
            assert_true(y[i * stride + r] == 0);
    }
    pp_free(y);
}

static void check_shape(int64_t rows, int64_t cols, enum kind kind)
{
    static const int ms[] = {1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 23, 31, 32, 33, 49, 64};
    for (int which = 0; which < 4; which++) {
        struct problem p = make_problem(which % 2 ? PP_TYPE_F16 : PP_TYPE_BF16, 1 + which / 2, rows, cols, 64, kind);
        for (int i = 0; other_set(i); i++) {
            split_all(other_set(i), &p);
            for (size_t k = 0; k < sizeof ms / sizeof *ms; k++)
                compare(other_set(i), &p, ms[k]);
        }
        free_problem(&p);
    }
}

static void every_set_has_the_scalar_bits(void **state)
{
    (void)state;
    static const int cols[] = {1, 2, 15, 16, 31, 32, 33, 70, 96, 515};
    rng_state = 1;
    for (int i = 0; i < 10; i++)
        check_shape(37, cols[i], i % 2 ? ORDINARY : WIDE);
    check_shape(64, 160, ORDINARY);
    check_shape(1, 1100, WIDE);
    check_shape(50, 96, TINY);
    check_shape(50, 1024 + 32, ORDINARY);
    check_shape(17, 3000, ORDINARY);
}

/* What rounding costs at most, as a share of the terms' sizes: one part of x is good to 2^-8; two are to 2^-17, and of
 * F16 weights lower times lower is left out, which is up to 2^-7 times 2^-9. The rest is for sums. */
static void scalar_products_match_doubles(void **state)
{
    (void)state;
    rng_state = 2;
    for (int which = 0; which < 4; which++) {
        const uint32_t type = which % 2 ? PP_TYPE_F16 : PP_TYPE_BF16;
        const double most = which < 2 ? 0x1p-8 : type == PP_TYPE_F16 ? 0x1.4p-16 + 0x1p-20 : 0x1p-17 + 0x1p-20;
        struct problem p = make_problem(type, 1 + which / 2, 19, 173, 3, ORDINARY);
        for (int64_t i = 0; i < p.m; i++)
            for (int64_t r = 0; r < p.rows; r++) {
                double expect = 0, size = 0;
                for (int64_t k = 0; k < p.cols; k++) {
                    uint16_t h;
                    memcpy(&h, p.w + 1 + 2 * (r * p.cols + k), sizeof h);
                    const float w = type == PP_TYPE_F16 ? pp_f16_to_f32(h) : pp_bf16_to_f32(h);
                    double term = (double)w * p.x[i * p.cols + k];
                    expect += term;
                    size += fabs(term);
                }
                assert_true(fabs(p.expect[i * p.rows + r] - expect) < most * size);
            }
        free_problem(&p);
    }
}

/* Splitting and joining, for either pairing of columns. */
static void check_split(const struct pp_bf16_kernels *set, const float *x, int n, int parts, const float *expect)
{
    enum { MOST = 128 };
    uint16_t out[2 * MOST + 1], sorted[2][MOST];
    float joined[MOST + 1], in_place[MOST];
    const int padded = (n + 31) / 32 * 32;
    for (int k = 0; k <= parts * padded; k++)
        out[k] = 0x4d4d;
    joined[n] = 77;
    set->split(x, n, parts, out);
    assert_int_equal(out[parts * padded], 0x4d4d);
    set->join(out, n, parts, joined);
    assert_true(joined[n] == 77);
    for (int k = 0; k < n; k++)
        assert_true(same(joined[k], expect[k]));
    /* After x there are as many zeros as padding columns; -0 comes from x itself. */
    for (int part = 0; part < parts; part++) {
        int zeros = 0, others = 0;
        for (int k = 0; k < padded; k++)
            sorted[part][k] = out[k / 32 * 32 * parts + part * 32 + k % 32];
        for (int k = n / 32 * 32; k < padded; k++)
            zeros += sorted[part][k] == 0;
        for (int k = n / 32 * 32; k < n; k++)
            others += part == 0 && x[k] != 0 && fabsf(x[k]) > 0x1p-130f;
        assert_true(zeros >= padded - n && zeros <= padded - n / 32 * 32 - others);
    }
    memcpy(in_place, x, (size_t)n * sizeof *x);
    set->split(in_place, n, parts, (uint16_t *)(void *)in_place);
    if (n % 32 == 0)
        assert_memory_equal(in_place, out, (size_t)(parts * n) * sizeof *out);
}

static void every_set_splits_alike(void **state)
{
    (void)state;
    rng_state = 3;
    float x[100], joined[100];
    for (int n = 1; n <= 100; n++)
        for (int parts = 1; parts <= 2; parts++) {
            uint16_t out[256];
            for (int k = 0; k < n; k++) {
                uint32_t bits = rnd() * 2 + rnd() % 2;
                memcpy(x + k, &bits, sizeof bits);
                if (rnd() % 4 == 0)
                    x[k] = rnd_float(WIDE);
            }
            pp_bf16_scalar.split(x, n, parts, out);
            pp_bf16_scalar.join(out, n, parts, joined);
            check_split(&pp_bf16_scalar, x, n, parts, joined);
            for (int i = 0; other_set(i); i++)
                check_split(other_set(i), x, n, parts, joined);
            for (int k = 0; k < n; k++) {
                const bool cut = fabsf(x[k]) >= 0x1.ffp127f;
                const double most = (parts > 1 ? 0x1p-17 : 0x1p-8) * (cut ? 2 : 1);
                if (fabsf(x[k]) > 0x1.fffp127f && isfinite(x[k]))
                    continue; /* the sum of its parts may be infinite */
                if (isfinite(x[k]))
                    assert_true(fabs((double)joined[k] - x[k]) <= most * fabs((double)x[k]) + 0x1p-134);
                else
                    assert_true(same(joined[k], x[k]));
            }
        }
}

TEST_GROUP(matmul_bf16)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_order_of_sums),
        cmocka_unit_test(the_parts),
        cmocka_unit_test(weights_lose_nothing),
        cmocka_unit_test(large_activations),
        cmocka_unit_test(subnormals_are_zeros),
        cmocka_unit_test(scalar_products_match_doubles),
        cmocka_unit_test(every_set_splits_alike),
        cmocka_unit_test(every_set_has_the_scalar_bits),
    };
    return RUN_WITH_BOTH_BUILDS("matmul_bf16", tests);
}
