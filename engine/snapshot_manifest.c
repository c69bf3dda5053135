/* snapshot_manifest.c - reads and writes the manifest of a snapshot. Little-endian throughout. The reader trusts
 * nothing: every number is checked before it is used, and nothing is allocated beyond what the file's size justifies.
 *
 * Offsets: pippin-formats(5). */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/cursor.h"
#include "engine/base/mem.h"
#include "engine/base/whole_io.h"
#include "engine/snapshot.h"

static const char MANIFEST_MAGIC[8] = "PIPPINSM";
static const char PACK_MAGIC[8] = "PIPPINSP";
enum { HASHED_FROM = 40 };

void pp_snapshot_free(struct snapshot *s)
{
    for (size_t i = 0; i < PP_SNAPSHOT_KEYS; i++)
        pp_buf_free(&s->keys[i]);
    pp_free(s->nodes);
    pp_free(s->logits);
    *s = (struct snapshot){0};
}

char *pp_snapshot_file(const char *base, const char *ending)
{
    struct pp_buf b = {0};
    pp_buf_str(&b, base);
    pp_buf_str(&b, ending);
    return pp_buf_take(&b);
}

/* --- names and sums -------------------------------------------------------------------------------------------- */

struct pp_hash128 pp_snapshot_name(const struct pp_hash128 *parent, const struct pp_sha256 *key,
                                   const int32_t *tokens, uint32_t n)
{
    int32_t padded[PP_PAGE_TOKENS];
    if (n == PP_PAGE_TOKENS)
        return pp_page_identity(parent, key, tokens);
    for (uint32_t i = 0; i < PP_PAGE_TOKENS; i++)
        padded[i] = i < n ? tokens[i] : -1;
    return pp_page_identity(parent, key, padded);
}

static bool same_hash(const struct pp_hash128 *a, const struct pp_hash128 *b)
{
    return a->lo == b->lo && a->hi == b->hi;
}

uint32_t pp_snapshot_child(const struct snapshot *s, uint32_t parent, const struct pp_hash128 *name,
                           const int32_t *tokens, uint32_t n)
{
    for (uint32_t i = parent == PP_NO_NODE ? 0 : parent + 1; i < s->n_nodes; i++) { /* usually the very next one */
        const struct snapshot_node *node = &s->nodes[i];
        if (node->parent == parent && node->n == n && same_hash(&node->name, name) &&
            memcmp(node->tokens, tokens, n * sizeof *tokens) == 0)
            return i;
    }
    return PP_NO_NODE;
}

struct pp_hash128 pp_snapshot_sum(const struct pp_hash128 *name, uint32_t tier, const struct pp_hash128 *chunk_sums,
                                  size_t n)
{
    struct {
        struct pp_hash128 name, inside;
        uint64_t tier;
    } in = {.name = *name, .inside = pp_hash128(chunk_sums, n * sizeof *chunk_sums), .tier = tier};
    return pp_hash128(&in, sizeof in);
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

static void put_node(struct pp_buf *b, const struct snapshot *s, const struct snapshot_node *node)
{
    put32(b, node->parent);
    put32(b, node->n);
    put_hash(b, node->name);
    for (int i = 0; i < PP_PAGE_TOKENS; i++)
        put32(b, (uint32_t)node->tokens[i]);
    for (uint32_t t = 0; t < s->n_tiers; t++) {
        put64(b, node->place[t].offset);
        put_hash(b, node->place[t].sum);
    }
}

/* Overwrites bytes at `at` with those of `from`. */
static void patch(struct pp_buf *b, size_t at, const struct pp_buf *from)
{
    if (from->bad)
        b->bad = true;
    if (!b->bad)
        memcpy(b->data + at, from->data, from->len);
}

void pp_snapshot_encode(const struct snapshot *s, struct pp_buf *out)
{
    struct pp_buf number = {0};
    size_t owner = strlen(s->owner), begin = out->len;
    pp_buf_add(out, MANIFEST_MAGIC, sizeof MANIFEST_MAGIC);
    put32(out, PP_SNAPSHOT_VERSION);
    put32(out, PP_PAGE_TOKENS);
    put64(out, 0); /* the size, set below */
    put_hash(out, (struct pp_hash128){0});
    put_hash(out, s->nonce);
    put64(out, s->pack_bytes);
    put32(out, s->n_tiers);
    put32(out, s->n_keys);
    put32(out, s->n_nodes);
    put32(out, s->n_branches);
    put32(out, (uint32_t)(s->logits ? s->n_logits : 0));
    put32(out, (uint32_t)owner);
    for (uint32_t t = 0; t < s->n_tiers; t++)
        put64(out, s->page_bytes[t]);
    pp_buf_add(out, s->owner, owner);
    for (uint32_t k = 0; k < s->n_keys; k++) {
        put32(out, (uint32_t)s->keys[k].len);
        pp_buf_add(out, s->keys[k].data, s->keys[k].len);
    }
    for (uint32_t i = 0; i < s->n_branches; i++) {
        put32(out, s->branches[i].leaf);
        put32(out, s->branches[i].key);
    }
    for (uint32_t i = 0; i < s->n_nodes; i++)
        put_node(out, s, &s->nodes[i]);
    for (uint64_t i = 0; s->logits && i < s->n_logits; i++) {
        uint32_t bits;
        memcpy(&bits, &s->logits[i], sizeof bits);
        put32(out, bits);
    }
    put64(&number, out->len - begin);
    patch(out, begin + 16, &number);
    pp_buf_clear(&number);
    if (!out->bad)
        put_hash(&number, pp_hash128(out->data + begin + HASHED_FROM, out->len - begin - HASHED_FROM));
    patch(out, begin + 24, &number);
    pp_buf_free(&number);
}

/* --- reading --------------------------------------------------------------------------------------------------- */

static enum pp_code damaged(struct pp_error *err, const char *what)
{
    return pp_fail(err, PP_ERR_FORMAT, "the saved KV cache is damaged (%s); computing it again", what);
}

static struct pp_hash128 get_hash(struct pp_cursor *c)
{
    struct pp_hash128 h;
    h.lo = pp_cursor_u64(c);
    h.hi = pp_cursor_u64(c);
    return h;
}

static bool read_node(struct pp_cursor *c, const struct snapshot *s, uint32_t index, struct snapshot_node *node)
{
    node->parent = pp_cursor_u32(c);
    node->n = pp_cursor_u32(c);
    node->name = get_hash(c);
    for (int i = 0; i < PP_PAGE_TOKENS; i++)
        node->tokens[i] = (int32_t)pp_cursor_u32(c);
    for (uint32_t t = 0; t < s->n_tiers; t++) {
        struct snapshot_place *p = &node->place[t];
        p->offset = pp_cursor_u64(c);
        p->sum = get_hash(c);
        if (p->offset && (p->offset % PP_SNAPSHOT_ALIGN || p->offset > s->pack_bytes ||
                          s->page_bytes[t] > s->pack_bytes - p->offset))
            return false;
    }
    return !c->bad && node->n >= 1 && node->n <= PP_PAGE_TOKENS &&
           (node->parent == PP_NO_NODE || (node->parent < index && s->nodes[node->parent].n == PP_PAGE_TOKENS));
}

static bool read_tables(struct pp_cursor *c, struct snapshot *s)
{
    for (uint32_t i = 0; i < s->n_branches; i++) {
        s->branches[i].leaf = pp_cursor_u32(c);
        s->branches[i].key = pp_cursor_u32(c);
        if (s->branches[i].leaf >= s->n_nodes || s->branches[i].key >= s->n_keys)
            return false;
    }
    for (uint32_t i = 0; i < s->n_nodes; i++)
        if (!read_node(c, s, i, &s->nodes[i]))
            return false;
    for (uint64_t i = 0; i < s->n_logits; i++)
        s->logits[i] = pp_cursor_f32(c);
    return !c->bad && pp_cursor_left(c) == 0;
}

static bool read_names(struct pp_cursor *c, struct snapshot *s, uint32_t owner)
{
    for (uint32_t t = 0; t < s->n_tiers; t++) {
        s->page_bytes[t] = pp_cursor_u64(c);
        if (!s->page_bytes[t])
            return false;
    }
    const char *name = pp_cursor_bytes(c, owner);
    if (!name || memchr(name, 0, owner))
        return false;
    memcpy(s->owner, name, owner);
    for (uint32_t k = 0; k < s->n_keys; k++) {
        uint32_t n = pp_cursor_u32(c);
        const char *text = n <= PP_SNAPSHOT_KEY_BYTES ? pp_cursor_bytes(c, n) : NULL;
        if (!text)
            return false;
        pp_buf_add(&s->keys[k], text, n);
    }
    return true;
}

enum pp_code pp_snapshot_decode(const void *data, size_t size, struct snapshot *s, struct pp_error *err)
{
    struct pp_cursor c = pp_cursor(data, size);
    *s = (struct snapshot){0};
    const char *magic = pp_cursor_bytes(&c, sizeof MANIFEST_MAGIC);
    if (!magic || memcmp(magic, MANIFEST_MAGIC, sizeof MANIFEST_MAGIC) != 0)
        return damaged(err, "it is not a snapshot");
    uint32_t version = pp_cursor_u32(&c), page_tokens = pp_cursor_u32(&c);
    if (!c.bad && version != PP_SNAPSHOT_VERSION)
        return pp_fail(err, PP_ERR_MISMATCH,
                       "the saved KV cache has format %u, but this pippin reads %d; computing it again", version,
                       PP_SNAPSHOT_VERSION);
    uint64_t stated = pp_cursor_u64(&c);
    struct pp_hash128 sum = get_hash(&c);
    if (c.bad || stated > size)
        return damaged(err, "its manifest is truncated");
    if (stated != size || page_tokens != PP_PAGE_TOKENS)
        return damaged(err, "the header of its manifest is wrong");
    struct pp_hash128 real = pp_hash128((const uint8_t *)data + HASHED_FROM, size - HASHED_FROM);
    if (!same_hash(&sum, &real))
        return damaged(err, "the checksum of its manifest is wrong");
    s->nonce = get_hash(&c);
    s->pack_bytes = pp_cursor_u64(&c);
    s->n_tiers = pp_cursor_u32(&c);
    s->n_keys = pp_cursor_u32(&c);
    s->n_nodes = pp_cursor_u32(&c);
    s->n_branches = pp_cursor_u32(&c);
    s->n_logits = pp_cursor_u32(&c);
    uint32_t owner = pp_cursor_u32(&c);
    bool fits = !c.bad && s->n_tiers >= 1 && s->n_tiers <= PP_MAX_TIERS && s->n_keys <= PP_SNAPSHOT_KEYS &&
                s->n_branches <= PP_SNAPSHOT_BRANCHES && owner < PP_SNAPSHOT_OWNER &&
                s->n_nodes <= size / (4 * PP_PAGE_TOKENS) && s->n_logits <= size / 4;
    if (!fits || !read_names(&c, s, owner)) {
        pp_snapshot_free(s);
        return damaged(err, "its manifest contradicts itself");
    }
    s->nodes = pp_calloc(s->n_nodes ? s->n_nodes : 1, sizeof *s->nodes);
    s->cap_nodes = s->n_nodes ? s->n_nodes : 1;
    s->logits = s->n_logits ? pp_malloc(s->n_logits * sizeof *s->logits) : NULL;
    if (!s->nodes || (s->n_logits && !s->logits)) {
        pp_snapshot_free(s);
        return pp_fail_nomem(err, "the saved cache");
    }
    if (!read_tables(&c, s)) {
        pp_snapshot_free(s);
        return damaged(err, "its manifest contradicts itself");
    }
    for (uint32_t k = 0; k < s->n_keys; k++)
        if (s->keys[k].bad) {
            pp_snapshot_free(s);
            return pp_fail_nomem(err, "the saved cache");
        }
    return PP_OK;
}

/* --- the pack -------------------------------------------------------------------------------------------------- */

void pp_snapshot_pack_header(const struct snapshot *s, uint8_t block[static PP_SNAPSHOT_ALIGN])
{
    uint8_t *p = block;
    memset(block, 0, PP_SNAPSHOT_ALIGN);
    memcpy(p, PACK_MAGIC, sizeof PACK_MAGIC);
    p[8] = PP_SNAPSHOT_VERSION;
    for (int i = 0; i < 8; i++) {
        p[16 + i] = (uint8_t)(s->nonce.lo >> (8 * i));
        p[24 + i] = (uint8_t)(s->nonce.hi >> (8 * i));
    }
    memcpy(p + 32, s->owner, sizeof s->owner);
}

/* What is wrong with the pack of fd, or NULL. */
static const char *wrong_pack(const struct snapshot *s, int fd)
{
    uint8_t expected[PP_SNAPSHOT_ALIGN], found[PP_SNAPSHOT_ALIGN];
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return "its pack is not a file";
    if ((uint64_t)st.st_size < s->pack_bytes || st.st_size < PP_SNAPSHOT_ALIGN)
        return "its pack is truncated";
    pp_snapshot_pack_header(s, expected);
    if (!pp_read_at(fd, found, sizeof found, 0))
        return "its pack cannot be read";
    if (memcmp(found, expected, 16) != 0)
        return "its pack is not a pack";
    if (memcmp(found, expected, sizeof found) != 0)
        return "its two files do not match";
    return NULL;
}

enum pp_code pp_snapshot_open_pack(const struct snapshot *s, const char *base, int flags, int *fd,
                                   struct pp_error *err)
{
    char *path = pp_snapshot_file(base, ".pack");
    if (!path)
        return pp_fail_nomem(err, "a file name");
    *fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW);
    int failed = errno;
    pp_free(path);
    if (*fd < 0)
        return failed == ENOENT ? damaged(err, "its pack is missing") : damaged(err, "its pack cannot be opened");
    const char *wrong = wrong_pack(s, *fd);
    if (!wrong)
        return PP_OK;
    close(*fd);
    *fd = -1;
    return damaged(err, wrong);
}

/* --- the key --------------------------------------------------------------------------------------------------- */

/* Finds the line of the text that begins with `name`; it may lack its \n. Returns its length; 0: there is none. */
static size_t find_line(const struct pp_buf *text, const char *name, const char **line)
{
    *line = text->len ? memmem(text->data, text->len, name, strlen(name)) : NULL;
    if (!*line)
        return 0;
    size_t left = text->len - (size_t)(*line - text->data);
    const char *end = memchr(*line, '\n', left);
    return end ? (size_t)(end - *line) : left;
}

static const struct {
    const char *line, *reason;
    bool may_lack; /* only some models have this line */
} model_lines[] = {
    {"model=", "the model is different or was changed", false},
    {"kv=", "the type of the KV cache is different", false},
    {"rope context=", "the context size, on which this model's RoPE depends, is different", true},
    {"arithmetic=", "it was computed differently, by another version of pippin or with different --activations", false},
};

/* Why pages of one key cannot be used with the other; NULL: only adapters differ. */
static const char *other_model(const struct pp_buf *theirs, const struct pp_buf *ours)
{
    for (size_t i = 0; i < sizeof model_lines / sizeof model_lines[0]; i++) {
        const char *a, *b;
        size_t la = find_line(theirs, model_lines[i].line, &a), lb = find_line(ours, model_lines[i].line, &b);
        if (la != lb || (!la && !model_lines[i].may_lack) || (la && memcmp(a, b, la) != 0))
            return model_lines[i].reason;
    }
    return NULL;
}

bool pp_snapshot_same_model(const struct pp_buf *a, const struct pp_buf *b)
{
    return !other_model(a, b);
}

/* How the adapters of two keys differ: a line each, with the strength last. */
static const char *other_adapters(const struct pp_buf *theirs, const struct pp_buf *ours)
{
    const char *a, *b;
    size_t la = find_line(theirs, "adapter=", &a), lb = find_line(ours, "adapter=", &b);
    const char *scale_a = la ? memmem(a, la, " scale=", 7) : NULL, *scale_b = lb ? memmem(b, lb, " scale=", 7) : NULL;
    bool same_hash_text = scale_a && scale_b && scale_a - a == scale_b - b && !memcmp(a, b, (size_t)(scale_a - a));
    return same_hash_text ? "the adapters or their scales are different"
                          : "the adapters are different";
}

static const char from_word[] = " from=";

static bool acts_from(const struct pp_buf *text)
{
    return text->len && memmem(text->data, text->len, from_word, sizeof from_word - 1);
}

/* Whether pages may be equal though no key is: up to where an adapter begins to act. */
static bool begin_alike(const struct snapshot *s, const struct pp_buf *ours)
{
    bool any = acts_from(ours);
    for (uint32_t i = 0; i < s->n_keys && !any; i++)
        any = acts_from(&s->keys[i]);
    return any && !other_model(&s->keys[0], ours);
}

bool pp_snapshot_page_key(const struct pp_buf *text, int64_t page, struct pp_sha256 *hash)
{
    const int64_t begin = page * PP_PAGE_TOKENS;
    struct pp_buf ours = {0};
    if (!acts_from(text)) {
        *hash = pp_sha256(text->data, text->len);
        return true;
    }
    const char *line = text->data, *end = text->data + text->len;
    while (line < end) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        const size_t n = (size_t)((stop ? stop + 1 : end) - line);
        const char *from = memmem(line, n, from_word, sizeof from_word - 1);
        /* a NUL follows the text */
        const int64_t at = from ? strtoll(from + sizeof from_word - 1, NULL, 10) - begin : 0;
        if (!from)
            pp_buf_add(&ours, line, n);
        else if (at < PP_PAGE_TOKENS)
            pp_buf_add(&ours, line, (size_t)(from - line));
        if (from && at > 0 && at < PP_PAGE_TOKENS)
            pp_buf_fmt(&ours, "%s%lld", from_word, (long long)at);
        if (from && at < PP_PAGE_TOKENS)
            pp_buf_char(&ours, '\n');
        line += n;
    }
    if (!ours.bad)
        *hash = pp_sha256(ours.data, ours.len);
    pp_buf_free(&ours);
    return !ours.bad;
}

enum pp_code pp_snapshot_fits(const struct snapshot *s, const struct pp_seq *seq, const char *owner,
                              const struct pp_buf *ours, uint32_t *key, struct pp_error *err)
{
    const char *reason = NULL;
    if (strcmp(s->owner, owner) != 0)
        return pp_fail(err, PP_ERR_MISMATCH,
                       "the saved KV cache is not used: it belongs to another conversation; computing it again");
    if (!s->n_keys)
        return damaged(err, "its manifest contradicts itself");
    *key = 0;
    while (*key < s->n_keys && (s->keys[*key].len != ours->len || memcmp(s->keys[*key].data, ours->data, ours->len)))
        ++*key;
    if (*key == s->n_keys && !begin_alike(s, ours)) {
        const struct pp_buf *newest = &s->keys[s->n_branches ? s->branches[0].key : 0];
        reason = other_model(newest, ours);
        reason = reason ? reason : other_adapters(newest, ours);
        return pp_fail(err, PP_ERR_MISMATCH, "the saved KV cache is not used: %s; computing it again", reason);
    }
    bool same = s->n_tiers == (uint32_t)seq->engine->n_tiers;
    for (uint32_t t = 0; same && t < s->n_tiers; t++)
        same = s->page_bytes[t] == pp_kv_pool_layout(seq->engine->tier[t].kv)->page_bytes;
    return same ? PP_OK : damaged(err, "its pages have a different size");
}
