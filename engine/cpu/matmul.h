/* matmul.h - matrix products y = W x: one canonical arithmetic for each weight type.
 *
 * The scalar kernels (matmul_scalar.c) are the definition: they read like the formulas below. All other kernels produce
 * the same bits, for every number of activation rows and every split of the weight rows among threads, because the
 * order of the float operations is part of the definition:
 *
 *   Quantised weights meet activations that are quantised in blocks of 32: d = max|x| / 127, q = round to nearest
 *   even(x * (1/d)) as int8 (-127..127), sum = sum of q. If 1/d is infinite (the block is all zeros, or nearly), d and
 *   q are 0. If the block holds a NaN or an infinity, d is NaN and q is 0, so that every result that uses the block is
 *   NaN. If any matrix that reads these activations has a type with twins (pp_type_twins), blocks 2 t and 2 t + 1 are
 *   twins: they share one d, computed from the largest |x| of both. The sum of products within a block, isum, is exact
 *   integer arithmetic. The blocks b are then added in ascending order, starting from acc = 0, where fma is the fused
 *   multiply-add:
 *
 *     Q8_0, Q4_0   acc = fma(dw[b] * dx[b], (float)isum[b], acc)
 *     Q4_K         acc = fma((d * sc[b]) * dx[b], (float)isum[b], acc);          (d * sc, dmin * m are exact in float)
 *                  acc = fma(-(dmin * m[b]), dx[b] * (float)sum[b], acc)
 *     all others   acc = fma(d * dx[b], (float)isum[b], acc), where isum includes the integer scales of 16 columns,
 *                        sc0 * isum0 + sc1 * isum1;
 *                  acc = fma(-min, dx[b] * (float)sum[b], acc)                           (where the type has minima)
 *
 *   For types with twins, b takes every second value; the integer sum of both twins is exact, and its conversion to
 *   float rounds once, to nearest even:
 *
 *                  acc = fma(d * dx[b], (float)(isum[b] + isum[b + 1]), acc);
 *                  acc = fma(-(min * m0), dx[b] * (float)sum0, acc), and so on for sum1 to sum3, each of 16 columns
 *                                                              (only Q2_K, which has a minimum for each 16 columns)
 *
 *   with a block's weights as (d * sc) * w - min * m, w, sc and m integers, sc and m per 16 columns (1 where a type has
 *   one scale per 32, which then is d). unpack_body.h says what they are for each type; IQ1's w are eighths, MXFP4's
 *   halves, IQ2's and IQ3's d includes the code book's fraction.
 *
 *   Float weights (F32, F16, BF16) are converted exactly and meet float32 activations in 16 partial sums: lane l covers
 *   k = l, l + 16, ... ascending, p[l] = fma(w[k], x[k], p[l]). The halves are then added, p[l] += p[l + 8] for l < 8,
 *   and so on with 4, 2 and 1. A short last vector is filled up with zeros in x and w.
 *
 * Quantised weights are repacked in groups of 16 rows, so that each vector lane is a row (pack.h), without growing.
 * Float weights are used where the file is mapped. */
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
    bool alone;         /* the thread will not read what follows these weights, so prefetching that is useless */
};

/* How weights that come from memory are prefetched (stream_ahead.h). */
enum pp_stream_way {
    PP_STREAM_FAR,   /* 16 KiB ahead, into L2 */
    PP_STREAM_PAGES, /* the next span of eight pages, alternating between its pages */
    PP_STREAM_SOON,  /* 6 KiB ahead, into L1 */
    PP_STREAM_WAYS,  /* number of the above, any of which can be a processor's default */
    PP_STREAM_LESS_FAR = PP_STREAM_WAYS, /* 8 KiB ahead, into L2 */
    PP_STREAM_LINES, /* 4 KiB ahead, into L1, line by line instead of eight lines at a time */
    PP_STREAM_NOT,   /* not at all */
};

/* How products of few activation rows read weights from memory. Results do not depend on it. */
enum pp_weights_way {
    PP_WAY_USUAL,  /* one group after the other, prefetched in the processor's default pp_stream_way */
    PP_WAY_NEAR,   /* one group after the other; Q8_0 and Q4_0 prefetch nearby lines, others as PP_WAY_USUAL */
    PP_WAY_LESS_FAR, /* one group after the other, PP_STREAM_LESS_FAR */
    PP_WAY_SOON,   /* one group after the other, PP_STREAM_SOON if there is a single activation row */
    PP_WAY_LINES,  /* one group after the other, PP_STREAM_LINES if there are one or two activation rows */
    PP_WAY_BESIDE, /* several groups interleaved; AVX2: only Q8_0, Q4_0 and floats, without prefetching */
    PP_WEIGHTS_WAYS
};
enum { PP_WAYS_TRIED = 3 };

/* Activations as arranged by pp_by_lane.arrange(), and scratch for the kernels that read them. */
struct pp_arranged {
    const float *x;  /* [pp_by_lane_floats()] */
    int64_t rows;    /* arranged rows; of use only to a product with all of them */
    uint16_t *panel; /* [pp_by_lane_panel()]: scratch for weights, 64-byte aligned, private to the calling thread */
};

/* Activations: m rows of n_cols values. The quantised form is filled by quantize(); strides are in elements. */
struct pp_acts {
    const float *f32;   /* [m, f32_stride] */
    int64_t f32_stride;
    const int8_t *q;    /* [m, q_stride], q_stride >= n_cols rounded up to 32, rows 64-byte aligned */
    int64_t q_stride;
    const float *d;     /* [m, b_stride]: scale per block of 32; twins have the same */
    const int32_t *sum; /* [m, b_stride]: sum of q per block */
    int64_t b_stride;
    const uint16_t *bf16; /* [m, bf16_stride]: split into bf16_parts bfloat16 parts; only for matmul_bf16.h */
    int64_t bf16_stride;
    int bf16_parts;
    const struct pp_arranged *by_lane; /* the same rows in a second arrangement; or NULL */
    enum pp_weights_way way; /* how to read weights: one that the kernels support, or PP_WAY_USUAL */
    size_t scratch_bytes; /* size of the kernel's scratch, if more than PP_MATMUL_SCRATCH; else 0 */
};

/* The activations from the given row on. */
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
 * n_rows. scratch: PP_MATMUL_SCRATCH or x->scratch_bytes bytes, uninitialised, 64-byte aligned, private to the calling
 * thread. */
typedef void pp_matmul_fn(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                          float *y, int64_t y_stride, void *scratch);

/* For products of many activation rows with F16 or BF16 weights, the activations are copied to a second arrangement,
 * lane by lane, in tiles of some rows (float_lanes.h). Results do not depend on it. */
struct pp_by_lane {
    int from;       /* the fewest activation rows that are arranged; 0: never */
    int rows;       /* activation rows of a tile */
    int panel_rows; /* weight rows that are multiplied by a tile together */
    /* Arranges one of n_tiles tiles. x: its first `rows` rows, [rows, x_stride]; the remaining ones become zeros. out:
     * the memory of all tiles, [pp_by_lane_floats()]. */
    void (*arrange)(const float *x, int64_t x_stride, int rows, int64_t n, int64_t tile, int64_t n_tiles, float *out);
};

/* Floats from one lane to the next, for m rows of n columns in tiles of `rows`. It is an odd number of cache lines, so
 * that the lanes of a column do not compete for the same cache sets. */
static inline int64_t pp_by_lane_stride(int rows, int64_t m, int64_t n)
{
    const int64_t line = 16, lines = ((m + rows - 1) / rows * rows * ((n + 15) / 16) + line - 1) / line;
    return (lines | 1) * line;
}

/* Floats that the arranged activations take: 16 lanes. */
static inline int64_t pp_by_lane_floats(int rows, int64_t m, int64_t n)
{
    return 16 * pp_by_lane_stride(rows, m, n);
}

/* Elements of a panel of panel_rows weight rows. */
static inline int64_t pp_by_lane_panel(int panel_rows, int64_t n)
{
    const int64_t steps = (n + 15) / 16, line = 32;
    return 16 * (steps * panel_rows + line);
}

struct pp_matmul_kernels {
    bool uses_scratch;  /* the kernels use their scratch and are faster with more of it */
    /* for each default pp_stream_way of a processor, the ways worth trying in addition to PP_WAY_USUAL, which ends the
     * list */
    enum pp_weights_way tried[PP_STREAM_WAYS][PP_WAYS_TRIED];
    /* x: float [n] -> q [n rounded up to 32, padded with 0], d and sum [blocks]; twins: pairs of blocks share d (if
     * their number is odd, the last block has its own) */
    void (*quantize)(const float *x, int64_t n, bool twins, int8_t *q, float *d, int32_t *sum);
    struct pp_by_lane by_lane;
    /* sum of a[k] * b[k], added in the order given above for float weights */
    float (*dot)(const float *a, const float *b, int64_t n);
    pp_matmul_fn *by_type[PP_TYPE_LIMIT]; /* NULL: there is no product for this type */
};

/* The kernels of an instruction set; NULL: this build has none. */
const struct pp_matmul_kernels *pp_matmul_kernels(enum pp_isa isa);

/* Whether a type's integer sums span two neighbouring blocks of activations with one scale, called twins. These are the
 * types with an integer scale per 16 columns. Half as many sums then have to be scaled, and an AMX instruction
 * multiplies as many columns as its tiles hold, 64. (Sharing one d among 64 normally distributed values instead of 32
 * increases the error by a tenth: 0.58 % of a product instead of 0.53 %.) */
static inline __attribute__((always_inline)) bool pp_type_twins(uint32_t type)
{
    return type == PP_TYPE_Q6_K || type == PP_TYPE_Q3_K || type == PP_TYPE_Q2_K || type == PP_TYPE_IQ2_XS ||
           type == PP_TYPE_IQ2_S || type == PP_TYPE_IQ1_M;
}

/* True if the type's weights are packed (quantised types), false if they are used in place. */
bool pp_pack_needed(uint32_t type);
/* Bytes of the packed form, whose rows are padded to groups of 16 with zero weights. */
size_t pp_pack_bytes(uint32_t type, int64_t n_rows, int64_t n_cols);
/* Packs rows [row0, row1) (row0 is a multiple of 16; so is row1, or it is n_rows) of src, the matrix as in the file,
 * into dst, the start of the whole packed matrix. Threads may pack different rows at the same time. */
void pp_pack_rows(uint32_t type, const void *src, int64_t n_rows, int64_t n_cols, int64_t row0, int64_t row1,
                  void *dst);

#endif
