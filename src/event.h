/* event.h - what the worker and the io thread tell the UI thread, through one queue. Events are pp_malloced and owned
 * by whoever pops them; release with pp_event_free. */
#ifndef PP_SRC_EVENT_H
#define PP_SRC_EVENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/error.h"
#include "engine/engine.h"
#include "src/guessed.h"

struct pp_job;

enum pp_event_type {
    PP_EVENT_LOAD_PROGRESS,   /* done, total */
    PP_EVENT_LOADED,          /* info */
    PP_EVENT_LOAD_FAILED,     /* err; info: of the model that was there before and stays, or NULL */
    PP_EVENT_PROMPT_PROGRESS, /* request; done, total in tokens; cached */
    PP_EVENT_TEXT,            /* request; text: a piece of the answer; thoughts; n: their tokens; stats so far */
    PP_EVENT_DONE,            /* request; finish, or err (PP_ERR_CANCELLED when stopped); stats; n: 1 if its question
                               * alone does not fit into the context */
    PP_EVENT_CONTEXT,         /* request; how full the context of its conversation is: done, total; n: tokens
                               * whose values are not exact (PP_OVERFLOW_SLIDE) */
    PP_EVENT_OVERFLOW,        /* request; n: messages that are (done 1) or would have to be (0) left out */
    PP_EVENT_ADAPTER,         /* text: path of an adapter that was looked at; adapter, or err: why it does not fit */
    PP_EVENT_WITHOUT,         /* request; text: path of an adapter that it is answered without; err: why */
    PP_EVENT_DRAFTER,         /* text: path of a draft model that was looked at; drafter, or err: why it does not fit */
    PP_EVENT_DRAFT,           /* info: another draft model guesses; or err: why it does not, and things are as before */
    PP_EVENT_COST,            /* request; total: tokens of its prompt; cached: of those that are at hand; or err */
    PP_EVENT_NOTICE,          /* text: one line for the user (a snapshot refused and why) */
    PP_EVENT_CLOSED,          /* the worker has saved everything and ended */
    PP_EVENT_JOB,             /* job has run */
    PP_EVENT_IO_ERROR,        /* err: something could not be saved */
    PP_EVENT_UNSAVED,         /* err: answers cannot be saved, and are tried again until they are; PP_OK: all are now */
};

/* A model as the screen shows it. Strings are copies, untrusted (sanitise before drawing). */
struct pp_loaded {
    char name[128];
    char type_name[32];
    char path[512];
    char draft_name[128];     /* "" if there is no draft */
    char draft_path[512];     /* likewise */
    char draft_reason[256];   /* why there is none although one was asked for */
    char kernels[16];
    int n_threads;
    int64_t n_ctx, n_ctx_train, n_params, n_vocab;
    uint64_t bytes;
    int has_template;
    char instead[96];          /* of a model without a template: the one that serves, and why: "vicuna, by its name" */
    unsigned thinking_choices; /* of its template: thinking.h */
};

/* An adapter that fits the model. */
struct pp_adapter_facts {
    int rank, n_targets;
    int n_invocation;         /* tokens behind which it acts; 0: everywhere */
    bool idle;                /* it changes nothing */
    uint64_t bytes;           /* as it is held in memory */
    char targets[128];        /* "attn_q ffn_up": untrusted */
    struct pp_adapter_places places; /* two whose places conflict cannot be on at once */
};

/* A model that could guess for the one that is loaded. */
struct pp_drafter_facts {
    uint64_t bytes;           /* of its weights */
    float share;              /* of the model's */
    bool bridged;             /* another vocabulary: it guesses by its text */
    bool other_template;      /* it was trained for conversations that are written otherwise */
};

/* What is new of the reasoning that stands before an answer. */
struct pp_thoughts {
    char *text;               /* owned, or NULL */
    size_t len;
    bool take_back;           /* first: the text of the answer so far was reasoning */
    bool going_on;            /* the answer has not begun */
    int64_t n_tokens;         /* since the answer began */
    uint64_t ns;
};

struct pp_event {
    enum pp_event_type type;
    uint64_t request;         /* which generation this is about */
    uint64_t done, total, cached;
    int n;
    enum pp_finish finish;
    struct pp_stats stats;
    struct pp_error err;
    struct pp_loaded *info;   /* owned */
    struct pp_adapter_facts *adapter; /* owned */
    struct pp_drafter_facts *drafter; /* owned */
    char *text;               /* owned, NUL-terminated */
    struct pp_guessed guessed; /* TEXT: of its bytes; owned */
    size_t text_len;
    struct pp_thoughts thoughts;
    struct pp_job *job;       /* owned */
};

struct pp_event *pp_event_new(enum pp_event_type type); /* zeroed; NULL: out of memory */
void pp_event_free(struct pp_event *e);

#endif
