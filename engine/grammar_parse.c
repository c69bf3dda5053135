/* grammar_parse.c - GBNF, the notation of grammars that other programs read, too; doc/grammar.md describes it. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/grammar_build.h"

struct parser {
    struct pp_builder b;
    const char *name, *text, *at, *end;
    struct pp_chars *ranges; /* of the class that is read */
    size_t cap_ranges;
    uint32_t *index;         /* [n_index]: a hash table of rules by name, each plus 1; 0: free */
    size_t n_index;
};

/* --- where ------------------------------------------------------------------------------------------------------- */

static void place(const struct parser *p, const char *at, unsigned *line, unsigned *column)
{
    *line = *column = 1;
    for (const char *s = p->text; s < at; s++) {
        if (*s == '\n') {
            ++*line;
            *column = 1;
        } else if (((unsigned char)*s & 0xC0) != 0x80) {
            ++*column;
        }
    }
}

static void __attribute__((format(printf, 3, 4))) wrong(struct parser *p, const char *at, const char *fmt, ...)
{
    char what[300];
    unsigned line, column;
    va_list ap;
    va_start(ap, fmt);
    pp_utf8_vprint(what, sizeof what, fmt, ap);
    va_end(ap);
    place(p, at, &line, &column);
    pp_gb_fail(&p->b, PP_ERR_FORMAT, "%.120s:%u:%u: %s", p->name, line, column, what);
}

/* --- tokens of the notation -------------------------------------------------------------------------------------- */

static bool more(const struct parser *p)
{
    return p->at < p->end && !p->b.code;
}

static char peek(const struct parser *p)
{
    return more(p) ? *p->at : '\0';
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static size_t name_at(const struct parser *p, const char *s)
{
    size_t n = 0;
    while (s + n < p->end && is_name(s[n]))
        n++;
    return n;
}

/* Blanks and comments, with `lines` also line ends; returns whether there was a line end. */
static bool skip_space(struct parser *p, bool lines)
{
    bool any = false;
    while (p->at < p->end) {
        const char c = *p->at;
        if (c == '#') {
            while (p->at < p->end && *p->at != '\n')
                p->at++;
        } else if (c == ' ' || c == '\t' || (c == '\r' && (lines || (p->at + 1 < p->end && p->at[1] == '\n')))) {
            p->at++;
        } else if (c == '\n' && lines) {
            any = true;
            p->at++;
        } else {
            break;
        }
    }
    return any;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                                                                       : -1;
}

static int32_t read_hex(struct parser *p, const char *from, int digits)
{
    int64_t v = 0;
    for (int i = 0; i < digits; i++) {
        const int d = p->at < p->end ? hex_digit(*p->at) : -1;
        if (d < 0) {
            wrong(p, from, "\\%c needs %d hexadecimal digits", from[1], digits);
            return 0;
        }
        v = v * 16 + d;
        p->at++;
    }
    if (v > 0x10FFFF || (v >= 0xD800 && v < 0xE000)) {
        wrong(p, from, "there is no character %llX", (unsigned long long)v);
        return 0;
    }
    return (int32_t)v;
}

/* A character of a literal or a class, escaped or not. */
static int32_t read_char(struct parser *p)
{
    const char *from = p->at;
    int32_t cp = 0;
    if (*p->at != '\\') {
        p->at += pp_utf8_decode(p->at, (size_t)(p->end - p->at), &cp);
        if (cp < 0)
            wrong(p, from, "this byte is not UTF-8");
        return cp < 0 ? 0 : cp;
    }
    p->at++;
    const char c = peek(p);
    p->at += p->at < p->end;
    switch (c) {
    case 'n': return '\n';
    case 't': return '\t';
    case 'r': return '\r';
    case 'x': return read_hex(p, from, 2);
    case 'u': return read_hex(p, from, 4);
    case 'U': return read_hex(p, from, 8);
    case '\\': case '"': case '[': case ']': case '-': case '^': case '/': case '\'':
        return c;
    default:
        wrong(p, from, "unknown escape; there are \\n \\t \\r \\\\ \\\" \\[ \\] \\- \\^ \\xHH \\uHHHH \\UHHHHHHHH");
        return 0;
    }
}

/* --- parts of a rule --------------------------------------------------------------------------------------------- */

static uint32_t read_literal(struct parser *p)
{
    const char *from = p->at++;
    struct pp_buf text = {0};
    while (more(p) && *p->at != '"' && *p->at != '\n') {
        char bytes[4];
        const int32_t cp = read_char(p);
        pp_buf_add(&text, bytes, pp_utf8_encode(cp, bytes));
    }
    if (peek(p) == '"')
        p->at++;
    else
        wrong(p, from, "this text has no closing \"");
    const uint32_t x = pp_gb_bytes(&p->b, pp_buf_cstr(&text), text.len);
    if (text.bad)
        p->b.code = pp_fail_nomem(&p->b.err, "the grammar");
    pp_buf_free(&text);
    return x;
}

static uint32_t read_class(struct parser *p)
{
    const char *from = p->at++;
    size_t n = 0;
    const bool negated = peek(p) == '^';
    p->at += negated;
    while (more(p) && *p->at != ']' && *p->at != '\n') {
        const char *begin = p->at;
        const int32_t first = read_char(p);
        int32_t last = first;
        if (p->end - p->at >= 2 && p->at[0] == '-' && p->at[1] != ']') {
            p->at++;
            last = read_char(p);
        }
        if (last < first)
            wrong(p, begin, "this range is empty: its first character comes after its last");
        if (pp_grow(&p->ranges, &p->cap_ranges, n + 1, sizeof *p->ranges) != 0) {
            p->b.code = pp_fail_nomem(&p->b.err, "the grammar");
            return PP_GX_EMPTY;
        }
        p->ranges[n++] = (struct pp_chars){first, last};
    }
    if (peek(p) == ']')
        p->at++;
    else
        wrong(p, from, "this class has no closing ]");
    if (n == 0 && !negated)
        wrong(p, from, "an empty class matches nothing; remove it");
    return pp_gb_class(&p->b, p->ranges, n, negated);
}

/* <text>, <[number]>; after ! all other tokens. */
static uint32_t read_token(struct parser *p)
{
    const char *from = p->at;
    const bool negated = *p->at == '!';
    p->at += negated;
    if (peek(p) != '<') {
        wrong(p, from, "after ! there must be a token, such as !<[1000]> or !</think>");
        return PP_GX_EMPTY;
    }
    const char *text = p->at++;
    if (peek(p) == '[') {
        int64_t id = 0;
        int digits = 0;
        for (p->at++; more(p) && *p->at >= '0' && *p->at <= '9' && digits < 10; digits++)
            id = id * 10 + (*p->at++ - '0');
        if (!digits || id > INT32_MAX || p->end - p->at < 2 || p->at[0] != ']' || p->at[1] != '>')
            wrong(p, from, "a token's number is written as <[1000]>");
        else
            p->at += 2;
        return pp_gb_token(&p->b, (int32_t)id, NULL, 0, negated);
    }
    while (more(p) && *p->at != '>' && *p->at != '\n')
        p->at++;
    if (peek(p) != '>' || p->at == text + 1) {
        wrong(p, from, "this token has no closing >, or no text");
        return PP_GX_EMPTY;
    }
    p->at++;
    return pp_gb_token(&p->b, -1, text, (size_t)(p->at - text), negated);
}

static uint32_t read_number(struct parser *p, bool *given)
{
    const char *from = p->at;
    uint32_t v = 0;
    *given = false;
    for (; more(p) && *p->at >= '0' && *p->at <= '9'; p->at++) {
        v = v * 10 + (uint32_t)(*p->at - '0');
        *given = true;
        if (v > PP_GRAMMAR_REPEAT_MOST) {
            wrong(p, from, "at most %d repetitions can be counted; use * or {m,} for more", PP_GRAMMAR_REPEAT_MOST);
            return 0;
        }
    }
    return v;
}

/* *, +, ?, {m}, {m,}, {m,n} */
static uint32_t read_repeats(struct parser *p, uint32_t x)
{
    for (int n = 0; more(p); n++) {
        const char c = *p->at, *from = p->at;
        if (c != '*' && c != '+' && c != '?' && c != '{')
            break;
        p->at++;
        if (n >= PP_GRAMMAR_DEPTH_MOST)
            wrong(p, from, "too many repetitions of repetitions");
        if (c != '{') {
            x = pp_gb_repeat(&p->b, x, c == '+', c == '?' ? 1 : UINT32_MAX);
            continue;
        }
        bool least_given, most_given = false;
        skip_space(p, false);
        const uint32_t least = read_number(p, &least_given);
        uint32_t most = least;
        skip_space(p, false);
        if (peek(p) == ',') {
            p->at++;
            skip_space(p, false);
            most = read_number(p, &most_given);
            most = most_given ? most : UINT32_MAX;
            skip_space(p, false);
        }
        if (!least_given || peek(p) != '}')
            wrong(p, from, "a repetition is written as {m}, {m,} or {m,n}");
        else if (most < least)
            wrong(p, from, "this repetition has a maximum below its minimum");
        p->at += p->at < p->end;
        x = pp_gb_repeat(&p->b, x, least, most);
    }
    return x;
}

/* --- rules ------------------------------------------------------------------------------------------------------- */

static size_t hash_name(const char *name, size_t n)
{
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    for (size_t i = 0; i < n; i++)
        h = (h ^ (uint8_t)name[i]) * 1099511628211u;
    return (size_t)(h ^ h >> 32);
}

static bool make_room(struct parser *p)
{
    if (2 * p->b.n_rules < p->n_index)
        return true;
    const size_t n = p->n_index ? 2 * p->n_index : 64;
    uint32_t *index = pp_calloc(n, sizeof *index);
    if (!index) {
        p->b.code = pp_fail_nomem(&p->b.err, "the grammar");
        return false;
    }
    for (uint32_t r = 0; r < p->b.n_rules; r++) {
        size_t i = hash_name(p->b.rules[r].name, strlen(p->b.rules[r].name)) & (n - 1);
        while (index[i])
            i = (i + 1) & (n - 1);
        index[i] = r + 1;
    }
    pp_free(p->index);
    p->index = index;
    p->n_index = n;
    return true;
}

static uint32_t rule_named(struct parser *p, const char *name, size_t n)
{
    if (p->b.code || !make_room(p))
        return 0;
    size_t i = hash_name(name, n) & (p->n_index - 1);
    for (; p->index[i]; i = (i + 1) & (p->n_index - 1)) {
        const char *other = p->b.rules[p->index[i] - 1].name;
        if (strncmp(other, name, n) == 0 && !other[n])
            return p->index[i] - 1;
    }
    const uint32_t rule = pp_gb_rule(&p->b, name, n);
    if (p->b.code)
        return 0;
    p->b.rules[rule].at = rule ? (size_t)(name - p->text) : 0; /* the root is known from the start */
    p->index[i] = rule + 1;
    return rule;
}

/* Whether a new rule begins here: NAME ::= */
static bool at_rule(const struct parser *p)
{
    const char *s = p->at + name_at(p, p->at);
    if (s == p->at)
        return false;
    while (s < p->end && (*s == ' ' || *s == '\t'))
        s++;
    return p->end - s >= 3 && memcmp(s, "::=", 3) == 0;
}

static uint32_t read_alternatives(struct parser *p, unsigned depth);

static uint32_t read_item(struct parser *p, unsigned depth)
{
    const char *from = p->at;
    const char c = *p->at;
    uint32_t x = PP_GX_EMPTY;
    if (c == '"') {
        x = read_literal(p);
    } else if (c == '[') {
        x = read_class(p);
    } else if (c == '.') {
        p->at++;
        x = pp_gb_class(&p->b, NULL, 0, true);
    } else if (c == '<' || c == '!') {
        x = read_token(p);
    } else if (c == '(') {
        p->at++;
        if (depth >= PP_GRAMMAR_DEPTH_MOST)
            wrong(p, from, "parentheses are nested more than %d deep", PP_GRAMMAR_DEPTH_MOST);
        else
            x = read_alternatives(p, depth + 1);
        if (peek(p) == ')')
            p->at++;
        else
            wrong(p, from, "this ( has no matching )");
    } else {
        const size_t n = name_at(p, p->at);
        if (c == '*' || c == '+' || c == '?' || c == '{')
            wrong(p, from, "there is nothing before %c that it could repeat", c);
        else if (!n)
            wrong(p, from, "expected a rule, a \"text\", a [class], a token or a parenthesis");
        else
            x = pp_gb_call(&p->b, rule_named(p, p->at, n));
        p->at += n;
    }
    skip_space(p, depth > 0);
    return read_repeats(p, x);
}

/* The items up to the end of the alternative, combined from the last one on. */
static uint32_t read_sequence(struct parser *p, unsigned depth)
{
    uint32_t *items = NULL, x = PP_GX_EMPTY;
    size_t n = 0, cap = 0;
    skip_space(p, depth > 0);
    while (more(p) && *p->at != '|' && *p->at != ')' && *p->at != '\n') {
        if (pp_grow(&items, &cap, n + 1, sizeof *items) != 0) {
            p->b.code = pp_fail_nomem(&p->b.err, "the grammar");
            break;
        }
        items[n++] = read_item(p, depth);
        skip_space(p, depth > 0);
    }
    while (n > 0)
        x = pp_gb_seq(&p->b, items[--n], x);
    pp_free(items);
    return x;
}

/* A line that begins with | continues the rule before it. */
static bool continues(struct parser *p, unsigned depth)
{
    const char *before = p->at;
    skip_space(p, true);
    if (peek(p) == '|')
        return true;
    if (depth == 0)
        p->at = before;
    return false;
}

static uint32_t read_alternatives(struct parser *p, unsigned depth)
{
    uint32_t *items = NULL, x = PP_GX_NEVER;
    size_t n = 0, cap = 0;
    for (bool again = true; again && !p->b.code;) {
        if (pp_grow(&items, &cap, n + 1, sizeof *items) != 0) {
            p->b.code = pp_fail_nomem(&p->b.err, "the grammar");
            break;
        }
        items[n++] = read_sequence(p, depth);
        again = continues(p, depth);
        if (again) {
            p->at++;
            skip_space(p, true);
        }
    }
    while (n > 0)
        x = pp_gb_alt(&p->b, items[--n], x);
    pp_free(items);
    return x;
}

static void read_rule(struct parser *p)
{
    const char *from = p->at;
    const size_t n = name_at(p, p->at);
    if (!at_rule(p)) {
        wrong(p, from, "expected a rule: NAME ::= ...");
        return;
    }
    const uint32_t rule = rule_named(p, from, n);
    p->at = (const char *)memmem(from, (size_t)(p->end - from), "::=", 3) + 3;
    skip_space(p, true);
    if (!p->b.code && p->b.rules[rule].defined) {
        wrong(p, from, "the rule \"%.*s\" is defined twice; join both with |", (int)(n < 80 ? n : 80), from);
        return;
    }
    const uint32_t x = read_alternatives(p, 0);
    if (more(p) && *p->at == ')')
        wrong(p, p->at, "this ) has no matching (");
    else if (more(p) && *p->at != '\n')
        wrong(p, p->at, "expected the end of the line");
    pp_gb_define(&p->b, rule, x);
}

static void check_defined(struct parser *p)
{
    for (size_t i = 0; i < p->b.n_rules; i++) {
        const struct pp_rule *r = &p->b.rules[i];
        if (r->defined)
            continue;
        if (i == 0)
            pp_gb_fail(&p->b, PP_ERR_FORMAT, "%.120s: there is no rule \"root\", with which a grammar begins", p->name);
        else
            wrong(p, p->text + r->at, "there is no rule \"%.80s\"", r->name);
    }
}

enum pp_code pp_grammar_parse(const char *text, size_t n, const char *name, struct pp_grammar **out,
                              struct pp_error *err)
{
    struct parser p = {.name = name, .text = text, .at = text, .end = text + n};
    *out = NULL;
    if (n > PP_GRAMMAR_TEXT_MOST)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%.120s is too large for a grammar: more than %d KiB", name,
                       PP_GRAMMAR_TEXT_MOST >> 10);
    p.at += pp_utf8_mark(text, n);
    pp_gb_init(&p.b);
    rule_named(&p, "root", 4);
    for (skip_space(&p, true); more(&p); skip_space(&p, true))
        read_rule(&p);
    check_defined(&p);
    enum pp_code code = p.b.code;
    if (code && err)
        *err = p.b.err;
    if (!code && (code = pp_gb_compile(&p.b, true, out, err)) == PP_ERR_FORMAT)
        pp_fail_prefix(err, "%.120s", name);
    pp_gb_free(&p.b);
    pp_free(p.ranges);
    pp_free(p.index);
    return code;
}
