/* matmul_bf16.h - products of BF16 weights with activations that are rounded to bfloat16 too: an arithmetic of its own,
 * for those who ask for it, made for the tile instruction TDPBF16PS of AMX. Like the others it has one definition,
 * which every kernel set reproduces to the bit for every number of activation rows:
 *
 *   xb[k] = x[k] rounded to bfloat16, to nearest even; then for every 32 columns, ascending, with acc = 0 at first:
 *     even = 0, and for k = 0, 2, 4 ... 30: even = fma(w[k], xb[k], even)
 *     odd  = 0, and for k = 1, 3, 5 ... 31: odd  = fma(w[k], xb[k], odd)
 *     acc  = acc + (even + odd)
 *
 * all rounded to nearest even, with subnormal inputs and results (tiny after rounding) taken for zeros of their sign. A
 * short tail counts as zeros in x and w. This is the order of the Intel SDM's operation section of TDPBF16PS.
 * VDPBF16PS of AVX512-BF16 adds in another one and is therefore not used. */
#ifndef PP_CPU_MATMUL_BF16_H
#define PP_CPU_MATMUL_BF16_H

#include "engine/cpu/matmul.h"

enum { PP_BF16_BLOCK = 32 };

struct pp_bf16_kernels {
    /* x: float [n] -> bfloat16 [n rounded up to 32, padded with 0] */
    void (*round)(const float *x, int64_t n, uint16_t *out);
    /* BF16 weights with x->bf16 */
    pp_matmul_fn *matmul;
};

/* Never NULL. */
const struct pp_bf16_kernels *pp_bf16_kernels(enum pp_isa isa);

extern const struct pp_bf16_kernels pp_bf16_scalar;
#if defined(__x86_64__)
extern const struct pp_bf16_kernels pp_bf16_avx2, pp_bf16_amx;
#endif

#endif
