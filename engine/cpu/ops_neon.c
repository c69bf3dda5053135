#if defined(__aarch64__)
#define PP_VEC_NEON 1
#define OPS_TABLE pp_ops_neon
enum { TILE_SIZES = 1 << 1 | 1 << 2 | 1 << 4, TILE_ACCUMULATORS = 4 }; /* 16 of 32 registers */

#include "engine/cpu/ops_tables.h"
#include "engine/cpu/vec.h"

#include "engine/cpu/ops_body.h"
#endif
