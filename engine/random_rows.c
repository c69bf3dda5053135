#include "engine/random_rows.h"

#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/quant.h"
#include "engine/quant_blocks.h"

enum { N_NORMAL = 1 << 16 };

struct pp_random {
    uint64_t state;
    uint32_t type;            /* the type and deviation for which the following is filled */
    float deviation;
    float normal[N_NORMAL];   /* a normal distribution in steps of equal probability */
    uint16_t half[N_NORMAL];  /* the same times a deviation, in the current tensor's type */
    float scaled[N_NORMAL];
};

/* splitmix64: https://prng.di.unimi.it/splitmix64.c describes it */
static uint64_t next_bits(struct pp_random *n)
{
    uint64_t z = n->state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static void random_bytes(struct pp_random *n, uint8_t *to, size_t bytes)
{
    for (; bytes >= 8; bytes -= 8, to += 8) {
        uint64_t bits = next_bits(n);
        memcpy(to, &bits, 8);
    }
    uint64_t bits = next_bits(n);
    memcpy(to, &bits, bytes);
}

/* Fills quantiles of the standard normal distribution, by integrating its density. */
static void fill_normal(struct pp_random *n)
{
    double x = 0, area = sqrt(2 * M_PI) / N_NORMAL;
    for (int i = 0; i < N_NORMAL / 2; i++) {
        double half = x + 0.5 * area * exp(0.5 * x * x);
        n->normal[N_NORMAL / 2 + i] = (float)half;
        n->normal[N_NORMAL / 2 - 1 - i] = (float)-half;
        x += area * exp(0.5 * half * half);
        if (x > 5)
            x = 5;
    }
}

static void prepare_floats(struct pp_random *n, uint32_t type, float deviation)
{
    if (n->type == type && n->deviation == deviation)
        return;
    n->type = type;
    n->deviation = deviation;
    for (int i = 0; i < N_NORMAL; i++) {
        n->scaled[i] = n->normal[i] * deviation;
        n->half[i] = type == PP_TYPE_F16 ? pp_f32_to_f16(n->scaled[i]) : pp_f32_to_bf16(n->scaled[i]);
    }
}

static void float_row(struct pp_random *n, uint32_t type, int64_t count, void *to)
{
    float *f = to;
    uint16_t *h = to;
    uint64_t bits = 0;
    for (int64_t i = 0; i < count; i++, bits >>= 16) {
        if (i % 4 == 0)
            bits = next_bits(n);
        if (type == PP_TYPE_F32)
            f[i] = n->scaled[bits & 0xFFFF];
        else
            h[i] = n->half[bits & 0xFFFF];
    }
}

/* divisor: the standard deviation of the stored integers times their scales; min: makes the mean zero in a type with
 * minima, divided by d. */
static const struct {
    float divisor, min;
} measures[PP_TYPE_LIMIT] = {
    [PP_TYPE_Q8_0] = {73.9f, 0},    [PP_TYPE_Q4_0] = {4.64f, 0},     [PP_TYPE_Q4_1] = {4.61f, -7.5f},
    [PP_TYPE_Q5_0] = {9.25f, 0},    [PP_TYPE_Q5_1] = {9.23f, -15.5f}, [PP_TYPE_Q2_K] = {17.2f, 1.5f},
    [PP_TYPE_Q3_K] = {43.4f, 0},    [PP_TYPE_Q4_K] = {258, 7.5f},    [PP_TYPE_Q5_K] = {540, 15.5f},
    [PP_TYPE_Q6_K] = {1366, 0},     [PP_TYPE_IQ4_NL] = {69.1f, 0},   [PP_TYPE_IQ4_XS] = {1277, 0},
    [PP_TYPE_MXFP4] = {6.1f, 0},    [PP_TYPE_TQ1_0] = {0.82f, 0},    [PP_TYPE_TQ2_0] = {1.12f, 0},
    [PP_TYPE_IQ1_S] = {7.2f, 0},    [PP_TYPE_IQ1_M] = {7.2f, 0},     [PP_TYPE_IQ2_XXS] = {56, 0},
    [PP_TYPE_IQ2_XS] = {56, 0},     [PP_TYPE_IQ2_S] = {56, 0},       [PP_TYPE_IQ3_XXS] = {160, 0},
    [PP_TYPE_IQ3_S] = {160, 0},
};

/* Random bits, with scales that give about the requested deviation. Q4_0's integers have mean -0.5, so half of its
 * scales are negative, which makes the weights' mean zero. */
static void quantized_row(struct pp_random *n, uint32_t type, int64_t count, float deviation, void *to)
{
    const struct pp_type_info *info = pp_type_info(type);
    const float d = deviation / measures[type].divisor, min = measures[type].min * deviation / measures[type].divisor;
    uint8_t *block = to;
    random_bytes(n, block, pp_type_row_bytes(type, count));
    for (int64_t i = 0; i < count; i += info->block_elements, block += info->block_bytes)
        pp_set_block_scales(type, block, type == PP_TYPE_Q4_0 && !(*block & 1) ? -d : d, min);
}

struct pp_random *pp_random_new(uint64_t seed)
{
    struct pp_random *n = pp_calloc(1, sizeof *n);
    if (!n)
        return NULL;
    n->state = seed;
    n->type = PP_TYPE_LIMIT;
    fill_normal(n);
    return n;
}

void pp_random_row(struct pp_random *n, uint32_t type, int64_t count, void *to)
{
    float deviation = 1.0f / sqrtf((float)count);
    if (pp_type_info(type)->block_elements > 1) {
        quantized_row(n, type, count, deviation, to);
    } else {
        prepare_floats(n, type, deviation);
        float_row(n, type, count, to);
    }
}
