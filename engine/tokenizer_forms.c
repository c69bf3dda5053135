/* tokenizer_forms.c - text in one of Unicode's four normalisation forms (UAX 15). Characters and their decompositions
 * come from utf8proc; but this file finds out by itself that text has the form already, as nearly all has, and where it
 * has not.
 *
 * A character is clean if it begins a stretch that can be normalised by itself, and is in the form itself. Others are
 * marks, which must be in canonical order; characters that are never in the form; and those that may join what precedes
 * them. */
#include <endian.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer_internal.h"

enum {
    TABLED = 0x30000,     /* characters in the tables; no later one decomposes */
    BLOCK = 64,           /* characters with the same first bytes */
    LONGEST = 32,         /* characters that one may become; Unicode has 18 */
    SHORT_RUN = 16,       /* marks; up to this many are sorted by insertion */
    CHUNK = 32,           /* bytes that are checked together */
    N_FORMS = 4,
};

struct form {
    uint64_t bad[TABLED / BLOCK];  /* a bit for each character that is not, or may not be, in the form */
    uint64_t marks[TABLED / BLOCK];
    uint8_t clean[TABLED / BLOCK]; /* 1: the block has no such character */
    bool plain;                    /* nor has any block that surely_clean() covers */
};

static struct form forms[N_FORMS]; /* by enum tok_form; constant once made */

/* --- tables ----------------------------------------------------------------------------------------------- */

static utf8proc_option_t decomposition(enum tok_form f)
{
    return f == TOK_NFKC || f == TOK_NFKD ? UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT : UTF8PROC_DECOMPOSE;
}

static bool composes(enum tok_form f)
{
    return f == TOK_NFC || f == TOK_NFKC;
}

static unsigned mark_class(int32_t c)
{
    return (unsigned)utf8proc_get_property(c)->combining_class;
}

static void set_bit(uint64_t *bits, int32_t c)
{
    if (c >= 0 && c < TABLED)
        bits[c / BLOCK] |= (uint64_t)1 << c % BLOCK;
}

static bool get_bit(const uint64_t *bits, int32_t c)
{
    return c < TABLED && bits[c / BLOCK] >> c % BLOCK & 1;
}

static void add_character(enum tok_form f, int32_t c)
{
    utf8proc_int32_t parts[LONGEST];
    const utf8proc_property_t *p = utf8proc_get_property(c);
    if (p->combining_class)
        set_bit(forms[f].marks, c);
    if (p->decomp_seqindex == UINT16_MAX)
        return;
    utf8proc_ssize_t n = utf8proc_decompose_char(c, parts, LONGEST, decomposition(f), NULL);
    if (n < 1 || n > LONGEST || (n == 1 && parts[0] == c))
        return;
    const int32_t last = parts[n - 1];
    if (composes(f))
        n = utf8proc_normalize_utf32(parts, n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    if (!composes(f) || n != 1 || parts[0] != c)
        set_bit(forms[f].bad, c);
    else
        set_bit(forms[f].bad, last); /* it may join what precedes it */
}

/* Hangul is not in utf8proc's tables: syllables consist of two or three letters, of which the second and third join
 * what precedes them. */
static void add_hangul(enum tok_form f)
{
    for (int32_t c = 0x1161; c <= 0x1175 && composes(f); c++)
        set_bit(forms[f].bad, c);
    for (int32_t c = 0x11A8; c <= 0x11C2 && composes(f); c++)
        set_bit(forms[f].bad, c);
    for (int32_t c = 0xAC00; c <= 0xD7A3 && !composes(f); c++)
        set_bit(forms[f].bad, c);
}

/* Makes a form's table. Most characters are ideographs and Hangul syllables, which are treated as ranges. */
static void make_table(enum tok_form form)
{
    static const struct { int32_t from, to; } ranges[] = {
        {0x80, 0x3400}, {0xA000, 0xAC00}, {0xD7A4, 0x17000}, {0x18D00, 0x20000}, {0x2F800, TABLED},
    };
    struct form *f = &forms[form];
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        for (int32_t c = ranges[i].from; c < ranges[i].to; c++)
            add_character(form, c);
    add_hangul(form);
    f->plain = true;
    for (size_t i = 0; i < TABLED / BLOCK; i++) {
        f->clean[i] = !(f->bad[i] | f->marks[i]);
        if ((i >= 2 && i < 12) || i == 16 || i == 17 || (i >= 0x100 && i < 0x280))
            f->plain = f->plain && f->clean[i];
    }
}

static void make_nfc(void) { make_table(TOK_NFC); }
static void make_nfd(void) { make_table(TOK_NFD); }
static void make_nfkc(void) { make_table(TOK_NFKC); }
static void make_nfkd(void) { make_table(TOK_NFKD); }

void tok_form_init(enum tok_form form)
{
    static pthread_once_t once[N_FORMS] = {[0 ... N_FORMS - 1] = PTHREAD_ONCE_INIT};
    static void (*const make[N_FORMS])(void) = {make_nfc, make_nfd, make_nfkc, make_nfkd};
    pthread_once(&once[form], make[form]);
}

/* --- one stretch ------------------------------------------------------------------------------------------ */

struct stretch {
    int32_t *c;
    size_t n, cap;
};

static int by_class(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Sorts marks stably by their classes, in linear time if there are many. */
static bool sort_marks(int32_t *c, size_t n)
{
    if (n <= SHORT_RUN) {
        for (size_t i = 1; i < n; i++)
            for (size_t k = i; k > 0 && mark_class(c[k - 1]) > mark_class(c[k]); k--) {
                const int32_t other = c[k];
                c[k] = c[k - 1];
                c[k - 1] = other;
            }
        return true;
    }
    uint64_t *keys = pp_realloc_array(NULL, n, sizeof *keys);
    int32_t *from = keys ? pp_realloc_array(NULL, n, sizeof *from) : NULL;
    for (size_t i = 0; from && i < n; i++)
        keys[i] = (uint64_t)mark_class(c[i]) << 32 | i;
    if (from) {
        memcpy(from, c, n * sizeof *c);
        qsort(keys, n, sizeof *keys, by_class);
        for (size_t i = 0; i < n; i++)
            c[i] = from[(uint32_t)keys[i]];
    }
    pp_free(keys);
    pp_free(from);
    return from != NULL;
}

static bool sort_all(struct stretch *s)
{
    for (size_t i = 0, end; i < s->n; i = end) {
        for (end = i; end < s->n && mark_class(s->c[end]); end++)
            ;
        if (end > i + 1 && !sort_marks(s->c + i, end - i))
            return false;
        end += end == i;
    }
    return true;
}

/* Appends text[0..n) in the form; false: out of memory. */
static bool put_stretch(enum tok_form f, const char *text, size_t n, struct stretch *s, struct pp_buf *out)
{
    s->n = 0;
    for (size_t i = 0; i < n;) {
        int32_t c;
        i += pp_utf8_decode(text + i, n - i, &c);
        if (pp_grow(&s->c, &s->cap, s->n + LONGEST, sizeof *s->c))
            return false;
        const utf8proc_ssize_t k = utf8proc_decompose_char(c, s->c + s->n, LONGEST, decomposition(f), NULL);
        s->n += k > 0 && k <= LONGEST ? (size_t)k : 0;
    }
    if (!sort_all(s))
        return false;
    if (composes(f)) {
        const utf8proc_ssize_t k =
            utf8proc_normalize_utf32(s->c, (utf8proc_ssize_t)s->n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
        s->n = k > 0 ? (size_t)k : 0;
    }
    for (size_t i = 0; i < s->n; i++) {
        char utf8[4];
        pp_buf_add(out, utf8, pp_utf8_encode(s->c[i], utf8));
    }
    return !out->bad;
}

/* --- looking ---------------------------------------------------------------------------------------------- */

static bool is_clean(const struct form *f, int32_t c)
{
    return c < 0 || !(get_bit(f->bad, c) || get_bit(f->marks, c));
}

/* Bytes of the character at p, which is not ASCII, if its first bytes show that it is clean, as those of Chinese do;
 * otherwise 0. */
static inline size_t clean_width(const struct form *f, const char *p, const char *end)
{
    const uint8_t a = (uint8_t)p[0];
    if (end - p < 3 || ((uint8_t)p[1] & 0xC0) != 0x80)
        return 0;
    if (a >= 0xC2 && a < 0xE0)
        return f->clean[a & 31] ? 2 : 0;
    const unsigned block = (a & 15u) << 6 | ((uint8_t)p[1] & 63u);
    return a >= 0xE0 && a < 0xF0 && ((uint8_t)p[2] & 0xC0) == 0x80 && f->clean[block] ? 3 : 0;
}

static inline const char *skip_ascii(const char *p, const char *end)
{
    for (uint64_t eight; end - p >= (ptrdiff_t)sizeof eight; p += sizeof eight) {
        memcpy(&eight, p, sizeof eight);
        eight &= 0x8080808080808080u;
        if (eight)
            return p + __builtin_ctzll(le64toh(eight)) / 8;
    }
    while (p < end && (uint8_t)*p < 0x80)
        p++;
    return p;
}

/* Whether all bytes belong to ASCII, accented Latin, modern Cyrillic and ideographs: U+0000 to U+02FF, U+0400 to
 * U+047F, U+4000 to U+9FFF. */
static inline bool surely_clean(const char *p)
{
    uint8_t other = 0;
    for (int i = 0; i < CHUNK; i++) {
        const uint8_t byte = (uint8_t)p[i];
        other |= (uint8_t)((byte >= 0xCC) & ((uint8_t)(byte - 0xD0) > 1) & ((uint8_t)(byte - 0xE4) > 5));
    }
    return !other;
}

/* Skips clean text from p, where an ASCII character is. *start: the last character before the result. */
static const char *skip_plain(const struct form *f, const char *p, const char *end, const char **start)
{
    const char *const begin = p;
    int32_t c;
    while (f->plain && end - p >= CHUNK && surely_clean(p))
        p += CHUNK;
    if (p == begin) {
        p = skip_ascii(p, end);
        *start = p - 1;
        return p;
    }
    while (p < end && ((uint8_t)*p & 0xC0) == 0x80)
        p++;
    const char *last = p - 1;
    while (last > begin && p - last < 4 && ((uint8_t)*last & 0xC0) == 0x80)
        last--;
    *start = last + pp_utf8_decode(last, (size_t)(end - last), &c) == p && c >= 0 ? last : p;
    return p;
}

/* The first character that may not be in the form, and the start of its stretch; or the end. */
static const char *find_odd(const struct form *f, const char *p, const char *end, const char **start)
{
    unsigned before = 0; /* the class of the mark before p */
    *start = p;
    while (p < end) {
        int32_t c;
        if ((uint8_t)*p < 0x80) {
            p = skip_plain(f, p, end, start);
            before = 0;
            continue;
        }
        size_t width = clean_width(f, p, end);
        if (width) {
            *start = p;
            p += width;
            before = 0;
            continue;
        }
        width = pp_utf8_decode(p, (size_t)(end - p), &c);
        if (c >= 0 && get_bit(f->bad, c))
            return p;
        const unsigned class = c >= 0 && get_bit(f->marks, c) ? mark_class(c) : 0;
        if (class && class < before)
            return p;
        before = class;
        if (!class)
            *start = c < 0 ? p + width : p;
        p += width;
    }
    return end;
}

enum tok_changed tok_form(enum tok_form form, const char *text, size_t n, struct pp_buf *out)
{
    const struct form *f = &forms[form];
    const char *const end = text + n, *copied = text, *start;
    struct stretch s = {0};
    struct pp_buf made = {0};
    bool ok = true;
    for (const char *p = text; ok && (p = find_odd(f, p, end, &start)) < end;) {
        const char *stop = p;
        for (int32_t c = 0; stop < end;) {
            const size_t width = pp_utf8_decode(stop, (size_t)(end - stop), &c);
            if (is_clean(f, c))
                break;
            stop += width;
        }
        pp_buf_clear(&made);
        ok = put_stretch(form, start, (size_t)(stop - start), &s, &made);
        p = stop;
        if (ok && made.len == (size_t)(stop - start) && memcmp(made.data, start, made.len) == 0)
            continue;
        pp_buf_add(out, copied, (size_t)(start - copied));
        pp_buf_add(out, made.data, made.len);
        copied = stop;
    }
    const bool same = copied == text;
    if (!same)
        pp_buf_add(out, copied, (size_t)(end - copied));
    ok = ok && !out->bad && !made.bad;
    pp_buf_free(&made);
    pp_free(s.c);
    return !ok ? TOK_NO_MEMORY : same ? TOK_SAME : TOK_CHANGED;
}
