/* worker.h - the local backend: a thread that owns the engine and everything in it. */
#ifndef PP_SRC_WORKER_H
#define PP_SRC_WORKER_H

#include "src/backend.h"

/* Starts the thread. The caller owns *out and frees it by its ops after PP_EVENT_CLOSED; events and io must outlive it.
 * cache_dir: for snapshots, packed weights and identities; NULL: none are kept. */
enum pp_code pp_worker_start(struct pp_queue *events, struct pp_io *io, const char *cache_dir, struct pp_backend **out,
                             struct pp_error *err);

/* A factor of the times that threads wait for a model's identity and for the disk before they go on without: 1; larger
 * in tests, which expect everything to be saved and may run on a busy machine. Set it before a thread starts. */
extern int pp_worker_patience;

#endif
