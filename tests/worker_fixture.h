/* worker_fixture.h - a worker with its queue of events and its io thread, as the chat has them. */
#ifndef PP_TESTS_WORKER_FIXTURE_H
#define PP_TESTS_WORKER_FIXTURE_H

#include "src/worker.h"

struct worker_fixture {
    struct pp_queue *events;
    struct pp_io *io;
    struct pp_backend *backend;
};

/* Starts all of it with a database and a cache in `folder`, which is created, and requests a model. */
void worker_begin(struct worker_fixture *w, const char *folder, const struct pp_load_request *model);
/* Stops the worker, even while it is busy, and frees everything. */
void worker_end(struct worker_fixture *w);

#endif
