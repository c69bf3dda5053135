/* test_template.c - the template language: small cases of our own, hostile templates, the builtin templates, and the
 * reference renderings of real templates. */
#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/text.h"
#include "tests/support.h"

enum { NOW = 1773500966 }; /* 2026-03-14 15:09:26 UTC */

/* Parses and renders with variables; returns the code. out and err are filled. */
static enum pp_code render_vars(const char *source, size_t n, const char *vars, struct pp_buf *out,
                                struct pp_error *err)
{
    struct pp_template *t;
    pp_buf_clear(out);
    enum pp_code code = pp_template_parse(source, n, "test", &t, err);
    if (code == PP_OK)
        code = pp_template_render_vars(t, vars, NOW, out, err);
    pp_template_free(t);
    return code;
}

/* The position where two texts first differ, with some context. */
static void show_difference(const char *label, const char *expected, const char *got)
{
    size_t at = 0;
    while (expected[at] && expected[at] == got[at])
        at++;
    size_t from = at > 40 ? at - 40 : 0;
    printf("%s: differs at byte %zu\n", label, at);
    printf("  expected ...%.100s\n  got      ...%.100s\n", expected + from, got + from);
}

/* --- small cases ---------------------------------------------------------------------------------------- */

struct small_case {
    const char *source, *vars, *expected; /* vars NULL: none */
};

static const struct small_case small_cases[] = {
    /* numbers */
    {"{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }}", NULL, "3 -4 2 3.5 1024 0.5"},
    {"{{ 1e16 }} {{ 0.1 + 0.2 }} {{ 1e-5 }} {{ 100.0 }} {{ 1.5e300 }} {{ 0.0001 }}", NULL,
     "1e+16 0.30000000000000004 1e-05 100.0 1.5e+300 0.0001"},
    {"{{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 1_000 }}", NULL, "31 5 15 1000"},
    {"{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ true + true }}", NULL, "True False True 2"},
    {"{{ 5.5 | round }} {{ 2.675 | round(2) }} {{ 2.1 | round(0, 'ceil') }} {{ '12.7' | int }}", NULL,
     "6.0 2.67 3.0 12"},
    {"{{ x }} {{ y }} {{ z | tojson }}", "{\"x\": 9007199254740993, \"y\": 1.0, \"z\": [1, 1.0, 1e3]}",
     "9007199254740993 1.0 [1, 1.0, 1000.0]"},
    /* strings */
    {"{{ 'Ünï🦙'[3] }} {{ 'Ünï🦙' | length }} {{ 'abcdef'[::-2] }} {{ 'ünï' | upper }}", NULL,
     "🦙 4 fdb ÜNÏ"},
    {"{{ 'a' 'b' }}{{ \"it's\" }}{{ 'tab\\tx\\u00e9\\x41' }}", NULL, "abit'stab\txéA"},
    {"{{ ' a b  c '.split() }} {{ 'a--b-c'.split('-', 1) }} {{ 'a b c'.rsplit(None, 1) }}", NULL,
     "['a', 'b', 'c'] ['a', '-b-c'] ['a b', 'c']"},
    {"{{ 'x'.join(['a', 'b']) }} {{ 'abc'.find('c') }} {{ 'hello'.partition('l') }}", NULL, "axb 2 ('he', 'l', 'lo')"},
    {"{{ '%s=%05.1f|%-4d|%x' % ('a', 3.14159, 42, 255) }} {{ '%(k)s' % {'k': 'v'} }}", NULL, "a=003.1|42  |ff v"},
    {"{{ '{0} {1} {n:>4} {0:,} {{}}'.format(1234567, 'b', n=7) }}", NULL, "1234567 b    7 1,234,567 {}"},
    {"{{ ['it\\'s', \"q\\\"\", 'n\\n', none, 1.0] }}", NULL, "[\"it's\", 'q\"', 'n\\n', None, 1.0]"},
    {"{{ 'abc'.startswith(('x', 'a')) }} {{ 'x' in 'xyz' }} {{ 'q' not in 'xyz' }}", NULL, "True True True"},
    {"{{ 'one two'|title }} {{ \"they're\".title() }} {{ 'a,b'|replace(',', ';') }}", NULL, "One Two They'Re a;b"},
    /* containers */
    {"{{ [1, 2, 3, 4][1:3] }} {{ [1, 2, 3][::-1] }} {{ (1,) }} {{ () }} {{ {'a': [1]} }}", NULL,
     "[2, 3] [3, 2, 1] (1,) () {'a': [1]}"},
    {"{{ {'b': 1, 'a': 2}.keys() | list }} {{ {'x': 1}.get('y', 5) }} {{ {'items': 3}.items is callable }}", NULL,
     "['b', 'a'] 5 True"},
    {"{% set l = [1] %}{% set m = l %}{{ m.append(2) }}{{ l }}", NULL, "None[1, 2]"},
    {"{{ [3, 1, 2] | sort | join('-') }} {{ ['b', 'A'] | sort }} {{ [1, 1, 2] | unique | list }}", NULL,
     "1-2-3 ['A', 'b'] [1, 2]"},
    {"{{ [none, none] | sort }} {{ [{'a': 1}, {'a': 2}] | sort(attribute='b') | map(attribute='a') | list }}", NULL,
     "[None, None] [1, 2]"},
    {"{{ ([1, 2, 3] | select('odd') | reverse)[-1] }} {{ [1, 2] | reverse | reverse }}", NULL, "1 [1, 2]"},
    {"{{ nothing is callable }} {{ none is callable }}", NULL, "True False"},
    {"{% for g, l in rows | groupby('k') %}{{ g }}:{{ l | map(attribute='v') | list }} {% endfor %}",
     "{\"rows\": [{\"k\": 2, \"v\": 1}, {\"k\": 1, \"v\": 2}, {\"k\": 2, \"v\": 3}]}", "1:[2] 2:[1, 3] "},
    {"{{ range(2, 10, 3) | list }} {{ range(3) }} {{ range(5)[1:3] | list }}", NULL, "[2, 5, 8] range(0, 3) [1, 2]"},
    {"{% set g = [1, 2] | select %}{{ g | list }}{{ g | list }}{{ 'y' if g }}", NULL, "[1, 2][]y"},
    /* statements */
    {"{% for i in range(6) if i % 2 %}{{ loop.index }}/{{ loop.length }}:{{ i }} {% endfor %}", NULL,
     "1/3:1 2/3:3 3/3:5 "},
    {"{% for i in [1, 2] %}{% continue %}{% else %}a{% endfor %}{% for i in [1] %}{% break %}{% else %}b{% endfor %}"
     "{% for i in [1, 2] %}{% if i > 1 %}{% break %}{% endif %}{% else %}c{% endfor %}", NULL, "ab"},
    {"{{ -2 % 2.0 }} {{ 4.0 % -2 }} {{ -3 % 2.0 }}", NULL, "0.0 -0.0 1.0"},
    {"{% for i in range(9) %}{% if i == 2 %}{% continue %}{% elif i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
     NULL, "013"},
    {"{% for n in t recursive %}{{ n.v }}{% if n.c %}({{ loop(n.c) }}){% endif %}{{ loop.depth }}{% endfor %}",
     "{\"t\": [{\"v\": 1, \"c\": [{\"v\": 2}]}, {\"v\": 3}]}", "1(22)131"},
    {"{% for x in 'aab' %}{{ loop.changed(x) }}{{ loop.cycle(1, 2) }}{{ loop.previtem }}{{ loop.nextitem }};"
     "{% endfor %}", NULL, "True1a;False2ab;True1a;"},
    {"{% set x %}a{{ 1 }}b{% endset %}{{ x }}{% set y | upper %}q{% endset %}{{ y }}", NULL, "a1bQ"},
    {"{% macro m(a, b=a) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, z=4) }}{{ m(5) }}", NULL,
     "12(3,){'z': 4}55(){}"},
    {"{% macro box() %}[{{ caller(2) }}]{% endmacro %}{% call(n) box() %}n={{ n }}{% endcall %}", NULL, "[n=2]"},
    {"{% filter upper | trim %} x {% endfilter %}{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}",
     NULL, "X3False"},
    {"{% set s = namespace(n=0) %}{% for i in [1, 2] %}{% set s.n = s.n + i %}{% set q = i %}{% endfor %}"
     "{{ s.n }}{{ q }}", NULL, "3"},
    {"{% raw %}{{ x }}{% endraw %}{# no #}{% generation %}g{% endgeneration %}", NULL, "{{ x }}g"},
    {"{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", NULL, "3210"},
    /* white space */
    {"a\n  {% if 1 %}\n  b\n  {% endif %}\nc\n", NULL, "a\n  b\nc"},
    {"a {%+ if 1 %} b {%- endif +%}\nc", NULL, "a  b\nc"},
    {"  {{ 1 }}\n  {# c #}\nx\r\ny\n\n", NULL, "  1\nx\ny\n"},
    {"\xEF\xBB\xBF{{ 1 }}\xEF\xBB\xBF", NULL, "1\xEF\xBB\xBF"}, /* a byte-order mark is no text */
    {"{%- raw -%}  a  {%- endraw %}\nb", NULL, "ab"},
    /* tests, undefined, conditions */
    {"{{ x is defined }} {{ x | default('d') }} {{ x }} {{ 'a' if x }} {{ 3 is divisibleby 3 }}", NULL,
     "False d   True"},
    {"{{ [] is sequence }} {{ {} is mapping }} {{ 'a' is iterable }} {{ none is none }} {{ true is integer }}", NULL,
     "True True True True False"},
    {"{{ not 1 == 2 and 3 or 4 }} {{ 1 if 0 else 2 if 0 else 3 }} {{ -2 | abs }} {{ 1 ~ 2 * 3 }}", NULL, "3 3 2 16"},
    /* letters whose other case is several letters, or depends on the letters around them */
    {"{{ x | upper }} {{ x.title() }} {{ x | title }} {{ x.casefold() }}", "{\"x\": \"ßa ﬁ ǆ ŉ ᾳ\"}",
     "SSA FI Ǆ ʼN ΑΙ Ssa Fi ǅ ʼN ᾼ SSa FI Ǆ ʼN ΑΙ ssa fi ǆ ʼn αι"},
    {"{{ x | lower }} {{ x.title() }} {{ x | capitalize }}", "{\"x\": \"İΣ ΟΔΟΣ. ΣΑΣ'Σ\"}",
     "i̇ς οδος. σασ'ς İς Οδος. Σασ'Σ İς οδος. σασ'ς"},
    {"{% for s in x %}{{ [s.isalpha(), s.isdecimal(), s.isdigit(), s.isnumeric(), s.isalnum()] | map('int') | join }} "
     "{% endfor %}{{ '½ a² Ⅷ_ – ٣' | wordcount }}",
     "{\"x\": [\"٣\", \"²\", \"½\", \"Ⅷ\", \"é\", \"\u0301\", \"é1\"]}",
     "01111 00111 00011 00011 10001 00000 00001 4"},
    /* methods and filters that few templates have */
    {"{{ 'abcabc'.startswith('c', 2) }} {{ 'abc'.endswith(('b', 'x'), 0, -1) }} {{ 'abc'.startswith('', 4)"
     " }} {{ 'aXa'.count('a', 1) }} {{ 'abc'.count('', 1, 2) }}",
     NULL,
     "True True False 1 2"},
    {"{{ 'abcab'.rindex('ab') }} {{ 'abc'.find('', 3) }} {{ 'abc'.find('', 4) }} {{ 'aaa'.rfind('') }}",
     NULL,
     "3 3 -1 3"},
    {"{{ x.swapcase() }} {{ 'a\\tbc\\n\\td'.expandtabs(4) }}",
     "{\"x\": \"Straße ǅ ı Ⅷ\"}",
     "sTRASSE ǅ I ⅷ a   bc\n    d"},
    {"{% for s in x %}{{ [s.istitle(), s.isascii(), s.isidentifier(), s.isprintable()] | map('int') | join"
     " }} {% endfor %}",
     "{\"x\": [\"\", \"Ab Cd\", \"aB\", \"A1b\", \"a_1\", \"1a\", \"é\", \"a b\", \"a\\n\", \"ǅa\", \"²"
     "\"]}",
     "0101 1101 0111 0111 0111 0101 0011 0101 0100 1011 0001 "},
    {"{{ 'The quick-brown fox -- it jumped over averyveryverylongword' | wordwrap(10) }}",
     NULL,
     "The quick-\nbrown fox\n-- it\njumped\nover avery\nveryverylo\nngword"},
    {"{{ 'aaaa bbbb-cc' | wordwrap(3, false, '|') }} {{ 'aaaa bb-cc' | wordwrap(6, true, '|', false) }}",
     NULL,
     "aaaa|bbbb-|cc aaaa|bb-cc"},
    {"{{ '<b>a &lt; b</b>  <!-- > -->c &#65;&#x42; &amp;gt;' | striptags }}{{ {'a': '<\\'>', 'b': none, 'c"
     "': 1} | xmlattr }}",
     NULL,
     "a < b c AB &gt; a=\"&lt;&#39;&gt;\" c=\"1\""},
    {"{{ [0, 1, 999, 1500, 13e6, '1e30'] | map('filesizeformat') | join(',') }} {{ 1536 | filesizeformat(t"
     "rue) }}",
     NULL,
     "0 Bytes,1 Byte,999 Bytes,1.5 kB,13.0 MB,1000000.0 YB 1.5 KiB"},
    {"{{ {'b': [1], 'a': {'d': 1, 'c': 'x'}} | pprint }} {{ [1, 2] | truncate }} {{ {'a b': 'c/d', 'e': 1}"
     " | urlencode }} {{ [('x', 'ä')] | urlencode }}",
     NULL,
     "{'a': {'c': 'x', 'd': 1}, 'b': [1]} [1, 2] a+b=c%2Fd&e=1 x=%C3%A4"},
    {"{% for s in x %}{{ [s.isidentifier(), s.isprintable()] | map('int') | join }}{{ s | list }} {% endfor %}",
     "{\"x\": [\"\u037a\", \"\u0e33\", \"a\u0e33\", \"\u0600\", \"\u061c\"]}",
     "01['\u037a'] 01['\u0e33'] 11['a', '\u0e33'] 00['\\u0600'] 00['\\u061c'] "},
    /* integers beyond 64 bits; what needs no end where nothing follows */
    {"{{ x }} {{ x | tojson }} {{ x is integer }} {{ x is number }} {{ x > 3 }} {{ x == x }} {{ [3, x, -1]"
     " | sort }} {{ x | int }} {{ x | float }}",
     "{\"x\": 12345678901234567890}",
     "12345678901234567890 12345678901234567890 True True True True [-1, 3, 12345678901234567890] 12345678"
     "901234567890 1.2345678901234567e+19"},
    {"a{#", NULL, "a"},
    {"a{% raw %}", NULL, "a"},
    /* JSON, dates */
    {"{{ x | tojson }} {{ x | tojson(indent=2) }}", "{\"x\": {\"é\": \"<a>\\n\\u0001\\\"\", \"l\": [], \"n\": null}}",
     "{\"é\": \"<a>\\n\\u0001\\\"\", \"l\": [], \"n\": null} "
     "{\n  \"é\": \"<a>\\n\\u0001\\\"\",\n  \"l\": [],\n  \"n\": null\n}"},
    {"{{ strftime_now('%d %B %Y %H:%M') }}", NULL, "14 March 2026 15:09"},
    {"{{ strftime_now('%S.%f%%Z %z%Z|%') }}", NULL, "26.000000%Z |%"},
};

static void small_cases_render_as_in_python(void **state)
{
    (void)state;
    struct pp_buf out = {0};
    struct pp_error err;
    int failed = 0;
    for (size_t i = 0; i < sizeof small_cases / sizeof *small_cases; i++) {
        const struct small_case *c = &small_cases[i];
        if (render_vars(c->source, strlen(c->source), c->vars ? c->vars : "{}", &out, &err) != PP_OK) {
            printf("%s: %s\n", c->source, err.text);
            failed++;
        } else if (strcmp(pp_buf_cstr(&out), c->expected) != 0) {
            show_difference(c->source, c->expected, pp_buf_cstr(&out));
            failed++;
        }
    }
    pp_buf_free(&out);
    assert_int_equal(failed, 0);
}

/* --- errors --------------------------------------------------------------------------------------------- */

static void errors_give_line_and_reason(void **state)
{
    (void)state;
    static const struct {
        const char *source, *message;
    } cases[] = {
        {"a\nb\n{{ raise_exception('no ' ~ 'system') }}", "test, line 3: no system"},
        {"{{ x.y }}", "test, line 1: 'x' is undefined"},
        {"\n{{ {}.a.b }}", "test, line 2: there is no attribute or key 'a'"},
        {"{{ 1 / 0 }}", "test, line 1: division by zero"},
        {"{% for x in 3 %}{% endfor %}", "test, line 1: a value of type int cannot be iterated"},
        {"\n\n{% if 1 %}", "test, line 3: {% endif %} is missing"},
        {"{% frob %}", "test, line 1: a statement such as if, for, set or macro was expected, not 'frob'"},
        {"{{ 1 | frob }}", "test, line 1: there is no filter 'frob'"},
        {"{{ 'a' + 1 }}", "test, line 1: + does not work for a str and a int"},
        {"{% break %}", "test, line 1: break or continue outside of a loop"},
        {"{{ 2 ** 2000 / 3 }}", "test, line 1: the quotient is too large for a float"},
        {"{{ 10 ** 5000 }}", "test, line 1: an integer of more than 4300 digits"},
        {"{% raw +%}x{% endraw %}",
         "test, line 1: a statement such as if, for, set or macro was expected, not 'raw'"},
        {"{{ ['1k'] | map('filesizeformat') | list }}", "test, line 1: filesizeformat needs a number"},
        {"{{ [1, none] | sort }}", "test, line 1: a NoneType and a int have no order"},
        {"{{ 'x' | wordwrap(0) }}", "test, line 1: wordwrap: the width is 1 or more"},
    };
    struct pp_buf out = {0};
    struct pp_error err;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(render_vars(cases[i].source, strlen(cases[i].source), "{}", &out, &err), PP_ERR_FORMAT);
        assert_string_equal(err.text, cases[i].message);
    }
    assert_int_equal(render_vars("x", 1, "{\"a\": [1, }", &out, &err), PP_ERR_FORMAT);
    assert_int_equal(render_vars("x", 1, "[]", &out, &err), PP_ERR_FORMAT);
    assert_int_equal(render_vars("{{ x }}", 7, "{\"x\": \"a\\u0000b\"}", &out, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "U+0000"));
    /* number formats that C's functions read, but JSON does not have */
    static const char *const numbers[] = {"01", "-01", "1.", "1.e5", ".5", "-.5", "+1", "1e", "1e+", "-", "--1", "0x5",
                                          "1_0", "0x0x5"};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        char vars[40];
        snprintf(vars, sizeof vars, "{\"x\": [%s]}", numbers[i]);
        if (render_vars("x", 1, vars, &out, &err) != PP_ERR_FORMAT || !strstr(err.text, "not valid JSON"))
            fail_msg("%s is read as a number", numbers[i]);
    }
    static const char read[] = "{{ x }}";
    assert_ok(render_vars(read, sizeof read - 1, "{\"x\": [0, -0, 0.5, -1.25e-2, 1E+2, 10]}", &out, &err), err);
    assert_string_equal(pp_buf_cstr(&out), "[0, 0, 0.5, -0.0125, 100.0, 10]");
    static const char sums[] = "{{ big - 1 }}"; /* exact, as a double's result would not be */
    assert_ok(render_vars(sums, sizeof sums - 1, "{\"big\": 12345678901234567890}", &out, &err), err);
    assert_string_equal(pp_buf_cstr(&out), "12345678901234567889");
    pp_buf_free(&out);
}

/* Templates that would never end or take all memory, and truncated ones. All must fail, and soon. */
static void hostile_templates_fail_quickly(void **state)
{
    (void)state;
    static const char *const hostile[] = {
        "{% for i in range(10**12) %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
        "{% set x = 'x' * 9999999 %}{% for a in range(99999) %}{% if x.startswith(x) %}{% endif %}{% endfor %}",
        "{% set x = ' ' * 9999999 %}{% for a in range(99999) %}{% if x | int or x is upper %}{% endif %}{% endfor %}",
        "{% set x = ' ' * 9999999 %}{% for a in range(99999) %}{% if x in {x: 1} %}{% endif %}{% endfor %}",
        "{% set l = [0] * 999999 %}{% for a in range(99999) %}{% if l | sum %}{% endif %}{% endfor %}",
        "{% set l = [''] * 999999 %}{% for a in range(99999) %}{% if l | join ~ l | select %}{% endif %}{% endfor %}",
        "{{ 'x' * 10**12 }}",
        "{{ [0] * 10**9 }}",
        "{{ 10 ** 10000 }}",
        "{{ 'a' | center(10**15) }}",
        "{{ 'a\\nb' | indent(10**15) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ [1] | batch(10**12, 0) | list }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro m() %}{{ caller() }}{% endmacro %}{% macro n() %}{% call m() %}{{ n() }}{% endcall %}{% endmacro %}"
        "{{ n() }}",
        "{% set l = [] %}{{ l.append(l) }}{{ l }}",
        "{% set l = [] %}{{ l.append(l) }}{{ l | tojson }}",
        "{% set l = [1] %}{% for x in l %}{{ l.append(x) }}{% endfor %}",
        "{% set n = namespace(s='ab') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "{% set n = namespace(s='ab') %}{% for i in range(99) %}{% set n.s = n.s | replace('', n.s) %}{% endfor %}",
        "{% set n = namespace(l=[1]) %}{% for i in range(99) %}{% set n.l = n.l + n.l %}{% endfor %}",
        "{% set x = 'x' * 1000000 %}{% for i in range(100) %}{{ x }}{% endfor %}",
        "{% for x in l recursive %}{{ loop(l) }}{% endfor %}",
        "{{ 'x' | map('map', 'map') }}{{ [[[1]]] | map('map', 'map', 'map', 'map', 'x') | list }}",
        "{{", "{%", "{# x", "{{ '", "{% raw %}x", "{{ (", "{% if 1 %}", "{% for x in", "{% macro", "{{ 'a\\",
        "{% if", "{{ 1 }", "{% set x %}", "{{ [1, 2 }}", "{{ ) }}", "{{ 1 ! 2 }}", "{{ \"\\ud800\" }}",
        "{{ 9 ** 4000 / 7 }}",
    };
    struct pp_buf out = {0};
    struct pp_error err;
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        enum pp_code code = render_vars(hostile[i], strlen(hostile[i]), "{\"l\": [1]}", &out, &err);
        if (code != PP_ERR_FORMAT)
            fail_msg("%s: code %d instead of an error, output of %zu bytes", hostile[i], (int)code, out.len);
    }
    pp_buf_free(&out);
}

static void deep_nesting_is_refused(void **state)
{
    (void)state;
    static const char *const openers[] = {"[", "(", "{", "-", "not ", "a.b(", "a[", "x if ", "1 + (", "[1, "};
    struct pp_buf out = {0}, source = {0};
    struct pp_error err;
    for (size_t i = 0; i < sizeof openers / sizeof *openers; i++) {
        pp_buf_clear(&source);
        pp_buf_str(&source, "{{ ");
        for (int k = 0; k < 1000000 / (int)strlen(openers[i]); k++)
            pp_buf_str(&source, openers[i]);
        assert_false(source.bad);
        assert_int_equal(render_vars(source.data, source.len, "{}", &out, &err), PP_ERR_FORMAT);
    }
    static const char *const long_chains[][3] = {
        {"{{ 1", " + 1", " }}"},        {"{{ x", ".a", " }}"},
        {"{{ 'a'", "|upper", " }}"},    {"{% if 0 %}", "{% elif 0 %}", "{% endif %}"},
        {"", "{% if 1 %}", ""},         {"{{ 1", " ** 1", " }}"},
    };
    for (size_t i = 0; i < sizeof long_chains / sizeof *long_chains; i++) {
        pp_buf_clear(&source);
        pp_buf_str(&source, long_chains[i][0]);
        for (int k = 0; k < 100000; k++)
            pp_buf_str(&source, long_chains[i][1]);
        pp_buf_str(&source, long_chains[i][2]);
        assert_int_equal(render_vars(source.data, source.len, "{}", &out, &err), PP_ERR_FORMAT);
    }
    pp_buf_clear(&source);
    pp_buf_str(&source, "{\"a\": ");
    for (int k = 0; k < 1000000; k++)
        pp_buf_char(&source, '[');
    assert_int_equal(render_vars("x", 1, source.data, &out, &err), PP_ERR_FORMAT);
    pp_buf_free(&source);
    pp_buf_free(&out);
}

static void failed_allocations_are_errors(void **state)
{
    (void)state;
    static const char source[] = "{% for m in messages %}{{ m.role | upper ~ m | tojson }}{% endfor %}";
    static const char vars[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}";
    struct pp_buf out = {0};
    struct pp_error err;
    uint64_t before = pp_mem_count();
    assert_int_equal(render_vars(source, sizeof source - 1, vars, &out, &err), PP_OK);
    uint64_t n = pp_mem_count() - before;
    pp_buf_free(&out);
    for (uint64_t i = 1; i <= n; i++) {
        struct pp_buf again = {0};
        pp_mem_fail_at(i, 0);
        enum pp_code code = render_vars(source, sizeof source - 1, vars, &again, &err);
        pp_mem_fail_at(0, 0);
        pp_buf_free(&again);
        assert_int_equal(code, PP_ERR_NOMEM);
    }
}

/* --- builtin templates ---------------------------------------------------------------------------------- */

static void builtin_templates_render(void **state)
{
    (void)state;
    static const char *const expected[][2] = {
        {"chatml", "<|im_start|>system\nBe terse.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
                   "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"},
        {"llama3", "<s><|start_header_id|>system<|end_header_id|>\n\nBe terse.<|eot_id|>"
                   "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
                   "<|start_header_id|>assistant<|end_header_id|>\n\nHello!<|eot_id|>"
                   "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
                   "<|start_header_id|>assistant<|end_header_id|>\n\n"},
        {"llama2", "<s>[INST] <<SYS>>\nBe terse.\n<</SYS>>\n\nHi [/INST] Hello! </s><s>[INST] Bye [/INST]"},
        {"mistral", "<s>[INST] Be terse.\n\nHi [/INST] Hello!</s>[INST] Bye [/INST]"},
        {"gemma", "<s><start_of_turn>user\nBe terse.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello!<end_of_turn>\n"
                  "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n"},
        {"phi3", "<|system|>\nBe terse.<|end|>\n<|user|>\nHi<|end|>\n"
                 "<|assistant|>\nHello!<|end|>\n<|user|>\nBye<|end|>\n<|assistant|>\n"},
        {"zephyr", "<s><|system|>\nBe terse.</s>\n<|user|>\nHi</s>\n<|assistant|>\nHello!</s>\n"
                   "<|user|>\nBye</s>\n<|assistant|>\n"},
        {"alpaca", "<s>Be terse.\n\n### Instruction:\nHi\n\n### Response:\nHello!</s>\n\n"
                   "### Instruction:\nBye\n\n### Response:\n"},
        {"vicuna", "<s>Be terse. USER: Hi ASSISTANT: Hello!</s>USER: Bye ASSISTANT:"},
        {"command-r", "<s><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>Be terse.<|END_OF_TURN_TOKEN|>"
                      "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Hi<|END_OF_TURN_TOKEN|>"
                      "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>Hello!<|END_OF_TURN_TOKEN|>"
                      "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Bye<|END_OF_TURN_TOKEN|>"
                      "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"},
        {"deepseek", "<s>Be terse.<\uff5cUser\uff5c>Hi<\uff5cAssistant\uff5c>Hello!</s><\uff5cUser\uff5c>Bye"
                     "<\uff5cAssistant\uff5c>"},
        {"deepseek-v3.1", "<s>Be terse.<\uff5cUser\uff5c>Hi<\uff5cAssistant\uff5c></think>Hello!</s>"
                          "<\uff5cUser\uff5c>Bye<\uff5cAssistant\uff5c></think>"},
        {"deepseek-v4", "<s>Be terse.<\uff5cUser\uff5c>Hi<\uff5cAssistant\uff5c></think>Hello!</s>"
                        "<\uff5cUser\uff5c>Bye<\uff5cAssistant\uff5c></think>"},
        {"gpt-oss", "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
                    "Knowledge cutoff: 2024-06\nCurrent date: 2026-03-14\n\nReasoning: medium\n\n"
                    "# Valid channels: analysis, commentary, final. Channel must be included for every message.<|end|>"
                    "<|start|>developer<|message|># Instructions\n\nBe terse.\n\n<|end|>"
                    "<|start|>user<|message|>Hi<|end|><|start|>assistant<|channel|>final<|message|>Hello!<|end|>"
                    "<|start|>user<|message|>Bye<|end|><|start|>assistant"},
        {"plain", "<s>System: Be terse.\n\nUser: Hi\n\nAssistant: Hello!\n\nUser: Bye\n\nAssistant:"},
    };
    const struct pp_template_input in = {
        .messages_json = "[{\"role\": \"system\", \"content\": \"Be terse.\"},"
                         "{\"role\": \"user\", \"content\": \"Hi\"},"
                         "{\"role\": \"assistant\", \"content\": \"Hello!\"},"
                         "{\"role\": \"user\", \"content\": \"Bye\"}]",
        .bos_text = "<s>",
        .eos_text = "</s>",
        .now = NOW,
        .add_generation_prompt = true,
    };
    size_t n = 0;
    for (const char *name; (name = pp_template_builtin_name(n)); n++) {
        struct pp_buf out = {0};
        struct pp_error err;
        struct pp_template *t;
        const char *source = pp_template_builtin(name);
        assert_ok(pp_template_parse(source, strlen(source), name, &t, &err), err);
        assert_ok(pp_template_render(t, &in, &out, &err), err);
        assert_string_equal(name, expected[n][0]);
        assert_string_equal(pp_buf_cstr(&out), expected[n][1]);
        pp_template_free(t);
        pp_buf_free(&out);
    }
    assert_int_equal(n, sizeof expected / sizeof *expected);
    assert_null(pp_template_builtin("no such"));
}

/* Two builtin templates have a default system message. */
static void usual_system_messages(void **state)
{
    static const char *const expected[][2] = {
        {"vicuna", "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
                   "helpful, detailed, and polite answers to the user's questions. USER: Hi ASSISTANT:"},
        {"alpaca", "Below is an instruction that describes a task. Write a response that appropriately completes the "
                   "request.\n\n### Instruction:\nHi\n\n### Response:\n"},
    };
    const struct pp_template_input in = {.messages_json = "[{\"role\": \"user\", \"content\": \"Hi\"}]",
                                         .bos_text = "", .eos_text = "</s>", .add_generation_prompt = true};
    (void)state;
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        struct pp_buf out = {0};
        struct pp_error err;
        struct pp_template *t;
        const char *source = pp_template_builtin(expected[i][0]);
        assert_ok(pp_template_parse(source, strlen(source), expected[i][0], &t, &err), err);
        assert_ok(pp_template_render(t, &in, &out, &err), err);
        assert_string_equal(pp_buf_cstr(&out), expected[i][1]);
        pp_template_free(t);
        pp_buf_free(&out);
    }
}

/* One builtin template has a switch for thinking, under either name that templates use for it. */
static void switched_thinking(void **state)
{
    static const char *const cases[][2] = {
        {"{\"enable_thinking\": true}", "<think>"},  {"{\"thinking\": true}", "<think>"},
        {"{\"enable_thinking\": false}", "</think>"}, {"{\"thinking\": false}", "</think>"},
        {"{\"enable_thinking\": false, \"thinking\": false}", "</think>"},
    };
    const char *source = pp_template_builtin("deepseek-v3.1");
    struct pp_error err;
    struct pp_template *t;
    (void)state;
    assert_ok(pp_template_parse(source, strlen(source), "deepseek-v3.1", &t, &err), err);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct pp_template_input in = {.messages_json = "[{\"role\": \"user\", \"content\": \"Hi\"}]",
                                             .bos_text = "", .eos_text = "</s>", .extra_json = cases[i][0],
                                             .add_generation_prompt = true};
        struct pp_buf out = {0};
        char expected[64];
        snprintf(expected, sizeof expected, "<\uff5cUser\uff5c>Hi<\uff5cAssistant\uff5c>%s", cases[i][1]);
        assert_ok(pp_template_render(t, &in, &out, &err), err);
        assert_string_equal(pp_buf_cstr(&out), expected);
        pp_buf_free(&out);
    }
    pp_template_free(t);
}

/* DeepSeek V4's tool calls, and which thoughts stay in the prompt: the text that encoding_dsv4.py, published with the
 * model, makes of these messages. */
static void called_tools(void **state)
{
#define SAYS(role, content, more) "{\"role\": \"" role "\", \"content\": \"" content "\"" more "}"
#define U "<\uff5cUser\uff5c>"
#define A "<\uff5cAssistant\uff5c>"
#define D "\uff5cDSML\uff5c"
    static const char calls[] =
        "[" SAYS("user", "Hi", "") "," SAYS("assistant", "Yo", ", \"reasoning_content\": \"r1\"") ","
        SAYS("user", "a", "") "," SAYS("user", "b", "") ","
        "{\"role\": \"assistant\", \"content\": null, \"reasoning_content\": \"r2\", \"tool_calls\": ["
        "{\"id\": \"c1\", \"function\": {\"name\": \"f\", \"arguments\": {\"x\": \"s\\\"\", \"y\": [1, null]}}},"
        "{\"id\": \"c2\", \"function\": {\"name\": \"g\", \"arguments\": {}}}]},"
        SAYS("tool", "two", ", \"tool_call_id\": \"c2\"") ","
        "{\"role\": \"tool\", \"tool_call_id\": \"c1\", \"content\": [{\"type\": \"text\", \"text\": \"p\"}, "
        "{\"type\": \"text\", \"text\": \"q\"}]}," SAYS("user", "on", "") "]";
    static const char rest[] =
        "\n\n<" D "tool_calls>\n<" D "invoke name=\"f\">\n"
        "<" D "parameter name=\"x\" string=\"true\">s\"</" D "parameter>\n"
        "<" D "parameter name=\"y\" string=\"false\">[1, null]</" D "parameter>\n</" D "invoke>\n"
        "<" D "invoke name=\"g\">\n\n</" D "invoke>\n</" D "tool_calls></s>"
        U "<tool_result>p\n\nq</tool_result>\n\n<tool_result>two</tool_result>\n\non" A;
    static const struct {
        const char *tools, *extra, *before, *head, *end;
    } cases[] = {
        {NULL, "{}", "", "</think>Yo</s>" U "a\n\nb" A "</think>", "</think>"},
        {NULL, "{\"thinking\": true}", "", "</think>Yo</s>" U "a\n\nb" A "</think>", "<think>"},
        {"[{\"function\": {\"name\": \"f\"}}]", "{\"thinking\": true}", "{\"name\": \"f\"}\n\nYou MUST",
         "<think>r1</think>Yo</s>" U "a\n\nb" A "<think>r2</think>", "<think>"},
        {"[{\"function\": {\"name\": \"f\"}}]", "{}", "\n\n## Tools\n\nYou have",
         "</think>Yo</s>" U "a\n\nb" A "</think>", "</think>"},
    };
    const char *source = pp_template_builtin("deepseek-v4");
    struct pp_error err;
    struct pp_template *t;
    (void)state;
    assert_ok(pp_template_parse(source, strlen(source), "deepseek-v4", &t, &err), err);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pp_template_input in = {.messages_json = calls, .tools_json = cases[i].tools, .bos_text = "<s>",
                                       .eos_text = "</s>", .extra_json = cases[i].extra, .add_generation_prompt = true};
        struct pp_buf out = {0}, expected = {0};
        pp_buf_fmt(&expected, U "Hi" A "%s%s%s", cases[i].head, rest, cases[i].end);
        assert_ok(pp_template_render(t, &in, &out, &err), err);
        const char *talk = strstr(pp_buf_cstr(&out), U);
        assert_non_null(talk);
        assert_string_equal(talk, pp_buf_cstr(&expected));
        assert_non_null(strstr(pp_buf_cstr(&out), cases[i].before));
        assert_int_equal(talk - pp_buf_cstr(&out) == strlen("<s>"), !cases[i].tools);
        in.messages_json = "[" SAYS("assistant", "", ", \"tool_calls\": [{\"function\": {\"name\": \"f\", "
                                    "\"arguments\": \"{}\"}}]") "]"; /* arguments as text would count as one argument */
        assert_int_equal(pp_template_render(t, &in, &out, &err), PP_ERR_FORMAT);
        assert_non_null(strstr(err.text, "arguments"));
        pp_buf_free(&expected);
        pp_buf_free(&out);
    }
    pp_template_free(t);
#undef SAYS
#undef U
#undef A
#undef D
}

/* A vocabulary with these added tokens (names separated by blanks), and others that are the results of merges. */
static struct pp_tokenizer *vocabulary(const char *added, const char *merged)
{
    struct pp_buf json = {0};
    struct pp_error err;
    struct pp_tokenizer *t;
    const char *path = test_path("vocabulary.json");
    int id = 1;
    pp_buf_str(&json, "{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"added_tokens\":[");
    for (size_t n; *added; added += n + (added[n] == ' '), id++) {
        n = strcspn(added, " ");
        pp_buf_fmt(&json, "%s{\"id\":%d,\"content\":\"%.*s\",\"special\":%s}", id > 1 ? "," : "", id, (int)n, added,
                   id % 2 ? "true" : "false");
    }
    pp_buf_str(&json, "],\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0");
    for (size_t n; *merged; merged += n + (merged[n] == ' '), id++) {
        n = strcspn(merged, " ");
        pp_buf_fmt(&json, ",\"%.*s\":%d", (int)n, merged, id);
    }
    pp_buf_str(&json, "},\"merges\":[]}}");
    assert_ok(pp_write_file(path, json.data, json.len, 0600, &err), err);
    assert_ok(pp_tokenizer_open(path, &t, &err), err);
    pp_buf_free(&json);
    return t;
}

/* The template that a model wants is inferred from its vocabulary, else from its name; otherwise none is assumed. */
static void evident_templates(void **state)
{
    static const struct {
        const char *added, *merged, *name, *path, *expected, *why;
    } cases[] = {
        {"<|im_start|> <|im_end|>", "", "x", "x", "chatml", "<|im_start|>"},
        {"<|im_start|> <|im_sep|> <|im_end|>", "", "x", "x", NULL, NULL}, /* a different format */
        {"<|im_start|>", "<|im_end|>", "x", "x", NULL, NULL},             /* <|im_end|> is no added token */
        {"<|start_header_id|> <|end_header_id|> <|eot_id|>", "", "vicuna", "x", "llama3", "<|start_header_id|>"},
        {"<start_of_turn> <end_of_turn>", "", "x", "x", "gemma", "<start_of_turn>"},
        {"<|START_OF_TURN_TOKEN|> <|CHATBOT_TOKEN|> <|END_OF_TURN_TOKEN|>", "", "x", "x", "command-r", "TURN"},
        {"<\uff5cUser\uff5c> <\uff5cAssistant\uff5c>", "", "x", "x", "deepseek", "Assistant"},
        {"<\uff5cUser\uff5c> <\uff5cAssistant\uff5c> <think> </think>", "", "x", "x", "deepseek-v3.1", "</think>"},
        {"<\uff5cUser\uff5c> <\uff5cAssistant\uff5c> <think> </think> \uff5cDSML\uff5c <\uff5clatest_reminder\uff5c>",
         "", "x", "x", "deepseek-v4", "DSML"},
        {"<|user|> <|assistant|> <|end|>", "", "x", "x", "phi3", "<|end|>"},
        {"<|start|> <|end|> <|message|> <|channel|>", "", "x", "x", "gpt-oss", "<|channel|>"},
        {"<|user|> <|assistant|>", "", "x", "x", NULL, NULL},
        {"[INST] [/INST]", "", "x", "x", "mistral", "[INST]"},
        {"[INST] [/INST] <|im_start|> <|im_end|>", "", "x", "x", NULL, NULL}, /* tokens of two formats */
        {"[INST] [/INST] <|im_start|> <|im_end|>", "", "Zephyr 7B", "x", "zephyr", "its name"},
        {"", "a", "LLaMA v2", "/models/vicuna/Vicuna-7B-v1.5.Q4_K_M.gguf", "vicuna", "its name"},
        {"", "", "LLaMA v2", "/models/vicuna/x.gguf", NULL, NULL}, /* the folder's name does not count */
        {"", "", "x", "chavinlo_alpaca-native.gguf", "alpaca", "its name"},
        {"", "", "Llama 2 7B chat", "x", "llama2", "its name"},
        {"", "", "Llama 2 7B", "x", NULL, NULL},
        {"", "", "x", "mixtral-8x7b-instruct-v0.1.gguf", "mistral", "its name"},
        {"", "", "TinyLlama-1.1B-Chat-v1.0", "x", "zephyr", "its name"},
        {"", "", "", "", NULL, NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pp_tokenizer *t = vocabulary(cases[i].added, cases[i].merged);
        const char *why = NULL, *name = pp_template_evident(t, cases[i].name, cases[i].path, &why);
        if ((!name) != (!cases[i].expected) || (name && strcmp(name, cases[i].expected) != 0))
            fail_msg("case %zu: %s, not %s", i, name ? name : "nothing",
                     cases[i].expected ? cases[i].expected : "nothing");
        if (name) {
            assert_non_null(pp_template_builtin(name));
            assert_non_null(strstr(why, cases[i].why));
        }
        pp_tokenizer_free(t);
    }
    const char *why;
    assert_string_equal(pp_template_evident(NULL, "vicuna", "", &why), "vicuna"); /* without a vocabulary */
}

/* Templates that read contents as lists of parts get such lists, and no others do. */
static void messages_in_parts(void **state)
{
    static const char *const cases[][2] = {
        {"{% for m in messages %}{{ m.role }}:{% for part in m['content'] %}{% if part['type'] == 'text' %}"
         "{{ part['text'] }}{% endif %}{% endfor %};{% endfor %}", "user:Hi;assistant:Yo;user:Bye;"},
        {"{% for m in messages %}{% for part in m.content | selectattr('type', 'equalto', 'text') %}{{ part.text }} "
         "{% endfor %}{% endfor %}", "Hi Yo Bye "},
        {"{% for m in messages %}{% if m.role == 'user' %}{{ (m.content | first).text }}{% else %}"
         "{{ m.content[0].text }}{% endif %};{% endfor %}", "Hi;Yo;Bye;"},
        /* these read contents as text */
        {"{% for m in messages %}{% if m.content is string %}<{{ m.content }}>{% else %}{{ m.content[0]['text'] }}"
         "{% endif %};{% endfor %}", "<Hi>;<Yo>;Bye;"},
        {"{{ messages[0].content }}{{ 'text' == 'x' }}", "HiFalse"},
        {"{% if messages[0].content != 'Hi' %}{{ raise_exception('a text') }}{% endif %}{{ messages[0].content }}",
         "Hi"},
    };
    const struct pp_template_input in = {
        .messages_json = "[{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \"Yo\"}, "
                         "{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"Bye\"}]}]",
        .bos_text = "", .eos_text = ""};
    const struct pp_template_input odd = {.messages_json = "[{\"role\": \"tool\", \"content\": null}, {}, 1]",
                                          .bos_text = "", .eos_text = ""};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pp_buf out = {0};
        struct pp_error err;
        struct pp_template *t;
        assert_ok(pp_template_parse(cases[i][0], strlen(cases[i][0]), "test", &t, &err), err);
        assert_ok(pp_template_render(t, &in, &out, &err), err);
        assert_string_equal(pp_buf_cstr(&out), cases[i][1]);
        pp_template_render(t, &odd, &out, &err);
        pp_template_free(t);
        pp_buf_free(&out);
    }
}

/* A template that looks at all messages before each one, as Gemma 4's does, finds the right ones, and needs memory and
 * steps only in proportion to their number, which here is that of the largest context. */
static void many_messages(void **state)
{
    enum { N = 4000 };
    static const char source[] =
        "{% for m in messages %}{% set prev = namespace(role=none, found=false) %}"
        "{% for j in range(loop.index0 - 1, -1, -1) %}{% if not prev.found %}{% if messages[j]['role'] != 'tool' %}"
        "{% set prev.role = messages[j]['role'] %}{% set prev.found = true %}{% endif %}{% endif %}{% endfor %}"
        "{{ 'same ' if prev.role == m.role }}{% endfor %}"
        "{{ range(3, 6)|list }}{{ range(5, 2, -1)|list }}{{ range(2, -1, -1)|list }}{{ range(300)|last }}"
        "{{ range(200, 0, -1)|first }}{{ range(-1, 2)|list }}{{ range(4, 0, -2)|list }}{{ range(2, 2)|list }}";
    static const char want[] = "[3, 4, 5][5, 4, 3][2, 1, 0]299200[-1, 0, 1][4, 2][]";
    struct pp_buf json = {0}, out = {0};
    struct pp_template *t;
    struct pp_error err;
    (void)state;
    for (int i = 0; i < N; i++)
        pp_buf_fmt(&json, "%c{\"role\":\"%s\",\"content\":\"%d\"}", i ? ',' : '[', i % 2 ? "assistant" : "user", i);
    pp_buf_str(&json, "]");
    assert_ok(pp_template_parse(source, sizeof source - 1, "test", &t, &err), err);
    const struct pp_template_input in = {.messages_json = pp_buf_cstr(&json), .bos_text = "", .eos_text = ""};
    assert_ok(pp_template_render(t, &in, &out, &err), err);
    assert_string_equal(pp_buf_cstr(&out), want);
    pp_template_free(t);
    pp_buf_free(&json);
    pp_buf_free(&out);
}

/* The other members of the input reach the template. */
static void inputs_reach_the_template(void **state)
{
    (void)state;
    static const char source[] = "{{ tools is none }}{{ enable_thinking }}{{ bos_token }}{{ eos_token }}"
                                 "{{ add_generation_prompt }}{{ messages | length }}{{ strftime_now('%Y') }}";
    struct pp_template_input in = {.messages_json = "[]", .bos_text = "B", .eos_text = "E", .now = NOW,
                                   .extra_json = "{\"enable_thinking\": false}"};
    struct pp_buf out = {0};
    struct pp_error err;
    struct pp_template *t;
    assert_ok(pp_template_parse(source, sizeof source - 1, "test", &t, &err), err);
    assert_ok(pp_template_render(t, &in, &out, &err), err);
    assert_string_equal(pp_buf_cstr(&out), "TrueFalseBEFalse02026");
    in.messages_json = "{}";
    assert_int_equal(pp_template_render(t, &in, &out, &err), PP_ERR_FORMAT);
    pp_template_free(t);
    pp_buf_free(&out);
}

/* --- reference data ------------------------------------------------------------------------------------- */

static char *read_text(const char *path, size_t *n)
{
    struct pp_error err;
    char *text;
    assert_ok(pp_read_file(path, 16 << 20, &text, n, &err), err);
    return text;
}

static const char *string_of(const cJSON *object, const char *key)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
}

static void engine_cases_render_as_expected(void **state)
{
    (void)state;
    const char *path = testdata("templates/jinja_engine_llamacpp.jsonl");
    if (!path)
        skip();
    size_t n;
    char *text = read_text(path, &n), *rest = text, *line;
    struct pp_buf out = {0};
    struct pp_error err;
    int passed = 0, total = 0;
    while ((line = strsep(&rest, "\n"))) {
        if (!*line)
            continue;
        cJSON *c = cJSON_Parse(line);
        assert_non_null(c);
        char *vars = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(c, "vars"));
        const char *source = string_of(c, "template"), *expected = string_of(c, "expected");
        total++;
        if (render_vars(source, strlen(source), vars, &out, &err) != PP_OK)
            printf("%s: %s\n", string_of(c, "name"), err.text);
        else if (strcmp(pp_buf_cstr(&out), expected) != 0)
            show_difference(string_of(c, "name"), expected, pp_buf_cstr(&out));
        else
            passed++;
        cJSON_free(vars);
        cJSON_Delete(c);
    }
    printf("template engine cases: %d of %d\n", passed, total);
    pp_buf_free(&out);
    pp_free(text);
    assert_int_equal(passed, total);
    assert_true(total >= 265);
}

/* Errors of Python's sandbox, which forbids append(): here the template renders. */
static const struct {
    const char *file, *conversation;
} excused[] = {{"Kimi-K2-Instruct.jinja", "toolcall"}};

static bool is_excused(const cJSON *c)
{
    for (size_t i = 0; i < sizeof excused / sizeof *excused; i++)
        if (strcmp(string_of(c, "template"), excused[i].file) == 0 &&
            strcmp(string_of(c, "conversation"), excused[i].conversation) == 0)
            return true;
    return false;
}

static bool reference_case_passes(const cJSON *root, const cJSON *c, const char *tools, struct pp_buf *out)
{
    static const char raised[] = "TemplateError: ";
    char relative[256], label[320];
    size_t n;
    snprintf(relative, sizeof relative, "templates/%s", string_of(c, "template"));
    snprintf(label, sizeof label, "%s %s", string_of(c, "template"), string_of(c, "conversation"));
    char *source = read_text(testdata(relative), &n);
    const cJSON *all = cJSON_GetObjectItemCaseSensitive(root, "conversations");
    char *messages = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(all, string_of(c, "conversation")));
    struct pp_template_input in = {
        .messages_json = messages,
        .tools_json = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(c, "tools")) ? tools : NULL,
        .bos_text = string_of(root, "bos_token"),
        .eos_text = string_of(root, "eos_token"),
        .add_generation_prompt = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(c, "add_generation_prompt")),
        .now = NOW,
    };
    struct pp_template *t;
    struct pp_error err;
    pp_buf_clear(out);
    enum pp_code code = pp_template_parse(source, n, relative, &t, &err);
    if (code == PP_OK)
        code = pp_template_render(t, &in, out, &err);
    pp_template_free(t);
    pp_free(source);
    cJSON_free(messages);

    const char *expected = string_of(c, "expected"), *error = string_of(c, "error");
    if (error) {
        bool own = strncmp(error, raised, strlen(raised)) == 0;
        bool ok = code == PP_ERR_FORMAT && (!own || strstr(err.text, error + strlen(raised)));
        if (!ok && !is_excused(c))
            printf("%s: expected the error '%s', got %s\n", label, error, code ? err.text : "a text");
        return ok;
    }
    if (code)
        printf("%s: %s\n", label, err.text);
    else if (strcmp(pp_buf_cstr(out), expected) != 0)
        show_difference(label, expected, pp_buf_cstr(out));
    else
        return true;
    return false;
}

static void reference_cases_render_byte_for_byte(void **state)
{
    (void)state;
    const char *path = testdata("templates/cases.json");
    if (!path)
        skip();
    size_t n;
    char *text = read_text(path, &n);
    cJSON *root = cJSON_Parse(text);
    assert_non_null(root);
    char *tools = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(root, "tools"));
    struct pp_buf out = {0};
    int passed = 0, total = 0, needed = 0;
    const cJSON *c;
    cJSON_ArrayForEach(c, cJSON_GetObjectItemCaseSensitive(root, "cases")) {
        bool ok = reference_case_passes(root, c, tools, &out);
        total++;
        passed += ok;
        needed += !is_excused(c);
        if (ok && is_excused(c))
            fail_msg("%s passes; take it off the list of excused cases", string_of(c, "template"));
    }
    printf("template reference cases: %d of %d, %d excused\n", passed, total, total - needed);
    pp_buf_free(&out);
    cJSON_free(tools);
    cJSON_Delete(root);
    pp_free(text);
    assert_int_equal(passed, needed);
    assert_true(total >= 504);
}

static void starter_template_renders(void **state)
{
    (void)state;
    const char *path = testdata("starter/target/tokenizer_config.json");
    if (!path)
        skip();
    size_t n;
    char *text = read_text(path, &n);
    cJSON *root = cJSON_Parse(text);
    const char *source = string_of(root, "chat_template");
    assert_non_null(source);
    struct pp_template *t;
    struct pp_error err;
    struct pp_buf out = {0};
    const struct pp_template_input in = {
        .messages_json = "[{\"role\": \"user\", \"content\": \" Hello, who are you?\\n\"}]",
        .bos_text = "<|begin_of_text|>",
        .eos_text = "<|eot_id|>",
        .add_generation_prompt = true,
    };
    assert_ok(pp_template_parse(source, strlen(source), "starter", &t, &err), err);
    assert_ok(pp_template_render(t, &in, &out, &err), err);
    assert_string_equal(pp_buf_cstr(&out), "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n"
                                           "Hello, who are you?<|eot_id|>"
                                           "<|start_header_id|>assistant<|end_header_id|>\n\n");
    pp_template_free(t);
    pp_buf_free(&out);
    cJSON_Delete(root);
    pp_free(text);
}

TEST_GROUP(template)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_cases_render_as_in_python),
        cmocka_unit_test(errors_give_line_and_reason),
        cmocka_unit_test(hostile_templates_fail_quickly),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(failed_allocations_are_errors),
        cmocka_unit_test(builtin_templates_render),
        cmocka_unit_test(usual_system_messages),
        cmocka_unit_test(switched_thinking),
        cmocka_unit_test(called_tools),
        cmocka_unit_test(evident_templates),
        cmocka_unit_test(many_messages),
        cmocka_unit_test(messages_in_parts),
        cmocka_unit_test(inputs_reach_the_template),
        cmocka_unit_test(engine_cases_render_as_expected),
        cmocka_unit_test(reference_cases_render_byte_for_byte),
        cmocka_unit_test(starter_template_renders),
    };
    return cmocka_run_group_tests_name("template", tests, NULL, NULL);
}
