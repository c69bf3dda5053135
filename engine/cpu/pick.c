/* pick.c - stages of an index (plan.h): which positions rows see in attention, where they would see more than so many.
 *
 * A row's scores are made a chunk of positions at a time, and of those that have passed, as many as are wanted are
 * kept, those with the largest scores, and a few more until they are sorted out: so no memory grows with the context.
 * Positions pass in ascending order, and a later one must have a larger score to take an earlier one's place: of equal
 * scores the first position's is the one that counts. With few rows several items share a row's positions; what each
 * finds passes in the same order behind. What is picked depends on the scores alone, and those on nothing but the row
 * and the position: not on other rows, nor on threads.
 *
 * Scores take n_head times head_dim products for each position, in DeepSeek V3.2 a seventeenth of those that attention
 * to that position would. They are of floats, whatever the KV type. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/cpu/program.h"

enum {
    ITEMS_PER_THREAD = 4,   /* wanted when a row's positions are shared */
    ROWS_PER_THREAD = 2,    /* with so many they are not */
    MORE = 4 * PP_KV_CHUNK, /* candidates besides twice as many as are wanted */
};

/* --- memory ---------------------------------------------------------------------------------------------------- */

static bool make_candidates(struct pp_cpu *c, struct candidates *x, int64_t n)
{
    x->rank = pp_cpu_memory_take(c, n, sizeof *x->rank);
    x->place = pp_cpu_memory_take(c, n, sizeof *x->place);
    return x->rank && x->place;
}

static void free_candidates(struct candidates *x)
{
    pp_free(x->rank);
    pp_free(x->place);
}

static int64_t capacity(const struct pp_cpu *c)
{
    return 2 * c->pick.top_k + MORE;
}

bool pp_cpu_pick_new(struct pp_cpu *c)
{
    const int n_threads = pp_pool_n(c->pool);
    for (int t = 0; t < c->n_tiers; t++)
        if (c->attend[t].kv.kind == PP_TIER_INDEX)
            c->pick.top_k = c->attend[t].top_k;
    if (!c->pick.top_k)
        return true;
    if (!(c->pick.slots = pp_cpu_memory_take(c, c->max_rows * c->pick.top_k, sizeof *c->pick.slots)))
        return false;
    for (int i = 0; i < n_threads; i++)
        if (!make_candidates(c, &c->threads[i].candidates, capacity(c)))
            return false;
    const int n = n_threads > 1 ? (ITEMS_PER_THREAD + ROWS_PER_THREAD) * n_threads : 0;
    if (n && !(c->pick.found = pp_cpu_memory_take(c, n, sizeof *c->pick.found)))
        return false;
    for (; c->pick.n_found < n; c->pick.n_found++)
        if (!make_candidates(c, &c->pick.found[c->pick.n_found], c->pick.top_k)) {
            free_candidates(&c->pick.found[c->pick.n_found]);
            return false;
        }
    return true;
}

void pp_cpu_pick_free(struct pp_cpu *c)
{
    pp_free(c->pick.slots);
    for (int i = 0; c->threads && i < pp_pool_n(c->pool); i++)
        free_candidates(&c->threads[i].candidates);
    for (int i = 0; i < c->pick.n_found; i++)
        free_candidates(&c->pick.found[i]);
    pp_free(c->pick.found);
}

void pp_cpu_pick_plan(struct pp_cpu *c)
{
    const int m = c->batch->n, n_threads = pp_pool_n(c->pool);
    int64_t longest = 0;
    for (int i = 0; c->pick.top_k && i < m; i++)
        longest = pp_cpu_row_length(&c->batch->rows[i]) > longest ? pp_cpu_row_length(&c->batch->rows[i]) : longest;
    const int64_t n_chunks = (longest + PP_KV_CHUNK - 1) / PP_KV_CHUNK;
    c->pick.any = c->pick.top_k && longest > c->pick.top_k;
    c->pick.n_splits = 1;
    if (n_threads > 1 && m < ROWS_PER_THREAD * n_threads)
        c->pick.n_splits = (ITEMS_PER_THREAD * n_threads + m - 1) / m;
    if (c->pick.n_splits > n_chunks && n_chunks)
        c->pick.n_splits = (int)n_chunks;
}

/* --- candidates ------------------------------------------------------------------------------------------------ */

/* Whole numbers in the order of the floats. Both zeros are the same one; what is no number is the largest, so that it
 * is seen and not hidden. */
static uint32_t rank_of(float score)
{
    uint32_t bits;
    score += 0.0f;
    memcpy(&bits, &score, sizeof bits);
    return score != score ? UINT32_MAX : bits >> 31 ? ~bits : bits | 1u << 31;
}

/* The k-th largest rank, byte by byte; *more: how many are larger. */
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

/* Only the k best are left, in the same order: of equal ranks the first. */
static void sort_out(struct candidates *x, int k)
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

/* n of them, at most MORE, that come behind all that are there. */
static void make_room(const struct pp_cpu *c, struct candidates *x, int n)
{
    if (x->n + n > capacity(c))
        sort_out(x, (int)c->pick.top_k);
}

static inline void pass_one(struct candidates *x, uint32_t rank, int32_t place)
{
    if (x->full && rank <= x->least)
        return;
    x->rank[x->n] = rank;
    x->place[x->n++] = place;
}

static void pass_scores(const struct pp_cpu *c, struct candidates *x, const float *scores, int n, int64_t place)
{
    make_room(c, x, n);
    for (int i = 0; i < n; i++)
        pass_one(x, rank_of(scores[i]), (int32_t)(place + i));
}

static void begin(struct candidates *x)
{
    x->n = 0;
    x->full = false;
}

/* --- scores ---------------------------------------------------------------------------------------------------- */

static bool stopped(struct pp_cpu *c)
{
    if (!pp_cancelled(c->cancel))
        return false;
    atomic_store_explicit(&c->abandoned, true, memory_order_relaxed);
    return true;
}

/* A branch of a tree, of which the positions lie scattered: their keys are copied side by side. */
static void pass_branch(struct pp_cpu *c, const struct stage *s, int row, struct thread_scratch *t)
{
    const struct pp_batch_row *r = &c->batch->rows[row];
    const struct pp_kv_layout *kv = &c->attend[s->tier].kv;
    const size_t offset = pp_kv_head_offset(kv, s->layer, 0);
    const uint8_t *heads[PP_CHUNK_PAGES] = {t->tail};
    float scores[PP_KV_CHUNK];
    int n = 0;
    for (uint64_t left = r->tree_mask; left; left &= left - 1, n++) {
        const int64_t from = r->tree_base + __builtin_ctzll(left);
        pp_kv_copy_head_position(kv, r->pages[s->tier][from / PP_PAGE_TOKENS] + offset, (int)(from % PP_PAGE_TOKENS),
                                 t->tail, n);
    }
    c->ops->index_scores(&t->attention[s->tier], slot_row(c, s->head_weights, row), heads, n, scores);
    pass_scores(c, &t->candidates, scores, n, r->tree_base);
}

/* One of the items that share a row's positions. */
static void pass_row(struct pp_cpu *c, const struct stage *s, int row, int split, struct thread_scratch *t)
{
    const struct pp_batch_row *r = &c->batch->rows[row];
    const struct pp_kv_layout *kv = &c->attend[s->tier].kv;
    const size_t offset = pp_kv_head_offset(kv, s->layer, 0);
    const int64_t length = r->tree_mask ? r->tree_base : r->sees, n_chunks = (length + PP_KV_CHUNK - 1) / PP_KV_CHUNK;
    const int64_t end = n_chunks * (split + 1) / c->pick.n_splits;
    float scores[PP_KV_CHUNK];
    c->ops->index_query(&t->attention[s->tier], slot_row(c, s->q, row));
    begin(&t->candidates);
    for (int64_t chunk = n_chunks * split / c->pick.n_splits; chunk < end && !stopped(c); chunk++) {
        const int64_t first = chunk * PP_KV_CHUNK, left = length - first;
        const int n = left < PP_KV_CHUNK ? (int)left : PP_KV_CHUNK;
        const uint8_t *heads[PP_CHUNK_PAGES] = {NULL};
        for (int i = 0; i * PP_PAGE_TOKENS < n; i++)
            heads[i] = r->pages[s->tier][chunk * PP_CHUNK_PAGES + i] + offset;
        c->ops->index_scores(&t->attention[s->tier], slot_row(c, s->head_weights, row), heads, n, scores);
        pass_scores(c, &t->candidates, scores, n, first);
    }
    if (r->tree_mask && split == c->pick.n_splits - 1)
        pass_branch(c, s, row, t);
    sort_out(&t->candidates, (int)c->pick.top_k);
}

/* --- the stage ------------------------------------------------------------------------------------------------- */

static bool is_picked(const struct pp_cpu *c, int row)
{
    return pp_cpu_row_length(&c->batch->rows[row]) > c->pick.top_k;
}

static void rotate(const struct pp_cpu *c, const struct stage *s, int row, float *x, int n_heads)
{
    const struct rope *rope = &c->ropes[0];
    for (int h = 0; h < n_heads; h++)
        c->ops->rope(x + h * c->attend[s->tier].kv.head_dim + s->rotated_from, rope->dim, s->halves,
                     rope->cos_sin + row * rope->dim);
}

static void prepare(const struct pp_cpu *c, const struct stage *s, int row)
{
    const struct pp_batch_row *r = &c->batch->rows[row];
    const struct pp_kv_layout *kv = &c->attend[s->tier].kv;
    float *k = slot_row(c, s->k, row);
    rotate(c, s, row, k, 1);
    c->ops->kv_store(kv, r->pages[s->tier][r->slot / PP_PAGE_TOKENS], pp_kv_head_offset(kv, s->layer, 0),
                     (int)(r->slot % PP_PAGE_TOKENS), k, NULL);
    if (is_picked(c, row))
        rotate(c, s, row, slot_row(c, s->q, row), c->attend[s->tier].group);
}

/* Where what was picked lies. A pass that is abandoned has found too little: those places are never read. */
static void keep(const struct pp_cpu *c, int row, const struct candidates *x)
{
    const struct pp_batch_row *r = &c->batch->rows[row];
    int32_t *slots = c->pick.slots + row * c->pick.top_k;
    uint64_t left = r->tree_mask;
    for (int i = 0, passed = 0; i < x->n; i++) {
        slots[i] = x->place[i];
        if (!r->tree_mask || x->place[i] < r->tree_base)
            continue;
        for (; passed < x->place[i] - r->tree_base; passed++)
            left &= left - 1;
        slots[i] = (int32_t)r->tree_base + __builtin_ctzll(left);
    }
}

static void merge(const struct pp_cpu *c, int row, struct candidates *to)
{
    begin(to);
    for (int split = 0; split < c->pick.n_splits; split++) {
        const struct candidates *from = &c->pick.found[row * c->pick.n_splits + split];
        for (int i = 0; i < from->n; i++) {
            make_room(c, to, 1);
            pass_one(to, from->rank[i], from->place[i]);
        }
    }
    sort_out(to, (int)c->pick.top_k);
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
    struct thread_scratch *t = &c->threads[thread];
    const int row = phase == 1 ? item / c->pick.n_splits : item;
    (void)m;
    if (phase == 0) {
        prepare(c, s, row);
    } else if (!is_picked(c, row)) {
        return;
    } else if (phase == 2) {
        merge(c, row, &t->candidates);
        keep(c, row, &t->candidates);
    } else {
        pass_row(c, s, row, item % c->pick.n_splits, t);
        if (c->pick.n_splits == 1) {
            keep(c, row, &t->candidates);
            return;
        }
        struct candidates *found = &c->pick.found[item];
        found->n = t->candidates.n;
        memcpy(found->rank, t->candidates.rank, (size_t)found->n * sizeof *found->rank);
        memcpy(found->place, t->candidates.place, (size_t)found->n * sizeof *found->place);
    }
}
