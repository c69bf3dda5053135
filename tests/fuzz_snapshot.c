/* fuzz_snapshot.c - a saved KV cache, restored into a sequence of a tiny model that then computes on.
 *
 * The first byte says how much of the rest is made right first, so that not only the checksums are tested:
 * 1 the checksum of the header, 2 those of the pages, 4 the key that says what the cache belongs to. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/hostile.h"

enum { REPAIR_HEADER = 1, REPAIR_PAGES = 2, REPAIR_KEY = 4 };
enum { HEADER = 56, HASH_AT = 40, ALIGNMENT = 64, PAGE_TOKENS = 64 }; /* pippin-formats(5) */

static const struct pp_sha256 identity = {{1, 2, 3}};

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    tiny_engine();
    return 0;
}

static uint64_t number(const uint8_t *p, int bytes)
{
    uint64_t v = 0;
    for (int i = bytes - 1; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

static void put_hash(uint8_t *p, struct pp_hash128 h)
{
    for (int i = 0; i < 8; i++) {
        p[i] = (uint8_t)(h.lo >> (8 * i));
        p[8 + i] = (uint8_t)(h.hi >> (8 * i));
    }
}

/* Puts our own key in place of as many bytes as the file says it has one of, if the length fits. */
static void repair_key(struct pp_seq *s, uint8_t *key, uint64_t len)
{
    struct pp_buf ours = {0};
    if (pp_seq_key(s, &identity, &ours, NULL) == PP_OK && ours.len == len)
        memcpy(key, ours.data, ours.len);
    pp_buf_free(&ours);
}

static void repair(struct pp_seq *s, uint8_t *data, size_t size, unsigned what)
{
    if (size < HEADER)
        return;
    uint64_t key = number(data + 12, 4), tokens = number(data + 16, 8), page = number(data + 32, 8);
    uint64_t n = tokens / PAGE_TOKENS + (tokens % PAGE_TOKENS != 0);
    if (key > size || tokens > size || page > size)
        return;
    uint64_t hashes = HEADER + key + 4 * tokens, body = (hashes + 16 * n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (body > size)
        return;
    if (what & REPAIR_KEY)
        repair_key(s, data + HEADER, key);
    for (uint64_t i = 0; (what & REPAIR_PAGES) && i < n && body + (i + 1) * page <= size; i++)
        put_hash(data + hashes + 16 * i, pp_hash128(data + body + i * page, page));
    if (what & REPAIR_HEADER)
        put_hash(data + HASH_AT, pp_hash128(data + HEADER, body - HEADER));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pp_seq *s;
    struct pp_error err;
    if (size < 1 || pp_seq_new(tiny_engine(), &s, &err))
        return 0;
    uint8_t *copy = pp_malloc(size - 1); /* of exactly this size, for the address sanitizer */
    if (copy) {
        memcpy(copy, data + 1, size - 1);
        repair(s, copy, size - 1, data[0]);
        if (pp_snapshot_load(s, &identity, copy, size - 1, &err) == PP_OK)
            tiny_step(s, 1);
        else if (pp_seq_len(s) != 0)
            abort();
        tiny_step(s, 2); /* also after a refusal the sequence must be good for use */
        if (pp_seq_len(s) == 0)
            abort();
    }
    pp_free(copy);
    pp_seq_free(s);
    return 0;
}
