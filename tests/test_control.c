/* test_control.c - how many guesses are tried, on a simulated clock: texts whose guesses are right or wrong are laid
 * down beforehand, so that every way of guessing decodes the very same text and only its time differs. */
#include <math.h>
#include <string.h>

#include "engine/speculate.h"
#include "tests/support.h"

enum { TEXT = 4096, WINDOW = 256, STRIDE = 32, MOST = 8 };

/* What a machine takes, in ns: a pass of one row, each further one, a step of the draft, each further row of it. */
struct machine {
    const char *name;
    double pass, row, step, behind;
};

/* How a draft does on a kind of text: the share of its guesses at each level, and how many of them are right. */
struct kind {
    double share[PP_SPEC_LEVELS], right[PP_SPEC_LEVELS];
};

struct text {
    uint8_t level[TEXT + MOST];
    bool right[TEXT + MOST];
    float margin[TEXT + MOST]; /* of the target's own choices: as sure as the draft's, but of other places */
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

static void lay(struct text *t, int from, int to, const struct kind *k)
{
    for (int i = from; i < to; i++) {
        static const float margins[PP_SPEC_LEVELS] = {.1f, .3f, .7f, 1.2f, 2.0f, 3.0f, 5.0f, 9.0f};
        int level = draw_level(k);
        t->margin[i] = margins[draw_level(k)];
        t->level[i] = (uint8_t)level;
        t->right[i] = uniform() < k->right[level];
    }
}

static double pass_ns(const struct machine *m, int rows) { return m->pass + m->row * (rows - 1); }

static double step_ns(const struct machine *m, int rows) { return m->step + m->behind * (rows - 1); }

/* took[i]: when token i is there. A pass's time is spread over its tokens. */
static void decode_fixed(const struct machine *m, const struct text *t, int n, double *took)
{
    double now = 0;
    bool whole = false; /* the last pass's guesses were all right: the draft has one token more to read */
    for (int at = 0; at < TEXT;) {
        int stood = 0;
        double ns = pass_ns(m, n + 1) + (n ? n * m->step + (whole ? m->behind : 0) : 0);
        while (stood < n && t->right[at + stood])
            stood++;
        for (int i = 0; i <= stood && at + i < TEXT; i++)
            took[at + i] = now + ns * (i + 1) / (stood + 1);
        now += ns;
        at += stood + 1;
        whole = stood == n;
    }
}

/* The same loop as in speculate.c, with times as they come. */
static void decode_adaptive(const struct machine *m, const struct text *t, double *took)
{
    static struct pp_spec_costs costs;
    struct pp_spec_habits h;
    double now = 0;
    int read = 0; /* tokens that the draft has read */
    memset(&costs, 0, sizeof costs);
    pp_habits_init(&h);
    for (int at = 0; at < TEXT;) {
        struct pp_spec_place p = {.rate = pp_control_rate(&costs, &h, 1, MOST, true), .rows = 1, .most = MOST,
                                  .chain = 1, .left = -1};
        int n = 0, bets = 0;
        bool trial = false, asking = !pp_costs_stale(&costs);
        int64_t behind = 0;
        double ns = 0;
        while (asking) {
            p.behind = at + n - read;
            enum pp_ask ask = pp_control_asks(&costs, &h, &p, &trial);
            if (ask == PP_ASK_NOT)
                break;
            behind = ask == PP_ASK_AFRESH && p.behind > PP_SPEC_AFRESH ? PP_SPEC_AFRESH : p.behind;
            double step = step_ns(m, (int)behind + 1) * (0.95 + 0.1 * uniform());
            pp_costs_step(&costs, (int)behind + 1, step);
            ns += step;
            read = at + n + 1;
            bets++;
            if (!pp_control_keeps(&costs, &h, &p, PP_GUESS_MODEL, t->level[at + n]))
                break;
            p.chain *= pp_habits_odds(&h, PP_GUESS_MODEL, t->level[at + n]);
            p.rows++;
            p.guesses = ++n;
            asking = !trial;
        }
        int stood = 0;
        while (stood < n && t->right[at + stood])
            stood++;
        double pass = pass_ns(m, n + 1) * (0.95 + 0.1 * uniform());
        pp_costs_pass(&costs, n + 1, pass);
        pp_control_passed(&costs, &h, pass);
        ns += pass;
        for (int i = 0; i < bets && i <= stood; i++) {
            pp_habits_learn(&h, PP_GUESS_MODEL, t->level[at + i], t->right[at + i]);
            if (trial)
                pp_control_tried(&costs, &h, behind, t->right[at + i]);
        }
        for (int i = 0; i <= stood && at + i < TEXT; i++) {
            took[at + i] = now + ns * (i + 1) / (stood + 1);
            pp_habits_sure(&h, t->margin[at + i]);
        }
        now += ns;
        at += stood + 1;
        if (read > at)
            read = at;
    }
}

static double window(const double *took, int from)
{
    return took[from + WINDOW - 1] - (from ? took[from - 1] : 0);
}

/* What is allowed: of all the text, of a window in which the text stays of one kind, and of one in which it changes,
 * which has to be noticed first. Shares of the time. */
struct bounds {
    double all, steady, changing;
};

static void check(const char *what, double share, double bound, const struct machine *m, const char *name)
{
    if (share > bound)
        fail_msg("%s, %s: %.1f %% slower than %s", m->name, name, 100 * share, what);
}

/* Against the best fixed number of guesses, of all the text and of each window, known only afterwards; and against
 * none. every: tokens between changes of the kind. */
static void compare(const struct machine *m, const char *name, const struct text *t, int every,
                    const struct bounds *b)
{
    static double fixed[MOST + 1][TEXT], adaptive[TEXT];
    double all = INFINITY;
    decode_adaptive(m, t, adaptive);
    for (int i = 0; i <= MOST; i++) {
        decode_fixed(m, t, i, fixed[i]);
        all = fmin(all, fixed[i][TEXT - 1]);
    }
    check("the best fixed number of guesses", adaptive[TEXT - 1] / all - 1, b->all, m, name);
    check("no guesses", adaptive[TEXT - 1] / fixed[0][TEXT - 1] - 1, 1 / 0.98 - 1, m, name);
    for (int from = 0; from + WINDOW <= TEXT; from += STRIDE) {
        bool steady = from > 0 && from % every >= 64 && from % every + WINDOW <= every;
        double best = INFINITY;
        for (int i = 0; i <= MOST; i++)
            best = fmin(best, window(fixed[i], from));
        check("the best fixed number of a window", window(adaptive, from) / best - 1,
              steady ? b->steady : b->changing, m, name);
        check("no guesses in a window", window(adaptive, from) / window(fixed[0], from) - 1,
              0.08, m, name);
    }
}

static void never_much_worse(void **state)
{
    static const struct {
        const char *name;
        const struct kind *a, *b;
        int every; /* tokens, until the kind changes */
    } texts[] = {
        {"code", &code, &code, TEXT},       {"prose", &prose, &prose, TEXT}, {"noise", &noise, &noise, TEXT},
        {"copying", &same, &same, TEXT},    {"code+prose", &code, &prose, 512}, {"code+noise", &code, &noise, 512},
        {"copy+noise", &same, &noise, 700}, {"short", &code, &prose, 200},
    };
    static const struct bounds usual = {0.02, 0.1, 0.15}, dear = {0.14, 0.18, 0.18};
    static struct text t;
    (void)state;
    for (size_t m = 0; m < sizeof machines / sizeof *machines; m++)
        for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
            seed = 7 * k + m + 1;
            for (int at = 0; at < TEXT + MOST; at += texts[k].every)
                lay(&t, at, at + texts[k].every < TEXT + MOST ? at + texts[k].every : TEXT + MOST,
                    at / texts[k].every % 2 ? texts[k].b : texts[k].a);
            compare(&machines[m], texts[k].name, &t, texts[k].every, strcmp(machines[m].name, "dear") ? &usual : &dear);
        }
}

/* Single looks that take ten times as long, as when other programs run, hardly move an estimate; a lasting change does,
 * within a few dozen looks. */
static void times(void **state)
{
    struct pp_spec_costs c;
    (void)state;
    memset(&c, 0, sizeof c);
    assert_true(pp_costs_of(&c, 3) == 0);
    for (int i = 0; i < 200; i++)
        pp_costs_pass(&c, 1, i % 10 == 9 ? 1000 : 100);
    assert_near(pp_costs_of(&c, 1), 100, 12);
    assert_near(pp_costs_of(&c, 2), 110, 14); /* never seen: hopeful */
    for (int i = 0; i < 8; i++)
        pp_costs_pass(&c, 5, 180);
    assert_near(pp_costs_of(&c, 3), 140, 8);
    for (int i = 0; i < 64; i++)
        pp_costs_pass(&c, 1, 200);
    assert_near(pp_costs_of(&c, 1), 200, 6);
    assert_false(pp_costs_stale(&c));
    for (int i = 0; i < 300; i++)
        pp_costs_pass(&c, 5, 180);
    assert_true(pp_costs_stale(&c));
}

/* Odds follow what is seen, of each level and of all. */
static void odds(void **state)
{
    struct pp_spec_habits h;
    (void)state;
    seed = 3;
    pp_habits_init(&h);
    for (int i = 0; i < 4000; i++) {
        int level = i % PP_SPEC_LEVELS;
        pp_habits_learn(&h, PP_GUESS_MODEL, level, uniform() < 0.1 + 0.1 * level);
    }
    for (int i = 0; i < PP_SPEC_LEVELS; i++)
        assert_near(pp_habits_odds(&h, PP_GUESS_MODEL, i), 0.1 + 0.1 * i, 0.15);
    double before = pp_habits_odds(&h, PP_GUESS_MODEL, 4);
    for (int i = 0; i < 24; i++) /* another kind of text */
        pp_habits_learn(&h, PP_GUESS_MODEL, i % PP_SPEC_LEVELS, false);
    assert_true(pp_habits_odds(&h, PP_GUESS_MODEL, 4) < before * 0.6);
    assert_near(pp_habits_odds(&h, PP_GUESS_LOOKUP, 0), 0.25, 1e-9); /* who has guessed nothing has learned nothing */
}

TEST_GROUP(control)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(never_much_worse), cmocka_unit_test(times),
                                       cmocka_unit_test(odds)};
    return cmocka_run_group_tests_name("control", tests, NULL, NULL);
}
