/* generate_int.h - the inside of an answer in the making; private to the engine.
 *
 *   generate.c   life, choosing, text
 *   schedule.c   the forward passes that answers share
 *   speculate.c  guesses of what comes next */
#ifndef PP_ENGINE_GENERATE_INT_H
#define PP_ENGINE_GENERATE_INT_H

#include "engine/engine_int.h"
#include "engine/sampler.h"
#include "engine/speculate.h"
#include "engine/speculate_bridge.h"

/* Between two passes the sequence holds fewer tokens than were chosen: at least the last one is still to be computed,
 * and at first the prompt is. */
struct pp_gen {
    struct pp_seq *seq, *draft;
    struct pp_sampling sampling;
    struct pp_sampler sampler;
    int64_t max_tokens;
    struct pp_spec spec;
    struct pp_bridge *bridge; /* to a draft with another vocabulary; NULL: it has the same */
    const int32_t *say;
    int64_t n_say;
    bool ignore_end;
    int32_t written[PP_MAX_WRITTEN];
    int n_written;
    char **stops;
    int n_stops;
    size_t longest_stop;
    pp_progress *progress;
    void *user;

    int32_t *tokens;        /* [n_ctx + 1 + PP_MAX_GUESSES]: prompt and answer; drafted ones may stand behind */
    int64_t n_prompt, n;    /* n: chosen so far, prompt included */
    int64_t n_given;        /* of those, the caller was told of */
    enum pp_finish finish;
    struct pp_buf held;     /* text chosen but not shown: could be half a character or a stop text */
    size_t n_pending;       /* of its last bytes it is not yet known how they are shown (pp_shown_text) */
    struct pp_buf held_guessed; /* for each byte of it, whether its token had been guessed */
    uint64_t begin_ns;
    uint64_t copied_before; /* seq->copied_bytes when the answer began */
    struct pp_stats stats;  /* of this answer alone */
};

/* --- generate.c --- */

bool pp_gen_ends(const struct pp_gen *g, int32_t token); /* the answer is over with it */
/* Chooses the token behind tokens[0..n_history); -1 if none can be. */
struct pp_choice pp_gen_choose(struct pp_gen *g, const float *logits, int64_t n_history);
/* Takes a chosen token, which had been guessed or not, into the answer. True if the answer is over. */
bool pp_gen_accept(struct pp_gen *g, int32_t token, bool guessed);
/* The error that says why none could be chosen. */
enum pp_code pp_gen_no_token(const struct pp_gen *g, struct pp_error *err);
/* Hands out what may be shown. */
void pp_gen_give(struct pp_gen_turn *turn);

/* --- schedule.c --- */

/* As pp_gen_step, without handing out text: turn->text may be NULL. */
enum pp_code pp_gen_advance(struct pp_gen_turn *turns, int n, const struct pp_cancel *cancel, struct pp_error *err);

#endif
