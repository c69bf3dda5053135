/* test_ops.c - the operations of a forward pass: the fast builds against the scalar one bit for bit, and the scalar one
 * against formulas in double precision. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/cpu/ops.h"
#include "tests/support.h"

static uint32_t random_state = 1;

static float random_float(void) /* about -2 .. 2 */
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
            if (!pp_isa_runs((enum pp_isa)isa))
                continue;
            pp_cpu_ops((enum pp_isa)isa)->rms_norm(x, w, 1e-5f, n, b);
            assert_memory_equal(a, b, (size_t)n * 4);
        }
        for (int64_t i = 0; i < n; i++)
            x[i] *= i % 7 == 0 ? 60 : 1; /* also where exp saturates */
        scalar->swiglu(x, w, n, a);
        for (int64_t i = 0; i < n; i++)
            assert_near(a[i], (double)x[i] / (1 + exp(-(double)x[i])) * (double)w[i], 1e-5 * (1 + fabs((double)a[i])));
        for (int isa = 1; isa < PP_ISA_COUNT; isa++) {
            if (!pp_isa_runs((enum pp_isa)isa))
                continue;
            const struct pp_cpu_ops *fast = pp_cpu_ops((enum pp_isa)isa);
            fast->swiglu(x, w, n, b);
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

static void rope_and_hadamard(void **state)
{
    (void)state;
    for (int isa = 0; isa < PP_ISA_COUNT; isa++) {
        if (!pp_isa_runs((enum pp_isa)isa))
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
    for (int neox = 0; neox < 2; neox++) {
        float first[128], cs[128];
        for (int i = 0; i < 64; i++) {
            cs[2 * i] = cosf(0.37f * (float)i);
            cs[2 * i + 1] = sinf(0.37f * (float)i);
        }
        for (int isa = 0; isa < PP_ISA_COUNT; isa++) {
            if (!pp_isa_runs((enum pp_isa)isa))
                continue;
            float x[128];
            for (int i = 0; i < 128; i++)
                x[i] = sinf(1.7f * (float)i + 0.3f);
            pp_cpu_ops((enum pp_isa)isa)->rope(x, 128, neox, cs);
            pp_cpu_ops((enum pp_isa)isa)->hadamard(x, 128, 32);
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
    float *k, *v; /* [n, head_dim]: what was stored */
};

static struct cache make_cache(enum pp_kv_type type, int head_dim, int n, const struct pp_cpu_ops *ops)
{
    struct cache c;
    pp_kv_layout_init(&c.layout, type, 2, 3, head_dim);
    c.n_pages = (n + PP_PAGE_TOKENS - 1) / PP_PAGE_TOKENS;
    c.pages = pp_calloc((size_t)c.n_pages, sizeof *c.pages);
    for (int i = 0; i < c.n_pages; i++) {
        c.pages[i] = pp_aligned(64, c.layout.page_bytes);
        memset(c.pages[i], 0xA5, c.layout.page_bytes); /* what earlier users left must not matter */
    }
    random_state = 77;
    c.k = random_floats((int64_t)n * head_dim);
    c.v = random_floats((int64_t)n * head_dim);
    for (int i = 0; i < n; i++)
        ops->kv_store(&c.layout, c.pages[i / PP_PAGE_TOKENS], pp_kv_head_offset(&c.layout, 1, 2), i % PP_PAGE_TOKENS,
                      c.k + i * head_dim, c.v + i * head_dim);
    return c;
}

static void free_cache(struct cache *c)
{
    for (int i = 0; i < c->n_pages; i++)
        pp_free(c->pages[i]);
    pp_free(c->pages);
    pp_free(c->k);
    pp_free(c->v);
}

/* Softmax attention in double precision over the values that were stored. */
static void reference(const struct cache *c, const float *q, int n, double *out)
{
    int d = c->layout.head_dim;
    double *s = pp_malloc((size_t)n * sizeof *s), top = -INFINITY, total = 0;
    for (int i = 0; i < n; i++) {
        s[i] = 0;
        for (int j = 0; j < d; j++)
            s[i] += (double)q[j] * (double)c->k[i * d + j] / sqrt(d);
        if (s[i] > top)
            top = s[i];
    }
    for (int j = 0; j < d; j++)
        out[j] = 0;
    for (int i = 0; i < n; i++) {
        double p = exp(s[i] - top);
        total += p;
        for (int j = 0; j < d; j++)
            out[j] += p * (double)c->v[i * d + j];
    }
    for (int j = 0; j < d; j++)
        out[j] /= total;
    pp_free(s);
}

static void attention_of_shape(enum pp_kv_type type, int head_dim, int n_q, int n)
{
    size_t out_bytes = (size_t)(n_q * head_dim) * sizeof(float);
    float *first = NULL;
    struct pp_attention_scratch *scratch = pp_aligned(64, sizeof *scratch);
    for (int isa = 0; isa < PP_ISA_COUNT; isa++) {
        if (!pp_isa_runs((enum pp_isa)isa))
            continue;
        const struct pp_cpu_ops *ops = pp_cpu_ops((enum pp_isa)isa);
        struct cache c = make_cache(type, head_dim, n, ops);
        float *q = random_floats(n_q * head_dim), *out = pp_malloc(out_bytes);
        struct pp_attention a = {.kv = &c.layout, .pages = c.pages, .head_offset = pp_kv_head_offset(&c.layout, 1, 2),
                                 .q = q, .q_stride = head_dim, .n_q = n_q, .scale = 1 / sqrtf((float)head_dim),
                                 .n_kv = n, .tail_page = INT64_MAX, .out = out, .out_stride = head_dim,
                                 .scratch = scratch};
        memset(scratch, 0xFF, sizeof *scratch); /* NaN everywhere: nothing may be read that was not written */
        ops->attention(&a);
        if (isa == 0) {
            double expected[PP_MAX_HEAD_DIM], tolerance = type == PP_KV_F32 ? 1e-5 : type == PP_KV_F16 ? 2e-3 : 4e-2;
            for (int h = 0; h < n_q; h++) {
                reference(&c, q + h * head_dim, n, expected);
                for (int j = 0; j < head_dim; j++)
                    assert_near(out[h * head_dim + j], expected[j], tolerance);
            }
            first = out;
        } else {
            assert_memory_equal(first, out, out_bytes);
            pp_free(out);
        }
        pp_free(q);
        free_cache(&c);
    }
    pp_free(first);
    pp_free(scratch);
}

static void attention_shapes(void **state)
{
    static const int head_dims[] = {16, 24, 32, 64, 80, 96, 128, 256};
    static const int lengths_kv[] = {1, 2, 16, 17, 63, 64, 65, 255, 256, 257, 600};
    static const enum pp_kv_type types[] = {PP_KV_F32, PP_KV_F16, PP_KV_Q8_0};
    (void)state;
    for (size_t t = 0; t < 3; t++)
        for (size_t d = 0; d < sizeof head_dims / sizeof head_dims[0]; d++)
            for (size_t l = 0; l < sizeof lengths_kv / sizeof lengths_kv[0]; l++) {
                if (head_dims[d] > 96 && lengths_kv[l] > 257)
                    continue; /* the scalar build is slow */
                int n_q = (int)(1 + (d + l) % 5);
                attention_of_shape(types[t], head_dims[d], n_q, lengths_kv[l]);
            }
}

/* A position copied to another place gives what it gave before. */
static void copied_positions(void **state)
{
    static const enum pp_kv_type types[] = {PP_KV_F32, PP_KV_F16, PP_KV_Q8_0};
    const struct pp_cpu_ops *ops = pp_cpu_ops(PP_ISA_SCALAR);
    (void)state;
    for (int t = 0; t < 3; t++) {
        struct cache c = make_cache(types[t], 40, 64, ops), d = make_cache(types[t], 40, 64, ops);
        for (int i = 0; i < 20; i++) /* d: positions 3i of c, moved forward */
            pp_kv_copy_position(&c.layout, c.pages[0], 3 * i, d.pages[0], i);
        for (int i = 0; i < 20; i++) {
            memmove(d.k + i * 40, c.k + 3 * i * 40, 40 * sizeof(float));
            memmove(d.v + i * 40, c.v + 3 * i * 40, 40 * sizeof(float));
        }
        struct cache e = make_cache(types[t], 40, 64, ops);
        for (int i = 0; i < 20; i++)
            ops->kv_store(&e.layout, e.pages[0], pp_kv_head_offset(&e.layout, 1, 2), i, d.k + i * 40, d.v + i * 40);
        size_t head = pp_kv_head_offset(&c.layout, 1, 2);
        assert_memory_equal(d.pages[0] + head, e.pages[0] + head, c.layout.head_bytes);
        free_cache(&c);
        free_cache(&d);
        free_cache(&e);
    }
}

TEST_GROUP(ops)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norm_and_activations), cmocka_unit_test(rope_and_hadamard),
        cmocka_unit_test(rotations_same_bits),  cmocka_unit_test(attention_shapes),
        cmocka_unit_test(copied_positions),
    };
    return cmocka_run_group_tests_name("ops", tests, NULL, NULL);
}
