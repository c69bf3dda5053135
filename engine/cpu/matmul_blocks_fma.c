/* matmul_blocks_fma.c - matmul_blocks_scalar.c for processors that multiply and add in one instruction:
 * the same bits, without a call of fmaf() for each of them. */
#if defined(__x86_64__)
#include "engine/cpu/matmul_sets.h"

#define pp_matmul_blocks_scalar pp_matmul_blocks_fma

#include "engine/cpu/matmul_blocks_scalar.c"

#else
typedef int pp_matmul_blocks_fma_is_for_x86_64;
#endif
