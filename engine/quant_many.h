/* quant_many.h - sums over the values of a block for several trial scales at once, from which the searches of
 * quant_search.c are built. A scale's sums use four lanes, value i in lane i modulo 4, added in one order, so their
 * bits do not depend on how many scales there are at once. Private to the engine; any thread. */
#ifndef PP_ENGINE_QUANT_MANY_H
#define PP_ENGINE_QUANT_MANY_H

enum { PP_MANY_MOST = 4 }; /* scales at once */

/* Values x with weights w; n is a multiple of 4. q: integers from lo to hi, or the values of IQ4's table, which span lo
 * to hi. */
struct pp_many_block {
    const float *x, *w; /* [n] */
    int n;
    float lo, hi;
};

/* For fixed q: sums of w times these. */
struct pp_many_sums {
    float w, x, q, xq, qq;
};

/* Functions for `width` scales at once; arrays have `width` entries. */
struct pp_many {
    int width;
    /* q = x * inverse; only xq and qq */
    void (*scaled_sums)(const struct pp_many_block *b, const float *inverse, struct pp_many_sums *out);
    /* the sum of w (x - scale * q)^2, with q = x / scale; scale 0: q is 0 */
    void (*scaled_errors)(const struct pp_many_block *b, const float *scale, float *out);
    /* the same with q the nearest value of the table, the smaller of two equally near */
    void (*table_sums)(const struct pp_many_block *b, const float *inverse, struct pp_many_sums *out);
    void (*table_errors)(const struct pp_many_block *b, const float *scale, float *out);
    /* q = (x + min) * inverse */
    void (*affine_sums)(const struct pp_many_block *b, const float *inverse, const float *min,
                        struct pp_many_sums *out);
    /* the sum of w (x + min - scale * q)^2, with q = (x + min) / scale; scale <= 0: q is 0 */
    void (*affine_errors)(const struct pp_many_block *b, const float *scale, const float *min, float *out);
};

/* The widest functions that this processor can run, or, for tests, of at most `most` scales. */
const struct pp_many *pp_many(int most);
/* For tests: limits how many scales are tried at once, usually PP_MANY_MOST. Not while anybody quantises. */
void pp_quant_try_at_once(int most);

#endif
