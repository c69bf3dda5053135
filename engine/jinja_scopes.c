/* jinja_scopes.c - which variables a body hides before it sets them, by the rules of Jinja's compiler (its
 * idtracking.py).
 *
 * A body with variables of its own (a loop's, a macro's, the template's) resolves each name once. If it is read first,
 * it is looked up around the body and then among the variables given to the template. If it is set first, and no
 * surrounding body uses it, it belongs to the body alone and is undefined until it is set, whatever the template was
 * given: with n = 7, {% for i in a %}{{ n }}{% endfor %}{% set n = 1 %} prints nothing, since a loop's body is
 * separate. A name that is set only in a branch of an if hides nothing. */
#include "engine/jinja_ast.h"
#include "engine/jinja_eval.h"

/* The names that a body uses; they are bound while it is processed. */
struct frame {
    struct jinja *j;
    const struct jinja_template *template;
    struct jinja_body *body; /* the body that hides names */
    struct jinja_name **bound; // [n]
    size_t n, cap;
};

static void statements(struct frame *f, const struct jinja_body *b, bool in_branch);

static bool bind(struct frame *f, const struct jinja_name *name)
{
    size_t bucket;
    struct jinja_name *found = jinja_name_find(f->template->names, name->s, name->n, &bucket);
    if (found->is_bound)
        return false;
    found->is_bound = true;
    f->bound = jinja_grow(f->j, f->bound, &f->cap, f->n + 1, sizeof(struct jinja_name *));
    f->bound[f->n++] = found;
    return true;
}

static void set_name(struct frame *f, const struct jinja_name *name, bool in_branch)
{
    struct jinja_body *b = f->body;
    if (!bind(f, name) || in_branch)
        return;
    b->hidden = jinja_grow(f->j, b->hidden, &b->hidden_cap, b->n_hidden + 1, sizeof(struct jinja_name *));
    b->hidden[b->n_hidden++] = name;
}

/* --- what is read --------------------------------------------------------------------------------------- */

static void reads(struct frame *f, const struct jinja_expr *e);

static void read_all(struct frame *f, const struct jinja_exprs *list)
{
    for (size_t i = 0; i < list->n; i++)
        reads(f, list->items[i]);
}

static void read_call(struct frame *f, const struct jinja_call *c)
{
    if (!c)
        return;
    read_all(f, &c->args);
    for (size_t i = 0; i < c->n_keywords; i++)
        reads(f, c->keywords[i].value);
    reads(f, c->star);
    reads(f, c->star_star);
}

/* Long chains of operators nest on the left. */
static void reads(struct frame *f, const struct jinja_expr *e)
{
    for (; e; e = e->a) {
        switch ((enum jinja_expr_kind)e->kind) {
        case JINJA_X_CONST:
            return;
        case JINJA_X_NAME:
            bind(f, e->name);
            return;
        case JINJA_X_LIST:
        case JINJA_X_TUPLE:
        case JINJA_X_DICT:
        case JINJA_X_CONCAT:
            read_all(f, &e->items);
            return;
        case JINJA_X_SLICE:
            read_all(f, &e->items);
            break;
        case JINJA_X_CALL:
        case JINJA_X_FILTER:
        case JINJA_X_TEST:
            read_call(f, e->call);
            break;
        case JINJA_X_IF:
            reads(f, e->b);
            reads(f, e->c);
            break;
        case JINJA_X_COMPARE:
            read_all(f, &e->compare.operands);
            break;
        case JINJA_X_ITEM:
        case JINJA_X_AND:
        case JINJA_X_OR:
        case JINJA_X_BINARY:
            reads(f, e->b);
            break;
        case JINJA_X_NOT:
        case JINJA_X_ATTR:
        case JINJA_X_NEGATE:
        case JINJA_X_PLUS:
            break;
        }
    }
}

/* --- one body ------------------------------------------------------------------------------------------- */

static void set_target(struct frame *f, const struct jinja_target *t, bool in_branch)
{
    if (t->kind == JINJA_T_NAME)
        set_name(f, t->name, in_branch);
    else if (t->kind == JINJA_T_MEMBER)
        bind(f, t->name);
    for (size_t i = 0; t->kind == JINJA_T_TUPLE && i < t->n; i++)
        set_target(f, t->items[i], in_branch);
}

/* Targets of a loop or with are set from the beginning. */
static void bind_target(struct frame *f, const struct jinja_target *t)
{
    if (t->kind == JINJA_T_NAME)
        bind(f, t->name);
    for (size_t i = 0; t->kind == JINJA_T_TUPLE && i < t->n; i++)
        bind_target(f, t->items[i]);
}

/* An elif is nested in the else part of the one before it; there may be any number of them. */
static void branches(struct frame *f, const struct jinja_stmt *s)
{
    for (;;) {
        reads(f, s->branch.condition);
        statements(f, &s->branch.then, true);
        const struct jinja_stmt *rest = s->branch.otherwise.first;
        if (!rest || rest->kind != JINJA_S_IF || rest->next)
            break;
        s = rest;
    }
    statements(f, &s->branch.otherwise, true);
}

/* Skips nested bodies with variables of their own. */
static void statements(struct frame *f, const struct jinja_body *b, bool in_branch)
{
    for (const struct jinja_stmt *s = b->first; s; s = s->next) {
        switch ((enum jinja_stmt_kind)s->kind) {
        case JINJA_S_PRINT:
            reads(f, s->value);
            break;
        case JINJA_S_IF:
            branches(f, s);
            break;
        case JINJA_S_FOR:
            reads(f, s->loop.iterable);
            break;
        case JINJA_S_SET:
            reads(f, s->set.value);
            set_target(f, s->set.target, in_branch);
            break;
        case JINJA_S_SET_BLOCK:
            set_target(f, s->set.target, in_branch);
            break;
        case JINJA_S_FILTER:
            reads(f, s->set.filter);
            break;
        case JINJA_S_MACRO:
            set_name(f, s->macro.function->name, in_branch);
            break;
        case JINJA_S_CALL:
            reads(f, s->macro.call);
            break;
        case JINJA_S_WITH:
            read_all(f, &s->with.values);
            break;
        case JINJA_S_LOAD:
            reads(f, s->load.source);
            break;
        case JINJA_S_TEXT:
        case JINJA_S_BREAK:
        case JINJA_S_CONTINUE:
        case JINJA_S_SCOPE:
        case JINJA_S_BLOCK:
        case JINJA_S_AUTOESCAPE:
            break;
        }
    }
}

/* --- bodies in bodies ----------------------------------------------------------------------------------- */

static struct frame begin(const struct frame *outer, struct jinja_body *body)
{
    return (struct frame){.j = outer->j, .template = outer->template, .body = body};
}

static void inner_bodies(const struct frame *f, struct jinja_body *b);

static void end(struct frame *f)
{
    statements(f, f->body, false);
    inner_bodies(f, f->body);
    while (f->n)
        f->bound[--f->n]->is_bound = false;
}

static void loop_bodies(const struct frame *outer, struct jinja_stmt *s)
{
    struct frame body = begin(outer, &s->loop.body), otherwise = begin(outer, &s->loop.otherwise);
    bind(&body, outer->template->loop);
    bind_target(&body, s->loop.target);
    end(&body);
    end(&otherwise);
}

static void function_body(const struct frame *outer, struct jinja_function *function)
{
    const struct jinja_template *t = outer->template;
    struct frame f = begin(outer, &function->body);
    const struct jinja_name *own[] = {function->uses_caller ? t->caller : NULL,
                                      function->uses_kwargs ? t->kwargs : NULL,
                                      function->uses_varargs ? t->varargs : NULL};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (own[i])
            bind(&f, own[i]);
    for (size_t i = 0; i < function->n_params; i++)
        bind(&f, function->params[i]);
    for (size_t i = 0; i < function->n_params; i++)
        reads(&f, function->defaults[i]);
    end(&f);
}

static void with_body(const struct frame *outer, struct jinja_stmt *s)
{
    struct frame f = begin(outer, &s->with.body);
    for (size_t i = 0; i < s->with.values.n; i++)
        bind_target(&f, s->with.targets[i]);
    end(&f);
}

static void inner_branches(const struct frame *f, struct jinja_stmt *s)
{
    for (;;) {
        inner_bodies(f, &s->branch.then);
        struct jinja_stmt *rest = s->branch.otherwise.first;
        if (!rest || rest->kind != JINJA_S_IF || rest->next)
            break;
        s = rest;
    }
    inner_bodies(f, &s->branch.otherwise);
}

static void inner_bodies(const struct frame *f, struct jinja_body *b)
{
    for (struct jinja_stmt *s = b->first; s; s = s->next) {
        struct frame inner;
        switch ((enum jinja_stmt_kind)s->kind) {
        case JINJA_S_IF:
            inner_branches(f, s);
            break;
        case JINJA_S_FOR:
            loop_bodies(f, s);
            break;
        case JINJA_S_SET_BLOCK:
        case JINJA_S_FILTER:
            inner = begin(f, &s->set.body);
            end(&inner);
            break;
        case JINJA_S_MACRO:
        case JINJA_S_CALL:
        case JINJA_S_SCOPE:
            function_body(f, s->macro.function);
            break;
        case JINJA_S_WITH:
            with_body(f, s);
            break;
        case JINJA_S_AUTOESCAPE:
            inner = begin(f, &s->escape.body);
            reads(&inner, s->escape.condition);
            end(&inner);
            break;
        case JINJA_S_BLOCK: /* a body of its own */
        case JINJA_S_TEXT:
        case JINJA_S_PRINT:
        case JINJA_S_BREAK:
        case JINJA_S_CONTINUE:
        case JINJA_S_SET:
        case JINJA_S_LOAD:
            break;
        }
    }
}

void jinja_find_hidden(struct jinja *j, struct jinja_template *t)
{
    const struct frame none = {.j = j, .template = t};
    struct frame whole = begin(&none, &t->body);
    bind(&whole, t->self);
    end(&whole);
    for (struct jinja_stmt *s = t->blocks; s; s = s->block.earlier) {
        struct frame block = begin(&none, &s->block.body);
        end(&block);
    }
}
