/* tokenizer_unigram.c - the cut of a word into pieces whose scores, logarithms of probabilities, have the greatest sum:
 * Kudo, arXiv 1804.10959, by Viterbi's algorithm from left to right. A character that begins no piece of its own length
 * may stand as unknown. Of equal sums the one that was found first stands, that with the longer last piece.
 *
 * Where two cuts are nearly equal the rounding chooses, so it is SentencePiece's: sums are kept in single precision, go
 * on from word to word, and are compared in double precision with what was kept. Vocabularies of a tokenizer.json
 * are summed up in double precision, each word by itself; of those all tokens are pieces, and a run of unknown
 * characters is one text: https://github.com/huggingface/tokenizers, src/models/unigram/model.rs. */
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
        offer(t, &cuts[at + width],
              t->apart ? score + t->unknown_score : (double)((float)score + (float)t->unknown_score), (uint32_t)at,
              TOK_NONE);
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

/* The piece with this very text, or TOK_NONE. */
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

/* Where the run of unknown characters ends that begins at `at`. As a tokenizer.json's library has it, the unknown
 * token's own text belongs to it, and bytes and pieces are looked for in the whole run. */
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
    turn(m->cuts, n);
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
