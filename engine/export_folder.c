/* export_folder.c - a model as a folder: config.json, the vocabulary's files and one model.safetensors, as transformers
 * reads it or, with affine groups of integers, as MLX does. Memory: a slice of rows; the file is written in place.
 *
 * MLX's form (mlx/backend/cpu/quantized.cpp): per group of a row w = scale * q + bias, q a stream of bits from the
 * lowest on. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/arch/arch.h"
#include "engine/base/buf.h"
#include "engine/base/cancel.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/export.h"
#include "engine/gguf.h"
#include "engine/hf.h"
#include "engine/quant.h"
#include "engine/quant_blocks.h"
#include "engine/rows.h"
#include "engine/source.h"
#include "engine/text.h"

enum { SLICE = 1 << 20, MAX_COPY = 256 << 20, NAME = 240 };

/* One tensor of ours, which becomes one of the file, or three. */
struct item {
    const struct pp_tensor *from;
    char name[NAME];            /* without ".weight" if it is quantised */
    uint32_t type;              /* of floats; quantised: of scales and biases */
    int bits;                   /* 0: floats */
    int64_t head_dim;           /* > 0: rows of q and k go from GGUF's order to Hugging Face's */
    float add;                  /* to every value */
    uint64_t at, scales_at, biases_at; /* in the data */
};

struct folder {
    const struct pp_source *s;
    const struct pp_arch *arch;
    const struct pp_convert_options *opt;
    const char *dst;
    int64_t group;              /* MLX */
    struct item *items;
    size_t n;
    uint64_t data_size, data_at;
    char *temp, *path;
    int fd;
    struct pp_error *err;
};

static enum pp_code fail_write(const struct folder *f)
{
    return pp_fail(f->err, PP_ERR_IO, "cannot write %s: %s", f->path, strerror(errno));
}

/* --- what is written --------------------------------------------------------------------------------------------- */

static int64_t n_rows_of(const struct pp_tensor *t)
{
    return t->ne[1] * t->ne[2] * t->ne[3];
}

static bool is_vector(const struct pp_tensor *t)
{
    return t->n_dims == 1;
}

/* Ours that folders have in config.json instead. */
static bool is_said_elsewhere(const struct folder *f, const struct pp_tensor *t)
{
    return pp_source_folder(f->s) && strncmp(t->name, "rope_factors_", strlen("rope_factors_")) == 0;
}

static enum pp_code name_item(const struct folder *f, struct item *item)
{
    static const char weight[] = ".weight", bias[] = ".bias";
    const char *name = item->from->name;
    const size_t n = strlen(name);
    const bool is_bias = n > strlen(bias) && strcmp(name + n - strlen(bias), bias) == 0;
    char asked[NAME + 8];
    struct pp_buf module = {0};
    snprintf(asked, sizeof asked, "%.*s%s", (int)(is_bias ? n - strlen(bias) : n), name, is_bias ? weight : "");
    const bool known = pp_arch_hf_module(f->arch, asked, &module) && !module.bad && module.len + 8 < NAME;
    if (known)
        snprintf(item->name, sizeof item->name, "%s%s", pp_buf_cstr(&module),
                 is_bias ? bias : item->bits ? "" : weight);
    pp_buf_free(&module);
    return known ? PP_OK
                 : pp_fail(f->err, PP_ERR_UNSUPPORTED,
                           "tensor %.200s of the family %s has no place in a model folder%s", name, f->arch->name,
                           strcmp(name, "rope_freqs.weight") == 0
                               ? ": config.json has only the numbers that its factors were computed from" : "");
}

static enum pp_code shape_item(const struct folder *f, struct item *item)
{
    const struct pp_hparams *hp = pp_source_hparams(f->s);
    const enum pp_hf_form form = pp_arch_form(f->arch, item->from->name);
    if (form == PP_HF_PLUS_ONE)
        item->add = -1;
    else if (form != PP_HF_SAME)
        return pp_fail(f->err, PP_ERR_UNSUPPORTED,
                       "tensor %.200s: folders of the family %s store it in another order, which pippin cannot write "
                       "yet", item->from->name, f->arch->name);
    if (!hp->rope_neox && !f->arch->hf_pairs && pp_arch_rows(f->arch, item->from->name) != PP_ROWS_SAME)
        item->head_dim = hp->head_dim;
    return PP_OK;
}

static uint32_t float_type(const struct folder *f, const struct pp_tensor *t)
{
    const uint32_t type = t->rows && t->rows->form == PP_FORM_FLOATS ? t->rows->type_there : t->type;
    if (f->opt->out_type)
        return (uint32_t)pp_type_by_name(f->opt->out_type);
    return type == PP_TYPE_F32 || type == PP_TYPE_BF16 ? type : PP_TYPE_F16;
}

static bool is_wanted_in_groups(const struct folder *f, const struct pp_tensor *t)
{
    return f->opt->bits && t->n_dims == 2 && !pp_export_keeps_f32(t) && t->ne[0] % f->group == 0;
}

static uint64_t take(struct folder *f, uint64_t size)
{
    f->data_size += size;
    return f->data_size - size;
}

/* Other readers allow no gaps, and ours wants floats at multiples of their size: so those of four bytes come first, and
 * words of integers with them. */
static void place_items(struct folder *f)
{
    for (int half = 0; half < 2; half++)
        for (size_t i = 0; i < f->n; i++) {
            struct item *item = &f->items[i];
            const uint64_t n = (uint64_t)(item->from->ne[0] * n_rows_of(item->from));
            const uint64_t size = (uint64_t)pp_type_info(item->type)->block_bytes;
            if (item->bits && !half)
                item->at = take(f, n * (uint64_t)item->bits / 8);
            if (!item->bits && half == (size == 2))
                item->at = take(f, n * size);
            if (item->bits && half) {
                item->scales_at = take(f, 2 * (n / (uint64_t)f->group));
                item->biases_at = take(f, 2 * (n / (uint64_t)f->group));
            }
        }
}

static enum pp_code list_items(struct folder *f)
{
    f->items = pp_calloc(pp_source_n_tensors(f->s), sizeof *f->items);
    if (!f->items)
        return pp_fail_nomem(f->err, "the list of tensors");
    for (size_t i = 0; i < pp_source_n_tensors(f->s); i++) {
        const struct pp_tensor *t = pp_source_tensor_at(f->s, i);
        struct item *item = &f->items[f->n];
        if (is_said_elsewhere(f, t))
            continue;
        *item = (struct item){.from = t, .type = float_type(f, t),
                              .bits = is_wanted_in_groups(f, t) ? f->opt->bits : 0};
        if (item->bits && item->type == PP_TYPE_F32)
            item->type = PP_TYPE_F16;
        enum pp_code code = name_item(f, item);
        if (!code)
            code = shape_item(f, item);
        if (code)
            return code;
        f->n++;
    }
    place_items(f);
    return PP_OK;
}

/* --- the header -------------------------------------------------------------------------------------------------- */

static void describe(struct pp_buf *b, const char *name, const char *end, const char *dtype, int n_dims,
                     const int64_t *shape, uint64_t at, uint64_t size)
{
    pp_buf_fmt(b, "%s\"%s%s\":{\"dtype\":\"%s\",\"shape\":[", b->len > 9 ? "," : "", name, end, dtype);
    for (int d = 0; d < n_dims; d++)
        pp_buf_fmt(b, "%s%lld", d ? "," : "", (long long)shape[d]);
    pp_buf_fmt(b, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at, (unsigned long long)(at + size));
}

static void describe_item(const struct folder *f, const struct item *item, struct pp_buf *b)
{
    const struct pp_tensor *t = item->from;
    const char *dtype = pp_type_info(item->type)->name;
    const uint64_t n = (uint64_t)(t->ne[0] * n_rows_of(t));
    int64_t shape[PP_MAX_DIMS];
    for (int d = 0; d < t->n_dims; d++)
        shape[d] = t->ne[t->n_dims - 1 - d];
    if (!item->bits) {
        describe(b, item->name, "", dtype, t->n_dims, shape, item->at,
                 n * (uint64_t)pp_type_info(item->type)->block_bytes);
        return;
    }
    const uint64_t n_groups = n / (uint64_t)f->group;
    shape[1] = t->ne[0] * item->bits / 32;
    describe(b, item->name, ".weight", "U32", 2, shape, item->at, n * (uint64_t)item->bits / 8);
    shape[1] = t->ne[0] / f->group;
    describe(b, item->name, ".scales", dtype, 2, shape, item->scales_at, 2 * n_groups);
    describe(b, item->name, ".biases", dtype, 2, shape, item->biases_at, 2 * n_groups);
}

static enum pp_code put(const struct folder *f, const void *data, size_t size, uint64_t at)
{
    for (size_t done = 0; done < size;) {
        const ssize_t n = pwrite(f->fd, (const char *)data + done, size - done, (off_t)(at + done));
        if (n <= 0 && errno != EINTR)
            return fail_write(f);
        done += n > 0 ? (size_t)n : 0;
    }
    return PP_OK;
}

/* The data begin at a multiple of 8, and so does every tensor. */
static enum pp_code write_header(struct folder *f)
{
    struct pp_buf b = {0};
    for (int i = 0; i < 8; i++)
        pp_buf_char(&b, 0);
    pp_buf_char(&b, '{');
    for (size_t i = 0; i < f->n; i++)
        describe_item(f, &f->items[i], &b);
    pp_buf_fmt(&b, ",\"__metadata__\":{\"format\":\"%s\"}}", f->opt->bits ? "mlx" : "pt");
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

static uint16_t to_half(uint32_t type, float v)
{
    return type == PP_TYPE_BF16 ? pp_f32_to_bf16(v) : pp_f32_to_f16(v);
}

static float from_half(uint32_t type, uint16_t h)
{
    return type == PP_TYPE_BF16 ? pp_bf16_to_f32(h) : pp_f16_to_f32(h);
}

static void put_bits(uint8_t *to, int64_t i, int bits, unsigned q)
{
    if (bits == 8)
        to[i] = (uint8_t)q;
    else
        to[i / 2] = (uint8_t)(i % 2 ? to[i / 2] | q << 4 : q);
}

/* The value that is farthest from zero is met, and zero itself: scale and bias are rounded first. */
static void group_of_floats(const struct item *item, const float *w, int64_t n, uint8_t *q, uint16_t *scale,
                            uint16_t *bias)
{
    const float top = (float)((1 << item->bits) - 1);
    float low = w[0], high = w[0];
    for (int64_t i = 1; i < n; i++) {
        low = fminf(low, w[i]);
        high = fmaxf(high, w[i]);
    }
    const float edge = fabsf(low) > fabsf(high) ? low : high, other = fabsf(low) > fabsf(high) ? high : low;
    float step = (other - edge) / top;
    const float to_zero = step != 0.0f ? rintf(-edge / step) : 0;
    if (to_zero > 0 && to_zero <= top)
        step = -edge / to_zero;
    *bias = to_half(item->type, edge);
    *scale = to_half(item->type, step);
    const float b = from_half(item->type, *bias), s = from_half(item->type, *scale);
    for (int64_t i = 0; i < n; i++) {
        const float v = s != 0.0f ? rintf((w[i] - b) / s) : 0;
        put_bits(q, i, item->bits, (unsigned)(v < 0 ? 0 : v > top ? top : v));
    }
}

/* Blocks of Q4_0 and Q4_1 are such groups already. Returns what is behind the block. */
static const uint8_t *group_of_block(uint32_t type, const uint8_t *block, uint8_t *q, uint16_t *scale, uint16_t *bias)
{
    uint8_t nibbles[16];
    memcpy(scale, block, sizeof *scale);
    if (type == PP_TYPE_Q4_1)
        memcpy(bias, block + 2, sizeof *bias);
    else
        *bias = pp_f32_to_f16(-8 * pp_f16_to_f32(*scale));
    block += type == PP_TYPE_Q4_1 ? 4 : 2;
    memcpy(nibbles, block, sizeof nibbles);
    for (int i = 0; i < 32; i++)
        put_bits(q, i, 4, i < 16 ? nibbles[i] & 15u : (unsigned)nibbles[i - 16] >> 4);
    return block + sizeof nibbles;
}

/* Whether the integers of a tensor stay as they are. */
static bool keeps_blocks(const struct folder *f, const struct item *item)
{
    const struct pp_tensor *t = item->from;
    return item->bits == 4 && f->group == 32 && item->type == PP_TYPE_F16 &&
           (t->type == PP_TYPE_Q4_0 || t->type == PP_TYPE_Q4_1) && (!t->rows || t->rows->as_blocks);
}

/* --- rows -------------------------------------------------------------------------------------------------------- */

/* Room for a slice. */
struct room {
    float *floats;              /* [rows, n_cols] */
    uint8_t *blocks;            /* [rows, bytes of a row as it is stored] */
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

/* Rows first .. first + n - 1 of the new tensor; in another order they are read one by one. */
static enum pp_code read_rows(const struct folder *f, const struct item *item, int64_t first, int64_t n,
                              const struct room *room)
{
    const int64_t n_cols = item->from->ne[0], run = item->head_dim ? 1 : n;
    const size_t bytes = pp_type_row_bytes(item->from->type, n_cols);
    enum pp_code code = PP_OK;
    for (int64_t r = 0; r < n && !code; r += run) {
        const int64_t row = item->head_dim ? pp_gguf_row(first + r, item->head_dim) : first + r;
        code = keeps_blocks(f, item) ? read_blocks(item, row, run, room->blocks + (size_t)r * bytes, f->err)
                                     : pp_tensor_floats(item->from, row, run, room->floats + r * n_cols, f->err);
    }
    for (int64_t i = 0; item->add != 0.0f && i < n * n_cols; i++)
        room->floats[i] += item->add;
    return code;
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
            block = group_of_block(item->from->type, block, q, &room->scales[g], &room->biases[g]);
        else
            group_of_floats(item, room->floats + g * f->group, f->group, q, &room->scales[g], &room->biases[g]);
    }
    const size_t size = 2 * (size_t)(n * n_groups);
    const uint64_t before = 2 * (uint64_t)(first * n_groups);
    if (!pp_row_finite(item->type, room->scales, n * n_groups) ||
        !pp_row_finite(item->type, room->biases, n * n_groups))
        return pp_fail(f->err, PP_ERR_FORMAT, "tensor %s holds values that are no numbers, or too large for %s",
                       item->name, pp_type_info(item->type)->name);
    enum pp_code code = put(f, room->out, (size_t)n * row_bytes, f->data_at + item->at + (uint64_t)first * row_bytes);
    if (!code)
        code = put(f, room->scales, size, f->data_at + item->scales_at + before);
    return code ? code : put(f, room->biases, size, f->data_at + item->biases_at + before);
}

static enum pp_code write_floats(const struct folder *f, const struct item *item, int64_t first, int64_t n,
                                 const struct room *room)
{
    const int64_t n_cols = item->from->ne[0];
    const size_t row_bytes = pp_type_row_bytes(item->type, n_cols);
    enum pp_code code = pp_quantize_rows(item->type, room->floats, room->out, n, n_cols, NULL, f->err);
    return code ? code : put(f, room->out, (size_t)n * row_bytes, f->data_at + item->at + (uint64_t)first * row_bytes);
}

/* The elements of a bias of q or k go where the rows go. */
static enum pp_code write_turned_vector(const struct folder *f, const struct item *item)
{
    const int64_t n = item->from->ne[0];
    float *from = pp_calloc(2 * (size_t)n, sizeof *from), *to = from + n;
    uint8_t *out = pp_calloc((size_t)n, 4);
    enum pp_code code = from && out ? pp_tensor_floats(item->from, 0, 1, from, f->err)
                                    : pp_fail_nomem(f->err, item->name);
    for (int64_t i = 0; i < n && !code; i++)
        to[i] = from[pp_gguf_row(i, item->head_dim)];
    if (!code)
        code = pp_quantize_rows(item->type, to, out, 1, n, NULL, f->err);
    if (!code)
        code = put(f, out, pp_type_row_bytes(item->type, n), f->data_at + item->at);
    pp_free(from);
    pp_free(out);
    return code;
}

static enum pp_code write_item(const struct folder *f, const struct item *item)
{
    const int64_t n_cols = item->from->ne[0], n_rows = n_rows_of(item->from);
    const int64_t step = SLICE / n_cols > 0 ? SLICE / n_cols : 1, most = step < n_rows ? step : n_rows;
    const size_t n = (size_t)(most * n_cols);
    if (is_vector(item->from) && item->head_dim)
        return write_turned_vector(f, item);
    struct room room = {.floats = pp_calloc(n, sizeof(float)), .blocks = pp_calloc(n, 1), .out = pp_calloc(n, 4),
                        .scales = pp_calloc(n, 2), .biases = pp_calloc(n, 2)};
    enum pp_code code = room.floats && room.blocks && room.out && room.scales && room.biases
                            ? PP_OK : pp_fail_nomem(f->err, item->name);
    for (int64_t first = 0; first < n_rows && !code; first += most) {
        const int64_t m = most < n_rows - first ? most : n_rows - first;
        if (pp_cancelled(f->opt->cancel))
            code = pp_fail(f->err, PP_ERR_CANCELLED, "stopped; no model was written");
        if (!code)
            code = read_rows(f, item, first, m, &room);
        if (!code)
            code = item->bits ? write_groups(f, item, first, m, &room) : write_floats(f, item, first, m, &room);
        pp_source_let_go(f->s, item->from, first, m);
    }
    pp_free(room.floats);
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
        done += f->items[i].from->size;
    }
    return code ? code : pp_source_check(f->s, f->err);
}

static enum pp_code write_tensors(struct folder *f)
{
    struct pp_buf name = {0};
    pp_buf_fmt(&name, "model.safetensors.%ld.tmp", (long)getpid());
    f->path = pp_path_join(f->dst, "model.safetensors");
    f->temp = name.bad ? NULL : pp_path_join(f->dst, pp_buf_cstr(&name));
    pp_buf_free(&name);
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
    if (!code && rename(f->temp, f->path) != 0)
        code = fail_write(f);
    if (code)
        unlink(f->temp);
    return code;
}

/* --- config.json ------------------------------------------------------------------------------------------------- */

/* Families whose config.json follows from the numbers of a GGUF file. */
static const struct known_config {
    const char *arch, *hf_class, *model_type;
} known_configs[] = {
    {"llama", "LlamaForCausalLM", "llama"},
    {"qwen2", "Qwen2ForCausalLM", "qwen2"},
    {"qwen3", "Qwen3ForCausalLM", "qwen3"},
};

static bool add_scaling(cJSON *json, const struct pp_hparams *hp)
{
    if (hp->rope_scaling == PP_ROPE_NONE)
        return true;
    cJSON *rope = cJSON_AddObjectToObject(json, "rope_scaling");
    const bool yarn = hp->rope_scaling == PP_ROPE_YARN;
    cJSON_AddStringToObject(rope, "rope_type", yarn ? "yarn" : "linear");
    cJSON_AddNumberToObject(rope, "factor", (double)hp->rope_factor);
    if (yarn) {
        cJSON_AddNumberToObject(rope, "original_max_position_embeddings", (double)hp->rope_orig_ctx);
        cJSON_AddNumberToObject(rope, "beta_fast", (double)hp->rope_beta_fast);
        cJSON_AddNumberToObject(rope, "beta_slow", (double)hp->rope_beta_slow);
        if (hp->rope_attn_factor != 0.0f)
            cJSON_AddNumberToObject(rope, "attention_factor", (double)hp->rope_attn_factor);
    }
    return yarn || hp->rope_scaling == PP_ROPE_LINEAR;
}

/* A decimal number that is the same float again. */
static void add_float(cJSON *json, const char *key, float v)
{
    char text[32];
    snprintf(text, sizeof text, "%.9g", (double)v);
    cJSON_AddRawToObject(json, key, text);
}

static enum pp_code config_of_gguf(const struct folder *f, cJSON *json)
{
    const struct pp_hparams *hp = pp_source_hparams(f->s);
    const struct {
        const char *key;
        int64_t v;
    } numbers[] = {
        {"vocab_size", hp->n_vocab}, {"hidden_size", hp->n_embd}, {"num_hidden_layers", hp->n_layer},
        {"num_attention_heads", hp->n_head}, {"num_key_value_heads", hp->n_head_kv}, {"head_dim", hp->head_dim},
        {"intermediate_size", hp->n_ff}, {"max_position_embeddings", hp->n_ctx_train},
    };
    const struct known_config *known = NULL;
    for (size_t i = 0; i < sizeof known_configs / sizeof *known_configs; i++)
        if (strcmp(known_configs[i].arch, hp->arch) == 0)
            known = &known_configs[i];
    if (!known || hp->n_expert || hp->window || hp->rope_dim != hp->head_dim || !add_scaling(json, hp))
        return pp_fail(f->err, PP_ERR_UNSUPPORTED,
                       "%s is of the family %s%s: the config.json of its folder cannot be written yet; llama, qwen2 "
                       "and qwen3 without experts and windows, with linear or YaRN scaling, can",
                       pp_source_path(f->s), hp->arch, hp->n_expert ? " with experts" : "");
    cJSON_AddItemToObject(json, "architectures", cJSON_CreateStringArray(&known->hf_class, 1));
    cJSON_AddStringToObject(json, "model_type", known->model_type);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        cJSON_AddNumberToObject(json, numbers[i].key, (double)numbers[i].v);
    add_float(json, "rms_norm_eps", hp->norm_eps);
    add_float(json, "rope_theta", hp->rope_base);
    cJSON_AddStringToObject(json, "hidden_act", "silu");
    cJSON_AddBoolToObject(json, "tie_word_embeddings", !pp_source_tensor(f->s, "output.weight"));
    cJSON_AddBoolToObject(json, "attention_bias", pp_source_tensor(f->s, "blk.0.attn_q.bias") != NULL);
    cJSON_AddBoolToObject(json, "mlp_bias", pp_source_tensor(f->s, "blk.0.ffn_up.bias") != NULL);
    return PP_OK;
}

static void add_ids(cJSON *json, const struct pp_tokenizer *t)
{
    if (t && pp_tokenizer_bos(t) >= 0)
        cJSON_AddNumberToObject(json, "bos_token_id", pp_tokenizer_bos(t));
    if (t && pp_tokenizer_eos(t) >= 0)
        cJSON_AddNumberToObject(json, "eos_token_id", pp_tokenizer_eos(t));
}

static enum pp_code write_text(const struct folder *f, const char *name, const char *text, size_t n)
{
    char *path = pp_path_join(f->dst, name);
    if (!path)
        return pp_fail_nomem(f->err, "a file name");
    enum pp_code code = pp_write_file(path, text, n, 0666, f->err);
    pp_free(path);
    return code;
}

static enum pp_code write_config(const struct folder *f, const struct pp_tokenizer *t)
{
    static const char *const gone[] = {"quantization", "quantization_config"};
    const char *folder = pp_source_folder(f->s);
    cJSON *json = NULL;
    enum pp_code code = PP_OK;
    if (folder) {
        code = pp_json_read(folder, "config.json", &json, f->err);
    } else if (!(json = cJSON_CreateObject()) || (code = config_of_gguf(f, json))) {
        code = code ? code : pp_fail_nomem(f->err, "config.json");
    } else {
        add_ids(json, t);
    }
    for (int i = 0; i < 2 && !code; i++)
        cJSON_DeleteItemFromObjectCaseSensitive(json, gone[i]);
    for (int i = 0; i < 2 && !code && f->opt->bits; i++) { /* MLX writes both */
        cJSON *q = cJSON_AddObjectToObject(json, gone[i]);
        cJSON_AddNumberToObject(q, "group_size", (double)f->group);
        cJSON_AddNumberToObject(q, "bits", f->opt->bits);
    }
    char *text = code ? NULL : cJSON_Print(json);
    cJSON_Delete(json);
    if (!code)
        code = text ? write_text(f, "config.json", text, strlen(text)) : pp_fail_nomem(f->err, "config.json");
    cJSON_free(text);
    return code;
}

/* --- the vocabulary ---------------------------------------------------------------------------------------------- */

static enum pp_code copy_file(const struct folder *f, const char *name)
{
    const char *folder = pp_source_folder(f->s);
    char *text, *path;
    size_t n;
    if (!pp_file_exists(folder, name))
        return PP_OK;
    if (!(path = pp_path_join(folder, name)))
        return pp_fail_nomem(f->err, "a file name");
    enum pp_code code = pp_read_file(path, MAX_COPY, &text, &n, f->err);
    pp_free(path);
    if (code)
        return code;
    code = write_text(f, name, text, n);
    pp_free(text);
    return code;
}

static enum pp_code write_vocabulary(const struct folder *f, const struct pp_tokenizer *t)
{
    static const char *const files[] = {"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json",
                                        "merges.txt", "special_tokens_map.json", "added_tokens.json",
                                        "chat_template.jinja", "generation_config.json"};
    const char *chat = pp_source_chat_template(f->s);
    enum pp_code code = PP_OK;
    for (size_t i = 0; pp_source_folder(f->s) && i < sizeof files / sizeof *files && !code; i++)
        code = copy_file(f, files[i]);
    if (pp_source_folder(f->s))
        return code;
    if (t)
        code = pp_tokenizer_to_folder(t, f->dst, f->err);
    return !code && chat ? write_text(f, "chat_template.jinja", chat, strlen(chat)) : code;
}

/* --- the folder -------------------------------------------------------------------------------------------------- */

/* 64 as MLX has it; 32 where that divides more, or keeps 4-bit blocks as they are. */
static int64_t group_size(const struct folder *f)
{
    for (size_t i = 0; i < pp_source_n_tensors(f->s); i++) {
        const struct pp_tensor *t = pp_source_tensor_at(f->s, i);
        if (t->n_dims == 2 && !pp_export_keeps_f32(t) &&
            (t->ne[0] % 64 != 0 || (f->opt->bits == 4 && (t->type == PP_TYPE_Q4_0 || t->type == PP_TYPE_Q4_1))))
            return 32;
    }
    return 64;
}

static enum pp_code check_options(const struct folder *f)
{
    const int type = f->opt->out_type ? pp_type_by_name(f->opt->out_type) : PP_TYPE_F16;
    struct stat st;
    if (type != PP_TYPE_F32 && type != PP_TYPE_F16 && type != PP_TYPE_BF16)
        return pp_fail(f->err, PP_ERR_USAGE, "the floats of a folder can be F32, F16 or BF16, not \"%.40s\"",
                       f->opt->out_type);
    if (f->opt->bits != 0 && f->opt->bits != 4 && f->opt->bits != 8)
        return pp_fail(f->err, PP_ERR_USAGE, "MLX folders are written with 4 or 8 bits, not %d", f->opt->bits);
    if (mkdir(f->dst, 0777) != 0 && errno != EEXIST)
        return pp_fail(f->err, PP_ERR_IO, "cannot make the folder %s: %s", f->dst, strerror(errno));
    if (stat(f->dst, &st) != 0 || !S_ISDIR(st.st_mode))
        return pp_fail(f->err, PP_ERR_USAGE, "%s is not a folder; name another", f->dst);
    if (pp_file_exists(f->dst, "config.json") || pp_file_exists(f->dst, "model.safetensors"))
        return pp_fail(f->err, PP_ERR_USAGE, "there is a model in %s already; name another folder", f->dst);
    return PP_OK;
}

enum pp_code pp_convert_to_folder(const char *src, const char *dst, const struct pp_convert_options *opt,
                                  struct pp_error *err)
{
    struct folder f = {.opt = opt, .dst = dst, .err = err};
    struct pp_source *s;
    struct pp_tokenizer *t = NULL;
    enum pp_code code = pp_source_open(src, &s, err);
    if (code)
        return code;
    f.s = s;
    f.arch = pp_arch_by_name(pp_source_hparams(s)->arch);
    f.group = group_size(&f);
    code = list_items(&f);
    if (!code && !pp_source_folder(s) && (code = pp_tokenizer_from_source(s, &t, err)) == PP_ERR_NOT_FOUND)
        code = PP_OK;
    if (!code)
        code = check_options(&f);
    if (!code)
        code = write_vocabulary(&f, t);
    if (!code)
        code = write_tensors(&f);
    if (!code)
        code = write_config(&f, t); /* last: without it the folder is no model */
    pp_tokenizer_free(t);
    pp_free(f.items);
    pp_free(f.temp);
    pp_free(f.path);
    pp_source_close(s);
    return code;
}
