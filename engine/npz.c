#include "engine/npz.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/cursor.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/safetensors.h"

/* --- the archive --------------------------------------------------------------------------------------------- */

static const uint32_t END_MARK = 0x06054b50, ENTRY_MARK = 0x02014b50, MEMBER_MARK = 0x04034b50;
enum { END_BYTES = 22, ENTRY_BYTES = 46, MEMBER_BYTES = 30, MAX_COMMENT = 65535, MAX_NAME = 500, MAX_TEXT = 1000 };

struct npz {
    const char *path;
    struct pp_map map;
    struct pp_tensor *tensors;  /* [n]: their names are owned */
    size_t n;
    uint8_t **turned;           /* [n]: data of arrays whose columns are stored one after the other; or NULL */
    struct span {
        uint64_t begin, end;    /* of a member with its header */
    } *spans;                   /* [n] */
    uint64_t members_end;       /* where the list of members begins */
};

static enum pp_code fail_damaged(const struct npz *z, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_FORMAT, "%s is not an .npz file, or is damaged or truncated", z->path);
}

/* The checksum of zip. */
static uint32_t crc32_of(const uint8_t *data, size_t n)
{
    uint32_t table[256], crc = UINT32_MAX;
    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int bit = 0; bit < 8; bit++)
            table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xedb88320u : 0);
    }
    for (size_t i = 0; i < n; i++)
        crc = crc >> 8 ^ table[(crc ^ data[i]) & 255];
    return ~crc;
}

/* Finds the record at the end of the archive, which a comment may follow, and reads from it where the list of members
 * is and how many there are. */
static enum pp_code find_list(struct npz *z, struct pp_cursor *list, size_t *n, struct pp_error *err)
{
    const size_t size = z->map.size, most = END_BYTES + MAX_COMMENT;
    for (size_t back = END_BYTES; back <= size && back <= most; back++) {
        struct pp_cursor c = pp_cursor(z->map.data, size);
        pp_cursor_seek(&c, size - back);
        if (pp_cursor_u32(&c) != END_MARK)
            continue;
        const uint32_t disks = pp_cursor_u32(&c);
        const uint16_t here = pp_cursor_u16(&c), all = pp_cursor_u16(&c);
        const uint32_t bytes = pp_cursor_u32(&c), begin = pp_cursor_u32(&c);
        if (pp_cursor_u16(&c) != back - END_BYTES)
            continue;
        if (all == UINT16_MAX || bytes == UINT32_MAX || begin == UINT32_MAX)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "%s is a zip archive in the format for more than 4 GB or 65,534 "
                                                    "members, which pippin does not read", z->path);
        if (disks || here != all || (uint64_t)begin + bytes != size - back)
            return fail_damaged(z, err);
        *list = pp_cursor(z->map.data, size - back);
        pp_cursor_seek(list, begin);
        z->members_end = begin;
        *n = all;
        return PP_OK;
    }
    return fail_damaged(z, err);
}

/* --- an array -------------------------------------------------------------------------------------------------- */

/* What follows `key` and a colon in an array's header, a literal of Python; NULL: it is not there. */
static const char *value_of(const char *text, const char *key)
{
    const char *at = strstr(text, key);
    at = at ? at + strlen(key) : NULL;
    while (at && *at == ' ')
        at++;
    if (!at || *at != ':')
        return NULL;
    for (at++; *at == ' ';)
        at++;
    return at;
}

/* Reads "(4096, 8)". ne: fastest first, as if rows are stored one after the other. */
static bool read_shape(const char *at, struct pp_tensor *t, uint64_t *elements)
{
    static const uint64_t MOST = (uint64_t)1 << 31; /* values and dimensions: a file has at most 4 GB */
    uint64_t dims[PP_MAX_DIMS];
    int n = 0;
    *elements = 1;
    if (!at || *at++ != '(')
        return false;
    while (*at != ')') {
        char *end;
        if (n == PP_MAX_DIMS || *at < '0' || *at > '9')
            return false;
        dims[n] = strtoull(at, &end, 10);
        if (dims[n] > MOST || *elements * dims[n] > MOST)
            return false;
        *elements *= dims[n++];
        for (at = end; *at == ' ' || *at == ',';)
            at++;
    }
    t->n_dims = n ? n : 1;
    for (int d = 0; d < PP_MAX_DIMS; d++)
        t->ne[d] = d < n ? (int64_t)dims[n - 1 - d] : 1;
    return true;
}

/* MLX calls BF16 a "void" of two bytes. */
static bool read_type(const char *at, uint32_t *type)
{
    static const struct {
        const char *name;
        uint32_t type;
    } types[] = {{"'<f4'", PP_TYPE_F32}, {"'<f2'", PP_TYPE_F16}, {"'<V2'", PP_TYPE_BF16}, {"'|V2'", PP_TYPE_BF16}};
    for (size_t i = 0; at && i < sizeof types / sizeof *types; i++)
        if (strncmp(at, types[i].name, 5) == 0) {
            *type = types[i].type;
            return true;
        }
    return false;
}

/* Stores an array's rows one after the other instead of its columns. */
static enum pp_code turn(struct pp_tensor *t, uint8_t **turned, struct pp_error *err)
{
    const size_t bytes = (size_t)pp_type_info(t->type)->block_bytes, rows = (size_t)t->ne[1], cols = (size_t)t->ne[0];
    const uint8_t *from = t->data;
    if (!(*turned = pp_malloc(t->size)))
        return pp_fail_nomem(err, t->name);
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < cols; i++)
            memcpy(*turned + (r * cols + i) * bytes, from + (i * rows + r) * bytes, bytes);
    t->data = *turned;
    return PP_OK;
}

/* Reads a member: a header in NumPy's format, followed by the data. */
static enum pp_code read_array(struct npz *z, const uint8_t *data, size_t size, struct pp_error *err)
{
    static const char magic[] = "\x93NUMPY";
    struct pp_tensor *t = &z->tensors[z->n];
    struct pp_cursor c = pp_cursor(data, size);
    const char *mark = pp_cursor_bytes(&c, sizeof magic - 1);
    const uint8_t version = pp_cursor_u8(&c);
    pp_cursor_u8(&c);
    const uint32_t length = version == 1 ? pp_cursor_u16(&c) : pp_cursor_u32(&c);
    const char *header = pp_cursor_bytes(&c, length);
    char text[MAX_TEXT + 1] = "";
    uint64_t elements;
    if (c.bad || memcmp(mark, magic, sizeof magic - 1) != 0 || version < 1 || version > 3 || length > MAX_TEXT)
        return pp_fail(err, PP_ERR_FORMAT, "%s: %.200s is not an array in NumPy's format", z->path, t->name);
    memcpy(text, header, length);
    if (!read_type(value_of(text, "'descr'"), &t->type))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s: %.200s is not F32, F16 or BF16; save it again in one of these",
                       z->path, t->name);
    const char *order = value_of(text, "'fortran_order'");
    const bool by_columns = order && strncmp(order, "True", 4) == 0;
    if (!read_shape(value_of(text, "'shape'"), t, &elements) || !order ||
        elements * (uint64_t)pp_type_info(t->type)->block_bytes != pp_cursor_left(&c))
        return pp_fail(err, PP_ERR_FORMAT, "%s: %.200s has a shape that does not match its size; the file is damaged",
                       z->path, t->name);
    if (by_columns && t->n_dims > 2)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s: %.200s has %d dimensions in Fortran's order, which pippin does "
                                                "not read", z->path, t->name, t->n_dims);
    t->size = pp_cursor_left(&c);
    t->data = data + c.pos;
    return by_columns && t->n_dims == 2 && t->size ? turn(t, &z->turned[z->n], err) : PP_OK;
}

/* --- members --------------------------------------------------------------------------------------------------- */

/* What the list says of a member. */
struct entry {
    uint16_t flags, method;
    uint32_t crc, packed, size, at;
    const char *name;
    uint16_t name_bytes;
};

static bool next_entry(struct pp_cursor *c, struct entry *e)
{
    const uint32_t mark = pp_cursor_u32(c);
    pp_cursor_u32(c); /* versions */
    e->flags = pp_cursor_u16(c);
    e->method = pp_cursor_u16(c);
    pp_cursor_u32(c); /* time */
    e->crc = pp_cursor_u32(c);
    e->packed = pp_cursor_u32(c);
    e->size = pp_cursor_u32(c);
    e->name_bytes = pp_cursor_u16(c);
    const uint16_t extra = pp_cursor_u16(c), comment = pp_cursor_u16(c);
    pp_cursor_u64(c); /* disk, attributes */
    e->at = pp_cursor_u32(c);
    e->name = pp_cursor_bytes(c, e->name_bytes);
    pp_cursor_bytes(c, (uint64_t)extra + comment);
    return !c->bad && mark == ENTRY_MARK;
}

/* The data of a member whose size and place the list tells; its own header repeats the name. NULL: it is not there. */
static const uint8_t *member_data(const struct npz *z, const struct entry *e, struct span *span)
{
    struct pp_cursor c = pp_cursor(z->map.data, (size_t)z->members_end);
    pp_cursor_seek(&c, e->at);
    const uint32_t mark = pp_cursor_u32(&c);
    pp_cursor_seek(&c, (uint64_t)e->at + MEMBER_BYTES - 4);
    const uint16_t name_bytes = pp_cursor_u16(&c), extra = pp_cursor_u16(&c);
    const char *name = pp_cursor_bytes(&c, name_bytes);
    pp_cursor_bytes(&c, extra);
    const uint8_t *data = pp_cursor_bytes(&c, e->size);
    *span = (struct span){e->at, c.pos};
    return c.bad || mark != MEMBER_MARK || name_bytes != e->name_bytes || memcmp(name, e->name, name_bytes) != 0
               ? NULL
               : data;
}

static enum pp_code read_member(struct npz *z, const struct entry *e, struct pp_error *err)
{
    static const char end[] = ".npy";
    const size_t n = e->name_bytes, m = sizeof end - 1;
    if (n <= m || n > MAX_NAME || memchr(e->name, 0, n) || memcmp(e->name + n - m, end, m) != 0)
        return pp_fail(err, PP_ERR_FORMAT, "%s has a member that is not an array (.npy)", z->path);
    char *name = pp_strndup(e->name, n - m);
    if (!name)
        return pp_fail_nomem(err, z->path);
    z->tensors[z->n].name = name;
    if (e->flags & 1 || e->method)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s: %.200s is compressed or encrypted; save the file again with "
                                                "mlx.core.savez or numpy.savez, which store it as it is", z->path,
                       name);
    if (e->packed == UINT32_MAX || e->size == UINT32_MAX || e->at == UINT32_MAX)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s: %.200s is stored in the format for more than 4 GB, which pippin "
                                                "does not read", z->path, name);
    const uint8_t *data = e->packed == e->size ? member_data(z, e, &z->spans[z->n]) : NULL;
    if (!data)
        return fail_damaged(z, err);
    if (crc32_of(data, e->size) != e->crc)
        return pp_fail(err, PP_ERR_FORMAT, "%s: %.200s does not match its checksum; download the file again", z->path,
                       name);
    const enum pp_code code = read_array(z, data, e->size, err);
    z->n += !code;
    return code;
}

static int by_begin(const void *a, const void *b)
{
    const uint64_t x = ((const struct span *)a)->begin, y = ((const struct span *)b)->begin;
    return (x > y) - (x < y);
}

static enum pp_code read_members(struct npz *z, struct pp_error *err)
{
    struct pp_cursor list = {0};
    struct entry e;
    size_t n = 0;
    enum pp_code code = find_list(z, &list, &n, err);
    if (code)
        return code;
    z->tensors = pp_calloc(n + 1, sizeof *z->tensors); /* never nothing */
    z->turned = pp_calloc(n + 1, sizeof *z->turned);
    z->spans = pp_calloc(n + 1, sizeof *z->spans);
    if (!z->tensors || !z->turned || !z->spans)
        return pp_fail_nomem(err, z->path);
    for (size_t i = 0; i < n && !code; i++)
        code = next_entry(&list, &e) ? read_member(z, &e, err) : fail_damaged(z, err);
    if (code)
        return code;
    qsort(z->spans, z->n, sizeof *z->spans, by_begin);
    for (size_t i = 1; i < z->n; i++)
        if (z->spans[i].begin < z->spans[i - 1].end)
            return pp_fail(err, PP_ERR_FORMAT, "%s is damaged: members overlap", z->path);
    return PP_OK;
}

static void close_npz(struct npz *z)
{
    for (size_t i = 0; z->tensors && z->turned && i <= z->n; i++) { /* one more than n: a member that failed */
        pp_free((void *)(uintptr_t)z->tensors[i].name);
        pp_free(z->turned[i]);
    }
    pp_free(z->tensors);
    pp_free(z->turned);
    pp_free(z->spans);
    pp_map_close(&z->map);
}

enum pp_code pp_npz_read(const char *path, struct pp_buf *out, struct pp_error *err)
{
    struct npz z = {.path = path};
    enum pp_code code = pp_map_open(path, &z.map, err);
    if (code)
        return code;
    code = read_members(&z, err);
    if (!code)
        code = pp_safetensors_image(z.tensors, z.n, out, err);
    if (!code && (pp_map_lost(&z.map) || pp_map_changed(&z.map)))
        code = pp_fail(err, PP_ERR_IO, "another program changed %s while it was being read; load it again when that is "
                                       "done", path);
    close_npz(&z);
    return code;
}
