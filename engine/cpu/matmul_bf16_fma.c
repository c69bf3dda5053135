/* matmul_bf16_fma.c - matmul_bf16_scalar.c for processors that multiply and add in one instruction:
 * the same bits, without a call of fmaf() for each of them. */
#if defined(__x86_64__)
#include "engine/cpu/matmul_bf16.h"

#define pp_bf16_scalar pp_bf16_fma

#include "engine/cpu/matmul_bf16_scalar.c"

#else
typedef int pp_matmul_bf16_fma_is_for_x86_64;
#endif
