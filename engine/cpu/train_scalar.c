/* train_scalar.c - the definition: plain C. */
#define PP_VEC_SCALAR 1
#define TRAIN_TABLE pp_train_scalar
enum { TILE_ROWS = 1 };

#include "engine/cpu/train_tables.h"
#include "engine/cpu/vec.h"

#include "engine/cpu/train_body.h"
