/* open_units_avxvnni.c - the types that have heads and bodies, opened for AVX-VNNI: 8 weight rows at a time. */
#if defined(__x86_64__)

#include "engine/cpu/open_rows_avx2.h"

#include "engine/cpu/open_body.h"

#define PP_OPENERS pp_openers_avxvnni
#include "engine/cpu/open_units_body.h"

#else
typedef int pp_open_units_avxvnni_is_for_x86_64;
#endif
