/* hash.h - two hashes: SHA-256 (nettle) where integrity is promised, XXH3-128 (xxHash) for page chains. */
#ifndef PP_BASE_HASH_H
#define PP_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

struct pp_sha256 {
    uint8_t bytes[32];
};

struct pp_hash128 {
    uint64_t lo, hi;
};

struct pp_sha256 pp_sha256(const void *data, size_t n);
void pp_sha256_hex(const struct pp_sha256 *h, char out[65]); /* lower case, NUL-terminated */
struct pp_hash128 pp_hash128(const void *data, size_t n);
uint64_t pp_hash64(const void *data, size_t n);

/* A SHA-256 over pieces. */
struct pp_sha256_stream {
    uint64_t opaque[16]; /* room for nettle's context; checked in hash.c */
};
void pp_sha256_begin(struct pp_sha256_stream *s);
void pp_sha256_update(struct pp_sha256_stream *s, const void *data, size_t n);
struct pp_sha256 pp_sha256_end(struct pp_sha256_stream *s);

#endif
