#include "engine/base/mem.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_uint_fast64_t n_allocations;
static atomic_uint_fast64_t fail_at; /* 0: never; otherwise the value of n_allocations that fails */
static atomic_int fail_sticky;
static atomic_uint_fast64_t call_at; /* 0: never; otherwise the value of n_allocations at which called is */
static void (*called)(void);

static int may_allocate(void)
{
    uint64_t n = atomic_fetch_add_explicit(&n_allocations, 1, memory_order_relaxed) + 1;
    if (n == atomic_load_explicit(&call_at, memory_order_acquire))
        called();
    uint64_t at = atomic_load_explicit(&fail_at, memory_order_relaxed);
    if (at == 0)
        return 1;
    return !(n == at || (n > at && atomic_load_explicit(&fail_sticky, memory_order_relaxed)));
}

void *pp_malloc(size_t size)
{
    return may_allocate() ? malloc(size ? size : 1) : NULL;
}

void *pp_calloc(size_t count, size_t size)
{
    return may_allocate() ? calloc(count ? count : 1, size ? size : 1) : NULL;
}

void *pp_realloc(void *p, size_t size)
{
    return may_allocate() ? realloc(p, size ? size : 1) : NULL;
}

void *pp_realloc_array(void *p, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
        return NULL;
    return pp_realloc(p, bytes);
}

void *pp_aligned(size_t align, size_t size)
{
    void *p = NULL;
    if (!may_allocate())
        return NULL;
    if (align < sizeof(void *))
        align = sizeof(void *);
    return posix_memalign(&p, align, size ? size : 1) == 0 ? p : NULL;
}

char *pp_strndup(const char *s, size_t n)
{
    char *copy = n < SIZE_MAX ? pp_malloc(n + 1) : NULL;
    if (copy) {
        memcpy(copy, s, n);
        copy[n] = 0;
    }
    return copy;
}

char *pp_strdup(const char *s)
{
    return pp_strndup(s, strlen(s));
}

void pp_free(void *p)
{
    free(p);
}

int pp_grow(void *items, size_t *cap, size_t need, size_t size)
{
    if (need <= *cap)
        return 0;
    size_t want = *cap < 8 ? 8 : *cap;
    while (want < need)
        if (__builtin_mul_overflow(want, (size_t)2, &want))
            return -1;
    void *old, *grown;
    memcpy(&old, items, sizeof old); /* items is the address of a pointer of any type */
    grown = pp_realloc_array(old, want, size);
    if (!grown)
        return -1;
    memcpy(items, &grown, sizeof grown);
    *cap = want;
    return 0;
}

void pp_mem_fail_at(uint64_t nth, int sticky)
{
    uint64_t now = atomic_load_explicit(&n_allocations, memory_order_relaxed);
    atomic_store_explicit(&fail_sticky, sticky, memory_order_relaxed);
    atomic_store_explicit(&fail_at, nth ? now + nth : 0, memory_order_relaxed);
}

void pp_mem_call_at(uint64_t nth, void (*call)(void))
{
    uint64_t now = atomic_load_explicit(&n_allocations, memory_order_relaxed);
    called = call;
    atomic_store_explicit(&call_at, call ? now + nth : 0, memory_order_release);
}

uint64_t pp_mem_count(void)
{
    return atomic_load_explicit(&n_allocations, memory_order_relaxed);
}
