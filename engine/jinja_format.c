/* jinja_format.c - Python's two ways to fill a format string: "%s is %d" % (a, b) and "{} is {n:>5}".format(a, n=b). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/jinja_eval.h"

enum { MAX_WIDTH = 10000, MAX_PRECISION = 100, NUMBER_SIZE = 512 };

/* What is between "%" or ":" and the letter that ends a conversion. */
struct spec {
    struct jinja_value fill; /* one character */
    char align;              /* '<', '>', '^', '=' or 0 */
    char sign;               /* '+', ' ' or 0 */
    bool alternate;
    char separator;          /* ',' or '_' between groups of digits, or 0 */
    int64_t width, precision; /* precision -1: not given */
    char type;               /* 0: not given */
};

struct pattern {
    const char *p, *end;
};

static char peek(const struct pattern *s)
{
    return s->p < s->end ? *s->p : 0;
}

static int64_t read_count(struct jinja *j, struct pattern *s, int64_t max)
{
    int64_t n = 0;
    while (peek(s) >= '0' && peek(s) <= '9') {
        n = n * 10 + (*s->p++ - '0');
        if (n > max)
            jinja_fail(j, "a width or precision in a format is larger than %lld", (long long)max);
    }
    return n;
}

static void add_padded(struct jinja *j, struct jinja_text *t, const struct spec *spec, struct jinja_value v,
                       char otherwise)
{
    char align = spec->align ? spec->align : otherwise;
    v = jinja_pad(j, v, spec->width, spec->fill, align == '<'   ? JINJA_ALIGN_LEFT
                                                 : align == '^' ? JINJA_ALIGN_FORMAT_CENTER
                                                                : JINJA_ALIGN_RIGHT);
    jinja_add(j, t, v.s, v.n);
}

/* digits: with a minus sign, if any; [whole] of them precede a point or exponent. Zeros go between sign or prefix and
 * the digits. */
static void add_digits(struct jinja *j, struct jinja_text *t, const struct spec *spec, const char *prefix,
                       const char *digits, size_t whole, size_t group)
{
    bool minus = *digits == '-';
    char front[8];
    struct jinja_text all = {0};
    snprintf(front, sizeof front, "%s%s", minus ? "-" : spec->sign == '+' ? "+" : spec->sign == ' ' ? " " : "", prefix);
    digits += minus;
    if (spec->align != '=')
        jinja_add_str(j, &all, front);
    for (size_t i = 0; i < whole; i++) {
        if (spec->separator && i && (whole - i) % group == 0)
            jinja_add_char(j, &all, spec->separator);
        jinja_add_char(j, &all, digits[i]);
    }
    jinja_add_str(j, &all, digits + whole);
    struct jinja_value v = jinja_text_value(j, &all);
    if (spec->align == '=') {
        jinja_add_str(j, t, front);
        struct spec rest = *spec;
        rest.width -= (int64_t)strlen(front);
        rest.align = '>';
        add_padded(j, t, &rest, v, '>');
    } else {
        add_padded(j, t, spec, v, '>');
    }
}

/* digits may have NUMBER_SIZE - 200 characters. */
static void add_number(struct jinja *j, struct jinja_text *t, const struct spec *spec, const char *digits)
{
    add_digits(j, t, spec, "", digits, strspn(digits + (*digits == '-'), "0123456789"), 3);
}

static void add_integer(struct jinja *j, struct jinja_text *t, const struct spec *spec, int64_t i, char type)
{
    char s[NUMBER_SIZE], prefix[3] = {'0', type, 0};
    unsigned long long left = i < 0 ? 0 - (unsigned long long)i : (unsigned long long)i;
    const unsigned base = type == 'b' ? 2 : type == 'o' ? 8 : type == 'd' ? 10 : 16;
    const size_t least = spec->precision > 0 ? (size_t)spec->precision : 1;
    size_t at = sizeof s - 1, n = 0;
    for (s[at] = 0; left || n < least; left /= base, n++)
        s[--at] = (type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[left % base];
    if (i < 0)
        s[--at] = '-';
    add_digits(j, t, spec, spec->alternate && type != 'd' ? prefix : "", s + at, n, type == 'd' ? 3 : 4);
}

static void add_real(struct jinja *j, struct jinja_text *t, const struct spec *spec, double f, char type)
{
    char s[NUMBER_SIZE];
    bool percent = type == '%';
    const char form[] = {'%', '.', '*', percent ? 'f' : type, percent ? '%' : 0, '%', 0};
    int precision = spec->precision < 0 ? 6 : (int)spec->precision;
    snprintf(s, sizeof s, form, precision, percent ? f * 100 : f);
    add_number(j, t, spec, s);
}

static double real_argument(struct jinja *j, struct jinja_value v)
{
    jinja_require_defined(j, v);
    if (!jinja_is_number(v))
        jinja_fail(j, "a format needs a number, not a %s", jinja_type_name(v));
    return jinja_as_double(v);
}

static int64_t integer_argument(struct jinja *j, struct jinja_value v, bool truncate)
{
    double f = real_argument(j, v);
    if (v.kind != JINJA_FLOAT)
        return jinja_as_int(v);
    if (!truncate || !(fabs(f) < 9e18))
        jinja_fail(j, "a format needs an integer, not a float");
    return (int64_t)f;
}

static void add_string(struct jinja *j, struct jinja_text *t, const struct spec *spec, struct jinja_value v,
                       char otherwise)
{
    if (spec->precision >= 0)
        v = jinja_str(v.s, jinja_char_offset(j, v, (size_t)spec->precision));
    add_padded(j, t, spec, v, otherwise);
}

static struct jinja_value repr_of(struct jinja *j, struct jinja_value v)
{
    struct jinja_text t = {0};
    jinja_repr(j, &t, v);
    return jinja_text_value(j, &t);
}

/* --- format % args -------------------------------------------------------------------------------------- */

struct percent {
    struct pattern in;
    struct jinja_value args;
    size_t used; /* arguments used: of a tuple, or 1 after a single argument */
};

static struct jinja_value next_argument(struct jinja *j, struct percent *f)
{
    if (f->args.kind == JINJA_TUPLE ? f->used >= f->args.list->n : f->used > 0)
        jinja_fail(j, "a format has more places than arguments");
    return f->args.kind == JINJA_TUPLE ? f->args.list->items[f->used++] : (f->used++, f->args);
}

/* "(name)" after the percent sign; missing: there is none. */
static struct jinja_value named_argument(struct jinja *j, struct percent *f)
{
    struct jinja_value none = {0};
    if (peek(&f->in) != '(')
        return none;
    const char *begin = ++f->in.p, *close = memchr(begin, ')', (size_t)(f->in.end - begin));
    if (!close || f->args.kind != JINJA_DICT)
        jinja_fail(j, "a format with a name needs its ) and a dict");
    const struct jinja_value *v = jinja_dict_find(j, f->args.dict, jinja_str(begin, (size_t)(close - begin)));
    if (!v)
        jinja_fail(j, "a format names a key that the dict does not have");
    f->in.p = close + 1;
    return *v;
}

static struct spec percent_spec(struct jinja *j, struct percent *f)
{
    struct spec spec = {.fill = jinja_cstr(" "), .precision = -1};
    bool zero = false, left = false;
    for (; peek(&f->in) && strchr("-+ #0", peek(&f->in)); f->in.p++) {
        left |= *f->in.p == '-';
        zero |= *f->in.p == '0';
        spec.alternate |= *f->in.p == '#';
        if (*f->in.p == '+' || (*f->in.p == ' ' && !spec.sign))
            spec.sign = *f->in.p;
    }
    if (peek(&f->in) == '*') {
        f->in.p++;
        spec.width = jinja_arg_int(j, next_argument(j, f), 0);
        left |= spec.width < 0;
        spec.width = spec.width < 0 ? -(spec.width + 1) + 1 : spec.width;
        if (spec.width > MAX_WIDTH || spec.width < 0)
            jinja_fail(j, "a width in a format is larger than %d", MAX_WIDTH);
    } else {
        spec.width = read_count(j, &f->in, MAX_WIDTH);
    }
    if (peek(&f->in) == '.') {
        f->in.p++;
        spec.precision = read_count(j, &f->in, MAX_PRECISION);
    }
    spec.align = left ? '<' : zero ? '=' : '>';
    if (zero && !left)
        spec.fill = jinja_cstr("0");
    while (peek(&f->in) && strchr("hlL", peek(&f->in)))
        f->in.p++;
    spec.type = peek(&f->in);
    f->in.p += spec.type != 0;
    return spec;
}

static void add_conversion(struct jinja *j, struct jinja_text *t, struct percent *f)
{
    struct jinja_value v = named_argument(j, f);
    struct spec spec = percent_spec(j, f);
    if (spec.type == '%') {
        jinja_add_char(j, t, '%');
        return;
    }
    if (!jinja_given(v))
        v = next_argument(j, f);
    if (spec.type == 's' || spec.type == 'r' || spec.type == 'a' || spec.type == 'c') {
        if (spec.align == '=') {
            spec.align = '>';
            spec.fill = jinja_cstr(" ");
        }
        if (spec.type == 'c' && v.kind != JINJA_STRING)
            jinja_fail(j, "%%c needs a string of one character");
        add_string(j, t, &spec, spec.type == 's' || spec.type == 'c' ? jinja_to_string(j, v) : repr_of(j, v), '>');
    } else if (spec.type && strchr("diu", spec.type)) {
        add_integer(j, t, &spec, integer_argument(j, v, true), 'd');
    } else if (spec.type && strchr("xXo", spec.type)) {
        add_integer(j, t, &spec, integer_argument(j, v, false), spec.type);
    } else if (spec.type && strchr("eEfFgG", spec.type)) {
        add_real(j, t, &spec, real_argument(j, v), spec.type);
    } else {
        jinja_fail(j, "a format has an unknown or unfinished conversion");
    }
}

/* An argument for a format that is marked as HTML: numbers as they are, others escaped. */
static struct jinja_value escaped(struct jinja *j, struct jinja_value v)
{
    struct jinja_list *list;
    struct jinja_dict *d;
    switch (v.kind) {
    case JINJA_TUPLE:
        list = jinja_list(j);
        for (size_t i = 0; i < v.list->n; i++)
            jinja_push(j, list, v.list->items[i].kind == JINJA_TUPLE || v.list->items[i].kind == JINJA_DICT
                                    ? jinja_as_html(j, v.list->items[i]) : escaped(j, v.list->items[i]));
        return jinja_wrap(JINJA_TUPLE, list);
    case JINJA_DICT:
        d = jinja_dict(j);
        for (size_t i = 0; i < v.dict->n; i++)
            jinja_dict_set(j, d, v.dict->pairs[i].key, v.dict->pairs[i].value.kind == JINJA_DICT
                               ? v.dict->pairs[i].value : escaped(j, v.dict->pairs[i].value));
        return (struct jinja_value){.kind = JINJA_DICT, .dict = d};
    default:
        return jinja_is_number(v) || v.kind == JINJA_BIG ? v : jinja_as_html(j, v);
    }
}

struct jinja_value jinja_percent(struct jinja *j, struct jinja_value format, struct jinja_value args)
{
    const enum jinja_kind kind = (enum jinja_kind)args.kind;
    if (format.flag)
        args = escaped(j, args);
    struct percent f = {.in = {.p = format.s, .end = format.s + format.n}, .args = args};
    struct jinja_text t = {0};
    while (f.in.p < f.in.end) {
        const char *sign = memchr(f.in.p, '%', (size_t)(f.in.end - f.in.p));
        jinja_add(j, &t, f.in.p, (size_t)((sign ? sign : f.in.end) - f.in.p));
        if (!sign)
            break;
        f.in.p = sign + 1;
        jinja_work(j, 0);
        add_conversion(j, &t, &f);
    }
    /* as in Python: values with items could be meant for names */
    const bool may_be_unused = kind == JINJA_DICT || kind == JINJA_LIST || kind == JINJA_RANGE ||
                               kind == JINJA_UNDEFINED || kind == JINJA_SELF;
    if (args.kind == JINJA_TUPLE ? f.used < args.list->n : f.used == 0 && !may_be_unused)
        jinja_fail(j, "a format has fewer places than arguments");
    struct jinja_value v = jinja_text_value(j, &t);
    v.flag = format.flag;
    return v;
}

/* --- format.format(...) --------------------------------------------------------------------------------- */

struct braces {
    struct pattern in;
    const struct jinja_args *args;
    int64_t next; /* next argument without a number; -1 once numbers were used */
};

/* A part of a field, up to one of the stop characters. */
static struct jinja_value piece(struct pattern *s, const char *stop)
{
    const char *begin = s->p;
    while (s->p < s->end && !strchr(stop, *s->p))
        s->p++;
    return jinja_str(begin, (size_t)(s->p - begin));
}

static bool is_index(struct jinja_value s)
{
    return s.n > 0 && s.n < 10 && strspn(s.s, "0123456789") >= s.n;
}

/* s must consist of digits. */
static int64_t index_value(struct jinja_value s)
{
    int64_t i = 0;
    for (uint32_t k = 0; k < s.n; k++)
        i = i * 10 + (s.s[k] - '0');
    return i;
}

static struct jinja_value first_argument(struct jinja *j, struct braces *f)
{
    struct jinja_value name = piece(&f->in, ".[!:}");
    if (name.n == 0 || is_index(name)) {
        if (name.n ? f->next > 0 : f->next < 0)
            jinja_fail(j, "a format numbers some of its places and not the others");
        int64_t i = name.n ? index_value(name) : f->next++;
        if (name.n)
            f->next = -1;
        if (i >= (int64_t)f->args->n_pos)
            jinja_fail(j, "a format has more places than arguments");
        return f->args->pos[i];
    }
    for (size_t i = 0; i < f->args->n_named; i++)
        if (f->args->named[i].key.n == name.n && memcmp(f->args->named[i].key.s, name.s, name.n) == 0)
            return f->args->named[i].value;
    jinja_fail(j, "a format names an argument that is not there: '%.*s'", jinja_shown(name.s, name.n), name.s);
}

static struct jinja_value field_value(struct jinja *j, struct braces *f)
{
    struct jinja_value v = first_argument(j, f);
    for (;;) {
        if (peek(&f->in) == '.') {
            f->in.p++;
            v = jinja_attribute(j, v, piece(&f->in, ".[!:}"));
        } else if (peek(&f->in) == '[') {
            f->in.p++;
            struct jinja_value key = piece(&f->in, "]");
            f->in.p += f->in.p < f->in.end;
            v = jinja_item(j, v, is_index(key) ? jinja_int(index_value(key)) : key);
        } else {
            return v;
        }
    }
}

/* After the colon: [[fill]align][sign][#][0][width][,|_][.precision][type] */
static struct spec brace_spec(struct jinja *j, struct pattern *s)
{
    struct spec spec = {.fill = jinja_cstr(" "), .precision = -1};
    int32_t cp;
    size_t len = s->p < s->end ? pp_utf8_decode(s->p, (size_t)(s->end - s->p), &cp) : 0;
    if (len && s->p + len < s->end && strchr("<>^=", s->p[len]) && s->p[len]) {
        spec.fill = jinja_str(s->p, len);
        spec.align = s->p[len];
        s->p += len + 1;
    } else if (peek(s) && strchr("<>^=", peek(s))) {
        spec.align = *s->p++;
    }
    if (peek(s) && strchr("+- ", peek(s)))
        spec.sign = *s->p++;
    if (peek(s) == '#') {
        spec.alternate = true;
        s->p++;
    }
    if (peek(s) == '0') {
        s->p++;
        if (!spec.align) {
            spec.align = '=';
            spec.fill = jinja_cstr("0");
        }
    }
    spec.width = read_count(j, s, MAX_WIDTH);
    if (peek(s) == ',' || peek(s) == '_')
        spec.separator = *s->p++;
    if (peek(s) == '.') {
        s->p++;
        spec.precision = read_count(j, s, MAX_PRECISION);
    }
    if (peek(s))
        spec.type = *s->p++;
    if (s->p < s->end || (spec.separator == ',' && spec.type && strchr("bxXo", spec.type)))
        jinja_fail(j, "a format has something unknown after its colon");
    return spec;
}

/* Without a type, each kind of value is formatted in its own way. */
static void add_untyped(struct jinja *j, struct jinja_text *t, const struct spec *spec, struct jinja_value v)
{
    char digits[JINJA_FLOAT_SIZE];
    if (v.kind == JINJA_STRING) {
        add_string(j, t, spec, v, '<');
    } else if (v.kind == JINJA_FLOAT && spec->precision >= 0) {
        add_real(j, t, spec, v.f, 'g');
    } else if (v.kind == JINJA_FLOAT) {
        jinja_float_repr(v.f, digits);
        add_number(j, t, spec, digits);
    } else if (jinja_is_integral(v) && spec->precision < 0) {
        add_integer(j, t, spec, jinja_as_int(v), 'd');
    } else {
        jinja_fail(j, "a value of type %s does not take this format", jinja_type_name(v));
    }
}

static void add_field(struct jinja *j, struct jinja_text *t, const struct spec *spec, struct jinja_value v)
{
    if (!spec->type)
        add_untyped(j, t, spec, v);
    else if (strchr("eEfFgG%", spec->type))
        add_real(j, t, spec, real_argument(j, v), spec->type);
    else if (strchr("bdxXo", spec->type) && spec->precision < 0)
        add_integer(j, t, spec, integer_argument(j, v, false), spec->type);
    else if (spec->type == 's' && v.kind == JINJA_STRING)
        add_string(j, t, spec, v, '<');
    else
        jinja_fail(j, "a value of type %s does not take this format", jinja_type_name(v));
}

/* Everything from the colon to the closing brace, with fields in it replaced: "{:>{}}". */
static struct jinja_value text_of_spec(struct jinja *j, struct braces *f)
{
    struct jinja_text t = {0};
    f->in.p++;
    for (;;) {
        const struct jinja_value text = piece(&f->in, "{}");
        jinja_add(j, &t, text.s, text.n);
        if (peek(&f->in) != '{')
            return jinja_text_value(j, &t);
        f->in.p++;
        jinja_print(j, &t, field_value(j, f));
        if (peek(&f->in) != '}')
            jinja_fail(j, "a format lacks a } or has something unknown in it");
        f->in.p++;
    }
}

static void add_replacement(struct jinja *j, struct jinja_text *t, struct braces *f)
{
    struct jinja_value v = field_value(j, f);
    if (peek(&f->in) == '!') {
        char letter = ++f->in.p < f->in.end ? *f->in.p++ : 0;
        v = letter == 'r' || letter == 'a' ? repr_of(j, v) : jinja_to_string(j, v);
    }
    const struct jinja_value how = peek(&f->in) == ':' ? text_of_spec(j, f) : jinja_cstr("");
    if (peek(&f->in) != '}')
        jinja_fail(j, "a format lacks a } or has something unknown in it");
    f->in.p++;
    if (!how.n) {
        jinja_print(j, t, v);
        return;
    }
    const struct spec spec = brace_spec(j, &(struct pattern){how.s, how.s + how.n});
    add_field(j, t, &spec, v);
}

struct jinja_value jinja_format(struct jinja *j, struct jinja_value format, const struct jinja_args *args)
{
    struct braces f = {.in = {.p = format.s, .end = format.s + format.n}, .args = args};
    struct jinja_text t = {0};
    while (f.in.p < f.in.end) {
        struct jinja_value text = piece(&f.in, "{}");
        jinja_add(j, &t, text.s, text.n);
        if (f.in.p == f.in.end)
            break;
        jinja_work(j, 0);
        char brace = *f.in.p++;
        if (peek(&f.in) == brace) {
            jinja_add_char(j, &t, brace);
            f.in.p++;
        } else if (brace == '{') {
            add_replacement(j, &t, &f);
        } else {
            jinja_fail(j, "a format has a single }");
        }
    }
    return jinja_text_value(j, &t);
}
