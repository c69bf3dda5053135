/* test_grammar.c - GBNF: what grammars accept and reject, what is wrong with others, and that nothing hostile hangs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "engine/base/clock.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/grammar_state.h"
#include "tests/grammar_cases.h"
#include "tests/support.h"

static struct pp_grammar *parse(const char *text)
{
    struct pp_grammar *g;
    struct pp_error err;
    assert_ok(pp_grammar_parse(text, strlen(text), "test", &g, &err), err);
    return g;
}

static struct pp_grammar *of_case(const cJSON *c)
{
    return strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(c, "kind")), "gbnf") == 0
               ? parse(cJSON_GetStringValue(cJSON_GetObjectItem(c, "grammar")))
               : NULL;
}

static void own_cases(void **state)
{
    (void)state;
    assert_int_equal(grammar_cases("tests/data/grammar_cases.jsonl", of_case), 11);
}

static void upstream_cases(void **state)
{
    const char *path = testdata("grammars/gbnf_accept_reject.jsonl");
    (void)state;
    if (path)
        assert_int_equal(grammar_cases(path, of_case), 14);
}

static bool matches(const struct pp_grammar *g, const char *text)
{
    bool yes;
    struct pp_error err;
    assert_ok(pp_grammar_matches(g, text, strlen(text), &yes, &err), err);
    return yes;
}

/* The sample grammars of the test data, each with a text that it accepts and one that it does not. */
static void samples(void **state)
{
    static const struct {
        const char *file, *yes, *no;
    } cases[] = {
        {"arithmetic", "(a +12) = b\n", "a + \n"},
        {"chess", "1. e4 e5\n2. Nf3 Nc6\n3. O-O a6\n", "1. e4\n"},
        {"english", "Is it 5 o'clock?", "Ist es fünf?\n"},
        {"japanese", "たべる、カタカナ", "abc"},
        {"json", "{\"a\": [1, -2.5e3, \"x\\n\", null, true]}", "{\"a\": [1,]}"},
        {"json_arr", "[\n\"a\",\n{\"b\":1}]", "{}"},
        {"list", "- one\n- two\n", "one\n"},
        {"c", "int main(){return 1;}", "int main("},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char relative[80], *text;
        size_t n;
        struct pp_grammar *g;
        struct pp_error err;
        snprintf(relative, sizeof relative, "grammars/gbnf/%s.gbnf", cases[i].file);
        const char *path = testdata(relative);
        if (!path)
            return;
        assert_ok(pp_read_file(path, 1 << 20, &text, &n, &err), err);
        assert_ok(pp_grammar_parse(text, n, relative, &g, &err), err);
        if (!matches(g, cases[i].yes) || matches(g, cases[i].no))
            fail_msg("%s does not match \"%s\", or matches \"%s\"", cases[i].file, cases[i].yes, cases[i].no);
        pp_grammar_free(g);
        pp_free(text);
    }
}

static void errors(void **state)
{
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"", "g: there is no rule \"root\""},
        {"a ::= \"x\"", "g: there is no rule \"root\""},
        {"root ::= a b\na ::= \"x\"", "g:1:12: there is no rule \"b\""},
        {"root ::= \"x\"\n  é", "g:2:3: expected a rule: NAME ::="},
        {"root ::= \"é\" @", "g:1:14: expected a rule, a \"text\""},
        {"root ::= \"x", "g:1:10: this text has no closing \""},
        {"root ::= [a-z", "g:1:10: this class has no closing ]"},
        {"root ::= [z-a]", "g:1:11: this range is empty"},
        {"root ::= []", "g:1:10: an empty class matches nothing"},
        {"root ::= (\"x\"", "g:1:10: this ( has no matching )"},
        {"root ::= \"x\")", "g:1:13: this ) has no matching ("},
        {"root ::= *", "g:1:10: there is nothing before *"},
        {"root ::= \"x\"{3,2}", "g:1:13: this repetition has a maximum below"},
        {"root ::= \"x\"{,2}", "g:1:13: a repetition is written as"},
        {"root ::= \"x\"{2000000}", "g:1:14: at most 100000 repetitions"},
        {"root ::= \"\\q\"", "g:1:11: unknown escape"},
        {"root ::= \"\\ud800\"", "g:1:11: there is no character D800"},
        {"root ::= \"\\x4\"", "g:1:11: \\x needs 2 hexadecimal digits"},
        {"root ::= \"\xff\"", "g:1:11: this byte is not UTF-8"},
        {"root ::= <[x]>", "g:1:10: a token's number is written as"},
        {"root ::= <x", "g:1:10: this token has no closing >"},
        {"root ::= !x", "g:1:10: after ! there must be a token"},
        {"root ::= \"x\"\nroot ::= \"y\"", "g:2:1: the rule \"root\" is defined twice"},
        {"root ::= e\ne ::= e \"+\" e | \"1\"", "g: the rule \"e\" is left-recursive"},
        {"root ::= \"x\" a\na ::= b* c \"x\"\nb ::= \"b\"\nc ::= \"\" | a", "g: the rule \"a\" is left-recursive"},
        {"root ::= \"x\" a | \"y\"\na ::= \"a\" a", "g: the rule \"a\" can never end"},
        {"root ::= root", "g: the rule \"root\" can never end"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pp_grammar *g;
        struct pp_error err = {0};
        if (pp_grammar_parse(cases[i].text, strlen(cases[i].text), "g", &g, &err) != PP_ERR_FORMAT ||
            strncmp(err.text, cases[i].error, strlen(cases[i].error)) != 0)
            fail_msg("%s: %s, not %s", cases[i].text, err.text, cases[i].error);
        assert_null(g);
    }
}

static char *repeated(const char *before, const char *s, size_t n, const char *after)
{
    struct pp_buf b = {0};
    pp_buf_str(&b, before);
    while (n-- > 0)
        pp_buf_str(&b, s);
    pp_buf_str(&b, after);
    return pp_buf_take(&b);
}

/* Parses, and reads n times the text; both must end soon, well or not. */
static void survives(char *grammar, const char *s, size_t n)
{
    struct pp_grammar *g;
    struct pp_error err = {0};
    char *text = repeated("", s, n, "");
    const uint64_t begin = pp_now_ns();
    bool yes;
    if (pp_grammar_parse(grammar, strlen(grammar), "test", &g, &err) == PP_OK) {
        if (pp_grammar_matches(g, text, strlen(text), &yes, &err))
            assert_int_equal(err.code, PP_ERR_UNSUPPORTED);
        pp_grammar_free(g);
    }
    if (pp_now_ns() - begin > UINT64_C(20000000000))
        fail_msg("%.60s takes %d s", grammar, (int)((pp_now_ns() - begin) / 1000000000));
    free(grammar);
    pp_free(text);
}

static void hostile(void **state)
{
    (void)state;
    survives(repeated("root ::= ", "(", 100000, "\"a\""), "a", 1);
    survives(repeated("root ::= ", "(", 150, "\"a\"") , "a", 1);
    survives(strdup("root ::= s\ns ::= \"a\" s s | \"a\""), "a", 600);
    survives(strdup("root ::= s\ns ::= \"a\" s s s | \"\""), "a", 200);
    survives(strdup("root ::= ((((\"a\"*)*)*)*)* \"b\""), "a", 100000);
    survives(strdup("root ::= ((((\"a\"{1,99}){1,99}){1,99}){1,99}){1,99}"), "a", 300);
    survives(strdup("root ::= (((((\"a\"{0,9999}){0,9999}){0,9999}){0,9999}){0,9999}){0,99999}"), "a", 100);
    survives(strdup("root ::= \"[\" root \"]\" | \"[\" root \"}\" | \"\""), "[", 60000);
    survives(strdup("root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"\""), "a", 60000);
    survives(strdup("root ::= (\"a\" | \"a\" | \"aa\" | \"aaa\")* x\nx ::= \"a\" x | \"b\""), "a", 60000);
    survives(repeated("root ::= \"a\"", "{2}", 150, ""), "a", 10);
    survives(repeated("root ::= \"a\"", "{2,}", 150, ""), "a", 10);
    survives(repeated("root ::= \"a\"", "+", 100000, ""), "a", 10);
    survives(repeated("root ::= ", "\"a\"? ", 20000, ""), "a", 200);
    survives(repeated("root ::= ", "a|b|", 200000, "a\na ::= \"a\"\nb ::= \"b\""), "ab", 1);
    /* a chain of rules, each of which begins with the next */
    struct pp_buf b = {0};
    for (int i = 0; i < 20000; i++)
        pp_buf_fmt(&b, i ? "r%d ::= r%d | \"x\"\n" : "root ::= r%d\n", i, i + 1);
    pp_buf_str(&b, "r20000 ::= \"y\"\n");
    char *chain = pp_buf_take(&b), *fixed = repeated(chain, "", 0, "\nr0 ::= \"a\"\n");
    pp_free(chain);
    survives(fixed, "y", 1);
    for (int i = 0; i < 30000; i++)
        pp_buf_fmt(&b, "x%d ::= \"a\" x%d | \"b\"\n", i, (i * 7919) % 30000);
    chain = pp_buf_take(&b);
    survives(repeated(chain, "", 0, "root ::= x1\n"), "a", 1000);
    pp_free(chain);
}

/* Every allocation fails once. */
static void without_memory(void **state)
{
    static const char text[] = "root ::= (\"a\" root [^x] | <t> | \"b\"{300})* x\nx ::= \"c\" x | \"d\"";
    (void)state;
    bool failed = true;
    for (uint64_t nth = 1; failed; nth++) {
        struct pp_grammar *g = NULL;
        struct pp_error err;
        bool yes;
        pp_mem_fail_at(nth, 0);
        enum pp_code code = pp_grammar_parse(text, strlen(text), "test", &g, &err);
        if (!code)
            code = pp_grammar_matches(g, "abybbbx", 7, &yes, &err);
        pp_mem_fail_at(0, 0);
        failed = code != PP_OK;
        assert_true(!failed || code == PP_ERR_NOMEM);
        pp_grammar_free(g);
        assert_true(nth < 1000);
    }
}

/* A text with more states than are kept: those that are still needed survive. */
static void trims(void **state)
{
    (void)state;
    struct pp_grammar *g = parse("root ::= \"[\" root \"]\" | \"(\" root \")\" | \"\"");
    enum { DEPTH = 200000 };
    char *text = pp_malloc(2 * DEPTH);
    assert_non_null(text);
    uint32_t random = 1;
    for (int i = 0; i < DEPTH; i++) {
        random = random * 1664525 + 1013904223;
        text[i] = random >> 31 ? '[' : '(';
        text[2 * DEPTH - 1 - i] = text[i] == '[' ? ']' : ')';
    }
    bool yes;
    struct pp_error err;
    assert_ok(pp_grammar_matches(g, text, 2 * DEPTH, &yes, &err), err);
    assert_true(yes);
    text[2 * DEPTH - 1] ^= 1;
    assert_ok(pp_grammar_matches(g, text, 2 * DEPTH, &yes, &err), err);
    assert_false(yes);
    pp_free(text);
    pp_grammar_free(g);
}

TEST_GROUP(grammar)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_cases), cmocka_unit_test(upstream_cases), cmocka_unit_test(samples),
        cmocka_unit_test(errors),    cmocka_unit_test(hostile),        cmocka_unit_test(without_memory),
        cmocka_unit_test(trims),
    };
    return cmocka_run_group_tests_name("grammar", tests, NULL, NULL);
}
