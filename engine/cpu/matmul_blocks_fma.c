/* matmul_blocks_fma.c - matmul_blocks_scalar.c compiled for processors with FMA: the same bits, with instructions
 * instead of calls of fmaf(). */
#if defined(__x86_64__)
#include "engine/cpu/matmul_sets.h"

#define pp_matmul_blocks_scalar pp_matmul_blocks_fma

#include "engine/cpu/matmul_blocks_scalar.c"

#else
typedef int pp_matmul_blocks_fma_is_for_x86_64;
#endif
