#include "engine/base/word.h"

#include <stdint.h>
#include <string.h>

char pp_lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

int pp_ncasecmp(const char *a, const char *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const int order = (unsigned char)pp_lower(a[i]) - (unsigned char)pp_lower(b[i]);
        if (order || !a[i])
            return order;
    }
    return 0;
}

int pp_casecmp(const char *a, const char *b)
{
    return pp_ncasecmp(a, b, SIZE_MAX);
}

const char *pp_casestr(const char *s, const char *word)
{
    const size_t n = strlen(word);
    for (; pp_ncasecmp(s, word, n) != 0; s++)
        if (!*s)
            return NULL;
    return s;
}

bool pp_case_ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s), m = strlen(end);
    return n >= m && pp_casecmp(s + n - m, end) == 0;
}

bool pp_ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s), m = strlen(end);
    return n >= m && memcmp(s + n - m, end, m) == 0;
}
