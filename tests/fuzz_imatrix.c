/* fuzz_imatrix.c - the bytes are an importance matrix in either format: it is read, added to itself and queried. */
#include <stdlib.h>

#include "engine/imatrix.h"
#include "tests/hostile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pp_imatrix *m;
    struct pp_error err;
    if (pp_imatrix_read_memory(data, size, "fuzz", &m, &err))
        return 0;
    for (size_t i = 0; i < m->n; i++) {
        const struct pp_importance *e = &m->entries[i];
        const float *columns;
        if (pp_imatrix_find(m, e->name) != e || e->n_values % e->n_counts != 0)
            abort();
        for (int64_t k = 0; k < e->n_counts; k++)
            if (pp_importance_of(e, e->n_values / e->n_counts, e->n_counts, k, &columns, &err) ||
                (columns && !(columns[0] >= 0)))
                abort();
    }
    if (pp_imatrix_merge(m, m, &err) && err.code != PP_ERR_NOMEM)
        abort();
    pp_imatrix_info(m);
    pp_imatrix_free(m);
    return 0;
}
