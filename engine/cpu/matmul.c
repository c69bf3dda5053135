#include "engine/cpu/matmul.h"

#include "engine/cpu/matmul_sets.h"

static const struct pp_matmul_kernels *const sets[PP_ISA_COUNT] = {
#if defined(__x86_64__) && !defined(PP_SCALAR_ONLY)
    [PP_ISA_AVX2] = &pp_matmul_avx2,
    [PP_ISA_AVXVNNI] = &pp_matmul_avxvnni,
    [PP_ISA_AVX512] = &pp_matmul_avx512,
    [PP_ISA_AMX] = &pp_matmul_amx,
#endif
#if defined(__aarch64__) && !defined(PP_SCALAR_ONLY)
    [PP_ISA_NEON] = &pp_matmul_neon,
    [PP_ISA_DOTPROD] = &pp_matmul_dotprod,
    [PP_ISA_I8MM] = &pp_matmul_i8mm,
#endif
};

const struct pp_matmul_kernels *pp_matmul_kernels(enum pp_isa isa)
{
    return isa == PP_ISA_SCALAR ? PP_BY_FMA(&pp_matmul_scalar, &pp_matmul_fma) : sets[isa];
}
