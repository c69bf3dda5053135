/* seq_pages.c - which pages a sequence holds as it grows, is truncated and shared.
 *
 * In a tier without a window, a sequence holds all its pages. With a window of W it holds those that the next row sees,
 * the last W - 1 positions and, in some models, the first ones, and releases the others with the next step: full pages
 * are named and stay findable until their memory is needed. To go back to n positions, the pages that the row after
 * them sees must be held or found by name; if they are not, the sequence goes back further, to the last position where
 * all are, and the positions between are computed again.
 *
 * Pages of convolutions and states are large (LFM2 1.2B: 5 MB, while those of its keys and values take 0.4 MB), and to
 * continue takes the last few positions only. So of those that a sequence has released, only the first ones and every
 * eighth keep their names; the memory of the others is reused while it is in cache. Of states (Qwen 3.5 2B: 66 MB with
 * the inputs of their convolutions) only the fourth of the first ones does.
 *
 * Users are likely to return to two positions: where the current turn began (to edit it), and where its prompt ended
 * (to answer it again). A sequence marks them, so that going back there costs nothing, however much memory others need:
 * a mark holds the full pages of the window before it. So in a tier with a window a sequence never holds more than
 * three windows and the rows of one step. */
#include <string.h>

#include "engine/engine_int.h"

static int64_t first_needed(const struct pp_engine *e, int t, int64_t n)
{
    return pp_tier_first_page(&e->tier[t], n);
}

void pp_seq_set_page(struct pp_seq *s, int t, int64_t i, pp_page_id page)
{
    s->tier[t].pages[i] = page;
    s->tier[t].page_data[i] = pp_page_data(s->engine->tier[t].kv, page);
}

/* Whether the i-th page is held, and filled as far as a sequence of n positions needs it. */
static bool holds(const struct pp_seq *s, int t, int64_t i, int64_t n)
{
    return pp_seq_holds(s, t, i) && (n <= s->len || (i + 1) * PP_PAGE_TOKENS <= s->len);
}

static bool can_find(const struct pp_seq *s, int t, int64_t i)
{
    return i < s->n_named && pp_page_known(s->engine->tier[t].kv, &s->names[i]);
}

/* The last page of a tier that the row at position n sees, but that is neither held nor findable by name; -1: none. */
static int64_t last_missing_page(const struct pp_seq *s, int t, int64_t n)
{
    const int64_t first = first_needed(s->engine, t, n), always = s->engine->tier[t].first;
    int64_t i = pp_kv_pages_of(n) - 1;
    while (i >= 0 && (holds(s, t, i, n) || can_find(s, t, i))) {
        i = holds(s, t, i, n) && i > s->tier[t].first_page ? s->tier[t].first_page : i - 1;
        if (i < first && i >= always)
            i = (always < first ? always : first) - 1;
    }
    return i;
}

/* The largest number of positions, at most n, after which every tier has the pages that the next row sees, held or
 * findable by name. */
static int64_t longest_complete(const struct pp_seq *s, int64_t n)
{
    const struct pp_engine *e = s->engine;
    for (int t = 0; t < e->n_tiers; t++) {
        const int64_t i = last_missing_page(s, t, n);
        if (i >= 0) {
            n = i * PP_PAGE_TOKENS;
            t = -1; /* check all tiers again */
        }
    }
    return n;
}

/* Releases those of pages from .. end - 1 of a tier that are held. */
static void release_range(struct pp_seq *s, int t, int64_t from, int64_t end)
{
    for (int64_t i = from; i < end; i++)
        if (pp_seq_holds(s, t, i))
            pp_page_release(s->engine->tier[t].kv, s->tier[t].pages[i]);
}

/* Makes a tier hold the pages that a sequence of n positions needs, n being a result of longest_complete(), and none
 * after them. */
static void hold_pages(struct pp_seq *s, int t, int64_t n)
{
    struct pp_seq_tier *tier = &s->tier[t];
    const int64_t from = first_needed(s->engine, t, n), end = pp_kv_pages_of(n), always = s->engine->tier[t].first;
    for (int64_t i = 0; i < end; i++) {
        if (!pp_tier_needs(&s->engine->tier[t], i, n) || holds(s, t, i, n))
            continue;
        pp_page_id page = pp_page_find(s->engine->tier[t].kv, &s->names[i]);
        if (pp_seq_holds(s, t, i))
            pp_page_release(s->engine->tier[t].kv, tier->pages[i]); /* filled less far than needed */
        pp_seq_set_page(s, t, i, page);
    }
    release_range(s, t, end, tier->n_pages);
    const int64_t kept = tier->n_pages < end ? tier->n_pages : end;
    if (tier->first_page < kept && kept < from) { /* otherwise there would be a gap between the pages held */
        release_range(s, t, tier->first_page > always ? tier->first_page : always, kept);
        tier->first_page = from;
    } else if (tier->first_page >= kept || from < tier->first_page) {
        tier->first_page = from;
    }
    tier->n_pages = end;
}

void pp_seq_drop_pages(struct pp_seq *s)
{
    for (int t = 0; t < s->engine->n_tiers; t++) {
        struct pp_seq_tier *tier = &s->tier[t];
        while (tier->n_pages > pp_kv_pages_of(s->len) && tier->n_pages > tier->first_page)
            pp_page_release(s->engine->tier[t].kv, tier->pages[--tier->n_pages]);
    }
}

/* Whether the i-th page of a tier stays findable once its sequence releases it; the same in all tiers of large
 * pages. */
static bool stays_findable(const struct pp_engine *e, int t, int64_t i)
{
    enum { EACH = 8, LARGE = 16 << 20 };
    size_t bytes = 0;
    if (pp_tier_has_keys(pp_kv_pool_layout(e->tier[t].kv)->kind))
        return true;
    for (int k = 0; k < e->n_tiers; k++)
        if (!pp_tier_has_keys(pp_kv_pool_layout(e->tier[k].kv)->kind))
            bytes += pp_kv_pool_layout(e->tier[k].kv)->page_bytes;
    return (i + 1) % EACH == 0 || (bytes < LARGE ? i < EACH : i + 1 == EACH / 2);
}

void pp_seq_slide(struct pp_seq *s)
{
    for (int t = 0; t < s->engine->n_tiers; t++) {
        struct pp_seq_tier *tier = &s->tier[t];
        struct pp_kv_pool *kv = s->engine->tier[t].kv;
        const int64_t first = first_needed(s->engine, t, s->len);
        for (; tier->first_page < first && tier->first_page < tier->n_pages; tier->first_page++) {
            const int64_t i = tier->first_page;
            if (i < s->engine->tier[t].first)
                continue;
            if (i < s->n_named && stays_findable(s->engine, t, i))
                pp_page_name(kv, tier->pages[i], &s->names[i]); /* unless another page has this name by now */
            else if (!stays_findable(s->engine, t, i) && pp_page_refs(kv, tier->pages[i]) == 1)
                pp_page_unname(kv, tier->pages[i]);
            pp_page_release(kv, tier->pages[i]);
        }
    }
}

/* --- marks ----------------------------------------------------------------------------------------------------- */

static void unmark(struct pp_seq *s, int which)
{
    for (int t = 0; t < s->engine->n_tiers; t++) {
        struct pp_marked_pages *m = &s->tier[t].marked[which];
        while (m->n > 0)
            pp_page_release(s->engine->tier[t].kv, m->pages[--m->n]);
    }
    s->mark[which] = 0;
}

bool pp_seq_unmark(struct pp_seq *s)
{
    bool any = false;
    for (int which = 0; which < PP_MARKS; which++) {
        any = any || s->mark[which];
        unmark(s, which);
    }
    return any;
}

/* Takes one more reference to the i-th page by its name; the page is held or findable. */
static pp_page_id hold_named(struct pp_seq *s, int t, int64_t i)
{
    struct pp_kv_pool *kv = s->engine->tier[t].kv;
    pp_page_id page = pp_page_find(kv, &s->names[i]);
    if (page != PP_NO_PAGE)
        return page;
    page = s->tier[t].pages[i]; /* no page has this name any more: names ours again */
    pp_page_name(kv, page, &s->names[i]);
    pp_page_retain(kv, page);
    return page;
}

void pp_seq_mark(struct pp_seq *s, enum pp_mark which)
{
    const int64_t end = s->len / PP_PAGE_TOKENS, n = end * PP_PAGE_TOKENS;
    unmark(s, which);
    pp_seq_publish(s);
    if (s->n_named < end || longest_complete(s, n) < n)
        return;
    for (int t = 0; t < s->engine->n_tiers; t++) {
        struct pp_marked_pages *m = &s->tier[t].marked[which];
        for (int64_t i = first_needed(s->engine, t, n); m->pages && i < end; i++)
            m->pages[m->n++] = hold_named(s, t, i);
    }
    s->mark[which] = n;
}

/* --- going back, and sharing ----------------------------------------------------------------------------------- */

/* Shortens the sequence to n positions, at most its length. */
static void shorten(struct pp_seq *s, int64_t n)
{
    s->len = n;
    s->logits_len = 0;
    s->plain = n < s->plain ? n : s->plain;
    s->n_named = n / PP_PAGE_TOKENS < s->n_named ? n / PP_PAGE_TOKENS : s->n_named;
}

void pp_seq_truncate(struct pp_seq *s, int64_t n)
{
    if (n < 0)
        n = 0;
    if (n >= s->len)
        return;
    pp_seq_publish(s);
    n = longest_complete(s, n);
    for (int t = 0; t < s->engine->n_tiers; t++)
        hold_pages(s, t, n);
    shorten(s, n);
    for (int which = 0; which < PP_MARKS; which++)
        if (s->mark[which] > n)
            unmark(s, which);
}

int64_t pp_seq_extend(struct pp_seq *s, const int32_t *tokens, int64_t n)
{
    const int64_t before = s->len;
    n = longest_complete(s, n);
    if (n > before) {
        for (int t = 0; t < s->engine->n_tiers; t++)
            hold_pages(s, t, n);
        memcpy(s->tokens + before, tokens + before, (size_t)(n - before) * sizeof *tokens);
        s->len = s->plain = n;
        s->logits_len = 0;
    }
    s->n_named = s->len / PP_PAGE_TOKENS < s->n_named ? s->len / PP_PAGE_TOKENS : s->n_named;
    return s->len - before;
}

void pp_seq_share(struct pp_seq *s, const struct pp_seq *from, int64_t n)
{
    n = longest_complete(from, n < from->plain ? n : from->plain);
    if (n <= s->len)
        return;
    pp_seq_truncate(s, 0);
    s->plain = from->plain;
    s->n_named = from->n_named;
    memcpy(s->names, from->names, (size_t)s->n_named * sizeof *s->names);
    memcpy(s->tokens, from->tokens, (size_t)n * sizeof *s->tokens);
    for (int t = 0; t < s->engine->n_tiers; t++) {
        struct pp_seq_tier *tier = &s->tier[t];
        struct pp_kv_pool *kv = s->engine->tier[t].kv;
        tier->first_page = first_needed(s->engine, t, n);
        tier->n_pages = pp_kv_pages_of(n);
        for (int64_t i = 0; i < tier->n_pages; i++) {
            if (!pp_seq_holds(s, t, i))
                continue;
            const bool held = holds(from, t, i, n);
            pp_seq_set_page(s, t, i, held ? from->tier[t].pages[i] : pp_page_find(kv, &s->names[i]));
            if (held)
                pp_page_retain(kv, tier->pages[i]);
        }
    }
    shorten(s, n);
}

int64_t pp_seq_begin(struct pp_seq *s, const int32_t *prompt, int64_t n)
{
    int64_t same = 0;
    pp_seq_activate(s, prompt, n);
    while (same < s->len && same < n && s->tokens[same] == prompt[same])
        same++;
    if (same == n && (s->len > n || !pp_seq_logits(s)))
        same = n - 1; /* the last token is computed again, for its logits */
    const bool goes_on = same == s->len;
    pp_seq_truncate(s, same);
    if (goes_on || !s->mark[PP_MARK_TURN])
        pp_seq_mark(s, PP_MARK_TURN);
    pp_seq_adopt(s, prompt, n - 1);
    return s->len;
}
