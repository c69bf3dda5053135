/* tokenizer_words.c - turns a word into tokens, by its kind of vocabulary; and a cache of words, which makes a long
 * text as fast as looking up its words. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/tokenizer_internal.h"

/* Words that occurred, with their tokens. Most words of a text are short, and few are frequent: those are stored
 * compactly, so that they stay in the L1 cache. A word has two slots next to each other; found in the second it moves
 * to the first, and a new word goes to the second. */
struct short_word {
    uint64_t key;    /* up to 7 bytes, padded with zeros; the last byte is the length, 0: an empty slot. Its highest
                        bit: U+2581 precedes them */
    uint32_t ids[2]; /* the first also holds their number, in its upper bits */
};
struct long_word {
    uint64_t key[4]; /* up to 31 bytes, in the same way */
    uint32_t ids[8];
};
struct tok_cache {
    unsigned shift;  /* shift of a hash, which gives a pair of slots */
    struct short_word *shorts;
    struct long_word *longs; /* each a cache line; also for short words of more than two tokens */
};
enum {
    ID_BITS = 24,
    SHORT_BYTES = 7, SHORT_IDS = 2, LONG_BYTES = 31, LONG_IDS = 8,
    MIN_BITS = 6, MAX_BITS = 14,  /* slots of either kind: enough for nearly all words of a book */
    BYTES_PER_PLACE = 32,         /* of text */
};
_Static_assert(TOK_MAX_VOCAB <= 1 << ID_BITS, "an id and a small number fit into 32 bits");
_Static_assert(sizeof(struct long_word) == 64, "a place is a cache line");

static enum pp_code reserve(struct tok_ids *ids, size_t more, struct pp_error *err)
{
    if (ids->cap - ids->n < more && pp_grow(&ids->v, &ids->cap, ids->n + more, sizeof *ids->v))
        return pp_fail_nomem(err, "the tokens of the text");
    return PP_OK;
}

enum pp_code tok_ids_add(struct tok_ids *ids, int32_t id, struct pp_error *err)
{
    enum pp_code code = reserve(ids, 1, err);
    if (!code)
        ids->v[ids->n++] = id;
    return code;
}

void tok_merge_free(struct tok_merger *m)
{
    pp_free(m->ids.v);
    pp_free(m->cache);
    pp_free(m->links);
    pp_free(m->heap);
    pp_free(m->cuts);
    pp_free(m->costs);
    pp_buf_free(&m->spelled);
    memset(m, 0, sizeof *m);
}

/* --- new words ----------------------------------------------------------------------------------------- */

static enum pp_code make_word(struct tok_merger *m, const char *word, size_t n, struct pp_error *err)
{
    const struct pp_tokenizer *t = m->t;
    if (t->kind == TOK_UNIGRAM)
        return tok_unigram_word(m, word, n, err);
    if (t->kind == TOK_WORDPIECE)
        return tok_wordpiece_word(m, word, n, err);
    if (t->ignore_merges && n <= t->max_len) {
        pp_buf_clear(&m->spelled);
        if (t->kind == TOK_BYTE_LEVEL)
            tok_spell_bytes(word, n, &m->spelled);
        else
            pp_buf_add(&m->spelled, word, n);
        if (m->spelled.bad)
            return pp_fail_nomem(err, "a word");
        uint32_t symbol = tok_lookup(t, m->spelled.data, m->spelled.len);
        if (symbol < t->n_vocab && tok_mergeable(t, symbol))
            return tok_ids_add(&m->ids, (int32_t)symbol, err);
    }
    if (t->whole_words && t->unk < 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the vocabulary has a token for each known word but none for unknown "
                                                "words, such as \"%.*s\"", (int)(n < 40 ? n : 40), word);
    if (t->whole_words)
        return tok_ids_add(&m->ids, t->unk, err);
    return tok_bpe_word(m, word, n, err);
}

/* --- the cache ----------------------------------------------------------------------------------------- */

/* One allocation: the struct, then the slots, aligned to a cache line. */
void tok_merge_use_cache(struct tok_merger *m, size_t n_text)
{
    const size_t line = sizeof(struct long_word);
    unsigned bits = MIN_BITS;
    if (m->cache)
        return;
    while (bits < MAX_BITS && n_text / BYTES_PER_PLACE >> bits)
        bits++;
    const size_t places = (size_t)1 << bits;
    m->cache = pp_calloc(1, 2 * line + places * (sizeof(struct long_word) + sizeof(struct short_word)));
    if (!m->cache)
        return;
    const uintptr_t end = (uintptr_t)m->cache + sizeof *m->cache;
    m->cache->longs = (struct long_word *)((end + line - 1) / line * line);
    m->cache->shorts = (struct short_word *)(m->cache->longs + places);
    m->cache->shift = 64 - (bits - 1);
}

static const uint8_t ones[64] = {[0 ... 31] = 0xff};

/* The first n bytes at p, padded with zeros, n < 8. */
static inline uint64_t short_key(const struct tok_merger *m, const char *p, size_t n)
{
    uint64_t key = 0, mask;
    if ((size_t)(m->end - p) < sizeof key) {
        memcpy(&key, p, n);
    } else {
        memcpy(&key, p, sizeof key);
        memcpy(&mask, ones + 32 - n, sizeof mask);
        key &= mask;
    }
    return key | (uint64_t)n << 56;
}

static inline void long_key(const struct tok_merger *m, const char *p, size_t n, uint64_t key[4])
{
    uint64_t mask[4];
    memset(key, 0, sizeof mask);
    if ((size_t)(m->end - p) < sizeof mask) {
        memcpy(key, p, n);
    } else {
        memcpy(key, p, sizeof mask);
        memcpy(mask, ones + 32 - n, sizeof mask);
        for (int i = 0; i < 4; i++)
            key[i] &= mask[i];
    }
    key[3] |= (uint64_t)n << 56;
}

/* Copies all ids of a slot, which is faster than copying only those in use. */
static inline enum pp_code recall(struct tok_merger *m, const uint32_t *have, size_t places, struct pp_error *err)
{
    struct tok_ids *ids = &m->ids;
    if (ids->cap - ids->n < places) {
        enum pp_code code = reserve(ids, places, err);
        if (code)
            return code;
    }
    memcpy(ids->v + ids->n, have, places * sizeof *have);
    ids->v[ids->n] = (int32_t)(have[0] & ((1u << ID_BITS) - 1));
    ids->n += have[0] >> ID_BITS;
    return PP_OK;
}

static void remember(uint32_t *to, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = (uint32_t)ids[i];
    to[0] = (n ? to[0] : 0) | (uint32_t)n << ID_BITS;
}

static inline bool same_key(const uint64_t a[4], const uint64_t b[4])
{
    return ((a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3])) == 0;
}

static struct long_word *long_slots(const struct tok_cache *c, const uint64_t key[4])
{
    uint64_t hash = key[0] * 0x9e3779b97f4a7c15u + key[1] * 0xc2b2ae3d27d4eb4fu;
    hash ^= key[2] * 0x165667b19e3779f9u + key[3] * 0xff51afd7ed558ccdu;
    return &c->longs[(hash ^ hash << 32) >> c->shift << 1];
}

static bool find_long(struct long_word *w, const uint64_t key[4])
{
    if (same_key(w[0].key, key))
        return true;
    if (!same_key(w[1].key, key))
        return false;
    const struct long_word found = w[1];
    w[1] = w[0];
    w[0] = found;
    return true;
}

/* A word of up to 31 bytes. also: NULL, or a short slot that gets the word instead, if its tokens fit there. */
static enum pp_code recall_long(struct tok_merger *m, const char *word, size_t n, struct short_word *also,
                                uint64_t also_key, struct pp_error *err)
{
    uint64_t key[4];
    long_key(m, word, n, key);
    struct long_word *w = long_slots(m->cache, key);
    if (find_long(w, key))
        return recall(m, w->ids, LONG_IDS, err);
    const size_t before = m->ids.n;
    enum pp_code code = make_word(m, word, n, err);
    const size_t made = m->ids.n - before;
    if (code || made > LONG_IDS || !m->ids.v) /* no result to keep */
        return code;
    if (also && made <= SHORT_IDS) {
        also->key = also_key;
        remember(also->ids, m->ids.v + before, made);
    } else {
        memcpy(w[1].key, key, sizeof key);
        remember(w[1].ids, m->ids.v + before, made);
    }
    return PP_OK;
}

/* skip: bytes of U+2581 at its beginning, which the key stores as one bit. */
static inline enum pp_code recall_short(struct tok_merger *m, const char *word, size_t n, size_t skip,
                                        struct pp_error *err)
{
    const uint64_t key = short_key(m, word + skip, n - skip) | (uint64_t)(skip != 0) << 63;
    const uint64_t hash = key * 0x9e3779b97f4a7c15u;
    struct short_word *w = &m->cache->shorts[(hash ^ hash << 32) >> m->cache->shift << 1];
    if (w[0].key == key)
        return recall(m, w[0].ids, SHORT_IDS, err);
    if (w[1].key != key)
        return recall_long(m, word, n, &w[1], key, err);
    const struct short_word found = w[1];
    w[1] = w[0];
    w[0] = found;
    return recall(m, w[0].ids, SHORT_IDS, err);
}

enum pp_code tok_merge_word(struct tok_merger *m, const char *word, size_t n, struct pp_error *err)
{
    if (n == 0)
        return PP_OK;
    if (!m->cache || n > LONG_BYTES)
        return make_word(m, word, n, err);
    const bool space = m->t->words_at_space && n > TOK_SPACE_LEN && memcmp(word, TOK_SPACE, TOK_SPACE_LEN) == 0;
    const size_t skip = space ? TOK_SPACE_LEN : 0;
    return n - skip <= SHORT_BYTES ? recall_short(m, word, n, skip, err) : recall_long(m, word, n, NULL, 0, err);
}
