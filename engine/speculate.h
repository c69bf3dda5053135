/* speculate.h - speculative decoding: tokens of an answer are drafted, and the target model verifies several of them in
 * one pass instead of computing them one by one. Private to the engine.
 *
 * The rule (the coupling of arXiv 2408.07978): at every position the target chooses as it would have anyway, argmax
 * over log p + noise of (seed, position, token). A draft token is accepted if and only if it is that choice. So an
 * answer is the same, token for token, however many tokens are drafted, by whatever source, or none at all.
 *
 *   speculate.c            the draft tokens of a pass, for all answers in it, and their verification
 *   speculate_lookup.c     prompt lookup: drafts what followed the same tokens before in the conversation
 *   speculate_copy.c       finds where a copied text continues after an edit
 *   speculate_bridge.c     a draft model with another vocabulary, by way of its text
 *   speculate_shortlist.c  the part of the vocabulary among which a draft model chooses
 *   speculate_acceptance.c how likely draft tokens are to be accepted
 *   speculate_control.c    how many draft tokens pay off: pure arithmetic on measured times, no clock in it
 *
 * Draft tokens come from the conversation (lookup and copy: free, and right where text repeats), then from a smaller
 * model with its own KV pages (which samples with the target's parameters and noise), or from a script (for
 * measurements). Nothing here allocates after pp_spec_new. All on the engine's thread. */
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
    int32_t *head;  /* [mask + 1]: index of the second token of the newest pair with this hash, or -1 */
    int32_t *prev;  /* [n_ctx]: by that index, the next older pair with the same hash, or -1 */
    uint32_t mask;
    int64_t n, cap; /* indexed tokens; capacity */
};

enum {
    PP_LOOKUP_MIN = 2,  /* tokens that must match */
    PP_LOOKUP_MAX = 32,  /* longer matches are not measured */
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
 * close to where it was left. A lookup finds that place only after PP_LOOKUP_MIN tokens match, and trusts the match
 * only after many more. */
struct pp_copy {
    int64_t n_followed; /* tokens of the answer, prompt included, that it has followed */
    int64_t next;     /* index of the copied text's next token, if n_matched > 0; -1: nothing is copied */
    int64_t left_at;  /* index of the copied text's next token when the copy was left; -1: it was not */
    int n_matched;    /* consecutive matches since it began or resumed; 0: it was left, and must be found again */
    int since_left;   /* tokens of the answer since it was left */
};

void pp_copy_init(struct pp_copy *c); /* nothing is copied */
/* Follows the answer to tokens[0 .. n), of which a lookup has found `length` tokens before tokens[from]. */
void pp_copy_set(struct pp_copy *c, const int32_t *tokens, int64_t n, int64_t from, int length);
/* The index < n at which a copy that was left resumes; -1: nowhere. *n_matched: how many tokens match there; if none
 * do, 1 - the number of tokens since the copy was left. */
int64_t pp_copy_next(const struct pp_copy *c, int *n_matched);

/* --- shortlist --------------------------------------------------------------------------------------------------- */

/* The tokens, in groups of neighbours (batch.h), that a draft model with the answer's vocabulary computes logits of. */
struct pp_shortlist {
    int32_t *groups;      /* [max], ascending */
    bool *has;            /* [n_all] */
    int n, max, n_all;    /* n_all 0: the vocabulary is too small for a list */
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
bool pp_shortlist_usable(const struct pp_shortlist *l);

/* --- control ----------------------------------------------------------------------------------------------------- */

enum pp_draft_source { PP_DRAFT_LOOKUP, PP_DRAFT_COPY, PP_DRAFT_MODEL, PP_DRAFT_SCRIPT, PP_DRAFT_SOURCES };

enum {
    PP_SPEC_LEVELS = 8,   /* of confidence in a draft token */
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
    struct pp_spec_time step_row;               /* each further row of such a step */
    double answer_tokens;                       /* moving average of answers' lengths; 0: none has ended yet */
    int since_single;                           /* passes since one with a single row */
};

/* What drafting has gained or lost lately, compared with plain decoding: ns lost by the latest tokens, in bins of a
 * few. It keeps any PP_SPEC_WINDOW consecutive tokens from being much slower than without drafting. */
enum { PP_SPEC_WINDOW = 256, PP_SPEC_BINS = 32 };
struct pp_spec_ledger {
    double lost[PP_SPEC_BINS]; /* a ring; below 0: gained */
    int bin, n_tokens;         /* the bin being filled, and how many tokens it has */
};

/* How often draft tokens are accepted in a conversation. A mixture model: text is of one of several kinds, from
 * unpredictable to copied, and each kind shifts the log odds of all draft tokens. The present kind is inferred from
 * which draft tokens were accepted, from the draft model's confidence, and, while that model is not run, from the
 * target's. */
struct pp_acceptance {
    double log_odds[PP_DRAFT_SOURCES][PP_SPEC_LEVELS]; /* of a draft token at this level of confidence, in text of a
                                                          kind that shifts nothing */
    double p[PP_DRAFT_SOURCES][PP_SPEC_LEVELS][PP_SPEC_KINDS]; /* the probabilities that follow for each kind of text */
    double mean_p[PP_SPEC_KINDS];                /* of the draft model: mean of p, weighted by level_share */
    double kind[PP_DRAFT_SOURCES][PP_SPEC_KINDS]; /* probability of each kind at present, by source */
    double usual_kind[PP_DRAFT_SOURCES][PP_SPEC_KINDS]; /* its moving average over the conversation */
    double level_share[PP_SPEC_KINDS][PP_SPEC_LEVELS]; /* distribution of the draft model's levels in each kind */
    double margin_share[PP_SPEC_KINDS][PP_SPEC_LEVELS]; /* the same of the target's margins */
    double n_levels[PP_SPEC_KINDS], n_margins[PP_SPEC_KINDS]; /* how many of each were counted, up to a limit */
    int n_seen[PP_DRAFT_SOURCES][PP_SPEC_LEVELS]; /* draft tokens judged, up to a limit: the first ones teach most */
    struct pp_spec_ledger ledger;
    double budget;                               /* ns that may be spent on trying whether the draft model pays again */
};

/* Initial probabilities, as measured on the bundled pair of models. */
void pp_acceptance_init(struct pp_acceptance *a);
/* A new answer begins: its text may be of another kind. */
void pp_acceptance_next_answer(struct pp_acceptance *a);
/* Learns whether a draft token was accepted. */
void pp_acceptance_learn(struct pp_acceptance *a, enum pp_draft_source source, int level, bool accepted);
/* Learns from the margin of the target's choice: where the target is more certain, text is easier to draft. Costs
 * nothing, unlike running the draft model. */
void pp_acceptance_observe_margin(struct pp_acceptance *a, float margin);
/* The probability that a draft token is accepted if all before it are. */
double pp_acceptance_probability(const struct pp_acceptance *a, enum pp_draft_source source, int level);
/* The same for the draft model's tokens of any level in text of this kind. */
double pp_acceptance_mean_in(const struct pp_acceptance *a, int kind);
/* kind[PP_SPEC_KINDS]: the probability of each kind, given a draft token at this level. */
void pp_acceptance_kinds(const struct pp_acceptance *a, enum pp_draft_source source, int level, double *kind);
/* The level of a model's choice by its margin (sampler.h), and of a lookup by the length of the match. */
int pp_level_of_margin(float margin);
int pp_level_of_match(int length);
/* The same of a copy that resumes after an edit; n_matched: as by pp_copy_next. */
int pp_level_of_copy(int n_matched);

/* Take a measurement: of a pass of the target, of a step of the draft model, of an answer's length. */
void pp_costs_record_pass(struct pp_spec_costs *c, int rows, double ns);
void pp_costs_record_step(struct pp_spec_costs *c, int rows, double ns);
void pp_costs_record_answer(struct pp_spec_costs *c, int64_t tokens);
/* The estimated ns of a pass with any number of rows; 0: no pass was measured. */
double pp_costs_pass_ns(const struct pp_spec_costs *c, int rows);
/* Whether it is time for a pass without draft tokens, to measure what one costs now. */
bool pp_costs_stale(const struct pp_spec_costs *c);

/* The state of one answer's draft within a pass. */
struct pp_draft_state {
    double rate;          /* pp_control_rate: the tokens per ns that a further draft token must beat */
    int rows;             /* of the pass so far */
    int chain_len;        /* draft tokens of this answer so far, without siblings */
    int max_chain;        /* the limit of that */
    double chain_p;       /* probability that all of them are accepted */
    int64_t unread;       /* tokens that the draft model has not read, besides the one it reads in any case */
    int64_t tokens_left;  /* that the answer may still have; -1: not known */
    double spent_ns;      /* on the draft model in this pass */
};

/* The tokens per ns achieved by the best fixed number of draft tokens, possibly none, with n_answers answers in each
 * pass; model: there is a draft model. 0: too little is known yet to draft at all. */
double pp_control_rate(const struct pp_spec_costs *c, const struct pp_acceptance *a, int n_answers, int max_draft,
                       bool model);
/* Whether to run the draft model instead of using a draft token that is accepted with probability p: the model pays at
 * present, and is right more often. */
bool pp_control_prefers_model(const struct pp_spec_costs *c, const struct pp_acceptance *a, double rate, int n_answers,
                              double p);
/* Whether a draft token is worth a row of the pass. */
bool pp_control_worth_row(const struct pp_spec_costs *c, const struct pp_acceptance *a, const struct pp_draft_state *s,
                          enum pp_draft_source source, int level);
enum pp_ask {
    PP_ASK_NOT,
    PP_ASK,
    PP_ASK_RECENT,        /* but let it read no more than the last PP_SPEC_RECENT tokens */
};
enum { PP_SPEC_RECENT = 32 };
/* Whether to ask the draft model for the next draft token. *trial: only to learn whether that would pay. */
enum pp_ask pp_control_asks(const struct pp_spec_costs *c, const struct pp_acceptance *a,
                            const struct pp_draft_state *s, bool *trial);
/* Charges a trial of the draft model, which read `unread` tokens besides the last one, to the budget. */
void pp_control_charge_trial(const struct pp_spec_costs *c, struct pp_acceptance *a, int64_t unread);
/* Enters a pass in the ledger. */
struct pp_pass_record {
    double ns, draft_ns;  /* that the pass, and the draft model before it, took */
    double plain_ns;      /* per token of a pass without draft tokens */
    int n_drafted, n_tokens; /* in the pass; that the answer got from it */
};
void pp_control_record_pass(struct pp_acceptance *a, const struct pp_pass_record *p);

/* --- the draft tokens of a pass ---------------------------------------------------------------------------------- */

struct pp_draft_token {
    int32_t token;
    int8_t parent;        /* index of the draft token that it follows; -1: the last chosen token */
    int8_t depth;         /* draft tokens before it: 0 for those that follow the last chosen token */
    uint8_t source, level;
    bool sibling;         /* an alternative to a token of the chain: no draft token follows it */
};

/* A token that a source has proposed, whether a row was spent on it or not: its outcome is learned from. */
struct pp_proposal {
    int32_t token;
    uint8_t source, level, depth;
    bool trial;
};

/* Of one answer. Its draft tokens form a chain, in which each token may have a sibling. */
struct pp_spec {
    struct pp_lookup lookup;
    struct pp_copy copy;
    struct pp_shortlist shortlist;
    bool use_lookup;
    bool enabled;         /* there is a source of draft tokens */
    bool skip_next;       /* draft nothing for the next pass */
    bool adaptive;        /* control decides how many draft tokens; else always max_draft */
    int max_draft;        /* draft tokens of the chain in a pass */
    int siblings;         /* of each of the draft model's tokens: 0 or 1 */
    float p_min;          /* proposals less likely to be accepted get no row */
    int64_t draft_begin;  /* index of the answer's token that the draft model's sequence begins with */
    int64_t n_common;     /* tokens of that sequence known to equal the answer's */
    struct pp_draft_token drafted[PP_DRAFT_MAX_LIMIT];
    int n_drafted;
    struct pp_proposal proposals[2 * PP_DRAFT_MAX_LIMIT];
    int n_proposals;
    int chain_len;        /* draft tokens of the chain, without siblings */
    int max_chain;        /* the limit of that in this pass */
    int max_drafted;      /* of n_drafted */
    double rate;          /* pp_control_rate at this pass */
    double chain_p;       /* probability that all of the chain is accepted */
    bool asking;          /* the draft model will be asked for another token */
    bool trial;           /* only as a trial */
    int64_t trial_unread; /* tokens it read for that */
    uint64_t draft_ns;    /* time it has taken in this pass */
    pp_draft_script *script;
    void *script_user;
};

struct pp_gen;

enum pp_code pp_spec_new(struct pp_gen *g, const struct pp_gen_options *opt, struct pp_error *err);
void pp_spec_free(struct pp_gen *g);
/* Drafts tokens for n answers of one engine; the pass has `rows` rows besides draft tokens, and max_rows at most with
 * them. A draft model that fails (for want of pages, for instance) is not asked any more. */
void pp_speculate(struct pp_gen *const *answers, int n, int rows, int max_rows, const struct pp_cancel *cancel);
/* Applies the rule. choose(user, i) returns the target's choice after draft token i, or (-1) after the last chosen
 * token, and appends it to the answer; *over is set when the answer ends there. Returns how many draft tokens are
 * accepted; path: their indices, in order. */
typedef int32_t pp_spec_choose_fn(void *user, int after, bool *over);
int pp_spec_verify(const struct pp_draft_token *drafted, int n, pp_spec_choose_fn *choose, void *user,
                   int8_t path[static PP_DRAFT_MAX_LIMIT]);
/* The index of the draft token `token` that follows draft token `parent` (-1: the last chosen token); -1: none. */
int pp_spec_child(const struct pp_draft_token *drafted, int n, int parent, int32_t token);
/* Learns from the n_chosen tokens that the answer chose in the pass. */
void pp_spec_learn(struct pp_gen *g, const int32_t *chosen, int n_chosen);

#endif
