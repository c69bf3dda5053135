/* store_internal.h - shared by the files of the store: the connection, prepared statements, transactions. */
#ifndef PP_SRC_STORE_INTERNAL_H
#define PP_SRC_STORE_INTERNAL_H

#include <sqlite3.h>

#include "src/store.h"

/* One per prepared statement; their SQL is in store.c. */
enum pp_stmt {
    PP_STMT_BEGIN,
    PP_STMT_COMMIT,
    PP_STMT_ROLLBACK,
    PP_STMT_SAVEPOINT,
    PP_STMT_RELEASE,
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
    PP_STMT_INDEX_REMAINING,
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
    sqlite3_stmt *stmts[PP_STMT_COUNT]; /* prepared on first use */
    const struct pp_store_seen *seen;   /* of the search that is running */
    const char *batch;                  /* between pp_store_batch_begin and _end: what is being done, for errors;
                                         * otherwise NULL */
    bool doubted;                       /* SQLite may have an outdated view of the schema */
    bool adrift;                        /* may be written to although its file was moved or deleted */
};

/* Converts an SQLite result to an error: `what` says what was being done ("save the message"). */
enum pp_code pp_store_fail(struct pp_store *st, int rc, const char *what, struct pp_error *err);

/* Opens a file for reading. how: a parameter of its URI, "mode=ro", or "immutable=1" for one that nobody writes to
 * and that needs no other files. *db must be closed in any case. Returns an SQLite result. */
int pp_store_open_how(const char *path, const char *how, sqlite3 **db);

/* The statement, prepared, reset and without bindings. */
enum pp_code pp_store_stmt(struct pp_store *st, enum pp_stmt which, sqlite3_stmt **out, struct pp_error *err);
/* Ends the use of a statement: invalidates its rows and bound texts, and releases locks. */
void pp_store_done(sqlite3_stmt *stmt);
/* Runs a statement without parameters or results. */
enum pp_code pp_store_run(struct pp_store *st, enum pp_stmt which, const char *what, struct pp_error *err);

/* Runs a bound statement that returns no rows, and ends its use. */
enum pp_code pp_store_finish(struct pp_store *st, sqlite3_stmt *stmt, const char *what, struct pp_error *err);
/* The same for one that changes a single row. PP_ERR_NOT_FOUND with `gone` if there is none. */
enum pp_code pp_store_change_one(struct pp_store *st, sqlite3_stmt *stmt, const char *what, const char *gone,
                                 struct pp_error *err);
/* Passes each row of a bound statement to `take`, until that returns false (out of memory for `of`), and ends its
 * use. */
typedef bool pp_store_take(void *user, sqlite3_stmt *row);
enum pp_code pp_store_rows(struct pp_store *st, sqlite3_stmt *stmt, pp_store_take *take, void *user, const char *what,
                           const char *of, struct pp_error *err);
/* Every change is made between these two: the write lock is taken at the beginning, where waiting for it is
 * possible. End commits if code is PP_OK, or else rolls back, and returns the result. Within a batch they use a
 * savepoint. */
enum pp_code pp_store_begin(struct pp_store *st, const char *what, struct pp_error *err);
enum pp_code pp_store_end(struct pp_store *st, enum pp_code code, const char *what, struct pp_error *err);

void pp_store_bind_text(sqlite3_stmt *stmt, int index, const char *text); /* NULL is "" */
void pp_store_bind_id(sqlite3_stmt *stmt, int index, int64_t id);         /* 0 is NULL */
/* A copy of a text column, "" for NULL; NULL: out of memory. len may be NULL. */
char *pp_store_column(sqlite3_stmt *stmt, int column, size_t *len);
int64_t pp_store_now_ms(void);
/* Reads the columns of a session from a row that begins with them. */
enum pp_code pp_store_read_session(sqlite3_stmt *stmt, struct pp_session *s, struct pp_error *err);

/* Call between pp_store_begin and pp_store_end: sets id, key and times of *s. */
enum pp_code pp_store_insert_session(struct pp_store *st, struct pp_session *s, int64_t created_ms, int64_t updated_ms,
                                     const char *what, struct pp_error *err);
/* store_message.c; as above: sets m->id and m->created, from milliseconds. */
enum pp_code pp_store_insert_message(struct pp_store *st, struct pp_message *m, int64_t created_ms, const char *what,
                                     struct pp_error *err);
/* Sets the conversation's time of last use to `now`, unless it is later already. */
enum pp_code pp_store_move_head(struct pp_store *st, int64_t session, int64_t head, int64_t now, const char *what,
                                struct pp_error *err);
/* Moves *now after the times of all conversations except this one (0: of all), which may be in the future if the
 * clock was ahead: the last one used must come first. */
enum pp_code pp_store_after_others(struct pp_store *st, int64_t session, int64_t *now, const char *what,
                                   struct pp_error *err);
/* Reads the rows of a bound statement that returns messages; ends its use. On failure the list is empty. */
enum pp_code pp_store_read_messages(struct pp_store *st, sqlite3_stmt *stmt, struct pp_message **list, size_t *n,
                                    struct pp_error *err);

/* store_list.c: defines the SQL functions of the statements, and calls pp_store_prepare_words. Returns an SQLite
 * result. */
int pp_store_prepare_lists(struct pp_store *st);

/* store_words.c: defines the tokenizer `pippin` of the search index, which the triggers of indexed tables need.
 * Returns an SQLite result. */
int pp_store_prepare_words(sqlite3 *db);
/* Whether a text has letters of scripts without spaces between words, each of which is a token. */
bool pp_store_has_unspaced(const char *text);

/* store_schema.c: settings of the connection, checks, migrations. */
enum pp_code pp_store_prepare_schema(struct pp_store *st, const char *path, struct pp_error *err);
bool pp_store_is_ours(struct pp_store *st); /* not another program's */
bool pp_store_is_readable(struct pp_store *st); /* or another program is writing to it */
/* Whether it is ours and needs no migration. */
enum pp_code pp_store_check_schema(struct pp_store *st, const char *path, struct pp_error *err);

#endif
