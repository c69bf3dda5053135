/* ops_fma.c - ops_scalar.c for processors that multiply and add in one instruction:
 * the same bits, without a call of fmaf() for each of them. */
#if defined(__x86_64__)
#include "engine/cpu/ops_tables.h"

#define pp_ops_scalar pp_ops_fma

#include "engine/cpu/ops_scalar.c"

#else
typedef int pp_ops_fma_is_for_x86_64;
#endif
