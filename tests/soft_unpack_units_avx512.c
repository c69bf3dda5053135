/* soft_unpack_units_avx512.c - unpacking for AVX-512, code books by gathers, over the software model of the
 * instructions. */
#if defined(__x86_64__)
#include "tests/soft_avx512.h"

#define pp_units_avx512 pp_units_avx512_soft
#include "engine/cpu/unpack_units_avx512.c"

/* For tiles (soft_matmul_amx.c). */
const struct pp_unit_fns *pp_units_of_tiles_soft(uint32_t type);

const struct pp_unit_fns *pp_units_of_tiles_soft(uint32_t type)
{
    return pp_units_avx512_soft + type;
}
#endif
