/* matmul_blocks_scalar.c - the definition of matrix products for the types with heads and bodies (pack.h): one weight
 * row at a time, with the same formula for all of these types. */
#include <math.h>
#include <string.h>

#include "engine/cpu/matmul_sets.h"
#include "engine/quant.h"

/* The vectors that unpack_body.h is written with; here they hold a single row. */
enum { ROWS = 1 };
typedef uint32_t uvec __attribute__((vector_size(4)));
typedef int32_t ivec __attribute__((vector_size(4)));
typedef float fvec __attribute__((vector_size(4)));
typedef uint8_t bvec __attribute__((vector_size(4)));

static uvec rows_u8(const uint8_t *p)
{
    return (uvec){*p};
}

static ivec rows_s8(const int8_t *p)
{
    return (ivec){*p};
}

static uvec rows_u16(const void *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return (uvec){h};
}

static fvec rows_f16(const void *p)
{
    return (fvec){pp_f16_to_f32((uint16_t)rows_u16(p)[0])};
}

static uvec lookup16(const uint8_t *table, uvec i)
{
    bvec bytes = (bvec)i;
    for (int k = 0; k < 4; k++)
        bytes[k] = table[bytes[k]];
    return (uvec)bytes;
}

static uvec gather(const uint32_t *table, uvec i)
{
    return (uvec){table[i[0]]};
}

static void gather_pairs(const uint64_t *table, uvec i, uvec *to)
{
    to[0] = (uvec){(uint32_t)table[i[0]]};
    to[1] = (uvec){(uint32_t)(table[i[0]] >> 32)};
}

static uvec spread_byte(uvec v, int k)
{
    return (uvec){(v[0] >> 8 * k & 255) * 0x01010101u};
}

#include "engine/cpu/unpack_gathers.h"

#include "engine/cpu/unpack_body.h"

static void unpack_block(uint32_t type, const uint8_t *group, int64_t n_cols, int64_t b, int lane, struct unpacked *o)
{
    const struct packed_at p = packed_at(type, group, n_cols, b);
#define UNPACK_CASE(TYPE, name)                                \
    case PP_TYPE_##TYPE:                                       \
        unpack_one(PP_TYPE_##TYPE, unpack_##name, p, lane, o); \
        make_signed(PP_TYPE_##TYPE, o);                        \
        break;
    switch (type) {
        PP_BLOCK_TYPES(UNPACK_CASE)
    default:
        memset(o, 0, sizeof *o);
    }
#undef UNPACK_CASE
}

/* The weights of an unpacked block times their integer scales. */
static void scaled_weights(const struct unpacked *o, int32_t w[32])
{
    for (int k = 0; k < 32; k++) {
        int8_t one;
        memcpy(&one, (const uint8_t *)&o->w[k / 4] + k % 4, 1);
        w[k] = o->sc[k / 16][0] * one;
    }
}

static int32_t block_sum(const int32_t w[32], const int8_t *q)
{
    int32_t isum = 0;
    for (int k = 0; k < 32; k++)
        isum += w[k] * q[k];
    return isum;
}

static int32_t sum_of(const int8_t *q, int n)
{
    int32_t sum = 0;
    for (int k = 0; k < n; k++)
        sum += q[k];
    return sum;
}

/* acc minus the contribution of a block's minima. */
static float subtract_minima(uint32_t type, const struct unpacked *o, const int8_t *q, float d, float acc)
{
    if (!pp_type_halved(type))
        return fmaf(-o->min[0], d * (float)sum_of(q, 32), acc);
    for (int half = 0; half < 2; half++)
        acc = fmaf(-(o->min[0] * (float)o->m[half][0]), d * (float)sum_of(q + 16 * half, 16), acc);
    return acc;
}

/* Activation rows that are multiplied by a block while it is unpacked. */
enum { ACTS = 32 };

/* The formulas of matmul.h for one weight row: acc[i] is its product with activation row i0 + i, i < m <= ACTS. */
static void dots(uint32_t type, const uint8_t *group, int lane, int64_t n_cols, const struct pp_acts *x, int64_t i0,
                 int64_t m, float *acc)
{
    const int together = pp_type_twins(type) ? 2 : 1;
    for (int64_t i = 0; i < m; i++)
        acc[i] = 0;
    for (int64_t b = 0; b < n_cols / 32; b += together) {
        struct unpacked o[2];
        int32_t w[2][32];
        for (int t = 0; t < together; t++) {
            unpack_block(type, group, n_cols, b + t, lane, &o[t]);
            scaled_weights(&o[t], w[t]);
        }
        for (int64_t i = 0; i < m; i++) {
            const int8_t *q = x->q + (i0 + i) * x->q_stride + 32 * b;
            const float d = x->d[(i0 + i) * x->b_stride + b];
            int32_t isum = 0;
            for (int t = 0; t < together; t++)
                isum += block_sum(w[t], q + 32 * t);
            acc[i] = fmaf(o[0].d[0] * d, (float)isum, acc[i]);
            for (int t = 0; t < together && pp_type_has_min(type); t++)
                acc[i] = subtract_minima(type, &o[t], q + 32 * t, d, acc[i]);
        }
    }
}

void pp_matmul_blocks_scalar(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                             float *y, int64_t y_stride, void *scratch)
{
    (void)scratch;
    for (int64_t row = row0; row < row1; row++)
        for (int64_t i0 = 0, n; i0 < m; i0 += n) {
            float acc[ACTS];
            n = m - i0 < ACTS ? m - i0 : ACTS;
            dots(w->type, pp_pack_group(w, row), (int)(row % PP_GROUP_ROWS), w->n_cols, x, i0, n, acc);
            for (int64_t i = 0; i < n; i++)
                y[(i0 + i) * y_stride + row] = acc[i];
        }
}
