/* jinja_tests.c - the tests that may follow "is", and that select() and similar filters take. */
#include <wctype.h>

#include "engine/base/utf8.h"
#include "engine/jinja_ast.h"
#include "engine/jinja_eval.h"

/* All tests have this shape; the macro keeps the table below readable. */
#define TEST(id)                                                                                                      \
    static struct jinja_value test_##id(struct jinja *j, struct jinja_value self, const struct jinja_value *arg,      \
                                        const struct jinja_args *args)
#define UNUSED (void)j, (void)self, (void)arg, (void)args

TEST(defined) { UNUSED; return jinja_bool(self.kind != JINJA_UNDEFINED); }
TEST(undefined) { UNUSED; return jinja_bool(self.kind == JINJA_UNDEFINED); }
TEST(none) { UNUSED; return jinja_bool(self.kind == JINJA_NONE); }
TEST(boolean) { UNUSED; return jinja_bool(self.kind == JINJA_BOOL); }
TEST(true) { UNUSED; return jinja_bool(self.kind == JINJA_BOOL && self.b); }
TEST(false) { UNUSED; return jinja_bool(self.kind == JINJA_BOOL && !self.b); }
TEST(integer) { UNUSED; return jinja_bool(self.kind == JINJA_INT || self.kind == JINJA_BIG); }
TEST(float) { UNUSED; return jinja_bool(self.kind == JINJA_FLOAT); }
TEST(number) { UNUSED; return jinja_bool(jinja_is_number(self) || self.kind == JINJA_BIG); }
TEST(string) { UNUSED; return jinja_bool(self.kind == JINJA_STRING); }
TEST(mapping) { UNUSED; return jinja_bool(self.kind == JINJA_DICT); }
TEST(callable) { UNUSED; return jinja_bool(jinja_callable(self) || self.kind == JINJA_UNDEFINED); } /* as in Jinja */
TEST(escaped) { UNUSED; return jinja_bool(self.kind == JINJA_STRING && self.flag); }
TEST(in) { UNUSED; return jinja_bool(jinja_contains(j, arg[0], self)); }

TEST(iterable)
{
    UNUSED;
    return jinja_bool(jinja_is_list(self) || self.kind == JINJA_DICT || self.kind == JINJA_STRING ||
                      self.kind == JINJA_BYTES || self.kind == JINJA_UNDEFINED);
}

TEST(sequence)
{
    UNUSED;
    return jinja_bool(self.kind == JINJA_LIST || self.kind == JINJA_TUPLE || self.kind == JINJA_RANGE ||
                      self.kind == JINJA_DICT || self.kind == JINJA_STRING || self.kind == JINJA_BYTES ||
                      self.kind == JINJA_UNDEFINED);
}

TEST(divisibleby)
{
    UNUSED;
    return jinja_bool(jinja_equal(j, jinja_operate(j, JINJA_OP_MOD, self, arg[0]), jinja_int(0)));
}

TEST(odd)
{
    UNUSED;
    return jinja_bool(jinja_equal(j, jinja_operate(j, JINJA_OP_MOD, self, jinja_int(2)), jinja_int(1)));
}

TEST(even)
{
    UNUSED;
    return jinja_bool(jinja_equal(j, jinja_operate(j, JINJA_OP_MOD, self, jinja_int(2)), jinja_int(0)));
}

TEST(eq) { UNUSED; return jinja_operate(j, JINJA_OP_EQ, self, arg[0]); }
TEST(ne) { UNUSED; return jinja_operate(j, JINJA_OP_NE, self, arg[0]); }
TEST(lt) { UNUSED; return jinja_operate(j, JINJA_OP_LT, self, arg[0]); }
TEST(le) { UNUSED; return jinja_operate(j, JINJA_OP_LE, self, arg[0]); }
TEST(gt) { UNUSED; return jinja_operate(j, JINJA_OP_GT, self, arg[0]); }
TEST(ge) { UNUSED; return jinja_operate(j, JINJA_OP_GE, self, arg[0]); }

/* Identity. Numbers and strings have none here, so equal ones of the same kind count as identical. */
TEST(sameas)
{
    UNUSED;
    if (self.kind != arg[0].kind)
        return jinja_bool(false);
    return jinja_bool(self.kind <= JINJA_STRING ? jinja_equal(j, self, arg[0]) : self.list == arg[0].list);
}

/* Whether at least one letter has this case, and none the other. */
static bool all_cased(struct jinja *j, struct jinja_value s, bool upper)
{
    bool any = false;
    jinja_work(j, s.n);
    for (size_t i = 0; i < s.n;) {
        int32_t cp;
        i += pp_utf8_decode(s.s + i, s.n - i, &cp);
        if (cp < 0)
            continue;
        if (upper ? iswlower((wint_t)cp) : iswupper((wint_t)cp))
            return false;
        any |= (upper ? iswupper((wint_t)cp) : iswlower((wint_t)cp)) != 0;
    }
    return any;
}

TEST(lower) { UNUSED; return jinja_bool(all_cased(j, jinja_to_string(j, self), false)); }
TEST(upper) { UNUSED; return jinja_bool(all_cased(j, jinja_to_string(j, self), true)); }

TEST(filter)
{
    UNUSED;
    if (!jinja_hashable(self))
        jinja_fail(j, "there are no filters that are called by a %s", jinja_type_name(self));
    return jinja_bool(self.kind == JINJA_STRING && jinja_find_filter(self.s, self.n));
}

TEST(test)
{
    UNUSED;
    if (!jinja_hashable(self))
        jinja_fail(j, "there are no tests that are called by a %s", jinja_type_name(self));
    return jinja_bool(self.kind == JINJA_STRING && jinja_find_test(self.s, self.n));
}

const struct jinja_builtin *jinja_find_test(const char *name, size_t n)
{
    static const struct jinja_builtin tests[] = {
        {"defined", test_defined, "", 0},
        {"undefined", test_undefined, "", 0},
        {"none", test_none, "", 0},
        {"boolean", test_boolean, "", 0},
        {"true", test_true, "", 0},
        {"false", test_false, "", 0},
        {"integer", test_integer, "", 0},
        {"float", test_float, "", 0},
        {"number", test_number, "", 0},
        {"string", test_string, "", 0},
        {"mapping", test_mapping, "", 0},
        {"iterable", test_iterable, "", 0},
        {"sequence", test_sequence, "", 0},
        {"callable", test_callable, "", 0},
        {"escaped", test_escaped, "", 0},
        {"in", test_in, "seq", 1},
        {"divisibleby", test_divisibleby, "num", 1},
        {"odd", test_odd, "", 0},
        {"even", test_even, "", 0},
        {"eq", test_eq, "other", 1},
        {"equalto", test_eq, "other", 1},
        {"==", test_eq, "other", 1},
        {"ne", test_ne, "other", 1},
        {"!=", test_ne, "other", 1},
        {"lt", test_lt, "other", 1},
        {"lessthan", test_lt, "other", 1},
        {"<", test_lt, "other", 1},
        {"le", test_le, "other", 1},
        {"<=", test_le, "other", 1},
        {"gt", test_gt, "other", 1},
        {"greaterthan", test_gt, "other", 1},
        {">", test_gt, "other", 1},
        {"ge", test_ge, "other", 1},
        {">=", test_ge, "other", 1},
        {"sameas", test_sameas, "other", 1},
        {"lower", test_lower, "", 0},
        {"upper", test_upper, "", 0},
        {"filter", test_filter, "", 0},
        {"test", test_test, "", 0},
        {NULL, NULL, NULL, 0},
    };
    return jinja_find_builtin(tests, name, n);
}
