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
        pp_page_name(s->engine->kv, s->pages[p], &s->names[p]);
        s->n_named++;
    }
}

int64_t pp_seq_adopt(struct pp_seq *s, const int32_t *tokens, int64_t n)
{
    struct pp_kv_pool *kv = s->engine->kv;
    const int64_t before = s->len;
    pp_seq_publish(s);
    for (int64_t p = s->len / PP_PAGE_TOKENS; p == s->n_named && (p + 1) * PP_PAGE_TOKENS <= n; p++) {
        const int32_t *of_page = tokens + p * PP_PAGE_TOKENS;
        struct pp_hash128 name;
        pp_page_id page = name_page(s, p, of_page, &name) ? pp_page_find(kv, &name) : PP_NO_PAGE;
        if (page == PP_NO_PAGE)
            break;
        if (p < s->n_pages)
            pp_page_release(kv, s->pages[p]); /* the beginning of the same */
        memcpy(s->tokens + p * PP_PAGE_TOKENS, of_page, PP_PAGE_TOKENS * sizeof *tokens);
        s->pages[p] = page;
        s->page_data[p] = pp_page_data(kv, page);
        s->names[p] = name;
        s->n_pages = s->n_named = p + 1;
        s->len = s->plain = (p + 1) * PP_PAGE_TOKENS;
    }
    return s->len - before;
}
