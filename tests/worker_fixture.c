/* worker_fixture.c - a worker with its queue of events and its io thread. */
#include "tests/worker_fixture.h"

#include <stdio.h>

#include "src/event.h"
#include "src/paths.h"
#include "tests/patience.h"
#include "tests/support.h"

void worker_begin(struct worker_fixture *w, const char *folder, const struct pp_load_request *model)
{
    char db[300], cache[300];
    struct pp_error err;
    assert_ok(pp_make_dirs(folder, &err), err);
    snprintf(db, sizeof db, "%s/pippin.db", folder);
    snprintf(cache, sizeof cache, "%s/cache", folder);
    assert_ok(pp_queue_new(512, &w->events, &err), err);
    assert_ok(pp_io_start(db, w->events, &w->io, &err), err);
    assert_ok(pp_worker_start(w->events, w->io, cache, &w->backend, &err), err);
    w->backend->ops->load(w->backend, model);
}

void worker_end(struct worker_fixture *w)
{
    w->backend->ops->close(w->backend);
    for (bool closed = false; !closed;) {
        struct pp_event *e = pp_queue_pop(w->events, TEST_PATIENCE_MS);
        if (!e)
            fail_msg("the worker did not close in time");
        closed = e->type == PP_EVENT_CLOSED;
        pp_event_free(e);
    }
    w->backend->ops->free(w->backend);
    pp_queue_close(w->events);
    pp_io_stop(w->io, NULL);
    for (struct pp_event *e; (e = pp_queue_try_pop(w->events));)
        pp_event_free(e);
    pp_queue_free(w->events);
}
