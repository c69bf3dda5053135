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

/* A result that would be below 2^-126 if exponents had no end is a zero, also where the float's wider steps down there
 * round it up to 2^-126. The double is exact wherever that matters: w and x are bfloat16 (or x a float and w 1). */
static float fma_flushed(float w, float x, float sum)
{
    const float r = fmaf(w, x, sum);
    if (fabsf(r) > 0x1p-126f) /* as nearly all are */
        return r;
    if (fabsf(r) == 0x1p-126f && fabs((double)w * (double)x + (double)sum) < 0x1p-126 - 0x1p-151)
        return copysignf(0, r);
    return flush(r);
}

/* Floats of a block: both parts of its columns, zeros behind the last one. */
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

/* acc plus one product of a block. */
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

/* A block is read once for some rows of the others; sums so far are in y. */
static void matmul(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m, float *y,
                   int64_t y_stride, void *scratch)
{
    enum { SOME = 8 };
    const int64_t block = x->bf16_parts * PP_BF16_BLOCK;
    (void)scratch;
    for (int64_t i = 0, n; i < m; i += n) {
        n = m - i < SOME ? m - i : SOME;
        for (int64_t j = i; j < i + n; j++)
            memset(y + j * y_stride + row0, 0, (size_t)(row1 - row0) * sizeof *y);
        for (int64_t k = 0; k < w->n_cols; k += PP_BF16_BLOCK) {
            struct block xs[SOME], ws;
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
