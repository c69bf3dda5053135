/* tokenizer_units.c - SentencePiece's two simplest kinds, without merges: a token for each character, or for each word,
 * which begins with U+2581. What the vocabulary lacks is unknown.
 *
 * https://github.com/google/sentencepiece, src/char_model.cc and src/word_model.cc: in the first kind user-defined
 * texts replace characters, the longest first; in the second they count only as whole words. */
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/tokenizer_internal.h"

/* The token with this text, or TOK_NONE. Byte tokens count; control tokens do not: for them SentencePiece gives no
 * token at all, but an error. */
static uint32_t whole_token(const struct pp_tokenizer *t, const char *text, size_t n)
{
    const uint32_t id = n <= t->max_len ? tok_lookup(t, text, n) : TOK_NONE;
    if (id >= t->n_vocab || t->type[id] == TOK_CONTROL || t->type[id] == TOK_UNKNOWN)
        return TOK_NONE;
    return t->type[id] == TOK_USER && !(t->flags[id] & TOK_SPACED) ? TOK_NONE : id;
}

/* The end of the character, or word, at the beginning of text. */
static size_t unit_end(const struct pp_tokenizer *t, const char *text, size_t n)
{
    size_t len;
    if (t->units == TOK_UNITS_WORDS) {
        const char *next = memmem(text + 1, n - 1, TOK_SPACE, TOK_SPACE_LEN);
        return next ? (size_t)(next - text) : n;
    }
    if (t->spaced_late && tok_longest_here(t, &t->spaced, text, n, &len) != TOK_NONE)
        return len;
    return pp_utf8_decode(text, n, &(int32_t){0});
}

enum pp_code tok_units_text(struct tok_merger *m, const char *text, size_t n, struct pp_error *err)
{
    bool after_unknown = false;
    enum pp_code code = PP_OK;
    for (size_t at = 0, len; !code && at < n; at += len) {
        len = unit_end(m->t, text + at, n - at);
        const uint32_t id = whole_token(m->t, text + at, len);
        code = id == TOK_NONE ? tok_emit_unknown(m, text + at, len, &after_unknown, err)
                              : tok_ids_add(&m->ids, (int32_t)id, err);
        after_unknown = after_unknown && id == TOK_NONE;
    }
    return code;
}
