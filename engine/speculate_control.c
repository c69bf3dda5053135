/* speculate_control.c - how many draft tokens pay off.
 *
 * If R tokens per ns can be had elsewhere, a pass that takes t longer for a chance P of one more token pays if P > R t
 * (the marginal rule of renewal processes: Charnov 1976). P is the product of the acceptance probabilities along the
 * chain (speculate_acceptance.c); t comes from measured passes and steps. Drafting nothing is one of the options. A
 * draft model that is not asked is tried again where the possible gain is worth it, for at most a hundredth of the
 * time. A ledger of what drafting cost and gained sees to it that no PP_SPEC_WINDOW tokens take 2 % longer than
 * without: it decides where a draft token would use up much of that allowance. */
#include <math.h>
#include <string.h>

#include "engine/speculate.h"

/* Trials. TRIAL_SHARE: the part of the passes' time that they may take; MAX_BUDGET, MAX_DEBT: limits of the budget, in
 * passes; HORIZON: tokens for which the kind of text is expected to last. */
static const double TRIAL_SHARE = 0.012, MAX_BUDGET = 2.5, MAX_DEBT = 0.5, HORIZON = 32;
static const double TOLERATED_LOSS = 0.015;  /* tokens per pass: a smaller loss does not stop the draft model */
static const double DEFAULT_ANSWER = 64;     /* tokens of an answer, until one has ended */
static const double MIN_SPEEDUP = 1.05;      /* from which the draft model is asked instead of using an unlikely
                                                lookup */
/* What may be lost. MAX_LOSS: of the time of PP_SPEC_WINDOW tokens. TRIAL_LOSS_SHARE: the part of that which trials may
 * use; all of it may be used where drafting is faster by FULL_LOSS_GAIN. MAX_OF_REST: of the rest of it, in one pass;
 * MAX_EXPECTED_LOSS: the same times the probability of the loss. */
static const double MAX_LOSS = 0.0175, TRIAL_LOSS_SHARE = 0.4, FULL_LOSS_GAIN = 0.25;
static const double MAX_OF_REST = 0.8, MAX_EXPECTED_LOSS = 0.1;
/* MAX_CHANGE: limits how much a single measurement moves a mean. UNMEASURED_ROW: the cost of a row more than was ever
 * measured, in passes of one row; UNMEASURED_STEP: that of a step. Both are optimistic, so that it is tried. */
static const double MAX_CHANGE = 1.3, UNMEASURED_ROW = 0.1, UNMEASURED_STEP = 0.1;
/* UNMEASURED_STEP_ROW: a further row of the draft model's step, in steps, until it is measured; STEP_ROWS_PRIOR: at
 * this many rows a measurement and the mean before count equally. */
static const double UNMEASURED_STEP_ROW = 0.1, STEP_ROWS_PRIOR = 12;
enum { RESUMED_COPY_LEVEL = 3 }; /* of two matching tokens: pp_level_of_copy */
/* MIN_SAMPLES: of the first so many measurements, the smallest counts. MEAN_SAMPLES: later ones have a weight of one in
 * so many. SINGLE_PASSES: passes of one row to be measured before anything is drafted. STALE_PASSES: after so many
 * passes of several rows, one with a single row is due. */
enum { MIN_SAMPLES = 4, MEAN_SAMPLES = 16, SINGLE_PASSES = 2, STALE_PASSES = 256 };

/* --- times -------------------------------------------------------------------------------------------------------- */

/* The first measurements find cold caches and weights that are not packed yet, so the smallest of them counts. */
static void add_sample(struct pp_spec_time *t, double ns)
{
    if (t->n < MIN_SAMPLES) {
        t->ns = t->n == 0 || ns < t->ns ? ns : t->ns;
        t->n++;
        return;
    }
    ns = fmin(fmax(ns, t->ns / MAX_CHANGE), t->ns * MAX_CHANGE);
    if (t->n < MEAN_SAMPLES)
        t->n++;
    t->ns += (ns - t->ns) / t->n;
}

void pp_costs_record_pass(struct pp_spec_costs *c, int rows, double ns)
{
    c->since_single = rows == 1 ? 0 : c->since_single + 1;
    if (rows <= PP_SPEC_ROWS)
        add_sample(&c->pass[rows], ns);
}

void pp_costs_record_step(struct pp_spec_costs *c, int rows, double ns)
{
    if (rows == 1) {
        add_sample(&c->step, ns);
        return;
    }
    if (!c->step.n)
        return;
    double more = rows - 1, each = fmax(ns - c->step.ns, 0) / more; /* for a single further row mostly noise */
    if (!c->step_row.n++)
        c->step_row.ns = UNMEASURED_STEP_ROW * c->step.ns;
    c->step_row.ns += more / (more + STEP_ROWS_PRIOR) * (each - c->step_row.ns);
}

void pp_costs_record_answer(struct pp_spec_costs *c, int64_t tokens)
{
    const double n = (double)tokens;
    c->answer_tokens = c->answer_tokens > 0 ? c->answer_tokens + 0.2 * (n - c->answer_tokens) : n;
}

bool pp_costs_stale(const struct pp_spec_costs *c)
{
    return c->since_single >= STALE_PASSES;
}

/* A single measurement of many rows may have found the machine busy; if it counted, there would be no second one. */
static bool is_measured(const struct pp_spec_costs *c, int rows)
{
    return c->pass[rows].n >= (rows == 1 ? 1 : MIN_SAMPLES);
}

double pp_costs_pass_ns(const struct pp_spec_costs *c, int rows)
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
    return from + UNMEASURED_ROW * c->pass[first].ns * (rows - below);
}

/* The time of a step of the draft model with `rows` rows. As the first steps find weights that are not packed yet, an
 * optimistic estimate is the upper limit until there were a few. */
static double step_ns(const struct pp_spec_costs *c, int64_t rows)
{
    double one = c->step.ns, estimate = UNMEASURED_STEP * pp_costs_pass_ns(c, 1);
    if (c->step.n < MIN_SAMPLES && (!c->step.n || one > estimate))
        one = estimate;
    return one + (double)(rows - 1) * (c->step_row.n ? c->step_row.ns : UNMEASURED_STEP_ROW * one);
}

/* --- the ledger --------------------------------------------------------------------------------------------------- */

static void enter(struct pp_spec_ledger *l, int n_tokens, double lost)
{
    for (int i = 0; i < n_tokens; i++) {
        if (l->n_tokens == PP_SPEC_WINDOW / PP_SPEC_BINS) {
            l->bin = (l->bin + 1) % PP_SPEC_BINS;
            l->lost[l->bin] = l->n_tokens = 0;
        }
        l->lost[l->bin] += lost / n_tokens;
        l->n_tokens++;
    }
}

/* The largest loss of any run of tokens, within the window, that ends now. */
static double largest_loss(const struct pp_spec_ledger *l)
{
    double sum = 0, largest = 0;
    for (int i = 0; i < PP_SPEC_BINS; i++) {
        sum += l->lost[(l->bin + PP_SPEC_BINS - i) % PP_SPEC_BINS];
        largest = fmax(largest, sum);
    }
    return largest;
}

/* Whether this pass may take another `ns` ns for `gain` more tokens. Trials may use up only a part of what the window
 * may lose, and drafts that gain few tokens only a little more; the rest is for text in which they soon win it back. No
 * pass may lose all of it, and little where the loss is likely, so that a bad pass does not stop drafting for long. */
static bool affordable(const struct pp_spec_costs *c, const struct pp_acceptance *a, const struct pp_draft_state *s,
                       double ns, double gain)
{
    int answers = s->rows - s->chain_len;
    double plain = pp_costs_pass_ns(c, answers), faster = fmax(gain, s->rate * plain / answers - 1);
    double first_steps = fmax(c->step.ns - step_ns(c, 1), 0); /* were slower than estimated; later ones may be, too */
    double extra = s->spent_ns + ns + first_steps + pp_costs_pass_ns(c, s->rows + 1) - plain;
    double share = fmin(TRIAL_LOSS_SHARE + (1 - TRIAL_LOSS_SHARE) * fmax(faster, 0) / FULL_LOSS_GAIN, 1);
    double rest = share * MAX_LOSS * PP_SPEC_WINDOW * plain - largest_loss(&a->ledger);
    return extra <= MAX_OF_REST * rest && extra * (1 - s->chain_p) <= MAX_EXPECTED_LOSS * rest;
}

/* --- what pays ---------------------------------------------------------------------------------------------------- */

/* The time of a pass with 0 .. max_draft tokens from the draft model for each answer in it, the draft model's steps
 * included. */
struct pass_times {
    int answers, max_draft;
    double ns[PP_DRAFT_MAX_LIMIT + 1];
};

static struct pass_times pass_times_of(const struct pp_spec_costs *c, int answers, int max_draft)
{
    struct pass_times t = {.answers = answers,
                           .max_draft = max_draft < PP_DRAFT_MAX_LIMIT ? max_draft : PP_DRAFT_MAX_LIMIT};
    const double step = step_ns(c, answers);
    for (int n = 0; n <= t.max_draft; n++)
        t.ns[n] = pp_costs_pass_ns(c, answers * (n + 1)) + n * step;
    return t;
}

/* Tokens per ns with the best number of draft tokens; kind: the probability of each kind of text. */
static double best_rate(const struct pp_acceptance *a, const struct pass_times *t, const double *kind)
{
    double chain[PP_SPEC_KINDS], tokens = 1, best = t->answers / t->ns[0];
    memcpy(chain, kind, sizeof chain);
    for (int n = 1; n <= t->max_draft; n++) {
        for (int k = 0; k < PP_SPEC_KINDS; k++)
            tokens += chain[k] *= pp_acceptance_mean_in(a, k);
        best = fmax(best, t->answers * tokens / t->ns[n]);
    }
    return best;
}

/* The same in text of one kind. */
static double best_rate_in(const struct pp_acceptance *a, const struct pass_times *t, int kind)
{
    double p = pp_acceptance_mean_in(a, kind), chain = 1, tokens = 1, best = t->answers / t->ns[0];
    for (int n = 1; n <= t->max_draft; n++) {
        tokens += chain *= p;
        best = fmax(best, t->answers * tokens / t->ns[n]);
    }
    return best;
}

double pp_control_rate(const struct pp_spec_costs *c, const struct pp_acceptance *a, int n_answers, int max_draft,
                       bool model)
{
    double plain = pp_costs_pass_ns(c, n_answers);
    if (plain <= 0 || (c->pass[1].n < SINGLE_PASSES && n_answers == 1))
        return 0;
    struct pass_times t = pass_times_of(c, n_answers, model ? max_draft : 0);
    return best_rate(a, &t, a->kind[PP_DRAFT_MODEL]);
}

/* The mean probability that a token of the draft model is accepted in the present text. */
static double mean_p(const struct pp_acceptance *a)
{
    double sum = 0;
    for (int k = 0; k < PP_SPEC_KINDS; k++)
        sum += a->kind[PP_DRAFT_MODEL][k] * pp_acceptance_mean_in(a, k);
    return sum;
}

bool pp_control_prefers_model(const struct pp_spec_costs *c, const struct pp_acceptance *a, double rate, int n_answers,
                              double p)
{
    return rate * pp_costs_pass_ns(c, n_answers) > MIN_SPEEDUP * n_answers && p < mean_p(a);
}

/* What 1 .. n further draft tokens cost, in tokens that could be had elsewhere in that time: their rows, and the draft
 * model's steps for all but the first. */
struct prices {
    int n;
    double of[PP_DRAFT_MAX_LIMIT + 1]; /* [1 .. n] */
};

static struct prices prices_of(const struct pp_spec_costs *c, const struct pp_draft_state *s,
                               enum pp_draft_source source)
{
    const int room = s->max_chain - s->chain_len;
    struct prices p = {.n = room < PP_DRAFT_MAX_LIMIT ? room : PP_DRAFT_MAX_LIMIT};
    const double base = pp_costs_pass_ns(c, s->rows), step = source == PP_DRAFT_MODEL ? step_ns(c, 1) : 0;
    for (int n = 1; n <= p.n; n++)
        p.of[n] = s->rate * (pp_costs_pass_ns(c, s->rows + n) - base + (n - 1) * step);
    return p;
}

/* Tokens gained by a row for a draft token at this level and, if that is better, by rows for more after it. chain_p:
 * the probability that the tokens before it are accepted. kind: the probability of each kind of text times `share`,
 * which scales the gain. */
static double gain(const struct pp_acceptance *a, const struct prices *price, double chain_p,
                   enum pp_draft_source source, int level, const double *kind, double share)
{
    double accepted[PP_SPEC_KINDS], tokens = 0, best = -INFINITY;
    const double *p = a->p[source][level], *next_p = source == PP_DRAFT_MODEL ? a->mean_p : p;
    if (source == PP_DRAFT_COPY) /* the first accepted token shows that the copy has resumed */
        next_p = a->p[source][level < RESUMED_COPY_LEVEL ? RESUMED_COPY_LEVEL : level];
    for (int k = 0; k < PP_SPEC_KINDS; k++)
        accepted[k] = kind[k] * chain_p * p[k];
    for (int n = 1; n <= price->n; n++) {
        for (int k = 0; k < PP_SPEC_KINDS; k++) {
            tokens += accepted[k];
            accepted[k] *= next_p[k];
        }
        best = fmax(best, tokens - share * price->of[n]);
    }
    return best;
}

bool pp_control_worth_row(const struct pp_spec_costs *c, const struct pp_acceptance *a, const struct pp_draft_state *s,
                          enum pp_draft_source source, int level)
{
    if (s->rate <= 0)
        return false;
    double kind[PP_SPEC_KINDS];
    pp_acceptance_kinds(a, source, level, kind);
    const struct prices price = prices_of(c, s, source);
    double gained = gain(a, &price, s->chain_p, source, level, kind, 1);
    return gained > 0 && affordable(c, a, s, 0, gained);
}

/* Tokens gained by a step of the draft model, whether the token it proposes gets a row or not; the step's own time is
 * not subtracted. */
static double gain_of_step(const struct pp_spec_costs *c, const struct pp_acceptance *a,
                           const struct pp_draft_state *s)
{
    const struct prices price = prices_of(c, s, PP_DRAFT_MODEL);
    double sum = 0;
    for (int i = 0; i < PP_SPEC_LEVELS; i++) {
        double kind[PP_SPEC_KINDS], share = 0;
        for (int k = 0; k < PP_SPEC_KINDS; k++)
            share += kind[k] = a->kind[PP_DRAFT_MODEL][k] * a->level_share[k][i];
        sum += fmax(gain(a, &price, s->chain_p, PP_DRAFT_MODEL, i, kind, share), 0);
    }
    return sum;
}

/* Whether reading all that the draft model lacks of a long text pays off over the rest of the answer. */
static bool catching_up_pays(const struct pp_spec_costs *c, const struct pp_draft_state *s, double gained)
{
    double left = c->answer_tokens > 0 ? c->answer_tokens : DEFAULT_ANSWER;
    left = s->tokens_left >= 0 && (double)s->tokens_left < left ? (double)s->tokens_left : left;
    return gained * left / 2 > s->rate * (step_ns(c, s->unread) - step_ns(c, 1));
}

/* Whether the possible gain pays for a trial: the text may be of a kind that is worth drafting, and stay so for a
 * while. */
static bool trial_pays(const struct pp_spec_costs *c, const struct pp_acceptance *a, const struct pp_draft_state *s,
                       double ns)
{
    int answers = s->rows - s->chain_len;
    if (a->budget < 0)
        return false;
    const struct pass_times t = pass_times_of(c, answers, s->max_chain);
    double plain = t.ns[0], gained = 0;
    for (int k = 0; k < PP_SPEC_KINDS; k++)
        gained += a->kind[PP_DRAFT_MODEL][k] * (1 - answers / plain / best_rate_in(a, &t, k));
    return gained * HORIZON * plain > ns;
}

enum pp_ask pp_control_asks(const struct pp_spec_costs *c, const struct pp_acceptance *a,
                            const struct pp_draft_state *s, bool *trial)
{
    *trial = false;
    if (s->rate <= 0 || s->chain_len >= s->max_chain)
        return PP_ASK_NOT;
    bool far = s->unread > PP_SPEC_RECENT;
    double all_ns = step_ns(c, s->unread + 1), ns = far ? step_ns(c, PP_SPEC_RECENT + 1) : all_ns;
    double gained = gain_of_step(c, a, s) - s->rate * (far ? step_ns(c, 1) : all_ns);
    /* a small loss is tolerated: to stop and to resume the draft costs more */
    if (gained > (far ? 0 : -TOLERATED_LOSS) && affordable(c, a, s, ns, gained)) {
        const bool read_all = !far || (catching_up_pays(c, s, gained) && affordable(c, a, s, all_ns, gained));
        return read_all ? PP_ASK : PP_ASK_RECENT;
    }
    *trial = s->chain_len == 0 && trial_pays(c, a, s, ns) && affordable(c, a, s, ns, 0);
    return !*trial ? PP_ASK_NOT : far ? PP_ASK_RECENT : PP_ASK;
}

void pp_control_charge_trial(const struct pp_spec_costs *c, struct pp_acceptance *a, int64_t unread)
{
    a->budget = fmax(a->budget - step_ns(c, unread + 1), -MAX_DEBT * pp_costs_pass_ns(c, 1));
}

void pp_control_record_pass(struct pp_acceptance *a, const struct pp_pass_record *p)
{
    bool drafted = p->n_drafted > 0 || p->draft_ns > 0;
    a->budget = fmin(a->budget + TRIAL_SHARE * p->ns, MAX_BUDGET * p->plain_ns);
    enter(&a->ledger, p->n_tokens, drafted ? p->ns + p->draft_ns - p->plain_ns * p->n_tokens : 0);
}
