/* tokenizer_dna.c - DNA within text, as in vocabularies that GGUF files call "hybriddna": from <dna> to </dna>, or the
 * end of the text, each six letters, upper or lower case, are a token; the last ones are padded with A, and unknown
 * ones are <oov>. Other text is cut as byte-level vocabularies do.
 *
 * Tokens of DNA end in U+E000, since the same six letters may be a token of other text, too. */
#include <string.h>

#include "engine/tokenizer_internal.h"

enum { LETTERS = 6, MARK_LEN = 3 };
#define MARK "\xee\x80\x80"
#define OPEN "<dna>"
#define CLOSE "</dna>"
#define NONE "<oov>"

struct pp_str tok_dna_shown(struct pp_str text)
{
    if (text.len > MARK_LEN && memcmp(text.data + text.len - MARK_LEN, MARK, MARK_LEN) == 0)
        text.len -= MARK_LEN;
    return text;
}

static enum pp_code add_letters(struct tok_merger *m, const char *text, size_t n, int32_t unknown,
                                struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < n && !code; i += LETTERS) {
        char letters[LETTERS + MARK_LEN];
        for (size_t k = 0; k < LETTERS; k++) {
            const char c = i + k < n ? text[i + k] : 'A';
            letters[k] = (char)(c >= 'a' && c <= 'z' ? c - ('a' - 'A') : c);
        }
        memcpy(letters + LETTERS, MARK, MARK_LEN);
        const uint32_t token = tok_lookup(m->t, letters, sizeof letters);
        code = tok_ids_add(&m->ids, token < m->t->n_vocab ? (int32_t)token : unknown, err);
    }
    return code;
}

static const char *find(const char *from, const char *end, const char *tag)
{
    const char *found = memmem(from, (size_t)(end - from), tag, strlen(tag));
    return found ? found : end;
}

enum pp_code tok_dna_text(struct tok_merger *m, const char *text, size_t n, tok_word_fn plain, void *ctx,
                          struct pp_error *err)
{
    const struct pp_tokenizer *t = m->t;
    const uint32_t open = tok_lookup(t, OPEN, strlen(OPEN)), close = tok_lookup(t, CLOSE, strlen(CLOSE));
    const uint32_t none = tok_lookup(t, NONE, strlen(NONE));
    const char *const end = text + n;
    if (open >= t->n_vocab || close >= t->n_vocab || none >= t->n_vocab)
        return plain(ctx, text, n, err);
    while (text < end) {
        const char *begin = find(text, end, OPEN);
        enum pp_code code = begin > text ? plain(ctx, text, (size_t)(begin - text), err) : PP_OK;
        if (code || begin == end)
            return code;
        begin += strlen(OPEN);
        const char *stop = find(begin, end, CLOSE);
        code = tok_ids_add(&m->ids, (int32_t)open, err);
        if (!code)
            code = add_letters(m, begin, (size_t)(stop - begin), (int32_t)none, err);
        if (!code && stop < end)
            code = tok_ids_add(&m->ids, (int32_t)close, err);
        if (code)
            return code;
        text = stop < end ? stop + strlen(CLOSE) : end;
    }
    return PP_OK;
}
