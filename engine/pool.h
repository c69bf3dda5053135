/* pool.h - the threads that compute.
 *
 * Work is a list of parts; a part is a number of items that may run in any order on any thread; a part begins when
 * all items of the one before are done. Nobody waits for a thread, only for items: a thread that the system has
 * put aside holds nobody up unless it is in the middle of one, and finds on its return that the others have gone on
 * without it. So the pool degrades gracefully when other programs want its cores. It never has more threads than CPUs
 * (or than a container's quota of them is worth): those would only take turns.
 *
 * Each part's items are divided among the threads, neighbours to one thread: its share. A thread takes from the front
 * of its own share, several items at once: half of what is left, so that takes are few while there is much to do. What
 * items read is therefore read in one go by one thread, as memory likes it, and the thread knows beforehand where it
 * will begin: while it waits for a part to end it asks for what it reads first in the next. When its share is empty it
 * takes from the ends of others', those of its lane first: about four threads that report together, so that sixteen do
 * not meet at one cache line. On a machine with several memory nodes a lane's threads stay on one node, and the same
 * items go to the same node in every pass: pp_pool_place puts the memory that they read there. On one node that costs
 * nothing.
 *
 * The caller of pp_pool_run is thread 0; the others are started once. Who finds nothing to do spins for a short
 * while, because the next part of a forward pass usually comes sooner, and then sleeps. Pool threads are niced:
 * the screen comes first. */
#ifndef PP_ENGINE_POOL_H
#define PP_ENGINE_POOL_H

#include <stddef.h>

#include "engine/base/error.h"

struct pp_pool;
struct pp_topology;

/* n_threads >= 1, the caller included; as many are made, but no more than this process may use CPUs at once. */
enum pp_code pp_pool_new(int n_threads, struct pp_pool **out, struct pp_error *err);
/* The same on a machine like `t` (copied), whatever there really is. */
enum pp_code pp_pool_new_on(const struct pp_topology *t, int n_threads, struct pp_pool **out, struct pp_error *err);
void pp_pool_free(struct pp_pool *p); /* NULL is fine */
int pp_pool_n(const struct pp_pool *p); /* threads, the caller included */

enum { PP_POOL_MAX_PARTS = 16384 };

struct pp_pool_part {
    int n_items;
    int at_once; /* items a thread may take at a time, at least 1; what it takes it works through before it looks up */
    /* [pp_pool_n] Where each thread's share begins to read memory, in address order; NULL: nowhere, or scattered. */
    const void *const *begins;
};

/* Items first .. end - 1 of a part. thread: 0 .. pp_pool_n - 1, for scratch memory. All threads compute as the caller
 * does (base/float_mode.h). */
typedef void pp_pool_range_fn(void *arg, int part, int first, int end, int thread);
/* Runs all parts and returns when they are done. What an item wrote is seen by every item of later parts. One caller at
 * a time; parts: [n_parts], not to be changed meanwhile. Allocates nothing. */
void pp_pool_run_parts(struct pp_pool *p, pp_pool_range_fn *fn, void *arg, const struct pp_pool_part *parts,
                       int n_parts);

/* The same one item at a time; n_parts <= PP_POOL_MAX_PARTS. */
typedef void pp_pool_fn(void *arg, int part, int item, int thread);
void pp_pool_run(struct pp_pool *p, pp_pool_fn *fn, void *arg, const int *n_items, int n_parts);

/* The first item of a thread's share of a part of n_items; of thread pp_pool_n: n_items. */
int pp_pool_begin(const struct pp_pool *p, int n_items, int thread);

/* Between two looks at what another thread will write. */
static inline void pp_pool_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* --- memory nodes ---------------------------------------------------------------------------------------------- */

int pp_pool_n_nodes(const struct pp_pool *p);
/* The items of a part of n_items that are meant for a node (an index below pp_pool_n_nodes): *first .. *end - 1. */
void pp_pool_share(const struct pp_pool *p, int node, int n_items, int *first, int *end);
/* Memory that items first .. first + n - 1 of parts with n_items items read, evenly and in this order, goes to the
 * nodes that they are meant for: pages that are there are moved, others will be made there. Pages are never copied
 * apart; what the system refuses stays where it is. */
void pp_pool_place(const struct pp_pool *p, void *addr, size_t bytes, int first, int n, int n_items);
/* Memory that all threads read alike, such as KV pages: every conversation is read by items of every node. */
void pp_pool_interleave(const struct pp_pool *p, void *addr, size_t bytes);

/* For tests: as if there were so many CPUs, from the next pp_pool_new on; 0: as it is. */
void pp_pool_assume_cpus(int n);

#endif
