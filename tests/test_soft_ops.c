/* test_soft_ops.c - the tests of operations once more, on builds over the software model of instructions that this
 * machine may lack. */
#include "tests/soft_sets.h"

#include "tests/test_ops.c"
