/* snapshot.c - continues a sequence from a snapshot of its conversation. The branch that matches the prompt for longest
 * is found by names; its pages are read into our own by all threads, and hashed while they are in cache. The sequence
 * loses what differs from the prompt, and gets nothing before every checksum matches. */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/whole_io.h"
#include "engine/rope.h"
#include "engine/snapshot.h"

enum pp_code pp_seq_key(const struct pp_seq *s, const struct pp_sha256 *identity, struct pp_buf *text,
                        struct pp_error *err)
{
    const struct pp_kv_layout *l = pp_kv_pool_layout(s->engine->tier[0].kv);
    char hex[65];
    pp_sha256_hex(identity, hex); /* covers the weights and the hyperparameters, RoPE among them */
    pp_buf_fmt(text, "model=%s\n", hex);
    pp_buf_fmt(text, "kv=%s rotate=%d page=%d\n", pp_kv_type_name(l->type), l->rotate, PP_PAGE_TOKENS);
    pp_buf_fmt(text, "arithmetic=%s\n", pp_cpu_arithmetic(s->engine->cpu));
    if (pp_rope_depends_on_context(pp_source_hparams(s->engine->model->source)))
        pp_buf_fmt(text, "rope context=%lld\n", (long long)s->engine->n_ctx);
    for (int i = 0; i < s->adapters.n; i++) {
        if (s->start[i] == PP_NEVER)
            continue; /* not invoked: the same as absent */
        pp_sha256_hex(&s->adapters.use[i].adapter->identity, hex);
        pp_buf_fmt(text, "adapter=%s scale=%a", hex, (double)s->adapters.use[i].scale);
        if (s->start[i])
            pp_buf_fmt(text, " from=%lld", (long long)s->start[i]);
        pp_buf_char(text, '\n');
    }
    return text->bad ? pp_fail_nomem(err, "the cache key") : PP_OK;
}

/* --- the last row's logits ------------------------------------------------------------------------------------- */

void pp_row_logits_release(struct pp_row_logits *l)
{
    if (l && --l->refs == 0)
        pp_free(l);
}

void pp_seq_reserve_logits(struct pp_seq *s)
{
    const int64_t n = s->engine->model->info.n_vocab;
    if (s->logits && s->logits->refs == 1)
        return;
    struct pp_row_logits *fresh = pp_malloc(sizeof *fresh + (size_t)n * sizeof fresh->values[0]);
    if (!fresh)
        return; /* then the first token costs a pass, and no more */
    fresh->refs = 1;
    fresh->n = n;
    if (s->logits)
        memcpy(fresh->values, s->logits->values, (size_t)n * sizeof fresh->values[0]);
    pp_row_logits_release(s->logits);
    s->logits = fresh;
}

void pp_seq_keep_logits(struct pp_seq *s, const float *values)
{
    s->logits_len = 0;
    if (!values || !s->logits || s->logits->refs != 1)
        return;
    memcpy(s->logits->values, values, (size_t)s->logits->n * sizeof *values);
    s->logits_len = s->len;
}

const float *pp_seq_logits(const struct pp_seq *s)
{
    return s->logits && s->logits_len == s->len && s->len > 0 ? s->logits->values : NULL;
}

struct pp_row_logits *pp_seq_hold_logits(struct pp_seq *s)
{
    if (!pp_seq_logits(s))
        return NULL;
    s->logits->refs++;
    return s->logits;
}

/* --- the branch ------------------------------------------------------------------------------------------------ */

/* The pages of a snapshot that will be read into a sequence. */
struct page_path {
    uint32_t *nodes;        /* [n_pages]: one for each of the prompt's pages; the last may match only at its
                               beginning */
    int64_t n_pages;
    int64_t n_tokens;       /* tokens that the prompt has in common with them */
};

static int64_t common_prefix(const int32_t *a, const int32_t *b, int64_t n)
{
    int64_t i = 0;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

/* Finds the path from the root along the prompt, through pages with a key text. */
static enum pp_code find_path(const struct snapshot *s, const struct pp_buf *key, const int32_t *prompt, int64_t n,
                              struct page_path *w, struct pp_error *err)
{
    struct pp_sha256 hash;
    uint32_t at = PP_NO_NODE, best = PP_NO_NODE;
    int64_t most = 0;
    *w = (struct page_path){.nodes = pp_malloc((size_t)(n / PP_PAGE_TOKENS + 1) * sizeof *w->nodes)};
    if (!w->nodes)
        return pp_fail_nomem(err, "the saved cache");
    while (w->n_tokens + PP_PAGE_TOKENS <= n) {
        const int32_t *tokens = prompt + w->n_tokens;
        if (!pp_snapshot_page_key(key, w->n_pages, &hash))
            return pp_fail_nomem(err, "the saved cache");
        struct pp_hash128 name =
            pp_snapshot_name(at == PP_NO_NODE ? NULL : &s->nodes[at].name, &hash, tokens, PP_PAGE_TOKENS);
        uint32_t next = pp_snapshot_child(s, at, &name, tokens, PP_PAGE_TOKENS);
        if (next == PP_NO_NODE)
            break;
        w->nodes[w->n_pages++] = at = next;
        w->n_tokens += PP_PAGE_TOKENS;
    }
    if (!pp_snapshot_page_key(key, w->n_pages, &hash))
        return pp_fail_nomem(err, "the saved cache");
    for (uint32_t i = at == PP_NO_NODE ? 0 : at + 1; i < s->n_nodes; i++) {
        const struct snapshot_node *node = &s->nodes[i];
        int64_t left = n - w->n_tokens, most_of_it = left < node->n ? left : node->n;
        int64_t same = node->parent == at ? common_prefix(node->tokens, prompt + w->n_tokens, most_of_it) : 0;
        if (same <= most)
            continue;
        struct pp_hash128 name =
            pp_snapshot_name(at == PP_NO_NODE ? NULL : &s->nodes[at].name, &hash, node->tokens, node->n);
        if (name.lo != node->name.lo || name.hi != node->name.hi)
            continue; /* computed with other adapters */
        most = same;
        best = i;
    }
    if (best != PP_NO_NODE) {
        w->nodes[w->n_pages++] = best;
        w->n_tokens += most;
    }
    return PP_OK;
}

/* The first page of tier t from which a sequence of n tokens reads; it may compute its last token again. */
static int64_t first_needed(const struct pp_engine *e, int t, int64_t n)
{
    return n > 0 ? pp_tier_first_page(&e->tier[t], n - 1) : 0;
}

/* Whether it reads from this page. */
static bool is_needed(const struct pp_engine *e, int t, int64_t page, int64_t n)
{
    return n <= 0 || pp_tier_needs(&e->tier[t], page, n - 1);
}

/* Shortens the path until the pack has all pages, from `have` on, that a sequence of its length needs. */
static void shorten_path(const struct pp_engine *e, const struct snapshot *s, int64_t have, struct page_path *w)
{
    for (bool whole = false; !whole && w->n_tokens > have;) {
        whole = true;
        for (int t = 0; whole && t < e->n_tiers; t++) {
            for (int64_t p = have / PP_PAGE_TOKENS; whole && p < w->n_pages; p++)
                whole = !is_needed(e, t, p, w->n_tokens) || s->nodes[w->nodes[p]].place[t].offset != 0;
        }
        if (!whole) {
            w->n_pages--;
            w->n_tokens = w->n_pages * PP_PAGE_TOKENS;
        }
    }
}

/* --- reading --------------------------------------------------------------------------------------------------- */

enum {
    RUN_CHUNKS = 4,          /* read by a thread at a time: a megabyte */
    BLOCK = 4096,            /* alignment for reading past the page cache, and unit for asking what is in it */
};

/* A page to be read, and where it goes. */
struct page_read {
    uint32_t node;
    int tier;
    int64_t page;
    pp_page_id id;
    size_t chunk;            /* index of its first chunk */
    bool valid;              /* result of scales_valid */
};

/* Chunks that are adjacent both in the pack and in memory. */
struct run {
    uint64_t from;           /* offset in the pack */
    uint8_t *to;
    size_t n;                /* bytes */
    size_t chunk;            /* the first of them */
};

struct reading {
    int fd, direct;          /* of the pack; direct: with O_DIRECT, -1 if that is not available */
    uint8_t *map;            /* of the pack, only to ask what is in memory, never read; or NULL */
    size_t map_bytes;
    struct run *runs;        /* [n_runs] */
    size_t n_runs, cap_runs;
    struct pp_hash128 *sums; /* of all chunks: [n_chunks] */
    size_t n_chunks;
    struct page_read *pages; /* [n_pages] */
    size_t n_pages;
    const struct pp_engine *engine;
    const struct pp_cancel *cancel;
    atomic_bool failed;
};

static void open_reading(struct reading *r, const char *base)
{
    char *path = pp_snapshot_file(base, ".pack");
    struct stat st;
    r->direct = path ? open(path, O_RDONLY | O_DIRECT | O_CLOEXEC | O_NOFOLLOW) : -1;
    pp_free(path);
    if (fstat(r->fd, &st) != 0 || st.st_size <= 0)
        return;
    void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, r->fd, 0);
    r->map = map == MAP_FAILED ? NULL : map;
    r->map_bytes = (size_t)st.st_size;
}

static void close_reading(struct reading *r)
{
    if (r->map)
        munmap(r->map, r->map_bytes);
    if (r->direct >= 0)
        close(r->direct);
    if (r->fd >= 0)
        close(r->fd);
    pp_free(r->runs);
    pp_free(r->sums);
    pp_free(r->pages);
}

/* Whether the whole run is in the system's page cache. */
static bool in_memory(const struct reading *r, const struct run *run)
{
    unsigned char there[RUN_CHUNKS * PP_SNAPSHOT_CHUNK / BLOCK];
    size_t n = (run->n + BLOCK - 1) / BLOCK;
    if (!r->map || run->from > r->map_bytes || run->n > r->map_bytes - run->from || sysconf(_SC_PAGESIZE) != BLOCK ||
        mincore(r->map + run->from, run->n, there) != 0)
        return true;
    for (size_t i = 0; i < n; i++)
        if (!(there[i] & 1))
            return false;
    return true;
}

/* Reads past the page cache what is not in it, if it is aligned so that the disk can write it in place: then no core
 * copies anything. */
static size_t read_directly(const struct reading *r, const struct run *run)
{
    if (r->direct < 0 || (uintptr_t)run->to % BLOCK || run->from % BLOCK || run->n < BLOCK || in_memory(r, run))
        return 0;
    return pp_read_some_at(r->direct, run->to, run->n / BLOCK * BLOCK, run->from) / BLOCK * BLOCK;
}

static void read_run(struct reading *r, const struct run *run)
{
    size_t have = read_directly(r, run);
    for (size_t at = 0, i = 0; at < run->n; at += PP_SNAPSHOT_CHUNK, i++) {
        size_t end = at + PP_SNAPSHOT_CHUNK < run->n ? at + PP_SNAPSHOT_CHUNK : run->n;
        size_t from = have > at ? have < end ? have : end : at;
        if (pp_read_some_at(r->fd, run->to + from, end - from, run->from + from) < end - from) {
            atomic_store(&r->failed, true);
            return;
        }
        r->sums[run->chunk + i] = pp_hash128(run->to + at, end - at);
    }
}

/* Checks scales (F16): no engine writes NaN or infinity, nor negative ones in Q8 and Q8_0, and kernels rely on that.
 * Their offsets: kv.h. */
static bool scales_valid(const struct pp_kv_layout *l, const uint8_t *page)
{
    const unsigned looked_at = pp_kv_bytes(l) ? 0xFFFF : 0x7FFF;
    unsigned bad = 0;
    for (const uint8_t *head = page; head < page + l->page_bytes; head += l->head_bytes) {
        const uint16_t *k = (const uint16_t *)(const void *)(head + l->k_scales);
        const size_t k_end = l->v_in_k ? l->head_bytes : l->v;
        for (size_t i = 0; i < (k_end - l->k_scales) / 2; i++)
            bad |= (k[i] & looked_at) >= 0x7C00;
        if (l->v_in_k)
            continue;
        const uint16_t *v = (const uint16_t *)(const void *)(head + l->v_scales);
        for (size_t i = 0; i < (l->head_bytes - l->v_scales) / 2; i++)
            bad |= (v[i] & looked_at) >= 0x7C00;
    }
    return !bad;
}

/* Part 0 reads runs, part 1 checks pages. */
static void read_or_check(void *arg, int part, int item, int thread)
{
    struct reading *r = arg;
    (void)thread;
    if (atomic_load_explicit(&r->failed, memory_order_relaxed) || pp_cancelled(r->cancel))
        return;
    if (part == 0) {
        read_run(r, &r->runs[item]);
        return;
    }
    struct page_read *p = &r->pages[item];
    struct pp_kv_pool *kv = r->engine->tier[p->tier].kv;
    p->valid = scales_valid(pp_kv_pool_layout(kv), pp_page_data(kv, p->id));
}

static bool add_runs(struct reading *r, const struct snapshot_place *place, uint8_t *to, size_t bytes)
{
    const size_t most = RUN_CHUNKS * PP_SNAPSHOT_CHUNK;
    if (pp_grow(&r->runs, &r->cap_runs, r->n_runs + bytes / most + 1, sizeof *r->runs) != 0)
        return false;
    for (size_t at = 0; at < bytes; at += most)
        r->runs[r->n_runs++] = (struct run){
            .from = place->offset + at,
            .to = to + at,
            .n = bytes - at < most ? bytes - at : most,
            .chunk = r->n_chunks + at / PP_SNAPSHOT_CHUNK,
        };
    r->n_chunks += pp_snapshot_n_chunks(bytes);
    return true;
}

static bool checksum_matches(const struct snapshot *s, const struct page_read *p, const struct reading *r)
{
    const struct snapshot_node *node = &s->nodes[p->node];
    struct pp_hash128 sum = pp_snapshot_sum(&node->name, (uint32_t)p->tier, &r->sums[p->chunk],
                                            pp_snapshot_n_chunks(s->page_bytes[p->tier]));
    return sum.lo == node->place[p->tier].sum.lo && sum.hi == node->place[p->tier].sum.hi;
}

static enum pp_code damaged(struct pp_error *err, const char *what)
{
    return pp_fail(err, PP_ERR_FORMAT, "the saved KV cache is damaged (%s); computing it again", what);
}

/* Takes pages from the pools for all that is read, from page `from` on. */
static enum pp_code take_pages(struct reading *r, const struct snapshot *s, const struct page_path *w, int64_t from,
                               struct pp_error *err)
{
    const struct pp_engine *e = r->engine;
    for (int t = 0; t < e->n_tiers; t++) {
        for (int64_t p = from; p < w->n_pages; p++) {
            if (!is_needed(e, t, p, w->n_tokens))
                continue;
            pp_page_id id = pp_page_take(e->tier[t].kv);
            if (id == PP_NO_PAGE)
                return pp_fail(err, PP_ERR_NOMEM,
                               "there are too few free KV pages for the saved KV cache; computing it again");
            r->pages[r->n_pages++] =
                (struct page_read){.node = w->nodes[p], .tier = t, .page = p, .id = id, .chunk = r->n_chunks};
            if (!add_runs(r, &s->nodes[w->nodes[p]].place[t], pp_page_data(e->tier[t].kv, id), s->page_bytes[t]))
                return pp_fail_nomem(err, "the saved cache");
        }
    }
    r->sums = pp_malloc((r->n_chunks ? r->n_chunks : 1) * sizeof *r->sums);
    return r->sums && r->n_runs <= INT32_MAX ? PP_OK : pp_fail_nomem(err, "the saved cache");
}

/* Takes pages for all from page `from` on and fills them; on failure gives them back. */
static enum pp_code read_pages(struct reading *r, const struct snapshot *s, const struct page_path *w, int64_t from,
                               struct pp_error *err)
{
    enum pp_code code = take_pages(r, s, w, from, err);
    if (!code) {
        const int n_items[2] = {(int)r->n_runs, (int)r->n_pages};
        pp_pool_run(r->engine->pool, read_or_check, r, n_items, 2);
        if (pp_cancelled(r->cancel))
            code = pp_fail(err, PP_ERR_CANCELLED, "stopped");
        else if (atomic_load(&r->failed))
            code = damaged(err, "its pack cannot be read");
    }
    for (size_t i = 0; i < r->n_pages && !code; i++)
        if (!checksum_matches(s, &r->pages[i], r))
            code = damaged(err, "a page's checksum is wrong");
        else if (!r->pages[i].valid)
            code = damaged(err, "a page contains invalid values");
    for (size_t i = 0; i < r->n_pages && code; i++)
        pp_page_release(r->engine->tier[r->pages[i].tier].kv, r->pages[i].id);
    return code;
}

/* --- into the sequence ----------------------------------------------------------------------------------------- */

/* Puts the pages that were read into the sequence, in place of what it held from there on. */
static void put_pages(struct pp_seq *seq, const int32_t *prompt, const struct page_path *w, int64_t from,
                      const struct page_read *pages, size_t n_pages)
{
    struct pp_engine *e = seq->engine;
    for (int t = 0; t < e->n_tiers; t++) {
        struct pp_seq_tier *tier = &seq->tier[t];
        int64_t first = first_needed(e, t, w->n_tokens);
        for (; tier->n_pages > from; tier->n_pages--)
            if (pp_seq_holds(seq, t, tier->n_pages - 1))
                pp_page_release(e->tier[t].kv, tier->pages[tier->n_pages - 1]);
        if (first > from) { /* what it held is before the window */
            for (int64_t p = e->tier[t].first; p < tier->n_pages; p++)
                if (pp_seq_holds(seq, t, p))
                    pp_page_release(e->tier[t].kv, tier->pages[p]);
            tier->first_page = first;
        }
        tier->n_pages = w->n_pages;
    }
    for (size_t i = 0; i < n_pages; i++)
        pp_seq_set_page(seq, pages[i].tier, pages[i].page, pages[i].id);
    memcpy(seq->tokens + seq->len, prompt + seq->len, (size_t)(w->n_tokens - seq->len) * sizeof *prompt);
    e->stats.restored_tokens += (uint64_t)(w->n_tokens - seq->len);
    seq->len = seq->plain = w->n_tokens;
    seq->logits_len = 0;
    pp_seq_publish(seq);
}

/* Restores the stored logits, if the sequence ends where they were computed. */
static void restore_logits(struct pp_seq *seq, const struct snapshot *s, uint32_t key, const struct page_path *w)
{
    int64_t n = w->n_tokens % PP_PAGE_TOKENS;
    if (!w->n_pages || !s->logits || !s->n_branches || s->branches[0].key != key || seq->len != w->n_tokens ||
        s->branches[0].leaf != w->nodes[w->n_pages - 1] ||
        s->nodes[s->branches[0].leaf].n != (n ? n : PP_PAGE_TOKENS) ||
        s->n_logits != (uint64_t)seq->engine->model->info.n_vocab)
        return;
    pp_seq_reserve_logits(seq);
    pp_seq_keep_logits(seq, s->logits);
}

static enum pp_code read_path(struct pp_seq *seq, const struct snapshot *s, const char *base, const struct page_path *w,
                              const int32_t *prompt, const struct pp_cancel *cancel, struct pp_error *err)
{
    int64_t from = seq->len / PP_PAGE_TOKENS;
    struct reading r = {.fd = -1, .direct = -1, .engine = seq->engine, .cancel = cancel};
    r.pages = pp_malloc((size_t)(w->n_pages - from) * (size_t)seq->engine->n_tiers * sizeof *r.pages);
    enum pp_code code = r.pages ? PP_OK : pp_fail_nomem(err, "the saved cache");
    if (!code)
        code = pp_snapshot_open_pack(s, base, O_RDONLY, &r.fd, err);
    if (!code) {
        open_reading(&r, base);
        code = read_pages(&r, s, w, from, err);
    }
    if (!code)
        put_pages(seq, prompt, w, from, r.pages, r.n_pages);
    close_reading(&r);
    return code;
}

enum pp_code pp_snapshot_restore_from(struct pp_seq *seq, const struct pp_sha256 *identity, const char *base,
                                      const char *owner, const void *manifest, size_t size, const int32_t *prompt,
                                      int64_t n, const struct pp_cancel *cancel, struct pp_error *err)
{
    struct snapshot s = {0};
    struct pp_buf ours = {0};
    struct page_path w = {0};
    uint32_t key = 0;
    pp_seq_activate(seq, prompt, n);
    enum pp_code code = pp_seq_key(seq, identity, &ours, err);
    if (!code)
        code = pp_snapshot_decode(manifest, size, &s, err);
    if (!code)
        code = pp_snapshot_fits(&s, seq, owner, &ours, &key, err);
    if (n > seq->engine->n_ctx)
        n = seq->engine->n_ctx;
    for (int64_t i = 0; i < n; i++)
        if (prompt[i] < 0 ||
            prompt[i] >= seq->engine->model->info.n_vocab + seq->engine->model->info.n_meta_tokens)
            n = i;
    if (!code)
        code = find_path(&s, &ours, prompt, n, &w, err);
    if (!code) {
        pp_seq_truncate(seq, common_prefix(seq->tokens, prompt, seq->len < n ? seq->len : n));
        pp_seq_adopt(seq, prompt, n);
        shorten_path(seq->engine, &s, seq->len, &w);
        if (w.n_tokens > seq->len)
            code = read_path(seq, &s, base, &w, prompt, cancel, err);
        if (!code && !pp_seq_logits(seq))
            restore_logits(seq, &s, key, &w);
    }
    pp_free(w.nodes);
    pp_buf_free(&ours);
    pp_snapshot_free(&s);
    return code;
}

enum pp_code pp_snapshot_restore(struct pp_seq *seq, const struct pp_sha256 *identity, const char *base,
                                 const char *owner, const int32_t *prompt, int64_t n, const struct pp_cancel *cancel,
                                 struct pp_error *err)
{
    char *path = pp_snapshot_file(base, ".manifest"), *data = NULL;
    size_t size = 0;
    if (!path)
        return pp_fail_nomem(err, "the saved cache");
    enum pp_code code = pp_read_file(path, PP_SNAPSHOT_MANIFEST_MAX, &data, &size, err);
    if (!code)
        code = pp_snapshot_restore_from(seq, identity, base, owner, data, size, prompt, n, cancel, err);
    if (code == PP_ERR_FORMAT)
        unlink(path); /* otherwise the next save would build on it */
    pp_free(data);
    pp_free(path);
    return code;
}
