/* matmul_avx512.c - the products for AVX-512 with VNNI. A 32-bit lane is a weight row: a slice of 16 rows x 4
 * columns meets 4 activations, repeated in all lanes, in one vpdpbusd. See pack.h for the layouts and matmul.h for
 * the arithmetic. */
#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#include "engine/cpu/act_tile.h"
#include "engine/cpu/matmul_sets.h"
#include "engine/cpu/pack.h"

#ifndef UNROLL
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* --- activations -------------------------------------------------------------------------------------------------- */

/* Of 32 signed bytes. */
INLINE int32_t sum_of_bytes(__m256i bytes)
{
    /* Four sums of 8 bytes each, unsigned: 128 too much per byte. */
    __m256i eights = _mm256_sad_epu8(_mm256_xor_si256(bytes, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
    __m128i pairs = _mm_add_epi32(_mm256_castsi256_si128(eights), _mm256_extracti128_si256(eights, 1));
    return _mm_cvtsi128_si32(pairs) + _mm_extract_epi32(pairs, 2) - 32 * 128;
}

/* See quantize_block in matmul_scalar.c; bit patterns of magnitudes order like the magnitudes, NaN above infinity. */
static void quantize(const float *x, int64_t n, int8_t *q, float *d, int32_t *sum)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    for (int64_t at = 0; at < n; at += PP_ACT_BLOCK, d++, sum++) {
        uint32_t live = n - at < PP_ACT_BLOCK ? (1u << (n - at)) - 1u : ~0u;
        __m512 x0 = _mm512_maskz_loadu_ps((__mmask16)live, x + at);
        __m512 x1 = _mm512_maskz_loadu_ps((__mmask16)(live >> 16), x + at + 16);
        __m512i bits = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(x0), magnitude),
                                        _mm512_and_si512(_mm512_castps_si512(x1), magnitude));
        uint32_t most_bits = _mm512_reduce_max_epu32(bits);
        float most;
        memcpy(&most, &most_bits, sizeof most);
        *d = most_bits < 0x7f800000 ? most / 127.0f : __builtin_nanf("");
        float inverse = 1 / *d;
        if (__builtin_isinf(inverse))
            *d = 0;
        __m512 factor = _mm512_set1_ps(inverse);
        __mmask16 usable = __builtin_isfinite(inverse) ? 0xffff : 0;
        __m512i q0 = _mm512_maskz_cvtps_epi32(usable, _mm512_mul_ps(x0, factor));
        __m512i q1 = _mm512_maskz_cvtps_epi32(usable, _mm512_mul_ps(x1, factor));
        __m256i bytes = _mm256_set_m128i(_mm512_cvtepi32_epi8(q1), _mm512_cvtepi32_epi8(q0));
        _mm256_storeu_si256((__m256i *)q, bytes);
        q += PP_ACT_BLOCK;
        *sum = sum_of_bytes(bytes);
    }
}

/* --- tiles of quantised weights ----------------------------------------------------------------------------------- */

/* A tile function multiplies a group of 16 rows with the M activation rows of a tile, over the tile's columns, and
 * adds to what `acc` holds. M is a constant where it is inlined, so that all the arrays below live in registers. */

INLINE __m512i broadcast4(const int8_t *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
}

INLINE __m512 halves(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

INLINE __m512 unsigned_bytes(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

INLINE __m512 signed_bytes(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

/* isum[i] += the slice's 4 columns times the 4 activations at q + 32 i */
INLINE void add_slice(__m512i *isum, __m512i slice, const int8_t *q, const int M)
{
    UNROLL for (int i = 0; i < M; i++)
        isum[i] = _mm512_dpbusd_epi32(isum[i], slice, broadcast4(q + 32 * i));
}

/* Q8_0 and Q4_0 differ in how the slices of a block are opened. */
INLINE void tile_by_32(const struct act_tile *x, const uint8_t *group, int64_t n_cols, __m512 *acc, const int M,
                       const bool nibbles)
{
    const __m512i low = _mm512_set1_epi8(15);
    const int slices = nibbles ? 4 : 8;
    const uint8_t *scales = group + 32 * x->block0;
    const uint8_t *w = group + pp_pack_scale_bytes(n_cols) + PP_SLICE * slices * x->block0;
    const int8_t *q = x->q;
    for (int64_t b = 0; b < x->n_blocks; b++, q += 32 * M, w += PP_SLICE * slices) {
        __m512i isum[ACT_TILE_ROWS];
        fetch_ahead(w, slices);
        UNROLL for (int i = 0; i < M; i++)
            isum[i] = _mm512_set1_epi32(x->bias[b * M + i]);
        UNROLL for (int v = 0; v < slices; v++)
        {
            __m512i slice = _mm512_load_si512(w + PP_SLICE * v);
            if (nibbles) {
                add_slice(isum, _mm512_and_si512(slice, low), q + 4 * v, M);
                add_slice(isum, _mm512_and_si512(_mm512_srli_epi16(slice, 4), low), q + 16 + 4 * v, M);
            } else {
                add_slice(isum, slice, q + 4 * v, M);
            }
        }
        __m512 d = halves(scales + 32 * b);
        UNROLL for (int i = 0; i < M; i++)
            acc[i] = _mm512_fmadd_ps(_mm512_mul_ps(d, _mm512_set1_ps(x->d[b * M + i])), _mm512_cvtepi32_ps(isum[i]),
                                     acc[i]);
    }
}

INLINE void tile_q8_0(const struct act_tile *x, const uint8_t *group, int64_t n_cols, __m512 *acc, const int M)
{
    tile_by_32(x, group, n_cols, acc, M, false);
}

INLINE void tile_q4_0(const struct act_tile *x, const uint8_t *group, int64_t n_cols, __m512 *acc, const int M)
{
    tile_by_32(x, group, n_cols, acc, M, true);
}

/* One block of Q4_K, whose integer sums are known. at: of the block in the tile's arrays. */
INLINE void scale_q4_k(const struct act_tile *x, int64_t at, const struct pp_q4_k_pack *p, int sub, const __m512i *isum,
                       __m512 *acc, const int M)
{
    __m512 scale = _mm512_mul_ps(halves(p->d), unsigned_bytes(p->sc[sub]));
    __m512 min = _mm512_mul_ps(halves(p->dmin), unsigned_bytes(p->m[sub]));
    UNROLL for (int i = 0; i < M; i++)
    {
        __m512 dx = _mm512_set1_ps(x->d[at + i]);
        acc[i] = _mm512_fmadd_ps(_mm512_mul_ps(scale, dx), _mm512_cvtepi32_ps(isum[i]), acc[i]);
        acc[i] = _mm512_fnmadd_ps(min, _mm512_set1_ps(x->dsum[at + i]), acc[i]);
    }
}

INLINE void tile_q4_k(const struct act_tile *x, const uint8_t *group, int64_t n_cols, __m512 *acc, const int M)
{
    (void)n_cols;
    enum { LINES = 10 }; /* a quarter of the struct, rounded up */
    const __m512i low = _mm512_set1_epi8(15), high = _mm512_set1_epi8((char)0xf0);
    const int8_t *q = x->q;
    for (int64_t pair = 0; pair < x->n_blocks / 2; pair++, q += 64 * M) {
        const struct pp_q4_k_pack *p = (const struct pp_q4_k_pack *)group + (x->block0 / 8 + pair / 4);
        int j = (int)(pair % 4);
        __m512i first[ACT_TILE_ROWS], second[ACT_TILE_ROWS]; /* the second sums are 16 times too large */
        fetch_ahead((const char *)p + 64 * LINES * j, LINES);
        UNROLL for (int i = 0; i < M; i++)
            first[i] = second[i] = _mm512_setzero_si512();
        UNROLL for (int v = 0; v < 8; v++)
        {
            __m512i slice = _mm512_load_si512(p->q[j][v]);
            add_slice(first, _mm512_and_si512(slice, low), q + 4 * v, M);
            add_slice(second, _mm512_and_si512(slice, high), q + 32 * M + 4 * v, M);
        }
        UNROLL for (int i = 0; i < M; i++)
            second[i] = _mm512_srai_epi32(second[i], 4);
        scale_q4_k(x, 2 * pair * M, p, 2 * j, first, acc, M);
        scale_q4_k(x, (2 * pair + 1) * M, p, 2 * j + 1, second, acc, M);
    }
}

INLINE void tile_q6_k(const struct act_tile *x, const uint8_t *group, int64_t n_cols, __m512 *acc, const int M)
{
    (void)n_cols;
    enum { A_AND_B_OR_C = 0xea, LINES = 7 /* an eighth of the struct, rounded up */ };
    const __m512i low = _mm512_set1_epi8(15), high = _mm512_set1_epi8((char)0xf0);
    const __m512i bits45 = _mm512_set1_epi8(0x30), bits23 = _mm512_set1_epi8(0x0c);
    const int8_t *q = x->q;
    for (int64_t b = 0; b < x->n_blocks; b++, q += 32 * M) {
        const struct pp_q6_k_pack *p = (const struct pp_q6_k_pack *)group + (x->block0 + b) / 8;
        int in = (int)(b % 8);
        __m512i first[ACT_TILE_ROWS], second[ACT_TILE_ROWS]; /* the second sums are 4 times too large */
        fetch_ahead((const char *)p + 64 * LINES * in, LINES);
        UNROLL for (int i = 0; i < M; i++)
        {
            first[i] = _mm512_set1_epi32(x->bias[2 * (b * M + i)]);
            second[i] = _mm512_set1_epi32(x->bias[2 * (b * M + i) + 1]);
        }
        UNROLL for (int v = 0; v < 4; v++)
        {
            __m512i ql = _mm512_load_si512(p->q[in].low[v]), qh = _mm512_load_si512(p->q[in].high[v / 2]);
            __m512i for_first = v % 2 ? _mm512_srli_epi32(qh, 2) : qh;
            __m512i for_second = v % 2 ? _mm512_slli_epi32(qh, 2) : qh;
            __m512i w0 = _mm512_ternarylogic_epi32(for_first, bits45, _mm512_and_si512(ql, low), A_AND_B_OR_C);
            __m512i w1 = _mm512_ternarylogic_epi32(for_second, bits23, _mm512_and_si512(ql, high), A_AND_B_OR_C);
            add_slice(first, w0, q + 4 * v, M);
            add_slice(second, w1, q + 16 + 4 * v, M);
        }
        /* Whole numbers below 2^24 throughout: float is exact. */
        __m512 d = halves(p->d), sc0 = signed_bytes(p->sc[2 * in]);
        __m512 sc1 = _mm512_mul_ps(signed_bytes(p->sc[2 * in + 1]), _mm512_set1_ps(0.25f));
        UNROLL for (int i = 0; i < M; i++)
        {
            __m512 isum = _mm512_mul_ps(sc0, _mm512_cvtepi32_ps(first[i]));
            isum = _mm512_fmadd_ps(sc1, _mm512_cvtepi32_ps(second[i]), isum);
            acc[i] = _mm512_fmadd_ps(_mm512_mul_ps(d, _mm512_set1_ps(x->d[b * M + i])), isum, acc[i]);
        }
    }
}

/* --- loops over tiles --------------------------------------------------------------------------------------------- */

typedef void tile_fn(const struct act_tile *x, const uint8_t *group, int64_t n_cols, __m512 *acc, const int M);

/* All groups of the rows with one tile of activations. */
INLINE void run_tile(tile_fn *tile, const struct pp_matrix *w, int64_t row0, int64_t row1, const struct act_tile *x,
                     float *y, int64_t y_stride, const int M)
{
    for (int64_t row = row0; row < row1; row += PP_GROUP_ROWS) {
        __m512 acc[ACT_TILE_ROWS];
        __mmask16 live = (__mmask16)(row1 - row < PP_GROUP_ROWS ? (1u << (row1 - row)) - 1u : 0xffffu);
        UNROLL for (int i = 0; i < M; i++)
            acc[i] = x->block0 ? _mm512_maskz_loadu_ps(live, y + i * y_stride + row) : _mm512_setzero_ps();
        tile(x, pp_pack_group(w, row), w->n_cols, acc, M);
        UNROLL for (int i = 0; i < M; i++)
            _mm512_mask_storeu_ps(y + i * y_stride + row, live, acc[i]);
    }
}

INLINE void matmul(tile_fn *tile, const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x,
                   int64_t m, float *y, int64_t y_stride)
{
    struct act_tile_memory memory;
    int64_t strip = act_tile_strip(w->type, w->n_cols);
    for (int64_t row = row0; row < row1; row += strip) {
        int64_t end = row + strip < row1 ? row + strip : row1;
        for (int64_t i = 0; i < m; i += ACT_TILE_ROWS) {
            int64_t rows = m - i < ACT_TILE_ROWS ? m - i : ACT_TILE_ROWS;
            for (int64_t b = 0; b < w->n_cols / 32; b += ACT_TILE_BLOCKS) {
                struct act_tile t = act_tile_make(w->type, x, i, rows, b, w->n_cols / 32 - b, &memory);
                float *out = y + i * y_stride;
                switch (rows) {
                case 1:
                    run_tile(tile, w, row, end, &t, out, y_stride, 1);
                    break;
                case 2:
                    run_tile(tile, w, row, end, &t, out, y_stride, 2);
                    break;
                case 3:
                    run_tile(tile, w, row, end, &t, out, y_stride, 3);
                    break;
                case 4:
                    run_tile(tile, w, row, end, &t, out, y_stride, 4);
                    break;
                case 5:
                    run_tile(tile, w, row, end, &t, out, y_stride, 5);
                    break;
                case 6:
                    run_tile(tile, w, row, end, &t, out, y_stride, 6);
                    break;
                case 7:
                    run_tile(tile, w, row, end, &t, out, y_stride, 7);
                    break;
                default:
                    run_tile(tile, w, row, end, &t, out, y_stride, 8);
                }
            }
        }
    }
}

static void matmul_q8_0(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                        float *y, int64_t y_stride, void *scratch)
{
    (void)scratch;
    matmul(tile_q8_0, w, row0, row1, x, m, y, y_stride);
}

static void matmul_q4_0(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                        float *y, int64_t y_stride, void *scratch)
{
    (void)scratch;
    matmul(tile_q4_0, w, row0, row1, x, m, y, y_stride);
}

static void matmul_q4_k(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                        float *y, int64_t y_stride, void *scratch)
{
    (void)scratch;
    matmul(tile_q4_k, w, row0, row1, x, m, y, y_stride);
}

static void matmul_q6_k(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                        float *y, int64_t y_stride, void *scratch)
{
    (void)scratch;
    matmul(tile_q6_k, w, row0, row1, x, m, y, y_stride);
}

/* --- float weights ------------------------------------------------------------------------------------------------ */

INLINE __mmask16 first_lanes(int64_t n)
{
    return (__mmask16)(n < 16 ? (1u << n) - 1u : 0xffffu);
}

/* 16 weights from column k on; lanes that are not live are 0. */
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

/* R weight rows times M activation rows; meanwhile the next R weight rows are asked for. */
INLINE void float_tile(const uint8_t *w, size_t row_bytes, const float *x, int64_t x_stride, int64_t n, float *y,
                       int64_t y_stride, const uint32_t type, const int R, const int M)
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
            if (type == PP_TYPE_F32 || k % 32 == 0)
                fetch_line(row + (type == PP_TYPE_F32 ? 4 : 2) * k, (size_t)R * row_bytes);
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
#define FLOAT_R(m) ((m) <= 2 ? 8 : 4)
#include "engine/cpu/float_rows.h"

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
    .quantize = quantize,
    .dot = dot,
    .by_type =
        {
            [PP_TYPE_F32] = matmul_f32,
            [PP_TYPE_F16] = matmul_f16,
            [PP_TYPE_BF16] = matmul_bf16,
            [PP_TYPE_Q8_0] = matmul_q8_0,
            [PP_TYPE_Q4_0] = matmul_q4_0,
            [PP_TYPE_Q4_K] = matmul_q4_k,
            [PP_TYPE_Q6_K] = matmul_q6_k,
        },
};

#else
typedef int pp_matmul_avx512_is_for_x86_64;
#endif
