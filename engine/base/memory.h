/* memory.h - how much memory is available. Any thread. */
#ifndef PP_BASE_MEMORY_H
#define PP_BASE_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes that can be used without taking them from others: MemAvailable of /proc/meminfo (which includes the page
 * cache), or installed memory; or less, if a control group limits it. */
uint64_t pp_memory_free(void);
/* Bytes of address space that this process may use (ulimit -v); UINT64_MAX: no limit. */
uint64_t pp_memory_allowed(void);
/* The unused part of that; UINT64_MAX: no limit. */
uint64_t pp_memory_room(void);

/* Whether to refuse what does not fit in memory (fit.h); the default is true. For the whole process. */
void pp_memory_check(bool on);
bool pp_memory_checks(void);

/* --- for tests --------------------------------------------------------------------------------------- */

/* Makes pp_memory_free return this; 0: the truth. */
void pp_memory_pretend(uint64_t bytes);
/* Bytes that control groups, of version 1 or 2, and their parents leave to a process; UINT64_MAX: no limit. groups: the
 * content of /proc/self/cgroup; root: their hierarchy, "/sys/fs/cgroup". The page cache does not count as used. */
uint64_t pp_memory_group_room(const char *root, const char *groups);

#endif
