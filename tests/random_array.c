#include "tests/random_array.h"

#include <stdio.h>

#include "engine/base/mem.h"
#include "tests/gguf_file.h"
#include "tests/support.h"

/* A random number from -1 to 1. */
static float next(uint32_t *random)
{
    *random = *random * 1664525u + 1013904223u;
    return (float)(*random >> 8) / 8388608.0f - 1.0f;
}

void array_make(struct array *a, int l, const char *kind, int64_t matrices, int64_t rows, int64_t cols, float middle,
                float spread, uint32_t *random)
{
    *a = (struct array){.matrices = matrices, .rows = rows, .cols = cols};
    const int n_name = l < 0 ? snprintf(a->name, sizeof a->name, "%s", kind)
                             : snprintf(a->name, sizeof a->name, "blk.%d.%s", l, kind);
    assert_in_range(n_name, 1, sizeof a->name - 1);
    a->values = pp_malloc((size_t)array_size(a) * sizeof *a->values);
    assert_non_null(a->values);
    for (int64_t i = 0; i < array_size(a); i++)
        a->values[i] = middle + spread * next(random);
}

int64_t array_size(const struct array *a)
{
    return (a->matrices ? a->matrices : 1) * (a->rows ? a->rows : 1) * a->cols;
}

struct pp_tensor array_tensor(const struct array *a)
{
    return float_tensor(a->name, a->values, a->cols, a->rows, a->matrices);
}
