/* unpack_rows_avx2.h - the vectors and functions that unpack_body.h asks for, with 8 weight rows in a vector. The
 * including file has defined PP_GATHERS: whether code books are looked up by gather instructions. Private to the
 * kernels of engine/cpu. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#ifndef UNPACK_ROWS
#define UNPACK_ROWS static inline __attribute__((always_inline, unused))
#endif

enum { ROWS = 8 };
typedef uint32_t uvec __attribute__((vector_size(32)));
typedef int32_t ivec __attribute__((vector_size(32)));
typedef float fvec __attribute__((vector_size(32)));
typedef uint8_t bvec __attribute__((vector_size(32)));

UNPACK_ROWS uvec rows_u8(const uint8_t *p)
{
    return (uvec)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}

UNPACK_ROWS ivec rows_s8(const int8_t *p)
{
    return (ivec)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}

UNPACK_ROWS uvec rows_u16(const void *p)
{
    return (uvec)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
}

UNPACK_ROWS fvec rows_f16(const void *p)
{
    return (fvec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

UNPACK_ROWS uvec lookup16(const uint8_t *table, uvec i)
{
    __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)table));
    return (uvec)_mm256_shuffle_epi8(both, (__m256i)i);
}

#if PP_GATHERS
UNPACK_ROWS uvec gather(const uint32_t *table, uvec i)
{
    return (uvec)_mm256_i32gather_epi32((const int *)(const void *)table, (__m256i)i, 4);
}

UNPACK_ROWS void gather_pairs(const uint64_t *table, uvec i, uvec *to)
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
#include "engine/cpu/unpack_gathers.h"
#else
/* On a Zen 4, loading the entries one by one takes half as long as vpgatherdd. The loads are then the bottleneck, so
 * everything else is kept short: indices are loaded eight bytes at a time, and entries are inserted into lanes. Kernels
 * alone on a Zen 3, nanoseconds for 8 rows of 32 columns, with indices loaded one by one and lanes filled by broadcasts
 * and blends, and as it is now: IQ3_S 23.5 and 21.4, IQ3_XXS 23.6 and 20.6, IQ2_XXS 16.5 and 14.0, IQ2_XS 18.2 and
 * 16.0, IQ2_S 16.8 and 15.2, IQ1_S 15.7 and 14.2. */
UNPACK_ROWS uint64_t load64(const void *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

UNPACK_ROWS __m128i four_entries(uint32_t e0, uint32_t e1, uint32_t e2, uint32_t e3)
{
    __m128i v = _mm_cvtsi32_si128((int)e0);
    v = _mm_insert_epi32(v, (int)e1, 1);
    v = _mm_insert_epi32(v, (int)e2, 2);
    return _mm_insert_epi32(v, (int)e3, 3);
}

UNPACK_ROWS uvec eight_entries(__m128i low, __m128i high)
{
    return (uvec)_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

UNPACK_ROWS __m128 pair_entries(const uint64_t *e0, const uint64_t *e1)
{
    const __m128 v = _mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)(const void *)e0));
    return _mm_loadh_pi(v, (const __m64 *)(const void *)e1);
}

/* Separates the entries of 64 bits, two rows to a vector: their first 4 bytes go to to[0], the others to to[1]. */
UNPACK_ROWS void split_pairs(__m128 rows01, __m128 rows23, __m128 rows45, __m128 rows67, uvec *to)
{
    const __m256 v = _mm256_insertf128_ps(_mm256_castps128_ps256(rows01), rows45, 1);
    const __m256 w = _mm256_insertf128_ps(_mm256_castps128_ps256(rows23), rows67, 1);
    to[0] = (uvec)_mm256_castps_si256(_mm256_shuffle_ps(v, w, 0x88));
    to[1] = (uvec)_mm256_castps_si256(_mm256_shuffle_ps(v, w, 0xdd));
}

UNPACK_ROWS uvec gather_rows(const uint32_t *t, const uint8_t *p)
{
    const uint64_t n = load64(p), n2 = n >> 16, n4 = n >> 32, n6 = n >> 48;
    return eight_entries(four_entries(t[n & 255], t[n >> 8 & 255], t[n2 & 255], t[n2 >> 8 & 255]),
                         four_entries(t[n4 & 255], t[n4 >> 8 & 255], t[n6 & 255], t[n6 >> 8]));
}

UNPACK_ROWS void gather_pairs_rows(const uint64_t *t, const uint8_t *p, uvec *to)
{
    const uint64_t n = load64(p), n2 = n >> 16, n4 = n >> 32, n6 = n >> 48;
    split_pairs(pair_entries(t + (n & 255), t + (n >> 8 & 255)), pair_entries(t + (n2 & 255), t + (n2 >> 8 & 255)),
                pair_entries(t + (n4 & 255), t + (n4 >> 8 & 255)), pair_entries(t + (n6 & 255), t + (n6 >> 8)), to);
}

/* Joined indices are kept in memory, from where they are loaded into address registers: extracting them from vectors
 * would use the execution port that shuffles need. */
struct indexes {
    /* [k / 2][half]: index k of rows 4 half to 4 half + 3 at 4 (k % 2) */
    uint16_t n[2][2][8] __attribute__((aligned(32)));
};

UNPACK_ROWS void join_indexes(uvec low, uvec high, struct indexes *to)
{
    const __m128i four = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m256i order = _mm256_broadcastsi128_si256(four);
    const __m256i l = _mm256_shuffle_epi8((__m256i)low, order), h = _mm256_shuffle_epi8((__m256i)high, order);
    _mm256_store_si256((__m256i *)(void *)to->n[0], _mm256_unpacklo_epi8(l, h));
    _mm256_store_si256((__m256i *)(void *)to->n[1], _mm256_unpackhi_epi8(l, h));
    __asm__("" : "+m"(*to)); /* so that the compiler does load them */
}

/* Index k of four rows: 16 bits each. */
UNPACK_ROWS uint64_t joined(const struct indexes *i, const int k, const int half)
{
    return load64(i->n[k / 2][half] + 4 * (k % 2));
}

UNPACK_ROWS uvec gather_joined(const uint32_t *t, const struct indexes *i, const int k)
{
    const uint64_t n = joined(i, k, 0), m = joined(i, k, 1);
    return eight_entries(four_entries(t[n & 65535], t[n >> 16 & 65535], t[n >> 32 & 65535], t[n >> 48]),
                         four_entries(t[m & 65535], t[m >> 16 & 65535], t[m >> 32 & 65535], t[m >> 48]));
}

UNPACK_ROWS void gather_pairs_joined(const uint64_t *t, const struct indexes *i, const int k, uvec *to)
{
    const uint64_t n = joined(i, k, 0), m = joined(i, k, 1);
    split_pairs(pair_entries(t + (n & 65535), t + (n >> 16 & 65535)),
                pair_entries(t + (n >> 32 & 65535), t + (n >> 48)),
                pair_entries(t + (m & 65535), t + (m >> 16 & 65535)),
                pair_entries(t + (m >> 32 & 65535), t + (m >> 48)), to);
}
#endif

UNPACK_ROWS uvec spread_byte(uvec v, const int k)
{
    const __m256i first = _mm256_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12, 0, 0, 0, 0, 4, 4, 4, 4,
                                           8, 8, 8, 8, 12, 12, 12, 12);
    return (uvec)_mm256_shuffle_epi8((__m256i)v, _mm256_add_epi8(first, _mm256_set1_epi8((char)k)));
}
