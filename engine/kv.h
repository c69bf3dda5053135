/* kv.h - the KV cache: pages of PP_PAGE_TOKENS positions with reference counts, and their layout.
 *
 * A page holds K and V of all layers of a tier for 64 consecutive positions of one token history. Sequences with a
 * common history share its pages, copy-on-write. Full pages are named by a hash of that history; once unreferenced they
 * stay findable by name until their memory is needed, so that the same history is not computed twice. Pages come from
 * one reserved address range whose memory is touched only when used.
 *
 * Why 64: whole vectors of 16 positions, whole tiles of 64, four pages to a chunk of attention; and by measurement. In
 * TinyLlama's shape with Q8_0, AVX2, one thread of a Zen 4: attention of one row after 4,096 tokens; copying the last
 * page for a fork; what a turn of 20 tokens writes to a snapshot, on average (1 + 19 / positions pages); how many
 * tokens two diverging conversations compute twice, on average:
 *
 *   positions   page      one row   fork     snapshot   computed twice
 *   32          374 KiB   15.6 ms   0.03 ms  0.6 MB     16
 *   64          748 KiB   13.5 ms   0.05 ms  1.0 MB     32
 *   128         1.5 MiB   13.2 ms   0.11 ms  1.8 MB     64
 *   256         2.9 MiB   12.5 ms   0.20 ms  3.3 MB     128
 *
 * (8 rows together take 72 to 75 ms at every size.) Half the size makes decode's attention a sixth slower; twice the
 * size gains 2 % and doubles the other three.
 *
 * One thread owns a pool and everything here. */
#ifndef PP_ENGINE_KV_H
#define PP_ENGINE_KV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/cancel.h"
#include "engine/base/error.h"
#include "engine/base/hash.h"
#include "engine/engine.h"

enum {
    PP_PAGE_TOKENS = 64,
    PP_KV_GROUP = 16,   /* positions side by side in K, one vector lane each */
    PP_KV_BLOCK = 32,   /* values that share a scale in Q8_0 and Q4_0; never across tokens */
    PP_KV_MOST_SCALED = 128, /* values that share a scale in Q8, at most; a multiple of PP_KV_BLOCK */
    PP_KV_PADDING = 512, /* readable padding after a page, in bytes: half an AMX tile, whose values are not used */
    PP_KV_CHUNK = 256,  /* positions per step of the online softmax; part of the arithmetic's definition */
};

/* What a position stores for later ones in a layer. */
enum pp_tier_kind {
    PP_TIER_ATTENTION, /* K and V of heads */
    PP_TIER_INDEX,     /* the key by which an index selects positions for sparse attention */
    PP_TIER_ROWS,      /* a vector that a short convolution looks back at. F32 whatever the KV type: part of the
                          arithmetic's definition */
    PP_TIER_STATE,     /* its contribution to the recurrent state of each head (plan.h). F32, too */
    PP_TIER_COMPRESSED, /* one key per block of positions, which is also its value, kept at the block's last position */
};

/* Whether its pages are small, and may be needed however old their positions are. */
static inline bool pp_tier_has_keys(enum pp_tier_kind kind)
{
    return kind == PP_TIER_ATTENTION || kind == PP_TIER_INDEX || kind == PP_TIER_COMPRESSED;
}

/* The recurrent state of a layer: n_head matrices [key_dim, value_dim], both multiples of 16. Neighbouring heads share
 * a key head. */
struct pp_state_shape {
    int n_key_head, n_head, key_dim, value_dim;
    int n_inputs; /* floats stored per position and head where states are recomputed step by step (below); else 0 */
};

/* The layout of a page. For each layer and KV head, head_bytes:
 *
 *   F32, F16:  K [4 groups][head_pad][16 positions]
 *              V [64 positions][head_pad]
 *   FP8:       the same in E4M3, one byte a value, each a multiple of its position's scale
 *              K scales F16 [64], V scales F16 [64]
 *   Q8_0:      K quants + 128 as uint8 [4 groups][head_pad / 4][16 positions][4]
 *              K scales F16 [4 groups][head_pad / 32][16]
 *              V quants int8 [32 pairs of positions][head_pad][2]
 *              V scales F16 [head_pad / 32][64]
 *   Q8:        the same, but a scale per scale_dims values instead of 32: those that were rotated together, whose
 *              maximum is hardly larger than that of 32 of them. Fewer scales mean fewer multiplications per sum
 *   Q4_0:      K quants + 8 [4 groups][head_pad / 8][16 positions][4]: byte i holds dimension i in its low half, i + 4
 *              in its high half
 *              V quants + 8 [32 pairs][head_pad / 32][16][2]: byte i holds dimensions i and i + 16
 *              scales as in Q8_0
 *
 * Where V is the first v_dim values of K (latent attention), a page has K only. Attention derives V from it, a chunk at
 * a time, in the order above: v and v_scales are then offsets into that copy, of which each page takes v_bytes.
 *
 * No byte and no scale belongs to two positions, so that threads may store different positions at the same time.
 *
 * head_pad is head_dim rounded up (to 16 for floats, 32 for Q8, Q8_0 and Q4_0) and padded with zeros; v_pad is the same
 * for V, of v_dim. In those three types K and V are rotated by a normalised Hadamard matrix of size `rotate` before
 * they are quantised, which spreads outliers; queries are rotated alike and the output is rotated back.
 *
 * An index tier has one head of K per layer and no V, in F32 if that is the other tiers' type, else in F16: which
 * positions are picked should not depend on how coarsely K and V are quantised.
 *
 * Where a block of `stride` positions has one key, that of its last position, a page has `slots` slots instead of 64:
 * as many as blocks end in it, rounded up to a group. Blocks of 4 use all 16; of blocks of 64 or more one at most ends
 * in a page. All else is as above.
 *
 * A rows tier has one "head" of head_dim values per layer, without V: F32 [64 positions][head_pad].
 *
 * A state tier has one "head" per layer, made of other parts. First, for each key head,
 *
 *   keys F32 [key_dim][64 positions]
 *
 * and then, for each head, whose state at position t is S_t = a_t S_(t-1) + k_t u_t',
 *
 *   S at the page's beginning, after all positions before it, F32 [key_dim][value_dim]
 *   u F32 [64 positions][value_dim]
 *   the sum of ln a from the page's beginning up to each position, F64 [64]
 *
 * As with K and V, only writing a position changes what is stored for it: a page's S is computed along with its first
 * position, from the page before, and the state at any later position is S, decayed, plus a sum over the page's
 * positions. So these pages are shared, forked and truncated like others, and a row needs nothing but its own page (the
 * first row of a page, the one before). Where positions are copied, S goes with the page's first.
 *
 * That needs a decay that is one number per head. Where each value decays by itself, a page has for each head instead
 *
 *   S at the page's beginning, F32 [key_dim][value_dim]
 *   S after `n` of the page's positions, likewise
 *   each position's inputs, F32 [64][n_inputs]
 *   n, I32 in the first of 16 words; outside 0 .. 64 the second S is invalid
 *
 * and S after any position is recomputed step by step from the beginning. The second S only saves steps, to the same
 * bits. It serves the row at position n, and is invalidated where positions are copied or written again. */
struct pp_kv_layout {
    enum pp_tier_kind kind;
    enum pp_kv_type type;
    int n_layer, n_head_kv, head_dim, head_pad;
    int64_t stride;      /* positions that share a slot, a power of two; 1: each has its own */
    int slots;           /* in a page: a multiple of 16 */
    bool v_in_k;         /* V is the first v_dim values of K, and is not stored */
    int v_dim, v_pad;    /* of V */
    int rotate;          /* power of two that divides head_dim and v_dim, or 0 */
    int scale_dims;      /* in Q8, Q8_0 and Q4_0: values that share a scale, a power of two, 32 at least; divides both
                            head_pad and v_pad */
    size_t k_scales, v, v_scales; /* offsets inside a head's bytes */
    size_t v_bytes;      /* of a page's V with its scales */
    struct pp_state_shape state; /* of a state tier; head_dim is value_dim there */
    size_t head_bytes;
    size_t page_bytes;
};

/* True for the types whose scores and weighted sums are computed in integers. */
static inline bool pp_kv_integers(const struct pp_kv_layout *l)
{
    return l->type == PP_KV_Q8 || l->type == PP_KV_Q8_0 || l->type == PP_KV_Q4_0;
}

/* True for those of them that store a byte per value. */
static inline bool pp_kv_bytes(const struct pp_kv_layout *l)
{
    return l->type == PP_KV_Q8 || l->type == PP_KV_Q8_0;
}

/* Bytes of a head in a page that hold K: all of them where V is part of K. */
static inline size_t pp_kv_key_bytes(const struct pp_kv_layout *l)
{
    return l->v_in_k ? l->head_bytes : l->v;
}

/* An attention tier: keys of head_dim values, values of v_dim, v_dim <= head_dim. */
void pp_kv_layout_init_values(struct pp_kv_layout *l, enum pp_kv_type type, int n_layer, int n_head_kv, int head_dim,
                              int v_dim);
/* The same with v_in_k. */
void pp_kv_layout_init_latent(struct pp_kv_layout *l, enum pp_kv_type type, int n_layer, int n_head_kv, int head_dim,
                              int v_dim);
/* A tier of compressed blocks: as in latent attention, V being all of K. */
void pp_kv_layout_init_compressed(struct pp_kv_layout *l, enum pp_kv_type type, int n_layer, int head_dim);
/* Pages that the first n_positions of a sequence take. */
static inline int64_t pp_kv_pages_of(int64_t n_positions)
{
    return (n_positions + PP_PAGE_TOKENS - 1) / PP_PAGE_TOKENS;
}
/* An index tier; type: that of the other tiers. */
void pp_kv_layout_init_index(struct pp_kv_layout *l, enum pp_kv_type type, int n_layer, int head_dim);
/* Changes a layout with v_in_k so that blocks of `stride` positions share a slot; a power of two, at least 4. */
void pp_kv_layout_set_stride(struct pp_kv_layout *l, int64_t stride);
/* Whether a position is the last of its block, and the block's slot in its page. The position may be counted from the
 * beginning of the sequence, or, for strides up to the length of a page, of its page. */
static inline bool pp_kv_is_last(const struct pp_kv_layout *l, int64_t position)
{
    return (position + 1) % l->stride == 0;
}
static inline int pp_kv_slot(const struct pp_kv_layout *l, int64_t position)
{
    return (int)(position % PP_PAGE_TOKENS / l->stride);
}
/* A rows tier. */
void pp_kv_layout_init_rows(struct pp_kv_layout *l, int n_layer, int width);
/* A state tier. */
void pp_kv_layout_init_state(struct pp_kv_layout *l, int n_layer, const struct pp_state_shape *shape);
/* Where a head's bytes begin in a page. */
static inline size_t pp_kv_head_offset(const struct pp_kv_layout *l, int layer, int head)
{
    return l->head_bytes * ((size_t)layer * (size_t)l->n_head_kv + (size_t)head);
}

/* In a page of a rows tier, the row of a position: float [head_pad], undefined from head_dim on. */
static inline float *pp_kv_row(const struct pp_kv_layout *l, uint8_t *page, int layer, int slot)
{
    return (float *)(void *)(page + pp_kv_head_offset(l, layer, 0)) + (size_t)slot * (size_t)l->head_pad;
}

/* In a page of a state tier, the keys of a key head: float [key_dim, PP_PAGE_TOKENS]. */
static inline float *pp_kv_state_keys(const struct pp_kv_layout *l, uint8_t *page, int layer, int key_head)
{
    return (float *)(void *)(page + pp_kv_head_offset(l, layer, 0)) +
           (size_t)key_head * (size_t)l->state.key_dim * PP_PAGE_TOKENS;
}

/* The parts of a head in a page of a state tier. */
struct pp_kv_state {
    float *start;        /* [key_dim, value_dim]: S at the page's beginning */
    float *u;            /* [PP_PAGE_TOKENS, value_dim] */
    double *decay;       /* [PP_PAGE_TOKENS]: sums of ln a */
};
struct pp_kv_state pp_kv_state_head(const struct pp_kv_layout *l, uint8_t *page, int layer, int head);

/* The same for heads whose states are recomputed step by step. */
struct pp_kv_steps {
    float *start, *latest; /* [key_dim, value_dim]: S at the page's beginning, and after n positions */
    float *inputs;         /* [PP_PAGE_TOKENS, n_inputs] */
    int32_t *n;
};
struct pp_kv_steps pp_kv_steps_head(const struct pp_kv_layout *l, uint8_t *page, int layer, int head);

/* Copies K and V of one position of one head; from, to: the head's bytes in a page, the same or another. */
void pp_kv_copy_head_position(const struct pp_kv_layout *l, const uint8_t *from, int from_slot, uint8_t *to,
                              int to_slot);
/* The same for n consecutive slots, 1 or a whole group, between two v_in_k layouts that may differ in `slots`. */
void pp_kv_copy_slots(const struct pp_kv_layout *l, const uint8_t *from, int from_slot,
                      const struct pp_kv_layout *to_l, uint8_t *to, int to_slot, int n);
/* The same for all layers and heads; from, to: pages. The slot of a block is copied with the block's last position. */
void pp_kv_copy_position(const struct pp_kv_layout *l, const uint8_t *from, int from_slot, uint8_t *to, int to_slot);
/* Loads and dequantises one position of one head, still rotated. k: float [head_dim]; v: float [v_dim], untouched with
 * v_in_k. Storing them again gives the same bytes. */
void pp_kv_load_head_position(const struct pp_kv_layout *l, const uint8_t *head, int slot, float *k, float *v);

typedef int32_t pp_page_id;
enum { PP_NO_PAGE = -1 };

struct pp_kv_pool;

/* Reserves addresses for `limit` bytes of pages, at least one page. The caller owns *out (pp_kv_pool_free, once nobody
 * uses its pages; NULL is fine). PP_ERR_NOMEM. */
enum pp_code pp_kv_pool_new(const struct pp_kv_layout *l, uint64_t limit, struct pp_kv_pool **out,
                            struct pp_error *err);
void pp_kv_pool_free(struct pp_kv_pool *p);
const struct pp_kv_layout *pp_kv_pool_layout(const struct pp_kv_pool *p);
/* Faults in the next n never-used pages, at most half of those left; otherwise the first write to each would, which
 * takes longer than filling them. Returns when done or cancelled (NULL: never). Any thread, while others use the pool;
 * changes no page. */
void pp_kv_pool_prefault(const struct pp_kv_pool *p, uint64_t n, const struct pp_cancel *cancel);
uint64_t pp_kv_pool_used(const struct pp_kv_pool *p);   /* pages with references */
uint64_t pp_kv_pool_cached(const struct pp_kv_pool *p); /* pages without references that can be found by name */
uint64_t pp_kv_pool_total(const struct pp_kv_pool *p);  /* pages */

/* A page with one reference and no name: a free one, a never-used one, or the least recently used cached one.
 * PP_NO_PAGE: all have references. Allocates no heap memory. */
pp_page_id pp_page_take(struct pp_kv_pool *p);
void pp_page_retain(struct pp_kv_pool *p, pp_page_id id);
/* When the last reference goes, a named page becomes cached, any other free. */
void pp_page_release(struct pp_kv_pool *p, pp_page_id id);
int pp_page_refs(const struct pp_kv_pool *p, pp_page_id id);
/* page_bytes, 64-byte aligned, and PP_KV_PADDING more that may be read. */
uint8_t *pp_page_data(const struct pp_kv_pool *p, pp_page_id id);

/* Makes a referenced page findable by its identity; no effect if it has a name already, or another page has this one. A
 * named page must not be written to. */
void pp_page_name(struct pp_kv_pool *p, pp_page_id id, const struct pp_hash128 *name);
void pp_page_unname(struct pp_kv_pool *p, pp_page_id id); /* of a referenced page */
bool pp_page_named(const struct pp_kv_pool *p, pp_page_id id);
bool pp_page_known(const struct pp_kv_pool *p, const struct pp_hash128 *name); /* whether a page has this name */
/* The page of that name, with one more reference, or PP_NO_PAGE. */
pp_page_id pp_page_find(struct pp_kv_pool *p, const struct pp_hash128 *name);

/* A page's identity: a hash over its parent's identity, its tokens [PP_PAGE_TOKENS] and the KV key (everything else
 * that its values depend on). parent: the identity of the page before; NULL for the first. */
struct pp_hash128 pp_page_identity(const struct pp_hash128 *parent, const struct pp_sha256 *kv_key,
                                   const int32_t *tokens);

#endif
