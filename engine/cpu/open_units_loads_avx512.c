/* open_units_loads_avx512.c - the types with code books, opened for AVX-512 where loads look them up sooner than the
 * processor's own gathers do (open_choice.c). */
#if defined(__x86_64__)

#define PP_GATHERS 0
#include "engine/cpu/open_rows_avx512.h"

#include "engine/cpu/open_body.h"

#define PP_UNIT_TYPES PP_CODE_BOOK_TYPES
#define PP_UNIT_FNS pp_units_loads_avx512
#include "engine/cpu/open_units_body.h"

#else
typedef int pp_open_units_loads_avx512_is_for_x86_64;
#endif
