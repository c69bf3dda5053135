/* pack.h - the packed form of quantised matrices, shared by the packer and the kernels.
 *
 * 16 rows make a group, and a "slice" of 64 bytes holds 4 neighbouring columns of all 16 rows: byte 4 r + i belongs
 * to row r and column i. So a 512-bit vector has a row in each 32-bit lane, which is what the byte dot product
 * instructions want: they multiply it with 4 activations repeated in all lanes. Groups lie one after the other, each
 * a multiple of 64 bytes:
 *
 *   Q8_0   the scales of all blocks, f16 [n_blocks][16], zeros up to a multiple of 64 bytes;
 *          then per block 8 slices of q + 128
 *   Q4_0   the scales likewise; then per block 4 slices: slice v holds columns 4 v + i in its low nibbles,
 *          16 + 4 v + i in its high ones
 *   Q4_K, Q6_K   one struct pp_q4_k_pack or pp_q6_k_pack per 256 columns
 *   all others   first the "heads" of all blocks, then their "bodies": see below
 */
#ifndef PP_CPU_PACK_H
#define PP_CPU_PACK_H

#include <stddef.h>
#include <stdint.h>

#include "engine/cpu/matmul.h"

enum { PP_SLICE = 64 }; /* bytes */

struct pp_q4_k_pack {
    uint16_t d[16], dmin[16];
    uint8_t sc[8][16], m[8][16]; /* [sub-block of 32][row] */
    uint8_t q[4][8][PP_SLICE];   /* [j][v]: columns 64 j + 4 v + i low, 64 j + 32 + 4 v + i high */
};

/* In block b of 32 columns the first 16 have scale sc[2 b], the others sc[2 b + 1]. low[v] holds the low 4 bits of
 * column 4 v + i in its low nibbles, but the high 4 bits of column 16 + 4 v + i in its high nibbles: so both become
 * 6-bit numbers (the second one times 4) without shifting. The missing 2 bits are in high[v / 2]: for even v bits
 * 4-5 and 2-3, for odd v bits 6-7 and 0-1. */
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

/* All other types. A block of the file has `head` bytes of float scales and the like, and `body` bytes of the rest.
 * The heads of all blocks lie in front, each number of 16 rows side by side in the order of the file, zeros up to a
 * multiple of 64 bytes; then the bodies, as follows. Scales of 6 bits are whole bytes there, nothing else takes more
 * than in the file. In unpack_body.h is how they are read. */
struct pp_pack_shape {
    int head, body; /* bytes of a row's block here; body 0: not one of these types */
    int block;      /* columns of a block */
};

/* low: columns 4 v + i of slice v in the low nibbles, 16 + 4 v + i in the high ones. Two bits of a column: 2 slices,
 * columns 4 (k + 2 j) + i of slice k in bits 2 j and 2 j + 1. Arrays with 16 at the end have a number per row.
 *
 * Three and five bits lie whole in as many slices as there is room for, so that little has to be put together; code v
 * is that of columns 4 v + i, c:n its bit n:
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
    int8_t sc[16][16]; /* less 32 */
    uint8_t three[8][3][PP_SLICE];
};

struct pp_q5_k_pack {
    uint8_t sc[8][16], m[8][16];
    uint8_t five[8][5][PP_SLICE];
};

struct pp_iq4_xs_pack {
    int8_t sc[8][16]; /* less 32 */
    uint8_t low[8][4][PP_SLICE];
};

/* TQ2_0 is q[8][2][PP_SLICE], two bits each. */
struct pp_tq1_0_pack {
    uint8_t q[12][PP_SLICE], high[PP_SLICE]; /* the bytes of the file, a word of each row to a slice */
};

/* Of the code books `index` has entries, or their low 8 bits: a lane has 4 of a row, or with 256 entries every row
 * has its byte for each of the 4 or 8. A lane of `signs` or `word` has a bit for every column: that of column 4 v + i
 * is bit PP_SIGN_BIT(v) of byte i, so that one shift brings those of a slice to the highest bits of their bytes. Where
 * a file has 7 signs for 8 columns, the missing ones would be the highest four bits of the word, and other things are
 * there: the scale, or the ninth bits of the four entries. */
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

/* High bits of entries 0 to 3 in bits 0-2, 8-10, 4-6 and 12-14 of `high`; bits 3, 7 and 11 are the scale, bit 15 says
 * that a block is shifted down. In IQ1_M bits 3, 11, 7 and 15 say so of the eight columns of an entry. */
struct pp_iq1_s_pack {
    uint16_t high[8][16];
    uint8_t index[8][PP_SLICE];
};

struct pp_iq1_m_pack {
    uint16_t d[16];
    uint8_t scales[6][16]; /* a row's 16 scales of 3 bits, one behind the other */
    uint16_t high[8][16];
    uint8_t index[8][PP_SLICE];
};

/* A constant where the type is. */
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

/* Fills a group of one of these types from 16 rows, row r from at[r] on, with step[r] bytes to its next block. */
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
