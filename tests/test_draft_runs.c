/* test_draft_runs.c - which bytes of an answer came from accepted draft tokens: the runs of such bytes, from the parts
 * of an answer through the database to the screen, where they are tinted. */
#include <cjson/cJSON.h>
#include <locale.h>
#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "src/branch.h"
#include "src/draft_runs.h"
#include "src/parts.h"
#include "tests/backend_fake.h"
#include "tests/support.h"
#include "ui/document.h"

static uint32_t next(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 16;
}

static void is(const struct pp_draft_runs *g, const char *json)
{
    struct pp_buf text = {0};
    pp_draft_runs_json(g, &text);
    assert_string_equal(pp_buf_cstr(&text), json);
    pp_buf_free(&text);
}

static void runs(void **state)
{
    struct pp_draft_runs g = {0}, copy = {0};
    (void)state;
    is(&g, "[]");
    pp_draft_runs_add(&g, 5, true);
    pp_draft_runs_add(&g, 0, false);
    pp_draft_runs_add(&g, 2, true);
    is(&g, "[0,7]");
    pp_draft_runs_extend(&copy, &g);
    pp_draft_runs_add(&g, 3, false);
    pp_draft_runs_add(&g, 4, true);
    pp_draft_runs_extend(&copy, &g);
    is(&copy, "[0,7,3,4]");
    pp_draft_runs_fit(&copy, 20);
    is(&copy, "[0,7,3,4,6]");
    pp_draft_runs_fit(&copy, 8);
    is(&copy, "[0,7,1]");
    pp_draft_runs_append(&copy, &g);
    is(&copy, "[0,7,1,7,3,4]");
    pp_draft_runs_fit(&copy, 0);
    is(&copy, "[]");
    pp_draft_runs_fit(&copy, 9);
    is(&copy, "[9]");
    assert_false(pp_draft_runs_any(&copy));
    for (int i = 0; i < 3 * PP_DRAFT_RUNS_MAX; i++) /* the number of runs is limited, but they cover all bytes */
        pp_draft_runs_add(&copy, 1, i % 2);
    assert_int_equal(copy.n, PP_DRAFT_RUNS_MAX + 1);
    uint64_t sum = 0;
    for (size_t i = 0; i < copy.n; i++)
        sum += copy.runs[i];
    assert_int_equal(sum, 9 + 3 * PP_DRAFT_RUNS_MAX);
    pp_draft_runs_free(&g);
    pp_draft_runs_free(&copy);
}

static void read_one(const char *text, size_t bytes, const char *expected)
{
    struct pp_draft_runs g = {0};
    cJSON *json = cJSON_Parse(text);
    pp_draft_runs_read(&g, json, bytes);
    is(&g, expected);
    cJSON_Delete(json);
    pp_draft_runs_free(&g);
}

/* The database may hold any text in place of valid runs. */
static void reading(void **state)
{
    (void)state;
    read_one("[3,4,5]", 12, "[3,4,5]");
    read_one("[0,4]", 12, "[0,4]");
    read_one("[3,4,5]", 11, "[]");
    read_one("[3,0,5]", 12, "[]");
    read_one("[3,-4]", 12, "[]");
    read_one("[3,1e300]", 12, "[]");
    read_one("[3,\"4\"]", 12, "[]");
    read_one("{\"a\":3}", 12, "[]");
    read_one("nonsense", 12, "[]");
}

/* When memory runs out, the rest of the answer has no marks, but is otherwise complete. */
static void no_memory(void **state)
{
    struct pp_draft_runs g = {0}, other = {0};
    (void)state;
    pp_draft_runs_add(&g, 3, true);
    pp_draft_runs_extend(&other, &g);
    pp_mem_fail_at(1, 1);
    for (int i = 0; i < 100; i++)
        pp_draft_runs_add(&g, 1, i % 2);
    pp_mem_fail_at(0, 0);
    pp_draft_runs_add(&g, 1, true);
    is(&g, "[]");
    pp_draft_runs_extend(&other, &g);
    is(&other, "[]");
    pp_draft_runs_free(&g);
    pp_draft_runs_free(&other);
}

/* Reasoning has no marks, however it is split; text reclassified as reasoning loses them. */
static void parts(void **state)
{
    static const char text[] = "<think>a b</think>\n\nHello there, you";
    struct pp_reasoning r = pp_reasoning_of("</think>", NULL);
    char marks[sizeof text];
    (void)state;
    for (size_t i = 0; i < sizeof marks; i++)
        marks[i] = i < 25 || i > 30;
    for (size_t step = 1; step < sizeof text; step++) {
        struct pp_parts p = {0};
        assert_true(pp_parts_begin(&p, &r, PP_BEGINS_FREE));
        for (size_t at = 0; at < sizeof text - 1; at += step)
            pp_parts_add(&p, text + at, marks + at, at + step < sizeof text ? step : sizeof text - 1 - at, 1, 0);
        pp_parts_end(&p, 0);
        assert_string_equal(pp_buf_cstr(&p.text), "Hello there, you");
        is(&p.drafted, "[0,5,6,5]");
        pp_parts_free(&p);
    }
    struct pp_parts p = {0};
    assert_true(pp_parts_begin(&p, &r, PP_BEGINS_FREE));
    pp_parts_add(&p, "abc</think>de", "\1\1\1\0\0\0\0\0\0\0\0\0\1", 13, 1, 0);
    pp_parts_end(&p, 0);
    is(&p.drafted, "[1,1]");
    pp_parts_free(&p);
}

/* --- to the screen ------------------------------------------------------------------------------------------ */

/* A character for each byte of the layout's text: '#' where it is tinted. */
static char *tint_of(const struct pp_document *doc)
{
    const struct pp_layout *l = &doc->layout;
    char *s = pp_strdup(pp_buf_cstr(&l->text));
    for (size_t i = 0; i < l->n_runs; i++) {
        size_t end = i + 1 < l->n_runs ? l->runs[i + 1].start : l->text.len;
        if (l->runs[i].style & PP_TINT)
            memset(s + l->runs[i].start, '#', end - l->runs[i].start);
    }
    return s;
}

static void tints(const char *source, bool markdown, const uint32_t *marks, size_t n, const char *expected)
{
    struct pp_document doc = {0};
    pp_document_update_tinted(&doc, source, strlen(source), 60, markdown, PP_SLOT_ASSISTANT, marks, n);
    char *s = tint_of(&doc);
    assert_string_equal(s, expected);
    pp_free(s);
    pp_document_free(&doc);
}

static void tint(void **state)
{
    (void)state;
    tints("plain words here", false, (const uint32_t[]){6, 5}, 2, "plain ##### here");
    tints("some **bold** and `code` here", true, (const uint32_t[]){0, 9, 12, 8}, 4, "#######" "ld and co" "#######");
    tints("a\n\n- one\n- two", true, (const uint32_t[]){5, 3, 3, 1}, 4, "a• ###• #wo");
    tints("```c\nint x;\n```\nend", true, (const uint32_t[]){5, 3, 8, 2}, 4, "c### x;##d");
    tints("tab\there \xe2\x82\xac\xe2\x82\xac", false, (const uint32_t[]){4, 4, 2, 2}, 4, "tab #### ###\xe2\x82\xac");
    tints("a &amp; b \033", true, (const uint32_t[]){0, 12}, 2, "##&######");
}

/* The tint does not change the text, and streaming leads to the same tint as formatting the whole text at once. */
static void tint_changes_no_text(void **state)
{
    static const char alphabet[] = "ab \n\t*_`#->[]()&;~1.\r\033\xe2\x82\xac\xc3\xa9\xff";
    uint32_t seed = 3;
    (void)state;
    for (int round = 0; round < 300; round++) {
        char text[400];
        uint32_t marks[60];
        struct pp_document with = {0}, without = {0}, streamed = {0};
        bool markdown = round % 4 > 0;
        for (size_t i = 0; i < sizeof text; i++)
            text[i] = alphabet[next(&seed) % (sizeof alphabet - 1)];
        for (size_t i = 0; i < 60; i++)
            marks[i] = (i > 0) + next(&seed) % 15;
        int width = 1 + round % 50;
        pp_document_update(&without, text, sizeof text, width, markdown, PP_SLOT_ASSISTANT);
        pp_document_update_tinted(&with, text, sizeof text, width, markdown, PP_SLOT_ASSISTANT, marks, 60);
        assert_int_equal(with.layout.text.len, without.layout.text.len);
        assert_memory_equal(with.layout.text.data, without.layout.text.data, with.layout.text.len);
        assert_int_equal(with.layout.n_lines, without.layout.n_lines);
        size_t known = 0;
        for (size_t at = 0; known < 60 && at + marks[known] < sizeof text; known++) {
            at += marks[known];
            pp_document_update_tinted(&streamed, text, at, width, markdown, PP_SLOT_ASSISTANT, marks, known + 1);
        }
        pp_document_update_tinted(&streamed, text, sizeof text, width, markdown, PP_SLOT_ASSISTANT, marks, 60);
        char *a = tint_of(&with), *b = tint_of(&streamed);
        assert_string_equal(a, b);
        pp_free(a);
        pp_free(b);
        pp_document_update(&streamed, text, sizeof text, width, markdown, PP_SLOT_ASSISTANT); /* switched off again */
        a = tint_of(&streamed);
        assert_null(strchr(a, '#') && !memchr(text, '#', sizeof text) ? a : NULL);
        pp_free(a);
        pp_document_free(&with);
        pp_document_free(&without);
        pp_document_free(&streamed);
    }
}

static void shown_runs(const char *expected)
{
    const struct pp_chat_message *m = fix_message(1);
    struct pp_draft_runs g = {0};
    for (size_t i = 0; i < m->n_drafted; i++)
        pp_draft_runs_add(&g, m->drafted[i], i % 2);
    is(&g, expected);
    pp_draft_runs_free(&g);
}

/* The tint while an answer streams, when it is continued, and after the conversation was opened again. */
static void kept(void **state)
{
    (void)state;
    int64_t id = fix_ask("Hello");
    fake_drafted(&fix, "Hi there, ", 3, 5);
    pump_until(&fix, fix_message(1)->len == 10);
    shown_runs("[3,5,2]");
    fake_text(&fix, "you", 1);
    pump_until(&fix, fix_message(1)->len == 13);
    shown_runs("[3,5,5]");
    fake_done(&fix, PP_FINISH_NONE, PP_ERR_CANCELLED);
    pump_until(&fix, fixture_state(&fix) == PP_STATE_IDLE);
    pp_controller_continue(fix.c);
    assert_string_equal(fix.fake->continue_text, "Hi there, you");
    assert_string_equal(fix.fake->continue_drafted, "[3,5,5]");
    fake_drafted(&fix, " fox", 0, 4);
    fix.fake->stats = "{\"guessed\":[3,5,5,4]}";
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, fixture_state(&fix) == PP_STATE_IDLE);
    shown_runs("[3,5,5,4]");
    pp_controller_new_session(fix.c);
    pump_until(&fix, pp_controller_n_messages(fix.c) == 0);
    pp_controller_open(fix.c, id);
    pump_until(&fix, pp_controller_n_messages(fix.c) == 2);
    shown_runs("[3,5,5,4]");
}

/* For each position of a draft, how many tokens were accepted there out of those checked; shown until the next
 * answer. */
static void by_place(void **state)
{
    const struct pp_status *s = pp_controller_status(fix.c);
    (void)state;
    fix.fake->done = (struct pp_stats){.draft_tokens = 50, .draft_accepted = 27, .plain_ns = 131, .decode_ns = 100,
                                       .decode_tokens = 40, .draft_verified_at = {20, 18, 8},
                                       .draft_accepted_at = {18, 8, 1}};
    fix_ask("Hello");
    fake_text(&fix, "Hi", 1);
    assert_int_equal(s->draft_depth, 0);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, fixture_state(&fix) == PP_STATE_IDLE);
    assert_int_equal(s->draft_depth, 3);
    assert_true(s->drafted_at[0] == 20 && s->drafted_at[1] == 18 && s->drafted_at[2] == 8);
    assert_true(s->accepted_at[0] == 18 && s->accepted_at[1] == 8 && s->accepted_at[2] == 1);
    assert_near(s->acceptance, 0.54, 1e-6);
    assert_near(s->speedup, 1.31, 1e-6);
    fix.fake->done = (struct pp_stats){.draft_tokens = 5, .plain_ns = 166, .decode_ns = 100, .decode_tokens = 4,
                                       .draft_verified_at = {3, 2}};
    fixture_turn(&fix, "And soon?", "Soon");
    assert_true(s->acceptance == 0 && s->speedup == 0); /* four tokens are too few to measure the speed */
    fix.fake->done = (struct pp_stats){0};
    fixture_turn(&fix, "And now?", "Nothing");
    assert_true(s->draft_depth == 0 && s->acceptance < 0);
}

/* Which speed-ups are reported: those that were measured long enough, and no gain without accepted draft tokens. */
static void speedups(void **state)
{
    (void)state;
    assert_near(pp_speedup(1.5, PP_SPEEDUP_TOKENS, 9), 1.5, 1e-6);
    assert_near(pp_speedup(0.9, 500, 0), 0.9, 1e-6);
    assert_near(pp_speedup(1.66, 500, 0), 1, 1e-6); /* no draft token was accepted */
    assert_true(pp_speedup(1.66, PP_SPEEDUP_TOKENS - 1, 3) == 0);
    assert_true(pp_speedup(0, 500, 3) == 0 && pp_speedup(-1, 500, 3) == 0 && pp_speedup(1e9, 500, 3) == 0 &&
                pp_speedup((double)NAN, 500, 3) == 0);
}

static int utf8_locale(void **state)
{
    (void)state;
    return setlocale(LC_CTYPE, "C.UTF-8") || setlocale(LC_CTYPE, "en_US.UTF-8") ? 0 : -1;
}

TEST_GROUP(guessed)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs),  cmocka_unit_test(reading),
        cmocka_unit_test(no_memory), cmocka_unit_test(parts),
        cmocka_unit_test(speedups),
        cmocka_unit_test(tint),  cmocka_unit_test(tint_changes_no_text),
        cmocka_unit_test_setup_teardown(kept, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(by_place, fix_setup_ready, fix_teardown),
    };
    return cmocka_run_group_tests_name("guessed", tests, utf8_locale, NULL);
}
