/* count.c - importance matrices (engine/convert.h): for each column of a weight matrix, the sum of squares of its
 * inputs.
 *
 * The sums are accumulated by the thread that takes the first rows of a matrix, from activations that are kept as
 * float32 for this. It costs one multiplication per input, while the product costs one per input and weight row. Rows
 * are added in their order, pass after pass, so that the sums do not depend on the number of threads. */
#include "engine/cpu/program.h"
#include "engine/imatrix.h"

enum pp_code pp_cpu_count_begin(struct pp_cpu *c, const struct pp_tensor *w, int i, int n, struct projection *p,
                                struct pp_error *err)
{
    struct pp_importance *e;
    char name[256];
    if (!c->imatrix)
        return PP_OK;
    pp_stack_name(w->name, name);
    enum pp_code code = pp_imatrix_entry(c->imatrix, name, w->ne[0], n, &e, err);
    if (code)
        return code;
    p->sums = e->sums + i * w->ne[0];
    p->count = e->counts + i;
    return PP_OK;
}

void pp_cpu_count(const struct pp_acts *acts, int m, const struct projection *const *p, int n)
{
    enum { COLUMNS = 64 };
    const int64_t n_cols = p[0]->w.n_cols;
    for (int64_t at = 0; at < n_cols; at += COLUMNS) {
        const int64_t columns = n_cols - at < COLUMNS ? n_cols - at : COLUMNS;
        float sums[COLUMNS] = {0};
        for (int row = 0; row < m; row++) {
            const float *x = acts->f32 + row * acts->f32_stride + at;
            for (int64_t i = 0; i < columns; i++)
                sums[i] += x[i] * x[i];
        }
        for (int k = 0; k < n; k++)
            for (int64_t i = 0; i < columns; i++)
                p[k]->sums[at + i] += sums[i];
    }
    for (int k = 0; k < n; k++)
        *p[k]->count += m;
}
