/* test_ui_input.c - the decoder of terminal bytes. */
#include "tests/support.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "ui/input.h"

static struct pp_input *fresh(void)
{
    struct pp_input *in = pp_input_new();
    assert_non_null(in);
    return in;
}

static const struct { const char *bytes; enum pp_key_type type; unsigned mods; int32_t cp; } keys[] = {
    {"a", PP_KEY_CHAR, 0, 'a'}, {"é", PP_KEY_CHAR, 0, 0xE9}, {"日", PP_KEY_CHAR, 0, 0x65E5},
    {"😀", PP_KEY_CHAR, 0, 0x1F600}, {"\r", PP_KEY_ENTER, 0, '\r'}, {"\n", PP_KEY_CHAR, 0, '\n'},
    {"\t", PP_KEY_TAB, 0, '\t'}, {"\x7f", PP_KEY_BACKSPACE, 0, 0x7F}, {"\x03", PP_KEY_CHAR, 0, 3},
    {"\033\r", PP_KEY_ENTER, PP_MOD_ALT, '\r'}, {"\033x", PP_KEY_CHAR, PP_MOD_ALT, 'x'},
    {"\033é", PP_KEY_CHAR, PP_MOD_ALT, 0xE9}, {"\0331", PP_KEY_CHAR, PP_MOD_ALT, '1'}, {"\033[A", PP_KEY_UP, 0, 0},
    {"\033OA", PP_KEY_UP, 0, 0}, {"\033[1;5A", PP_KEY_UP, PP_MOD_CTRL, 0},
    {"\033[1;2B", PP_KEY_DOWN, PP_MOD_SHIFT, 0}, {"\033[1;3D", PP_KEY_LEFT, PP_MOD_ALT, 0},
    {"\033[a", PP_KEY_UP, PP_MOD_SHIFT, 0}, {"\033Oa", PP_KEY_UP, PP_MOD_CTRL, 0},
    {"\033\033[A", PP_KEY_UP, PP_MOD_ALT, 0}, {"\033O5C", PP_KEY_RIGHT, PP_MOD_CTRL, 0},
    {"\033[H", PP_KEY_HOME, 0, 0}, {"\033[1~", PP_KEY_HOME, 0, 0}, {"\033[7~", PP_KEY_HOME, 0, 0},
    {"\033OF", PP_KEY_END, 0, 0}, {"\033[5~", PP_KEY_PGUP, 0, 0}, {"\033[6;2~", PP_KEY_PGDN, PP_MOD_SHIFT, 0},
    {"\033[3~", PP_KEY_DELETE, 0, 0}, {"\033[5^", PP_KEY_PGUP, PP_MOD_CTRL, 0}, {"\033[Z", PP_KEY_BACKTAB, 0, 0},
    {"\033OP", PP_KEY_F1, 0, 0}, {"\033[11~", PP_KEY_F1, 0, 0}, {"\033[[A", PP_KEY_F1, 0, 0},
    {"\033[P", PP_KEY_F1, 0, 0}, {"\033[[E", PP_KEY_F5, 0, 0}, {"\033[15~", PP_KEY_F5, 0, 0},
    {"\033[21~", PP_KEY_F10, 0, 0}, {"\033[1;2P", PP_KEY_F1, PP_MOD_SHIFT, 0},
    {"\033[13;2u", PP_KEY_ENTER, PP_MOD_SHIFT, '\r'}, {"\033[27;2;13~", PP_KEY_ENTER, PP_MOD_SHIFT, '\r'},
    {"\033[<64;10;5M", PP_KEY_WHEEL_UP, 0, 0}, {"\033[<65;4000;5M", PP_KEY_WHEEL_DOWN, 0, 0},
    {"\033[<69;1;1M", PP_KEY_WHEEL_DOWN, 0, 0}, {"\033[<2;1;1M", PP_KEY_CLICK, 0, 0},
    {"\033[99;5u", PP_KEY_CHAR, 0, 3}, {"\033[27u", PP_KEY_ESC, 0, 27},
};
enum { KEYS = sizeof keys / sizeof keys[0] };

static void expect(struct pp_input *in, size_t i)
{
    struct pp_key key;
    if (!pp_input_next(in, &key))
        fail_msg("no key for %s", keys[i].bytes + 1);
    if (key.type != keys[i].type || key.mods != keys[i].mods || (keys[i].cp && key.cp != keys[i].cp))
        fail_msg("row %zu: type %d, modifiers %u, character %d", i, (int)key.type, key.mods, (int)key.cp);
}

static void typed_ahead(void **state)
{
    (void)state;
    static const char *const texts[][2] = {
        {"Hello\n", "Hello\r"}, {"\n", "\r"}, {"Hello\n\n", "Hello\r\r"}, {"Hello", "Hello"},
        {"one\ntwo\n", "one\ntwo\n"}, {"one\ntwo", "one\ntwo"}, {"one\n\ntwo\n", "one\n\ntwo\n"}, {"", ""},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char bytes[16];
        strcpy(bytes, texts[i][0]);
        pp_input_typed_ahead(bytes, strlen(bytes));
        assert_string_equal(bytes, texts[i][1]);
    }
}

static void one_by_one(void **state)
{
    (void)state;
    struct pp_input *in = fresh();
    struct pp_key key;
    for (size_t i = 0; i < KEYS; i++) {
        assert_true(pp_input_feed(in, keys[i].bytes, strlen(keys[i].bytes)));
        expect(in, i);
        assert_false(pp_input_next(in, &key));
        assert_int_equal(pp_input_wait_ms(in), -1);
    }
    pp_input_free(in);
}

/* The same bytes one at a time, and all in one read. */
static void cut_and_glued(void **state)
{
    (void)state;
    struct pp_input *in = fresh();
    struct pp_key key;
    for (size_t i = 0; i < KEYS; i++) {
        size_t n = strlen(keys[i].bytes);
        for (size_t b = 0; b < n; b++) {
            assert_true(pp_input_feed(in, keys[i].bytes + b, 1));
            if (b + 1 < n) {
                assert_false(pp_input_next(in, &key));
                assert_true(pp_input_wait_ms(in) >= (keys[i].bytes[b] & 0x80 ? PP_SEQUENCE_MS : PP_ESCAPE_MS));
            }
        }
        expect(in, i);
    }
    for (size_t i = 0; i < KEYS; i++)
        assert_true(pp_input_feed(in, keys[i].bytes, strlen(keys[i].bytes)));
    for (size_t i = 0; i < KEYS; i++)
        expect(in, i);
    assert_false(pp_input_next(in, &key));
    pp_input_free(in);
}

static void lone_escape(void **state)
{
    (void)state;
    struct pp_input *in = fresh();
    struct pp_key key;
    pp_input_feed(in, "\033", 1);
    assert_false(pp_input_next(in, &key));
    assert_int_equal(pp_input_wait_ms(in), PP_ESCAPE_MS);
    pp_input_flush(in);
    assert_true(pp_input_next(in, &key));
    assert_int_equal(key.type, PP_KEY_ESC);
    assert_false(pp_input_next(in, &key));
    pp_input_feed(in, "\033\033", 2);
    pp_input_flush(in);
    assert_true(pp_input_next(in, &key) && key.type == PP_KEY_ESC);
    assert_true(pp_input_next(in, &key) && key.type == PP_KEY_ESC);
    pp_input_feed(in, "\033[", 2);
    pp_input_flush(in);
    assert_true(pp_input_next(in, &key) && key.type == PP_KEY_CHAR && key.cp == '[' && key.mods == PP_MOD_ALT);
    pp_input_feed(in, "\033[1;", 4); /* stopped in the middle: nothing */
    assert_int_equal(pp_input_wait_ms(in), PP_SEQUENCE_MS);
    pp_input_flush(in);
    assert_false(pp_input_next(in, &key));
    pp_input_feed(in, "x", 1);
    assert_true(pp_input_next(in, &key) && key.cp == 'x');
    pp_input_free(in);
}

static void pastes(void **state)
{
    (void)state;
    static const char text[] = "x\033[200~one\r\ntwo\rthree\n\033[A\x03\0!\033[201~y";
    for (size_t piece = 1; piece < 40; piece++) {
        struct pp_input *in = fresh();
        struct pp_key key;
        int seen = 0;
        for (size_t i = 0; i < sizeof text - 1; i += piece) {
            size_t n = sizeof text - 1 - i < piece ? sizeof text - 1 - i : piece;
            assert_true(pp_input_feed(in, text + i, n));
            while (pp_input_next(in, &key)) {
                if (seen == 1) {
                    assert_int_equal(key.type, PP_KEY_PASTE);
                    assert_string_equal(key.text, "one\ntwo\nthree\n\033[A\x03!");
                    assert_int_equal(key.len, strlen(key.text));
                } else {
                    assert_int_equal(key.cp, seen == 0 ? 'x' : 'y');
                }
                seen++;
            }
        }
        assert_int_equal(seen, 3);
        pp_input_free(in);
    }
}

static void expect_paste(struct pp_input *in, const char *text, bool open_end)
{
    struct pp_key key;
    assert_true(pp_input_next(in, &key));
    assert_int_equal(key.type, PP_KEY_PASTE);
    assert_string_equal(key.text, text);
    assert_int_equal(key.open_end, open_end);
    assert_false(pp_input_next(in, &key));
}

/* Bytes that are not UTF-8 are shown as bytes, at the end as anywhere else. */
static void a_paste_of_bytes(void **state)
{
    (void)state;
    struct pp_input *in = fresh();
    pp_input_feed(in, "\033[200~M\374ller, caf\303\033[201~", 24);
    expect_paste(in, "M\374ller, caf\303", false);
    pp_input_feed(in, "\033[200~\303\033[201~", 13);
    expect_paste(in, "\303", false);
    pp_input_free(in);
}

static void a_paste_behind_escape(void **state)
{
    (void)state;
    static const char text[] = "\033\033[200~one\ntwo\033[201~\033\033[2~";
    for (size_t piece = 1; piece < sizeof text; piece++) {
        struct pp_input *in = fresh();
        struct pp_key got[4] = {0};
        int n = 0;
        for (size_t i = 0; i < sizeof text - 1; i += piece) {
            pp_input_feed(in, text + i, sizeof text - 1 - i < piece ? sizeof text - 1 - i : piece);
            while (n < 3 && pp_input_next(in, &got[n])) {
                if (n == 1)
                    assert_string_equal(got[n].text, "one\ntwo");
                n++;
            }
        }
        assert_int_equal(n, 3);
        assert_int_equal(got[0].cp, 033);
        assert_int_equal(got[0].mods, 0);
        assert_int_equal(got[1].type, PP_KEY_PASTE);
        assert_int_equal(got[2].mods, PP_MOD_ALT); /* rxvt's Alt-Insert */
        pp_input_free(in);
    }
}

/* A terminal, or a program in between, omits the end mark: keys must not be swallowed for ever. */
static void a_paste_without_end(void **state)
{
    (void)state;
    struct pp_input *in = fresh();
    struct pp_key key;
    pp_input_feed(in, "\033[200~one\r\ntwo", 14);
    assert_false(pp_input_next(in, &key));
    assert_int_equal(pp_input_wait_ms(in), PP_PASTE_MS);
    pp_input_flush(in);
    expect_paste(in, "one\ntwo", true);
    assert_int_equal(pp_input_wait_ms(in), -1);
    pp_input_feed(in, "\r", 1);
    assert_true(pp_input_next(in, &key) && key.type == PP_KEY_ENTER);
    pp_input_feed(in, "\033[A", 3);
    assert_true(pp_input_next(in, &key) && key.type == PP_KEY_UP);
    pp_input_feed(in, "\033[200~", 6); /* only its beginning arrived, and an impatient Esc */
    pp_input_feed(in, "\033", 1);
    assert_false(pp_input_next(in, &key));
    pp_input_flush(in);
    assert_false(pp_input_next(in, &key));
    pp_input_feed(in, "\x03", 1);
    assert_true(pp_input_next(in, &key) && key.cp == PP_CTRL('c'));
    pp_input_free(in);
}

/* A slow line: what follows a pause is still pasted text, and a line end in it is not Enter. */
static void a_paste_that_pauses(void **state)
{
    (void)state;
    struct pp_input *in = fresh();
    struct pp_key key;
    pp_input_feed(in, "\033[200~eins \xe2\x82", 13);
    assert_false(pp_input_next(in, &key));
    pp_input_flush(in);
    expect_paste(in, "eins ", true);
    pp_input_feed(in, "\xac zwei\rdrei", 12);
    assert_false(pp_input_next(in, &key));
    assert_int_equal(pp_input_wait_ms(in), PP_PASTE_MS);
    pp_input_flush(in);
    expect_paste(in, "\xe2\x82\xac zwei\ndrei", true);
    pp_input_feed(in, "\r\033[201~", 7);
    expect_paste(in, "\n", false);
    pp_input_feed(in, "x", 1);
    assert_true(pp_input_next(in, &key) && key.cp == 'x');
    pp_input_free(in);
}

/* After a pause without an end mark, bytes that begin with Esc are not part of the paste, but keys or the next one. */
static void behind_a_paste_without_end(void **state)
{
    static const char *const begun[] = {"\033[200~one", "\033[200~one\xe2\x82"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct pp_input *in = fresh();
        struct pp_key key;
        pp_input_feed(in, begun[i], strlen(begun[i]));
        assert_false(pp_input_next(in, &key));
        pp_input_flush(in);
        expect_paste(in, "one", true);
        pp_input_feed(in, "\033[200~another one\033[201~", 23);
        expect_paste(in, "another one", false);
        pp_input_feed(in, begun[i], strlen(begun[i]));
        assert_false(pp_input_next(in, &key));
        pp_input_flush(in);
        expect_paste(in, "one", true);
        pp_input_feed(in, "\033[1;2A\033[1;2A\033[27;2;13~", 22);
        for (int k = 0; k < 2; k++)
            assert_true(pp_input_next(in, &key) && key.type == PP_KEY_UP && key.mods == PP_MOD_SHIFT);
        assert_true(pp_input_next(in, &key) && key.type == PP_KEY_ENTER && key.mods == PP_MOD_SHIFT);
        assert_false(pp_input_next(in, &key));
        pp_input_free(in);
    }
}

static void a_large_paste(void **state)
{
    (void)state;
    enum { SIZE = 17 << 20 };
    struct pp_input *in = fresh();
    struct pp_key key;
    char *block = malloc(1 << 20);
    assert_non_null(block);
    memset(block, 'p', 1 << 20);
    pp_input_feed(in, "\033[200~", 6);
    for (int i = 0; i < SIZE >> 20; i++) {
        assert_true(pp_input_feed(in, block, 1 << 20));
        assert_false(pp_input_next(in, &key));
    }
    pp_input_feed(in, "\033[201~", 6);
    assert_true(pp_input_next(in, &key));
    assert_int_equal(key.type, PP_KEY_PASTE);
    assert_int_equal(key.len, PP_MAX_PASTE);
    assert_true(key.cut);
    free(block);
    pp_input_free(in);
}

/* A paste for which there is no memory is reported, and the next one works. */
static void a_lost_paste(void **state)
{
    (void)state;
    static char block[1 << 16];
    struct pp_input *in = fresh();
    struct pp_key key;
    memset(block, 'p', sizeof block);
    pp_input_feed(in, "\033[200~", 6);
    pp_input_feed(in, block, sizeof block);
    pp_mem_fail_at(1, 1);
    assert_false(pp_input_next(in, &key));
    pp_mem_fail_at(0, 0);
    pp_input_feed(in, "\033[201~", 6);
    assert_true(pp_input_next(in, &key));
    assert_true(key.type == PP_KEY_PASTE && key.lost && key.len == 0);
    pp_input_feed(in, "\033[200~one\033[201~", 15);
    assert_true(pp_input_next(in, &key));
    assert_true(key.type == PP_KEY_PASTE && !key.lost && key.len == 3);
    pp_input_free(in);
}

static void replies_are_swallowed(void **state)
{
    static const char *const replies[] = {"\033]11;rgb:0000/0000/0000\a", "\033]11;rgb:0/0/0\033\\", "\033P1+r\033\\",
        "\033[?62;c",
                                          "\033[<0;1;1m", "\033[<35;1;1M", "\033[<66;1;1M", "\033[<0;1M",
        "\033[M !!", "\033[M#\x80\r",
                                          "\033[12;40$y", "\033_Gx\033\\", "\033[999999999999;9~",
                                              "\xff\xfe", "\xed\xa0\x80"};
    (void)state;
    struct pp_input *in = fresh();
    struct pp_key key;
    for (size_t i = 0; i < sizeof replies / sizeof replies[0]; i++) {
        pp_input_feed(in, replies[i], strlen(replies[i]));
        pp_input_feed(in, "k", 1);
        assert_true(pp_input_next(in, &key));
        if (key.cp != 'k')
            fail_msg("reply %zu gave a key", i);
        assert_false(pp_input_next(in, &key));
    }
    pp_input_free(in);
}

static void learned_keys(void **state)
{
    (void)state;
    struct pp_input *in = fresh();
    struct pp_key key;
    pp_input_learn(in, "\033[=9q", PP_KEY_F3, 0);
    pp_input_learn(in, NULL, PP_KEY_F3, 0);
    pp_input_learn(in, "x", PP_KEY_F3, 0);
    pp_input_feed(in, "\033[=9", 4);
    assert_false(pp_input_next(in, &key));
    pp_input_feed(in, "qx", 2);
    assert_true(pp_input_next(in, &key) && key.type == PP_KEY_F3);
    assert_true(pp_input_next(in, &key) && key.cp == 'x');
    pp_input_free(in);
}

static void hostile_bytes(void **state)
{
    (void)state;
    static const char alphabet[] = "\033\033\033[]OP_~;0123456789ABCuHM<?\a\\\x80\xe2\xffx\r\n$^";
    struct pp_input *in = fresh();
    struct pp_key key;
    uint32_t seed = 7;
    for (int round = 0; round < 20000; round++) {
        char bytes[8];
        for (size_t i = 0; i < sizeof bytes; i++) {
            seed = seed * 1664525u + 1013904223u;
            bytes[i] = alphabet[(seed >> 16) % (sizeof alphabet - 1)];
        }
        assert_true(pp_input_feed(in, bytes, 1 + seed % 8));
        while (pp_input_next(in, &key))
            assert_true(key.n_bytes <= sizeof key.bytes);
        if (round % 5 == 0) {
            pp_input_flush(in);
            while (pp_input_next(in, &key)) {
            }
        }
    }
    pp_input_free(in);
}

TEST_GROUP(ui_input)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(typed_ahead),
        cmocka_unit_test(one_by_one), cmocka_unit_test(cut_and_glued), cmocka_unit_test(lone_escape),
            cmocka_unit_test(pastes),
        cmocka_unit_test(a_paste_of_bytes), cmocka_unit_test(a_paste_behind_escape),
        cmocka_unit_test(a_paste_without_end),
        cmocka_unit_test(behind_a_paste_without_end),
        cmocka_unit_test(a_paste_that_pauses), cmocka_unit_test(a_large_paste), cmocka_unit_test(a_lost_paste),
        cmocka_unit_test(replies_are_swallowed), cmocka_unit_test(learned_keys),
        cmocka_unit_test(hostile_bytes),
    };
    return cmocka_run_group_tests_name("ui_input", tests, NULL, NULL);
}
