/* cancel.h - a request to stop, shared between the thread that asks and the threads that compute.
 *
 * The compute pool reads it at every work item (2 ms each at most). An abandoned pass commits no rows. */
#ifndef PP_BASE_CANCEL_H
#define PP_BASE_CANCEL_H

#include <stdatomic.h>
#include <stdbool.h>

struct pp_cancel {
    atomic_bool requested;
};

static inline void pp_cancel_request(struct pp_cancel *c)
{
    atomic_store_explicit(&c->requested, true, memory_order_release);
}

static inline void pp_cancel_reset(struct pp_cancel *c)
{
    atomic_store_explicit(&c->requested, false, memory_order_release);
}

/* NULL is never cancelled. */
static inline bool pp_cancelled(const struct pp_cancel *c)
{
    return c && atomic_load_explicit(&c->requested, memory_order_acquire);
}

#endif
