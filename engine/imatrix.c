/* imatrix.c - importance matrices: a table of sums by tensor names, and writing it. Formats: convert.h. */
#include "engine/imatrix.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/gguf.h"
#include "engine/quant.h"
#include "engine/types.h"

enum pp_code pp_imatrix_new(struct pp_imatrix **out, struct pp_error *err)
{
    *out = pp_calloc(1, sizeof **out);
    return *out ? PP_OK : pp_fail_nomem(err, "the importance matrix");
}

void pp_imatrix_free(struct pp_imatrix *m)
{
    if (!m)
        return;
    for (size_t i = 0; i < m->n; i++) {
        pp_free(m->entries[i].name);
        pp_free(m->entries[i].sums);
        pp_free(m->entries[i].counts);
    }
    for (size_t i = 0; i < m->n_datasets; i++)
        pp_free(m->datasets[i]);
    pp_free(m->entries);
    pp_free(m->datasets);
    pp_free(m);
}

/* --- entries ----------------------------------------------------------------------------------------------------- */

/* The index of the name, or where it belongs. */
static size_t place_of(const struct pp_imatrix *m, const char *name, bool *there)
{
    size_t low = 0, high = m->n;
    *there = false;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int order = strcmp(m->entries[middle].name, name);
        if (order == 0) {
            *there = true;
            return middle;
        }
        *(order < 0 ? &low : &high) = order < 0 ? middle + 1 : middle;
    }
    return low;
}

struct pp_importance *pp_imatrix_find(const struct pp_imatrix *m, const char *name)
{
    bool there;
    const size_t at = place_of(m, name, &there);
    return there ? &m->entries[at] : NULL;
}

/* Expands a common count to one for each of n matrices. */
static enum pp_code expand_counts(struct pp_importance *e, int64_t n, struct pp_error *err)
{
    if (e->n_counts == n)
        return PP_OK;
    double *counts = pp_calloc((size_t)n, sizeof *counts);
    if (!counts)
        return pp_fail_nomem(err, "the importance matrix");
    for (int64_t i = 0; i < n; i++)
        counts[i] = e->counts[0];
    pp_free(e->counts);
    e->counts = counts;
    e->n_counts = n;
    return PP_OK;
}

static enum pp_code fail_columns(const struct pp_importance *e, int64_t n_values, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_MISMATCH,
                   "the importance matrix has %lld columns for %s, but the model has %lld; it was made for another "
                   "model", (long long)e->n_values, e->name, (long long)n_values);
}

static bool fits(const struct pp_importance *e, int64_t n_values, int64_t n_matrices)
{
    return e->n_values == n_values && (e->n_counts == n_matrices || e->n_counts == 1);
}

enum pp_code pp_imatrix_entry(struct pp_imatrix *m, const char *name, int64_t n_cols, int64_t n_matrices,
                              struct pp_importance **out, struct pp_error *err)
{
    bool there;
    const size_t at = place_of(m, name, &there);
    if (there && m->entries) {
        *out = &m->entries[at];
        return fits(*out, n_cols * n_matrices, n_matrices) ? expand_counts(*out, n_matrices, err)
                                                           : fail_columns(*out, n_cols * n_matrices, err);
    }
    struct pp_importance e = {
        .name = pp_strdup(name),
        .n_values = n_cols * n_matrices,
        .n_counts = n_matrices,
        .sums = pp_calloc((size_t)(n_cols * n_matrices), sizeof *e.sums),
        .counts = pp_calloc((size_t)n_matrices, sizeof *e.counts),
    };
    if (!e.name || !e.sums || !e.counts || pp_grow(&m->entries, &m->cap, m->n + 1, sizeof *m->entries) != 0) {
        pp_free(e.name);
        pp_free(e.sums);
        pp_free(e.counts);
        return pp_fail_nomem(err, "the importance matrix");
    }
    memmove(m->entries + at + 1, m->entries + at, (m->n - at) * sizeof *m->entries);
    m->entries[at] = e;
    m->n++;
    *out = &m->entries[at];
    return PP_OK;
}

enum pp_code pp_importance_of(const struct pp_importance *e, int64_t n_cols, int64_t n_matrices, int64_t i,
                              const float **out, struct pp_error *err)
{
    *out = NULL;
    if (!fits(e, n_cols * n_matrices, n_matrices))
        return fail_columns(e, n_cols * n_matrices, err);
    if (e->counts[e->n_counts == 1 ? 0 : i] > 0)
        *out = e->sums + i * n_cols;
    return PP_OK;
}

enum pp_code pp_quantize_weighed(const struct pp_weighing *w, uint32_t type, const float *src, void *dst, int64_t row,
                                 int64_t n_rows, int64_t n_cols, struct pp_error *err)
{
    const size_t row_bytes = pp_type_row_bytes(type, n_cols);
    enum pp_code code = PP_OK;
    if (!w->importance)
        return pp_quantize_rows(type, src, dst, n_rows, n_cols, NULL, err);
    for (int64_t r = 0, next; r < n_rows && !code; r = next) {
        const int64_t matrix = (row + r) / w->matrix_rows, matrix_end = (matrix + 1) * w->matrix_rows - row;
        const float *columns;
        next = matrix_end < n_rows ? matrix_end : n_rows;
        code = pp_importance_of(w->importance, n_cols, w->n_matrices, w->first + matrix, &columns, err);
        if (!code)
            code = pp_quantize_rows(type, src + r * n_cols, (uint8_t *)dst + (size_t)r * row_bytes, next - r, n_cols,
                                    columns, err);
    }
    return code;
}

/* --- several ----------------------------------------------------------------------------------------------------- */

static enum pp_code merge_entry(struct pp_imatrix *m, const struct pp_importance *from, struct pp_error *err)
{
    struct pp_importance *to = pp_imatrix_find(m, from->name);
    enum pp_code code = PP_OK;
    if (!to)
        code = pp_imatrix_entry(m, from->name, from->n_values / from->n_counts, from->n_counts, &to, err);
    else if (!fits(from, to->n_values, to->n_counts) && !fits(to, from->n_values, from->n_counts))
        return pp_fail(err, PP_ERR_MISMATCH,
                       "%s has %lld columns in one importance matrix and %lld in the other; they were made for "
                       "different models", from->name, (long long)to->n_values, (long long)from->n_values);
    else if (to->n_counts == 1)
        code = expand_counts(to, from->n_counts, err);
    for (int64_t i = 0; !code && i < to->n_values; i++)
        to->sums[i] += from->sums[i];
    for (int64_t i = 0; !code && i < to->n_counts; i++)
        to->counts[i] += from->counts[from->n_counts == 1 ? 0 : i];
    return code;
}

static enum pp_code add_dataset(struct pp_imatrix *m, const char *name, struct pp_error *err)
{
    char *own = pp_strdup(name);
    if (!own || pp_grow(&m->datasets, &m->datasets_cap, m->n_datasets + 1, sizeof *m->datasets) != 0) {
        pp_free(own);
        return pp_fail_nomem(err, "the importance matrix");
    }
    m->datasets[m->n_datasets++] = own;
    return PP_OK;
}

enum pp_code pp_imatrix_count(struct pp_imatrix *m, const char *dataset, uint32_t chunks, uint32_t tokens,
                              struct pp_error *err)
{
    m->chunks = chunks < UINT32_MAX - m->chunks ? m->chunks + chunks : UINT32_MAX;
    m->chunk_size = tokens;
    if (m->n_datasets && strcmp(m->datasets[m->n_datasets - 1], dataset) == 0)
        return PP_OK;
    return add_dataset(m, dataset, err);
}

enum pp_code pp_imatrix_merge(struct pp_imatrix *m, const struct pp_imatrix *from, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < from->n && !code; i++)
        code = merge_entry(m, &from->entries[i], err);
    for (size_t i = 0; i < from->n_datasets && !code; i++)
        code = pp_imatrix_count(m, from->datasets[i], 0, from->chunk_size, err);
    m->chunks = from->chunks < UINT32_MAX - m->chunks ? m->chunks + from->chunks : UINT32_MAX;
    m->chunk_size = from->chunk_size;
    return code;
}

/* --- queries ----------------------------------------------------------------------------------------------------- */

/* How many of its matrices have data. */
static int64_t n_seen(const struct pp_importance *e)
{
    int64_t n = 0;
    for (int64_t i = 0; i < e->n_counts; i++)
        n += e->counts[i] > 0;
    return n;
}

struct pp_imatrix_info pp_imatrix_info(const struct pp_imatrix *m)
{
    struct pp_imatrix_info info = {.chunks = m->chunks, .chunk_size = m->chunk_size, .n_datasets = m->n_datasets};
    for (size_t i = 0; i < m->n; i++) {
        const int64_t seen = n_seen(&m->entries[i]);
        info.n_tensors += seen > 0;
        info.n_partial += seen > 0 && seen < m->entries[i].n_counts;
    }
    return info;
}

const char *pp_imatrix_dataset(const struct pp_imatrix *m, size_t i)
{
    return i < m->n_datasets ? m->datasets[i] : NULL;
}

/* --- writing ----------------------------------------------------------------------------------------------------- */

static enum pp_code check_sums(const struct pp_importance *e, struct pp_error *err)
{
    for (int64_t i = 0; i < e->n_values; i++)
        if (!isfinite(e->sums[i]))
            return pp_fail(err, PP_ERR_FORMAT, "the input of %s is NaN or infinite; are the model's weights damaged?",
                           e->name);
    return PP_OK;
}

static void announce(const struct pp_importance *e, struct pp_gguf_writer *w)
{
    char name[300];
    snprintf(name, sizeof name, "%.255s.in_sum2", e->name);
    pp_gguf_add_tensor(w, name, PP_TYPE_F32, 2, (int64_t[PP_MAX_DIMS]){e->n_values / e->n_counts, e->n_counts, 1, 1});
    snprintf(name, sizeof name, "%.255s.counts", e->name);
    pp_gguf_add_tensor(w, name, PP_TYPE_F32, 2, (int64_t[PP_MAX_DIMS]){1, e->n_counts, 1, 1});
}

static enum pp_code write_entry(const struct pp_importance *e, struct pp_gguf_writer *w, struct pp_error *err)
{
    enum pp_code code = pp_gguf_write(w, e->sums, (size_t)e->n_values * sizeof *e->sums, err);
    for (int64_t i = 0; i < e->n_counts && !code; i++) {
        const float count = (float)e->counts[i];
        code = pp_gguf_write(w, &count, sizeof count, err);
    }
    return code;
}

static enum pp_code add_metadata(const struct pp_imatrix *m, struct pp_gguf_writer *w, struct pp_error *err)
{
    struct pp_str *datasets = pp_calloc(m->n_datasets, sizeof *datasets);
    if (!datasets)
        return pp_fail_nomem(err, "the importance matrix");
    for (size_t i = 0; i < m->n_datasets; i++)
        datasets[i] = (struct pp_str){m->datasets[i], strlen(m->datasets[i])};
    pp_gguf_add_text(w, "general.type", "imatrix");
    pp_gguf_add_str_array(w, "imatrix.datasets", datasets, m->n_datasets);
    pp_gguf_add_u32(w, "imatrix.chunk_count", m->chunks);
    pp_gguf_add_u32(w, "imatrix.chunk_size", m->chunk_size);
    pp_free(datasets);
    return PP_OK;
}

enum pp_code pp_imatrix_write(const struct pp_imatrix *m, const char *path, struct pp_error *err)
{
    struct pp_gguf_writer *w = NULL;
    enum pp_code code = PP_OK;
    if (!pp_imatrix_info(m).n_tensors)
        return pp_fail(err, PP_ERR_USAGE, "nothing was collected, so %s was not written", path);
    for (size_t i = 0; i < m->n && !code; i++)
        code = check_sums(&m->entries[i], err);
    if (!code)
        code = pp_gguf_writer_new(path, &w, err);
    if (!code)
        code = add_metadata(m, w, err);
    for (size_t i = 0; i < m->n && !code; i++) /* matrices without data are left out, such as the output's */
        if (n_seen(&m->entries[i]))
            announce(&m->entries[i], w);
    if (!code)
        code = pp_gguf_writer_begin(w, err);
    for (size_t i = 0; i < m->n && !code; i++)
        if (n_seen(&m->entries[i]))
            code = write_entry(&m->entries[i], w, err);
    if (!code)
        code = pp_gguf_writer_finish(w, err);
    pp_gguf_writer_free(w);
    return code;
}
