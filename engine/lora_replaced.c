/* lora_replaced.c - tensors of an adapter that replace the model's own: PEFT's modules_to_save. */
#include <string.h>

#include "engine/adapter_file.h"
#include "engine/base/mem.h"
#include "engine/lora.h"
#include "engine/model.h"
#include "engine/quant.h"

bool pp_adapter_set_replaces(const struct pp_adapter_set *set)
{
    for (int k = 0; k < set->n; k++) {
        const struct pp_adapter *a = set->use[k].adapter;
        if (a->norms || a->embedding.table || a->embedding.n_tokens)
            return true;
        for (int i = 0; i < a->n_targets; i++)
            if (a->targets[i].w_data)
                return true;
    }
    return false;
}

/* The next adapter of a set, from k on, that replaces this matrix; none: set->n. */
static int next_with(const struct pp_adapter_set *set, int linear, int k)
{
    while (k < set->n && !set->use[k].adapter->targets[linear].w_data)
        k++;
    return k;
}

enum pp_code pp_adapter_set_check(const struct pp_adapter_set *set, struct pp_error *err)
{
    const struct pp_plan *plan = set->n ? &set->use[0].adapter->model->plan : NULL;
    for (int i = 0; plan && i < plan->n_linears; i++) {
        bool scaled = false;
        for (int last = set->n, k = next_with(set, i, 0); k < set->n; last = k, k = next_with(set, i, k + 1)) {
            scaled = scaled || set->use[k].adapter->targets[i].w_scaled;
            if (last < k && scaled)
                return pp_fail(err, PP_ERR_UNSUPPORTED,
                               "adapters %s and %s cannot be on at once: both change %s, and one is an IA3 of an "
                               "input that other matrices share; switch one of them off",
                               set->use[last].adapter->info.name, set->use[k].adapter->info.name,
                               plan->linears[i].w->name);
        }
    }
    return PP_OK;
}

void pp_lora_note_places(struct pp_adapter *a)
{
    struct pp_adapter_places *p = &a->info.places;
    for (size_t i = 0; i < (size_t)a->model->plan.n_linears && i / 64 < PP_PLACE_WORDS; i++) {
        const struct pp_lora_target *t = &a->targets[i];
        p->own[i / 64] |= (uint64_t)(t->w_data != NULL) << i % 64;
        p->scaled[i / 64] |= (uint64_t)t->w_scaled << i % 64;
    }
}

bool pp_adapter_places_conflict(const struct pp_adapter_places *a, const struct pp_adapter_places *b)
{
    uint64_t both = 0;
    for (int i = 0; i < PP_PLACE_WORDS; i++)
        both |= (a->own[i] & b->scaled[i]) | (a->scaled[i] & b->own[i]);
    return both;
}

/* --- where rows come from ------------------------------------------------------------------------------------ */

/* A matrix of the file, or W with scaled columns. */
struct rows {
    const struct pp_tensor *from;
    pp_lora_order order; /* where its rows are in the file, or NULL */
    const float *column_scales;        /* [ne[0]]: column i is multiplied by 1 + [i]; or NULL */
};

static const void *raw_row(const struct rows *r, int64_t row)
{
    const size_t row_bytes = pp_type_row_bytes(r->from->type, r->from->ne[0]);
    return (const uint8_t *)r->from->data + (size_t)pp_lora_file_row(r->order, row) * row_bytes;
}

static enum pp_code read_row(const struct pp_adapter *a, const struct rows *r, int64_t row, float *out,
                             struct pp_error *err)
{
    const int64_t n = r->from->ne[0];
    const void *raw = raw_row(r, row);
    if (!pp_row_finite(r->from->type, raw, n))
        return pp_fail(err, PP_ERR_FORMAT, "adapter %s: %.200s contains NaN or infinity; the file is damaged: "
                                           "download it again", a->path, r->from->name);
    pp_dequantize_row(r->from->type, raw, out, n);
    for (int64_t i = 0; r->column_scales && i < n; i++)
        out[i] *= 1.0f + r->column_scales[i];
    return PP_OK;
}

/* Whether all values equal the model's. Reads up to the first row that differs; room: [2][n]. */
static enum pp_code same_values(const struct pp_adapter *a, const struct rows *r, const struct pp_tensor *w,
                                int64_t n_rows, float *room, bool *same, struct pp_error *err)
{
    const int64_t n = w->ne[0];
    *same = true;
    for (int64_t i = 0; i < n_rows && *same; i++) {
        const enum pp_code code = read_row(a, r, i, room, err);
        if (code)
            return code;
        pp_dequantize_row(w->type, (const uint8_t *)w->data + (size_t)i * pp_type_row_bytes(w->type, n), room + n, n);
        *same = memcmp(room, room + n, (size_t)n * sizeof *room) == 0;
    }
    return PP_OK;
}

/* --- matrices ------------------------------------------------------------------------------------------------ */

/* Work space to pack one group of rows of Q8_0. */
struct packing {
    float *floats;      /* [n] */
    uint8_t *rows;      /* [PP_GROUP_ROWS] */
    int8_t *q;
    float *d;
    int32_t *sum;
};

static enum pp_code pack(const struct pp_adapter *a, const struct rows *r, const struct pp_matrix *w, void *out,
                         struct pp_error *err)
{
    const int64_t n = w->n_cols;
    const size_t row_bytes = pp_type_row_bytes(PP_TYPE_Q8_0, n);
    const size_t group_bytes = pp_pack_bytes(PP_TYPE_Q8_0, PP_GROUP_ROWS, n);
    struct packing p = {
        .floats = pp_aligned(64, (size_t)n * sizeof *p.floats),
        .rows = pp_malloc(PP_GROUP_ROWS * row_bytes),
        .q = pp_aligned(64, (size_t)n),
        .d = pp_malloc((size_t)(n / PP_ACT_BLOCK) * sizeof *p.d),
        .sum = pp_malloc((size_t)(n / PP_ACT_BLOCK) * sizeof *p.sum),
    };
    enum pp_code code = p.floats && p.rows && p.q && p.d && p.sum ? PP_OK : pp_fail_nomem(err, "an adapter");
    for (int64_t first = 0; first < w->n_rows && !code; first += PP_GROUP_ROWS) {
        const int64_t m = w->n_rows - first < PP_GROUP_ROWS ? w->n_rows - first : PP_GROUP_ROWS;
        for (int64_t i = 0; i < m && !code; i++) {
            code = read_row(a, r, first + i, p.floats, err);
            if (!code)
                pp_lora_q8_row(p.floats, n, p.q, p.d, p.sum, p.rows + (size_t)i * row_bytes);
        }
        if (!code)
            pp_pack_rows(PP_TYPE_Q8_0, p.rows, m, n, 0, m,
                         (uint8_t *)out + (size_t)(first / PP_GROUP_ROWS) * group_bytes);
    }
    pp_free(p.floats);
    pp_free(p.rows);
    pp_free(p.q);
    pp_free(p.d);
    pp_free(p.sum);
    return code;
}

/* Rows for kernels of float weights: copied as they are stored; scaled ones, and those of another type than W, become
 * F32. */
static enum pp_code copy_rows(const struct pp_adapter *a, const struct rows *r, const struct pp_matrix *w, void *out,
                              struct pp_error *err)
{
    const size_t row_bytes = pp_type_row_bytes(w->type, w->n_cols);
    enum pp_code code = PP_OK;
    for (int64_t i = 0; i < w->n_rows && !code; i++) {
        uint8_t *to = (uint8_t *)out + (size_t)i * row_bytes;
        if (w->type == PP_TYPE_F32)
            code = read_row(a, r, i, (float *)(void *)to, err);
        else if (!pp_row_finite(w->type, raw_row(r, i), w->n_cols))
            code = pp_fail(err, PP_ERR_FORMAT, "adapter %s: %.200s holds values that are no numbers; the file is "
                           "damaged: download it again", a->path, r->from->name);
        else
            memcpy(to, raw_row(r, i), row_bytes);
    }
    return code;
}

/* The type in which a matrix is held. Kernels of F16 and BF16 weights may need other activations than those of F32;
 * these exist only where W itself has that type. */
static uint32_t held_type(const struct pp_tensor *w, const struct rows *r)
{
    if (pp_pack_needed(w->type))
        return PP_TYPE_Q8_0;
    const bool as_stored = !r->column_scales && r->from->type == w->type;
    return as_stored ? r->from->type : PP_TYPE_F32;
}

static enum pp_code hold(struct pp_adapter *a, int linear, const struct rows *r, struct pp_error *err)
{
    const struct pp_tensor *w = pp_plan_target(&a->model->plan, linear).w;
    struct pp_lora_target *to = &a->targets[linear];
    const struct pp_matrix m = {.type = held_type(w, r), .n_rows = w->ne[1], .n_cols = w->ne[0]};
    const bool packed = m.type == PP_TYPE_Q8_0;
    to->w_bytes = packed ? pp_pack_bytes(m.type, m.n_rows, m.n_cols)
                         : (size_t)m.n_rows * pp_type_row_bytes(m.type, m.n_cols);
    if (!(to->w_data = pp_aligned(64, to->w_bytes)))
        return pp_fail_nomem(err, "an adapter's matrix in place of the model's");
    to->w = m;
    to->w.data = to->w_data;
    return (packed ? pack : copy_rows)(a, r, &m, to->w_data, err);
}

enum pp_code pp_lora_load_matrix(struct pp_adapter *a, int linear, const struct pp_adapter_target *t,
                                 pp_lora_order order, struct pp_error *err)
{
    const struct pp_tensor *w = pp_plan_target(&a->model->plan, linear).w;
    const struct rows r = {.from = &t->weight, .order = order};
    float *room = pp_malloc(2 * (size_t)w->ne[0] * sizeof *room);
    bool same = false;
    enum pp_code code = room ? same_values(a, &r, w, w->ne[1], room, &same, err) : pp_fail_nomem(err, "an adapter");
    pp_free(room);
    if (code || same)
        return code;
    a->acts = true;
    return hold(a, linear, &r, err);
}

enum pp_code pp_lora_scale_columns(struct pp_adapter *a, int linear, const float *scales, struct pp_error *err)
{
    const struct rows r = {.from = pp_plan_target(&a->model->plan, linear).w, .column_scales = scales};
    a->targets[linear].w_scaled = true;
    return hold(a, linear, &r, err);
}

/* --- norms and embeddings ------------------------------------------------------------------------------------ */

static int norm_by_name(const struct pp_plan *plan, const char *name)
{
    int i = 0;
    while (i < plan->n_ops && !((plan->ops[i].kind == PP_OP_NORM || plan->ops[i].kind == PP_OP_HEAD_NORM) &&
                                strcmp(plan->ops[i].weight->name, name) == 0))
        i++;
    return i < plan->n_ops ? i : -1;
}

/* Reads a vector that replaces one of the model's norms; folders store it less `added`. *held stays NULL if it equals
 * the model's. */
static enum pp_code load_vector(struct pp_adapter *a, const struct pp_adapter_target *t, const struct pp_tensor *from,
                                const struct pp_tensor *model, float added, float **held, struct pp_error *err)
{
    const int64_t n = model->ne[0], padded = (n + 15) / 16 * 16;
    if (from->ne[0] != n)
        return pp_fail(err, PP_ERR_MISMATCH, "adapter %s: its %s has %lld values, but that of %s has %lld", a->path,
                       t->name, (long long)from->ne[0], a->model->info.name, (long long)n);
    float *own = pp_malloc((size_t)n * sizeof *own), *to = pp_aligned(64, (size_t)padded * sizeof *to);
    enum pp_code code = own && to ? read_row(a, &(struct rows){.from = from}, 0, to, err)
                                  : pp_fail_nomem(err, "an adapter");
    for (int64_t i = 0; i < n && !code; i++)
        to[i] += added;
    for (int64_t i = n; i < padded && !code; i++)
        to[i] = 0;
    if (!code)
        pp_dequantize_row(model->type, model->data, own, n);
    if (!code && memcmp(own, to, (size_t)n * sizeof *own) != 0) {
        *held = to;
        to = NULL;
        a->acts = true;
    }
    pp_free(own);
    pp_free(to);
    return code;
}

/* Whether this norm applies to keys after their rotation: pp_seq_cut, which moves them, undoes the model's own
 * weights. */
static bool is_of_rotated_keys(const struct pp_plan *plan, int op)
{
    const struct pp_op *norm = &plan->ops[op];
    bool rotated = false, kept = false;
    for (int i = op - 1; i >= 0 && plan->ops[i].layer == norm->layer; i--)
        rotated = rotated || (plan->ops[i].kind == PP_OP_ROPE && plan->ops[i].in == norm->in);
    for (int i = op + 1; i < plan->n_ops && plan->ops[i].layer == norm->layer; i++)
        kept = kept || (plan->ops[i].kind == PP_OP_KV_STORE && plan->ops[i].in == norm->out);
    return norm->kind == PP_OP_HEAD_NORM && rotated && kept;
}

enum pp_code pp_lora_load_norm(struct pp_adapter *a, const struct pp_adapter_target *t, struct pp_error *err)
{
    const struct pp_plan *plan = &a->model->plan;
    const int op = norm_by_name(plan, t->name);
    if (op < 0 || (t->bias.data && !plan->ops[op].bias))
        return pp_fail(err, PP_ERR_MISMATCH,
                       "adapter %s replaces %s%s, which %s does not have as a norm%s; it was made for another model",
                       a->path, op < 0 ? "" : "the bias of ", t->name, a->model->info.name, op < 0 ? "" : "'s");
    if (!a->norms && !(a->norms = pp_calloc((size_t)plan->n_ops, sizeof *a->norms)))
        return pp_fail_nomem(err, "an adapter");
    if (plan->ops[op].weight->n_dims > 1 || t->weight.n_dims > 1 ||
        pp_arch_rows(pp_arch_by_name(pp_source_hparams(a->model->source)->arch), t->name) != PP_ROWS_SAME)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "adapter %s replaces %s, of which each head has its own; "
                       PP_LORA_MERGE, a->path, t->name);
    if (is_of_rotated_keys(plan, op))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "adapter %s replaces %s, a norm of keys after their rotation; "
                       PP_LORA_MERGE, a->path, t->name);
    struct pp_lora_norm *to = &a->norms[op];
    if (to->weight || to->bias)
        return pp_fail(err, PP_ERR_FORMAT, "adapter %s has %s twice", a->path, t->name);
    enum pp_code code = PP_OK;
    if (t->weight.data)
        code = load_vector(a, t, &t->weight, plan->ops[op].weight, pp_hf_added(t->form), &to->weight, err);
    if (!code && t->bias.data)
        code = load_vector(a, t, &t->bias, plan->ops[op].bias, 0, &to->bias, err);
    return code;
}

const struct pp_tensor *pp_lora_table(const struct pp_plan *plan)
{
    int i = 0;
    while (i < plan->n_ops && plan->ops[i].kind != PP_OP_EMBED)
        i++;
    return i < plan->n_ops ? plan->ops[i].weight : NULL;
}

enum pp_code pp_lora_load_table(struct pp_adapter *a, const struct pp_adapter_target *t, struct pp_error *err)
{
    const struct pp_model_info *info = &a->model->info;
    const struct pp_tensor *w = pp_lora_table(&a->model->plan), *from = &t->weight;
    if (!w || from->ne[0] != w->ne[0] || from->ne[1] != w->ne[1])
        return pp_fail(err, PP_ERR_MISMATCH,
                       "adapter %s: its embeddings are %lld tokens of %lld values, but %s has %lld of %lld; tokens "
                       "that an adapter adds to a vocabulary are not supported", a->path, (long long)from->ne[1],
                       (long long)from->ne[0], info->name, (long long)info->n_vocab,
                       (long long)pp_embedding_width(pp_source_hparams(a->model->source)));
    const struct rows r = {.from = from};
    float *room = pp_malloc(2 * (size_t)w->ne[0] * sizeof *room);
    bool same = false;
    enum pp_code code = room ? same_values(a, &r, w, w->ne[1], room, &same, err) : pp_fail_nomem(err, "an adapter");
    for (int64_t i = 0; i < w->ne[1] && !code && !same; i++)
        code = read_row(a, &r, i, room, err); /* checks that no value is NaN or infinite */
    if (!code && !same) {
        a->embedding.table_type = from->type;
        if ((a->embedding.table = pp_malloc(from->size)))
            memcpy(a->embedding.table, from->data, from->size);
        else
            code = pp_fail_nomem(err, "an adapter's table of embeddings");
        a->acts = true;
    }
    pp_free(room);
    return code;
}

/* --- end, and identity --------------------------------------------------------------------------------------- */

void pp_lora_free_replaced(struct pp_adapter *a)
{
    for (int i = 0; a->targets && i < a->n_targets; i++)
        pp_free(a->targets[i].w_data);
    for (int i = 0; a->norms && i < a->model->plan.n_ops; i++) {
        pp_free(a->norms[i].weight);
        pp_free(a->norms[i].bias);
    }
    pp_free(a->norms);
    pp_free(a->embedding.table);
    pp_free(a->embedding.tokens);
    pp_free(a->embedding.token_rows);
}

static void hash(struct pp_sha256_stream *s, const char *what, int index, uint32_t type, const void *data, size_t n)
{
    const struct pp_hash128 sum = pp_hash128(data, n);
    pp_sha256_update(s, what, strlen(what) + 1);
    pp_sha256_update(s, &index, sizeof index);
    pp_sha256_update(s, &type, sizeof type);
    pp_sha256_update(s, &sum, sizeof sum);
}

void pp_lora_hash_replaced(const struct pp_adapter *a, struct pp_sha256_stream *s)
{
    const struct pp_plan *plan = &a->model->plan;
    for (int i = 0; i < a->n_targets; i++)
        if (a->targets[i].w_data)
            hash(s, "matrix", i, a->targets[i].w.type, a->targets[i].w_data, a->targets[i].w_bytes);
    for (int i = 0; a->norms && i < plan->n_ops; i++) {
        if (a->norms[i].weight)
            hash(s, "norm", i, PP_TYPE_F32, a->norms[i].weight, (size_t)plan->ops[i].weight->ne[0] * sizeof(float));
        if (a->norms[i].bias)
            hash(s, "norm's bias", i, PP_TYPE_F32, a->norms[i].bias, (size_t)plan->ops[i].bias->ne[0] * sizeof(float));
    }
    const struct pp_lora_embedding *e = &a->embedding;
    if (e->n_tokens) {
        const int64_t width = pp_embedding_width(pp_source_hparams(a->model->source));
        hash(s, "tokens", e->n_tokens, PP_TYPE_I32, e->tokens, (size_t)e->n_tokens * sizeof *e->tokens);
        hash(s, "rows", e->n_tokens, PP_TYPE_F32, e->token_rows, (size_t)(e->n_tokens * width) * sizeof(float));
    }
    if (a->embedding.table)
        hash(s, "table", 0, a->embedding.table_type, a->embedding.table,
             (size_t)a->model->info.n_vocab *
                 pp_type_row_bytes(a->embedding.table_type,
                                   pp_embedding_width(pp_source_hparams(a->model->source))));
}
