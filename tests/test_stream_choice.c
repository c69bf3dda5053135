/* test_stream_choice.c - which way of reading weights is chosen, on a simulated clock. */
#include <string.h>

#include "engine/cpu/stream_choice.h"
#include "tests/support.h"

enum { ONE, OTHER, THIRD };

/* A machine on which passes take this many ns in each way, and up to an eighth more if they are disturbed. */
struct machine {
    uint64_t ns[PP_STREAM_CHOICES];
    uint32_t noise;
    int n[PP_STREAM_CHOICES]; /* passes */
};

static uint64_t pass_of(struct machine *m, const struct pp_stream_choice *c)
{
    m->noise = m->noise * 1664525 + 1013904223;
    m->n[c->way]++;
    const uint64_t ns = m->ns[c->way];
    return ns + ns / 8 * (m->noise >> 24) / 256;
}

static void run(struct machine *m, struct pp_stream_choice *c, int passes)
{
    memset(m->n, 0, sizeof m->n);
    while (passes--)
        pp_stream_choice_passed(c, pass_of(m, c));
}

static void the_faster_way_is_chosen(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 50; seed++) {
        struct machine m = {.ns = {40000000, 36000000}, .noise = seed};
        struct pp_stream_choice c = {.n_ways = 2};
        run(&m, &c, 16);
        assert_true(m.n[OTHER] >= 5 && m.n[OTHER] <= 6);
        run(&m, &c, 10000);
        assert_true(c.way == OTHER && m.n[OTHER] > 9940);
        m.ns[OTHER] = 48000000; /* as if another program filled the caches */
        run(&m, &c, 2020);
        assert_int_equal(c.way, ONE);
        run(&m, &c, 10000);
        assert_true(c.way == ONE && m.n[OTHER] >= 24 && m.n[OTHER] <= 36); /* tried again, at little cost */
    }
}

static void the_fastest_of_three_is_chosen(void **state)
{
    (void)state;
    for (int best = ONE; best <= THIRD; best++)
        for (uint32_t seed = 1; seed <= 20; seed++) {
            struct machine m = {.ns = {40000000, 41000000, 42000000}, .noise = seed};
            struct pp_stream_choice c = {.n_ways = 3};
            m.ns[best] = 35000000;
            run(&m, &c, 22);
            for (int way = ONE; way <= THIRD; way++)
                assert_true(m.n[way] >= 5); /* six, and the first ones with cold caches */
            run(&m, &c, 1990);
            assert_true(c.way == best && m.n[best] == 1990);
        }
}

static void alone_there_is_no_choice(void **state)
{
    (void)state;
    struct machine m = {.ns = {40000000}, .noise = 1};
    struct pp_stream_choice c = {.n_ways = 1};
    run(&m, &c, 5000);
    assert_int_equal(m.n[ONE], 5000);
}

static void alike_is_not_chosen(void **state)
{
    (void)state;
    struct pp_stream_choice c = {.n_ways = 2};
    for (int i = 0; i < 16; i++)
        pp_stream_choice_passed(&c, c.way ? 39800000 : 40000000);
    assert_int_equal(c.way, ONE);
}

/* The first passes read the file, pack weights and fill caches. */
static void cold_passes_do_not_count(void **state)
{
    (void)state;
    struct pp_stream_choice c = {.n_ways = 2};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(c.way, ONE);
        pp_stream_choice_passed(&c, 2500000 + 100000 * (unsigned)i);
    }
    for (int i = 0; i < 12; i++)
        pp_stream_choice_passed(&c, c.way ? 36000000 : 40000000);
    assert_int_equal(c.way, OTHER);
}

static void passes_in_caches_choose_nothing(void **state)
{
    (void)state;
    struct machine m = {.ns = {500000, 400000}, .noise = 1};
    struct pp_stream_choice c = {.n_ways = 2};
    run(&m, &c, 5000);
    assert_int_equal(m.n[OTHER], 0);
}

TEST_GROUP(stream_choice)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_faster_way_is_chosen),
        cmocka_unit_test(the_fastest_of_three_is_chosen),
        cmocka_unit_test(alone_there_is_no_choice),
        cmocka_unit_test(alike_is_not_chosen),
        cmocka_unit_test(cold_passes_do_not_count),
        cmocka_unit_test(passes_in_caches_choose_nothing),
    };
    return cmocka_run_group_tests_name("stream_choice", tests, NULL, NULL);
}
