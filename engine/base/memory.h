/* memory.h - how much memory there is to be had. Any thread. */
#ifndef PP_BASE_MEMORY_H
#define PP_BASE_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes that can be used without others having to give theirs: MemAvailable of /proc/meminfo (pages of files that are
 * in memory count as available), or the installed memory; or less, if a control group has less. */
uint64_t pp_memory_free(void);
/* Bytes of address space that this process may have (ulimit -v); UINT64_MAX: no limit. */
uint64_t pp_memory_allowed(void);
/* Of those, what it does not have yet; UINT64_MAX: no limit. */
uint64_t pp_memory_room(void);

/* Whether what does not fit in memory is refused (fit.h). It is, unless somebody says false. For the whole process. */
void pp_memory_check(bool on);
bool pp_memory_checks(void);

/* --- for tests --------------------------------------------------------------------------------------- */

/* pp_memory_free says this; 0: the truth. */
void pp_memory_pretend(uint64_t bytes);
/* Bytes that the control groups of a process leave it, of version 1 or 2, and those around them; UINT64_MAX: no limit.
 * groups: what /proc/self/cgroup says; root: where the groups are, "/sys/fs/cgroup". Pages of files are not counted as
 * used. */
uint64_t pp_memory_group_room(const char *root, const char *groups);

#endif
