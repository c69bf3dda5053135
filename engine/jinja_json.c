/* jinja_json.c - JSON (RFC 8259) to values. The other parts' JSON library turns every number into a double; templates
 * print numbers, so "1", "1.0" and integers beyond 2^53 must keep their forms. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/utf8.h"
#include "engine/jinja_value.h"

struct reader {
    const char *p, *end;
    const char *what;
    unsigned depth;
};

/* Fails with an error about the input, not the template. */
static void blame(struct jinja *j, const struct reader *r)
{
    j->line = 0;
    j->name = r->what;
}

static _Noreturn void malformed(struct jinja *j, const struct reader *r, const char *why)
{
    blame(j, r);
    jinja_fail(j, "not valid JSON: %s", why);
}

static struct jinja_value read_value(struct jinja *j, struct reader *r);

static void skip_space(struct reader *r)
{
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\t' || *r->p == '\n' || *r->p == '\r'))
        r->p++;
}

static bool take(struct reader *r, char c)
{
    skip_space(r);
    if (r->p == r->end || *r->p != c)
        return false;
    r->p++;
    return true;
}

static bool take_word(struct reader *r, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(r->end - r->p) < n || memcmp(r->p, word, n) != 0)
        return false;
    r->p += n;
    return true;
}

static int32_t read_hex4(struct jinja *j, struct reader *r)
{
    int32_t v = 0;
    if (r->end - r->p < 4)
        malformed(j, r, "a \\u escape is cut short");
    for (int i = 0; i < 4; i++) {
        char c = *r->p++;
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
                  : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0)
            malformed(j, r, "a \\u escape has characters that are not hex digits");
        v = v * 16 + digit;
    }
    return v;
}

/* A surrogate without its partner becomes the replacement character. */
static int32_t read_unicode(struct jinja *j, struct reader *r)
{
    int32_t cp = read_hex4(j, r);
    if (cp == 0) {
        blame(j, r);
        jinja_fail(j, PP_JSON_NUL_TEXT);
    }
    if (cp < 0xD800 || cp > 0xDFFF)
        return cp;
    if (cp <= 0xDBFF && r->end - r->p >= 6 && r->p[0] == '\\' && r->p[1] == 'u') {
        const char *back = r->p;
        r->p += 2;
        int32_t low = read_hex4(j, r);
        if (low >= 0xDC00 && low <= 0xDFFF)
            return 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
        r->p = back;
    }
    return 0xFFFD;
}

static void read_escape(struct jinja *j, struct reader *r, struct jinja_text *t)
{
    char c = r->p < r->end ? *r->p++ : 0, utf8[4];
    switch (c) {
    case '"':
    case '\\':
    case '/': jinja_add_char(j, t, c); break;
    case 'n': jinja_add_char(j, t, '\n'); break;
    case 't': jinja_add_char(j, t, '\t'); break;
    case 'r': jinja_add_char(j, t, '\r'); break;
    case 'b': jinja_add_char(j, t, '\b'); break;
    case 'f': jinja_add_char(j, t, '\f'); break;
    case 'u': jinja_add(j, t, utf8, pp_utf8_encode(read_unicode(j, r), utf8)); break;
    default: malformed(j, r, "unknown escape in a string");
    }
}

/* After the opening quote. A string without escapes is not copied. */
static struct jinja_value read_string(struct jinja *j, struct reader *r)
{
    struct jinja_text t = {0};
    const char *begin = r->p;
    for (;;) {
        while (r->p < r->end && *r->p != '"' && *r->p != '\\' && (unsigned char)*r->p >= 0x20)
            r->p++;
        if (r->p == r->end)
            malformed(j, r, "a string does not end");
        if ((unsigned char)*r->p < 0x20)
            malformed(j, r, "a control character in a string");
        if (*r->p == '"')
            break;
        jinja_add(j, &t, begin, (size_t)(r->p - begin));
        r->p++;
        read_escape(j, r, &t);
        begin = r->p;
    }
    size_t n = (size_t)(r->p++ - begin);
    if (!t.p)
        return jinja_str(begin, n);
    jinja_add(j, &t, begin, n);
    return jinja_text_value(j, &t);
}

static const char *skip_digits(const char *s)
{
    return s + strspn(s, "0123456789");
}

/* Whether it is a number by RFC 8259; C's functions accept more. */
static bool is_number(const char *s)
{
    s += *s == '-';
    const char *end = skip_digits(s);
    if (end == s || (*s == '0' && end - s > 1))
        return false;
    if (*end == '.') {
        s = end + 1;
        if ((end = skip_digits(s)) == s)
            return false;
    }
    if (*end == 'e' || *end == 'E') {
        s = end + 1;
        s += *s == '+' || *s == '-';
        if ((end = skip_digits(s)) == s)
            return false;
    }
    return *end == 0;
}

static struct jinja_value read_number(struct jinja *j, struct reader *r)
{
    char copy[512];
    const char *begin = r->p;
    bool whole = true;
    for (; r->p < r->end && strchr("+-.0123456789eE", *r->p) && *r->p; r->p++)
        if (*r->p == '.' || *r->p == 'e' || *r->p == 'E')
            whole = false;
    size_t n = (size_t)(r->p - begin);
    if (n == 0)
        malformed(j, r, "a value is missing");
    if (n >= sizeof copy)
        malformed(j, r, "a number is too long");
    memcpy(copy, begin, n);
    copy[n] = 0;
    if (!is_number(copy))
        malformed(j, r, "a malformed number");
    if (!whole)
        return jinja_float(strtod(copy, NULL));
    errno = 0;
    const long long i = strtoll(copy, NULL, 10);
    return errno == ERANGE ? jinja_big(j, copy, n) : jinja_int(i);
}

static struct jinja_value read_list(struct jinja *j, struct reader *r)
{
    struct jinja_list *list = jinja_list(j);
    if (take(r, ']'))
        return jinja_wrap(JINJA_LIST, list);
    do
        jinja_push(j, list, read_value(j, r));
    while (take(r, ','));
    if (!take(r, ']'))
        malformed(j, r, "a list lacks its ]");
    return jinja_wrap(JINJA_LIST, list);
}

static struct jinja_value read_dict(struct jinja *j, struct reader *r)
{
    struct jinja_dict *d = jinja_dict(j);
    if (!take(r, '}')) {
        do {
            if (!take(r, '"'))
                malformed(j, r, "a key is not a string");
            struct jinja_value key = read_string(j, r);
            if (!take(r, ':'))
                malformed(j, r, "a key lacks its colon");
            jinja_dict_set(j, d, key, read_value(j, r));
        } while (take(r, ','));
        if (!take(r, '}'))
            malformed(j, r, "an object lacks its }");
    }
    return (struct jinja_value){.kind = JINJA_DICT, .dict = d};
}

static struct jinja_value read_value(struct jinja *j, struct reader *r)
{
    struct jinja_value v;
    if (++r->depth > JINJA_MAX_VALUE_DEPTH)
        malformed(j, r, "it is nested too deeply");
    skip_space(r);
    if (take(r, '"'))
        v = read_string(j, r);
    else if (take(r, '['))
        v = read_list(j, r);
    else if (take(r, '{'))
        v = read_dict(j, r);
    else if (take_word(r, "true"))
        v = jinja_bool(true);
    else if (take_word(r, "false"))
        v = jinja_bool(false);
    else if (take_word(r, "null"))
        v = jinja_none();
    else
        v = read_number(j, r);
    r->depth--;
    return v;
}

struct jinja_value jinja_from_json(struct jinja *j, const char *text, size_t n, const char *what)
{
    struct reader r = {.p = text, .end = text + n, .what = what};
    struct jinja_value v = read_value(j, &r);
    skip_space(&r);
    if (r.p != r.end)
        malformed(j, &r, "there is text after its end");
    j->steps = 0; /* large conversations do not count against the template */
    return v;
}
