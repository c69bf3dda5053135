/* cmocka.h - as much of cmocka's interface as the kernel tests use, for cross-compiled builds, which run without the
 * library. A failed assertion leaves its test by longjmp(). Included through tests/support.h. */
#ifndef PP_TESTS_SHIM_CMOCKA_H
#define PP_TESTS_SHIM_CMOCKA_H

#include <math.h>
#include <stdio.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};
#define cmocka_unit_test(f) {#f, f}

static jmp_buf shim_next_test;

#define fail_msg(...)                                                 \
    do {                                                              \
        printf("%s:%d: ", __FILE__, __LINE__);                        \
        printf(__VA_ARGS__);                                          \
        printf("\n");                                                 \
        longjmp(shim_next_test, 1);                                   \
    } while (0)

/* Kernel tests need no files that might be missing. */
#define skip() fail_msg("skipped")

#define assert_true(c)                                                \
    do {                                                              \
        if (!(c))                                                     \
            fail_msg("not true: %s", #c);                             \
    } while (0)
#define assert_false(c) assert_true(!(c))
#define assert_non_null(p) assert_true((p) != NULL)
#define assert_null(p) assert_true((p) == NULL)
#define assert_int_equal(a, b) assert_true((a) == (b))
#define assert_int_not_equal(a, b) assert_true((a) != (b))
#define assert_string_equal(a, b) assert_true(strcmp((a), (b)) == 0)
#define assert_memory_equal(a, b, n) assert_true(memcmp((a), (b), (n)) == 0)

/* Runs a test; 0 if it passed. */
static inline int shim_one(const struct CMUnitTest *test)
{
    void *state = NULL;
    if (setjmp(shim_next_test) != 0)
        return 1;
    test->run(&state);
    return 0;
}

static inline int shim_run(const char *group, const struct CMUnitTest *tests, size_t n)
{
    int failed = 0;
    for (size_t i = 0; i < n; i++) {
        int bad = shim_one(&tests[i]);
        failed += bad;
        printf("[%s] %s: %s\n", bad ? "  FAILED  " : "       OK ", group, tests[i].name);
        fflush(stdout);
    }
    return failed;
}
#define cmocka_run_group_tests_name(group, tests, setup, teardown) \
    shim_run(group, tests, sizeof(tests) / sizeof(tests)[0])

#endif
