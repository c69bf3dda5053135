/* test_control.c - the controller that chooses how many draft tokens to try, on a simulated clock. Whether each draft
 * token would be accepted is fixed beforehand, so every policy decodes the same text and only the time differs. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/speculate.h"
#include "tests/support.h"

enum { TEXT = 4096, WINDOW = 256, STRIDE = 32, MOST = 8 };

/* A machine's times in ns: for a pass of one row, for each further row, for a step of the draft, and for each further
 * row of that. */
struct machine {
    const char *name;
    double pass, row, step, step_row;
};

/* A draft on one kind of text: how its tokens are distributed over the levels of confidence, and the share accepted at
 * each level. */
struct kind {
    double share[PP_SPEC_LEVELS], right[PP_SPEC_LEVELS];
};

struct text {
    uint8_t level[TEXT + MOST];
    bool right[TEXT + MOST];
    float margin[TEXT + MOST]; /* of the target's own choice: distributed as the draft's, elsewhere */
};

static const struct kind code = {{.02, .03, .05, .05, .1, .15, .25, .35}, {.3, .4, .5, .6, .75, .88, .95, .99}};
static const struct kind prose = {{.25, .2, .15, .12, .1, .08, .06, .04}, {.2, .28, .35, .42, .5, .6, .7, .8}};
static const struct kind noise = {{.3, .3, .2, .1, .05, .03, .01, .01}, {.02, .02, .03, .03, .04, .05, .05, .05}};
static const struct kind same = {{0, 0, 0, 0, 0, 0, 0, 1}, {0, 0, 0, 0, 0, 0, 0, 1}};

static const struct machine machines[] = {
    {"bandwidth", 100e6, 2e6, 8e6, .3e6}, /* a large model: rows cost little */
    {"compute", 1e6, .35e6, .16e6, .05e6}, /* a tiny one: each row costs a third */
    {"dear", 1e6, .2e6, .7e6, .1e6},       /* the draft is nearly as slow as the model */
    {"steps", 40e6, 1e6, 12e6, 1e6},
};

static uint64_t seed;

static double uniform(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(seed >> 11) * 0x1p-53;
}

static int draw_level(const struct kind *k)
{
    double u = uniform();
    int level = 0;
    while (level < PP_SPEC_LEVELS - 1 && u >= k->share[level])
        u -= k->share[level++];
    return level;
}

static const float margins[PP_SPEC_LEVELS] = {.1f, .3f, .7f, 1.2f, 2.0f, 3.0f, 5.0f, 9.0f};

static void lay(struct text *t, int from, int to, const struct kind *k)
{
    for (int i = from; i < to; i++) {
        int level = draw_level(k);
        t->margin[i] = margins[draw_level(k)];
        t->level[i] = (uint8_t)level;
        t->right[i] = uniform() < k->right[level];
    }
}

static double pass_ns(const struct machine *m, int rows) { return m->pass + m->row * (rows - 1); }

static double step_ns(const struct machine *m, int rows) { return m->step + m->step_row * (rows - 1); }

/* took[i]: when token i is complete. A pass's time is spread over its tokens. */
static void decode_fixed(const struct machine *m, const struct text *t, int n, double *took)
{
    double now = 0;
    bool whole = false; /* all draft tokens of the last pass were accepted, so the draft has one more token to read */
    for (int at = 0; at < TEXT;) {
        int n_accepted = 0;
        double ns = pass_ns(m, n + 1) + (n ? n * m->step + (whole ? m->step_row : 0) : 0);
        while (n_accepted < n && t->right[at + n_accepted])
            n_accepted++;
        for (int i = 0; i <= n_accepted && at + i < TEXT; i++)
            took[at + i] = now + ns * (i + 1) / (n_accepted + 1);
        now += ns;
        at += n_accepted + 1;
        whole = n_accepted == n;
    }
}

/* The same loop as in speculate.c, on simulated times. */
static void decode_adaptive(const struct machine *m, const struct text *t, double *took)
{
    static struct pp_spec_costs costs;
    struct pp_acceptance acceptance;
    double now = 0;
    int read = 0; /* tokens that the draft has read */
    memset(&costs, 0, sizeof costs);
    pp_acceptance_init(&acceptance);
    for (int at = 0; at < TEXT;) {
        struct pp_draft_state p = {.rate = pp_control_rate(&costs, &acceptance, 1, MOST, true), .rows = 1,
                                   .max_chain = MOST, .chain_p = 1, .tokens_left = -1};
        int n = 0, n_proposals = 0;
        bool trial = false, asking = !pp_costs_stale(&costs);
        int64_t unread = 0;
        double ns = 0;
        while (asking) {
            p.unread = at + n - read;
            enum pp_ask ask = pp_control_asks(&costs, &acceptance, &p, &trial);
            if (ask == PP_ASK_NOT)
                break;
            unread = ask == PP_ASK_RECENT && p.unread > PP_SPEC_RECENT ? PP_SPEC_RECENT : p.unread;
            double step = step_ns(m, (int)unread + 1) * (0.95 + 0.1 * uniform());
            pp_costs_record_step(&costs, (int)unread + 1, step);
            ns += step;
            p.spent_ns = ns;
            read = at + n + 1;
            n_proposals++;
            if (!pp_control_worth_row(&costs, &acceptance, &p, PP_DRAFT_MODEL, t->level[at + n]))
                break;
            p.chain_p *= pp_acceptance_probability(&acceptance, PP_DRAFT_MODEL, t->level[at + n]);
            p.rows++;
            p.chain_len = ++n;
            asking = !trial;
        }
        int n_accepted = 0;
        while (n_accepted < n && t->right[at + n_accepted])
            n_accepted++;
        double pass = pass_ns(m, n + 1) * (0.95 + 0.1 * uniform());
        pp_costs_record_pass(&costs, n + 1, pass);
        double plain = pp_costs_pass_ns(&costs, 1) * pass / pp_costs_pass_ns(&costs, n + 1);
        struct pp_pass_record record = {.ns = pass, .draft_ns = ns, .plain_ns = plain, .n_drafted = n};
        ns += pass;
        for (int i = 0; i < n_proposals && i <= n_accepted; i++) {
            pp_acceptance_learn(&acceptance, PP_DRAFT_MODEL, t->level[at + i], t->right[at + i]);
            if (trial)
                pp_control_charge_trial(&costs, &acceptance, unread);
        }
        record.n_tokens = n_accepted + 1;
        pp_control_record_pass(&acceptance, &record);
        for (int i = 0; i <= n_accepted && at + i < TEXT; i++) {
            took[at + i] = now + ns * (i + 1) / (n_accepted + 1);
            pp_acceptance_observe_margin(&acceptance, t->margin[at + i]);
        }
        now += ns;
        at += n_accepted + 1;
        if (read > at)
            read = at;
    }
}

static double window(const double *took, int from)
{
    return took[from + WINDOW - 1] - (from ? took[from - 1] : 0);
}

/* --- who knows everything but the outcomes ------------------------------------------------------------------------ */

static double mean_right(const struct kind *k)
{
    double sum = 0;
    for (int i = 0; i < PP_SPEC_LEVELS; i++)
        sum += k->share[i] * k->right[i];
    return sum;
}

/* Tokens gained by a row for a draft token with these odds, and by further rows after it, less what the time would
 * yield elsewhere at `rate` tokens per ns. */
static double informed_gain(const struct machine *m, const struct kind *k, double rate, int n, double chain, double p)
{
    double tokens = 0, best = -INFINITY;
    chain *= p;
    for (int i = 1; n + i <= MOST; i++, chain *= mean_right(k)) {
        tokens += chain;
        best = fmax(best, tokens - rate * (i * m->row + (i - 1) * m->step));
    }
    return best;
}

static bool informed_asks(const struct machine *m, const struct kind *k, double rate, int n, double chain)
{
    double sum = 0;
    for (int i = 0; i < PP_SPEC_LEVELS; i++)
        sum += k->share[i] * fmax(informed_gain(m, k, rate, n, chain, k->right[i]), 0);
    return n < MOST && sum > rate * m->step;
}

/* Decodes with the true costs and odds of a text of one kind, as known beforehand. Returns the time for the whole
 * text. */
static double decode_informed(const struct machine *m, const struct text *t, const struct kind *k, double rate,
                              double *took)
{
    double now = 0;
    for (int at = 0; at < TEXT;) {
        int n = 0, n_accepted = 0;
        double ns = 0, chain = 1;
        while (informed_asks(m, k, rate, n, chain)) {
            double p = k->right[t->level[at + n]];
            ns += m->step;
            if (informed_gain(m, k, rate, n, chain, p) <= 0)
                break;
            chain *= p;
            n++;
        }
        while (n_accepted < n && t->right[at + n_accepted])
            n_accepted++;
        ns += pass_ns(m, n + 1);
        for (int i = 0; i <= n_accepted && at + i < TEXT; i++)
            took[at + i] = now + ns * (i + 1) / (n_accepted + 1);
        now += ns;
        at += n_accepted + 1;
    }
    return now;
}

/* --- against the best fixed number -------------------------------------------------------------------------------- */

static double fixed[MOST + 1][TEXT], adaptive[TEXT];

/* How much longer a window takes than with the fixed number of draft tokens (0 included) that, in hindsight, is the
 * best for just this window. */
static double regret(const double *took, int from)
{
    double best = INFINITY;
    for (int i = 0; i <= MOST; i++)
        best = fmin(best, window(fixed[i], from));
    return window(took, from) / best - 1;
}

static void check(const char *what, double share, double bound, const struct machine *m, const char *name)
{
    if (share > bound)
        fail_msg("%s, %s: %.1f %% slower than %s", m->name, name, 100 * share, what);
}

/* Permitted losses of time, as fractions: over the whole text, and in its worst window. */
struct bounds {
    double all, window;
};

/* Returns the mean over all windows of the loss against the best fixed number, counting gains as zero. */
static double compare(const struct machine *m, const char *name, const struct text *t, const struct bounds *b)
{
    double all = INFINITY, sum = 0, n = 0;
    decode_adaptive(m, t, adaptive);
    for (int i = 0; i <= MOST; i++) {
        decode_fixed(m, t, i, fixed[i]);
        all = fmin(all, fixed[i][TEXT - 1]);
    }
    check("the best fixed number of guesses", adaptive[TEXT - 1] / all - 1, b->all, m, name);
    for (int from = 0; from + WINDOW <= TEXT; from += STRIDE, n++) {
        double lost = regret(adaptive, from);
        check("the best fixed number of a window", lost, b->window, m, name);
        check("no guesses in a window", window(adaptive, from) / window(fixed[0], from) - 1, 1 / 0.98 - 1, m, name);
        sum += fmax(lost, 0);
    }
    return sum / n;
}

/* Never below 0.98 of plain decoding in any window; seldom 2 % slower than the best fixed number of draft tokens.
 *
 * No policy can stay within 2 % of that number in every window:
 * - Luck. "bandwidth" decodes code with some 48 passes a window. A policy that knows all costs and the odds of each
 *   level and kind, but not the outcomes, is up to 10 % slower than the number that did best (see `informed`).
 * - Changes. There a step of the draft takes 8 % of a pass. In noise, where no draft token is accepted, 2 % pays for
 *   asking the draft at one token in four. When copying begins, a token takes 100 without drafting and 20 with 8 draft
 *   tokens, and 1.5 tokens pass until the draft is next asked, 3 at worst. That costs 1.5 * 80 / (256 * 20) = 2.3 %,
 *   4.7 % at worst, even if one accepted token were proof enough. Asking more often exceeds 2 % in noise by as much.
 *   And the first two passes, which measure what a pass costs, have no draft tokens: 3.1 % of the first window of
 *   copying.
 * - The other bound. 0.98 of plain decoding lets a window lose 5.2 passes. 8 draft tokens take 7.2 on "dear" and 4.1 on
 *   "compute": they may not be tried at all, or not twice, however likely they are to be accepted, so part of the 9.8 %
 *   and 77 % that they would gain is lost. Draft tokens that gain 3 % on average and are rejected in three cases of
 *   five ("steps", prose) use up the allowance by chance. */
static void never_much_worse(void **state)
{
    static const struct {
        const char *name;
        const struct kind *a, *b;
        int every; /* tokens, until the kind changes */
        struct bounds bounds[4]; /* of each machine, as measured and rounded up */
    } texts[] = {
        {"code", &code, &code, TEXT, {{-.005, .1}, {-.045, .018}, {.002, .008}, {-.06, .015}}},
        {"prose", &prose, &prose, TEXT, {{-.006, .038}, {.006, .02}, {.004, .0204}, {.04, .082}}},
        {"noise", &noise, &noise, TEXT, {{.008, .012}, {.004, .014}, {.003, .02}, {.004, .01}}},
        {"copying", &same, &same, TEXT, {{.005, .035}, {.035, .046}, {.055, .09}, {.003, .014}}},
        {"code+prose", &code, &prose, 512, {{-.09, .055}, {-.1, .085}, {.003, .01}, {-.065, .098}}},
        {"code+noise", &code, &noise, 512, {{-.17, .026}, {-.12, .006}, {.002, .008}, {-.2, .027}}},
        {"copy+noise", &same, &noise, 700, {{-.22, .036}, {-.21, .036}, {0, .09}, {-.28, .017}}},
        {"short", &code, &prose, 200, {{-.09, 0}, {-.075, .027}, {.002, .01}, {-.06, .05}}},
    };
    static struct text t;
    double sum = 0;
    enum { MACHINES = sizeof machines / sizeof *machines, TEXTS = sizeof texts / sizeof *texts };
    (void)state;
    for (size_t m = 0; m < MACHINES; m++)
        for (size_t k = 0; k < TEXTS; k++) {
            seed = 7 * k + m + 1;
            for (int at = 0; at < TEXT + MOST; at += texts[k].every)
                lay(&t, at, at + texts[k].every < TEXT + MOST ? at + texts[k].every : TEXT + MOST,
                    at / texts[k].every % 2 ? texts[k].b : texts[k].a);
            sum += compare(&machines[m], texts[k].name, &t, &texts[k].bounds[m]);
        }
    check("the best fixed number, in the mean of all windows", sum / (MACHINES * TEXTS), 0.01, &machines[0], "all");
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The same over many more texts of all kinds, machines and dice: how the windows' regret is spread, and how seldom a
 * window is below 0.98 of plain decoding: two of 15,488 with these four seeds, at worst 2.6 % slower. */
static void many_texts(void **state)
{
    static const struct kind *const of[][2] = {{&code, &code},   {&prose, &prose}, {&noise, &noise}, {&same, &same},
                                               {&code, &prose},  {&code, &noise},  {&same, &noise},  {&prose, &noise}};
    enum { KINDS = sizeof of / sizeof *of, MACHINES = sizeof machines / sizeof *machines, SEEDS = 4,
           WINDOWS = (TEXT - WINDOW) / STRIDE + 1, ALL = KINDS * MACHINES * SEEDS * WINDOWS };
    static double lost[ALL];
    static struct text t;
    double sum = 0, worst = 0;
    size_t n = 0, slow = 0;
    (void)state;
    for (int i = 0; i < SEEDS; i++)
        for (size_t k = 0; k < KINDS; k++)
            for (size_t m = 0; m < MACHINES; m++) {
                seed = 1000003u * (unsigned)i + 101 * k + m + 5;
                int every = 64 + (int)(700 * uniform());
                for (int at = 0; at < TEXT + MOST; at += every)
                    lay(&t, at, at + every < TEXT + MOST ? at + every : TEXT + MOST, of[k][at / every % 2]);
                decode_adaptive(&machines[m], &t, adaptive);
                for (int g = 0; g <= MOST; g++)
                    decode_fixed(&machines[m], &t, g, fixed[g]);
                for (int from = 0; from + WINDOW <= TEXT; from += STRIDE) {
                    double plain = window(adaptive, from) / window(fixed[0], from);
                    lost[n] = regret(adaptive, from);
                    sum += fmax(lost[n++], 0);
                    slow += plain > 1 / 0.98;
                    worst = fmax(worst, plain - 1);
                }
            }
    assert_int_equal(n, ALL);
    qsort(lost, n, sizeof *lost, ascending);
    if (sum / (double)n > 0.009 || lost[n / 2] > 0.002 || lost[n * 3 / 4] > 0.008 || lost[n * 9 / 10] > 0.034 ||
        lost[n * 99 / 100] > 0.1)
        fail_msg("regret: mean %.2f %%, median %.2f, 75th %.2f, 90th %.2f, 99th %.2f", 100 * sum / (double)n,
                 100 * lost[n / 2], 100 * lost[n * 3 / 4], 100 * lost[n * 9 / 10], 100 * lost[n * 99 / 100]);
    if (slow * 1000 > n || worst > 0.035)
        fail_msg("%zu of %zu windows are below 0.98 of plain decoding, at worst %.2f %% slower", slow, n, 100 * worst);
}

/* The first reason above (luck), in numbers. */
static void informed(void **state)
{
    static struct text t;
    static double took[TEXT];
    const struct machine *m = &machines[0];
    double rate = 1 / m->pass, worst = 0;
    (void)state;
    seed = 1;
    lay(&t, 0, TEXT + MOST, &code);
    for (int i = 0; i <= MOST; i++)
        decode_fixed(m, &t, i, fixed[i]);
    for (int i = 0; i < 8; i++)
        rate = TEXT / decode_informed(m, &t, &code, rate, took);
    assert_true(took[TEXT - 1] < fixed[MOST][TEXT - 1] * 0.98); /* and of all the text it is the best by far */
    for (int from = STRIDE; from + WINDOW <= TEXT; from += STRIDE)
        worst = fmax(worst, regret(took, from));
    if (worst < 0.04 || worst > 0.11)
        fail_msg("who knows the odds is at worst %.1f %% slower than the best number of a window", 100 * worst);
}

/* Single measurements that take ten times as long, as when other programs run, hardly move an estimate; a lasting
 * change moves it within a few dozen measurements. */
static void times(void **state)
{
    struct pp_spec_costs c;
    (void)state;
    memset(&c, 0, sizeof c);
    assert_true(pp_costs_pass_ns(&c, 3) == 0);
    for (int i = 0; i < 200; i++)
        pp_costs_record_pass(&c, 1, i % 10 == 9 ? 1000 : 100);
    assert_near(pp_costs_pass_ns(&c, 1), 100, 12);
    assert_near(pp_costs_pass_ns(&c, 2), 110, 14); /* no measurement yet: an optimistic guess */
    for (int i = 0; i < 8; i++)
        pp_costs_record_pass(&c, 5, 180);
    assert_near(pp_costs_pass_ns(&c, 3), 140, 8);
    for (int i = 0; i < 64; i++)
        pp_costs_record_pass(&c, 1, 200);
    assert_near(pp_costs_pass_ns(&c, 1), 200, 6);
    assert_false(pp_costs_stale(&c));
    for (int i = 0; i < 300; i++)
        pp_costs_record_pass(&c, 5, 180);
    assert_true(pp_costs_stale(&c));
}

/* The odds follow the outcomes, for each level and overall. */
static void odds(void **state)
{
    struct pp_acceptance a, fresh;
    (void)state;
    seed = 3;
    pp_acceptance_init(&a);
    fresh = a;
    for (int i = 0; i < 4000; i++) {
        int level = i % PP_SPEC_LEVELS;
        pp_acceptance_learn(&a, PP_DRAFT_MODEL, level, uniform() < 0.1 + 0.1 * level);
        pp_acceptance_observe_margin(&a, margins[draw_level(&prose)]);
    }
    for (int i = 0; i < PP_SPEC_LEVELS; i++)
        assert_near(pp_acceptance_probability(&a, PP_DRAFT_MODEL, i), 0.1 + 0.1 * i, 0.15);
    double before = pp_acceptance_probability(&a, PP_DRAFT_MODEL, 4);
    for (int i = 0; i < 24; i++) { /* another kind of text */
        pp_acceptance_learn(&a, PP_DRAFT_MODEL, i % PP_SPEC_LEVELS, false);
        pp_acceptance_observe_margin(&a, margins[draw_level(&noise)]);
    }
    if (pp_acceptance_probability(&a, PP_DRAFT_MODEL, 4) > before * 0.7)
        fail_msg("after 24 wrong guesses %g, %g before", pp_acceptance_probability(&a, PP_DRAFT_MODEL, 4), before);
    for (int i = 0; i < PP_SPEC_LEVELS; i++) /* without drafting nothing is learned */
        assert_near(pp_acceptance_probability(&a, PP_DRAFT_LOOKUP, i),
                    pp_acceptance_probability(&fresh, PP_DRAFT_LOOKUP, i), 1e-9);
}

TEST_GROUP(control)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(never_much_worse), cmocka_unit_test(informed),
                                       cmocka_unit_test(many_texts),
                                       cmocka_unit_test(times), cmocka_unit_test(odds)};
    return cmocka_run_group_tests_name("control", tests, NULL, NULL);
}
