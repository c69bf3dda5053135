/* matmul_blocks_avx2.c - the products for AVX2 of the types that have heads and bodies (pack.h). For any number of
 * activation rows a piece of a group is unpacked into a tile, which lies in the first cache, and then multiplied: the
 * products know forms of tiles, not types (matmul_avx2_tiles.h). */
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

/* --- opening ------------------------------------------------------------------------------------------------------ */

#include "engine/cpu/open_rows_avx2.h"

#include "engine/cpu/open_body.h"

/* --- into tiles --------------------------------------------------------------------------------------------------- */

/* The same number of 16 bits twice in a lane. */
INLINE __m256i twice(ivec v)
{
    return _mm256_blend_epi16((__m256i)v, _mm256_slli_epi32((__m256i)v, 16), 0xaa);
}

INLINE void put_small(struct small_block *to, const struct opened *o, int h, const int less)
{
    const __m256i ones = _mm256_set1_epi8(1);
    __m256i sum = _mm256_setzero_si256();
    UNROLL for (int k = 0; k < 2; k++)
    {
        __m256i sc = twice(o->sc[k]), words = _mm256_setzero_si256();
        _mm256_store_si256((__m256i *)(to->sc[k] + 16 * h), sc);
        UNROLL for (int v = 4 * k; v < 4 * k + 4; v++)
        {
            __m256i w = (__m256i)o->w[v];
            if (less)
                w = _mm256_sub_epi8(w, _mm256_set1_epi8((char)less));
            _mm256_store_si256((__m256i *)(to->q[v] + 32 * h), w);
            words = _mm256_add_epi16(words, _mm256_maddubs_epi16(ones, w));
        }
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(words, sc));
    }
    sum = _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_slli_epi32(sum, 7));
    _mm256_store_si256((__m256i *)(to->bias + 8 * h), sum);
    _mm256_store_ps(to->d + 8 * h, (__m256)o->d);
}

INLINE void put_min(struct small_block *to, const struct opened *o, int h)
{
    _mm256_store_ps(to->min + 8 * h, (__m256)o->min);
    _mm256_store_si256((__m256i *)(to->m + 16 * h),
                       _mm256_blend_epi16((__m256i)o->m[0], _mm256_slli_epi32((__m256i)o->m[1], 16), 0xaa));
}

/* The whole-number scales are multiplied in: products of 8 bits with 5 at most. */
INLINE void put_words(struct word_block *to, const struct opened *o, int h, const bool scales)
{
    _mm256_store_ps(to->d + 8 * h, (__m256)o->d);
    UNROLL for (int v = 0; v < 8; v++)
    {
        __m256i w = (__m256i)o->w[v];
        __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8), odd = _mm256_srai_epi16(w, 8);
        if (scales) {
            even = _mm256_mullo_epi16(even, twice(o->sc[v / 4]));
            odd = _mm256_mullo_epi16(odd, twice(o->sc[v / 4]));
        }
        _mm256_store_si256((__m256i *)(to->q[2 * v] + 16 * h), even);
        _mm256_store_si256((__m256i *)(to->q[2 * v + 1] + 16 * h), odd);
    }
}

/* --- types -------------------------------------------------------------------------------------------------------- */

INLINE enum tile_form form_of(uint32_t type)
{
    switch (type) {
    case PP_TYPE_IQ4_NL:
    case PP_TYPE_IQ4_XS:
    case PP_TYPE_IQ2_XXS:
    case PP_TYPE_IQ2_XS:
    case PP_TYPE_IQ2_S:
    case PP_TYPE_IQ3_XXS:
        return WORDS;
    case PP_TYPE_Q2_K:
        return SMALL_MINS;
    default:
        return pp_type_has_min(type) ? SMALL_MIN : SMALL;
    }
}

#define UNPACK(TYPE, name)                                                                            \
    static void unpack_##name(const uint8_t *group, int64_t n_cols, int64_t b, void *block)            \
    {                                                                                                 \
        const struct packed_at p = packed_at(PP_TYPE_##TYPE, group, n_cols, b);                        \
        UNROLL for (int h = 0; h < 2; h++)                                                            \
        {                                                                                             \
            struct opened o;                                                                          \
            open_##name(p, ROWS *h, &o);                                                              \
            if (form_of(PP_TYPE_##TYPE) == WORDS)                                                     \
                put_words(block, &o, h, PP_TYPE_##TYPE == PP_TYPE_IQ2_XS || PP_TYPE_##TYPE == PP_TYPE_IQ2_S); \
            else                                                                                      \
                put_small(block, &o, h, tile_less(PP_TYPE_##TYPE));                                   \
            if (pp_type_has_min(PP_TYPE_##TYPE))                                                      \
                put_min(block, &o, h);                                                                \
        }                                                                                             \
    }
PP_BLOCK_TYPES(UNPACK)
#undef UNPACK

#define ENTRY(TYPE, name) [PP_TYPE_##TYPE] = unpack_##name,
static unpack_fn *const unpackers[PP_TYPE_LIMIT] = {PP_BLOCK_TYPES(ENTRY)};
#undef ENTRY

void pp_matmul_blocks_avx2(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                           float *y, int64_t y_stride, void *scratch)
{
    switch (form_of(w->type)) {
    case WORDS:
        matmul_tiles(w, row0, row1, x, m, y, y_stride, scratch, unpackers[w->type], WORDS);
        break;
    case SMALL_MIN:
        matmul_tiles(w, row0, row1, x, m, y, y_stride, scratch, unpackers[w->type], SMALL_MIN);
        break;
    case SMALL_MINS:
        matmul_tiles(w, row0, row1, x, m, y, y_stride, scratch, unpackers[w->type], SMALL_MINS);
        break;
    default:
        matmul_tiles(w, row0, row1, x, m, y, y_stride, scratch, unpackers[w->type], SMALL);
    }
}

#else
typedef int pp_matmul_blocks_avx2_is_for_x86_64;
#endif
