/* gguf_write.c - the writer of GGUF v3. gguf.c describes the layout. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/gguf.h"

enum { ALIGNMENT = 32 };

struct pp_gguf_writer {
    char *path;
    char *temp;           /* written first, and renamed by finish */
    FILE *file;           /* NULL until begin */
    struct pp_buf kvs;
    struct pp_buf infos;
    uint64_t n_kv;
    uint64_t n_tensors;
    uint64_t data_bytes;  /* of all tensors, with padding */
    uint64_t *sizes;      /* [n_tensors] */
    size_t sizes_cap;
    bool bad;             /* memory ran out */
    char problem[160];    /* names a tensor announced with an impossible shape; otherwise "" */
    uint64_t current;     /* the tensor whose bytes come next */
    uint64_t written;     /* bytes of it */
};

static uint64_t padding(uint64_t n)
{
    return (ALIGNMENT - n % ALIGNMENT) % ALIGNMENT;
}

/* --- integers and strings, little-endian whatever the machine ------------------------------------------ */

static void put_int(struct pp_buf *b, uint64_t v, unsigned bytes)
{
    uint8_t out[8];
    for (unsigned i = 0; i < bytes; i++)
        out[i] = (uint8_t)(v >> (8 * i));
    pp_buf_add(b, out, bytes);
}

static void put_f32(struct pp_buf *b, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    put_int(b, bits, 4);
}

static void put_str(struct pp_buf *b, const char *s, size_t n)
{
    put_int(b, n, 8);
    pp_buf_add(b, s, n);
}

static struct pp_buf *put_key(struct pp_gguf_writer *w, const char *key, size_t n, enum pp_gguf_type type)
{
    put_str(&w->kvs, key, n);
    put_int(&w->kvs, type, 4);
    w->n_kv++;
    return &w->kvs;
}

static struct pp_buf *put_array(struct pp_gguf_writer *w, const char *key, enum pp_gguf_type element, size_t n)
{
    struct pp_buf *b = put_key(w, key, strlen(key), PP_GGUF_ARRAY);
    put_int(b, element, 4);
    put_int(b, n, 8);
    return b;
}

/* --- the interface ------------------------------------------------------------------------------------- */

enum pp_code pp_gguf_writer_new(const char *path, struct pp_gguf_writer **out, struct pp_error *err)
{
    struct pp_gguf_writer *w = pp_calloc(1, sizeof *w);
    *out = NULL;
    if (!w)
        return pp_fail_nomem(err, "a GGUF writer");
    const enum pp_code code = pp_follow_links(path, &w->path, err);
    if (code) {
        pp_gguf_writer_free(w);
        return code;
    }
    w->temp = pp_temporary_name(w->path);
    if (!w->temp) {
        pp_gguf_writer_free(w);
        return pp_fail_nomem(err, "a file name");
    }
    *out = w;
    return PP_OK;
}

void pp_gguf_writer_free(struct pp_gguf_writer *w)
{
    if (!w)
        return;
    if (w->file) {
        fclose(w->file);
        unlink(w->temp); /* a file has a name: NOLINT(clang-analyzer-core.NonNullParamChecker) */
    }
    pp_buf_free(&w->kvs);
    pp_buf_free(&w->infos);
    pp_free(w->sizes);
    pp_free(w->path);
    pp_free(w->temp);
    pp_free(w);
}

void pp_gguf_add_u32(struct pp_gguf_writer *w, const char *key, uint32_t v)
{
    put_int(put_key(w, key, strlen(key), PP_GGUF_U32), v, 4);
}

void pp_gguf_add_u64(struct pp_gguf_writer *w, const char *key, uint64_t v)
{
    put_int(put_key(w, key, strlen(key), PP_GGUF_U64), v, 8);
}

void pp_gguf_add_f32(struct pp_gguf_writer *w, const char *key, float v)
{
    put_f32(put_key(w, key, strlen(key), PP_GGUF_F32), v);
}

void pp_gguf_add_bool(struct pp_gguf_writer *w, const char *key, bool v)
{
    put_int(put_key(w, key, strlen(key), PP_GGUF_BOOL), v, 1);
}

void pp_gguf_add_str(struct pp_gguf_writer *w, const char *key, const char *s, size_t n)
{
    put_str(put_key(w, key, strlen(key), PP_GGUF_STRING), s, n);
}

void pp_gguf_add_text(struct pp_gguf_writer *w, const char *key, const char *text)
{
    pp_gguf_add_str(w, key, text, strlen(text));
}

void pp_gguf_add_str_array(struct pp_gguf_writer *w, const char *key, const struct pp_str *items, size_t n)
{
    struct pp_buf *b = put_array(w, key, PP_GGUF_STRING, n);
    for (size_t i = 0; i < n; i++)
        put_str(b, items[i].data, items[i].len);
}

void pp_gguf_add_f32_array(struct pp_gguf_writer *w, const char *key, const float *items, size_t n)
{
    struct pp_buf *b = put_array(w, key, PP_GGUF_F32, n);
    for (size_t i = 0; i < n; i++)
        put_f32(b, items[i]);
}

void pp_gguf_add_u32_array(struct pp_gguf_writer *w, const char *key, const uint32_t *items, size_t n)
{
    struct pp_buf *b = put_array(w, key, PP_GGUF_U32, n);
    for (size_t i = 0; i < n; i++)
        put_int(b, items[i], 4);
}

void pp_gguf_add_u64_array(struct pp_gguf_writer *w, const char *key, const uint64_t *items, size_t n)
{
    struct pp_buf *b = put_array(w, key, PP_GGUF_U64, n);
    for (size_t i = 0; i < n; i++)
        put_int(b, items[i], 8);
}

void pp_gguf_add_i32_array(struct pp_gguf_writer *w, const char *key, const int32_t *items, size_t n)
{
    struct pp_buf *b = put_array(w, key, PP_GGUF_I32, n);
    for (size_t i = 0; i < n; i++)
        put_int(b, (uint32_t)items[i], 4);
}

void pp_gguf_add_u8_array(struct pp_gguf_writer *w, const char *key, const uint8_t *items, size_t n)
{
    pp_buf_add(put_array(w, key, PP_GGUF_U8, n), (const char *)items, n);
}

void pp_gguf_add_bool_array(struct pp_gguf_writer *w, const char *key, const bool *items, size_t n)
{
    struct pp_buf *b = put_array(w, key, PP_GGUF_BOOL, n);
    for (size_t i = 0; i < n; i++)
        put_int(b, items[i], 1);
}

void pp_gguf_add_copy(struct pp_gguf_writer *w, const struct pp_gguf *from, size_t kv_index)
{
    struct pp_str key = pp_gguf_kv_key(from, kv_index), raw = pp_gguf_kv_raw(from, kv_index);
    pp_buf_add(put_key(w, key.data, key.len, pp_gguf_kv_type(from, kv_index)), raw.data, raw.len);
}

/* Bytes of a tensor; 0: its shape is impossible. */
static size_t tensor_bytes(uint32_t type, int n_dims, const int64_t *ne)
{
    size_t bytes = n_dims >= 1 && n_dims <= PP_MAX_DIMS ? pp_type_row_bytes(type, ne[0]) : 0;
    for (int d = 1; bytes && d < n_dims; d++)
        if (ne[d] <= 0 || __builtin_mul_overflow(bytes, (size_t)ne[d], &bytes))
            return 0;
    return bytes;
}

void pp_gguf_add_tensor(struct pp_gguf_writer *w, const char *name, uint32_t type, int n_dims, const int64_t *ne)
{
    size_t bytes = tensor_bytes(type, n_dims, ne);
    if (!bytes) {
        pp_utf8_print(w->problem, sizeof w->problem, "tensor %.80s has a shape that its type cannot have", name);
        return;
    }
    if (pp_grow(&w->sizes, &w->sizes_cap, (size_t)w->n_tensors + 1, sizeof *w->sizes) != 0) {
        w->bad = true;
        return;
    }
    w->sizes[w->n_tensors++] = bytes;
    put_str(&w->infos, name, strlen(name));
    put_int(&w->infos, (uint32_t)n_dims, 4);
    for (int d = 0; d < n_dims; d++)
        put_int(&w->infos, (uint64_t)ne[d], 8);
    put_int(&w->infos, type, 4);
    put_int(&w->infos, w->data_bytes, 8);
    w->data_bytes += bytes + padding(bytes);
}

static enum pp_code fail_write(const struct pp_gguf_writer *w, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_IO, "cannot write %s: %s", w->path, strerror(errno));
}

static enum pp_code put_bytes(struct pp_gguf_writer *w, const void *bytes, size_t n, struct pp_error *err)
{
    return !n || fwrite(bytes, 1, n, w->file) == n ? PP_OK : fail_write(w, err);
}

static enum pp_code put_padding(struct pp_gguf_writer *w, uint64_t n, struct pp_error *err)
{
    static const char zeros[ALIGNMENT];
    return put_bytes(w, zeros, (size_t)padding(n), err);
}

enum pp_code pp_gguf_writer_begin(struct pp_gguf_writer *w, struct pp_error *err)
{
    struct pp_buf head = {0};
    pp_buf_str(&head, "GGUF");
    put_int(&head, 3, 4);
    put_int(&head, w->n_tensors, 8);
    put_int(&head, w->n_kv, 8);
    enum pp_code code = PP_OK;
    if (w->bad || w->kvs.bad || w->infos.bad || head.bad)
        code = pp_fail_nomem(err, "the metadata of a GGUF file");
    else if (w->problem[0])
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "cannot write %s: %s", w->path, w->problem);
    else
        code = pp_check_target(w->path, err);
    if (!code) {
        pp_remove_stale(w->path);
        unlink(w->temp); /* of a process that died and had our id */
        int fd = open(w->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0)
            flock(fd, LOCK_EX | LOCK_NB); /* so that pp_remove_stale in other processes leaves it alone */
        if (fd < 0 || !(w->file = fdopen(fd, "wb"))) {
            code = fail_write(w, err);
            if (fd >= 0) {
                close(fd);
                unlink(w->temp);
            }
        }
    }
    if (!code)
        code = put_bytes(w, head.data, head.len, err);
    if (!code)
        code = put_bytes(w, w->kvs.data, w->kvs.len, err);
    if (!code)
        code = put_bytes(w, w->infos.data, w->infos.len, err);
    if (!code)
        code = put_padding(w, head.len + w->kvs.len + w->infos.len, err);
    pp_buf_free(&head);
    return code;
}

enum pp_code pp_gguf_write(struct pp_gguf_writer *w, const void *bytes, size_t n, struct pp_error *err)
{
    const char *p = bytes;
    while (n) {
        if (w->current == w->n_tensors)
            return pp_fail(err, PP_ERR_USAGE, "%s: more tensor data than announced", w->path);
        uint64_t missing = w->sizes[w->current] - w->written;
        size_t now = n < missing ? n : (size_t)missing;
        enum pp_code code = put_bytes(w, p, now, err);
        p += now;
        n -= now;
        w->written += now;
        if (!code && w->written == w->sizes[w->current]) {
            code = put_padding(w, w->written, err);
            w->current++;
            w->written = 0;
        }
        if (code)
            return code;
    }
    return PP_OK;
}

enum pp_code pp_gguf_write_zeros(struct pp_gguf_writer *w, struct pp_error *err)
{
    static const char zero;
    if (w->current == w->n_tensors || w->written)
        return pp_fail(err, PP_ERR_USAGE, "%s: no tensor begins here", w->path);
    if (fseeko(w->file, (off_t)w->sizes[w->current] - 1, SEEK_CUR) != 0)
        return fail_write(w, err);
    w->written = w->sizes[w->current] - 1;
    return pp_gguf_write(w, &zero, 1, err);
}

enum pp_code pp_gguf_writer_finish(struct pp_gguf_writer *w, struct pp_error *err)
{
    if (w->current != w->n_tensors)
        return pp_fail(err, PP_ERR_USAGE, "%s: tensor %" PRIu64 " of %" PRIu64 " was not written completely", w->path,
                       w->current + 1, w->n_tensors);
    enum pp_code code = fflush(w->file) == 0 && fsync(fileno(w->file)) == 0 ? PP_OK : fail_write(w, err);
    if (fclose(w->file) != 0 && !code)
        code = fail_write(w, err);
    w->file = NULL;
    if (!code)
        code = pp_name_file(w->temp, w->path, err);
    if (code)
        unlink(w->temp);
    return code;
}
