/* prefix.c - pages found by what was computed in them: a conversation that begins like another one, or like itself
 * before an edit, takes over its pages. Positions and weights are the engine's own, so that tokens and adapters are
 * all that a page's content depends on; how it came about (chunks, threads, drafts) leaves no trace in its bits. */
#include <string.h>

#include "engine/engine_int.h"

static struct pp_sha256 key_of(const struct pp_adapter_use *use, int n)
{
    struct pp_sha256_stream h;
    pp_sha256_begin(&h);
    for (int i = 0; i < n; i++) {
        if (use[i].scale == 0.0f)
            continue; /* the same as absent */
        pp_sha256_update(&h, use[i].adapter->identity.bytes, sizeof use[i].adapter->identity.bytes);
        pp_sha256_update(&h, &use[i].scale, sizeof use[i].scale);
    }
    return pp_sha256_end(&h);
}

void pp_seq_rekey(struct pp_seq *s)
{
    s->key = key_of(s->adapters.use, s->adapters.n);
}

/* The identity of a page of these tokens, the p-th of s. false: an input that is no token is among them. */
static bool name_page(const struct pp_seq *s, int64_t p, const int32_t *tokens, struct pp_hash128 *name)
{
    for (int i = 0; i < PP_PAGE_TOKENS; i++)
        if (tokens[i] < 0)
            return false;
    *name = pp_page_identity(p ? &s->names[p - 1] : NULL, &s->key, tokens);
    return true;
}

void pp_seq_publish(struct pp_seq *s)
{
    while (s->n_named < s->plain / PP_PAGE_TOKENS) {
        int64_t p = s->n_named;
        if (!name_page(s, p, s->tokens + p * PP_PAGE_TOKENS, &s->names[p]))
            return;
        for (int t = 0; t < s->engine->n_tiers; t++)
            if (p >= s->tier[t].first_page && p < s->tier[t].n_pages)
                pp_page_name(s->engine->tier[t].kv, s->tier[t].pages[p], &s->names[p]);
        s->n_named++;
    }
}

/* Whether the tiers that need all pages have the one of this name. */
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
    return pp_seq_extend(s, tokens, p * PP_PAGE_TOKENS);
}

int64_t pp_engine_at_hand(const struct pp_engine *e, const struct pp_adapter_use *use, int n_use,
                          const int32_t *tokens, int64_t n)
{
    const struct pp_sha256 key = key_of(use, n_use);
    struct pp_hash128 name[2];
    int64_t p = 0;
    for (; (p + 1) * PP_PAGE_TOKENS <= n; p++) {
        name[p & 1] = pp_page_identity(p ? &name[~p & 1] : NULL, &key, tokens + p * PP_PAGE_TOKENS);
        if (!is_known(e, &name[p & 1]))
            break;
    }
    return p * PP_PAGE_TOKENS;
}

int64_t pp_seq_at_hand(const struct pp_seq *s, const struct pp_adapter_use *use, int n_use, const int32_t *tokens,
                       int64_t n)
{
    const struct pp_sha256 key = key_of(use, n_use), own = key_of(s->adapters.use, s->adapters.n);
    int64_t i = 0;
    if (memcmp(&key, &own, sizeof key) != 0)
        return 0;
    while (i < pp_seq_exact(s) && i < n && s->tokens[i] == tokens[i])
        i++;
    return i;
}
