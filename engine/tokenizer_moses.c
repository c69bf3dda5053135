/* tokenizer_moses.c - English text cut into words as Moses does, with white space between them: BioGPT's vocabulary was
 * made from such text. Punctuation and hyphens become words ("T-cell" becomes "T @-@ cell"), a point does if it ends a
 * sentence, an apostrophe belongs to what follows it, and signs that other programs take for markup are spelled out.
 *
 * Koehn et al., Moses: Open Source Toolkit for Statistical Machine Translation (ACL 2007), scripts/tokenizer; with
 * dashes split and signs escaped, the options that transformers' BioGptTokenizer gives sacremoses. Character classes
 * cover Latin, Greek and Cyrillic; of other scripts' marks some are missing. */
#include <string.h>
#include <utf8proc.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer_internal.h"

enum {
    DOT = 1,            /* one of several points in a row; no text has it, as control characters are removed before */
    BAD_BYTE = 0x110000, /* and above: a byte that is not UTF-8 */
};

/* A text as characters; each step makes a new one. */
struct line {
    int32_t *c;
    size_t n, cap;
    bool bad; /* out of memory */
};

static void put(struct line *l, int32_t c)
{
    l->bad = l->bad || pp_grow(&l->c, &l->cap, l->n + 1, sizeof *l->c) != 0;
    if (!l->bad)
        l->c[l->n++] = c;
}

static void put_text(struct line *l, const char *ascii)
{
    while (*ascii)
        put(l, *ascii++);
}

/* --- classes ---------------------------------------------------------------------------------------------- */

static bool is_letter(int32_t c)
{
    if (c < 0x80)
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (c >= 0x10000 || (c >= 0x3400 && c <= 0x9FFF && c != 0x4DC0) || (c >= 0xAC00 && c <= 0xD7A3) ||
        (c >= 0xF900 && c <= 0xFAFF))
        return false; /* ideographs and Hangul are separate */
    const utf8proc_category_t k = utf8proc_category(c);
    if (k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_MC)
        return c == 0x345 || c >= 0x5B0;
    return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) || k == UTF8PROC_CATEGORY_NL ||
           (c >= 0x24B6 && c <= 0x24E9);
}

static bool is_number(int32_t c)
{
    if (c < 0x80 || c >= 0x10000)
        return c >= '0' && c <= '9';
    const utf8proc_category_t k = utf8proc_category(c);
    return k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO;
}

static bool is_letter_or_digit(int32_t c)
{
    return is_letter(c) || (c < 0x10000 && is_number(c) && (c < 0x80 || utf8proc_category(c) == UTF8PROC_CATEGORY_ND));
}

static bool is_small(int32_t c)
{
    return c < 0x80 ? c >= 'a' && c <= 'z'
                    : c == 0xAA || c == 0xBA || (c < 0x10000 && utf8proc_category(c) == UTF8PROC_CATEGORY_LL);
}

/* Python's white space. */
static bool is_white(int32_t c)
{
    return (c >= 0x1C && c <= ' ') || (c < BAD_BYTE && tok_char_class(c) & TOK_SPACE_CHAR);
}

/* --- steps ------------------------------------------------------------------------------------------------ */

/* Removes control characters, replaces runs of white space by a space, and trims both ends. */
static void read_text(struct pp_str text, struct line *out)
{
    bool space = true;
    for (size_t i = 0; i < text.len;) {
        int32_t c;
        const size_t width = pp_utf8_decode(text.data + i, text.len - i, &c);
        c = c < 0 ? BAD_BYTE + (uint8_t)text.data[i] : c;
        i += width;
        if (is_white(c) && !space)
            put(out, ' ');
        space = is_white(c) || (space && c < ' ');
        if (!is_white(c) && c >= ' ')
            put(out, c);
    }
    while (out->n && out->c[out->n - 1] == ' ')
        out->n--;
}

/* Separates punctuation, except what later steps handle. */
static void split_signs(const struct line *in, struct line *out)
{
    for (size_t i = 0; i < in->n; i++) {
        const int32_t c = in->c[i];
        const bool alone = !is_letter_or_digit(c) && !(c < 0x80 && strchr(" .'`,-", c));
        if (alone)
            put(out, ' ');
        put(out, c);
        if (alone)
            put(out, ' ');
    }
}

/* Separates a hyphen between letters or digits, and several points, which become a word. */
static void split_hyphens_and_dots(const struct line *in, struct line *out)
{
    for (size_t i = 0, end; i < in->n; i = end) {
        const int32_t c = in->c[i];
        end = i + 1;
        if (c == '-' && i && end < in->n && is_letter_or_digit(in->c[i - 1]) && is_letter_or_digit(in->c[end])) {
            put_text(out, " @-@ ");
            continue;
        }
        while (c == '.' && end < in->n && in->c[end] == '.')
            end++;
        if (end == i + 1) {
            put(out, c);
            continue;
        }
        put(out, ' ');
        for (size_t k = i; k < end; k++)
            put(out, DOT);
        if (end < in->n)
            put(out, ' ');
    }
}

/* Separates commas, except between numbers. */
static void split_commas_after(const struct line *in, struct line *out)
{
    for (size_t i = 0; i < in->n; i++) {
        put(out, in->c[i]);
        if (!is_number(in->c[i]) && i + 1 < in->n && in->c[i + 1] == ',') {
            put_text(out, " , ");
            i++;
        }
    }
}

static void split_commas_before(const struct line *in, struct line *out)
{
    for (size_t i = 0; i < in->n; i++) {
        const bool last = i + 1 == in->n;
        if (in->c[i] == ',' && (last ? i && is_number(in->c[i - 1]) : !is_number(in->c[i + 1]))) {
            put_text(out, " , ");
            if (!last)
                put(out, in->c[++i]);
        } else {
            put(out, in->c[i]);
        }
    }
}

/* An apostrophe between two characters: their classes, and whether it goes with the second. A match takes the character
 * after the apostrophe, so the next one begins after that. */
static const struct apostrophe {
    enum neighbour { LETTER, NO_LETTER, NEITHER, NUMBER, LETTER_S } before, after;
    bool goes_on;
} apostrophes[] = {
    {NO_LETTER, NO_LETTER, false}, {NEITHER, LETTER, false}, {LETTER, NO_LETTER, false}, {LETTER, LETTER, true},
    {NUMBER, LETTER_S, true},
};

static bool is_of_class(int32_t c, enum neighbour what)
{
    switch (what) {
    case LETTER:
        return is_letter(c);
    case NO_LETTER:
        return !is_letter(c);
    case NEITHER:
        return !is_letter(c) && !is_number(c);
    case NUMBER:
        return is_number(c);
    case LETTER_S:
        break;
    }
    return c == 's';
}

static void split_apostrophes(const struct line *in, struct line *out, const struct apostrophe *a)
{
    for (size_t i = 0; i < in->n; i++) {
        put(out, in->c[i]);
        if (i + 2 >= in->n || in->c[i + 1] != '\'' || !is_of_class(in->c[i], a->before) ||
            !is_of_class(in->c[i + 2], a->after))
            continue;
        put_text(out, a->goes_on ? " '" : " ' ");
        put(out, in->c[i += 2]);
    }
}

/* --- points ----------------------------------------------------------------------------------------------- */

/* Words that keep a point after them even before a capital letter. So do single capital letters, and words with another
 * point in them. */
static const char *const abbreviations[] = {
    "Adj",  "Adm",  "Adv", "Apr",  "Asst", "Aug", "Bart", "Bldg", "Brig", "Bros", "Capt",   "Cmdr", "Col", "Comdr",
    "Con",  "Corp", "Cpl", "DR",   "Dec",  "Dr",  "Drs",  "Ens",  "Feb",  "Gen",  "Gov",    "Hon",  "Hosp", "Hr",
    "Insp", "Jan",  "Jul", "Jun",  "Lt",   "MM",  "MR",   "MRS",  "MS",   "Maj",  "Mar",    "Messrs", "Mlle", "Mme",
    "Mr",   "Mrs",  "Ms",  "Msgr", "Nos",  "Nov", "Nr",   "Oct",  "Op",   "Ord",  "Pfc",    "Ph",   "Prof", "Pvt",
    "Rep",  "Reps", "Res", "Rev",  "Rs",   "Rt",  "Sen",  "Sens", "Sep",  "Sfc",  "Sgt",    "Sr",   "St",  "Supt",
    "Surg", "rev",  "v",   "vs",
};
static const char *const before_numbers[] = {"Art", "No", "pp"}; /* keep their point before digits */

static bool is_one_of(const int32_t *word, size_t n, const char *const *list, size_t n_list)
{
    for (size_t i = 0; i < n_list; i++) {
        size_t k = 0;
        while (k < n && list[i][k] && word[k] == list[i][k])
            k++;
        if (k == n && !list[i][k])
            return true;
    }
    return false;
}

/* Whether the point after a word is part of it. next: the first character of the next word; 0: none. */
static bool keeps_point(const int32_t *word, size_t n, int32_t next)
{
    bool point = false, letter = false;
    for (size_t i = 0; i < n; i++) {
        point = point || word[i] == '.';
        letter = letter || is_letter(word[i]);
    }
    return (point && letter) || (n == 1 && word[0] >= 'A' && word[0] <= 'Z') || is_small(next) ||
           is_one_of(word, n, abbreviations, sizeof abbreviations / sizeof *abbreviations) ||
           (next >= '0' && next <= '9' &&
            is_one_of(word, n, before_numbers, sizeof before_numbers / sizeof *before_numbers));
}

static size_t next_word(const struct line *in, size_t i, size_t *end)
{
    while (i < in->n && in->c[i] == ' ')
        i++;
    for (*end = i; *end < in->n && in->c[*end] != ' ';)
        ++*end;
    return i;
}

/* Separates points from words, which have one space between them. */
static void split_points(const struct line *in, struct line *out)
{
    size_t end, next_end;
    for (size_t i = next_word(in, 0, &end), next; i < in->n; i = next, end = next_end) {
        next = next_word(in, end, &next_end);
        const size_t n = end - i - 1; /* characters before the point */
        if (out->n)
            put(out, ' ');
        for (size_t k = i; k < i + n; k++)
            put(out, in->c[k]);
        if (n && in->c[i + n] == '.' && !keeps_point(in->c + i, n, next < in->n ? in->c[next] : 0))
            put(out, ' ');
        put(out, in->c[i + n]);
    }
    if (out->n >= 2 && out->c[out->n - 1] == '\'' && out->c[out->n - 2] == '.') {
        out->n -= 2;
        put_text(out, " . '");
    }
}

/* --- signs that are spelled out --------------------------------------------------------------------------- */

static const struct {
    char sign;
    const char *spelled;
} escapes[] = {
    {'&', "&amp;"},  {'|', "&#124;"}, {'<', "&lt;"},  {'>', "&gt;"},
    {'\'', "&apos;"}, {'"', "&quot;"}, {'[', "&#91;"}, {']', "&#93;"},
};
enum { N_ESCAPES = sizeof escapes / sizeof *escapes };

static void write_text(const struct line *in, struct pp_buf *out)
{
    for (size_t i = 0; i < in->n; i++) {
        const int32_t c = in->c[i];
        char utf8[4];
        int k = 0;
        while (k < N_ESCAPES && escapes[k].sign != c)
            k++;
        if (k < N_ESCAPES)
            pp_buf_str(out, escapes[k].spelled);
        else if (c >= BAD_BYTE)
            pp_buf_char(out, (char)(c - BAD_BYTE));
        else
            pp_buf_add(out, utf8, pp_utf8_encode(c == DOT ? '.' : c, utf8));
    }
}

void tok_moses_shown(struct pp_str text, struct pp_buf *out)
{
    static const char hyphen[] = "@-@";
    if (text.len == sizeof hyphen - 1 && memcmp(text.data, hyphen, text.len) == 0) {
        pp_buf_char(out, '-');
        return;
    }
    for (size_t i = 0; i < text.len;) {
        int k = 0;
        while (k < N_ESCAPES && !(text.len - i >= strlen(escapes[k].spelled) &&
                                  memcmp(text.data + i, escapes[k].spelled, strlen(escapes[k].spelled)) == 0))
            k++;
        pp_buf_char(out, k < N_ESCAPES ? escapes[k].sign : text.data[i]);
        i += k < N_ESCAPES ? strlen(escapes[k].spelled) : 1;
    }
}

/* --- all of it -------------------------------------------------------------------------------------------- */

static void swap(struct line lines[2])
{
    const struct line first = lines[0];
    lines[0] = lines[1];
    lines[1] = first;
    lines[1].n = 0;
}

void tok_moses_words(struct pp_str text, struct pp_buf *out)
{
    static void (*const steps[])(const struct line *, struct line *) = {
        split_signs, split_hyphens_and_dots, split_commas_after, split_commas_before,
    };
    struct line lines[2] = {0};
    read_text(text, &lines[0]);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        steps[i](&lines[0], &lines[1]);
        swap(lines);
    }
    for (size_t i = 0; i < sizeof apostrophes / sizeof *apostrophes; i++) {
        split_apostrophes(&lines[0], &lines[1], &apostrophes[i]);
        swap(lines);
    }
    split_points(&lines[0], &lines[1]);
    write_text(&lines[1], out);
    out->bad = out->bad || lines[0].bad || lines[1].bad;
    pp_free(lines[0].c);
    pp_free(lines[1].c);
}
