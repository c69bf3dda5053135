#include "engine/export.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/arch/arch.h"
#include "engine/base/mem.h"
#include "engine/base/word.h"
#include "engine/gguf.h"
#include "engine/imatrix.h"
#include "engine/pool.h"
#include "engine/quant.h"
#include "engine/rope.h"
#include "engine/rows.h"
#include "engine/switched.h"
#include "engine/tensor_forms.h"
#include "engine/xielu.h"

enum {
    SLICE_FLOATS = 1 << 20, /* weights converted at a time */
    MAX_THREADS = 16,
};

/* --- tensors ------------------------------------------------------------------------------------------- */

/* A slice of rows while it is converted: dequantised, and quantised again by the pool. */
struct slice {
    const struct pp_export_item *item;
    size_t from_row, to_row; /* bytes of a row in the old and the new type */
    int64_t n_cols;
    int64_t first, n;        /* rows of the new tensor in this slice */
    float *floats;           /* [n, n_cols] */
    uint8_t *to;             /* [n, to_row] */
    struct pp_weighing weighing;
    int n_shares;
    struct pp_error errors[MAX_THREADS];
};

/* The tensor that holds a row of the new one; *row: its index there. */
static const struct pp_tensor *holder(const struct slice *s, int64_t *row)
{
    const int64_t n_rows = s->item->from->ne[s->item->from->n_dims > 1];
    if (s->item->head_dim && (!s->item->same_rows || *row < n_rows - s->item->same_rows))
        *row = pp_hf_row(*row, s->item->head_dim);
    if (s->item->heads && !s->item->heads->columns)
        *row = pp_state_row(s->item->heads, *row);
    if (s->item->part)
        *row = pp_key_part_row(pp_source_hparams(s->item->source), s->item->part, *row);
    if (!s->item->parts)
        return s->item->from;
    const struct pp_tensor *t = s->item->parts[*row / s->item->from->ne[1]];
    *row %= s->item->from->ne[1];
    return t;
}

/* How many rows of the new tensor, from `row` on and up to `end`, are contiguous in memory. */
static int64_t run_length(const struct slice *s, int64_t row, int64_t end)
{
    const int64_t left = s->item->parts ? s->item->from->ne[1] - row % s->item->from->ne[1] : end - row;
    return s->item->head_dim || s->item->heads || s->item->part ? 1 : left < end - row ? left : end - row;
}

/* Copies n contiguous rows to `to`, as they are stored or would be. */
static enum pp_code copy_rows(const struct slice *s, const struct pp_tensor *t, int64_t row, int64_t n, uint8_t *to,
                              struct pp_error *err)
{
    if (t->rows)
        return pp_rows_read(t->rows, row, n, to, err);
    memcpy(to, (const uint8_t *)t->data + (size_t)row * s->from_row, (size_t)n * s->from_row);
    return PP_OK;
}

/* Refuses copied rows that a reader of the new file would refuse. */
static enum pp_code check_copies(const struct slice *s, const uint8_t *to, int64_t n, struct pp_error *err)
{
    for (int64_t r = 0; r < n && s->item->type != PP_TYPE_I32; r++)
        if (!pp_row_finite(s->item->type, to + (size_t)r * s->to_row, s->n_cols))
            return pp_fail(err, PP_ERR_FORMAT, "a weight is NaN or infinite; the source is damaged: download it again");
    return PP_OK;
}

static enum pp_code arrange_columns(const struct slice *s, float *rows, int64_t n, struct pp_error *err)
{
    if (!s->item->heads || !s->item->heads->columns)
        return PP_OK;
    float *room = pp_malloc((size_t)s->n_cols * sizeof *room);
    if (!room)
        return pp_fail_nomem(err, s->item->name);
    pp_state_columns(s->item->heads, rows, n, s->n_cols, room);
    pp_free(room);
    return PP_OK;
}

static enum pp_code read_floats(const struct slice *s, const struct pp_tensor *t, int64_t row, int64_t n, float *to,
                                struct pp_error *err)
{
    enum pp_code code = PP_OK;
    if (t->rows)
        code = pp_rows_floats(t->rows, row, n, to, err);
    else
        for (int64_t r = 0; r < n; r++)
            pp_dequantize_row(t->type, (const uint8_t *)t->data + (size_t)(row + r) * s->from_row, to + r * s->n_cols,
                              s->n_cols);
    for (int64_t i = 0; s->item->factor != 1.0f && i < n * s->n_cols; i++)
        to[i] *= s->item->factor;
    return code ? code : arrange_columns(s, to, n, err);
}

/* Converts one thread's share of a slice. */
static void convert_rows(void *arg, int part, int share, int thread)
{
    (void)part, (void)thread;
    struct slice *s = arg;
    int64_t begin = s->n * share / s->n_shares, end = s->n * (share + 1) / s->n_shares;
    struct pp_error *err = &s->errors[share];
    const bool same = s->item->type == s->item->from->type && s->item->factor == 1.0f &&
                      !(s->item->heads && s->item->heads->columns);
    enum pp_code code = err->code = PP_OK;
    for (int64_t r = begin, n; r < end && !code; r += n) {
        n = run_length(s, s->first + r, s->first + end);
        int64_t row = s->first + r;
        const struct pp_tensor *t = holder(s, &row);
        code = same ? copy_rows(s, t, row, n, s->to + (size_t)r * s->to_row, err)
                    : read_floats(s, t, row, n, s->floats + r * s->n_cols, err);
    }
    if (!code && same)
        code = check_copies(s, s->to + (size_t)begin * s->to_row, end - begin, err);
    if (!code && !same && begin < end)
        pp_quantize_weighed(&s->weighing, s->item->type, s->floats + begin * s->n_cols,
                            s->to + (size_t)begin * s->to_row, s->first + begin, end - begin, s->n_cols, err);
}

static enum pp_code convert_slice(struct pp_gguf_writer *w, struct pp_pool *pool, struct slice *s, struct pp_error *err)
{
    pp_pool_run(pool, convert_rows, s, &s->n_shares, 1);
    for (int i = 0; i < s->n_shares; i++)
        if (s->errors[i].code) {
            if (err)
                *err = s->errors[i];
            return s->errors[i].code;
        }
    return pp_gguf_write(w, s->to, (size_t)s->n * s->to_row, err);
}

static enum pp_code cancelled(const struct pp_convert_options *opt, struct pp_error *err)
{
    return opt && pp_cancelled(opt->cancel) ? pp_fail(err, PP_ERR_CANCELLED, "stopped; no file was written") : PP_OK;
}

/* Rows of the new tensor. */
static int64_t rows_of(const struct pp_export_item *item)
{
    const int64_t *ne = item->from->ne;
    return item->part ? pp_key_part_rows(pp_source_hparams(item->source), item->part)
                      : ne[1] * ne[2] * ne[3] * (item->parts ? item->n_parts : 1);
}

/* Releases the memory of what a slice was made from: for a stack, matrices that end in it; for a whole by keys, when
 * all of it was read. */
static void release_slice(const struct slice *s)
{
    const struct pp_export_item *item = s->item;
    const int64_t each = item->from->ne[1];
    if (!item->source || (item->part && s->first + s->n < rows_of(item)))
        return;
    if (item->part) {
        pp_source_release_pages(item->source, item->from, 0, each);
        return;
    }
    if (!item->parts)
        pp_source_release_pages(item->source, item->from, s->first, s->n);
    for (int64_t i = s->first / each; item->parts && i < (s->first + s->n) / each; i++)
        pp_source_release_pages(item->source, item->parts[i], 0, each);
}

/* Whether single values are permuted: those of a bias, or of norms of heads. */
static bool is_by_values(const struct pp_export_item *item)
{
    return (item->head_dim || item->heads) && (item->from->n_dims == 1 || strstr(item->name, "_norm."));
}

static enum pp_code export_item(struct pp_gguf_writer *w, struct pp_pool *pool, const struct pp_export_item *item,
                                const struct pp_convert_options *opt, struct pp_error *err)
{
    const int64_t *ne = item->from->ne;
    const bool vector = is_by_values(item);
    int64_t n_rows = vector ? ne[0] * ne[1] : rows_of(item);
    int64_t n_cols = vector ? 1 : ne[0];
    struct slice s = {
        .item = item,
        .from_row = pp_type_row_bytes(item->from->type, n_cols),
        .to_row = pp_type_row_bytes(item->type, n_cols),
        .n_cols = n_cols,
        .weighing = {.importance = item->importance,
                     .n_matrices = item->parts ? item->n_parts : ne[2] * ne[3],
                     .matrix_rows = vector || item->part ? n_rows : ne[1]},
        .n_shares = pp_pool_n(pool),
    };
    int64_t step = SLICE_FLOATS / n_cols > 0 ? SLICE_FLOATS / n_cols : 1;
    if (step > n_rows)
        step = n_rows;
    if (!s.from_row || !s.to_row)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "tensor %s cannot be written as %s", item->name,
                       pp_type_info(item->type)->name);
    s.floats = pp_calloc((size_t)step * (size_t)n_cols, sizeof *s.floats);
    s.to = pp_calloc((size_t)step, s.to_row);
    enum pp_code code = s.floats && s.to ? PP_OK : pp_fail_nomem(err, item->name);
    for (; s.first < n_rows && !code; s.first += step) {
        s.n = step < n_rows - s.first ? step : n_rows - s.first;
        code = cancelled(opt, err);
        if (!code)
            code = convert_slice(w, pool, &s, err);
        if (!vector)
            release_slice(&s);
    }
    pp_free(s.floats);
    pp_free(s.to);
    if (code)
        pp_fail_prefix(err, "%s", item->name);
    return code;
}

static enum pp_code check_item(const struct pp_export_item *item, struct pp_error *err)
{
    const struct pp_type_info *from = pp_type_info(item->from->type);
    if (!from->runnable && item->from->type != PP_TYPE_I32)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "tensor %s has the type %s, which pippin cannot read", item->name,
                       from->name ? from->name : "of an unknown type");
    int64_t rows = item->from->n_dims == 1 || is_by_values(item) ? item->from->ne[0] : item->from->ne[1];
    if (item->head_dim && rows % item->head_dim != 0)
        return pp_fail(err, PP_ERR_FORMAT, "tensor %s has %lld rows, which is not a multiple of the head size %lld",
                       item->name,
                       (long long)rows, (long long)item->head_dim);
    const bool columns = item->heads && item->heads->columns;
    if (item->heads && (columns ? item->from->ne[0] : rows) != pp_state_order_rows(item->heads))
        return pp_fail(err, PP_ERR_FORMAT, "tensor %s has %lld %s, where all heads have %lld", item->name,
                       (long long)(columns ? item->from->ne[0] : rows), columns ? "columns" : "rows",
                       (long long)pp_state_order_rows(item->heads));
    return PP_OK;
}

static size_t bytes_of(const struct pp_export_item *item)
{
    return item->from->size * (size_t)(item->parts ? item->n_parts : 1);
}

static int thread_count(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : (int)n;
}

enum pp_code pp_export_items(struct pp_gguf_writer *w, const struct pp_export_item *items, size_t n,
                             const struct pp_convert_options *opt, struct pp_error *err)
{
    struct pp_pool *pool = NULL;
    size_t done = 0, total = 0;
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < n && !code; i++) {
        const struct pp_tensor *t = items[i].from;
        const bool flat = pp_stack_is_flat(t->name);
        const int64_t stack[PP_MAX_DIMS] = {t->ne[0], flat ? t->ne[1] * items[i].n_parts : t->ne[1],
                                            flat ? 1 : items[i].n_parts, 1};
        const int64_t part[PP_MAX_DIMS] = {t->ne[0], items[i].part ? rows_of(&items[i]) : 1, 1, 1};
        code = check_item(&items[i], err);
        pp_gguf_add_tensor(w, items[i].name, items[i].type, !items[i].parts ? t->n_dims : flat ? 2 : 3,
                           items[i].parts ? stack : items[i].part ? part : t->ne);
        total += bytes_of(&items[i]);
    }
    if (!code)
        code = pp_gguf_writer_begin(w, err);
    if (!code)
        code = pp_pool_new(thread_count(), &pool, err);
    for (size_t i = 0; i < n && !code; i++) {
        if (opt && opt->progress)
            opt->progress(opt->user, items[i].name, done, total);
        code = export_item(w, pool, &items[i], opt, err);
        done += bytes_of(&items[i]);
    }
    pp_pool_free(pool);
    if (!code && opt && opt->progress)
        opt->progress(opt->user, "", total, total);
    return code;
}

bool pp_export_keeps_f32(const struct pp_tensor *t)
{
    static const char *const ends[] = {"_norm.weight", ".bias", "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight",
                                       "attn_v_gate.weight",
                                       "position_embd.weight", "token_types.weight",
                                       "ssm_conv1d.weight", "ssm_conv1d_q.weight", "ssm_conv1d_k.weight",
                                       "ssm_conv1d_v.weight", "shortconv.conv.weight", ".attn_qk_conv.weight",
                                       "lru_conv1d.weight", ".indexer.proj.weight", "mlstm_in_gate.weight",
                                       "mlstm_forget_gate.weight", "mlstm_gates.weight", "loop_gate.weight",
                                       "attn_compressor_ape.weight", "indexer_compressor_ape.weight",
                                       "hc_attn_fn.weight", "hc_ffn_fn.weight", "output_hc_fn.weight",
                                       ".ssm_a", ".ssm_d", "time_mix_lerp_fused.weight", "time_mix_w1.weight",
                                       "time_mix_w2.weight", "time_mix_a1.weight", "time_mix_a2.weight",
                                       "time_mix_v1.weight", "time_mix_v2.weight", "time_mix_g1.weight",
                                       "time_mix_g2.weight", "time_mix_first.weight",
                                       "time_mix_decay_w1.weight", "time_mix_decay_w2.weight"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (pp_ends_with(t->name, ends[i]))
            return true;
    return t->n_dims == 1;
}

/* --- a model ------------------------------------------------------------------------------------------- */

/* The head size by which rows of q and k are permuted, if the family's GGUF files interleave them and the source is a
 * folder; otherwise 0. */
static int64_t permuted_head_dim(const struct pp_source *s, const struct pp_arch *arch, const char *name)
{
    const struct pp_hparams *hp = pp_source_hparams(s);
    return hp->rope_neox != arch->gguf_neox && pp_arch_rows(arch, name) != PP_ROWS_SAME ? hp->head_dim : 0;
}

/* If so, how many rows after them are not permuted: values in a matrix with queries and keys. */
static int64_t n_value_rows(const struct pp_source *s, const struct pp_arch *arch, const char *name)
{
    const struct pp_hparams *hp = pp_source_hparams(s);
    return pp_arch_rows(arch, name) == PP_ROWS_QKV ? hp->n_head_kv * hp->head_dim : 0;
}

/* Everything to be written. */
struct export_list {
    struct pp_export_item *items;       /* allocated for 2 n + 2 items of a source with n tensors */
    size_t n;
    const struct pp_tensor **parts;     /* [n_tensors]: for all stacks */
    size_t n_parts;
    struct pp_buf names;                /* of the stacks, each ended by a NUL */
    struct joined {
        struct pp_tensor t;
        struct pp_rows rows;
        char name[80];
    } *joined;                          /* [n_joined]: matrices of heads, joined; or names of wholes by keys */
    size_t n_joined;
    struct pp_state_order *orders;      /* [n_tensors] */
    struct switched {
        struct switched *next;
        const struct pp_tensor **parts; /* its matrices in order */
        void *none;                     /* data of the first one */
        struct pp_tensor each[];
    } *switched;                        /* for each tensor of the model's own adapters, its matrices */
};

/* For families whose files have the heads' matrices of keys and of values in one: joins them, at the keys' turn. */
static enum pp_code join_heads(const struct pp_source *s, const struct pp_tensor *t, uint32_t type,
                               struct export_list *list, struct pp_error *err)
{
    const struct pp_hparams *hp = pp_source_hparams(s);
    const char *at = strstr(t->name, ".attn_k_b.weight");
    struct joined *joined = &list->joined[list->n_joined];
    if (!at)
        return PP_OK; /* done with the keys */
    if (list->n_joined == (size_t)hp->n_layer)
        return pp_fail(err, PP_ERR_FORMAT, "tensor %s belongs to a layer that the model does not have", t->name);
    const int n = (int)(at - t->name < 40 ? at - t->name : 40);
    snprintf(joined->name, sizeof joined->name, "%.*s.attn_v_b.weight", n, t->name);
    const struct pp_tensor *v_b = pp_source_tensor(s, joined->name);
    snprintf(joined->name, sizeof joined->name, "%.*s.attn_kv_b.weight", n, t->name);
    list->items[list->n++] = (struct pp_export_item){
        .from = &joined->t, .name = joined->name, .type = type, .factor = 1.0f};
    list->n_joined++;
    return pp_join_heads(t, v_b, hp, &joined->t, &joined->rows, err);
}

/* If folders have the inputs of states in one tensor by keys, and the family's files do not: its index in pp_by_keys;
 * -1: another tensor. */
static int number_by_keys(const struct pp_arch *arch, const char *name)
{
    for (int i = 0; i < PP_BY_KEYS && arch->gguf_split_states; i++)
        if (pp_ends_with(name, pp_by_keys[i].whole))
            return i;
    return -1;
}

static enum pp_code list_parts(const struct pp_source *s, const struct pp_tensor *t, int number, uint32_t type,
                               struct export_list *list, struct pp_error *err)
{
    const struct pp_hparams *hp = pp_source_hparams(s);
    int64_t n_rows = 0;
    for (int i = 0; i < 2; i++) {
        struct pp_export_item *item = &list->items[list->n++];
        char *name = list->joined[list->n_joined].name;
        if (list->n_joined == 4 * (size_t)hp->n_layer)
            return pp_fail(err, PP_ERR_FORMAT, "tensor %s belongs to a layer that the model does not have", t->name);
        list->n_joined++;
        snprintf(name, sizeof list->joined->name, "%.*s%s", (int)(strlen(t->name) - strlen(pp_by_keys[number].whole)),
                 t->name, pp_by_keys[number].parts[i]);
        *item = (struct pp_export_item){.from = t, .name = name, .type = type, .factor = 1.0f,
                                        .part = pp_by_keys[number].kinds[i]};
        n_rows += pp_key_part_rows(hp, item->part);
    }
    return t->n_dims == 2 && t->ne[1] == n_rows
               ? PP_OK : pp_fail(err, PP_ERR_FORMAT, "tensor %s has %lld rows, not %lld", t->name, (long long)t->ne[1],
                                 (long long)n_rows);
}

/* Lists one half of a folder's own adapters; GGUF puts zeros before the first adapter's. */
static enum pp_code list_switched(const struct pp_source *s, const struct pp_tensor *t, uint32_t type,
                                  struct export_list *list, struct pp_error *err)
{
    const int64_t n = pp_source_hparams(s)->switched.n;
    const size_t size = t->size / (size_t)n;
    if (t->n_dims != 3 || t->ne[2] != n)
        return pp_fail(err, PP_ERR_FORMAT, "tensor %s does not have the matrices of %lld adapters", t->name,
                       (long long)n);
    struct switched *made = pp_calloc(1, sizeof *made + (size_t)(n + 1) * sizeof *made->each);
    if (!made)
        return pp_fail_nomem(err, t->name);
    made->next = list->switched;
    list->switched = made;
    made->parts = pp_calloc((size_t)n + 1, sizeof *made->parts);
    made->none = pp_calloc(size, 1);
    if (!made->parts || !made->none)
        return pp_fail_nomem(err, t->name);
    struct pp_tensor *each = made->each;
    const struct pp_tensor **parts = made->parts;
    for (int64_t k = 0; k <= n; k++) {
        each[k] = *t;
        each[k].n_dims = 2;
        each[k].ne[2] = 1;
        each[k].size = size;
        each[k].data = k ? (const uint8_t *)t->data + (size_t)(k - 1) * size : made->none;
        parts[k] = &each[k];
    }
    pp_buf_add(&list->names, t->name, strlen(t->name) + 1);
    list->items[list->n++] = (struct pp_export_item){
        .from = parts[0], .parts = parts, .n_parts = n + 1, .type = type, .factor = 1.0f,
        .head_dim = permuted_head_dim(s, pp_arch_by_name(pp_source_hparams(s)->arch), t->name)};
    return PP_OK;
}

/* Lists the matrices of a layer's experts as one tensor, as GGUF has them; number: in the name of the first. */
static enum pp_code stack_experts(const struct pp_source *s, const struct pp_tensor *first, const char *number,
                                  uint32_t type, struct export_list *list, struct pp_error *err)
{
    const int64_t n = pp_stack_size(pp_source_hparams(s), first->name);
    struct pp_export_item *item = &list->items[list->n];
    *item = (struct pp_export_item){.from = first, .parts = list->parts + list->n_parts, .n_parts = n, .type = type,
                                    .factor = 1.0f};
    for (int64_t e = 0; e < n; e++) {
        char name[320]; /* names have at most 255 characters */
        snprintf(name, sizeof name, "%.*s%lld.weight", (int)(number - first->name), first->name, (long long)e);
        const struct pp_tensor *t = pp_source_tensor(s, name);
        if (!t || t->type != first->type || t->n_dims != 2 || t->ne[0] != first->ne[0] || t->ne[1] != first->ne[1])
            return pp_fail(err, PP_ERR_FORMAT, "tensor %s is missing, or differs in type or shape from that of the "
                                               "first expert",
                           name);
        list->parts[list->n_parts++] = t;
    }
    char stack[256];
    pp_stack_name(first->name, stack);
    pp_buf_add(&list->names, stack, strlen(stack) + 1);
    if (n < 1)
        return pp_fail(err, PP_ERR_FORMAT, "tensor %s belongs to an expert, but the model has none", first->name);
    list->n++;
    return PP_OK;
}

/* Finds the importance of columns for all that become blocks, before anything is written. */
static enum pp_code find_importance(struct export_list *list, const struct pp_convert_options *opt,
                                    struct pp_error *err)
{
    struct pp_imatrix_use use = {0};
    const float *columns;
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < list->n && !code; i++) {
        struct pp_export_item *item = &list->items[i];
        const int64_t *ne = item->from->ne, n = item->parts ? item->n_parts : ne[2] * ne[3];
        if (pp_type_info(item->type)->block_elements == 1 || item->type == item->from->type)
            continue;
        item->importance = pp_imatrix_find(opt->imatrix, item->name);
        for (int64_t m = 0; m < n && !code; m++) {
            columns = NULL;
            if (item->importance)
                code = pp_importance_of(item->importance, ne[0], n, m, &columns, err);
            if (!columns && !use.n_unweighed)
                snprintf(use.first, sizeof use.first, "%s", item->name);
            *(columns ? &use.n_weighed : &use.n_unweighed) += 1;
        }
    }
    if (opt->imatrix_use)
        *opt->imatrix_use = use;
    if (!code && !use.n_weighed && use.n_unweighed)
        code = pp_fail(err, PP_ERR_MISMATCH, "the importance matrix has no data for %s or any other matrix to be "
                                             "quantised; it was made for another model", use.first);
    return code;
}

static enum pp_code list_items(const struct pp_source *s, const uint32_t *types, const struct pp_tensor *rope_freqs,
                               struct export_list *list, struct pp_error *err)
{
    const struct pp_arch *arch = pp_arch_by_name(pp_source_hparams(s)->arch);
    enum pp_code code = PP_OK;
    if (rope_freqs->data)
        list->items[list->n++] = (struct pp_export_item){
            .from = rope_freqs, .name = rope_freqs->name, .type = PP_TYPE_F32, .factor = 1.0f};
    for (size_t i = 0; i < pp_source_n_tensors(s) && !code; i++) {
        const struct pp_tensor *t = pp_source_tensor_at(s, i);
        const char *number = pp_expert_number(t->name);
        if (pp_is_xielu(t->name))
            continue; /* in the metadata instead */
        if (number && strtol(number, NULL, 10) > 0)
            continue; /* done with the first expert */
        if (arch->gguf_joined_kv_b && (strstr(t->name, ".attn_k_b.weight") || strstr(t->name, ".attn_v_b.weight"))) {
            code = join_heads(s, t, types[i], list, err);
            continue;
        }
        if (number) {
            code = stack_experts(s, t, number, types[i], list, err);
            continue;
        }
        if (pp_is_of_switched(pp_source_hparams(s), t->name) && !pp_source_gguf(s)) {
            code = list_switched(s, t, types[i], list, err);
            continue;
        }
        if (number_by_keys(arch, t->name) >= 0) {
            code = list_parts(s, t, number_by_keys(arch, t->name), types[i], list, err);
            continue;
        }
        const bool reordered = !pp_source_gguf(s) && pp_state_order(pp_source_hparams(s), t->name, &list->orders[i]);
        const struct pp_export_item item = {.from = t, .name = t->name, .type = types[i], .factor = 1.0f,
                                            .head_dim = permuted_head_dim(s, arch, t->name),
                                            .same_rows = n_value_rows(s, arch, t->name),
                                            .heads = reordered ? &list->orders[i] : NULL};
        list->items[list->n++] = item;
        const float scale = arch->gguf_scaled_output && !pp_source_gguf(s) ? pp_source_hparams(s)->logit_scale : 0.0f;
        if ((arch->gguf_untied || scale != 0.0f) && strcmp(t->name, "token_embd.weight") == 0 &&
            !pp_source_tensor(s, "output.weight")) {
            list->items[list->n] = item;
            list->items[list->n].factor = scale != 0.0f ? scale : 1.0f;
            list->items[list->n++].name = "output.weight";
        }
    }
    const char *name = pp_buf_cstr(&list->names);
    for (size_t i = 0; i < list->n; i++)
        list->items[i].source = list->items[i].from == rope_freqs ? NULL : s;
    for (size_t i = 0; i < list->n && !list->names.bad; i++)
        if (list->items[i].parts) {
            list->items[i].name = name;
            name += strlen(name) + 1;
        }
    return code ? code : list->names.bad ? pp_fail_nomem(err, "the list of tensors") : PP_OK;
}

static const float STANDING_STILL = 1e30f; /* the value that converters write */

/* GGUF has no keys for llama3's scaling, or for pairs that are not rotated. A tensor has the divisors of all
 * frequencies instead, those of layers with a window included. GGUF sources that have it are copied. */
static enum pp_code make_rope_freqs(const struct pp_source *s, struct pp_tensor *t, struct pp_error *err)
{
    struct pp_hparams hp = *pp_source_hparams(s);
    const int64_t scaled_ones = hp.rope_dim / 2, local = hp.rope_dim_local / 2;
    const int64_t n = local > scaled_ones ? local : scaled_ones;
    float magnitude;
    *t = (struct pp_tensor){.name = "rope_freqs.weight", .type = PP_TYPE_F32, .n_dims = 1, .ne = {n, 1, 1, 1},
                            .size = (size_t)n * sizeof(float)};
    if ((hp.rope_scaling != PP_ROPE_LLAMA3 && !hp.rope_n_pairs) || pp_source_tensor(s, t->name))
        return PP_OK;
    float *factors = pp_calloc(2 * (size_t)n, sizeof *factors);
    if (!factors)
        return pp_fail_nomem(err, t->name);
    float *scaled = factors + n;
    t->data = factors;
    for (int64_t i = 0; hp.rope_n_pairs && i < n; i++)
        factors[i] = i < hp.rope_n_pairs ? 1.0f : STANDING_STILL;
    if (hp.rope_n_pairs)
        return PP_OK;
    pp_rope_frequencies(&hp, hp.n_ctx_train, NULL, scaled, &magnitude);
    hp.rope_scaling = PP_ROPE_NONE;
    pp_rope_frequencies(&hp, hp.n_ctx_train, NULL, factors, &magnitude);
    for (int64_t i = 0; i < n; i++)
        factors[i] = i < scaled_ones ? factors[i] / scaled[i] : 1.0f;
    return PP_OK;
}

enum pp_code pp_export_model(const struct pp_source *s, const char *dst, const uint32_t *types, int file_type,
                             const struct pp_convert_options *opt, struct pp_error *err)
{
    struct pp_gguf_writer *w = NULL;
    struct pp_tensor rope_freqs = {0};
    struct export_list list = {
        .items = pp_calloc(2 * pp_source_n_tensors(s) + 2, sizeof *list.items),
        .parts = pp_calloc(pp_source_n_tensors(s), sizeof *list.parts),
        .joined = pp_calloc(4 * (size_t)pp_source_hparams(s)->n_layer, sizeof *list.joined),
        .orders = pp_calloc(pp_source_n_tensors(s), sizeof *list.orders),
    };
    enum pp_code code = list.items && list.parts && list.joined && list.orders
                            ? make_rope_freqs(s, &rope_freqs, err)
                            : pp_fail_nomem(err, "the list of tensors");
    if (!code)
        code = list_items(s, types, &rope_freqs, &list, err);
    if (!code && opt && opt->imatrix)
        code = find_importance(&list, opt, err);
    if (!code)
        code = pp_gguf_writer_new(dst, &w, err);
    if (!code)
        code = pp_export_keys(w, s, file_type, opt, err);
    if (!code)
        code = pp_export_items(w, list.items, list.n, opt, err);
    if (!code)
        code = pp_source_check_unchanged(s, err); /* if another program cut a file off, zeros were read */
    if (!code)
        code = pp_gguf_writer_finish(w, err);
    pp_gguf_writer_free(w);
    pp_free((void *)(uintptr_t)rope_freqs.data);
    pp_free(list.items);
    pp_free(list.parts);
    pp_free(list.joined);
    pp_free(list.orders);
    for (struct switched *next, *made = list.switched; made; made = next) {
        next = made->next;
        pp_free(made->parts);
        pp_free(made->none);
        pp_free(made);
    }
    pp_buf_free(&list.names);
    return code;
}
