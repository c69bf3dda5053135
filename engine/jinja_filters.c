/* jinja_filters.c - the filters of Jinja 3, with tojson as transformers defines it. Filters on whole sequences are in
 * jinja_filters_seq.c. */
#include "engine/jinja_filters.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wctype.h>

#include "engine/base/utf8.h"

/* --- text ----------------------------------------------------------------------------------------------- */

JINJA_FILTER(upper) { JINJA_UNUSED; return jinja_upper(j, jinja_to_string(j, self)); }
JINJA_FILTER(lower) { JINJA_UNUSED; return jinja_lower(j, jinja_to_string(j, self)); }
JINJA_FILTER(capitalize) { JINJA_UNUSED; return jinja_capitalize(j, jinja_to_string(j, self)); }

static bool begins_word(int32_t cp)
{
    return jinja_is_space(cp) || (cp > 0 && cp < 0x80 && strchr("-({[<", cp));
}

JINJA_FILTER(title) { JINJA_UNUSED; return jinja_title_words(j, jinja_to_string(j, self), begins_word); }

JINJA_FILTER(trim)
{
    JINJA_UNUSED;
    bool all_space = !jinja_given(arg[0]) || arg[0].kind == JINJA_NONE;
    struct jinja_value chars = all_space ? jinja_none() : jinja_arg_str(j, arg[0], "");
    jinja_work(j, self.kind == JINJA_STRING ? self.n : 0);
    return jinja_strip(jinja_to_string(j, self), chars, JINJA_STRIP_LEFT | JINJA_STRIP_RIGHT);
}

JINJA_FILTER(string) { JINJA_UNUSED; return jinja_to_string(j, self); }

JINJA_FILTER(safe)
{
    JINJA_UNUSED;
    struct jinja_value v = jinja_to_string(j, self);
    v.flag = 1;
    return v;
}

JINJA_FILTER(escape)
{
    JINJA_UNUSED;
    struct jinja_value v = jinja_to_string(j, self);
    return v.flag ? v : jinja_escape_html(j, v);
}

JINJA_FILTER(forceescape) { JINJA_UNUSED; return jinja_escape_html(j, jinja_to_string(j, self)); }

JINJA_FILTER(replace)
{
    JINJA_UNUSED;
    struct jinja_value s = jinja_to_string(j, self), old = jinja_to_string(j, arg[0]), new = jinja_to_string(j, arg[1]);
    if (j->autoescape && (old.flag || new.flag))
        s = jinja_as_html(j, s);
    if (j->autoescape && s.flag)
        new = jinja_as_html(j, new);
    struct jinja_value v = jinja_replace(j, s, old, new, jinja_arg_int(j, arg[2], -1));
    v.flag = j->autoescape && s.flag;
    return v;
}

JINJA_FILTER(center)
{
    JINJA_UNUSED;
    return jinja_pad(j, jinja_to_string(j, self), jinja_arg_int(j, arg[0], 80), jinja_cstr(" "), JINJA_ALIGN_CENTER);
}

JINJA_FILTER(format)
{
    JINJA_UNUSED;
    struct jinja_value pattern = jinja_to_string(j, self);
    if (args->n_pos && args->n_named)
        jinja_fail(j, "format takes arguments with names or without, not both");
    if (args->n_named) {
        struct jinja_dict *d = jinja_dict(j);
        for (size_t i = 0; i < args->n_named; i++)
            jinja_dict_set(j, d, args->named[i].key, args->named[i].value);
        return jinja_percent(j, pattern, (struct jinja_value){.kind = JINJA_DICT, .dict = d});
    }
    struct jinja_list *list = jinja_list(j);
    for (size_t i = 0; i < args->n_pos; i++)
        jinja_push(j, list, args->pos[i]);
    return jinja_percent(j, pattern, jinja_wrap(JINJA_TUPLE, list));
}

/* An indentation argument: a string, or a number of spaces. */
static struct jinja_value indentation(struct jinja *j, struct jinja_value v, int64_t otherwise)
{
    if (v.kind == JINJA_STRING)
        return v;
    int64_t width = jinja_arg_int(j, v, otherwise);
    struct jinja_text t = {0};
    jinja_add_times(j, &t, " ", 1, width > 0 ? (size_t)width : 0);
    return jinja_text_value(j, &t);
}

JINJA_FILTER(indent)
{
    JINJA_UNUSED;
    struct jinja_value width = indentation(j, arg[0], 4);
    bool first = jinja_truth(arg[1]), blank = jinja_truth(arg[2]);
    struct jinja_value s = jinja_concat(j, jinja_arg_str(j, self, ""), jinja_cstr("\n"));
    const struct jinja_list *lines = jinja_split_lines(j, s, false);
    struct jinja_text t = {0};
    for (size_t i = 0; i < lines->n; i++) {
        if (i)
            jinja_add_char(j, &t, '\n');
        if (i ? blank || lines->items[i].n : first)
            jinja_add(j, &t, width.s, width.n);
        jinja_add(j, &t, lines->items[i].s, lines->items[i].n);
    }
    return jinja_text_value(j, &t);
}

JINJA_FILTER(truncate)
{
    JINJA_UNUSED;
    int64_t length = jinja_arg_int(j, arg[0], 255);
    int64_t leeway = arg[3].kind == JINJA_NONE ? 5 : jinja_arg_int(j, arg[3], 5);
    struct jinja_value end = jinja_arg_str(j, arg[2], "...");
    int64_t room = length - (int64_t)jinja_count_chars(j, end);
    if (room < 0 || leeway < 0)
        jinja_fail(j, "truncate: the length is smaller than that of the end mark, or the leeway is negative");
    if (self.kind != JINJA_STRING &&
        jinja_length(j, self) <= (length > INT64_MAX - leeway ? INT64_MAX : length + leeway))
        return self; /* a short list remains one, and undefined remains undefined */
    struct jinja_value s = jinja_arg_str(j, self, "");
    int64_t excess = (int64_t)jinja_count_chars(j, s) - length;
    if (excess <= leeway)
        return s;
    end = s.flag ? jinja_as_html(j, end) : end;
    struct jinja_value kept = jinja_str(s.s, jinja_char_offset(j, s, (size_t)room));
    if (!jinja_truth(arg[1]))
        kept = jinja_split(j, kept, jinja_cstr(" "), 1, true)->items[0];
    return jinja_concat(j, kept, end);
}

static bool in_word(int32_t cp)
{
    return cp == '_' || jinja_is_alnum(cp);
}

JINJA_FILTER(wordcount)
{
    JINJA_UNUSED;
    struct jinja_value s = jinja_to_string(j, self);
    int64_t n = 0;
    bool before = false;
    jinja_work(j, s.n);
    for (size_t i = 0; i < s.n;) {
        int32_t cp;
        i += pp_utf8_decode(s.s + i, s.n - i, &cp);
        n += in_word(cp) && !before;
        before = in_word(cp);
    }
    return jinja_int(n);
}

/* --- numbers -------------------------------------------------------------------------------------------- */

/* Copies a string for strtod and strtoll: stripped, without single underscores between digits. False if it is too long
 * for a number or has a NUL. */
static bool number_text(struct jinja_value s, char *out, size_t cap)
{
    s = jinja_strip(s, jinja_none(), JINJA_STRIP_LEFT | JINJA_STRIP_RIGHT);
    size_t n = 0;
    if (s.n == 0 || s.n >= cap || memchr(s.s, 0, s.n))
        return false;
    for (size_t i = 0; i < s.n; i++) {
        bool between = i > 0 && i + 1 < s.n && s.s[i - 1] != '_' && s.s[i + 1] != '_';
        if (s.s[i] != '_' || !between)
            out[n++] = s.s[i];
    }
    out[n] = 0;
    return true;
}

static bool parse_int(struct jinja *j, struct jinja_value s, int base, struct jinja_value *out)
{
    char text[512], *end;
    if (!number_text(s, text, sizeof text))
        return false;
    char *digits = text + (*text == '-' || *text == '+');
    char letter = digits[0] == '0' ? (char)(digits[1] | 0x20) : 0;
    bool prefixed = (letter == 'x' && base == 16) || (letter == 'o' && base == 8) || (letter == 'b' && base == 2);
    if (prefixed)
        memmove(digits, digits + 2, strlen(digits + 2) + 1);
    if (!iswalnum((wint_t)(unsigned char)*digits))
        return false;
    errno = 0;
    *out = jinja_int(strtoll(text, &end, base));
    if (*end == 0 && errno == ERANGE && base == 10)
        *out = jinja_big(j, text + (*text == '+'), strlen(text) - (*text == '+'));
    return *end == 0 && (errno == 0 || base == 10);
}

static bool parse_float(struct jinja_value s, double *out)
{
    char text[512], *end;
    if (!number_text(s, text, sizeof text))
        return false;
    if (strpbrk(text, "xXpP(")) /* strtod takes hexadecimal and nan(...), Python does not */
        return false;
    *out = strtod(text, &end);
    return *end == 0;
}

static bool to_double(struct jinja_value v, double *out)
{
    if (v.kind == JINJA_STRING || v.kind == JINJA_BYTES)
        return parse_float(v, out);
    if (v.kind == JINJA_BIG)
        return parse_float(v, out);
    if (!jinja_is_number(v))
        return false;
    *out = jinja_as_double(v);
    return true;
}

JINJA_FILTER(int)
{
    JINJA_UNUSED;
    int64_t base = arg[1].kind == JINJA_NONE ? 10 : jinja_arg_int(j, arg[1], 10);
    struct jinja_value i;
    double f;
    if (base < 2 || base > 36)
        jinja_fail(j, "int: the base is from 2 to 36");
    jinja_work(j, self.kind == JINJA_STRING ? self.n : 0);
    jinja_require_defined(j, self);
    if (jinja_is_integral(self))
        return jinja_int(jinja_as_int(self));
    if (self.kind == JINJA_BIG)
        return self;
    if (self.kind == JINJA_BYTES) { /* in any base */
        self.kind = JINJA_STRING;
        base = 10;
    }
    if (self.kind == JINJA_STRING && parse_int(j, self, (int)base, &i))
        return i;
    if (to_double(self, &f) && isfinite(f)) {
        char digits[512];
        snprintf(digits, sizeof digits, "%.0f", trunc(f));
        return jinja_big(j, digits, strlen(digits));
    }
    return jinja_given(arg[0]) ? arg[0] : jinja_int(0);
}

JINJA_FILTER(float)
{
    JINJA_UNUSED;
    double f;
    jinja_work(j, self.kind == JINJA_STRING ? self.n : 0);
    jinja_require_defined(j, self);
    if (to_double(self, &f))
        return jinja_float(f);
    return jinja_given(arg[0]) ? arg[0] : jinja_float(0);
}

JINJA_FILTER(abs)
{
    JINJA_UNUSED;
    if (self.kind == JINJA_FLOAT)
        return jinja_float(fabs(self.f));
    struct jinja_value v = jinja_plus(j, self);
    return (v.kind == JINJA_BIG ? *v.s == '-' : v.i < 0) ? jinja_negate(j, v) : v;
}

/* To the nearest, ties to even, by the exact value of the double; Python's round(). */
static double round_common(double f, int precision)
{
    char text[512];
    if (!isfinite(f) || precision > 300)
        return f;
    if (precision >= 0) {
        snprintf(text, sizeof text, "%.*f", precision, f);
        return strtod(text, NULL);
    }
    double unit = pow(10, -precision);
    return nearbyint(f / unit) * unit;
}

/* The same for an integer, to tens, hundreds and so on. */
static int64_t round_whole(struct jinja *j, int64_t i, int precision)
{
    int64_t unit = 1, up;
    if (precision < -19)
        return 0;
    for (; precision < 0; precision++)
        if (__builtin_mul_overflow(unit, 10, &unit))
            return 0;
    const int64_t rest = i % unit, over = rest < 0 ? -rest : rest, kept = i - rest;
    if (over < unit - over || (over == unit - over && kept / unit % 2 == 0))
        return kept;
    if (__builtin_add_overflow(kept, i < 0 ? -unit : unit, &up))
        jinja_fail(j, "round: the number is too large");
    return up;
}

/* Python's results are integers: there is no -0, and infinity is an error. */
static double finite_whole(struct jinja *j, double f)
{
    if (!isfinite(f))
        jinja_fail(j, "round: the number is infinite or none");
    return f == 0 ? 0 : f;
}

JINJA_FILTER(round)
{
    JINJA_UNUSED;
    int64_t precision = jinja_arg_int(j, arg[0], 0);
    struct jinja_value method = jinja_arg_str(j, arg[1], "common");
    jinja_require_defined(j, self);
    if (self.kind == JINJA_BIG && precision >= 0 && jinja_equals_cstr(method, "common"))
        return self;
    if (!jinja_is_number(self))
        jinja_fail(j, "round needs a number, not a %s", jinja_type_name(self));
    if (precision < -300 || precision > 300)
        jinja_fail(j, "round: the precision is from -300 to 300");
    double f = jinja_as_double(self), unit = pow(10, (double)precision);
    if (jinja_equals_cstr(method, "common"))
        return self.kind == JINJA_FLOAT ? jinja_float(round_common(f, (int)precision))
                                        : jinja_int(round_whole(j, jinja_as_int(self), (int)precision));
    if (jinja_equals_cstr(method, "ceil"))
        return jinja_float((finite_whole(j, ceil(f * unit))) / unit);
    if (jinja_equals_cstr(method, "floor"))
        return jinja_float((finite_whole(j, floor(f * unit))) / unit);
    jinja_fail(j, "round: the method is common, ceil or floor");
}

/* --- anything ------------------------------------------------------------------------------------------- */

JINJA_FILTER(default)
{
    JINJA_UNUSED;
    if (self.kind == JINJA_UNDEFINED || (jinja_truth(arg[1]) && !jinja_truth(self)))
        return jinja_given(arg[0]) ? arg[0] : jinja_str("", 0);
    return self;
}

JINJA_FILTER(length) { JINJA_UNUSED; return jinja_int(jinja_length(j, self)); }

/* Like x.name, but never a key. */
JINJA_FILTER(attr)
{
    JINJA_UNUSED;
    struct jinja_value name = jinja_arg_str(j, arg[0], "");
    if (self.kind == JINJA_DICT && !jinja_find_method(self, name.s, name.n))
        return jinja_missing_attribute(name);
    return jinja_attribute(j, self, name);
}

static struct jinja_value separator(struct jinja *j, struct jinja_value pair, size_t i, const char *otherwise)
{
    if (!jinja_given(pair) || pair.kind == JINJA_NONE)
        return jinja_cstr(otherwise);
    const struct jinja_list *list = jinja_iterate(j, pair);
    if (list->n != 2)
        jinja_fail(j, "tojson: separators are a pair of strings");
    return jinja_arg_str(j, list->items[i], "");
}

JINJA_FILTER(tojson)
{
    JINJA_UNUSED;
    struct jinja_json_style style = {.ensure_ascii = jinja_truth(arg[0]), .sort_keys = jinja_truth(arg[3])};
    struct jinja_text t = {0};
    style.pretty = jinja_given(arg[1]) && arg[1].kind != JINJA_NONE;
    if (style.pretty)
        style.indent = indentation(j, arg[1], 0);
    style.item_separator = separator(j, arg[2], 0, style.pretty ? "," : ", ");
    style.key_separator = separator(j, arg[2], 1, ": ");
    jinja_to_json(j, &t, self, &style);
    return jinja_text_value(j, &t);
}

const struct jinja_builtin *jinja_find_filter(const char *name, size_t n)
{
    static const struct jinja_builtin filters[] = {
        {"abs", filter_abs, "", 0},
        {"attr", filter_attr, "name", 1},
        {"capitalize", filter_capitalize, "", JINJA_KEEPS},
        {"center", filter_center, "width", JINJA_KEEPS},
        {"count", filter_length, "", 0},
        {"d", filter_default, "default_value boolean", 0},
        {"default", filter_default, "default_value boolean", 0},
        {"e", filter_escape, "", 0},
        {"escape", filter_escape, "", 0},
        {"float", filter_float, "default", 0},
        {"forceescape", filter_forceescape, "", 0},
        {"format", filter_format, NULL, 0},
        {"indent", filter_indent, "width first blank", JINJA_KEEPS},
        {"int", filter_int, "default base", 0},
        {"length", filter_length, "", 0},
        {"lower", filter_lower, "", JINJA_KEEPS},
        {"replace", filter_replace, "old new count", 2},
        {"round", filter_round, "precision method", 0},
        {"safe", filter_safe, "", 0},
        {"string", filter_string, "", 0},
        {"title", filter_title, "", 0},
        {"tojson", filter_tojson, "ensure_ascii indent separators sort_keys", 0},
        {"trim", filter_trim, "chars", JINJA_KEEPS},
        {"truncate", filter_truncate, "length killwords end leeway", JINJA_KEEPS},
        {"upper", filter_upper, "", JINJA_KEEPS},
        {"wordcount", filter_wordcount, "", 0},
        {NULL, NULL, NULL, 0},
    };
    const struct jinja_builtin *b = jinja_find_builtin(filters, name, n);
    if (!b)
        b = jinja_find_builtin(jinja_text_filters, name, n);
    return b ? b : jinja_find_builtin(jinja_sequence_filters, name, n);
}
