/* jinja_ast.h - a parsed template. All of it is in the template's own arena, and constant after parsing. */
#ifndef PP_ENGINE_JINJA_AST_H
#define PP_ENGINE_JINJA_AST_H

#include "engine/jinja_value.h"

/* Identifiers are interned: within a template equal names are the same pointer. */
struct jinja_name {
    struct jinja_name *next; /* in its bucket of the parser's table */
    const char *s;
    uint32_t n;
    bool is_read; /* used as a variable somewhere */
    bool is_bound; /* while jinja_scopes.c processes a body that uses it */
    bool is_block; /* the name of a block */
};

/* Whether output is HTML: determined by the surrounding autoescape tags, whose conditions may be known only at run
 * time. */
enum jinja_escapes { JINJA_ESCAPES_NOT, JINJA_ESCAPES, JINJA_MAY_ESCAPE };

enum jinja_expr_kind {
    JINJA_X_CONST,
    JINJA_X_NAME,
    JINJA_X_LIST,
    JINJA_X_TUPLE,
    JINJA_X_DICT,    /* items: key, value, key, value, ... */
    JINJA_X_ATTR,    /* a.name */
    JINJA_X_ITEM,    /* a[b] */
    JINJA_X_SLICE,   /* a[items[0]:items[1]:items[2]], each may be NULL */
    JINJA_X_CALL,    /* a(call) */
    JINJA_X_FILTER,  /* a|name(call); a is NULL in a filter block */
    JINJA_X_TEST,    /* a is name(call) */
    JINJA_X_NOT,
    JINJA_X_NEGATE,
    JINJA_X_PLUS,
    JINJA_X_AND,
    JINJA_X_OR,
    JINJA_X_IF,      /* a if b else c; c may be NULL */
    JINJA_X_CONCAT,  /* items joined by ~ */
    JINJA_X_COMPARE, /* a, then pairs of (operator, operand) */
    JINJA_X_BINARY,
};

enum jinja_operator {
    JINJA_OP_ADD, JINJA_OP_SUB, JINJA_OP_MUL, JINJA_OP_DIV, JINJA_OP_FLOORDIV, JINJA_OP_MOD, JINJA_OP_POW,
    JINJA_OP_EQ, JINJA_OP_NE, JINJA_OP_LT, JINJA_OP_LE, JINJA_OP_GT, JINJA_OP_GE, JINJA_OP_IN, JINJA_OP_NOT_IN,
};

struct jinja_expr;

struct jinja_exprs {
    struct jinja_expr **items; // [n]
    size_t n, cap;
};

struct jinja_keyword {
    const struct jinja_name *name;
    struct jinja_expr *value;
};

struct jinja_call {
    struct jinja_exprs args;
    struct jinja_keyword *keywords; // [n_keywords]
    size_t n_keywords, keywords_cap;
    struct jinja_expr *star, *star_star; /* *args and **kwargs, or NULL */
};

struct jinja_expr {
    uint8_t kind; /* enum jinja_expr_kind */
    uint8_t escapes; /* CONCAT: enum jinja_escapes */
    uint32_t line;
    struct jinja_expr *a;
    union {
        struct jinja_value constant;
        const struct jinja_name *name; /* NAME, ATTR */
        struct jinja_exprs items;      /* LIST, TUPLE, DICT, SLICE, CONCAT */
        struct {
            struct jinja_expr *b, *c; /* ITEM, AND, OR, IF, BINARY */
            enum jinja_operator op;   /* BINARY */
        };
        struct {
            struct jinja_exprs operands; // [n]
            enum jinja_operator *ops;    // [n]
            size_t ops_cap;
        } compare;
        struct {
            const struct jinja_name *function_name;   /* FILTER, TEST */
            const struct jinja_builtin *function;     /* FILTER, TEST; NULL if there is none of that name */
            struct jinja_call *call;                  /* CALL, FILTER, TEST */
        };
    };
};

enum jinja_stmt_kind {
    JINJA_S_TEXT,
    JINJA_S_PRINT,
    JINJA_S_IF,
    JINJA_S_FOR,
    JINJA_S_BREAK,
    JINJA_S_CONTINUE,
    JINJA_S_SET,       /* target = value */
    JINJA_S_SET_BLOCK, /* target = what the body prints, through filter if any */
    JINJA_S_MACRO,
    JINJA_S_CALL,      /* value is a call; the body is its caller */
    JINJA_S_FILTER,    /* the body through filter */
    JINJA_S_WITH,
    JINJA_S_SCOPE,     /* the generation tag: its body is called at once */
    JINJA_S_BLOCK,
    JINJA_S_AUTOESCAPE,
    JINJA_S_LOAD,      /* extends, include, import: they refer to other templates, and there are none */
};

struct jinja_stmt;

struct jinja_body {
    struct jinja_stmt *first, *last;
    const struct jinja_name **hidden; // [n_hidden] undefined until the body sets them
    size_t n_hidden, hidden_cap;
};

enum jinja_target_kind { JINJA_T_NAME, JINJA_T_MEMBER, JINJA_T_TUPLE };

/* The target of an assignment. */
struct jinja_target {
    uint8_t kind;
    const struct jinja_name *name;   /* NAME; MEMBER: the namespace */
    const struct jinja_name *member; /* MEMBER */
    struct jinja_target **items;     // [n], TUPLE
    size_t n, cap;
};

/* A macro, or the body of a call block. */
struct jinja_function {
    const struct jinja_name *name;
    const struct jinja_name **params; // [n_params]
    struct jinja_expr **defaults;     // [n_params], NULL where there is none
    size_t n_params, params_cap, defaults_cap;
    bool uses_caller, uses_varargs, uses_kwargs;
    struct jinja_body body;
};

struct jinja_stmt {
    uint8_t kind; /* enum jinja_stmt_kind */
    uint8_t escapes; /* PRINT, SET_BLOCK: enum jinja_escapes */
    uint32_t line;
    struct jinja_stmt *next;
    union {
        struct {
            const char *text;
            size_t n;
        };
        struct jinja_expr *value; /* PRINT */
        struct {
            const struct jinja_name *name;
            struct jinja_stmt *earlier; /* block of the template */
            struct jinja_body body;
            bool scoped, required;
        } block;
        struct {
            struct jinja_expr *condition;
            struct jinja_body body;
        } escape;
        struct {
            struct jinja_expr *source;
            bool ignore_missing;
        } load;
        struct {
            struct jinja_expr *condition;
            struct jinja_body then, otherwise; /* an elif is an if in `otherwise` */
        } branch;
        struct {
            struct jinja_target *target;
            struct jinja_expr *iterable, *filter; /* filter may be NULL */
            struct jinja_body body, otherwise;
            bool recursive;
        } loop;
        struct {
            struct jinja_target *target;
            struct jinja_expr *value;  /* SET */
            struct jinja_expr *filter; /* SET_BLOCK (or NULL), FILTER: a chain whose innermost operand is NULL */
            struct jinja_body body;
        } set;
        struct {
            struct jinja_function *function;
            struct jinja_expr *call; /* CALL */
        } macro;
        struct {
            struct jinja_target **targets; // [n]
            struct jinja_exprs values;     // [n]
            size_t targets_cap;
            struct jinja_body body;
        } with;
    };
};

struct jinja_template {
    struct jinja_body body;
    const struct jinja_name *loop, *caller, *varargs, *kwargs, *self; /* the names the evaluator binds itself */
    struct jinja_stmt *blocks; /* linked from the last one */
    struct jinja_name **names; // [JINJA_NAME_BUCKETS], by jinja_name_find
};

enum { JINJA_NAME_BUCKETS = 256 };
/* The name of n bytes in its bucket, or NULL. *bucket: where it is or would be. */
struct jinja_name *jinja_name_find(struct jinja_name *const *names, const char *s, size_t n, size_t *bucket);

/* Finds what each body of a template that has been parsed hides (jinja_scopes.c). */
void jinja_find_hidden(struct jinja *j, struct jinja_template *t);

/* Calls fn for each text in a template, including those in expressions (jinja_texts.c); looked_for: it is compared with
 * something, or passed to a function. */
typedef void jinja_text_fn(void *ctx, const char *s, size_t n, bool looked_for);
void jinja_texts(const struct jinja_template *t, jinja_text_fn *fn, void *ctx);

/* Parses j's source into j's arena. Fails like everything else on j. */
struct jinja_template *jinja_parse(struct jinja *j, const char *source, size_t n);

#endif
