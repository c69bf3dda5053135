/* seq_cut.c - tokens are taken out of the middle of a sequence, and what follows is kept as it was computed (what
 * StreamingLLM does, arXiv 2309.17453, here with whole turns, and keys turned to their new places). */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/engine_int.h"

static enum pp_code check(const struct pp_seq *s, int64_t from, int64_t to, struct pp_error *err)
{
    if (from < 0 || from > to || to > s->len)
        return pp_fail(err, PP_ERR_USAGE, "tokens %lld to %lld are not in a sequence of %lld", (long long)from,
                       (long long)to, (long long)s->len);
    if (s->engine->model->plan.n_positions)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "a model with learned positions cannot go on with moved pages");
    if (pp_seq_has_activated(s))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "under an adapter that is invoked pages cannot be moved");
    for (int t = 0; t < s->engine->n_tiers; t++)
        if (s->engine->tier[t].window)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "a model with a sliding window cannot go on with moved pages");
    return PP_OK;
}

/* A tier's new pages from page `first` on. */
struct fresh {
    pp_page_id *pages;  /* [n] */
    int64_t first, n;
};

static void give_back(const struct pp_seq *s, int t, struct fresh *f)
{
    while (f->n > 0)
        pp_page_release(s->engine->tier[t].kv, f->pages[--f->n]);
    pp_free(f->pages);
    f->pages = NULL;
}

static enum pp_code take(const struct pp_seq *s, int t, int64_t first, int64_t end, struct fresh *f,
                         struct pp_error *err)
{
    struct pp_kv_pool *kv = s->engine->tier[t].kv;
    *f = (struct fresh){.first = first, .pages = pp_malloc((size_t)(end - first + 1) * sizeof *f->pages)};
    for (int64_t p = first; f->pages && p < end; p++, f->n++)
        if ((f->pages[f->n] = pp_page_take(kv)) == PP_NO_PAGE)
            break;
    if (f->pages && f->n == end - first)
        return PP_OK;
    give_back(s, t, f);
    return pp_fail(err, PP_ERR_NOMEM, "there are too few free KV pages to move what is computed");
}

/* Fills new pages with positions from .. end - 1, which come from `distance` further on but for those of the first page
 * that stay. */
static enum pp_code fill(const struct pp_seq *s, int t, const struct fresh *f, int64_t from, int64_t end,
                         int64_t distance, struct pp_error *err)
{
    struct pp_kv_pool *kv = s->engine->tier[t].kv;
    const struct pp_seq_tier *tier = &s->tier[t];
    struct pp_cpu_move *moves = pp_malloc((size_t)(end - from + 1) * sizeof *moves);
    if (!moves)
        return pp_fail_nomem(err, "moving what is computed");
    for (int64_t p = f->first * PP_PAGE_TOKENS; p < from; p++)
        pp_kv_copy_position(pp_kv_pool_layout(kv), tier->page_data[f->first], (int)(p % PP_PAGE_TOKENS),
                            pp_page_data(kv, f->pages[0]), (int)(p % PP_PAGE_TOKENS));
    for (int64_t p = from; p < end; p++) {
        const int64_t old = p + distance;
        moves[p - from] = (struct pp_cpu_move){.from = tier->page_data[old / PP_PAGE_TOKENS],
                                               .from_slot = (int)(old % PP_PAGE_TOKENS),
                                               .to = pp_page_data(kv, f->pages[p / PP_PAGE_TOKENS - f->first]),
                                               .to_slot = (int)(p % PP_PAGE_TOKENS)};
    }
    pp_cpu_move_positions(s->engine->cpu, t, moves, (int)(end - from), -distance);
    pp_free(moves);
    return PP_OK;
}

/* The new pages take the place of the old ones. */
static void replace(struct pp_seq *s, int t, struct fresh *f)
{
    struct pp_seq_tier *tier = &s->tier[t];
    while (tier->n_pages > f->first)
        pp_page_release(s->engine->tier[t].kv, tier->pages[--tier->n_pages]);
    for (int64_t i = 0; i < f->n; i++)
        pp_seq_set_page(s, t, f->first + i, f->pages[i]);
    tier->n_pages = f->first + f->n;
    pp_free(f->pages);
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
        code = take(s, t, first, (end + PP_PAGE_TOKENS - 1) / PP_PAGE_TOKENS, &fresh[t], err);
        if (!code)
            code = fill(s, t, &fresh[t], from, end, to - from, err);
    }
    for (int t = 0; t < s->engine->n_tiers; t++)
        if (code)
            give_back(s, t, &fresh[t]);
        else
            replace(s, t, &fresh[t]);
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
