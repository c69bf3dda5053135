/* test_completion.c - completing the word that is being typed from a list of names. */
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "src/completion.h"
#include "tests/support.h"

static const char lora[] = "[NAME [STRENGTH | on] | off | save NAME | preset NAME | add FILE]";

/* expected NULL: no name begins like that. several: the names that are listed. */
static void is_completed(const char *line, size_t at, const char *expected, const char *several)
{
    static const char *const names[] = {"bard", "barge\nin two lines", "barista", "Owl", "Owl"};
    struct pp_completion c;
    struct pp_buf list = {0};
    pp_completion_begin(&c, line, at);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        pp_completion_offer(&c, names[i]);
    pp_completion_offer_words(&c, lora);
    char *got = pp_completion_take(&c, &list);
    if (!expected)
        assert_null(got);
    else
        assert_string_equal(got, expected);
    assert_string_equal(pp_buf_cstr(&list), several);
    pp_free(got);
    pp_buf_free(&list);
}

static void completed(void **state)
{
    (void)state;
    is_completed("/lora b", 6, "/lora bar", "");
    is_completed("/lora bar", 6, "/lora bar", "bard  barista");
    is_completed("/lora BAR", 6, "/lora BAR", "bard  barista");
    is_completed("/lora bari", 6, "/lora barista ", "");
    is_completed("/lora o", 6, "/lora o", "Owl  off"); /* "on" is possible only after a name */
    is_completed("/lora ow", 6, "/lora Owl ", "");
    is_completed("/lora pre", 6, "/lora preset ", "");
    is_completed("/lora bard 0", 6, NULL, "");
    is_completed("/lora x", 6, NULL, "");
    is_completed("/lora ", 6, "/lora ", "bard  barista  Owl  off  save  preset  add");
    is_completed("/compare none bard:0.5+BARI", 23, "/compare none bard:0.5+barista ", "");
}

static void many(void **state)
{
    struct pp_completion c;
    struct pp_buf list = {0};
    char name[40];
    (void)state;
    pp_completion_begin(&c, "/m ", 3);
    for (int i = 0; i < 1000; i++) {
        snprintf(name, sizeof name, "%d-rather-long-name", i);
        pp_completion_offer(&c, name);
    }
    char *got = pp_completion_take(&c, &list);
    assert_string_equal(got, "/m ");
    assert_true(list.len < 700 && strcmp(list.data + list.len - strlen("  …"), "  …") == 0);
    pp_free(got);
    pp_buf_free(&list);
}

/* Completion does not split a character, even if two names have its first byte in common. */
static void whole_letters(void **state)
{
    struct pp_completion c;
    struct pp_buf list = {0};
    (void)state;
    pp_completion_begin(&c, "/m ", 3);
    pp_completion_offer(&c, "über");
    pp_completion_offer(&c, "ähnlich");
    char *got = pp_completion_take(&c, &list);
    assert_string_equal(got, "/m ");
    assert_string_equal(pp_buf_cstr(&list), "über  ähnlich");
    pp_free(got);
    pp_buf_free(&list);
    pp_completion_begin(&c, "/m a", 3);
    pp_completion_offer(&c, "aaü");
    pp_completion_offer(&c, "aaä");
    got = pp_completion_take(&c, &list);
    assert_string_equal(got, "/m aa");
    assert_string_equal(pp_buf_cstr(&list), "");
    pp_free(got);
    pp_buf_free(&list);
    pp_completion_begin(&c, "/m ", 3);
    pp_completion_offer(&c, "\xc3"); /* a file's name may have any bytes */
    got = pp_completion_take(&c, &list);
    assert_string_equal(got, "/m ");
    pp_free(got);
    pp_buf_free(&list);
}

TEST_GROUP(completion)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(completed), cmocka_unit_test(many),
                                       cmocka_unit_test(whole_letters)};
    return cmocka_run_group_tests_name("completion", tests, NULL, NULL);
}
