/* worker_saves.c - snapshots: KV pages saved after each turn, and restored when a conversation is opened.
 *
 * The worker only holds references to the pages; the io thread hashes and writes them, and reports by a
 * REQUEST_SAVED, upon which the worker releases the pages. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "src/thread.h"
#include "src/worker_int.h"

enum {
    IDENTITY_WAIT_MS = 5000,      /* for a model below IDENTITY_QUICK_BYTES, whose hash takes about a second */
    IDENTITY_CACHED_WAIT_MS = 200, /* for a larger one: enough if its identity is in the cache file */
};

static const uint64_t IDENTITY_QUICK_BYTES = UINT64_C(1) << 30;

/* A snapshot that is being written. */
struct saving {
    struct pp_io_task task;          /* first */
    struct saving *next;             /* worker thread */
    struct pp_worker *w;
    char key[33];
    struct pp_snapshot_writer writer;
    struct pp_error err;             /* the result */
    bool ended;                      /* protected by the worker's lock */
};

/* --- io thread -------------------------------------------------------------------------------------------- */

static bool write_slice(struct pp_io_task *task)
{
    struct saving *s = (struct saving *)task;
    struct pp_worker *w = s->w;
    if (!pp_snapshot_slice(&s->writer, &s->err))
        return false;
    struct request *wake = pp_calloc(1, sizeof *wake); /* if it is lost, the pages are released a little later */
    if (wake)
        wake->kind = REQUEST_SAVED;
    pthread_mutex_lock(&w->lock);
    s->ended = true; /* the worker may free s as soon as it has the lock, and w may be freed once it is released */
    if (wake && !pp_queue_try_push(w->requests, wake))
        pp_free(wake);
    pthread_cond_broadcast(&w->saved);
    pthread_mutex_unlock(&w->lock);
    return true;
}

/* --- saving ----------------------------------------------------------------------------------------------- */

static bool base_of(const struct pp_worker *w, const struct slot *s, char base[static PP_SNAPSHOT_PATH])
{
    base[0] = 0;
    if (w->cache_dir[0] && !s->temporary && !s->no_snapshots && w->snapshot_quota != PP_SNAPSHOTS_OFF)
        pp_snapshot_base(w->cache_dir, s->key, base, PP_SNAPSHOT_PATH);
    return base[0] != 0;
}

/* Reports an error of saving when it first occurs, and again only after a save has succeeded in between. */
static void report_save_error(struct pp_worker *w, const struct pp_error *err)
{
    if (err->code == PP_ERR_CANCELLED || err->code == w->save_error)
        return;
    w->save_error = err->code;
    if (err->code)
        worker_notice(w, "KV caches of conversations are not saved: %s", err->text);
}

static void report_snapshots_off(struct pp_worker *w, const struct slot *s)
{
    if (w->snapshot_quota != PP_SNAPSHOTS_OFF || w->snapshots_off_notified || !w->cache_dir[0] || s->temporary)
        return;
    w->snapshots_off_notified = true;
    worker_notice(w, "KV caches of conversations are not saved (--snapshot-quota off): the prompt is computed again");
}

bool slot_save(struct pp_worker *w, struct slot *s, int wait_ms)
{
    char base[PP_SNAPSHOT_PATH];
    struct pp_sha256 identity;
    struct pp_error err = {0};
    if (!s->used || !s->dirty)
        return true;
    /* Nothing was computed before it was stopped, or the pages are not exact (worker_slide.c): the snapshot on the
     * disk stays as it is. */
    if (!s->seq || pp_seq_len(s->seq) == 0 || pp_seq_exact(s->seq) < pp_seq_len(s->seq)) {
        s->dirty = false;
        return true;
    }
    report_snapshots_off(w, s);
    if (!base_of(w, s, base)) {
        s->dirty = false;
        return true;
    }
    const enum pp_code code = worker_identity(w, wait_ms, &identity, &err);
    if (code == PP_ERR_BUSY)
        return false;
    s->dirty = false;
    if (code) {
        report_save_error(w, &err);
        return true;
    }
    struct saving *job = pp_calloc(1, sizeof *job);
    if (!job || (err.code = pp_save_new(s->seq, &identity, base, s->key, &job->writer.save, &err))) {
        if (!job)
            pp_fail_nomem(&err, "a snapshot");
        pp_free(job);
        report_save_error(w, &err);
        return true;
    }
    job->w = w;
    job->task.slice = write_slice;
    job->writer.quota = w->snapshot_quota ? w->snapshot_quota : PP_SNAPSHOT_QUOTA;
    memcpy(job->writer.base, base, sizeof job->writer.base);
    memcpy(job->key, s->key, sizeof job->key);
    job->next = w->save_jobs;
    w->save_jobs = job;
    pp_io_post_task(w->io, &job->task);
    return true;
}

void saves_collect(struct pp_worker *w)
{
    for (struct saving **at = &w->save_jobs; *at;) {
        struct saving *s = *at;
        pthread_mutex_lock(&w->lock);
        bool ended = s->ended;
        pthread_mutex_unlock(&w->lock);
        if (!ended) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        report_save_error(w, &s->err);
        pp_save_free(s->writer.save);
        pp_free(s);
    }
}

static bool all_ended(const struct pp_worker *w)
{
    for (const struct saving *s = w->save_jobs; s; s = s->next)
        if (!s->ended)
            return false;
    return true;
}

void saves_finish(struct pp_worker *w, int wait_ms)
{
    uint64_t until = pp_now_ns() + (uint64_t)wait_ms * (uint64_t)pp_worker_patience * 1000000u;
    bool in_time = true;
    pthread_mutex_lock(&w->lock);
    while (!all_ended(w)) {
        if (in_time && !pp_cond_wait_until(&w->saved, &w->lock, until)) {
            in_time = false;
            for (struct saving *s = w->save_jobs; s; s = s->next)
                pp_cancel_request(&s->writer.cancel); /* takes effect within a page */
        } else if (!in_time) {
            pthread_cond_wait(&w->saved, &w->lock);
        }
    }
    pthread_mutex_unlock(&w->lock);
    saves_collect(w);
}

bool saves_pending(struct pp_worker *w, const char *key)
{
    saves_collect(w);
    for (const struct saving *s = w->save_jobs; s; s = s->next)
        if (!key || strcmp(s->key, key) == 0)
            return true;
    return false;
}

void saves_forget(struct pp_worker *w, const char *key)
{
    char base[PP_SNAPSHOT_PATH];
    for (struct saving *s = w->save_jobs; s; s = s->next)
        if (strcmp(s->key, key) == 0)
            pp_cancel_request(&s->writer.cancel);
    if (!w->cache_dir[0])
        return;
    pp_snapshot_base(w->cache_dir, key, base, sizeof base);
    if (base[0])
        pp_snapshot_forget(w->io, base);
}

/* --- restoring -------------------------------------------------------------------------------------------- */

static void report_unusable(struct pp_worker *w, struct slot *s, const char *why)
{
    if (!s->notified)
        worker_notice(w, "%s", why);
    s->notified = true;
}

bool saves_have(struct pp_worker *w, const char *key)
{
    char base[PP_SNAPSHOT_PATH] = "", manifest[PP_SNAPSHOT_PATH + 16];
    if (w->cache_dir[0] && w->snapshot_quota != PP_SNAPSHOTS_OFF)
        pp_snapshot_base(w->cache_dir, key, base, sizeof base);
    snprintf(manifest, sizeof manifest, "%s.manifest", base);
    return base[0] && access(manifest, F_OK) == 0;
}

/* How long to wait for the model's identity, in ms. Prefetching (`ahead`) never waits long. */
static int identity_wait_ms(const struct pp_worker *w, const struct slot_spec *spec)
{
    bool quick = pp_model_info(w->target->model)->bytes < IDENTITY_QUICK_BYTES;
    return quick && !spec->prefetch ? IDENTITY_WAIT_MS : IDENTITY_CACHED_WAIT_MS;
}

/* Whether the conversation has another slot, so that this one is for an answer written in parallel. Its adapters may
 * differ from the snapshot's then, which is no reason for a notice. */
static bool has_parallel_slot(const struct pp_worker *w, const struct slot *s)
{
    for (int i = 0; i < WORKER_SLOTS; i++) {
        const struct slot *o = &w->slots[i];
        if (o != s && o->used && o->seq && strcmp(o->key, s->key) == 0)
            return true;
    }
    return false;
}

void slot_restore(struct pp_worker *w, struct slot *s, const struct slot_spec *spec)
{
    char base[PP_SNAPSHOT_PATH];
    struct pp_sha256 identity;
    struct pp_error err;
    if (!base_of(w, s, base) || saves_pending(w, s->key)) /* a save under way: its pages will be found in memory */
        return;
    if (!saves_have(w, s->key))
        return;
    enum pp_code code = worker_identity(w, identity_wait_ms(w, spec), &identity, &err);
    if (code) {
        if (!spec->prefetch)
            report_unusable(w, s,
                            code == PP_ERR_BUSY ? "the saved KV cache is not used, as the model's checksum is still "
                                                  "being computed; computing the prompt again"
                                                : err.text);
        return;
    }
    prefault_stop(w); /* reading uses all threads */
    code = pp_snapshot_restore(s->seq, &identity, base, s->key, spec->tokens, (int64_t)spec->n, NULL, &err);
    prefault_start(w); /* for the next conversation */
    if (code == PP_OK)
        pp_snapshot_touch(base);
    else if (code != PP_ERR_NOT_FOUND && (code != PP_ERR_MISMATCH || !has_parallel_slot(w, s)))
        report_unusable(w, s, err.text);
}
