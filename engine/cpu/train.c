/* train.c - which build of training's kernels belongs to which kernel set. */
#include "engine/cpu/train.h"

#include "engine/cpu/train_tables.h"

static const struct pp_train_ops *const tables[PP_ISA_COUNT] = {
#if defined(__x86_64__) && !defined(PP_SCALAR_ONLY)
    [PP_ISA_AVX2] = &pp_train_avx2,
    [PP_ISA_AVXVNNI] = &pp_train_avx2,
    [PP_ISA_AVX512] = &pp_train_avx512,
    [PP_ISA_AMX] = &pp_train_avx512,
#endif
#if defined(__aarch64__) && !defined(PP_SCALAR_ONLY)
    [PP_ISA_NEON] = &pp_train_neon,
    [PP_ISA_DOTPROD] = &pp_train_neon,
    [PP_ISA_I8MM] = &pp_train_neon,
#endif
};

const struct pp_train_ops *pp_train_ops(enum pp_isa isa)
{
    return tables[isa] ? tables[isa] : PP_BY_FMA(&pp_train_scalar, &pp_train_fma);
}
