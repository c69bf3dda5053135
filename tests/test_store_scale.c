/* test_store_scale.c - the store with many conversations: the cost of a page of the list or of a search does not depend
 * on their number, and all pages together are the whole list. */
#include "tests/support.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "src/store_internal.h"
#include "tests/fill_store.h"

static struct pp_error err;

static struct pp_store *filled(int64_t sessions, int64_t messages)
{
    static char path[256];
    static int n;
    struct pp_store *st;
    snprintf(path, sizeof path, "%s/scale-%d.db", test_tmpdir(), n++);
    assert_ok(pp_store_open(path, &st, &err), err);
    struct fill_options o = {
        .sessions = sessions, .messages = messages, .words = 6, .seed = 7, .everywhere = "harbour"};
    assert_int_equal(fill_store(path, &o), 0);
    return st;
}

static struct pp_search question(const char *text, size_t limit)
{
    return (struct pp_search){.text = text, .before = INT64_MAX, .limit = limit};
}

/* --- plans ------------------------------------------------------------------------------------------------ */

static const enum pp_stmt quick[] = {
    PP_STMT_SESSION_GET,     PP_STMT_SESSION_FIND,  PP_STMT_SESSION_LATEST, PP_STMT_SESSIONS_OLDER,
    PP_STMT_SESSIONS_NEWER,  PP_STMT_SEARCH_NEWEST, PP_STMT_SEARCH_BEST,    PP_STMT_SEARCH_TITLES,
    PP_STMT_MESSAGE_BRANCH,  PP_STMT_MESSAGE_BEFORE, PP_STMT_MESSAGE_GET,   PP_STMT_INDEX_NEXT,     PP_STMT_INDEX_ADD,
};

/* Whether a step of a query's plan scales: a SEARCH in an index or by rowid, or a SCAN in the order of an index or of a
 * full-text table. */
static bool is_good(enum pp_stmt which, const char *step)
{
    if (strstr(step, "TEMP B-TREE"))
        return which == PP_STMT_MESSAGE_BRANCH; /* grows only with the length of the branch */
    if (strncmp(step, "SCAN", 4) != 0)
        return true;
    return strstr(step, "VIRTUAL TABLE INDEX") || strstr(step, "USING INDEX") || strcmp(step, "SCAN line") == 0;
}

static void no_table_is_scanned(void **state)
{
    (void)state;
    struct pp_store *st;
    assert_ok(pp_store_open(":memory:", &st, &err), err);
    for (size_t i = 0; i < sizeof quick / sizeof *quick; i++) {
        char explain[2000];
        sqlite3_stmt *stmt, *plan;
        assert_ok(pp_store_stmt(st, quick[i], &stmt, &err), err);
        const char *sql = sqlite3_sql(stmt);
        snprintf(explain, sizeof explain, "EXPLAIN QUERY PLAN %s", sql);
        assert_int_equal(sqlite3_prepare_v2(st->db, explain, -1, &plan, NULL), SQLITE_OK);
        while (sqlite3_step(plan) == SQLITE_ROW) {
            const char *step = (const char *)sqlite3_column_text(plan, 3);
            if (!is_good(quick[i], step))
                fail_msg("%s\n  plan: %s", sql, step);
        }
        sqlite3_finalize(plan);
    }
    pp_store_close(st);
}

/* --- work ------------------------------------------------------------------------------------------------- */

enum { ASKED = 5 };

static int64_t steps_of(struct pp_store *st)
{
    int64_t sum = 0;
    for (int i = 0; i < PP_STMT_COUNT; i++)
        if (st->stmts[i])
            sum += sqlite3_stmt_status(st->stmts[i], SQLITE_STMTSTATUS_VM_STEP, 1);
    return sum;
}

/* Counts SQLite's virtual machine steps for a page of 20: the list from both ends, searches with very many hits and
 * with none. */
static void count_steps(struct pp_store *st, int64_t steps[static ASKED])
{
    static const char *const texts[] = {"harbour", "har", "nowherewhatsoever"};
    struct pp_session *list;
    size_t n;
    steps_of(st);
    for (int newer = 0; newer < 2; newer++) {
        assert_ok(pp_store_session_page(st, NULL, newer, 20, &list, &n, &err), err);
        assert_int_equal(n, 20);
        pp_session_list_free(list, n);
        steps[newer] = steps_of(st);
    }
    for (int i = 0; i < 3; i++) {
        struct pp_search what = question(texts[i], 20);
        assert_ok(pp_store_search(st, &what, &list, &n, NULL, &err), err);
        assert_int_equal(n, i < 2 ? 20 : 0);
        pp_session_list_free(list, n);
        steps[2 + i] = steps_of(st);
    }
}

static void work_does_not_grow(void **state)
{
    (void)state;
    int64_t few[ASKED], many[ASKED];
    struct pp_store *a = filled(60, 1200), *b = filled(600, 12000);
    count_steps(a, few);
    count_steps(b, many);
    for (int i = 0; i < ASKED; i++)
        if (many[i] > few[i] * 2 || few[i] > 20000)
            fail_msg("question %d: %" PRId64 " steps among 60 conversations, %" PRId64 " among 600", i, few[i],
                     many[i]);
    pp_store_close(a);
    pp_store_close(b);
}

/* --- pages ------------------------------------------------------------------------------------------------ */

static void pages_make_the_list(void **state)
{
    (void)state;
    struct pp_store *st = filled(83, 900);
    struct pp_session *all, *page;
    size_t n_all, n, at = 0;
    int64_t count;
    assert_ok(list_sessions(st, "", &all, &n_all, &err), err);
    assert_ok(pp_store_session_count(st, &count, &err), err);
    assert_int_equal(n_all, 83);
    assert_int_equal(count, 83);
    for (const struct pp_session *from = NULL; at < n_all; from = &all[at - 1]) {
        assert_ok(pp_store_session_page(st, from, false, 7, &page, &n, &err), err);
        assert_true(n > 0 && at + n <= n_all);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(page[i].id, all[at++].id);
        pp_session_list_free(page, n);
    }
    for (const struct pp_session *from = NULL; at > 0; from = &all[at]) { /* back to the beginning */
        assert_ok(pp_store_session_page(st, from, true, 7, &page, &n, &err), err);
        assert_true(n > 0 && n <= at);
        at -= n;
        for (size_t i = 0; i < n; i++)
            assert_int_equal(page[i].id, all[at + i].id);
        pp_session_list_free(page, n);
    }
    assert_ok(pp_store_session_page(st, &all[n_all - 1], false, 7, &page, &n, &err), err);
    assert_int_equal(n, 0);
    pp_session_list_free(page, n);
    pp_session_list_free(all, n_all);
    pp_store_close(st);
}

/* All results of a search, by pages: each conversation once, newest hit first. */
static size_t search_by_pages(struct pp_store *st, const char *text, size_t size)
{
    int64_t known[200], last = INT64_MAX;
    struct pp_search what = question(text, size);
    struct pp_session *page;
    size_t n, total = 0;
    what.known = known;
    do {
        assert_ok(pp_store_search(st, &what, &page, &n, NULL, &err), err);
        for (size_t i = 0; i < n; i++) {
            for (size_t k = 0; k < total; k++)
                assert_true(known[k] != page[i].id);
            assert_true(page[i].hit <= last);
            last = page[i].hit;
            known[total++] = page[i].id;
        }
        what.n_known = total;
        what.before = last;
        pp_session_list_free(page, n);
    } while (n == size);
    return total;
}

static void pages_make_the_search(void **state)
{
    (void)state;
    struct pp_store *st = filled(83, 900);
    static const char *const texts[] = {"harbour", "the", "harbour the", "t", "ha", "\"harbour the\"", "世", "🙂"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct pp_session *all;
        size_t n;
        assert_ok(list_sessions(st, texts[i], &all, &n, &err), err);
        pp_session_list_free(all, n);
        assert_int_equal(search_by_pages(st, texts[i], 5), n);
        if (i == 0)
            assert_int_equal(n, 83);
    }
    pp_store_close(st);
}

/* --- words, excerpts, order ------------------------------------------------------------------------------- */

static int64_t talk(struct pp_store *st, const char *title, const char *text)
{
    struct pp_session s = {.title = (char *)(uintptr_t)title};
    assert_ok(pp_store_session_add(st, &s, &err), err);
    struct pp_message m = {.session = s.id, .role = PP_ROLE_USER, .content = (char *)(uintptr_t)text,
                           .content_len = strlen(text)};
    assert_ok(pp_store_message_add(st, &m, &err), err);
    return s.id;
}

static int64_t first_found(struct pp_store *st, const char *text, bool best_first, size_t *n, char excerpt[static 200])
{
    struct pp_search what = question(text, 10);
    struct pp_session *list;
    bool ranked;
    what.best_first = best_first;
    assert_ok(pp_store_search(st, &what, &list, n, &ranked, &err), err);
    assert_int_equal(ranked, best_first);
    int64_t id = *n ? list[0].id : 0;
    snprintf(excerpt, 200, "%s", *n && list[0].excerpt ? list[0].excerpt : "");
    pp_session_list_free(list, *n);
    return id;
}

static void phrases_excerpts_and_ranks(void **state)
{
    (void)state;
    char excerpt[200];
    size_t n;
    struct pp_store *st;
    assert_ok(pp_store_open(":memory:", &st, &err), err);
    int64_t a = talk(st, "", "a lighthouse, a lighthouse, nothing but a white lighthouse");
    int64_t b = talk(st, "",
                     "one two three four five six seven eight nine ten, then a house, white as light, a lighthouse "
                     "in the fog, and one two three four five six seven eight nine ten");
    int64_t c = talk(st, "The white house", "nothing of it here");
    assert_int_equal(first_found(st, "\"white lighthouse\"", false, &n, excerpt), a);
    assert_int_equal(n, 1);
    assert_int_equal(first_found(st, "white lighthouse", false, &n, excerpt), b); /* the newest hit */
    assert_int_equal(n, 2);
    assert_non_null(strstr(excerpt, "a lighthouse in the fog"));
    assert_non_null(strstr(excerpt, "…"));
    assert_null(strstr(excerpt, "one two three four"));
    assert_int_equal(first_found(st, "lighthouse", true, &n, excerpt), a); /* the best hit */
    assert_int_equal(n, 2);
    assert_int_equal(first_found(st, "white", true, &n, excerpt), c); /* a title counts most */
    assert_int_equal(n, 3);
    assert_string_equal(excerpt, "");
    assert_int_equal(first_found(st, "\"white light", false, &n, excerpt), a); /* the phrase is not closed yet */
    assert_int_equal(n, 1);
    assert_int_equal(first_found(st, "\"white light\"", false, &n, excerpt), 0);
    pp_store_close(st);
}

static bool at_once(void *user)
{
    ++*(int *)user;
    return true;
}

static void a_search_can_be_stopped(void **state)
{
    (void)state;
    int asked = 0;
    struct pp_store *st = filled(20, 200);
    struct pp_search what = question("harbour", 10);
    struct pp_session *list;
    size_t n;
    what.stop = at_once;
    what.user = &asked;
    assert_int_equal(pp_store_search(st, &what, &list, &n, NULL, &err), PP_ERR_CANCELLED);
    assert_true(asked > 0 && asked < 10);
    what.stop = NULL;
    assert_ok(pp_store_search(st, &what, &list, &n, NULL, &err), err); /* the next search is not cancelled */
    assert_int_equal(n, 10);
    pp_session_list_free(list, n);
    pp_store_close(st);
}

TEST_GROUP(store_scale)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_table_is_scanned),        cmocka_unit_test(work_does_not_grow),
        cmocka_unit_test(pages_make_the_list),        cmocka_unit_test(pages_make_the_search),
        cmocka_unit_test(phrases_excerpts_and_ranks), cmocka_unit_test(a_search_can_be_stopped),
    };
    return cmocka_run_group_tests_name("store_scale", tests, NULL, NULL);
}
