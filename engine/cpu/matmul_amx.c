/* matmul_amx.c - the products of quantised weights for AMX. One tile instruction multiplies 16 activation rows by 16
 * weight rows over 32 columns, which is one block of the canonical arithmetic, with exact integer sums. The sums go
 * through memory to the vector unit, which scales them in the order of matmul.h while the tiles multiply the next
 * blocks.
 *
 * A slice of pack.h (16 rows x 4 columns) is one row of the tile that holds the weights, so a block is 8 slices of
 * signed bytes. Weights with fewer bits are first unpacked to such "units"; this conversion is exact, and it is all
 * that a type has to provide. With many activation rows, units stay in the cache and activations stream past them
 * (matmul_amx_strips.h). If the activation rows fill only a few tiles, these stay and the weights stream past them
 * (matmul_amx_rows.h). Very few rows go to the AVX-512 kernels, which produce the same bits without unpacking. For Q6_K
 * and the types with heads and bodies, which have units only, somewhat more rows go there. */
#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#include "engine/cpu/amx_tiles.h"
#include "engine/cpu/half_sums.h"
#include "engine/cpu/matmul_sets.h"
#include "engine/cpu/unpack_units.h"
#include "engine/cpu/pack.h"
#include "engine/cpu/stream_ahead.h"

#ifndef UNROLL
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#endif

#ifndef PP_AMX_ROWS_UNPACKED /* tests have fewer */
#define PP_AMX_ROWS_UNPACKED 24
#endif

enum {
    TILE_ROWS = 16,           /* activation rows of a tile */
    MIN_ROWS_STREAM = 8,      /* up to 7 rows, byte dot products are as fast (on a Sapphire Rapids) */
    MIN_ROWS_LAST = 9,        /* fewest rows after the last full tile that are worth a tile */
};

/* --- units: matmul_amx_strips.h says what they are ---------------------------------------------------------------- */

enum { UNIT_TILE = 8 * PP_SLICE };

INLINE __m512 halves(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

INLINE __m512 unsigned_bytes(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

/* Unpacks the unit of a group that begins with block b. */
typedef void unpack_fn(const uint8_t *group, int64_t n_cols, int64_t b, uint8_t *unit);

INLINE void unpack_q8_0(const uint8_t *group, int64_t n_cols, int64_t b, uint8_t *unit)
{
    const uint8_t *w = group + pp_pack_scale_bytes(n_cols) + UNIT_TILE * b;
    const __m512i sign = _mm512_set1_epi8(-128);
    UNROLL for (int v = 0; v < 8; v++)
        _mm512_store_si512(unit + PP_SLICE * v, _mm512_xor_si512(_mm512_load_si512(w + PP_SLICE * v), sign));
    _mm512_store_ps(unit + UNIT_TILE, halves(group + 32 * b));
}

INLINE void unpack_tile_q4_0(const uint8_t *group, int64_t n_cols, int64_t b, uint8_t *tile)
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
    unpack_tile_q4_0(group, n_cols, b, unit);
    _mm512_store_ps(unit + UNIT_TILE, halves(group + 32 * b));
}

INLINE void unpack_tile_q4_k(const uint8_t *group, int64_t n_cols, int64_t b, uint8_t *tile)
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

/* scale[0]: d times the sub-block's scale; scale[1]: dmin times its minimum. */
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
    unpack_tile_q4_k(group, n_cols, b, unit);
    scales_q4_k(group, n_cols, b, scale);
    _mm512_store_ps(unit + UNIT_TILE, scale[0]);
    _mm512_store_ps(unit + UNIT_TILE + PP_SLICE, scale[1]);
}

/* Bytes of a tile of twins. */
enum { TWIN_TILE = 2 * UNIT_TILE };

/* Multiplies slice v of the signed weights by the integer scales, and stores the products as 64 high + low in the
 * twins' high and low tiles. scale: each row's in both 16-bit halves of its lane. */
INLINE void put_planes(uint8_t *unit, const int v, __m512i weights, __m512i scale)
{
    const __m512i byte = _mm512_set1_epi16(255), six = _mm512_set1_epi16(63);
    const __m512i even = _mm512_mullo_epi16(_mm512_srai_epi16(_mm512_slli_epi16(weights, 8), 8), scale);
    const __m512i odd = _mm512_mullo_epi16(_mm512_srai_epi16(weights, 8), scale);
    const __m512i high_even = _mm512_and_si512(_mm512_srai_epi16(even, 6), byte); /* -64 to 64 */
    const __m512i high_odd = _mm512_slli_epi16(_mm512_srai_epi16(odd, 6), 8);
    const __m512i low_even = _mm512_and_si512(even, six), low_odd = _mm512_slli_epi16(_mm512_and_si512(odd, six), 8);
    _mm512_store_si512(unit + PP_SLICE * v, _mm512_or_si512(high_even, high_odd));
    _mm512_store_si512(unit + TWIN_TILE + PP_SLICE * v, _mm512_or_si512(low_even, low_odd));
}

/* Copies the low 16 bits of each lane of 32 to its high half. */
INLINE __m512i in_both_halves(__m512i lanes)
{
    return _mm512_or_si512(_mm512_and_si512(lanes, _mm512_set1_epi32(0xffff)), _mm512_slli_epi32(lanes, 16));
}

/* Unpacks twin number `twin`, 0 or 1, from block `sub` of a super-block. */
INLINE void unpack_twin_q6_k(const struct pp_q6_k_pack *p, const int sub, const int twin, uint8_t *unit)
{
    const __m512i four = _mm512_set1_epi8(15), two = _mm512_set1_epi8(0x30), offset = _mm512_set1_epi8(32);
    __m512i scale[2];
    UNROLL for (int half = 0; half < 2; half++)
        scale[half] = in_both_halves(
            _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p->sc[2 * sub + half])));
    UNROLL for (int v = 0; v < 4; v++)
    {
        const __m512i low = _mm512_load_si512(p->q[sub].low[v]), high = _mm512_load_si512(p->q[sub].high[v / 2]);
        const __m512i high_first = v % 2 ? _mm512_srli_epi16(high, 2) : high;
        const __m512i high_second = v % 2 ? high : _mm512_srli_epi16(high, 2);
        const __m512i first = _mm512_or_si512(_mm512_and_si512(low, four), _mm512_and_si512(high_first, two));
        const __m512i second = _mm512_or_si512(
            _mm512_and_si512(_mm512_srli_epi16(low, 2), _mm512_set1_epi8(0x3c)),
            _mm512_and_si512(high_second, _mm512_set1_epi8(3)));
        put_planes(unit, SLICES * twin + v, _mm512_sub_epi8(first, offset), scale[0]);
        put_planes(unit, SLICES * twin + 4 + v, _mm512_sub_epi8(second, offset), scale[1]);
    }
}

INLINE void unpack_q6_k(const uint8_t *group, int64_t n_cols, int64_t b, uint8_t *unit)
{
    (void)n_cols;
    const struct pp_q6_k_pack *p = (const struct pp_q6_k_pack *)group + b / 8;
    UNROLL for (int twin = 0; twin < 2; twin++)
        unpack_twin_q6_k(p, (int)(b % 8) + twin, twin, unit);
    _mm512_store_ps(unit + 2 * TWIN_TILE, halves(p->d));
}

/* The integer scales of the two halves, 16 columns each, of a block that a routine of unpack_units.h has unpacked. */
INLINE void unpacked_scales(const uint8_t *unpacked, __m512i *scale)
{
    UNROLL for (int half = 0; half < 2; half++)
        scale[half] =
            in_both_halves(_mm512_cvtps_epi32(_mm512_load_ps(unpacked + UNIT_TILE + PP_SLICE * (1 + half))));
}

/* Makes a unit of HALVED twins from two blocks that a routine of unpack_units.h has unpacked, `step` bytes apart. */
INLINE void split_unpacked(const uint8_t *unpacked, size_t step, uint8_t *unit, __m512i offset)
{
    _mm512_store_ps(unit + 2 * TWIN_TILE, _mm512_load_ps(unpacked + UNIT_TILE));
    UNROLL for (int twin = 0; twin < 2; twin++)
    {
        const uint8_t *from = unpacked + step * (size_t)twin;
        __m512i scale[2];
        unpacked_scales(from, scale);
        UNROLL for (int v = 0; v < SLICES; v++)
            put_planes(unit, SLICES * twin + v, _mm512_sub_epi8(_mm512_load_si512(from + PP_SLICE * v), offset),
                       scale[v / 4]);
    }
}

/* The same for ODD twins: weights and scales are odd, so that (product - 1) / 2 is an integer that fits a byte. */
INLINE void halve_unpacked(const uint8_t *unpacked, size_t step, uint8_t *unit, __m512i offset)
{
    const __m512i byte = _mm512_set1_epi16(255);
    _mm512_store_ps(unit + TWIN_TILE, _mm512_load_ps(unpacked + UNIT_TILE));
    UNROLL for (int twin = 0; twin < 2; twin++)
    {
        const uint8_t *from = unpacked + step * (size_t)twin;
        __m512i scale[2];
        unpacked_scales(from, scale);
        UNROLL for (int v = 0; v < SLICES; v++)
        {
            const __m512i w = _mm512_sub_epi8(_mm512_load_si512(from + PP_SLICE * v), offset);
            const __m512i even = _mm512_mullo_epi16(_mm512_srai_epi16(_mm512_slli_epi16(w, 8), 8), scale[v / 4]);
            const __m512i odd = _mm512_mullo_epi16(_mm512_srai_epi16(w, 8), scale[v / 4]);
            const __m512i half_odd = _mm512_slli_epi16(_mm512_srai_epi16(odd, 1), 8);
            _mm512_store_si512(unit + PP_SLICE * (SLICES * twin + v),
                               _mm512_or_si512(_mm512_and_si512(_mm512_srai_epi16(even, 1), byte), half_odd));
        }
    }
}

#include "engine/cpu/matmul_amx_strips.h"
#include "engine/cpu/matmul_amx_rows.h"

/* Calls the AVX-512 kernel of a type, for numbers of rows at which it is faster. */
static void few_rows(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                     float *y, int64_t y_stride, void *scratch)
{
    pp_matmul_avx512.by_type[w->type](w, row0, row1, x, m, y, y_stride, scratch);
}

/* Multiplies a few tiles of rows of x, of about equal size. The first tile reads the weights from memory, the others
 * from the cache. */
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
            const struct pp_acts some = pp_acts_from(x, first);
            matmul_rows(w, row, row + strip < row1 ? row + strip : row1, &some, end - first, y + first * y_stride,
                        y_stride, scratch, type);
        }
}

/* How a type is multiplied. max_streamed: the most activation rows for which weights are streamed; for more, they are
 * unpacked into the cache first. Measured on an Emerald Rapids, ns per block of 16 x 16 products, streamed and
 * unpacked: 32 rows of Q4_0 27.3 and 28.5, Q8_0 33.4 and 29.1, Q4_K 36.8 and 33.1. 48 rows of Q4_0 with weights from
 * memory take the same either way. */
struct amx_type {
    struct rows_type rows;
    unpack_fn *unpack;
    int64_t max_streamed;
};

INLINE void matmul(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m, float *y,
                   int64_t y_stride, void *scratch, const struct amx_type type)
{
    const bool streams = w->n_cols / PP_ACT_BLOCK % QUAD == 0;
    if (m < MIN_ROWS_STREAM) {
        few_rows(w, row0, row1, x, m, y, y_stride, scratch);
        return;
    }
    if (streams && m <= type.max_streamed) {
        stream_tiles(w, row0, row1, x, m, y, y_stride, scratch, type.rows);
        return;
    }
    const int64_t rest = m % TILE_ROWS < MIN_ROWS_LAST ? m % TILE_ROWS : 0, tiled = m - rest;
    if (rest > 0) {
        const struct pp_acts last = pp_acts_from(x, tiled);
        few_rows(w, row0, row1, &last, rest, y + tiled * y_stride, y_stride, scratch);
    }
    if (tiled > 0)
        unpacked_tiles(w, row0, row1, x, tiled, y, y_stride, scratch, type.unpack,
                       type.rows.has_min ? WITH_MIN : PLAIN);
}

static void matmul_q8_0(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                        float *y, int64_t y_stride, void *scratch)
{
    const struct amx_type type = {{NULL, scales_plain, false, 544}, unpack_q8_0, 31};
    matmul(w, row0, row1, x, m, y, y_stride, scratch, type);
}

static void matmul_q4_0(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                        float *y, int64_t y_stride, void *scratch)
{
    const struct amx_type type = {{unpack_tile_q4_0, scales_plain, false, 288}, unpack_q4_0, 48};
    matmul(w, row0, row1, x, m, y, y_stride, scratch, type);
}

static void matmul_q4_k(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                        float *y, int64_t y_stride, void *scratch)
{
    const struct amx_type type = {{unpack_tile_q4_k, scales_q4_k, true, 296}, unpack_q4_k, 31};
    matmul(w, row0, row1, x, m, y, y_stride, scratch, type);
}

/* The fewest activation rows for which tiles are faster than AVX-512, where both unpack weights into the cache first.
 * ns per block on an Emerald Rapids, AVX-512 and tiles: Q6_K 50 and 48 at 24 rows, 50 and 40 at 31; Q5_K 48 and 47 at
 * 24, 44 and 37 at 31; at 16 rows Q3_K 57 and 37, IQ1_M 64 and 57. (16 rows, which fill a tile, are faster with most
 * types, but 20 rows are not.) */
static int64_t rows_unpacked(enum kind kind)
{
    return kind == FOLDED || kind == ODD ? PP_AMX_ROWS_UNPACKED - 8 : PP_AMX_ROWS_UNPACKED;
}

static void matmul_q6_k(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                        float *y, int64_t y_stride, void *scratch)
{
    if (m < rows_unpacked(HALVED))
        few_rows(w, row0, row1, x, m, y, y_stride, scratch);
    else
        unpacked_tiles(w, row0, row1, x, m, y, y_stride, scratch, unpack_q6_k, HALVED);
}

/* The types with heads and bodies. */
static void matmul_blocks(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                          float *y, int64_t y_stride, void *scratch)
{
    const enum kind kind = unit_kind(w->type);
    if (m < rows_unpacked(kind))
        few_rows(w, row0, row1, x, m, y, y_stride, scratch);
    else if (w->type == PP_TYPE_IQ1_M)
        unpacked_tiles(w, row0, row1, x, m, y, y_stride, scratch, NULL, ODD);
    else if (kind == HALVED)
        unpacked_tiles(w, row0, row1, x, m, y, y_stride, scratch, NULL, HALVED);
    else if (kind == WITH_MIN)
        unpacked_tiles(w, row0, row1, x, m, y, y_stride, scratch, NULL, WITH_MIN);
    else if (kind == TWO_MINS)
        unpacked_tiles(w, row0, row1, x, m, y, y_stride, scratch, NULL, TWO_MINS);
    else if (kind == FOLDED)
        unpacked_tiles(w, row0, row1, x, m, y, y_stride, scratch, NULL, FOLDED);
    else
        unpacked_tiles(w, row0, row1, x, m, y, y_stride, scratch, NULL, PLAIN);
}

static void quantize(const float *x, int64_t n, bool twins, int8_t *q, float *d, int32_t *sum)
{
    pp_matmul_avx512.quantize(x, n, twins, q, d, sum);
}

static void arrange_by_lane(const float *x, int64_t x_stride, int rows, int64_t n, int64_t tile, int64_t n_tiles,
                            float *out)
{
    pp_matmul_avx512.by_lane.arrange(x, x_stride, rows, n, tile, n_tiles, out);
}

static float dot(const float *a, const float *b, int64_t n)
{
    return pp_matmul_avx512.dot(a, b, n);
}

const struct pp_matmul_kernels pp_matmul_amx = {
    .uses_scratch = true,
    .tried = {[PP_STREAM_PAGES] = {PP_WAY_NEAR, PP_WAY_BESIDE}},
    .quantize = quantize,
    .by_lane = {PP_AVX512_LANES_FROM, PP_LANE_ACTS, PP_AVX512_LANE_ROWS, arrange_by_lane},
    .dot = dot,
    .by_type =
        {
            [PP_TYPE_F32] = few_rows, /* for any number of rows: tiles have no float32 products */
            [PP_TYPE_F16] = few_rows,
            [PP_TYPE_BF16] = few_rows,
            [PP_TYPE_Q8_0] = matmul_q8_0,
            [PP_TYPE_Q4_0] = matmul_q4_0,
            [PP_TYPE_Q4_K] = matmul_q4_k,
            [PP_TYPE_Q6_K] = matmul_q6_k,
            PP_BLOCKS_BY(matmul_blocks),
        },
};

#else
typedef int pp_matmul_amx_is_for_x86_64;
#endif
