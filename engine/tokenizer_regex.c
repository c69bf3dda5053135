/* tokenizer_regex.c - translates regular expressions of other libraries to PCRE2's dialect.
 *
 * The library from which tokenizer.json comes uses Oniguruma with its Ruby syntax: https://github.com/kkos/oniguruma,
 * doc/RE. There classes can be nested and intersected ([\w&&[^\d]]), \w means letters, marks, decimal digits and
 * connectors, \h a hexadecimal digit, ^ and $ match at every line, properties have long names, and (?m) lets the point
 * match line feeds. The translation means the same in both dialects, since it may be written to a tokenizer.json again.
 * The rest is copied. Tiktoken's expressions are Rust's, with the same classes, but ^ and $ match at the ends of the
 * text, and \w includes joiners: https://docs.rs/regex. */
#include <stdio.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "engine/base/buf.h"
#include "engine/tokenizer_internal.h"

enum {
    MAX_DEPTH = 64, /* of groups; of classes, each of which is written again where it is intersected */
    MAX_CLASSES = 6,
    MAX_OUT = 1 << 16, /* bytes; also of the input */
};

#define ALPHA "\\p{Alphabetic}"
#define WORD ALPHA "\\p{M}\\p{Nd}\\p{Pc}"
#define LATIN_WORD WORD "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}" /* outside of classes fractions and powers, too */
#define HEX "0-9A-Fa-f"
#define ANY "[\\x{0}-\\x{10FFFF}]"
#define JOINED_WORD WORD "\\x{200c}\\x{200d}"
#define BETWEEN(a, b, word) "(?<" a "[" word "])(?" b "[" word "])"
#define WORD_ENDS(word) "(?:" BETWEEN("=", "!", word) "|" BETWEEN("!", "=", word) ")"
#define NO_WORD_ENDS(word) "(?:" BETWEEN("=", "=", word) "|" BETWEEN("!", "!", word) ")"

struct regex {
    const char *p;
    struct pp_buf *out;
    bool dot_all[MAX_DEPTH]; /* for each open group */
    int depth, classes;
    bool rust;
    bool bad;                /* not an expression, or nested too deep */
};

/* Properties that PCRE2 lacks under this name, or defines otherwise; spaces, hyphens and underscores are ignored. */
static const struct {
    const char *name, *body;
} properties[] = {
    {"alnum", ALPHA "\\p{Nd}"},     {"alpha", ALPHA},               {"blank", "\\t\\p{Zs}"},
    {"cntrl", "\\p{Cc}"},           {"digit", "\\p{Nd}"},           {"lower", "\\p{Lowercase}"},
    {"upper", "\\p{Uppercase}"},    {"punct", "\\p{P}"},            {"space", TOK_WHITE_SPACE},
    {"xdigit", HEX},                {"word", WORD},                 {"letter", "\\p{L}"},
    {"graph", "[:graph:]"},         {"print", "[:print:]"},
    {"uppercaseletter", "\\p{Lu}"}, {"lowercaseletter", "\\p{Ll}"}, {"titlecaseletter", "\\p{Lt}"},
    {"casedletter", "\\p{Lu}\\p{Ll}\\p{Lt}"},                       {"modifierletter", "\\p{Lm}"},
    {"otherletter", "\\p{Lo}"},     {"mark", "\\p{M}"},             {"combiningmark", "\\p{M}"},
    {"nonspacingmark", "\\p{Mn}"},  {"spacingmark", "\\p{Mc}"},     {"enclosingmark", "\\p{Me}"},
    {"number", "\\p{N}"},           {"decimalnumber", "\\p{Nd}"},   {"letternumber", "\\p{Nl}"},
    {"othernumber", "\\p{No}"},     {"punctuation", "\\p{P}"},      {"connectorpunctuation", "\\p{Pc}"},
    {"dashpunctuation", "\\p{Pd}"}, {"openpunctuation", "\\p{Ps}"}, {"closepunctuation", "\\p{Pe}"},
    {"initialpunctuation", "\\p{Pi}"},                              {"finalpunctuation", "\\p{Pf}"},
    {"otherpunctuation", "\\p{Po}"}, {"symbol", "\\p{S}"},          {"mathsymbol", "\\p{Sm}"},
    {"currencysymbol", "\\p{Sc}"},  {"modifiersymbol", "\\p{Sk}"},  {"othersymbol", "\\p{So}"},
    {"separator", "\\p{Z}"},        {"spaceseparator", "\\p{Zs}"},  {"lineseparator", "\\p{Zl}"},
    {"paragraphseparator", "\\p{Zp}"}, {"other", "\\p{C}"},         {"control", "\\p{Cc}"},
    {"format", "\\p{Cf}"},          {"privateuse", "\\p{Co}"},      {"unassigned", "\\p{Cn}"},
};

static const char *property(const char *name, size_t n, bool posix)
{
    char plain[32];
    size_t len = 0;
    for (size_t i = 0; i < n; i++)
        if (!strchr(" -_", name[i])) {
            if (len == sizeof plain - 1)
                return NULL;
            plain[len++] = (char)(name[i] >= 'A' && name[i] <= 'Z' ? name[i] - 'A' + 'a' : name[i]);
        }
    plain[len] = 0;
    if (posix && strcmp(plain, "punct") == 0)
        return "\\p{P}\\p{S}";
    for (size_t i = 0; i < sizeof properties / sizeof *properties; i++)
        if (strcmp(properties[i].name, plain) == 0)
            return properties[i].body;
    return NULL;
}

/* A set of characters at p, such as \w or \p{Letter} or [:alpha:] with its first bracket: its length, and what replaces
 * it within a class; 0: there is none that must be replaced. */
static size_t set_at(const char *p, const char **body, bool *negated)
{
    static const struct {
        char lower, upper;
        const char *body;
    } sets[] = {{'w', 'W', WORD}, {'s', 'S', TOK_WHITE_SPACE}, {'h', 'H', HEX}};
    for (size_t i = 0; p[0] == '\\' && i < sizeof sets / sizeof *sets; i++)
        if (p[1] == sets[i].lower || p[1] == sets[i].upper) {
            *body = sets[i].body;
            *negated = p[1] == sets[i].upper;
            return 2;
        }
    const bool posix = p[0] == '[' && p[1] == ':', braces = p[0] == '\\' && (p[1] == 'p' || p[1] == 'P') && p[2] == '{';
    if (!posix && !braces)
        return 0;
    const char *name = p + 2 + braces, *end = strpbrk(name, posix ? ":]" : "}");
    *negated = p[1] == 'P';
    if (*name == '^')
        name++, *negated = !*negated;
    if (!end || (posix && (end[0] != ':' || end[1] != ']')) || !(*body = property(name, (size_t)(end - name), posix)))
        return 0;
    return (size_t)(end - p) + (posix ? 2 : 1);
}

/* Copies a property, whose name in braces is n bytes at p. A script means the characters' own script, not those in
 * which they are used, which is how PCRE2 understands \p{Han}. */
static void copy_property(const char *p, size_t n, struct pp_buf *to)
{
    const bool negated = p[3] == '^';
    const int len = (int)n - 4 - negated;
    char script[64];
    int problem;
    PCRE2_SIZE at;
    pcre2_code *code = NULL;
    const int size = snprintf(script, sizeof script, "\\p{sc:%.*s}", len, p + 3 + negated);
    if (size > 0 && size < (int)sizeof script && len > 2)
        code = pcre2_compile((PCRE2_SPTR)script, (PCRE2_SIZE)size, PCRE2_UTF, &problem, &at, NULL);
    if (code)
        pp_buf_fmt(to, "\\%c%s", (p[1] == 'P') != negated ? 'P' : 'p', script + 2);
    else
        pp_buf_add(to, p, n);
    pcre2_code_free(code);
}

/* Copies one character of a class, escaped or not. \u00e9 and \v are written differently. */
static void copy_character(struct regex *r, struct pp_buf *to)
{
    const char *p = r->p;
    size_t n = 1;
    if (*p == '\\' && (p[1] == 'p' || p[1] == 'P') && p[2] == '{' && strchr(p, '}')) {
        n = (size_t)(strchr(p, '}') - p) + 1;
        copy_property(p, n, to);
        r->p += n;
        return;
    }
    if (*p == '\\' && p[1] == 'u' && strspn(p + 2, "0123456789abcdefABCDEF") >= 4) {
        pp_buf_fmt(to, "\\x{%.4s}", p + 2);
        r->p += 6;
        return;
    }
    if (*p == '\\' && p[1] == 'v') {
        pp_buf_str(to, "\\x0b");
        r->p += 2;
        return;
    }
    if (*p == '\\' && p[1] == 'x' && p[2] == '{' && strchr(p, '}'))
        n = (size_t)(strchr(p, '}') - p) + 1;
    else if (*p == '\\' && p[1])
        n = 2;
    if (*p == ']' || (*p == '^' && !to->len)) /* these would end or negate a class */
        pp_buf_char(to, '\\');
    pp_buf_add(to, p, n);
    r->p += n;
}

/* An operand of an intersection, as a union. */
struct union_of {
    struct pp_buf plain;  /* contents of one class */
    struct pp_buf others; /* alternatives that match one character, each with "|" before it */
};

static void take_class(struct regex *r, struct pp_buf *to);

/* Whether the next bytes are a character that can end a range. */
static bool is_character(const char *p)
{
    return *p && *p != ']' && *p != '[' && !(p[0] == '&' && p[1] == '&') &&
           !(*p == '\\' && p[1] && strchr("wWsShHdDpPRX", p[1]));
}

static void take_union(struct regex *r, struct union_of *u)
{
    bool before = false; /* a character that can begin a range */
    for (bool first = true; !r->bad && *r->p && (*r->p != ']' || (first && strchr(r->p + 1, ']'))); first = false) {
        const char *body;
        bool negated;
        if (r->p[0] == '&' && r->p[1] == '&')
            return;
        const size_t n = set_at(r->p, &body, &negated);
        if (n && negated)
            pp_buf_fmt(&u->others, "|[^%s]", body);
        else if (n)
            pp_buf_str(&u->plain, body);
        else if (*r->p == '[') {
            pp_buf_char(&u->others, '|');
            take_class(r, &u->others);
        } else if (*r->p == '-' && before && is_character(r->p + 1)) {
            pp_buf_char(&u->plain, '-');
            r->p++;
            copy_character(r, &u->plain);
        } else if (*r->p == '-') {
            pp_buf_str(&u->plain, "\\-");
            r->p++;
        } else {
            before = is_character(r->p);
            copy_character(r, &u->plain);
            continue;
        }
        r->p += n;
        before = false;
    }
    r->bad |= !*r->p;
}

static void write_union(const struct union_of *u, bool negated, struct pp_buf *to)
{
    if (!u->others.len) {
        pp_buf_fmt(to, u->plain.len ? negated ? "[^%s]" : "[%s]" : negated ? ANY : "(?!)", pp_buf_cstr(&u->plain));
        return;
    }
    pp_buf_str(to, negated ? "(?:(?!" : "(?:");
    if (u->plain.len)
        pp_buf_fmt(to, "[%s]%s", pp_buf_cstr(&u->plain), pp_buf_cstr(&u->others));
    else
        pp_buf_str(to, pp_buf_cstr(&u->others) + 1);
    pp_buf_str(to, negated ? ")" ANY ")" : ")");
}

/* Translates a class, from its first bracket on, to something that matches one character. */
static void take_class(struct regex *r, struct pp_buf *to)
{
    struct pp_buf cut = {0}, last = {0}; /* cut: all operands of an intersection except the last */
    const bool negated = r->p[1] == '^';
    bool more = true;
    r->p += 1 + negated;
    r->bad |= ++r->classes > MAX_CLASSES;
    for (bool first = true; more && !r->bad; first = false) {
        struct union_of u = {0};
        take_union(r, &u);
        more = *r->p == '&';
        if (!first)
            pp_buf_fmt(&cut, "(?=%s)", pp_buf_cstr(&last));
        pp_buf_clear(&last);
        if (!r->bad) /* otherwise the input may have ended */
            r->p += more ? 2 : 1;
        write_union(&u, first && !more && negated, &last);
        r->bad |= u.plain.bad || u.others.bad;
        pp_buf_free(&u.plain);
        pp_buf_free(&u.others);
    }
    r->classes--;
    if (!cut.len)
        pp_buf_str(to, pp_buf_cstr(&last));
    else
        pp_buf_fmt(to, negated ? "(?:(?!%s%s)" ANY ")" : "(?:%s%s)", pp_buf_cstr(&cut), pp_buf_cstr(&last));
    pp_buf_free(&cut);
    pp_buf_free(&last);
}

/* Copies the beginning of a group, and translates options that mean something else. */
static void take_group(struct regex *r)
{
    const bool options = !r->rust && r->p[1] == '?' && r->p[2] && strchr("imx-", r->p[2]);
    bool off = false, dot_all = r->dot_all[r->depth];
    if (r->p[1] == '?' && r->p[2] == '#') { /* a comment */
        const char *end = strchr(r->p, ')');
        r->bad |= !end;
        pp_buf_add(r->out, r->p, end ? (size_t)(end + 1 - r->p) : 0);
        r->p = end ? end + 1 : r->p;
        return;
    }
    pp_buf_add(r->out, r->p, options ? 2 : 1);
    r->p += options ? 2 : 1;
    for (; options && *r->p && strchr("imx-", *r->p); r->p++) {
        off |= *r->p == '-';
        dot_all = *r->p == 'm' ? !off : dot_all;
        if (*r->p != 'm')
            pp_buf_char(r->out, *r->p);
    }
    if (options && *r->p == ')') { /* up to the end of the open group */
        r->dot_all[r->depth] = dot_all;
        return;
    }
    r->bad |= r->depth + 1 == MAX_DEPTH;
    if (!r->bad)
        r->dot_all[++r->depth] = dot_all;
}

/* \b and \B */
static const char *word_ends(const struct regex *r, bool not)
{
    static const char *const ends[2][2] = {{WORD_ENDS(LATIN_WORD), NO_WORD_ENDS(LATIN_WORD)},
                                           {WORD_ENDS(JOINED_WORD), NO_WORD_ENDS(JOINED_WORD)}};
    return ends[r->rust][not];
}

static void take_next(struct regex *r)
{
    const char *body, *p = r->p;
    bool negated;
    const size_t n = *p == '\\' ? set_at(p, &body, &negated) : 0;
    if (n) {
        if (p[1] == 'w' || p[1] == 'W')
            body = r->rust ? JOINED_WORD : LATIN_WORD;
        pp_buf_fmt(r->out, negated ? "[^%s]" : "[%s]", body);
        r->p += n;
    } else if (*p == '\\' && (p[1] == 'b' || p[1] == 'B')) {
        pp_buf_str(r->out, word_ends(r, p[1] == 'B'));
        r->p += 2;
    } else if (*p == '\\') {
        copy_character(r, r->out);
    } else if (*p == '[') {
        take_class(r, r->out);
    } else if (*p == '(') {
        take_group(r);
    } else if ((*p == '^' || *p == '$') && !r->rust) {
        pp_buf_str(r->out, *p == '^' ? "(?<![^\\n])" : "(?![^\\n])");
        r->p++;
    } else if (*p == '.' && r->dot_all[r->depth]) {
        pp_buf_str(r->out, ANY);
        r->p++;
    } else if (p[0] == '{' && p[1] == ',' && !r->rust) {
        pp_buf_str(r->out, "{0");
        r->p++;
    } else {
        r->depth -= *p == ')' && r->depth > 0;
        pp_buf_char(r->out, *p);
        r->p++;
    }
}

enum pp_code tok_regex(const char *expression, bool rust, struct pp_buf *out, struct pp_error *err)
{
    struct regex r = {.p = expression, .out = out, .rust = rust, .bad = strlen(expression) > MAX_OUT};
    while (*r.p && !r.bad && !out->bad && out->len < MAX_OUT)
        take_next(&r);
    if (out->bad)
        return pp_fail_nomem(err, "an expression of the tokenizer");
    if (r.bad || *r.p)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "a regular expression of the tokenizer cannot be used: \"%.60s\" is "
                                                "incomplete or nested too deeply", expression);
    return PP_OK;
}
