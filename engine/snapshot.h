/* snapshot.h - a conversation's KV pages on the disk: what is in its two files. Private to the engine; the public side
 * is in engine.h, offset tables in pippin-formats(5).
 *
 * BASE.pack holds pages, BASE.manifest says what they are. Pages form a tree, because the branches of a conversation
 * (edits, regenerations) begin alike: a node is a page's tokens, its name (the hash chain of kv.h, over the key text
 * below), its parent, and where its KV lies, once for each tier. A branch is its last node. Nodes with fewer than
 * PP_PAGE_TOKENS tokens are ends of branches and have no children.
 *
 * Both files survive a crash at any moment: room in the pack is written to only if the manifest on the disk does not
 * name it, the pack is on the disk before the manifest that names its pages, and the manifest is replaced by renaming.
 *
 *     plan: read the manifest, find what is new, give it room        (disk: old manifest, old pages)
 *     write: new pages, moved pages -> fdatasync                     (old manifest, old pages, bytes it does not name)
 *            manifest.tmp -> fsync -> rename -> fsync of the folder  (new manifest, its pages, bytes it does not name)
 *            cut what lies behind the last page named                (new manifest, its pages)
 */
#ifndef PP_ENGINE_SNAPSHOT_H
#define PP_ENGINE_SNAPSHOT_H

#include "engine/engine_int.h"

enum {
    PP_SNAPSHOT_VERSION = 2,
    PP_SNAPSHOT_BRANCHES = 16,        /* those used last are kept */
    PP_SNAPSHOT_KEYS = 8,             /* adapter sets of one model */
    PP_SNAPSHOT_KEY_BYTES = 1 << 13,  /* of a key text at most */
    PP_SNAPSHOT_OWNER = 64,           /* room for the name of a conversation, with its NUL */
    PP_SNAPSHOT_ALIGN = 4096,         /* of pages in a pack */
    PP_SNAPSHOT_BITE = 256 << 10,     /* bytes that are read and hashed together, while they are in a core's cache */
    PP_SNAPSHOT_MANIFEST_MAX = 1 << 28,
};
#define PP_NO_NODE UINT32_MAX

struct snapshot_place {
    uint64_t offset;                  /* in the pack; 0: this page is not kept */
    struct pp_hash128 sum;            /* pp_snapshot_sum */
};

struct snapshot_node {
    uint32_t parent;                  /* an earlier node, or PP_NO_NODE */
    uint32_t n;                       /* tokens, 1 .. PP_PAGE_TOKENS */
    struct pp_hash128 name;
    int32_t tokens[PP_PAGE_TOKENS];   /* behind n: -1 */
    struct snapshot_place place[PP_MAX_TIERS];
};

struct snapshot_branch {
    uint32_t leaf, key;
};

struct snapshot {
    struct pp_hash128 nonce;          /* the same in both files: they belong together */
    uint64_t pack_bytes;
    uint32_t n_tiers, n_keys, n_nodes, n_branches;
    uint64_t page_bytes[PP_MAX_TIERS];
    char owner[PP_SNAPSHOT_OWNER];    /* the conversation */
    struct pp_buf keys[PP_SNAPSHOT_KEYS];
    struct snapshot_node *nodes;      /* [n_nodes]: parents before children */
    size_t cap_nodes;
    struct snapshot_branch branches[PP_SNAPSHOT_BRANCHES]; /* the one used last comes first */
    float *logits;                    /* [n_logits]: of the first branch's last row; NULL: not known */
    uint64_t n_logits;
};

void pp_snapshot_free(struct snapshot *s); /* a zeroed one is fine */
/* The manifest as bytes. out->bad: out of memory. */
void pp_snapshot_encode(const struct snapshot *s, struct pp_buf *out);
/* And back: *s is to be freed in any case. PP_ERR_FORMAT: damaged; PP_ERR_MISMATCH: another version. */
enum pp_code pp_snapshot_decode(const void *data, size_t size, struct snapshot *s, struct pp_error *err);

/* The pack begins with a block of PP_SNAPSHOT_ALIGN bytes that names the nonce and the owner. */
void pp_snapshot_pack_header(const struct snapshot *s, uint8_t block[static PP_SNAPSHOT_ALIGN]);
/* Opens BASE.pack and checks that it is the one that the manifest means. flags as in open(2). */
enum pp_code pp_snapshot_open_pack(const struct snapshot *s, const char *base, int flags, int *fd,
                                   struct pp_error *err);

/* The name of a node: chain over its parent's (NULL: none), the hash of the key text, and its tokens. */
struct pp_hash128 pp_snapshot_name(const struct pp_hash128 *parent, const struct pp_sha256 *key,
                                   const int32_t *tokens, uint32_t n);
/* The hash of what a key text says of the page-th page of a sequence: adapters that act `from` a later position on are
 * left out, and of those that act in all of it the position is. false: out of memory. */
bool pp_snapshot_page_key(const struct pp_buf *text, int64_t page, struct pp_sha256 *hash);
/* The node behind `parent` with these tokens, or PP_NO_NODE. */
uint32_t pp_snapshot_child(const struct snapshot *s, uint32_t parent, const struct pp_hash128 *name,
                           const int32_t *tokens, uint32_t n);
/* The checksum of a page from those of its bites: it covers the node's name and the tier, so that a page in another's
 * place is found out. bites: [n]. */
struct pp_hash128 pp_snapshot_sum(const struct pp_hash128 *name, uint32_t tier, const struct pp_hash128 *bites,
                                  size_t n);
static inline size_t pp_snapshot_n_bites(uint64_t bytes)
{
    return (size_t)((bytes + PP_SNAPSHOT_BITE - 1) / PP_SNAPSHOT_BITE);
}

/* Checks that pages of *s are such as the engine of `seq` makes: same owner, a key among them that is `ours`, same
 * geometry. *key: its number; if one of the two has adapters that act from some position on, whatever comes before it
 * may be the same, and *key may be n_keys. If not, the sentence says what is different. */
enum pp_code pp_snapshot_fits(const struct snapshot *s, const struct pp_seq *seq, const char *owner,
                              const struct pp_buf *ours, uint32_t *key, struct pp_error *err);
/* True if two key texts differ in nothing but adapters: their pages have the same form. */
bool pp_snapshot_same_model(const struct pp_buf *a, const struct pp_buf *b);

/* pp_snapshot_restore with a manifest that was read already. */
enum pp_code pp_snapshot_restore_from(struct pp_seq *seq, const struct pp_sha256 *identity, const char *base,
                                      const char *owner, const void *manifest, size_t size, const int32_t *prompt,
                                      int64_t n, const struct pp_cancel *cancel, struct pp_error *err);

/* BASE and an ending in one fresh string (pp_free); NULL: out of memory. */
char *pp_snapshot_file(const char *base, const char *ending);

#endif
