/* matmul_avx2.c - matrix products for AVX2 with FMA and F16C. Each 32-bit lane of a vector belongs to a weight row, so
 * a vector has 8 of a group's 16 rows. vpmaddubsw adds two neighbouring products in 16 bits; a comment at each kernel
 * says how many more can be added there without overflow. */
#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#include "engine/cpu/act_tile.h"
#include "engine/cpu/matmul_sets.h"
#include "engine/cpu/pack.h"
#include "engine/cpu/stream_ahead.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* Up to MAX_ACTS, FEW_Q8_0, FEW_Q6_K or FLOAT_FEW activation rows are multiplied while the weights stream from memory;
 * with more rows it pays to unpack these into tiles first. */
enum { LANES = 8, MAX_ACTS = 8, FEW_Q8_0 = 6, FEW_Q6_K = 4, FLOAT_FEW = 5 };
/* Up to BESIDE_ACTS activation rows can be multiplied by BESIDE groups of weight rows at a time (stream_ahead.h). */
enum { BESIDE = 4, BESIDE_ACTS = 2 };

#include "engine/cpu/matmul_avx2_tiles.h"

/* --- activations -------------------------------------------------------------------------------------------------- */

INLINE int32_t max_of_lanes(__m256i v)
{
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
    return _mm_cvtsi128_si32(m);
}

INLINE int32_t sum_of_lanes(__m256i v)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return _mm_cvtsi128_si32(s);
}

INLINE uint32_t max_magnitude_bits(const float *x)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i max = _mm256_setzero_si256();
    UNROLL for (int k = 0; k < 4; k++)
        max = _mm256_max_epu32(max, _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + LANES * k)), magnitude));
    return (uint32_t)max_of_lanes(max);
}

INLINE int32_t round_block(const float *x, float factor, int8_t *q)
{
    __m256i whole[4], total = _mm256_setzero_si256();
    UNROLL for (int k = 0; k < 4; k++)
    {
        whole[k] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + LANES * k), _mm256_set1_ps(factor)));
        total = _mm256_add_epi32(total, whole[k]);
    }
    __m256i words0 = _mm256_packs_epi32(whole[0], whole[1]), words1 = _mm256_packs_epi32(whole[2], whole[3]);
    __m256i bytes = _mm256_packs_epi16(words0, words1); /* fours in the order 0 2 4 6 1 3 5 7 */
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)q, bytes);
    return sum_of_lanes(total);
}

#include "engine/cpu/quantize_body.h"

/* --- tiles of quantised weights ----------------------------------------------------------------------------------- */

/* Which weights are prefetched: those further on (stream_ahead.h), or, in a matrix that is short and alone, the next
 * few lines. An adapter's A of 16 rows and 2,048 columns in Q8_0, in no cache, takes one thread of a Zen 3 2.6 us
 * without prefetching, 2.4 when prefetching 1 or 2 KiB ahead, and 2.7 or more with 4 KiB. */
enum prefetch { PREFETCH_NOTHING, PREFETCH_STREAM, PREFETCH_NEAR };

/* A tile function multiplies H halves of a group (8 rows each), the first being `half`, by the M activation rows of a
 * tile. It does so for tile_step() blocks, from b on, and adds the products to acc. H and M are constants after
 * inlining. */

INLINE __m256 signed_bytes(const int8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

/* Prefetches the weights that come after those of block b, in a group that begins with 32 bytes of scales for each
 * block and then has `weights` bytes for each. */
INLINE void prefetch_ahead(const uint8_t *group, size_t weights, int64_t n_cols, int64_t b, enum pp_stream_way how)
{
    enum { SCALES = 32 };
    stream_ahead_apart(group, SCALES, weights, (size_t)n_cols / 32, (size_t)b, how);
}

/* vpmaddubsw multiplies |w| <= 128 by the activations with the sign of w. The sum of two products, 2 * 128 * 127, just
 * fits 16 bits, so it is widened at once. */
INLINE void tile_q8_0(const struct act_tile *x, int64_t b, const uint8_t *group, int64_t n_cols, int half,
                      const enum prefetch prefetch, __m256 *acc, const int H, const int M)
{
    const uint8_t *scales = group + 32 * (x->block0 + b);
    const uint8_t *w = group + pp_pack_scale_bytes(n_cols) + 8 * PP_SLICE * (x->block0 + b);
    const int8_t *q = x->q + 32 * M * b;
    __m256i isum[2 * MAX_ACTS];
    if (prefetch == PREFETCH_STREAM)
        prefetch_ahead(group, 8 * PP_SLICE, n_cols, x->block0 + b, x->how);
    else if (prefetch == PREFETCH_NEAR)
        UNROLL for (size_t v = 0; v < 8; v++)
            fetch_line(w, PP_NEAR_AHEAD + PP_SLICE * v);
    UNROLL for (int k = 0; k < H * M; k++)
        isum[k] = _mm256_setzero_si256();
    UNROLL for (int v = 0; v < 8; v++)
    {
        UNROLL for (int h = 0; h < H; h++)
        {
            __m256i signs = _mm256_xor_si256(load_i(w + PP_SLICE * v + 32 * (half + h)), _mm256_set1_epi8(-128));
            __m256i size = _mm256_abs_epi8(signs);
            UNROLL for (int i = 0; i < M; i++)
            {
                __m256i xi = _mm256_sign_epi8(broadcast4(q + 32 * i + 4 * v), signs);
                isum[h * M + i] = now(_mm256_add_epi32(isum[h * M + i], widen(_mm256_maddubs_epi16(size, xi))));
            }
        }
    }
    UNROLL for (int h = 0; h < H; h++)
    {
        __m256 d = halves(scales + 16 * (half + h));
        UNROLL for (int i = 0; i < M; i++)
            acc[h * M + i] = scaled(acc[h * M + i], d, x->d[b * M + i], isum[h * M + i]);
    }
}

/* Adds the products of a slice's eight columns, four in low and four in high nibbles, with M activation rows to
 * `words`, for T halves from w on. */
INLINE void add_q4_0(const uint8_t *w, const int8_t *q, __m256i *words, bool first, const int T, const int M)
{
    const __m256i low = _mm256_set1_epi8(15);
    __m256i w0[2], w1[2];
    UNROLL for (int h = 0; h < T; h++)
    {
        __m256i slice = load_i(w + 32 * h);
        w0[h] = now(_mm256_and_si256(slice, low));
        w1[h] = now(_mm256_and_si256(_mm256_srli_epi16(slice, 4), low));
    }
    UNROLL for (int i = 0; i < M; i++)
    {
        __m256i x0 = broadcast4(q + 32 * i), x1 = broadcast4(q + 32 * i + 16);
        UNROLL for (int h = 0; h < T; h++)
        {
            __m256i two = _mm256_add_epi16(_mm256_maddubs_epi16(w0[h], x0), _mm256_maddubs_epi16(w1[h], x1));
            words[h * M + i] = now(first ? two : _mm256_add_epi16(words[h * M + i], two));
        }
    }
}

/* 8 sums of two products, at most 2 * 15 * 127 each, fit 16 bits: a whole block is summed before it is widened. */
INLINE void tile_q4_0(const struct act_tile *x, int64_t b, const uint8_t *group, int64_t n_cols, int half,
                      const enum prefetch prefetch, __m256 *acc, const int H, const int M)
{
    const uint8_t *scales = group + 32 * (x->block0 + b);
    const uint8_t *w = group + pp_pack_scale_bytes(n_cols) + 4 * PP_SLICE * (x->block0 + b);
    const int8_t *q = x->q + 32 * M * b;
    __m256i words[2 * MAX_ACTS];
    if (prefetch)
        prefetch_ahead(group, 4 * PP_SLICE, n_cols, x->block0 + b, x->how);
    UNROLL for (int v = 0; v < 4; v++)
    {
        /* With four rows, the sums of both halves fit the registers only if an activation is loaded once for both. */
        const int T = M < 4 ? 1 : H;
        UNROLL for (int h = 0; h < H; h += T)
            add_q4_0(w + PP_SLICE * v + 32 * (half + h), q + 4 * v, words + h * M, v == 0, T, M);
    }
    UNROLL for (int h = 0; h < H; h++)
    {
        __m256 d = halves(scales + 16 * (half + h));
        UNROLL for (int i = 0; i < M; i++)
        {
            __m256i isum = _mm256_add_epi32(widen(words[h * M + i]), _mm256_set1_epi32(x->bias[b * M + i]));
            acc[h * M + i] = scaled(acc[h * M + i], d, x->d[b * M + i], isum);
        }
    }
}

/* Like Q4_0, but the low nibbles of a slice belong to one block of a pair, the high nibbles to the `second`. b: the
 * block's number within the tile. */
INLINE void block_q4_k(const struct act_tile *x, int64_t b, const struct pp_q4_k_pack *p, const bool second, int half,
                       __m256 *acc, const int H, const int M)
{
    const __m256i low = _mm256_set1_epi8(15);
    const int8_t *q = x->q + 32 * M * b;
    int sub = (int)(b % 8);
    __m256i words[2 * MAX_ACTS];
    UNROLL for (int v = 0; v < 8; v++)
    {
        UNROLL for (int h = 0; h < H; h++)
        {
            __m256i slice = load_i(p->q[sub / 2][v] + 32 * (half + h));
            __m256i wv = _mm256_and_si256(second ? _mm256_srli_epi16(slice, 4) : slice, low);
            UNROLL for (int i = 0; i < M; i++)
            {
                __m256i two = _mm256_maddubs_epi16(wv, broadcast4(q + 32 * i + 4 * v));
                words[h * M + i] = now(v ? _mm256_add_epi16(words[h * M + i], two) : two);
            }
        }
    }
    UNROLL for (int h = 0; h < H; h++)
    {
        int r = LANES * (half + h);
        __m256 scale = _mm256_mul_ps(halves(p->d + r), unsigned_bytes(p->sc[sub] + r));
        __m256 min = _mm256_mul_ps(halves(p->dmin + r), unsigned_bytes(p->m[sub] + r));
        UNROLL for (int i = 0; i < M; i++)
        {
            float dx = x->d[b * M + i];
            __m256 a = scaled(acc[h * M + i], scale, dx, widen(words[h * M + i]));
            acc[h * M + i] = _mm256_fnmadd_ps(min, _mm256_set1_ps(x->dsum[b * M + i]), a);
        }
    }
}

INLINE void tile_q4_k(const struct act_tile *x, int64_t b, const uint8_t *group, int64_t n_cols, int half,
                      const enum prefetch prefetch, __m256 *acc, const int H, const int M)
{
    (void)n_cols;
    enum { PACE = sizeof(struct pp_q4_k_pack) / 4 };
    const struct pp_q4_k_pack *p = (const struct pp_q4_k_pack *)group + (x->block0 + b) / 8;
    if (prefetch)
        stream_ahead((const char *)p + PACE * (b / 2 % 4), PACE, x->how);
    block_q4_k(x, b, p, false, half, acc, H, M);
    block_q4_k(x, b + 1, p, true, half, acc, H, M);
}

/* Adds the products of the first or second 16 columns of a block of Q6_K, for 8 rows from r on, to isum. Two sums of
 * two products, 2 * 63 * 127 each, fit 16 bits. */
INLINE void sums_q6_k(const struct pp_q6_k_pack *p, int block, int r, const int8_t *q, __m256i *isum, const bool second,
                      const int M)
{
    const __m256i low = _mm256_set1_epi8(15), bits45 = _mm256_set1_epi8(0x30);
    const __m256i bits25 = _mm256_set1_epi8(0x3c), bits01 = _mm256_set1_epi8(3);
    UNROLL for (int v = 0; v < 4; v += 2)
    {
        __m256i w0 = load_i(p->q[block].low[v] + 4 * r), w1 = load_i(p->q[block].low[v + 1] + 4 * r);
        __m256i high = load_i(p->q[block].high[v / 2] + 4 * r), high2 = _mm256_srli_epi16(high, 2);
        if (second) {
            w0 = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(w0, 2), bits25), _mm256_and_si256(high2, bits01));
            w1 = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(w1, 2), bits25), _mm256_and_si256(high, bits01));
        } else {
            w0 = _mm256_or_si256(_mm256_and_si256(w0, low), _mm256_and_si256(high, bits45));
            w1 = _mm256_or_si256(_mm256_and_si256(w1, low), _mm256_and_si256(high2, bits45));
        }
        UNROLL for (int i = 0; i < M; i++)
        {
            const int8_t *qi = q + 32 * i + 4 * v;
            __m256i two = _mm256_add_epi16(_mm256_maddubs_epi16(w0, broadcast4(qi)),
                                           _mm256_maddubs_epi16(w1, broadcast4(qi + 4)));
            isum[i] = now(_mm256_add_epi32(isum[i], widen(two)));
        }
    }
}

/* The integer sums of block b of the tile, with their integer scales, for 8 rows from r on. They have at most 24 bits,
 * so floats hold them exactly. The bias of the second 16 columns has a factor of 4 that only other kernels need. */
INLINE void block_q6_k(const struct act_tile *x, int64_t b, const struct pp_q6_k_pack *p, int r, __m256 *whole,
                       const int M)
{
    const int8_t *q = x->q + 32 * M * b;
    const int in = (int)(b % 8);
    __m256i isum[MAX_ACTS];
    UNROLL for (int i = 0; i < M; i++)
        isum[i] = _mm256_set1_epi32(x->bias[2 * (b * M + i)]);
    sums_q6_k(p, in, r, q, isum, false, M);
    __m256 sc0 = signed_bytes(p->sc[2 * in] + r);
    UNROLL for (int i = 0; i < M; i++)
    {
        whole[i] = _mm256_mul_ps(sc0, _mm256_cvtepi32_ps(isum[i]));
        isum[i] = _mm256_srai_epi32(_mm256_set1_epi32(x->bias[2 * (b * M + i) + 1]), 2);
    }
    sums_q6_k(p, in, r, q + 16, isum, true, M);
    __m256 sc1 = signed_bytes(p->sc[2 * in + 1] + r);
    UNROLL for (int i = 0; i < M; i++)
        whole[i] = _mm256_fmadd_ps(sc1, _mm256_cvtepi32_ps(isum[i]), whole[i]);
}

/* Blocks b and b + 1 are twins: their sums are added before they are scaled. */
INLINE void tile_q6_k(const struct act_tile *x, int64_t b, const uint8_t *group, int64_t n_cols, int half,
                      const enum prefetch prefetch, __m256 *acc, const int H, const int M)
{
    (void)n_cols;
    enum { PACE = sizeof(struct pp_q6_k_pack) / 4 };
    const struct pp_q6_k_pack *p = (const struct pp_q6_k_pack *)group + (x->block0 + b) / 8;
    if (prefetch)
        stream_ahead((const char *)p + PACE * (b / 2 % 4), PACE, x->how);
    UNROLL for (int h = 0; h < H; h++)
    {
        __m256 first[MAX_ACTS], second[MAX_ACTS];
        int r = LANES * (half + h);
        block_q6_k(x, b, p, r, first, M);
        block_q6_k(x, b + 1, p, r, second, M);
        __m256 d = halves(p->d + r);
        UNROLL for (int i = 0; i < M; i++)
            acc[h * M + i] = _mm256_fmadd_ps(_mm256_mul_ps(d, _mm256_set1_ps(x->d[b * M + i])),
                                             _mm256_add_ps(first[i], second[i]), acc[h * M + i]);
    }
}

/* --- loops over tiles --------------------------------------------------------------------------------------------- */

typedef void tile_fn(const struct act_tile *x, int64_t b, const uint8_t *group, int64_t n_cols, int half,
                     const enum prefetch prefetch, __m256 *acc, const int H, const int M);

/* How many blocks a type's tile function takes at a time: two of Q4_K share their bytes, two of Q6_K are twins. */
INLINE int tile_step(uint32_t type)
{
    return type == PP_TYPE_Q4_K || type == PP_TYPE_Q6_K ? 2 : 1;
}

/* A mask of the first `live` lanes, those whose rows exist. */
INLINE __m256i lane_mask(int64_t live)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(live < LANES ? (int)live : LANES), lane);
}

/* Uses a plain store if it can: its data can be forwarded to a load that follows soon, such as that of an adapter's B,
 * while data of a masked store have to reach the cache first. */
INLINE void store_rows(float *out, bool whole, __m256i live, __m256 v)
{
    if (whole)
        _mm256_storeu_ps(out, v);
    else
        _mm256_maskstore_ps(out, live, v);
}

/* Types for which reading several groups in parallel can be faster. The others need more computing, and do not read a
 * group strictly in the order of its addresses. */
INLINE bool has_parallel_groups(const uint32_t type)
{
    return type == PP_TYPE_Q8_0 || type == PP_TYPE_Q4_0;
}

/* Multiplies H halves, from `half` on, of each of the G groups from `row` on by a tile. Only rows before row1 are
 * written. */
INLINE void run_tile(tile_fn *tile, const struct pp_matrix *w, int64_t row, int64_t row1, int half,
                     const struct act_tile *x, float *y, int64_t y_stride, const int step, const int H, const int M,
                     const int G)
{
    __m256 acc[BESIDE][2 * MAX_ACTS];
    __m256i live[2];
    float *out = y + row + LANES * half;
    const size_t group_bytes = pp_pack_group_bytes(w->type, w->n_cols);
    const uint8_t *group = pp_pack_group(w, row);
    UNROLL for (int h = 0; h < H; h++)
    {
        live[h] = lane_mask(row1 - row - LANES * (half + h));
        UNROLL for (int g = 0; g < G; g++)
            UNROLL for (int i = 0; i < M; i++)
                acc[g][h * M + i] = x->block0 ? _mm256_maskload_ps(out + i * y_stride + PP_GROUP_ROWS * g + LANES * h,
                                                                   live[h])
                                              : _mm256_setzero_ps();
    }
    const bool whole = row1 - row >= PP_GROUP_ROWS;
    const enum prefetch prefetch = G > 1 || half ? PREFETCH_NOTHING : w->alone ? PREFETCH_NEAR : PREFETCH_STREAM;
    for (int64_t b = 0; b < x->n_blocks; b += step)
        UNROLL for (int g = 0; g < G; g++)
            tile(x, b, group + (size_t)g * group_bytes, w->n_cols, half, prefetch, acc[g], H, M);
    UNROLL for (int g = 0; g < G; g++)
        UNROLL for (int h = 0; h < H; h++)
            UNROLL for (int i = 0; i < M; i++)
                store_rows(out + i * y_stride + PP_GROUP_ROWS * g + LANES * h, whole, live[h], acc[g][h * M + i]);
}

/* Multiplies groups from `row` on by a tile of activations, H halves of G groups at a time, while there are G groups.
 * Returns the first row that is left. */
INLINE int64_t run_groups(tile_fn *tile, const struct pp_matrix *w, int64_t row, int64_t row1, const struct act_tile *x,
                          float *y, int64_t y_stride, const int step, const int H, const int M, const int G)
{
    for (; row1 - row >= (G == 1 ? 1 : G * PP_GROUP_ROWS); row += G * PP_GROUP_ROWS) {
        run_tile(tile, w, row, row1, 0, x, y, y_stride, step, H, M, G);
        if (H == 1 && row + LANES < row1)
            run_tile(tile, w, row, row1, 1, x, y, y_stride, step, H, M, G);
    }
    return row;
}

/* run_groups() of a type for a number of activation rows. */
typedef int64_t rows_fn(const struct pp_matrix *w, int64_t row, int64_t row1, const struct act_tile *x, float *y,
                        int64_t y_stride);

/* Functions of their own: the compiler takes longer for one with all of these loops. Each type has one for every number
 * of rows for which its weights stream. Up to `both` rows are multiplied by both halves of a group at once: the integer
 * sums of a block must fit the registers, the float sums `acc` may be in memory. */
#define RUN(name, type, both, M)                                                                                       \
    static __attribute__((noinline)) int64_t run_##name##_##M(const struct pp_matrix *w, int64_t row, int64_t row1,    \
                                                              const struct act_tile *x, float *y, int64_t y_stride)    \
    {                                                                                                                  \
        return run_groups(tile_##name, w, row, row1, x, y, y_stride, tile_step(type), M <= both ? 2 : 1, M, 1);        \
    }
#define RUN_4(name, type, both) \
    RUN(name, type, both, 1) RUN(name, type, both, 2) RUN(name, type, both, 3) RUN(name, type, both, 4)
#define RUN_6(name, type, both) RUN_4(name, type, both) RUN(name, type, both, 5) RUN(name, type, both, 6)
#define RUN_8(name, type, both) RUN_6(name, type, both) RUN(name, type, both, 7) RUN(name, type, both, 8)
#define RUNS_4(name) run_##name##_1, run_##name##_2, run_##name##_3, run_##name##_4
#define RUNS_6(name) RUNS_4(name), run_##name##_5, run_##name##_6
#define RUNS_8(name) RUNS_6(name), run_##name##_7, run_##name##_8
RUN_6(q8_0, PP_TYPE_Q8_0, 2)
RUN_8(q4_0, PP_TYPE_Q4_0, 4)
RUN_8(q4_k, PP_TYPE_Q4_K, 5)
RUN_4(q6_k, PP_TYPE_Q6_K, 1)
static rows_fn *const runs_q8_0[FEW_Q8_0] = {RUNS_6(q8_0)}, *const runs_q4_0[MAX_ACTS] = {RUNS_8(q4_0)},
               *const runs_q4_k[MAX_ACTS] = {RUNS_8(q4_k)}, *const runs_q6_k[FEW_Q6_K] = {RUNS_4(q6_k)};

/* Multiplies by few activation rows, for each number of which there is one of `runs`. */
INLINE void matmul(tile_fn *tile, const uint32_t type, const struct pp_matrix *w, int64_t row0, int64_t row1,
                   const struct pp_acts *x, int64_t m, float *y, int64_t y_stride, void *scratch, rows_fn *const *runs)
{
    const int step = tile_step(type);
    const bool beside = x->way == PP_WAY_BESIDE && has_parallel_groups(type);
    for (int64_t b = 0; b < w->n_cols / 32;) {
        const struct act_tile t = act_tile_make(type, x, m, b, w->n_cols / 32 - b, scratch);
        int64_t row = row0;
        b += t.n_blocks;
        if (beside && m == 1)
            row = run_groups(tile, w, row, row1, &t, y, y_stride, step, 2, 1, BESIDE);
        if (beside && m == BESIDE_ACTS)
            row = run_groups(tile, w, row, row1, &t, y, y_stride, step, 2, BESIDE_ACTS, BESIDE);
        runs[m - 1](w, row, row1, &t, y, y_stride);
    }
}

/* More rows meet tiles of opened weights. */
#define TILES(name, form, few)                                                                                         \
    static __attribute__((noinline)) void tiles_##name(const struct pp_matrix *w, int64_t row0, int64_t row1,          \
                                                       const struct pp_acts *x, int64_t m, float *y,                   \
                                                       int64_t y_stride, void *scratch)                                \
    {                                                                                                                  \
        matmul_tiles(w, row0, row1, x, m, y, y_stride, scratch, unpack_##name, form, few);                             \
    }
TILES(q8_0, WORDS, FEW_Q8_0)
TILES(q4_0, NIBBLES_BIASED, MAX_ACTS)
TILES(q4_k, NIBBLES_MIN, MAX_ACTS)
TILES(q6_k, BYTE_TWINS, FEW_Q6_K)
#undef TILES

static void matmul_q8_0(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                        float *y, int64_t y_stride, void *scratch)
{
    if (m <= FEW_Q8_0)
        matmul(tile_q8_0, PP_TYPE_Q8_0, w, row0, row1, x, m, y, y_stride, scratch, runs_q8_0);
    else
        tiles_q8_0(w, row0, row1, x, m, y, y_stride, scratch);
}

static void matmul_q4_0(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                        float *y, int64_t y_stride, void *scratch)
{
    if (m <= MAX_ACTS)
        matmul(tile_q4_0, PP_TYPE_Q4_0, w, row0, row1, x, m, y, y_stride, scratch, runs_q4_0);
    else
        tiles_q4_0(w, row0, row1, x, m, y, y_stride, scratch);
}

static void matmul_q4_k(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                        float *y, int64_t y_stride, void *scratch)
{
    if (m <= MAX_ACTS)
        matmul(tile_q4_k, PP_TYPE_Q4_K, w, row0, row1, x, m, y, y_stride, scratch, runs_q4_k);
    else
        tiles_q4_k(w, row0, row1, x, m, y, y_stride, scratch);
}

static void matmul_q6_k(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                        float *y, int64_t y_stride, void *scratch)
{
    if (m <= FEW_Q6_K)
        matmul(tile_q6_k, PP_TYPE_Q6_K, w, row0, row1, x, m, y, y_stride, scratch, runs_q6_k);
    else
        tiles_q6_k(w, row0, row1, x, m, y, y_stride, scratch);
}

/* --- float weights ------------------------------------------------------------------------------------------------ */

typedef __m256 fvec;

INLINE fvec f_load(const float *p) { return _mm256_load_ps(p); }
INLINE void f_store(float *p, fvec a) { _mm256_store_ps(p, a); }
INLINE fvec f_zero(void) { return _mm256_setzero_ps(); }
INLINE fvec f_set1(float x) { return _mm256_set1_ps(x); }
INLINE fvec f_add(fvec a, fvec b) { return _mm256_add_ps(a, b); }
INLINE fvec f_fma(fvec a, fvec b, fvec c) { return _mm256_fmadd_ps(a, b, c); }
/* Forces a vector into a register: otherwise the compiler may make it a memory operand, loaded anew for each
 * product. */
INLINE fvec f_held(fvec a)
{
    __asm__("" : "+x"(a));
    return a;
}

/* The 16 partial sums of matmul.h are two vectors, for columns k to k + 7 and k + 8 to k + 15 of each step of 16. */

INLINE __m256 load_floats(const uint8_t *row, int64_t k, const uint32_t type)
{
    if (type == PP_TYPE_F32)
        return _mm256_loadu_ps((const float *)(const void *)(row + 4 * k));
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)(row + 2 * k));
    if (type == PP_TYPE_F16)
        return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

INLINE float sum_lanes(__m256 low, __m256 high)
{
    __m256 p8 = _mm256_add_ps(low, high);
    __m128 p4 = _mm_add_ps(_mm256_castps256_ps128(p8), _mm256_extractf128_ps(p8, 1));
    __m128 p2 = _mm_add_ps(p4, _mm_movehl_ps(p4, p4));
    return _mm_cvtss_f32(_mm_add_ss(p2, _mm_movehdup_ps(p2)));
}

/* acc += 16 columns of R weight rows times M activation rows. how: how weights further on are prefetched. */
INLINE void float_step(const uint8_t *w, size_t row_bytes, const float *x, int64_t x_stride, int64_t k,
                       __m256 (*acc)[2], const uint32_t type, enum pp_stream_way how, const int R, const int M)
{
    UNROLL for (int half = 0; half < 2; half++)
    {
        __m256 wk[4];
        UNROLL for (int r = 0; r < R; r++)
        {
            const uint8_t *row = w + (size_t)r * row_bytes;
            wk[r] = load_floats(row, k + LANES * half, type);
            if (how != PP_STREAM_NOT && half == 0 && (type == PP_TYPE_F32 || k % 32 == 0))
                stream_line(row, (size_t)(type == PP_TYPE_F32 ? 4 * k : 2 * k), row_bytes, (size_t)R, how);
        }
        UNROLL for (int i = 0; i < M; i++)
        {
            __m256 xk = _mm256_loadu_ps(x + i * x_stride + k + LANES * half);
            UNROLL for (int r = 0; r < R; r++)
                acc[r * M + i][half] = _mm256_fmadd_ps(wk[r], xk, acc[r * M + i][half]);
        }
    }
}

/* R weight rows times M activation rows; R and M are at most 4, R * M at most 8. */
INLINE void float_tile(const uint8_t *w, size_t row_bytes, const float *x, int64_t x_stride, int64_t n, float *y,
                       int64_t y_stride, const uint32_t type, enum pp_stream_way how, const int R, const int M)
{
    const size_t size = type == PP_TYPE_F32 ? 4 : 2;
    __m256 acc[8][2];
    UNROLL for (int k = 0; k < R * M; k++)
        acc[k][0] = acc[k][1] = _mm256_setzero_ps();
    int64_t k = 0;
    for (; k + 16 <= n; k += 16)
        float_step(w, row_bytes, x, x_stride, k, acc, type, how, R, M);
    if (k < n) { /* the last columns, padded with zeros */
        uint8_t w_rest[4][16 * 4] = {{0}};
        float x_rest[4][16] = {{0}};
        for (int r = 0; r < R; r++)
            memcpy(w_rest[r], w + (size_t)r * row_bytes + (size_t)k * size, (size_t)(n - k) * size);
        for (int i = 0; i < M; i++)
            memcpy(x_rest[i], x + i * x_stride + k, (size_t)(n - k) * sizeof *x);
        float_step(w_rest[0], sizeof w_rest[0], x_rest[0], 16, 0, acc, type, PP_STREAM_NOT, R, M);
    }
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int i = 0; i < M; i++)
            y[i * y_stride + r] = sum_lanes(acc[r * M + i][0], acc[r * M + i][1]);
}

#define FLOAT_M 3
#define FLOAT_BESIDE 1
#define FLOAT_R_SOON 2
#define FLOAT_R(m) ((m) == 1 ? 4 : 2)
#include "engine/cpu/float_rows.h"
#include "engine/cpu/matmul_avx2_floats.h"

enum { LANE_VECS = 2, LANE_ACTS = PP_LANE_ACTS, PIECE_STEPS = 256 }; /* 16 KiB of floats */

#define load_lanes load_floats
#include "engine/cpu/float_lanes.h"
_Static_assert((int)LANE_ROWS == (int)PP_AVX2_LANE_ROWS, "as matmul_sets.h has it");

static void matmul_floats(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                          float *y, int64_t y_stride, void *scratch)
{
    if (matmul_by_lane(w, row0, row1, x, m, y, y_stride, scratch))
        return;
    if (m > FLOAT_FEW)
        matmul_float_tiles(w, row0, row1, x, m, y, y_stride, scratch);
    else if (w->type == PP_TYPE_F32)
        matmul_f32(w, row0, row1, x, m, y, y_stride, scratch);
    else if (w->type == PP_TYPE_F16)
        matmul_f16(w, row0, row1, x, m, y, y_stride, scratch);
    else
        matmul_bf16(w, row0, row1, x, m, y, y_stride, scratch);
}

static float dot(const float *a, const float *b, int64_t n)
{
    float result;
    float_tile((const uint8_t *)a, 0, b, 0, n, &result, 0, PP_TYPE_F32, PP_STREAM_NOT, 1, 1);
    return result;
}

const struct pp_matmul_kernels pp_matmul_avx2 = {
    .tried = {[PP_STREAM_FAR] = {PP_WAY_LESS_FAR, PP_WAY_SOON, PP_WAY_BESIDE},
              [PP_STREAM_PAGES] = {PP_WAY_BESIDE},
              [PP_STREAM_SOON] = {PP_WAY_BESIDE}},
    .quantize = quantize,
    .by_lane = {PP_AVX2_LANES_FROM, LANE_ACTS, LANE_ROWS, arrange_by_lane},
    .dot = dot,
    .by_type =
        {
            [PP_TYPE_F32] = matmul_floats,
            [PP_TYPE_F16] = matmul_floats,
            [PP_TYPE_BF16] = matmul_floats,
            [PP_TYPE_Q8_0] = matmul_q8_0,
            [PP_TYPE_Q4_0] = matmul_q4_0,
            [PP_TYPE_Q4_K] = matmul_q4_k,
            [PP_TYPE_Q6_K] = matmul_q6_k,
            PP_BLOCKS_BY(pp_matmul_blocks_avx2),
        },
};

#else
typedef int pp_matmul_avx2_is_for_x86_64;
#endif
