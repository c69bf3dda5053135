/* store_fixture.c - see store_fixture.h. */
#include "tests/store_fixture.h"

#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

#include "src/store_internal.h"
#include "tests/fill_store.h"
#include "tests/support.h"

static struct pp_error err;

enum pp_code write_answer(struct pp_store *st, int64_t id, const char *text, enum pp_message_state state,
                                 const char *stats, int64_t n_tokens, struct pp_error *e)
{
    const struct pp_answer_text answer = {text, strlen(text), NULL, 0};
    return pp_store_message_write(st, id, &answer, state, stats, n_tokens, e);
}

const char *fresh_store(void)
{
    static char path[256];
    static int n;
    snprintf(path, sizeof path, "%s/store-%d/pippin.db", test_tmpdir(), n++);
    return path;
}

struct pp_store *open_store(const char *path)
{
    struct pp_store *st = NULL;
    assert_ok(pp_store_open(path, &st, &err), err);
    return st;
}

int64_t add_session(struct pp_store *st, const char *title)
{
    struct pp_session s = {.title = (char *)(uintptr_t)title};
    assert_ok(pp_store_session_add(st, &s, &err), err);
    return s.id;
}

int64_t add_message(struct pp_store *st, int64_t session, int64_t parent, enum pp_role role, const char *text)
{
    struct pp_message m = {.session = session, .parent = parent, .role = role, .content = (char *)(uintptr_t)text,
                           .content_len = strlen(text)};
    assert_ok(pp_store_message_add(st, &m, &err), err);
    assert_true(m.id > 0);
    return m.id;
}

/* Opens the file as another program does, with the tokeniser of the search index. */
static sqlite3 *raw_open(const char *path)
{
    sqlite3 *db;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(pp_store_prepare_words(db), SQLITE_OK);
    return db;
}

void raw_sql(const char *path, const char *sql)
{
    sqlite3 *db = raw_open(path);
    char *message = NULL;
    if (sqlite3_exec(db, sql, NULL, NULL, &message) != SQLITE_OK)
        fail_msg("%s: %s", sql, message);
    sqlite3_close(db);
}

int64_t raw_int(const char *path, const char *sql)
{
    sqlite3 *db = raw_open(path);
    sqlite3_stmt *stmt = NULL;
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &stmt, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    int64_t v = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    sqlite3_close(db);
    return v;
}

void assert_store_sound(const char *path)
{
    sqlite3 *db = raw_open(path);
    sqlite3_stmt *stmt = NULL;
    assert_int_equal(sqlite3_prepare_v2(db, "PRAGMA integrity_check", -1, &stmt, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    assert_string_equal(sqlite3_column_text(stmt, 0), "ok");
    sqlite3_finalize(stmt);
    assert_int_equal(sqlite3_prepare_v2(db, "PRAGMA foreign_key_check", -1, &stmt, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(stmt), SQLITE_DONE);
    sqlite3_finalize(stmt);
    /* the search tables agree with what they index */
    assert_int_equal(sqlite3_exec(db, "INSERT INTO message_text (message_text, rank) VALUES ('integrity-check', 1);"
                                      "INSERT INTO session_text (session_text, rank) VALUES ('integrity-check', 1)",
                                  NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

size_t hits(struct pp_store *st, const char *query)
{
    size_t n;
    struct pp_session *list;
    enum pp_code code = list_sessions(st, query, &list, &n, &err);
    if (code)
        fail_msg("query <%s>: %s", query, err.text);
    pp_session_list_free(list, n);
    return n;
}
