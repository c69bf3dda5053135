/* matmul_vnni_body.h - products of quantised weights for CPUs with byte dot products (VNNI), written once over a vector
 * of LANES weight rows: 16 in 512 bits (matmul_avx512.c), 8 in 256 bits (matmul_avxvnni.c). See pack.h for the layouts
 * and matmul.h for the arithmetic. Private to engine/cpu.
 *
 * Weights are unpacked to unsigned bytes and float scales. A weight type belongs to a kind, which says
 * how integer sums are scaled (unpack_units.h). Four types are unpacked by two small functions, unpack_slice() and
 * unpack_scales(). Up to STREAM_ACTS activation rows are multiplied while the weights stream from memory, unpacked in
 * registers once for all rows. With more rows a unit (a panel of weight rows) is unpacked into the thread's scratch,
 * CHUNK blocks at a time, small enough to stay in the L1 cache while all activation rows are multiplied by it; that
 * inner loop no longer depends on the type. Both keep the integer sums in registers. Types with heads and bodies
 * (pack.h) work the same way with the routines of unpack_units.h, but few_rows() says up to how many rows they stream.
 *
 * The including file has defined: ivec and fvec, LANES (an enumerator) and PP_VNNI_LANES (the same for #if),
 * PP_UNITS_OF(type) (of unpack_units.h), and
 *   i_load (aligned), i_store, i_zero, i_set1, i_set4 (4 bytes in all lanes), i_and, i_pick (a & mask | c),
 *   i_down16, i_down32, i_up32 (shifts), i_dot4 (sums += 4 products of unsigned a and signed b), i_to_f (converts),
 *   i_as_f (reinterprets),
 *   f_load, f_store (aligned), f_load_some, f_store_some (the first n lanes), f_zero, f_set1, f_add, f_mul,
 *   f_fma (a b + c), f_fnma (-a b + c), f_halves, f_unsigned, f_signed (LANES numbers in memory, converted). */
#include <stdint.h>
#include <string.h>

#include "engine/cpu/half_sums.h"
#include "engine/cpu/matmul_sets.h"
#include "engine/cpu/unpack_units.h"
#include "engine/cpu/pack.h"
#include "engine/cpu/stream_ahead.h"

#ifndef UNROLL
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#endif

enum {
    PARTS = PP_GROUP_ROWS / LANES, /* vectors per group */
    SLICE_BYTES = 4 * LANES,       /* one vector's part of a slice */
    STREAM_ACTS = 8,               /* most activation rows that are multiplied by streaming weights */
    TILE_ACTS = 6,                 /* most activation rows of a register tile */
    PAIR = 2,                      /* its vectors of weight rows: 12 integer and 12 float accumulators */
    FETCH_AT_ONCE = 256,           /* bytes of weights that may be prefetched in one burst */
    SUMS_AFTER = 4,                /* the block of a tile at which the next tile's sums are prefetched */
    SLAB = 512,                    /* activation rows for which weights are unpacked once */
    SPAN = 64 * CHUNK,             /* blocks of streaming weights whose struct side are made at once */
};

/* --- weight types ------------------------------------------------------------------------------------------------- */

/* The number that the packed form adds to a weight so that it is unsigned. */
INLINE int32_t offset_of(const uint32_t type)
{
    return type == PP_TYPE_Q8_0 ? 128 : type == PP_TYPE_Q4_0 ? 8 : type == PP_TYPE_Q6_K ? 32 : 0;
}

/* A block of 32 columns of a group in its packed form. */
struct block {
    const uint8_t *bytes;  /* its slices */
    const uint8_t *scales; /* Q8_0, Q4_0: its 16 scales; else the packed super-block of 256 columns around it */
    int in;                /* its index in the super-block */
};

INLINE struct block block_at(const uint32_t type, const uint8_t *group, int64_t n_cols, int64_t b)
{
    if (type == PP_TYPE_Q4_K) {
        const struct pp_q4_k_pack *p = (const struct pp_q4_k_pack *)group + b / 8;
        return (struct block){p->q[b % 8 / 2][0], (const uint8_t *)p, (int)(b % 8)};
    }
    if (type == PP_TYPE_Q6_K) {
        const struct pp_q6_k_pack *p = (const struct pp_q6_k_pack *)group + b / 8;
        return (struct block){p->q[b % 8].low[0], (const uint8_t *)p, (int)(b % 8)};
    }
    const uint8_t *slices = group + pp_pack_scale_bytes(n_cols);
    return (struct block){slices + (type == PP_TYPE_Q8_0 ? 8 : 4) * PP_SLICE * b, group + 32 * b, 0};
}

/* The weights of columns 4 v to 4 v + 3 of LANES rows, as unsigned bytes. odd: whether the block's number is. */
INLINE ivec unpack_slice(const uint32_t type, const struct block *p, const int v, const int part, const bool odd)
{
    const uint8_t *bytes = p->bytes + SLICE_BYTES * part;
    const ivec low = i_set1(0x0f0f0f0f);
    if (type == PP_TYPE_Q8_0)
        return i_load(bytes + PP_SLICE * v);
    if (type == PP_TYPE_Q4_0) {
        ivec two = i_load(bytes + PP_SLICE * (v % 4));
        return i_and(v < 4 ? two : i_down16(two, 4), low);
    }
    if (type == PP_TYPE_Q4_K) {
        ivec two = i_load(bytes + PP_SLICE * v);
        return i_and(odd ? i_down16(two, 4) : two, low);
    }
    ivec four = i_load(bytes + PP_SLICE * (v % 4)), two = i_load(bytes + PP_SLICE * (4 + v % 4 / 2));
    if (v < 4)
        return i_pick(v % 2 ? i_down32(two, 2) : two, i_set1(0x30303030), i_and(four, low));
    return i_pick(v % 2 ? i_up32(two, 2) : two, i_set1(0x0c0c0c0c), i_and(four, i_set1((int32_t)0xf0f0f0f0)));
}

INLINE void unpack_scales(const uint32_t type, const struct block *p, const int part, fvec *scale)
{
    const int r = LANES * part;
    if (type == PP_TYPE_Q4_K) {
        const struct pp_q4_k_pack *k = (const struct pp_q4_k_pack *)p->scales;
        scale[0] = f_mul(f_halves(k->d + r), f_unsigned(k->sc[p->in] + r));
        scale[1] = f_mul(f_halves(k->dmin + r), f_unsigned(k->m[p->in] + r));
    } else if (type == PP_TYPE_Q6_K) {
        const struct pp_q6_k_pack *k = (const struct pp_q6_k_pack *)p->scales;
        scale[0] = f_halves(k->d + r);
        scale[1] = f_signed(k->sc[2 * p->in] + r);
        scale[2] = f_mul(f_signed(k->sc[2 * p->in + 1] + r), f_set1(0.25f));
        scale[3] = f_mul(scale[1], f_set1(-MAGIC));
    } else {
        scale[0] = f_halves((const uint16_t *)(const void *)(p->scales + 2 * r));
    }
}

/* Blocks multiplied at a time: two neighbours share their bytes in Q4_K and are twins in Q6_K. */
INLINE int blocks_together(const uint32_t type)
{
    return type == PP_TYPE_Q4_K || type == PP_TYPE_Q6_K ? 2 : 1;
}

/* The slice to unpack k-th, so that those that share a load are unpacked one after the other. */
INLINE int slice_order(const uint32_t type, const int k)
{
    return type == PP_TYPE_Q4_0 ? k % 2 * 4 + k / 2 : k;
}

/* --- struct side: what scaling needs of activations --------------------------------------------------------------- */

/* The offsets of the weights in the two halves of a block, in the units of each half's sum: the second sum of Q6_K is 4
 * times too large. */
struct offsets {
    int32_t first, second;
};

INLINE struct offsets same_offsets(int32_t offset)
{
    return (struct offsets){offset, offset};
}

INLINE struct offsets offsets_of(const uint32_t type)
{
    return (struct offsets){offset_of(type), (type == PP_TYPE_Q6_K ? 4 : 1) * offset_of(type)};
}

/* The initial values of two blocks' HALVED sums, first halves in the low 64 bits: the sum of q times -offset, and for
 * first halves MAGIC_BITS, as first_half() reads the sum as a float. */
INLINE __m128i halved_bias(const int8_t *q, const struct offsets less)
{
    const int offset = less.first, second = less.second;
    __m128i bias = _mm_mullo_epi32(half_sums(q), _mm_setr_epi32(-offset, -offset, -second, -second));
    return _mm_add_epi32(bias, _mm_setr_epi32(MAGIC_BITS, MAGIC_BITS, 0, 0));
}

INLINE void fill_side(const enum kind kind, const struct offsets less, const int8_t *q, const float *d,
                      const int32_t *sum, const int n, struct side *s)
{
    memcpy(s->d, d, (size_t)n * sizeof *d);
    if (kind == WITH_MIN) {
        for (int b = 0; b < n; b++)
            s->dsum[b] = d[b] * (float)sum[b];
    } else if (kind == PLAIN || kind == FOLDED) {
        for (int b = 0; b < n; b++)
            s->bias[0][b] = -less.first * sum[b];
        for (int b = 0; kind == FOLDED && b < n; b += 2) /* one sum for both twins */
            s->bias[0][b] += s->bias[0][b + 1];
    } else {
        for (int b = 0; b < n; b += 2) {
            __m128i two = kind == HALVED ? halved_bias(q + 32 * b, less)
                                         : _mm_castps_si128(scaled_half_sums(q + 32 * b, d + b));
            _mm_storel_epi64((__m128i *)(s->bias[0] + b), two);
            _mm_storel_epi64((__m128i *)(s->bias[1] + b), _mm_unpackhi_epi64(two, two));
        }
    }
}

/* Fills *s for row i of x and blocks b to b + n - 1, n <= CHUNK. n is even for kinds with halves. */
INLINE void make_side(const enum kind kind, const struct offsets less, const struct pp_acts *x, int64_t i, int64_t b,
                      int64_t n, struct side *s)
{
    const int8_t *q = x->q + i * x->q_stride + 32 * b;
    const float *d = x->d + i * x->b_stride + b;
    const int32_t *sum = x->sum + i * x->b_stride + b;
    if (n == CHUNK)
        fill_side(kind, less, q, d, sum, CHUNK, s);
    else
        fill_side(kind, less, q, d, sum, (int)n, s);
}

/* --- one block ---------------------------------------------------------------------------------------------------- */

/* The initial value of a block's integer sum. */
INLINE ivec first_sum(const enum kind kind, const struct side *s, int b, const int half)
{
    return kind == WITH_MIN || kind == TWO_MINS ? i_zero() : i_set1(s->bias[half][b]);
}

/* The first half's sum times its integer scale. The sum began with MAGIC_BITS, so that as a float it is MAGIC + sum;
 * scale[3] is -MAGIC times the scale. The result is below 2^24 and so exact. */
INLINE fvec first_half(const ivec isum, const fvec *scale)
{
    return f_fma(scale[1], i_as_f(isum), scale[3]);
}

/* How many blocks one scaled sum spans. */
INLINE int blocks_of(const enum kind kind)
{
    return is_twins(kind) ? 2 : 1;
}

/* The integer sum of a block as float. With halves, isum is the second half's sum and `whole` the scaled sum of the
 * first half. The result has at most 24 bits and is exact: a sum of twins is rounded once, when both are added. */
INLINE fvec block_sum(const enum kind kind, const ivec isum, const fvec whole, const fvec *scale)
{
    const fvec sum = i_to_f(isum);
    return is_halved(kind) ? f_fma(scale[2], sum, whole) : sum;
}

/* Adds block b, or the twins that begin with it, to acc. sum: the integer sum as float. before: with TWO_MINS, the
 * scales of the first twin, `scale` being the second one's. */
INLINE fvec add_block(const enum kind kind, fvec acc, fvec sum, const fvec *scale, const fvec *before,
                      const struct side *s, int b)
{
    acc = f_fma(f_mul(scale[0], f_set1(s->d[b])), sum, acc);
    if (kind == TWO_MINS) {
        acc = f_fnma(before[2], f_set1(s->half[1][b]), f_fnma(before[1], f_set1(s->half[0][b]), acc));
        return f_fnma(scale[2], f_set1(s->half[1][b + 1]), f_fnma(scale[1], f_set1(s->half[0][b + 1]), acc));
    }
    return kind == WITH_MIN ? f_fnma(scale[1], f_set1(s->dsum[b]), acc) : acc;
}

/* Prefetches n bytes at p, which need not be mapped. */
INLINE void fetch(const uint8_t *p, size_t n)
{
    for (size_t at = 0; at < n; at += 64)
        __builtin_prefetch((const void *)((uintptr_t)p + at), 0, 3);
}

/* How many lanes of the vector that begins at row + behind are rows before row1. */
INLINE int lanes_before(int64_t row, int64_t row1, int offset)
{
    int64_t n = row1 - row - offset;
    return n < 0 ? 0 : n < LANES ? (int)n : LANES;
}

/* --- few activation rows: streaming weights ----------------------------------------------------------------------- */

/* Whether PP_WAY_NEAR prefetches nearby lines for this type. Q4_K and Q6_K, whose loads are fewer and further apart,
 * are 3 to 5 % slower with it. */
INLINE bool goes_near(const uint32_t type)
{
    return type == PP_TYPE_Q8_0 || type == PP_TYPE_Q4_0;
}

/* Average bytes per block of a group, scales included: prefetches advance by these. */
INLINE size_t pace_of(const uint32_t type)
{
    return type == PP_TYPE_Q8_0 ? 544 : type == PP_TYPE_Q6_K ? 424 : type == PP_TYPE_Q4_K ? 296 : 288;
}

/* Whether a group stores the scales of all its blocks before the weights. */
INLINE bool scales_apart(const uint32_t type)
{
    return type == PP_TYPE_Q8_0 || type == PP_TYPE_Q4_0;
}

/* Prefetches what is to be read some distance after block b of a group, or after the two blocks that are multiplied
 * together. */
INLINE void ask_ahead(const uint32_t type, const uint8_t *group, int64_t n_cols, int64_t b, enum pp_stream_way how)
{
    enum { SCALES = 32 };
    const size_t pace = pace_of(type), n = (size_t)n_cols / 32;
    if (scales_apart(type))
        stream_ahead_apart(group, SCALES, pace - SCALES, n, (size_t)b, how);
    else
        stream_ahead(group + pace * (size_t)b, pace * (size_t)blocks_together(type), how);
}

/* Multiplies w, block b of the current chunk of one group, by M activation rows. near: each load of a line of weights
 * is followed by the prefetch of another line nearby. twin: keeps the sum of an even twin until the odd one is
 * added. */
INLINE void stream_block(const uint32_t type, const struct block *w, const bool odd, const struct side *s, int b,
                         const int8_t *const *q, fvec (*acc)[STREAM_ACTS], fvec (*twin)[STREAM_ACTS], const bool near,
                         const int M)
{
    const enum kind kind = kind_of(type);
    const int HALVES = is_halved(kind) ? 2 : 1;
    const int TOGETHER = PARTS == 1 || M > 3 ? 1 : PARTS; /* vectors at a time, whose sums fit the registers */
    const int lines = type == PP_TYPE_Q8_0 ? 8 : 4;
    UNROLL for (int part = 0; part < PARTS; part += TOGETHER)
    {
        if (TOGETHER < PARTS)
            __asm__ volatile("" : : : "memory"); /* load activations again rather than spill those of the other part */
        ivec isum[PARTS][STREAM_ACTS];
        fvec scale[PARTS][MAX_SCALES], whole[PARTS][STREAM_ACTS];
        UNROLL for (int half = 0; half < HALVES; half++)
        {
            UNROLL for (int p = 0; p < TOGETHER; p++)
                UNROLL for (int i = 0; i < M; i++)
                    isum[p][i] = first_sum(kind, s + i, b, half);
            UNROLL for (int k = half * 4; k < (half + 1) * SLICES / HALVES; k++)
            {
                const int v = slice_order(type, k);
                ivec slice[PARTS];
                UNROLL for (int p = 0; p < TOGETHER; p++)
                    slice[p] = unpack_slice(type, w, v, part + p, odd);
                if (near && part == 0 && v < lines)
                    STREAM_NEAR(slice[0], w->bytes + PP_SLICE * v, PP_NEAR_AHEAD);
                UNROLL for (int i = 0; i < M; i++)
                {
                    ivec four = i_set4(q[i] + 32 * b + 4 * v);
                    UNROLL for (int p = 0; p < TOGETHER; p++)
                        isum[p][i] = i_dot4(isum[p][i], slice[p], four);
                }
            }
            UNROLL for (int p = 0; p < TOGETHER; p++)
            {
                if (half == 0)
                    unpack_scales(type, w, part + p, scale[p]);
                UNROLL for (int i = 0; i < M; i++)
                    if (half < HALVES - 1)
                        whole[p][i] = first_half(isum[p][i], scale[p]);
            }
        }
        UNROLL for (int p = 0; p < TOGETHER; p++)
            UNROLL for (int i = 0; i < M; i++)
            {
                const fvec sum = block_sum(kind, isum[p][i], HALVES == 2 ? whole[p][i] : f_zero(), scale[p]);
                if (is_twins(kind) && !odd)
                    twin[part + p][i] = sum;
                else
                    acc[part + p][i] = add_block(kind, acc[part + p][i],
                                                 is_twins(kind) ? f_add(twin[part + p][i], sum) : sum, scale[p], NULL,
                                                 s + i, b);
            }
    }
}

/* Multiplies one group by M activation rows over blocks b0 to b0 + n_blocks - 1. Without `near` it prefetches far
 * ahead, at the average pace at which the group's bytes, scales included, are used. With `near` it prefetches nearby
 * lines, and in this group's last chunk also the first lines of the next group, unless the matrix stands alone (struct
 * pp_matrix). side: [chunks][M] */
INLINE void stream_group(const uint32_t type, const uint8_t *group, int64_t n_cols, int64_t b0, int64_t n_blocks,
                         const struct side *side, const struct pp_acts *x, fvec (*acc)[STREAM_ACTS], const bool near,
                         bool alone, const int M)
{
    const enum pp_stream_way how = stream_way_of(x, M);
    const uint8_t *next = block_at(type, group + pp_pack_group_bytes(type, n_cols), n_cols, b0).bytes;
    const int STEP = blocks_together(type);
    const int8_t *q[STREAM_ACTS];
    fvec twin[PARTS][STREAM_ACTS];
    UNROLL for (int i = 0; i < M; i++)
        q[i] = x->q + i * x->q_stride + 32 * b0;
    for (int64_t c = 0; c < n_blocks; c += CHUNK, side += M) {
        int n = n_blocks - c < CHUNK ? (int)(n_blocks - c) : CHUNK, b = 0;
        for (; b < n; b += STEP) {
            struct block even = block_at(type, group, n_cols, b0 + c + b);
            if (!near)
                ask_ahead(type, group, n_cols, b0 + c + b, how);
            stream_block(type, &even, false, side, b, q, acc, twin, near, M);
            if (near && !alone && n_blocks - c <= CHUNK)
                fetch(next + PP_NEAR_AHEAD / CHUNK * b, PP_NEAR_AHEAD / CHUNK);
            if (STEP == 2) {
                struct block odd = block_at(type, group, n_cols, b0 + c + b + 1);
                stream_block(type, &odd, true, side, b + 1, q, acc, twin, false, M);
            }
        }
        UNROLL for (int i = 0; i < M; i++)
            q[i] += 32 * CHUNK;
    }
}

INLINE void stream_rows(const uint32_t type, const struct pp_matrix *w, int64_t row0, int64_t row1, int64_t b0,
                        int64_t n_blocks, const struct side *side, const struct pp_acts *x, float *y, int64_t y_stride,
                        const bool near, const int M)
{
    for (int64_t row = row0; row < row1; row += PP_GROUP_ROWS) {
        fvec acc[PARTS][STREAM_ACTS];
        UNROLL for (int p = 0; p < PARTS; p++)
            UNROLL for (int i = 0; i < M; i++)
                acc[p][i] = b0 ? f_load_some(y + i * y_stride + row + LANES * p, lanes_before(row, row1, LANES * p))
                               : f_zero();
        stream_group(type, pp_pack_group(w, row), w->n_cols, b0, n_blocks, side, x, acc, near, w->alone, M);
        UNROLL for (int p = 0; p < PARTS; p++)
            UNROLL for (int i = 0; i < M; i++)
                f_store_some(y + i * y_stride + row + LANES * p, lanes_before(row, row1, LANES * p), acc[p][i]);
    }
}

#if PP_VNNI_LANES == 16
#include "engine/cpu/matmul_vnni_beside.h"
#endif

/* stream_rows() of a type for a number of activation rows. */
typedef void stream_fn(const struct pp_matrix *w, int64_t row0, int64_t row1, int64_t b0, int64_t n_blocks,
                       const struct side *side, const struct pp_acts *x, float *y, int64_t y_stride);

/* Functions of their own: the compiler takes a fifth longer for one per type with all of these loops. */
#define STREAM(name, type, near, M)                                                                              \
    static __attribute__((noinline)) void name##_##M(                                                            \
        const struct pp_matrix *w, int64_t row0, int64_t row1, int64_t b0, int64_t n_blocks,                     \
        const struct side *side, const struct pp_acts *x, float *y, int64_t y_stride)                            \
    {                                                                                                            \
        stream_rows(type, w, row0, row1, b0, n_blocks, side, x, y, y_stride, near, M);                           \
    }
#define STREAMS(name, type, near)                                                                                \
    STREAM(name, type, near, 1)                                                                                  \
    STREAM(name, type, near, 2)                                                                                  \
    STREAM(name, type, near, 3)                                                                                  \
    STREAM(name, type, near, 4)                                                                                  \
    STREAM(name, type, near, 5)                                                                                  \
    STREAM(name, type, near, 6)                                                                                  \
    STREAM(name, type, near, 7)                                                                                  \
    STREAM(name, type, near, 8)                                                                                  \
    static stream_fn *const name[STREAM_ACTS] = {name##_1, name##_2, name##_3, name##_4,                         \
                                                 name##_5, name##_6, name##_7, name##_8};
STREAMS(stream_q8_0, PP_TYPE_Q8_0, false)
STREAMS(stream_q8_0_near, PP_TYPE_Q8_0, true)
STREAMS(stream_q4_0, PP_TYPE_Q4_0, false)
STREAMS(stream_q4_0_near, PP_TYPE_Q4_0, true)
STREAMS(stream_q4_k, PP_TYPE_Q4_K, false)
STREAMS(stream_q6_k, PP_TYPE_Q6_K, false)
#undef STREAMS
#undef STREAM

/* For m activation rows; near: only where goes_near(). */
INLINE stream_fn *stream_of(const uint32_t type, bool near, int64_t m)
{
    stream_fn *const *fns = type == PP_TYPE_Q8_0   ? (near ? stream_q8_0_near : stream_q8_0)
                            : type == PP_TYPE_Q4_0 ? (near ? stream_q4_0_near : stream_q4_0)
                            : type == PP_TYPE_Q4_K ? stream_q4_k
                                                   : stream_q6_k;
    return fns[m - 1];
}

INLINE void stream(const uint32_t type, const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x,
                   int64_t m, float *y, int64_t y_stride, struct side *side, bool near)
{
    _Static_assert(sizeof(struct side) * SPAN / CHUNK * STREAM_ACTS <= PP_MATMUL_SCRATCH, "a span's sides");
    for (int64_t b = 0; b < w->n_cols / 32; b += SPAN) {
        int64_t n = w->n_cols / 32 - b < SPAN ? w->n_cols / 32 - b : SPAN;
        for (int64_t c = 0; c < n; c += CHUNK)
            for (int64_t i = 0; i < m; i++)
                make_side(kind_of(type), offsets_of(type), x, i, b + c, n - c < CHUNK ? n - c : CHUNK,
                          side + c / CHUNK * m + i);
        int64_t row = row0;
#if PP_VNNI_LANES == 16
        if (m == 1) {
            if (x->way == PP_WAY_BESIDE && pp_stream_way == PP_STREAM_SOON)
                row = beside_rows(type, w, row0, row1, b, n, side, x, y, BESIDE_OF_ZEN_5);
            else if (x->way == PP_WAY_BESIDE)
                row = beside_rows(type, w, row0, row1, b, n, side, x, y, BESIDE);
            else if (!near && goes_alone(type) && stream_way_of(x, 1) != PP_STREAM_PAGES)
                row = beside_rows(type, w, row0, row1, b, n, side, x, y, 1);
        }
#endif
        stream_of(type, near, m)(w, row, row1, b, n, side, x, y, y_stride);
    }
}

/* --- many activation rows: unpacked weights ----------------------------------------------------------------------- */

/* Unpacks n blocks from b0 on of the unit at `row`, of `vectors` vectors. */
INLINE void unpack_unit(const uint32_t type, const struct pp_matrix *w, int64_t row, int64_t b0, int64_t n, uint8_t *to,
                        const int vectors)
{
    for (int64_t b = 0; b < n; b++, to += unpacked_bytes(kind_of(type), vectors, LANES))
        UNROLL for (int p = 0; p < vectors; p++)
        {
            fvec scale[MAX_SCALES];
            struct block from = block_at(type, pp_pack_group(w, row + LANES * p), w->n_cols, b0 + b);
            unpack_scales(type, &from, p % PARTS, scale);
            UNROLL for (int k = 0; k < n_scales(kind_of(type)); k++)
                f_store((float *)(void *)(to + at_unpacked(kind_of(type), SLICES + k, p, LANES)), scale[k]);
            if (b % 2) {
                UNROLL for (int v = 0; v < SLICES; v++)
                    i_store(to + at_unpacked(kind_of(type), v, p, LANES),
                            unpack_slice(type, &from, v, p % PARTS, true));
            } else {
                UNROLL for (int v = 0; v < SLICES; v++)
                    i_store(to + at_unpacked(kind_of(type), v, p, LANES),
                            unpack_slice(type, &from, v, p % PARTS, false));
            }
        }
}

/* An unpacked unit, and the activation rows to multiply by it. */
struct tile_job {
    const uint8_t *unpacked;
    int64_t n_blocks;
    bool first;             /* sums start at 0; else they continue those in y */
    const struct side *side; /* [m] */
    const int8_t *q;        /* [m, q_stride] */
    int64_t q_stride, m;
    float *y;               /* [m, y_stride], from the unit's first row on */
    int64_t y_stride;
    int live[PAIR];         /* lanes of each vector that are rows */
    const uint8_t *next[PAIR]; /* weights to be unpacked next: next_bytes of each are prefetched meanwhile */
    size_t next_bytes;
};

/* isum += products of slices v to v + n - 1 of an unpacked block and the activations at q[i] + at. */
INLINE void tile_slices(const enum kind kind, const uint8_t *w, const int8_t *const *q, int at, const int v,
                        const int n, ivec (*isum)[TILE_ACTS], const int vectors, const int M)
{
    UNROLL for (int k = v; k < v + n; k++)
    {
        ivec slice[PAIR];
        UNROLL for (int p = 0; p < vectors; p++)
            slice[p] = i_load(w + at_unpacked(kind, k, p, LANES));
        UNROLL for (int i = 0; i < M; i++)
        {
            ivec four = i_set4(q[i] + at + 4 * k);
            UNROLL for (int p = 0; p < vectors; p++)
                isum[p][i] = i_dot4(isum[p][i], slice[p], four);
        }
    }
}

/* sum = the integer sum of block b, whose halves have their own scales, + before, unless that is NULL. */
INLINE void halved_block(const enum kind kind, const uint8_t *w, const struct side *s, int b, const int8_t *const *q,
                         fvec (*before)[TILE_ACTS], fvec (*sum)[TILE_ACTS], const int vectors, const int M)
{
    ivec isum[PAIR][TILE_ACTS];
    fvec scale[PAIR][MAX_SCALES], whole[PAIR][TILE_ACTS];
    UNROLL for (int half = 0; half < 2; half++)
    {
        UNROLL for (int i = 0; i < M; i++)
            UNROLL for (int p = 0; p < vectors; p++)
                isum[p][i] = first_sum(kind, s + i, b, half);
        tile_slices(kind, w, q, 32 * b, half * SLICES / 2, SLICES / 2, isum, vectors, M);
        UNROLL for (int p = 0; p < vectors; p++)
        {
            if (half == 0)
                UNROLL for (int k = 0; k < n_scales(kind); k++)
                    scale[p][k] = f_load((const float *)(const void *)(w + at_unpacked(kind, SLICES + k, p, LANES)));
            UNROLL for (int i = 0; i < M; i++)
                if (half == 0)
                    whole[p][i] = first_half(isum[p][i], scale[p]);
        }
    }
    UNROLL for (int p = 0; p < vectors; p++)
        UNROLL for (int i = 0; i < M; i++)
        {
            const fvec block = block_sum(kind, isum[p][i], whole[p][i], scale[p]);
            sum[p][i] = before ? f_add(before[p][i], block) : block;
        }
}

/* The micro-kernel: multiplies activation rows i0 to i0 + M - 1 by the unit. Prefetches this tile's part of the next
 * unit's packed weights, fetch_step bytes per block from fetch_at on: a few lines in one burst at the beginning, more
 * than that block by block. Also prefetches the sums of the next tile. Measured on two cores of a Zen 5 with 512 rows,
 * billions of multiply-adds per second, medians of 25 runs, without and with the prefetches of sums and fewer of
 * weights: Q4_0 434 and 479, Q6_K 330 and 380; on the same machine with less other load 489 and 528, 424 and 458. */
INLINE void tile_product(const enum kind kind, const struct tile_job *job, int64_t i0, size_t fetch_at,
                         size_t fetch_step, const int vectors, const int M)
{
    const int TOGETHER = blocks_of(kind);
    const uint8_t *w = job->unpacked;
    const struct side *s = job->side + i0;
    const int8_t *q[TILE_ACTS];
    float *y = job->y + i0 * job->y_stride;
    const bool at_once = fetch_step * CHUNK <= FETCH_AT_ONCE;
    fvec acc[PAIR][TILE_ACTS];
    if (at_once)
        UNROLL for (int p = 0; p < PAIR; p++)
            fetch(job->next[p] + fetch_at, fetch_step * CHUNK);
    UNROLL for (int i = 0; i < M; i++)
    {
        q[i] = job->q + (i0 + i) * job->q_stride;
        UNROLL for (int p = 0; p < vectors; p++)
            acc[p][i] = job->first ? f_zero() : f_load_some(y + i * job->y_stride + LANES * p, job->live[p]);
    }
    for (int b = 0; b < job->n_blocks; b += TOGETHER, w += unpacked_bytes(kind, vectors, LANES)) {
        ivec isum[PAIR][TILE_ACTS];
        fvec scale[PAIR][MAX_SCALES], before[PAIR][MAX_SCALES], sum[PAIR][TILE_ACTS];
        UNROLL for (int i = 0; i < M; i++)
            UNROLL for (int p = 0; p < vectors; p++)
                isum[p][i] = first_sum(kind, s + i, b, 0);
        UNROLL for (int t = 0; t < TOGETHER; t++)
        {
            if (!at_once) {
                fetch(job->next[0] + fetch_at, fetch_step);
                fetch(job->next[1] + fetch_at, fetch_step);
                fetch_at += fetch_step;
            }
            if (b + t == SUMS_AFTER)
                UNROLL for (int i = 0; i < M; i++)
                    fetch((const uint8_t *)(y + (M + i) * job->y_stride), (size_t)vectors * sizeof(fvec));
            if (t) {
                w += unpacked_bytes(kind, vectors, LANES);
                UNROLL for (int p = 0; p < vectors; p++)
                    UNROLL for (int k = 0; k < n_scales(kind); k++)
                        before[p][k] = scale[p][k];
            }
            if (is_halved(kind))
                halved_block(kind, w, s, b + t, q, t ? sum : NULL, sum, vectors, M);
            else
                tile_slices(kind, w, q, 32 * (b + t), 0, SLICES, isum, vectors, M);
            UNROLL for (int p = 0; p < vectors; p++)
                UNROLL for (int k = 0; k < n_scales(kind); k++)
                    scale[p][k] = f_load((const float *)(const void *)(w + at_unpacked(kind, SLICES + k, p, LANES)));
        }
        UNROLL for (int p = 0; p < vectors; p++)
            UNROLL for (int i = 0; i < M; i++)
                acc[p][i] = add_block(kind, acc[p][i], is_halved(kind) ? sum[p][i] : i_to_f(isum[p][i]), scale[p],
                                      before[p], s + i, b);
    }
    UNROLL for (int i = 0; i < M; i++)
        UNROLL for (int p = 0; p < vectors; p++)
            f_store_some(y + i * job->y_stride + LANES * p, job->live[p], acc[p][i]);
}

/* Activation rows of a tile. For kinds with halves the accumulators of six rows do not all fit the registers, and some
 * are spilled. Four rows are then faster on a Zen 5 and slower on an Emerald Rapids. Billions of multiply-adds per
 * second with six and four rows, medians of 25 runs: Zen 5, Q6_K 466 and 494, IQ2_XS 367 and 386; Emerald Rapids 385
 * and 360, 325 and 297. */
INLINE int tile_height(const enum kind kind)
{
    return is_halved(kind) && pp_stream_way == PP_STREAM_SOON ? 4 : TILE_ACTS;
}

/* Multiplies all activation rows of a job, in tiles of nearly equal height: with few_rows() never of a single row, and
 * of two only where four are the most, or with 8 lanes. */
INLINE void tile_products(const enum kind kind, const struct tile_job *job, const int vectors)
{
    const int HEIGHT = tile_height(kind);
    int64_t n_tiles = (job->m + HEIGHT - 1) / HEIGHT;
    size_t step = (job->next_bytes + (size_t)(n_tiles * job->n_blocks) - 1) / (size_t)(n_tiles * job->n_blocks);
    for (int64_t t = 0; t < n_tiles; t++) {
        int64_t i = t * job->m / n_tiles, end = (t + 1) * job->m / n_tiles;
        size_t at = step * (size_t)(t * job->n_blocks);
#define ROWS(M)                                                 \
    case M:                                                     \
        tile_product(kind, job, i, at, step, vectors, M);       \
        break
        switch (end - i) {
        case 2:
            if (LANES == 8 || is_halved(kind))
                tile_product(kind, job, i, at, step, vectors, 2);
            break;
            ROWS(3);
            ROWS(4);
            ROWS(5);
            ROWS(TILE_ACTS);
        }
#undef ROWS
    }
}

/* One function per kind and number of vectors, shared by the types of that kind. */
#define PRODUCTS(name, kind)                                                                                       \
    static __attribute__((noinline)) void name##_pair(const struct tile_job *job) { tile_products(kind, job, PAIR); }
PRODUCTS(plain, PLAIN)
PRODUCTS(min, WITH_MIN)
PRODUCTS(halved, HALVED)
PRODUCTS(two_mins, TWO_MINS)
PRODUCTS(folded, FOLDED)
#undef PRODUCTS
#if PP_VNNI_LANES == 16
#define PRODUCTS(name, kind)                                                                                       \
    static __attribute__((noinline)) void name##_one(const struct tile_job *job) { tile_products(kind, job, 1); }
PRODUCTS(plain, PLAIN)
PRODUCTS(min, WITH_MIN)
PRODUCTS(halved, HALVED)
PRODUCTS(two_mins, TWO_MINS)
PRODUCTS(folded, FOLDED)
#undef PRODUCTS
#endif

INLINE void run_job(const enum kind kind, const struct tile_job *job, const int vectors)
{
#if PP_VNNI_LANES == 16
    if (vectors == 1) {
        (kind == PLAIN      ? plain_one
         : kind == WITH_MIN ? min_one
         : kind == HALVED   ? halved_one
         : kind == FOLDED   ? folded_one
                            : two_mins_one)(job);
        return;
    }
#else
    (void)vectors;
#endif
    (kind == PLAIN      ? plain_pair
     : kind == WITH_MIN ? min_pair
     : kind == HALVED   ? halved_pair
     : kind == FOLDED   ? folded_pair
                        : two_mins_pair)(job);
}

/* A thread's scratch. */
struct tile_memory {
    struct side side[SLAB];
    uint8_t unpacked[CHUNK * (SLICES + MAX_SCALES) * PAIR * SLICE_BYTES] __attribute__((aligned(64)));
};
_Static_assert(sizeof(struct tile_memory) <= PP_MATMUL_SCRATCH, "sides of a slab and an unpacked unit");

/* Finds where the packed bytes of each of a unit's vectors begin, for n blocks from b on; returns their number. */
INLINE size_t packed_chunk(const uint32_t type, const struct pp_matrix *w, int64_t row, int64_t b, int64_t n,
                           const uint8_t **next)
{
    bool super = kind_of(type) != PLAIN;
    for (int p = 0; p < PAIR; p++) {
        const uint8_t *group = pp_pack_group(w, row + LANES * p);
        struct block first = block_at(type, group, w->n_cols, b);
        next[p] = super ? first.scales : first.bytes;
    }
    size_t block = type == PP_TYPE_Q8_0 ? 512 : type == PP_TYPE_Q6_K ? 424 : type == PP_TYPE_Q4_K ? 296 : 256;
    return block * (size_t)n;
}

/* Unpacks the unit at `row` in the n blocks from b on and multiplies the m activation rows from i0 on by it; the next
 * unit's weights are prefetched. */
INLINE void tile_unit(const uint32_t type, const struct pp_matrix *w, int64_t row, int64_t row1, int64_t b, int64_t n,
                      const struct pp_acts *x, int64_t i0, int64_t m, float *y, int64_t y_stride,
                      struct tile_memory *memory, const int vectors)
{
    struct tile_job job = {
        .unpacked = memory->unpacked,
        .n_blocks = n,
        .first = b == 0,
        .side = memory->side,
        .q = x->q + i0 * x->q_stride + 32 * b,
        .q_stride = x->q_stride,
        .m = m,
        .y = y + i0 * y_stride + row,
        .y_stride = y_stride,
        .live = {lanes_before(row, row1, 0), lanes_before(row, row1, LANES)},
    };
    unpack_unit(type, w, row, b, n, memory->unpacked, vectors);
    job.next_bytes = packed_chunk(type, w, row + LANES * vectors, b, n, job.next);
    run_job(kind_of(type), &job, vectors);
}

INLINE void tiles(const uint32_t type, const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x,
                  int64_t m, float *y, int64_t y_stride, struct tile_memory *memory)
{
    const int64_t n_slabs = (m + SLAB - 1) / SLAB;
    for (int64_t s = 0; s < n_slabs; s++) {
        int64_t i0 = s * m / n_slabs, rows = (s + 1) * m / n_slabs - i0;
        for (int64_t b = 0; b < w->n_cols / 32; b += CHUNK) {
            int64_t n = w->n_cols / 32 - b < CHUNK ? w->n_cols / 32 - b : CHUNK, row = row0;
            for (int64_t i = 0; i < rows; i++)
                make_side(kind_of(type), offsets_of(type), x, i0 + i, b, n, memory->side + i);
            for (; row + (PAIR - 1) * LANES < row1; row += PAIR * LANES)
                tile_unit(type, w, row, row1, b, n, x, i0, rows, y, y_stride, memory, PAIR);
            if (row < row1)
                tile_unit(type, w, row, row1, b, n, x, i0, rows, y, y_stride, memory, PARTS == 1 ? 1 : PAIR);
        }
    }
}

/* --- types with heads and bodies --------------------------------------------------------------------------------- */

/* Where the bodies of a group begin, at block b, and their bytes per block of 32 columns. */
struct bodies {
    const uint8_t *at;
    size_t bytes;
};

INLINE struct bodies bodies_at(const struct pp_matrix *w, int64_t row, int64_t b)
{
    const struct pp_pack_shape s = pp_pack_shape(w->type);
    const size_t bytes = (size_t)(PP_GROUP_ROWS * s.body / (s.block / PP_ACT_BLOCK));
    const size_t offset = pp_pack_head_bytes(w->type, w->n_cols) + bytes * (size_t)b;
    return (struct bodies){(const uint8_t *)((uintptr_t)pp_pack_group(w, row) + offset), bytes};
}


/* A job over the n blocks from b on of the unit at `row` and the m activation rows from i0 on. */
INLINE struct tile_job blocks_job(const uint8_t *unpacked, const struct side *side, int64_t row, int64_t row1,
                                  int64_t b, int64_t n, const struct pp_acts *x, int64_t i0, int64_t m, float *y,
                                  int64_t y_stride)
{
    return (struct tile_job){
        .unpacked = unpacked,
        .n_blocks = n,
        .first = b == 0,
        .side = side,
        .q = x->q + i0 * x->q_stride + 32 * b,
        .q_stride = x->q_stride,
        .m = m,
        .y = y + i0 * y_stride + row,
        .y_stride = y_stride,
        .live = {lanes_before(row, row1, 0), lanes_before(row, row1, LANES)},
    };
}

INLINE void few_blocks(const enum kind kind, const struct pp_matrix *w, int64_t row0, int64_t row1,
                       const struct pp_acts *x, int64_t m, float *y, int64_t y_stride, struct side *side,
                       pp_few_fn *few)
{
    const int64_t all = w->n_cols / 32;
    const struct offsets less = same_offsets(unpacked_offset(w->type));
    float acc[STREAM_ACTS][PP_GROUP_ROWS] __attribute__((aligned(64)));
    for (int64_t b = 0; b < all; b += SPAN) {
        const int64_t n = all - b < SPAN ? all - b : SPAN;
        for (int64_t c = 0; c < n; c += CHUNK)
            for (int64_t i = 0; i < m; i++)
                make_side(kind, less, x, i, b + c, n - c < CHUNK ? n - c : CHUNK, side + c / CHUNK * m + i);
        const struct few_job job = {side, x->q + 32 * b, x->q_stride, m, acc, stream_way_of(x, m)};
        for (int64_t row = row0; row < row1; row += PP_GROUP_ROWS) {
            const size_t live = (size_t)(row1 - row < PP_GROUP_ROWS ? row1 - row : PP_GROUP_ROWS) * sizeof **acc;
            memset(acc, 0, (size_t)m * sizeof *acc);
            for (int64_t i = 0; b && i < m; i++)
                memcpy(acc[i], y + i * y_stride + row, live);
            few(pp_pack_group(w, row), w->n_cols, b, n, &job);
            for (int64_t i = 0; i < m; i++)
                memcpy(y + i * y_stride + row, acc[i], live);
        }
    }
}

INLINE void many_blocks(const enum kind kind, const struct pp_matrix *w, int64_t row0, int64_t row1,
                        const struct pp_acts *x, int64_t m, float *y, int64_t y_stride, struct tile_memory *memory,
                        pp_unpack_fn *unpack)
{
    const int64_t all = w->n_cols / 32, n_slabs = (m + SLAB - 1) / SLAB;
    const struct offsets less = same_offsets(unit_offset(w->type));
    for (int64_t s = 0; s < n_slabs; s++) {
        const int64_t i0 = s * m / n_slabs, rows = (s + 1) * m / n_slabs - i0;
        for (int64_t b = 0; b < all; b += CHUNK) {
            const int64_t n = all - b < CHUNK ? all - b : CHUNK;
            for (int64_t i = 0; i < rows; i++)
                make_side(kind, less, x, i0 + i, b, n, memory->side + i);
            for (int64_t row = row0; row < row1; row += PAIR * LANES) {
                const int vectors = row + (PAIR - 1) * LANES < row1 || PARTS == PAIR ? PAIR : 1;
                struct tile_job job =
                    blocks_job(memory->unpacked, memory->side, row, row1, b, n, x, i0, rows, y, y_stride);
                for (int p = 0; p < vectors; p++) {
                    const struct bodies next = bodies_at(w, row + LANES * (vectors + p), b);
                    unpack(pp_pack_group(w, row + LANES * p), w->n_cols, b, n, p % PARTS,
                           memory->unpacked + at_unpacked(kind, 0, p, LANES),
                           unpacked_bytes(kind, vectors, LANES));
                    job.next[p] = next.at;
                    job.next_bytes = next.bytes * (size_t)n;
                }
                run_job(kind, &job, vectors);
            }
        }
    }
}

/* Up to how many activation rows these types stream; more repay unpacking a unit. Measured: at 8 rows units were 1.0 to
 * 1.5 times as fast with 16 lanes, at 4 rows mostly slower; with 8 lanes that is so at 4 and 2. There a grid of IQ3 is
 * looked up for 4 columns at a time, which takes longer than the products of a row. */
INLINE int64_t few_rows(uint32_t type)
{
    return LANES == 8 && (type == PP_TYPE_IQ3_S || type == PP_TYPE_IQ3_XXS) ? 1 : LANES / 4;
}

static void matmul_blocks(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                          float *y, int64_t y_stride, void *scratch)
{
    const struct pp_unit_fns *fns = PP_UNITS_OF(w->type);
#define FEW(kind) few_blocks(kind, w, row0, row1, x, m, y, y_stride, scratch, fns->few)
#define MANY(kind) many_blocks(kind, w, row0, row1, x, m, y, y_stride, scratch, fns->unpack)
    if (m <= few_rows(w->type)) {
        switch (kind_of(w->type)) {
        case WITH_MIN:
            FEW(WITH_MIN);
            break;
        case HALVED:
            FEW(HALVED);
            break;
        case HALVED_MINS:
            FEW(HALVED_MINS);
            break;
        default:
            FEW(PLAIN);
        }
        return;
    }
    switch (unit_kind(w->type)) {
    case WITH_MIN:
        MANY(WITH_MIN);
        break;
    case HALVED:
        MANY(HALVED);
        break;
    case TWO_MINS:
        MANY(TWO_MINS);
        break;
    case FOLDED:
        MANY(FOLDED);
        break;
    default:
        MANY(PLAIN);
    }
#undef FEW
#undef MANY
}

/* --- the products ------------------------------------------------------------------------------------------------- */

/* Whether m rows stream the weights once per eight rows instead of unpacking them for all: from the second eight on,
 * the weights of an item are in cache, and on some processors tiles are no faster per row. Two cores of a Zen 4,
 * AVX-512, 9, 16, 24 and 48 rows of Q4_0, ms a pass, with tiles 18.4, 30.0, 37.6 and 70.5, by eights 14.1, 22.4, 34.6
 * and 67.3; of Q8_0 24.9, 30.4, 41.3 and 75.7, and 20.5, 26.0, 35.8 and 69.6. On an Emerald Rapids tiles take 30.6,
 * 36.3, 49.7 and 91.7, eights 35.3, 40.1, 62.2 and 118. On a Zen 5, 9, 12, 16 and 24 rows, billions of multiply-adds a
 * second, with tiles and by eights: Q4_K 236, 288, 314, 397 and 309, 345, 359, 366; Q4_0 276, 334, 325, 430 and 297,
 * 278, 375, 362; Q6_K 216, 210, 256, 297 and 242, 247, 269, 286; Q8_0 233, 305, 322, 401 and 199, 280, 282, 329. */
INLINE bool by_eights(const uint32_t type, int64_t m)
{
    enum { MOST = 48, MOST_OF_ZEN_5 = 16 };
    return pp_stream_way == PP_STREAM_FAR    ? m <= MOST
           : pp_stream_way == PP_STREAM_SOON ? m <= MOST_OF_ZEN_5 && type != PP_TYPE_Q8_0
                                             : false;
}

INLINE void matmul(const uint32_t type, const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x,
                   int64_t m, float *y, int64_t y_stride, void *scratch)
{
    const bool near = x->way == PP_WAY_NEAR || (w->alone && pp_stream_way == PP_STREAM_PAGES);
    if (m > STREAM_ACTS && !by_eights(type, m)) {
        tiles(type, w, row0, row1, x, m, y, y_stride, scratch);
        return;
    }
    for (int64_t i = 0; i < m; i += STREAM_ACTS, y += STREAM_ACTS * y_stride) {
        const struct pp_acts some = pp_acts_from(x, i);
        const int64_t n = m - i < STREAM_ACTS ? m - i : STREAM_ACTS;
        stream(type, w, row0, row1, &some, n, y, y_stride, scratch, m <= STREAM_ACTS && near && goes_near(type));
    }
}

static void matmul_q8_0(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                        float *y, int64_t y_stride, void *scratch)
{
    matmul(PP_TYPE_Q8_0, w, row0, row1, x, m, y, y_stride, scratch);
}

static void matmul_q4_0(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                        float *y, int64_t y_stride, void *scratch)
{
    matmul(PP_TYPE_Q4_0, w, row0, row1, x, m, y, y_stride, scratch);
}

static void matmul_q4_k(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                        float *y, int64_t y_stride, void *scratch)
{
    matmul(PP_TYPE_Q4_K, w, row0, row1, x, m, y, y_stride, scratch);
}

static void matmul_q6_k(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                        float *y, int64_t y_stride, void *scratch)
{
    matmul(PP_TYPE_Q6_K, w, row0, row1, x, m, y, y_stride, scratch);
}
