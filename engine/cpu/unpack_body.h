/* unpack_body.h - unpacks quantised weights (packed as pack.h describes) to small integers and scales: one routine per
 * type, written once over vectors of ROWS weight rows. Private to the kernels of engine/cpu.
 *
 * A vector holds ROWS lanes of 32 bits, one per weight row. A slice of the packed form fills such a vector with 4
 * neighbouring columns of every row. The including file has defined:
 *
 *   ROWS                        weight rows in a vector: a power of two up to 16
 *   uvec, ivec, fvec, bvec      vectors of ROWS uint32_t, int32_t, float, and of 4 ROWS uint8_t
 *   uvec rows_u8(p), rows_u16(p)  ROWS unsigned numbers of 8 or 16 bits at p, one per row, widened to 32 bits
 *   ivec rows_s8(p)             the same for int8_t
 *   fvec rows_f16(p)            the same for half-precision floats
 *   uvec lookup16(table, i)     table[i] for every byte i of a vector, each below 16; table: 16 bytes
 *   uvec gather_rows(table, p)  table[p[row]], 32 bits, for every lane
 *   void gather_pairs_rows(table, p, to)  table[p[row]] of 64 bits: the first 4 bytes to to[0], the others to to[1]
 *   struct indexes, void join_indexes(low, high, to)  indices of more than 8 bits, 4 per lane, joined from vectors that
 *                               hold their low bytes and the bits above these
 *   uvec gather_joined(table, n, k), void gather_pairs_joined(table, n, k, to)
 *                               lookups like those above by index k of each lane's four in the struct indexes n
 *                               (unpack_gathers.h defines all four lookups from two simpler functions)
 *   uvec spread_byte(v, k)      byte k of each lane copied to all four of its bytes; k is a constant
 */
#include "engine/cpu/matmul_sets.h"
#include "engine/cpu/pack.h"
#include "engine/quant_grids.h"

/* A block of 32 columns of ROWS rows. A weight is (d * sc[column / 16]) * w, minus min * m[column / 16] if its type has
 * minima. Here w is unsigned, that is, pp_type_offset(type) larger than in this formula; types with code books of
 * magnitudes have these in w and the signs apart. The compiler drops the members that a caller does not use. */
struct unpacked {
    uvec w[8];     /* w[v]: byte 4 r + i belongs to row r, column 4 v + i */
    uvec high[8];  /* if pp_type_wide(type): w = low + 16 high, each below 16, laid out like w */
    uvec low[8];
    uvec signs;    /* if pp_type_signs(type): a bit per column in the order of pack.h; 1: the weight is -w */
    fvec d, min;
    ivec sc[2], m[2];
};

typedef int8_t sbvec __attribute__((vector_size(4 * ROWS)));

#ifndef UNPACK
#define UNPACK static inline __attribute__((always_inline))
#endif
#ifndef UNPACK_UNROLL
#define UNPACK_UNROLL _Pragma("GCC unroll 16")
#endif

/* Where the numbers of 32 columns are: sub-block `sub` of a block of the file, which has 32 or 256 columns. */
struct packed_at {
    const uint8_t *head, *body;    /* of that block, for all 16 rows of the group */
    unsigned sub;
    const struct indexes *indexes; /* for code books with more than 256 entries: the output of join() for these rows */
};

UNPACK struct packed_at packed_at(const uint32_t type, const uint8_t *group, int64_t n_cols, int64_t b)
{
    const struct pp_pack_shape s = pp_pack_shape(type);
    const size_t subs = (size_t)s.block / 32, block = (size_t)b / subs;
    const uint8_t *bodies = group + pp_pack_head_bytes(type, n_cols);
    return (struct packed_at){group + (size_t)(16 * s.head) * block, bodies + (size_t)(16 * s.body) * block,
                              (unsigned)((size_t)b % subs), NULL};
}

UNPACK uvec load_u(const void *p)
{
    uvec v;
    memcpy(&v, __builtin_assume_aligned(p, 4 * ROWS), sizeof v);
    return v;
}

/* mask repeated in every byte */
UNPACK uvec bytes_of(uint32_t mask)
{
    return (uvec){0} + mask * 0x01010101u;
}

/* A block whose only scale is d, with integer scales of 1. A type with minima or integer scales sets these
 * afterwards. */
UNPACK void set_scale(struct unpacked *o, fvec d)
{
    o->d = d;
    o->min = d;
    UNPACK_UNROLL for (int k = 0; k < 2; k++)
        o->sc[k] = o->m[k] = (ivec){0} + 1;
}

/* --- bit planes --------------------------------------------------------------------------------------------------- */

/* low: 4 slices; slice v holds columns 4 v + i in its low nibbles and columns 16 + 4 v + i in its high ones. */
UNPACK void unpack_nibbles(const uint8_t *low, int row, uvec *w)
{
    UNPACK_UNROLL for (int v = 0; v < 4; v++)
    {
        uvec two = load_u(low + PP_SLICE * v + 4 * row);
        w[v] = two & bytes_of(15);
        w[v + 4] = two >> 4 & bytes_of(15);
    }
}

/* two: 2 slices; slice k holds columns 4 (k + 2 j) + i in bits 2 j and 2 j + 1. */
UNPACK void unpack_pairs(const uint8_t *two, int row, uvec *w)
{
    UNPACK_UNROLL for (int k = 0; k < 2; k++)
    {
        uvec four = load_u(two + PP_SLICE * k + 4 * row);
        UNPACK_UNROLL for (int j = 0; j < 4; j++)
            w[k + 2 * j] = four >> 2 * j & bytes_of(3);
    }
}

/* 3-bit codes in 3 slices, and 5-bit codes in 5: pack.h has a table of where each bit is. */
UNPACK void unpack_threes(const uint8_t *three, int row, uvec *w)
{
    const uvec s0 = load_u(three + 4 * row), s1 = load_u(three + PP_SLICE + 4 * row);
    const uvec s2 = load_u(three + 2 * PP_SLICE + 4 * row);
    w[0] = s0 & bytes_of(7);
    w[1] = s0 >> 3 & bytes_of(7);
    w[2] = s1 & bytes_of(7);
    w[3] = s1 >> 3 & bytes_of(7);
    w[4] = s2 & bytes_of(7);
    w[5] = s2 >> 3 & bytes_of(7);
    w[6] = (s0 >> 6 & bytes_of(3)) | (s2 >> 4 & bytes_of(4));
    w[7] = (s1 >> 6 & bytes_of(3)) | (s2 >> 5 & bytes_of(4));
}

UNPACK void unpack_fives(const uint8_t *five, int row, uvec *w)
{
    uvec s[5];
    UNPACK_UNROLL for (int v = 0; v < 5; v++)
    {
        s[v] = load_u(five + PP_SLICE * v + 4 * row);
        w[v] = s[v] & bytes_of(31);
    }
    w[5] = (s[0] >> 5 & bytes_of(7)) | (s[3] >> 2 & bytes_of(24));
    w[6] = (s[1] >> 5 & bytes_of(7)) | (s[4] >> 2 & bytes_of(24));
    w[7] = (s[2] >> 5 & bytes_of(7)) | (s[3] >> 4 & bytes_of(8)) | (s[4] >> 3 & bytes_of(16));
}

UNPACK void unpack_table(const uvec *code, const uint8_t *table, uvec *w)
{
    UNPACK_UNROLL for (int v = 0; v < 8; v++)
        w[v] = lookup16(table, code[v]);
}

/* The signs of columns 4 v to 4 v + 3, in the highest bits of the bytes; the lower bits are other columns'. */
UNPACK uvec signs_of(const struct unpacked *o, const int v)
{
    return o->signs << (7 - PP_SIGN_BIT(v));
}

/* Replaces the unsigned w by the signed weights: subtracts the offset, or applies the signs. */
UNPACK void make_signed(const uint32_t type, struct unpacked *o)
{
    UNPACK_UNROLL for (int v = 0; v < 8; v++)
    {
        if (pp_type_signs(type)) {
            const bvec minus = (bvec)((sbvec)signs_of(o, v) < 0);
            o->w[v] = (uvec)(((bvec)o->w[v] ^ minus) - minus);
        } else
            o->w[v] = (uvec)((bvec)o->w[v] - (uint8_t)pp_type_offset(type));
    }
}

UNPACK void unpack_q4_1(struct packed_at p, int row, struct unpacked *o)
{
    unpack_nibbles(p.body, row, o->w);
    set_scale(o, rows_f16(p.head + 2 * row));
    o->min = -rows_f16(p.head + 32 + 2 * row);
}

UNPACK void unpack_q5_0(struct packed_at p, int row, struct unpacked *o)
{
    unpack_fives(p.body, row, o->w);
    set_scale(o, rows_f16(p.head + 2 * row));
}

UNPACK void unpack_q5_1(struct packed_at p, int row, struct unpacked *o)
{
    unpack_fives(p.body, row, o->w);
    set_scale(o, rows_f16(p.head + 2 * row));
    o->min = -rows_f16(p.head + 32 + 2 * row);
}

UNPACK void unpack_q2_k(struct packed_at p, int row, struct unpacked *o)
{
    const struct pp_q2_k_pack *k = (const void *)p.body;
    unpack_pairs(k->q[p.sub][0], row, o->w);
    set_scale(o, rows_f16(p.head + 2 * row));
    o->min = rows_f16(p.head + 32 + 2 * row);
    UNPACK_UNROLL for (unsigned half = 0; half < 2; half++)
    {
        uvec both = rows_u8(k->scales[2 * p.sub + half] + row);
        o->sc[half] = (ivec)(both & 15);
        o->m[half] = (ivec)(both >> 4);
    }
}

UNPACK void unpack_q3_k(struct packed_at p, int row, struct unpacked *o)
{
    const struct pp_q3_k_pack *k = (const void *)p.body;
    unpack_threes(k->three[p.sub][0], row, o->w);
    set_scale(o, rows_f16(p.head + 2 * row));
    UNPACK_UNROLL for (unsigned half = 0; half < 2; half++)
        o->sc[half] = rows_s8(k->sc[2 * p.sub + half] + row);
}

UNPACK void unpack_q5_k(struct packed_at p, int row, struct unpacked *o)
{
    const struct pp_q5_k_pack *k = (const void *)p.body;
    unpack_fives(k->five[p.sub][0], row, o->w);
    const ivec scale = (ivec)rows_u8(k->sc[p.sub] + row), min = (ivec)rows_u8(k->m[p.sub] + row);
    set_scale(o, rows_f16(p.head + 2 * row) * __builtin_convertvector(scale, fvec));
    o->min = rows_f16(p.head + 32 + 2 * row) * __builtin_convertvector(min, fvec);
}

/* --- tables of 16 ------------------------------------------------------------------------------------------------- */

/* PP_MXFP4_VALUES + 12; PP_IQ4_VALUES + 128, and the low and high four bits of these sums. */
static const uint8_t mxfp4_from_0[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
static const uint8_t iq4_from_0[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
static const uint8_t iq4_low[16] = {1, 8, 13, 15, 15, 13, 10, 6, 1, 13, 9, 6, 5, 5, 9, 1};
static const uint8_t iq4_high[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 9, 10, 11, 12, 13, 15};

UNPACK void unpack_iq4(const uint8_t *low, int row, struct unpacked *o)
{
    uvec code[8];
    unpack_nibbles(low, row, code);
    unpack_table(code, iq4_from_0, o->w);
    unpack_table(code, iq4_low, o->low);
    unpack_table(code, iq4_high, o->high);
}

UNPACK void unpack_iq4_nl(struct packed_at p, int row, struct unpacked *o)
{
    unpack_iq4(p.body, row, o);
    set_scale(o, rows_f16(p.head + 2 * row));
}

UNPACK void unpack_iq4_xs(struct packed_at p, int row, struct unpacked *o)
{
    const struct pp_iq4_xs_pack *k = (const void *)p.body;
    unpack_iq4(k->low[p.sub][0], row, o);
    const ivec scale = rows_s8(k->sc[p.sub] + row);
    set_scale(o, rows_f16(p.head + 2 * row) * __builtin_convertvector(scale, fvec));
}

UNPACK void unpack_mxfp4(struct packed_at p, int row, struct unpacked *o)
{
    uvec code[8];
    unpack_nibbles(p.body, row, code);
    unpack_table(code, mxfp4_from_0, o->w);
    uvec e = rows_u8(p.head + row), tiny = (uvec)((ivec)e < 2); /* 2^-128 and 2^-127 are subnormal */
    uvec bits = (tiny & (e + 1) << 21) | (~tiny & (e - 1) << 23);
    set_scale(o, (fvec)bits);
}

/* --- ternary types ------------------------------------------------------------------------------------------------ */

/* Base-3 digit k of each byte: q is multiplied by 3 (mod 256) k times, then the digit is 3 q >> 8, which equals
 * (q >= 86) + (q >= 171). See TQ1_0 in quant_blocks.h. */
UNPACK uvec ternary_digits(uvec four, int k)
{
    bvec q = (bvec)four;
    for (; k > 0; k--)
        q = q + q + q;
    return (uvec)((bvec){0} - (bvec)(q >= 86) - (bvec)(q >= 171));
}

UNPACK void unpack_tq1_0(struct packed_at p, int row, struct unpacked *o)
{
    const struct pp_tq1_0_pack *k = (const void *)p.body;
    UNPACK_UNROLL for (int v = 0; v < 4; v++)
    {
        const bool first = p.sub < 5, last = p.sub == 7;
        const int digit = first ? (int)p.sub : 2 * ((int)p.sub - 5);
        o->w[v] = ternary_digits(load_u(k->q[first ? v : 8 + v] + 4 * row), digit);
        o->w[v + 4] = ternary_digits(load_u((first ? k->q[4 + v] : last ? k->high : k->q[8 + v]) + 4 * row),
                                     first ? digit : last ? v : digit + 1);
    }
    set_scale(o, rows_f16(p.head + 2 * row));
}

UNPACK void unpack_tq2_0(struct packed_at p, int row, struct unpacked *o)
{
    unpack_pairs(p.body + 2 * PP_SLICE * p.sub, row, o->w);
    set_scale(o, rows_f16(p.head + 2 * row));
}

/* --- code books --------------------------------------------------------------------------------------------------- */

/* A block of 32 columns has 4 or 8 code book indices per row, 4 in each of at most INDEXES structs. Without gather
 * instructions an index becomes part of an address, and goes from a vector to an address register through memory:
 * callers should therefore join() indices well before they are used. */
enum { INDEXES = 2 };

/* 1 in each byte of which a bit within mask is set, else 0. */
UNPACK uvec any_bit(uvec bytes, uint32_t mask)
{
    return (uvec)((bvec)(bytes & ((uvec){0} + mask)) != 0) & bytes_of(1);
}

UNPACK void join_iq2_xs(struct packed_at p, int row, struct indexes *to)
{
    const struct pp_iq2_xs_pack *k = (const void *)p.body;
    const uvec high = spread_byte(load_u(k->q[p.sub].word + 4 * row), 3);
    join_indexes(load_u(k->q[p.sub].index + 4 * row), any_bit(high, 0x80402010), to);
}

UNPACK void join_iq2_s(struct packed_at p, int row, struct indexes *to)
{
    const struct pp_iq2_s_pack *k = (const void *)p.body;
    uvec high = rows_u8(k->high[p.sub] + row);
    high |= high << 6;
    join_indexes(load_u(k->q[p.sub].index + 4 * row), (high | high << 12) & bytes_of(3), to);
}

UNPACK void join_iq3_s(struct packed_at p, int row, struct indexes *to)
{
    const struct pp_iq3_s_pack *k = (const void *)p.body;
    const uvec high = spread_byte(rows_u8(k->high[p.sub] + row), 0);
    join_indexes(load_u(k->q[p.sub].index[0] + 4 * row), any_bit(high, 0x08040201), to);
    join_indexes(load_u(k->q[p.sub].index[1] + 4 * row), any_bit(high, 0x80402010), to + 1);
}

UNPACK void join_iq1_s(struct packed_at p, int row, struct indexes *to)
{
    const struct pp_iq1_s_pack *k = (const void *)p.body;
    const uvec high = rows_u16(k->high[p.sub] + row);
    join_indexes(load_u(k->index[p.sub] + 4 * row), (high | high << 12) & bytes_of(7), to);
}

UNPACK void join_iq1_m(struct packed_at p, int row, struct indexes *to)
{
    const struct pp_iq1_m_pack *k = (const void *)p.body;
    const uvec high = rows_u16(k->high[p.sub] + row);
    join_indexes(load_u(k->index[p.sub] + 4 * row), (high | high << 12) & bytes_of(7), to);
}

/* True if unpacking this type needs p.indexes. */
UNPACK bool is_joined(const uint32_t type)
{
    return type == PP_TYPE_IQ2_XS || type == PP_TYPE_IQ2_S || type == PP_TYPE_IQ3_S || type == PP_TYPE_IQ1_S ||
           type == PP_TYPE_IQ1_M;
}

/* to: [INDEXES]; does nothing unless is_joined(type). */
UNPACK void join(const uint32_t type, struct packed_at p, int row, struct indexes *to)
{
    if (type == PP_TYPE_IQ2_XS)
        join_iq2_xs(p, row, to);
    if (type == PP_TYPE_IQ2_S)
        join_iq2_s(p, row, to);
    if (type == PP_TYPE_IQ3_S)
        join_iq3_s(p, row, to);
    if (type == PP_TYPE_IQ1_S)
        join_iq1_s(p, row, to);
    if (type == PP_TYPE_IQ1_M)
        join_iq1_m(p, row, to);
}

/* Entries of 8 columns: index k gives columns 8 k to 8 k + 7. */
UNPACK void unpack_eights(const uint64_t *book, const struct indexes *n, uvec *w)
{
    UNPACK_UNROLL for (int k = 0; k < 4; k++)
        gather_pairs_joined(book, n, k, w + 2 * k);
}

/* Code books of up to this many entries are not looked up in memory, but held in registers, and the including file has
 * defined the functions eights_ and fours_ for them (unpack_registers_avx512.h). */
#ifndef PP_BOOKS_PERMUTED
#define PP_BOOKS_PERMUTED 0
#endif

#if PP_BOOKS_PERMUTED < 256
UNPACK void eights_iq2_xxs(const uint8_t (*index)[16], int row, uvec *w)
{
    UNPACK_UNROLL for (int k = 0; k < 4; k++)
        gather_pairs_rows(pp_grid_iq2_xxs, index[k] + row, w + 2 * k);
}

UNPACK void fours_iq3_xxs(const uint8_t (*index)[16], int row, uvec *w)
{
    UNPACK_UNROLL for (int v = 0; v < 8; v++)
        w[v] = gather_rows(pp_grid_iq3_xxs, index[v] + row);
}
#endif

#if PP_BOOKS_PERMUTED < 512
UNPACK void eights_iq2_xs(const struct indexes *n, uvec *w)
{
    unpack_eights(pp_grid_iq2_xs, n, w);
}

UNPACK void fours_iq3_s(const struct indexes *n, uvec *w)
{
    UNPACK_UNROLL for (int v = 0; v < 8; v++)
        w[v] = gather_joined(pp_grid_iq3_s, n + v / 4, v % 4);
}
#endif

/* The 32 signs from the 28 that are stored: each group of 8 columns has an even number of set signs, so the sign of its
 * last column, one of the highest four bits, is the parity of the other seven. */
UNPACK uvec even_signs(uvec word)
{
    word &= 0x0fffffff;
    uvec parity = word ^ word << 16;
    parity ^= parity << 8;
    parity ^= parity << 4;
    return word | (parity & 0xf0000000);
}

UNPACK fvec odd_scale(uvec scale) /* 2 scale + 1 */
{
    return __builtin_convertvector((ivec)(scale + scale + 1), fvec);
}

UNPACK void two_odd_scales(const uint8_t *nibbles, fvec d, struct unpacked *o)
{
    uvec both = rows_u8(nibbles), low = both & 15, high = both >> 4;
    set_scale(o, d * 0.125f);
    o->sc[0] = (ivec)(low + low + 1);
    o->sc[1] = (ivec)(high + high + 1);
}

UNPACK void unpack_iq2_xxs(struct packed_at p, int row, struct unpacked *o)
{
    const struct pp_iq2_xxs_pack *k = (const void *)p.body;
    uvec word = load_u(k->q[p.sub].word + 4 * row);
    eights_iq2_xxs(k->q[p.sub].index, row, o->w);
    o->signs = even_signs(word);
    set_scale(o, rows_f16(p.head + 2 * row) * (odd_scale(word >> 28) * 0.125f));
}

UNPACK void unpack_iq2_xs(struct packed_at p, int row, struct unpacked *o)
{
    const struct pp_iq2_xs_pack *k = (const void *)p.body;
    eights_iq2_xs(p.indexes, o->w);
    o->signs = even_signs(load_u(k->q[p.sub].word + 4 * row));
    two_odd_scales(k->scales[p.sub] + row, rows_f16(p.head + 2 * row), o);
}

UNPACK void unpack_iq2_s(struct packed_at p, int row, struct unpacked *o)
{
    const struct pp_iq2_s_pack *k = (const void *)p.body;
    unpack_eights(pp_grid_iq2_s, p.indexes, o->w);
    o->signs = load_u(k->q[p.sub].signs + 4 * row);
    two_odd_scales(k->scales[p.sub] + row, rows_f16(p.head + 2 * row), o);
}

UNPACK void unpack_iq3_xxs(struct packed_at p, int row, struct unpacked *o)
{
    const struct pp_iq3_xxs_pack *k = (const void *)p.body;
    uvec word = load_u(k->q[p.sub].word + 4 * row);
    fours_iq3_xxs(k->q[p.sub].index, row, o->w);
    o->signs = even_signs(word);
    set_scale(o, rows_f16(p.head + 2 * row) * (odd_scale(word >> 28) * 0.25f));
}

UNPACK void unpack_iq3_s(struct packed_at p, int row, struct unpacked *o)
{
    const struct pp_iq3_s_pack *k = (const void *)p.body;
    const uvec scale = rows_u8(k->scales[p.sub / 2] + row) >> p.sub % 2 * 4 & 15;
    fours_iq3_s(p.indexes, o->w);
    o->signs = load_u(k->q[p.sub].signs + 4 * row);
    set_scale(o, rows_f16(p.head + 2 * row) * odd_scale(scale));
}

/* The code book of IQ1 holds weights in eighths, plus 8. A block, or in IQ1_M each 8 columns, is shifted by +1 or -1
 * eighth, and the offset is 9 (pp_type_offset): so 2 is added to the entries, or nothing. */
UNPACK void unpack_iq1_s(struct packed_at p, int row, struct unpacked *o)
{
    const struct pp_iq1_s_pack *k = (const void *)p.body;
    const uvec high = rows_u16(k->high[p.sub] + row);
    unpack_eights(pp_grid_iq1, p.indexes, o->w);
    const bvec shift = (bvec)(spread_byte(~high >> 14, 0) & bytes_of(2));
    UNPACK_UNROLL for (int v = 0; v < 8; v++)
        o->w[v] = (uvec)((bvec)o->w[v] + shift);
    const uvec scale = (high >> 3 & 1) | (high >> 6 & 2) | (high >> 9 & 4);
    set_scale(o, rows_f16(p.head + 2 * row) * (odd_scale(scale) * 0.125f));
}

UNPACK void unpack_iq1_m(struct packed_at p, int row, struct unpacked *o)
{
    const struct pp_iq1_m_pack *k = (const void *)p.body;
    const unsigned at = 6 * p.sub / 8;
    const uvec high = rows_u16(k->high[p.sub] + row);
    uvec scales = (rows_u8(k->scales[at] + row) | rows_u8(k->scales[at + 1] + row) << 8) >> 6 * p.sub % 8;
    unpack_eights(pp_grid_iq1, p.indexes, o->w);
    const uvec more = ~(high | high << 12) >> 2 & bytes_of(2);
    UNPACK_UNROLL for (int v = 0; v < 8; v++)
        o->w[v] = (uvec)((bvec)o->w[v] + (bvec)spread_byte(more, v / 2));
    set_scale(o, rows_f16(k->d + row) * 0.125f);
    o->sc[0] = (ivec)((scales & 7) + (scales & 7) + 1);
    o->sc[1] = (ivec)((scales >> 3 & 7) + (scales >> 3 & 7) + 1);
}

/* --- any of them -------------------------------------------------------------------------------------------------- */

typedef void unpack_block_fn(struct packed_at p, int row, struct unpacked *o);

enum { SUBS = 8 /* blocks of 32 columns in one of the file, for the types whose indices are joined */ };

/* Joins the indices of blocks b to end - 1, but not beyond the block of the file that contains block b. */
UNPACK void join_ahead(const uint32_t type, const uint8_t *group, int64_t n_cols, int64_t b, int64_t end, int row,
                       struct indexes n[SUBS][INDEXES])
{
    do {
        const struct packed_at p = packed_at(type, group, n_cols, b);
        join(type, p, row, n[p.sub]);
    } while (++b < end && b % SUBS);
}

/* Unpacks one block after joining its indices. */
UNPACK void unpack_one(const uint32_t type, unpack_block_fn *unpack, struct packed_at p, int row, struct unpacked *o)
{
    struct indexes n[INDEXES];
    join(type, p, row, n);
    p.indexes = n;
    unpack(p, row, o);
}
