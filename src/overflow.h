/* overflow.h - what happens when a conversation outgrows the context: which of its turns the model still sees.
 *
 * A turn is a message of the user and all messages up to the next one. Only whole turns are dropped, the oldest
 * first; the system prompt and the last turn stay. */
#ifndef PP_SRC_OVERFLOW_H
#define PP_SRC_OVERFLOW_H

#include <stdbool.h>

#include "src/prompt.h"

enum pp_overflow {
    PP_OVERFLOW_ASK,        /* the user decides each time; where nobody can be asked: stop */
    PP_OVERFLOW_STOP,       /* the user decides each time; without a user: stop */
    PP_OVERFLOW_SHIFT,      /* drop the oldest turns */
    PP_OVERFLOW_SUMMARISE,  /* drop the oldest turns, and have the model summarise them */
    PP_OVERFLOW_SLIDE,      /* drop them, and move what was computed of the others: not exact (pp_seq_cut) */
};
/* "ask", "stop", "shift", "summarise" (also "summarize"), "slide"; -1 for others. */
int pp_overflow_by_name(const char *name);
const char *pp_overflow_name(enum pp_overflow o);
/* Whether turns are dropped without asking. */
bool pp_overflow_drops(enum pp_overflow o);

/* The value of "finish" in the stored statistics of an answer that was refused because its question alone does not
 * fit: such a question is left out of later prompts. */
#define PP_OVERFLOW_TOO_LONG "too-long"

/* The messages with a request to summarise them appended; NULL: out of memory. pp_free. */
char *pp_overflow_asking(const char *messages);
/* The note made of the model's summary, without surrounding white space; NULL: out of memory. pp_free. */
char *pp_overflow_note(const char *summary);

/* Tokens reserved for an answer when turns are dropped, and for a summary. */
int64_t pp_overflow_answer_room(int64_t n_ctx);
int64_t pp_overflow_note_room(int64_t n_ctx);

/* Advice for a context that is too small, "a larger --ctx-size, up to 131,072", if the model was trained for more
 * than n_ctx tokens; otherwise "". */
struct pp_larger {
    char text[72];
};
struct pp_larger pp_overflow_larger(int64_t n_ctx, int64_t n_ctx_train);

/* The prompt for in->messages_json in a context of n_ctx tokens, for a model trained with n_ctx_train. *ids [*n] is
 * the caller's (pp_free).
 *
 * SHIFT and SLIDE: if it does not fit with some room for an answer, omits the first *dropped messages (not counting
 * the system prompt; 0: none). The others: if it does not fit, PP_ERR_CONTEXT, and *dropped is the number that SHIFT
 * would drop; 0 if that would not help, as the last turn alone is too long. SUMMARISE reserves room as SHIFT does. */
enum pp_code pp_overflow_prompt(const struct pp_prompt_input *in, int64_t n_ctx, int64_t n_ctx_train,
                                enum pp_overflow how, int32_t **ids, size_t *n, size_t *dropped, struct pp_error *err);

#endif
