/* soft_sets.h - kernel sets over the software model of their instructions (soft_avx512.h), with the interface of the
 * real ones. A test file that includes this header first compares them with the scalar bits, on any x86-64 with
 * AVX2. */
#ifndef PP_TESTS_SOFT_SETS_H
#define PP_TESTS_SOFT_SETS_H

#include "engine/cpu/isa.h"
#include "engine/cpu/matmul.h"
#include "engine/cpu/ops.h"
#include "engine/cpu/train.h"
#include "tests/support.h"

#if defined(__x86_64__)
extern const struct pp_matmul_kernels pp_matmul_avxvnni_soft, pp_matmul_avx512_soft, pp_matmul_amx_soft;
extern const struct pp_cpu_ops pp_ops_avxvnni_soft, pp_ops_avx512_soft, pp_ops_amx_soft;
extern const struct pp_train_ops pp_train_avx512_soft;
#endif

__attribute__((unused)) static const struct pp_matmul_kernels *soft_matmul_kernels(enum pp_isa isa)
{
    switch (isa) {
    case PP_ISA_SCALAR:
        return pp_matmul_kernels(PP_ISA_SCALAR);
#if defined(__x86_64__)
    case PP_ISA_AVXVNNI:
        return pp_isa_runs(PP_ISA_AVX2) ? &pp_matmul_avxvnni_soft : NULL;
    case PP_ISA_AVX512:
        return pp_isa_runs(PP_ISA_AVX2) ? &pp_matmul_avx512_soft : NULL;
    case PP_ISA_AMX:
        return pp_isa_runs(PP_ISA_AVX2) ? &pp_matmul_amx_soft : NULL;
#endif
    default:
        return NULL;
    }
}

__attribute__((unused)) static const struct pp_cpu_ops *soft_cpu_ops(enum pp_isa isa)
{
    switch (isa) {
#if defined(__x86_64__)
    case PP_ISA_AVXVNNI:
        return &pp_ops_avxvnni_soft;
    case PP_ISA_AVX512:
        return &pp_ops_avx512_soft;
    case PP_ISA_AMX:
        return &pp_ops_amx_soft;
#endif
    default:
        return pp_cpu_ops(PP_ISA_SCALAR);
    }
}

__attribute__((unused)) static const struct pp_train_ops *soft_train_ops(enum pp_isa isa)
{
#if defined(__x86_64__)
    if (isa == PP_ISA_AVX512)
        return &pp_train_avx512_soft;
#endif
    return pp_train_ops(isa == PP_ISA_AMX ? PP_ISA_SCALAR : isa);
}

__attribute__((unused)) static bool soft_isa_runs(enum pp_isa isa)
{
    return soft_matmul_kernels(isa) != NULL;
}

/* Macros with an argument, so that structs with these names are not renamed. */
#define pp_isa_runs(isa) soft_isa_runs(isa)
#define pp_matmul_kernels(isa) soft_matmul_kernels(isa)
#define pp_cpu_ops(isa) soft_cpu_ops(isa)
#define pp_train_ops(isa) soft_train_ops(isa)

/* Names of groups begin with soft_: soft_matmul for matmul, and so on. */
#undef TEST_GROUP
#define TEST_GROUP(id)                                                                                       \
    static int run_soft_##id(void);                                                                          \
    static struct test_group group_soft_##id = {.name = "soft_" #id, .run = run_soft_##id};                  \
    __attribute__((constructor)) static void register_soft_##id(void) { test_register(&group_soft_##id); }   \
    static int run_soft_##id(void)

#endif
