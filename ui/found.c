#include "ui/found.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "engine/base/utf8.h"

/* In small letters without marks; free. NULL: no UTF-8, or out of memory. */
static char *fold(const char *s)
{
    utf8proc_uint8_t *folded = NULL;
    const utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)s, 0, &folded,
                                            UTF8PROC_NULLTERM | UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                UTF8PROC_CASEFOLD | UTF8PROC_STRIPMARK);
    return n < 0 ? NULL : (char *)folded;
}

/* Characters beyond ASCII may be letters or not, and words of some scripts stand one behind the other. */
static bool is_inside(char before)
{
    return (before >= 'a' && before <= 'z') || (before >= '0' && before <= '9');
}

static bool has_word(const char *text, const char *word)
{
    const char *at = strstr(text, word);
    while (at && at > text && is_inside(at[-1]))
        at = strstr(at + 1, word);
    return at;
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

bool pp_found_in(const char *text, const char *search)
{
    static const char between[] = " \t\n\r\"";
    char *in = fold(text), *words = fold(search), *rest = words;
    bool all = in && words && words[strspn(words, between)];
    for (char *word; all && (word = strsep(&rest, between));)
        all = !*word || has_word(in, word);
    free(in);
    free(words);
    return all;
}
