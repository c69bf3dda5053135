/* jinja_lex.h - template text to tokens, with the white space rules of trim_blocks and lstrip_blocks. */
#ifndef PP_ENGINE_JINJA_LEX_H
#define PP_ENGINE_JINJA_LEX_H

#include "engine/jinja_value.h"

enum jinja_token_kind {
    JINJA_TOK_END,
    JINJA_TOK_TEXT,        /* between tags */
    JINJA_TOK_PRINT_BEGIN, /* {{ */
    JINJA_TOK_PRINT_END,
    JINJA_TOK_BLOCK_BEGIN, /* {% */
    JINJA_TOK_BLOCK_END,
    JINJA_TOK_NAME,
    JINJA_TOK_CONST,       /* string, integer or float */
    JINJA_TOK_OPERATOR,
};

struct jinja_token {
    enum jinja_token_kind kind;
    uint32_t line;
    const char *s; /* TEXT, NAME, OPERATOR: the bytes */
    size_t n;
    struct jinja_value constant;
};

struct jinja_lexer {
    const char *p, *end; /* the rest of the source; line ends are "\n" */
    uint32_t line;
    bool line_start;     /* p is at the start of a line, for lstrip_blocks */
    uint8_t inside;      /* 0 outside of tags, '{' in {{ }}, '%' in {% %} */
    bool raw;            /* between {% raw %} and {% endraw %} */
    char brackets[JINJA_MAX_NESTING]; /* the expected closing brackets */
    size_t n_brackets;
};

/* Copies the source, with line ends unified and one at its very end removed. */
void jinja_lex_begin(struct jinja *j, struct jinja_lexer *lex, const char *source, size_t n);
struct jinja_token jinja_lex_next(struct jinja *j, struct jinja_lexer *lex);

#endif
