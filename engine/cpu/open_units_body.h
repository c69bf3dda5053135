/* open_units_body.h - the routines of open_body.h that fill units (open_units.h), one per type that has heads and
 * bodies. The including file has defined what open_body.h asks for and included it, and the name of its table,
 * PP_OPENERS. */
#include "engine/cpu/open_units.h"

OPEN void put_floats(uint8_t *to, fvec v)
{
    memcpy(__builtin_assume_aligned(to, 4 * ROWS), &v, sizeof v);
}

OPEN fvec as_floats(ivec v)
{
    return __builtin_convertvector(v, fvec);
}

/* A vector's share of a block. */
OPEN void put_opened(const uint32_t type, struct opened *o, uint8_t *to)
{
    const enum kind kind = kind_of(type);
    if (pp_type_signs(type)) {
        open_signed(type, o);
        OPEN_UNROLL for (int v = 0; v < SLICES; v++)
            o->w[v] ^= bytes_of(128);
    }
    OPEN_UNROLL for (int v = 0; v < SLICES; v++)
        memcpy(__builtin_assume_aligned(to + at_opened(kind, v, 0, ROWS), 4 * ROWS), o->w + v, sizeof *o->w);
    const fvec s0 = as_floats(o->sc[0]), s1 = as_floats(o->sc[1]);
    const fvec scale[MAX_SCALES] = {
        o->d,
        kind == WITH_MIN ? o->min : s0,
        s1,
        s0 * -MAGIC,
        o->min,
        as_floats(o->m[0]),
        as_floats(o->m[1]),
    };
    OPEN_UNROLL for (int k = 0; k < n_scales(kind); k++)
        put_floats(to + at_opened(kind, SLICES + k, 0, ROWS), scale[k]);
}

#define OPEN_UNIT(TYPE, name)                                                                                          \
    static void open_unit_##name(const uint8_t *group, int64_t n_cols, int64_t b, int64_t n, int part, uint8_t *to,    \
                                 size_t step)                                                                          \
    {                                                                                                                  \
        const int row = (int)ROWS == (int)PP_GROUP_ROWS ? 0 : ROWS * part;                                             \
        for (int64_t end = b + n; b < end; b++, to += step) {                                                          \
            struct opened o;                                                                                           \
            open_##name(packed_at(PP_TYPE_##TYPE, group, n_cols, b), row, &o);                                         \
            put_opened(PP_TYPE_##TYPE, &o, to);                                                                        \
        }                                                                                                              \
    }
PP_BLOCK_TYPES(OPEN_UNIT)
#undef OPEN_UNIT

#define ENTRY(TYPE, name) [PP_TYPE_##TYPE] = open_unit_##name,
pp_open_fn *const PP_OPENERS[PP_TYPE_LIMIT] = {PP_BLOCK_TYPES(ENTRY)};
#undef ENTRY
