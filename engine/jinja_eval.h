/* jinja_eval.h - running a parsed template, and the tables of filters, tests, methods and globals. */
#ifndef PP_ENGINE_JINJA_EVAL_H
#define PP_ENGINE_JINJA_EVAL_H

#include "engine/jinja_value.h"

struct jinja_function;
struct jinja_template;
struct jinja_stmt;
struct jinja_scope;

/* The arguments of a call. */
struct jinja_args {
    const struct jinja_value *pos; // [n_pos]
    size_t n_pos;
    const struct jinja_pair *named; // [n_named], keys are strings
    size_t n_named;
};

/* A builtin. self: the value left of the bar or the dot, the value tested, or missing for a global. arg: the arguments
 * in the order of `params`, JINJA_MISSING where not given; NULL if it takes any, which are then in args. */
typedef struct jinja_value jinja_builtin_fn(struct jinja *j, struct jinja_value self, const struct jinja_value *arg,
                                            const struct jinja_args *args);
struct jinja_builtin {
    const char *name;
    jinja_builtin_fn *fn;
    const char *params; /* names with single spaces between; "" for none, NULL for any number */
    int required;       /* how many of them must be given; with enum jinja_marks */
};
/* What happens to a text's mark as HTML: removed, or (KEEPS) given to the result or its parts. The other two also
 * escape texts that are combined with it: the second argument, or all. */
enum jinja_marks { JINJA_KEEPS = 16, JINJA_KEEPS_ESCAPES_SECOND = 32, JINJA_KEEPS_ESCAPES_ALL = 48, JINJA_MARKS = 48 };

const struct jinja_builtin *jinja_find_filter(const char *name, size_t n);
const struct jinja_builtin *jinja_find_test(const char *name, size_t n);
const struct jinja_builtin *jinja_find_global(const char *name, size_t n);
extern const struct jinja_builtin jinja_bytes_methods[], jinja_set_methods[], jinja_view_methods[];
/* A method of v's type, or NULL. */
const struct jinja_builtin *jinja_find_method(struct jinja_value v, const char *name, size_t n);
/* Looks a name up in a table that ends with a NULL name. */
const struct jinja_builtin *jinja_find_builtin(const struct jinja_builtin *table, const char *name, size_t n);

/* Sorts arguments to parameters and calls. */
struct jinja_value jinja_invoke(struct jinja *j, const struct jinja_builtin *b, struct jinja_value self,
                                const struct jinja_args *args);
/* Calls any callable value. */
struct jinja_value jinja_call(struct jinja *j, struct jinja_value callee, const struct jinja_args *args);
bool jinja_callable(struct jinja_value v);

/* Convert arguments to numbers and strings, with a default if missing (or none, for numbers); fail for other types. */
int64_t jinja_arg_int(struct jinja *j, struct jinja_value v, int64_t otherwise);
struct jinja_value jinja_arg_str(struct jinja *j, struct jinja_value v, const char *otherwise);

/* --- jinja_ops.c ------------------------------------------------------------------------------------------- */

struct jinja_value jinja_attribute(struct jinja *j, struct jinja_value v, struct jinja_value name); /* v.name */
struct jinja_value jinja_item(struct jinja *j, struct jinja_value v, struct jinja_value key);       /* v[key] */
/* v[from:to:step]; an absent bound is none. */
struct jinja_value jinja_slice(struct jinja *j, struct jinja_value v, struct jinja_value from, struct jinja_value to,
                               struct jinja_value step);
/* Whether such a slice of a literal gives a value. */
bool jinja_can_slice(struct jinja_value v, const struct jinja_value bounds[3]);
/* How a slice of a range prints, if the range prints as `whole` (jinja_call.c). */
const char *jinja_range_part(struct jinja *j, const char *whole, int64_t from, int64_t to, int64_t step);
/* start, stop or step of a range; missing: another name (jinja_call.c). */
struct jinja_value jinja_range_attribute(struct jinja_value range, struct jinja_value name);
/* An operator of enum jinja_operator, comparisons included. */
struct jinja_value jinja_operate(struct jinja *j, int op, struct jinja_value a, struct jinja_value b);
/* +, -, *, // and % of integers of any size (jinja_big.c). */
struct jinja_value jinja_big_operate(struct jinja *j, int op, struct jinja_value a, struct jinja_value b);
bool jinja_contains(struct jinja *j, struct jinja_value container, struct jinja_value v);
struct jinja_value jinja_negate(struct jinja *j, struct jinja_value v);
struct jinja_value jinja_plus(struct jinja *j, struct jinja_value v);
/* Fails if v is undefined, with its name. */
void jinja_require_defined(struct jinja *j, struct jinja_value v);
/* Stable; ascending by key. */
void jinja_sort_pairs(struct jinja *j, struct jinja_pair *pairs, size_t n);

/* --- jinja_eval.c ------------------------------------------------------------------------------------------ */

struct jinja_macro {
    const struct jinja_function *function;
    struct jinja_scope *closure; /* where it was defined */
};

struct jinja_loop {
    const struct jinja_list *items;
    size_t at;    /* of the current item */
    size_t depth; /* of a recursive loop, from 1 */
    const struct jinja_stmt *statement;
    struct jinja_scope *outer;
    struct jinja_value last; /* what changed() saw, or missing */
    struct jinja_list *kept; /* with a filter: the items that passed so far; otherwise NULL */
    const struct jinja_list *all; /* the unfiltered items */
    size_t seen;                  /* how many of them were filtered */
    struct jinja_scope *sieve;    /* scope of the filter */
};

struct jinja_value jinja_call_macro(struct jinja *j, const struct jinja_macro *macro, const struct jinja_args *args);
/* loop(iterable) in a recursive loop. */
struct jinja_value jinja_call_loop(struct jinja *j, const struct jinja_loop *loop, const struct jinja_args *args);
struct jinja_value jinja_loop_attribute(struct jinja *j, struct jinja_value loop, struct jinja_value name);
struct jinja_value jinja_macro_attribute(struct jinja *j, struct jinja_value macro, struct jinja_value name);
/* The output of a block. */
struct jinja_value jinja_call_block(struct jinja *j, const struct jinja_stmt *block);
/* A block by its name, to be called; or missing. */
struct jinja_value jinja_self_attribute(struct jinja *j, struct jinja_value name);
/* v as HTML: escaped, unless it is marked. */
struct jinja_value jinja_as_html(struct jinja *j, struct jinja_value v);
/* jinja_join() with everything escaped to HTML, and marked. */
struct jinja_value jinja_join_html(struct jinja *j, struct jinja_value sep, const struct jinja_list *parts);
/* Renders into *j->out with the variables of j->context. */
void jinja_run(struct jinja *j, const struct jinja_template *t);

#endif
