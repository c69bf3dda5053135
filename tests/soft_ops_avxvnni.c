/* soft_ops_avxvnni.c - the AVX-VNNI operations over the software model of the instructions. */
#if defined(__x86_64__)
#include "tests/soft_avx512.h"

#define pp_ops_avxvnni pp_ops_avxvnni_soft
#include "engine/cpu/ops_avxvnni.c"
#endif
