/* matmul_bf16_scalar.c - the definition of the products with bfloat16 activations. */
#include <math.h>

#include "engine/cpu/bf16_split.h"
#include "engine/cpu/matmul_bf16.h"
#include "engine/quant.h"

PP_BF16_SPLIT_AND_JOIN(HALVES)

static float flush(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}

/* A fused multiply-add with subnormal results replaced by zeros. They are detected after rounding, as if exponents were
 * unbounded: so a result just below 2^-126 also becomes zero if fmaf(), whose steps are wider among subnormals, rounds
 * it up to 2^-126. The sum in double precision is exact wherever that matters, since w and x are bfloat16 numbers, or w
 * is 1 and x a float. */
static float fma_flushed(float w, float x, float sum)
{
    const float r = fmaf(w, x, sum);
    if (fabsf(r) > 0x1p-126f) /* nearly always */
        return r;
    if (fabsf(r) == 0x1p-126f && fabs((double)w * (double)x + (double)sum) < 0x1p-126 - 0x1p-151)
        return copysignf(0, r);
    return flush(r);
}

/* Both parts of a block's columns, as floats; columns past the last one are zeros. */
struct block {
    float upper[PP_BF16_BLOCK], lower[PP_BF16_BLOCK];
};

static void read_weights(uint32_t type, const uint8_t *row, int64_t live, struct block *w)
{
    *w = (struct block){0};
    for (int64_t k = 0; k < live && k < PP_BF16_BLOCK; k++) {
        uint16_t h;
        memcpy(&h, row + 2 * k, sizeof h);
        const float both = type == PP_TYPE_F16 ? pp_f16_to_f32(h) : pp_bf16_to_f32(h);
        const float upper = float_of(bits_of(both) & 0xffff0000);
        w->upper[k] = flush(upper);
        w->lower[k] = flush(both - upper);
    }
}

static void read_acts(const uint16_t *from, int parts, int64_t live, struct block *x)
{
    enum { HALF = PP_BF16_BLOCK / 2 };
    *x = (struct block){0};
    for (int64_t k = 0; k < live && k < PP_BF16_BLOCK; k++) {
        const uint16_t *at = from + 2 * (k % HALF) + k / HALF;
        x->upper[k] = flush(float_of((uint32_t)at[0] << 16));
        if (parts > 1)
            x->lower[k] = flush(float_of((uint32_t)at[PP_BF16_BLOCK] << 16));
    }
}

/* Adds one product of a block to acc: w and x are the parts that are multiplied, [PP_BF16_BLOCK]. */
static float add_product(float acc, const float *w, const float *x)
{
    enum { HALF = PP_BF16_BLOCK / 2 };
    float first = 0, second = 0;
    for (int k = 0; k < HALF; k++) {
        first = fma_flushed(w[k], x[k], first);
        second = fma_flushed(w[HALF + k], x[HALF + k], second);
    }
    return fma_flushed(1, fma_flushed(1, first, second), acc);
}

static float add_products(float acc, uint32_t type, const struct block *w, const struct block *x, int parts)
{
    if (type == PP_TYPE_F16)
        acc = add_product(acc, w->lower, x->upper);
    acc = add_product(acc, w->upper, x->upper);
    return parts > 1 ? add_product(acc, w->upper, x->lower) : acc;
}

/* For up to MAX_ACTS activation rows at a time, each block of activations is read once for all weight rows, and each
 * block of weights once for these activation rows; y holds the sums of the blocks before. */
static void matmul(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m, float *y,
                   int64_t y_stride, void *scratch)
{
    enum { MAX_ACTS = 8 };
    const int64_t block = x->bf16_parts * PP_BF16_BLOCK;
    (void)scratch;
    for (int64_t i = 0, n; i < m; i += n) {
        n = m - i < MAX_ACTS ? m - i : MAX_ACTS;
        for (int64_t j = i; j < i + n; j++)
            memset(y + j * y_stride + row0, 0, (size_t)(row1 - row0) * sizeof *y);
        for (int64_t k = 0; k < w->n_cols; k += PP_BF16_BLOCK) {
            struct block xs[MAX_ACTS], ws;
            for (int64_t j = 0; j < n; j++)
                read_acts(x->bf16 + (i + j) * x->bf16_stride + k / PP_BF16_BLOCK * block, x->bf16_parts, w->n_cols - k,
                          &xs[j]);
            for (int64_t row = row0; row < row1; row++) {
                read_weights(w->type, (const uint8_t *)w->data + 2 * (row * w->n_cols + k), w->n_cols - k, &ws);
                for (int64_t j = 0; j < n; j++) {
                    float *sum = &y[(i + j) * y_stride + row];
                    *sum = add_products(*sum, w->type, &ws, &xs[j], x->bf16_parts);
                }
            }
        }
    }
}

const struct pp_bf16_kernels pp_bf16_scalar = {.split = split_row, .join = join_row, .matmul = matmul};
