/* open_rows_avx2.h - what open_body.h asks for, in vectors of 8 weight rows. Private to the kernels of engine/cpu. */
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

/* Eight loads take half as long as vpgatherdd on a Zen 4. */
OPEN_ROWS uvec gather(const uint32_t *table, uvec i)
{
    return (uvec){table[i[0]], table[i[1]], table[i[2]], table[i[3]],
                  table[i[4]], table[i[5]], table[i[6]], table[i[7]]};
}

OPEN_ROWS __m128i two_entries(const uint64_t *table, uint32_t i, uint32_t j)
{
    __m128i low = _mm_loadl_epi64((const __m128i *)(const void *)(table + i));
    return _mm_castpd_si128(_mm_loadh_pd(_mm_castsi128_pd(low), (const double *)(const void *)(table + j)));
}

OPEN_ROWS void gather_pairs(const uint64_t *table, uvec i, uvec *to)
{
    const __m128i r01 = two_entries(table, i[0], i[1]), r23 = two_entries(table, i[2], i[3]);
    const __m128i r45 = two_entries(table, i[4], i[5]), r67 = two_entries(table, i[6], i[7]);
    const __m256 a = _mm256_castsi256_ps(_mm256_set_m128i(r45, r01));
    const __m256 b = _mm256_castsi256_ps(_mm256_set_m128i(r67, r23));
    to[0] = (uvec)_mm256_shuffle_ps(a, b, 0x88);
    to[1] = (uvec)_mm256_shuffle_ps(a, b, 0xdd);
}

OPEN_ROWS uvec spread_byte(uvec v, const int k)
{
    const __m256i first = _mm256_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12, 0, 0, 0, 0, 4, 4, 4, 4,
                                           8, 8, 8, 8, 12, 12, 12, 12);
    return (uvec)_mm256_shuffle_epi8((__m256i)v, _mm256_add_epi8(first, _mm256_set1_epi8((char)k)));
}
