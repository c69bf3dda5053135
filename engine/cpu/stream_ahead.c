#include "engine/cpu/stream_ahead.h"

bool pp_stream_by_pages;

#if defined(__x86_64__)
__attribute__((constructor)) static void choose(void)
{
    __builtin_cpu_init();
    pp_stream_by_pages = __builtin_cpu_is("intel");
}
#endif
