/* branch.h - the messages on screen, in memory: one branch of a conversation's tree, first message first.
 *
 * Texts are owned here and grow geometrically while an answer streams in. Every change of a message gives it a revision
 * that no message had before, so that caches of wrapped lines can be keyed by it. Not thread-safe: the UI thread's. */
#ifndef PP_SRC_BRANCH_H
#define PP_SRC_BRANCH_H

#include "engine/base/buf.h"
#include "src/controller.h"
#include "src/store.h"

struct pp_branch_item {
    struct pp_chat_message msg; /* msg.text and msg.reasoning point at the data of these, or at "" */
    struct pp_buf text, reasoning;
    struct pp_guessed guessed;  /* msg.guessed points at it */
    struct pp_buf note;         /* with msg.context_from: what the model is told of the messages before that one */
};

struct pp_branch {
    struct pp_branch_item *items; /* [n] */
    size_t n, cap;
    uint64_t revision;            /* the last one given out */
};

/* Appends a message with a copy of the text; NULL: out of memory. The pointer lives until the next append. */
struct pp_branch_item *pp_branch_append(struct pp_branch *b, enum pp_role role, const char *text, size_t len);
/* Adds to the text of message i; false: out of memory, the text is as before. */
bool pp_branch_grow(struct pp_branch *b, size_t i, const char *text, size_t len);
/* Adds to the reasoning of message i; false as above. */
bool pp_branch_think(struct pp_branch *b, size_t i, const char *text, size_t len);
void pp_branch_set_state(struct pp_branch *b, size_t i, enum pp_message_state state);
/* Notes the adapters of an answer, as people read them. json: as the store has them; "" or NULL: none. */
void pp_branch_set_adapters(struct pp_branch_item *it, const char *json);
void pp_branch_touch(struct pp_branch *b, size_t i); /* gives message i a new revision */
void pp_branch_truncate(struct pp_branch *b, size_t n);
/* Replaces everything with what the store gave. On failure (out of memory) the branch is as before. */
bool pp_branch_assign(struct pp_branch *b, const struct pp_message *list, size_t n);
void pp_branch_free(struct pp_branch *b);

/* The index of a message by its id; b->n: it is none of the branch. */
size_t pp_branch_place(const struct pp_branch *b, int64_t message);

/* Where the context of an answer behind the first n messages begins: the index of the first message that the model
 * sees, 0 for all. The last of the n messages that has this written down (pp_branch_set_context) decides. *note: what
 * the model is told of the messages before; "" for nothing. It lives until the branch is changed. */
size_t pp_branch_context(const struct pp_branch *b, size_t n, const char **note);
/* Writes a beginning and a note down in message i. from: the id of the context's first message; 0: none is written
 * down any more. False: out of memory, nothing changed. */
bool pp_branch_set_context(struct pp_branch *b, size_t i, int64_t from, const char *note);
/* The system prompt with the note behind it; pp_free; NULL: out of memory. */
char *pp_branch_system(const char *system, const char *note);

/* The branch as the model is to see it: a JSON array of {"role", "content"}, and of answers with reasoning
 * "reasoning_content", the system prompt first if there is one.
 * Answers without text (stopped before they began) are left out, and questions that then follow each other become one,
 * because many templates insist on turns; but those that were too long to be answered are left out, since what follows
 * would not fit behind them either.
 * n: how many messages of the branch. NULL: out of memory; release with pp_free. */
char *pp_branch_json(const struct pp_branch *b, size_t n, const char *system);
/* The same of messages from to n - 1. ids [*n_ids] receives the id of the first message of every object but the
 * system's; it has room for n - from; NULL: not wanted. */
char *pp_branch_json_from(const struct pp_branch *b, size_t from, size_t n, const char *system, int64_t *ids,
                          size_t *n_ids);

/* Such an array with one more message of the user behind it. messages may be NULL; NULL: out of memory. pp_free. */
char *pp_messages_ask(const char *messages, const char *text);

#endif
