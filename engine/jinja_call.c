/* jinja_call.c - calling: builtins with their parameters, macros, bound methods; and the global functions. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "engine/jinja_ast.h"
#include "engine/jinja_eval.h"

enum { MAX_PARAMS = 6 };

const struct jinja_builtin *jinja_find_builtin(const struct jinja_builtin *table, const char *name, size_t n)
{
    for (; table->name; table++)
        if (strlen(table->name) == n && memcmp(table->name, name, n) == 0)
            return table;
    return NULL;
}

/* Position of a name in a list with single spaces between, or -1. */
static int param_index(const char *params, struct jinja_value name)
{
    for (int i = 0; *params; i++) {
        size_t n = strcspn(params, " ");
        if (n == name.n && memcmp(params, name.s, n) == 0)
            return i;
        params += n + (params[n] == ' ');
    }
    return -1;
}

static size_t count_params(const char *params)
{
    size_t n = *params != 0;
    for (; *params; params++)
        n += *params == ' ';
    return n;
}

static struct jinja_value escaped(struct jinja *j, struct jinja_value v)
{
    return v.kind == JINJA_STRING ? jinja_as_html(j, v) : v;
}

/* Marks the builtin's result for a text that is marked as HTML. */
static struct jinja_value marked(struct jinja *j, struct jinja_value v)
{
    if (v.kind == JINJA_STRING)
        v.flag = 1;
    else if (v.kind == JINJA_LIST || v.kind == JINJA_TUPLE)
        for (size_t i = 0; i < v.list->n; i++)
            v.list->items[i] = marked(j, v.list->items[i]);
    return v;
}

/* Escapes arguments that are combined with such a text. */
static struct jinja_args all_escaped(struct jinja *j, const struct jinja_args *args)
{
    struct jinja_value *pos = jinja_alloc(j, (args->n_pos + 1) * sizeof *pos);
    struct jinja_pair *named = jinja_alloc(j, (args->n_named + 1) * sizeof *named);
    for (size_t i = 0; i < args->n_pos; i++)
        pos[i] = escaped(j, args->pos[i]);
    for (size_t i = 0; i < args->n_named; i++)
        named[i] = (struct jinja_pair){args->named[i].key, escaped(j, args->named[i].value)};
    return (struct jinja_args){.pos = pos, .n_pos = args->n_pos, .named = named, .n_named = args->n_named};
}

struct jinja_value jinja_invoke(struct jinja *j, const struct jinja_builtin *b, struct jinja_value self,
                                const struct jinja_args *args)
{
    struct jinja_value arg[MAX_PARAMS] = {{0}};
    const int marks = b->required & JINJA_MARKS, required = b->required & ~JINJA_MARKS;
    const bool keeps = marks && self.kind == JINJA_STRING && self.flag;
    struct jinja_args safe;
    if (keeps && marks == JINJA_KEEPS_ESCAPES_ALL) {
        safe = all_escaped(j, args);
        args = &safe;
    }
    if (!b->params) {
        const struct jinja_value made = b->fn(j, self, NULL, args);
        return keeps ? marked(j, made) : made;
    }
    if (args->n_pos > count_params(b->params))
        jinja_fail(j, "%s takes not more than %zu arguments", b->name, count_params(b->params));
    for (size_t i = 0; i < args->n_pos; i++)
        arg[i] = args->pos[i];
    for (size_t i = 0; i < args->n_named; i++) {
        struct jinja_value name = args->named[i].key;
        int at = param_index(b->params, name);
        if (at < 0 || jinja_given(arg[at]))
            jinja_fail(j, "%s: the argument '%.*s' is %s", b->name, jinja_shown(name.s, name.n), name.s,
                       at < 0 ? "unknown" : "given twice");
        arg[at] = args->named[i].value;
    }
    for (int i = 0; i < required; i++)
        if (!jinja_given(arg[i]))
            jinja_fail(j, "%s needs %d arguments", b->name, required);
    if (keeps && marks == JINJA_KEEPS_ESCAPES_SECOND)
        arg[1] = escaped(j, arg[1]);
    const struct jinja_value made = b->fn(j, self, arg, args);
    return keeps ? marked(j, made) : made;
}

bool jinja_callable(struct jinja_value v)
{
    return v.kind == JINJA_FUNCTION || v.kind == JINJA_METHOD || v.kind == JINJA_MACRO || v.kind == JINJA_LOOP ||
           v.kind == JINJA_JOINER || v.kind == JINJA_BLOCK;
}

static struct jinja_value call_joiner(struct jinja_cycler *joiner)
{
    return joiner->at++ ? joiner->items->items[0] : jinja_str("", 0);
}

struct jinja_value jinja_call(struct jinja *j, struct jinja_value callee, const struct jinja_args *args)
{
    static const struct jinja_value nothing;
    switch (callee.kind) {
    case JINJA_FUNCTION:
        return jinja_invoke(j, callee.function, nothing, args);
    case JINJA_METHOD:
        return jinja_invoke(j, callee.method->builtin, callee.method->self, args);
    case JINJA_MACRO:
        return jinja_call_macro(j, callee.macro, args);
    case JINJA_LOOP:
        return jinja_call_loop(j, callee.loop, args);
    case JINJA_JOINER:
        if (args->n_pos || args->n_named)
            jinja_fail(j, "a joiner takes no arguments");
        return call_joiner(callee.cycler);
    case JINJA_BLOCK:
        if (args->n_pos || args->n_named)
            jinja_fail(j, "a block takes no arguments");
        return jinja_call_block(j, callee.block);
    default:
        jinja_require_defined(j, callee);
        jinja_fail(j, "a value of type %s cannot be called", jinja_type_name(callee));
    }
}

int64_t jinja_arg_int(struct jinja *j, struct jinja_value v, int64_t otherwise)
{
    if (!jinja_given(v))
        return otherwise;
    jinja_require_defined(j, v);
    if (!jinja_is_integral(v))
        jinja_fail(j, "an integer is needed, not a %s", jinja_type_name(v));
    return jinja_as_int(v);
}

struct jinja_value jinja_arg_str(struct jinja *j, struct jinja_value v, const char *otherwise)
{
    if (!jinja_given(v))
        return jinja_cstr(otherwise);
    jinja_require_defined(j, v);
    if (v.kind != JINJA_STRING)
        jinja_fail(j, "a string is needed, not a %s", jinja_type_name(v));
    return v;
}

/* --- globals -------------------------------------------------------------------------------------------- */

static const char *range_name(struct jinja *j, int64_t from, int64_t to, int64_t step)
{
    char s[96];
    int n = step == 1 ? snprintf(s, sizeof s, "range(%lld, %lld)", (long long)from, (long long)to)
                      : snprintf(s, sizeof s, "range(%lld, %lld, %lld)", (long long)from, (long long)to,
                                 (long long)step);
    return jinja_copy(j, s, (size_t)n + 1).s;
}

struct jinja_value jinja_range_attribute(struct jinja_value range, struct jinja_value name)
{
    static const char *const names[] = {"start", "stop", "step"};
    long long at[] = {0, 0, 1};
    sscanf(range.list->name, "range(%lld, %lld, %lld)", &at[0], &at[1], &at[2]); /* range_name() writes it like this */
    for (int i = 0; i < 3; i++)
        if (jinja_equals_cstr(name, names[i]))
            return jinja_int(at[i]);
    return jinja_missing_attribute(name);
}

const char *jinja_range_part(struct jinja *j, const char *whole, int64_t from, int64_t to, int64_t step)
{
    long long begin = 0, end = 0, every = 1;
    sscanf(whole, "range(%lld, %lld, %lld)", &begin, &end, &every); /* range_name() writes it like this */
    int64_t first, last, each;
    if (__builtin_add_overflow((__int128)every * from, begin, &first) ||
        __builtin_add_overflow((__int128)every * to, begin, &last) || __builtin_mul_overflow(every, step, &each))
        jinja_fail(j, "the slice of %s would have a start, an end or a step of more than 64 bits", whole);
    return range_name(j, first, last, each);
}

/* The numbers 0 to n - 1 in order, or n - 1 down to 0 at the end of the list. Ranges are never changed, so those that a
 * template makes for each message, as Gemma 4's does, can share one list. */
static struct jinja_value *counted(struct jinja *j, size_t n, bool down)
{
    struct jinja_list *list = &j->counted[down];
    if (n > list->n) {
        size_t cap = list->n ? list->n : 64;
        while (cap < n)
            cap *= 2;
        list->items = jinja_alloc(j, cap * sizeof *list->items);
        for (size_t i = 0; i < cap; i++)
            list->items[i] = jinja_int((int64_t)(down ? cap - 1 - i : i));
        list->n = cap;
    }
    return down ? list->items + (list->n - n) : list->items;
}

/* Makes a range without negative numbers whose step is 1 or -1 from the shared list. False: it is another. */
static bool share_range(struct jinja *j, int64_t from, int64_t to, int64_t step, struct jinja_list *list)
{
    if (step == 1 && from >= 0 && to > from && to <= JINJA_MAX_RANGE) {
        list->items = counted(j, (size_t)to, false) + from;
        list->n = (size_t)(to - from);
    } else if (step == -1 && from > to && to >= -1 && from < JINJA_MAX_RANGE) {
        list->items = counted(j, (size_t)from + 1, true);
        list->n = (size_t)(from - to);
    }
    return list->n > 0;
}

static struct jinja_value global_range(struct jinja *j, struct jinja_value self, const struct jinja_value *arg,
                                       const struct jinja_args *args)
{
    (void)self, (void)args;
    bool one = !jinja_given(arg[1]);
    int64_t from = one ? 0 : jinja_arg_int(j, arg[0], 0), to = jinja_arg_int(j, arg[!one], 0);
    int64_t step = jinja_arg_int(j, arg[2], 1);
    struct jinja_list *list = jinja_list(j);
    if (step == 0)
        jinja_fail(j, "the step of range() is 0");
    list->name = range_name(j, from, to, step);
    const bool shared = share_range(j, from, to, step, list);
    for (int64_t i = from; !shared && (step > 0 ? i < to : i > to);) {
        if (list->n == JINJA_MAX_RANGE)
            jinja_fail(j, "range() may have at most %d numbers", JINJA_MAX_RANGE);
        jinja_push(j, list, jinja_int(i));
        if (__builtin_add_overflow(i, step, &i))
            break;
    }
    jinja_work(j, list->n * 16);
    return jinja_wrap(JINJA_RANGE, list);
}

/* dict(pairs or dict, name=value, ...) into a new dict. */
static struct jinja_dict *dict_of(struct jinja *j, const struct jinja_args *args)
{
    struct jinja_dict *d = jinja_dict(j);
    if (args->n_pos > 1)
        jinja_fail(j, "not more than one argument without a name");
    if (args->n_pos && args->pos[0].kind == JINJA_DICT) {
        const struct jinja_dict *from = args->pos[0].dict;
        for (size_t i = 0; i < from->n; i++)
            jinja_dict_set(j, d, from->pairs[i].key, from->pairs[i].value);
    } else if (args->n_pos) {
        jinja_require_defined(j, args->pos[0]);
        const struct jinja_list *list = jinja_iterate(j, args->pos[0]);
        for (size_t i = 0; i < list->n; i++) {
            const struct jinja_list *pair = jinja_iterate(j, list->items[i]);
            if (pair->n != 2)
                jinja_fail(j, "a dict is made of pairs");
            jinja_dict_set(j, d, pair->items[0], pair->items[1]);
        }
    }
    for (size_t i = 0; i < args->n_named; i++)
        jinja_dict_set(j, d, args->named[i].key, args->named[i].value);
    return d;
}

static struct jinja_value global_dict(struct jinja *j, struct jinja_value self, const struct jinja_value *arg,
                                      const struct jinja_args *args)
{
    (void)self, (void)arg;
    return (struct jinja_value){.kind = JINJA_DICT, .dict = dict_of(j, args)};
}

static struct jinja_value global_namespace(struct jinja *j, struct jinja_value self, const struct jinja_value *arg,
                                           const struct jinja_args *args)
{
    (void)self, (void)arg;
    return (struct jinja_value){.kind = JINJA_NAMESPACE, .dict = dict_of(j, args)};
}

static struct jinja_value new_cycler(struct jinja *j, enum jinja_kind kind, const struct jinja_value *items, size_t n)
{
    struct jinja_cycler *c = jinja_zalloc(j, sizeof *c);
    c->items = jinja_list(j);
    for (size_t i = 0; i < n; i++)
        jinja_push(j, c->items, items[i]);
    return (struct jinja_value){.kind = (uint8_t)kind, .cycler = c};
}

static struct jinja_value global_cycler(struct jinja *j, struct jinja_value self, const struct jinja_value *arg,
                                        const struct jinja_args *args)
{
    (void)self, (void)arg;
    if (args->n_pos == 0 || args->n_named)
        jinja_fail(j, "cycler() takes at least one item, and none with a name");
    return new_cycler(j, JINJA_CYCLER, args->pos, args->n_pos);
}

static struct jinja_value global_joiner(struct jinja *j, struct jinja_value self, const struct jinja_value *arg,
                                        const struct jinja_args *args)
{
    (void)self, (void)args;
    struct jinja_value sep = jinja_given(arg[0]) ? arg[0] : jinja_cstr(", ");
    return new_cycler(j, JINJA_JOINER, &sep, 1);
}

/* --- filler text ----------------------------------------------------------------------------------------- */

/* A number in [from, to); the same at each rendering, like the choices of random. */
static int64_t some_number(struct jinja *j, int64_t from, int64_t to)
{
    j->random = j->random * 1664525u + 1013904223u;
    return from + (int64_t)((uint64_t)j->random * (uint64_t)(to - from) >> 32);
}

/* Adds words in sentences, with a comma after every few words, and a point after some more. */
static void add_paragraph(struct jinja *j, struct jinja_text *t, int64_t n)
{
    static const char *const words[] = {
        "lorem", "ipsum", "dolor", "sit", "amet", "consectetur", "adipiscing", "elit", "sed", "do", "eiusmod",
        "tempor", "incididunt", "ut", "labore", "et", "dolore", "magna", "aliqua",
    };
    enum { N_WORDS = sizeof words / sizeof *words };
    int64_t last = -1, comma = 0, point = 0;
    bool begins = true;
    for (int64_t i = 0; i < n; i++) {
        int64_t w = some_number(j, 0, N_WORDS);
        w = w == last ? (w + 1) % N_WORDS : w;
        last = w;
        jinja_work(j, 16);
        jinja_add_str(j, t, i ? " " : "");
        jinja_add_char(j, t, begins ? (char)(words[w][0] - 'a' + 'A') : words[w][0]);
        jinja_add_str(j, t, words[w] + 1);
        begins = i - some_number(j, 10, 20) > point;
        if (!begins && i + 1 < n && i - some_number(j, 3, 8) > comma) {
            comma = i;
            point += 2;
            jinja_add_char(j, t, ',');
        } else if (begins || i + 1 == n) {
            comma = point = i;
            jinja_add_char(j, t, '.');
        }
    }
}

static struct jinja_value global_lipsum(struct jinja *j, struct jinja_value self, const struct jinja_value *arg,
                                        const struct jinja_args *args)
{
    (void)self, (void)args;
    const int64_t n = jinja_arg_int(j, arg[0], 5), most = jinja_arg_int(j, arg[3], 100);
    const int64_t least = jinja_arg_int(j, arg[2], 20);
    const bool html = !jinja_given(arg[1]) || jinja_truth(arg[1]);
    struct jinja_text t = {0};
    if (n > 0 && (least >= most || least < 0 || most > JINJA_MAX_RANGE))
        jinja_fail(j, "lipsum: words from min to max, and not more than %d of them", JINJA_MAX_RANGE);
    for (int64_t i = 0; i < n; i++) {
        jinja_work(j, 16);
        jinja_add_str(j, &t, !i ? "" : html ? "\n" : "\n\n");
        jinja_add_str(j, &t, html ? "<p>" : "");
        add_paragraph(j, &t, some_number(j, least, most));
        jinja_add_str(j, &t, html ? "</p>" : "");
    }
    struct jinja_value v = jinja_text_value(j, &t);
    v.flag = html;
    return v;
}

static struct jinja_value global_raise(struct jinja *j, struct jinja_value self, const struct jinja_value *arg,
                                       const struct jinja_args *args)
{
    (void)self, (void)args;
    struct jinja_value message = jinja_to_string(j, arg[0]);
    jinja_fail(j, "%.*s", jinja_shown(message.s, message.n), message.s);
}

/* Applies Python's rules for a time without zone to a strftime format, before the C library sees it: the zone has no
 * name and no offset, and there are no microseconds. */
static void add_time_format(struct jinja *j, struct jinja_value text, struct jinja_text *out)
{
    for (size_t i = 0; i < text.n; i++) {
        const char next = i + 1 < text.n ? text.s[i + 1] : 0;
        const bool percent = text.s[i] == '%';
        if (percent && next == 'f')
            jinja_add(j, out, "000000", 6);
        else if (!percent || (next != 'z' && next != 'Z'))
            jinja_add(j, out, text.s + i, percent && next ? 2 : 1);
        i += percent && next;
    }
}

static struct jinja_value global_strftime_now(struct jinja *j, struct jinja_value self, const struct jinja_value *arg,
                                              const struct jinja_args *args)
{
    (void)self, (void)args;
    char out[1024];
    struct jinja_text format = {0};
    struct tm tm;
    time_t now = (time_t)j->now;
    add_time_format(j, jinja_arg_str(j, arg[0], ""), &format);
    jinja_add(j, &format, "|", 2); /* with its NUL; otherwise an empty result would look like a failure */
    if (!gmtime_r(&now, &tm))
        jinja_fail(j, "the time is out of range");
    size_t n = strftime(out, sizeof out, format.p, &tm);
    if (n == 0)
        jinja_fail(j, "strftime_now: the result is too long");
    return jinja_copy(j, out, n - 1);
}

const struct jinja_builtin *jinja_find_global(const char *name, size_t n)
{
    static const struct jinja_builtin globals[] = {
        {"range", global_range, "start stop step", 1},
        {"dict", global_dict, NULL, 0},
        {"namespace", global_namespace, NULL, 0},
        {"cycler", global_cycler, NULL, 0},
        {"joiner", global_joiner, "sep", 0},
        {"lipsum", global_lipsum, "n html min max", 0},
        {"raise_exception", global_raise, "message", 1},
        {"strftime_now", global_strftime_now, "format", 1},
        {NULL, NULL, NULL, 0},
    };
    return jinja_find_builtin(globals, name, n);
}
