/* vec_neon.h - the NEON version of vec.h, with four registers per vector. Included only by vec.h. */
#ifndef PP_CPU_VEC_NEON_H
#define PP_CPU_VEC_NEON_H

#include <arm_neon.h>
#include <stdbool.h>

typedef struct { float32x4_t r[4]; } v16;
typedef struct { int32x4_t r[4]; } i16x32;

#define EACH_PART _Pragma("GCC unroll 4") for (int j = 0; j < 4; j++)

static inline v16 v_load(const float *p) { v16 a; EACH_PART a.r[j] = vld1q_f32(p + 4 * j); return a; }
static inline void v_store(float *p, v16 a) { EACH_PART vst1q_f32(p + 4 * j, a.r[j]); }
static inline v16 v_set1(float x) { v16 a; EACH_PART a.r[j] = vdupq_n_f32(x); return a; }
static inline v16 v_add(v16 a, v16 b) { EACH_PART a.r[j] = vaddq_f32(a.r[j], b.r[j]); return a; }
static inline v16 v_sub(v16 a, v16 b) { EACH_PART a.r[j] = vsubq_f32(a.r[j], b.r[j]); return a; }
static inline v16 v_mul(v16 a, v16 b) { EACH_PART a.r[j] = vmulq_f32(a.r[j], b.r[j]); return a; }
static inline v16 v_div(v16 a, v16 b) { EACH_PART a.r[j] = vdivq_f32(a.r[j], b.r[j]); return a; }
static inline v16 v_fma(v16 a, v16 b, v16 c) { EACH_PART c.r[j] = vfmaq_f32(c.r[j], a.r[j], b.r[j]); return c; }
/* Comparisons and selections, because vmaxq and vminq treat NaN differently from the definition. */
static inline v16 v_max(v16 a, v16 b)
{
    EACH_PART b.r[j] = vbslq_f32(vcgtq_f32(a.r[j], b.r[j]), a.r[j], b.r[j]);
    return b;
}
static inline v16 v_min(v16 a, v16 b)
{
    EACH_PART b.r[j] = vbslq_f32(vcltq_f32(a.r[j], b.r[j]), a.r[j], b.r[j]);
    return b;
}
static inline v16 v_load_f16(const uint16_t *p)
{
    v16 a;
    EACH_PART a.r[j] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * j)));
    return a;
}
static inline v16 v_times_pow2(v16 a, v16 n)
{
    EACH_PART a.r[j] = vreinterpretq_f32_s32(
        vaddq_s32(vreinterpretq_s32_f32(a.r[j]), vshlq_n_s32(vreinterpretq_s32_f32(n.r[j]), 23)));
    return a;
}
static inline v16 v_fraction(v16 x) { EACH_PART x.r[j] = vsubq_f32(x.r[j], vrndmq_f32(x.r[j])); return x; }
static inline v16 v_times_floor_pow2(v16 a, v16 x, v16 least)
{
    EACH_PART
    {
        int32x4_t e = vshlq_n_s32(vcvtmq_s32_f32(x.r[j]), 23);
        uint32x4_t product = vreinterpretq_u32_s32(vaddq_s32(vreinterpretq_s32_f32(a.r[j]), e));
        a.r[j] = vreinterpretq_f32_u32(vandq_u32(product, vcgeq_f32(x.r[j], least.r[j])));
    }
    return a;
}
static inline v16 v_zero_where_less(v16 x, v16 limit, v16 y)
{
    EACH_PART y.r[j] =
        vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(y.r[j]), vcltq_f32(x.r[j], limit.r[j])));
    return y;
}
static inline v16 v_keep(v16 a, int from, int to, float fill)
{
    float t[LANES];
    v_store(t, a);
    for (int l = 0; l < LANES; l++)
        t[l] = l >= from && l < to ? t[l] : fill;
    return v_load(t);
}
static inline i16x32 i_set1(int32_t x) { i16x32 a; EACH_PART a.r[j] = vdupq_n_s32(x); return a; }

/* Either 64 bytes for dot products, which are signed (128 was subtracted if `shifted`); or the first values of 16 lanes
 * and then their second values, as 16 bits. */
typedef struct { int8x16_t r[4]; bool shifted; } k16;
enum { DOT_STEPS = 8 }; /* four bytes each */

static inline k16 dot_load_u8(const uint8_t *k, int step)
{
    k16 v = {.shifted = true};
    EACH_PART v.r[j] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(k + step * 64 + 16 * j), vdupq_n_u8(0x80)));
    return v;
}
static inline k16 dot_load_u4(const uint8_t *k, int step)
{
    k16 v = {.shifted = false};
    EACH_PART
    {
        uint8x16_t x = vld1q_u8(k + step / 2 * 64 + 16 * j);
        v.r[j] = vreinterpretq_s8_u8(step % 2 ? vshrq_n_u8(x, 4) : vandq_u8(x, vdupq_n_u8(15)));
    }
    return v;
}
/* acc + the sum of four products per lane */
static inline int32x4_t dot4(int32x4_t acc, int8x16_t a, int8x16_t b)
{
#if defined(__ARM_FEATURE_DOTPROD)
    return vdotq_s32(acc, a, b);
#else
    /* The sum of two products, at most 2 * 128 * 127, fits 16 bits. */
    return vpadalq_s16(acc, vpaddq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b)));
#endif
}
static inline i16x32 i_dot(i16x32 acc, k16 k, int32_t q)
{
    int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(q));
    if (k.shifted) { /* adds 128 q as -128 * -q; q is never -128 */
        int32x4_t shift = dot4(vdupq_n_s32(0), vdupq_n_s8(-128), vnegq_s8(x));
        EACH_PART acc.r[j] = vaddq_s32(acc.r[j], shift);
    }
    EACH_PART acc.r[j] = dot4(acc.r[j], k.r[j], x);
    return acc;
}

/* The first and second values of the lanes, widened to 16 bits. */
static inline k16 pair_widen(int8x16_t first, int8x16_t second)
{
    k16 v = {.shifted = false};
    v.r[0] = vreinterpretq_s8_s16(vmovl_s8(vget_low_s8(first)));
    v.r[1] = vreinterpretq_s8_s16(vmovl_high_s8(first));
    v.r[2] = vreinterpretq_s8_s16(vmovl_s8(vget_low_s8(second)));
    v.r[3] = vreinterpretq_s8_s16(vmovl_high_s8(second));
    return v;
}
static inline k16 pair_load_i8(const uint8_t *p)
{
    uint8x16x2_t x = vld2q_u8(p);
    return pair_widen(vreinterpretq_s8_u8(x.val[0]), vreinterpretq_s8_u8(x.val[1]));
}
static inline k16 pair_load_u4(const uint8_t *p, int high)
{
    uint8x16x2_t x = vld2q_u8(p);
    int8x16_t half[2];
    for (int i = 0; i < 2; i++) {
        uint8x16_t four = high ? vshrq_n_u8(x.val[i], 4) : vandq_u8(x.val[i], vdupq_n_u8(15));
        half[i] = vsubq_s8(vreinterpretq_s8_u8(four), vdupq_n_s8(8));
    }
    return pair_widen(half[0], half[1]);
}
static inline i16x32 i_pair(i16x32 acc, k16 v, int32_t w)
{
    int16x4_t both = vreinterpret_s16_s32(vdup_n_s32(w));
    int16x8_t v0 = vreinterpretq_s16_s8(v.r[0]), v1 = vreinterpretq_s16_s8(v.r[1]);
    acc.r[0] = vmlal_lane_s16(acc.r[0], vget_low_s16(v0), both, 0);
    acc.r[1] = vmlal_high_lane_s16(acc.r[1], v0, both, 0);
    acc.r[2] = vmlal_lane_s16(acc.r[2], vget_low_s16(v1), both, 0);
    acc.r[3] = vmlal_high_lane_s16(acc.r[3], v1, both, 0);
    v0 = vreinterpretq_s16_s8(v.r[2]), v1 = vreinterpretq_s16_s8(v.r[3]);
    acc.r[0] = vmlal_lane_s16(acc.r[0], vget_low_s16(v0), both, 1);
    acc.r[1] = vmlal_high_lane_s16(acc.r[1], v0, both, 1);
    acc.r[2] = vmlal_lane_s16(acc.r[2], vget_low_s16(v1), both, 1);
    acc.r[3] = vmlal_high_lane_s16(acc.r[3], v1, both, 1);
    return acc;
}
static inline i16x32 i_join(i16x32 low, i16x32 high)
{
    EACH_PART low.r[j] = vaddq_s32(low.r[j], vshlq_n_s32(high.r[j], 8));
    return low;
}
static inline v16 v_butterflies(v16 a, const int step)
{
    const uint32x4_t odd = {0, 0x80000000u, 0, 0x80000000u}, upper = {0, 0, 0x80000000u, 0x80000000u};
    v16 r;
    if (step >= 4) {
        EACH_PART r.r[j] = j & step / 4 ? vsubq_f32(a.r[j - step / 4], a.r[j]) : vaddq_f32(a.r[j], a.r[j + step / 4]);
        return r;
    }
    EACH_PART
    {
        float32x4_t other = step == 2 ? vextq_f32(a.r[j], a.r[j], 2) : vrev64q_f32(a.r[j]);
        uint32x4_t mine = veorq_u32(vreinterpretq_u32_f32(a.r[j]), step == 2 ? upper : odd);
        r.r[j] = vaddq_f32(other, vreinterpretq_f32_u32(mine));
    }
    return r;
}
enum { WEIGHTS_UNIT = 8 };
static inline void v_store_weights(int16_t *p, v16 a, v16 b)
{
    EACH_PART vst1_s16(p + 4 * j, vmovn_s32(vreinterpretq_s32_f32(a.r[j])));
    EACH_PART vst1_s16(p + LANES + 4 * j, vmovn_s32(vreinterpretq_s32_f32(b.r[j])));
}
static inline v16 v_load_i8(const int8_t *p)
{
    v16 f;
    int8x16_t x = vld1q_s8(p);
    int16x8_t wide[2] = {vmovl_s8(vget_low_s8(x)), vmovl_high_s8(x)};
    for (int i = 0; i < 2; i++) {
        f.r[2 * i] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide[i])));
        f.r[2 * i + 1] = vcvtq_f32_s32(vmovl_high_s16(wide[i]));
    }
    return f;
}
static inline v16 v_load_f8(const uint8_t *p)
{
    v16 f;
    uint8x16_t x = vld1q_u8(p);
    uint16x8_t wide[2] = {vmovl_u8(vget_low_u8(x)), vmovl_high_u8(x)};
    for (int i = 0; i < 2; i++) {
        uint16x8_t sign = vandq_u16(vshlq_n_u16(wide[i], 8), vdupq_n_u16(0x8000));
        uint16x8_t half = vorrq_u16(sign, vandq_u16(vshlq_n_u16(wide[i], 7), vdupq_n_u16(0x3F80)));
        f.r[2 * i] = vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(half)));
        f.r[2 * i + 1] = vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(half)));
    }
    return f;
}
static inline v16 i_to_float(i16x32 a) { v16 f; EACH_PART f.r[j] = vcvtq_f32_s32(a.r[j]); return f; }
static inline v16 i_as_float(i16x32 a) { v16 f; EACH_PART f.r[j] = vreinterpretq_f32_s32(a.r[j]); return f; }
static inline v16 v_bits_to_float(v16 a)
{
    EACH_PART a.r[j] = vcvtq_f32_s32(vreinterpretq_s32_f32(a.r[j]));
    return a;
}

#endif
