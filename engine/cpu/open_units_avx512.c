/* open_units_avx512.c - the types that have heads and bodies, for AVX-512: 16 weight rows at a time. */
#if defined(__x86_64__)

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#ifndef OPEN_ROWS
#define OPEN_ROWS static inline __attribute__((always_inline, unused))
#endif

enum { ROWS = 16 };
typedef uint32_t uvec __attribute__((vector_size(64)));
typedef int32_t ivec __attribute__((vector_size(64)));
typedef float fvec __attribute__((vector_size(64)));
typedef uint8_t bvec __attribute__((vector_size(64)));

/* The intrinsics' vectors are another type where they are a model. */
OPEN_ROWS uvec from_i(__m512i v)
{
    uvec u;
    memcpy(&u, &v, sizeof u);
    return u;
}

OPEN_ROWS __m512i to_i(uvec u)
{
    __m512i v;
    memcpy(&v, &u, sizeof v);
    return v;
}

OPEN_ROWS uvec rows_u8(const uint8_t *p)
{
    return from_i(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}

OPEN_ROWS ivec rows_s8(const int8_t *p)
{
    return (ivec)from_i(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}

OPEN_ROWS uvec rows_u16(const void *p)
{
    return from_i(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)));
}

OPEN_ROWS fvec rows_f16(const void *p)
{
    __m512 v = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
    fvec f;
    memcpy(&f, &v, sizeof f);
    return f;
}

OPEN_ROWS uvec lookup16(const uint8_t *table, uvec i)
{
    __m512i all = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)table));
    return from_i(_mm512_shuffle_epi8(all, to_i(i)));
}

OPEN_ROWS uvec gather(const uint32_t *table, uvec i)
{
    return from_i(_mm512_i32gather_epi32(to_i(i), table, 4));
}

/* A gather takes as long as it has loads: 64 bits at a time they are half as many. */
OPEN_ROWS void gather_pairs(const uint64_t *table, uvec i, uvec *to)
{
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    const __m512i first = _mm512_i32gather_epi64(_mm512_castsi512_si256(to_i(i)), table, 8);
    const __m512i last = _mm512_i32gather_epi64(_mm512_extracti64x4_epi64(to_i(i), 1), table, 8);
    to[0] = from_i(_mm512_permutex2var_epi32(first, even, last));
    to[1] = from_i(_mm512_permutex2var_epi32(first, odd, last));
}

OPEN_ROWS uvec spread_byte(uvec v, const int k)
{
    const __m128i first = _mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
    __m512i byte = _mm512_broadcast_i32x4(_mm_add_epi8(first, _mm_set1_epi8((char)k)));
    return from_i(_mm512_shuffle_epi8(to_i(v), byte));
}

OPEN_ROWS ivec dot4(ivec sums, uvec w, const int8_t *q)
{
    int32_t four;
    memcpy(&four, q, sizeof four);
    return (ivec)from_i(_mm512_dpbusd_epi32(to_i((uvec)sums), to_i(w), _mm512_set1_epi32(four)));
}

OPEN_ROWS __m512 to_f(fvec f)
{
    __m512 v;
    memcpy(&v, &f, sizeof v);
    return v;
}

OPEN_ROWS fvec fma_rows(fvec a, fvec b, fvec c)
{
    __m512 v = _mm512_fmadd_ps(to_f(a), to_f(b), to_f(c));
    memcpy(&c, &v, sizeof c);
    return c;
}

OPEN_ROWS fvec fnma_rows(fvec a, fvec b, fvec c)
{
    __m512 v = _mm512_fnmadd_ps(to_f(a), to_f(b), to_f(c));
    memcpy(&c, &v, sizeof c);
    return c;
}

#include "engine/cpu/open_gathers.h"

#include "engine/cpu/open_body.h"

#define PP_UNIT_FNS pp_units_avx512
#include "engine/cpu/open_units_body.h"

#else
typedef int pp_open_units_avx512_is_for_x86_64;
#endif
