/* soft_unpack_units_avxvnni.c - unpacking for AVX-VNNI over the software model of the instructions. */
#if defined(__x86_64__)
#include "tests/soft_avx512.h"

#define pp_units_avxvnni pp_units_avxvnni_soft
#include "engine/cpu/unpack_units_avxvnni.c"
#endif
