/* matmul_bf16_amx.c - the products with bfloat16 activations for AMX: tiles of 16 activation rows x 16 weight rows
 * that stay in registers over many columns. The instruction itself is the arithmetic (matmul_bf16.h), so one row
 * takes the same way as five hundred.
 *
 * It wants pairs of columns of 16 weight rows side by side; weights are brought into that order strip by strip,
 * since they are used where they lie in the mapped file. */
#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#include "engine/cpu/amx_tiles.h"
#include "engine/cpu/matmul_bf16.h"

#ifndef UNROLL /* the tests' model of the instructions brings its own */
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#endif

enum {
    TILE_ROWS = 16,
    STRIP_GROUPS = 2,   /* of 16 weight rows */
    STRIP_COLS = 512,   /* with many activation rows: the strip stays in the L1 cache */
    STRIP_MOST = 3072,  /* with few */
    FEW_ROWS = 32,
    UNIT = 1024,        /* bytes of 16 rows x 32 columns */
};

/* In the thread's scratch. */
struct work {
    uint8_t units[STRIP_MOST / PP_BF16_BLOCK][STRIP_GROUPS][UNIT];
    float result[TILE_ROWS][PP_GROUP_ROWS] __attribute__((aligned(64))); /* of an incomplete group */
};

_Static_assert(sizeof(struct work) <= PP_MATMUL_SCRATCH, "a thread's scratch");

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

/* --- weights in tile order ---------------------------------------------------------------------------------------- */

/* Transposes 16 x 16 numbers of 32 bits. */
INLINE void transpose(const __m512i *r, __m512i *out)
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

/* 32 columns of `rows` (1 to 16) weight rows; missing rows and columns (mask: those that are there) are zeros.
 * Meanwhile the lines `ahead` bytes behind are asked for, whether they are there or not. */
INLINE void make_unit(const uint8_t *w, size_t row_bytes, int64_t rows, __mmask32 columns, size_t ahead, uint8_t *unit)
{
    __m512i r[16], out[16];
    UNROLL for (int i = 0; i < 16; i++)
    {
        const uint8_t *row = w + (size_t)i * row_bytes;
        r[i] = i < rows ? _mm512_maskz_loadu_epi16(columns, row) : _mm512_setzero_si512();
        __builtin_prefetch((const void *)((uintptr_t)row + ahead), 0, 2);
    }
    transpose(r, out);
    UNROLL for (int i = 0; i < 16; i++)
        _mm512_store_si512(unit + 64 * i, out[i]);
}

/* --- tiles -------------------------------------------------------------------------------------------------------- */

/* Tile registers: 0 to 3 sums [2 tiles of activations][2 groups], 4 and 5 activations, 6 and 7 weights. rows:
 * activation rows of a tile. */
static void shape_for(int rows)
{
    struct tile_shapes shapes = {.palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}};
    for (int t = 0; t < 8; t++)
        shapes.rows[t] = (uint8_t)(t < 6 ? rows : 16);
    shape_tiles(&shapes);
}

/* One strip of weights over n_blocks blocks of columns. */
struct strip {
    struct work *k;
    int64_t n_blocks;
    bool first;          /* sums start at 0, not at what is in y */
    int64_t lanes[STRIP_GROUPS]; /* weight rows of each group: 1 to 16 */
};

#define LOAD_SUMS(tile, from)                                              \
    do {                                                                   \
        if (s->first)                                                      \
            _tile_zero(tile);                                              \
        else                                                               \
            _tile_loadd(tile, from, y_stride * (int64_t)sizeof(float));    \
    } while (0)

/* What a group of fewer than 16 rows has in y goes by way of k->result. */
static void load_narrow(struct work *k, const float *y, int64_t y_stride, int64_t live, int64_t lanes)
{
    for (int64_t i = 0; i < live; i++)
        memcpy(k->result[i], y + i * y_stride, (size_t)lanes * sizeof *y);
    __asm__ volatile("" ::: "memory"); /* the compiler does not know that tile loads read memory */
}

static void store_narrow(const struct work *k, float *y, int64_t y_stride, int64_t live, int64_t lanes)
{
    for (int64_t i = 0; i < live; i++)
        memcpy(y + i * y_stride, k->result[i], (size_t)lanes * sizeof *y);
}

/* One tile of activations with one group: the general case. */
INLINE void run_one(const struct strip *s, int g, const uint16_t *x, int64_t x_stride, float *y, int64_t y_stride,
                    int64_t live)
{
    bool narrow = s->lanes[g] < PP_GROUP_ROWS;
    if (s->first) {
        _tile_zero(0);
    } else if (narrow) {
        load_narrow(s->k, y, y_stride, live, s->lanes[g]);
        _tile_loadd(0, s->k->result, 64);
    } else {
        _tile_loadd(0, y, y_stride * (int64_t)sizeof *y);
    }
    for (int64_t b = 0; b < s->n_blocks; b++) {
        _tile_loadd(4, x + PP_BF16_BLOCK * b, x_stride * 2);
        _tile_loadd(6, s->k->units[b][g], 64);
        _tile_dpbf16ps(0, 4, 6);
    }
    if (narrow) {
        _tile_stored(0, s->k->result, 64);
        store_narrow(s->k, y, y_stride, live, s->lanes[g]);
    } else {
        _tile_stored(0, y, y_stride * (int64_t)sizeof *y);
    }
}

/* One tile of activations with two whole groups. */
INLINE void run_1x2(const struct strip *s, const uint16_t *x, int64_t x_stride, float *y, int64_t y_stride)
{
    LOAD_SUMS(0, y);
    LOAD_SUMS(1, y + PP_GROUP_ROWS);
    for (int64_t b = 0; b < s->n_blocks; b++) {
        _tile_loadd(4, x + PP_BF16_BLOCK * b, x_stride * 2);
        _tile_loadd(6, s->k->units[b][0], 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, s->k->units[b][1], 64);
        _tile_dpbf16ps(1, 4, 7);
    }
    _tile_stored(0, y, y_stride * (int64_t)sizeof *y);
    _tile_stored(1, y + PP_GROUP_ROWS, y_stride * (int64_t)sizeof *y);
}

/* Two tiles of activations with two whole groups: four products for four loads. */
INLINE void run_2x2(const struct strip *s, const uint16_t *x, int64_t x_stride, float *y, int64_t y_stride)
{
    const uint16_t *x1 = x + TILE_ROWS * x_stride;
    float *y1 = y + TILE_ROWS * y_stride;
    LOAD_SUMS(0, y);
    LOAD_SUMS(1, y + PP_GROUP_ROWS);
    LOAD_SUMS(2, y1);
    LOAD_SUMS(3, y1 + PP_GROUP_ROWS);
    for (int64_t b = 0; b < s->n_blocks; b++) {
        _tile_loadd(6, s->k->units[b][0], 64);
        _tile_loadd(4, x + PP_BF16_BLOCK * b, x_stride * 2);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, s->k->units[b][1], 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, x1 + PP_BF16_BLOCK * b, x_stride * 2);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, y, y_stride * (int64_t)sizeof *y);
    _tile_stored(1, y + PP_GROUP_ROWS, y_stride * (int64_t)sizeof *y);
    _tile_stored(2, y1, y_stride * (int64_t)sizeof *y);
    _tile_stored(3, y1 + PP_GROUP_ROWS, y_stride * (int64_t)sizeof *y);
}

/* --- loops over tiles --------------------------------------------------------------------------------------------- */

/* Activation rows [i, m) of which the configured tiles have `live` each, as many whole tiles as there are. y: of the
 * strip's first row. Returns the first row that is left. */
static int64_t run_strip(const struct strip *s, const struct pp_acts *x, int64_t k, int64_t i, int64_t m, int live,
                         float *y, int64_t y_stride)
{
    bool whole = s->lanes[0] == PP_GROUP_ROWS && s->lanes[1] == PP_GROUP_ROWS;
    __asm__ volatile("" ::: "memory"); /* the units are stored */
    while (i + live <= m) {
        const uint16_t *xi = x->bf16 + i * x->bf16_stride + k;
        float *yi = y + i * y_stride;
        if (whole && live == TILE_ROWS && i + 2 * TILE_ROWS <= m) {
            run_2x2(s, xi, x->bf16_stride, yi, y_stride);
            i += TILE_ROWS;
        } else if (whole) {
            run_1x2(s, xi, x->bf16_stride, yi, y_stride);
        } else {
            run_one(s, 0, xi, x->bf16_stride, yi, y_stride, live);
            if (s->lanes[1] > 0)
                run_one(s, 1, xi, x->bf16_stride, yi + PP_GROUP_ROWS, y_stride, live);
        }
        i += live;
    }
    return i;
}

static int64_t at_most(int64_t n, int64_t most)
{
    return n < most ? n : most;
}

/* Weight rows [row, row1), at most a strip, n columns from k on. */
static struct strip make_strip(struct work *work, const struct pp_matrix *w, int64_t row, int64_t row1, int64_t k,
                               int64_t n, size_t ahead)
{
    const size_t row_bytes = 2 * (size_t)w->n_cols;
    struct strip s = {.k = work, .n_blocks = (n + PP_BF16_BLOCK - 1) / PP_BF16_BLOCK, .first = k == 0};
    for (int g = 0; g < STRIP_GROUPS; g++) {
        int64_t from = row + PP_GROUP_ROWS * g;
        s.lanes[g] = from < row1 ? at_most(row1 - from, PP_GROUP_ROWS) : 0;
        const uint8_t *data = (const uint8_t *)w->data + (size_t)from * row_bytes + 2 * k;
        for (int64_t b = 0; s.lanes[g] && b < s.n_blocks; b++) {
            int64_t live = at_most(n - PP_BF16_BLOCK * b, PP_BF16_BLOCK);
            const __mmask32 columns = (__mmask32)(0xffffffffu >> (32 - live));
            make_unit(data + 2 * PP_BF16_BLOCK * b, row_bytes, s.lanes[g], columns, ahead, work->units[b][g]);
        }
    }
    return s;
}

static void matmul(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m, float *y,
                   int64_t y_stride, void *scratch)
{
    const int rest = (int)(m % TILE_ROWS);
    const int64_t cols = m <= FEW_ROWS ? STRIP_MOST : STRIP_COLS;
    /* Few activation rows: further on in the weight rows; many: in the next strip, which comes much later. */
    const size_t ahead = m <= FEW_ROWS ? 1024 : 2 * STRIP_GROUPS * PP_GROUP_ROWS * (size_t)w->n_cols;
    shape_for(m < TILE_ROWS ? rest : TILE_ROWS);
    for (int64_t k = 0; k < w->n_cols; k += cols) /* outside: these columns of the activations stay in the L2 cache */
        for (int64_t row = row0; row < row1; row += STRIP_GROUPS * PP_GROUP_ROWS) {
            const struct strip s = make_strip(scratch, w, row, row1, k, at_most(w->n_cols - k, cols), ahead);
            if (m < TILE_ROWS) {
                run_strip(&s, x, k, 0, m, rest, y + row, y_stride);
            } else {
                int64_t i = run_strip(&s, x, k, 0, m, TILE_ROWS, y + row, y_stride);
                if (rest) {
                    shape_for(rest);
                    run_strip(&s, x, k, i, m, rest, y + row, y_stride);
                    shape_for(TILE_ROWS);
                }
            }
        }
    _tile_release(); /* tiles in use make every switch of threads dearer */
}

const struct pp_bf16_kernels pp_bf16_amx = {.round = round_row, .matmul = matmul};

#else
typedef int pp_matmul_bf16_amx_is_for_x86_64;
#endif
