/* matmul_arm_body.h - matrix products for AArch64, written once for three instruction sets. Included by matmul_neon.c,
 * matmul_dotprod.c and matmul_i8mm.c, which define KERNEL_SET, the name of the table. The compiler options of each
 * decide which instructions multiply bytes. Private to engine/cpu.
 *
 * A vector of 16 bytes is 4 weight rows (a "quad" of the group's 16) by 4 columns, as in a slice of the packed form. A
 * weight type consists of one routine, unpack_TYPE(), which makes such vectors and scales of a block of 32 columns, and
 * one of the four kinds of arithmetic below. The rest is shared:
 *
 *   up to 4 activation rows   every block is unpacked into registers where it is used;
 *   more                      blocks are unpacked once into the thread's scratch, a strip of rows and columns at a
 *                             time, and multiplied by 8 activation rows at a time. */
#include <arm_neon.h>
#include <string.h>

#include "engine/cpu/matmul_sets.h"
#include "engine/cpu/pack.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* --- activations -------------------------------------------------------------------------------------------------- */

INLINE uint32_t max_magnitude_bits(const float *x)
{
    uint32x4_t max = vdupq_n_u32(0);
    UNROLL for (int k = 0; k < 8; k++)
        max = vmaxq_u32(max, vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x + 4 * k))));
    return vmaxvq_u32(max);
}

INLINE int32_t round_block(const float *x, float factor, int8_t *q)
{
    int16x4_t words[8];
    int32x4_t total = vdupq_n_s32(0);
    UNROLL for (int k = 0; k < 8; k++)
    {
        int32x4_t whole = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 4 * k), factor)); /* to nearest even */
        total = vaddq_s32(total, whole);
        words[k] = vmovn_s32(whole);
    }
    UNROLL for (int k = 0; k < 8; k += 2)
        vst1_s8(q + 4 * k, vmovn_s16(vcombine_s16(words[k], words[k + 1])));
    return vaddvq_s32(total);
}

#include "engine/cpu/quantize_body.h"

/* --- unpacked blocks ---------------------------------------------------------------------------------------------- */

/* What a weight type does with the integer sum of a block (formulas in matmul.h). */
enum kind {
    BYTES,       /* scale * isum; bytes are -128..127 */
    NIBBLES,     /* scale * isum; bytes are 8 too large, 0..15 */
    NIBBLES_MIN, /* scale * isum - min * sum; bytes are 0..15 */
    SUB_BLOCKS,  /* scale * (sub[0] * isum of the first 16 columns + sub[1] * isum of the others); -32..31; twins */
};

/* A block of 32 columns of 4 rows. min and sub are set only for the kinds that use them. */
struct unpacked {
    int8x16_t w[8]; /* w[v]: byte 4 r + i belongs to row r, column 4 v + i */
    float32x4_t scale, min;
    int32x4_t sub[2];
};

/* Unpacks block b of the quad's rows of a group. */
typedef void unpack_block_fn(const uint8_t *group, int64_t n_cols, int64_t b, int quad, struct unpacked *o);

INLINE uint8x16_t low_nibbles(uint8x16_t v)
{
    return vandq_u8(v, vdupq_n_u8(15));
}

INLINE uint8x16_t high_nibbles(uint8x16_t v)
{
    return vshrq_n_u8(v, 4);
}

/* 4 float16 at p */
INLINE float32x4_t halves(const void *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}

INLINE int16x4_t four_bytes(const void *p, const bool negative)
{
    uint32_t four;
    memcpy(&four, p, sizeof four);
    uint8x8_t v = vreinterpret_u8_u32(vdup_n_u32(four));
    return negative ? vget_low_s16(vmovl_s8(vreinterpret_s8_u8(v)))
                    : vreinterpret_s16_u16(vget_low_u16(vmovl_u8(v)));
}

INLINE float32x4_t unsigned_bytes(const uint8_t *p)
{
    return vcvtq_f32_s32(vmovl_s16(four_bytes(p, false)));
}

INLINE void unpack_q8_0(const uint8_t *group, int64_t n_cols, int64_t b, int quad, struct unpacked *o)
{
    const uint8_t *slices = group + pp_pack_scale_bytes(n_cols) + 8 * PP_SLICE * b + 16 * quad;
    UNROLL for (int v = 0; v < 8; v++)
        o->w[v] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(slices + PP_SLICE * v), vdupq_n_u8(0x80)));
    o->scale = halves(group + 32 * b + 8 * quad);
}

INLINE void unpack_q4_0(const uint8_t *group, int64_t n_cols, int64_t b, int quad, struct unpacked *o)
{
    const uint8_t *slices = group + pp_pack_scale_bytes(n_cols) + 4 * PP_SLICE * b + 16 * quad;
    UNROLL for (int v = 0; v < 4; v++)
    {
        uint8x16_t two = vld1q_u8(slices + PP_SLICE * v);
        o->w[v] = vreinterpretq_s8_u8(low_nibbles(two));
        o->w[4 + v] = vreinterpretq_s8_u8(high_nibbles(two));
    }
    o->scale = halves(group + 32 * b + 8 * quad);
}

INLINE void unpack_q4_k(const uint8_t *group, int64_t n_cols, int64_t b, int quad, struct unpacked *o)
{
    (void)n_cols;
    const struct pp_q4_k_pack *p = (const struct pp_q4_k_pack *)(const void *)group + b / 8;
    const int sub = (int)(b % 8), row = 4 * quad;
    /* A shift by a register: 0 or 4 to the right, without a branch. */
    const int8x16_t shift = vdupq_n_s8((int8_t)(sub % 2 ? -4 : 0));
    UNROLL for (int v = 0; v < 8; v++)
        o->w[v] = vreinterpretq_s8_u8(low_nibbles(vshlq_u8(vld1q_u8(p->q[sub / 2][v] + 4 * row), shift)));
    o->scale = vmulq_f32(halves(p->d + row), unsigned_bytes(p->sc[sub] + row));
    o->min = vmulq_f32(halves(p->dmin + row), unsigned_bytes(p->m[sub] + row));
}

INLINE void unpack_q6_k(const uint8_t *group, int64_t n_cols, int64_t b, int quad, struct unpacked *o)
{
    (void)n_cols;
    const struct pp_q6_k_pack *p = (const struct pp_q6_k_pack *)(const void *)group + b / 8;
    const int block = (int)(b % 8), row = 4 * quad;
    const uint8x16_t bits45 = vdupq_n_u8(0x30), bits25 = vdupq_n_u8(0x3c), bits01 = vdupq_n_u8(3);
    UNROLL for (int v = 0; v < 4; v++)
    {
        uint8x16_t low = vld1q_u8(p->q[block].low[v] + 4 * row), high = vld1q_u8(p->q[block].high[v / 2] + 4 * row);
        uint8x16_t shifted = vshrq_n_u8(high, 2);
        uint8x16_t first = vorrq_u8(low_nibbles(low), vandq_u8(v % 2 ? shifted : high, bits45));
        uint8x16_t second = vorrq_u8(vandq_u8(vshrq_n_u8(low, 2), bits25), vandq_u8(v % 2 ? high : shifted, bits01));
        o->w[v] = vsubq_s8(vreinterpretq_s8_u8(first), vdupq_n_s8(32));
        o->w[4 + v] = vsubq_s8(vreinterpretq_s8_u8(second), vdupq_n_s8(32));
    }
    o->scale = halves(p->d + row);
    o->sub[0] = vmovl_s16(four_bytes(p->sc[2 * block] + row, true));
    o->sub[1] = vmovl_s16(four_bytes(p->sc[2 * block + 1] + row, true));
}

/* --- integer sums ------------------------------------------------------------------------------------------------- */

/* smmla multiplies two weight rows of 8 columns by two activation rows of 8 columns. Therefore tiles store
 * activation rows in pairs in that order, and unpacked blocks are rearranged to it. A single activation row uses the
 * plain order. */
#if defined(__ARM_FEATURE_MATMUL_INT8)
#define IN_PAIRS(M) ((M) > 1)

/* w[2 p] becomes rows 0 and 1, w[2 p + 1] rows 2 and 3, of columns 8 p to 8 p + 7. */
INLINE void arrange(int8x16_t *w, const int M)
{
    if (!IN_PAIRS(M))
        return;
    UNROLL for (int p = 0; p < 4; p++)
    {
        int32x4_t a = vreinterpretq_s32_s8(w[2 * p]), b = vreinterpretq_s32_s8(w[2 * p + 1]);
        w[2 * p] = vreinterpretq_s8_s32(vzip1q_s32(a, b));
        w[2 * p + 1] = vreinterpretq_s8_s32(vzip2q_s32(a, b));
    }
}

/* isum[i] = bias[i] + the sum of row i of a pair of activation rows, over n_halves times 16 columns from 16 half on. q:
 * the pair's block in the tile. */
INLINE void sum_pair(const int8x16_t *w, const int8_t *q, const int32_t *bias, int32x4_t *isum, const int half,
                     const int n_halves)
{
    int32x4_t rows01 = vdupq_n_s32(0), rows23;
    if (bias)
        rows01 = vreinterpretq_s32_s64(vdupq_n_s64((int64_t)((uint64_t)(uint32_t)bias[1] << 32 | (uint32_t)bias[0])));
    rows23 = rows01;
    UNROLL for (int p = 2 * half; p < 2 * half + 2 * n_halves; p++)
    {
        int8x16_t x = vld1q_s8(q + 16 * p);
        rows01 = vmmlaq_s32(rows01, w[2 * p], x); /* row 0 times both activation rows, row 1 times both */
        rows23 = vmmlaq_s32(rows23, w[2 * p + 1], x);
    }
    isum[0] = vuzp1q_s32(rows01, rows23);
    isum[1] = vuzp2q_s32(rows01, rows23);
}
#else
#define IN_PAIRS(M) 0

INLINE void arrange(int8x16_t *w, const int M)
{
    (void)w;
    (void)M;
}

INLINE void sum_pair(const int8x16_t *w, const int8_t *q, const int32_t *bias, int32x4_t *isum, const int half,
                     const int n_halves)
{
    (void)w, (void)q, (void)bias, (void)isum, (void)half, (void)n_halves;
}
#endif

#if defined(__ARM_FEATURE_DOTPROD)
/* isum + the sum of one activation row over n_halves times 16 columns from 16 half on. */
INLINE int32x4_t sum_one(const int8x16_t *w, const int8_t *q, int32x4_t isum, const int half, const int n_halves,
                         const enum kind kind)
{
    (void)kind;
    UNROLL for (int k = half; k < half + n_halves; k++)
    {
        int8x16_t x = vld1q_s8(q + 16 * k);
        isum = vdotq_laneq_s32(isum, w[4 * k], x, 0);
        isum = vdotq_laneq_s32(isum, w[4 * k + 1], x, 1);
        isum = vdotq_laneq_s32(isum, w[4 * k + 2], x, 2);
        isum = vdotq_laneq_s32(isum, w[4 * k + 3], x, 3);
    }
    return isum;
}
#else
INLINE int8x16_t broadcast4(const int8_t *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return vreinterpretq_s8_s32(vdupq_n_s32(four));
}

/* The same without dot products. Products are first added in 16 bits, as many as fit for all values: 2 of 128 * 127, 8
 * of 15 * 127, 4 of 32 * 127 (more would fit, but 16 columns have no more per lane). */
INLINE int32x4_t sum_one(const int8x16_t *w, const int8_t *q, int32x4_t isum, const int half, const int n_halves,
                         const enum kind kind)
{
    const int n = kind == BYTES ? 2 : 4 * n_halves;
    int32x4_t rows01 = vdupq_n_s32(0), rows23 = vdupq_n_s32(0);
    UNROLL for (int k = 4 * half; k < 4 * half + 4 * n_halves; k += n)
    {
        int8x16_t x = broadcast4(q + 4 * k);
        int16x8_t low = vmull_s8(vget_low_s8(w[k]), vget_low_s8(x)), high = vmull_high_s8(w[k], x);
        UNROLL for (int v = k + 1; v < k + n; v++)
        {
            x = broadcast4(q + 4 * v);
            low = vmlal_s8(low, vget_low_s8(w[v]), vget_low_s8(x));
            high = vmlal_high_s8(high, w[v], x);
        }
        rows01 = vpadalq_s16(rows01, low);
        rows23 = vpadalq_s16(rows23, high);
    }
    return vaddq_s32(isum, vpaddq_s32(rows01, rows23));
}
#endif

/* isum[i] = bias[i], or 0, + the sum of activation row i, over n_halves times 16 columns from 16 half on. */
INLINE void sums(const int8x16_t *w, const int8_t *q, const int32_t *bias, int32x4_t *isum, const int half,
                 const int n_halves, const enum kind kind, const int M)
{
    if (IN_PAIRS(M)) {
        UNROLL for (int i = 0; i < M; i += 2)
            sum_pair(w, q + 32 * i, bias ? bias + i : NULL, isum + i, half, n_halves);
        return;
    }
    UNROLL for (int i = 0; i < M; i++)
        isum[i] = sum_one(w, q + 32 * i, vdupq_n_s32(bias ? bias[i] : 0), half, n_halves, kind);
}

/* --- tiles -------------------------------------------------------------------------------------------------------- */

/* M activation rows, block by block; entry b * M + i belongs to block block0 + b of row i. */
struct act_tile {
    const int8_t *q;     /* [n_blocks, M, 32], or in pairs [n_blocks, M / 2, 4, 2, 8] */
    const float *d;      /* [n_blocks, M] */
    const float *dsum;   /* [n_blocks, M]: d * sum; NIBBLES_MIN only */
    const int32_t *bias; /* [n_blocks, M]: -8 * sum; NIBBLES only */
    int64_t block0, n_blocks;
};

/* How many neighbouring blocks are scaled together: two if they are twins. */
INLINE int blocks_together(const enum kind kind)
{
    return kind == SUB_BLOCKS ? 2 : 1;
}

/* acc[i] += an unpacked block times block b of the tile. With twins, the sums of the first go to `twin`, and are added
 * to acc together with those of the second. */
INLINE void add_block(const struct unpacked *o, const struct act_tile *x, int64_t b, int32x4_t *twin, const bool second,
                      float32x4_t *acc, const enum kind kind, const int M)
{
    const int8_t *q = x->q + 32 * M * b;
    int32x4_t isum[8], others[8];
    if (kind == SUB_BLOCKS) {
        sums(o->w, q, NULL, isum, 0, 1, kind, M);
        sums(o->w, q, NULL, others, 1, 1, kind, M);
        UNROLL for (int i = 0; i < M; i++)
        {
            isum[i] = vmlaq_s32(vmulq_s32(isum[i], o->sub[0]), others[i], o->sub[1]);
            if (second)
                isum[i] = vaddq_s32(isum[i], twin[i]);
            else
                twin[i] = isum[i];
        }
        if (!second)
            return;
    } else {
        sums(o->w, q, kind == NIBBLES ? x->bias + b * M : NULL, isum, 0, 2, kind, M);
    }
    UNROLL for (int i = 0; i < M; i++)
    {
        acc[i] = vfmaq_f32(acc[i], vmulq_n_f32(o->scale, x->d[b * M + i]), vcvtq_f32_s32(isum[i]));
        if (kind == NIBBLES_MIN)
            acc[i] = vfmsq_f32(acc[i], o->min, vdupq_n_f32(x->dsum[b * M + i]));
    }
}

/* Loads and stores of the first `live` rows of a quad, those that exist. */
INLINE float32x4_t load_live(const float *p, int64_t live)
{
    float t[4] = {0};
    if (live >= 4)
        return vld1q_f32(p);
    for (int r = 0; r < live; r++)
        t[r] = p[r];
    return vld1q_f32(t);
}

INLINE void store_live(float *p, float32x4_t v, int64_t live)
{
    float t[4];
    if (live >= 4) {
        vst1q_f32(p, v);
        return;
    }
    vst1q_f32(t, v);
    for (int r = 0; r < live; r++)
        p[r] = t[r];
}

/* The memory for a tile. */
struct act_memory {
    int8_t *q;
    float *d, *dsum;
    int32_t *bias;
};

/* A tile of rows [row, row + m) of x over n blocks from block0 on, padded to M rows with scales of 0. With M = 1 the
 * row is not copied. */
INLINE struct act_tile make_tile(const struct pp_acts *x, int64_t row, int64_t m, int64_t block0, int64_t n,
                                 struct act_memory memory, const enum kind kind, const int M)
{
    struct act_tile t = {memory.q, memory.d, memory.dsum, memory.bias, block0, n};
    for (int64_t i = 0; i < M; i++) {
        int64_t from = i < m ? row + i : row, at = i;
        const int8_t *q = x->q + from * x->q_stride + 32 * block0;
        const float *d = x->d + from * x->b_stride + block0;
        const int32_t *sum = x->sum + from * x->b_stride + block0;
        int8_t *to = memory.q + (IN_PAIRS(M) ? 64 * (i / 2) + 8 * (i % 2) : 32 * i);
        if (M == 1) {
            t.q = q;
            t.d = d;
        }
        for (int64_t b = 0; b < n; b++, at += M, to += 32 * M) {
            if (M > 1) {
                UNROLL for (int p = 0; p < 4; p++)
                    memcpy(to + (IN_PAIRS(M) ? 16 : 8) * p, q + 32 * b + 8 * p, 8);
                memory.d[at] = i < m ? d[b] : 0;
            }
            if (kind == NIBBLES_MIN)
                memory.dsum[at] = d[b] * (float)sum[b];
            if (kind == NIBBLES)
                memory.bias[at] = -8 * sum[b];
        }
    }
    return t;
}

/* Keeps the compiler from interleaving the work of several quads, for which there are not enough registers. */
INLINE void one_quad_at_a_time(void)
{
    __asm__ volatile("" ::: "memory");
}

/* --- few activation rows ------------------------------------------------------------------------------------------ */

enum { QUADS = 4, FEW = 4, FEW_BLOCKS = 1024 };

struct few_memory {
    int8_t q[FEW_BLOCKS * FEW * 32];
    float d[FEW_BLOCKS * FEW], dsum[FEW_BLOCKS * FEW];
    int32_t bias[FEW_BLOCKS * FEW];
};
_Static_assert(sizeof(struct few_memory) <= PP_MATMUL_SCRATCH, "a tile of few rows in the scratch");

/* Products with m <= M activation rows. */
INLINE void run_few(unpack_block_fn *unpack, const struct pp_matrix *w, int64_t row0, int64_t row1,
                    const struct pp_acts *x, int64_t m, float *y, int64_t y_stride, struct few_memory *memory,
                    const enum kind kind, const int M)
{
    const struct act_memory parts = {memory->q, memory->d, memory->dsum, memory->bias};
    int64_t blocks = w->n_cols / PP_ACT_BLOCK;
    for (int64_t block0 = 0; block0 < blocks; block0 += FEW_BLOCKS) {
        int64_t n = blocks - block0 < FEW_BLOCKS ? blocks - block0 : FEW_BLOCKS;
        struct act_tile t = make_tile(x, 0, m, block0, n, parts, kind, M);
        for (int64_t row = row0; row < row1; row += PP_GROUP_ROWS) {
            const uint8_t *group = pp_pack_group(w, row);
            float32x4_t acc[QUADS * FEW];
            for (int k = 0; k < QUADS; k++)
                for (int i = 0; i < M; i++)
                    acc[k * M + i] = block0 && i < m ? load_live(y + i * y_stride + row + 4 * k, row1 - row - 4 * k)
                                                     : vdupq_n_f32(0);
            for (int64_t b = 0; b < n; b += blocks_together(kind)) {
                UNROLL for (int k = 0; k < QUADS; k++)
                {
                    int32x4_t twin[FEW];
                    UNROLL for (int j = 0; j < blocks_together(kind); j++)
                    {
                        struct unpacked o;
                        unpack(group, w->n_cols, block0 + b + j, k, &o);
                        arrange(o.w, M);
                        add_block(&o, &t, b + j, twin, j, acc + k * M, kind, M);
                        if (M > 2)
                            one_quad_at_a_time();
                    }
                }
            }
            for (int k = 0; k < QUADS; k++)
                for (int i = 0; i < M && i < m; i++)
                    store_live(y + i * y_stride + row + 4 * k, acc[k * M + i], row1 - row - 4 * k);
        }
    }
}

/* --- many activation rows ----------------------------------------------------------------------------------------- */

enum { MANY = 8, STRIP_BLOCKS = 64, STRIP_GROUPS = 4 };

/* struct unpacked as it is kept in memory, rearranged for tiles of more than one activation row. */
struct unpacked_block {
    int8_t w[8][16];
    float scale[4];
    union {
        float min[4];
        int32_t sub[2][4];
    };
};

struct many_memory {
    struct unpacked_block strip[STRIP_GROUPS][QUADS][STRIP_BLOCKS];
    int8_t q[STRIP_BLOCKS * MANY * 32];
    float d[STRIP_BLOCKS * MANY], dsum[STRIP_BLOCKS * MANY];
    int32_t bias[STRIP_BLOCKS * MANY];
};
_Static_assert(sizeof(struct many_memory) <= PP_MATMUL_SCRATCH, "a strip in the scratch");

/* Unpacks n blocks, from block0 on, of the groups that contain rows [row0, row1). */
INLINE void unpack_strip(unpack_block_fn *unpack, const struct pp_matrix *w, int64_t row0, int64_t row1, int64_t block0,
                         int64_t n, struct many_memory *memory, const enum kind kind)
{
    for (int64_t row = row0; row < row1; row += PP_GROUP_ROWS)
        for (int64_t b = 0; b < n; b++)
            for (int k = 0; k < QUADS; k++) {
                struct unpacked_block *to = &memory->strip[(row - row0) / PP_GROUP_ROWS][k][b];
                struct unpacked o;
                unpack(pp_pack_group(w, row), w->n_cols, block0 + b, k, &o);
                arrange(o.w, MANY);
                UNROLL for (int v = 0; v < 8; v++)
                    vst1q_s8(to->w[v], o.w[v]);
                vst1q_f32(to->scale, o.scale);
                if (kind == NIBBLES_MIN)
                    vst1q_f32(to->min, o.min);
                if (kind == SUB_BLOCKS) {
                    vst1q_s32(to->sub[0], o.sub[0]);
                    vst1q_s32(to->sub[1], o.sub[1]);
                }
            }
}

INLINE void load_unpacked(const struct unpacked_block *from, struct unpacked *o, const enum kind kind)
{
    UNROLL for (int v = 0; v < 8; v++)
        o->w[v] = vld1q_s8(from->w[v]);
    o->scale = vld1q_f32(from->scale);
    if (kind == NIBBLES_MIN)
        o->min = vld1q_f32(from->min);
    if (kind == SUB_BLOCKS) {
        o->sub[0] = vld1q_s32(from->sub[0]);
        o->sub[1] = vld1q_s32(from->sub[1]);
    }
}

/* Multiplies the strip of weight rows [row0, row1) by m <= M activation rows from `first` on. */
INLINE void run_strip(int64_t row0, int64_t row1, const struct pp_acts *x, int64_t first, int64_t m, int64_t block0,
                      int64_t n, float *y, int64_t y_stride, struct many_memory *memory, const enum kind kind,
                      const int M)
{
    const struct act_memory parts = {memory->q, memory->d, memory->dsum, memory->bias};
    struct act_tile t = make_tile(x, first, m, block0, n, parts, kind, M);
    for (int64_t row = row0; row < row1; row += 4) {
        const struct unpacked_block *from = memory->strip[(row - row0) / PP_GROUP_ROWS][(row - row0) / 4 % QUADS];
        float *out = y + first * y_stride + row;
        float32x4_t acc[MANY];
        for (int i = 0; i < M; i++)
            acc[i] = block0 && i < m ? load_live(out + i * y_stride, row1 - row) : vdupq_n_f32(0);
        for (int64_t b = 0; b < n; b += blocks_together(kind)) {
            int32x4_t twin[MANY];
            UNROLL for (int j = 0; j < blocks_together(kind); j++)
            {
                struct unpacked o;
                load_unpacked(from + b + j, &o, kind);
                add_block(&o, &t, b + j, twin, j, acc, kind, M);
            }
        }
        for (int i = 0; i < M && i < m; i++)
            store_live(out + i * y_stride, acc[i], row1 - row);
    }
}

INLINE void run_many(unpack_block_fn *unpack, const struct pp_matrix *w, int64_t row0, int64_t row1,
                     const struct pp_acts *x, int64_t m, float *y, int64_t y_stride, struct many_memory *memory,
                     const enum kind kind)
{
    int64_t blocks = w->n_cols / PP_ACT_BLOCK;
    for (int64_t row = row0; row < row1; row += STRIP_GROUPS * PP_GROUP_ROWS) {
        int64_t end = row + STRIP_GROUPS * PP_GROUP_ROWS < row1 ? row + STRIP_GROUPS * PP_GROUP_ROWS : row1;
        for (int64_t block0 = 0; block0 < blocks; block0 += STRIP_BLOCKS) {
            int64_t n = blocks - block0 < STRIP_BLOCKS ? blocks - block0 : STRIP_BLOCKS;
            unpack_strip(unpack, w, row, end, block0, n, memory, kind);
            for (int64_t i = 0; i < m; i += MANY) {
                int64_t rows = m - i < MANY ? m - i : MANY;
                if (rows > 4)
                    run_strip(row, end, x, i, rows, block0, n, y, y_stride, memory, kind, 8);
                else if (rows > 2)
                    run_strip(row, end, x, i, rows, block0, n, y, y_stride, memory, kind, 4);
                else
                    run_strip(row, end, x, i, rows, block0, n, y, y_stride, memory, kind, 2);
            }
        }
    }
}

INLINE void matmul(unpack_block_fn *unpack, const enum kind kind, const struct pp_matrix *w, int64_t row0, int64_t row1,
                   const struct pp_acts *x, int64_t m, float *y, int64_t y_stride, void *scratch)
{
    if (m > FEW)
        run_many(unpack, w, row0, row1, x, m, y, y_stride, scratch, kind);
    else if (m > 2)
        run_few(unpack, w, row0, row1, x, m, y, y_stride, scratch, kind, 4);
    else if (m == 2)
        run_few(unpack, w, row0, row1, x, m, y, y_stride, scratch, kind, 2);
    else
        run_few(unpack, w, row0, row1, x, m, y, y_stride, scratch, kind, 1);
}

#define PRODUCTS(type, kind)                                                                                          \
    static void matmul_##type(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x,         \
                              int64_t m, float *y, int64_t y_stride, void *scratch)                                   \
    {                                                                                                                 \
        matmul(unpack_##type, kind, w, row0, row1, x, m, y, y_stride, scratch);                                       \
    }

PRODUCTS(q8_0, BYTES)
PRODUCTS(q4_0, NIBBLES)
PRODUCTS(q4_k, NIBBLES_MIN)
PRODUCTS(q6_k, SUB_BLOCKS)

/* --- float weights ------------------------------------------------------------------------------------------------ */

/* The 16 partial sums of matmul.h are four vectors: vector `part` is for columns k + 4 part to k + 4 part + 3. */

INLINE float32x4_t load_floats(const uint8_t *row, int64_t k, const uint32_t type)
{
    if (type == PP_TYPE_F32)
        return vreinterpretq_f32_u8(vld1q_u8(row + 4 * k));
    if (type == PP_TYPE_F16)
        return halves(row + 2 * k);
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(row + 2 * k)), 16));
}

INLINE float sum_lanes(const float32x4_t *p)
{
    float32x4_t p4 = vaddq_f32(vaddq_f32(p[0], p[2]), vaddq_f32(p[1], p[3]));
    float32x2_t p2 = vadd_f32(vget_low_f32(p4), vget_high_f32(p4));
    return vget_lane_f32(p2, 0) + vget_lane_f32(p2, 1);
}

/* acc += 16 columns of R weight rows times M activation rows */
INLINE void float_step(const uint8_t *w, size_t row_bytes, const float *x, int64_t x_stride, int64_t k,
                       float32x4_t (*acc)[4], const uint32_t type, const int R, const int M)
{
    UNROLL for (int part = 0; part < 4; part++)
    {
        float32x4_t wk[4];
        UNROLL for (int r = 0; r < R; r++)
            wk[r] = load_floats(w + (size_t)r * row_bytes, k + 4 * part, type);
        UNROLL for (int i = 0; i < M; i++)
        {
            float32x4_t xk = vld1q_f32(x + i * x_stride + k + 4 * part);
            UNROLL for (int r = 0; r < R; r++)
                acc[r * M + i][part] = vfmaq_f32(acc[r * M + i][part], wk[r], xk);
        }
    }
}

/* R weight rows times M activation rows, R * M at most 6. Nothing is prefetched. */
INLINE void float_tile(const uint8_t *w, size_t row_bytes, const float *x, int64_t x_stride, int64_t n, float *y,
                       int64_t y_stride, const uint32_t type, enum pp_stream_way how, const int R, const int M)
{
    (void)how;
    const size_t size = type == PP_TYPE_F32 ? 4 : 2;
    float32x4_t acc[6][4];
    UNROLL for (int k = 0; k < R * M; k++)
        acc[k][0] = acc[k][1] = acc[k][2] = acc[k][3] = vdupq_n_f32(0);
    int64_t k = 0;
    for (; k + 16 <= n; k += 16)
        float_step(w, row_bytes, x, x_stride, k, acc, type, R, M);
    if (k < n) { /* the last columns, padded with zeros */
        uint8_t w_rest[4][16 * 4] = {{0}};
        float x_rest[3][16] = {{0}};
        for (int r = 0; r < R; r++)
            memcpy(w_rest[r], w + (size_t)r * row_bytes + (size_t)k * size, (size_t)(n - k) * size);
        for (int i = 0; i < M; i++)
            memcpy(x_rest[i], x + i * x_stride + k, (size_t)(n - k) * sizeof *x);
        float_step(w_rest[0], sizeof w_rest[0], x_rest[0], 16, 0, acc, type, R, M);
    }
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int i = 0; i < M; i++)
            y[i * y_stride + r] = sum_lanes(acc[r * M + i]);
}

#define FLOAT_M 3
#define FLOAT_BESIDE 0
#define FLOAT_R_SOON 2
#define FLOAT_R(m) ((m) == 1 ? 4 : 2)
#include "engine/cpu/float_rows.h"

static float dot(const float *a, const float *b, int64_t n)
{
    float result;
    float_tile((const uint8_t *)a, 0, b, 0, n, &result, 0, PP_TYPE_F32, PP_STREAM_NOT, 1, 1);
    return result;
}

const struct pp_matmul_kernels KERNEL_SET = {
    .quantize = quantize,
    .dot = dot,
    .by_type =
        {
            [PP_TYPE_F32] = matmul_f32,
            [PP_TYPE_F16] = matmul_f16,
            [PP_TYPE_BF16] = matmul_bf16,
            [PP_TYPE_Q8_0] = matmul_q8_0,
            [PP_TYPE_Q4_0] = matmul_q4_0,
            [PP_TYPE_Q4_K] = matmul_q4_k,
            [PP_TYPE_Q6_K] = matmul_q6_k,
            PP_BLOCKS_BY(pp_matmul_blocks_neon),
        },
};
