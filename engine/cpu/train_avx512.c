/* train_avx512.c - the kernels of training (train_body.h) for AVX-512. */
#if defined(__x86_64__)
#define PP_VEC_AVX512 1
#define TRAIN_TABLE pp_train_avx512
enum { TILE_ROWS = 12 }; /* 12 of 32 registers hold sums */

#include "engine/cpu/train_tables.h"
#include "engine/cpu/vec.h"

#include "engine/cpu/train_body.h"
#endif
