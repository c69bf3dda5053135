#include "engine/safetensors.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/cut_off.h"
#include "engine/base/buf.h"
#include "engine/base/cursor.h"
#include "engine/base/json.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/other_file.h"
#include "engine/base/utf8.h"
#include "engine/name_index.h"
#include "engine/tensor_overlap.h"

enum {
    LENGTH_BYTES = 8,
    MAX_HEADER = 100 * 1000 * 1000,
    MAX_SHAPE = 8, /* dimensions that a header may name; leading ones beyond PP_MAX_DIMS must be 1 */
};

struct pp_safetensors {
    struct pp_map map;
    const uint8_t *data;
    size_t size;
    char *name;              /* for errors */
    cJSON *header;           /* owns the tensors' names */
    struct pp_tensor *tensors;
    const char **dtypes;     /* [n], from the table below */
    size_t n;
    struct pp_name_index index;
};

static const struct dtype {
    const char *name;
    uint32_t type;
    unsigned bytes;
} dtypes[] = {
    {"F32", PP_TYPE_F32, 4},       {"F16", PP_TYPE_F16, 2},     {"BF16", PP_TYPE_BF16, 2},  {"F64", PP_TYPE_LIMIT, 8},
    {"I64", PP_TYPE_LIMIT, 8},     {"I32", PP_TYPE_LIMIT, 4},   {"I16", PP_TYPE_LIMIT, 2},  {"I8", PP_TYPE_LIMIT, 1},
    {"U64", PP_TYPE_LIMIT, 8},     {"U32", PP_TYPE_LIMIT, 4},   {"U16", PP_TYPE_LIMIT, 2},  {"U8", PP_TYPE_LIMIT, 1},
    {"BOOL", PP_TYPE_LIMIT, 1},    {"F8_E4M3", PP_TYPE_LIMIT, 1}, {"F8_E5M2", PP_TYPE_LIMIT, 1},
    {"F8_E8M0", PP_TYPE_LIMIT, 1},
};

static const struct dtype *dtype_by_name(const char *name)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return &dtypes[i];
    return NULL;
}

/* A JSON number that is an integer and exact in a double. */
static bool json_u53(const cJSON *item, uint64_t *v)
{
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble <= 9007199254740992.0))
        return false;
    *v = (uint64_t)item->valuedouble;
    return (double)*v == item->valuedouble;
}

/* Converts a row-major shape to ne (fastest first) and multiplies it out; for zero-sized tensors *elements is 0. */
static bool read_shape(const cJSON *shape, struct pp_tensor *t, uint64_t *elements)
{
    uint64_t dims[MAX_SHAPE];
    int n = 0;
    *elements = 1;
    if (!cJSON_IsArray(shape))
        return false;
    for (const cJSON *d = shape->child; d; d = d->next, n++)
        if (n == MAX_SHAPE || !json_u53(d, &dims[n]) || __builtin_mul_overflow(*elements, dims[n], elements))
            return false;
    for (int d = 0; d < PP_MAX_DIMS; d++)
        t->ne[d] = 1;
    int first = n > PP_MAX_DIMS ? n - PP_MAX_DIMS : 0;
    for (int d = 0; d < first; d++)
        if (dims[d] != 1)
            return false;
    for (int d = first; d < n; d++)
        t->ne[n - 1 - d] = (int64_t)dims[d];
    t->n_dims = n - first > 0 ? n - first : 1;
    return *elements <= INT64_MAX;
}

/* The error that tensors extend beyond the end of the file: it is truncated, unless an offset is impossible. */
static enum pp_code fail_beyond_end(const struct pp_safetensors *s, const char *first, size_t room,
                                    struct pp_error *err)
{
    const uint64_t most = (uint64_t)1 << PP_FILE_BITS;
    uint64_t want = room;
    for (const cJSON *item = s->header->child; item; item = item->next) {
        const cJSON *offsets = pp_json_member(item, "data_offsets");
        uint64_t end;
        if (cJSON_GetArraySize(offsets) != 2 || !json_u53(offsets->child->next, &end))
            continue;
        if (end > most)
            return pp_fail(err, PP_ERR_FORMAT, "%s is damaged: tensor %.200s lies beyond the end of the file", s->name,
                           item->string);
        want = end > want ? end : want;
    }
    char what[256];
    pp_utf8_print(what, sizeof what, "tensor %.200s", first);
    return pp_fail_cut_off(err, s->name, what, s->size, s->size - room + want);
}

static enum pp_code read_tensor(struct pp_safetensors *s, const cJSON *item, const uint8_t *data, size_t room,
                                struct pp_error *err)
{
    struct pp_tensor *t = &s->tensors[s->n];
    const cJSON *dtype_name = pp_json_member(item, "dtype");
    const cJSON *offsets = pp_json_member(item, "data_offsets");
    uint64_t elements, begin, end, bytes;
    t->name = item->string;
    if (!cJSON_IsString(dtype_name))
        return pp_fail(err, PP_ERR_FORMAT, "%s is damaged: tensor %.200s has no dtype", s->name, t->name);
    const struct dtype *dtype = dtype_by_name(dtype_name->valuestring);
    if (!dtype)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s: tensor %.200s has dtype %.40s, which pippin does not know",
                       s->name, t->name, dtype_name->valuestring);
    if (!read_shape(pp_json_member(item, "shape"), t, &elements))
        return pp_fail(err, PP_ERR_FORMAT, "%s is damaged: tensor %.200s has an impossible shape", s->name, t->name);
    if (cJSON_GetArraySize(offsets) != 2 || !json_u53(offsets->child, &begin) ||
        !json_u53(offsets->child->next, &end) || begin > end)
        return pp_fail(err, PP_ERR_FORMAT, "%s is damaged: tensor %.200s has no data_offsets", s->name, t->name);
    if (end > room)
        return fail_beyond_end(s, t->name, room, err);
    if (__builtin_mul_overflow(elements, (uint64_t)dtype->bytes, &bytes) || bytes != end - begin)
        return pp_fail(err, PP_ERR_FORMAT,
                       "%s is damaged: tensor %.200s has %" PRIu64 " bytes, which does not match its shape", s->name,
                       t->name,
                       end - begin);
    t->type = dtype->type;
    t->data = data + begin;
    t->size = (size_t)bytes;
    s->dtypes[s->n] = dtype->name;
    if (!pp_name_index_add(&s->index, t->name, strlen(t->name)))
        return pp_fail(err, PP_ERR_FORMAT, "%s is damaged: tensor %.200s occurs twice", s->name, t->name);
    s->n++;
    return PP_OK;
}

/* Parses an object that only spaces may follow. */
static enum pp_code parse_header(struct pp_safetensors *s, const char *text, size_t length, struct pp_error *err)
{
    const char *end = text;
    enum pp_code code = pp_json_parse(text, length, s->name, &end, &s->header, err);
    while (end < text + length && *end && strchr(" \t\r\n", *end))
        end++;
    if (!code && (!cJSON_IsObject(s->header) || end != text + length))
        return pp_fail(err, PP_ERR_FORMAT, "%s is damaged: its header is not valid JSON", s->name);
    return code;
}

static enum pp_code parse(struct pp_safetensors *s, struct pp_error *err)
{
    struct pp_cursor c = pp_cursor(s->data, s->size);
    uint64_t length = pp_cursor_u64(&c);
    const char *text = pp_cursor_bytes(&c, length);
    if (c.bad && s->size > 8 && length <= MAX_HEADER && s->data[8] == '{')
        return pp_fail_cut_off(err, s->name, "its header", s->size, 8 + length);
    if (c.bad || length > MAX_HEADER || !length || text[0] != '{') {
        const enum pp_code other = pp_fail_other_file(s->name, s->data, s->size, err);
        return other ? other : pp_fail(err, PP_ERR_FORMAT, "%s is not a safetensors file, or is truncated", s->name);
    }
    const enum pp_code parsed = parse_header(s, text, (size_t)length, err);
    if (parsed)
        return parsed;
    size_t n = 0;
    for (const cJSON *item = s->header->child; item; item = item->next)
        n++;
    s->tensors = pp_calloc(n, sizeof *s->tensors);
    s->dtypes = pp_calloc(n, sizeof *s->dtypes);
    if (!s->tensors || !s->dtypes || !pp_name_index_init(&s->index, n))
        return pp_fail_nomem(err, "the list of tensors");
    const uint8_t *data = s->data + c.pos;
    for (const cJSON *item = s->header->child; item; item = item->next) {
        if (strcmp(item->string, "__metadata__") == 0)
            continue;
        enum pp_code code = read_tensor(s, item, data, s->size - c.pos, err);
        if (code)
            return code;
    }
    return pp_tensors_check_overlap(s->tensors, s->n, s->name, err);
}

/* Takes ownership of the map (zeroed for memory). */
static enum pp_code open_bytes(struct pp_map *map, const void *data, size_t size, const char *name,
                               struct pp_safetensors **out, struct pp_error *err)
{
    struct pp_safetensors *s = pp_calloc(1, sizeof *s);
    char *copy = pp_strdup(name);
    *out = NULL;
    if (!s || !copy) {
        pp_free(s);
        pp_free(copy);
        pp_map_close(map);
        return pp_fail_nomem(err, name);
    }
    s->map = *map;
    s->data = data;
    s->size = size;
    s->name = copy;
    enum pp_code code = parse(s, err);
    if (code) {
        pp_safetensors_close(s);
        return code;
    }
    *out = s;
    return PP_OK;
}

enum pp_code pp_safetensors_open(const char *path, struct pp_safetensors **out, struct pp_error *err)
{
    struct pp_map map;
    enum pp_code code = pp_map_open(path, &map, err);
    *out = NULL;
    return code ? code : open_bytes(&map, map.data, map.size, path, out, err);
}

enum pp_code pp_safetensors_open_memory(const void *data, size_t size, const char *name, struct pp_safetensors **out,
                                        struct pp_error *err)
{
    struct pp_map none = {.slot = -1};
    return open_bytes(&none, data, size, name, out, err);
}

void pp_safetensors_close(struct pp_safetensors *s)
{
    if (!s)
        return;
    pp_name_index_free(&s->index);
    pp_free(s->tensors);
    pp_free(s->dtypes);
    cJSON_Delete(s->header);
    pp_free(s->name);
    pp_map_close(&s->map);
    pp_free(s);
}

bool pp_safetensors_lost(const struct pp_safetensors *s)
{
    return pp_map_lost(&s->map);
}

bool pp_safetensors_changed(const struct pp_safetensors *s)
{
    return pp_map_changed(&s->map);
}

size_t pp_safetensors_n(const struct pp_safetensors *s)
{
    return s->n;
}

const struct pp_tensor *pp_safetensors_at(const struct pp_safetensors *s, size_t i)
{
    return &s->tensors[i];
}

const struct pp_tensor *pp_safetensors_find(const struct pp_safetensors *s, const char *name)
{
    size_t i = pp_name_index_find(&s->index, name, strlen(name));
    return i == SIZE_MAX ? NULL : &s->tensors[i];
}

const char *pp_safetensors_dtype(const struct pp_safetensors *s, const struct pp_tensor *t)
{
    return s->dtypes[t - s->tensors];
}

/* --- writing ------------------------------------------------------------------------------------------- */

/* The header's entry of one tensor, at `offset` of the data. */
static bool describe(cJSON *header, const struct pp_tensor *t, size_t offset)
{
    cJSON *item = cJSON_AddObjectToObject(header, t->name);
    cJSON *shape = NULL, *offsets = NULL;
    bool ok = item && cJSON_AddStringToObject(item, "dtype", pp_type_info(t->type)->name) &&
              (shape = cJSON_AddArrayToObject(item, "shape")) &&
              (offsets = cJSON_AddArrayToObject(item, "data_offsets"));
    for (int d = t->n_dims; ok && d-- > 0;)
        ok = cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)t->ne[d]));
    return ok && cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)offset)) &&
           cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)(offset + t->size)));
}

enum pp_code pp_safetensors_image(const struct pp_tensor *tensors, size_t n, struct pp_buf *out, struct pp_error *err)
{
    cJSON *header = cJSON_CreateObject();
    size_t offset = 0;
    bool ok = header != NULL;
    for (size_t i = 0; ok && i < n; i++) {
        const uint32_t type = tensors[i].type;
        if (type != PP_TYPE_F32 && type != PP_TYPE_F16 && type != PP_TYPE_BF16) {
            cJSON_Delete(header);
            return pp_fail(err, PP_ERR_USAGE, "tensor %s is not F32, F16 or BF16, the only types that can be written",
                           tensors[i].name);
        }
        ok = describe(header, &tensors[i], offset);
        offset += tensors[i].size;
    }
    char *text = ok ? cJSON_PrintUnformatted(header) : NULL;
    cJSON_Delete(header);
    if (!text)
        return pp_fail_nomem(err, "the header of a safetensors file");
    size_t length = strlen(text), padded = (length + 7) & ~(size_t)7; /* so that the data begin at a multiple of 8 */
    for (unsigned i = 0; i < LENGTH_BYTES; i++)
        pp_buf_char(out, (char)(uint8_t)((uint64_t)padded >> (8 * i)));
    pp_buf_add(out, text, length);
    cJSON_free(text);
    for (; length < padded; length++)
        pp_buf_char(out, ' ');
    for (size_t i = 0; i < n; i++)
        pp_buf_add(out, tensors[i].data, tensors[i].size);
    return out->bad ? pp_fail_nomem(err, "a safetensors file") : PP_OK;
}

enum pp_code pp_safetensors_write(const char *path, const struct pp_tensor *tensors, size_t n, struct pp_error *err)
{
    struct pp_buf file = {0};
    enum pp_code code = pp_safetensors_image(tensors, n, &file, err);
    if (!code)
        code = pp_write_file(path, file.data, file.len, 0666, err);
    pp_buf_free(&file);
    return code;
}
