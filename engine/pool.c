/* pool.c - see pool.h.
 *
 * Every counter carries the number of its run in the upper half, so that a thread that comes late, even several
 * runs late, cannot take an item of a run that it does not know: its compare-and-swap fails. A run cannot end
 * while an item of it is being worked on; therefore whoever has taken an item may read the run's `fn` and `arg`,
 * and nobody else may. */
#include "engine/pool.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/priority.h"

enum { SPIN_NS = 50000 };

/* A futex that is bumped when something happened. */
struct signal {
    _Alignas(64) atomic_uint count;
    atomic_uint sleepers;
};

struct part {
    _Alignas(64) atomic_uint_fast64_t next; /* run << 32 | next item to take */
    atomic_uint_fast64_t done;              /* run << 32 | items finished */
    atomic_int n_items;
};

struct pp_pool {
    struct signal begun;   /* a run, or the end */
    struct signal ended;   /* a part */
    pp_pool_fn *fn;        /* of the current run; see above who may read them */
    void *arg;
    struct part *parts;    /* [PP_POOL_MAX_PARTS], touched as needed; never moves, because late threads look at it */
    atomic_int n_parts;
    atomic_uint run;
    atomic_bool quit;
    int n;
    int n_spins;           /* looks at a counter before sleeping */
    struct pool_thread {
        struct pp_pool *pool;
        pthread_t id;
        int index;
    } *threads;            /* [n - 1] */
};

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Sequentially consistent on both sides: either the sleeper sees the new count, or the sender sees a sleeper. */
static void signal_wait(struct signal *s, unsigned seen)
{
    atomic_fetch_add(&s->sleepers, 1);
    if (atomic_load(&s->count) == seen)
        syscall(SYS_futex, &s->count, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(&s->sleepers, 1);
}

static void signal_send(struct signal *s)
{
    atomic_fetch_add(&s->count, 1);
    if (atomic_load(&s->sleepers))
        syscall(SYS_futex, &s->count, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* --- parts ----------------------------------------------------------------------------------------------------- */

enum { NOTHING_LEFT = -1, RUN_IS_OVER = -2 };

static int take_item(struct part *part, unsigned run)
{
    uint64_t next = atomic_load_explicit(&part->next, memory_order_acquire);
    for (;;) {
        if (next >> 32 != run)
            return RUN_IS_OVER;
        int item = (int)(uint32_t)next;
        if (item >= atomic_load_explicit(&part->n_items, memory_order_acquire))
            return NOTHING_LEFT;
        if (atomic_compare_exchange_weak_explicit(&part->next, &next, next + 1, memory_order_acq_rel,
                                                  memory_order_acquire))
            return item;
    }
}

/* True when all items are done or the run is over. */
static bool is_done(struct part *part, unsigned run)
{
    uint64_t done = atomic_load_explicit(&part->done, memory_order_acquire);
    return done >> 32 != run || (int)(uint32_t)done >= atomic_load_explicit(&part->n_items, memory_order_relaxed);
}

static void wait_done(struct pp_pool *p, struct part *part, unsigned run)
{
    for (int i = 0; i < p->n_spins; i++) {
        if (is_done(part, run))
            return;
        relax();
    }
    for (;;) {
        unsigned seen = atomic_load(&p->ended.count);
        if (is_done(part, run))
            return;
        signal_wait(&p->ended, seen);
    }
}

/* Works through the parts of a run until they are done, by whomever. */
static void work(struct pp_pool *p, unsigned run, int thread)
{
    int n_parts = atomic_load_explicit(&p->n_parts, memory_order_relaxed);
    for (int i = 0; i < n_parts; i++) {
        struct part *part = &p->parts[i];
        int item;
        while ((item = take_item(part, run)) >= 0) {
            int n_items = atomic_load_explicit(&part->n_items, memory_order_relaxed);
            p->fn(p->arg, i, item, thread);
            uint64_t done = atomic_fetch_add_explicit(&part->done, 1, memory_order_acq_rel) + 1;
            if ((int)(uint32_t)done == n_items && p->n > 1)
                signal_send(&p->ended);
        }
        if (item == RUN_IS_OVER)
            return;
        wait_done(p, part, run);
    }
}

static void *thread_main(void *arg)
{
    struct pool_thread *t = arg;
    struct pp_pool *p = t->pool;
    unsigned last = 0;
    pp_priority_compute();
    for (int spins = 0;;) {
        unsigned seen = atomic_load(&p->begun.count);
        unsigned run = atomic_load_explicit(&p->run, memory_order_acquire);
        if (atomic_load_explicit(&p->quit, memory_order_acquire))
            return NULL;
        if (run != last) {
            last = run;
            work(p, run, t->index);
            spins = 0;
        } else if (spins++ < p->n_spins) {
            relax();
        } else {
            signal_wait(&p->begun, seen);
            spins = 0;
        }
    }
}

void pp_pool_run(struct pp_pool *p, pp_pool_fn *fn, void *arg, const int *n_items, int n_parts)
{
    unsigned run = atomic_load_explicit(&p->run, memory_order_relaxed) + 1;
    uint64_t zero = (uint64_t)run << 32;
    p->fn = fn;
    p->arg = arg;
    atomic_store_explicit(&p->n_parts, n_parts, memory_order_relaxed);
    for (int i = 0; i < n_parts; i++) {
        struct part *part = &p->parts[i];
        /* Closed to the last run's late threads before it has this run's number of items, then opened. */
        atomic_store_explicit(&part->next, zero | UINT32_MAX >> 1, memory_order_release);
        atomic_store_explicit(&part->n_items, n_items[i], memory_order_release);
        atomic_store_explicit(&part->done, zero, memory_order_release);
        atomic_store_explicit(&part->next, zero, memory_order_release);
    }
    atomic_store_explicit(&p->run, run, memory_order_release);
    if (p->n > 1)
        signal_send(&p->begun);
    work(p, run, 0);
}

/* --- life ------------------------------------------------------------------------------------------------------ */

/* How many looks at a counter fill SPIN_NS: the pause instruction takes 5 to 140 cycles, depending on the CPU. */
static int measure_spins(int n_threads)
{
    cpu_set_t set;
    int n_cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    if (n_threads > n_cpus)
        return 0; /* somebody must wait for our core: never spin */
    uint64_t begin = pp_now_ns();
    for (int i = 0; i < 1000; i++)
        relax();
    uint64_t ns = pp_now_ns() - begin;
    return (int)(SPIN_NS * 1000 / (ns ? ns : 1)) + 1;
}

static void stop_threads(struct pp_pool *p, int n_started)
{
    atomic_store_explicit(&p->quit, true, memory_order_release);
    signal_send(&p->begun);
    for (int i = 0; i < n_started; i++)
        pthread_join(p->threads[i].id, NULL);
}

enum pp_code pp_pool_new(int n_threads, struct pp_pool **out, struct pp_error *err)
{
    *out = NULL;
    struct pp_pool *p = pp_aligned(64, sizeof *p);
    struct pool_thread *threads = pp_calloc((size_t)n_threads, sizeof *threads);
    void *parts = mmap(NULL, PP_POOL_MAX_PARTS * sizeof *p->parts, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!p || !threads || parts == MAP_FAILED) {
        if (parts != MAP_FAILED)
            munmap(parts, PP_POOL_MAX_PARTS * sizeof *p->parts);
        pp_free(p);
        pp_free(threads);
        return pp_fail_nomem(err, "the compute threads");
    }
    memset(p, 0, sizeof *p);
    p->parts = parts;
    p->threads = threads;
    p->n = n_threads;
    p->n_spins = measure_spins(n_threads);
    for (int i = 1; i < n_threads; i++) {
        threads[i - 1] = (struct pool_thread){.pool = p, .index = i};
        if (pthread_create(&threads[i - 1].id, NULL, thread_main, &threads[i - 1]) != 0) {
            p->n = i;
            pp_pool_free(p);
            return pp_fail(err, PP_ERR_NOMEM, "cannot start %d compute threads; use fewer with -t", n_threads);
        }
    }
    *out = p;
    return PP_OK;
}

void pp_pool_free(struct pp_pool *p)
{
    if (!p)
        return;
    stop_threads(p, p->n - 1);
    munmap(p->parts, PP_POOL_MAX_PARTS * sizeof *p->parts);
    pp_free(p->threads);
    pp_free(p);
}

int pp_pool_n(const struct pp_pool *p)
{
    return p->n;
}
