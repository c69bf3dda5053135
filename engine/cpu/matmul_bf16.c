/* matmul_bf16.c - the definition of the products with bfloat16 activations, and which set of kernels has which. */
#include "engine/cpu/matmul_bf16.h"

#include <math.h>
#include <string.h>

#include "engine/quant.h"

static const struct pp_bf16_kernels *const sets[PP_ISA_COUNT] = {
    [PP_ISA_SCALAR] = &pp_bf16_scalar,
#if defined(__x86_64__) && !defined(PP_SCALAR_ONLY)
    [PP_ISA_AVX2] = &pp_bf16_avx2,
    [PP_ISA_AVXVNNI] = &pp_bf16_avx2,
    [PP_ISA_AVX512] = &pp_bf16_avx2,
    [PP_ISA_AMX] = &pp_bf16_amx,
#endif
};

const struct pp_bf16_kernels *pp_bf16_kernels(enum pp_isa isa)
{
    return sets[isa] ? sets[isa] : &pp_bf16_scalar;
}

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

static float weight_at(const uint8_t *row, int64_t k)
{
    uint16_t h;
    memcpy(&h, row + 2 * k, sizeof h);
    return flush(pp_bf16_to_f32(h));
}

static float dot(const uint8_t *w, const uint16_t *x, int64_t n)
{
    float acc = 0;
    for (int64_t k = 0; k < n; k += PP_BF16_BLOCK) {
        float sums[2] = {0, 0}; /* even, odd */
        for (int64_t i = k; i < k + PP_BF16_BLOCK; i++)
            sums[i % 2] = i < n ? fma_flushed(weight_at(w, i), flush(pp_bf16_to_f32(x[i])), sums[i % 2])
                                : sums[i % 2] + 0.0f;
        acc = fma_flushed(1, fma_flushed(1, sums[0], sums[1]), acc);
    }
    return acc;
}

static void matmul(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m, float *y,
                   int64_t y_stride, void *scratch)
{
    (void)scratch;
    for (int64_t row = row0; row < row1; row++)
        for (int64_t i = 0; i < m; i++)
            y[i * y_stride + row] =
                dot((const uint8_t *)w->data + 2 * row * w->n_cols, x->bf16 + i * x->bf16_stride, w->n_cols);
}

static void round_row(const float *x, int64_t n, uint16_t *out)
{
    for (int64_t k = 0; k < n; k++)
        out[k] = pp_f32_to_bf16(x[k]);
    for (int64_t k = n; k % PP_BF16_BLOCK; k++)
        out[k] = 0;
}

const struct pp_bf16_kernels pp_bf16_scalar = {.round = round_row, .matmul = matmul};
