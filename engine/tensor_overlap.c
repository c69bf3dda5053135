#include "engine/tensor_overlap.h"

#include <stdint.h>
#include <stdlib.h>

#include "engine/base/mem.h"

static int by_address(const void *a, const void *b)
{
    const struct pp_tensor *x = *(const struct pp_tensor *const *)a, *y = *(const struct pp_tensor *const *)b;
    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    return x->size < y->size ? -1 : x->size > y->size; /* empty ones first: they overlap nothing */
}

enum pp_code pp_tensors_check_overlap(const struct pp_tensor *t, size_t n, const char *name, struct pp_error *err)
{
    const struct pp_tensor **order = pp_malloc(n * sizeof *order);
    enum pp_code code = PP_OK;
    if (!order)
        return pp_fail_nomem(err, "the list of tensors");
    for (size_t i = 0; i < n; i++)
        order[i] = &t[i];
    qsort(order, n, sizeof *order, by_address);
    for (size_t i = 1; i < n && !code; i++)
        if ((const uint8_t *)order[i - 1]->data + order[i - 1]->size > (const uint8_t *)order[i]->data)
            code = pp_fail(err, PP_ERR_FORMAT, "%s is damaged: tensors %.200s and %.200s overlap", name,
                           order[i - 1]->name, order[i]->name);
    pp_free(order);
    return code;
}
