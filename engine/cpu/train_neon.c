/* train_neon.c - the kernels of training (train_body.h) for NEON. */
#if defined(__aarch64__)
#define PP_VEC_NEON 1
#define TRAIN_TABLE pp_train_neon
enum { TILE_ROWS = 6 }; /* 24 of 32 registers hold sums */

#include "engine/cpu/train_tables.h"
#include "engine/cpu/vec.h"

#include "engine/cpu/train_body.h"
#endif
