/* pool.h - the thread pool that computes.
 *
 * Work is a list of parts; a part is a number of items that may run in any order on any thread; a part begins when
 * all items of the one before are done. Threads wait for items only, never for threads: one that has been preempted
 * delays the others only if it was in the middle of an item, and when it runs again they have gone on without it. So
 * the pool degrades gracefully when other programs want its cores. It never has more threads than CPUs (or than a
 * container's CPU quota is worth): those would only preempt each other.
 *
 * Each part's items are divided among the threads, neighbours to one thread: its share. A thread takes items from the
 * front of its own share, half of what is left at a time, so that there are few atomic operations while there is much
 * to do. Memory is therefore read sequentially by each thread, and a thread knows beforehand where it will begin: while
 * it waits for a part to end it prefetches what it reads first in the next. When its share is empty it steals from the
 * ends of others', first within its lane: about four threads that count done items together, so that sixteen do not
 * contend for one cache line. On a machine with several NUMA nodes a lane's threads stay on one node, and the same
 * items go to the same node in every pass: pp_pool_place puts the memory that they read there. On one node that costs
 * nothing.
 *
 * The caller of pp_pool_run is thread 0; the others are started once. An idle thread spins for a short while, because
 * the next part of a forward pass usually comes sooner, and then sleeps. Pool threads are niced: the screen comes
 * first. */
#ifndef PP_ENGINE_POOL_H
#define PP_ENGINE_POOL_H

#include <stddef.h>

#include "engine/base/error.h"

struct pp_pool;
struct pp_topology;

/* Starts n_threads >= 1 threads, counting the caller, but no more than this process may use CPUs at once. The caller
 * owns *out. PP_ERR_NOMEM. */
enum pp_code pp_pool_new(int n_threads, struct pp_pool **out, struct pp_error *err);
/* The same as if the machine were like `t` (copied), for tests. */
enum pp_code pp_pool_new_on(const struct pp_topology *t, int n_threads, struct pp_pool **out, struct pp_error *err);
void pp_pool_free(struct pp_pool *p); /* NULL is fine */
int pp_pool_n(const struct pp_pool *p); /* threads, the caller included */

enum { PP_POOL_MAX_PARTS = 16384 };

struct pp_pool_part {
    int n_items;
    int at_once; /* most items a thread may take at a time, at least 1; it finishes them before it takes more */
    /* [pp_pool_n] The address where each thread's share begins to read, to prefetch; NULL: none, or scattered. */
    const void *const *begins;
};

/* Runs items first .. end - 1 of a part. thread: 0 .. pp_pool_n - 1, for scratch memory. All threads have the caller's
 * floating-point mode (base/float_mode.h). */
typedef void pp_pool_range_fn(void *arg, int part, int first, int end, int thread);
/* Runs all parts and returns when they are done. What an item writes is visible to all items of later parts. One caller
 * at a time; parts: [n_parts], not to be changed meanwhile. Allocates nothing. */
void pp_pool_run_parts(struct pp_pool *p, pp_pool_range_fn *fn, void *arg, const struct pp_pool_part *parts,
                       int n_parts);

/* The same one item at a time; n_parts <= PP_POOL_MAX_PARTS. */
typedef void pp_pool_fn(void *arg, int part, int item, int thread);
void pp_pool_run(struct pp_pool *p, pp_pool_fn *fn, void *arg, const int *n_items, int n_parts);

/* The first item of a thread's share of a part of n_items; of thread pp_pool_n: n_items. */
int pp_pool_begin(const struct pp_pool *p, int n_items, int thread);

/* The CPU's hint for spin loops. */
static inline void pp_pool_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* --- NUMA nodes ------------------------------------------------------------------------------------------------ */

int pp_pool_n_nodes(const struct pp_pool *p);
/* The items *first .. *end - 1 of a part of n_items that a node (an index below pp_pool_n_nodes) usually runs. */
void pp_pool_share(const struct pp_pool *p, int node, int n_items, int *first, int *end);
/* Puts memory on the nodes of its readers: items first .. first + n - 1 of parts with n_items items, which read it
 * evenly and in this order. Pages in use are moved, others will be allocated there; what the system refuses to move
 * stays where it is. */
void pp_pool_place(const struct pp_pool *p, void *addr, size_t bytes, int first, int n, int n_items);
/* Interleaves memory over all nodes, for what all threads read, such as KV pages. */
void pp_pool_interleave(const struct pp_pool *p, void *addr, size_t bytes);

/* For tests: pretends that there are n CPUs, from the next pp_pool_new on; 0: counts them. */
void pp_pool_assume_cpus(int n);
/* The same for a whole machine, which the caller keeps; NULL: this one. */
void pp_pool_assume_topology(const struct pp_topology *t);

#endif
