/* speculate_control.c - how many guesses pay off.
 *
 * If R tokens per ns can be had elsewhere, a pass that takes t longer for a chance P of one more token pays if P > R t
 * (the marginal rule of renewal processes: Charnov 1976). P is the product of the odds along the chain
 * (speculate_habits.c); t comes from measured passes and steps. No guess at all is one of the options. A draft that is
 * not asked is tried again where the possible gain is worth it, for at most a hundredth of the time. A ledger of the
 * cost and gain of guesses sees to it that no PP_SPEC_WINDOW tokens take 2 % longer than without: it decides where a
 * guess would use up much of that allowance. */
#include <math.h>
#include <string.h>

#include "engine/speculate.h"

/* Trials. TRIAL_PART: the share of the passes' time that they may take; MOST_BUDGET, MOST_DEBT: limits of the budget,
 * in passes; HORIZON: tokens for which the kind of text is expected to last. */
static const double TRIAL_PART = 0.012, MOST_BUDGET = 2.5, MOST_DEBT = 0.5, HORIZON = 32;
static const double TOLERATED = 0.015;       /* tokens a pass: a smaller loss does not stop the draft */
static const double USUAL_ANSWER = 64;       /* tokens */
static const double PAYS = 1.05;             /* at such a speed-up the draft model is asked instead of using an unlikely
                                                lookup */
/* What may be lost. MOST_LOST: of the time of PP_SPEC_WINDOW tokens. TRIAL_PART_LOST: the part of that which trials may
 * use; all of it may be used where guesses are faster by MUCH_FASTER. MOST_OF_LEFT: of what is left, in one pass;
 * MOST_RISKED: the same times the probability of the loss. */
static const double MOST_LOST = 0.0175, TRIAL_PART_LOST = 0.4, MUCH_FASTER = 0.25;
static const double MOST_OF_LEFT = 0.8, MOST_RISKED = 0.1;
/* MOST_CHANGE: limits how much a single measurement moves a mean. UNSEEN_ROW: the cost of a row more than was ever
 * measured, in passes of one row; UNSEEN_STEP: that of an unmeasured step. Both are optimistic, so that it is tried. */
static const double MOST_CHANGE = 1.3, UNSEEN_ROW = 0.1, UNSEEN_STEP = 0.1;
/* ROW_BEHIND: a further row of the draft's step, in steps, until it is measured; ROWS_BEHIND: after this many rows a
 * measurement and the mean before count equally. */
static const double ROW_BEHIND = 0.1, ROWS_BEHIND = 12;
enum { COPY_GOES_ON = 3 }; /* level of two tokens that agree */
enum { FIRST_LOOKS = 4, LOOKS = 16, SINGLE_PASSES = 2, STALE_PASSES = 256 };

/* --- times -------------------------------------------------------------------------------------------------------- */

/* The first measurements find cold caches and weights that are not packed yet, so the smallest of them counts. */
static void look(struct pp_spec_time *t, double ns)
{
    if (t->n < FIRST_LOOKS) {
        t->ns = t->n == 0 || ns < t->ns ? ns : t->ns;
        t->n++;
        return;
    }
    ns = fmin(fmax(ns, t->ns / MOST_CHANGE), t->ns * MOST_CHANGE);
    if (t->n < LOOKS)
        t->n++;
    t->ns += (ns - t->ns) / t->n;
}

void pp_costs_pass(struct pp_spec_costs *c, int rows, double ns)
{
    c->since_single = rows == 1 ? 0 : c->since_single + 1;
    if (rows <= PP_SPEC_ROWS)
        look(&c->pass[rows], ns);
}

void pp_costs_step(struct pp_spec_costs *c, int rows, double ns)
{
    if (rows == 1) {
        look(&c->step, ns);
        return;
    }
    if (!c->step.n)
        return;
    double more = rows - 1, each = fmax(ns - c->step.ns, 0) / more; /* with a single row this is little else than
                                                                       noise */
    if (!c->behind.n++)
        c->behind.ns = ROW_BEHIND * c->step.ns;
    c->behind.ns += more / (more + ROWS_BEHIND) * (each - c->behind.ns);
}

void pp_costs_answer(struct pp_spec_costs *c, int64_t tokens)
{
    c->answer = c->answer > 0 ? c->answer + 0.2 * ((double)tokens - c->answer) : (double)tokens;
}

bool pp_costs_stale(const struct pp_spec_costs *c)
{
    return c->since_single >= STALE_PASSES;
}

/* A single measurement of many rows may have found the machine busy; if it counted, there would be no second one. */
static bool is_measured(const struct pp_spec_costs *c, int rows)
{
    return c->pass[rows].n >= (rows == 1 ? 1 : FIRST_LOOKS);
}

double pp_costs_of(const struct pp_spec_costs *c, int rows)
{
    int below = rows < PP_SPEC_ROWS ? rows : PP_SPEC_ROWS, above = rows + 1, first = 1;
    while (below > 0 && !is_measured(c, below))
        below--;
    while (first < PP_SPEC_ROWS && !c->pass[first].n)
        first++;
    if (!c->pass[first].n)
        return 0;
    if (below == 0) /* fewer rows than were ever measured cost no more than those */
        return c->pass[first].ns;
    if (below == rows)
        return c->pass[below].ns;
    while (above <= PP_SPEC_ROWS && !is_measured(c, above))
        above++;
    double from = c->pass[below].ns;
    if (above <= PP_SPEC_ROWS)
        return from + (c->pass[above].ns - from) * (rows - below) / (above - below);
    return from + UNSEEN_ROW * c->pass[first].ns * (rows - below);
}

/* A step of the draft model with `rows` rows. As the first steps find weights that are not packed yet, an optimistic
 * estimate limits them until there were a few. */
static double step_ns(const struct pp_spec_costs *c, int64_t rows)
{
    double one = c->step.ns, hope = UNSEEN_STEP * pp_costs_of(c, 1);
    if (c->step.n < FIRST_LOOKS && (!c->step.n || one > hope))
        one = hope;
    return one + (double)(rows - 1) * (c->behind.n ? c->behind.ns : ROW_BEHIND * one);
}

/* --- the ledger --------------------------------------------------------------------------------------------------- */

static void enter(struct pp_spec_ledger *l, int tokens, double lost)
{
    for (int i = 0; i < tokens; i++) {
        if (l->tokens == PP_SPEC_WINDOW / PP_SPEC_BINS) {
            l->at = (l->at + 1) % PP_SPEC_BINS;
            l->lost[l->at] = l->tokens = 0;
        }
        l->lost[l->at] += lost / tokens;
        l->tokens++;
    }
}

/* The largest loss of any run of tokens in the window that ends now. */
static double lost(const struct pp_spec_ledger *l)
{
    double sum = 0, most = 0;
    for (int i = 0; i < PP_SPEC_BINS; i++) {
        sum += l->lost[(l->at + PP_SPEC_BINS - i) % PP_SPEC_BINS];
        most = fmax(most, sum);
    }
    return most;
}

/* Whether this pass may lose another `ns` ns. Trials may use up only a part of what the window may lose, and guesses
 * that win few tokens only a little more; the rest is for text in which they soon win it back. No pass may lose all of
 * it, and little where the loss is likely, so that a bad pass does not stop guessing for long. */
static bool affordable(const struct pp_spec_costs *c, const struct pp_spec_habits *h, const struct pp_spec_place *at,
                       double ns, double won)
{
    int answers = at->rows - at->guesses;
    double plain = pp_costs_of(c, answers), faster = fmax(won, at->rate * plain / answers - 1);
    double hoped = fmax(c->step.ns - step_ns(c, 1), 0); /* first steps are slower; whether later ones are is not
                                                           certain */
    double extra = at->spent + ns + hoped + pp_costs_of(c, at->rows + 1) - plain;
    double part = fmin(TRIAL_PART_LOST + (1 - TRIAL_PART_LOST) * fmax(faster, 0) / MUCH_FASTER, 1);
    double left = part * MOST_LOST * PP_SPEC_WINDOW * plain - lost(&h->ledger);
    return extra <= MOST_OF_LEFT * left && extra * (1 - at->chain) <= MOST_RISKED * left;
}

/* --- what pays ---------------------------------------------------------------------------------------------------- */

/* The time of a pass with 0 .. most guesses of the draft model for each answer in it, the draft's steps included. */
struct rounds {
    int answers, most;
    double ns[PP_MAX_GUESSES + 1];
};

static struct rounds rounds_of(const struct pp_spec_costs *c, int answers, int most)
{
    struct rounds r = {.answers = answers, .most = most < PP_MAX_GUESSES ? most : PP_MAX_GUESSES};
    const double step = step_ns(c, answers);
    for (int n = 0; n <= r.most; n++)
        r.ns[n] = pp_costs_of(c, answers * (n + 1)) + n * step;
    return r;
}

/* Tokens per ns with the best number of guesses; kind: the probability of each kind of text. */
static double best_rate(const struct pp_spec_habits *h, const struct rounds *r, const double *kind)
{
    double chain[PP_SPEC_KINDS], tokens = 1, best = r->answers / r->ns[0];
    memcpy(chain, kind, sizeof chain);
    for (int n = 1; n <= r->most; n++) {
        for (int k = 0; k < PP_SPEC_KINDS; k++)
            tokens += chain[k] *= pp_habits_mean_in(h, k);
        best = fmax(best, r->answers * tokens / r->ns[n]);
    }
    return best;
}

/* The same in text of one kind. */
static double best_rate_in(const struct pp_spec_habits *h, const struct rounds *r, int kind)
{
    double p = pp_habits_mean_in(h, kind), chain = 1, tokens = 1, best = r->answers / r->ns[0];
    for (int n = 1; n <= r->most; n++) {
        tokens += chain *= p;
        best = fmax(best, r->answers * tokens / r->ns[n]);
    }
    return best;
}

double pp_control_rate(const struct pp_spec_costs *c, const struct pp_spec_habits *h, int answers, int most, bool model)
{
    double plain = pp_costs_of(c, answers);
    if (plain <= 0 || (c->pass[1].n < SINGLE_PASSES && answers == 1))
        return 0;
    struct rounds r = rounds_of(c, answers, model ? most : 0);
    return best_rate(h, &r, h->kind[PP_GUESS_MODEL]);
}

static double mean_odds(const struct pp_spec_habits *h)
{
    double sum = 0;
    for (int k = 0; k < PP_SPEC_KINDS; k++)
        sum += h->kind[PP_GUESS_MODEL][k] * pp_habits_mean_in(h, k);
    return sum;
}

bool pp_control_prefers_model(const struct pp_spec_costs *c, const struct pp_spec_habits *h, double rate, int answers,
                              double odds)
{
    return rate * pp_costs_of(c, answers) > PAYS * answers && odds < mean_odds(h);
}

/* What rows for 1 .. n guesses cost, in tokens that could be had elsewhere in that time. */
struct prices {
    int n;
    double of[PP_MAX_GUESSES + 1]; /* [1 .. n] */
};

static struct prices prices_of(const struct pp_spec_costs *c, const struct pp_spec_place *at, enum pp_guesser who)
{
    struct prices p = {.n = at->most - at->guesses < PP_MAX_GUESSES ? at->most - at->guesses : PP_MAX_GUESSES};
    const double base = pp_costs_of(c, at->rows), step = who == PP_GUESS_MODEL ? step_ns(c, 1) : 0;
    for (int n = 1; n <= p.n; n++)
        p.of[n] = at->rate * (pp_costs_of(c, at->rows + n) - base + (n - 1) * step);
    return p;
}

/* Tokens won by a row for a guess at this level and, if that is better, by rows for more after it. kind: the
 * probability of each kind of text times `share`, which scales the gain. */
static double gain(const struct pp_spec_habits *h, const struct prices *price, double chain, enum pp_guesser who,
                   int level, const double *kind, double share)
{
    double stands[PP_SPEC_KINDS], tokens = 0, best = -INFINITY;
    const double *odds = h->odds[who][level], *next = who == PP_GUESS_MODEL ? h->mean : odds;
    if (who == PP_GUESS_COPY) /* the first accepted guess shows that the copy has resumed */
        next = h->odds[who][level < COPY_GOES_ON ? COPY_GOES_ON : level];
    for (int k = 0; k < PP_SPEC_KINDS; k++)
        stands[k] = kind[k] * chain * odds[k];
    for (int n = 1; n <= price->n; n++) {
        for (int k = 0; k < PP_SPEC_KINDS; k++) {
            tokens += stands[k];
            stands[k] *= next[k];
        }
        best = fmax(best, tokens - share * price->of[n]);
    }
    return best;
}

bool pp_control_keeps(const struct pp_spec_costs *c, const struct pp_spec_habits *h, const struct pp_spec_place *at,
                      enum pp_guesser who, int level)
{
    if (at->rate <= 0)
        return false;
    double kind[PP_SPEC_KINDS];
    pp_habits_kinds(h, who, level, kind);
    const struct prices price = prices_of(c, at, who);
    double won = gain(h, &price, at->chain, who, level, kind, 1);
    return won > 0 && affordable(c, h, at, 0, won);
}

/* Tokens won by a step of the draft model, whether its guess gets a row or not; the step's own time is not
 * subtracted. */
static double gain_of_step(const struct pp_spec_costs *c, const struct pp_spec_habits *h,
                           const struct pp_spec_place *at)
{
    const struct prices price = prices_of(c, at, PP_GUESS_MODEL);
    double sum = 0;
    for (int i = 0; i < PP_SPEC_LEVELS; i++) {
        double kind[PP_SPEC_KINDS], share = 0;
        for (int k = 0; k < PP_SPEC_KINDS; k++)
            share += kind[k] = h->kind[PP_GUESS_MODEL][k] * h->share[k][i];
        sum += fmax(gain(h, &price, at->chain, PP_GUESS_MODEL, i, kind, share), 0);
    }
    return sum;
}

/* Whether reading what the draft lacks of a long text pays off over the rest of the answer. */
static bool catching_up_pays(const struct pp_spec_costs *c, const struct pp_spec_place *at, double won)
{
    double left = c->answer > 0 ? c->answer : USUAL_ANSWER;
    left = at->left >= 0 && (double)at->left < left ? (double)at->left : left;
    return won * left / 2 > at->rate * (step_ns(c, at->behind) - step_ns(c, 1));
}

/* Whether the possible gain pays for a trial: the text may be of a kind that is worth guessing, and stay so for a
 * while. */
static bool trial_pays(const struct pp_spec_costs *c, const struct pp_spec_habits *h, const struct pp_spec_place *at,
                       double ns)
{
    int answers = at->rows - at->guesses;
    if (h->budget < 0)
        return false;
    const struct rounds r = rounds_of(c, answers, at->most);
    double plain = r.ns[0], won = 0;
    for (int k = 0; k < PP_SPEC_KINDS; k++)
        won += h->kind[PP_GUESS_MODEL][k] * (1 - answers / plain / best_rate_in(h, &r, k));
    return won * HORIZON * plain > ns;
}

enum pp_ask pp_control_asks(const struct pp_spec_costs *c, const struct pp_spec_habits *h,
                            const struct pp_spec_place *at, bool *trial)
{
    *trial = false;
    if (at->rate <= 0 || at->guesses >= at->most)
        return PP_ASK_NOT;
    bool far = at->behind > PP_SPEC_AFRESH;
    double all = step_ns(c, at->behind + 1), ns = far ? step_ns(c, PP_SPEC_AFRESH + 1) : all;
    double won = gain_of_step(c, h, at) - at->rate * (far ? step_ns(c, 1) : all);
    /* a small loss is tolerated: to stop and to resume the draft costs more */
    if (won > (far ? 0 : -TOLERATED) && affordable(c, h, at, ns, won))
        return far && !(catching_up_pays(c, at, won) && affordable(c, h, at, all, won)) ? PP_ASK_AFRESH : PP_ASK;
    *trial = at->guesses == 0 && trial_pays(c, h, at, ns) && affordable(c, h, at, ns, 0);
    return !*trial ? PP_ASK_NOT : far ? PP_ASK_AFRESH : PP_ASK;
}

void pp_control_tried(const struct pp_spec_costs *c, struct pp_spec_habits *h, int64_t behind)
{
    h->budget = fmax(h->budget - step_ns(c, behind + 1), -MOST_DEBT * pp_costs_of(c, 1));
}

void pp_control_passed(struct pp_spec_habits *h, const struct pp_spec_passed *p)
{
    bool guessed = p->guesses > 0 || p->draft_ns > 0;
    h->budget = fmin(h->budget + TRIAL_PART * p->ns, MOST_BUDGET * p->plain);
    enter(&h->ledger, p->tokens, guessed ? p->ns + p->draft_ns - p->plain * p->tokens : 0);
}
