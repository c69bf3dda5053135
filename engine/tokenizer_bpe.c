/* tokenizer_bpe.c - merging the characters of a word into tokens: byte pair encoding.
 *
 * Start from single characters; as long as two neighbours can be merged, merge the best such pair, the leftmost of
 * equals. Byte-level vocabularies rank pairs by their merge list; SentencePiece merges whatever gives a known text, by
 * its score. Short words are scanned for the best pair again and again; long ones keep candidates in a heap, so that a
 * word of a megabyte costs n log n. Both give the same tokens. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer_internal.h"

enum { SHORT_WORD = 40 }; /* symbols; up to here scanning is faster than a heap */

/* A symbol of a word, and the text that it covers. */
struct piece {
    uint32_t start, len;
    uint32_t symbol;
};

struct tok_link { /* a piece in a long word; len 0: merged away */
    struct piece piece;
    uint32_t prev, next; /* TOK_NONE at the ends */
};

struct tok_candidate {
    uint64_t order;  /* priority, then position in the word */
    uint32_t len;    /* of both pieces together; tells whether they are unchanged */
    uint32_t symbol;
};

/* --- which pairs merge --------------------------------------------------------------------------------- */

static inline uint64_t pair_hash(uint32_t left, uint32_t right)
{
    return ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u >> 32;
}

struct tok_merge tok_merge_by_rank(const struct pp_tokenizer *t, uint32_t left, uint32_t right)
{
    const uint64_t key = (uint64_t)left << 32 | right;
    if (left != TOK_NONE && right != TOK_NONE && t->pairs)
        for (uint32_t i = (uint32_t)pair_hash(left, right) & t->pair_mask; t->pairs[i].key != UINT64_MAX;
             i = (i + 1) & t->pair_mask)
            if (t->pairs[i].key == key)
                return (struct tok_merge){t->pairs[i].rank, t->pairs[i].symbol};
    return (struct tok_merge){TOK_NONE, TOK_NONE};
}

/* Prefetches, as the table does not fit in caches. */
static inline void expect_merge(const struct pp_tokenizer *t, uint32_t left, uint32_t right)
{
    if (t->pairs)
        __builtin_prefetch(&t->pairs[(uint32_t)pair_hash(left, right) & t->pair_mask]);
}

/* Maps the order of floats to descending integers: the highest score gets the smallest number. */
static uint32_t score_priority(float score)
{
    float canonical = score == 0.0f ? 0.0f : score; /* -0 is 0 */
    uint32_t bits;
    memcpy(&bits, &canonical, sizeof bits);
    uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return ascending == 0 ? TOK_NONE - 1 : ~ascending;
}

static struct tok_merge merge_by_score(const struct pp_tokenizer *t, const char *text, size_t n)
{
    struct tok_merge none = {TOK_NONE, TOK_NONE};
    uint32_t symbol = n <= t->max_len ? tok_lookup(t, text, n) : TOK_NONE;
    if (symbol == TOK_NONE || !tok_mergeable(t, symbol))
        return none;
    return (struct tok_merge){score_priority(t->score[symbol]), symbol};
}

static struct tok_merge merge_of(const struct pp_tokenizer *t, const char *word, const struct piece *a,
                             const struct piece *b)
{
    if (t->score)
        return merge_by_score(t, word + a->start, (size_t)a->len + b->len);
    return tok_merge_by_rank(t, a->symbol, b->symbol);
}

/* --- output -------------------------------------------------------------------------------------------- */

/* Vocabularies of a tokenizer.json drop unknown characters only where its library does. */
static enum pp_code refuse_unknown(const char *text, size_t n, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_UNSUPPORTED, "the vocabulary has no token for unknown characters (its unk_id is null), "
                                            "such as \"%.*s\"", (int)(n < 40 ? n : 40), text);
}

enum pp_code tok_emit_unknown(struct tok_merger *m, const char *bytes, size_t n, bool *after_unknown,
                              struct pp_error *err)
{
    const struct pp_tokenizer *t = m->t;
    bool all = true;
    for (size_t i = 0; i < n; i++)
        all = all && t->byte_symbol[(uint8_t)bytes[i]] < t->n_vocab;
    if (t->kind != TOK_BYTE_LEVEL && !all) {
        bool repeated = *after_unknown;
        *after_unknown = true;
        if (t->apart && t->unk < 0)
            return refuse_unknown(bytes, n, err);
        return (repeated && !t->each_unknown) || t->unk < 0 ? PP_OK : tok_ids_add(&m->ids, t->unk, err);
    }
    for (size_t i = 0; i < n; i++) {
        const uint32_t symbol = t->byte_symbol[(uint8_t)bytes[i]];
        const bool known = symbol < t->n_vocab, repeated = *after_unknown && t->fuse_unknown;
        const int32_t id = known ? (int32_t)symbol : t->byte_unknown;
        enum pp_code code = id < 0 || (!known && repeated) ? PP_OK : tok_ids_add(&m->ids, id, err);
        if (code)
            return code;
        *after_unknown = !known;
    }
    return PP_OK;
}

static enum pp_code emit(struct tok_merger *m, const char *word, const struct piece *p, bool *after_unknown,
                         struct pp_error *err)
{
    if (p->symbol >= m->t->n_vocab)
        return tok_emit_unknown(m, word + p->start, p->len, after_unknown, err);
    *after_unknown = false;
    return tok_ids_add(&m->ids, (int32_t)p->symbol, err);
}

/* --- short words --------------------------------------------------------------------------------------- */

/* The symbol of a character, in vocabularies that mark characters which do not begin a word, or end one. */
static uint32_t marked_symbol(const struct pp_tokenizer *t, const char *c, size_t n, bool begins, bool ends)
{
    char text[8 + TOK_MAX_WORD_INSIDE + TOK_MAX_WORD_END];
    const size_t before = begins ? 0 : t->n_word_inside, after = ends ? t->n_word_end : 0;
    memcpy(text, t->word_inside, before);
    memcpy(text + before, c, n);
    memcpy(text + before + n, t->word_end, after);
    const uint32_t symbol = tok_lookup(t, text, before + n + after);
    return symbol != TOK_NONE && tok_mergeable(t, symbol) ? symbol : TOK_NONE;
}

/* The first character of word[from..n). */
static inline struct piece first_piece(const struct pp_tokenizer *t, const char *word, size_t from, size_t n)
{
    struct piece p = {.start = (uint32_t)from, .len = 1};
    uint8_t byte = (uint8_t)word[from];
    if (t->kind == TOK_BYTE_LEVEL) {
        p.symbol = t->byte_symbol[byte];
    } else if (byte < 0x80) {
        p.symbol = t->ascii_symbol[byte];
    } else {
        int32_t c;
        p.len = (uint32_t)pp_utf8_decode(word + from, n - from, &c);
        p.symbol = c < 0 ? TOK_NONE : tok_lookup(t, word + from, p.len);
        if (p.symbol != TOK_NONE && !tok_mergeable(t, p.symbol))
            p.symbol = TOK_NONE;
    }
    const bool ends = from + p.len == n;
    if ((t->n_word_end && ends) || (t->n_word_inside && from))
        p.symbol = marked_symbol(t, word + from, p.len, from == 0, ends);
    return p;
}

/* In vocabularies without an unknown token unknown characters are ignored, so that their neighbours may merge. */
static inline bool is_left_out(const struct pp_tokenizer *t, const char *word, const struct piece *p)
{
    bool bytes = t->kind != TOK_BYTE_LEVEL;
    if (!t->drop_unknown || p->symbol != TOK_NONE)
        return false;
    for (size_t i = 0; i < p->len; i++)
        bytes = bytes && t->byte_symbol[(uint8_t)word[p->start + i]] < t->n_vocab;
    return !bytes;
}

/* The merge of two single characters. */
static inline struct tok_merge first_merge(const struct pp_tokenizer *t, const char *word, const struct piece *a,
                                           const struct piece *b)
{
    if (t->byte_merges)
        return t->byte_merges[(uint8_t)word[a->start] << 8 | (uint8_t)word[b->start]];
    return merge_of(t, word, a, b);
}

static enum pp_code merge_short(struct tok_merger *m, const char *word, size_t n, struct pp_error *err)
{
    const struct pp_tokenizer *t = m->t;
    struct piece pieces[SHORT_WORD];
    struct tok_merge merges[SHORT_WORD]; /* [i]: of pieces i and i + 1 */
    size_t count = 0;
    for (size_t at = 0; at < n;) {
        pieces[count] = first_piece(t, word, at, n);
        at += pieces[count].len;
        count += !is_left_out(t, word, &pieces[count]);
    }
    for (size_t i = 0; i + 1 < count; i++)
        merges[i] = first_merge(t, word, &pieces[i], &pieces[i + 1]);
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++)
            if (merges[i].priority < merges[best].priority)
                best = i;
        if (merges[best].priority == TOK_NONE)
            break;
        pieces[best].len += pieces[best + 1].len;
        pieces[best].symbol = merges[best].symbol;
        count--;
        memmove(&pieces[best + 1], &pieces[best + 2], (count - best - 1) * sizeof *pieces);
        memmove(&merges[best], &merges[best + 1], (count - best - 1) * sizeof *merges);
        if (best > 0 && best + 1 < count)
            expect_merge(t, pieces[best].symbol, pieces[best + 1].symbol); /* while the left merge is looked up */
        if (best > 0)
            merges[best - 1] = merge_of(t, word, &pieces[best - 1], &pieces[best]);
        if (best + 1 < count)
            merges[best] = merge_of(t, word, &pieces[best], &pieces[best + 1]);
    }
    bool after_unknown = false;
    for (size_t i = 0; i < count; i++) {
        enum pp_code code = emit(m, word, &pieces[i], &after_unknown, err);
        if (code)
            return code;
    }
    return PP_OK;
}

/* --- long words ---------------------------------------------------------------------------------------- */

static void sift_up(struct tok_candidate *heap, size_t i)
{
    struct tok_candidate c = heap[i];
    for (; i > 0 && c.order < heap[(i - 1) / 2].order; i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = c;
}

static struct tok_candidate pop(struct tok_merger *m)
{
    struct tok_candidate top = m->heap[0], last = m->heap[--m->heap_n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < m->heap_n; i = child) {
        if (child + 1 < m->heap_n && m->heap[child + 1].order < m->heap[child].order)
            child++;
        if (last.order <= m->heap[child].order)
            break;
        m->heap[i] = m->heap[child];
    }
    m->heap[i] = last;
    return top;
}

static enum pp_code offer(struct tok_merger *m, const char *word, uint32_t left, struct pp_error *err)
{
    uint32_t right = left == TOK_NONE ? TOK_NONE : m->links[left].next;
    if (right == TOK_NONE)
        return PP_OK;
    const struct piece *a = &m->links[left].piece, *b = &m->links[right].piece;
    struct tok_merge merge = merge_of(m->t, word, a, b);
    if (merge.priority == TOK_NONE)
        return PP_OK;
    if (m->heap_n == m->heap_cap && pp_grow(&m->heap, &m->heap_cap, m->heap_n + 1, sizeof *m->heap))
        return pp_fail_nomem(err, "merging a long word");
    m->heap[m->heap_n] = (struct tok_candidate){(uint64_t)merge.priority << 32 | left, a->len + b->len, merge.symbol};
    sift_up(m->heap, m->heap_n++);
    return PP_OK;
}

/* Merges the candidate's right piece into its left one, unless either has changed. Pieces grow only to the right, so an
 * unchanged total length at the same position means unchanged pieces. */
static enum pp_code take(struct tok_merger *m, const char *word, const struct tok_candidate *c, struct pp_error *err)
{
    uint32_t left = (uint32_t)c->order;
    struct tok_link *a = &m->links[left];
    if (a->piece.len == 0 || a->next == TOK_NONE || a->piece.len + m->links[a->next].piece.len != c->len)
        return PP_OK;
    struct tok_link *b = &m->links[a->next];
    a->piece.len = c->len;
    a->piece.symbol = c->symbol;
    a->next = b->next;
    b->piece.len = 0;
    if (a->next != TOK_NONE)
        m->links[a->next].prev = left;
    enum pp_code code = offer(m, word, a->prev, err);
    return code ? code : offer(m, word, left, err);
}

static enum pp_code merge_long(struct tok_merger *m, const char *word, size_t n, struct pp_error *err)
{
    uint32_t count = 0;
    m->heap_n = 0;
    for (size_t at = 0; at < n;) {
        if (count == m->links_cap && pp_grow(&m->links, &m->links_cap, (size_t)count + 1, sizeof *m->links))
            return pp_fail_nomem(err, "merging a long word");
        const struct piece p = first_piece(m->t, word, at, n);
        m->links[count] = (struct tok_link){p, count - 1, count + 1};
        at += p.len;
        count += !is_left_out(m->t, word, &p);
    }
    if (!count)
        return PP_OK;
    m->links[count - 1].next = TOK_NONE; /* the first prev becomes TOK_NONE by wrapping around */
    for (uint32_t i = 0; i < count; i++) {
        enum pp_code code = offer(m, word, i, err);
        if (code)
            return code;
    }
    while (m->heap_n > 0) {
        struct tok_candidate best = pop(m);
        enum pp_code code = take(m, word, &best, err);
        if (code)
            return code;
    }
    bool after_unknown = false;
    for (uint32_t i = 0; i != TOK_NONE; i = m->links[i].next) {
        enum pp_code code = emit(m, word, &m->links[i].piece, &after_unknown, err);
        if (code)
            return code;
    }
    return PP_OK;
}

enum pp_code tok_bpe_word(struct tok_merger *m, const char *word, size_t n, struct pp_error *err)
{
    return n <= SHORT_WORD ? merge_short(m, word, n, err) : merge_long(m, word, n, err);
}
