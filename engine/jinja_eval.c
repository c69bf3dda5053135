#include "engine/jinja_eval.h"

#include <string.h>

#include "engine/jinja_ast.h"

struct variable {
    const struct jinja_name *name;
    struct jinja_value value;
};

/* Variables of a loop body, macro, block or of the template itself. Names are looked up outwards, then among the
 * variables given to the template, then among the globals. Assignments always go to the innermost scope. */
struct jinja_scope {
    struct jinja_scope *parent;
    struct variable *vars; // [n]
    size_t n, cap;
};

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

static struct jinja_value eval(struct jinja *j, struct jinja_scope *scope, const struct jinja_expr *e);
static enum flow run_body(struct jinja *j, struct jinja_scope *scope, const struct jinja_body *body);

/* --- variables ------------------------------------------------------------------------------------------ */

static struct jinja_scope *new_scope(struct jinja *j, struct jinja_scope *parent)
{
    struct jinja_scope *s = jinja_zalloc(j, sizeof *s);
    s->parent = parent;
    return s;
}

static void set_variable(struct jinja *j, struct jinja_scope *s, const struct jinja_name *name, struct jinja_value v)
{
    jinja_work(j, s->n);
    for (size_t i = 0; i < s->n; i++)
        if (s->vars[i].name == name) {
            s->vars[i].value = v;
            return;
        }
    s->vars = jinja_grow(j, s->vars, &s->cap, s->n + 1, sizeof *s->vars);
    s->vars[s->n++] = (struct variable){.name = name, .value = v};
}

static struct jinja_value get_variable(struct jinja *j, const struct jinja_scope *scope, const struct jinja_name *name)
{
    for (const struct jinja_scope *s = scope; s; s = s->parent) {
        jinja_work(j, s->n);
        for (size_t i = 0; i < s->n; i++)
            if (s->vars[i].name != name)
                continue;
            else if (s->vars[i].value.kind != JINJA_MISSING)
                return s->vars[i].value;
            else if (s != j->top || !j->in_block)
                return jinja_missing_variable(name->s, name->n);
    }
    if (name == j->root->self)
        return (struct jinja_value){.kind = JINJA_SELF};
    const struct jinja_value *v = jinja_dict_find(j, j->context, jinja_str(name->s, name->n));
    if (v)
        return *v;
    const struct jinja_builtin *global = jinja_find_global(name->s, name->n);
    if (global)
        return (struct jinja_value){.kind = JINJA_FUNCTION, .function = global};
    return jinja_missing_variable(name->s, name->n);
}

static void assign(struct jinja *j, struct jinja_scope *scope, const struct jinja_target *t, struct jinja_value v)
{
    if (t->kind == JINJA_T_NAME) {
        set_variable(j, scope, t->name, v);
        return;
    }
    if (t->kind == JINJA_T_MEMBER) {
        struct jinja_value space = get_variable(j, scope, t->name);
        jinja_require_defined(j, space);
        if (space.kind != JINJA_NAMESPACE)
            jinja_fail(j, "only attributes of a namespace can be set, not of a %s", jinja_type_name(space));
        jinja_dict_set(j, space.dict, jinja_str(t->member->s, t->member->n), v);
        return;
    }
    jinja_require_defined(j, v);
    const struct jinja_list *list = jinja_iterate(j, v);
    if (list->n != t->n)
        jinja_fail(j, "%zu values cannot be unpacked into %zu names", list->n, t->n);
    for (size_t i = 0; i < t->n; i++)
        assign(j, scope, t->items[i], list->items[i]);
}

/* --- calls ---------------------------------------------------------------------------------------------- */

struct argument_list {
    struct jinja_list pos;
    struct jinja_dict named;
};

static struct jinja_args as_args(const struct argument_list *a)
{
    return (struct jinja_args){.pos = a->pos.items, .n_pos = a->pos.n, .named = a->named.pairs, .n_named = a->named.n};
}

static void add_named(struct jinja *j, struct argument_list *a, struct jinja_value name, struct jinja_value value)
{
    if (name.kind != JINJA_STRING)
        jinja_fail(j, "the name of an argument is a %s", jinja_type_name(name));
    if (jinja_dict_find(j, &a->named, name))
        jinja_fail(j, "the argument '%.*s' is given twice", jinja_shown(name.s, name.n), name.s);
    jinja_dict_set(j, &a->named, name, value);
}

static void eval_arguments(struct jinja *j, struct jinja_scope *scope, const struct jinja_call *call,
                           struct argument_list *a)
{
    for (size_t i = 0; i < call->args.n; i++)
        jinja_push(j, &a->pos, eval(j, scope, call->args.items[i]));
    if (call->star) {
        const struct jinja_list *list = jinja_iterate(j, eval(j, scope, call->star));
        for (size_t i = 0; i < list->n; i++)
            jinja_push(j, &a->pos, list->items[i]);
    }
    for (size_t i = 0; i < call->n_keywords; i++) {
        const struct jinja_name *name = call->keywords[i].name;
        add_named(j, a, jinja_str(name->s, name->n), eval(j, scope, call->keywords[i].value));
    }
    if (call->star_star) {
        struct jinja_value v = eval(j, scope, call->star_star);
        if (v.kind != JINJA_DICT)
            jinja_fail(j, "** needs a dict, not a %s", jinja_type_name(v));
        for (size_t i = 0; i < v.dict->n; i++)
            add_named(j, a, v.dict->pairs[i].key, v.dict->pairs[i].value);
    }
}

static struct jinja_value capture(struct jinja *j, struct jinja_scope *scope, const struct jinja_body *body)
{
    struct jinja_text text = {0}, *outer = j->out;
    j->out = &text;
    run_body(j, scope, body);
    j->out = outer;
    return jinja_text_value(j, &text);
}

/* Marks the result of a macro, block or loop as HTML, if autoescape is on. */
static struct jinja_value marked(const struct jinja *j, struct jinja_value v)
{
    v.flag = j->autoescape;
    return v;
}

static bool escapes(const struct jinja *j, uint8_t how)
{
    return how == JINJA_ESCAPES || (how == JINJA_MAY_ESCAPE && j->autoescape);
}

struct jinja_value jinja_as_html(struct jinja *j, struct jinja_value v)
{
    v = jinja_to_string(j, v);
    return v.flag ? v : jinja_escape_html(j, v);
}

static bool is_param(const struct jinja_function *f, struct jinja_value name)
{
    for (size_t i = 0; i < f->n_params; i++)
        if (f->params[i]->n == name.n && memcmp(f->params[i]->s, name.s, name.n) == 0)
            return true;
    return false;
}

static const struct jinja_value *named_argument(const struct jinja_args *args, const struct jinja_name *name)
{
    for (size_t i = 0; i < args->n_named; i++)
        if (args->named[i].key.n == name->n && memcmp(args->named[i].key.s, name->s, name->n) == 0)
            return &args->named[i].value;
    return NULL;
}

/* A default may use parameters before its own, and later ones if they are given. */
static void bind_params(struct jinja *j, struct jinja_scope *scope, const struct jinja_function *f,
                        const struct jinja_args *args)
{
    for (size_t i = 0; i < f->n_params; i++) {
        jinja_work(j, args->n_named * 16);
        const struct jinja_value *named = named_argument(args, f->params[i]);
        if (i < args->n_pos && named)
            jinja_fail(j, "the macro '%.*s' gets an argument twice", jinja_shown(f->name->s, f->name->n), f->name->s);
        set_variable(j, scope, f->params[i], i < args->n_pos ? args->pos[i]
                                             : named         ? *named
                                                             : (struct jinja_value){.kind = JINJA_MISSING});
    }
    for (size_t i = args->n_pos; i < f->n_params; i++)
        if (f->defaults[i] && !named_argument(args, f->params[i]))
            set_variable(j, scope, f->params[i], eval(j, scope, f->defaults[i]));
}

/* Arguments that no parameter takes become varargs and kwargs, if the macro uses them. */
static void bind_rest(struct jinja *j, struct jinja_scope *scope, const struct jinja_function *f,
                      const struct jinja_args *args)
{
    const struct jinja_template *t = j->root;
    struct jinja_list *rest = jinja_list(j);
    for (size_t i = f->n_params; i < args->n_pos; i++)
        jinja_push(j, rest, args->pos[i]);
    struct jinja_dict *named = jinja_dict(j);
    struct jinja_value caller = jinja_missing_variable(t->caller->s, t->caller->n);
    for (size_t i = 0; i < args->n_named; i++) {
        jinja_work(j, f->n_params * 16);
        if (is_param(f, args->named[i].key))
            continue;
        if (f->uses_caller && jinja_equals_cstr(args->named[i].key, "caller"))
            caller = args->named[i].value;
        else
            jinja_dict_set(j, named, args->named[i].key, args->named[i].value);
    }
    if (rest->n && !f->uses_varargs)
        jinja_fail(j, "the macro '%.*s' takes not more than %zu arguments", jinja_shown(f->name->s, f->name->n),
                   f->name->s, f->n_params);
    if (named->n && !f->uses_kwargs)
        jinja_fail(j, "the macro '%.*s' takes no argument '%.*s'", jinja_shown(f->name->s, f->name->n), f->name->s,
                   jinja_shown(named->pairs[0].key.s, named->pairs[0].key.n), named->pairs[0].key.s);
    if (f->uses_varargs)
        set_variable(j, scope, t->varargs, jinja_wrap(JINJA_TUPLE, rest));
    if (f->uses_kwargs)
        set_variable(j, scope, t->kwargs, (struct jinja_value){.kind = JINJA_DICT, .dict = named});
    if (f->uses_caller && !is_param(f, jinja_str(t->caller->s, t->caller->n)))
        set_variable(j, scope, t->caller, caller);
}

struct jinja_value jinja_call_macro(struct jinja *j, const struct jinja_macro *macro, const struct jinja_args *args)
{
    struct jinja_scope *scope = new_scope(j, macro->closure);
    uint32_t line = j->line;
    jinja_enter(j);
    bind_params(j, scope, macro->function, args);
    bind_rest(j, scope, macro->function, args);
    struct jinja_value v = marked(j, capture(j, scope, &macro->function->body));
    jinja_leave(j);
    j->line = line;
    return v;
}

static struct jinja_value make_macro(struct jinja *j, struct jinja_scope *scope, const struct jinja_function *f)
{
    struct jinja_macro *m = jinja_alloc(j, sizeof *m);
    *m = (struct jinja_macro){.function = f, .closure = scope};
    return (struct jinja_value){.kind = JINJA_MACRO, .macro = m};
}

static struct jinja_value eval_call(struct jinja *j, struct jinja_scope *scope, const struct jinja_expr *e,
                                    const struct jinja_value *caller)
{
    struct argument_list list = {0};
    struct jinja_value callee = eval(j, scope, e->a);
    eval_arguments(j, scope, e->call, &list);
    if (caller)
        add_named(j, &list, jinja_cstr("caller"), *caller);
    struct jinja_args args = as_args(&list);
    j->line = e->line;
    return jinja_call(j, callee, &args);
}

/* --- expressions ---------------------------------------------------------------------------------------- */

static struct jinja_value eval_sequence(struct jinja *j, struct jinja_scope *scope, const struct jinja_expr *e)
{
    struct jinja_list *list = jinja_list(j);
    for (size_t i = 0; i < e->items.n; i++)
        jinja_push(j, list, eval(j, scope, e->items.items[i]));
    return jinja_wrap(e->kind == JINJA_X_LIST ? JINJA_LIST : JINJA_TUPLE, list);
}

static struct jinja_value eval_dict(struct jinja *j, struct jinja_scope *scope, const struct jinja_expr *e)
{
    struct jinja_dict *d = jinja_dict(j);
    for (size_t i = 0; i + 1 < e->items.n; i += 2) {
        struct jinja_value key = eval(j, scope, e->items.items[i]);
        jinja_dict_set(j, d, key, eval(j, scope, e->items.items[i + 1]));
    }
    return (struct jinja_value){.kind = JINJA_DICT, .dict = d};
}

/* Whether it is made of literals only. */
static bool is_literal(const struct jinja_expr *e)
{
    switch (e->kind) {
    case JINJA_X_CONST:
        return true;
    case JINJA_X_LIST:
    case JINJA_X_TUPLE:
    case JINJA_X_DICT:
        for (size_t i = 0; i < e->items.n; i++)
            if (!is_literal(e->items.items[i]))
                return false;
        return true;
    case JINJA_X_NEGATE:
    case JINJA_X_PLUS:
    case JINJA_X_NOT:
        return is_literal(e->a);
    default:
        return false;
    }
}

/* Slicing a literal that cannot be sliced gives undefined, as Jinja folds it before it runs a template. */
static struct jinja_value eval_slice(struct jinja *j, struct jinja_scope *scope, const struct jinja_expr *e)
{
    struct jinja_value v = eval(j, scope, e->a), bound[3];
    for (int i = 0; i < 3; i++)
        bound[i] = e->items.items[i] ? eval(j, scope, e->items.items[i]) : jinja_none();
    if (!jinja_can_slice(v, bound) && is_literal(e->a))
        return jinja_undefined();
    return jinja_slice(j, v, bound[0], bound[1], bound[2]);
}

/* If one part is marked as HTML, so is the whole, and the others are escaped. */
static struct jinja_value eval_html_concat(struct jinja *j, struct jinja_scope *scope, const struct jinja_expr *e)
{
    struct jinja_list *parts = jinja_list(j);
    struct jinja_text t = {0};
    bool html = false;
    for (size_t i = 0; i < e->items.n; i++) {
        const struct jinja_value v = eval(j, scope, e->items.items[i]);
        html |= v.kind == JINJA_STRING && v.flag;
        jinja_push(j, parts, v);
    }
    for (size_t i = 0; i < parts->n; i++)
        jinja_print(j, &t, html ? jinja_as_html(j, parts->items[i]) : parts->items[i]);
    struct jinja_value v = jinja_text_value(j, &t);
    v.flag = html;
    return v;
}

static struct jinja_value eval_concat(struct jinja *j, struct jinja_scope *scope, const struct jinja_expr *e)
{
    if (e->escapes == JINJA_ESCAPES) /* where autoescape is not known at parsing time Jinja does not mark it */
        return eval_html_concat(j, scope, e);
    struct jinja_value v = jinja_to_string(j, eval(j, scope, e->items.items[0]));
    for (size_t i = 1; i < e->items.n; i++)
        v = jinja_concat(j, v, jinja_to_string(j, eval(j, scope, e->items.items[i])));
    v.flag = 0;
    return v;
}

static struct jinja_value eval_comparison(struct jinja *j, struct jinja_scope *scope, const struct jinja_expr *e)
{
    struct jinja_value left = eval(j, scope, e->a);
    for (size_t i = 0; i < e->compare.operands.n; i++) {
        struct jinja_value right = eval(j, scope, e->compare.operands.items[i]);
        j->line = e->line;
        if (!jinja_operate(j, (int)e->compare.ops[i], left, right).b)
            return jinja_bool(false);
        left = right;
    }
    return jinja_bool(true);
}

static _Noreturn void unknown(struct jinja *j, const char *what, const struct jinja_name *name)
{
    jinja_fail(j, "there is no %s '%.*s'", what, jinja_shown(name->s, name->n), name->s);
}

/* operand: replaces the missing operand of the innermost filter of a chain; or NULL. */
static struct jinja_value eval_filter(struct jinja *j, struct jinja_scope *scope, const struct jinja_expr *e,
                                      const struct jinja_value *operand)
{
    struct argument_list list = {0};
    struct jinja_value self;
    if (operand && e->a) {
        jinja_enter(j);
        self = eval_filter(j, scope, e->a, operand);
        jinja_leave(j);
    } else {
        self = operand ? *operand : eval(j, scope, e->a);
    }
    eval_arguments(j, scope, e->call, &list);
    struct jinja_args args = as_args(&list);
    j->line = e->line;
    if (!e->function)
        unknown(j, "filter", e->function_name);
    return jinja_invoke(j, e->function, self, &args);
}

static struct jinja_value eval_test(struct jinja *j, struct jinja_scope *scope, const struct jinja_expr *e)
{
    struct argument_list list = {0};
    struct jinja_value self = eval(j, scope, e->a);
    eval_arguments(j, scope, e->call, &list);
    struct jinja_args args = as_args(&list);
    j->line = e->line;
    if (!e->function)
        unknown(j, "test", e->function_name);
    return jinja_invoke(j, e->function, self, &args);
}

static struct jinja_value eval_binary(struct jinja *j, struct jinja_scope *scope, const struct jinja_expr *e)
{
    struct jinja_value a = eval(j, scope, e->a), b = eval(j, scope, e->b);
    j->line = e->line;
    return jinja_operate(j, (int)e->op, a, b);
}

static struct jinja_value eval_node(struct jinja *j, struct jinja_scope *scope, const struct jinja_expr *e)
{
    struct jinja_value v;
    switch (e->kind) {
    case JINJA_X_CONST:
        return e->constant;
    case JINJA_X_NAME:
        return get_variable(j, scope, e->name);
    case JINJA_X_LIST:
    case JINJA_X_TUPLE:
        return eval_sequence(j, scope, e);
    case JINJA_X_DICT:
        return eval_dict(j, scope, e);
    case JINJA_X_ATTR:
        v = eval(j, scope, e->a);
        j->line = e->line;
        return jinja_attribute(j, v, jinja_str(e->name->s, e->name->n));
    case JINJA_X_ITEM:
        v = eval(j, scope, e->a);
        return jinja_item(j, v, eval(j, scope, e->b));
    case JINJA_X_SLICE:
        return eval_slice(j, scope, e);
    case JINJA_X_CALL:
        return eval_call(j, scope, e, NULL);
    case JINJA_X_FILTER:
        return eval_filter(j, scope, e, NULL);
    case JINJA_X_TEST:
        return eval_test(j, scope, e);
    case JINJA_X_NOT:
        return jinja_bool(!jinja_truth(eval(j, scope, e->a)));
    case JINJA_X_NEGATE:
        return jinja_negate(j, eval(j, scope, e->a));
    case JINJA_X_PLUS:
        return jinja_plus(j, eval(j, scope, e->a));
    case JINJA_X_AND:
        v = eval(j, scope, e->a);
        return jinja_truth(v) ? eval(j, scope, e->b) : v;
    case JINJA_X_OR:
        v = eval(j, scope, e->a);
        return jinja_truth(v) ? v : eval(j, scope, e->b);
    case JINJA_X_IF:
        if (jinja_truth(eval(j, scope, e->b)))
            return eval(j, scope, e->a);
        return e->c ? eval(j, scope, e->c) : jinja_undefined();
    case JINJA_X_CONCAT:
        return eval_concat(j, scope, e);
    case JINJA_X_COMPARE:
        return eval_comparison(j, scope, e);
    default:
        return eval_binary(j, scope, e);
    }
}

static struct jinja_value eval(struct jinja *j, struct jinja_scope *scope, const struct jinja_expr *e)
{
    j->line = e->line;
    jinja_work(j, 0);
    jinja_enter(j);
    struct jinja_value v = eval_node(j, scope, e);
    jinja_leave(j);
    return v;
}

struct jinja_value jinja_macro_attribute(struct jinja *j, struct jinja_value macro, struct jinja_value name)
{
    const struct jinja_function *f = macro.macro->function;
    if (jinja_equals_cstr(name, "name"))
        return f->name == j->root->caller ? jinja_none() : jinja_str(f->name->s, f->name->n);
    if (jinja_equals_cstr(name, "catch_varargs"))
        return jinja_bool(f->uses_varargs);
    if (jinja_equals_cstr(name, "catch_kwargs"))
        return jinja_bool(f->uses_kwargs);
    if (jinja_equals_cstr(name, "caller"))
        return jinja_bool(f->uses_caller);
    if (!jinja_equals_cstr(name, "arguments"))
        return jinja_missing_attribute(name);
    struct jinja_list *list = jinja_list(j);
    for (size_t i = 0; i < f->n_params; i++)
        jinja_push(j, list, jinja_str(f->params[i]->s, f->params[i]->n));
    return jinja_wrap(JINJA_TUPLE, list);
}

/* --- loops ---------------------------------------------------------------------------------------------- */

/* Advances through a loop's sequence until n items have passed its filter. Like Jinja only when they are needed, since
 * the filter may read what earlier iterations have set. */
static bool look_ahead(struct jinja *j, struct jinja_loop *loop, size_t n)
{
    const struct jinja_stmt *s = loop->statement;
    while (loop->kept && loop->kept->n < n && loop->seen < loop->all->n) {
        const struct jinja_value item = loop->all->items[loop->seen++];
        assign(j, loop->sieve, s->loop.target, item);
        if (jinja_truth(eval(j, loop->sieve, s->loop.filter)))
            jinja_push(j, loop->kept, item);
    }
    return loop->items->n >= n;
}

/* The body's scope is cleared at each iteration, so nothing set in one is seen in the next. As in Jinja, the else part
 * runs if no iteration reached its end, whether there was none or break or continue ended each. */
static enum flow run_loop(struct jinja *j, struct jinja_scope *scope, const struct jinja_stmt *s,
                          struct jinja_value iterable, size_t depth)
{
    const struct jinja_list *all = jinja_iterate(j, iterable);
    struct jinja_loop *loop = jinja_zalloc(j, sizeof *loop);
    struct jinja_scope *inner = new_scope(j, scope);
    bool completed = false;
    *loop = (struct jinja_loop){.items = all, .depth = depth, .statement = s, .outer = scope};
    if (s->loop.filter) {
        loop->all = all;
        loop->items = loop->kept = jinja_list(j);
        loop->sieve = new_scope(j, scope);
    }
    for (; look_ahead(j, loop, loop->at + 1); loop->at++) {
        inner->n = 0; /* set_variable() counts the iteration as work, even if the body is empty */
        set_variable(j, inner, j->root->loop, (struct jinja_value){.kind = JINJA_LOOP, .loop = loop});
        assign(j, inner, s->loop.target, loop->items->items[loop->at]);
        enum flow flow = run_body(j, inner, &s->loop.body);
        completed |= flow == FLOW_ON;
        if (flow == FLOW_BREAK)
            break;
    }
    return completed ? FLOW_ON : run_body(j, new_scope(j, scope), &s->loop.otherwise);
}

struct jinja_value jinja_call_loop(struct jinja *j, const struct jinja_loop *loop, const struct jinja_args *args)
{
    if (!loop->statement->loop.recursive)
        jinja_fail(j, "loop() works in a loop with 'recursive' only");
    if (args->n_pos != 1 || args->n_named)
        jinja_fail(j, "loop() takes one argument");
    struct jinja_text text = {0}, *outer = j->out;
    j->out = &text;
    jinja_enter(j);
    run_loop(j, loop->outer, loop->statement, args->pos[0], loop->depth + 1);
    jinja_leave(j);
    j->out = outer;
    return marked(j, jinja_text_value(j, &text));
}

/* Members of loop that count from the end, which need the whole sequence. */
static bool counted_from_end(struct jinja *j, struct jinja_loop *loop, struct jinja_value name, int64_t *value)
{
    const bool length = jinja_equals_cstr(name, "length"), last_is_0 = jinja_equals_cstr(name, "revindex0");
    if (!length && !last_is_0 && !jinja_equals_cstr(name, "revindex"))
        return false;
    look_ahead(j, loop, SIZE_MAX);
    *value = (int64_t)loop->items->n - (length ? 0 : (int64_t)loop->at + last_is_0);
    return true;
}

struct jinja_value jinja_loop_attribute(struct jinja *j, struct jinja_value v, struct jinja_value name)
{
    struct jinja_loop *loop = v.loop;
    const int64_t at = (int64_t)loop->at;
    int64_t value;
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {{"index", at + 1}, {"index0", at}, {"depth", (int64_t)loop->depth},
                   {"depth0", (int64_t)loop->depth - 1}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (jinja_equals_cstr(name, numbers[i].name))
            return jinja_int(numbers[i].value);
    if (counted_from_end(j, loop, name, &value))
        return jinja_int(value);
    if (jinja_equals_cstr(name, "first"))
        return jinja_bool(at == 0);
    if (jinja_equals_cstr(name, "last"))
        return jinja_bool(!look_ahead(j, loop, loop->at + 2));
    if (jinja_equals_cstr(name, "previtem"))
        return at > 0 && loop->at <= loop->items->n ? loop->items->items[at - 1] : jinja_missing_attribute(name);
    if (jinja_equals_cstr(name, "nextitem"))
        return look_ahead(j, loop, loop->at + 2) ? loop->items->items[at + 1] : jinja_missing_attribute(name);
    return jinja_missing_attribute(name);
}

/* --- statements ----------------------------------------------------------------------------------------- */

/* If break or continue leaves the body, its output is lost. */
static enum flow run_set_block(struct jinja *j, struct jinja_scope *scope, const struct jinja_stmt *s)
{
    struct jinja_text text = {0}, *outer = j->out;
    j->out = &text;
    const enum flow flow = run_body(j, new_scope(j, scope), &s->set.body);
    j->out = outer;
    if (flow != FLOW_ON)
        return flow;
    struct jinja_value v = jinja_text_value(j, &text);
    v.flag = escapes(j, s->escapes);
    if (s->set.filter)
        v = eval_filter(j, scope, s->set.filter, &v);
    if (s->kind == JINJA_S_SET_BLOCK)
        assign(j, scope, s->set.target, v);
    else if (v.kind == JINJA_STRING)
        jinja_print(j, j->out, v);
    else
        jinja_fail(j, "what a filter block prints is a string, not a %s", jinja_type_name(v));
    return FLOW_ON;
}

/* The body of a generation tag is like that of a call block, called at once. */
static void run_scope(struct jinja *j, struct jinja_scope *scope, const struct jinja_stmt *s)
{
    const struct jinja_macro body = {.function = s->macro.function, .closure = scope};
    jinja_print(j, j->out, jinja_call_macro(j, &body, &(struct jinja_args){0}));
}

static void run_call(struct jinja *j, struct jinja_scope *scope, const struct jinja_stmt *s)
{
    struct jinja_value caller = make_macro(j, scope, s->macro.function);
    jinja_print(j, j->out, eval_call(j, scope, s->macro.call, &caller));
}

static enum flow run_with(struct jinja *j, struct jinja_scope *scope, const struct jinja_stmt *s)
{
    struct jinja_scope *inner = new_scope(j, scope);
    for (size_t i = 0; i < s->with.values.n; i++)
        assign(j, inner, s->with.targets[i], eval(j, scope, s->with.values.items[i]));
    return run_body(j, inner, &s->with.body);
}

/* A block sees what the template itself has set, and if it is scoped also what is set around it. */
static void run_block(struct jinja *j, struct jinja_scope *around, const struct jinja_stmt *s)
{
    if (s->block.required)
        jinja_fail(j, "the block '%.*s' is required, and only another template could fill it",
                   jinja_shown(s->block.name->s, s->block.name->n), s->block.name->s);
    const bool outer = j->in_block;
    j->in_block = true;
    run_body(j, new_scope(j, around), &s->block.body);
    j->in_block = outer;
}

struct jinja_value jinja_call_block(struct jinja *j, const struct jinja_stmt *block)
{
    struct jinja_text text = {0}, *outer = j->out;
    const uint32_t line = j->line;
    jinja_enter(j);
    j->out = &text;
    run_block(j, j->top, block);
    j->out = outer;
    jinja_leave(j);
    j->line = line;
    return marked(j, jinja_text_value(j, &text));
}

struct jinja_value jinja_self_attribute(struct jinja *j, struct jinja_value name)
{
    for (const struct jinja_stmt *b = j->root->blocks; b; b = b->block.earlier) {
        jinja_work(j, 0);
        if (b->block.name->n == name.n && memcmp(b->block.name->s, name.s, name.n) == 0)
            return (struct jinja_value){.kind = JINJA_BLOCK, .block = b};
    }
    return jinja_missing_attribute(name);
}

static enum flow run_escaped(struct jinja *j, struct jinja_scope *scope, const struct jinja_stmt *s)
{
    const bool before = j->autoescape;
    j->autoescape = jinja_truth(eval(j, scope, s->escape.condition));
    const enum flow flow = run_body(j, new_scope(j, scope), &s->escape.body);
    j->autoescape = before;
    return flow;
}

/* If the name of the template is an empty list, "ignore missing" applies: there is nothing to load from. */
static void run_load(struct jinja *j, struct jinja_scope *scope, const struct jinja_stmt *s)
{
    const struct jinja_value source = eval(j, scope, s->load.source);
    const bool none = source.kind != JINJA_STRING && source.kind != JINJA_UNDEFINED && !jinja_truth(source);
    if (s->load.ignore_missing && none)
        return;
    jinja_fail(j, "the template uses another template (extends, include or import), which chat templates cannot do");
}

static enum flow run_statement(struct jinja *j, struct jinja_scope *scope, const struct jinja_stmt *s)
{
    struct jinja_value v;
    switch (s->kind) {
    case JINJA_S_TEXT:
        jinja_add(j, j->out, s->text, s->n);
        return FLOW_ON;
    case JINJA_S_PRINT:
        v = eval(j, scope, s->value);
        jinja_print(j, j->out, escapes(j, s->escapes) ? jinja_as_html(j, v) : v);
        return FLOW_ON;
    case JINJA_S_IF:
        if (jinja_truth(eval(j, scope, s->branch.condition)))
            return run_body(j, scope, &s->branch.then);
        return run_body(j, scope, &s->branch.otherwise);
    case JINJA_S_FOR:
        return run_loop(j, scope, s, eval(j, scope, s->loop.iterable), 1);
    case JINJA_S_BREAK:
        return FLOW_BREAK;
    case JINJA_S_CONTINUE:
        return FLOW_CONTINUE;
    case JINJA_S_SET:
        assign(j, scope, s->set.target, eval(j, scope, s->set.value));
        return FLOW_ON;
    case JINJA_S_SET_BLOCK:
    case JINJA_S_FILTER:
        return run_set_block(j, scope, s);
    case JINJA_S_MACRO:
        set_variable(j, scope, s->macro.function->name, make_macro(j, scope, s->macro.function));
        return FLOW_ON;
    case JINJA_S_CALL:
        run_call(j, scope, s);
        return FLOW_ON;
    case JINJA_S_WITH:
        return run_with(j, scope, s);
    case JINJA_S_BLOCK:
        run_block(j, s->block.scoped ? scope : j->top, s);
        return FLOW_ON;
    case JINJA_S_AUTOESCAPE:
        return run_escaped(j, scope, s);
    case JINJA_S_LOAD:
        run_load(j, scope, s);
        return FLOW_ON;
    default:
        run_scope(j, scope, s);
        return FLOW_ON;
    }
}

static enum flow run_body(struct jinja *j, struct jinja_scope *scope, const struct jinja_body *body)
{
    enum flow flow = FLOW_ON;
    jinja_enter(j);
    for (size_t i = 0; i < body->n_hidden; i++)
        set_variable(j, scope, body->hidden[i], (struct jinja_value){.kind = JINJA_MISSING});
    for (const struct jinja_stmt *s = body->first; s && flow == FLOW_ON; s = s->next) {
        j->line = s->line;
        jinja_work(j, 0);
        flow = run_statement(j, scope, s);
    }
    jinja_leave(j);
    return flow;
}

void jinja_run(struct jinja *j, const struct jinja_template *t)
{
    j->root = t;
    j->top = new_scope(j, NULL);
    run_body(j, j->top, &t->body);
}
