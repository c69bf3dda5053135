/* event.h - events from the worker and the io thread to the UI thread, through one queue. The thread that pops an event
 * owns it and frees it with pp_event_free. */
#ifndef PP_SRC_EVENT_H
#define PP_SRC_EVENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/error.h"
#include "engine/engine.h"
#include "src/draft_runs.h"

struct pp_job;

/* Each with the members of struct pp_event that it sets. */
enum pp_event_type {
    PP_EVENT_LOAD_PROGRESS,   /* done, total */
    PP_EVENT_LOADED,          /* info */
    PP_EVENT_LOAD_FAILED,     /* err; info: the previous model, which stays loaded, or NULL */
    PP_EVENT_PROMPT_PROGRESS, /* request; done, total in tokens; cached */
    PP_EVENT_TEXT,            /* request; text: a piece of the answer; thoughts; n: their tokens; stats so far */
    PP_EVENT_DONE,            /* request; finish, or err (PP_ERR_CANCELLED when stopped); stats; n: 1 if the question
                               * alone does not fit into the context */
    PP_EVENT_CONTEXT,         /* request; done of total tokens of its conversation's context are used; n: tokens whose
                               * values are not exact (PP_OVERFLOW_SLIDE) */
    PP_EVENT_OVERFLOW,        /* request; n: messages that are (done 1) or would have to be (0) left out */
    PP_EVENT_ADAPTER,         /* text: path of an inspected adapter; adapter, or err: why it does not fit */
    PP_EVENT_ADAPTER_SKIPPED, /* request; text: path of an adapter that it is answered without; err: why */
    PP_EVENT_DRAFTER,         /* text: path of an inspected draft model; drafter, or err: why it does not fit */
    PP_EVENT_DRAFT,           /* info: the draft model was changed; or err: why not, and nothing has changed */
    PP_EVENT_COST,            /* request; total: tokens of its prompt; cached: those already computed; or err */
    PP_EVENT_NOTICE,          /* text: one line for the user (why a snapshot was refused, for instance) */
    PP_EVENT_CLOSED,          /* the worker has saved everything and ended */
    PP_EVENT_JOB,             /* job has run */
    PP_EVENT_IO_ERROR,        /* err: something could not be saved */
    PP_EVENT_UNSAVED,         /* err: answers cannot be saved, but are retried; PP_OK: all are saved now */
};

/* A model as the screen shows it. Strings are copies, untrusted (sanitise before drawing). */
struct pp_loaded {
    char name[128];
    char type_name[32];
    char path[512];
    char draft_name[128];     /* "" if there is no draft */
    char draft_path[512];     /* "" if there is no draft */
    char draft_reason[256];   /* why there is none, although one was requested */
    char kernels[16];
    int n_threads;
    int64_t n_ctx, n_ctx_train, n_params, n_vocab;
    uint64_t bytes;
    int has_template;
    char instead[96];          /* the substitute for a missing template, and why it was chosen: "vicuna, by its name" */
    unsigned thinking_choices; /* of its template: thinking.h */
};

/* An adapter that fits the model. */
struct pp_adapter_facts {
    const char *kind;         /* "LoRA", "IA3": static */
    int rank, n_targets;      /* rank 0: it has no matrices of low rank */
    int n_invocation;         /* tokens after which it acts; 0: everywhere */
    bool idle;                /* it changes nothing */
    uint64_t bytes;           /* of its tensors in the file */
    char base[64];            /* the model it was made for, as its file names it, without folders: untrusted; or "" */
    char targets[128];        /* "attn_q ffn_up": untrusted */
    struct pp_adapter_places places; /* two whose places conflict cannot be on at once */
};

/* A model that could draft for the loaded one. */
struct pp_drafter_facts {
    uint64_t bytes;           /* of its weights */
    float share;              /* bytes divided by the model's */
    bool bridged;             /* its vocabulary differs: drafts are translated by way of their text */
    bool other_template;      /* it was trained with another chat template */
};

/* A new piece of the reasoning before an answer. */
struct pp_thoughts {
    char *text;               /* owned, or NULL */
    size_t len;
    bool text_was_reasoning;  /* before appending: the answer's text so far turned out to be reasoning */
    bool going_on;            /* the answer has not begun yet */
    int64_t n_tokens;         /* of all reasoning so far */
    uint64_t ns;              /* spent on all reasoning so far */
};

struct pp_event {
    enum pp_event_type type;
    uint64_t request;         /* id of the generation */
    uint64_t done, total, cached;
    int n;
    enum pp_finish finish;
    struct pp_stats stats;
    struct pp_error err;
    struct pp_loaded *info;   /* owned */
    struct pp_adapter_facts *adapter; /* owned */
    struct pp_drafter_facts *drafter; /* owned */
    char *text;               /* owned, NUL-terminated */
    struct pp_draft_runs drafted; /* TEXT: which of its bytes were drafted; owned */
    size_t text_len;
    struct pp_thoughts thoughts;
    struct pp_job *job;       /* owned */
};

struct pp_event *pp_event_new(enum pp_event_type type); /* zeroed; NULL: out of memory */
void pp_event_free(struct pp_event *e);

#endif
