/* train_avx2.c - the kernels of training (train_body.h) for AVX2. */
#if defined(__x86_64__)
#define PP_VEC_AVX2 1
#define TRAIN_TABLE pp_train_avx2
enum { TILE_ROWS = 6 }; /* 12 of 16 registers hold sums */

#include "engine/cpu/train_tables.h"
#include "engine/cpu/vec.h"

#include "engine/cpu/train_body.h"
#endif
