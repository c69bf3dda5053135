/* constraint.h - holds an answer to a grammar: what may be chosen next, and after each draft token. Private to the
 * engine; on the engine's thread.
 *
 * The grammar applies to the answer, not to the reasoning before it. While the model thinks, everything is allowed;
 * the grammar begins behind the closing tag and the blanks that come with it. A model that may think but need not
 * chooses by its first token: the opening tag, or the beginning of the answer. */
#ifndef PP_ENGINE_CONSTRAINT_H
#define PP_ENGINE_CONSTRAINT_H

#include "engine/grammar_mask.h"

struct pp_constraint;

/* use: the grammar and what belongs to it, copied; the grammar must outlive *out. ends [n_ends]: tokens that end an
 * answer, copied. most_drafted: how many tokens may be drafted. The caller owns *out. PP_ERR_USAGE: the grammar names a
 * token that the vocabulary lacks, or refuses what has been written already; PP_ERR_UNSUPPORTED, PP_ERR_NOMEM. */
enum pp_code pp_constraint_new(const struct pp_grammar_use *use, const struct pp_tokenizer *t,
                               const struct pp_trie *trie, const int32_t *ends, size_t n_ends, int most_drafted,
                               struct pp_constraint **out, struct pp_error *err);
void pp_constraint_free(struct pp_constraint *c); /* NULL is fine */
/* Sets *words to a bit per token that may follow n_drafted draft tokens, or to NULL: all may. Valid until the next
 * call. Fails as pp_constraint_accept does. */
enum pp_code pp_constraint_allowed(struct pp_constraint *c, int n_drafted, const uint64_t **words,
                                   struct pp_error *err);
/* Adds a draft token to n_drafted others; false: the grammar refuses it. */
bool pp_constraint_draft(struct pp_constraint *c, int n_drafted, int32_t token);
/* A token was chosen, which ends nothing; the draft tokens are dropped. What goes wrong is told now and by every later
 * call: PP_ERR_FORMAT: the grammar refuses the token; PP_ERR_UNSUPPORTED: it is too ambiguous; PP_ERR_NOMEM. */
enum pp_code pp_constraint_accept(struct pp_constraint *c, int32_t token, struct pp_error *err);
/* Nothing may follow: the answer is complete. */
bool pp_constraint_over(const struct pp_constraint *c);
/* For an answer in which no allowed token can be chosen. */
enum pp_code pp_constraint_stuck(struct pp_constraint *c, struct pp_error *err);

#endif
