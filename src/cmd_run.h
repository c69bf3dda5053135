/* cmd_run.h - the inside of `pippin run`: the run itself (cmd_run.c), its prompt (cmd_run_prompt.c), and what is kept
 * (cmd_run_session.c). */
#ifndef PP_SRC_CMD_RUN_H
#define PP_SRC_CMD_RUN_H

#include "engine/base/buf.h"
#include "src/branch.h"
#include "src/cmd_common.h"
#include "src/parts.h"
#include "src/store.h"
#include "src/thinking.h"

/* The conversation that an answer belongs to. With `kept` false (the default) nothing is read or written. */
struct run_session {
    bool kept;
    bool fresh;               /* not in the database before this run */
    struct pp_store *store;
    struct pp_session session;
    struct pp_branch branch;  /* what was said before, and the new question */
    char *template_source;    /* the conversation's own choice of a chat template, or NULL */
    int lock_fd;
    int64_t question_id, answer_id;
    uint64_t saved_ns;        /* when the answer was last written */
    size_t saved_len;
};

struct run {
    struct pp_options options; /* those of the command line and what the conversation remembers */
    const struct pp_options *o;
    const struct pp_paths *p;
    const struct pp_cancel *cancel;
    struct pp_cli_model target, draft;
    struct pp_seq *seq, *draft_seq;
    struct run_session session;
    struct pp_sampling sampling;
    struct pp_buf question;
    struct pp_buf written;    /* as the model wrote it, not taken apart yet */
    struct pp_buf was_guessed; /* for each byte of that, whether its token had been guessed */
    struct pp_guessed guessed; /* bytes of the answer */
    struct pp_reasoning marks;
    enum pp_answer_begin begins;
    struct pp_parts parts;
    struct pp_buf answer, reasoning;
    size_t shown, reasoning_shown; /* of these */
    size_t n_out;             /* bytes on stdout */
    bool was_reasoning;       /* what is there is no answer */
    bool reasoning_told;      /* that it has ended */
    bool reader_gone;         /* nobody reads stdout any more */
    bool too_long;            /* the question alone does not fit into the context */
    bool asked;               /* the prompt went to the model */
    int64_t n_tokens;
    enum pp_finish finish;
    uint64_t began_ns, loaded_ns;
    struct pp_cli_bar bar;
};

/* What an answer is noted with. */
struct run_note {
    const char *model;        /* "name (Q4_K_M)" */
    const char *adapters;     /* JSON array */
    const char *params;       /* JSON object: what the answer is made with */
    const char *settings;     /* JSON object: what the conversation remembers */
};

/* The prompt: the conversation and the question in the words of the chat template, or with --raw the question as it is.
 * If it does not fit into the context, what --overflow says; a summary is written here. *ids [*n]: pp_free. */
enum pp_code run_prompt(struct run *r, int32_t **ids, size_t *n, struct pp_error *err);

/* --save, --continue, --resume: opens the store and finds and locks the conversation. Always leaves *rs fit for
 * run_session_close. */
enum pp_code run_session_open(struct run_session *rs, const struct pp_options *o, const struct pp_paths *p,
                              struct pp_error *err);
/* Puts the question at the end of the branch; if the conversation is kept, commits it and the place of its answer. */
enum pp_code run_session_ask(struct run_session *rs, const struct pp_options *o, const struct pp_paths *p,
                             const struct pp_buf *question, const struct run_note *note, struct pp_error *err);
/* Writes the answer so far if the last time is half a second ago. Call it often, also while waiting. */
enum pp_code run_session_progress(struct run_session *rs, const struct pp_buf *answer, const struct pp_buf *reasoning,
                                  struct pp_error *err);
enum pp_code run_session_end(struct run_session *rs, const struct pp_buf *answer, const struct pp_buf *reasoning,
                             enum pp_message_state state, const char *stats, int64_t n_tokens, struct pp_error *err);
void run_session_close(struct run_session *rs);

/* The snapshot beside the conversation. A snapshot that does not fit is said and left; one that cannot be written is
 * said. */
void run_snapshot_load(const struct run_session *rs, const struct pp_options *o, const struct pp_paths *p,
                       struct pp_seq *seq, const struct pp_model *model, const int32_t *ids, size_t n);
void run_snapshot_save(const struct run_session *rs, const struct pp_options *o, const struct pp_paths *p,
                       struct pp_seq *seq, const struct pp_model *model);

#endif
