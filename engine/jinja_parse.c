/* jinja_parse.c - tokens to the tree of jinja_ast.h, by recursive descent. The grammar and its precedences are those of
 * Jinja 3: or, and, not, comparison, + and -, ~, * / // %, **, sign, postfix, filters and tests. */
#include <string.h>

#include "engine/jinja_ast.h"
#include "engine/jinja_eval.h"
#include "engine/jinja_lex.h"

struct parser {
    struct jinja *j;
    struct jinja_lexer lex;
    struct jinja_token token, next;   /* the current one and the one after it */
    struct jinja_function *function;  /* the macro being parsed, or NULL */
    unsigned loops;                   /* being parsed around here, in this function */
    unsigned for_tags;                /* around here, also outside of this function */
    unsigned inner;                   /* tags around here whose variables are their own */
    uint8_t escapes;                  /* enum jinja_escapes */
    struct jinja_template *template;
};

/* --- tokens and names ----------------------------------------------------------------------------------- */

static void step(struct parser *p)
{
    p->token = p->next;
    p->next = jinja_lex_next(p->j, &p->lex);
    p->j->line = p->token.line;
}

static bool token_is(const struct jinja_token *t, enum jinja_token_kind kind, const char *text)
{
    return t->kind == kind && strlen(text) == t->n && memcmp(t->s, text, t->n) == 0;
}

static bool at_op(const struct parser *p, const char *op) { return token_is(&p->token, JINJA_TOK_OPERATOR, op); }
static bool at_word(const struct parser *p, const char *word) { return token_is(&p->token, JINJA_TOK_NAME, word); }

static bool take_op(struct parser *p, const char *op)
{
    bool yes = at_op(p, op);
    if (yes)
        step(p);
    return yes;
}

static bool take_word(struct parser *p, const char *word)
{
    bool yes = at_word(p, word);
    if (yes)
        step(p);
    return yes;
}

static _Noreturn void unexpected(struct parser *p, const char *expected)
{
    const struct jinja_token *t = &p->token;
    switch (t->kind) {
    case JINJA_TOK_NAME:
    case JINJA_TOK_OPERATOR:
        jinja_fail(p->j, "%s was expected, not '%.*s'", expected, jinja_shown(t->s, t->n), t->s);
    case JINJA_TOK_CONST:
        jinja_fail(p->j, "%s was expected, not a constant", expected);
    case JINJA_TOK_END:
        jinja_fail(p->j, "%s was expected, but the template ends", expected);
    default:
        jinja_fail(p->j, "%s was expected, but the tag ends", expected);
    }
}

static void expect_op(struct parser *p, const char *op)
{
    if (!take_op(p, op))
        unexpected(p, op);
}

static void expect_word(struct parser *p, const char *word)
{
    if (!take_word(p, word))
        unexpected(p, word);
}

static void expect(struct parser *p, enum jinja_token_kind kind, const char *what)
{
    if (p->token.kind != kind)
        unexpected(p, what);
    step(p);
}

static void nest(struct parser *p)
{
    if (++p->j->depth > JINJA_MAX_NESTING)
        jinja_fail(p->j, "more than %d expressions or blocks inside each other", JINJA_MAX_NESTING);
}

static void unnest(struct parser *p)
{
    p->j->depth--;
}

struct jinja_name *jinja_name_find(struct jinja_name *const *names, const char *s, size_t n, size_t *bucket)
{
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ (unsigned char)s[i]) * 16777619u;
    *bucket = hash % JINJA_NAME_BUCKETS;
    struct jinja_name *name = names[*bucket];
    while (name && (name->n != n || memcmp(name->s, s, n) != 0))
        name = name->next;
    return name;
}

static struct jinja_name *intern(struct parser *p, const char *s, size_t n)
{
    size_t bucket;
    struct jinja_name **names = p->template->names, *name = jinja_name_find(names, s, n, &bucket);
    if (name)
        return name;
    name = jinja_alloc(p->j, sizeof *name);
    *name = (struct jinja_name){.next = names[bucket], .s = s, .n = (uint32_t)n};
    return names[bucket] = name;
}

static struct jinja_name *expect_name(struct parser *p)
{
    if (p->token.kind != JINJA_TOK_NAME)
        unexpected(p, "a name");
    struct jinja_name *name = intern(p, p->token.s, p->token.n);
    step(p);
    return name;
}

/* --- expressions ---------------------------------------------------------------------------------------- */

static struct jinja_expr *expression(struct parser *p);
static struct jinja_expr *or_expression(struct parser *p);
static struct jinja_expr *unary(struct parser *p, bool with_filters);

static struct jinja_expr *node(struct parser *p, enum jinja_expr_kind kind, struct jinja_expr *a)
{
    struct jinja_expr *e = jinja_zalloc(p->j, sizeof *e);
    e->kind = (uint8_t)kind;
    e->escapes = p->escapes;
    e->line = p->token.line;
    e->a = a;
    return e;
}

static struct jinja_expr *constant(struct parser *p, struct jinja_value v)
{
    struct jinja_expr *e = node(p, JINJA_X_CONST, NULL);
    e->constant = v;
    return e;
}

static void add_expr(struct parser *p, struct jinja_exprs *list, struct jinja_expr *e)
{
    list->items = jinja_grow(p->j, list->items, &list->cap, list->n + 1, sizeof(struct jinja_expr *));
    list->items[list->n++] = e;
}

static struct jinja_expr *pair(struct parser *p, enum jinja_expr_kind kind, struct jinja_expr *a, struct jinja_expr *b)
{
    struct jinja_expr *e = node(p, kind, a);
    e->b = b;
    return e;
}

static struct jinja_expr *binary(struct parser *p, enum jinja_operator op, struct jinja_expr *a, struct jinja_expr *b)
{
    struct jinja_expr *e = pair(p, JINJA_X_BINARY, a, b);
    e->op = op;
    return e;
}

/* Where an expression list without brackets ends. */
static bool tuple_ends(const struct parser *p)
{
    return p->token.kind == JINJA_TOK_PRINT_END || p->token.kind == JINJA_TOK_BLOCK_END || at_op(p, ")") ||
           at_word(p, "recursive");
}

/* One expression, or several with commas between them: a tuple. An empty one only in brackets. */
static struct jinja_expr *tuple(struct parser *p, bool with_condition, bool bracketed)
{
    struct jinja_exprs items = {0};
    bool is_tuple = false;
    while (!tuple_ends(p)) {
        add_expr(p, &items, with_condition ? expression(p) : or_expression(p));
        if (!take_op(p, ","))
            break;
        is_tuple = true;
    }
    if (!is_tuple && items.n)
        return items.items[0];
    if (!is_tuple && !bracketed)
        unexpected(p, "an expression");
    struct jinja_expr *e = node(p, JINJA_X_TUPLE, NULL);
    e->items = items;
    return e;
}

static struct jinja_expr *list_literal(struct parser *p)
{
    struct jinja_expr *e = node(p, JINJA_X_LIST, NULL);
    while (!at_op(p, "]")) {
        add_expr(p, &e->items, expression(p));
        if (!take_op(p, ","))
            break;
    }
    expect_op(p, "]");
    return e;
}

static struct jinja_expr *dict_literal(struct parser *p)
{
    struct jinja_expr *e = node(p, JINJA_X_DICT, NULL);
    while (!at_op(p, "}")) {
        add_expr(p, &e->items, expression(p));
        expect_op(p, ":");
        add_expr(p, &e->items, expression(p));
        if (!take_op(p, ","))
            break;
    }
    expect_op(p, "}");
    return e;
}

static struct jinja_expr *name_or_literal(struct parser *p)
{
    static const struct {
        const char *word;
        struct jinja_value value;
    } words[] = {
        {"true", {.kind = JINJA_BOOL, .b = true}},   {"True", {.kind = JINJA_BOOL, .b = true}},
        {"false", {.kind = JINJA_BOOL, .b = false}}, {"False", {.kind = JINJA_BOOL, .b = false}},
        {"none", {.kind = JINJA_NONE}},              {"None", {.kind = JINJA_NONE}},
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (take_word(p, words[i].word))
            return constant(p, words[i].value);
    struct jinja_expr *e = node(p, JINJA_X_NAME, NULL);
    struct jinja_name *name = expect_name(p);
    name->is_read = true;
    e->name = name;
    if (p->function) {
        p->function->uses_caller |= e->name == p->template->caller;
        p->function->uses_varargs |= e->name == p->template->varargs;
        p->function->uses_kwargs |= e->name == p->template->kwargs;
    }
    return e;
}

/* Strings that stand side by side are one. */
static struct jinja_expr *constants(struct parser *p)
{
    struct jinja_value v = p->token.constant;
    struct jinja_expr *e = constant(p, v);
    step(p);
    if (v.kind != JINJA_STRING || p->token.kind != JINJA_TOK_CONST || p->token.constant.kind != JINJA_STRING)
        return e;
    struct jinja_text t = {0};
    jinja_add(p->j, &t, v.s, v.n);
    for (; p->token.kind == JINJA_TOK_CONST && p->token.constant.kind == JINJA_STRING; step(p))
        jinja_add(p->j, &t, p->token.constant.s, p->token.constant.n);
    e->constant = jinja_text_value(p->j, &t);
    return e;
}

static struct jinja_expr *primary(struct parser *p)
{
    struct jinja_expr *e;
    if (p->token.kind == JINJA_TOK_NAME)
        return name_or_literal(p);
    if (p->token.kind == JINJA_TOK_CONST)
        return constants(p);
    if (take_op(p, "(")) {
        e = tuple(p, true, true);
        expect_op(p, ")");
        return e;
    }
    if (take_op(p, "["))
        return list_literal(p);
    if (take_op(p, "{"))
        return dict_literal(p);
    unexpected(p, "an expression");
}

/* After "(". */
static struct jinja_call *call_arguments(struct parser *p)
{
    struct jinja_call *call = jinja_zalloc(p->j, sizeof *call);
    while (!at_op(p, ")")) {
        if (take_op(p, "**")) {
            call->star_star = expression(p);
        } else if (take_op(p, "*")) {
            call->star = expression(p);
        } else if (p->token.kind == JINJA_TOK_NAME && token_is(&p->next, JINJA_TOK_OPERATOR, "=")) {
            call->keywords = jinja_grow(p->j, call->keywords, &call->keywords_cap, call->n_keywords + 1,
                                        sizeof *call->keywords);
            const struct jinja_name *name = expect_name(p);
            step(p);
            struct jinja_expr *value = expression(p);
            call->keywords[call->n_keywords++] = (struct jinja_keyword){.name = name, .value = value};
        } else {
            if (call->n_keywords || call->star || call->star_star)
                jinja_fail(p->j, "an argument without a name follows one with a name");
            add_expr(p, &call->args, expression(p));
        }
        if (!take_op(p, ","))
            break;
    }
    expect_op(p, ")");
    return call;
}

/* After "[": an index, a slice, or several with commas, which make a tuple. */
static struct jinja_expr *subscript(struct parser *p, struct jinja_expr *base)
{
    struct jinja_exprs parts = {0}, keys = {0};
    bool slice = false;
    while (!at_op(p, "]") && !slice) {
        struct jinja_expr *e = at_op(p, ":") ? NULL : expression(p);
        if (at_op(p, ":")) {
            add_expr(p, &parts, e);
            while (take_op(p, ":") && parts.n < 3)
                add_expr(p, &parts, at_op(p, ":") || at_op(p, "]") ? NULL : expression(p));
            if (parts.n < 3)
                add_expr(p, &parts, NULL);
            slice = true;
        } else {
            add_expr(p, &keys, e);
            if (!take_op(p, ","))
                break;
        }
    }
    if (slice && keys.n)
        jinja_fail(p->j, "a slice may not stand beside other indices");
    expect_op(p, "]");
    if (slice) {
        struct jinja_expr *e = node(p, JINJA_X_SLICE, base);
        e->items = parts;
        return e;
    }
    if (keys.n == 1)
        return pair(p, JINJA_X_ITEM, base, keys.items[0]);
    struct jinja_expr *key = node(p, JINJA_X_TUPLE, NULL);
    key->items = keys;
    return pair(p, JINJA_X_ITEM, base, key);
}

static struct jinja_expr *attribute(struct parser *p, struct jinja_expr *base)
{
    if (p->token.kind == JINJA_TOK_CONST && p->token.constant.kind == JINJA_INT)
        return pair(p, JINJA_X_ITEM, base, constants(p));
    struct jinja_expr *e = node(p, JINJA_X_ATTR, base);
    e->name = expect_name(p);
    return e;
}

static struct jinja_expr *call(struct parser *p, struct jinja_expr *callee)
{
    struct jinja_expr *e = node(p, JINJA_X_CALL, callee);
    e->call = call_arguments(p);
    return e;
}

static struct jinja_expr *postfix(struct parser *p, struct jinja_expr *e)
{
    for (;;) {
        if (take_op(p, "."))
            e = attribute(p, e);
        else if (take_op(p, "["))
            e = subscript(p, e);
        else if (take_op(p, "("))
            e = call(p, e);
        else
            return e;
    }
}

static struct jinja_expr *filter(struct parser *p, struct jinja_expr *operand)
{
    struct jinja_expr *e = node(p, JINJA_X_FILTER, operand);
    e->function_name = expect_name(p);
    e->function = jinja_find_filter(e->function_name->s, e->function_name->n);
    e->call = take_op(p, "(") ? call_arguments(p) : jinja_zalloc(p->j, sizeof *e->call);
    return e;
}

/* A test may have one argument without brackets: "is divisibleby 3". */
static bool bare_argument_follows(const struct parser *p)
{
    static const char *const no[] = {"else", "or", "and"}; /* any other name is a variable's, also "if" and "in" */
    if (p->token.kind == JINJA_TOK_CONST || at_op(p, "[") || at_op(p, "{"))
        return true;
    if (p->token.kind != JINJA_TOK_NAME)
        return false;
    for (size_t i = 0; i < sizeof no / sizeof *no; i++)
        if (at_word(p, no[i]))
            return false;
    if (at_word(p, "is"))
        jinja_fail(p->j, "tests cannot be chained with 'is'");
    return true;
}

static struct jinja_expr *test(struct parser *p, struct jinja_expr *operand)
{
    bool negated = take_word(p, "not");
    struct jinja_expr *e = node(p, JINJA_X_TEST, operand);
    e->function_name = expect_name(p);
    e->function = jinja_find_test(e->function_name->s, e->function_name->n);
    if (take_op(p, "(")) {
        e->call = call_arguments(p);
    } else {
        e->call = jinja_zalloc(p->j, sizeof *e->call);
        if (bare_argument_follows(p))
            add_expr(p, &e->call->args, postfix(p, primary(p)));
    }
    return negated ? node(p, JINJA_X_NOT, e) : e;
}

static struct jinja_expr *filters_and_tests(struct parser *p, struct jinja_expr *e)
{
    for (;;) {
        if (take_op(p, "|"))
            e = filter(p, e);
        else if (take_word(p, "is"))
            e = test(p, e);
        else if (take_op(p, "("))
            e = call(p, e);
        else
            return e;
    }
}

static struct jinja_expr *unary(struct parser *p, bool with_filters)
{
    struct jinja_expr *e;
    nest(p);
    if (take_op(p, "-"))
        e = node(p, JINJA_X_NEGATE, unary(p, false));
    else if (take_op(p, "+"))
        e = node(p, JINJA_X_PLUS, unary(p, false));
    else
        e = primary(p);
    e = postfix(p, e);
    if (with_filters)
        e = filters_and_tests(p, e);
    unnest(p);
    return e;
}

static struct jinja_expr *power(struct parser *p)
{
    struct jinja_expr *e = unary(p, true);
    while (take_op(p, "**"))
        e = binary(p, JINJA_OP_POW, e, unary(p, true));
    return e;
}

static struct jinja_expr *product(struct parser *p)
{
    struct jinja_expr *e = power(p);
    for (;;) {
        if (take_op(p, "*"))
            e = binary(p, JINJA_OP_MUL, e, power(p));
        else if (take_op(p, "//"))
            e = binary(p, JINJA_OP_FLOORDIV, e, power(p));
        else if (take_op(p, "/"))
            e = binary(p, JINJA_OP_DIV, e, power(p));
        else if (take_op(p, "%"))
            e = binary(p, JINJA_OP_MOD, e, power(p));
        else
            return e;
    }
}

static struct jinja_expr *concatenation(struct parser *p)
{
    struct jinja_expr *first = product(p);
    if (!at_op(p, "~"))
        return first;
    struct jinja_expr *e = node(p, JINJA_X_CONCAT, NULL);
    add_expr(p, &e->items, first);
    while (take_op(p, "~"))
        add_expr(p, &e->items, product(p));
    return e;
}

static struct jinja_expr *sum(struct parser *p)
{
    struct jinja_expr *e = concatenation(p);
    for (;;) {
        if (take_op(p, "+"))
            e = binary(p, JINJA_OP_ADD, e, concatenation(p));
        else if (take_op(p, "-"))
            e = binary(p, JINJA_OP_SUB, e, concatenation(p));
        else
            return e;
    }
}

static bool comparison_operator(struct parser *p, enum jinja_operator *op)
{
    static const struct {
        const char *text;
        enum jinja_operator op;
    } operators[] = {{"==", JINJA_OP_EQ}, {"!=", JINJA_OP_NE}, {"<=", JINJA_OP_LE},
                     {">=", JINJA_OP_GE}, {"<", JINJA_OP_LT},  {">", JINJA_OP_GT}};
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++)
        if (take_op(p, operators[i].text)) {
            *op = operators[i].op;
            return true;
        }
    if (take_word(p, "in")) {
        *op = JINJA_OP_IN;
        return true;
    }
    if (at_word(p, "not") && token_is(&p->next, JINJA_TOK_NAME, "in")) {
        step(p);
        step(p);
        *op = JINJA_OP_NOT_IN;
        return true;
    }
    return false;
}

static struct jinja_expr *comparison(struct parser *p)
{
    struct jinja_expr *first = sum(p), *e = NULL;
    enum jinja_operator op;
    while (comparison_operator(p, &op)) {
        if (!e)
            e = node(p, JINJA_X_COMPARE, first);
        e->compare.ops = jinja_grow(p->j, e->compare.ops, &e->compare.ops_cap, e->compare.operands.n + 1, sizeof op);
        e->compare.ops[e->compare.operands.n] = op;
        add_expr(p, &e->compare.operands, sum(p));
    }
    return e ? e : first;
}

static struct jinja_expr *not_expression(struct parser *p)
{
    if (!at_word(p, "not"))
        return comparison(p);
    nest(p);
    step(p);
    struct jinja_expr *e = node(p, JINJA_X_NOT, not_expression(p));
    unnest(p);
    return e;
}

static struct jinja_expr *and_expression(struct parser *p)
{
    struct jinja_expr *e = not_expression(p);
    while (take_word(p, "and"))
        e = pair(p, JINJA_X_AND, e, not_expression(p));
    return e;
}

static struct jinja_expr *or_expression(struct parser *p)
{
    struct jinja_expr *e = and_expression(p);
    while (take_word(p, "or"))
        e = pair(p, JINJA_X_OR, e, and_expression(p));
    return e;
}

static struct jinja_expr *expression(struct parser *p)
{
    nest(p);
    struct jinja_expr *e = or_expression(p);
    while (take_word(p, "if")) {
        e = pair(p, JINJA_X_IF, e, or_expression(p));
        if (take_word(p, "else"))
            e->c = expression(p);
    }
    unnest(p);
    return e;
}

/* --- statements ----------------------------------------------------------------------------------------- */

static struct jinja_body block_body(struct parser *p, const char *end1, const char *end2, const char *end3);

static struct jinja_stmt *statement(struct parser *p, enum jinja_stmt_kind kind)
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

static void end_tag(struct parser *p)
{
    expect(p, JINJA_TOK_BLOCK_END, "the end of the tag");
}

/* The body up to {% end %}, which is consumed but for its closing mark. */
static struct jinja_body body_until(struct parser *p, const char *end)
{
    end_tag(p);
    struct jinja_body body = block_body(p, end, NULL, NULL);
    step(p);
    return body;
}

static struct jinja_target *assign_target(struct parser *p, bool members);

static struct jinja_target *single_target(struct parser *p, bool members)
{
    struct jinja_target *t;
    if (take_op(p, "(")) {
        nest(p);
        t = assign_target(p, members);
        unnest(p);
        expect_op(p, ")");
        return t;
    }
    t = jinja_zalloc(p->j, sizeof *t);
    t->kind = JINJA_T_NAME;
    t->name = expect_name(p);
    if (members && take_op(p, ".")) {
        t->kind = JINJA_T_MEMBER;
        t->member = expect_name(p);
    }
    return t;
}

static struct jinja_target *checked_target(struct parser *p, bool members)
{
    struct jinja_target *t = single_target(p, members);
    if (p->for_tags && t->kind == JINJA_T_NAME && t->name == p->template->loop)
        jinja_fail(p->j, "'loop' cannot be set inside of a loop");
    return t;
}

static struct jinja_target *assign_target(struct parser *p, bool members)
{
    struct jinja_target *first = checked_target(p, members);
    if (!at_op(p, ","))
        return first;
    struct jinja_target *t = jinja_zalloc(p->j, sizeof *t);
    t->kind = JINJA_T_TUPLE;
    for (struct jinja_target *item = first;; item = checked_target(p, members)) {
        t->items = jinja_grow(p->j, t->items, &t->cap, t->n + 1, sizeof(struct jinja_target *));
        t->items[t->n++] = item;
        if (!take_op(p, ",") || at_word(p, "in") || (p->token.kind != JINJA_TOK_NAME && !at_op(p, "(")))
            return t;
    }
}

static struct jinja_stmt *if_statement(struct parser *p)
{
    struct jinja_stmt *first = statement(p, JINJA_S_IF), *s = first;
    for (;;) {
        s->branch.condition = tuple(p, false, false);
        end_tag(p);
        s->branch.then = block_body(p, "elif", "else", "endif");
        if (!take_word(p, "elif"))
            break;
        struct jinja_stmt *inner = statement(p, JINJA_S_IF);
        append(&s->branch.otherwise, inner);
        s = inner;
    }
    if (take_word(p, "else")) {
        end_tag(p);
        s->branch.otherwise = block_body(p, "endif", NULL, NULL);
    }
    expect_word(p, "endif");
    return first;
}

static struct jinja_stmt *for_statement(struct parser *p)
{
    struct jinja_stmt *s = statement(p, JINJA_S_FOR);
    p->for_tags++;
    s->loop.target = assign_target(p, false);
    expect_word(p, "in");
    s->loop.iterable = tuple(p, false, false);
    if (take_word(p, "if"))
        s->loop.filter = expression(p);
    s->loop.recursive = take_word(p, "recursive");
    end_tag(p);
    p->loops++;
    p->inner++;
    s->loop.body = block_body(p, "endfor", "else", NULL);
    p->loops--;
    if (take_word(p, "else")) {
        end_tag(p);
        const unsigned loops = p->loops;
        p->loops = s->loop.recursive ? 0 : loops; /* a recursive loop is a function */
        s->loop.otherwise = block_body(p, "endfor", NULL, NULL);
        p->loops = loops;
    }
    p->inner--;
    p->for_tags--;
    expect_word(p, "endfor");
    return s;
}

static struct jinja_stmt *loop_control(struct parser *p, enum jinja_stmt_kind kind)
{
    if (p->loops == 0)
        jinja_fail(p->j, "break or continue outside of a loop");
    return statement(p, kind);
}

/* "|upper|trim" or NULL. In a filter tag the first name has no bar before it. */
static struct jinja_expr *filter_chain(struct parser *p, bool in_filter_tag)
{
    struct jinja_expr *e = in_filter_tag ? filter(p, NULL) : NULL;
    while (take_op(p, "|"))
        e = filter(p, e);
    return e;
}

static struct jinja_stmt *set_statement(struct parser *p)
{
    struct jinja_stmt *s = statement(p, JINJA_S_SET);
    s->set.target = assign_target(p, true);
    if (take_op(p, "=")) {
        s->set.value = tuple(p, true, false);
        return s;
    }
    s->kind = JINJA_S_SET_BLOCK;
    s->set.filter = filter_chain(p, false);
    s->set.body = body_until(p, "endset");
    return s;
}

static struct jinja_stmt *filter_statement(struct parser *p)
{
    struct jinja_stmt *s = statement(p, JINJA_S_FILTER);
    s->set.filter = filter_chain(p, true);
    s->set.body = body_until(p, "endfilter");
    return s;
}

static void signature(struct parser *p, struct jinja_function *f)
{
    while (!at_op(p, ")")) {
        f->params = jinja_grow(p->j, f->params, &f->params_cap, f->n_params + 1, sizeof(const struct jinja_name *));
        f->defaults = jinja_grow(p->j, f->defaults, &f->defaults_cap, f->n_params + 1, sizeof(struct jinja_expr *));
        const struct jinja_name *name = expect_name(p);
        struct jinja_expr *value = take_op(p, "=") ? expression(p) : NULL;
        if (!value && f->n_params && f->defaults[f->n_params - 1])
            jinja_fail(p->j, "a parameter without a default follows one with a default");
        f->params[f->n_params] = name;
        f->defaults[f->n_params++] = value;
        if (!take_op(p, ","))
            break;
    }
    expect_op(p, ")");
}

static void function_body(struct parser *p, struct jinja_function *f, const char *end)
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
    if (outer) { /* what an inner function names has to be bound by the outer one */
        outer->uses_caller |= f->uses_caller;
        outer->uses_varargs |= f->uses_varargs;
        outer->uses_kwargs |= f->uses_kwargs;
    }
}

static struct jinja_stmt *macro_statement(struct parser *p)
{
    struct jinja_stmt *s = statement(p, JINJA_S_MACRO);
    struct jinja_function *f = s->macro.function = jinja_zalloc(p->j, sizeof *f);
    f->name = expect_name(p);
    expect_op(p, "(");
    signature(p, f);
    function_body(p, f, "endmacro");
    return s;
}

static struct jinja_stmt *call_statement(struct parser *p)
{
    struct jinja_stmt *s = statement(p, JINJA_S_CALL);
    struct jinja_function *f = s->macro.function = jinja_zalloc(p->j, sizeof *f);
    f->name = p->template->caller;
    if (take_op(p, "("))
        signature(p, f);
    s->macro.call = expression(p);
    if (s->macro.call->kind != JINJA_X_CALL)
        jinja_fail(p->j, "a call block needs a call: {%% call name(...) %%}");
    function_body(p, f, "endcall");
    return s;
}

static struct jinja_stmt *with_statement(struct parser *p)
{
    struct jinja_stmt *s = statement(p, JINJA_S_WITH);
    while (p->token.kind != JINJA_TOK_BLOCK_END) {
        size_t n = s->with.values.n;
        s->with.targets = jinja_grow(p->j, s->with.targets, &s->with.targets_cap, n + 1, sizeof(struct jinja_target *));
        s->with.targets[n] = single_target(p, false);
        expect_op(p, "=");
        add_expr(p, &s->with.values, expression(p));
        if (!take_op(p, ","))
            break;
    }
    p->inner++;
    s->with.body = body_until(p, "endwith");
    p->inner--;
    return s;
}

/* A block that only another template could fill may have nothing in it. */
static void check_empty(struct parser *p, const struct jinja_body *body)
{
    for (const struct jinja_stmt *s = body->first; s; s = s->next)
        if (s->kind != JINJA_S_TEXT || jinja_strip(jinja_str(s->text, s->n), jinja_none(), JINJA_STRIP_LEFT).n)
            jinja_fail(p->j, "a block that is required may have comments and white space only");
}

static struct jinja_stmt *block_statement(struct parser *p)
{
    struct jinja_stmt *s = statement(p, JINJA_S_BLOCK);
    const unsigned loops = p->loops, inner = p->inner;
    struct jinja_function *function = p->function;
    const uint8_t escapes = p->escapes;
    struct jinja_name *name = expect_name(p);
    if (name->is_block)
        jinja_fail(p->j, "there are two blocks '%.*s'", jinja_shown(name->s, name->n), name->s);
    name->is_block = true;
    s->block.name = name;
    s->block.earlier = p->template->blocks;
    p->template->blocks = s;
    s->block.scoped = take_word(p, "scoped");
    s->block.required = take_word(p, "required");
    if (at_op(p, "-"))
        jinja_fail(p->j, "the name of a block may not have a hyphen; take an underscore");
    p->loops = 0; /* it is a place of its own */
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
        step(p);
    return s;
}

/* What a condition of literals says. */
static uint8_t known_escapes(const struct jinja_expr *e)
{
    bool negated = false;
    for (; e->kind == JINJA_X_NOT; e = e->a)
        negated = !negated;
    if (e->kind != JINJA_X_CONST)
        return JINJA_MAY_ESCAPE;
    return jinja_truth(e->constant) != negated ? JINJA_ESCAPES : JINJA_ESCAPES_NOT;
}

static struct jinja_stmt *autoescape_statement(struct parser *p)
{
    struct jinja_stmt *s = statement(p, JINJA_S_AUTOESCAPE);
    const uint8_t escapes = p->escapes;
    s->escape.condition = expression(p);
    p->escapes = known_escapes(s->escape.condition);
    p->inner++;
    s->escape.body = body_until(p, "endautoescape");
    p->inner--;
    p->escapes = escapes;
    return s;
}

static void take_context(struct parser *p)
{
    if ((at_word(p, "with") || at_word(p, "without")) && token_is(&p->next, JINJA_TOK_NAME, "context")) {
        step(p);
        step(p);
    }
}

/* extends, include, import and from: of another template. */
static struct jinja_stmt *load_statement(struct parser *p)
{
    struct jinja_stmt *s = statement(p, JINJA_S_LOAD);
    const bool extends = at_word(p, "extends"), include = at_word(p, "include"), from = at_word(p, "from");
    if (extends && p->inner)
        jinja_fail(p->j, "extends may not stand inside of loops, macros and blocks");
    step(p);
    s->load.source = expression(p);
    if (include && at_word(p, "ignore") && token_is(&p->next, JINJA_TOK_NAME, "missing")) {
        s->load.ignore_missing = true;
        step(p);
        step(p);
    }
    if (from) {
        expect_word(p, "import");
        do {
            take_context(p);
            if (p->token.kind != JINJA_TOK_NAME)
                break;
            expect_name(p);
            if (take_word(p, "as"))
                expect_name(p);
            take_context(p);
        } while (take_op(p, ","));
    } else if (!extends && !include) {
        expect_word(p, "as");
        expect_name(p);
    }
    if (!extends)
        take_context(p);
    return s;
}

static struct jinja_stmt *scope_statement(struct parser *p)
{
    struct jinja_stmt *s = statement(p, JINJA_S_SCOPE);
    struct jinja_function *f = s->macro.function = jinja_zalloc(p->j, sizeof *f);
    f->name = p->template->caller;
    function_body(p, f, "endgeneration");
    return s;
}

/* After "{%". */
static struct jinja_stmt *tag(struct parser *p)
{
    if (take_word(p, "if"))
        return if_statement(p);
    if (take_word(p, "for"))
        return for_statement(p);
    if (take_word(p, "set"))
        return set_statement(p);
    if (take_word(p, "macro"))
        return macro_statement(p);
    if (take_word(p, "call"))
        return call_statement(p);
    if (take_word(p, "filter"))
        return filter_statement(p);
    if (take_word(p, "with"))
        return with_statement(p);
    if (take_word(p, "generation"))
        return scope_statement(p);
    if (take_word(p, "block"))
        return block_statement(p);
    if (take_word(p, "autoescape"))
        return autoescape_statement(p);
    if (at_word(p, "extends") || at_word(p, "include") || at_word(p, "import") || at_word(p, "from"))
        return load_statement(p);
    if (take_word(p, "break"))
        return loop_control(p, JINJA_S_BREAK);
    if (take_word(p, "continue"))
        return loop_control(p, JINJA_S_CONTINUE);
    unexpected(p, "a statement such as if, for, set or macro");
}

static struct jinja_stmt *print_tag(struct parser *p)
{
    struct jinja_stmt *s = statement(p, JINJA_S_PRINT);
    s->value = tuple(p, true, false);
    expect(p, JINJA_TOK_PRINT_END, "}}");
    return s;
}

static bool at_end_word(const struct parser *p, const char *end)
{
    return end && at_word(p, end);
}

/* Statements up to a tag that begins with one of the words (or NULL); that word is then the current token. Without
 * words: up to the end of the template. */
static struct jinja_body block_body(struct parser *p, const char *end1, const char *end2, const char *end3)
{
    struct jinja_body body = {0};
    nest(p);
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
            step(p);
        } else if (p->token.kind == JINJA_TOK_PRINT_BEGIN) {
            step(p);
            append(&body, print_tag(p));
        } else {
            expect(p, JINJA_TOK_BLOCK_BEGIN, "a tag");
            if (at_end_word(p, end1) || at_end_word(p, end2) || at_end_word(p, end3))
                break;
            append(&body, tag(p));
            end_tag(p);
        }
    }
    unnest(p);
    return body;
}

struct jinja_template *jinja_parse(struct jinja *j, const char *source, size_t n)
{
    struct parser *p = jinja_zalloc(j, sizeof *p);
    p->j = j;
    p->template = jinja_zalloc(j, sizeof *p->template);
    p->template->names = jinja_zalloc(j, JINJA_NAME_BUCKETS * sizeof *p->template->names);
    p->template->loop = intern(p, "loop", 4);
    p->template->caller = intern(p, "caller", 6);
    p->template->self = intern(p, "self", 4);
    p->template->varargs = intern(p, "varargs", 7);
    p->template->kwargs = intern(p, "kwargs", 6);
    jinja_lex_begin(j, &p->lex, source, n);
    p->next = jinja_lex_next(j, &p->lex);
    step(p);
    p->template->body = block_body(p, NULL, NULL, NULL);
    jinja_find_hidden(j, p->template);
    return p->template;
}
