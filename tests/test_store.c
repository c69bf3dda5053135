/* test_store.c - conversations in SQLite: what is kept of them, and found again. */
#include "tests/support.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "src/store.h"
#include "tests/fill_store.h"
#include "tests/store_fixture.h"

static struct pp_error err;

/* --- sessions ---------------------------------------------------------------------------------------------------- */

static void private_files(void **state)
{
    (void)state;
    struct stat st;
    const char *path = fresh_store();
    char folder[256], wal[300];
    mode_t old = umask(0);
    struct pp_store *s = open_store(path);
    add_session(s, "x");
    snprintf(wal, sizeof wal, "%s-wal", path);
    assert_int_equal(stat(wal, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    pp_store_close(s);
    umask(old);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
    assert_int_equal(stat(folder, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
}

static void session_round_trip(void **state)
{
    (void)state;
    const char *path = fresh_store();
    struct pp_store *st = open_store(path);
    struct pp_session in = {.title = "A \"quoted\" título", .model = "m.gguf", .template_name = "chatml",
                            .system = "Be brief.",
                            .adapters = "[{\"path\":\"a\",\"scale\":1}]", .settings = "{\"temp\":0}"}, out;
    assert_ok(pp_store_session_add(st, &in, &err), err);
    assert_int_equal(strlen(in.key), 16);
    assert_true(in.created > 1600000000 && in.updated == in.created);
    pp_store_close(st);

    st = open_store(path); /* after opening it again */
    assert_ok(pp_store_session_get(st, in.id, &out, &err), err);
    assert_string_equal(out.title, in.title);
    assert_string_equal(out.model, "m.gguf");
    assert_string_equal(out.template_name, "chatml");
    assert_string_equal(out.system, "Be brief.");
    assert_string_equal(out.adapters, in.adapters);
    assert_string_equal(out.settings, in.settings);
    assert_string_equal(out.key, in.key);
    assert_int_equal(out.head, 0);
    assert_int_equal(out.n_messages, 0);

    int64_t a = add_message(st, in.id, 0, PP_ROLE_USER, "one");
    int64_t b = add_message(st, in.id, a, PP_ROLE_ASSISTANT, "two");
    pp_free(out.title);
    out.title = pp_strdup("renamed");
    out.head = a;
    assert_ok(pp_store_session_update(st, &out, &err), err);
    pp_session_clear(&out);
    assert_ok(pp_store_session_latest(st, &out, &err), err);
    assert_string_equal(out.title, "renamed");
    assert_int_equal(out.head, a);
    assert_int_equal(out.n_messages, 2);

    int64_t other = add_session(st, "other");
    int64_t foreign = add_message(st, other, 0, PP_ROLE_USER, "x");
    out.head = foreign; /* a message of another conversation */
    assert_int_equal(pp_store_session_update(st, &out, &err), PP_ERR_USAGE);
    out.head = b;
    assert_ok(pp_store_session_update(st, &out, &err), err); /* no part of the failed change is left */
    out.id = 999;
    assert_int_equal(pp_store_session_update(st, &out, &err), PP_ERR_NOT_FOUND);
    pp_session_clear(&out);
    pp_store_close(st);
    assert_store_sound(path);
}

static void find_by_prefix(void **state)
{
    (void)state;
    const char *path = fresh_store();
    struct pp_session out;
    struct pp_store *st = open_store(path);
    assert_int_equal(pp_store_session_latest(st, &out, &err), PP_ERR_NOT_FOUND);
    add_session(st, "a");
    add_session(st, "b");
    pp_store_close(st);
    raw_sql(path, "UPDATE session SET key = 'abcd000000000001' WHERE id = 1;"
                  "UPDATE session SET key = 'abcdff0000000001' WHERE id = 2;");
    st = open_store(path);
    assert_ok(pp_store_session_find(st, "abcd0", &out, &err), err);
    assert_int_equal(out.id, 1);
    pp_session_clear(&out);
    assert_ok(pp_store_session_find(st, "ABCDFF0000000001", &out, &err), err);
    assert_int_equal(out.id, 2);
    pp_session_clear(&out);
    assert_int_equal(pp_store_session_find(st, "abcd", &out, &err), PP_ERR_USAGE);
    assert_non_null(strstr(err.text, "several"));
    assert_null(out.title);
    assert_int_equal(pp_store_session_find(st, "abc", &out, &err), PP_ERR_USAGE);
    assert_int_equal(pp_store_session_find(st, "0000", &out, &err), PP_ERR_NOT_FOUND);
    assert_int_equal(pp_store_session_find(st, "ab%d", &out, &err), PP_ERR_NOT_FOUND);
    assert_int_equal(pp_store_session_find(st, "abcd0000000000010", &out, &err), PP_ERR_NOT_FOUND);
    assert_int_equal(pp_store_session_find(st, "", &out, &err), PP_ERR_USAGE);
    pp_store_close(st);
}

static void newest_first(void **state)
{
    (void)state;
    size_t n;
    struct pp_session *list;
    struct pp_store *st = open_store(":memory:");
    int64_t a = add_session(st, "a"), b = add_session(st, "b");
    assert_ok(list_sessions(st, NULL, &list, &n, &err), err);
    assert_int_equal(n, 2);
    assert_int_equal(list[0].id, b);
    pp_session_list_free(list, n);
    usleep(3000);
    add_message(st, a, 0, PP_ROLE_USER, "now a is newer, in the same second");
    assert_ok(list_sessions(st, "", &list, &n, &err), err);
    assert_int_equal(list[0].id, a);
    pp_session_list_free(list, n);
    struct pp_session latest;
    assert_ok(pp_store_session_latest(st, &latest, &err), err);
    assert_int_equal(latest.id, a);
    pp_session_clear(&latest);
    pp_store_close(st);
}

/* --- messages ---------------------------------------------------------------------------------------------------- */

/* A conversation that was used while the clock was ahead does not stay the latest one for years. */
static void clock_set_back(void **state)
{
    (void)state;
    const char *path = fresh_store();
    struct pp_store *st = open_store(path);
    const int64_t ahead = add_session(st, "ahead"), now = add_session(st, "now");
    pp_store_close(st);
    raw_sql(path, "UPDATE session SET updated_ms = updated_ms + 400000000000 WHERE title = 'ahead'");
    st = open_store(path);
    struct pp_session latest;
    for (int i = 0; i < 4; i++) {
        const int64_t used = i % 2 ? ahead : now;
        add_message(st, used, 0, PP_ROLE_USER, "hello");
        assert_ok(pp_store_session_latest(st, &latest, &err), err);
        assert_int_equal(latest.id, used);
        pp_session_clear(&latest);
    }
    struct pp_session copy = {.title = (char[]){"a copy"}, .head = 1};
    struct pp_message m = {.role = PP_ROLE_USER, .content = (char[]){"hello"}, .content_len = 5};
    assert_ok(pp_store_conversation_add(st, &copy, &m, 1, &err), err);
    assert_ok(pp_store_session_latest(st, &latest, &err), err);
    assert_int_equal(latest.id, copy.id);
    pp_session_clear(&latest);
    copy.created = copy.updated = 1000; /* a conversation with a date of its own keeps it */
    copy.head = 1;
    const int64_t first = copy.id;
    assert_ok(pp_store_conversation_add(st, &copy, &m, 1, &err), err);
    assert_ok(pp_store_session_latest(st, &latest, &err), err);
    assert_int_equal(latest.id, first);
    pp_session_clear(&latest);
    pp_store_close(st);
}

/* Dates from a file do not affect the dates of later use. */
static void from_the_future(void **state)
{
    (void)state;
    enum { YEARS = 1000 };
    const int64_t far = (int64_t)time(NULL) + (int64_t)YEARS * 31556952;
    struct pp_store *st = open_store(":memory:");
    struct pp_session copy = {.title = (char[]){"a copy"}, .created = far, .updated = far, .head = 1}, got;
    struct pp_message m[2] = {{.role = PP_ROLE_USER, .content = (char[]){"hello"}, .content_len = 5}};
    assert_ok(pp_store_conversation_add(st, &copy, m, 1, &err), err);
    assert_ok(pp_store_session_get(st, copy.id, &got, &err), err);
    assert_true(got.created == far && got.updated < far - 1000);
    pp_session_clear(&got);
    m[1] = m[0];
    m[1].id = 0;
    m[1].parent = 1;
    assert_ok(pp_store_conversation_extend(st, copy.id, m, 2, 2, far, &err), err);
    add_message(st, add_session(st, "here"), 0, PP_ROLE_USER, "hello");
    assert_ok(pp_store_session_latest(st, &got, &err), err);
    assert_true(strcmp(got.title, "here") == 0 && got.updated < far - 1000);
    pp_session_clear(&got);
    pp_store_close(st);
}

static void message_tree(void **state)
{
    (void)state;
    size_t n;
    int64_t leaf;
    struct pp_message *list;
    struct pp_store *st = open_store(":memory:");
    int64_t s = add_session(st, "tree"), other = add_session(st, "other");
    /*  q ─┬─ a1 ── q2 ── b
     *     └─ a2                 and a second root r */
    int64_t q = add_message(st, s, 0, PP_ROLE_USER, "q");
    int64_t a1 = add_message(st, s, q, PP_ROLE_ASSISTANT, "a1");
    int64_t q2 = add_message(st, s, a1, PP_ROLE_USER, "q2");
    int64_t a2 = add_message(st, s, q, PP_ROLE_ASSISTANT, "a2");
    int64_t b = add_message(st, s, q2, PP_ROLE_ASSISTANT, "b");
    int64_t r = add_message(st, s, 0, PP_ROLE_USER, "r");

    assert_ok(pp_store_branch(st, b, &list, &n, &err), err);
    assert_int_equal(n, 4);
    assert_int_equal(list[0].id, q);
    assert_int_equal(list[0].parent, 0);
    assert_int_equal(list[0].n_siblings, 2);
    assert_int_equal(list[0].sibling, 0);
    assert_int_equal(list[1].id, a1);
    assert_int_equal(list[1].n_siblings, 2);
    assert_int_equal(list[1].sibling, 0);
    assert_int_equal(list[2].id, q2);
    assert_int_equal(list[2].n_siblings, 1);
    assert_int_equal(list[3].id, b);
    assert_int_equal(list[3].role, PP_ROLE_ASSISTANT);
    assert_string_equal(list[3].content, "b");
    pp_message_list_free(list, n);

    assert_ok(pp_store_branch(st, a2, &list, &n, &err), err);
    assert_int_equal(n, 2);
    assert_int_equal(list[1].sibling, 1);
    pp_message_list_free(list, n);
    assert_ok(pp_store_branch(st, 0, &list, &n, &err), err);
    assert_int_equal(n, 0);
    assert_int_equal(pp_store_branch(st, 12345, &list, &n, &err), PP_ERR_NOT_FOUND);

    assert_ok(pp_store_descend(st, s, q, 0, &leaf, &err), err);
    assert_int_equal(leaf, b);
    assert_ok(pp_store_descend(st, s, q, 1, &leaf, &err), err);
    assert_int_equal(leaf, a2);
    assert_ok(pp_store_descend(st, s, 0, 0, &leaf, &err), err);
    assert_int_equal(leaf, b);
    assert_ok(pp_store_descend(st, s, 0, 1, &leaf, &err), err);
    assert_int_equal(leaf, r);
    assert_int_equal(pp_store_descend(st, s, q, 2, &leaf, &err), PP_ERR_NOT_FOUND);
    assert_int_equal(pp_store_descend(st, s, q, -1, &leaf, &err), PP_ERR_NOT_FOUND);

    struct pp_message m = {.session = other, .parent = q, .role = PP_ROLE_USER, .content = "x", .content_len = 1};
    assert_int_equal(pp_store_message_add(st, &m, &err), PP_ERR_NOT_FOUND); /* a parent in another conversation */
    m = (struct pp_message){.session = 999, .role = PP_ROLE_USER};
    assert_int_equal(pp_store_message_add(st, &m, &err), PP_ERR_NOT_FOUND);
    struct pp_session session;
    assert_ok(pp_store_session_get(st, s, &session, &err), err);
    assert_int_equal(session.head, r);
    assert_int_equal(session.n_messages, 6);
    pp_session_clear(&session);
    pp_store_close(st);
}

static void message_round_trip(void **state)
{
    (void)state;
    struct pp_message out;
    struct pp_store *st = open_store(":memory:");
    int64_t s = add_session(st, "");
    char text[] = "a\0b \xff invalid \xf0\x9f\x8d\x8f";
    struct pp_message m = {.session = s, .role = PP_ROLE_ASSISTANT, .state = PP_MESSAGE_PARTIAL, .content = text,
                           .content_len = sizeof text - 1, .model = "starter (Q4_K_M)", .params = "{\"seed\":1}"};
    assert_ok(pp_store_message_add(st, &m, &err), err);
    assert_ok(pp_store_message_get(st, m.id, &out, &err), err);
    assert_int_equal(out.content_len, sizeof text - 1);
    assert_memory_equal(out.content, text, sizeof text);
    assert_int_equal(out.state, PP_MESSAGE_PARTIAL);
    assert_string_equal(out.model, "starter (Q4_K_M)");
    assert_string_equal(out.adapters, "");
    assert_string_equal(out.params, "{\"seed\":1}");
    pp_message_clear(&out);

    assert_ok(write_answer(st, m.id, "done", PP_MESSAGE_COMPLETE, "{\"tps\":9}", 7, &err), err);
    assert_ok(write_answer(st, m.id, "done!", PP_MESSAGE_CANCELLED, NULL, 0, &err), err);
    assert_ok(pp_store_message_get(st, m.id, &out, &err), err);
    assert_string_equal(out.content, "done!");
    assert_int_equal(out.state, PP_MESSAGE_CANCELLED);
    assert_string_equal(out.stats, "{\"tps\":9}"); /* kept as it was */
    assert_int_equal(out.n_tokens, 7);
    assert_string_equal(out.reasoning, "");
    pp_message_clear(&out);
    const struct pp_answer_text thought = {"yes", 3, "a\0b", 3};
    assert_ok(pp_store_message_write(st, m.id, &thought, PP_MESSAGE_COMPLETE, NULL, 0, &err), err);
    assert_ok(write_answer(st, m.id, "no", PP_MESSAGE_COMPLETE, NULL, 0, &err), err);
    assert_ok(pp_store_message_get(st, m.id, &out, &err), err);
    assert_string_equal(out.content, "no");
    assert_int_equal(out.reasoning_len, 3); /* kept as it was */
    assert_memory_equal(out.reasoning, "a\0b", 4);
    pp_message_clear(&out);
    assert_int_equal(write_answer(st, 999, "x", PP_MESSAGE_COMPLETE, NULL, 0, &err), PP_ERR_NOT_FOUND);
    assert_int_equal(pp_store_message_get(st, 999, &out, &err), PP_ERR_NOT_FOUND);
    assert_string_equal(pp_role_name(PP_ROLE_SYSTEM), "system");
    assert_string_equal(pp_role_name(PP_ROLE_USER), "user");
    assert_string_equal(pp_role_name(PP_ROLE_ASSISTANT), "assistant");
    pp_store_close(st);
}

/* Longer than SQLite can nest triggers. */
static void delete_long_conversation(void **state)
{
    (void)state;
    const char *path = fresh_store();
    struct pp_session gone;
    struct pp_store *st = open_store(path);
    int64_t keep = add_session(st, "keep"), s = add_session(st, "long");
    int64_t kept = add_message(st, keep, 0, PP_ROLE_USER, "kept");
    pp_store_close(st);
    raw_sql(path,
            "PRAGMA foreign_keys = OFF;"
            "WITH RECURSIVE c (i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM c WHERE i < 3001)"
            " INSERT INTO message (id, session, parent, role, state, content, model, adapters, params, stats,"
            " n_tokens, created_ms) SELECT i, 2, nullif(i - 1, 1), 1, 0, 'word' || i, '', '', '', '', 0, 0 FROM c;"
            "UPDATE session SET head = 3001 WHERE id = 2;");
    assert_store_sound(path);
    st = open_store(path);
    size_t n;
    struct pp_message *list;
    assert_ok(pp_store_branch(st, 3001, &list, &n, &err), err);
    assert_int_equal(n, 3000);
    assert_int_equal(list[2999].id, 3001);
    pp_message_list_free(list, n);
    assert_ok(pp_store_session_delete(st, s, &err), err);
    assert_int_equal(pp_store_session_delete(st, s, &err), PP_ERR_NOT_FOUND);
    assert_int_equal(pp_store_session_get(st, s, &gone, &err), PP_ERR_NOT_FOUND);
    assert_true(add_message(st, keep, kept, PP_ROLE_ASSISTANT, "next") > 3001); /* ids are never used again */
    pp_store_close(st);
    assert_int_equal(raw_int(path, "SELECT count(*) FROM message"), 2);
    assert_int_equal(raw_int(path, "SELECT count(*) FROM message_text WHERE message_text MATCH 'word77'"), 0);
    assert_store_sound(path);
}

/* --- search ------------------------------------------------------------------------------------------------------ */

static void search(void **state)
{
    (void)state;
    const char *path = fresh_store();
    struct pp_store *st = open_store(path);
    int64_t a = add_session(st, "Coffee brewing"), b = add_session(st, "");
    add_session(st, "Sailing");
    int64_t m = add_message(st, b, 0, PP_ROLE_USER, "How hot is espresso? It says \"don't\" AND NOT col:umn");
    add_message(st, a, 0, PP_ROLE_USER, "Über den Kaffee");
    assert_int_equal(hits(st, "coffee"), 1);
    assert_int_equal(hits(st, "COFF"), 1);          /* the beginning of a word */
    assert_int_equal(hits(st, "coffee brew"), 1);
    assert_int_equal(hits(st, "coff brewing"), 0);  /* only the last word may be incomplete */
    assert_int_equal(hits(st, "espresso hot"), 1);
    assert_int_equal(hits(st, "espresso sailing"), 0);
    assert_int_equal(hits(st, "uber"), 1);          /* without its dots */
    assert_int_equal(hits(st, "sail"), 1);
    assert_int_equal(hits(st, ""), 3);
    assert_int_equal(hits(st, "  \t "), 3);
    static const char *const harmless[] = {"\"", "\"\"\"", "AND", "NOT", "OR NOT", "NEAR(", "*", "^x", "col:umn", "a-b",
                                           "(", ")", "'; DROP TABLE message",
                                           "{a b}:c", "\xff\xfe", "+ +", "don't", "%_", "\\", "a*b*", "!!!"};
    for (size_t i = 0; i < sizeof harmless / sizeof harmless[0]; i++)
        hits(st, harmless[i]);
    assert_int_equal(hits(st, "col:umn"), 1);
    assert_int_equal(hits(st, "\"don't\""), 1);
    char many[2000];
    memset(many, 0, sizeof many);
    for (int i = 0; i < 900; i++)
        strcat(many, "x ");
    assert_int_equal(hits(st, many), 0);

    /* triggers keep the index up to date: rewriting, renaming, deleting */
    assert_ok(write_answer(st, m, "tea instead", PP_MESSAGE_COMPLETE, NULL, 0, &err), err);
    assert_int_equal(hits(st, "espresso"), 0);
    assert_int_equal(hits(st, "tea"), 1);
    struct pp_session s;
    assert_ok(pp_store_session_get(st, a, &s, &err), err);
    pp_free(s.title);
    s.title = pp_strdup("Kettles");
    assert_ok(pp_store_session_update(st, &s, &err), err);
    pp_session_clear(&s);
    assert_int_equal(hits(st, "coffee"), 0);
    assert_int_equal(hits(st, "kettles"), 1);
    assert_ok(pp_store_session_delete(st, a, &err), err);
    assert_int_equal(hits(st, "kettles"), 0);
    assert_int_equal(hits(st, "uber"), 0);
    pp_store_close(st);
    assert_store_sound(path);
}

/* Words within text of scripts without blanks, and words in letters among them. */
static void search_without_blanks(void **state)
{
    (void)state;
    static const struct {
        const char *query;
        size_t n;
    } asked[] = {
        {"文章", 1},   {"です", 1},          {"日本", 2},     {"日本語の文章", 1}, {"語本", 0},    {"文章 日本", 1},
        {"模型", 1},   {"gpt", 1},           {"GPT模型", 1},  {"カレ", 1},         {"ไทย", 1},     {"ไทยภ", 0},
        {"역사", 1},   {"한국 역사", 1},     {"𠮷野", 1},     {"ｶﾚｰ", 1},          {"日本 -gpt", 1}, {"gpt4", 0},
        {"\"文章で\"", 1}, {"\"文 章\"", 1}, {"、", 0},     {"um", 1},           {"lauter", 0}, {"ü文", 1},
    };
    struct pp_session *list;
    size_t n;
    const char *path = fresh_store();
    struct pp_store *st = open_store(path);
    int64_t s[3] = {add_session(st, "今日の予定"), add_session(st, "ภาษาไทยไม่มีช่องว่าง"), add_session(st, "")};
    int64_t m = add_message(st, s[0], 0, PP_ROLE_USER, "これは日本語の文章です。カレー、ｶﾚｰ。𠮷野家");
    add_message(st, s[1], 0, PP_ROLE_USER, "我们在日本使用GPT模型。 Umlaute ü文");
    add_message(st, s[2], 0, PP_ROLE_USER, "한국의 역사는 깁니다");
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
        if (hits(st, asked[i].query) != asked[i].n)
            fail_msg("%s: %zu hits", asked[i].query, hits(st, asked[i].query));
    assert_int_equal(hits(st, "予定"), 1);
    assert_ok(list_sessions(st, "文章", &list, &n, &err), err);
    assert_non_null(strstr(list[0].excerpt, "これは日本語の文章です。カレー"));
    pp_session_list_free(list, n);
    assert_ok(write_answer(st, m, "別の文", PP_MESSAGE_COMPLETE, NULL, 0, &err), err);
    assert_int_equal(hits(st, "日本"), 1);
    assert_int_equal(hits(st, "の文"), 1);
    pp_store_close(st);
    assert_store_sound(path);
}

TEST_GROUP(store)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(private_files),
        cmocka_unit_test(session_round_trip),
        cmocka_unit_test(find_by_prefix),
        cmocka_unit_test(newest_first),
        cmocka_unit_test(clock_set_back),
        cmocka_unit_test(from_the_future),
        cmocka_unit_test(message_tree),
        cmocka_unit_test(message_round_trip),
        cmocka_unit_test(search),
        cmocka_unit_test(search_without_blanks),
        cmocka_unit_test(delete_long_conversation),
    };
    return cmocka_run_group_tests_name("store", tests, NULL, NULL);
}
