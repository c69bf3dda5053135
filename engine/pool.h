/* pool.h - the threads that compute.
 *
 * Work is a list of parts; a part is a number of items that may run in any order on any thread; a part begins when
 * all items of the one before are done. Nobody waits for a thread, only for items: a thread that the system has
 * put aside between two items holds nobody up, and finds on its return that the others have gone on without it. So
 * the pool degrades gracefully when other programs want its cores.
 *
 * The caller of pp_pool_run is thread 0; the others are started once. Who finds nothing to do spins for a short
 * while, because the next part of a forward pass usually comes sooner, and then sleeps. Pool threads are niced:
 * the screen comes first. */
#ifndef PP_ENGINE_POOL_H
#define PP_ENGINE_POOL_H

#include "engine/base/error.h"

struct pp_pool;

/* n_threads >= 1, the caller included. */
enum pp_code pp_pool_new(int n_threads, struct pp_pool **out, struct pp_error *err);
void pp_pool_free(struct pp_pool *p); /* NULL is fine */
int pp_pool_n(const struct pp_pool *p);

enum { PP_POOL_MAX_PARTS = 16384 };

/* item: 0 .. n_items[part] - 1; thread: 0 .. pp_pool_n - 1, for scratch memory. */
typedef void pp_pool_fn(void *arg, int part, int item, int thread);
/* Runs all parts and returns when they are done. What an item wrote is seen by every item of later parts. One caller at
 * a time; n_parts <= PP_POOL_MAX_PARTS. */
void pp_pool_run(struct pp_pool *p, pp_pool_fn *fn, void *arg, const int *n_items, int n_parts);

#endif
