/* backend.h - where answers come from: the local worker today, remote engines later.
 *
 * All calls return at once and may be made by the UI thread only; what happens comes as events (event.h). Requests are
 * copied. */
#ifndef PP_SRC_BACKEND_H
#define PP_SRC_BACKEND_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "src/guessed.h"
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
    const char *imatrix;            /* the importance matrix that weighs this; or NULL */
    struct pp_engine_options engine;
    uint64_t snapshot_quota;        /* 0: PP_SNAPSHOT_QUOTA; or PP_SNAPSHOTS_OFF */
};

struct pp_generate_request {
    uint64_t request;               /* number chosen by the caller; comes back in events */
    const char *session_key;        /* whose pages to use; NULL: temporary */
    bool temporary;                 /* no snapshot is written or read */
    bool unkept;                    /* of a conversation of which nothing goes to the disk: likewise */
    const char *messages_json;      /* the branch, system prompt first if there is one */
    const char *continue_text;      /* an answer begun that is to be continued, or NULL */
    const struct pp_guessed *continue_guessed; /* ... which bytes of it; or NULL */
    const char *continue_reasoning; /* ... and its reasoning, or NULL; with its tokens and its time */
    int64_t reasoning_tokens;
    uint64_t reasoning_ns;
    int64_t continue_tokens;        /* ... those of both; 0: not known, they are counted */
    bool skip_reasoning;            /* the model is to answer at once, whatever its template says */
    enum pp_thinking thinking;      /* what the template's switch says, if it has one */
    const char *template_source;    /* Jinja, or NULL: the model's own (or "plain" if it has none) */
    const struct pp_adapter_choice *adapters;
    int n_adapters;
    bool use_draft;                 /* the draft model guesses, if there is one */
    bool lookup;                    /* guess what followed the same words before */
    int draft_max;                  /* guesses at a time at most; 0: the engine's own */
    bool draft_always;              /* as in struct pp_gen_options */
    float draft_p_min;              /* likewise */
    struct pp_sampling sampling;
    int64_t max_tokens;             /* -1: no limit */
    const char *const *stops;
    int n_stops;
    bool ignore_end;                /* go on past end tokens */
    int64_t message_id;             /* where the io thread saves the answer; 0: nowhere */
    enum pp_overflow overflow;      /* when the prompt does not fit: PP_EVENT_OVERFLOW, and SHIFT goes on */
    bool background;                /* nobody waits for it: all others come first */
};

struct pp_backend {
    const struct pp_backend_ops *ops;
};

struct pp_backend_ops {
    const char *name;
    void (*load)(struct pp_backend *b, const struct pp_load_request *r);
    /* Answers are written side by side, several of one conversation too. */
    void (*generate)(struct pp_backend *b, const struct pp_generate_request *r);
    /* The generation of that number, or all so far (0), within 50 ms; the others go on. */
    void (*cancel)(struct pp_backend *b, uint64_t request);
    /* Which conversation is on the screen: its answers come first. NULL: none of those that have a key. */
    void (*show)(struct pp_backend *b, const char *session_key);
    /* The conversation on the screen will be asked something: what was saved of it may be read from the disk while the
     * user types. Nothing is computed. Of the request the key, the messages, the template, the adapters and the
     * overflow count. */
    void (*prepare)(struct pp_backend *b, const struct pp_generate_request *r);
    /* The user left this conversation: its pages may go once they are saved. */
    void (*leave)(struct pp_backend *b, const char *session_key);
    /* Forget snapshot and pages: the conversation was deleted. */
    void (*forget)(struct pp_backend *b, const char *session_key);
    /* Two questions, answered between the passes; NULL: it knows nothing about adapters. Whether an adapter fits the
     * model: PP_EVENT_ADAPTER. What of a prompt would be computed: PP_EVENT_COST; of the request only the number, the
     * messages, the template, the adapters and the overflow count. False: it cannot be asked now, and no answer will
     * come. */
    bool (*inspect)(struct pp_backend *b, const char *adapter);
    bool (*cost)(struct pp_backend *b, const struct pp_generate_request *r);
    /* Draft models; NULL: it has none. Whether one could guess for the model that is loaded: PP_EVENT_DRAFTER, as with
     * inspect. Another one from the next answer on, without adapters, while the model stays: PP_EVENT_DRAFT. */
    bool (*inspect_draft)(struct pp_backend *b, const char *path);
    void (*draft)(struct pp_backend *b, const char *path);
    void (*close)(struct pp_backend *b);                           /* cancel, save, end; PP_EVENT_CLOSED when done */
    void (*free)(struct pp_backend *b);                            /* after CLOSED: joins and releases */
};

#endif
