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
    float r = fmaf(w, x, sum);
    if (fabsf(r) == 0x1p-126f && fabs((double)w * (double)x + (double)sum) < 0x1p-126 - 0x1p-151)
        return copysignf(0, r);
    return flush(r);
}

enum part { UPPER, LOWER };

static float weight_at(uint32_t type, const uint8_t *row, int64_t k, enum part part)
{
    uint16_t h;
    memcpy(&h, row + 2 * k, sizeof h);
    const float w = type == PP_TYPE_F16 ? pp_f16_to_f32(h) : pp_bf16_to_f32(h);
    const float upper = float_of(bits_of(w) & 0xffff0000);
    return flush(part == UPPER ? upper : w - upper);
}

/* Column k of the block at x. */
static float act_at(const uint16_t *x, int64_t k, enum part part)
{
    enum { HALF = PP_BF16_BLOCK / 2 };
    return flush(pp_bf16_to_f32(x[PP_BF16_BLOCK * part + 2 * (k % HALF) + k / HALF]));
}

/* acc plus one product of `live` columns of a block; w: of its first column. */
static float add_product(float acc, uint32_t type, const uint8_t *w, enum part of_w, const uint16_t *x, enum part of_x,
                         int64_t live)
{
    float sums[2] = {0, 0}; /* first, second */
    for (int64_t k = 0; k < PP_BF16_BLOCK; k++) {
        float *sum = &sums[k / (PP_BF16_BLOCK / 2)];
        *sum = k < live ? fma_flushed(weight_at(type, w, k, of_w), act_at(x, k, of_x), *sum) : *sum + 0.0f;
    }
    return fma_flushed(1, fma_flushed(1, sums[0], sums[1]), acc);
}

static float dot(uint32_t type, const uint8_t *w, const uint16_t *x, int parts, int64_t n)
{
    float acc = 0;
    for (int64_t k = 0; k < n; k += PP_BF16_BLOCK, x += parts * PP_BF16_BLOCK) {
        if (type == PP_TYPE_F16)
            acc = add_product(acc, type, w + 2 * k, LOWER, x, UPPER, n - k);
        acc = add_product(acc, type, w + 2 * k, UPPER, x, UPPER, n - k);
        if (parts > 1)
            acc = add_product(acc, type, w + 2 * k, UPPER, x, LOWER, n - k);
    }
    return acc;
}

static void matmul(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m, float *y,
                   int64_t y_stride, void *scratch)
{
    (void)scratch;
    for (int64_t row = row0; row < row1; row++)
        for (int64_t i = 0; i < m; i++)
            y[i * y_stride + row] = dot(w->type, (const uint8_t *)w->data + 2 * row * w->n_cols,
                                        x->bf16 + i * x->bf16_stride, x->bf16_parts, w->n_cols);
}

const struct pp_bf16_kernels pp_bf16_scalar = {.split = split_row, .join = join_row, .matmul = matmul};
