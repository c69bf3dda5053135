/* train.h - what training computes besides ops.h: products of matrices that lie in any order, and the backward halves
 * of norms, activations and losses.
 *
 * One body (train_body.h) compiled for each set over vec.h; the scalar build is the definition and the others give its
 * bits. All functions are pure: any thread, disjoint outputs. */
#ifndef PP_CPU_TRAIN_H
#define PP_CPU_TRAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/cpu/isa.h"

/* c[m][n] = sum over k of a[m][k] (scale b[k][n]), or with `add` that is added to what c holds.
 *
 * The sum begins with 0, or with c, and grows by fma(a, scale b, sum), k ascending: a result depends on nothing but its
 * own row of a and column of b, so that work may be divided at will. */
struct pp_product {
    int64_t rows, cols, depth; /* of m, n, k */
    const float *a;
    int64_t a_row, a_step;     /* a[m][k] is a[m * a_row + k * a_step] */
    const void *b;
    uint32_t b_type;           /* any runnable type */
    int64_t b_row;             /* values from one row of b to the next, a multiple of the type's block */
    bool b_transposed;         /* rows of b are its columns: row n holds all k. Else row k holds all n */
    float scale;
    float *c;
    int64_t c_row;
    bool add;
};

enum {
    PP_PRODUCT_DEPTH = 256,   /* of b's values that are brought into order at a time */
    PP_PRODUCT_STRIP = 64,    /* columns of c that are worth one piece of work; with blocks of 256, 256 */
    PP_PRODUCT_SCRATCH = PP_PRODUCT_DEPTH * 256 + 16 * PP_PRODUCT_DEPTH, /* floats */
};

struct pp_train_ops {
    /* Rows row0 .. row1 - 1, columns col0 .. col1 - 1 of c; col0 is a multiple of the strip, of which there is one at
     * most. scratch: float [PP_PRODUCT_SCRATCH]. */
    void (*product)(const struct pp_product *p, int64_t row0, int64_t row1, int64_t col0, int64_t col1,
                    float *scratch);
    /* x = exp(x - max x) / sum of those; 16 partial sums. */
    void (*softmax)(float *x, int64_t n);
    /* Turns logits into the gradient of weight * -log softmax(logits)[target], and returns -log softmax(...)[target].
     * gradient: false leaves in `logits` nothing of use, for less work. */
    double (*cross_entropy)(float *logits, int64_t n, int32_t target, float weight, bool gradient);
    /* dp = p (dp - sum of p dp) scale: from the gradient by probabilities to that by scores. */
    void (*softmax_backward)(const float *p, float *dp, int64_t n, float scale);
    /* Of y = silu(g) u: dg and du, which may be dy, from dy. */
    void (*swiglu_backward)(const float *g, const float *u, const float *dy, int64_t n, float *dg, float *du);
    /* Of y = rms_norm(x) w: dx += what dy means for x. */
    void (*rms_norm_backward)(const float *x, const float *w, const float *dy, float eps, int64_t n, float *dx);
};

/* The functions of a set that runs; of one without functions of its own the scalar ones. */
const struct pp_train_ops *pp_train_ops(enum pp_isa isa);

#endif
