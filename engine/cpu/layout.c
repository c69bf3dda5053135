#include "engine/cpu/layout.h"

#include <sched.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/cpu/layout_file.h"
#include "engine/cpu/matmul.h"
#include "engine/pool.h"
#include "engine/quant.h"

/* --- life ------------------------------------------------------------------------------------------------------ */

enum pp_code pp_weights_new(const struct pp_model *m, struct pp_weights **out, struct pp_error *err)
{
    *out = pp_calloc(1, sizeof **out);
    if (!*out)
        return pp_fail_nomem(err, "the model's weights");
    (*out)->model = m;
    (*out)->watch = -1;
    (*out)->least_enlarged = (size_t)64 << 20;
    (*out)->store.fd = -1;
    return PP_OK;
}

void pp_weights_free(struct pp_weights *w)
{
    if (!w)
        return;
    pp_weights_stop_keeping(w);
    pp_map_unwatch(w->watch);
    if (w->room)
        munmap(w->room, w->region_bytes + PP_LARGE_PAGE);
    for (int i = 0; i < w->n; i++)
        pp_free(w->list[i]);
    pp_free(w->list);
    pp_free(w->states);
    pp_free(w->sums);
    pp_free(w);
}

struct pp_weight *pp_weights_add(struct pp_weights *w, const struct pp_tensor *t)
{
    for (int i = 0; i < w->n; i++)
        if (w->list[i]->t == t)
            return w->list[i];
    return pp_weights_add_new(w, t);
}

struct pp_weight *pp_weights_add_new(struct pp_weights *w, const struct pp_tensor *t)
{
    size_t cap = (size_t)w->cap;
    if (pp_grow(&w->list, &cap, (size_t)w->n + 1, sizeof(struct pp_weight *)) != 0)
        return NULL;
    w->cap = (int)cap;
    struct pp_weight *m = pp_calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->owner = w;
    m->t = t;
    m->n_groups = (t->ne[1] + PP_GROUP_ROWS - 1) / PP_GROUP_ROWS;
    m->first_group = w->n_groups;
    m->offset = w->region_bytes;
    if (pp_pack_needed(t->type)) {
        m->bytes = pp_pack_bytes(t->type, t->ne[1], t->ne[0]);
        m->group_bytes = m->bytes / (size_t)m->n_groups;
        w->region_bytes += pp_weight_span(m);
    }
    w->n_groups += m->n_groups;
    w->list[w->n++] = m;
    return m;
}

/* Reserves anonymous memory for the region; huge pages where the system has them, since it is filled and read from end
 * to end. A file that is found will be mapped over it, so the region is offset to have the file's huge page
 * boundaries. */
static enum pp_code take_region(struct pp_weights *w, struct pp_error *err)
{
    void *p = mmap(NULL, w->region_bytes + PP_LARGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return pp_fail_nomem(err, "the model's weights");
    w->room = p;
    w->region = (uint8_t *)p + (w->store.data_offset - (uintptr_t)p) % PP_LARGE_PAGE;
    madvise(p, w->region_bytes + PP_LARGE_PAGE, MADV_HUGEPAGE);
    w->watch = w->keeps ? pp_map_watch(w->region, w->region_bytes) : -1;
    return PP_OK;
}

enum pp_code pp_weights_place(struct pp_weights *w, const char *cache_dir, uint64_t quota, struct pp_error *err)
{
    w->keeps = cache_dir && cache_dir[0];
    w->states = pp_calloc((size_t)w->n_groups, sizeof *w->states);
    w->sums = pp_calloc((size_t)w->n_groups, sizeof *w->sums);
    if (!w->states || !w->sums)
        return pp_fail_nomem(err, "the model's weights");
    pp_layout_store_init(w, cache_dir, quota);
    enum pp_code code = w->region_bytes ? take_region(w, err) : PP_OK;
    if (code)
        return code;
    w->from_cache = pp_layout_find(w);
    for (int i = 0; i < w->n; i++) {
        struct pp_weight *m = w->list[i];
        m->state = w->states + m->first_group;
        m->data = m->bytes ? pp_weight_group(m, 0) : m->t->data;
        atomic_store(&m->n_left, m->n_groups);
    }
    return PP_OK;
}

/* --- groups ---------------------------------------------------------------------------------------------------- */

static bool rows_finite(const struct pp_tensor *t, int64_t row0, int64_t row1)
{
    size_t row_bytes = pp_type_row_bytes(t->type, t->ne[0]);
    bool finite = true;
    for (int64_t r = row0; r < row1; r++)
        finite &= pp_row_finite(t->type, (const uint8_t *)t->data + (size_t)r * row_bytes, t->ne[0]);
    return finite;
}

/* Makes the mapped file's pages under this group writable: the mapping is private, so writing copies them. */
static bool make_private(const struct pp_weight *m, int64_t group)
{
    size_t begin = m->offset + (size_t)group * m->group_bytes, end = begin + m->group_bytes;
    begin = begin / PP_LAYOUT_ALIGN * PP_LAYOUT_ALIGN;
    return mprotect(m->owner->region + begin, end - begin, PROT_READ | PROT_WRITE) == 0;
}

/* Checks or packs a group that the caller has claimed; returns its new state, PP_GROUP_READY or PP_GROUP_BAD. */
static enum pp_group_state make_group(struct pp_weight *m, int64_t group)
{
    struct pp_weights *w = m->owner;
    const struct pp_tensor *t = m->t;
    int64_t row0 = group * PP_GROUP_ROWS, row1 = row0 + PP_GROUP_ROWS < t->ne[1] ? row0 + PP_GROUP_ROWS : t->ne[1];
    uint64_t *sum = &w->sums[m->first_group + group];
    if (m->bytes && m->from_file) {
        if (pp_hash64(pp_weight_group(m, group), m->group_bytes) == *sum)
            return PP_GROUP_READY;
        atomic_fetch_add_explicit(&w->repaired, 1, memory_order_relaxed);
        if (!make_private(m, group))
            return PP_GROUP_BAD;
    }
    if (!rows_finite(t, row0, row1))
        return PP_GROUP_BAD;
    if (m->bytes) {
        pp_pack_rows(t->type, t->data, t->ne[1], t->ne[0], row0, row1, w->region + m->offset);
        *sum = pp_hash64(pp_weight_group(m, group), m->group_bytes);
    }
    return PP_GROUP_READY;
}

/* Claims and makes the group, or waits for the thread that has claimed it. Returns its final state. */
static enum pp_group_state settle_group(struct pp_weight *m, int64_t group)
{
    unsigned char seen = PP_GROUP_NEW;
    if (atomic_compare_exchange_strong(&m->state[group], &seen, PP_GROUP_BUSY)) {
        seen = (unsigned char)make_group(m, group);
        if (seen == PP_GROUP_BAD)
            pp_weights_bad(m->owner, m->t);
        atomic_store_explicit(&m->state[group], seen, memory_order_release);
        if (seen == PP_GROUP_READY)
            atomic_fetch_sub_explicit(&m->n_left, 1, memory_order_acq_rel);
        return (enum pp_group_state)seen;
    }
    while ((seen = atomic_load_explicit(&m->state[group], memory_order_acquire)) == PP_GROUP_BUSY)
        sched_yield();
    return (enum pp_group_state)seen;
}

bool pp_weight_make(struct pp_weight *m, int64_t row0, int64_t row1, const atomic_bool *stop,
                    const struct pp_cancel *cancel)
{
    for (int64_t g = row0 / PP_GROUP_ROWS; g * PP_GROUP_ROWS < row1; g++) {
        if (atomic_load_explicit(&m->state[g], memory_order_acquire) == PP_GROUP_READY)
            continue;
        if ((stop && atomic_load_explicit(stop, memory_order_relaxed)) || pp_cancelled(cancel))
            return false;
        if (settle_group(m, g) == PP_GROUP_BAD)
            return false;
    }
    return true;
}

struct finishing {
    struct pp_weight *m;
    const struct pp_cancel *cancel;
};

enum { FINISH_GROUPS = 4 }; /* per work item */

static void finish_some(void *arg, int part, int item, int thread)
{
    struct finishing *f = arg;
    const int64_t rows = FINISH_GROUPS * PP_GROUP_ROWS, row0 = item * rows;
    (void)part, (void)thread;
    pp_weight_make(f->m, row0, row0 + rows < f->m->t->ne[1] ? row0 + rows : f->m->t->ne[1], NULL, f->cancel);
}

enum pp_code pp_weights_finish(struct pp_weights *w, struct pp_pool *pool, const struct pp_cancel *cancel,
                               struct pp_error *err)
{
    for (int i = 0; i < w->n; i++) {
        struct finishing f = {.m = w->list[i], .cancel = cancel};
        int n_items = (int)((f.m->n_groups + FINISH_GROUPS - 1) / FINISH_GROUPS);
        if (atomic_load(&f.m->n_left))
            pp_pool_run(pool, finish_some, &f, &n_items, 1);
    }
    enum pp_code code = pp_weights_check(w, err);
    if (!code && (pp_cancelled(cancel) || !pp_weights_wait_saved(w, cancel)))
        code = pp_fail(err, PP_ERR_CANCELLED, "loading the model was stopped");
    return code;
}

/* --- state ------------------------------------------------------------------------------------------------------ */

void pp_weights_bad(struct pp_weights *w, const struct pp_tensor *t)
{
    atomic_store(&w->bad, t);
}

enum pp_code pp_fail_values(const struct pp_tensor *t, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_FORMAT,
                   "tensor %s contains NaN or infinity; the model file is damaged: download it again", t->name);
}

enum pp_code pp_weights_check(const struct pp_weights *w, struct pp_error *err)
{
    const struct pp_tensor *bad = atomic_load(&w->bad);
    if (bad)
        return pp_fail_values(bad, err);
    if (pp_map_watch_lost(w->watch))
        return pp_fail(err, PP_ERR_IO,
                       "the repacked weights in the cache were truncated by another program; load the model again");
    return PP_OK;
}

struct pp_weights_state pp_weights_state(const struct pp_weights *w)
{
    struct pp_weights_state s = {.from_cache = w->from_cache};
    for (int i = 0; i < w->n; i++)
        s.bytes += w->list[i]->bytes;
    s.mapped = atomic_load(&w->mapped);
    s.anonymous = w->region_bytes > s.mapped ? w->region_bytes - s.mapped : 0;
    s.repaired = atomic_load(&w->repaired);
    s.book_keeping = (uint64_t)w->n_groups * (sizeof *w->states + sizeof *w->sums) + (uint64_t)w->n * sizeof **w->list;
    return s;
}
