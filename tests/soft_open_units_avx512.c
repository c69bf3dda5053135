/* soft_open_units_avx512.c - opening for AVX-512 over the software model of the instructions. */
#if defined(__x86_64__)
#include "tests/soft_avx512.h"

#define pp_units_avx512 pp_units_avx512_soft
#include "engine/cpu/open_units_avx512.c"
#endif
