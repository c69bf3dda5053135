/* worker_slots.c - one sequence per conversation, and what is kept of it on the disk. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "src/worker_int.h"

enum {
    SHARE_TOKENS = 16,            /* fewer in common are computed again rather than shared */
    IDENTITY_WAIT_MS = 5000,      /* for a model below IDENTITY_QUICK_BYTES: about a second is needed */
    IDENTITY_CACHED_WAIT_MS = 200, /* for a larger one: enough if its identity is in the cache */
};

static const uint64_t IDENTITY_QUICK_BYTES = UINT64_C(1) << 30;

/* --- slots ------------------------------------------------------------------------------------------------ */

static void clear(struct slot *s)
{
    pp_seq_free(s->seq);
    pp_seq_free(s->draft);
    *s = (struct slot){0};
}

static bool save(struct pp_worker *w, struct slot *s, int wait_ms);

/* An empty slot; if need be, the one that was not used for longest is saved and emptied. There are more slots than
 * answers at a time. */
static struct slot *take(struct pp_worker *w)
{
    struct slot *oldest = NULL;
    for (int i = 0; i < WORKER_SLOTS; i++) {
        struct slot *s = &w->slots[i];
        if (!s->used)
            return s;
        if (!s->busy && (!oldest || s->last_use < oldest->last_use))
            oldest = s;
    }
    save(w, oldest, 0);
    clear(oldest);
    return oldest;
}

void slots_free(struct pp_worker *w)
{
    for (int i = 0; i < WORKER_SLOTS; i++)
        clear(&w->slots[i]);
}

bool slots_free_idle(struct pp_worker *w)
{
    bool any = false;
    for (int i = 0; i < WORKER_SLOTS; i++) {
        struct slot *s = &w->slots[i];
        if (!s->used || s->busy)
            continue;
        save(w, s, 0);
        clear(s);
        any = true;
    }
    return any;
}

/* --- snapshots -------------------------------------------------------------------------------------------- */

static bool snapshot_path(const struct pp_worker *w, const struct slot *s, char path[PP_SNAPSHOT_PATH])
{
    path[0] = 0;
    if (w->cache_dir[0] && !s->temporary)
        pp_snapshot_path(w->cache_dir, s->key, path, PP_SNAPSHOT_PATH);
    return path[0] != 0;
}

static void refused(struct pp_worker *w, const char *why)
{
    worker_notice(w, "the saved state is not used: %s", why);
}

/* Fills the empty sequence of a slot from its snapshot, if there is one that fits. */
static void restore(struct pp_worker *w, struct slot *s)
{
    char path[PP_SNAPSHOT_PATH];
    struct pp_map map;
    struct pp_sha256 identity;
    struct pp_error err;
    s->looked = true;
    if (!snapshot_path(w, s, path))
        return;
    enum pp_code code = pp_map_open(path, &map, &err);
    if (code == PP_ERR_NOT_FOUND)
        return;
    if (code != PP_OK) {
        refused(w, err.text);
        return;
    }
    bool quick = pp_model_info(w->target->model)->bytes < IDENTITY_QUICK_BYTES;
    if (!worker_identity(w, quick ? IDENTITY_WAIT_MS : IDENTITY_CACHED_WAIT_MS, &identity))
        refused(w, "the model's file is still being checked");
    else if (pp_snapshot_load(s->seq, &identity, map.data, map.size, &err) != PP_OK)
        refused(w, err.text);
    else
        pp_snapshot_touch(path);
    pp_map_close(&map);
}

static uint64_t size_estimate(struct pp_worker *w, const struct slot *s)
{
    const struct pp_stats *st = pp_engine_stats(w->engine);
    int64_t tokens = pp_seq_len(s->seq);
    /* Pages hold 64 tokens or more: this is an upper bound as long as they do. */
    return ((uint64_t)tokens / 64 + 1) * st->page_bytes;
}

/* False if it has to wait for the identity of the model. */
static bool save(struct pp_worker *w, struct slot *s, int wait_ms)
{
    char path[PP_SNAPSHOT_PATH];
    struct pp_sha256 identity;
    struct pp_buf data = {0};
    struct pp_error err;
    if (!s->used || !s->dirty || !s->seq || pp_seq_len(s->seq) == 0 || !snapshot_path(w, s, path))
        return true;
    if (!worker_identity(w, wait_ms, &identity))
        return false;
    s->dirty = false;
    if (size_estimate(w, s) > PP_SNAPSHOT_QUOTA) {
        worker_notice(w,
                      "the state of this conversation is too large to be kept on the disk; it will be computed again");
        return true;
    }
    if (pp_snapshot_save(s->seq, &identity, &data, &err) != PP_OK || data.bad) {
        worker_notice(w, "the state of the conversation is not kept: %s", data.bad ? "out of memory" : err.text);
        pp_buf_free(&data);
        return true;
    }
    if (pp_snapshot_make_room(w->io, w->cache_dir, path, data.len, PP_SNAPSHOT_QUOTA))
        pp_io_write_file(w->io, path, &data);
    pp_buf_free(&data);
    return true;
}

bool slots_waiting(const struct pp_worker *w)
{
    for (int i = 0; i < WORKER_SLOTS; i++)
        if (w->slots[i].used && !w->slots[i].busy && w->slots[i].left && w->slots[i].dirty)
            return true;
    return false;
}

void slots_save(struct pp_worker *w, bool all, int wait_ms)
{
    for (int i = 0; i < WORKER_SLOTS; i++)
        if (w->slots[i].used && !w->slots[i].busy && (all || w->slots[i].left))
            save(w, &w->slots[i], wait_ms);
}

void slot_leave(struct pp_worker *w, const char *key)
{
    for (int i = 0; i < WORKER_SLOTS; i++) {
        struct slot *s = &w->slots[i];
        if (!s->used || s->temporary || strcmp(s->key, key) != 0)
            continue;
        s->left = true;
        if (!s->busy)
            save(w, s, 0);
    }
}

void slot_forget(struct pp_worker *w, const char *key)
{
    char path[PP_SNAPSHOT_PATH];
    for (int i = 0; i < WORKER_SLOTS; i++) {
        struct slot *s = &w->slots[i];
        if (!s->used || s->temporary || strcmp(s->key, key) != 0)
            continue;
        s->temporary = true; /* an answer that is just being stopped: nothing is kept of it */
        if (!s->busy)
            clear(s);
    }
    if (!w->cache_dir[0])
        return;
    pp_snapshot_path(w->cache_dir, key, path, sizeof path);
    if (path[0])
        pp_io_write_file(w->io, path, NULL);
}

/* --- opening ---------------------------------------------------------------------------------------------- */

static int64_t common_prefix(const struct pp_seq *seq, const int32_t *tokens, size_t n)
{
    const int32_t *have = pp_seq_tokens(seq);
    int64_t len = pp_seq_len(seq), i = 0;
    while (i < len && (size_t)i < n && have[i] == tokens[i])
        i++;
    return i;
}

/* Another conversation that begins as this one does (a fork, or the same system prompt): its pages are shared. */
static enum pp_code share(struct pp_worker *w, struct slot *s, const int32_t *tokens, size_t n, struct pp_error *err)
{
    const struct slot *best = NULL;
    int64_t most = SHARE_TOKENS - 1;
    for (int i = 0; i < WORKER_SLOTS; i++) {
        const struct slot *o = &w->slots[i];
        int64_t k = o->used && o != s && o->seq ? common_prefix(o->seq, tokens, n) : 0;
        if (k > most) {
            most = k;
            best = o;
        }
    }
    if (!best)
        return PP_OK;
    pp_seq_free(s->seq);
    s->seq = NULL;
    return pp_seq_fork(best->seq, most, &s->seq, err);
}

static enum pp_code fill(struct pp_worker *w, struct slot *s, const struct pp_adapter_use *use, int n_use,
                         const int32_t *tokens, size_t n, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    bool fresh = !s->seq;
    if (fresh)
        code = pp_seq_new(w->engine, &s->seq, err);
    if (code == PP_OK)
        code = pp_seq_set_adapters(s->seq, use, n_use, err);
    if (code == PP_OK && fresh && !s->looked)
        restore(w, s);
    if (code == PP_OK && fresh && pp_seq_len(s->seq) == 0) {
        code = share(w, s, tokens, n, err);
        if (code == PP_OK) /* pages made under other adapters are let go here */
            code = pp_seq_set_adapters(s->seq, use, n_use, err);
    }
    return code;
}

/* Of the conversation's slots the one that has most of the tokens. */
static struct slot *find(struct pp_worker *w, const char *key, bool temporary, const int32_t *tokens, size_t n)
{
    struct slot *best = NULL;
    int64_t most = -1;
    for (int i = 0; i < WORKER_SLOTS; i++) {
        struct slot *s = &w->slots[i];
        if (!s->used || s->busy || s->temporary != temporary || strcmp(s->key, key) != 0)
            continue;
        int64_t have = s->seq ? common_prefix(s->seq, tokens, n) : 0;
        if (have > most) {
            most = have;
            best = s;
        }
    }
    return best;
}

enum pp_code slot_open(struct pp_worker *w, const char *key, bool temporary, const struct pp_adapter_use *use,
                       int n_use, const int32_t *tokens, size_t n, struct slot **out, struct pp_error *err)
{
    struct slot *s = find(w, key ? key : "", temporary, tokens, n);
    *out = NULL;
    if (!s) {
        s = take(w);
        s->used = true;
        s->temporary = temporary;
        snprintf(s->key, sizeof s->key, "%s", key ? key : "");
    }
    s->last_use = ++w->clock;
    s->left = false;
    enum pp_code code = fill(w, s, use, n_use, tokens, n, err);
    if (code != PP_OK) {
        clear(s);
        return code;
    }
    s->busy = true;
    *out = s;
    return PP_OK;
}
