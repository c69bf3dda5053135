/* quant_blocks.h - the block formats as they are in files (little-endian, no padding), for quant*.c and the packer.
 * Layouts are those of ggml's GGUF types; in the comments, q is the stored integer of a weight. */
#ifndef PP_ENGINE_QUANT_BLOCKS_H
#define PP_ENGINE_QUANT_BLOCKS_H

#include <stdbool.h>
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

/* w = d * q + m */
struct pp_block_q4_1 {
    uint16_t d, m;
    uint8_t q[16];
};

/* w = d * (q - 16); the fifth bit of weight i is bit i of high */
struct pp_block_q5_0 {
    uint16_t d;
    uint8_t high[4], q[16];
};

/* w = d * q + m */
struct pp_block_q5_1 {
    uint16_t d, m;
    uint8_t high[4], q[16];
};

/* w = d * (scales low nibble) * q - dmin * (scales high nibble), per 16 weights; byte l of the 32 from 32 * n on
 * holds weights 128 n + 32 j + l in bits 2 j, 2 j + 1 */
struct pp_block_q2_k {
    uint8_t scales[16], q[64];
    uint16_t d, dmin;
};

/* w = d * (scale - 32) * (q - 4), scale (6 bits, see pp_q3_k_scale) per 16 weights; the low two bits are as in Q2_K,
 * the third one of weight 32 b + l is bit b of high[l] */
struct pp_block_q3_k {
    uint8_t high[32], q[64], scales[12];
    uint16_t d;
};

/* As Q4_K; the fifth bit of weight 32 b + l is bit b of high[l] */
struct pp_block_q5_k {
    uint16_t d, dmin;
    uint8_t scales[12], high[32], q[128];
};

/* Five base-3 digits in a byte, as a fixed-point fraction: three times the byte has the first digit in bits 8 and 9,
 * and below them the fraction with the others. Weights 32 k + l are digit k of q[l], 160 + 16 k + l digit k of q[32 +
 * l], 240 + 4 k + l digit k of high[l]. w = d * (digit - 1) */
struct pp_block_tq1_0 {
    uint8_t q[48], high[4];
    uint16_t d;
};

/* w = d * (q - 1); the bits are as in Q2_K */
struct pp_block_tq2_0 {
    uint8_t q[64];
    uint16_t d;
};

/* w = 2^(e - 128) * value, where value is twice an E2M1 number; nibbles as in Q4_0 */
struct pp_block_mxfp4 {
    uint8_t e, q[16];
};

/* w = d * value of a table; nibbles as in Q4_0 */
struct pp_block_iq4_nl {
    uint16_t d;
    uint8_t q[16];
};

/* w = d * (scale - 32) * value, scale (6 bits) per 32 weights: its low 4 in nibbles, its high 2 in scales_high */
struct pp_block_iq4_xs {
    uint16_t d, scales_high;
    uint8_t scales_low[4], q[128];
};

/* Per 32 weights: the indices of 4 grid entries, then 32 bits: 4 times 7 signs, and the scale in the top 4. w = d *
 * (scale + 1/2) / 4 * sign * entry */
struct pp_block_iq2_xxs {
    uint16_t d;
    uint8_t q[8][8];
};

/* Per 8 weights: 9 bits of an index, and 7 signs above; scales (4 bits) per 16 weights. */
struct pp_block_iq2_xs {
    uint16_t d, q[32];
    uint8_t scales[8];
};

/* Per 8 weights: 8 bits of an index, 2 more in high, 8 signs. */
struct pp_block_iq2_s {
    uint16_t d;
    uint8_t q[32], signs[32], high[8], scales[8];
};

/* Per 4 weights the index of an entry; per 32 a word as in IQ2_XXS. w = d * (scale + 1/2) / 2 * sign * entry */
struct pp_block_iq3_xxs {
    uint16_t d;
    uint8_t q[64], words[8][4];
};

/* Per 4 weights 8 bits of an index, and one in high; a scale (4 bits) per 32. w = d * (1 + 2 scale) * sign * entry */
struct pp_block_iq3_s {
    uint16_t d;
    uint8_t q[64], high[8], signs[32], scales[4];
};

/* Per 8 weights 8 bits of an index; per 32 a word: 3 more bits for each of four, the scale in bits 12 to 14, and in the
 * top bit whether all entries are 1/8 lower (otherwise 1/8 higher). w = d * (1 + 2 scale) * (entry +- 1/8) */
struct pp_block_iq1_s {
    uint16_t d;
    uint8_t q[32];
    uint16_t high[8];
};

/* The same with nibbles in high (3 bits of an index, shift on top), and 3-bit scales per 16 weights in the low 12 bits
 * of four words, whose highest 4 bits make d. */
struct pp_block_iq1_m {
    uint8_t q[32], high[16];
    uint16_t scales[4];
};

_Static_assert(sizeof(struct pp_block_q8_0) == 34, "Q8_0 block size");
_Static_assert(sizeof(struct pp_block_q4_0) == 18, "Q4_0 block size");
_Static_assert(sizeof(struct pp_block_q4_k) == 144, "Q4_K block size");
_Static_assert(sizeof(struct pp_block_q6_k) == 210, "Q6_K block size");
_Static_assert(sizeof(struct pp_block_q4_1) == 20, "Q4_1 block size");
_Static_assert(sizeof(struct pp_block_q5_0) == 22, "Q5_0 block size");
_Static_assert(sizeof(struct pp_block_q5_1) == 24, "Q5_1 block size");
_Static_assert(sizeof(struct pp_block_q2_k) == 84, "Q2_K block size");
_Static_assert(sizeof(struct pp_block_q3_k) == 110, "Q3_K block size");
_Static_assert(sizeof(struct pp_block_q5_k) == 176, "Q5_K block size");
_Static_assert(sizeof(struct pp_block_tq1_0) == 54, "TQ1_0 block size");
_Static_assert(sizeof(struct pp_block_tq2_0) == 66, "TQ2_0 block size");
_Static_assert(sizeof(struct pp_block_mxfp4) == 17, "MXFP4 block size");
_Static_assert(sizeof(struct pp_block_iq4_nl) == 18, "IQ4_NL block size");
_Static_assert(sizeof(struct pp_block_iq4_xs) == 136, "IQ4_XS block size");
_Static_assert(sizeof(struct pp_block_iq2_xxs) == 66, "IQ2_XXS block size");
_Static_assert(sizeof(struct pp_block_iq2_xs) == 74, "IQ2_XS block size");
_Static_assert(sizeof(struct pp_block_iq2_s) == 82, "IQ2_S block size");
_Static_assert(sizeof(struct pp_block_iq3_xxs) == 98, "IQ3_XXS block size");
_Static_assert(sizeof(struct pp_block_iq3_s) == 110, "IQ3_S block size");
_Static_assert(sizeof(struct pp_block_iq1_s) == 50, "IQ1_S block size");
_Static_assert(sizeof(struct pp_block_iq1_m) == 56, "IQ1_M block size");

/* Unpacks the 6-bit scale and min of sub-block b (0..7) from 12 bytes: the first four are the low 6 bits of bytes b and
 * b + 4; the last four have their low 4 bits in byte b + 4, and their high 2 bits above the first ones. */
void pp_q4_k_scale_min(const uint8_t scales[12], int b, uint8_t *scale, uint8_t *min);

/* The 6-bit scale (0..63) of sub-block s (0..15): its low 4 bits are a nibble of bytes 0 to 7, its high 2 are in bytes
 * 8 to 11. */
static inline int pp_q3_k_scale(const uint8_t scales[12], int s)
{
    return (scales[s % 8] >> s / 8 * 4 & 15) | (scales[8 + s % 4] >> s / 4 * 2 & 3) << 4;
}

/* 32 weights of any of the types from Q4_1 on in the common form:
 *   weight i = (d * scale[i / 16]) * w[i], and with has_min: - min * m[i / 16] */
struct pp_unpacked {
    int8_t w[32];
    int8_t scale[2];
    uint8_t m[2];
    bool has_min;
    float d, min;
};

/* Unpacks sub-block `sub` of 32 weights of the block at p (perhaps unaligned). False: the type has no such form. */
bool pp_unpack_block(uint32_t type, const void *p, int sub, struct pp_unpacked *u);

/* Writes the float scale of the block at p, and the minimum if the type has one: for random weights. (MXFP4: the power
 * of two nearest to d.) */
void pp_set_block_scales(uint32_t type, void *p, float d, float min);

#endif
