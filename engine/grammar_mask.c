/* grammar_mask.c - see grammar_mask.h. */
#include "engine/grammar_mask.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/text.h"

/* --- the trie ---------------------------------------------------------------------------------------------------- */

enum { TEXT_MOST = 4096 }; /* longer tokens are never allowed */

struct entry {
    const char *s;
    uint32_t n;
    int32_t token;
};

static int by_text(const void *x, const void *y)
{
    const struct entry *a = x, *b = y;
    const int c = memcmp(a->s, b->s, a->n < b->n ? a->n : b->n);
    return c ? c : a->n != b->n ? (a->n < b->n ? -1 : 1) : a->token < b->token ? -1 : a->token > b->token;
}

static int long_last(const void *x, const void *y)
{
    const struct entry *a = x, *b = y;
    const int la = a->n > PP_ALIKE_BYTES, lb = b->n > PP_ALIKE_BYTES;
    return la != lb ? la - lb : by_text(x, y);
}

/* How many nodes the sorted entries need. */
static uint32_t count_nodes(const struct entry *e, size_t n)
{
    uint32_t nodes = 1;
    for (size_t i = 0; i < n; i++) {
        uint32_t common = 0;
        while (i && common < e[i].n && common < e[i - 1].n && e[i].s[common] == e[i - 1].s[common])
            common++;
        nodes += e[i].n - common;
    }
    return nodes;
}

/* Adds a trie of these entries. path [max_depth + 1]: the nodes of the previous entry. */
static void fill_nodes(struct pp_trie *t, const struct entry *e, size_t n, uint32_t *path)
{
    const uint32_t root = t->n_nodes;
    uint32_t depth = 0;
    path[0] = root;
    t->token[root] = -1;
    t->n_nodes++;
    for (size_t i = 0; i < n; i++) {
        uint32_t common = 0;
        while (i && common < e[i].n && common < e[i - 1].n && e[i].s[common] == e[i - 1].s[common])
            common++;
        for (; depth > common; depth--)
            t->next[path[depth]] = t->n_nodes;
        for (; depth < e[i].n; depth++) {
            path[depth + 1] = t->n_nodes;
            t->byte[t->n_nodes] = (uint8_t)e[i].s[depth];
            t->depth[t->n_nodes] = (uint16_t)(depth + 1);
            t->token[t->n_nodes++] = -1;
        }
        int32_t *token = &t->token[path[depth]];
        t->same[e[i].token] = *token;
        *token = e[i].token;
    }
    for (; depth > 0; depth--)
        t->next[path[depth]] = t->n_nodes;
    t->next[root] = t->n_nodes;
}

/* Makes the nodes from the texts. */
static bool build(struct pp_trie *t)
{
    struct entry *e = pp_malloc((size_t)t->n_vocab * sizeof *e);
    uint32_t *path = NULL;
    size_t n = 0, n_short = 0;
    bool good = e != NULL;
    for (int32_t i = 0; good && i < t->n_vocab; i++) {
        const uint32_t len = t->text_at[i + 1] - t->text_at[i];
        t->same[i] = -1;
        if (!len || len > TEXT_MOST)
            continue;
        e[n++] = (struct entry){t->text + t->text_at[i], len, i};
        t->max_depth = len > t->max_depth ? len : t->max_depth;
    }
    if (good) {
        qsort(e, n, sizeof *e, long_last);
        while (n_short < n && e[n_short].n <= PP_ALIKE_BYTES)
            n_short++;
        const uint32_t nodes = count_nodes(e, n_short) + count_nodes(e + n_short, n - n_short);
        t->next = pp_calloc(nodes, sizeof *t->next);
        t->token = pp_malloc(nodes * sizeof *t->token);
        t->depth = pp_calloc(nodes, sizeof *t->depth);
        t->byte = pp_calloc(nodes, sizeof *t->byte);
        path = pp_calloc(t->max_depth + 1, sizeof *path);
        good = t->next && t->token && t->depth && t->byte && path;
    }
    if (good) {
        fill_nodes(t, e, n_short, path);
        t->long_root = t->n_nodes;
        fill_nodes(t, e + n_short, n - n_short, path);
    }
    pp_free(path);
    pp_free(e);
    return good;
}

static enum pp_code finish_trie(struct pp_trie *t, struct pp_buf *text, struct pp_trie **out, struct pp_error *err)
{
    const bool good = t && t->text_at && t->same && !text->bad && (t->text = pp_buf_take(text)) && build(t);
    *out = good ? t : NULL;
    if (good)
        return PP_OK;
    pp_trie_free(t);
    pp_buf_free(text);
    return pp_fail_nomem(err, "the vocabulary's texts");
}

static struct pp_trie *new_trie(int64_t n_vocab)
{
    struct pp_trie *t = pp_calloc(1, sizeof *t);
    if (!t)
        return NULL;
    t->n_vocab = (int32_t)n_vocab;
    t->text_at = pp_calloc((size_t)n_vocab + 1, sizeof *t->text_at);
    t->same = pp_calloc((size_t)n_vocab, sizeof *t->same);
    return t;
}

enum pp_code pp_trie_new(const struct pp_tokenizer *tokenizer, int64_t n_vocab, struct pp_trie **out,
                         struct pp_error *err)
{
    struct pp_trie *t = new_trie(n_vocab);
    struct pp_buf text = {0};
    pp_buf_add(&text, "", 0);
    for (int32_t i = 0; t && t->text_at && i < t->n_vocab; i++) {
        if (i < pp_tokenizer_n(tokenizer) && !pp_tokenizer_is_end(tokenizer, i))
            pp_token_text(tokenizer, i, false, &text);
        t->text_at[i + 1] = (uint32_t)text.len;
    }
    return finish_trie(t, &text, out, err);
}

enum pp_code pp_trie_of_texts(const char *const *texts, int32_t n, struct pp_trie **out, struct pp_error *err)
{
    struct pp_trie *t = new_trie(n);
    struct pp_buf text = {0};
    pp_buf_add(&text, "", 0);
    for (int32_t i = 0; t && t->text_at && i < n; i++) {
        if (texts[i])
            pp_buf_str(&text, texts[i]);
        t->text_at[i + 1] = (uint32_t)text.len;
    }
    return finish_trie(t, &text, out, err);
}

void pp_trie_free(struct pp_trie *t)
{
    if (!t)
        return;
    pp_free(t->next);
    pp_free(t->token);
    pp_free(t->depth);
    pp_free(t->byte);
    pp_free(t->same);
    pp_free(t->text_at);
    pp_free(t->text);
    pp_free(t);
}

/* --- walks ------------------------------------------------------------------------------------------------------- */

static void allow(uint64_t *words, int32_t token)
{
    words[token / 64] |= UINT64_C(1) << (token % 64);
}

/* Allows the tokens in the subtree below `node` that may follow in `state`. kept: NULL, or gets the nodes at which the
 * hole is left. */
static bool walk(struct pp_masks *c, int32_t state, uint32_t node, uint64_t *words, struct pp_mask *kept)
{
    struct pp_matcher *m = c->m;
    const struct pp_trie *t = c->trie;
    const uint32_t end = t->next[node];
    int32_t *states = c->states;
    states[t->depth[node]] = state;
    for (uint32_t i = node + 1; i < end;) {
        const unsigned depth = t->depth[i];
        const int32_t s = pp_matcher_step(m, states[depth - 1], t->byte[i]);
        if (s <= 0) {
            if (s < 0)
                return false;
            i = t->next[i];
            continue;
        }
        states[depth] = s;
        for (int32_t token = t->token[i]; token >= 0; token = t->same[token])
            allow(words, token);
        if (kept && m->states[s].pops) {
            if (pp_grow(&kept->pops, &kept->cap_pops, kept->n_pops + 1, sizeof *kept->pops) != 0) {
                m->code = pp_fail_nomem(&m->err, "a grammar's mask");
                return false;
            }
            kept->pops[kept->n_pops++] = i;
        }
        i++;
    }
    return true;
}

/* The mask of this state (or, part, above a hole) that is kept, or one that may be filled for it, whose state is -1.
 * NULL: out of memory. */
static struct pp_mask *kept_mask(struct pp_masks *c, int32_t state, bool part)
{
    struct pp_mask *first = c->kept + (part ? PP_MASKS_KEPT : 0), *oldest = first;
    for (size_t i = 0; i < (part ? PP_PARTS_KEPT : PP_MASKS_KEPT); i++) {
        struct pp_mask *k = &first[i];
        if (k->state == state) {
            k->used = ++c->clock;
            return k;
        }
        if (k->used < oldest->used)
            oldest = k;
    }
    if (!oldest->words && !(oldest->words = pp_malloc(c->n_words * sizeof *oldest->words))) {
        c->m->code = pp_fail_nomem(&c->m->err, "a grammar's mask");
        return NULL;
    }
    oldest->state = -1;
    oldest->used = ++c->clock;
    oldest->n_pops = 0;
    return oldest;
}

/* The part of a mask that lies within one frame's rule. */
static struct pp_mask *local_mask(struct pp_masks *c, int32_t state, uint32_t frame)
{
    const int32_t hole = pp_matcher_hole(c->m, state, frame);
    struct pp_mask *k = hole < 0 ? NULL : kept_mask(c, hole, true);
    if (!k || k->state == hole)
        return k;
    memset(k->words, 0, c->n_words * sizeof *k->words);
    if (!walk(c, hole, 0, k->words, k))
        return NULL;
    k->state = hole;
    return k;
}

static bool add_frame(struct pp_masks *c, int32_t state, uint32_t frame)
{
    const struct pp_mask *k = local_mask(c, state, frame);
    const int32_t returned = k && k->n_pops ? pp_matcher_returned(c->m, frame) : PP_STATE_DEAD;
    if (!k || returned < 0)
        return false;
    for (size_t i = 0; i < c->n_words; i++)
        c->words[i] |= k->words[i];
    for (size_t i = 0; i < k->n_pops && returned; i++)
        if (!walk(c, returned, k->pops[i], c->words, NULL))
            return false;
    return true;
}

/* The frames of a state's items; 0: more than `most`, or too many to be worth it. */
static size_t frames_of(const struct pp_matcher *m, int32_t state, uint32_t *frames, size_t most)
{
    const struct pp_state s = m->states[state];
    size_t n = 0;
    for (uint32_t i = 0; i < s.n; i++) {
        const struct pp_item x = m->items[s.first + i];
        size_t k = 0;
        while (k < n && frames[k] != x.frame)
            k++;
        if (k < n || !x.node)
            continue;
        if (n == most)
            return 0;
        frames[n++] = x.frame;
    }
    return n;
}

/* Items that take tokens as such, and the tokens that end an answer. */
static void add_tokens(struct pp_masks *c, int32_t state)
{
    const struct pp_matcher *m = c->m;
    const struct pp_state s = m->states[state];
    int32_t but = -2; /* all tokens are allowed but this one; -1: all; -2: not all */
    for (uint32_t i = 0; s.tokens && i < s.n; i++) {
        const struct pp_node *node = &m->g->nodes[m->items[s.first + i].node];
        if (node->kind == PP_NODE_NOT_TOKEN)
            but = but == -2 || but == c->ids[node->b] ? c->ids[node->b] : -1;
    }
    if (but > -2) {
        const bool had = but >= 0 && (c->words[but / 64] >> (but % 64) & 1);
        memset(c->words, 0xFF, c->n_words * sizeof *c->words);
        if (but >= 0 && !had)
            c->words[but / 64] &= ~(UINT64_C(1) << (but % 64));
        for (size_t i = 0; i < c->n_ends; i++)
            c->words[c->ends[i] / 64] &= ~(UINT64_C(1) << (c->ends[i] % 64));
    }
    for (uint32_t i = 0; s.tokens && i < s.n; i++) {
        const struct pp_node *node = &m->g->nodes[m->items[s.first + i].node];
        if (node->kind == PP_NODE_TOKEN)
            allow(c->words, c->ids[node->b]);
    }
    for (size_t i = 0; s.ends && i < c->n_ends; i++)
        allow(c->words, c->ends[i]);
}

/* The mask of short tokens, without those that end an answer: of a state, or one that is alike. */
static const struct pp_mask *short_mask(struct pp_masks *c, int32_t state)
{
    enum { FRAMES_MOST = 6 };
    uint32_t frames[FRAMES_MOST];
    const struct pp_mask *known = state < 0 ? NULL : kept_mask(c, state, false);
    if (!known || known->state == state)
        return known;
    memset(c->words, 0, c->n_words * sizeof *c->words);
    const size_t n = frames_of(c->m, state, frames, FRAMES_MOST);
    bool good = n > 0 || walk(c, state, 0, c->words, NULL);
    for (size_t i = 0; i < n && good; i++)
        good = add_frame(c, state, frames[i]);
    struct pp_mask *k = good ? kept_mask(c, state, false) : NULL;
    if (!k)
        return NULL;
    memcpy(k->words, c->words, c->n_words * sizeof *k->words);
    k->state = state;
    return k;
}

const uint64_t *pp_masks_of(struct pp_masks *c, int32_t state)
{
    if (state < 0)
        return NULL;
    if (state == c->latest)
        return c->words;
    c->m->work = 0;
    c->latest = -1;
    const struct pp_mask *k = short_mask(c, pp_matcher_alike(c->m, state));
    if (!k)
        return NULL;
    memcpy(c->words, k->words, c->n_words * sizeof *c->words);
    if (!walk(c, state, c->trie->long_root, c->words, NULL))
        return NULL;
    add_tokens(c, state);
    c->latest = state;
    return c->words;
}

/* --- life -------------------------------------------------------------------------------------------------------- */

void pp_masks_clear(struct pp_masks *c)
{
    c->latest = -1;
    for (size_t i = 0; i < PP_MASKS_KEPT + PP_PARTS_KEPT; i++) {
        c->kept[i].state = -1;
        c->kept[i].used = 0;
    }
}

enum pp_code pp_masks_init(struct pp_masks *c, struct pp_matcher *m, const struct pp_trie *trie, const int32_t *ids,
                           const int32_t *ends, size_t n_ends, struct pp_error *err)
{
    *c = (struct pp_masks){.m = m, .trie = trie, .ids = ids, .ends = ends, .n_ends = n_ends};
    pp_masks_clear(c);
    c->n_words = ((size_t)trie->n_vocab + 63) / 64;
    c->states = pp_calloc(trie->max_depth + 1, sizeof *c->states);
    c->words = pp_calloc(c->n_words, sizeof *c->words);
    if (c->states && c->words)
        return PP_OK;
    pp_masks_free(c);
    return pp_fail_nomem(err, "a grammar's masks");
}

void pp_masks_free(struct pp_masks *c)
{
    for (size_t i = 0; i < PP_MASKS_KEPT + PP_PARTS_KEPT; i++) {
        pp_free(c->kept[i].words);
        pp_free(c->kept[i].pops);
    }
    pp_free(c->states);
    pp_free(c->words);
    *c = (struct pp_masks){0};
}
