/* io.h - the thread that owns the database and every file that is written.
 *
 * The controller posts jobs; they run in order, and come back as PP_EVENT_JOB. The worker hands its tokens here
 * directly, so that a stopped terminal never stops saving: text is collected and committed at most a second later. */
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

struct pp_io_item { /* private to io.c: a place in its line */
    struct pp_io_item *next;
    int kind;
};

struct pp_job {
    void (*run)(struct pp_job *job, struct pp_store *store); /* io thread */
    /* UI thread, when the event arrives; releases the job. NULL: `release` is called */
    void (*done)(struct pp_job *job, void *controller);
    void (*release)(struct pp_job *job);                     /* any thread: if it cannot be delivered any more */
    enum pp_code code;                                       /* set by run */
    struct pp_error err;
    const char *what;                                        /* for the user, who waits for it; NULL: nothing special */
    bool awaited;                                            /* the poster's own: it counts those that are out */
    bool of_disk;                                            /* of the database on the disk, also while conversations
                                                                are in memory alone */
    struct pp_io_item item;                                  /* private; so that posting a job cannot fail */
};

/* Starts the thread with its own connection to the database at path. events: where PP_EVENT_JOB, PP_EVENT_IO_ERROR
 * and PP_EVENT_UNSAVED go (struct pp_event, malloced). It must outlive the io thread. */
enum pp_code pp_io_start(const char *db_path, struct pp_queue *events, struct pp_io **out, struct pp_error *err);
/* For who tells the user about the end. Functions are called on this thread and may be NULL. */
struct pp_io_ending {
    int ms;                            /* if it takes longer, `waiting` is called once, with what is being done */
    void (*waiting)(const char *what);
    /* The database's file was deleted, moved or replaced meanwhile: what is in it, and answers that were to be saved in
     * it, can be read here for the last time. Then the result is false, too. */
    void (*gone)(void *user, struct pp_store *store);
    void *user;
};
/* Finishes everything posted, commits, joins. Jobs whose event finds no room in `events` are released. False: part of
 * an answer could not be saved and is lost. ending may be NULL, and so may io: nothing was started. */
bool pp_io_stop(struct pp_io *io, const struct pp_io_ending *ending);

/* Any thread. Ownership of the job passes over. */
void pp_io_post(struct pp_io *io, struct pp_job *job);

/* What is posted from here on goes to an empty database in memory instead, or (false) to the one on the disk again, and
 * then what was in memory is gone. No answer may be under way. UI thread. */
enum pp_code pp_io_temporary(struct pp_io *io, bool on, struct pp_error *err);
/* One that was started with ":memory:" has the database at db_path in its place from here on, which is made if it is
 * not there. If that fails, all is as before. UI thread. */
enum pp_code pp_io_make_disk(struct pp_io *io, const char *db_path, struct pp_error *err);

/* An answer that streams in, by the id of its message: the text is appended to what the message holds, or to its
 * reasoning; PP_PART_TAKE_BACK makes all of its text so far reasoning. Any thread;
 * copies the text. What cannot be saved (a full disk) is kept in memory and tried again every second; PP_EVENT_UNSAVED
 * comes once, and again when all is saved. */
void pp_io_answer_add(struct pp_io *io, int64_t message, enum pp_part part, const char *text, size_t n);
/* Its end: committed at once. stats may be NULL. */
void pp_io_answer_end(struct pp_io *io, int64_t message, enum pp_message_state state, const char *stats,
                      int64_t n_tokens);

/* The answers to a question see the conversation from message `from` on, and the note (pp_store_message_context):
 * saved, or tried again, as answers are; a later one for the same question takes its place. Any thread. False: out of
 * memory. */
bool pp_io_mark(struct pp_io *io, int64_t message, int64_t from, const char *note);
/* Of a job's run, with the store that it was given: messages that were read from it become what they will be when all
 * that was posted before is saved. Where memory runs out they stay as the database has them. io NULL: nothing was
 * posted. */
void pp_io_complete(struct pp_io *io, const struct pp_store *st, struct pp_message *list, size_t n);

/* Work on files that may take long. Tasks run one after the other in the order in which they were posted, a slice of
 * about 100 ms at a time, and only while nothing else waits: a large file never keeps an answer from being saved. */
struct pp_io_task {
    /* io thread. True: that was the last slice; the task is not touched any more. */
    bool (*slice)(struct pp_io_task *task);
    struct pp_io_item item; /* private */
};
/* Any thread. The task is the io thread's until its last slice. */
void pp_io_post_task(struct pp_io *io, struct pp_io_task *task);

#endif
