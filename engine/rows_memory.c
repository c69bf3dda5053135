/* rows_memory.c - how much of the file that rows are made from stays in memory (rows_int.h). */
#include "engine/base/map.h"
#include "engine/rows_int.h"

enum { TILE = 16, TRANSPOSED_TILE = 32, FAR_TILE = 1024, FAR_TILE_WEIGHTS = 4 << 20 };
enum { FAR = 48 << 20, VERY_FAR = 256 << 20, SWEPT = 2 << 20, APART = 1 << 16 }; /* bytes */

static size_t number_size(const struct pp_numbers *n)
{
    return n->kind == PP_NUMBER_F32 ? 4 : n->kind == PP_NUMBER_F16 || n->kind == PP_NUMBER_BF16 ? 2 : 1;
}

size_t pp_rows_weights_size(const struct pp_rows *r)
{
    const size_t n = (size_t)(r->n_rows * r->n_cols);
    switch (r->form) {
    case PP_FORM_FLOATS:
        return (size_t)(r->n_head ? (r->n_head + 2 * r->n_head_kv) * r->head_dim : r->n_rows * r->row_step) *
               pp_type_row_bytes(r->stored_type, r->n_cols);
    case PP_FORM_TRANSPOSED:
        return pp_type_row_bytes(r->stored_type, r->width) * (size_t)(r->n_cols * (r->n_rows / r->matrix_rows));
    case PP_FORM_FP8:
        return n;
    case PP_FORM_BNB:
        return n / 2;
    case PP_FORM_FP4:
        return (r->pitch ? (size_t)(r->n_rows * r->n_groups * r->pitch) : n / 2) * (size_t)r->row_step;
    case PP_FORM_NVFP4:
        return (size_t)r->n_rows * pp_type_row_bytes(PP_TYPE_NVFP4, r->n_cols);
    case PP_FORM_STREAM:
        return (size_t)(r->n_rows * r->row_bytes);
    case PP_FORM_MLA_K:
    case PP_FORM_MLA_V:
    case PP_FORM_MLA_KV:
        return 0; /* the other tensor (`of`, `with`) counts them */
    default:
        return (size_t)(pp_rows_in_words(r) * r->n_cols) * (size_t)r->bits / 8;
    }
}

static void skip_numbers(struct pp_numbers *n, int64_t count)
{
    if (n->data)
        n->data += (size_t)count * number_size(n);
}

/* Moves to the zero points of row `rows`; false: they are in words shared with the rows before. */
static bool skip_zeros(struct pp_rows *r, int64_t rows)
{
    const int64_t per = 32 / r->bits;
    if (!r->zeros)
        return true;
    if (r->zeros_layout == PP_ZEROS_AWQ_GEMV)
        r->zeros += 4 * rows * r->zero_stride;
    else if (r->zeros_layout == PP_ZEROS_BYTES)
        r->zeros += rows * r->zero_stride;
    else if (r->zeros_layout == PP_ZEROS_STACKED)
        r->zeros += 4 * (rows / per * r->n_groups);
    else
        return false;
    return r->zeros_layout != PP_ZEROS_STACKED || rows % per == 0;
}

bool pp_rows_cut(const struct pp_rows *r, int64_t first, int64_t n, struct pp_rows *part)
{
    if (r->n_head || r->head_dim || r->row_first || r->row_step != 1)
        return false;
    *part = *r;
    part->n_rows = n;
    switch (r->form) {
    case PP_FORM_GPTQ: /* words hold all rows */
    case PP_FORM_AWQ:
        part->stored_rows = r->n_rows;
        part->row_first = first;
        return true;
    case PP_FORM_STREAM:
        part->weights += first * r->row_bytes;
        skip_numbers(&part->scales, first * r->scale_stride);
        skip_numbers(&part->offsets, first * r->scale_stride);
        return skip_zeros(part, first);
    case PP_FORM_FP4:
        part->weights += first * (r->n_cols / 2);
        skip_numbers(&part->scales, first * r->scale_stride);
        return !r->pitch;
    case PP_FORM_FP8: /* a part that begins with a scale block, or is within one */
        part->weights += first * r->n_cols;
        skip_numbers(&part->scales, first / r->block_rows * r->scale_stride);
        return first % r->block_rows == 0 || first / r->block_rows == (first + n - 1) / r->block_rows;
    default:
        return false;
    }
}

static int64_t n_scales(const struct pp_rows *r)
{
    switch (r->form) {
    case PP_FORM_FP8:
        return ((r->n_rows - 1) / r->block_rows + 1) * r->scale_stride;
    case PP_FORM_FP4:
        return r->pitch ? 0 : r->n_rows * r->row_step * r->scale_stride;
    case PP_FORM_STREAM:
        return r->n_rows * r->scale_stride;
    case PP_FORM_BNB:
        return r->codes ? 0 : r->n_rows * r->n_cols / r->block;
    default:
        return r->n_groups * pp_rows_in_words(r);
    }
}

static size_t zeros_size(const struct pp_rows *r)
{
    switch (r->zeros_layout) {
    case PP_ZEROS_AWQ_GEMV:
        return (size_t)(4 * r->n_rows * r->zero_stride);
    case PP_ZEROS_BYTES:
        return (size_t)(r->n_rows * r->zero_stride);
    default:
        return (size_t)(r->n_groups * pp_rows_in_words(r) * r->bits / 8);
    }
}

/* Of one matrix of a stack that is transposed. */
static size_t matrix_size(const struct pp_rows *r)
{
    if (r->form == PP_FORM_TRANSPOSED)
        return pp_type_row_bytes(r->stored_type, r->width) * (size_t)r->n_cols;
    return pp_rows_weights_size(r);
}

/* Whether every row of it is scattered over the whole matrix, and it is large. */
static bool is_large_scattered(const struct pp_rows *r)
{
    const bool scattered = r->form == PP_FORM_GPTQ || r->form == PP_FORM_AWQ || r->form == PP_FORM_TRANSPOSED;
    return scattered && matrix_size(r) >= FAR;
}

/* Releases parts `from` to `to` - 1 of n equal parts. */
static void release_parts(const uint8_t *data, size_t size, int64_t from, int64_t to, int64_t n)
{
    const size_t each = size / (size_t)n;
    pp_map_release_pages(data + each * (size_t)from, to == n ? data + size : data + each * (size_t)to);
}

void pp_rows_release_pages(const struct pp_rows *r, int64_t first, int64_t n)
{
    const size_t size = pp_rows_weights_size(r), numbers = (size_t)n_scales(r);
    const bool last = first + n == r->n_rows;
    const int64_t quarter = r->n_rows / 4, end = quarter ? first % quarter + n : 0; /* BITNET has always some */
    if (last)
        release_parts(r->weights, size, 0, 1, 1);
    else if (r->form == PP_FORM_TRANSPOSED && !is_large_scattered(r)) /* matrices that end here */
        release_parts(r->weights, size, first / r->matrix_rows, (first + n) / r->matrix_rows,
                      r->n_rows / r->matrix_rows);
    else if (r->form == PP_FORM_BITNET) /* within the quarter of the first row */
        release_parts(r->weights, size, first % quarter, end < quarter ? end : quarter, quarter);
    else if (is_large_scattered(r)) /* read row by row, not swept */
        release_parts(r->weights, size, 0, 1, 1);
    else if (r->form != PP_FORM_GPTQ && r->form != PP_FORM_AWQ)
        release_parts(r->weights, size, first, first + n, r->n_rows);
    if (last && r->scales.data)
        release_parts(r->scales.data, numbers * number_size(&r->scales), 0, 1, 1);
    if (last && r->offsets.data)
        release_parts(r->offsets.data, numbers * number_size(&r->offsets), 0, 1, 1);
    if (last && r->zeros)
        release_parts(r->zeros, zeros_size(r), 0, 1, 1);
    if (last && r->codes)
        release_parts(r->codes, (size_t)(r->n_rows * r->n_cols / r->block), 0, 1, 1);
}

/* --- large matrices whose rows are spread over all of their memory ------------------------------------------------ */

/* A single row is not worth a sweep if each of its words is in a page of its own, unless the matrix is very large. */
static bool is_swept(const struct pp_rows *r, int64_t n)
{
    const size_t size = matrix_size(r);
    const size_t words = (size_t)(r->form == PP_FORM_GPTQ ? r->n_cols * r->bits / 32 : r->n_cols);
    return is_large_scattered(r) && (n > 1 || size / words < APART || size >= VERY_FAR);
}

int64_t pp_rows_tile(const struct pp_rows *r)
{
    const int64_t usual = r->form == PP_FORM_TRANSPOSED ? TRANSPOSED_TILE : TILE, most = FAR_TILE_WEIGHTS / r->n_cols;
    if (!is_large_scattered(r))
        return usual;
    return most < usual ? usual : most < FAR_TILE ? most : FAR_TILE;
}

struct pp_rows_sweep pp_rows_sweep(const struct pp_rows *r, int64_t n, const uint8_t *begin)
{
    return (struct pp_rows_sweep){is_swept(r, n) ? begin : NULL};
}

void pp_rows_sweep_past(struct pp_rows_sweep *s, const uint8_t *at)
{
    if (s->released_to && at - s->released_to >= SWEPT)
        pp_rows_sweep_end(s, at);
}

void pp_rows_sweep_end(struct pp_rows_sweep *s, const uint8_t *end)
{
    if (!s->released_to)
        return;
    pp_map_release_pages(s->released_to, end);
    s->released_to = end;
}

void pp_rows_sweep_groups(const struct pp_rows *r, int64_t n)
{
    if (!is_swept(r, n))
        return;
    release_parts(r->scales.data, (size_t)n_scales(r) * number_size(&r->scales), 0, 1, 1);
    if (r->zeros)
        release_parts(r->zeros, zeros_size(r), 0, 1, 1);
}
