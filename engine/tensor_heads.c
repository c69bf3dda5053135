/* tensor_heads.c - splits and joins matrices of latent attention's heads (tensor_forms.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/word.h"
#include "engine/export.h"
#include "engine/tensor_forms.h"

static const char both_end[] = ".attn_kv_b.weight";

static bool has(const struct pp_tensor_list *l, const char *name)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->t[i].name, name) == 0)
            return true;
    return false;
}

/* "blk.3.attn_k_b.weight" for "blk.3.attn_kv_b.weight" */
static void part_name(const char *both, char kind, char out[128])
{
    snprintf(out, 128, "%.*s.attn_%c_b.weight", (int)(strlen(both) - strlen(both_end)), both, kind);
}

static bool is_float(uint32_t type)
{
    return pp_type_info(type)->block_elements == 1;
}

/* The sizes in the layer of a tensor, "blk.3...."; other names get those of the first layer. */
static struct pp_latent_shape shape_of(const char *name, const struct pp_hparams *hp)
{
    const long long l = strncmp(name, "blk.", 4) == 0 ? strtoll(name + 4, NULL, 10) : 0;
    return pp_latent_shape(hp, l > 0 && l < hp->n_layer ? l : 0);
}

static enum pp_code add_part(struct pp_tensor_list *l, const struct pp_rows *like, const struct pp_latent_shape *shape,
                             struct pp_error *err)
{
    const bool keys = like->form == PP_FORM_MLA_K;
    struct pp_rows *rows = pp_tensor_list_rows(l, err);
    char name[128];
    if (!rows)
        return PP_ERR_NOMEM;
    *rows = *like;
    rows->n_cols = keys ? shape->n_key : shape->rank;
    rows->n_rows = shape->n_head * (keys ? shape->rank : shape->n_value);
    if (keys && !is_float(rows->type))
        rows->type = pp_quantize_fitting_type(PP_TYPE_Q8_0, rows->n_cols);
    rows->as_blocks = !keys && !rows->of->rows;
    const struct pp_tensor part = {.type = rows->type, .n_dims = 3, .rows = rows,
                                   .ne = {rows->n_cols, rows->n_rows / shape->n_head, shape->n_head, 1},
                                   .size = pp_type_row_bytes(rows->type, rows->n_cols) * (size_t)rows->n_rows};
    part_name(rows->of->name, keys ? 'k' : 'v', name);
    return pp_tensor_list_add(l, &part, name, false, err);
}

/* both: kept by the list. */
static enum pp_code split(struct pp_tensor_list *l, const struct pp_tensor *both, const struct pp_hparams *hp,
                          struct pp_error *err)
{
    const struct pp_latent_shape shape = shape_of(both->name, hp);
    const int64_t n_rows = shape.n_head * (shape.n_key + shape.n_value);
    struct pp_rows rows = {.form = PP_FORM_MLA_K, .type = both->type, .row_step = 1, .of = both, .weights = both->data,
                           .head_keys = shape.n_key, .head_values = shape.n_value};
    if (both->n_dims != 2 || both->ne[0] != shape.rank || both->ne[1] != n_rows ||
        !pp_type_info(both->type)->runnable)
        return pp_fail(err, PP_ERR_FORMAT, "tensor %.100s has the shape %lld x %lld, but %lld x %lld is needed",
                       both->name, (long long)both->ne[1], (long long)both->ne[0], (long long)n_rows,
                       (long long)shape.rank);
    enum pp_code code = add_part(l, &rows, &shape, err);
    rows.form = PP_FORM_MLA_V;
    return code ? code : add_part(l, &rows, &shape, err);
}

/* A copy of a tensor and its name that lives as long as the list. */
static const struct pp_tensor *keep(struct pp_tensor_list *l, const struct pp_tensor *t, struct pp_error *err)
{
    struct {
        struct pp_tensor t;
        char name[128];
    } *entry = pp_calloc(1, sizeof *entry);
    if (!entry || pp_grow(&l->made, &l->cap_made, l->n_made + 1, sizeof *l->made) != 0) {
        pp_free(entry);
        pp_fail_nomem(err, "the list of tensors");
        return NULL;
    }
    l->made[l->n_made++] = entry;
    snprintf(entry->name, sizeof entry->name, "%.127s", t->name);
    entry->t = *t;
    entry->t.name = entry->name;
    return &entry->t;
}

static bool is_of_layers(const char *name, const struct pp_hparams *hp)
{
    return strlen(name) < 100 && strncmp(name, "blk.", 4) == 0 && pp_ends_with(name, both_end) &&
           !pp_is_after_layers(hp, name);
}

enum pp_code pp_split_heads(struct pp_tensor_list *l, const struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < l->n && !code;) {
        char k_b[128], v_b[128];
        if (!is_of_layers(l->t[i].name, hp)) {
            i++;
            continue;
        }
        const struct pp_tensor *both = keep(l, &l->t[i], err);
        if (!both)
            return PP_ERR_NOMEM;
        pp_free((void *)(uintptr_t)l->t[i].name);
        l->t[i] = l->t[--l->n];
        part_name(both->name, 'k', k_b);
        part_name(both->name, 'v', v_b);
        if (!has(l, k_b) || !has(l, v_b))
            code = split(l, both, hp, err);
    }
    return code;
}

enum pp_code pp_join_heads(const struct pp_tensor *k_b, const struct pp_tensor *v_b, const struct pp_hparams *hp,
                           struct pp_tensor *both, struct pp_rows *rows, struct pp_error *err)
{
    const struct pp_latent_shape shape = shape_of(k_b->name, hp);
    const int64_t keys = shape.n_key, values = shape.n_value;
    if (!v_b || k_b->ne[0] != keys || v_b->ne[0] != shape.rank ||
        k_b->ne[1] * k_b->ne[2] != shape.n_head * shape.rank || v_b->ne[1] * v_b->ne[2] != shape.n_head * values)
        return pp_fail(err, PP_ERR_FORMAT, "tensor %.100s has no counterpart for values", k_b->name);
    if (k_b->rows && v_b->rows && k_b->rows->form == PP_FORM_MLA_K && v_b->rows->form == PP_FORM_MLA_V &&
        k_b->rows->of == v_b->rows->of) {
        *both = *k_b->rows->of; /* the original */
        return PP_OK;
    }
    *rows = (struct pp_rows){.form = PP_FORM_MLA_KV, .type = k_b->type, .row_step = 1, .of = k_b, .with = v_b,
                             .n_cols = shape.rank, .n_rows = shape.n_head * (keys + values), .weights = k_b->data,
                             .head_keys = keys, .head_values = values};
    *both = (struct pp_tensor){.name = k_b->name, .type = k_b->type, .n_dims = 2, .rows = rows, .data = k_b->data,
                               .ne = {rows->n_cols, rows->n_rows, 1, 1},
                               .size = pp_type_row_bytes(k_b->type, rows->n_cols) * (size_t)rows->n_rows};
    return PP_OK;
}
