/* conversation.h - a complete conversation, with all its branches: read from the store, written to a file
 * (export.h), read from a file (import.h), added to the store. Any thread that owns its arguments. */
#ifndef PP_SRC_CONVERSATION_H
#define PP_SRC_CONVERSATION_H

#include "src/paths.h"
#include "src/store.h"

/* Messages refer to each other by place, from 1 on, 0 for none: session.head, parent (an earlier place) and
 * context_from (an earlier place, or its own). */
struct pp_conversation {
    struct pp_session session;
    struct pp_message *messages; /* [n] */
    size_t n;
};

/* The place of a message by its id in list[0 .. n), which is sorted by id; 0: not found, or id is 0. */
int64_t pp_message_place(const struct pp_message *list, size_t n, int64_t id);

void pp_conversation_clear(struct pp_conversation *c);
/* id: of the session. */
enum pp_code pp_conversation_read(struct pp_store *st, int64_t id, struct pp_conversation *out, struct pp_error *err);
/* What could not be read of a conversation. */
struct pp_lost {
    size_t messages;
    bool title; /* the session's row, with title and settings; the title is made from the first message instead */
};
/* The same for a database that may be damaged: reads as much as possible. */
enum pp_code pp_conversation_salvage(struct pp_store *st, int64_t id, struct pp_conversation *out, struct pp_lost *lost,
                                     struct pp_error *err);
struct pp_damage;
/* Lists all conversations, the newest first; of those that cannot be read only the id is set. pp_session_list_free.
 * Sets damage->list if there may be more. */
enum pp_code pp_conversation_list(struct pp_store *st, struct pp_session **list, size_t *n, struct pp_damage *damage,
                                  struct pp_error *err);
/* Passes all conversations of a store to `take`, the newest first and one at a time; what it leaves in *c is freed.
 * PP_ERR_FORMAT with *damaged: the database is damaged, and some are incomplete or could not be read at all, but all
 * others were passed. */
typedef enum pp_code pp_conversation_fn(void *user, struct pp_conversation *c, size_t i, size_t n,
                                        struct pp_error *err);
enum pp_code pp_conversation_each(struct pp_store *st, pp_conversation_fn *take, void *user, bool *damaged,
                                  struct pp_error *err);
/* The extent of damage. */
struct pp_damage {
    size_t n, first; /* incomplete conversations, and the index of the first of them */
    size_t messages, titles; /* lost in these */
    bool list;               /* some may be missing from the list */
};
static inline bool pp_damage_any(const struct pp_damage *d)
{
    return d->n || d->list;
}
/* Adds the losses of a conversation, if there are any. */
void pp_damage_add(struct pp_damage *d, size_t conversation, const struct pp_lost *lost);
/* Adds a conversation of n messages that cannot be read at all. */
void pp_damage_add_all(struct pp_damage *d, size_t conversation, int64_t n);
/* Makes the error for a list of n conversations; `first` is the first incomplete one. PP_ERR_FORMAT. */
enum pp_code pp_damage_report(const struct pp_damage *d, size_t n, const struct pp_session *first,
                              struct pp_error *err);
/* Adds it to the store as a new conversation; session gets its id and key. */
enum pp_code pp_conversation_add(struct pp_store *st, struct pp_conversation *c, struct pp_error *err);
/* The branch that ends with the head: its places, first message first, in out [c->n]; returns their number. */
size_t pp_conversation_branch(const struct pp_conversation *c, size_t *out);

/* Removes references to a model, adapters and a template that do not exist on this machine from an imported
 * conversation. True: there were some; `what` names the first. */
bool pp_conversation_settle(struct pp_conversation *c, const struct pp_paths *p, char *what, size_t cap);

#endif
