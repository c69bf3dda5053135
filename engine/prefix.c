/* prefix.c - prefix caching: pages are found by a hash of what was computed in them. A conversation that begins like
 * another one, or like itself before an edit, takes over its pages. Within an engine a page's content depends on tokens
 * and adapters only; how it was computed (chunks, threads, drafts) does not change its bits. */
#include <string.h>

#include "engine/engine_int.h"

/* The key of the page-th page under these adapters, which act from start [n] on; a page in which one begins to act has
 * a key of its own. */
static struct pp_sha256 key_of(const struct pp_adapter_use *use, const int64_t *start, int n, int64_t page)
{
    const int64_t begin = page * PP_PAGE_TOKENS;
    struct pp_sha256_stream h;
    pp_sha256_begin(&h);
    for (int i = 0; i < n; i++) {
        if (use[i].scale == 0.0f || start[i] >= begin + PP_PAGE_TOKENS)
            continue; /* the same as absent */
        pp_sha256_update(&h, use[i].adapter->identity.bytes, sizeof use[i].adapter->identity.bytes);
        pp_sha256_update(&h, &use[i].scale, sizeof use[i].scale);
        const int64_t from = start[i] - begin;
        if (from > 0)
            pp_sha256_update(&h, &from, sizeof from);
    }
    return pp_sha256_end(&h);
}

static const int64_t everywhere[PP_MAX_ADAPTERS];

void pp_seq_rekey(struct pp_seq *s)
{
    s->key = key_of(s->adapters.use, everywhere, s->adapters.n, 0);
}

struct pp_sha256 pp_seq_page_key(const struct pp_seq *s, int64_t p)
{
    return pp_seq_has_activated(s) ? key_of(s->adapters.use, s->start, s->adapters.n, p) : s->key;
}

/* The identity of page p of s with these tokens. False: one of its inputs is a vector. */
static bool name_page(const struct pp_seq *s, int64_t p, const int32_t *tokens, struct pp_hash128 *name)
{
    for (int i = 0; i < PP_PAGE_TOKENS; i++)
        if (tokens[i] < 0)
            return false;
    const struct pp_sha256 key = pp_seq_page_key(s, p);
    *name = pp_page_identity(p ? &s->names[p - 1] : NULL, &key, tokens);
    return true;
}

void pp_seq_publish(struct pp_seq *s)
{
    while (s->n_named < s->plain / PP_PAGE_TOKENS) {
        int64_t p = s->n_named;
        if (!name_page(s, p, s->tokens + p * PP_PAGE_TOKENS, &s->names[p]))
            return;
        for (int t = 0; t < s->engine->n_tiers; t++)
            if (pp_seq_holds(s, t, p))
                pp_page_name(s->engine->tier[t].kv, s->tier[t].pages[p], &s->names[p]);
        s->n_named++;
    }
}

/* Whether all tiers without a window have a page of this name. */
static bool is_known(const struct pp_engine *e, const struct pp_hash128 *name)
{
    for (int t = 0; t < e->n_tiers; t++)
        if (!e->tier[t].window && !pp_page_known(e->tier[t].kv, name))
            return false;
    return true;
}

int64_t pp_seq_adopt(struct pp_seq *s, const int32_t *tokens, int64_t n)
{
    pp_seq_publish(s);
    if (s->n_named != s->len / PP_PAGE_TOKENS)
        return 0;
    int64_t p = s->n_named;
    while ((p + 1) * PP_PAGE_TOKENS <= n && name_page(s, p, tokens + p * PP_PAGE_TOKENS, &s->names[p]) &&
           is_known(s->engine, &s->names[p]))
        p++;
    s->n_named = p;
    const int64_t whole = pp_seq_extend(s, tokens, p * PP_PAGE_TOKENS);
    return whole + pp_tail_adopt(s, tokens, n);
}

/* Lists the adapters with a strength other than 0, and from which token on each acts. Returns how many, at most
 * PP_MAX_ADAPTERS. */
static int find_starts(const struct pp_adapter_use *use, int n_use, const int32_t *tokens, int64_t n,
                       struct pp_adapter_use *acting, int64_t *start)
{
    int m = 0;
    for (int i = 0; i < n_use && m < PP_MAX_ADAPTERS; i++)
        if (use[i].scale != 0.0f) {
            acting[m] = use[i];
            start[m++] = pp_adapter_start(use[i].adapter, tokens, n);
        }
    return m;
}

int64_t pp_engine_cached_tokens(const struct pp_engine *e, const struct pp_adapter_use *use, int n_use,
                                const int32_t *tokens, int64_t n)
{
    struct pp_adapter_use acting[PP_MAX_ADAPTERS];
    int64_t start[PP_MAX_ADAPTERS];
    const int m = find_starts(use, n_use, tokens, n, acting, start);
    const struct pp_tail *tail;
    struct pp_hash128 name[2];
    int64_t p = 0;
    for (; (p + 1) * PP_PAGE_TOKENS <= n; p++) {
        const struct pp_sha256 key = key_of(acting, start, m, p);
        name[p & 1] = pp_page_identity(p ? &name[~p & 1] : NULL, &key, tokens + p * PP_PAGE_TOKENS);
        if (!is_known(e, &name[p & 1]))
            break;
    }
    const int64_t whole = p * PP_PAGE_TOKENS;
    const struct pp_sha256 key = key_of(acting, start, m, p);
    return whole + pp_tail_find(e, p ? &name[~p & 1] : NULL, p, &key, tokens + whole, n - whole, &tail);
}

int64_t pp_seq_cached_tokens(const struct pp_seq *s, const struct pp_adapter_use *use, int n_use, const int32_t *tokens,
                             int64_t n)
{
    struct pp_adapter_use acting[PP_MAX_ADAPTERS];
    int64_t start[PP_MAX_ADAPTERS], most = pp_seq_exact(s), i = 0;
    const int m = find_starts(use, n_use, tokens, n, acting, start);
    const struct pp_sha256 key = key_of(acting, everywhere, m, 0);
    if (memcmp(&key, &s->key, sizeof key) != 0)
        return 0;
    for (int k = 0; k < m; k++)
        if (start[k] != s->start[k]) {
            const int64_t earlier = start[k] < s->start[k] ? start[k] : s->start[k];
            most = earlier < most ? earlier : most;
        }
    while (i < most && i < n && s->tokens[i] == tokens[i])
        i++;
    return i;
}
