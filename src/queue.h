/* queue.h - a bounded queue of pointers between threads, with an eventfd for those who poll.
 *
 * Any thread may push, one thread pops. The eventfd is written once per burst: when the queue was drained before. */
#ifndef PP_SRC_QUEUE_H
#define PP_SRC_QUEUE_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/error.h"

struct pp_queue;

/* capacity: items, at least 1. The caller owns *out. PP_ERR_NOMEM, PP_ERR_IO. */
enum pp_code pp_queue_new(size_t capacity, struct pp_queue **out, struct pp_error *err);
/* The queue must be empty, since it does not own its items, and no other thread may still be in a call with it, not
 * even in a push whose item has been popped already. NULL is fine. */
void pp_queue_free(struct pp_queue *q);
/* Passes the item on. Blocks while the queue is full. False once the queue is closed: the caller keeps the item. */
bool pp_queue_push(struct pp_queue *q, void *item);
bool pp_queue_try_push(struct pp_queue *q, void *item); /* never blocks; false also when full */
void *pp_queue_try_pop(struct pp_queue *q);         /* NULL if empty */
/* Waits up to timeout_ms (-1: for ever) for an item; NULL on timeout or when closed and empty. */
void *pp_queue_pop(struct pp_queue *q, int timeout_ms);
void pp_queue_close(struct pp_queue *q);            /* wakes all waiters; queued items can still be popped */
/* Readable if items have come since the last pp_queue_clear_fd. Owned by the queue. */
int pp_queue_fd(const struct pp_queue *q);
void pp_queue_clear_fd(struct pp_queue *q);         /* call before draining */

#endif
