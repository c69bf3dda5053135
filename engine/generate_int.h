/* generate_int.h - struct pp_gen and its internal functions. Private to the engine; on the engine's thread.
 *
 *   generate.c   beginning and end, choice of tokens, text
 *   schedule.c   the forward passes that answers share
 *   speculate.c  draft tokens, for speculative decoding */
#ifndef PP_ENGINE_GENERATE_INT_H
#define PP_ENGINE_GENERATE_INT_H

#include "engine/constraint.h"
#include "engine/engine_int.h"
#include "engine/sampler.h"
#include "engine/speculate.h"
#include "engine/speculate_bridge.h"

/* Between two passes the sequence holds fewer tokens than `tokens`: the last chosen one, at least, has not been
 * computed yet, and at first none of the prompt. */
struct pp_gen {
    struct pp_seq *seq, *draft;
    struct pp_sampling sampling;
    struct pp_sampler sampler;
    int64_t max_tokens;
    struct pp_spec spec;
    struct pp_bridge *bridge; /* to a draft model with another vocabulary; NULL: it has the same */
    const int32_t *forced;
    int64_t n_forced;
    bool ignore_end;
    struct pp_constraint *constraint; /* to a grammar; or NULL */
    int32_t written[PP_MAX_WRITTEN];
    int n_written;
    char **stops;
    int n_stops;
    size_t longest_stop;
    pp_progress *progress;
    void *user;

    int32_t *tokens;        /* [n_ctx + 1 + PP_DRAFT_MAX_LIMIT]: prompt and answer, then room for draft tokens */
    int64_t n_prompt, n;    /* n: prompt and tokens chosen so far */
    int64_t n_reported;     /* the part of n that the caller knows of: prompt and reported tokens */
    enum pp_finish finish;
    struct pp_buf held;     /* text not shown yet: could be part of a character, or of a stop string */
    size_t n_pending;       /* its last bytes, whose shown form is not decided yet (pp_shown_text) */
    struct pp_buf held_drafted; /* for each byte of `held`, whether its token was drafted */
    uint64_t begin_ns;
    uint64_t copied_before; /* seq->copied_bytes when the answer began */
    struct pp_stats stats;  /* of this answer alone */
};

/* --- generate.c --- */

bool pp_gen_ends(const struct pp_gen *g, int32_t token); /* it is an end-of-text token for this answer */
/* Samples the token after tokens[0..n_history); token -1: impossible (logits are NaN). */
struct pp_choice pp_gen_choose(struct pp_gen *g, const float *logits, int64_t n_history);
/* Appends a chosen token to the answer. True if the answer is over. */
bool pp_gen_accept(struct pp_gen *g, int32_t token, bool drafted);
/* The error for pp_gen_choose's -1. */
enum pp_code pp_gen_no_token(const struct pp_gen *g, struct pp_error *err);
/* Moves text that may be shown to item->text. */
void pp_gen_emit_text(struct pp_gen_item *item);

/* --- schedule.c --- */

/* As pp_gen_step, but leaves text in g->held: item->text may be NULL. */
enum pp_code pp_gen_advance(struct pp_gen_item *items, int n, const struct pp_cancel *cancel, struct pp_error *err);

#endif
