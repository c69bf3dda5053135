/* thread.h - threads that leave signals to the UI thread, and waits that do not depend on the wall clock. Any thread
 * may call these functions. */
#ifndef PP_SRC_THREAD_H
#define PP_SRC_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* pthread_create for a thread that receives no signals except those that its own instructions raise, whose handlers
 * restore the terminal, or report a hole in a mapped file. Threads that it starts inherit that. */
int pp_thread_start(pthread_t *thread, void *(*run)(void *arg), void *arg);

/* pthread_cond_init, for pp_cond_wait_until. */
int pp_cond_init(pthread_cond_t *cond);
/* pthread_cond_wait with a deadline in terms of pp_now_ns(): false if it has passed. */
bool pp_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t until_ns);

#endif
