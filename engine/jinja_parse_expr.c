/* jinja_parse_expr.c - tokens to expressions, by recursive descent. The grammar and its precedences are those of
 * Jinja 3: or, and, not, comparison, + and -, ~, * / // %, **, sign, postfix, filters and tests. */
#include "engine/jinja_eval.h"
#include "engine/jinja_parse.h"

static struct jinja_expr *or_expression(struct jinja_parser *p);
static struct jinja_expr *unary(struct jinja_parser *p, bool with_filters);

static struct jinja_expr *node(struct jinja_parser *p, enum jinja_expr_kind kind, struct jinja_expr *a)
{
    struct jinja_expr *e = jinja_zalloc(p->j, sizeof *e);
    e->kind = (uint8_t)kind;
    e->escapes = p->escapes;
    e->line = p->token.line;
    e->a = a;
    return e;
}

static struct jinja_expr *constant(struct jinja_parser *p, struct jinja_value v)
{
    struct jinja_expr *e = node(p, JINJA_X_CONST, NULL);
    e->constant = v;
    return e;
}

void jinja_add_expr(struct jinja_parser *p, struct jinja_exprs *list, struct jinja_expr *e)
{
    list->items = jinja_grow(p->j, list->items, &list->cap, list->n + 1, sizeof(struct jinja_expr *));
    list->items[list->n++] = e;
}

static struct jinja_expr *pair(struct jinja_parser *p, enum jinja_expr_kind kind, struct jinja_expr *a,
                               struct jinja_expr *b)
{
    struct jinja_expr *e = node(p, kind, a);
    e->b = b;
    return e;
}

static struct jinja_expr *binary(struct jinja_parser *p, enum jinja_operator op, struct jinja_expr *a,
                                 struct jinja_expr *b)
{
    struct jinja_expr *e = pair(p, JINJA_X_BINARY, a, b);
    e->op = op;
    return e;
}

/* Where an expression list without brackets ends. */
static bool tuple_ends(const struct jinja_parser *p)
{
    return p->token.kind == JINJA_TOK_PRINT_END || p->token.kind == JINJA_TOK_BLOCK_END || jinja_at_op(p, ")") ||
           jinja_at_word(p, "recursive");
}

/* One expression, or several as a tuple. Only brackets may be empty. */
static struct jinja_expr *tuple(struct jinja_parser *p, bool with_condition, bool bracketed)
{
    struct jinja_exprs items = {0};
    bool is_tuple = false;
    while (!tuple_ends(p)) {
        jinja_add_expr(p, &items, with_condition ? jinja_expression(p) : or_expression(p));
        if (!jinja_take_op(p, ","))
            break;
        is_tuple = true;
    }
    if (!is_tuple && items.n)
        return items.items[0];
    if (!is_tuple && !bracketed)
        jinja_unexpected(p, "an expression");
    struct jinja_expr *e = node(p, JINJA_X_TUPLE, NULL);
    e->items = items;
    return e;
}

struct jinja_expr *jinja_expressions(struct jinja_parser *p) { return tuple(p, true, false); }
struct jinja_expr *jinja_expressions_without_if(struct jinja_parser *p) { return tuple(p, false, false); }

static struct jinja_expr *list_literal(struct jinja_parser *p)
{
    struct jinja_expr *e = node(p, JINJA_X_LIST, NULL);
    while (!jinja_at_op(p, "]")) {
        jinja_add_expr(p, &e->items, jinja_expression(p));
        if (!jinja_take_op(p, ","))
            break;
    }
    jinja_expect_op(p, "]");
    return e;
}

static struct jinja_expr *dict_literal(struct jinja_parser *p)
{
    struct jinja_expr *e = node(p, JINJA_X_DICT, NULL);
    while (!jinja_at_op(p, "}")) {
        jinja_add_expr(p, &e->items, jinja_expression(p));
        jinja_expect_op(p, ":");
        jinja_add_expr(p, &e->items, jinja_expression(p));
        if (!jinja_take_op(p, ","))
            break;
    }
    jinja_expect_op(p, "}");
    return e;
}

static struct jinja_expr *name_or_literal(struct jinja_parser *p)
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
        if (jinja_take_word(p, words[i].word))
            return constant(p, words[i].value);
    struct jinja_expr *e = node(p, JINJA_X_NAME, NULL);
    struct jinja_name *name = jinja_expect_name(p);
    name->is_read = true;
    e->name = name;
    if (p->function) {
        p->function->uses_caller |= e->name == p->template->caller;
        p->function->uses_varargs |= e->name == p->template->varargs;
        p->function->uses_kwargs |= e->name == p->template->kwargs;
    }
    return e;
}

/* Adjacent strings are concatenated. */
static struct jinja_expr *constants(struct jinja_parser *p)
{
    struct jinja_value v = p->token.constant;
    struct jinja_expr *e = constant(p, v);
    jinja_step(p);
    if (v.kind != JINJA_STRING || p->token.kind != JINJA_TOK_CONST || p->token.constant.kind != JINJA_STRING)
        return e;
    struct jinja_text t = {0};
    jinja_add(p->j, &t, v.s, v.n);
    for (; p->token.kind == JINJA_TOK_CONST && p->token.constant.kind == JINJA_STRING; jinja_step(p))
        jinja_add(p->j, &t, p->token.constant.s, p->token.constant.n);
    e->constant = jinja_text_value(p->j, &t);
    return e;
}

static struct jinja_expr *primary(struct jinja_parser *p)
{
    struct jinja_expr *e;
    if (p->token.kind == JINJA_TOK_NAME)
        return name_or_literal(p);
    if (p->token.kind == JINJA_TOK_CONST)
        return constants(p);
    if (jinja_take_op(p, "(")) {
        e = tuple(p, true, true);
        jinja_expect_op(p, ")");
        return e;
    }
    if (jinja_take_op(p, "["))
        return list_literal(p);
    if (jinja_take_op(p, "{"))
        return dict_literal(p);
    jinja_unexpected(p, "an expression");
}

/* After "(". */
static struct jinja_call *call_arguments(struct jinja_parser *p)
{
    struct jinja_call *call = jinja_zalloc(p->j, sizeof *call);
    while (!jinja_at_op(p, ")")) {
        if (jinja_take_op(p, "**")) {
            call->star_star = jinja_expression(p);
        } else if (jinja_take_op(p, "*")) {
            call->star = jinja_expression(p);
        } else if (p->token.kind == JINJA_TOK_NAME && jinja_token_is(&p->next, JINJA_TOK_OPERATOR, "=")) {
            call->keywords = jinja_grow(p->j, call->keywords, &call->keywords_cap, call->n_keywords + 1,
                                        sizeof *call->keywords);
            const struct jinja_name *name = jinja_expect_name(p);
            jinja_step(p);
            struct jinja_expr *value = jinja_expression(p);
            call->keywords[call->n_keywords++] = (struct jinja_keyword){.name = name, .value = value};
        } else {
            if (call->n_keywords || call->star || call->star_star)
                jinja_fail(p->j, "an argument without a name follows one with a name");
            jinja_add_expr(p, &call->args, jinja_expression(p));
        }
        if (!jinja_take_op(p, ","))
            break;
    }
    jinja_expect_op(p, ")");
    return call;
}

/* After "[": an index, a slice, or several with commas, which make a tuple. */
static struct jinja_expr *subscript(struct jinja_parser *p, struct jinja_expr *base)
{
    struct jinja_exprs parts = {0}, keys = {0};
    bool slice = false;
    while (!jinja_at_op(p, "]") && !slice) {
        struct jinja_expr *e = jinja_at_op(p, ":") ? NULL : jinja_expression(p);
        if (jinja_at_op(p, ":")) {
            jinja_add_expr(p, &parts, e);
            while (jinja_take_op(p, ":") && parts.n < 3)
                jinja_add_expr(p, &parts, jinja_at_op(p, ":") || jinja_at_op(p, "]") ? NULL : jinja_expression(p));
            if (parts.n < 3)
                jinja_add_expr(p, &parts, NULL);
            slice = true;
        } else {
            jinja_add_expr(p, &keys, e);
            if (!jinja_take_op(p, ","))
                break;
        }
    }
    if (slice && keys.n)
        jinja_fail(p->j, "a slice cannot be combined with other indices");
    jinja_expect_op(p, "]");
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

static struct jinja_expr *attribute(struct jinja_parser *p, struct jinja_expr *base)
{
    if (p->token.kind == JINJA_TOK_CONST && p->token.constant.kind == JINJA_INT)
        return pair(p, JINJA_X_ITEM, base, constants(p));
    struct jinja_expr *e = node(p, JINJA_X_ATTR, base);
    e->name = jinja_expect_name(p);
    return e;
}

static struct jinja_expr *call(struct jinja_parser *p, struct jinja_expr *callee)
{
    struct jinja_expr *e = node(p, JINJA_X_CALL, callee);
    e->call = call_arguments(p);
    return e;
}

static struct jinja_expr *postfix(struct jinja_parser *p, struct jinja_expr *e)
{
    for (;;) {
        if (jinja_take_op(p, "."))
            e = attribute(p, e);
        else if (jinja_take_op(p, "["))
            e = subscript(p, e);
        else if (jinja_take_op(p, "("))
            e = call(p, e);
        else
            return e;
    }
}

static struct jinja_expr *filter(struct jinja_parser *p, struct jinja_expr *operand)
{
    struct jinja_expr *e = node(p, JINJA_X_FILTER, operand);
    e->function_name = jinja_expect_name(p);
    e->function = jinja_find_filter(e->function_name->s, e->function_name->n);
    e->call = jinja_take_op(p, "(") ? call_arguments(p) : jinja_zalloc(p->j, sizeof *e->call);
    return e;
}

/* A test may have one argument without brackets: "is divisibleby 3". */
static bool bare_argument_follows(const struct jinja_parser *p)
{
    static const char *const no[] = {"else", "or", "and"}; /* other names are variables, even "if" and "in" */
    if (p->token.kind == JINJA_TOK_CONST || jinja_at_op(p, "[") || jinja_at_op(p, "{"))
        return true;
    if (p->token.kind != JINJA_TOK_NAME)
        return false;
    for (size_t i = 0; i < sizeof no / sizeof *no; i++)
        if (jinja_at_word(p, no[i]))
            return false;
    if (jinja_at_word(p, "is"))
        jinja_fail(p->j, "tests cannot be chained with 'is'");
    return true;
}

static struct jinja_expr *test(struct jinja_parser *p, struct jinja_expr *operand)
{
    bool negated = jinja_take_word(p, "not");
    struct jinja_expr *e = node(p, JINJA_X_TEST, operand);
    e->function_name = jinja_expect_name(p);
    e->function = jinja_find_test(e->function_name->s, e->function_name->n);
    if (jinja_take_op(p, "(")) {
        e->call = call_arguments(p);
    } else {
        e->call = jinja_zalloc(p->j, sizeof *e->call);
        if (bare_argument_follows(p))
            jinja_add_expr(p, &e->call->args, postfix(p, primary(p)));
    }
    return negated ? node(p, JINJA_X_NOT, e) : e;
}

static struct jinja_expr *filters_and_tests(struct jinja_parser *p, struct jinja_expr *e)
{
    for (;;) {
        if (jinja_take_op(p, "|"))
            e = filter(p, e);
        else if (jinja_take_word(p, "is"))
            e = test(p, e);
        else if (jinja_take_op(p, "("))
            e = call(p, e);
        else
            return e;
    }
}

static struct jinja_expr *unary(struct jinja_parser *p, bool with_filters)
{
    struct jinja_expr *e;
    jinja_nest(p);
    if (jinja_take_op(p, "-"))
        e = node(p, JINJA_X_NEGATE, unary(p, false));
    else if (jinja_take_op(p, "+"))
        e = node(p, JINJA_X_PLUS, unary(p, false));
    else
        e = primary(p);
    e = postfix(p, e);
    if (with_filters)
        e = filters_and_tests(p, e);
    jinja_unnest(p);
    return e;
}

static struct jinja_expr *power(struct jinja_parser *p)
{
    struct jinja_expr *e = unary(p, true);
    while (jinja_take_op(p, "**"))
        e = binary(p, JINJA_OP_POW, e, unary(p, true));
    return e;
}

static struct jinja_expr *product(struct jinja_parser *p)
{
    struct jinja_expr *e = power(p);
    for (;;) {
        if (jinja_take_op(p, "*"))
            e = binary(p, JINJA_OP_MUL, e, power(p));
        else if (jinja_take_op(p, "//"))
            e = binary(p, JINJA_OP_FLOORDIV, e, power(p));
        else if (jinja_take_op(p, "/"))
            e = binary(p, JINJA_OP_DIV, e, power(p));
        else if (jinja_take_op(p, "%"))
            e = binary(p, JINJA_OP_MOD, e, power(p));
        else
            return e;
    }
}

static struct jinja_expr *concatenation(struct jinja_parser *p)
{
    struct jinja_expr *first = product(p);
    if (!jinja_at_op(p, "~"))
        return first;
    struct jinja_expr *e = node(p, JINJA_X_CONCAT, NULL);
    jinja_add_expr(p, &e->items, first);
    while (jinja_take_op(p, "~"))
        jinja_add_expr(p, &e->items, product(p));
    return e;
}

static struct jinja_expr *sum(struct jinja_parser *p)
{
    struct jinja_expr *e = concatenation(p);
    for (;;) {
        if (jinja_take_op(p, "+"))
            e = binary(p, JINJA_OP_ADD, e, concatenation(p));
        else if (jinja_take_op(p, "-"))
            e = binary(p, JINJA_OP_SUB, e, concatenation(p));
        else
            return e;
    }
}

static bool comparison_operator(struct jinja_parser *p, enum jinja_operator *op)
{
    static const struct {
        const char *text;
        enum jinja_operator op;
    } operators[] = {{"==", JINJA_OP_EQ}, {"!=", JINJA_OP_NE}, {"<=", JINJA_OP_LE},
                     {">=", JINJA_OP_GE}, {"<", JINJA_OP_LT},  {">", JINJA_OP_GT}};
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++)
        if (jinja_take_op(p, operators[i].text)) {
            *op = operators[i].op;
            return true;
        }
    if (jinja_take_word(p, "in")) {
        *op = JINJA_OP_IN;
        return true;
    }
    if (jinja_at_word(p, "not") && jinja_token_is(&p->next, JINJA_TOK_NAME, "in")) {
        jinja_step(p);
        jinja_step(p);
        *op = JINJA_OP_NOT_IN;
        return true;
    }
    return false;
}

static struct jinja_expr *comparison(struct jinja_parser *p)
{
    struct jinja_expr *first = sum(p), *e = NULL;
    enum jinja_operator op;
    while (comparison_operator(p, &op)) {
        if (!e)
            e = node(p, JINJA_X_COMPARE, first);
        e->compare.ops = jinja_grow(p->j, e->compare.ops, &e->compare.ops_cap, e->compare.operands.n + 1, sizeof op);
        e->compare.ops[e->compare.operands.n] = op;
        jinja_add_expr(p, &e->compare.operands, sum(p));
    }
    return e ? e : first;
}

static struct jinja_expr *not_expression(struct jinja_parser *p)
{
    if (!jinja_at_word(p, "not"))
        return comparison(p);
    jinja_nest(p);
    jinja_step(p);
    struct jinja_expr *e = node(p, JINJA_X_NOT, not_expression(p));
    jinja_unnest(p);
    return e;
}

static struct jinja_expr *and_expression(struct jinja_parser *p)
{
    struct jinja_expr *e = not_expression(p);
    while (jinja_take_word(p, "and"))
        e = pair(p, JINJA_X_AND, e, not_expression(p));
    return e;
}

static struct jinja_expr *or_expression(struct jinja_parser *p)
{
    struct jinja_expr *e = and_expression(p);
    while (jinja_take_word(p, "or"))
        e = pair(p, JINJA_X_OR, e, and_expression(p));
    return e;
}

struct jinja_expr *jinja_expression(struct jinja_parser *p)
{
    jinja_nest(p);
    struct jinja_expr *e = or_expression(p);
    while (jinja_take_word(p, "if")) {
        e = pair(p, JINJA_X_IF, e, or_expression(p));
        if (jinja_take_word(p, "else"))
            e->c = jinja_expression(p);
    }
    jinja_unnest(p);
    return e;
}

struct jinja_expr *jinja_filter_chain(struct jinja_parser *p, bool in_filter_tag)
{
    struct jinja_expr *e = in_filter_tag ? filter(p, NULL) : NULL;
    while (jinja_take_op(p, "|"))
        e = filter(p, e);
    return e;
}
