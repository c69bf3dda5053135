/* kernel_builds.h - runs the tests of kernels with each build of the scalar definition (isa.h). */
#ifndef PP_TESTS_KERNEL_BUILDS_H
#define PP_TESTS_KERNEL_BUILDS_H

#include "engine/cpu/isa.h"

/* cmocka_run_group_tests_name(), first as on a processor without FMA, then, if there is one, with it. With the software
 * model of other instructions (soft_sets.h) one run suffices. */
#ifdef PP_TESTS_SOFT_SETS_H
#define RUN_WITH_BOTH_BUILDS(name, tests) cmocka_run_group_tests_name(name, tests, NULL, NULL)
#else
#define RUN_WITH_BOTH_BUILDS(name, tests)                                            \
    (pp_isa_assume_no_fma(true), cmocka_run_group_tests_name(name, tests, NULL, NULL)) + \
        (pp_isa_assume_no_fma(false),                                                \
         pp_isa_fuses() ? cmocka_run_group_tests_name(name ", with FMA", tests, NULL, NULL) : 0)
#endif

#endif
