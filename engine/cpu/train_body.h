/* train_body.h - the functions of train.h, written once over vec.h. Included by train_scalar.c, train_avx2.c and so on,
 * which define TRAIN_TABLE, the name of the table, and TILE_ROWS, the rows of a product that are kept in registers. */
#include "engine/cpu/train.h"
#include "engine/quant.h"

/* --- products ------------------------------------------------------------------------------------------------- */

/* Adds `depth` values of k to N rows by 16 columns of c, of which the first n exist; `begin`: starts from 0 instead of
 * c. b: [depth][16], with rows b_step apart. */
ALWAYS_INLINE void tile(const float *a, int64_t a_row, int64_t a_step, const float *b, int64_t b_step, int64_t depth,
                        float *c, int64_t c_row, int64_t n, bool begin, const int N)
{
    v16 sum[TILE_ROWS];
    for (int i = 0; i < N; i++)
        sum[i] = begin ? v_zero() : v_load_n(c + i * c_row, n, 0);
    for (int64_t k = 0; k < depth; k++) {
        v16 w = v_load(b + k * b_step);
        for (int i = 0; i < N; i++)
            sum[i] = v_fma(v_set1(a[i * a_row + k * a_step]), w, sum[i]);
    }
    for (int i = 0; i < N; i++)
        v_store_n(c + i * c_row, sum[i], n);
}

/* The same for rows row0 .. row1 - 1 of one panel of 16 columns. */
static void panel(const struct pp_product *p, int64_t row0, int64_t row1, int64_t k0, int64_t depth, const float *b,
                  int64_t b_step, int64_t col, int64_t n)
{
    const bool begin = k0 == 0 && !p->add;
    int64_t r = row0;
    for (; r + TILE_ROWS <= row1; r += TILE_ROWS) {
        const float *a = p->a + r * p->a_row + k0 * p->a_step;
        float *c = p->c + r * p->c_row + col;
        if (p->a_step == 1)
            tile(a, p->a_row, 1, b, b_step, depth, c, p->c_row, n, begin, TILE_ROWS);
        else
            tile(a, p->a_row, p->a_step, b, b_step, depth, c, p->c_row, n, begin, TILE_ROWS);
    }
    for (; r < row1; r++)
        tile(p->a + r * p->a_row + k0 * p->a_step, p->a_row, p->a_step, b, b_step, depth, p->c + r * p->c_row + col,
             p->c_row, n, begin, 1);
}

static bool aligned_to(const void *p, size_t n)
{
    return (uintptr_t)p % n == 0;
}

/* Values first .. first + n - 1 of row `row` of b as floats: in place, or converted to `buffer`. Tensors in a mapped
 * file may be unaligned. */
static const float *b_values(const struct pp_product *p, int64_t row, int64_t first, int64_t n, float *buffer)
{
    const uint8_t *at = (const uint8_t *)p->b + (size_t)row * pp_type_row_bytes(p->b_type, p->b_row) +
                        pp_type_row_bytes(p->b_type, first);
    if (p->b_type == PP_TYPE_F32 && aligned_to(at, sizeof(float)))
        return (const float *)(const void *)at;
    int64_t i = 0;
    if (p->b_type == PP_TYPE_F16 && aligned_to(at, sizeof(uint16_t)))
        for (const uint16_t *h = (const uint16_t *)(const void *)at; i + LANES <= n; i += LANES)
            v_store(buffer + i, v_load_f16(h + i));
    if (i < n)
        pp_dequantize_row(p->b_type, at + pp_type_row_bytes(p->b_type, i), buffer + i, n - i);
    return buffer;
}

/* Packs columns col0 .. col1 - 1 of b, values k0 .. k0 + depth - 1, times `scale`, into panels [depth][16],
 * padded with columns of zeros. pack_transposed() does so if b is stored transposed. */
static void pack_rows(const struct pp_product *p, int64_t col0, int64_t col1, int64_t k0, int64_t depth, float *out,
                      float *buffer)
{
    const v16 scale = v_set1(p->scale);
    for (int64_t k = 0; k < depth; k++) {
        const float *row = b_values(p, k0 + k, col0, col1 - col0, buffer);
        for (int64_t c = 0; c < col1 - col0; c += LANES)
            v_store(out + c * PP_PRODUCT_DEPTH + k * LANES, v_mul(v_load_n(row + c, col1 - col0 - c, 0), scale));
    }
}

static void pack_transposed(const struct pp_product *p, int64_t col0, int64_t col1, int64_t k0, int64_t depth,
                            float *out, float *buffer)
{
    for (int64_t c = col0; c < col1; c += LANES, out += LANES * PP_PRODUCT_DEPTH) {
        const float *rows[LANES] = {b_values(p, c, k0, depth, buffer)};
        int n = col1 - c < LANES ? (int)(col1 - c) : LANES;
        for (int j = 1; j < LANES; j++)
            rows[j] = j < n ? b_values(p, c + j, k0, depth, buffer + j * PP_PRODUCT_DEPTH) : rows[0];
        for (int64_t k = 0; k < depth; k++) {
            float *to = out + k * LANES;
            for (int j = 0; j < LANES; j++)
                to[j] = rows[j][k] * p->scale;
            for (int j = n; j < LANES; j++)
                to[j] = 0;
        }
    }
}

/* With few rows packing b would not pay; then it is used in place, if its form allows that. */
static bool used_in_place(const struct pp_product *p, int64_t n_rows, int64_t n_cols)
{
    return n_rows <= 4 * TILE_ROWS && !p->b_transposed && p->b_type == PP_TYPE_F32 && p->scale == 1.0f &&
           n_cols % LANES == 0 && aligned_to(p->b, sizeof(float));
}

static void product(const struct pp_product *p, int64_t row0, int64_t row1, int64_t col0, int64_t col1, float *scratch)
{
    float *buffer = scratch + PP_PRODUCT_DEPTH * 256;
    const bool in_place = used_in_place(p, row1 - row0, col1 - col0);
    for (int64_t k0 = 0; k0 < p->depth; k0 += PP_PRODUCT_DEPTH) {
        int64_t depth = p->depth - k0 < PP_PRODUCT_DEPTH ? p->depth - k0 : PP_PRODUCT_DEPTH;
        const float *b = in_place ? (const float *)p->b + k0 * p->b_row + col0 : scratch;
        if (!in_place)
            (p->b_transposed ? pack_transposed : pack_rows)(p, col0, col1, k0, depth, scratch, buffer);
        for (int64_t c = col0; c < col1; c += LANES)
            panel(p, row0, row1, k0, depth, in_place ? b + (c - col0) : b + (c - col0) * PP_PRODUCT_DEPTH,
                  in_place ? p->b_row : LANES, c, col1 - c);
    }
}

/* --- row by row ----------------------------------------------------------------------------------------------- */

static float largest(const float *x, int64_t n)
{
    v16 m = v_set1(-INFINITY);
    for (int64_t i = 0; i < n; i += LANES)
        m = v_max(m, v_load_n(x + i, n - i, -INFINITY));
    return v_largest(m);
}

/* x = exp(x - m), or x unchanged with `keep`; returns the sum of the exponentials. */
static float exponentials(float *x, int64_t n, float m, bool keep)
{
    v16 sum = v_zero();
    for (int64_t i = 0; i < n; i += LANES) {
        v16 e = v_exp(v_sub(v_load_n(x + i, n - i, -INFINITY), v_set1(m)));
        sum = v_add(sum, e);
        if (!keep)
            v_store_n(x + i, e, n - i);
    }
    return v_sum(sum);
}

static void multiply_by(float *x, int64_t n, float factor)
{
    for (int64_t i = 0; i < n; i += LANES)
        v_store_n(x + i, v_mul(v_load_n(x + i, n - i, 0), v_set1(factor)), n - i);
}

static void softmax(float *x, int64_t n)
{
    float sum = exponentials(x, n, largest(x, n), false);
    multiply_by(x, n, 1.0f / sum);
}

static double cross_entropy(float *logits, int64_t n, int32_t target, float weight, bool gradient)
{
    float m = largest(logits, n), wanted = logits[target];
    float sum = exponentials(logits, n, m, !gradient);
    if (gradient) {
        multiply_by(logits, n, weight / sum);
        logits[target] -= weight;
    }
    return log((double)sum) - ((double)wanted - (double)m);
}

static float dot(const float *a, const float *b, int64_t n)
{
    v16 sum = v_zero();
    for (int64_t i = 0; i < n; i += LANES)
        sum = v_fma(v_load_n(a + i, n - i, 0), v_load_n(b + i, n - i, 0), sum);
    return v_sum(sum);
}

static void softmax_backward(const float *p, float *dp, int64_t n, float scale)
{
    const v16 mean = v_set1(dot(p, dp, n)), s = v_set1(scale);
    for (int64_t i = 0; i < n; i += LANES) {
        v16 d = v_sub(v_load_n(dp + i, n - i, 0), mean);
        v_store_n(dp + i, v_mul(v_mul(v_load_n(p + i, n - i, 0), d), s), n - i);
    }
}

/* With s = 1 / (1 + exp(-g)): silu(g) = g s, and its derivative is s (1 + g (1 - s)). */
static void swiglu_backward(const float *g, const float *u, const float *dy, int64_t n, float *dg, float *du)
{
    const v16 one = v_set1(1.0f);
    for (int64_t i = 0; i < n; i += LANES) {
        v16 a = v_load_n(g + i, n - i, 0), d = v_load_n(dy + i, n - i, 0);
        v16 s = v_div(one, v_add(one, v_exp(v_sub(v_zero(), a))));
        v16 slope = v_mul(s, v_fma(a, v_sub(one, s), one));
        v_store_n(dg + i, v_mul(v_mul(d, v_load_n(u + i, n - i, 0)), slope), n - i);
        v_store_n(du + i, v_mul(d, v_mul(a, s)), n - i);
    }
}

/* With r = 1 / sqrt(mean(x^2) + eps): dx = r (w dy) - x r^3 mean(w dy x). */
static void rms_norm_backward(const float *x, const float *w, const float *dy, float eps, int64_t n, float *dx)
{
    v16 squares = v_zero(), product_sum = v_zero();
    for (int64_t i = 0; i < n; i += LANES) {
        v16 a = v_load_n(x + i, n - i, 0);
        squares = v_fma(a, a, squares);
        product_sum = v_fma(v_mul(v_load_n(w + i, n - i, 0), v_load_n(dy + i, n - i, 0)), a, product_sum);
    }
    float r = 1.0f / sqrtf(v_sum(squares) / (float)n + eps);
    const v16 r16 = v_set1(r), pull = v_set1(-r * r * r * (v_sum(product_sum) / (float)n));
    for (int64_t i = 0; i < n; i += LANES) {
        v16 d = v_mul(v_mul(v_load_n(w + i, n - i, 0), v_load_n(dy + i, n - i, 0)), r16);
        d = v_fma(v_load_n(x + i, n - i, 0), pull, d);
        v_store_n(dx + i, v_add(v_load_n(dx + i, n - i, 0), d), n - i);
    }
}

const struct pp_train_ops TRAIN_TABLE = {
    .product = product,
    .softmax = softmax,
    .cross_entropy = cross_entropy,
    .softmax_backward = softmax_backward,
    .swiglu_backward = swiglu_backward,
    .rms_norm_backward = rms_norm_backward,
};
