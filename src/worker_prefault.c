/* worker_prefault.c - memory made ready for restoring a saved conversation. Page faults on fresh memory (the kernel
 * clears each page) take longer than reading the snapshot does, so a thread touches the memory while the user still
 * looks at the list. Its amount is the size of the largest among the recently used snapshots. */
#include "engine/base/memory.h"
#include "engine/base/priority.h"
#include "src/worker_int.h"

enum { RECENT = 8 };                                    /* snapshots: those used last */
static const uint64_t MAX_BYTES = UINT64_C(512) << 20; /* about two gigabytes per second and core can be cleared */

static void *make_ready(void *arg)
{
    struct pp_worker *w = arg;
    pp_priority_compute();
    uint64_t bytes = pp_snapshot_largest(w->cache_dir, RECENT);
    if (bytes > MAX_BYTES)
        bytes = MAX_BYTES;
    if (bytes <= pp_memory_free() / 8)
        pp_engine_prefault(w->engine, bytes, &w->prefault_cancel);
    return NULL;
}

void prefault_start(struct pp_worker *w)
{
    prefault_stop(w);
    if (!w->engine || !w->cache_dir[0] || w->snapshot_quota == PP_SNAPSHOTS_OFF)
        return;
    pp_cancel_reset(&w->prefault_cancel);
    w->prefault_started = pthread_create(&w->prefault_thread, NULL, make_ready, w) == 0; /* if the thread cannot start,
                                                                                          * restoring is only slower */
}

void prefault_stop(struct pp_worker *w)
{
    if (!w->prefault_started)
        return;
    pp_cancel_request(&w->prefault_cancel);
    pthread_join(w->prefault_thread, NULL);
    w->prefault_started = false;
}
