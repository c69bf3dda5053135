/* test_soft_matmul.c - the tests of matrix products once more, on kernel sets over the software model of instructions
 * that this machine may lack. */
#include "tests/soft_sets.h"

#include "tests/test_matmul.c"
