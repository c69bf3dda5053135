/* test_pool.c - every item runs once, parts are in order, and runs follow each other closely with more threads than
 * cores. */
#include <stdatomic.h>
#include <string.h>

#include "engine/pool.h"
#include "tests/support.h"

enum { PARTS = 7, MOST = 40 };

struct record {
    atomic_int runs[PARTS][MOST];
    atomic_int finished[PARTS];
    const int *n_items;
    atomic_int out_of_order;
};

static void record_item(void *arg, int part, int item, int thread)
{
    struct record *r = arg;
    (void)thread;
    atomic_fetch_add(&r->runs[part][item], 1);
    if (part > 0 && atomic_load(&r->finished[part - 1]) != r->n_items[part - 1])
        atomic_store(&r->out_of_order, 1);
    atomic_fetch_add(&r->finished[part], 1);
}

static void every_item_once(void **state)
{
    static const int n_items[PARTS] = {1, 40, 0, 3, 17, 0, 2};
    (void)state;
    for (int threads = 1; threads <= 8; threads++) {
        struct pp_pool *p;
        struct pp_error err;
        assert_ok(pp_pool_new(threads, &p, &err), err);
        assert_int_equal(pp_pool_n(p), threads);
        for (int run = 0; run < 300; run++) {
            struct record r;
            memset(&r, 0, sizeof r);
            r.n_items = n_items;
            pp_pool_run(p, record_item, &r, n_items, PARTS);
            assert_int_equal(atomic_load(&r.out_of_order), 0);
            for (int i = 0; i < PARTS; i++)
                for (int j = 0; j < MOST; j++)
                    assert_int_equal(atomic_load(&r.runs[i][j]), j < n_items[i]);
        }
        pp_pool_free(p);
    }
}

static void sum_item(void *arg, int part, int item, int thread)
{
    long *cells = arg; /* plain memory: what one part writes the next must see */
    (void)thread;
    cells[item] = part == 0 ? item : cells[item] + 1;
}

static void parts_see_each_other(void **state)
{
    static const int n_items[3] = {MOST, MOST, MOST};
    struct pp_pool *p;
    struct pp_error err;
    long cells[MOST];
    (void)state;
    assert_ok(pp_pool_new(4, &p, &err), err);
    for (int run = 0; run < 200; run++) {
        memset(cells, 0x55, sizeof cells);
        pp_pool_run(p, sum_item, cells, n_items, 3);
        for (int i = 0; i < MOST; i++)
            assert_int_equal(cells[i], i + 2);
    }
    pp_pool_free(p);
}

TEST_GROUP(pool)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_item_once), cmocka_unit_test(parts_see_each_other)};
    return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
