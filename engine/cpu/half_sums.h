/* half_sums.h - sums of activations over 16 columns, for types that have a scale or minimum for each half of a block.
 * To be included after <immintrin.h>. Private to the kernels of engine/cpu. */
#ifndef PP_CPU_HALF_SUMS_H
#define PP_CPU_HALF_SUMS_H

#include <stdint.h>

/* Sums over 16 columns of two blocks a and b, 64 bytes at q: {first half of a, first of b, second of a, second of
 * b}. */
static inline __attribute__((always_inline)) __m128i half_sums(const int8_t *q)
{
    __m256i a = _mm256_loadu_si256((const __m256i *)q), b = _mm256_loadu_si256((const __m256i *)(q + 32));
    /* vpsadbw adds 8 unsigned bytes: each is 128 too large. */
    a = _mm256_sad_epu8(_mm256_xor_si256(a, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
    b = _mm256_sad_epu8(_mm256_xor_si256(b, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
    __m256i s = _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b)); /* a0 b0 a1 b1 */
    s = _mm256_permutevar8x32_epi32(s, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6));
    return _mm_sub_epi32(_mm256_castsi256_si128(s), _mm_set1_epi32(16 * 128));
}

/* These sums, each times its block's d. */
static inline __attribute__((always_inline)) __m128 scaled_half_sums(const int8_t *q, const float d[2])
{
    const __m128 both = _mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)(const void *)d));
    return _mm_mul_ps(_mm_movelh_ps(both, both), _mm_cvtepi32_ps(half_sums(q)));
}

#endif
