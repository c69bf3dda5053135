/* ops.h - everything a forward pass does besides matrix products: norms, rotations, attention, activations.
 *
 * One body (ops_body.h) compiled three times over vec.h; the scalar build is the definition and the others give its
 * bits. All functions are pure: any thread, disjoint outputs. */
#ifndef PP_CPU_OPS_H
#define PP_CPU_OPS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/cpu/isa.h"
#include "engine/kv.h"

enum { PP_MAX_HEAD_DIM = 512, PP_MAX_GROUP = 128 }; /* query heads that share a KV head */

/* Room for one call of attention(); one per thread. */
struct pp_attention_scratch {
    float q[PP_MAX_GROUP * PP_MAX_HEAD_DIM];     /* scaled queries [n_q, head_pad] */
    int8_t q8[PP_MAX_GROUP * PP_MAX_HEAD_DIM];   /* quantised, for Q8_0 */
    float q8_scale[PP_MAX_GROUP * PP_MAX_HEAD_DIM / PP_KV_BLOCK];
    int32_t q8_sum[PP_MAX_GROUP * PP_MAX_HEAD_DIM / PP_KV_BLOCK];
    float p[PP_MAX_GROUP * PP_KV_CHUNK];         /* scores, then probabilities [n_q, 256] */
    float v_scale[PP_MAX_HEAD_DIM / PP_KV_BLOCK * PP_KV_CHUNK]; /* of a chunk's V, [blocks, 256] */
    float chunk_out[PP_MAX_GROUP * PP_MAX_HEAD_DIM];
};

/* Attention of one row's query heads that share one KV head. For each chunk of 256 positions: scores s = scale * q . k,
 * m = max s, p = exp(s - m), l = sum p, o = sum p v; chunks are merged in ascending order: with M' = max(M, m),
 * O = O exp(M - M') + o exp(m - M'), L likewise; the result is O / L. */
struct pp_attention {
    const struct pp_kv_layout *kv;
    uint8_t *const *pages;    /* data of the sequence's pages, in order */
    size_t head_offset;       /* pp_kv_head_offset(layer, head) */
    const float *q;           /* [n_q, q_stride], after RoPE; rotated if kv->rotate */
    int64_t q_stride;
    int n_q;
    float scale;
    int64_t n_kv;             /* positions 0 .. n_kv - 1 are attended to */
    int64_t tail_page;        /* from this page on, the head's bytes are those at tail[page - tail_page]; INT64_MAX: */
    const uint8_t *tail[2];   /* nowhere. A tree's branch has its last positions there, side by side as a chain's */
    float *out;               /* [n_q, out_stride] */
    int64_t out_stride;
    struct pp_attention_scratch *scratch;
};

struct pp_cpu_ops {
    /* y = x / sqrt(mean(x^2) + eps) * w, as (x * s) * w; x, y, w: float [n]; the sum in 16 partial sums. y may be x. */
    void (*rms_norm)(const float *x, const float *w, float eps, int64_t n, float *y);
    /* y = g / (1 + exp(-g)) * u */
    void (*swiglu)(const float *g, const float *u, int64_t n, float *y);
    /* y += x */
    void (*add)(float *y, const float *x, int64_t n);
    /* Rotates the first rope_dim values of a head: pairs (i, i + rope_dim / 2) if neox, else (2i, 2i + 1), by
     * cos_sin[2i], [2i + 1]. */
    void (*rope)(float *x, int64_t rope_dim, bool neox, const float *cos_sin);
    /* Normalised Hadamard transform of consecutive segments of `block` (a power of two): its own inverse. */
    void (*hadamard)(float *x, int64_t n, int block);
    /* Writes K and V of one position of one head; k, v: float [head_dim], after RoPE and rotation. slot: position in
     * the page. */
    void (*kv_store)(const struct pp_kv_layout *kv, uint8_t *page, size_t head_offset, int slot, const float *k,
                     const float *v);
    void (*attention)(const struct pp_attention *a);
    /* y += scale * x: adapters */
    void (*add_scaled)(float *y, const float *x, float scale, int64_t n);
};

const struct pp_cpu_ops *pp_cpu_ops(enum pp_isa isa);

#endif
