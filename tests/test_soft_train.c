/* test_soft_train.c - the tests of training's kernels once more, on the build over the software model of AVX-512. */
#include "tests/soft_sets.h"

#include "tests/test_train_kernels.c"
