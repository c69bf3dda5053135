/* branch.h - the messages on the screen, in memory: one branch of a conversation's tree, first message first.
 *
 * Texts are owned here and grow geometrically while an answer is written. Every change gives the message a revision
 * that no message has had before, which serves as the key of layout caches. Not thread-safe: UI thread. */
#ifndef PP_SRC_BRANCH_H
#define PP_SRC_BRANCH_H

#include "engine/base/buf.h"
#include "src/controller.h"
#include "src/store.h"

struct pp_branch_item {
    struct pp_chat_message msg; /* msg.text and msg.reasoning point at the data of these, or at "" */
    struct pp_buf text, reasoning;
    struct pp_draft_runs drafted; /* msg.drafted points at it */
    struct pp_buf note;         /* with msg.context_from: what the model is told about the messages before that one */
};

struct pp_branch {
    struct pp_branch_item *items; /* [n] */
    size_t n, cap;
    uint64_t revision;            /* the last one that was assigned */
};

/* Appends a message with a copy of the text; NULL: out of memory. The pointer is valid until the next append. */
struct pp_branch_item *pp_branch_append(struct pp_branch *b, enum pp_role role, const char *text, size_t len);
/* Appends to the text of message i; false: out of memory, the text is unchanged. */
bool pp_branch_grow(struct pp_branch *b, size_t i, const char *text, size_t len);
/* Appends to the reasoning of message i; false as above. */
bool pp_branch_think(struct pp_branch *b, size_t i, const char *text, size_t len);
void pp_branch_set_state(struct pp_branch *b, size_t i, enum pp_message_state state);
/* Sets the adapters of an answer, for display. json: as in the store; "" or NULL: none. */
void pp_branch_set_adapters(struct pp_branch_item *it, const char *json);
void pp_branch_touch(struct pp_branch *b, size_t i); /* gives message i a new revision */
void pp_branch_truncate(struct pp_branch *b, size_t n);
/* Replaces everything by the messages read from the store. On failure (out of memory) the branch is unchanged. */
bool pp_branch_assign(struct pp_branch *b, const struct pp_message *list, size_t n);
void pp_branch_free(struct pp_branch *b);

/* The index of a message by its id; b->n if it is not in the branch. */
size_t pp_branch_place(const struct pp_branch *b, int64_t message);

/* Where the context of an answer after the first n messages begins: the index of the first message that the model
 * sees; 0: all. Determined by the last of the n messages that has it set (pp_branch_set_context). *note: what the
 * model is told about the messages before; "" for nothing. Valid until the branch is changed. */
size_t pp_branch_context(const struct pp_branch *b, size_t n, const char **note);
/* Sets the beginning of the context and the note of message i. from: the id of the first message in the context; 0:
 * unsets both. False: out of memory, nothing changed. */
bool pp_branch_set_context(struct pp_branch *b, size_t i, int64_t from, const char *note);
/* The system prompt followed by the note; pp_free; NULL: out of memory. */
char *pp_branch_system(const char *system, const char *note);

/* The branch for the model: a JSON array of {"role", "content"}, for answers with reasoning also
 * "reasoning_content", beginning with the system prompt if there is one. Answers without text (cancelled before they
 * began) are left out, and the questions around them are joined, because many templates require alternating roles.
 * Questions that were too long to be answered are left out with what belongs to their turn, since what follows would
 * not fit after them either. n: the number of messages. NULL: out of memory; release with pp_free. */
char *pp_branch_json(const struct pp_branch *b, size_t n, const char *system);
/* The same for messages from .. n - 1. ids [*n_ids] receives the id of the first message of each object except the
 * system prompt; it has room for n - from; NULL: not wanted. */
char *pp_branch_json_from(const struct pp_branch *b, size_t from, size_t n, const char *system, int64_t *ids,
                          size_t *n_ids);

/* The same array with a message of the user appended. messages may be NULL; NULL: out of memory. pp_free. */
char *pp_messages_ask(const char *messages, const char *text);

#endif
