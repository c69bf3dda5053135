/* soft_amx.h - the tile instructions of AMX in plain C, so that kernels written for them can be tested bit by bit
 * on any machine. Include it after <immintrin.h> (or let the compiler do so with -include): it takes the places of
 * the intrinsics _tile_* of the same names. What the hardware answers with an invalid-opcode exception (a tile
 * without a shape, shapes that do not fit, twice the same tile) ends the program here.
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

/* 64 bytes: palette, start row, 14 reserved bytes, 16 words of bytes a row, 16 bytes of rows. */
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

SOFT_AMX void soft_tile_dpb(int dst, int a, int b, int a_is_signed, int b_is_signed)
{
    soft_amx_check_product(dst, a, b);
    struct soft_tile *d = &pp_soft_tiles[dst];
    const struct soft_tile *s1 = &pp_soft_tiles[a], *s2 = &pp_soft_tiles[b];
    for (int m = 0; m < d->rows; m++)
        for (int n = 0; n < d->colsb / 4; n++) {
            uint32_t sum; /* wraps around */
            memcpy(&sum, d->row[m] + 4 * n, sizeof sum);
            for (int k = 0; k < s1->colsb / 4; k++)
                for (int i = 0; i < 4; i++) {
                    uint8_t x = s1->row[m][4 * k + i], y = s2->row[k][4 * n + i];
                    sum += (uint32_t)((a_is_signed ? (int8_t)x : x) * (b_is_signed ? (int8_t)y : y));
                }
            memcpy(d->row[m] + 4 * n, &sum, sizeof sum);
        }
}

/* --- bfloat16 ----------------------------------------------------------------------------------------------------- */

SOFT_AMX float soft_bf16_at(const uint8_t *p) /* a subnormal reads as a zero of its sign */
{
    uint16_t half;
    memcpy(&half, p, sizeof half);
    uint32_t bits = (uint32_t)(half & 0x7f80 ? half : half & 0x8000) << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

SOFT_AMX float soft_daz(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}

/* a * b + c, rounded to nearest even; subnormal inputs and results are zeros. A result is subnormal if it is one after
 * rounding to 24 bits with an unbounded exponent, so 2^-126 may stand for less: the double below is exact wherever that
 * matters, because products of bfloat16 have 16 bits. */
SOFT_AMX float soft_fma_ftz(float a, float b, float c)
{
    float r = fmaf(a, b, soft_daz(c));
    if (fabsf(r) == 0x1p-126f && fabs((double)a * (double)b + (double)soft_daz(c)) < 0x1p-126 - 0x1p-151)
        return copysignf(0, r);
    return soft_daz(r);
}

/* Even and odd elements are summed apart, each in ascending order from 0; then odd is added to even, and that to
 * dst. */
SOFT_AMX void soft_tile_dpbf16ps(int dst, int a, int b)
{
    soft_amx_check_product(dst, a, b);
    struct soft_tile *d = &pp_soft_tiles[dst];
    const struct soft_tile *s1 = &pp_soft_tiles[a], *s2 = &pp_soft_tiles[b];
    for (int m = 0; m < d->rows; m++)
        for (int n = 0; n < d->colsb / 4; n++) {
            float even = 0, odd = 0, sum;
            for (int k = 0; k < s1->colsb / 4; k++) {
                even = soft_fma_ftz(soft_bf16_at(s1->row[m] + 4 * k), soft_bf16_at(s2->row[k] + 4 * n), even);
                odd = soft_fma_ftz(soft_bf16_at(s1->row[m] + 4 * k + 2), soft_bf16_at(s2->row[k] + 4 * n + 2), odd);
            }
            memcpy(&sum, d->row[m] + 4 * n, sizeof sum);
            sum = soft_fma_ftz(soft_fma_ftz(even, 1, odd), 1, sum);
            memcpy(d->row[m] + 4 * n, &sum, sizeof sum);
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
