/* ops_scalar.c - the definition: plain C. */
#define PP_VEC_SCALAR 1
#define OPS_TABLE pp_ops_scalar
enum { TILE_SIZES = 1 << 1, TILE_ACCUMULATORS = 1 };

#include "engine/cpu/ops_tables.h"
#include "engine/cpu/vec.h"

#include "engine/cpu/ops_body.h"
