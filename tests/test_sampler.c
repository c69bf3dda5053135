/* test_sampler.c - each link of the chain by itself, their order, and the distribution of the choice. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/sampler.h"
#include "tests/support.h"

enum { N = 8 };

static struct pp_sampling off(void) /* plain sampling at temperature 1 */
{
    return (struct pp_sampling){.temp = 1, .top_k = 0, .top_p = 1, .min_p = 0, .repeat_penalty = 1, .seed = 42};
}

/* How often each token is chosen in `draws` draws, at positions 0 .. draws - 1. */
static void draw(const struct pp_sampling *p, const float *logits, int draws, double *share)
{
    struct pp_sampler s;
    struct pp_error err;
    static int32_t history[2000000];
    assert_ok(pp_sampler_init(&s, N, &err), err);
    memset(share, 0, N * sizeof *share);
    for (int i = 0; i < draws; i++)
        share[pp_sampler_choose(&s, p, logits, history, i).token] += 1.0 / draws;
    pp_sampler_free(&s);
}

static const float logits[N] = {2.0f, 1.0f, 0.5f, 0.0f, -0.5f, -1.0f, 1.5f, -3.0f};

/* Chi-square against softmax(logits / temp): 7 degrees of freedom, 24.3 is exceeded once in a thousand. */
static void distribution(void **state)
{
    (void)state;
    static const float temps[] = {0.5f, 1.0f, 1.7f};
    enum { DRAWS = 1000000 };
    for (int t = 0; t < 3; t++) {
        struct pp_sampling p = off();
        double share[N], expected[N], total = 0, chi = 0;
        p.temp = temps[t];
        draw(&p, logits, DRAWS, share);
        for (int i = 0; i < N; i++)
            total += expected[i] = exp((double)logits[i] / (double)p.temp);
        for (int i = 0; i < N; i++) {
            double e = expected[i] / total * DRAWS, d = share[i] * DRAWS - e;
            chi += d * d / e;
        }
        if (chi > 24.3)
            fail_msg("temperature %g: chi-square %g", (double)p.temp, chi);
    }
}

/* Neighbouring positions and seeds draw independently: the joint distribution of two draws is the product. */
static void independence(void **state)
{
    (void)state;
    enum { DRAWS = 400000 };
    struct pp_sampling p = off();
    struct pp_sampler s;
    struct pp_error err;
    static double joint[N][N], single[N];
    static int32_t history[DRAWS + 1];
    assert_ok(pp_sampler_init(&s, N, &err), err);
    for (int by_seed = 0; by_seed < 2; by_seed++) {
        memset(joint, 0, sizeof joint);
        double chi = 0, total = 0;
        for (int i = 0; i < N; i++)
            total += single[i] = exp((double)logits[i]);
        for (int i = 0; i < DRAWS; i++) {
            p.seed = by_seed ? (uint64_t)i : 42;
            int a = pp_sampler_choose(&s, &p, logits, history, by_seed ? 5 : i).token;
            p.seed = by_seed ? (uint64_t)i + 1 : 42;
            int b = pp_sampler_choose(&s, &p, logits, history, by_seed ? 5 : i + 1).token;
            joint[a][b] += 1;
        }
        for (int i = 0; i < N; i++)
            for (int j = 0; j < N; j++) {
                double e = single[i] / total * single[j] / total * DRAWS;
                chi += (joint[i][j] - e) * (joint[i][j] - e) / e;
            }
        if (chi > 110) /* 63 degrees of freedom, overlapping pairs */
            fail_msg("chi-square of pairs: %g", chi);
    }
    pp_sampler_free(&s);
}

static int32_t choose_one(const struct pp_sampling *p, const float *l, const int32_t *history, int64_t n)
{
    struct pp_sampler s;
    struct pp_error err;
    assert_ok(pp_sampler_init(&s, N, &err), err);
    int32_t first = pp_sampler_choose(&s, p, l, history, n).token;
    int32_t again = pp_sampler_choose(&s, p, l, history, n).token;
    assert_int_equal(first, again); /* no state is left over */
    pp_sampler_free(&s);
    return first;
}

static void greedy_and_bias(void **state)
{
    struct pp_sampling p = off();
    (void)state;
    p.temp = 0;
    assert_int_equal(choose_one(&p, logits, NULL, 0), 0);
    p.n_bias = 2;
    p.bias[0].token = 0, p.bias[0].bias = -INFINITY;
    p.bias[1].token = 7, p.bias[1].bias = 4.6f;
    assert_int_equal(choose_one(&p, logits, NULL, 0), 7);
    p.bias[1].bias = 4.4f;
    assert_int_equal(choose_one(&p, logits, NULL, 0), 6);
    p.bias[0].token = 1000; /* not in the vocabulary: ignored */
    assert_int_equal(choose_one(&p, logits, NULL, 0), 0);
}

/* Tokens that the model must never write: those, and no others, are never chosen, whatever else is asked for. */
static void suppressed(void **state)
{
    static const int32_t never[] = {-1, 0, 7, N, 1000};
    struct pp_sampling p = off();
    struct pp_sampler s;
    struct pp_error err;
    (void)state;
    assert_ok(pp_sampler_init(&s, N, &err), err);
    for (int i = 0; i < 3; i++) {
        p.temp = i == 2 ? 2 : 0;
        p.n_bias = i > 0;
        p.bias[0].token = 7, p.bias[0].bias = 20;
        s.suppressed = NULL, s.n_suppressed = 0;
        assert_int_equal(pp_sampler_choose(&s, &p, logits, NULL, 0).token, i ? 7 : 0);
        s.suppressed = never, s.n_suppressed = sizeof never / sizeof *never;
        if (i < 2)
            assert_int_equal(pp_sampler_choose(&s, &p, logits, NULL, 0).token, 6);
        for (int k = 0; i == 2 && k < 1000; k++) {
            p.seed = (uint64_t)k;
            const int32_t token = pp_sampler_choose(&s, &p, logits, NULL, 0).token;
            assert_true(token != 0 && token != 7);
        }
    }
    pp_sampler_free(&s);
}

static void penalties(void **state)
{
    struct pp_sampling p = off();
    static const int32_t history[] = {0, 0, 6, 5};
    (void)state;
    p.temp = 0;
    p.penalty_last_n = 64;
    p.repeat_penalty = 1.4f; /* 2.0 -> 1.43, 1.5 -> 1.07: still 0 */
    assert_int_equal(choose_one(&p, logits, history, 4), 0);
    p.repeat_penalty = 2.1f; /* 0.95 and 0.71: token 1 wins */
    assert_int_equal(choose_one(&p, logits, history, 4), 1);
    p.penalty_last_n = 1; /* only 5 is seen */
    assert_int_equal(choose_one(&p, logits, history, 4), 0);
    p.penalty_last_n = -1;
    p.repeat_penalty = 1;
    p.presence_penalty = 0.6f; /* 1.4, 0.9 */
    assert_int_equal(choose_one(&p, logits, history, 4), 0);
    p.frequency_penalty = 0.3f; /* 2.0 - 0.6 - 0.6 = 0.8, 1.5 - 0.9 = 0.6: token 1 */
    assert_int_equal(choose_one(&p, logits, history, 4), 1);
}

static void expect_support_of(const struct pp_sampling *p, const float *l, const char *tokens)
{
    double share[N];
    draw(p, l, 50000, share);
    for (int i = 0; i < N; i++) {
        bool expected = strchr(tokens, '0' + i) != NULL;
        if ((share[i] > 0) != expected)
            fail_msg("token %d %s among %s", i, expected ? "is missing" : "came up", tokens);
    }
}

static void expect_support(const struct pp_sampling *p, const char *tokens)
{
    expect_support_of(p, logits, tokens);
}

/* Sorted: 0 (.404), 6 (.245), 1 (.149), 2 (.090), 3 (.055), 4 (.033), 5 (.020), 7 (.003) */
static void filters(void **state)
{
    struct pp_sampling p = off();
    (void)state;
    p.top_k = 3;
    expect_support(&p, "061");
    p.top_k = 0;
    p.top_p = 0.66f; /* .405 + .245 = .65 is not enough */
    expect_support(&p, "061");
    p.top_p = 0.64f;
    expect_support(&p, "06");
    p.top_p = 0.0f;
    expect_support(&p, "0");
    p.top_p = 1;
    p.min_p = 0.21f; /* .404 * .21 = .085 */
    expect_support(&p, "0612");
    p.min_p = 1;
    expect_support(&p, "0");
    /* In order: top-k first, so that top-p counts only what top-k left: of {0, 6, 1} the first two have .81 */
    p.min_p = 0;
    p.top_k = 3;
    p.top_p = 0.8f;
    expect_support(&p, "06");
    /* Filters look at probabilities before the temperature. */
    p.top_k = 0;
    p.top_p = 0.64f;
    p.temp = 5;
    expect_support(&p, "06");
}

static void ties_and_extremes(void **state)
{
    struct pp_sampling p = off();
    static const float equal[N] = {1, 1, 1, 1, 1, 1, 1, 1};
    static const float forbidden[N] = {-INFINITY, -INFINITY, 3, -INFINITY, -INFINITY, 3, -INFINITY, -INFINITY};
    static const float huge[N] = {3e38f, -3e38f, 0, 0, 0, 0, 0, 0};
    double share[N];
    (void)state;
    p.top_k = 3; /* of equal ones the first ones */
    draw(&p, equal, 30000, share);
    for (int i = 0; i < N; i++)
        assert_near(share[i], i < 3 ? 1.0 / 3 : 0, 0.02);
    p.top_k = 0;
    draw(&p, forbidden, 30000, share);
    assert_near(share[2], 0.5, 0.02);
    assert_near(share[5], 0.5, 0.02);
    assert_int_equal(choose_one(&p, huge, NULL, 0), 0);
    p.temp = 1e-6f;
    assert_int_equal(choose_one(&p, logits, NULL, 3), 0);
}

/* NaN and -infinity, as from a broken model or from biases, must neither win nor be drawn. */
static void nothing_to_choose(void **state)
{
    struct pp_sampling p = off();
    static const float nan_first[N] = {NAN, 1, NAN, 2, NAN, NAN, NAN, NAN};
    static const float nan_last[N] = {1, 2, 3, NAN, NAN, -1, NAN, NAN};
    float none[N];
    (void)state;
    for (int i = 0; i < N; i++)
        none[i] = i % 2 ? NAN : -INFINITY;
    for (int top = 0; top <= 4; top += 2) {
        p.top_k = top;
        for (p.temp = 0; p.temp <= 1; p.temp++)
            assert_int_equal(choose_one(&p, none, NULL, 0), -1);
        expect_support_of(&p, nan_first, "13");
        expect_support_of(&p, nan_last, top == 2 ? "12" : "0125");
    }
    p.temp = 0;
    assert_int_equal(choose_one(&p, nan_first, NULL, 0), 3);
    assert_int_equal(choose_one(&p, nan_last, NULL, 0), 2);
    p.n_bias = N;
    for (int i = 0; i < N; i++)
        p.bias[i].token = i, p.bias[i].bias = -INFINITY;
    assert_int_equal(choose_one(&p, logits, NULL, 0), -1);
    p.temp = 1;
    assert_int_equal(choose_one(&p, logits, NULL, 0), -1);
}

/* --- large vocabularies ---------------------------------------------------------------------------------------- */

enum { MOST = 3001 };

static int by_logit(const void *a, const void *b)
{
    const struct pp_candidate *x = a, *y = b;
    return x->logit != y->logit ? (x->logit < y->logit) - (x->logit > y->logit) : x->token - y->token;
}

static int32_t put_all_in_order(const float *l, int32_t n, struct pp_candidate *list)
{
    int32_t allowed = 0;
    for (int32_t i = 0; i < n; i++)
        if (l[i] > -INFINITY)
            list[allowed++] = (struct pp_candidate){i, l[i]};
    qsort(list, (size_t)allowed, sizeof *list, by_logit);
    return allowed;
}

/* Logits of some kinds: like a model's; coarse, so that many are equal; with forbidden tokens; with all but three
 * forbidden. */
static void make_logits(float *l, int32_t n, int kind)
{
    for (int32_t i = 0; i < n; i++) {
        const uint32_t bits = (uint32_t)i * 2654435761u ^ (uint32_t)n;
        l[i] = 12.0f * sinf((float)(bits >> 8)) * sinf((float)(bits & 0xffff));
        if (kind == 1)
            l[i] = floorf(l[i] / 4);
        if ((kind == 2 && bits % 3 == 0) || (kind == 3 && i > 2))
            l[i] = bits % 2 ? NAN : -INFINITY;
    }
}

static void expect_best(struct pp_candidates *c, const float *l, const struct pp_candidate *all, int32_t allowed)
{
    const int32_t counts[] = {1, 2, 3, 40, 300, c->n / 2 + 1, c->n};
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        const int32_t n = pp_candidates_best(c, counts[k]);
        assert_int_equal(n, counts[k] < allowed ? counts[k] : allowed);
        for (int32_t i = 0; i < n; i++)
            if (c->list[i].token != all[i].token || !(c->list[i].logit == l[all[i].token]))
                fail_msg("%d of %d: token %d instead of %d", (int)i, (int)n, (int)c->list[i].token, (int)all[i].token);
    }
}

static void expect_nucleus(struct pp_candidates *c, const struct pp_candidate *all, int32_t allowed)
{
    static const float shares[] = {0.0f, 0.1f, 0.5f, 0.9f, 0.95f, 0.999f};
    double total = 0;
    for (int32_t i = 0; i < allowed; i++)
        total += exp((double)all[i].logit - (double)all[0].logit);
    for (size_t k = 0; k < sizeof shares / sizeof *shares; k++) {
        const float least = pp_candidates_nucleus(c, shares[k]);
        double with = 0, without = 0;
        for (int32_t i = 0; i < allowed && all[i].logit >= least; i++) {
            const double weight = exp((double)all[i].logit - (double)all[0].logit) / total;
            with += weight;
            without += all[i].logit > least ? weight : 0;
        }
        if (with < (double)shares[k] - 1e-5 || without > (double)shares[k] + 1e-5)
            fail_msg("a nucleus of %g has %g, and %g without its last", (double)shares[k], with, without);
    }
}

static void candidates(void **state)
{
    static const int32_t sizes[] = {1, 2, 63, 64, 65, 1023, 1024, 1025, MOST};
    static float l[MOST];
    static struct pp_candidate all[MOST];
    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int kind = 0; kind < 4; kind++) {
            struct pp_candidates c;
            struct pp_error err;
            make_logits(l, sizes[s], kind);
            const int32_t allowed = put_all_in_order(l, sizes[s], all);
            assert_ok(pp_candidates_init(&c, sizes[s], &err), err);
            pp_candidates_set(&c, l, sizes[s]);
            if (allowed) {
                assert_true(c.largest == all[0].logit);
                expect_best(&c, l, all, allowed);
                expect_nucleus(&c, all, allowed);
            } else {
                assert_true(c.largest == -INFINITY);
                assert_int_equal(pp_candidates_best(&c, 2), 0);
            }
            pp_candidates_free(&c);
        }
}

/* Without top-k the logits are not sorted: the choice must be that of a top-k that leaves out only one token, which is
 * never chosen. */
static void unordered(void **state)
{
    static float l[MOST];
    static const float filter[][2] = {{1, 0}, {0.9f, 0}, {1, 0.01f}, {0.999f, 0.001f}};
    struct pp_sampler s;
    struct pp_error err;
    double kinds = 0;
    (void)state;
    make_logits(l, MOST, 0);
    for (int i = 0; i < MOST; i++)
        l[i] *= 0.3f;
    l[100] = -1000;
    assert_ok(pp_sampler_init(&s, MOST, &err), err);
    for (int i = 0; i < 100; i++)
        for (size_t f = 0; f < sizeof filter / sizeof *filter; f++) {
            struct pp_sampling p = off();
            p.temp = i % 2 ? 1 : 0.5f, p.top_p = filter[f][0], p.min_p = filter[f][1];
            struct pp_choice a = pp_sampler_choose(&s, &p, l, NULL, i);
            p.top_k = MOST - 1;
            struct pp_choice b = pp_sampler_choose(&s, &p, l, NULL, i);
            if (a.token != b.token || a.second != b.second || a.margin != b.margin)
                fail_msg("place %d, filter %zu: %d before %d by %g, in order %d before %d by %g", i, f, (int)a.token,
                         (int)a.second, (double)a.margin, (int)b.token, (int)b.second, (double)b.margin);
            kinds += a.token != pp_sampler_choose(&s, &p, l, NULL, i + 1000).token;
        }
    assert_true(kinds > 200); /* the test means nothing if all choices are alike */
    pp_sampler_free(&s);
}

TEST_GROUP(sampler)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distribution),      cmocka_unit_test(independence), cmocka_unit_test(greedy_and_bias),
        cmocka_unit_test(suppressed),
        cmocka_unit_test(penalties),         cmocka_unit_test(filters),      cmocka_unit_test(ties_and_extremes),
        cmocka_unit_test(nothing_to_choose), cmocka_unit_test(candidates),   cmocka_unit_test(unordered),
    };
    return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}
