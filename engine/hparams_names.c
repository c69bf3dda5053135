/* hparams_names.c - names of models and files, made safe to display. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/part_name.h"
#include "engine/base/utf8.h"
#include "engine/hparams.h"

static bool printable(int32_t cp)
{
    bool control = cp < 0x20 || (cp >= 0x7f && cp < 0xa0) || cp == 0x2028 || cp == 0x2029;
    bool direction = cp == 0x200e || cp == 0x200f || (cp >= 0x202a && cp <= 0x202e) || (cp >= 0x2066 && cp <= 0x2069);
    return !control && !direction; /* invalid UTF-8 is decoded as -1, which counts as a control character */
}

void pp_clean_name(const char *s, size_t n, char *out, size_t out_size)
{
    size_t len = 0;
    for (size_t i = 0; i < n;) {
        int32_t cp;
        size_t bytes = pp_utf8_decode(s + i, n - i, &cp);
        bool good = printable(cp);
        size_t need = good ? bytes : 1;
        if (len + need >= out_size)
            break;
        memcpy(out + len, good ? s + i : "?", need);
        len += need;
        i += bytes;
    }
    out[len] = 0;
}

static bool is_lower_ascii(char c)
{
    return c >= 'a' && c <= 'z';
}

static bool is_letter_ascii(char c)
{
    return is_lower_ascii(c) || (c >= 'A' && c <= 'Z');
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Capitalises a word in place unless it has capitals of its own, or is a number or a version ("v2"). */
static void title_word(char *word, size_t n)
{
    bool lower = false;
    for (size_t i = 0; i < n; i++) {
        if (is_letter_ascii(word[i]) && !is_lower_ascii(word[i]))
            return;
        lower = lower || is_lower_ascii(word[i]);
    }
    if (!lower || is_digit(word[0]) || (word[0] == 'v' && n > 1 && is_digit(word[1])))
        return;
    for (size_t i = 0; i < n; i++)
        if (is_lower_ascii(word[i]) && (i == 0 || !is_letter_ascii(word[i - 1])))
            word[i] = (char)(word[i] - 'a' + 'A');
}

/* Whether it is "." or "..". */
static bool is_dots(const char *part, size_t n)
{
    return (n == 1 || n == 2) && part[0] == '.' && part[n - 1] == '.';
}

void pp_name_of_path(const char *path, char *out, size_t out_size)
{
    size_t n;
    const char *name = pp_path_name(path, &n);
    char *real = is_dots(name, n) ? realpath(path, NULL) : NULL;
    if (real)
        name = pp_path_name(real, &n);
    if (n > 5 && strncmp(name + n - 5, ".gguf", 5) == 0)
        n -= 5;
    pp_clean_name(name, n, out, out_size);
    free(real);
}

void pp_title_of_path(const char *path, char *out, size_t out_size)
{
    pp_name_of_path(path, out, out_size);
    size_t n = strlen(out), word = 0;
    for (size_t i = 0; i <= n; i++) {
        if (i < n && out[i] != '-' && out[i] != ' ')
            continue;
        title_word(out + word, i - word);
        if (i < n)
            out[i] = ' ';
        word = i + 1;
    }
}
