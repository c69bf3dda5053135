/* soft_matmul_bf16_amx.c - the AMX products with bfloat16 activations over the software models of the instructions. */
#if defined(__x86_64__)
#include "tests/soft_avx512.h"

#include "tests/soft_amx.h"

#define pp_bf16_amx pp_bf16_amx_soft
#include "engine/cpu/matmul_bf16_amx.c"
#endif
