/* unpack_units_loads_avx512.c - unpacks the types with large code books for AVX-512 with a load per entry instead of
 * gathers, for processors whose gathers are slow (unpack_choice.c). */
#if defined(__x86_64__)

#define PP_GATHERS 0
#include "engine/cpu/unpack_rows_avx512.h"

#include "engine/cpu/unpack_body.h"

#define PP_UNIT_TYPES PP_LARGE_BOOK_TYPES
#define PP_UNIT_FNS pp_units_loads_avx512
#include "engine/cpu/unpack_units_body.h"

#else
typedef int pp_unpack_units_loads_avx512_is_for_x86_64;
#endif
