#include "src/title.h"

#include <stdbool.h>
#include <string.h>

#include "engine/base/utf8.h"

enum { MAX_CHARACTERS = 60 };

static const char cut_mark[] = "…";

static size_t run_of(const char *s, size_t n, int first, int last)
{
    size_t i = 0;
    while (i < n && (unsigned char)s[i] >= first && (unsigned char)s[i] <= last)
        i++;
    return i;
}

enum { ESC = 0x1b, BEL = 7 };

static bool ends_string(const char *s, size_t n)
{
    return s[0] == BEL || (n > 1 && s[0] == ESC && s[1] == '\\');
}

/* Length of the terminal escape sequence that begins at text[at], or 0 (ECMA-48, 5.3 to 5.6): ESC [ parameters, ESC
 * ] string up to BEL or ESC \, or ESC with another character. If a string is too long or does not end, only its
 * introducer counts. *end: the first end of a string at or after `at`, kept between calls so that the text is
 * searched only once, however many strings begin. */
static size_t escape_sequence(const char *text, size_t at, size_t n_text, size_t *end)
{
    enum { LIMIT = 4096 };
    const char *s = text + at;
    const size_t n = n_text - at;
    if (n < 2 || s[0] != ESC)
        return 0;
    if (s[1] == '[') {
        size_t len = 2 + run_of(s + 2, n - 2, 0x20, 0x3f);
        return len + run_of(s + len, len < n, 0x40, 0x7e);
    }
    if (memchr("]PX^_", s[1], 5)) {
        if (*end < at + 2)
            *end = at + 2;
        while (*end < n_text && !ends_string(text + *end, n_text - *end))
            ++*end;
        if (*end < n_text && *end - at < LIMIT)
            return *end - at + 1 + (text[*end] == ESC);
    }
    const size_t len = 1 + run_of(s + 1, n - 1, 0x20, 0x2f);
    return len + run_of(s + len, len < n, 0x30, 0x7e);
}

void pp_title(const char *text, size_t n, char out[PP_TITLE_BYTES])
{
    size_t len = 0;
    int characters = 0;
    bool space = false, cut = false;
    size_t end = 0;
    for (size_t i = 0; i < n;) {
        const size_t escape = escape_sequence(text, i, n, &end);
        if (escape) {
            i += escape;
            continue;
        }
        int32_t cp;
        size_t bytes = pp_utf8_decode(text + i, n - i, &cp);
        const char *piece = text + i;
        i += bytes;
        if (cp <= ' ' || cp == 0x7f || (cp >= 0x80 && cp < 0xa0)) { /* includes invalid UTF-8 */
            space = len > 0;
            continue;
        }
        cut = characters + space >= MAX_CHARACTERS || len + space + bytes + sizeof cut_mark > PP_TITLE_BYTES;
        if (cut)
            break;
        if (space)
            out[len++] = ' ';
        memcpy(out + len, piece, bytes);
        len += bytes;
        characters += 1 + space;
        space = false;
    }
    out[len] = 0;
    if (cut)
        strcpy(out + len, cut_mark);
}
