/* schema_text.c - strings and numbers of JSON as grammars: lengths, patterns, formats, ranges. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/schema_int.h"

enum { LAST = 0x10FFFF, DIGITS_MOST = 16, EXPONENT_MOST = 3 };

static uint32_t seq3(struct pp_builder *b, uint32_t x, uint32_t y, uint32_t z)
{
    return pp_gb_seq(b, x, pp_gb_seq(b, y, z));
}

static uint32_t range(struct pp_builder *b, int32_t first, int32_t last)
{
    struct pp_chars c = {first, last};
    return first > last ? PP_GX_NEVER : pp_gb_class(b, &c, 1, false);
}

static uint32_t one_of(struct pp_builder *b, const char *ascii)
{
    struct pp_chars c[128];
    size_t n = 0;
    for (; ascii[n]; n++)
        c[n] = (struct pp_chars){ascii[n], ascii[n]};
    return pp_gb_class(b, c, n, false);
}

static uint32_t digits(struct pp_builder *b, uint32_t least, uint32_t most)
{
    return pp_gb_repeat(b, range(b, '0', '9'), least, most);
}

/* --- characters of strings --------------------------------------------------------------------------------------- */

static const char escaped[] = "\"\\\b\f\n\r\t", escapes[] = "\"\\bfnrt";

static uint32_t hex(struct pp_builder *b, const char *digits_allowed)
{
    return one_of(b, digits_allowed);
}

#define HEX_BUT_0 "123456789abcdefABCDEF"
#define HEX "0" HEX_BUT_0

/* \uXXXX, and the pairs that spell characters beyond U+FFFF; not \u0000, at which C strings end. */
static uint32_t unicode_escape(struct pp_builder *b)
{
    const uint32_t any = hex(b, HEX), u = pp_gb_str(b, "\\u"), zero = pp_gb_str(b, "0"), some = hex(b, HEX_BUT_0),
                   d = one_of(b, "dD");
    uint32_t x = seq3(b, hex(b, "123456789abcefABCEF"), any, pp_gb_seq(b, any, any));
    x = pp_gb_alt(b, x, seq3(b, d, one_of(b, "01234567"), pp_gb_seq(b, any, any)));
    x = pp_gb_alt(b, x, seq3(b, zero, some, pp_gb_seq(b, any, any)));
    x = pp_gb_alt(b, x, seq3(b, zero, zero, pp_gb_seq(b, some, any)));
    x = pp_gb_alt(b, x, seq3(b, zero, zero, pp_gb_seq(b, zero, some)));
    const uint32_t high = seq3(b, d, one_of(b, "89abAB"), pp_gb_seq(b, any, any));
    const uint32_t low = seq3(b, d, one_of(b, "cdefCDEF"), pp_gb_seq(b, any, any));
    return pp_gb_seq(b, u, pp_gb_alt(b, x, seq3(b, high, u, low)));
}

uint32_t pp_schema_chars(struct pp_builder *b, uint32_t least, uint32_t most)
{
    struct pp_chars special[] = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
    const uint32_t plain = pp_gb_class(b, special, 3, true);
    const uint32_t escape = pp_gb_seq(b, pp_gb_str(b, "\\"), one_of(b, "\"\\/bfnrt"));
    return pp_gb_repeat(b, pp_gb_alt(b, plain, pp_gb_alt(b, escape, unicode_escape(b))), least, most);
}

static bool in_ranges(const struct pp_chars *c, size_t n, int32_t cp)
{
    size_t i = 0;
    while (i < n && (cp < c[i].first || cp > c[i].last))
        i++;
    return i < n;
}

/* A character of these ranges (or, negated, of no other) as JSON spells it: those with a short escape in that way,
 * other control characters not at all. */
static uint32_t spelled(struct pp_builder *b, struct pp_chars *c, size_t n, bool negated)
{
    uint32_t x = PP_GX_NEVER;
    for (size_t i = 0; escapes[i]; i++)
        if (in_ranges(c, n, escaped[i]) != negated)
            x = pp_gb_alt(b, x, pp_gb_seq(b, pp_gb_str(b, "\\"), range(b, escapes[i], escapes[i])));
    struct pp_chars *plain = pp_malloc((2 * n + 8) * sizeof *plain);
    size_t m = 0;
    if (!plain) {
        pp_gb_fail(b, PP_ERR_NOMEM, "out of memory for the grammar");
        return x;
    }
    if (negated) {
        for (; m < n; m++)
            plain[m] = c[m];
        plain[m++] = (struct pp_chars){0, 0x1F};
        plain[m++] = (struct pp_chars){'"', '"'};
        plain[m++] = (struct pp_chars){'\\', '\\'};
        x = pp_gb_alt(b, x, pp_gb_class(b, plain, m, true));
    } else {
        static const struct pp_chars allowed[] = {{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, LAST}};
        for (size_t i = 0; i < n; i++)
            for (size_t k = 0; k < 3; k++) {
                const int32_t first = c[i].first > allowed[k].first ? c[i].first : allowed[k].first;
                const int32_t last = c[i].last < allowed[k].last ? c[i].last : allowed[k].last;
                if (first > last)
                    continue;
                x = pp_gb_alt(b, x, range(b, first, last));
            }
    }
    pp_free(plain);
    return x;
}

/* --- keys -------------------------------------------------------------------------------------------------------- */

/* Keys that have the first `at` characters in common; those that end there are at the front of the sorted list. */
static uint32_t other_keys(struct pp_builder *b, const char *const *keys, size_t n, size_t at, unsigned depth)
{
    struct pp_chars *next = pp_malloc((n + 1) * sizeof *next);
    size_t n_next = 0, i = 0;
    uint32_t x = PP_GX_EMPTY;
    if (!next || depth > 150) {
        pp_free(next);
        pp_gb_fail(b, next ? PP_ERR_UNSUPPORTED : PP_ERR_NOMEM, "a property's name is too long");
        return x;
    }
    if (n && !keys[0][at]) {
        x = PP_GX_NEVER;
        for (i = 1; i < n && !keys[i][at]; i++)
            ;
    }
    while (i < n) {
        int32_t cp;
        const size_t len = pp_utf8_decode(keys[i] + at, strlen(keys[i] + at), &cp);
        size_t end = i + 1;
        while (end < n && strncmp(keys[end] + at, keys[i] + at, len) == 0)
            end++;
        next[n_next] = (struct pp_chars){cp, cp};
        const uint32_t this = spelled(b, &next[n_next++], 1, false);
        x = pp_gb_alt(b, x, pp_gb_seq(b, this, other_keys(b, keys + i, end - i, at + len, depth + 1)));
        i = end;
    }
    const uint32_t any = pp_gb_repeat(b, spelled(b, NULL, 0, true), 0, UINT32_MAX);
    x = pp_gb_alt(b, x, pp_gb_seq(b, spelled(b, next, n_next, true), any));
    pp_free(next);
    return x;
}

static int by_bytes(const void *x, const void *y)
{
    return strcmp(*(const char *const *)x, *(const char *const *)y);
}

uint32_t pp_schema_other_keys(struct pp_builder *b, const char *const *keys, size_t n)
{
    const char **sorted = pp_malloc((n + 1) * sizeof *sorted);
    if (!sorted) {
        pp_gb_fail(b, PP_ERR_NOMEM, "out of memory for the grammar");
        return PP_GX_EMPTY;
    }
    if (n)
        memcpy(sorted, keys, n * sizeof *keys);
    qsort(sorted, n, sizeof *sorted, by_bytes);
    const uint32_t x = other_keys(b, sorted, n, 0, 0);
    pp_free(sorted);
    return x;
}

/* --- patterns ---------------------------------------------------------------------------------------------------- */

/* A regular expression, in the part of ECMA-262 that doc/grammar.md describes. */
struct regex {
    struct pp_builder *b;
    const char *at;
    const char *wrong;
    unsigned depth;
};
struct piece {
    uint32_t x;
    uint64_t least, most; /* lengths; most UINT32_MAX: no limit */
};

static uint64_t capped(uint64_t n)
{
    return n < UINT32_MAX ? n : UINT32_MAX;
}

static void unsupported(struct regex *r, const char *what)
{
    if (!r->wrong)
        r->wrong = what;
}

enum { CLASS_MOST = 256 };
struct class {
    struct pp_chars c[CLASS_MOST];
    size_t n;
};

static void class_add(struct regex *r, struct class *k, int32_t first, int32_t last)
{
    if (k->n == CLASS_MOST)
        unsupported(r, "a class with so many characters");
    else
        k->c[k->n++] = (struct pp_chars){first, last};
}

/* \d \w \s: adds the class; their complements are only supported alone. */
static bool class_escape(struct regex *r, char c, struct class *k)
{
    if (c == 'd') {
        class_add(r, k, '0', '9');
    } else if (c == 'w') {
        class_add(r, k, '0', '9');
        class_add(r, k, 'A', 'Z');
        class_add(r, k, '_', '_');
        class_add(r, k, 'a', 'z');
    } else if (c == 's') {
        static const int32_t blanks[][2] = {{9, 13}, {32, 32}, {0xA0, 0xA0}, {0x1680, 0x1680}, {0x2000, 0x200A},
                                            {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000},
                                            {0xFEFF, 0xFEFF}};
        for (size_t i = 0; i < sizeof blanks / sizeof *blanks; i++)
            class_add(r, k, blanks[i][0], blanks[i][1]);
    } else {
        return false;
    }
    return true;
}

static int32_t hex_escape(struct regex *r, int n)
{
    int32_t v = 0;
    for (int i = 0; i < n; i++, r->at++) {
        const char c = *r->at;
        const int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (d < 0) {
            unsupported(r, "an incomplete \\x or \\u");
            return 0;
        }
        v = v * 16 + d;
    }
    if (v >= 0xD800 && v < 0xE000)
        unsupported(r, "\\u with half of a surrogate pair");
    return v;
}

/* The character after a backslash. */
static int32_t escaped_char(struct regex *r)
{
    const char c = *r->at ? *r->at++ : '\0';
    switch (c) {
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    case 'f': return '\f';
    case 'v': return '\v';
    case 'x': return hex_escape(r, 2);
    case 'u': return hex_escape(r, 4);
    default:
        if (!c || !strchr("^$\\.*+?()[]{}|/-\"'#&%!=<>@:;,_~` ", c))
            unsupported(r, "an escape other than \\d \\w \\s \\D \\W \\S \\n \\r \\t \\f \\v \\xHH \\uHHHH and "
                           "those of punctuation");
        return c;
    }
}

static int32_t next_char(struct regex *r)
{
    int32_t cp = 0;
    if (*r->at == '\\') {
        r->at++;
        return escaped_char(r);
    }
    r->at += pp_utf8_decode(r->at, strlen(r->at), &cp);
    if (cp < 0)
        unsupported(r, "bytes that are not UTF-8");
    return cp;
}

static uint32_t bracket(struct regex *r)
{
    struct class k = {.n = 0};
    const bool negated = *r->at == '^';
    r->at += negated;
    while (*r->at && *r->at != ']' && !r->wrong) {
        if (*r->at == '\\' && class_escape(r, r->at[1], &k)) {
            r->at += 2;
            continue;
        }
        const int32_t first = next_char(r);
        int32_t last = first;
        if (r->at[0] == '-' && r->at[1] && r->at[1] != ']') {
            r->at++;
            if (*r->at == '\\' && strchr("dwsDWS", r->at[1]))
                unsupported(r, "a range that ends with a class");
            last = next_char(r);
        }
        if (last < first)
            unsupported(r, "an empty range");
        class_add(r, &k, first, last);
    }
    if (*r->at != ']')
        unsupported(r, "[ without ]");
    else
        r->at++;
    return spelled(r->b, k.c, k.n, negated);
}

static struct piece alternatives(struct regex *r);

static struct piece group(struct regex *r)
{
    if (r->at[0] == '?' && r->at[1] == ':')
        r->at += 2;
    else if (r->at[0] == '?')
        unsupported(r, "a group that begins with (? other than (?:");
    if (++r->depth > 50)
        unsupported(r, "groups nested so deeply");
    struct piece p = {0};
    if (!r->wrong)
        p = alternatives(r);
    r->depth--;
    if (*r->at == ')')
        r->at++;
    else
        unsupported(r, "( without )");
    return p;
}

static struct piece atom(struct regex *r)
{
    struct piece p = {.least = 1, .most = 1};
    struct class k = {.n = 0};
    const char c = *r->at;
    if (c == '(') {
        r->at++;
        return group(r);
    }
    if (c == '[') {
        r->at++;
        p.x = bracket(r);
    } else if (c == '.') {
        r->at++;
        static const int32_t ends[] = {'\n', '\r', 0x2028, 0x2029};
        for (size_t i = 0; i < 4; i++)
            class_add(r, &k, ends[i], ends[i]);
        p.x = spelled(r->b, k.c, k.n, true);
    } else if (c == '\\' && class_escape(r, r->at[1], &k)) {
        r->at += 2;
        p.x = spelled(r->b, k.c, k.n, false);
    } else if (c == '\\' && r->at[1] && class_escape(r, (char)(r->at[1] | 0x20), &k) && strchr("DWS", r->at[1])) {
        r->at += 2;
        p.x = spelled(r->b, k.c, k.n, true);
    } else {
        if (strchr("*+?{}]^$", c))
            unsupported(r, c == '^' || c == '$' ? "^ or $ other than at the ends of the whole pattern, or of its "
                                                  "alternatives"
                                                : "* + ? { } or ] without a backslash where they mean nothing");
        const int32_t cp = next_char(r);
        class_add(r, &k, cp, cp);
        p.x = spelled(r->b, k.c, k.n, false);
    }
    return p;
}

static uint64_t number(struct regex *r)
{
    uint64_t v = 0;
    while (*r->at >= '0' && *r->at <= '9' && v <= PP_GRAMMAR_REPEAT_MOST)
        v = v * 10 + (uint64_t)(*r->at++ - '0');
    if (v > PP_GRAMMAR_REPEAT_MOST)
        unsupported(r, "more than 100,000 repetitions");
    return v;
}

static struct piece repeated(struct regex *r, struct piece p)
{
    uint64_t least = *r->at == '+', most = *r->at == '?' ? 1 : UINT32_MAX;
    if (*r->at != '*' && *r->at != '+' && *r->at != '?' && *r->at != '{')
        return p;
    if (*r->at++ == '{') {
        if (*r->at < '0' || *r->at > '9')
            unsupported(r, "{ without a number");
        least = most = number(r);
        if (*r->at == ',') {
            r->at++;
            most = *r->at == '}' ? UINT32_MAX : number(r);
        }
        if (*r->at != '}' || most < least)
            unsupported(r, "a repetition other than {m}, {m,} and {m,n}");
        else
            r->at++;
    }
    if (*r->at == '?') /* lazy: the same texts */
        r->at++;
    if (*r->at && strchr("*+?{", *r->at))
        unsupported(r, "a repetition of a repetition");
    if (r->wrong)
        return p;
    return (struct piece){.x = pp_gb_repeat(r->b, p.x, (uint32_t)least, (uint32_t)most),
                          .least = capped(p.least * least),
                          .most = p.most == UINT32_MAX || most == UINT32_MAX ? UINT32_MAX : capped(p.most * most)};
}

/* The whole of a pattern may have ^ and $ at the ends of each alternative; without, anything may be there. */
static struct piece sequence(struct regex *r, bool whole)
{
    struct piece p = {0};
    struct piece items[200];
    size_t n = 0;
    bool begins = !whole, ends = !whole;
    if (whole && *r->at == '^') {
        begins = true;
        r->at++;
    }
    while (*r->at && *r->at != '|' && *r->at != ')' && !r->wrong) {
        if (whole && *r->at == '$' && (!r->at[1] || r->at[1] == '|')) {
            ends = true;
            r->at++;
            break;
        }
        if (n == sizeof items / sizeof *items)
            unsupported(r, "more than 200 parts in a row");
        else
            items[n++] = repeated(r, atom(r));
    }
    const uint32_t any = begins && ends ? PP_GX_EMPTY : pp_schema_chars(r->b, 0, UINT32_MAX);
    p.x = ends ? PP_GX_EMPTY : any;
    p.most = begins && ends ? 0 : UINT32_MAX;
    while (n-- > 0) {
        p.x = pp_gb_seq(r->b, items[n].x, p.x);
        p.least = capped(p.least + items[n].least);
        p.most = p.most == UINT32_MAX || items[n].most == UINT32_MAX ? UINT32_MAX : capped(p.most + items[n].most);
    }
    p.x = begins ? p.x : pp_gb_seq(r->b, any, p.x);
    return p;
}

static struct piece alternatives_of(struct regex *r, bool whole)
{
    struct piece p = sequence(r, whole);
    while (*r->at == '|' && !r->wrong) {
        r->at++;
        const struct piece q = sequence(r, whole);
        p.x = pp_gb_alt(r->b, p.x, q.x);
        p.least = q.least < p.least ? q.least : p.least;
        p.most = q.most > p.most ? q.most : p.most;
    }
    return p;
}

static struct piece alternatives(struct regex *r)
{
    return alternatives_of(r, false);
}

uint32_t pp_schema_pattern(struct pp_builder *b, const char *pattern, uint32_t *least, uint32_t *most,
                           const char **wrong)
{
    struct regex r = {.b = b, .at = pattern};
    const struct piece p = alternatives_of(&r, true);
    if (*r.at)
        unsupported(&r, ") without (");
    *wrong = r.wrong;
    *least = (uint32_t)p.least;
    *most = (uint32_t)p.most;
    return p.x;
}

/* --- formats ----------------------------------------------------------------------------------------------------- */

/* Months of 31, 30 and 28 days, and the 29th of February in leap years. */
#define YEAR "[0-9]{4}"
#define DATE                                                                                                           \
    "(" YEAR "-(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|" YEAR "-(0[469]|11)-(0[1-9]|[12][0-9]|30)|" YEAR             \
    "-02-(0[1-9]|1[0-9]|2[0-8])|([0-9][0-9](0[48]|[2468][048]|[13579][26])|(0[048]|[2468][048]|[13579][26])00)-02-29)"
#define TIME                                                                                                           \
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+\\-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define BYTE "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])"
#define LABEL "[a-zA-Z0-9]([a-zA-Z0-9\\-]{0,20}[a-zA-Z0-9])?"
#define HOST "(" LABEL "\\.){0,6}[a-zA-Z]([a-zA-Z0-9]{0,20})"

uint32_t pp_schema_format(struct pp_builder *b, const char *format)
{
    static const struct {
        const char *name, *pattern;
    } formats[] = {
        {"date", "^" DATE "$"},
        {"time", "^" TIME "$"},
        {"date-time", "^" DATE "T" TIME "$"},
        {"uuid", "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"},
        {"ipv4", "^(" BYTE "\\.){3}" BYTE "$"},
        {"hostname", "^" HOST "$"},
        {"email", "^[a-zA-Z0-9_+\\-]{1,30}(\\.[a-zA-Z0-9_+\\-]{1,30}){0,3}@" LABEL "\\." HOST "$"},
        {"uri", "^(https?|ftp)://" HOST "(:[0-9]{2,5})?(/[a-zA-Z0-9_.~\\-]{0,80}){0,10}"
                "(\\?[a-zA-Z0-9_.~=&+\\-]{1,200})?(#[a-zA-Z0-9_.~\\-]{1,80})?$"},
        {"duration", "^P([0-9]{1,6}W|([0-9]{1,6}Y)([0-9]{1,6}M)?([0-9]{1,6}D)?|([0-9]{1,6}M)([0-9]{1,6}D)?|"
                     "[0-9]{1,6}D|([0-9]{1,6}D)?T([0-9]{1,6}H([0-9]{1,6}M([0-9]{1,6}S)?)?|"
                     "[0-9]{1,6}M([0-9]{1,6}S)?|[0-9]{1,6}S))$"},
    };
    uint32_t least, most;
    const char *wrong = NULL;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(format, formats[i].name) == 0)
            return pp_schema_pattern(b, formats[i].pattern, &least, &most, &wrong);
    return PP_GX_NEVER;
}

/* --- numbers ----------------------------------------------------------------------------------------------------- */

/* Numbers as digits without a sign: whole, and those after the point without zeros at the end. */
struct decimal {
    char whole[32], fraction[32];
};

static struct decimal decimal_of(double x)
{
    struct decimal d = {.fraction = ""};
    char text[64];
    x = fabs(x);
    for (int precision = 0; precision <= 20; precision++) {
        snprintf(text, sizeof text, "%.*f", precision, x);
        if (strtod(text, NULL) == x)
            break;
    }
    const size_t n = strcspn(text, ".");
    memcpy(d.whole, text, n < 31 ? n : 31);
    if (text[n]) {
        snprintf(d.fraction, sizeof d.fraction, "%.31s", text + n + 1);
        for (size_t k = strlen(d.fraction); k && d.fraction[k - 1] == '0';)
            d.fraction[--k] = '\0';
    }
    return d;
}

bool pp_schema_bounds_fit(const struct pp_bounds *r)
{
    return (!r->has_min || r->min < 1e16) && (!r->has_max || r->max > -1e16);
}

/* As many digits as s has, at least (or at most) s. */
static uint32_t same_length(struct pp_builder *b, const char *s, bool at_least)
{
    uint32_t x = PP_GX_EMPTY;
    for (size_t i = strlen(s); i-- > 0;) {
        const uint32_t rest = digits(b, (uint32_t)strlen(s + i + 1), (uint32_t)strlen(s + i + 1));
        const uint32_t off = at_least ? range(b, s[i] + 1, '9') : range(b, '0', s[i] - 1);
        x = pp_gb_alt(b, pp_gb_seq(b, off, rest), pp_gb_seq(b, range(b, s[i], s[i]), x));
    }
    return x;
}

/* Whole numbers lo .. hi of the same number of digits. */
static uint32_t between(struct pp_builder *b, const char *lo, const char *hi)
{
    size_t same = 0;
    while (lo[same] && lo[same] == hi[same])
        same++;
    if (!lo[same])
        return pp_gb_str(b, lo);
    const uint32_t n = (uint32_t)strlen(lo + same + 1);
    uint32_t x = pp_gb_seq(b, range(b, lo[same], lo[same]), same_length(b, lo + same + 1, true));
    x = pp_gb_alt(b, x, pp_gb_seq(b, range(b, lo[same] + 1, hi[same] - 1), digits(b, n, n)));
    x = pp_gb_alt(b, x, pp_gb_seq(b, range(b, hi[same], hi[same]), same_length(b, hi + same + 1, false)));
    return pp_gb_seq(b, pp_gb_bytes(b, lo, same), x);
}

/* Whole numbers lo .. hi, neither negative; hi < 0: those of up to 16 digits. */
static uint32_t whole_range(struct pp_builder *b, double lo, double hi)
{
    uint32_t x = PP_GX_NEVER;
    if (hi < 0 || hi > 9999999999999999.0)
        hi = 9999999999999999.0;
    if (lo > hi)
        return x;
    const struct decimal a = decimal_of(lo), z = decimal_of(hi);
    for (size_t n = strlen(a.whole); n <= strlen(z.whole) && n <= DIGITS_MOST; n++) {
        char first[32] = "1", last[32] = "";
        memset(first + 1, '0', n - 1);
        memset(last, '9', n);
        first[n] = last[n] = '\0';
        x = pp_gb_alt(b, x, between(b, n == strlen(a.whole) ? a.whole : first, n == strlen(z.whole) ? z.whole : last));
    }
    return x;
}

uint32_t pp_schema_integer(struct pp_builder *b, const struct pp_bounds *r)
{
    double lo = r->has_min ? ceil(r->min) : -1e17, hi = r->has_max ? floor(r->max) : 1e17;
    if (r->has_min && r->above && lo == r->min)
        lo += 1;
    if (r->has_max && r->below && hi == r->max)
        hi -= 1;
    uint32_t x = PP_GX_NEVER;
    if (lo > hi)
        return x;
    if (hi >= 0)
        x = whole_range(b, lo > 0 ? lo : 0, hi < 1e16 ? hi : -1);
    if (lo < 0) {
        const double least = hi < 0 ? -hi : 1;
        x = pp_gb_alt(b, x, pp_gb_seq(b, pp_gb_str(b, "-"), whole_range(b, least, lo > -1e16 ? -lo : -1)));
    }
    return x;
}

/* Digits after a point such that the fraction is at least f (or more than it). */
static uint32_t fraction_from(struct pp_builder *b, const char *f, bool more)
{
    const uint32_t any = digits(b, 0, DIGITS_MOST);
    const uint32_t some = seq3(b, pp_gb_repeat(b, range(b, '0', '0'), 0, 8), range(b, '1', '9'), any);
    uint32_t x = more ? some : any;
    for (size_t i = strlen(f); i-- > 0;)
        x = pp_gb_alt(b, pp_gb_seq(b, range(b, f[i] + 1, '9'), any), pp_gb_seq(b, range(b, f[i], f[i]), x));
    return x;
}

/* ... at most f (or less than it), and not empty. f is not "". */
static uint32_t fraction_to(struct pp_builder *b, const char *f, bool less)
{
    const uint32_t any = digits(b, 0, DIGITS_MOST), zeros = pp_gb_repeat(b, range(b, '0', '0'), 0, DIGITS_MOST);
    uint32_t x = less ? PP_GX_NEVER : zeros;
    for (size_t i = strlen(f); i-- > 0;) {
        x = pp_gb_alt(b, pp_gb_seq(b, range(b, '0', f[i] - 1), any), pp_gb_seq(b, range(b, f[i], f[i]), x));
        if (i > 0)
            x = pp_gb_alt(b, x, PP_GX_EMPTY); /* fewer digits are less */
    }
    return x;
}

static uint32_t point(struct pp_builder *b, uint32_t fraction)
{
    return pp_gb_seq(b, pp_gb_str(b, "."), fraction);
}

/* Numbers without a sign from lo to hi (hi < 0: no limit). */
static uint32_t magnitude(struct pp_builder *b, double lo, bool above, double hi, bool below)
{
    const uint32_t any = pp_gb_optional(b, point(b, digits(b, 1, DIGITS_MOST)));
    const struct decimal a = decimal_of(lo), z = decimal_of(hi < 0 ? 0 : hi);
    const double a_whole = floor(lo), z_whole = floor(hi);
    if (hi >= 0 && (lo > hi || (lo == hi && (above || below))))
        return PP_GX_NEVER;
    if (hi >= 0 && a_whole == z_whole) {
        /* both bounds within one whole number: only what can be told without comparing two fractions */
        if (!a.fraction[0] && !above && !z.fraction[0])
            return pp_gb_seq(b, pp_gb_str(b, a.whole), pp_gb_optional(b, point(b, pp_gb_repeat(b, range(b, '0', '0'), 1,
                                                                                              DIGITS_MOST))));
        if (!a.fraction[0] && !above)
            return pp_gb_seq(b, pp_gb_str(b, a.whole), pp_gb_optional(b, point(b, fraction_to(b, z.fraction, below))));
        pp_gb_fail(b, PP_ERR_UNSUPPORTED, "bounds of a number that are so close together");
        return PP_GX_NEVER;
    }
    uint32_t x = pp_gb_seq(b, whole_range(b, a_whole + 1, hi < 0 ? -1 : z_whole - 1), any);
    if (hi >= 0 && z_whole - 1 < a_whole + 1)
        x = PP_GX_NEVER;
    /* the lowest whole number */
    if (!a.fraction[0] && !above)
        x = pp_gb_alt(b, x, pp_gb_seq(b, pp_gb_str(b, a.whole), any));
    else
        x = pp_gb_alt(b, x, seq3(b, pp_gb_str(b, a.whole), pp_gb_str(b, "."), fraction_from(b, a.fraction, above)));
    if (hi < 0)
        return x;
    /* the highest */
    const uint32_t zeros = pp_gb_optional(b, point(b, pp_gb_repeat(b, range(b, '0', '0'), 1, DIGITS_MOST)));
    if (z.fraction[0])
        x = pp_gb_alt(b, x, pp_gb_seq(b, pp_gb_str(b, z.whole),
                                      pp_gb_optional(b, point(b, fraction_to(b, z.fraction, below)))));
    else if (!below)
        x = pp_gb_alt(b, x, pp_gb_seq(b, pp_gb_str(b, z.whole), zeros));
    return x;
}

uint32_t pp_schema_number(struct pp_builder *b, const struct pp_bounds *r)
{
    uint32_t x = PP_GX_NEVER;
    const bool bounded = (r->has_min && r->min > -1e16) || (r->has_max && r->max < 1e16);
    if (!bounded) {
        const uint32_t exponent = seq3(b, one_of(b, "eE"), pp_gb_optional(b, one_of(b, "+-")),
                                       digits(b, 1, EXPONENT_MOST));
        const uint32_t whole = pp_gb_alt(b, pp_gb_str(b, "0"), pp_gb_seq(b, range(b, '1', '9'),
                                                                        digits(b, 0, DIGITS_MOST - 1)));
        return seq3(b, pp_gb_optional(b, pp_gb_str(b, "-")), whole,
                    pp_gb_seq(b, pp_gb_optional(b, point(b, digits(b, 1, DIGITS_MOST))),
                              pp_gb_optional(b, exponent)));
    }
    const bool some_max = r->has_max && r->max < 1e16, some_min = r->has_min && r->min > -1e16;
    if (!some_max || r->max >= 0)
        x = magnitude(b, some_min && r->min > 0 ? r->min : 0, some_min && r->min >= 0 && r->above,
                      some_max ? r->max : -1, r->below);
    if (!some_min || r->min < 0) {
        /* not -0, which is 0 */
        const bool negative = some_max && r->max < 0;
        const uint32_t m = magnitude(b, negative ? -r->max : 0, negative ? r->below : true, some_min ? -r->min : -1,
                                     r->above);
        x = pp_gb_alt(b, x, pp_gb_seq(b, pp_gb_str(b, "-"), m));
    }
    return x;
}
