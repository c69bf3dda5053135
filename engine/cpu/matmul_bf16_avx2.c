/* matmul_bf16_avx2.c - the products with bfloat16 activations for AVX2 and FMA: a lane is a weight row. They are
 * here for the same bits on machines without AMX, where float32 activations cost no more. */
#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#include "engine/cpu/matmul_bf16.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

enum { LANES = 8, TILE_ROWS = 4 /* activation rows */, PANEL_COLS = 1024 };

/* In the thread's scratch: a panel of columns as floats. */
struct panel {
    float w[PANEL_COLS][LANES];
    float x[TILE_ROWS][PANEL_COLS];
};

_Static_assert(sizeof(struct panel) <= PP_MATMUL_SCRATCH, "a thread's scratch");

static void round_row(const float *x, int64_t n, uint16_t *out)
{
    for (int64_t k = 0; k < n; k++) {
        uint32_t bits;
        memcpy(&bits, x + k, sizeof bits);
        uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, nan = bits >> 16 | 64;
        out[k] = (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
    }
    for (int64_t k = n; k % PP_BF16_BLOCK; k++)
        out[k] = 0;
}

/* Transposes 8 x 8 numbers of 32 bits. */
INLINE void transpose(__m256i r[LANES])
{
    __m256i pairs[LANES], fours[LANES];
    UNROLL for (int i = 0; i < LANES; i += 2)
    {
        pairs[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
    }
    UNROLL for (int i = 0; i < LANES; i += 4)
    {
        fours[i] = _mm256_unpacklo_epi64(pairs[i], pairs[i + 2]);
        fours[i + 1] = _mm256_unpackhi_epi64(pairs[i], pairs[i + 2]);
        fours[i + 2] = _mm256_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
        fours[i + 3] = _mm256_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
    UNROLL for (int i = 0; i < 4; i++)
    {
        r[i] = _mm256_permute2x128_si256(fours[i], fours[i + 4], 0x20);
        r[i + 4] = _mm256_permute2x128_si256(fours[i], fours[i + 4], 0x31);
    }
}

/* n columns of `rows` (at most 8) weight rows; lanes without a row and the rest of the last block are zeros. */
static void spread_weights(struct panel *p, const uint8_t *w, size_t row_bytes, int64_t rows, int64_t n)
{
    for (int64_t k = 0; k < n; k += 2 * LANES) {
        __m256i r[LANES];
        size_t live = (size_t)(n - k < 2 * LANES ? n - k : 2 * LANES) * 2;
        for (int i = 0; i < LANES; i++) {
            uint8_t part[32] = {0};
            if (i < rows && live == sizeof part)
                memcpy(part, w + (size_t)i * row_bytes + 2 * k, sizeof part);
            else if (i < rows)
                memcpy(part, w + (size_t)i * row_bytes + 2 * k, live);
            r[i] = _mm256_loadu_si256((const __m256i *)part);
        }
        transpose(r);
        UNROLL for (int i = 0; i < LANES; i++)
        {
            _mm256_store_si256((__m256i *)p->w[k + 2 * i], _mm256_slli_epi32(r[i], 16));
            _mm256_store_si256((__m256i *)p->w[k + 2 * i + 1], _mm256_and_si256(r[i], _mm256_set1_epi32(-65536)));
        }
    }
    for (int64_t k = (n + 2 * LANES - 1) / (2 * LANES) * (2 * LANES); k % PP_BF16_BLOCK; k++)
        memset(p->w[k], 0, sizeof p->w[k]);
}

/* Blocks of activations, padding included. */
static void spread_activations(float *out, const uint16_t *x, int64_t n)
{
    for (int64_t k = 0; k < n; k += LANES)
        _mm256_store_ps(out + k, _mm256_castsi256_ps(_mm256_slli_epi32(
                                     _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(x + k))), 16)));
}

/* acc[i] of M activation rows over a panel of n columns, a multiple of 32. */
INLINE void run_panel(const struct panel *p, int64_t n, __m256 *acc, const int M)
{
    for (int64_t k = 0; k < n; k += PP_BF16_BLOCK) {
        __m256 even[TILE_ROWS], odd[TILE_ROWS];
        UNROLL for (int i = 0; i < M; i++)
            even[i] = odd[i] = _mm256_setzero_ps();
        for (int64_t j = k; j < k + PP_BF16_BLOCK; j += 2) {
            __m256 w0 = _mm256_load_ps(p->w[j]), w1 = _mm256_load_ps(p->w[j + 1]);
            UNROLL for (int i = 0; i < M; i++)
            {
                even[i] = _mm256_fmadd_ps(w0, _mm256_broadcast_ss(&p->x[i][j]), even[i]);
                odd[i] = _mm256_fmadd_ps(w1, _mm256_broadcast_ss(&p->x[i][j + 1]), odd[i]);
            }
        }
        UNROLL for (int i = 0; i < M; i++)
            acc[i] = _mm256_add_ps(acc[i], _mm256_add_ps(even[i], odd[i]));
    }
}

/* M activation rows with the panel's `rows` weight rows; y holds what the panels before have summed. */
INLINE void run_tile(struct panel *p, const uint16_t *x, int64_t x_stride, int64_t n, float *y, int64_t y_stride,
                     int64_t rows, bool first, const int M)
{
    float lanes[TILE_ROWS][LANES] __attribute__((aligned(32))) = {{0}};
    __m256 acc[TILE_ROWS];
    UNROLL for (int i = 0; i < M; i++)
    {
        spread_activations(p->x[i], x + i * x_stride, n);
        if (!first)
            memcpy(lanes[i], y + i * y_stride, (size_t)rows * sizeof *y);
        acc[i] = _mm256_load_ps(lanes[i]);
    }
    run_panel(p, n, acc, M);
    UNROLL for (int i = 0; i < M; i++)
    {
        _mm256_store_ps(lanes[i], acc[i]);
        memcpy(y + i * y_stride, lanes[i], (size_t)rows * sizeof *y);
    }
}

/* Not inlined: all of it runs between the two changes of the control register in matmul(). */
static __attribute__((noinline)) void run_rows(const struct pp_matrix *w, int64_t row, int64_t rows,
                                               const struct pp_acts *x, int64_t m, float *y, int64_t y_stride,
                                               struct panel *p)
{
    const size_t row_bytes = 2 * (size_t)w->n_cols;
    const uint8_t *data = (const uint8_t *)w->data + (size_t)row * row_bytes;
    for (int64_t k = 0; k < w->n_cols; k += PANEL_COLS) {
        int64_t n = w->n_cols - k < PANEL_COLS ? w->n_cols - k : PANEL_COLS;
        int64_t padded = (n + PP_BF16_BLOCK - 1) / PP_BF16_BLOCK * PP_BF16_BLOCK;
        spread_weights(p, data + 2 * k, row_bytes, rows, n);
        for (int64_t i = 0; i < m; i += TILE_ROWS) {
            const uint16_t *xi = x->bf16 + i * x->bf16_stride + k;
            float *yi = y + i * y_stride + row;
            if (m - i >= TILE_ROWS)
                run_tile(p, xi, x->bf16_stride, padded, yi, y_stride, rows, k == 0, TILE_ROWS);
            else
                for (int64_t j = 0; j < m - i; j++)
                    run_tile(p, xi + j * x->bf16_stride, 0, padded, yi + j * y_stride, 0, rows, k == 0, 1);
        }
    }
}

static void matmul(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m, float *y,
                   int64_t y_stride, void *scratch)
{
    enum { FLUSH_RESULTS = 0x8000, FLUSH_INPUTS = 0x0040 };
    unsigned before = _mm_getcsr();
    _mm_setcsr((before & ~(unsigned)_MM_ROUND_MASK) | FLUSH_RESULTS | FLUSH_INPUTS);
    for (int64_t row = row0; row < row1; row += LANES)
        run_rows(w, row, row1 - row < LANES ? row1 - row : LANES, x, m, y, y_stride, scratch);
    _mm_setcsr(before);
}

const struct pp_bf16_kernels pp_bf16_avx2 = {.round = round_row, .matmul = matmul};

#else
typedef int pp_matmul_bf16_avx2_is_for_x86_64;
#endif
