/* soft_matmul_avx512.c - the AVX-512 products over the software model of the instructions. */
#if defined(__x86_64__)
#include "tests/soft_avx512.h"

#define pp_matmul_avx512 pp_matmul_avx512_soft
#define pp_units_of_avx512 pp_units_of_avx512_soft
#include "engine/cpu/matmul_avx512.c"

/* Chooses the strips of other processors than this one, with whose strips the real kernels are tested. */
__attribute__((constructor)) static void choose_other_strips(void)
{
    strip_cols = strip_cols == STRIP_COLS ? NARROW_COLS : STRIP_COLS;
}
#endif
