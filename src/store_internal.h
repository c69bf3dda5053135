/* store_internal.h - what the files of the store share: the connection, prepared statements, transactions. */
#ifndef PP_SRC_STORE_INTERNAL_H
#define PP_SRC_STORE_INTERNAL_H

#include <sqlite3.h>

#include "src/store.h"

/* One entry per prepared statement; the texts are in store.c. */
enum pp_stmt {
    PP_STMT_BEGIN,
    PP_STMT_COMMIT,
    PP_STMT_ROLLBACK,
    PP_STMT_PART_BEGIN,
    PP_STMT_PART_KEEP,
    PP_STMT_PART_UNDO,
    PP_STMT_SESSION_ADD,
    PP_STMT_SESSION_GET,
    PP_STMT_SESSION_FIND,
    PP_STMT_SESSION_LATEST,
    PP_STMT_SESSION_COUNT,
    PP_STMT_SESSIONS_OLDER,
    PP_STMT_SESSIONS_NEWER,
    PP_STMT_SEARCH_NEWEST,
    PP_STMT_SEARCH_BEST,
    PP_STMT_SEARCH_TITLES,
    PP_STMT_SEARCH_COUNT,
    PP_STMT_INDEX_LEFT,
    PP_STMT_INDEX_NEXT,
    PP_STMT_INDEX_ADD,
    PP_STMT_INDEX_MARK,
    PP_STMT_SESSION_UPDATE,
    PP_STMT_SESSION_TOUCH,
    PP_STMT_SESSION_OTHERS,
    PP_STMT_SESSION_DELETE,
    PP_STMT_MESSAGE_ADD,
    PP_STMT_MESSAGE_GET,
    PP_STMT_MESSAGE_WRITE,
    PP_STMT_MESSAGE_CONTEXT,
    PP_STMT_MESSAGE_ADAPTERS,
    PP_STMT_MESSAGE_BRANCH,
    PP_STMT_MESSAGE_ALL,
    PP_STMT_SESSION_PLACES,
    PP_STMT_SESSION_IDS,
    PP_STMT_MESSAGE_PLACES,
    PP_STMT_MESSAGE_IDS,
    PP_STMT_MESSAGE_ALONE,
    PP_STMT_MESSAGE_DESCEND,
    PP_STMT_MESSAGE_BEFORE,
    PP_STMT_BEGINNINGS,
    PP_STMT_ADAPTER_PUT,
    PP_STMT_ADAPTER_CLEAN,
    PP_STMT_ADAPTER_LIST,
    PP_STMT_PRESET_PUT,
    PP_STMT_PRESET_REMOVE,
    PP_STMT_PRESET_LIST,
    PP_STMT_MODEL_PUT,
    PP_STMT_MODEL_REMOVE,
    PP_STMT_MODEL_LIST,
    PP_STMT_MODEL_FIND,
    PP_STMT_MODEL_NAME,
    PP_STMT_TAG_PUT,
    PP_STMT_TAG_REMOVE,
    PP_STMT_BACKUP,
    PP_STMT_COUNT,
};

struct pp_store {
    sqlite3 *db;
    sqlite3_stmt *stmts[PP_STMT_COUNT]; /* prepared when first used */
    const struct pp_store_seen *seen;   /* of the search under way */
    const char *batch;                  /* between pp_store_batch_begin and _end: what is done there; NULL: none */
    bool doubted;                       /* the tables may be others by now than SQLite takes them for */
    bool adrift;                        /* it is written to although its file is no more where it was */
};

/* An SQLite result as an error: `what` says what was being done ("save the message"). */
enum pp_code pp_store_fail(struct pp_store *st, int rc, const char *what, struct pp_error *err);

/* Opens a file to read it. how: a parameter of its URI, "mode=ro", or "immutable=1" for one that nobody writes to and
 * that needs no file beside it. *db is to be closed in any case. An SQLite result. */
int pp_store_open_how(const char *path, const char *how, sqlite3 **db);

/* The statement, prepared, reset and without bindings. */
enum pp_code pp_store_stmt(struct pp_store *st, enum pp_stmt which, sqlite3_stmt **out, struct pp_error *err);
/* Ends its use. Rows and bound texts are gone; locks are released. */
void pp_store_done(sqlite3_stmt *stmt);
/* Runs a statement without parameters or results. */
enum pp_code pp_store_run(struct pp_store *st, enum pp_stmt which, const char *what, struct pp_error *err);

/* Runs a statement that gives no rows and whose parameters are bound, and ends its use. */
enum pp_code pp_store_finish(struct pp_store *st, sqlite3_stmt *stmt, const char *what, struct pp_error *err);
/* Likewise one that changes a single row. PP_ERR_NOT_FOUND with `gone` if there is none. */
enum pp_code pp_store_change_one(struct pp_store *st, sqlite3_stmt *stmt, const char *what, const char *gone,
                                 struct pp_error *err);
/* Hands each row of a statement whose parameters are bound to `take`, until that says false (there is no memory for
 * what was read: `of` names it), and ends its use. */
typedef bool pp_store_take(void *user, sqlite3_stmt *row);
enum pp_code pp_store_rows(struct pp_store *st, sqlite3_stmt *stmt, pp_store_take *take, void *user, const char *what,
                           const char *of, struct pp_error *err);
/* Every change runs between these two: the write lock is taken at the beginning, where waiting for it is possible. End
 * commits if code is PP_OK, else rolls back; returns what came of it. In a batch they keep or undo a part of it. */
enum pp_code pp_store_begin(struct pp_store *st, const char *what, struct pp_error *err);
enum pp_code pp_store_end(struct pp_store *st, enum pp_code code, const char *what, struct pp_error *err);

void pp_store_bind_text(sqlite3_stmt *stmt, int index, const char *text); /* NULL is "" */
void pp_store_bind_id(sqlite3_stmt *stmt, int index, int64_t id);         /* 0 is NULL */
/* A copy of a text column, "" for NULL; NULL: out of memory. len may be NULL. */
char *pp_store_column(sqlite3_stmt *stmt, int column, size_t *len);
int64_t pp_store_now_ms(void);
/* The row of a statement that begins with the columns of a session. */
enum pp_code pp_store_read_session(sqlite3_stmt *stmt, struct pp_session *s, struct pp_error *err);

/* Between pp_store_begin and pp_store_end: *s gets id, key and times. */
enum pp_code pp_store_insert_session(struct pp_store *st, struct pp_session *s, int64_t created_ms, int64_t updated_ms,
                                     const char *what, struct pp_error *err);
/* store_message.c, likewise: m->id and m->created, of which the latter is given in milliseconds. */
enum pp_code pp_store_insert_message(struct pp_store *st, struct pp_message *m, int64_t created_ms, const char *what,
                                     struct pp_error *err);
/* `now` becomes the conversation's time, unless that is later. */
enum pp_code pp_store_move_head(struct pp_store *st, int64_t session, int64_t head, int64_t now, const char *what,
                                struct pp_error *err);
/* *now becomes later than all conversations but this one (0: than all), also those that were used while the clock was
 * ahead: what is used last comes first. */
enum pp_code pp_store_after_others(struct pp_store *st, int64_t session, int64_t *now, const char *what,
                                   struct pp_error *err);
/* The rows of a bound statement that gives messages; ends its use. On failure the list is empty. */
enum pp_code pp_store_read_messages(struct pp_store *st, sqlite3_stmt *stmt, struct pp_message **list, size_t *n,
                                    struct pp_error *err);

/* store_list.c: the SQL functions that the statements use, and what follows. An SQLite result. */
int pp_store_prepare_lists(struct pp_store *st);

/* store_words.c: the tokenizer `pippin` of the search's index, without which nothing can be written to the tables that
 * are searched. An SQLite result. */
int pp_store_prepare_words(sqlite3 *db);
/* Whether a text has letters of scripts without blanks between words, each of which is a token. */
bool pp_store_has_unspaced(const char *text);

/* store_schema.c: settings of the connection, checks, migrations. */
enum pp_code pp_store_prepare_schema(struct pp_store *st, const char *path, struct pp_error *err);
bool pp_store_is_ours(struct pp_store *st); /* and no other program's */
bool pp_store_is_readable(struct pp_store *st); /* or somebody is just writing to it */
/* Whether it is ours and needs no migration. */
enum pp_code pp_store_check_schema(struct pp_store *st, const char *path, struct pp_error *err);

#endif
