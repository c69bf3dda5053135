/* matmul_sets.h - the kernel sets that pp_matmul_kernels() returns, one per instruction set, and what the sets have to
 * know about weight types. */
#ifndef PP_CPU_MATMUL_SETS_H
#define PP_CPU_MATMUL_SETS_H

#include "engine/cpu/matmul.h"

/* The types that are packed as heads (scales) and bodies (quants), as pack.h describes, with the suffixes of their
 * unpacking routines. In each kernel set, one function multiplies all of these types. */
#define PP_BLOCK_TYPES(X)                                                                                     \
    X(Q4_1, q4_1) X(Q5_0, q5_0) X(Q5_1, q5_1) X(Q2_K, q2_k) X(Q3_K, q3_k) X(Q5_K, q5_k) X(IQ4_NL, iq4_nl)        \
    X(IQ4_XS, iq4_xs) X(MXFP4, mxfp4) X(TQ1_0, tq1_0) X(TQ2_0, tq2_0) X(IQ2_XXS, iq2_xxs) X(IQ3_XXS, iq3_xxs)       \
    PP_LARGE_BOOK_TYPES(X)
/* Types whose code book has more than 256 entries. */
#define PP_LARGE_BOOK_TYPES(X)                                                                                \
    X(IQ2_XS, iq2_xs) X(IQ2_S, iq2_s) X(IQ3_S, iq3_s) X(IQ1_S, iq1_s) X(IQ1_M, iq1_m)

/* Entries for by_type in a set's table: all of these types are multiplied by `fn`. */
#define PP_BLOCKS_BY(fn)                                                                                      \
    [PP_TYPE_Q4_1] = fn, [PP_TYPE_Q5_0] = fn, [PP_TYPE_Q5_1] = fn, [PP_TYPE_Q2_K] = fn, [PP_TYPE_Q3_K] = fn,     \
    [PP_TYPE_Q5_K] = fn, [PP_TYPE_IQ4_NL] = fn, [PP_TYPE_IQ4_XS] = fn, [PP_TYPE_MXFP4] = fn,                     \
    [PP_TYPE_TQ1_0] = fn, [PP_TYPE_TQ2_0] = fn, [PP_TYPE_IQ2_XXS] = fn, [PP_TYPE_IQ2_XS] = fn,                   \
    [PP_TYPE_IQ2_S] = fn, [PP_TYPE_IQ3_XXS] = fn, [PP_TYPE_IQ3_S] = fn, [PP_TYPE_IQ1_S] = fn,                    \
    [PP_TYPE_IQ1_M] = fn

/* The predicates below are about types with heads and bodies. This one: whether weights have a minimum. */
static inline __attribute__((always_inline)) bool pp_type_has_min(uint32_t type)
{
    return type == PP_TYPE_Q4_1 || type == PP_TYPE_Q5_1 || type == PP_TYPE_Q2_K || type == PP_TYPE_Q5_K;
}

/* Whether each half of a block, 16 columns, has its own integer scale. */
static inline __attribute__((always_inline)) bool pp_type_halved(uint32_t type)
{
    return pp_type_twins(type) && type != PP_TYPE_Q6_K;
}

/* Whether the code book holds magnitudes, and signs are stored separately. */
static inline __attribute__((always_inline)) bool pp_type_signs(uint32_t type)
{
    return type == PP_TYPE_IQ2_XXS || type == PP_TYPE_IQ2_XS || type == PP_TYPE_IQ2_S || type == PP_TYPE_IQ3_XXS ||
           type == PP_TYPE_IQ3_S;
}

/* Whether unpacked weights need all 8 bits of a byte. */
static inline __attribute__((always_inline)) bool pp_type_wide(uint32_t type)
{
    return type == PP_TYPE_IQ4_NL || type == PP_TYPE_IQ4_XS;
}

/* What makes the smallest weight 0 or more, see unpack_body.h. */
static inline __attribute__((always_inline)) int pp_type_offset(uint32_t type)
{
    switch (type) {
    case PP_TYPE_IQ4_NL:
    case PP_TYPE_IQ4_XS:
        return 128;
    case PP_TYPE_Q5_0:
        return 16;
    case PP_TYPE_MXFP4:
        return 12;
    case PP_TYPE_IQ1_S:
    case PP_TYPE_IQ1_M:
        return 9;
    case PP_TYPE_Q3_K:
        return 4;
    case PP_TYPE_TQ1_0:
    case PP_TYPE_TQ2_0:
        return 1;
    default:
        return 0;
    }
}

pp_matmul_fn pp_matmul_blocks_scalar;
extern const struct pp_matmul_kernels pp_matmul_scalar;
#if defined(__x86_64__)
pp_matmul_fn pp_matmul_blocks_fma, pp_matmul_blocks_avx2;
extern const struct pp_matmul_kernels pp_matmul_fma;
extern const struct pp_matmul_kernels pp_matmul_avx2;
/* The members of struct pp_by_lane for products with activations arranged lane by lane (float_lanes.h). */
enum {
    PP_LANE_ACTS = 6, /* rows */
    PP_AVX2_LANES_FROM = 36, PP_AVX2_LANE_ROWS = 16, /* from, panel_rows */
    PP_AVX512_LANES_FROM = 84, PP_AVX512_LANE_ROWS = 64,
};
extern const struct pp_matmul_kernels pp_matmul_avxvnni;
extern const struct pp_matmul_kernels pp_matmul_avx512;
extern const struct pp_matmul_kernels pp_matmul_amx;
#endif
#if defined(__aarch64__)
pp_matmul_fn pp_matmul_blocks_neon;
extern const struct pp_matmul_kernels pp_matmul_neon;
extern const struct pp_matmul_kernels pp_matmul_dotprod;
extern const struct pp_matmul_kernels pp_matmul_i8mm;
#endif

#endif
