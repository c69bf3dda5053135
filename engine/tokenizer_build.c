/* tokenizer_build.c - from a vocabulary as its file spells it to the tables that tokenizing reads. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer_internal.h"

enum {
    MAX_TEXT_BYTES = 1 << 30,
    MAX_SPECIAL = 4096, /* bytes of a special token; nobody writes longer ones */
};

static const float NO_SCORE = -1000; /* of tokens that are not pieces of the model */

/* --- byte-level spelling ------------------------------------------------------------------------------- */

/* GPT-2 writes a printable byte of Latin-1 as itself, and the other 68 as U+0100, U+0101, ... in ascending order. */
static bool is_itself(unsigned byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
}

int32_t tok_byte_to_char(unsigned byte)
{
    if (is_itself(byte))
        return (int32_t)byte;
    if (byte <= ' ')
        return 0x100 + (int32_t)byte;
    return byte == 0xad ? 0x143 : 0x121 + (int32_t)byte - 0x7f; /* 0x7f to 0xa0 are 34 bytes from U+0121 */
}

int tok_char_to_byte(int32_t c)
{
    if (c < 0x100)
        return c >= 0 && is_itself((unsigned)c) ? (int)c : -1;
    if (c <= 0x120)
        return (int)c - 0x100;
    if (c <= 0x142)
        return (int)c - 0x121 + 0x7f;
    return c == 0x143 ? 0xad : -1;
}

void tok_spell_bytes(const char *bytes, size_t n, struct pp_buf *out)
{
    for (size_t i = 0; i < n; i++) {
        char utf8[4];
        pp_buf_add(out, utf8, pp_utf8_encode(tok_byte_to_char((uint8_t)bytes[i]), utf8));
    }
}

/* --- spec ---------------------------------------------------------------------------------------------- */

/* Grows to more than n except the first time, since tokens may come one by one. */
static enum pp_code make_room(struct tok_spec *spec, size_t n, struct pp_error *err)
{
    size_t cap = spec->cap ? n + n / 2 : n;
    struct pp_str *texts = pp_realloc_array(spec->texts, cap, sizeof *texts);
    if (texts)
        spec->texts = texts;
    uint8_t *types = pp_realloc(spec->types, cap);
    if (types)
        spec->types = types;
    uint8_t *flags = pp_realloc(spec->flags, cap);
    if (flags)
        spec->flags = flags;
    float *scores = spec->scores ? pp_realloc_array(spec->scores, cap, sizeof *scores) : NULL;
    if (scores)
        spec->scores = scores;
    if (!texts || !types || !flags || (spec->scores && !scores))
        return pp_fail_nomem(err, "the vocabulary");
    spec->cap = cap;
    return PP_OK;
}

enum pp_code tok_spec_resize(struct tok_spec *spec, size_t n, struct pp_error *err)
{
    if (n <= spec->n)
        return PP_OK;
    if (n > TOK_MAX_VOCAB)
        return pp_fail(err, PP_ERR_FORMAT, "the vocabulary has %zu tokens, which cannot be right", n);
    if (n > spec->cap) {
        enum pp_code code = make_room(spec, n, err);
        if (code)
            return code;
    }
    for (size_t i = spec->n; i < n; i++) {
        spec->texts[i] = (struct pp_str){NULL, 0};
        spec->types[i] = TOK_UNUSED;
        spec->flags[i] = 0;
        if (spec->scores)
            spec->scores[i] = NO_SCORE;
    }
    spec->n = n;
    return PP_OK;
}

void tok_spec_free(struct tok_spec *spec)
{
    pp_free(spec->texts);
    pp_free(spec->types);
    pp_free(spec->flags);
    pp_free(spec->scores);
    pp_free(spec->merges);
    pp_free(spec->unescaped);
    memset(spec, 0, sizeof *spec);
}

void tok_spec_mark_bytes(struct tok_spec *spec)
{
    for (size_t i = 0; i < spec->n; i++) {
        struct pp_str s = spec->texts[i];
        if (spec->types[i] == TOK_NORMAL && s.len == 6 && memcmp(s.data, "<0x", 3) == 0 && s.data[5] == '>')
            spec->types[i] = TOK_BYTE;
    }
}

int64_t tok_spec_find(const struct tok_spec *spec, const char *text, size_t n)
{
    for (size_t i = spec->n; i-- > 0;)
        if (spec->texts[i].data && spec->texts[i].len == n && memcmp(spec->texts[i].data, text, n) == 0)
            return (int64_t)i;
    return -1;
}

/* --- the table of texts -------------------------------------------------------------------------------- */

static uint32_t hash_text(const char *text, size_t n)
{
    uint64_t h = pp_hash64(text, n);
    return (uint32_t)(h ^ h >> 32);
}

/* The slot with this text, or the empty one where it belongs. */
static struct tok_slot *slot_of(const struct pp_tokenizer *t, uint32_t hash, const char *text, size_t n)
{
    uint32_t i = hash & t->slot_mask;
    for (; t->slots[i].symbol != TOK_NONE; i = (i + 1) & t->slot_mask) {
        if (t->slots[i].hash != hash)
            continue;
        struct pp_str have = tok_text(t, t->slots[i].symbol);
        if (have.len == n && memcmp(have.data, text, n) == 0)
            break;
    }
    return &t->slots[i];
}

uint32_t tok_lookup(const struct pp_tokenizer *t, const char *text, size_t n)
{
    return n == 0 ? TOK_NONE : slot_of(t, hash_text(text, n), text, n)->symbol;
}

bool tok_mergeable(const struct pp_tokenizer *t, uint32_t symbol)
{
    if (symbol >= t->n_vocab)
        return true;
    if (t->flags[symbol] & (TOK_INSIDE | TOK_OUTSIDE))
        return t->flags[symbol] & TOK_INSIDE;
    return t->type[symbol] == TOK_NORMAL || t->type[symbol] == TOK_USER || t->type[symbol] == TOK_UNUSED;
}

/* At least doubles the table; it never gets more than half full. */
static enum pp_code grow_slots(struct pp_tokenizer *t, size_t symbols, struct pp_error *err)
{
    size_t size = 64;
    while (size < symbols * 2 + 2)
        size *= 2;
    struct tok_slot *slots = size > (size_t)1 << 31 ? NULL : pp_realloc_array(NULL, size, sizeof *slots);
    if (!slots)
        return pp_fail_nomem(err, "the vocabulary");
    memset(slots, 0xff, size * sizeof *slots); /* TOK_NONE everywhere */
    struct tok_slot *old = t->slots;
    size_t n_old = old ? (size_t)t->slot_mask + 1 : 0;
    t->slots = slots;
    t->slot_mask = (uint32_t)(size - 1);
    for (size_t i = 0; i < n_old; i++) {
        if (old[i].symbol == TOK_NONE)
            continue;
        uint32_t at = old[i].hash & t->slot_mask;
        while (slots[at].symbol != TOK_NONE)
            at = (at + 1) & t->slot_mask;
        slots[at] = old[i];
    }
    pp_free(old);
    return PP_OK;
}

/* Adds a symbol. It enters the table if `found`, and no other symbol has its text; empty texts never do. */
static enum pp_code add_symbol(struct pp_tokenizer *t, const char *text, size_t n, bool found, struct pp_error *err)
{
    size_t used = t->n_symbols ? t->start[t->n_symbols] : 0;
    if (n > MAX_TEXT_BYTES - used)
        return pp_fail(err, PP_ERR_FORMAT, "the texts of the vocabulary take more than a gigabyte");
    if (pp_grow(&t->text, &t->text_cap, used + n + 1, 1) ||
        pp_grow(&t->start, &t->start_cap, (size_t)t->n_symbols + 2, sizeof *t->start))
        return pp_fail_nomem(err, "the vocabulary");
    if ((size_t)t->n_symbols * 2 > t->slot_mask) {
        enum pp_code code = grow_slots(t, (size_t)t->n_symbols * 2, err);
        if (code)
            return code;
    }
    if (n)
        memcpy(t->text + used, text, n);
    t->start[t->n_symbols] = (uint32_t)used;
    t->start[t->n_symbols + 1] = (uint32_t)(used + n);
    if (n > t->max_len)
        t->max_len = (uint32_t)n;
    if (n && found) {
        uint32_t hash = hash_text(text, n);
        struct tok_slot *slot = slot_of(t, hash, text, n);
        if (slot->symbol == TOK_NONE)
            *slot = (struct tok_slot){hash, t->n_symbols};
    }
    t->n_symbols++;
    return PP_OK;
}

static enum pp_code intern(struct pp_tokenizer *t, const char *text, size_t n, uint32_t *symbol, struct pp_error *err)
{
    *symbol = tok_lookup(t, text, n);
    if (*symbol != TOK_NONE)
        return PP_OK;
    *symbol = t->n_symbols;
    return add_symbol(t, text, n, true, err);
}

static enum pp_code build_vocab(struct pp_tokenizer *t, const struct tok_spec *spec, struct pp_error *err)
{
    t->type = pp_malloc(spec->n);
    t->flags = pp_malloc(spec->n);
    enum pp_code code = t->type && t->flags ? grow_slots(t, spec->n, err) : pp_fail_nomem(err, "the vocabulary");
    for (size_t i = 0; !code && i < spec->n; i++) {
        char hole[32];
        struct pp_str text = spec->texts[i];
        if (!text.data)
            text = (struct pp_str){hole, (size_t)snprintf(hole, sizeof hole, "[PAD%zu]", i)};
        t->type[i] = spec->types[i];
        t->flags[i] = spec->flags[i];
        code = add_symbol(t, text.data, text.len, true, err);
    }
    t->n_vocab = t->n_symbols;
    if (!code && spec->scores) {
        t->score = pp_realloc_array(NULL, spec->n, sizeof *t->score);
        if (!t->score)
            return pp_fail_nomem(err, "the vocabulary");
        for (size_t i = 0; i < spec->n; i++) /* a NaN score merges last */
            t->score[i] = spec->scores[i] == spec->scores[i] ? spec->scores[i] : -3.4e38f;
    }
    return code;
}

/* Keeps double scores only if they differ from the floats. */
static enum pp_code build_exact(struct pp_tokenizer *t, const struct tok_spec *spec, struct pp_error *err)
{
    const size_t n = spec->exact.len / sizeof *t->exact;
    bool more = false;
    double *exact = t->exact = pp_realloc_array(NULL, spec->n, sizeof *exact);
    if (!exact)
        return pp_fail_nomem(err, "the vocabulary");
    for (size_t i = 0; i < spec->n; i++) {
        exact[i] = (double)t->score[i];
        if (i >= n)
            continue;
        memcpy(&exact[i], spec->exact.data + i * sizeof *exact, sizeof *exact); /* may be unaligned */
        if (!isfinite(exact[i]))
            exact[i] = (double)t->score[i];
        more |= exact[i] != (double)t->score[i];
    }
    if (!more) {
        pp_free(t->exact);
        t->exact = NULL;
    }
    return PP_OK;
}

/* --- merges -------------------------------------------------------------------------------------------- */

/* If two merges name the same pair, the better rank wins. */
static void add_pair(struct pp_tokenizer *t, uint64_t key, uint32_t symbol)
{
    uint32_t i = (uint32_t)(key * 0x9e3779b97f4a7c15u >> 32) & t->pair_mask;
    for (; t->pairs[i].key != UINT64_MAX; i = (i + 1) & t->pair_mask)
        if (t->pairs[i].key == key)
            return;
    t->pairs[i] = (struct tok_pair){key, t->n_merges, symbol};
    t->merges[t->n_merges++] = key;
}

static enum pp_code build_merges(struct pp_tokenizer *t, const struct tok_spec *spec, struct pp_error *err)
{
    size_t size = 16;
    if (spec->n_merges > (size_t)1 << 28)
        return pp_fail(err, PP_ERR_FORMAT, "the tokenizer has %zu merges, which cannot be right", spec->n_merges);
    while (size < spec->n_merges * 2)
        size *= 2;
    t->merges = pp_realloc_array(NULL, spec->n_merges + 1, sizeof *t->merges);
    t->pairs = pp_realloc_array(NULL, size, sizeof *t->pairs);
    if (!t->merges || !t->pairs)
        return pp_fail_nomem(err, "the tokenizer's merges");
    memset(t->pairs, 0xff, size * sizeof *t->pairs);
    t->pair_mask = (uint32_t)(size - 1);
    struct pp_buf both = {0};
    enum pp_code code = PP_OK;
    for (size_t i = 0; !code && i < spec->n_merges; i++) {
        const struct tok_merge_text *m = &spec->merges[i];
        uint32_t left, right, symbol = TOK_NONE;
        if (m->left.len == 0 || m->right.len == 0)
            continue;
        pp_buf_clear(&both);
        const size_t skip = m->right.len < t->n_word_inside ? m->right.len : t->n_word_inside;
        pp_buf_add(&both, m->left.data, m->left.len);
        pp_buf_add(&both, m->right.data + skip, m->right.len - skip);
        if (both.bad)
            code = pp_fail_nomem(err, "the tokenizer's merges");
        if (!code)
            code = intern(t, m->left.data, m->left.len, &left, err);
        if (!code)
            code = intern(t, m->right.data, m->right.len, &right, err);
        if (!code)
            code = intern(t, both.data, both.len, &symbol, err);
        if (!code)
            add_pair(t, (uint64_t)left << 32 | right, symbol);
    }
    pp_buf_free(&both);
    return code;
}

/* Drops flags of added tokens, which most do not need: words could not become them anyway. */
static void drop_idle_flags(struct pp_tokenizer *t)
{
    const uint8_t both = TOK_INSIDE | TOK_OUTSIDE;
    for (uint32_t i = 0; !t->ignore_merges && i < t->n_vocab; i++) {
        int32_t c;
        const struct pp_str s = tok_text(t, i);
        if (t->flags[i] & both && (!s.len || pp_utf8_decode(s.data, s.len, &c) < s.len))
            t->flags[i] &= (uint8_t)~both;
    }
}

/* --- single characters and words ----------------------------------------------------------------------- */

static void build_bytes(struct pp_tokenizer *t)
{
    bool any = false;
    for (unsigned byte = 0; byte < 256; byte++) {
        char text[8];
        size_t n;
        if (t->kind == TOK_BYTE_LEVEL)
            n = pp_utf8_encode(tok_byte_to_char(byte), text);
        else
            n = (size_t)snprintf(text, sizeof text, "<0x%02X>", byte);
        const uint32_t symbol = tok_lookup(t, text, n);
        t->byte_symbol[byte] = t->no_bytes ? TOK_NONE : symbol;
        any = any || symbol != TOK_NONE;
    }
    t->no_bytes = t->no_bytes && any;
    for (unsigned c = 0; c < 128; c++) {
        char text = (char)c;
        uint32_t symbol = t->kind == TOK_SPM || t->kind == TOK_CHARACTERS ? tok_lookup(t, &text, 1) : TOK_NONE;
        t->ascii_symbol[c] = symbol != TOK_NONE && tok_mergeable(t, symbol) ? symbol : TOK_NONE;
    }
}

/* A small table for merges of two bytes, which are most merges of a word's first round: it stays in cache. */
static enum pp_code build_byte_merges(struct pp_tokenizer *t, struct pp_error *err)
{
    t->byte_merges = pp_realloc_array(NULL, 65536, sizeof *t->byte_merges);
    if (!t->byte_merges)
        return pp_fail_nomem(err, "the tokenizer's merges");
    memset(t->byte_merges, 0xff, 65536 * sizeof *t->byte_merges); /* TOK_NONE everywhere */
    for (unsigned a = 0; a < 256; a++)
        for (unsigned b = 0; t->byte_symbol[a] != TOK_NONE && b < 256; b++)
            t->byte_merges[a << 8 | b] = tok_merge_by_rank(t, t->byte_symbol[a], t->byte_symbol[b]);
    return PP_OK;
}

static bool starts_with_space(const char *text, size_t n)
{
    return n >= TOK_SPACE_LEN && memcmp(text, TOK_SPACE, TOK_SPACE_LEN) == 0;
}

/* True if no symbol that merging can make has U+2581 after another character: then no merge reaches across the start of
 * a run of them, and text may be cut there. */
static bool words_begin_at_space(const struct pp_tokenizer *t)
{
    for (uint32_t i = 0; i < t->n_symbols; i++) {
        struct pp_str s = tok_text(t, i);
        if (!tok_mergeable(t, i))
            continue;
        for (size_t at = 1; at + TOK_SPACE_LEN <= s.len; at++)
            if (starts_with_space(s.data + at, s.len - at) &&
                (at < TOK_SPACE_LEN || !starts_with_space(s.data + at - TOK_SPACE_LEN, TOK_SPACE_LEN)))
                return false;
    }
    return true;
}

/* Whether some symbol that merging can make has a U+2581 after its beginning. */
static bool any_space_inside(const struct pp_tokenizer *t)
{
    for (uint32_t i = 0; i < t->n_symbols; i++) {
        struct pp_str s = tok_text(t, i);
        if (tok_mergeable(t, i) && s.len > TOK_SPACE_LEN && memmem(s.data + 1, s.len - 1, TOK_SPACE, TOK_SPACE_LEN))
            return true;
    }
    return false;
}

/* --- indexes in the order of texts --------------------------------------------------------------------- */

/* A user-defined token of SentencePiece that is looked for in normalised text. */
static bool is_spaced(const struct pp_tokenizer *t, uint32_t i)
{
    const size_t n = tok_text(t, i).len;
    return t->spaced_late && t->type[i] == TOK_USER && t->flags[i] & TOK_SPACED && n > 0 && n <= MAX_SPECIAL;
}

/* Whether there are such tokens for which it matters. It does for unigrams, where they compete with other pieces; for
 * words, of which they may be a part; where a suffix comes after them; and if their text has U+2581, which only
 * normalised text has. */
static bool has_spaced(const struct pp_tokenizer *t)
{
    if ((t->kind != TOK_SPM && t->kind != TOK_UNIGRAM) || t->apart)
        return false;
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        const struct pp_str s = tok_text(t, i);
        if (t->type[i] == TOK_USER && t->flags[i] & TOK_SPACED &&
            (t->kind == TOK_UNIGRAM || t->units || t->suffix || memmem(s.data, s.len, TOK_SPACE, TOK_SPACE_LEN)))
            return true;
    }
    return false;
}

/* is_special: looked for in raw text; is_late: in text after the normalizers. */
static bool is_special(const struct pp_tokenizer *t, uint32_t i)
{
    uint8_t type = t->type[i];
    size_t n = tok_text(t, i).len;
    if (is_spaced(t, i))
        return false;
    return (type == TOK_CONTROL || type == TOK_USER || type == TOK_UNKNOWN) && n > 0 && n <= MAX_SPECIAL &&
           !(t->steps && t->flags[i] & TOK_LATE);
}

static bool is_late(const struct pp_tokenizer *t, uint32_t i)
{
    uint8_t type = t->type[i];
    size_t n = tok_text(t, i).len;
    return (type == TOK_CONTROL || type == TOK_USER || type == TOK_UNKNOWN) && n > 0 && n <= MAX_SPECIAL &&
           t->steps && t->flags[i] & TOK_LATE;
}

static bool is_piece(const struct pp_tokenizer *t, uint32_t i)
{
    /* of SentencePiece, user-defined tokens that normalising may produce; of a tokenizer.json, all tokens of its
     * model */
    const bool whole = t->kind == TOK_UNIGRAM &&
                       (t->apart ? t->type[i] != TOK_UNUSED && t->score[i] > NO_SCORE : t->flags[i] & TOK_SPACED);
    return (t->type[i] == TOK_NORMAL || whole) && tok_text(t, i).len > 0;
}

static int by_text(const void *a, const void *b, void *tokenizer)
{
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    struct pp_str x = tok_text(tokenizer, i), y = tok_text(tokenizer, j);
    int order = memcmp(x.data, y.data, x.len < y.len ? x.len : y.len);
    if (order == 0)
        order = (x.len > y.len) - (x.len < y.len);
    return order ? order : (i > j) - (i < j);
}

/* Notes where the tokens with each first byte begin. */
static void index_bytes(const struct pp_tokenizer *t, struct tok_index *x)
{
    uint32_t at = 0;
    for (unsigned byte = 0; byte < 256; byte++) {
        x->at[byte] = at;
        while (at < x->n && (uint8_t)tok_text(t, x->ids[at]).data[0] == byte)
            at++;
    }
    x->at[256] = at;
}

/* Sorts the ids of the index by text. */
static void sort_index(struct pp_tokenizer *t, struct tok_index *x)
{
    qsort_r(x->ids, x->n, sizeof *x->ids, by_text, t);
    index_bytes(t, x);
}

/* Of tokens with the same text, keeps those that can be chosen: the first, or the last, and the first user-defined one.
 * Looking through all at every place of a text would take quadratic time, if a file repeats one often. */
static void drop_alike(const struct pp_tokenizer *t, struct tok_index *x, bool last)
{
    uint32_t n = 0;
    for (uint32_t i = 0, end; i < x->n; i = end) {
        const struct pp_str text = tok_text(t, x->ids[i]);
        uint32_t user = TOK_NONE;
        for (end = i; end < x->n; end++) {
            const struct pp_str other = tok_text(t, x->ids[end]);
            if (other.len != text.len || memcmp(other.data, text.data, text.len) != 0)
                break;
            if (user == TOK_NONE && t->type[tok_special_token(t, x->ids[end])] == TOK_USER)
                user = x->ids[end];
        }
        const uint32_t kept = x->ids[last ? end - 1 : i];
        x->ids[n++] = kept;
        if (user != TOK_NONE && user != kept && !last)
            x->ids[n++] = user;
    }
    x->n = n;
    index_bytes(t, x);
}

static enum pp_code build_index(struct pp_tokenizer *t, bool (*wanted)(const struct pp_tokenizer *, uint32_t),
                                struct tok_index *x, struct pp_error *err)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n_vocab; i++)
        n += wanted(t, i);
    x->ids = pp_realloc_array(NULL, (size_t)n + 1, sizeof *x->ids);
    if (!x->ids)
        return pp_fail_nomem(err, "the vocabulary");
    for (uint32_t i = 0; i < t->n_vocab; i++)
        if (wanted(t, i))
            x->ids[x->n++] = i;
    sort_index(t, x);
    return PP_OK;
}

/* The first in [lo, hi) whose byte at `depth` is not smaller; greater: whose byte is greater. All are longer than
 * depth. */
static uint32_t first_from(const struct tok_walk *w, uint32_t lo, uint32_t hi, uint8_t byte, bool greater)
{
    while (lo < hi) {
        uint32_t middle = lo + (hi - lo) / 2;
        uint8_t have = (uint8_t)tok_text(w->t, w->index->ids[middle]).data[w->depth];
        if (have < byte || (greater && have == byte))
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo;
}

bool tok_walk(struct tok_walk *w, char byte, uint32_t *token)
{
    const uint8_t b = (uint8_t)byte;
    *token = TOK_NONE;
    if (w->depth == 0) {
        w->lo = w->index->at[b];
        w->hi = w->index->at[b + 1];
    } else { /* those that end here come first */
        while (w->lo < w->hi && tok_text(w->t, w->index->ids[w->lo]).len == w->depth)
            w->lo++;
        w->lo = first_from(w, w->lo, w->hi, b, false);
        w->hi = first_from(w, w->lo, w->hi, b, true);
    }
    w->depth++;
    if (w->lo < w->hi && tok_text(w->t, w->index->ids[w->lo]).len == w->depth)
        *token = w->index->ids[w->lo];
    return w->lo < w->hi;
}

uint32_t tok_longest_here(const struct pp_tokenizer *t, const struct tok_index *index, const char *text, size_t n,
                          size_t *len)
{
    struct tok_walk w = {.t = t, .index = index};
    uint32_t best = TOK_NONE, token;
    for (size_t i = 0; i < n && tok_walk(&w, text[i], &token); i++)
        if (token != TOK_NONE) {
            best = token;
            *len = w.depth;
        }
    return best;
}

/* The single byte in the set; -1: there are several; 0: none. */
static int only_one(const bool set[256])
{
    int only = 0, n = 0;
    for (int byte = 0; byte < 256; byte++) {
        only = set[byte] ? byte : only;
        n += set[byte];
    }
    return n > 1 ? -1 : only;
}

static void mark_first(const struct pp_tokenizer *t, struct tok_specials *s)
{
    for (uint32_t i = 0; i < s->index.n; i++) {
        const uint32_t symbol = s->index.ids[i];
        const uint8_t byte = (uint8_t)tok_text(t, symbol).data[0];
        s->first[1][byte] = true;
        s->first[0][byte] |= t->type[tok_special_token(t, symbol)] == TOK_USER;
    }
    for (int control = 0; control < 2; control++)
        s->only[control] = only_one(s->first[control]);
}

/* Among tokens with the same text, special ones come first, then those with smaller ids. */
static int by_rank(const void *a, const void *b, void *tokenizer)
{
    const struct pp_tokenizer *t = tokenizer;
    const uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    const int order = (t->type[i] == TOK_USER) - (t->type[j] == TOK_USER);
    return order ? order : (i > j) - (i < j);
}

/* Adds the normalised text of each late token as a symbol for the index only. */
static enum pp_code normalize_late(struct pp_tokenizer *t, struct pp_buf two[2], struct pp_error *err)
{
    struct tok_index *x = &t->late.index;
    uint32_t kept = 0;
    qsort_r(x->ids, x->n, sizeof *x->ids, by_rank, t);
    for (uint32_t i = 0; i < x->n; i++) {
        struct pp_str text = tok_text(t, x->ids[i]);
        char own[MAX_SPECIAL];
        bool moved;
        enum pp_code code = tok_steps_run(t->steps, &text, false, two, &moved, err);
        if (code)
            return code;
        if (!text.len || text.len > MAX_SPECIAL)
            continue;
        memcpy(own, text.data, text.len); /* the texts may move when one is added */
        if ((code = add_symbol(t, own, text.len, false, err)))
            return code;
        t->late_of[kept] = x->ids[i];
        x->ids[kept++] = t->n_symbols - 1;
    }
    x->n = kept;
    sort_index(t, x);
    return PP_OK;
}

static enum pp_code build_late(struct pp_tokenizer *t, struct pp_error *err)
{
    struct pp_buf two[2] = {{0}, {0}};
    enum pp_code code = build_index(t, is_late, &t->late.index, err);
    if (code || !t->late.index.n)
        return code;
    t->late_of = pp_realloc_array(NULL, t->late.index.n, sizeof *t->late_of);
    if (!t->late_of)
        return pp_fail_nomem(err, "the vocabulary");
    t->late_begin = t->n_symbols;
    code = normalize_late(t, two, err);
    pp_buf_free(&two[0]);
    pp_buf_free(&two[1]);
    return code;
}

static enum pp_code build_specials(struct pp_tokenizer *t, struct pp_error *err)
{
    t->spaced_late = has_spaced(t);
    enum pp_code code = build_index(t, is_special, &t->special.index, err);
    if (!code && t->spaced_late)
        code = build_index(t, is_spaced, &t->spaced, err);
    if (!code)
        code = build_late(t, err);
    if (code)
        return code;
    drop_alike(t, &t->special.index, false);
    drop_alike(t, &t->spaced, false);
    drop_alike(t, &t->late.index, false);
    mark_first(t, &t->special);
    mark_first(t, &t->late);
    return PP_OK;
}

/* SentencePiece: log probability of an unknown character, below that of the rarest piece. */
static const float UNKNOWN_PENALTY = 10;

static enum pp_code build_pieces(struct pp_tokenizer *t, struct pp_error *err)
{
    enum pp_code code = build_index(t, is_piece, &t->pieces, err);
    double least = 0;
    float best = FLT_MIN; /* SentencePiece's initial value, which stays if all scores are logarithms */
    bool any = false;
    for (uint32_t i = 0; !code && t->score && i < t->pieces.n; i++) {
        const uint32_t id = t->pieces.ids[i];
        if (!t->apart && t->type[id] != TOK_NORMAL)
            continue;
        const double score = t->exact ? t->exact[id] : (double)t->score[id];
        least = !any || score < least ? score : least;
        best = t->score[id] > best ? t->score[id] : best;
        any = true;
    }
    t->unknown_score = least - UNKNOWN_PENALTY;
    t->best_score = best;
    if (!code) /* PLaMo's code and tokenizer.json's library keep the last of those with the same text */
        drop_alike(t, &t->pieces, t->kind == TOK_PLAMO || t->apart);
    return code;
}

/* Copies and checks a table of characters, if there is one. */
static enum pp_code copy_table(struct pp_str table, char **to, size_t *n, struct pp_error *err)
{
    if (!table.len)
        return PP_OK;
    *to = pp_malloc(table.len);
    if (!*to)
        return pp_fail_nomem(err, "the tokenizer's table of characters");
    memcpy(*to, table.data, table.len);
    *n = table.len;
    return tok_charsmap_check((struct pp_str){*to, table.len}, err); /* the copy is checked, as nobody else can change
                                                                        it */
}

static enum pp_code build_normalizer(struct pp_tokenizer *t, const struct tok_spec *spec, struct pp_error *err)
{
    t->longest_word = spec->longest_word;
    t->squeeze = spec->squeeze;
    t->split_white = spec->split_white;
    t->bert = spec->bert;
    enum pp_code code = copy_table(spec->charsmap, &t->charsmap, &t->charsmap_len, err);
    if (!code && (t->kind == TOK_SPM || t->kind == TOK_UNIGRAM))
        code = copy_table(spec->denormal, &t->denormal, &t->denormal_len, err);
    return code;
}

static void mark_ends(struct pp_tokenizer *t)
{
    static const char *const names[] = {
        "</s>", "<|eot_id|>", "<|im_end|>", "<|end_of_text|>", "<end_of_turn>", "<|end|>", "<|endoftext|>",
        "<|eom_id|>", "<|end_of_turn|>", "<EOT>", "<|eot|>", "<|return|>", "<|call|>",
        ("<\uff5c" "end\u2581of\u2581sentence\uff5c>"),
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        uint32_t id = tok_lookup(t, names[i], strlen(names[i]));
        if (id < t->n_vocab && t->type[id] == TOK_CONTROL)
            t->flags[id] |= TOK_END;
    }
    if (t->eos >= 0)
        t->flags[t->eos] |= TOK_END;
    if (t->eot >= 0)
        t->flags[t->eot] |= TOK_END;
}

/* --- all together -------------------------------------------------------------------------------------- */

static enum pp_code build_splitter(struct pp_tokenizer *t, const struct tok_spec *spec, struct pp_error *err)
{
    struct pp_str patterns[TOK_MAX_PATTERNS];
    size_t n = 0;
    if (spec->rule) {
        snprintf(t->pre, sizeof t->pre, "%s", spec->rule->name);
        for (; spec->rule->patterns[n]; n++)
            patterns[n] = (struct pp_str){spec->rule->patterns[n], strlen(spec->rule->patterns[n])};
    } else {
        for (; n < spec->n_patterns; n++) {
            patterns[n] = spec->patterns[n];
            t->patterns[n] = pp_strndup(patterns[n].data, patterns[n].len);
            if (!t->patterns[n])
                return pp_fail_nomem(err, "the split patterns");
            t->n_patterns++;
        }
    }
    return tok_splitter_new(patterns, n, &t->splitter, err);
}

static int32_t checked_id(int64_t id, size_t n)
{
    return id >= 0 && (uint64_t)id < n ? (int32_t)id : -1;
}

static bool has_all_bytes(const struct pp_tokenizer *t)
{
    for (int byte = 0; byte < 256; byte++)
        if (t->byte_symbol[byte] >= t->n_vocab)
            return false;
    return true;
}

/* Decides what unknown bytes become. Most vocabularies have tokens for all bytes, whatever they call unknown. */
static void build_unknown(struct pp_tokenizer *t, const struct tok_spec *spec)
{
    t->drop_unknown = (t->kind == TOK_SPM || t->kind == TOK_CHARACTERS) && !t->score && t->unk < 0;
    if (t->kind != TOK_BYTE_LEVEL || has_all_bytes(t))
        return;
    t->drop_unknown = !t->score && !spec->byte_unknown;
    if (!spec->byte_unknown)
        return;
    t->byte_unknown = checked_id(spec->byte_unknown - 1, spec->n);
    t->fuse_unknown = spec->fuse_unknown && t->byte_unknown >= 0;
}

/* The tokens put before a text; if one is missing, none are. */
static void take_lead(struct pp_tokenizer *t, const struct tok_spec *spec)
{
    if (!t->add_bos)
        return;
    t->lead[0] = t->bos;
    t->n_lead = 1;
    for (size_t i = 0; i < spec->n_lead; i++) {
        const int32_t id = checked_id(spec->lead[i], spec->n);
        if (id >= 0)
            t->lead[t->n_lead++] = id;
    }
}

/* The same for those put after it. */
static void take_tail(struct pp_tokenizer *t, const struct tok_spec *spec)
{
    for (size_t i = 0; i < spec->n_tail; i++) {
        const int32_t id = checked_id(spec->tail[i], spec->n);
        if (id >= 0)
            t->tail[t->n_tail++] = id;
    }
    if (!spec->n_tail && spec->add_eos && t->eos >= 0)
        t->tail[t->n_tail++] = t->eos;
    t->add_eos = t->n_tail > 0;
}

/* Takes the file's settings, as far as this kind of tokenizer has them. */
static void take_settings(struct pp_tokenizer *t, const struct tok_spec *spec)
{
    t->kind = spec->kind;
    t->bos = checked_id(spec->bos, spec->n);
    t->eos = checked_id(spec->eos, spec->n);
    t->eot = checked_id(spec->eot, spec->n);
    t->unk = checked_id(spec->unk, spec->n);
    t->byte_unknown = -1;
    t->add_bos = spec->add_bos && t->bos >= 0;
    take_lead(t, spec);
    take_tail(t, spec);
    t->ignore_merges = spec->ignore_merges;
    t->add_space = spec->add_space;
    t->prefix = spec->prefix;
    t->strip = spec->kind == TOK_SPM ? spec->strip : TOK_STRIP_ADDED;
    t->suffix = spec->suffix && (t->kind == TOK_SPM || t->kind == TOK_UNIGRAM);
    t->units = t->kind == TOK_SPM ? spec->units : TOK_UNITS_MERGED;
    t->breaks = spec->breaks;
    t->apart = spec->apart && spec->kind == TOK_UNIGRAM && spec->scores;
    t->no_bytes = spec->no_bytes && t->kind != TOK_BYTE_LEVEL;
    t->each_unknown = spec->each_unknown;
    t->whole_words = spec->whole_words && t->kind == TOK_CHARACTERS;
    t->ignore_merges |= t->whole_words;
    t->cleanup = spec->cleanup && (t->kind == TOK_CHARACTERS || t->kind == TOK_WORDPIECE);
    t->spelled = spec->spelled && (t->kind == TOK_CHARACTERS || t->kind == TOK_UNIGRAM);
    t->dna = spec->dna && t->kind == TOK_BYTE_LEVEL;
    t->bare_spaces = spec->bare_spaces;
    t->bare_prefix = spec->bare_prefix && spec->bare_spaces;
    t->covered = spec->covered;
}

static enum pp_code take_mark(struct pp_str mark, char *to, size_t size, size_t *n, struct pp_error *err)
{
    if (mark.len >= size)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the tokenizer's marker for parts of words is too long (\"%.16s...\")",
                       mark.data);
    if (mark.len)
        memcpy(to, mark.data, mark.len);
    *n = mark.len;
    return PP_OK;
}

static enum pp_code take_marks(struct pp_tokenizer *t, const struct tok_spec *spec, struct pp_error *err)
{
    enum pp_code code = take_mark(spec->word_end, t->word_end, sizeof t->word_end, &t->n_word_end, err);
    if (!code)
        code = take_mark(spec->word_inside, t->word_inside, sizeof t->word_inside, &t->n_word_inside, err);
    return code ? code : take_mark(spec->glue, t->glue, sizeof t->glue, &t->n_glue, err);
}

static enum pp_code build(struct pp_tokenizer *t, const struct tok_spec *spec, struct pp_error *err)
{
    take_settings(t, spec);
    enum pp_code code = take_marks(t, spec, err);
    if (!code)
        code = build_vocab(t, spec, err);
    if (!code && t->apart && spec->exact.len)
        code = build_exact(t, spec, err);
    if (!code && !spec->scores)
        code = build_merges(t, spec, err);
    if (code)
        return code;
    drop_idle_flags(t);
    build_bytes(t);
    build_unknown(t, spec);
    if (t->kind == TOK_BYTE_LEVEL && !t->score)
        code = build_byte_merges(t, err);
    if (code)
        return code;
    /* no cut at spaces where words are the file's own: scored by themselves, or looked up whole; nor where merges may
     * reach across characters that are left out */
    const bool drops_letters = t->drop_unknown && !has_all_bytes(t);
    t->words_at_space = ((t->kind == TOK_SPM && !t->ignore_merges) || (t->kind == TOK_UNIGRAM && !t->apart)) &&
                        !drops_letters &&
                        words_begin_at_space(t) && tok_lookup(t, TOK_SPACE, TOK_SPACE_LEN) != TOK_NONE;
    t->split_spaces = spec->split_spaces && (t->apart || t->ignore_merges || any_space_inside(t));
    mark_ends(t);
    if (spec->steps.len)
        code = tok_steps_new(spec->steps, &t->steps, err);
    if (!code)
        code = build_specials(t, err);
    if (!code && t->kind == TOK_PLAMO)
        code = tok_plamo_check(t, err);
    if (!code && (t->kind == TOK_UNIGRAM || t->kind == TOK_WORDPIECE || t->kind == TOK_RWKV || t->kind == TOK_PLAMO))
        code = build_pieces(t, err);
    if (!code)
        code = build_normalizer(t, spec, err);
    if (!code && (t->kind == TOK_BYTE_LEVEL || t->kind == TOK_CHARACTERS || spec->split_words))
        code = build_splitter(t, spec, err);
    return code;
}

enum pp_code tok_build(const struct tok_spec *spec, struct pp_tokenizer **out, struct pp_error *err)
{
    *out = NULL;
    if (spec->n == 0)
        return pp_fail(err, PP_ERR_FORMAT, "the vocabulary is empty");
    if (spec->n > TOK_MAX_VOCAB)
        return pp_fail(err, PP_ERR_FORMAT, "the vocabulary has %zu tokens, which cannot be right", spec->n);
    struct pp_tokenizer *t = pp_calloc(1, sizeof *t);
    if (!t)
        return pp_fail_nomem(err, "the tokenizer");
    enum pp_code code = build(t, spec, err);
    if (code) {
        pp_tokenizer_free(t);
        return code;
    }
    *out = t;
    return PP_OK;
}
