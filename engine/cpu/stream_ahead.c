#include "engine/cpu/stream_ahead.h"

enum pp_stream_way pp_stream_way;

#if defined(__x86_64__)
#include <cpuid.h>

/* Zen 5 and what follows it. */
static bool soon_is_best(void)
{
    enum { ZEN_5 = 0x1a };
    unsigned a, b, c, d;
    return __builtin_cpu_is("amd") && __get_cpuid(1, &a, &b, &c, &d) && (a >> 8 & 15) + (a >> 20 & 255) >= ZEN_5;
}

__attribute__((constructor)) static void choose(void)
{
    __builtin_cpu_init();
    pp_stream_way = __builtin_cpu_is("intel") ? PP_STREAM_PAGES : soon_is_best() ? PP_STREAM_SOON : PP_STREAM_FAR;
}
#endif
