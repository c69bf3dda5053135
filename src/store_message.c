/* store_message.c - the messages: a tree per session. */
#include <string.h>

#include "engine/base/mem.h"
#include "src/store_internal.h"

static const char gone[] = "its conversation was deleted";

const char *pp_role_name(enum pp_role r)
{
    static const char *const names[] = {"system", "user", "assistant"};
    return r <= PP_ROLE_ASSISTANT ? names[r] : "unknown";
}

static const char *const states[] = {"complete", "partial", "cancelled"};

const char *pp_message_state_name(enum pp_message_state s)
{
    return states[s];
}

enum pp_message_state pp_message_state_by_name(const char *name)
{
    int s = PP_MESSAGE_CANCELLED;
    while (s > PP_MESSAGE_COMPLETE && (!name || strcmp(name, states[s]) != 0))
        s--;
    return (enum pp_message_state)s;
}

void pp_message_clear(struct pp_message *m)
{
    pp_free(m->content);
    pp_free(m->reasoning);
    pp_free(m->model);
    pp_free(m->adapters);
    pp_free(m->params);
    pp_free(m->stats);
    pp_free(m->context_note);
    memset(m, 0, sizeof *m);
}

void pp_message_list_free(struct pp_message *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        pp_message_clear(&list[i]);
    pp_free(list);
}

static void bind_content(sqlite3_stmt *stmt, int index, const char *content, size_t len)
{
    sqlite3_bind_text64(stmt, index, content ? content : "", content ? len : 0, SQLITE_STATIC, SQLITE_UTF8);
}

enum pp_code pp_store_insert_message(struct pp_store *st, struct pp_message *m, int64_t created_ms, const char *what,
                                     struct pp_error *err)
{
    sqlite3_stmt *stmt;
    enum pp_code code = pp_store_stmt(st, PP_STMT_MESSAGE_ADD, &stmt, err);
    if (code)
        return code;
    sqlite3_bind_int64(stmt, 1, m->session);
    pp_store_bind_id(stmt, 2, m->parent);
    sqlite3_bind_int(stmt, 3, (int)m->role);
    sqlite3_bind_int(stmt, 4, (int)m->state);
    bind_content(stmt, 5, m->content, m->content_len);
    pp_store_bind_text(stmt, 6, m->model);
    pp_store_bind_text(stmt, 7, m->adapters);
    pp_store_bind_text(stmt, 8, m->params);
    pp_store_bind_text(stmt, 9, m->stats);
    sqlite3_bind_int64(stmt, 10, m->n_tokens);
    sqlite3_bind_int64(stmt, 11, created_ms);
    pp_store_bind_id(stmt, 12, m->context_from);
    pp_store_bind_text(stmt, 13, m->context_note);
    bind_content(stmt, 14, m->reasoning, m->reasoning_len);
    int rc = sqlite3_step(stmt);
    if (rc == SQLITE_CONSTRAINT_FOREIGNKEY)
        code = pp_fail(err, PP_ERR_NOT_FOUND, "cannot %s: its conversation, or the message it answers, was deleted",
                       what);
    else if (rc != SQLITE_DONE)
        code = pp_store_fail(st, rc, what, err);
    pp_store_done(stmt);
    if (!code) {
        m->id = sqlite3_last_insert_rowid(st->db);
        m->created = created_ms / 1000;
    }
    return code;
}

enum pp_code pp_store_move_head(struct pp_store *st, int64_t session, int64_t head, int64_t now, const char *what,
                                struct pp_error *err)
{
    sqlite3_stmt *stmt;
    enum pp_code code = pp_store_stmt(st, PP_STMT_SESSION_TOUCH, &stmt, err);
    if (code)
        return code;
    sqlite3_bind_int64(stmt, 1, session);
    sqlite3_bind_int64(stmt, 2, head);
    sqlite3_bind_int64(stmt, 3, now);
    return pp_store_finish(st, stmt, what, err);
}

enum pp_code pp_store_after_others(struct pp_store *st, int64_t session, int64_t *now, const char *what,
                                   struct pp_error *err)
{
    sqlite3_stmt *stmt;
    enum pp_code code = pp_store_stmt(st, PP_STMT_SESSION_OTHERS, &stmt, err);
    if (code)
        return code;
    sqlite3_bind_int64(stmt, 1, session);
    const int rc = sqlite3_step(stmt);
    if (rc == SQLITE_ROW && sqlite3_column_int64(stmt, 0) >= *now)
        *now = sqlite3_column_int64(stmt, 0) + 1;
    else if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        code = pp_store_fail(st, rc, what, err);
    pp_store_done(stmt);
    return code;
}

enum pp_code pp_store_message_add(struct pp_store *st, struct pp_message *m, struct pp_error *err)
{
    static const char what[] = "save the message";
    enum pp_code code = pp_store_begin(st, what, err);
    if (code)
        return code;
    int64_t now = pp_store_now_ms();
    struct pp_message fresh = *m; /* *m is changed only on success */
    code = pp_store_insert_message(st, &fresh, now, what, err);
    if (!code)
        code = pp_store_after_others(st, m->session, &now, what, err);
    if (!code)
        code = pp_store_move_head(st, m->session, fresh.id, now, what, err);
    code = pp_store_end(st, code, what, err);
    if (!code)
        *m = fresh;
    return code;
}

enum pp_code pp_store_message_write(struct pp_store *st, int64_t id, const struct pp_answer_text *answer,
                                    enum pp_message_state state, const char *stats, int64_t n_tokens,
                                    struct pp_error *err)
{
    static const char what[] = "save the answer";
    sqlite3_stmt *stmt;
    enum pp_code code = pp_store_begin(st, what, err);
    if (code)
        return code;
    code = pp_store_stmt(st, PP_STMT_MESSAGE_WRITE, &stmt, err);
    if (!code) {
        sqlite3_bind_int64(stmt, 1, id);
        bind_content(stmt, 2, answer->text, answer->len);
        sqlite3_bind_int(stmt, 3, (int)state);
        if (stats)
            pp_store_bind_text(stmt, 4, stats);
        pp_store_bind_id(stmt, 5, n_tokens);
        if (answer->reasoning)
            bind_content(stmt, 6, answer->reasoning, answer->reasoning_len);
        code = pp_store_change_one(st, stmt, what, gone, err);
    }
    return pp_store_end(st, code, what, err);
}

enum pp_code pp_store_message_context(struct pp_store *st, int64_t id, int64_t from, const char *note,
                                      struct pp_error *err)
{
    static const char what[] = "save the start of the context";
    sqlite3_stmt *stmt;
    enum pp_code code = pp_store_begin(st, what, err);
    if (code)
        return code;
    code = pp_store_stmt(st, PP_STMT_MESSAGE_CONTEXT, &stmt, err);
    if (!code) {
        sqlite3_bind_int64(stmt, 1, id);
        pp_store_bind_id(stmt, 2, from);
        pp_store_bind_text(stmt, 3, note);
        code = pp_store_change_one(st, stmt, what, gone, err);
    }
    return pp_store_end(st, code, what, err);
}

enum pp_code pp_store_message_adapters(struct pp_store *st, int64_t id, const char *adapters, struct pp_error *err)
{
    static const char what[] = "save the adapters of an answer";
    sqlite3_stmt *stmt;
    enum pp_code code = pp_store_begin(st, what, err);
    if (code)
        return code;
    code = pp_store_stmt(st, PP_STMT_MESSAGE_ADAPTERS, &stmt, err);
    if (!code) {
        sqlite3_bind_int64(stmt, 1, id);
        pp_store_bind_text(stmt, 2, adapters);
        code = pp_store_change_one(st, stmt, what, gone, err);
    }
    return pp_store_end(st, code, what, err);
}

static enum pp_code read_message(sqlite3_stmt *stmt, struct pp_message *m, struct pp_error *err)
{
    int role = sqlite3_column_int(stmt, 3), state = sqlite3_column_int(stmt, 4);
    memset(m, 0, sizeof *m);
    if (role < PP_ROLE_SYSTEM || role > PP_ROLE_ASSISTANT || state < PP_MESSAGE_COMPLETE ||
        state > PP_MESSAGE_CANCELLED)
        return pp_fail(err, PP_ERR_FORMAT, "the database holds a message of an unknown kind; it is damaged");
    *m = (struct pp_message){
        .id = sqlite3_column_int64(stmt, 0),
        .session = sqlite3_column_int64(stmt, 1),
        .parent = sqlite3_column_int64(stmt, 2),
        .role = (enum pp_role)role,
        .state = (enum pp_message_state)state,
        .content = pp_store_column(stmt, 5, NULL),
        .content_len = (size_t)sqlite3_column_bytes(stmt, 5),
        .model = pp_store_column(stmt, 6, NULL),
        .adapters = pp_store_column(stmt, 7, NULL),
        .params = pp_store_column(stmt, 8, NULL),
        .stats = pp_store_column(stmt, 9, NULL),
        .n_tokens = sqlite3_column_int64(stmt, 10),
        .created = sqlite3_column_int64(stmt, 11) / 1000,
        .n_siblings = sqlite3_column_int(stmt, 12),
        .sibling = sqlite3_column_int(stmt, 13),
        .context_from = sqlite3_column_int64(stmt, 14),
        .context_note = pp_store_column(stmt, 15, NULL),
        .reasoning = pp_store_column(stmt, 16, NULL),
        .reasoning_len = (size_t)sqlite3_column_bytes(stmt, 16),
    };
    if (m->content && m->reasoning && m->model && m->adapters && m->params && m->stats && m->context_note)
        return PP_OK;
    pp_message_clear(m);
    return pp_fail_nomem(err, "a message");
}

enum pp_code pp_store_message_get(struct pp_store *st, int64_t id, struct pp_message *out, struct pp_error *err)
{
    sqlite3_stmt *stmt;
    memset(out, 0, sizeof *out);
    enum pp_code code = pp_store_stmt(st, PP_STMT_MESSAGE_GET, &stmt, err);
    if (code)
        return code;
    sqlite3_bind_int64(stmt, 1, id);
    int rc = sqlite3_step(stmt);
    if (rc == SQLITE_ROW)
        code = read_message(stmt, out, err);
    else if (rc == SQLITE_DONE)
        code = pp_fail(err, PP_ERR_NOT_FOUND, "the message does not exist any more");
    else
        code = pp_store_fail(st, rc, "read the message", err);
    pp_store_done(stmt);
    return code;
}

enum pp_code pp_store_read_messages(struct pp_store *st, sqlite3_stmt *stmt, struct pp_message **list, size_t *n,
                                    struct pp_error *err)
{
    size_t cap = 0;
    int rc;
    enum pp_code code = PP_OK;
    *list = NULL;
    *n = 0;
    while (!code && (rc = sqlite3_step(stmt)) == SQLITE_ROW) {
        code = pp_grow(list, &cap, *n + 1, sizeof **list) == 0 ? read_message(stmt, &(*list)[*n], err)
                                                               : pp_fail_nomem(err, "the conversation");
        *n += !code;
    }
    if (!code && rc != SQLITE_DONE)
        code = pp_store_fail(st, rc, "read the conversation", err);
    pp_store_done(stmt);
    if (code) {
        pp_message_list_free(*list, *n);
        *list = NULL;
        *n = 0;
    }
    return code;
}

enum pp_code pp_store_branch(struct pp_store *st, int64_t leaf, struct pp_message **list, size_t *n,
                             struct pp_error *err)
{
    sqlite3_stmt *stmt;
    *list = NULL;
    *n = 0;
    if (leaf == 0)
        return PP_OK;
    enum pp_code code = pp_store_stmt(st, PP_STMT_MESSAGE_BRANCH, &stmt, err);
    if (code)
        return code;
    sqlite3_bind_int64(stmt, 1, leaf);
    code = pp_store_read_messages(st, stmt, list, n, err);
    return code || *n ? code : pp_fail(err, PP_ERR_NOT_FOUND, "the message does not exist any more");
}

enum pp_code pp_store_siblings_before(struct pp_store *st, int64_t session, int64_t parent, int64_t id, int *n,
                                      struct pp_error *err)
{
    sqlite3_stmt *stmt;
    *n = 0;
    enum pp_code code = pp_store_stmt(st, PP_STMT_MESSAGE_BEFORE, &stmt, err);
    if (code)
        return code;
    sqlite3_bind_int64(stmt, 1, session);
    pp_store_bind_id(stmt, 2, parent);
    sqlite3_bind_int64(stmt, 3, id);
    const int rc = sqlite3_step(stmt);
    if (rc == SQLITE_ROW)
        *n = sqlite3_column_int(stmt, 0);
    else
        code = pp_store_fail(st, rc, "read the conversation", err);
    pp_store_done(stmt);
    return code;
}

enum pp_code pp_store_descend(struct pp_store *st, int64_t session, int64_t parent, int sibling, int64_t *leaf,
                              struct pp_error *err)
{
    sqlite3_stmt *stmt;
    *leaf = 0;
    if (sibling < 0)
        return pp_fail(err, PP_ERR_NOT_FOUND, "there is no message before the first one");
    enum pp_code code = pp_store_stmt(st, PP_STMT_MESSAGE_DESCEND, &stmt, err);
    if (code)
        return code;
    sqlite3_bind_int64(stmt, 1, session);
    pp_store_bind_id(stmt, 2, parent);
    sqlite3_bind_int(stmt, 3, sibling);
    int rc = sqlite3_step(stmt);
    if (rc == SQLITE_ROW)
        *leaf = sqlite3_column_int64(stmt, 0);
    else
        code = pp_store_fail(st, rc, "read the conversation", err);
    pp_store_done(stmt);
    if (!code && *leaf == 0)
        code = pp_fail(err, PP_ERR_NOT_FOUND, "there is no such branch");
    return code;
}
