/* test_stream_choice.c - which way of reading weights is chosen, on a simulated clock. */
#include "engine/cpu/stream_choice.h"
#include "tests/support.h"

/* A machine on which passes take so many ns in the one way and the other, and up to an eighth more where it is
 * disturbed. */
struct machine {
    uint64_t one, other;
    uint32_t noise;
    int n, n_other;  /* passes */
};

static uint64_t pass_of(struct machine *m, const struct pp_stream_choice *c)
{
    m->noise = m->noise * 1664525 + 1013904223;
    m->n++;
    m->n_other += c->other_way;
    uint64_t ns = c->other_way ? m->other : m->one;
    return ns + ns / 8 * (m->noise >> 24) / 256;
}

static void run(struct machine *m, struct pp_stream_choice *c, int passes)
{
    m->n = m->n_other = 0;
    while (passes--)
        pp_stream_choice_passed(c, pass_of(m, c));
}

static void the_faster_way_is_chosen(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 50; seed++) {
        struct machine m = {.one = 40000000, .other = 36000000, .noise = seed};
        struct pp_stream_choice c = {0};
        run(&m, &c, 16);
        assert_true(m.n_other >= 5 && m.n_other <= 6);
        run(&m, &c, 10000);
        assert_true(c.other_way && m.n_other > 9940);
        m.other = 48000000; /* as where another program fills the caches */
        run(&m, &c, 2020);
        assert_false(c.other_way);
        run(&m, &c, 10000);
        assert_true(!c.other_way && m.n_other >= 24 && m.n_other <= 36); /* it is tried again, and costs little */
    }
}

static void alike_is_not_chosen(void **state)
{
    (void)state;
    struct pp_stream_choice c = {0};
    for (int i = 0; i < 16; i++)
        pp_stream_choice_passed(&c, c.other_way ? 39800000 : 40000000);
    assert_false(c.other_way);
}

/* The first passes read the file, pack weights and fill caches. */
static void cold_passes_do_not_count(void **state)
{
    (void)state;
    struct pp_stream_choice c = {0};
    for (int i = 0; i < 4; i++) {
        assert_false(c.other_way);
        pp_stream_choice_passed(&c, 2500000 + 100000 * (unsigned)i);
    }
    for (int i = 0; i < 12; i++)
        pp_stream_choice_passed(&c, c.other_way ? 36000000 : 40000000);
    assert_true(c.other_way);
}

static void passes_in_caches_choose_nothing(void **state)
{
    (void)state;
    struct machine m = {.one = 500000, .other = 400000, .noise = 1};
    struct pp_stream_choice c = {0};
    run(&m, &c, 5000);
    assert_int_equal(m.n_other, 0);
}

TEST_GROUP(stream_choice)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_faster_way_is_chosen),
        cmocka_unit_test(alike_is_not_chosen),
        cmocka_unit_test(cold_passes_do_not_count),
        cmocka_unit_test(passes_in_caches_choose_nothing),
    };
    return cmocka_run_group_tests_name("stream_choice", tests, NULL, NULL);
}
