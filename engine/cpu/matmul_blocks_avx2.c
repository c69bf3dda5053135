/* matmul_blocks_avx2.c - matrix products for AVX2, for the types with heads and bodies (pack.h). For a few activation
 * rows, blocks are unpacked in registers and multiplied at once. For more, a piece of a group is unpacked into a tile,
 * which stays in the L1 cache, and then multiplied by code that knows forms of tiles instead of types
 * (matmul_avx2_tiles.h). */
#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#include "engine/cpu/act_tile.h"
#include "engine/cpu/matmul_sets.h"
#include "engine/cpu/pack.h"
#include "engine/cpu/stream_ahead.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

#include "engine/cpu/matmul_avx2_tiles.h"

enum { FEW_ROWS = 8 /* at most */, FEWEST_ROWS = 2 };

/* --- unpacking ---------------------------------------------------------------------------------------------------- */

#define PP_GATHERS 0
#include "engine/cpu/unpack_rows_avx2.h"

#include "engine/cpu/unpack_body.h"

/* --- into tiles --------------------------------------------------------------------------------------------------- */

/* The lower 16 bits of each lane in both of its halves. */
INLINE __m256i twice(ivec v)
{
    return _mm256_blend_epi16((__m256i)v, _mm256_slli_epi32((__m256i)v, 16), 0xaa);
}

/* put_bytes(), put_pairs(), put_nibbles() and put_words() store half h, 8 weight rows, of an unpacked block in the form
 * of a tile (matmul_avx2_tiles.h). */
INLINE void put_bytes(struct byte_block *to, const struct unpacked *o, int h)
{
    const __m256i ones = _mm256_set1_epi8(1);
    __m256i sum = _mm256_setzero_si256();
    UNROLL for (int k = 0; k < 2; k++)
    {
        __m256i sc = twice(o->sc[k]), words = _mm256_setzero_si256();
        _mm256_store_si256((__m256i *)(to->sc[k] + 16 * h), sc);
        UNROLL for (int v = 4 * k; v < 4 * k + 4; v++)
        {
            const __m256i w = (__m256i)o->w[v];
            _mm256_store_si256((__m256i *)(to->q[v] + 32 * h), w);
            words = _mm256_add_epi16(words, _mm256_maddubs_epi16(ones, w));
        }
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(words, sc));
    }
    sum = _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_slli_epi32(sum, 7));
    _mm256_store_si256((__m256i *)(to->bias + 8 * h), sum);
    _mm256_store_ps(to->d + 8 * h, (__m256)o->d);
}

/* The minimum of one half of the columns, or, where sc and m are 1, of all columns. */
INLINE __m256 min_of(const struct unpacked *o, const int half)
{
    return _mm256_mul_ps((__m256)o->min, _mm256_cvtepi32_ps((__m256i)o->m[half]));
}

/* lower_words(): the lower words of a's lanes, with the lower words of b above them; upper_words(): the upper words of
 * both in the same way. */
INLINE __m256i lower_words(__m256i a, __m256i b)
{
    return _mm256_blend_epi16(a, _mm256_slli_epi32(b, 16), 0xaa);
}

INLINE __m256i upper_words(__m256i a, __m256i b)
{
    return _mm256_blend_epi16(_mm256_srli_epi32(a, 16), b, 0xaa);
}

INLINE void put_pairs(struct pair_block *to, const struct unpacked *o, int h)
{
    _mm256_store_ps(to->d + 8 * h, (__m256)o->d);
    UNROLL for (int v = 0; v < 4; v++)
    {
        const __m256i a = (__m256i)o->w[v], b = (__m256i)o->w[v + 4];
        _mm256_store_si256((__m256i *)(to->q[2 * v] + 32 * h), lower_words(a, b));
        _mm256_store_si256((__m256i *)(to->q[2 * v + 1] + 32 * h), upper_words(a, b));
    }
    _mm256_store_si256((__m256i *)(to->sc + 16 * h), lower_words((__m256i)o->sc[0], (__m256i)o->sc[1]));
    UNROLL for (int k = 0; k < 2; k++)
        _mm256_store_ps(to->min[k] + 8 * h, min_of(o, k));
}

/* Also for weights of 5 bits. d and min already include the integer scales. */
INLINE void put_nibbles(struct nibble_block *to, const struct unpacked *o, int h)
{
    _mm256_store_ps(to->d + 8 * h, (__m256)o->d);
    _mm256_store_ps(to->min + 8 * h, (__m256)o->min);
    UNROLL for (int v = 0; v < 8; v++)
        _mm256_store_si256((__m256i *)(to->q[v] + 32 * h), (__m256i)o->w[v]);
}

INLINE void put_words(struct word_block *to, const struct unpacked *o, int h)
{
    _mm256_store_ps(to->d + 8 * h, (__m256)o->d);
    UNROLL for (int v = 0; v < 8; v++)
    {
        __m256i w = (__m256i)o->w[v];
        __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8), odd = _mm256_srai_epi16(w, 8);
        _mm256_store_si256((__m256i *)(to->q[2 * v] + 16 * h), even);
        _mm256_store_si256((__m256i *)(to->q[2 * v + 1] + 16 * h), odd);
    }
}

/* Halves the magnitudes of IQ3_XXS, which are even and at most 62, and doubles the scales. */
INLINE void halve(struct unpacked *o)
{
    UNROLL for (int v = 0; v < 8; v++)
        o->w[v] >>= 1;
    UNROLL for (int k = 0; k < 2; k++)
        o->sc[k] += o->sc[k];
}

/* --- types -------------------------------------------------------------------------------------------------------- */

INLINE enum tile_form form_of(uint32_t type)
{
    switch (type) {
    case PP_TYPE_IQ4_NL:
    case PP_TYPE_IQ4_XS:
        return WORDS;
    case PP_TYPE_IQ2_XXS:
        return SINGLES;
    case PP_TYPE_IQ2_XS:
    case PP_TYPE_IQ2_S:
        return SINGLE_TWINS;
    case PP_TYPE_IQ3_XXS:
        return BYTES;
    case PP_TYPE_Q3_K:
    case PP_TYPE_IQ1_M:
        return SMALL_TWINS;
    case PP_TYPE_Q2_K:
        return PAIR_TWINS;
    case PP_TYPE_Q4_1:
        return NIBBLES_MIN;
    case PP_TYPE_Q5_1:
    case PP_TYPE_Q5_K:
        return FIVES_MIN;
    default:
        return SMALL;
    }
}

#define UNPACK_TILE(TYPE, name)                                                                  \
    static void unpack_tile_##name(const uint8_t *group, int64_t n_cols, int64_t b, void *block) \
    {                                                                                            \
        struct packed_at p = packed_at(PP_TYPE_##TYPE, group, n_cols, b);                        \
        struct indexes n[2][INDEXES];                                                            \
        UNROLL for (int h = 0; h < 2; h++)                                                       \
            join(PP_TYPE_##TYPE, p, ROWS *h, n[h]);                                              \
        UNROLL for (int h = 0; h < 2; h++)                                                       \
        {                                                                                        \
            struct unpacked o;                                                                   \
            p.indexes = n[h];                                                                    \
            unpack_##name(p, ROWS *h, &o);                                                       \
            if (PP_TYPE_##TYPE == PP_TYPE_IQ3_XXS)                                               \
                halve(&o);                                                                       \
            make_signed(PP_TYPE_##TYPE, &o);                                                     \
            if (form_of(PP_TYPE_##TYPE) == WORDS)                                                \
                put_words(block, &o, h);                                                         \
            else if (form_of(PP_TYPE_##TYPE) == PAIR_TWINS)                                      \
                put_pairs(block, &o, h);                                                         \
            else if (pp_type_has_min(PP_TYPE_##TYPE))                                            \
                put_nibbles(block, &o, h);                                                       \
            else                                                                                 \
                put_bytes(block, &o, h);                                                         \
        }                                                                                        \
    }
PP_BLOCK_TYPES(UNPACK_TILE)
#undef UNPACK_TILE

#define ENTRY(TYPE, name) [PP_TYPE_##TYPE] = unpack_tile_##name,
static unpack_fn *const unpackers[PP_TYPE_LIMIT] = {PP_BLOCK_TYPES(ENTRY)};
#undef ENTRY

/* --- few activation rows: weights stream past --------------------------------------------------------------------- */

/* Up to so many activation rows are multiplied while the weights stream from memory; with more it pays to unpack these
 * into tiles first. */
INLINE int64_t few_rows(uint32_t type)
{
    if (is_singles(form_of(type)))
        return 3;
    return pp_type_wide(type) || type == PP_TYPE_IQ3_S || type == PP_TYPE_IQ3_XXS ? FEWEST_ROWS : FEW_ROWS;
}

/* How many slices' products can be added in 16 bits. Per slice they are at most 2 * w * 127, with the largest w given
 * below. */
INLINE int slices_of_words(const uint32_t type)
{
    switch (type) {
    case PP_TYPE_IQ2_XXS: /* 43 */
    case PP_TYPE_IQ2_XS:
    case PP_TYPE_IQ2_S:
    case PP_TYPE_IQ3_XXS: /* 62 */
        return 2;
    case PP_TYPE_Q5_0: /* 31 */
    case PP_TYPE_Q5_1:
    case PP_TYPE_Q5_K:
    case PP_TYPE_MXFP4: /* 24 */
    case PP_TYPE_IQ1_S: /* 18 */
    case PP_TYPE_IQ1_M:
        return 4;
    default:
        return pp_type_halved(type) ? 4 : 8;
    }
}

/* The products of slices v to v + n - 1 with an activation row, two sums of 16 bits in each lane. */
INLINE __m256i few_words(const uint32_t type, const struct unpacked *o, const int8_t *q, const int v, const int n)
{
    __m256i words = _mm256_setzero_si256();
    UNROLL for (int k = v; k < v + n; k++)
    {
        __m256i x = broadcast4(q + 4 * k);
        if (pp_type_signs(type))
            x = _mm256_sign_epi8(x, _mm256_or_si256((__m256i)signs_of(o, k), _mm256_set1_epi8(1)));
        __m256i two = _mm256_maddubs_epi16((__m256i)o->w[k], x);
        words = now(k == v ? two : _mm256_add_epi16(words, two));
    }
    return words;
}

/* The sum over a block for types with weights of 8 bits, from their low and high 4 bits: each slice adds at most 2 * 15
 * * 127 to 16 bits. */
INLINE __m256i few_wide(const struct unpacked *o, const int8_t *q)
{
    __m256i low = _mm256_setzero_si256(), high = low;
    UNROLL for (int k = 0; k < 8; k++)
    {
        __m256i x = broadcast4(q + 4 * k);
        low = now(_mm256_add_epi16(low, _mm256_maddubs_epi16((__m256i)o->low[k], x)));
        high = now(_mm256_add_epi16(high, _mm256_maddubs_epi16((__m256i)o->high[k], x)));
    }
    return _mm256_add_epi32(widen(low), _mm256_madd_epi16(high, _mm256_set1_epi16(16)));
}

/* A block of 8 weight rows, unpacked for the product with activation rows. */
struct few_weights {
    struct unpacked o;
    __m256i sc[2], pair; /* of blocks with two scales: each twice per lane, and both per lane */
    __m256 min[2];
};

/* The block's integer sums with entry e of the activations, times the integer scales. */
INLINE __m256i few_sum(const uint32_t type, const struct few_weights *w, const struct act_tile *x, int64_t e)
{
    const int n = slices_of_words(type);
    const int8_t *q = x->q + 32 * e;
    __m256i isum = _mm256_setzero_si256();
    if (pp_type_wide(type))
        isum = few_wide(&w->o, q);
    else
        UNROLL for (int v = 0; v < 8; v += n)
        {
            const __m256i words = few_words(type, &w->o, q, v, n);
            const __m256i some = pp_type_halved(type) ? _mm256_madd_epi16(words, w->sc[v / 4]) : widen(words);
            isum = v ? _mm256_add_epi32(isum, some) : some;
        }
    if (pp_type_offset(type)) {
        const __m256i bias = _mm256_set1_epi32(x->bias[e]);
        isum = _mm256_add_epi32(isum, pp_type_halved(type) ? _mm256_madd_epi16(w->pair, bias) : bias);
    }
    return isum;
}

/* Subtracts the contribution of the block's minima from acc. */
INLINE __m256 subtract_minima(const uint32_t type, const struct few_weights *w, const struct act_tile *x, int64_t e,
                              __m256 acc)
{
    if (!pp_type_has_min(type))
        return acc;
    if (!pp_type_halved(type))
        return _mm256_fnmadd_ps((__m256)w->o.min, _mm256_set1_ps(x->dsum[e]), acc);
    acc = _mm256_fnmadd_ps(w->min[0], _mm256_set1_ps(x->dsum[2 * e]), acc);
    return _mm256_fnmadd_ps(w->min[1], _mm256_set1_ps(x->dsum[2 * e + 1]), acc);
}

/* Lanes of two words: the lower 16 bits of `low`, and above them those of `high`. */
INLINE __m256i both(ivec low, ivec high)
{
    return _mm256_blend_epi16((__m256i)low, _mm256_slli_epi32((__m256i)high, 16), 0xaa);
}

/* Unpacks half h, 8 rows, of block b. n: the joined indices of the block of the file that contains it. */
INLINE void few_unpack(const uint32_t type, unpack_block_fn *unpack, const uint8_t *group, int64_t n_cols, int64_t b,
                       const int h, struct indexes n[SUBS][INDEXES], struct few_weights *w)
{
    struct packed_at p = packed_at(type, group, n_cols, b);
    p.indexes = is_joined(type) ? n[p.sub] : NULL;
    unpack(p, ROWS * h, &w->o);
    if (pp_type_halved(type)) {
        w->sc[0] = twice(w->o.sc[0]);
        w->sc[1] = twice(w->o.sc[1]);
        w->pair = both(w->o.sc[0], w->o.sc[1]);
        w->min[0] = min_of(&w->o, 0);
        w->min[1] = min_of(&w->o, 1);
    }
}

/* Multiplies a group of 16 weight rows, of which `live` exist, by the m activation rows of a tile. M: m if that is a
 * constant, else 0. */
INLINE void few_group(const uint32_t type, unpack_block_fn *unpack, const uint8_t *group, int64_t n_cols, int64_t live,
                      const struct act_tile *x, float *y, int64_t y_stride, int64_t m, const int M)
{
    struct indexes n[2][SUBS][INDEXES];
    __m256 acc[2][FEW_ROWS];
    const int64_t rows = M ? M : m;
    const int together = pp_type_twins(type) ? 2 : 1;
    for (int64_t i = 0; i < rows; i++) {
        float sums[16] = {0};
        if (x->block0)
            memcpy(sums, y + i * y_stride, (size_t)live * sizeof *sums);
        acc[0][i] = _mm256_loadu_ps(sums);
        acc[1][i] = _mm256_loadu_ps(sums + 8);
    }
    for (int64_t b = 0; b < x->n_blocks; b += together) {
        const bool joins = is_joined(type) && (b == 0 || (x->block0 + b) % SUBS == 0);
        for (int h = 0; joins && h < 2; h++)
            join_ahead(type, group, n_cols, x->block0 + b, x->block0 + x->n_blocks, ROWS * h, n[h]);
        UNROLL for (int h = 0; h < 2; h++)
        {
            struct few_weights w[2];
            __m256i isum[FEW_ROWS];
            UNROLL for (int t = 0; t < together; t++)
            {
                if (h == 0)
                    stream_blocks_ahead(type, group, n_cols, x->block0 + b + t, x->how);
                few_unpack(type, unpack, group, n_cols, x->block0 + b + t, h, n[h], &w[t]);
                for (int64_t i = 0; i < rows; i++) {
                    const __m256i sum = few_sum(type, &w[t], x, (b + t) * rows + i);
                    isum[i] = t ? _mm256_add_epi32(isum[i], sum) : sum;
                }
            }
            for (int64_t i = 0; i < rows; i++) {
                acc[h][i] = scaled(acc[h][i], (__m256)w[0].o.d, x->d[b * rows + i], isum[i]);
                UNROLL for (int t = 0; t < together; t++)
                    acc[h][i] = subtract_minima(type, &w[t], x, (b + t) * rows + i, acc[h][i]);
            }
        }
    }
    for (int64_t i = 0; i < rows; i++) {
        float sums[16];
        _mm256_storeu_ps(sums, acc[0][i]);
        _mm256_storeu_ps(sums + 8, acc[1][i]);
        memcpy(y + i * y_stride, sums, (size_t)live * sizeof *sums);
    }
}

INLINE void few_groups(const uint32_t type, unpack_block_fn *unpack, const struct pp_matrix *w, int64_t row0,
                       int64_t row1, const struct act_tile *x, int64_t m, float *y, int64_t y_stride)
{
    for (int64_t row = row0; row < row1; row += PP_GROUP_ROWS) {
        const uint8_t *group = pp_pack_group(w, row);
        const int64_t live = row1 - row < PP_GROUP_ROWS ? row1 - row : PP_GROUP_ROWS;
        if (m == 1)
            few_group(type, unpack, group, w->n_cols, live, x, y + row, y_stride, 1, 1);
        else
            few_group(type, unpack, group, w->n_cols, live, x, y + row, y_stride, m, 0);
    }
}

typedef void few_fn(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct act_tile *x, int64_t m,
                    float *y, int64_t y_stride);

#define FEW(TYPE, name)                                                                                            \
    static void few_##name(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct act_tile *x,        \
                           int64_t m, float *y, int64_t y_stride)                                                  \
    {                                                                                                              \
        few_groups(PP_TYPE_##TYPE, unpack_##name, w, row0, row1, x, m, y, y_stride);                               \
    }
PP_BLOCK_TYPES(FEW)
#undef FEW

#define ENTRY(TYPE, name) [PP_TYPE_##TYPE] = few_##name,
static few_fn *const few_fns[PP_TYPE_LIMIT] = {PP_BLOCK_TYPES(ENTRY)};
#undef ENTRY

static void matmul_few(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                       float *y, int64_t y_stride, struct act_tile_memory *memory)
{
    for (int64_t b = 0; b < w->n_cols / 32;) {
        const struct act_tile t = act_tile_make(w->type, x, m, b, w->n_cols / 32 - b, memory);
        few_fns[w->type](w, row0, row1, &t, m, y, y_stride);
        b += t.n_blocks;
    }
}

/* --- the products ------------------------------------------------------------------------------------------------- */

/* Functions of their own: the compiler takes longer for one with all of these loops. */
#define TILES(form)                                                                                              \
    static __attribute__((noinline)) void tiles_##form(const struct pp_matrix *w, int64_t row0, int64_t row1,    \
                                                       const struct pp_acts *x, int64_t m, float *y,             \
                                                       int64_t y_stride, void *scratch)                          \
    {                                                                                                            \
        matmul_tiles(w, row0, row1, x, m, y, y_stride, scratch, unpackers[w->type], form, FEWEST_ROWS);          \
    }
TILES(WORDS)
TILES(BYTES)
TILES(SINGLES)
TILES(SINGLE_TWINS)
TILES(SMALL)
TILES(SMALL_TWINS)
TILES(NIBBLES_MIN)
TILES(FIVES_MIN)
TILES(PAIR_TWINS)
#undef TILES
static pp_matmul_fn *const tiles[] = {
    [WORDS] = tiles_WORDS,
    [BYTES] = tiles_BYTES,
    [SINGLES] = tiles_SINGLES,
    [SINGLE_TWINS] = tiles_SINGLE_TWINS,
    [SMALL] = tiles_SMALL,
    [SMALL_TWINS] = tiles_SMALL_TWINS,
    [NIBBLES_MIN] = tiles_NIBBLES_MIN,
    [FIVES_MIN] = tiles_FIVES_MIN,
    [PAIR_TWINS] = tiles_PAIR_TWINS,
};

void pp_matmul_blocks_avx2(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                           float *y, int64_t y_stride, void *scratch)
{
    if (m <= few_rows(w->type))
        matmul_few(w, row0, row1, x, m, y, y_stride, scratch);
    else
        tiles[form_of(w->type)](w, row0, row1, x, m, y, y_stride, scratch);
}

#else
typedef int pp_matmul_blocks_avx2_is_for_x86_64;
#endif
