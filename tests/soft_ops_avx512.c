/* soft_ops_avx512.c - the AVX-512 operations over the software model of the instructions. */
#if defined(__x86_64__)
#include "tests/soft_avx512.h"

#define pp_ops_avx512 pp_ops_avx512_soft
#include "engine/cpu/ops_avx512.c"
#endif
