/* test_ui_text.c - the sanitiser, graphemes and widths, wrapping. */
#include "tests/support.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "ui/field.h"
#include "ui/format.h"
#include "ui/found.h"
#include "ui/sanitize.h"
#include "ui/text.h"
#include "ui/wrap.h"

static int utf8_locale(void **state)
{
    (void)state;
    return setlocale(LC_CTYPE, "C.UTF-8") || setlocale(LC_CTYPE, "en_US.UTF-8") ? 0 : -1;
}

static const char *clean(const char *s, size_t n, enum pp_clean mode)
{
    static struct pp_buf out;
    pp_buf_clear(&out);
    pp_sanitize(&out, s, n, mode, NULL);
    static char text[1024];
    snprintf(text, sizeof text, "%s", pp_buf_cstr(&out));
    pp_buf_free(&out);
    return text;
}

static void marks(void **state)
{
    static const struct { const char *from, *to; } table[] = {
        {"plain words", "plain words"},
        {"\033[31mred\033[0m", "␛[31mred␛[0m"},
        {"\033]52;c;aGk=\a", "␛]52;c;aGk=␇"},
        {"a\x7f" "b\x01" "c", "a␡b␁c"},
        {"\xc2\x9b" "2J \xc2\x85", "<U+009B>2J <U+0085>"},
        {"\xe2\x80\xae" "abc\xe2\x80\xac", "<U+202E>abc<U+202C>"},
        {"\xe2\x81\xa6x\xe2\x81\xa9", "<U+2066>x<U+2069>"},
        {"\xe2\x80\x8fx\xe2\x80\x8b\xef\xbb\xbf", "<U+200F>x<U+200B><U+FEFF>"},
        {"a\xe2\x80\xa8" "b\xe2\x80\xa9", "a<U+2028>b<U+2029>"},
        {"\xf3\xa0\x81\x81", "<U+E0041>"},
        {"\xee\x80\x80 \xf4\x8f\xbf\xbd", "<U+E000> <U+10FFFD>"},
        {"\xe3\x85\xa4", "<U+3164>"},
        {"bad \xff\xc3( \xed\xa0\x80", "bad <FF><C3>( <ED><A0><80>"},
        {"overlong \xc0\xaf", "overlong <C0><AF>"},
        {"cut \xe2\x82", "cut <E2><82>"},
        {"a\tb\n\tc", "a   b\n    c"},
        {"one\r\ntwo\rthree", "one\ntwo␍three"},
        {"日本\t語", "日本    語"},
        {"e\xcc\x81 👨\xe2\x80\x8d👩 ❤\xef\xb8\x8f", "e\xcc\x81 👨\xe2\x80\x8d👩 ❤\xef\xb8\x8f"},
        {"שלום مرحبا", "שלום مرحبا"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        assert_string_equal(clean(table[i].from, strlen(table[i].from), PP_CLEAN_TEXT), table[i].to);
    assert_string_equal(clean("a\0b", 3, PP_CLEAN_TEXT), "a␀b");
    assert_string_equal(clean("a\tb\nc", 5, PP_CLEAN_LINE), "a␉b␊c");
}

static void tabs_go_on_across_pieces(void **state)
{
    struct pp_buf out = {0};
    int column = 0;
    (void)state;
    pp_sanitize(&out, "abcde", 5, PP_CLEAN_TEXT, &column);
    pp_sanitize(&out, "\tx", 2, PP_CLEAN_TEXT, &column);
    assert_string_equal(pp_buf_cstr(&out), "abcde   x");
    pp_buf_free(&out);
}

/* Whatever the text is, no control character reaches the cells: checked where text is split into glyphs for ncurses. */
static void nothing_dangerous_reaches_the_cells(void **state)
{
    (void)state;
    uint32_t seed = 12345;
    for (int round = 0; round < 300; round++) {
        char raw[400];
        for (size_t i = 0; i < sizeof raw; i++) {
            seed = seed * 1664525u + 1013904223u;
            unsigned v = seed >> 16;
            raw[i] = (char)(v % 5 == 0 ? (v >> 3) % 32 : v % 7 == 0 ? 0xE2 : v % 11 == 0 ? 0x80 : v >> 2);
        }
        struct pp_buf out = {0};
        pp_sanitize(&out, raw, sizeof raw, PP_CLEAN_TEXT, NULL);
        assert_true(pp_utf8_valid(pp_buf_cstr(&out), out.len));
        for (size_t i = 0; i < out.len; i++)
            assert_true((unsigned char)out.data[i] >= 0x20 || out.data[i] == '\n');
        for (size_t i = 0; i < out.len;) {
            struct pp_cluster c = pp_cluster_next(out.data + i, out.len - i);
            struct pp_glyph glyphs[PP_MAX_GLYPHS];
            assert_true(c.len > 0 && c.len <= out.len - i);
            int n = out.data[i] == '\n' ? 0 : pp_cluster_glyphs(out.data + i, c.len, glyphs), width = 0;
            for (int g = 0; g < n; g++) {
                width += glyphs[g].width;
                for (const wchar_t *w = glyphs[g].chars; *w; w++)
                    assert_true(*w >= 0x20 && pp_char_is_clean((int32_t)*w));
            }
            assert_int_equal(width, c.width);
            i += c.len;
        }
        pp_buf_free(&out);
    }
}

static void clusters(void **state)
{
    static const struct { const char *s; size_t len; int width; } table[] = {
        {"a", 1, 1}, {"ab", 1, 1}, {"é", 2, 1}, {"e\xcc\x81x", 3, 1}, {"日本", 3, 2}, {"한국", 3, 2},
        {"👨‍👩‍👧!", 18, 6}, {"👍🏽!", 8, 2}, {"❤️!", 6, 1}, {"🇩🇪!", 8, 2}, {"\xcc\x81", 2, 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct pp_cluster c = pp_cluster_next(table[i].s, strlen(table[i].s));
        assert_int_equal(c.len, table[i].len);
        assert_int_equal(c.width, table[i].width);
    }
    static const struct { const char *s; int width; wchar_t first[3]; } joined[] = { /* terminals join what follows */
        {"e\u200D🚀", 1, L"e"}, {"e\u200Dx", 1, L"e"}, {"\u0915\u094D\u200D\u0937", 1, L"\u0915\u094D"},
        {"\u200Dx", 1, L"\u25CC"}, {"👨\u200Dx", 2, L"👨"},
    };
    for (size_t i = 0; i < sizeof joined / sizeof joined[0]; i++) {
        struct pp_glyph glyphs[PP_MAX_GLYPHS];
        const int n = pp_cluster_glyphs(joined[i].s, pp_cluster_next(joined[i].s, strlen(joined[i].s)).len, glyphs);
        assert_true(n > 0);
        assert_int_equal(glyphs[0].width, joined[i].width);
        assert_int_equal(wcscmp(glyphs[0].chars, joined[i].first), 0);
    }
    char tower[2 + 2 * 1000] = "a";
    size_t n = 1;
    for (int i = 0; i < 1000; i++, n += 2)
        memcpy(tower + n, "\xcc\x81", 2);
    assert_in_range(pp_cluster_next(tower, n).len, 1, 4 * PP_MAX_GLYPHS);
    assert_int_equal(pp_text_fit("日本語", 9, 5, NULL), 6);
    assert_int_equal(pp_text_previous("日本語", 9, 9), 6);
}

/* Lines joined by '|'. */
static const char *wrapped(const char *s, int width, bool words)
{
    static char out[1024];
    size_t n = strlen(s), used = 0;
    out[0] = '\0';
    for (size_t pos = 0; pos < n;) {
        struct pp_wrapped w = pp_wrap(s, n, pos, width, words);
        assert_true(w.next > pos && w.end >= pos && w.end <= w.next);
        assert_int_equal(w.width, pp_text_width(s + pos, w.end - pos));
        used += (size_t)snprintf(out + used, sizeof out - used, "%s%.*s", pos ? "|" : "", (int)(w.end - pos), s + pos);
        pos = w.next;
    }
    return out;
}

static void wrapping(void **state)
{
    (void)state;
    assert_string_equal(wrapped("the quick brown fox", 10, true), "the quick|brown fox");
    assert_string_equal(wrapped("the quick brown", 9, true), "the quick|brown");
    assert_string_equal(wrapped("full line\nnext", 9, true), "full line|next");
    assert_string_equal(wrapped("full line \nnext", 9, true), "full line|next");
    assert_string_equal(wrapped("a\n\nb", 9, true), "a||b");
    assert_string_equal(wrapped("incomprehensibilities", 8, true), "incompre|hensibil|ities");
    assert_string_equal(wrapped("well-known facts", 7, true), "well-|known|facts");
    assert_string_equal(wrapped("日本語の文。次", 10, true), "日本語の|文。次");
    assert_string_equal(wrapped("日本語", 1, true), "日|本|語");
    assert_string_equal(wrapped("ab e\xcc\x81" "f", 4, true), "ab|e\xcc\x81" "f");
    assert_string_equal(wrapped("  indented words", 8, true), "  indent|ed words");
    assert_string_equal(wrapped("int  x = 1;", 5, false), "int  |x = 1|;");
    assert_string_equal(wrapped("            ", 5, true), "     |     |  ");
}

static const char *completed(const char *path)
{
    static struct pp_field f;
    pp_field_set(&f, path);
    pp_field_complete_path(&f, NULL);
    return f.text;
}

static void paths(void **state)
{
    (void)state;
    assert_string_equal(completed("/proc/self/stat"), "/proc/self/stat");
    assert_string_equal(completed("/proc/self/cmdl"), "/proc/self/cmdline");
    assert_string_equal(completed("~no-such-user-or-file"), "~no-such-user-or-file");
    assert_string_equal(completed("~no-such-user/file"), "~no-such-user/file");
}

static const char *age(int64_t seconds)
{
    static char text[32];
    pp_format_age(text, sizeof text, 1700000000, 1700000000 + seconds); /* 2023-11-14, 22:13 UTC */
    return text;
}

static void ages(void **state)
{
    enum { MINUTE = 60, HOUR = 3600, DAY = 24 * HOUR };
    char *zone = getenv("TZ") ? pp_strdup(getenv("TZ")) : NULL;
    (void)state;
    setenv("TZ", "UTC0", 1);
    tzset();
    assert_string_equal(age(0), "now");
    assert_string_equal(age(MINUTE - 1), "now");
    assert_string_equal(age(MINUTE), "1 min ago");
    assert_string_equal(age(5 * HOUR), "5 h ago");
    assert_string_equal(age(DAY), "yesterday");
    assert_string_equal(age(13 * DAY), "13 days ago");
    assert_string_equal(age(14 * DAY), "2023-11-14");
    assert_string_equal(age(-HOUR), "now"); /* the clock was set back */
    assert_string_equal(age(-DAY), "2023-11-14");
    assert_string_equal(age(-400 * DAY), "2023-11-14");
    if (zone)
        setenv("TZ", zone, 1);
    else
        unsetenv("TZ");
    tzset();
    pp_free(zone);
}

static void words_found(void **state)
{
    (void)state;
    assert_true(pp_found_in("The Old man and the sea", "sea"));
    assert_true(pp_found_in("The Old man and the sea", "  old \"THE se"));
    assert_true(pp_found_in("Über das Café", "cafe uber"));
    assert_true(pp_found_in("\u041c\u043e\u0440\u0435", "\u043c\u043e\u0440"));
    assert_true(pp_found_in("\u96e8\u306e\u6e2f", "\u6e2f")); /* there are no blanks between words */
    assert_false(pp_found_in("nausea", "sea"));
    assert_true(pp_found_in("nausea at sea", "sea"));
    assert_false(pp_found_in("The Old man", "old sea"));
    assert_false(pp_found_in("The Old man", " \" "));
    assert_false(pp_found_in("The Old man", ""));
    assert_true(pp_found_in("\xff old", "old")); /* a byte that is not text is no letter */
    assert_true(pp_found_phrase("Das CAF\u00c9 ist zu", "cafe\u0301 IST"));
    assert_true(pp_found_phrase("nausea", "sea"));
    assert_true(pp_found_phrase("a[i]++", "[I]++"));
    assert_false(pp_found_phrase("a", ""));
    assert_false(pp_found_phrase("a", "\u0301")); /* a mark alone is not a word */
    assert_false(pp_found_in("a", "\u0301"));
}

/* The bytes for which a text was found are those that are marked, including the combining marks on their letters. */
static void words_marked(void **state)
{
    static const struct {
        const char *text, *search;
        bool phrase;
        const char *hit;
    } all[] = {
        {"The Old one", "old", false, "....111...."},
        {"nausea, Sea", "sea", false, "........111"},
        {"nausea, Sea", "sea", true, "...111..111"},
        {"old man, old sea", "sea old", false, "111......111.111"},
        {"un caf\u00e9 ici", "CAFE", false, "...11111...."},
        {"un cafe\u0301 ici", "caf\u00e9", true, "...111111...."},
        {"cafe", "caf\u00e9", true, "1111"},
        {"STRASSE, Stra\u00dfe", "strasse", false, "1111111..1111111"},
        {"\u041c\u041e\u0420\u0415", "\u043c\u043e", true, "1111...."},
        {"a\xff" "b", "B", true, "..1"},
        {"nothing", "else", true, "......."},
        {"nothing", "", true, "......."},
        {"aaa", "aa", true, "111"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        unsigned char hit[32];
        char got[33] = "";
        const size_t n = strlen(all[i].text);
        const bool any = pp_found_mark(all[i].text, n, all[i].search, all[i].phrase, hit);
        for (size_t k = 0; k < n; k++)
            got[k] = hit[k] ? '1' : '.';
        assert_string_equal(got, all[i].hit);
        assert_int_equal(any, strchr(got, '1') != NULL);
    }
}

TEST_GROUP(ui_text)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_found), cmocka_unit_test(words_marked),
        cmocka_unit_test(marks), cmocka_unit_test(tabs_go_on_across_pieces),
            cmocka_unit_test(nothing_dangerous_reaches_the_cells),
        cmocka_unit_test(clusters), cmocka_unit_test(wrapping), cmocka_unit_test(paths), cmocka_unit_test(ages),
    };
    return cmocka_run_group_tests_name("ui_text", tests, utf8_locale, NULL);
}
