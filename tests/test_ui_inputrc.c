/* test_ui_inputrc.c - files of the user's keys that include each other: what is left out before readline reads them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "tests/support.h"
#include "ui/inputrc.h"

static struct pp_error err;
static struct pp_buf flat;

static void write_keys(const char *name, const char *text)
{
    FILE *f = fopen(name, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static enum pp_code look(const char *name)
{
    pp_buf_free(&flat);
    err.text[0] = 0;
    return pp_inputrc_check(name, &flat, &err);
}

/* All names here are relative to this folder, as readline's are relative to the one in which it runs. */
static int in_folder(void **state)
{
    (void)state;
    return chdir(test_tmpdir());
}

static void loops(void **state)
{
    (void)state;
    write_keys("alone", "\"a\": \"b\"\n$include alone\n\"c\": \"d\"");
    assert_int_equal(look("alone"), PP_ERR_FORMAT);
    assert_string_equal(err.text, "the key bindings in alone are not used: it includes itself");
    assert_string_equal(pp_buf_cstr(&flat), "\"a\": \"b\"\n\"c\": \"d\"\n");
    write_keys("one", "1\n  $ InClude \t two \t\r\n3\n");
    write_keys("two", "2\n$if mode=vi\n$include three\n$endif\n");
    write_keys("three", "x\n$include ./../${x\n$include none\n");
    assert_int_equal(look("one"), PP_OK);
    write_keys("three", "x\n$include ./one\ny\n");
    assert_int_equal(look("one"), PP_ERR_FORMAT);
    assert_string_equal(err.text, "the key bindings in ./one are not used: it includes itself");
    assert_string_equal(pp_buf_cstr(&flat), "1\n2\n$if mode=vi\nx\ny\n$endif\n3\n");
    write_keys("one", "$include two\n$include two\n"); /* including a file twice is no loop */
    write_keys("three", "#$include one\n$includes one\n$include\n");
    assert_int_equal(look("one"), PP_OK);
    assert_int_equal(look("not there"), PP_OK);
    assert_int_equal(look("/dev/null"), PP_OK);
}

static void pipes(void **state)
{
    (void)state;
    assert_int_equal(mkfifo("pipe", 0600), 0);
    write_keys("pipes", "a\n$include pipe\nb\n");
    assert_int_equal(look("pipes"), PP_ERR_FORMAT);
    assert_string_equal(err.text, "the key bindings in pipe are not used: it is not a regular file");
    assert_string_equal(pp_buf_cstr(&flat), "a\nb\n");
    assert_int_equal(look("pipe"), PP_ERR_FORMAT);
    assert_int_equal(flat.len, 0);
}

/* Each of twenty files includes the next one twice: a million reads. And includes nested too deeply for the stack. */
static void too_many(void **state)
{
    char name[16], text[64];
    (void)state;
    for (int i = 0; i < 15; i++) {
        snprintf(name, sizeof name, "f%d", i);
        snprintf(text, sizeof text, "$include f%d\n$include f%d\n", i + 1, i + 1);
        write_keys(name, text);
    }
    write_keys("f15", "leaf\n");
    assert_int_equal(look("f0"), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "too many files"));
    assert_true(flat.len > 0 && flat.len < PP_INPUTRC_FILES * strlen("leaf\n"));
    write_keys("f15", "$include f16\n");
    write_keys("f16", "leaf\n");
    assert_int_equal(look("f0"), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "f16 are not used: files include each other too deep"));
    char *large = malloc(PP_INPUTRC_MAX + 2);
    assert_non_null(large);
    memset(large, '#', PP_INPUTRC_MAX + 1);
    large[PP_INPUTRC_MAX + 1] = 0;
    write_keys("large", large);
    free(large);
    assert_int_equal(look("large"), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "too large"));
}

static void out_of_memory(void **state)
{
    (void)state;
    write_keys("alone", "\"a\": \"b\"\n$include alone\n");
    enum pp_code code;
    for (uint64_t n = 1; n < 100; n++) {
        pp_mem_fail_at(n, 1);
        code = look("alone");
        pp_mem_fail_at(0, 0);
        if (code == PP_ERR_FORMAT)
            break;
    }
    assert_int_equal(code, PP_ERR_FORMAT);
    pp_buf_free(&flat);
}

TEST_GROUP(ui_inputrc)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loops), cmocka_unit_test(pipes), cmocka_unit_test(too_many), cmocka_unit_test(out_of_memory),
    };
    char before[4096];
    if (!getcwd(before, sizeof before))
        return 1;
    const int failed = cmocka_run_group_tests_name("ui_inputrc", tests, in_folder, NULL);
    return chdir(before) ? failed + 1 : failed;
}
