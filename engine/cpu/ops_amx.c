#if defined(__x86_64__)
#define PP_VEC_AVX512 1
#define PP_OPS_AMX 1
#define OPS_TABLE pp_ops_amx
enum { TILE_SIZES = 1 << 1 | 1 << 2 | 1 << 4 | 1 << 8, TILE_ACCUMULATORS = 16 }; /* of 32 registers */

#include "engine/cpu/ops_tables.h"
#include "engine/cpu/vec.h"

#include "engine/cpu/ops_body.h"
#endif
