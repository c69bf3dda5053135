/* unpack_gathers.h - the code book lookups that unpack_body.h asks for, for processors on which a lookup takes a vector
 * of indices. The including file has defined gather(table, i), table[i] (32 bits) for every lane of a uvec, and
 * gather_pairs(table, i, to) for tables of 64 bits: the first 4 bytes of each entry go to to[0], the others to to[1].
 * Private to engine/cpu. */
#ifndef PP_CPU_UNPACK_GATHERS_H
#define PP_CPU_UNPACK_GATHERS_H

#define LOOKUP static inline __attribute__((always_inline, unused))

LOOKUP uvec gather_rows(const uint32_t *table, const uint8_t *p)
{
    return gather(table, rows_u8(p));
}

LOOKUP void gather_pairs_rows(const uint64_t *table, const uint8_t *p, uvec *to)
{
    gather_pairs(table, rows_u8(p), to);
}

struct indexes {
    uvec even, odd; /* of each lane: indices 0 and 2, and indices 1 and 3, 16 bits each */
};

LOOKUP void join_indexes(uvec low, uvec high, struct indexes *to)
{
    const uvec bytes = (uvec){0} + 0x00ff00ffu;
    to->even = (low & bytes) | (high & bytes) << 8;
    to->odd = (low >> 8 & bytes) | (high & ~bytes);
}

LOOKUP uvec joined(const struct indexes *n, const int k)
{
    const uvec two = k % 2 ? n->odd : n->even;
    return k < 2 ? two & 0xffff : two >> 16;
}

LOOKUP uvec gather_joined(const uint32_t *table, const struct indexes *n, const int k)
{
    return gather(table, joined(n, k));
}

LOOKUP void gather_pairs_joined(const uint64_t *table, const struct indexes *n, const int k, uvec *to)
{
    gather_pairs(table, joined(n, k), to);
}

#endif
