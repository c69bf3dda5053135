/* snapshot.h - a conversation's KV pages on disk: the content of its two files. Private to the engine; the public side
 * is in engine.h, offset tables in pippin-formats(5).
 *
 * BASE.pack holds pages, BASE.manifest describes them. Pages form a tree, because the branches of a conversation
 * (edits, regenerations) have common prefixes: a node has a page's tokens, its name (the hash chain of kv.h, over the
 * key text below), its parent, and where its KV is in the pack, for each tier. A branch is identified by its last node.
 * Nodes with fewer than PP_PAGE_TOKENS tokens are ends of branches and have no children.
 *
 * Both files survive a crash at any moment: only parts of the pack that the manifest on disk does not refer to are
 * overwritten, the pack is synced before the manifest that refers to its pages, and the manifest is replaced by rename.
 *
 *     plan: read the manifest, find new pages, assign them offsets   (disk: old manifest, old pages)
 *     write: new pages, moved pages -> fdatasync                     (old manifest, old pages, unreferenced bytes)
 *            manifest.tmp -> fsync -> rename -> fsync of the folder  (new manifest, its pages, unreferenced bytes)
 *            truncate the pack after the last referenced page        (new manifest, its pages)
 */
#ifndef PP_ENGINE_SNAPSHOT_H
#define PP_ENGINE_SNAPSHOT_H

#include "engine/engine_int.h"

enum {
    PP_SNAPSHOT_VERSION = 2,
    PP_SNAPSHOT_BRANCHES = 16,        /* the most recently used are kept */
    PP_SNAPSHOT_KEYS = 8,             /* adapter sets of one model */
    PP_SNAPSHOT_KEY_BYTES = 1 << 13,  /* of a key text, at most */
    PP_SNAPSHOT_OWNER = 64,           /* bytes of a conversation's name, with its NUL */
    PP_SNAPSHOT_ALIGN = 4096,         /* of pages in a pack */
    PP_SNAPSHOT_CHUNK = 256 << 10,    /* bytes that are read and hashed at a time, while they are in a core's cache */
    PP_SNAPSHOT_MANIFEST_MAX = 1 << 28,
};
#define PP_NO_NODE UINT32_MAX

struct snapshot_place {
    uint64_t offset;                  /* in the pack; 0: this page is not stored */
    struct pp_hash128 sum;            /* pp_snapshot_sum */
};

struct snapshot_node {
    uint32_t parent;                  /* an earlier node, or PP_NO_NODE */
    uint32_t n;                       /* tokens, 1 .. PP_PAGE_TOKENS */
    struct pp_hash128 name;
    int32_t tokens[PP_PAGE_TOKENS];   /* -1 from n on */
    struct snapshot_place place[PP_MAX_TIERS];
};

struct snapshot_branch {
    uint32_t leaf, key;
};

struct snapshot {
    struct pp_hash128 nonce;          /* equal in both files if they belong together */
    uint64_t pack_bytes;
    uint32_t n_tiers, n_keys, n_nodes, n_branches;
    uint64_t page_bytes[PP_MAX_TIERS];
    char owner[PP_SNAPSHOT_OWNER];    /* the conversation */
    struct pp_buf keys[PP_SNAPSHOT_KEYS];
    struct snapshot_node *nodes;      /* [n_nodes]: parents before children */
    size_t cap_nodes;
    struct snapshot_branch branches[PP_SNAPSHOT_BRANCHES]; /* most recently used first */
    float *logits;                    /* [n_logits]: of the first branch's last row; NULL: not known */
    uint64_t n_logits;
};

void pp_snapshot_free(struct snapshot *s); /* a zeroed one is fine */
/* Appends the manifest's bytes to out. out->bad: out of memory. */
void pp_snapshot_encode(const struct snapshot *s, struct pp_buf *out);
/* Decodes them; the caller frees *s, also after errors. PP_ERR_FORMAT: damaged; PP_ERR_MISMATCH: another version. */
enum pp_code pp_snapshot_decode(const void *data, size_t size, struct snapshot *s, struct pp_error *err);

/* The first block of the pack, with the nonce and the owner. */
void pp_snapshot_pack_header(const struct snapshot *s, uint8_t block[static PP_SNAPSHOT_ALIGN]);
/* Opens BASE.pack and checks that it belongs to the manifest. flags as in open(2). */
enum pp_code pp_snapshot_open_pack(const struct snapshot *s, const char *base, int flags, int *fd,
                                   struct pp_error *err);

/* The name of a node: a hash over its parent's name (NULL: none), the hash of the key text, and its tokens. */
struct pp_hash128 pp_snapshot_name(const struct pp_hash128 *parent, const struct pp_sha256 *key,
                                   const int32_t *tokens, uint32_t n);
/* The hash of the part of a key text that applies to the page-th page of a sequence: without adapters that act `from` a
 * later position on, and without the position of those that act in all of the page. false: out of memory. */
bool pp_snapshot_page_key(const struct pp_buf *text, int64_t page, struct pp_sha256 *hash);
/* The child of `parent` with these tokens, or PP_NO_NODE. */
uint32_t pp_snapshot_child(const struct snapshot *s, uint32_t parent, const struct pp_hash128 *name,
                           const int32_t *tokens, uint32_t n);
/* The checksum of a page, from those of its chunks [n]. It covers the node's name and the tier, so that a misplaced
 * page is detected. */
struct pp_hash128 pp_snapshot_sum(const struct pp_hash128 *name, uint32_t tier, const struct pp_hash128 *chunk_sums,
                                  size_t n);
static inline size_t pp_snapshot_n_chunks(uint64_t bytes)
{
    return (size_t)((bytes + PP_SNAPSHOT_CHUNK - 1) / PP_SNAPSHOT_CHUNK);
}

/* Checks that pages of *s can be used by the engine of `seq`: same owner, same geometry, and a key equal to `ours`,
 * whose index is *key. If one of the two has adapters that act from some position on, pages before that may still be
 * equal: *key may then be n_keys. PP_ERR_MISMATCH: the text says what differs. */
enum pp_code pp_snapshot_fits(const struct snapshot *s, const struct pp_seq *seq, const char *owner,
                              const struct pp_buf *ours, uint32_t *key, struct pp_error *err);
/* Whether two key texts differ in adapters only, so that their pages have the same geometry. */
bool pp_snapshot_same_model(const struct pp_buf *a, const struct pp_buf *b);

/* pp_snapshot_restore with a manifest that is in memory. */
enum pp_code pp_snapshot_restore_from(struct pp_seq *seq, const struct pp_sha256 *identity, const char *base,
                                      const char *owner, const void *manifest, size_t size, const int32_t *prompt,
                                      int64_t n, const struct pp_cancel *cancel, struct pp_error *err);

/* BASE with an ending, as a new string (pp_free); NULL: out of memory. */
char *pp_snapshot_file(const char *base, const char *ending);

#endif
