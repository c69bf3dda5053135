/* speculate_control.c - how many guesses are worth while.
 *
 * With R tokens per ns to be had elsewhere, a pass that takes t more for a chance P of one more token pays if P > R t
 * (the marginal rule of renewal processes: Charnov 1976). P is the product of the odds along the chain, learned by
 * logistic regression on two features, the confidence of the guess and the kind of text; t comes from measured passes
 * and steps. None is one of the answers; a draft that is not asked is tried again from time to time, for at most a
 * hundredth of the time. */
#include <math.h>
#include <string.h>

#include "engine/speculate.h"

/* Learning: rates of the logistic regression and of the shares; of the confidence that the target shows. */
static const double WEIGHT_RATE = 0.05, SHIFT_RATE = 0.05, QUICK_RATE = 0.35, LASTING = 0.004, SHARE_RATE = 0.03;
static const double MOST_SHIFT = 2.5, CHANGED = 1.2; /* log odds */
static const double SURE_RATE = 0.1, SURE_BEFORE_RATE = 0.02, SURER = 0.2; /* of confidence between 0 and 1 */
enum { SHARE_PRIOR = 8, WEIGHT_PRIOR = 4 };
/* Trials: the part of the passes' time that they may take, in hand at most, and owed at most, in passes; how many
 * follow each other when the text has changed. */
static const double TRIAL_PART = 0.008, MOST_BUDGET = 2.5, MOST_DEBT = 1.0;
enum { TRIALS = 6 };
static const double TOLERATED = 0.015;       /* tokens a pass that may be lost before the draft is given up */
static const double USUAL_ANSWER = 64;       /* tokens */
static const double PAYS = 1.05;             /* times as fast as without guesses */
/* Times: how much of a look that takes longer is believed; a row more than was ever seen, in single rows: a hopeful
 * guess, so that it is tried. */
static const double MOST_CHANGE = 1.3, UNSEEN_ROW = 0.1, UNSEEN_STEP = 0.1;
enum { FIRST_LOOKS = 4, LOOKS = 16, SINGLE_PASSES = 2, STALE_PASSES = 256 };

/* --- times -------------------------------------------------------------------------------------------------------- */

/* The first looks find cold caches and weights that are still to be packed: the least of them counts. */
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
    if (rows == 1)
        look(&c->step, ns);
    else if (c->step.n && ns > c->step.ns)
        look(&c->behind, (ns - c->step.ns) / (rows - 1));
}

void pp_costs_answer(struct pp_spec_costs *c, int64_t tokens)
{
    c->answer = c->answer > 0 ? c->answer + 0.2 * ((double)tokens - c->answer) : (double)tokens;
}

bool pp_costs_stale(const struct pp_spec_costs *c)
{
    return c->since_single >= STALE_PASSES;
}

/* A single look at many rows may have found the machine busy, and would be the last if it counted. */
static bool known(const struct pp_spec_costs *c, int rows)
{
    return c->pass[rows].n >= (rows == 1 ? 1 : FIRST_LOOKS);
}

double pp_costs_of(const struct pp_spec_costs *c, int rows)
{
    int below = rows < PP_SPEC_ROWS ? rows : PP_SPEC_ROWS, above = rows + 1, first = 1;
    while (below > 0 && !known(c, below))
        below--;
    while (first < PP_SPEC_ROWS && !c->pass[first].n)
        first++;
    if (!c->pass[first].n)
        return 0;
    if (below == 0) /* fewer rows than were ever seen cost no more */
        return c->pass[first].ns;
    if (below == rows)
        return c->pass[below].ns;
    while (above <= PP_SPEC_ROWS && !known(c, above))
        above++;
    double from = c->pass[below].ns;
    if (above <= PP_SPEC_ROWS)
        return from + (c->pass[above].ns - from) * (rows - below) / (above - below);
    return from + UNSEEN_ROW * c->pass[first].ns * (rows - below);
}

/* A step of the draft model with so many rows. Its first ones find weights that are still to be packed: until there
 * were a few, hope counts. */
static double step_ns(const struct pp_spec_costs *c, int64_t rows)
{
    double one = c->step.ns, hope = UNSEEN_STEP * pp_costs_of(c, 1);
    if (c->step.n < FIRST_LOOKS && (!c->step.n || one > hope))
        one = hope;
    return one + (double)(rows - 1) * (c->behind.n ? c->behind.ns : 0.1 * one);
}

/* --- odds --------------------------------------------------------------------------------------------------------- */

static double log_odds(double p) { return log(p / (1 - p)); }

static double odds(double x) { return 1 / (1 + exp(-x)); }

void pp_habits_init(struct pp_spec_habits *h)
{
    static const double first[PP_GUESSERS][PP_SPEC_LEVELS] = {
        [PP_GUESS_LOOKUP] = {0.25, 0.4, 0.5, 0.6, 0.75, 0.85, 0.92, 0.96},
        [PP_GUESS_MODEL] = {0.35, 0.42, 0.5, 0.6, 0.72, 0.83, 0.92, 0.97},
        [PP_GUESS_SCRIPT] = {0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5},
    };
    static const double share[PP_SPEC_LEVELS] = {0.1, 0.12, 0.12, 0.13, 0.13, 0.14, 0.13, 0.13};
    *h = (struct pp_spec_habits){0};
    for (int w = 0; w < PP_GUESSERS; w++)
        for (int i = 0; i < PP_SPEC_LEVELS; i++)
            h->weight[w][i] = log_odds(first[w][i]);
    memcpy(h->share, share, sizeof share);
}

void pp_habits_next(struct pp_spec_habits *h)
{
    for (int w = 0; w < PP_GUESSERS; w++)
        h->quick[w] = h->shift[w] /= 2;
}

void pp_habits_sure(struct pp_spec_habits *h, float margin)
{
    double sure = (double)pp_level_of_margin(margin) / (PP_SPEC_LEVELS - 1);
    h->sure += SURE_RATE * (sure - h->sure);
    h->sure_before += SURE_BEFORE_RATE * (sure - h->sure_before);
    if (h->sure < h->sure_before)
        h->sure_before += SURE_RATE * (h->sure - h->sure_before); /* what counts is the least of late */
    if (h->sure > h->sure_before + SURER && h->budget >= 0) {
        h->sure_before = h->sure;
        h->trials = TRIALS;
        double *shift = &h->shift[PP_GUESS_MODEL];
        h->quick[PP_GUESS_MODEL] = *shift = fmax(*shift, *shift / 3);
    }
}

double pp_habits_odds(const struct pp_spec_habits *h, enum pp_guesser who, int level)
{
    return odds(h->weight[who][level] + h->shift[who]);
}

void pp_habits_learn(struct pp_spec_habits *h, enum pp_guesser who, int level, bool stood)
{
    double wrong = (stood ? 1 : 0) - pp_habits_odds(h, who, level);
    int *seen = &h->seen[who][level];
    *seen += *seen < 1000;
    h->weight[who][level] += fmax(WEIGHT_RATE, 1.0 / (*seen + WEIGHT_PRIOR)) * wrong;
    double *shift = &h->shift[who], *quick = &h->quick[who];
    h->judged[who] += h->judged[who] < 1000;
    *quick += QUICK_RATE * ((stood ? 1 : 0) - odds(h->weight[who][level] + *quick));
    *shift += fmax(SHIFT_RATE, 1.0 / (h->judged[who] + WEIGHT_PRIOR)) * wrong;
    *quick = fmin(fmax(*quick, *shift - MOST_SHIFT), *shift + MOST_SHIFT);
    if (fabs(*quick - *shift) > CHANGED)
        *shift = *quick = fmin(fmax(*quick, -MOST_SHIFT), MOST_SHIFT);
    for (int i = 0; i < PP_SPEC_LEVELS; i++) /* what lasts is no matter of the kind of text */
        h->weight[who][i] += LASTING * *shift;
    *quick -= LASTING * *shift;
    *shift -= LASTING * *shift;
    if (who != PP_GUESS_MODEL)
        return;
    h->n_share += h->n_share < 1000;
    for (int i = 0; i < PP_SPEC_LEVELS; i++)
        h->share[i] += fmax(SHARE_RATE, 1.0 / (h->n_share + SHARE_PRIOR)) * ((i == level ? 1 : 0) - h->share[i]);
}

int pp_level_of_margin(float margin)
{
    static const float least[PP_SPEC_LEVELS - 1] = {0.25f, 0.6f, 1.1f, 1.8f, 2.7f, 4.0f, 6.0f};
    int level = 0;
    while (level < PP_SPEC_LEVELS - 1 && margin >= least[level])
        level++;
    return level;
}

int pp_level_of_match(int length)
{
    static const int least[PP_SPEC_LEVELS - 1] = {3, 4, 5, 7, 10, 16, 32};
    int level = 0;
    while (level < PP_SPEC_LEVELS - 1 && length >= least[level])
        level++;
    return level;
}

/* Of the model's guesses, whatever their level. */
static double mean_odds(const struct pp_spec_habits *h)
{
    double sum = 0;
    for (int i = 0; i < PP_SPEC_LEVELS; i++)
        sum += h->share[i] * pp_habits_odds(h, PP_GUESS_MODEL, i);
    return sum;
}

/* --- what pays ---------------------------------------------------------------------------------------------------- */

double pp_control_rate(const struct pp_spec_costs *c, const struct pp_spec_habits *h, int answers, int most, bool model)
{
    double p = mean_odds(h), chain = 1, tokens = 1, plain = pp_costs_of(c, answers), best;
    if (plain <= 0 || (c->pass[1].n < SINGLE_PASSES && answers == 1))
        return 0;
    best = answers / plain;
    for (int n = 1; model && n <= most; n++) {
        tokens += chain *= p;
        double ns = pp_costs_of(c, answers * (n + 1)) + n * step_ns(c, answers);
        if (answers * tokens / ns > best)
            best = answers * tokens / ns;
    }
    return best;
}

bool pp_control_prefers_model(const struct pp_spec_costs *c, const struct pp_spec_habits *h, double rate, int answers,
                              int level)
{
    return rate * pp_costs_of(c, answers) > PAYS * answers && pp_habits_odds(h, PP_GUESS_LOOKUP, level) < mean_odds(h);
}

/* Tokens won by a row for a guess of these odds and, if that is better, by rows for more of `mean` odds behind it. */
static double gain(const struct pp_spec_costs *c, const struct pp_spec_place *at, double p, double mean, double step)
{
    double base = pp_costs_of(c, at->rows), chain = at->chain * p, tokens = 0, best = -INFINITY;
    for (int n = 1; at->guesses + n <= at->most; n++) {
        tokens += chain;
        chain *= mean;
        double won = tokens - at->rate * (pp_costs_of(c, at->rows + n) - base + (n - 1) * step);
        if (won > best)
            best = won;
    }
    return best;
}

bool pp_control_keeps(const struct pp_spec_costs *c, const struct pp_spec_habits *h, const struct pp_spec_place *at,
                      enum pp_guesser who, int level)
{
    double p = pp_habits_odds(h, who, level);
    bool model = who == PP_GUESS_MODEL;
    return at->rate > 0 && gain(c, at, p, model ? mean_odds(h) : p, model ? step_ns(c, 1) : 0) > 0;
}

/* Tokens won by a step of the draft model, its guess kept or not, without its time. */
static double gain_of_step(const struct pp_spec_costs *c, const struct pp_spec_habits *h,
                           const struct pp_spec_place *at)
{
    double sum = 0, mean = mean_odds(h);
    for (int i = 0; i < PP_SPEC_LEVELS; i++) {
        double won = gain(c, at, pp_habits_odds(h, PP_GUESS_MODEL, i), mean, step_ns(c, 1));
        sum += won > 0 ? h->share[i] * won : 0;
    }
    return sum;
}

/* To read what the draft lacks of a long text pays over the rest of the answer, or not at all. */
static bool catching_up_pays(const struct pp_spec_costs *c, const struct pp_spec_place *at, double won)
{
    double left = c->answer > 0 ? c->answer : USUAL_ANSWER;
    left = at->left >= 0 && (double)at->left < left ? (double)at->left : left;
    return won * left / 2 > at->rate * (step_ns(c, at->behind) - step_ns(c, 1));
}

enum pp_ask pp_control_asks(const struct pp_spec_costs *c, const struct pp_spec_habits *h,
                            const struct pp_spec_place *at, bool *trial)
{
    *trial = false;
    if (at->rate <= 0 || at->guesses >= at->most)
        return PP_ASK_NOT;
    bool far = at->behind > PP_SPEC_AFRESH;
    double won = gain_of_step(c, h, at) - at->rate * step_ns(c, far ? 1 : at->behind + 1);
    if (won > (far ? 0 : -TOLERATED)) /* to stop and to come back costs more than a while of little use */
        return far && !catching_up_pays(c, at, won) ? PP_ASK_AFRESH : PP_ASK;
    *trial = at->guesses == 0 &&
             (h->trials > 0 || (h->budget > 0 && h->budget >= step_ns(c, far ? PP_SPEC_AFRESH + 1 : at->behind + 1)));
    return !*trial ? PP_ASK_NOT : far ? PP_ASK_AFRESH : PP_ASK;
}

void pp_control_tried(const struct pp_spec_costs *c, struct pp_spec_habits *h, int64_t behind, bool stood)
{
    h->budget = fmax(h->budget - step_ns(c, behind + 1), -MOST_DEBT * pp_costs_of(c, 1));
    if (h->trials > 0)
        h->trials--;
    else if (stood) /* where one stands others may: the next place is a trial, too */
        h->budget = fmax(h->budget, 0) + step_ns(c, 3);
}

void pp_control_passed(const struct pp_spec_costs *c, struct pp_spec_habits *h, double ns)
{
    h->budget = fmin(h->budget + TRIAL_PART * ns, MOST_BUDGET * pp_costs_of(c, 1));
}
