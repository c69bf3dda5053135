/* speculate.h - speculative decoding: tokens of an answer are guessed (drafted), and the target model verifies several
 * in one pass instead of computing them one by one. Private to the engine.
 *
 * The rule (the coupling of arXiv 2408.07978): at every place the target chooses as it would have anyway, argmax over
 * log p + noise of (seed, position, token). A guess stands (is accepted) if and only if it is that choice. So an answer
 * is the same, token for token, however many tokens are guessed, by whom, or not at all.
 *
 *   speculate.c            the guesses of a pass, for all answers in it, and their verification
 *   speculate_lookup.c     prompt lookup: guesses by what followed the same tokens before in the conversation
 *   speculate_copy.c       finds the place again where a copied text with edits was left
 *   speculate_bridge.c     a draft model with another vocabulary, by way of its text
 *   speculate_shortlist.c  the part of the vocabulary among which a draft model chooses
 *   speculate_habits.c     how likely guesses are to stand
 *   speculate_control.c    how many guesses pay off: pure arithmetic on measured times, no clock in it
 *
 * Guesses come from the conversation (lookup and copy: free, right where text repeats), then from a smaller model with
 * its own KV pages (which samples with the target's parameters and noise), or from a script (for measurements). Nothing
 * here allocates after pp_spec_new. All on the engine's thread. */
#ifndef PP_ENGINE_SPECULATE_H
#define PP_ENGINE_SPECULATE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/cancel.h"
#include "engine/base/error.h"
#include "engine/batch.h"
#include "engine/engine.h"

/* --- lookup ------------------------------------------------------------------------------------------------------ */

/* An index of where each pair of tokens occurs: hash chains, from a pair's newest occurrence back to older ones. For a
 * comparison with a suffix automaton see speculate_lookup.c. Takes 8 to 12 bytes per token of the context. */
struct pp_lookup {
    int32_t *last;  /* [mask + 1]: index after the newest pair with this hash, or -1 */
    int32_t *before; /* [n_ctx]: index after the pair with the same hash before that */
    uint32_t mask;
    int64_t n, most; /* indexed tokens; capacity */
};

enum {
    PP_LOOKUP_LEAST = 2,  /* tokens that must match */
    PP_LOOKUP_FULL = 32,  /* longer matches are not measured */
};

/* An empty index for contexts of at most n_ctx tokens. PP_ERR_NOMEM leaves nothing to be freed. */
enum pp_code pp_lookup_init(struct pp_lookup *l, int64_t n_ctx, struct pp_error *err);
void pp_lookup_free(struct pp_lookup *l);
/* Makes the index that of tokens[0 .. n), which is a prefix of the indexed tokens, or begins with them. */
void pp_lookup_set(struct pp_lookup *l, const int32_t *tokens, int64_t n);
/* Finds where the longest suffix of tokens[0 .. n), all of them indexed, occurred before, the newest of several.
 * Returns the index < n of what followed there; -1: nowhere. *length: how many tokens match. */
int64_t pp_lookup_find(const struct pp_lookup *l, const int32_t *tokens, int64_t n, int *length);

/* --- a copy with edits ------------------------------------------------------------------------------------------- */

/* Text that is copied with edits: after a word that was changed, inserted or left out, the copy most likely resumes
 * close to where it was left. A lookup finds that place only after PP_LOOKUP_LEAST tokens match, and trusts the match
 * only after many more. */
struct pp_copy {
    int64_t at;       /* tokens of the answer that it has followed */
    int64_t from;     /* index of the copied text's next token, if `agreed` > 0; -1: nothing is copied */
    int64_t left;     /* index of the next token when the copy was left; -1: it was not */
    int agreed;       /* consecutive matches since it began or resumed; 0: it was left, and must be found again */
    int behind;       /* tokens of the answer since it was left */
};

void pp_copy_init(struct pp_copy *c); /* nothing is copied */
/* Follows the answer to tokens[0 .. n), of which a lookup has found `length` tokens before tokens[from]. */
void pp_copy_set(struct pp_copy *c, const int32_t *tokens, int64_t n, int64_t from, int length);
/* The index < n at which a copy that was left resumes; -1: nowhere. *agreed: how many tokens match there; below 1 none,
 * and that many differ. */
int64_t pp_copy_next(const struct pp_copy *c, int *agreed);

/* --- shortlist --------------------------------------------------------------------------------------------------- */

/* The tokens, in groups of neighbours (batch.h), that a draft model with the answer's vocabulary computes logits of. */
struct pp_shortlist {
    int32_t *groups;      /* [most], ascending */
    bool *has;            /* [n_all] */
    int n, most, n_all;   /* n_all 0: the vocabulary is too small for a list */
    int64_t n_tokens;     /* of the answer, prompt included, that were added */
    double missed;        /* share of recently chosen tokens that were not in it */
};

/* Begins with the first groups of the vocabulary, where the most frequent tokens are. PP_ERR_NOMEM leaves nothing to be
 * freed. */
enum pp_code pp_shortlist_init(struct pp_shortlist *l, int64_t n_vocab, struct pp_error *err);
void pp_shortlist_free(struct pp_shortlist *l);
/* Adds the new tokens among tokens[0 .. n), of which the first n_prompt are the prompt. */
void pp_shortlist_set(struct pp_shortlist *l, const int32_t *tokens, int64_t n, int64_t n_prompt);
/* Whether the draft should be limited to the list: not if too many tokens were missing, as in a text of rare ones. */
bool pp_shortlist_serves(const struct pp_shortlist *l);

/* --- control ----------------------------------------------------------------------------------------------------- */

enum pp_guesser { PP_GUESS_LOOKUP, PP_GUESS_COPY, PP_GUESS_MODEL, PP_GUESS_SCRIPT, PP_GUESSERS };

enum {
    PP_SPEC_LEVELS = 8,   /* of confidence in a guess */
    PP_SPEC_KINDS = 8,    /* of text */
    PP_SPEC_ROWS = 32,    /* passes with more rows are not distinguished */
};

/* A duration that is measured repeatedly: an exponentially forgetting mean, robust against outliers. */
struct pp_spec_time {
    double ns;
    int n;                /* measurements, up to a limit; 0: not known */
};

/* What passes cost on this machine: of an engine, learned from all its answers. */
struct pp_spec_costs {
    struct pp_spec_time pass[PP_SPEC_ROWS + 1]; /* [rows] a pass of the target, sampling included */
    struct pp_spec_time step;                   /* a step of the draft model with one row, sampling included */
    struct pp_spec_time behind;                 /* each further row of such a step */
    double answer;                              /* tokens of a usual answer; 0: none has ended yet */
    int since_single;                           /* passes since one with a single row */
};

/* What guessing has gained or lost so far, compared with not guessing: ns lost by the latest tokens, in bins of a few.
 * It keeps any PP_SPEC_WINDOW consecutive tokens from being much slower than without guesses. */
enum { PP_SPEC_WINDOW = 256, PP_SPEC_BINS = 32 };
struct pp_spec_ledger {
    double lost[PP_SPEC_BINS]; /* a ring; below 0: gained */
    int at, tokens;            /* the bin being filled, and how many tokens it has */
};

/* How often guesses stand in a conversation. A mixture model: text is of one of several kinds, from unpredictable to
 * copied, and each kind shifts the log odds of all guesses. The present kind is inferred from which guesses stood, from
 * the draft's confidence, and, while it is not asked, from the target's. */
struct pp_spec_habits {
    double weight[PP_GUESSERS][PP_SPEC_LEVELS];  /* log odds of a guess at this level of confidence */
    double odds[PP_GUESSERS][PP_SPEC_LEVELS][PP_SPEC_KINDS]; /* probabilities that follow for each kind of text */
    double mean[PP_SPEC_KINDS];                  /* of odds, weighted by the draft model's share of each level */
    double kind[PP_GUESSERS][PP_SPEC_KINDS];     /* probability of each kind at present, by source of guesses */
    double usual[PP_GUESSERS][PP_SPEC_KINDS];    /* the same over the whole conversation */
    double share[PP_SPEC_KINDS][PP_SPEC_LEVELS]; /* distribution of the draft model's levels in each kind */
    double sure[PP_SPEC_KINDS][PP_SPEC_LEVELS];  /* the same of the target's choices */
    double n_share[PP_SPEC_KINDS], n_sure[PP_SPEC_KINDS]; /* how many of each were seen, up to a limit */
    int seen[PP_GUESSERS][PP_SPEC_LEVELS];       /* guesses judged, up to a limit: the first ones teach most */
    struct pp_spec_ledger ledger;
    double budget;                               /* ns that may be spent on trying whether a draft pays again */
};

/* Initial odds, as measured on the bundled pair of models. */
void pp_habits_init(struct pp_spec_habits *h);
/* A new answer begins: its text may be of another kind. */
void pp_habits_next(struct pp_spec_habits *h);
/* Learns from a guess that stood or not. */
void pp_habits_learn(struct pp_spec_habits *h, enum pp_guesser who, int level, bool stood);
/* Learns from the margin of the target's choice: where it is surer, text is easier to guess. Costs nothing, unlike
 * asking the draft. */
void pp_habits_sure(struct pp_spec_habits *h, float margin);
/* The probability that a guess stands if all before it do. */
double pp_habits_odds(const struct pp_spec_habits *h, enum pp_guesser who, int level);
/* The same for the draft model's guesses of any level in text of this kind. */
double pp_habits_mean_in(const struct pp_spec_habits *h, int kind);
/* kind[PP_SPEC_KINDS]: the probability of each kind, given a guess at this level. */
void pp_habits_kinds(const struct pp_spec_habits *h, enum pp_guesser who, int level, double *kind);
/* The level of a model's choice by its margin (sampler.h), and of a lookup by the length of the match. */
int pp_level_of_margin(float margin);
int pp_level_of_match(int length);
/* The same of a copy that resumes after an edit, by how many tokens have matched since. */
int pp_level_of_copy(int agreed);

/* Take a measurement: of a pass of the target, of a step of the draft model, of an answer's length. */
void pp_costs_pass(struct pp_spec_costs *c, int rows, double ns);
void pp_costs_step(struct pp_spec_costs *c, int rows, double ns);
void pp_costs_answer(struct pp_spec_costs *c, int64_t tokens);
/* The estimated ns of a pass with any number of rows; 0: no pass was measured. */
double pp_costs_of(const struct pp_spec_costs *c, int rows);
/* Whether it is time for a pass without guesses, to measure what one costs now. */
bool pp_costs_stale(const struct pp_spec_costs *c);

/* The state of one answer's guessing within a pass. */
struct pp_spec_place {
    double rate;          /* pp_control_rate: the tokens per ns that a further guess must beat */
    int rows;             /* of the pass so far */
    int guesses;          /* of this answer so far */
    int most;             /* of them allowed */
    double chain;         /* probability that all of them stand */
    int64_t behind;       /* tokens that the draft model has not read, besides the one it reads in any case */
    int64_t left;         /* tokens that the answer may still have; -1: not known */
    double spent;         /* ns on the draft model in this pass */
};

/* The tokens per ns achieved by the best fixed number of guesses, possibly none, with `answers` answers in each pass;
 * model: there is a draft model. 0: too little is known yet to guess at all. */
double pp_control_rate(const struct pp_spec_costs *c, const struct pp_spec_habits *h, int answers, int most,
                       bool model);
/* Whether to ask the draft model instead of using a guess of these odds: it pays at present, and is right more
 * often. */
bool pp_control_prefers_model(const struct pp_spec_costs *c, const struct pp_spec_habits *h, double rate, int answers,
                              double odds);
/* Whether a guess is worth a row of the pass. */
bool pp_control_keeps(const struct pp_spec_costs *c, const struct pp_spec_habits *h, const struct pp_spec_place *at,
                      enum pp_guesser who, int level);
enum pp_ask {
    PP_ASK_NOT,
    PP_ASK,
    PP_ASK_AFRESH,        /* but let it read no more than the last PP_SPEC_AFRESH tokens */
};
enum { PP_SPEC_AFRESH = 32 };
/* Whether to ask the draft model for the next guess. *trial: only to learn whether that would pay. */
enum pp_ask pp_control_asks(const struct pp_spec_costs *c, const struct pp_spec_habits *h,
                            const struct pp_spec_place *at, bool *trial);
/* Charges a trial of the draft model, which read `behind` tokens to catch up besides the last one, to the budget. */
void pp_control_tried(const struct pp_spec_costs *c, struct pp_spec_habits *h, int64_t behind);
/* Enters a pass in the ledger. */
struct pp_spec_passed {
    double ns, draft_ns;  /* that the pass, and the draft model before it, took */
    double plain;         /* ns per token of a pass without guesses */
    int guesses, tokens;  /* in the pass; that the answer got from it */
};
void pp_control_passed(struct pp_spec_habits *h, const struct pp_spec_passed *p);

/* --- the guesses of a pass --------------------------------------------------------------------------------------- */

struct pp_guess {
    int32_t token;
    int8_t parent;        /* index of the guess that it follows; -1: the last chosen token */
    int8_t depth;         /* of the first guess after the last chosen token 0 */
    uint8_t who, level;
    bool spare;           /* an alternative to a guess of the chain */
};

/* A guess that is learned from, whether a row was spent on it or not. */
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
    bool on;              /* there is a source of guesses */
    bool muted;           /* no guesses in the next pass */
    bool adapts;          /* control decides how many guesses; else always `most` */
    int most;             /* guesses in a pass */
    int siblings;         /* alternatives to each of the draft model's guesses: the guesses form a tree */
    float least;          /* odds below which nothing is tried */
    int64_t draft_from;   /* index of the answer's token that the draft's sequence begins with */
    int64_t in_step;      /* tokens of that sequence known to equal the answer's */
    struct pp_guess guess[PP_MAX_GUESSES];
    int n;
    struct pp_bet bets[2 * PP_MAX_GUESSES];
    int n_bets;
    int depth;            /* guesses of the chain, without spare ones */
    int room;             /* most guesses of the chain */
    int most_rows;        /* most guesses of chain and spare ones together */
    double rate;          /* pp_control_rate at this pass */
    double chain;         /* probability that all of the chain stands */
    bool asking;          /* the draft model will be asked */
    bool trial;           /* only as a trial */
    int64_t tried_behind; /* tokens it read for that */
    uint64_t draft_ns;    /* time it has taken in this pass */
    pp_draft_script *script;
    void *script_user;
};

struct pp_gen;

enum pp_code pp_spec_new(struct pp_gen *g, const struct pp_gen_options *opt, struct pp_error *err);
void pp_spec_free(struct pp_gen *g);
/* Makes the guesses of a pass for n answers of one engine, which has `rows` rows besides guesses, and most_rows at most
 * with them. A draft that fails (for want of pages, for instance) is not asked any more. */
void pp_speculate(struct pp_gen *const *answers, int n, int rows, int most_rows, const struct pp_cancel *cancel);
/* Applies the rule. chosen(user, i) returns the target's choice after guess i, or (-1) after the last chosen token, and
 * accepts it into the answer; *over is set when the answer ends there. Returns how many guesses stand; path: which, in
 * order. */
typedef int32_t pp_spec_choose_fn(void *user, int guess, bool *over);
int pp_spec_verify(const struct pp_guess *guess, int n, pp_spec_choose_fn *chosen, void *user,
                   int8_t path[static PP_MAX_GUESSES]);
/* The index of the guess of this token that follows guess `parent` (-1: the last chosen token); -1: none. */
int pp_spec_child(const struct pp_guess *guess, int n, int parent, int32_t token);
/* Learns from the n_chosen tokens that the answer chose in the pass. */
void pp_spec_learn(struct pp_gen *g, const int32_t *chosen, int n_chosen);

#endif
