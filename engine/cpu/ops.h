/* ops.h - everything in a forward pass other than matrix products: norms, RoPE, attention, activation functions,
 * recurrent states.
 *
 * One body (ops_body.h, attention_body.h) is compiled over vec.h for each instruction set. The scalar build is the
 * definition; the others produce the same bits. All functions are pure: any thread may call them, for different
 * outputs. */
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
    PP_TILE_QUERIES = 64, /* most queries of a tile: rows times group; a tile of one row may have more */
    PP_PART_QUERIES = 16, /* most queries whose scores are computed at a time: these stay in the L1 cache */
    PP_ATTENTION_SUM_TILES = 8,
    PP_CHUNK_PAGES = PP_KV_CHUNK / PP_PAGE_TOKENS,
};

/* Partial results of attention over some positions: for each query a reference m, l = sum of p = 2^(s - m) and
 * o = sum of p v. */
struct pp_attention_sums {
    float *m, *l;               /* [n_q] */
    float *o;                   /* [n_q, v_pad] */
};

/* Positions begin .. end - 1 of a chunk. */
struct pp_span {
    int begin, end;
};

/* A tile: the queries of some rows that share a KV head, and a thread's scratch for them. */
struct pp_attention {
    const struct pp_kv_layout *kv;
    int n_rows, group;          /* n_q = n_rows * group queries, row by row */
    float softcap;              /* scores become softcap tanh(score / softcap); 0: no cap */
    bool unasked;               /* the current chunk has not been prefetched, except for K of its first page */
    bool growing;               /* scores, after the soft cap, are multiplied by their row's growth: */
    float growth[PP_TILE_QUERIES];
    const float *slopes;        /* [group]: ALiBi's slopes (arXiv 2108.12409), by which scores decrease per position of
                                   distance, times log2 e; or NULL */
    float at[PP_TILE_QUERIES];  /* with slopes: the rows' own positions, relative to the chunk's first position */
    const uint8_t *next[PP_CHUNK_PAGES]; /* the tile's head in the pages of the next chunk, to prefetch; or NULL */
    float *q;                   /* scaled queries [head_pad, n_q] */
    int32_t *q_words;           /* quantised queries, in the order that this build's dot product reads [head_pad / 2,
                                   n_q] */
    float *q_scale;             /* [head_pad / scale_dims, n_q] */
    int32_t *q_start;           /* initial values of integer dot products, because K is stored with an offset */
    float *v_scale;             /* scales of a chunk's V, [v_pad / scale_dims, 256] */
    float *v_log;               /* an upper bound of log2 of each position's largest V scale [256] */
    /* for the current part of the tile: */
    float *p;                   /* scores, then powers [PP_PART_QUERIES, 256] */
    int16_t *w;                 /* powers times V's scales, as integers [v_pad / scale_dims, PP_PART_QUERIES, 256], each
                                   32 positions in the order of the build's products */
    uint8_t *tiles;             /* attention_amx.h's: queries; from tiles_fixed on, what does not depend on n_q */
    size_t tiles_fixed;
    float *o;                   /* sums of a chunk, if there are few queries and V is float [PP_PART_QUERIES, v_pad] */
    uint8_t *values;            /* a chunk's V, if pages hold K only: v_bytes for each page (attention_latent.h) */
    struct pp_attention_sums total; /* o: room for [n_q, head_pad], and for [n_q, v_pad] */
};

/* Returns the bytes that the arrays above take for n_q queries, a multiple of 64; and sets their addresses in memory of
 * this size. */
size_t pp_attention_bytes(const struct pp_kv_layout *kv, int n_q);
void pp_attention_init(struct pp_attention *a, const struct pp_kv_layout *kv, int n_q, void *memory);

/* An adapter's B [n_out, rank], packed for add_low_rank: blocks of 64 outputs, the last padded with zeros, each
 *
 *   F32, F16   values [4][rank][16]: output 16 i + l is lane l of the i-th quarter
 *   Q8_0       scales f16 [64], one for each output, then bytes [(rank + 3) / 4][4][16][4]: for each four k the four
 *              values, plus 128, of lane l of the i-th quarter, padded with 128; all times `unit` */
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

/* The rows that an adapter's B is applied to. */
struct pp_low_rank_rows {
    int n;
    float *y;               /* [n, y_stride] */
    const float *down;      /* [n, down_stride]: A x, of which rank are used; where B is in Q8_0, the result of
                               round_low_rank, of which pp_low_rank_room(rank) are */
    int64_t y_stride, down_stride;
};

/* Floats of a row's A x, as floats or as round_low_rank() leaves it. */
static inline int pp_low_rank_room(int rank)
{
    return rank ? rank + 3 : 0;
}

/* How many bytes ahead add_low_rank prefetches B where only one row uses it. Measured on a Zen 4 and on a Granite
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

/* A product of float matrices: y[r][c] = sum over d of x[r][d] m[d][c]. n_cols and the strides of m and y are multiples
 * of 16. */
struct pp_products {
    const float *x, *m;         /* [n_rows, x_stride], of which n_inner are used; [n_inner, m_stride] */
    float *y;                   /* [n_rows, y_stride] */
    int64_t n_rows, n_inner, n_cols;
    int64_t x_stride, m_stride, y_stride;
};

/* One position of a head with a recurrent state (recur.c), the at-th of its page. Arrays over the page's positions hold
 * at + 1 values, except u, which holds `at` before the call; all have room for whole vectors. */
struct pp_recur_row {
    int at;
    int64_t width;              /* floats of a value, a multiple of 16 */
    bool corrects;              /* the delta rule: subtracts from v the state's output for the key */
    float beta;                 /* the factor of the difference, or of v */
    const double *decay;        /* logarithms of the decay from the page's beginning up to each position */
    const float *key_dots, *query_dots;   /* each position's key times the row's key and query */
    const float *key_state, *query_state; /* the state at the page's beginning times the row's key and query [width];
                                             key_state is not read unless it corrects */
    const float *v;             /* [width] */
    float *u;                   /* what each position adds to the state, along its key [64, width] */
    float *out;                 /* [width] */
};

/* Computes the state at the beginning of a page from the state at the beginning of the page before it, which is
 * full. */
struct pp_recur_next {
    int64_t key_dim, width;     /* width: a multiple of 16 */
    const double *decay;        /* [64] */
    const float *keys, *u;      /* of the full page's positions [key_dim, 64], [64, width] */
    const float *from;          /* [key_dim, width] */
    float *to;                  /* [key_dim, width] */
    float *scratch;             /* [key_dim, 64] */
};

/* One position of a head in Mamba's selective scan, which updates the head's state (plan.h). */
struct pp_scan_step {
    int64_t key_dim, width;     /* width: a multiple of 16 */
    const float *rate;          /* [key_dim, width] */
    const float *step, *u;      /* [width]; u: the step times v */
    const float *key;           /* [key_dim] */
    float *state;               /* [key_dim, width] */
    const float *query;         /* [key_dim], or NULL: no output */
    const float *direct, *v;    /* [width]: direct v is added to the output */
    float *out;                 /* [width] */
};

/* The same for a head of RWKV 7; or of RWKV 6, which has neither `removal_key` nor `removal`. */
struct pp_delta_step {
    int64_t key_dim, width;
    const float *decay, *removal_key, *removal, *key; /* [key_dim] */
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
 * blocks of dimensions with one scale, ascending: each block's integer sum times K's scale, then times the query's,
 * whose block is quantised as in Q8_0. p v is summed over positions ascending. Where V is quantised in blocks, p is
 * within 7.5e-5 of the power, p times V's scale is rounded to an integer w, and the chunk's sum of w v is exact; m is
 * then so far below the largest s + log2(the largest of the position's scales) that w just fits 16 bits:
 * attention_body.h, reference().
 *
 * A query's bits depend on its own positions only, not on its tile, nor on how chunks are split among items. Chunks
 * begin at multiples of 256 even if a window begins in the middle of one; earlier chunks are skipped. */
struct pp_cpu_ops {
    /* y = x / sqrt(mean(x^2) + eps) * w, as (x * s) * w; x, y, w: float [n]; the sum in 16 partial sums. y may be x. */
    void (*rms_norm)(const float *x, const float *w, float eps, int64_t n, float *y);
    /* LayerNorm: y = (x - mean) / sqrt(mean((x - mean)^2) + eps) * w + b, as fma((x - mean) * s, w, b); sums as above.
     * b may be NULL: ((x - mean) * s) * w. y may be x. */
    void (*layer_norm)(const float *x, const float *w, const float *b, float eps, int64_t n, float *y);
    /* y = fn(g) * u (plan.h), `number` being the function's parameter; y may be g or u */
    void (*gate)(enum pp_fn fn, float number, const float *g, const float *u, int64_t n, float *y);
    /* y = fn(x), `number` being the function's parameter; y may be x */
    void (*apply)(enum pp_fn fn, float number, const float *x, int64_t n, float *y);
    /* y = xIELU(x), with the function's own four parameters; y may be x */
    void (*xielu)(const struct pp_xielu *f, const float *x, int64_t n, float *y);
    /* y = x u; y may be x or u */
    void (*multiply)(const float *x, const float *u, int64_t n, float *y);
    /* For n columns the weighted sum of n_taps rows, y = b + sum over j of w[j] x[j]: begins with b (or 0), then
     * fma(x[j], w[j], sum), j ascending; x: [n_taps], NULL where there is nothing to add; w: [n_taps], `stride` floats
     * apart, readable in whole vectors; b may be NULL. */
    void (*convolve)(int n_taps, float *const *x, const float *w, int64_t stride, const float *b, int64_t n, float *y);
    /* y += x */
    void (*add)(float *y, const float *x, int64_t n);
    /* Rotates the first rope_dim values of a head: pairs (i, i + rope_dim / 2) if neox, else (2i, 2i + 1), by
     * cos_sin[2i], [2i + 1]. */
    void (*rope)(float *x, int64_t rope_dim, bool neox, const float *cos_sin);
    /* Normalised Hadamard transform of consecutive segments of `block` (a power of two): its own inverse. */
    void (*hadamard)(float *x, int64_t n, int block);
    /* Stores K and V of one position and one head in a page. k: float [head_dim], v: float [v_dim], after RoPE and the
     * Hadamard rotation; v is not read if kv->v_in_k. slot: the position's index in the page. */
    void (*kv_store)(const struct pp_kv_layout *kv, uint8_t *page, size_t head_offset, int slot, const float *k,
                     const float *v);
    /* Loads a row's queries, float [group, head_dim], after RoPE, and after the Hadamard rotation if kv->rotate. */
    void (*attention_query)(const struct pp_attention *a, int row, const float *q, float scale);
    /* Adds one chunk to the sums *to of rows row .. row + n_rows - 1 of the tile. Row i, counted from the tile's first,
     * attends to the positions see[i], at least one. heads: the KV head's bytes in the chunk's pages; pages that no row
     * attends to are not read. Initial sums are m = -inf, l = 0, o = 0. */
    void (*attention_chunk)(const struct pp_attention *a, const uint8_t *const heads[PP_CHUNK_PAGES], int row,
                            int n_rows, const struct pp_span *see, const struct pp_attention_sums *to);
    /* Merges a chunk's sums for rows row .. row + n_rows - 1 into *to: the same bits as if the chunk had been added. */
    void (*attention_merge)(const struct pp_attention *a, int row, int n_rows, const struct pp_attention_sums *chunk,
                            const struct pp_attention_sums *to);
    /* Writes a row's result, float [group, v_dim]. */
    void (*attention_finish)(const struct pp_attention *a, int row, const struct pp_attention_sums *total, float *out);
    /* Loads the queries of an index's heads, float [group, head_dim], unscaled; a: of one row, with K in F32 or F16. */
    void (*index_query)(const struct pp_attention *a, const float *q);
    /* The products q_h . k of the first n positions of a chunk with each head, as in attention: [n_heads][PP_KV_CHUNK].
     * heads: as above. */
    void (*index_dots)(const struct pp_attention *a, const uint8_t *const heads[PP_CHUNK_PAGES], int n, float *dots);
    /* Scores of the first n positions of a chunk: each begins with 0, then fma(weights[h], max(0, q_h . k), score), h
     * ascending, q . k as above. NaN where a product is. heads: as above; scores: room for whole vectors. */
    void (*index_scores)(const struct pp_attention *a, const float *weights,
                         const uint8_t *const heads[PP_CHUNK_PAGES], int n, float *scores);
    /* y = x, converted from F16; x need not be aligned */
    void (*widen)(const void *x, int64_t n, float *y);
    /* y += scale * x: adapters */
    void (*add_scaled)(float *y, const float *x, float scale, int64_t n);
    /* Converts a row's A x [rank], in place, to the form that add_low_rank of the same kernel set reads if B is in
     * Q8_0: each 256 values become integers w[k] = down[k] c rounded to nearest even, with c = 32639 / the largest
     * |down[k]| of them. */
    void (*round_low_rank)(float *down, int rank);
    /* y[i][r] += scale * sum over k of B[r][k] down[i][k], for n batch rows i, r from row0, a multiple of 16, to
     * row1 - 1. The sum begins with 0, then fma(down[k], B[r][k], sum), k ascending; y = fma(scale, sum, y). In Q8_0
     * the sum of w[k] q[r][k] over each 256 k is exact, and y = fma(scale unit / c, (float)sum * d[r], y), k
     * ascending. */
    void (*add_low_rank)(const struct pp_low_rank *b, const struct pp_low_rank_rows *rows, float scale, int64_t row0,
                         int64_t row1);
    /* Each sum begins with 0, then fma(x, m, sum), d ascending. */
    void (*products)(const struct pp_products *p);
    /* With w_i = exp(decay[at] - decay[i]) and e = exp(decay[at]), both of the difference rounded to a float, the sums
     * over the positions i before it, ascending: k = sum of (w_i key_dots[i]) u[i], q likewise; then
     * u[at] = beta (v - fma(e, key_state, k)), or beta v unless it corrects, and
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

/* The functions of a set that this CPU runs (pp_isa_runs); the scalar ones for a set without its own. */
const struct pp_cpu_ops *pp_cpu_ops(enum pp_isa isa);

#endif
