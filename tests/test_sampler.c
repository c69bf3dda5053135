/* test_sampler.c - each link of the chain by itself, their order, and the distribution of the choice. */
#include <math.h>
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
    assert_int_equal(first, again); /* nothing is left behind */
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
    p.top_k = 3; /* of equal ones the first */
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

/* What a broken model computes, or what biases leave over, must neither win nor be drawn. */
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

TEST_GROUP(sampler)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distribution),      cmocka_unit_test(independence), cmocka_unit_test(greedy_and_bias),
        cmocka_unit_test(penalties),         cmocka_unit_test(filters),      cmocka_unit_test(ties_and_extremes),
        cmocka_unit_test(nothing_to_choose),
    };
    return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}
