/* thread.h - threads that leave the signals to the UI thread, and waits that a changed wall clock does not stretch. Any
 * thread may call all of it. */
#ifndef PP_SRC_THREAD_H
#define PP_SRC_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* As pthread_create, for a thread that takes no signals but those that its own instructions raise: what handles them
 * restores the terminal, or tells of a hole in a mapped file. Threads that it starts inherit that. */
int pp_thread_start(pthread_t *thread, void *(*run)(void *arg), void *arg);

/* As pthread_cond_init, for pp_cond_wait_until. */
int pp_cond_init(pthread_cond_t *cond);
/* Waits as pthread_cond_wait, but until this moment of pp_now_ns() at the longest: then false. */
bool pp_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t until_ns);

#endif
