/* unpack_rows_avx512.h - the vectors and functions that unpack_body.h and unpack_units_body.h ask for, with 16 weight
 * rows in a vector. The including file has defined PP_GATHERS: whether code books are looked up by gather instructions.
 * Private to the kernels of engine/cpu. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#ifndef UNPACK_UNROLL
#define UNPACK_UNROLL _Pragma("GCC unroll 16")
#endif
#ifndef UNPACK_ROWS
#define UNPACK_ROWS static inline __attribute__((always_inline, unused))
#endif

enum { ROWS = 16 };
typedef uint32_t uvec __attribute__((vector_size(64)));
typedef int32_t ivec __attribute__((vector_size(64)));
typedef float fvec __attribute__((vector_size(64)));
typedef uint8_t bvec __attribute__((vector_size(64)));

/* In the tests __m512i is a struct of the software model, which a cast cannot convert; memcpy() costs nothing. */
UNPACK_ROWS uvec from_i(__m512i v)
{
    uvec u;
    memcpy(&u, &v, sizeof u);
    return u;
}

UNPACK_ROWS __m512i to_i(uvec u)
{
    __m512i v;
    memcpy(&v, &u, sizeof v);
    return v;
}

UNPACK_ROWS uvec rows_u8(const uint8_t *p)
{
    return from_i(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}

UNPACK_ROWS ivec rows_s8(const int8_t *p)
{
    return (ivec)from_i(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}

UNPACK_ROWS uvec rows_u16(const void *p)
{
    return from_i(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)));
}

UNPACK_ROWS fvec rows_f16(const void *p)
{
    __m512 v = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
    fvec f;
    memcpy(&f, &v, sizeof f);
    return f;
}

UNPACK_ROWS uvec lookup16(const uint8_t *table, uvec i)
{
    __m512i all = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)table));
    return from_i(_mm512_shuffle_epi8(all, to_i(i)));
}

#if PP_GATHERS
UNPACK_ROWS uvec gather(const uint32_t *table, uvec i)
{
    return from_i(_mm512_i32gather_epi32(to_i(i), table, 4));
}

/* The time of a gather is that of its loads, and there are half as many if each loads 64 bits. */
UNPACK_ROWS void gather_pairs(const uint64_t *table, uvec i, uvec *to)
{
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    const __m512i first = _mm512_i32gather_epi64(_mm512_castsi512_si256(to_i(i)), table, 8);
    const __m512i last = _mm512_i32gather_epi64(_mm512_extracti64x4_epi64(to_i(i), 1), table, 8);
    to[0] = from_i(_mm512_permutex2var_epi32(first, even, last));
    to[1] = from_i(_mm512_permutex2var_epi32(first, odd, last));
}

#include "engine/cpu/unpack_gathers.h"

#define PP_BOOKS_PERMUTED 256
#else
/* One instruction loads an entry and blends it into its lane, so most of the remaining work is to separate the
 * indices. */

/* The indices of rows 4 k to 4 k + 3. */
struct four {
    uint32_t i[4];
};

/* Every other four is loaded index by index, the others by two loads and shifts: this balances the work between the
 * ports for loads and those for shifts. */
UNPACK_ROWS struct four four_words(const uint16_t *p, const int k)
{
    if (k % 2)
        return (struct four){{p[0], p[1], p[2], p[3]}};
    uint32_t n[2];
    memcpy(n, p, sizeof n);
    return (struct four){{n[0] & 65535, n[0] >> 16, n[1] & 65535, n[1] >> 16}};
}

/* v with *entry in the given one of its 8 lanes of 64 bits. */
UNPACK_ROWS __m512i put_pair(__m512i v, const int lane, const uint64_t *entry)
{
    const __m128i pair = _mm_loadl_epi64((const __m128i *)(const void *)entry);
    return _mm512_mask_broadcastq_epi64(v, (__mmask8)(1u << lane), pair);
}

/* Puts the entries of rows 4 k and 4 k + 1 into lanes 2 k and 2 k + 1 of v, those of the two rows after them into the
 * same lanes of w. */
UNPACK_ROWS void put_pairs(__m512i *v, __m512i *w, const int k, const uint64_t *t, struct four f)
{
    *v = put_pair(put_pair(*v, 2 * k, t + f.i[0]), 2 * k + 1, t + f.i[1]);
    *w = put_pair(put_pair(*w, 2 * k, t + f.i[2]), 2 * k + 1, t + f.i[3]);
}

/* Separates the entries of 64 bits: their first 4 bytes go to to[0], the others to to[1]. */
UNPACK_ROWS void split_pairs(__m512i v, __m512i w, uvec *to)
{
    const __m512 a = _mm512_castsi512_ps(v), b = _mm512_castsi512_ps(w);
    to[0] = from_i(_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88)));
    to[1] = from_i(_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd)));
}

/* Joined indices are kept in memory, from where they are loaded into address registers: extracting them from vectors
 * would use the execution port that shuffles need. */
struct indexes {
    uint16_t n[2][4][2][4] __attribute__((aligned(64))); /* index 2 i + j of row 4 k + r is n[i][k][j][r] */
};

UNPACK_ROWS void join_indexes(uvec low, uvec high, struct indexes *to)
{
    const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m512i l = _mm512_shuffle_epi8(to_i(low), order), h = _mm512_shuffle_epi8(to_i(high), order);
    _mm512_store_si512(to->n[0], _mm512_unpacklo_epi8(l, h));
    _mm512_store_si512(to->n[1], _mm512_unpackhi_epi8(l, h));
    __asm__("" : "+m"(*to)); /* so that the compiler does load them */
}

UNPACK_ROWS struct four joined(const struct indexes *i, const int number, const int k)
{
    return four_words(i->n[number / 2][k][number % 2], k);
}

UNPACK_ROWS void gather_pairs_joined(const uint64_t *t, const struct indexes *i, const int number, uvec *to)
{
    __m512i v = _mm512_setzero_si512(), w = v;
    UNPACK_UNROLL for (int k = 0; k < 4; k++)
        put_pairs(&v, &w, k, t, joined(i, number, k));
    split_pairs(v, w, to);
}

#define PP_BOOKS_PERMUTED 512
#endif

UNPACK_ROWS uvec spread_byte(uvec v, const int k)
{
    const __m128i first = _mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
    __m512i byte = _mm512_broadcast_i32x4(_mm_add_epi8(first, _mm_set1_epi8((char)k)));
    return from_i(_mm512_shuffle_epi8(to_i(v), byte));
}

#include "engine/cpu/unpack_registers_avx512.h"

UNPACK_ROWS ivec dot4(ivec sums, uvec w, const int8_t *q)
{
    int32_t four;
    memcpy(&four, q, sizeof four);
    return (ivec)from_i(_mm512_dpbusd_epi32(to_i((uvec)sums), to_i(w), _mm512_set1_epi32(four)));
}

UNPACK_ROWS __m512 to_f(fvec f)
{
    __m512 v;
    memcpy(&v, &f, sizeof v);
    return v;
}

UNPACK_ROWS fvec fma_rows(fvec a, fvec b, fvec c)
{
    __m512 v = _mm512_fmadd_ps(to_f(a), to_f(b), to_f(c));
    memcpy(&c, &v, sizeof c);
    return c;
}

UNPACK_ROWS fvec fnma_rows(fvec a, fvec b, fvec c)
{
    __m512 v = _mm512_fnmadd_ps(to_f(a), to_f(b), to_f(c));
    memcpy(&c, &v, sizeof c);
    return c;
}

UNPACK_ROWS uvec signed_above_128(uvec w, uvec signs, const int bit)
{
    const __m512i above = to_i(w | ((uvec){0} + 0x80808080u));
    const __mmask64 minus = _mm512_test_epi8_mask(to_i(signs), _mm512_set1_epi8((char)(1 << bit)));
    return from_i(_mm512_mask_sub_epi8(above, minus, _mm512_setzero_si512(), above)); /* -(128 + w) = 128 - w mod 256 */
}
