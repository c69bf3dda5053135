/* open_units.h - what the routines per type do for the products with byte dot products (matmul_vnni_body.h): they open
 * weights into units, or have a few activation rows meet them at once. Of a unit of `vectors` times `lanes` weight rows
 * a block of 32 columns is, for each vector, SLICES slices of 4 columns in unsigned bytes, then n_scales vectors of
 * floats. Private to engine/cpu. */
#ifndef PP_CPU_OPEN_UNITS_H
#define PP_CPU_OPEN_UNITS_H

#include "engine/cpu/matmul_sets.h"
#include "engine/cpu/pack.h"

enum { SLICES = 8, MAX_SCALES = 4, CHUNK = 16 /* blocks */ };

#define PP_UNITS static inline __attribute__((always_inline, unused))

/* What makes a block's share out of its integer sums.
 *   PLAIN        scales {d}:           isum begins at -offset * sum of q
 *   WITH_MIN     scales {d, min}:      the minimum meets d * sum of q
 *   HALVED       scales {d, s0, s1, -MAGIC s0}: two sums of 16 columns each; of Q6_K the second one is 4 times what it
 *                                      should be, and s1 a quarter
 *   HALVED_MINS  two sums likewise, and two minima meet d * sum of their 16 columns
 *   TWO_MINS     scales {d, min0, min1}: one sum, minima likewise
 *   FOLDED       scales {d}:           one sum of weights times whole-number scales
 *   ODD          scales {d}:           of weights times whole-number scales, 2 u + 1, the units have u
 * HALVED_MINS are met by few rows only, TWO_MINS and FOLDED are units only, ODD are units of matmul_amx.c. All but
 * PLAIN and WITH_MIN are of types whose sums go over twins, two neighbouring blocks. */
enum kind { PLAIN, WITH_MIN, HALVED, HALVED_MINS, TWO_MINS, FOLDED, ODD };

PP_UNITS enum kind kind_of(uint32_t type)
{
    switch (type) {
    case PP_TYPE_Q4_K:
    case PP_TYPE_Q4_1:
    case PP_TYPE_Q5_1:
    case PP_TYPE_Q5_K:
        return WITH_MIN;
    case PP_TYPE_Q6_K:
    case PP_TYPE_Q3_K:
    case PP_TYPE_IQ2_XS:
    case PP_TYPE_IQ2_S:
    case PP_TYPE_IQ1_M:
        return HALVED;
    case PP_TYPE_Q2_K:
        return HALVED_MINS;
    default:
        return PLAIN;
    }
}

/* True if the products of a type's weights and whole-number scales fit in bytes: then units hold these, and what would
 * be two sums is one. They are 0 to 45, or -128 to 124 where the sign is turned round: 124 at most in magnitude but for
 * the smallest weight, -4, times the smallest scale, -32. */
PP_UNITS bool scales_fold(uint32_t type)
{
    return type == PP_TYPE_Q2_K || type == PP_TYPE_Q3_K;
}

/* Of units. */
PP_UNITS enum kind unit_kind(uint32_t type)
{
    if (scales_fold(type))
        return kind_of(type) == HALVED_MINS ? TWO_MINS : FOLDED;
    return kind_of(type);
}

PP_UNITS bool is_halved(const enum kind kind)
{
    return kind == HALVED || kind == HALVED_MINS;
}

PP_UNITS bool is_twins(const enum kind kind)
{
    return kind != PLAIN && kind != WITH_MIN;
}

PP_UNITS int n_scales(const enum kind kind)
{
    return kind == HALVED ? 4 : kind == TWO_MINS ? 3 : kind == WITH_MIN ? 2 : 1;
}

/* Of the types with heads and bodies: what opening adds to make weights unsigned, for few rows... */
PP_UNITS int opened_offset(uint32_t type)
{
    return pp_type_signs(type) ? 128 : pp_type_offset(type);
}

/* ... and in units. */
PP_UNITS int unit_offset(uint32_t type)
{
    return type == PP_TYPE_Q3_K ? 128 : opened_offset(type);
}

/* An integer below 2^22 added to these bits makes the float 1.5 * 2^23 + that integer: so one fused step converts,
 * multiplies and stays exact. */
static const int32_t MAGIC_BITS = 0x4b400000;
static const float MAGIC = 12582912.0f;

/* Activations beside their bytes: of one row in the blocks of a chunk. */
struct side {
    float d[CHUNK];
    float dsum[CHUNK];      /* d * sum of q: for minima */
    union {
        int32_t bias[2][CHUNK]; /* what the integer sums begin at, the first one of HALVED at MAGIC_BITS more */
        float half[2][CHUNK];   /* HALVED_MINS, TWO_MINS: d * sums of 16 columns */
    };
};

PP_UNITS size_t opened_bytes(const enum kind kind, int vectors, int lanes)
{
    return (size_t)((SLICES + n_scales(kind)) * vectors * 4 * lanes);
}

/* Where a slice, or scale what - SLICES, of one of the vectors is. */
PP_UNITS size_t at_opened(const enum kind kind, int what, int vector, int lanes)
{
    return (size_t)((vector * (SLICES + n_scales(kind)) + what) * 4 * lanes);
}

/* Opens n blocks of a group from block b on, vector `part` of its rows. to: the vector's place in the unit's first
 * block, aligned to a vector; step: bytes from a block to the next. */
typedef void pp_open_fn(const uint8_t *group, int64_t n_cols, int64_t b, int64_t n, int part, uint8_t *to, size_t step);

/* A few rows of activations on their way past weights. */
struct few_job {
    const struct side *side; /* [chunks][m] */
    const int8_t *q;         /* [m, q_stride], of block b */
    int64_t q_stride, m;
    float (*acc)[PP_GROUP_ROWS]; /* [m]; aligned to a vector */
    enum pp_stream_way how;      /* weights further on are asked for */
};

/* acc += the products of the n blocks of a group from block b on, b a multiple of CHUNK. */
typedef void pp_few_fn(const uint8_t *group, int64_t n_cols, int64_t b, int64_t n, const struct few_job *job);

/* By type; NULL where a type is none of those with heads and bodies. */
struct pp_unit_fns {
    pp_open_fn *open;
    pp_few_fn *few;
};
extern const struct pp_unit_fns pp_units_avxvnni[PP_TYPE_LIMIT], pp_units_avx512[PP_TYPE_LIMIT];
/* Of large code books only, which are looked up without gathers. */
extern const struct pp_unit_fns pp_units_loads_avx512[PP_TYPE_LIMIT];

/* A type's for AVX-512: of those two ways the one that is faster here. Any thread. */
const struct pp_unit_fns *pp_units_of_avx512(uint32_t type);
/* There is one way only. */
PP_UNITS const struct pp_unit_fns *pp_units_of_avxvnni(uint32_t type)
{
    return pp_units_avxvnni + type;
}

#endif
