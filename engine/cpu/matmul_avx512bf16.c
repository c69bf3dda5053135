/* matmul_avx512bf16.c - matrix products with bfloat16 activations for AVX512-BF16. A lane is a weight row. VDPBF16PS
 * adds the products of two columns to a sum, that of the upper halves first, so that 8 instructions compute one half of
 * a block in the order of matmul_bf16.h.
 *
 * Weights are transposed to pairs of columns strip by strip, and a strip is multiplied by many activation rows while it
 * is in the L1 cache. The sums of earlier strips of columns are kept in y. */
#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#include "engine/cpu/bf16_split.h"
#include "engine/cpu/transpose16.h"

enum {
    PAIRS = PP_BF16_BLOCK / 2,
    GROUPS = 2,        /* of 16 weight rows, in a strip */
    STRIP_ROWS = GROUPS * PP_GROUP_ROWS,
    STRIP_COLS = 512,
    STRIP_BLOCKS = STRIP_COLS / PP_BF16_BLOCK,
    TILE_ACTS = 4,     /* times GROUPS: 8 sums each of the first halves, the second halves, and in all: 24 registers */
    FEW_ACTS = 4,
    CHUNK_ROWS = 128,  /* weight rows multiplied by the same activation columns, which stay in the L2 cache */
};

enum part { UPPER, LOWER };

PP_BF16_SPLIT_AND_JOIN(NEIGHBOURS)

/* A block of 32 columns in the thread's scratch: [pair of columns][group][weight row of the group]. */
typedef uint32_t strip_block[PAIRS][GROUPS][PP_GROUP_ROWS];

struct strip_memory {
    strip_block words[PP_BF16_PARTS][STRIP_BLOCKS];
};

_Static_assert(sizeof(struct strip_memory) <= PP_MATMUL_SCRATCH, "a thread's scratch");

#ifndef DOT_PAIRS /* defined by the tests' software model of the instructions */
#define DOT_PAIRS(acc, w, x) _mm512_dpbf16_ps(acc, (__m512bh)(w), (__m512bh)(x))
#endif

/* --- weights ------------------------------------------------------------------------------------------------------ */

/* The upper halves of 32 floats in pairs: column k + 1 in the lower and column k in the upper half of a lane. */
INLINE __m512i pair_uppers(__m512 a, __m512 b)
{
    static const uint16_t at[] = {3,  1,  7,  5,  11, 9,  15, 13, 19, 17, 23, 21, 27, 25, 31, 29,
                                  35, 33, 39, 37, 43, 41, 47, 45, 51, 49, 55, 53, 59, 57, 63, 61};
    return _mm512_permutex2var_epi16(_mm512_castps_si512(a), _mm512_loadu_si512(at), _mm512_castps_si512(b));
}

/* What remains of floats after subtracting their upper halves. */
INLINE __m512 without_upper(__m512 w)
{
    const __m512i upper = _mm512_and_si512(_mm512_castps_si512(w), _mm512_set1_epi32(-65536));
    return _mm512_sub_ps(w, _mm512_castsi512_ps(upper));
}

/* Loads 32 columns of a row in pairs, with zeros where not live. F16 weights are exact in two parts. */
INLINE void load_pairs(const uint8_t *w, __mmask32 live, const uint32_t type, __m512i *parts)
{
    const __m512i row = _mm512_maskz_loadu_epi16(live, w);
    if (type == PP_TYPE_BF16) {
        parts[UPPER] = _mm512_rol_epi32(row, 16);
        return;
    }
    const __m512 a = _mm512_cvtph_ps(_mm512_castsi512_si256(row));
    const __m512 b = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(row, 1));
    parts[UPPER] = pair_uppers(a, b);
    parts[LOWER] = pair_uppers(without_upper(a), without_upper(b));
}

INLINE void store_block(const __m512i *rows, strip_block *to, int g)
{
    __m512i pairs[PAIRS];
    transpose16(rows, pairs);
    UNROLL for (int k = 0; k < PAIRS; k++)
        _mm512_store_si512((*to)[k][g], pairs[k]);
}

/* A mask of the columns of a block that exist, if n columns are left. */
INLINE __mmask32 live_columns(int64_t n)
{
    return n >= PP_BF16_BLOCK ? 0xffffffff : (1u << n) - 1;
}

/* Weight rows [row, row + rows), at most STRIP_ROWS, and their columns [k, k + n), at most STRIP_COLS. */
struct strip {
    struct strip_memory *memory;
    int64_t row, rows, k, n;
    const uint8_t *w;      /* at the first row and column */
    size_t row_bytes;
    const uint8_t *next;   /* the same of the next strip, which is prefetched meanwhile into the L2 cache */
};

/* Transposes 32 columns of group g, from column k of the strip on, to pairs. */
INLINE void convert_block(const struct strip *s, int g, int64_t k, const uint32_t type)
{
    __m512i upper[PP_GROUP_ROWS], lower[PP_GROUP_ROWS];
    const __mmask32 live = live_columns(s->n - k);
    UNROLL for (int r = 0; r < PP_GROUP_ROWS; r++)
    {
        const int64_t row = g * PP_GROUP_ROWS + r;
        const size_t at = (size_t)row * s->row_bytes + 2 * (size_t)k;
        __m512i parts[PP_BF16_PARTS] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
        if (row < s->rows)
            load_pairs(s->w + at, live, type, parts);
        __builtin_prefetch((const void *)((uintptr_t)s->next + at), 0, 2);
        upper[r] = parts[UPPER];
        lower[r] = parts[LOWER];
    }
    store_block(upper, &s->memory->words[UPPER][k / PP_BF16_BLOCK], g);
    if (type == PP_TYPE_F16)
        store_block(lower, &s->memory->words[LOWER][k / PP_BF16_BLOCK], g);
}

INLINE void convert_strip(const struct strip *s, const uint32_t type)
{
    for (int64_t k = 0; k < s->n; k += PP_BF16_BLOCK)
        for (int g = 0; g < GROUPS; g++)
            convert_block(s, g, k, type);
}

/* --- products ----------------------------------------------------------------------------------------------------- */

/* Forces a value into a register, so that it is loaded once for all its products. */
INLINE void hold(__m512i *a)
{
#if defined(__AVX512F__) /* not in the tests' software model, where vectors are structs */
    __asm__("" : "+v"(*a));
#else
    (void)a;
#endif
}

/* sums[i][g] += the products of a pair of columns. w: the pair's weights; x: the pair of the first activation row. */
INLINE void add_pair(const uint32_t (*w)[PP_GROUP_ROWS], const uint32_t *x, int64_t x_stride, __m512 (*sums)[GROUPS],
                     const int M)
{
    __m512i wk[GROUPS];
    UNROLL for (int g = 0; g < GROUPS; g++)
    {
        wk[g] = _mm512_load_si512(w[g]);
        hold(&wk[g]);
    }
    UNROLL for (int i = 0; i < M; i++)
    {
        __m512i xk = _mm512_set1_epi32((int)x[i * x_stride]);
        hold(&xk);
        UNROLL for (int g = 0; g < GROUPS; g++)
            sums[i][g] = DOT_PAIRS(sums[i][g], wk[g], xk);
    }
}

/* acc += a block's products. The two halves of the block are interleaved, because 8 independent sums are too few: a Zen
 * 5 starts two products per cycle, each of which takes six cycles. */
INLINE void add_product(const strip_block *w, const uint32_t *x, int64_t x_stride, __m512 (*acc)[GROUPS], const int M)
{
    __m512 first[TILE_ACTS][GROUPS], second[TILE_ACTS][GROUPS];
    UNROLL for (int i = 0; i < M; i++)
        UNROLL for (int g = 0; g < GROUPS; g++)
            first[i][g] = second[i][g] = _mm512_setzero_ps();
#pragma GCC unroll 2
    for (int k = 0; k < PAIRS / 2; k++) {
        add_pair((*w)[k], x + k, x_stride, first, M);
        add_pair((*w)[PAIRS / 2 + k], x + PAIRS / 2 + k, x_stride, second, M);
    }
    UNROLL for (int i = 0; i < M; i++)
        UNROLL for (int g = 0; g < GROUPS; g++)
            acc[i][g] = _mm512_add_ps(acc[i][g], _mm512_add_ps(first[i][g], second[i][g]));
}

/* Prefetches block b of the next tile's activations, and the sums of one of its rows. The addresses may be invalid: a
 * prefetch never faults. */
INLINE void prefetch_next_tile(const uint32_t *x, int64_t x_stride, int parts, const float *y, int64_t y_stride,
                               int64_t b, const int M)
{
    UNROLL for (int i = 0; i < M; i++)
        for (int p = 0; p < parts; p++)
            __builtin_prefetch(
                (const void *)((uintptr_t)x + (size_t)((M + i) * x_stride + p * PAIRS) * sizeof *x), 0, 3);
    if (b < M)
        UNROLL for (int g = 0; g < GROUPS; g++)
            __builtin_prefetch(
                (const void *)((uintptr_t)y + (size_t)((M + b) * y_stride + g * PP_GROUP_ROWS) * sizeof *y), 1, 3);
}

/* A mask of the rows of group g that exist. */
INLINE __mmask16 live_rows(const struct strip *s, int g)
{
    const int64_t n = s->rows - g * PP_GROUP_ROWS;
    return (__mmask16)(n >= PP_GROUP_ROWS ? 0xffff : n > 0 ? (1u << n) - 1 : 0);
}

/* Multiplies the strip by M activation rows. x: the first one's pairs from the strip's first column on; y: its sums
 * with the strip's rows. */
INLINE void run_tile(const struct strip *s, const uint32_t *x, int64_t x_stride, int parts, float *y, int64_t y_stride,
                     const uint32_t type, const int M)
{
    const struct strip_memory *memory = s->memory;
    __m512 acc[TILE_ACTS][GROUPS];
    UNROLL for (int i = 0; i < M; i++)
        UNROLL for (int g = 0; g < GROUPS; g++)
            acc[i][g] = s->k ? _mm512_maskz_loadu_ps(live_rows(s, g), y + i * y_stride + g * PP_GROUP_ROWS)
                             : _mm512_setzero_ps();
    for (int64_t b = 0; b * PP_BF16_BLOCK < s->n; b++, x += parts * PAIRS) {
        prefetch_next_tile(x, x_stride, parts, y, y_stride, b, M);
        if (type == PP_TYPE_F16)
            add_product(&memory->words[LOWER][b], x, x_stride, acc, M);
        add_product(&memory->words[UPPER][b], x, x_stride, acc, M);
        if (parts > 1)
            add_product(&memory->words[UPPER][b], x + PAIRS, x_stride, acc, M);
    }
    UNROLL for (int i = 0; i < M; i++)
        UNROLL for (int g = 0; g < GROUPS; g++)
            _mm512_mask_storeu_ps(y + i * y_stride + g * PP_GROUP_ROWS, live_rows(s, g), acc[i][g]);
}

INLINE void run_strip(const struct strip *s, const struct pp_acts *x, int64_t m, float *y, int64_t y_stride,
                      const uint32_t type)
{
    const int64_t x_stride = x->bf16_stride / 2;
    const uint32_t *xk = (const uint32_t *)(const void *)x->bf16 + s->k / 2 * x->bf16_parts;
    int64_t i = 0;
    convert_strip(s, type);
    y += s->row;
    for (; i + TILE_ACTS <= m; i += TILE_ACTS)
        run_tile(s, xk + i * x_stride, x_stride, x->bf16_parts, y + i * y_stride, y_stride, type, TILE_ACTS);
    for (; i < m; i++)
        run_tile(s, xk + i * x_stride, x_stride, x->bf16_parts, y + i * y_stride, y_stride, type, 1);
}

/* --- few activation rows ------------------------------------------------------------------------------------------ */

/* A group's weights, from some column on, for few activation rows: these are transposed in registers, where they are
 * used. */
struct few {
    const uint8_t *w;  /* at its first row */
    size_t row_bytes;
    int64_t rows, n;   /* rows that exist, and columns that are left */
    __m512i pairs[PAIRS];
};

INLINE void load_group(struct few *f, const uint32_t type, const enum part part)
{
    __m512i rows[PP_GROUP_ROWS];
    const __mmask32 live = live_columns(f->n);
    UNROLL for (int r = 0; r < PP_GROUP_ROWS; r++)
    {
        __m512i parts[PP_BF16_PARTS] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
        if (r < f->rows)
            load_pairs(f->w + (size_t)r * f->row_bytes, live, type, parts);
        rows[r] = parts[part];
    }
    transpose16(rows, f->pairs);
}

INLINE void add_few(const struct few *f, const uint32_t *x, int64_t x_stride, __m512 *acc, const int M)
{
    UNROLL for (int i = 0; i < M; i++)
    {
        __m512 halves[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        UNROLL for (int k = 0; k < PAIRS / 2; k++)
            UNROLL for (int h = 0; h < 2; h++)
            {
                const int pair = h * PAIRS / 2 + k;
                halves[h] = DOT_PAIRS(halves[h], f->pairs[pair], _mm512_set1_epi32((int)x[i * x_stride + pair]));
            }
        acc[i] = _mm512_add_ps(acc[i], _mm512_add_ps(halves[0], halves[1]));
    }
}

/* Multiplies a group of weight rows by M activation rows. x, y: of the first of these. */
INLINE void run_few(struct few *f, const uint32_t *x, int64_t x_stride, int parts, float *y, int64_t y_stride,
                    const uint32_t type, const int M)
{
    uintptr_t next = (uintptr_t)f->w + PP_GROUP_ROWS * f->row_bytes;
    const __mmask16 live = (__mmask16)((1u << f->rows) - 1);
    __m512 acc[FEW_ACTS];
    UNROLL for (int i = 0; i < M; i++)
        acc[i] = _mm512_setzero_ps();
    for (; f->n > 0; f->n -= PP_BF16_BLOCK, f->w += 2 * PP_BF16_BLOCK, x += parts * PAIRS) {
        UNROLL for (int r = 0; r < PP_GROUP_ROWS; r++, next += 64)
            __builtin_prefetch((const void *)next, 0, 2);
        if (type == PP_TYPE_F16) {
            load_group(f, type, LOWER);
            add_few(f, x, x_stride, acc, M);
        }
        load_group(f, type, UPPER);
        add_few(f, x, x_stride, acc, M);
        if (parts > 1)
            add_few(f, x + PAIRS, x_stride, acc, M);
    }
    UNROLL for (int i = 0; i < M; i++)
        _mm512_mask_storeu_ps(y + i * y_stride, live, acc[i]);
}

INLINE void few_of_type(struct few *f, const struct pp_acts *x, int64_t m, float *y, int64_t y_stride,
                        const uint32_t type)
{
    const uint32_t *pairs = (const uint32_t *)(const void *)x->bf16;
    const int64_t stride = x->bf16_stride / 2;
    if (m == 1)
        run_few(f, pairs, stride, x->bf16_parts, y, y_stride, type, 1);
    else if (m == 2)
        run_few(f, pairs, stride, x->bf16_parts, y, y_stride, type, 2);
    else if (m == 3)
        run_few(f, pairs, stride, x->bf16_parts, y, y_stride, type, 3);
    else
        run_few(f, pairs, stride, x->bf16_parts, y, y_stride, type, 4);
}

static __attribute__((noinline)) void few_rows(const struct pp_matrix *w, int64_t row0, int64_t row1,
                                               const struct pp_acts *x, int64_t m, float *y, int64_t y_stride)
{
    const size_t row_bytes = 2 * (size_t)w->n_cols;
    for (int64_t row = row0; row < row1; row += PP_GROUP_ROWS) {
        struct few f = {.w = (const uint8_t *)w->data + (size_t)row * row_bytes, .row_bytes = row_bytes,
                        .rows = row1 - row < PP_GROUP_ROWS ? row1 - row : PP_GROUP_ROWS, .n = w->n_cols};
        if (w->type == PP_TYPE_F16)
            few_of_type(&f, x, m, y + row, y_stride, PP_TYPE_F16);
        else
            few_of_type(&f, x, m, y + row, y_stride, PP_TYPE_BF16);
    }
}

/* --- many --------------------------------------------------------------------------------------------------------- */

/* Multiplies weight rows [row0, row1) by all activation rows, STRIP_COLS columns after the other. Not inlined, so that
 * all of it runs between the two changes of the control register in matmul(). */
static __attribute__((noinline)) void run_chunk(const struct pp_matrix *w, int64_t row0, int64_t row1,
                                                const struct pp_acts *x, int64_t m, float *y, int64_t y_stride,
                                                struct strip_memory *memory)
{
    const size_t row_bytes = 2 * (size_t)w->n_cols;
    for (int64_t k = 0; k < w->n_cols; k += STRIP_COLS)
        for (int64_t row = row0; row < row1; row += STRIP_ROWS) {
            const int64_t n = w->n_cols - k < STRIP_COLS ? w->n_cols - k : STRIP_COLS;
            const uint8_t *at = (const uint8_t *)w->data + (size_t)row * row_bytes + 2 * (size_t)k;
            const bool chunk_goes_on = row + STRIP_ROWS < row1, row_goes_on = k + n < w->n_cols;
            const uint8_t *next = (const uint8_t *)w->data;
            next += chunk_goes_on ? (size_t)(row + STRIP_ROWS) * row_bytes + 2 * (size_t)k
                    : row_goes_on ? (size_t)row0 * row_bytes + 2 * (size_t)(k + n) : (size_t)row1 * row_bytes;
            const struct strip s = {memory, row, row1 - row < STRIP_ROWS ? row1 - row : STRIP_ROWS, k, n, at, row_bytes,
                                    next};
            if (w->type == PP_TYPE_F16)
                run_strip(&s, x, m, y, y_stride, PP_TYPE_F16);
            else
                run_strip(&s, x, m, y, y_stride, PP_TYPE_BF16);
        }
}

static void matmul(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m, float *y,
                   int64_t y_stride, void *scratch)
{
    /* Additions must round to nearest even and flush subnormals, which VDPBF16PS does whatever MXCSR says. */
    enum { FLUSH_RESULTS = 0x8000, FLUSH_INPUTS = 0x0040 };
    const unsigned before = _mm_getcsr();
    _mm_setcsr((before & ~(unsigned)_MM_ROUND_MASK) | FLUSH_RESULTS | FLUSH_INPUTS);
    if (m <= FEW_ACTS)
        few_rows(w, row0, row1, x, m, y, y_stride);
    else
        for (int64_t row = row0; row < row1; row += CHUNK_ROWS)
            run_chunk(w, row, row1 - row < CHUNK_ROWS ? row1 : row + CHUNK_ROWS, x, m, y, y_stride, scratch);
    _mm_setcsr(before);
}

const struct pp_bf16_kernels pp_bf16_avx512 = {.split = split_row, .join = join_row, .matmul = matmul};

#else
typedef int pp_matmul_avx512bf16_is_for_x86_64;
#endif
