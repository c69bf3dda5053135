/* memory.h - how much memory there is to be had. Any thread. */
#ifndef PP_BASE_MEMORY_H
#define PP_BASE_MEMORY_H

#include <stdint.h>

/* Bytes that can be used without others having to give theirs: MemAvailable of /proc/meminfo, or the installed
 * memory. */
uint64_t pp_memory_free(void);
/* Bytes of address space that this process may have (ulimit -v); UINT64_MAX: no limit. */
uint64_t pp_memory_allowed(void);

#endif
