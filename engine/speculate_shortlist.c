/* speculate_shortlist.c - the tokens among which a draft model chooses: a large part of a small model's step is the
 * product with the rows of all tokens, and nearly all that it guesses rightly are frequent ones (FR-Spec, arXiv
 * 2502.14856). Vocabularies made by merging have frequent tokens first; what a conversation has said is frequent there.
 *
 * Measured on the bundled pair (48 dialogues of its validation text): with the first quarter of the vocabulary and what
 * was said, 30 % of all rows, 79 % of first guesses stand instead of 81; with an eighth 76, with a half 80. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/speculate.h"

/* Groups of tokens: of the whole vocabulary one in FIRST_PART is listed at first, and at most one in MOST_PART. */
enum { FIRST_PART = 4, MOST_PART = 2, LEAST_VOCAB = 2048 };
/* Of the tokens that the target chooses, so many may be missing in the list: of late, and each counts so much. */
static const double MOST_MISSED = 0.2, MISSED_RATE = 1.0 / 64;

enum pp_code pp_shortlist_init(struct pp_shortlist *l, int64_t n_vocab, struct pp_error *err)
{
    *l = (struct pp_shortlist){0};
    if (n_vocab < LEAST_VOCAB)
        return PP_OK;
    const int32_t n_all = (int32_t)((n_vocab + PP_TOKEN_GROUP - 1) / PP_TOKEN_GROUP);
    l->n_all = n_all;
    l->most = n_all / MOST_PART;
    l->groups = pp_malloc((size_t)l->most * sizeof *l->groups);
    l->has = pp_calloc((size_t)n_all, sizeof *l->has);
    if (!l->groups || !l->has) {
        pp_shortlist_free(l);
        return pp_fail_nomem(err, "the list of likely tokens");
    }
    for (; l->n < n_all / FIRST_PART; l->n++) {
        l->groups[l->n] = l->n;
        l->has[l->n] = true;
    }
    return PP_OK;
}

void pp_shortlist_free(struct pp_shortlist *l)
{
    pp_free(l->groups);
    pp_free(l->has);
    *l = (struct pp_shortlist){0};
}

/* A token that the draft does not know, as padded vocabularies have some, cannot be missing. */
static bool lists(const struct pp_shortlist *l, int32_t token)
{
    return token < 0 || token / PP_TOKEN_GROUP >= l->n_all || l->has[token / PP_TOKEN_GROUP];
}

static void add(struct pp_shortlist *l, int32_t token)
{
    const int32_t group = token / PP_TOKEN_GROUP;
    int at = l->n;
    if (lists(l, token) || l->n == l->most)
        return;
    while (at > 0 && l->groups[at - 1] > group)
        at--;
    memmove(l->groups + at + 1, l->groups + at, (size_t)(l->n - at) * sizeof *l->groups);
    l->groups[at] = group;
    l->has[group] = true;
    l->n++;
}

void pp_shortlist_set(struct pp_shortlist *l, const int32_t *tokens, int64_t n, int64_t n_prompt)
{
    if (!l->n_all)
        return;
    if (!l->n_tokens) { /* the newest first: there may not be room for all */
        for (int64_t i = n_prompt; i-- > 0;)
            add(l, tokens[i]);
        l->n_tokens = n_prompt;
    }
    for (; l->n_tokens < n; l->n_tokens++) {
        l->missed += MISSED_RATE * ((lists(l, tokens[l->n_tokens]) ? 0 : 1) - l->missed);
        add(l, tokens[l->n_tokens]);
    }
}

bool pp_shortlist_serves(const struct pp_shortlist *l)
{
    return l->n_all && l->missed <= MOST_MISSED;
}
