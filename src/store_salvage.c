/* store_salvage.c - reads what can be read of a damaged database: the conversations, and their messages.
 *
 * The ids of the messages and of their parents are also in an index, which is intact if a page of the table cannot
 * be read. So each message is read by itself, and the children of a lost one become children of its parent. */
#include <stdlib.h>

#include "engine/base/mem.h"
#include "src/store_internal.h"

enum { UNKNOWN = -1 };

struct place {
    int64_t id, parent; /* parent: 0 for none, or UNKNOWN */
    bool lost;
};

struct places {
    struct place *at; /* [n], ascending ids */
    size_t n, cap;
};

static bool take_place(void *user, sqlite3_stmt *row)
{
    struct places *p = user;
    if (pp_grow(&p->at, &p->cap, p->n + 1, sizeof *p->at) != 0)
        return false;
    p->at[p->n++] = (struct place){.id = sqlite3_column_int64(row, 0), .parent = sqlite3_column_int64(row, 1)};
    return true;
}

/* session: 0 to list the conversations. */
static enum pp_code take_places(struct pp_store *st, enum pp_stmt which, int64_t session, struct places *p,
                                struct pp_error *err)
{
    sqlite3_stmt *stmt;
    const enum pp_code code = pp_store_stmt(st, which, &stmt, err);
    if (code)
        return code;
    if (session)
        sqlite3_bind_int64(stmt, 1, session);
    return pp_store_rows(st, stmt, take_place, p, session ? "read the conversation" : "list the conversations",
                         session ? "the conversation" : "the list of conversations", err);
}

/* Entries with the same id: one whose parent is known comes first. */
static int by_id(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->id != y->id)
        return x->id < y->id ? -1 : 1;
    return (x->parent < y->parent) - (x->parent > y->parent);
}

/* Reads one index and, if that is damaged, another one, too; *all: one of them was read to its end. */
static enum pp_code find_places(struct pp_store *st, const enum pp_stmt by[2], int64_t session, struct places *p,
                                bool *all, struct pp_error *err)
{
    enum pp_code code = take_places(st, by[0], session, p, err);
    if (code == PP_ERR_FORMAT)
        code = take_places(st, by[1], session, p, err);
    *all = code == PP_OK;
    if (code && (code != PP_ERR_FORMAT || !p->n))
        return code;
    size_t n = 0;
    if (p->n)
        qsort(p->at, p->n, sizeof *p->at, by_id);
    for (size_t i = 0; i < p->n; i++)
        if (!n || p->at[n - 1].id != p->at[i].id)
            p->at[n++] = p->at[i];
    p->n = n;
    return PP_OK;
}

static const struct place *place_of(const struct places *p, int64_t id)
{
    const struct place key = {.id = id, .parent = INT64_MAX};
    size_t low = 0, high = p->n;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (by_id(&p->at[middle], &key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < p->n && p->at[low].id == id ? &p->at[low] : NULL;
}

/* The message itself or its nearest ancestor that could be read. If the parent of a lost message is unknown, it is
 * assumed to be the previous message, as in most conversations. */
static int64_t nearest(const struct places *p, int64_t id)
{
    while (id > 0) {
        const struct place *at = place_of(p, id);
        if (!at || !at->lost)
            return at ? id : 0;
        const int64_t parent = at->parent != UNKNOWN ? at->parent : at > p->at ? at[-1].id : 0;
        id = parent < id ? parent : 0;
    }
    return 0;
}

/* Reads a message; marks it as lost if it cannot be read. */
static enum pp_code read_one(struct pp_store *st, int64_t session, struct place *at, struct pp_message *out,
                             struct pp_error *err)
{
    sqlite3_stmt *stmt;
    struct pp_message *one;
    size_t n = 0;
    enum pp_code code = pp_store_stmt(st, PP_STMT_MESSAGE_ALONE, &stmt, err);
    if (code)
        return code;
    sqlite3_bind_int64(stmt, 1, at->id);
    sqlite3_bind_int64(stmt, 2, session);
    code = pp_store_read_messages(st, stmt, &one, &n, err);
    at->lost = code == PP_ERR_FORMAT || (!code && !n);
    if (!code && n) {
        *out = one[0];
        at->parent = out->parent;
        pp_free(one);
    }
    return at->lost ? PP_OK : code;
}

enum pp_code pp_store_salvage(struct pp_store *st, int64_t session, int64_t *head, struct pp_message **list, size_t *n,
                              size_t *n_lost, struct pp_error *err)
{
    static const enum pp_stmt by[2] = {PP_STMT_MESSAGE_PLACES, PP_STMT_MESSAGE_IDS};
    struct places p = {0};
    bool all;
    *list = NULL;
    *n = *n_lost = 0;
    enum pp_code code = find_places(st, by, session, &p, &all, err);
    if (!code && p.n && !(*list = pp_calloc(p.n, sizeof **list)))
        code = pp_fail_nomem(err, "the conversation");
    for (size_t i = 0; !code && i < p.n; i++) {
        code = read_one(st, session, &p.at[i], &(*list)[*n], err);
        *n_lost += !code && p.at[i].lost;
        *n += !code && !p.at[i].lost;
    }
    for (size_t i = 0; !code && i < *n; i++)
        (*list)[i].parent = nearest(&p, (*list)[i].parent);
    if (!code) {
        const int64_t last = *n ? (*list)[*n - 1].id : 0, found = nearest(&p, *head);
        *head = found ? found : last;
    }
    pp_free(p.at);
    if (code) {
        pp_message_list_free(*list, *n);
        *list = NULL;
        *n = 0;
    }
    return code;
}

/* --- the list of conversations ------------------------------------------------------------------------------- */

static int newest_first(const void *a, const void *b)
{
    const struct pp_session *x = a, *y = b;
    if (x->updated_ms != y->updated_ms)
        return x->updated_ms > y->updated_ms ? -1 : 1;
    return (x->id < y->id) - (x->id > y->id);
}

enum pp_code pp_store_salvage_sessions(struct pp_store *st, struct pp_session **list, size_t *n, bool *all,
                                       struct pp_error *err)
{
    static const enum pp_stmt by[2] = {PP_STMT_SESSION_PLACES, PP_STMT_SESSION_IDS};
    struct places p = {0}; /* here `parent` is the time of last use */
    *list = NULL;
    *n = 0;
    enum pp_code code = find_places(st, by, 0, &p, all, err);
    if (!code && p.n && !(*list = pp_calloc(p.n, sizeof **list)))
        code = pp_fail_nomem(err, "the list of conversations");
    for (size_t i = 0; !code && i < p.n; i++) {
        struct pp_session *s = &(*list)[*n];
        code = pp_store_session_get(st, p.at[i].id, s, err);
        if (code == PP_ERR_FORMAT) {
            const int64_t used = p.at[i].parent == UNKNOWN ? 0 : p.at[i].parent;
            *s = (struct pp_session){.id = p.at[i].id, .updated = used / 1000, .updated_ms = used};
            code = PP_OK;
        }
        *n += !code;
        if (code == PP_ERR_NOT_FOUND)
            code = PP_OK;
    }
    if (*n)
        qsort(*list, *n, sizeof **list, newest_first);
    pp_free(p.at);
    if (code) {
        pp_session_list_free(*list, *n);
        *list = NULL;
        *n = 0;
    }
    return code;
}
