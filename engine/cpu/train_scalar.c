/* train_scalar.c - the kernels of training in plain C, which define the results of the other builds. */
#define PP_VEC_SCALAR 1
#define TRAIN_TABLE pp_train_scalar
enum { TILE_ROWS = 1 };

#include "engine/cpu/train_tables.h"
#include "engine/cpu/vec.h"

#include "engine/cpu/train_body.h"
