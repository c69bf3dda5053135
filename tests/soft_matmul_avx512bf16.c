/* soft_matmul_avx512bf16.c - the AVX512-BF16 products over the software model of the instructions. */
#if defined(__x86_64__)
#include "tests/soft_avx512.h"

#define pp_bf16_avx512 pp_bf16_avx512_soft
#include "engine/cpu/matmul_avx512bf16.c"
#endif
