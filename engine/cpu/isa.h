/* isa.h - which of our kernel sets this CPU can run. One binary holds all of them; the choice is made once. */
#ifndef PP_CPU_ISA_H
#define PP_CPU_ISA_H

enum pp_isa {
    PP_ISA_SCALAR = 0,
    PP_ISA_AVX2,   /* AVX2 + FMA + F16C */
    PP_ISA_AVX512, /* AVX-512 F, BW, DQ, VL + VNNI */
    PP_ISA_COUNT,
};

/* The best set this CPU and operating system support. */
enum pp_isa pp_isa_best(void);
const char *pp_isa_name(enum pp_isa isa); /* "scalar", "avx2", "avx512" */
int pp_isa_by_name(const char *name);     /* or -1 */

#endif
