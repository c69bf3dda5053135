/* store_conversation.c - complete conversations: reading all branches, adding an imported one, copying the database. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "src/store_internal.h"

enum pp_code pp_store_messages(struct pp_store *st, int64_t session, struct pp_message **list, size_t *n,
                               struct pp_error *err)
{
    sqlite3_stmt *stmt;
    *list = NULL;
    *n = 0;
    enum pp_code code = pp_store_stmt(st, PP_STMT_MESSAGE_ALL, &stmt, err);
    if (code)
        return code;
    sqlite3_bind_int64(stmt, 1, session);
    return pp_store_read_messages(st, stmt, list, n, err);
}

/* Converts a place to an id; *ok becomes false if the place is not among the first n. */
static int64_t id_at(const int64_t *ids, int64_t place, size_t n, bool *ok)
{
    if (place < 0 || place > (int64_t)n)
        *ok = false;
    return *ok && place ? ids[place - 1] : 0;
}

/* The context of the answers to this message begins with itself, as after /compact; stored separately, since it
 * needs the new id. */
static enum pp_code begin_context_there(struct pp_store *st, const struct pp_message *m, const char *what,
                                        struct pp_error *err)
{
    sqlite3_stmt *stmt;
    const enum pp_code code = pp_store_stmt(st, PP_STMT_MESSAGE_CONTEXT, &stmt, err);
    if (code)
        return code;
    sqlite3_bind_int64(stmt, 1, m->id);
    sqlite3_bind_int64(stmt, 2, m->id);
    pp_store_bind_text(stmt, 3, m->context_note);
    return pp_store_finish(st, stmt, what, err);
}

/* Inserts the messages that have no id yet. ids: of all messages, by their places. */
static enum pp_code insert_messages(struct pp_store *st, int64_t session, const struct pp_message *m, int64_t *ids,
                                    size_t n, int64_t now, const char *what, struct pp_error *err)
{
    bool ok = true;
    enum pp_code code = PP_OK;
    for (size_t i = 0; !code && ok && i < n; i++) {
        struct pp_message one = m[i]; /* its strings are the caller's */
        const bool fresh = !one.id, from_itself = one.context_from == (int64_t)i + 1;
        one.session = session;
        one.parent = id_at(ids, one.parent, i, &ok);
        one.context_from = from_itself ? 0 : id_at(ids, one.context_from, i, &ok);
        if (ok && fresh)
            code = pp_store_insert_message(st, &one, one.created ? one.created * 1000 : now, what, err);
        if (ok && fresh && !code && from_itself)
            code = begin_context_there(st, &one, what, err);
        ids[i] = one.id;
    }
    return code || ok ? code : pp_fail(err, PP_ERR_FORMAT, "cannot %s: a message's parent is missing", what);
}

/* The time of last use of an imported conversation, in milliseconds. A time in the future, which a file may contain,
 * is not accepted, as it would be the time of all later use. */
static int64_t used_at(int64_t seconds, int64_t now)
{
    return seconds && seconds <= now / 1000 ? seconds * 1000 : now;
}

static enum pp_code insert_all(struct pp_store *st, struct pp_session *s, const struct pp_message *m, int64_t *ids,
                               size_t n, int64_t now, const char *what, struct pp_error *err)
{
    bool ok = true;
    const int64_t created = s->created ? s->created * 1000 + s->created_part : now;
    int64_t updated = used_at(s->updated, now);
    enum pp_code code = s->updated ? PP_OK : pp_store_after_others(st, 0, &updated, what, err);
    if (!code)
        code = pp_store_insert_session(st, s, created, updated, what, err);
    if (!code)
        code = insert_messages(st, s->id, m, ids, n, now, what, err);
    const int64_t head = id_at(ids, s->head, n, &ok);
    if (!ok && !code)
        code = pp_fail(err, PP_ERR_FORMAT, "cannot %s: its last message is missing", what);
    if (!code && head)
        code = pp_store_move_head(st, s->id, head, updated, what, err);
    s->head = head;
    return code;
}

enum pp_code pp_store_conversation_add(struct pp_store *st, struct pp_session *s, struct pp_message *m, size_t n,
                                       struct pp_error *err)
{
    static const char what[] = "save the conversation";
    struct pp_session fresh = *s; /* *s is changed only on success */
    int64_t *ids = pp_calloc(n + 1, sizeof *ids);
    if (!ids)
        return pp_fail_nomem(err, "the conversation");
    for (size_t i = 0; i < n; i++)
        m[i].id = 0;
    enum pp_code code = pp_store_begin(st, what, err);
    if (!code) {
        code = insert_all(st, &fresh, m, ids, n, pp_store_now_ms(), what, err);
        code = pp_store_end(st, code, what, err);
    }
    for (size_t i = 0; !code && i < n; i++) {
        m[i].id = ids[i];
        m[i].session = fresh.id;
    }
    if (!code)
        *s = fresh;
    pp_free(ids);
    return code;
}

enum pp_code pp_store_conversation_extend(struct pp_store *st, int64_t session, const struct pp_message *m, size_t n,
                                          int64_t head, int64_t updated, struct pp_error *err)
{
    static const char what[] = "add to the conversation";
    bool ok = true;
    int64_t *ids = pp_calloc(n + 1, sizeof *ids);
    if (!ids)
        return pp_fail_nomem(err, "the conversation");
    enum pp_code code = pp_store_begin(st, what, err);
    if (!code) {
        const int64_t now = pp_store_now_ms();
        code = insert_messages(st, session, m, ids, n, now, what, err);
        const int64_t tip = id_at(ids, head, n, &ok);
        if (!code && tip)
            code = pp_store_move_head(st, session, tip, used_at(updated, now), what, err);
        code = pp_store_end(st, code, what, err);
    }
    pp_free(ids);
    return code;
}

enum pp_code pp_store_beginnings(struct pp_store *st, pp_store_beginning *take, void *user, struct pp_error *err)
{
    sqlite3_stmt *stmt;
    int rc;
    enum pp_code code = pp_store_stmt(st, PP_STMT_BEGINNINGS, &stmt, err);
    if (code)
        return code;
    while ((rc = sqlite3_step(stmt)) == SQLITE_ROW) {
        const void *text = sqlite3_column_text(stmt, 2);
        take(user, sqlite3_column_int64(stmt, 0), sqlite3_column_int64(stmt, 1), text ? text : "",
             (size_t)sqlite3_column_bytes(stmt, 2));
    }
    if (rc != SQLITE_DONE)
        code = pp_store_fail(st, rc, "read the conversations", err);
    pp_store_done(stmt);
    return code;
}

/* --- a copy of the database ------------------------------------------------------------------------------------- */

/* Removes what is left of a failed copy. */
static void remove_copy(const char *name)
{
    struct pp_buf journal = {0};
    pp_buf_fmt(&journal, "%s-journal", name);
    if (!journal.bad)
        unlink(journal.data);
    unlink(name);
    pp_buf_free(&journal);
}

/* Written under a temporary name until it is complete, so that nothing that looks like a copy is left by a kill or a
 * power cut. */
enum pp_code pp_store_backup(struct pp_store *s, const char *path, struct pp_error *err)
{
    static const char what[] = "copy the conversations";
    sqlite3_stmt *stmt;
    struct pp_buf name = {0};
    enum pp_code code = pp_check_new(path, err);
    if (code)
        return code;
    char *temp = pp_temporary_name(path);
    if (temp)
        pp_buf_fmt(&name, "%s%s", path[0] == '/' ? "" : "./", temp); /* ":memory:" is a file name here */
    pp_free(temp);
    if (!temp || name.bad)
        return pp_fail_nomem(err, "a file name");
    pp_remove_stale(path);
    remove_copy(name.data); /* of a process that has died and had the same id */
    /* SQLite fills an existing empty file */
    const int fd = open(name.data, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        code = pp_fail(err, PP_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    else
        /* so that pp_remove_stale does not take it for abandoned; SQLite uses another kind of locks */
        flock(fd, LOCK_EX | LOCK_NB);
    if (!code)
        code = pp_store_stmt(s, PP_STMT_BACKUP, &stmt, err);
    if (!code) {
        pp_store_bind_text(stmt, 1, name.data);
        code = pp_store_finish(s, stmt, what, err);
    }
    if (!code && fsync(fd) != 0)
        code = pp_fail(err, PP_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    if (!code)
        code = pp_name_new_file(name.data, path, err);
    if (code && fd >= 0)
        remove_copy(name.data);
    if (fd >= 0)
        close(fd);
    pp_buf_free(&name);
    return code;
}
