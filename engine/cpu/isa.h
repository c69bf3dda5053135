/* isa.h - which of the kernel sets this CPU can run. A binary contains all sets of its architecture, and one is chosen
 * when it runs. All sets give the same bits. */
#ifndef PP_CPU_ISA_H
#define PP_CPU_ISA_H

#include <stdbool.h>

enum pp_isa {
    PP_ISA_SCALAR = 0,
    /* x86-64 */
    PP_ISA_AVX2,    /* AVX2 + FMA + F16C */
    PP_ISA_AVXVNNI, /* those + AVX-VNNI: byte dot products in 256 bits */
    PP_ISA_AVX512,  /* AVX-512 F, BW, DQ, VL + VNNI */
    PP_ISA_AMX,     /* those + AMX-TILE, AMX-INT8 and AMX-BF16 */
    /* AArch64 */
    PP_ISA_NEON,    /* what every 64-bit ARM has */
    PP_ISA_DOTPROD, /* + sdot, udot */
    PP_ISA_I8MM,    /* + smmla, usdot */
    PP_ISA_COUNT,
};

/* True if this CPU, the operating system and this build have what the set needs. Thread-safe. */
bool pp_isa_runs(enum pp_isa isa);
/* There are two builds of PP_ISA_SCALAR: for any processor, and for those with a fused multiply-add instruction. */
#if defined(__x86_64__) && !defined(PP_SCALAR_ONLY)
#define PP_BY_FMA(plain, fma) (pp_isa_fuses() ? (fma) : (plain))
#else
#define PP_BY_FMA(plain, fma) (plain)
#endif
bool pp_isa_fuses(void); /* whether the second one runs on this processor; thread-safe */
/* For tests: with true, pp_isa_fuses() returns false. */
void pp_isa_assume_no_fma(bool none);
bool pp_isa_multiplies_bf16(void); /* whether it has AVX512-BF16 and all that PP_ISA_AVX512 needs; thread-safe */
/* The best set that runs. */
enum pp_isa pp_isa_best(void);
const char *pp_isa_name(enum pp_isa isa); /* "scalar", "avx2", "avxvnni", "avx512", "amx", "neon", "dotprod", "i8mm" */
int pp_isa_by_name(const char *name);     /* or -1 */

#endif
