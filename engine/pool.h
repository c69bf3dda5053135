/* pool.h - the threads that compute.
 *
 * The caller of pp_pool_run is thread 0; the others are started once and sleep when there is nothing to do. Inside a run,
 * threads meet at a barrier that spins for a short while and then sleeps on a futex, so that it is fast when every thread has a
 * core and degrades gracefully when not. Pool threads are niced: the screen comes first. */
#ifndef PP_ENGINE_POOL_H
#define PP_ENGINE_POOL_H

#include <stdint.h>

#include "engine/base/error.h"

struct pp_pool;

/* n_threads >= 1, the caller included. */
enum pp_code pp_pool_new(int n_threads, struct pp_pool **out, struct pp_error *err);
void pp_pool_free(struct pp_pool *p);
int pp_pool_n(const struct pp_pool *p);

/* Runs fn(arg, thread) on all threads, thread from 0 to n - 1, and returns when all are done. One caller at a time. */
typedef void pp_pool_fn(void *arg, int thread);
void pp_pool_run(struct pp_pool *p, pp_pool_fn *fn, void *arg);

/* All threads of the current run meet here. Only inside fn. Memory written before is seen by all after. */
void pp_pool_barrier(struct pp_pool *p);

#endif
