/* snapshot_save.c - saves a branch of a conversation to the conversation's two files, and writes only what they lack.
 * Three steps: pp_save_new holds the pages (engine's thread, microseconds); pp_save_plan and pp_save_write compare,
 * hash and write (any one thread, in slices); pp_save_free releases the pages (engine's thread). Held pages do not
 * change: a sequence that writes to a page with other holders copies it first. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/whole_io.h"
#include "engine/snapshot.h"

/* Used bytes of the pack; sorted, may overlap. */
struct extent {
    uint64_t at, end;
};

/* A page to be written: a held one, or one that is elsewhere in the pack. */
struct write_op {
    uint32_t node, tier;
    uint64_t from;              /* offset in the pack; 0: data */
    const uint8_t *data;        /* of a held page */
};

struct pp_save {
    /* -- set by pp_save_new */
    struct pp_engine *engine;
    char *base;
    struct pp_buf key;          /* as text */
    int32_t *tokens;            /* [n_tokens] */
    int64_t n_tokens, n_pages;
    int n_tiers;
    struct pp_kv_layout layout[PP_MAX_TIERS];
    pp_page_id *pages[PP_MAX_TIERS];      /* [n_pages]; PP_NO_PAGE: not held */
    const uint8_t **data[PP_MAX_TIERS];   /* [n_pages] */
    struct pp_row_logits *logits;         /* or NULL */
    char owner[PP_SNAPSHOT_OWNER];

    /* -- used by the writer */
    struct snapshot s;          /* as it will be */
    bool fresh;                 /* nothing of the old files is used */
    int fd;                     /* of the pack; -1: not open */
    uint64_t old_bytes;         /* size of the pack by the manifest on disk */
    uint32_t *path;             /* [n_pages]: the branch's nodes */
    struct extent *used;        /* [n_used] */
    size_t n_used, cap_used;
    struct write_op *ops;       /* [n_ops] */
    size_t n_ops, cap_ops, next_op;
    uint8_t *scratch;           /* for a page of the largest tier */
    struct pp_hash128 *chunk_sums; /* for a page of the largest tier */
    struct pp_save_counts counts;
};

/* --- holding (the engine's thread) ----------------------------------------------------------------------------- */

static enum pp_code hold_tier(struct pp_save *j, const struct pp_seq *s, int t)
{
    const size_t n = (size_t)j->n_pages;
    const struct pp_seq_tier *tier = &s->tier[t];
    j->layout[t] = *pp_kv_pool_layout(s->engine->tier[t].kv);
    j->pages[t] = pp_malloc(n * sizeof *j->pages[t]);
    j->data[t] = pp_malloc(n * sizeof *j->data[t]);
    if (!j->pages[t] || !j->data[t]) {
        pp_free(j->pages[t]);
        j->pages[t] = NULL;
        return PP_ERR_NOMEM;
    }
    for (int64_t p = 0; p < j->n_pages; p++) {
        const bool held = pp_seq_holds(s, t, p);
        j->pages[t][p] = held ? tier->pages[p] : PP_NO_PAGE;
        j->data[t][p] = held ? tier->page_data[p] : NULL;
        if (held)
            pp_page_retain(s->engine->tier[t].kv, tier->pages[p]);
    }
    return PP_OK;
}

enum pp_code pp_save_new(struct pp_seq *s, const struct pp_sha256 *identity, const char *base, const char *owner,
                         struct pp_save **out, struct pp_error *err)
{
    *out = NULL;
    if (strlen(owner) >= PP_SNAPSHOT_OWNER)
        return pp_fail(err, PP_ERR_USAGE, "the name of the conversation is too long");
    if (s->len < 1 || s->plain < s->len)
        return pp_fail(err, PP_ERR_USAGE, "there is nothing to save");
    for (int64_t i = 0; i < s->len; i++)
        if (s->tokens[i] < 0)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "the cache of a conversation with inputs other than tokens is not "
                                                    "saved");
    struct pp_save *j = pp_calloc(1, sizeof *j);
    if (!j)
        return pp_fail_nomem(err, "a snapshot");
    pp_seq_publish(s);
    j->engine = s->engine;
    j->fd = -1;
    j->n_tokens = s->len;
    j->n_pages = pp_kv_pages_of(s->len);
    strcpy(j->owner, owner);
    j->base = pp_strdup(base);
    j->tokens = pp_malloc((size_t)s->len * sizeof *j->tokens);
    enum pp_code code = j->base && j->tokens ? PP_OK : PP_ERR_NOMEM;
    for (int t = 0; t < s->engine->n_tiers && !code; t++, j->n_tiers++)
        code = hold_tier(j, s, t);
    if (code) {
        pp_save_free(j);
        return pp_fail_nomem(err, "a snapshot");
    }
    memcpy(j->tokens, s->tokens, (size_t)s->len * sizeof *j->tokens);
    j->logits = pp_seq_hold_logits(s);
    if ((code = pp_seq_key(s, identity, &j->key, err)) != PP_OK) {
        pp_save_free(j);
        return code;
    }
    *out = j;
    return PP_OK;
}

void pp_save_free(struct pp_save *j)
{
    if (!j)
        return;
    for (int t = 0; t < PP_MAX_TIERS; t++) {
        for (int64_t p = 0; j->pages[t] && p < j->n_pages; p++)
            if (j->pages[t][p] != PP_NO_PAGE)
                pp_page_release(j->engine->tier[t].kv, j->pages[t][p]);
        pp_free(j->pages[t]);
        pp_free(j->data[t]);
    }
    pp_row_logits_release(j->logits);
    if (j->fd >= 0)
        close(j->fd);
    j->s.logits = NULL; /* owned by the old snapshot */
    pp_snapshot_free(&j->s);
    pp_buf_free(&j->key);
    pp_free(j->base);
    pp_free(j->tokens);
    pp_free(j->path);
    pp_free(j->used);
    pp_free(j->ops);
    pp_free(j->scratch);
    pp_free(j->chunk_sums);
    pp_free(j);
}

const struct pp_save_counts *pp_save_counts(const struct pp_save *j)
{
    return &j->counts;
}

/* --- the old files --------------------------------------------------------------------------------------------- */

static bool same_form(const struct pp_save *j, const struct snapshot *s)
{
    bool same = s->n_tiers == (uint32_t)j->n_tiers && s->n_keys > 0 && strcmp(s->owner, j->owner) == 0 &&
                pp_snapshot_same_model(&s->keys[0], &j->key);
    for (uint32_t t = 0; same && t < s->n_tiers; t++)
        same = s->page_bytes[t] == j->layout[t].page_bytes;
    return same;
}

/* Begins an empty snapshot that will replace the old one. */
static enum pp_code begin_afresh(struct pp_save *j, struct pp_error *err)
{
    pp_snapshot_free(&j->s);
    j->fresh = true;
    if (getrandom(&j->s.nonce, sizeof j->s.nonce, GRND_NONBLOCK) != sizeof j->s.nonce)
        j->s.nonce = (struct pp_hash128){.lo = pp_now_ns(), .hi = (uint64_t)getpid()};
    memcpy(j->s.owner, j->owner, sizeof j->s.owner);
    j->s.n_tiers = (uint32_t)j->n_tiers;
    for (int t = 0; t < j->n_tiers; t++)
        j->s.page_bytes[t] = j->layout[t].page_bytes;
    j->s.pack_bytes = PP_SNAPSHOT_ALIGN;
    j->s.nodes = pp_calloc(1, sizeof *j->s.nodes);
    j->s.cap_nodes = 1;
    return j->s.nodes ? PP_OK : pp_fail_nomem(err, "a snapshot");
}

/* Reads the files if they can be extended: same conversation, same model, and intact as far as can be seen without
 * reading all pages. */
static enum pp_code look(struct pp_save *j, struct pp_error *err)
{
    char *path = pp_snapshot_file(j->base, ".manifest"), *data = NULL;
    size_t size = 0;
    if (!path)
        return pp_fail_nomem(err, "a snapshot");
    enum pp_code code = pp_read_file(path, PP_SNAPSHOT_MANIFEST_MAX, &data, &size, err);
    pp_free(path);
    if (code == PP_OK)
        code = pp_snapshot_decode(data, size, &j->s, err);
    pp_free(data);
    pp_free(j->s.logits); /* of an older row */
    j->s.logits = NULL;
    j->s.n_logits = 0;
    if (code == PP_OK && !same_form(j, &j->s))
        code = PP_ERR_MISMATCH;
    if (code == PP_OK)
        code = pp_snapshot_open_pack(&j->s, j->base, O_RDWR, &j->fd, err);
    if (code == PP_ERR_NOMEM)
        return code;
    if (code)
        return begin_afresh(j, err);
    j->old_bytes = j->s.pack_bytes;
    return PP_OK;
}

/* --- the tree -------------------------------------------------------------------------------------------------- */

/* The index of our key in the manifest; if need be it replaces the key of the branch used longest ago. */
static enum pp_code place_key(struct pp_save *j, uint32_t *key, struct pp_error *err)
{
    struct snapshot *s = &j->s;
    for (*key = 0; *key < s->n_keys; ++*key)
        if (s->keys[*key].len == j->key.len && memcmp(s->keys[*key].data, j->key.data, j->key.len) == 0)
            return PP_OK;
    if (s->n_keys == PP_SNAPSHOT_KEYS) {
        uint32_t last[PP_SNAPSHOT_KEYS] = {0}, n = 0;
        for (uint32_t i = s->n_branches; i-- > 0;)
            last[s->branches[i].key] = s->n_branches - i; /* larger: used more recently */
        *key = 0;
        for (uint32_t k = 1; k < s->n_keys; k++)
            if (last[k] < last[*key])
                *key = k;
        for (uint32_t i = 0; i < s->n_branches; i++)
            if (s->branches[i].key != *key)
                s->branches[n++] = s->branches[i];
        s->n_branches = n;
        pp_buf_clear(&s->keys[*key]);
    } else {
        s->n_keys++;
    }
    pp_buf_add(&s->keys[*key], j->key.data, j->key.len);
    return s->keys[*key].bad ? pp_fail_nomem(err, "a snapshot") : PP_OK;
}

static uint32_t tokens_of_page(const struct pp_save *j, int64_t p)
{
    int64_t left = j->n_tokens - p * PP_PAGE_TOKENS;
    return left < PP_PAGE_TOKENS ? (uint32_t)left : PP_PAGE_TOKENS;
}

/* Finds or adds the branch's nodes. */
static enum pp_code place_nodes(struct pp_save *j, struct pp_error *err)
{
    struct snapshot *s = &j->s;
    struct pp_sha256 key;
    uint32_t parent = PP_NO_NODE;
    for (int64_t p = 0; p < j->n_pages; p++) {
        const int32_t *tokens = j->tokens + p * PP_PAGE_TOKENS;
        uint32_t n = tokens_of_page(j, p);
        if (!pp_snapshot_page_key(&j->key, p, &key))
            return pp_fail_nomem(err, "a snapshot");
        struct pp_hash128 name =
            pp_snapshot_name(parent == PP_NO_NODE ? NULL : &s->nodes[parent].name, &key, tokens, n);
        uint32_t at = pp_snapshot_child(s, parent, &name, tokens, n);
        if (at == PP_NO_NODE) {
            if (pp_grow(&s->nodes, &s->cap_nodes, (size_t)s->n_nodes + 1, sizeof *s->nodes) != 0)
                return pp_fail_nomem(err, "a snapshot");
            at = s->n_nodes++;
            struct snapshot_node *node = &s->nodes[at];
            *node = (struct snapshot_node){.parent = parent, .n = n, .name = name};
            for (uint32_t i = 0; i < PP_PAGE_TOKENS; i++)
                node->tokens[i] = i < n ? tokens[i] : -1;
        }
        j->path[p] = parent = at;
    }
    return PP_OK;
}

/* Whether our branch includes all of the branch that ends with `leaf`. */
static bool covered(const struct pp_save *j, uint32_t leaf)
{
    const struct snapshot_node *node = &j->s.nodes[leaf];
    int64_t depth = 0;
    for (uint32_t up = node->parent; up != PP_NO_NODE; up = j->s.nodes[up].parent)
        depth++;
    if (depth >= j->n_pages || (depth ? j->path[depth - 1] : PP_NO_NODE) != node->parent)
        return false;
    return node->n <= tokens_of_page(j, depth) &&
           memcmp(node->tokens, j->tokens + depth * PP_PAGE_TOKENS, node->n * sizeof *node->tokens) == 0;
}

/* Makes ours the most recently used branch, and removes branches that are beginnings of it. */
static void place_branch(struct pp_save *j, uint32_t key)
{
    struct snapshot *s = &j->s;
    struct snapshot_branch kept[PP_SNAPSHOT_BRANCHES];
    uint32_t n = 0;
    kept[n++] = (struct snapshot_branch){.leaf = j->path[j->n_pages - 1], .key = key};
    for (uint32_t i = 0; i < s->n_branches && n < PP_SNAPSHOT_BRANCHES; i++)
        if (s->branches[i].key != key || !covered(j, s->branches[i].leaf))
            kept[n++] = s->branches[i];
    memcpy(s->branches, kept, n * sizeof *kept);
    s->n_branches = n;
}

/* Bytes of a page in the pack. */
static uint64_t room_of(const struct pp_save *j, uint32_t tier)
{
    return (j->s.page_bytes[tier] + PP_SNAPSHOT_ALIGN - 1) / PP_SNAPSHOT_ALIGN * PP_SNAPSHOT_ALIGN;
}

/* Marks the nodes of branches: 1 + index of the first branch through each, 0: none. */
static void mark(const struct snapshot *s, uint32_t *marks)
{
    memset(marks, 0, s->n_nodes * sizeof *marks);
    for (uint32_t i = 0; i < s->n_branches; i++)
        for (uint32_t at = s->branches[i].leaf; at != PP_NO_NODE && !marks[at]; at = s->nodes[at].parent)
            marks[at] = i + 1;
}

/* Whether this page must be in the pack. */
static bool wanted(const struct pp_save *j, uint32_t node, uint32_t tier, int64_t page)
{
    return j->s.nodes[node].place[tier].offset || (page >= 0 && j->pages[tier][page] != PP_NO_PAGE);
}

static int64_t page_of_node(const struct pp_save *j, uint32_t node)
{
    for (int64_t p = 0; p < j->n_pages; p++)
        if (j->path[p] == node)
            return p;
    return -1;
}

/* Bytes of both files for the present branches, without holes in the pack. */
static uint64_t live_bytes(const struct pp_save *j, const uint32_t *marks)
{
    const struct snapshot *s = &j->s;
    uint64_t bytes = PP_SNAPSHOT_ALIGN;
    for (uint32_t i = 0; i < s->n_nodes; i++)
        for (uint32_t t = 0; marks[i] && t < s->n_tiers; t++)
            if (wanted(j, i, t, s->nodes[i].place[t].offset ? -1 : page_of_node(j, i)))
                bytes += room_of(j, t);
    return bytes;
}

static uint64_t manifest_bytes(const struct pp_save *j)
{
    uint64_t node = 24 + 4 * PP_PAGE_TOKENS + 24 * (uint64_t)j->s.n_tiers;
    uint64_t keys = PP_SNAPSHOT_KEY_BYTES; /* an estimate */
    return 128 + keys + node * j->s.n_nodes + 8 * PP_SNAPSHOT_BRANCHES + 4 * j->s.n_logits;
}

/* Removes nodes that no branch uses. */
static void drop_nodes(struct pp_save *j, uint32_t *marks)
{
    struct snapshot *s = &j->s;
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_nodes; i++) {
        if (!marks[i])
            continue;
        s->nodes[n] = s->nodes[i];
        if (s->nodes[n].parent != PP_NO_NODE)
            s->nodes[n].parent = marks[s->nodes[n].parent];
        marks[i] = n++; /* from here on the new index; parents come first */
    }
    for (uint32_t i = 0; i < s->n_branches; i++)
        s->branches[i].leaf = marks[s->branches[i].leaf];
    for (int64_t p = 0; p < j->n_pages; p++)
        j->path[p] = marks[j->path[p]];
    s->n_nodes = n;
}

/* --- large pages ------------------------------------------------------------------------------------------------ */

/* Of tiers with large pages, of which only the last is needed to continue, a branch keeps the last few: going back
 * further means computing from those, or from the beginning. */
enum { LARGE_KEPT = 4 };

static void mark_large(const struct pp_save *j, uint32_t tier, uint32_t leaf, bool *keep)
{
    int kept = 0;
    for (uint32_t at = leaf; at != PP_NO_NODE && kept < LARGE_KEPT; at = j->s.nodes[at].parent)
        if (wanted(j, at, tier, page_of_node(j, at))) {
            keep[at] = true;
            kept++;
        }
}

static enum pp_code forget_large(struct pp_save *j, struct pp_error *err)
{
    struct snapshot *s = &j->s;
    bool *keep = pp_malloc(s->n_nodes * sizeof *keep);
    if (!keep)
        return pp_fail_nomem(err, "a snapshot");
    for (uint32_t t = 0; t < s->n_tiers; t++) {
        if (pp_tier_has_keys(j->layout[t].kind))
            continue;
        memset(keep, 0, s->n_nodes * sizeof *keep);
        for (uint32_t i = 0; i < s->n_branches; i++)
            mark_large(j, t, s->branches[i].leaf, keep);
        for (uint32_t i = 0; i < s->n_nodes; i++)
            if (!keep[i])
                s->nodes[i].place[t].offset = 0;
    }
    pp_free(keep);
    return PP_OK;
}

/* --- room in the pack ------------------------------------------------------------------------------------------ */

static int by_place(const void *pa, const void *pb)
{
    const struct extent *a = pa, *b = pb;
    return (a->at > b->at) - (a->at < b->at);
}

static bool note_used(struct pp_save *j, uint64_t at, uint64_t bytes)
{
    if (pp_grow(&j->used, &j->cap_used, j->n_used + 1, sizeof *j->used) != 0)
        return false;
    j->used[j->n_used++] = (struct extent){.at = at, .end = at + bytes};
    return true;
}

/* Marks all that the manifest on disk refers to: it must not change until the new manifest has replaced it. */
static enum pp_code find_used(struct pp_save *j, struct pp_error *err)
{
    bool good = note_used(j, 0, PP_SNAPSHOT_ALIGN);
    for (uint32_t i = 0; good && i < j->s.n_nodes; i++)
        for (uint32_t t = 0; good && t < j->s.n_tiers; t++)
            if (j->s.nodes[i].place[t].offset)
                good = note_used(j, j->s.nodes[i].place[t].offset, room_of(j, t));
    if (!good)
        return pp_fail_nomem(err, "a snapshot");
    qsort(j->used, j->n_used, sizeof *j->used, by_place);
    return PP_OK;
}

/* Takes the first free range of this size before `below`; 0: none. */
static uint64_t take_room(struct pp_save *j, uint64_t bytes, uint64_t below, struct pp_error *err)
{
    uint64_t end = 0;
    size_t i = 0;
    for (; i < j->n_used; i++) {
        if (j->used[i].at > end && j->used[i].at - end >= bytes)
            break;
        if (j->used[i].end > end)
            end = j->used[i].end;
    }
    if (end > below || bytes > below - end)
        return 0;
    if (!note_used(j, end, bytes)) {
        pp_fail_nomem(err, "a snapshot");
        return 0;
    }
    struct extent taken = j->used[j->n_used - 1];
    memmove(&j->used[i + 1], &j->used[i], (j->n_used - 1 - i) * sizeof *j->used);
    j->used[i] = taken;
    return end;
}

static enum pp_code add_op(struct pp_save *j, uint32_t node, uint32_t tier, uint64_t below, const uint8_t *data,
                           struct pp_error *err)
{
    struct snapshot_place *place = &j->s.nodes[node].place[tier];
    uint64_t at = take_room(j, room_of(j, tier), below, err);
    if (!at && data)
        return pp_fail_nomem(err, "a snapshot");
    if (!at)
        return PP_OK; /* it is there already */
    if (pp_grow(&j->ops, &j->cap_ops, j->n_ops + 1, sizeof *j->ops) != 0)
        return pp_fail_nomem(err, "a snapshot");
    j->ops[j->n_ops++] =
        (struct write_op){.node = node, .tier = tier, .from = data ? 0 : place->offset, .data = data};
    place->offset = at;
    return PP_OK;
}

static enum pp_code place_pages(struct pp_save *j, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (int64_t p = 0; p < j->n_pages; p++)
        for (uint32_t t = 0; t < j->s.n_tiers && !code; t++) {
            if (j->s.nodes[j->path[p]].place[t].offset)
                j->counts.pages_kept++;
            else if (j->pages[t][p] != PP_NO_PAGE)
                code = add_op(j, j->path[p], t, UINT64_MAX, j->data[t][p], err);
        }
    return code;
}

static uint64_t end_of_pages(const struct pp_save *j)
{
    uint64_t end = PP_SNAPSHOT_ALIGN;
    for (uint32_t i = 0; i < j->s.n_nodes; i++)
        for (uint32_t t = 0; t < j->s.n_tiers; t++) {
            uint64_t at = j->s.nodes[i].place[t].offset;
            if (at && at + room_of(j, t) > end)
                end = at + room_of(j, t);
        }
    return end;
}

struct placed {
    uint64_t at;
    uint32_t node, tier;
};

static int last_first(const void *pa, const void *pb)
{
    const struct placed *a = pa, *b = pb;
    return (a->at < b->at) - (a->at > b->at);
}

/* Moves pages from beyond the first `live` bytes into holes, so that the file can be truncated. Pages that are yet to
 * be written have the first holes already. */
static enum pp_code compact(struct pp_save *j, uint64_t live, struct pp_error *err)
{
    struct placed *list = pp_malloc((size_t)j->s.n_nodes * j->s.n_tiers * sizeof *list);
    size_t n = 0;
    enum pp_code code = list ? PP_OK : pp_fail_nomem(err, "a snapshot");
    for (uint32_t i = 0; i < j->s.n_nodes && !code; i++)
        for (uint32_t t = 0; t < j->s.n_tiers; t++)
            list[n++] = (struct placed){.at = j->s.nodes[i].place[t].offset, .node = i, .tier = t};
    for (size_t k = 0; k < j->n_ops && !code; k++)
        list[(size_t)j->ops[k].node * j->s.n_tiers + j->ops[k].tier].at = 0;
    if (n)
        qsort(list, n, sizeof *list, last_first);
    for (size_t k = 0; k < n && list[k].at >= live && !code; k++)
        code = add_op(j, list[k].node, list[k].tier, list[k].at, NULL, err);
    pp_free(list);
    return code;
}

/* --- the plan -------------------------------------------------------------------------------------------------- */

static enum pp_code write_manifest(struct pp_save *j, struct pp_error *err)
{
    struct pp_buf bytes = {0};
    char *path = pp_snapshot_file(j->base, ".manifest");
    pp_snapshot_encode(&j->s, &bytes);
    enum pp_code code = !path || bytes.bad ? pp_fail_nomem(err, "a snapshot")
                                           : pp_write_file(path, bytes.data, bytes.len, 0600, err);
    j->counts.manifest_bytes = bytes.len;
    pp_buf_free(&bytes);
    pp_free(path);
    return code;
}

/* The ranges of dropped pages may be reused only when no manifest refers to them: if they are needed now, a manifest
 * without those pages is written first. */
static enum pp_code release_dropped(struct pp_save *j, uint64_t live, uint64_t limit, struct pp_error *err)
{
    if (j->fresh || (j->old_bytes <= 2 * live && j->old_bytes + manifest_bytes(j) <= limit))
        return PP_OK;
    float *logits = j->s.logits;
    j->s.logits = NULL; /* its row's pages are not saved yet */
    enum pp_code code = write_manifest(j, err);
    j->s.logits = logits;
    j->n_used = 0;
    return code ? code : find_used(j, err);
}

/* Drops the branches used longest ago until the rest fits. */
static enum pp_code fit(struct pp_save *j, uint64_t limit, uint64_t *live, struct pp_error *err)
{
    struct snapshot *s = &j->s;
    uint32_t *marks = pp_malloc(s->n_nodes * sizeof *marks);
    if (!marks)
        return pp_fail_nomem(err, "a snapshot");
    for (;; s->n_branches--) {
        mark(s, marks);
        *live = live_bytes(j, marks);
        if (*live + manifest_bytes(j) <= limit || s->n_branches <= 1)
            break;
    }
    enum pp_code code = PP_OK;
    if (*live + manifest_bytes(j) > limit)
        code = pp_fail(err, PP_ERR_NOMEM,
                       "it needs %.3g GB of disk space, but only %.3g GB are allowed; give more with --snapshot-quota",
                       (double)(*live + manifest_bytes(j)) / 1e9, (double)limit / 1e9);
    uint32_t n_before = s->n_nodes;
    if (!code)
        drop_nodes(j, marks);
    if (!code && s->n_nodes < n_before)
        code = release_dropped(j, *live, limit, err);
    pp_free(marks);
    return code;
}

enum pp_code pp_save_plan(struct pp_save *j, uint64_t limit, uint64_t *bytes, struct pp_error *err)
{
    size_t largest = 0;
    uint32_t key;
    uint64_t live = 0;
    for (int t = 0; t < j->n_tiers; t++)
        largest = j->layout[t].page_bytes > largest ? j->layout[t].page_bytes : largest;
    j->path = pp_malloc((size_t)j->n_pages * sizeof *j->path);
    j->scratch = pp_malloc(largest);
    j->chunk_sums = pp_malloc(pp_snapshot_n_chunks(largest) * sizeof *j->chunk_sums);
    if (!j->path || !j->scratch || !j->chunk_sums)
        return pp_fail_nomem(err, "a snapshot");
    enum pp_code code = look(j, err);
    if (!code)
        code = find_used(j, err);
    if (!code)
        code = place_key(j, &key, err);
    if (!code)
        code = place_nodes(j, err);
    if (code)
        return code;
    place_branch(j, key);
    if (j->logits) {
        j->s.logits = j->logits->values;
        j->s.n_logits = (uint64_t)j->logits->n;
    }
    code = forget_large(j, err);
    if (!code)
        code = fit(j, limit, &live, err);
    if (!code)
        code = place_pages(j, err);
    uint64_t end = end_of_pages(j);
    if (!code && (end > 2 * live || end + manifest_bytes(j) > limit))
        code = compact(j, live, err);
    j->s.pack_bytes = end_of_pages(j);
    *bytes = j->s.pack_bytes + manifest_bytes(j);
    j->counts.branches = j->s.n_branches;
    return code;
}

/* --- writing --------------------------------------------------------------------------------------------------- */

static enum pp_code cannot_write(const struct pp_save *j, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_IO, "cannot write %s.pack: %s", j->base, strerror(errno));
}

/* Makes a pack with only a header. The old manifest is deleted first, as it refers to pages that vanish. */
static enum pp_code make_pack(struct pp_save *j, struct pp_error *err)
{
    uint8_t block[PP_SNAPSHOT_ALIGN];
    char *manifest = pp_snapshot_file(j->base, ".manifest"), *pack = pp_snapshot_file(j->base, ".pack");
    enum pp_code code = manifest && pack ? PP_OK : pp_fail_nomem(err, "a snapshot");
    if (!code) {
        unlink(manifest);
        unlink(pack);
        j->fd = open(pack, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        pp_snapshot_pack_header(&j->s, block);
        if (j->fd < 0 || !pp_write_at(j->fd, block, sizeof block, 0))
            code = cannot_write(j, err);
    }
    pp_free(manifest);
    pp_free(pack);
    return code;
}

/* The last page of a branch, with zeros after its end: what is there is not part of this conversation. */
static const uint8_t *filled_part(struct pp_save *j, const struct write_op *op)
{
    const struct pp_kv_layout *l = &j->layout[op->tier];
    uint32_t n = j->s.nodes[op->node].n;
    if (n == PP_PAGE_TOKENS)
        return op->data;
    memset(j->scratch, 0, l->page_bytes);
    for (uint32_t i = 0; i < n; i++)
        pp_kv_copy_position(l, op->data, (int)i, j->scratch, (int)i);
    return j->scratch;
}

static enum pp_code carry_out(struct pp_save *j, const struct write_op *op, struct pp_error *err)
{
    struct snapshot_node *node = &j->s.nodes[op->node];
    struct snapshot_place *place = &node->place[op->tier];
    size_t bytes = j->s.page_bytes[op->tier];
    if (op->from) { /* copied with its checksum, which still tells if it is damaged */
        if (!pp_read_at(j->fd, j->scratch, bytes, op->from) || !pp_write_at(j->fd, j->scratch, bytes, place->offset))
            return cannot_write(j, err);
        j->counts.pages_moved++;
        return PP_OK;
    }
    const uint8_t *data = filled_part(j, op);
    for (size_t at = 0, i = 0; at < bytes; at += PP_SNAPSHOT_CHUNK, i++) {
        size_t n = bytes - at < PP_SNAPSHOT_CHUNK ? bytes - at : PP_SNAPSHOT_CHUNK;
        j->chunk_sums[i] = pp_hash128(data + at, n);
        if (!pp_write_at(j->fd, data + at, n, place->offset + at))
            return cannot_write(j, err);
    }
    place->sum = pp_snapshot_sum(&node->name, op->tier, j->chunk_sums, pp_snapshot_n_chunks(bytes));
    j->counts.pages_written++;
    j->counts.page_bytes_written += bytes;
    return PP_OK;
}

/* Pads the pack: it may end after a page's bytes instead of its range, but readers expect the size that the manifest
 * states. */
static enum pp_code finish(struct pp_save *j, struct pp_error *err)
{
    struct stat st;
    if (fstat(j->fd, &st) != 0 ||
        ((uint64_t)st.st_size < j->s.pack_bytes && ftruncate(j->fd, (off_t)j->s.pack_bytes) != 0) ||
        fdatasync(j->fd) != 0)
        return cannot_write(j, err);
    enum pp_code code = write_manifest(j, err);
    if (!code) {
        j->old_bytes = j->s.pack_bytes;
        if ((uint64_t)st.st_size > j->s.pack_bytes)
            (void)!ftruncate(j->fd, (off_t)j->s.pack_bytes); /* if it fails, the next save does it */
    }
    return code;
}

/* Gives back what a failed save has taken. */
static void undo(struct pp_save *j)
{
    if (j->fd < 0)
        return;
    if (!j->fresh)
        (void)!ftruncate(j->fd, (off_t)j->old_bytes);
    else
        pp_snapshot_remove(j->base, NULL);
}

enum pp_code pp_save_write(struct pp_save *j, uint64_t budget, const struct pp_cancel *cancel, bool *done,
                           struct pp_error *err)
{
    enum pp_code code = PP_OK;
    uint64_t written = 0;
    *done = false;
    if (j->fd < 0)
        code = make_pack(j, err);
    while (!code && j->next_op < j->n_ops && written < budget) {
        const struct write_op *op = &j->ops[j->next_op];
        if (pp_cancelled(cancel))
            code = pp_fail(err, PP_ERR_CANCELLED, "the state of the conversation was not saved in time");
        else if (!(code = carry_out(j, op, err)))
            written += j->s.page_bytes[op->tier];
        j->next_op++;
    }
    bool more = j->next_op < j->n_ops;
    if (!code && more && fdatasync(j->fd) != 0)
        code = cannot_write(j, err);
    if (!code && !more)
        code = finish(j, err);
    if (code)
        undo(j);
    *done = code || !more;
    return code;
}

enum pp_code pp_snapshot_remove(const char *base, struct pp_error *err)
{
    static const char *const endings[] = {".manifest", ".pack", ".kv"}; /* .kv: version 1 */
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        char *path = pp_snapshot_file(base, endings[i]);
        if (!path)
            return pp_fail_nomem(err, "a file name");
        if (unlink(path) != 0 && errno != ENOENT && errno != ENOTDIR)
            code = pp_fail(err, PP_ERR_IO, "cannot remove %s: %s", path, strerror(errno));
        pp_free(path);
    }
    return code;
}
