/* attend.c - attention stages: RoPE, KV store, and flash attention over tiles of rows.
 *
 * Neighbouring rows of one sequence form a tile, so that each load of K and V serves all their queries of a KV head.
 * The positions they see are processed in chunks of PP_KV_CHUNK with an online softmax. When there are few tiles,
 * several items split the chunks of one (as in flash decoding): each leaves the sums of its chunks in memory, and
 * whichever finishes last merges them in ascending order, which gives the bits of a single item.
 *
 * If a row attends only to positions picked by an index, these are gathered, a chunk at a time, as if the sequence
 * consisted of them alone: attention then costs as much as for such a short sequence, plus the gathering. In the cache
 * sixteen neighbouring positions are interleaved in units of four bytes: if few of each sixteen are picked, gathering
 * reads up to sixteen times the bytes that it uses, but never more than those of all positions. The rows of such a tile
 * share nothing; if 64 heads or more share one key, tiles are single rows anyway. If blocks are picked, pages that are
 * picked entirely are read in place.
 *
 * If each query head attends to different blocks of positions (Phi 3 small), heads are processed one by one instead of
 * all heads of a KV head together. Blocks are pages, read in place; a row's chunks consist of the pages that the head
 * attends to.
 *
 * If a row attends to the first positions of the sequence and, after a gap, to those of its window, the former are a
 * separate chunk before the first chunk of the window.
 *
 * If a row also attends to compressed blocks, the positions of its window are gathered, ascending, followed by the keys
 * of the blocks, and its chunks are those of the gathered sequence. Whole groups of sixteen are copied at once if
 * source and destination are aligned alike. */
#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/cpu/program.h"

enum {
    ITEMS_PER_THREAD = 4,        /* the target when tiles are split */
    LEAST_PARTIAL = 1 << 20,     /* floats for partial sums; a pass that needs more than there are splits no tiles */
    LATENT_CHUNKS = 128,         /* in latent attention there is always room for so many chunks of a row */
    FEW_ROWS = 16,               /* see tiles_store */
};

/* --- the plan ---------------------------------------------------------------------------------------------- */

/* Floats of one chunk's sums for n_q queries: m, l, and o [v_pad]. */
static size_t sums_size(const struct attend_plan *p, int n_q)
{
    return (size_t)n_q * ((size_t)p->kv.v_pad + 2);
}

static bool make_plan(struct pp_cpu *c, struct attend_plan *p)
{
    p->tile_rows = 1;
    if (p->kv.kind != PP_TIER_ATTENTION)
        return true;
    p->tile_rows = p->group < PP_TILE_QUERIES ? PP_TILE_QUERIES / p->group : 1;
    p->left = pp_cpu_memory_take(c, ITEMS_PER_THREAD * pp_pool_n(c->pool), sizeof *p->left);
    p->tiles = pp_cpu_memory_take(c, c->max_rows + 1, sizeof *p->tiles);
    return p->left && p->tiles;
}

static bool is_of_attention(const struct pp_cpu *c, int tier)
{
    return c->attend[tier].kv.kind == PP_TIER_ATTENTION;
}

/* Bytes of a chunk of index keys, one per compressed block, gathered as if each position had a key. */
static size_t index_chunk_bytes(const struct pp_kv_layout *kv)
{
    return (size_t)(PP_KV_CHUNK / kv->slots) * kv->head_bytes;
}

/* Allocates a thread's scratch for tiles. An item uses the scratch of one tier only, and not that of products at the
 * same time, so all of them share the memory of `kernel`. */
static bool make_thread(struct pp_cpu *c, struct thread_scratch *scratch)
{
    size_t kernel = c->kernel_bytes, tail = 0;
    for (int t = 0; t < c->n_tiers; t++) {
        const struct attend_plan *p = &c->attend[t];
        const size_t recur = pp_cpu_recur_bytes(&p->kv);
        kernel = recur > kernel ? recur : kernel;
        if (!pp_tier_has_keys(p->kv.kind))
            continue;
        size_t bytes = pp_attention_bytes(&p->kv, p->tile_rows * p->group);
        kernel = bytes > kernel ? bytes : kernel;
        const size_t ends = p->kv.kind == PP_TIER_INDEX && p->kv.stride > 1 ? index_chunk_bytes(&p->kv)
                            : p->top_k || p->stride                         ? PP_CHUNK_PAGES * p->kv.head_bytes
                                                                            : 2 * p->kv.head_bytes;
        tail = ends > tail ? ends : tail;
    }
    scratch->kernel = pp_cpu_memory_take(c, 1, kernel);
    scratch->tail = pp_cpu_memory_take(c, 1, tail + PP_KV_PADDING); /* read like pages */
    if (!scratch->kernel || !scratch->tail)
        return false;
    for (int t = 0; t < c->n_tiers; t++) {
        const struct attend_plan *p = &c->attend[t];
        if (!pp_tier_has_keys(p->kv.kind))
            continue;
        scratch->attention[t].n_rows = 1;
        scratch->attention[t].group = p->group;
        pp_attention_init(&scratch->attention[t], &p->kv, p->tile_rows * p->group, scratch->kernel);
    }
    return true;
}

/* With latent attention all heads share one KV head, so that there is nothing to split but chunks. */
static int64_t least_partial(const struct pp_cpu *c)
{
    int64_t least = LEAST_PARTIAL;
    for (int t = 0; t < c->n_tiers; t++) {
        const int64_t chunks = LATENT_CHUNKS * (int64_t)sums_size(&c->attend[t], c->attend[t].group);
        least = c->attend[t].kv.v_in_k && chunks > least ? chunks : least;
    }
    return least;
}

bool pp_cpu_attend_new(struct pp_cpu *c)
{
    int n_threads = pp_pool_n(c->pool);
    for (int t = 0; t < c->n_tiers; t++)
        if (!make_plan(c, &c->attend[t]))
            return false;
    for (int i = 0; i < n_threads; i++)
        if (!make_thread(c, &c->threads[i]))
            return false;
    const int64_t least = least_partial(c);
    if (n_threads == 1 || c->attention_floats >= least)
        return true;
    c->attention_room = c->own_room = pp_cpu_memory_take(c, least, sizeof(float));
    c->attention_floats = least;
    return c->own_room != NULL;
}

void pp_cpu_attend_free(struct pp_cpu *c)
{
    for (int i = 0; c->threads && i < pp_pool_n(c->pool); i++)
        pp_free(c->threads[i].tail);
    for (int t = 0; t < c->n_tiers; t++) {
        pp_free(c->attend[t].tiles);
        pp_free(c->attend[t].left);
    }
    pp_free(c->own_room);
}

/* How many positions a row may attend to, windows and picks aside. */
static int64_t row_length(const struct pp_batch_row *r)
{
    return pp_cpu_row_length(r);
}

/* How many compressed blocks end no later than a row. */
static int64_t n_blocks(const struct attend_plan *p, const struct pp_batch_row *r)
{
    return p->stride ? row_length(r) / p->stride : 0;
}

/* Whether a row attends only to what the index picked; otherwise it attends to all positions. */
static bool is_picked(const struct attend_plan *p, const struct pp_batch_row *r)
{
    const int64_t n = p->stride ? n_blocks(p, r) : row_length(r);
    return p->top_k && (p->pooled ? n - n % p->block : n) > p->top_k;
}

/* With vert_stride: the number of pages before the near pages, which all heads attend to. */
static int64_t n_far(const struct attend_plan *p, const struct pp_batch_row *r)
{
    const int64_t own = (row_length(r) - 1) / PP_PAGE_TOKENS;
    return p->n_local_blocks && own >= p->n_local_blocks ? own - p->n_local_blocks + 1 : 0;
}

/* The first of the far pages that a head attends to: (page + head * far_shift + 1) is a multiple of vert_stride. */
static int64_t first_far(const struct attend_plan *p, int head)
{
    return (p->vert_stride - (head * p->far_shift + 1) % p->vert_stride) % p->vert_stride;
}

/* How many of n far pages a head attends to; head -1: the most that any head attends to. */
static int64_t n_far_seen(const struct attend_plan *p, int64_t n, int head)
{
    const int64_t first = head < 0 ? 0 : first_far(p, head);
    return n > first ? (n - 1 - first) / p->vert_stride + 1 : 0;
}

/* Whether the positions that a row sees are not contiguous in its pages. */
static bool is_gathered(const struct attend_plan *p, const struct pp_batch_row *r)
{
    return p->stride || is_picked(p, r) || n_far(p, r);
}

/* With compressed blocks: the number of positions in the window, which precede the blocks in the gathered sequence. */
static int64_t n_windowed(const struct attend_plan *p, const struct pp_batch_row *r)
{
    return row_length(r) < p->window ? row_length(r) : p->window;
}

/* A row's own index among the positions that it attends to. In a tree that is not its slot, which counts siblings,
 * too. */
static int64_t row_place(const struct pp_batch_row *r)
{
    return r->tree_mask ? row_length(r) - 1 : r->slot;
}

/* Whether two consecutive rows may share a tile. In a chain they read the same pages, and the first row precedes the
 * second; in a tree they read the same pages up to where the tree begins. */
static bool same_tile(const struct pp_batch_row *a, const struct pp_batch_row *b)
{
    if (a->pages[0] != b->pages[0] || !a->tree_mask != !b->tree_mask)
        return false;
    return a->tree_mask ? a->tree_base == b->tree_base : a->slot < b->slot;
}

/* Whether there are positions between the leading ones and the window, which the row does not see. */
static bool has_gap(const struct attend_plan *p, const struct pp_batch_row *r)
{
    return p->n_first && row_length(r) - p->window > p->n_first;
}

/* The first position that a row attends to, after the gap if there is one. Positions are counted in the sequence, or,
 * where they are gathered, among those. */
static int64_t row_begin(const struct attend_plan *p, const struct pp_batch_row *r)
{
    if (p->stride)
        return 0;
    if (p->n_first)
        return has_gap(p, r) ? row_length(r) - p->window : 0;
    if (p->window && p->bidirectional)
        return r->slot >= p->window ? r->slot - p->window + 1 : 0;
    if (p->window && p->chunked)
        return (row_length(r) - 1) / p->window * p->window;
    return p->window && row_length(r) > p->window ? row_length(r) - p->window : 0;
}

/* The number of positions that were picked. The row's own block is always picked and counts only up to the row; if keys
 * are pooled and that block is not complete, it is additional to the top k. */
static int64_t n_picked(const struct attend_plan *p, const struct pp_batch_row *r)
{
    return p->pooled ? p->top_k + row_length(r) % p->block
                     : p->top_k - p->block + (row_length(r) - 1) % p->block + 1;
}

/* The position after the last that a row attends to. head: the query head, where each sees different pages; -1: the
 * one that sees most. */
static int64_t row_end(const struct attend_plan *p, const struct pp_batch_row *r, int head)
{
    if (n_far(p, r))
        return (n_far_seen(p, n_far(p, r), head) + p->n_local_blocks - 1) * PP_PAGE_TOKENS +
               (row_length(r) - 1) % PP_PAGE_TOKENS + 1;
    if (p->stride)
        return n_windowed(p, r) + (is_picked(p, r) ? p->top_k : n_blocks(p, r));
    const int64_t end = is_picked(p, r) ? n_picked(p, r) : row_length(r);
    return p->window && p->bidirectional && r->slot + p->window < end ? r->slot + p->window : end;
}

/* The chunks that a tile's rows see any part of. */
struct chunks {
    int64_t first, end;
    bool gap; /* some row has a gap: the first chunk is then that of the leading positions */
};

static struct chunks tile_chunks(const struct attend_plan *p, const struct pp_batch_row *rows, int n_rows, int head)
{
    int64_t begin = INT64_MAX, end = 0;
    bool gap = false;
    for (int i = 0; i < n_rows; i++) {
        gap = gap || has_gap(p, &rows[i]);
        begin = row_begin(p, &rows[i]) < begin ? row_begin(p, &rows[i]) : begin;
        end = row_end(p, &rows[i], head) > end ? row_end(p, &rows[i], head) : end;
    }
    return (struct chunks){begin / PP_KV_CHUNK - gap, (end + PP_KV_CHUNK - 1) / PP_KV_CHUNK, gap};
}

/* How many groups of query heads are processed separately: one per KV head, or more. */
static int n_groups(const struct attend_plan *p)
{
    return p->kv.n_head_kv * p->share;
}

/* Decides how many items share a tile's chunks. */
static void split_chunks(const struct pp_cpu *c, struct attend_plan *p)
{
    const int n_rows = c->batch->n, n_threads = pp_pool_n(c->pool);
    const int64_t n_items = (int64_t)p->n_tiles * n_groups(p);
    const size_t chunks = (size_t)n_rows * (size_t)n_groups(p) * (size_t)p->n_chunks;
    p->n_splits = 1;
    if (n_threads == 1 || n_items >= ITEMS_PER_THREAD * n_threads || p->n_chunks <= 1 ||
        chunks * sums_size(p, p->group) > (size_t)c->attention_floats ||
        (n_rows == 1 && c->batch->rows[0].tree_mask))
        return;
    p->n_splits = (int)((ITEMS_PER_THREAD * n_threads + n_items - 1) / n_items);
    if (p->n_splits > p->n_chunks)
        p->n_splits = (int)p->n_chunks;
    for (int i = 0; i < n_items; i++)
        atomic_store_explicit(&p->left[i], p->n_splits, memory_order_relaxed);
}

/* Whether each tile attends to no rows of this pass except its own, and, if it is split, only its last split does. The
 * item that reads these rows can then rotate and store them itself, which saves a barrier in every layer. Many rows are
 * better stored by all threads together. */
static bool tiles_store(const struct attend_plan *p, const struct pp_batch_row *rows)
{
    if (p->tiles[p->n_tiles] > FEW_ROWS || p->share > 1) /* with share > 1, several items have the same keys */
        return false;
    for (int i = 0; i < p->n_tiles; i++) {
        const int first = p->tiles[i], last = p->tiles[i + 1] - 1;
        for (int r = first; r <= last; r++)
            if (is_gathered(p, &rows[r])) /* its own position may be in any chunk, or not picked */
                return false;
        for (int k = 0; k < i; k++)
            if (rows[p->tiles[k]].pages[0] == rows[first].pages[0])
                return false;
        if (p->n_splits > 1 && (rows[first].slot / PP_KV_CHUNK != rows[last].slot / PP_KV_CHUNK ||
                                rows[first].slot < p->n_first))
            return false;
    }
    return true;
}

static void plan_tier(const struct pp_cpu *c, struct attend_plan *p)
{
    const struct pp_batch_row *rows = c->batch->rows;
    const int n_rows = c->batch->n;
    p->n_tiles = 0;
    for (int i = 0; i < n_rows; i++)
        if (i == 0 || i - p->tiles[p->n_tiles - 1] == p->tile_rows || !same_tile(&rows[i - 1], &rows[i]))
            p->tiles[p->n_tiles++] = i;
    p->tiles[p->n_tiles] = n_rows;
    p->n_chunks = 0;
    for (int i = 0; i < p->n_tiles; i++) {
        const struct chunks of = tile_chunks(p, rows + p->tiles[i], p->tiles[i + 1] - p->tiles[i], -1);
        p->n_chunks = of.end - of.first > p->n_chunks ? of.end - of.first : p->n_chunks;
    }
    split_chunks(c, p);
    p->stores_apart = !tiles_store(p, rows);
}

void pp_cpu_attend_plan(struct pp_cpu *c)
{
    for (int t = 0; t < c->n_tiers; t++)
        if (is_of_attention(c, t))
            plan_tier(c, &c->attend[t]);
}

/* --- rotation and store ------------------------------------------------------------------------------------ */

/* Normalises x, n_heads consecutive heads of a row beginning with head `first`, and applies RoPE, and then the Hadamard
 * rotation of quantised caches. norm: applied to each head; its weight is NULL if there is none. */
static void rotate(const struct pp_cpu *c, const struct stage *s, const struct norm *norm, int row, float *x,
                   int first, int n_heads)
{
    const struct pp_hparams *hp = pp_source_hparams(c->model->source);
    const struct pp_kv_layout *kv = &c->attend[s->tier].kv;
    const struct rope *rope = s->rope >= 0 ? &c->ropes[s->rope] : NULL;
    const struct pp_adapter_set *set = c->batch->rows[row].adapters;
    float room[2 * PP_MAX_HEAD_DIM];
    const struct norm all = norm->weight ? pp_cpu_norm_of(norm, set, kv->head_dim, room) : *norm;
    for (int h = 0; h < n_heads; h++) {
        float *head = x + h * kv->head_dim, *rotated = head + pp_cpu_rotated_from(hp, kv);
        if (rope && s->norm_after_rope)
            c->ops->rope(rotated, rope->dim, hp->rope_neox, rope->cos_sin + row * rope->dim);
        if (all.weight) {
            const struct norm own = pp_cpu_norm_of_head(&all, first + h);
            pp_cpu_norm(c, &own, head, kv->head_dim, head);
        }
        if (rope && !s->norm_after_rope)
            c->ops->rope(rotated, rope->dim, hp->rope_neox, rope->cos_sin + row * rope->dim);
    }
    if (kv->rotate)
        c->ops->hadamard(x, n_heads * kv->head_dim, kv->rotate);
}

/* Stores K and V of a KV head of a row in the cache. */
static void store(const struct pp_cpu *c, const struct stage *s, int row, int kv_head)
{
    const struct pp_kv_layout *kv = &c->attend[s->tier].kv;
    const struct pp_batch_row *r = &c->batch->rows[row];
    if (s->k < 0)
        return; /* it uses another layer's */
    float *k = slot_row(c, s->k, row) + kv_head * kv->head_dim;
    float *v = slot_row(c, s->v, row) + kv_head * (kv->v_in_k ? kv->head_dim : kv->v_dim);
    rotate(c, s, &s->k_norm, row, k, kv_head, 1);
    if (s->v_norm.weight) {
        float room[2 * PP_MAX_HEAD_DIM];
        const struct norm norm = pp_cpu_norm_of(&s->v_norm, r->adapters, kv->v_dim, room);
        pp_cpu_norm(c, &norm, v, kv->v_dim, v);
    }
    if (kv->rotate && !kv->v_in_k)
        c->ops->hadamard(v, kv->v_dim, kv->rotate);
    c->ops->kv_store(kv, r->pages[s->tier][r->slot / PP_PAGE_TOKENS], pp_kv_head_offset(kv, s->layer, kv_head),
                     (int)(r->slot % PP_PAGE_TOKENS), k, v);
}

/* --- one tile of one KV head ------------------------------------------------------------------------------- */

struct tile {
    struct pp_cpu *c;
    const struct stage *s;
    const struct attend_plan *p;      /* of the stage's tier */
    const struct pp_batch_row *rows;  /* the tile's first */
    int row0, n_rows, kv_head, index; /* index: into p->left */
    int head;                         /* the group of query heads; where a KV head has one group, its number */
    struct chunks chunks;
    size_t head_offset;
    struct pp_attention *a;
    uint8_t *tail;
};

static bool is_of_first(const struct tile *t, int64_t chunk)
{
    return t->chunks.gap && chunk == t->chunks.first;
}

/* The index of a chunk's positions in the sequence, in chunks. */
static int64_t place_of(const struct tile *t, int64_t chunk)
{
    return is_of_first(t, chunk) ? 0 : chunk;
}

/* What a row sees of a chunk; empty: {0, 0}. */
static struct pp_span in_chunk(const struct tile *t, const struct pp_batch_row *r, int64_t chunk)
{
    if (is_of_first(t, chunk))
        return (struct pp_span){0, has_gap(t->p, r) ? (int)t->p->n_first : 0};
    int64_t begin = row_begin(t->p, r) - chunk * PP_KV_CHUNK, end = row_end(t->p, r, t->head) - chunk * PP_KV_CHUNK;
    if (begin < 0)
        begin = 0;
    if (end > PP_KV_CHUNK)
        end = PP_KV_CHUNK;
    return begin < end ? (struct pp_span){(int)begin, (int)end} : (struct pp_span){0, 0};
}

/* Gathers a branch of a tree, whose positions are scattered among those of its siblings. They are copied to where they
 * would be if the branch were a plain sequence, so that every sum is computed in the same order and has the same bits
 * as for a chain. The tail replaces the pages from the one of tree_base on. */
static void gather_branch(const struct tile *t, const struct pp_batch_row *r)
{
    const struct pp_kv_layout *l = &t->p->kv;
    int64_t to = r->tree_base, tail_page = to / PP_PAGE_TOKENS;
    if (to % PP_PAGE_TOKENS)
        memcpy(t->tail, r->pages[t->s->tier][tail_page] + t->head_offset, l->head_bytes);
    for (uint64_t left = r->tree_mask; left; left &= left - 1, to++) {
        int64_t from = r->tree_base + __builtin_ctzll(left);
        pp_kv_copy_head_position(l, r->pages[t->s->tier][from / PP_PAGE_TOKENS] + t->head_offset,
                                 (int)(from % PP_PAGE_TOKENS),
                                 t->tail + (size_t)(to / PP_PAGE_TOKENS - tail_page) * l->head_bytes,
                                 (int)(to % PP_PAGE_TOKENS));
    }
}

/* A page of the positions picked for a row, from[0 .. n - 1]: gathered in the k-th page of the tail, or in place if
 * they are the beginning of a page. */
static const uint8_t *gather_page(const struct tile *t, const struct pp_batch_row *r, const int32_t *from, int n, int k)
{
    const struct pp_kv_layout *l = &t->p->kv;
    uint8_t *const *pages = r->pages[t->s->tier], *to = t->tail + (size_t)k * l->head_bytes;
    if (t->p->block > 1 && from[0] % PP_PAGE_TOKENS == 0 && from[n - 1] == from[0] + n - 1) /* they ascend */
        return pages[from[0] / PP_PAGE_TOKENS] + t->head_offset;
    for (int i = 0; i < n; i++)
        pp_kv_copy_head_position(l, pages[from[i] / PP_PAGE_TOKENS] + t->head_offset, from[i] % PP_PAGE_TOKENS, to, i);
    return to;
}

/* Gathers a chunk of the positions picked for the i-th row of a tile. */
static void gather_picks(const struct tile *t, int i, int64_t chunk, int n, const uint8_t *heads[PP_CHUNK_PAGES])
{
    const struct pick_plan *p = &t->c->pick;
    const int64_t list = (t->row0 + i) * (int64_t)p->n_lists + (p->n_lists > 1 ? t->kv_head : 0);
    const int32_t *from = p->slots + list * p->room + chunk * PP_KV_CHUNK;
    for (int k = 0, at = 0; k < PP_CHUNK_PAGES; k++, at += PP_PAGE_TOKENS) {
        const int here = n - at < PP_PAGE_TOKENS ? n - at : PP_PAGE_TOKENS;
        heads[k] = here > 0 ? gather_page(t, &t->rows[i], from + at, here, k) : NULL;
    }
}

/* With vert_stride: the pages of a chunk of n positions, far ones first, that the tile's head sees for a row. */
static void find_far(const struct tile *t, const struct pp_batch_row *r, int64_t chunk, int n,
                     const uint8_t *heads[PP_CHUNK_PAGES])
{
    const int64_t all = n_far(t->p, r), far = n_far_seen(t->p, all, t->head);
    for (int k = 0; k < PP_CHUNK_PAGES; k++) {
        const int64_t i = chunk * PP_CHUNK_PAGES + k;
        const int64_t page = i < far ? first_far(t->p, t->head) + i * t->p->vert_stride : all + i - far;
        heads[k] = k * PP_PAGE_TOKENS < n ? r->pages[t->s->tier][page] + t->head_offset : NULL;
    }
}

/* The end of the rows from the i-th on that see the same pages in a chunk. */
static int same_far(const struct tile *t, const struct pp_span *see, int i)
{
    int next = i + 1;
    while (next < t->n_rows && see[i].end && see[next].end && n_far(t->p, &t->rows[next]) == n_far(t->p, &t->rows[i]))
        next++;
    return next;
}

/* Consecutive slots of a page: of the window's positions, or of compressed blocks. */
struct run {
    const struct pp_kv_layout *kv;
    const uint8_t *head; /* the head's bytes in the page */
    int place;           /* the first slot */
    int64_t n;
};

/* The slots from the at-th key on that the i-th row of a tile sees, where it also sees compressed blocks. */
static struct run run_at(const struct tile *t, int i, int64_t at)
{
    const struct attend_plan *p = t->p;
    const struct pp_batch_row *r = &t->rows[i];
    const int64_t n_window = n_windowed(p, r), block = at - n_window;
    const bool picked = is_picked(p, r);
    if (block < 0) {
        const int64_t position = row_length(r) - n_window + at, left = PP_PAGE_TOKENS - position % PP_PAGE_TOKENS;
        return (struct run){&p->kv, r->pages[t->s->tier][position / PP_PAGE_TOKENS] + t->head_offset,
                            (int)(position % PP_PAGE_TOKENS), left < -block ? left : -block};
    }
    const struct pp_kv_layout *kv = &t->c->attend[t->s->from_tier].kv;
    const int64_t number = picked ? t->c->pick.slots[(t->row0 + i) * t->c->pick.room + block] : block;
    const int64_t last = (number + 1) * p->stride - 1, place = pp_kv_slot(kv, last);
    const uint8_t *page = r->pages[t->s->from_tier][last / PP_PAGE_TOKENS];
    return (struct run){kv, page + pp_kv_head_offset(kv, t->s->from_layer, 0), (int)place,
                        picked || p->stride >= PP_PAGE_TOKENS ? 1 : PP_PAGE_TOKENS / p->stride - place};
}

/* Gathers n keys of a chunk of the window and the compressed blocks that the i-th row sees. */
static void gather_all(const struct tile *t, int i, int64_t chunk, int n, const uint8_t *heads[PP_CHUNK_PAGES])
{
    const struct pp_kv_layout *l = &t->p->kv;
    for (int at = 0, step; at < n; at += step) {
        const struct run run = run_at(t, i, chunk * PP_KV_CHUNK + at);
        uint8_t *to = t->tail + (size_t)(at / PP_PAGE_TOKENS) * l->head_bytes;
        const bool group = run.n >= PP_KV_GROUP && run.place % PP_KV_GROUP == 0 && at % PP_KV_GROUP == 0;
        step = group ? PP_KV_GROUP : 1;
        pp_kv_copy_slots(run.kv, run.head, run.place, l, to, at % PP_PAGE_TOKENS, step);
    }
    for (int k = 0; k < PP_CHUNK_PAGES; k++)
        heads[k] = k * PP_PAGE_TOKENS < n ? t->tail + (size_t)k * l->head_bytes : NULL;
}

/* The addresses of the tile's head in the pages of a chunk, as far as `see` needs them; from tail_page on in the
 * tail. */
static void find_heads(const struct tile *t, int64_t chunk, struct pp_span see, int64_t tail_page,
                       const uint8_t *heads[PP_CHUNK_PAGES])
{
    for (int i = 0; i < PP_CHUNK_PAGES; i++) {
        int64_t page = place_of(t, chunk) * PP_CHUNK_PAGES + i;
        if ((i + 1) * PP_PAGE_TOKENS <= see.begin || i * PP_PAGE_TOKENS >= see.end)
            heads[i] = NULL;
        else if (page >= tail_page)
            heads[i] = t->tail + (size_t)(page - tail_page) * t->p->kv.head_bytes;
        else
            heads[i] = t->rows->pages[t->s->tier][page] + t->head_offset;
    }
}

/* Sets what may be prefetched while an item works on a chunk: its next one, if that is read in place. */
static void look_ahead(const struct tile *t, int64_t chunk, struct chunks of)
{
    const struct pp_batch_row *last = &t->rows[t->n_rows - 1];
    const int64_t next = chunk + 1;
    memset(t->a->next, 0, sizeof t->a->next);
    t->a->unasked = chunk == of.first;
    if (next < of.end && !last->tree_mask && !is_gathered(t->p, last))
        find_heads(t, next, in_chunk(t, last, next), INT64_MAX, t->a->next);
}

/* Nobody has prefetched an item's first chunk when the item begins. Prefetches K of its first page, which arrives while
 * the queries are prepared; the rest is prefetched while that page is processed. */
static void prefetch_first(const struct tile *t, int64_t chunk)
{
    enum { LINE = 64 };
    const struct pp_batch_row *last = &t->rows[t->n_rows - 1];
    const uint8_t *heads[PP_CHUNK_PAGES], *k = NULL;
    if (last->tree_mask || is_gathered(t->p, last))
        return;
    find_heads(t, chunk, in_chunk(t, last, chunk), INT64_MAX, heads);
    for (int i = PP_CHUNK_PAGES - 1; i >= 0; i--)
        k = heads[i] ? heads[i] : k;
    for (size_t i = 0; k && i < pp_kv_key_bytes(&t->p->kv); i += LINE)
        __builtin_prefetch(k + i);
}

/* Adds a chunk, read in place, for consecutive rows first .. end - 1, which all attend to some of it. */
static void attend_rows(const struct tile *t, int64_t chunk, int first, int end, const struct pp_span *see,
                        const struct pp_attention_sums *to)
{
    const uint8_t *heads[PP_CHUNK_PAGES];
    struct pp_span all = see[first];
    for (int i = first; i < end; i++) {
        all.begin = see[i].begin < all.begin ? see[i].begin : all.begin;
        all.end = see[i].end > all.end ? see[i].end : all.end;
    }
    find_heads(t, chunk, all, INT64_MAX, heads);
    t->c->ops->attention_chunk(t->a, heads, first, end - first, see, to);
}

/* Adds a chunk for all rows that see some of it. */
static void attend_chunk(const struct tile *t, int64_t chunk, const struct pp_attention_sums *to)
{
    struct pp_span see[PP_TILE_QUERIES];
    const int n_rows = t->n_rows;
    const int64_t place = place_of(t, chunk), tail_page = t->rows->tree_base / PP_PAGE_TOKENS;
    const int64_t end = (place + 1) * PP_KV_CHUNK;
    const bool gathered = t->rows->tree_mask && end > tail_page * PP_PAGE_TOKENS;
    for (int i = 0; i < n_rows; i++) {
        see[i] = in_chunk(t, &t->rows[i], chunk);
        t->a->at[i] = (float)(row_place(&t->rows[i]) - place * PP_KV_CHUNK);
    }
    for (int i = 0, next; i < n_rows; i = next) {
        const bool apart = is_gathered(t->p, &t->rows[i]), alone = gathered || apart;
        const uint8_t *heads[PP_CHUNK_PAGES];
        for (next = i + 1; !alone && next < n_rows && see[i].end && see[next].end &&
                           !is_gathered(t->p, &t->rows[next]);)
            next++;
        if (see[i].end && t->p->n_local_blocks && apart) {
            next = same_far(t, see, i);
            find_far(t, &t->rows[next - 1], chunk, see[next - 1].end, heads); /* the last row sees most */
            t->c->ops->attention_chunk(t->a, heads, i, next - i, see, to);
        } else if (see[i].end && apart) {
            (t->p->stride ? gather_all : gather_picks)(t, i, chunk, see[i].end, heads);
            t->c->ops->attention_chunk(t->a, heads, i, 1, see, to);
        } else if (see[i].end && gathered) {
            gather_branch(t, &t->rows[i]);
            find_heads(t, chunk, see[i], tail_page, heads);
            t->c->ops->attention_chunk(t->a, heads, i, 1, see, to);
        } else if (see[i].end) {
            attend_rows(t, chunk, i, next, see, to);
        }
    }
}

/* Sets sums to their initial values: those of no positions, or, with attention sinks, those of the sinks. A sink is
 * like a position before all others whose value is 0. */
static void begin_sums(const struct tile *t, const struct pp_attention_sums *sums, const float *sinks)
{
    const int group = t->a->group, n_q = t->n_rows * group;
    for (int q = 0; q < n_q; q++) {
        sums->m[q] = sinks ? sinks[q % group] : -INFINITY;
        sums->l[q] = sinks ? 1 : 0;
    }
    memset(sums->o, 0, (size_t)n_q * (size_t)t->p->kv.v_pad * sizeof *sums->o);
}

static void begin_total(const struct tile *t)
{
    begin_sums(t, &t->a->total, t->s->sinks ? t->s->sinks + t->head * t->a->group : NULL);
}

static void merge_chunk(const struct tile *t, int64_t chunk, const struct pp_attention_sums *sums)
{
    for (int i = 0; i < t->n_rows; i++)
        if (in_chunk(t, &t->rows[i], chunk).end)
            t->c->ops->attention_merge(t->a, i, 1, sums, &t->a->total);
}

static void finish(const struct tile *t)
{
    const struct pp_kv_layout *kv = &t->p->kv;
    for (int i = 0; i < t->n_rows; i++) {
        float *out = slot_row(t->c, t->s->out, t->row0 + i) + t->head * t->a->group * kv->v_dim;
        t->c->ops->attention_finish(t->a, i, &t->a->total, out);
        if (kv->rotate)
            t->c->ops->hadamard(out, t->a->group * kv->v_dim, kv->rotate);
    }
}

/* The memory for a chunk's sums, where a tile is split. */
static struct pp_attention_sums partial_sums(const struct tile *t, int64_t chunk)
{
    const struct attend_plan *p = t->p;
    const int n_q = t->n_rows * t->a->group;
    size_t before = ((size_t)t->head * (size_t)t->c->batch->n + (size_t)t->row0) * (size_t)p->n_chunks;
    float *at = t->c->attention_room + before * sums_size(p, t->a->group) +
                (size_t)(chunk - t->chunks.first) * sums_size(p, n_q);
    return (struct pp_attention_sums){.m = at, .l = at + n_q, .o = at + 2 * n_q};
}

/* Checked before every chunk, since a whole item may take too long for a cancelled pass to wait for. */
static bool stopped(struct pp_cpu *c)
{
    if (!pp_cancelled(c->cancel))
        return false;
    atomic_store_explicit(&c->abandoned, true, memory_order_relaxed);
    return true;
}

static void attend_alone(const struct tile *t)
{
    begin_total(t);
    for (int64_t chunk = t->chunks.first; chunk < t->chunks.end; chunk++) {
        if (stopped(t->c))
            return;
        look_ahead(t, chunk, t->chunks);
        attend_chunk(t, chunk, &t->a->total);
    }
    finish(t);
}

/* The chunks of one split of a tile. */
static struct chunks share_of(const struct tile *t, int split)
{
    const int64_t first = t->chunks.first, n = t->chunks.end - first;
    return (struct chunks){first + n * split / t->p->n_splits, first + n * (split + 1) / t->p->n_splits, false};
}

static void attend_share(const struct tile *t, int split)
{
    const struct attend_plan *p = t->p;
    const struct chunks share = share_of(t, split);
    for (int64_t chunk = share.first; chunk < share.end; chunk++) {
        struct pp_attention_sums sums = partial_sums(t, chunk);
        if (stopped(t->c))
            return;
        begin_sums(t, &sums, NULL);
        look_ahead(t, chunk, share);
        attend_chunk(t, chunk, &sums);
    }
    if (atomic_fetch_sub_explicit(&p->left[t->index], 1, memory_order_acq_rel) > 1)
        return;
    atomic_store_explicit(&p->left[t->index], p->n_splits, memory_order_relaxed); /* for the next layer */
    begin_total(t);
    for (int64_t chunk = t->chunks.first; chunk < t->chunks.end; chunk++) {
        struct pp_attention_sums sums = partial_sums(t, chunk);
        merge_chunk(t, chunk, &sums);
    }
    finish(t);
}

/* The scale of a row's scores, which in some models grows with the position. */
static float score_scale(const struct pp_cpu *c, const struct stage *s, const struct pp_batch_row *row)
{
    const struct pp_hparams *hp = pp_source_hparams(c->model->source);
    const int64_t length = hp->attn_temperature_length;
    if (hp->attn_temperature == 0.0f || (length && s->rope >= 0))
        return c->attend[s->tier].scale;
    const double contexts = (double)(length ? (row->position + 1) / length : row->position / hp->rope_orig_ctx);
    return c->attend[s->tier].scale * (float)(1 + (double)hp->attn_temperature * log1p(contexts));
}

/* The factor of a row's scores after the soft cap, which in other models grows with the position. */
static float score_growth(const struct pp_cpu *c, const struct pp_batch_row *row)
{
    const int64_t length = pp_source_hparams(c->model->source)->attn_log_length;
    return length && row->position > length ? (float)(log((double)row->position) / log((double)length)) : 1.0f;
}

/* Loads the tile's queries. If no phase has rotated them, they are rotated here in a copy, because other splits read
 * them, too. */
static void take_queries(const struct tile *t)
{
    const struct pp_kv_layout *kv = &t->p->kv;
    const int width = t->a->group * kv->head_dim;
    for (int i = 0; i < t->n_rows; i++) {
        float *q = slot_row(t->c, t->s->q, t->row0 + i) + t->head * width;
        if (!t->p->stores_apart) {
            memcpy(t->a->total.o, q, (size_t)width * sizeof *q); /* free until begin_total() */
            q = t->a->total.o;
            rotate(t->c, t->s, &t->s->q_norm, t->row0 + i, q, t->head * t->a->group, t->a->group);
        }
        const float growth = score_growth(t->c, &t->rows[i]), capped = t->s->softcap != 0.0f ? growth : 1.0f;
        t->a->growth[i] = capped;
        t->a->growing = t->a->growing || capped != 1.0f;
        t->c->ops->attention_query(t->a, i, q, score_scale(t->c, t->s, &t->rows[i]) * (growth / capped));
    }
}

static void attend(struct pp_cpu *c, const struct stage *s, int item, struct thread_scratch *scratch)
{
    const struct attend_plan *p = &c->attend[s->tier];
    /* The last tile, which sees most, comes first: long items at the end would leave threads idle. Neighbouring items
     * share a head. */
    const int head = item / (p->n_tiles * p->n_splits), rest = item % (p->n_tiles * p->n_splits);
    const int kv_head = head / p->share;
    const int tile = p->n_tiles - 1 - rest / p->n_splits, split = rest % p->n_splits;
    struct tile t = {
        .c = c,
        .s = s,
        .p = p,
        .rows = c->batch->rows + p->tiles[tile],
        .row0 = p->tiles[tile],
        .n_rows = p->tiles[tile + 1] - p->tiles[tile],
        .kv_head = kv_head,
        .head = head,
        .index = head * p->n_tiles + tile,
        .head_offset = pp_kv_head_offset(&p->kv, s->layer, kv_head),
        .a = &scratch->attention[s->tier],
        .tail = scratch->tail,
    };
    t.a->n_rows = t.n_rows;
    t.a->softcap = s->softcap;
    t.a->growing = false;
    t.a->slopes = s->slopes ? s->slopes + head * t.a->group : NULL;
    t.chunks = tile_chunks(p, t.rows, t.n_rows, head);
    prefetch_first(&t, p->n_splits == 1 ? t.chunks.first : share_of(&t, split).first);
    for (int i = 0; i < t.n_rows && !p->stores_apart && split == p->n_splits - 1; i++) /* it has their chunk */
        store(c, s, t.row0 + i, kv_head);
    take_queries(&t);
    if (p->n_splits == 1)
        attend_alone(&t);
    else
        attend_share(&t, split);
}

/* --- the stage --------------------------------------------------------------------------------------------- */

void pp_cpu_attend_phases(const struct pp_cpu *c, const struct stage *s, int m, int n_items[MAX_PHASES])
{
    const struct attend_plan *p = &c->attend[s->tier];
    n_items[0] = p->stores_apart ? m : 0;
    n_items[1] = p->n_tiles * n_groups(p) * p->n_splits;
}

void pp_cpu_attend_item(struct pp_cpu *c, const struct stage *s, int m, int phase, int item, int thread)
{
    const struct pp_kv_layout *kv = &c->attend[s->tier].kv;
    const int group = c->attend[s->tier].group * c->attend[s->tier].share;
    (void)m;
    if (phase == 0) {
        for (int h = 0; h < kv->n_head_kv; h++) {
            store(c, s, item, h);
            rotate(c, s, &s->q_norm, item, slot_row(c, s->q, item) + h * group * kv->head_dim, h * group, group);
        }
    } else {
        attend(c, s, item, &c->threads[thread]);
    }
}
