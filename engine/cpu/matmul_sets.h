/* matmul_sets.h - the kernel sets behind pp_matmul_kernels(), one per instruction set. */
#ifndef PP_CPU_MATMUL_SETS_H
#define PP_CPU_MATMUL_SETS_H

#include "engine/cpu/matmul.h"

extern const struct pp_matmul_kernels pp_matmul_scalar;
#if defined(__x86_64__)
extern const struct pp_matmul_kernels pp_matmul_avx2;
extern const struct pp_matmul_kernels pp_matmul_avxvnni;
extern const struct pp_matmul_kernels pp_matmul_avx512;
extern const struct pp_matmul_kernels pp_matmul_amx;
#endif
#if defined(__aarch64__)
extern const struct pp_matmul_kernels pp_matmul_neon;
extern const struct pp_matmul_kernels pp_matmul_dotprod;
extern const struct pp_matmul_kernels pp_matmul_i8mm;
#endif

#endif
