/* worker_room.c - memory that is ready when a saved conversation is opened: to have the system clear it takes longer
 * than to read the conversation, so a thread has that done while the user still looks at the list. As much as the
 * largest of the conversations that were used last takes on the disk. */
#include "engine/base/memory.h"
#include "engine/base/priority.h"
#include "src/worker_int.h"

enum { LOOKED_AT = 8 };                              /* of the saved conversations, those used last */
static const uint64_t MOST_BYTES = UINT64_C(512) << 20; /* about two gigabytes a second and core are cleared */

static void *make_ready(void *arg)
{
    struct pp_worker *w = arg;
    pp_priority_compute();
    uint64_t bytes = pp_snapshot_largest(w->cache_dir, LOOKED_AT);
    if (bytes > MOST_BYTES)
        bytes = MOST_BYTES;
    if (bytes <= pp_memory_free() / 8)
        pp_engine_clear_ahead(w->engine, bytes, &w->room_cancel);
    return NULL;
}

void room_make(struct pp_worker *w)
{
    room_stop(w);
    if (!w->engine || !w->cache_dir[0] || w->snapshot_quota == PP_SNAPSHOTS_OFF)
        return;
    pp_cancel_reset(&w->room_cancel);
    w->room_made = pthread_create(&w->room_thread, NULL, make_ready, w) == 0; /* without it, it takes a little longer */
}

void room_stop(struct pp_worker *w)
{
    if (!w->room_made)
        return;
    pp_cancel_request(&w->room_cancel);
    pthread_join(w->room_thread, NULL);
    w->room_made = false;
}
