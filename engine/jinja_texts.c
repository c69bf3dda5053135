/* jinja_texts.c - the texts in a template: those it writes, and those it looks for.
 *
 * A text is written if it is between tags, or in an expression whose value may be printed. It is looked for if it is
 * compared, or passed to a function: "</think>" in content.split("</think>"). The parser bounds nesting. */
#include "engine/jinja_ast.h"

struct walk {
    jinja_text_fn *fn;
    void *ctx;
};

static void body(const struct walk *w, const struct jinja_body *b);
static void expr(const struct walk *w, const struct jinja_expr *e, bool looked_for);

static void list(const struct walk *w, const struct jinja_exprs *l, bool looked_for)
{
    for (size_t i = 0; i < l->n; i++)
        expr(w, l->items[i], looked_for);
}

static void call(const struct walk *w, const struct jinja_call *c)
{
    if (!c)
        return;
    list(w, &c->args, true);
    for (size_t i = 0; i < c->n_keywords; i++)
        expr(w, c->keywords[i].value, true);
    expr(w, c->star, true);
    expr(w, c->star_star, true);
}

/* Long chains of operators nest on the left. */
static void expr(const struct walk *w, const struct jinja_expr *e, bool looked_for)
{
    for (; e; e = e->a) {
        switch ((enum jinja_expr_kind)e->kind) {
        case JINJA_X_CONST:
            if (e->constant.kind == JINJA_STRING)
                w->fn(w->ctx, e->constant.s, e->constant.n, looked_for);
            return;
        case JINJA_X_NAME:
            return;
        case JINJA_X_LIST:
        case JINJA_X_TUPLE:
        case JINJA_X_DICT:
        case JINJA_X_CONCAT:
            list(w, &e->items, looked_for);
            return;
        case JINJA_X_SLICE:
            list(w, &e->items, true);
            break;
        case JINJA_X_ITEM:
            expr(w, e->b, true);
            break;
        case JINJA_X_CALL:
        case JINJA_X_FILTER:
        case JINJA_X_TEST:
            call(w, e->call);
            looked_for |= e->kind == JINJA_X_TEST;
            break;
        case JINJA_X_IF: /* a if b else c */
            expr(w, e->b, true);
            expr(w, e->c, looked_for);
            break;
        case JINJA_X_COMPARE:
            list(w, &e->compare.operands, true);
            looked_for = true;
            break;
        case JINJA_X_AND:
        case JINJA_X_OR:
        case JINJA_X_BINARY:
            expr(w, e->b, looked_for);
            break;
        case JINJA_X_NOT:
            looked_for = true;
            break;
        case JINJA_X_ATTR:
        case JINJA_X_NEGATE:
        case JINJA_X_PLUS:
            break;
        }
    }
}

static void function(const struct walk *w, const struct jinja_function *f)
{
    for (size_t i = 0; i < f->n_params; i++)
        expr(w, f->defaults[i], true);
    body(w, &f->body);
}

/* An elif is nested in the else part of the one before it; there may be any number of them. */
static void branch(const struct walk *w, const struct jinja_stmt *s)
{
    for (;;) {
        expr(w, s->branch.condition, true);
        body(w, &s->branch.then);
        const struct jinja_stmt *rest = s->branch.otherwise.first;
        if (!rest || rest->kind != JINJA_S_IF || rest->next)
            break;
        s = rest;
    }
    body(w, &s->branch.otherwise);
}

static void body(const struct walk *w, const struct jinja_body *b)
{
    for (const struct jinja_stmt *s = b->first; s; s = s->next) {
        switch ((enum jinja_stmt_kind)s->kind) {
        case JINJA_S_TEXT:
            w->fn(w->ctx, s->text, s->n, false);
            break;
        case JINJA_S_PRINT:
            expr(w, s->value, false);
            break;
        case JINJA_S_IF:
            branch(w, s);
            break;
        case JINJA_S_FOR:
            expr(w, s->loop.iterable, false);
            expr(w, s->loop.filter, true);
            body(w, &s->loop.body);
            body(w, &s->loop.otherwise);
            break;
        case JINJA_S_SET:
            expr(w, s->set.value, false);
            break;
        case JINJA_S_SET_BLOCK:
        case JINJA_S_FILTER:
            expr(w, s->set.filter, false);
            body(w, &s->set.body);
            break;
        case JINJA_S_MACRO:
        case JINJA_S_CALL:
        case JINJA_S_SCOPE:
            function(w, s->macro.function);
            expr(w, s->kind == JINJA_S_CALL ? s->macro.call : NULL, false);
            break;
        case JINJA_S_WITH:
            list(w, &s->with.values, false);
            body(w, &s->with.body);
            break;
        case JINJA_S_BLOCK:
            body(w, &s->block.body);
            break;
        case JINJA_S_AUTOESCAPE:
            body(w, &s->escape.body);
            break;
        case JINJA_S_BREAK:
        case JINJA_S_CONTINUE:
        case JINJA_S_LOAD:
            break;
        }
    }
}

void jinja_texts(const struct jinja_template *t, jinja_text_fn *fn, void *ctx)
{
    body(&(struct walk){.fn = fn, .ctx = ctx}, &t->body);
}
