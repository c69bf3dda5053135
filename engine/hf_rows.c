/* hf_rows.c - matrices that folders store in another order than we compute with, described as rows (rows.h): they are
 * made when they are needed, so that a conversion has no more in memory than the slice it is working on. */
#include <stdio.h>
#include <string.h>

#include "engine/hf_form.h"
#include "engine/rows.h"
#include "engine/tensor_forms.h"

enum { NAME = PP_HF_NAME };

bool pp_hf_qkv_names(const char *name, char parts[3][PP_HF_NAME])
{
    static const char kind[] = ".attn_qkv.";
    const char *at = strstr(name, kind);
    for (int part = 0; part < 3 && at; part++)
        snprintf(parts[part], NAME, "%.*s.attn_%c.%s", (int)(at - name), name, "qkv"[part], at + strlen(kind));
    return at != NULL;
}

bool pp_hf_is_by_rows(enum pp_hf_form form, const struct pp_tensor *t)
{
    switch (form) {
    case PP_HF_TRANSPOSED:
    case PP_HF_EXPERTS_TRANSPOSED:
    case PP_HF_EXPERTS_INTERLEAVED:
    case PP_HF_EXPERTS_HALVES:
    case PP_HF_EXPERTS_FLAT_TRANSPOSED:
    case PP_HF_QKV_STACKED:
    case PP_HF_GATE_QKV:
    case PP_HF_QKV_BY_GROUP:
    case PP_HF_QKV_IN_PIECES:
    case PP_HF_HALVES_BY_HEAD:
    case PP_HF_INDEXER_Q_K:
    case PP_HF_UNIT_ROWS:
    case PP_HF_MIX_W1:
    case PP_HF_MIX_W2:
    case PP_HF_HALF_NEGATED:
    case PP_HF_TIMES_EIGHT:
        return true;
    case PP_HF_QKV_FUSED_BY_GROUP:
    case PP_HF_INTERLEAVED:
        return t->n_dims != 1; /* biases are small, and are copied */
    default:
        return false;
    }
}

enum pp_code pp_hf_stack(const struct pp_tensor *t, const struct pp_hparams *hp, struct pp_tensor *out,
                         struct pp_error *err)
{
    if (t->n_dims != 2 || hp->n_expert < 1 || t->ne[1] % hp->n_expert != 0)
        return pp_hf_fail_shape(t, err);
    *out = *t;
    out->n_dims = 3;
    out->ne[1] /= hp->n_expert;
    out->ne[2] = hp->n_expert;
    return PP_OK;
}

/* The rows of t as they are stored. */
static struct pp_rows stored(const struct pp_tensor *t)
{
    return (struct pp_rows){.form = PP_FORM_FLOATS, .type = t->type, .stored_type = t->type, .as_blocks = true,
                            .n_cols = t->ne[0], .n_rows = t->ne[1] * t->ne[2] * t->ne[3], .weights = t->data,
                            .row_step = 1};
}

/* Adds a tensor made of these rows; n_matrices is 0 unless it is a stack. */
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

/* The columns of the matrices of t as rows, in n_parts parts. */
static struct pp_rows transposed_rows(const struct pp_tensor *t, int n_parts)
{
    struct pp_rows rows = stored(t);
    rows.form = PP_FORM_TRANSPOSED;
    rows.width = t->ne[0];
    rows.matrix_rows = t->ne[0] / n_parts;
    rows.n_cols = t->ne[1];
    rows.n_rows = rows.matrix_rows * t->ne[2];
    return rows;
}

/* names: [n_parts] of the tensors whose columns are interleaved, or with `consecutive` follow each other. */
static enum pp_code add_transposed(struct pp_tensor_list *l, const struct pp_tensor *t, int n_dims, int n_parts,
                                   bool consecutive, const char *const *names, struct pp_error *err)
{
    const int64_t n_out = t->ne[0] / n_parts;
    enum pp_code code = PP_OK;
    if (t->n_dims != n_dims || pp_type_info(t->type)->block_elements != 1 || t->ne[0] % n_parts != 0)
        return pp_hf_fail_shape(t, err);
    for (int part = 0; part < n_parts && !code; part++) {
        struct pp_rows rows = transposed_rows(t, n_parts);
        rows.row_first = consecutive ? part * n_out : part;
        rows.row_step = consecutive ? 1 : n_parts;
        code = add(l, &rows, n_dims == 3 ? t->ne[2] : 0, names[part], err);
    }
    return code;
}

/* RWKV 6's five mixes, next to each other in one matrix, or each in its own. */
static enum pp_code add_mixes(struct pp_tensor_list *l, const struct pp_tensor *t, bool apart, const char *name,
                              struct pp_error *err)
{
    enum { N_MIXES = 5 };
    const bool good = apart ? t->n_dims == 3 && t->ne[2] == N_MIXES : t->n_dims == 2 && t->ne[0] % N_MIXES == 0;
    if (!good || pp_type_info(t->type)->block_elements != 1)
        return pp_hf_fail_shape(t, err);
    struct pp_rows rows = transposed_rows(t, 1);
    rows.mix_rows = rows.n_rows / N_MIXES;
    return add(l, &rows, apart ? N_MIXES : 0, name, err);
}

/* --- fused matrices ------------------------------------------------------------------------------------------ */

/* Which rows are the heads of q, k or v. */
static bool heads_rows(enum pp_hf_form form, const struct pp_hparams *hp, int64_t n_rows, int part,
                       struct pp_rows *rows)
{
    const int64_t n_part[] = {hp->n_head * hp->head_dim, hp->n_head_kv * hp->head_dim, hp->n_head_kv * hp->head_dim};
    const int64_t n_pieces = form == PP_HF_QKV_IN_PIECES ? pp_hf_qkv_pieces(hp) : 0;
    if (hp->head_dim <= 0 || hp->n_head_kv <= 0 || n_rows != n_part[0] + 2 * n_part[1] ||
        (n_pieces && (hp->n_head != hp->n_head_kv || hp->n_head % n_pieces != 0)))
        return false;
    rows->n_rows = form == PP_HF_QKV_FUSED_BY_GROUP ? n_rows : n_part[part];
    rows->row_first = part == 0 ? 0 : part == 1 ? n_part[0] : n_part[0] + n_part[1];
    rows->row_step = 1;
    if (form != PP_HF_QKV_STACKED) {
        rows->n_head = hp->n_head;
        rows->n_head_kv = hp->n_head_kv;
        rows->head_dim = hp->head_dim;
        rows->head_pieces = n_pieces;
    }
    return true;
}

/* Two matrices interleaved by n rows. */
static bool interleaved_rows(int64_t n, int64_t n_rows, int part, struct pp_rows *rows)
{
    if (n <= 0 || n_rows % (2 * n) != 0)
        return false;
    rows->n_rows = n_rows / 2;
    rows->row_first = part * n;
    rows->row_step = 2;
    rows->head_dim = n;
    return true;
}

/* Two matrices one after the other, the first with n rows. */
static bool consecutive_rows(int64_t n, int64_t n_rows, int part, struct pp_rows *rows)
{
    rows->n_rows = part ? n_rows - n : n;
    rows->row_first = part ? n : 0;
    rows->row_step = 1;
    return n > 0 && n < n_rows;
}

bool pp_hf_part_rows(enum pp_hf_form form, const struct pp_hparams *hp, int64_t n_rows, int part,
                     struct pp_rows *rows)
{
    switch (form) {
    case PP_HF_QKV_FUSED_BY_GROUP:
    case PP_HF_QKV_STACKED:
    case PP_HF_QKV_BY_GROUP:
    case PP_HF_QKV_IN_PIECES:
        return heads_rows(form, hp, n_rows, part, rows);
    case PP_HF_HALVES:
        return n_rows % 2 == 0 && consecutive_rows(n_rows / 2, n_rows, part, rows);
    case PP_HF_HALVES_BY_HEAD: /* interleaved by heads */
        return (n_rows == 2 * hp->n_head_kv * hp->head_dim || n_rows == 2 * hp->n_head * hp->head_dim) &&
               interleaved_rows(hp->head_dim, n_rows, part, rows);
    case PP_HF_INTERLEAVED:
        return interleaved_rows(1, n_rows, part, rows);
    case PP_HF_INDEXER_Q_K: /* queries of all heads, then their key */
        return n_rows == (hp->n_index_head + 1) * hp->index_dim &&
               consecutive_rows(hp->n_index_head * hp->index_dim, n_rows, part, rows);
    default:
        return false;
    }
}

/* names: [n_parts] */
static enum pp_code add_parts(struct pp_tensor_list *l, const struct pp_tensor *t, enum pp_hf_form form,
                              const struct pp_hparams *hp, int n_parts, const char *const *names, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (int part = 0; part < n_parts && !code; part++) {
        struct pp_rows rows = stored(t);
        code = t->n_dims == 2 && pp_hf_part_rows(form, hp, t->ne[1], part, &rows) ? add(l, &rows, 0, names[part], err)
                                                                                  : pp_hf_fail_shape(t, err);
    }
    return code;
}

/* Splits a bias of q, k and v that follow each other. */
static enum pp_code add_biases(struct pp_tensor_list *l, const struct pp_tensor *t, const struct pp_hparams *hp,
                               const char (*names)[NAME], struct pp_error *err)
{
    const int64_t n_part[] = {hp->n_head * hp->head_dim, hp->n_head_kv * hp->head_dim, hp->n_head_kv * hp->head_dim};
    const char *data = t->data;
    enum pp_code code = PP_OK;
    for (int part = 0; part < 3 && !code; part++) {
        struct pp_tensor one = *t;
        one.ne[0] = n_part[part];
        one.size = pp_type_row_bytes(t->type, n_part[part]);
        one.data = data;
        data += one.size;
        code = pp_tensor_list_add(l, &one, names[part], false, err);
    }
    return code;
}

/* Adds q, k and v as a tensor each; those of PP_HF_QKV_FUSED_BY_GROUP as one, in which they follow each other. */
static enum pp_code add_heads(struct pp_tensor_list *l, const struct pp_tensor *t, enum pp_hf_form form,
                              const struct pp_hparams *hp, const char *name, struct pp_error *err)
{
    const bool apart = form != PP_HF_QKV_FUSED_BY_GROUP;
    char own[3][NAME];
    const char *const parts[] = {apart ? own[0] : name, own[1], own[2]};
    struct pp_rows rows;
    const bool biases = form == PP_HF_QKV_STACKED && t->n_dims == 1 && pp_type_info(t->type)->block_elements == 1;
    if ((apart && !pp_hf_qkv_names(name, own)) || (t->n_dims != 2 && !biases) ||
        !pp_hf_part_rows(form, hp, t->ne[biases ? 0 : 1], 0, &rows))
        return pp_fail(err, PP_ERR_FORMAT, "tensor %.100s does not have the rows of %lld heads of queries and %lld of "
                       "keys and values", t->name, (long long)hp->n_head, (long long)hp->n_head_kv);
    if (biases)
        return add_biases(l, t, hp, own, err);
    return add_parts(l, t, form, hp, apart ? 3 : 1, parts, err);
}

/* Adds the gate of attention, and q, k and v after it, as a tensor each. */
static enum pp_code add_gate_and_heads(struct pp_tensor_list *l, const struct pp_tensor *t,
                                       const struct pp_hparams *hp, const char *name, struct pp_error *err)
{
    const int64_t n_q = hp->n_head * hp->head_dim, n_k = hp->n_head_kv * hp->head_dim, n_part[] = {n_q, n_q, n_k, n_k};
    char own[3][NAME], gate[NAME];
    const char *const parts[] = {gate, own[0], own[1], own[2]};
    const char *at = strstr(name, ".attn_qkv.");
    enum pp_code code = PP_OK;
    int64_t first = 0;
    if (!pp_hf_qkv_names(name, own) || t->n_dims != 2 || t->ne[1] != 2 * (n_q + n_k))
        return pp_fail(err, PP_ERR_FORMAT, "tensor %.100s does not have the rows of %lld heads of gates and queries "
                       "and %lld of keys and values", t->name, (long long)hp->n_head, (long long)hp->n_head_kv);
    snprintf(gate, sizeof gate, "%.*s.attn_gate.weight", (int)(at - name), name);
    for (int part = 0; part < 4 && !code; part++) {
        struct pp_rows rows = stored(t);
        rows.n_rows = n_part[part];
        rows.row_first = first;
        first += n_part[part];
        code = add(l, &rows, 0, parts[part], err);
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
    case PP_HF_TRANSPOSED:
        return add_transposed(l, t, 2, 1, false, names, err);
    case PP_HF_EXPERTS_TRANSPOSED:
        return add_transposed(l, t, 3, 1, false, names, err);
    case PP_HF_EXPERTS_INTERLEAVED:
    case PP_HF_EXPERTS_HALVES:
        return add_transposed(l, t, 3, 2, form == PP_HF_EXPERTS_HALVES, names, err);
    case PP_HF_MIX_W1:
    case PP_HF_MIX_W2:
        return add_mixes(l, t, form == PP_HF_MIX_W2, name, err);
    case PP_HF_HALVES_BY_HEAD:
    case PP_HF_INTERLEAVED:
    case PP_HF_INDEXER_Q_K:
        return add_parts(l, t, form, hp, 2, names, err);
    case PP_HF_GATE_QKV:
        return add_gate_and_heads(l, t, hp, name, err);
    case PP_HF_EXPERTS_FLAT_TRANSPOSED:
        code = pp_hf_stack(t, hp, &stack, err);
        return code ? code : add_transposed(l, &stack, 3, 1, false, names, err);
    case PP_HF_UNIT_ROWS:
    case PP_HF_HALF_NEGATED:
    case PP_HF_TIMES_EIGHT:
        if (t->n_dims != 2 || (form == PP_HF_HALF_NEGATED && t->ne[1] % hp->head_dim != 0))
            return pp_hf_fail_shape(t, err);
        rows = stored(t);
        rows.negate_dim = form == PP_HF_HALF_NEGATED ? hp->head_dim : 0;
        rows.unit_length = form == PP_HF_UNIT_ROWS;
        rows.as_blocks = false;
        if (form == PP_HF_TIMES_EIGHT) {
            rows.n_scaled = 1;
            rows.scaled[0].end = rows.n_rows;
            rows.scaled[0].by = 8;
        }
        return add(l, &rows, 0, name, err);
    default:
        return add_heads(l, t, form, hp, name, err);
    }
}
