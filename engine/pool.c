/* pool.c - see pool.h.
 *
 * One part is open at a time. What is left of a thread's share is one word, so a thread that takes items by
 * compare-and-swap, however late it comes, gets items of the part that is open now. A part cannot end while one of its
 * items is being worked on; so only a thread that has taken items may read `fn`, `arg` and `part`. The thread that
 * reports the last item of a part opens the next one. `epoch` is incremented after each opening: a thread that finds
 * nothing to do waits until it differs from what it was before it looked. */
#include "engine/pool.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/float_mode.h"
#include "engine/base/mem.h"
#include "engine/base/priority.h"
#include "engine/base/topology.h"

enum { SPIN_NS = 50000, LANE_THREADS = 4, MAX_LANES = 32 };
/* Bytes that a thread prefetches for a later part; and at most how many parts ahead. */
enum { AHEAD_BYTES = 128 << 10, AHEAD_PARTS = 4, LINE = 64 };

/* Threads that report their items to one counter. */
struct lane {
    _Alignas(64) atomic_int left; /* items of its shares that are not reported as done */
    _Alignas(64) int n_threads, node; /* constant, on a cache line that `left` does not invalidate */
    int first_thread;
};

/* A thread's share of the open part. */
struct share {
    _Alignas(64) atomic_uint_fast64_t range; /* first << 32 | end of the items not taken yet */
    atomic_int at_once, part;                /* the open part: to be read after taking items of it */
    _Atomic(const void *) ahead;             /* where this thread begins to read in the next part that has `begins` */
};

struct pp_pool {
    /* read by all while they wait, written once a part */
    _Alignas(64) atomic_uint epoch;
    atomic_int part_items;
    /* threads that sleep */
    _Alignas(64) atomic_int sleepers;      /* without the caller */
    atomic_int caller_sleeps;
    atomic_bool over;                      /* the current run's last part is done */
    atomic_bool quit;
    _Alignas(64) atomic_int lanes_left;    /* lanes with items that are not reported */
    int part;                              /* for the thread that opens the next one */
    _Alignas(64) pp_pool_range_fn *fn;     /* of the current run; see above which threads may read these */
    void *arg;
    const struct pp_pool_part *parts;      /* [n_parts], or NULL: */
    const int *n_items;                    /* [n_parts], one at a time */
    int n_parts;
    atomic_uint float_mode;                /* the caller's */
    /* constant */
    int n;
    int n_lanes;
    int n_spins;                           /* reads of the epoch before sleeping */
    struct lane *lanes;                    /* [n_lanes], those of a node together */
    struct share *shares;                  /* [n] */
    struct pp_topology topology;
    struct pool_thread {
        struct pp_pool *pool;
        pthread_t id;
        int index, lane;
        const void *read_ahead;            /* what was prefetched last */
        unsigned float_mode;
    } *threads;                            /* [n]; the first is the caller */
};

/* --- waiting --------------------------------------------------------------------------------------------------- */

enum who { WORKER = 1, CALLER = 2 }; /* bits of a futex */

static void wake(struct pp_pool *p, int n, enum who who)
{
    syscall(SYS_futex, &p->epoch, FUTEX_WAKE_BITSET_PRIVATE, n, NULL, NULL, who);
}

/* Returns when the epoch has changed. Sequentially consistent on both sides: either the sleeper sees the new epoch, or
 * the thread that changed it sees the sleeper. */
static void wait_past(struct pp_pool *p, unsigned epoch, enum who who)
{
    for (int i = 0; i < p->n_spins; i++) {
        if (atomic_load_explicit(&p->epoch, memory_order_acquire) != epoch)
            return;
        pp_pool_relax();
    }
    atomic_int *sleeping = who == CALLER ? &p->caller_sleeps : &p->sleepers;
    atomic_fetch_add(sleeping, 1);
    while (atomic_load(&p->epoch) == epoch)
        syscall(SYS_futex, &p->epoch, FUTEX_WAIT_BITSET_PRIVATE, epoch, NULL, NULL, who);
    atomic_fetch_sub(sleeping, 1);
}

/* Wakes two threads if more work is left than threads are awake. Those do the same, so that no thread has to wake
 * many. */
static void wake_workers(struct pp_pool *p)
{
    int asleep = atomic_load(&p->sleepers);
    int missing = asleep ? atomic_load_explicit(&p->part_items, memory_order_relaxed) - (p->n - asleep) : 0;
    if (missing > 0)
        wake(p, missing < 2 ? missing : 2, WORKER);
}

/* Added, not stored: a thread that works through a part may get here before the one that opened it. */
static void publish_epoch(struct pp_pool *p)
{
    atomic_fetch_add(&p->epoch, 1);
    wake_workers(p);
    if (atomic_load(&p->caller_sleeps))
        wake(p, 1, CALLER);
}

/* --- parts ----------------------------------------------------------------------------------------------------- */

/* The first item of the shares from `thread` on: shares are as even as possible, the first is never empty. */
static int share_begin(const struct pp_pool *p, int n_items, int thread)
{
    return (int)(((int64_t)n_items * thread + p->n - 1) / p->n);
}

/* Empty shares are not written: they are empty since the part before, and as soon as the others are written this part
 * may end, and the next begin, at any time. */
static void open_shares(const struct pp_pool *p, int n_items, int at_once)
{
    for (int i = 0; i < p->n; i++) {
        uint64_t first = (uint64_t)share_begin(p, n_items, i), end = (uint64_t)share_begin(p, n_items, i + 1);
        if (first == end)
            continue;
        atomic_store_explicit(&p->shares[i].at_once, at_once, memory_order_relaxed);
        atomic_store_explicit(&p->shares[i].part, p->part, memory_order_relaxed);
        atomic_store_explicit(&p->shares[i].range, first << 32 | end, memory_order_release);
    }
}

static int items_of(const struct pp_pool *p, int part)
{
    return p->parts ? p->parts[part].n_items : p->n_items[part];
}

/* Tells the threads where they will begin to read after this part: in the next part with `begins`. */
static void point_ahead(const struct pp_pool *p)
{
    int next = p->part + 1;
    while (next < p->n_parts && next <= p->part + AHEAD_PARTS && !p->parts[next].begins)
        next++;
    if (next == p->n_parts || next > p->part + AHEAD_PARTS)
        return;
    for (int i = 0; i < p->n; i++)
        atomic_store_explicit(&p->shares[i].ahead, p->parts[next].begins[i], memory_order_relaxed);
}

/* Opens the next part that has items, or ends the run. */
static void open_next(struct pp_pool *p)
{
    do
        p->part++;
    while (p->part < p->n_parts && items_of(p, p->part) == 0);
    if (p->part == p->n_parts) {
        atomic_store_explicit(&p->part_items, 0, memory_order_relaxed);
        atomic_store_explicit(&p->over, true, memory_order_release);
    } else {
        int n_items = items_of(p, p->part), n_busy = 0;
        for (int i = 0; i < p->n_lanes; i++) {
            struct lane *lane = &p->lanes[i];
            int n = share_begin(p, n_items, lane->first_thread + lane->n_threads) -
                    share_begin(p, n_items, lane->first_thread);
            atomic_store_explicit(&lane->left, n, memory_order_relaxed);
            n_busy += n > 0;
        }
        if (p->n_lanes > 1)
            atomic_store_explicit(&p->lanes_left, n_busy, memory_order_relaxed);
        atomic_store_explicit(&p->part_items, n_items, memory_order_relaxed);
        if (p->parts)
            point_ahead(p);
        open_shares(p, n_items, p->parts ? p->parts[p->part].at_once : 1);
    }
    publish_epoch(p);
}

/* Takes items of a share: *first and the following ones; returns how many, 0 if there are none. The owner takes from
 * the front, so that it reads on where it stopped; others from the end. A thread preempted between the two loads may
 * use another part's at_once, once: that costs time, never an item. */
static int take(const struct pp_pool *p, struct share *s, bool own, int *first)
{
    uint64_t range = atomic_load_explicit(&s->range, memory_order_acquire);
    for (;;) {
        int begin = (int)(range >> 32), left = (int)(uint32_t)range - begin;
        if (left <= 0)
            return 0;
        int n = p->n == 1 ? left : left / 2, most = atomic_load_explicit(&s->at_once, memory_order_relaxed);
        n = n > most ? most : n < 1 ? 1 : n;
        uint64_t rest = own ? range + ((uint64_t)n << 32) : range - (uint64_t)n;
        if (atomic_compare_exchange_weak_explicit(&s->range, &range, rest, memory_order_acq_rel,
                                                  memory_order_acquire)) {
            *first = own ? begin : begin + left - n;
            return n;
        }
    }
}

/* Adopts the floating-point mode of the current run's caller; called once items of that run were taken. */
static void compute_as_caller(struct pp_pool *p, int thread)
{
    const unsigned mode = atomic_load_explicit(&p->float_mode, memory_order_relaxed);
    if (thread == 0 || p->threads[thread].float_mode == mode)
        return;
    pp_float_mode_set(mode);
    p->threads[thread].float_mode = mode;
}

/* Works on a lane until it is empty, beginning with the thread's own share if it is in that lane. Items are reported
 * once, at the end, to reduce contention for the counter. */
static void work_on(struct pp_pool *p, struct lane *lane, int thread)
{
    int first, n, done = 0, mine = thread - lane->first_thread;
    bool home = mine >= 0 && mine < lane->n_threads;
    for (int i = 0; i < lane->n_threads; i++) {
        int whose = lane->first_thread + (home ? (mine + i) % lane->n_threads : i);
        while ((n = take(p, &p->shares[whose], whose == thread, &first)) > 0) {
            int part = atomic_load_explicit(&p->shares[whose].part, memory_order_relaxed);
            compute_as_caller(p, thread);
            p->fn(p->arg, part, first, first + n, thread);
            done += n;
        }
    }
    if (done && atomic_fetch_sub_explicit(&lane->left, done, memory_order_acq_rel) == done &&
        (p->n_lanes == 1 || atomic_fetch_sub_explicit(&p->lanes_left, 1, memory_order_acq_rel) == 1))
        open_next(p);
}

/* Works on the open part: on the own lane, then on those of the same node, then on the others. */
static void work(struct pp_pool *p, int thread, int own)
{
    int node = p->lanes[own].node;
    work_on(p, &p->lanes[own], thread);
    for (int far = 0; far < 2; far++)
        for (int i = 1; i < p->n_lanes; i++) {
            struct lane *lane = &p->lanes[(own + i) % p->n_lanes];
            if ((lane->node != node) == far)
                work_on(p, lane, thread);
        }
}

/* While the others finish: prefetches what this thread reads first in a later part. The address may be stale, and its
 * memory unmapped; a prefetch does no harm then. */
static void read_ahead(struct pp_pool *p, unsigned epoch, int thread)
{
    const void *at = atomic_load_explicit(&p->shares[thread].ahead, memory_order_relaxed);
    if (!at || at == p->threads[thread].read_ahead)
        return;
    p->threads[thread].read_ahead = at;
    for (uintptr_t from = (uintptr_t)at, end = from + AHEAD_BYTES; from < end; from += 8 * LINE) {
        if (atomic_load_explicit(&p->epoch, memory_order_relaxed) != epoch)
            return;
        for (int i = 0; i < 8; i++)
            __builtin_prefetch((const void *)(from + (uintptr_t)(i * LINE)), 0, 2);
    }
}

static void *thread_main(void *arg)
{
    struct pool_thread *t = arg;
    struct pp_pool *p = t->pool;
    const struct pp_node *node = &p->topology.nodes[p->lanes[t->lane].node];
    if (p->topology.n_nodes > 1)
        (void)sched_setaffinity(0, sizeof node->cpus, &node->cpus);
    pp_priority_compute();
    t->float_mode = pp_float_mode();
    for (;;) {
        unsigned epoch = atomic_load_explicit(&p->epoch, memory_order_acquire);
        if (atomic_load_explicit(&p->quit, memory_order_acquire))
            return NULL;
        work(p, t->index, t->lane);
        if (atomic_load_explicit(&p->epoch, memory_order_acquire) != epoch)
            continue;
        read_ahead(p, epoch, t->index);
        wait_past(p, epoch, WORKER);
        wake_workers(p);
    }
}

/* The caller is not bound to a node: its lane is one of the node that it happens to run on. */
static int callers_lane(const struct pp_pool *p)
{
    unsigned cpu, node;
    if (p->topology.n_nodes == 1 || syscall(SYS_getcpu, &cpu, &node, NULL) != 0)
        return 0;
    int here = pp_topology_node_of(&p->topology, (int)cpu), i = 0;
    while (i < p->n_lanes && p->lanes[i].node != here)
        i++;
    return i < p->n_lanes ? i : 0;
}

static void run(struct pp_pool *p)
{
    int lane = callers_lane(p);
    p->part = -1;
    atomic_store_explicit(&p->over, false, memory_order_relaxed);
    atomic_store_explicit(&p->float_mode, pp_float_mode(), memory_order_relaxed);
    open_next(p);
    for (;;) {
        unsigned epoch = atomic_load_explicit(&p->epoch, memory_order_acquire);
        if (atomic_load_explicit(&p->over, memory_order_acquire))
            return;
        work(p, 0, lane);
        if (atomic_load_explicit(&p->epoch, memory_order_acquire) == epoch) {
            read_ahead(p, epoch, 0);
            wait_past(p, epoch, CALLER);
        }
    }
}

void pp_pool_run_parts(struct pp_pool *p, pp_pool_range_fn *fn, void *arg, const struct pp_pool_part *parts,
                       int n_parts)
{
    p->fn = fn;
    p->arg = arg;
    p->parts = parts;
    p->n_items = NULL;
    p->n_parts = n_parts;
    run(p);
}

struct single {
    pp_pool_fn *fn;
    void *arg;
};

static void run_single(void *arg, int part, int first, int end, int thread)
{
    const struct single *s = arg;
    for (int item = first; item < end; item++)
        s->fn(s->arg, part, item, thread);
}

void pp_pool_run(struct pp_pool *p, pp_pool_fn *fn, void *arg, const int *n_items, int n_parts)
{
    struct single s = {fn, arg};
    p->fn = run_single;
    p->arg = &s; /* cppcheck-suppress autoVariables; not used once run() has returned */
    p->parts = NULL;
    p->n_items = n_items;
    p->n_parts = n_parts;
    run(p);
}

/* --- life ------------------------------------------------------------------------------------------------------ */

static atomic_int assumed_cpus;
static _Atomic(const struct pp_topology *) assumed_topology;

void pp_pool_assume_cpus(int n)
{
    atomic_store(&assumed_cpus, n);
}

void pp_pool_assume_topology(const struct pp_topology *t)
{
    atomic_store(&assumed_topology, t);
}

/* How many reads of a counter take SPIN_NS: the pause instruction takes 5 to 140 cycles, depending on the CPU. */
static int measure_spins(int n_threads)
{
    cpu_set_t set;
    int n_cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    if (n_threads > n_cpus)
        return 0; /* threads share cores: never spin */
    uint64_t begin = pp_now_ns();
    for (int i = 0; i < 1000; i++)
        pp_pool_relax();
    uint64_t ns = pp_now_ns() - begin;
    return (int)(SPIN_NS * 1000 / (ns ? ns : 1)) + 1;
}

/* The first of n threads on a node: as many each as it has CPUs, in proportion. */
static int node_begin(const struct pp_topology *t, int n, int node)
{
    int cpus = 0;
    for (int i = 0; i < node; i++)
        cpus += t->nodes[i].n_cpus;
    return (int)((int64_t)n * cpus / t->n_cpus);
}

/* Splits the threads of each node into lanes; returns how many. lanes, threads: NULL: only count. */
static int make_lanes(const struct pp_topology *t, int n, struct lane *lanes, struct pool_thread *threads)
{
    int n_lanes = 0;
    for (int node = 0; node < t->n_nodes; node++) {
        int begin = node_begin(t, n, node), here = node_begin(t, n, node + 1) - begin;
        int split = (here + LANE_THREADS - 1) / LANE_THREADS, most = MAX_LANES / t->n_nodes;
        if (split > most)
            split = most;
        for (int i = 0; i < split; i++, n_lanes++) {
            int first = begin + here * i / split, end = begin + here * (i + 1) / split;
            if (lanes)
                lanes[n_lanes] = (struct lane){.n_threads = end - first, .node = node, .first_thread = first};
            for (int k = first; threads && k < end; k++)
                threads[k].lane = n_lanes;
        }
    }
    return n_lanes;
}

static void stop_threads(struct pp_pool *p, int n_started)
{
    atomic_store_explicit(&p->quit, true, memory_order_release);
    atomic_fetch_add(&p->epoch, 1);
    wake(p, INT_MAX, WORKER);
    for (int i = 1; i <= n_started; i++)
        pthread_join(p->threads[i].id, NULL);
}

enum pp_code pp_pool_new_on(const struct pp_topology *t, int n_threads, struct pp_pool **out, struct pp_error *err)
{
    *out = NULL;
    int n = n_threads < t->n_at_once ? n_threads : t->n_at_once, n_lanes = make_lanes(t, n, NULL, NULL);
    struct pp_pool *p = pp_aligned(64, sizeof *p);
    struct lane *lanes = pp_aligned(64, (size_t)n_lanes * sizeof *lanes);
    struct share *shares = pp_aligned(64, (size_t)n * sizeof *shares);
    struct pool_thread *threads = pp_calloc((size_t)n, sizeof *threads);
    if (!p || !threads || !lanes || !shares) {
        pp_free(p);
        pp_free(threads);
        pp_free(lanes);
        pp_free(shares);
        return pp_fail_nomem(err, "the compute threads");
    }
    memset(p, 0, sizeof *p);
    p->topology = *t;
    memset(shares, 0, (size_t)n * sizeof *shares);
    p->lanes = lanes;
    p->shares = shares;
    p->threads = threads;
    p->n = n;
    p->n_lanes = make_lanes(t, n, lanes, threads);
    p->n_spins = measure_spins(n);
    for (int i = 1; i < n; i++) {
        threads[i].pool = p;
        threads[i].index = i;
        if (pthread_create(&threads[i].id, NULL, thread_main, &threads[i]) != 0) {
            p->n = i;
            pp_pool_free(p);
            return pp_fail(err, PP_ERR_NOMEM, "cannot start %d compute threads; use fewer with -t", n);
        }
    }
    *out = p;
    return PP_OK;
}

enum pp_code pp_pool_new(int n_threads, struct pp_pool **out, struct pp_error *err)
{
    struct pp_topology t;
    int assumed = atomic_load(&assumed_cpus);
    const struct pp_topology *machine = atomic_load(&assumed_topology);
    if (machine)
        return pp_pool_new_on(machine, n_threads, out, err);
    pp_topology_read(NULL, NULL, &t);
    if (assumed) {
        t.n_nodes = 1;
        t.n_cpus = t.n_at_once = t.nodes[0].n_cpus = assumed;
    }
    return pp_pool_new_on(&t, n_threads, out, err);
}

void pp_pool_free(struct pp_pool *p)
{
    if (!p)
        return;
    stop_threads(p, p->n - 1);
    pp_free(p->threads);
    pp_free(p->lanes);
    pp_free(p->shares);
    pp_free(p);
}

int pp_pool_n(const struct pp_pool *p)
{
    return p->n;
}

/* --- memory nodes ---------------------------------------------------------------------------------------------- */

int pp_pool_n_nodes(const struct pp_pool *p)
{
    return p->topology.n_nodes;
}

int pp_pool_begin(const struct pp_pool *p, int n_items, int thread)
{
    return share_begin(p, n_items, thread);
}

void pp_pool_share(const struct pp_pool *p, int node, int n_items, int *first, int *end)
{
    *first = share_begin(p, n_items, node_begin(&p->topology, p->n, node));
    *end = share_begin(p, n_items, node_begin(&p->topology, p->n, node + 1));
}

void pp_pool_place(const struct pp_pool *p, void *addr, size_t bytes, int first, int n, int n_items)
{
    if (p->topology.n_nodes == 1 || n == 0)
        return;
    for (int node = 0; node < p->topology.n_nodes; node++) {
        int begin, end;
        pp_pool_share(p, node, n_items, &begin, &end);
        begin = (begin > first ? begin : first) - first;
        end = (end < first + n ? end : first + n) - first;
        if (begin >= end)
            continue;
        size_t from = (size_t)((double)bytes * begin / n), to = (size_t)((double)bytes * end / n);
        pp_memory_prefer((char *)addr + from, to - from, p->topology.nodes[node].id);
    }
}

void pp_pool_interleave(const struct pp_pool *p, void *addr, size_t bytes)
{
    if (p->topology.n_nodes > 1)
        pp_memory_interleave(addr, bytes, &p->topology);
}
