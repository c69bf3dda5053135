#include "engine/adapter_join.h"

#include <stdio.h>
#include <string.h>

#include "engine/arch/arch.h"
#include "engine/base/mem.h"
#include "engine/quant.h"
#include "engine/rows.h"

void pp_adapter_values(uint32_t type, const uint8_t *from, const struct pp_adapter_columns *c, float *to)
{
    const size_t size = (size_t)pp_type_info(type)->block_bytes;
    from += (size_t)c->first * size;
    for (int64_t i = 0; i < c->n; i++, from += (size_t)c->step * size) {
        uint16_t half;
        if (type == PP_TYPE_F32) {
            memcpy(to + i, from, sizeof *to);
            continue;
        }
        memcpy(&half, from, sizeof half);
        to[i] = type == PP_TYPE_F16 ? pp_f16_to_f32(half) : pp_bf16_to_f32(half);
    }
}

static bool is_float(uint32_t type)
{
    return type == PP_TYPE_F32 || type == PP_TYPE_F16 || type == PP_TYPE_BF16;
}

void pp_adapter_half_row(const struct pp_adapter_target *t, int half, int64_t row, float *out)
{
    const struct pp_tensor *from = half ? &t->b : &t->a;
    const struct pp_adapter_columns *c = half ? &t->b_columns : &t->a_columns;
    const bool transposed = half ? t->b_transposed : t->a_transposed;
    const size_t row_bytes = pp_type_row_bytes(from->type, from->ne[0]);
    const uint8_t *data = from->data;
    if (transposed) { /* a column, whose values are a row apart */
        const struct pp_adapter_columns down = {.first = c->first + row * (c->n ? c->step : 1), .step = from->ne[0],
                                                .n = from->ne[1]};
        pp_adapter_values(from->type, data, &down, out);
    } else if (c->n) {
        pp_adapter_values(from->type, data + (size_t)row * row_bytes, c, out);
    } else {
        pp_dequantize_row(from->type, data + (size_t)row * row_bytes, out, from->ne[0]);
    }
}

/* --- joined -------------------------------------------------------------------------------------------------- */

/* Whether two targets have the same A, stored the same way. */
static bool same_a(const struct pp_adapter_target *a, const struct pp_adapter_target *b)
{
    return a == b || (a->a.type == b->a.type && a->rank == b->rank && a->a_transposed == b->a_transposed &&
                      !a->a_columns.n && !b->a_columns.n && a->n_in == b->n_in &&
                      memcmp(a->a.data, b->a.data,
                             pp_type_row_bytes(a->a.type, a->a.ne[0]) * (size_t)a->a.ne[1]) == 0);
}

static const struct pp_adapter_target *first_target(const struct pp_joined_part *parts, int n)
{
    int i = 0;
    while (i < n && !parts[i].target)
        i++;
    return i < n ? parts[i].target : NULL;
}

static bool all_same_a(const struct pp_joined_part *parts, int n)
{
    const struct pp_adapter_target *first = first_target(parts, n);
    for (int i = 0; i < n; i++)
        if (parts[i].target && !same_a(first, parts[i].target))
            return false;
    return true;
}

int64_t pp_adapter_joined_rank(const struct pp_joined_part *parts, int n, uint32_t *type)
{
    const struct pp_adapter_target *first = first_target(parts, n);
    int64_t rank = 0;
    *type = first ? first->a.type : PP_TYPE_F32;
    for (int i = 0; i < n; i++) {
        const struct pp_adapter_target *t = parts[i].target;
        if (!t)
            continue;
        rank += t->rank;
        if (!is_float(t->a.type) || t->a.type != *type || t->b.type != *type || t->scale != first->scale)
            *type = PP_TYPE_F32;
    }
    return first && all_same_a(parts, n) ? first->rank : rank;
}

static void add_b(const struct pp_joined_part *p, int64_t first_row, int64_t first_rank, float factor,
                  struct pp_joined *out)
{
    for (int64_t r = 0; r < p->n_out; r++) {
        float *to = out->b + (p->to ? p->to[r] : first_row + r) * out->rank + first_rank;
        pp_adapter_half_row(p->target, 1, p->from ? p->from[r] : r, to);
        for (int64_t k = 0; factor != 1.0f && k < p->target->rank; k++)
            to[k] *= factor;
    }
}

/* The first scale that is not 0, if any. */
static float scale_of(const struct pp_joined_part *parts, int n)
{
    float scale = 0;
    for (int i = 0; i < n && scale == 0.0f; i++)
        scale = parts[i].target ? parts[i].target->scale : 0;
    return scale;
}

bool pp_adapter_join(const struct pp_joined_part *parts, int n, int64_t n_in, int64_t n_out, int64_t least,
                     struct pp_joined *out)
{
    const struct pp_adapter_target *first = first_target(parts, n);
    const bool same = first && all_same_a(parts, n);
    uint32_t type;
    int64_t row = 0, rank = 0;
    *out = (struct pp_joined){.rank = pp_adapter_joined_rank(parts, n, &type), .scale = scale_of(parts, n)};
    out->rank = out->rank > least ? out->rank : least;
    out->a = pp_calloc((size_t)(out->rank * n_in), sizeof *out->a);
    out->b = pp_calloc((size_t)(out->rank * n_out), sizeof *out->b);
    if (!out->a || !out->b) {
        pp_joined_free(out);
        return false;
    }
    for (int i = 0; i < n; i++) {
        const struct pp_adapter_target *t = parts[i].target;
        const float factor = !t || t->scale == out->scale ? 1.0f : t->scale / out->scale;
        for (int64_t k = 0; t && k < t->rank && (!same || t == first); k++)
            pp_adapter_half_row(t, 0, k, out->a + (rank + k) * n_in);
        if (t)
            add_b(&parts[i], row, same ? 0 : rank, factor, out);
        rank += t && !same ? t->rank : 0;
        row += parts[i].n_out;
    }
    return true;
}

void pp_joined_free(struct pp_joined *j)
{
    pp_free(j->a);
    pp_free(j->b);
    *j = (struct pp_joined){0};
}

/* --- by names ------------------------------------------------------------------------------------------------ */

int pp_adapter_whole_name(const char *part, char whole[PP_HF_NAME], struct pp_join_way *way)
{
    static const struct {
        const char *part, *whole;
        int place;
        enum pp_hf_form form;
    } names[] = {
        {".attn_q.weight", ".attn_qkv.weight", 0, PP_HF_QKV_STACKED},
        {".attn_k.weight", ".attn_qkv.weight", 1, PP_HF_QKV_STACKED},
        {".attn_v.weight", ".attn_qkv.weight", 2, PP_HF_QKV_STACKED},
        {".ffn_gate.weight", ".ffn_up.weight", 0, PP_HF_HALVES},
        {".ffn_up.weight", ".ffn_up.weight", 1, PP_HF_HALVES},
        {".ffn_gate_shexp.weight", ".ffn_up_shexp.weight", 0, PP_HF_HALVES},
        {".ffn_up_shexp.weight", ".ffn_up_shexp.weight", 1, PP_HF_HALVES},
    };
    const size_t n = strlen(part);
    for (int i = 0; i < 2 * PP_BY_KEYS; i++) {
        const struct pp_by_keys *k = &pp_by_keys[i / 2];
        const size_t m = strlen(k->parts[i % 2]);
        if (n <= m || strcmp(part + n - m, k->parts[i % 2]) != 0)
            continue;
        snprintf(whole, PP_HF_NAME, "%.*s%s", (int)(n - m), part, k->whole);
        way->keys = k;
        return i % 2;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const size_t m = strlen(names[i].part);
        if (n <= m || strcmp(part + n - m, names[i].part) != 0)
            continue;
        snprintf(whole, PP_HF_NAME, "%.*s%s", (int)(n - m), part, names[i].whole);
        way->form = names[i].form;
        way->keys = NULL;
        return names[i].place;
    }
    return -1;
}

bool pp_join_add(struct pp_join *j, int place, const char *name, const struct pp_adapter_target *t, int part)
{
    if (j->of[place])
        return false;
    j->of[place] = t;
    j->part[place] = part;
    snprintf(j->names[place], PP_HF_NAME, "%s", name);
    return true;
}

int64_t pp_join_rank(const struct pp_join *j, uint32_t *type)
{
    struct pp_joined_part parts[PP_JOINED_PARTS] = {{0}};
    for (int i = 0; i < PP_JOINED_PARTS; i++)
        parts[i].target = j->of[i] && j->of[i]->rank ? j->of[i] : NULL;
    return pp_adapter_joined_rank(parts, PP_JOINED_PARTS, type);
}

enum pp_code pp_join_rows(const struct pp_join *j, int place, const struct pp_hparams *hp,
                          const struct pp_join_way *way, int64_t n_out, int64_t *n_rows, int32_t **from, int32_t **to,
                          struct pp_error *err)
{
    const struct pp_adapter_target *t = j->of[place];
    const bool pairs = pp_arch_rows(pp_arch_by_name(hp->arch), j->names[place]) != PP_ROWS_SAME;
    struct pp_rows rows;
    const int64_t n = way->keys ? pp_key_part_rows(hp, way->keys->kinds[place])
                      : pp_hf_part_rows(way->form, hp, n_out, place, &rows) ? rows.n_rows
                                                                            : 0;
    if (n == 0 || pp_adapter_part_outputs(t, hp, j->part[place]) != n)
        return pp_fail(err, PP_ERR_MISMATCH, "the adapter's %s has %lld outputs, but %s has %lld for it", t->name,
                       (long long)t->n_out, j->name, (long long)n);
    *from = pp_malloc((size_t)n * sizeof **from);
    *to = pp_malloc((size_t)n * sizeof **to);
    if (!*from || !*to)
        return pp_fail_nomem(err, "an adapter's rows");
    const struct pp_adapter_target whole = {.name = j->name, .form = way->form, .n_out = n_out, .second = j->name};
    pp_adapter_outputs(t, hp, j->part[place], pairs ? way->from : PP_PAIRS_SAME, *from);
    for (int64_t r = 0; way->keys && r < n; r++)
        (*to)[r] = (int32_t)pp_key_part_row(hp, way->keys->kinds[place], r);
    if (!way->keys)
        pp_adapter_outputs(&whole, hp, place, pairs ? way->to : PP_PAIRS_SAME, *to);
    *n_rows = n;
    return PP_OK;
}

enum pp_code pp_join_make(const struct pp_join *j, const struct pp_hparams *hp, const struct pp_join_way *way,
                          int64_t n_in, int64_t n_out, struct pp_joined *out, struct pp_error *err)
{
    struct pp_joined_part parts[PP_JOINED_PARTS] = {{0}};
    int32_t *from[PP_JOINED_PARTS] = {NULL}, *to[PP_JOINED_PARTS] = {NULL};
    enum pp_code code = PP_OK;
    for (int i = 0; i < PP_JOINED_PARTS && !code; i++) {
        const struct pp_adapter_target *t = j->of[i] && j->of[i]->rank ? j->of[i] : NULL;
        if (t && t->n_in != n_in)
            code = pp_fail(err, PP_ERR_MISMATCH, "the adapter's %s has %lld inputs, but %s has %lld", t->name,
                           (long long)t->n_in, j->name, (long long)n_in);
        else if (t)
            code = pp_join_rows(j, i, hp, way, n_out, &parts[i].n_out, &from[i], &to[i], err);
        parts[i].target = t;
        parts[i].from = from[i];
        parts[i].to = to[i];
    }
    if (!code && !pp_adapter_join(parts, PP_JOINED_PARTS, n_in, n_out, 0, out))
        code = pp_fail_nomem(err, "an adapter's matrices");
    for (int i = 0; i < PP_JOINED_PARTS; i++) {
        pp_free(from[i]);
        pp_free(to[i]);
    }
    return code;
}
