/* grammar.h - grammars that an answer must match: GBNF, and JSON Schema. Public header of libpippin.
 *
 * A grammar describes a set of texts. It is compiled once, into a recursive transition network over bytes: an automaton
 * for each rule, with an edge for a range of bytes, for a token, or for a call of another rule. So a character that is
 * divided between two tokens needs no care, and nothing depends on a vocabulary until an answer begins.
 *
 * What is supported, with examples: doc/grammar.md. */
#ifndef PP_ENGINE_GRAMMAR_H
#define PP_ENGINE_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/error.h"
#include "engine/reasoning.h"

/* Immutable: any thread, and any number of answers at once. */
struct pp_grammar;

/* Reads GBNF: n bytes, at most 1 MiB. name appears in errors, as NAME:LINE:COLUMN. The caller owns *out
 * (pp_grammar_free). PP_ERR_FORMAT: wrong syntax, a rule that is undefined, left-recursive or can never end;
 * PP_ERR_UNSUPPORTED: larger or deeper than the limits in grammar_build.h; PP_ERR_NOMEM. */
enum pp_code pp_grammar_parse(const char *text, size_t n, const char *name, struct pp_grammar **out,
                              struct pp_error *err);
/* Makes a grammar of a JSON Schema: n bytes of JSON, at most 1 MiB. PP_ERR_FORMAT: not JSON, or not a schema, or one
 * that no value fits; PP_ERR_UNSUPPORTED: a keyword that a grammar cannot express, named with its JSON pointer; or as
 * above. */
enum pp_code pp_grammar_from_schema(const char *json, size_t n, const char *name, struct pp_grammar **out,
                                    struct pp_error *err);
void pp_grammar_free(struct pp_grammar *g); /* after all answers that use it; NULL is fine */
/* Whether these n bytes are a whole text of the grammar. PP_ERR_UNSUPPORTED: the grammar is too ambiguous; *matches is
 * false then. PP_ERR_NOMEM. */
enum pp_code pp_grammar_matches(const struct pp_grammar *g, const char *text, size_t n, bool *matches,
                                struct pp_error *err);

/* How an answer uses a grammar (pp_gen_options.grammar in engine.h). */
struct pp_grammar_use {
    const struct pp_grammar *grammar;
    const struct pp_reasoning *reasoning; /* how the model marks it: the grammar begins after it. NULL: it has none */
    enum pp_answer_begin begins;
    const char *begun;                    /* [n_begun] text of a continued answer that the prompt has already */
    size_t n_begun;
};

#endif
