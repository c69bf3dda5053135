/* act_tile.h - a few rows of activations as the streaming AVX2 kernels read them: block by block, so that everything a
 * kernel needs lies at constant distances from one pointer. Private to matmul_avx2.c and matmul_blocks_avx2.c.
 *
 * Quantised weights are unsigned in the packed form (q + 128, q + 8, q + 32). The sum of these offsets times the
 * activations is subtracted in advance, by starting the integer sum at `bias`. */
#ifndef PP_CPU_ACT_TILE_H
#define PP_CPU_ACT_TILE_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "engine/cpu/matmul_sets.h"
#include "engine/cpu/pack.h"
#include "engine/cpu/stream_ahead.h"

/* Blocks times rows. 8 rows of 16384 columns are still one tile, which reads weights from front to back. */
enum { ACT_TILE_ENTRIES = 4096 };

/* M rows; entry b * M + i belongs to block block0 + b of row i. */
struct act_tile {
    const int8_t *q;      /* [n_blocks, M, 32] */
    const float *d;       /* [n_blocks, M] */
    const float *dsum;    /* [n_blocks, M]: d * sum, if blocks have a minimum; [n_blocks, M, 2] if they have two */
    const int32_t *bias;  /* [n_blocks, M], for Q6_K [n_blocks, M, 2]; for other types with two scales per block the
                           * output of act_sums_of_16() */
    int64_t block0, n_blocks;
    enum pp_stream_way how; /* how weights are prefetched */
};

struct act_tile_memory {
    int8_t q[ACT_TILE_ENTRIES * 32] __attribute__((aligned(64)));
    float d[ACT_TILE_ENTRIES];
    float dsum[ACT_TILE_ENTRIES * 2];
    int32_t bias[ACT_TILE_ENTRIES * 2];
};

_Static_assert(sizeof(struct act_tile_memory) <= PP_MATMUL_SCRATCH, "a thread's scratch");

/* Prefetches the cache line `distance` bytes after p. The address may be invalid: a prefetch never faults. */
static inline __attribute__((always_inline)) void fetch_line(const void *p, size_t distance)
{
    __builtin_prefetch((const void *)((uintptr_t)p + distance), 0, 3);
}

/* The two biases of a block of Q6_K, whose halves have a scale each. The second is multiplied by 4, like the weights
 * that the packed form gives for the second half (pack.h). Sums over 16 columns are not in struct pp_acts. */
static inline void act_tile_bias_q6_k(const int8_t *q, int32_t *bias)
{
    /* vpsadbw adds 8 unsigned bytes: each is 128 too large. */
    __m256i bytes = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)q), _mm256_set1_epi8(-128));
    __m256i eights = _mm256_sad_epu8(bytes, _mm256_setzero_si256());
    __m256i sums = _mm256_add_epi32(eights, _mm256_unpackhi_epi64(eights, eights));
    bias[0] = -32 * (_mm256_extract_epi32(sums, 0) - 16 * 128);
    bias[1] = -32 * 4 * (_mm256_extract_epi32(sums, 4) - 16 * 128);
}

/* The sums over the two halves of a block times `factor` (at most 16 in magnitude), 16 bits each: that of the first 16
 * columns in the low half of the result. */
static inline int32_t act_sums_of_16(const int8_t *q, int factor)
{
    /* vpsadbw adds 8 unsigned bytes: each is 128 too large. */
    __m256i bytes = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)q), _mm256_set1_epi8(-128));
    __m256i eights = _mm256_sad_epu8(bytes, _mm256_setzero_si256());
    __m256i sums = _mm256_add_epi32(eights, _mm256_unpackhi_epi64(eights, eights));
    uint32_t first = (uint32_t)(factor * (_mm256_extract_epi32(sums, 0) - 16 * 128));
    uint32_t second = (uint32_t)(factor * (_mm256_extract_epi32(sums, 4) - 16 * 128));
    return (int32_t)((first & 0xffff) | second << 16);
}

/* d times the sums over the two halves of a block. */
static inline void act_dsums_of_16(const int8_t *q, float d, float dsum[2])
{
    const uint32_t both = (uint32_t)act_sums_of_16(q, 1);
    dsum[0] = d * (float)(int16_t)(both & 0xffff);
    dsum[1] = d * (float)(int16_t)(both >> 16);
}

/* dsum or bias of n blocks, whichever the type needs; entries are `step` apart. */
static inline void act_tile_extras(uint32_t type, const int8_t *q, const float *d, const int32_t *sum, int64_t n,
                                   int64_t step, float *dsum, int32_t *bias)
{
    const int offset = type == PP_TYPE_Q8_0 ? 128 : type == PP_TYPE_Q4_0 ? 8 : pp_type_offset(type);
    if (type == PP_TYPE_Q6_K) {
        for (int64_t b = 0; b < n; b++)
            act_tile_bias_q6_k(q + 32 * b, bias + 2 * b * step);
    } else if (pp_type_halved(type) && pp_type_has_min(type)) {
        for (int64_t b = 0; b < n; b++)
            act_dsums_of_16(q + 32 * b, d[b], dsum + 2 * b * step);
    } else if (pp_type_halved(type)) {
        for (int64_t b = 0; b < n; b++)
            bias[b * step] = act_sums_of_16(q + 32 * b, -offset);
    } else if (type == PP_TYPE_Q4_K || pp_type_has_min(type)) {
        for (int64_t b = 0; b < n; b++)
            dsum[b * step] = d[b] * (float)sum[b];
    } else {
        for (int64_t b = 0; b < n; b++)
            bias[b * step] = -offset * sum[b];
    }
}

/* A tile of the m rows of x, over as many of the n_blocks from block0 on as fit: a multiple of 8, or all of them. A
 * single row is not copied. */
static inline struct act_tile act_tile_make(uint32_t type, const struct pp_acts *x, int64_t m, int64_t block0,
                                            int64_t n_blocks, struct act_tile_memory *memory)
{
    const int64_t most = ACT_TILE_ENTRIES / m / 8 * 8, n = n_blocks < most ? n_blocks : most;
    struct act_tile t = {memory->q, memory->d, memory->dsum, memory->bias, block0, n, stream_way_of(x, m)};
    for (int64_t i = 0; i < m; i++) {
        const int8_t *q = x->q + i * x->q_stride + 32 * block0;
        const float *d = x->d + i * x->b_stride + block0;
        const int32_t *sum = x->sum + i * x->b_stride + block0;
        if (m == 1) {
            t.q = q;
            t.d = d;
        } else {
            for (int64_t b = 0; b < n; b++) {
                memcpy(memory->q + 32 * (b * m + i), q + 32 * b, 32);
                memory->d[b * m + i] = d[b];
            }
        }
        const int64_t biases = type == PP_TYPE_Q6_K ? 2 : 1, mins = pp_type_halved(type) ? 2 : 1;
        act_tile_extras(type, q, d, sum, n, m, memory->dsum + mins * i, memory->bias + biases * i);
    }
    return t;
}

#endif
