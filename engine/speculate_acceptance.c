/* speculate_acceptance.c - how likely a draft token is to be accepted: a hidden Markov model of the kinds of text (the
 * forward step of Rabiner 1989), whose tables are learned as the conversation goes on; each kind learns from the
 * observations in proportion to how probably it explains them. The log odds of a draft token are those of its level,
 * learned by logistic regression, plus the shift of the kind. */
#include <math.h>
#include <string.h>

#include "engine/speculate.h"

/* What each kind adds to the log odds. */
static const double shift[PP_SPEC_KINDS] = {-4.5, -3, -2, -1.2, -0.5, 0.2, 1, 2.5};
/* The initial share of each level in a kind: log of the ratio of neighbouring levels (TILT_AT_0 + TILT * shift), and a
 * minimum. */
static const double TILT = 0.12, TILT_AT_0 = 0.1, MIN_SHARE = 0.01;
/* Learning rates, later on: of the log odds, of the tables of shares, of usual_kind. */
static const double LOG_ODDS_RATE = 0.03, SHARE_RATE = 0.01, USUAL_RATE = 0.005;
/* CHANGE: the probability that the kind changes from one token to the next. ANY_KIND: the part of that which goes to
 * all kinds alike instead of the usual ones. */
static const double CHANGE = 1.0 / 250, ANY_KIND = 0.5;
/* Margins of consecutive choices are correlated, so each counts less than it would alone: as this power. */
static const double MARGIN_WEIGHT = 0.6;
/* Observations that the initial values are worth; and the limit of counting. */
enum { LOG_ODDS_PRIOR = 4, SHARE_PRIOR = 12, MAX_SEEN = 1000 };

static double logit(double p) { return log(p / (1 - p)); }

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static void normalise(double *p, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += p[i];
    for (int i = 0; i < n; i++)
        p[i] = sum > 0 ? p[i] / sum : 1.0 / n;
}

/* a->p is a cache: probabilities are read far more often than log odds change. */
static void refresh_p(struct pp_acceptance *a, enum pp_draft_source source, int level)
{
    for (int k = 0; k < PP_SPEC_KINDS; k++)
        a->p[source][level][k] = sigmoid(a->log_odds[source][level] + shift[k]);
}

static void refresh_mean_p(struct pp_acceptance *a)
{
    for (int k = 0; k < PP_SPEC_KINDS; k++) {
        a->mean_p[k] = 0;
        for (int i = 0; i < PP_SPEC_LEVELS; i++)
            a->mean_p[k] += a->level_share[k][i] * a->p[PP_DRAFT_MODEL][i][k];
    }
}

void pp_acceptance_init(struct pp_acceptance *a)
{
    static const double first[PP_DRAFT_SOURCES][PP_SPEC_LEVELS] = {
        [PP_DRAFT_LOOKUP] = {0.25, 0.4, 0.5, 0.6, 0.75, 0.85, 0.92, 0.96},
        [PP_DRAFT_COPY] = {0.3, 0.45, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95},
        [PP_DRAFT_MODEL] = {0.35, 0.42, 0.5, 0.6, 0.72, 0.83, 0.92, 0.97},
        [PP_DRAFT_SCRIPT] = {0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5},
    };
    *a = (struct pp_acceptance){0};
    for (int s = 0; s < PP_DRAFT_SOURCES; s++)
        for (int i = 0; i < PP_SPEC_LEVELS; i++)
            a->log_odds[s][i] = logit(first[s][i]);
    for (int s = 0; s < PP_DRAFT_SOURCES; s++)
        for (int i = 0; i < PP_SPEC_LEVELS; i++)
            refresh_p(a, (enum pp_draft_source)s, i);
    for (int s = 0; s < PP_DRAFT_SOURCES; s++)
        for (int k = 0; k < PP_SPEC_KINDS; k++)
            a->kind[s][k] = a->usual_kind[s][k] = 1.0 / PP_SPEC_KINDS;
    for (int k = 0; k < PP_SPEC_KINDS; k++) {
        for (int i = 0; i < PP_SPEC_LEVELS; i++)
            a->level_share[k][i] = MIN_SHARE + exp((TILT_AT_0 + TILT * shift[k]) * i);
        normalise(a->level_share[k], PP_SPEC_LEVELS);
        memcpy(a->margin_share[k], a->level_share[k], sizeof a->margin_share[k]);
    }
    refresh_mean_p(a);
}

void pp_acceptance_next_answer(struct pp_acceptance *a)
{
    for (int s = 0; s < PP_DRAFT_SOURCES; s++)
        for (int k = 0; k < PP_SPEC_KINDS; k++)
            a->kind[s][k] = (a->kind[s][k] + a->usual_kind[s][k]) / 2;
}

/* --- probabilities ------------------------------------------------------------------------------------------------ */

double pp_acceptance_mean_in(const struct pp_acceptance *a, int kind)
{
    return a->mean_p[kind];
}

void pp_acceptance_kinds(const struct pp_acceptance *a, enum pp_draft_source source, int level, double *kind)
{
    for (int k = 0; k < PP_SPEC_KINDS; k++)
        kind[k] = a->kind[source][k] * (source == PP_DRAFT_MODEL ? a->level_share[k][level] : 1);
    normalise(kind, PP_SPEC_KINDS);
}

double pp_acceptance_probability(const struct pp_acceptance *a, enum pp_draft_source source, int level)
{
    double kind[PP_SPEC_KINDS], sum = 0;
    pp_acceptance_kinds(a, source, level, kind);
    for (int k = 0; k < PP_SPEC_KINDS; k++)
        sum += kind[k] * a->p[source][level][k];
    return sum;
}

/* --- learning ----------------------------------------------------------------------------------------------------- */

/* Moves a table of level shares towards an observed level, each kind's in proportion to its probability. */
static void learn_shares(double table[PP_SPEC_KINDS][PP_SPEC_LEVELS], double *n, const double *kind, int level)
{
    for (int k = 0; k < PP_SPEC_KINDS; k++) {
        n[k] = fmin(n[k] + kind[k], MAX_SEEN);
        double rate = kind[k] * fmax(SHARE_RATE, 1 / (n[k] + SHARE_PRIOR));
        for (int i = 0; i < PP_SPEC_LEVELS; i++)
            table[k][i] += rate * ((i == level ? 1 : 0) - table[k][i]);
        for (int i = 0; i < PP_SPEC_LEVELS; i++)
            table[k][i] = fmax(table[k][i], MIN_SHARE / 2);
        normalise(table[k], PP_SPEC_LEVELS);
    }
}

void pp_acceptance_observe_margin(struct pp_acceptance *a, float margin)
{
    int level = pp_level_of_margin(margin);
    double *kind = a->kind[PP_DRAFT_MODEL];
    for (int s = 0; s < PP_DRAFT_SOURCES; s++)
        for (int k = 0; k < PP_SPEC_KINDS; k++) {
            double after_change = ANY_KIND / PP_SPEC_KINDS + (1 - ANY_KIND) * a->usual_kind[s][k];
            a->kind[s][k] += CHANGE * (after_change - a->kind[s][k]);
        }
    for (int k = 0; k < PP_SPEC_KINDS; k++)
        kind[k] *= pow(a->margin_share[k][level], MARGIN_WEIGHT);
    normalise(kind, PP_SPEC_KINDS);
    learn_shares(a->margin_share, a->n_margins, kind, level);
}

void pp_acceptance_learn(struct pp_acceptance *a, enum pp_draft_source source, int level, bool accepted)
{
    double error = (accepted ? 1 : 0) - pp_acceptance_probability(a, source, level), *kind = a->kind[source];
    int *n_seen = &a->n_seen[source][level];
    pp_acceptance_kinds(a, source, level, kind);
    for (int k = 0; k < PP_SPEC_KINDS; k++) {
        double p = a->p[source][level][k];
        kind[k] *= accepted ? p : 1 - p;
    }
    normalise(kind, PP_SPEC_KINDS);
    *n_seen += *n_seen < MAX_SEEN;
    a->log_odds[source][level] += fmax(LOG_ODDS_RATE, 1.0 / (*n_seen + LOG_ODDS_PRIOR)) * error;
    refresh_p(a, source, level);
    for (int k = 0; k < PP_SPEC_KINDS; k++)
        a->usual_kind[source][k] += USUAL_RATE * (kind[k] - a->usual_kind[source][k]);
    if (source == PP_DRAFT_MODEL) {
        learn_shares(a->level_share, a->n_levels, kind, level);
        refresh_mean_p(a);
    }
}

/* The last level whose lower limit is not above the value. */
static int level_in(const float least[PP_SPEC_LEVELS - 1], float value)
{
    int level = 0;
    while (level < PP_SPEC_LEVELS - 1 && value >= least[level])
        level++;
    return level;
}

int pp_level_of_margin(float margin)
{
    static const float least[PP_SPEC_LEVELS - 1] = {0.25f, 0.6f, 1.1f, 1.8f, 2.7f, 4.0f, 6.0f};
    return level_in(least, margin);
}

int pp_level_of_match(int length)
{
    static const float least[PP_SPEC_LEVELS - 1] = {3, 4, 5, 7, 10, 16, 32};
    return level_in(least, (float)length);
}

int pp_level_of_copy(int n_matched)
{
    static const float least[PP_SPEC_LEVELS - 1] = {0, 1, 2, 3, 4, 6, 10};
    return level_in(least, (float)n_matched);
}
