/* matmul_bf16_fma.c - matmul_bf16_scalar.c built for processors with FMA: it gives the same bits, but fmaf() is one
 * instruction, not a call. */
#if defined(__x86_64__)
#include "engine/cpu/matmul_bf16.h"

#define pp_bf16_scalar pp_bf16_fma

#include "engine/cpu/matmul_bf16_scalar.c"

#else
typedef int pp_matmul_bf16_fma_is_for_x86_64;
#endif
