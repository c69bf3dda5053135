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
#else
/* Lanes' numbers as addresses take them: from memory, for what takes them out of a register is busy with shuffling. */
OPEN_ROWS void store_lanes(uint32_t *n, uvec v)
{
    _mm256_store_si256((__m256i *)(void *)n, (__m256i)v);
    __asm__("" : "+m"(*(uint32_t(*)[ROWS])(void *)n));
}

/* Eight loads take half as long as vpgatherdd on a Zen 4; those that fill all lanes leave only blending to do. */
OPEN_ROWS uvec gather(const uint32_t *table, uvec i)
{
    uint32_t n[ROWS] __attribute__((aligned(4 * ROWS)));
    store_lanes(n, i);
    __m256i v = _mm256_set1_epi32((int)table[n[0]]), w = _mm256_set1_epi32((int)table[n[4]]);
    v = _mm256_blend_epi32(v, _mm256_set1_epi32((int)table[n[1]]), 0x02);
    w = _mm256_blend_epi32(w, _mm256_set1_epi32((int)table[n[5]]), 0x20);
    v = _mm256_blend_epi32(v, _mm256_set1_epi32((int)table[n[2]]), 0x04);
    w = _mm256_blend_epi32(w, _mm256_set1_epi32((int)table[n[6]]), 0x40);
    v = _mm256_blend_epi32(v, _mm256_set1_epi32((int)table[n[3]]), 0x08);
    w = _mm256_blend_epi32(w, _mm256_set1_epi32((int)table[n[7]]), 0x80);
    return (uvec)_mm256_blend_epi32(v, w, 0xf0);
}

/* Entries of rows 0, 2, 4 and 6 side by side, or with `odd` of the others. */
OPEN_ROWS __m256i four_entries(const uint64_t *table, const uint32_t *n, const int odd)
{
    __m256i v = _mm256_set1_epi64x((int64_t)table[n[odd]]), w = _mm256_set1_epi64x((int64_t)table[n[4 + odd]]);
    v = _mm256_blend_epi32(v, _mm256_set1_epi64x((int64_t)table[n[2 + odd]]), 0x0c);
    w = _mm256_blend_epi32(w, _mm256_set1_epi64x((int64_t)table[n[6 + odd]]), 0xc0);
    return _mm256_blend_epi32(v, w, 0xf0);
}

OPEN_ROWS void gather_pairs(const uint64_t *table, uvec i, uvec *to)
{
    uint32_t n[ROWS] __attribute__((aligned(4 * ROWS)));
    store_lanes(n, i);
    const __m256i even = four_entries(table, n, 0), odd = four_entries(table, n, 1);
    to[0] = (uvec)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    to[1] = (uvec)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}
#endif

OPEN_ROWS uvec spread_byte(uvec v, const int k)
{
    const __m256i first = _mm256_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12, 0, 0, 0, 0, 4, 4, 4, 4,
                                           8, 8, 8, 8, 12, 12, 12, 12);
    return (uvec)_mm256_shuffle_epi8((__m256i)v, _mm256_add_epi8(first, _mm256_set1_epi8((char)k)));
}
