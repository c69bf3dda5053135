/* tokenizer_normalize.c - normalises text before it is cut.
 *
 * SentencePiece replaces characters by a table in the model (precompiled_charsmap): a double array, as the library
 * Darts-clone writes it, finds the longest run of bytes that has a replacement. BERT drops control characters and
 * accents, makes letters lower case, and cuts at white space and punctuation. */
#include <string.h>
#include <utf8proc.h>

#include "engine/base/utf8.h"
#include "engine/tokenizer_internal.h"

/* --- the table of characters ------------------------------------------------------------------------------ */

/* The layout: u32 size of the double array in bytes; the array, of u32 units; then replacements, each ended by a
 * NUL. */
struct table {
    const char *units, *texts;
    size_t n_units, n_texts;
};

static uint32_t read_u32(const char *p)
{
    const uint8_t *b = (const uint8_t *)p;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static struct table table_of(const char *map, size_t n)
{
    struct table t = {0};
    size_t bytes = map && n >= 4 ? read_u32(map) : 0;
    if (!bytes || bytes > n - 4)
        return t;
    t.units = map + 4;
    t.n_units = bytes / 4;
    t.texts = map + 4 + bytes;
    t.n_texts = n - 4 - bytes;
    return t;
}

enum pp_code tok_charsmap_check(struct pp_str map, struct pp_error *err)
{
    const struct table t = table_of(map.data, map.len);
    if (!t.n_units || !t.n_texts || t.texts[t.n_texts - 1] != 0)
        return pp_fail(err, PP_ERR_FORMAT, "the tokenizer's table of characters is damaged");
    return PP_OK;
}

static uint32_t unit(const struct table *t, uint32_t i)
{
    return t->units && i < t->n_units ? read_u32(t->units + 4 * (size_t)i) : 0;
}

/* Offset from a unit to its children. */
static uint32_t offset(uint32_t u)
{
    return u >> 10 << (u >> 6 & 8);
}

/* How many bytes of text have a replacement, as many as possible or, if `shortest`, as few; 0: none. */
static size_t find_replacement(const struct table *t, const char *text, size_t n, bool shortest, struct pp_str *to)
{
    uint32_t u = unit(t, 0), at = offset(u);
    size_t found = 0;
    for (size_t i = 0; i < n; i++) {
        const uint8_t byte = (uint8_t)text[i];
        at ^= byte;
        u = unit(t, at);
        if ((u & 0x800000FF) != byte || byte == 0)
            break;
        at ^= offset(u);
        if (!(u >> 8 & 1))
            continue;
        const uint32_t value = unit(t, at) & 0x7FFFFFFF;
        if (value >= t->n_texts)
            break;
        *to = (struct pp_str){t->texts + value, strlen(t->texts + value)}; /* the table ends with a NUL */
        found = i + 1;
        if (shortest)
            break;
    }
    return found;
}

/* The character at text, or its replacement. Returns how many bytes it takes. User-defined tokens are kept. */
static size_t map_character(const struct pp_tokenizer *t, const struct table *table, const char *text, size_t n,
                            struct pp_str *to)
{
    int32_t c;
    size_t width = 0;
    if (t->spaced_late && tok_longest_here(t, &t->spaced, text, n, &width) != TOK_NONE) {
        *to = (struct pp_str){text, width};
        return width;
    }
    width = find_replacement(table, text, n, false, to);
    if (width)
        return width;
    width = pp_utf8_decode(text, n, &c);
    *to = c < 0 ? (struct pp_str){"\xef\xbf\xbd", 3} : (struct pp_str){text, width};
    return width;
}

/* Whether the text is a proper prefix of something with a replacement. */
static bool replacement_goes_on(const struct table *t, const char *text, size_t n)
{
    uint32_t at = offset(unit(t, 0));
    for (size_t i = 0; i < n; i++) {
        at ^= (uint8_t)text[i];
        const uint32_t u = unit(t, at);
        if ((u & 0x800000FF) != (uint8_t)text[i] || text[i] == 0)
            return false;
        at ^= offset(u);
    }
    return true;
}

size_t pp_shown_text(const struct pp_tokenizer *t, const char *text, size_t n, bool last, const char **shown,
                     size_t *n_shown)
{
    const struct table table = table_of(t->denormal, t->denormal_len);
    struct pp_str to = {text, n};
    int32_t c;
    size_t width = n;
    if (t->denormal && !last && (replacement_goes_on(&table, text, n) || pp_utf8_complete(text, n) == 0))
        return 0;
    if (t->denormal && !(width = find_replacement(&table, text, n, false, &to))) {
        width = pp_utf8_decode(text, n, &c);
        to = c < 0 ? (struct pp_str){"\xef\xbf\xbd", 3} : (struct pp_str){text, width};
    }
    *shown = to.data;
    *n_shown = to.len;
    return width;
}

/* Bytes of text's first grapheme. */
static size_t grapheme(const char *text, size_t n)
{
    int32_t c, next;
    utf8proc_int32_t state = 0;
    size_t at = pp_utf8_decode(text, n, &c);
    while (at < n) {
        if (c < 0x80 && c != '\r' && (uint8_t)text[at] < 0x80) /* these never join */
            return at;
        const size_t width = pp_utf8_decode(text + at, n - at, &next);
        if (c < 0 || next < 0 || utf8proc_grapheme_break_stateful(c, next, &state))
            return at;
        c = next;
        at += width;
    }
    return at;
}

/* https://github.com/huggingface/tokenizers, src/normalizers/precompiled.rs: the replacement of a prefix, the shortest
 * that has one, replaces a whole short grapheme, or else a character. */
void tok_map_characters(struct pp_str map, const char *text, size_t n, struct pp_buf *out)
{
    enum { SHORT = 6 };
    const struct table table = table_of(map.data, map.len);
    struct pp_str to;
    for (size_t i = 0, end; i < n; i = end) {
        end = i + grapheme(text + i, n - i);
        if (end - i < SHORT && find_replacement(&table, text + i, end - i, true, &to)) {
            pp_buf_add(out, to.data, to.len);
            continue;
        }
        for (size_t width; i < end; i += width) {
            int32_t c;
            width = pp_utf8_decode(text + i, end - i, &c);
            if (!find_replacement(&table, text + i, width, true, &to))
                to = c < 0 ? (struct pp_str){"\xef\xbf\xbd", 3} : (struct pp_str){text + i, width};
            pp_buf_add(out, to.data, to.len);
        }
    }
}

/* Unicode's White_Space. */
static bool is_white(int32_t c)
{
    if (c < 0x80)
        return c == ' ' || (c >= '\t' && c <= '\r');
    const utf8proc_category_t k = utf8proc_category(c);
    return c == 0x85 || (k >= UTF8PROC_CATEGORY_ZS && k <= UTF8PROC_CATEGORY_ZP);
}

/* Bytes of a space at the end of text, or 0. For SentencePiece U+2581 is a space, even if it was in the text itself;
 * others cut at spaces before. */
static size_t space_at_end(const struct pp_tokenizer *t, const char *text, size_t n)
{
    if (n && text[n - 1] == ' ')
        return 1;
    const bool counts = !t->apart && !t->bare_prefix;
    return counts && n >= TOK_SPACE_LEN && memcmp(text + n - TOK_SPACE_LEN, TOK_SPACE, TOK_SPACE_LEN) == 0
               ? TOK_SPACE_LEN : 0;
}

void tok_normalize(const struct pp_tokenizer *t, const char *text, size_t n, bool at_start, bool at_end,
                   struct pp_buf *out)
{
    const struct table table = table_of(t->charsmap, t->charsmap_len);
    const size_t begin = out->len;
    size_t last;
    bool after_space = at_start, all_spaces = t->squeeze;
    for (size_t i = 0; i < n;) {
        struct pp_str to;
        i += map_character(t, &table, text + i, n - i, &to);
        all_spaces = all_spaces && to.len == 1 && *to.data == ' ';
        while (t->squeeze && after_space && to.len && *to.data == ' ') {
            to.data++;
            to.len--;
        }
        pp_buf_add(out, to.data, to.len);
        if (to.len)
            after_space = to.data[to.len - 1] == ' ';
    }
    while (t->squeeze && at_end && (last = space_at_end(t, out->data + begin, out->len - begin)))
        out->len -= last;
    if (t->suffix && t->prefix.start != TOK_PREFIX_NEVER && !all_spaces)
        pp_buf_char(out, ' ');
    if (out->data)
        out->data[out->len] = 0;
}

/* --- BERT's words ----------------------------------------------------------------------------------------- */

/* ASCII signs all count, although Unicode calls some of them symbols. */
static bool is_punctuation(int32_t c)
{
    if ((c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~'))
        return true;
    if (c < 0x80)
        return false;
    const utf8proc_category_t k = utf8proc_category(c);
    return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
}

/* \w: letters, marks, digits, joiners, and connecting punctuation. */
static bool is_word(int32_t c)
{
    const utf8proc_category_t k = utf8proc_category(c);
    return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_NL) || k == UTF8PROC_CATEGORY_PC || c == 0x200C ||
           c == 0x200D;
}

bool tok_stands_alone(const char *text, size_t begin, size_t end, size_t n)
{
    int32_t c;
    size_t at = begin;
    while (at > 0 && begin - at < 4 && (--at, ((uint8_t)text[at] & 0xC0) == 0x80))
        ;
    if (begin > 0 && at + pp_utf8_decode(text + at, begin - at, &c) == begin && is_word(c))
        return false;
    return end == n || (pp_utf8_decode(text + end, n - end, &c), !is_word(c));
}

/* Characters that cleaning removes; tab and line ends become spaces instead. */
static bool is_control(int32_t c)
{
    const utf8proc_category_t k = utf8proc_category(c);
    if (c == '\t' || c == '\n' || c == '\r')
        return false;
    return c == 0xFFFD || k == UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_CO;
}

/* Blocks that BERT treats as words of their own: CJK ideographs, extensions and compatibility forms. */
static bool is_chinese(int32_t c)
{
    static const struct { int32_t from, to; } blocks[] = {
        {0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F},
        {0x2B740, 0x2B81F}, {0x2B820, 0x2CEAF}, {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F},
    };
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        if (c >= blocks[i].from && c <= blocks[i].to)
            return true;
    return false;
}

void tok_bert_normalize(const struct tok_bert *b, const char *text, size_t n, struct pp_buf *out)
{
    for (size_t i = 0, width; i < n; i += width) {
        int32_t c;
        char utf8[4];
        width = pp_utf8_decode(text + i, n - i, &c);
        if (b->clean && (c == 0 || (c >= 0 && is_control(c))))
            continue;
        if (b->strip_accents && c >= 0x300 && utf8proc_category(c) == UTF8PROC_CATEGORY_MN)
            continue;
        const bool chinese = b->chinese && is_chinese(c);
        if (chinese)
            pp_buf_char(out, ' ');
        if (b->clean && c >= 0 && is_white(c))
            pp_buf_char(out, ' ');
        else if (c >= 0 && b->lower)
            pp_buf_add(out, utf8, pp_utf8_encode(utf8proc_tolower(c), utf8));
        else
            pp_buf_add(out, text + i, width);
        if (b->lower && c == 0x130) /* dotted capital I keeps its dot */
            pp_buf_str(out, "\u0307");
        if (chinese)
            pp_buf_char(out, ' ');
    }
}

/* The word being collected. */
struct words {
    const struct pp_tokenizer *t;
    struct pp_buf *word;
    tok_word_fn *fn;
    void *ctx;
    struct pp_error *err;
};

static enum pp_code end_word(struct words *w)
{
    enum pp_code code = w->word->bad ? pp_fail_nomem(w->err, "a word") : PP_OK;
    if (!code && w->word->len)
        code = (*w->fn)(w->ctx, w->word->data, w->word->len, w->err);
    pp_buf_clear(w->word);
    return code;
}

/* Adds a character from which accents were removed. */
static enum pp_code add_letter(struct words *w, int32_t c)
{
    char utf8[4];
    if (is_white(c))
        return end_word(w);
    if (w->t->bert.lower && c == 0x130) { /* dotted capital I keeps its dot */
        pp_buf_str(w->word, "i\u0307");
        return PP_OK;
    }
    if (w->t->bert.lower)
        c = utf8proc_tolower(c);
    const bool alone = is_punctuation(c) || (w->t->bert.chinese && is_chinese(c));
    enum pp_code code = alone ? end_word(w) : PP_OK;
    pp_buf_add(w->word, utf8, pp_utf8_encode(c, utf8));
    return !code && alone ? end_word(w) : code;
}

static enum pp_code add_character(struct words *w, int32_t c)
{
    enum { LONGEST = 32 };
    utf8proc_int32_t parts[LONGEST] = {c};
    utf8proc_ssize_t n = 1;
    enum pp_code code = PP_OK;
    if (w->t->bert.strip_accents)
        n = utf8proc_decompose_char(c, parts, LONGEST, UTF8PROC_DECOMPOSE, NULL);
    for (utf8proc_ssize_t i = 0; i < n && i < LONGEST && !code; i++)
        if (!w->t->bert.strip_accents || utf8proc_category(parts[i]) != UTF8PROC_CATEGORY_MN)
            code = add_letter(w, parts[i]);
    return code;
}

/* The same for ASCII, without tables. */
static enum pp_code add_ascii(struct words *w, char c)
{
    if ((c < ' ' || c == 0x7F) && w->t->bert.clean && is_control(c))
        return PP_OK;
    if (is_white(c))
        return end_word(w);
    if (w->t->bert.lower && c >= 'A' && c <= 'Z')
        c = (char)(c + ('a' - 'A'));
    const bool alone = is_punctuation(c);
    enum pp_code code = alone ? end_word(w) : PP_OK;
    pp_buf_char(w->word, c);
    return !code && alone ? end_word(w) : code;
}

enum pp_code tok_bert_words(const struct pp_tokenizer *t, const char *text, size_t n, struct pp_buf *scratch,
                            tok_word_fn fn, void *ctx, struct pp_error *err)
{
    struct words w = {.t = t, .word = scratch, .fn = &fn, .ctx = ctx, .err = err};
    enum pp_code code = PP_OK;
    pp_buf_clear(scratch);
    for (size_t i = 0; i < n && !code;) {
        int32_t c;
        if ((uint8_t)text[i] < 0x80) {
            code = add_ascii(&w, text[i++]);
            continue;
        }
        i += pp_utf8_decode(text + i, n - i, &c);
        if (c < 0 || (t->bert.clean && is_control(c)))
            continue;
        code = add_character(&w, c);
    }
    return code ? code : end_word(&w);
}
