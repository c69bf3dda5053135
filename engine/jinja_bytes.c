/* jinja_bytes.c - bytes: the results of str.encode and int.to_bytes.
 *
 * They are stored as a text with a character for each byte: ASCII as it is; other bytes, and those that a text cannot
 * contain or that only a text treats as white space, as U+E000 and up, which are neither letters nor white space. So
 * the methods of strings work for bytes. */
#include <stdio.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/base/word.h"
#include "engine/jinja_ast.h"
#include "engine/jinja_eval.h"

enum { PRIVATE = 0xE000 };

static void add_byte(struct jinja *j, struct jinja_text *t, uint8_t b)
{
    char utf8[4];
    const bool plain = b && b < 0x80 && !(b >= 0x1C && b <= 0x1F);
    jinja_add(j, t, utf8, pp_utf8_encode(plain ? b : PRIVATE + b, utf8));
}

static uint8_t byte_at(struct jinja_value v, size_t *at)
{
    int32_t cp;
    *at += pp_utf8_decode(v.s + *at, v.n - *at, &cp);
    return (uint8_t)(cp >= PRIVATE ? cp - PRIVATE : cp);
}

static struct jinja_value as_text(struct jinja_value v)
{
    v.kind = JINJA_STRING;
    v.flag = 0;
    return v;
}

static struct jinja_value bytes_value(struct jinja *j, struct jinja_text *t)
{
    struct jinja_value v = jinja_text_value(j, t);
    v.kind = JINJA_BYTES;
    return v;
}

struct jinja_list *jinja_bytes_list(struct jinja *j, struct jinja_value v)
{
    struct jinja_list *list = jinja_list(j);
    for (size_t at = 0; at < v.n;)
        jinja_push(j, list, jinja_int(byte_at(v, &at)));
    return list;
}

int jinja_bytes_compare(struct jinja_value a, struct jinja_value b)
{
    size_t x = 0, y = 0;
    while (x < a.n && y < b.n) {
        const int order = (int)byte_at(a, &x) - (int)byte_at(b, &y);
        if (order)
            return order;
    }
    return (x < a.n) - (y < b.n);
}

struct jinja_value jinja_byte(struct jinja *j, struct jinja_value number)
{
    struct jinja_text t = {0};
    if (jinja_as_int(number) < 0 || jinja_as_int(number) > 255)
        jinja_fail(j, "a byte is a number from 0 to 255");
    add_byte(j, &t, (uint8_t)jinja_as_int(number));
    return bytes_value(j, &t);
}

void jinja_bytes_repr(struct jinja *j, struct jinja_text *t, struct jinja_value v)
{
    const char quote = v.n && memchr(v.s, '\'', v.n) && !memchr(v.s, '"', v.n) ? '"' : '\'';
    jinja_add_char(j, t, 'b');
    jinja_add_char(j, t, quote);
    for (size_t at = 0; at < v.n;) {
        const uint8_t b = byte_at(v, &at);
        char s[8];
        if (b == (uint8_t)quote || b == '\\')
            snprintf(s, sizeof s, "\\%c", b);
        else if (b == '\n' || b == '\r' || b == '\t')
            snprintf(s, sizeof s, "\\%c", b == '\n' ? 'n' : b == '\r' ? 'r' : 't');
        else
            snprintf(s, sizeof s, b >= 0x20 && b < 0x7F ? "%c" : "\\x%02x", b);
        jinja_add_str(j, t, s);
    }
    jinja_add_char(j, t, quote);
}

/* --- encodings ---------------------------------------------------------------------------------------------- */

enum encoding { UTF8, UTF8_SIG, ASCII, LATIN1, UTF16, UTF16_LE, UTF16_BE, UTF32, UTF32_LE, UTF32_BE };

static enum encoding encoding_of(struct jinja *j, struct jinja_value given)
{
    static const struct { const char *name; enum encoding encoding; } names[] = {
        {"utf8", UTF8}, {"u8", UTF8}, {"utf", UTF8}, {"cp65001", UTF8}, {"utf8sig", UTF8_SIG}, {"ascii", ASCII},
        {"usascii", ASCII}, {"646", ASCII}, {"latin1", LATIN1}, {"iso88591", LATIN1}, {"latin", LATIN1}, {"l1", LATIN1},
        {"8859", LATIN1}, {"cp819", LATIN1}, {"utf16", UTF16}, {"u16", UTF16}, {"utf16le", UTF16_LE},
        {"utf16be", UTF16_BE}, {"utf32", UTF32}, {"u32", UTF32}, {"utf32le", UTF32_LE}, {"utf32be", UTF32_BE},
    };
    const struct jinja_value name = jinja_arg_str(j, given, "utf-8");
    char plain[16] = "";
    for (size_t i = 0, n = 0; i < name.n && n + 1 < sizeof plain; i++)
        if (!strchr("-_ ", name.s[i]))
            plain[n++] = pp_lower(name.s[i]);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(plain, names[i].name) == 0)
            return names[i].encoding;
    jinja_fail(j, "unknown encoding '%.*s'; supported are utf-8, ascii, latin-1, utf-16 and utf-32",
               jinja_shown(name.s, name.n), name.s);
}

static void add_unit(struct jinja *j, struct jinja_text *t, uint32_t v, int width, bool big)
{
    for (int i = 0; i < width; i++)
        add_byte(j, t, (uint8_t)(v >> 8 * (big ? width - 1 - i : i)));
}

static int width_of(enum encoding e)
{
    return e >= UTF32 ? 4 : e >= UTF16 ? 2 : 1;
}

static bool is_big(enum encoding e)
{
    return e == UTF16_BE || e == UTF32_BE;
}

static void add_encoded(struct jinja *j, struct jinja_text *t, int32_t cp, enum encoding e)
{
    char utf8[4];
    if (e == UTF16 || e == UTF16_LE || e == UTF16_BE) {
        if (cp >= 0x10000)
            add_unit(j, t, 0xD800 + (((uint32_t)cp - 0x10000) >> 10), 2, is_big(e));
        add_unit(j, t, cp >= 0x10000 ? 0xDC00 + ((uint32_t)cp & 0x3FF) : (uint32_t)cp, 2, is_big(e));
    } else if (e >= UTF32) {
        add_unit(j, t, (uint32_t)cp, 4, is_big(e));
    } else if (e == ASCII || e == LATIN1) {
        add_byte(j, t, (uint8_t)cp);
    } else {
        const size_t n = pp_utf8_encode(cp, utf8);
        for (size_t i = 0; i < n; i++)
            add_byte(j, t, (uint8_t)utf8[i]);
    }
}

/* Adds the replacement of a character that the encoding lacks. */
static void add_lacking(struct jinja *j, struct jinja_text *t, int32_t cp, struct jinja_value errors)
{
    char s[16] = "?";
    if (jinja_equals_cstr(errors, "xmlcharrefreplace"))
        snprintf(s, sizeof s, "&#%d;", (int)cp);
    else if (jinja_equals_cstr(errors, "backslashreplace"))
        snprintf(s, sizeof s, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)cp);
    else if (jinja_equals_cstr(errors, "ignore"))
        s[0] = 0;
    else if (!jinja_equals_cstr(errors, "replace"))
        jinja_fail(j, "the encoding has no U+%04X", (unsigned)cp);
    jinja_add_str(j, t, s);
}

struct jinja_value jinja_encode(struct jinja *j, struct jinja_value text, struct jinja_value encoding,
                                struct jinja_value errors)
{
    const enum encoding e = encoding_of(j, encoding);
    const struct jinja_value how = jinja_arg_str(j, errors, "strict");
    struct jinja_text t = {0};
    if (e == UTF8_SIG || e == UTF16 || e == UTF32)
        add_encoded(j, &t, 0xFEFF, e);
    jinja_work(j, text.n);
    for (size_t i = 0; i < text.n;) {
        int32_t cp;
        i += pp_utf8_decode(text.s + i, text.n - i, &cp);
        cp = cp < 0 ? 0xFFFD : cp;
        if ((e == ASCII && cp >= 0x80) || (e == LATIN1 && cp >= 0x100))
            add_lacking(j, &t, cp, how);
        else
            add_encoded(j, &t, cp, e);
    }
    return bytes_value(j, &t);
}

/* Length of an invalid sequence: one byte, or all bytes that could have begun a character. */
static size_t broken(const uint8_t *p, size_t n)
{
    const uint8_t c = p[0];
    const size_t want = c >= 0xC2 && c <= 0xDF ? 2 : c >= 0xE0 && c <= 0xEF ? 3 : c >= 0xF0 && c <= 0xF4 ? 4 : 1;
    const uint8_t least = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80, most = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
    size_t have = 1;
    while (have < want && have < n && p[have] >= (have == 1 ? least : 0x80) && p[have] <= (have == 1 ? most : 0xBF))
        have++;
    return have;
}

static uint32_t unit_at(const uint8_t *p, int width, bool big)
{
    uint32_t v = 0;
    for (int i = 0; i < width; i++)
        v |= (uint32_t)p[i] << 8 * (big ? width - 1 - i : i);
    return v;
}

/* Decodes one character of p[0..n): returns its bytes, and *cp, which is -1 if they are invalid. */
static size_t decode_one(const uint8_t *p, size_t n, enum encoding e, bool big, int32_t *cp)
{
    const size_t width = (size_t)width_of(e);
    *cp = -1;
    if (width == 1) {
        const size_t len = e == UTF8 || e == UTF8_SIG ? pp_utf8_decode((const char *)p, n, cp) : 1;
        if (len == 1 && (e == LATIN1 || *p < 0x80))
            *cp = *p;
        return *cp < 0 && e != ASCII ? broken(p, n) : len;
    }
    if (n < width)
        return n;
    const uint32_t v = unit_at(p, (int)width, big);
    const bool half = v >= 0xD800 && v < 0xE000;
    if (width == 2 && half && v < 0xDC00 && n >= 4) {
        const uint32_t low = unit_at(p + 2, 2, big);
        if (low >= 0xDC00 && low < 0xE000) {
            *cp = (int32_t)(0x10000 + ((v - 0xD800) << 10) + (low - 0xDC00));
            return 4;
        }
    }
    if (!half && v < 0x110000)
        *cp = (int32_t)v;
    return width;
}

static void add_broken(struct jinja *j, struct jinja_text *t, const uint8_t *p, size_t n, struct jinja_value errors)
{
    char s[8];
    if (jinja_equals_cstr(errors, "replace"))
        jinja_add_str(j, t, "\uFFFD");
    else if (!jinja_equals_cstr(errors, "ignore") && !jinja_equals_cstr(errors, "backslashreplace"))
        jinja_fail(j, "the bytes are not valid text in this encoding");
    for (size_t i = 0; i < n && jinja_equals_cstr(errors, "backslashreplace"); i++) {
        snprintf(s, sizeof s, "\\x%02x", p[i]);
        jinja_add_str(j, t, s);
    }
}

static struct jinja_value decode(struct jinja *j, struct jinja_value v, struct jinja_value encoding,
                                 struct jinja_value errors)
{
    const enum encoding e = encoding_of(j, encoding);
    const struct jinja_value how = jinja_arg_str(j, errors, "strict");
    struct jinja_text t = {0};
    uint8_t *p = jinja_alloc(j, v.n + 1);
    size_t n = 0;
    bool big = is_big(e);
    jinja_work(j, v.n);
    for (size_t at = 0; at < v.n;)
        p[n++] = byte_at(v, &at);
    for (size_t i = 0, len; i < n; i += len) {
        int32_t cp;
        char utf8[4];
        len = decode_one(p + i, n - i, e, big, &cp);
        const bool marks = (e == UTF8_SIG || e == UTF16 || e == UTF32) && i == 0;
        const bool swapped = marks && (e == UTF16 ? cp == 0xFFFE
                                                 : e == UTF32 && n >= 4 && unit_at(p, 4, true) == 0xFEFF);
        big |= swapped;
        if (swapped || (marks && cp == 0xFEFF))
            continue;
        if (cp == 0)
            jinja_fail(j, "a text cannot contain the character U+0000");
        if (cp < 0)
            add_broken(j, &t, p + i, len, how);
        else
            jinja_add(j, &t, utf8, pp_utf8_encode(cp, utf8));
    }
    return jinja_text_value(j, &t);
}

/* --- methods of bytes that are those of strings --------------------------------------------------------------- */

/* Converts an argument for the method of strings. */
static struct jinja_value argument(struct jinja *j, struct jinja_value v)
{
    if (v.kind == JINJA_BYTES)
        return as_text(v);
    if (v.kind == JINJA_STRING)
        jinja_fail(j, "bytes are needed, not a str");
    if (!jinja_is_list(v))
        return v;
    const struct jinja_list *list = jinja_iterate(j, v);
    struct jinja_list *made = jinja_list(j);
    for (size_t i = 0; i < list->n; i++) {
        if (list->items[i].kind != JINJA_BYTES)
            jinja_fail(j, "bytes are needed, not a %s", jinja_type_name(list->items[i]));
        jinja_push(j, made, as_text(list->items[i]));
    }
    return jinja_wrap(v.kind == JINJA_TUPLE ? JINJA_TUPLE : JINJA_LIST, made);
}

static struct jinja_value result(struct jinja *j, struct jinja_value v)
{
    if (v.kind == JINJA_STRING)
        v.kind = JINJA_BYTES;
    else if (v.kind == JINJA_LIST || v.kind == JINJA_TUPLE)
        for (size_t i = 0; i < v.list->n; i++)
            v.list->items[i] = result(j, v.list->items[i]);
    return v;
}

static struct jinja_value by_text(struct jinja *j, struct jinja_value self, const char *name,
                                  const struct jinja_args *args)
{
    const struct jinja_builtin *b = jinja_find_method(as_text(self), name, strlen(name));
    struct jinja_value *pos = jinja_alloc(j, (args->n_pos + 1) * sizeof *pos);
    struct jinja_pair *named = jinja_alloc(j, (args->n_named + 1) * sizeof *named);
    const bool finds = strstr("find rfind index rindex count", name) != NULL;
    for (size_t i = 0; i < args->n_pos; i++)
        pos[i] = argument(j, i == 0 && finds && jinja_is_integral(args->pos[i]) ? jinja_byte(j, args->pos[i])
                                                                                 : args->pos[i]);
    for (size_t i = 0; i < args->n_named; i++)
        named[i] = (struct jinja_pair){args->named[i].key, argument(j, args->named[i].value)};
    const struct jinja_args given = {.pos = pos, .n_pos = args->n_pos, .named = named, .n_named = args->n_named};
    return result(j, jinja_invoke(j, b, as_text(self), &given));
}

/* Converts an argument of a format: bytes or numbers. */
static struct jinja_value formatted(struct jinja *j, struct jinja_value v)
{
    if (v.kind == JINJA_STRING)
        jinja_fail(j, "bytes are needed, not a str");
    return v.kind == JINJA_BYTES ? as_text(v) : v;
}

struct jinja_value jinja_bytes_percent(struct jinja *j, struct jinja_value format, struct jinja_value args)
{
    if (args.kind != JINJA_TUPLE)
        return result(j, jinja_percent(j, as_text(format), formatted(j, args)));
    struct jinja_list *list = jinja_list(j);
    for (size_t i = 0; i < args.list->n; i++)
        jinja_push(j, list, formatted(j, args.list->items[i]));
    return result(j, jinja_percent(j, as_text(format), jinja_wrap(JINJA_TUPLE, list)));
}

#define METHOD(id)                                                                                                    \
    static struct jinja_value id(struct jinja *j, struct jinja_value self, const struct jinja_value *arg,             \
                                 const struct jinja_args *args)
#define UNUSED (void)j, (void)self, (void)arg, (void)args
#define AS_TEXT(X)                                                                                                    \
    X(strip) X(lstrip) X(rstrip) X(upper) X(lower) X(capitalize) X(title) X(swapcase) X(split) X(rsplit) X(partition) \
    X(rpartition) X(startswith) X(endswith) X(removeprefix) X(removesuffix) X(replace) X(join) X(find) X(rfind)       \
    X(index) X(rindex) X(count) X(expandtabs) X(istitle) X(isalpha) X(isdigit) X(isalnum) X(isspace) X(isupper)       \
    X(islower) X(ljust) X(center) X(rjust) X(zfill)
#define DEFINE(name) METHOD(bytes_##name) { UNUSED; return by_text(j, self, #name, args); }
#define ENTRY(name) {#name, bytes_##name, NULL, 0},
AS_TEXT(DEFINE)

/* --- other methods -------------------------------------------------------------------------------------------- */

METHOD(bytes_decode) { UNUSED; return decode(j, self, arg[0], arg[1]); }

METHOD(bytes_isascii)
{
    UNUSED;
    for (size_t at = 0; at < self.n;)
        if (byte_at(self, &at) >= 0x80)
            return jinja_bool(false);
    return jinja_bool(true);
}

/* Splits at line ends only. */
METHOD(bytes_splitlines)
{
    UNUSED;
    const bool keep = jinja_truth(arg[0]);
    struct jinja_list *list = jinja_list(j);
    jinja_work(j, self.n);
    for (size_t at = 0, begin = 0; at < self.n; begin = at) {
        size_t end = begin;
        while (end < self.n && self.s[end] != '\n' && self.s[end] != '\r')
            end++;
        at = end + (end < self.n) + (end + 1 < self.n && self.s[end] == '\r' && self.s[end + 1] == '\n');
        struct jinja_value line = jinja_str(self.s + begin, (keep ? at : end) - begin);
        line.kind = JINJA_BYTES;
        jinja_push(j, list, line);
    }
    return jinja_wrap(JINJA_LIST, list);
}

/* With a separator between groups of bytes; groups are counted from the right if the given size is positive. */
METHOD(bytes_hex)
{
    UNUSED;
    const struct jinja_value sep = arg[0].kind == JINJA_BYTES ? as_text(arg[0]) : jinja_arg_str(j, arg[0], "");
    const int64_t each = jinja_arg_int(j, arg[1], 1);
    const size_t n = jinja_count_chars(j, self), group = each < 0 ? 0 - (size_t)each : (size_t)each;
    struct jinja_text t = {0};
    if (jinja_given(arg[0]) && (sep.n != 1 || (uint8_t)*sep.s >= 0x80))
        jinja_fail(j, "hex: what stands between is one character of ASCII");
    jinja_work(j, n);
    for (size_t at = 0, i = 0; at < self.n; i++) {
        char s[4];
        snprintf(s, sizeof s, "%02x", byte_at(self, &at));
        if (i && sep.n && group && (each < 0 ? i : n - i) % group == 0)
            jinja_add(j, &t, sep.s, 1);
        jinja_add_str(j, &t, s);
    }
    return jinja_text_value(j, &t);
}

METHOD(bytes_fromhex)
{
    UNUSED;
    static const char digits[] = "0123456789abcdef";
    const struct jinja_value s = jinja_arg_str(j, arg[0], "");
    struct jinja_text t = {0};
    for (size_t i = 0; i < s.n;) {
        const char *high = memchr(digits, pp_lower(s.s[i]), 16);
        const char *low = i + 1 < s.n ? memchr(digits, pp_lower(s.s[i + 1]), 16) : NULL;
        if ((uint8_t)s.s[i] < 0x80 && jinja_is_space(s.s[i])) {
            i++;
            continue;
        }
        if (!high || !low)
            jinja_fail(j, "fromhex: not a pair of hexadecimal digits");
        add_byte(j, &t, (uint8_t)((high - digits) << 4 | (low - digits)));
        i += 2;
    }
    return bytes_value(j, &t);
}

const struct jinja_builtin jinja_bytes_methods[] = {
    AS_TEXT(ENTRY)
    {"decode", bytes_decode, "encoding errors", 0},
    {"isascii", bytes_isascii, "", 0},
    {"splitlines", bytes_splitlines, "keepends", 0},
    {"hex", bytes_hex, "sep bytes_per_sep", 0},
    {"fromhex", bytes_fromhex, "string", 1},
    {NULL, NULL, NULL, 0},
};

/* --- numbers ------------------------------------------------------------------------------------------------- */

static bool is_big_end(struct jinja *j, struct jinja_value order)
{
    const struct jinja_value s = jinja_arg_str(j, order, "big");
    if (!jinja_equals_cstr(s, "big") && !jinja_equals_cstr(s, "little"))
        jinja_fail(j, "the order of bytes is 'big' or 'little'");
    return jinja_equals_cstr(s, "big");
}

struct jinja_value jinja_int_to_bytes(struct jinja *j, int64_t v, int64_t length, struct jinja_value order, bool sign)
{
    const bool big = is_big_end(j, order);
    struct jinja_text t = {0};
    const int64_t rest = length >= 8 ? v >> 63 : length > 0 ? v >> (8 * length - sign) : v;
    if (length < 0 || (v < 0 && !sign) || (length == 0 && v != 0) || (rest != 0 && !(sign && rest == -1)))
        jinja_fail(j, "to_bytes: the number does not fit into %lld bytes", (long long)length);
    jinja_work(j, (size_t)length);
    for (int64_t i = 0; i < length; i++) {
        const int64_t at = big ? length - 1 - i : i;
        add_byte(j, &t, at < 8 ? (uint8_t)((uint64_t)v >> 8 * at) : v < 0 ? 0xFF : 0);
    }
    return bytes_value(j, &t);
}

struct jinja_value jinja_int_from_bytes(struct jinja *j, struct jinja_value v, struct jinja_value order, bool sign)
{
    const bool big = is_big_end(j, order);
    const struct jinja_list *list = v.kind == JINJA_BYTES ? jinja_bytes_list(j, v) : NULL;
    struct jinja_value sum = jinja_int(0);
    if (!list)
        jinja_fail(j, "from_bytes needs bytes, not a %s", jinja_type_name(v));
    for (size_t i = 0; i < list->n; i++) {
        const struct jinja_value byte = list->items[big ? i : list->n - 1 - i];
        const bool first = i == 0 && sign && byte.i >= 0x80;
        sum = jinja_operate(j, JINJA_OP_MUL, sum, jinja_int(256));
        sum = jinja_operate(j, JINJA_OP_ADD, sum, first ? jinja_int(byte.i - 256) : byte);
    }
    return sum;
}
