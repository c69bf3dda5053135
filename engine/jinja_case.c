/* jinja_case.c - Python's case mappings and character classes. Unicode's tables are utf8proc's; SpecialCasing
 * (https://www.unicode.org/Public/UNIDATA/SpecialCasing.txt), where one letter becomes several, follows in nearly all
 * cases from the letter's case folding. */
#include <utf8proc.h>
#include <wctype.h>

#include "engine/base/utf8.h"
#include "engine/jinja_value.h"

enum letter_case { LOWER, UPPER, TITLE, FOLDED };
enum { LONGEST = 8 }; /* characters that one can become; really at most 3 */

static utf8proc_category_t category(int32_t cp)
{
    return cp < 0 ? UTF8PROC_CATEGORY_CN : utf8proc_category(cp);
}

static bool between(int32_t cp, int32_t first, int32_t last)
{
    return cp >= first && cp <= last;
}

bool jinja_is_alpha(int32_t cp)
{
    return between((int32_t)category(cp), UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO);
}

bool jinja_is_decimal(int32_t cp)
{
    return category(cp) == UTF8PROC_CATEGORY_ND;
}

/* Includes superscripts, and digits in circles, brackets or before a full stop: Unicode's Numeric_Type=Digit. */
bool jinja_is_digit(int32_t cp)
{
    static const struct { int32_t first, last; } others[] = {
        {0xB2, 0xB3},     {0xB9, 0xB9},       {0x1369, 0x1371},   {0x19DA, 0x19DA},   {0x2070, 0x2070},
        {0x2074, 0x2079}, {0x2080, 0x2089},   {0x2460, 0x2468},   {0x2474, 0x247C},   {0x2488, 0x2490},
        {0x24EA, 0x24EA}, {0x24F5, 0x24FD},   {0x24FF, 0x24FF},   {0x2776, 0x277E},   {0x2780, 0x2788},
        {0x278A, 0x2792}, {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x1F100, 0x1F10A},
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (between(cp, others[i].first, others[i].last))
            return true;
    return jinja_is_decimal(cp);
}

/* Except ideographs that are numbers, which count as letters here. */
bool jinja_is_numeric(int32_t cp)
{
    return between((int32_t)category(cp), UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO);
}

bool jinja_is_alnum(int32_t cp)
{
    return jinja_is_alpha(cp) || jinja_is_numeric(cp);
}

/* Unicode's Cased: includes modifier letters, and letters that serve as numbers. */
static bool is_cased(int32_t cp)
{
    const utf8proc_category_t k = category(cp);
    if (between((int32_t)k, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LT))
        return true;
    return cp == 0xAA || cp == 0xBA || between(cp, 0x2B0, 0x2B8) || between(cp, 0x2C0, 0x2C1) ||
           between(cp, 0x2E0, 0x2E4) || cp == 0x345 || cp == 0x37A || between(cp, 0x1D2C, 0x1D6A) || cp == 0x1D78 ||
           between(cp, 0x1D9B, 0x1DBF) || cp == 0x2071 || cp == 0x207F || between(cp, 0x2090, 0x209C) ||
           between(cp, 0x2160, 0x217F) || between(cp, 0x24B6, 0x24E9);
}

/* Unicode's Uppercase: includes Roman numerals, and letters in circles. */
static bool is_upper(int32_t cp)
{
    return category(cp) == UTF8PROC_CATEGORY_LU || between(cp, 0x2160, 0x216F) || between(cp, 0x24B6, 0x24CF) ||
           between(cp, 0x1F130, 0x1F149) || between(cp, 0x1F150, 0x1F169) || between(cp, 0x1F170, 0x1F189);
}

/* Unicode's Case_Ignorable: marks, and signs within words. */
static bool is_ignorable(int32_t cp)
{
    switch (category(cp)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
        return true;
    default:
        return cp == '\'' || cp == '.' || cp == ':' || cp == 0xB7 || cp == 0x387 || cp == 0x55F || cp == 0x5F4 ||
               cp == 0x2018 || cp == 0x2019 || cp == 0x2024 || cp == 0x2027;
    }
}

/* Whether a capital sigma, the len bytes at s.s + at, ends a word that begins at `from` or later, where its lower case
 * has a form of its own. */
static bool is_final(struct jinja_value s, size_t from, size_t at, size_t len)
{
    int32_t cp;
    bool after_cased = false;
    for (size_t i = at; i > from;) {
        do
            i--;
        while (i > from && ((uint8_t)s.s[i] & 0xC0) == 0x80);
        pp_utf8_decode(s.s + i, at - i, &cp);
        if (!is_ignorable(cp)) {
            after_cased = is_cased(cp);
            break;
        }
    }
    if (!after_cased)
        return false;
    for (size_t i = at + len; i < s.n;) {
        i += pp_utf8_decode(s.s + i, s.n - i, &cp);
        if (!is_ignorable(cp))
            return !is_cased(cp);
    }
    return true;
}

/* Maps a character; returns how many it becomes. */
static size_t map_char(int32_t cp, enum letter_case to, int32_t out[LONGEST])
{
    const utf8proc_category_t k = category(cp);
    utf8proc_ssize_t n;
    out[0] = to == UPPER ? utf8proc_toupper(cp) : to == TITLE ? utf8proc_totitle(cp) : utf8proc_tolower(cp);
    if (to == LOWER && cp == 0x130) { /* dotted capital I keeps its dot */
        out[1] = 0x307;
        return 2;
    }
    /* sharp s has a capital letter, which these mappings do not use */
    const bool titled = k == UTF8PROC_CATEGORY_LT || (out[0] != cp && cp != 0xDF);
    if (cp < 0x80 || to == LOWER || (to != FOLDED && k == UTF8PROC_CATEGORY_LU) || (to == TITLE && titled))
        return 1;
    int32_t folded[LONGEST];
    n = utf8proc_decompose_char(cp, folded, LONGEST, UTF8PROC_CASEFOLD, NULL);
    if (n < 1 || n > LONGEST || (n == 1 && to != FOLDED))
        return 1;
    for (utf8proc_ssize_t i = 0; i < n; i++) {
        const bool capital = to == UPPER || (to == TITLE && (i == 0 || cp == 0x149)); /* it begins with an apostrophe */
        out[i] = capital ? utf8proc_toupper(folded[i]) : folded[i];
    }
    if (to == TITLE && out[n - 1] == 0x3B9) /* an iota after a capital stays subscript */
        out[n - 1] = 0x345;
    return (size_t)n;
}

/* Maps the character at s.s + at (len bytes) of a word that begins at `from`. */
static void add_char(struct jinja *j, struct jinja_text *t, struct jinja_value s, size_t from, size_t at, size_t len,
                     int32_t cp, enum letter_case to)
{
    int32_t mapped[LONGEST];
    char out[4];
    if (cp < 0) {
        jinja_add(j, t, s.s + at, len);
        return;
    }
    size_t n = map_char(cp, to, mapped);
    if (to == LOWER && cp == 0x3A3 && is_final(s, from, at, len))
        mapped[0] = 0x3C2;
    for (size_t i = 0; i < n; i++)
        jinja_add(j, t, out, pp_utf8_encode(mapped[i], out));
}

static struct jinja_value map_all(struct jinja *j, struct jinja_value s, enum letter_case first, enum letter_case rest)
{
    struct jinja_text t = {0};
    for (size_t i = 0, len; i < s.n; i += len) {
        int32_t cp;
        len = pp_utf8_decode(s.s + i, s.n - i, &cp);
        add_char(j, &t, s, 0, i, len, cp, i ? rest : first);
    }
    jinja_work(j, s.n);
    return jinja_text_value(j, &t);
}

struct jinja_value jinja_upper(struct jinja *j, struct jinja_value s)
{
    return map_all(j, s, UPPER, UPPER);
}

struct jinja_value jinja_lower(struct jinja *j, struct jinja_value s)
{
    return map_all(j, s, LOWER, LOWER);
}

struct jinja_value jinja_casefold(struct jinja *j, struct jinja_value s)
{
    return map_all(j, s, FOLDED, FOLDED);
}

struct jinja_value jinja_capitalize(struct jinja *j, struct jinja_value s)
{
    return map_all(j, s, TITLE, LOWER);
}

struct jinja_value jinja_title(struct jinja *j, struct jinja_value s)
{
    struct jinja_text t = {0};
    bool inside = false;
    for (size_t i = 0, len; i < s.n; i += len) {
        int32_t cp;
        len = pp_utf8_decode(s.s + i, s.n - i, &cp);
        add_char(j, &t, s, 0, i, len, cp, inside ? LOWER : TITLE);
        inside = is_cased(cp);
    }
    jinja_work(j, s.n);
    return jinja_text_value(j, &t);
}

struct jinja_value jinja_title_words(struct jinja *j, struct jinja_value s, bool (*begins)(int32_t cp))
{
    struct jinja_text t = {0};
    bool first = true;
    size_t from = 0; /* the rest of a word is mapped separately from its first letter */
    for (size_t i = 0, len; i < s.n; i += len) {
        int32_t cp;
        len = pp_utf8_decode(s.s + i, s.n - i, &cp);
        add_char(j, &t, s, from, i, len, cp, first ? UPPER : LOWER);
        from = first ? i + len : from;
        first = begins(cp);
    }
    jinja_work(j, s.n);
    return jinja_text_value(j, &t);
}

/* Swaps upper and lower case; title case counts as upper. */
struct jinja_value jinja_swap_case(struct jinja *j, struct jinja_value s)
{
    struct jinja_text t = {0};
    for (size_t i = 0, len; i < s.n; i += len) {
        int32_t cp;
        len = pp_utf8_decode(s.s + i, s.n - i, &cp);
        const bool upper = is_upper(cp), lower = !upper && is_cased(cp) && category(cp) != UTF8PROC_CATEGORY_LT;
        if (upper || lower)
            add_char(j, &t, s, 0, i, len, cp, upper ? LOWER : UPPER);
        else
            jinja_add(j, &t, s.s + i, len);
    }
    jinja_work(j, s.n);
    return jinja_text_value(j, &t);
}

/* Upper case must follow a character without case, lower case one with; and there must be a cased character. */
bool jinja_is_title(struct jinja *j, struct jinja_value s)
{
    bool inside = false, any = false;
    jinja_work(j, s.n);
    for (size_t i = 0, len; i < s.n; i += len) {
        int32_t cp;
        len = pp_utf8_decode(s.s + i, s.n - i, &cp);
        const bool capital = is_upper(cp) || category(cp) == UTF8PROC_CATEGORY_LT, cased = capital || is_cased(cp);
        if (cased && capital == inside)
            return false;
        inside = cased;
        any |= cased;
    }
    return any;
}

/* Letters whose compatibility form begins with a space or a mark: those cannot be in identifiers. */
static bool is_no_name(int32_t cp)
{
    return cp == 0x37A || cp == 0x2E2F || between(cp, 0xFC5E, 0xFC63) || between(cp, 0xFDFA, 0xFDFB) ||
           (between(cp, 0xFE70, 0xFE7E) && cp % 2 == 0);
}

static bool is_name_letter(int32_t cp)
{
    return !is_no_name(cp) && (jinja_is_alpha(cp) || category(cp) == UTF8PROC_CATEGORY_NL);
}

bool jinja_begins_name(int32_t cp)
{
    if (cp == 0xE33 || cp == 0xEB3 || between(cp, 0xFF9E, 0xFF9F)) /* vowel and voice marks, which only follow
                                                                      letters */
        return false;
    return cp == '_' || is_name_letter(cp) || between(cp, 0x1885, 0x1886) || cp == 0x2118 || cp == 0x212E;
}

bool jinja_in_name(int32_t cp)
{
    const utf8proc_category_t k = category(cp);
    return jinja_begins_name(cp) || is_name_letter(cp) || jinja_is_decimal(cp) || k == UTF8PROC_CATEGORY_PC ||
           k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_MC || cp == 0xB7 || cp == 0x387 ||
           between(cp, 0x1369, 0x1371) || cp == 0x19DA;
}

/* For characters that utf8proc does not know yet, asks the C library. */
bool jinja_is_printable(int32_t cp)
{
    const utf8proc_category_t k = category(cp);
    if (k == UTF8PROC_CATEGORY_CN)
        return cp > 0 && iswprint((wint_t)cp);
    return cp == ' ' || (k < UTF8PROC_CATEGORY_ZS && k != UTF8PROC_CATEGORY_CN);
}
