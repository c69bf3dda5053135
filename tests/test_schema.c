/* test_schema.c - grammars from JSON schemas: what they accept and reject, the official test suite with the exceptions
 * that are known, and what is refused by name. PIPPIN_LIST_EXCEPTIONS: prints the list of exceptions. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "engine/base/buf.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/grammar.h"
#include "tests/grammar_cases.h"
#include "tests/support.h"

static struct pp_grammar *of_case(const cJSON *c)
{
    struct pp_grammar *g = NULL;
    struct pp_error err;
    const char *schema = cJSON_GetStringValue(cJSON_GetObjectItem(c, "schema"));
    if (!schema)
        return NULL;
    const enum pp_code code = pp_grammar_from_schema(schema, strlen(schema), "test", &g, &err);
    /* the one that a grammar cannot express, and that must say so */
    if (code == PP_ERR_UNSUPPORTED && strstr(schema, "\"uniqueItems\": true"))
        return NULL;
    assert_ok(code, err);
    return g;
}

static void own_cases(void **state)
{
    (void)state;
    assert_int_equal(grammar_cases("tests/data/schema_cases.jsonl", of_case), 20);
}

static void upstream_cases(void **state)
{
    const char *path = testdata("grammars/gbnf_accept_reject.jsonl");
    (void)state;
    if (path)
        assert_int_equal(grammar_cases(path, of_case), 32);
}

/* --- the official suite ------------------------------------------------------------------------------------------ */

struct suite {
    char *exceptions; /* lines of FILE: GROUP (its schema is refused), or FILE: GROUP: TEST (its valid text is) */
    bool list;
    size_t n_tests, n_exceptions, n_wrong;
};

static bool is_listed(const struct suite *s, const char *line)
{
    const size_t n = strlen(line);
    for (const char *at = s->exceptions; (at = strstr(at, line)); at++)
        if ((at == s->exceptions || at[-1] == '\n') && at[n] == '\n')
            return true;
    return false;
}

static void expect(struct suite *s, bool exception, const char *file, const char *group, const char *test)
{
    char line[400];
    snprintf(line, sizeof line, "%s: %s%s%s", file, group, test ? ": " : "", test ? test : "");
    s->n_exceptions += exception;
    if (s->list && exception)
        printf("%s\n", line);
    else if (!s->list && exception != is_listed(s, line)) {
        s->n_wrong++;
        printf("%s, but is %slisted: %s\n", exception ? "is refused" : "is accepted", exception ? "not " : "", line);
    }
}

/* Gives numbers all their digits when printed. */
static void exact_numbers(cJSON *v)
{
    cJSON *child;
    char text[40];
    if (cJSON_IsNumber(v)) {
        snprintf(text, sizeof text, "%.0f", v->valuedouble);
        for (int n = 1; n < 18 && strtod(text, NULL) != v->valuedouble; n++)
            snprintf(text, sizeof text, "%.*g", n, v->valuedouble);
        v->type = cJSON_Raw;
        v->valuestring = strdup(text);
    }
    cJSON_ArrayForEach(child, v)
        exact_numbers(child);
}

static void run_group(struct suite *s, const char *file, const cJSON *group)
{
    const char *name = cJSON_GetObjectItem(group, "description")->valuestring;
    exact_numbers((cJSON *)group);
    char *schema = cJSON_PrintUnformatted(cJSON_GetObjectItem(group, "schema"));
    struct pp_grammar *g;
    struct pp_error err;
    const cJSON *test;
    const enum pp_code code = pp_grammar_from_schema(schema, strlen(schema), "suite", &g, &err);
    const bool never = code == PP_ERR_FORMAT && strstr(err.text, "no value fits");
    cJSON_free(schema);
    if (code && !never && code != PP_ERR_UNSUPPORTED)
        fail_msg("%s: %s: %s", file, name, err.text);
    expect(s, code == PP_ERR_UNSUPPORTED, file, name, NULL);
    cJSON_ArrayForEach(test, cJSON_GetObjectItem(group, "tests"))
    {
        const char *what = cJSON_GetObjectItem(test, "description")->valuestring;
        const bool valid = cJSON_IsTrue(cJSON_GetObjectItem(test, "valid"));
        char *text = cJSON_PrintUnformatted(cJSON_GetObjectItem(test, "data"));
        bool yes = false;
        s->n_tests++;
        if (g)
            assert_ok(pp_grammar_matches(g, text, strlen(text), &yes, &err), err);
        if (yes && !valid)
            fail_msg("%s: %s: %s: accepts %s", file, name, what, text);
        if (valid && code != PP_ERR_UNSUPPORTED)
            expect(s, !yes, file, name, what);
        cJSON_free(text);
    }
    pp_grammar_free(g);
}

static void run_file(struct suite *s, const char *folder, const char *file)
{
    char path[1200], *text;
    size_t n;
    struct pp_error err;
    const cJSON *group;
    snprintf(path, sizeof path, "%s/%s", folder, file);
    assert_ok(pp_read_file(path, 1 << 20, &text, &n, &err), err);
    cJSON *groups = cJSON_ParseWithLength(text, n);
    assert_non_null(groups);
    cJSON_ArrayForEach(group, groups)
        run_group(s, file, group);
    cJSON_Delete(groups);
    pp_free(text);
}

static int is_json(const struct dirent *d)
{
    const size_t n = strlen(d->d_name);
    return n > 5 && strcmp(d->d_name + n - 5, ".json") == 0;
}

static void official_suite(void **state)
{
    const char *folder = testdata("grammars/JSON-Schema-Test-Suite/draft7");
    struct suite s = {.list = getenv("PIPPIN_LIST_EXCEPTIONS") != NULL};
    struct dirent **files;
    struct pp_error err;
    size_t n, lines = 0;
    (void)state;
    if (!folder)
        return;
    assert_ok(pp_read_file("tests/data/schema_exceptions.txt", 1 << 20, &s.exceptions, &n, &err), err);
    for (const char *at = s.exceptions; *at; at++)
        lines += *at == '\n';
    const int n_files = scandir(folder, &files, is_json, alphasort);
    assert_true(n_files > 30);
    for (int i = 0; i < n_files; i++) {
        run_file(&s, folder, files[i]->d_name);
        free(files[i]);
    }
    free(files);
    pp_free(s.exceptions);
    assert_true(s.n_tests > 800);
    assert_int_equal(s.n_wrong, 0);
    if (!s.list)
        assert_int_equal(s.n_exceptions, lines); /* none is listed in vain */
}

/* --- what is refused --------------------------------------------------------------------------------------------- */

static void errors(void **state)
{
    static const struct {
        const char *schema, *error;
    } cases[] = {
        {"[", "s is not JSON"},
        {"{} {}", "s is not JSON: more text follows"},
        {"3", "s: a schema must be an object, true or false"},
        {"false", "s: no value fits this schema"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", "s: no value fits"},
        {"{\"type\":\"strnig\"}", "s: #/type: there is no such type"},
        {"{\"properties\":{\"a\":{\"uniqueItems\":true}}}", "s: #/properties/a/uniqueItems: a grammar cannot"},
        {"{\"properties\":{\"a/b\":{\"if\":{},\"then\":{}}}}", "s: #/properties/a~1b/if: a grammar cannot"},
        {"{\"items\":{\"pattern\":\"(?=a)\"}}", "s: #/items/pattern: a group that begins with (?"},
        {"{\"pattern\":\"a^\"}", "s: #/pattern: ^ or $ other than"},
        {"{\"pattern\":\"\\\\bx\"}", "s: #/pattern: an escape other than"},
        {"{\"pattern\":\"^a{2\"}", "s: #/pattern: a repetition other than"},
        {"{\"format\":\"iri\"}", "s: #/format: unknown format"},
        {"{\"$ref\":\"http://x/y\"}", "s: #/$ref: only references within the schema"},
        {"{\"$ref\":\"#/definitions/x\"}", "s: #/$ref: this reference leads to no schema"},
        {"{\"$ref\":\"#\"}", "s: #"},
        {"{\"oneOf\":[{\"type\":\"number\"},{\"type\":\"integer\"}]}", "s: #/oneOf: a value could fit several"},
        {"{\"oneOf\":[{\"type\":\"string\"},{\"minItems\":2}]}", "s: #/oneOf: a value could fit several"},
        {"{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", "s: #/anyOf: a choice that leads back"},
        {"{\"not\":{\"minimum\":3}}", "s: #/not: not is supported only for types"},
        {"{\"pattern\":\"^a*$\",\"maxLength\":3}", "s: #/pattern: pattern together with minLength"},
        {"{\"minLength\":-1}", "s: #/minLength: this must be a whole number"},
        {"{\"properties\":[]}", "s: #/properties: this must be an object"},
        {"{\"multipleOf\":2}", "s: #/multipleOf: a grammar cannot"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pp_grammar *g;
        struct pp_error err = {0};
        if (pp_grammar_from_schema(cases[i].schema, strlen(cases[i].schema), "s", &g, &err) == PP_OK ||
            strncmp(err.text, cases[i].error, strlen(cases[i].error)) != 0)
            fail_msg("%s: %s, not %s", cases[i].schema, err.text, cases[i].error);
        assert_null(g);
    }
}

/* Every allocation fails once. */
static void without_memory(void **state)
{
    static const char schema[] = "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"},"
                                 "\"b\":{\"enum\":[1,\"x\"]},"
                                 "\"c\":{\"pattern\":\"^[^a]+$\"}},\"additionalProperties\":true}";
    (void)state;
    bool failed = true;
    for (uint64_t nth = 1; failed; nth++) {
        struct pp_grammar *g = NULL;
        struct pp_error err;
        pp_mem_fail_at(nth, 0);
        const enum pp_code code = pp_grammar_from_schema(schema, strlen(schema), "s", &g, &err);
        pp_mem_fail_at(0, 0);
        failed = code != PP_OK;
        assert_true(!failed || code == PP_ERR_NOMEM);
        pp_grammar_free(g);
        assert_true(nth < 3000);
    }
}

/* Schemas made to take long. */
static void hostile(void **state)
{
    struct pp_buf b = {0};
    struct pp_grammar *g;
    struct pp_error err;
    (void)state;
    for (int i = 0; i < 400; i++)
        pp_buf_str(&b, "{\"items\":");
    pp_buf_str(&b, "{}");
    for (int i = 0; i < 400; i++)
        pp_buf_str(&b, "}");
    assert_int_equal(pp_grammar_from_schema(b.data, b.len, "s", &g, &err), PP_ERR_UNSUPPORTED);
    pp_buf_clear(&b);
    pp_buf_str(&b, "{\"allOf\":[");
    for (int i = 0; i < 6; i++)
        pp_buf_fmt(&b, "%s{\"anyOf\":[{\"minLength\":1},{\"minItems\":2},{\"minimum\":3},{\"type\":\"null\"}]}",
                   i ? "," : "");
    pp_buf_str(&b, "]}");
    assert_int_equal(pp_grammar_from_schema(b.data, b.len, "s", &g, &err), PP_ERR_UNSUPPORTED);
    pp_buf_clear(&b);
    pp_buf_str(&b, "{\"properties\":{");
    for (int i = 0; i < 1500; i++)
        pp_buf_fmt(&b, "%s\"p%d\":{\"type\":\"string\",\"maxLength\":100}", i ? "," : "", i);
    pp_buf_str(&b, "}}");
    assert_ok(pp_grammar_from_schema(b.data, b.len, "s", &g, &err), err);
    bool yes;
    assert_ok(pp_grammar_matches(g, "{\"p1\":\"x\",\"p1400\":\"\"}", 21, &yes, &err), err);
    assert_true(yes);
    pp_grammar_free(g);
    pp_buf_free(&b);
}

TEST_GROUP(schema)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_cases), cmocka_unit_test(upstream_cases), cmocka_unit_test(official_suite),
        cmocka_unit_test(errors),    cmocka_unit_test(without_memory), cmocka_unit_test(hostile),
    };
    return cmocka_run_group_tests_name("schema", tests, NULL, NULL);
}
