#if defined(__x86_64__)
#define PP_VEC_AVX512 1
#define OPS_TABLE pp_ops_avx512
enum { HEAD_TILE = 4, DIM_TILE = 4 }; /* 16 of 32 registers accumulate */

#include "engine/cpu/ops_tables.h"
#include "engine/cpu/vec.h"

#include "engine/cpu/ops_body.h"
#endif
