/* open_gathers.h - code books looked up as open_body.h asks for, where a vector of indexes is what a lookup takes. The
 * including file has defined gather(table, i), which gives table[i] of 32 bits for every lane of a uvec, and
 * gather_pairs(table, i, to) for tables of 64 bits: the first 4 bytes in to[0], then to[1]. Private to engine/cpu. */
#ifndef PP_CPU_OPEN_GATHERS_H
#define PP_CPU_OPEN_GATHERS_H

#define LOOKUP static inline __attribute__((always_inline, unused))

/* Byte k of each lane at p. */
LOOKUP uvec indexes_at(const uint8_t *p, const int k)
{
    uvec v;
    memcpy(&v, p, sizeof v);
    return v >> 8 * k & 255;
}

LOOKUP uvec gather_bytes(const uint32_t *table, const uint8_t *p, const int k)
{
    return gather(table, indexes_at(p, k));
}

LOOKUP void gather_pairs_bytes(const uint64_t *table, const uint8_t *p, const int k, uvec *to)
{
    gather_pairs(table, indexes_at(p, k), to);
}

#endif
