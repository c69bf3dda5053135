/* pack.h - the packed form of quantised matrices, shared by the packer and the kernels.
 *
 * 16 rows make a group, and a "slice" of 64 bytes holds 4 neighbouring columns of all 16 rows: byte 4 r + i belongs to
 * row r and column i. Loaded into a 512-bit vector, a slice has a row in each 32-bit lane, as the byte dot product
 * instructions (vpdpbusd) need: they multiply it by 4 activations repeated in all lanes. Groups are stored one after
 * the other; each is a multiple of 64 bytes:
 *
 *   Q8_0   the scales of all blocks, f16 [n_blocks][16], padded with zeros to a multiple of 64 bytes;
 *          then per block 8 slices of q + 128
 *   Q4_0   the scales in the same way; then per block 4 slices: slice v holds columns 4 v + i in its low nibbles and
 *          columns 16 + 4 v + i in its high ones
 *   Q4_K, Q6_K   one struct pp_q4_k_pack or pp_q6_k_pack per 256 columns
 *   all others   first the "heads" of all blocks, then their "bodies": see below */
#ifndef PP_CPU_PACK_H
#define PP_CPU_PACK_H

#include <stddef.h>
#include <stdint.h>

#include "engine/cpu/matmul.h"

enum { PP_SLICE = 64 }; /* bytes */

struct pp_q4_k_pack {
    uint16_t d[16], dmin[16];
    uint8_t sc[8][16], m[8][16]; /* [sub-block of 32][row] */
    uint8_t q[4][8][PP_SLICE];   /* [j][v]: columns 64 j + 4 v + i in low nibbles, 64 j + 32 + 4 v + i in high ones */
};

/* In block b of 32 columns the first 16 have the scale sc[2 b], the others sc[2 b + 1]. Weights are q + 32, 6 bits. The
 * low nibbles of low[v] are bits 0-3 of columns 4 v + i, its high nibbles bits 2-5 of columns 16 + 4 v + i: masking
 * gives 4 bits of the former, and of the latter times 4, without a shift. The other 2 bits of both are in high[v / 2]:
 * of columns 4 v + i in bits 4-5 for even v and 6-7 for odd v, of columns 16 + 4 v + i in bits 2-3 and 0-1. */
struct pp_q6_k_pack {
    uint16_t d[16];
    uint8_t zeros[32];
    int8_t sc[16][16]; /* [sub-block of 16][row] */
    struct {
        uint8_t low[4][PP_SLICE], high[2][PP_SLICE];
    } q[8];
};

_Static_assert(sizeof(struct pp_q4_k_pack) == 37 * 64, "packed Q4_K");
_Static_assert(sizeof(struct pp_q6_k_pack) == 53 * 64, "packed Q6_K");

/* All other types. A block of the file is divided into a head, the scales and minima that are floats (or, for MXFP4,
 * its exponent), and a body, everything else. A group begins with the heads of all its blocks: each number of a head
 * for 16 rows, in the order of the file, padded with zeros to a multiple of 64 bytes. The bodies follow, one of the
 * structs below per block. In these, 6-bit scales are whole bytes; everything else takes as many bits as in the file.
 * unpack_body.h reads them. */
struct pp_pack_shape {
    int head, body; /* bytes per row of a block in the packed form; body 0: not one of these types */
    int block;      /* columns of a block */
};

/* Nibbles (`low`): slice v holds columns 4 v + i in its low nibbles and columns 16 + 4 v + i in its high ones. Codes of
 * 2 bits: slice k of two holds columns 4 (k + 2 j) + i in bits 2 j and 2 j + 1. An array whose last dimension is 16 has
 * a number per row.
 *
 * Codes of 3 and 5 bits: as many as possible are stored whole, so that few have to be put together from several slices.
 * In the table v stands for the codes of columns 4 v + i, and v:n for their bit n:
 *
 *              bits 0-2   3-5   6      7                        bits 0-4   5      6      7
 *   three[0]   0          1     6:0    6:1            five[0]   0          5:0    5:1    5:2
 *   three[1]   2          3     7:0    7:1            five[1]   1          6:0    6:1    6:2
 *   three[2]   4          5     6:2    7:2            five[2]   2          7:0    7:1    7:2
 *                                                     five[3]   3          5:3    5:4    7:3
 *                                                     five[4]   4          6:3    6:4    7:4 */
struct pp_q2_k_pack {
    uint8_t scales[16][16], q[8][2][PP_SLICE];
};

struct pp_q3_k_pack {
    int8_t sc[16][16]; /* 32 is already subtracted */
    uint8_t three[8][3][PP_SLICE];
};

struct pp_q5_k_pack {
    uint8_t sc[8][16], m[8][16];
    uint8_t five[8][5][PP_SLICE];
};

struct pp_iq4_xs_pack {
    int8_t sc[8][16]; /* 32 is already subtracted */
    uint8_t low[8][4][PP_SLICE];
};

/* The body of TQ2_0 is q[8][2][PP_SLICE], codes of 2 bits. */
struct pp_tq1_0_pack {
    uint8_t q[12][PP_SLICE], high[PP_SLICE]; /* the bytes of the file, 4 of each row to a slice */
};

/* Types with code books. `index` has the indices of entries, or their low 8 bits. For a book of 256 entries index[k]
 * has index k of 16 rows; for a larger one a slice has four indices of a row in each lane. A lane of `signs` or `word`
 * has a bit for every column: that of column 4 v + i is bit PP_SIGN_BIT(v) of byte i, so that one shift brings the
 * signs of a slice to the highest bits of their bytes. Files may store only 7 signs for 8 columns. The missing four
 * would be the highest bits of `word`, which hold something else: the scale, or the ninth bits of the four indices. */
#define PP_SIGN_BIT(v) ((v) / 2 + (v) % 2 * 4)

struct pp_iq2_xxs_pack {
    struct {
        uint8_t index[4][16], word[PP_SLICE];
    } q[8];
};

struct pp_iq2_xs_pack {
    uint8_t scales[8][16];
    struct {
        uint8_t index[PP_SLICE], word[PP_SLICE];
    } q[8];
};

struct pp_iq2_s_pack {
    uint8_t high[8][16], scales[8][16];
    struct {
        uint8_t index[PP_SLICE], signs[PP_SLICE];
    } q[8];
};

struct pp_iq3_xxs_pack {
    struct {
        uint8_t index[8][16], word[PP_SLICE];
    } q[8];
};

struct pp_iq3_s_pack {
    uint8_t high[8][16], scales[4][16];
    struct {
        uint8_t index[2][PP_SLICE], signs[PP_SLICE];
    } q[8];
};

/* The high bits of indices 0 to 3 are bits 0-2, 8-10, 4-6 and 12-14 of `high`. In IQ1_S bits 3, 7 and 11 are the scale,
 * and bit 15 is set if the block is shifted down; in IQ1_M bits 3, 11, 7 and 15 are set if the eight columns of index
 * 0, 1, 2 or 3 are. */
struct pp_iq1_s_pack {
    uint16_t high[8][16];
    uint8_t index[8][PP_SLICE];
};

struct pp_iq1_m_pack {
    uint16_t d[16];
    uint8_t scales[6][16]; /* a row's 16 scales of 3 bits, without gaps */
    uint16_t high[8][16];
    uint8_t index[8][PP_SLICE];
};

/* Head and body are 0 for a type that is not one of these. The result is a compile-time constant if `type` is one. */
static inline __attribute__((always_inline)) struct pp_pack_shape pp_pack_shape(uint32_t type)
{
    switch (type) {
    case PP_TYPE_Q4_1:
        return (struct pp_pack_shape){4, 16, 32};
    case PP_TYPE_Q5_0:
        return (struct pp_pack_shape){2, 20, 32};
    case PP_TYPE_Q5_1:
        return (struct pp_pack_shape){4, 20, 32};
    case PP_TYPE_IQ4_NL:
        return (struct pp_pack_shape){2, 16, 32};
    case PP_TYPE_MXFP4:
        return (struct pp_pack_shape){1, 16, 32};
    case PP_TYPE_Q2_K:
        return (struct pp_pack_shape){4, 80, 256};
    case PP_TYPE_Q3_K:
        return (struct pp_pack_shape){2, 112, 256};
    case PP_TYPE_IQ3_S:
        return (struct pp_pack_shape){2, 108, 256};
    case PP_TYPE_Q5_K:
        return (struct pp_pack_shape){4, 176, 256};
    case PP_TYPE_IQ4_XS:
        return (struct pp_pack_shape){2, 136, 256};
    case PP_TYPE_TQ1_0:
        return (struct pp_pack_shape){2, 52, 256};
    case PP_TYPE_TQ2_0:
    case PP_TYPE_IQ2_XXS:
        return (struct pp_pack_shape){2, 64, 256};
    case PP_TYPE_IQ2_XS:
        return (struct pp_pack_shape){2, 72, 256};
    case PP_TYPE_IQ2_S:
        return (struct pp_pack_shape){2, 80, 256};
    case PP_TYPE_IQ3_XXS:
        return (struct pp_pack_shape){2, 96, 256};
    case PP_TYPE_IQ1_S:
        return (struct pp_pack_shape){2, 48, 256};
    case PP_TYPE_IQ1_M:
        return (struct pp_pack_shape){0, 56, 256};
    default:
        return (struct pp_pack_shape){0, 0, 32};
    }
}

_Static_assert(sizeof(struct pp_q2_k_pack) == 16 * 80 && sizeof(struct pp_iq4_xs_pack) == 16 * 136, "packed Q2_K, IQ4");
_Static_assert(sizeof(struct pp_q3_k_pack) == 16 * 112 && sizeof(struct pp_q5_k_pack) == 16 * 176, "packed Q3_K, Q5_K");
_Static_assert(sizeof(struct pp_iq2_xxs_pack) == 16 * 64 && sizeof(struct pp_iq2_xs_pack) == 16 * 72, "packed IQ2");
_Static_assert(sizeof(struct pp_iq2_s_pack) == 16 * 80 && sizeof(struct pp_iq3_xxs_pack) == 16 * 96, "packed IQ2, IQ3");
_Static_assert(sizeof(struct pp_iq3_s_pack) == 16 * 108 && sizeof(struct pp_iq1_s_pack) == 16 * 48, "packed IQ3, IQ1");
_Static_assert(sizeof(struct pp_iq1_m_pack) == 16 * 56 && sizeof(struct pp_tq1_0_pack) == 16 * 52, "packed IQ1, TQ1");

/* Bytes of the heads at the start of a group. */
static inline __attribute__((always_inline)) size_t pp_pack_head_bytes(uint32_t type, int64_t n_cols)
{
    const struct pp_pack_shape s = pp_pack_shape(type);
    return ((size_t)(n_cols / s.block * 16 * s.head) + 63) / 64 * 64;
}

/* Fills a group of one of these types from 16 rows: the blocks of row r begin at at[r] and are step[r] bytes apart. */
void pp_pack_blocks(uint32_t type, const uint8_t *const at[PP_GROUP_ROWS], const size_t step[PP_GROUP_ROWS],
                    int64_t n_cols, uint8_t *group);

/* Bytes of the scales at the start of a group of Q8_0 or Q4_0. */
static inline size_t pp_pack_scale_bytes(int64_t n_cols)
{
    return ((size_t)n_cols / 32 * 16 * sizeof(uint16_t) + 63) / 64 * 64;
}

static inline size_t pp_pack_group_bytes(uint32_t type, int64_t n_cols)
{
    switch (type) {
    case PP_TYPE_Q8_0:
        return pp_pack_scale_bytes(n_cols) + (size_t)n_cols * 16;
    case PP_TYPE_Q4_0:
        return pp_pack_scale_bytes(n_cols) + (size_t)n_cols * 8;
    case PP_TYPE_Q4_K:
        return (size_t)n_cols / 256 * sizeof(struct pp_q4_k_pack);
    case PP_TYPE_Q6_K:
        return (size_t)n_cols / 256 * sizeof(struct pp_q6_k_pack);
    default:
        return pp_pack_head_bytes(type, n_cols) +
               (size_t)(n_cols / pp_pack_shape(type).block * 16 * pp_pack_shape(type).body);
    }
}

/* The packed group that holds `row`. */
static inline const uint8_t *pp_pack_group(const struct pp_matrix *w, int64_t row)
{
    return (const uint8_t *)w->data + (size_t)(row / PP_GROUP_ROWS) * pp_pack_group_bytes(w->type, w->n_cols);
}

#endif
