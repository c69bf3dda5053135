/* matmul_bf16.c - which set of kernels multiplies with bfloat16 activations how. */
#include "engine/cpu/matmul_bf16.h"

#include "engine/quant.h"

static const struct pp_bf16_kernels *const sets[PP_ISA_COUNT] = {
#if defined(__x86_64__) && !defined(PP_SCALAR_ONLY)
    [PP_ISA_AVX2] = &pp_bf16_avx2,
    [PP_ISA_AVXVNNI] = &pp_bf16_avx2,
    [PP_ISA_AVX512] = &pp_bf16_avx2,
    [PP_ISA_AMX] = &pp_bf16_amx,
#endif
};

const struct pp_bf16_kernels *pp_bf16_kernels(enum pp_isa isa)
{
    return sets[isa] ? sets[isa] : PP_BY_FMA(&pp_bf16_scalar, &pp_bf16_fma);
}

void pp_bf16_join(const uint16_t *in, int64_t n, int parts, float *x)
{
    enum { HALF = PP_BF16_BLOCK / 2 };
    for (int64_t k = 0; k < n; k++) {
        const uint16_t *at = in + k / PP_BF16_BLOCK * PP_BF16_BLOCK * parts + 2 * (k % HALF) + k % PP_BF16_BLOCK / HALF;
        x[k] = pp_bf16_to_f32(at[0]) + (parts > 1 ? pp_bf16_to_f32(at[PP_BF16_BLOCK]) : 0.0f);
    }
}
