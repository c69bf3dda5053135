#include "engine/cpu/ops.h"

#include "engine/cpu/ops_tables.h"

const struct pp_cpu_ops *pp_cpu_ops(enum pp_isa isa)
{
#if defined(__x86_64__) && !defined(PP_SCALAR_ONLY)
    if (isa == PP_ISA_AVX512)
        return &pp_ops_avx512;
    if (isa == PP_ISA_AVX2)
        return &pp_ops_avx2;
#endif
    (void)isa;
    return &pp_ops_scalar;
}
