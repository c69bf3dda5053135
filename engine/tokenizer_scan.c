/* tokenizer_scan.c - the patterns of the known split rules as plain functions.
 *
 * At one place of the text each does what its regular expression in tokenizer_split.c does, alternative by alternative,
 * in one pass; test_tokenizer_split.c compares both. ASCII characters get their class from a table, others from their
 * Unicode category. Bytes that are not UTF-8 have no class, like most control characters. */
#include <string.h>
#include <utf8proc.h>

#include "engine/base/utf8.h"
#include "engine/tokenizer_internal.h"

/* --- classes ------------------------------------------------------------------------------------------- */

enum {
    UPPER = TOK_LETTER | TOK_UPPER,
    LOWER = TOK_LETTER | TOK_LOWER,
    LINE = TOK_SPACE_CHAR | TOK_LINE_END,
};

static const uint16_t ascii_class[128] = {
    ['\t'] = TOK_SPACE_CHAR, ['\n'] = LINE, ['\v' ... '\f'] = TOK_SPACE_CHAR, ['\r'] = LINE, [' '] = TOK_SPACE_CHAR,
    ['!' ... '#'] = TOK_PUNCT, ['$'] = TOK_SYMBOL, ['%' ... '*'] = TOK_PUNCT, ['+'] = TOK_SYMBOL,
    [',' ... '/'] = TOK_PUNCT, ['0' ... '9'] = TOK_NUMBER, [':' ... ';'] = TOK_PUNCT, ['<' ... '>'] = TOK_SYMBOL,
    ['?' ... '@'] = TOK_PUNCT, ['A' ... 'Z'] = UPPER, ['[' ... ']'] = TOK_PUNCT, ['^'] = TOK_SYMBOL,
    ['_'] = TOK_PUNCT, ['`'] = TOK_SYMBOL, ['a' ... 'z'] = LOWER, ['{'] = TOK_PUNCT, ['|'] = TOK_SYMBOL,
    ['}'] = TOK_PUNCT, ['~'] = TOK_SYMBOL,
};

unsigned tok_char_class(int32_t c)
{
    static const uint16_t of_category[] = {
        [UTF8PROC_CATEGORY_LU] = UPPER,       [UTF8PROC_CATEGORY_LL] = LOWER,       [UTF8PROC_CATEGORY_LT] = UPPER,
        [UTF8PROC_CATEGORY_LM] = TOK_LETTER,  [UTF8PROC_CATEGORY_LO] = TOK_LETTER,  [UTF8PROC_CATEGORY_MN] = TOK_MARK,
        [UTF8PROC_CATEGORY_MC] = TOK_MARK,    [UTF8PROC_CATEGORY_ME] = TOK_MARK,    [UTF8PROC_CATEGORY_ND] = TOK_NUMBER,
        [UTF8PROC_CATEGORY_NL] = TOK_NUMBER,  [UTF8PROC_CATEGORY_NO] = TOK_NUMBER,  [UTF8PROC_CATEGORY_PC] = TOK_PUNCT,
        [UTF8PROC_CATEGORY_PD] = TOK_PUNCT,   [UTF8PROC_CATEGORY_PS] = TOK_PUNCT,   [UTF8PROC_CATEGORY_PE] = TOK_PUNCT,
        [UTF8PROC_CATEGORY_PI] = TOK_PUNCT,   [UTF8PROC_CATEGORY_PF] = TOK_PUNCT,   [UTF8PROC_CATEGORY_PO] = TOK_PUNCT,
        [UTF8PROC_CATEGORY_SM] = TOK_SYMBOL,  [UTF8PROC_CATEGORY_SC] = TOK_SYMBOL,  [UTF8PROC_CATEGORY_SK] = TOK_SYMBOL,
        [UTF8PROC_CATEGORY_SO] = TOK_SYMBOL,  [UTF8PROC_CATEGORY_ZS] = TOK_SPACE_CHAR,
        [UTF8PROC_CATEGORY_ZL] = TOK_SPACE_CHAR, [UTF8PROC_CATEGORY_ZP] = TOK_SPACE_CHAR,
        [UTF8PROC_CATEGORY_CC] = 0,           [UTF8PROC_CATEGORY_CF] = 0,           [UTF8PROC_CATEGORY_CO] = 0,
    };
    if (c < 0)
        return 0;
    if (c < 128)
        return ascii_class[c];
    return c == 0x85 ? TOK_SPACE_CHAR : of_category[utf8proc_category(c)];
}

/* A character of the text. */
struct ch {
    unsigned class;
    uint32_t width;
};

static struct ch wide(const char *p, const char *end)
{
    int32_t c;
    const size_t width = pp_utf8_decode(p, (size_t)(end - p), &c);
    return (struct ch){tok_char_class(c), (uint32_t)width};
}

static inline struct ch at(const char *p, const char *end)
{
    const uint8_t byte = (uint8_t)*p;
    return byte < 128 ? (struct ch){ascii_class[byte], 1} : wide(p, end);
}

/* --- runs ---------------------------------------------------------------------------------------------- */

/* Where a run of these classes that begins at p ends. */
static const char *run(const char *p, const char *end, unsigned classes)
{
    while (p < end) {
        const struct ch c = at(p, end);
        if (!(c.class & classes))
            break;
        p += c.width;
    }
    return p;
}

static const char *run_without(const char *p, const char *end, unsigned classes)
{
    while (p < end) {
        const struct ch c = at(p, end);
        if (c.class & classes)
            break;
        p += c.width;
    }
    return p;
}

/* Which of eight bytes are not ASCII letters: 0x80 in each of those. */
static inline uint64_t not_letters(uint64_t bytes)
{
    const uint64_t ones = 0x0101010101010101u, high = ones * 0x80;
    const uint64_t small = (bytes | ones * 0x20) & ~high;
    const uint64_t from_a = small + ones * (0x80 - 'a'), past_z = small + ones * (0x7f - 'z');
    return (~from_a | past_z | bytes) & high;
}

/* Skips ASCII letters, eight at a time: a loop over bytes would mispredict the end of most words. */
static inline const char *letters(const char *p, const char *end)
{
    for (uint64_t bytes; end - p >= 8; p += 8) {
        memcpy(&bytes, p, sizeof bytes);
        bytes = not_letters(bytes);
        if (!bytes)
            continue;
        p += __builtin_ctzll(bytes) >> 3;
        return (uint8_t)*p < 128 ? p : run(p, end, TOK_LETTER);
    }
    return run(p, end, TOK_LETTER);
}

static const char *numbers(const char *p, const char *end, unsigned most)
{
    for (unsigned i = 0; i < most && p < end; i++) {
        const struct ch c = at(p, end);
        if (!(c.class & TOK_NUMBER))
            break;
        p += c.width;
    }
    return p;
}

static const char *line_ends(const char *p, const char *end, char also)
{
    while (p < end && (*p == '\r' || *p == '\n' || *p == also))
        p++;
    return p;
}

/* A run of white space. If `lines`, up to the last line end in it. Otherwise, or without line end, all of it; if
 * something follows, without its last character, unless there is only one. */
static const char *spaces(const char *p, const char *end, bool lines)
{
    const char *const begin = p, *last = p, *line = p;
    while (p < end) {
        const struct ch c = at(p, end);
        if (!(c.class & TOK_SPACE_CHAR))
            break;
        last = p;
        p += c.width;
        if (c.class & TOK_LINE_END)
            line = p;
    }
    if (lines && line > begin)
        return line;
    return p < end && last > begin ? last : p;
}

/* " ?" and then characters of none of these classes. NULL: there is none. */
static const char *others(const char *p, const char *end, unsigned none_of)
{
    const char *begin = p + (*p == ' ');
    const char *stop = run_without(begin, end, none_of);
    return stop > begin ? stop : NULL;
}

static inline char small(char c)
{
    return (char)(c | 0x20);
}

/* An apostrophe and a known English ending; 0: none. */
static size_t contraction(const char *p, const char *end, bool any_case)
{
    if (end - p < 2 || *p != '\'')
        return 0;
    const char a = any_case ? small(p[1]) : p[1];
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if (end - p < 3)
        return 0;
    const char b = any_case ? small(p[2]) : p[2];
    return (b == 'e' && (a == 'r' || a == 'v')) || (a == 'l' && b == 'l') ? 3 : 0;
}

/* --- the patterns -------------------------------------------------------------------------------------- */

size_t tok_scan_gpt2(const char *p, const char *end)
{
    const size_t apostrophe = contraction(p, end, false);
    if (apostrophe)
        return apostrophe;
    const char *q = p + (*p == ' ' && p + 1 < end);
    const unsigned class = at(q, end).class;
    if (class & TOK_LETTER)
        return (size_t)(letters(q, end) - p);
    if (class & TOK_NUMBER)
        return (size_t)(run(q, end, TOK_NUMBER) - p);
    if (class & TOK_SPACE_CHAR)
        return (size_t)(spaces(p, end, false) - p);
    return (size_t)(run_without(q, end, TOK_SPACE_CHAR | TOK_LETTER | TOK_NUMBER) - p);
}

/* How rules differ from Llama 3's. */
struct like_llama3 {
    unsigned digits;          /* most digits in a word */
    bool marks;               /* words include marks */
    bool apart;               /* contractions are words of their own */
    bool lines;               /* symbols take the line ends after them */
    bool halving;             /* spaces are cut into pieces of 512, 256, ... 4, 2 or 1 */
    bool no_lines;            /* white space here is known to have no line ends */
};

static inline const char *word_end(const char *p, const char *end, bool marks)
{
    return marks ? run(p, end, TOK_LETTER | TOK_MARK) : letters(p, end);
}

/* The first piece of a run of white space without line ends. Its length is the largest power of two below the run's, or
 * equal to it at the end of the text. */
static const char *halved_spaces(const char *p, const char *end)
{
    enum { MOST = 512 };
    size_t n = 0, least = MOST;
    const char *q = p, *places[MOST + 1];
    for (; q < end && n <= MOST && at(q, end).class & TOK_SPACE_CHAR; q += at(q, end).width)
        places[n++] = q;
    while (least > 1 && !(n > least || (n == least && q == end)))
        least /= 2;
    return least < n ? places[least] : q;
}

static inline size_t scan_like_llama3(const char *p, const char *end, const struct like_llama3 how)
{
    const unsigned word = TOK_LETTER | (how.marks ? TOK_MARK : 0);
    const struct ch c = at(p, end);
    const char *q = p + c.width;
    if (c.class & word)
        return (size_t)(word_end(p, end, how.marks) - p);
    const size_t apostrophe = how.apart ? contraction(p, end, true) : 0;
    if (apostrophe)
        return apostrophe;
    if (c.class & TOK_NUMBER)
        return (size_t)(numbers(p, end, how.digits) - p);
    if (!(c.class & TOK_LINE_END) && q < end && at(q, end).class & word)
        return (size_t)(word_end(q, end, how.marks) - p);
    const char *stop = others(p, end, TOK_SPACE_CHAR | TOK_NUMBER | word);
    if (stop)
        return (size_t)((how.lines ? line_ends(stop, end, '\n') : stop) - p);
    if (how.no_lines)
        return (size_t)(halved_spaces(p, end) - p);
    stop = spaces(p, end, true);
    return (size_t)((how.halving && !(at(stop - 1, end).class & TOK_LINE_END) ? halved_spaces(p, end) : stop) - p);
}

#define LIKE_LLAMA3(name, ...)                                                                                         \
    size_t tok_scan_##name(const char *p, const char *end)                                                            \
    {                                                                                                                  \
        return scan_like_llama3(p, end, (struct like_llama3){__VA_ARGS__});                                           \
    }
LIKE_LLAMA3(llama3, .digits = 3, .apart = true, .lines = true)
LIKE_LLAMA3(qwen2, .digits = 1, .apart = true, .lines = true)
LIKE_LLAMA3(seed, .digits = 1, .apart = true)
LIKE_LLAMA3(qwen35, .digits = 1, .marks = true, .apart = true, .lines = true)
LIKE_LLAMA3(minicpm5, .digits = -1u, .apart = true, .lines = true)
LIKE_LLAMA3(ufakzeka, .digits = 1, .lines = true)
LIKE_LLAMA3(jais2, .digits = 3, .apart = true, .lines = true, .halving = true)
LIKE_LLAMA3(jais2_spaces, .digits = 3, .apart = true, .lines = true, .halving = true, .no_lines = true)

/* Letters, marks, and the invisible joiner and non-joiner (U+200C, U+200D). */
static bool joins(const char *p, const char *end)
{
    return at(p, end).class & (TOK_LETTER | TOK_MARK) ||
           (end - p >= 3 && (memcmp(p, "\u200c", 3) == 0 || memcmp(p, "\u200d", 3) == 0));
}

static const char *joined(const char *p, const char *end)
{
    while (p < end && joins(p, end))
        p += at(p, end).width;
    return p;
}

size_t tok_scan_k2_horizon(const char *p, const char *end)
{
    const struct ch c = at(p, end);
    const char *q = p + c.width;
    const size_t apostrophe = contraction(p, end, true);
    if (joins(p, end))
        return (size_t)(joined(p, end) - p);
    if (apostrophe)
        return apostrophe;
    if (c.class & TOK_NUMBER)
        return (size_t)(numbers(p, end, 3) - p);
    if (!(c.class & TOK_LINE_END) && q < end && joins(q, end))
        return (size_t)(joined(q, end) - p);
    const char *stop = others(p, end, TOK_SPACE_CHAR | TOK_NUMBER | TOK_LETTER);
    return (size_t)((stop ? line_ends(stop, end, '\n') : spaces(p, end, true)) - p);
}

bool tok_scan_is_halved(const char *word, size_t n)
{
    for (size_t width = 1; width <= 4 && width <= n; width++)
        if (((uint8_t)word[n - width] & 0xC0) != 0x80) {
            const struct ch last = at(word + n - width, word + n);
            return last.width == width && (last.class & (TOK_SPACE_CHAR | TOK_LINE_END)) == TOK_SPACE_CHAR;
        }
    return false;
}

/* Several words with one space between them. */
static const char *words(const char *p, const char *end)
{
    while (p < end && at(p, end).class & TOK_LETTER) {
        p = run(letters(p, end), end, TOK_MARK);
        if (end - p > 1 && *p == ' ' && at(p + 1, end).class & TOK_LETTER)
            p++;
    }
    return p;
}

size_t tok_scan_exaone_moe(const char *p, const char *end)
{
    const struct ch c = at(p, end);
    const char *q = p + c.width;
    if (c.class & TOK_LETTER)
        return (size_t)(words(p, end) - p);
    const size_t apostrophe = contraction(p, end, true);
    if (apostrophe)
        return apostrophe;
    if (c.class & TOK_NUMBER)
        return (size_t)(q - p);
    if (!(c.class & TOK_LINE_END) && q < end && at(q, end).class & TOK_LETTER)
        return (size_t)(words(q, end) - p);
    const char *stop = others(p, end, TOK_SPACE_CHAR | TOK_LETTER | TOK_NUMBER);
    if (stop)
        return (size_t)(stop - p) + (stop < end && (*stop == '\r' || *stop == '\n' || *stop == '/'));
    return (size_t)(spaces(p, end, true) - p);
}

/* Indentation: four spaces, or two, a tab, or a line end. */
size_t tok_scan_chameleon(const char *p, const char *end)
{
    if (*p == '\t' || *p == '\n')
        return 1;
    if (end - p >= 4 && memcmp(p, "    ", 4) == 0)
        return 4;
    return end - p >= 2 && memcmp(p, "  ", 2) == 0 ? 2 : 0;
}

/* Matches [upper]*[lower]+ or else [upper]+, where caseless letters and marks count as both; the tail of a word. NULL:
 * no such word at p. */
static const char *cased_word(const char *p, const char *end)
{
    const char *both = NULL, *q = p;
    struct ch c = {0};
    for (; q < end; q += c.width) {
        c = at(q, end);
        if (!(c.class & (TOK_LETTER | TOK_MARK)) || c.class & TOK_LOWER)
            break;
        if (!(c.class & TOK_UPPER))
            both = q + c.width;
    }
    if (q < end && c.class & TOK_LOWER) {
        for (; q < end; q += c.width) {
            c = at(q, end);
            if (!(c.class & (TOK_LETTER | TOK_MARK)) || c.class & TOK_UPPER)
                break;
        }
        return q;
    }
    return both;
}

static const char *upper_word(const char *p, const char *end)
{
    const char *q = p;
    while (q < end) {
        const struct ch c = at(q, end);
        if (!(c.class & (TOK_LETTER | TOK_MARK)) || c.class & TOK_LOWER)
            break;
        q += c.width;
    }
    return q > p ? q : NULL;
}

static size_t scan_cased(const char *p, const char *end, unsigned digits, bool contractions)
{
    const struct ch c = at(p, end);
    const char *after = p + c.width, *word = NULL;
    const bool prefix = !(c.class & (TOK_LINE_END | TOK_LETTER | TOK_NUMBER)) && after < end;
    if (prefix)
        word = cased_word(after, end);
    if (!word)
        word = cased_word(p, end);
    if (!word && prefix)
        word = upper_word(after, end);
    if (!word)
        word = upper_word(p, end);
    if (word)
        return (size_t)(word - p) + (contractions ? contraction(word, end, true) : 0);
    if (c.class & TOK_NUMBER)
        return (size_t)(numbers(p, end, digits) - p);
    const char *stop = others(p, end, TOK_SPACE_CHAR | TOK_LETTER | TOK_NUMBER);
    return (size_t)((stop ? line_ends(stop, end, '/') : spaces(p, end, true)) - p);
}

size_t tok_scan_tekken(const char *p, const char *end)
{
    return scan_cased(p, end, 1, false);
}

size_t tok_scan_gpt4o(const char *p, const char *end)
{
    return scan_cased(p, end, 3, true);
}

size_t tok_scan_youtu(const char *p, const char *end)
{
    return scan_cased(p, end, 1, true);
}

/* The script Han, as the pattern lists it. */
static bool is_han(const char *p, const char *end)
{
    static const int32_t ranges[][2] = {
        {0x2E80, 0x2E99}, {0x2E9B, 0x2EF3}, {0x2F00, 0x2FD5}, {0x3005, 0x3005}, {0x3007, 0x3007}, {0x3021, 0x3029},
        {0x3038, 0x303B}, {0x3400, 0x4DBF}, {0x4E00, 0x9FFF}, {0xF900, 0xFA6D}, {0xFA70, 0xFAD9}, {0x16FE2, 0x16FE3},
        {0x16FF0, 0x16FF1}, {0x20000, 0x2A6DF}, {0x2A700, 0x2B739}, {0x2B740, 0x2B81D}, {0x2B820, 0x2CEA1},
        {0x2CEB0, 0x2EBE0}, {0x2EBF0, 0x2EE5D}, {0x2F800, 0x2FA1D}, {0x30000, 0x3134A}, {0x31350, 0x323AF},
    };
    int32_t c;
    if (p >= end || (uint8_t)*p < 0xE2)
        return false;
    pp_utf8_decode(p, (size_t)(end - p), &c);
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges && c >= ranges[i][0]; i++)
        if (c <= ranges[i][1])
            return true;
    return false;
}

/* Where letters and marks other than Han end. */
static const char *other_letters(const char *p, const char *end)
{
    while (p < end && !is_han(p, end)) {
        const struct ch c = at(p, end);
        if (!(c.class & (TOK_LETTER | TOK_MARK)))
            break;
        p += c.width;
    }
    return p;
}

/* As scan_cased(), but Han is separate. */
size_t tok_scan_kimi(const char *p, const char *end)
{
    const struct ch c = at(p, end);
    const char *after = p + c.width, *q = p, *word = NULL;
    while (is_han(q, end))
        q += at(q, end).width;
    if (q > p)
        return (size_t)(q - p);
    const bool prefix = !(c.class & (TOK_LINE_END | TOK_LETTER | TOK_NUMBER)) && after < end;
    const char *letters_end = prefix ? other_letters(after, end) : after, *here = other_letters(p, end);
    if (prefix)
        word = cased_word(after, letters_end);
    if (!word)
        word = cased_word(p, here);
    if (!word && prefix)
        word = upper_word(after, letters_end);
    if (!word)
        word = upper_word(p, here);
    if (word)
        return (size_t)(word - p) + contraction(word, end, true);
    if (c.class & TOK_NUMBER)
        return (size_t)(numbers(p, end, 3) - p);
    const char *stop = others(p, end, TOK_SPACE_CHAR | TOK_LETTER | TOK_NUMBER);
    return (size_t)((stop ? line_ends(stop, end, '\n') : spaces(p, end, true)) - p);
}

static bool is_ascii_letter(const char *p, const char *end)
{
    return p < end && ((*p >= 'A' && *p <= 'Z') || (*p >= 'a' && *p <= 'z'));
}

/* Numbers and control characters that no word follows do not match. lines: symbols take the line ends after them, and
 * so does white space; otherwise each line end is separate. */
static inline size_t scan_deepseek(const char *p, const char *end, bool lines)
{
    const struct ch c = at(p, end);
    const char *q = p + c.width;
    if ((uint8_t)*p < 128 && c.class & (TOK_PUNCT | TOK_SYMBOL) && is_ascii_letter(q, end)) {
        while (is_ascii_letter(q, end))
            q++;
        return (size_t)(q - p);
    }
    if (!(c.class & (TOK_LINE_END | TOK_LETTER | TOK_PUNCT | TOK_SYMBOL)) && q < end &&
        at(q, end).class & (TOK_LETTER | TOK_MARK))
        return (size_t)(run(q, end, TOK_LETTER | TOK_MARK) - p);
    if (c.class & (TOK_LETTER | TOK_MARK))
        return (size_t)(run(p, end, TOK_LETTER | TOK_MARK) - p);
    const char *signs = p + (*p == ' '), *stop = run(signs, end, TOK_PUNCT | TOK_SYMBOL);
    if (stop > signs)
        return (size_t)((lines ? line_ends(stop, end, '\n') : stop) - p);
    return !lines && c.class & TOK_LINE_END ? 1 : (size_t)(spaces(p, end, lines) - p);
}

size_t tok_scan_deepseek_v3(const char *p, const char *end)
{
    return scan_deepseek(p, end, true);
}

size_t tok_scan_spark(const char *p, const char *end)
{
    return scan_deepseek(p, end, false);
}

static utf8proc_category_t category(const char *p, const char *end)
{
    int32_t c;
    pp_utf8_decode(p, (size_t)(end - p), &c);
    return c < 0 ? UTF8PROC_CATEGORY_CN : utf8proc_category(c);
}

static bool is_number(const char *p, const char *end, bool decimal)
{
    const bool number = at(p, end).class & TOK_NUMBER;
    return number && ((uint8_t)*p < 128 || !decimal || category(p, end) == UTF8PROC_CATEGORY_ND);
}

/* Characters that continue a word after a decimal digit. */
static bool is_word(const char *p, const char *end)
{
    const unsigned class = at(p, end).class;
    if (class & (TOK_LETTER | TOK_MARK))
        return true;
    if (!(class & (TOK_NUMBER | TOK_PUNCT)))
        return false;
    const utf8proc_category_t k = category(p, end);
    return k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_PC;
}

const char *tok_number_find(const char *p, const char *end, bool apart, const char **stop, size_t *n)
{
    while (p < end) {
        const char *q = run_without(p, end, TOK_NUMBER);
        *n = 0;
        for (*stop = q; *stop < end && is_number(*stop, end, apart); *stop += at(*stop, end).width)
            ++*n;
        if (*n && !(apart && *stop < end && is_word(*stop, end)))
            return q;
        if (!*n && *stop < end) /* a number of another kind */
            *stop += at(*stop, end).width;
        p = *stop;
    }
    return NULL;
}

size_t tok_number_part(const char *p, const char *end, size_t n)
{
    return (size_t)(numbers(p, end, (unsigned)n) - p);
}

const char *tok_trailing_spaces(const char *p, const char *end)
{
    const char *begin = NULL;
    while (p < end) {
        const struct ch c = at(p, end);
        const bool space = c.class & TOK_SPACE_CHAR;
        if (!space || !begin)
            begin = space ? p : NULL;
        p += c.width;
    }
    return begin;
}
