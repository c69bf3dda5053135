/* matmul_bf16.h - products of F16 and BF16 weights with activations that are split into one or two bfloat16 numbers.
 * Their arithmetic differs from that of matmul.h; it is made for the tile instruction TDPBF16PS of AMX. Like the others
 * it has one definition, which every kernel set reproduces to the bit for every number of activation rows.
 *
 * Activations are x = upper + lower. The upper part is x rounded to bfloat16, to nearest even, except that a finite x
 * that would become infinite is truncated. The lower part is the remainder, x - upper, rounded in the same way, or 0 if
 * x is not finite. The error, x - upper - lower, is at most 2^-17 of x, or 2^-16 if x was truncated. With one part
 * there is no lower one.
 *
 * F16 weights are w = upper + lower, which is exact: upper has the first 8 of the 11 significant bits, lower the
 * others. BF16 weights have only an upper part.
 *
 * The sum starts with acc = 0. Blocks of 32 columns are added in ascending order. For each block these products are
 * added, in this order, if both parts exist: (a, b) = (lower w, upper x), (upper w, upper x), (upper w, lower x):
 *
 *     first  = 0, and for k = 0 .. 15:  first  = fma(a[k], b[k], first)
 *     second = 0, and for k = 16 .. 31: second = fma(a[k], b[k], second)
 *     acc    = acc + (first + second)
 *
 * all rounded to nearest even. Subnormal inputs, and results that are subnormal (tiny after rounding), are replaced by
 * zeros of the same sign. A short last block is filled up with zeros in x and w. This is the order that Intel's manual
 * (SDM) gives in the operation section of TDPBF16PS, with columns k and k + 16 as a pair: k and k + 16, because F16
 * weights are converted 16 at a time. VDPBF16PS of AVX512-BF16 adds both products of a pair to the same sum, first that
 * of the upper halves, and rounds after each: with columns k + 1 and k as a pair it gives the same bits.
 *
 * The fourth product, lower w times lower x, is left out. Errors measured against double precision, uniform random
 * numbers, 2,048 columns, relative to the size of the results: 4.5e-6 for F16 weights with two parts of x, 2e-6 for
 * BF16 weights, 2e-7 for the float32 products of matmul.h; x rounded to F16, as elsewhere, gives 1.8e-4. */
#ifndef PP_CPU_MATMUL_BF16_H
#define PP_CPU_MATMUL_BF16_H

#include "engine/cpu/matmul.h"

enum {
    PP_BF16_BLOCK = 32,
    PP_BF16_PARTS = 2,   /* at most */
};

struct pp_bf16_kernels {
    /* Splits x, float [n], into [blocks][parts][16] pairs of bfloat16, padded with 0. Which two columns of a block are
     * a pair depends on the kernel set (bf16_split.h). out may begin where x does, if n is a multiple of 32. */
    void (*split)(const float *x, int64_t n, int parts, uint16_t *out);
    /* Adds up the parts again: n activations, which differ from the original ones by the error of splitting. */
    void (*join)(const uint16_t *in, int64_t n, int parts, float *x);
    /* For F16 and BF16 weights; reads x->bf16. */
    pp_matmul_fn *matmul;
};

/* Never NULL. */
const struct pp_bf16_kernels *pp_bf16_kernels(enum pp_isa isa);

extern const struct pp_bf16_kernels pp_bf16_scalar;
#if defined(__x86_64__)
extern const struct pp_bf16_kernels pp_bf16_fma, pp_bf16_avx2, pp_bf16_avx512, pp_bf16_amx;
#endif

#endif
