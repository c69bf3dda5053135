/* soft_unpack_units_loads_avx512.c - unpacking for AVX-512, code books by loads, over the software model of the
 * instructions. */
#if defined(__x86_64__)
#include "tests/soft_avx512.h"

#define pp_units_avx512 pp_units_avx512_soft
#define pp_units_loads_avx512 pp_units_loads_avx512_soft
#define pp_units_of_avx512 pp_units_of_avx512_soft
#include "engine/cpu/unpack_units_loads_avx512.c"

/* The choice does not depend on a clock here: vectors use loads, tiles use gathers. */
const struct pp_unit_fns *pp_units_of_avx512_soft(uint32_t type)
{
    return (pp_units_loads_avx512_soft[type].few ? pp_units_loads_avx512_soft : pp_units_avx512_soft) + type;
}
#endif
