/* jinja_parse.c - tokens to the tree of jinja_ast.h: statements, and whole templates. Expressions are in
 * jinja_parse_expr.c. */
#include <string.h>

#include "engine/jinja_parse.h"

static struct jinja_body block_body(struct jinja_parser *p, const char *end1, const char *end2, const char *end3);

static struct jinja_stmt *statement(struct jinja_parser *p, enum jinja_stmt_kind kind)
{
    struct jinja_stmt *s = jinja_zalloc(p->j, sizeof *s);
    s->kind = (uint8_t)kind;
    s->escapes = p->escapes;
    s->line = p->token.line;
    return s;
}

static void append(struct jinja_body *body, struct jinja_stmt *s)
{
    if (body->last)
        body->last->next = s;
    else
        body->first = s;
    body->last = s;
}

static void end_tag(struct jinja_parser *p)
{
    jinja_expect(p, JINJA_TOK_BLOCK_END, "the end of the tag");
}

/* The body up to {% end %}, which is consumed except for its closing mark. */
static struct jinja_body body_until(struct jinja_parser *p, const char *end)
{
    end_tag(p);
    struct jinja_body body = block_body(p, end, NULL, NULL);
    jinja_step(p);
    return body;
}

static struct jinja_target *assign_target(struct jinja_parser *p, bool members);

static struct jinja_target *single_target(struct jinja_parser *p, bool members)
{
    struct jinja_target *t;
    if (jinja_take_op(p, "(")) {
        jinja_nest(p);
        t = assign_target(p, members);
        jinja_unnest(p);
        jinja_expect_op(p, ")");
        return t;
    }
    t = jinja_zalloc(p->j, sizeof *t);
    t->kind = JINJA_T_NAME;
    t->name = jinja_expect_name(p);
    if (members && jinja_take_op(p, ".")) {
        t->kind = JINJA_T_MEMBER;
        t->member = jinja_expect_name(p);
    }
    return t;
}

static struct jinja_target *checked_target(struct jinja_parser *p, bool members)
{
    struct jinja_target *t = single_target(p, members);
    if (p->for_tags && t->kind == JINJA_T_NAME && t->name == p->template->loop)
        jinja_fail(p->j, "'loop' cannot be set inside of a loop");
    return t;
}

static struct jinja_target *assign_target(struct jinja_parser *p, bool members)
{
    struct jinja_target *first = checked_target(p, members);
    if (!jinja_at_op(p, ","))
        return first;
    struct jinja_target *t = jinja_zalloc(p->j, sizeof *t);
    t->kind = JINJA_T_TUPLE;
    for (struct jinja_target *item = first;; item = checked_target(p, members)) {
        t->items = jinja_grow(p->j, t->items, &t->cap, t->n + 1, sizeof(struct jinja_target *));
        t->items[t->n++] = item;
        if (!jinja_take_op(p, ",") || jinja_at_word(p, "in") ||
            (p->token.kind != JINJA_TOK_NAME && !jinja_at_op(p, "(")))
            return t;
    }
}

static struct jinja_stmt *if_statement(struct jinja_parser *p)
{
    struct jinja_stmt *first = statement(p, JINJA_S_IF), *s = first;
    for (;;) {
        s->branch.condition = jinja_expressions_without_if(p);
        end_tag(p);
        s->branch.then = block_body(p, "elif", "else", "endif");
        if (!jinja_take_word(p, "elif"))
            break;
        struct jinja_stmt *inner = statement(p, JINJA_S_IF);
        append(&s->branch.otherwise, inner);
        s = inner;
    }
    if (jinja_take_word(p, "else")) {
        end_tag(p);
        s->branch.otherwise = block_body(p, "endif", NULL, NULL);
    }
    jinja_expect_word(p, "endif");
    return first;
}

static struct jinja_stmt *for_statement(struct jinja_parser *p)
{
    struct jinja_stmt *s = statement(p, JINJA_S_FOR);
    p->for_tags++;
    s->loop.target = assign_target(p, false);
    jinja_expect_word(p, "in");
    s->loop.iterable = jinja_expressions_without_if(p);
    if (jinja_take_word(p, "if"))
        s->loop.filter = jinja_expression(p);
    s->loop.recursive = jinja_take_word(p, "recursive");
    end_tag(p);
    p->loops++;
    p->inner++;
    s->loop.body = block_body(p, "endfor", "else", NULL);
    p->loops--;
    if (jinja_take_word(p, "else")) {
        end_tag(p);
        const unsigned loops = p->loops;
        p->loops = s->loop.recursive ? 0 : loops; /* a recursive loop is like a function */
        s->loop.otherwise = block_body(p, "endfor", NULL, NULL);
        p->loops = loops;
    }
    p->inner--;
    p->for_tags--;
    jinja_expect_word(p, "endfor");
    return s;
}

static struct jinja_stmt *loop_control(struct jinja_parser *p, enum jinja_stmt_kind kind)
{
    if (p->loops == 0)
        jinja_fail(p->j, "break or continue outside of a loop");
    return statement(p, kind);
}

static struct jinja_stmt *set_statement(struct jinja_parser *p)
{
    struct jinja_stmt *s = statement(p, JINJA_S_SET);
    s->set.target = assign_target(p, true);
    if (jinja_take_op(p, "=")) {
        s->set.value = jinja_expressions(p);
        return s;
    }
    s->kind = JINJA_S_SET_BLOCK;
    s->set.filter = jinja_filter_chain(p, false);
    s->set.body = body_until(p, "endset");
    return s;
}

static struct jinja_stmt *filter_statement(struct jinja_parser *p)
{
    struct jinja_stmt *s = statement(p, JINJA_S_FILTER);
    s->set.filter = jinja_filter_chain(p, true);
    s->set.body = body_until(p, "endfilter");
    return s;
}

static void signature(struct jinja_parser *p, struct jinja_function *f)
{
    while (!jinja_at_op(p, ")")) {
        f->params = jinja_grow(p->j, f->params, &f->params_cap, f->n_params + 1, sizeof(const struct jinja_name *));
        f->defaults = jinja_grow(p->j, f->defaults, &f->defaults_cap, f->n_params + 1, sizeof(struct jinja_expr *));
        const struct jinja_name *name = jinja_expect_name(p);
        struct jinja_expr *value = jinja_take_op(p, "=") ? jinja_expression(p) : NULL;
        if (!value && f->n_params && f->defaults[f->n_params - 1])
            jinja_fail(p->j, "a parameter without a default follows one with a default");
        f->params[f->n_params] = name;
        f->defaults[f->n_params++] = value;
        if (!jinja_take_op(p, ","))
            break;
    }
    jinja_expect_op(p, ")");
}

static void function_body(struct jinja_parser *p, struct jinja_function *f, const char *end)
{
    struct jinja_function *outer = p->function;
    unsigned loops = p->loops;
    p->function = f;
    p->loops = 0;
    p->inner++;
    f->body = body_until(p, end);
    p->inner--;
    p->function = outer;
    p->loops = loops;
    if (outer) { /* names that an inner function uses must be bound by the outer one */
        outer->uses_caller |= f->uses_caller;
        outer->uses_varargs |= f->uses_varargs;
        outer->uses_kwargs |= f->uses_kwargs;
    }
}

static struct jinja_stmt *macro_statement(struct jinja_parser *p)
{
    struct jinja_stmt *s = statement(p, JINJA_S_MACRO);
    struct jinja_function *f = s->macro.function = jinja_zalloc(p->j, sizeof *f);
    f->name = jinja_expect_name(p);
    jinja_expect_op(p, "(");
    signature(p, f);
    function_body(p, f, "endmacro");
    return s;
}

static struct jinja_stmt *call_statement(struct jinja_parser *p)
{
    struct jinja_stmt *s = statement(p, JINJA_S_CALL);
    struct jinja_function *f = s->macro.function = jinja_zalloc(p->j, sizeof *f);
    f->name = p->template->caller;
    if (jinja_take_op(p, "("))
        signature(p, f);
    s->macro.call = jinja_expression(p);
    if (s->macro.call->kind != JINJA_X_CALL)
        jinja_fail(p->j, "a call block needs a call: {%% call name(...) %%}");
    function_body(p, f, "endcall");
    return s;
}

static struct jinja_stmt *with_statement(struct jinja_parser *p)
{
    struct jinja_stmt *s = statement(p, JINJA_S_WITH);
    while (p->token.kind != JINJA_TOK_BLOCK_END) {
        size_t n = s->with.values.n;
        s->with.targets = jinja_grow(p->j, s->with.targets, &s->with.targets_cap, n + 1, sizeof(struct jinja_target *));
        s->with.targets[n] = single_target(p, false);
        jinja_expect_op(p, "=");
        jinja_add_expr(p, &s->with.values, jinja_expression(p));
        if (!jinja_take_op(p, ","))
            break;
    }
    p->inner++;
    s->with.body = body_until(p, "endwith");
    p->inner--;
    return s;
}

/* A required block must be empty, as only a child template may fill it. */
static void check_empty(struct jinja_parser *p, const struct jinja_body *body)
{
    for (const struct jinja_stmt *s = body->first; s; s = s->next)
        if (s->kind != JINJA_S_TEXT || jinja_strip(jinja_str(s->text, s->n), jinja_none(), JINJA_STRIP_LEFT).n)
            jinja_fail(p->j, "a block that is required may have comments and white space only");
}

static struct jinja_stmt *block_statement(struct jinja_parser *p)
{
    struct jinja_stmt *s = statement(p, JINJA_S_BLOCK);
    const unsigned loops = p->loops, inner = p->inner;
    struct jinja_function *function = p->function;
    const uint8_t escapes = p->escapes;
    struct jinja_name *name = jinja_expect_name(p);
    if (name->is_block)
        jinja_fail(p->j, "there are two blocks '%.*s'", jinja_shown(name->s, name->n), name->s);
    name->is_block = true;
    s->block.name = name;
    s->block.earlier = p->template->blocks;
    p->template->blocks = s;
    s->block.scoped = jinja_take_word(p, "scoped");
    s->block.required = jinja_take_word(p, "required");
    if (jinja_at_op(p, "-"))
        jinja_fail(p->j, "the name of a block may not have a hyphen; take an underscore");
    p->loops = 0; /* a block is separate from loops around it */
    p->inner = 1;
    p->function = NULL;
    p->escapes = JINJA_ESCAPES_NOT;
    s->block.body = body_until(p, "endblock");
    p->loops = loops;
    p->inner = inner;
    p->function = function;
    p->escapes = escapes;
    if (s->block.required)
        check_empty(p, &s->block.body);
    if (p->token.kind == JINJA_TOK_NAME && s->block.name->n == p->token.n &&
        memcmp(s->block.name->s, p->token.s, p->token.n) == 0)
        jinja_step(p);
    return s;
}

/* Whether output is escaped under this condition; not known unless it is a literal. */
static uint8_t known_escapes(const struct jinja_expr *e)
{
    bool negated = false;
    for (; e->kind == JINJA_X_NOT; e = e->a)
        negated = !negated;
    if (e->kind != JINJA_X_CONST)
        return JINJA_MAY_ESCAPE;
    return jinja_truth(e->constant) != negated ? JINJA_ESCAPES : JINJA_ESCAPES_NOT;
}

static struct jinja_stmt *autoescape_statement(struct jinja_parser *p)
{
    struct jinja_stmt *s = statement(p, JINJA_S_AUTOESCAPE);
    const uint8_t escapes = p->escapes;
    s->escape.condition = jinja_expression(p);
    p->escapes = known_escapes(s->escape.condition);
    p->inner++;
    s->escape.body = body_until(p, "endautoescape");
    p->inner--;
    p->escapes = escapes;
    return s;
}

static void take_context(struct jinja_parser *p)
{
    const bool with = jinja_at_word(p, "with") || jinja_at_word(p, "without");
    if (with && jinja_token_is(&p->next, JINJA_TOK_NAME, "context")) {
        jinja_step(p);
        jinja_step(p);
    }
}

/* extends, include, import and from, which refer to other templates. */
static struct jinja_stmt *load_statement(struct jinja_parser *p)
{
    struct jinja_stmt *s = statement(p, JINJA_S_LOAD);
    const bool extends = jinja_at_word(p, "extends"), include = jinja_at_word(p, "include");
    const bool from = jinja_at_word(p, "from");
    if (extends && p->inner)
        jinja_fail(p->j, "extends may not be inside loops, macros or blocks");
    jinja_step(p);
    s->load.source = jinja_expression(p);
    if (include && jinja_at_word(p, "ignore") && jinja_token_is(&p->next, JINJA_TOK_NAME, "missing")) {
        s->load.ignore_missing = true;
        jinja_step(p);
        jinja_step(p);
    }
    if (from) {
        jinja_expect_word(p, "import");
        do {
            take_context(p);
            if (p->token.kind != JINJA_TOK_NAME)
                break;
            jinja_expect_name(p);
            if (jinja_take_word(p, "as"))
                jinja_expect_name(p);
            take_context(p);
        } while (jinja_take_op(p, ","));
    } else if (!extends && !include) {
        jinja_expect_word(p, "as");
        jinja_expect_name(p);
    }
    if (!extends)
        take_context(p);
    return s;
}

static struct jinja_stmt *scope_statement(struct jinja_parser *p)
{
    struct jinja_stmt *s = statement(p, JINJA_S_SCOPE);
    struct jinja_function *f = s->macro.function = jinja_zalloc(p->j, sizeof *f);
    f->name = p->template->caller;
    function_body(p, f, "endgeneration");
    return s;
}

/* After "{%". */
static struct jinja_stmt *tag(struct jinja_parser *p)
{
    if (jinja_take_word(p, "if"))
        return if_statement(p);
    if (jinja_take_word(p, "for"))
        return for_statement(p);
    if (jinja_take_word(p, "set"))
        return set_statement(p);
    if (jinja_take_word(p, "macro"))
        return macro_statement(p);
    if (jinja_take_word(p, "call"))
        return call_statement(p);
    if (jinja_take_word(p, "filter"))
        return filter_statement(p);
    if (jinja_take_word(p, "with"))
        return with_statement(p);
    if (jinja_take_word(p, "generation"))
        return scope_statement(p);
    if (jinja_take_word(p, "block"))
        return block_statement(p);
    if (jinja_take_word(p, "autoescape"))
        return autoescape_statement(p);
    if (jinja_at_word(p, "extends") || jinja_at_word(p, "include") || jinja_at_word(p, "import") ||
        jinja_at_word(p, "from"))
        return load_statement(p);
    if (jinja_take_word(p, "break"))
        return loop_control(p, JINJA_S_BREAK);
    if (jinja_take_word(p, "continue"))
        return loop_control(p, JINJA_S_CONTINUE);
    jinja_unexpected(p, "a statement such as if, for, set or macro");
}

static struct jinja_stmt *print_tag(struct jinja_parser *p)
{
    struct jinja_stmt *s = statement(p, JINJA_S_PRINT);
    s->value = jinja_expressions(p);
    jinja_expect(p, JINJA_TOK_PRINT_END, "}}");
    return s;
}

static bool at_end_word(const struct jinja_parser *p, const char *end)
{
    return end && jinja_at_word(p, end);
}

/* Statements up to a tag that begins with one of the words (or NULL); that word is then the current token. Without
 * words: up to the end of the template. */
static struct jinja_body block_body(struct jinja_parser *p, const char *end1, const char *end2, const char *end3)
{
    struct jinja_body body = {0};
    jinja_nest(p);
    for (;;) {
        if (p->token.kind == JINJA_TOK_END) {
            if (end1)
                jinja_fail(p->j, "{%% %s %%} is missing", end3 ? end3 : end1);
            break;
        }
        if (p->token.kind == JINJA_TOK_TEXT) {
            struct jinja_stmt *s = statement(p, JINJA_S_TEXT);
            s->text = p->token.s;
            s->n = p->token.n;
            append(&body, s);
            jinja_step(p);
        } else if (p->token.kind == JINJA_TOK_PRINT_BEGIN) {
            jinja_step(p);
            append(&body, print_tag(p));
        } else {
            jinja_expect(p, JINJA_TOK_BLOCK_BEGIN, "a tag");
            if (at_end_word(p, end1) || at_end_word(p, end2) || at_end_word(p, end3))
                break;
            append(&body, tag(p));
            end_tag(p);
        }
    }
    jinja_unnest(p);
    return body;
}

struct jinja_template *jinja_parse(struct jinja *j, const char *source, size_t n)
{
    struct jinja_parser *p = jinja_zalloc(j, sizeof *p);
    p->j = j;
    p->template = jinja_zalloc(j, sizeof *p->template);
    p->template->names = jinja_zalloc(j, JINJA_NAME_BUCKETS * sizeof *p->template->names);
    p->template->loop = jinja_intern(p, "loop", 4);
    p->template->caller = jinja_intern(p, "caller", 6);
    p->template->self = jinja_intern(p, "self", 4);
    p->template->varargs = jinja_intern(p, "varargs", 7);
    p->template->kwargs = jinja_intern(p, "kwargs", 6);
    jinja_lex_begin(j, &p->lex, source, n);
    p->next = jinja_lex_next(j, &p->lex);
    jinja_step(p);
    p->template->body = block_body(p, NULL, NULL, NULL);
    jinja_find_hidden(j, p->template);
    return p->template;
}
