/* unpack_units_avxvnni.c - unpacks the types with heads and bodies for AVX-VNNI, 8 weight rows at a time. */
#if defined(__x86_64__)

/* With gathers one row of IQ3 is 1.4 times as fast as with loads, one of IQ2 1.1 times (measured on a Granite
 * Rapids). */
#define PP_GATHERS 1
#include "engine/cpu/unpack_rows_avx2.h"

#include "engine/cpu/unpack_body.h"

UNPACK_ROWS ivec dot4(ivec sums, uvec w, const int8_t *q)
{
    int32_t four;
    memcpy(&four, q, sizeof four);
    return (ivec)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)w, _mm256_set1_epi32(four));
}

UNPACK_ROWS fvec fma_rows(fvec a, fvec b, fvec c)
{
    return (fvec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}

UNPACK_ROWS fvec fnma_rows(fvec a, fvec b, fvec c)
{
    return (fvec)_mm256_fnmadd_ps((__m256)a, (__m256)b, (__m256)c);
}

UNPACK_ROWS uvec signed_above_128(uvec w, uvec signs, const int bit)
{
    const __m256i minus = (__m256i)(signs << (7 - bit) | ((uvec){0} + 0x01010101u)); /* vpsignb makes 0 of w at a 0 */
    return (uvec)_mm256_sign_epi8((__m256i)w, minus) ^ ((uvec){0} + 0x80808080u);
}

#define PP_UNIT_FNS pp_units_avxvnni
#include "engine/cpu/unpack_units_body.h"

#else
typedef int pp_unpack_units_avxvnni_is_for_x86_64;
#endif
