/* quant_unpack.c - unpacks sub-blocks of 32 weights to a common form: small integers, integer scales, one float scale.
 * One routine per type; the formulas are next to the structs in quant_blocks.h. */
#include <string.h>

#include "engine/quant.h"
#include "engine/quant_blocks.h"
#include "engine/quant_grids.h"

/* Unpacks sub-block `sub` of the aligned block at `block`. Defaults: scales and mins of 1, no minimum. */
typedef void unpack_fn(const void *block, int sub, struct pp_unpacked *u);

static void set_scale(struct pp_unpacked *u, float d)
{
    u->d = d;
}

static void set_min(struct pp_unpacked *u, float min)
{
    u->has_min = true;
    u->min = min;
}

/* --- nibbles and a fifth bit -------------------------------------------------------------------------------------- */

static void nibbles(const uint8_t q[16], int offset, int8_t w[32])
{
    for (int i = 0; i < 16; i++) {
        w[i] = (int8_t)((q[i] & 15) - offset);
        w[i + 16] = (int8_t)((q[i] >> 4) - offset);
    }
}

static void add_fifth_bits(const uint8_t high[4], int8_t w[32])
{
    for (int i = 0; i < 32; i++)
        w[i] = (int8_t)(w[i] + ((high[i / 8] >> i % 8 & 1) << 4));
}

static void values(const uint8_t q[16], const int8_t value[16], int8_t w[32])
{
    nibbles(q, 0, w);
    for (int i = 0; i < 32; i++)
        w[i] = value[w[i]];
}

static void unpack_q4_1(const void *block, int sub, struct pp_unpacked *u)
{
    const struct pp_block_q4_1 *b = block;
    (void)sub;
    nibbles(b->q, 0, u->w);
    set_scale(u, pp_f16_to_f32(b->d));
    set_min(u, -pp_f16_to_f32(b->m));
}

static void unpack_q5_0(const void *block, int sub, struct pp_unpacked *u)
{
    const struct pp_block_q5_0 *b = block;
    (void)sub;
    nibbles(b->q, 16, u->w);
    add_fifth_bits(b->high, u->w);
    set_scale(u, pp_f16_to_f32(b->d));
}

static void unpack_q5_1(const void *block, int sub, struct pp_unpacked *u)
{
    const struct pp_block_q5_1 *b = block;
    (void)sub;
    nibbles(b->q, 0, u->w);
    add_fifth_bits(b->high, u->w);
    set_scale(u, pp_f16_to_f32(b->d));
    set_min(u, -pp_f16_to_f32(b->m));
}

static void unpack_iq4_nl(const void *block, int sub, struct pp_unpacked *u)
{
    static const int8_t value[16] = PP_IQ4_VALUES;
    const struct pp_block_iq4_nl *b = block;
    (void)sub;
    values(b->q, value, u->w);
    set_scale(u, pp_f16_to_f32(b->d));
}

static void unpack_iq4_xs(const void *block, int sub, struct pp_unpacked *u)
{
    static const int8_t value[16] = PP_IQ4_VALUES;
    const struct pp_block_iq4_xs *b = block;
    int scale = (b->scales_low[sub / 2] >> sub % 2 * 4 & 15) | (b->scales_high >> 2 * sub & 3) << 4;
    values(b->q + 16 * sub, value, u->w);
    set_scale(u, pp_f16_to_f32(b->d) * (float)(scale - 32));
}

static void unpack_mxfp4(const void *block, int sub, struct pp_unpacked *u)
{
    static const int8_t value[16] = PP_MXFP4_VALUES;
    const struct pp_block_mxfp4 *b = block;
    (void)sub;
    values(b->q, value, u->w);
    /* Below 2^-126 floats are subnormal: the exponent field is 0, and a bit of the mantissa is the number. */
    uint32_t bits = b->e < 2 ? 0x200000u << b->e : (uint32_t)(b->e - 1) << 23;
    float d;
    memcpy(&d, &bits, sizeof d);
    set_scale(u, d);
}

/* --- K types ------------------------------------------------------------------------------------------------------ */

/* Two bits each: see Q2_K in quant_blocks.h. */
static void two_bits(const uint8_t q[64], int sub, int offset, int8_t w[32])
{
    for (int l = 0; l < 32; l++)
        w[l] = (int8_t)((q[32 * (sub / 4) + l] >> 2 * (sub % 4) & 3) - offset);
}

static void unpack_q2_k(const void *block, int sub, struct pp_unpacked *u)
{
    const struct pp_block_q2_k *b = block;
    two_bits(b->q, sub, 0, u->w);
    for (int k = 0; k < 2; k++) {
        u->scale[k] = (int8_t)(b->scales[2 * sub + k] & 15);
        u->m[k] = b->scales[2 * sub + k] >> 4;
    }
    set_scale(u, pp_f16_to_f32(b->d));
    set_min(u, pp_f16_to_f32(b->dmin));
}

static void unpack_q3_k(const void *block, int sub, struct pp_unpacked *u)
{
    const struct pp_block_q3_k *b = block;
    two_bits(b->q, sub, 4, u->w);
    for (int l = 0; l < 32; l++)
        u->w[l] = (int8_t)(u->w[l] + ((b->high[l] >> sub & 1) << 2));
    for (int k = 0; k < 2; k++)
        u->scale[k] = (int8_t)(pp_q3_k_scale(b->scales, 2 * sub + k) - 32);
    set_scale(u, pp_f16_to_f32(b->d));
}

static void unpack_q5_k(const void *block, int sub, struct pp_unpacked *u)
{
    const struct pp_block_q5_k *b = block;
    uint8_t scale, min;
    pp_q4_k_scale_min(b->scales, sub, &scale, &min);
    for (int l = 0; l < 32; l++)
        u->w[l] = (int8_t)((b->q[32 * (sub / 2) + l] >> sub % 2 * 4 & 15) | (b->high[l] >> sub & 1) << 4);
    set_scale(u, pp_f16_to_f32(b->d) * (float)scale);
    set_min(u, pp_f16_to_f32(b->dmin) * (float)min);
}

/* --- ternary types ------------------------------------------------------------------------------------------------ */

static int8_t ternary_digit(uint8_t q, int k)
{
    for (; k > 0; k--)
        q = (uint8_t)(3 * q);
    return (int8_t)((3 * q >> 8) - 1);
}

static void unpack_tq1_0(const void *block, int sub, struct pp_unpacked *u)
{
    const struct pp_block_tq1_0 *b = block;
    for (int l = 0; l < 32; l++) {
        int i = 32 * sub + l;
        if (i < 160)
            u->w[l] = ternary_digit(b->q[i % 32], i / 32);
        else if (i < 240)
            u->w[l] = ternary_digit(b->q[32 + i % 16], (i - 160) / 16);
        else
            u->w[l] = ternary_digit(b->high[i % 4], (i - 240) / 4);
    }
    set_scale(u, pp_f16_to_f32(b->d));
}

static void unpack_tq2_0(const void *block, int sub, struct pp_unpacked *u)
{
    const struct pp_block_tq2_0 *b = block;
    two_bits(b->q, sub, 1, u->w);
    set_scale(u, pp_f16_to_f32(b->d));
}

/* --- code books --------------------------------------------------------------------------------------------------- */

/* n weights of an entry, each with a sign bit. */
static void entry(const void *from, uint32_t signs, int n, int8_t *w)
{
    memcpy(w, from, (size_t)n);
    for (int i = 0; i < n; i++)
        if (signs >> i & 1)
            w[i] = (int8_t)-w[i];
}

static void odd_scales(struct pp_unpacked *u, int nibbles_of_two)
{
    u->scale[0] = (int8_t)(2 * (nibbles_of_two & 15) + 1);
    u->scale[1] = (int8_t)(2 * (nibbles_of_two >> 4) + 1);
}

static void unpack_iq2_xxs(const void *block, int sub, struct pp_unpacked *u)
{
    const struct pp_block_iq2_xxs *b = block;
    uint32_t word;
    memcpy(&word, b->q[sub] + 4, sizeof word);
    for (int k = 0; k < 4; k++)
        entry(&pp_grid_iq2_xxs[b->q[sub][k]], pp_even_signs(word >> 7 * k), 8, u->w + 8 * k);
    set_scale(u, pp_f16_to_f32(b->d) * (0.125f * (float)(2 * (word >> 28) + 1)));
}

static void unpack_iq2_xs(const void *block, int sub, struct pp_unpacked *u)
{
    const struct pp_block_iq2_xs *b = block;
    for (int k = 0; k < 4; k++) {
        uint32_t q = b->q[4 * sub + k];
        entry(&pp_grid_iq2_xs[q & 511], pp_even_signs(q >> 9), 8, u->w + 8 * k);
    }
    odd_scales(u, b->scales[sub]);
    set_scale(u, pp_f16_to_f32(b->d) * 0.125f);
}

static void unpack_iq2_s(const void *block, int sub, struct pp_unpacked *u)
{
    const struct pp_block_iq2_s *b = block;
    for (int k = 0; k < 4; k++) {
        int at = b->q[4 * sub + k] | (b->high[sub] >> 2 * k & 3) << 8;
        entry(&pp_grid_iq2_s[at], b->signs[4 * sub + k], 8, u->w + 8 * k);
    }
    odd_scales(u, b->scales[sub]);
    set_scale(u, pp_f16_to_f32(b->d) * 0.125f);
}

static void unpack_iq3_xxs(const void *block, int sub, struct pp_unpacked *u)
{
    const struct pp_block_iq3_xxs *b = block;
    uint32_t word;
    memcpy(&word, b->words[sub], sizeof word);
    for (int k = 0; k < 8; k++)
        entry(&pp_grid_iq3_xxs[b->q[8 * sub + k]], pp_even_signs(word >> 7 * (k / 2)) >> k % 2 * 4, 4, u->w + 4 * k);
    set_scale(u, pp_f16_to_f32(b->d) * (0.25f * (float)(2 * (word >> 28) + 1)));
}

static void unpack_iq3_s(const void *block, int sub, struct pp_unpacked *u)
{
    const struct pp_block_iq3_s *b = block;
    for (int k = 0; k < 8; k++) {
        int at = b->q[8 * sub + k] | (b->high[sub] >> k & 1) << 8;
        entry(&pp_grid_iq3_s[at], (uint32_t)b->signs[4 * sub + k / 2] >> k % 2 * 4, 4, u->w + 4 * k);
    }
    set_scale(u, pp_f16_to_f32(b->d) * (float)(2 * (b->scales[sub / 2] >> sub % 2 * 4 & 15) + 1));
}

/* Entry `at` of IQ1, in eighths, with its shift. */
static void entry_and_shift(int at, bool lower, int8_t *w)
{
    memcpy(w, &pp_grid_iq1[at], 8);
    for (int i = 0; i < 8; i++)
        w[i] = (int8_t)(w[i] - 8 + (lower ? -1 : 1));
}

static void unpack_iq1_s(const void *block, int sub, struct pp_unpacked *u)
{
    const struct pp_block_iq1_s *b = block;
    const int high = b->high[sub];
    for (int k = 0; k < 4; k++)
        entry_and_shift(b->q[4 * sub + k] | (high >> 3 * k & 7) << 8, high & 0x8000, u->w + 8 * k);
    set_scale(u, pp_f16_to_f32(b->d) * (0.125f * (float)(2 * (high >> 12 & 7) + 1)));
}

static void unpack_iq1_m(const void *block, int sub, struct pp_unpacked *u)
{
    const struct pp_block_iq1_m *b = block;
    int d = 0;
    for (int k = 0; k < 4; k++) {
        const int high = b->high[2 * sub + k / 2] >> k % 2 * 4;
        entry_and_shift(b->q[4 * sub + k] | (high & 7) << 8, high & 8, u->w + 8 * k);
        d |= b->scales[k] >> 12 << 4 * k;
    }
    for (int k = 0; k < 2; k++)
        u->scale[k] = (int8_t)(2 * (b->scales[sub / 2] >> (sub % 2 * 6 + 3 * k) & 7) + 1);
    set_scale(u, pp_f16_to_f32((uint16_t)d) * 0.125f);
}

/* --- all of them -------------------------------------------------------------------------------------------------- */

static unpack_fn *const unpackers[PP_TYPE_LIMIT] = {
    [PP_TYPE_Q4_1] = unpack_q4_1,     [PP_TYPE_Q5_0] = unpack_q5_0,       [PP_TYPE_Q5_1] = unpack_q5_1,
    [PP_TYPE_Q2_K] = unpack_q2_k,     [PP_TYPE_Q3_K] = unpack_q3_k,       [PP_TYPE_Q5_K] = unpack_q5_k,
    [PP_TYPE_IQ1_S] = unpack_iq1_s,   [PP_TYPE_IQ1_M] = unpack_iq1_m,     [PP_TYPE_IQ2_XXS] = unpack_iq2_xxs,
    [PP_TYPE_IQ2_XS] = unpack_iq2_xs, [PP_TYPE_IQ2_S] = unpack_iq2_s,     [PP_TYPE_IQ3_XXS] = unpack_iq3_xxs,
    [PP_TYPE_IQ3_S] = unpack_iq3_s,   [PP_TYPE_IQ4_NL] = unpack_iq4_nl,   [PP_TYPE_IQ4_XS] = unpack_iq4_xs,
    [PP_TYPE_TQ1_0] = unpack_tq1_0,   [PP_TYPE_TQ2_0] = unpack_tq2_0,     [PP_TYPE_MXFP4] = unpack_mxfp4,
};

bool pp_unpack_block(uint32_t type, const void *p, int sub, struct pp_unpacked *u)
{
    enum { MOST = sizeof(struct pp_block_q5_k) };
    _Alignas(4) uint8_t block[MOST]; /* rows of a mapped file may be unaligned */
    if (type >= PP_TYPE_LIMIT || !unpackers[type])
        return false;
    memcpy(block, p, (size_t)pp_type_info(type)->block_bytes);
    u->has_min = false;
    u->min = 0;
    for (int k = 0; k < 2; k++)
        u->scale[k] = 1, u->m[k] = 1;
    unpackers[type](block, sub, u);
    return true;
}
