#include "engine/cpu/matmul.h"

#include "engine/cpu/matmul_sets.h"

const struct pp_matmul_kernels *pp_matmul_kernels(enum pp_isa isa)
{
    switch (isa) {
#if defined(__x86_64__) && !defined(PP_SCALAR_ONLY)
    case PP_ISA_AVX2:
        return &pp_matmul_avx2;
    case PP_ISA_AVX512:
        return &pp_matmul_avx512;
#endif
    default:
        return &pp_matmul_scalar;
    }
}
