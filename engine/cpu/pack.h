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
        return 0;
    }
}

/* The packed group that holds `row`. */
static inline const uint8_t *pp_pack_group(const struct pp_matrix *w, int64_t row)
{
    return (const uint8_t *)w->data + (size_t)(row / PP_GROUP_ROWS) * pp_pack_group_bytes(w->type, w->n_cols);
}

#endif
