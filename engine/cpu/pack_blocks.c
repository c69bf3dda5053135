/* pack_blocks.c - packs groups of 16 rows of the types with heads and bodies (pack.h). */
#include <string.h>

#include "engine/cpu/pack.h"
#include "engine/quant_blocks.h"

enum { ROWS = PP_GROUP_ROWS, MAX_BLOCK = sizeof(struct pp_block_q5_k) };

/* One block of 16 rows, copied out of the file. */
struct blocks {
    uint8_t row[ROWS][MAX_BLOCK] __attribute__((aligned(4)));
};

/* Writes n slices: n words of each row, from `offset` of its block on. */
static void put_words(const struct blocks *b, size_t offset, int n, uint8_t (*slices)[PP_SLICE])
{
    for (int k = 0; k < n; k++)
        for (int r = 0; r < ROWS; r++)
            memcpy(slices[k] + 4 * r, b->row[r] + offset + 4 * (size_t)k, 4);
}

/* Writes n bytes of each row, from `offset` of its block on, as [n][16]. */
static void put_bytes(const struct blocks *b, size_t offset, int n, uint8_t (*to)[ROWS])
{
    for (int r = 0; r < ROWS; r++)
        for (int k = 0; k < n; k++)
            to[k][r] = b->row[r][offset + (size_t)k];
}

/* Writes n numbers of 16 bits of each row, from `offset` of its block on, as [n][16]. */
static void put_halves(const struct blocks *b, size_t offset, int n, uint8_t *to)
{
    for (int k = 0; k < n; k++)
        for (int r = 0; r < ROWS; r++)
            memcpy(to + 32 * k + 2 * r, b->row[r] + offset + 2 * (size_t)k, 2);
}

/* --- bit planes --------------------------------------------------------------------------------------------------- */

/* Unsigned codes of 32 columns of each row. */
typedef uint8_t codes[ROWS][32];

/* The codes of sub-block `sub`: the integer weights plus `offset`, which makes them unsigned. */
static void unpack_codes(uint32_t type, const struct blocks *b, int sub, int offset, codes q)
{
    struct pp_unpacked u;
    for (int r = 0; r < ROWS; r++) {
        pp_unpack_block(type, b->row[r], sub, &u);
        for (int i = 0; i < 32; i++)
            q[r][i] = (uint8_t)(u.w[i] + offset);
    }
}

/* Writes codes of 2 bits; put_threes() and put_fives() write those of 3 and 5 bits. */
static void put_low_pairs(codes q, uint8_t slices[2][PP_SLICE])
{
    for (int k = 0; k < 2; k++)
        for (int r = 0; r < ROWS; r++)
            for (int i = 0; i < 4; i++) {
                int four = 0;
                for (int j = 0; j < 4; j++)
                    four |= (q[r][4 * (k + 2 * j) + i] & 3) << 2 * j;
                slices[k][4 * r + i] = (uint8_t)four;
            }
}

/* ORs bits from .. from + n - 1 of columns 4 v + i into the slice's bytes, from bit `to` on. */
static void put_bits(codes q, int v, int from, int n, int to, uint8_t slice[PP_SLICE])
{
    const int mask = (1 << n) - 1;
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < 4; i++)
            slice[4 * r + i] = (uint8_t)(slice[4 * r + i] | (q[r][4 * v + i] >> from & mask) << to);
}

static void put_threes(codes q, uint8_t three[3][PP_SLICE])
{
    memset(three, 0, 3 * PP_SLICE);
    for (int v = 0; v < 6; v++)
        put_bits(q, v, 0, 3, 3 * (v % 2), three[v / 2]);
    for (int k = 0; k < 2; k++) {
        put_bits(q, 6 + k, 0, 2, 6, three[k]);
        put_bits(q, 6 + k, 2, 1, 6 + k, three[2]);
    }
}

static void put_fives(codes q, uint8_t five[5][PP_SLICE])
{
    memset(five, 0, 5 * PP_SLICE);
    for (int v = 0; v < 5; v++)
        put_bits(q, v, 0, 5, 0, five[v]);
    for (int k = 0; k < 3; k++)
        put_bits(q, 5 + k, 0, 3, 5, five[k]);
    for (int k = 0; k < 2; k++) {
        put_bits(q, 5 + k, 3, 2, 5, five[3 + k]);
        put_bits(q, 7, 3 + k, 1, 7, five[3 + k]);
    }
}

static void pack_q5(uint32_t type, const struct blocks *b, int sub, int offset, uint8_t five[5][PP_SLICE])
{
    codes q;
    unpack_codes(type, b, sub, offset, q);
    put_fives(q, five);
}

static void pack_q2_k(const struct blocks *b, struct pp_q2_k_pack *to)
{
    codes q;
    put_bytes(b, offsetof(struct pp_block_q2_k, scales), 16, to->scales);
    for (int sub = 0; sub < 8; sub++) {
        unpack_codes(PP_TYPE_Q2_K, b, sub, 0, q);
        put_low_pairs(q, to->q[sub]);
    }
}

static void pack_q3_k(const struct blocks *b, struct pp_q3_k_pack *to)
{
    codes q;
    for (int r = 0; r < ROWS; r++) {
        const struct pp_block_q3_k *block = (const void *)b->row[r];
        for (int s = 0; s < 16; s++)
            to->sc[s][r] = (int8_t)(pp_q3_k_scale(block->scales, s) - 32);
    }
    for (int sub = 0; sub < 8; sub++) {
        unpack_codes(PP_TYPE_Q3_K, b, sub, 4, q);
        put_threes(q, to->three[sub]);
    }
}

static void pack_q5_k(const struct blocks *b, struct pp_q5_k_pack *to)
{
    for (int r = 0; r < ROWS; r++) {
        const struct pp_block_q5_k *block = (const void *)b->row[r];
        for (int s = 0; s < 8; s++)
            pp_q4_k_scale_min(block->scales, s, &to->sc[s][r], &to->m[s][r]);
    }
    for (int sub = 0; sub < 8; sub++)
        pack_q5(PP_TYPE_Q5_K, b, sub, 0, to->five[sub]);
}

static void pack_iq4_xs(const struct blocks *b, struct pp_iq4_xs_pack *to)
{
    for (int r = 0; r < ROWS; r++) {
        const struct pp_block_iq4_xs *block = (const void *)b->row[r];
        for (int s = 0; s < 8; s++) {
            int low = block->scales_low[s / 2] >> s % 2 * 4 & 15, high = block->scales_high >> 2 * s & 3;
            to->sc[s][r] = (int8_t)((low | high << 4) - 32);
        }
    }
    put_words(b, offsetof(struct pp_block_iq4_xs, q), 32, to->low[0]);
}

static void pack_tq2_0(const struct blocks *b, uint8_t (*to)[PP_SLICE])
{
    codes q;
    for (int sub = 0; sub < 8; sub++) {
        unpack_codes(PP_TYPE_TQ2_0, b, sub, 1, q);
        put_low_pairs(q, to + 2 * sub);
    }
}

/* --- code books --------------------------------------------------------------------------------------------------- */

/* The signs of 32 columns in the order of PP_SIGN_BIT, from four bytes with those of 8 columns, or of 7. */
static uint32_t ordered_signs(const uint8_t signs[4])
{
    uint32_t word = 0;
    for (int c = 0; c < 32; c++)
        word |= (uint32_t)(signs[c / 8] >> c % 8 & 1) << (8 * (c % 4) + PP_SIGN_BIT(c / 4));
    return word;
}

static void put_word(uint8_t slice[PP_SLICE], int r, uint32_t word)
{
    memcpy(slice + 4 * r, &word, sizeof word);
}

/* Writes a slice of words, each from one with four times 7 signs and a 4-bit scale at `offset` in the block. */
static void put_even_words(const struct blocks *b, size_t offset, uint8_t slice[PP_SLICE])
{
    for (int r = 0; r < ROWS; r++) {
        uint32_t word;
        uint8_t signs[4];
        memcpy(&word, b->row[r] + offset, sizeof word);
        for (int k = 0; k < 4; k++)
            signs[k] = word >> 7 * k & 127;
        put_word(slice, r, ordered_signs(signs) | (word >> 28) << 28);
    }
}

/* Writes a slice of words, each from the 4 bytes of signs at `offset` in the block. */
static void put_signs(const struct blocks *b, size_t offset, uint8_t slice[PP_SLICE])
{
    for (int r = 0; r < ROWS; r++)
        put_word(slice, r, ordered_signs(b->row[r] + offset));
}

static void pack_iq2_xxs(const struct blocks *b, struct pp_iq2_xxs_pack *to)
{
    for (int sub = 0; sub < 8; sub++) {
        const size_t q = offsetof(struct pp_block_iq2_xxs, q) + 8 * (size_t)sub;
        put_bytes(b, q, 4, to->q[sub].index);
        put_even_words(b, q + 4, to->q[sub].word);
    }
}

static void pack_iq2_xs(const struct blocks *b, struct pp_iq2_xs_pack *to)
{
    put_bytes(b, offsetof(struct pp_block_iq2_xs, scales), 8, to->scales);
    for (int sub = 0; sub < 8; sub++)
        for (int r = 0; r < ROWS; r++) {
            const struct pp_block_iq2_xs *block = (const void *)b->row[r];
            uint32_t high = 0;
            uint8_t signs[4];
            for (int k = 0; k < 4; k++) {
                const int q = block->q[4 * sub + k];
                to->q[sub].index[4 * r + k] = (uint8_t)q;
                high |= (uint32_t)(q >> 8 & 1) << k;
                signs[k] = (uint8_t)(q >> 9);
            }
            put_word(to->q[sub].word, r, ordered_signs(signs) | high << 28);
        }
}

static void pack_iq2_s(const struct blocks *b, struct pp_iq2_s_pack *to)
{
    put_bytes(b, offsetof(struct pp_block_iq2_s, high), 8, to->high);
    put_bytes(b, offsetof(struct pp_block_iq2_s, scales), 8, to->scales);
    for (int sub = 0; sub < 8; sub++) {
        put_words(b, offsetof(struct pp_block_iq2_s, q) + 4 * (size_t)sub, 1, &to->q[sub].index);
        put_signs(b, offsetof(struct pp_block_iq2_s, signs) + 4 * (size_t)sub, to->q[sub].signs);
    }
}

static void pack_iq3_xxs(const struct blocks *b, struct pp_iq3_xxs_pack *to)
{
    for (int sub = 0; sub < 8; sub++) {
        put_bytes(b, offsetof(struct pp_block_iq3_xxs, q) + 8 * (size_t)sub, 8, to->q[sub].index);
        put_even_words(b, offsetof(struct pp_block_iq3_xxs, words) + 4 * (size_t)sub, to->q[sub].word);
    }
}

static void pack_iq3_s(const struct blocks *b, struct pp_iq3_s_pack *to)
{
    put_bytes(b, offsetof(struct pp_block_iq3_s, high), 8, to->high);
    put_bytes(b, offsetof(struct pp_block_iq3_s, scales), 4, to->scales);
    for (int sub = 0; sub < 8; sub++) {
        put_words(b, offsetof(struct pp_block_iq3_s, q) + 8 * (size_t)sub, 2, to->q[sub].index);
        put_signs(b, offsetof(struct pp_block_iq3_s, signs) + 4 * (size_t)sub, to->q[sub].signs);
    }
}

static void pack_iq1_s(const struct blocks *b, struct pp_iq1_s_pack *to)
{
    for (int sub = 0; sub < 8; sub++)
        for (int r = 0; r < ROWS; r++) {
            const int high = ((const struct pp_block_iq1_s *)(const void *)b->row[r])->high[sub];
            const int entries = (high & 7) | (high >> 3 & 7) << 8 | (high >> 6 & 7) << 4 | (high >> 9 & 7) << 12;
            const int scale = (high >> 12 & 1) << 3 | (high >> 13 & 1) << 7 | (high >> 14 & 1) << 11;
            to->high[sub][r] = (uint16_t)(entries | scale | (high & 0x8000));
        }
    put_words(b, offsetof(struct pp_block_iq1_s, q), 8, to->index);
}

/* The file has four words of scales: their highest 4 bits make the block's scale d, their 12 other bits are four of the
 * scales of 3 bits. Both are put together here. */
static void pack_iq1_m(const struct blocks *b, struct pp_iq1_m_pack *to)
{
    for (int r = 0; r < ROWS; r++) {
        const struct pp_block_iq1_m *block = (const void *)b->row[r];
        uint64_t scales = 0;
        int d = 0;
        for (int k = 0; k < 4; k++) {
            scales |= (uint64_t)(block->scales[k] & 0xfff) << 12 * k;
            d |= block->scales[k] >> 12 << 4 * k;
        }
        to->d[r] = (uint16_t)d;
        for (int k = 0; k < 6; k++)
            to->scales[k][r] = (uint8_t)(scales >> 8 * k);
    }
    for (int sub = 0; sub < 8; sub++)
        for (int r = 0; r < ROWS; r++) {
            const uint8_t *high = ((const struct pp_block_iq1_m *)(const void *)b->row[r])->high + 2 * sub;
            const int first = (high[0] & 15) | (high[1] & 15) << 4, then = high[0] >> 4 | (high[1] & 0xf0);
            to->high[sub][r] = (uint16_t)(first | then << 8);
        }
    put_words(b, offsetof(struct pp_block_iq1_m, q), 8, to->index);
}

/* --- all of them -------------------------------------------------------------------------------------------------- */

static void pack_head(uint32_t type, const struct blocks *b, uint8_t *head)
{
    switch (type) {
    case PP_TYPE_MXFP4:
        put_bytes(b, offsetof(struct pp_block_mxfp4, e), 1, (uint8_t(*)[ROWS])head);
        break;
    case PP_TYPE_Q2_K:
        put_halves(b, offsetof(struct pp_block_q2_k, d), 2, head);
        break;
    case PP_TYPE_Q3_K:
        put_halves(b, offsetof(struct pp_block_q3_k, d), 1, head);
        break;
    case PP_TYPE_TQ1_0:
        put_halves(b, offsetof(struct pp_block_tq1_0, d), 1, head);
        break;
    case PP_TYPE_TQ2_0:
        put_halves(b, offsetof(struct pp_block_tq2_0, d), 1, head);
        break;
    default: /* one or two half floats at the beginning of the block */
        put_halves(b, 0, pp_pack_shape(type).head / 2, head);
    }
}

static void pack_body(uint32_t type, const struct blocks *b, void *body)
{
    switch (type) {
    case PP_TYPE_Q4_1:
        put_words(b, offsetof(struct pp_block_q4_1, q), 4, body);
        break;
    case PP_TYPE_IQ4_NL:
        put_words(b, offsetof(struct pp_block_iq4_nl, q), 4, body);
        break;
    case PP_TYPE_MXFP4:
        put_words(b, offsetof(struct pp_block_mxfp4, q), 4, body);
        break;
    case PP_TYPE_IQ4_XS:
        pack_iq4_xs(b, body);
        break;
    case PP_TYPE_Q5_0:
        pack_q5(type, b, 0, 16, body);
        break;
    case PP_TYPE_Q5_1:
        pack_q5(type, b, 0, 0, body);
        break;
    case PP_TYPE_Q2_K:
        pack_q2_k(b, body);
        break;
    case PP_TYPE_Q3_K:
        pack_q3_k(b, body);
        break;
    case PP_TYPE_Q5_K:
        pack_q5_k(b, body);
        break;
    case PP_TYPE_TQ1_0:
        put_words(b, 0, 13, body);
        break;
    case PP_TYPE_TQ2_0:
        pack_tq2_0(b, body);
        break;
    case PP_TYPE_IQ2_XXS:
        pack_iq2_xxs(b, body);
        break;
    case PP_TYPE_IQ2_XS:
        pack_iq2_xs(b, body);
        break;
    case PP_TYPE_IQ2_S:
        pack_iq2_s(b, body);
        break;
    case PP_TYPE_IQ3_XXS:
        pack_iq3_xxs(b, body);
        break;
    case PP_TYPE_IQ3_S:
        pack_iq3_s(b, body);
        break;
    case PP_TYPE_IQ1_S:
        pack_iq1_s(b, body);
        break;
    case PP_TYPE_IQ1_M:
        pack_iq1_m(b, body);
        break;
    default:
        break;
    }
}

void pp_pack_blocks(uint32_t type, const uint8_t *const at[PP_GROUP_ROWS], const size_t step[PP_GROUP_ROWS],
                    int64_t n_cols, uint8_t *group)
{
    const struct pp_pack_shape s = pp_pack_shape(type);
    const size_t heads = pp_pack_head_bytes(type, n_cols), block_bytes = (size_t)pp_type_info(type)->block_bytes;
    const int64_t n = n_cols / s.block;
    struct blocks b;
    for (int64_t k = 0; k < n; k++) {
        for (int r = 0; r < ROWS; r++)
            memcpy(b.row[r], at[r] + (size_t)k * step[r], block_bytes);
        pack_head(type, &b, group + 16 * s.head * k);
        pack_body(type, &b, group + heads + (size_t)(16 * s.body * k));
    }
    memset(group + 16 * s.head * n, 0, heads - (size_t)(16 * s.head * n));
}
