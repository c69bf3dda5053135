#include "src/thread.h"

#include <signal.h>
#include <stddef.h>
#include <time.h>

int pp_thread_start(pthread_t *thread, void *(*run)(void *arg), void *arg)
{
    static const int raised[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGABRT};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof raised / sizeof *raised; i++)
        sigdelset(&blocked, raised[i]); /* blocking such a fault would end the program without calling its handler */
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    const int failed = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

int pp_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    int failed = pthread_condattr_init(&attr);
    if (failed)
        return failed;
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC); /* the clock of pp_now_ns */
    failed = pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
    return failed;
}

bool pp_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t until_ns)
{
    const struct timespec until = {(time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u)};
    return pthread_cond_timedwait(cond, lock, &until) == 0;
}
