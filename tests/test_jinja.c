/* test_jinja.c - chat templates must render as with Python's Jinja 3.1.6, set up as usual for chat templates
 * (sandboxed, trim_blocks, no loader): blocks, autoescape, links, large integers, bytes, sets, and what is refused. */
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "engine/base/clock.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/text.h"
#include "tests/support.h"

static enum pp_code render(const char *source, const char *vars, struct pp_buf *out, struct pp_error *err)
{
    struct pp_template *t;
    enum pp_code code = pp_template_parse(source, strlen(source), "test", &t, err);
    pp_buf_clear(out);
    if (code)
        return code;
    code = pp_template_render_vars(t, vars, 0, out, err);
    pp_template_free(t);
    return code;
}

/* The first line has the variables; cases without an expected text are errors in Python, too. */
static void as_python_does(void **state)
{
    char *data, *rest, *vars;
    size_t size, n = 0;
    struct pp_error err;
    struct pp_buf out = {0};
    (void)state;
    assert_ok(pp_read_file("tests/data/jinja_cases.jsonl", 1 << 20, &data, &size, &err), err);
    char *line = strtok_r(data, "\n", &rest);
    /* cJSON rounds the large one: the text itself is what is rendered with */
    vars = strstr(line, "{\"vars\":") + strlen("{\"vars\":");
    vars[strlen(vars) - 1] = 0;
    for (; (line = strtok_r(NULL, "\n", &rest)); n++) {
        cJSON *c = cJSON_Parse(line);
        assert_non_null(c);
        const char *source = cJSON_GetStringValue(cJSON_GetObjectItem(c, "template"));
        const char *expected = cJSON_GetStringValue(cJSON_GetObjectItem(c, "expected"));
        const enum pp_code code = render(source, vars, &out, &err);
        if (expected ? code != PP_OK || strcmp(pp_buf_cstr(&out), expected) != 0 : code != PP_ERR_FORMAT)
            fail_msg("%s\nis %s\nnot %s", source, code ? err.text : pp_buf_cstr(&out),
                     expected ? expected : "an error");
        cJSON_Delete(c);
    }
    assert_true(n > 75);
    pp_buf_free(&out);
    pp_free(data);
}

/* The filter `random` picks the same item at each rendering, and not always the first. */
static void random_is_repeated(void **state)
{
    static const char source[] = "{% for i in range(64) %}{{ [0,1,2,3]|random }}{% endfor %}";
    struct pp_buf one = {0}, other = {0};
    struct pp_error err;
    (void)state;
    assert_ok(render(source, "{}", &one, &err), err);
    assert_ok(render(source, "{}", &other, &err), err);
    assert_string_equal(pp_buf_cstr(&one), pp_buf_cstr(&other));
    for (const char *digit = "0123"; *digit; digit++)
        assert_non_null(strchr(one.data, *digit));
    pp_buf_free(&one);
    pp_buf_free(&other);
}

static void other_templates_are_refused(void **state)
{
    static const char *const sources[] = {"{% extends 'x' %}", "\n{% include x %}", "{% import 'x' as y %}"};
    struct pp_buf out = {0};
    struct pp_error err;
    (void)state;
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        assert_int_equal(render(sources[i], "{}", &out, &err), PP_ERR_FORMAT);
        assert_non_null(strstr(err.text, "which chat templates cannot do"));
    }
    pp_buf_free(&out);
}

/* A file that is not text, or is UTF-16. */
static void no_text(void **state)
{
    static const char source[] = "a\0{{ 1 }}";
    struct pp_template *t;
    struct pp_error err;
    (void)state;
    assert_int_equal(pp_template_parse(source, sizeof source - 1, "test", &t, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "contains NUL bytes"));
}

/* Templates with large numbers, long words and deep nesting finish quickly. */
static void hostile(void **state)
{
    static const char *const sources[] = {
        "{{ 10 ** 1000000000 }}", "{{ (10 ** 4200) * (10 ** 4200) }}",
        "{% set n = namespace(x=7 ** 2000) %}{% for i in range(99999) %}{% set n.x = n.x * n.x % 7 ** 2001 %}"
        "{% endfor %}",
        "{% set n = 3 ** 8000 %}{% for i in range(99999) %}{% if n // 7 ** 2000 %}{% endif %}{% endfor %}",
        "{% for i in range(9999) %}{% if ('a@' ~ 'b.' * 99999)|urlize %}{% endif %}{% endfor %}",
        "{% for i in range(9999) %}{% if ('(<' * 99999)|urlize %}{% endif %}{% endfor %}",
        "{% block x %}{{ self.x() }}{% endblock %}", "{% block x %}", "{% autoescape", "{% from", "{% block x scoped",
        "{{ range(0, 10, 2)[::9223372036854775807] | string }}",
        "{{ range(9223372036854775806, 9223372036854775807, 5)[0:1] }}",
        "{{ (1).to_bytes(1000000000) }}", "{{ lipsum(1000000000) }}", "{{ (1).from_bytes(('x' * 99999).encode()) }}",
        "{% set s = dict.fromkeys(range(99999)).keys() - [] %}{% for i in range(9999) %}{% if s <= s.copy() %}"
        "{% endif %}{% endfor %}",
        "{% for i in range(9999) %}{% if ('\u00e9' * 99999).encode().decode('utf-8', 'replace') %}{% endif %}"
        "{% endfor %}",
        "{% set d = dict.fromkeys(range(9999), []) %}{% for i in range(999) %}{% if d.items() <= d.items() %}"
        "{% endif %}{% endfor %}",
        "{% include", "{% block %}{% endblock %}", "{% autoescape true %}{{ x",
    };
    struct pp_buf out = {0}, deep = {0};
    struct pp_error err;
    (void)state;
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        const enum pp_code code = render(sources[i], "{}", &out, &err);
        if (code != PP_ERR_FORMAT)
            fail_msg("%s: %d", sources[i], (int)code);
    }
    for (int i = 0; i < 5000; i++)
        pp_buf_fmt(&deep, "{%% block b%d %%}", i);
    assert_int_equal(render(pp_buf_cstr(&deep), "{}", &out, &err), PP_ERR_FORMAT);
    pp_buf_clear(&deep);
    for (int i = 0; i < 5000; i++)
        pp_buf_str(&deep, "{% autoescape true %}");
    assert_int_equal(render(pp_buf_cstr(&deep), "{}", &out, &err), PP_ERR_FORMAT);
    pp_buf_clear(&deep);
    for (int i = 0; i < 30000; i++)
        pp_buf_fmt(&deep, "{%%block b%d%%}{%%endblock%%}", i);
    const size_t blocks = deep.len;
    pp_buf_str(&deep, "{% for i in range(99999) %}{{ self.b0() }}{% endfor %}");
    uint64_t begin = pp_now_ns();
    assert_int_equal(render(pp_buf_cstr(&deep), "{}", &out, &err), PP_ERR_FORMAT); /* each name is searched for */
    assert_non_null(strstr(err.text, "runs too long"));
    deep.len = blocks;
    pp_buf_str(&deep, "{{ self.b0() }}{% block b7 %}{% endblock %}");
    assert_int_equal(render(pp_buf_cstr(&deep), "{}", &out, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "two blocks 'b7'"));
    assert_true(pp_now_ns() - begin < 20000000000u);
    pp_buf_free(&deep);
    pp_buf_free(&out);
}

/* A template truncated at any place is an error or a shorter template; nothing is read past its end. */
static void truncated(void **state)
{
    static const char source[] =
        "a{% autoescape x %}{% block b scoped %}{{ 99999999999999999999 ** 2 }}{% endblock b %}{{ self.b()|urlize(3) }}"
        "{% include ['x'] ignore missing with context %}{% from 'x' import a as b, c %}{% endautoescape %}";
    struct pp_buf out = {0};
    struct pp_error err;
    (void)state;
    for (size_t n = 0; n <= strlen(source); n++) {
        char *copy = malloc(n + 1); /* of exactly this size */
        memcpy(copy, source, n);
        copy[n] = 0;
        struct pp_template *t;
        if (pp_template_parse(copy, n, "test", &t, &err) == PP_OK) {
            pp_template_render_vars(t, "{}", 0, &out, &err);
            pp_template_free(t);
        }
        free(copy);
    }
    pp_buf_free(&out);
}

TEST_GROUP(jinja)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_python_does),
        cmocka_unit_test(random_is_repeated),
        cmocka_unit_test(other_templates_are_refused),
        cmocka_unit_test(no_text),
        cmocka_unit_test(hostile),
        cmocka_unit_test(truncated),
    };
    return cmocka_run_group_tests_name("jinja", tests, NULL, NULL);
}
