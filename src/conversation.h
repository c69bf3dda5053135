/* conversation.h - a conversation as a whole, with all its branches: read from the store, written to a file (export.h),
 * read from one (import.h), added to the store. Any thread that owns what it is given. */
#ifndef PP_SRC_CONVERSATION_H
#define PP_SRC_CONVERSATION_H

#include "src/paths.h"
#include "src/store.h"

/* Messages are called by their place, from 1 on: session.head, parent (an earlier place) and context_from (likewise, or
 * its own), 0 for none. */
struct pp_conversation {
    struct pp_session session;
    struct pp_message *messages; /* [n] */
    size_t n;
};

/* The place of a message by its id in list[0 .. n), whose ids ascend; 0: it is none of them, or id is 0. */
int64_t pp_message_place(const struct pp_message *list, size_t n, int64_t id);

void pp_conversation_clear(struct pp_conversation *c);
/* id of a session. */
enum pp_code pp_conversation_read(struct pp_store *st, int64_t id, struct pp_conversation *out, struct pp_error *err);
/* What of a conversation cannot be read. */
struct pp_lost {
    size_t messages;
    bool title; /* and all else that is no message; it is made anew of the first one */
};
/* The same of a database that may be damaged: what can be read of it. */
enum pp_code pp_conversation_salvage(struct pp_store *st, int64_t id, struct pp_conversation *out, struct pp_lost *lost,
                                     struct pp_error *err);
struct pp_damage;
/* All that there are, the newest first; those that cannot be read have an id. pp_session_list_free. Notes in *damage
 * whether there may be more. */
enum pp_code pp_conversation_list(struct pp_store *st, struct pp_session **list, size_t *n, struct pp_damage *damage,
                                  struct pp_error *err);
/* Hands all conversations of a store to `take`, the newest first and one at a time; what it leaves in *c is cleared.
 * PP_ERR_FORMAT with *damaged: the database is, and some are not whole, or could not be read at all; but all else
 * was. */
typedef enum pp_code pp_conversation_take(void *user, struct pp_conversation *c, size_t i, size_t n,
                                          struct pp_error *err);
enum pp_code pp_conversation_each(struct pp_store *st, pp_conversation_take *take, void *user, bool *damaged,
                                  struct pp_error *err);
/* What a damage has cost. */
struct pp_damage {
    size_t n, first; /* conversations that are not whole; which of all is the first of them */
    size_t messages, titles; /* that are lost in them */
    bool list;               /* some may be missing from the list of conversations */
};
static inline bool pp_damage_any(const struct pp_damage *d)
{
    return d->n || d->list;
}
/* One that may be whole. */
void pp_damage_add(struct pp_damage *d, size_t conversation, const struct pp_lost *lost);
/* One of which nothing can be read but that it had n messages. */
void pp_damage_add_all(struct pp_damage *d, size_t conversation, int64_t n);
/* Says it of n conversations, and which the first is. PP_ERR_FORMAT. */
enum pp_code pp_damage_tell(const struct pp_damage *d, size_t n, const struct pp_session *first, struct pp_error *err);
/* Adds it as a new one; session gets its id and key. */
enum pp_code pp_conversation_add(struct pp_store *st, struct pp_conversation *c, struct pp_error *err);
/* The branch that ends in the head: places, first message first, into out [c->n]; returns how many. */
size_t pp_conversation_branch(const struct pp_conversation *c, size_t *out);

/* Takes from a conversation that comes from elsewhere what is not on this machine: its model, adapters and template.
 * True: there was such; `what` names the first. */
bool pp_conversation_settle(struct pp_conversation *c, const struct pp_paths *p, char *what, size_t cap);

#endif
