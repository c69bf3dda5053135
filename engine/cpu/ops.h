/* ops.h - everything a forward pass does besides matrix products: norms, rotations, attention, activations.
 *
 * One body (ops_body.h, attention_body.h) compiled for each set over vec.h; the scalar build is the definition and the
 * others give its bits. All functions are pure: any thread, disjoint outputs. */
#ifndef PP_CPU_OPS_H
#define PP_CPU_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/cpu/isa.h"
#include "engine/cpu/stream_ahead.h"
#include "engine/kv.h"
#include "engine/plan.h"
#include "engine/types.h"

enum {
    PP_MAX_HEAD_DIM = 576,
    PP_MAX_GROUP = 128,                                /* query heads that share a KV head */
    PP_TILE_QUERIES = 64, /* of a KV head worked on together: rows times group, or one row */
    PP_PART_QUERIES = 16, /* of a tile that have their scores at a time, at most: those stay in the L1 cache */
    PP_ATTENTION_SUM_TILES = 8,
    PP_CHUNK_PAGES = PP_KV_CHUNK / PP_PAGE_TOKENS,
};

/* What attention leaves of some positions, or of all: for each query a reference m, l = sum of p = 2^(s - m),
 * o = sum of p v. */
struct pp_attention_sums {
    float *m, *l;               /* [n_q] */
    float *o;                   /* [n_q, v_pad] */
};

/* Positions begin .. end - 1 of a chunk. */
struct pp_span {
    int begin, end;
};

/* A tile: the queries of some rows that share a KV head, and what a thread needs to work on them. */
struct pp_attention {
    const struct pp_kv_layout *kv;
    int n_rows, group;          /* n_q = n_rows * group queries, row by row */
    float softcap;              /* scores become softcap tanh(score / softcap); 0: they stay */
    bool unasked;               /* of the chunk that is worked on only K of the first page has been asked for */
    bool growing;               /* then they are multiplied by their rows' numbers: */
    float growth[PP_TILE_QUERIES];
    const float *slopes;        /* [group]: scores fall by so much a position of distance (ALiBi, arXiv 2108.12409),
                                   times log2 e; or NULL */
    float at[PP_TILE_QUERIES];  /* with slopes: the rows' own positions, counted from the chunk's first */
    const uint8_t *next[PP_CHUNK_PAGES]; /* our head's bytes of the chunk that comes next, to ask for; or NULL */
    float *q;                   /* scaled queries [head_pad, n_q] */
    int32_t *q_words;           /* quantised, in the order of the build's dot product [head_pad / 2, n_q] */
    float *q_scale;             /* [head_pad / scale_dims, n_q] */
    int32_t *q_start;           /* what a dot product begins with, because K is stored with an offset */
    float *v_scale;             /* of a chunk's V, [v_pad / scale_dims, 256] */
    float *v_log;               /* what log2 of the largest of a position's does not exceed [256] */
    /* of the part of the tile that is worked on: */
    float *p;                   /* scores, then powers [PP_PART_QUERIES, 256] */
    int16_t *w;                 /* powers times V's scales, as whole numbers [v_pad / scale_dims,
                                   PP_PART_QUERIES, 256], each 32 positions in the order of the build's products */
    uint8_t *tiles;             /* attention_amx.h's: queries; from tiles_fixed on, what does not depend on n_q */
    size_t tiles_fixed;
    float *o;                   /* of a few queries and a chunk's V in floats [PP_PART_QUERIES, v_pad] */
    uint8_t *values;            /* a chunk's V, where pages have none: of each page v_bytes (attention_latent.h) */
    struct pp_attention_sums total; /* o: room for [n_q, head_pad], and for [n_q, v_pad] */
};

/* Bytes for the arrays above with n_q queries, a multiple of 64; and their places in such memory. */
size_t pp_attention_bytes(const struct pp_kv_layout *kv, int n_q);
void pp_attention_init(struct pp_attention *a, const struct pp_kv_layout *kv, int n_q, void *memory);

/* The upper half of an adapter, B [n_out, rank], as add_low_rank reads it: 64 outputs make a block, zeros behind the
 * last one, blocks one after the other, each
 *
 *   F32, F16   values [4][rank][16]: output 16 i + l is lane l of the i-th quarter
 *   Q8_0       scales f16 [64], one for each output, then bytes [(rank + 3) / 4][4][16][4]: of each four k the four
 *              values, plus 128, of lane l of the i-th quarter, 128 where there are no four; all times `unit` */
enum {
    PP_LOW_RANK_ROWS = 64,
    PP_LOW_RANK_MAX = 1 << 16, /* rank */
};
struct pp_low_rank {
    uint32_t type;
    int rank;
    const uint8_t *data;
    float unit;             /* of Q8_0: a power of two */
};

/* What it is applied to. */
struct pp_low_rank_rows {
    int n;
    float *y;               /* [n, y_stride] */
    const float *down;      /* [n, down_stride], of which rank are used; where B is in Q8_0, what round_low_rank made
                               of them, of which pp_low_rank_room(rank) are */
    int64_t y_stride, down_stride;
};

/* Floats that hold a row's A x in either form. */
static inline int pp_low_rank_room(int rank)
{
    return rank ? rank + 3 : 0;
}

/* Bytes: so far ahead add_low_rank asks for B where one row is all that uses it. Measured on a Zen 4 and on a Granite
 * Rapids. */
static inline size_t pp_low_rank_ahead(void)
{
    return pp_stream_way == PP_STREAM_PAGES ? 1024 : 4096;
}

static inline size_t pp_low_rank_block_bytes(uint32_t type, int rank)
{
    const size_t n = (size_t)rank;
    return type == PP_TYPE_Q8_0  ? PP_LOW_RANK_ROWS * (sizeof(uint16_t) + (n + 3) / 4 * 4)
           : type == PP_TYPE_F16 ? n * PP_LOW_RANK_ROWS * sizeof(uint16_t)
                                 : n * PP_LOW_RANK_ROWS * sizeof(float);
}

/* y[r][c] = sum over d of x[r][d] m[d][c]. n_cols and the strides of m and y are multiples of 16. */
struct pp_products {
    const float *x, *m;         /* [n_rows, x_stride], of which n_inner are used; [n_inner, m_stride] */
    float *y;                   /* [n_rows, y_stride] */
    int64_t n_rows, n_inner, n_cols;
    int64_t x_stride, m_stride, y_stride;
};

/* A position of a head with a state (recur.c), the at-th of its page. Of the arrays of a page's positions, at + 1 are
 * known, those of u without the last; there is room for whole vectors. */
struct pp_recur_row {
    int at;
    int64_t width;              /* of a value, a multiple of 16 */
    bool corrects;              /* the delta rule: what the state gives for the key already is taken off */
    float beta;                 /* what is left is multiplied by it */
    const double *decay;        /* logarithm of what a state at the page's beginning has decayed to by each position */
    const float *key_dots, *query_dots;   /* each position's key times the row's key and query */
    const float *key_state, *query_state; /* what the state at the page's beginning gives for them [width]; the keys'
                                             are not looked at unless it corrects */
    const float *v;             /* [width] */
    float *u;                   /* what each position adds to the state, along its key [64, width] */
    float *out;                 /* [width] */
};

/* From the state at the beginning of a full page to the one at the beginning of the next. */
struct pp_recur_next {
    int64_t key_dim, width;     /* width: a multiple of 16 */
    const double *decay;        /* [64] */
    const float *keys, *u;      /* of its positions [key_dim, 64], [64, width] */
    const float *from;          /* [key_dim, width] */
    float *to;                  /* likewise */
    float *scratch;             /* [key_dim, 64] */
};

/* A position of a head of Mamba's, whose state it changes (plan.h). */
struct pp_scan_step {
    int64_t key_dim, width;     /* width: a multiple of 16 */
    const float *rate;          /* [key_dim, width] */
    const float *step, *u;      /* [width]; u: the step times v */
    const float *key;           /* [key_dim] */
    float *state;               /* [key_dim, width] */
    const float *query;         /* [key_dim], or NULL: nothing is wanted of the state */
    const float *direct, *v;    /* [width], for what is wanted: direct v is added */
    float *out;                 /* [width] */
};

/* A position of a head of RWKV 7's, likewise; or RWKV 6's, which has neither `look` nor `taken`. */
struct pp_delta_step {
    int64_t key_dim, width;
    const float *decay, *look, *taken, *key; /* [key_dim] */
    const float *v;             /* [width] */
    float *state;               /* [key_dim, width] */
    const float *query;         /* [key_dim], or NULL */
    float *out;                 /* [width] */
};

/* Attention of a row's query: for each chunk of 256 positions scores s = (scale * log2 e) q . k, a reference m,
 * p = 2^(s - m), l = sum p, o = sum p v; chunks are merged in ascending order: with M' = max(M, m),
 * O = O 2^(M - M') + o 2^(m - M'), L likewise; the result is O / L. Powers below 2^-125 are zeros.
 *
 * q . k is summed over dimensions ascending, and m is the largest score. Where K is quantised, q . k is summed over
 * blocks of dimensions with one scale, ascending: each block's whole numbers times K's scale, then times the query's,
 * whose block is quantised as in Q8_0. p v is summed over positions ascending. Where V is quantised in blocks, p is
 * within 7.5e-5 of the power, p times V's scale becomes a whole number w, and the chunk's sum of w v is exact; m is
 * then so much below the largest s + log2 (the largest of the position's scales) that w fits 16 bits, but only just:
 * attention_body.h, reference().
 *
 * A query's bits depend on nothing but its own positions: not on its tile, nor on how chunks are shared out. With a
 * window the positions begin in the middle of a chunk, and earlier chunks have no part in it: chunks begin at multiples
 * of 256 all the same. */
struct pp_cpu_ops {
    /* y = x / sqrt(mean(x^2) + eps) * w, as (x * s) * w; x, y, w: float [n]; the sum in 16 partial sums. y may be x. */
    void (*rms_norm)(const float *x, const float *w, float eps, int64_t n, float *y);
    /* LayerNorm: y = (x - mean) / sqrt(mean((x - mean)^2) + eps) * w + b, as fma((x - mean) * s, w, b); sums as above.
     * b may be NULL: ((x - mean) * s) * w. y may be x. */
    void (*layer_norm)(const float *x, const float *w, const float *b, float eps, int64_t n, float *y);
    /* y = fn(g) * u (plan.h), `number` being that of the function; y may be g or u */
    void (*gate)(enum pp_fn fn, float number, const float *g, const float *u, int64_t n, float *y);
    /* y = fn(x), `number` being that of the function; y may be x */
    void (*apply)(enum pp_fn fn, float number, const float *x, int64_t n, float *y);
    /* Likewise with four numbers. */
    void (*xielu)(const struct pp_xielu *f, const float *x, int64_t n, float *y);
    /* y = x u; y may be x or u */
    void (*multiply)(const float *x, const float *u, int64_t n, float *y);
    /* Of n columns the weighted sums of n_taps rows: y = b + sum over j of w[j] x[j], which begins with b (or 0) and
     * grows by fma(x[j], w[j], sum), j ascending; x: [n_taps], NULL where there is nothing to add; w: [n_taps],
     * `stride` floats apart, readable in whole registers; b may be NULL. */
    void (*convolve)(int n_taps, float *const *x, const float *w, int64_t stride, const float *b, int64_t n, float *y);
    /* y += x */
    void (*add)(float *y, const float *x, int64_t n);
    /* Rotates the first rope_dim values of a head: pairs (i, i + rope_dim / 2) if neox, else (2i, 2i + 1), by
     * cos_sin[2i], [2i + 1]. */
    void (*rope)(float *x, int64_t rope_dim, bool neox, const float *cos_sin);
    /* Normalised Hadamard transform of consecutive segments of `block` (a power of two): its own inverse. */
    void (*hadamard)(float *x, int64_t n, int block);
    /* Writes K and V of one position of one head; k, v: float [head_dim], after RoPE and rotation; v is not looked at
     * if kv->v_in_k. slot: position in the page. */
    void (*kv_store)(const struct pp_kv_layout *kv, uint8_t *page, size_t head_offset, int slot, const float *k,
                     const float *v);
    /* Takes in a row's queries, float [group, head_dim], after RoPE, rotated if kv->rotate. */
    void (*attention_query)(const struct pp_attention *a, int row, const float *q, float scale);
    /* One chunk for rows row .. row + n_rows - 1 of the tile, row i with the positions see[i], one at least, i counted
     * from the tile's first row; heads: our KV head's bytes in the chunk's pages; those of which no row sees anything
     * are not looked at. Adds to those rows' places in *to, which begin with m = -inf, l = 0, o = 0. */
    void (*attention_chunk)(const struct pp_attention *a, const uint8_t *const heads[PP_CHUNK_PAGES], int row,
                            int n_rows, const struct pp_span *see, const struct pp_attention_sums *to);
    /* Adds a chunk's sums for rows row .. row + n_rows - 1: the same as if the chunk had been added to *to. */
    void (*attention_merge)(const struct pp_attention *a, int row, int n_rows, const struct pp_attention_sums *chunk,
                            const struct pp_attention_sums *to);
    /* Writes a row's result, float [group, v_dim]. */
    void (*attention_finish)(const struct pp_attention *a, int row, const struct pp_attention_sums *total, float *out);
    /* Takes in the queries of an index's heads, float [group, head_dim], as they are; a: of one row, a page having K in
     * F32 or F16. */
    void (*index_query)(const struct pp_attention *a, const float *q);
    /* The products q_h . k of the first n positions of a chunk with each head, as in attention: [n_heads][PP_KV_CHUNK].
     * heads: as above. */
    void (*index_dots)(const struct pp_attention *a, const uint8_t *const heads[PP_CHUNK_PAGES], int n, float *dots);
    /* Scores of the first n positions of a chunk: each begins with 0 and grows by fma(weights[h], max(0, q_h . k),
     * score), h ascending, q . k as above. NaN where a product is. heads: as above; scores: room for whole vectors. */
    void (*index_scores)(const struct pp_attention *a, const float *weights,
                         const uint8_t *const heads[PP_CHUNK_PAGES], int n, float *scores);
    /* y = x, which are halves at any address */
    void (*widen)(const void *x, int64_t n, float *y);
    /* y += scale * x: adapters */
    void (*add_scaled)(float *y, const float *x, float scale, int64_t n);
    /* Makes a row's A x, `rank` of them, what add_low_rank of the same table reads where B is in Q8_0, in the same
     * place: the values of each 256 k become whole numbers: c = 32639 / their largest, w[k] = down[k] c rounded to
     * nearest even. */
    void (*round_low_rank)(float *down, int rank);
    /* y[i][r] += scale * sum over k of B[r][k] down[i][k], for n batch rows i, r from row0, a multiple of 16, to
     * row1 - 1. The sum begins with 0 and grows by fma(down[k], B[r][k], sum), k ascending; then
     * y = fma(scale, sum, y). In Q8_0 the sum of w[k] q[r][k] of each 256 k is exact, and
     * y = fma(scale unit / c, (float)sum * d[r], y), k ascending. */
    void (*add_low_rank)(const struct pp_low_rank *b, const struct pp_low_rank_rows *rows, float scale, int64_t row0,
                         int64_t row1);
    /* Each sum begins with 0 and grows by fma(x, m, sum), d ascending. */
    void (*products)(const struct pp_products *p);
    /* With w_i = exp(decay[at] - decay[i]) and e = exp(decay[at]), both of the difference rounded to a float, the sums
     * over the positions i before it, ascending: k = sum of (w_i key_dots[i]) u[i], q likewise; then
     * u[at] = beta (v - fma(e, key_state, k)), or beta v where nothing is corrected, and
     * out = fma(e, query_state, fma(w_at query_dots[at], u[at], q)). */
    void (*recur_row)(const struct pp_recur_row *r);
    /* With w_i = exp(decay[63] - decay[i]) and e = exp(decay[63]), the same way: to[d] = fma(e, from[d], the sum over i
     * of (keys[d][i] w_i) u[i]). */
    void (*recur_next)(const struct pp_recur_next *n);
    /* state[d] = fma(exp(step rate[d]), state[d], key[d] u); out = fma(direct, v, the sum over d, ascending, of
     * fma(state[d], query[d], sum)). */
    void (*scan_step)(const struct pp_scan_step *s);
    /* With known the sum over d, ascending, of fma(state[d], look[d], sum), state[d] = fma(decay[d], state[d],
     * fma(taken[d], known, key[d] v)); out is the sum over d, ascending, of fma(state[d], query[d], sum). */
    void (*delta_step)(const struct pp_delta_step *s);
    /* out is the sum over d, ascending, of fma(state[d], query[d], sum); then state[d] = fma(decay[d], state[d],
     * key[d] v). */
    void (*decay_step)(const struct pp_delta_step *s);
};

/* The functions of a set that runs (pp_isa_runs); of one without functions of its own the scalar ones. */
const struct pp_cpu_ops *pp_cpu_ops(enum pp_isa isa);

#endif
