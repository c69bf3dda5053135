/* matmul_blocks_neon.c - matrix products for AArch64, for the types with heads and bodies (pack.h), used by all of its
 * kernel sets. Blocks of 4 weight rows are unpacked into the thread's scratch, a strip of columns at a time, and
 * multiplied by 4 activation rows at a time. */
#if defined(__aarch64__)

#include <arm_neon.h>
#include <string.h>

#include "engine/cpu/matmul_sets.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* --- unpacking ---------------------------------------------------------------------------------------------------- */

enum { ROWS = 4 };
typedef uint32_t uvec __attribute__((vector_size(16)));
typedef int32_t ivec __attribute__((vector_size(16)));
typedef float fvec __attribute__((vector_size(16)));
typedef uint8_t bvec __attribute__((vector_size(16)));

INLINE uvec rows_u8(const uint8_t *p)
{
    uint32_t four;
    memcpy(&four, p, sizeof four);
    return (uvec)vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four)))));
}

INLINE ivec rows_s8(const int8_t *p)
{
    uint32_t four;
    memcpy(&four, p, sizeof four);
    return (ivec)vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four)))));
}

INLINE uvec rows_u16(const void *p)
{
    return (uvec)vmovl_u16(vreinterpret_u16_u8(vld1_u8(p)));
}

INLINE fvec rows_f16(const void *p)
{
    return (fvec)vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}

INLINE uvec lookup16(const uint8_t *table, uvec i)
{
    return (uvec)vqtbl1q_u8(vld1q_u8(table), (uint8x16_t)i);
}

INLINE uvec gather(const uint32_t *table, uvec i)
{
    return (uvec){table[i[0]], table[i[1]], table[i[2]], table[i[3]]};
}

INLINE void gather_pairs(const uint64_t *table, uvec i, uvec *to)
{
    uint64x2_t low = {table[i[0]], table[i[1]]}, high = {table[i[2]], table[i[3]]};
    to[0] = (uvec)vuzp1q_u32(vreinterpretq_u32_u64(low), vreinterpretq_u32_u64(high));
    to[1] = (uvec)vuzp2q_u32(vreinterpretq_u32_u64(low), vreinterpretq_u32_u64(high));
}

INLINE uvec spread_byte(uvec v, const int k)
{
    const uint8x16_t first = {0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12};
    return (uvec)vqtbl1q_u8((uint8x16_t)v, vaddq_u8(first, vdupq_n_u8((uint8_t)k)));
}

#include "engine/cpu/unpack_gathers.h"

#include "engine/cpu/unpack_body.h"

/* --- products ----------------------------------------------------------------------------------------------------- */

enum { STRIP = 64 /* blocks */, MOST_ACTS = 4 };

/* The members of struct unpacked that products need; w is signed. */
struct strip_block {
    uvec w[8];
    fvec d, min[2]; /* the second minimum where a block has two */
    ivec sc[2];
};

_Static_assert(STRIP * sizeof(struct strip_block) <= PP_MATMUL_SCRATCH, "a thread's scratch");

INLINE void put_strip(struct strip_block *to, const struct unpacked *o)
{
    memcpy(to->w, o->w, sizeof to->w);
    to->d = o->d;
    UNROLL for (int k = 0; k < 2; k++)
    {
        to->sc[k] = o->sc[k];
        to->min[k] = o->min * __builtin_convertvector(o->m[k], fvec);
    }
}

/* The sum over 16 columns from 16 half on. Products, of 16 bits, are added pairwise to 32 bits. */
INLINE int32x4_t sum_half(const struct strip_block *o, const int8_t *q, const int half)
{
    int32x4_t rows01 = vdupq_n_s32(0), rows23 = vdupq_n_s32(0);
    UNROLL for (int v = 4 * half; v < 4 * half + 4; v++)
    {
        int32_t four;
        memcpy(&four, q + 4 * v, sizeof four);
        int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(four)), w = (int8x16_t)o->w[v];
        rows01 = vpadalq_s16(rows01, vmull_s8(vget_low_s8(w), vget_low_s8(x)));
        rows23 = vpadalq_s16(rows23, vmull_high_s8(w, x));
    }
    return vpaddq_s32(rows01, rows23);
}

/* How sums are scaled, a compile-time constant for each type. */
struct way {
    int n_mins;   /* minima of a block */
    int together; /* blocks that are scaled together: 2 if they are twins */
};

/* The sum over a block, times the integer scales of its halves. */
INLINE int32x4_t scaled_sum(const struct strip_block *o, const int8_t *q)
{
    const int32x4_t first = vmulq_s32(sum_half(o, q, 0), (int32x4_t)o->sc[0]);
    return vmlaq_s32(first, sum_half(o, q, 1), (int32x4_t)o->sc[1]);
}

INLINE float32x4_t subtract_minima(const struct strip_block *o, const int8_t *q, float d, float32x4_t acc,
                                   const int n_mins)
{
    const float sum0 = (float)vaddlvq_s8(vld1q_s8(q)), sum1 = (float)vaddlvq_s8(vld1q_s8(q + 16));
    if (n_mins == 1)
        acc = vfmsq_f32(acc, (float32x4_t)o->min[0], vdupq_n_f32(d * (sum0 + sum1)));
    if (n_mins == 2) {
        acc = vfmsq_f32(acc, (float32x4_t)o->min[0], vdupq_n_f32(d * sum0));
        acc = vfmsq_f32(acc, (float32x4_t)o->min[1], vdupq_n_f32(d * sum1));
    }
    return acc;
}

/* acc[i] += n unpacked blocks times the blocks from block0 on of activation row row + i, for i below M. */
INLINE void strip_product(const struct strip_block *o, int64_t n, const struct pp_acts *x, int64_t row, int64_t block0,
                          float32x4_t *acc, const struct way way, const int M)
{
    for (int64_t b = 0; b < n; b += way.together, o += way.together)
        UNROLL for (int i = 0; i < M; i++)
        {
            const int8_t *q = x->q + (row + i) * x->q_stride + 32 * (block0 + b);
            const float d = x->d[(row + i) * x->b_stride + block0 + b];
            int32x4_t isum = scaled_sum(o, q);
            if (way.together == 2)
                isum = vaddq_s32(isum, scaled_sum(o + 1, q + 32));
            acc[i] = vfmaq_f32(acc[i], vmulq_n_f32((float32x4_t)o->d, d), vcvtq_f32_s32(isum));
            UNROLL for (int t = 0; t < way.together; t++)
                acc[i] = subtract_minima(o + t, q + 32 * t, d, acc[i], way.n_mins);
        }
}

/* Multiplies 4 weight rows, of which the first `live` exist, by M activation rows, and adds to y unless block0 is 0. */
INLINE void strip_rows(const struct strip_block *o, int64_t n, const struct pp_acts *x, int64_t row, int64_t block0,
                       float *y, int64_t y_stride, int64_t live, const struct way way, const int M)
{
    float32x4_t acc[MOST_ACTS];
    UNROLL for (int i = 0; i < M; i++)
    {
        float t[4] = {0};
        if (block0)
            memcpy(t, y + (row + i) * y_stride, (size_t)live * sizeof *t);
        acc[i] = vld1q_f32(t);
    }
    strip_product(o, n, x, row, block0, acc, way, M);
    UNROLL for (int i = 0; i < M; i++)
    {
        float t[4];
        vst1q_f32(t, acc[i]);
        memcpy(y + (row + i) * y_stride, t, (size_t)live * sizeof *t);
    }
}

INLINE void all_rows(const struct strip_block *o, int64_t n, const struct pp_acts *x, int64_t m, int64_t block0,
                     float *y, int64_t y_stride, int64_t live, const struct way way)
{
    int64_t i = 0;
    for (; i + MOST_ACTS <= m; i += MOST_ACTS)
        strip_rows(o, n, x, i, block0, y, y_stride, live, way, MOST_ACTS);
    for (; i < m; i++)
        strip_rows(o, n, x, i, block0, y, y_stride, live, way, 1);
}

/* --- types -------------------------------------------------------------------------------------------------------- */

typedef void unpack_strip_fn(const uint8_t *group, int64_t n_cols, int64_t b, int64_t n, int row,
                             struct strip_block *o);

#define UNPACK_STRIP(TYPE, name)                                                                                   \
    static void strip_##name(const uint8_t *group, int64_t n_cols, int64_t b, int64_t n, int row,                  \
                             struct strip_block *o)                                                                \
    {                                                                                                              \
        for (int64_t end = b + n; b < end; b++) {                                                                  \
            struct unpacked all;                                                                                   \
            unpack_one(PP_TYPE_##TYPE, unpack_##name, packed_at(PP_TYPE_##TYPE, group, n_cols, b), row, &all);     \
            make_signed(PP_TYPE_##TYPE, &all);                                                                     \
            put_strip(o++, &all);                                                                                  \
        }                                                                                                          \
    }
PP_BLOCK_TYPES(UNPACK_STRIP)
#undef UNPACK_STRIP

#define ENTRY(TYPE, name) [PP_TYPE_##TYPE] = strip_##name,
static unpack_strip_fn *const unpackers[PP_TYPE_LIMIT] = {PP_BLOCK_TYPES(ENTRY)};
#undef ENTRY

void pp_matmul_blocks_neon(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                           float *y, int64_t y_stride, void *scratch)
{
    const int64_t n_blocks = w->n_cols / 32;
    struct strip_block *o = scratch;
    for (int64_t row = row0; row < row1; row += ROWS)
        for (int64_t b = 0; b < n_blocks; b += STRIP) {
            int64_t n = n_blocks - b < STRIP ? n_blocks - b : STRIP, live = row1 - row < ROWS ? row1 - row : ROWS;
            unpackers[w->type](pp_pack_group(w, row), w->n_cols, b, n, (int)(row % PP_GROUP_ROWS), o);
#define ALL_ROWS(n_mins, together) \
    all_rows(o, n, x, m, b, y + row, y_stride, live, (const struct way){n_mins, together})
            if (pp_type_twins(w->type) && pp_type_has_min(w->type))
                ALL_ROWS(2, 2);
            else if (pp_type_twins(w->type))
                ALL_ROWS(0, 2);
            else if (pp_type_has_min(w->type))
                ALL_ROWS(1, 1);
            else
                ALL_ROWS(0, 1);
#undef ALL_ROWS
        }
}

#else
typedef int pp_matmul_blocks_neon_is_for_aarch64;
#endif
