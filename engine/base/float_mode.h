/* float_mode.h - how a thread computes with subnormal floats (below 1.2e-38). */
#ifndef PP_BASE_FLOAT_MODE_H
#define PP_BASE_FLOAT_MODE_H

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* The thread's floating-point mode: rounding, exceptions, subnormals. Opaque; the default is right for everything but
 * speed. */
static inline unsigned pp_float_mode(void)
{
#if defined(__x86_64__)
    return _mm_getcsr() & ~(unsigned)_MM_EXCEPT_MASK; /* without the sticky exception flags */
#else
    return 0;
#endif
}

static inline void pp_float_mode_set(unsigned mode)
{
#if defined(__x86_64__)
    _mm_setcsr(mode);
#else
    (void)mode;
#endif
}

/* The same mode, but subnormals count as zeros, both operands and results. An operation with one otherwise takes
 * Intel's and AMD's processors 100 to 200 cycles instead of one, and values that decay for long enough become
 * subnormal. ARM's processors are not slower, and are left unchanged. */
static inline unsigned pp_float_mode_flushing(unsigned mode)
{
#if defined(__x86_64__)
    return mode | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON;
#else
    return mode;
#endif
}

/* Sets that mode for this thread. Returns the old one. */
static inline unsigned pp_float_mode_flush(void)
{
    const unsigned mode = pp_float_mode();
    pp_float_mode_set(pp_float_mode_flushing(mode));
    return mode;
}

#endif
