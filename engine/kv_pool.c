/* kv_pool.c - the page pool: reference counts, lookup by name, and LRU eviction when memory is needed.
 *
 * A page is in one of four states; it is HELD while refs > 0, and a CACHED one can still be found by its name:
 *
 *                take          release, unnamed
 *   never used ───────► HELD ────────────────────► FREE
 *                       │  ▲ ◄──── take ─────────────┘
 *        release, named │  │ find; or take, which evicts the least recently held one: it loses its name
 *                       ▼  │
 *                      CACHED
 *
 * Names are in a hash table with chaining, cached pages in a doubly linked list, the least recently held first. */
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/kv.h"

struct page {
    struct pp_hash128 name;
    int32_t refs;
    bool named;
    pp_page_id next;            /* in its bucket, while it is named */
    pp_page_id older, newer;    /* in the list of cached pages, while it is cached */
};

struct pp_kv_pool {
    struct pp_kv_layout layout;
    uint8_t *base;              /* pool_bytes() of reserved addresses */
    size_t stride;              /* page_bytes rounded up to 64 */
    int32_t n_pages;
    _Atomic int32_t n_fresh;    /* pages from this on were never used; other threads read it (pp_kv_pool_prefault) */
    int32_t n_held, n_cached;
    struct page *pages;         /* [n_pages] */
    pp_page_id *free_list;      /* [n_pages], n_free in use */
    int32_t n_free;
    pp_page_id *buckets;        /* [n_buckets], a power of two */
    uint32_t n_buckets;
    pp_page_id oldest, newest;  /* ends of the list of cached pages */
};

static size_t pool_bytes(const struct pp_kv_pool *p)
{
    return (size_t)p->n_pages * p->stride + PP_KV_PADDING;
}

enum pp_code pp_kv_pool_new(const struct pp_kv_layout *l, uint64_t limit, struct pp_kv_pool **out, struct pp_error *err)
{
    *out = NULL;
    size_t stride = (l->page_bytes + 63) / 64 * 64;
    uint64_t n = limit / l->page_bytes; /* page_bytes, not stride, so that callers who count page_bytes get as many
                                           pages */
    if (n < 1)
        n = 1;
    if (n > INT32_MAX / 2)
        n = INT32_MAX / 2;
    struct pp_kv_pool *p = pp_calloc(1, sizeof *p);
    if (!p)
        return pp_fail_nomem(err, "the KV cache");
    p->layout = *l;
    p->stride = stride;
    p->n_pages = (int32_t)n;
    p->oldest = p->newest = PP_NO_PAGE;
    for (p->n_buckets = 16; p->n_buckets < n; p->n_buckets *= 2)
        continue;
    p->pages = pp_calloc((size_t)n, sizeof *p->pages);
    p->free_list = pp_malloc((size_t)n * sizeof *p->free_list);
    p->buckets = pp_malloc((size_t)p->n_buckets * sizeof *p->buckets);
    p->base = mmap(NULL, pool_bytes(p), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p->base == MAP_FAILED)
        p->base = NULL;
    else /* fewer page faults where a restored conversation touches hundreds of MB at once; attention gains, too */
        (void)madvise(p->base, pool_bytes(p), MADV_HUGEPAGE);
    if (!p->pages || !p->free_list || !p->buckets || !p->base) {
        pp_kv_pool_free(p);
        return pp_fail(err, PP_ERR_NOMEM,
                       "cannot reserve %.1f GB for the KV cache; use a smaller --ctx-size or --kv-memory",
                       (double)n * (double)stride / 1e9);
    }
    for (uint32_t i = 0; i < p->n_buckets; i++)
        p->buckets[i] = PP_NO_PAGE;
    *out = p;
    return PP_OK;
}

void pp_kv_pool_free(struct pp_kv_pool *p)
{
    if (!p)
        return;
    if (p->base)
        munmap(p->base, pool_bytes(p));
    pp_free(p->pages);
    pp_free(p->free_list);
    pp_free(p->buckets);
    pp_free(p);
}

const struct pp_kv_layout *pp_kv_pool_layout(const struct pp_kv_pool *p) { return &p->layout; }
uint64_t pp_kv_pool_used(const struct pp_kv_pool *p) { return (uint64_t)p->n_held; }
uint64_t pp_kv_pool_cached(const struct pp_kv_pool *p) { return (uint64_t)p->n_cached; }
uint64_t pp_kv_pool_total(const struct pp_kv_pool *p) { return (uint64_t)p->n_pages; }
int pp_page_refs(const struct pp_kv_pool *p, pp_page_id id) { return p->pages[id].refs; }
bool pp_page_named(const struct pp_kv_pool *p, pp_page_id id) { return p->pages[id].named; }
uint8_t *pp_page_data(const struct pp_kv_pool *p, pp_page_id id) { return p->base + (size_t)id * p->stride; }

void pp_kv_pool_prefault(const struct pp_kv_pool *p, uint64_t n, const struct pp_cancel *cancel)
{
#ifdef MADV_POPULATE_WRITE
    const size_t system_page = (size_t)sysconf(_SC_PAGESIZE), bite = (size_t)4 << 20; /* touching 4 MB takes a few
                                                                                         milliseconds */
    const uint64_t first = (uint64_t)atomic_load_explicit(&p->n_fresh, memory_order_relaxed);
    const uint64_t most = ((uint64_t)p->n_pages - first) / 2;
    const size_t end = (size_t)(first + (n < most ? n : most)) * p->stride;
    for (size_t at = (size_t)first * p->stride / system_page * system_page; at < end; at += bite) {
        const size_t left = end - at;
        if (pp_cancelled(cancel) || madvise(p->base + at, left < bite ? left : bite, MADV_POPULATE_WRITE) != 0)
            return; /* out of memory, or not supported: the pages will be faulted in when they are written */
    }
#else
    (void)p, (void)n, (void)cancel;
#endif
}

/* --- cached pages ---------------------------------------------------------------------------------------------- */

static void cache(struct pp_kv_pool *p, pp_page_id id)
{
    struct page *page = &p->pages[id];
    page->older = p->newest;
    page->newer = PP_NO_PAGE;
    *(p->newest == PP_NO_PAGE ? &p->oldest : &p->pages[p->newest].newer) = id;
    p->newest = id;
    p->n_cached++;
}

static void uncache(struct pp_kv_pool *p, pp_page_id id)
{
    const struct page *page = &p->pages[id];
    *(page->older == PP_NO_PAGE ? &p->oldest : &p->pages[page->older].newer) = page->newer;
    *(page->newer == PP_NO_PAGE ? &p->newest : &p->pages[page->newer].older) = page->older;
    p->n_cached--;
}

/* --- names ----------------------------------------------------------------------------------------------------- */

static pp_page_id *bucket_of(const struct pp_kv_pool *p, const struct pp_hash128 *name)
{
    return &p->buckets[name->lo & (p->n_buckets - 1)];
}

static pp_page_id look_up(const struct pp_kv_pool *p, const struct pp_hash128 *name)
{
    pp_page_id id = *bucket_of(p, name);
    while (id != PP_NO_PAGE && (p->pages[id].name.lo != name->lo || p->pages[id].name.hi != name->hi))
        id = p->pages[id].next;
    return id;
}

void pp_page_name(struct pp_kv_pool *p, pp_page_id id, const struct pp_hash128 *name)
{
    struct page *page = &p->pages[id];
    if (page->named || look_up(p, name) != PP_NO_PAGE)
        return;
    pp_page_id *bucket = bucket_of(p, name);
    page->name = *name;
    page->named = true;
    page->next = *bucket;
    *bucket = id;
}

void pp_page_unname(struct pp_kv_pool *p, pp_page_id id)
{
    struct page *page = &p->pages[id];
    if (!page->named)
        return;
    pp_page_id *at = bucket_of(p, &page->name);
    while (*at != id)
        at = &p->pages[*at].next;
    *at = page->next;
    page->named = false;
}

bool pp_page_known(const struct pp_kv_pool *p, const struct pp_hash128 *name)
{
    return look_up(p, name) != PP_NO_PAGE;
}

pp_page_id pp_page_find(struct pp_kv_pool *p, const struct pp_hash128 *name)
{
    pp_page_id id = look_up(p, name);
    if (id != PP_NO_PAGE)
        pp_page_retain(p, id);
    return id;
}

/* --- holding --------------------------------------------------------------------------------------------------- */

pp_page_id pp_page_take(struct pp_kv_pool *p)
{
    pp_page_id id;
    if (p->n_free > 0) {
        id = p->free_list[--p->n_free];
    } else if (p->n_fresh < p->n_pages) {
        id = atomic_load_explicit(&p->n_fresh, memory_order_relaxed);
        atomic_store_explicit(&p->n_fresh, id + 1, memory_order_relaxed);
    } else if (p->oldest != PP_NO_PAGE) {
        id = p->oldest;
        uncache(p, id);
        pp_page_unname(p, id);
    } else {
        return PP_NO_PAGE;
    }
    p->pages[id].refs = 1;
    p->n_held++;
    return id;
}

void pp_page_retain(struct pp_kv_pool *p, pp_page_id id)
{
    if (p->pages[id].refs++ > 0)
        return;
    uncache(p, id);
    p->n_held++;
}

void pp_page_release(struct pp_kv_pool *p, pp_page_id id)
{
    if (--p->pages[id].refs > 0)
        return;
    p->n_held--;
    if (p->pages[id].named)
        cache(p, id);
    else
        p->free_list[p->n_free++] = id;
}
