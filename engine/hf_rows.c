/* hf_rows.c - matrices that folders keep in another order than we compute with, described as rows (rows.h): what is
 * made of them is made when it is needed, and a conversion has no more of it in memory than the slice it is at. */
#include <stdio.h>
#include <string.h>

#include "engine/hf_form.h"
#include "engine/rows.h"
#include "engine/tensor_forms.h"

enum { NAME = 128 };

bool pp_hf_is_by_rows(enum pp_hf_form form, const struct pp_tensor *t)
{
    switch (form) {
    case PP_HF_TURNED:
    case PP_HF_EXPERTS_TURNED:
    case PP_HF_EXPERTS_GATE_UP:
    case PP_HF_EXPERTS_HALVES_TURNED:
    case PP_HF_EXPERTS_FLAT_TURNED:
    case PP_HF_QKV_STACKED:
    case PP_HF_QKV_BY_GROUP:
    case PP_HF_QKV_IN_FOUR:
    case PP_HF_KEYS_VALUES:
    case PP_HF_INDEX:
    case PP_HF_UNIT_ROWS:
    case PP_HF_WAYS:
    case PP_HF_WAYS_APART:
    case PP_HF_EIGHTFOLD:
        return true;
    case PP_HF_QKV_BY_HEAD:
    case PP_HF_IN_TURNS:
        return t->n_dims != 1; /* biases are small */
    default:
        return false;
    }
}

static enum pp_code fail_shape(const struct pp_tensor *t, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_FORMAT, "tensor %.200s has %lld x %lld x %lld values, which is not the shape it needs",
                   t->name, (long long)t->ne[2], (long long)t->ne[1], (long long)t->ne[0]);
}

enum pp_code pp_hf_stack(const struct pp_tensor *t, const struct pp_hparams *hp, struct pp_tensor *out,
                         struct pp_error *err)
{
    if (t->n_dims != 2 || hp->n_expert < 1 || t->ne[1] % hp->n_expert != 0)
        return fail_shape(t, err);
    *out = *t;
    out->n_dims = 3;
    out->ne[1] /= hp->n_expert;
    out->ne[2] = hp->n_expert;
    return PP_OK;
}

/* The rows of t as they are stored. */
static struct pp_rows stored(const struct pp_tensor *t)
{
    return (struct pp_rows){.form = PP_FORM_FLOATS, .type = t->type, .type_there = t->type, .as_blocks = true,
                            .n_cols = t->ne[0], .n_rows = t->ne[1] * t->ne[2] * t->ne[3], .weights = t->data,
                            .row_step = 1};
}

/* Adds the tensor that these rows are; n_matrices is 0 unless it is a stack. */
static enum pp_code add(struct pp_tensor_list *l, const struct pp_rows *like, int64_t n_matrices, const char *name,
                        struct pp_error *err)
{
    struct pp_rows *rows = pp_tensor_list_rows(l, err);
    const int64_t n = n_matrices ? n_matrices : 1;
    if (!rows)
        return PP_ERR_NOMEM;
    *rows = *like;
    const struct pp_tensor t = {.type = rows->type, .n_dims = n_matrices ? 3 : 2, .rows = rows,
                                .ne = {rows->n_cols, rows->n_rows / n, n, 1},
                                .size = pp_type_row_bytes(rows->type, rows->n_cols) * (size_t)rows->n_rows};
    return pp_tensor_list_add(l, &t, name, false, err);
}

/* The columns of the matrices of t, cut into parts, as rows. */
static struct pp_rows turned(const struct pp_tensor *t, int n_parts)
{
    struct pp_rows rows = stored(t);
    rows.form = PP_FORM_TURNED;
    rows.width = t->ne[0];
    rows.matrix_rows = t->ne[0] / n_parts;
    rows.n_cols = t->ne[1];
    rows.n_rows = rows.matrix_rows * t->ne[2];
    return rows;
}

/* names: [n_parts] of the tensors that take turns among the columns, or come one behind the other. */
static enum pp_code add_turned(struct pp_tensor_list *l, const struct pp_tensor *t, int n_dims, int n_parts,
                               bool behind, const char *const *names, struct pp_error *err)
{
    const int64_t n_out = t->ne[0] / n_parts;
    enum pp_code code = PP_OK;
    if (t->n_dims != n_dims || pp_type_info(t->type)->block_elements != 1 || t->ne[0] % n_parts != 0)
        return fail_shape(t, err);
    for (int part = 0; part < n_parts && !code; part++) {
        struct pp_rows rows = turned(t, n_parts);
        rows.row_first = behind ? part * n_out : part;
        rows.row_step = behind ? 1 : n_parts;
        code = add(l, &rows, n_dims == 3 ? t->ne[2] : 0, names[part], err);
    }
    return code;
}

/* RWKV's five ways to mix, side by side in one matrix, or each in its own. */
static enum pp_code add_ways(struct pp_tensor_list *l, const struct pp_tensor *t, bool apart, const char *name,
                             struct pp_error *err)
{
    enum { N_WAYS = 5 };
    const bool good = apart ? t->n_dims == 3 && t->ne[2] == N_WAYS : t->n_dims == 2 && t->ne[0] % N_WAYS == 0;
    if (!good || pp_type_info(t->type)->block_elements != 1)
        return fail_shape(t, err);
    struct pp_rows rows = turned(t, 1);
    rows.ways = rows.n_rows / N_WAYS;
    return add(l, &rows, apart ? N_WAYS : 0, name, err);
}

/* parts: q, k and v, each a tensor; else one, in which they come one behind the other. */
static enum pp_code add_heads(struct pp_tensor_list *l, const struct pp_tensor *t, enum pp_hf_form form,
                              const struct pp_hparams *hp, const char *name, struct pp_error *err)
{
    static const char kind[] = ".attn_qkv.";
    const bool apart = form != PP_HF_QKV_BY_HEAD;
    const int64_t n_rows[] = {hp->n_head * hp->head_dim, hp->n_head_kv * hp->head_dim, hp->n_head_kv * hp->head_dim};
    const char *at = strstr(name, kind);
    struct pp_rows rows = stored(t);
    enum pp_code code = PP_OK;
    const bool in_pieces = form == PP_HF_QKV_IN_FOUR;
    const int64_t n_pieces = pp_hf_qkv_pieces(hp);
    if (t->n_dims != 2 || hp->head_dim <= 0 || t->ne[1] != n_rows[0] + 2 * n_rows[1] || (apart && !at) ||
        (in_pieces && (hp->n_head != hp->n_head_kv || hp->n_head % n_pieces != 0)))
        return pp_fail(err, PP_ERR_FORMAT, "tensor %.100s does not have the rows of %lld heads of queries and %lld of "
                       "keys and values", t->name, (long long)hp->n_head, (long long)hp->n_head_kv);
    if (form != PP_HF_QKV_STACKED) {
        rows.n_head = hp->n_head;
        rows.n_head_kv = hp->n_head_kv;
        rows.head_dim = hp->head_dim;
        rows.head_pieces = in_pieces ? n_pieces : 0;
    }
    if (!apart)
        return add(l, &rows, 0, name, err);
    for (int part = 0; part < 3 && !code; part++) {
        char own[NAME];
        snprintf(own, sizeof own, "%.*s.attn_%c.%s", (int)(at - name), name, "qkv"[part], at + strlen(kind));
        rows.n_rows = n_rows[part];
        code = add(l, &rows, 0, own, err);
        rows.row_first += n_rows[part];
    }
    return code;
}

/* Two matrices of which so many rows take turns. */
static enum pp_code add_in_turns(struct pp_tensor_list *l, const struct pp_tensor *t, int64_t n,
                                 const char *const names[2], struct pp_error *err)
{
    struct pp_rows rows = stored(t);
    enum pp_code code = PP_OK;
    if (t->n_dims != 2 || n <= 0 || t->ne[1] % (2 * n) != 0)
        return fail_shape(t, err);
    rows.n_rows /= 2;
    rows.row_step = 2;
    rows.head_dim = n;
    for (int part = 0; part < 2 && !code; part++) {
        rows.row_first = part * n;
        code = add(l, &rows, 0, names[part], err);
    }
    return code;
}

/* An index's queries of all heads, and its key. */
static enum pp_code add_index(struct pp_tensor_list *l, const struct pp_tensor *t, const struct pp_hparams *hp,
                              const char *const names[2], struct pp_error *err)
{
    const int64_t n_rows[] = {hp->n_index_head * hp->index_dim, hp->index_dim};
    struct pp_rows rows = stored(t);
    enum pp_code code = PP_OK;
    if (t->n_dims != 2 || t->ne[1] != n_rows[0] + n_rows[1])
        return fail_shape(t, err);
    for (int part = 0; part < 2 && !code; part++) {
        rows.n_rows = n_rows[part];
        code = add(l, &rows, 0, names[part], err);
        rows.row_first += n_rows[part];
    }
    return code;
}

enum pp_code pp_hf_rows_add(struct pp_tensor_list *l, const struct pp_tensor *t, enum pp_hf_form form,
                            const struct pp_hparams *hp, const char *name, const char *second, struct pp_error *err)
{
    const char *const names[] = {name, second};
    struct pp_rows rows;
    struct pp_tensor stack;
    enum pp_code code;
    switch (form) {
    case PP_HF_TURNED:
        return add_turned(l, t, 2, 1, false, names, err);
    case PP_HF_EXPERTS_TURNED:
        return add_turned(l, t, 3, 1, false, names, err);
    case PP_HF_EXPERTS_GATE_UP:
    case PP_HF_EXPERTS_HALVES_TURNED:
        return add_turned(l, t, 3, 2, form == PP_HF_EXPERTS_HALVES_TURNED, names, err);
    case PP_HF_WAYS:
    case PP_HF_WAYS_APART:
        return add_ways(l, t, form == PP_HF_WAYS_APART, name, err);
    case PP_HF_KEYS_VALUES: /* by heads */
        return hp->head_dim <= 0 || t->ne[1] != 2 * hp->n_head_kv * hp->head_dim
                   ? fail_shape(t, err)
                   : add_in_turns(l, t, hp->head_dim, names, err);
    case PP_HF_IN_TURNS:
        return add_in_turns(l, t, 1, names, err);
    case PP_HF_INDEX:
        return add_index(l, t, hp, names, err);
    case PP_HF_EXPERTS_FLAT_TURNED:
        code = pp_hf_stack(t, hp, &stack, err);
        return code ? code : add_turned(l, &stack, 3, 1, false, names, err);
    case PP_HF_UNIT_ROWS:
    case PP_HF_EIGHTFOLD:
        if (t->n_dims != 2)
            return fail_shape(t, err);
        rows = stored(t);
        rows.unit = form == PP_HF_UNIT_ROWS;
        rows.as_blocks = false;
        if (form == PP_HF_EIGHTFOLD) {
            rows.n_scaled = 1;
            rows.scaled[0].end = rows.n_rows;
            rows.scaled[0].by = 8;
        }
        return add(l, &rows, 0, name, err);
    default:
        return add_heads(l, t, form, hp, name, err);
    }
}
