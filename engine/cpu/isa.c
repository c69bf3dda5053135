#include "engine/cpu/isa.h"

#include <stdbool.h>
#include <string.h>

static const char *const names[PP_ISA_COUNT] = {"scalar", "avx2", "avx512"};

#if defined(__x86_64__) && !defined(PP_SCALAR_ONLY)
#include <cpuid.h>

/* Not every compiler's __builtin_cpu_supports() knows this name. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

enum pp_isa pp_isa_best(void)
{
    __builtin_cpu_init(); /* checks XCR0 too: registers that the system does not save do not count */
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c())
        return PP_ISA_SCALAR;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni"))
        return PP_ISA_AVX512;
    return PP_ISA_AVX2;
}
#else
enum pp_isa pp_isa_best(void)
{
    return PP_ISA_SCALAR;
}
#endif

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
