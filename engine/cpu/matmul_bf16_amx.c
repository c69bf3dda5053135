/* matmul_bf16_amx.c - the products with bfloat16 activations for AMX. TDPBF16PS computes the sums of matmul_bf16.h as
 * they are defined, whichever of its two operands holds the weights:
 *
 * - Few activation rows: the first operand is 16 weight rows, one after the other as in the file, split into parts. The
 *   second is the activations, which must be rearranged so that a pair of columns of all rows is contiguous. A single
 *   row already is.
 * - Many: the first operand is the activations, one row after the other; the second is the weights, which are
 *   rearranged strip by strip. */
#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#include "engine/cpu/amx_tiles.h"
#include "engine/cpu/bf16_split.h"
#include "engine/cpu/transpose16.h"

enum {
    TILE_ROWS = 16,
    UNIT = 1024,         /* bytes of 16 rows x 32 columns: a tile */
    FEW_ROWS = 2 * TILE_ROWS,
    FEW_BYTES = 1 << 17, /* for rearranged activations: as many columns as fit are multiplied at a time */
    /* How many blocks ahead weights are prefetched. F16, one row, two cores of a Granite Rapids: 28.2 GB/s with 2, 30.4
     * with 4, 31.8 with 8, 32.2 with 16, 31.6 with 32; 30.8 if the same columns of the next 16 rows are prefetched
     * instead; float32 products: 32. */
    FEW_AHEAD = 16,
    STRIP_GROUPS = 2,    /* of 16 weight rows */
    STRIP_COLS = 512,    /* so few that their activations stay in the L2 cache */
};

enum part { UPPER, LOWER };

PP_BF16_SPLIT_AND_JOIN(HALVES)

/* In the thread's scratch. */
struct few_work {
    uint8_t units[2][PP_BF16_PARTS][UNIT]; /* of this block and the next one */
    uint8_t acts[FEW_BYTES];
    float result[2][TILE_ROWS][TILE_ROWS]; /* [weight row][activation row] */
} __attribute__((aligned(64)));

struct many_work {
    uint8_t units[STRIP_COLS / PP_BF16_BLOCK][STRIP_GROUPS][PP_BF16_PARTS][UNIT];
    float result[TILE_ROWS][PP_GROUP_ROWS]; /* the sums of an incomplete group */
} __attribute__((aligned(64)));

_Static_assert(sizeof(struct few_work) <= PP_MATMUL_SCRATCH && sizeof(struct many_work) <= PP_MATMUL_SCRATCH,
               "a thread's scratch");

static int64_t at_most(int64_t n, int64_t most)
{
    return n < most ? n : most;
}

/* --- weights ------------------------------------------------------------------------------------------------------ */

/* Converts 16 columns of F16 to floats, those that are `live` (whole: all of them). */
INLINE __m512 load_floats(const uint8_t *w, __mmask16 live, const bool whole)
{
    return _mm512_cvtph_ps(whole ? _mm256_loadu_si256((const __m256i *)w) : _mm256_maskz_loadu_epi16(live, w));
}

INLINE __m512 upper_of(__m512 w)
{
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(w), _mm512_set1_epi32(-65536)));
}

/* Pairs of bfloat16: the upper halves of the floats in both vectors, `first` in the lower half of each 32 bits. */
INLINE __m512i pair_up(__m512 first, __m512 second)
{
    static const uint8_t down[] = {2, 3, 0, 0, 6, 7, 0, 0, 10, 11, 0, 0, 14, 15, 0, 0};
    const __m512i at = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)down));
    return _mm512_mask_shuffle_epi8(_mm512_castps_si512(second), 0x3333333333333333, _mm512_castps_si512(first), at);
}

/* Splits 32 columns of a row, those that are `live` (whole: all of them), into parts, pairs of columns k and k + 16. */
INLINE void load_parts(const uint8_t *w, __mmask32 live, const uint32_t type, const bool whole, __m512i *parts)
{
    if (type == PP_TYPE_BF16) {
        static const uint16_t at[] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
        const __m512i row = whole ? _mm512_loadu_si512(w) : _mm512_maskz_loadu_epi16(live, w);
        parts[UPPER] = _mm512_permutexvar_epi16(_mm512_loadu_si512(at), row);
        return;
    }
    const __m512 first = load_floats(w, (__mmask16)live, whole), upper1 = upper_of(first);
    const __m512 second = load_floats(w + 32, (__mmask16)(live >> 16), whole), upper2 = upper_of(second);
    parts[UPPER] = pair_up(first, second);
    parts[LOWER] = pair_up(_mm512_sub_ps(first, upper1), _mm512_sub_ps(second, upper2));
}

/* Makes the tiles of both parts from 32 columns of `rows` weight rows (whole: 16 rows, all columns), padded with 0.
 * Also prefetches the cache lines `ahead` bytes further on, which may lie past the matrix. */
INLINE void make_unit(const uint8_t *w, size_t row_bytes, int64_t rows, __mmask32 live, size_t ahead,
                      const uint32_t type, const bool whole, uint8_t (*unit)[UNIT])
{
    UNROLL for (int i = 0; i < TILE_ROWS; i++)
    {
        const uint8_t *row = w + (size_t)i * row_bytes;
        __m512i parts[PP_BF16_PARTS] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
        if (whole || i < rows)
            load_parts(row, live, type, whole, parts);
        __builtin_prefetch((const void *)((uintptr_t)row + ahead), 0, 3);
        _mm512_store_si512(unit[UPPER] + 64 * i, parts[UPPER]);
        if (type == PP_TYPE_F16)
            _mm512_store_si512(unit[LOWER] + 64 * i, parts[LOWER]);
    }
}

/* The same for block b of n columns of at most 16 weight rows; w: the first column. */
INLINE void make_block(const uint8_t *w, size_t row_bytes, int64_t rows, int64_t b, int64_t n, size_t ahead,
                       const uint32_t type, uint8_t (*unit)[UNIT])
{
    const int64_t live = at_most(n - PP_BF16_BLOCK * b, PP_BF16_BLOCK);
    const __mmask32 mask = (__mmask32)(0xffffffffu >> (PP_BF16_BLOCK - live));
    w += 2 * PP_BF16_BLOCK * b;
    if (rows >= TILE_ROWS && live == PP_BF16_BLOCK)
        make_unit(w, row_bytes, TILE_ROWS, mask, ahead, type, true, unit);
    else
        make_unit(w, row_bytes, rows, mask, ahead, type, false, unit);
}

/* --- few activation rows ------------------------------------------------------------------------------------------ */

/* Some columns of the activations, arranged as second operands: [block][tile][part][16 pairs of columns][`columns`]. */
struct few {
    struct few_work *work;
    int64_t k, n;           /* first column, how many */
    const uint8_t *acts;
    int tiles, parts;       /* tiles of up to 16 activation rows: 1 or 2 */
    int64_t columns;        /* of a tile, one for each activation row: 1, 4, 8 or 16, the least that suffices */
    int64_t m;              /* activation rows */
};

/* Tile registers: 0 and 1 hold the sums of the two tiles of activations, 4 and 5 the parts of the first of these tiles,
 * 2 and 3 those of the second, 6 and 7 the parts of the weights. */
static void shape_few(int64_t m)
{
    struct tile_shapes shapes = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        const int64_t tile = t >= 1 && t <= 3 && m > TILE_ROWS ? m - TILE_ROWS : at_most(m, TILE_ROWS);
        shapes.rows[t] = TILE_ROWS;
        shapes.row_bytes[t] = (uint16_t)(t < 6 ? 4 * tile : 64);
    }
    shape_tiles(&shapes);
}

/* Interleaves one part of a block of at most 4 activation rows: [16 pairs][4 rows]. */
INLINE void order_4(const uint16_t *x, int64_t x_stride, int64_t rows, uint8_t *to)
{
    __m512i r[4], fours[4];
    UNROLL for (int i = 0; i < 4; i++)
        r[i] = i < rows ? _mm512_loadu_si512(x + i * x_stride) : _mm512_setzero_si512();
    const __m512i low0 = _mm512_unpacklo_epi32(r[0], r[1]), high0 = _mm512_unpackhi_epi32(r[0], r[1]);
    const __m512i low1 = _mm512_unpacklo_epi32(r[2], r[3]), high1 = _mm512_unpackhi_epi32(r[2], r[3]);
    fours[0] = _mm512_unpacklo_epi64(low0, low1); /* 128-bit lane l of fours[c] is pair 4 l + c of the rows */
    fours[1] = _mm512_unpackhi_epi64(low0, low1);
    fours[2] = _mm512_unpacklo_epi64(high0, high1);
    fours[3] = _mm512_unpackhi_epi64(high0, high1);
    const __m512i a0 = _mm512_shuffle_i32x4(fours[0], fours[1], 0x44);
    const __m512i b0 = _mm512_shuffle_i32x4(fours[2], fours[3], 0x44);
    const __m512i a1 = _mm512_shuffle_i32x4(fours[0], fours[1], 0xee);
    const __m512i b1 = _mm512_shuffle_i32x4(fours[2], fours[3], 0xee);
    _mm512_store_si512(to, _mm512_shuffle_i32x4(a0, b0, 0x88));
    _mm512_store_si512(to + 64, _mm512_shuffle_i32x4(a0, b0, 0xdd));
    _mm512_store_si512(to + 128, _mm512_shuffle_i32x4(a1, b1, 0x88));
    _mm512_store_si512(to + 192, _mm512_shuffle_i32x4(a1, b1, 0xdd));
}

/* The same for at most MOST rows, 8 or 16: [16 pairs][MOST rows]. */
INLINE void order_rows(const uint16_t *x, int64_t x_stride, int64_t rows, uint8_t *to, const int MOST)
{
    __m512i r[TILE_ROWS], out[TILE_ROWS];
    UNROLL for (int i = 0; i < TILE_ROWS; i++)
        r[i] = i < MOST && i < rows ? _mm512_loadu_si512(x + i * x_stride) : _mm512_setzero_si512();
    transpose16(r, out);
    UNROLL for (int i = 0; i < TILE_ROWS; i++)
        _mm512_mask_storeu_epi32(to + 4 * MOST * i, (__mmask16)((1u << MOST) - 1), out[i]);
}

static void order_acts(const struct pp_acts *x, const struct few *f)
{
    uint8_t *to = f->work->acts;
    for (int64_t b = 0; PP_BF16_BLOCK * b < f->n; b++)
        for (int t = 0; t < f->tiles; t++)
            for (int part = 0; part < f->parts; part++, to += 4 * TILE_ROWS * f->columns) {
                const uint16_t *from = x->bf16 + TILE_ROWS * t * x->bf16_stride + f->k * f->parts +
                                       PP_BF16_BLOCK * (b * f->parts + part);
                const int64_t rows = at_most(f->m - TILE_ROWS * t, TILE_ROWS);
                if (f->columns == 4)
                    order_4(from, x->bf16_stride, rows, to);
                else if (f->columns == 8)
                    order_rows(from, x->bf16_stride, rows, to, 8);
                else
                    order_rows(from, x->bf16_stride, rows, to, TILE_ROWS);
            }
}

/* Loads the sums of a tile, [16 weight rows][16 activation rows], from y, where they are transposed. Of these rows only
 * the first `lanes` and the first `rows` exist. store_sums() stores them. */
static void load_sums(float (*sums)[TILE_ROWS], const float *y, int64_t y_stride, int64_t rows, int64_t lanes)
{
    __m512i r[TILE_ROWS], out[TILE_ROWS];
    const __mmask16 live = (__mmask16)(0xffffu >> (TILE_ROWS - lanes));
    UNROLL for (int i = 0; i < TILE_ROWS; i++)
        r[i] = i < rows ? _mm512_maskz_loadu_epi32(live, y + i * y_stride) : _mm512_setzero_si512();
    transpose16(r, out);
    UNROLL for (int i = 0; i < TILE_ROWS; i++)
        _mm512_store_si512(sums[i], out[i]);
}

static void store_sums(float (*sums)[TILE_ROWS], float *y, int64_t y_stride, int64_t rows, int64_t lanes)
{
    __m512i r[TILE_ROWS], out[TILE_ROWS];
    const __mmask16 live = (__mmask16)(0xffffu >> (TILE_ROWS - lanes));
    UNROLL for (int i = 0; i < TILE_ROWS; i++)
        r[i] = _mm512_load_si512(sums[i]);
    transpose16(r, out);
    UNROLL for (int i = 0; i < TILE_ROWS; i++)
        if (i < rows)
            _mm512_mask_storeu_epi32(y + i * y_stride, live, out[i]);
}

/* Adds the products of a block to the sums. */
INLINE void add_block(const struct few *f, const uint8_t *acts, const uint8_t (*unit)[UNIT], const uint32_t type)
{
    const int64_t stride = 4 * f->columns, part = TILE_ROWS * stride;
    _tile_loadd(6, unit[UPPER], 64);
    _tile_loadd(4, acts, stride);
    if (type == PP_TYPE_F16) {
        _tile_loadd(7, unit[LOWER], 64);
        _tile_dpbf16ps(0, 7, 4);
    }
    _tile_dpbf16ps(0, 6, 4);
    if (f->parts > 1) {
        _tile_loadd(5, acts + part, stride);
        _tile_dpbf16ps(0, 6, 5);
    }
    if (f->tiles > 1) {
        acts += f->parts * part;
        _tile_loadd(2, acts, stride);
        if (type == PP_TYPE_F16)
            _tile_dpbf16ps(1, 7, 2);
        _tile_dpbf16ps(1, 6, 2);
        if (f->parts > 1) {
            _tile_loadd(3, acts + part, stride);
            _tile_dpbf16ps(1, 6, 3);
        }
    }
}

/* Multiplies `lanes` weight rows (at most 16) by all activation rows. The next block's tiles of weights are made while
 * those of this one are multiplied. w, y: at the first of the weight rows. */
INLINE void few_group(const struct few *f, const uint8_t *w, size_t row_bytes, int64_t lanes, float *y,
                      int64_t y_stride, const uint32_t type)
{
    struct few_work *k = f->work;
    const int64_t n_blocks = (f->n + PP_BF16_BLOCK - 1) / PP_BF16_BLOCK;
    const size_t step = 4 * TILE_ROWS * (size_t)(f->columns * f->tiles * f->parts);
    const size_t ahead = 2 * PP_BF16_BLOCK * FEW_AHEAD;
    const size_t next_rows = TILE_ROWS * row_bytes + ahead - (size_t)(2 * PP_BF16_BLOCK * n_blocks);
    for (int t = 0; f->k && t < f->tiles; t++)
        load_sums(k->result[t], y + TILE_ROWS * t * y_stride, y_stride, f->m - TILE_ROWS * t, lanes);
    make_block(w, row_bytes, lanes, 0, f->n, ahead, type, k->units[0]);
    finish_stores();
    _tile_zero(0);
    _tile_zero(1);
    if (f->k) {
        _tile_loadd(0, k->result[0], 64);
        if (f->tiles > 1)
            _tile_loadd(1, k->result[1], 64);
    }
    for (int64_t b = 0; b < n_blocks; b++) {
        if (b + 1 < n_blocks)
            make_block(w, row_bytes, lanes, b + 1, f->n, b + 1 + FEW_AHEAD < n_blocks ? ahead : next_rows, type,
                       k->units[(b + 1) % 2]);
        finish_stores();
        add_block(f, f->acts + (size_t)b * step, k->units[b % 2], type);
    }
    _tile_stored(0, k->result[0], f->m == 1 ? 4 : 64);
    if (f->tiles > 1)
        _tile_stored(1, k->result[1], 64);
    finish_stores();
    if (f->m == 1)
        memcpy(y, k->result[0], (size_t)lanes * sizeof *y);
    for (int t = 0; f->m > 1 && t < f->tiles; t++)
        store_sums(k->result[t], y + TILE_ROWS * t * y_stride, y_stride, f->m - TILE_ROWS * t, lanes);
}

/* Prefetches the beginning of the first rows, for which the prefetches in make_unit() come too late. */
static void fetch_first(const uint8_t *w, size_t row_bytes, int64_t rows)
{
    for (size_t at = 0; at < 64 * FEW_AHEAD && at < row_bytes; at += 64)
        for (int64_t i = 0; i < rows; i++)
            __builtin_prefetch(w + (size_t)i * row_bytes + at, 0, 3);
}

static void few_rows(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                     float *y, int64_t y_stride, struct few_work *work)
{
    struct few f = {.work = work, .parts = x->bf16_parts, .m = m, .tiles = m > TILE_ROWS ? 2 : 1};
    const size_t row_bytes = 2 * (size_t)w->n_cols;
    f.columns = m == 1 ? 1 : m <= 4 ? 4 : m <= 8 ? 8 : TILE_ROWS;
    const int64_t per_block = 4 * TILE_ROWS * f.columns * f.tiles * f.parts;
    const int64_t cols = m == 1 ? w->n_cols : FEW_BYTES / per_block * PP_BF16_BLOCK;
    fetch_first((const uint8_t *)w->data + (size_t)row0 * row_bytes, row_bytes, at_most(row1 - row0, TILE_ROWS));
    shape_few(m);
    for (; f.k < w->n_cols; f.k += cols) {
        f.n = at_most(w->n_cols - f.k, cols);
        f.acts = m == 1 ? (const uint8_t *)x->bf16 : work->acts;
        if (m > 1)
            order_acts(x, &f);
        for (int64_t row = row0; row < row1; row += TILE_ROWS) {
            const uint8_t *data = (const uint8_t *)w->data + (size_t)row * row_bytes + 2 * f.k;
            const int64_t lanes = at_most(row1 - row, TILE_ROWS);
            if (w->type == PP_TYPE_F16)
                few_group(&f, data, row_bytes, lanes, y + row, y_stride, PP_TYPE_F16);
            else
                few_group(&f, data, row_bytes, lanes, y + row, y_stride, PP_TYPE_BF16);
        }
    }
}

/* --- many activation rows ----------------------------------------------------------------------------------------- */

/* Tile registers: 0 to 3 hold the sums, [2 tiles of activations][2 groups], 4 and 5 activations, 6 and 7 weights. rows:
 * activation rows of a tile. */
static void shape_many(int64_t rows)
{
    struct tile_shapes shapes = {.palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}};
    for (int t = 0; t < 8; t++)
        shapes.rows[t] = (uint8_t)(t < 6 ? rows : 16);
    shape_tiles(&shapes);
}

/* One strip of weights over n_blocks blocks of columns. */
struct strip {
    struct many_work *work;
    int64_t k, n_blocks;         /* k: its first column; if that is 0, the sums start at 0, else with those in y */
    uint32_t type;
    int64_t lanes[STRIP_GROUPS]; /* weight rows of each group: 1 to 16; 0: there is no second group */
};

/* Some rows of activations. */
struct rows {
    const uint16_t *x;      /* at the strip's first column */
    int64_t stride;
    int parts;
};

/* A group of fewer than 16 rows must not touch what follows its rows in y: its sums are copied to work->result, and
 * from there back to y. `live`: activation rows. */
static void load_narrow(struct many_work *k, const float *y, int64_t y_stride, int64_t live, int64_t lanes)
{
    for (int64_t i = 0; i < live; i++)
        memcpy(k->result[i], y + i * y_stride, (size_t)lanes * sizeof *y);
    finish_stores();
}

static void store_narrow(const struct many_work *k, float *y, int64_t y_stride, int64_t live, int64_t lanes)
{
    finish_stores();
    for (int64_t i = 0; i < live; i++)
        memcpy(y + i * y_stride, k->result[i], (size_t)lanes * sizeof *y);
}

/* Multiplies one tile of activations by one group: the general case. live: activation rows of the tile. */
static void run_one(const struct strip *s, int g, const struct rows *rows, float *y, int64_t y_stride, int64_t live)
{
    const bool narrow = s->lanes[g] < PP_GROUP_ROWS;
    const int64_t x_bytes = rows->stride * 2;
    float *sums = narrow ? s->work->result[0] : y;
    const int64_t sums_bytes = narrow ? 64 : y_stride * (int64_t)sizeof *y;
    _tile_zero(0);
    if (s->k) {
        if (narrow)
            load_narrow(s->work, y, y_stride, live, s->lanes[g]);
        _tile_loadd(0, sums, sums_bytes);
    }
    for (int64_t b = 0; b < s->n_blocks; b++) {
        const uint16_t *x = rows->x + PP_BF16_BLOCK * b * rows->parts;
        _tile_loadd(4, x, x_bytes);
        if (s->type == PP_TYPE_F16) {
            _tile_loadd(7, s->work->units[b][g][LOWER], 64);
            _tile_dpbf16ps(0, 4, 7);
        }
        _tile_loadd(6, s->work->units[b][g][UPPER], 64);
        _tile_dpbf16ps(0, 4, 6);
        if (rows->parts > 1) {
            _tile_loadd(5, x + PP_BF16_BLOCK, x_bytes);
            _tile_dpbf16ps(0, 5, 6);
        }
    }
    _tile_stored(0, sums, sums_bytes);
    if (narrow)
        store_narrow(s->work, y, y_stride, live, s->lanes[g]);
}

/* Adds the products of both tiles of activations with both groups to the sums. */
INLINE void multiply_2x2(void)
{
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
}

/* Multiplies two tiles of activations by two whole groups: four products for four loads of tiles (BF16, one part), up
 * to twelve for eight (F16, two parts). */
static void run_2x2(const struct strip *s, const struct rows *rows, float *y, int64_t y_stride)
{
    const uint8_t (*const units)[STRIP_GROUPS][PP_BF16_PARTS][UNIT] = s->work->units;
    const int64_t x_bytes = rows->stride * 2, y_bytes = y_stride * (int64_t)sizeof *y;
    float *y1 = y + TILE_ROWS * y_stride;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    if (s->k) {
        _tile_loadd(0, y, y_bytes);
        _tile_loadd(1, y + PP_GROUP_ROWS, y_bytes);
        _tile_loadd(2, y1, y_bytes);
        _tile_loadd(3, y1 + PP_GROUP_ROWS, y_bytes);
    }
    for (int64_t b = 0; b < s->n_blocks; b++) {
        const uint16_t *x = rows->x + PP_BF16_BLOCK * b * rows->parts, *x1 = x + TILE_ROWS * rows->stride;
        _tile_loadd(4, x, x_bytes);
        _tile_loadd(5, x1, x_bytes);
        if (s->type == PP_TYPE_F16) {
            _tile_loadd(6, units[b][0][LOWER], 64);
            _tile_loadd(7, units[b][1][LOWER], 64);
            multiply_2x2();
        }
        _tile_loadd(6, units[b][0][UPPER], 64);
        _tile_loadd(7, units[b][1][UPPER], 64);
        multiply_2x2();
        if (rows->parts > 1) {
            _tile_loadd(4, x + PP_BF16_BLOCK, x_bytes);
            _tile_loadd(5, x1 + PP_BF16_BLOCK, x_bytes);
            multiply_2x2();
        }
    }
    _tile_stored(0, y, y_bytes);
    _tile_stored(1, y + PP_GROUP_ROWS, y_bytes);
    _tile_stored(2, y1, y_bytes);
    _tile_stored(3, y1 + PP_GROUP_ROWS, y_bytes);
}

/* Multiplies activation rows [i, m) by the strip, in as many whole tiles of `live` rows as there are; the tile
 * registers are configured for that. y: at the strip's first weight row. Returns the first activation row that is
 * left. */
static int64_t run_strip(const struct strip *s, const struct pp_acts *x, int64_t i, int64_t m, int64_t live, float *y,
                         int64_t y_stride)
{
    const bool whole = s->lanes[0] == PP_GROUP_ROWS && s->lanes[1] == PP_GROUP_ROWS && live == TILE_ROWS;
    finish_stores();
    while (i + live <= m) {
        const struct rows rows = {x->bf16 + i * x->bf16_stride + s->k * x->bf16_parts, x->bf16_stride, x->bf16_parts};
        float *yi = y + i * y_stride;
        if (whole && i + 2 * TILE_ROWS <= m) {
            run_2x2(s, &rows, yi, y_stride);
            i += 2 * TILE_ROWS;
            continue;
        }
        run_one(s, 0, &rows, yi, y_stride, live);
        if (s->lanes[1] > 0)
            run_one(s, 1, &rows, yi + PP_GROUP_ROWS, y_stride, live);
        i += live;
    }
    return i;
}

/* Transposes a tile of weights: [16 rows][16 pairs] becomes [16 pairs][16 rows]. */
INLINE void order_unit(uint8_t *unit)
{
    __m512i r[TILE_ROWS], out[TILE_ROWS];
    UNROLL for (int i = 0; i < TILE_ROWS; i++)
        r[i] = _mm512_load_si512(unit + 64 * i);
    transpose16(r, out);
    UNROLL for (int i = 0; i < TILE_ROWS; i++)
        _mm512_store_si512(unit + 64 * i, out[i]);
}

/* Makes the tiles of one group of a strip n columns wide. w: at its first row and column. */
INLINE void order_group(struct strip *s, int g, const uint8_t *w, size_t row_bytes, int64_t n, const uint32_t type)
{
    for (int64_t b = 0; b < s->n_blocks; b++) {
        uint8_t (*unit)[UNIT] = s->work->units[b][g];
        make_block(w, row_bytes, s->lanes[g], b, n, STRIP_GROUPS * PP_GROUP_ROWS * row_bytes, type, unit);
        order_unit(unit[UPPER]);
        if (type == PP_TYPE_F16)
            order_unit(unit[LOWER]);
    }
}

/* Makes a strip of the weight rows [row, row1), or as many of them as it holds, and n columns from column k on. */
static struct strip make_strip(struct many_work *work, const struct pp_matrix *w, int64_t row, int64_t row1, int64_t k,
                               int64_t n)
{
    const size_t row_bytes = 2 * (size_t)w->n_cols;
    struct strip s = {.work = work, .k = k, .n_blocks = (n + PP_BF16_BLOCK - 1) / PP_BF16_BLOCK, .type = w->type};
    for (int g = 0; g < STRIP_GROUPS && row < row1; g++, row += PP_GROUP_ROWS) {
        const uint8_t *data = (const uint8_t *)w->data + (size_t)row * row_bytes + 2 * k;
        s.lanes[g] = at_most(row1 - row, PP_GROUP_ROWS);
        if (w->type == PP_TYPE_F16)
            order_group(&s, g, data, row_bytes, n, PP_TYPE_F16);
        else
            order_group(&s, g, data, row_bytes, n, PP_TYPE_BF16);
    }
    return s;
}

static void many_rows(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                      float *y, int64_t y_stride, struct many_work *work)
{
    const int64_t rest = m % TILE_ROWS;
    shape_many(TILE_ROWS);
    for (int64_t k = 0; k < w->n_cols; k += STRIP_COLS)
        for (int64_t row = row0; row < row1; row += STRIP_GROUPS * PP_GROUP_ROWS) {
            const struct strip s = make_strip(work, w, row, row1, k, at_most(w->n_cols - k, STRIP_COLS));
            const int64_t i = run_strip(&s, x, 0, m, TILE_ROWS, y + row, y_stride);
            if (rest) {
                shape_many(rest);
                run_strip(&s, x, i, m, rest, y + row, y_stride);
                shape_many(TILE_ROWS);
            }
        }
}

static void matmul(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m, float *y,
                   int64_t y_stride, void *scratch)
{
    if (m <= FEW_ROWS)
        few_rows(w, row0, row1, x, m, y, y_stride, scratch);
    else
        many_rows(w, row0, row1, x, m, y, y_stride, scratch);
    _tile_release(); /* tiles in use make every context switch more expensive */
}

const struct pp_bf16_kernels pp_bf16_amx = {.split = split_row, .join = join_row, .matmul = matmul};

#else
typedef int pp_matmul_bf16_amx_is_for_x86_64;
#endif
