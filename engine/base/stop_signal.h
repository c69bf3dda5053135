/* stop_signal.h - a signal that asks to stop, and a second one that insists.
 *
 * Not every second signal counts: timeout(1) sends its signal to the process and then again to the whole group, and
 * both a terminal and a shell report that a window is closed. */
#ifndef PP_BASE_STOP_SIGNAL_H
#define PP_BASE_STOP_SIGNAL_H

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/clock.h"

struct pp_stop_signal {
    _Atomic uint64_t first_ns; /* clock; 0: none yet */
};

/* Whether this signal insists: it came more than 0.3 s after the first. For signal handlers, in any thread. */
static inline bool pp_stop_signal_insists(struct pp_stop_signal *s)
{
    enum { SAME_REQUEST_NS = 300000000 };
    const uint64_t now = pp_now_ns();
    uint64_t first = 0;
    return !atomic_compare_exchange_strong(&s->first_ns, &first, now) &&
           now > first + SAME_REQUEST_NS; /* another thread may have set a time later than now */
}

/* The same; if it insists, the process dies as if there were no handler, as soon as the handler returns (until then the
 * signal is blocked). */
static inline void pp_stop_signal_handle(struct pp_stop_signal *s, int number)
{
    if (!pp_stop_signal_insists(s))
        return;
    signal(number, SIG_DFL);
    raise(number);
}

static inline bool pp_stop_signal_seen(struct pp_stop_signal *s)
{
    return atomic_load(&s->first_ns) != 0;
}

static inline void pp_stop_signal_reset(struct pp_stop_signal *s)
{
    atomic_store(&s->first_ns, 0);
}

#endif
