/* matmul_avxvnni.c - the products for AVX2 with AVX-VNNI: as with AVX-512, but a vector has 8 of a group's 16 rows, and
 * 16 registers hold the integer sums only. Float weights and activations are the business of the AVX2 set. */
#if defined(__x86_64__)

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 8 };
#define PP_UNITS_OF pp_units_of_avxvnni
#define PP_VNNI_LANES 8

#define VEC static inline __attribute__((always_inline, unused))

typedef __m256i ivec;
typedef __m256 fvec;

VEC ivec i_load(const void *p) { return _mm256_load_si256(p); }
VEC void i_store(void *p, ivec a) { _mm256_store_si256(p, a); }
VEC ivec i_zero(void) { return _mm256_setzero_si256(); }
VEC ivec i_set1(int32_t x) { return _mm256_set1_epi32(x); }
VEC ivec i_set4(const int8_t *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm256_set1_epi32(four);
}
VEC ivec i_and(ivec a, ivec b) { return _mm256_and_si256(a, b); }
VEC ivec i_pick(ivec a, ivec mask, ivec c) { return _mm256_or_si256(_mm256_and_si256(a, mask), c); }
VEC ivec i_down16(ivec a, const int by) { return _mm256_srli_epi16(a, by); }
VEC ivec i_down32(ivec a, const int by) { return _mm256_srli_epi32(a, by); }
VEC ivec i_up32(ivec a, const int by) { return _mm256_slli_epi32(a, by); }
VEC ivec i_dot4(ivec sums, ivec a, ivec b) { return _mm256_dpbusd_avx_epi32(sums, a, b); }
VEC fvec i_to_f(ivec a) { return _mm256_cvtepi32_ps(a); }
VEC fvec i_as_f(ivec a) { return _mm256_castsi256_ps(a); }
VEC fvec f_load(const float *p) { return _mm256_load_ps(p); }
VEC void f_store(float *p, fvec a) { _mm256_store_ps(p, a); }
VEC __m256i first_lanes(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
VEC fvec f_load_some(const float *p, int n) { return _mm256_maskload_ps(p, first_lanes(n)); }
VEC void f_store_some(float *p, int n, fvec a) { _mm256_maskstore_ps(p, first_lanes(n), a); }
VEC fvec f_zero(void) { return _mm256_setzero_ps(); }
VEC fvec f_set1(float x) { return _mm256_set1_ps(x); }
VEC fvec f_add(fvec a, fvec b) { return _mm256_add_ps(a, b); }
VEC fvec f_mul(fvec a, fvec b) { return _mm256_mul_ps(a, b); }
VEC fvec f_fma(fvec a, fvec b, fvec c) { return _mm256_fmadd_ps(a, b, c); }
VEC fvec f_fnma(fvec a, fvec b, fvec c) { return _mm256_fnmadd_ps(a, b, c); }
VEC fvec f_halves(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
VEC fvec f_unsigned(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
VEC fvec f_signed(const int8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

#include "engine/cpu/matmul_vnni_body.h"

static void matmul_float(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                         float *y, int64_t y_stride, void *scratch)
{
    pp_matmul_avx2.by_type[w->type](w, row0, row1, x, m, y, y_stride, scratch);
}

static void quantize(const float *x, int64_t n, bool twins, int8_t *q, float *d, int32_t *sum)
{
    pp_matmul_avx2.quantize(x, n, twins, q, d, sum);
}

static void arrange_by_lane(const float *x, int64_t x_stride, int rows, int64_t n, int64_t tile, int64_t n_tiles,
                            float *out)
{
    pp_matmul_avx2.by_lane.arrange(x, x_stride, rows, n, tile, n_tiles, out);
}

static float dot(const float *a, const float *b, int64_t n)
{
    return pp_matmul_avx2.dot(a, b, n);
}

const struct pp_matmul_kernels pp_matmul_avxvnni = {
    .tried = {[PP_STREAM_FAR] = {PP_WAY_LESS_FAR, PP_WAY_SOON}, [PP_STREAM_PAGES] = {PP_WAY_NEAR}},
    .quantize = quantize,
    .by_lane = {PP_AVX2_LANES_FROM, PP_LANE_ACTS, PP_AVX2_LANE_ROWS, arrange_by_lane},
    .dot = dot,
    .by_type =
        {
            [PP_TYPE_F32] = matmul_float,
            [PP_TYPE_F16] = matmul_float,
            [PP_TYPE_BF16] = matmul_float,
            [PP_TYPE_Q8_0] = matmul_q8_0,
            [PP_TYPE_Q4_0] = matmul_q4_0,
            [PP_TYPE_Q4_K] = matmul_q4_k,
            [PP_TYPE_Q6_K] = matmul_q6_k,
            PP_BLOCKS_BY(matmul_blocks),
        },
};

#else
typedef int pp_matmul_avxvnni_is_for_x86_64;
#endif
