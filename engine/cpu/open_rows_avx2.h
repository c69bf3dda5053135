/* open_rows_avx2.h - what open_body.h asks for, in vectors of 8 weight rows. The including file has defined PP_GATHERS:
 * whether tables are looked up by the processor's own instructions for that. Private to the kernels of engine/cpu. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define OPEN_ROWS static inline __attribute__((always_inline, unused))

enum { ROWS = 8 };
typedef uint32_t uvec __attribute__((vector_size(32)));
typedef int32_t ivec __attribute__((vector_size(32)));
typedef float fvec __attribute__((vector_size(32)));
typedef uint8_t bvec __attribute__((vector_size(32)));

OPEN_ROWS uvec rows_u8(const uint8_t *p)
{
    return (uvec)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}

OPEN_ROWS ivec rows_s8(const int8_t *p)
{
    return (ivec)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}

OPEN_ROWS uvec rows_u16(const void *p)
{
    return (uvec)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
}

OPEN_ROWS fvec rows_f16(const void *p)
{
    return (fvec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

OPEN_ROWS uvec lookup16(const uint8_t *table, uvec i)
{
    __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)table));
    return (uvec)_mm256_shuffle_epi8(both, (__m256i)i);
}

#if PP_GATHERS
OPEN_ROWS uvec gather(const uint32_t *table, uvec i)
{
    return (uvec)_mm256_i32gather_epi32((const int *)(const void *)table, (__m256i)i, 4);
}

OPEN_ROWS void gather_pairs(const uint64_t *table, uvec i, uvec *to)
{
    const long long *t = (const long long *)(const void *)table;
    const __m128i low = _mm256_castsi256_si128((__m256i)i), high = _mm256_extracti128_si256((__m256i)i, 1);
    const __m256 a = _mm256_castsi256_ps(_mm256_i32gather_epi64(t, low, 8));
    const __m256 b = _mm256_castsi256_ps(_mm256_i32gather_epi64(t, high, 8));
    const __m256d first = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88)); /* rows 0 1 4 5 2 3 6 7 */
    const __m256d then = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd));
    to[0] = (uvec)_mm256_permute4x64_pd(first, 0xd8);
    to[1] = (uvec)_mm256_permute4x64_pd(then, 0xd8);
}
#include "engine/cpu/open_gathers.h"
#else
/* Eight loads take half as long as vpgatherdd on a Zen 4; those that fill all lanes leave only blending to do. */
OPEN_ROWS uvec eight_entries(uint32_t e0, uint32_t e1, uint32_t e2, uint32_t e3, uint32_t e4, uint32_t e5, uint32_t e6,
                             uint32_t e7)
{
    __m256i v = _mm256_set1_epi32((int)e0), w = _mm256_set1_epi32((int)e4);
    v = _mm256_blend_epi32(v, _mm256_set1_epi32((int)e1), 0x02);
    w = _mm256_blend_epi32(w, _mm256_set1_epi32((int)e5), 0x20);
    v = _mm256_blend_epi32(v, _mm256_set1_epi32((int)e2), 0x04);
    w = _mm256_blend_epi32(w, _mm256_set1_epi32((int)e6), 0x40);
    v = _mm256_blend_epi32(v, _mm256_set1_epi32((int)e3), 0x08);
    w = _mm256_blend_epi32(w, _mm256_set1_epi32((int)e7), 0x80);
    return (uvec)_mm256_blend_epi32(v, w, 0xf0);
}

OPEN_ROWS __m256i four_entries(uint64_t e0, uint64_t e2, uint64_t e4, uint64_t e6)
{
    __m256i v = _mm256_set1_epi64x((int64_t)e0), w = _mm256_set1_epi64x((int64_t)e4);
    v = _mm256_blend_epi32(v, _mm256_set1_epi64x((int64_t)e2), 0x0c);
    w = _mm256_blend_epi32(w, _mm256_set1_epi64x((int64_t)e6), 0xc0);
    return _mm256_blend_epi32(v, w, 0xf0);
}

/* From the entries of even and of odd rows to their first and last halves. */
OPEN_ROWS void split_pairs(__m256i even, __m256i odd, uvec *to)
{
    to[0] = (uvec)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    to[1] = (uvec)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}

OPEN_ROWS uvec gather_bytes(const uint32_t *t, const uint8_t *p, const int k)
{
    p += k;
    return eight_entries(t[p[0]], t[p[4]], t[p[8]], t[p[12]], t[p[16]], t[p[20]], t[p[24]], t[p[28]]);
}

OPEN_ROWS void gather_pairs_bytes(const uint64_t *t, const uint8_t *p, const int k, uvec *to)
{
    p += k;
    const __m256i even = four_entries(t[p[0]], t[p[8]], t[p[16]], t[p[24]]);
    split_pairs(even, four_entries(t[p[4]], t[p[12]], t[p[20]], t[p[28]]), to);
}

/* Numbers as addresses take them: from memory, for what takes them out of a register is busy with shuffling. */
OPEN_ROWS void store_lanes(uint32_t *n, uvec v)
{
    _mm256_store_si256((__m256i *)(void *)n, (__m256i)v);
    __asm__("" : "+m"(*(uint32_t(*)[ROWS])(void *)n));
}

OPEN_ROWS uvec gather(const uint32_t *t, uvec i)
{
    uint32_t n[ROWS] __attribute__((aligned(4 * ROWS)));
    store_lanes(n, i);
    return eight_entries(t[n[0]], t[n[1]], t[n[2]], t[n[3]], t[n[4]], t[n[5]], t[n[6]], t[n[7]]);
}

OPEN_ROWS void gather_pairs(const uint64_t *t, uvec i, uvec *to)
{
    uint32_t n[ROWS] __attribute__((aligned(4 * ROWS)));
    store_lanes(n, i);
    const __m256i even = four_entries(t[n[0]], t[n[2]], t[n[4]], t[n[6]]);
    split_pairs(even, four_entries(t[n[1]], t[n[3]], t[n[5]], t[n[7]]), to);
}
#endif

OPEN_ROWS uvec spread_byte(uvec v, const int k)
{
    const __m256i first = _mm256_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12, 0, 0, 0, 0, 4, 4, 4, 4,
                                           8, 8, 8, 8, 12, 12, 12, 12);
    return (uvec)_mm256_shuffle_epi8((__m256i)v, _mm256_add_epi8(first, _mm256_set1_epi8((char)k)));
}
