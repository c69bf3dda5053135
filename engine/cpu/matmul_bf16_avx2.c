/* matmul_bf16_avx2.c - the products with bfloat16 activations for AVX2 and FMA: each lane computes a weight row. They
 * exist so that machines without AMX and AVX512-BF16 give the same bits; they are not faster than float32 products. */
#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#include "engine/cpu/bf16_split.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

enum { LANES = 8, TILE_ROWS = 4 /* of activations */, PANEL_COLS = 1024 };

/* In the thread's scratch: a panel of columns, converted to floats, each part by itself. */
struct panel {
    float w[PP_BF16_PARTS][PANEL_COLS][LANES];
    float x[PP_BF16_PARTS][TILE_ROWS][PANEL_COLS];
};

_Static_assert(sizeof(struct panel) <= PP_MATMUL_SCRATCH, "a thread's scratch");

enum part { UPPER, LOWER };

PP_BF16_SPLIT_AND_JOIN(HALVES)

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

/* Converts 8 weights to floats. Only the first `live` of them exist; the others become zeros. */
INLINE __m256i widen(const uint8_t *w, size_t live, const uint32_t type)
{
    uint8_t padded[2 * LANES] = {0};
    if (live < LANES) {
        memcpy(padded, w, 2 * live);
        w = padded;
    }
    const __m128i halves = _mm_loadu_si128((const __m128i *)w);
    return type == PP_TYPE_F16 ? _mm256_castps_si256(_mm256_cvtph_ps(halves))
                               : _mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16);
}

/* Converts n columns of `rows` (at most 8) weight rows to p->w. Lanes without a row and the rest of the last block are
 * zeros. */
INLINE void spread_weights(struct panel *p, const uint8_t *w, size_t row_bytes, int64_t rows, int64_t n,
                           const uint32_t type)
{
    for (int64_t k = 0; k < n || k % PP_BF16_BLOCK; k += LANES) {
        const size_t live = n - k >= LANES ? LANES : n > k ? (size_t)(n - k) : 0;
        __m256i r[LANES];
        for (int i = 0; i < LANES; i++)
            r[i] = i < rows && live ? widen(w + (size_t)i * row_bytes + 2 * k, live, type) : _mm256_setzero_si256();
        transpose(r);
        UNROLL for (int i = 0; i < LANES; i++)
        {
            const __m256 all = _mm256_castsi256_ps(r[i]);
            const __m256 upper = _mm256_castsi256_ps(_mm256_and_si256(r[i], _mm256_set1_epi32(-65536)));
            _mm256_store_ps(p->w[UPPER][k + i], upper);
            if (type == PP_TYPE_F16)
                _mm256_store_ps(p->w[LOWER][k + i], _mm256_sub_ps(all, upper));
        }
    }
}

/* Converts the blocks of one activation row, padding included, to p->x. */
INLINE void spread_activations(struct panel *p, int row, const uint16_t *x, int parts, int64_t n)
{
    for (int64_t k = 0; k < n; k += PP_BF16_BLOCK)
        for (int part = 0; part < parts; part++, x += PP_BF16_BLOCK) {
            float *first = p->x[part][row] + k, *second = first + PP_BF16_BLOCK / 2;
            for (int i = 0; i < PP_BF16_BLOCK / 2; i += LANES) {
                const __m256i pairs = _mm256_loadu_si256((const __m256i *)(x + 2 * i));
                const __m256i upper = _mm256_and_si256(pairs, _mm256_set1_epi32(-65536));
                _mm256_store_ps(first + i, _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)));
                _mm256_store_ps(second + i, _mm256_castsi256_ps(upper));
            }
        }
}

/* Adds one product of the block at column k to acc[i] of M activation rows. */
INLINE void add_product(const struct panel *p, int64_t k, enum part of_w, enum part of_x, __m256 *acc, const int M)
{
    enum { HALF = PP_BF16_BLOCK / 2 };
    __m256 first[TILE_ROWS], second[TILE_ROWS];
    UNROLL for (int i = 0; i < M; i++)
        first[i] = second[i] = _mm256_setzero_ps();
    for (int64_t j = k; j < k + HALF; j++) {
        __m256 w0 = _mm256_load_ps(p->w[of_w][j]), w1 = _mm256_load_ps(p->w[of_w][j + HALF]);
        UNROLL for (int i = 0; i < M; i++)
        {
            first[i] = _mm256_fmadd_ps(w0, _mm256_broadcast_ss(&p->x[of_x][i][j]), first[i]);
            second[i] = _mm256_fmadd_ps(w1, _mm256_broadcast_ss(&p->x[of_x][i][j + HALF]), second[i]);
        }
    }
    UNROLL for (int i = 0; i < M; i++)
        acc[i] = _mm256_add_ps(acc[i], _mm256_add_ps(first[i], second[i]));
}

/* Adds the products of a panel of n columns, a multiple of 32, to acc[i] of M activation rows. */
INLINE void run_panel(const struct panel *p, int64_t n, uint32_t type, int parts, __m256 *acc, const int M)
{
    for (int64_t k = 0; k < n; k += PP_BF16_BLOCK) {
        if (type == PP_TYPE_F16)
            add_product(p, k, LOWER, UPPER, acc, M);
        add_product(p, k, UPPER, UPPER, acc, M);
        if (parts > 1)
            add_product(p, k, UPPER, LOWER, acc, M);
    }
}

/* A panel and its place in the matrix. */
struct strip {
    struct panel *panel;
    int64_t k, n; /* its first column, and how many: a multiple of 32 */
    int64_t rows; /* weight rows: 1 to 8 */
    uint32_t type;
};

/* Multiplies M activation rows, from row i0 on, by the strip. y, at the strip's first weight row, holds the sums of the
 * strips before it, unless it is the first. */
INLINE void run_tile(const struct strip *s, const struct pp_acts *x, int64_t i0, float *y, int64_t y_stride,
                     const int M)
{
    float lanes[TILE_ROWS][LANES] __attribute__((aligned(32))) = {{0}};
    __m256 acc[TILE_ROWS];
    UNROLL for (int i = 0; i < M; i++)
    {
        const uint16_t *from = x->bf16 + (i0 + i) * x->bf16_stride + s->k * x->bf16_parts;
        spread_activations(s->panel, i, from, x->bf16_parts, s->n);
        if (s->k)
            memcpy(lanes[i], y + (i0 + i) * y_stride, (size_t)s->rows * sizeof *y);
        acc[i] = _mm256_load_ps(lanes[i]);
    }
    run_panel(s->panel, s->n, s->type, x->bf16_parts, acc, M);
    UNROLL for (int i = 0; i < M; i++)
    {
        _mm256_store_ps(lanes[i], acc[i]);
        memcpy(y + (i0 + i) * y_stride, lanes[i], (size_t)s->rows * sizeof *y);
    }
}

/* Multiplies up to 8 weight rows by all activation rows. Not inlined, so that no part of it can be moved out of the
 * code between the two changes of the control register in matmul(). */
static __attribute__((noinline)) void run_rows(const struct pp_matrix *w, int64_t row, int64_t rows,
                                               const struct pp_acts *x, int64_t m, float *y, int64_t y_stride,
                                               struct panel *p)
{
    const size_t row_bytes = 2 * (size_t)w->n_cols;
    const uint8_t *data = (const uint8_t *)w->data + (size_t)row * row_bytes;
    for (int64_t k = 0; k < w->n_cols; k += PANEL_COLS) {
        const int64_t n = w->n_cols - k < PANEL_COLS ? w->n_cols - k : PANEL_COLS;
        const struct strip s = {.panel = p, .k = k, .rows = rows, .type = w->type,
                                .n = (n + PP_BF16_BLOCK - 1) / PP_BF16_BLOCK * PP_BF16_BLOCK};
        int64_t i = 0;
        if (w->type == PP_TYPE_F16)
            spread_weights(p, data + 2 * k, row_bytes, rows, n, PP_TYPE_F16);
        else
            spread_weights(p, data + 2 * k, row_bytes, rows, n, PP_TYPE_BF16);
        for (; i + TILE_ROWS <= m; i += TILE_ROWS)
            run_tile(&s, x, i, y + row, y_stride, TILE_ROWS);
        for (; i < m; i++)
            run_tile(&s, x, i, y + row, y_stride, 1);
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

const struct pp_bf16_kernels pp_bf16_avx2 = {.split = split_row, .join = join_row, .matmul = matmul};

#else
typedef int pp_matmul_bf16_avx2_is_for_x86_64;
#endif
