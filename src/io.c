/* io.c - the io thread and its queues.
 *
 * Jobs, pieces of answers and ends of answers are processed in the order in which they were posted. Tasks, which may
 * take long, have a queue of their own, and run in slices while the other queue is empty. Posting never waits for
 * the disk, and the io thread never waits for the screen: events that do not fit into the UI's queue stay in
 * `done_jobs` until they do. */
#include "src/io.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "src/event.h"
#include "src/thread.h"

#define MS 1000000u
/* Less than the second that is promised: the commit itself takes time, too. */
static const uint64_t commit_after_ns = 700 * (uint64_t)MS;
static const uint64_t retry_after_ns = 1000 * (uint64_t)MS;
static const uint64_t deliver_after_ns = 50 * (uint64_t)MS;

enum item_kind { ITEM_JOB, ITEM_TEXT, ITEM_END, ITEM_MARK, ITEM_STORE, ITEM_TASK };

struct text_item {
    struct pp_io_item item;
    int64_t message;
    enum pp_part part;
    struct pp_buf text;
};

struct end_item {
    struct pp_io_item item;
    int64_t message;
    enum pp_message_state state;
    char *stats; /* or NULL */
    int64_t n_tokens;
};

/* The context of the answers to a question, first as an item, then in the list of those not saved yet. */
struct mark {
    struct pp_io_item item;
    struct mark *next;
    struct pp_store *store; /* the database of the message */
    int64_t message, from;
    char *note;
};

struct store_item {
    struct pp_io_item item;
    struct pp_store *store;  /* the new database for conversations; NULL: back to the one on the disk */
    bool of_disk;            /* it replaces the one on the disk */
};

struct line {
    struct pp_io_item *first, *last;
};

/* An answer that is not, or not completely, in the database. */
struct answer {
    struct answer *next;
    int64_t message;
    struct pp_store *store;        /* the database of the message */
    struct pp_buf text, reasoning; /* complete, including what the message contained before (once `begun`) */
    bool begun;         /* the earlier contents of the message have been read */
    bool text_was_reasoning; /* the earlier text belongs to the reasoning */
    bool dirty, ended;
    enum pp_message_state state;
    char *stats;
    int64_t n_tokens;
};

struct pp_io {
    pthread_t thread;
    struct pp_queue *events;
    struct pp_store *store;

    pthread_mutex_t lock;
    pthread_cond_t wake;
    /* -- protected by lock */
    struct line posted;
    struct line tasks;
    bool stopping;
    const char *doing; /* what the thread is doing, for messages */
    bool lost; /* an item could not be queued: out of memory */

    /* -- io thread only */
    struct pp_store *memory; /* the database in memory that is used instead of `store`, or NULL */
    struct line done_jobs;
    struct answer *answers;
    struct mark *marks;      /* at most one per message */
    struct pp_error complaint; /* reported if its code is not PP_OK */
    struct pp_error unsaved, unsaved_reported; /* why answers are not saved yet, PP_OK: all are; what the UI knows */
    uint64_t commit_at, deliver_at;              /* CLOCK_MONOTONIC, 0: nothing to do */
};

static void append(struct line *l, struct pp_io_item *item)
{
    item->next = NULL;
    if (l->last)
        l->last->next = item;
    else
        l->first = item;
    l->last = item;
}

static struct pp_io_item *take_first(struct line *l)
{
    struct pp_io_item *item = l->first;
    if (item) {
        l->first = item->next;
        if (!l->first)
            l->last = NULL;
    }
    return item;
}

static void put_back(struct line *l, struct pp_io_item *item)
{
    item->next = l->first;
    l->first = item;
    if (!l->last)
        l->last = item;
}

static struct pp_job *job_of(struct pp_io_item *item)
{
    return (struct pp_job *)(void *)((char *)item - offsetof(struct pp_job, item));
}

static struct pp_io_task *task_of(struct pp_io_item *item)
{
    return (struct pp_io_task *)(void *)((char *)item - offsetof(struct pp_io_task, item));
}

/* --- posting (any thread) ---------------------------------------------------------------------------------------- */

static void post(struct pp_io *io, struct pp_io_item *item, enum item_kind kind)
{
    item->kind = (int)kind;
    pthread_mutex_lock(&io->lock);
    append(kind == ITEM_TASK ? &io->tasks : &io->posted, item);
    pthread_cond_signal(&io->wake);
    pthread_mutex_unlock(&io->lock);
}

static void note_loss(struct pp_io *io)
{
    pthread_mutex_lock(&io->lock);
    io->lost = true;
    pthread_cond_signal(&io->wake);
    pthread_mutex_unlock(&io->lock);
}

void pp_io_post(struct pp_io *io, struct pp_job *job)
{
    post(io, &job->item, ITEM_JOB);
}

void pp_io_post_task(struct pp_io *io, struct pp_io_task *task)
{
    post(io, &task->item, ITEM_TASK);
}

/* Appends to the last item of the queue if that belongs to the same answer, so that the queue stays short while the
 * database is busy. */
static bool add_to_last(struct pp_io *io, int64_t message, enum pp_part part, const char *text, size_t n)
{
    bool added = false;
    pthread_mutex_lock(&io->lock);
    struct pp_io_item *last = io->posted.last;
    if (last && last->kind == ITEM_TEXT) {
        struct text_item *t = (struct text_item *)(void *)last;
        if (t->message == message && t->part == part) {
            pp_buf_add(&t->text, text, n);
            added = true;
        }
    }
    pthread_mutex_unlock(&io->lock);
    return added;
}

void pp_io_answer_add(struct pp_io *io, int64_t message, enum pp_part part, const char *text, size_t n)
{
    if ((n == 0 && part != PP_PART_TEXT_WAS_REASONING) || add_to_last(io, message, part, text, n))
        return;
    struct text_item *t = pp_calloc(1, sizeof *t);
    if (!t) {
        note_loss(io);
        return;
    }
    t->message = message;
    t->part = part;
    pp_buf_add(&t->text, text, n);
    post(io, &t->item, ITEM_TEXT);
}

void pp_io_answer_end(struct pp_io *io, int64_t message, enum pp_message_state state, const char *stats,
                      int64_t n_tokens)
{
    struct end_item *e = pp_calloc(1, sizeof *e);
    if (!e) {
        note_loss(io);
        return;
    }
    e->message = message;
    e->state = state;
    e->n_tokens = n_tokens;
    e->stats = stats ? pp_strdup(stats) : NULL;
    if (stats && !e->stats)
        note_loss(io);
    post(io, &e->item, ITEM_END);
}

bool pp_io_mark(struct pp_io *io, int64_t message, int64_t from, const char *note)
{
    struct mark *m = pp_calloc(1, sizeof *m);
    if (!m || !(m->note = pp_strdup(note))) {
        pp_free(m);
        return false;
    }
    m->message = message;
    m->from = from;
    post(io, &m->item, ITEM_MARK);
    return true;
}

/* path NULL: no database in memory any more. */
static enum pp_code post_store(struct pp_io *io, const char *path, bool of_disk, struct pp_error *err)
{
    struct store_item *s = pp_calloc(1, sizeof *s);
    if (!s)
        return pp_fail_nomem(err, "the conversations");
    s->of_disk = of_disk;
    const enum pp_code code = path ? pp_store_open(path, &s->store, err) : PP_OK;
    if (code)
        pp_free(s);
    else
        post(io, &s->item, ITEM_STORE);
    return code;
}

enum pp_code pp_io_temporary(struct pp_io *io, bool on, struct pp_error *err)
{
    return post_store(io, on ? ":memory:" : NULL, false, err);
}

enum pp_code pp_io_make_disk(struct pp_io *io, const char *db_path, struct pp_error *err)
{
    return post_store(io, db_path, true, err);
}

/* --- events for the UI thread ------------------------------------------------------------------------------------ */

static bool deliver(struct pp_io *io, enum pp_event_type type, struct pp_job *job, const struct pp_error *err)
{
    struct pp_event *e = pp_event_new(type);
    if (!e)
        return false;
    e->job = job;
    if (err)
        e->err = *err;
    if (pp_queue_try_push(io->events, e))
        return true;
    e->job = NULL;
    pp_event_free(e);
    return false;
}

static bool is_news(const struct pp_io *io)
{
    return io->unsaved.code != io->unsaved_reported.code ||
           (io->unsaved.code && strcmp(io->unsaved.text, io->unsaved_reported.text) != 0);
}

static void deliver_all(struct pp_io *io)
{
    io->deliver_at = 0;
    for (struct pp_io_item *item; (item = take_first(&io->done_jobs));) {
        if (deliver(io, PP_EVENT_JOB, job_of(item), NULL))
            continue; /* the UI thread owns it now, and may have freed it */
        put_back(&io->done_jobs, item);
        break;
    }
    if (io->complaint.code && deliver(io, PP_EVENT_IO_ERROR, NULL, &io->complaint))
        io->complaint.code = PP_OK;
    if (is_news(io) && deliver(io, PP_EVENT_UNSAVED, NULL, &io->unsaved))
        io->unsaved_reported = io->unsaved;
    if (io->done_jobs.first || io->complaint.code || is_news(io))
        io->deliver_at = pp_now_ns() + deliver_after_ns;
}

/* --- answers ----------------------------------------------------------------------------------------------------- */

static struct pp_store *store_now(const struct pp_io *io)
{
    return io->memory ? io->memory : io->store;
}

static struct answer *find_answer(struct pp_io *io, int64_t message)
{
    struct answer *a = io->answers;
    while (a && (a->message != message || a->store != store_now(io)))
        a = a->next;
    if (a)
        return a;
    a = pp_calloc(1, sizeof *a);
    if (!a)
        return NULL;
    a->message = message;
    a->store = store_now(io);
    a->state = PP_MESSAGE_PARTIAL;
    a->next = io->answers;
    io->answers = a;
    return a;
}

static void free_answer(struct answer *a)
{
    pp_buf_free(&a->text);
    pp_buf_free(&a->reasoning);
    pp_free(a->stats);
    pp_free(a);
}

/* Prepends the message's earlier contents to what has arrived since. On failure nothing changes, and it is retried
 * later. */
static enum pp_code begin_answer(struct answer *a, struct pp_error *err)
{
    struct pp_message m;
    struct pp_buf text = {0}, reasoning = {0};
    enum pp_code code = pp_store_message_get(a->store, a->message, &m, err);
    if (code)
        return code;
    pp_buf_add(&reasoning, m.reasoning, m.reasoning_len);
    pp_buf_add(a->text_was_reasoning ? &reasoning : &text, m.content, m.content_len);
    pp_message_clear(&m);
    pp_buf_add(&text, a->text.data, a->text.len);
    pp_buf_add(&reasoning, a->reasoning.data, a->reasoning.len);
    if (text.bad || reasoning.bad) {
        pp_buf_free(&text);
        pp_buf_free(&reasoning);
        return pp_fail_nomem(err, "an answer");
    }
    text.bad = a->text.bad; /* an incomplete text stays marked */
    reasoning.bad = a->reasoning.bad;
    pp_buf_free(&a->text);
    pp_buf_free(&a->reasoning);
    a->text = text;
    a->reasoning = reasoning;
    a->begun = true;
    return PP_OK;
}

static enum pp_code write_answer(const struct answer *a, struct pp_error *err)
{
    const struct pp_answer_text text = {a->text.data, a->text.len, pp_buf_cstr(&a->reasoning), a->reasoning.len};
    return pp_store_message_write(a->store, a->message, &text, a->state, a->stats, a->n_tokens, err);
}

/* True if the answer needs no further attention: it has ended and is saved, or its message no longer exists. */
static bool save_answer(struct pp_io *io, struct answer *a)
{
    struct pp_error err = {0};
    enum pp_code code = a->begun ? PP_OK : begin_answer(a, &err);
    if (!code && (a->text.bad || a->reasoning.bad)) {
        /* an append has failed; what came before is intact */
        pp_fail_nomem(&io->complaint, "an answer; its end was not saved");
    }
    if (!code)
        code = write_answer(a, &err);
    if (code == PP_ERR_NOT_FOUND)
        return true; /* the conversation was deleted meanwhile */
    if (code) {
        io->unsaved = err;
        return false;
    }
    a->dirty = false;
    return a->ended;
}

static void free_mark(struct mark *m)
{
    pp_free(m->note);
    pp_free(m);
}

/* False: a mark could not be saved. */
static bool save_marks(struct pp_io *io)
{
    struct pp_error err = {0};
    for (struct mark **slot = &io->marks; *slot;) {
        struct mark *m = *slot;
        const enum pp_code code = pp_store_message_context(m->store, m->message, m->from, m->note, &err);
        if (code == PP_OK || code == PP_ERR_NOT_FOUND) {
            *slot = m->next;
            free_mark(m);
        } else {
            io->unsaved = err;
            slot = &m->next;
        }
    }
    return !io->marks;
}

/* Saves the marks, and all answers or only those that have ended. Schedules another attempt for what failed. */
static void save_answers(struct pp_io *io, bool ended_only)
{
    bool failed = !save_marks(io), waiting = failed;
    for (struct answer **slot = &io->answers; *slot;) {
        struct answer *a = *slot;
        if (a->dirty && (!ended_only || a->ended) && save_answer(io, a)) {
            *slot = a->next;
            free_answer(a);
            continue;
        }
        if (a->dirty) {
            failed = failed || !ended_only || a->ended;
            waiting = true;
        }
        slot = &a->next;
    }
    uint64_t now = pp_now_ns();
    if (!failed && (!ended_only || !waiting))
        io->unsaved.code = PP_OK;
    if (!waiting)
        io->commit_at = 0;
    else if (failed)
        io->commit_at = now + retry_after_ns;
    else if (!io->commit_at)
        io->commit_at = now + commit_after_ns;
}

/* What was taken for the answer's text was reasoning. A missing part of it stays marked, so that the user is told. */
static void move_to_reasoning(struct answer *a)
{
    pp_buf_add(&a->reasoning, a->text.data, a->text.len);
    a->reasoning.bad = a->reasoning.bad || a->text.bad;
    pp_buf_clear(&a->text);
    a->text_was_reasoning = a->text_was_reasoning || !a->begun;
}

static void take_text(struct pp_io *io, struct text_item *t)
{
    struct answer *a = find_answer(io, t->message);
    if (!a || t->text.bad)
        note_loss(io);
    if (a) {
        if (t->part == PP_PART_TEXT_WAS_REASONING)
            move_to_reasoning(a);
        else
            pp_buf_add(t->part == PP_PART_ANSWER ? &a->text : &a->reasoning, t->text.data, t->text.len);
        a->dirty = true;
        if (!io->commit_at)
            io->commit_at = pp_now_ns() + commit_after_ns;
    }
    pp_buf_free(&t->text);
    pp_free(t);
}

static void take_end(struct pp_io *io, struct end_item *e)
{
    struct answer *a = find_answer(io, e->message);
    if (a) {
        pp_free(a->stats);
        a->stats = e->stats;
        a->state = e->state;
        a->n_tokens = e->n_tokens;
        a->dirty = a->ended = true;
        save_answers(io, true);
    } else {
        note_loss(io);
        pp_free(e->stats);
    }
    pp_free(e);
}

/* Replaces an older mark of the same message that is not saved yet. */
static void take_mark(struct pp_io *io, struct mark *m)
{
    struct mark **slot = &io->marks;
    m->store = store_now(io);
    while (*slot && ((*slot)->message != m->message || (*slot)->store != m->store))
        slot = &(*slot)->next;
    struct mark *old = *slot;
    m->next = old ? old->next : NULL;
    *slot = m;
    if (old)
        free_mark(old);
    save_answers(io, true);
}

/* --- completing what is not saved yet ---------------------------------------------------------------------------- */

/* Replaces the text read from the database; false: out of memory. */
static bool put_text(char **text, size_t *len, const struct pp_buf *now)
{
    struct pp_buf copy = {0};
    pp_buf_add(&copy, now->data, now->len);
    char *copied = pp_buf_take(&copy);
    if (!copied)
        return false;
    pp_free(*text);
    *text = copied;
    *len = now->len;
    return true;
}

static void complete_answer(struct answer *a, struct pp_message *m)
{
    const bool ready = a->begun || begin_answer(a, NULL) == PP_OK;
    if (!ready || !put_text(&m->content, &m->content_len, &a->text) ||
        !put_text(&m->reasoning, &m->reasoning_len, &a->reasoning))
        return;
    m->state = a->state;
    if (!a->ended)
        return;
    pp_free(m->stats);
    m->stats = a->stats ? pp_strdup(a->stats) : NULL; /* without memory, only the statistics are missing */
    m->n_tokens = a->n_tokens;
}

static void complete_mark(const struct mark *k, struct pp_message *m)
{
    char *note = pp_strdup(k->note);
    if (!note)
        return;
    pp_free(m->context_note);
    m->context_note = note;
    m->context_from = k->from;
}

void pp_io_complete(struct pp_io *io, const struct pp_store *st, struct pp_message *list, size_t n)
{
    for (size_t i = 0; io && i < n; i++) {
        for (struct answer *a = io->answers; a; a = a->next)
            if (a->dirty && a->store == st && a->message == list[i].id)
                complete_answer(a, &list[i]);
        for (const struct mark *k = io->marks; k; k = k->next)
            if (k->store == st && k->message == list[i].id)
                complete_mark(k, &list[i]);
    }
}

/* --- the thread -------------------------------------------------------------------------------------------------- */

static void take_job(struct pp_io *io, struct pp_job *job)
{
    job->run(job, job->of_disk ? io->store : store_now(io));
    if (job->done)
        append(&io->done_jobs, &job->item);
    else if (job->release)
        job->release(job);
}

/* Closes a database in memory, and drops its answers. */
static void drop_store(struct pp_io *io, struct pp_store **store)
{
    for (struct answer **slot = &io->answers; *store && *slot;) {
        struct answer *a = *slot;
        if (a->store == *store) {
            *slot = a->next;
            free_answer(a);
        } else {
            slot = &a->next;
        }
    }
    for (struct mark **slot = &io->marks; *store && *slot;) {
        struct mark *m = *slot;
        if (m->store == *store) {
            *slot = m->next;
            free_mark(m);
        } else {
            slot = &m->next;
        }
    }
    pp_store_close(*store);
    *store = NULL;
}

static void take_store(struct pp_io *io, struct store_item *s)
{
    save_answers(io, false);
    struct pp_store **place = s->of_disk ? &io->store : &io->memory;
    drop_store(io, place);
    *place = s->store;
    pp_free(s);
}

/* Runs a slice of the first task. */
static void take_task(struct pp_io *io, struct pp_io_item *item)
{
    if (task_of(item)->slice(task_of(item)))
        return;
    pthread_mutex_lock(&io->lock);
    put_back(&io->tasks, item);
    pthread_mutex_unlock(&io->lock);
}

static void take_item(struct pp_io *io, struct pp_io_item *item)
{
    switch ((enum item_kind)item->kind) {
    case ITEM_JOB: take_job(io, job_of(item)); break;
    case ITEM_TEXT: take_text(io, (struct text_item *)(void *)item); break;
    case ITEM_END: take_end(io, (struct end_item *)(void *)item); break;
    case ITEM_MARK: take_mark(io, (struct mark *)(void *)item); break;
    case ITEM_STORE: take_store(io, (struct store_item *)(void *)item); break;
    case ITEM_TASK: take_task(io, item); break;
    }
}

static const char *subject_of(struct pp_io_item *item)
{
    if (item->kind == ITEM_TASK)
        return "files";
    const char *what = item->kind == ITEM_JOB ? job_of(item)->what : NULL;
    return what ? what : "the conversation";
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return !a ? b : !b ? a : a < b ? a : b;
}

/* Waits for an item. NULL: something is due, or everything is done. *stop: there will be no more items. */
static struct pp_io_item *next_item(struct pp_io *io, bool *stop, bool *lost)
{
    uint64_t due = earlier(io->commit_at, io->deliver_at);
    pthread_mutex_lock(&io->lock);
    while (!io->posted.first && !io->tasks.first && !io->stopping && !io->lost) {
        if (!due)
            pthread_cond_wait(&io->wake, &io->lock);
        else if (!pp_cond_wait_until(&io->wake, &io->lock, due))
            break;
    }
    struct pp_io_item *item = take_first(io->posted.first ? &io->posted : &io->tasks);
    *stop = !item && io->stopping;
    io->doing = item ? subject_of(item) : "the conversation";
    *lost = io->lost;
    io->lost = false;
    pthread_mutex_unlock(&io->lock);
    return item;
}

static void *io_main(void *arg)
{
    struct pp_io *io = arg;
    bool stop = false;
    while (!stop) {
        bool lost;
        struct pp_io_item *item = next_item(io, &stop, &lost);
        if (item)
            take_item(io, item);
        uint64_t now = pp_now_ns();
        if (stop || (io->commit_at && now >= io->commit_at))
            save_answers(io, false);
        if (lost)
            pp_fail(&io->complaint, PP_ERR_NOMEM,
                    "out of memory: part of an answer could not be saved; close other programs");
        /* A backlog of events is retried only from time to time, so that a full queue costs nothing per item. */
        if (stop || !io->deliver_at || now >= io->deliver_at)
            deliver_all(io);
    }
    return NULL;
}

/* The thread inherits a signal mask that leaves the signals to the UI thread. */
enum pp_code pp_io_start(const char *db_path, struct pp_queue *events, struct pp_io **out, struct pp_error *err)
{
    *out = NULL;
    struct pp_io *io = pp_calloc(1, sizeof *io);
    if (!io)
        return pp_fail_nomem(err, "the io thread");
    io->events = events;
    enum pp_code code = pp_store_open(db_path, &io->store, err);
    if (code) {
        pp_free(io);
        return code;
    }
    pthread_mutex_init(&io->lock, NULL);
    pp_cond_init(&io->wake);
    if (pp_thread_start(&io->thread, io_main, io) != 0) {
        pthread_cond_destroy(&io->wake);
        pthread_mutex_destroy(&io->lock);
        pp_store_close(io->store);
        pp_free(io);
        return pp_fail(err, PP_ERR_IO, "the system cannot start more threads; close other programs");
    }
    *out = io;
    return PP_OK;
}

/* Waits for the end of the thread. */
static void join(struct pp_io *io, int ms, void (*waiting)(const char *what))
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ms / 1000;
    until.tv_nsec += (long)(ms % 1000) * (long)MS;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    if (waiting && pthread_timedjoin_np(io->thread, NULL, &until) == 0)
        return;
    if (waiting) {
        pthread_mutex_lock(&io->lock);
        const char *what = io->doing;
        pthread_mutex_unlock(&io->lock);
        waiting(what);
    }
    pthread_join(io->thread, NULL);
}

/* Called after the thread has ended: if the file of the database is gone, saves what is left to the open file and
 * passes it to ending->gone. */
static bool rescue(struct pp_io *io, const struct pp_io_ending *ending)
{
    if (!pp_store_moved(io->store))
        return false;
    pp_store_set_adrift(io->store);
    save_answers(io, false);
    if (ending->gone)
        ending->gone(ending->user, io->store);
    return true;
}

bool pp_io_stop(struct pp_io *io, const struct pp_io_ending *ending)
{
    static const struct pp_io_ending silent = {0};
    bool saved = true;
    if (!io)
        return saved;
    pthread_mutex_lock(&io->lock);
    io->stopping = true;
    pthread_cond_signal(&io->wake);
    pthread_mutex_unlock(&io->lock);
    ending = ending ? ending : &silent;
    join(io, ending->ms, ending->waiting);
    drop_store(io, &io->memory);
    saved = !rescue(io, ending);
    for (struct pp_io_item *item; (item = take_first(&io->done_jobs));)
        if (job_of(item)->release)
            job_of(item)->release(job_of(item));
    while (io->answers) {
        struct answer *a = io->answers;
        io->answers = a->next;
        saved = saved && !a->dirty;
        free_answer(a);
    }
    while (io->marks) {
        struct mark *m = io->marks;
        io->marks = m->next;
        saved = false;
        free_mark(m);
    }
    pthread_cond_destroy(&io->wake);
    pthread_mutex_destroy(&io->lock);
    pp_store_close(io->store);
    pp_free(io);
    return saved;
}
