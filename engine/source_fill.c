/* source_fill.c - tensors of a source that are made row by row, when they are needed: those stored in another form, or
 * to be quantised. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/base/cancel.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/export.h"
#include "engine/file_type.h"
#include "engine/pool.h"
#include "engine/rows.h"
#include "engine/source_int.h"
enum { ALIGN = 64 };

static size_t aligned(size_t size)
{
    return (size + ALIGN - 1) / ALIGN * ALIGN;
}

/* Has tensor t made in another type. */
static enum pp_code make_in(struct pp_source *s, struct pp_tensor *t, uint32_t type, struct pp_error *err)
{
    struct pp_rows *rows = (struct pp_rows *)(uintptr_t)t->rows; /* of the list, so writable */
    if (!rows && !(rows = pp_tensor_list_rows(&s->list, err)))
        return PP_ERR_NOMEM;
    if (!t->rows)
        *rows = (struct pp_rows){.form = PP_FORM_FLOATS, .stored_type = t->type, .weights = t->data, .row_step = 1,
                                 .n_cols = t->ne[0], .n_rows = t->ne[1] * t->ne[2] * t->ne[3]};
    rows->type = type;
    rows->as_blocks = false;
    t->type = type;
    t->size = pp_type_row_bytes(type, rows->n_cols) * (size_t)rows->n_rows;
    t->rows = rows;
    return PP_OK;
}

/* Finds the importance of a tensor's columns, for quantising. *known: set if there is any. */
static enum pp_code weigh(const struct pp_source *s, const struct pp_tensor *t, bool *known, struct pp_error *err)
{
    struct pp_rows *rows = (struct pp_rows *)(uintptr_t)t->rows; /* of the list, so writable */
    const char *number = pp_expert_number(t->name);
    const float *columns = NULL;
    char stack[256];
    pp_stack_name(t->name, stack);
    rows->weighing = (struct pp_weighing){
        .importance = pp_imatrix_find(s->imatrix, stack),
        .n_matrices = number ? pp_stack_size(&s->hp, t->name) : t->ne[2] * t->ne[3],
        .first = number ? strtol(number, NULL, 10) : 0,
        .matrix_rows = t->ne[1],
    };
    if (!rows->weighing.importance || rows->weighing.first >= rows->weighing.n_matrices) {
        rows->weighing.importance = NULL;
        return PP_OK;
    }
    enum pp_code code = pp_importance_of(rows->weighing.importance, t->ne[0], rows->weighing.n_matrices,
                                         rows->weighing.first, &columns, err);
    *known |= columns != NULL;
    return code;
}

enum pp_code pp_source_read_imatrix(struct pp_source *s, const char *path, struct pp_error *err)
{
    const struct pp_tensor *first = NULL;
    bool known = false;
    if (!(s->imatrix_path = pp_strdup(path)))
        return pp_fail_nomem(err, path);
    enum pp_code code = pp_imatrix_read(path, &s->imatrix, err);
    for (size_t i = 0; i < s->list.n && !code; i++) {
        const struct pp_tensor *t = &s->list.t[i];
        if (!t->rows || t->rows->as_blocks || pp_type_info(t->type)->block_elements == 1)
            continue;
        first = first ? first : t;
        code = weigh(s, t, &known, err);
    }
    if (!code && first && !known)
        code = pp_fail(err, PP_ERR_MISMATCH, "%s has no data for %s or any other matrix to be quantised; it was made "
                                             "for another model", path, first->name);
    return code;
}

enum pp_code pp_source_quantize(struct pp_source *s, const char *quant, struct pp_error *err)
{
    const bool tied = s->hf && !pp_source_tensor(s, "output.weight");
    enum pp_code code = PP_OK;
    s->quantized = pp_quantize_name(quant);
    if (!s->quantized)
        return pp_fail(err, PP_ERR_USAGE, "cannot quantise to \"%.40s\"; `pippin quantize --help` lists the types",
                       quant);
    if (!s->hf)
        return pp_fail(err, PP_ERR_USAGE, "%s is a GGUF file, but --quant is for model folders; make a smaller file "
                                          "with `pippin quantize`", s->path);
    for (size_t i = 0; i < s->list.n && !code; i++) {
        struct pp_tensor *t = &s->list.t[i];
        const bool matrix = t->n_dims > 1 && t->type != PP_TYPE_I32 && !pp_export_keeps_f32(t);
        const uint32_t type = pp_quantize_tensor_type(pp_file_type_by_name(s->quantized), &s->hp, tied, t);
        if (matrix && type != t->type && (type != PP_TYPE_F32 || strcmp(s->quantized, "F32") == 0))
            code = make_in(s, t, type, err);
    }
    return code;
}

enum pp_code pp_source_reserve(struct pp_source *s, struct pp_error *err)
{
    size_t at = 0;
    for (size_t i = 0; i < s->list.n; i++)
        if (s->list.t[i].rows && __builtin_add_overflow(s->room_size, aligned(s->list.t[i].size), &s->room_size))
            return pp_fail_nomem(err, s->path);
    if (!s->room_size)
        return PP_OK;
    void *room = mmap(NULL, s->room_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return pp_fail_nomem(err, s->path);
    s->room = room;
    for (size_t i = 0; i < s->list.n; i++)
        if (s->list.t[i].rows) {
            s->list.t[i].data = s->room + at;
            at += aligned(s->list.t[i].size);
        }
    return PP_OK;
}

/* A slice of a tensor's rows while threads fill it. */
struct filling {
    const struct pp_tensor *t;
    size_t row_bytes;
    int64_t first, n;          /* rows of this slice */
    int n_shares;
    struct pp_error errors[PP_SOURCE_THREADS];
};

static void fill_share(void *arg, int part, int share, int thread)
{
    (void)part, (void)thread;
    struct filling *f = arg;
    const int64_t begin = f->n * share / f->n_shares, end = f->n * (share + 1) / f->n_shares;
    f->errors[share].code = PP_OK;
    if (begin < end)
        pp_rows_read(f->t->rows, f->first + begin, end - begin,
                     (uint8_t *)(uintptr_t)f->t->data + (size_t)(f->first + begin) * f->row_bytes, &f->errors[share]);
}

/* Fills one tensor, a slice at a time, so that it can be cancelled in between. */
static enum pp_code fill_tensor(const struct pp_tensor *t, struct pp_pool *pool, const struct pp_cancel *cancel,
                                struct pp_error *err)
{
    enum { SLICE = 4 << 20 }; /* weights */
    const int64_t n_rows = t->ne[1] * t->ne[2] * t->ne[3], step = SLICE / t->ne[0] > 64 ? SLICE / t->ne[0] : 64;
    const int n = pp_pool_n(pool);
    struct filling f = {.t = t, .row_bytes = pp_type_row_bytes(t->type, t->ne[0]),
                        .n_shares = n < PP_SOURCE_THREADS ? n : PP_SOURCE_THREADS};
    for (; f.first < n_rows; f.first += step) {
        f.n = step < n_rows - f.first ? step : n_rows - f.first;
        if (pp_cancelled(cancel))
            return pp_fail(err, PP_ERR_CANCELLED, "loading the model was stopped");
        pp_pool_run(pool, fill_share, &f, &f.n_shares, 1);
        for (int i = 0; i < f.n_shares; i++)
            if (f.errors[i].code) {
                *err = f.errors[i];
                pp_fail_prefix(err, "tensor %.200s", t->name);
                return err->code;
            }
    }
    return PP_OK;
}

static enum pp_code fill_all(struct pp_source *s, struct pp_pool *pool, const struct pp_fill_options *opt,
                             struct pp_error *err)
{
    const size_t total = pp_source_to_fill(s);
    size_t done = 0;
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < s->list.n && !code; i++) {
        if (!s->list.t[i].rows)
            continue;
        const struct pp_tensor *t = &s->list.t[i];
        code = fill_tensor(t, pool, opt->cancel, err);
        pp_source_release_pages(s, t, 0, t->ne[1] * t->ne[2] * t->ne[3]); /* the stored weights are not read again */
        done += t->size;
        if (!code && opt->progress)
            opt->progress(opt->user, done, total);
    }
    if (!code)
        code = pp_source_check(s, err); /* if another program cut the file off, zeros were read */
    if (code && code != PP_ERR_CANCELLED)
        pp_fail_prefix(err, "%s", s->path);
    return code;
}

void pp_source_release_pages(const struct pp_source *s, const struct pp_tensor *t, int64_t first, int64_t n)
{
    const size_t row = t->size / (size_t)(t->ne[1] * t->ne[2] * t->ne[3]);
    const uint8_t *data = t->data;
    if (pp_tensor_list_made(&s->list, t->rows ? t->rows->weights : data))
        return; /* memory of our own: it could not be read again */
    if (t->rows)
        pp_rows_release_pages(t->rows, first, n);
    else
        pp_map_release_pages(data + row * (size_t)first, data + row * (size_t)(first + n));
}

size_t pp_source_to_fill(const struct pp_source *s)
{
    size_t total = 0;
    for (size_t i = 0; i < s->list.n; i++)
        total += s->list.t[i].rows ? s->list.t[i].size : 0;
    return total;
}

enum pp_code pp_source_fill(const struct pp_source *source, struct pp_pool *pool, const struct pp_fill_options *opt,
                            struct pp_error *err)
{
    struct pp_source *s = (struct pp_source *)(uintptr_t)source; /* only members that the lock protects change */
    struct pp_pool *own = NULL;
    struct pp_error why;
    enum pp_code code = PP_OK;
    err = err ? err : &why;
    if (!s->room)
        return PP_OK;
    pthread_mutex_lock(&s->fill_lock);
    if (!s->filled && !pool)
        code = pp_pool_new(1, &own, err);
    if (!s->filled && !code)
        code = fill_all(s, pool ? pool : own, opt, err);
    s->filled |= code == PP_OK;
    pthread_mutex_unlock(&s->fill_lock);
    pp_pool_free(own);
    return code;
}
