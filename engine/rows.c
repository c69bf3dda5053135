#include "engine/rows_int.h"

#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/quant.h"
#include "engine/quant_blocks.h"

/* --- numbers ------------------------------------------------------------------------------------------------------ */

static uint16_t load16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint32_t load32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* 127 and 255 are NaN; there is no infinity. */
static float e4m3_to_f32(uint8_t v)
{
    const int exponent = v >> 3 & 15, mantissa = v & 7;
    if ((v & 127) == 127)
        return NAN;
    const uint32_t bits = (uint32_t)(exponent + 120) << 23 | (uint32_t)mantissa << 20;
    float f = (float)mantissa * 0x1p-9f;
    if (exponent)
        memcpy(&f, &bits, sizeof f);
    return v & 128 ? -f : f;
}

float pp_number(const struct pp_numbers *n, int64_t i)
{
    float f;
    switch (n->kind) {
    case PP_NUMBER_F16:
        return pp_f16_to_f32(load16(n->data + 2 * i));
    case PP_NUMBER_BF16:
        return pp_bf16_to_f32(load16(n->data + 2 * i));
    case PP_NUMBER_E8M0:
        return n->data[i] == 255 ? NAN : ldexpf(1, n->data[i] - 127);
    case PP_NUMBER_E4M3:
        return e4m3_to_f32(n->data[i]);
    default:
        memcpy(&f, n->data + 4 * i, sizeof f);
        return f;
    }
}

/* --- integers ----------------------------------------------------------------------------------------------------- */

/* A tile of rows, unpacked to integers. */
struct tile {
    int64_t *rows;         /* [n]: their stored rows */
    uint8_t *q;            /* [n, n_cols] */
    float *scale, *zero;   /* [n, n_groups]; zero: an offset where r has offsets */
};

int64_t pp_rows_stored_row(const struct pp_rows *r, int64_t row)
{
    if (!r->n_head && r->head_dim)
        return row / r->head_dim * r->row_step * r->head_dim + row % r->head_dim + r->row_first;
    if (!r->n_head)
        return row * r->row_step + r->row_first;
    row += r->row_first;
    const int64_t in_head = row % r->head_dim, head = row / r->head_dim, each = r->n_head / r->n_head_kv;
    const int64_t of_kv = head - r->n_head; /* heads of k, then of v */
    if (r->head_pieces) {
        const int64_t n = r->n_head / r->head_pieces, part = head / r->n_head, h = head % r->n_head;
        return (h / n * 3 * n + (part == 0 ? 0 : part == 1 ? 2 : 1) * n + h % n) * r->head_dim + in_head;
    }
    const int64_t group = of_kv < 0 ? head / each : of_kv % r->n_head_kv;
    const int64_t in_group = of_kv < 0 ? head % each : each + of_kv / r->n_head_kv;
    return (group * (each + 2) + in_group) * r->head_dim + in_head;
}

/* Integer i of a stream of integers of up to eight bits. */
static unsigned stream_at(const uint8_t *p, int64_t i, int bits)
{
    const uint8_t *at = p + (i * bits >> 3);
    const unsigned shift = (unsigned)(i * bits) & 7;
    const unsigned v = shift + (unsigned)bits > 8 ? at[0] | (unsigned)at[1] << 8 : at[0];
    return v >> shift & ((1u << bits) - 1);
}

/* Which nibble of AWQ's word a row has. */
static int awq_shift(int64_t row)
{
    static const uint8_t place[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    return place[row & 7];
}

static int stored_zero(const struct pp_rows *r, int64_t row, int64_t g)
{
    const int per = 32 / r->bits;
    const uint8_t *z = r->zeros;
    switch (r->zeros_layout) {
    case PP_ZEROS_AWQ:
        return (int)(load32(z + 4 * (g * (pp_rows_in_words(r) / per) + row / per)) >> awq_shift(row) * r->bits & 15);
    case PP_ZEROS_STACKED:
        return (int)(load32(z + 4 * (row / per * r->n_groups + g)) >> (int)(row % per) * r->bits &
                     ((1u << r->bits) - 1));
    case PP_ZEROS_AWQ_GEMV:
        return (int)stream_at(z + 4 * row * r->zero_stride, g, r->bits);
    case PP_ZEROS_BYTES:
        return (int8_t)z[row * r->zero_stride + g];
    default:
        return (int)stream_at(z + g * (pp_rows_in_words(r) * r->bits / 8), row, r->bits);
    }
}

static float zero_of(const struct pp_rows *r, int64_t row, int64_t g)
{
    return (float)((r->zeros ? stored_zero(r, row, g) : 0) + r->zero_bias);
}

static void stream_row(const struct pp_rows *r, int64_t row, uint8_t *q)
{
    const uint8_t *p = r->weights + row * r->row_bytes;
    for (int64_t i = 0; i < r->n_cols; i++)
        q[i] = (uint8_t)(stream_at(p, i, r->bits) ^ r->invert_bits);
}

static void stream_tile(const struct pp_rows *r, int64_t n, struct tile *t)
{
    for (int64_t i = 0; i < n; i++) {
        const int64_t row = t->rows[i], at = row * r->scale_stride;
        stream_row(r, row, t->q + i * r->n_cols);
        for (int64_t g = 0; g < r->n_groups; g++) {
            t->scale[i * r->n_groups + g] = pp_number(&r->scales, at + g);
            t->zero[i * r->n_groups + g] = r->offsets.data ? pp_number(&r->offsets, at + g) : zero_of(r, row, g);
        }
    }
}

static void group_parameters(const struct pp_rows *r, int64_t n, struct tile *t)
{
    for (int64_t g = 0; g < r->n_groups; g++)
        for (int64_t i = 0; i < n; i++) {
            const int64_t row = t->rows[i];
            t->zero[i * r->n_groups + g] = zero_of(r, row, g);
            t->scale[i * r->n_groups + g] = pp_number(&r->scales, g * pp_rows_in_words(r) + row);
        }
    pp_rows_sweep_groups(r, n);
}

/* Columns begin .. end - 1, whose integers begin in word w of a row; the last one may end in the next word. */
static void gptq_word(const struct pp_rows *r, int64_t w, int64_t begin, int64_t end, int64_t row, uint8_t *q)
{
    const int64_t width = pp_rows_in_words(r);
    const uint32_t word = load32(r->weights + 4 * (w * width + row)), mask = (uint32_t)((1ull << r->bits) - 1);
    for (int64_t c = begin; c < end; c++) {
        const int shift = (int)(c * r->bits - 32 * w);
        uint64_t v = word;
        if (shift + r->bits > 32)
            v |= (uint64_t)load32(r->weights + 4 * ((w + 1) * width + row)) << 32;
        q[c] = (uint8_t)(v >> shift & mask);
    }
}

static void gptq_tile(const struct pp_rows *r, int64_t n, struct tile *t)
{
    struct pp_rows_sweep past = pp_rows_sweep(r, n, r->weights);
    for (int64_t w = 0; w < r->n_cols * r->bits / 32; w++) {
        const int64_t begin = (32 * w + r->bits - 1) / r->bits, next = (32 * w + 31) / r->bits + 1;
        const int64_t end = next < r->n_cols ? next : r->n_cols;
        for (int64_t i = 0; i < n; i++)
            gptq_word(r, w, begin, end, t->rows[i], t->q + i * r->n_cols);
        pp_rows_sweep_past(&past, r->weights + 4 * (w + 1) * pp_rows_in_words(r));
    }
    pp_rows_sweep_end(&past, r->weights + pp_rows_weights_size(r));
    group_parameters(r, n, t);
}

static void awq_tile(const struct pp_rows *r, int64_t n, struct tile *t)
{
    struct pp_rows_sweep past = pp_rows_sweep(r, n, r->weights);
    const int64_t width = pp_rows_in_words(r) / 8;
    for (int64_t c = 0; c < r->n_cols; c++) {
        for (int64_t i = 0; i < n; i++) {
            const int64_t row = t->rows[i];
            const uint32_t word = load32(r->weights + 4 * (c * width + row / 8));
            t->q[i * r->n_cols + c] = (uint8_t)(word >> 4 * awq_shift(row) & 15);
        }
        pp_rows_sweep_past(&past, r->weights + 4 * (c + 1) * width);
    }
    pp_rows_sweep_end(&past, r->weights + pp_rows_weights_size(r));
    group_parameters(r, n, t);
}

static void bitnet_tile(const struct pp_rows *r, int64_t n, struct tile *t)
{
    for (int64_t i = 0; i < n; i++) {
        const int64_t row = t->rows[i], each = r->n_rows / 4;
        const uint8_t *p = r->weights + row % each * r->n_cols;
        for (int64_t c = 0; c < r->n_cols; c++)
            t->q[i * r->n_cols + c] = (uint8_t)(p[c] >> 2 * (row / each) & 3);
        t->scale[i] = r->factor;
        t->zero[i] = (float)r->zero_bias;
    }
}

static void read_tile(const struct pp_rows *r, int64_t first, int64_t n, struct tile *t)
{
    for (int64_t i = 0; i < n; i++)
        t->rows[i] = pp_rows_stored_row(r, first + i);
    if (r->form == PP_FORM_STREAM)
        stream_tile(r, n, t);
    else if (r->form == PP_FORM_GPTQ)
        gptq_tile(r, n, t);
    else if (r->form == PP_FORM_BITNET)
        bitnet_tile(r, n, t);
    else
        awq_tile(r, n, t);
}

static bool is_integers(const struct pp_rows *r)
{
    return r->form == PP_FORM_STREAM || r->form == PP_FORM_GPTQ || r->form == PP_FORM_AWQ ||
           r->form == PP_FORM_BITNET;
}

/* For at most n rows. */
static enum pp_code make_tile(const struct pp_rows *r, int64_t n, struct tile *t, struct pp_error *err)
{
    t->rows = pp_calloc((size_t)n, sizeof *t->rows);
    t->q = pp_malloc((size_t)(n * r->n_cols));
    t->scale = pp_calloc((size_t)(2 * n * r->n_groups), sizeof *t->scale);
    if (t->rows && t->q && t->scale) {
        t->zero = t->scale + n * r->n_groups;
        return PP_OK;
    }
    pp_free(t->rows);
    pp_free(t->q);
    pp_free(t->scale);
    return pp_fail_nomem(err, "weights in another form");
}

static void free_tile(struct tile *t)
{
    pp_free(t->rows);
    pp_free(t->q);
    pp_free(t->scale);
}

static float weight_of(const struct pp_rows *r, unsigned q, float scale, float zero)
{
    return r->offsets.data ? scale * (float)q + zero : scale * ((float)q - zero);
}

static void tile_floats(const struct pp_rows *r, const struct tile *t, int64_t i, float *to)
{
    const uint8_t *q = t->q + i * r->n_cols;
    const float *scale = t->scale + i * r->n_groups, *zero = t->zero + i * r->n_groups;
    for (int64_t c = 0; r->group_of && c < r->n_cols; c++) {
        const uint32_t g = load32(r->group_of + 4 * c); /* checked, but the file may have been written to since */
        to[c] = g < r->n_groups ? weight_of(r, q[c], scale[g], zero[g]) : NAN;
    }
    for (int64_t g = 0; !r->group_of && g < r->n_groups; g++)
        for (int64_t c = g * r->group; c < (g + 1) * r->group && c < r->n_cols; c++)
            to[c] = weight_of(r, q[c], scale[g], zero[g]);
}

/* --- integers as they are ----------------------------------------------------------------------------------------- */

static void pack_nibbles(const uint8_t *q, uint8_t to[16])
{
    for (int i = 0; i < 16; i++)
        to[i] = (uint8_t)((q[i] & 15) | q[i + 16] << 4);
}

static uint8_t *block_q4_0(const uint8_t *q, float scale, uint8_t *to)
{
    struct pp_block_q4_0 b = {.d = pp_f32_to_f16(scale)};
    pack_nibbles(q, b.q);
    memcpy(to, &b, sizeof b);
    return to + sizeof b;
}

static uint8_t *block_q4_1(const uint8_t *q, float scale, float offset, uint8_t *to)
{
    struct pp_block_q4_1 b = {.d = pp_f32_to_f16(scale), .m = pp_f32_to_f16(offset)};
    pack_nibbles(q, b.q);
    memcpy(to, &b, sizeof b);
    return to + sizeof b;
}

static uint8_t *block_q5_1(const uint8_t *q, float scale, float offset, uint8_t *to)
{
    struct pp_block_q5_1 b = {.d = pp_f32_to_f16(scale), .m = pp_f32_to_f16(offset)};
    pack_nibbles(q, b.q);
    for (int i = 0; i < 32; i++)
        b.high[i / 8] = (uint8_t)(b.high[i / 8] | (q[i] >> 4 & 1) << i % 8);
    memcpy(to, &b, sizeof b);
    return to + sizeof b;
}

static uint8_t *block_q8_0(const uint8_t *q, float scale, uint8_t *to)
{
    struct pp_block_q8_0 b = {.d = pp_f32_to_f16(scale)};
    for (int i = 0; i < 32; i++)
        b.q[i] = (int8_t)(q[i] - 128);
    memcpy(to, &b, sizeof b);
    return to + sizeof b;
}

/* 256 weights; a byte holds four that are 32 apart. */
static uint8_t *block_tq2_0(const uint8_t *q, float scale, uint8_t *to)
{
    struct pp_block_tq2_0 b = {.d = pp_f32_to_f16(scale)};
    for (int i = 0; i < 256; i++)
        b.q[i / 128 * 32 + i % 32] |= (uint8_t)(q[i] << i % 128 / 32 * 2);
    memcpy(to, &b, sizeof b);
    return to + sizeof b;
}

static void tile_blocks(const struct pp_rows *r, const struct tile *t, int64_t i, uint8_t *to)
{
    const uint8_t *q = t->q + i * r->n_cols;
    for (int64_t c = 0; r->type == PP_TYPE_TQ2_0 && c < r->n_cols; c += 256)
        to = block_tq2_0(q + c, t->scale[i], to);
    for (int64_t c = 0; r->type != PP_TYPE_TQ2_0 && c < r->n_cols; c += 32) {
        const float scale = t->scale[i * r->n_groups + c / r->group], zero = t->zero[i * r->n_groups + c / r->group];
        const float offset = r->offsets.data ? zero : -scale * zero;
        if (r->type == PP_TYPE_Q4_0)
            to = block_q4_0(q + c, scale, to);
        else if (r->type == PP_TYPE_Q4_1)
            to = block_q4_1(q + c, scale, offset, to);
        else if (r->type == PP_TYPE_Q5_1)
            to = block_q5_1(q + c, scale, offset, to);
        else
            to = block_q8_0(q + c, scale, to);
    }
}

/* Where group g of a row of FP4 begins, and the index of its scale. */
static const uint8_t *fp4_group(const struct pp_rows *r, int64_t row, int64_t g)
{
    return r->weights + (row * r->n_groups + g) * (r->pitch ? r->pitch : r->group / 2);
}

static int64_t fp4_scale(const struct pp_rows *r, int64_t row, int64_t g)
{
    return r->pitch ? (row * r->n_groups + g) * r->pitch : row * r->scale_stride + g;
}

/* Repacks the order of weights: the low bits of GGUF's blocks hold weights 0 to 15. */
static void mxfp4_row(const struct pp_rows *r, int64_t row, uint8_t *to)
{
    for (int64_t g = 0; g < r->n_groups; g++) {
        const uint8_t *p = fp4_group(r, row, g);
        struct pp_block_mxfp4 b = {.e = r->scales.data[fp4_scale(r, row, g)]};
        for (int i = 0; i < 16; i += 2) {
            b.q[i] = (uint8_t)((p[i / 2] & 15) | p[i / 2 + 8] << 4);
            b.q[i + 1] = (uint8_t)(p[i / 2] >> 4 | (p[i / 2 + 8] & 0xF0));
        }
        memcpy(to + (size_t)g * sizeof b, &b, sizeof b);
    }
}

static enum pp_code check_blocks(const struct pp_rows *r, const uint8_t *row, struct pp_error *err)
{
    if (pp_row_finite(r->type, row, r->n_cols))
        return PP_OK;
    return pp_fail(err, PP_ERR_FORMAT, "a %s is not a number, or too large; the file is damaged",
                   pp_type_info(r->type)->block_elements == 1 ? "weight" : "scale");
}

static enum pp_code read_mxfp4(const struct pp_rows *r, int64_t first, int64_t n, uint8_t *to, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (int64_t i = 0; i < n && !code; i++, to += pp_type_row_bytes(r->type, r->n_cols)) {
        mxfp4_row(r, pp_rows_stored_row(r, first + i), to);
        code = check_blocks(r, to, err);
    }
    return code;
}

static enum pp_code copy_rows(const struct pp_rows *r, int64_t first, int64_t n, uint8_t *to, struct pp_error *err)
{
    const size_t size = pp_type_row_bytes(r->type, r->n_cols);
    enum pp_code code = PP_OK;
    for (int64_t i = 0; i < n && !code; i++, to += size) {
        memcpy(to, r->weights + (size_t)pp_rows_stored_row(r, first + i) * size, size);
        code = check_blocks(r, to, err);
    }
    return code;
}

/* Columns of matrices as rows, LINE values of each at a time: neighbouring columns are read from the same cache lines,
 * and whole lines are written. size: of a value, constant after inlining. */
__attribute__((always_inline)) static inline void transpose(const struct pp_rows *r, int64_t first, int64_t n,
                                                            uint8_t *to, const size_t size)
{
    enum { LINE = 16 };
    const size_t step = (size_t)r->width * size;
    const uint8_t *all = r->weights + (size_t)(pp_mix_row(r->mix_rows, first) / r->matrix_rows * r->n_cols) * step;
    struct pp_rows_sweep past = pp_rows_sweep(r, n, all);
    for (int64_t begin = 0; begin < r->n_cols; begin += LINE) {
        for (int64_t i = 0; i < n; i++) {
            const int64_t row = pp_mix_row(r->mix_rows, first + i);
            const int64_t matrix = row / r->matrix_rows, column = pp_rows_stored_row(r, row % r->matrix_rows);
            const uint8_t *from = r->weights + (size_t)(matrix * r->n_cols * r->width + column) * size;
            for (int64_t c = begin; c < begin + LINE && c < r->n_cols; c++)
                memcpy(to + (size_t)(i * r->n_cols + c) * size, from + (size_t)c * step, size);
        }
        pp_rows_sweep_past(&past, all + (size_t)(begin + LINE < r->n_cols ? begin + LINE : r->n_cols) * step);
    }
    pp_rows_sweep_end(&past, all + (size_t)r->n_cols * step);
}

/* n transposed rows in the type in which they are stored. */
static void transposed_rows(const struct pp_rows *r, int64_t first, int64_t n, uint8_t *to)
{
    const size_t size = (size_t)pp_type_info(r->stored_type)->block_bytes;
    const int64_t tile = pp_rows_tile(r);
    for (int64_t at = 0, m; at < n; at += m, to += (size_t)(m * r->n_cols) * size) {
        const int64_t of_matrix = r->matrix_rows - (first + at) % r->matrix_rows;
        m = n - at < tile ? n - at : tile;
        m = m < of_matrix ? m : of_matrix;
        if (size == 2)
            transpose(r, first + at, m, to, 2);
        else
            transpose(r, first + at, m, to, 4);
    }
}

static enum pp_code read_transposed(const struct pp_rows *r, int64_t first, int64_t n, uint8_t *to,
                                    struct pp_error *err)
{
    enum pp_code code = PP_OK;
    transposed_rows(r, first, n, to);
    for (int64_t i = 0; i < n && !code; i++)
        code = check_blocks(r, to + (size_t)i * pp_type_row_bytes(r->type, r->n_cols), err);
    return code;
}

static enum pp_code read_blocks(const struct pp_rows *r, int64_t first, int64_t n, uint8_t *to, struct pp_error *err)
{
    const size_t row_bytes = pp_type_row_bytes(r->type, r->n_cols);
    struct tile t;
    const int64_t tile = pp_rows_tile(r);
    enum pp_code code = make_tile(r, n < tile ? n : tile, &t, err);
    if (code)
        return code;
    for (int64_t at = 0; at < n && !code; at += tile) {
        const int64_t m = n - at < tile ? n - at : tile;
        read_tile(r, first + at, m, &t);
        for (int64_t i = 0; i < m && !code; i++) {
            uint8_t *row = to + (size_t)(at + i) * row_bytes;
            tile_blocks(r, &t, i, row);
            code = check_blocks(r, row, err);
        }
    }
    free_tile(&t);
    return code;
}

/* --- floats ------------------------------------------------------------------------------------------------------- */

static void fp8_row(const struct pp_rows *r, int64_t row, float *to)
{
    const uint8_t *p = r->weights + row * r->n_cols;
    const int64_t at = row / r->block_rows * r->scale_stride;
    for (int64_t c = 0; c < r->n_cols; c += r->block_cols) {
        const float scale = pp_number(&r->scales, at + c / r->block_cols);
        for (int64_t i = c; i < c + r->block_cols && i < r->n_cols; i++)
            to[i] = e4m3_to_f32(p[i]) * scale;
    }
}

static const float e2m1[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

/* A scale of GGUF's NVFP4: its sign is ignored, and NaN counts as 0. */
static float unsigned_e4m3(uint8_t v)
{
    return (v & 127) == 127 ? 0 : e4m3_to_f32(v & 127);
}

static void nvfp4_row(const struct pp_rows *r, int64_t row, float *to)
{
    enum { BLOCK = 64, SCALES = 4, EACH = 16, BYTES = SCALES + BLOCK / 2 };
    const uint8_t *b = r->weights + row * (r->n_cols / BLOCK) * BYTES;
    const float factor = r->factors.data ? pp_number(&r->factors, row / r->block_rows) : 1;
    for (int64_t c = 0; c < r->n_cols; c += BLOCK, b += BYTES)
        for (int s = 0; s < SCALES; s++)
            for (int i = 0; i < EACH; i++) {
                const uint8_t both = b[SCALES + s * EACH / 2 + i % (EACH / 2)];
                to[c + s * EACH + i] = e2m1[i < EACH / 2 ? both & 15 : both >> 4] * (unsigned_e4m3(b[s]) * factor);
            }
}

static void fp4_row(const struct pp_rows *r, int64_t row, float *to)
{
    for (int64_t g = 0; g < r->n_groups; g++) {
        const uint8_t *p = fp4_group(r, row, g);
        const float scale = pp_number(&r->scales, fp4_scale(r, row, g)) * r->factor;
        for (int64_t c = 0; c < r->group; c++)
            to[g * r->group + c] = e2m1[c & 1 ? p[c / 2] >> 4 : p[c / 2] & 15] * scale;
    }
}

static float table_scale(const struct pp_rows *r, int64_t block)
{
    if (!r->codes)
        return pp_number(&r->scales, block);
    return r->levels[r->codes[block]] * pp_number(&r->scales, block / r->code_block) + r->code_offset;
}

static void bnb_row(const struct pp_rows *r, int64_t row, float *to)
{
    const int64_t begin = row * r->n_cols, end = begin + r->n_cols;
    for (int64_t at = begin; at < end;) {
        const int64_t block = at / r->block;
        const int64_t stop = (block + 1) * r->block < end ? (block + 1) * r->block : end;
        const float scale = table_scale(r, block);
        for (; at < stop; at++)
            to[at - begin] = r->table[at & 1 ? r->weights[at / 2] & 15 : r->weights[at / 2] >> 4] * scale;
    }
}

static enum pp_code integer_floats(const struct pp_rows *r, int64_t first, int64_t n, float *to, struct pp_error *err)
{
    struct tile t;
    const int64_t tile = pp_rows_tile(r);
    enum pp_code code = make_tile(r, n < tile ? n : tile, &t, err);
    if (code)
        return code;
    for (int64_t at = 0; at < n; at += tile) {
        const int64_t m = n - at < tile ? n - at : tile;
        read_tile(r, first + at, m, &t);
        for (int64_t i = 0; i < m; i++)
            tile_floats(r, &t, i, to + (at + i) * r->n_cols);
    }
    free_tile(&t);
    return PP_OK;
}

/* --- heads -------------------------------------------------------------------------------------------------------- */

/* Rows first .. first + n - 1 of a matrix, transposed: column c (begin <= c < end) of row r goes to to[(c - begin) *
 * stride + r]. */
static enum pp_code transposed_floats(const struct pp_tensor *t, int64_t first, int64_t n, int64_t begin, int64_t end,
                                      int64_t stride, float *to, struct pp_error *err)
{
    float *row = pp_calloc((size_t)t->ne[0], sizeof *row);
    enum pp_code code = row ? PP_OK : pp_fail_nomem(err, "matrices of heads");
    for (int64_t r = 0; r < n && !code; r++) {
        code = pp_tensor_floats(t, first + r, 1, row, err);
        for (int64_t c = begin; c < end && !code; c++)
            to[(c - begin) * stride + r] = row[c];
    }
    pp_free(row);
    return code;
}

/* Rows begin .. end - 1 of one head of MLA_K, MLA_V or MLA_KV. */
static enum pp_code head_floats(const struct pp_rows *r, int64_t head, int64_t begin, int64_t end, float *to,
                                struct pp_error *err)
{
    const int64_t keys = r->head_keys, values = r->head_values, of_head = head * (keys + values);
    if (r->form == PP_FORM_MLA_K)
        return transposed_floats(r->of, of_head, keys, begin, end, r->n_cols, to, err);
    if (r->form == PP_FORM_MLA_V)
        return pp_tensor_floats(r->of, of_head + keys + begin, end - begin, to, err);
    const int64_t split = begin > keys ? begin : end < keys ? end : keys;
    enum pp_code code = PP_OK;
    if (begin < split) /* from k_b, which has a row for each of our columns */
        code = transposed_floats(r->of, head * r->n_cols, r->n_cols, begin, split, r->n_cols, to, err);
    if (!code && split < end)
        code = pp_tensor_floats(r->with, head * values + split - keys, end - split, to + (split - begin) * r->n_cols,
                                err);
    return code;
}

/* Rows of each head in the forms of heads; 0: another form. */
static int64_t rows_of_head(const struct pp_rows *r)
{
    return r->form == PP_FORM_MLA_K     ? r->of->ne[0]
           : r->form == PP_FORM_MLA_V ? r->head_values
           : r->form == PP_FORM_MLA_KV   ? r->head_keys + r->head_values
                                       : 0;
}

static enum pp_code heads_floats(const struct pp_rows *r, int64_t first, int64_t n, float *to, struct pp_error *err)
{
    const int64_t each = rows_of_head(r);
    enum pp_code code = PP_OK;
    for (int64_t at = first, m; at < first + n && !code; at += m) {
        const int64_t begin = at % each, left = first + n - at;
        m = left < each - begin ? left : each - begin;
        code = head_floats(r, at / each, begin, begin + m, to + (at - first) * r->n_cols, err);
    }
    return code;
}

static enum pp_code copy_values(const struct pp_rows *r, int64_t first, int64_t n, uint8_t *to, struct pp_error *err)
{
    const size_t size = pp_type_row_bytes(r->type, r->n_cols);
    enum pp_code code = PP_OK;
    for (int64_t row = first; row < first + n && !code; row++, to += size) {
        const int64_t there = (row / r->head_values + 1) * r->head_keys + row;
        memcpy(to, (const uint8_t *)r->of->data + (size_t)there * size, size);
        code = check_blocks(r, to, err);
    }
    return code;
}

static enum pp_code columns_floats(const struct pp_rows *r, int64_t first, int64_t n, float *to, struct pp_error *err)
{
    const size_t row = pp_type_row_bytes(r->stored_type, r->n_cols);
    const int64_t tile = pp_rows_tile(r);
    uint8_t *stored = pp_calloc((size_t)(n < tile ? n : tile), row);
    if (!stored)
        return pp_fail_nomem(err, "weights in another order");
    for (int64_t at = 0, m; at < n; at += m) {
        m = n - at < tile ? n - at : tile;
        transposed_rows(r, first + at, m, stored);
        for (int64_t i = 0; i < m; i++)
            pp_dequantize_row(r->stored_type, stored + (size_t)i * row, to + (at + i) * r->n_cols, r->n_cols);
    }
    pp_free(stored);
    return PP_OK;
}

static void float_row(const struct pp_rows *r, int64_t row, float *to)
{
    double square = 0;
    pp_dequantize_row(r->stored_type, r->weights + (size_t)row * pp_type_row_bytes(r->stored_type, r->n_cols), to,
                      r->n_cols);
    for (int64_t i = 0; r->unit_length && i < r->n_cols; i++)
        square += (double)to[i] * (double)to[i];
    for (int64_t i = 0; square > 0 && i < r->n_cols; i++)
        to[i] = (float)((double)to[i] / sqrt(square));
}

static void scale_row(const struct pp_rows *r, int64_t row, float *to)
{
    int part = 0;
    while (part + 1 < r->n_scaled && row >= r->scaled[part].end)
        part++;
    for (int64_t i = 0; r->n_scaled && i < r->n_cols; i++)
        to[i] *= r->scaled[part].by;
}

static enum pp_code stored_floats(const struct pp_rows *r, int64_t first, int64_t n, float *to, struct pp_error *err)
{
    if (r->form == PP_FORM_TRANSPOSED)
        return columns_floats(r, first, n, to, err);
    if (is_integers(r))
        return integer_floats(r, first, n, to, err);
    if (rows_of_head(r))
        return heads_floats(r, first, n, to, err);
    for (int64_t i = 0; i < n; i++, to += r->n_cols) {
        const int64_t row = pp_rows_stored_row(r, first + i);
        if (r->form == PP_FORM_FP8)
            fp8_row(r, row, to);
        else if (r->form == PP_FORM_FP4)
            fp4_row(r, row, to);
        else if (r->form == PP_FORM_NVFP4)
            nvfp4_row(r, row, to);
        else if (r->form == PP_FORM_BNB)
            bnb_row(r, row, to);
        else
            float_row(r, row, to);
        scale_row(r, row, to);
    }
    return PP_OK;
}

enum pp_code pp_rows_floats(const struct pp_rows *r, int64_t first, int64_t n, float *to, struct pp_error *err)
{
    const enum pp_code code = stored_floats(r, first, n, to, err);
    for (int64_t i = 0; i < n && r->negate_dim; i++)
        for (int64_t k = 0; k < r->n_cols && (first + i) % r->negate_dim >= r->negate_dim / 2; k++)
            to[i * r->n_cols + k] = -to[i * r->n_cols + k];
    return code;
}

void pp_rows_split_interleaved(struct pp_rows *r, struct pp_rows *odd)
{
    r->n_rows /= 2;
    r->row_step = 2;
    *odd = *r;
    odd->row_first = 1;
}

enum pp_code pp_tensor_floats(const struct pp_tensor *t, int64_t first, int64_t n, float *to, struct pp_error *err)
{
    const size_t row_bytes = pp_type_row_bytes(t->type, t->ne[0]);
    if (t->rows)
        return pp_rows_floats(t->rows, first, n, to, err);
    for (int64_t r = 0; r < n; r++)
        pp_dequantize_row(t->type, (const uint8_t *)t->data + (size_t)(first + r) * row_bytes, to + r * t->ne[0],
                          t->ne[0]);
    return PP_OK;
}

/* --- rows in a type ----------------------------------------------------------------------------------------------- */

static enum pp_code quantize_tile(const struct pp_rows *r, int64_t first, int64_t n, float *floats, uint8_t *to,
                                  struct pp_error *err)
{
    enum pp_code code = pp_rows_floats(r, first, n, floats, err);
    if (!code && !pp_row_finite(PP_TYPE_F32, floats, n * r->n_cols))
        code = pp_fail(err, PP_ERR_FORMAT, "a weight is not a number; the file is damaged");
    return code ? code : pp_quantize_weighed(&r->weighing, r->type, floats, to, first, n, r->n_cols, err);
}

enum pp_code pp_rows_read(const struct pp_rows *r, int64_t first, int64_t n, void *to, struct pp_error *err)
{
    const size_t row_bytes = pp_type_row_bytes(r->type, r->n_cols);
    if (r->as_blocks)
        return r->form == PP_FORM_FP4          ? read_mxfp4(r, first, n, to, err)
               : r->form == PP_FORM_FLOATS     ? copy_rows(r, first, n, to, err)
               : r->form == PP_FORM_TRANSPOSED ? read_transposed(r, first, n, to, err)
               : r->form == PP_FORM_MLA_V     ? copy_values(r, first, n, to, err)
                                               : read_blocks(r, first, n, to, err);
    const int64_t tile = r->form == PP_FORM_MLA_K ? rows_of_head(r) : pp_rows_tile(r); /* MLA_K: a head at a time, as
                                                                                          each
                                                                                         of its rows needs all keys */
    float *floats = pp_calloc((size_t)((n < tile ? n : tile) * r->n_cols), sizeof *floats);
    enum pp_code code = floats ? PP_OK : pp_fail_nomem(err, "weights in another form");
    for (int64_t at = 0; at < n && !code; at += tile)
        code = quantize_tile(r, first + at, n - at < tile ? n - at : tile, floats,
                             (uint8_t *)to + (size_t)at * row_bytes, err);
    pp_free(floats);
    return code;
}
