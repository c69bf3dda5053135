/* unpack_registers_avx512.h - code books that are held in registers instead of being looked up in memory: an entry is
 * packed into 16 bits, one permutation (vpermt2w) finds 32 entries at a time among 64, and the bytes that the entries
 * stand for are computed afterwards. The including file has defined PP_BOOKS_PERMUTED, the most entries such a book may
 * have: 256 or 512. Private to engine/cpu.
 *
 * One activation row, ns for 16 weight rows of 32 columns: on a Cascade Lake IQ3_XXS takes 39 where loads take 63,
 * IQ3_S 58 (72), IQ2_XXS 31 (37), IQ2_XS 41 (45). On an Emerald Rapids, in its two states, IQ3_XXS takes 32 and 47
 * where gathers take 31 and 62, and IQ2_XXS as long as gathers; books of 512 entries are slower there than gathers:
 * IQ3_S 46 (42), IQ2_XS 35 (29). */
#ifndef PP_CPU_UNPACK_REGISTERS_AVX512_H
#define PP_CPU_UNPACK_REGISTERS_AVX512_H

#include "engine/quant_grids.h"

enum { PERMUTED = 64, MOST_PERMUTED = 512 / PERMUTED };

/* book[i] for each of the 32 indices in i; n: entries of the book. */
UNPACK_ROWS __m512i find_packed(const uint16_t *book, const int n, __m512i i)
{
    __m512i found[MOST_PERMUTED];
    UNPACK_UNROLL for (int k = 0; k < n / PERMUTED; k++)
    {
        const uint16_t *part = book + PERMUTED * k;
        found[k] = _mm512_permutex2var_epi16(_mm512_loadu_si512(part), i, _mm512_loadu_si512(part + PERMUTED / 2));
    }
    UNPACK_UNROLL for (int step = 1; step < n / PERMUTED; step *= 2)
    {
        const __mmask32 later = _mm512_test_epi16_mask(i, _mm512_set1_epi16((short)(PERMUTED * step)));
        UNPACK_UNROLL for (int k = 0; k < n / PERMUTED; k += 2 * step)
            found[k] = _mm512_mask_mov_epi16(found[k], later, found[k + step]);
    }
    return found[0];
}

/* Where the 16-bit entries of four rows are within 16 bytes: that of row r begins at byte at + step * r. */
struct place {
    int at, step;
};

/* For each row r of four the bytes a, b, c and d, each plus step * r; -1 stands for a zero byte. */
UNPACK_ROWS __m512i take_bytes(__m512i from, const int step, const int a, const int b, const int c, const int d)
{
    char at[16];
    UNPACK_UNROLL for (int r = 0; r < 4; r++)
    {
        at[4 * r] = (char)(a < 0 ? -1 : a + step * r);
        at[4 * r + 1] = (char)(b < 0 ? -1 : b + step * r);
        at[4 * r + 2] = (char)(c < 0 ? -1 : c + step * r);
        at[4 * r + 3] = (char)(d < 0 ? -1 : d + step * r);
    }
    const __m128i pattern = _mm_setr_epi8(at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7], at[8], at[9], at[10],
                                          at[11], at[12], at[13], at[14], at[15]);
    return _mm512_shuffle_epi8(from, _mm512_broadcast_i32x4(pattern));
}

/* Unpacks eight columns of 2 bits each, from two bytes. A byte has four codes and is copied to all bytes of its row's
 * lane, of which the upper two are shifted right by 4. After masking, the first and third byte are codes, 0 to 2, while
 * the second and fourth are four times a code: the table has entries for both. */
UNPACK_ROWS void spread_eights(__m512i packed, const struct place p, uvec *w)
{
    static const uint8_t of[] = PP_IQ2_MAGNITUDES;
    const uint8_t table[16] = {of[0], of[1], of[2], [4 * 1] = of[1], [4 * 2] = of[2]};
    const __m512i upper = _mm512_set1_epi32(4 << 16), two = _mm512_set1_epi16(0x0c03);
    UNPACK_UNROLL for (int k = 0; k < 2; k++)
    {
        const int at = p.at + k;
        const __m512i codes = _mm512_srlv_epi16(take_bytes(packed, p.step, at, at, at, at), upper);
        w[k] = lookup16(table, from_i(_mm512_and_si512(codes, two)));
    }
}

/* Unpacks four columns of 4 bits each, from two bytes. Each gets a zero byte above it, into which a shift moves its
 * upper code. */
UNPACK_ROWS uvec spread_fours(__m512i packed, const struct place p, const uint8_t table[16])
{
    const __m512i bytes = take_bytes(packed, p.step, p.at, -1, p.at + 1, -1);
    const __m512i codes = _mm512_or_si512(bytes, _mm512_slli_epi16(bytes, 4));
    return lookup16(table, from_i(_mm512_and_si512(codes, _mm512_set1_epi8(15))));
}

/* Joins two vectors of 8-bit indices for find_packed(): those of row r become bytes 4 r and 4 r + 2. */
UNPACK_ROWS __m512i two_of_bytes(const uint8_t (*index)[16])
{
    const uvec low = rows_u8(index[0]), high = rows_u8(index[1]);
    return to_i(low | high << 16);
}

/* The lookups that unpack_body.h asks for. A vector has all 16 rows of a group, so `row` is 0. */
UNPACK_ROWS void eights_iq2_xxs(const uint8_t (*index)[16], int row, uvec *w)
{
    (void)row;
    UNPACK_UNROLL for (int k = 0; k < 4; k += 2)
    {
        const __m512i packed = find_packed(pp_packed_iq2_xxs, 256, two_of_bytes(index + k));
        spread_eights(packed, (struct place){0, 4}, w + 2 * k);
        spread_eights(packed, (struct place){2, 4}, w + 2 * k + 2);
    }
}

UNPACK_ROWS void fours_iq3_xxs(const uint8_t (*index)[16], int row, uvec *w)
{
    (void)row;
    static const uint8_t table[16] = PP_IQ3_XXS_MAGNITUDES;
    UNPACK_UNROLL for (int v = 0; v < 8; v += 2)
    {
        const __m512i packed = find_packed(pp_packed_iq3_xxs, 256, two_of_bytes(index + v));
        w[v] = spread_fours(packed, (struct place){0, 4}, table);
        w[v + 1] = spread_fours(packed, (struct place){2, 4}, table);
    }
}

#if PP_BOOKS_PERMUTED >= 512
/* Indices 2 i and 2 i + 1 of all rows, in the order of struct indexes: within each 16 bytes, which belong to four rows,
 * those of row r are at bytes 2 r and 8 + 2 r. */
UNPACK_ROWS __m512i two_of_joined(const struct indexes *n, const int i)
{
    return _mm512_load_si512(n->n[i]);
}

UNPACK_ROWS void eights_iq2_xs(const struct indexes *n, uvec *w)
{
    UNPACK_UNROLL for (int i = 0; i < 2; i++)
    {
        const __m512i packed = find_packed(pp_packed_iq2_xs, 512, two_of_joined(n, i));
        spread_eights(packed, (struct place){0, 2}, w + 4 * i);
        spread_eights(packed, (struct place){8, 2}, w + 4 * i + 2);
    }
}

UNPACK_ROWS void fours_iq3_s(const struct indexes *n, uvec *w)
{
    static const uint8_t table[16] = PP_IQ3_S_MAGNITUDES;
    UNPACK_UNROLL for (int i = 0; i < 4; i++)
    {
        const __m512i packed = find_packed(pp_packed_iq3_s, 512, two_of_joined(n + i / 2, i % 2));
        w[2 * i] = spread_fours(packed, (struct place){0, 2}, table);
        w[2 * i + 1] = spread_fours(packed, (struct place){8, 2}, table);
    }
}
#endif

#endif
