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
 * (PP_ERR_UNSUPPORTED) and damaged ones (PP_ERR_FORMAT, saying how to recover). Path ":memory:": nothing goes to disk.
 * The caller owns *out (pp_store_close), here and below. */
enum pp_code pp_store_open(const char *path, struct pp_store **out, struct pp_error *err);
/* Opens an existing database for a quick query while other programs use it: nothing is created, migrated or checked,
 * and it waits for a writer a tenth of a second at most. A query that the database's version does not support fails. */
enum pp_code pp_store_open_to_read(const char *path, struct pp_store **out, struct pp_error *err);
/* pp_store_open for callers that only read: it also works on a full or read-only disk, and without a database, which
 * then is empty. */
enum pp_code pp_store_open_or_empty(const char *path, struct pp_store **out, struct pp_error *err);
/* Opens a copy, in an unnamed temporary file, of a database of any version, which is not changed. PP_ERR_FORMAT: it is
 * damaged, or another program's. */
enum pp_code pp_store_open_copy(const char *path, const struct pp_cancel *cancel, struct pp_store **out,
                                struct pp_error *err);
/* The same in steps: begin; more, some megabytes each, until *done; end, which opens the copy and frees c. To give up,
 * call free instead of end. Any thread, one at a time. */
struct pp_store_copy;
enum pp_code pp_store_copy_begin(const char *path, struct pp_store_copy **out, struct pp_error *err);
enum pp_code pp_store_copy_more(struct pp_store_copy *c, bool *done, struct pp_error *err);
enum pp_code pp_store_copy_end(struct pp_store_copy *c, struct pp_store **out, struct pp_error *err);
void pp_store_copy_free(struct pp_store_copy *c);
/* Whether this version of pippin can use an open store, and all of its pages can be read: takes a second for some
 * 300 MB. path: for the message. PP_ERR_FORMAT: it is damaged, or not pippin's; PP_ERR_UNSUPPORTED: a newer version's.
 * */
enum pp_code pp_store_check(struct pp_store *s, const char *path, struct pp_error *err);
bool pp_store_is_database(const char *path); /* an SQLite database, of any program */
void pp_store_close(struct pp_store *s);
/* Long operations end with PP_ERR_CANCELLED, rolled back, once this is requested. It must outlive s. */
void pp_store_cancel_with(struct pp_store *s, const struct pp_cancel *cancel);
/* Copies everything into a new database (0600), a consistent snapshot even while others write. PP_ERR_IO: there is a
 * file at path already, which is not touched, or it cannot be written, and then none is left there. */
enum pp_code pp_store_backup(struct pp_store *s, const char *path, struct pp_error *err);

/* Whether the file was deleted, moved or replaced since it was opened: changes then fail with PP_ERR_IO, but its
 * content can still be read. */
bool pp_store_moved(struct pp_store *st);
/* Allows changes to such a file all the same, to be read before it is closed, when they are lost. */
void pp_store_set_adrift(struct pp_store *st);

/* All changes between begin and end are committed in one transaction, so that the disk is waited for only once. Each
 * change is still made as a whole, or not at all if it fails. Other programs' changes wait meanwhile: keep it to a
 * tenth of a second. `what` describes it for errors ("save the question"), and must stay valid until the end; `code` is
 * the result so far: if it is an error, or the commit fails, the whole batch is rolled back and that error returned. */
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
    int created_part;      /* ... and the milliseconds of `created`; 0: possibly not known */
    int64_t updated_ms;    /* `updated` in milliseconds; read only: the order of the list */
    int64_t head;          /* message at the tip of the branch on screen, 0 if there is none */
    int64_t n_messages;    /* on all branches; read only */
    int64_t hit;           /* of a search: the matching message, or the newest one if the title matches; else 0 */
    char *excerpt;         /* ... some words around the match; NULL: the title matches */
};
void pp_session_clear(struct pp_session *s); /* frees the strings */

/* Fills id, key, created and its part, updated of *s; the strings are taken as given (NULL is ""). */
enum pp_code pp_store_session_add(struct pp_store *st, struct pp_session *s, struct pp_error *err);
/* id: the 16 digits or a unique prefix of them (at least 4). PP_ERR_NOT_FOUND, or PP_ERR_USAGE if ambiguous. */
enum pp_code pp_store_session_find(struct pp_store *st, const char *key, struct pp_session *out, struct pp_error *err);
/* By row id. The caller frees *out, here and in all of these (pp_session_clear). PP_ERR_NOT_FOUND. */
enum pp_code pp_store_session_get(struct pp_store *st, int64_t id, struct pp_session *out, struct pp_error *err);
/* Reads *s again by its id, since another program may have changed or deleted it before we locked it. With an error *s
 * is empty. */
enum pp_code pp_store_session_again(struct pp_store *st, struct pp_session *s, struct pp_error *err);
/* The most recently updated one. PP_ERR_NOT_FOUND: nothing is saved yet. */
enum pp_code pp_store_session_latest(struct pp_store *st, struct pp_session *out, struct pp_error *err);
/* The list, newest first, in pages: at most `limit` conversations after `from` (NULL: the newest ones), or, with
 * `newer`, before it (NULL: the oldest ones). Of *from only id and updated_ms are read. *list has *n entries; free it
 * with pp_session_list_free. */
enum pp_code pp_store_session_page(struct pp_store *st, const struct pp_session *from, bool newer, size_t limit,
                                   struct pp_session **list, size_t *n, struct pp_error *err);
enum pp_code pp_store_session_count(struct pp_store *st, int64_t *n, struct pp_error *err);

/* Full-text search in titles and messages, in pages. Conversations are ordered by their newest matching message; one
 * whose title matches, as in the list. */
enum { PP_SEARCH_RANKED = 10000 };
struct pp_search {
    const char *text;          /* any text: all words must match, "two words" as a phrase, the last one also as a
                                  prefix; without words nothing matches */
    bool best_first;           /* order by relevance, if no more than PP_SEARCH_RANKED messages match */
    int64_t before;            /* INT64_MAX, or `hit` of the last one of the page before */
    const int64_t *known;      /* [n_known] ids of the conversations on the pages before */
    size_t n_known, limit;
    bool (*stop)(void *user);  /* polled; true: PP_ERR_CANCELLED. NULL: never */
    void *user;
};
/* *ranked (may be NULL): whether results are ordered by relevance. While the index is being built (below), older
 * messages are not found yet. */
enum pp_code pp_store_search(struct pp_store *st, const struct pp_search *what, struct pp_session **list, size_t *n,
                             bool *ranked, struct pp_error *err);
void pp_session_list_free(struct pp_session *list, size_t n);

/* A database of an older version is indexed in steps, from the newest message down, so that opening it is fast. *left:
 * about how many messages are not indexed yet; 0: complete. pp_store_index_more indexes at most `limit` messages. */
enum pp_code pp_store_index_remaining(struct pp_store *st, int64_t *left, struct pp_error *err);
enum pp_code pp_store_index_more(struct pp_store *st, int64_t limit, int64_t *left, struct pp_error *err);

/* Writes title, model, template_name, system, adapters, settings and head. */
enum pp_code pp_store_session_update(struct pp_store *st, const struct pp_session *s, struct pp_error *err);
/* Deletes it with all of its messages and their index entries. The caller must remove its snapshot
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
    char *reasoning;       /* of an answer: the model's reasoning before it; may hold NULs, too */
    size_t reasoning_len;
    char *model;           /* of an answer: "name (Q4_K_M)" */
    char *adapters;        /* JSON, as in the session at that time */
    char *params;          /* JSON: sampling, seed */
    char *stats;           /* JSON: timings, draft acceptance */
    int64_t n_tokens;      /* of the answer, 0 if unknown */
    int64_t created;
    int64_t context_from;  /* the first message that the model was given; 0: as for the messages before */
    char *context_note;    /* ... and what it was told of those before that */
    int n_siblings;        /* messages with the same parent, itself included; read only */
    int sibling;           /* its index among them by age, from 0; read only */
};
void pp_message_clear(struct pp_message *m);

/* Fills id and created; the session's head becomes this message, its `updated` now. NULL strings are "". */
enum pp_code pp_store_message_add(struct pp_store *st, struct pp_message *m, struct pp_error *err);
/* The present text of an answer. */
struct pp_answer_text {
    const char *text;
    size_t len;
    const char *reasoning; /* NULL: is not changed */
    size_t reasoning_len;
};
/* Replaces the text and state (and, if not NULL/0, stats and n_tokens) of an answer. */
enum pp_code pp_store_message_write(struct pp_store *st, int64_t id, const struct pp_answer_text *answer,
                                    enum pp_message_state state, const char *stats, int64_t n_tokens,
                                    struct pp_error *err);
/* Sets context_from and context_note of a question: where the context of its answers begins. */
enum pp_code pp_store_message_context(struct pp_store *st, int64_t id, int64_t from, const char *note,
                                      struct pp_error *err);
/* Replaces an answer's adapters (JSON), when one of those requested could not be used. */
enum pp_code pp_store_message_adapters(struct pp_store *st, int64_t id, const char *adapters, struct pp_error *err);
/* The caller frees *out (pp_message_clear). PP_ERR_NOT_FOUND. */
enum pp_code pp_store_message_get(struct pp_store *st, int64_t id, struct pp_message *out, struct pp_error *err);
/* The branch that ends in `leaf`, first message first. leaf 0: empty. *list [*n]: pp_message_list_free. */
enum pp_code pp_store_branch(struct pp_store *st, int64_t leaf, struct pp_message **list, size_t *n,
                             struct pp_error *err);
void pp_message_list_free(struct pp_message *list, size_t n);
/* All messages of a conversation, parents before children. */
enum pp_code pp_store_messages(struct pp_store *st, int64_t session, struct pp_message **list, size_t *n,
                               struct pp_error *err);
/* The conversations of a damaged database, newest first. One that cannot be read has only its id and, if that is known,
 * `updated`. *all: none is missing. */
enum pp_code pp_store_salvage_sessions(struct pp_store *st, struct pp_session **list, size_t *n, bool *all,
                                       struct pp_error *err);
/* The readable messages of one; *n_lost: the number of the others. Children of a lost message become children of its
 * parent, and *head moves up in the same way; if nothing is left there, *head is the last message. */
enum pp_code pp_store_salvage(struct pp_store *st, int64_t session, int64_t *head, struct pp_message **list, size_t *n,
                              size_t *n_lost, struct pp_error *err);
/* Adds a whole conversation, or nothing. In *s and m[0 .. n) messages are identified by their index, from 1 on:
 * head, parent (an earlier one) and context_from (an earlier one, or the message itself), 0 for none. `created` and
 * `updated` are taken as given; 0 means now, and for `updated` later than all others; an `updated` in the future
 * means now, too. Fills all ids, and the key. */
enum pp_code pp_store_conversation_add(struct pp_store *st, struct pp_session *s, struct pp_message *m, size_t n,
                                       struct pp_error *err);
/* Adds to a conversation those of m[0 .. n) that have no id; the others are in it already. parent, context_from and
 * `head` are indices, as above; head 0: the tip stays. updated: as above, if the tip moves. All of it or nothing. */
enum pp_code pp_store_conversation_extend(struct pp_store *st, int64_t session, const struct pp_message *m, size_t n,
                                          int64_t head, int64_t updated, struct pp_error *err);
/* Calls take() with the first message of every conversation, "" where there is none, and when it was created. */
typedef void pp_store_beginning(void *user, int64_t session, int64_t created_ms, const char *text, size_t len);
enum pp_code pp_store_beginnings(struct pp_store *st, pp_store_beginning *take, void *user, struct pp_error *err);
/* How many children of message `parent` (0: roots) are older than message `id`. */
enum pp_code pp_store_siblings_before(struct pp_store *st, int64_t session, int64_t parent, int64_t id, int *n,
                                      struct pp_error *err);
/* The newest leaf below the `sibling`th child of message `parent` in a session (parent 0: the roots). */
enum pp_code pp_store_descend(struct pp_store *st, int64_t session, int64_t parent, int sibling, int64_t *leaf,
                              struct pp_error *err);

/* --- adapters ---------------------------------------------------------------------------------------------------- */

/* What is stored of an adapter. */
struct pp_adapter_note {
    char *path;
    char *note;  /* the user's; "" for none */
    bool added;  /* by the user: it is listed wherever it is */
};
/* note NULL: is not changed. An adapter without a note that was not added is removed. */
enum pp_code pp_store_adapter_put(struct pp_store *st, const char *path, const char *note, bool added,
                                  struct pp_error *err);
enum pp_code pp_store_adapter_list(struct pp_store *st, struct pp_adapter_note **list, size_t *n, struct pp_error *err);
void pp_adapter_note_list_free(struct pp_adapter_note *list, size_t n);

/* A named set of adapters; names are case-insensitive. */
struct pp_preset {
    char *name;
    char *adapters; /* JSON as in adapter_mix.h */
};
/* adapters NULL: the preset is removed. */
enum pp_code pp_store_preset_put(struct pp_store *st, const char *name, const char *adapters, struct pp_error *err);
enum pp_code pp_store_preset_list(struct pp_store *st, struct pp_preset **list, size_t *n, struct pp_error *err);
void pp_preset_list_free(struct pp_preset *list, size_t n);

/* --- models ------------------------------------------------------------------------------------------------------ */

/* A registered model. Names and tags are case-insensitive. */
struct pp_model_entry {
    char *path;            /* absolute */
    char *name;
    char *source;          /* where it was fetched from, or "" */
    char *sha256;          /* of the file that was fetched, or "" */
    char *facts;           /* JSON: arch, type, params, layers, context, vocabulary; "{}" if nothing is known */
    char *tags;            /* separated by spaces; read only */
    int64_t bytes;         /* of its tensors */
};
/* Adds a model, or updates the one at this path. That keeps its source and checksum where m has none, and, without
 * `rename`, also its name, which the user may have given: m->name is set to it. PP_ERR_USAGE: another model has the
 * name. */
enum pp_code pp_store_model_put(struct pp_store *st, struct pp_model_entry *m, bool rename, struct pp_error *err);
/* Only checks and sets the name as pp_store_model_put would, for m with path and name. */
enum pp_code pp_store_model_name(struct pp_store *st, struct pp_model_entry *m, bool rename, struct pp_error *err);
/* Removes a model and its tags. */
enum pp_code pp_store_model_remove(struct pp_store *st, const char *path, struct pp_error *err);
enum pp_code pp_store_model_list(struct pp_store *st, struct pp_model_entry **list, size_t *n, struct pp_error *err);
void pp_model_entry_list_free(struct pp_model_entry *list, size_t n);
void pp_model_entry_clear(struct pp_model_entry *m); /* frees its strings */
/* The path of the model with this name or tag; pp_free. PP_ERR_NOT_FOUND. */
enum pp_code pp_store_model_find(struct pp_store *st, const char *word, char **path, struct pp_error *err);
/* Sets a tag, which moves if another model had it; path NULL: removes it (PP_ERR_NOT_FOUND). PP_ERR_USAGE: it is a
 * model's name. */
enum pp_code pp_store_tag_put(struct pp_store *st, const char *tag, const char *path, struct pp_error *err);

/* --- session locks ----------------------------------------------------------------------------------------------- */

/* Takes a lock that ends with the process (flock on DIR/KEY.lock). Close *fd to release it. PP_ERR_BUSY: "open in
 * another pippin". */
enum pp_code pp_session_lock(const char *dir, const char *key, int *fd, struct pp_error *err);
/* Removes that file, when the conversation is deleted; call while holding the lock. A program that opened the file just
 * before then locks a removed file, which is harmless. dir "": does nothing. */
void pp_session_lock_remove(const char *dir, const char *key);

#endif
