/* unpack_units_avx512.c - unpacks the types with heads and bodies for AVX-512, 16 weight rows at a time. */
#if defined(__x86_64__)

#define PP_GATHERS 1
#include "engine/cpu/unpack_rows_avx512.h"

#include "engine/cpu/unpack_body.h"

#define PP_UNIT_FNS pp_units_avx512
#include "engine/cpu/unpack_units_body.h"

#else
typedef int pp_unpack_units_avx512_is_for_x86_64;
#endif
