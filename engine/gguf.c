/* gguf.c - the reader. The file is, in this order:
 *
 *     offset  size  what
 *          0     4  "GGUF"
 *          4     4  u32 version: 2 or 3 (the same layout)
 *          8     8  u64 number of tensors
 *         16     8  u64 number of metadata entries
 *         24        entries: string key, u32 type, value
 *                   tensors: string name, u32 dims, u64 ne[dims], u32 type, u64 offset from the data's begin
 *                   zeros up to a multiple of general.alignment (32 if absent)
 *                   data
 *
 * A string is u64 length and bytes; an array is u32 element type, u64 count, elements. Little-endian throughout. */
#include "engine/gguf.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/cut_off.h"
#include "engine/base/cursor.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/other_file.h"
#include "engine/base/utf8.h"
#include "engine/name_index.h"
#include "engine/tensor_overlap.h"

enum {
    HEADER_BYTES = 24,
    MIN_KV_BYTES = 8 + 1 + 4 + 1,              /* key of one byte, type, a value of one byte */
    MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8,  /* name of one byte, one dimension */
    MAX_KEY = 65535,
    MAX_TENSOR_NAME = 255,
    MIN_ALIGNMENT = 8,
    MAX_ALIGNMENT = 1 << 20,
    DEFAULT_ALIGNMENT = 32,
};

struct kv {
    struct pp_str key;
    enum pp_gguf_type type;
    enum pp_gguf_type element;  /* of an array */
    uint64_t n;                 /* elements of an array, bytes of a string, 1 otherwise */
    const uint8_t *items;       /* the first element or byte */
    struct pp_str *strings;     /* [n] of an array of strings, or NULL. Lengths are not read from the file again: a
                                   program that changes it meanwhile must not move them past its end */
    struct pp_str raw;          /* the value's bytes in the file, with lengths, element type and count */
};

struct pp_gguf {
    struct pp_map map;
    const uint8_t *data;
    size_t size;
    char *name; /* in errors */
    struct kv *kvs;
    size_t n_kv; /* parsed so far, so that closing a half-read file works */
    struct pp_name_index keys;
    struct pp_tensor *tensors;
    size_t n_tensors;
    char *tensor_names; /* arena of NUL-terminated names */
    struct pp_name_index tensor_index;
};

/* --- helpers ------------------------------------------------------------------------------------------- */

static size_t value_bytes(enum pp_gguf_type type)
{
    switch (type) {
    case PP_GGUF_U8: case PP_GGUF_I8: case PP_GGUF_BOOL:
        return 1;
    case PP_GGUF_U16: case PP_GGUF_I16:
        return 2;
    case PP_GGUF_U32: case PP_GGUF_I32: case PP_GGUF_F32:
        return 4;
    case PP_GGUF_U64: case PP_GGUF_I64: case PP_GGUF_F64:
        return 8;
    default:
        return 0;
    }
}

static enum pp_code fail_format(const struct pp_gguf *g, struct pp_error *err, const char *what)
{
    return pp_fail(err, PP_ERR_FORMAT, "%s is damaged: %s; download it again", g->name, what);
}

/* A string that fits in the file; false leaves the cursor bad. */
static bool read_string(struct pp_cursor *c, struct pp_str *s)
{
    uint64_t len = pp_cursor_u64(c);
    const char *bytes = pp_cursor_bytes(c, len);
    if (c->bad)
        return false;
    *s = (struct pp_str){bytes, (size_t)len};
    return true;
}

/* Names are looked up as C strings and shown in errors, so they must be valid UTF-8 without NUL and other control
 * characters. */
static bool good_name(const struct pp_str *s, size_t limit)
{
    if (s->len == 0 || s->len > limit || !pp_utf8_valid(s->data, s->len))
        return false;
    for (size_t i = 0; i < s->len; i++)
        if ((uint8_t)s->data[i] < 0x20 || s->data[i] == 0x7f)
            return false;
    return true;
}

/* --- metadata ------------------------------------------------------------------------------------------ */

static enum pp_code read_string_array(struct pp_gguf *g, struct pp_cursor *c, struct kv *kv, struct pp_error *err)
{
    if (kv->n > pp_cursor_left(c) / 8)
        return fail_format(g, err, "an array has more strings than fit in the file");
    kv->strings = pp_malloc((size_t)kv->n * sizeof *kv->strings);
    if (!kv->strings)
        return pp_fail_nomem(err, "the index of an array of strings");
    for (uint64_t i = 0; i < kv->n; i++)
        if (!read_string(c, &kv->strings[i]))
            return fail_format(g, err, "a string in an array extends beyond the end of the file");
    return PP_OK;
}

static enum pp_code read_array(struct pp_gguf *g, struct pp_cursor *c, struct kv *kv, struct pp_error *err)
{
    uint32_t element = pp_cursor_u32(c);
    kv->n = pp_cursor_u64(c);
    kv->items = c->data + c->pos;
    kv->element = (enum pp_gguf_type)element;
    if (c->bad)
        return fail_format(g, err, "the file ends inside an array");
    if (element == PP_GGUF_STRING)
        return read_string_array(g, c, kv, err);
    if (element == PP_GGUF_ARRAY)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s: metadata \"%.*s\" is an array of arrays", g->name,
                       (int)kv->key.len, kv->key.data);
    size_t each = element <= PP_GGUF_F64 ? value_bytes(kv->element) : 0;
    if (!each)
        return fail_format(g, err, "an array has an unknown element type");
    if (kv->n > pp_cursor_left(c) / each)
        return fail_format(g, err, "an array extends beyond the end of the file");
    pp_cursor_bytes(c, kv->n * each);
    return PP_OK;
}

static enum pp_code read_value(struct pp_gguf *g, struct pp_cursor *c, struct kv *kv, struct pp_error *err)
{
    uint32_t type = pp_cursor_u32(c);
    enum pp_code code = PP_OK;
    kv->type = (enum pp_gguf_type)type;
    kv->n = 1;
    kv->items = c->data + c->pos;
    kv->raw.data = (const char *)kv->items;
    if (c->bad || type > PP_GGUF_F64)
        return fail_format(g, err, c->bad ? "the file ends inside the metadata" : "a metadata value has an unknown "
                                                                                  "type");
    if (type == PP_GGUF_ARRAY) {
        code = read_array(g, c, kv, err);
    } else if (type == PP_GGUF_STRING) {
        struct pp_str s;
        if (read_string(c, &s)) {
            kv->items = (const uint8_t *)s.data;
            kv->n = s.len;
        }
    } else {
        pp_cursor_bytes(c, value_bytes(kv->type));
    }
    if (code)
        return code;
    if (c->bad)
        return fail_format(g, err, "a metadata value extends beyond the end of the file");
    if (type == PP_GGUF_BOOL && kv->items[0] > 1)
        return fail_format(g, err, "a boolean is neither 0 nor 1");
    kv->raw.len = (size_t)((const char *)c->data + c->pos - kv->raw.data);
    return PP_OK;
}

static enum pp_code read_metadata(struct pp_gguf *g, struct pp_cursor *c, uint64_t n, struct pp_error *err)
{
    if (n > pp_cursor_left(c) / MIN_KV_BYTES)
        return fail_format(g, err, "it declares more metadata than fits in the file");
    g->kvs = pp_calloc((size_t)n, sizeof *g->kvs);
    if (!g->kvs || !pp_name_index_init(&g->keys, (size_t)n))
        return pp_fail_nomem(err, "the metadata of a GGUF file");
    for (; g->n_kv < n; g->n_kv++) {
        struct kv *kv = &g->kvs[g->n_kv];
        if (!read_string(c, &kv->key) || !good_name(&kv->key, MAX_KEY))
            return fail_format(g, err, "a metadata key is truncated, empty, too long or not text");
        enum pp_code code = read_value(g, c, kv, err);
        if (code) {
            pp_free(kv->strings); /* this kv is not counted in n_kv yet */
            return code;
        }
        if (!pp_name_index_add(&g->keys, kv->key.data, kv->key.len)) {
            pp_free(kv->strings);
            return pp_fail(err, PP_ERR_FORMAT, "%s is damaged: metadata \"%.*s\" occurs twice", g->name,
                           (int)kv->key.len, kv->key.data);
        }
    }
    return PP_OK;
}

/* --- tensors ------------------------------------------------------------------------------------------- */

static enum pp_code read_alignment(struct pp_gguf *g, uint64_t *alignment, struct pp_error *err)
{
    int64_t v = DEFAULT_ALIGNMENT;
    if (pp_gguf_has(g, "general.alignment") && !pp_gguf_int(g, "general.alignment", &v))
        return fail_format(g, err, "general.alignment is not an integer");
    if (v < MIN_ALIGNMENT || v > MAX_ALIGNMENT || (v & (v - 1)) != 0)
        return pp_fail(err, PP_ERR_FORMAT,
                       "%s is damaged: general.alignment is %lld; it must be a power of two from 8 to %d", g->name,
                       (long long)v, MAX_ALIGNMENT);
    *alignment = (uint64_t)v;
    return PP_OK;
}

/* Reads dimensions and type, and computes the size in bytes. */
static enum pp_code read_shape(struct pp_gguf *g, struct pp_cursor *c, struct pp_tensor *t, struct pp_error *err)
{
    uint32_t n_dims = pp_cursor_u32(c);
    if (c->bad || n_dims < 1 || n_dims > PP_MAX_DIMS)
        return pp_fail(err, PP_ERR_FORMAT, "%s is damaged: tensor %s has %u dimensions, not 1 to %d", g->name, t->name,
                       n_dims, PP_MAX_DIMS);
    t->n_dims = (int)n_dims;
    int64_t rows = 1;
    bool fits = true;
    for (int d = 0; d < PP_MAX_DIMS; d++) {
        uint64_t ne = d < t->n_dims ? pp_cursor_u64(c) : 1;
        fits = fits && ne > 0 && ne <= INT64_MAX;
        t->ne[d] = fits ? (int64_t)ne : 1;
        fits = fits && (d == 0 || !__builtin_mul_overflow(rows, t->ne[d], &rows));
    }
    t->type = pp_cursor_u32(c);
    if (c->bad)
        return fail_format(g, err, "the file ends inside the list of tensors");
    const struct pp_type_info *type = pp_type_info(t->type);
    if (!type->name)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s: tensor %s has type %u, which this version of pippin does not know",
                       g->name, t->name, t->type);
    size_t row = fits ? pp_type_row_bytes(t->type, t->ne[0]) : 0;
    int64_t elements;
    if (!row || __builtin_mul_overflow(row, (size_t)rows, &t->size) ||
        __builtin_mul_overflow(rows, t->ne[0], &elements))
        return pp_fail(err, PP_ERR_FORMAT, "%s is damaged: tensor %s has a shape that is impossible for %s", g->name,
                       t->name, type->name);
    return PP_OK;
}

/* Copies the name of the next tensor to *arena, and moves that past it. */
static enum pp_code read_tensor_name(struct pp_gguf *g, struct pp_cursor *c, char **arena, struct pp_error *err)
{
    struct pp_str name;
    if (!read_string(c, &name) || !good_name(&name, MAX_TENSOR_NAME))
        return fail_format(g, err, "a tensor name is truncated, empty, too long or not text");
    memcpy(*arena, name.data, name.len);
    (*arena)[name.len] = 0;
    if (!pp_name_index_add(&g->tensor_index, *arena, name.len))
        return pp_fail(err, PP_ERR_FORMAT, "%s is damaged: tensor %s occurs twice", g->name, *arena);
    g->tensors[g->n_tensors].name = *arena;
    *arena += name.len + 1;
    return PP_OK;
}

/* The error that tensors extend beyond the end of the file: it is truncated, unless an offset is impossible. */
static enum pp_code fail_beyond_end(const struct pp_gguf *g, const struct pp_tensor *first, uint64_t begin,
                                    const uint64_t *offsets, struct pp_error *err)
{
    const uint64_t most = (uint64_t)1 << PP_FILE_BITS;
    uint64_t want = 0;
    for (size_t i = 0; i < g->n_tensors; i++) {
        const struct pp_tensor *t = &g->tensors[i];
        if (offsets[i] > most || t->size > most)
            return pp_fail(err, PP_ERR_FORMAT, "%s is damaged: tensor %s lies beyond the end of the file", g->name,
                           t->name);
        want = begin + offsets[i] + t->size > want ? begin + offsets[i] + t->size : want;
    }
    char what[32 + MAX_TENSOR_NAME];
    snprintf(what, sizeof what, "tensor %s", first->name);
    return pp_fail_cut_off(err, g->name, what, g->size, want);
}

/* offsets: [n_tensors], relative to where the data begin: after the list of tensors, at the next multiple of the
 * alignment. */
static enum pp_code place_tensors(struct pp_gguf *g, size_t list_end, const uint64_t *offsets, struct pp_error *err)
{
    uint64_t alignment = DEFAULT_ALIGNMENT;
    enum pp_code code = read_alignment(g, &alignment, err);
    if (code)
        return code;
    uint64_t begin = (list_end + alignment - 1) & ~(alignment - 1);
    uint64_t room = begin <= g->size ? g->size - begin : 0;
    for (size_t i = 0; i < g->n_tensors; i++) {
        struct pp_tensor *t = &g->tensors[i];
        if (offsets[i] % alignment != 0)
            return pp_fail(err, PP_ERR_FORMAT, "%s is damaged: tensor %s is not aligned", g->name, t->name);
        if (offsets[i] > room || t->size > room - offsets[i])
            return fail_beyond_end(g, t, begin, offsets, err);
        t->data = g->data + begin + offsets[i];
    }
    return pp_tensors_check_overlap(g->tensors, g->n_tensors, g->name, err);
}

static enum pp_code read_tensors(struct pp_gguf *g, struct pp_cursor *c, uint64_t n, struct pp_error *err)
{
    if (n > pp_cursor_left(c) / MIN_TENSOR_BYTES)
        return fail_format(g, err, "it declares more tensors than fit in the file");
    size_t name_bytes = (size_t)n * (MAX_TENSOR_NAME + 1);
    if (name_bytes > pp_cursor_left(c)) /* a name with its NUL is shorter than a name with its length in the file */
        name_bytes = pp_cursor_left(c);
    uint64_t *offsets = pp_malloc((size_t)n * sizeof *offsets);
    g->tensors = pp_calloc((size_t)n, sizeof *g->tensors);
    g->tensor_names = pp_malloc(name_bytes);
    enum pp_code code = PP_OK;
    if (!offsets || !g->tensors || !g->tensor_names || !pp_name_index_init(&g->tensor_index, (size_t)n))
        code = pp_fail_nomem(err, "the list of tensors");
    char *arena = g->tensor_names;
    while (!code && g->n_tensors < n) {
        struct pp_tensor *t = &g->tensors[g->n_tensors];
        code = read_tensor_name(g, c, &arena, err);
        if (!code)
            code = read_shape(g, c, t, err);
        if (code)
            break;
        offsets[g->n_tensors++] = pp_cursor_u64(c);
        if (c->bad)
            code = fail_format(g, err, "the file ends inside the list of tensors");
    }
    if (!code)
        code = place_tensors(g, c->pos, offsets, err);
    pp_free(offsets);
    return code;
}

/* --- opening ------------------------------------------------------------------------------------------- */

static enum pp_code parse(struct pp_gguf *g, struct pp_error *err)
{
    struct pp_cursor c = pp_cursor(g->data, g->size);
    const bool named = g->size >= 4 && memcmp(g->data, "GGUF", 4) == 0;
    const enum pp_code other = named ? PP_OK : pp_fail_other_file(g->name, g->data, g->size, err);
    if (other)
        return other;
    if (!named || g->size < HEADER_BYTES)
        return pp_fail(err, PP_ERR_FORMAT, "%s is not a GGUF file", g->name);
    pp_cursor_seek(&c, 4);
    uint32_t version = pp_cursor_u32(&c);
    if (version >= 1u << 24 && version << 8 == 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s is a big-endian GGUF file; pippin reads little-endian ones",
                       g->name);
    if (version != 2 && version != 3)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s is GGUF version %u; pippin reads versions 2 and 3", g->name,
                       version);
    uint64_t n_tensors = pp_cursor_u64(&c);
    uint64_t n_kv = pp_cursor_u64(&c);
    enum pp_code code = read_metadata(g, &c, n_kv, err);
    return code ? code : read_tensors(g, &c, n_tensors, err);
}

/* Takes ownership of the map (zeroed for memory). */
static enum pp_code open_bytes(struct pp_map *map, const void *data, size_t size, const char *name,
                               struct pp_gguf **out, struct pp_error *err)
{
    struct pp_gguf *g = pp_calloc(1, sizeof *g);
    char *copy = pp_strdup(name);
    *out = NULL;
    if (!g || !copy) {
        pp_free(g);
        pp_free(copy);
        pp_map_close(map);
        return pp_fail_nomem(err, name);
    }
    g->map = *map;
    g->data = data;
    g->size = size;
    g->name = copy;
    enum pp_code code = parse(g, err);
    if (code) {
        pp_gguf_close(g);
        return code;
    }
    *out = g;
    return PP_OK;
}

bool pp_gguf_is(const char *path)
{
    char magic[4];
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const bool is = fd >= 0 && read(fd, magic, sizeof magic) == (ssize_t)sizeof magic &&
                    memcmp(magic, "GGUF", sizeof magic) == 0;
    if (fd >= 0)
        close(fd);
    return is;
}

enum pp_code pp_gguf_open(const char *path, struct pp_gguf **out, struct pp_error *err)
{
    struct pp_map map;
    enum pp_code code = pp_map_open(path, &map, err);
    *out = NULL;
    return code ? code : open_bytes(&map, map.data, map.size, path, out, err);
}

enum pp_code pp_gguf_open_memory(const void *data, size_t size, const char *name, struct pp_gguf **out,
                                 struct pp_error *err)
{
    struct pp_map none = {.slot = -1};
    return open_bytes(&none, data, size, name, out, err);
}

void pp_gguf_close(struct pp_gguf *g)
{
    if (!g)
        return;
    for (size_t i = 0; i < g->n_kv; i++)
        pp_free(g->kvs[i].strings);
    pp_free(g->kvs);
    pp_name_index_free(&g->keys);
    pp_free(g->tensors);
    pp_free(g->tensor_names);
    pp_name_index_free(&g->tensor_index);
    pp_free(g->name);
    pp_map_close(&g->map);
    pp_free(g);
}

const char *pp_gguf_path(const struct pp_gguf *g)
{
    return g->name;
}

bool pp_gguf_lost(const struct pp_gguf *g)
{
    return pp_map_lost(&g->map);
}

bool pp_gguf_changed(const struct pp_gguf *g)
{
    return pp_map_changed(&g->map);
}

const struct pp_file_id *pp_gguf_file_id(const struct pp_gguf *g)
{
    return &g->map.id;
}

/* --- queries ------------------------------------------------------------------------------------------- */

size_t pp_gguf_n_kv(const struct pp_gguf *g)
{
    return g->n_kv;
}

struct pp_str pp_gguf_kv_key(const struct pp_gguf *g, size_t i)
{
    return g->kvs[i].key;
}

enum pp_gguf_type pp_gguf_kv_type(const struct pp_gguf *g, size_t i)
{
    return g->kvs[i].type;
}

struct pp_str pp_gguf_kv_raw(const struct pp_gguf *g, size_t i)
{
    return g->kvs[i].raw;
}

static const struct kv *find(const struct pp_gguf *g, const char *key)
{
    size_t i = pp_name_index_find(&g->keys, key, strlen(key));
    return i == SIZE_MAX ? NULL : &g->kvs[i];
}

/* Element i of a value or an array as an integer. */
static bool to_int(enum pp_gguf_type type, const uint8_t *items, uint64_t i, int64_t *v)
{
    size_t each = value_bytes(type);
    struct pp_cursor c = pp_cursor(items + i * each, each);
    uint64_t u;
    switch (type) {
    case PP_GGUF_U8:
        *v = pp_cursor_u8(&c);
        return true;
    case PP_GGUF_I8:
        *v = (int8_t)pp_cursor_u8(&c);
        return true;
    case PP_GGUF_U16:
        *v = pp_cursor_u16(&c);
        return true;
    case PP_GGUF_I16:
        *v = (int16_t)pp_cursor_u16(&c);
        return true;
    case PP_GGUF_U32:
        *v = pp_cursor_u32(&c);
        return true;
    case PP_GGUF_I32:
        *v = (int32_t)pp_cursor_u32(&c);
        return true;
    case PP_GGUF_U64:
        u = pp_cursor_u64(&c);
        *v = (int64_t)u;
        return u <= INT64_MAX;
    case PP_GGUF_I64:
        *v = (int64_t)pp_cursor_u64(&c);
        return true;
    default:
        return false;
    }
}

static bool to_float(enum pp_gguf_type type, const uint8_t *items, uint64_t i, double *v)
{
    size_t each = value_bytes(type);
    struct pp_cursor c = pp_cursor(items + i * each, each);
    int64_t whole;
    if (type == PP_GGUF_F32)
        *v = (double)pp_cursor_f32(&c);
    else if (type == PP_GGUF_F64)
        *v = pp_cursor_f64(&c);
    else if (to_int(type, items, i, &whole))
        *v = (double)whole;
    else
        return false;
    return true;
}

bool pp_gguf_has(const struct pp_gguf *g, const char *key)
{
    return find(g, key) != NULL;
}

bool pp_gguf_int(const struct pp_gguf *g, const char *key, int64_t *v)
{
    const struct kv *kv = find(g, key);
    int64_t got;
    if (!kv || !to_int(kv->type, kv->items, 0, &got))
        return false;
    *v = got;
    return true;
}

bool pp_gguf_float(const struct pp_gguf *g, const char *key, double *v)
{
    const struct kv *kv = find(g, key);
    return kv && to_float(kv->type, kv->items, 0, v);
}

static enum pp_code no_number(const char *key, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks %s, or it is not a number", key);
}

enum pp_code pp_gguf_need_int(const struct pp_gguf *g, const char *key, int64_t *v, struct pp_error *err)
{
    return pp_gguf_int(g, key, v) ? PP_OK : no_number(key, err);
}

enum pp_code pp_gguf_need_float(const struct pp_gguf *g, const char *key, float *v, struct pp_error *err)
{
    double number;
    if (!pp_gguf_float(g, key, &number))
        return no_number(key, err);
    *v = (float)number;
    return PP_OK;
}

bool pp_gguf_bool(const struct pp_gguf *g, const char *key, bool *v)
{
    const struct kv *kv = find(g, key);
    if (!kv || kv->type != PP_GGUF_BOOL)
        return false;
    *v = kv->items[0] != 0;
    return true;
}

bool pp_gguf_string(const struct pp_gguf *g, const char *key, struct pp_str *v)
{
    const struct kv *kv = find(g, key);
    if (!kv || kv->type != PP_GGUF_STRING)
        return false;
    *v = (struct pp_str){(const char *)kv->items, (size_t)kv->n};
    return true;
}

bool pp_gguf_string_is(const struct pp_gguf *g, const char *key, const char *value)
{
    struct pp_str s;
    return pp_gguf_string(g, key, &s) && s.len == strlen(value) && memcmp(s.data, value, s.len) == 0;
}

/* The array under a key, if it has an element i. */
static const struct kv *find_element(const struct pp_gguf *g, const char *key, size_t i)
{
    const struct kv *kv = find(g, key);
    return kv && kv->type == PP_GGUF_ARRAY && i < kv->n ? kv : NULL;
}

bool pp_gguf_array(const struct pp_gguf *g, const char *key, enum pp_gguf_type *type, size_t *n)
{
    const struct kv *kv = find(g, key);
    if (!kv || kv->type != PP_GGUF_ARRAY)
        return false;
    *type = kv->element;
    *n = (size_t)kv->n;
    return true;
}

bool pp_gguf_array_string(const struct pp_gguf *g, const char *key, size_t i, struct pp_str *v)
{
    const struct kv *kv = find_element(g, key, i);
    if (!kv || !kv->strings)
        return false;
    *v = kv->strings[i];
    return true;
}

bool pp_gguf_array_int(const struct pp_gguf *g, const char *key, size_t i, int64_t *v)
{
    const struct kv *kv = find_element(g, key, i);
    int64_t got;
    if (!kv || !to_int(kv->element, kv->items, i, &got))
        return false;
    *v = got;
    return true;
}

bool pp_gguf_array_bool(const struct pp_gguf *g, const char *key, size_t i, bool *v)
{
    const struct kv *kv = find_element(g, key, i);
    if (!kv || kv->element != PP_GGUF_BOOL)
        return false;
    *v = kv->items[i] != 0;
    return true;
}

struct pp_str pp_gguf_array_bytes(const struct pp_gguf *g, const char *key)
{
    enum pp_gguf_type type;
    size_t n;
    const struct kv *kv = pp_gguf_array(g, key, &type, &n) && n ? find_element(g, key, 0) : NULL;
    if (!kv || (type != PP_GGUF_U8 && type != PP_GGUF_I8))
        return (struct pp_str){NULL, 0};
    return (struct pp_str){(const char *)kv->items, n};
}

bool pp_gguf_array_float(const struct pp_gguf *g, const char *key, size_t i, double *v)
{
    const struct kv *kv = find_element(g, key, i);
    return kv && to_float(kv->element, kv->items, i, v);
}

size_t pp_gguf_n_tensors(const struct pp_gguf *g)
{
    return g->n_tensors;
}

const struct pp_tensor *pp_gguf_tensor_at(const struct pp_gguf *g, size_t i)
{
    return &g->tensors[i];
}

const struct pp_tensor *pp_gguf_tensor(const struct pp_gguf *g, const char *name)
{
    size_t i = pp_name_index_find(&g->tensor_index, name, strlen(name));
    return i == SIZE_MAX ? NULL : &g->tensors[i];
}
