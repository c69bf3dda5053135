/* jinja_parse.h - shared by the parser's files: its state, tokens (jinja_parse_tokens.c) and expressions
 * (jinja_parse_expr.c). Statements are in jinja_parse.c. Like everything on a struct jinja it fails by a jump, and
 * allocates in that arena. */
#ifndef PP_ENGINE_JINJA_PARSE_H
#define PP_ENGINE_JINJA_PARSE_H

#include "engine/jinja_ast.h"
#include "engine/jinja_lex.h"

struct jinja_parser {
    struct jinja *j;
    struct jinja_lexer lex;
    struct jinja_token token, next;   /* the current one and the one after it */
    struct jinja_function *function;  /* the macro being parsed, or NULL */
    unsigned loops;                   /* loops around this place, within this function */
    unsigned for_tags;                /* for tags around this place, also outside this function */
    unsigned inner;                   /* tags around this place that have variables of their own */
    uint8_t escapes;                  /* enum jinja_escapes */
    struct jinja_template *template;
};

/* --- tokens --------------------------------------------------------------------------------------------- */

void jinja_step(struct jinja_parser *p); /* advances to the next token */
bool jinja_token_is(const struct jinja_token *t, enum jinja_token_kind kind, const char *text);
/* Whether the current token is this operator or word; take: consumes it if so. */
bool jinja_at_op(const struct jinja_parser *p, const char *op);
bool jinja_at_word(const struct jinja_parser *p, const char *word);
bool jinja_take_op(struct jinja_parser *p, const char *op);
bool jinja_take_word(struct jinja_parser *p, const char *word);
/* Consumes it, or fails and says what was expected. */
void jinja_expect_op(struct jinja_parser *p, const char *op);
void jinja_expect_word(struct jinja_parser *p, const char *word);
void jinja_expect(struct jinja_parser *p, enum jinja_token_kind kind, const char *what);
struct jinja_name *jinja_expect_name(struct jinja_parser *p);
_Noreturn void jinja_unexpected(struct jinja_parser *p, const char *expected);
/* The interned name of these bytes, which must stay valid. */
struct jinja_name *jinja_intern(struct jinja_parser *p, const char *s, size_t n);
/* Called around recursion: fails before the stack is exhausted. */
void jinja_nest(struct jinja_parser *p);
void jinja_unnest(struct jinja_parser *p);

/* --- expressions ---------------------------------------------------------------------------------------- */

struct jinja_expr *jinja_expression(struct jinja_parser *p);
/* One expression, or several separated by commas: a tuple. */
struct jinja_expr *jinja_expressions(struct jinja_parser *p);
/* The same, where "if" belongs to the tag and not to an expression. */
struct jinja_expr *jinja_expressions_without_if(struct jinja_parser *p);
/* "|upper|trim" or NULL. In a filter tag the first name has no bar before it. */
struct jinja_expr *jinja_filter_chain(struct jinja_parser *p, bool in_filter_tag);
void jinja_add_expr(struct jinja_parser *p, struct jinja_exprs *list, struct jinja_expr *e);

#endif
