/* tokenizer_unigram.c - the cut of a word into pieces whose scores, logarithms of probabilities, have the greatest sum:
 * Kudo, arXiv 1804.10959, by Viterbi's algorithm from left to right. A character that begins no piece of its own length
 * may stand as unknown. Of equal sums the one that was found first stands, that with the longer last piece.
 *
 * Where two cuts are nearly equal the rounding chooses, so it is SentencePiece's: sums are kept in single precision, go
 * on from word to word, and are compared in double precision with what was kept. Vocabularies of a tokenizer.json
 * are summed up in double precision, each word by itself. */
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer_internal.h"

static void offer(const struct pp_tokenizer *t, struct tok_cut *to, double score, uint32_t from, uint32_t token)
{
    if (to->from == TOK_NONE || score > to->score)
        *to = (struct tok_cut){t->apart ? score : (double)(float)score, from, token};
}

double tok_unigram_score(const struct pp_tokenizer *t, uint32_t token)
{
    if (t->type[token] != TOK_USER)
        return (double)t->score[token];
    return (double)((float)tok_text(t, token).len * t->best_score) - 0.1; /* SentencePiece's: hardly ever is another way
                                                                             better */
}

/* All pieces that begin at `at`, where a character of `width` bytes stands. */
static void extend(const struct pp_tokenizer *t, struct tok_cut *cuts, const char *word, size_t n, size_t at,
                   size_t width)
{
    struct tok_walk w = {.t = t, .index = &t->pieces};
    const double score = cuts[at].score;
    bool single = false;
    uint32_t token;
    for (size_t i = at; i < n && tok_walk(&w, word[i], &token); i++) {
        if (token == TOK_NONE)
            continue;
        offer(t, &cuts[i + 1], score + tok_unigram_score(t, token), (uint32_t)at, token);
        single = single || i + 1 - at == width;
    }
    if (!single)
        offer(t, &cuts[at + width], t->apart ? score + (double)t->unknown_score
                                             : (double)((float)score + t->unknown_score), (uint32_t)at, TOK_NONE);
}

/* Turns the way back from the end round: each place then names the end of the piece that begins there. */
static void turn(struct tok_cut *cuts, size_t n)
{
    uint32_t end = (uint32_t)n;
    struct tok_cut last = cuts[end];
    while (end > 0) {
        uint32_t begin = last.from;
        struct tok_cut before = cuts[begin];
        cuts[begin] = (struct tok_cut){.from = end, .token = last.token};
        end = begin;
        last = before;
    }
}

enum pp_code tok_unigram_word(struct tok_merger *m, const char *word, size_t n, struct pp_error *err)
{
    const struct pp_tokenizer *t = m->t;
    if (pp_grow(&m->cuts, &m->cuts_cap, n + 1, sizeof *m->cuts) != 0)
        return pp_fail_nomem(err, "cutting a long word");
    for (size_t i = 0; i <= n; i++)
        m->cuts[i] = (struct tok_cut){.from = TOK_NONE, .token = TOK_NONE};
    m->cuts[0] = (struct tok_cut){.score = t->apart ? 0 : (double)m->score};
    for (size_t at = 0, width; at < n; at += width) {
        int32_t c;
        width = pp_utf8_decode(word + at, n - at, &c);
        if (m->cuts[at].from != TOK_NONE)
            extend(t, m->cuts, word, n, at, width);
    }
    m->score = (float)m->cuts[n].score;
    turn(m->cuts, n);
    bool after_unknown = false;
    for (uint32_t at = 0; at < n; at = m->cuts[at].from) {
        const struct tok_cut *c = &m->cuts[at];
        enum pp_code code;
        if (c->token == TOK_NONE) {
            code = tok_emit_unknown(m, word + at, c->from - at, &after_unknown, err);
        } else {
            after_unknown = false;
            code = tok_ids_add(&m->ids, (int32_t)c->token, err);
        }
        if (code)
            return code;
    }
    return PP_OK;
}
