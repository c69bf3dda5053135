/* tails.c - keeps the partly filled last page (tail) of a sequence findable when its adapters change, so that switching
 * back computes nothing again.
 *
 * Identities are defined for full pages (kv.h). A tail's is made from the tokens in it, which the engine remembers: a
 * sequence with the same history and adapters takes the page over as far as its tokens match, and writes into a copy. A
 * tail is not referenced: like any cached page it is reused when memory is needed, least recently used first. */
#include <string.h>

#include "engine/engine_int.h"

/* Padded with -1, which is no token, so that no full page has this name. */
static struct pp_hash128 name_tail(const struct pp_tail *t)
{
    int32_t tokens[PP_PAGE_TOKENS];
    for (int i = 0; i < PP_PAGE_TOKENS; i++)
        tokens[i] = i < t->n ? t->tokens[i] : -1;
    return pp_page_identity(t->page ? &t->parent : NULL, &t->key, tokens);
}

static bool is_known(const struct pp_engine *e, const struct pp_tail *t)
{
    for (int i = 0; i < e->n_tiers; i++)
        if (!pp_page_known(e->tier[i].kv, &t->name))
            return false;
    return t->n > 0;
}

/* Whether s holds this page in all tiers, with the KV of the plain token chain, and has named all before it. */
static bool is_whole(const struct pp_seq *s, int64_t page)
{
    for (int t = 0; t < s->engine->n_tiers; t++)
        if (page < s->tier[t].first_page || page >= s->tier[t].n_pages)
            return false;
    return s->n_named == page && s->plain >= s->len;
}

void pp_tail_keep(struct pp_seq *s)
{
    struct pp_engine *e = s->engine;
    struct pp_tail tail = {.page = s->len / PP_PAGE_TOKENS, .n = (int)(s->len % PP_PAGE_TOKENS)};
    pp_seq_publish(s);
    if (!tail.n || !is_whole(s, tail.page))
        return;
    memcpy(tail.tokens, s->tokens + tail.page * PP_PAGE_TOKENS, (size_t)tail.n * sizeof *tail.tokens);
    for (int i = 0; i < tail.n; i++)
        if (tail.tokens[i] < 0)
            return;
    tail.key = pp_seq_page_key(s, tail.page);
    if (tail.page)
        tail.parent = s->names[tail.page - 1];
    tail.name = name_tail(&tail);
    if (is_known(e, &tail))
        return;
    for (int t = 0; t < e->n_tiers; t++)
        pp_page_name(e->tier[t].kv, s->tier[t].pages[tail.page], &tail.name);
    if (is_known(e, &tail)) /* not if the page kept an older name, as it was not written to since it was found */
        e->tails[e->n_tails++ % PP_TAILS] = tail;
}

int pp_tail_find(const struct pp_engine *e, const struct pp_hash128 *parent, int64_t page, const struct pp_sha256 *key,
                 const int32_t *tokens, int64_t n, const struct pp_tail **found)
{
    int most = 0;
    for (int i = 0; i < PP_TAILS; i++) {
        const struct pp_tail *t = &e->tails[i];
        int same = 0;
        if (!t->n || t->page != page || memcmp(&t->key, key, sizeof *key) != 0 ||
            (page && memcmp(&t->parent, parent, sizeof *parent) != 0))
            continue;
        while (same < t->n && same < n && t->tokens[same] == tokens[same])
            same++;
        if (same > most && is_known(e, t)) {
            most = same;
            *found = t;
        }
    }
    return most;
}

int64_t pp_tail_adopt(struct pp_seq *s, const int32_t *tokens, int64_t n)
{
    const int64_t page = s->n_named, begin = page * PP_PAGE_TOKENS, before = s->len;
    const struct pp_tail *tail = NULL;
    if (before / PP_PAGE_TOKENS != page || n <= before)
        return 0;
    const struct pp_sha256 key = pp_seq_page_key(s, page);
    const int same =
        pp_tail_find(s->engine, page ? &s->names[page - 1] : NULL, page, &key, tokens + begin, n - begin, &tail);
    if (begin + same <= before)
        return 0;
    for (int t = 0; t < s->engine->n_tiers; t++) {
        struct pp_seq_tier *tier = &s->tier[t];
        struct pp_kv_pool *kv = s->engine->tier[t].kv;
        if (tier->n_pages > page) /* it has only the beginning of that page */
            pp_page_release(kv, tier->pages[--tier->n_pages]);
        if (tier->first_page > page)
            tier->first_page = page;
        pp_seq_set_page(s, t, page, pp_page_find(kv, &tail->name));
        tier->n_pages = page + 1;
    }
    memcpy(s->tokens + before, tokens + before, (size_t)(begin + same - before) * sizeof *tokens);
    s->len = s->plain = begin + same;
    s->logits_len = 0;
    return s->len - before;
}
