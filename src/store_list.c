/* store_list.c - the list of conversations and the search in them, by pages.
 *
 * Both read only what is shown: the list follows an index, beginning after the last conversation shown, and the
 * search visits the hits from the newest message backwards until there are enough conversations. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "src/store_internal.h"

/* --- conversations that were already found ----------------------------------------------------------------------- */

/* An open-addressing hash table of ids other than 0, at most half full. */
struct pp_store_seen {
    int64_t *slots; /* [mask + 1] */
    size_t mask, n;
    bool (*stop)(void *user);
    void *user;
};

static size_t place_of(const struct pp_store_seen *s, int64_t id)
{
    size_t i = (size_t)((uint64_t)id * 0x9E3779B97F4A7C15u >> 20) & s->mask;
    while (s->slots[i] && s->slots[i] != id)
        i = (i + 1) & s->mask;
    return i;
}

static bool seen(const struct pp_store_seen *s, int64_t id)
{
    return s->slots && s->slots[place_of(s, id)] == id;
}

static bool grow_seen(struct pp_store_seen *s)
{
    struct pp_store_seen larger = *s;
    larger.mask = s->mask ? 2 * s->mask + 1 : 255;
    larger.slots = pp_calloc(larger.mask + 1, sizeof *larger.slots);
    if (!larger.slots)
        return false;
    for (size_t i = 0; s->slots && i <= s->mask; i++)
        if (s->slots[i])
            larger.slots[place_of(&larger, s->slots[i])] = s->slots[i];
    pp_free(s->slots);
    *s = larger;
    return true;
}

static bool note(struct pp_store_seen *s, int64_t id)
{
    if (2 * (s->n + 1) > s->mask && !grow_seen(s))
        return false;
    size_t i = place_of(s, id);
    s->n += !s->slots[i];
    s->slots[i] = id;
    return true;
}

/* fresh(SESSION) in the statements: whether the running search has not found this conversation yet. */
static void sql_fresh(sqlite3_context *context, int n, sqlite3_value **values)
{
    const struct pp_store *st = sqlite3_user_data(context);
    const struct pp_store_seen *s = st->seen;
    (void)n;
    if (s && s->stop && s->stop(s->user))
        sqlite3_interrupt(st->db);
    sqlite3_result_int(context, !s || !seen(s, sqlite3_value_int64(values[0])));
}

int pp_store_prepare_lists(struct pp_store *st)
{
    const int rc = sqlite3_create_function_v2(st->db, "fresh", 1, SQLITE_UTF8 | SQLITE_DIRECTONLY, st, sql_fresh, NULL,
                                              NULL, NULL);
    return rc == SQLITE_OK ? pp_store_prepare_words(st->db) : rc;
}

/* --- the list ---------------------------------------------------------------------------------------------------- */

static enum pp_code read_sessions(struct pp_store *st, sqlite3_stmt *stmt, struct pp_session **list, size_t *n,
                                  struct pp_error *err)
{
    size_t cap = 0;
    int rc;
    while ((rc = sqlite3_step(stmt)) == SQLITE_ROW) {
        if (pp_grow(list, &cap, *n + 1, sizeof **list) != 0)
            return pp_fail_nomem(err, "the list of conversations");
        enum pp_code code = pp_store_read_session(stmt, &(*list)[*n], err);
        if (code)
            return code;
        ++*n;
    }
    return rc == SQLITE_DONE ? PP_OK : pp_store_fail(st, rc, "list the conversations", err);
}

static void reverse(struct pp_session *list, size_t n)
{
    for (size_t i = 0; i < n / 2; i++) {
        struct pp_session s = list[i];
        list[i] = list[n - 1 - i];
        list[n - 1 - i] = s;
    }
}

static int64_t as_limit(size_t limit)
{
    return limit > INT64_MAX ? INT64_MAX : (int64_t)limit;
}

enum pp_code pp_store_session_page(struct pp_store *st, const struct pp_session *from, bool newer, size_t limit,
                                   struct pp_session **list, size_t *n, struct pp_error *err)
{
    sqlite3_stmt *stmt;
    int64_t end = newer ? INT64_MIN : INT64_MAX;
    *list = NULL;
    *n = 0;
    enum pp_code code = pp_store_stmt(st, newer ? PP_STMT_SESSIONS_NEWER : PP_STMT_SESSIONS_OLDER, &stmt, err);
    if (code)
        return code;
    sqlite3_bind_int64(stmt, 1, from ? from->updated_ms : end);
    sqlite3_bind_int64(stmt, 2, from ? from->id : end);
    sqlite3_bind_int64(stmt, 3, as_limit(limit));
    code = read_sessions(st, stmt, list, n, err);
    pp_store_done(stmt);
    if (newer)
        reverse(*list, *n);
    if (code) {
        pp_session_list_free(*list, *n);
        *list = NULL;
        *n = 0;
    }
    return code;
}

static enum pp_code read_count(struct pp_store *st, enum pp_stmt which, const char *match, int64_t *n,
                               struct pp_error *err)
{
    sqlite3_stmt *stmt;
    enum pp_code code = pp_store_stmt(st, which, &stmt, err);
    if (code)
        return code;
    if (match)
        pp_store_bind_text(stmt, 1, match);
    int rc = sqlite3_step(stmt);
    if (rc == SQLITE_ROW)
        *n = sqlite3_column_int64(stmt, 0);
    else
        code = pp_store_fail(st, rc, "count the conversations", err);
    pp_store_done(stmt);
    return code;
}

enum pp_code pp_store_session_count(struct pp_store *st, int64_t *n, struct pp_error *err)
{
    *n = 0;
    return read_count(st, PP_STMT_SESSION_COUNT, NULL, n, err);
}

/* --- queries ----------------------------------------------------------------------------------------------------- */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Appends a word, or a quoted text, as an FTS5 phrase. Returns what follows; *open: its last word may be incomplete,
 * as no quote or space follows. */
static const char *write_phrase(struct pp_buf *b, const char *text, bool *open)
{
    bool quoted = *text == '"';
    pp_buf_char(b, '"');
    for (text += quoted; *text && (quoted ? *text != '"' : !is_blank(*text)); text++) {
        if (*text == '"')
            pp_buf_char(b, '"');
        pp_buf_char(b, *text);
    }
    pp_buf_char(b, '"');
    *open = !quoted || !*text;
    return text + (quoted && *text);
}

/* Converts any text to an FTS5 query in which the last word may be a prefix. Empty if there are no words. */
static void write_query(struct pp_buf *b, const char *text)
{
    enum { MAX_WORDS = 32 }; /* the depth of FTS5 expressions is limited */
    bool open = false;
    for (int words = 0; words < MAX_WORDS; words++) {
        while (is_blank(*text))
            text++;
        if (!*text)
            break;
        if (words)
            pp_buf_char(b, ' ');
        text = write_phrase(b, text, &open);
    }
    if (open)
        pp_buf_char(b, '*');
}

/* --- the search -------------------------------------------------------------------------------------------------- */

struct hit {
    int64_t message, session;
};

struct finding {
    struct pp_store *st;
    const struct pp_search *what;
    struct pp_store_seen found;
    struct hit *titles;         /* [n_titles], newest first */
    size_t n_titles, cap_titles, next_title;
    struct pp_session *list;    /* [n] */
    size_t n, cap;
};

static int newest_first(const void *a, const void *b)
{
    const struct hit *x = a, *y = b;
    if (x->message != y->message)
        return x->message < y->message ? 1 : -1;
    return (x->session < y->session) - (x->session > y->session);
}

static bool take_title(void *user, sqlite3_stmt *row)
{
    struct finding *f = user;
    if (pp_grow(&f->titles, &f->cap_titles, f->n_titles + 1, sizeof *f->titles) != 0)
        return false;
    f->titles[f->n_titles++] = (struct hit){sqlite3_column_int64(row, 1), sqlite3_column_int64(row, 0)};
    return true;
}

/* A matching title is ordered like its conversation's newest message. */
static enum pp_code find_titles(struct finding *f, const char *match, struct pp_error *err)
{
    sqlite3_stmt *stmt;
    enum pp_code code = pp_store_stmt(f->st, PP_STMT_SEARCH_TITLES, &stmt, err);
    if (code)
        return code;
    pp_store_bind_text(stmt, 1, match);
    code = pp_store_rows(f->st, stmt, take_title, f, "search the conversations", "a search", err);
    if (f->n_titles)
        qsort(f->titles, f->n_titles, sizeof *f->titles, newest_first);
    return code;
}

static enum pp_code add_hit(struct finding *f, struct hit hit, char *excerpt, struct pp_error *err)
{
    if (pp_grow(&f->list, &f->cap, f->n + 1, sizeof *f->list) != 0 || !note(&f->found, hit.session)) {
        pp_free(excerpt);
        return pp_fail_nomem(err, "a search");
    }
    enum pp_code code = pp_store_session_get(f->st, hit.session, &f->list[f->n], err);
    if (code) {
        pp_free(excerpt);
        return code == PP_ERR_NOT_FOUND ? PP_OK : code; /* deleted by another program in the meantime */
    }
    f->list[f->n].hit = hit.message;
    f->list[f->n].excerpt = excerpt;
    f->n++;
    return PP_OK;
}

/* Adds conversations whose title matches, down to message `down_to`. */
static enum pp_code take_titles(struct finding *f, int64_t down_to, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    while (!code && f->n < f->what->limit && f->next_title < f->n_titles &&
           f->titles[f->next_title].message >= down_to) {
        struct hit hit = f->titles[f->next_title++];
        if (hit.message <= f->what->before && !seen(&f->found, hit.session))
            code = add_hit(f, hit, NULL, err);
    }
    return code;
}

/* Adds the conversations of matching messages; stmt is bound. */
static enum pp_code take_messages(struct finding *f, sqlite3_stmt *stmt, bool ranked, struct pp_error *err)
{
    int rc = SQLITE_DONE;
    enum pp_code code = PP_OK;
    while (!code && f->n < f->what->limit && (rc = sqlite3_step(stmt)) == SQLITE_ROW) {
        struct hit hit = {sqlite3_column_int64(stmt, 0), sqlite3_column_int64(stmt, 1)};
        if (!ranked)
            code = take_titles(f, hit.message, err);
        if (code || f->n == f->what->limit || seen(&f->found, hit.session))
            continue;
        char *excerpt = pp_store_column(stmt, 2, NULL);
        code = excerpt ? add_hit(f, hit, excerpt, err) : pp_fail_nomem(err, "a search");
    }
    if (!code && rc != SQLITE_ROW && rc != SQLITE_DONE)
        code = pp_store_fail(f->st, rc, "search the conversations", err);
    return code;
}

static enum pp_code find_all(struct finding *f, const char *match, bool *ranked, struct pp_error *err)
{
    enum { EXCERPT_WORDS = 12, EXCERPT_LETTERS = 28 }; /* tokens that fill a line */
    sqlite3_stmt *stmt;
    int64_t n = 0;
    enum pp_code code = find_titles(f, match, err);
    if (!code && f->what->best_first)
        code = read_count(f->st, PP_STMT_SEARCH_COUNT, match, &n, err);
    *ranked = f->what->best_first && n <= PP_SEARCH_RANKED;
    if (!code && *ranked)
        code = take_titles(f, 0, err); /* a match in the title is the most relevant */
    if (!code)
        code = pp_store_stmt(f->st, *ranked ? PP_STMT_SEARCH_BEST : PP_STMT_SEARCH_NEWEST, &stmt, err);
    if (code)
        return code;
    pp_store_bind_text(stmt, 1, match);
    if (!*ranked)
        sqlite3_bind_int64(stmt, 2, f->what->before);
    sqlite3_bind_int(stmt, 3, pp_store_has_unspaced(match) ? EXCERPT_LETTERS : EXCERPT_WORDS);
    code = take_messages(f, stmt, *ranked, err);
    pp_store_done(stmt);
    return code ? code : take_titles(f, 0, err);
}

enum pp_code pp_store_search(struct pp_store *st, const struct pp_search *what, struct pp_session **list, size_t *n,
                             bool *ranked, struct pp_error *err)
{
    struct finding f = {.st = st, .what = what, .found = {.stop = what->stop, .user = what->user}};
    struct pp_buf match = {0};
    bool by_rank = false, memory = true;
    *list = NULL;
    *n = 0;
    write_query(&match, what->text);
    for (size_t i = 0; memory && i < what->n_known; i++)
        memory = note(&f.found, what->known[i]);
    enum pp_code code = memory && !match.bad ? PP_OK : pp_fail_nomem(err, "a search");
    st->seen = &f.found;
    if (!code && match.len)
        code = find_all(&f, pp_buf_cstr(&match), &by_rank, err);
    st->seen = NULL;
    pp_buf_free(&match);
    pp_free(f.titles);
    pp_free(f.found.slots);
    if (code) {
        pp_session_list_free(f.list, f.n);
        return code;
    }
    *list = f.list;
    *n = f.n;
    if (ranked)
        *ranked = by_rank;
    return PP_OK;
}

/* --- the search index -------------------------------------------------------------------------------------------- */

static enum pp_code index_from(struct pp_store *st, int64_t from, int64_t limit, const char *what, int64_t *to,
                               struct pp_error *err)
{
    sqlite3_stmt *stmt;
    enum pp_code code = pp_store_stmt(st, PP_STMT_INDEX_NEXT, &stmt, err);
    if (code)
        return code;
    sqlite3_bind_int64(stmt, 1, from);
    sqlite3_bind_int64(stmt, 2, limit - 1);
    int rc = sqlite3_step(stmt);
    *to = rc == SQLITE_ROW ? sqlite3_column_int64(stmt, 0) : 0;
    if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        code = pp_store_fail(st, rc, what, err);
    pp_store_done(stmt);
    if (!code)
        code = pp_store_stmt(st, PP_STMT_INDEX_ADD, &stmt, err);
    if (!code) {
        sqlite3_bind_int64(stmt, 1, *to);
        sqlite3_bind_int64(stmt, 2, from);
        code = pp_store_finish(st, stmt, what, err);
    }
    if (!code)
        code = pp_store_stmt(st, PP_STMT_INDEX_MARK, &stmt, err);
    if (!code) {
        sqlite3_bind_int64(stmt, 1, *to);
        code = pp_store_finish(st, stmt, what, err);
    }
    return code;
}

enum pp_code pp_store_index_remaining(struct pp_store *st, int64_t *left, struct pp_error *err)
{
    *left = 0;
    return read_count(st, PP_STMT_INDEX_REMAINING, NULL, left, err);
}

enum pp_code pp_store_index_more(struct pp_store *st, int64_t limit, int64_t *left, struct pp_error *err)
{
    static const char what[] = "build the search index";
    int64_t from = 0;
    enum pp_code code = pp_store_begin(st, what, err);
    if (code)
        return code;
    code = read_count(st, PP_STMT_INDEX_REMAINING, NULL, &from, err);
    *left = 0;
    if (!code && from > 0)
        code = index_from(st, from, limit, what, left, err);
    return pp_store_end(st, code, what, err);
}
