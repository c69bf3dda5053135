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
    struct pp_chat_message msg; /* msg.text points at text.data, or at "" */
    struct pp_buf text;
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
void pp_branch_set_state(struct pp_branch *b, size_t i, enum pp_message_state state);
void pp_branch_touch(struct pp_branch *b, size_t i); /* gives message i a new revision */
void pp_branch_truncate(struct pp_branch *b, size_t n);
/* Replaces everything with what the store gave. On failure (out of memory) the branch is as before. */
bool pp_branch_assign(struct pp_branch *b, const struct pp_message *list, size_t n);
void pp_branch_free(struct pp_branch *b);

/* The branch as the model is to see it: a JSON array of {"role", "content"}, the system prompt first if there is one.
 * Answers without text (stopped before they began) are left out, and questions that then follow each other become one,
 * because many templates insist on turns. n: how many messages of the branch. NULL: out of memory; release with
 * pp_free. */
char *pp_branch_json(const struct pp_branch *b, size_t n, const char *system);

#endif
