/* transpose16.h - transposes a matrix of 16 x 16 numbers of 32 bits in AVX-512 registers. Private to engine/cpu. */
#ifndef PP_CPU_TRANSPOSE16_H
#define PP_CPU_TRANSPOSE16_H

#include <immintrin.h>

#ifndef UNROLL /* defined by the tests' software model of the instructions */
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#endif

INLINE void transpose16(const __m512i *r, __m512i *out)
{
    __m512i pairs[16], fours[16];
    UNROLL for (int i = 0; i < 16; i += 2)
    {
        pairs[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    UNROLL for (int i = 0; i < 16; i += 4)
    {
        fours[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
        fours[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
        fours[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
        fours[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
    UNROLL for (int c = 0; c < 4; c++) /* 128-bit lane l of fours[i + c] is column 4 l + c of rows i .. i + 3 */
    {
        __m512i even0 = _mm512_shuffle_i32x4(fours[c], fours[4 + c], 0x88);
        __m512i even1 = _mm512_shuffle_i32x4(fours[8 + c], fours[12 + c], 0x88);
        __m512i odd0 = _mm512_shuffle_i32x4(fours[c], fours[4 + c], 0xdd);
        __m512i odd1 = _mm512_shuffle_i32x4(fours[8 + c], fours[12 + c], 0xdd);
        out[c] = _mm512_shuffle_i32x4(even0, even1, 0x88);
        out[4 + c] = _mm512_shuffle_i32x4(odd0, odd1, 0x88);
        out[8 + c] = _mm512_shuffle_i32x4(even0, even1, 0xdd);
        out[12 + c] = _mm512_shuffle_i32x4(odd0, odd1, 0xdd);
    }
}

#endif
