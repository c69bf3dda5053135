#if defined(__x86_64__)
#define PP_VEC_AVX2 1
#define OPS_TABLE pp_ops_avx2
enum { HEAD_TILE = 2, DIM_TILE = 2 }; /* 8 of 16 registers accumulate */

#include "engine/cpu/ops_tables.h"
#include "engine/cpu/vec.h"

#include "engine/cpu/ops_body.h"
#endif
