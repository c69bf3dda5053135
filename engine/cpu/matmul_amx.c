/* matmul_amx.c - the products of quantised weights for AMX: 16 activation rows x 16 weight rows x 32 columns, one
 * block of the canonical arithmetic, are one tile instruction with exact integer sums. These go through memory to
 * the vector unit, which scales them in the order of matmul.h, while the tiles work at the next blocks.
 *
 * A slice of pack.h (16 rows x 4 columns) is one row of the tile that holds the weights, so a block is 8 slices of
 * signed bytes. What is packed more tightly is unpacked into such "units" first: an exact conversion, and the only
 * thing a type has to bring. A few tiles of activation rows stand still while the weights stream past
 * (matmul_amx_rows.h); very few rows go to the AVX-512 kernels: the same bits, and nothing to unpack. So does all of
 * Q6_K: its two scales a block make two products of half-empty tiles, or of weights taken apart (measured: 190 tokens/s
 * of prefill where the AVX-512 kernels reach 247). So do the other types whose units are HALVED (open_units.h). */
#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#include "engine/cpu/amx_tiles.h"
#include "engine/cpu/half_sums.h"
#include "engine/cpu/matmul_sets.h"
#include "engine/cpu/open_units.h"
#include "engine/cpu/pack.h"
#include "engine/cpu/stream_ahead.h"

#ifndef UNROLL
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#endif

#ifndef PP_AMX_ROWS_OPENED /* tests have fewer */
#define PP_AMX_ROWS_OPENED 56
#endif

enum {
    TILE_ROWS = 16,           /* activation rows of a tile */
    PANEL = 4,                /* blocks whose activations stay in tile registers while weight rows pass */
    MAX_GROUPS = 16,          /* groups of weight rows whose accumulators are kept at a time */
    UNITS_BYTES = 160 * 1024, /* of unpacked weights at a time: they stay in the L2 cache while all activations pass */
    /* Measured on a Sapphire Rapids, in GMAC/s of a thread: the byte dot products are as fast up to 7 rows; what
     * streams past tiles (at 16 rows of Q4_0 59) is faster than what is opened into the cache first (at 24 rows 39, at
     * 64 54, at 512 62). */
    MIN_ROWS_STREAM = 8,
    MAX_ROWS_STREAM = 48,
    MIN_ROWS_LAST = 9,        /* the last ones of many activation rows that are worth a tile */
};

/* --- units -------------------------------------------------------------------------------------------------------- */

/* One block of 32 columns of a group of 16 rows: as in open_units.h, of one vector, but with signed bytes: a tile
 * [8][64]; float scale[16]; of WITH_MIN and TWO_MINS float min[16]; of TWO_MINS float m0[16], m1[16]. With x the
 * block's activations:
 *   acc = fma(scale * dx, isum, acc)
 *   WITH_MIN: acc = fma(-min, dx * sum, acc)
 *   TWO_MINS: acc = fma(-min, dx * (m0 * sum0 + m1 * sum1), acc) */
enum { UNIT_TILE = 8 * PP_SLICE };

INLINE size_t unit_bytes(const enum kind kind)
{
    return opened_bytes(kind, 1, PP_GROUP_ROWS);
}

INLINE __m512 halves(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

INLINE __m512 unsigned_bytes(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

/* Unpacks block b of a group. */
typedef void unpack_fn(const uint8_t *group, int64_t n_cols, int64_t b, uint8_t *unit);

INLINE void unpack_q8_0(const uint8_t *group, int64_t n_cols, int64_t b, uint8_t *unit)
{
    const uint8_t *w = group + pp_pack_scale_bytes(n_cols) + UNIT_TILE * b;
    const __m512i sign = _mm512_set1_epi8(-128);
    UNROLL for (int v = 0; v < 8; v++)
        _mm512_store_si512(unit + PP_SLICE * v, _mm512_xor_si512(_mm512_load_si512(w + PP_SLICE * v), sign));
    _mm512_store_ps(unit + UNIT_TILE, halves(group + 32 * b));
}

INLINE void open_q4_0(const uint8_t *group, int64_t n_cols, int64_t b, uint8_t *tile)
{
    const uint8_t *w = group + pp_pack_scale_bytes(n_cols) + UNIT_TILE / 2 * b;
    const __m512i low = _mm512_set1_epi8(15), eight = _mm512_set1_epi8(8);
    UNROLL for (int v = 0; v < 4; v++)
    {
        __m512i two = _mm512_load_si512(w + PP_SLICE * v);
        __m512i first = _mm512_and_si512(two, low), second = _mm512_and_si512(_mm512_srli_epi16(two, 4), low);
        _mm512_store_si512(tile + PP_SLICE * v, _mm512_sub_epi8(first, eight));
        _mm512_store_si512(tile + PP_SLICE * (4 + v), _mm512_sub_epi8(second, eight));
    }
}

INLINE void unpack_q4_0(const uint8_t *group, int64_t n_cols, int64_t b, uint8_t *unit)
{
    open_q4_0(group, n_cols, b, unit);
    _mm512_store_ps(unit + UNIT_TILE, halves(group + 32 * b));
}

INLINE void open_q4_k(const uint8_t *group, int64_t n_cols, int64_t b, uint8_t *tile)
{
    (void)n_cols;
    const struct pp_q4_k_pack *p = (const struct pp_q4_k_pack *)group + b / 8;
    const int sub = (int)(b % 8);
    const __m512i low = _mm512_set1_epi8(15);
    UNROLL for (int v = 0; v < 8; v++)
    {
        __m512i two = _mm512_load_si512(p->q[sub / 2][v]);
        if (sub % 2)
            two = _mm512_srli_epi16(two, 4);
        _mm512_store_si512(tile + PP_SLICE * v, _mm512_and_si512(two, low));
    }
}

/* The scale and the minimum. */
INLINE void scales_q4_k(const uint8_t *group, int64_t n_cols, int64_t b, __m512 *scale)
{
    (void)n_cols;
    const struct pp_q4_k_pack *p = (const struct pp_q4_k_pack *)group + b / 8;
    scale[0] = _mm512_mul_ps(halves(p->d), unsigned_bytes(p->sc[b % 8]));
    scale[1] = _mm512_mul_ps(halves(p->dmin), unsigned_bytes(p->m[b % 8]));
}

INLINE void unpack_q4_k(const uint8_t *group, int64_t n_cols, int64_t b, uint8_t *unit)
{
    __m512 scale[2];
    open_q4_k(group, n_cols, b, unit);
    scales_q4_k(group, n_cols, b, scale);
    _mm512_store_ps(unit + UNIT_TILE, scale[0]);
    _mm512_store_ps(unit + UNIT_TILE + PP_SLICE, scale[1]);
}

/* --- a panel of activations --------------------------------------------------------------------------------------- */

/* In the thread's scratch. */
struct work {
    float acc[MAX_GROUPS][TILE_ROWS][PP_GROUP_ROWS];
    int32_t sums[2 * PANEL][TILE_ROWS][PP_GROUP_ROWS]; /* of the group that is scaled and of the next one */
    float d[TILE_ROWS][PANEL], dsum[TILE_ROWS][PANEL];     /* of the panel's blocks; dsum: d * sum */
    float half[2][TILE_ROWS][PANEL];                       /* sums of 16 columns */
    int8_t q[TILE_ROWS][32 * PANEL];                       /* the panel of an incomplete tile */
    uint8_t units[UNITS_BYTES] __attribute__((aligned(64)));
};

_Static_assert(sizeof(struct work) <= PP_MATMUL_SCRATCH, "a thread's scratch");

/* Tile registers: 0 to 3 activations [16][32 bytes], 4 and 5 weights [8][64 bytes], 6 and 7 sums [16][16 x 4 bytes]. */
static const struct tile_shapes panel_shapes = {
    .palette = 1,
    .row_bytes = {32, 32, 32, 32, 64, 64, 64, 64},
    .rows = {TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS, 8, 8, TILE_ROWS, TILE_ROWS},
};

INLINE void load_activations(const int8_t *q, int64_t stride, const int n_blocks)
{
    _tile_loadd(0, q, stride);
    if (n_blocks > 1)
        _tile_loadd(1, q + 32, stride);
    if (n_blocks > 2)
        _tile_loadd(2, q + 64, stride);
    if (n_blocks > 3)
        _tile_loadd(3, q + 96, stride);
}

/* TWO_MINS are types whose blocks have 256 columns, so the number of theirs is even. */
INLINE void put_half_sums(struct work *k, const int8_t *q, int64_t i, const int n_blocks)
{
    for (int j = 0; j < n_blocks; j += 2) {
        const __m128 two = _mm_cvtepi32_ps(half_sums(q + 32 * j));
        _mm_storel_pi((__m64 *)(void *)(k->half[0][i] + j), two);
        _mm_storeh_pi((__m64 *)(void *)(k->half[1][i] + j), two);
    }
}

/* Blocks [b, b + n_blocks) of the `live` (1 to 16) rows of x from `row` on: into the tile registers and into *k. */
INLINE void load_panel(struct work *k, const struct pp_acts *x, int64_t row, int64_t live, int64_t b,
                       const int n_blocks, const enum kind kind)
{
    for (int64_t i = 0; i < live; i++) {
        const float *d = x->d + (row + i) * x->b_stride + b;
        const int32_t *sum = x->sum + (row + i) * x->b_stride + b;
        for (int j = 0; j < n_blocks; j++) {
            k->d[i][j] = d[j];
            if (kind == WITH_MIN)
                k->dsum[i][j] = d[j] * (float)sum[j];
        }
        if (kind == TWO_MINS)
            put_half_sums(k, x->q + (row + i) * x->q_stride + 32 * b, i, n_blocks);
    }
    const int8_t *q = x->q + row * x->q_stride + 32 * b;
    int64_t stride = x->q_stride;
    if (live < TILE_ROWS) { /* the other rows of the tile: whatever they hold, nobody looks at what comes of it */
        for (int64_t i = 0; i < live; i++)
            memcpy(k->q[i], q + i * stride, (size_t)(32 * n_blocks));
        q = k->q[0];
        stride = sizeof k->q[0];
    }
    finish_stores();
    load_activations(q, stride, n_blocks);
}

/* A product is a block of the panel times a tile of a unit. Loading the tile, multiplying and storing the sums each
 * take 16 to 52 cycles until their result is there: one behind the other they would fill the processor's window of
 * instructions with waiting. So in the step of a product the sums of the one before are stored and the tile of the
 * next one is loaded. The weights' and sums' registers alternate. */
INLINE void product_step(const int block, const int odd, int32_t (*before)[PP_GROUP_ROWS], const uint8_t *next)
{
#define STEP(activations, weights, result, next_weights, result_before)   \
    do {                                                                  \
        _tile_stored(result_before, before, sizeof *before);              \
        _tile_zero(result);                                               \
        _tile_dpbssd(result, activations, weights);                       \
        _tile_loadd(next_weights, next, PP_SLICE);                        \
    } while (0)
    switch (2 * block + odd) {
    case 0:
        STEP(0, 4, 6, 5, 7);
        break;
    case 1:
        STEP(0, 5, 7, 4, 6);
        break;
    case 2:
        STEP(1, 4, 6, 5, 7);
        break;
    case 3:
        STEP(1, 5, 7, 4, 6);
        break;
    case 4:
        STEP(2, 4, 6, 5, 7);
        break;
    case 5:
        STEP(2, 5, 7, 4, 6);
        break;
    case 6:
        STEP(3, 4, 6, 5, 7);
        break;
    default:
        STEP(3, 5, 7, 4, 6);
    }
#undef STEP
}

/* The products of blocks [j0, j1) of a group, of n_blocks in all; an odd number is made even by doing the last one
 * twice. sums: where the group's go, by block; `before` is of the product before them all, `behind` the tile behind
 * them all. */
INLINE void multiply_blocks(const int j0, const int j1, const int n_blocks, const uint8_t *units,
                            int32_t (*sums)[TILE_ROWS][PP_GROUP_ROWS], int32_t (*before)[PP_GROUP_ROWS],
                            const uint8_t *behind, const enum kind kind)
{
    const int steps = (n_blocks + 1) / 2 * 2, end = j1 == n_blocks ? steps : j1;
    UNROLL for (int j = j0; j < end; j++)
    {
        const int block = j < n_blocks ? j : n_blocks - 1, after = j + 1 < n_blocks ? j + 1 : n_blocks - 1;
        const uint8_t *next = units + unit_bytes(kind) * (size_t)after;
        product_step(block, j % 2, j > 0 ? sums[j - 1] : before, j + 1 < steps ? next : behind);
    }
}

INLINE void scale_unit(const struct work *k, const int j, const uint8_t *unit, int32_t (*sums)[PP_GROUP_ROWS],
                       __m512 *acc, const enum kind kind)
{
    __m512 scale[MAX_SCALES];
    UNROLL for (int s = 0; s < n_scales(kind); s++)
        scale[s] = _mm512_load_ps(unit + UNIT_TILE + PP_SLICE * s);
    UNROLL for (int i = 0; i < TILE_ROWS; i++)
    {
        __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums[i]));
        const __m512 d = _mm512_set1_ps(k->d[i][j]);
        acc[i] = _mm512_fmadd_ps(_mm512_mul_ps(scale[0], d), sum, acc[i]);
        if (kind == WITH_MIN)
            acc[i] = _mm512_fnmadd_ps(scale[1], _mm512_set1_ps(k->dsum[i][j]), acc[i]);
        if (kind == TWO_MINS) {
            __m512 mins = _mm512_mul_ps(scale[3], _mm512_set1_ps(k->half[1][i][j]));
            mins = _mm512_fmadd_ps(scale[2], _mm512_set1_ps(k->half[0][i][j]), mins);
            acc[i] = _mm512_fnmadd_ps(scale[1], _mm512_mul_ps(d, mins), acc[i]);
        }
    }
}

/* The panel in the tile registers with its units [n_groups][n_blocks], added to k->acc. While a group is scaled,
 * the tiles multiply the next one. */
INLINE void run_panel(struct work *k, const uint8_t *units, int n_groups, const int n_blocks, const enum kind kind)
{
    const size_t unit = unit_bytes(kind), group = unit * (size_t)n_blocks;
    const int last = (n_blocks + 1) / 2 * 2 - 1;
    _tile_loadd(4, units, PP_SLICE);
    multiply_blocks(0, n_blocks, n_blocks, units, k->sums, k->sums[PANEL + last],
                    units + (n_groups > 1 ? group : 0), kind);
    for (int g = 0; g < n_groups; g++, units += group) {
        int32_t(*sums)[TILE_ROWS][PP_GROUP_ROWS] = k->sums + PANEL * (g % 2);
        int32_t(*next)[TILE_ROWS][PP_GROUP_ROWS] = k->sums + PANEL * ((g + 1) % 2);
        const uint8_t *behind = g + 2 < n_groups ? units + 2 * group : units;
        __m512 acc[TILE_ROWS];
        if (g + 1 == n_groups)
            _tile_stored(7, sums[last], sizeof *sums[last]);
        UNROLL for (int i = 0; i < TILE_ROWS; i++)
            acc[i] = _mm512_load_ps(k->acc[g][i]);
        UNROLL for (int j = 0; j < n_blocks; j++)
        {
            if (g + 1 < n_groups)
                multiply_blocks(j, j + 1, n_blocks, units + group, next, sums[last], behind, kind);
            scale_unit(k, j, units + unit * (size_t)j, sums[j], acc, kind);
        }
        UNROLL for (int i = 0; i < TILE_ROWS; i++)
            _mm512_store_ps(k->acc[g][i], acc[i]);
    }
}

/* --- loops over tiles --------------------------------------------------------------------------------------------- */

/* Weight rows [row0, row1), at most MAX_GROUPS groups, times columns of blocks [b0, b1). */
struct chunk {
    const struct pp_matrix *w;
    int64_t row0, row1, b0, b1;
    int n_groups;
};

/* Units lie panel by panel, in a panel group by group: in the order they are used in. */
INLINE void unpack_chunk(const struct chunk *c, uint8_t *unit, unpack_fn *unpack, const enum kind kind)
{
    for (int64_t b = c->b0; b < c->b1; b += PANEL)
        for (int g = 0; g < c->n_groups; g++) {
            const uint8_t *group = pp_pack_group(c->w, c->row0 + PP_GROUP_ROWS * g);
            for (int64_t j = b; j < b + PANEL && j < c->b1; j++, unit += unit_bytes(kind))
                unpack(group, c->w->n_cols, j, unit);
        }
}

/* The same of a type with heads and bodies: its bytes are opened as unsigned ones. */
INLINE void open_chunk(const struct chunk *c, uint8_t *unit, const enum kind kind)
{
    pp_open_fn *const open = pp_units_avx512[c->w->type].open;
    const __m512i offset = _mm512_set1_epi8((char)unit_offset(c->w->type));
    for (int64_t b = c->b0; b < c->b1; b += PANEL)
        for (int g = 0; g < c->n_groups; g++) {
            const int64_t n = c->b1 - b < PANEL ? c->b1 - b : PANEL;
            open(pp_pack_group(c->w, c->row0 + PP_GROUP_ROWS * g), c->w->n_cols, b, n, 0, unit, unit_bytes(kind));
            for (int64_t j = 0; j < n; j++, unit += unit_bytes(kind))
                UNROLL for (int v = 0; kind == PLAIN && v < SLICES; v++)
                {
                    __m512i *slice = (__m512i *)(void *)(unit + PP_SLICE * v);
                    _mm512_store_si512(slice, _mm512_sub_epi8(_mm512_load_si512(slice), offset));
                }
        }
}

INLINE __mmask16 live_lanes(const struct chunk *c, int g)
{
    int64_t rows = c->row1 - c->row0 - PP_GROUP_ROWS * g;
    return (__mmask16)(rows < PP_GROUP_ROWS ? (1u << rows) - 1u : 0xffffu);
}

/* The accumulators start at 0, then at what the columns before this chunk have left in y. */
static void load_accumulators(struct work *k, const struct chunk *c, int64_t live, const float *y, int64_t y_stride)
{
    for (int g = 0; g < c->n_groups; g++)
        for (int64_t i = 0; i < TILE_ROWS; i++)
            _mm512_store_ps(k->acc[g][i], c->b0 && i < live ? _mm512_maskz_loadu_ps(live_lanes(c, g),
                                                                                    y + i * y_stride + c->row0 + 16 * g)
                                                            : _mm512_setzero_ps());
}

static void store_accumulators(const struct work *k, const struct chunk *c, int64_t live, float *y, int64_t y_stride)
{
    for (int g = 0; g < c->n_groups; g++)
        for (int64_t i = 0; i < live; i++)
            _mm512_mask_storeu_ps(y + i * y_stride + c->row0 + 16 * g, live_lanes(c, g), _mm512_load_ps(k->acc[g][i]));
}

INLINE void run_blocks(struct work *k, const struct chunk *c, const struct pp_acts *x, int64_t i, int64_t live,
                       int64_t b, const uint8_t *units, const int n_blocks, const enum kind kind)
{
    load_panel(k, x, i, live, b, n_blocks, kind);
    run_panel(k, units, c->n_groups, n_blocks, kind);
}

/* Rows [i, i + live) of x with a chunk whose units are in k. */
INLINE void run_tile(struct work *k, const struct chunk *c, const struct pp_acts *x, int64_t i, int64_t live, float *y,
                     int64_t y_stride, const enum kind kind)
{
    const uint8_t *units = k->units;
    int64_t b = c->b0;
    load_accumulators(k, c, live, y + i * y_stride, y_stride);
    for (; b + PANEL <= c->b1; b += PANEL, units += unit_bytes(kind) * PANEL * (size_t)c->n_groups)
        run_blocks(k, c, x, i, live, b, units, PANEL, kind);
    switch (c->b1 - b) {
    case 1:
        run_blocks(k, c, x, i, live, b, units, 1, kind);
        break;
    case 2:
        run_blocks(k, c, x, i, live, b, units, 2, kind);
        break;
    case 3:
        run_blocks(k, c, x, i, live, b, units, 3, kind);
        break;
    default:
        break;
    }
    store_accumulators(k, c, live, y + i * y_stride, y_stride);
}

#include "engine/cpu/matmul_amx_rows.h"

/* As many rows as the AVX-512 kernels do better. */
static void few_rows(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                     float *y, int64_t y_stride, void *scratch)
{
    pp_matmul_avx512.by_type[w->type](w, row0, row1, x, m, y, y_stride, scratch);
}

static struct pp_acts acts_from(const struct pp_acts *x, int64_t row)
{
    struct pp_acts a = *x;
    a.f32 += row * x->f32_stride;
    a.q += row * x->q_stride;
    a.d += row * x->b_stride;
    a.sum += row * x->b_stride;
    return a;
}

/* Up to MAX_ROWS_STREAM rows of x, in tiles of about the same size. The weights come from memory for the first tile and
 * from the cache for the others. */
INLINE void stream_tiles(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                         float *y, int64_t y_stride, void *scratch, const struct rows_type type)
{
    enum { STRIP_BYTES = 256 * 1024 };
    const int64_t n_tiles = (m + TILE_ROWS - 1) / TILE_ROWS;
    const int64_t groups = STRIP_BYTES / (int64_t)pp_pack_group_bytes(w->type, w->n_cols);
    const int64_t strip = n_tiles == 1 ? row1 - row0 : (groups < 1 ? 1 : groups) * PP_GROUP_ROWS;
    for (int64_t row = row0; row < row1; row += strip)
        for (int64_t t = 0; t < n_tiles; t++) {
            const int64_t first = m * t / n_tiles, end = m * (t + 1) / n_tiles;
            const struct pp_acts some = acts_from(x, first);
            matmul_rows(w, row, row + strip < row1 ? row + strip : row1, &some, end - first, y + first * y_stride,
                        y_stride, scratch, type);
        }
}

/* All rows of x in tiles, the weights opened chunk by chunk. unpack: NULL for a type with heads and bodies. */
INLINE void opened_tiles(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                         float *y, int64_t y_stride, struct work *k, unpack_fn *unpack, const enum kind kind)
{
    const int64_t n_blocks = w->n_cols / PP_ACT_BLOCK;
    shape_tiles(&panel_shapes);
    for (int64_t row = row0; row < row1; row += MAX_GROUPS * PP_GROUP_ROWS) {
        struct chunk c = {.w = w, .row0 = row, .row1 = row1};
        if (row1 - row > MAX_GROUPS * PP_GROUP_ROWS)
            c.row1 = row + MAX_GROUPS * PP_GROUP_ROWS;
        c.n_groups = (int)((c.row1 - row + PP_GROUP_ROWS - 1) / PP_GROUP_ROWS);
        const int64_t most = UNITS_BYTES / (int64_t)unit_bytes(kind) / c.n_groups / PANEL * PANEL;
        for (c.b0 = 0; c.b0 < n_blocks; c.b0 = c.b1) {
            c.b1 = c.b0 + most < n_blocks ? c.b0 + most : n_blocks;
            if (unpack)
                unpack_chunk(&c, k->units, unpack, kind);
            else
                open_chunk(&c, k->units, kind);
            for (int64_t i = 0; i < m; i += TILE_ROWS)
                run_tile(k, &c, x, i, m - i < TILE_ROWS ? m - i : TILE_ROWS, y, y_stride, kind);
        }
    }
    _tile_release();
}

/* How a type is multiplied. */
struct amx_type {
    struct rows_type rows;
    unpack_fn *unpack;
};

INLINE void matmul(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m, float *y,
                   int64_t y_stride, void *scratch, const struct amx_type type)
{
    const bool streams = w->n_cols / PP_ACT_BLOCK % QUAD == 0;
    if (m < MIN_ROWS_STREAM) {
        few_rows(w, row0, row1, x, m, y, y_stride, scratch);
        return;
    }
    if (streams && m <= MAX_ROWS_STREAM) {
        stream_tiles(w, row0, row1, x, m, y, y_stride, scratch, type.rows);
        return;
    }
    const int64_t rest = m % TILE_ROWS < MIN_ROWS_LAST ? m % TILE_ROWS : 0, tiled = m - rest;
    if (rest > 0) {
        const struct pp_acts last = acts_from(x, tiled);
        few_rows(w, row0, row1, &last, rest, y + tiled * y_stride, y_stride, scratch);
    }
    if (tiled > 0)
        opened_tiles(w, row0, row1, x, tiled, y, y_stride, scratch, type.unpack,
                     type.rows.has_min ? WITH_MIN : PLAIN);
}

static void matmul_q8_0(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                        float *y, int64_t y_stride, void *scratch)
{
    const struct amx_type type = {{NULL, scales_plain, false, 544}, unpack_q8_0};
    matmul(w, row0, row1, x, m, y, y_stride, scratch, type);
}

static void matmul_q4_0(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                        float *y, int64_t y_stride, void *scratch)
{
    const struct amx_type type = {{open_q4_0, scales_plain, false, 288}, unpack_q4_0};
    matmul(w, row0, row1, x, m, y, y_stride, scratch, type);
}

static void matmul_q4_k(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                        float *y, int64_t y_stride, void *scratch)
{
    const struct amx_type type = {{open_q4_k, scales_q4_k, true, 296}, unpack_q4_k};
    matmul(w, row0, row1, x, m, y, y_stride, scratch, type);
}

/* The types with heads and bodies. Either way weights are opened into the cache first, so it takes more rows until
 * tiles are faster: measured on a Granite Rapids, at 48 and at 64 rows by 1.1 to 1.2, and from about 56 rows on no
 * longer slower where a few rows begin another tile, but for Q2_K at 65 (0.9). */
static void matmul_blocks(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                          float *y, int64_t y_stride, void *scratch)
{
    const enum kind kind = unit_kind(w->type);
    if (m < PP_AMX_ROWS_OPENED || kind == HALVED)
        few_rows(w, row0, row1, x, m, y, y_stride, scratch);
    else if (kind == WITH_MIN)
        opened_tiles(w, row0, row1, x, m, y, y_stride, scratch, NULL, WITH_MIN);
    else if (kind == TWO_MINS)
        opened_tiles(w, row0, row1, x, m, y, y_stride, scratch, NULL, TWO_MINS);
    else
        opened_tiles(w, row0, row1, x, m, y, y_stride, scratch, NULL, PLAIN);
}

static void quantize(const float *x, int64_t n, int8_t *q, float *d, int32_t *sum)
{
    pp_matmul_avx512.quantize(x, n, q, d, sum);
}

static float dot(const float *a, const float *b, int64_t n)
{
    return pp_matmul_avx512.dot(a, b, n);
}

const struct pp_matmul_kernels pp_matmul_amx = {
    .know_alone = true,
    .quantize = quantize,
    .dot = dot,
    .by_type =
        {
            [PP_TYPE_F32] = few_rows, /* any number of them: the tiles have no float32 */
            [PP_TYPE_F16] = few_rows,
            [PP_TYPE_BF16] = few_rows,
            [PP_TYPE_Q8_0] = matmul_q8_0,
            [PP_TYPE_Q4_0] = matmul_q4_0,
            [PP_TYPE_Q4_K] = matmul_q4_k,
            [PP_TYPE_Q6_K] = few_rows, /* any number of them: two products a block, see above */
            PP_BLOCKS_BY(matmul_blocks),
        },
};

#else
typedef int pp_matmul_amx_is_for_x86_64;
#endif
