/* train_fma.c - train_scalar.c compiled for processors with FMA: the same bits, with instructions instead of calls of
 * fmaf(). */
#if defined(__x86_64__)
#include "engine/cpu/train_tables.h"

#define pp_train_scalar pp_train_fma

#include "engine/cpu/train_scalar.c"

#else
typedef int pp_train_fma_is_for_x86_64;
#endif
