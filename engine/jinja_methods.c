/* jinja_methods.c - methods of strings, lists, dicts and cyclers. Python's sandbox forbids those that change a list or
 * dict; other engines and some templates use them, and they do no harm here, as values live for one render only. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/jinja_ast.h"
#include "engine/jinja_eval.h"

#define METHOD(id)                                                                                                    \
    static struct jinja_value id(struct jinja *j, struct jinja_value self, const struct jinja_value *arg,             \
                                 const struct jinja_args *args)
#define UNUSED (void)j, (void)self, (void)arg, (void)args

/* --- strings -------------------------------------------------------------------------------------------- */

static struct jinja_value strip_chars(struct jinja *j, struct jinja_value v)
{
    return v.kind == JINJA_NONE || !jinja_given(v) ? jinja_none() : jinja_arg_str(j, v, "");
}

static struct jinja_value strip(struct jinja *j, struct jinja_value self, struct jinja_value chars, unsigned sides)
{
    jinja_work(j, self.n);
    return jinja_strip(self, strip_chars(j, chars), sides);
}

METHOD(str_strip) { UNUSED; return strip(j, self, arg[0], JINJA_STRIP_LEFT | JINJA_STRIP_RIGHT); }
METHOD(str_lstrip) { UNUSED; return strip(j, self, arg[0], JINJA_STRIP_LEFT); }
METHOD(str_rstrip) { UNUSED; return strip(j, self, arg[0], JINJA_STRIP_RIGHT); }
METHOD(str_upper) { UNUSED; return jinja_upper(j, self); }
METHOD(str_lower) { UNUSED; return jinja_lower(j, self); }
METHOD(str_capitalize) { UNUSED; return jinja_capitalize(j, self); }
METHOD(str_casefold) { UNUSED; return jinja_casefold(j, self); }
METHOD(str_title) { UNUSED; return jinja_title(j, self); }

METHOD(str_split)
{
    UNUSED;
    return jinja_wrap(JINJA_LIST, jinja_split(j, self, strip_chars(j, arg[0]), jinja_arg_int(j, arg[1], -1), false));
}

METHOD(str_rsplit)
{
    UNUSED;
    return jinja_wrap(JINJA_LIST, jinja_split(j, self, strip_chars(j, arg[0]), jinja_arg_int(j, arg[1], -1), true));
}

METHOD(str_splitlines)
{
    UNUSED;
    return jinja_wrap(JINJA_LIST, jinja_split_lines(j, self, jinja_truth(arg[0])));
}

/* (before, sep, after), or the whole and two empty strings. */
static struct jinja_value partition(struct jinja *j, struct jinja_value self, struct jinja_value sep, bool from_right)
{
    struct jinja_value empty = jinja_str("", 0);
    struct jinja_list *parts = jinja_split(j, self, jinja_arg_str(j, sep, ""), 1, from_right), *out = jinja_list(j);
    bool found = parts->n == 2;
    jinja_push(j, out, found || !from_right ? parts->items[0] : empty);
    jinja_push(j, out, found ? sep : empty);
    jinja_push(j, out, found ? parts->items[1] : from_right ? parts->items[0] : empty);
    return jinja_wrap(JINJA_TUPLE, out);
}

METHOD(str_partition) { UNUSED; return partition(j, self, arg[0], false); }
METHOD(str_rpartition) { UNUSED; return partition(j, self, arg[0], true); }

static bool has_prefix(struct jinja *j, struct jinja_value s, struct jinja_value part)
{
    jinja_work(j, part.n);
    return part.n <= s.n && memcmp(s.s, part.s, part.n) == 0;
}

static bool has_suffix(struct jinja *j, struct jinja_value s, struct jinja_value part)
{
    jinja_work(j, part.n);
    return part.n <= s.n && memcmp(s.s + s.n - part.n, part.s, part.n) == 0;
}

/* wanted: one string, or a tuple of which one must match. */
static struct jinja_value any_fits(struct jinja *j, struct jinja_value self, struct jinja_value wanted,
                                   bool (*fits)(struct jinja *, struct jinja_value, struct jinja_value))
{
    if (wanted.kind != JINJA_TUPLE)
        return jinja_bool(fits(j, self, jinja_arg_str(j, wanted, "")));
    for (size_t i = 0; i < wanted.list->n; i++)
        if (fits(j, self, jinja_arg_str(j, wanted.list->items[i], "")))
            return jinja_bool(true);
    return jinja_bool(false);
}

/* self[start:end], by optional arguments after the first. False: it begins after the end, where Python does not even
 * find an empty string. */
static bool window(struct jinja *j, struct jinja_value self, const struct jinja_value *arg, struct jinja_value *inside)
{
    const struct jinja_value none = jinja_none();
    *inside = self;
    if (!jinja_given(arg[1]) && !jinja_given(arg[2]))
        return true;
    *inside = jinja_slice(j, self, jinja_given(arg[1]) ? arg[1] : none, jinja_given(arg[2]) ? arg[2] : none, none);
    if (inside->n)
        return true;
    const int64_t n = (int64_t)jinja_count_chars(j, self);
    int64_t start = jinja_given(arg[1]) && arg[1].kind != JINJA_NONE ? jinja_as_int(arg[1]) : 0;
    int64_t end = jinja_given(arg[2]) && arg[2].kind != JINJA_NONE ? jinja_as_int(arg[2]) : n;
    start = start < 0 ? start < -n ? 0 : start + n : start;
    end = end < 0 ? end < -n ? 0 : end + n : end > n ? n : end;
    return start <= end;
}

METHOD(str_startswith)
{
    UNUSED;
    struct jinja_value inside;
    bool there = window(j, self, arg, &inside);
    return there ? any_fits(j, inside, arg[0], has_prefix) : jinja_bool(false);
}

METHOD(str_endswith)
{
    UNUSED;
    struct jinja_value inside;
    bool there = window(j, self, arg, &inside);
    return there ? any_fits(j, inside, arg[0], has_suffix) : jinja_bool(false);
}

METHOD(str_removeprefix)
{
    UNUSED;
    struct jinja_value part = jinja_arg_str(j, arg[0], "");
    return has_prefix(j, self, part) ? jinja_str(self.s + part.n, self.n - part.n) : self;
}

METHOD(str_removesuffix)
{
    UNUSED;
    struct jinja_value part = jinja_arg_str(j, arg[0], "");
    return has_suffix(j, self, part) ? jinja_str(self.s, self.n - part.n) : self;
}

METHOD(str_replace)
{
    UNUSED;
    struct jinja_value old = jinja_arg_str(j, arg[0], ""), with = jinja_arg_str(j, arg[1], "");
    return jinja_replace(j, self, old, with, jinja_arg_int(j, arg[2], -1));
}

METHOD(str_join)
{
    UNUSED;
    const struct jinja_list *list = jinja_iterate(j, arg[0]);
    for (size_t i = 0; i < list->n; i++)
        if (!self.flag)
            jinja_arg_str(j, list->items[i], "");
    return self.flag ? jinja_join_html(j, self, list) : jinja_join(j, self, list);
}

/* Position in characters of the first or last occurrence inside [start:end], or -1. */
static int64_t position(struct jinja *j, struct jinja_value self, const struct jinja_value *arg, bool last)
{
    struct jinja_value part = jinja_arg_str(j, arg[0], ""), inside;
    if (!window(j, self, arg, &inside))
        return -1;
    size_t at = jinja_find(j, inside, part, 0);
    if (at == SIZE_MAX)
        return -1;
    if (last && part.n == 0)
        at = inside.n;
    for (size_t next = at; last && next != SIZE_MAX; next = jinja_find(j, inside, part, at + 1))
        at = next;
    if (!inside.n && jinja_given(arg[1]) && arg[1].kind != JINJA_NONE) { /* an empty string is found where the search
                                                                            begins */
        const int64_t start = jinja_as_int(arg[1]), n = (int64_t)jinja_count_chars(j, self);
        return start >= 0 ? start : start < -n ? 0 : start + n;
    }
    size_t skipped = inside.n ? (size_t)(inside.s - self.s) : 0;
    return (int64_t)jinja_count_chars(j, jinja_str(self.s, skipped + at));
}

METHOD(str_find) { UNUSED; return jinja_int(position(j, self, arg, false)); }
METHOD(str_rfind) { UNUSED; return jinja_int(position(j, self, arg, true)); }

METHOD(str_index)
{
    UNUSED;
    int64_t at = position(j, self, arg, false);
    if (at < 0)
        jinja_fail(j, "index: the string is not found");
    return jinja_int(at);
}

METHOD(str_rindex)
{
    UNUSED;
    int64_t at = position(j, self, arg, true);
    if (at < 0)
        jinja_fail(j, "rindex: the string is not found");
    return jinja_int(at);
}

METHOD(str_count)
{
    UNUSED;
    struct jinja_value part = jinja_arg_str(j, arg[0], ""), inside;
    int64_t n = 0;
    if (!window(j, self, arg, &inside))
        return jinja_int(0);
    if (part.n == 0)
        return jinja_int((int64_t)jinja_count_chars(j, inside) + 1);
    for (size_t at = 0; (at = jinja_find(j, inside, part, at)) != SIZE_MAX; at += part.n)
        n++;
    return jinja_int(n);
}

/* Whether all characters are in the class, and there is at least one. */
static struct jinja_value all_chars(struct jinja *j, struct jinja_value s, bool (*in_class)(int32_t cp))
{
    jinja_work(j, s.n);
    for (size_t i = 0; i < s.n;) {
        int32_t cp;
        i += pp_utf8_decode(s.s + i, s.n - i, &cp);
        if (!in_class(cp))
            return jinja_bool(false);
    }
    return jinja_bool(s.n != 0);
}

METHOD(str_isalpha) { UNUSED; return all_chars(j, self, jinja_is_alpha); }
METHOD(str_isdecimal) { UNUSED; return all_chars(j, self, jinja_is_decimal); }
METHOD(str_isdigit) { UNUSED; return all_chars(j, self, jinja_is_digit); }
METHOD(str_isnumeric) { UNUSED; return all_chars(j, self, jinja_is_numeric); }
METHOD(str_isalnum) { UNUSED; return all_chars(j, self, jinja_is_alnum); }
METHOD(str_isspace) { UNUSED; return all_chars(j, self, jinja_is_space); }

/* These two are true for an empty string, too. */
static bool is_ascii(int32_t cp) { return cp >= 0 && cp < 0x80; }
METHOD(str_isascii) { UNUSED; return jinja_bool(!self.n || all_chars(j, self, is_ascii).b); }
METHOD(str_isprintable) { UNUSED; return jinja_bool(!self.n || all_chars(j, self, jinja_is_printable).b); }

METHOD(str_isidentifier)
{
    UNUSED;
    int32_t cp;
    if (!self.n)
        return jinja_bool(false);
    size_t len = pp_utf8_decode(self.s, self.n, &cp);
    if (!jinja_begins_name(cp))
        return jinja_bool(false);
    struct jinja_value rest = jinja_str(self.s + len, self.n - len);
    return jinja_bool(!rest.n || all_chars(j, rest, jinja_in_name).b);
}

METHOD(str_istitle) { UNUSED; return jinja_bool(jinja_is_title(j, self)); }
METHOD(str_swapcase) { UNUSED; return jinja_swap_case(j, self); }

METHOD(str_expandtabs)
{
    UNUSED;
    int64_t size = jinja_arg_int(j, arg[0], 8), column = 0;
    struct jinja_text t = {0};
    jinja_work(j, self.n);
    for (size_t i = 0, len; i < self.n; i += len) {
        int32_t cp;
        len = pp_utf8_decode(self.s + i, self.n - i, &cp);
        if (cp == '\t') {
            int64_t more = size > 0 ? size - column % size : 0;
            jinja_add_times(j, &t, " ", 1, (size_t)more);
            column += more;
        } else {
            jinja_add(j, &t, self.s + i, len);
            column = cp == '\n' || cp == '\r' ? 0 : column + 1;
        }
    }
    return jinja_text_value(j, &t);
}

static struct jinja_value by_test(struct jinja *j, struct jinja_value self, const char *test)
{
    const struct jinja_args no_args = {0};
    return jinja_invoke(j, jinja_find_test(test, strlen(test)), self, &no_args);
}

METHOD(str_isupper) { UNUSED; return by_test(j, self, "upper"); }
METHOD(str_islower) { UNUSED; return by_test(j, self, "lower"); }

static struct jinja_value justify(struct jinja *j, struct jinja_value self, const struct jinja_value *arg,
                                  enum jinja_align align)
{
    return jinja_pad(j, self, jinja_arg_int(j, arg[0], 0), jinja_arg_str(j, arg[1], " "), align);
}

METHOD(str_ljust) { UNUSED; return justify(j, self, arg, JINJA_ALIGN_LEFT); }
METHOD(str_rjust) { UNUSED; return justify(j, self, arg, JINJA_ALIGN_RIGHT); }
METHOD(str_center) { UNUSED; return justify(j, self, arg, JINJA_ALIGN_CENTER); }

METHOD(str_zfill)
{
    UNUSED;
    bool sign = self.n && (self.s[0] == '-' || self.s[0] == '+');
    struct jinja_value digits = jinja_str(self.s + sign, self.n - sign);
    int64_t width = jinja_arg_int(j, arg[0], 0);
    struct jinja_value padded = jinja_pad(j, digits, width - (width > 0 && sign), jinja_cstr("0"), JINJA_ALIGN_RIGHT);
    return jinja_concat(j, jinja_str(self.s, sign), padded);
}

METHOD(str_format) { UNUSED; return jinja_format(j, self, args); }
METHOD(str_encode) { UNUSED; return jinja_encode(j, self, arg[0], arg[1]); }

METHOD(str_format_map)
{
    UNUSED;
    if (arg[0].kind != JINJA_DICT)
        jinja_fail(j, "format_map needs a dict, not a %s", jinja_type_name(arg[0]));
    const struct jinja_args named = {.named = arg[0].dict->pairs, .n_named = arg[0].dict->n};
    for (size_t i = 0; i < named.n_named; i++)
        if (named.named[i].key.kind != JINJA_STRING)
            jinja_fail(j, "format_map: the keys of the dict are strings");
    return jinja_format(j, self, &named);
}

/* --- strings: translate ------------------------------------------------------------------------------------ */

/* The code point of a one-character string. */
static struct jinja_value ordinal(struct jinja *j, struct jinja_value s)
{
    int32_t cp;
    if (s.kind != JINJA_STRING || !s.n || pp_utf8_decode(s.s, s.n, &cp) != s.n)
        jinja_fail(j, "maketrans: a key is one character, or its number");
    return jinja_int(cp);
}

/* ({"a": "b"}) and ("a", "b") give {97: 98}; a third string lists characters to delete. */
METHOD(str_maketrans)
{
    UNUSED;
    struct jinja_dict *d = jinja_dict(j);
    if (!jinja_given(arg[1])) {
        if (arg[0].kind != JINJA_DICT)
            jinja_fail(j, "maketrans needs a dict, or two strings");
        for (size_t i = 0; i < arg[0].dict->n; i++) {
            const struct jinja_pair p = arg[0].dict->pairs[i];
            jinja_dict_set(j, d, jinja_is_integral(p.key) ? p.key : ordinal(j, p.key), p.value);
        }
        return (struct jinja_value){.kind = JINJA_DICT, .dict = d};
    }
    const struct jinja_list *from = jinja_iterate(j, jinja_arg_str(j, arg[0], ""));
    const struct jinja_list *to = jinja_iterate(j, jinja_arg_str(j, arg[1], ""));
    const struct jinja_list *gone = jinja_iterate(j, jinja_arg_str(j, arg[2], ""));
    if (from->n != to->n)
        jinja_fail(j, "maketrans: the two strings are equally long");
    for (size_t i = 0; i < from->n; i++)
        jinja_dict_set(j, d, ordinal(j, from->items[i]), ordinal(j, to->items[i]));
    for (size_t i = 0; i < gone->n; i++)
        jinja_dict_set(j, d, ordinal(j, gone->items[i]), jinja_none());
    return (struct jinja_value){.kind = JINJA_DICT, .dict = d};
}

METHOD(str_translate)
{
    UNUSED;
    struct jinja_text t = {0};
    if (arg[0].kind != JINJA_DICT)
        jinja_fail(j, "translate needs a dict by characters' numbers, as maketrans makes it, not a %s",
                   jinja_type_name(arg[0]));
    jinja_work(j, self.n);
    for (size_t i = 0, len; i < self.n; i += len) {
        int32_t cp;
        char utf8[4];
        len = pp_utf8_decode(self.s + i, self.n - i, &cp);
        const struct jinja_value *to = jinja_dict_find(j, arg[0].dict, jinja_int(cp));
        if (!to)
            jinja_add(j, &t, self.s + i, len);
        else if (to->kind == JINJA_STRING)
            jinja_add(j, &t, to->s, to->n);
        else if (jinja_is_integral(*to) && jinja_as_int(*to) > 0 && jinja_as_int(*to) < 0x110000)
            jinja_add(j, &t, utf8, pp_utf8_encode((int32_t)jinja_as_int(*to), utf8));
        else if (to->kind != JINJA_NONE)
            jinja_fail(j, "translate: a character becomes a string, a number of one, or none");
    }
    return jinja_text_value(j, &t);
}

static const struct jinja_builtin str_methods[] = {
    {"strip", str_strip, "chars", JINJA_KEEPS},
    {"lstrip", str_lstrip, "chars", JINJA_KEEPS},
    {"rstrip", str_rstrip, "chars", JINJA_KEEPS},
    {"split", str_split, "sep maxsplit", JINJA_KEEPS},
    {"rsplit", str_rsplit, "sep maxsplit", JINJA_KEEPS},
    {"splitlines", str_splitlines, "keepends", JINJA_KEEPS},
    {"partition", str_partition, "sep", 1 | JINJA_KEEPS},
    {"rpartition", str_rpartition, "sep", 1 | JINJA_KEEPS},
    {"startswith", str_startswith, "prefix start end", 1},
    {"endswith", str_endswith, "suffix start end", 1},
    {"removeprefix", str_removeprefix, "prefix", 1 | JINJA_KEEPS},
    {"removesuffix", str_removesuffix, "suffix", 1 | JINJA_KEEPS},
    {"replace", str_replace, "old new count", 2 | JINJA_KEEPS_ESCAPES_SECOND},
    {"upper", str_upper, "", JINJA_KEEPS},
    {"lower", str_lower, "", JINJA_KEEPS},
    {"casefold", str_casefold, "", JINJA_KEEPS},
    {"title", str_title, "", JINJA_KEEPS},
    {"capitalize", str_capitalize, "", JINJA_KEEPS},
    {"join", str_join, "iterable", 1},
    {"find", str_find, "sub start end", 1},
    {"rfind", str_rfind, "sub start end", 1},
    {"index", str_index, "sub start end", 1},
    {"rindex", str_rindex, "sub start end", 1},
    {"count", str_count, "sub start end", 1},
    {"swapcase", str_swapcase, "", JINJA_KEEPS},
    {"expandtabs", str_expandtabs, "tabsize", JINJA_KEEPS},
    {"isascii", str_isascii, "", 0},
    {"isprintable", str_isprintable, "", 0},
    {"isidentifier", str_isidentifier, "", 0},
    {"istitle", str_istitle, "", 0},
    {"isalpha", str_isalpha, "", 0},
    {"isdigit", str_isdigit, "", 0},
    {"isdecimal", str_isdecimal, "", 0},
    {"isnumeric", str_isnumeric, "", 0},
    {"isalnum", str_isalnum, "", 0},
    {"isspace", str_isspace, "", 0},
    {"isupper", str_isupper, "", 0},
    {"islower", str_islower, "", 0},
    {"ljust", str_ljust, "width fillchar", 1 | JINJA_KEEPS_ESCAPES_SECOND},
    {"center", str_center, "width fillchar", 1 | JINJA_KEEPS_ESCAPES_SECOND},
    {"rjust", str_rjust, "width fillchar", 1 | JINJA_KEEPS_ESCAPES_SECOND},
    {"zfill", str_zfill, "width", 1 | JINJA_KEEPS},
    {"format", str_format, NULL, JINJA_KEEPS_ESCAPES_ALL},
    {"format_map", str_format_map, "mapping", 1},
    {"encode", str_encode, "encoding errors", 0},
    {"maketrans", str_maketrans, "x y z", 1},
    {"translate", str_translate, "table", 1 | JINJA_KEEPS},
    {NULL, NULL, NULL, 0},
};

/* --- lists ---------------------------------------------------------------------------------------------- */

/* Converts an index by Python's rules, or fails. */
static size_t index_of(struct jinja *j, struct jinja_value v, int64_t otherwise, size_t n)
{
    int64_t i = jinja_arg_int(j, v, otherwise);
    i += i < 0 ? (int64_t)n : 0;
    if (i < 0 || i >= (int64_t)n)
        jinja_fail(j, "the index is outside of the list");
    return (size_t)i;
}

static void remove_at(struct jinja *j, struct jinja_list *list, size_t i)
{
    memmove(&list->items[i], &list->items[i + 1], (list->n - i - 1) * sizeof *list->items);
    jinja_work(j, list->n - i);
    list->n--;
}

/* Position of the first equal element, or n. */
static size_t find_item(struct jinja *j, const struct jinja_list *list, struct jinja_value v)
{
    size_t i = 0;
    while (i < list->n && !jinja_equal(j, list->items[i], v))
        i++;
    return i;
}

METHOD(list_append)
{
    UNUSED;
    jinja_push(j, self.list, arg[0]);
    return jinja_none();
}

METHOD(list_extend)
{
    UNUSED;
    const struct jinja_list *more = jinja_iterate(j, arg[0]);
    for (size_t i = 0, n = more->n; i < n; i++)
        jinja_push(j, self.list, more->items[i]);
    jinja_work(j, more->n * 16);
    return jinja_none();
}

METHOD(list_insert)
{
    UNUSED;
    struct jinja_list *list = self.list;
    int64_t i = jinja_arg_int(j, arg[0], 0);
    i = i < 0 ? i + (int64_t)list->n : i;
    size_t at = i < 0 ? 0 : i > (int64_t)list->n ? list->n : (size_t)i;
    jinja_push(j, list, arg[1]);
    memmove(&list->items[at + 1], &list->items[at], (list->n - 1 - at) * sizeof *list->items);
    list->items[at] = arg[1];
    jinja_work(j, list->n);
    return jinja_none();
}

METHOD(list_pop)
{
    UNUSED;
    size_t i = index_of(j, arg[0], -1, self.list->n);
    struct jinja_value v = self.list->items[i];
    remove_at(j, self.list, i);
    return v;
}

METHOD(list_remove)
{
    UNUSED;
    size_t i = find_item(j, self.list, arg[0]);
    if (i == self.list->n)
        jinja_fail(j, "remove: the value is not in the list");
    remove_at(j, self.list, i);
    return jinja_none();
}

/* Searches from arg[1] up to arg[2], which count from the end if negative. */
METHOD(list_index)
{
    UNUSED;
    const int64_t n = (int64_t)self.list->n;
    int64_t from = jinja_arg_int(j, arg[1], 0), to = jinja_arg_int(j, arg[2], n);
    from = from < 0 ? from < -n ? 0 : from + n : from;
    to = to < 0 ? to + n : to > n ? n : to;
    while (from < to && !jinja_equal(j, self.list->items[from], arg[0]))
        from++;
    if (from >= to)
        jinja_fail(j, "index: the value is not in the list");
    return jinja_int(from);
}

METHOD(list_count)
{
    UNUSED;
    int64_t n = 0;
    for (size_t i = 0; i < self.list->n; i++)
        n += jinja_equal(j, self.list->items[i], arg[0]);
    return jinja_int(n);
}

METHOD(list_reverse)
{
    UNUSED;
    struct jinja_list *list = self.list;
    jinja_work(j, list->n * 16);
    for (size_t i = 0; i < list->n / 2; i++) {
        struct jinja_value v = list->items[i];
        list->items[i] = list->items[list->n - 1 - i];
        list->items[list->n - 1 - i] = v;
    }
    return jinja_none();
}

METHOD(list_clear)
{
    UNUSED;
    self.list->n = 0;
    return jinja_none();
}

METHOD(list_copy)
{
    UNUSED;
    return jinja_slice(j, self, jinja_none(), jinja_none(), jinja_none());
}

static const struct jinja_builtin list_methods[] = {
    {"append", list_append, "object", 1},
    {"extend", list_extend, "iterable", 1},
    {"insert", list_insert, "index object", 2},
    {"pop", list_pop, "index", 0},
    {"remove", list_remove, "value", 1},
    {"index", list_index, "value start stop", 1},
    {"count", list_count, "value", 1},
    {"reverse", list_reverse, "", 0},
    {"clear", list_clear, "", 0},
    {"copy", list_copy, "", 0},
    {NULL, NULL, NULL, 0},
};

static const struct jinja_builtin tuple_methods[] = {
    {"index", list_index, "value start stop", 1},
    {"count", list_count, "value", 1},
    {NULL, NULL, NULL, 0},
};

/* --- dicts ---------------------------------------------------------------------------------------------- */

METHOD(dict_get)
{
    UNUSED;
    const struct jinja_value *v = jinja_dict_find(j, self.dict, arg[0]);
    return v ? *v : jinja_given(arg[1]) ? arg[1] : jinja_none();
}

static struct jinja_value view(struct jinja *j, struct jinja_list *list, const char *name)
{
    list->name = name;
    jinja_work(j, list->n * 16);
    return jinja_wrap(JINJA_VIEW, list);
}

METHOD(dict_keys)
{
    UNUSED;
    return view(j, jinja_iterate(j, self), "dict_keys");
}

METHOD(dict_values)
{
    UNUSED;
    struct jinja_list *list = jinja_list(j);
    for (size_t i = 0; i < self.dict->n; i++)
        jinja_push(j, list, self.dict->pairs[i].value);
    return view(j, list, "dict_values");
}

METHOD(dict_items)
{
    UNUSED;
    struct jinja_list *list = jinja_list(j);
    for (size_t i = 0; i < self.dict->n; i++)
        jinja_push(j, list, jinja_pair_tuple(j, self.dict->pairs[i].key, self.dict->pairs[i].value));
    return view(j, list, "dict_items");
}

METHOD(dict_pop)
{
    UNUSED;
    const struct jinja_value *found = jinja_dict_find(j, self.dict, arg[0]);
    if (!found && !jinja_given(arg[1]))
        jinja_fail(j, "pop: the key is not in the dict");
    struct jinja_value v = found ? *found : arg[1];
    jinja_dict_remove(j, self.dict, arg[0]);
    return v;
}

METHOD(dict_setdefault)
{
    UNUSED;
    const struct jinja_value *found = jinja_dict_find(j, self.dict, arg[0]);
    if (found)
        return *found;
    struct jinja_value v = jinja_given(arg[1]) ? arg[1] : jinja_none();
    jinja_dict_set(j, self.dict, arg[0], v);
    return v;
}

METHOD(dict_update)
{
    UNUSED;
    struct jinja_value more = jinja_invoke(j, jinja_find_global("dict", 4), jinja_none(), args);
    for (size_t i = 0; i < more.dict->n; i++)
        jinja_dict_set(j, self.dict, more.dict->pairs[i].key, more.dict->pairs[i].value);
    return jinja_none();
}

METHOD(dict_copy)
{
    UNUSED;
    struct jinja_dict *d = jinja_dict(j);
    for (size_t i = 0; i < self.dict->n; i++)
        jinja_dict_set(j, d, self.dict->pairs[i].key, self.dict->pairs[i].value);
    return (struct jinja_value){.kind = JINJA_DICT, .dict = d};
}

METHOD(dict_clear)
{
    UNUSED;
    jinja_dict_clear(self.dict);
    return jinja_none();
}

/* Called on a dict, which is ignored, or on the function dict. */
METHOD(dict_fromkeys)
{
    UNUSED;
    struct jinja_dict *d = jinja_dict(j);
    jinja_require_defined(j, arg[0]);
    const struct jinja_list *keys = jinja_iterate(j, arg[0]);
    for (size_t i = 0; i < keys->n; i++)
        jinja_dict_set(j, d, keys->items[i], jinja_given(arg[1]) ? arg[1] : jinja_none());
    return (struct jinja_value){.kind = JINJA_DICT, .dict = d};
}

static const struct jinja_builtin dict_methods[] = {
    {"get", dict_get, "key default", 1},
    {"items", dict_items, "", 0},
    {"keys", dict_keys, "", 0},
    {"values", dict_values, "", 0},
    {"pop", dict_pop, "key default", 1},
    {"setdefault", dict_setdefault, "key default", 1},
    {"update", dict_update, NULL, 0},
    {"copy", dict_copy, "", 0},
    {"clear", dict_clear, "", 0},
    {"fromkeys", dict_fromkeys, "iterable value", 1},
    {NULL, NULL, NULL, 0},
};

static const struct jinja_builtin dict_function_methods[] = {
    {"fromkeys", dict_fromkeys, "iterable value", 1},
    {NULL, NULL, NULL, 0},
};

/* --- cyclers and loops ---------------------------------------------------------------------------------- */

METHOD(cycler_next)
{
    UNUSED;
    struct jinja_cycler *c = self.cycler;
    struct jinja_value v = c->items->items[c->at];
    c->at = (c->at + 1) % c->items->n;
    return v;
}

METHOD(cycler_reset)
{
    UNUSED;
    self.cycler->at = 0;
    return jinja_none();
}

METHOD(loop_cycle)
{
    UNUSED;
    if (args->n_pos == 0)
        jinja_fail(j, "loop.cycle() needs at least one item");
    return args->pos[self.loop->at % args->n_pos];
}

METHOD(loop_changed)
{
    UNUSED;
    struct jinja_list *now = jinja_list(j);
    for (size_t i = 0; i < args->n_pos; i++)
        jinja_push(j, now, args->pos[i]);
    struct jinja_value v = jinja_wrap(JINJA_TUPLE, now);
    bool changed = !jinja_given(self.loop->last) || !jinja_equal(j, v, self.loop->last);
    self.loop->last = v;
    return jinja_bool(changed);
}

static const struct jinja_builtin cycler_methods[] = {
    {"next", cycler_next, "", 0},
    {"reset", cycler_reset, "", 0},
    {NULL, NULL, NULL, 0},
};

static const struct jinja_builtin loop_methods[] = {
    {"cycle", loop_cycle, NULL, 0},
    {"changed", loop_changed, NULL, 0},
    {NULL, NULL, NULL, 0},
};

METHOD(number_is_integer) { UNUSED; return jinja_bool(self.kind != JINJA_FLOAT || floor(self.f) == self.f); }
METHOD(number_conjugate) { UNUSED; return jinja_plus(j, self); }

/* The magnitude. */
static uint64_t bits(struct jinja_value v)
{
    const int64_t i = jinja_as_int(v);
    return i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
}

METHOD(int_bit_length) { UNUSED; return jinja_int(bits(self) ? 64 - __builtin_clzll(bits(self)) : 0); }
METHOD(int_bit_count) { UNUSED; return jinja_int(__builtin_popcountll(bits(self))); }

/* For an integer beyond 64 bits: counts how often it can be halved. */
METHOD(big_bit_length)
{
    UNUSED;
    const struct jinja_value by = jinja_int(INT64_C(1) << 62);
    struct jinja_value v = *self.s == '-' ? jinja_negate(j, self) : self;
    int64_t n = 0;
    for (; v.kind == JINJA_BIG; n += 62)
        v = jinja_operate(j, JINJA_OP_FLOORDIV, v, by);
    return jinja_int(n + (v.i ? 64 - __builtin_clzll((uint64_t)v.i) : 0));
}

METHOD(int_as_integer_ratio) { UNUSED; return jinja_pair_tuple(j, jinja_plus(j, self), jinja_int(1)); }

METHOD(int_to_bytes)
{
    UNUSED;
    return jinja_int_to_bytes(j, jinja_as_int(self), jinja_arg_int(j, arg[0], 1), arg[1], jinja_truth(arg[2]));
}

METHOD(int_from_bytes) { UNUSED; return jinja_int_from_bytes(j, arg[0], arg[1], jinja_truth(arg[2])); }

/* Exact: either the numerator is odd, or the denominator is 1. */
METHOD(float_as_integer_ratio)
{
    UNUSED;
    int exponent;
    if (!isfinite(self.f))
        jinja_fail(j, "as_integer_ratio: the number is not finite");
    int64_t m = (int64_t)ldexp(frexp(self.f, &exponent), 53);
    exponent -= 53;
    while (m != 0 && m % 2 == 0 && exponent < 0) {
        m /= 2;
        exponent++;
    }
    const struct jinja_value two = jinja_int(2), e = jinja_int(m == 0 ? 0 : exponent);
    if (e.i < 0)
        return jinja_pair_tuple(j, jinja_int(m), jinja_operate(j, JINJA_OP_POW, two, jinja_int(-e.i)));
    return jinja_pair_tuple(j, jinja_operate(j, JINJA_OP_MUL, jinja_int(m), jinja_operate(j, JINJA_OP_POW, two, e)),
                            jinja_int(1));
}

METHOD(float_hex)
{
    UNUSED;
    char s[64];
    if (!isfinite(self.f))
        return jinja_to_string(j, self);
    if (self.f == 0)
        return jinja_cstr(signbit(self.f) ? "-0x0.0p+0" : "0x0.0p+0");
    snprintf(s, sizeof s, "%.13a", self.f);
    return jinja_copy(j, s, strlen(s));
}

static const struct jinja_builtin float_methods[] = {
    {"as_integer_ratio", float_as_integer_ratio, "", 0},
    {"hex", float_hex, "", 0},
    {"conjugate", number_conjugate, "", 0},
    {"is_integer", number_is_integer, "", 0},
    {NULL, NULL, NULL, 0},
};

static const struct jinja_builtin int_methods[] = {
    {"as_integer_ratio", int_as_integer_ratio, "", 0},
    {"to_bytes", int_to_bytes, "length byteorder signed", 0},
    {"from_bytes", int_from_bytes, "bytes byteorder signed", 1},
    {"bit_count", int_bit_count, "", 0},
    {"bit_length", int_bit_length, "", 0},
    {"conjugate", number_conjugate, "", 0},
    {"is_integer", number_is_integer, "", 0},
    {NULL, NULL, NULL, 0},
};

static const struct jinja_builtin big_methods[] = {
    {"as_integer_ratio", int_as_integer_ratio, "", 0},
    {"bit_length", big_bit_length, "", 0},
    {"conjugate", number_conjugate, "", 0},
    {"is_integer", number_is_integer, "", 0},
    {NULL, NULL, NULL, 0},
};

const struct jinja_builtin *jinja_find_method(struct jinja_value v, const char *name, size_t n)
{
    switch (v.kind) {
    case JINJA_STRING: return jinja_find_builtin(str_methods, name, n);
    case JINJA_BYTES: return jinja_find_builtin(jinja_bytes_methods, name, n);
    case JINJA_SET: return jinja_find_builtin(jinja_set_methods, name, n);
    case JINJA_VIEW: return jinja_is_set(v) ? jinja_find_builtin(jinja_view_methods, name, n) : NULL;
    case JINJA_FUNCTION:
        return strcmp(v.function->name, "dict") == 0 ? jinja_find_builtin(dict_function_methods, name, n) : NULL;
    case JINJA_LIST: return jinja_find_builtin(list_methods, name, n);
    case JINJA_TUPLE:
    case JINJA_RANGE: return jinja_find_builtin(tuple_methods, name, n);
    case JINJA_DICT: return jinja_find_builtin(dict_methods, name, n);
    case JINJA_CYCLER: return jinja_find_builtin(cycler_methods, name, n);
    case JINJA_LOOP: return jinja_find_builtin(loop_methods, name, n);
    case JINJA_BOOL:
    case JINJA_INT: return jinja_find_builtin(int_methods, name, n);
    case JINJA_BIG: return jinja_find_builtin(big_methods, name, n);
    case JINJA_FLOAT: return jinja_find_builtin(float_methods, name, n);
    default: return NULL;
    }
}
