/* fuzz_snapshot.c - the two files of a snapshot: restored into a sequence of a tiny model, which then computes on and
 * saves to them again.
 *
 * The first byte says what is repaired first, so that more than the checksums is tested: 1 the manifest's own checksum,
 * owner and size; 2 the KV key; 4 page hashes and checksums; 8 the pack's header. The manifest follows, preceded by its
 * length, then the pack. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/snapshot.h"
#include "tests/hostile.h"
#include "tests/support.h"

enum { REPAIR_MANIFEST = 1, REPAIR_KEY = 2, REPAIR_PAGES = 4, REPAIR_PACK = 8 };
enum { SIZE_AT = 16, HASH_AT = 24, HASHED_FROM = 40, HEADER = 88, PROMPT = 200 }; /* pippin-formats(5) */

static const struct pp_sha256 identity = {{1, 2, 3}};
static const char OWNER[] = "feed";
static char folder[64], base[80], pack_path[96], manifest_path[96];

static void remove_files(void)
{
    (void)pp_snapshot_remove(base, NULL);
    rmdir(folder);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    tiny_engine();
    strcpy(folder, "/dev/shm/pippin-fuzz-XXXXXX"); /* in memory, so that there is no waiting for a disk */
    if (!mkdtemp(folder))
        snprintf(folder, sizeof folder, "%s", test_tmpdir());
    snprintf(base, sizeof base, "%s/c", folder);
    snprintf(pack_path, sizeof pack_path, "%s.pack", base);
    snprintf(manifest_path, sizeof manifest_path, "%s.manifest", base);
    atexit(remove_files);
    return 0;
}

static void put(uint8_t *at, uint64_t v)
{
    for (int i = 0; i < 8; i++)
        at[i] = (uint8_t)(v >> (8 * i));
}

static void repair_manifest(uint8_t *data, size_t size)
{
    if (size < HEADER)
        return;
    put(data + SIZE_AT, size);
    struct pp_hash128 h = pp_hash128(data + HASHED_FROM, size - HASHED_FROM);
    put(data + HASH_AT, h.lo);
    put(data + HASH_AT + 8, h.hi);
}

static void repair_pages(struct snapshot *s, const uint8_t *pack, size_t size)
{
    struct pp_sha256 key = pp_sha256(s->keys[0].data, s->keys[0].len);
    struct pp_hash128 chunk_sums[4];
    for (uint32_t i = 0; i < s->n_nodes; i++) {
        struct snapshot_node *node = &s->nodes[i];
        node->name = pp_snapshot_name(node->parent == PP_NO_NODE ? NULL : &s->nodes[node->parent].name, &key,
                                      node->tokens, node->n);
        for (uint32_t t = 0; t < s->n_tiers; t++) {
            struct snapshot_place *p = &node->place[t];
            uint64_t bytes = s->page_bytes[t];
            if (p->offset > size || bytes > size - p->offset || pp_snapshot_n_chunks(bytes) > 4)
                continue;
            for (size_t b = 0; b * PP_SNAPSHOT_CHUNK < bytes; b++) {
                size_t left = bytes - b * PP_SNAPSHOT_CHUNK;
                chunk_sums[b] = pp_hash128(pack + p->offset + b * PP_SNAPSHOT_CHUNK,
                                           left < PP_SNAPSHOT_CHUNK ? left : PP_SNAPSHOT_CHUNK);
            }
            p->sum = pp_snapshot_sum(&node->name, t, chunk_sums, pp_snapshot_n_chunks(bytes));
        }
    }
}

/* Repairs those parts of the manifest that `what` says. *tokens: those of its first branch. */
static void repair(const struct pp_seq *seq, struct pp_buf *manifest, uint8_t *pack, size_t size, unsigned what,
                   int32_t *tokens)
{
    struct snapshot s;
    if (what & REPAIR_MANIFEST)
        repair_manifest((uint8_t *)manifest->data, manifest->len);
    if (pp_snapshot_decode(manifest->data, manifest->len, &s, NULL))
        return;
    if (what & REPAIR_MANIFEST)
        strcpy(s.owner, OWNER);
    if ((what & REPAIR_KEY) && s.n_keys) {
        pp_buf_clear(&s.keys[0]);
        (void)pp_seq_key(seq, &identity, &s.keys[0], NULL);
    }
    if ((what & REPAIR_PAGES) && s.n_keys)
        repair_pages(&s, pack, size);
    if ((what & REPAIR_PACK) && size >= PP_SNAPSHOT_ALIGN)
        pp_snapshot_pack_header(&s, pack);
    for (uint32_t at = s.n_branches ? s.branches[0].leaf : PP_NO_NODE; at != PP_NO_NODE; at = s.nodes[at].parent) {
        int64_t depth = 0; /* the position in the prompt */
        for (uint32_t up = s.nodes[at].parent; up != PP_NO_NODE; up = s.nodes[up].parent)
            depth++;
        for (uint32_t i = 0; i < s.nodes[at].n && depth * PP_PAGE_TOKENS + i < PROMPT; i++)
            tokens[depth * PP_PAGE_TOKENS + i] = s.nodes[at].tokens[i];
    }
    if (what & (REPAIR_MANIFEST | REPAIR_KEY | REPAIR_PAGES)) {
        pp_buf_clear(manifest);
        pp_snapshot_encode(&s, manifest);
    }
    pp_snapshot_free(&s);
}

static void write_file(const char *path, const void *data, size_t size)
{
    FILE *f = fopen(path, "wb");
    if (!f || (size && fwrite(data, 1, size, f) != size) || fclose(f) != 0)
        abort();
}

/* Whatever the files contain, saving must leave files that can be read. */
static void save(struct pp_seq *s)
{
    struct pp_save *j;
    uint64_t bytes;
    bool done = false;
    if (pp_save_new(s, &identity, base, OWNER, &j, NULL))
        return;
    enum pp_code code = pp_save_plan(j, 1 << 20, &bytes, NULL);
    while (!code && !done)
        code = pp_save_write(j, UINT64_MAX, NULL, &done, NULL);
    pp_save_free(j);
    if (code)
        abort();
}

/* How many of the prompt's tokens are in pages that the engine still has, without any file. */
static int64_t pages_at_hand(const int32_t *tokens)
{
    struct pp_seq *s;
    if (pp_seq_new(tiny_engine(), &s, NULL))
        return 0;
    pp_seq_adopt(s, tokens, PROMPT);
    int64_t n = pp_seq_len(s);
    pp_seq_free(s);
    return n;
}

static void restore_and_go_on(const int32_t *tokens)
{
    struct pp_seq *s;
    struct pp_error err;
    char *data = NULL;
    size_t size;
    if (pp_seq_new(tiny_engine(), &s, &err))
        return;
    if (pp_read_file(manifest_path, 1 << 20, &data, &size, &err) == PP_OK) {
        uint8_t *copy = pp_malloc(size); /* of exactly this size, so that the address sanitizer notices reads past it */
        memcpy(copy, data, size);
        const int64_t had = pages_at_hand(tokens);
        const uint64_t read_before = pp_engine_stats(tiny_engine())->restored_tokens;
        /* A refusal restores nothing: the sequence is unchanged, or has pages that the engine kept from earlier
         * inputs. */
        if (pp_snapshot_restore_from(s, &identity, base, OWNER, copy, size, tokens, PROMPT, NULL, &err) != PP_OK &&
            ((pp_seq_len(s) != 0 && pp_seq_len(s) != had) ||
             pp_engine_stats(tiny_engine())->restored_tokens != read_before))
            abort();
        if (pp_seq_len(s) > PROMPT)
            abort();
        pp_free(copy);
    }
    pp_free(data);
    tiny_step(s, 1); /* the sequence must be usable after a refusal, too */
    tiny_step(s, 2);
    if (pp_seq_len(s) < 2)
        abort();
    save(s);
    pp_seq_truncate(s, 0);
    pp_seq_free(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hostile_input in = {data, size};
    struct pp_buf manifest = {0};
    struct pp_seq *s;
    int32_t tokens[PROMPT];
    size_t n;
    unsigned what = hostile_byte(&in);
    const uint8_t *piece = hostile_piece(&in, &n);
    for (int i = 0; i < PROMPT; i++)
        tokens[i] = i * 5 % TINY_VOCAB;
    if (!piece || pp_seq_new(tiny_engine(), &s, NULL))
        return 0;
    uint8_t *pack = pp_malloc(in.size);
    memcpy(pack, in.data, in.size);
    pp_buf_add(&manifest, piece, n);
    repair(s, &manifest, pack, in.size, what, tokens);
    pp_seq_free(s);
    for (int i = 0; i < PROMPT; i++)
        if (tokens[i] < 0 || tokens[i] >= TINY_VOCAB)
            tokens[i] = 0;
    write_file(pack_path, pack, in.size);
    write_file(manifest_path, manifest.data, manifest.len);
    restore_and_go_on(tokens);
    restore_and_go_on(tokens); /* what was saved in its place */
    (void)pp_snapshot_remove(base, NULL);
    pp_buf_free(&manifest);
    pp_free(pack);
    return 0;
}
