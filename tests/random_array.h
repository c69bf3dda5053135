/* random_array.h - tensors of random values, from which the tests build small models. */
#ifndef PP_TESTS_RANDOM_ARRAY_H
#define PP_TESTS_RANDOM_ARRAY_H

#include <stdint.h>

#include "engine/source.h"

struct array {
    char name[48];
    int64_t matrices, rows, cols; /* 0: one dimension fewer */
    float *values;                /* [array_size()], pp_free */
};

/* Makes an array called `kind` of layer l (-1: outside the layers), with uniform values within `spread` of `middle`.
 * *random: the generator's state. A name that is too long fails the test. */
void array_make(struct array *a, int l, const char *kind, int64_t matrices, int64_t rows, int64_t cols, float middle,
                float spread, uint32_t *random);
int64_t array_size(const struct array *a);
/* The array as a tensor for a file; it keeps the pointers. */
struct pp_tensor array_tensor(const struct array *a);

#endif
