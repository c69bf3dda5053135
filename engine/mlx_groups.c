#include "engine/mlx_groups.h"

#include <math.h>
#include <string.h>

#include "engine/quant.h"
#include "engine/types.h"

static uint16_t to_half(uint32_t type, float v)
{
    return type == PP_TYPE_BF16 ? pp_f32_to_bf16(v) : pp_f32_to_f16(v);
}

static float from_half(uint32_t type, uint16_t h)
{
    return type == PP_TYPE_BF16 ? pp_bf16_to_f32(h) : pp_f16_to_f32(h);
}

static void put_bits(uint8_t *to, int64_t i, int bits, unsigned q)
{
    if (bits == 8)
        to[i] = (uint8_t)q;
    else
        to[i / 2] = (uint8_t)(i % 2 ? to[i / 2] | q << 4 : q);
}

void pp_mlx_group_of_floats(int bits, uint32_t type, const float *w, int64_t n, uint8_t *q, uint16_t *scale,
                            uint16_t *bias)
{
    const float top = (float)((1 << bits) - 1);
    float low = w[0], high = w[0];
    bool numbers = isfinite(w[0]);
    for (int64_t i = 1; i < n; i++) {
        low = fminf(low, w[i]); /* if one of the two is NaN, the other */
        high = fmaxf(high, w[i]);
        numbers &= isfinite(w[i]);
    }
    const float edge = fabsf(low) > fabsf(high) ? low : high, other = fabsf(low) > fabsf(high) ? high : low;
    float step = (other - edge) / top;
    const float to_zero = step != 0.0f ? rintf(-edge / step) : 0;
    if (to_zero > 0 && to_zero <= top)
        step = -edge / to_zero;
    *bias = to_half(type, numbers ? edge : NAN);
    *scale = to_half(type, step);
    const float b = from_half(type, *bias), s = from_half(type, *scale);
    if (!isfinite(b) || !isfinite(s))
        return;
    for (int64_t i = 0; i < n; i++) {
        const float v = s != 0.0f ? rintf((w[i] - b) / s) : 0;
        put_bits(q, i, bits, (unsigned)(v < 0 ? 0 : v > top ? top : v));
    }
}

const uint8_t *pp_mlx_group_of_block(uint32_t type, const uint8_t *block, uint8_t *q, uint16_t *scale,
                                     uint16_t *bias)
{
    uint8_t nibbles[16];
    memcpy(scale, block, sizeof *scale);
    if (type == PP_TYPE_Q4_1)
        memcpy(bias, block + 2, sizeof *bias);
    else
        *bias = pp_f32_to_f16(-8 * pp_f16_to_f32(*scale));
    block += type == PP_TYPE_Q4_1 ? 4 : 2;
    memcpy(nibbles, block, sizeof nibbles);
    for (int i = 0; i < 32; i++)
        put_bits(q, i, 4, i < 16 ? nibbles[i] & 15u : (unsigned)nibbles[i - 16] >> 4);
    return block + sizeof nibbles;
}
