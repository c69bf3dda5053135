/* worker_int.h - the inside of the local backend. What is not marked otherwise is used by the worker thread alone.
 *
 *   worker.c           the thread, its requests, stopping it
 *   worker_model.c     the target model, its identity, its adapters
 *   worker_draft.c     the draft model and its adapters
 *   worker_slots.c     one sequence per conversation
 *   worker_slide.c     drops the oldest turns of a conversation without computing the others again
 *   worker_saves.c     snapshots of conversations: saving and restoring them
 *   worker_prefault.c      memory made ready for restoring
 *   worker_answer.c    one answer: its prompt, its text, its statistics
 *   worker_generate.c  the answers under way, computed in one batch */
#ifndef PP_SRC_WORKER_INT_H
#define PP_SRC_WORKER_INT_H

#include <pthread.h>
#include <sys/types.h>

#include "engine/base/buf.h"
#include "engine/base/cancel.h"
#include "engine/engine.h"
#include "engine/text.h"
#include "src/event.h"
#include "src/parts.h"
#include "src/queue.h"
#include "src/snapshots.h"
#include "src/worker.h"

enum {
    WORKER_ANSWERS = 8,                  /* at the same time; others wait */
    WORKER_SLOTS = 16,
    WORKER_ADAPTERS = (WORKER_SLOTS + 1) * PP_MAX_ADAPTERS, /* all that the slots can use, and one more set, for an
                                                             * answer that begins */
};

enum request_kind {
    REQUEST_LOAD, REQUEST_GENERATE, REQUEST_FORGET, REQUEST_SAVED, REQUEST_INSPECT, REQUEST_COST, REQUEST_PREPARE,
    REQUEST_INSPECT_DRAFT, REQUEST_DRAFT, REQUEST_WAKE /* only interrupts the wait */,
};

/* A copy of what the caller passed: it owns all that its pointers point to. */
struct request {
    enum request_kind kind;
    struct request *next;                /* worker thread: the next in `waiting` */
    struct pp_load_request load;
    struct pp_generate_request generate;
    struct pp_draft_runs continue_drafted;
    char *key;                           /* FORGET: of the conversation; INSPECT, INSPECT_DRAFT, DRAFT: the path */
    struct pp_event *answer;             /* INSPECT, INSPECT_DRAFT: with the path, to be filled; allocated with the
                                          * request, so that there is an answer even when memory is short */
    /* -- generations, protected by the worker's lock */
    struct request *live_next;           /* the next in `live` */
    bool cancelled;
};

/* A model, shared with the thread that computes its identity: whoever releases it last closes it. */
struct shared_model {
    struct pp_model *model;
    pthread_mutex_t lock;
    pthread_cond_t known;
    /* -- protected by lock */
    int users;
    bool done;
    enum pp_code code;
    struct pp_error err;
    struct pp_sha256 identity;
    char cache_dir[512];                 /* "" for none */
};

/* Compared to find out whether a file has changed since it was read. */
struct file_stamp {
    dev_t dev;
    ino_t ino;
    struct timespec mtime, ctime; /* ctime too, as programs may reset mtime */
    off_t size;
};

struct cached_adapter {
    char path[512];
    struct file_stamp files[2]; /* weights, and in a folder the configuration */
    struct pp_adapter *adapter;
    bool notified;                       /* an answer used it, and the user was told if it has no effect */
    bool replaced;                       /* its file has changed since an answer used it: the user has yet to be told */
    bool uninvoked_notified;             /* the user was told that a prompt lacks the words that activate it */
    uint64_t last_use;
};

/* One conversation: its pages. */
struct slot {
    char key[33];                        /* "" for a temporary one */
    bool used, temporary;
    bool no_snapshots;                   /* as in struct pp_generate_request */
    bool busy;                           /* an answer is being written into it */
    bool notified;                       /* the user was told why its snapshot is not used */
    bool dirty;                          /* differs from its snapshot */
    struct pp_seq *seq, *draft;          /* draft: NULL until one is used */
    uint64_t last_use;
};

/* The draft model; all NULL if there is none. */
struct worker_draft {
    struct shared_model *model;
    struct pp_engine *engine;
    struct pp_adapter *adapters[PP_MAX_ADAPTERS]; /* [n] */
    struct pp_adapter_use use[PP_MAX_ADAPTERS];
    int n;
};

struct pp_worker {
    struct pp_backend base;              /* first */
    struct pp_queue *events;
    struct pp_io *io;
    char cache_dir[512];                 /* "" for none */
    struct pp_queue *requests;
    pthread_t thread;
    struct pp_cancel cancel;             /* cancels the pass under way */
    struct pp_cancel load_cancel;        /* cancels a load under way at shutdown; any thread */

    pthread_mutex_t lock;
    /* -- protected by lock */
    struct request *live;                /* generations that were posted and have not ended */
    struct request *forgets;             /* FORGET that did not fit into the queue; linked by live_next, too */
    bool computing;                      /* a pass is under way, and `cancel` stops it */
    char shown[33];                      /* key of the conversation on the screen */
    bool closing;
    pthread_cond_t saved;                /* signalled when a save has ended */

    /* -- worker thread */
    struct shared_model *target;
    struct pp_engine *engine;
    struct request *loaded;              /* the request that loaded it; NULL while engine is NULL */
    struct worker_draft draft;
    struct request *next_draft;          /* a draft to load once the answers under way have ended; or NULL */
    struct cached_adapter adapters[WORKER_ADAPTERS];
    int n_adapters;
    struct slot slots[WORKER_SLOTS];
    struct answer *answers[WORKER_ANSWERS]; /* [n_answers], the oldest first */
    int n_answers;
    struct request *waiting;             /* generations queued for a place among the answers, in order */
    uint64_t clock;                      /* counts uses of slots and adapters: their last_use */
    struct pp_template *tmpl;            /* the last one used */
    char *tmpl_source;
    bool template_notified, snapshots_off_notified;
    uint64_t snapshot_quota;             /* as in the request to load */
    struct saving *save_jobs;            /* that the io thread has not ended */
    enum pp_code save_error;             /* an error that the user was told of, and that has not gone away since */
    pthread_t prefault_thread;           /* valid if prefault_started; it reads cache_dir and engine */
    bool prefault_started;
    struct pp_cancel prefault_cancel;
};

/* --- worker.c --- */
/* waits for space in the queue; takes over e, which may be NULL */
void worker_send(struct pp_worker *w, struct pp_event *e);
void worker_try_send(struct pp_worker *w, struct pp_event *e);      /* the same, but drops e if the queue is full */
void worker_notice(struct pp_worker *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void request_free(struct request *r);
/* Changes the request's draft to this path, which it takes over, with no adapters. */
void request_set_draft(struct request *r, char *draft);

/* --- worker_model.c --- */
/* Takes over r, and sends the outcome. If its model cannot be loaded, the previous one stays or is loaded again. */
void worker_load(struct pp_worker *w, struct request *r);
void worker_unload(struct pp_worker *w);
/* Waits at most wait_ms for the identity of the target. PP_ERR_BUSY: not known yet, and *err is not set. Any other
 * error is permanent. */
enum pp_code worker_identity(struct pp_worker *w, int wait_ms, struct pp_sha256 *out, struct pp_error *err);
/* The adapters of a request, loaded on first use and again when a file has changed. Adapters that no sequence uses
 * stay loaded while there is space. The result is valid until the next call. Returns their number: those that cannot
 * be loaded are left out, and *err describes the last failure, which `tell` reports to the user. */
int worker_choose_adapters(struct pp_worker *w, const struct pp_generate_request *r,
                           struct pp_adapter_use use[static PP_MAX_ADAPTERS], bool notify, struct pp_error *err);
/* Tells the user once for each adapter that this prompt lacks the words that activate it. */
void worker_notify_uninvoked(struct pp_worker *w, const struct pp_adapter_use *use, int n_use, const int32_t *ids,
                             size_t n);
/* Sends what a model file is and whether it fits into memory. */
void worker_inspect(struct pp_worker *w, struct request *r);

/* As pp_model_open_as. */
enum pp_code model_open(const char *path, const char *quant, const char *imatrix, const char *cache_dir,
                        struct shared_model **out, struct pp_error *err);
void shared_model_release(struct shared_model *s); /* NULL is fine */
struct pp_loaded *worker_describe(struct pp_worker *w, const char *draft_reason); /* NULL: out of memory */

/* --- worker_draft.c --- */
/* Loads the draft that a request to load names, if any, for the present engine. On failure there is none. */
enum pp_code draft_load(struct pp_worker *w, const struct pp_load_request *r, struct pp_error *err);
void draft_drop(struct pp_worker *w);      /* no slot may have a sequence of it */
/* A sequence for a conversation, with the draft's adapters. */
enum pp_code draft_seq(struct pp_worker *w, struct pp_seq **out, struct pp_error *err);
/* Sends whether a model could draft for the target. */
void worker_inspect_draft(struct pp_worker *w, struct request *r);
/* Takes over r: its model becomes the draft as soon as no answer is under way. */
void worker_want_draft(struct pp_worker *w, struct request *r);
/* Changes the draft if that was requested and no answer is under way, and sends the outcome. */
void worker_change_draft(struct pp_worker *w);

/* --- worker_slots.c --- */
/* Finds or makes the slot for a conversation whose prompt is tokens[0..n), with these adapters. Its pages may be in
 * memory, come from a snapshot, or be shared with another conversation that begins with the same tokens. If the
 * conversation has a busy slot, another branch of it is being written, and that slot is left alone. */
struct slot_spec {
    const char *key;                     /* NULL or "": no conversation */
    bool temporary, no_snapshots;
    bool slide;                          /* pages whose values are not exact are accepted (worker_slide.c) */
    bool prefetch;                       /* nobody waits for it yet */
    const struct pp_adapter_use *use;    /* [n_use] */
    int n_use;
    const int32_t *tokens;               /* [n] */
    size_t n;
};
enum pp_code slot_open(struct pp_worker *w, const struct slot_spec *spec, struct slot **out, struct pp_error *err);
/* How many of tokens [n], from the first on, slot_open would find in memory. */
int64_t slots_cached_tokens(const struct pp_worker *w, const struct pp_adapter_use *use, int n_use,
                            const int32_t *tokens, int64_t n);
/* Closes a slot that was opened, but into which no answer was written. */
void slot_release(struct slot *s);
/* To be called when an answer has ended: the slot is saved, or emptied if it is temporary. */
void slot_end(struct pp_worker *w, struct slot *s);
void slot_forget(struct pp_worker *w, const char *key);
bool slots_unsaved(const struct pp_worker *w);      /* for being saved */
void slots_save(struct pp_worker *w, int wait_ms);  /* all that are not busy */
void slots_free(struct pp_worker *w);
void slots_drop_drafts(struct pp_worker *w);        /* no answer may be under way */
/* Frees all that are not busy, to get pages, and waits for saves under way, which hold pages, too. False: there were
 * neither. */
bool slots_free_idle(struct pp_worker *w);

/* --- worker_slide.c --- */
/* If the prompt, after the prefix it shares with the sequence, continues as the sequence does further on, removes the
 * tokens between from the sequence. Does nothing if that is impossible or gains little. */
void slot_slide(struct pp_worker *w, struct slot *s, const struct slot_spec *spec);

/* --- worker_saves.c --- */
/* Hands the part of a conversation that is not on disk yet to the io thread; takes microseconds. False if the model's
 * identity is not known yet, and not within wait_ms either. */
bool slot_save(struct pp_worker *w, struct slot *s, int wait_ms);
/* Reads from the disk what it has of the prompt and the sequence lacks. */
void slot_restore(struct pp_worker *w, struct slot *s, const struct slot_spec *spec);
bool saves_have(struct pp_worker *w, const char *key); /* whether the disk has a snapshot of a conversation */
void saves_collect(struct pp_worker *w);            /* releases the pages of saves that have ended */
bool saves_pending(struct pp_worker *w, const char *key); /* of a conversation, or (NULL) any */
/* Waits for all saves, and gives up those that take longer than wait_ms. */
void saves_finish(struct pp_worker *w, int wait_ms);
void saves_forget(struct pp_worker *w, const char *key);

/* --- worker_prefault.c --- */
/* Starts a thread that prepares memory for the conversation that is opened next. */
void prefault_start(struct pp_worker *w);
void prefault_stop(struct pp_worker *w);            /* within milliseconds; what is prepared stays */

/* --- worker_answer.c --- */

struct answer_text {
    struct pp_buf reasoning, text;
    struct pp_draft_runs drafted; /* of that text */
    bool text_was_reasoning;     /* before these: all text so far was reasoning */
};

/* An answer under way. */
struct answer {
    struct pp_worker *w;
    struct request *request;
    struct slot *slot;
    struct pp_gen *gen;
    struct pp_buf piece;         /* of one step, as the model wrote it */
    struct pp_buf piece_drafted; /* as in struct pp_gen_item */
    struct pp_draft_runs drafted; /* all of the text, that of an answer begun before included */
    struct pp_parts parts;       /* a step's text, split into reasoning and answer */
    struct answer_text unsaved;  /* not handed to the io thread yet */
    struct answer_text pending;  /* not sent to the screen yet */
    int pending_tokens;
    uint64_t sent_ns, progress_ns;
    int64_t n_before;            /* tokens of the text and reasoning that are continued */
    bool too_long;               /* its question alone does not fit into the context */
    uint64_t restored_tokens;    /* from a snapshot, for this answer */
    bool parked;                 /* no pages are left for it: it waits until another answer has ended */
};
/* Takes over r. NULL: it failed, and an event has reported that. */
struct answer *answer_begin(struct pp_worker *w, struct request *r);
/* Processes the output of a step: n_tokens, whose text is a->piece. True: the answer is complete. */
bool answer_piece(struct answer *a, int n_tokens);
/* Reports how the answer ended and frees it. */
void answer_end(struct answer *a, enum pp_finish finish, const struct pp_error *err);
/* Reports how much of r's prompt is in memory; an error if one of its adapters cannot be loaded. */
void worker_cost(struct pp_worker *w, const struct pp_generate_request *r);
/* Reads from the disk what was saved of a conversation, if it is on the screen and no answer is under way. */
void worker_prepare(struct pp_worker *w, const struct pp_generate_request *r);
/* The end of a generation that never began: noted with its message, and the event that says so. Any thread. */
struct pp_event *worker_refusal(struct pp_worker *w, const struct pp_generate_request *r, const struct pp_error *err);

/* --- worker_generate.c --- */
/* Takes over r: begins it, or lets it wait. */
void worker_generate(struct pp_worker *w, struct request *r);
/* One forward pass for all answers under way. False if there are none. */
bool worker_pass(struct pp_worker *w);

/* --- worker.c: generations from their posting to their end; any thread --- */
/* Frees a request that has ended. */
void request_end(struct pp_worker *w, struct request *r);
bool request_cancelled(struct pp_worker *w, const struct request *r);

#endif
