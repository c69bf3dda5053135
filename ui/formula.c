#include "ui/formula.h"

#include <stdbool.h>
#include <string.h>

#include "engine/base/mem.h"

/* The next `\` + mark at or after `at` whose backslash is not itself escaped; n: none. */
static size_t find_mark(const char *s, size_t n, size_t at, char mark)
{
    while (at + 1 < n) {
        const char *p = memchr(s + at, '\\', n - 1 - at);
        if (!p)
            return n;
        at = (size_t)(p - s);
        if (p[1] == mark)
            return at;
        at += 2;
    }
    return n;
}

static bool put(const char *s, size_t n, char **copy, size_t at, const char *mark)
{
    if (!*copy) {
        if (!(*copy = pp_malloc(n + 1)))
            return false;
        memcpy(*copy, s, n);
    }
    memcpy(*copy + at, mark, strlen(mark));
    return true;
}

/* Replaces pairs of \( \) or \[ \] by $$. False: out of memory. */
static bool mark_pairs(const char *s, size_t n, char open, char close, char **copy)
{
    for (size_t from = find_mark(s, n, 0, open); from < n;) {
        const size_t to = find_mark(s, n, from + 2, close);
        if (to == n)
            break;
        if (!put(s, n, copy, from, "$$") || !put(s, n, copy, to, "$$"))
            return false;
        from = find_mark(s, n, to + 2, open);
    }
    return true;
}

static bool is_blank(const char *s, size_t n, size_t at)
{
    return at >= n || strchr(" \t\r\n", s[at]);
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_word(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (unsigned char)c >= 0x80;
}

/* The next dollar sign that is neither escaped nor doubled. */
static size_t find_dollar(const char *s, size_t n, size_t at)
{
    for (; at < n; at++) {
        if (s[at] == '\\')
            at++;
        else if (s[at] == '$' && at + 1 < n && s[at + 1] == '$')
            at++;
        else if (s[at] == '$')
            return at;
    }
    return n;
}

static bool can_open(const char *s, size_t n, size_t at)
{
    return !is_blank(s, n, at + 1) && !(at && is_word(s[at - 1]));
}

static bool can_close(const char *s, size_t n, size_t at)
{
    return !is_blank(s, n, at - 1) && !(at + 1 < n && is_digit(s[at + 1]));
}

/* Replaces dollar signs that do not delimit a formula by %. False: out of memory. */
static bool mark_prices(const char *s, size_t n, char **copy)
{
    for (size_t at = find_dollar(s, n, 0), next; at < n; at = next) {
        next = find_dollar(s, n, at + 1);
        if (can_open(s, n, at) && next < n && can_close(s, n, next))
            next = find_dollar(s, n, next + 1);
        else if (!put(s, n, copy, at, "%"))
            return false;
    }
    return true;
}

static bool is_name(char c)
{
    return is_word(c) && (unsigned char)c < 0x80;
}

static bool is_alone(const char *s, size_t n, size_t at)
{
    return !(at > 0 && is_word(s[at - 1])) && !(at + 1 < n && is_word(s[at + 1]));
}

/* Whether `stars` asterisks at `at` mean multiplication. A single one: next to a digit or after a closing bracket,
 * or between two single letters, as in 2*3*4, (a+b)*3 + 4*(c+d), a*b; but *3* of 4 is emphasis. Two: before a digit,
 * as in x**2. */
static bool multiplies(const char *s, size_t n, size_t at, size_t stars)
{
    if (at == 0 || at + stars >= n)
        return false;
    const char before = s[at - 1], after = s[at + stars];
    const bool closed = before == ')' || before == ']';
    if (!is_name(before) && !closed)
        return false;
    if (stars == 2)
        return is_digit(after);
    if (!is_name(after) && after != '(')
        return false;
    return is_digit(before) || closed || is_digit(after) ||
           (after != '(' && is_alone(s, n, at - 1) && is_alone(s, n, at + 1));
}

/* Replaces asterisks that multiply by letters. False: out of memory. */
static bool mark_products(const char *s, size_t n, char **copy)
{
    size_t stars;
    for (const char *p = s; (p = memchr(p, '*', n - (size_t)(p - s))); p += stars) {
        const size_t at = (size_t)(p - s);
        for (stars = 1; at + stars < n && p[stars] == '*';)
            stars++;
        if (stars <= 2 && multiplies(s, n, at, stars) && !put(s, n, copy, at, stars == 2 ? "xx" : "x"))
            return false;
    }
    return true;
}

/* The length of a name such as __init__ at `at`: lower-case letters, digits and single underscores between double
 * underscores; 0: there is none. */
static size_t dunder(const char *s, size_t n, size_t at)
{
    size_t end = at + 2, letters = 0;
    if (at + 1 >= n || s[at + 1] != '_' || (at && (is_word(s[at - 1]) || s[at - 1] == '_')))
        return 0;
    for (; end < n && ((s[end] >= 'a' && s[end] <= 'z') || is_digit(s[end]) || (letters && s[end] == '_')); end++)
        letters += s[end] != '_';
    const bool closed = letters && end >= at + 5 && s[end - 1] == '_' && s[end - 2] == '_' && s[end - 3] != '_';
    return closed && !(end < n && is_word(s[end])) ? end - at : 0;
}

/* Replaces the underscores around such names by letters. False: out of memory. */
static bool mark_dunders(const char *s, size_t n, char **copy)
{
    size_t len;
    for (const char *p = s; (p = memchr(p, '_', n - (size_t)(p - s))); p += len ? len : 1) {
        const size_t at = (size_t)(p - s);
        len = dunder(s, n, at);
        if (len && (!put(s, n, copy, at, "xx") || !put(s, n, copy, at + len - 2, "xx")))
            return false;
    }
    return true;
}

/* Disables link reference definitions, "[1]: http://...", which Markdown would remove. False: out of memory. */
static bool mark_definitions(const char *s, size_t n, char **copy)
{
    for (const char *p = s; (p = memchr(p, ']', n - (size_t)(p - s))); p++)
        if ((size_t)(p - s) + 1 < n && p[1] == ':' && !put(s, n, copy, (size_t)(p - s) + 1, ";"))
            return false;
    return true;
}

/* --- backslashes ------------------------------------------------------------------------------------------------- */

static bool is_punctuation(char c)
{
    return c > ' ' && c < 0x7f && !is_word(c);
}

/* Whether a word (up to the next white space) has a backslash before a letter or digit, which is never an escape, or
 * begins with a drive: it is a path, a regular expression or a TeX command. */
static bool has_own_backslashes(const char *s, size_t from, size_t to)
{
    for (size_t i = from; i + 1 < to; i++) {
        if (s[i] != '\\')
            continue;
        const bool drive = i >= from + 2 && s[i - 1] == ':' && is_word(s[i - 2]) && !is_digit(s[i - 2]) &&
                           (i == from + 2 || !is_word(s[i - 3]));
        if (is_word(s[i + 1]) || (drive && s[i + 1] != '\\'))
            return true;
        i++;
    }
    return false;
}

/* Whether only marks of lists and quotes precede `at` in its line. */
static bool begins_line(const char *s, size_t at)
{
    while (at > 0 && strchr(" \t>*+-", s[at - 1]))
        at--;
    return at == 0 || s[at - 1] == '\n';
}

/* Whether the backslash at `at` escapes a character that could be markup there. # % & $ are special to TeX: models
 * write 50\% for 50%. */
static bool is_escape(const char *s, size_t at)
{
    const char c = s[at + 1];
    size_t number = at;
    if (strchr("*_[]~<>#$%&!`|", c))
        return true;
    if (strchr("+-=", c))
        return begins_line(s, at);
    while (number > 0 && is_digit(s[number - 1]))
        number--;
    return strchr(".)", c) && number < at && begins_line(s, number);
}

static bool mark_in_word(const char *s, size_t n, size_t from, size_t to, char **copy)
{
    const bool own = has_own_backslashes(s, from, to);
    for (size_t i = from; i < to; i++) {
        if (s[i] != '\\' || (*copy && (*copy)[i] != '\\')) /* no backslash, or part of a formula that was replaced */
            continue;
        const bool ends = i + 1 == to;
        if (!ends && !is_punctuation(s[i + 1]))
            continue;
        /* \| is left to tables, and \` may end a code span, where there are no escapes */
        const bool stays = ends ? own : s[i + 1] != '`' && s[i + 1] != '|' && (own || !is_escape(s, i));
        if (stays && !put(s, n, copy, i, ends ? "x" : "xx"))
            return false;
        i++;
    }
    return true;
}

/* Replaces backslashes that are not escapes, together with the character after them, by letters. False: out of
 * memory. */
static bool mark_backslashes(const char *s, size_t n, char **copy)
{
    for (size_t from = 0, to; from < n; from = to + 1) {
        for (to = from; !is_blank(s, n, to);)
            to++;
        if (to > from && memchr(s + from, '\\', to - from) && !mark_in_word(s, n, from, to, copy))
            return false;
    }
    return true;
}

char *pp_formula_dollars(const char *s, size_t n)
{
    char *copy = NULL;
    if (mark_pairs(s, n, '(', ')', &copy) && mark_pairs(s, n, '[', ']', &copy) && mark_prices(s, n, &copy) &&
        mark_products(s, n, &copy) && mark_dunders(s, n, &copy) && mark_definitions(s, n, &copy) &&
        mark_backslashes(s, n, &copy))
        return copy;
    pp_free(copy);
    return NULL;
}
