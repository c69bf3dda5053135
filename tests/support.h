/* support.h - shared by all test files. Each tests/test_NAME.c defines `const struct CMUnitTest` tables and one `int
 * test_NAME(void)` that runs them with cmocka_run_group_tests_name; the runner finds it through TEST_GROUP. */
#ifndef PP_TESTS_SUPPORT_H
#define PP_TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

struct test_group {
    const char *name;
    int (*run)(void);
    struct test_group *next;
};
void test_register(struct test_group *g);

/* TEST_GROUP(gguf)
 * {
 *     const struct CMUnitTest tests[] = {...};
 *     return cmocka_run_group_tests_name("gguf", tests, NULL, NULL);
 * } */
#define TEST_GROUP(id)                                                                        \
    static int run_##id(void);                                                                \
    static struct test_group group_##id = {.name = #id, .run = run_##id};                     \
    __attribute__((constructor)) static void register_##id(void) { test_register(&group_##id); } \
    static int run_##id(void)

/* The path of a file in the test data folder ($PIPPIN_TESTDATA or ../shared/testdata), in one of 8 static buffers that
 * are used in turn; NULL if the folder is absent, after printing "skip: ...". If the folder exists but the file does
 * not, the test fails. */
const char *testdata(const char *relative);
/* The folder of one of the test data's model families, in the same way; skips the test if it is absent. */
const char *architecture(const char *name);
/* A private temporary folder, removed at exit. */
const char *test_tmpdir(void);
/* The path of `name` in that folder, and a path that ends with `name` and does not exist yet; each in a static buffer
 * that the next 31 calls keep. */
const char *test_path(const char *name);
const char *fresh_path(const char *name);
/* Fails the test with the error's text if code is not PP_OK. */
#define assert_ok(code, err)                                                      \
    do {                                                                          \
        enum pp_code code_ = (code);                                              \
        if (code_ != PP_OK)                                                       \
            fail_msg("%s: code %d: %s", #code, (int)code_, (err).text);           \
    } while (0)

/* |a - b| <= eps, in double precision; NaN fails. */
#define assert_near(a, b, eps)                                                                        \
    do {                                                                                              \
        double a_ = (double)(a), b_ = (double)(b), d_ = a_ > b_ ? a_ - b_ : b_ - a_;                  \
        if (!(d_ <= (double)(eps)))                                                                   \
            fail_msg("%s is %.9g, not %.9g (%s)", #a, a_, b_, #b);                                    \
    } while (0)

#endif
