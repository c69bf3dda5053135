/* cmd_run.h - internals of `pippin run`: the run itself (cmd_run.c), its prompt (cmd_run_prompt.c), and what it
 * stores (cmd_run_session.c). */
#ifndef PP_SRC_CMD_RUN_H
#define PP_SRC_CMD_RUN_H

#include "engine/base/buf.h"
#include "engine/grammar.h"
#include "src/branch.h"
#include "src/cmd_common.h"
#include "src/parts.h"
#include "src/store.h"
#include "src/thinking.h"

/* The conversation that an answer belongs to. With `kept` false (the default) nothing is read or written. */
struct run_session {
    bool stored;
    bool fresh;               /* it is created by this run */
    struct pp_store *store;
    struct pp_session session;
    struct pp_branch branch;  /* the conversation so far, and the new question */
    char *template_source;    /* source of the chat template chosen in the conversation, or NULL */
    int lock_fd;
    int64_t question_id, answer_id;
    uint64_t saved_ns;        /* time when the answer was last saved */
    size_t saved_len;
};

struct run {
    struct pp_options options; /* those of the command line, completed by the conversation's stored choices */
    const struct pp_options *o;
    const struct pp_paths *p;
    const struct pp_cancel *cancel;
    struct pp_cli_model target, draft;
    struct pp_seq *seq, *draft_seq;
    struct run_session session;
    struct pp_sampling sampling;
    struct pp_grammar *grammar; /* what the answer must match; or NULL */
    struct pp_buf question;
    struct pp_buf written;    /* as the model wrote it, before it is split */
    struct pp_buf written_drafted; /* for each byte of `written`, whether its token was drafted */
    struct pp_draft_runs drafted; /* which bytes of the answer were drafted */
    struct pp_reasoning marks;
    enum pp_answer_begin begins;
    struct pp_parts parts;
    struct pp_buf answer, reasoning;
    size_t shown, reasoning_shown; /* bytes of them that have been shown */
    size_t n_out;             /* bytes on stdout */
    bool was_reasoning;       /* what was written to stdout turned out to be reasoning */
    bool reasoning_reported;  /* its end was reported */
    bool reader_gone;         /* the reader of stdout has closed it */
    bool too_long;            /* the question alone does not fit into the context */
    bool asked;               /* the prompt was passed to the model */
    int64_t n_tokens;
    enum pp_finish finish;
    uint64_t began_ns, loaded_ns;
    struct pp_cli_bar bar;
};

/* What is stored with an answer. */
struct run_note {
    const char *model;        /* "name (Q4_K_M)" */
    const char *adapters;     /* JSON array */
    const char *params;       /* JSON object: the parameters of this answer */
    const char *settings;     /* JSON object: the settings of the conversation */
};

/* Reads what --grammar-file or --json-schema gives; *out is NULL without either. */
enum pp_code run_grammar(const struct pp_options *o, struct pp_grammar **out, struct pp_error *err);
/* Makes the prompt: the conversation and the question, rendered by the chat template, or with --raw the question as
 * it is. If it does not fit into the context, does what --overflow says, which may include generating a summary.
 * *ids [*n]: pp_free. */
enum pp_code run_prompt(struct run *r, int32_t **ids, size_t *n, struct pp_error *err);

/* --save, --continue, --resume: opens the store, finds the conversation and locks it. *rs can always be passed to
 * run_session_close. */
enum pp_code run_session_open(struct run_session *rs, const struct pp_options *o, const struct pp_paths *p,
                              struct pp_error *err);
/* Appends the question to the branch; if the conversation is kept, stores it together with an empty answer. */
enum pp_code run_session_ask(struct run_session *rs, const struct pp_options *o, const struct pp_paths *p,
                             const struct pp_buf *question, const struct run_note *note, struct pp_error *err);
/* Stores the answer so far if the last time was at least half a second ago. Call it often, also while waiting. */
enum pp_code run_session_progress(struct run_session *rs, const struct pp_buf *answer, const struct pp_buf *reasoning,
                                  struct pp_error *err);
enum pp_code run_session_end(struct run_session *rs, const struct pp_buf *answer, const struct pp_buf *reasoning,
                             enum pp_message_state state, const char *stats, int64_t n_tokens, struct pp_error *err);
void run_session_close(struct run_session *rs);

/* The conversation's snapshot. One that does not match is reported and ignored; one that cannot be written is
 * reported. */
void run_snapshot_load(const struct run_session *rs, const struct pp_options *o, const struct pp_paths *p,
                       struct pp_seq *seq, const struct pp_model *model, const int32_t *ids, size_t n);
void run_snapshot_save(const struct run_session *rs, const struct pp_options *o, const struct pp_paths *p,
                       struct pp_seq *seq, const struct pp_model *model);

#endif
