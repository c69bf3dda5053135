/* pool.c - see pool.h.
 *
 * Two meeting points, both a counter that is bumped ("generation") and that waiters watch: `epoch` starts a run, `phase`
 * is the barrier inside it. A waiter spins for about 50 us, because the next stage of a forward pass usually comes sooner, and
 * then sleeps on the counter as a futex. */
#include "engine/pool.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"

enum { SPIN_NS = 50000, POOL_NICE = 5 };

struct meeting {
    _Alignas(64) atomic_uint generation;
    atomic_uint sleepers;
};

struct pp_pool {
    struct meeting epoch; /* a new run, or the end */
    struct meeting phase; /* the barrier inside a run */
    _Alignas(64) atomic_int arrived;
    pp_pool_fn *fn;       /* written before epoch is bumped */
    void *arg;
    int n;
    int n_spins;          /* looks at a counter before sleeping */
    atomic_bool quit;
    struct pool_thread {
        struct pp_pool *pool;
        pthread_t id;
        int index;
    } *threads;           /* [n - 1]; the caller of pp_pool_run is thread 0 */
};

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void meeting_wait(struct meeting *m, unsigned seen, int n_spins)
{
    for (int i = 0; i < n_spins; i++) {
        if (atomic_load_explicit(&m->generation, memory_order_acquire) != seen)
            return;
        relax();
    }
    /* Sequentially consistent, as in meeting_bump: either we see the new generation or the bumper sees a sleeper. */
    atomic_fetch_add(&m->sleepers, 1);
    while (atomic_load(&m->generation) == seen)
        syscall(SYS_futex, &m->generation, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(&m->sleepers, 1);
}

static void meeting_bump(struct meeting *m)
{
    atomic_fetch_add(&m->generation, 1);
    if (atomic_load(&m->sleepers))
        syscall(SYS_futex, &m->generation, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void pp_pool_barrier(struct pp_pool *p)
{
    if (p->n == 1)
        return;
    unsigned seen = atomic_load_explicit(&p->phase.generation, memory_order_acquire);
    if (atomic_fetch_add_explicit(&p->arrived, 1, memory_order_acq_rel) == p->n - 1) {
        atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
        meeting_bump(&p->phase);
    } else {
        meeting_wait(&p->phase, seen, p->n_spins);
    }
}

static void *thread_main(void *arg)
{
    struct pool_thread *t = arg;
    struct pp_pool *p = t->pool;
    unsigned seen = 0;
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), getpriority(PRIO_PROCESS, 0) + POOL_NICE);
    for (;;) {
        meeting_wait(&p->epoch, seen, p->n_spins);
        seen++;
        if (atomic_load_explicit(&p->quit, memory_order_acquire))
            return NULL;
        p->fn(p->arg, t->index);
        pp_pool_barrier(p); /* the run is over when all have met */
    }
}

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

enum pp_code pp_pool_new(int n_threads, struct pp_pool **out, struct pp_error *err)
{
    *out = NULL;
    struct pp_pool *p = pp_aligned(64, sizeof *p);
    struct pool_thread *threads = pp_calloc((size_t)n_threads, sizeof *threads);
    if (!p || !threads) {
        pp_free(p);
        pp_free(threads);
        return pp_fail_nomem(err, "the compute threads");
    }
    *p = (struct pp_pool){.n = 1, .threads = threads, .n_spins = measure_spins(n_threads)};
    int wanted = n_threads;
    p->n = n_threads; /* fixed before the first thread looks at it */
    for (int i = 1; i < wanted; i++) {
        threads[i - 1] = (struct pool_thread){.pool = p, .index = i};
        if (pthread_create(&threads[i - 1].id, NULL, thread_main, &threads[i - 1]) != 0) {
            atomic_store(&p->quit, true);
            meeting_bump(&p->epoch);
            while (--i >= 1)
                pthread_join(threads[i - 1].id, NULL);
            pp_free(threads);
            pp_free(p);
            return pp_fail(err, PP_ERR_NOMEM, "cannot start %d compute threads; use fewer with -t", wanted);
        }
    }
    *out = p;
    return PP_OK;
}

void pp_pool_free(struct pp_pool *p)
{
    if (!p)
        return;
    atomic_store_explicit(&p->quit, true, memory_order_release);
    meeting_bump(&p->epoch);
    for (int i = 1; i < p->n; i++)
        pthread_join(p->threads[i - 1].id, NULL);
    pp_free(p->threads);
    pp_free(p);
}

int pp_pool_n(const struct pp_pool *p)
{
    return p->n;
}

void pp_pool_run(struct pp_pool *p, pp_pool_fn *fn, void *arg)
{
    p->fn = fn;
    p->arg = arg;
    if (p->n > 1)
        meeting_bump(&p->epoch);
    fn(arg, 0);
    pp_pool_barrier(p);
}
