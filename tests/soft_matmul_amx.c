/* soft_matmul_amx.c - the AMX products over the software models of the instructions. */
#if defined(__x86_64__)
#include "tests/soft_avx512.h"

#include "tests/soft_amx.h"

#define PP_AMX_ROWS_UNPACKED 5
#define PP_AMX_ROWS_SPAN 24 /* blocks: several spans in most tests */
#define pp_matmul_avx512 pp_matmul_avx512_soft
#define pp_units_of_avx512 pp_units_of_tiles_soft
#define pp_matmul_amx pp_matmul_amx_soft
#include "engine/cpu/matmul_amx.c"
#endif
