/* store_salvage.c - what can be read of a damaged database: which conversations there are, and their messages.
 *
 * The places of its messages, each with what it follows, stand in an index: a page of the table that cannot be read any
 * more does not keep them. So each message is read by itself, and what followed a lost one follows what that did. */
#include <stdlib.h>

#include "engine/base/mem.h"
#include "src/store_internal.h"

enum { UNKNOWN = -1 };

struct place {
    int64_t id, parent; /* 0: none; UNKNOWN */
    bool lost;
};

struct places {
    struct place *at; /* [n] ids ascend */
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

/* session: 0 where all are listed. */
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

/* Of two with the same id that whose parent is known comes first. */
static int by_id(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->id != y->id)
        return x->id < y->id ? -1 : 1;
    return (x->parent < y->parent) - (x->parent > y->parent);
}

/* By one index, and where this is damaged itself by another one, too; *all: one of them could be read to its end. */
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

/* The message, or the nearest before it, that is there. Where nobody knows what a lost one followed, it was the one
 * before it, as in most conversations. */
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

/* One that cannot be read is lost. */
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

/* --- which conversations there are --------------------------------------------------------------------------- */

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
    struct places p = {0}; /* its parent is when it was used */
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
