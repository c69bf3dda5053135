/* prefix.c - pages found by what was computed in them: a conversation that begins like another one, or like itself
 * before an edit, takes over its pages. Positions and weights are the engine's own, so that tokens and adapters are
 * all that a page's content depends on; how it came about (chunks, threads, drafts) leaves no trace in its bits. */
#include <string.h>

#include "engine/engine_int.h"

void pp_seq_rekey(struct pp_seq *s)
{
    struct pp_sha256_stream h;
    pp_sha256_begin(&h);
    for (int i = 0; i < s->adapters.n; i++) {
        const struct pp_adapter_use *use = &s->adapters.use[i];
        pp_sha256_update(&h, use->adapter->identity.bytes, sizeof use->adapter->identity.bytes);
        pp_sha256_update(&h, &use->scale, sizeof use->scale);
    }
    s->key = pp_sha256_end(&h);
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
            pp_page_name(s->engine->tier[t].kv, s->tier[t].pages[p], &s->names[p]);
        s->n_named++;
    }
}

/* The pages of that name in all tiers, each with one more reference; or none. */
static bool find_pages(struct pp_engine *e, const struct pp_hash128 *name, pp_page_id found[PP_MAX_TIERS])
{
    for (int t = 0; t < e->n_tiers; t++)
        if ((found[t] = pp_page_find(e->tier[t].kv, name)) == PP_NO_PAGE) {
            while (t-- > 0)
                pp_page_release(e->tier[t].kv, found[t]);
            return false;
        }
    return true;
}

int64_t pp_seq_adopt(struct pp_seq *s, const int32_t *tokens, int64_t n)
{
    struct pp_engine *e = s->engine;
    const int64_t before = s->len;
    pp_seq_publish(s);
    for (int64_t p = s->len / PP_PAGE_TOKENS; p == s->n_named && (p + 1) * PP_PAGE_TOKENS <= n; p++) {
        const int32_t *of_page = tokens + p * PP_PAGE_TOKENS;
        struct pp_hash128 name;
        pp_page_id found[PP_MAX_TIERS];
        if (!name_page(s, p, of_page, &name) || !find_pages(e, &name, found))
            break;
        memcpy(s->tokens + p * PP_PAGE_TOKENS, of_page, PP_PAGE_TOKENS * sizeof *tokens);
        for (int t = 0; t < e->n_tiers; t++) {
            if (p < s->tier[t].n_pages)
                pp_page_release(e->tier[t].kv, s->tier[t].pages[p]); /* the beginning of the same */
            pp_seq_set_page(s, t, p, found[t]);
            s->tier[t].n_pages = p + 1;
        }
        s->names[p] = name;
        s->n_named = p + 1;
        s->len = s->plain = (p + 1) * PP_PAGE_TOKENS;
        s->logits_len = 0;
    }
    return s->len - before;
}
