/* wish.h - a signal that asks to stop, and a second one that insists.
 *
 * Not every second signal counts: timeout(1) sends its signal to the process and then again to the whole group, and
 * both a terminal and a shell report that a window is closed. */
#ifndef PP_BASE_WISH_H
#define PP_BASE_WISH_H

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/clock.h"

struct pp_wish {
    _Atomic uint64_t first_ns; /* clock; 0: none yet */
};

/* Whether this signal insists: it came more than 0.3 s after the first. For signal handlers, in any thread. */
static inline bool pp_wish_again(struct pp_wish *w)
{
    enum { SAME_WISH_NS = 300000000 };
    const uint64_t now = pp_now_ns();
    uint64_t first = 0;
    return !atomic_compare_exchange_strong(&w->first_ns, &first, now) &&
           now > first + SAME_WISH_NS; /* another thread may have set a time later than now */
}

/* The same; if it insists, the process dies as if there were no handler, as soon as the handler returns (until then the
 * signal is blocked). */
static inline void pp_wish_obey(struct pp_wish *w, int number)
{
    if (!pp_wish_again(w))
        return;
    signal(number, SIG_DFL);
    raise(number);
}

static inline bool pp_wish_any(struct pp_wish *w)
{
    return atomic_load(&w->first_ns) != 0;
}

static inline void pp_wish_reset(struct pp_wish *w)
{
    atomic_store(&w->first_ns, 0);
}

#endif
