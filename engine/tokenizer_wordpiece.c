/* tokenizer_wordpiece.c - cuts a word as BERT does (arXiv 1810.04805): into the longest piece with which it begins,
 * then the longest with which the rest begins, and so on. A word that cannot be cut, or is very long, is unknown as a
 * whole. */
#include <string.h>

#include "engine/tokenizer_internal.h"

enum { MAX_WORD = 100 }; /* characters, unless the file says otherwise */

static bool too_long(const struct pp_tokenizer *t, const char *word, size_t n)
{
    size_t characters = 0;
    for (size_t i = 0; i < n; i++)
        characters += ((uint8_t)word[i] & 0xC0) != 0x80;
    return characters > (t->longest_word ? t->longest_word : MAX_WORD);
}

/* The longest piece at the beginning of n bytes of text; *len: its bytes. first: it must begin a word. */
static uint32_t longest(const struct pp_tokenizer *t, const char *text, size_t n, bool first, size_t *len)
{
    struct tok_walk w = {.t = t, .index = &t->pieces};
    uint32_t best = TOK_NONE, token;
    for (size_t i = 0; first && i < TOK_SPACE_LEN; i++)
        if (!tok_walk(&w, TOK_SPACE[i], &token))
            return TOK_NONE;
    if (!first && n >= TOK_SPACE_LEN && memcmp(text, TOK_SPACE, TOK_SPACE_LEN) == 0)
        return TOK_NONE; /* with U+2581 only first pieces begin */
    for (size_t i = 0; i < n && tok_walk(&w, text[i], &token); i++)
        if (token != TOK_NONE) {
            best = token;
            *len = i + 1;
        }
    return best;
}

enum pp_code tok_wordpiece_word(struct tok_merger *m, const char *word, size_t n, struct pp_error *err)
{
    const size_t before = m->ids.n;
    bool known = !too_long(m->t, word, n);
    for (size_t at = 0, len = 0; known && at < n; at += len) {
        uint32_t token = longest(m->t, word + at, n - at, at == 0, &len);
        known = token != TOK_NONE;
        enum pp_code code = known ? tok_ids_add(&m->ids, (int32_t)token, err) : PP_OK;
        if (code)
            return code;
    }
    if (known)
        return PP_OK;
    m->ids.n = before;
    return m->t->unk >= 0 ? tok_ids_add(&m->ids, m->t->unk, err) : PP_OK;
}
