/* speculate_habits.c - how likely a guess is to be accepted: a hidden Markov model of the kinds of text (Rabiner 1989,
 * the forward step), whose tables are learned as the conversation goes on; each kind learns from the observations in
 * proportion to how probably it explains them. The log odds of a guess are the sum of a weight for its level, learned
 * by logistic regression, and the shift of the kind. */
#include <math.h>
#include <string.h>

#include "engine/speculate.h"

/* What each kind adds to the log odds. */
static const double shift[PP_SPEC_KINDS] = {-4.5, -3, -2, -1.2, -0.5, 0.2, 1, 2.5};
/* The initial share of each level in a kind: log of the ratio of neighbouring levels (TILT_AT_0 + TILT * shift), and a
 * minimum. */
static const double TILT = 0.12, TILT_AT_0 = 0.1, LEAST_SHARE = 0.01;
static const double WEIGHT_RATE = 0.03, TABLE_RATE = 0.01, USUAL_RATE = 0.005;
/* CHANGES: the probability that the kind changes from one token to the next. ELSEWHERE: the part of that which goes to
 * a kind not seen yet. */
static const double CHANGES = 1.0 / 250, ELSEWHERE = 0.5;
/* Margins of consecutive choices are correlated, so each counts less than it would alone. */
static const double SURE_SAYS = 0.6;
enum { WEIGHT_PRIOR = 4, TABLE_PRIOR = 12, MOST_SEEN = 1000 };

static double log_odds(double p) { return log(p / (1 - p)); }

static double odds(double x) { return 1 / (1 + exp(-x)); }

static void normalise(double *p, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += p[i];
    for (int i = 0; i < n; i++)
        p[i] = sum > 0 ? p[i] / sum : 1.0 / n;
}

/* A cache: odds are read far more often than weights change. */
static void refresh_odds(struct pp_spec_habits *h, enum pp_guesser who, int level)
{
    for (int k = 0; k < PP_SPEC_KINDS; k++)
        h->odds[who][level][k] = odds(h->weight[who][level] + shift[k]);
}

static void refresh_means(struct pp_spec_habits *h)
{
    for (int k = 0; k < PP_SPEC_KINDS; k++) {
        h->mean[k] = 0;
        for (int i = 0; i < PP_SPEC_LEVELS; i++)
            h->mean[k] += h->share[k][i] * h->odds[PP_GUESS_MODEL][i][k];
    }
}

void pp_habits_init(struct pp_spec_habits *h)
{
    static const double first[PP_GUESSERS][PP_SPEC_LEVELS] = {
        [PP_GUESS_LOOKUP] = {0.25, 0.4, 0.5, 0.6, 0.75, 0.85, 0.92, 0.96},
        [PP_GUESS_COPY] = {0.3, 0.45, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95},
        [PP_GUESS_MODEL] = {0.35, 0.42, 0.5, 0.6, 0.72, 0.83, 0.92, 0.97},
        [PP_GUESS_SCRIPT] = {0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5},
    };
    *h = (struct pp_spec_habits){0};
    for (int w = 0; w < PP_GUESSERS; w++)
        for (int i = 0; i < PP_SPEC_LEVELS; i++)
            h->weight[w][i] = log_odds(first[w][i]);
    for (int w = 0; w < PP_GUESSERS; w++)
        for (int i = 0; i < PP_SPEC_LEVELS; i++)
            refresh_odds(h, (enum pp_guesser)w, i);
    for (int w = 0; w < PP_GUESSERS; w++)
        for (int k = 0; k < PP_SPEC_KINDS; k++)
            h->kind[w][k] = h->usual[w][k] = 1.0 / PP_SPEC_KINDS;
    for (int k = 0; k < PP_SPEC_KINDS; k++) {
        for (int i = 0; i < PP_SPEC_LEVELS; i++)
            h->share[k][i] = LEAST_SHARE + exp((TILT_AT_0 + TILT * shift[k]) * i);
        normalise(h->share[k], PP_SPEC_LEVELS);
        memcpy(h->sure[k], h->share[k], sizeof h->sure[k]);
    }
    refresh_means(h);
}

void pp_habits_next(struct pp_spec_habits *h)
{
    for (int w = 0; w < PP_GUESSERS; w++)
        for (int k = 0; k < PP_SPEC_KINDS; k++)
            h->kind[w][k] = (h->kind[w][k] + h->usual[w][k]) / 2;
}

/* --- what a guess is worth ---------------------------------------------------------------------------------------- */

double pp_habits_mean_in(const struct pp_spec_habits *h, int kind)
{
    return h->mean[kind];
}

void pp_habits_kinds(const struct pp_spec_habits *h, enum pp_guesser who, int level, double *kind)
{
    for (int k = 0; k < PP_SPEC_KINDS; k++)
        kind[k] = h->kind[who][k] * (who == PP_GUESS_MODEL ? h->share[k][level] : 1);
    normalise(kind, PP_SPEC_KINDS);
}

double pp_habits_odds(const struct pp_spec_habits *h, enum pp_guesser who, int level)
{
    double kind[PP_SPEC_KINDS], sum = 0;
    pp_habits_kinds(h, who, level, kind);
    for (int k = 0; k < PP_SPEC_KINDS; k++)
        sum += kind[k] * h->odds[who][level][k];
    return sum;
}

/* --- what is learned ---------------------------------------------------------------------------------------------- */

/* Moves a table of level shares towards an observed level, each kind's in proportion to its probability. */
static void count(double table[PP_SPEC_KINDS][PP_SPEC_LEVELS], double *n, const double *kind, int level)
{
    for (int k = 0; k < PP_SPEC_KINDS; k++) {
        n[k] = fmin(n[k] + kind[k], MOST_SEEN);
        double rate = kind[k] * fmax(TABLE_RATE, 1 / (n[k] + TABLE_PRIOR));
        for (int i = 0; i < PP_SPEC_LEVELS; i++)
            table[k][i] += rate * ((i == level ? 1 : 0) - table[k][i]);
        for (int i = 0; i < PP_SPEC_LEVELS; i++)
            table[k][i] = fmax(table[k][i], LEAST_SHARE / 2);
        normalise(table[k], PP_SPEC_LEVELS);
    }
}

void pp_habits_sure(struct pp_spec_habits *h, float margin)
{
    int level = pp_level_of_margin(margin);
    double *kind = h->kind[PP_GUESS_MODEL];
    for (int w = 0; w < PP_GUESSERS; w++)
        for (int k = 0; k < PP_SPEC_KINDS; k++) {
            double other = ELSEWHERE / PP_SPEC_KINDS + (1 - ELSEWHERE) * h->usual[w][k];
            h->kind[w][k] += CHANGES * (other - h->kind[w][k]);
        }
    for (int k = 0; k < PP_SPEC_KINDS; k++)
        kind[k] *= pow(h->sure[k][level], SURE_SAYS);
    normalise(kind, PP_SPEC_KINDS);
    count(h->sure, h->n_sure, kind, level);
}

void pp_habits_learn(struct pp_spec_habits *h, enum pp_guesser who, int level, bool stood)
{
    double wrong = (stood ? 1 : 0) - pp_habits_odds(h, who, level), *kind = h->kind[who];
    int *seen = &h->seen[who][level];
    pp_habits_kinds(h, who, level, kind);
    for (int k = 0; k < PP_SPEC_KINDS; k++) {
        double p = h->odds[who][level][k];
        kind[k] *= stood ? p : 1 - p;
    }
    normalise(kind, PP_SPEC_KINDS);
    *seen += *seen < MOST_SEEN;
    h->weight[who][level] += fmax(WEIGHT_RATE, 1.0 / (*seen + WEIGHT_PRIOR)) * wrong;
    refresh_odds(h, who, level);
    for (int k = 0; k < PP_SPEC_KINDS; k++)
        h->usual[who][k] += USUAL_RATE * (kind[k] - h->usual[who][k]);
    if (who == PP_GUESS_MODEL) {
        count(h->share, h->n_share, kind, level);
        refresh_means(h);
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

int pp_level_of_copy(int agreed)
{
    static const float least[PP_SPEC_LEVELS - 1] = {0, 1, 2, 3, 4, 6, 10};
    return level_in(least, (float)agreed);
}
