/* unpack_units_body.h - the routines of unpack_units.h, one pair for each type with heads and bodies (pack.h). The
 * including file has included unpack_body.h, and has defined PP_UNIT_FNS, the name of the table that is made here;
 * PP_UNIT_TYPES, the list of its types, if the table is not for all of them; and
 *   ivec dot4(sums, w, q)  sums + the products of each lane's 4 unsigned bytes w with the 4 signed ones at q
 *   fvec fma_rows(a, b, c), fnma_rows(a, b, c)  a b + c and -a b + c, rounded once
 *   uvec signed_above_128(w, signs, bit)  128 + w, or 128 - w where `bit` of the byte of signs is set; bytes w < 128 */
#include "engine/cpu/unpack_units.h"
#include "engine/cpu/stream_ahead.h"

#ifndef PP_UNIT_TYPES
#define PP_UNIT_TYPES PP_BLOCK_TYPES
#endif

UNPACK void put_floats(uint8_t *to, fvec v)
{
    memcpy(__builtin_assume_aligned(to, 4 * ROWS), &v, sizeof v);
}

UNPACK fvec as_floats(ivec v)
{
    return __builtin_convertvector(v, fvec);
}

/* Applies the signs of types with code books, and adds 128 (unpacked_offset()). The others' w is unsigned already. */
UNPACK void make_unsigned(const uint32_t type, struct unpacked *o)
{
    if (!pp_type_signs(type))
        return;
    UNPACK_UNROLL for (int v = 0; v < SLICES; v++)
        o->w[v] = signed_above_128(o->w[v], o->signs, PP_SIGN_BIT(v));
}

typedef uint16_t hvec __attribute__((vector_size(4 * ROWS)));

/* Every byte times its row's factor, modulo 256. */
UNPACK uvec bytes_times(uvec bytes, ivec factor)
{
    const uvec odd = (uvec){0} + 0xff00ff00u;
    const hvec both = (hvec)(((uvec)factor & 0xffff) * 0x10001u);
    return ((uvec)((hvec)(bytes & odd) * both) & odd) | ((uvec)((hvec)bytes * both) & ~odd);
}

/* Multiplies the weights by their integer scales, if scales_fold(): for Q3_K with the sign reversed and 128 added. */
UNPACK void fold_scales(const uint32_t type, struct unpacked *o)
{
    if (!scales_fold(type))
        return;
    UNPACK_UNROLL for (int v = 0; v < SLICES; v++)
    {
        if (type == PP_TYPE_Q3_K)
            o->w[v] = bytes_times((uvec)((uint8_t)pp_type_offset(type) - (bvec)o->w[v]), o->sc[v / 4]) ^ bytes_of(128);
        else
            o->w[v] = bytes_times(o->w[v], o->sc[v / 4]);
    }
    if (type == PP_TYPE_Q3_K)
        o->d = -o->d;
}

/* Writes a vector's slices and scales of a block. */
UNPACK void put_unpacked(const uint32_t type, struct unpacked *o, uint8_t *to)
{
    const enum kind kind = unit_kind(type);
    make_unsigned(type, o);
    fold_scales(type, o);
    UNPACK_UNROLL for (int v = 0; v < SLICES; v++)
        memcpy(__builtin_assume_aligned(to + at_unpacked(kind, v, 0, ROWS), 4 * ROWS), o->w + v, sizeof *o->w);
    const fvec s0 = as_floats(o->sc[0]), s1 = as_floats(o->sc[1]);
    const fvec scale[MAX_SCALES] = {
        o->d,
        kind == HALVED ? s0 : kind == TWO_MINS ? o->min * as_floats(o->m[0]) : o->min,
        kind == HALVED ? s1 : o->min * as_floats(o->m[1]),
        s0 * -MAGIC,
    };
    UNPACK_UNROLL for (int k = 0; k < n_scales(kind); k++)
        put_floats(to + at_unpacked(kind, SLICES + k, 0, ROWS), scale[k]);
}

#define UNPACK_UNIT(TYPE, name)                                                                                        \
    static void unpack_unit_##name(const uint8_t *group, int64_t n_cols, int64_t b, int64_t n, int part, uint8_t *to,  \
                                   size_t step)                                                                        \
    {                                                                                                                  \
        const int row = (int)ROWS == (int)PP_GROUP_ROWS ? 0 : ROWS * part;                                             \
        for (int64_t end = b + n; b < end; b++, to += step) {                                                          \
            struct unpacked o;                                                                                         \
            unpack_one(PP_TYPE_##TYPE, unpack_##name, packed_at(PP_TYPE_##TYPE, group, n_cols, b), row, &o);           \
            put_unpacked(PP_TYPE_##TYPE, &o, to);                                                                      \
        }                                                                                                              \
    }
PP_UNIT_TYPES(UNPACK_UNIT)
#undef UNPACK_UNIT

/* --- few activation rows ------------------------------------------------------------------------------------------ */

/* A block of ROWS weight rows, unpacked for the product with activation rows. Integer scales are converted to floats:
 * these hold them and their products with the sums exactly, and scaling then takes half as many instructions. */
struct few_weights {
    struct unpacked o;
    fvec sc[2], min[2];
    fvec less_magic; /* -MAGIC * sc[0] */
};

UNPACK void few_scales(const enum kind kind, struct few_weights *w)
{
    if (!is_halved(kind))
        return;
    UNPACK_UNROLL for (int half = 0; half < 2; half++)
    {
        w->sc[half] = as_floats(w->o.sc[half]);
        w->min[half] = w->o.min * as_floats(w->o.m[half]);
    }
    w->less_magic = w->sc[0] * -MAGIC;
}

UNPACK fvec float_bits(ivec v)
{
    fvec f;
    memcpy(&f, &v, sizeof f);
    return f;
}

/* The sum of block b's products, an integer, with the integer scales of its halves applied. */
UNPACK fvec few_sum(const uint32_t type, const struct few_weights *w, const int8_t *q, const struct side *s, int b)
{
    const enum kind kind = kind_of(type);
    ivec sum[2] = {{0}, {0}};
    if (kind == PLAIN || kind == HALVED)
        sum[0] += s->bias[0][b];
    if (kind == HALVED)
        sum[1] += s->bias[1][b];
    UNPACK_UNROLL for (int v = 0; v < SLICES; v++)
        sum[v / 4] = dot4(sum[v / 4], w->o.w[v], q + 4 * v);
    if (kind == HALVED)
        return fma_rows(as_floats(sum[1]), w->sc[1], fma_rows(float_bits(sum[0]), w->sc[0], w->less_magic));
    if (kind == HALVED_MINS)
        return fma_rows(as_floats(sum[1]), w->sc[1], as_floats(sum[0]) * w->sc[0]);
    return as_floats(sum[0] + sum[1]);
}

/* acc + the contribution of block b of a chunk, or, if `together` is 2, of the twins b and b + 1, whose weights are
 * w[0] and w[1]. q: the activations of block b. */
UNPACK fvec few_product(const uint32_t type, const struct few_weights *w, const int8_t *q, const struct side *s, int b,
                        fvec acc, const int together)
{
    const enum kind kind = kind_of(type);
    const fvec d = (fvec){0} + s->d[b];
    fvec sum = few_sum(type, w, q, s, b);
    if (together == 2)
        sum += few_sum(type, w + 1, q + 32, s, b + 1);
    acc = fma_rows(w->o.d * d, sum, acc);
    if (kind == WITH_MIN)
        acc = fnma_rows(w->o.min, (fvec){0} + s->dsum[b], acc);
    UNPACK_UNROLL for (int k = 0; kind == HALVED_MINS && k < 4; k++)
        acc = fnma_rows(w[k / 2].min[k % 2], (fvec){0} + s->half[k % 2][b + k / 2], acc);
    return acc;
}

/* Multiplies blocks b0 + from to b0 + to - 1 of ROWS weight rows, from `row` of the group on, by m activation rows. M:
 * m if that is a constant, else 0. */
UNPACK void few_blocks(const uint32_t type, unpack_block_fn *unpack, const uint8_t *group, int64_t n_cols, int64_t b0,
                       int64_t from, int64_t to, int row, const struct few_job *job, const int M)
{
    enum { MOST = ROWS / 4 };
    const int64_t m = M ? M : job->m;
    const int together = is_twins(kind_of(type)) ? 2 : 1;
    fvec acc[MOST];
    for (int64_t i = 0; i < m; i++)
        memcpy(acc + i, job->acc[i] + row, sizeof *acc);
    struct indexes n[SUBS][INDEXES];
    const bool ahead = !PP_GATHERS && is_joined(type);
    for (int64_t b = from; b < to; b += together) {
        struct few_weights w[2];
        if (ahead && (b == from || (b0 + b) % SUBS == 0))
            join_ahead(type, group, n_cols, b0 + b, b0 + to, row, n);
        UNPACK_UNROLL for (int t = 0; t < together; t++)
        {
            if (row == 0)
                stream_blocks_ahead(type, group, n_cols, b0 + b + t, job->how);
            struct packed_at p = packed_at(type, group, n_cols, b0 + b + t);
            p.indexes = n[p.sub];
            if (ahead)
                unpack(p, row, &w[t].o);
            else
                unpack_one(type, unpack, p, row, &w[t].o);
            make_unsigned(type, &w[t].o);
            few_scales(kind_of(type), &w[t]);
        }
        const struct side *side = job->side + b / CHUNK * m;
        for (int64_t i = 0; i < m; i++)
            acc[i] = few_product(type, w, job->q + i * job->q_stride + 32 * b, side + i, (int)(b % CHUNK), acc[i],
                                 together);
    }
    for (int64_t i = 0; i < m; i++)
        memcpy(job->acc[i] + row, acc + i, sizeof *acc);
}

UNPACK void few_group(const uint32_t type, unpack_block_fn *unpack, const uint8_t *group, int64_t n_cols, int64_t b,
                      int64_t n, const struct few_job *job)
{
    /* A vector with fewer rows than a group takes a chunk of columns at a time, so that the cache lines, which hold all
     * rows, are still in the L1 cache when the next vector needs them. */
    const int64_t step = (int)ROWS == (int)PP_GROUP_ROWS ? n : CHUNK;
    for (int64_t from = 0; from < n; from += step)
        for (int row = 0; row < PP_GROUP_ROWS; row += ROWS) {
            const int64_t to = n - from < step ? n : from + step;
            if (job->m == 1)
                few_blocks(type, unpack, group, n_cols, b, from, to, row, job, 1);
            else
                few_blocks(type, unpack, group, n_cols, b, from, to, row, job, 0);
        }
}

#include "engine/cpu/few_ternary.h"

#define FEW(TYPE, name)                                                                                                \
    static void few_##name(const uint8_t *group, int64_t n_cols, int64_t b, int64_t n, const struct few_job *job)      \
    {                                                                                                                  \
        if (PP_TYPE_##TYPE == PP_TYPE_TQ1_0)                                                                           \
            few_ternary(group, n_cols, b, n, job);                                                                     \
        else                                                                                                           \
            few_group(PP_TYPE_##TYPE, unpack_##name, group, n_cols, b, n, job);                                        \
    }
PP_UNIT_TYPES(FEW)
#undef FEW

#define ENTRY(TYPE, name) [PP_TYPE_##TYPE] = {unpack_unit_##name, few_##name},
const struct pp_unit_fns PP_UNIT_FNS[PP_TYPE_LIMIT] = {PP_UNIT_TYPES(ENTRY)};
#undef ENTRY
