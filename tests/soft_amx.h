/* soft_amx.h - the tile instructions of AMX in plain C, so that kernels written for them can be tested bit by bit on
 * any machine. Include it after <immintrin.h> (or let the compiler do so with -include): it replaces the intrinsics
 * _tile_* by functions of the same names. Where the hardware raises an invalid-opcode exception (a tile without a
 * shape, shapes that do not fit, the same tile twice), the program ends. Columns are processed eight at a time, which
 * is much faster than one by one; AVX2 and FMA are the real instructions.
 *
 * Follows the operation sections of the Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2
 * (LDTILECFG, TILELOADD, TILESTORED, TILEZERO, TDPBSSD/TDPBSUD/TDPBUSD/TDPBUUD, TDPBF16PS). */
#ifndef PP_TESTS_SOFT_AMX_H
#define PP_TESTS_SOFT_AMX_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct soft_tile {
    int rows, colsb; /* 0: not configured */
    uint8_t row[16][64];
};

/* One set of tiles per thread, as in the hardware. Weak: one copy for all files that include this. */
extern __thread struct soft_tile pp_soft_tiles[8];
__attribute__((weak)) __thread struct soft_tile pp_soft_tiles[8];

#define SOFT_AMX static inline __attribute__((unused))

SOFT_AMX void soft_amx_need(int ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "soft_amx: invalid opcode: %s\n", what);
        abort();
    }
}

SOFT_AMX void soft_tile_release(void)
{
    memset(pp_soft_tiles, 0, sizeof pp_soft_tiles);
}

/* config: 64 bytes: palette, start row, 14 reserved bytes, 16 words with the bytes of each row, 16 bytes with the
 * numbers of rows. */
SOFT_AMX void soft_tile_loadconfig(const void *config)
{
    const uint8_t *c = config;
    soft_tile_release();
    if (c[0] == 0)
        return;
    soft_amx_need(c[0] == 1, "palette");
    for (int i = 2; i < 16; i++)
        soft_amx_need(c[i] == 0, "reserved bytes of the configuration");
    for (int t = 0; t < 16; t++) {
        uint16_t colsb;
        memcpy(&colsb, c + 16 + 2 * t, sizeof colsb);
        int rows = c[48 + t];
        soft_amx_need(colsb <= 64 && rows <= 16 && (colsb == 0) == (rows == 0), "shape in the configuration");
        soft_amx_need(t < 8 || rows == 0, "more than 8 tiles");
        if (t < 8) {
            pp_soft_tiles[t].rows = rows;
            pp_soft_tiles[t].colsb = colsb;
        }
    }
}

SOFT_AMX struct soft_tile *soft_tile_at(int t)
{
    soft_amx_need(t >= 0 && t < 8 && pp_soft_tiles[t].rows != 0, "a tile that is not configured");
    return &pp_soft_tiles[t];
}

SOFT_AMX void soft_tile_zero(int t)
{
    memset(soft_tile_at(t)->row, 0, sizeof soft_tile_at(t)->row);
}

SOFT_AMX void soft_tile_loadd(int t, const void *base, long stride)
{
    struct soft_tile *tile = soft_tile_at(t);
    soft_tile_zero(t);
    for (int r = 0; r < tile->rows; r++)
        memcpy(tile->row[r], (const uint8_t *)base + r * stride, (size_t)tile->colsb);
}

SOFT_AMX void soft_tile_stored(int t, void *base, long stride)
{
    const struct soft_tile *tile = soft_tile_at(t);
    for (int r = 0; r < tile->rows; r++)
        memcpy((uint8_t *)base + r * stride, tile->row[r], (size_t)tile->colsb);
}

/* dst [rows, colsb / 4] of 32 bits; a [rows, K / 4] and b [K / 4, colsb / 4] of 4 bytes (or 2 halves) each. */
SOFT_AMX void soft_amx_check_product(int dst, int a, int b)
{
    const struct soft_tile *d = soft_tile_at(dst), *s1 = soft_tile_at(a), *s2 = soft_tile_at(b);
    soft_amx_need(dst != a && dst != b && a != b, "the same tile twice");
    soft_amx_need(d->colsb % 4 == 0 && s1->colsb % 4 == 0 && s2->colsb % 4 == 0, "columns of odd bytes");
    soft_amx_need(d->rows == s1->rows && d->colsb == s2->colsb && s1->colsb / 4 == s2->rows, "shapes that do not fit");
}

/* Eight columns are processed at a time: a tile's row has two such halves. */
enum { SOFT_HALF = 32, SOFT_HALVES = 2 };
typedef int32_t soft_ints __attribute__((vector_size(SOFT_HALF)));
typedef uint32_t soft_sums __attribute__((vector_size(SOFT_HALF))); /* sums wrap around */
typedef float soft_floats __attribute__((vector_size(SOFT_HALF)));

SOFT_AMX soft_sums soft_half(const uint8_t *row, int half)
{
    soft_sums v;
    memcpy(&v, row + SOFT_HALF * half, sizeof v);
    return v;
}

/* The i-th byte of the four that each column has. */
SOFT_AMX soft_ints soft_amx_bytes(soft_sums four, int i, int is_signed)
{
    four <<= 24 - 8 * i;
    return is_signed ? (soft_ints)four >> 24 : (soft_ints)(four >> 24);
}

/* Bytes past the last column of a tile's row are never used. */
SOFT_AMX void soft_tile_dpb(int dst, int a, int b, int a_is_signed, int b_is_signed)
{
    soft_amx_check_product(dst, a, b);
    struct soft_tile *d = &pp_soft_tiles[dst];
    const struct soft_tile *s1 = &pp_soft_tiles[a], *s2 = &pp_soft_tiles[b];
    for (int half = 0; half < SOFT_HALVES; half++) {
        soft_ints y[16][4];
        for (int k = 0; k < s2->rows; k++)
            for (int i = 0; i < 4; i++)
                y[k][i] = soft_amx_bytes(soft_half(s2->row[k], half), i, b_is_signed);
        for (int m = 0; m < d->rows; m++) {
            soft_sums sum = soft_half(d->row[m], half);
            for (int k = 0; k < s2->rows; k++)
                for (int i = 0; i < 4; i++) {
                    const uint8_t x = s1->row[m][4 * k + i];
                    sum += (soft_sums)(y[k][i] * (a_is_signed ? (int8_t)x : x));
                }
            memcpy(d->row[m] + SOFT_HALF * half, &sum, sizeof sum);
        }
    }
}

/* --- bfloat16 ----------------------------------------------------------------------------------------------------- */

/* Replaces subnormals by zeros of the same sign; a subnormal bfloat16 is a subnormal float, too. */
SOFT_AMX soft_floats soft_daz(soft_floats x)
{
    const soft_sums bits = (soft_sums)x, normal = (soft_sums)((bits & 0x7f800000) != 0);
    return (soft_floats)(bits & (normal | 0x80000000));
}

/* The even (0) or odd (1) one of the two numbers that each column has, as floats. */
SOFT_AMX soft_floats soft_bf16(soft_sums two, int odd)
{
    return soft_daz((soft_floats)(odd ? two & 0xffff0000 : two << 16));
}

/* a * b + c, rounded to nearest even; subnormal inputs and results become zeros. A result is subnormal if it is so
 * after rounding to 24 bits with an unbounded exponent, so a result of 2^-126 may have been smaller before. The sum in
 * double decides that: it is exact wherever it matters, because products of bfloat16 have 16 bits. */
SOFT_AMX soft_floats soft_fma_ftz(soft_floats a, soft_floats b, soft_floats c)
{
    c = soft_daz(c);
    soft_floats r = (soft_floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
    const soft_ints least = ((soft_sums)r & 0x7fffffff) == 0x00800000;
    for (int n = 0; _mm256_movemask_ps((__m256)least) >> n; n++)
        if (least[n] && fabs((double)a[n] * (double)b[n] + (double)c[n]) < 0x1p-126 - 0x1p-151)
            r[n] = copysignf(0, r[n]);
    return soft_daz(r);
}

/* Even and odd elements are summed apart, each in ascending order from 0; then odd is added to even, and that to
 * dst. */
SOFT_AMX void soft_tile_dpbf16ps(int dst, int a, int b)
{
    soft_amx_check_product(dst, a, b);
    struct soft_tile *d = &pp_soft_tiles[dst];
    const struct soft_tile *s1 = &pp_soft_tiles[a], *s2 = &pp_soft_tiles[b];
    const soft_floats none = {0}, one = none + 1;
    for (int half = 0; half < SOFT_HALVES; half++) {
        soft_floats y[16][2];
        for (int k = 0; k < s2->rows; k++)
            for (int odd = 0; odd < 2; odd++)
                y[k][odd] = soft_bf16(soft_half(s2->row[k], half), odd);
        for (int m = 0; m < d->rows; m++) {
            soft_floats sum[2] = {none, none}, x[SOFT_HALVES][2];
            for (int odd = 0; odd < 2; odd++) {
                for (int from = 0; from < SOFT_HALVES; from++)
                    x[from][odd] = soft_bf16(soft_half(s1->row[m], from), odd);
                for (int k = 0; k < s2->rows; k++)
                    sum[odd] = soft_fma_ftz(none + x[k / 8][odd][k % 8], y[k][odd], sum[odd]);
            }
            const soft_floats both = soft_fma_ftz(sum[0], one, sum[1]);
            const soft_floats all = soft_fma_ftz(both, one, (soft_floats)soft_half(d->row[m], half));
            memcpy(d->row[m] + SOFT_HALF * half, &all, sizeof all);
        }
    }
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbssd
#undef _tile_dpbsud
#undef _tile_dpbusd
#undef _tile_dpbuud
#undef _tile_dpbf16ps
#define _tile_loadconfig(config) soft_tile_loadconfig(config)
#define _tile_release() soft_tile_release()
#define _tile_loadd(dst, base, stride) soft_tile_loadd(dst, base, stride)
#define _tile_stream_loadd(dst, base, stride) soft_tile_loadd(dst, base, stride)
#define _tile_stored(src, base, stride) soft_tile_stored(src, base, stride)
#define _tile_zero(dst) soft_tile_zero(dst)
#define _tile_dpbssd(dst, a, b) soft_tile_dpb(dst, a, b, 1, 1)
#define _tile_dpbsud(dst, a, b) soft_tile_dpb(dst, a, b, 1, 0)
#define _tile_dpbusd(dst, a, b) soft_tile_dpb(dst, a, b, 0, 1)
#define _tile_dpbuud(dst, a, b) soft_tile_dpb(dst, a, b, 0, 0)
#define _tile_dpbf16ps(dst, a, b) soft_tile_dpbf16ps(dst, a, b)

#endif
