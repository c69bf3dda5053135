/* io.h - the io thread, which owns the database and every file that is written.
 *
 * The controller posts jobs; they run in order, and come back as PP_EVENT_JOB. The worker passes the text of answers on
 * to this thread directly, so that a stopped terminal never stops saving: text is collected and committed at most a
 * second later. */
#ifndef PP_SRC_IO_H
#define PP_SRC_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/error.h"
#include "engine/reasoning.h"
#include "src/queue.h"
#include "src/store.h"

struct pp_io;

struct pp_io_item { /* private to io.c: a link of its queue */
    struct pp_io_item *next;
    int kind;
};

/* Embedded at the beginning of the poster's own struct. */
struct pp_job {
    void (*run)(struct pp_job *job, struct pp_store *store); /* io thread */
    /* UI thread, when the event arrives; frees the job. NULL: `release` is called instead */
    void (*done)(struct pp_job *job, void *controller);
    void (*release)(struct pp_job *job);                     /* any thread: frees a job that cannot be delivered */
    enum pp_code code;                                       /* set by run */
    struct pp_error err;
    const char *what;                                        /* shown to a user who waits for it; NULL: nothing */
    bool awaited;                                            /* for the poster, who counts its pending jobs */
    bool of_disk;                                            /* runs on the database on disk, even while conversations
                                                                are kept in memory only */
    struct pp_io_item item;                                  /* private; so that posting a job cannot fail */
};

/* Starts the thread with its own connection to the database at db_path, which is created if need be. events: receives
 * PP_EVENT_JOB, PP_EVENT_IO_ERROR and PP_EVENT_UNSAVED; must outlive the io thread. The caller ends it with
 * pp_io_stop. */
enum pp_code pp_io_start(const char *db_path, struct pp_queue *events, struct pp_io **out, struct pp_error *err);
/* Callbacks of pp_io_stop, by which the caller can tell the user. Called on its thread; may be NULL. */
struct pp_io_ending {
    int ms;                            /* if it takes longer, `waiting` is called once, with what is being done */
    void (*waiting)(const char *what);
    /* The database's file was deleted, moved or replaced meanwhile: last chance to read what is in it, and the answers
     * that should have been saved. pp_io_stop then returns false, too. */
    void (*gone)(void *user, struct pp_store *store);
    void *user;
};
/* Finishes everything posted, commits, joins the thread and frees io. Jobs whose event finds no room in `events` are
 * released. False: part of an answer could not be saved and is lost. ending may be NULL; io, too: nothing was
 * started. */
bool pp_io_stop(struct pp_io *io, const struct pp_io_ending *ending);

/* Any thread. The io thread takes ownership of the job. */
void pp_io_post(struct pp_io *io, struct pp_job *job);

/* Jobs posted from now on use an empty database in memory; or (false) the one on disk again, and the one in memory is
 * lost. No answer may be in progress. UI thread. */
enum pp_code pp_io_temporary(struct pp_io *io, bool on, struct pp_error *err);
/* Makes a thread that was started with ":memory:" use the database at db_path from now on, which is created if need be.
 * If that fails, nothing has changed. UI thread. */
enum pp_code pp_io_make_disk(struct pp_io *io, const char *db_path, struct pp_error *err);

/* Appends text of a streaming answer to the message of this id, or to its reasoning; PP_PART_TEXT_WAS_REASONING turns
 * all of its text so far into reasoning. Any thread; the text is copied. What cannot be saved (a full disk) is kept in
 * memory and retried every second; PP_EVENT_UNSAVED comes once then, and again when all is saved. */
void pp_io_answer_add(struct pp_io *io, int64_t message, enum pp_part part, const char *text, size_t n);
/* Ends the answer: committed at once. stats: JSON, or NULL. Any thread. */
void pp_io_answer_end(struct pp_io *io, int64_t message, enum pp_message_state state, const char *stats,
                      int64_t n_tokens);

/* Records that answers to a question (message) are given the conversation from message `from` on, and the note
 * (pp_store_message_context). Saved, or retried, as answers are; a later call for the same question replaces it. Any
 * thread. False: out of memory. */
bool pp_io_mark(struct pp_io *io, int64_t message, int64_t from, const char *note);
/* For a job's run, with the store that it was given: brings messages that were read from it up to date with what was
 * posted before and is not saved yet. If memory runs out they stay as they are. io NULL: nothing was posted. */
void pp_io_complete(struct pp_io *io, const struct pp_store *st, struct pp_message *list, size_t n);

/* Work on files that may take long. Tasks run one after the other in the order in which they were posted, in slices of
 * about 100 ms, and only while nothing else is queued: a large file never delays the saving of an answer. */
struct pp_io_task {
    /* io thread. True: that was the last slice, and the task is not touched any more. */
    bool (*slice)(struct pp_io_task *task);
    struct pp_io_item item; /* private */
};
/* Any thread. The task belongs to the io thread until its last slice. */
void pp_io_post_task(struct pp_io *io, struct pp_io_task *task);

#endif
