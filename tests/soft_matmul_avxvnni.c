/* soft_matmul_avxvnni.c - the AVX-VNNI products over the software model of the instructions. */
#if defined(__x86_64__)
#include "tests/soft_avx512.h"

#define pp_matmul_avxvnni pp_matmul_avxvnni_soft
#define pp_units_avxvnni pp_units_avxvnni_soft
#include "engine/cpu/matmul_avxvnni.c"
#endif
