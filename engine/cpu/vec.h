/* vec.h - a vector of sixteen floats, implemented in four ways: plain C, AVX2 (two registers), AVX-512 (one), NEON
 * (four).
 *
 * Every operation works lane by lane with IEEE rounding, so that code written with it (ops_body.h) gives the same bits
 * in all builds; the plain C version is the definition. The including file picks one by defining PP_VEC_SCALAR,
 * PP_VEC_AVX2, PP_VEC_AVX512 or PP_VEC_NEON, and with PP_VEC_AVX2 also PP_VEC_VNNI for processors with AVX-VNNI.
 *
 * Dot products of integers: a `k16` holds the bytes that 16 lanes multiply in one step, in an order that suits the
 * build, and dot_query() brings a query into the same order: DOT_STEPS words of 32 bits for 32 values. Integer sums are
 * exact, so that they do not depend on the order. Callers take four steps at a time: dot_load_*(k, step) expects k at
 * the first of these and a constant step from 0 to 3, as some steps share bytes.
 *
 * Products of 16-bit integers, at most 127 * 257 in magnitude, and bytes: an `i_wide` holds the sums of 16 lanes.
 * wide_words() converts four such integers to the two words that the build needs; wide_begin() starts the sums, given
 * the sum of all integers that will be multiplied, because the bytes are stored with 128 added; and wide_dot() adds the
 * products of four of them and the four bytes of each lane. */
#ifndef PP_CPU_VEC_H
#define PP_CPU_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "engine/quant.h"

enum { LANES = 16 };

/* 1.5 * 2^23. Adding it to a float within -2^22 .. 2^22 rounds this to an integer (to nearest even), and the bits of
 * the sum are V_ROUNDER_BITS + that integer. */
#define V_ROUNDER 12582912.0f
enum { V_ROUNDER_BITS = 0x4B400000 };

#ifndef ALWAYS_INLINE
#ifdef PP_VEC_SCALAR /* the definition need not be fast, and compiles in half the time where the compiler decides */
#define ALWAYS_INLINE static inline
#else
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#endif
#endif

#if defined(PP_VEC_AVX512) || defined(PP_VEC_AVX2)
#include <immintrin.h>

/* Halves of the vector are added, or compared, until one number is left: the order that v_sum() and v_largest()
 * define. */
static inline float sum_of_8(__m256 a)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
static inline float largest_of_8(__m256 a)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
#endif

#if defined(PP_VEC_AVX512)

typedef __m512 v16;
typedef __m512i i16x32; /* sixteen int32 */

static inline v16 v_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void v_store(float *p, v16 a) { _mm512_storeu_ps(p, a); }
static inline v16 v_set1(float x) { return _mm512_set1_ps(x); }
static inline v16 v_add(v16 a, v16 b) { return _mm512_add_ps(a, b); }
static inline v16 v_sub(v16 a, v16 b) { return _mm512_sub_ps(a, b); }
static inline v16 v_mul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
static inline v16 v_div(v16 a, v16 b) { return _mm512_div_ps(a, b); }
static inline v16 v_fma(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }
static inline v16 v_max(v16 a, v16 b) { return _mm512_max_ps(a, b); }
static inline v16 v_min(v16 a, v16 b) { return _mm512_min_ps(a, b); }
static inline v16 v_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
static inline v16 v_times_pow2(v16 a, v16 n)
{
    return _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(a), _mm512_slli_epi32(_mm512_castps_si512(n), 23)));
}
static inline v16 v_fraction(v16 x) { return _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF); }
static inline v16 v_times_floor_pow2(v16 a, v16 x, v16 least)
{
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, least, _CMP_GE_OQ), a, x);
}
static inline v16 v_zero_where_less(v16 x, v16 limit, v16 y)
{
    return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, limit, _CMP_LT_OQ), _mm512_setzero_ps());
}
static inline v16 v_keep(v16 a, int from, int to, float fill)
{
    return _mm512_mask_mov_ps(_mm512_set1_ps(fill), (__mmask16)((1u << to) - (1u << from)), a);
}
static inline i16x32 i_set1(int32_t x) { return _mm512_set1_epi32(x); }

typedef __m512i k16;
enum { DOT_STEPS = 8 }; /* four bytes each */

static inline k16 dot_load_u8(const uint8_t *k, int step) { return _mm512_loadu_si512(k + step * 64); }
static inline k16 dot_load_u4(const uint8_t *k, int step)
{
    __m512i x = _mm512_loadu_si512(k + step / 2 * 64);
    return _mm512_and_si512(step % 2 ? _mm512_srli_epi16(x, 4) : x, _mm512_set1_epi8(15));
}
static inline i16x32 i_dot(i16x32 acc, k16 k, int32_t q)
{
    return _mm512_dpbusd_epi32(acc, k, _mm512_set1_epi32(q));
}
static inline k16 pair_load_i8(const uint8_t *p)
{
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p));
}
static inline k16 pair_load_u4(const uint8_t *p, int high)
{
    __m512i x = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)p));
    x = high ? _mm512_srli_epi16(x, 4) : _mm512_and_si512(x, _mm512_set1_epi16(15));
    return _mm512_sub_epi16(x, _mm512_set1_epi16(8));
}
static inline i16x32 i_pair(i16x32 acc, k16 v, int32_t w)
{
    return _mm512_dpwssd_epi32(acc, v, _mm512_set1_epi32(w));
}
static inline i16x32 i_join(i16x32 low, i16x32 high) { return _mm512_add_epi32(low, _mm512_slli_epi32(high, 8)); }
static inline v16 v_butterflies(v16 a, const int step)
{
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512 other = step == 8   ? _mm512_shuffle_f32x4(a, a, 0x4E)
                   : step == 4 ? _mm512_shuffle_f32x4(a, a, 0xB1)
                   : step == 2 ? _mm512_shuffle_ps(a, a, 0x4E)
                               : _mm512_shuffle_ps(a, a, 0xB1);
    __m512i second = _mm512_and_si512(lanes, _mm512_set1_epi32(step)); /* step or 0: becomes the sign's bit or 0 */
    __m512i sign = _mm512_slli_epi32(second, step == 8 ? 28 : step == 4 ? 29 : step == 2 ? 30 : 31);
    return _mm512_add_ps(other, _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(a), sign)));
}
enum { WEIGHTS_UNIT = 32 };
static inline void v_store_weights(int16_t *p, v16 a, v16 b)
{
    const __m512i lower = _mm512_broadcast_i32x4(_mm_setr_epi32(0x05040100, 0x0D0C0908, 0x05040100, 0x0D0C0908));
    __m512i near = _mm512_shuffle_epi8(_mm512_castps_si512(a), lower);
    _mm512_storeu_si512(p, _mm512_mask_shuffle_epi8(near, 0xFF00FF00FF00FF00, _mm512_castps_si512(b), lower));
}
static inline __m256 half_of(__m512 a, const int high)
{
    return high ? _mm256_castsi256_ps(_mm512_extracti64x4_epi64(_mm512_castps_si512(a), 1)) : _mm512_castps512_ps256(a);
}
static inline float v_sum(v16 a)
{
    return sum_of_8(_mm256_add_ps(half_of(a, 0), half_of(a, 1)));
}
static inline float v_largest(v16 a)
{
    return largest_of_8(_mm256_max_ps(half_of(a, 0), half_of(a, 1)));
}
static inline v16 v_load_f8(const uint8_t *p)
{
    __m256i x = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));
    __m256i sign = _mm256_and_si256(_mm256_slli_epi16(x, 8), _mm256_set1_epi16(-32768));
    __m256i rest = _mm256_and_si256(_mm256_slli_epi16(x, 7), _mm256_set1_epi16(0x3F80));
    return _mm512_cvtph_ps(_mm256_or_si256(sign, rest));
}
static inline v16 i_to_float(i16x32 a) { return _mm512_cvtepi32_ps(a); }
static inline v16 i_as_float(i16x32 a) { return _mm512_castsi512_ps(a); }
static inline v16 v_bits_to_float(v16 a) { return _mm512_cvtepi32_ps(_mm512_castps_si512(a)); }
static inline v16 v_load_i8(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

#elif defined(PP_VEC_AVX2)

typedef struct { __m256 lo, hi; } v16;
typedef struct { __m256i lo, hi; } i16x32;

static inline v16 v_load(const float *p) { return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void v_store(float *p, v16 a) { _mm256_storeu_ps(p, a.lo); _mm256_storeu_ps(p + 8, a.hi); }
static inline v16 v_set1(float x) { return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline v16 v_add(v16 a, v16 b) { return (v16){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
static inline v16 v_sub(v16 a, v16 b) { return (v16){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
static inline v16 v_mul(v16 a, v16 b) { return (v16){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
static inline v16 v_div(v16 a, v16 b) { return (v16){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
static inline v16 v_fma(v16 a, v16 b, v16 c)
{
    return (v16){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
static inline v16 v_max(v16 a, v16 b) { return (v16){_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
static inline v16 v_min(v16 a, v16 b) { return (v16){_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
static inline v16 v_load_f16(const uint16_t *p)
{
    return (v16){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                 _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)))};
}
static inline __m256 half_times_pow2(__m256 a, __m256 n)
{
    __m256i e = _mm256_slli_epi32(_mm256_castps_si256(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), e));
}
static inline v16 v_times_pow2(v16 a, v16 n)
{
    return (v16){half_times_pow2(a.lo, n.lo), half_times_pow2(a.hi, n.hi)};
}
static inline v16 v_fraction(v16 x)
{
    return (v16){_mm256_sub_ps(x.lo, _mm256_floor_ps(x.lo)), _mm256_sub_ps(x.hi, _mm256_floor_ps(x.hi))};
}
static inline __m256 half_times_floor_pow2(__m256 a, __m256 x, __m256 least)
{
    __m256i e = _mm256_slli_epi32(_mm256_cvtps_epi32(_mm256_floor_ps(x)), 23);
    __m256 product = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), e));
    return _mm256_and_ps(_mm256_cmp_ps(x, least, _CMP_GE_OQ), product);
}
static inline v16 v_times_floor_pow2(v16 a, v16 x, v16 least)
{
    return (v16){half_times_floor_pow2(a.lo, x.lo, least.lo), half_times_floor_pow2(a.hi, x.hi, least.hi)};
}
static inline v16 v_zero_where_less(v16 x, v16 limit, v16 y)
{
    return (v16){_mm256_andnot_ps(_mm256_cmp_ps(x.lo, limit.lo, _CMP_LT_OQ), y.lo),
                 _mm256_andnot_ps(_mm256_cmp_ps(x.hi, limit.hi, _CMP_LT_OQ), y.hi)};
}
static inline v16 v_keep(v16 a, int from, int to, float fill)
{
    float t[LANES];
    v_store(t, a);
    for (int l = 0; l < LANES; l++)
        t[l] = l >= from && l < to ? t[l] : fill;
    return v_load(t);
}
static inline i16x32 i_set1(int32_t x) { return (i16x32){_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }

typedef struct { __m256i lo, hi; } k16;

#if defined(PP_VEC_VNNI)
enum { DOT_STEPS = 8 }; /* the same order as for AVX-512, in two halves */

static inline k16 dot_load_u8(const uint8_t *k, int step)
{
    k += step * 64;
    return (k16){_mm256_loadu_si256((const __m256i *)k), _mm256_loadu_si256((const __m256i *)(k + 32))};
}
static inline __m256i nibbles(__m256i x, int high)
{
    return _mm256_and_si256(high ? _mm256_srli_epi16(x, 4) : x, _mm256_set1_epi8(15));
}
static inline k16 dot_load_u4(const uint8_t *k, int step)
{
    k16 x = dot_load_u8(k, step / 2);
    return (k16){nibbles(x.lo, step % 2), nibbles(x.hi, step % 2)};
}
static inline i16x32 i_dot(i16x32 acc, k16 k, int32_t q)
{
    __m256i four = _mm256_set1_epi32(q);
    return (i16x32){_mm256_dpbusd_avx_epi32(acc.lo, k.lo, four), _mm256_dpbusd_avx_epi32(acc.hi, k.hi, four)};
}
static inline i16x32 i_pair(i16x32 acc, k16 v, int32_t w)
{
    __m256i both = _mm256_set1_epi32(w);
    return (i16x32){_mm256_dpwssd_avx_epi32(acc.lo, v.lo, both), _mm256_dpwssd_avx_epi32(acc.hi, v.hi, both)};
}
static inline i16x32 i_join(i16x32 low, i16x32 high)
{
    return (i16x32){_mm256_add_epi32(low.lo, _mm256_slli_epi32(high.lo, 8)),
                    _mm256_add_epi32(low.hi, _mm256_slli_epi32(high.hi, 8))};
}
#else
/* Bytes are widened to pairs of 16 bits, as the sums of vpmaddubsw could saturate: bytes 0 and 2 of each lane's four in
 * one step, bytes 1 and 3 in the next. */
enum { DOT_STEPS = 16 };

static inline k16 k_shift_mask(const uint8_t *k, int shift, int16_t mask)
{
    __m256i lo = _mm256_loadu_si256((const __m256i *)k), hi = _mm256_loadu_si256((const __m256i *)(k + 32));
    if (shift) {
        lo = _mm256_srli_epi16(lo, shift);
        hi = _mm256_srli_epi16(hi, shift);
    }
    if (mask) {
        lo = _mm256_and_si256(lo, _mm256_set1_epi16(mask));
        hi = _mm256_and_si256(hi, _mm256_set1_epi16(mask));
    }
    return (k16){lo, hi};
}
static inline k16 dot_load_u8(const uint8_t *k, int step)
{
    k += step / 2 * 64;
    return step % 2 ? k_shift_mask(k, 8, 0) : k_shift_mask(k, 0, 255);
}
static inline k16 dot_load_u4(const uint8_t *k, int step)
{
    k += step / 4 * 64;
    return step % 4 == 0   ? k_shift_mask(k, 0, 15)
           : step % 4 == 1 ? k_shift_mask(k, 8, 15)
           : step % 4 == 2 ? k_shift_mask(k, 4, 15)
                           : k_shift_mask(k, 12, 0);
}
static inline int32_t dot_query(const int8_t *q, int step)
{
    q += step / 2 * 4 + step % 2;
    return (int32_t)((uint32_t)(uint16_t)q[0] | (uint32_t)(uint16_t)q[2] << 16);
}
static inline i16x32 i_pair(i16x32 acc, k16 v, int32_t w)
{
    __m256i both = _mm256_set1_epi32(w);
    __m256i lo = _mm256_add_epi32(acc.lo, _mm256_madd_epi16(v.lo, both));
    __m256i hi = _mm256_add_epi32(acc.hi, _mm256_madd_epi16(v.hi, both));
    /* Otherwise compilers reorder integer additions, keep the products of several steps at a time, and spill them. */
    __asm__("" : "+x"(lo), "+x"(hi));
    return (i16x32){lo, hi};
}
static inline i16x32 i_dot(i16x32 acc, k16 k, int32_t q) { return i_pair(acc, k, q); }
#endif

static inline k16 pair_load_i8(const uint8_t *p)
{
    return (k16){_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p)),
                 _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(p + 16)))};
}
static inline __m256i u4_half(const uint8_t *p, int high)
{
    __m256i x = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));
    x = high ? _mm256_srli_epi16(x, 4) : _mm256_and_si256(x, _mm256_set1_epi16(15));
    return _mm256_sub_epi16(x, _mm256_set1_epi16(8));
}
static inline k16 pair_load_u4(const uint8_t *p, int high) { return (k16){u4_half(p, high), u4_half(p + 16, high)}; }
static inline __m256 half_butterflies(__m256 a, const int step)
{
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256 other = step == 4   ? _mm256_permute2f128_ps(a, a, 1)
                   : step == 2 ? _mm256_permute_ps(a, 0x4E)
                               : _mm256_permute_ps(a, 0xB1);
    __m256i second = _mm256_and_si256(lanes, _mm256_set1_epi32(step)); /* step or 0: becomes the sign's bit or 0 */
    __m256i sign = _mm256_slli_epi32(second, step == 4 ? 29 : step == 2 ? 30 : 31);
    return _mm256_add_ps(other, _mm256_xor_ps(a, _mm256_castsi256_ps(sign)));
}
static inline v16 v_butterflies(v16 a, const int step)
{
    if (step == 8)
        return (v16){_mm256_add_ps(a.lo, a.hi), _mm256_sub_ps(a.lo, a.hi)};
    return (v16){half_butterflies(a.lo, step), half_butterflies(a.hi, step)};
}
enum { WEIGHTS_UNIT = 16 };
static inline __m256i pack_weights(v16 a)
{
    const __m256i rounder = _mm256_set1_epi32(V_ROUNDER_BITS);
    return _mm256_packs_epi32(_mm256_sub_epi32(_mm256_castps_si256(a.lo), rounder),
                              _mm256_sub_epi32(_mm256_castps_si256(a.hi), rounder));
}
static inline void v_store_weights(int16_t *p, v16 a, v16 b)
{
    _mm256_storeu_si256((__m256i *)p, pack_weights(a));
    _mm256_storeu_si256((__m256i *)(p + 16), pack_weights(b));
}
static inline float v_sum(v16 a) { return sum_of_8(_mm256_add_ps(a.lo, a.hi)); }
static inline float v_largest(v16 a) { return largest_of_8(_mm256_max_ps(a.lo, a.hi)); }
static inline v16 v_load_f8(const uint8_t *p)
{
    __m256i x = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));
    __m256i sign = _mm256_and_si256(_mm256_slli_epi16(x, 8), _mm256_set1_epi16(-32768));
    __m256i rest = _mm256_and_si256(_mm256_slli_epi16(x, 7), _mm256_set1_epi16(0x3F80));
    x = _mm256_or_si256(sign, rest);
    return (v16){_mm256_cvtph_ps(_mm256_castsi256_si128(x)), _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1))};
}
static inline v16 i_to_float(i16x32 a) { return (v16){_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
static inline v16 i_as_float(i16x32 a) { return (v16){_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
static inline v16 v_bits_to_float(v16 a)
{
    return i_to_float((i16x32){_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)});
}
static inline v16 v_load_i8(const int8_t *p)
{
    const __m128i lo = _mm_loadl_epi64((const __m128i *)p), hi = _mm_loadl_epi64((const __m128i *)(p + 8));
    return (v16){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(lo)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(hi))};
}

#elif defined(PP_VEC_NEON)
#include "engine/cpu/vec_neon.h"

#else /* PP_VEC_SCALAR: the definition */

typedef struct { float l[LANES]; } v16;
typedef struct { int32_t l[LANES]; } i16x32;

#define EACH_LANE for (int l = 0; l < LANES; l++)

static inline v16 v_load(const float *p) { v16 r; EACH_LANE r.l[l] = p[l]; return r; }
static inline void v_store(float *p, v16 a) { EACH_LANE p[l] = a.l[l]; }
static inline v16 v_set1(float x) { v16 r; EACH_LANE r.l[l] = x; return r; }
static inline v16 v_add(v16 a, v16 b) { EACH_LANE a.l[l] += b.l[l]; return a; }
static inline v16 v_sub(v16 a, v16 b) { EACH_LANE a.l[l] -= b.l[l]; return a; }
static inline v16 v_mul(v16 a, v16 b) { EACH_LANE a.l[l] *= b.l[l]; return a; }
static inline v16 v_div(v16 a, v16 b) { EACH_LANE a.l[l] /= b.l[l]; return a; }
static inline v16 v_fma(v16 a, v16 b, v16 c) { EACH_LANE c.l[l] = fmaf(a.l[l], b.l[l], c.l[l]); return c; }
static inline v16 v_max(v16 a, v16 b) { EACH_LANE b.l[l] = a.l[l] > b.l[l] ? a.l[l] : b.l[l]; return b; }
static inline v16 v_min(v16 a, v16 b) { EACH_LANE b.l[l] = a.l[l] < b.l[l] ? a.l[l] : b.l[l]; return b; }
static inline v16 v_load_f16(const uint16_t *p) { v16 r; EACH_LANE r.l[l] = pp_f16_to_f32(p[l]); return r; }
/* a * 2^k for n = V_ROUNDER + k, by adding k to the exponent of a; the result must be a normal number. */
static inline v16 v_times_pow2(v16 a, v16 n)
{
    EACH_LANE {
        uint32_t bits, k;
        memcpy(&bits, &a.l[l], 4);
        memcpy(&k, &n.l[l], 4);
        bits += k << 23; /* shifts out the bits of V_ROUNDER */
        memcpy(&a.l[l], &bits, 4);
    }
    return a;
}
/* x - floor(x) */
static inline v16 v_fraction(v16 x) { EACH_LANE x.l[l] -= floorf(x.l[l]); return x; }
/* a * 2^floor(x), which must be a normal number; 0 where x < least or x is NaN. */
static inline v16 v_times_floor_pow2(v16 a, v16 x, v16 least)
{
    EACH_LANE if (x.l[l] >= least.l[l]) {
        uint32_t bits;
        memcpy(&bits, &a.l[l], 4);
        bits += (uint32_t)(int32_t)floorf(x.l[l]) << 23;
        memcpy(&a.l[l], &bits, 4);
    } else {
        a.l[l] = 0;
    }
    return a;
}
static inline v16 v_zero_where_less(v16 x, v16 limit, v16 y)
{
    EACH_LANE if (x.l[l] < limit.l[l]) y.l[l] = 0;
    return y;
}
static inline v16 v_keep(v16 a, int from, int to, float fill)
{
    EACH_LANE a.l[l] = l >= from && l < to ? a.l[l] : fill;
    return a;
}
static inline i16x32 i_set1(int32_t x) { i16x32 r; EACH_LANE r.l[l] = x; return r; }

typedef struct { int16_t l[LANES][4]; } k16;
enum { DOT_STEPS = 8 };

/* Four unsigned bytes per lane: values 4 step .. 4 step + 3. */
static inline k16 dot_load_u8(const uint8_t *k, int step)
{
    k16 r;
    EACH_LANE for (int j = 0; j < 4; j++)
        r.l[l][j] = k[step * 64 + 4 * l + j];
    return r;
}
/* The same from nibbles: even steps take the low nibbles of 64 bytes, odd ones their high nibbles. */
static inline k16 dot_load_u4(const uint8_t *k, int step)
{
    k16 r;
    EACH_LANE for (int j = 0; j < 4; j++)
        r.l[l][j] = step % 2 ? k[step / 2 * 64 + 4 * l + j] >> 4 : k[step / 2 * 64 + 4 * l + j] & 15;
    return r;
}
static inline i16x32 i_dot(i16x32 acc, k16 k, int32_t q)
{
    int8_t four[4];
    memcpy(four, &q, 4);
    EACH_LANE for (int j = 0; j < 4; j++)
        acc.l[l] += (int32_t)k.l[l][j] * four[j];
    return acc;
}
/* [16 lanes][2] signed bytes: for each lane the values of two positions. */
static inline k16 pair_load_i8(const uint8_t *p)
{
    k16 r;
    EACH_LANE for (int j = 0; j < 2; j++)
        r.l[l][j] = (int8_t)p[2 * l + j];
    return r;
}
/* The same from the low or the high nibbles of bytes, minus 8. */
static inline k16 pair_load_u4(const uint8_t *p, int high)
{
    k16 r;
    EACH_LANE for (int j = 0; j < 2; j++)
        r.l[l][j] = (int16_t)((high ? p[2 * l + j] >> 4 : p[2 * l + j] & 15) - 8);
    return r;
}
/* acc + both values of a lane, each times one of the two int16 in w */
static inline i16x32 i_pair(i16x32 acc, k16 v, int32_t w)
{
    int16_t both[2];
    memcpy(both, &w, 4);
    EACH_LANE acc.l[l] += (int32_t)v.l[l][0] * both[0] + (int32_t)v.l[l][1] * both[1];
    return acc;
}
/* low + 256 high */
static inline i16x32 i_join(i16x32 low, i16x32 high)
{
    EACH_LANE low.l[l] += 256 * high.l[l];
    return low;
}
/* Lanes l and l + step, for all l without the bit `step` (1, 2, 4 or 8), are replaced by their sum and difference. */
static inline v16 v_butterflies(v16 a, const int step)
{
    v16 r;
    EACH_LANE r.l[l] = l & step ? a.l[l - step] - a.l[l] : a.l[l] + a.l[l + step];
    return r;
}
/* Stores the weights of 32 positions as int16; a, b: V_ROUNDER + an integer. Within each WEIGHTS_UNIT positions the
 * order of pairs of positions suits the build: every four stored pairs are pairs p, p + 1, p + WEIGHTS_UNIT / 4 and the
 * one after that. */
enum { WEIGHTS_UNIT = 8 };
static inline void v_store_weights(int16_t *p, v16 a, v16 b)
{
    EACH_LANE p[l] = (int16_t)(a.l[l] - V_ROUNDER);
    EACH_LANE p[LANES + l] = (int16_t)(b.l[l] - V_ROUNDER);
}
/* E4M3 divided by 256: shifted to the place of an F16, its exponent is read with a bias that is larger by 8. */
static inline v16 v_load_f8(const uint8_t *p)
{
    v16 r;
    EACH_LANE r.l[l] = pp_f16_to_f32((uint16_t)((p[l] & 0x80) << 8 | (p[l] & 0x7F) << 7));
    return r;
}
static inline v16 i_to_float(i16x32 a) { v16 r; EACH_LANE r.l[l] = (float)a.l[l]; return r; }
/* i_as_float(): the floats that have these bits; v_bits_to_float(): the bits of floats as integers, converted to
 * floats. */
static inline v16 i_as_float(i16x32 a) { v16 r; memcpy(&r, &a, sizeof r); return r; }
static inline v16 v_bits_to_float(v16 a) { i16x32 r; memcpy(&r, &a, sizeof r); return i_to_float(r); }
static inline v16 v_load_i8(const int8_t *p) { v16 r; EACH_LANE r.l[l] = (float)p[l]; return r; }

#endif

static inline v16 v_zero(void) { return v_set1(0.0f); }

/* The first n floats at p, and `fill` in the other lanes; all 16 if n >= LANES. */
static inline v16 v_load_n(const float *p, int64_t n, float fill)
{
    if (n >= LANES)
        return v_load(p);
    float t[LANES];
    for (int l = 0; l < LANES; l++)
        t[l] = l < n ? p[l] : fill;
    return v_load(t);
}

/* Stores the first n lanes at p. */
static inline void v_store_n(float *p, v16 a, int64_t n)
{
    if (n >= LANES) {
        v_store(p, a);
        return;
    }
    float t[LANES];
    v_store(t, a);
    for (int l = 0; l < n; l++)
        p[l] = t[l];
}

#if !defined(PP_VEC_AVX512) && !defined(PP_VEC_AVX2)
/* Adds lanes l and l + 8 first, then l and l + 4, l + 2, l + 1: this order is part of the definition of every sum. */
static inline float v_sum(v16 a)
{
    float t[LANES];
    v_store(t, a);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            t[l] += t[l + half];
    return t[0];
}

/* In the same order, which matters only for NaN. */
static inline float v_largest(v16 a)
{
    float t[LANES];
    v_store(t, a);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            t[l] = t[l] > t[l + half] ? t[l] : t[l + half];
    return t[0];
}
#endif

/* exp(x), within 2 units in the last place; exactly 1 at 0, exactly 0 below -87. Cody-Waite reduction to
 * |r| <= ln 2 / 2, then the Taylor polynomial of degree 7 in fused steps. */
static inline v16 v_exp(v16 x)
{
    v16 c = v_min(v_max(x, v_set1(-87.0f)), v_set1(88.0f));
    v16 k = v_fma(c, v_set1(1.44269504f), v_set1(V_ROUNDER)), n = v_sub(k, v_set1(V_ROUNDER));
    v16 r = v_fma(n, v_set1(-0.693359375f), c);
    r = v_fma(n, v_set1(2.12194440e-4f), r);
    v16 p = v_set1(1.0f / 5040);
    p = v_fma(p, r, v_set1(1.0f / 720));
    p = v_fma(p, r, v_set1(1.0f / 120));
    p = v_fma(p, r, v_set1(1.0f / 24));
    p = v_fma(p, r, v_set1(1.0f / 6));
    p = v_fma(p, r, v_set1(0.5f));
    p = v_fma(p, r, v_set1(1.0f));
    p = v_fma(p, r, v_set1(1.0f));
    return v_zero_where_less(x, v_set1(-87.0f), v_times_pow2(p, k));
}

/* 2^x for x < 127, with a relative error below 2e-7; exactly 1 at 0; 0 for x < -125 and for NaN. x within -1/2 .. 0
 * must be a multiple of 2^-24, so that x - floor x is exact, as builds would round it differently. The minimax
 * polynomial of degree 5 (for the relative error on 0 .. 1) among those that are 1 at 0. */
static inline v16 v_exp2(v16 x)
{
    v16 r = v_fraction(x), p = v_set1(0.001867130082f);
    p = v_fma(p, r, v_set1(0.009017030284f));
    p = v_fma(p, r, v_set1(0.05579991315f));
    p = v_fma(p, r, v_set1(0.2401644501f));
    p = v_fma(p, r, v_set1(0.6931513118f));
    p = v_fma(p, r, v_set1(1.0f));
    return v_times_floor_pow2(p, x, v_set1(-125.0f));
}

/* The same by the minimax polynomial of degree 3: a relative error up to 7.5e-5, not 1 at 0. This suffices for softmax
 * weights when K and V are quantised: with Q8_0 it contributes one part in 5,000 to the error of attention. */
static inline v16 v_exp2_short(v16 x)
{
    v16 r = v_fraction(x), p = v_set1(0.0780245227f);
    p = v_fma(p, r, v_set1(0.2260671554f));
    p = v_fma(p, r, v_set1(0.6958335405f));
    p = v_fma(p, r, v_set1(0.9999252186f));
    return v_times_floor_pow2(p, x, v_set1(-125.0f));
}

/* An upper bound of log2 x for normal numbers x > 0, at most 0.0863 too large: as an integer, the bits of a float grow
 * almost like its logarithm. */
static inline v16 v_log2_above(v16 x)
{
    return v_fma(v_bits_to_float(x), v_set1(0x1p-23f), v_set1(-126.9138f));
}

/* The four values of a query that a step multiplies, as one word. Plain AVX2 has a different order, see above. */
#if !defined(PP_VEC_AVX2) || defined(PP_VEC_VNNI)
static inline int32_t dot_query(const int8_t *q, int step)
{
    int32_t four;
    memcpy(&four, q + step * 4, 4);
    return four;
}
#endif

/* Products of 16-bit integers and bytes (see the head of this file). */
#if defined(PP_VEC_AVX2) && !defined(PP_VEC_VNNI)
typedef i16x32 i_wide;
static inline void wide_words(const int16_t *four, int32_t *words)
{
    const int16_t pairs[4] = {four[0], four[2], four[1], four[3]}; /* the order of dot_load_u8() */
    memcpy(words, pairs, sizeof pairs);
}
static inline i_wide wide_begin(int32_t all) { return i_set1(-128 * all); }
static inline i_wide wide_dot(i_wide acc, const uint8_t *bytes, const int32_t *words)
{
    return i_dot(i_dot(acc, dot_load_u8(bytes, 0), words[0]), dot_load_u8(bytes, 1), words[1]);
}
static inline i16x32 wide_sum(i_wide acc) { return acc; }
#else
/* The 16-bit integers are split into two signed digits of base 256, which have a sum each. */
typedef struct { i16x32 low, high; } i_wide;
static inline void wide_words(const int16_t *four, int32_t *words)
{
    int8_t low[4], high[4];
    for (int i = 0; i < 4; i++) {
        const int upper = (four[i] + 128) >> 8;
        low[i] = (int8_t)(four[i] - 256 * upper);
        high[i] = (int8_t)upper;
    }
    memcpy(words, low, sizeof low);
    memcpy(words + 1, high, sizeof high);
}
#ifdef PP_VEC_NEON
/* k16 holds signed bytes here, so there is no offset. The digits are at least -127: two products with -128 fit 16
 * bits. */
enum { WIDE_OFFSET = 0 };
static inline k16 wide_load(const uint8_t *bytes)
{
    k16 x = dot_load_u8(bytes, 0);
    x.shifted = false;
    return x;
}
#else
enum { WIDE_OFFSET = 128 };
static inline k16 wide_load(const uint8_t *bytes) { return dot_load_u8(bytes, 0); }
#endif
static inline i_wide wide_begin(int32_t all) { return (i_wide){i_set1(-WIDE_OFFSET * all), i_set1(0)}; }
static inline i_wide wide_dot(i_wide acc, const uint8_t *bytes, const int32_t *words)
{
    const k16 x = wide_load(bytes);
    return (i_wide){i_dot(acc.low, x, words[0]), i_dot(acc.high, x, words[1])};
}
static inline i16x32 wide_sum(i_wide acc) { return i_join(acc.low, acc.high); }
#endif

#endif
