/* jinja_filters_text.c - text filters of Jinja 3 that web pages use, and chat templates rarely. */
#include "engine/jinja_filters.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"

/* --- wordwrap --------------------------------------------------------------------------------------------- */

/* A line as characters, which Python's textwrap cuts into chunks: white space, words, and parts of words that end in a
 * hyphen. */
struct line {
    const char *s;
    const size_t *at;  // [n + 1] where characters begin
    const int32_t *cp; // [n]
    size_t n;
};

struct wrap {
    size_t width;
    bool break_words, at_hyphens;
};

struct chunk {
    size_t from, to; /* characters */
};

static bool is_blank(int32_t cp) { return cp == ' ' || (cp >= '\t' && cp <= '\r'); }
static bool is_word(int32_t cp) { return cp == '_' || jinja_is_alnum(cp); }
static bool is_letter(int32_t cp) { return is_word(cp) && !jinja_is_decimal(cp); }
static bool may_precede_dash(int32_t cp) { return is_word(cp) || (cp > 0 && cp < 0x80 && strchr("!\"'&.,?", cp)); }

static bool letter_at(const struct line *l, size_t i) { return i < l->n && is_letter(l->cp[i]); }

/* If two or more hyphens and then a word begin at i: where the word begins; otherwise 0. */
static size_t dash_at(const struct line *l, size_t i)
{
    size_t end = i;
    while (end < l->n && l->cp[end] == '-')
        end++;
    return end >= i + 2 && end < l->n && is_word(l->cp[end]) ? end : 0;
}

/* Whether the hyphen at i is within a word, after two letters, or between hyphens. */
static bool hyphen_at(const struct line *l, size_t i)
{
    if (l->cp[i] != '-' || i < 2 || !letter_at(l, i - 1))
        return false;
    if (!letter_at(l, i - 2) && !(i >= 3 && l->cp[i - 2] == '-' && letter_at(l, i - 3)))
        return false;
    const size_t second = i + 2 < l->n && l->cp[i + 2] == '-' ? i + 3 : i + 2;
    return letter_at(l, i + 1) && letter_at(l, second);
}

static size_t word_end(const struct line *l, size_t from)
{
    for (size_t i = from + 1; i < l->n; i++) {
        if (hyphen_at(l, i))
            return i + 1;
        if (is_blank(l->cp[i]) || (may_precede_dash(l->cp[i - 1]) && dash_at(l, i)))
            return i;
    }
    return l->n;
}

static struct chunk next_chunk(const struct line *l, const struct wrap *w, size_t from)
{
    struct chunk c = {from, from + 1};
    const bool blank = is_blank(l->cp[from]);
    if (!blank && w->at_hyphens) {
        const size_t dash = from && may_precede_dash(l->cp[from - 1]) ? dash_at(l, from) : 0;
        c.to = dash ? dash : word_end(l, from);
        return c;
    }
    while (c.to < l->n && is_blank(l->cp[c.to]) == blank)
        c.to++;
    return c;
}

/* How much of a word that fits into no line goes into this one. */
static size_t part_of_word(const struct line *l, const struct wrap *w, struct chunk c, size_t room)
{
    if (w->at_hyphens)
        for (size_t i = c.from + room; i-- > c.from;)
            if (l->cp[i] == '-') {
                for (size_t k = c.from; k < i; k++)
                    if (l->cp[k] != '-')
                        return i + 1 - c.from;
                break;
            }
    return room;
}

/* Whether this is white space that is dropped at line ends; it may be another kind than that between words. */
static bool is_space(const struct line *l, size_t from, size_t to)
{
    while (from < to && jinja_is_space(l->cp[from]))
        from++;
    return from == to;
}

/* Appends a line, wrapped to several with `between` between them. */
static void wrap_line(struct jinja *j, const struct line *l, const struct wrap *w, struct jinja_value between,
                      struct jinja_text *t)
{
    size_t at = 0;
    bool any = false;
    while (at < l->n) {
        struct chunk c = next_chunk(l, w, at);
        if (any && is_space(l, at, c.to)) /* no line but the first begins with white space */
            at = c.to;
        size_t begin = at, end = at, last = at; /* last: where the last chunk begins */
        while (at < l->n && (c = next_chunk(l, w, at)).to - begin <= w->width) {
            last = at;
            end = at = c.to;
        }
        if (at < l->n && c.to - c.from > w->width && (w->break_words || end == begin)) {
            last = at;
            end = at += w->break_words ? part_of_word(l, w, c, w->width - (end - begin)) : c.to - c.from;
        }
        if (end > begin && is_space(l, last, end))
            end = last;
        if (end == begin)
            continue;
        if (any)
            jinja_add(j, t, between.s, between.n);
        jinja_add(j, t, l->s + l->at[begin], l->at[end] - l->at[begin]);
        any = true;
    }
}

static struct line line_of(struct jinja *j, struct jinja_value s)
{
    size_t *at = jinja_alloc(j, ((size_t)s.n + 1) * sizeof *at), n = 0;
    int32_t *cp = jinja_alloc(j, ((size_t)s.n + 1) * sizeof *cp);
    for (size_t i = 0; i < s.n; n++) {
        at[n] = i;
        i += pp_utf8_decode(s.s + i, s.n - i, &cp[n]);
    }
    at[n] = s.n;
    return (struct line){.s = s.s, .at = at, .cp = cp, .n = n};
}

JINJA_FILTER(wordwrap)
{
    JINJA_UNUSED;
    const int64_t width = jinja_arg_int(j, arg[0], 79);
    struct wrap w = {.break_words = !jinja_given(arg[1]) || jinja_truth(arg[1]),
                     .at_hyphens = !jinja_given(arg[3]) || jinja_truth(arg[3])};
    struct jinja_value between = arg[2].kind == JINJA_NONE ? jinja_cstr("\n") : jinja_arg_str(j, arg[2], "\n");
    const struct jinja_list *lines = jinja_split_lines(j, jinja_arg_str(j, self, ""), false);
    struct jinja_text t = {0};
    if (width < 1)
        jinja_fail(j, "wordwrap: the width is 1 or more");
    w.width = (size_t)width;
    for (size_t i = 0; i < lines->n; i++) {
        struct line l = line_of(j, lines->items[i]);
        jinja_work(j, l.n * 4);
        if (i)
            jinja_add(j, &t, between.s, between.n);
        wrap_line(j, &l, &w, between, &t);
    }
    return jinja_text_value(j, &t);
}

/* --- markup ----------------------------------------------------------------------------------------------- */

/* Appends the character of an entity at s, "&lt;" or "&#60;". Returns its length; 0: it is unknown. */
static size_t add_entity(struct jinja *j, const char *s, size_t n, struct jinja_text *t)
{
    static const struct { const char *name, *text; } named[] = {
        {"&amp;", "&"}, {"&lt;", "<"}, {"&gt;", ">"}, {"&quot;", "\""}, {"&apos;", "'"}, {"&nbsp;", "\u00a0"},
    };
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        if (n >= strlen(named[i].name) && memcmp(s, named[i].name, strlen(named[i].name)) == 0) {
            jinja_add_str(j, t, named[i].text);
            return strlen(named[i].name);
        }
    char copy[12] = {0}, utf8[4], *end;
    if (n < 4 || s[1] != '#')
        return 0;
    memcpy(copy, s + 2, n - 2 < sizeof copy - 1 ? n - 2 : sizeof copy - 1);
    const bool hex = copy[0] == 'x' || copy[0] == 'X';
    const char *digits = copy + hex;
    const char first = *digits;
    const long c = strtol(digits, &end, hex ? 16 : 10);
    const bool digit = (first >= '0' && first <= '9') || (hex && first && strchr("abcdefABCDEF", first));
    if (*end != ';' || !digit || c < 0x20 || (c >= 0x7F && c < 0xA0) || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000))
        return 0;
    jinja_add(j, t, utf8, pp_utf8_encode((int32_t)c, utf8));
    return (size_t)(end - copy) + 3;
}

static struct jinja_value without(struct jinja *j, struct jinja_value s, const char *open, const char *close)
{
    struct jinja_text t = {0};
    size_t at = 0;
    for (;;) {
        const size_t begin = jinja_find(j, s, jinja_cstr(open), at);
        const size_t end = begin == SIZE_MAX ? SIZE_MAX : jinja_find(j, s, jinja_cstr(close), begin);
        if (end == SIZE_MAX)
            break;
        jinja_add(j, &t, s.s + at, begin - at);
        at = end + strlen(close);
    }
    jinja_add(j, &t, s.s + at, s.n - at);
    return jinja_text_value(j, &t);
}

JINJA_FILTER(striptags)
{
    JINJA_UNUSED;
    struct jinja_value s = without(j, without(j, jinja_to_string(j, self), "<!--", "-->"), "<", ">");
    s = jinja_join(j, jinja_cstr(" "), jinja_split(j, s, jinja_none(), -1, false));
    struct jinja_text t = {0};
    for (size_t i = 0; i < s.n;) {
        const size_t len = s.s[i] == '&' ? add_entity(j, s.s + i, s.n - i, &t) : 0;
        if (!len)
            jinja_add_char(j, &t, s.s[i]);
        i += len ? len : 1;
    }
    return jinja_text_value(j, &t);
}

JINJA_FILTER(xmlattr)
{
    JINJA_UNUSED;
    struct jinja_text t = {0};
    if (self.kind != JINJA_DICT)
        jinja_fail(j, "xmlattr needs a dict, not a %s", jinja_type_name(self));
    for (size_t i = 0; i < self.dict->n; i++) {
        const struct jinja_pair *p = &self.dict->pairs[i];
        if (p->value.kind == JINJA_NONE || p->value.kind == JINJA_UNDEFINED)
            continue;
        struct jinja_value key = jinja_arg_str(j, p->key, ""), value = jinja_to_string(j, p->value);
        for (size_t k = 0; k < key.n; k++)
            if (strchr(" \t\n\v\f\r/>=", key.s[k]))
                jinja_fail(j, "xmlattr: a name has a character that names of attributes cannot have");
        if (t.n || !jinja_given(arg[0]) || jinja_truth(arg[0]))
            jinja_add_char(j, &t, ' ');
        key = key.flag ? key : jinja_escape_html(j, key);
        value = value.flag ? value : jinja_escape_html(j, value);
        jinja_add(j, &t, key.s, key.n);
        jinja_add_str(j, &t, "=\"");
        jinja_add(j, &t, value.s, value.n);
        jinja_add_char(j, &t, '"');
    }
    struct jinja_value html = jinja_text_value(j, &t);
    html.flag = j->autoescape;
    return html;
}

/* --- urlencode -------------------------------------------------------------------------------------------- */

/* form: as in a form's data, with a plus for a space. */
static void add_quoted(struct jinja *j, struct jinja_value v, bool form, struct jinja_text *t)
{
    static const char hex[] = "0123456789ABCDEF";
    struct jinja_value s = jinja_to_string(j, v);
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.s[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     (c && strchr(form ? "_.-~" : "_.-~/", c));
        char escape[3] = {'%', hex[c >> 4], hex[c & 15]};
        if (form && c == ' ')
            jinja_add_char(j, t, '+');
        else
            jinja_add(j, t, plain ? (const char *)&s.s[i] : escape, plain ? 1 : 3);
    }
}

static void add_pair(struct jinja *j, struct jinja_value key, struct jinja_value value, struct jinja_text *t)
{
    if (t->n)
        jinja_add_char(j, t, '&');
    add_quoted(j, key, true, t);
    jinja_add_char(j, t, '=');
    add_quoted(j, value, true, t);
}

/* A dict or a list of pairs becomes a query, anything else a part of a path. */
JINJA_FILTER(urlencode)
{
    JINJA_UNUSED;
    struct jinja_text t = {0};
    if (self.kind == JINJA_DICT) {
        for (size_t i = 0; i < self.dict->n; i++)
            add_pair(j, self.dict->pairs[i].key, self.dict->pairs[i].value, &t);
    } else if (jinja_is_list(self) || self.kind == JINJA_BYTES) {
        const struct jinja_list *list = jinja_iterate(j, self);
        for (size_t i = 0; i < list->n; i++) {
            const struct jinja_list *pair = jinja_iterate(j, list->items[i]);
            if (pair->n != 2)
                jinja_fail(j, "urlencode: a list is of pairs");
            add_pair(j, pair->items[0], pair->items[1], &t);
        }
    } else if (self.kind != JINJA_UNDEFINED) {
        add_quoted(j, self, false, &t);
    }
    return jinja_text_value(j, &t);
}

/* --- others ----------------------------------------------------------------------------------------------- */

JINJA_FILTER(filesizeformat)
{
    JINJA_UNUSED;
    static const char *const units[2][8] = {{"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"},
                                            {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"}};
    const bool binary = jinja_truth(arg[0]);
    const double base = binary ? 1024 : 1000;
    const struct jinja_value none = jinja_none();
    const struct jinja_args otherwise = {.pos = &none, .n_pos = 1};
    struct jinja_value number = jinja_invoke(j, jinja_find_filter("float", 5), self, &otherwise);
    char text[400];
    const double bytes = number.kind == JINJA_FLOAT ? number.f : 0;
    double unit = base;
    if (number.kind != JINJA_FLOAT || !isfinite(bytes))
        jinja_fail(j, "filesizeformat needs a number");
    if (bytes == 1)
        return jinja_cstr("1 Byte");
    if (bytes < base) {
        snprintf(text, sizeof text, "%.0f Bytes", trunc(bytes) == 0 ? 0 : trunc(bytes));
        return jinja_copy(j, text, strlen(text));
    }
    int i = 0;
    for (unit *= base; i < 7 && bytes >= unit; i++)
        unit *= base;
    snprintf(text, sizeof text, "%.1f %s", base * bytes / unit, units[binary][i]);
    return jinja_copy(j, text, strlen(text));
}

/* Python's pprint sorts dicts by their keys. */
static struct jinja_value sorted(struct jinja *j, struct jinja_value v)
{
    jinja_enter(j);
    if (v.kind == JINJA_LIST || v.kind == JINJA_TUPLE) {
        struct jinja_list *list = jinja_list(j);
        for (size_t i = 0; i < v.list->n; i++)
            jinja_push(j, list, sorted(j, v.list->items[i]));
        v = jinja_wrap((enum jinja_kind)v.kind, list);
    } else if (v.kind == JINJA_DICT) {
        struct jinja_pair *pairs = jinja_alloc(j, v.dict->n * sizeof *pairs);
        struct jinja_dict *d = jinja_dict(j);
        for (size_t i = 0; i < v.dict->n; i++)
            pairs[i] = v.dict->pairs[i];
        jinja_sort_pairs(j, pairs, v.dict->n);
        for (size_t i = 0; i < v.dict->n; i++)
            jinja_dict_set(j, d, pairs[i].key, sorted(j, pairs[i].value));
        v.dict = d;
    }
    jinja_leave(j);
    return v;
}

/* Only values that fit in a line. How Python breaks longer ones is not implemented. */
JINJA_FILTER(pprint)
{
    JINJA_UNUSED;
    enum { WIDTH = 80 };
    struct jinja_text t = {0};
    jinja_repr(j, &t, sorted(j, self));
    struct jinja_value v = jinja_text_value(j, &t);
    const bool breaks = jinja_is_list(self) || self.kind == JINJA_DICT || self.kind == JINJA_STRING;
    if (breaks && jinja_count_chars(j, v) > WIDTH)
        jinja_fail(j, "pprint of more than %d characters would be broken into lines, which is not supported; "
                   "use tojson(indent=2)", WIDTH);
    return v;
}

const struct jinja_builtin jinja_text_filters[] = {
    {"filesizeformat", filter_filesizeformat, "binary", 0},
    {"pprint", filter_pprint, "", 0},
    {"striptags", filter_striptags, "", 0},
    {"urlencode", filter_urlencode, "", 0},
    {"urlize", jinja_urlize, "trim_url_limit nofollow target rel extra_schemes", 0},
    {"wordwrap", filter_wordwrap, "width break_long_words wrapstring break_on_hyphens", 0},
    {"xmlattr", filter_xmlattr, "autospace", 0},
    {NULL, NULL, NULL, 0},
};
