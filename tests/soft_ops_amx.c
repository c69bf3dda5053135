/* soft_ops_amx.c - the AMX operations over the software models of the instructions. */
#if defined(__x86_64__)
#include "tests/soft_avx512.h"

#include "tests/soft_amx.h"

#define pp_ops_amx pp_ops_amx_soft
#include "engine/cpu/ops_amx.c"
#endif
