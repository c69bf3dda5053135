/* matmul_bf16.h - products of F16 and BF16 weights with activations that are made of one or two bfloat16 numbers:
 * arithmetics of their own beside those of matmul.h, made for the tile instruction TDPBF16PS of AMX. Like the others
 * they have one definition, which every kernel set reproduces to the bit for every number of activation rows.
 *
 * Activations are x = upper + lower: upper is x rounded to bfloat16, to nearest even (a finite x that would become
 * infinite is cut off instead); lower is the rest, x - upper, rounded likewise, and 0 where x is not finite. What is
 * left of x is at most 2^-17 of it, 2^-16 where it was cut off. With one part there is no lower.
 *
 * F16 weights are w = upper + lower without any loss: upper has the first 8 of the 11 significant bits, lower the
 * others. BF16 weights are upper alone.
 *
 * Then for every 32 columns, ascending, with acc = 0 at first, for each of the products (a, b) = (lower w, upper x),
 * (upper w, upper x), (upper w, lower x), in this order, as far as there are such parts:
 *
 *     first  = 0, and for k = 0 .. 15:  first  = fma(a[k], b[k], first)
 *     second = 0, and for k = 16 .. 31: second = fma(a[k], b[k], second)
 *     acc    = acc + (first + second)
 *
 * all rounded to nearest even, with subnormal inputs and results (tiny after rounding) taken for zeros of their sign. A
 * short tail counts as zeros in x and w. This is the order of the Intel SDM's operation section of TDPBF16PS, with
 * columns k and k + 16 as a pair: halves of a row, because F16 weights are converted 16 at a time. VDPBF16PS of
 * AVX512-BF16 adds the two products of a pair to one sum, first that of the upper half, each rounded: with columns
 * k + 1 and k as a pair it gives the same bits.
 *
 * The fourth product, lower w times lower x, is left out. Measured with uniform random numbers against double
 * precision, 2,048 columns, as a share of the results' size: F16 weights with two parts of x 4.5e-6, BF16 weights 2e-6,
 * the float32 products of matmul.h 2e-7; rounding x to F16, as others do, takes 1.8e-4. */
#ifndef PP_CPU_MATMUL_BF16_H
#define PP_CPU_MATMUL_BF16_H

#include "engine/cpu/matmul.h"

enum {
    PP_BF16_BLOCK = 32,
    PP_BF16_PARTS = 2,   /* at most */
};

struct pp_bf16_kernels {
    /* x: float [n] -> [blocks][parts][16] pairs of bfloat16, whichever columns of the block the set's kernels want side
     * by side; padded with 0. out may begin where x does, if n is a multiple of 32. */
    void (*split)(const float *x, int64_t n, int parts, uint16_t *out);
    /* n activations from their parts: x but for what was left of it. */
    void (*join)(const uint16_t *in, int64_t n, int parts, float *x);
    /* F16 or BF16 weights with x->bf16 */
    pp_matmul_fn *matmul;
};

/* Never NULL. */
const struct pp_bf16_kernels *pp_bf16_kernels(enum pp_isa isa);

extern const struct pp_bf16_kernels pp_bf16_scalar;
#if defined(__x86_64__)
extern const struct pp_bf16_kernels pp_bf16_fma, pp_bf16_avx2, pp_bf16_avx512, pp_bf16_amx;
#endif

#endif
