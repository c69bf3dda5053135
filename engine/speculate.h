/* speculate.h - guessing what an answer says next, so that the target checks several tokens in one pass instead of
 * computing them one by one; private to the engine.
 *
 * The rule (the coupling of arXiv 2408.07978): at every place the target chooses as it would have anyway, argmax over
 * log p + noise of (seed, position, token). A guess stands if and only if it is that choice. So an answer is the same,
 * token for token, whoever guessed, how much, and whether anybody did.
 *
 *   speculate.c            the guesses of a pass, for all answers in it; what came of them
 *   speculate_lookup.c     guesses by what followed the same tokens before in the conversation
 *   speculate_copy.c       the same behind an edit, where a copy was left
 *   speculate_bridge.c     a draft model with another vocabulary, by its text
 *   speculate_shortlist.c  the tokens among which a draft model chooses
 *   speculate_habits.c     how likely they are to stand
 *   speculate_control.c    how many are worth while: pure arithmetic on measured times, no clock in it
 *
 * Who guesses: the conversation (lookup, copy: free, right where text repeats), then a smaller model with KV pages of
 * its own (it chooses with the target's sampling and noise), or a script (measurements). Nothing here allocates after
 * pp_spec_new. All on the engine's thread. */
#ifndef PP_ENGINE_SPECULATE_H
#define PP_ENGINE_SPECULATE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/cancel.h"
#include "engine/base/error.h"
#include "engine/batch.h"
#include "engine/engine.h"

/* --- lookup ------------------------------------------------------------------------------------------------------ */

/* Where each pair of tokens was seen: a hash of the pair leads to its last place, and each place to the one before.
 * Against a suffix automaton of the same tokens, see speculate_lookup.c. 8 to 12 bytes a token of the context. */
struct pp_lookup {
    int32_t *last;  /* [mask + 1]: behind the newest pair with this hash, or -1 */
    int32_t *before; /* [n_ctx]: behind the pair with the same hash before that */
    uint32_t mask;
    int64_t n, most; /* tokens taken in; at most */
};

enum {
    PP_LOOKUP_LEAST = 2,  /* tokens that must agree */
    PP_LOOKUP_FULL = 32,  /* more are not counted */
};

/* For contexts of at most n_ctx tokens; it knows none yet. PP_ERR_NOMEM leaves nothing to be freed. */
enum pp_code pp_lookup_init(struct pp_lookup *l, int64_t n_ctx, struct pp_error *err);
void pp_lookup_free(struct pp_lookup *l);
/* Makes it know tokens[0 .. n): goes on from what it knows, or back. They must begin with what it knew. */
void pp_lookup_set(struct pp_lookup *l, const int32_t *tokens, int64_t n);
/* The place at which the longest end of tokens[0 .. n), which must all be known, was seen before; the newest of
 * several. What follows there begins at the returned index < n. -1: nowhere. *length: how many tokens agree. */
int64_t pp_lookup_find(const struct pp_lookup *l, const int32_t *tokens, int64_t n, int *length);

/* --- a copy with edits ------------------------------------------------------------------------------------------- */

/* Text that is copied with edits: behind a word that was changed, put in or left out, the copy most likely goes on
 * close to where it was left. A lookup finds that again only when PP_LOOKUP_LEAST tokens agree, and takes them for
 * chance until they are many. */
struct pp_copy {
    int64_t at;       /* tokens of the answer that it has followed */
    int64_t from;     /* what the copy says next, if `agreed` > 0; -1: nothing is copied */
    int64_t left;     /* what it would have said when it was left; -1: it was not */
    int agreed;       /* tokens in a row since it began, or goes on; 0: it was left, and is to be found again */
    int behind;       /* tokens of the answer since it was left */
};

void pp_copy_init(struct pp_copy *c); /* nothing is copied */
/* Follows the answer to tokens[0 .. n), of which a lookup has found `length` tokens before tokens[from]. */
void pp_copy_set(struct pp_copy *c, const int32_t *tokens, int64_t n, int64_t from, int length);
/* Where a copy that was left goes on, at an index < n; -1: nowhere. *agreed: how many tokens have shown that it does;
 * below 1 none, and so many are different. */
int64_t pp_copy_next(const struct pp_copy *c, int *agreed);

/* --- shortlist --------------------------------------------------------------------------------------------------- */

/* Tokens, in groups of neighbours (batch.h), of an answer and its draft model, which has the same vocabulary. */
struct pp_shortlist {
    int32_t *groups;      /* [most], ascending */
    bool *has;            /* [n_all] */
    int n, most, n_all;   /* n_all 0: the vocabulary is too small for a list */
    int64_t n_tokens;     /* of the answer, prompt included, that were taken in */
    double missed;        /* of the tokens chosen of late, those that were not in it */
};

/* Begins with the first groups of the vocabulary, where the most frequent tokens are. PP_ERR_NOMEM leaves nothing to be
 * freed. */
enum pp_code pp_shortlist_init(struct pp_shortlist *l, int64_t n_vocab, struct pp_error *err);
void pp_shortlist_free(struct pp_shortlist *l);
/* Takes in what is new in tokens[0 .. n), of which the first n_prompt were not chosen. */
void pp_shortlist_set(struct pp_shortlist *l, const int32_t *tokens, int64_t n, int64_t n_prompt);
/* Whether the draft is to choose among these only: not where too much is missing, as in a text of rare tokens. */
bool pp_shortlist_serves(const struct pp_shortlist *l);

/* --- control ----------------------------------------------------------------------------------------------------- */

enum pp_guesser { PP_GUESS_LOOKUP, PP_GUESS_COPY, PP_GUESS_MODEL, PP_GUESS_SCRIPT, PP_GUESSERS };

enum {
    PP_SPEC_LEVELS = 8,   /* of confidence */
    PP_SPEC_KINDS = 8,    /* of text */
    PP_SPEC_ROWS = 32,    /* passes of more rows are not told apart by their rows */
};

/* A time that is measured again and again: a mean that forgets, and that single disturbances hardly move. */
struct pp_spec_time {
    double ns;
    int n;                /* how often, up to a limit; 0: not known */
};

/* What things cost on this machine: of an engine, learned from all its answers. */
struct pp_spec_costs {
    struct pp_spec_time pass[PP_SPEC_ROWS + 1]; /* a pass of the target with so many rows, sampling included */
    struct pp_spec_time step;                   /* the draft model: a row, and the choice */
    struct pp_spec_time behind;                 /* each further row of such a step */
    double answer;                              /* tokens of an answer; 0: none has ended yet */
    int since_single;                           /* passes since one with a single row */
};

/* What guesses have cost so far, and what they have brought, against none: ns lost by the latest tokens, a few at a
 * time. So no stretch of PP_SPEC_WINDOW tokens is much slower than without guesses, whatever the text does. */
enum { PP_SPEC_WINDOW = 256, PP_SPEC_BINS = 32 };
struct pp_spec_ledger {
    double lost[PP_SPEC_BINS]; /* a ring; below 0: won */
    int at, tokens;            /* the bin being filled, and how many tokens it has */
};

/* How often guesses stand: of a conversation. Texts are of several kinds, from those of which nobody guesses anything
 * to copies; each kind adds its own number to the log odds of all guesses. Which kind the text is of at present is told
 * by what became of guesses, by how sure the draft is, and, while it is not asked, by how sure the target is. */
struct pp_spec_habits {
    double weight[PP_GUESSERS][PP_SPEC_LEVELS];  /* log odds of a guess at this level of confidence */
    double odds[PP_GUESSERS][PP_SPEC_LEVELS][PP_SPEC_KINDS]; /* what follows from them for each kind of text */
    double mean[PP_SPEC_KINDS];                  /* of odds, by the draft model's shares of the levels */
    double kind[PP_GUESSERS][PP_SPEC_KINDS];     /* probability of each kind, for each who guesses */
    double usual[PP_GUESSERS][PP_SPEC_KINDS];    /* the same, of the whole conversation */
    double share[PP_SPEC_KINDS][PP_SPEC_LEVELS]; /* of the draft model's guesses in such a text */
    double sure[PP_SPEC_KINDS][PP_SPEC_LEVELS];  /* and of the target's choices */
    double n_share[PP_SPEC_KINDS], n_sure[PP_SPEC_KINDS]; /* how many were seen, up to a limit */
    int seen[PP_GUESSERS][PP_SPEC_LEVELS];       /* guesses judged, up to a limit: much is learned from the first */
    struct pp_spec_ledger ledger;
    double budget;                               /* ns that may be spent on finding out whether a draft pays again */
};

/* The odds that guesses begin with, as they were measured on the bundled pair. */
void pp_habits_init(struct pp_spec_habits *h);
/* A new answer: the text may be of another kind. */
void pp_habits_next(struct pp_spec_habits *h);
/* A guess was right or not. */
void pp_habits_learn(struct pp_spec_habits *h, enum pp_guesser who, int level, bool stood);
/* The target chose a token, with this margin: where it is surer, its text is easier to guess. Costs nothing, unlike
 * asking the draft. */
void pp_habits_sure(struct pp_spec_habits *h, float margin);
/* The probability that a guess stands if all before it do. */
double pp_habits_odds(const struct pp_spec_habits *h, enum pp_guesser who, int level);
/* Of the draft model's guesses in a text of this kind, whatever their level. */
double pp_habits_mean_in(const struct pp_spec_habits *h, int kind);
/* kind[PP_SPEC_KINDS]: how likely each is once a guess was made at this level. */
void pp_habits_kinds(const struct pp_spec_habits *h, enum pp_guesser who, int level, double *kind);
/* The level of a model's choice by its margin (sampler.h), and of a lookup by how many tokens agree. */
int pp_level_of_margin(float margin);
int pp_level_of_match(int length);
/* The same of a copy that goes on behind an edit, by how many tokens have agreed since. */
int pp_level_of_copy(int agreed);

void pp_costs_pass(struct pp_spec_costs *c, int rows, double ns);
void pp_costs_step(struct pp_spec_costs *c, int rows, double ns);
void pp_costs_answer(struct pp_spec_costs *c, int64_t tokens);
/* The estimate for any number of rows; 0: no pass was measured. */
double pp_costs_of(const struct pp_spec_costs *c, int rows);
/* It is time for a pass without guesses, to see what one costs now. */
bool pp_costs_stale(const struct pp_spec_costs *c);

/* Where the guessing of one answer stands in a pass. */
struct pp_spec_place {
    double rate;          /* pp_control_rate: tokens per ns that can be had elsewhere */
    int rows;             /* of the pass so far */
    int guesses;          /* of this answer so far */
    int most;             /* that it may have */
    double chain;         /* probability that all of them stand */
    int64_t behind;       /* tokens that the draft model has not read, besides the one it reads in any case */
    int64_t left;         /* tokens that the answer may still have; -1: not known */
    double spent;         /* ns, on the draft model in this pass */
};

/* The tokens per ns to be had by the best fixed number of guesses, none included, with `answers` answers in each pass;
 * model: a draft model is there. 0: too little is known yet to guess at all. */
double pp_control_rate(const struct pp_spec_costs *c, const struct pp_spec_habits *h, int answers, int most,
                       bool model);
/* Whether the draft model pays at present, and is right more often than a guess of these odds: then it is asked. */
bool pp_control_prefers_model(const struct pp_spec_costs *c, const struct pp_spec_habits *h, double rate, int answers,
                              double odds);
/* Whether a guess at hand is worth a row of the pass. */
bool pp_control_keeps(const struct pp_spec_costs *c, const struct pp_spec_habits *h, const struct pp_spec_place *at,
                      enum pp_guesser who, int level);
enum pp_ask {
    PP_ASK_NOT,
    PP_ASK,
    PP_ASK_AFRESH,        /* of the text before, it reads no more than PP_SPEC_AFRESH tokens */
};
enum { PP_SPEC_AFRESH = 32 };
/* Whether it is worth while to ask the draft model for the next guess. *trial: only to learn whether it would be. */
enum pp_ask pp_control_asks(const struct pp_spec_costs *c, const struct pp_spec_habits *h,
                            const struct pp_spec_place *at, bool *trial);
/* The draft model was asked as a trial, and read so many tokens besides the one. */
void pp_control_tried(const struct pp_spec_costs *c, struct pp_spec_habits *h, int64_t behind);
/* A pass was made that took so long, and the draft model before it; so many guesses were in it, and so many tokens came
 * of it, each of which a pass without guesses would have given in `plain` ns. */
struct pp_spec_passed {
    double ns, draft_ns, plain;
    int guesses, tokens;
};
void pp_control_passed(struct pp_spec_habits *h, const struct pp_spec_passed *p);

/* --- the guesses of a pass --------------------------------------------------------------------------------------- */

struct pp_guess {
    int32_t token;
    int8_t parent;        /* guess that it follows; -1: the last chosen token */
    int8_t depth;         /* places behind the last chosen token; the first guess has 0 */
    uint8_t who, level;
    bool spare;           /* a second choice, beside one of the chain */
};

/* A guess that can be judged whether a row was spent on it or not. */
struct pp_bet {
    int32_t token;
    uint8_t who, level, depth;
    bool trial;
};

/* Of one answer. */
struct pp_spec {
    struct pp_lookup lookup;
    struct pp_copy copy;
    struct pp_shortlist shortlist;
    bool looks_up;
    bool on;              /* somebody may guess */
    bool muted;           /* but not in the next pass */
    bool adapts;          /* control decides; else as many as are set */
    int most;             /* guesses in a pass */
    int siblings;         /* second choices beside each of the model's: then the guesses are a tree */
    float least;          /* odds below which nothing is tried */
    int64_t draft_from;   /* the draft's sequence begins with this token of the answer's */
    int64_t in_step;      /* tokens of it that are known to be the answer's */
    struct pp_guess guess[PP_MAX_GUESSES];
    int n;
    struct pp_bet bets[2 * PP_MAX_GUESSES];
    int n_bets;
    int depth;            /* guesses of the chain, without spare ones */
    int room;             /* that the chain may have */
    int most_rows;        /* that the chain and what is beside it may have */
    double rate;          /* pp_control_rate at this pass */
    double chain;         /* probability that all of it stands */
    bool asking;          /* the draft model is to be asked */
    bool trial;           /* only to see how it does */
    int64_t tried_behind; /* tokens it read for that */
    uint64_t draft_ns;    /* what it has taken in this pass */
    pp_draft_script *script;
    void *script_user;
};

struct pp_gen;

enum pp_code pp_spec_new(struct pp_gen *g, const struct pp_gen_options *opt, struct pp_error *err);
void pp_spec_free(struct pp_gen *g);
/* Guesses for n answers of one engine, which have `rows` rows in the pass besides guesses, of at most most_rows. A
 * draft that fails (no pages, say) guesses no more. */
void pp_speculate(struct pp_gen *const *answers, int n, int rows, int most_rows, const struct pp_cancel *cancel);
/* The rule. chosen(user, i) gives what the target chooses at guess i, or (-1) behind the last chosen token, and takes
 * it into the answer; *over is set when the answer ends there. Returns how many guesses stand; path: which, in
 * order. */
typedef int32_t pp_spec_choose_fn(void *user, int guess, bool *over);
int pp_spec_verify(const struct pp_guess *guess, int n, pp_spec_choose_fn *chosen, void *user,
                   int8_t path[static PP_MAX_GUESSES]);
/* Which of n guesses is this token behind `parent` (-1: behind the last chosen token); -1: none. */
int pp_spec_child(const struct pp_guess *guess, int n, int parent, int32_t token);
/* What the answer chose in the pass: n_chosen tokens. */
void pp_spec_learn(struct pp_gen *g, const int32_t *chosen, int n_chosen);

#endif
