/* matmul_bf16.c - which kernels each kernel set uses for products with bfloat16 activations. */
#include "engine/cpu/matmul_bf16.h"

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
#if defined(__x86_64__) && !defined(PP_SCALAR_ONLY)
    if (isa == PP_ISA_AVX512 && pp_isa_multiplies_bf16())
        return &pp_bf16_avx512;
#endif
    return sets[isa] ? sets[isa] : PP_BY_FMA(&pp_bf16_scalar, &pp_bf16_fma);
}
