/* test_prompt_chunks.c - how many rows of a prompt a pass computes, on a simulated clock. */
#include "engine/prompt_chunks.h"
#include "tests/support.h"

enum { MAX_ROWS = 512 };

/* The time of a machine's pass: that of reading the weights, or of all rows if that is longer, or of both in part. */
static uint64_t pass_ns(double weights, double row, int rows)
{
    const double all = row * rows;
    return (uint64_t)(all > weights ? all + weights / 8 : weights + all / 8);
}

static int settled(double weights, double row, bool others_wait)
{
    struct pp_prompt_chunks c = {0};
    assert_int_equal(pp_chunk_rows(&c, others_wait, MAX_ROWS), PP_MIN_CHUNK);
    for (int i = 0; i < 4; i++) {
        const int rows = pp_chunk_rows(&c, others_wait, MAX_ROWS);
        pp_chunk_record(&c, rows, pass_ns(weights, row, rows));
    }
    return pp_chunk_rows(&c, others_wait, MAX_ROWS);
}

static void a_chunk_fills_its_time(void **state)
{
    (void)state;
    /* 1.1 billion weights on two cores: 16 rows take more than a third of the 100 ms, and yet more rows fit */
    assert_int_equal(settled(18e6, 2.1e6, true), 32);
    assert_int_equal(settled(18e6, 2.1e6, false), 224);
    /* 8 billion: 16 rows take longer than other answers should wait, but fewer would not be worth a pass */
    assert_int_equal(settled(130e6, 14e6, true), PP_MIN_CHUNK);
    assert_int_equal(settled(130e6, 14e6, false), PP_CHEAP_ROWS);
    /* 30 billion: more than two seconds would be too long */
    assert_int_equal(settled(500e6, 50e6, false), 32);
    /* a small model */
    assert_int_equal(settled(1e6, 0.05e6, true), MAX_ROWS);
}

/* Each expert gets few of the rows, so that larger passes are more efficient if nobody waits. */
static void experts_want_more_rows(void **state)
{
    struct pp_prompt_chunks c = {.row_ns = 12e6, .n_expert = 64, .n_expert_used = 8};
    (void)state;
    assert_int_equal(pp_chunk_rows(&c, false, MAX_ROWS), 160); /* two seconds */
    assert_int_equal(pp_chunk_rows(&c, true, MAX_ROWS), PP_MIN_CHUNK);
    c.n_expert = 8;
    assert_int_equal(pp_chunk_rows(&c, false, MAX_ROWS), PP_CHEAP_ROWS);
    c.n_expert = c.n_expert_used = 0;
    assert_int_equal(pp_chunk_rows(&c, false, MAX_ROWS), PP_CHEAP_ROWS);
    c.row_ns = 3e6; /* enough of them take less than half a second, which is used up */
    assert_int_equal(pp_chunk_rows(&c, false, MAX_ROWS), 160);
}

static void the_end_of_a_prompt_tells_nothing(void **state)
{
    struct pp_prompt_chunks c = {0};
    (void)state;
    pp_chunk_record(&c, 64, 64 * 2000000);
    const int before = pp_chunk_rows(&c, true, MAX_ROWS);
    pp_chunk_record(&c, 2, 18000000);
    pp_chunk_record(&c, 0, 18000000);
    assert_int_equal(pp_chunk_rows(&c, true, MAX_ROWS), before);
}

/* A pass that was disturbed makes one chunk smaller, but not the following ones. */
static void disturbed_passes_are_forgotten(void **state)
{
    struct pp_prompt_chunks c = {0};
    (void)state;
    pp_chunk_record(&c, 48, 3000000000);
    assert_int_equal(pp_chunk_rows(&c, false, MAX_ROWS), 2 * PP_MIN_CHUNK);
    pp_chunk_record(&c, PP_MIN_CHUNK, 38000000);
    assert_int_equal(pp_chunk_rows(&c, false, MAX_ROWS), 208);
}

static void there_is_no_more_than_room(void **state)
{
    struct pp_prompt_chunks c = {0};
    (void)state;
    assert_int_equal(pp_chunk_rows(&c, true, 5), 5);
    assert_int_equal(pp_chunk_rows(&c, true, 0), 0);
    pp_chunk_record(&c, 100, 1);
    assert_int_equal(pp_chunk_rows(&c, false, 21), 21);
}

TEST_GROUP(prompt_chunks)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chunk_fills_its_time),
        cmocka_unit_test(experts_want_more_rows),
        cmocka_unit_test(the_end_of_a_prompt_tells_nothing),
        cmocka_unit_test(disturbed_passes_are_forgotten),
        cmocka_unit_test(there_is_no_more_than_room),
    };
    return cmocka_run_group_tests_name("prompt_chunks", tests, NULL, NULL);
}
