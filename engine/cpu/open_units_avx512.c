/* open_units_avx512.c - the types that have heads and bodies, opened for AVX-512: 16 weight rows at a time. */
#if defined(__x86_64__)

#define PP_GATHERS 1
#include "engine/cpu/open_rows_avx512.h"

#include "engine/cpu/open_body.h"

#define PP_UNIT_FNS pp_units_avx512
#include "engine/cpu/open_units_body.h"

#else
typedef int pp_open_units_avx512_is_for_x86_64;
#endif
