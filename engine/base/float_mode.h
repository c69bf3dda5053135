/* float_mode.h - what a thread does with floats that are too small for normal numbers (below 1.2e-38). */
#ifndef PP_BASE_FLOAT_MODE_H
#define PP_BASE_FLOAT_MODE_H

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* How this thread computes: rounding, exceptions, small numbers. Opaque; that of a thread that nobody changed is right
 * for everything but speed. */
static inline unsigned pp_float_mode(void)
{
#if defined(__x86_64__)
    return _mm_getcsr() & ~(unsigned)_MM_EXCEPT_MASK; /* without what happened so far */
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

/* The same but that small numbers are zeros, as operands and as results. Processors of Intel and AMD otherwise take 100
 * to 200 cycles for an operation with one, where others take one: what decays for long enough comes to that. Those of
 * ARM do not, and are left as they are. */
static inline unsigned pp_float_mode_flushing(unsigned mode)
{
#if defined(__x86_64__)
    return mode | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON;
#else
    return mode;
#endif
}

/* From now on this thread computes so. Returns how it did before. */
static inline unsigned pp_float_mode_flush(void)
{
    const unsigned mode = pp_float_mode();
    pp_float_mode_set(pp_float_mode_flushing(mode));
    return mode;
}

#endif
