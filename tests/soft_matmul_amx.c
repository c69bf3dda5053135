/* soft_matmul_amx.c - the AMX products over the software models of the instructions. */
#if defined(__x86_64__)
#include "tests/soft_avx512.h"

#include "tests/soft_amx.h"

#ifndef _mm512_mullo_epi16
static __m512i soft_mullo_epi16(__m512i a, __m512i b)
{
    for (int l = 0; l < 32; l++)
        a.i16[l] = (int16_t)(a.i16[l] * b.i16[l]);
    return a;
}
#define _mm512_mullo_epi16 soft_mullo_epi16
#endif

#define PP_AMX_ROWS_SPAN 24 /* blocks: several spans in most tests */
#define pp_matmul_avx512 pp_matmul_avx512_soft
#define pp_matmul_amx pp_matmul_amx_soft
#include "engine/cpu/matmul_amx.c"
#endif
