/* quantize_body.h - quantises activations (formula in matmul.h), written once over two functions that the including
 * file has defined for a whole block, x float [32]:
 *   uint32_t max_magnitude_bits(x)     the bits of the largest magnitude; as integers, bits of magnitudes are ordered
 *                                      like these, with NaN above infinity
 *   int32_t round_block(x, factor, q)  q = x * factor, rounded to nearest even; returns the sum of q
 * and, if it defines PP_QUANTIZE_FOUR, a third:
 *   bool quantize_four(x, twins, q, d, sum)  quantises four blocks; returns false without doing so if the inverse of a
 *                                      scale is infinite, NaN or 0
 * Private to the kernels of engine/cpu. */
#include <stdint.h>
#include <string.h>

#include "engine/cpu/matmul.h"

#define QUANTIZE static inline __attribute__((always_inline))

/* Quantises the blocks that share a scale: one block, or twins. matmul_scalar.c has the plain definition. */
QUANTIZE void quantize_blocks(const float *x, const int n_blocks, int8_t *q, float *d, int32_t *sum)
{
    const uint32_t first = max_magnitude_bits(x), second = n_blocks == 2 ? max_magnitude_bits(x + PP_ACT_BLOCK) : 0;
    const uint32_t bits = first > second ? first : second;
    float most;
    memcpy(&most, &bits, sizeof most);
    float scale = bits < 0x7f800000 ? most / 127.0f : __builtin_nanf("");
    const float inverse = 1 / scale;
    if (__builtin_isinf(inverse))
        scale = 0;
    for (int i = 0; i < n_blocks; i++) {
        d[i] = scale;
        if (__builtin_isfinite(inverse)) {
            sum[i] = round_block(x + PP_ACT_BLOCK * i, inverse, q + PP_ACT_BLOCK * i);
        } else {
            memset(q + PP_ACT_BLOCK * i, 0, PP_ACT_BLOCK);
            sum[i] = 0;
        }
    }
}

/* The last values, which do not fill a block or twins, are padded with zeros. */
static void quantize_rest(const float *x, int64_t n, int8_t *q, float *d, int32_t *sum)
{
    float rest[2 * PP_ACT_BLOCK] = {0};
    memcpy(rest, x, (size_t)n * sizeof *x);
    if (n > PP_ACT_BLOCK)
        quantize_blocks(rest, 2, q, d, sum);
    else
        quantize_blocks(rest, 1, q, d, sum);
}

static void quantize(const float *x, int64_t n, bool twins, int8_t *q, float *d, int32_t *sum)
{
    int64_t at = 0;
#ifdef PP_QUANTIZE_FOUR
    for (; at + 4 * PP_ACT_BLOCK <= n; at += 4 * PP_ACT_BLOCK, d += 4, sum += 4)
        if (!quantize_four(x + at, twins, q + at, d, sum))
            for (int b = 0, n_blocks = twins ? 2 : 1; b < 4; b += n_blocks)
                quantize_blocks(x + at + b * PP_ACT_BLOCK, n_blocks, q + at + b * PP_ACT_BLOCK, d + b, sum + b);
#endif
    for (; twins && at + 2 * PP_ACT_BLOCK <= n; at += 2 * PP_ACT_BLOCK, d += 2, sum += 2)
        quantize_blocks(x + at, 2, q + at, d, sum);
    for (; !twins && at + PP_ACT_BLOCK <= n; at += PP_ACT_BLOCK, d++, sum++)
        quantize_blocks(x + at, 1, q + at, d, sum);
    if (at < n)
        quantize_rest(x + at, n - at, q + at, d, sum);
}
