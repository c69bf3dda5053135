/* matmul_blocks_scalar.c - the definition of the products of the types that have heads and bodies (pack.h): one weight
 * row and one activation row at a time, one formula for all types. */
#include <math.h>
#include <string.h>

#include "engine/cpu/matmul_sets.h"
#include "engine/quant.h"

/* Vectors of one row. */
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

#include "engine/cpu/open_gathers.h"

#include "engine/cpu/open_body.h"

static void open_block(uint32_t type, const uint8_t *group, int64_t n_cols, int64_t b, int lane, struct opened *o)
{
    const struct packed_at p = packed_at(type, group, n_cols, b);
#define PP_OPEN(TYPE, name)        \
    case PP_TYPE_##TYPE:           \
        open_one(PP_TYPE_##TYPE, open_##name, p, lane, o); \
        open_signed(PP_TYPE_##TYPE, o); \
        break;
    switch (type) {
        PP_BLOCK_TYPES(PP_OPEN)
    default:
        memset(o, 0, sizeof *o);
    }
#undef PP_OPEN
}

/* The whole-number sum of an opened block. */
static int32_t block_sum(const struct opened *o, const int8_t *q)
{
    int32_t isum = 0;
    for (int k = 0; k < 32; k++) {
        int8_t w;
        memcpy(&w, (const uint8_t *)&o->w[k / 4] + k % 4, 1);
        isum += o->sc[k / 16][0] * w * q[k];
    }
    return isum;
}

static int32_t sum_of(const int8_t *q, int n)
{
    int32_t sum = 0;
    for (int k = 0; k < n; k++)
        sum += q[k];
    return sum;
}

/* What a block's minima take from acc. */
static float less_minima(uint32_t type, const struct opened *o, const int8_t *q, float d, float acc)
{
    if (!pp_type_halved(type))
        return fmaf(-o->min[0], d * (float)sum_of(q, 32), acc);
    for (int half = 0; half < 2; half++)
        acc = fmaf(-(o->min[0] * (float)o->m[half][0]), d * (float)sum_of(q + 16 * half, 16), acc);
    return acc;
}

/* See matmul.h. q, d: of one activation row. */
static float dot(uint32_t type, const uint8_t *group, int lane, int64_t n_cols, const int8_t *q, const float *d)
{
    const int together = pp_type_twins(type) ? 2 : 1;
    float acc = 0;
    for (int64_t b = 0; b < n_cols / 32; b += together, q += 32 * together) {
        struct opened o[2];
        int32_t isum = 0;
        for (int t = 0; t < together; t++) {
            open_block(type, group, n_cols, b + t, lane, &o[t]);
            isum += block_sum(&o[t], q + 32 * t);
        }
        acc = fmaf(o[0].d[0] * d[b], (float)isum, acc);
        for (int t = 0; t < together && pp_type_has_min(type); t++)
            acc = less_minima(type, &o[t], q + 32 * t, d[b], acc);
    }
    return acc;
}

void pp_matmul_blocks_scalar(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                             float *y, int64_t y_stride, void *scratch)
{
    (void)scratch;
    for (int64_t row = row0; row < row1; row++)
        for (int64_t i = 0; i < m; i++)
            y[i * y_stride + row] = dot(w->type, pp_pack_group(w, row), (int)(row % PP_GROUP_ROWS), w->n_cols,
                                        x->q + i * x->q_stride, x->d + i * x->b_stride);
}
