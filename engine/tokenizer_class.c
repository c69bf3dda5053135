/* tokenizer_class.c - patterns that are a run of characters of one class, read from the regular expression.
 *
 *     pattern = [lead "?"] class ("+" | "{" least "," most "}" | ) | class class ...   (the same one several times)
 *     lead    = " " | class
 *     class   = "\p{" L, M, N, P or S "}" | "[" ["^"] items "]"
 *     item    = "\p{...}" | character ["-" character]
 *     character = itself | "\x{" hex "}" | "\t" | "\n" | "\r" | "\f" | "\" and a sign
 *
 * Anything else is left to regular expressions. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer_internal.h"

enum { MOST_LEAST = 16 }; /* longest minimum of a run: a shorter run is read again from its next character */

struct range {
    int32_t from, to;
};

struct set {
    uint64_t ascii[2];    /* a bit for each character, with `negated` applied */
    unsigned classes;     /* enum tok_char_class */
    struct range *ranges; /* [n] ascending, disjoint */
    size_t n, cap;
    bool negated;
};

struct tok_runs {
    struct set lead, set; /* lead: a character that may precede the run */
    bool has_lead;
    size_t least, most;   /* characters */
};

/* --- membership ---------------------------------------------------------------------------------------- */

static bool in_ranges(const struct set *s, int32_t c)
{
    size_t lo = 0, hi = s->n;
    while (lo < hi) {
        const size_t middle = lo + (hi - lo) / 2;
        if (c >= s->ranges[middle].from && c <= s->ranges[middle].to)
            return true;
        if (c < s->ranges[middle].from)
            hi = middle;
        else
            lo = middle + 1;
    }
    return false;
}

static bool has(const struct set *s, int32_t c)
{
    return ((tok_char_class(c) & s->classes) != 0 || in_ranges(s, c)) != s->negated;
}

/* Whether the character at p is in the set, and its length. */
static inline bool member(const struct set *s, const char *p, const char *end, size_t *width)
{
    const uint8_t byte = (uint8_t)*p;
    int32_t c;
    *width = 1;
    if (byte < 128)
        return s->ascii[byte >> 6] >> (byte & 63) & 1;
    *width = pp_utf8_decode(p, (size_t)(end - p), &c);
    return has(s, c);
}

/* --- matching ------------------------------------------------------------------------------------------ */

/* Where the run at p ends; NULL: it is too short. */
static const char *run(const struct tok_runs *r, const char *p, const char *end)
{
    size_t count = 0, width;
    for (; p < end && count < r->most && member(&r->set, p, end, &width); count++)
        p += width;
    return count >= r->least ? p : NULL;
}

const char *tok_runs_find(const struct tok_runs *r, const char *p, const char *end, const char **stop)
{
    for (size_t width; p < end; p += width) {
        *stop = NULL;
        if (r->has_lead && member(&r->lead, p, end, &width) && p + width < end)
            *stop = run(r, p + width, end);
        if (!*stop && member(&r->set, p, end, &width))
            *stop = run(r, p, end);
        if (*stop)
            return p;
    }
    return NULL;
}

/* --- reading a pattern --------------------------------------------------------------------------------- */

struct reader {
    const char *p, *end;
    bool no_memory;
};

static bool take(struct reader *r, char c)
{
    const bool there = r->p < r->end && *r->p == c;
    r->p += there;
    return there;
}

/* Digits of a number up to `most`. */
static bool read_number(struct reader *r, unsigned base, int32_t most, int32_t *value)
{
    const char *const begin = r->p;
    for (*value = 0; r->p < r->end; r->p++) {
        const char c = *r->p;
        const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10 : 16;
        if (digit >= (int)base)
            break;
        *value = *value * (int)base + digit;
        if (*value > most)
            return false;
    }
    return r->p > begin;
}

/* Reads what follows "\p". */
static bool read_property(struct reader *r, unsigned *classes)
{
    static const struct { char name; unsigned classes; } known[] = {
        {'L', TOK_LETTER}, {'M', TOK_MARK}, {'N', TOK_NUMBER}, {'P', TOK_PUNCT}, {'S', TOK_SYMBOL},
    };
    if (!take(r, '{') || r->p == r->end)
        return false;
    const char name = *r->p++;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].name == name) {
            *classes |= known[i].classes;
            return take(r, '}');
        }
    return false;
}

/* Reads an escape that is no property. */
static bool read_escape(struct reader *r, int32_t *c)
{
    static const char names[] = "tnrf", values[] = "\t\n\r\f";
    if (r->p == r->end)
        return false;
    const char escaped = *r->p++;
    if (escaped == 'x')
        return take(r, '{') && read_number(r, 16, 0x10FFFF, c) && take(r, '}');
    const char *name = memchr(names, escaped, sizeof names - 1);
    *c = name ? values[name - names] : escaped;
    return name || tok_char_class(escaped) & (TOK_PUNCT | TOK_SYMBOL);
}

static bool read_character(struct reader *r, int32_t *c)
{
    if (r->p == r->end || *r->p == '[' || *r->p == ']')
        return false;
    if (take(r, '\\'))
        return read_escape(r, c);
    r->p += pp_utf8_decode(r->p, (size_t)(r->end - r->p), c);
    return *c >= 0;
}

static bool add_range(struct reader *r, struct set *s, int32_t from, int32_t to)
{
    r->no_memory = pp_grow(&s->ranges, &s->cap, s->n + 1, sizeof *s->ranges) != 0;
    if (r->no_memory || from > to)
        return false;
    s->ranges[s->n++] = (struct range){from, to};
    return true;
}

/* A hyphen must be part of a range: dialects differ in what others mean. */
static bool read_item(struct reader *r, struct set *s)
{
    int32_t from, to;
    if (r->end - r->p >= 2 && r->p[0] == '\\' && r->p[1] == 'p') {
        r->p += 2;
        return read_property(r, &s->classes) && !(r->p < r->end && *r->p == '-');
    }
    if (r->p < r->end && *r->p == '-')
        return false;
    if (!read_character(r, &from))
        return false;
    to = from;
    if (take(r, '-') && (r->p == r->end || *r->p == '-' || !read_character(r, &to)))
        return false;
    return add_range(r, s, from, to);
}

static int ascending(const void *a, const void *b)
{
    const struct range *x = a, *y = b;
    return (x->from > y->from) - (x->from < y->from);
}

static void finish_set(struct set *s)
{
    size_t n = 0;
    if (s->n)
        qsort(s->ranges, s->n, sizeof *s->ranges, ascending);
    for (size_t i = 0; i < s->n; i++) {
        if (n && s->ranges[i].from <= s->ranges[n - 1].to + 1) {
            if (s->ranges[i].to > s->ranges[n - 1].to)
                s->ranges[n - 1].to = s->ranges[i].to;
        } else {
            s->ranges[n++] = s->ranges[i];
        }
    }
    s->n = n;
    for (int32_t c = 0; c < 128; c++)
        s->ascii[c >> 6] |= (uint64_t)has(s, c) << (c & 63);
}

static bool read_set(struct reader *r, struct set *s)
{
    if (take(r, '\\')) {
        if (!take(r, 'p') || !read_property(r, &s->classes))
            return false;
    } else {
        if (!take(r, '['))
            return false;
        s->negated = take(r, '^');
        do {
            if (!read_item(r, s))
                return false;
        } while (!take(r, ']'));
    }
    finish_set(s);
    return true;
}

static bool read_lead(struct reader *r, struct tok_runs *runs)
{
    struct reader ahead = *r;
    if (take(&ahead, ' ')) {
        if (!add_range(r, &runs->lead, ' ', ' '))
            return false;
        finish_set(&runs->lead);
    } else if (!read_set(&ahead, &runs->lead)) {
        r->no_memory = ahead.no_memory;
        return false;
    }
    runs->has_lead = take(&ahead, '?');
    if (runs->has_lead)
        r->p = ahead.p;
    return true;
}

static bool read_count(struct reader *r, struct tok_runs *runs, const char *set, size_t n_set)
{
    int32_t least = 1, most = 1;
    runs->least = runs->most = 1;
    if (take(r, '+')) {
        runs->most = SIZE_MAX;
    } else if (take(r, '{')) {
        if (!read_number(r, 10, 1000, &least) || !take(r, ',') || !read_number(r, 10, 1000, &most) || !take(r, '}') ||
            least < 1 || most < least)
            return false;
        runs->least = (size_t)least;
        runs->most = (size_t)most;
    } else {
        for (; (size_t)(r->end - r->p) >= n_set && memcmp(r->p, set, n_set) == 0; r->p += n_set)
            runs->least++;
        runs->most = runs->least;
    }
    return r->p == r->end && runs->least <= MOST_LEAST;
}

static bool read_pattern(struct reader *r, struct tok_runs *runs)
{
    if (!read_lead(r, runs))
        return false;
    const char *set = r->p;
    return read_set(r, &runs->set) && read_count(r, runs, set, (size_t)(r->p - set));
}

void tok_runs_free(struct tok_runs *r)
{
    if (!r)
        return;
    pp_free(r->lead.ranges);
    pp_free(r->set.ranges);
    pp_free(r);
}

enum pp_code tok_runs_new(struct pp_str pattern, struct tok_runs **out, struct pp_error *err)
{
    struct reader r = {.p = pattern.data, .end = pattern.data + pattern.len};
    *out = pp_calloc(1, sizeof **out);
    if (!*out)
        return pp_fail_nomem(err, "a split pattern");
    if (read_pattern(&r, *out))
        return PP_OK;
    tok_runs_free(*out);
    *out = NULL;
    return r.no_memory ? pp_fail_nomem(err, "a split pattern") : PP_OK;
}
