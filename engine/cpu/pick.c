/* pick.c - index stages for sparse attention (PP_OP_PICK in plan.h): pick the top k of the positions that a row may
 * attend to. There are three kinds: positions are picked one by one, their score being a sum over the index's heads; or
 * blocks of positions are picked for each head separately; or blocks are picked for all heads by such a sum, with one
 * key for each block, cached at one of its positions.
 *
 * A row's scores are computed one chunk of positions at a time. The k largest so far are kept as candidates, and some
 * more until the next selection, so that memory does not grow with the context. Candidates are added in ascending order
 * of positions, and of equal scores the earliest position wins. If there are few rows, several items divide a row's
 * positions, and their candidates are then merged in the same order. The result depends on the scores only, and a score
 * on the row and the position only: not on other rows or on the number of threads.
 *
 * A block's score is the largest of its positions' scores; the block is added when its last position has been scored.
 * No block is divided between items.
 *
 * If blocks are compressed to one key (compress.c), all this holds for blocks instead of positions; their keys are
 * gathered to where kernels read a chunk.
 *
 * A score takes n_head times head_dim multiply-adds; in DeepSeek V3.2 that is a seventeenth of the cost of attention to
 * the position. Scores are float32, whatever the KV type. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/cpu/program.h"

enum {
    ITEMS_PER_THREAD = 4,   /* the target when a row's positions are split among items */
    ROWS_PER_THREAD = 2,    /* with more rows they are not split */
    MORE = 4 * PP_KV_CHUNK, /* room for candidates beyond 2 k */
};

/* --- memory ---------------------------------------------------------------------------------------------------- */

/* [count], each with room for n. NULL, or some of their arrays (all_there()): out of memory. */
static struct candidates *make_candidates(struct pp_cpu *c, int64_t count, int64_t n)
{
    struct candidates *x = pp_cpu_memory_take(c, count, sizeof *x);
    for (int64_t i = 0; x && i < count; i++) {
        x[i].rank = pp_cpu_memory_take(c, n, sizeof *x[i].rank);
        x[i].place = pp_cpu_memory_take(c, n, sizeof *x[i].place);
    }
    return x;
}

static bool all_there(const struct candidates *x, int64_t count)
{
    for (int64_t i = 0; x && i < count; i++)
        if (!x[i].rank || !x[i].place)
            return false;
    return x != NULL;
}

static void free_candidates(struct candidates *x, int64_t count)
{
    for (int64_t i = 0; x && i < count; i++) {
        pp_free(x[i].rank);
        pp_free(x[i].place);
    }
    pp_free(x);
}

/* k: how many blocks, or positions, are picked. */
static int n_wanted(const struct pp_cpu *c)
{
    return (int)(c->pick.top_k / c->pick.block);
}

static int64_t capacity(const struct pp_cpu *c)
{
    return 2 * (int64_t)n_wanted(c) + MORE;
}

static bool of_blocks(const struct pp_cpu *c)
{
    return c->pick.n_local > 0;
}

bool pp_cpu_pick_new(struct pp_cpu *c)
{
    const int n_threads = pp_pool_n(c->pool);
    struct pick_plan *p = &c->pick;
    int n_heads = 0;
    for (int t = 0; t < c->n_tiers; t++)
        if (c->attend[t].kv.kind == PP_TIER_INDEX) {
            p->top_k = c->attend[t].top_k;
            p->block = c->attend[t].block;
            p->n_local = c->attend[t].n_local;
            p->pooled = c->attend[t].pooled;
            p->room = p->top_k + (p->pooled ? p->block - 1 : 0);
            p->stride = c->attend[t].kv.stride;
            p->n_lists = of_blocks(c) ? c->attend[t].group : 1;
            n_heads = c->attend[t].group;
        }
    if (!p->top_k)
        return true;
    if (!(p->ones = pp_cpu_memory_take(c, n_heads, sizeof *p->ones)))
        return false;
    for (int h = 0; h < n_heads; h++)
        p->ones[h] = 1;
    if (!(p->slots = pp_cpu_memory_take(c, c->max_rows * p->n_lists * p->room, sizeof *p->slots)))
        return false;
    for (int i = 0; i < n_threads; i++) {
        struct thread_scratch *t = &c->threads[i];
        t->candidates = make_candidates(c, p->n_lists, capacity(c));
        if (of_blocks(c) && !(t->dots = pp_cpu_memory_take(c, (int64_t)p->n_lists * PP_KV_CHUNK, sizeof *t->dots)))
            return false;
        if (!all_there(t->candidates, p->n_lists))
            return false;
    }
    p->n_found = n_threads > 1 ? (ITEMS_PER_THREAD + ROWS_PER_THREAD) * n_threads : 0;
    if (!p->n_found)
        return true;
    p->found = make_candidates(c, (int64_t)p->n_found * p->n_lists, n_wanted(c));
    return all_there(p->found, (int64_t)p->n_found * p->n_lists);
}

void pp_cpu_pick_free(struct pp_cpu *c)
{
    pp_free(c->pick.slots);
    pp_free(c->pick.ones);
    for (int i = 0; c->threads && i < pp_pool_n(c->pool); i++) {
        free_candidates(c->threads[i].candidates, c->pick.n_lists);
        pp_free(c->threads[i].dots);
    }
    free_candidates(c->pick.found, (int64_t)c->pick.n_found * c->pick.n_lists);
}

/* How many positions, or compressed blocks, a row may see. */
static int64_t length_of(const struct pp_cpu *c, const struct pp_batch_row *r)
{
    return c->pick.top_k ? pp_cpu_row_length(r) / c->pick.stride : 0;
}

/* The unit in chunks by which a row's positions are split among items: a multiple of a block. */
static int64_t chunks_of_share(const struct pp_cpu *c)
{
    return c->pick.block > PP_KV_CHUNK ? c->pick.block / PP_KV_CHUNK : 1;
}

void pp_cpu_pick_plan(struct pp_cpu *c)
{
    const int m = c->batch->n, n_threads = pp_pool_n(c->pool);
    int64_t longest = 0;
    for (int i = 0; i < m; i++)
        longest = length_of(c, &c->batch->rows[i]) > longest ? length_of(c, &c->batch->rows[i]) : longest;
    const int64_t each = c->pick.top_k ? PP_KV_CHUNK * chunks_of_share(c) : 1, n_shares = (longest + each - 1) / each;
    c->pick.any = c->pick.top_k && longest > c->pick.top_k;
    c->pick.n_splits = 1;
    if (n_threads > 1 && m < ROWS_PER_THREAD * n_threads)
        c->pick.n_splits = (ITEMS_PER_THREAD * n_threads + m - 1) / m;
    if (c->pick.n_splits > n_shares && n_shares)
        c->pick.n_splits = (int)n_shares;
}

/* --- candidates ------------------------------------------------------------------------------------------------ */

/* Maps floats to integers in the same order. Both zeros are equal; NaN is the largest, so that attention includes the
 * position and shows the error. */
static uint32_t rank_of(float score)
{
    uint32_t bits;
    score += 0.0f;
    memcpy(&bits, &score, sizeof bits);
    return score != score ? UINT32_MAX : bits >> 31 ? ~bits : bits | 1u << 31;
}

/* The k-th largest rank, by radix selection; *more: how many are larger. */
static uint32_t kth_rank(const struct candidates *x, int k, int *more)
{
    uint32_t found = 0;
    *more = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int count[256] = {0}, byte = 255;
        for (int i = 0; i < x->n; i++)
            if (shift == 24 || x->rank[i] >> (shift + 8) == found >> (shift + 8))
                count[x->rank[i] >> shift & 255]++;
        for (; *more + count[byte] < k; byte--)
            *more += count[byte];
        found |= (uint32_t)byte << shift;
    }
    return found;
}

/* Keeps only the k largest ranks (of equal ones, the earliest), in the same order. */
static void select_best(struct candidates *x, int k)
{
    int more, n = 0;
    if (x->n < k)
        return;
    const uint32_t least = kth_rank(x, k, &more);
    for (int i = 0, equal = k - more; i < x->n; i++) {
        const bool stays = x->rank[i] > least || (x->rank[i] == least && equal-- > 0);
        if (stays) {
            x->rank[n] = x->rank[i];
            x->place[n++] = x->place[i];
        }
    }
    x->n = n;
    x->full = true;
    x->least = least;
}

/* Makes room for n more candidates, at most MORE. */
static void make_room(const struct pp_cpu *c, struct candidates *x, int n)
{
    if (x->n + n > capacity(c))
        select_best(x, n_wanted(c));
}

static inline void add_one(struct candidates *x, uint32_t rank, int32_t place)
{
    if (x->full && rank <= x->least)
        return;
    x->rank[x->n] = rank;
    x->place[x->n++] = place;
}

/* Adds n positions from `place` on with these scores; of pooled blocks only their last positions. */
static void add_scores(const struct pp_cpu *c, struct candidates *x, const float *scores, int n, int64_t place)
{
    const int64_t step = c->pick.block;
    int32_t block = (int32_t)(place / step);
    make_room(c, x, n);
    for (int64_t i = step - 1 - place % step; i < n; i += step)
        add_one(x, rank_of(scores[i]), block++);
}

/* Adds the block that ends at `end`, for a row that sees `length` positions. Blocks that are always picked get a rank
 * above all others. */
static void add_block(const struct pp_cpu *c, struct candidates *x, int64_t end, int64_t length)
{
    const int64_t block = (end - 1) / c->pick.block, own = (length - 1) / c->pick.block;
    const uint32_t rank = x->best < UINT32_MAX ? x->best : UINT32_MAX - 1;
    add_one(x, block > own - c->pick.n_local ? UINT32_MAX : rank, (int32_t)block);
    x->best = 0;
}

/* Takes a head's products with n positions from `place` on, for a row that sees `length` in all, and adds the blocks
 * that end among them. */
static void add_dots(const struct pp_cpu *c, struct candidates *x, const float *dots, int n, int64_t place,
                     int64_t length)
{
    make_room(c, x, n);
    for (int i = 0; i < n;) {
        const int64_t left = c->pick.block - ((place + i) & (c->pick.block - 1));
        const int end = left < n - i ? i + (int)left : n;
        uint32_t best = x->best;
        for (; i < end; i++) {
            const uint32_t rank = rank_of(dots[i]);
            best = rank > best ? rank : best;
        }
        x->best = best;
        if (((place + end) & (c->pick.block - 1)) == 0 || place + end == length)
            add_block(c, x, place + end, length);
    }
}

static void begin(struct candidates *x)
{
    x->n = 0;
    x->full = false;
    x->best = 0;
}

/* --- scores ---------------------------------------------------------------------------------------------------- */

static bool stopped(struct pp_cpu *c)
{
    if (!pp_cancelled(c->cancel))
        return false;
    atomic_store_explicit(&c->abandoned, true, memory_order_relaxed);
    return true;
}

/* Scores n positions from `place` on, whose keys are in `heads`. */
static void score_keys(struct pp_cpu *c, const struct stage *s, int row, const uint8_t *const heads[PP_CHUNK_PAGES],
                       int n, int64_t place, struct thread_scratch *t)
{
    float scores[PP_KV_CHUNK];
    if (!of_blocks(c)) {
        const float *weights = s->head_weights < 0 ? c->pick.ones : slot_row(c, s->head_weights, row);
        c->ops->index_scores(&t->attention[s->tier], weights, heads, n, scores);
        add_scores(c, t->candidates, scores, n, place);
        return;
    }
    c->ops->index_dots(&t->attention[s->tier], heads, n, t->dots);
    for (int h = 0; h < c->pick.n_lists; h++)
        add_dots(c, &t->candidates[h], t->dots + h * PP_KV_CHUNK, n, place, pp_cpu_row_length(&c->batch->rows[row]));
}

/* Scores a branch of a tree, whose positions are scattered: their keys are gathered first. */
static void score_branch(struct pp_cpu *c, const struct stage *s, int row, struct thread_scratch *t)
{
    const struct pp_batch_row *r = &c->batch->rows[row];
    const struct pp_kv_layout *kv = &c->attend[s->tier].kv;
    const size_t offset = pp_kv_head_offset(kv, s->layer, 0);
    const uint8_t *heads[PP_CHUNK_PAGES] = {t->tail};
    int n = 0;
    for (uint64_t left = r->tree_mask; left; left &= left - 1, n++) {
        const int64_t from = r->tree_base + __builtin_ctzll(left);
        pp_kv_copy_head_position(kv, r->pages[s->tier][from / PP_PAGE_TOKENS] + offset, (int)(from % PP_PAGE_TOKENS),
                                 t->tail, n);
    }
    score_keys(c, s, row, heads, n, r->tree_base, t);
}

/* Gathers the keys of n compressed blocks from `first` on. */
static void gather_keys(const struct pp_cpu *c, const struct stage *s, const struct pp_batch_row *r, int64_t first,
                        int n, uint8_t *tail, const uint8_t *heads[PP_CHUNK_PAGES])
{
    const struct pp_kv_layout *kv = &c->attend[s->tier].kv;
    const size_t offset = pp_kv_head_offset(kv, s->layer, 0);
    const size_t group = kv->head_bytes / (size_t)(kv->slots / PP_KV_GROUP);
    for (int i = 0, step; i < n; i += step) {
        const int64_t last = (first + i + 1) * kv->stride - 1;
        const int place = pp_kv_slot(kv, last);
        const bool whole = kv->stride * PP_KV_GROUP <= PP_PAGE_TOKENS && n - i >= PP_KV_GROUP;
        step = whole ? PP_KV_GROUP : 1;
        pp_kv_copy_slots(kv, r->pages[s->tier][last / PP_PAGE_TOKENS] + offset, place, kv,
                         tail + (size_t)(i / PP_KV_GROUP) * group, i % PP_KV_GROUP, step);
    }
    for (int k = 0; k < PP_CHUNK_PAGES; k++)
        heads[k] = tail + (size_t)(k * PP_PAGE_TOKENS / PP_KV_GROUP) * group;
}

/* Finds the candidates of one split of a row's positions. */
static void score_row(struct pp_cpu *c, const struct stage *s, int row, int split, struct thread_scratch *t)
{
    const struct pp_batch_row *r = &c->batch->rows[row];
    const struct pp_kv_layout *kv = &c->attend[s->tier].kv;
    const size_t offset = pp_kv_head_offset(kv, s->layer, 0);
    const int64_t length = r->tree_mask ? r->tree_base : length_of(c, r);
    const int64_t n_chunks = (length + PP_KV_CHUNK - 1) / PP_KV_CHUNK;
    const int64_t each = chunks_of_share(c), n_shares = (n_chunks + each - 1) / each;
    const int64_t end = each * (n_shares * (split + 1) / c->pick.n_splits);
    c->ops->index_query(&t->attention[s->tier], slot_row(c, s->q, row));
    for (int h = 0; h < c->pick.n_lists; h++)
        begin(&t->candidates[h]);
    for (int64_t chunk = each * (n_shares * split / c->pick.n_splits); chunk < end && chunk < n_chunks && !stopped(c);
         chunk++) {
        const int64_t first = chunk * PP_KV_CHUNK, left = length - first;
        const int n = left < PP_KV_CHUNK ? (int)left : PP_KV_CHUNK;
        const uint8_t *heads[PP_CHUNK_PAGES] = {NULL};
        if (kv->stride > 1)
            gather_keys(c, s, r, first, n, t->tail, heads);
        for (int i = 0; kv->stride == 1 && i * PP_PAGE_TOKENS < n; i++)
            heads[i] = r->pages[s->tier][chunk * PP_CHUNK_PAGES + i] + offset;
        score_keys(c, s, row, heads, n, first, t);
    }
    if (r->tree_mask && split == c->pick.n_splits - 1)
        score_branch(c, s, row, t);
    for (int h = 0; h < c->pick.n_lists; h++)
        select_best(&t->candidates[h], n_wanted(c));
}

/* --- the stage ------------------------------------------------------------------------------------------------- */

static bool is_picked(const struct pp_cpu *c, int row)
{
    const int64_t length = length_of(c, &c->batch->rows[row]);
    return (c->pick.pooled ? length - length % c->pick.block : length) > c->pick.top_k;
}

static void rotate(const struct pp_cpu *c, const struct stage *s, const float *cos_sin, float *x, int n_heads)
{
    const struct rope *rope = &c->ropes[0];
    for (int h = 0; h < n_heads && rope->dim; h++)
        c->ops->rope(x + h * c->attend[s->tier].kv.head_dim + s->rotated_from, rope->dim, s->neox, cos_sin);
}

/* Rotates a key by the row's position; a pooled block's by that of its first row. */
static void rotate_key(const struct pp_cpu *c, const struct stage *s, int row, float *k)
{
    const struct rope *rope = &c->ropes[0];
    const struct pp_batch_row *r = &c->batch->rows[row];
    const int64_t in_block = (pp_cpu_row_length(r) - 1) % c->pick.block;
    float there[PP_MAX_HEAD_DIM];
    const bool moves = c->pick.pooled && s->head_weights < 0 && in_block > 0;
    if (moves)
        pp_cpu_rope_at(rope, r->position - in_block, there);
    rotate(c, s, moves ? there : rope->cos_sin + row * rope->dim, k, 1);
}

static void prepare(const struct pp_cpu *c, const struct stage *s, int row)
{
    const struct pp_batch_row *r = &c->batch->rows[row];
    const struct pp_kv_layout *kv = &c->attend[s->tier].kv;
    float *k = slot_row(c, s->k, row);
    if (is_picked(c, row))
        rotate(c, s, c->ropes[0].cos_sin + row * c->ropes[0].dim, slot_row(c, s->q, row), c->attend[s->tier].group);
    if (kv->stride > 1) {
        pp_cpu_keep_key(c, s->tier, s->layer, &c->ropes[0], s->rotated_from, s->neox, row, k);
        return;
    }
    rotate_key(c, s, row, k);
    c->ops->kv_store(kv, r->pages[s->tier][r->slot / PP_PAGE_TOKENS], pp_kv_head_offset(kv, s->layer, 0),
                     (int)(r->slot % PP_PAGE_TOKENS), k, NULL);
}

/* Writes the slots of the positions picked for the h-th list; with pooled keys, those after the last whole block, too.
 * An abandoned pass may have found too few: the rest is never read. */
static void keep(const struct pp_cpu *c, int row, int h, const struct candidates *x)
{
    const struct pp_batch_row *r = &c->batch->rows[row];
    const int64_t length = length_of(c, r);
    int32_t *slots = c->pick.slots + ((int64_t)row * c->pick.n_lists + h) * c->pick.room;
    uint64_t left = r->tree_mask;
    int64_t passed = 0;
    for (int i = 0; i < x->n + c->pick.pooled; i++) {
        int64_t place = (i < x->n ? x->place[i] : length / c->pick.block) * c->pick.block;
        for (int64_t k = 0; k < c->pick.block && place < length; k++, place++) {
            *slots = (int32_t)place;
            if (r->tree_mask && place >= r->tree_base) {
                for (; passed < place - r->tree_base; passed++)
                    left &= left - 1;
                *slots = (int32_t)r->tree_base + __builtin_ctzll(left);
            }
            slots++;
        }
    }
}

static void merge(const struct pp_cpu *c, int row, int h, struct candidates *to)
{
    begin(to);
    for (int split = 0; split < c->pick.n_splits; split++) {
        const struct candidates *from = &c->pick.found[(row * c->pick.n_splits + split) * c->pick.n_lists + h];
        for (int i = 0; i < from->n; i++) {
            make_room(c, to, 1);
            add_one(to, from->rank[i], from->place[i]);
        }
    }
    select_best(to, n_wanted(c));
}

void pp_cpu_pick_phases(const struct pp_cpu *c, const struct stage *s, int m, int n_items[MAX_PHASES])
{
    (void)s;
    n_items[0] = m;
    n_items[1] = c->pick.any ? m * c->pick.n_splits : 0;
    n_items[2] = c->pick.any && c->pick.n_splits > 1 ? m : 0;
}

void pp_cpu_pick_item(struct pp_cpu *c, const struct stage *s, int m, int phase, int item, int thread)
{
    struct candidates *own = c->threads[thread].candidates;
    const int n_lists = c->pick.n_lists, row = phase == 1 ? item / c->pick.n_splits : item;
    (void)m;
    if (phase == 0) {
        prepare(c, s, row);
    } else if (!is_picked(c, row)) {
        return;
    } else if (phase == 2) {
        for (int h = 0; h < n_lists; h++) {
            merge(c, row, h, &own[h]);
            keep(c, row, h, &own[h]);
        }
    } else {
        score_row(c, s, row, item % c->pick.n_splits, &c->threads[thread]);
        for (int h = 0; h < n_lists; h++) {
            struct candidates *found = c->pick.n_splits > 1 ? &c->pick.found[item * n_lists + h] : NULL;
            if (!found) {
                keep(c, row, h, &own[h]);
                continue;
            }
            found->n = own[h].n;
            memcpy(found->rank, own[h].rank, (size_t)found->n * sizeof *found->rank);
            memcpy(found->place, own[h].place, (size_t)found->n * sizeof *found->place);
        }
    }
}
