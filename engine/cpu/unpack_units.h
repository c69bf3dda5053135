/* unpack_units.h - the interface of the routines, two for each weight type, that the products with byte dot products
 * (matmul_vnni_body.h) call: one unpacks weights into units, the other multiplies packed weights by a few activation
 * rows. A unit is a panel of `vectors` times `lanes` weight rows. For each block of 32 columns, and within it for
 * each vector, it has SLICES slices of 4 columns in unsigned bytes, then n_scales vectors of floats. Private to
 * engine/cpu. */
#ifndef PP_CPU_UNPACK_UNITS_H
#define PP_CPU_UNPACK_UNITS_H

#include "engine/cpu/matmul_sets.h"
#include "engine/cpu/pack.h"

enum { SLICES = 8, MAX_SCALES = 4, CHUNK = 16 /* blocks */ };

#define PP_UNITS static inline __attribute__((always_inline, unused))

/* How a block's integer sums are scaled. d, min and s are the weights'; q and "its d" are the activations'.
 *   PLAIN        scales {d}: one sum, which starts at -offset * sum of q
 *   WITH_MIN     scales {d, min}: one sum; the minimum is multiplied by its d * sum of q
 *   HALVED       scales {d, s0, s1, -MAGIC s0}: a sum for each half of 16 columns, with an integer scale each; for Q6_K
 *                the second sum is 4 times too large, and s1 a quarter of the file's scale
 *   HALVED_MINS  sums as for HALVED, and a minimum for each half, multiplied by its d * sum of q over these 16 columns
 *   TWO_MINS     scales {d, min0, min1}: one sum of weights already multiplied by their integer scales; minima as above
 *   FOLDED       scales {d}: one sum of weights already multiplied by their integer scales
 *   ODD          scales {d}: the same; all these products are odd, 2 u + 1, and units hold u
 * HALVED_MINS is for few rows only, TWO_MINS and FOLDED are for units only, ODD is for the units of matmul_amx.c. The
 * sums of types of all kinds but PLAIN and WITH_MIN span twins, two neighbouring blocks. */
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

/* True if the products of a type's weights and integer scales fit in bytes: units then hold these products, and one sum
 * suffices for both halves. For Q2_K they are 0 to 45. For Q3_K (weights -4 to 3, scales -32 to 31) they are -124 to
 * 128, which fits in a signed byte after reversing the sign. */
PP_UNITS bool scales_fold(uint32_t type)
{
    return type == PP_TYPE_Q2_K || type == PP_TYPE_Q3_K;
}

/* The kind of a type's units, which may differ from that for few rows, kind_of(). */
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

/* For types with heads and bodies: the offset that unpacking adds to make weights unsigned, for few rows... */
PP_UNITS int unpacked_offset(uint32_t type)
{
    return pp_type_signs(type) ? 128 : pp_type_offset(type);
}

/* ... and in units. */
PP_UNITS int unit_offset(uint32_t type)
{
    return type == PP_TYPE_Q3_K ? 128 : unpacked_offset(type);
}

/* Adding an integer below 2^22 in magnitude to these bits gives the float 1.5 * 2^23 + that integer: a fused
 * multiply-add then converts and scales an integer sum in one exact step. */
static const int32_t MAGIC_BITS = 0x4b400000;
static const float MAGIC = 12582912.0f;

/* Per block of a chunk, what a product needs of an activation row besides its bytes. */
struct side {
    float d[CHUNK];
    float dsum[CHUNK];      /* d * sum of q: for minima */
    union {
        int32_t bias[2][CHUNK]; /* initial values of the integer sums; HALVED: the first one plus MAGIC_BITS */
        float half[2][CHUNK];   /* HALVED_MINS, TWO_MINS: d * sums over 16 columns */
    };
};

PP_UNITS size_t unpacked_bytes(const enum kind kind, int vectors, int lanes)
{
    return (size_t)((SLICES + n_scales(kind)) * vectors * 4 * lanes);
}

/* Offset within an unpacked block of slice `what` of a vector, or of its scale what - SLICES. */
PP_UNITS size_t at_unpacked(const enum kind kind, int what, int vector, int lanes)
{
    return (size_t)((vector * (SLICES + n_scales(kind)) + what) * 4 * lanes);
}

/* Unpacks n blocks from block b on of vector `part` of a group's rows. to: where the vector's slices begin in the
 * unit's first block, aligned to a vector; step: bytes from one block to the next. */
typedef void pp_unpack_fn(const uint8_t *group, int64_t n_cols, int64_t b, int64_t n, int part, uint8_t *to,
                          size_t step);

/* A few activation rows to multiply by streaming weights. */
struct few_job {
    const struct side *side; /* [chunks][m] */
    const int8_t *q;         /* [m, q_stride], from block b on */
    int64_t q_stride, m;
    float (*acc)[PP_GROUP_ROWS]; /* [m]; aligned to a vector */
    enum pp_stream_way how;      /* how weights are prefetched */
};

/* acc += the products of the n blocks of a group from block b on, b a multiple of CHUNK. */
typedef void pp_few_fn(const uint8_t *group, int64_t n_cols, int64_t b, int64_t n, const struct few_job *job);

/* By type; NULL for types without heads and bodies. */
struct pp_unit_fns {
    pp_unpack_fn *unpack;
    pp_few_fn *few;
};
extern const struct pp_unit_fns pp_units_avxvnni[PP_TYPE_LIMIT], pp_units_avx512[PP_TYPE_LIMIT];
/* For types with large code books, looked up without gather instructions. */
extern const struct pp_unit_fns pp_units_loads_avx512[PP_TYPE_LIMIT];

/* A type's functions for AVX-512, from the faster of the two sets on this processor (unpack_choice.c). Any thread. */
const struct pp_unit_fns *pp_units_of_avx512(uint32_t type);
/* The same for AVX-VNNI, which has one set only. */
PP_UNITS const struct pp_unit_fns *pp_units_of_avxvnni(uint32_t type)
{
    return pp_units_avxvnni + type;
}

#endif
