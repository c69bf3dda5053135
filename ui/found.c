#include "ui/found.h"

#include <string.h>
#include <utf8proc.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"

/* A text case-folded and without diacritics. */
struct folded {
    char *text;   /* [n] */
    uint32_t *at; /* for each byte, the offset of the character in the text that it comes from; the last entry is the
                   * end */
    size_t n, cap, cap_at;
};

static void free_folded(struct folded *f)
{
    pp_free(f->text);
    pp_free(f->at);
}

static bool add(struct folded *f, const char *bytes, size_t n, size_t at)
{
    if (pp_grow(&f->text, &f->cap, f->n + n, sizeof *f->text) != 0 ||
        pp_grow(&f->at, &f->cap_at, f->n + n + 1, sizeof *f->at) != 0)
        return false;
    memcpy(f->text + f->n, bytes, n);
    for (size_t i = 0; i < n; i++)
        f->at[f->n++] = (uint32_t)at;
    return true;
}

static bool add_char(struct folded *f, int32_t cp, size_t at)
{
    enum { PARTS = 16 };
    static const utf8proc_option_t how = UTF8PROC_DECOMPOSE | UTF8PROC_CASEFOLD | UTF8PROC_STRIPMARK;
    utf8proc_int32_t parts[PARTS];
    int last = UTF8PROC_BOUNDCLASS_START;
    const utf8proc_ssize_t n = utf8proc_decompose_char(cp, parts, PARTS, how, &last);
    bool ok = true;
    for (utf8proc_ssize_t i = 0; ok && i < n && i < PARTS; i++) {
        char bytes[4];
        ok = add(f, bytes, pp_utf8_encode(parts[i], bytes), at);
    }
    return ok;
}

/* Invalid UTF-8 is kept as it is. False: out of memory; nothing needs to be freed then. */
static bool fold(const char *s, size_t n, struct folded *f)
{
    bool ok = true;
    *f = (struct folded){0};
    for (size_t i = 0, len; ok && i < n; i += len) {
        int32_t cp = (unsigned char)s[i];
        len = 1;
        if (cp < 0x80) {
            const char small = (char)(cp >= 'A' && cp <= 'Z' ? cp + ('a' - 'A') : cp);
            ok = add(f, &small, 1, i);
            continue;
        }
        len = pp_utf8_decode(s + i, n - i, &cp);
        ok = cp < 0 ? add(f, s + i, len, i) : add_char(f, cp, i);
    }
    ok = ok && pp_grow(&f->at, &f->cap_at, f->n + 1, sizeof *f->at) == 0;
    if (ok)
        f->at[f->n] = (uint32_t)n;
    else
        free_folded(f);
    return ok;
}

/* Whether a word may not begin after this byte. Non-ASCII characters are not considered: some scripts write words
 * without spaces. */
static bool is_inside(char before)
{
    return (before >= 'a' && before <= 'z') || (before >= '0' && before <= '9');
}

/* The next occurrence of a (non-empty) word at or after `from`; whole: only at the beginning of a word. n: none. */
static size_t next_occurrence(const struct folded *f, size_t from, const char *word, size_t len, bool whole)
{
    while (from < f->n) {
        const char *hit = memmem(f->text + from, f->n - from, word, len);
        const size_t at = hit ? (size_t)(hit - f->text) : f->n;
        if (!hit || !whole || !at || !is_inside(f->text[at - 1]))
            return at;
        from = at + 1;
    }
    return f->n;
}

/* The next word of the search at or after *at, and its length; false: there is none. */
static bool next_word(const struct folded *search, size_t *at, size_t *len)
{
    static const char between[] = " \t\n\r\"";
    while (*at < search->n && strchr(between, search->text[*at]))
        ++*at;
    for (*len = 0; *at + *len < search->n && !strchr(between, search->text[*at + *len]);)
        ++*len;
    return *len > 0;
}

bool pp_found_has_words(const char *search)
{
    const size_t n = strlen(search);
    for (size_t i = 0; i < n;) {
        int32_t cp;
        i += pp_utf8_decode(search + i, n - i, &cp);
        const utf8proc_category_t c = cp < 0 ? UTF8PROC_CATEGORY_CN : utf8proc_category(cp);
        if ((c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO) ||
            (c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO))
            return true;
    }
    return false;
}

static bool has_words(const struct folded *in, const struct folded *search)
{
    size_t at = 0, len, n = 0;
    for (; next_word(search, &at, &len); at += len, n++)
        if (next_occurrence(in, 0, search->text + at, len, true) == in->n)
            return false;
    return n > 0;
}

static bool has_phrase(const struct folded *in, const struct folded *search)
{
    return search->n && next_occurrence(in, 0, search->text, search->n, false) < in->n;
}

static bool search_in(const char *text, const char *search, bool (*has)(const struct folded *, const struct folded *))
{
    struct folded in, words;
    if (!fold(search, strlen(search), &words))
        return false;
    bool found = false;
    if (fold(text, strlen(text), &in)) {
        found = has(&in, &words);
        free_folded(&in);
    }
    free_folded(&words);
    return found;
}

bool pp_found_in(const char *text, const char *search)
{
    return search_in(text, search, has_words);
}

bool pp_found_phrase(const char *text, const char *search)
{
    return search_in(text, search, has_phrase);
}

/* Marks all occurrences of a word. */
static bool mark(const struct folded *in, const char *word, size_t len, bool whole, unsigned char *hit)
{
    bool any = false;
    for (size_t at = 0; (at = next_occurrence(in, at, word, len, whole)) < in->n; at++) {
        const size_t from = in->at[at], to = in->at[at + len];
        /* one character may fold to several, of which the word matches only the first */
        memset(hit + from, 1, to > from ? to - from : 1);
        any = true;
    }
    return any;
}

bool pp_found_mark(const char *s, size_t n, const char *search, bool phrase, unsigned char *hit)
{
    struct folded in, words;
    bool any = false;
    memset(hit, 0, n);
    if (!fold(search, strlen(search), &words))
        return false;
    if (fold(s, n, &in)) {
        size_t at = 0, len;
        if (phrase && words.n)
            any = mark(&in, words.text, words.n, false, hit);
        for (; !phrase && next_word(&words, &at, &len); at += len)
            any = mark(&in, words.text + at, len, true, hit) || any;
        free_folded(&in);
    }
    free_folded(&words);
    return any;
}
