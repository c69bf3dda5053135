/* export_folder_tensors.c - writes a folder's model.safetensors. Memory: a slice of rows, or a matrix; the file is
 * written in place.
 *
 * MLX's form (mlx/backend/cpu/quantized.cpp): in each group of a row w = scale * q + bias, where q is a stream of bits,
 * lowest first. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/cancel.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/whole_io.h"
#include "engine/export_folder_int.h"
#include "engine/hf.h"
#include "engine/mlx_groups.h"
#include "engine/quant.h"

enum { SLICE = 1 << 20 };

static enum pp_code fail_write(const struct folder *f)
{
    return pp_fail(f->err, PP_ERR_IO, "cannot write %s: %s", f->path, strerror(errno));
}

/* --- the header -------------------------------------------------------------------------------------------------- */

static void describe(struct pp_buf *b, const char *name, const char *end, const char *dtype, int n_dims,
                     const int64_t *shape, uint64_t at, uint64_t size)
{
    pp_buf_fmt(b, ",\"%s%s\":{\"dtype\":\"%s\",\"shape\":[", name, end, dtype);
    for (int d = 0; d < n_dims; d++)
        pp_buf_fmt(b, "%s%lld", d ? "," : "", (long long)shape[d]);
    pp_buf_fmt(b, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at, (unsigned long long)(at + size));
}

static void describe_item(const struct folder *f, const struct item *item, struct pp_buf *b)
{
    const char *dtype = pp_type_info(item->type)->name;
    const uint64_t n = (uint64_t)(item->ne[0] * n_rows_of(item));
    const int last = item->n_dims - 1;
    int64_t shape[PP_MAX_DIMS];
    if (item->unit_dims) {
        describe(b, item->name, "", dtype, 5, (const int64_t[]){1, 1, item->ne[1], 1, item->ne[0]}, item->at,
                 n * (uint64_t)pp_type_info(item->type)->block_bytes);
        return;
    }
    for (int d = 0; d < item->n_dims; d++)
        shape[d] = item->ne[last - d];
    if (item->n_dims == 2)
        shape[0] = n_rows_of(item); /* including all matrices of a stack */
    if (item->taps_then_one) {
        shape[1] = item->ne[0];
        shape[2] = 1;
    }
    if (item->row) {
        shape[0] = item->ne[0] / item->row;
        shape[1] = item->row;
    }
    if (item->taps) {
        shape[1] = item->ne[0] / 2;
        shape[2] = 2;
        shape[3] = 1;
    }
    if (!item->bits) {
        const int n_dims = item->row ? 2 : item->taps_last ? 3 : item->taps ? PP_MAX_DIMS : item->n_dims;
        describe(b, item->name, "", dtype, n_dims, shape, item->at,
                 n * (uint64_t)pp_type_info(item->type)->block_bytes);
        return;
    }
    const uint64_t n_groups = n / (uint64_t)f->group;
    shape[last] = item->ne[0] * item->bits / 32;
    describe(b, item->name, ".weight", "U32", item->n_dims, shape, item->at, n * (uint64_t)item->bits / 8);
    shape[last] = item->ne[0] / f->group;
    describe(b, item->name, ".scales", dtype, item->n_dims, shape, item->scales_at, 2 * n_groups);
    describe(b, item->name, ".biases", dtype, item->n_dims, shape, item->biases_at, 2 * n_groups);
}

static enum pp_code put(const struct folder *f, const void *data, size_t size, uint64_t at)
{
    return pp_write_at(f->fd, data, size, at) ? PP_OK : fail_write(f);
}

/* The data begin at a multiple of 8, and so does every tensor. */
static enum pp_code write_header(struct folder *f)
{
    struct pp_buf b = {0};
    for (int i = 0; i < 8; i++)
        pp_buf_char(&b, 0);
    pp_buf_fmt(&b, "{\"__metadata__\":{\"format\":\"%s\"}", f->opt->bits ? "mlx" : "pt");
    for (size_t i = 0; i < f->n; i++)
        describe_item(f, &f->items[i], &b);
    pp_buf_char(&b, '}');
    while (!b.bad && b.len % 8)
        pp_buf_char(&b, ' ');
    const uint64_t length = b.len - 8;
    for (int i = 0; i < 8 && !b.bad; i++)
        b.data[i] = (char)(uint8_t)(length >> 8 * i);
    f->data_at = b.len;
    enum pp_code code = b.bad ? pp_fail_nomem(f->err, f->path) : put(f, b.data, b.len, 0);
    if (!code && ftruncate(f->fd, (off_t)(f->data_at + f->data_size)) != 0)
        code = fail_write(f);
    pp_buf_free(&b);
    return code;
}

/* --- groups of integers ------------------------------------------------------------------------------------------ */

/* Whether the integers of a tensor are kept. */
static bool keeps_blocks(const struct folder *f, const struct item *item)
{
    const struct pp_tensor *t = item->from;
    return item->bits == 4 && f->group == 32 && item->type == PP_TYPE_F16 &&
           (t->type == PP_TYPE_Q4_0 || t->type == PP_TYPE_Q4_1) && (!t->rows || t->rows->as_blocks) &&
           !(item->reordered && item->heads.columns) && item->times == 0.0f;
}

/* --- rows -------------------------------------------------------------------------------------------------------- */

/* Work space for a slice. */
struct room {
    float *floats;              /* [rows, n_cols] */
    float *row;                 /* [n_cols] */
    uint8_t *blocks;            /* [rows, bytes of a stored row] */
    uint8_t *out;
    uint16_t *scales, *biases;  /* [rows, groups] */
};

static enum pp_code read_blocks(const struct item *item, int64_t row, int64_t n, uint8_t *to, struct pp_error *err)
{
    const size_t bytes = pp_type_row_bytes(item->from->type, item->from->ne[0]);
    if (item->from->rows)
        return pp_rows_read(item->from->rows, row, n, to, err);
    memcpy(to, (const uint8_t *)item->from->data + (size_t)row * bytes, (size_t)n * bytes);
    return PP_OK;
}

/* The row of our tensor, or the element of a bias, that row r of the new one is. */
static int64_t row_of(const struct item *item, int64_t r)
{
    const int64_t dim = item->head_dim;
    if (item->reordered && !item->heads.columns)
        return pp_state_row(&item->heads, r);
    if (item->order == BY_HALVES)
        return pp_gguf_row(r, dim);
    if (item->order != BY_HEAD)
        return r;
    const int64_t each = item->n_head / item->n_head_kv, group = r / dim / (each + 2), j = r / dim % (each + 2);
    const int64_t head = j < each ? group * each + j : item->n_head + (j - each) * item->n_head_kv + group;
    return head * dim + r % dim;
}

/* Reads rows first .. first + n - 1 of the new tensor; permuted ones one by one. */
static enum pp_code read_rows(const struct folder *f, const struct item *item, int64_t first, int64_t n,
                              const struct room *room)
{
    const int64_t n_cols = item->from->ne[0], run = item->order == UNCHANGED && !item->reordered ? n : 1;
    const size_t bytes = pp_type_row_bytes(item->from->type, n_cols);
    enum pp_code code = PP_OK;
    for (int64_t r = 0; r < n && !code; r += run) {
        const int64_t row = item->first_row + row_of(item, first + r);
        code = keeps_blocks(f, item) ? read_blocks(item, row, run, room->blocks + (size_t)r * bytes, f->err)
                                     : pp_tensor_floats(item->from, row, run, room->floats + r * n_cols, f->err);
    }
    if (code)
        return code;
    for (int64_t i = 0; item->ones && i < n * n_cols; i++)
        room->floats[i] = 1;
    for (int64_t i = 0; item->add != 0.0f && i < n * n_cols; i++)
        room->floats[i] += item->add;
    for (int64_t i = 0; item->times != 0.0f && i < n * n_cols; i++)
        room->floats[i] *= item->times;
    for (int64_t i = 0; item->log_sign != 0.0f && i < n * n_cols; i++)
        room->floats[i] = logf(item->log_sign * room->floats[i]);
    if (item->reordered && item->heads.columns)
        pp_state_columns(&item->heads, room->floats, n, n_cols, room->row);
    return PP_OK;
}

static enum pp_code write_groups(const struct folder *f, const struct item *item, int64_t first, int64_t n,
                                 const struct room *room)
{
    const int64_t n_cols = item->from->ne[0], n_groups = n_cols / f->group;
    const size_t row_bytes = (size_t)(n_cols * item->bits / 8), group_bytes = (size_t)(f->group * item->bits / 8);
    const uint8_t *block = room->blocks;
    for (int64_t g = 0; g < n * n_groups; g++) {
        uint8_t *q = room->out + (size_t)g * group_bytes;
        if (keeps_blocks(f, item))
            block = pp_mlx_group_of_block(item->from->type, block, q, &room->scales[g], &room->biases[g]);
        else
            pp_mlx_group_of_floats(item->bits, item->type, room->floats + g * f->group, f->group, q, &room->scales[g],
                                   &room->biases[g]);
    }
    const size_t size = 2 * (size_t)(n * n_groups);
    const uint64_t before = 2 * (uint64_t)(first * n_groups);
    if (!pp_row_finite(item->type, room->scales, n * n_groups) ||
        !pp_row_finite(item->type, room->biases, n * n_groups))
        return pp_fail(f->err, PP_ERR_FORMAT, "tensor %s contains NaN, infinity or values too large for %s",
                       item->name, pp_type_info(item->type)->name);
    enum pp_code code = put(f, room->out, (size_t)n * row_bytes, f->data_at + item->at + (uint64_t)first * row_bytes);
    if (!code)
        code = put(f, room->scales, size, f->data_at + item->scales_at + before);
    return code ? code : put(f, room->biases, size, f->data_at + item->biases_at + before);
}

static enum pp_code write_floats(const struct folder *f, const struct item *item, int64_t first, int64_t n,
                                 const struct room *room)
{
    const int64_t n_cols = item->ne[0];
    const size_t row_bytes = pp_type_row_bytes(item->type, n_cols);
    enum pp_code code = pp_quantize_rows(item->type, room->floats, room->out, n, n_cols, NULL, f->err);
    if (code)
        pp_fail_prefix(f->err, "tensor %s", item->name);
    return code ? code : put(f, room->out, (size_t)n * row_bytes, f->data_at + item->at + (uint64_t)first * row_bytes);
}

/* --- matrices made of others -------------------------------------------------------------------------------------- */

/* Rows of a new matrix. */
struct span {
    int64_t matrix, first, n;
};

/* Writes tensor t to every `step`-th value, from `begin` on, of rows of the new matrix. row: work space for a row of
 * t. */
static enum pp_code spread(const struct item *item, const struct pp_tensor *t, struct span s, int64_t begin,
                           int64_t step, float *row, float *to, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (int64_t r = 0; r < s.n && !code; r++, to += item->ne[0]) {
        code = pp_tensor_floats(t, s.matrix * item->ne[1] + s.first + r, 1, row, err);
        for (int64_t c = 0; c < t->ne[0] && !code; c++)
            to[row_of(item, c) * step + begin] = row[c];
    }
    return code;
}

/* The same for a transposed t: its columns. rows: work space for n_at_once rows of t. */
static enum pp_code spread_columns(const struct folder *f, const struct item *item, const struct pp_tensor *t,
                                   struct span s, int64_t begin, int64_t step, float *rows, int64_t n_at_once,
                                   float *to)
{
    const int64_t n_rows = t->ne[1], whole = item->mix_rows == n_rows ? n_rows : 0, pieces = whole ? 0 : item->mix_rows;
    const int64_t before = pp_mix_row(whole, s.matrix * n_rows);
    enum pp_code code = PP_OK;
    for (int64_t r = 0, n; r < n_rows && !code; r += n) {
        n = n_at_once < n_rows - r ? n_at_once : n_rows - r;
        code = pp_tensor_floats(t, before + r, n, rows, f->err);
        for (int64_t i = 0; i < n && !code; i++)
            for (int64_t c = 0; c < s.n; c++)
                to[c * item->ne[0] + pp_mix_row(pieces, r + i) * step + begin] = rows[i * t->ne[0] + s.first + c];
        pp_source_release_pages(f->s, t, before + r, n);
    }
    return code;
}

/* Permutes the elements of a bias of q, k or v like the rows; a column becomes a vector. */
static enum pp_code arrange(const struct item *item, float *row, float *to, struct pp_error *err)
{
    enum pp_code code = pp_tensor_floats(item->from, 0, item->from->ne[1], row, err);
    for (int64_t i = 0; i < item->ne[0] && !code; i++)
        to[i] = item->log_sign != 0.0f ? logf(item->log_sign * row[row_of(item, i)])
                                       : row[item->first_row + row_of(item, i)];
    return code;
}

/* All rows of the gates, then those of the values. */
static enum pp_code concatenate(const struct item *item, struct span s, float *to, struct pp_error *err)
{
    const int64_t each = item->from->ne[1], end = s.first + s.n;
    const int64_t n = s.first >= each ? 0 : end < each ? s.n : each - s.first;
    enum pp_code code = n ? pp_tensor_floats(item->from, s.matrix * each + s.first, n, to, err) : PP_OK;
    if (code || n == s.n)
        return code;
    return pp_tensor_floats(item->with, s.matrix * each + s.first + n - each, s.n - n, to + n * item->ne[0], err);
}

static enum pp_code join_qkv(const struct folder *f, const struct item *item, struct span s, float *to)
{
    const struct pp_hparams *hp = pp_source_hparams(f->s);
    enum pp_code code = PP_OK;
    for (int64_t r = 0, in; r < s.n && !code; r++) {
        const int part = pp_hf_qkv_row(item->form, hp, s.first + r, &in);
        const int64_t row = item->halves && part < 2 ? pp_gguf_row(in, hp->head_dim) : in;
        code = pp_tensor_floats(item->qkv[part], row, 1, to + r * item->ne[0], f->err);
    }
    return code;
}

/* For each head the rows of its key, then those of its value. */
static enum pp_code join_keys_values(const struct item *item, struct span s, float *to, struct pp_error *err)
{
    const int64_t dim = item->head_dim;
    enum pp_code code = PP_OK;
    for (int64_t r = s.first; r < s.first + s.n && !code; r++, to += item->ne[0]) {
        const bool value = r / dim % 2;
        const int64_t row = r / dim / 2 * dim + r % dim;
        code = pp_tensor_floats(value ? item->with : item->from, item->halves && !value ? pp_gguf_row(row, dim) : row,
                                1, to, err);
    }
    return code;
}

/* A table of positions, after reserved rows of zeros. */
static enum pp_code prepend_reserved(const struct folder *f, const struct item *item, struct span s, float *to)
{
    const int64_t n_reserved = pp_source_hparams(f->s)->n_reserved_positions;
    int64_t r = 0;
    for (; r < s.n && s.first + r < n_reserved; r++)
        memset(to + r * item->ne[0], 0, (size_t)item->ne[0] * sizeof *to);
    return r == s.n ? PP_OK
                    : pp_tensor_floats(item->from, s.first + r - n_reserved, s.n - r, to + r * item->ne[0], f->err);
}

/* For each key its query's rows, its own, those of its values, and of their gates; or beta of its heads, then their
 * decays. */
static enum pp_code join_by_key(const struct folder *f, const struct item *item, struct span s, float *to)
{
    const struct pp_hparams *hp = pp_source_hparams(f->s);
    const bool numbers = strstr(item->from->name, ".ssm_beta.");
    const int64_t n = hp->n_state_key_head, key = numbers ? 0 : hp->state_key_dim;
    const int64_t value = hp->n_state_head / n * (numbers ? 1 : hp->state_value_dim);
    enum pp_code code = PP_OK;
    for (int64_t r = s.first; r < s.first + s.n && !code; r++, to += item->ne[0]) {
        const int64_t k = r / (2 * (key + value)), j = r % (2 * (key + value));
        const int64_t row = j < key             ? k * key + j
                            : j < 2 * key         ? (n + k) * key + j - key
                            : j < 2 * key + value ? 2 * n * key + k * value + j - 2 * key
                                                  : k * value + j - 2 * key - value;
        code = pp_tensor_floats(j < 2 * key + value ? item->from : item->with, row, 1, to, f->err);
    }
    return code;
}

/* Releases the memory of what matrix m was made from. */
static void release_matrix(const struct folder *f, const struct item *item, int64_t m)
{
    const struct pp_tensor *const of[] = {item->from, item->with, item->qkv[0], item->qkv[1], item->qkv[2]};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        if (of[i] && m < of[i]->ne[2])
            pp_source_release_pages(f->s, of[i], m * of[i]->ne[1], of[i]->ne[1]);
}

/* rows: work space for n_at_once rows of the old matrix, or for a vector. */
static enum pp_code make_span(const struct folder *f, const struct item *item, struct span s, float *rows,
                              int64_t n_at_once, float *to)
{
    const bool transposed = item->order == TRANSPOSED;
    const int64_t step = item->with && !item->side_by_side ? 2 : 1;
    const int64_t second_row = item->side_by_side ? item->ne[0] / 2 : 1;
    const struct pp_tensor *const of[] = {item->from, item->with};
    enum pp_code code = PP_OK;
    if (item->n_dims == 1 && !item->with)
        return arrange(item, rows, to, f->err);
    if (item->order == QKV)
        return join_qkv(f, item, s, to);
    if (item->order == CONCATENATED)
        return concatenate(item, s, to, f->err);
    if (item->order == KEYS_VALUES)
        return join_keys_values(item, s, to, f->err);
    if (item->order == BY_KEY)
        return join_by_key(f, item, s, to);
    if (item->order == RESERVED)
        return prepend_reserved(f, item, s, to);
    for (int i = 0; i < 2 && of[i] && !code; i++)
        code = transposed ? spread_columns(f, item, of[i], s, i ? second_row : 0, step, rows, n_at_once, to)
                      : spread(item, of[i], s, i ? second_row : 0, step, rows, to, f->err);
    return code;
}

/* Writes some rows of the new matrix at a time; more if it is transposed, as all of the old one is read for them. */
static enum pp_code write_spans(const struct folder *f, const struct item *item)
{
    const int64_t n_cols = item->ne[0], n_rows = item->ne[1], slice = item->order == TRANSPOSED ? 2 * SLICE : SLICE;
    const int64_t step = slice / n_cols > 0 ? slice / n_cols : 1, most = step < n_rows ? step : n_rows;
    const size_t n = (size_t)(n_cols * most);
    struct room room = {.floats = pp_calloc(n, sizeof(float)), .out = pp_calloc(n, 4)};
    const int64_t all = item->from->ne[1], few = SLICE / item->from->ne[0] > 0 ? SLICE / item->from->ne[0] : 1;
    const int64_t n_at_once = item->n_dims == 1 || all < few ? all : item->order == TRANSPOSED ? few : 1;
    float *rows = pp_calloc((size_t)(item->from->ne[0] * n_at_once), sizeof *rows);
    enum pp_code code = room.floats && room.out && rows ? PP_OK : pp_fail_nomem(f->err, item->name);
    for (int64_t m = 0; m < item->ne[2]; m++)
        for (int64_t first = 0; first < n_rows && !code; first += most) {
            const struct span s = {m, first, most < n_rows - first ? most : n_rows - first};
            if (pp_cancelled(f->opt->cancel))
                code = pp_fail(f->err, PP_ERR_CANCELLED, "stopped; no model was written");
            if (!code)
                code = make_span(f, item, s, rows, n_at_once, room.floats);
            if (!code)
                code = write_floats(f, item, m * n_rows + first, s.n, &room);
            release_matrix(f, item, m);
        }
    pp_free(room.floats);
    pp_free(room.out);
    pp_free(rows);
    return code;
}

static enum pp_code write_item(const struct folder *f, const struct item *item)
{
    const int64_t n_cols = item->ne[0], n_rows = n_rows_of(item);
    const int64_t step = SLICE / n_cols > 0 ? SLICE / n_cols : 1, most = step < n_rows ? step : n_rows;
    const size_t n = (size_t)(most * n_cols);
    const bool part = item->n_dims == 1 && item->ne[0] != item->from->ne[0];
    const bool made = item->order == TRANSPOSED || item->order == QKV || item->order == RESERVED || item->with;
    if (made || (item->n_dims == 1 && (item->order != UNCHANGED || item->reordered)) || part)
        return write_spans(f, item);
    struct room room = {.floats = pp_calloc(n, sizeof(float)), .blocks = pp_calloc(n, 1), .out = pp_calloc(n, 4),
                        .row = pp_calloc((size_t)n_cols, sizeof(float)), .scales = pp_calloc(n, 2),
                        .biases = pp_calloc(n, 2)};
    enum pp_code code = room.floats && room.row && room.blocks && room.out && room.scales && room.biases
                            ? PP_OK : pp_fail_nomem(f->err, item->name);
    for (int64_t first = 0; first < n_rows && !code; first += most) {
        const int64_t m = most < n_rows - first ? most : n_rows - first;
        if (pp_cancelled(f->opt->cancel))
            code = pp_fail(f->err, PP_ERR_CANCELLED, "stopped; no model was written");
        if (!code)
            code = read_rows(f, item, first, m, &room);
        if (!code)
            code = item->bits ? write_groups(f, item, first, m, &room) : write_floats(f, item, first, m, &room);
        pp_source_release_pages(f->s, item->from, item->first_row + first, m);
    }
    pp_free(room.floats);
    pp_free(room.row);
    pp_free(room.blocks);
    pp_free(room.out);
    pp_free(room.scales);
    pp_free(room.biases);
    return code;
}

static enum pp_code write_items(const struct folder *f)
{
    const size_t total = pp_source_bytes(f->s);
    size_t done = 0;
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < f->n && !code; i++) {
        if (f->opt->progress)
            f->opt->progress(f->opt->user, f->items[i].name, done, total);
        code = write_item(f, &f->items[i]);
        done += pp_type_row_bytes(f->items[i].from->type, f->items[i].ne[0]) * (size_t)n_rows_of(&f->items[i]);
    }
    return code ? code : pp_source_check_unchanged(f->s, f->err);
}

enum pp_code pp_folder_write_tensors(struct folder *f)
{
    f->path = pp_path_join(f->dst, "model.safetensors");
    f->temp = f->path ? pp_temporary_name(f->path) : NULL;
    if (!f->path || !f->temp)
        return pp_fail_nomem(f->err, "a file name");
    f->fd = open(f->temp, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (f->fd < 0)
        return fail_write(f);
    enum pp_code code = write_header(f);
    if (!code)
        code = write_items(f);
    if (!code && fsync(f->fd) != 0)
        code = fail_write(f);
    close(f->fd);
    if (!code)
        code = pp_name_file(f->temp, f->path, f->err);
    if (code)
        unlink(f->temp);
    return code;
}
