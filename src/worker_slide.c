/* worker_slide.c - drops the oldest turns of a conversation and keeps what was computed of the others by moving it
 * to its new positions (pp_seq_cut). Used only with --overflow slide: the values depend on the dropped tokens, so
 * they differ from those that computing the prompt again would give. */
#include "engine/base/mem.h"
#include "src/worker_int.h"

enum { SLIDE_TOKENS = 32 };  /* a shorter common part is computed again */

/* Finds the longest prefix of `head` [n] that occurs in `text` [len]: returns its length, and where it begins as
 * *at. Uses the failure function of Knuth, Morris and Pratt. -1: out of memory. */
static int64_t find_beginning(const int32_t *head, int64_t n, const int32_t *text, int64_t len, int64_t *at)
{
    int64_t *fall = pp_malloc((size_t)(n + 1) * sizeof *fall), most = 0;
    if (!fall)
        return -1;
    fall[0] = -1;
    for (int64_t i = 0, k = -1; i < n; fall[++i] = ++k)
        while (k >= 0 && head[i] != head[k])
            k = fall[k];
    for (int64_t i = 0, k = 0; i < len && most < n; i++) {
        while (k >= 0 && (k == n || text[i] != head[k]))
            k = fall[k];
        if (++k > most) {
            most = k;
            *at = i + 1 - k;
        }
    }
    pp_free(fall);
    return most;
}

void slot_slide(struct pp_worker *w, struct slot *s, const struct slot_spec *spec)
{
    const int32_t *have = pp_seq_tokens(s->seq);
    const int64_t len = pp_seq_len(s->seq), n = (int64_t)spec->n;
    int64_t common = 0, at = 0;
    while (common < len && common < n && have[common] == spec->tokens[common])
        common++;
    const int64_t exact = pp_engine_cached_tokens(w->engine, spec->use, spec->n_use, spec->tokens, n);
    const int64_t most = find_beginning(spec->tokens + common, n - common, have + common, len - common, &at);
    if (most < SLIDE_TOKENS || common + most < exact + SLIDE_TOKENS)
        return;
    /* What follows the common part cannot be moved. Truncating leaves its pages in the cache, where other sequences
     * find them by their hash. */
    pp_seq_truncate(s->seq, common + at + most);
    if (pp_seq_cut(s->seq, common, common + at, NULL) == PP_OK)
        s->dirty = true;
}
