/* grammar_build.h - making a grammar: expressions, which are compiled into nodes. Private to the engine.
 *
 * Expressions are numbers that a builder hands out, and may be used any number of times. A failure is kept in the
 * builder, and every later call returns PP_GX_EMPTY: callers check once, at the end. One thread. */
#ifndef PP_ENGINE_GRAMMAR_BUILD_H
#define PP_ENGINE_GRAMMAR_BUILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/error.h"
#include "engine/grammar.h"

/* Limits of a grammar. Nodes take 12 bytes each. */
enum {
    PP_GRAMMAR_TEXT_MOST = 1 << 20,
    PP_GRAMMAR_NODES_MOST = 1 << 19,
    PP_GRAMMAR_RULES_MOST = 1 << 16,
    PP_GRAMMAR_DEPTH_MOST = 200,     /* parentheses within parentheses */
    PP_GRAMMAR_REPEAT_MOST = 100000, /* n of {m,n} */
};
enum { PP_ALIKE_BYTES = 32 };

/* --- compiled ---------------------------------------------------------------------------------------------------- */

enum pp_node_kind {
    PP_NODE_SPLIT,      /* goes on at a and at b */
    PP_NODE_RANGE,      /* a byte lo .. hi, then a */
    PP_NODE_CALL,       /* rule b, then a */
    PP_NODE_TOKEN,      /* the token of reference b, then a */
    PP_NODE_NOT_TOKEN,  /* any other token than that of reference b, then a */
    PP_NODE_ACCEPT,     /* the end of rule b */
    PP_NODE_FAIL,       /* nothing matches */
};
struct pp_node {
    uint8_t kind, lo, hi;
    bool live;          /* the end of the rule can be reached from here */
    uint32_t a, b;
};
/* A token of the vocabulary: by its number, or (id -1) by its text. */
struct pp_token_reference {
    int32_t id;
    const char *text;
};

struct pp_grammar {
    struct pp_node *nodes;              /* [n_nodes]; node 0 is an ACCEPT that no rule owns: the end of everything */
    uint32_t n_nodes;
    uint32_t *starts;                   /* [n_rules]: first nodes; rule 0 is the root */
    bool *nullable;                     /* [n_rules]: may match nothing */
    uint32_t n_rules;
    struct pp_token_reference *tokens;  /* [n_tokens] */
    uint32_t n_tokens;
    uint32_t *alike;                    /* [n_nodes], or NULL: for a place in a long counted repetition another one,
                                         * from which the same texts of up to PP_ALIKE_BYTES bytes may follow */
    uint8_t classes[256];               /* bytes that no node tells apart have the same class */
    unsigned n_classes;
};

/* --- expressions ------------------------------------------------------------------------------------------------- */

enum { PP_GX_EMPTY = 0, PP_GX_NEVER = 1 }; /* the empty text; no text at all */

struct pp_gx {
    uint8_t kind;
    uint32_t a, b, c;
};
struct pp_rule {
    char *name;
    uint32_t expr;
    bool defined;
    size_t at; /* where it is mentioned first */
};
struct pp_chars { /* characters first .. last */
    int32_t first, last;
};

struct pp_builder {
    enum pp_code code;
    struct pp_error err;
    struct pp_gx *exprs;
    size_t n_exprs, cap_exprs;
    struct pp_rule *rules;
    size_t n_rules, cap_rules;
    struct pp_chars *chars; /* of all classes */
    size_t n_chars, cap_chars;
    struct pp_token_reference *tokens;
    size_t n_tokens, cap_tokens;
    struct pp_buf bytes;    /* of all literals */
    /* while compiling */
    struct pp_node *nodes;
    size_t n_nodes, cap_nodes;
    struct pp_alike {
        uint32_t node, other, rule; /* rule: what is repeated */
    } *alike;
    size_t n_alike, cap_alike;
};

void pp_gb_init(struct pp_builder *b);
void pp_gb_free(struct pp_builder *b);
/* Keeps the first failure. */
void pp_gb_fail(struct pp_builder *b, enum pp_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
uint32_t pp_gb_bytes(struct pp_builder *b, const char *s, size_t n);
uint32_t pp_gb_str(struct pp_builder *b, const char *s);
/* One character of these n ranges, or (negated) one of none. Halves of surrogate pairs are no characters. The ranges
 * are sorted in place. */
uint32_t pp_gb_class(struct pp_builder *b, struct pp_chars *ranges, size_t n, bool negated);
uint32_t pp_gb_seq(struct pp_builder *b, uint32_t x, uint32_t y);
uint32_t pp_gb_alt(struct pp_builder *b, uint32_t x, uint32_t y);
uint32_t pp_gb_repeat(struct pp_builder *b, uint32_t x, uint32_t least, uint32_t most); /* most UINT32_MAX: no limit */
uint32_t pp_gb_optional(struct pp_builder *b, uint32_t x);
uint32_t pp_gb_token(struct pp_builder *b, int32_t id, const char *text, size_t n, bool negated);
uint32_t pp_gb_call(struct pp_builder *b, uint32_t rule);
/* A new rule, yet to be defined; name NULL: none. The first is the root. */
uint32_t pp_gb_rule(struct pp_builder *b, const char *name, size_t n);
void pp_gb_define(struct pp_builder *b, uint32_t rule, uint32_t expr);

/* Compiles the rules. named: rules that can never end are refused by their names; else only a root that cannot is, with
 * PP_ERR_FORMAT and no text. */
enum pp_code pp_gb_compile(struct pp_builder *b, bool named, struct pp_grammar **out, struct pp_error *err);

#endif
