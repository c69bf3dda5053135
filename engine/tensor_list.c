#include "engine/tensor_list.h"

#include <stdint.h>
#include <string.h>

#include "engine/base/mem.h"

enum pp_code pp_tensor_list_add(struct pp_tensor_list *l, const struct pp_tensor *t, const char *name, bool made,
                                struct pp_error *err)
{
    if (made && pp_grow(&l->made, &l->cap_made, l->n_made + 1, sizeof *l->made) != 0) {
        pp_free((void *)(uintptr_t)t->data);
        return pp_fail_nomem(err, "the list of tensors");
    }
    if (made)
        l->made[l->n_made++] = (void *)(uintptr_t)t->data;
    if (pp_grow(&l->t, &l->cap, l->n + 1, sizeof *l->t) != 0)
        return pp_fail_nomem(err, "the list of tensors");
    struct pp_tensor *mine = &l->t[l->n];
    *mine = *t;
    mine->name = pp_strdup(name);
    if (!mine->name)
        return pp_fail_nomem(err, "the list of tensors");
    l->n++;
    return PP_OK;
}

struct pp_rows *pp_tensor_list_rows(struct pp_tensor_list *l, struct pp_error *err)
{
    struct pp_rows *rows = NULL;
    if (pp_grow(&l->rows, &l->cap_rows, l->n_rows + 1, sizeof *l->rows) == 0 && (rows = pp_calloc(1, sizeof *rows)))
        l->rows[l->n_rows++] = rows;
    else
        pp_fail_nomem(err, "the list of tensors");
    return rows;
}

enum pp_code pp_tensor_list_copy(struct pp_tensor_list *l, size_t i, struct pp_error *err)
{
    struct pp_tensor *t = &l->t[i];
    void *data = pp_grow(&l->made, &l->cap_made, l->n_made + 1, sizeof *l->made) ? NULL : pp_malloc(t->size);
    if (!data)
        return pp_fail_nomem(err, t->name);
    memcpy(data, t->data, t->size);
    l->made[l->n_made++] = data;
    t->data = data;
    return PP_OK;
}

enum pp_code pp_tensor_list_by_rows(struct pp_tensor_list *l, size_t i, struct pp_error *err)
{
    struct pp_rows *rows = pp_tensor_list_rows(l, err);
    struct pp_tensor *t = &l->t[i];
    if (!rows)
        return PP_ERR_NOMEM;
    *rows = (struct pp_rows){.form = PP_FORM_FLOATS, .type = t->type, .stored_type = t->type, .as_blocks = true,
                             .n_cols = t->ne[0], .n_rows = t->ne[1] * t->ne[2] * t->ne[3], .weights = t->data,
                             .row_step = 1};
    t->rows = rows;
    t->data = NULL;
    return PP_OK;
}

enum pp_code pp_tensor_list_add_interleaved(struct pp_tensor_list *l, struct pp_tensor *t, const char *first,
                                            const char *second, struct pp_error *err)
{
    struct pp_rows *odd = pp_tensor_list_rows(l, err);
    if (!odd)
        return PP_ERR_NOMEM;
    if (t->ne[1] % 2 != 0)
        return pp_fail(err, PP_ERR_FORMAT, "%s and %s need an even number of rows between them", first, second);
    pp_rows_split_interleaved((struct pp_rows *)(uintptr_t)t->rows, odd); /* of the list, so writable */
    t->ne[1] /= 2;
    t->size /= 2;
    enum pp_code code = pp_tensor_list_add(l, t, first, false, err);
    t->rows = odd;
    return code ? code : pp_tensor_list_add(l, t, second, false, err);
}

bool pp_tensor_list_made(const struct pp_tensor_list *l, const void *data)
{
    for (size_t i = 0; i < l->n_made; i++)
        if (l->made[i] == data)
            return true;
    return false;
}

void pp_tensor_list_free(struct pp_tensor_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        pp_free((void *)(uintptr_t)l->t[i].name);
    pp_free(l->t);
    for (size_t i = 0; i < l->n_made; i++)
        pp_free(l->made[i]);
    pp_free(l->made);
    for (size_t i = 0; i < l->n_rows; i++)
        pp_free(l->rows[i]);
    pp_free(l->rows);
    *l = (struct pp_tensor_list){0};
}
