/* test_train_kernels.c - the kernels of training: all builds against the scalar one bit for bit, products against sums
 * in double precision, and backward halves against finite differences of their definitions in double precision. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/cpu/train.h"
#include "engine/quant.h"
#include "tests/gradients.h"
#include "tests/kernel_builds.h"
#include "tests/support.h"

/* --- operations by themselves --------------------------------------------------------------------------------- */

enum { N = 37 };

struct norm_case {
    double x[N], dy[N];
    float w[N];
};

static double norm_value(void *user)
{
    struct norm_case *c = user;
    double y[N], sum = 0;
    ref_norm(c->x, c->w, 1e-5, N, y);
    for (int i = 0; i < N; i++)
        sum += c->dy[i] * y[i];
    return sum;
}

static void norm_gradient(void **state)
{
    (void)state;
    struct norm_case c;
    float x[N], dy[N], dx[N];
    fill(x, N);
    fill(dy, N);
    fill(c.w, N);
    fill(dx, N);
    float before[N];
    memcpy(before, dx, sizeof dx);
    widen(c.x, x, N);
    widen(c.dy, dy, N);
    pp_train_ops(PP_ISA_SCALAR)->rms_norm_backward(x, c.w, dy, 1e-5f, N, dx);
    for (int i = 0; i < N; i++)
        assert_near(dx[i] - before[i], derivative(norm_value, &c, &c.x[i]), 1e-5);
}

struct swiglu_case {
    double g[N], u[N], dy[N];
};

static double swiglu_value(void *user)
{
    struct swiglu_case *c = user;
    double sum = 0;
    for (int i = 0; i < N; i++)
        sum += c->dy[i] * ref_silu(c->g[i]) * c->u[i];
    return sum;
}

static void swiglu_gradient(void **state)
{
    (void)state;
    struct swiglu_case c;
    float g[N], u[N], dy[N], dg[N];
    fill(g, N);
    fill(u, N);
    fill(dy, N);
    for (int i = 0; i < N; i++)
        g[i] *= 4;
    widen(c.g, g, N);
    widen(c.u, u, N);
    widen(c.dy, dy, N);
    pp_train_ops(PP_ISA_SCALAR)->swiglu_backward(g, u, dy, N, dg, dy); /* in place, as in training */
    for (int i = 0; i < N; i++) {
        assert_near(dg[i], derivative(swiglu_value, &c, &c.g[i]), 1e-5);
        assert_near(dy[i], derivative(swiglu_value, &c, &c.u[i]), 1e-5);
    }
}

static double cross_entropy_value(void *user)
{
    return 0.25 * ref_cross_entropy(user, N, 5);
}

static void cross_entropy_gradient(void **state)
{
    (void)state;
    float x[N], kept[N];
    double logits[N];
    const struct pp_train_ops *ops = pp_train_ops(PP_ISA_SCALAR);
    fill(x, N);
    for (int i = 0; i < N; i++)
        x[i] *= 9;
    memcpy(kept, x, sizeof x);
    widen(logits, x, N);
    assert_near(ops->cross_entropy(kept, N, 5, 0, false), ref_cross_entropy(logits, N, 5), 1e-5);
    assert_near(ops->cross_entropy(x, N, 5, 0.25f, true), ref_cross_entropy(logits, N, 5), 1e-5);
    for (int i = 0; i < N; i++)
        assert_near(x[i], derivative(cross_entropy_value, logits, &logits[i]), 1e-6);
}

/* --- products of any shape and order -------------------------------------------------------------------------- */

static double b_value(const float *b, const struct pp_product *p, int64_t k, int64_t n)
{
    return (double)(p->b_transposed ? b[n * p->b_row + k] : b[k * p->b_row + n]);
}

static void check_product(int64_t rows, int64_t cols, int64_t depth, uint32_t type, bool b_transposed,
                          bool a_transposed, bool add)
{
    struct pp_error err;
    const int64_t b_rows = b_transposed ? cols : depth, b_cols = b_transposed ? depth : cols;
    float *a = pp_malloc((size_t)(rows * depth) * sizeof *a), *b = pp_malloc((size_t)(b_rows * b_cols) * sizeof *b);
    float *c = pp_malloc((size_t)(rows * cols) * sizeof *c), *first = pp_malloc((size_t)(rows * cols) * sizeof *c);
    float *begin = pp_malloc((size_t)(rows * cols) * sizeof *c), *room = pp_malloc(PP_PRODUCT_SCRATCH * sizeof *room);
    uint8_t *q = pp_malloc((size_t)b_rows * pp_type_row_bytes(type, b_cols));
    assert_true(a && b && c && first && begin && room && q);
    fill(a, rows * depth);
    fill(b, b_rows * b_cols);
    fill(begin, rows * cols);
    assert_ok(pp_quantize_rows(type, b, q, b_rows, b_cols, NULL, &err), err);
    for (int64_t r = 0; r < b_rows; r++)
        pp_dequantize_row(type, q + (size_t)r * pp_type_row_bytes(type, b_cols), b + r * b_cols, b_cols);
    struct pp_product p = {.rows = rows, .cols = cols, .depth = depth, .a = a, .a_row = a_transposed ? 1 : depth,
                           .a_step = a_transposed ? rows : 1, .b = q, .b_type = type, .b_row = b_cols,
                           .b_transposed = b_transposed, .scale = add ? 1.0f : 0.5f, .c = c, .c_row = cols, .add = add};
    const int64_t strip = pp_type_info(type)->block_elements == 256 ? 256 : PP_PRODUCT_STRIP;
    for (int isa = 0; isa < PP_ISA_COUNT; isa++) {
        if (!pp_isa_runs((enum pp_isa)isa))
            continue;
        memcpy(c, begin, (size_t)(rows * cols) * sizeof *c);
        for (int64_t col = 0; col < cols; col += strip) /* in two uneven pieces */
            for (int64_t half = 0; half < 2; half++)
                pp_train_ops((enum pp_isa)isa)
                    ->product(&p, half ? rows / 3 : 0, half ? rows : rows / 3, col,
                              col + strip < cols ? col + strip : cols, room);
        if (isa == PP_ISA_SCALAR)
            memcpy(first, c, (size_t)(rows * cols) * sizeof *c);
        assert_memory_equal(c, first, (size_t)(rows * cols) * sizeof *c);
    }
    for (int64_t m = 0; m < rows; m++)
        for (int64_t n = 0; n < cols; n++) {
            double sum = add ? (double)begin[m * cols + n] : 0;
            for (int64_t k = 0; k < depth; k++)
                sum += (double)a[m * p.a_row + k * p.a_step] * (double)p.scale * b_value(b, &p, k, n);
            assert_near(first[m * cols + n], sum, 1e-4);
        }
    pp_free(a), pp_free(b), pp_free(c), pp_free(first), pp_free(begin), pp_free(room), pp_free(q);
}

static void products(void **state)
{
    (void)state;
    check_product(1, 1, 1, PP_TYPE_F32, false, false, false);
    check_product(7, 19, 5, PP_TYPE_F32, true, false, true);
    check_product(13, 70, 300, PP_TYPE_F32, false, true, true);
    check_product(40, 65, 257, PP_TYPE_F32, true, true, false);
    check_product(5, 48, 33, PP_TYPE_F32, false, false, true); /* b is used in place */
    check_product(29, 17, 40, PP_TYPE_F16, true, false, false);
    check_product(29, 96, 7, PP_TYPE_F16, false, false, false);
    check_product(11, 50, 96, PP_TYPE_BF16, true, false, false);
    check_product(11, 96, 50, PP_TYPE_BF16, false, false, true);
    check_product(9, 3, 320, PP_TYPE_Q8_0, true, false, true);
    check_product(9, 96, 10, PP_TYPE_Q8_0, false, false, false);
    check_product(8, 512, 6, PP_TYPE_Q4_K, false, false, false);
    check_product(8, 20, 512, PP_TYPE_Q6_K, true, false, false);
    check_product(8, 64, 64, PP_TYPE_Q4_0, false, false, false);
}

/* Operations on rows have the same bits in all builds. */
static void same_rows(void **state)
{
    (void)state;
    float x[N], w[N], d[N], g[N];
    fill(x, N), fill(w, N), fill(d, N), fill(g, N);
    float want[6][N], got[6][N];
    double want_loss = 0;
    for (int isa = 0; isa < PP_ISA_COUNT; isa++) {
        if (!pp_isa_runs((enum pp_isa)isa))
            continue;
        const struct pp_train_ops *o = pp_train_ops((enum pp_isa)isa);
        for (int i = 0; i < 6; i++)
            memcpy(got[i], d, sizeof d);
        o->softmax(got[0], N);
        double loss = o->cross_entropy(got[1], N, 3, 0.3f, true);
        o->softmax_backward(want[0], got[2], isa == PP_ISA_SCALAR ? 0 : N, 0.7f);
        o->swiglu_backward(g, x, d, N, got[3], got[4]);
        o->rms_norm_backward(x, w, d, 1e-5f, N, got[5]);
        if (isa == PP_ISA_SCALAR) {
            memcpy(want, got, sizeof got);
            o->softmax_backward(want[0], want[2], N, 0.7f);
            want_loss = loss;
            continue;
        }
        assert_memory_equal(got, want, sizeof got);
        assert_true(loss == want_loss);
    }
}

TEST_GROUP(train_kernels)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products),
        cmocka_unit_test(same_rows),
        cmocka_unit_test(norm_gradient),
        cmocka_unit_test(swiglu_gradient),
        cmocka_unit_test(cross_entropy_gradient),
    };
    random_from(1);
    return RUN_WITH_BOTH_BUILDS("train_kernels", tests);
}
