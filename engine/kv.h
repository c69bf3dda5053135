/* kv.h - the KV cache: pages of PP_PAGE_TOKENS positions with reference counts, and their layout.
 *
 * A page holds K and V of all layers of a tier for 64 consecutive positions of one token history. Sequences that share
 * a history share its pages; writing into a shared page copies it first. Full pages have names and are kept when
 * nobody needs them any more, as long as their memory is not needed: whoever computes the same history again finds
 * them. Pages come from one reserved range of addresses whose memory is touched only when used.
 *
 * Why 64: whole vectors of 16 positions, whole tiles of 64, four pages to a chunk of attention; and by measurement. In
 * TinyLlama's shape with Q8_0, AVX2, one thread of a Zen 4: attention of one row behind 4,096 tokens; copying the last
 * page for a fork; what a turn of 20 tokens writes to a snapshot, on average (1 + 19 / positions pages); how many
 * tokens two conversations that part compute twice, on average:
 *
 *   positions   page      one row   fork     snapshot   computed twice
 *   32          374 KiB   15.6 ms   0.03 ms  0.6 MB     16
 *   64          748 KiB   13.5 ms   0.05 ms  1.0 MB     32
 *   128         1.5 MiB   13.2 ms   0.11 ms  1.8 MB     64
 *   256         2.9 MiB   12.5 ms   0.20 ms  3.3 MB     128
 *
 * (8 rows together take 72 to 75 ms with all of them.) Half the size costs a sixth of decode's attention; twice the
 * size gains 2 % and doubles all the rest.
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
    PP_KV_MOST_SCALED = 128, /* in Q8, at most; a multiple of it */
    PP_KV_BEHIND = 512, /* bytes behind a page that may be read: half a tile of AMX, which nobody looks at */
    PP_KV_CHUNK = 256,  /* positions whose softmax is computed at a time; part of the arithmetic's definition */
};

/* What a position leaves behind for later ones in a layer. */
enum pp_tier_kind {
    PP_TIER_ATTENTION, /* K and V of heads */
    PP_TIER_INDEX,     /* the key by which an index picks it for attention, or not */
    PP_TIER_ROWS,      /* a vector of floats: what a short convolution looks back at. Always F32, whatever the type of K
                          and V: that is the arithmetic's definition */
    PP_TIER_STATE,     /* what it adds to the state of each head (plan.h). Likewise */
    PP_TIER_COMPRESSED, /* the last position of each block: K of one head, which is V, too, and stands for all of it */
};

/* Whether later positions may need a page however far behind them it lies, and pages are small. */
static inline bool pp_tier_has_keys(enum pp_tier_kind kind)
{
    return kind == PP_TIER_ATTENTION || kind == PP_TIER_INDEX || kind == PP_TIER_COMPRESSED;
}

/* Of a layer with states: n_head matrices [key_dim, value_dim], both multiples of 16. Neighbours share a key. */
struct pp_state_shape {
    int n_key_head, n_head, key_dim, value_dim;
    int n_inputs; /* floats that a position brings for a head whose states are made again step by step, or 0 */
};

/* Where things are in a page. For each layer and KV head, head_bytes:
 *
 *   F32, F16:  K [4 groups][head_pad][16 positions]
 *              V [64 positions][head_pad]
 *   FP8:       the same in E4M3, one byte a value, each a multiple of its position's scale
 *              K scales F16 [64], V scales F16 [64]
 *   Q8_0:      K quants + 128 as uint8 [4 groups][head_pad / 4][16 positions][4]
 *              K scales F16 [4 groups][head_pad / 32][16]
 *              V quants int8 [32 pairs of positions][head_pad][2]
 *              V scales F16 [head_pad / 32][64]
 *   Q8:        the same, but a scale for scale_dims values instead of 32: those that were rotated together, whose
 *              largest is hardly larger than that of 32 of them. The fewer scales, the less there is to do for a sum
 *   Q4_0:      K quants + 8 [4 groups][head_pad / 8][16 positions][4]: byte i holds dimension i in its low half, i + 4
 *              in its high half
 *              V quants + 8 [32 pairs][head_pad / 32][16][2]: byte i holds dimensions i and i + 16
 *              scales as in Q8_0
 *
 * Where V is the first v_dim values of K (latent attention), a page has K only. Attention makes V of it, a chunk at a
 * time, in this order: v and v_scales are then places in what it makes, v_bytes of each page.
 *
 * No byte and no scale belongs to two positions, so that threads may store positions side by side.
 *
 * head_pad is head_dim rounded up (16 for floats, 32 for Q8, Q8_0 and Q4_0) with zeros, and v_pad, which V has in its
 * place, is v_dim. In those three, K and V are rotated by a normalised Hadamard matrix of size `rotate` before they are
 * quantised, which spreads outliers; queries are rotated alike and the output is rotated back.
 *
 * In a tier of an index a layer has one head of K and no V, in F32 where the others' type is that, else in F16: which
 * positions are picked should not depend on how coarse the rest is.
 *
 * Where a block of `stride` positions has one key, that of its last position, a page has `slots` places instead of 64,
 * as many as blocks end in it, rounded up to a group: 16 of 4 positions each, and of 64 positions and more one, which
 * a page may be without. All else is as above.
 *
 * In a tier of rows a layer has one "head" of head_dim values without V: F32 [64 positions][head_pad].
 *
 * In a tier of states a layer has one "head" of other parts: for each key head
 *
 *   keys F32 [key_dim][64 positions]
 *
 * and behind those, for each head, whose state at position t is S_t = a_t S_(t-1) + k_t u_t',
 *
 *   S at the page's beginning, behind all positions before it, F32 [key_dim][value_dim]
 *   u F32 [64 positions][value_dim]
 *   the sum of ln a from the page's beginning up to each position, F64 [64]
 *
 * Nothing that is there is ever changed, but by writing a position again: S of a page is made with its first position,
 * of the page before, and what is between is the sum over the positions of the page. So what holds for K and V holds
 * here: pages are shared, forked and gone back in as they are, and a row needs no more than its own page, or as its
 * first position the one before. S goes with the page's first position where positions are copied.
 *
 * That needs a decay that is one number for all of a head. Where each value has its own, pages have for each head
 * instead
 *
 *   S at the page's beginning, F32 [key_dim][value_dim]
 *   S behind `n` of the page's positions, likewise
 *   what each position brings, F32 [64][n_inputs]
 *   n, I32 in the first of 16 words; anything else than 0 .. 64: the latter S is not known
 *
 * and S behind any position is made by taking one step after the other from the beginning. The latter S only saves
 * steps: they are the same ones, so that its bits are. It holds for a row whose position is n; where positions are
 * copied or written again it is forgotten. */
struct pp_kv_layout {
    enum pp_tier_kind kind;
    enum pp_kv_type type;
    int n_layer, n_head_kv, head_dim, head_pad;
    int64_t stride;      /* positions that share a place, a power of two; 1: each has one of its own */
    int slots;           /* places in a page: a multiple of 16 */
    bool v_in_k;         /* V is the first v_dim values of K, and is not stored */
    int v_dim, v_pad;    /* of V */
    int rotate;          /* power of two that divides head_dim and v_dim, or 0 */
    int scale_dims;      /* in Q8, Q8_0 and Q4_0: values that share a scale, a power of two, 32 at least; divides both
                            head_pad and v_pad */
    size_t k_scales, v, v_scales; /* offsets inside a head's bytes */
    size_t v_bytes;      /* of a page's V with its scales */
    struct pp_state_shape state; /* of a tier of states; head_dim is value_dim there */
    size_t head_bytes;
    size_t page_bytes;
};

/* True for the types whose scores and sums are made of whole numbers. */
static inline bool pp_kv_integers(const struct pp_kv_layout *l)
{
    return l->type == PP_KV_Q8 || l->type == PP_KV_Q8_0 || l->type == PP_KV_Q4_0;
}

/* True for those of them whose values are bytes. */
static inline bool pp_kv_bytes(const struct pp_kv_layout *l)
{
    return l->type == PP_KV_Q8 || l->type == PP_KV_Q8_0;
}

/* Bytes of a head in a page that hold K, and where V is made of K all there is. */
static inline size_t pp_kv_key_bytes(const struct pp_kv_layout *l)
{
    return l->v_in_k ? l->head_bytes : l->v;
}

/* Keys have head_dim values, values v_dim, not more. */
void pp_kv_layout_init_values(struct pp_kv_layout *l, enum pp_kv_type type, int n_layer, int n_head_kv, int head_dim,
                              int v_dim);
/* The same with v_in_k. */
void pp_kv_layout_init_latent(struct pp_kv_layout *l, enum pp_kv_type type, int n_layer, int n_head_kv, int head_dim,
                              int v_dim);
/* Of one of compressed positions: as in latent attention, V being all of K. */
void pp_kv_layout_init_compressed(struct pp_kv_layout *l, enum pp_kv_type type, int n_layer, int head_dim);
/* Pages that so many positions, from the first on, take. */
static inline int64_t pp_kv_pages_of(int64_t n_positions)
{
    return (n_positions + PP_PAGE_TOKENS - 1) / PP_PAGE_TOKENS;
}
/* Of a tier of an index; type: the other tiers'. */
void pp_kv_layout_init_index(struct pp_kv_layout *l, enum pp_kv_type type, int n_layer, int head_dim);
/* The same layout, but for places that `stride` positions share, a power of two from 4 on. v_in_k. */
void pp_kv_layout_share(struct pp_kv_layout *l, int64_t stride);
/* Whether the position, counted in its sequence or in its page, is the last of those that share a place; its page's
 * place. Of strides above a page's length only the former count is one. */
static inline bool pp_kv_is_last(const struct pp_kv_layout *l, int64_t position)
{
    return (position + 1) % l->stride == 0;
}
static inline int pp_kv_slot(const struct pp_kv_layout *l, int64_t position)
{
    return (int)(position % PP_PAGE_TOKENS / l->stride);
}
/* Of a tier of rows. */
void pp_kv_layout_init_rows(struct pp_kv_layout *l, int n_layer, int width);
/* Of a tier of states. */
void pp_kv_layout_init_state(struct pp_kv_layout *l, int n_layer, const struct pp_state_shape *shape);
static inline size_t pp_kv_head_offset(const struct pp_kv_layout *l, int layer, int head)
{
    return l->head_bytes * ((size_t)layer * (size_t)l->n_head_kv + (size_t)head);
}

/* In a page of such a tier, the row of a position: float [head_pad], zeros behind head_dim not promised. */
static inline float *pp_kv_row(const struct pp_kv_layout *l, uint8_t *page, int layer, int slot)
{
    return (float *)(void *)(page + pp_kv_head_offset(l, layer, 0)) + (size_t)slot * (size_t)l->head_pad;
}

/* In a page of a tier of states, the keys of a key head [key_dim, PP_PAGE_TOKENS]. */
static inline float *pp_kv_state_keys(const struct pp_kv_layout *l, uint8_t *page, int layer, int key_head)
{
    return (float *)(void *)(page + pp_kv_head_offset(l, layer, 0)) +
           (size_t)key_head * (size_t)l->state.key_dim * PP_PAGE_TOKENS;
}

/* What a head has there. */
struct pp_kv_state {
    float *start;        /* [key_dim, value_dim] */
    float *u;            /* [PP_PAGE_TOKENS, value_dim] */
    double *decay;       /* [PP_PAGE_TOKENS] */
};
struct pp_kv_state pp_kv_state_head(const struct pp_kv_layout *l, uint8_t *page, int layer, int head);

/* The same of a head whose states are made step by step. */
struct pp_kv_steps {
    float *start, *latest; /* [key_dim, value_dim] */
    float *inputs;         /* [PP_PAGE_TOKENS, n_inputs] */
    int32_t *n;            /* positions that `latest` stands behind */
};
struct pp_kv_steps pp_kv_steps_head(const struct pp_kv_layout *l, uint8_t *page, int layer, int head);

/* Copies K and V of one position of one head; from, to: the head's bytes in a page, the same or another. */
void pp_kv_copy_head_position(const struct pp_kv_layout *l, const uint8_t *from, int from_slot, uint8_t *to,
                              int to_slot);
/* The same of `n` places one behind the other, 1 or a whole group, of two v_in_k layouts that differ in `slots`. */
void pp_kv_copy_places(const struct pp_kv_layout *l, const uint8_t *from, int from_slot,
                       const struct pp_kv_layout *to_l, uint8_t *to, int to_slot, int n);
/* For all layers and heads; from, to: pages. Positions that share a place go with the last of them in a page. */
void pp_kv_copy_position(const struct pp_kv_layout *l, const uint8_t *from, int from_slot, uint8_t *to, int to_slot);
/* The stored values of one position of one head, as they are in the cache: quantised ones times their scales, rotated
 * still. k, v: float [head_dim]; v stays as it is with v_in_k. Storing them again gives the same bytes. */
void pp_kv_load_head_position(const struct pp_kv_layout *l, const uint8_t *head, int slot, float *k, float *v);

typedef int32_t pp_page_id;
enum { PP_NO_PAGE = -1 };

struct pp_kv_pool;

/* limit: bytes for pages; at least one page is granted. */
enum pp_code pp_kv_pool_new(const struct pp_kv_layout *l, uint64_t limit, struct pp_kv_pool **out,
                            struct pp_error *err);
void pp_kv_pool_free(struct pp_kv_pool *p);
const struct pp_kv_layout *pp_kv_pool_layout(const struct pp_kv_pool *p);
/* Has the system clear the memory of the next n pages that were never used, of at most half of what is left of those:
 * otherwise it does that when they are written to first, which takes longer than to fill them. It goes on until that is
 * done, or cancelled (NULL: never). Any thread, while others use the pool; changes no page. */
void pp_kv_pool_clear(const struct pp_kv_pool *p, uint64_t n, const struct pp_cancel *cancel);
uint64_t pp_kv_pool_used(const struct pp_kv_pool *p);   /* pages that somebody holds */
uint64_t pp_kv_pool_cached(const struct pp_kv_pool *p); /* pages that nobody holds, but which can be found */
uint64_t pp_kv_pool_total(const struct pp_kv_pool *p);  /* pages */

/* A page with one reference and no name: a free one, a new one, or else the cached one that was held longest ago.
 * PP_NO_PAGE: all are held. Allocates no heap memory. */
pp_page_id pp_page_take(struct pp_kv_pool *p);
void pp_page_retain(struct pp_kv_pool *p, pp_page_id id);
/* With the last reference, a page with a name becomes cached and another one free. */
void pp_page_release(struct pp_kv_pool *p, pp_page_id id);
int pp_page_refs(const struct pp_kv_pool *p, pp_page_id id);
/* page_bytes, 64-byte aligned, and PP_KV_BEHIND more that may be read. */
uint8_t *pp_page_data(const struct pp_kv_pool *p, pp_page_id id);

/* Makes a held page findable by its identity; if it has a name or another page has this one, nothing changes. What has
 * a name is not written to any more. */
void pp_page_name(struct pp_kv_pool *p, pp_page_id id, const struct pp_hash128 *name);
void pp_page_unname(struct pp_kv_pool *p, pp_page_id id); /* of a held page */
bool pp_page_named(const struct pp_kv_pool *p, pp_page_id id);
bool pp_page_known(const struct pp_kv_pool *p, const struct pp_hash128 *name); /* whether a page has this name */
/* The page of that name, with one more reference, or PP_NO_PAGE. */
pp_page_id pp_page_find(struct pp_kv_pool *p, const struct pp_hash128 *name);

/* A page's identity: a hash chain over its parent's identity, its tokens, and the KV key (everything else the values
 * depend on). Only full pages have one. parent: of the page before, or NULL for the first. */
struct pp_hash128 pp_page_identity(const struct pp_hash128 *parent, const struct pp_sha256 *kv_key,
                                   const int32_t *tokens);

#endif
