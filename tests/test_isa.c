/* test_isa.c - kernel sets by name, and which of them are detected as usable on this CPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cpu/matmul.h"
#include "engine/cpu/ops.h"
#include "tests/support.h"

static void names_go_both_ways(void **state)
{
    (void)state;
    for (int isa = 0; isa < PP_ISA_COUNT; isa++)
        assert_int_equal(pp_isa_by_name(pp_isa_name((enum pp_isa)isa)), isa);
    assert_int_equal(pp_isa_by_name("mmx"), -1);
}

static void the_best_set_runs(void **state)
{
    (void)state;
    enum pp_isa best = pp_isa_best();
    assert_true(pp_isa_runs(PP_ISA_SCALAR));
    assert_true(pp_isa_runs(best));
    for (int isa = (int)best + 1; isa < PP_ISA_COUNT; isa++)
        assert_false(pp_isa_runs((enum pp_isa)isa));
    for (int isa = 0; isa < PP_ISA_COUNT; isa++)
        if (pp_isa_runs((enum pp_isa)isa)) {
            assert_non_null(pp_matmul_kernels((enum pp_isa)isa));
            assert_non_null(pp_cpu_ops((enum pp_isa)isa));
        }
}

/* Under an emulator the result is known: PIPPIN_TEST_ISAS names the sets that run, each preceded by a space. */
static void the_sets_are_those_expected(void **state)
{
    (void)state;
    const char *expected = getenv("PIPPIN_TEST_ISAS");
    char found[128] = "";
    for (int isa = 0; isa < PP_ISA_COUNT; isa++)
        if (pp_isa_runs((enum pp_isa)isa))
            snprintf(found + strlen(found), sizeof found - strlen(found), " %s", pp_isa_name((enum pp_isa)isa));
    if (expected && strcmp(found, expected) != 0)
        fail_msg("these sets run:%s; expected were:%s", found, expected);
}

TEST_GROUP(isa)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_go_both_ways),
        cmocka_unit_test(the_best_set_runs),
        cmocka_unit_test(the_sets_are_those_expected),
    };
    return cmocka_run_group_tests_name("isa", tests, NULL, NULL);
}
