/* quant_many.h - sums over the values of a block for several scales that are tried at once, of which the searches of
 * quant_search.c are made. Each scale's sums are those of four lanes, i modulo 4, added in one order: they are the same
 * bits however many scales there are at once. Private to the engine; any thread. */
#ifndef PP_ENGINE_QUANT_MANY_H
#define PP_ENGINE_QUANT_MANY_H

enum { PP_MANY_MOST = 4 }; /* scales at once */

/* Values x, with weights w; n is a multiple of 4. q: whole numbers from lo to hi, or those of IQ4's table, which go
 * from lo to hi. */
struct pp_many_block {
    const float *x, *w; /* [n] */
    int n;
    float lo, hi;
};

/* With q fixed: sums of w times this. */
struct pp_many_sums {
    float w, x, q, xq, qq;
};

/* What is computed for `width` scales at once; arrays have so many entries. */
struct pp_many {
    int width;
    /* q = x * inverse; only xq and qq */
    void (*scaled_sums)(const struct pp_many_block *b, const float *inverse, struct pp_many_sums *out);
    /* errors w (x - scale * q)^2, with q = x / scale; scale 0: q is 0 */
    void (*scaled_errors)(const struct pp_many_block *b, const float *scale, float *out);
    /* The same with q the nearest number of the table; of two as near the smaller */
    void (*table_sums)(const struct pp_many_block *b, const float *inverse, struct pp_many_sums *out);
    void (*table_errors)(const struct pp_many_block *b, const float *scale, float *out);
    /* q = (x + min) * inverse */
    void (*affine_sums)(const struct pp_many_block *b, const float *inverse, const float *min,
                        struct pp_many_sums *out);
    /* errors w (x + min - scale * q)^2, with q = (x + min) / scale; scale not above 0: q is 0 */
    void (*affine_errors)(const struct pp_many_block *b, const float *scale, const float *min, float *out);
};

/* The widest that this processor has, or, for tests, the widest of at most `most` scales. */
const struct pp_many *pp_many(int most);
/* For tests: how many scales the searches try at once, at most; PP_MANY_MOST otherwise. While nobody quantises. */
void pp_quant_try_at_once(int most);

#endif
