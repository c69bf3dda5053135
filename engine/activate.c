/* activate.c - adapters that act from a position in the text on (activated LoRA, arXiv 2504.12397): from the last
 * occurrence of their invocation, a few tokens, in the prompt. What comes before is computed without them, so that it
 * shares pages with the same text without adapters. */
#include <string.h>

#include "engine/engine_int.h"

int64_t pp_adapter_start(const struct pp_adapter *a, const int32_t *tokens, int64_t n)
{
    const int64_t m = a->n_invocation;
    if (!m)
        return 0;
    for (int64_t i = n - m; i >= 0; i--)
        if (memcmp(tokens + i, a->invocation, (size_t)m * sizeof *tokens) == 0)
            return i;
    return PP_NEVER;
}

bool pp_adapter_acts_after(const struct pp_adapter *a, const int32_t *tokens, int64_t n)
{
    return pp_adapter_start(a, tokens, n) != PP_NEVER;
}

/* Makes spans of positions whose rows have the same adapters. */
static void make_spans(struct pp_seq *s)
{
    int64_t from = 0;
    s->n_spans = 0;
    while (from != PP_NEVER) {
        struct pp_adapter_span *span = &s->spans[s->n_spans++];
        int64_t next = PP_NEVER;
        *span = (struct pp_adapter_span){.from = from};
        for (int k = 0; k < s->adapters.n; k++) {
            if (s->start[k] <= from) {
                span->set.gains[span->set.n] = s->adapters.gains[k];
                span->set.use[span->set.n++] = s->adapters.use[k];
            } else if (s->start[k] < next) {
                next = s->start[k];
            }
        }
        from = next;
    }
}

void pp_seq_choose(struct pp_seq *s, const struct pp_adapter_set *set)
{
    s->adapters = *set;
    for (int k = 0; k < set->n; k++)
        s->start[k] = set->use[k].adapter->n_invocation ? PP_NEVER : 0;
    make_spans(s);
    pp_seq_rekey(s);
}

void pp_seq_activate(struct pp_seq *s, const int32_t *prompt, int64_t n)
{
    int64_t start[PP_MAX_ADAPTERS], same = PP_NEVER;
    for (int k = 0; k < s->adapters.n; k++) {
        start[k] = pp_adapter_start(s->adapters.use[k].adapter, prompt, n);
        const int64_t earlier = start[k] < s->start[k] ? start[k] : s->start[k];
        if (start[k] != s->start[k] && earlier < same)
            same = earlier;
    }
    if (same == PP_NEVER)
        return;
    pp_seq_truncate(s, same); /* what follows was computed with other adapters */
    memcpy(s->start, start, (size_t)s->adapters.n * sizeof *start);
    make_spans(s);
}

const struct pp_adapter_set *pp_seq_adapters_at(const struct pp_seq *s, int64_t position)
{
    int i = s->n_spans - 1;
    while (i > 0 && s->spans[i].from > position)
        i--;
    return &s->spans[i].set;
}

bool pp_seq_has_activated(const struct pp_seq *s)
{
    for (int k = 0; k < s->adapters.n; k++)
        if (s->adapters.use[k].adapter->n_invocation)
            return true;
    return false;
}

static bool same_set(const struct pp_adapter_set *a, const struct pp_adapter_set *b)
{
    bool same = a->n == b->n;
    for (int k = 0; same && k < a->n; k++)
        same = a->use[k].scale == b->use[k].scale &&
               memcmp(&a->use[k].adapter->identity, &b->use[k].adapter->identity, sizeof(struct pp_sha256)) == 0;
    return same;
}

int64_t pp_seq_same_adapters_until(const struct pp_seq *a, const struct pp_seq *b)
{
    int i = 0, k = 0;
    int64_t at = 0;
    while (same_set(&a->spans[i].set, &b->spans[k].set)) {
        const int64_t next_a = i + 1 < a->n_spans ? a->spans[i + 1].from : PP_NEVER;
        const int64_t next_b = k + 1 < b->n_spans ? b->spans[k + 1].from : PP_NEVER;
        at = next_a < next_b ? next_a : next_b;
        if (at == PP_NEVER)
            return at;
        i += next_a == at;
        k += next_b == at;
    }
    return at;
}
