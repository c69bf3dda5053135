/* train.h - the kernels that training needs besides ops.h: products of matrices stored in any order, and the backward
 * passes of norms, activations and losses.
 *
 * One body (train_body.h) over vec.h is compiled for each kernel set. The scalar build is the definition, and the
 * others give the same bits. All functions are pure: any thread may call them, with disjoint outputs. */
#ifndef PP_CPU_TRAIN_H
#define PP_CPU_TRAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/cpu/isa.h"

/* c[m][n] = sum over k of a[m][k] * (scale * b[k][n]); with `add` this sum is added to c.
 *
 * The sum begins with 0, or with c, and then sum = fma(a, scale * b, sum) for ascending k. A result depends only on its
 * row of a and its column of b, so that the work may be divided in any way. */
struct pp_product {
    int64_t rows, cols, depth; /* the ranges of m, n and k */
    const float *a;
    int64_t a_row, a_step;     /* a[m][k] is a[m * a_row + k * a_step] */
    const void *b;
    uint32_t b_type;           /* any runnable type */
    int64_t b_row;             /* values from one row of b to the next, a multiple of the type's block */
    bool b_transposed;         /* row n of b in memory holds all k; otherwise row k holds all n */
    float scale;
    float *c;
    int64_t c_row;
    bool add;
};

enum {
    PP_PRODUCT_DEPTH = 256,   /* values of k for which b is packed at a time */
    PP_PRODUCT_STRIP = 64,    /* columns of c that a thread takes as one item; 256 if b has blocks of 256 */
    PP_PRODUCT_SCRATCH = PP_PRODUCT_DEPTH * 256 + 16 * PP_PRODUCT_DEPTH, /* floats */
};

struct pp_train_ops {
    /* Computes rows row0 .. row1 - 1, columns col0 .. col1 - 1 of c: at most one strip, which begins at col0. scratch:
     * float [PP_PRODUCT_SCRATCH]. */
    void (*product)(const struct pp_product *p, int64_t row0, int64_t row1, int64_t col0, int64_t col1,
                    float *scratch);
    /* x = exp(x - max x) / sum of exp(x - max x), summed in 16 partial sums. */
    void (*softmax)(float *x, int64_t n);
    /* Returns -log softmax(logits)[target], and replaces the logits by the gradient of weight times that. Without
     * `gradient` it does less, and the contents of `logits` are undefined. */
    double (*cross_entropy)(float *logits, int64_t n, int32_t target, float weight, bool gradient);
    /* dp = p (dp - sum of p dp) scale: the gradient with respect to scores, from that with respect to probabilities. */
    void (*softmax_backward)(const float *p, float *dp, int64_t n, float scale);
    /* dg and du of y = silu(g) u from dy, which either may overwrite. */
    void (*swiglu_backward)(const float *g, const float *u, const float *dy, int64_t n, float *dg, float *du);
    /* dx += the gradient with respect to x of y = rms_norm(x) w, from dy. */
    void (*rms_norm_backward)(const float *x, const float *w, const float *dy, float eps, int64_t n, float *dx);
};

/* The functions of a kernel set that runs on this processor; the scalar ones if the set has none of its own. */
const struct pp_train_ops *pp_train_ops(enum pp_isa isa);

#endif
