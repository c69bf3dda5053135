#include "src/queue.h"

#include <pthread.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "src/thread.h"

struct pp_queue {
    pthread_mutex_t lock;
    pthread_cond_t not_empty;
    pthread_cond_t not_full;
    int fd;
    size_t capacity;

    /* -- protected by lock */
    void **items; /* ring buffer [capacity] */
    size_t head;  /* index of the oldest item */
    size_t len;
    bool closed;
    bool signalled; /* the eventfd was written, or is about to be, and has not been cleared since */
};

static bool init_sync(struct pp_queue *q)
{
    bool ok = pthread_mutex_init(&q->lock, NULL) == 0;
    if (ok && pp_cond_init(&q->not_empty) != 0) {
        pthread_mutex_destroy(&q->lock);
        ok = false;
    }
    if (ok && pp_cond_init(&q->not_full) != 0) {
        pthread_cond_destroy(&q->not_empty);
        pthread_mutex_destroy(&q->lock);
        ok = false;
    }
    return ok;
}

enum pp_code pp_queue_new(size_t capacity, struct pp_queue **out, struct pp_error *err)
{
    *out = NULL;
    if (capacity == 0)
        return pp_fail(err, PP_ERR_USAGE, "a queue needs room for one item at least");
    struct pp_queue *q = pp_calloc(1, sizeof *q);
    if (q)
        q->items = pp_calloc(capacity, sizeof *q->items);
    if (!q || !q->items) {
        pp_free(q);
        return pp_fail_nomem(err, "a queue between threads");
    }
    q->capacity = capacity;
    q->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (q->fd < 0 || !init_sync(q)) {
        if (q->fd >= 0)
            close(q->fd);
        pp_free(q->items);
        pp_free(q);
        return pp_fail(err, PP_ERR_IO, "the system has no event descriptor left; close other programs");
    }
    *out = q;
    return PP_OK;
}

void pp_queue_free(struct pp_queue *q)
{
    if (!q)
        return;
    close(q->fd);
    pthread_cond_destroy(&q->not_full);
    pthread_cond_destroy(&q->not_empty);
    pthread_mutex_destroy(&q->lock);
    pp_free(q->items);
    pp_free(q);
}

/* Unlocks before it wakes the reader, which otherwise would wait for the lock if it preempts this (niced) thread.
 * The write can neither block nor fail, as the counter stays small. */
static void unlock_and_signal(struct pp_queue *q)
{
    bool first = !q->signalled;
    q->signalled = true;
    pthread_mutex_unlock(&q->lock);
    if (first)
        (void)!eventfd_write(q->fd, 1);
}

static void put(struct pp_queue *q, void *item)
{
    q->items[(q->head + q->len) % q->capacity] = item;
    q->len++;
    pthread_cond_signal(&q->not_empty);
}

static void *take_first(struct pp_queue *q)
{
    if (q->len == 0)
        return NULL;
    void *item = q->items[q->head];
    q->head = (q->head + 1) % q->capacity;
    q->len--;
    pthread_cond_signal(&q->not_full);
    return item;
}

static bool push(struct pp_queue *q, void *item, bool wait)
{
    pthread_mutex_lock(&q->lock);
    while (wait && q->len == q->capacity && !q->closed)
        pthread_cond_wait(&q->not_full, &q->lock);
    bool ok = !q->closed && q->len < q->capacity;
    if (ok) {
        put(q, item);
        unlock_and_signal(q);
    } else {
        pthread_mutex_unlock(&q->lock);
    }
    return ok;
}

bool pp_queue_push(struct pp_queue *q, void *item)
{
    return push(q, item, true);
}

bool pp_queue_try_push(struct pp_queue *q, void *item)
{
    return push(q, item, false);
}

void *pp_queue_try_pop(struct pp_queue *q)
{
    pthread_mutex_lock(&q->lock);
    void *item = take_first(q);
    pthread_mutex_unlock(&q->lock);
    return item;
}

void *pp_queue_pop(struct pp_queue *q, int timeout_ms)
{
    const uint64_t until = pp_now_ns() + (timeout_ms > 0 ? (uint64_t)timeout_ms * 1000000u : 0);
    pthread_mutex_lock(&q->lock);
    while (q->len == 0 && !q->closed && timeout_ms != 0) {
        if (timeout_ms < 0)
            pthread_cond_wait(&q->not_empty, &q->lock);
        else if (!pp_cond_wait_until(&q->not_empty, &q->lock, until))
            break;
    }
    void *item = take_first(q);
    pthread_mutex_unlock(&q->lock);
    return item;
}

void pp_queue_close(struct pp_queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->closed = true;
    pthread_cond_broadcast(&q->not_empty);
    pthread_cond_broadcast(&q->not_full);
    unlock_and_signal(q);
}

int pp_queue_fd(const struct pp_queue *q)
{
    return q->fd;
}

void pp_queue_clear_fd(struct pp_queue *q)
{
    /* Clears the counter before the flag, so that an item pushed in between is found when the queue is drained. A
     * signal that is still on its way may arrive afterwards; then the queue is drained once in vain. */
    eventfd_t count;
    (void)!eventfd_read(q->fd, &count);
    pthread_mutex_lock(&q->lock);
    q->signalled = false;
    pthread_mutex_unlock(&q->lock);
}
