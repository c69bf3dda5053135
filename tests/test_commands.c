/* test_commands.c - code that commands share: lists of ids, JSON, text for a terminal, and the table of commands. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "engine/base/mem.h"
#include "src/cmd_common.h"
#include "src/commands.h"
#include "src/plain_text.h"
#include "tests/support.h"

static void expect_ids(const char *text, const int32_t *want, size_t n_want)
{
    struct pp_error err;
    int32_t *ids;
    size_t n;
    assert_ok(pp_cli_parse_ids(text, strlen(text), &ids, &n, &err), err);
    assert_int_equal(n, n_want);
    if (n)
        assert_memory_equal(ids, want, n * sizeof *want);
    pp_free(ids);
}

static void ids_in_all_spellings(void **state)
{
    (void)state;
    static const int32_t three[] = {1, 20, 2147483647};
    expect_ids("1,20,2147483647", three, 3);
    expect_ids("[1, 20, 2147483647]\r\n", three, 3);
    expect_ids("  1 20\t2147483647 ", three, 3);
    expect_ids("[1 ,20]2147483647", three, 3);
    expect_ids("[]", NULL, 0);
    expect_ids("", NULL, 0);
}

static void ids_that_are_none(void **state)
{
    (void)state;
    static const char *const bad[] = {"x", "1,-2", "1.5", "2147483648", "99999999999999999999999", "1,2x", "\"1\"",
                                      "1,,2", ",1", "1,", "[1, ]", ",", "[1, 2", "[1][2"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct pp_error err = {0};
        int32_t *ids;
        size_t n;
        assert_int_equal(pp_cli_parse_ids(bad[i], strlen(bad[i]), &ids, &n, &err), PP_ERR_USAGE);
        assert_null(ids);
        assert_true(err.text[0] != 0);
    }
}

static void json_strings_are_json(void **state)
{
    (void)state;
    static const char text[] = "a\"b\\c\n\t\x01\x7f\xc3\xa9\xff" "\0z" "\xc2\x9b" "31m\xe2\x80\xae";
    struct pp_buf b = {0};
    pp_cli_json_string(&b, text, sizeof text - 1);
    assert_string_equal(pp_buf_cstr(&b), "\"a\\\"b\\\\c\\n\\t\\u0001\\u007f\xc3\xa9\xef\xbf\xbd\\u0000z"
                                         "\\u009b31m\\u202e\""); /* control characters of terminals */
    pp_buf_free(&b);
}

static void json_members_take_commas(void **state)
{
    (void)state;
    struct pp_buf b = {0};
    pp_buf_char(&b, '{');
    pp_cli_json_str(&b, "s", "x, {");
    pp_cli_json_int(&b, "i", -9007199254740991);
    pp_cli_json_real(&b, "r", 0.5, 3);
    pp_cli_json_real(&b, "none", NAN, 3);
    pp_cli_json_name(&b, "list");
    pp_buf_char(&b, '[');
    for (int i = 0; i < 2; i++) {
        pp_cli_json_next(&b);
        pp_buf_char(&b, '{');
        pp_cli_json_count(&b, "n", (uint64_t)i);
        pp_buf_char(&b, '}');
    }
    pp_buf_str(&b, "]}");
    assert_string_equal(pp_buf_cstr(&b), "{\"s\": \"x, {\", \"i\": -9007199254740991, \"r\": 0.500, \"none\": null, "
                                         "\"list\": [{\"n\": 0}, {\"n\": 1}]}");
    cJSON *parsed = cJSON_Parse(pp_buf_cstr(&b));
    assert_non_null(parsed);
    cJSON_Delete(parsed);
    pp_buf_free(&b);
}

static void expect_kept(const char *json, const char *want)
{
    struct pp_buf b = {0};
    pp_cli_json_stored(&b, "s", json);
    assert_string_equal(pp_buf_cstr(&b), want);
    pp_buf_free(&b);
}

/* Whatever a damaged database holds, what is printed is JSON. */
static void kept_json_is_checked(void **state)
{
    (void)state;
    static const char *const none[] = {NULL, "", "{", "7", "[1]", "{} x", "{\"a\": 1}}", "{\"a\": }", "{\"a\": 1, }"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        expect_kept(none[i], "");
    expect_kept(" {\"a\": 1.50,\n \"seed\": 18446744073709551615}\n",
                "\"s\": {\"a\": 1.5, \"seed\": 18446744073709551615}");
    expect_kept("{\"a\": 01, \"b\": 1e999, \"c\": 0.1, \"d\": {\"e\": [1, {}]}}",
                "\"s\": {\"a\": 1, \"b\": null, \"c\": 0.1, \"d\": {\"e\": [1, {}]}}");
    expect_kept("{\"a,:\\\":,\":\":\"}", "\"s\": {\"a,:\\\":,\": \":\"}");
    expect_kept("{\"\xff\": \"\x01\t\xc2\x9b" "1\"}", "\"s\": {\"\xef\xbf\xbd\": \"\\u0001\\t\\u009b1\"}");
}

static void expect_plain(const char *text, size_t n, const char *want)
{
    struct pp_buf b = {0};
    pp_plain_text(&b, text, n);
    assert_string_equal(pp_buf_cstr(&b), want);
    pp_buf_free(&b);
}

static void terminals_get_no_commands(void **state)
{
    (void)state;
    expect_plain("a\tb\n", 4, "a\tb\n");
    expect_plain("\x1b[2J", 4, "\xe2\x90\x9b[2J");
    expect_plain("\r\x07\x7f", 3, "\xe2\x90\x8d\xe2\x90\x87\xe2\x90\xa1");
    expect_plain("\0", 1, "\xe2\x90\x80");
    expect_plain("\xc2\x9b" "31m", 5, "<U+009B>31m");                       /* CSI as one character */
    expect_plain("\x9b", 1, "\xef\xbf\xbd");                                 /* and as one byte */
    expect_plain("x\xe2\x80\xae" "y", 5, "x<U+202E>y");                     /* right-to-left override */
    expect_plain("\xe2\x81\xa6", 3, "<U+2066>");
    expect_plain("\xe6\x97\xa5\xf0\x9f\x98\x80", 7, "\xe6\x97\xa5\xf0\x9f\x98\x80");
}

static void plain_text_lets_no_control_through(void **state)
{
    (void)state;
    uint32_t x = 88172645u;
    for (int round = 0; round < 2000; round++) {
        char text[64];
        struct pp_buf b = {0};
        for (size_t i = 0; i < sizeof text; i++) {
            x = x * 1664525u + 1013904223u;
            text[i] = (char)(x >> 24);
        }
        pp_plain_text(&b, text, sizeof text);
        assert_int_equal(strlen(pp_buf_cstr(&b)), b.len);
        for (size_t i = 0; i < b.len; i++) {
            unsigned char c = (unsigned char)b.data[i];
            assert_true(c >= 0x20 || c == '\n' || c == '\t');
            assert_true(c != 0x7F);
            if (c == 0xC2 && i + 1 < b.len)
                assert_true((unsigned char)b.data[i + 1] >= 0xA0);
        }
        pp_buf_free(&b);
    }
}

static void reads_files_and_says_what_is_wrong(void **state)
{
    (void)state;
    char path[512];
    struct pp_error err;
    struct pp_buf b = {0};
    snprintf(path, sizeof path, "%s/text", test_tmpdir());
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fwrite("a\0b\n", 1, 4, f);
    fclose(f);
    assert_ok(pp_cli_read(path, &b, &err), err);
    assert_int_equal(b.len, 4);
    assert_memory_equal(b.data, "a\0b\n", 4);
    pp_buf_free(&b);
    snprintf(path, sizeof path, "%s/absent", test_tmpdir());
    assert_int_equal(pp_cli_read(path, &b, &err), PP_ERR_IO);
    assert_non_null(strstr(err.text, path));
    assert_int_equal(pp_cli_read(test_tmpdir(), &b, &err), PP_ERR_IO); /* a folder */
    pp_buf_free(&b);
}

static void counts_words(void **state)
{
    (void)state;
    struct pp_options o = {.command = "convert", .args = {"a", "b"}, .n_args = 2};
    struct pp_error err;
    assert_int_equal(pp_cli_args(&o, 2, 2, "SRC DST", &err), PP_OK);
    assert_int_equal(pp_cli_args(&o, 3, 3, "SRC DST TYPE", &err), PP_ERR_USAGE);
    assert_string_equal(err.text, "usage: pippin convert SRC DST TYPE");
    assert_int_equal(pp_cli_args(&o, 0, 0, "", &err), PP_ERR_USAGE);
    assert_non_null(strstr(err.text, "\"a\""));
}

/* Runs a command; returns its exit code. Its output goes to `out`, and what it writes to stderr is discarded. */
static int run_quietly(pp_command_fn *command, const struct pp_options *o, struct pp_buf *out, uint64_t fail_at)
{
    static const struct pp_paths none;
    char path[512];
    snprintf(path, sizeof path, "%s/printed", test_tmpdir());
    fflush(stdout);
    const int was[] = {dup(STDOUT_FILENO), dup(STDERR_FILENO)};
    const int to[] = {open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600), open("/dev/null", O_WRONLY)};
    for (int i = 0; i < 2; i++) {
        assert_true(dup2(to[i], STDOUT_FILENO + i) >= 0);
        close(to[i]);
    }
    pp_mem_fail_at(fail_at, 0);
    const int code = command(o, &none);
    pp_mem_fail_at(0, 0);
    for (int i = 0; i < 2; i++) {
        dup2(was[i], STDOUT_FILENO + i);
        close(was[i]);
    }
    struct pp_error err;
    pp_buf_clear(out);
    assert_ok(pp_cli_read(path, out, &err), err);
    return code;
}

/* A text in which something is missing, such as its BOS, would be worse than none. */
static void texts_are_whole_or_an_error_without_memory(void **state)
{
    (void)state;
    static const char *const commands[] = {"template", "tokenize", "detokenize", "embed"};
    static const char *const inputs[] = {"[{\"role\": \"user\", \"content\": \"Hi\"}]", "Hi there", "[300, 400]",
                                         "one\ntwo"};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        const struct pp_options o = {.command = commands[i], .model = "engine/starter/starter-draft-Q4_0.gguf",
                                     .prompt = inputs[i], .threads = 1};
        struct pp_buf whole = {0}, out = {0};
        const uint64_t before = pp_mem_count();
        assert_int_equal(run_quietly(pp_command_find(commands[i]), &o, &whole, 0), 0);
        assert_true(whole.len > 0);
        const uint64_t n = pp_mem_count() - before;
        for (uint64_t at = 1; at <= n; at++) {
            const int code = run_quietly(pp_command_find(commands[i]), &o, &out, at);
            if (code == 0)
                assert_string_equal(pp_buf_cstr(&out), pp_buf_cstr(&whole));
            else
                assert_int_equal(code, pp_exit_code(PP_ERR_NOMEM));
        }
        pp_buf_free(&whole);
        pp_buf_free(&out);
    }
}

static void finds_commands(void **state)
{
    (void)state;
    static const char *const known[] = {"run",     "tokenize", "detokenize", "template", "logits", "perplexity",
                                        "bench",   "sessions", "convert",    "quantize", "lora",   "imatrix"};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        assert_non_null(pp_command_find(known[i]));
    assert_null(pp_command_find("chat"));
    assert_null(pp_command_find(""));
    assert_null(pp_command_find("Run"));
}

TEST_GROUP(commands)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_in_all_spellings),
        cmocka_unit_test(ids_that_are_none),
        cmocka_unit_test(json_strings_are_json),
        cmocka_unit_test(json_members_take_commas),
        cmocka_unit_test(kept_json_is_checked),
        cmocka_unit_test(terminals_get_no_commands),
        cmocka_unit_test(plain_text_lets_no_control_through),
        cmocka_unit_test(reads_files_and_says_what_is_wrong),
        cmocka_unit_test(counts_words),
        cmocka_unit_test(texts_are_whole_or_an_error_without_memory),
        cmocka_unit_test(finds_commands),
    };
    return cmocka_run_group_tests_name("commands", tests, NULL, NULL);
}
