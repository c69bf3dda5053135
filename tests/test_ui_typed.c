/* test_ui_typed.c - lines from a pipe: only whole ones, and none lost along with one that could not be kept. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/support.h"
#include "ui/typed.h"

static struct pp_error err;

static enum pp_code add(struct pp_typed *t, const char *text)
{
    err.text[0] = 0;
    return pp_typed_add(t, text, strlen(text), &err);
}

/* Asserts the next line and consumes it; want NULL: there is none. */
static void expect_line(struct pp_typed *t, bool ended, const char *want)
{
    assert_true(ended || pp_typed_has_line(t) == (want != NULL));
    const char *line = pp_typed_line(t, ended);
    if (!want) {
        assert_null(line);
        return;
    }
    assert_non_null(line);
    assert_string_equal(line, want);
    pp_typed_used(t);
}

static void whole_lines(void **state)
{
    static const char text[] = "one\n\ntw\0o\nthree";
    (void)state;
    for (size_t piece = 1; piece < sizeof text; piece++) {
        struct pp_typed t = {0};
        expect_line(&t, false, NULL);
        expect_line(&t, true, NULL);
        for (size_t i = 0, n; i < sizeof text - 1; i += n) {
            n = sizeof text - 1 - i < piece ? sizeof text - 1 - i : piece;
            assert_ok(pp_typed_add(&t, text + i, n, &err), err);
        }
        expect_line(&t, false, "one");
        expect_line(&t, false, "");
        expect_line(&t, false, "two");
        expect_line(&t, false, NULL);
        expect_line(&t, true, "three");
        expect_line(&t, true, NULL);
        pp_buf_free(&t.text);
    }
}

/* Files of other systems: carriage returns before line feeds, and a byte-order mark before the first line. */
static void around_lines(void **state)
{
    static const char text[] = "\xEF\xBB\xBFone\r\n\r\nt\rwo\n\xEF\xBB\xBFthree\r";
    (void)state;
    for (size_t piece = 1; piece < sizeof text; piece++) {
        struct pp_typed t = {0};
        for (size_t i = 0, n; i < sizeof text - 1; i += n) {
            n = sizeof text - 1 - i < piece ? sizeof text - 1 - i : piece;
            assert_ok(pp_typed_add(&t, text + i, n, &err), err);
        }
        expect_line(&t, false, "one");
        expect_line(&t, false, "");
        expect_line(&t, false, "t\rwo");
        expect_line(&t, true, "\xEF\xBB\xBFthree");
        pp_buf_free(&t.text);
    }
}

static void too_long(void **state)
{
    struct pp_typed t = {0};
    char *many = malloc(PP_TYPED_LINE_MAX + 1);
    (void)state;
    assert_non_null(many);
    memset(many, 'x', PP_TYPED_LINE_MAX);
    many[PP_TYPED_LINE_MAX] = 0;
    assert_int_equal(add(&t, many), PP_OK); /* as long as a line may be */
    assert_int_equal(add(&t, "\nbefore\n"), PP_OK);
    expect_line(&t, false, many);
    expect_line(&t, false, "before");
    assert_int_equal(add(&t, many), PP_OK);
    assert_int_equal(add(&t, "y"), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "too long"));
    assert_int_equal(add(&t, "the rest"), PP_OK);
    expect_line(&t, true, NULL);
    assert_int_equal(add(&t, " of it\nbehind\n"), PP_OK);
    expect_line(&t, false, "behind");
    expect_line(&t, true, NULL);
    pp_buf_free(&t.text);
    free(many);
}

/* A line for which there is no memory is not called too long, and the lines around it are not lost. */
static void out_of_memory(void **state)
{
    struct pp_typed t = {0};
    char long_line[4097];
    (void)state;
    memset(long_line, 'x', sizeof long_line);
    long_line[4096] = 0;
    for (int ends = 0; ends < 2; ends++) { /* ends: the line ends with this piece, or goes on */
        long_line[4095] = ends ? '\n' : 'x';
        assert_int_equal(add(&t, "before\nwhat is "), PP_OK);
        pp_mem_fail_at(1, 1);
        const enum pp_code code = add(&t, long_line);
        pp_mem_fail_at(0, 0);
        assert_int_equal(code, PP_ERR_NOMEM);
        assert_non_null(strstr(err.text, "Out of memory"));
        assert_int_equal(add(&t, ends ? "behind\n" : "the rest\nbehind\n"), PP_OK);
        expect_line(&t, false, "before");
        expect_line(&t, false, "behind");
        expect_line(&t, true, NULL);
        pp_buf_free(&t.text);
    }
    pp_mem_fail_at(1, 0); /* from the first byte on */
    assert_int_equal(add(&t, "one\ntwo\n"), PP_ERR_NOMEM);
    pp_mem_fail_at(0, 0);
    expect_line(&t, false, "two");
    expect_line(&t, true, NULL);
    pp_buf_free(&t.text);
}

TEST_GROUP(ui_typed)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_lines), cmocka_unit_test(around_lines), cmocka_unit_test(too_long),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests_name("ui_typed", tests, NULL, NULL);
}
