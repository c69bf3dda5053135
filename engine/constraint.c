/* constraint.c - see constraint.h. */
#include "engine/constraint.h"

#include <string.h>

#include "engine/base/mem.h"
#include "engine/reasoning.h"
#include "engine/text.h"

enum { FREE = -10 }; /* in place of a state: the model thinks, and everything is allowed */

struct pp_constraint {
    const struct pp_tokenizer *tokenizer;
    const struct pp_trie *trie;
    struct pp_matcher m;
    struct pp_masks masks;
    int32_t *ids;               /* [n_tokens of the grammar] */
    int32_t *ends;              /* [n_ends] */
    int32_t state;              /* after the tokens chosen so far */
    int32_t *drafted;           /* [most_drafted + 1]: from 1 on, the states after draft tokens */
    int most_drafted;
    int32_t opener;             /* the token that begins the reasoning, if it is the first; or -1 */
    bool first;                 /* no token was chosen yet */
    uint64_t *words;            /* [n_words]: the first mask, with the opener; or NULL */
    struct pp_reasoner *reasoner; /* or NULL: no reasoning comes any more */
    struct pp_reasoning reasoning;
    struct pp_buf answer;       /* what the reasoner has handed out as answer */
    enum pp_code code;          /* what has gone wrong */
    struct pp_error err;
};

static enum pp_code failed(struct pp_constraint *c, struct pp_error *err)
{
    if (err)
        *err = c->err;
    return c->code;
}

static enum pp_code matcher_failed(struct pp_constraint *c, struct pp_error *err)
{
    c->code = c->m.code;
    c->err = c->m.err;
    return failed(c, err);
}

/* --- life -------------------------------------------------------------------------------------------------------- */

static enum pp_code find_tokens(struct pp_constraint *c, const struct pp_grammar *g, struct pp_error *err)
{
    c->ids = pp_calloc(g->n_tokens + 1, sizeof *c->ids);
    if (!c->ids)
        return pp_fail_nomem(err, "a grammar's tokens");
    for (uint32_t i = 0; i < g->n_tokens; i++) {
        const struct pp_token_reference *r = &g->tokens[i];
        const int32_t id = r->text ? pp_tokenizer_find(c->tokenizer, r->text, strlen(r->text)) : r->id;
        if (r->text && id < 0)
            return pp_fail(err, PP_ERR_USAGE, "the grammar names the token %.80s, but this model has no such token; "
                                              "`pippin tokenize --special` shows those of a text", r->text);
        if (id >= c->trie->n_vocab)
            return pp_fail(err, PP_ERR_USAGE, "the grammar names token %d, but this model has tokens 0 to %d", id,
                           c->trie->n_vocab - 1);
        c->ids[i] = id;
    }
    return PP_OK;
}

static void take_part(void *user, enum pp_part part, const char *bytes, size_t n)
{
    struct pp_constraint *c = user;
    if (part == PP_PART_ANSWER)
        pp_buf_add(&c->answer, bytes, n);
}

static enum pp_code begin_reasoning(struct pp_constraint *c, const struct pp_grammar_use *use, struct pp_error *err)
{
    bool header = false;
    if (!use->reasoning || !use->reasoning->tags || use->begins == PP_BEGINS_ANSWER || use->n_begun)
        return PP_OK;
    c->reasoning = *use->reasoning;
    c->opener = pp_reasoning_opener(&c->reasoning, c->tokenizer, &header);
    if (use->begins == PP_BEGINS_FREE && !header && c->opener < 0)
        return PP_OK; /* it cannot be told by one token: the model answers at once */
    c->reasoner = pp_reasoner_new(&c->reasoning, use->begins, take_part, c);
    if (!c->reasoner)
        return pp_fail_nomem(err, "a grammar's answer");
    if (use->begins == PP_BEGINS_REASONING || header) {
        c->state = FREE;
        c->opener = -1;
    }
    return PP_OK;
}

static enum pp_code set_up(struct pp_constraint *c, const struct pp_grammar_use *use, const int32_t *ends,
                           size_t n_ends, struct pp_error *err)
{
    enum pp_code code = pp_matcher_init(&c->m, use->grammar, err);
    if (!code)
        code = find_tokens(c, use->grammar, err);
    c->drafted = pp_calloc((size_t)c->most_drafted + 2, sizeof *c->drafted);
    c->ends = pp_calloc(n_ends + 1, sizeof *c->ends);
    if (!code && (!c->drafted || !c->ends))
        code = pp_fail_nomem(err, "a grammar's answer");
    if (code)
        return code;
    if (n_ends)
        memcpy(c->ends, ends, n_ends * sizeof *ends);
    code = pp_masks_init(&c->masks, &c->m, c->trie, c->ids, c->ends, n_ends, err);
    if (code)
        return code;
    c->state = pp_matcher_text(&c->m, pp_matcher_start(&c->m), use->begun, use->n_begun);
    if (c->state < 0)
        return matcher_failed(c, err);
    if (c->state == PP_STATE_DEAD)
        return pp_fail(err, PP_ERR_USAGE, "the answer so far does not match the grammar; switch the grammar off to "
                                          "continue it");
    return begin_reasoning(c, use, err);
}

enum pp_code pp_constraint_new(const struct pp_grammar_use *use, const struct pp_tokenizer *t,
                               const struct pp_trie *trie, const int32_t *ends, size_t n_ends, int most_drafted,
                               struct pp_constraint **out, struct pp_error *err)
{
    struct pp_constraint *c = pp_calloc(1, sizeof *c);
    *out = NULL;
    if (!c)
        return pp_fail_nomem(err, "a grammar's answer");
    c->tokenizer = t;
    c->trie = trie;
    c->most_drafted = most_drafted;
    c->opener = -1;
    c->first = true;
    const enum pp_code code = set_up(c, use, ends, n_ends, err);
    if (code)
        pp_constraint_free(c);
    else
        *out = c;
    return code;
}

void pp_constraint_free(struct pp_constraint *c)
{
    if (!c)
        return;
    pp_masks_free(&c->masks);
    pp_matcher_free(&c->m);
    pp_reasoner_free(c->reasoner);
    pp_buf_free(&c->answer);
    pp_free(c->ids);
    pp_free(c->ends);
    pp_free(c->drafted);
    pp_free(c->words);
    pp_free(c);
}

/* --- tokens ------------------------------------------------------------------------------------------------------ */

static int32_t state_after(struct pp_constraint *c, int32_t state, int32_t token)
{
    const struct pp_trie *t = c->trie;
    const uint32_t at = t->text_at[token];
    return pp_matcher_token(&c->m, state, token, t->text + at, t->text_at[token + 1] - at, c->ids);
}

/* The first mask of a model that may think: with the token that opens the reasoning. */
static enum pp_code with_opener(struct pp_constraint *c, const uint64_t **words, struct pp_error *err)
{
    const size_t n = c->masks.n_words;
    if (!c->words && !(c->words = pp_malloc(n * sizeof *c->words))) {
        *words = NULL;
        c->code = pp_fail_nomem(&c->err, "a grammar's mask");
        return failed(c, err);
    }
    memcpy(c->words, *words, n * sizeof *c->words);
    c->words[c->opener / 64] |= UINT64_C(1) << (c->opener % 64);
    *words = c->words;
    return PP_OK;
}

enum pp_code pp_constraint_allowed(struct pp_constraint *c, int n_drafted, const uint64_t **words,
                                   struct pp_error *err)
{
    const int32_t state = n_drafted ? c->drafted[n_drafted] : c->state;
    *words = NULL;
    if (c->code)
        return failed(c, err);
    if (state == FREE)
        return PP_OK;
    *words = pp_masks_of(&c->masks, state);
    if (!*words)
        return matcher_failed(c, err);
    return c->first && !n_drafted && c->opener >= 0 ? with_opener(c, words, err) : PP_OK;
}

bool pp_constraint_draft(struct pp_constraint *c, int n_drafted, int32_t token)
{
    const int32_t state = n_drafted ? c->drafted[n_drafted] : c->state;
    if (c->code || n_drafted >= c->most_drafted || token < 0 || token >= c->trie->n_vocab)
        return false;
    int32_t next = FREE;
    if (state != FREE && (n_drafted || !c->first || token != c->opener)) {
        c->m.work = 0;
        next = state_after(c, state, token);
        for (size_t i = 0; next == PP_STATE_DEAD && i < c->masks.n_ends && c->m.states[state].ends; i++)
            if (c->ends[i] == token) /* it ends the answer: nothing is drafted after it */
                next = state;
    }
    c->drafted[n_drafted + 1] = next;
    return next == FREE || next > 0;
}

static bool is_blank(char ch)
{
    return ch == ' ' || ch == '\t' || ch == '\n' || ch == '\r';
}

/* Reads a token of the reasoning. Behind it the grammar begins, with what the token has of the answer. */
static void think(struct pp_constraint *c, int32_t token)
{
    struct pp_buf text = {0};
    bool written = false;
    for (int i = 0; i < c->reasoning.n_tokens; i++)
        written = written || c->reasoning.tokens[i] == token;
    if (written)
        pp_buf_str(&text, PP_CONTROL_MARK);
    pp_token_text(c->tokenizer, token, written, &text);
    pp_reasoner_feed(c->reasoner, pp_buf_cstr(&text), text.len);
    pp_buf_free(&text);
    c->state = FREE;
    if (!pp_reasoner_answers(c->reasoner))
        return;
    size_t blanks = 0;
    while (blanks < c->answer.len && is_blank(c->answer.data[blanks]))
        blanks++;
    c->state = pp_matcher_text(&c->m, pp_matcher_start(&c->m), pp_buf_cstr(&c->answer) + blanks,
                               c->answer.len - blanks);
    pp_reasoner_free(c->reasoner);
    c->reasoner = NULL;
}

enum pp_code pp_constraint_accept(struct pp_constraint *c, int32_t token, struct pp_error *err)
{
    if (c->code)
        return failed(c, err);
    if (token < 0 || token >= c->trie->n_vocab)
        return PP_OK;
    c->m.work = 0;
    if (c->reasoner && (c->state == FREE || token == c->opener)) {
        think(c, token);
    } else {
        pp_reasoner_free(c->reasoner);
        c->reasoner = NULL;
        c->state = state_after(c, c->state, token);
    }
    c->first = false;
    if (c->state == PP_STATE_FAILED)
        return matcher_failed(c, err);
    if (c->state == PP_STATE_DEAD) {
        c->code = pp_fail(&c->err, PP_ERR_FORMAT, "the answer does not match the grammar");
        return failed(c, err);
    }
    if (c->state != FREE && pp_matcher_trim(&c->m, &c->state))
        pp_masks_clear(&c->masks);
    return PP_OK;
}

bool pp_constraint_over(const struct pp_constraint *c)
{
    return !c->code && pp_matcher_over(&c->m, c->state);
}

enum pp_code pp_constraint_stuck(struct pp_constraint *c, struct pp_error *err)
{
    if (c->code)
        return failed(c, err);
    return pp_fail(err, PP_ERR_UNSUPPORTED, "the grammar allows no token of this model here, or only such as a "
                                            "logit bias forbids");
}
