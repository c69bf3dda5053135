/* imatrix_read.c - reads importance matrices in both formats (convert.h). Files are not trusted: memory is bounded by
 * their size, and time by MAX_ENTRIES, which no model has. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/cursor.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/gguf.h"
#include "engine/imatrix.h"

enum {
    MAX_ENTRIES = 16384,
    MAX_NAME = 255 - (int)sizeof ".in_sum2", /* names in GGUF files have at most 255 bytes */
    MAX_TEXT_NAME = 4096,
    OLD_CHUNK = 512, /* llama-imatrix's default chunk, which the old format does not state */
};

/* So that sums over several files stay in the range of the searches for scales. */
static const float MAX_SUM = 1e30f;
static const float MAX_COUNT = 1e15f;

static enum pp_code fail(const char *file, struct pp_error *err, const char *what)
{
    return pp_fail(err, PP_ERR_FORMAT, "%s is damaged, or not an importance matrix: %s", file, what);
}

static enum pp_code fail_entry(const char *file, const char *tensor, struct pp_error *err, const char *what)
{
    return pp_fail(err, PP_ERR_FORMAT, "%s is damaged: %s for %.200s", file, what, tensor);
}

/* floats: n of them, little-endian, perhaps unaligned. */
static enum pp_code take_sums(const char *file, struct pp_importance *e, const void *floats, float times,
                              struct pp_error *err)
{
    memcpy(e->sums, floats, (size_t)e->n_values * sizeof *e->sums);
    for (int64_t i = 0; i < e->n_values; i++) {
        e->sums[i] *= times;
        if (!(e->sums[i] >= 0 && e->sums[i] <= MAX_SUM))
            return fail_entry(file, e->name, err, "a sum of squares is negative, too large or not a number");
    }
    return PP_OK;
}

/* --- GGUF ------------------------------------------------------------------------------------------------------- */

/* The tensor's name without `suffix`, if it has that. */
static bool cut_suffix(const char *name, const char *suffix, char out[MAX_NAME + 1])
{
    const size_t n = strlen(name), m = strlen(suffix);
    if (n <= m || n - m > MAX_NAME || strcmp(name + n - m, suffix) != 0)
        return false;
    memcpy(out, name, n - m);
    out[n - m] = 0;
    return true;
}

static int64_t elements(const struct pp_tensor *t)
{
    return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
}

static enum pp_code take_counts(const char *file, struct pp_importance *e, const struct pp_tensor *t,
                                struct pp_error *err)
{
    for (int64_t i = 0; i < e->n_counts; i++) {
        float count;
        memcpy(&count, (const uint8_t *)t->data + (size_t)i * sizeof count, sizeof count);
        if (!(count >= 0 && count <= MAX_COUNT))
            return fail_entry(file, e->name, err, "a count is negative, too large or not a number");
        e->counts[i] = rint((double)count);
    }
    return PP_OK;
}

static enum pp_code read_tensor(const struct pp_gguf *g, const struct pp_tensor *sums, const char *name,
                                struct pp_imatrix *m, struct pp_error *err)
{
    const char *file = pp_gguf_path(g);
    char full[256];
    snprintf(full, sizeof full, "%s.counts", name);
    const struct pp_tensor *counts = pp_gguf_tensor(g, full);
    if (!counts)
        return fail_entry(file, name, err, "there are sums but no counts");
    const int64_t n_values = elements(sums), n_counts = elements(counts);
    if (sums->type != PP_TYPE_F32 || counts->type != PP_TYPE_F32 || n_values % n_counts != 0)
        return fail_entry(file, name, err, "sums and counts do not match");
    struct pp_importance *e;
    enum pp_code code = pp_imatrix_entry(m, name, n_values / n_counts, n_counts, &e, err);
    if (!code)
        code = take_sums(file, e, sums->data, 1, err);
    return code ? code : take_counts(file, e, counts, err);
}

static enum pp_code read_datasets(const struct pp_gguf *g, struct pp_imatrix *m, uint32_t chunk_size,
                                  struct pp_error *err)
{
    enum pp_gguf_type type;
    size_t n = 0;
    enum pp_code code = PP_OK;
    if (!pp_gguf_array(g, "imatrix.datasets", &type, &n) || type != PP_GGUF_STRING)
        return PP_OK;
    for (size_t i = 0; i < n && !code; i++) {
        struct pp_str s = {0};
        pp_gguf_array_string(g, "imatrix.datasets", i, &s);
        if (s.len > MAX_TEXT_NAME || memchr(s.data, 0, s.len))
            return fail(pp_gguf_path(g), err, "a text's name is too long");
        char *name = pp_strndup(s.data, s.len);
        code = name ? pp_imatrix_count(m, name, 0, chunk_size, err) : pp_fail_nomem(err, "the importance matrix");
        pp_free(name);
    }
    return code;
}

static enum pp_code read_gguf(const struct pp_gguf *g, struct pp_imatrix *m, struct pp_error *err)
{
    int64_t chunks = 0, chunk_size = OLD_CHUNK;
    char name[MAX_NAME + 1];
    if (!pp_gguf_string_is(g, "general.type", "imatrix"))
        return pp_fail(err, PP_ERR_FORMAT, "%s is a GGUF file but not an importance matrix; `pippin imatrix` makes one",
                       pp_gguf_path(g));
    if (pp_gguf_int(g, "imatrix.chunk_count", &chunks) && (chunks < 0 || chunks > UINT32_MAX))
        return fail(pp_gguf_path(g), err, "the number of chunks is invalid");
    if (pp_gguf_int(g, "imatrix.chunk_size", &chunk_size) && (chunk_size < 0 || chunk_size > UINT32_MAX))
        return fail(pp_gguf_path(g), err, "the size of a chunk is invalid");
    enum pp_code code = read_datasets(g, m, (uint32_t)chunk_size, err);
    m->chunks = (uint32_t)chunks;
    m->chunk_size = (uint32_t)chunk_size;
    for (size_t i = 0; i < pp_gguf_n_tensors(g) && !code; i++) {
        const struct pp_tensor *t = pp_gguf_tensor_at(g, i);
        if (m->n == MAX_ENTRIES)
            return fail(pp_gguf_path(g), err, "it has more tensors than any model");
        if (cut_suffix(t->name, ".in_sum2", name))
            code = read_tensor(g, t, name, m, err);
    }
    if (!code && !m->n)
        code = fail(pp_gguf_path(g), err, "it has no data for any tensor");
    return code ? code : pp_gguf_lost(g) ? fail(pp_gguf_path(g), err, "it became shorter while it was read") : PP_OK;
}

/* --- the older form --------------------------------------------------------------------------------------------- */

static bool good_name(const char *s, size_t n)
{
    if (n == 0 || n > MAX_NAME || !pp_utf8_valid(s, n))
        return false;
    for (size_t i = 0; i < n; i++)
        if ((uint8_t)s[i] < 0x20 || s[i] == 0x7f)
            return false;
    return true;
}

static enum pp_code read_old_entry(struct pp_cursor *c, const char *file, struct pp_imatrix *m, struct pp_error *err)
{
    const uint32_t len = pp_cursor_u32(c);
    const char *bytes = pp_cursor_bytes(c, len);
    const int32_t calls = (int32_t)pp_cursor_u32(c), n = (int32_t)pp_cursor_u32(c);
    const void *values = n > 0 ? pp_cursor_bytes(c, (uint64_t)n * sizeof(float)) : NULL;
    char name[MAX_NAME + 1];
    if (!values || c->bad)
        return fail(file, err, "it ends too soon");
    if (!good_name(bytes, len))
        return fail(file, err, "the name of a tensor is invalid");
    memcpy(name, bytes, len);
    name[len] = 0;
    if (calls < 0)
        return fail_entry(file, name, err, "a count is negative, too large or not a number");
    if (pp_imatrix_find(m, name))
        return fail_entry(file, name, err, "there are two entries");
    struct pp_importance *e;
    enum pp_code code = pp_imatrix_entry(m, name, n, 1, &e, err);
    if (code)
        return code;
    e->counts[0] = (double)calls * OLD_CHUNK;
    return take_sums(file, e, values, OLD_CHUNK, err);
}

static enum pp_code read_old(const void *data, size_t size, const char *file, struct pp_imatrix *m,
                             struct pp_error *err)
{
    struct pp_cursor c = pp_cursor(data, size);
    const int32_t n = (int32_t)pp_cursor_u32(&c);
    enum pp_code code = PP_OK;
    if (c.bad || n < 1 || n > MAX_ENTRIES)
        return fail(file, err, "it is neither a GGUF file nor in the older imatrix format");
    for (int32_t i = 0; i < n && !code; i++)
        code = read_old_entry(&c, file, m, err);
    if (code || !pp_cursor_left(&c))
        return code;
    const int32_t chunks = (int32_t)pp_cursor_u32(&c);
    m->chunks = chunks > 0 ? (uint32_t)chunks : 0;
    m->chunk_size = OLD_CHUNK;
    if (!pp_cursor_left(&c))
        return c.bad ? fail(file, err, "it ends too soon") : PP_OK;
    const uint32_t len = pp_cursor_u32(&c);
    const char *text = pp_cursor_bytes(&c, len);
    if (!text || len > MAX_TEXT_NAME || memchr(text, 0, len))
        return fail(file, err, "the name of the text is invalid");
    char *name = pp_strndup(text, len);
    code = !name ? pp_fail_nomem(err, "the importance matrix") : len ? pp_imatrix_count(m, name, 0, OLD_CHUNK, err)
                                                                      : PP_OK;
    pp_free(name);
    return code;
}

/* --- either ----------------------------------------------------------------------------------------------------- */

enum pp_code pp_imatrix_read_memory(const void *data, size_t size, const char *name, struct pp_imatrix **out,
                                    struct pp_error *err)
{
    struct pp_gguf *g = NULL;
    enum pp_code code = pp_imatrix_new(out, err);
    if (code)
        return code;
    if (size >= 4 && memcmp(data, "GGUF", 4) == 0) {
        code = pp_gguf_open_memory(data, size, name, &g, err);
        if (!code)
            code = read_gguf(g, *out, err);
        pp_gguf_close(g);
    } else {
        code = read_old(data, size, name, *out, err);
    }
    if (code) {
        pp_imatrix_free(*out);
        *out = NULL;
    }
    return code;
}

enum pp_code pp_imatrix_read(const char *path, struct pp_imatrix **out, struct pp_error *err)
{
    struct pp_map map = {0};
    *out = NULL;
    enum pp_code code = pp_map_open(path, &map, err);
    if (!code)
        code = pp_imatrix_read_memory(map.data, map.size, path, out, err);
    if (!code && pp_map_lost(&map)) {
        pp_imatrix_free(*out);
        *out = NULL;
        code = fail(path, err, "it became shorter while it was read");
    }
    pp_map_close(&map);
    /* that code is reserved for models */
    if (code != PP_ERR_NOT_FOUND)
        return code;
    if (err)
        err->code = PP_ERR_IO;
    return pp_fail_advice(err, "`pippin imatrix -m MODEL -f TEXT -o FILE` makes an importance matrix");
}
