/* quant_blocks.h - the block formats as they lie in files (little-endian, no padding), for quant*.c and the packer.
 * Layouts are those of ggml's GGUF types; in the comments, q is the stored integer of a weight. */
#ifndef PP_ENGINE_QUANT_BLOCKS_H
#define PP_ENGINE_QUANT_BLOCKS_H

#include <stdint.h>

/* w = d * q */
struct pp_block_q8_0 {
    uint16_t d; /* f16, as all scales named d */
    int8_t q[32];
};

/* w = d * (q - 8); byte i holds weight i in its low and weight i + 16 in its high nibble */
struct pp_block_q4_0 {
    uint16_t d;
    uint8_t q[16];
};

/* w = d * scale * q - dmin * min, scale and min (6 bits each) per 32 weights; the 32 bytes from 32 * j on hold
 * sub-block 2 j in their low nibbles and 2 j + 1 in their high ones */
struct pp_block_q4_k {
    uint16_t d, dmin;
    uint8_t scales[12]; /* see pp_q4_k_scale_min */
    uint8_t q[128];
};

/* w = d * scale * (q - 32), scale (signed) per 16 weights; q has its low 4 bits in ql, its high 2 in qh */
struct pp_block_q6_k {
    uint8_t ql[128], qh[64];
    int8_t scales[16];
    uint16_t d;
};

_Static_assert(sizeof(struct pp_block_q8_0) == 34, "Q8_0 block size");
_Static_assert(sizeof(struct pp_block_q4_0) == 18, "Q4_0 block size");
_Static_assert(sizeof(struct pp_block_q4_k) == 144, "Q4_K block size");
_Static_assert(sizeof(struct pp_block_q6_k) == 210, "Q6_K block size");

/* The 6-bit scale and min of sub-block b (0..7) out of their 12 bytes: the first four lie in the low 6 bits of bytes
 * b and b + 4; the last four have their low 4 bits in byte b + 4 and their high 2 bits on top of the first ones. */
void pp_q4_k_scale_min(const uint8_t scales[12], int b, uint8_t *scale, uint8_t *min);

/* The 256 values q (0..63) in the order of the weights. */
void pp_q6_k_unpack(const struct pp_block_q6_k *b, uint8_t q[256]);

#endif
