/* jinja_print.c - values as text: Python's str(), repr() and json.dumps(). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/jinja_ast.h"
#include "engine/jinja_eval.h"
#include "engine/jinja_value.h"

/* Just above a power of two doubles are twice as far apart as below it, so there the digits that read back may not be
 * the nearest. */
static bool reads_back(double f, int precision, char sci[32])
{
    int exponent;
    snprintf(sci, 32, "%.*e", precision, f);
    char *last = strchr(sci, 'e') - 1;
    if (strtod(sci, NULL) == f || fabs(frexp(f, &exponent)) != 0.5 || *last == '9')
        return strtod(sci, NULL) == f;
    ++*last;
    return strtod(sci, NULL) == f;
}

/* The shortest decimal digits that read back as f, laid out as Python does: an exponent below 1e-4 and from 1e16. */
void jinja_float_repr(double f, char out[JINJA_FLOAT_SIZE])
{
    char sci[32], digits[32]; /* 17 digits and an exponent of three at most */
    if (!isfinite(f)) {
        strcpy(out, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    int precision = 0;
    while (!reads_back(f, precision, sci) && precision < 16)
        precision++;

    int n = 0;
    const char *p = sci + (sci[0] == '-');
    for (; *p != 'e'; p++)
        if (*p >= '0' && *p <= '9')
            digits[n++] = *p;
    digits[n] = 0;
    int exponent = atoi(p + 1);
    const char *sign = signbit(f) ? "-" : "";
    if (exponent < -4 || exponent >= 16)
        snprintf(out, JINJA_FLOAT_SIZE, "%s%c%s%se%c%02d", sign, digits[0], n > 1 ? "." : "", digits + 1,
                 exponent < 0 ? '-' : '+', abs(exponent));
    else if (exponent < 0)
        snprintf(out, JINJA_FLOAT_SIZE, "%s0.%.*s%s", sign, -exponent - 1, "0000", digits);
    else if (exponent + 1 >= n)
        snprintf(out, JINJA_FLOAT_SIZE, "%s%s%.*s.0", sign, digits, exponent + 1 - n, "0000000000000000");
    else
        snprintf(out, JINJA_FLOAT_SIZE, "%s%.*s.%s", sign, exponent + 1, digits, digits + exponent + 1);
}

static void add_float(struct jinja *j, struct jinja_text *t, double f)
{
    char s[JINJA_FLOAT_SIZE];
    jinja_float_repr(f, s);
    jinja_add_str(j, t, s);
}

static void add_int(struct jinja *j, struct jinja_text *t, int64_t i)
{
    char s[24];
    snprintf(s, sizeof s, "%lld", (long long)i);
    jinja_add_str(j, t, s);
}

/* --- repr ----------------------------------------------------------------------------------------------- */

static void repr_string(struct jinja *j, struct jinja_text *t, struct jinja_value v)
{
    char quote = v.n && memchr(v.s, '\'', v.n) && !memchr(v.s, '"', v.n) ? '"' : '\'';
    jinja_add_char(j, t, quote);
    for (size_t i = 0; i < v.n;) {
        int32_t cp;
        char escape[16];
        size_t len = pp_utf8_decode(v.s + i, v.n - i, &cp);
        if (cp == quote || cp == '\\')
            snprintf(escape, sizeof escape, "\\%c", (char)cp);
        else if (cp == '\n' || cp == '\r' || cp == '\t')
            snprintf(escape, sizeof escape, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
        else if (cp < 0 || jinja_is_printable(cp))
            escape[0] = 0;
        else
            snprintf(escape, sizeof escape, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x",
                     (unsigned)cp);
        if (escape[0])
            jinja_add_str(j, t, escape);
        else
            jinja_add(j, t, v.s + i, len);
        i += len;
    }
    jinja_add_char(j, t, quote);
}

static void repr_items(struct jinja *j, struct jinja_text *t, const char *begin, const struct jinja_list *list,
                       const char *end)
{
    jinja_enter(j);
    jinja_add_str(j, t, begin);
    for (size_t i = 0; i < list->n; i++) {
        if (i)
            jinja_add(j, t, ", ", 2);
        jinja_repr(j, t, list->items[i]);
    }
    jinja_add_str(j, t, end);
    jinja_leave(j);
}

static void repr_dict(struct jinja *j, struct jinja_text *t, const struct jinja_dict *d)
{
    jinja_enter(j);
    jinja_add_char(j, t, '{');
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            jinja_add(j, t, ", ", 2);
        jinja_repr(j, t, d->pairs[i].key);
        jinja_add(j, t, ": ", 2);
        jinja_repr(j, t, d->pairs[i].value);
    }
    jinja_add_char(j, t, '}');
    jinja_leave(j);
}

static void repr_macro(struct jinja *j, struct jinja_text *t, struct jinja_value v)
{
    const struct jinja_name *name = v.macro->function->name;
    if (name == j->root->caller) {
        jinja_add_str(j, t, "<Macro anonymous>");
        return;
    }
    jinja_add_str(j, t, "<Macro ");
    repr_string(j, t, jinja_str(name->s, name->n));
    jinja_add_char(j, t, '>');
}

static void repr_loop(struct jinja *j, struct jinja_text *t, struct jinja_value loop)
{
    jinja_add_str(j, t, "<LoopContext ");
    add_int(j, t, (int64_t)loop.loop->at + 1);
    jinja_add_char(j, t, '/');
    add_int(j, t, jinja_loop_attribute(j, loop, jinja_cstr("length")).i);
    jinja_add_char(j, t, '>');
}

/* Python prints functions with an address, except those that are classes. */
static const char *function_name(const char *name)
{
    static const char *const classes[][2] = {
        {"dict", "<class 'dict'>"}, {"cycler", "<class 'jinja2.utils.Cycler'>"},
        {"joiner", "<class 'jinja2.utils.Joiner'>"}, {"namespace", "<class 'jinja2.utils.Namespace'>"},
    };
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (strcmp(name, classes[i][0]) == 0)
            return classes[i][1];
    return "<function>";
}

void jinja_repr(struct jinja *j, struct jinja_text *t, struct jinja_value v)
{
    jinja_work(j, 0);
    switch (v.kind) {
    case JINJA_STRING:
        if (v.flag)
            jinja_add_str(j, t, "Markup(");
        repr_string(j, t, v);
        if (v.flag)
            jinja_add_char(j, t, ')');
        break;
    case JINJA_BYTES:
        jinja_bytes_repr(j, t, v);
        break;
    case JINJA_UNDEFINED:
        jinja_add_str(j, t, "Undefined");
        break;
    case JINJA_NONE:
        jinja_add_str(j, t, "None");
        break;
    case JINJA_BOOL:
        jinja_add_str(j, t, v.b ? "True" : "False");
        break;
    case JINJA_INT:
        add_int(j, t, v.i);
        break;
    case JINJA_BIG:
        jinja_add(j, t, v.s, v.n);
        break;
    case JINJA_FLOAT:
        add_float(j, t, v.f);
        break;
    case JINJA_LIST:
        repr_items(j, t, "[", v.list, "]");
        break;
    case JINJA_TUPLE:
        repr_items(j, t, "(", v.list, v.list->n == 1 ? ",)" : ")");
        break;
    case JINJA_RANGE:
        jinja_add_str(j, t, v.list->name);
        break;
    case JINJA_VIEW:
        jinja_add_str(j, t, v.list->name);
        repr_items(j, t, "([", v.list, "])");
        break;
    case JINJA_SET:
        repr_items(j, t, v.list->n ? "{" : "set(", v.list, v.list->n ? "}" : ")");
        break;
    case JINJA_DICT:
        repr_dict(j, t, v.dict);
        break;
    case JINJA_NAMESPACE:
        jinja_add_str(j, t, "<Namespace ");
        repr_dict(j, t, v.dict);
        jinja_add_char(j, t, '>');
        break;
    case JINJA_MACRO:
        repr_macro(j, t, v);
        break;
    case JINJA_FUNCTION:
        jinja_add_str(j, t, function_name(v.function->name));
        break;
    case JINJA_LOOP:
        repr_loop(j, t, v);
        break;
    case JINJA_SELF:
        jinja_add_str(j, t, "<TemplateReference None>"); /* as for a template without a file */
        break;
    default:
        jinja_add_char(j, t, '<');
        jinja_add_str(j, t, jinja_type_name(v));
        jinja_add_char(j, t, '>');
    }
}

void jinja_print(struct jinja *j, struct jinja_text *t, struct jinja_value v)
{
    if (v.kind == JINJA_STRING)
        jinja_add(j, t, v.s, v.n);
    else if (v.kind != JINJA_UNDEFINED)
        jinja_repr(j, t, v);
}

struct jinja_value jinja_to_string(struct jinja *j, struct jinja_value v)
{
    if (v.kind == JINJA_STRING)
        return v;
    struct jinja_text t = {0};
    jinja_print(j, &t, v);
    return jinja_text_value(j, &t);
}

/* --- JSON ----------------------------------------------------------------------------------------------- */

static void json_unicode(struct jinja *j, struct jinja_text *t, uint32_t cp)
{
    char s[16];
    if (cp >= 0x10000) {
        cp -= 0x10000;
        snprintf(s, sizeof s, "\\u%04x\\u%04x", 0xD800 + (cp >> 10), 0xDC00 + (cp & 0x3FF));
    } else {
        snprintf(s, sizeof s, "\\u%04x", cp);
    }
    jinja_add_str(j, t, s);
}

static void json_string(struct jinja *j, struct jinja_text *t, struct jinja_value v, bool ensure_ascii)
{
    static const char short_escapes[] = "\"\"\\\\\nn\rr\tt\bb\ff"; /* pairs: character, letter */
    jinja_add_char(j, t, '"');
    for (size_t i = 0; i < v.n;) {
        int32_t cp;
        size_t len = pp_utf8_decode(v.s + i, v.n - i, &cp);
        const char *e = short_escapes;
        while (*e && *e != cp)
            e += 2;
        if (*e) {
            jinja_add_char(j, t, '\\');
            jinja_add_char(j, t, e[1]);
        } else if (cp >= 0 && (cp < 0x20 || (ensure_ascii && cp >= 0x7F))) {
            if (cp == 0x7F)
                jinja_add_char(j, t, 0x7F);
            else
                json_unicode(j, t, (uint32_t)cp);
        } else {
            jinja_add(j, t, v.s + i, len);
        }
        i += len;
    }
    jinja_add_char(j, t, '"');
}

static void json_key(struct jinja *j, struct jinja_text *t, struct jinja_value key,
                     const struct jinja_json_style *style)
{
    if (key.kind == JINJA_STRING) {
        json_string(j, t, key, style->ensure_ascii);
        return;
    }
    if (key.kind != JINJA_NONE && !jinja_is_number(key))
        jinja_fail(j, "tojson: a key of a dict may not be a %s", jinja_type_name(key));
    jinja_add_char(j, t, '"');
    jinja_to_json(j, t, key, style);
    jinja_add_char(j, t, '"');
}

struct json_writer {
    struct jinja_text *t;
    const struct jinja_json_style *style;
    size_t level;
};

static void json_value(struct jinja *j, struct json_writer *w, struct jinja_value v);

static void json_newline(struct jinja *j, struct json_writer *w)
{
    if (!w->style->pretty)
        return;
    jinja_add_char(j, w->t, '\n');
    jinja_add_times(j, w->t, w->style->indent.s, w->style->indent.n, w->level);
}

static void json_open(struct jinja *j, struct json_writer *w, char bracket)
{
    if (++w->level > JINJA_MAX_VALUE_DEPTH)
        jinja_fail(j, "tojson: more than %d levels of nesting", JINJA_MAX_VALUE_DEPTH);
    jinja_add_char(j, w->t, bracket);
    json_newline(j, w);
}

static void json_close(struct jinja *j, struct json_writer *w, char bracket)
{
    w->level--;
    json_newline(j, w);
    jinja_add_char(j, w->t, bracket);
}

static void json_separate(struct jinja *j, struct json_writer *w)
{
    jinja_add(j, w->t, w->style->item_separator.s, w->style->item_separator.n);
    json_newline(j, w);
}

static void json_list(struct jinja *j, struct json_writer *w, const struct jinja_list *list)
{
    if (list->n == 0) {
        jinja_add_str(j, w->t, "[]");
        return;
    }
    json_open(j, w, '[');
    for (size_t i = 0; i < list->n; i++) {
        if (i)
            json_separate(j, w);
        json_value(j, w, list->items[i]);
    }
    json_close(j, w, ']');
}

static void json_dict(struct jinja *j, struct json_writer *w, const struct jinja_dict *d)
{
    struct jinja_pair *pairs = d->pairs;
    if (d->n == 0) {
        jinja_add_str(j, w->t, "{}");
        return;
    }
    if (w->style->sort_keys) {
        pairs = jinja_alloc(j, d->n * sizeof *pairs);
        memcpy(pairs, d->pairs, d->n * sizeof *pairs);
        jinja_sort_pairs(j, pairs, d->n);
    }
    json_open(j, w, '{');
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            json_separate(j, w);
        json_key(j, w->t, pairs[i].key, w->style);
        jinja_add(j, w->t, w->style->key_separator.s, w->style->key_separator.n);
        json_value(j, w, pairs[i].value);
    }
    json_close(j, w, '}');
}

static void json_value(struct jinja *j, struct json_writer *w, struct jinja_value v)
{
    jinja_work(j, 0);
    switch (v.kind) {
    case JINJA_NONE:
        jinja_add_str(j, w->t, "null");
        break;
    case JINJA_BOOL:
        jinja_add_str(j, w->t, v.b ? "true" : "false");
        break;
    case JINJA_INT:
        add_int(j, w->t, v.i);
        break;
    case JINJA_BIG:
        jinja_add(j, w->t, v.s, v.n);
        break;
    case JINJA_FLOAT:
        if (isfinite(v.f))
            add_float(j, w->t, v.f);
        else
            jinja_add_str(j, w->t, isnan(v.f) ? "NaN" : v.f < 0 ? "-Infinity" : "Infinity");
        break;
    case JINJA_STRING:
        json_string(j, w->t, v, w->style->ensure_ascii);
        break;
    case JINJA_LIST:
    case JINJA_TUPLE:
        json_list(j, w, v.list);
        break;
    case JINJA_DICT:
        json_dict(j, w, v.dict);
        break;
    default:
        jinja_fail(j, "tojson: a value of type %s has no JSON form", jinja_type_name(v));
    }
}

void jinja_to_json(struct jinja *j, struct jinja_text *t, struct jinja_value v, const struct jinja_json_style *style)
{
    struct json_writer w = {.t = t, .style = style};
    json_value(j, &w, v);
}
