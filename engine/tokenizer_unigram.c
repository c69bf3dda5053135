/* tokenizer_unigram.c - cuts a word into pieces whose scores, logarithms of probabilities, have the largest sum: Kudo,
 * arXiv 1804.10959, by Viterbi's algorithm from left to right. A character that is not a piece by itself may become the
 * unknown token. Among equal sums the first found wins, which has the longer last piece.
 *
 * Where two cuts are nearly equal rounding decides, so it must be SentencePiece's: sums are kept in single precision,
 * continue from word to word, and are compared in double precision with the kept ones. Vocabularies of a tokenizer.json
 * sum in double precision, each word by itself; there all tokens are pieces, and a run of unknown characters is one
 * text: https://github.com/huggingface/tokenizers, src/models/unigram/model.rs. */
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
    if (t->apart)
        return t->exact ? t->exact[token] : (double)t->score[token];
    if (t->type[token] != TOK_USER)
        return (double)t->score[token];
    return (double)((float)tok_text(t, token).len * t->best_score) - 0.1; /* as in SentencePiece: another cut hardly
                                                                             ever scores more */
}

/* Extends the best ways by all pieces that begin at `at`, where there is a character of `width` bytes. */
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
        offer(t, &cuts[at + width],
              t->apart ? score + t->unknown_score : (double)((float)score + (float)t->unknown_score), (uint32_t)at,
              TOK_NONE);
}

/* Reverses the links: each then leads from the beginning of a piece to its end. */
static void reverse(struct tok_cut *cuts, size_t n)
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

/* The piece with exactly this text, or TOK_NONE. */
static uint32_t whole_piece(const struct pp_tokenizer *t, const char *text, size_t n)
{
    struct tok_walk w = {.t = t, .index = &t->pieces};
    uint32_t token = TOK_NONE;
    for (size_t i = 0; i < n; i++)
        if (!tok_walk(&w, text[i], &token))
            return TOK_NONE;
    return token;
}

static bool is_unknown(const struct pp_tokenizer *t, uint32_t token)
{
    return token == TOK_NONE || (t->apart && (int32_t)token == t->unk);
}

/* The end of the run of unknown characters that begins at `at`. As in tokenizer.json's library, the unknown token's own
 * text is part of a run, and bytes and pieces are looked up for the whole run. */
static uint32_t run_end(const struct tok_merger *m, uint32_t at, size_t n)
{
    at = m->cuts[at].from;
    while (m->t->apart && at < n && is_unknown(m->t, m->cuts[at].token))
        at = m->cuts[at].from;
    return at;
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
    reverse(m->cuts, n);
    bool after_unknown = false;
    for (uint32_t at = 0, end; at < n; at = end) {
        uint32_t token = m->cuts[at].token;
        const bool unknown = is_unknown(t, token);
        end = unknown ? run_end(m, at, n) : m->cuts[at].from;
        if (unknown)
            token = t->apart ? whole_piece(t, word + at, end - at) : TOK_NONE;
        enum pp_code code = token == TOK_NONE ? tok_emit_unknown(m, word + at, end - at, &after_unknown, err)
                                              : tok_ids_add(&m->ids, (int32_t)token, err);
        after_unknown = after_unknown && token == TOK_NONE;
        if (code)
            return code;
    }
    return PP_OK;
}
