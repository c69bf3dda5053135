/* store.h - conversations in SQLite: sessions, messages as a tree, full-text search. Schema: store_schema.c and
 * pippin-formats(5).
 *
 * A struct pp_store is one connection: one thread at a time. Several programs may open the same database (WAL, busy
 * timeout); writers wait for each other, at most 5 s, then PP_ERR_BUSY. Everything is committed when a function
 * returns. */
#ifndef PP_SRC_STORE_H
#define PP_SRC_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/cancel.h"
#include "engine/base/error.h"

struct pp_store;

/* Creates the file (0600) and its folder (0700) if needed; migrates older versions; refuses newer ones
 * (PP_ERR_UNSUPPORTED) and damaged ones (PP_ERR_FORMAT, saying how to recover). Path ":memory:": nothing of it
 * goes to the disk. */
enum pp_code pp_store_open(const char *path, struct pp_store **out, struct pp_error *err);
/* A database that is there, for a question beside those who work with it: nothing is made, migrated or checked, and who
 * writes to it is waited for a tenth of a second at most. A question that its version cannot answer fails. */
enum pp_code pp_store_open_to_read(const char *path, struct pp_store **out, struct pp_error *err);
/* pp_store_open for who only looks: on a full disk, or one that cannot be written to, what is there can be read, and
 * where there is nothing, nothing is found. */
enum pp_code pp_store_open_to_look(const char *path, struct pp_store **out, struct pp_error *err);
/* A copy, in a temporary file without a name, of a database of any version that stays as it is. PP_ERR_FORMAT: it is
 * damaged, or another program's. */
enum pp_code pp_store_open_copy(const char *path, const struct pp_cancel *cancel, struct pp_store **out,
                                struct pp_error *err);
/* The same bit by bit: begin; more, of some megabytes each, until it is done; end, which takes over the copy. Free:
 * instead of end. Any thread, one at a time. */
struct pp_store_copy;
enum pp_code pp_store_copy_begin(const char *path, struct pp_store_copy **out, struct pp_error *err);
enum pp_code pp_store_copy_more(struct pp_store_copy *c, bool *done, struct pp_error *err);
enum pp_code pp_store_copy_end(struct pp_store_copy *c, struct pp_store **out, struct pp_error *err);
void pp_store_copy_free(struct pp_store_copy *c);
/* Whether this pippin can use an open store, and all of its pages can be read: takes a second for some 300 MB. path:
 * for the message. PP_ERR_FORMAT: it is damaged, or none of ours; PP_ERR_UNSUPPORTED: a newer pippin's. */
enum pp_code pp_store_check(struct pp_store *s, const char *path, struct pp_error *err);
bool pp_store_is_database(const char *path); /* whosever */
void pp_store_close(struct pp_store *s);
/* What takes long ends with PP_ERR_CANCELLED, undone, once this is requested. */
void pp_store_cancel_with(struct pp_store *s, const struct pp_cancel *cancel);
/* Copies everything into a new database (0600), as it is at one moment, also while others write. PP_ERR_IO: there is a
 * file at path already, which stays as it is, or it cannot be written, and then none is there. */
enum pp_code pp_store_backup(struct pp_store *s, const char *path, struct pp_error *err);

/* The file was deleted, moved or replaced since it was opened: changes fail with PP_ERR_IO, what it held can still be
 * read. */
bool pp_store_moved(struct pp_store *st);
/* From here on changes are made all the same, to be read once more before it is closed; then they are gone. */
void pp_store_set_adrift(struct pp_store *st);

/* All changes between these two are committed together, by the second: what was saved one by one would have waited for
 * the disk each time. Each is still made as a whole, or not at all if it fails. Other programs' changes wait meanwhile:
 * a tenth of a second is enough. `what` is said of a failure ("save the question") and stays the caller's; `code` is
 * how it went so far: if that is an error, or the end fails, all of the batch is undone, and that is returned. */
enum pp_code pp_store_batch_begin(struct pp_store *st, const char *what, struct pp_error *err);
enum pp_code pp_store_batch_end(struct pp_store *st, enum pp_code code, struct pp_error *err);

/* --- sessions ---------------------------------------------------------------------------------------------------- */

struct pp_session {
    int64_t id;
    char key[17];          /* 16 hexadecimal digits, random: the ID that users see and file names carry */
    char *title;           /* "" until it has one */
    char *model;           /* path or name as the user gave it; "" is the starter */
    char *template_name;   /* "" is the model's own */
    char *system;          /* system prompt; "" for none */
    char *adapters;        /* JSON array of {"path": ..., "scale": ...} */
    char *settings;        /* JSON object: sampling parameters that differ from the default, "draft": true, ... */
    int64_t created, updated; /* seconds since the epoch */
    int created_part;      /* ... and milliseconds behind those of `created`; 0: perhaps not known */
    int64_t updated_ms;    /* the same in milliseconds; read only: its place in the list */
    int64_t head;          /* message at the tip of the branch on screen, 0 if there is none */
    int64_t n_messages;    /* on all branches; read only */
    int64_t hit;           /* found by a search: the message, or the newest one if the title matches; else 0 */
    char *excerpt;         /* ... some words around what was found; NULL: the title matches */
};
void pp_session_clear(struct pp_session *s); /* frees the strings */

/* Fills id, key, created and its part, updated of *s; the strings are taken as given (NULL is ""). */
enum pp_code pp_store_session_add(struct pp_store *st, struct pp_session *s, struct pp_error *err);
/* id: the 16 digits or a unique prefix of them (at least 4). PP_ERR_NOT_FOUND, or PP_ERR_USAGE if ambiguous. */
enum pp_code pp_store_session_find(struct pp_store *st, const char *key, struct pp_session *out, struct pp_error *err);
/* By its row. *out is the caller's, here and in all of these (pp_session_clear). PP_ERR_NOT_FOUND. */
enum pp_code pp_store_session_get(struct pp_store *st, int64_t id, struct pp_session *out, struct pp_error *err);
/* *s anew, by its id: another program may have added to it, or deleted it, before its lock was ours. With an error *s
 * is empty. */
enum pp_code pp_store_session_again(struct pp_store *st, struct pp_session *s, struct pp_error *err);
/* The one that changed last. PP_ERR_NOT_FOUND: nothing is saved yet. */
enum pp_code pp_store_session_latest(struct pp_store *st, struct pp_session *out, struct pp_error *err);
/* The list, newest first, a page at a time: at most `limit` conversations that come after `from` (NULL: the newest
 * ones), or, with `newer`, before it (NULL: the oldest ones). Of *from only id and updated_ms are read. *list has *n
 * entries; release with pp_session_list_free. */
enum pp_code pp_store_session_page(struct pp_store *st, const struct pp_session *from, bool newer, size_t limit,
                                   struct pp_session **list, size_t *n, struct pp_error *err);
enum pp_code pp_store_session_count(struct pp_store *st, int64_t *n, struct pp_error *err);

/* Full-text search in titles and messages, a page at a time. Conversations come in the order of their newest message
 * that matches; a title that matches puts its conversation where the list has it. */
enum { PP_SEARCH_RANKED = 10000 };
struct pp_search {
    const char *text;          /* any text; all words must be there, "two words" next to each other; the last one may be
                                  the beginning of a word; without words nothing is found */
    bool best_first;           /* order by relevance, if no more than PP_SEARCH_RANKED messages match */
    int64_t before;            /* INT64_MAX, or `hit` of the last one of the page before */
    const int64_t *known;      /* [n_known] ids of the conversations on the pages before */
    size_t n_known, limit;
    bool (*stop)(void *user);  /* asked now and then; true: PP_ERR_CANCELLED. NULL: never */
    void *user;
};
/* *ranked (may be NULL): they are ordered by relevance. While the index is being built (below), older messages are not
 * found yet. */
enum pp_code pp_store_search(struct pp_store *st, const struct pp_search *what, struct pp_session **list, size_t *n,
                             bool *ranked, struct pp_error *err);
void pp_session_list_free(struct pp_session *list, size_t n);

/* A database of an older version gets its index of words bit by bit, from the newest message down, so that opening it
 * does not wait: *left is about how many messages are missing, 0 when it is complete. pp_store_index_more adds at most
 * `limit` messages. */
enum pp_code pp_store_index_left(struct pp_store *st, int64_t *left, struct pp_error *err);
enum pp_code pp_store_index_more(struct pp_store *st, int64_t limit, int64_t *left, struct pp_error *err);

/* Writes title, model, template_name, system, adapters, settings and head. */
enum pp_code pp_store_session_update(struct pp_store *st, const struct pp_session *s, struct pp_error *err);
/* With all of its messages and its place in the search; what has been computed of it is the caller's to remove
 * (pp_snapshot_remove). */
enum pp_code pp_store_session_delete(struct pp_store *st, int64_t id, struct pp_error *err);

/* --- messages ---------------------------------------------------------------------------------------------------- */

enum pp_role { PP_ROLE_SYSTEM = 0, PP_ROLE_USER, PP_ROLE_ASSISTANT };
const char *pp_role_name(enum pp_role r); /* "system", "user", "assistant" */

enum pp_message_state {
    PP_MESSAGE_COMPLETE = 0,
    PP_MESSAGE_PARTIAL,   /* being written, or its writer died */
    PP_MESSAGE_CANCELLED, /* stopped by the user; what is there stays */
};
const char *pp_message_state_name(enum pp_message_state s); /* "complete", "partial", "cancelled" */
enum pp_message_state pp_message_state_by_name(const char *name); /* complete for any other word, and for NULL */

struct pp_message {
    int64_t id;
    int64_t session;
    int64_t parent;        /* 0: first message */
    enum pp_role role;
    enum pp_message_state state;
    char *content;         /* UTF-8 as the model or the user wrote it, never sanitised here */
    size_t content_len;    /* content may hold NULs */
    char *reasoning;       /* of an answer: what the model thought before it; likewise */
    size_t reasoning_len;
    char *model;           /* of an answer: "name (Q4_K_M)" */
    char *adapters;        /* JSON, as in the session at that time */
    char *params;          /* JSON: sampling, seed */
    char *stats;           /* JSON: timings, draft acceptance */
    int64_t n_tokens;      /* of the answer, 0 if unknown */
    int64_t created;
    int64_t context_from;  /* the model was given the conversation from this message on; 0: see the ones before */
    char *context_note;    /* ... and told this of what is before it */
    int n_siblings;        /* messages with the same parent, itself included; read only */
    int sibling;           /* its place among them by age, from 0; read only */
};
void pp_message_clear(struct pp_message *m);

/* Fills id and created; the session's head becomes this message, its `updated` now. NULL strings are "". */
enum pp_code pp_store_message_add(struct pp_store *st, struct pp_message *m, struct pp_error *err);
/* What an answer is by now. */
struct pp_answer_text {
    const char *text;
    size_t len;
    const char *reasoning; /* NULL: stays as it is */
    size_t reasoning_len;
};
/* Replaces the text and state (and, if not NULL/0, stats and n_tokens) of an answer. */
enum pp_code pp_store_message_write(struct pp_store *st, int64_t id, const struct pp_answer_text *answer,
                                    enum pp_message_state state, const char *stats, int64_t n_tokens,
                                    struct pp_error *err);
/* Notes with a message (of the user) where the context of its answers begins: context_from and context_note. */
enum pp_code pp_store_message_context(struct pp_store *st, int64_t id, int64_t from, const char *note,
                                      struct pp_error *err);
/* Another set of adapters, as JSON: one of those that were wanted for an answer could not be had. */
enum pp_code pp_store_message_adapters(struct pp_store *st, int64_t id, const char *adapters, struct pp_error *err);
/* *out is the caller's (pp_message_clear). PP_ERR_NOT_FOUND. */
enum pp_code pp_store_message_get(struct pp_store *st, int64_t id, struct pp_message *out, struct pp_error *err);
/* The branch that ends in `leaf`, first message first. leaf 0: empty. *list [*n]: pp_message_list_free. */
enum pp_code pp_store_branch(struct pp_store *st, int64_t leaf, struct pp_message **list, size_t *n,
                             struct pp_error *err);
void pp_message_list_free(struct pp_message *list, size_t n);
/* All messages of a conversation, each behind its parent. */
enum pp_code pp_store_messages(struct pp_store *st, int64_t session, struct pp_message **list, size_t *n,
                               struct pp_error *err);
/* All conversations of a damaged database, the newest first. Of one that cannot be read its id and, if that is known,
 * `updated` alone. *all: none is missing. */
enum pp_code pp_store_salvage_sessions(struct pp_store *st, struct pp_session **list, size_t *n, bool *all,
                                       struct pp_error *err);
/* All messages of one, as far as they can be read; *n_lost: how many of its messages cannot. What followed a
 * lost one follows what that did, and so does *head, which is the last message if nothing is left before it. */
enum pp_code pp_store_salvage(struct pp_store *st, int64_t session, int64_t *head, struct pp_message **list, size_t *n,
                              size_t *n_lost, struct pp_error *err);
/* Adds a whole conversation, or nothing. In *s and m[0 .. n) messages are called by their place, from 1 on: head,
 * parent (of an earlier place) and context_from (likewise, or its own), 0 for none; `created` and `updated` stay as
 * they are given; 0 is now, and `updated` then later than all others; one to come is now, too. Fills all ids, and the
 * key. */
enum pp_code pp_store_conversation_add(struct pp_store *st, struct pp_session *s, struct pp_message *m, size_t n,
                                       struct pp_error *err);
/* Adds to a conversation those of m[0 .. n) that have no id; the others are in it. parent, context_from and `head` are
 * places, as above; head 0: the tip stays where it is. updated: as above, if the tip moves. All of it or nothing. */
enum pp_code pp_store_conversation_extend(struct pp_store *st, int64_t session, const struct pp_message *m, size_t n,
                                          int64_t head, int64_t updated, struct pp_error *err);
/* The first message of every conversation, "" where there is none, and when it began. */
typedef void pp_store_beginning(void *user, int64_t session, int64_t created_ms, const char *text, size_t len);
enum pp_code pp_store_beginnings(struct pp_store *st, pp_store_beginning *take, void *user, struct pp_error *err);
/* How many children of message `parent` (0: roots) are older than message `id`. */
enum pp_code pp_store_siblings_before(struct pp_store *st, int64_t session, int64_t parent, int64_t id, int *n,
                                      struct pp_error *err);
/* The youngest leaf below the `sibling`th child of message `parent` in a session (parent 0: the roots). */
enum pp_code pp_store_descend(struct pp_store *st, int64_t session, int64_t parent, int sibling, int64_t *leaf,
                              struct pp_error *err);

/* --- adapters ---------------------------------------------------------------------------------------------------- */

/* What the user has noted of an adapter. */
struct pp_adapter_note {
    char *path;
    char *note;  /* "" for none */
    bool added;  /* the user named its path: it is listed wherever it lies */
};
/* note NULL: stays as it is. One without a note that was not added is forgotten. */
enum pp_code pp_store_adapter_put(struct pp_store *st, const char *path, const char *note, bool added,
                                  struct pp_error *err);
enum pp_code pp_store_adapter_list(struct pp_store *st, struct pp_adapter_note **list, size_t *n, struct pp_error *err);
void pp_adapter_note_list_free(struct pp_adapter_note *list, size_t n);

/* A set of adapters under a name; letter case does not tell names apart. */
struct pp_preset {
    char *name;
    char *adapters; /* JSON as in adapter_mix.h */
};
/* adapters NULL: the preset is removed. */
enum pp_code pp_store_preset_put(struct pp_store *st, const char *name, const char *adapters, struct pp_error *err);
enum pp_code pp_store_preset_list(struct pp_store *st, struct pp_preset **list, size_t *n, struct pp_error *err);
void pp_preset_list_free(struct pp_preset *list, size_t n);

/* --- models ------------------------------------------------------------------------------------------------------ */

/* A model that is known by a name. Letter case does not tell names and tags apart. */
struct pp_model_entry {
    char *path;            /* absolute */
    char *name;
    char *source;          /* where it was fetched from, or "" */
    char *sha256;          /* of the file that was fetched, or "" */
    char *facts;           /* JSON: arch, type, params, layers, context, vocabulary; "{}" if nothing is known */
    char *tags;            /* separated by spaces; read only */
    int64_t bytes;         /* of its tensors */
};
/* Adds a model, or changes the one at this path, which keeps its source and checksum where m has none, and unless
 * `rename` also its name, which may be one that the user gave: m->name becomes that. PP_ERR_USAGE: another one has the
 * name. */
enum pp_code pp_store_model_put(struct pp_store *st, struct pp_model_entry *m, bool rename, struct pp_error *err);
/* What that would say of the name now, of m with path and name alone. */
enum pp_code pp_store_model_name(struct pp_store *st, struct pp_model_entry *m, bool rename, struct pp_error *err);
/* Its tags go with it. */
enum pp_code pp_store_model_remove(struct pp_store *st, const char *path, struct pp_error *err);
enum pp_code pp_store_model_list(struct pp_store *st, struct pp_model_entry **list, size_t *n, struct pp_error *err);
void pp_model_entry_list_free(struct pp_model_entry *list, size_t n);
void pp_model_entry_clear(struct pp_model_entry *m); /* frees its strings */
/* The path of the model with this name or tag; pp_free. PP_ERR_NOT_FOUND. */
enum pp_code pp_store_model_find(struct pp_store *st, const char *word, char **path, struct pp_error *err);
/* path NULL: the tag is removed (PP_ERR_NOT_FOUND); one that another model had moves. PP_ERR_USAGE: it is a model's
 * name. */
enum pp_code pp_store_tag_put(struct pp_store *st, const char *tag, const char *path, struct pp_error *err);

/* --- one program at a time per session --------------------------------------------------------------------------- */

/* A lock that dies with the process (flock on DIR/KEY.lock). *fd is closed to release. PP_ERR_BUSY: "open in another
 * pippin". */
enum pp_code pp_session_lock(const char *dir, const char *key, int *fd, struct pp_error *err);
/* Removes that file, by who has its lock, when the conversation is deleted: whoever finds it a moment too late has a
 * lock on nothing. dir "": there is none. */
void pp_session_lock_remove(const char *dir, const char *key);

#endif
