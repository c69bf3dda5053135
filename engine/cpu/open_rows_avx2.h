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

OPEN_ROWS uvec rows_u16(const void *p)
{
    return (uvec)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
}

OPEN_ROWS fvec rows_f16(const void *p)
{
    return (fvec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

OPEN_ROWS uvec lookup16(const int8_t *table, uvec i)
{
    __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)table));
    return (uvec)_mm256_shuffle_epi8(both, (__m256i)i);
}

OPEN_ROWS uvec gather(const uint32_t *table, uvec i)
{
    return (uvec)_mm256_i32gather_epi32((const int *)(const void *)table, (__m256i)i, 4);
}

OPEN_ROWS uvec spread_byte(uvec v, const int k)
{
    const __m256i first = _mm256_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12, 0, 0, 0, 0, 4, 4, 4, 4,
                                           8, 8, 8, 8, 12, 12, 12, 12);
    return (uvec)_mm256_shuffle_epi8((__m256i)v, _mm256_add_epi8(first, _mm256_set1_epi8((char)k)));
}
