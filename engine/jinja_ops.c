/* jinja_ops.c - operators and access to members, as in Python. Integers beyond 64 bits are in jinja_big.c. */
#include <math.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/jinja_ast.h"
#include "engine/jinja_eval.h"

void jinja_require_defined(struct jinja *j, struct jinja_value v)
{
    if (v.kind != JINJA_UNDEFINED)
        return;
    if (!v.s)
        jinja_fail(j, "the value is undefined");
    int n = jinja_shown(v.s, v.n);
    if (v.flag)
        jinja_fail(j, "there is no attribute or key '%.*s'", n, v.s);
    jinja_fail(j, "'%.*s' is undefined", n, v.s);
}

/* --- members -------------------------------------------------------------------------------------------- */

static bool method_of(struct jinja *j, struct jinja_value v, struct jinja_value name, struct jinja_value *out)
{
    const struct jinja_builtin *b = jinja_find_method(v, name.s, name.n);
    if (!b)
        return false;
    struct jinja_method *m = jinja_alloc(j, sizeof *m);
    *m = (struct jinja_method){.self = v, .builtin = b};
    *out = (struct jinja_value){.kind = JINJA_METHOD, .method = m};
    return true;
}

/* Attributes of Python's numbers besides their methods. */
static struct jinja_value number_attribute(struct jinja *j, struct jinja_value v, struct jinja_value name)
{
    const bool whole = v.kind != JINJA_FLOAT;
    if (jinja_equals_cstr(name, "real") || (whole && jinja_equals_cstr(name, "numerator")))
        return jinja_plus(j, v);
    if (jinja_equals_cstr(name, "imag"))
        return whole ? jinja_int(0) : jinja_float(0);
    if (whole && jinja_equals_cstr(name, "denominator"))
        return jinja_int(1);
    return jinja_missing_attribute(name);
}

/* Methods come before keys: {"items": 1}.items is the method, {"items": 1}["items"] is 1. */
struct jinja_value jinja_attribute(struct jinja *j, struct jinja_value v, struct jinja_value name)
{
    struct jinja_value found;
    jinja_require_defined(j, v);
    if (method_of(j, v, name, &found))
        return found;
    if (v.kind == JINJA_DICT || v.kind == JINJA_NAMESPACE) {
        const struct jinja_value *value = jinja_dict_find(j, v.dict, name);
        if (value)
            return *value;
    }
    if (v.kind == JINJA_TUPLE && v.list->name && jinja_equals_cstr(name, "grouper"))
        return v.list->items[0];
    if (v.kind == JINJA_TUPLE && v.list->name && jinja_equals_cstr(name, "list"))
        return v.list->items[1];
    if (v.kind == JINJA_LOOP)
        return jinja_loop_attribute(j, v, name);
    if (v.kind == JINJA_MACRO)
        return jinja_macro_attribute(j, v, name);
    if (v.kind == JINJA_SELF)
        return jinja_self_attribute(j, name);
    if (jinja_is_number(v) || v.kind == JINJA_BIG)
        return number_attribute(j, v, name);
    if (v.kind == JINJA_RANGE)
        return jinja_range_attribute(v, name);
    if (v.kind == JINJA_CYCLER && jinja_equals_cstr(name, "current"))
        return v.cycler->items->items[v.cycler->at];
    if (v.kind == JINJA_CYCLER && jinja_equals_cstr(name, "items"))
        return jinja_wrap(JINJA_TUPLE, v.cycler->items);
    if (v.kind == JINJA_CYCLER && jinja_equals_cstr(name, "pos"))
        return jinja_int((int64_t)v.cycler->at);
    return jinja_missing_attribute(name);
}

/* Resolves a negative index, from the end; false: it is outside. */
static bool in_range(int64_t *i, size_t n)
{
    if (*i < 0)
        *i += (int64_t)n;
    return *i >= 0 && *i < (int64_t)n;
}

/* A part of a text that is marked as HTML is marked, too. */
static struct jinja_value as_marked(struct jinja_value text, struct jinja_value part)
{
    part.flag = text.flag;
    return part;
}

static struct jinja_value character(struct jinja *j, struct jinja_value s, int64_t i)
{
    if (!in_range(&i, jinja_count_chars(j, s)))
        return jinja_undefined();
    size_t at = jinja_char_offset(j, s, (size_t)i);
    int32_t cp;
    return as_marked(s, jinja_str(s.s + at, pp_utf8_decode(s.s + at, s.n - at, &cp)));
}

struct jinja_value jinja_item(struct jinja *j, struct jinja_value v, struct jinja_value key)
{
    jinja_require_defined(j, v);
    if (v.kind == JINJA_DICT && jinja_hashable(key)) {
        const struct jinja_value *value = jinja_dict_find(j, v.dict, key);
        if (value)
            return *value;
    }
    if (jinja_is_integral(key)) {
        int64_t i = jinja_as_int(key);
        if (v.kind == JINJA_STRING)
            return character(j, v, i);
        if (v.kind == JINJA_BYTES) {
            const struct jinja_list *list = jinja_bytes_list(j, v);
            return in_range(&i, list->n) ? list->items[i] : jinja_undefined();
        }
        if (v.kind == JINJA_LIST || v.kind == JINJA_TUPLE || v.kind == JINJA_RANGE)
            return in_range(&i, v.list->n) ? v.list->items[i] : jinja_undefined();
    }
    return key.kind == JINJA_STRING ? jinja_attribute(j, v, key) : jinja_missing_attribute(key);
}

/* --- slices --------------------------------------------------------------------------------------------- */

struct slice {
    int64_t from, to, step;
};

static int64_t bound(struct jinja_value v, int64_t n, int64_t otherwise, int64_t low, int64_t high)
{
    if (v.kind == JINJA_NONE)
        return otherwise;
    if (v.kind == JINJA_BIG)
        return *v.s == '-' ? low : high;
    int64_t i = jinja_as_int(v);
    if (i < 0)
        i = i < -n ? -1 : i + n;
    return i < low ? low : i > high ? high : i;
}

/* Python's rules (slice.indices) for a sequence of n elements. */
static struct slice slice_of(struct jinja *j, int64_t n, struct jinja_value from, struct jinja_value to,
                             struct jinja_value step)
{
    struct slice s = {.step = 1};
    if (step.kind == JINJA_BIG)
        s.step = *step.s == '-' ? -INT64_MAX : INT64_MAX;
    else if (step.kind != JINJA_NONE)
        s.step = jinja_as_int(step);
    if (s.step == 0)
        jinja_fail(j, "the step of a slice is 0");
    if (s.step > 0) {
        s.from = bound(from, n, 0, 0, n);
        s.to = bound(to, n, n, 0, n);
    } else {
        s.from = bound(from, n, n - 1, -1, n - 1);
        s.to = bound(to, n, -1, -1, n - 1);
    }
    return s;
}

static bool slice_next(struct slice *s, int64_t *i)
{
    if (s->step > 0 ? s->from >= s->to : s->from <= s->to)
        return false;
    *i = s->from;
    if (__builtin_add_overflow(s->from, s->step, &s->from))
        s->from = s->to;
    return true;
}

static struct jinja_value slice_list(struct jinja *j, struct jinja_value v, struct slice s)
{
    const struct slice all = s;
    struct jinja_list *list = jinja_list(j);
    for (int64_t i; slice_next(&s, &i);)
        jinja_push(j, list, v.list->items[i]);
    jinja_work(j, list->n * 16);
    if (v.kind == JINJA_RANGE)
        list->name = jinja_range_part(j, v.list->name, all.from, all.to, all.step);
    return jinja_wrap((enum jinja_kind)v.kind, list);
}

static struct jinja_value slice_string(struct jinja *j, struct jinja_value v, struct jinja_value from,
                                       struct jinja_value to, struct jinja_value step)
{
    struct slice s = slice_of(j, (int64_t)jinja_count_chars(j, v), from, to, step);
    if (s.step == 1) {
        if (s.from >= s.to)
            return jinja_str("", 0);
        size_t begin = jinja_char_offset(j, v, (size_t)s.from);
        struct jinja_value rest = jinja_str(v.s + begin, v.n - begin);
        return jinja_str(rest.s, jinja_char_offset(j, rest, (size_t)(s.to - s.from)));
    }
    struct jinja_list *chars = jinja_iterate(j, v);
    struct jinja_value picked = slice_list(j, jinja_wrap(JINJA_LIST, chars), s);
    return jinja_join(j, jinja_str("", 0), picked.list);
}

static bool is_bound(struct jinja_value v)
{
    return v.kind == JINJA_NONE || jinja_is_whole(v);
}

bool jinja_can_slice(struct jinja_value v, const struct jinja_value bounds[3])
{
    return (v.kind == JINJA_STRING || v.kind == JINJA_LIST || v.kind == JINJA_TUPLE) && is_bound(bounds[0]) &&
           is_bound(bounds[1]) && is_bound(bounds[2]);
}

struct jinja_value jinja_slice(struct jinja *j, struct jinja_value v, struct jinja_value from, struct jinja_value to,
                               struct jinja_value step)
{
    jinja_require_defined(j, v);
    if (!is_bound(from) || !is_bound(to) || !is_bound(step))
        jinja_fail(j, "the bounds of a slice are integers");
    if (v.kind == JINJA_STRING)
        return as_marked(v, slice_string(j, v, from, to, step));
    if (v.kind == JINJA_BYTES) {
        v.kind = JINJA_STRING;
        v = slice_string(j, v, from, to, step);
        v.kind = JINJA_BYTES;
        return v;
    }
    if (v.kind != JINJA_LIST && v.kind != JINJA_TUPLE && v.kind != JINJA_RANGE)
        jinja_fail(j, "a value of type %s cannot be sliced", jinja_type_name(v));
    if (v.kind == JINJA_RANGE && step.kind == JINJA_BIG)
        jinja_fail(j, "the step of a part of a range is beyond 64 bits");
    return slice_list(j, v, slice_of(j, (int64_t)v.list->n, from, to, step));
}

/* --- arithmetic ----------------------------------------------------------------------------------------- */

static _Noreturn void no_operation(struct jinja *j, const char *op, struct jinja_value a, struct jinja_value b)
{
    jinja_require_defined(j, a);
    jinja_require_defined(j, b);
    jinja_fail(j, "%s does not work for a %s and a %s", op, jinja_type_name(a), jinja_type_name(b));
}

static bool is_real(struct jinja_value v)
{
    return jinja_is_number(v) || v.kind == JINJA_BIG;
}

/* For arithmetic with a float, an integer is converted. */
static double real(struct jinja *j, struct jinja_value v)
{
    const double f = v.kind == JINJA_BIG ? jinja_big_double(v) : jinja_as_double(v);
    if (v.kind == JINJA_BIG && !isfinite(f))
        jinja_fail(j, "the integer is too large for a float");
    return f;
}

static struct jinja_value add_lists(struct jinja *j, struct jinja_value a, struct jinja_value b)
{
    struct jinja_list *list = jinja_list(j);
    jinja_work(j, (a.list->n + b.list->n) * 16);
    for (size_t i = 0, n = a.list->n; i < n; i++)
        jinja_push(j, list, a.list->items[i]);
    for (size_t i = 0, n = b.list->n; i < n; i++)
        jinja_push(j, list, b.list->items[i]);
    return jinja_wrap((enum jinja_kind)a.kind, list);
}

static struct jinja_value add(struct jinja *j, struct jinja_value a, struct jinja_value b)
{
    if (jinja_is_integral(a) && jinja_is_integral(b)) {
        int64_t sum;
        if (!__builtin_add_overflow(jinja_as_int(a), jinja_as_int(b), &sum))
            return jinja_int(sum);
    }
    if (jinja_is_whole(a) && jinja_is_whole(b))
        return jinja_big_operate(j, JINJA_OP_ADD, a, b);
    if (is_real(a) && is_real(b))
        return jinja_float(real(j, a) + real(j, b));
    if (a.kind == JINJA_STRING && b.kind == JINJA_STRING) {
        bool safe = a.flag || b.flag; /* plain text is escaped when joined to marked text */
        struct jinja_value v = jinja_concat(j, safe && !a.flag ? jinja_escape_html(j, a) : a,
                                            safe && !b.flag ? jinja_escape_html(j, b) : b);
        v.flag = safe;
        return v;
    }
    if (a.kind == JINJA_BYTES && b.kind == JINJA_BYTES) {
        struct jinja_value v = jinja_concat(j, a, b);
        v.kind = JINJA_BYTES;
        return v;
    }
    if (a.kind == b.kind && (a.kind == JINJA_LIST || a.kind == JINJA_TUPLE))
        return add_lists(j, a, b);
    no_operation(j, "+", a, b);
}

static struct jinja_value subtract(struct jinja *j, struct jinja_value a, struct jinja_value b)
{
    int64_t i;
    const bool views = a.kind == JINJA_VIEW || b.kind == JINJA_VIEW; /* combined with a view, anything that can be
                                                                        walked is allowed */
    if ((jinja_is_set(a) && jinja_is_set(b)) || (views && (jinja_is_set(a) || jinja_is_set(b))))
        return jinja_sets_subtract(j, a, b);
    if (jinja_is_integral(a) && jinja_is_integral(b) &&
        !__builtin_sub_overflow(jinja_as_int(a), jinja_as_int(b), &i))
        return jinja_int(i);
    if (jinja_is_whole(a) && jinja_is_whole(b))
        return jinja_big_operate(j, JINJA_OP_SUB, a, b);
    if (!is_real(a) || !is_real(b))
        no_operation(j, "-", a, b);
    return jinja_float(real(j, a) - real(j, b));
}

static struct jinja_value repeat(struct jinja *j, struct jinja_value v, int64_t times)
{
    if (times < 0)
        times = 0;
    if (v.kind == JINJA_STRING || v.kind == JINJA_BYTES) {
        struct jinja_text t = {0};
        jinja_add_times(j, &t, v.s, v.n, (size_t)times);
        struct jinja_value made = as_marked(v, jinja_text_value(j, &t));
        made.kind = v.kind;
        return made;
    }
    struct jinja_list *list = jinja_list(j);
    for (int64_t k = 0; v.list->n && k < times; k++)
        for (size_t i = 0, n = v.list->n; i < n; i++) {
            jinja_work(j, 16);
            jinja_push(j, list, v.list->items[i]);
        }
    return jinja_wrap((enum jinja_kind)v.kind, list);
}

static bool repeatable(struct jinja_value v)
{
    return v.kind == JINJA_STRING || v.kind == JINJA_BYTES || v.kind == JINJA_LIST || v.kind == JINJA_TUPLE;
}

static struct jinja_value multiply(struct jinja *j, struct jinja_value a, struct jinja_value b)
{
    int64_t i;
    if (repeatable(a) && jinja_is_integral(b))
        return repeat(j, a, jinja_as_int(b));
    if (repeatable(b) && jinja_is_integral(a))
        return repeat(j, b, jinja_as_int(a));
    if (jinja_is_integral(a) && jinja_is_integral(b) &&
        !__builtin_mul_overflow(jinja_as_int(a), jinja_as_int(b), &i))
        return jinja_int(i);
    if (jinja_is_whole(a) && jinja_is_whole(b))
        return jinja_big_operate(j, JINJA_OP_MUL, a, b);
    if (!is_real(a) || !is_real(b))
        no_operation(j, "*", a, b);
    return jinja_float(real(j, a) * real(j, b));
}

/* The remainder, with the sign of y; *floored is the floor of x / y, computed from the remainder as in Python: 1 // 0.1
 * is 9. */
static double divide_floats(double x, double y, double *floored)
{
    double rest = fmod(x, y), quotient = (x - rest) / y;
    if (rest != 0 && (rest < 0) != (y < 0)) {
        rest += y;
        quotient -= 1;
    } else if (rest == 0) {
        rest = copysign(0, y);
    }
    *floored = quotient == 0 ? copysign(0, x / y) : floor(quotient);
    if (quotient - *floored > 0.5)
        *floored += 1;
    return rest;
}

/* Rounds towards minus infinity; the remainder has the sign of b. */
static struct jinja_value floor_divide(struct jinja *j, struct jinja_value a, struct jinja_value b)
{
    int64_t x = jinja_as_int(a), y = jinja_as_int(b);
    if (x == INT64_MIN && y == -1)
        return jinja_big_operate(j, JINJA_OP_FLOORDIV, a, b);
    return jinja_int(x / y - (x % y != 0 && (x % y < 0) != (y < 0)));
}

static struct jinja_value modulo(struct jinja_value a, struct jinja_value b)
{
    int64_t x = jinja_as_int(a), y = jinja_as_int(b);
    int64_t r = y == -1 ? 0 : x % y;
    return jinja_int(r != 0 && (r < 0) != (y < 0) ? r + y : r);
}

/* Whether a double represents the integer exactly, so that a quotient is rounded only once. */
static bool is_exact(struct jinja_value v)
{
    const int64_t most = 1ll << 53;
    return v.kind != JINJA_BIG && jinja_as_int(v) <= most && jinja_as_int(v) >= -most;
}

static struct jinja_value divide(struct jinja *j, int op, struct jinja_value a, struct jinja_value b)
{
    const char *sign = op == JINJA_OP_DIV ? "/" : op == JINJA_OP_MOD ? "%" : "//";
    if (!is_real(a) || !is_real(b))
        no_operation(j, sign, a, b);
    if (b.kind != JINJA_BIG && jinja_as_double(b) == 0)
        jinja_fail(j, "division by zero");
    if (jinja_is_whole(a) && jinja_is_whole(b)) {
        if (op == JINJA_OP_DIV && is_exact(a) && is_exact(b))
            return jinja_float(jinja_as_double(a) / jinja_as_double(b));
        if (a.kind == JINJA_BIG || b.kind == JINJA_BIG || op == JINJA_OP_DIV)
            return jinja_big_operate(j, op, a, b);
        return op == JINJA_OP_MOD ? modulo(a, b) : floor_divide(j, a, b);
    }
    const double x = real(j, a), y = real(j, b);
    double floored;
    if (op == JINJA_OP_DIV)
        return jinja_float(x / y);
    const double rest = divide_floats(x, y, &floored);
    return jinja_float(op == JINJA_OP_MOD ? rest : floored);
}

/* n > 0 */
static struct jinja_value whole_power(struct jinja *j, struct jinja_value base, int64_t n)
{
    struct jinja_value result = jinja_int(1);
    const bool small = base.kind == JINJA_INT && base.i >= -1 && base.i <= 1;
    if (small)
        return base.i == -1 && n % 2 == 0 ? jinja_int(1) : base;
    for (;; n >>= 1) {
        if (n & 1)
            result = multiply(j, result, base);
        if (n <= 1)
            return result;
        base = multiply(j, base, base);
    }
}

static struct jinja_value power(struct jinja *j, struct jinja_value a, struct jinja_value b)
{
    if (jinja_is_whole(a) && jinja_is_integral(b) && jinja_as_int(b) >= 0)
        return jinja_as_int(b) ? whole_power(j, jinja_plus(j, a), jinja_as_int(b)) : jinja_int(1);
    if (jinja_is_whole(a) && b.kind == JINJA_BIG && *b.s != '-') { /* fits only for bases -1, 0 and 1 */
        const int64_t base = a.kind == JINJA_BIG ? 2 : jinja_as_int(a);
        if (base < -1 || base > 1)
            jinja_fail(j, "the result of ** is too large");
        return jinja_int(base == -1 && strchr("02468", b.s[b.n - 1]) ? 1 : base);
    }
    if (!is_real(a) || !is_real(b))
        no_operation(j, "**", a, b);
    const double x = real(j, a), y = real(j, b), f = pow(x, y);
    if (!isfinite(f) && isfinite(x) && isfinite(y))
        jinja_fail(j, "the result of ** is not a number or too large");
    return jinja_float(f);
}

struct jinja_value jinja_negate(struct jinja *j, struct jinja_value v)
{
    if (v.kind == JINJA_FLOAT)
        return jinja_float(-v.f);
    jinja_require_defined(j, v);
    if (!jinja_is_whole(v))
        jinja_fail(j, "- does not work for a %s", jinja_type_name(v));
    return subtract(j, jinja_int(0), v);
}

struct jinja_value jinja_plus(struct jinja *j, struct jinja_value v)
{
    jinja_require_defined(j, v);
    if (v.kind == JINJA_BIG)
        return v;
    if (!jinja_is_number(v))
        jinja_fail(j, "+ does not work for a %s", jinja_type_name(v));
    return v.kind == JINJA_FLOAT ? v : jinja_int(jinja_as_int(v));
}

/* --- comparison ----------------------------------------------------------------------------------------- */

bool jinja_contains(struct jinja *j, struct jinja_value container, struct jinja_value v)
{
    if (container.kind == JINJA_STRING) {
        if (v.kind != JINJA_STRING)
            jinja_fail(j, "only a string can be in a string, not a %s", jinja_type_name(v));
        return jinja_find(j, container, v, 0) != SIZE_MAX;
    }
    if (container.kind == JINJA_BYTES) {
        if (jinja_is_integral(v))
            v = jinja_byte(j, v);
        if (v.kind != JINJA_BYTES)
            jinja_fail(j, "only bytes and numbers can be in bytes, not a %s", jinja_type_name(v));
        return jinja_find(j, container, v, 0) != SIZE_MAX;
    }
    if (container.kind == JINJA_SET && !jinja_hashable(v))
        jinja_fail(j, "a %s cannot be a member of a set", jinja_type_name(v));
    if (container.kind == JINJA_DICT)
        return jinja_dict_find(j, container.dict, v) != NULL;
    const struct jinja_list *list = jinja_iterate(j, container);
    for (size_t i = 0; i < list->n; i++)
        if (jinja_equal(j, list->items[i], v))
            return true;
    return false;
}

/* Whether the order of a and b satisfies op. A NaN satisfies none. */
static bool ordered(struct jinja *j, int op, struct jinja_value a, struct jinja_value b)
{
    if ((a.kind == JINJA_FLOAT && isnan(a.f)) || (b.kind == JINJA_FLOAT && isnan(b.f)))
        return false;
    jinja_require_defined(j, a);
    jinja_require_defined(j, b);
    if (jinja_is_set(a) && jinja_is_set(b))
        return jinja_sets_ordered(j, op, a, b);
    int order = jinja_compare(j, a, b);
    switch (op) {
    case JINJA_OP_LT: return order < 0;
    case JINJA_OP_LE: return order <= 0;
    case JINJA_OP_GT: return order > 0;
    default: return order >= 0;
    }
}

struct jinja_value jinja_operate(struct jinja *j, int op, struct jinja_value a, struct jinja_value b)
{
    switch (op) {
    case JINJA_OP_ADD: return add(j, a, b);
    case JINJA_OP_SUB: return subtract(j, a, b);
    case JINJA_OP_MUL: return multiply(j, a, b);
    case JINJA_OP_POW: return power(j, a, b);
    case JINJA_OP_MOD:
        if (a.kind == JINJA_STRING)
            return jinja_percent(j, a, b);
        if (a.kind == JINJA_BYTES)
            return jinja_bytes_percent(j, a, b);
        return divide(j, op, a, b);
    case JINJA_OP_DIV:
    case JINJA_OP_FLOORDIV: return divide(j, op, a, b);
    case JINJA_OP_EQ: return jinja_bool(jinja_equal(j, a, b));
    case JINJA_OP_NE: return jinja_bool(!jinja_equal(j, a, b));
    case JINJA_OP_IN: return jinja_bool(jinja_contains(j, b, a));
    case JINJA_OP_NOT_IN: return jinja_bool(!jinja_contains(j, b, a));
    default: return jinja_bool(ordered(j, op, a, b));
    }
}

/* --- sorting -------------------------------------------------------------------------------------------- */

static void merge(struct jinja *j, struct jinja_pair *a, size_t n_a, size_t n, struct jinja_pair *spare)
{
    memcpy(spare, a, n_a * sizeof *a);
    size_t left = 0, right = n_a, to = 0;
    while (left < n_a && right < n)
        a[to++] = jinja_compare(j, a[right].key, spare[left].key) < 0 ? a[right++] : spare[left++];
    while (left < n_a)
        a[to++] = spare[left++];
}

static void merge_sort(struct jinja *j, struct jinja_pair *a, size_t n, struct jinja_pair *spare)
{
    if (n < 2)
        return;
    merge_sort(j, a, n / 2, spare);
    merge_sort(j, a + n / 2, n - n / 2, spare);
    merge(j, a, n / 2, n, spare);
}

void jinja_sort_pairs(struct jinja *j, struct jinja_pair *pairs, size_t n)
{
    merge_sort(j, pairs, n, jinja_alloc(j, n * sizeof *pairs));
}
