/* bf16_split.h - splits float activations into bfloat16 parts and joins them again, for the kernel sets of
 * matmul_bf16.h. The loops are plain C, which compilers vectorise to the width of each build. Private to engine/cpu. */
#ifndef PP_CPU_BF16_SPLIT_H
#define PP_CPU_BF16_SPLIT_H

#include <string.h>

#include "engine/cpu/matmul_bf16.h"

static inline __attribute__((always_inline)) uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline __attribute__((always_inline)) float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Rounds a float to bfloat16, in the upper half of the result: to nearest even, except that finite numbers that would
 * become infinite are truncated. NaN stays NaN. */
static inline __attribute__((always_inline)) uint32_t round_upper(uint32_t bits)
{
    const uint32_t size = bits & 0x7fffffff, rounded = bits + 0x7fff + (bits >> 16 & 1);
    const uint32_t odd = size > 0x7f800000 ? bits | 0x400000 : bits;
    return (size < 0x7f7f8000 ? rounded : odd) & 0xffff0000;
}

/* The second part: what the first left over, rounded in the same way; 0 for infinity and NaN. */
static inline __attribute__((always_inline)) uint32_t round_lower(uint32_t bits, uint32_t upper)
{
    return (bits & 0x7fffffff) < 0x7f800000 ? round_upper(bits_of(float_of(bits) - float_of(upper))) : 0;
}

/* Which two columns of a block share 32 bits, the first in the lower half: HALVES k and k + 16, NEIGHBOURS k + 1 and k
 * for even k, because VDPBF16PS adds the product of the upper halves first. */
enum pairing { HALVES, NEIGHBOURS };

static inline __attribute__((always_inline)) int low_column(int pair, const enum pairing how)
{
    return how == HALVES ? pair : 2 * pair + 1;
}

static inline __attribute__((always_inline)) int high_column(int pair, const enum pairing how)
{
    return how == HALVES ? pair + PP_BF16_BLOCK / 2 : 2 * pair;
}

/* split() and join() of struct pp_bf16_kernels, for either pairing. */
static inline __attribute__((always_inline)) void split_as(const float *x, int64_t n, int parts, uint16_t *out,
                                                           const enum pairing how)
{
    enum { PAIRS = PP_BF16_BLOCK / 2 };
    for (int64_t at = 0; at < n; at += PP_BF16_BLOCK, out += parts * PP_BF16_BLOCK) {
        float block[PP_BF16_BLOCK] = {0};
        uint32_t upper[PAIRS], lower[PAIRS];
        memcpy(block, x + at, (size_t)(n - at < PP_BF16_BLOCK ? n - at : PP_BF16_BLOCK) * sizeof *x);
        for (int k = 0; k < PAIRS; k++) {
            const uint32_t a = bits_of(block[low_column(k, how)]), b = bits_of(block[high_column(k, how)]);
            const uint32_t a0 = round_upper(a), b0 = round_upper(b);
            upper[k] = a0 >> 16 | b0;
            lower[k] = round_lower(a, a0) >> 16 | round_lower(b, b0);
        }
        memcpy(out, upper, sizeof upper);
        if (parts > 1)
            memcpy(out + PP_BF16_BLOCK, lower, sizeof lower);
    }
}

static inline __attribute__((always_inline)) void join_as(const uint16_t *in, int64_t n, int parts, float *x,
                                                          const enum pairing how)
{
    for (int64_t at = 0; at < n; at += PP_BF16_BLOCK, in += parts * PP_BF16_BLOCK) {
        float block[PP_BF16_BLOCK];
        for (int k = 0; k < PP_BF16_BLOCK; k++) {
            const int column = k % 2 ? high_column(k / 2, how) : low_column(k / 2, how);
            const float upper = float_of((uint32_t)in[k] << 16);
            block[column] = upper + (parts > 1 ? float_of((uint32_t)in[PP_BF16_BLOCK + k] << 16) : 0.0f);
        }
        memcpy(x + at, block, (size_t)(n - at < PP_BF16_BLOCK ? n - at : PP_BF16_BLOCK) * sizeof *x);
    }
}

/* Defines these two functions for a kernel set. */
#define PP_BF16_SPLIT_AND_JOIN(how)                                           \
    static void split_row(const float *x, int64_t n, int parts, uint16_t *out) \
    {                                                                         \
        split_as(x, n, parts, out, how);                                      \
    }                                                                         \
    static void join_row(const uint16_t *in, int64_t n, int parts, float *x)  \
    {                                                                         \
        join_as(in, n, parts, x, how);                                        \
    }

#endif
