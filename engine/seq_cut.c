/* seq_cut.c - cuts tokens out of the middle of a sequence, and keeps what follows as it was computed, as StreamingLLM
 * does (arXiv 2309.17453), but with whole turns, and with keys rotated to their new positions. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/engine_int.h"

enum { FOUND = 4 }; /* most old pages that a few rows can come from */

static bool has_rows(const struct pp_seq *s, int t)
{
    return pp_kv_pool_layout(s->engine->tier[t].kv)->kind == PP_TIER_ROWS;
}

static enum pp_code check(const struct pp_seq *s, int64_t from, int64_t to, struct pp_error *err)
{
    if (from < 0 || from > to || to > s->len)
        return pp_fail(err, PP_ERR_USAGE, "tokens %lld to %lld are not in a sequence of %lld", (long long)from,
                       (long long)to, (long long)s->len);
    if (s->engine->model->plan.n_positions)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "a model with learned positions cannot continue with shifted pages");
    if (pp_seq_has_activated(s))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "pages cannot be shifted under an adapter that is invoked");
    if (pp_plan_has_states(&s->engine->model->plan))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "single tokens cannot be removed from a recurrent state");
    const int64_t follow = s->len - to;
    for (int t = 0; t < s->engine->n_tiers; t++) {
        const int64_t window = s->engine->tier[t].window;
        if (window && !has_rows(s, t))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "a model with a sliding window cannot continue with shifted pages");
        if (window && follow && follow < window - 1)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "a model with convolutions needs %lld tokens to continue from",
                           (long long)window - 1);
    }
    return PP_OK;
}

/* The first page that is newly made when `end` tokens stay and those from `from` on move. In a tier of rows
 * (convolutions) only the last `window` positions are needed, so only their pages. */
static int64_t first_fresh(const struct pp_seq *s, int t, int64_t from, int64_t end)
{
    const int64_t first = from / PP_PAGE_TOKENS, needed = (end - s->engine->tier[t].window + 1) / PP_PAGE_TOKENS;
    return has_rows(s, t) && needed > first ? needed : first;
}

/* A tier's new pages, from page `first` on; and old pages that they are copied from, but which the sequence did not
 * hold any more. */
struct fresh {
    pp_page_id *pages;  /* [n] */
    int64_t first, n;
    struct {
        int64_t index;
        pp_page_id page;
    } found[FOUND];
    int n_found;
};

static void drop_found(const struct pp_seq *s, int t, struct fresh *f)
{
    while (f->n_found > 0)
        pp_page_release(s->engine->tier[t].kv, f->found[--f->n_found].page);
    pp_free(f->pages);
    f->pages = NULL;
}

static void give_back(const struct pp_seq *s, int t, struct fresh *f)
{
    while (f->n > 0)
        pp_page_release(s->engine->tier[t].kv, f->pages[--f->n]);
    drop_found(s, t, f);
}

/* Whether the i-th old page is held, or was found by name, and is then in `found`. */
static bool find_old(const struct pp_seq *s, int t, int64_t i, struct fresh *f)
{
    const struct pp_seq_tier *tier = &s->tier[t];
    if (i >= tier->first_page && i < tier->n_pages)
        return true;
    const pp_page_id page =
        i < s->n_named && f->n_found < FOUND ? pp_page_find(s->engine->tier[t].kv, &s->names[i]) : PP_NO_PAGE;
    if (page != PP_NO_PAGE) {
        f->found[f->n_found].index = i;
        f->found[f->n_found++].page = page;
    }
    return page != PP_NO_PAGE;
}

static const uint8_t *old_page(const struct pp_seq *s, int t, int64_t i, const struct fresh *f)
{
    for (int k = 0; k < f->n_found; k++)
        if (f->found[k].index == i)
            return pp_page_data(s->engine->tier[t].kv, f->found[k].page);
    return s->tier[t].page_data[i];
}

/* Finds the old pages, and takes the new ones. */
static enum pp_code take(const struct pp_seq *s, int t, int64_t from, int64_t end, struct fresh *f,
                         struct pp_error *err)
{
    struct pp_kv_pool *kv = s->engine->tier[t].kv;
    const int64_t first = first_fresh(s, t, from, end), end_page = pp_kv_pages_of(end);
    const int64_t begin = first * PP_PAGE_TOKENS, moved = (begin > from ? begin : from) + s->len - end;
    *f = (struct fresh){.first = first, .pages = pp_malloc((size_t)(end_page - first + 1) * sizeof *f->pages)};
    bool good = f->pages != NULL && (begin >= from || find_old(s, t, first, f));
    for (int64_t i = moved / PP_PAGE_TOKENS; good && i * PP_PAGE_TOKENS < s->len; i++)
        good = (i == first && begin < from) || find_old(s, t, i, f);
    for (int64_t p = first; good && p < end_page; p++, f->n++)
        if ((f->pages[f->n] = pp_page_take(kv)) == PP_NO_PAGE)
            break;
    if (good && f->n == end_page - first)
        return PP_OK;
    give_back(s, t, f);
    return pp_fail(err, PP_ERR_NOMEM, "there are too few free KV pages to shift the cache");
}

/* Fills the new pages: positions from .. end - 1 are copied from `distance` positions further on; the positions before
 * `from` in the first page stay where they were. */
static enum pp_code fill(const struct pp_seq *s, int t, const struct fresh *f, int64_t from, int64_t end,
                         int64_t distance, struct pp_error *err)
{
    struct pp_kv_pool *kv = s->engine->tier[t].kv;
    struct pp_cpu_move *moves = pp_malloc((size_t)(end - from + 1) * sizeof *moves);
    int64_t p = f->first * PP_PAGE_TOKENS;
    int n = 0;
    if (!moves)
        return pp_fail_nomem(err, "moving what is computed");
    for (; p < from; p++)
        pp_kv_copy_position(pp_kv_pool_layout(kv), old_page(s, t, f->first, f), (int)(p % PP_PAGE_TOKENS),
                            pp_page_data(kv, f->pages[0]), (int)(p % PP_PAGE_TOKENS));
    for (; p < end; p++) {
        const int64_t old = p + distance;
        moves[n++] = (struct pp_cpu_move){.from = old_page(s, t, old / PP_PAGE_TOKENS, f),
                                          .from_slot = (int)(old % PP_PAGE_TOKENS),
                                          .to = pp_page_data(kv, f->pages[p / PP_PAGE_TOKENS - f->first]),
                                          .to_slot = (int)(p % PP_PAGE_TOKENS)};
    }
    pp_cpu_move_positions(s->engine->cpu, t, moves, n, -distance);
    pp_free(moves);
    return PP_OK;
}

static void drop_from(const struct pp_seq *s, struct pp_seq_tier *tier, int t, int64_t page)
{
    while (tier->n_pages > page && tier->n_pages > tier->first_page)
        pp_page_release(s->engine->tier[t].kv, tier->pages[--tier->n_pages]);
}

/* Puts the new pages in place of page `changed` and all after it. */
static void replace(struct pp_seq *s, int t, int64_t changed, struct fresh *f)
{
    struct pp_seq_tier *tier = &s->tier[t];
    drop_from(s, tier, t, changed);
    if (tier->n_pages != f->first) { /* pages between would be missing */
        drop_from(s, tier, t, 0);
        tier->first_page = f->first;
    }
    for (int64_t i = 0; i < f->n; i++)
        pp_seq_set_page(s, t, f->first + i, f->pages[i]);
    tier->n_pages = f->first + f->n;
    drop_found(s, t, f);
}

enum pp_code pp_seq_cut(struct pp_seq *s, int64_t from, int64_t to, struct pp_error *err)
{
    struct fresh fresh[PP_MAX_TIERS] = {0};
    const int64_t end = s->len - (to - from), first = from / PP_PAGE_TOKENS;
    enum pp_code code = check(s, from, to, err);
    if (code || from == to)
        return code;
    if (from == end) { /* nothing follows */
        pp_seq_truncate(s, from);
        return PP_OK;
    }
    pp_seq_publish(s);
    for (int t = 0; t < s->engine->n_tiers && !code; t++) {
        code = take(s, t, from, end, &fresh[t], err);
        if (!code)
            code = fill(s, t, &fresh[t], from, end, to - from, err);
    }
    for (int t = 0; t < s->engine->n_tiers; t++)
        if (code)
            give_back(s, t, &fresh[t]);
        else
            replace(s, t, first, &fresh[t]);
    if (code)
        return code;
    pp_seq_unmark(s);
    memmove(s->tokens + from, s->tokens + to, (size_t)(end - from) * sizeof *s->tokens);
    s->len = end;
    s->logits_len = 0;
    s->plain = from < s->plain ? from : s->plain;
    s->n_named = first < s->n_named ? first : s->n_named;
    return PP_OK;
}

int64_t pp_seq_exact(const struct pp_seq *s)
{
    return s->plain < s->len ? s->plain : s->len;
}
