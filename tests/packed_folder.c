#include "tests/packed_folder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/engine.h"
#include "engine/quant.h"
#include "engine/safetensors.h"
#include "tests/passes.h"
#include "tests/support.h"

/* --- files ------------------------------------------------------------------------------------------------------- */

static bool is(const char *a, const char *b)
{
    return a && b && strcmp(a, b) == 0;
}

void tensor_file_add(struct tensor_file *f, const char *name, const char *dtype, int n_dims, const int64_t *shape,
                     const void *data, size_t size)
{
    int64_t own[4];
    for (int d = 0; d < n_dims; d++)
        own[d] = shape[is(name, f->turned) ? n_dims - 1 - d : d];
    if (is(name, f->leave_out))
        return;
    if (is(name, f->emptied))
        own[0] = 0, size = 0;
    pp_buf_fmt(&f->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", f->header.len ? "," : "{", name, dtype);
    for (int d = 0; d < n_dims; d++)
        pp_buf_fmt(&f->header, "%s%lld", d ? "," : "", (long long)own[d]);
    pp_buf_fmt(&f->header, "],\"data_offsets\":[%zu,%zu]}", f->data.len, f->data.len + size);
    pp_buf_add(&f->data, data, size);
    while (f->data.len % 8)
        pp_buf_char(&f->data, 0);
}

void tensor_file_write(struct tensor_file *f, const char *folder, const char *name)
{
    struct pp_buf all = {0};
    struct pp_error err;
    char path[600];
    pp_buf_char(&f->header, '}');
    while (f->header.len % 8)
        pp_buf_char(&f->header, ' ');
    for (unsigned i = 0; i < 8; i++)
        pp_buf_char(&all, (char)(uint8_t)((uint64_t)f->header.len >> (8 * i)));
    pp_buf_add(&all, f->header.data, f->header.len);
    pp_buf_add(&all, f->data.data, f->data.len);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_false(all.bad || f->header.bad || f->data.bad);
    assert_ok(pp_write_file(path, all.data, all.len, 0600, &err), err);
    pp_buf_free(&all);
    pp_buf_free(&f->header);
    pp_buf_free(&f->data);
}

/* --- a matrix ---------------------------------------------------------------------------------------------------- */

/* A matrix that is being quantised: w is replaced by the values that the quantised form decodes to. */
struct matrix {
    struct tensor_file *f;
    const char *module;         /* "model.layers.0.mlp.up_proj" */
    const struct packed_form *form;
    const struct packed_options *opt;
    int64_t n, k;
    float *w;                   /* [n, k] */
    int64_t stack;              /* the number of matrices that n rows make up; 0: a single one */
};

struct packed_form {
    const char *name, *config;  /* config: text to add to config.json */
    void (*pack)(const struct matrix *m);
    int bits;
    int64_t group;              /* columns of a group, or rows of a block */
    int64_t block_cols;
    bool v1, symmetric, ordered, nested, embeddings;
    const char *kind;
};

static void add(const struct matrix *m, const char *end, const char *dtype, int64_t n0, int64_t n1, const void *data,
                size_t size)
{
    char name[200];
    const int64_t shape[2] = {n0, n1}, stacked[3] = {m->stack, m->stack ? n0 / m->stack : 0, n1};
    snprintf(name, sizeof name, "%s%s", m->module, end);
    if (m->stack)
        tensor_file_add(m->f, name, dtype, 3, stacked, data, size);
    else
        tensor_file_add(m->f, name, dtype, n1 < 0 ? 1 : 2, shape, data, size);
}

static void *zeros(int64_t n, size_t size)
{
    void *p = calloc((size_t)n, size);
    assert_non_null(p);
    return p;
}

static uint16_t scale_bits(const struct matrix *m, float scale)
{
    return pp_f32_to_f16(m->opt->not_a_number ? INFINITY : scale);
}

/* --- FP8 --------------------------------------------------------------------------------------------------------- */

/* The value of an E4M3 byte: sign, four exponent bits with a bias of 7, three mantissa bits. */
static float e4m3(int v)
{
    static float magnitude[128];
    for (int m = 1; magnitude[127] == 0 && m < 128; m++)
        magnitude[m] = m > 7 ? ldexpf(1 + (float)(m & 7) / 8, m / 8 - 7) : ldexpf((float)m, -9);
    return v & 0x80 ? -magnitude[v & 127] : magnitude[v & 127];
}

static uint8_t nearest_e4m3(float x)
{
    static float values[127]; /* ascending */
    int low = 0, high = 126;
    for (int v = 0; values[126] == 0 && v < 127; v++)
        values[v] = e4m3(v);
    while (high - low > 1)
        *(values[(low + high) / 2] <= fabsf(x) ? &low : &high) = (low + high) / 2;
    return (uint8_t)((values[high] - fabsf(x) < fabsf(x) - values[low] ? high : low) | (x < 0 ? 128 : 0));
}

/* Blocks are `group` rows x block_cols columns; 0: as many as the matrix has. */
static void pack_fp8(const struct matrix *m)
{
    const int64_t rows = m->form->group ? m->form->group : m->n;
    const int64_t cols = m->form->block_cols ? m->form->block_cols : m->k;
    const int64_t across = (m->k + cols - 1) / cols, down = (m->n + rows - 1) / rows;
    uint8_t *q = zeros(m->n * m->k, 1);
    float *scales = zeros(across * down, sizeof *scales);
    for (int64_t r = 0; r < m->n; r++)
        for (int64_t c = 0; c < m->k; c++)
            scales[r / rows * across + c / cols] = fmaxf(scales[r / rows * across + c / cols],
                                                         fabsf(m->w[r * m->k + c]) / 448);
    for (int64_t r = 0; r < m->n; r++)
        for (int64_t c = 0; c < m->k; c++) {
            const float scale = scales[r / rows * across + c / cols];
            q[r * m->k + c] = nearest_e4m3(m->w[r * m->k + c] / scale);
            m->w[r * m->k + c] = e4m3(q[r * m->k + c]) * scale;
        }
    if (m->opt->not_a_number)
        scales[0] = INFINITY;
    if (!is(m->form->kind, "scale"))
        add(m, ".weight", "F8_E4M3", m->n, m->k, q, (size_t)(m->n * m->k));
    if (is(m->form->kind, "scalar")) {
        add(m, ".weight_scale", "F32", 1, -1, scales, sizeof *scales);
        add(m, ".input_scale", "F32", 1, -1, scales, sizeof *scales);
    } else if (is(m->form->kind, "rows")) {
        uint16_t *halves = zeros(m->n, sizeof *halves);
        for (int64_t r = 0; r < m->n; r++) {
            halves[r] = pp_f32_to_bf16(scales[r]);
            for (int64_t c = 0; c < m->k; c++)
                m->w[r * m->k + c] = e4m3(q[r * m->k + c]) * pp_bf16_to_f32(halves[r]);
        }
        add(m, ".weight_scale", "BF16", m->n, 1, halves, 2 * (size_t)m->n);
        free(halves);
    } else if (is(m->form->kind, "modelopt")) { /* with dimensions of size 1 in between */
        char name[200];
        snprintf(name, sizeof name, "%s.weight_scale", m->module);
        tensor_file_add(m->f, name, "F32", 4, (const int64_t[]){down, 1, across, 1}, scales,
                        (size_t)(across * down) * sizeof *scales);
    } else if (is(m->form->kind, "scale")) { /* DeepSeek V4's: powers of two */
        uint8_t *powers = zeros(across * down, 1);
        for (int64_t i = 0; i < across * down; i++) {
            const int e = scales[i] > 0 && isfinite(scales[i]) ? (int)ceilf(log2f(scales[i])) : 0;
            powers[i] = (uint8_t)(127 + e);
        }
        if (m->opt->not_a_number)
            powers[0] = 255;
        for (int64_t i = 0; i < m->n * m->k; i++) {
            const int64_t at = i / m->k / rows * across + i % m->k / cols;
            const float scale = ldexpf(1, powers[at] - 127);
            q[i] = nearest_e4m3(m->w[i] / scale);
            m->w[i] = e4m3(q[i]) * scale;
        }
        add(m, ".weight", "F8_E4M3", m->n, m->k, q, (size_t)(m->n * m->k));
        add(m, ".scale", "F8_E8M0", down, across, powers, (size_t)(across * down));
        free(powers);
    } else {
        add(m, is(m->form->kind, "groups") ? ".weight_scale" : ".weight_scale_inv", "F32", down, across, scales,
            (size_t)(across * down) * sizeof *scales);
    }
    free(scales);
    free(q);
}

/* --- bitsandbytes ------------------------------------------------------------------------------------------------ */

static const float nf4[16] = {-1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
                              -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
                              0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
                              0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f};
static const float fp4[16] = {0, 0.0052083333f, 0.66666667f, 1, 0.33333333f, 0.5f, 0.16666667f, 0.25f,
                              -0.0f, -0.0052083333f, -0.66666667f, -1, -0.33333333f, -0.5f, -0.16666667f, -0.25f};

/* Double quantisation (bitsandbytes): scales become codes of a table, with scales of their own and a common offset. */
static void pack_nested(const struct matrix *m, float *absmax, int64_t n, float *offset)
{
    enum { BLOCK = 256 };
    float levels[256], *scales = zeros((n - 1) / BLOCK + 1, sizeof *scales);
    uint8_t *codes = zeros(n, 1);
    for (int i = 0; i < 256; i++)
        levels[i] = (float)(i - 128) / 127;
    *offset = 0.01171875f;
    for (int64_t i = 0; i < n; i++)
        scales[i / BLOCK] = fmaxf(scales[i / BLOCK], fabsf(absmax[i] - *offset));
    for (int64_t i = 0; i < n; i++) {
        codes[i] = (uint8_t)(128 + lrintf((absmax[i] - *offset) / scales[i / BLOCK] * 127));
        absmax[i] = levels[codes[i]] * scales[i / BLOCK] + *offset;
    }
    add(m, ".weight.absmax", "U8", n, -1, codes, (size_t)n);
    add(m, ".weight.nested_absmax", "F32", (n - 1) / BLOCK + 1, -1, scales,
        (size_t)((n - 1) / BLOCK + 1) * sizeof *scales);
    add(m, ".weight.nested_quant_map", "F32", 256, -1, levels, sizeof levels);
    free(scales);
    free(codes);
}

static void pack_bnb(const struct matrix *m)
{
    const float *table = is(m->form->kind, "nf4") ? nf4 : fp4;
    const int64_t all = m->n * m->k, n = (all + m->form->group - 1) / m->form->group;
    uint8_t *q = zeros((all + 1) / 2, 1);
    float *absmax = zeros(n, sizeof *absmax), offset = 0;
    char state[300];
    for (int64_t i = 0; i < all; i++)
        absmax[i / m->form->group] = fmaxf(absmax[i / m->form->group], fabsf(m->w[i]));
    if (m->form->nested)
        pack_nested(m, absmax, n, &offset);
    else
        add(m, ".weight.absmax", "F32", n, -1, absmax, (size_t)n * sizeof *absmax);
    for (int64_t i = 0; i < all; i++) {
        const float scale = absmax[i / m->form->group], x = m->w[i] / scale;
        int best = 0;
        for (int v = 0; v < 16; v++)
            if (fabsf(table[v] - x) < fabsf(table[best] - x))
                best = v;
        q[i / 2] = (uint8_t)(q[i / 2] | best << (i % 2 ? 0 : 4));
        m->w[i] = table[best] * scale;
    }
    int len = snprintf(state, sizeof state, "{\"quant_type\": \"%s\", \"blocksize\": %lld, \"dtype\": \"bfloat16\", "
                       "\"shape\": [%lld, %lld]", m->form->kind, (long long)m->form->group, (long long)m->n,
                       (long long)m->k);
    if (m->form->nested)
        len += snprintf(state + len, sizeof state - (size_t)len,
                        ", \"nested_blocksize\": 256, \"nested_dtype\": \"float32\", \"nested_offset\": %.17g",
                        (double)offset);
    state[len++] = '}';
    char end[60];
    snprintf(end, sizeof end, ".weight.quant_state.bitsandbytes__%s", m->form->kind);
    add(m, end, "U8", len, -1, state, (size_t)len);
    add(m, ".weight.quant_map", "F32", 16, -1, table, 16 * sizeof *table);
    add(m, ".weight", "U8", (all + 1) / 2, 1, q, (size_t)(all + 1) / 2);
    free(absmax);
    free(q);
}

/* --- integers ---------------------------------------------------------------------------------------------------- */

/* A matrix in groups of columns; the value of group g of row r is at index [r * n_groups + g]. */
struct groups {
    int64_t n_groups;
    int32_t *of;                /* [k] */
    uint8_t *q;                 /* [n, k] */
    float *scale, *low;         /* of F16; low: the offset */
    int *zero;
};

/* The group of each column: consecutive, or for act-order in an arbitrary permutation. */
static int32_t *column_groups(const struct matrix *m, int64_t n_groups)
{
    int32_t *of = zeros(m->k, sizeof *of);
    for (int64_t c = 0; c < m->k; c++)
        of[c] = (int32_t)((m->form->ordered ? c * 37 % m->k : c) / m->form->group % n_groups);
    return of;
}

static struct groups quantized(const struct matrix *m, bool with_zero)
{
    const int64_t n_groups = m->k / m->form->group;
    const int top = (1 << m->form->bits) - 1;
    struct groups g = {.n_groups = n_groups, .of = column_groups(m, n_groups), .q = zeros(m->n * m->k, 1),
                       .scale = zeros(m->n * n_groups, sizeof *g.scale), .low = zeros(m->n * n_groups, sizeof *g.low),
                       .zero = zeros(m->n * n_groups, sizeof *g.zero)};
    for (int64_t at = 0; at < m->n * n_groups; at++) {
        const int64_t r = at / n_groups, begin = m->form->ordered ? 0 : at % n_groups * m->form->group;
        const int64_t end = m->form->ordered ? m->k : begin + m->form->group;
        float low = 0, high = 0;
        for (int64_t c = begin; c < end; c++)
            if (g.of[c] == at % n_groups) {
                low = fminf(low, m->w[r * m->k + c]);
                high = fmaxf(high, m->w[r * m->k + c]);
            }
        const float scale = m->form->symmetric ? 2 * fmaxf(-low, high) / (float)top : (high - low) / (float)top;
        g.scale[at] = pp_f16_to_f32(pp_f32_to_f16(scale));
        g.low[at] = pp_f16_to_f32(pp_f32_to_f16(low));
        g.zero[at] = m->form->symmetric ? (top + 1) / 2 : (int)lrintf(-low / g.scale[at]);
        g.zero[at] = g.zero[at] < 1 ? 1 : g.zero[at] > top ? top : g.zero[at];
        for (int64_t c = begin; c < end; c++) {
            float *w = &m->w[r * m->k + c];
            if (g.of[c] != at % n_groups)
                continue;
            const float q = with_zero ? rintf(*w / g.scale[at]) + (float)g.zero[at]
                                      : rintf((*w - g.low[at]) / g.scale[at]);
            g.q[r * m->k + c] = (uint8_t)(q < 0 ? 0 : q > (float)top ? (float)top : q);
            *w = with_zero ? (float)((int)g.q[r * m->k + c] - g.zero[at]) * g.scale[at]
                           : (float)g.q[r * m->k + c] * g.scale[at] + g.low[at];
        }
    }
    return g;
}

static void free_groups(struct groups *g)
{
    free(g->of);
    free(g->q);
    free(g->scale);
    free(g->low);
    free(g->zero);
}

/* [n_groups, n], as GPTQ and AWQ have them. */
static void add_scales(const struct matrix *m, const struct groups *g)
{
    uint16_t *halves = zeros(m->n * g->n_groups, sizeof *halves);
    for (int64_t at = 0; at < m->n * g->n_groups; at++)
        halves[at % g->n_groups * m->n + at / g->n_groups] = scale_bits(m, g->scale[at]);
    add(m, ".scales", "F16", g->n_groups, m->n, halves, 2 * (size_t)(m->n * g->n_groups));
    free(halves);
}

/* Stores integer i in a stream of 32-bit words that lie `step` apart, lowest bits first. */
static void put_in_words(uint32_t *words, int64_t step, int64_t i, int bits, unsigned v)
{
    for (int64_t b = 0; b < bits; b++)
        words[(i * bits + b) / 32 * step] |= (v >> b & 1u) << (i * bits + b) % 32;
}

static void pack_gptq(const struct matrix *m)
{
    const int bits = m->form->bits;
    const int64_t q_words = m->k * bits / 32, z_words = m->n * bits / 32;
    struct groups g = quantized(m, true);
    uint32_t *q = zeros(q_words * m->n, sizeof *q), *z = zeros(g.n_groups * z_words, sizeof *z);
    for (int64_t r = 0; r < m->n; r++) {
        for (int64_t c = 0; c < m->k; c++)
            put_in_words(q + r, m->n, c, bits, g.q[r * m->k + c]);
        for (int64_t i = 0; i < g.n_groups; i++)
            put_in_words(z + i * z_words, 1, r, bits, (unsigned)(g.zero[r * g.n_groups + i] - m->form->v1));
    }
    if (m->opt->bad_group)
        g.of[m->k / 2] = (int32_t)g.n_groups;
    add(m, ".qweight", "I32", q_words, m->n, q, (size_t)(q_words * m->n) * 4);
    add(m, ".qzeros", "I32", g.n_groups, z_words, z, (size_t)(g.n_groups * z_words) * 4);
    add_scales(m, &g);
    add(m, ".g_idx", "I32", m->k, -1, g.of, (size_t)m->k * 4);
    free(q);
    free(z);
    free_groups(&g);
}

static void pack_awq(const struct matrix *m)
{
    static const int order[8] = {0, 2, 4, 6, 1, 3, 5, 7}; /* the column of each nibble */
    struct groups g = quantized(m, true);
    uint32_t *q = zeros(m->k * m->n / 8, sizeof *q), *z = zeros(g.n_groups * m->n / 8, sizeof *z);
    for (int64_t word = 0; word < m->n / 8; word++)
        for (int i = 0; i < 8; i++) {
            const int64_t r = 8 * word + order[i];
            for (int64_t c = 0; c < m->k; c++)
                q[c * (m->n / 8) + word] |= (uint32_t)g.q[r * m->k + c] << 4 * i;
            for (int64_t k = 0; k < g.n_groups; k++)
                z[k * (m->n / 8) + word] |= (uint32_t)g.zero[r * g.n_groups + k] << 4 * i;
        }
    add(m, ".qweight", "I32", m->k, m->n / 8, q, (size_t)(m->k * m->n / 8) * 4);
    add(m, ".qzeros", "I32", g.n_groups, m->n / 8, z, (size_t)(g.n_groups * m->n / 8) * 4);
    add_scales(m, &g);
    free(q);
    free(z);
    free_groups(&g);
}

/* AWQ packed along rows. Each row has an even number of words of zero points (eight to a word), and scales for all. */
static void pack_awq_along(const struct matrix *m)
{
    struct groups g = quantized(m, true);
    const int64_t words = ((g.n_groups + 7) / 8 + 1) / 2 * 2, n_scales = 8 * words;
    uint32_t *q = zeros(m->k * m->n / 8, sizeof *q), *z = zeros(m->n * words, sizeof *z);
    uint16_t *scales = zeros(m->n * n_scales, sizeof *scales);
    for (int64_t r = 0; r < m->n; r++) {
        for (int64_t c = 0; c < m->k; c++)
            put_in_words(q + r * m->k / 8, 1, c, 4, g.q[r * m->k + c]);
        for (int64_t i = 0; i < g.n_groups; i++) {
            put_in_words(z + r * words, 1, i, 4, (unsigned)g.zero[r * g.n_groups + i]);
            scales[r * n_scales + i] = scale_bits(m, g.scale[r * g.n_groups + i]);
        }
    }
    add(m, ".qweight", "I32", m->n, m->k / 8, q, (size_t)(m->k * m->n / 8) * 4);
    add(m, ".qzeros", "I32", m->n, words, z, (size_t)(m->n * words) * 4);
    add(m, ".scales", "F16", m->n, n_scales, scales, 2 * (size_t)(m->n * n_scales));
    free(q);
    free(z);
    free(scales);
    free_groups(&g);
}

/* --- compressed-tensors ------------------------------------------------------------------------------------------- */

static void add_row_scales(const struct matrix *m, const struct groups *g)
{
    uint16_t *halves = zeros(m->n * g->n_groups, sizeof *halves);
    for (int64_t i = 0; i < m->n * g->n_groups; i++)
        halves[i] = scale_bits(m, g->scale[i]);
    add(m, ".weight_scale", "F16", m->n, g->n_groups, halves, 2 * (size_t)(m->n * g->n_groups));
    free(halves);
}

/* compressed-tensors: a row's integers are packed along the row; zero points, where asymmetric, down the columns. */
static void pack_compressed(const struct matrix *m)
{
    const int bits = m->form->bits, per = 32 / bits;
    struct groups g = quantized(m, true);
    const int64_t words = (m->k + per - 1) / per, down = (m->n + per - 1) / per, shape[2] = {m->n, m->k};
    uint32_t *q = zeros(m->n * words, sizeof *q), *z = zeros(down * g.n_groups, sizeof *z);
    for (int64_t r = 0; r < m->n; r++) {
        for (int64_t c = 0; c < m->k; c++)
            put_in_words(q + r * words, 1, c, bits, g.q[r * m->k + c]);
        for (int64_t i = 0; i < g.n_groups; i++)
            put_in_words(z + i, g.n_groups, r, bits, (unsigned)g.zero[r * g.n_groups + i]);
    }
    if (m->opt->bad_group)
        g.of[m->k / 2] = (int32_t)g.n_groups;
    add(m, ".weight_packed", "I32", m->n, words, q, (size_t)(m->n * words) * 4);
    add(m, ".weight_shape", "I64", 2, -1, shape, sizeof shape);
    add_row_scales(m, &g);
    if (!m->form->symmetric)
        add(m, ".weight_zero_point", "I32", down, g.n_groups, z, (size_t)(down * g.n_groups) * 4);
    if (m->form->ordered)
        add(m, ".weight_g_idx", "I32", m->k, -1, g.of, (size_t)m->k * 4);
    free(q);
    free(z);
    free_groups(&g);
}

/* One signed byte per weight, with a scale per row or per group, or (kind "alone") a single scale for the matrix, which
 * is that of row 0. */
static void pack_bytes(const struct matrix *m)
{
    struct packed_form own = *m->form;
    own.group = own.group ? own.group : m->k;
    struct matrix mine = *m;
    mine.form = &own;
    struct groups g = quantized(&mine, true);
    uint8_t *q = zeros(m->n * m->k, 1), *z = zeros(m->n * g.n_groups, 1);
    for (int64_t i = 0; i < m->n * m->k; i++)
        q[i] = (uint8_t)(g.q[i] - 128);
    for (int64_t i = 0; i < m->n * g.n_groups; i++)
        z[i] = (uint8_t)(g.zero[i] - 128);
    add(m, ".weight", "I8", m->n, m->k, q, (size_t)(m->n * m->k));
    if (is(m->form->kind, "alone")) {
        const uint16_t scale = scale_bits(m, g.scale[0]);
        for (int64_t i = 0; i < m->n * m->k; i++)
            m->w[i] = (float)((int)g.q[i] - 128) * g.scale[0];
        add(m, ".weight_scale", "F16", 1, -1, &scale, sizeof scale);
    } else {
        add_row_scales(m, &g);
    }
    if (!m->form->symmetric)
        add(m, ".weight_zero_point", "I8", m->n, g.n_groups, z, (size_t)(m->n * g.n_groups));
    free(q);
    free(z);
    free_groups(&g);
}

/* --- small floats with a scale of one byte for a few of them ------------------------------------------------------ */

static float e2m1(int v)
{
    static const float magnitude[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    return v & 8 ? -magnitude[v & 7] : magnitude[v & 7];
}

static int nearest_e2m1(float x)
{
    int best = 0;
    for (int v = 0; v < 16; v++)
        if (fabsf(e2m1(v) - x) < fabsf(e2m1(best) - x))
            best = v;
    return best;
}

/* Encodes the scale of a group as a byte; *scale: the value of that byte. */
static uint8_t group_scale(const struct matrix *m, const float *w, bool power, float whole, float *scale)
{
    const float top = m->form->bits == 8 ? 448 : 6;
    float most = 0;
    for (int64_t c = 0; c < m->form->group; c++)
        most = fmaxf(most, fabsf(w[c]));
    if (power) {
        const int e = most > 0 ? (int)ceilf(log2f(most / top)) + 127 : 0;
        *scale = ldexpf(1, e - 127);
        return (uint8_t)(m->opt->not_a_number ? 255 : e);
    }
    const uint8_t byte = nearest_e4m3(most / top / whole);
    *scale = e4m3(byte) * whole;
    return m->opt->not_a_number ? 127 : byte;
}

/* Adds blocks and scales by the names and shapes of the published gpt-oss. */
static void add_blocks(const struct matrix *m, const uint8_t *q, const uint8_t *scales)
{
    const int64_t shape[4] = {m->stack, m->n / m->stack, m->k / 32, 16};
    char name[200];
    snprintf(name, sizeof name, "%s_blocks", m->module);
    tensor_file_add(m->f, name, "U8", 4, shape, q, (size_t)(m->n * m->k / 2));
    snprintf(name, sizeof name, "%s_scales", m->module);
    tensor_file_add(m->f, name, "U8", 3, shape, scales, (size_t)(m->n * m->k / 32));
}

/* kind: whose names and kinds of numbers; of groups of 16 the scales are E4M3, else powers of two. */
static void pack_small(const struct matrix *m)
{
    const bool power = m->form->group != 16, mlx = is(m->form->kind, "mlx"), opt = is(m->form->kind, "modelopt");
    const int64_t n_groups = m->k / m->form->group, bits = m->form->bits;
    const float whole = power || mlx ? 1 : 0x1p-7f;
    uint8_t *q = zeros(m->n * m->k * bits / 8, 1), *scales = zeros(m->n * n_groups, 1);
    for (int64_t at = 0; at < m->n * n_groups; at++) {
        float *w = m->w + at * m->form->group, scale;
        scales[at] = group_scale(m, w, power, whole, &scale);
        for (int64_t c = 0; c < m->form->group; c++) {
            const int64_t i = at * m->form->group + c;
            const float x = scale != 0.0f ? w[c] / scale : 0;
            const int v = bits == 8 ? nearest_e4m3(x) : nearest_e2m1(x);
            q[i * bits / 8] = (uint8_t)(q[i * bits / 8] | v << (bits == 4 && i % 2 ? 4 : 0));
            w[c] = (bits == 8 ? e4m3(v) : e2m1(v)) * scale;
        }
    }
    const size_t size = (size_t)(m->n * m->k * bits / 8);
    const float divisor = 1 / whole;
    if (is(m->form->kind, "gpt-oss"))
        add_blocks(m, q, scales);
    else if (mlx)
        add(m, ".weight", "U32", m->n, m->k * bits / 32, q, size);
    else if (is(m->form->kind, "scale"))
        add(m, ".weight", "I8", m->n, m->k * bits / 8, q, size);
    else
        add(m, opt ? ".weight" : ".weight_packed", bits == 8 ? "F8_E4M3" : "U8", m->n, m->k * bits / 8, q, size);
    if (!is(m->form->kind, "gpt-oss"))
        add(m, mlx ? ".scales" : is(m->form->kind, "scale") ? ".scale" : ".weight_scale",
            is(m->form->kind, "scale") ? "F8_E8M0" : power || mlx ? "U8" : "F8_E4M3", m->n, n_groups, scales,
            (size_t)(m->n * n_groups));
    if (!power && !mlx)
        add(m, opt ? ".weight_scale_2" : ".weight_global_scale", "F32", 1, -1, opt ? &whole : &divisor, sizeof whole);
    free(q);
    free(scales);
}

/* --- MLX ---------------------------------------------------------------------------------------------------------- */

static void pack_mlx(const struct matrix *m)
{
    struct packed_form own = *m->form;
    if (is(m->form->kind, "mixed") && strstr(m->module, "down_proj")) { /* which its config.json says have 8 bits */
        own.bits = 8;
        own.group = 32;
    }
    struct matrix mine = *m;
    mine.form = &own;
    struct groups g = quantized(&mine, false);
    const int64_t row_bits = m->k * own.bits;
    uint8_t *q = zeros(m->n * row_bits / 8, 1);
    uint16_t *scales = zeros(m->n * g.n_groups, 2), *biases = zeros(m->n * g.n_groups, 2);
    for (int64_t r = 0; r < m->n; r++)
        for (int64_t i = 0; i < row_bits; i++) /* one bit at a time, each value's lowest first */
            if (g.q[r * m->k + i / own.bits] >> i % own.bits & 1)
                q[(r * row_bits + i) / 8] = (uint8_t)(q[(r * row_bits + i) / 8] | 1 << (r * row_bits + i) % 8);
    for (int64_t i = 0; i < m->n * g.n_groups; i++) {
        scales[i] = scale_bits(m, g.scale[i]);
        biases[i] = pp_f32_to_f16(g.low[i]);
    }
    add(m, ".weight", "U32", m->n, row_bits / 32, q, (size_t)(m->n * row_bits / 8));
    add(m, ".scales", "F16", m->n, g.n_groups, scales, 2 * (size_t)(m->n * g.n_groups));
    add(m, ".biases", "F16", m->n, g.n_groups, biases, 2 * (size_t)(m->n * g.n_groups));
    free(q);
    free(scales);
    free(biases);
    free_groups(&g);
}

/* --- all forms --------------------------------------------------------------------------------------------------- */

#define GPTQ(b, g, more) \
    "\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":" #b ",\"group_size\":" #g more "}"
#define MLX(b, g, more) "\"quantization\":{\"group_size\":" #g ",\"bits\":" #b more "}"
#define COMPRESSED(format, bits, type) \
    "\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"" format "\",\"config_groups\":{" \
    "\"group_0\":{\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":" #bits ",\"type\":\"" type "\"}}}," \
    "\"transform_config\":{},\"ignore\":[\"lm_head\"]}"
#define MODE(b, g, name) "\"quantization\":{\"group_size\":" #g ",\"bits\":" #b ",\"mode\":\"" name "\"}"
#define BNB(type) "\"quantization_config\":{\"quant_method\":\"bitsandbytes\",\"load_in_4bit\":true," \
                  "\"load_in_8bit\":false,\"bnb_4bit_quant_type\":\"" type "\"}"

#define MODELOPT(algorithm)                                                                                            \
    "\"quantization_config\":{\"quant_method\":\"modelopt\",\"quant_algo\":\"" algorithm "\"}"

/* --- BitNet ------------------------------------------------------------------------------------------------------- */

/* Three values, four rows a quarter of the matrix apart in a byte. kind "divided": the scale is what they are divided
 * by. */
static void pack_ternary(const struct matrix *m)
{
    const int64_t quarter = m->n / 4;
    const bool divided = is(m->form->kind, "divided");
    uint8_t *bytes = zeros(quarter * m->k, 1);
    double sum = 0;
    assert_true(m->n % 4 == 0);
    for (int64_t i = 0; i < m->n * m->k; i++)
        sum += (double)fabsf(m->w[i]) / (double)(m->n * m->k);
    uint16_t half = pp_f32_to_bf16((float)(divided ? 1 / sum : sum));
    const float stored = pp_bf16_to_f32(half), scale = divided ? 1 / stored : stored;
    for (int64_t i = 0; i < m->n * m->k; i++) {
        const int v = (int)fmaxf(-1, fminf(1, rintf(m->w[i] / scale)));
        bytes[i % (quarter * m->k)] |= (uint8_t)((v + 1) << i / (quarter * m->k) * 2);
        m->w[i] = (float)v * scale;
    }
    half = m->opt->not_a_number ? pp_f32_to_bf16(NAN) : half;
    add(m, ".weight", "U8", quarter, m->k, bytes, (size_t)(quarter * m->k));
    add(m, ".weight_scale", "BF16", 1, -1, &half, sizeof half);
    free(bytes);
}

static const struct packed_form forms[] = {
    {"fp8", "\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}", pack_fp8,
     .group = 128, .block_cols = 128, .kind = "blocks"},
    {"fp8-uneven", "\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[48,96]}", pack_fp8,
     .group = 48, .block_cols = 96, .kind = "blocks"},
    {"fp8-tensor", "\"quantization_config\":{\"quant_method\":\"fp8\",\"activation_scheme\":\"static\"}", pack_fp8,
     .kind = "scalar"},
    {"fp8-scale", "\"quantization_config\":{\"quant_method\":\"fp8\",\"scale_fmt\":\"ue8m0\"}", pack_fp8, .group = 128,
     .block_cols = 128, .kind = "scale"},
    {"fp8-pairs", "\"quantization_config\":{\"quant_method\":\"fp8\",\"scale_fmt\":\"ue8m0\"}", pack_small, .bits = 4,
     .group = 32, .kind = "scale"},
    {"fp8-rows", "\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"float-quantized\"}",
     pack_fp8, .group = 1, .kind = "rows"},
    {"nf4", BNB("nf4"), pack_bnb, .group = 64, .kind = "nf4"},
    {"nf4-double", BNB("nf4"), pack_bnb, .group = 64, .nested = true, .kind = "nf4"},
    {"fp4", BNB("fp4"), pack_bnb, .group = 128, .kind = "fp4"},
    {"gptq", GPTQ(4, 128, ",\"sym\":true,\"desc_act\":false"), pack_gptq, .bits = 4, .group = 128, .v1 = true,
     .symmetric = true},
    {"gptq-v2", GPTQ(4, 64, ",\"sym\":false,\"checkpoint_format\":\"gptq_v2\""), pack_gptq, .bits = 4, .group = 64},
    {"gptq-order", GPTQ(4, 32, ",\"desc_act\":true,\"checkpoint_format\":\"gptq\""), pack_gptq, .bits = 4, .group = 32,
     .v1 = true, .ordered = true},
    {"gptq-8", GPTQ(8, 128, ""), pack_gptq, .bits = 8, .group = 128, .v1 = true, .symmetric = true},
    {"gptq-2", GPTQ(2, 32, ""), pack_gptq, .bits = 2, .group = 32, .v1 = true},
    {"awq", "\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":64,\"version\":\"gemm\","
     "\"zero_point\":true}", pack_awq, .bits = 4, .group = 64},
    {"mlx-2", MLX(2, 32, ""), pack_mlx, .bits = 2, .group = 32, .embeddings = true},
    {"mlx-3", MLX(3, 64, ""), pack_mlx, .bits = 3, .group = 64},
    {"mlx-4", MLX(4, 64, ",\"mode\":\"affine\""), pack_mlx, .bits = 4, .group = 64, .embeddings = true},
    {"mlx-5", MLX(5, 32, ""), pack_mlx, .bits = 5, .group = 32},
    {"mlx-6", MLX(6, 128, ""), pack_mlx, .bits = 6, .group = 128},
    {"mlx-8", MLX(8, 128, ""), pack_mlx, .bits = 8, .group = 128, .embeddings = true},
    {"mlx-mixed", MLX(4, 128, ",\"lm_head\":false,\"model.layers.0.mlp.down_proj\":{\"bits\":8,\"group_size\":32},"
     "\"model.layers.1.mlp.down_proj\":{\"bits\":8,\"group_size\":32}"), pack_mlx, .bits = 4, .group = 128,
     .kind = "mixed"},
    {"gptq-3", GPTQ(3, 64, ""), pack_gptq, .bits = 3, .group = 64, .v1 = true},
    {"awq-gemv", "\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":64,\"version\":\"gemv\","
     "\"zero_point\":true}", pack_awq_along, .bits = 4, .group = 64},
    {"ct-4", COMPRESSED("pack-quantized", 4, "int"), pack_compressed, .bits = 4, .group = 128, .symmetric = true},
    {"ct-4-zero", COMPRESSED("pack-quantized", 4, "int"), pack_compressed, .bits = 4, .group = 32},
    {"ct-4-order", COMPRESSED("pack-quantized", 4, "int"), pack_compressed, .bits = 4, .group = 32, .ordered = true,
     .symmetric = true},
    {"ct-8", COMPRESSED("pack-quantized", 8, "int"), pack_compressed, .bits = 8, .group = 64, .symmetric = true},
    {"ct-2", COMPRESSED("pack-quantized", 2, "int"), pack_compressed, .bits = 2, .group = 32},
    {"ct-int8", COMPRESSED("int-quantized", 8, "int"), pack_bytes, .bits = 8, .symmetric = true},
    {"ct-int8-alone", COMPRESSED("naive-quantized", 8, "int"), pack_bytes, .bits = 8, .symmetric = true,
     .kind = "alone"},
    {"ct-int8-zero", COMPRESSED("int-quantized", 8, "int"), pack_bytes, .bits = 8, .group = 64},
    {"ct-nvfp4", COMPRESSED("nvfp4-pack-quantized", 4, "float"), pack_small, .bits = 4, .group = 16, .kind = "packed"},
    {"ct-mxfp4", COMPRESSED("mxfp4-pack-quantized", 4, "float"), pack_small, .bits = 4, .group = 32, .kind = "packed"},
    {"ct-fp8-groups", COMPRESSED("float-quantized", 8, "float"), pack_fp8, .group = 1, .block_cols = 64,
     .kind = "groups"},
    {"modelopt", MODELOPT("NVFP4"), pack_small, .bits = 4, .group = 16, .kind = "modelopt"},
    {"modelopt-fp8", MODELOPT("FP8"), pack_fp8, .kind = "scalar"},
    {"modelopt-rows", MODELOPT("FP8_PER_CHANNEL_PER_TOKEN"), pack_fp8, .group = 1, .kind = "rows"},
    {"modelopt-blocks", MODELOPT("FP8_PB_WO"), pack_fp8, .group = 128, .block_cols = 128, .kind = "modelopt"},
    {"modelopt-mxfp8", MODELOPT("MXFP8"), pack_small, .bits = 8, .group = 32, .kind = "modelopt"},
    {"mlx-mxfp4", MODE(4, 32, "mxfp4"), pack_small, .bits = 4, .group = 32, .kind = "mlx", .embeddings = true},
    {"mlx-mxfp8", MODE(8, 32, "mxfp8"), pack_small, .bits = 8, .group = 32, .kind = "mlx", .embeddings = true},
    {"mlx-nvfp4", MODE(4, 16, "nvfp4"), pack_small, .bits = 4, .group = 16, .kind = "mlx"},
    {"awq-32", "\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":32,\"version\":\"gemm\","
     "\"zero_point\":true}", pack_awq, .bits = 4, .group = 32},
    {"bitnet", "\"quantization_config\":{\"quant_method\":\"bitnet\",\"linear_class\":\"autobitlinear\","
     "\"quantization_mode\":\"offline\"}", pack_ternary, .bits = 2, .kind = "multiplied"},
    {"bitnet-divided", "\"quantization_config\":{\"quant_method\":\"bitnet\"}", pack_ternary, .bits = 2,
     .kind = "divided"},
};

/* A form that exists only for stacks of experts. */
static const struct packed_form gpt_oss_form = {
    "gpt-oss", "\"quantization_config\":{\"quant_method\":\"mxfp4\",\"modules_to_not_convert\":[\"lm_head\"]}",
    pack_small, .bits = 4, .group = 32, .kind = "gpt-oss"};

const struct packed_form *packed_form_at(size_t i)
{
    return i < sizeof forms / sizeof *forms ? &forms[i] : NULL;
}

const struct packed_form *packed_form(const char *name)
{
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (is(forms[i].name, name))
            return &forms[i];
    if (is(gpt_oss_form.name, name))
        return &gpt_oss_form;
    fail_msg("no form %s", name);
    return NULL;
}

const char *packed_form_name(const struct packed_form *f)
{
    return f->name;
}

/* --- folders ----------------------------------------------------------------------------------------------------- */

void packed_matrix(struct tensor_file *f, const struct packed_form *form, const struct packed_options *opt,
                   const char *module, int64_t stack, int64_t n, int64_t k, float *w)
{
    form->pack(&(struct matrix){.f = f, .module = module, .form = form, .opt = opt, .n = n, .k = k, .w = w,
                                .stack = stack});
}

void packed_config(const char *family, const struct packed_form *form, const struct packed_options *opt,
                   const char *folder)
{
    const char *more = form ? form->config : "";
    char path[600], *text;
    size_t n;
    struct pp_error err;
    struct pp_buf b = {0};
    snprintf(path, sizeof path, "architectures/%s/config.json", family);
    assert_ok(pp_read_file(testdata(path), 1 << 20, &text, &n, &err), err);
    pp_buf_fmt(&b, "{%s%s%s", more, *more ? "," : "", strchr(text, '{') + 1);
    pp_free(text);
    char *at = opt->config_from ? strstr(pp_buf_cstr(&b), opt->config_from) : NULL;
    if (opt->config_from && *more) {
        struct pp_buf changed = {0};
        if (!at)
            fail_msg("config.json does not have %s", opt->config_from);
        pp_buf_fmt(&changed, "%.*s%s%s", (int)(at - b.data), b.data, opt->config_to, at + strlen(opt->config_from));
        pp_buf_free(&b);
        b = changed;
    }
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_ok(pp_write_file(path, b.data, b.len, 0600, &err), err);
    pp_buf_free(&b);
}

static void pack_tensor(const struct pp_tensor *t, const struct packed_form *form, const struct packed_options *opt,
                        struct tensor_file *packed, struct tensor_file *floats)
{
    const int64_t n = t->ne[0] * t->ne[1], shape[2] = {t->n_dims == 2 ? t->ne[1] : t->ne[0], t->ne[0]};
    const bool wanted = t->n_dims == 2 && (form->embeddings || strstr(t->name, "layers.")) &&
                        !strstr(t->name, ".gate."); /* the router's matrix */
    char module[160];
    float *w = zeros(n, sizeof *w);
    pp_dequantize_row(t->type, t->data, w, n);
    snprintf(module, sizeof module, "%.*s", (int)(strlen(t->name) - strlen(".weight")), t->name);
    if (wanted)
        packed_matrix(packed, form, opt, module, 0, t->ne[1], t->ne[0], w);
    else
        tensor_file_add(packed, t->name, "F32", t->n_dims, shape, w, (size_t)n * sizeof *w);
    tensor_file_add(floats, t->name, "F32", t->n_dims, shape, w, (size_t)n * sizeof *w);
    free(w);
}

void packed_folder(const char *family, const struct packed_form *form, const struct packed_options *opt,
                   const char *folder, const char *floats)
{
    struct tensor_file packed = {.leave_out = opt->leave_out, .turned = opt->turned, .emptied = opt->emptied};
    struct tensor_file plain = {0};
    struct pp_safetensors *s;
    struct pp_error err;
    char path[600];
    snprintf(path, sizeof path, "architectures/%s/model.safetensors", family);
    assert_ok(pp_safetensors_open(testdata(path), &s, &err), err);
    for (size_t i = 0; i < pp_safetensors_n(s); i++)
        pack_tensor(pp_safetensors_at(s, i), form, opt, &packed, &plain);
    pp_safetensors_close(s);
    mkdir(folder, 0700);
    packed_config(family, form, opt, folder);
    tensor_file_write(&packed, folder, "model.safetensors");
    if (!floats) {
        pp_buf_free(&plain.header);
        pp_buf_free(&plain.data);
        return;
    }
    mkdir(floats, 0700);
    packed_config(family, NULL, opt, floats);
    tensor_file_write(&plain, floats, "model.safetensors");
}

/* --- answers ----------------------------------------------------------------------------------------------------- */

double difference(const float *a, const float *b, int64_t n)
{
    double d = 0, all = 0;
    for (int64_t i = 0; i < n; i++) {
        d += (double)(a[i] - b[i]) * (double)(a[i] - b[i]);
        all += (double)b[i] * (double)b[i];
    }
    return sqrt(d / all);
}

float *logits_of(const char *family, const char *path, int64_t *n)
{
    char expected[100];
    struct pp_safetensors *e;
    struct pp_model *m;
    struct pp_engine *engine;
    struct pp_seq *seq;
    struct pp_error err;
    const struct pp_engine_options opt = {.kv_type = PP_KV_F32, .n_threads = 2, .kv_memory = 256u << 20,
                                          .activations = PP_ACT_F32}; /* the same arithmetic for weights of any float
                                                                         type */
    snprintf(expected, sizeof expected, "architectures/%s/expected.safetensors", family);
    assert_ok(pp_safetensors_open(testdata(expected), &e, &err), err);
    const struct pp_tensor *ids = pp_safetensors_find(e, "ids0");
    assert_ok(pp_model_open(path, &m, &err), err);
    assert_ok(pp_engine_new(m, &opt, NULL, NULL, &engine, &err), err);
    assert_ok(pp_seq_new(engine, &seq, &err), err);
    const int64_t n_rows = ids->ne[0] < 32 ? ids->ne[0] : 32, n_vocab = pp_model_info(m)->n_vocab;
    *n = n_rows * n_vocab;
    float *all = calloc((size_t)*n, sizeof *all);
    assert_non_null(all);
    run_in_passes(engine, seq, ids->data, (int)n_rows, (int)n_rows, all);
    pp_seq_free(seq);
    pp_engine_free(engine);
    pp_model_close(m);
    pp_safetensors_close(e);
    return all;
}
