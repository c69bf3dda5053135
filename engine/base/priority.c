#include "engine/base/priority.h"

#include <errno.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { COMPUTE_NICE = 5 };
enum { NORMAL_POLICY = 0, RESET_ON_FORK = 1, SLICE_NS = 100000 /* the kernel grants no shorter ones */ };

/* sched_setattr(2); not every C library knows it. */
struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

void pp_priority_compute(void)
{
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), getpriority(PRIO_PROCESS, (id_t)getpid()) + COMPUTE_NICE);
}

void pp_priority_screen(void)
{
    errno = 0;
    int nice = getpriority(PRIO_PROCESS, 0);
    if (nice == -1 && errno)
        return;
    struct attributes a = {
        .size = sizeof a,
        .policy = NORMAL_POLICY,
        .flags = RESET_ON_FORK,
        .nice = nice,
        .runtime = SLICE_NS,
    };
    (void)!syscall(SYS_sched_setattr, 0, &a, 0);
}
