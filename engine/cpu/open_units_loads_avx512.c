/* open_units_loads_avx512.c - the types with large code books, opened for AVX-512 without gathers where these are slow
 * (open_choice.c). */
#if defined(__x86_64__)

#define PP_GATHERS 0
#include "engine/cpu/open_rows_avx512.h"

#include "engine/cpu/open_body.h"

#define PP_UNIT_TYPES PP_LARGE_BOOK_TYPES
#define PP_UNIT_FNS pp_units_loads_avx512
#include "engine/cpu/open_units_body.h"

#else
typedef int pp_open_units_loads_avx512_is_for_x86_64;
#endif
