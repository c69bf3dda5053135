/* random_array.h - tensors of random values, which small models of the tests are made of. */
#ifndef PP_TESTS_RANDOM_ARRAY_H
#define PP_TESTS_RANDOM_ARRAY_H

#include <stdint.h>

#include "engine/source.h"

struct array {
    char name[48];
    int64_t matrices, rows, cols; /* 0: one dimension fewer */
    float *values;                /* [array_size()], pp_free */
};

/* Makes one, called `kind` of layer l, or only so if l is -1, with values uniform within `spread` of `middle`. *random:
 * where the generator is. A name that does not fit fails the test. */
void array_make(struct array *a, int l, const char *kind, int64_t matrices, int64_t rows, int64_t cols, float middle,
                float spread, uint32_t *random);
int64_t array_size(const struct array *a);
/* For a file; holds the pointers. */
struct pp_tensor array_tensor(const struct array *a);

#endif
