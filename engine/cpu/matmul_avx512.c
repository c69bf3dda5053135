/* matmul_avx512.c - matrix products for AVX-512 with VNNI. Each 32-bit lane of a vector belongs to a weight row: one
 * vpdpbusd multiplies a slice of 16 rows x 4 columns by 4 activations, which are repeated in all lanes. The loops are
 * in matmul_vnni_body.h. */
#if defined(__x86_64__)

#include <float.h>
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

enum { LANES = 16 };
#define PP_UNITS_OF pp_units_of_avx512
#define PP_VNNI_LANES 16

#define VEC static inline __attribute__((always_inline, unused))

typedef __m512i ivec;
typedef __m512 fvec;

VEC ivec i_load(const void *p) { return _mm512_load_si512(p); }
VEC void i_store(void *p, ivec a) { _mm512_store_si512(p, a); }
VEC ivec i_zero(void) { return _mm512_setzero_si512(); }
VEC ivec i_set1(int32_t x) { return _mm512_set1_epi32(x); }
VEC ivec i_set4(const int8_t *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
}
VEC ivec i_and(ivec a, ivec b) { return _mm512_and_si512(a, b); }
VEC ivec i_pick(ivec a, ivec mask, ivec c)
{
    enum { A_AND_B_OR_C = 0xea };
    return _mm512_ternarylogic_epi32(a, mask, c, A_AND_B_OR_C);
}
VEC ivec i_down16(ivec a, const int by) { return _mm512_srli_epi16(a, by); }
VEC ivec i_down32(ivec a, const int by) { return _mm512_srli_epi32(a, (unsigned)by); }
VEC ivec i_over16(ivec a) { return _mm512_srai_epi32(a, 4); }
VEC ivec i_up32(ivec a, const int by) { return _mm512_slli_epi32(a, (unsigned)by); }
VEC ivec i_add(ivec a, ivec b) { return _mm512_add_epi32(a, b); }
VEC ivec i_dot4(ivec sums, ivec a, ivec b) { return _mm512_dpbusd_epi32(sums, a, b); }
VEC fvec i_to_f(ivec a) { return _mm512_cvtepi32_ps(a); }
VEC fvec i_as_f(ivec a) { return _mm512_castsi512_ps(a); }
VEC __mmask16 first_lanes(int64_t n) { return (__mmask16)(n < 16 ? (1u << n) - 1u : 0xffffu); }
VEC fvec f_load(const float *p) { return _mm512_load_ps(p); }
VEC void f_store(float *p, fvec a) { _mm512_store_ps(p, a); }
VEC fvec f_load_some(const float *p, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
VEC void f_store_some(float *p, int n, fvec a) { _mm512_mask_storeu_ps(p, first_lanes(n), a); }
VEC fvec f_zero(void) { return _mm512_setzero_ps(); }
VEC fvec f_set1(float x) { return _mm512_set1_ps(x); }
VEC fvec f_add(fvec a, fvec b) { return _mm512_add_ps(a, b); }
VEC fvec f_mul(fvec a, fvec b) { return _mm512_mul_ps(a, b); }
VEC fvec f_fma(fvec a, fvec b, fvec c) { return _mm512_fmadd_ps(a, b, c); }
VEC fvec f_fnma(fvec a, fvec b, fvec c) { return _mm512_fnmadd_ps(a, b, c); }
/* Forces a vector into a register: otherwise the compiler makes it a memory operand, loaded anew for each product,
 * which is more than the load ports can do (95 GMAC/s instead of 118). */
VEC fvec f_held(fvec a)
{
#if defined(__AVX512F__) /* not in the tests' software model, where vectors are structs */
    __asm__("" : "+v"(a));
#endif
    return a;
}
VEC fvec f_halves(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
VEC fvec f_unsigned(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
VEC fvec f_signed(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

#include "engine/cpu/matmul_vnni_body.h"

/* --- activations -------------------------------------------------------------------------------------------------- */

/* The sum of 32 signed bytes. */
INLINE int32_t sum_of_bytes(__m256i bytes)
{
    /* vpsadbw adds 8 unsigned bytes: each is 128 too large. */
    __m256i eights = _mm256_sad_epu8(_mm256_xor_si256(bytes, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
    __m128i pairs = _mm_add_epi32(_mm256_castsi256_si128(eights), _mm256_extracti128_si256(eights, 1));
    return _mm_cvtsi128_si32(pairs) + _mm_extract_epi32(pairs, 2) - 32 * 128;
}

INLINE uint32_t max_magnitude_bits(const float *x)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    return _mm512_reduce_max_epu32(
        _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(x)), magnitude),
                         _mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(x + 16)), magnitude)));
}

INLINE int32_t round_block(const float *x, float factor, int8_t *q)
{
    const __m512 f = _mm512_set1_ps(factor);
    const __m512i q0 = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), f));
    const __m512i q1 = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16), f));
    const __m256i bytes = _mm256_set_m128i(_mm512_cvtepi32_epi8(q1), _mm512_cvtepi32_epi8(q0));
    _mm256_storeu_si256((__m256i *)q, bytes);
    return sum_of_bytes(bytes);
}

/* The bits of the largest magnitude of each of four blocks. */
INLINE __m128i four_max_magnitude_bits(const float *x)
{
    __m512i most[4];
    for (int b = 0; b < 4; b++) {
        const __m512i lo = _mm512_castps_si512(_mm512_loadu_ps(x + 32 * b));
        const __m512i hi = _mm512_castps_si512(_mm512_loadu_ps(x + 32 * b + 16));
        most[b] = _mm512_max_epu32(_mm512_slli_epi32(lo, 1), _mm512_slli_epi32(hi, 1)); /* shifts the signs out */
    }
    /* reduces the four vectors together: first within each 128-bit quarter, then across quarters */
    const __m512i two = _mm512_max_epu32(_mm512_unpacklo_epi32(most[0], most[1]),
                                         _mm512_unpackhi_epi32(most[0], most[1]));
    const __m512i others = _mm512_max_epu32(_mm512_unpacklo_epi32(most[2], most[3]),
                                            _mm512_unpackhi_epi32(most[2], most[3]));
    const __m512i four = _mm512_max_epu32(_mm512_unpacklo_epi64(two, others), _mm512_unpackhi_epi64(two, others));
    const __m256i half = _mm256_max_epu32(_mm512_castsi512_si256(four), _mm512_extracti64x4_epi64(four, 1));
    const __m128i all = _mm_max_epu32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    return _mm_srli_epi32(all, 1);
}

/* Two blocks, each times its factor, rounded to nearest even and converted to bytes. */
INLINE __m512i round_two(const float *x, float first, float second)
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512 f = _mm512_set1_ps(first), s = _mm512_set1_ps(second);
    const __m512i a = _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), f)),
                                         _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16), f)));
    const __m512i b = _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 32), s)),
                                         _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 48), s)));
    return _mm512_permutexvar_epi32(order, _mm512_packs_epi16(a, b));
}

/* The sums of the bytes of four blocks, two of which are in each vector. */
INLINE __m128i sums_of_four(__m512i first, __m512i second)
{
    const __m512i ones = _mm512_set1_epi8(1), zero = _mm512_setzero_si512();
    const __m512i a = _mm512_dpbusd_epi32(zero, ones, first), b = _mm512_dpbusd_epi32(zero, ones, second);
    __m512i s = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    s = _mm512_add_epi32(s, _mm512_shuffle_epi32(s, _MM_PERM_CDAB));
    s = _mm512_add_epi32(s, _mm512_shuffle_i32x4(s, s, 0xB1)); /* quarter 0: blocks 0, 2; 2: 1, 3 */
    const __m128i even = _mm512_extracti32x4_epi32(s, 0), odd = _mm512_extracti32x4_epi32(s, 2);
    return _mm_unpacklo_epi64(_mm_unpacklo_epi32(even, odd), _mm_unpackhi_epi32(even, odd));
}

INLINE bool quantize_four(const float *x, bool twins, int8_t *q, float *d, int32_t *sum)
{
    __m128i bits = four_max_magnitude_bits(x);
    if (twins)
        bits = _mm_max_epu32(bits, _mm_shuffle_epi32(bits, 0xB1));
    const __m128 scale = _mm_div_ps(_mm_castsi128_ps(bits), _mm_set1_ps(127));
    const __m128 inverse = _mm_div_ps(_mm_set1_ps(1), scale);
    const __m128 finite = _mm_cmple_ps(inverse, _mm_set1_ps(FLT_MAX)), some = _mm_cmpgt_ps(inverse, _mm_setzero_ps());
    if (_mm_movemask_ps(_mm_and_ps(finite, some)) != 15)
        return false;
    float by[4];
    _mm_storeu_ps(by, inverse);
    const __m512i first = round_two(x, by[0], by[1]), second = round_two(x + 64, by[2], by[3]);
    _mm512_storeu_si512(q, first);
    _mm512_storeu_si512(q + 64, second);
    _mm_storeu_ps(d, scale);
    _mm_storeu_si128((__m128i *)sum, sums_of_four(first, second));
    return true;
}

#define PP_QUANTIZE_FOUR 1
#include "engine/cpu/quantize_body.h"

/* --- float weights ------------------------------------------------------------------------------------------------ */

/* 16 weights from column k on, as float32; lanes that are not live are 0. */
INLINE __m512 load_floats(const uint8_t *row, int64_t k, __mmask16 live, const uint32_t type)
{
    if (type == PP_TYPE_F32)
        return _mm512_maskz_loadu_ps(live, row + 4 * k);
    __m256i h = _mm256_maskz_loadu_epi16(live, row + 2 * k);
    if (type == PP_TYPE_F16)
        return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

INLINE float sum_lanes(__m512 p)
{
    __m256 p8 = _mm256_add_ps(_mm512_castps512_ps256(p), _mm512_extractf32x8_ps(p, 1));
    __m128 p4 = _mm_add_ps(_mm256_castps256_ps128(p8), _mm256_extractf128_ps(p8, 1));
    __m128 p2 = _mm_add_ps(p4, _mm_movehl_ps(p4, p4));
    return _mm_cvtss_f32(_mm_add_ss(p2, _mm_movehdup_ps(p2)));
}

/* R weight rows times M activation rows. how: how weights further on are prefetched. */
INLINE void float_tile(const uint8_t *w, size_t row_bytes, const float *x, int64_t x_stride, int64_t n, float *y,
                       int64_t y_stride, const uint32_t type, enum pp_stream_way how, const int R, const int M)
{
    __m512 acc[16];
    UNROLL for (int k = 0; k < R * M; k++)
        acc[k] = _mm512_setzero_ps();
    for (int64_t k = 0; k < n; k += 16) {
        __mmask16 live = first_lanes(n - k);
        __m512 wk[8];
        UNROLL for (int r = 0; r < R; r++)
        {
            const uint8_t *row = w + (size_t)r * row_bytes;
            wk[r] = load_floats(row, k, live, type);
            if (how != PP_STREAM_NOT && (type == PP_TYPE_F32 || k % 32 == 0))
                stream_line(row, (size_t)(type == PP_TYPE_F32 ? 4 * k : 2 * k), row_bytes, (size_t)R, how);
        }
        UNROLL for (int i = 0; i < M; i++)
        {
            __m512 xk = _mm512_maskz_loadu_ps(live, x + i * x_stride + k);
            UNROLL for (int r = 0; r < R; r++)
                acc[r * M + i] = _mm512_fmadd_ps(wk[r], xk, acc[r * M + i]);
        }
    }
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int i = 0; i < M; i++)
            y[i * y_stride + r] = sum_lanes(acc[r * M + i]);
}

#define FLOAT_M 4
#define FLOAT_BESIDE 0
#define FLOAT_R_SOON 8
#define FLOAT_R(m) ((m) <= 2 ? 8 : 4)
#include "engine/cpu/float_rows.h"

#include "engine/cpu/float_strips.h"

enum { LANE_VECS = 4, LANE_ACTS = PP_LANE_ACTS, PIECE_STEPS = 88 }; /* 22 KiB of floats: some L1 caches have only 32 */

INLINE fvec load_lanes(const uint8_t *row, int64_t k, const uint32_t type)
{
    return load_floats(row, k, 0xffff, type);
}
#include "engine/cpu/float_lanes.h"
_Static_assert((int)LANE_ROWS == (int)PP_AVX512_LANE_ROWS, "as matmul_sets.h has it");

/* From so many activation rows on it pays to convert the weights into the scratch (float_strips.h). */
enum { STRIPS_FROM = 9 };

static void float32(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m, float *y,
                    int64_t y_stride, void *scratch)
{
    if (m < STRIPS_FROM)
        matmul_f32(w, row0, row1, x, m, y, y_stride, scratch);
    else
        float_strips(w, row0, row1, x, m, y, y_stride, PP_TYPE_F32, scratch);
}

static void float16(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m, float *y,
                    int64_t y_stride, void *scratch)
{
    if (matmul_by_lane(w, row0, row1, x, m, y, y_stride, scratch))
        return;
    if (m < STRIPS_FROM)
        matmul_f16(w, row0, row1, x, m, y, y_stride, scratch);
    else
        float_strips(w, row0, row1, x, m, y, y_stride, PP_TYPE_F16, scratch);
}

static void bfloat16(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                     float *y, int64_t y_stride, void *scratch)
{
    if (matmul_by_lane(w, row0, row1, x, m, y, y_stride, scratch))
        return;
    if (m < STRIPS_FROM)
        matmul_bf16(w, row0, row1, x, m, y, y_stride, scratch);
    else
        float_strips(w, row0, row1, x, m, y, y_stride, PP_TYPE_BF16, scratch);
}

static float dot(const float *a, const float *b, int64_t n)
{
    __m512 p = _mm512_setzero_ps();
    for (int64_t k = 0; k < n; k += 16) {
        __mmask16 live = first_lanes(n - k);
        p = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(live, a + k), _mm512_maskz_loadu_ps(live, b + k), p);
    }
    return sum_lanes(p);
}

const struct pp_matmul_kernels pp_matmul_avx512 = {
    .tried = {[PP_STREAM_FAR] = {PP_WAY_LESS_FAR, PP_WAY_LINES},
              [PP_STREAM_PAGES] = {PP_WAY_NEAR, PP_WAY_BESIDE},
              [PP_STREAM_SOON] = {PP_WAY_LINES, PP_WAY_BESIDE}},
    .quantize = quantize,
    .by_lane = {PP_AVX512_LANES_FROM, LANE_ACTS, LANE_ROWS, arrange_by_lane},
    .dot = dot,
    .by_type =
        {
            [PP_TYPE_F32] = float32,
            [PP_TYPE_F16] = float16,
            [PP_TYPE_BF16] = bfloat16,
            [PP_TYPE_Q8_0] = matmul_q8_0,
            [PP_TYPE_Q4_0] = matmul_q4_0,
            [PP_TYPE_Q4_K] = matmul_q4_k,
            [PP_TYPE_Q6_K] = matmul_q6_k,
            PP_BLOCKS_BY(matmul_blocks),
        },
};

#else
typedef int pp_matmul_avx512_is_for_x86_64;
#endif
