#include "engine/jinja_lex.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/jinja_ast.h"
#include "engine/jinja_eval.h"

void jinja_lex_begin(struct jinja *j, struct jinja_lexer *lex, const char *source, size_t n)
{
    char *copy = jinja_alloc(j, n + 1), *to = copy;
    for (size_t i = 0; i < n; i++) {
        if (source[i] == '\r') {
            *to++ = '\n';
            i += i + 1 < n && source[i + 1] == '\n';
        } else {
            *to++ = source[i];
        }
    }
    if (to > copy && to[-1] == '\n')
        to--;
    *lex = (struct jinja_lexer){.p = copy, .end = to, .line = 1, .line_start = true};
}

static size_t bytes_left(const struct jinja_lexer *lex)
{
    return (size_t)(lex->end - lex->p);
}

static bool starts(const struct jinja_lexer *lex, const char *p, const char *what)
{
    size_t n = strlen(what);
    return (size_t)(lex->end - p) >= n && memcmp(p, what, n) == 0;
}

/* Moves on to `to`, counting lines. */
static void advance(struct jinja_lexer *lex, const char *to)
{
    for (; lex->p < to; lex->p++)
        lex->line += *lex->p == '\n';
    lex->line_start = lex->p[-1] == '\n';
}

static const char *skip_space(const char *p, const char *end)
{
    while (p < end) {
        int32_t cp;
        size_t len = pp_utf8_decode(p, (size_t)(end - p), &cp);
        if (!jinja_is_space(cp))
            break;
        p += len;
    }
    return p;
}

/* After the closing mark of a tag: applies "-", "+" and trim_blocks to the white space there. */
static const char *after_tag(const struct jinja_lexer *lex, const char *p, char sign, bool trim)
{
    if (sign == '-')
        return skip_space(p, lex->end);
    if (trim && sign != '+' && p < lex->end && *p == '\n')
        return p + 1;
    return p;
}

/* --- text between tags ---------------------------------------------------------------------------------- */

/* The next "{{", "{%" or "{#", or the end. */
static const char *find_tag(const struct jinja_lexer *lex)
{
    for (const char *p = lex->p; p + 1 < lex->end; p++) {
        p = memchr(p, '{', (size_t)(lex->end - p - 1));
        if (!p)
            break;
        if (p[1] == '{' || p[1] == '%' || p[1] == '#')
            return p;
    }
    return lex->end;
}

/* Length of the text before a tag: "-" strips all white space there, and a block or comment that is first in its line
 * loses its indentation. */
static size_t text_before(const struct jinja_lexer *lex, const char *text, const char *tag, bool line_start)
{
    size_t n = (size_t)(tag - text);
    char sign = tag + 2 < lex->end ? tag[2] : 0;
    if (sign == '-')
        return jinja_strip(jinja_str(text, n), jinja_none(), JINJA_STRIP_RIGHT).n;
    if (sign == '+' || tag[1] == '{')
        return n;
    const char *newline = memrchr(text, '\n', n);
    if (!newline && !line_start)
        return n;
    const char *from = newline ? newline + 1 : text;
    return skip_space(from, tag) == tag ? (size_t)(from - text) : n;
}

static void skip_comment(struct jinja *j, struct jinja_lexer *lex, const char *tag)
{
    const char *begin = tag + 2;
    if (begin < lex->end && (*begin == '-' || *begin == '+'))
        begin++;
    const char *end = memmem(begin, (size_t)(lex->end - begin), "#}", 2);
    if (begin == lex->end) { /* nothing is open */
        advance(lex, begin);
        return;
    }
    if (!end)
        jinja_fail(j, "a comment {# is not closed");
    char sign = end > begin ? end[-1] : 0;
    advance(lex, after_tag(lex, end + 2, sign, true));
}

/* "{%", sign, word, "%}" with white space in between. Returns what follows and the closing sign, or NULL. */
static const char *word_tag(const struct jinja_lexer *lex, const char *tag, const char *word, char *sign)
{
    const char *p = tag + 2;
    if (p < lex->end && (*p == '-' || *p == '+'))
        p++;
    p = skip_space(p, lex->end);
    if (!starts(lex, p, word))
        return NULL;
    p = skip_space(p + strlen(word), lex->end);
    *sign = p < lex->end && (*p == '-' || *p == '+') ? *p++ : 0;
    return starts(lex, p, "%}") ? p + 2 : NULL;
}

static struct jinja_token text_token(const struct jinja_lexer *lex, const char *text, size_t n)
{
    return (struct jinja_token){.kind = JINJA_TOK_TEXT, .line = lex->line, .s = text, .n = n};
}

static struct jinja_token raw_text(struct jinja *j, struct jinja_lexer *lex)
{
    const char *text = lex->p;
    for (const char *tag = text; (tag = memmem(tag, (size_t)(lex->end - tag), "{%", 2)); tag += 2) {
        char sign;
        const char *after = word_tag(lex, tag, "endraw", &sign);
        if (!after)
            continue;
        struct jinja_token token = text_token(lex, text, text_before(lex, text, tag, lex->line_start));
        advance(lex, after_tag(lex, after, sign, true));
        lex->raw = false;
        return token;
    }
    jinja_fail(j, "{%% raw %%} is not closed");
}

/* Text up to a tag, which is then entered; comments and the raw tag are handled here. The text may be empty. */
static struct jinja_token text_or_tag(struct jinja *j, struct jinja_lexer *lex)
{
    if (lex->raw && lex->p < lex->end)
        return raw_text(j, lex);
    const char *text = lex->p, *tag = find_tag(lex);
    if (tag == lex->end) {
        struct jinja_token token = text_token(lex, text, bytes_left(lex));
        if (token.n == 0)
            token.kind = JINJA_TOK_END;
        else
            advance(lex, lex->end);
        return token;
    }
    struct jinja_token token = text_token(lex, text, text_before(lex, text, tag, lex->line_start));
    char sign;
    const char *after;
    if (tag > text)
        advance(lex, tag);
    j->line = lex->line;
    if (tag[1] == '#') {
        skip_comment(j, lex, tag);
    } else if (tag[1] == '%' && (after = word_tag(lex, tag, "raw", &sign)) && sign != '+') {
        advance(lex, after_tag(lex, after, sign, false));
        lex->raw = true;
    } else {
        lex->inside = (uint8_t)tag[1];
        if (token.n == 0) {
            token.kind = tag[1] == '{' ? JINJA_TOK_PRINT_BEGIN : JINJA_TOK_BLOCK_BEGIN;
            token.line = lex->line;
            advance(lex, tag + 2 + (tag + 2 < lex->end && (tag[2] == '-' || tag[2] == '+')));
        } else {
            lex->inside |= 0x80; /* the tag is returned by the next call */
        }
    }
    return token;
}

static struct jinja_token enter_tag(struct jinja_lexer *lex)
{
    lex->inside &= 0x7F;
    struct jinja_token token = {.kind = lex->inside == '{' ? JINJA_TOK_PRINT_BEGIN : JINJA_TOK_BLOCK_BEGIN,
                                .line = lex->line};
    const char *p = lex->p + 2;
    advance(lex, p + (p < lex->end && (*p == '-' || *p == '+')));
    return token;
}

/* --- inside of tags ------------------------------------------------------------------------------------- */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_digit(c) || (unsigned char)c >= 0x80;
}

static void octal_or_hex(struct jinja *j, struct jinja_text *t, const char **p, const char *end, int base, int max)
{
    uint32_t cp = 0;
    char utf8[4];
    int n = 0;
    for (; n < max && *p < end; n++, (*p)++) {
        char c = **p;
        char lower = (char)(c | 0x20);
        int digit = is_digit(c) ? c - '0' : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : 99;
        if (digit >= base)
            break;
        cp = cp * (uint32_t)base + (uint32_t)digit;
    }
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF) || (base == 16 && n < max))
        jinja_fail(j, "an escape in a string gives no character");
    jinja_add(j, t, utf8, pp_utf8_encode((int32_t)cp, utf8));
}

/* s: the text between the quotes. Escapes as in Python; unknown ones are kept. */
static struct jinja_value unescape(struct jinja *j, const char *s, const char *end)
{
    static const char simple[] = "n\nt\tr\r\\\\''\"\"a\ab\bf\fv\v"; /* pairs: letter, character */
    struct jinja_text t = {0};
    if (!memchr(s, '\\', (size_t)(end - s)))
        return jinja_str(s, (size_t)(end - s));
    while (s < end) {
        const char *slash = memchr(s, '\\', (size_t)(end - s));
        jinja_add(j, &t, s, (size_t)((slash ? slash : end) - s));
        if (!slash)
            break;
        char c = slash[1]; /* exists: a backslash before the quote would have escaped it */
        s = slash + 2;
        const char *e = simple;
        while (*e && *e != c)
            e += 2;
        if (*e) {
            jinja_add_char(j, &t, e[1]);
        } else if (c == 'x' || c == 'u' || c == 'U') {
            octal_or_hex(j, &t, &s, end, 16, c == 'x' ? 2 : c == 'u' ? 4 : 8);
        } else if (c >= '0' && c <= '7') {
            s--;
            octal_or_hex(j, &t, &s, end, 8, 3);
        } else if (c != '\n') {
            jinja_add(j, &t, slash, 2);
        }
    }
    return jinja_text_value(j, &t);
}

static struct jinja_token string_token(struct jinja *j, struct jinja_lexer *lex)
{
    struct jinja_token token = {.kind = JINJA_TOK_CONST, .line = lex->line};
    char quote = *lex->p;
    const char *p = lex->p + 1;
    while (p < lex->end && *p != quote)
        p += *p == '\\' && p + 1 < lex->end ? 2 : 1;
    if (p >= lex->end)
        jinja_fail(j, "a string is not closed");
    token.constant = unescape(j, lex->p + 1, p);
    advance(lex, p + 1);
    return token;
}

/* Digits of the base, with single underscores between them, copied without these. */
static const char *digits(const char *p, const char *end, const char *allowed, char *to, size_t *n, size_t cap)
{
    while (p < end && *n + 2 < cap) {
        const char *q = *p == '_' && p + 1 < end ? p + 1 : p;
        if (!*q || !strchr(allowed, *q) || *q == '_')
            break;
        to[(*n)++] = *q;
        p = q + 1;
    }
    to[*n] = 0;
    return p;
}

static struct jinja_value large(struct jinja *j, const char *digits, int base)
{
    struct jinja_value v = jinja_int(0);
    if (base == 10)
        return jinja_big(j, digits, strlen(digits));
    for (; *digits; digits++) {
        const int digit = is_digit(*digits) ? *digits - '0' : (*digits | 0x20) - 'a' + 10;
        v = jinja_big_operate(j, JINJA_OP_MUL, v, jinja_int(base));
        v = jinja_big_operate(j, JINJA_OP_ADD, v, jinja_int(digit));
    }
    return v;
}

static struct jinja_token number_token(struct jinja *j, struct jinja_lexer *lex, bool after_dot)
{
    static const char decimal[] = "0123456789";
    struct jinja_token token = {.kind = JINJA_TOK_CONST, .line = lex->line};
    char copy[512];
    size_t n = 0;
    int base = 10;
    bool whole = true;
    const char *p = lex->p;
    char letter = p + 1 < lex->end && *p == '0' ? (char)(p[1] | 0x20) : 0;
    if (letter == 'x' || letter == 'o' || letter == 'b') {
        base = letter == 'x' ? 16 : letter == 'o' ? 8 : 2;
        const char *allowed = base == 16 ? "0123456789abcdefABCDEF" : base == 8 ? "01234567" : "01";
        p = digits(p + 2, lex->end, allowed, copy, &n, sizeof copy);
    } else {
        p = digits(p, lex->end, decimal, copy, &n, sizeof copy);
        if (!after_dot && p + 1 < lex->end && *p == '.' && is_digit(p[1])) {
            whole = false;
            copy[n++] = '.';
            p = digits(p + 1, lex->end, decimal, copy, &n, sizeof copy);
        }
        const char *e = p < lex->end && (*p == 'e' || *p == 'E') ? p + 1 : NULL;
        if (e && e < lex->end && (*e == '+' || *e == '-'))
            e++;
        if (!after_dot && e && e < lex->end && is_digit(*e) && n + 3 < sizeof copy) {
            whole = false;
            copy[n++] = 'e';
            if (e[-1] != 'e' && e[-1] != 'E')
                copy[n++] = e[-1];
            p = digits(e, lex->end, decimal, copy, &n, sizeof copy);
        }
    }
    if (n == 0 || n + 3 >= sizeof copy)
        jinja_fail(j, "a malformed or very long number");
    errno = 0;
    token.constant = whole ? jinja_int(strtoll(copy, NULL, base)) : jinja_float(strtod(copy, NULL));
    if (whole && errno)
        token.constant = large(j, copy, base);
    advance(lex, p);
    return token;
}

static void match_bracket(struct jinja *j, struct jinja_lexer *lex, char c)
{
    static const char pairs[] = "()[]{}";
    const char *at = strchr(pairs, c);
    if (!at)
        return;
    if ((at - pairs) % 2 == 0) {
        if (lex->n_brackets == sizeof lex->brackets)
            jinja_fail(j, "more than %d brackets inside each other", JINJA_MAX_NESTING);
        lex->brackets[lex->n_brackets++] = at[1];
    } else if (lex->n_brackets == 0 || lex->brackets[--lex->n_brackets] != c) {
        jinja_fail(j, "the bracket '%c' closes nothing", c);
    }
}

static struct jinja_token operator_token(struct jinja *j, struct jinja_lexer *lex)
{
    static const char *const operators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]",
                                            "(",  ")",  "{",  "}",  ">",  "<",  "=", ".", ":", "|", ",", ";"};
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
        if (!starts(lex, lex->p, operators[i]))
            continue;
        size_t n = strlen(operators[i]);
        struct jinja_token token = {.kind = JINJA_TOK_OPERATOR, .line = lex->line, .s = lex->p, .n = n};
        if (n == 1)
            match_bracket(j, lex, *lex->p);
        advance(lex, lex->p + n);
        return token;
    }
    jinja_fail(j, "unexpected character with the code 0x%02x", (unsigned)(unsigned char)*lex->p);
}

/* "}}" or "%}" with its sign, when no bracket is open. */
static bool tag_end(struct jinja_lexer *lex, struct jinja_token *token)
{
    bool print = lex->inside == '{';
    const char *p = lex->p;
    char sign = *p == '-' || (*p == '+' && !print) ? *p++ : 0;
    if (lex->n_brackets || !starts(lex, p, print ? "}}" : "%}"))
        return false;
    *token = (struct jinja_token){.kind = print ? JINJA_TOK_PRINT_END : JINJA_TOK_BLOCK_END, .line = lex->line};
    advance(lex, after_tag(lex, p + 2, sign, !print));
    lex->inside = 0;
    return true;
}

struct jinja_token jinja_lex_next(struct jinja *j, struct jinja_lexer *lex)
{
    struct jinja_token token;
    j->line = lex->line;
    if (lex->inside & 0x80)
        return enter_tag(lex);
    if (!lex->inside) {
        do
            token = text_or_tag(j, lex);
        while (token.kind == JINJA_TOK_TEXT && token.n == 0);
        return token;
    }
    const char *p = skip_space(lex->p, lex->end);
    bool after_dot = lex->p[-1] == '.';
    if (p > lex->p)
        advance(lex, p);
    j->line = lex->line;
    if (p == lex->end)
        jinja_fail(j, "the tag %s is not closed", lex->inside == '{' ? "{{" : "{%");
    if (tag_end(lex, &token))
        return token;
    if (*p == '\'' || *p == '"')
        return string_token(j, lex);
    if (is_digit(*p))
        return number_token(j, lex, after_dot);
    if (!is_name(*p))
        return operator_token(j, lex);
    while (p < lex->end && is_name(*p))
        p++;
    token = (struct jinja_token){.kind = JINJA_TOK_NAME, .line = lex->line, .s = lex->p, .n = (size_t)(p - lex->p)};
    advance(lex, p);
    return token;
}
