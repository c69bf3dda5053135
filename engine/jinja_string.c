/* jinja_string.c - Python's str operations on UTF-8. Bytes that are not UTF-8 count as one character each. */
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/jinja_value.h"

bool jinja_is_space(int32_t cp)
{
    return (cp >= 9 && cp <= 13) || (cp >= 0x1C && cp <= 0x20) || cp == 0x85 || cp == 0xA0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F ||
           cp == 0x3000;
}

size_t jinja_count_chars(struct jinja *j, struct jinja_value s)
{
    size_t n = 0;
    jinja_work(j, s.n);
    for (size_t at = 0; at < s.n; n++) {
        int32_t cp;
        at += pp_utf8_decode(s.s + at, s.n - at, &cp);
    }
    return n;
}

size_t jinja_char_offset(struct jinja *j, struct jinja_value s, size_t i)
{
    size_t at = 0;
    for (; at < s.n && i > 0; i--) {
        int32_t cp;
        at += pp_utf8_decode(s.s + at, s.n - at, &cp);
    }
    jinja_work(j, at);
    return at;
}

size_t jinja_find(struct jinja *j, struct jinja_value s, struct jinja_value part, size_t from)
{
    if (from > s.n || part.n > s.n - from)
        return SIZE_MAX;
    if (part.n == 0)
        return from;
    const char *p = memmem(s.s + from, s.n - from, part.s, part.n);
    jinja_work(j, p ? (size_t)(p - s.s) - from : s.n - from);
    return p ? (size_t)(p - s.s) : SIZE_MAX;
}

/* --- cutting -------------------------------------------------------------------------------------------- */

static bool strippable(struct jinja_value chars, const char *bytes, size_t len, int32_t cp)
{
    if (chars.kind == JINJA_STRING)
        return chars.n && memmem(chars.s, chars.n, bytes, len) != NULL;
    return jinja_is_space(cp);
}

/* Length of the last character of s[0..n), n > 0. */
static size_t last_char(const char *s, size_t n, int32_t *cp)
{
    for (size_t len = 1; len <= 4 && len <= n; len++)
        if (pp_utf8_decode(s + n - len, len, cp) == len && *cp >= 0)
            return len;
    *cp = -1;
    return 1;
}

struct jinja_value jinja_strip(struct jinja_value s, struct jinja_value chars, unsigned sides)
{
    int32_t cp;
    while (sides & JINJA_STRIP_LEFT && s.n) {
        size_t len = pp_utf8_decode(s.s, s.n, &cp);
        if (!strippable(chars, s.s, len, cp))
            break;
        s.s += len;
        s.n -= (uint32_t)len;
    }
    while (sides & JINJA_STRIP_RIGHT && s.n) {
        size_t len = last_char(s.s, s.n, &cp);
        if (!strippable(chars, s.s + s.n - len, len, cp))
            break;
        s.n -= (uint32_t)len;
    }
    s.flag = 0;
    return s;
}

struct jinja_value jinja_replace(struct jinja *j, struct jinja_value s, struct jinja_value old, struct jinja_value with,
                                 int64_t count)
{
    struct jinja_text t = {0};
    size_t at = 0;
    for (; count != 0; count--) {
        size_t hit = jinja_find(j, s, old, at);
        if (hit == SIZE_MAX)
            break;
        jinja_add(j, &t, s.s + at, hit - at);
        jinja_add(j, &t, with.s, with.n);
        at = hit + old.n;
        if (old.n == 0) { /* "abc".replace("", "-") is "-a-b-c-" */
            if (at == s.n)
                break;
            int32_t cp;
            size_t len = pp_utf8_decode(s.s + at, s.n - at, &cp);
            jinja_add(j, &t, s.s + at, len);
            at += len;
        }
    }
    jinja_add(j, &t, s.s + at, s.n - at);
    return jinja_text_value(j, &t);
}

static struct jinja_value part(struct jinja_value s, size_t from, size_t to)
{
    return jinja_str(s.s + from, to - from);
}

static struct jinja_list *split_left(struct jinja *j, struct jinja_value s, struct jinja_value sep, int64_t max)
{
    struct jinja_list *list = jinja_list(j);
    size_t at = 0;
    for (; max != 0; max--) {
        size_t hit = jinja_find(j, s, sep, at);
        if (hit == SIZE_MAX)
            break;
        jinja_push(j, list, part(s, at, hit));
        at = hit + sep.n;
    }
    jinja_push(j, list, part(s, at, s.n));
    return list;
}

static void reverse(struct jinja_list *list)
{
    for (size_t i = 0; i < list->n / 2; i++) {
        struct jinja_value v = list->items[i];
        list->items[i] = list->items[list->n - 1 - i];
        list->items[list->n - 1 - i] = v;
    }
}

static struct jinja_list *split_right(struct jinja *j, struct jinja_value s, struct jinja_value sep, int64_t max)
{
    struct jinja_list *list = jinja_list(j);
    size_t end = s.n, i = s.n;
    jinja_work(j, s.n);
    while (max != 0 && i >= sep.n) {
        if (memcmp(s.s + i - sep.n, sep.s, sep.n) == 0) {
            jinja_push(j, list, part(s, i, end));
            end = i -= sep.n;
            max--;
        } else {
            i--;
        }
    }
    jinja_push(j, list, part(s, 0, end));
    reverse(list);
    return list;
}

static size_t skip_space(struct jinja_value s, size_t at)
{
    return s.n - jinja_strip(part(s, at, s.n), jinja_none(), JINJA_STRIP_LEFT).n;
}

static size_t skip_word(struct jinja_value s, size_t at)
{
    while (at < s.n) {
        int32_t cp;
        size_t len = pp_utf8_decode(s.s + at, s.n - at, &cp);
        if (jinja_is_space(cp))
            break;
        at += len;
    }
    return at;
}

static struct jinja_list *split_space(struct jinja *j, struct jinja_value s, int64_t max)
{
    struct jinja_list *list = jinja_list(j);
    size_t at = skip_space(s, 0);
    jinja_work(j, s.n);
    for (; at < s.n && max != 0; max--) {
        size_t end = skip_word(s, at);
        jinja_push(j, list, part(s, at, end));
        at = skip_space(s, end);
    }
    if (at < s.n)
        jinja_push(j, list, part(s, at, s.n)); /* Python keeps white space at the end of the rest */
    return list;
}

static struct jinja_list *split_space_right(struct jinja *j, struct jinja_value s, int64_t max)
{
    struct jinja_list *list = jinja_list(j);
    struct jinja_value rest = jinja_strip(s, jinja_none(), JINJA_STRIP_RIGHT);
    jinja_work(j, s.n);
    for (; rest.n && max != 0; max--) {
        size_t begin = rest.n;
        while (begin > 0) {
            int32_t cp;
            size_t len = last_char(rest.s, begin, &cp);
            if (jinja_is_space(cp))
                break;
            begin -= len;
        }
        jinja_push(j, list, part(rest, begin, rest.n));
        rest = jinja_strip(part(rest, 0, begin), jinja_none(), JINJA_STRIP_RIGHT);
    }
    if (rest.n)
        jinja_push(j, list, rest);
    reverse(list);
    return list;
}

struct jinja_list *jinja_split(struct jinja *j, struct jinja_value s, struct jinja_value sep, int64_t max,
                               bool from_right)
{
    if (sep.kind != JINJA_STRING)
        return from_right && max >= 0 ? split_space_right(j, s, max) : split_space(j, s, max);
    if (sep.n == 0)
        jinja_fail(j, "split: the separator is empty");
    return from_right && max >= 0 ? split_right(j, s, sep, max) : split_left(j, s, sep, max);
}

static bool is_line_break(int32_t cp)
{
    return (cp >= 10 && cp <= 13) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 || cp == 0x2029;
}

struct jinja_list *jinja_split_lines(struct jinja *j, struct jinja_value s, bool keep_ends)
{
    struct jinja_list *list = jinja_list(j);
    size_t begin = 0, at = 0;
    jinja_work(j, s.n);
    while (at < s.n) {
        int32_t cp;
        size_t len = pp_utf8_decode(s.s + at, s.n - at, &cp);
        if (!is_line_break(cp)) {
            at += len;
            continue;
        }
        size_t end = at;
        at += cp == '\r' && at + 1 < s.n && s.s[at + 1] == '\n' ? 2 : len;
        jinja_push(j, list, part(s, begin, keep_ends ? at : end));
        begin = at;
    }
    if (begin < s.n)
        jinja_push(j, list, part(s, begin, s.n));
    return list;
}

/* --- putting together ----------------------------------------------------------------------------------- */

struct jinja_value jinja_join(struct jinja *j, struct jinja_value sep, const struct jinja_list *parts)
{
    struct jinja_text t = {0};
    jinja_work(j, parts->n * 16);
    for (size_t i = 0; i < parts->n; i++) {
        if (i)
            jinja_add(j, &t, sep.s, sep.n);
        jinja_print(j, &t, parts->items[i]);
    }
    return jinja_text_value(j, &t);
}

struct jinja_value jinja_escape_html(struct jinja *j, struct jinja_value s)
{
    struct jinja_text t = {0};
    for (size_t i = 0; i < s.n; i++) {
        switch (s.s[i]) {
        case '&': jinja_add_str(j, &t, "&amp;"); break;
        case '<': jinja_add_str(j, &t, "&lt;"); break;
        case '>': jinja_add_str(j, &t, "&gt;"); break;
        case '\'': jinja_add_str(j, &t, "&#39;"); break;
        case '"': jinja_add_str(j, &t, "&#34;"); break;
        default: jinja_add_char(j, &t, s.s[i]);
        }
    }
    struct jinja_value v = jinja_text_value(j, &t);
    v.flag = 1;
    return v;
}

/* How much of the padding goes to the left. */
static int64_t padding_before(int64_t pad, int64_t width, enum jinja_align align)
{
    switch (align) {
    case JINJA_ALIGN_LEFT: return 0;
    case JINJA_ALIGN_RIGHT: return pad;
    case JINJA_ALIGN_CENTER: return pad / 2 + (pad & width & 1);
    default: return pad / 2;
    }
}

struct jinja_value jinja_pad(struct jinja *j, struct jinja_value s, int64_t width, struct jinja_value fill,
                             enum jinja_align align)
{
    int64_t have = (int64_t)jinja_count_chars(j, s);
    if (width <= have)
        return s;
    int64_t pad = width - have;
    int64_t before = padding_before(pad, width, align);
    struct jinja_text t = {0};
    jinja_add_times(j, &t, fill.s, fill.n, (size_t)before);
    jinja_add(j, &t, s.s, s.n);
    jinja_add_times(j, &t, fill.s, fill.n, (size_t)(pad - before));
    return jinja_text_value(j, &t);
}
