/* backend.h - the interface of what generates answers: the local worker today, remote engines later.
 *
 * All calls are the UI thread's and return at once; results come as events (event.h). Requests are copied. */
#ifndef PP_SRC_BACKEND_H
#define PP_SRC_BACKEND_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "src/draft_runs.h"
#include "src/io.h"
#include "src/overflow.h"
#include "src/queue.h"
#include "src/thinking.h"

struct pp_adapter_choice {
    const char *path;
    float scale;
};

struct pp_load_request {
    const char *model;              /* path */
    const char *draft;              /* path, or NULL */
    const struct pp_adapter_choice *draft_adapters; /* [n_draft_adapters]: of the draft */
    int n_draft_adapters;
    const char *quant;              /* what a model folder is quantised to while it is loaded; or NULL */
    const char *imatrix;            /* file of an importance matrix for that; or NULL */
    struct pp_engine_options engine;
    uint64_t snapshot_quota;        /* 0: PP_SNAPSHOT_QUOTA; or PP_SNAPSHOTS_OFF */
};

struct pp_generate_request {
    uint64_t request;               /* id chosen by the caller; comes back in events */
    const char *session_key;        /* the conversation whose pages to use; NULL: temporary */
    bool temporary;                 /* the pages are released after the answer, and no snapshot is written or read */
    bool no_snapshots;              /* of the conversation: its pages stay in memory, but no snapshot is written or
                                     * read */
    const char *messages_json;      /* the branch, system prompt first if there is one */
    const char *continue_text;      /* an unfinished answer to continue, or NULL */
    const struct pp_draft_runs *continue_drafted; /* ... which of its bytes were drafted; or NULL */
    const char *continue_reasoning; /* ... its reasoning, or NULL; with the tokens and the time that this took */
    int64_t reasoning_tokens;
    uint64_t reasoning_ns;
    int64_t continue_tokens;        /* ... tokens of answer and reasoning; 0: not known, they are counted */
    bool skip_reasoning;            /* the model is to answer at once, whatever its template says */
    enum pp_thinking thinking;      /* the setting of the template's switch, if it has one */
    const char *template_source;    /* Jinja, or NULL: the model's own (or "plain" if it has none) */
    const struct pp_adapter_choice *adapters;
    int n_adapters;
    bool use_draft;                 /* draft with the draft model, if there is one */
    bool lookup;                    /* this and the next three as in struct pp_gen_options */
    int draft_max;
    bool draft_always;
    float draft_p_min;
    struct pp_sampling sampling;
    int64_t max_tokens;             /* -1: no limit */
    const char *const *stops;
    int n_stops;
    bool ignore_end;                /* go on past end-of-text tokens */
    int64_t message_id;             /* where the io thread saves the answer; 0: nowhere */
    enum pp_overflow overflow;      /* if the prompt does not fit: PP_EVENT_OVERFLOW, and SHIFT goes on */
    bool background;                /* the user does not wait for it: all others come first */
};

struct pp_backend {
    const struct pp_backend_ops *ops;
};

struct pp_backend_ops {
    const char *name;
    void (*load)(struct pp_backend *b, const struct pp_load_request *r);
    /* Starts an answer. Several run at once, also of one conversation. */
    void (*generate)(struct pp_backend *b, const struct pp_generate_request *r);
    /* Stops the generation of that id, or all so far (0), within 50 ms; the others go on. */
    void (*cancel)(struct pp_backend *b, uint64_t request);
    /* Tells which conversation is on the screen: its answers come first. NULL: none that has a key. */
    void (*show)(struct pp_backend *b, const char *session_key);
    /* The conversation on the screen is likely to be continued: its snapshot may be read while the user types. Nothing
     * is computed. Only the request's key, messages, template, adapters and overflow are used. */
    void (*prepare)(struct pp_backend *b, const struct pp_generate_request *r);
    /* The user left this conversation: its pages may be released once they are saved. */
    void (*leave)(struct pp_backend *b, const char *session_key);
    /* The conversation was deleted: drops its snapshot and pages. */
    void (*forget)(struct pp_backend *b, const char *session_key);
    /* Two queries, answered between passes; NULL: not supported. inspect: does an adapter fit the model?
     * PP_EVENT_ADAPTER. cost: how much of a prompt would have to be computed? PP_EVENT_COST; only the request's id,
     * messages, template, adapters and overflow are used. False: not possible now, no event will come. */
    bool (*inspect)(struct pp_backend *b, const char *adapter);
    bool (*cost)(struct pp_backend *b, const struct pp_generate_request *r);
    /* Draft models; NULL: not supported. inspect_draft: could one draft for the loaded model? PP_EVENT_DRAFTER, as with
     * inspect. draft: uses one from the next answer on, without adapters, keeping the model: PP_EVENT_DRAFT. */
    bool (*inspect_draft)(struct pp_backend *b, const char *path);
    void (*draft)(struct pp_backend *b, const char *path);
    void (*close)(struct pp_backend *b);                           /* cancel, save, end; PP_EVENT_CLOSED when done */
    void (*free)(struct pp_backend *b);                            /* after CLOSED: joins and frees */
};

#endif
