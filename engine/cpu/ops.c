#include "engine/cpu/ops.h"

#include "engine/cpu/ops_tables.h"

static const struct pp_cpu_ops *const tables[PP_ISA_COUNT] = {
    [PP_ISA_SCALAR] = &pp_ops_scalar,
#if defined(__x86_64__) && !defined(PP_SCALAR_ONLY)
    [PP_ISA_AVX2] = &pp_ops_avx2,
    [PP_ISA_AVXVNNI] = &pp_ops_avx2,
    [PP_ISA_AVX512] = &pp_ops_avx512,
    [PP_ISA_AMX] = &pp_ops_avx512,
#endif
};

const struct pp_cpu_ops *pp_cpu_ops(enum pp_isa isa)
{
    return tables[isa] ? tables[isa] : &pp_ops_scalar;
}
