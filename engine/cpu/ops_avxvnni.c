#if defined(__x86_64__)
#define PP_VEC_AVX2 1
#define PP_VEC_VNNI 1
#define OPS_TABLE pp_ops_avxvnni
enum { TILE_SIZES = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 6, TILE_ACCUMULATORS = 6 }; /* 12 of 16 registers */

#include "engine/cpu/ops_tables.h"
#include "engine/cpu/vec.h"

#include "engine/cpu/ops_body.h"
#endif
