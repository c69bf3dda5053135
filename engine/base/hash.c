#include "engine/base/hash.h"

#include <nettle/sha2.h>
#include <xxhash.h>
#if defined __x86_64__ && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h> /* the same hashes with the vectors that this CPU has: more than twice as fast */
#endif

_Static_assert(sizeof(struct sha256_ctx) <= sizeof(struct pp_sha256_stream), "nettle's context grew");

void pp_sha256_begin(struct pp_sha256_stream *s)
{
    sha256_init((struct sha256_ctx *)s);
}

void pp_sha256_update(struct pp_sha256_stream *s, const void *data, size_t n)
{
    sha256_update((struct sha256_ctx *)s, n, data);
}

struct pp_sha256 pp_sha256_end(struct pp_sha256_stream *s)
{
    struct pp_sha256 h;
    sha256_digest((struct sha256_ctx *)s, sizeof h.bytes, h.bytes);
    return h;
}

struct pp_sha256 pp_sha256(const void *data, size_t n)
{
    struct pp_sha256_stream s;
    pp_sha256_begin(&s);
    pp_sha256_update(&s, data, n);
    return pp_sha256_end(&s);
}

void pp_sha256_hex(const struct pp_sha256 *h, char out[65])
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < 32; i++) {
        out[2 * i] = digits[h->bytes[i] >> 4];
        out[2 * i + 1] = digits[h->bytes[i] & 15];
    }
    out[64] = 0;
}

struct pp_hash128 pp_hash128(const void *data, size_t n)
{
    XXH128_hash_t h = XXH3_128bits(data, n);
    return (struct pp_hash128){.lo = h.low64, .hi = h.high64};
}

uint64_t pp_hash64(const void *data, size_t n)
{
    return XXH3_64bits(data, n);
}
