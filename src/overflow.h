/* overflow.h - what happens when a conversation grows out of the context: which of its turns the model is still given.
 *
 * A turn is a message of the user and what follows it up to the next one. Only whole turns are dropped, the oldest
 * first; the system prompt and the last turn stay. */
#ifndef PP_SRC_OVERFLOW_H
#define PP_SRC_OVERFLOW_H

#include <stdbool.h>

#include "src/prompt.h"

enum pp_overflow {
    PP_OVERFLOW_ASK,        /* the user decides each time; where nobody can be asked: stop */
    PP_OVERFLOW_STOP,       /* PP_ERR_CONTEXT */
    PP_OVERFLOW_SHIFT,      /* drop the oldest turns */
    PP_OVERFLOW_SUMMARISE,  /* the same, with a summary by the model in their place */
    PP_OVERFLOW_SLIDE,      /* drop them, and keep what was computed of the others: not exact (pp_seq_cut) */
};
/* "ask", "stop", "shift", "summarise" (also "summarize"), "slide"; -1 for other words. */
int pp_overflow_by_name(const char *name);
const char *pp_overflow_name(enum pp_overflow o);
/* True for those that drop turns without a question. */
bool pp_overflow_drops(enum pp_overflow o);

/* "finish" among the figures that are kept with an answer that was refused because its question alone does not fit:
 * such a question is not sent again with those that follow. */
#define PP_OVERFLOW_TOO_LONG "too-long"

/* The messages with a request for a summary of them behind; NULL: out of memory. pp_free. */
char *pp_overflow_asking(const char *messages);
/* What the model has written to that, without blanks around it; NULL: out of memory. pp_free. */
char *pp_overflow_note(const char *summary);

/* Room that is kept for an answer when turns are dropped, and for a summary, in tokens. */
int64_t pp_overflow_answer_room(int64_t n_ctx);
int64_t pp_overflow_note_room(int64_t n_ctx);

/* What a context that is too small is to become, "a larger --ctx-size, up to 131,072", where the model was trained for
 * more than these n_ctx tokens; else "". */
struct pp_larger {
    char text[72];
};
struct pp_larger pp_overflow_larger(int64_t n_ctx, int64_t n_ctx_train);

/* The prompt of in->messages_json, for a context of n_ctx tokens, of a model that was trained for n_ctx_train. *ids
 * [*n] is the caller's (pp_free).
 *
 * SHIFT and SLIDE: if it does not fit with some room for an answer, without the first *dropped messages (the system
 * prompt is not counted; 0: all of them are there). The others: if it does not fit, PP_ERR_CONTEXT, and *dropped is how
 * many SHIFT would drop; 0 if that would not help: the last turn alone is too long. SUMMARISE looks ahead as SHIFT
 * does. */
enum pp_code pp_overflow_prompt(const struct pp_prompt_input *in, int64_t n_ctx, int64_t n_ctx_train,
                                enum pp_overflow how, int32_t **ids, size_t *n, size_t *dropped, struct pp_error *err);

#endif
