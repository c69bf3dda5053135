/* isa.c - asks the processor and the operating system which kernel sets they support. */
#include "engine/cpu/isa.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "engine/cpu/matmul.h"

static const char *const names[PP_ISA_COUNT] = {
    [PP_ISA_SCALAR] = "scalar", [PP_ISA_AVX2] = "avx2", [PP_ISA_AVXVNNI] = "avxvnni", [PP_ISA_AVX512] = "avx512",
    [PP_ISA_AMX] = "amx",       [PP_ISA_NEON] = "neon", [PP_ISA_DOTPROD] = "dotprod", [PP_ISA_I8MM] = "i8mm",
};

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* These features are unknown to __builtin_cpu_supports() of some compilers. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool has_avx_vnni(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
}

static bool has_avx512_bf16(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 5);
}

/* Tile registers are large, so Linux lets a process use them only after it has asked for permission. */
static bool has_amx(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18, AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24,
           AMX_INT8 = 1 << 25 };
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & AMX_TILE) && (d & AMX_INT8) && (d & AMX_BF16) &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

static bool cpu_has(enum pp_isa isa)
{
    __builtin_cpu_init(); /* reads XCR0 too: registers that the system does not save are not counted */
    switch (isa) {
    case PP_ISA_SCALAR:
        return true;
    case PP_ISA_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    case PP_ISA_AVXVNNI:
        return cpu_has(PP_ISA_AVX2) && has_avx_vnni();
    case PP_ISA_AVX512:
        return cpu_has(PP_ISA_AVX2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512vnni");
    case PP_ISA_AMX:
        return cpu_has(PP_ISA_AVX512) && has_amx();
    default:
        return false;
    }
}

#elif defined(__aarch64__)
#include <sys/auxv.h>

static bool cpu_has(enum pp_isa isa)
{
    enum { HAS_DOTPROD = 1 << 20 /* in AT_HWCAP */, HAS_I8MM = 1 << 13 /* in AT_HWCAP2 */ };
    switch (isa) {
    case PP_ISA_SCALAR:
    case PP_ISA_NEON:
        return true;
    case PP_ISA_DOTPROD:
        return getauxval(AT_HWCAP) & HAS_DOTPROD;
    case PP_ISA_I8MM:
        return cpu_has(PP_ISA_DOTPROD) && getauxval(AT_HWCAP2) & HAS_I8MM;
    default:
        return false;
    }
}

#else
static bool cpu_has(enum pp_isa isa)
{
    return isa == PP_ISA_SCALAR;
}
#endif

#if !defined(__x86_64__)
static bool has_avx512_bf16(void)
{
    return false;
}
#endif

/* Answers are kept, because in a virtual machine each CPUID instruction takes tens of microseconds. */
enum answer { UNKNOWN, YES, NO };

bool pp_isa_runs(enum pp_isa isa)
{
    static atomic_int answers[PP_ISA_COUNT];
    int answer = atomic_load_explicit(&answers[isa], memory_order_relaxed);
    if (answer == UNKNOWN) {
        answer = pp_matmul_kernels(isa) && cpu_has(isa) ? YES : NO;
        atomic_store_explicit(&answers[isa], answer, memory_order_relaxed);
    }
    return answer == YES;
}

bool pp_isa_multiplies_bf16(void)
{
    static atomic_int answer;
    int now = atomic_load_explicit(&answer, memory_order_relaxed);
    if (now == UNKNOWN) {
        now = pp_isa_runs(PP_ISA_AVX512) && has_avx512_bf16() ? YES : NO;
        atomic_store_explicit(&answer, now, memory_order_relaxed);
    }
    return now == YES;
}

static atomic_bool no_fma;

bool pp_isa_fuses(void)
{
    return !atomic_load_explicit(&no_fma, memory_order_relaxed) && pp_isa_runs(PP_ISA_AVX2);
}

void pp_isa_assume_no_fma(bool none)
{
    atomic_store_explicit(&no_fma, none, memory_order_relaxed);
}

enum pp_isa pp_isa_best(void)
{
    int best = PP_ISA_COUNT - 1; /* within an architecture the better set has the larger number */
    while (best > PP_ISA_SCALAR && !pp_isa_runs((enum pp_isa)best))
        best--;
    return (enum pp_isa)best;
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
