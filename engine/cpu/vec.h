/* vec.h - sixteen floats as one value, in three spellings: plain C, AVX2 (two registers), AVX-512 (one).
 *
 * Every operation works lane by lane with IEEE rounding, so that code written with it (ops_body.h) gives the same bits
 * in all three builds; the plain C spelling is the definition. The including file picks one: PP_VEC_SCALAR, PP_VEC_AVX2
 * or PP_VEC_AVX512. */
#ifndef PP_CPU_VEC_H
#define PP_CPU_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "engine/quant.h"

enum { LANES = 16 };

#if defined(PP_VEC_AVX512)
#include <immintrin.h>

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
static inline v16 v_load_i8(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
static inline v16 v_pow2(v16 n)
{
    __m512i e = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(e, 23));
}
static inline v16 v_zero_where_less(v16 x, v16 limit, v16 y)
{
    return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, limit, _CMP_LT_OQ), _mm512_setzero_ps());
}
static inline v16 v_keep_first(v16 a, int n, float fill)
{
    return _mm512_mask_mov_ps(_mm512_set1_ps(fill), (__mmask16)((1u << n) - 1), a);
}
static inline i16x32 i_set1(int32_t x) { return _mm512_set1_epi32(x); }
/* acc + four products of unsigned bytes a (16 groups of four) and signed bytes b (one group of four for all lanes) */
static inline i16x32 i_dot4(i16x32 acc, const uint8_t *a, const int8_t *b)
{
    int32_t four;
    memcpy(&four, b, 4);
    return _mm512_dpbusd_epi32(acc, _mm512_loadu_si512(a), _mm512_set1_epi32(four));
}
static inline v16 i_to_float(i16x32 a) { return _mm512_cvtepi32_ps(a); }

#elif defined(PP_VEC_AVX2)
#include <immintrin.h>

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
static inline v16 v_load_i8(const int8_t *p)
{
    return (v16){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p))),
                 _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8))))};
}
static inline __m256 pow2_half(__m256 n)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
static inline v16 v_pow2(v16 n) { return (v16){pow2_half(n.lo), pow2_half(n.hi)}; }
static inline v16 v_zero_where_less(v16 x, v16 limit, v16 y)
{
    return (v16){_mm256_andnot_ps(_mm256_cmp_ps(x.lo, limit.lo, _CMP_LT_OQ), y.lo),
                 _mm256_andnot_ps(_mm256_cmp_ps(x.hi, limit.hi, _CMP_LT_OQ), y.hi)};
}
static inline v16 v_keep_first(v16 a, int n, float fill)
{
    float t[LANES];
    v_store(t, a);
    for (int l = n; l < LANES; l++)
        t[l] = fill;
    return v_load(t);
}
static inline i16x32 i_set1(int32_t x) { return (i16x32){_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
/* Without VNNI: bytes widened to 16 bits, so that nothing saturates, multiplied and added in pairs, twice. */
static inline __m256i dot4_half(__m256i acc, const uint8_t *a, __m256i b16)
{
    __m256i lo = _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)a)), b16);
    __m256i hi = _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(a + 16))), b16);
    __m256i sums = _mm256_hadd_epi32(lo, hi); /* lanes 0,1 4,5 | 2,3 6,7 */
    return _mm256_add_epi32(acc, _mm256_permute4x64_epi64(sums, 0xD8));
}
static inline i16x32 i_dot4(i16x32 acc, const uint8_t *a, const int8_t *b)
{
    int32_t four;
    memcpy(&four, b, 4);
    __m256i b16 = _mm256_cvtepi8_epi16(_mm_set1_epi32(four));
    return (i16x32){dot4_half(acc.lo, a, b16), dot4_half(acc.hi, a + 32, b16)};
}
static inline v16 i_to_float(i16x32 a) { return (v16){_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }

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
static inline v16 v_load_i8(const int8_t *p) { v16 r; EACH_LANE r.l[l] = p[l]; return r; }
static inline v16 v_pow2(v16 n) /* 2^n for whole n in -126..127 */
{
    EACH_LANE {
        uint32_t bits = (uint32_t)((int32_t)n.l[l] + 127) << 23;
        memcpy(&n.l[l], &bits, 4);
    }
    return n;
}
static inline v16 v_zero_where_less(v16 x, v16 limit, v16 y)
{
    EACH_LANE if (x.l[l] < limit.l[l]) y.l[l] = 0;
    return y;
}
static inline v16 v_keep_first(v16 a, int n, float fill)
{
    for (int l = n; l < LANES; l++)
        a.l[l] = fill;
    return a;
}
static inline i16x32 i_set1(int32_t x) { i16x32 r; EACH_LANE r.l[l] = x; return r; }
static inline i16x32 i_dot4(i16x32 acc, const uint8_t *a, const int8_t *b)
{
    EACH_LANE for (int j = 0; j < 4; j++)
        acc.l[l] += (int32_t)a[4 * l + j] * b[j];
    return acc;
}
static inline v16 i_to_float(i16x32 a) { v16 r; EACH_LANE r.l[l] = (float)a.l[l]; return r; }

#endif

static inline v16 v_zero(void) { return v_set1(0.0f); }

/* Lanes l and l + 8 first, then l + 4, l + 2, l + 1: the order is part of every sum's definition. */
static inline float v_sum(v16 a)
{
    float t[LANES];
    v_store(t, a);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            t[l] += t[l + half];
    return t[0];
}

static inline float v_largest(v16 a)
{
    float t[LANES];
    v_store(t, a);
    float m = t[0];
    for (int l = 1; l < LANES; l++)
        m = t[l] > m ? t[l] : m;
    return m;
}

/* exp(x), within 2 units in the last place; exactly 1 at 0, exactly 0 below -87. Cody-Waite reduction to
 * |r| <= ln 2 / 2, then the Taylor polynomial of degree 7 in fused steps. */
static inline v16 v_exp(v16 x)
{
    const v16 magic = v_set1(12582912.0f); /* 1.5 * 2^23: adding it rounds to a whole number */
    v16 c = v_min(v_max(x, v_set1(-87.0f)), v_set1(88.0f));
    v16 n = v_sub(v_fma(c, v_set1(1.44269504f), magic), magic);
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
    return v_zero_where_less(x, v_set1(-87.0f), v_mul(p, v_pow2(n)));
}

#endif
