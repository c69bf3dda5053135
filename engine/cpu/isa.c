#include "engine/cpu/isa.h"

#include <string.h>

static const char *const names[PP_ISA_COUNT] = {"scalar", "avx2", "avx512"};

enum pp_isa pp_isa_best(void)
{
#if defined(__x86_64__) && !defined(PP_SCALAR_ONLY)
    __builtin_cpu_init(); /* checks XCR0 too: registers that the system does not save do not count */
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("f16c"))
        return PP_ISA_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
        return PP_ISA_AVX2;
#endif
    return PP_ISA_SCALAR;
}

const char *pp_isa_name(enum pp_isa isa)
{
    return names[isa];
}

int pp_isa_by_name(const char *name)
{
    for (int i = 0; i < PP_ISA_COUNT; i++)
        if (strcmp(name, names[i]) == 0)
            return i;
    return -1;
}
