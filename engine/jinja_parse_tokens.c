/* jinja_parse_tokens.c - the parser's tokens: looking at one, consuming it, and errors about what was expected; and
 * interned names. */
#include <string.h>

#include "engine/jinja_parse.h"

void jinja_step(struct jinja_parser *p)
{
    p->token = p->next;
    p->next = jinja_lex_next(p->j, &p->lex);
    p->j->line = p->token.line;
}

bool jinja_token_is(const struct jinja_token *t, enum jinja_token_kind kind, const char *text)
{
    return t->kind == kind && strlen(text) == t->n && memcmp(t->s, text, t->n) == 0;
}

bool jinja_at_op(const struct jinja_parser *p, const char *op)
{
    return jinja_token_is(&p->token, JINJA_TOK_OPERATOR, op);
}

bool jinja_at_word(const struct jinja_parser *p, const char *word)
{
    return jinja_token_is(&p->token, JINJA_TOK_NAME, word);
}

bool jinja_take_op(struct jinja_parser *p, const char *op)
{
    bool yes = jinja_at_op(p, op);
    if (yes)
        jinja_step(p);
    return yes;
}

bool jinja_take_word(struct jinja_parser *p, const char *word)
{
    bool yes = jinja_at_word(p, word);
    if (yes)
        jinja_step(p);
    return yes;
}

_Noreturn void jinja_unexpected(struct jinja_parser *p, const char *expected)
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

void jinja_expect_op(struct jinja_parser *p, const char *op)
{
    if (!jinja_take_op(p, op))
        jinja_unexpected(p, op);
}

void jinja_expect_word(struct jinja_parser *p, const char *word)
{
    if (!jinja_take_word(p, word))
        jinja_unexpected(p, word);
}

void jinja_expect(struct jinja_parser *p, enum jinja_token_kind kind, const char *what)
{
    if (p->token.kind != kind)
        jinja_unexpected(p, what);
    jinja_step(p);
}

void jinja_nest(struct jinja_parser *p)
{
    if (++p->j->depth > JINJA_MAX_NESTING)
        jinja_fail(p->j, "more than %d expressions or blocks inside each other", JINJA_MAX_NESTING);
}

void jinja_unnest(struct jinja_parser *p)
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

struct jinja_name *jinja_intern(struct jinja_parser *p, const char *s, size_t n)
{
    size_t bucket;
    struct jinja_name **names = p->template->names, *name = jinja_name_find(names, s, n, &bucket);
    if (name)
        return name;
    name = jinja_alloc(p->j, sizeof *name);
    *name = (struct jinja_name){.next = names[bucket], .s = s, .n = (uint32_t)n};
    return names[bucket] = name;
}

struct jinja_name *jinja_expect_name(struct jinja_parser *p)
{
    if (p->token.kind != JINJA_TOK_NAME)
        jinja_unexpected(p, "a name");
    struct jinja_name *name = jinja_intern(p, p->token.s, p->token.n);
    jinja_step(p);
    return name;
}
