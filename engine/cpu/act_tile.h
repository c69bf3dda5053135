/* act_tile.h - a few rows of activations as the streaming AVX2 kernels read them: block by block, so that everything a
 * kernel needs lies at constant distances from one pointer. Private to matmul_avx2.c and matmul_blocks_avx2.c.
 *
 * Quantised weights are unsigned in the packed form (q + 128, q + 8, q + 32); what that adds to an integer sum is
 * taken off beforehand, by starting it at `bias`. */
#ifndef PP_CPU_ACT_TILE_H
#define PP_CPU_ACT_TILE_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "engine/cpu/matmul_sets.h"
#include "engine/cpu/pack.h"
#include "engine/cpu/stream_ahead.h"

/* Blocks times rows: 8 rows of 16384 columns are still one tile, so that weights are read from front to back. */
enum { ACT_TILE_ENTRIES = 4096 };

/* M rows; entry b * M + i belongs to block block0 + b of row i. */
struct act_tile {
    const int8_t *q;      /* [n_blocks, M, 32] */
    const float *d;       /* [n_blocks, M] */
    const float *dsum;    /* [n_blocks, M]: d * sum; where a block has a minimum. [n_blocks, M, 2] where it has two */
    const int32_t *bias;  /* [n_blocks, M], or [n_blocks, M, 2] for Q6_K; of types with two scales in a block
                           * act_sums_of_16 */
    int64_t block0, n_blocks;
    enum pp_stream_way how; /* weights further on are asked for */
};

struct act_tile_memory {
    int8_t q[ACT_TILE_ENTRIES * 32] __attribute__((aligned(64)));
    float d[ACT_TILE_ENTRIES];
    float dsum[ACT_TILE_ENTRIES * 2];
    int32_t bias[ACT_TILE_ENTRIES * 2];
};

_Static_assert(sizeof(struct act_tile_memory) <= PP_MATMUL_SCRATCH, "a thread's scratch");

/* Asks for the cache line that is `distance` bytes behind p. If nothing is there, no harm is done. */
static inline __attribute__((always_inline)) void fetch_line(const void *p, size_t distance)
{
    __builtin_prefetch((const void *)((uintptr_t)p + distance), 0, 3);
}

/* The sums of 16 columns each are not in struct pp_acts: only Q6_K asks for them. The second one is
 * times 4, as pack.h has the weights. */
static inline void act_tile_bias_q6_k(const int8_t *q, int32_t *bias)
{
    /* Sums of 8 bytes each, unsigned: 128 too much per byte. */
    __m256i bytes = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)q), _mm256_set1_epi8(-128));
    __m256i eights = _mm256_sad_epu8(bytes, _mm256_setzero_si256());
    __m256i sums = _mm256_add_epi32(eights, _mm256_unpackhi_epi64(eights, eights));
    bias[0] = -32 * (_mm256_extract_epi32(sums, 0) - 16 * 128);
    bias[1] = -32 * 4 * (_mm256_extract_epi32(sums, 4) - 16 * 128);
}

/* The sums of the first 16 columns of a block (low) and of the others, 16 bits each, times `factor` (16 at most). */
static inline int32_t act_sums_of_16(const int8_t *q, int factor)
{
    /* Sums of 8 bytes each, unsigned: 128 too much per byte. */
    __m256i bytes = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)q), _mm256_set1_epi8(-128));
    __m256i eights = _mm256_sad_epu8(bytes, _mm256_setzero_si256());
    __m256i sums = _mm256_add_epi32(eights, _mm256_unpackhi_epi64(eights, eights));
    uint32_t first = (uint32_t)(factor * (_mm256_extract_epi32(sums, 0) - 16 * 128));
    uint32_t second = (uint32_t)(factor * (_mm256_extract_epi32(sums, 4) - 16 * 128));
    return (int32_t)((first & 0xffff) | second << 16);
}

/* d times these sums. */
static inline void act_dsums_of_16(const int8_t *q, float d, float dsum[2])
{
    const uint32_t both = (uint32_t)act_sums_of_16(q, 1);
    dsum[0] = d * (float)(int16_t)(both & 0xffff);
    dsum[1] = d * (float)(int16_t)(both >> 16);
}

/* What the sums of n blocks need beside the scales; entries lie `step` apart. */
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

/* The m rows of x over as many of the n_blocks from block0 on as there is room for: a multiple of 8, or all. One row is
 * used where it lies. */
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
