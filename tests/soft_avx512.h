/* soft_avx512.h - a model of the AVX-512 (F, BW, DQ, VL, VNNI) and AVX-VNNI instructions our kernels use, in plain C
 * over arrays, exact to the bit: rounding to nearest even, fused multiply-adds by fmaf, wrapping sums. A kernel file
 * included after it runs on any machine with AVX2, FMA and F16C, which stay real:
 *
 *   #include "tests/soft_avx512.h"
 *   #define pp_matmul_avx512 pp_matmul_avx512_soft
 *   #include "engine/cpu/matmul_avx512.c"
 *
 * Written after the pseudo-code of the Intel intrinsics guide. NaN payloads are not promised. An intrinsic that is
 * missing here shows as a type or target mismatch when compiled: add it. */
#ifndef PP_TESTS_SOFT_AVX512_H
#define PP_TESTS_SOFT_AVX512_H

#include <immintrin.h> /* included first, because its names are redefined below */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define STREAM_NEAR(loaded, at, ahead) ((void)(loaded), (void)(at), (void)(ahead)) /* "loaded" is in no register */

typedef struct {
    float f[16];
} __attribute__((aligned(64))) soft_m512;

typedef union {
    int8_t i8[64];
    uint8_t u8[64];
    int16_t i16[32];
    uint16_t u16[32];
    int32_t i32[16];
    uint32_t u32[16];
    int64_t i64[8];
    uint64_t u64[8];
    __m256i half[2];
} __attribute__((aligned(64))) soft_m512i;

/* The macros of the kernels, redefined: constants become arguments and loops stay loops, so that a file of thousands of
 * unrolled instructions compiles in seconds. */
#define INLINE static __attribute__((unused))
#define ALWAYS_INLINE INLINE
#define UNPACK INLINE
#define UNPACK_ROWS INLINE
#define UNROLL
#define UNPACK_UNROLL
#define UNROLL_TWICE

#define __m512 soft_m512
#define __m512i soft_m512i

/* Not inlined, for the same reason. */
#define SOFT static __attribute__((noinline, unused))
#define EACH(n) for (int l = 0; l < (n); l++)

SOFT void check_aligned(const void *p)
{
    if ((uintptr_t)p % 64)
        __builtin_trap();
}

SOFT unsigned compared(float a, float b, int predicate)
{
    switch (predicate) {
    case _CMP_EQ_OQ:
        return a == b;
    case _CMP_LT_OQ:
        return a < b;
    case _CMP_LE_OQ:
        return a <= b;
    case _CMP_GT_OQ:
        return a > b;
    case _CMP_GE_OQ:
        return a >= b;
    case _CMP_UNORD_Q:
        return isnan(a) || isnan(b);
    default:
        __builtin_trap();
    }
}

/* --- loads, stores, constants ------------------------------------------------------------------------------------- */

/* Aligned loads and stores stop the program where the instruction would. */
SOFT __m512i soft_mm512_load_si512(const void *p)
{
    __m512i r;
    check_aligned(p);
    memcpy(&r, p, 64);
    return r;
}
SOFT __m512i soft_mm512_load_epi32(const void *p)
{
    __m512i r;
    check_aligned(p);
    memcpy(&r, p, 64);
    return r;
}
SOFT __m512 soft_mm512_load_ps(const void *p)
{
    __m512 r;
    check_aligned(p);
    memcpy(&r, p, 64);
    return r;
}
SOFT __m512i soft_mm512_loadu_si512(const void *p)
{
    __m512i r;
    memcpy(&r, p, 64);
    return r;
}
SOFT __m512i soft_mm512_loadu_epi8(const void *p)
{
    __m512i r;
    memcpy(&r, p, 64);
    return r;
}
SOFT __m512i soft_mm512_loadu_epi32(const void *p)
{
    __m512i r;
    memcpy(&r, p, 64);
    return r;
}
SOFT __m512 soft_mm512_loadu_ps(const void *p)
{
    __m512 r;
    memcpy(&r, p, 64);
    return r;
}
SOFT void soft_mm512_store_si512(void *p, __m512i a)
{
    check_aligned(p);
    memcpy(p, &a, 64);
}
SOFT void soft_mm512_store_epi32(void *p, __m512i a)
{
    check_aligned(p);
    memcpy(p, &a, 64);
}
SOFT void soft_mm512_store_ps(void *p, __m512 a)
{
    check_aligned(p);
    memcpy(p, &a, 64);
}
SOFT void soft_mm512_stream_si512(void *p, __m512i a)
{
    check_aligned(p);
    memcpy(p, &a, 64);
}
SOFT void soft_mm512_storeu_si512(void *p, __m512i a) { memcpy(p, &a, 64); }
SOFT void soft_mm512_storeu_epi8(void *p, __m512i a) { memcpy(p, &a, 64); }
SOFT void soft_mm512_storeu_epi32(void *p, __m512i a) { memcpy(p, &a, 64); }
SOFT void soft_mm512_storeu_ps(void *p, __m512 a) { memcpy(p, &a, 64); }
/* Lanes outside the mask are neither read nor written. */
SOFT __m512i soft_mm512_maskz_loadu_epi8(uint64_t live, const void *p)
{
    __m512i r = {0};
    EACH(64) if (live >> l & 1) memcpy(&r.u8[l], (const char *)p + 1 * l, 1);
    return r;
}
SOFT __m512i soft_mm512_mask_loadu_epi8(__m512i r, uint64_t live, const void *p)
{
    EACH(64) if (live >> l & 1) memcpy(&r.u8[l], (const char *)p + 1 * l, 1);
    return r;
}
SOFT void soft_mm512_mask_storeu_epi8(void *p, uint64_t live, __m512i a)
{
    EACH(64) if (live >> l & 1) memcpy((char *)p + 1 * l, &a.u8[l], 1);
}
SOFT __m512i soft_mm512_maskz_loadu_epi16(uint32_t live, const void *p)
{
    __m512i r = {0};
    EACH(32) if (live >> l & 1) memcpy(&r.u16[l], (const char *)p + 2 * l, 2);
    return r;
}
SOFT __m512i soft_mm512_mask_loadu_epi16(__m512i r, uint32_t live, const void *p)
{
    EACH(32) if (live >> l & 1) memcpy(&r.u16[l], (const char *)p + 2 * l, 2);
    return r;
}
SOFT void soft_mm512_mask_storeu_epi16(void *p, uint32_t live, __m512i a)
{
    EACH(32) if (live >> l & 1) memcpy((char *)p + 2 * l, &a.u16[l], 2);
}
SOFT __m512i soft_mm512_maskz_loadu_epi32(uint16_t live, const void *p)
{
    __m512i r = {0};
    EACH(16) if (live >> l & 1) memcpy(&r.u32[l], (const char *)p + 4 * l, 4);
    return r;
}
SOFT __m512i soft_mm512_mask_loadu_epi32(__m512i r, uint16_t live, const void *p)
{
    EACH(16) if (live >> l & 1) memcpy(&r.u32[l], (const char *)p + 4 * l, 4);
    return r;
}
SOFT void soft_mm512_mask_storeu_epi32(void *p, uint16_t live, __m512i a)
{
    EACH(16) if (live >> l & 1) memcpy((char *)p + 4 * l, &a.u32[l], 4);
}
SOFT __m512 soft_mm512_maskz_loadu_ps(uint16_t live, const void *p)
{
    __m512 r = {0};
    EACH(16) if (live >> l & 1) memcpy(&r.f[l], (const char *)p + 4 * l, 4);
    return r;
}
SOFT __m512 soft_mm512_mask_loadu_ps(__m512 r, uint16_t live, const void *p)
{
    EACH(16) if (live >> l & 1) memcpy(&r.f[l], (const char *)p + 4 * l, 4);
    return r;
}
SOFT void soft_mm512_mask_storeu_ps(void *p, uint16_t live, __m512 a)
{
    EACH(16) if (live >> l & 1) memcpy((char *)p + 4 * l, &a.f[l], 4);
}
SOFT __m256i soft_mm256_maskz_loadu_epi16(uint16_t live, const void *p)
{
    uint16_t r[16] = {0};
    EACH(16) if (live >> l & 1) memcpy(&r[l], (const char *)p + 2 * l, 2);
    return _mm256_loadu_si256((const __m256i *)(const void *)r);
}
SOFT __m256 soft_mm256_maskz_loadu_ps(uint8_t live, const void *p)
{
    float r[8] = {0};
    EACH(8) if (live >> l & 1) memcpy(&r[l], (const char *)p + 4 * l, 4);
    return _mm256_loadu_ps(r);
}
SOFT void soft_mm256_mask_storeu_ps(void *p, uint8_t live, __m256 a)
{
    float r[8];
    _mm256_storeu_ps(r, a);
    EACH(8) if (live >> l & 1) memcpy((char *)p + 4 * l, &r[l], 4);
}
SOFT __m128i soft_mm_maskz_loadu_epi8(uint16_t live, const void *p)
{
    uint8_t r[16] = {0};
    EACH(16) if (live >> l & 1) r[l] = ((const uint8_t *)p)[l];
    return _mm_loadu_si128((const __m128i *)(const void *)r);
}
SOFT __m512i soft_mm512_setzero_si512(void) { return (__m512i){0}; }
SOFT __m512 soft_mm512_setzero_ps(void) { return (__m512){0}; }
SOFT __m512i soft_mm512_set1_epi8(char x)
{
    __m512i r;
    EACH(64) r.i8[l] = x;
    return r;
}
SOFT __m512i soft_mm512_set1_epi16(short x)
{
    __m512i r;
    EACH(32) r.i16[l] = x;
    return r;
}
SOFT __m512i soft_mm512_set1_epi32(int x)
{
    __m512i r;
    EACH(16) r.i32[l] = x;
    return r;
}
SOFT __m512i soft_mm512_set1_epi64(long long x)
{
    __m512i r;
    EACH(8) r.i64[l] = x;
    return r;
}
SOFT __m512 soft_mm512_set1_ps(float x)
{
    __m512 r;
    EACH(16) r.f[l] = x;
    return r;
}
SOFT __m512i soft_mm512_setr_epi32(int a, int b, int c, int d, int e, int f, int g, int h, int i, int j, int k, int l,
                                    int m, int n, int o, int p)
{
    return (__m512i){.i32 = {a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p}};
}

/* --- between types and widths ------------------------------------------------------------------------------------- */

SOFT __m512 soft_mm512_castsi512_ps(__m512i a)
{
    __m512 r;
    memcpy(&r, &a, 64);
    return r;
}
SOFT __m512i soft_mm512_castps_si512(__m512 a)
{
    __m512i r;
    memcpy(&r, &a, 64);
    return r;
}
SOFT __m256i soft_mm512_castsi512_si256(__m512i a)
{
    __m256i r;
    memcpy(&r, &a, 32);
    return r;
}
SOFT __m256 soft_mm512_castps512_ps256(__m512 a)
{
    __m256 r;
    memcpy(&r, &a, 32);
    return r;
}
/* The upper half is undefined: here it is a pattern that would be noticed. */
SOFT __m512i soft_mm512_castsi256_si512(__m256i a)
{
    __m512i r;
    memset(&r, 0xA5, 64);
    memcpy(&r, &a, 32);
    return r;
}
SOFT __m512 soft_mm512_castps256_ps512(__m256 a)
{
    __m512 r;
    memset(&r, 0xA5, 64);
    memcpy(&r, &a, 32);
    return r;
}
SOFT __m256i soft_mm512_extracti64x4_epi64(__m512i a, int k)
{
    __m256i r;
    memcpy(&r, (char *)&a + 32 * (k & 1), 32);
    return r;
}
SOFT __m256i soft_mm512_extracti32x8_epi32(__m512i a, int k)
{
    __m256i r;
    memcpy(&r, (char *)&a + 32 * (k & 1), 32);
    return r;
}
SOFT __m256 soft_mm512_extractf32x8_ps(__m512 a, int k)
{
    __m256 r;
    memcpy(&r, (char *)&a + 32 * (k & 1), 32);
    return r;
}
SOFT __m128i soft_mm512_extracti32x4_epi32(__m512i a, int k)
{
    __m128i r;
    memcpy(&r, (char *)&a + 16 * (k & 3), 16);
    return r;
}
SOFT __m128 soft_mm512_extractf32x4_ps(__m512 a, int k)
{
    __m128 r;
    memcpy(&r, (char *)&a + 16 * (k & 3), 16);
    return r;
}
SOFT __m512i soft_mm512_inserti64x4(__m512i a, __m256i b, int k)
{
    memcpy((char *)&a + 32 * (k & 1), &b, 32);
    return a;
}
SOFT __m512i soft_mm512_inserti32x8(__m512i a, __m256i b, int k)
{
    memcpy((char *)&a + 32 * (k & 1), &b, 32);
    return a;
}
SOFT __m512 soft_mm512_insertf32x8(__m512 a, __m256 b, int k)
{
    memcpy((char *)&a + 32 * (k & 1), &b, 32);
    return a;
}
SOFT __m512i soft_mm512_broadcast_i32x4(__m128i a)
{
    __m512i r;
    EACH(4) memcpy((char *)&r + 16 * l, &a, 16);
    return r;
}
SOFT __m512i soft_mm512_broadcast_i64x4(__m256i a)
{
    __m512i r;
    EACH(2) memcpy((char *)&r + 32 * l, &a, 32);
    return r;
}
SOFT __m512 soft_mm512_broadcast_f32x4(__m128 a)
{
    __m512 r;
    EACH(4) memcpy((char *)&r + 16 * l, &a, 16);
    return r;
}
SOFT __m512 soft_mm512_broadcastss_ps(__m128 a) { return soft_mm512_set1_ps(_mm_cvtss_f32(a)); }
SOFT __m512i soft_mm512_cvtepi8_epi32(__m128i a)
{
    int8_t t[16];
    __m512i r;
    memcpy(t, &a, sizeof t);
    EACH(16) r.i32[l] = t[l];
    return r;
}
SOFT __m512i soft_mm512_cvtepu8_epi32(__m128i a)
{
    uint8_t t[16];
    __m512i r;
    memcpy(t, &a, sizeof t);
    EACH(16) r.i32[l] = t[l];
    return r;
}
SOFT __m512i soft_mm512_cvtepi16_epi32(__m256i a)
{
    int16_t t[16];
    __m512i r;
    memcpy(t, &a, sizeof t);
    EACH(16) r.i32[l] = t[l];
    return r;
}
SOFT __m512i soft_mm512_cvtepu16_epi32(__m256i a)
{
    uint16_t t[16];
    __m512i r;
    memcpy(t, &a, sizeof t);
    EACH(16) r.i32[l] = t[l];
    return r;
}
SOFT __m512i soft_mm512_cvtepi8_epi16(__m256i a)
{
    int8_t t[32];
    __m512i r;
    memcpy(t, &a, sizeof t);
    EACH(32) r.i16[l] = t[l];
    return r;
}
SOFT __m512i soft_mm512_cvtepu8_epi16(__m256i a)
{
    uint8_t t[32];
    __m512i r;
    memcpy(t, &a, sizeof t);
    EACH(32) r.i16[l] = t[l];
    return r;
}
SOFT __m128i soft_mm512_cvtepi32_epi8(__m512i a)
{
    uint8_t t[16];
    __m128i r;
    EACH(16) t[l] = (uint8_t)a.u32[l];
    memcpy(&r, t, sizeof r);
    return r;
}
SOFT __m128i soft_mm512_cvtsepi32_epi8(__m512i a)
{
    int8_t t[16];
    __m128i r;
    EACH(16) t[l] = (int8_t)(a.i32[l] < -128 ? -128 : a.i32[l] > 127 ? 127 : a.i32[l]);
    memcpy(&r, t, sizeof r);
    return r;
}
SOFT __m256i soft_mm512_cvtepi32_epi16(__m512i a)
{
    uint16_t t[16];
    __m256i r;
    EACH(16) t[l] = (uint16_t)a.u32[l];
    memcpy(&r, t, sizeof r);
    return r;
}
SOFT __m256i soft_mm512_cvtepi16_epi8(__m512i a)
{
    uint8_t t[32];
    __m256i r;
    EACH(32) t[l] = (uint8_t)a.u16[l];
    memcpy(&r, t, sizeof r);
    return r;
}
SOFT __m512 soft_mm512_cvtepi32_ps(__m512i a)
{
    __m512 r;
    EACH(16) r.f[l] = (float)a.i32[l];
    return r;
}
/* Rounds to nearest even; NaN and numbers that do not fit become the most negative integer. */
SOFT __m512i soft_mm512_cvtps_epi32(__m512 a)
{
    __m512i r;
    EACH(16) r.i32[l] = a.f[l] >= -0x1p31f && a.f[l] < 0x1p31f ? (int32_t)rintf(a.f[l]) : INT32_MIN;
    return r;
}
SOFT __m512i soft_mm512_maskz_cvtps_epi32(uint16_t live, __m512 a)
{
    __m512i r = soft_mm512_cvtps_epi32(a);
    EACH(16) r.i32[l] = live >> l & 1 ? r.i32[l] : 0;
    return r;
}
SOFT __m512 soft_mm512_cvtph_ps(__m256i a)
{
    __m256 half[2] = {_mm256_cvtph_ps(_mm256_castsi256_si128(a)), _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1))};
    __m512 r;
    memcpy(&r, half, 64);
    return r;
}

/* --- floats ------------------------------------------------------------------------------------------------------- */

SOFT __m512 soft_mm512_add_ps(__m512 a, __m512 b)
{
    EACH(16) a.f[l] = a.f[l] + b.f[l];
    return a;
}
SOFT __m512 soft_mm512_sub_ps(__m512 a, __m512 b)
{
    EACH(16) a.f[l] = a.f[l] - b.f[l];
    return a;
}
SOFT __m512 soft_mm512_mul_ps(__m512 a, __m512 b)
{
    EACH(16) a.f[l] = a.f[l] * b.f[l];
    return a;
}
SOFT __m512 soft_mm512_div_ps(__m512 a, __m512 b)
{
    EACH(16) a.f[l] = a.f[l] / b.f[l];
    return a;
}
/* Within each 128 bits: four of a, then four of b, saturated. */
SOFT __m512i soft_mm512_packs_epi32(__m512i a, __m512i b)
{
    __m512i r;
    EACH(32)
    {
        int32_t x = (l % 8 < 4 ? a : b).i32[l / 8 * 4 + l % 4];
        r.i16[l] = (int16_t)(x > INT16_MAX ? INT16_MAX : x < INT16_MIN ? INT16_MIN : x);
    }
    return r;
}
/* Within each 128 bits: eight of a, then eight of b, saturated. */
SOFT __m512i soft_mm512_packs_epi16(__m512i a, __m512i b)
{
    __m512i r;
    EACH(64)
    {
        int16_t x = (l % 16 < 8 ? a : b).i16[l / 16 * 8 + l % 8];
        r.i8[l] = (int8_t)(x > INT8_MAX ? INT8_MAX : x < INT8_MIN ? INT8_MIN : x);
    }
    return r;
}

SOFT __m512 soft_mm512_max_ps(__m512 a, __m512 b)
{
    EACH(16) a.f[l] = a.f[l] > b.f[l] ? a.f[l] : b.f[l];
    return a;
}
SOFT __m512 soft_mm512_min_ps(__m512 a, __m512 b)
{
    EACH(16) a.f[l] = a.f[l] < b.f[l] ? a.f[l] : b.f[l];
    return a;
}
SOFT __m512 soft_mm512_fmadd_ps(__m512 a, __m512 b, __m512 c)
{
    EACH(16) a.f[l] = fmaf(a.f[l], b.f[l], c.f[l]);
    return a;
}
SOFT __m512 soft_mm512_fmsub_ps(__m512 a, __m512 b, __m512 c)
{
    EACH(16) a.f[l] = fmaf(a.f[l], b.f[l], -c.f[l]);
    return a;
}
SOFT __m512 soft_mm512_fnmadd_ps(__m512 a, __m512 b, __m512 c)
{
    EACH(16) a.f[l] = fmaf(-a.f[l], b.f[l], c.f[l]);
    return a;
}
/* The difference is rounded down as well. Only for that immediate. */
SOFT __m512 soft_mm512_reduce_ps(__m512 a, int rounding)
{
    if (rounding != _MM_FROUND_TO_NEG_INF)
        __builtin_trap();
    EACH(16)
    {
        double exact = (double)a.f[l] - floor((double)a.f[l]);
        a.f[l] = (float)exact > exact ? nextafterf((float)exact, -1) : (float)exact;
    }
    return a;
}
SOFT __m512 soft_mm512_maskz_scalef_ps(uint16_t live, __m512 a, __m512 x)
{
    EACH(16) a.f[l] = live >> l & 1 ? ldexpf(a.f[l], (int)floorf(x.f[l])) : 0;
    return a;
}
SOFT uint16_t soft_mm512_cmp_ps_mask(__m512 a, __m512 b, int predicate)
{
    uint16_t r = 0;
    EACH(16) r = (uint16_t)(r | compared(a.f[l], b.f[l], predicate) << l);
    return r;
}
SOFT __m512 soft_mm512_mask_mov_ps(__m512 a, uint16_t live, __m512 b)
{
    EACH(16) a.f[l] = live >> l & 1 ? b.f[l] : a.f[l];
    return a;
}
SOFT __m512 soft_mm512_maskz_mov_ps(uint16_t live, __m512 b)
{
    EACH(16) b.f[l] = live >> l & 1 ? b.f[l] : 0;
    return b;
}
SOFT __m512 soft_mm512_mask_blend_ps(uint16_t live, __m512 a, __m512 b)
{
    EACH(16) a.f[l] = live >> l & 1 ? b.f[l] : a.f[l];
    return a;
}
SOFT __m512 soft_mm512_movehdup_ps(__m512 a)
{
    EACH(8) a.f[2 * l] = a.f[2 * l + 1];
    return a;
}
SOFT __m512 soft_mm512_moveldup_ps(__m512 a)
{
    EACH(8) a.f[2 * l + 1] = a.f[2 * l];
    return a;
}
SOFT __m512 soft_mm512_unpacklo_ps(__m512 a, __m512 b)
{
    __m512 r;
    EACH(16) r.f[l] = (l % 2 ? b : a).f[l / 4 * 4 + l % 4 / 2];
    return r;
}
SOFT __m512 soft_mm512_unpackhi_ps(__m512 a, __m512 b)
{
    __m512 r;
    EACH(16) r.f[l] = (l % 2 ? b : a).f[l / 4 * 4 + 2 + l % 4 / 2];
    return r;
}
SOFT __m512 soft_mm512_shuffle_ps(__m512 a, __m512 b, int select)
{
    __m512 r;
    EACH(16) r.f[l] = (l % 4 < 2 ? a : b).f[l / 4 * 4 + (select >> 2 * (l % 4) & 3)];
    return r;
}
SOFT __m512 soft_mm512_shuffle_f32x4(__m512 a, __m512 b, int select)
{
    __m512 r;
    EACH(16) r.f[l] = (l < 8 ? a : b).f[4 * (select >> 2 * (l / 4) & 3) + l % 4];
    return r;
}
SOFT __m512 soft_mm512_permutexvar_ps(__m512i at, __m512 a)
{
    __m512 r;
    EACH(16) r.f[l] = a.f[at.u32[l] & 15];
    return r;
}
SOFT __m512 soft_mm512_permutex2var_ps(__m512 a, __m512i at, __m512 b)
{
    __m512 r;
    EACH(16) r.f[l] = (at.u32[l] & 16 ? b : a).f[at.u32[l] & 15];
    return r;
}

/* --- integers ----------------------------------------------------------------------------------------------------- */

SOFT __m512i soft_mm512_and_si512(__m512i a, __m512i b)
{
    EACH(16) a.u32[l] &= b.u32[l];
    return a;
}
SOFT __m512i soft_mm512_and_epi32(__m512i a, __m512i b)
{
    EACH(16) a.u32[l] &= b.u32[l];
    return a;
}
SOFT __m512i soft_mm512_or_si512(__m512i a, __m512i b)
{
    EACH(16) a.u32[l] |= b.u32[l];
    return a;
}
SOFT __m512i soft_mm512_or_epi32(__m512i a, __m512i b)
{
    EACH(16) a.u32[l] |= b.u32[l];
    return a;
}
SOFT __m512i soft_mm512_xor_si512(__m512i a, __m512i b)
{
    EACH(16) a.u32[l] ^= b.u32[l];
    return a;
}
SOFT __m512i soft_mm512_xor_epi32(__m512i a, __m512i b)
{
    EACH(16) a.u32[l] ^= b.u32[l];
    return a;
}
SOFT __m512i soft_mm512_andnot_si512(__m512i a, __m512i b)
{
    EACH(16) a.u32[l] = ~a.u32[l] & b.u32[l];
    return a;
}
/* Bit 4 a + 2 b + c of the table, for every bit. */
SOFT __m512i soft_mm512_ternarylogic_epi32(__m512i a, __m512i b, __m512i c, int table)
{
    __m512i r = {0};
    for (int k = 0; k < 8; k++)
        EACH(16) if (table >> k & 1) r.u32[l] |= (k & 4 ? a.u32[l] : ~a.u32[l]) & (k & 2 ? b.u32[l] : ~b.u32[l]) &
                                                 (k & 1 ? c.u32[l] : ~c.u32[l]);
    return r;
}
SOFT __m512i soft_mm512_add_epi8(__m512i a, __m512i b)
{
    EACH(64) a.u8[l] = (uint8_t)(a.u8[l] + b.u8[l]);
    return a;
}
SOFT __m512i soft_mm512_sub_epi8(__m512i a, __m512i b)
{
    EACH(64) a.u8[l] = (uint8_t)(a.u8[l] - b.u8[l]);
    return a;
}
SOFT __m512i soft_mm512_add_epi16(__m512i a, __m512i b)
{
    EACH(32) a.u16[l] = (uint16_t)(a.u16[l] + b.u16[l]);
    return a;
}
SOFT __m512i soft_mm512_sub_epi16(__m512i a, __m512i b)
{
    EACH(32) a.u16[l] = (uint16_t)(a.u16[l] - b.u16[l]);
    return a;
}
SOFT __m512i soft_mm512_add_epi32(__m512i a, __m512i b)
{
    EACH(16) a.u32[l] = (uint32_t)(a.u32[l] + b.u32[l]);
    return a;
}
SOFT __m512i soft_mm512_sub_epi32(__m512i a, __m512i b)
{
    EACH(16) a.u32[l] = (uint32_t)(a.u32[l] - b.u32[l]);
    return a;
}
SOFT __m512i soft_mm512_mullo_epi32(__m512i a, __m512i b)
{
    EACH(16) a.u32[l] *= b.u32[l];
    return a;
}
SOFT __m512i soft_mm512_mullo_epi16(__m512i a, __m512i b)
{
    EACH(32) a.u16[l] = (uint16_t)((uint32_t)a.u16[l] * b.u16[l]);
    return a;
}
SOFT __m512i soft_mm512_max_epu32(__m512i a, __m512i b)
{
    EACH(16) a.u32[l] = a.u32[l] > b.u32[l] ? a.u32[l] : b.u32[l];
    return a;
}
SOFT __m512i soft_mm512_max_epi32(__m512i a, __m512i b)
{
    EACH(16) a.i32[l] = a.i32[l] > b.i32[l] ? a.i32[l] : b.i32[l];
    return a;
}
SOFT __m512i soft_mm512_min_epi32(__m512i a, __m512i b)
{
    EACH(16) a.i32[l] = a.i32[l] < b.i32[l] ? a.i32[l] : b.i32[l];
    return a;
}
SOFT unsigned soft_mm512_reduce_max_epu32(__m512i a)
{
    unsigned r = 0;
    EACH(16) r = a.u32[l] > r ? a.u32[l] : r;
    return r;
}
SOFT int soft_mm512_reduce_add_epi32(__m512i a)
{
    uint32_t r = 0;
    EACH(16) r += a.u32[l];
    return (int)r;
}
/* Shifts by the width or more leave zeros (or signs). The counts have the types that gcc gives them. */
SOFT __m512i soft_mm512_slli_epi16(__m512i a, int by)
{
    EACH(32) a.u16[l] = (uint16_t)(by < 16 ? a.u16[l] << by : 0);
    return a;
}
SOFT __m512i soft_mm512_srli_epi16(__m512i a, int by)
{
    EACH(32) a.u16[l] = (uint16_t)(by < 16 ? a.u16[l] >> by : 0);
    return a;
}
SOFT __m512i soft_mm512_srai_epi16(__m512i a, int by)
{
    EACH(32) a.i16[l] = (int16_t)(a.i16[l] >> (by < 16 ? by : 15));
    return a;
}
SOFT __m512i soft_mm512_rol_epi32(__m512i a, unsigned by)
{
    EACH(16) a.u32[l] = a.u32[l] << by % 32 | a.u32[l] >> (32 - by) % 32;
    return a;
}
SOFT __m512i soft_mm512_slli_epi32(__m512i a, unsigned by)
{
    EACH(16) a.u32[l] = (uint32_t)(by < 32 ? a.u32[l] << by : 0);
    return a;
}
SOFT __m512i soft_mm512_srli_epi32(__m512i a, unsigned by)
{
    EACH(16) a.u32[l] = (uint32_t)(by < 32 ? a.u32[l] >> by : 0);
    return a;
}
SOFT __m512i soft_mm512_srai_epi32(__m512i a, unsigned by)
{
    EACH(16) a.i32[l] = (int32_t)(a.i32[l] >> (by < 32 ? by : 31));
    return a;
}
SOFT __m512i soft_mm512_shuffle_epi8(__m512i a, __m512i at)
{
    __m512i r;
    EACH(64) r.u8[l] = at.u8[l] & 0x80 ? 0 : a.u8[l / 16 * 16 + (at.u8[l] & 15)];
    return r;
}
SOFT __m512i soft_mm512_mask_shuffle_epi8(__m512i a, uint64_t live, __m512i b, __m512i at)
{
    __m512i moved = soft_mm512_shuffle_epi8(b, at);
    EACH(64) a.u8[l] = live >> l & 1 ? moved.u8[l] : a.u8[l];
    return a;
}
SOFT uint32_t soft_mm512_test_epi16_mask(__m512i a, __m512i b)
{
    uint32_t r = 0;
    EACH(32) r |= (uint32_t)((a.u16[l] & b.u16[l]) != 0) << l;
    return r;
}
SOFT __m512i soft_mm512_mask_mov_epi16(__m512i a, uint32_t live, __m512i b)
{
    EACH(32) a.u16[l] = live >> l & 1 ? b.u16[l] : a.u16[l];
    return a;
}
SOFT __m512i soft_mm512_permutex2var_epi16(__m512i a, __m512i at, __m512i b)
{
    __m512i r;
    EACH(32) r.u16[l] = at.u16[l] & 32 ? b.u16[at.u16[l] & 31] : a.u16[at.u16[l] & 31];
    return r;
}
SOFT __m512i soft_mm512_srlv_epi16(__m512i a, __m512i b)
{
    EACH(32) a.u16[l] = (uint16_t)(b.u16[l] < 16 ? a.u16[l] >> b.u16[l] : 0);
    return a;
}
SOFT uint64_t soft_mm512_test_epi8_mask(__m512i a, __m512i b)
{
    uint64_t r = 0;
    EACH(64) r |= (uint64_t)((a.u8[l] & b.u8[l]) != 0) << l;
    return r;
}
SOFT __m512i soft_mm512_mask_sub_epi8(__m512i r, uint64_t live, __m512i a, __m512i b)
{
    EACH(64) r.u8[l] = live >> l & 1 ? (uint8_t)(a.u8[l] - b.u8[l]) : r.u8[l];
    return r;
}
SOFT __m512i soft_mm512_mask_broadcastq_epi64(__m512i r, uint8_t live, __m128i a)
{
    EACH(8) r.i64[l] = live >> l & 1 ? _mm_cvtsi128_si64(a) : r.i64[l];
    return r;
}
SOFT __m512i soft_mm512_i32gather_epi32(__m512i at, const void *base, int scale)
{
    __m512i r;
    EACH(16) memcpy(&r.i32[l], (const char *)base + (ptrdiff_t)at.i32[l] * scale, 4);
    return r;
}
SOFT __m512i soft_mm512_i32gather_epi64(__m256i at, const void *base, int scale)
{
    __m512i r;
    int32_t i[8];
    memcpy(i, &at, sizeof i);
    EACH(8) memcpy(&r.i64[l], (const char *)base + (ptrdiff_t)i[l] * scale, 8);
    return r;
}
SOFT __m512i soft_mm512_permutexvar_epi32(__m512i at, __m512i a)
{
    __m512i r;
    EACH(16) r.u32[l] = a.u32[at.u32[l] & 15];
    return r;
}
SOFT __m512i soft_mm512_permutexvar_epi16(__m512i at, __m512i a)
{
    __m512i r;
    EACH(32) r.u16[l] = a.u16[at.u16[l] & 31];
    return r;
}
SOFT __m512i soft_mm512_permutex2var_epi32(__m512i a, __m512i at, __m512i b)
{
    __m512i r;
    EACH(16) r.u32[l] = (at.u32[l] & 16 ? b : a).u32[at.u32[l] & 15];
    return r;
}
SOFT __m512i soft_mm512_shuffle_epi32(__m512i a, int select)
{
    __m512i r;
    EACH(16) r.u32[l] = a.u32[l / 4 * 4 + (select >> 2 * (l % 4) & 3)];
    return r;
}
SOFT __m512i soft_mm512_shuffle_i32x4(__m512i a, __m512i b, int select)
{
    __m512i r;
    EACH(16) r.u32[l] = (l < 8 ? a : b).u32[4 * (select >> 2 * (l / 4) & 3) + l % 4];
    return r;
}
SOFT __m512i soft_mm512_unpacklo_epi8(__m512i a, __m512i b)
{
    __m512i r;
    EACH(64) r.u8[l] = (l % 2 ? b : a).u8[l / 16 * 16 + l % 16 / 2];
    return r;
}
SOFT __m512i soft_mm512_unpackhi_epi8(__m512i a, __m512i b)
{
    __m512i r;
    EACH(64) r.u8[l] = (l % 2 ? b : a).u8[l / 16 * 16 + 8 + l % 16 / 2];
    return r;
}
SOFT __m512i soft_mm512_unpacklo_epi16(__m512i a, __m512i b)
{
    __m512i r;
    EACH(32) r.u16[l] = (l % 2 ? b : a).u16[l / 8 * 8 + l % 8 / 2];
    return r;
}
SOFT __m512i soft_mm512_unpackhi_epi16(__m512i a, __m512i b)
{
    __m512i r;
    EACH(32) r.u16[l] = (l % 2 ? b : a).u16[l / 8 * 8 + 4 + l % 8 / 2];
    return r;
}
SOFT __m512i soft_mm512_unpacklo_epi32(__m512i a, __m512i b)
{
    __m512i r;
    EACH(16) r.u32[l] = (l % 2 ? b : a).u32[l / 4 * 4 + l % 4 / 2];
    return r;
}
SOFT __m512i soft_mm512_unpackhi_epi32(__m512i a, __m512i b)
{
    __m512i r;
    EACH(16) r.u32[l] = (l % 2 ? b : a).u32[l / 4 * 4 + 2 + l % 4 / 2];
    return r;
}
SOFT __m512i soft_mm512_unpacklo_epi64(__m512i a, __m512i b)
{
    __m512i r;
    EACH(8) r.u64[l] = (l % 2 ? b : a).u64[l / 2 * 2 + l % 2 / 2];
    return r;
}
SOFT __m512i soft_mm512_unpackhi_epi64(__m512i a, __m512i b)
{
    __m512i r;
    EACH(8) r.u64[l] = (l % 2 ? b : a).u64[l / 2 * 2 + 1 + l % 2 / 2];
    return r;
}
SOFT __m512i soft_mm512_madd_epi16(__m512i a, __m512i b)
{
    __m512i r;
    EACH(16) r.u32[l] = (uint32_t)(a.i16[2 * l] * b.i16[2 * l]) + (uint32_t)(a.i16[2 * l + 1] * b.i16[2 * l + 1]);
    return r;
}
/* Four products of unsigned and signed bytes are added to each lane, without saturation; vpmaddwd is exact. */
SOFT __m256i soft_mm256_dpbusd_avx_epi32(__m256i acc, __m256i a, __m256i b)
{
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(a, _mm256_set1_epi16(255)),
                                           _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8));
    return _mm256_add_epi32(acc, _mm256_add_epi32(even, odd));
}
SOFT __m512i soft_mm512_dpbusd_epi32(__m512i acc, __m512i a, __m512i b)
{
    EACH(2) acc.half[l] = soft_mm256_dpbusd_avx_epi32(acc.half[l], a.half[l], b.half[l]);
    return acc;
}
SOFT __m512i soft_mm512_dpwssd_epi32(__m512i acc, __m512i a, __m512i b)
{
    EACH(2) acc.half[l] = _mm256_add_epi32(acc.half[l], _mm256_madd_epi16(a.half[l], b.half[l]));
    return acc;
}
SOFT __m256i soft_mm256_dpwssd_avx_epi32(__m256i acc, __m256i a, __m256i b)
{
    return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b));
}
SOFT __m256i soft_mm256_dpbusd_epi32(__m256i acc, __m256i a, __m256i b)
{
    return soft_mm256_dpbusd_avx_epi32(acc, a, b);
}
/* Adds the products of two columns of bfloat16 to each sum, that of the upper halves first, rounding each to nearest
 * even. Subnormal inputs and results (tiny after rounding) count as zeros: here because of the rounding mode, in the
 * instruction itself always, as was checked on a Zen 4 with all exponents. */
SOFT __m512 soft_dot_pairs(__m512 acc, __m512i a, __m512i b)
{
    EACH(16)
    {
        const uint32_t upper[] = {a.u32[l] & 0xffff0000, b.u32[l] & 0xffff0000};
        const uint32_t lower[] = {a.u32[l] << 16, b.u32[l] << 16};
        float u[2], v[2];
        memcpy(u, upper, sizeof u);
        memcpy(v, lower, sizeof v);
        acc.f[l] = fmaf(v[0], v[1], fmaf(u[0], u[1], acc.f[l]));
    }
    return acc;
}

/* --- the intrinsics' names -------------------------------------------------------------------------------------- */

#undef _mm256_dpbusd_epi32
#undef _mm512_setr_epi32
#define _mm512_load_si512 soft_mm512_load_si512
#define _mm512_load_epi32 soft_mm512_load_epi32
#define _mm512_load_ps soft_mm512_load_ps
#define _mm512_loadu_si512 soft_mm512_loadu_si512
#define _mm512_loadu_epi8 soft_mm512_loadu_epi8
#define _mm512_loadu_epi32 soft_mm512_loadu_epi32
#define _mm512_loadu_ps soft_mm512_loadu_ps
#define _mm512_store_si512 soft_mm512_store_si512
#define _mm512_store_epi32 soft_mm512_store_epi32
#define _mm512_store_ps soft_mm512_store_ps
#define _mm512_stream_si512 soft_mm512_stream_si512
#define _mm512_storeu_si512 soft_mm512_storeu_si512
#define _mm512_storeu_epi8 soft_mm512_storeu_epi8
#define _mm512_storeu_epi32 soft_mm512_storeu_epi32
#define _mm512_storeu_ps soft_mm512_storeu_ps
#define _mm512_maskz_loadu_epi8 soft_mm512_maskz_loadu_epi8
#define _mm512_mask_loadu_epi8 soft_mm512_mask_loadu_epi8
#define _mm512_mask_storeu_epi8 soft_mm512_mask_storeu_epi8
#define _mm512_maskz_loadu_epi16 soft_mm512_maskz_loadu_epi16
#define _mm512_mask_loadu_epi16 soft_mm512_mask_loadu_epi16
#define _mm512_mask_storeu_epi16 soft_mm512_mask_storeu_epi16
#define _mm512_maskz_loadu_epi32 soft_mm512_maskz_loadu_epi32
#define _mm512_mask_loadu_epi32 soft_mm512_mask_loadu_epi32
#define _mm512_mask_storeu_epi32 soft_mm512_mask_storeu_epi32
#define _mm512_maskz_loadu_ps soft_mm512_maskz_loadu_ps
#define _mm512_mask_loadu_ps soft_mm512_mask_loadu_ps
#define _mm512_mask_storeu_ps soft_mm512_mask_storeu_ps
#define _mm256_maskz_loadu_epi16 soft_mm256_maskz_loadu_epi16
#define _mm256_maskz_loadu_ps soft_mm256_maskz_loadu_ps
#define _mm256_mask_storeu_ps soft_mm256_mask_storeu_ps
#define _mm_maskz_loadu_epi8 soft_mm_maskz_loadu_epi8
#define _mm512_setzero_si512 soft_mm512_setzero_si512
#define _mm512_setzero_ps soft_mm512_setzero_ps
#define _mm512_set1_epi8 soft_mm512_set1_epi8
#define _mm512_set1_epi16 soft_mm512_set1_epi16
#define _mm512_set1_epi32 soft_mm512_set1_epi32
#define _mm512_set1_epi64 soft_mm512_set1_epi64
#define _mm512_set1_ps soft_mm512_set1_ps
#define _mm512_setr_epi32 soft_mm512_setr_epi32
#define _mm512_castsi512_ps soft_mm512_castsi512_ps
#define _mm512_castps_si512 soft_mm512_castps_si512
#define _mm512_castsi512_si256 soft_mm512_castsi512_si256
#define _mm512_castps512_ps256 soft_mm512_castps512_ps256
#define _mm512_castsi256_si512 soft_mm512_castsi256_si512
#define _mm512_castps256_ps512 soft_mm512_castps256_ps512
#define _mm512_extracti64x4_epi64 soft_mm512_extracti64x4_epi64
#define _mm512_extracti32x8_epi32 soft_mm512_extracti32x8_epi32
#define _mm512_extractf32x8_ps soft_mm512_extractf32x8_ps
#define _mm512_extracti32x4_epi32 soft_mm512_extracti32x4_epi32
#define _mm512_extractf32x4_ps soft_mm512_extractf32x4_ps
#define _mm512_inserti64x4 soft_mm512_inserti64x4
#define _mm512_inserti32x8 soft_mm512_inserti32x8
#define _mm512_insertf32x8 soft_mm512_insertf32x8
#define _mm512_broadcast_i32x4 soft_mm512_broadcast_i32x4
#define _mm512_broadcast_i64x4 soft_mm512_broadcast_i64x4
#define _mm512_broadcast_f32x4 soft_mm512_broadcast_f32x4
#define _mm512_broadcastss_ps soft_mm512_broadcastss_ps
#define _mm512_cvtepi8_epi32 soft_mm512_cvtepi8_epi32
#define _mm512_cvtepu8_epi32 soft_mm512_cvtepu8_epi32
#define _mm512_cvtepi16_epi32 soft_mm512_cvtepi16_epi32
#define _mm512_cvtepu16_epi32 soft_mm512_cvtepu16_epi32
#define _mm512_cvtepi8_epi16 soft_mm512_cvtepi8_epi16
#define _mm512_cvtepu8_epi16 soft_mm512_cvtepu8_epi16
#define _mm512_cvtepi32_epi8 soft_mm512_cvtepi32_epi8
#define _mm512_cvtsepi32_epi8 soft_mm512_cvtsepi32_epi8
#define _mm512_cvtepi32_epi16 soft_mm512_cvtepi32_epi16
#define _mm512_cvtepi16_epi8 soft_mm512_cvtepi16_epi8
#define _mm512_cvtepi32_ps soft_mm512_cvtepi32_ps
#define _mm512_cvtps_epi32 soft_mm512_cvtps_epi32
#define _mm512_maskz_cvtps_epi32 soft_mm512_maskz_cvtps_epi32
#define _mm512_cvtph_ps soft_mm512_cvtph_ps
#define _mm512_add_ps soft_mm512_add_ps
#define _mm512_sub_ps soft_mm512_sub_ps
#define _mm512_mul_ps soft_mm512_mul_ps
#define _mm512_div_ps soft_mm512_div_ps
#define _mm512_packs_epi32 soft_mm512_packs_epi32
#define _mm512_packs_epi16 soft_mm512_packs_epi16
#undef _mm512_shuffle_epi32
#define _mm512_shuffle_epi32 soft_mm512_shuffle_epi32
#define _mm512_max_ps soft_mm512_max_ps
#define _mm512_min_ps soft_mm512_min_ps
#define _mm512_fmadd_ps soft_mm512_fmadd_ps
#define _mm512_fmsub_ps soft_mm512_fmsub_ps
#define _mm512_fnmadd_ps soft_mm512_fnmadd_ps
#define _mm512_reduce_ps soft_mm512_reduce_ps
#define _mm512_maskz_scalef_ps soft_mm512_maskz_scalef_ps
#define _mm512_cmp_ps_mask soft_mm512_cmp_ps_mask
#define _mm512_mask_mov_ps soft_mm512_mask_mov_ps
#define _mm512_maskz_mov_ps soft_mm512_maskz_mov_ps
#define _mm512_mask_blend_ps soft_mm512_mask_blend_ps
#define _mm512_movehdup_ps soft_mm512_movehdup_ps
#define _mm512_moveldup_ps soft_mm512_moveldup_ps
#define _mm512_unpacklo_ps soft_mm512_unpacklo_ps
#define _mm512_unpackhi_ps soft_mm512_unpackhi_ps
#define _mm512_shuffle_ps soft_mm512_shuffle_ps
#define _mm512_shuffle_f32x4 soft_mm512_shuffle_f32x4
#define _mm512_permutexvar_ps soft_mm512_permutexvar_ps
#define _mm512_permutex2var_ps soft_mm512_permutex2var_ps
#define _mm512_and_si512 soft_mm512_and_si512
#define _mm512_and_epi32 soft_mm512_and_epi32
#define _mm512_or_si512 soft_mm512_or_si512
#define _mm512_or_epi32 soft_mm512_or_epi32
#define _mm512_xor_si512 soft_mm512_xor_si512
#define _mm512_xor_epi32 soft_mm512_xor_epi32
#define _mm512_andnot_si512 soft_mm512_andnot_si512
#define _mm512_ternarylogic_epi32 soft_mm512_ternarylogic_epi32
#define _mm512_add_epi8 soft_mm512_add_epi8
#define _mm512_sub_epi8 soft_mm512_sub_epi8
#define _mm512_add_epi16 soft_mm512_add_epi16
#define _mm512_sub_epi16 soft_mm512_sub_epi16
#define _mm512_add_epi32 soft_mm512_add_epi32
#define _mm512_sub_epi32 soft_mm512_sub_epi32
#define _mm512_mullo_epi16 soft_mm512_mullo_epi16
#define _mm512_mullo_epi32 soft_mm512_mullo_epi32
#define _mm512_max_epu32 soft_mm512_max_epu32
#define _mm512_max_epi32 soft_mm512_max_epi32
#define _mm512_min_epi32 soft_mm512_min_epi32
#define _mm512_reduce_max_epu32 soft_mm512_reduce_max_epu32
#define _mm512_reduce_add_epi32 soft_mm512_reduce_add_epi32
#define _mm512_slli_epi16 soft_mm512_slli_epi16
#define _mm512_srli_epi16 soft_mm512_srli_epi16
#define _mm512_srai_epi16 soft_mm512_srai_epi16
#undef _mm512_rol_epi32
#define _mm512_rol_epi32 soft_mm512_rol_epi32
#define _mm512_slli_epi32 soft_mm512_slli_epi32
#define _mm512_srli_epi32 soft_mm512_srli_epi32
#define _mm512_srai_epi32 soft_mm512_srai_epi32
#define _mm512_shuffle_epi8 soft_mm512_shuffle_epi8
#define _mm512_mask_shuffle_epi8 soft_mm512_mask_shuffle_epi8
#define _mm512_test_epi16_mask soft_mm512_test_epi16_mask
#define _mm512_mask_mov_epi16 soft_mm512_mask_mov_epi16
#define _mm512_permutex2var_epi16 soft_mm512_permutex2var_epi16
#define _mm512_srlv_epi16 soft_mm512_srlv_epi16
#define _mm512_test_epi8_mask soft_mm512_test_epi8_mask
#define _mm512_mask_sub_epi8 soft_mm512_mask_sub_epi8
#define _mm512_mask_broadcastq_epi64 soft_mm512_mask_broadcastq_epi64
#undef _mm512_i32gather_epi32
#define _mm512_i32gather_epi32 soft_mm512_i32gather_epi32
#undef _mm512_i32gather_epi64
#define _mm512_i32gather_epi64 soft_mm512_i32gather_epi64
#define _mm512_permutexvar_epi32 soft_mm512_permutexvar_epi32
#define _mm512_permutexvar_epi16 soft_mm512_permutexvar_epi16
#define _mm512_permutex2var_epi32 soft_mm512_permutex2var_epi32
#define _mm512_shuffle_i32x4 soft_mm512_shuffle_i32x4
#define _mm512_unpacklo_epi8 soft_mm512_unpacklo_epi8
#define _mm512_unpackhi_epi8 soft_mm512_unpackhi_epi8
#define _mm512_unpacklo_epi16 soft_mm512_unpacklo_epi16
#define _mm512_unpackhi_epi16 soft_mm512_unpackhi_epi16
#define _mm512_unpacklo_epi32 soft_mm512_unpacklo_epi32
#define _mm512_unpackhi_epi32 soft_mm512_unpackhi_epi32
#define _mm512_unpacklo_epi64 soft_mm512_unpacklo_epi64
#define _mm512_unpackhi_epi64 soft_mm512_unpackhi_epi64
#define _mm512_madd_epi16 soft_mm512_madd_epi16
#define _mm512_dpbusd_epi32 soft_mm512_dpbusd_epi32
#define _mm512_dpwssd_epi32 soft_mm512_dpwssd_epi32
#define _mm256_dpbusd_avx_epi32 soft_mm256_dpbusd_avx_epi32
#define _mm256_dpwssd_avx_epi32 soft_mm256_dpwssd_avx_epi32
#define _mm256_dpbusd_epi32 soft_mm256_dpbusd_epi32
#define DOT_PAIRS soft_dot_pairs /* _mm512_dpbf16_ps() */

#undef EACH
#undef SOFT

#endif
