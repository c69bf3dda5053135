/* matmul.h - matrix products y = W x, per weight type, with one canonical arithmetic each.
 *
 * The scalar kernels (matmul_scalar.c) are the definition: they read like the formulas below. All others give the same
 * bits, for every number of activation rows and every split of weight rows, because the order of the float operations
 * is part of the definition:
 *
 *   activations of a quantised type: per block of 32: d = max|x| / 127, q = round to nearest even(x * (1/d)) as int8
 *   (-127..127), sum = sum of q. A block whose 1/d is infinite (all zeros, or nearly) has d = 0 and q = 0; one that
 *   holds a NaN or an infinity has d = NaN and q = 0, so that every result it goes into is NaN. Where some matrix that
 *   reads them is of a type with twins (pp_type_twins), blocks 2 t and 2 t + 1 are twins: one d, by the largest |x| of
 *   both. Everything inside a block is exact integer arithmetic (isum); then, for blocks b ascending, with acc = 0 at
 *   first and fma the fused multiply-add:
 *
 *     Q8_0, Q4_0   acc = fma(dw[b] * dx[b], (float)isum[b], acc)
 *     Q4_K         acc = fma((d * sc[b]) * dx[b], (float)isum[b], acc);          (d * sc, dmin * m are exact in float)
 *                  acc = fma(-(dmin * m[b]), dx[b] * (float)sum[b], acc)
 *     all others   acc = fma(d * dx[b], (float)isum[b], acc), where isum has the whole-number scales of 16 columns,
 *                        sc0 * isum0 + sc1 * isum1;
 *                  acc = fma(-min, dx[b] * (float)sum[b], acc)                           (where the type has minima)
 *
 *   and with twins, for every second b, where isum is exact until it becomes a float, which rounds it to nearest even:
 *
 *                  acc = fma(d * dx[b], (float)(isum[b] + isum[b + 1]), acc);
 *                  acc = fma(-(min * m0), dx[b] * (float)sum0, acc), and so on for sum1 to sum3, each of 16 columns
 *                                                                         (where there are minima for those: Q2_K)
 *
 *   with a block's weights as (d * sc) * w - min * m, w, sc and m integers, sc and m per 16 columns (1 where a type has
 *   one scale per 32, which then is d). open_body.h says what they are for each type; IQ1's w are eighths, MXFP4's
 *   halves, IQ2's and IQ3's d includes the code book's fraction.
 *
 *   float types (F32, F16, BF16; weights converted exactly, activations float32): 16 partial sums, the one for lane l
 *   over k = l, l + 16, ... ascending: p[l] = fma(w[k], x[k], p[l]); then halves are added: p[l] += p[l + 8] for l < 8,
 *   then 4, 2, 1. A short tail counts as zeros in x and w.
 *
 * Quantised weights are packed in groups of 16 rows so that a vector lane is a row (layout in pack.c), at the same
 * number of bits. Float weights are used in place, in the mapped file. */
#ifndef PP_CPU_MATMUL_H
#define PP_CPU_MATMUL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/cpu/isa.h"
#include "engine/types.h"

enum { PP_GROUP_ROWS = 16, PP_ACT_BLOCK = 32, PP_MATMUL_SCRATCH = 256 * 1024 };

/* A weight matrix as the kernels read it. */
struct pp_matrix {
    uint32_t type;      /* enum pp_type */
    int64_t n_rows;     /* outputs */
    int64_t n_cols;     /* inputs; a multiple of the type's block */
    const void *data;   /* float types: [n_rows, n_cols] plain; others: packed groups, 64-byte aligned */
    bool alone;         /* this thread does not read on behind these weights: prefetching there is useless */
};

/* How weights that come from memory are prefetched (stream_ahead.h). */
enum pp_stream_way {
    PP_STREAM_FAR,   /* 16 KiB ahead, into L2 */
    PP_STREAM_PAGES, /* in eight pages */
    PP_STREAM_SOON,  /* 6 KiB ahead, into L1 */
    PP_STREAM_WAYS,  /* how many of them a processor can have for its default */
    PP_STREAM_LESS_FAR = PP_STREAM_WAYS, /* 8 KiB ahead, into L2 */
    PP_STREAM_LINES, /* 4 KiB ahead, into L2, but line by line instead of eight at a time */
    PP_STREAM_NOT,   /* not at all */
};

/* How products of few activation rows read such weights. Results do not depend on it. */
enum pp_weights_way {
    PP_WAY_USUAL,  /* one group after the other, prefetching in the processor's default pp_stream_way */
    PP_WAY_NEAR,   /* one group after the other; of Q8_0 and Q4_0 nearby lines are prefetched */
    PP_WAY_LESS_FAR, /* one group after the other, PP_STREAM_LESS_FAR */
    PP_WAY_SOON,   /* for one row: likewise, PP_STREAM_SOON */
    PP_WAY_LINES,  /* for one row or two: likewise, PP_STREAM_LINES */
    PP_WAY_BESIDE, /* several groups side by side; AVX2: Q8_0 and Q4_0 only, without prefetching, also of floats */
    PP_WEIGHTS_WAYS
};
enum { PP_WAYS_TRIED = 3 };

/* Activations as pp_by_lane.arrange() makes them, and what a kernel that reads them needs. */
struct pp_arranged {
    const float *x;  /* pp_by_lane_floats() */
    int64_t rows;    /* all of them: for fewer it is of no use */
    uint16_t *panel; /* room for a panel of weights, pp_by_lane_panel(), 64-byte aligned, of the calling thread alone */
};

/* Activations: m rows of n_cols values. The quantised form is filled by quantize(); strides are in elements. */
struct pp_acts {
    const float *f32;   /* [m, f32_stride] */
    int64_t f32_stride;
    const int8_t *q;    /* [m, q_stride], q_stride >= n_cols rounded up to 32, rows 64-byte aligned */
    int64_t q_stride;
    const float *d;     /* [m, b_stride]: scale per block of 32; the same for both of twins */
    const int32_t *sum; /* [m, b_stride]: sum of q per block */
    int64_t b_stride;
    const uint16_t *bf16; /* [m, bf16_stride]: in one or two parts; only for matmul_bf16.h */
    int64_t bf16_stride;
    int bf16_parts;
    const struct pp_arranged *by_lane; /* the same rows besides; or NULL */
    enum pp_weights_way way; /* of reading weights: one that the kernels have, or the usual one */
    size_t scratch_bytes; /* size of the kernel's scratch, if more than PP_MATMUL_SCRATCH; else 0 */
};

/* The same rows from this one on. */
static inline struct pp_acts pp_acts_from(const struct pp_acts *x, int64_t row)
{
    struct pp_acts a = *x;
    a.f32 = a.f32 ? a.f32 + row * a.f32_stride : NULL;
    a.q = a.q ? a.q + row * a.q_stride : NULL;
    a.d = a.d ? a.d + row * a.b_stride : NULL;
    a.sum = a.sum ? a.sum + row * a.b_stride : NULL;
    a.bf16 = a.bf16 ? a.bf16 + row * a.bf16_stride : NULL;
    return a;
}

/* Writes y[i * y_stride + r] for r in [row0, row1), i in [0, m). row0 is a multiple of PP_GROUP_ROWS; row1 too, or
 * n_rows. scratch: PP_MATMUL_SCRATCH or x->scratch_bytes bytes, 64-byte aligned, of the calling thread alone, with any
 * content. */
typedef void pp_matmul_fn(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                          float *y, int64_t y_stride, void *scratch);

/* Very many activation rows that meet F16 or BF16 weights are arranged in another order besides (float_lanes.h), in
 * tiles of some rows. Results do not depend on it. */
struct pp_by_lane {
    int from;       /* so many rows or more; 0: never */
    int rows;       /* of a tile */
    int panel_rows; /* of weights, that meet it together */
    /* One tile of n_tiles, of whose rows there are `rows`, [rows, x_stride]; others are zeros. out: of all tiles,
     * pp_by_lane_floats(). */
    void (*arrange)(const float *x, int64_t x_stride, int rows, int64_t n, int64_t tile, int64_t n_tiles, float *out);
};

/* Of m rows of n columns, arranged in tiles of so many rows: floats from lane to lane, an odd number of lines, so that
 * the lanes of a column do not compete for places in the caches. */
static inline int64_t pp_by_lane_stride(int rows, int64_t m, int64_t n)
{
    const int64_t line = 16, lines = ((m + rows - 1) / rows * rows * ((n + 15) / 16) + line - 1) / line;
    return (lines | 1) * line;
}

/* What they take. */
static inline int64_t pp_by_lane_floats(int rows, int64_t m, int64_t n)
{
    return 16 * pp_by_lane_stride(rows, m, n);
}

/* Numbers in a panel of so many rows. */
static inline int64_t pp_by_lane_panel(int panel_rows, int64_t n)
{
    const int64_t steps = (n + 15) / 16, line = 32;
    return 16 * (steps * panel_rows + line);
}

struct pp_matmul_kernels {
    bool uses_scratch;  /* and gains by having more of it */
    /* the ways worth trying besides PP_WAY_USUAL, by the processor's default; PP_WAY_USUAL: no more */
    enum pp_weights_way tried[PP_STREAM_WAYS][PP_WAYS_TRIED];
    /* x: float [n] -> q [n rounded up to 32, padded with 0], d and sum [blocks]; twins: pairs of blocks share d (a last
     * odd one has its own) */
    void (*quantize)(const float *x, int64_t n, bool twins, int8_t *q, float *d, int32_t *sum);
    struct pp_by_lane by_lane;
    /* sum of a[k] * b[k] in the float types' order above */
    float (*dot)(const float *a, const float *b, int64_t n);
    pp_matmul_fn *by_type[PP_TYPE_LIMIT]; /* NULL: not runnable */
};

/* NULL: this build has no kernels for it. */
const struct pp_matmul_kernels *pp_matmul_kernels(enum pp_isa isa);

/* Types with integer scales per 16 columns: their integer sums span twins, so that half as many sums are scaled, and
 * AMX multiplies as many columns as its tiles hold. (One d for 64 normally distributed values instead of 32 adds a
 * tenth to the error: 0.58 % of a product instead of 0.53 %.) */
static inline __attribute__((always_inline)) bool pp_type_twins(uint32_t type)
{
    return type == PP_TYPE_Q6_K || type == PP_TYPE_Q3_K || type == PP_TYPE_Q2_K || type == PP_TYPE_IQ2_XS ||
           type == PP_TYPE_IQ2_S || type == PP_TYPE_IQ1_M;
}

/* True if the type's weights are packed (quantised types), false if they are used in place. */
bool pp_pack_needed(uint32_t type);
/* Bytes of the packed form, whose rows are padded to groups of 16 with zero weights. */
size_t pp_pack_bytes(uint32_t type, int64_t n_rows, int64_t n_cols);
/* Packs rows [row0, row1) (row0 a multiple of 16; row1 too, or n_rows) of src (plain rows of the file) into dst, the
 * start of the whole packed matrix. Any threads may pack different rows at the same time. */
void pp_pack_rows(uint32_t type, const void *src, int64_t n_rows, int64_t n_cols, int64_t row0, int64_t row1,
                  void *dst);

#endif
