/* once.h - a flag for data that several threads need during their work items: the first thread that gets to it makes
 * the data, while the others do something else until they need it. Private to engine/cpu. */
#ifndef PP_CPU_ONCE_H
#define PP_CPU_ONCE_H

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "engine/pool.h"

enum { PP_ONCE_UNMADE, PP_ONCE_BEING_MADE, PP_ONCE_MADE };
typedef atomic_int pp_once; /* one of these; zeroed memory is PP_ONCE_UNMADE */

/* To be called before a barrier that all threads pass before they use the flag. */
static inline void pp_once_reset(pp_once *o)
{
    atomic_store_explicit(o, PP_ONCE_UNMADE, memory_order_relaxed);
}

/* True for one thread, which must then make the data without waiting for any other thread, and call pp_once_done(). */
static inline bool pp_once_mine(pp_once *o)
{
    int unmade = PP_ONCE_UNMADE;
    return atomic_load_explicit(o, memory_order_relaxed) == unmade &&
           atomic_compare_exchange_strong_explicit(o, &unmade, PP_ONCE_BEING_MADE, memory_order_relaxed,
                                                   memory_order_relaxed);
}

static inline void pp_once_done(pp_once *o)
{
    atomic_store_explicit(o, PP_ONCE_MADE, memory_order_release);
}

/* Returns when the data is made. After spinning for a while it yields, as the maker may be waiting for this core. */
static inline void pp_once_await(const pp_once *o)
{
    enum { PATIENCE = 2000 };
    for (int i = 0; atomic_load_explicit(o, memory_order_acquire) != PP_ONCE_MADE; i++) {
        if (i < PATIENCE)
            pp_pool_relax();
        else
            sched_yield();
    }
}

#endif
