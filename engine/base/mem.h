/* mem.h - all access to the heap.
 *
 * All memory of the engine and the application is allocated here, so that tests can make the Nth allocation fail and
 * count what a decode step allocates (nothing). Out of memory is an ordinary error: these functions return NULL and
 * never abort. Thread-safe. */
#ifndef PP_BASE_MEM_H
#define PP_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

void *pp_malloc(size_t size);                /* contents undefined; size 0 gives a unique pointer */
void *pp_calloc(size_t count, size_t size);  /* zeroed; NULL also when count * size overflows */
void *pp_realloc(void *p, size_t size);      /* on failure p stays valid */
void *pp_realloc_array(void *p, size_t count, size_t size); /* NULL also on overflow */
void *pp_aligned(size_t align, size_t size); /* release with pp_free; align is a power of two */
char *pp_strdup(const char *s);
char *pp_strndup(const char *s, size_t n);   /* n bytes, no search for NUL; adds one */
void pp_free(void *p);                       /* NULL is fine */

/* The size of huge pages on the systems we know: memory that is requested in units of this (madvise) needs one TLB
 * entry for each instead of 512. */
enum { PP_LARGE_PAGE = 2 << 20 };

/* Grows *items (elements of `size` bytes, *cap allocated) so that `need` fit; doubles. 0, or -1 if out of memory. */
int pp_grow(void *items, size_t *cap, size_t need, size_t size);

/* --- for tests --------------------------------------------------------------------------------------- */

/* The nth allocation from now on (1 is the next) fails, and every one after it if `sticky`. 0 switches it off. */
void pp_mem_fail_at(uint64_t nth, int sticky);
/* On the nth allocation from now on `call` is called once, on the allocating thread: to simulate other programs acting
 * at that moment. NULL switches it off. */
void pp_mem_call_at(uint64_t nth, void (*call)(void));
/* Number of allocations by all threads since the program started. */
uint64_t pp_mem_count(void);

#endif
