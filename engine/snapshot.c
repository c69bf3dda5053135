/* snapshot.c - a sequence as bytes, and back. Little-endian throughout.
 *
 *   OFFSET  SIZE  DESCRIPTION
 *        0     8  magic "PIPPINKV"
 *        8     4  version, 1
 *       12     4  bytes of the key text, K
 *       16     8  number of tokens, T
 *       24     4  positions in a page, 64
 *       28     4  reserved, 0
 *       32     8  bytes of a page, P
 *       40    16  XXH3-128 of everything from offset 56 to the first page (low, high)
 *       56     K  key text: what the KV depends on besides tokens, one name=value a line
 *     56+K   4*T  tokens, int32
 *        .  16*N  XXH3-128 of each page (low, high), N = ceil(T / 64)
 *        .     -  zeros up to a multiple of 64
 *        .   P*N  pages; layout: engine/kv.h. Positions behind the last token are zeros
 *
 * A snapshot is a cache and untrusted: key, tokens and every checksum are checked before a page is used. */
#include <string.h>

#include "engine/base/cursor.h"
#include "engine/base/mem.h"
#include "engine/engine_int.h"

static const char MAGIC[8] = "PIPPINKV";
enum { VERSION = 1, HEADER = 56, ALIGNMENT = 64, MAX_KEY = 1 << 16 };

enum pp_code pp_seq_key(const struct pp_seq *s, const struct pp_sha256 *identity, struct pp_buf *text,
                        struct pp_error *err)
{
    const struct pp_kv_layout *l = pp_kv_pool_layout(s->engine->tier[0].kv);
    char hex[65];
    pp_sha256_hex(identity, hex); /* covers the weights and the hyperparameters, RoPE among them */
    pp_buf_fmt(text, "model=%s\n", hex);
    pp_buf_fmt(text, "kv=%s rotate=%d page=%d\n", pp_kv_type_name(l->type), l->rotate, PP_PAGE_TOKENS);
    pp_buf_fmt(text, "arithmetic=%s\n", pp_cpu_rounds(s->engine->cpu) ? PP_CPU_ARITHMETIC_BF16 : PP_CPU_ARITHMETIC);
    for (int i = 0; i < s->adapters.n; i++) {
        pp_sha256_hex(&s->adapters.use[i].adapter->identity, hex);
        pp_buf_fmt(text, "adapter=%s scale=%a\n", hex, (double)s->adapters.use[i].scale);
    }
    return text->bad ? pp_fail_nomem(err, "the cache key") : PP_OK;
}

/* --- writing --------------------------------------------------------------------------------------------------- */

static void put32(struct pp_buf *b, uint32_t v)
{
    uint8_t bytes[4];
    for (int i = 0; i < 4; i++)
        bytes[i] = (uint8_t)(v >> (8 * i));
    pp_buf_add(b, bytes, sizeof bytes);
}

static void put64(struct pp_buf *b, uint64_t v)
{
    put32(b, (uint32_t)v);
    put32(b, (uint32_t)(v >> 32));
}

static void put_hash(struct pp_buf *b, struct pp_hash128 h)
{
    put64(b, h.lo);
    put64(b, h.hi);
}

/* The last page with zeros behind the sequence's end, so that equal sequences give equal bytes. */
static void copy_filled(const struct pp_kv_layout *l, const uint8_t *page, int n_filled, uint8_t *zeroed)
{
    for (int i = 0; i < n_filled; i++)
        pp_kv_copy_position(l, page, i, zeroed, i);
}

enum pp_code pp_snapshot_save(const struct pp_seq *s, const struct pp_sha256 *identity, struct pp_buf *out,
                              struct pp_error *err)
{
    const struct pp_kv_layout *l = pp_kv_pool_layout(s->engine->tier[0].kv);
    size_t begin = out->len, n_pages = (size_t)((s->len + PP_PAGE_TOKENS - 1) / PP_PAGE_TOKENS);
    int last = (int)(s->len % PP_PAGE_TOKENS);
    struct pp_buf key = {0};
    uint8_t *partial = NULL;
    enum pp_code code = pp_seq_key(s, identity, &key, err);
    if (!code && last && !(partial = pp_calloc(1, l->page_bytes)))
        code = pp_fail_nomem(err, "a snapshot");
    if (code) {
        pp_buf_free(&key);
        return code;
    }
    if (partial)
        copy_filled(l, s->tier[0].page_data[n_pages - 1], last, partial);

    pp_buf_add(out, MAGIC, sizeof MAGIC);
    put32(out, VERSION);
    put32(out, (uint32_t)key.len);
    put64(out, (uint64_t)s->len);
    put32(out, PP_PAGE_TOKENS);
    put32(out, 0);
    put64(out, l->page_bytes);
    put_hash(out, (struct pp_hash128){0}); /* filled in below */
    pp_buf_add(out, key.data, key.len);
    for (int64_t i = 0; i < s->len; i++)
        put32(out, (uint32_t)s->tokens[i]);
    for (size_t i = 0; i < n_pages; i++)
        put_hash(out, pp_hash128(partial && i == n_pages - 1 ? partial : s->tier[0].page_data[i], l->page_bytes));
    while (!out->bad && (out->len - begin) % ALIGNMENT)
        pp_buf_char(out, 0);
    size_t body = out->len;
    for (size_t i = 0; i < n_pages; i++)
        pp_buf_add(out, partial && i == n_pages - 1 ? partial : s->tier[0].page_data[i], l->page_bytes);
    pp_free(partial);
    pp_buf_free(&key);
    if (out->bad)
        return pp_fail_nomem(err, "a snapshot");
    struct pp_buf hash = {0};
    put_hash(&hash, pp_hash128(out->data + begin + HEADER, body - begin - HEADER));
    if (hash.bad)
        return pp_fail_nomem(err, "a snapshot");
    memcpy(out->data + begin + 40, hash.data, 16);
    pp_buf_free(&hash);
    return PP_OK;
}

/* --- reading --------------------------------------------------------------------------------------------------- */

static struct pp_hash128 get_hash(struct pp_cursor *c)
{
    struct pp_hash128 h;
    h.lo = pp_cursor_u64(c);
    h.hi = pp_cursor_u64(c);
    return h;
}

static bool same_hash(struct pp_hash128 a, struct pp_hash128 b)
{
    return a.lo == b.lo && a.hi == b.hi;
}

static enum pp_code damaged(struct pp_error *err, const char *what)
{
    return pp_fail(err, PP_ERR_FORMAT, "the saved cache is damaged (%s); it is computed again", what);
}

/* The line of text[0..n) that begins with name, which need not end with \n; its length, 0 if there is none. */
static size_t find_line(const char *text, size_t n, const char *name, const char **line)
{
    *line = memmem(text, n, name, strlen(name));
    if (!*line)
        return 0;
    size_t left = n - (size_t)(*line - text);
    const char *end = memchr(*line, '\n', left);
    return end ? (size_t)(end - *line) : left;
}

/* Says in which of its lines the file's key differs from ours. */
static enum pp_code wrong_key(struct pp_error *err, const char *theirs, size_t n, const struct pp_buf *ours)
{
    static const struct { const char *line, *reason; } reasons[] = {
        {"model=", "the model is another one, or was changed"},
        {"kv=", "the type of the KV cache is another one"},
        {"arithmetic=", "it was computed differently, by another version of pippin or with other --activations"},
    };
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++) {
        const char *a, *b;
        size_t la = find_line(theirs, n, reasons[i].line, &a);
        size_t lb = find_line(ours->data, ours->len, reasons[i].line, &b);
        if (!la || la != lb || memcmp(a, b, la) != 0)
            return pp_fail(err, PP_ERR_MISMATCH, "the saved cache is not used: %s; it is computed again",
                           reasons[i].reason);
    }
    return pp_fail(err, PP_ERR_MISMATCH,
                   "the saved cache is not used: the adapters or their strengths are others; it is computed again");
}

/* Copies and checks the pages; nothing of the sequence changes unless all are right. */
static enum pp_code load_pages(struct pp_seq *s, int64_t n_tokens, struct pp_cursor hashes, struct pp_cursor *c,
                               struct pp_error *err)
{
    struct pp_kv_pool *pool = s->engine->tier[0].kv;
    size_t bytes = pp_kv_pool_layout(pool)->page_bytes;
    int64_t n_pages = (n_tokens + PP_PAGE_TOKENS - 1) / PP_PAGE_TOKENS;
    for (int64_t i = 0; i < n_pages; i++) {
        const void *src = pp_cursor_bytes(c, bytes);
        pp_page_id page = src ? pp_page_take(pool) : PP_NO_PAGE;
        bool good = false;
        if (page != PP_NO_PAGE) {
            pp_seq_set_page(s, 0, s->tier[0].n_pages++, page);
            memcpy(pp_page_data(pool, page), src, bytes);
            good = same_hash(get_hash(&hashes), pp_hash128(pp_page_data(pool, page), bytes));
        }
        if (!good) {
            pp_seq_drop_pages(s);
            if (src && page == PP_NO_PAGE)
                return pp_fail(err, PP_ERR_NOMEM,
                               "there are too few free KV pages for the saved cache; it is computed again");
            return damaged(err, src ? "a page's checksum is wrong" : "it is cut short");
        }
    }
    return PP_OK;
}

enum pp_code pp_snapshot_load(struct pp_seq *s, const struct pp_sha256 *identity, const void *data, size_t size,
                              struct pp_error *err)
{
    const struct pp_kv_layout *l = pp_kv_pool_layout(s->engine->tier[0].kv);
    struct pp_cursor c = pp_cursor(data, size);
    const char *magic = pp_cursor_bytes(&c, sizeof MAGIC);
    if (s->len)
        return pp_fail(err, PP_ERR_USAGE, "a snapshot is restored into an empty conversation only");
    if (!magic || memcmp(magic, MAGIC, sizeof MAGIC) != 0)
        return damaged(err, "it is no snapshot");
    uint32_t version = pp_cursor_u32(&c), key_len = pp_cursor_u32(&c);
    uint64_t n_tokens = pp_cursor_u64(&c);
    uint32_t page_tokens = pp_cursor_u32(&c);
    pp_cursor_u32(&c);
    uint64_t page_bytes = pp_cursor_u64(&c);
    struct pp_hash128 head_hash = get_hash(&c);
    if (version != VERSION && !c.bad)
        return pp_fail(err, PP_ERR_MISMATCH,
                       "the saved cache has format %u, this pippin reads %d; it is computed again", version, VERSION);
    if (c.bad || key_len > MAX_KEY || n_tokens > size / 4)
        return damaged(err, "its header is wrong");
    const char *key = pp_cursor_bytes(&c, key_len);
    struct pp_cursor tokens = c;
    pp_cursor_bytes(&c, 4 * n_tokens);
    struct pp_cursor hashes = c;
    uint64_t n_pages = (n_tokens + PP_PAGE_TOKENS - 1) / PP_PAGE_TOKENS;
    pp_cursor_bytes(&c, 16 * n_pages);
    if (!c.bad)
        pp_cursor_seek(&c, (c.pos + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    if (c.bad)
        return damaged(err, "it is cut short");
    if (!same_hash(head_hash, pp_hash128((const uint8_t *)data + HEADER, c.pos - HEADER)))
        return damaged(err, "its checksum is wrong");

    struct pp_buf ours = {0};
    enum pp_code code = pp_seq_key(s, identity, &ours, err);
    if (!code && (ours.len != key_len || memcmp(ours.data, key, key_len) != 0))
        code = wrong_key(err, key, key_len, &ours);
    pp_buf_free(&ours);
    if (!code && (page_tokens != PP_PAGE_TOKENS || page_bytes != l->page_bytes))
        code = damaged(err, "its pages have another size");
    if (!code && n_tokens > (uint64_t)s->engine->n_ctx)
        code = pp_fail(err, PP_ERR_CONTEXT,
                       "the saved cache has %llu tokens, more than the context of %lld; it is computed again",
                       (unsigned long long)n_tokens, (long long)s->engine->n_ctx);
    for (uint64_t i = 0; !code && i < n_tokens; i++) {
        uint32_t token = pp_cursor_u32(&tokens);
        if (token >= (uint64_t)s->engine->model->info.n_vocab)
            code = damaged(err, "a token is not in the vocabulary");
        else
            s->tokens[i] = (int32_t)token;
    }
    if (!code)
        code = load_pages(s, (int64_t)n_tokens, hashes, &c, err);
    if (!code) {
        s->len = s->plain = (int64_t)n_tokens;
        s->engine->stats.restored_tokens += n_tokens;
    }
    return code;
}
