/* test_ui_markdown.c - documents: Markdown, plain text, and that streaming gives the same lines as the whole text at
 * once. */
#include "tests/support.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/mem.h"
#include "ui/document.h"

static int utf8_locale(void **state)
{
    (void)state;
    return setlocale(LC_CTYPE, "C.UTF-8") || setlocale(LC_CTYPE, "en_US.UTF-8") ? 0 : -1;
}

/* The layout as text: indent as dots, quote bars as '>', code lines in front of '$', runs of other styles in braces. */
static char *dump(const struct pp_layout *l, pp_style base)
{
    struct pp_buf out = {0};
    for (size_t i = 0; i < l->n_lines; i++) {
        const struct pp_line *line = &l->lines[i];
        for (int q = 0; q < line->quote; q++)
            pp_buf_char(&out, '>');
        for (int d = 0; d < line->indent; d++)
            pp_buf_char(&out, '.');
        if (line->kind != PP_LINE_TEXT)
            pp_buf_char(&out, line->kind == PP_LINE_CODE ? '$' : '-');
        size_t run = pp_layout_run(l, line->start);
        for (uint32_t at = line->start; at < line->end; run++) {
            uint32_t end = run + 1 < l->n_runs && l->runs[run + 1].start < line->end ? l->runs[run + 1].start
                : line->end;
            bool plain = l->runs[run].style == base || line->kind == PP_LINE_CODE;
            pp_buf_fmt(&out, plain ? "%.*s" : "{%.*s}", (int)(end - at), l->text.data + at);
            at = end;
        }
        pp_buf_char(&out, '\n');
    }
    return pp_buf_take(&out);
}

static void shows(const char *source, int width, bool markdown, const char *expected)
{
    struct pp_document doc = {0};
    pp_document_update(&doc, source, strlen(source), width, markdown, PP_SLOT_ASSISTANT);
    char *text = dump(&doc.layout, PP_SLOT_ASSISTANT);
    assert_false(doc.layout.bad);
    assert_string_equal(text ? text : "", expected);
    pp_free(text);
    pp_document_free(&doc);
}

static void markdown(void **state)
{
    (void)state;
    shows("Some **bold** and *it* and `code`.", 60, true, "Some {bold} and {it} and {code}.\n");
    shows("# Title\n\ntext", 60, true, "{Title}\n\ntext\n");
    shows("one\ntwo\n\n\n\nthree", 60, true, "one\ntwo\n\nthree\n");
    shows("- a\n- b b b b\n  - c", 8, true, "{• }a\n{• }b b b\n..b\n..{◦ }c\n");
    shows("3. x\n4. y", 20, true, "{3. }x\n{4. }y\n");
    shows("> quoted words here\n> more", 12, true, ">..{quoted}\n>..{words here}\n>..{more}\n");
    shows("[text](http://evil) and [http://x](http://x)", 60, true, "{text}{ (http://evil)} and {http://x}\n");
    shows("&lt;b&gt; &#27; &#x202e; <b>x</b>", 60, true, "<b> &#27; &#x202e; <b>x</b>\n");
    shows("***", 60, true, "-\n");
    shows("", 60, true, "");
}

/* Terminals cannot strike text out, and a range of numbers must not lose its tilde. */
static void tildes(void **state)
{
    (void)state;
    shows("~~old~~ new ~~**a** b~~", 60, true, "{~~old~~} new {~~}{a}{ b~~}\n");
    shows("3~5\345\244\251\357\274\2147~9, from 10~20 to 30~40, ~5 or ~6", 60, true,
          "3~5\345\244\251\357\274\2147~9, from 10~20 to 30~40, ~5 or ~6\n");
    shows("*1~2* **3~4** `a~b` \\~x~ [l](http://x/~u) ~~c~~ 1~2~3", 60, true,
          "{1~2} {3~4} {a~b} ~x~ {l}{ (http://x/~u)} {~~c~~} 1~2~3\n");
    shows("~a ~~b~~ c~ d", 60, true, "~a {~~b~~} c~ d\n");
    shows("a~~~b~~~c ~~~~", 60, true, "a~~~b~~~c ~~~~\n");
}

/* Stars that multiply do not mark emphasis, and vice versa. */
static void products(void **state)
{
    (void)state;
    shows("5*4*3*2*1 = 120, 2*x*3", 60, true, "5*4*3*2*1 = 120, 2*x*3\n");
    shows("if (a*b > c*d) return x**2 + y**2;", 60, true, "if (a*b > c*d) return x**2 + y**2;\n");
    shows("(1+2)*3 + 4*(5+6), a[1]*b*2", 60, true, "(1+2)*3 + 4*(5+6), a[1]*b*2\n");
    shows("*3* of **4** (*a*) un*like*ly *b*, 2 * 3 * 4", 60, true, "{3} of {4} ({a}) un{like}ly {b}, 2 * 3 * 4\n");
    shows("**2*3*4** `2*3*4` [2*3*4](http://x/2*3*4)", 60, true, "{2*3*4} {2*3*4} {2*3*4}{ (http://x/2*3*4)}\n");
    shows("* 2*3*4\n\n```\n2*3*4\n```", 60, true, "{\342\200\242 }2*3*4\n\n..$\n..$2*3*4\n..$\n");
}

static void names_of_python(void **state)
{
    (void)state;
    shows("if __name__ == \"__main__\": __init__.py, a.__call__()", 60, true,
          "if __name__ == \"__main__\": __init__.py, a.__call__()\n");
    shows("__Bold__ __two words__ **__all__** x__init__ ____ __a", 60, true,
          "{Bold} {two words} {__all__} x__init__ ____ __a\n");
    shows("__future_import__, __a__b", 60, true, "__future_import__, __a__b\n");
}

/* References to links are shown, too: they may be the only trace of a source. */
static void references(void **state)
{
    (void)state;
    shows("As said[1].\n\n[1]: http://x.y/a_b \"T *t*\"\n[2]: <http://z>", 60, true,
          "As said[1].\n\n[1]: http://x.y/a_b \"T {t}\"\n[2]: {http://z}\n");
    shows("> - [a b]: /c\n\n[a]:\n/d\n\n[note]: see *there*", 60, true,
          ">..{\342\200\242 }{[a b]: /c}\n\n[a]:\n/d\n\n[note]: see {there}\n");
    shows("[l](http://[::1]:80/x) `a]:b`", 60, true, "{l}{ (http://[::1]:80/x)} {a]:b}\n");
}

/* Formulas are shown as they are written, with their marks; prices are no formulas. */
static void formulas(void **state)
{
    (void)state;
    shows("*a* $x_{1} *y* \\, z$ **b**", 60, true, "{a} $x_{1} *y* \\, z$ {b}\n");
    shows("*a* \\(x_i *y* \\; \\{z\\}_j\\) **b** \\(c\\)", 60, true, "{a} \\(x_i *y* \\; \\{z\\}_j\\) {b} \\(c\\)\n");
    shows("\\[\n  \\frac{a_i}{b} \\\\\n  *c*\n\\]\n*d*", 60, true, "\\[\n\\frac{a_i}{b} \\\\\n*c*\n\\]\n{d}\n");
    shows("$$\nx*y*z\n$$", 60, true, "$$\nx*y*z\n$$\n");
    shows("- \\(a\\)\n- `\\(b\\)` $c$", 60, true, "{• }\\(a\\)\n{• }{\\(b\\)} $c$\n");
    shows("\\(not closed *x*", 60, true, "\\(not closed {x}\n");
    shows("\\\\(*x*\\\\)", 60, true, "\\\\({x}\\\\)\n");
    shows("$5 *and* $6 and 7 $, $8,*9*$", 60, true, "$5 {and} $6 and 7 $, $8,*9*$\n");
    shows("US$5, *b* US$6, $a", 60, true, "US$5, {b} US$6, $a\n");
    shows("\\$5 *and* 6$", 60, true, "$5 {and} 6$\n");
    shows("| \\(a_1 *b*\\) | $c$ |\n|---|---|\n| \\[d\\] | *e* |", 60, true,
          "{\\(a_1 *b*\\)}{ │ }{$c$}\n{────────────┼────}\n\\[d\\]      { │ }{e}\n");
}

/* Backslashes that escape nothing are kept: their meaning would otherwise be lost. */
static void backslashes(void **state)
{
    (void)state;
    shows("C:\\new\\.git and C:\\_x\\* and ..\\..\\x and \\\\server\\share$\\", 80, true,
          "C:\\new\\.git and C:\\_x\\* and ..\\..\\x and \\\\server\\share$\\\n");
    shows("a\\.b, \\d+\\*\\[x\\], \\(a\\|b\\)\\{1,2\\}, x\\\\y, \\\"q\\\"", 80, true,
          "a\\.b, \\d+\\*\\[x\\], \\(a\\|b\\)\\{1,2\\}, x\\\\y, \\\"q\\\"\n");
    shows("in D:\\new\\\nand *(C:\\.x)* **\\.git** a|b", 80, true, "in D:\\new\\\nand {(C:\\.x)} {\\.git} a|b\n");
    /* those that do are removed */
    shows("2\\*3\\*4, foo\\_bar, \\[x](y), 50\\% of \\$5 \\& C\\#, \\`x\\` Hi\\!", 80, true,
          "2*3*4, foo_bar, [x](y), 50% of $5 & C#, `x` Hi!\n");
    shows("1\\. a\n\n\\- b\n\n> \\+ c\n\n\\# d\n\n12\\) e", 80, true,
          "1. a\n\n- b\n\n>..{+ c}\n\n# d\n\n12) e\n");
    shows("one\\\ntwo", 80, true, "one\ntwo\n");
    shows("`a\\.b` ``C:\\`` `C:\\x\\`", 80, true, "{a\\.b} {C:\\} {C:\\x\\}\n");
    shows("| a\\|b | C:\\new\\.x |\n|---|---|", 80, true, "{a|b}{ │ }{C:\\new\\.x}\n");
}

static void tables(void **state)
{
    (void)state;
    shows("| a | bcd |\n|---|--:|\n| **x** y | 1 |\n| z |", 60, true,
          "{a}  { │ }{bcd}\n{────┼────}\n{x} y{ │ }  1\nz  { │ }   \n");
    shows("a\n\n| 日本 | b |\n|:-:|---|\n| x | |\n\nb", 60, true, "a\n\n{日本}{ │ }{b}\n{─────┼──}\n x  { │ }\n\nb\n");
    shows("| one two three | b |\n|---|---|\n| four five six | seven eight |", 20, true,
          "{one two}  { │ }{b}\n{three}    { │ }\n{──────────┼─────────}\nfour five{ │ }seven\nsix      { │ }eight\n");
    shows("| a | b |\n|---|---|\n| `x\\|y<br>` | 1<br>2<br/>3 |", 60, true,
          "{a}      { │ }{b}\n{────────┼──}\n{x|y<br>}{ │ }1\n       { │ }2\n       { │ }3\n");
    shows("- | a | b |\n  |---|---|\n  | 1 | 2 |\n- c", 60, true,
          "{• }\n..{a}{ │ }{b}\n..{──┼──}\n..1{ │ }2\n{• }c\n");
    shows("> | a | b |\n> |---|---|\n> | 1 | 2 |", 60, true, ">..{a}{ │ }{b}\n>..{──┼──}\n>..{1}{ │ }{2}\n");
    shows("| a | b |\n|---|---|", 60, true, "{a}{ │ }{b}\n");
    shows("| a | b |\n|---|---|\n| cccccc | dddddd |", 12, true,
          "| a | b |\n|---|---|\n| cccccc |\ndddddd |\n"); /* no room for a table */
    shows("| a | b |\nno table", 60, true, "| a | b |\nno table\n");
    shows("| a | b |\n|---|---|\n| 1 | 2 |", 60, false, "| a | b |\n|---|---|\n| 1 | 2 |\n");
}

/* Tables of one-line rows have no rules between rows; one row of several lines adds rules everywhere. Tests a table as
 * long as answers get. */
static void large_tables(void **state)
{
    (void)state;
    shows("| a | b |\n|---|---|\n| 1 | 2<br>3 |\n| 4 | 5 |", 60, true,
          "{a}{ │ }{b}\n{──┼──}\n1{ │ }2\n { │ }3\n{──┼──}\n4{ │ }5\n");
    struct pp_buf source = {0};
    struct pp_document doc = {0};
    pp_buf_str(&source, "| key | value |\n|---|---|\n");
    for (int i = 0; i < 300; i++)
        pp_buf_fmt(&source, "| key %d | a value of some words, %d |\n", i, i * i);
    pp_document_update(&doc, source.data, source.len, 60, true, PP_SLOT_ASSISTANT);
    assert_int_equal(doc.layout.n_lines, 302);
    pp_document_free(&doc);
    pp_buf_free(&source);
}

/* Code in the styles of its parts, which are marked c, s, n and k. */
static void colours(const char *source, const char *expected)
{
    static const struct {
        pp_style style;
        const char *mark;
    } marks[] = {{PP_SLOT_CODE_COMMENT, "{c "}, {PP_SLOT_CODE_STRING, "{s "}, {PP_SLOT_CODE_NUMBER, "{n "},
                 {PP_SLOT_CODE_KEYWORD, "{k "}};
    struct pp_document doc = {0};
    struct pp_buf out = {0};
    for (size_t n = 0; n <= strlen(source); n++) /* as it is written */
        pp_document_update(&doc, source, n, 60, true, PP_SLOT_ASSISTANT);
    const struct pp_layout *l = &doc.layout;
    for (size_t i = 1; i < l->n_lines; i++) {
        size_t run = pp_layout_run(l, l->lines[i].start);
        for (uint32_t at = l->lines[i].start, end; at < l->lines[i].end; at = end, run++) {
            const bool more = run + 1 < l->n_runs && l->runs[run + 1].start < l->lines[i].end;
            const char *mark = "";
            end = more ? l->runs[run + 1].start : l->lines[i].end;
            for (size_t k = 0; k < sizeof marks / sizeof *marks; k++)
                mark = l->runs[run].style == marks[k].style ? marks[k].mark : mark;
            pp_buf_fmt(&out, "%s%.*s%s", mark, (int)(end - at), l->text.data + at, *mark ? "}" : "");
        }
        pp_buf_char(&out, '\n');
    }
    assert_string_equal(pp_buf_cstr(&out), expected);
    pp_buf_free(&out);
    pp_document_free(&doc);
}

static void code_in_colours(void **state)
{
    (void)state;
    colours("```c\n#include <a.h>\nint x1 = 0x1F; // it's \"x\n/* two\nlines */ char c = '\\'', *s = \"a\\\"//b\"; "
            "'open",
            "{k #include} <a.h>\n{k int} x1 = {n 0x1F}; {c // it's \"x}\n{c /* two}\n"
            "{c lines */} {k char} c = {s '\\''}, *s = {s \"a\\\"//b\"}; 'open\n");
    colours("~~~Python title=x\ndef f(s): # one\n  '''a\n  if''' + f'x' in don't, 'b'",
            "{k def} f(s): {c # one}\n  {s '''a}\n{s   if'''} + f{s 'x'} {k in} don't, {s 'b'}\n");
    colours("```rust\nfn f<'a>(x: &'a str) -> 'é' { 1.5e3 }",
            "{k fn} f<'a>(x: &'a {k str}) -> {s 'é'} { {n 1.5e3} }\n");
    colours("```sh\nif [ $# -gt 1 ]; then #no", "{k if} [ $# -gt {n 1} ]; {k then} {c #no}\n");
    colours("```sql\nSelect 'a' -- b", "{k Select} {s 'a'} {c -- b}\n");
    colours("```js\nlet a = `x\n// y` + 1", "{k let} a = {s `x}\n{s // y`} + {n 1}\n");
    colours("```diff\n@@ 1\n+int\n-int\n int", "{c @@ 1}\n{s +int}\n{k -int}\n int\n");
    colours("```\nint x = 1; // no", "int x = 1; // no\n");
    colours("```klingon\nint x = 1; // no", "int x = 1; // no\n");
    colours("```c\n/* one\n```\n\n```c\nint", "{c /* one}\n\n\nc\n{k int}\n");
}

static void code_blocks(void **state)
{
    (void)state;
    shows("a\n```c\nint **x;\n\n  y\n```\nb", 60, true, "a\n\n..$c\n..$int **x;\n..$\n..$  y\n..$\n\nb\n");
    shows("````\n```\n````", 60, true, "..$\n..$```\n..$\n");
    shows("~~~\n```\nx", 60, true, "..$\n..$```\n..$x\n");
    shows("1. do\n   ```\n   x\n   ```", 60, true, "{1. }do\n\n.....$\n.....$x\n.....$\n");
    shows("```\nlong code line\n```", 10, true, "..$\n..$long co\n..$de line\n..$\n");
    shows("```\nopen", 60, true, "..$\n..$open\n");
}

static void plain(void **state)
{
    (void)state;
    shows("*a*\n\n# b\n  c", 60, false, "*a*\n\n# b\n  c\n");
    shows("\033[1m", 60, false, "␛[1m\n");
}

static const char everything[] =
    "# Heading\n\nSome **bold** words,\nlines and `code`.\n\n- one\n- two\n\n  inside two\n- three\n\n"
    "1. first\n\n2. second\n\n> quote\n> more\n\n"
    "| a | b |\n|---|:-:|\n| long cells here | of **several** words |\n| c |\n\n"
    "```python\ndef f():\n\n    return '```'\n```\n"
    "after\r\nthat \033[2J 日本語の文章 e\xcc\x81\n\n~~~\nopen fence\n\n\nend";

static void streaming_is_the_same(void **state)
{
    (void)state;
    const size_t n = sizeof everything - 1;
    struct pp_document streamed = {0}, whole = {0};
    for (size_t i = 0; i <= n; i++)
        pp_document_update(&streamed, everything, i, 30, true, PP_SLOT_ASSISTANT);
    pp_document_update(&whole, everything, n, 30, true, PP_SLOT_ASSISTANT);
    char *a = dump(&streamed.layout, PP_SLOT_ASSISTANT), *b = dump(&whole.layout, PP_SLOT_ASSISTANT);
    assert_string_equal(a, b);
    pp_free(a);
    /* another width and back, another text, an empty one */
    pp_document_update(&streamed, everything, n, 11, true, PP_SLOT_ASSISTANT);
    pp_document_update(&streamed, "other", 5, 30, true, PP_SLOT_ASSISTANT);
    assert_int_equal(streamed.layout.n_lines, 1);
    pp_document_update(&streamed, everything, n, 30, true, PP_SLOT_ASSISTANT);
    a = dump(&streamed.layout, PP_SLOT_ASSISTANT);
    assert_string_equal(a, b);
    pp_document_update(&streamed, "", 0, 30, true, PP_SLOT_ASSISTANT);
    assert_int_equal(streamed.layout.n_lines, 0);
    pp_free(a);
    pp_free(b);
    pp_document_free(&streamed);
    pp_document_free(&whole);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* A megabyte with few line ends or none, in pieces: the cost of an update must not grow with the text. Formatting all
 * of it each time would take minutes. */
static void a_megabyte_streams(void **state)
{
    (void)state;
    enum { SIZE = 1 << 20, PIECE = 512 };
    static const char *const units[] = {"word ", "no-break-at-all", "a line of words\n", "para\n\n", "日本語"};
    char *text = malloc(SIZE);
    assert_non_null(text);
    for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
        size_t len = strlen(units[u]), n = SIZE / len * len;
        for (size_t i = 0; i < n; i += len)
            memcpy(text + i, units[u], len);
        struct pp_document doc = {0};
        double began = seconds();
        for (size_t i = 0; i < n; i += PIECE)
            pp_document_update(&doc, text, i, 80, true, PP_SLOT_ASSISTANT);
        assert_false(doc.layout.bad);
        assert_true(doc.layout.n_lines > SIZE / 200);
        assert_true(seconds() - began < 20);
        pp_document_free(&doc);
    }
    free(text);
}

static void survives_anything(void **state)
{
    (void)state;
    static const char alphabet[] = "*_`~#>-[]()!&;\n\n\n  1.a\\\\$$<|\t\033\r";
    uint32_t seed = 99;
    for (int round = 0; round < 400; round++) {
        char text[600];
        for (size_t i = 0; i < sizeof text; i++) {
            seed = seed * 1664525u + 1013904223u;
            text[i] = alphabet[(seed >> 16) % (sizeof alphabet - 1)];
        }
        struct pp_document doc = {0};
        for (size_t i = 0; i <= sizeof text; i += 13)
            pp_document_update(&doc, text, i, 1 + round % 40, true, PP_SLOT_ASSISTANT);
        for (size_t i = 0; i < doc.layout.n_lines; i++)
            assert_true(doc.layout.lines[i].start <= doc.layout.lines[i].end &&
                        doc.layout.lines[i].end <= doc.layout.text.len);
        for (size_t i = 0; i < doc.layout.text.len; i++)
            assert_true((unsigned char)doc.layout.text.data[i] >= 0x20 || doc.layout.text.data[i] == '\n');
        pp_document_free(&doc);
    }
}

TEST_GROUP(ui_markdown)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(markdown), cmocka_unit_test(tildes), cmocka_unit_test(products),
        cmocka_unit_test(references), cmocka_unit_test(names_of_python),
        cmocka_unit_test(formulas), cmocka_unit_test(backslashes), cmocka_unit_test(tables),
        cmocka_unit_test(large_tables), cmocka_unit_test(code_blocks), cmocka_unit_test(code_in_colours),
        cmocka_unit_test(plain),
        cmocka_unit_test(streaming_is_the_same), cmocka_unit_test(a_megabyte_streams),
        cmocka_unit_test(survives_anything),
    };
    return cmocka_run_group_tests_name("ui_markdown", tests, utf8_locale, NULL);
}
