/* controller_import.c - /import and F2: adds the conversations of a file to the store.
 *
 * A file may hold thousands of them. The io thread imports them in slices of a tenth of a second, each a transaction
 * of its own, with other jobs between the slices. The user can stop the import between two slices, or leave; what
 * was committed stays, and importing the same file again adds the rest: see import_store.h. */
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "src/controller_int.h"
#include "src/figures.h"
#include "src/import.h"
#include "src/import_store.h"

#define SECOND_NS UINT64_C(1000000000)

enum { PATH = 4096, MAX_IMPORTED = 1 << 28, SLICE_NS = 100 * 1000 * 1000 };

struct outcome {
    size_t added, here, busy; /* conversations; `here` includes those that were extended */
    size_t extended_by;       /* messages added to conversations that existed */
    int64_t shown;            /* the first conversation that was added, or else the first one */
    char lost[300];           /* adapters, templates or models of the added ones that do not exist here */
};

struct ctl_import {
    struct pp_job job;          /* first */
    struct ctl_import *next;    /* queued after this one */
    const struct pp_paths *paths;
    char lock_dir[600];
    char *typed;                /* the path as typed */
    struct pp_cancel stop;
    /* accessed by the io thread during a slice, by the UI thread otherwise */
    enum { IMPORT_BEGIN, IMPORT_COPY, IMPORT_PUT, IMPORT_DONE } step;
    struct pp_store_copy *copy; /* copies a database, if it is one */
    struct pp_store *from;      /* that copy, to which `sessions` refer */
    struct pp_session *sessions;
    struct pp_import text;      /* the contents of any other file */
    size_t at, n;               /* index of the next conversation, and how many there are */
    struct pp_damage damage;
    struct pp_importer *to;
    struct outcome now, committed; /* including what is not committed yet, and up to the last commit */
    size_t committed_at;
    /* UI thread */
    uint64_t began_ns, notified_ns, notified_serial, epoch;
    size_t n_shown;             /* messages on the screen when it began */
};

static void free_import(struct pp_job *job)
{
    struct ctl_import *m = (struct ctl_import *)job;
    pp_store_copy_free(m->copy);
    if (m->sessions)
        pp_session_list_free(m->sessions, m->n);
    pp_store_close(m->from);
    pp_import_free(&m->text);
    pp_importer_free(m->to);
    pp_free(m->typed);
    pp_free(m);
}

/* --- the io thread ---------------------------------------------------------------------------------------- */

static enum pp_code begin(struct ctl_import *m, struct pp_store *st, struct pp_error *err)
{
    char path[PATH], *text = NULL;
    size_t n;
    if (!pp_expand_home(m->typed, path, sizeof path))
        return pp_fail(err, PP_ERR_IO, "the path is too long");
    enum pp_code code = pp_importer_new(st, m->lock_dir, false, &m->to, err);
    if (code)
        return code;
    if (pp_store_is_database(path)) {
        m->step = IMPORT_COPY;
        return pp_store_copy_begin(path, &m->copy, err);
    }
    m->step = IMPORT_PUT;
    if ((code = pp_read_file(path, MAX_IMPORTED, &text, &n, err)))
        return code;
    if ((code = pp_import_read(text, n, &m->text, err)))
        pp_fail_prefix(err, "%s", path);
    pp_free(text);
    m->n = m->text.n;
    return code;
}

static enum pp_code copy(struct ctl_import *m, struct pp_error *err)
{
    bool done;
    enum pp_code code = pp_store_copy_more(m->copy, &done, err);
    if (code || !done)
        return code;
    code = pp_store_copy_end(m->copy, &m->from, err);
    m->copy = NULL;
    m->step = IMPORT_PUT;
    if (!code)
        code = pp_conversation_list(m->from, &m->sessions, &m->n, &m->damage, err);
    return code || m->n ? code : pp_fail(err, PP_ERR_FORMAT, "%s contains no conversations", m->typed);
}

static enum pp_code put(struct ctl_import *m, struct pp_conversation *c, struct pp_error *err)
{
    struct outcome *r = &m->now;
    struct pp_import_result result;
    char lost[sizeof r->lost];
    const bool settled = pp_conversation_settle(c, m->paths, lost, sizeof lost);
    const enum pp_code code = pp_importer_put(m->to, c, &result, err);
    if (code)
        return code;
    const bool added = result.outcome == PP_IMPORT_ADDED;
    if (!r->shown || (added && !r->added))
        r->shown = c->session.id;
    if (added && settled && !*r->lost)
        memcpy(r->lost, lost, sizeof lost);
    r->added += added;
    r->busy += result.outcome == PP_IMPORT_BUSY;
    r->here += result.outcome == PP_IMPORT_HERE || result.outcome == PP_IMPORT_EXTENDED;
    r->extended_by += result.outcome == PP_IMPORT_EXTENDED ? result.n_messages : 0;
    return PP_OK;
}

static void note_committed(struct ctl_import *m)
{
    if (!m->to || !pp_importer_flushed(m->to))
        return;
    m->committed = m->now;
    m->committed_at = m->at;
}

static enum pp_code put_next(struct ctl_import *m, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    if (m->from && m->at < m->n) {
        struct pp_conversation c;
        struct pp_lost lost;
        code = pp_conversation_salvage(m->from, m->sessions[m->at].id, &c, &lost, err);
        if (code == PP_ERR_FORMAT) { /* a damaged conversation does not stop the others */
            pp_damage_add_all(&m->damage, m->at, m->sessions[m->at].n_messages);
            code = PP_OK;
        } else if (!code) {
            pp_damage_add(&m->damage, m->at, &lost);
            code = put(m, &c, err);
        }
        pp_conversation_clear(&c);
    } else if (m->at < m->n) {
        code = put(m, &m->text.list[m->at], err);
    }
    if (!code && ++m->at >= m->n)
        m->step = IMPORT_DONE;
    if (!code)
        note_committed(m);
    if (!code && m->step == IMPORT_DONE && pp_damage_any(&m->damage))
        code = pp_damage_report(&m->damage, m->n, &m->sessions[m->damage.first], err);
    return code;
}

static enum pp_code one_step(struct ctl_import *m, struct pp_store *st, struct pp_error *err)
{
    switch (m->step) {
    case IMPORT_BEGIN: return begin(m, st, err);
    case IMPORT_COPY: return copy(m, err);
    case IMPORT_PUT: return put_next(m, err);
    case IMPORT_DONE: break;
    }
    return PP_OK;
}

static void run_slice(struct pp_job *job, struct pp_store *st)
{
    struct ctl_import *m = (struct ctl_import *)job;
    struct pp_error why;
    const uint64_t until = pp_now_ns() + SLICE_NS;
    do {
        if (!pp_cancelled(&m->stop))
            job->code = one_step(m, st, &job->err);
    } while (!job->code && m->step != IMPORT_DONE && !pp_cancelled(&m->stop) && pp_now_ns() < until);
    if (m->to && pp_importer_flush(m->to, &why) != PP_OK) {
        if (!job->code)
            job->err = why;
        job->code = job->code ? job->code : why.code;
    } else {
        note_committed(m);
    }
}

/* --- progress and result ---------------------------------------------------------------------------------- */

static void add_outcome(struct pp_buf *b, const struct ctl_import *m, const char *where)
{
    const struct outcome *r = &m->committed;
    const size_t n = r->added + r->here + r->busy;
    if (n == 1)
        pp_buf_fmt(b, "%s; %s", r->added ? "conversation imported" : "this conversation is already here",
                   where);
    else if (r->added)
        pp_buf_fmt(b, "%zu conversations imported; %s", r->added, where);
    else
        pp_buf_fmt(b, "all %zu conversations are already here; %s", n, where);
    if (n > 1 && r->added && r->here)
        pp_buf_fmt(b, "; %zu already here", r->here);
    if (r->extended_by)
        pp_buf_fmt(b, "; messages added to existing conversations: %zu", r->extended_by);
    if (r->busy)
        pp_buf_fmt(b, "; open, so not updated (import again when closed): %zu", r->busy);
    if (m->text.left_out)
        pp_buf_fmt(b, "; messages skipped (tool messages, or without text): %zu", m->text.left_out);
    if (m->text.no_text)
        pp_buf_fmt(b, "; pictures and files skipped: %zu", m->text.no_text);
    if (m->text.no_utf8)
        pp_buf_fmt(b, "; invalid UTF-8 bytes replaced by U+FFFD: %zu", m->text.no_utf8);
    if (*r->lost)
        pp_buf_fmt(b, "; not found on this machine: %s", r->lost);
}

/* Says how far an import came that did not complete. */
static void add_progress(struct pp_buf *b, const struct ctl_import *m)
{
    const struct outcome *r = &m->committed;
    if (!m->committed_at) {
        pp_buf_str(b, "nothing was imported");
        return;
    }
    pp_buf_fmt(b, "%zu of %zu conversations imported", r->added, m->n);
    if (r->here)
        pp_buf_fmt(b, ", %zu already here", r->here);
    pp_buf_str(b, "; import the file again to add the rest");
}

static void say(struct pp_controller *c, bool is_error, struct pp_buf *b)
{
    ctl_notice(c, is_error, "%s", b->bad ? "out of memory" : pp_buf_cstr(b));
    pp_buf_free(b);
}

/* From time to time, but not right after another notice. */
static void notify_progress(struct pp_controller *c, struct ctl_import *m)
{
    const uint64_t now = pp_now_ns(), every = (c->o->plain ? 10 : 1) * SECOND_NS;
    const bool others = m->notified_serial != c->status.notice_serial;
    if (now - m->notified_ns < (others ? every + 4 * SECOND_NS : every))
        return;
    const char *key = c->o->plain ? "Ctrl-C" : "Esc";
    if (m->step == IMPORT_PUT && m->n)
        ctl_notice(c, false, "importing: %s of %s conversations; %s stops it", pp_count((int64_t)m->committed_at).text,
                   pp_count((int64_t)m->n).text, key);
    else
        ctl_notice(c, false, "importing: reading the file; %s stops it", key);
    m->notified_ns = now;
    m->notified_serial = c->status.notice_serial;
}

/* --- starting and ending ---------------------------------------------------------------------------------- */

static void start(struct pp_controller *c, struct ctl_import *m)
{
    m->began_ns = m->notified_ns = pp_now_ns();
    m->notified_serial = c->status.notice_serial;
    m->epoch = c->epoch;
    m->n_shown = c->branch.n;
    pp_io_post(c->io, &m->job);
}

/* Whether the user has waited for the import, so that the first conversation may be opened. */
static bool has_waited(const struct pp_controller *c, const struct ctl_import *m)
{
    return c->epoch == m->epoch && c->branch.n == m->n_shown && !ctl_answering(c) &&
           pp_now_ns() - m->began_ns < 5 * SECOND_NS;
}

static void notify_end(struct pp_controller *c, struct ctl_import *m)
{
    struct pp_buf b = {0};
    if (m->job.code) {
        pp_buf_str(&b, m->job.err.text);
        if (m->committed_at) {
            pp_buf_str(&b, "; ");
            add_progress(&b, m);
        }
        say(c, true, &b);
    } else if (m->step != IMPORT_DONE) {
        pp_buf_fmt(&b, "the import of %s was stopped: ", m->typed);
        add_progress(&b, m);
        pp_free(c->import_stopped);
        c->import_stopped = b.bad ? NULL : pp_strdup(pp_buf_cstr(&b));
        say(c, false, &b);
    } else {
        const bool waited = has_waited(c, m), one = m->committed.added + m->committed.here + m->committed.busy == 1;
        add_outcome(&b, m, !waited ? c->o->plain ? "/sessions lists them" : "F2 lists them"
                           : one   ? "this is it"
                                   : "this is the first");
        say(c, false, &b);
        if (waited)
            pp_controller_open(c, m->committed.shown);
    }
}

static void on_slice(struct pp_job *job, void *controller)
{
    struct pp_controller *c = controller;
    struct ctl_import *m = (struct ctl_import *)job;
    if (!job->code && m->step != IMPORT_DONE && !pp_cancelled(&m->stop)) {
        notify_progress(c, m);
        pp_io_post(c->io, job);
        return;
    }
    c->import = m->next;
    notify_end(c, m);
    free_import(job);
    if (c->import)
        start(c, c->import);
}

void pp_controller_import(struct pp_controller *c, const char *path)
{
    struct ctl_import *m = pp_calloc(1, sizeof *m), **slot = &c->import;
    char *typed = pp_strdup(path);
    if (!m || !typed) {
        pp_free(m);
        pp_free(typed);
        ctl_notice(c, true, "out of memory");
        return;
    }
    m->job = (struct pp_job){.run = run_slice, .done = on_slice, .release = free_import, .what = "an import"};
    m->paths = c->paths;
    m->typed = typed;
    if (!c->temporary)
        snprintf(m->lock_dir, sizeof m->lock_dir, "%s/locks", c->paths->data);
    while (*slot)
        slot = &(*slot)->next;
    *slot = m;
    if (c->import == m)
        start(c, m);
}

bool pp_controller_importing(const struct pp_controller *c)
{
    return c->import;
}

bool ctl_import_stop(struct pp_controller *c)
{
    if (!c->import || pp_cancelled(&c->import->stop))
        return false;
    pp_cancel_request(&c->import->stop);
    while (c->import->next) { /* these have not begun */
        struct ctl_import *later = c->import->next;
        c->import->next = later->next;
        free_import(&later->job);
    }
    return true;
}
