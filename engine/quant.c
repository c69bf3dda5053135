#include "engine/quant.h"

#include <math.h>
#include <string.h>

#include "engine/quant_blocks.h"

/* --- 16-bit floats ------------------------------------------------------------------------------------------------ */

static float float_of_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint32_t bits_of_float(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

float pp_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = h >> 10 & 0x1fu;
    uint32_t mantissa = h & 0x3ffu;
    if (exponent == 0x1f)
        /* signalling NaNs become quiet */
        return float_of_bits(sign | 0x7f800000u | (mantissa ? 0x400000u | mantissa << 13 : 0u));
    if (exponent == 0) {
        float magnitude = (float)mantissa * 0x1p-24f; /* exact: a subnormal half is a normal float */
        return float_of_bits(sign | bits_of_float(magnitude));
    }
    return float_of_bits(sign | (exponent + 112u) << 23 | mantissa << 13);
}

/* v >> shift, rounded to nearest, ties to even; 1 <= shift <= 31. */
static uint32_t shift_round_even(uint32_t v, unsigned shift)
{
    uint32_t half = 1u << (shift - 1);
    uint32_t odd = v >> shift & 1u;
    return (v + half - 1u + odd) >> shift;
}

uint16_t pp_f32_to_f16(float f)
{
    uint32_t bits = bits_of_float(f);
    uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t half;
    if (magnitude > 0x7f800000u) {
        half = 0x7e00u | (magnitude >> 13 & 0x3ffu);
    } else if (magnitude >= 0x47800000u) { /* 65536 and more overflow */
        half = 0x7c00u;
    } else if (magnitude >= 0x38800000u) { /* normal halves; a carry correctly raises the exponent */
        half = shift_round_even(magnitude - (112u << 23), 13);
    } else if (magnitude >= 0x33000000u) { /* 2^-25 and above: subnormal halves, in units of 2^-24 */
        uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
        half = shift_round_even(mantissa, 126u - (magnitude >> 23));
    } else {
        half = 0;
    }
    return (uint16_t)(sign | half);
}

/* yes ? a : b without a branch, so that loops are vectorised. */
static uint32_t pick(bool yes, uint32_t a, uint32_t b)
{
    const uint32_t mask = 0u - (uint32_t)yes;
    return (a & mask) | (b & ~mask);
}

void pp_floats_to_f16(const float *x, uint16_t *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const uint32_t bits = bits_of_float(x[i]), magnitude = bits & 0x7fffffffu;
        const uint32_t nan = 0x7e00u | (magnitude >> 13 & 0x3ffu);
        const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
        /* from 1/2 to 1 floats are 2^-24 apart, so the addition rounds to subnormal halves */
        const uint32_t subnormal = bits_of_float(float_of_bits(magnitude) + 0.5f) - bits_of_float(0.5f);
        uint32_t half = pick((int32_t)magnitude >= 0x38800000, normal, subnormal);
        half = pick((int32_t)magnitude >= 0x47800000, 0x7c00u, half);
        half = pick((int32_t)magnitude > 0x7f800000, nan, half);
        out[i] = (uint16_t)((bits >> 16 & 0x8000u) | half);
    }
}

static void floats_of_f16(const uint8_t *p, float *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, p + 2 * i, sizeof h);
        const uint32_t exponent = h & 0x7c00u, mantissa = h & 0x3ffu;
        const uint32_t subnormal = bits_of_float((float)(int32_t)mantissa * 0x1p-24f);
        const uint32_t normal = ((uint32_t)(h & 0x7fffu) << 13) + (112u << 23);
        const uint32_t special = 0x7f800000u | mantissa << 13 | pick(mantissa != 0, 0x400000u, 0u); /* quiet NaNs */
        uint32_t bits = pick(exponent == 0, subnormal, normal);
        bits = pick(exponent == 0x7c00u, special, bits);
        out[i] = float_of_bits(bits | (uint32_t)(h & 0x8000u) << 16);
    }
}

float pp_bf16_to_f32(uint16_t h)
{
    return float_of_bits((uint32_t)h << 16);
}

uint16_t pp_f32_to_bf16(float f)
{
    uint32_t bits = bits_of_float(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)(shift_round_even(bits & 0x7fffffffu, 16) | (bits >> 16 & 0x8000u));
}

/* --- to float ----------------------------------------------------------------------------------------------------- */

void pp_q4_k_scale_min(const uint8_t scales[12], int b, uint8_t *scale, uint8_t *min)
{
    if (b < 4) {
        *scale = scales[b] & 63u;
        *min = scales[b + 4] & 63u;
    } else {
        *scale = (uint8_t)((scales[b + 4] & 15u) | (scales[b - 4] >> 6 & 3u) << 4);
        *min = (uint8_t)(scales[b + 4] >> 4 | (scales[b] >> 6) << 4);
    }
}

/* The 256 values q (0..63) in the order of the weights. */
static void unpack_q6_k(const struct pp_block_q6_k *b, uint8_t q[256])
{
    for (int half = 0; half < 2; half++) {
        const uint8_t *ql = b->ql + 64 * half;
        const uint8_t *qh = b->qh + 32 * half;
        uint8_t *out = q + 128 * half;
        for (int i = 0; i < 32; i++) {
            out[i] = (uint8_t)((ql[i] & 15) | (qh[i] & 3) << 4);
            out[i + 32] = (uint8_t)((ql[i + 32] & 15) | (qh[i] >> 2 & 3) << 4);
            out[i + 64] = (uint8_t)(ql[i] >> 4 | (qh[i] >> 4 & 3) << 4);
            out[i + 96] = (uint8_t)(ql[i + 32] >> 4 | (qh[i] >> 6) << 4);
        }
    }
}

static void dequantize_q8_0(const struct pp_block_q8_0 *b, float *dst)
{
    float d = pp_f16_to_f32(b->d);
    for (int i = 0; i < 32; i++)
        dst[i] = (float)b->q[i] * d;
}

static void dequantize_q4_0(const struct pp_block_q4_0 *b, float *dst)
{
    float d = pp_f16_to_f32(b->d);
    for (int i = 0; i < 16; i++) {
        dst[i] = (float)((b->q[i] & 15) - 8) * d;
        dst[i + 16] = (float)((b->q[i] >> 4) - 8) * d;
    }
}

static void dequantize_q4_k(const struct pp_block_q4_k *b, float *dst)
{
    float d = pp_f16_to_f32(b->d), dmin = pp_f16_to_f32(b->dmin);
    for (int sub = 0; sub < 8; sub++) {
        uint8_t scale, min;
        pp_q4_k_scale_min(b->scales, sub, &scale, &min);
        float ds = d * (float)scale, dm = dmin * (float)min;
        const uint8_t *q = b->q + 32 * (sub / 2);
        for (int i = 0; i < 32; i++)
            dst[32 * sub + i] = ds * (float)(sub % 2 ? q[i] >> 4 : q[i] & 15) - dm;
    }
}

static void dequantize_q6_k(const struct pp_block_q6_k *b, float *dst)
{
    float d = pp_f16_to_f32(b->d);
    uint8_t q[256];
    unpack_q6_k(b, q);
    for (int i = 0; i < 256; i++)
        dst[i] = d * (float)b->scales[i / 16] * (float)(q[i] - 32);
}

/* Types with the common form of quant_blocks.h. In this order of operations all but the last subtraction is exact. */
static void dequantize_unpacked(uint32_t type, const uint8_t *p, float *dst, int64_t n)
{
    const struct pp_type_info *info = pp_type_info(type);
    struct pp_unpacked u;
    for (int64_t at = 0; at < n; at += 32) {
        if (!pp_unpack_block(type, p + at / info->block_elements * info->block_bytes,
                             (int)(at % info->block_elements) / 32, &u))
            return;
        for (int i = 0; i < 32; i++) {
            float w = u.d * (float)u.scale[i / 16] * (float)u.w[i];
            dst[at + i] = u.has_min ? w - u.min * (float)u.m[i / 16] : w;
        }
    }
}

void pp_dequantize_row(uint32_t type, const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    /* Blocks are copied out first, as rows of a mapped file may be unaligned. */
    switch (type) {
    case PP_TYPE_F32:
        memcpy(dst, src, (size_t)n * sizeof *dst);
        break;
    case PP_TYPE_I32: /* exact up to 2^24 */
        for (int64_t i = 0; i < n; i++) {
            int32_t whole;
            memcpy(&whole, p + 4 * i, sizeof whole);
            dst[i] = (float)whole;
        }
        break;
    case PP_TYPE_F16:
        floats_of_f16(p, dst, n);
        break;
    case PP_TYPE_BF16:
        for (int64_t i = 0; i < n; i++) {
            uint16_t h;
            memcpy(&h, p + 2 * i, sizeof h);
            dst[i] = float_of_bits((uint32_t)h << 16);
        }
        break;
    case PP_TYPE_Q8_0:
        for (int64_t i = 0; i < n; i += 32, p += sizeof(struct pp_block_q8_0)) {
            struct pp_block_q8_0 b;
            memcpy(&b, p, sizeof b);
            dequantize_q8_0(&b, dst + i);
        }
        break;
    case PP_TYPE_Q4_0:
        for (int64_t i = 0; i < n; i += 32, p += sizeof(struct pp_block_q4_0)) {
            struct pp_block_q4_0 b;
            memcpy(&b, p, sizeof b);
            dequantize_q4_0(&b, dst + i);
        }
        break;
    case PP_TYPE_Q4_K:
        for (int64_t i = 0; i < n; i += 256, p += sizeof(struct pp_block_q4_k)) {
            struct pp_block_q4_k b;
            memcpy(&b, p, sizeof b);
            dequantize_q4_k(&b, dst + i);
        }
        break;
    case PP_TYPE_Q6_K:
        for (int64_t i = 0; i < n; i += 256, p += sizeof(struct pp_block_q6_k)) {
            struct pp_block_q6_k b;
            memcpy(&b, p, sizeof b);
            dequantize_q6_k(&b, dst + i);
        }
        break;
    default:
        dequantize_unpacked(type, p, dst, n);
    }
}

/* --- checks ------------------------------------------------------------------------------------------------------- */

/* Whether none of n 16-bit floats at p, p + stride, ... has an exponent of all ones. */
static bool finite16(const uint8_t *p, size_t stride, int64_t n, uint16_t exponent_mask)
{
    bool finite = true;
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, p + (size_t)i * stride, sizeof h);
        finite &= (h & exponent_mask) != exponent_mask;
    }
    return finite;
}

/* Whether none of the 16- or 32-bit floats in n bytes at p has an exponent of all ones; eight bytes at a time.
 * exponents: their bits in each lane; one: the lowest of those. Adding it to an exponent of all ones, and to no other,
 * carries into the lane's sign bit. */
static bool finite_lanes(const uint8_t *p, size_t n, uint64_t exponents, uint64_t one)
{
    const uint64_t signs = (exponents + one) & ~exponents;
    uint64_t odd = 0, x = 0;
    for (size_t i = 0; i + sizeof x <= n; i += sizeof x) {
        memcpy(&x, p + i, sizeof x);
        odd |= (x & exponents) + one;
    }
    x = 0;
    memcpy(&x, p + n / sizeof x * sizeof x, n % sizeof x);
    odd |= (x & exponents) + one;
    return !(odd & signs);
}

/* For the remaining types: where the 16-bit scales of a block begin, and how many follow each other. */
static const struct {
    uint8_t at, n;
} half_scales[PP_TYPE_LIMIT] = {
    [PP_TYPE_Q8_0] = {offsetof(struct pp_block_q8_0, d), 1},
    [PP_TYPE_Q4_0] = {offsetof(struct pp_block_q4_0, d), 1},
    [PP_TYPE_Q4_1] = {offsetof(struct pp_block_q4_1, d), 2},
    [PP_TYPE_Q5_0] = {offsetof(struct pp_block_q5_0, d), 1},
    [PP_TYPE_Q5_1] = {offsetof(struct pp_block_q5_1, d), 2},
    [PP_TYPE_Q2_K] = {offsetof(struct pp_block_q2_k, d), 2},
    [PP_TYPE_Q3_K] = {offsetof(struct pp_block_q3_k, d), 1},
    [PP_TYPE_Q4_K] = {offsetof(struct pp_block_q4_k, d), 2},
    [PP_TYPE_Q5_K] = {offsetof(struct pp_block_q5_k, d), 2},
    [PP_TYPE_Q6_K] = {offsetof(struct pp_block_q6_k, d), 1},
    [PP_TYPE_IQ1_S] = {offsetof(struct pp_block_iq1_s, d), 1},
    [PP_TYPE_IQ2_XXS] = {offsetof(struct pp_block_iq2_xxs, d), 1},
    [PP_TYPE_IQ2_XS] = {offsetof(struct pp_block_iq2_xs, d), 1},
    [PP_TYPE_IQ2_S] = {offsetof(struct pp_block_iq2_s, d), 1},
    [PP_TYPE_IQ3_XXS] = {offsetof(struct pp_block_iq3_xxs, d), 1},
    [PP_TYPE_IQ3_S] = {offsetof(struct pp_block_iq3_s, d), 1},
    [PP_TYPE_IQ4_NL] = {offsetof(struct pp_block_iq4_nl, d), 1},
    [PP_TYPE_IQ4_XS] = {offsetof(struct pp_block_iq4_xs, d), 1},
    [PP_TYPE_TQ1_0] = {offsetof(struct pp_block_tq1_0, d), 1},
    [PP_TYPE_TQ2_0] = {offsetof(struct pp_block_tq2_0, d), 1},
};

void pp_set_block_scales(uint32_t type, void *p, float d, float min)
{
    uint8_t *block = p;
    const uint16_t halves[2] = {pp_f32_to_f16(d), pp_f32_to_f16(min)};
    if (type == PP_TYPE_MXFP4) {
        block[0] = (uint8_t)(d > 0 ? 128 + ilogbf(d * 1.41421356f) : 0);
    } else if (type == PP_TYPE_IQ1_M) { /* the scale is in the highest bits of four words */
        uint8_t *scales = block + offsetof(struct pp_block_iq1_m, scales);
        for (int k = 0; k < 4; k++)
            scales[2 * k + 1] = (uint8_t)((scales[2 * k + 1] & 15) | (halves[0] >> 4 * k & 15) << 4);
    } else if (half_scales[type].n) {
        memcpy(block + half_scales[type].at, halves, 2 * (size_t)half_scales[type].n);
    }
}

/* Refuses exponents with which weights overflow, and 255, which is NaN. */
static bool finite_mxfp4(const uint8_t *p, int64_t n)
{
    bool finite = true;
    for (int64_t i = 0; i < n; i++)
        finite &= p[(size_t)i * sizeof(struct pp_block_mxfp4)] <= 252;
    return finite;
}

/* The scale is in four pieces. */
static bool finite_iq1_m(const uint8_t *p, int64_t n)
{
    bool finite = true;
    for (int64_t i = 0; i < n; i++, p += sizeof(struct pp_block_iq1_m)) {
        const uint8_t *scales = p + offsetof(struct pp_block_iq1_m, scales);
        finite &= !((scales[7] & 0x70) == 0x70 && (scales[5] & 0xc0) == 0xc0);
    }
    return finite;
}

bool pp_row_finite(uint32_t type, const void *src, int64_t n)
{
    enum { HALF = 0x7c00 };
    const uint8_t *p = src;
    switch (type) {
    case PP_TYPE_F32:
        return finite_lanes(p, 4 * (size_t)n, 0x7f8000007f800000u, 0x0080000000800000u);
    case PP_TYPE_F16:
        return finite_lanes(p, 2 * (size_t)n, 0x7c007c007c007c00u, 0x0400040004000400u);
    case PP_TYPE_BF16:
        return finite_lanes(p, 2 * (size_t)n, 0x7f807f807f807f80u, 0x0080008000800080u);
    case PP_TYPE_MXFP4:
        return finite_mxfp4(p, n / 32);
    case PP_TYPE_IQ1_M:
        return finite_iq1_m(p, n / 256);
    default:
        break;
    }
    const struct pp_type_info *info = pp_type_info(type);
    bool finite = type < PP_TYPE_LIMIT && half_scales[type].n > 0;
    for (int i = 0; finite && i < half_scales[type].n; i++)
        finite = finite16(p + half_scales[type].at + 2 * i, (size_t)info->block_bytes, n / info->block_elements, HALF);
    return finite;
}
