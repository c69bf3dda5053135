/* test_queue.c - the bounded queue, alone and between threads. Run it under TSan, too. */
#include "tests/support.h"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "src/queue.h"

static struct pp_queue *make(size_t capacity)
{
    struct pp_error err;
    struct pp_queue *q;
    assert_ok(pp_queue_new(capacity, &q, &err), err);
    return q;
}

static bool readable(const struct pp_queue *q)
{
    struct pollfd p = {.fd = pp_queue_fd(q), .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

static void first_in_first_out(void **state)
{
    (void)state;
    int items[5];
    struct pp_queue *q = make(3);
    assert_null(pp_queue_try_pop(q));
    for (int round = 0; round < 4; round++) { /* the ring turns over */
        for (int i = 0; i < 3; i++)
            assert_true(pp_queue_try_push(q, &items[i]));
        assert_false(pp_queue_try_push(q, &items[3]));
        assert_ptr_equal(pp_queue_try_pop(q), &items[0]);
        assert_true(pp_queue_try_push(q, &items[4]));
        assert_ptr_equal(pp_queue_pop(q, -1), &items[1]);
        assert_ptr_equal(pp_queue_pop(q, 0), &items[2]);
        assert_ptr_equal(pp_queue_pop(q, 10), &items[4]);
        assert_null(pp_queue_try_pop(q));
    }
    pp_queue_free(q);
    struct pp_error err;
    assert_int_equal(pp_queue_new(0, &q, &err), PP_ERR_USAGE);
    assert_null(q);
}

static void one_signal_per_burst(void **state)
{
    (void)state;
    int item;
    uint64_t count = 0;
    struct pp_queue *q = make(8);
    assert_false(readable(q));
    for (int i = 0; i < 5; i++)
        assert_true(pp_queue_push(q, &item));
    assert_true(readable(q));
    assert_int_equal(read(pp_queue_fd(q), &count, sizeof count), sizeof count);
    assert_int_equal(count, 1); /* five items, written once */
    pp_queue_clear_fd(q);
    assert_false(readable(q));
    assert_true(pp_queue_push(q, &item)); /* after what is there, which came after the clear */
    assert_true(readable(q));
    pp_queue_clear_fd(q);
    while (pp_queue_try_pop(q))
        continue;
    assert_false(readable(q));
    pp_queue_free(q);
}

static void closing(void **state)
{
    (void)state;
    int item;
    struct pp_queue *q = make(4);
    assert_true(pp_queue_push(q, &item));
    pp_queue_close(q);
    assert_true(readable(q)); /* poll() reports it */
    assert_false(pp_queue_push(q, &item));
    assert_false(pp_queue_try_push(q, &item));
    assert_ptr_equal(pp_queue_pop(q, -1), &item);
    assert_null(pp_queue_pop(q, -1)); /* does not wait */
    pp_queue_free(q);
}

static void timeout(void **state)
{
    (void)state;
    struct pp_queue *q = make(1);
    uint64_t before = pp_now_ns();
    assert_null(pp_queue_pop(q, 30));
    assert_true(pp_now_ns() - before >= 29 * 1000000u);
    pp_queue_free(q);
}

enum { PRODUCERS = 3, EACH = 5000 };

struct producer {
    struct pp_queue *q;
    int items[EACH];
    int number;
};

static void *produce(void *arg)
{
    struct producer *p = arg;
    for (int i = 0; i < EACH; i++) {
        p->items[i] = p->number * EACH + i;
        if (!pp_queue_push(p->q, &p->items[i]))
            return p;
    }
    return NULL;
}

/* Nothing is lost, and each producer's items keep their order, although the queue is far too small and the consumer
 * polls it. */
static void many_threads(void **state)
{
    (void)state;
    static struct producer producers[PRODUCERS];
    pthread_t threads[PRODUCERS];
    int next[PRODUCERS] = {0}, got = 0;
    struct pp_queue *q = make(7);
    for (int i = 0; i < PRODUCERS; i++) {
        producers[i].q = q;
        producers[i].number = i;
        assert_int_equal(pthread_create(&threads[i], NULL, produce, &producers[i]), 0);
    }
    struct pollfd p = {.fd = pp_queue_fd(q), .events = POLLIN};
    while (got < PRODUCERS * EACH) {
        assert_int_equal(poll(&p, 1, 10000), 1); /* a lost wakeup would hang here */
        pp_queue_clear_fd(q);
        for (int *item; (item = pp_queue_try_pop(q)); got++) {
            int number = *item / EACH;
            assert_int_equal(*item % EACH, next[number]++);
        }
    }
    for (int i = 0; i < PRODUCERS; i++) {
        void *refused;
        pthread_join(threads[i], &refused);
        assert_null(refused);
    }
    pp_queue_free(q);
}

static void *push_two(void *arg)
{
    struct pp_queue *q = arg;
    static int item;
    bool first = pp_queue_push(q, &item), second = pp_queue_push(q, &item);
    return first && !second ? arg : NULL;
}

static void *pop_one(void *arg)
{
    return pp_queue_pop(arg, -1);
}

static void close_wakes_waiters(void **state)
{
    (void)state;
    void *result;
    pthread_t thread;
    struct pp_queue *q = make(1);
    pthread_create(&thread, NULL, push_two, q);
    usleep(20000);
    pp_queue_close(q);
    pthread_join(thread, &result);
    assert_ptr_equal(result, q);
    assert_non_null(pp_queue_try_pop(q));
    pp_queue_free(q);

    q = make(1);
    pthread_create(&thread, NULL, pop_one, q);
    usleep(20000);
    pp_queue_close(q);
    pthread_join(thread, &result);
    assert_null(result);
    pp_queue_free(q);
}

TEST_GROUP(queue)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_in_first_out), cmocka_unit_test(one_signal_per_burst), cmocka_unit_test(closing),
        cmocka_unit_test(timeout),            cmocka_unit_test(many_threads),
        cmocka_unit_test(close_wakes_waiters),
    };
    return cmocka_run_group_tests_name("queue", tests, NULL, NULL);
}
