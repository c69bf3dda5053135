/* matmul_scalar.c - the definition of the matrix products: the formulas of matmul.h, one weight row and one
 * activation row at a time. The other kernel sets are tested to give the same bits. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "engine/cpu/matmul_sets.h"
#include "engine/cpu/pack.h"
#include "engine/quant.h"

/* --- activations -------------------------------------------------------------------------------------------------- */

/* The scale of n values: NaN if any is infinite or NaN, so that results show that the model is broken. */
static float scale_of(const float *x, int64_t n)
{
    float max = 0;
    bool finite = true;
    for (int64_t i = 0; i < n; i++) {
        max = fmaxf(max, fabsf(x[i]));
        finite = finite && isfinite(x[i]);
    }
    return finite ? max / 127 : NAN;
}

/* Quantises one block of n <= 32 values. A scale so small that its inverse overflows is replaced by 0. */
static void quantize_block(const float *x, int64_t n, float scale, int8_t *q, float *d, int32_t *sum)
{
    *sum = 0;
    memset(q, 0, PP_ACT_BLOCK);
    *d = scale;
    float inverse = 1 / *d;
    if (isinf(inverse))
        *d = 0;
    if (!isfinite(inverse))
        return;
    for (int64_t i = 0; i < n; i++) {
        q[i] = (int8_t)rintf(x[i] * inverse);
        *sum += q[i];
    }
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void quantize(const float *x, int64_t n, bool twins, int8_t *q, float *d, int32_t *sum)
{
    const int64_t step = (twins ? 2 : 1) * PP_ACT_BLOCK;
    for (int64_t at = 0; at < n; at += step) {
        const int64_t end = smaller(at + step, n);
        const float scale = scale_of(x + at, end - at);
        for (int64_t i = at; i < end; i += PP_ACT_BLOCK)
            quantize_block(x + i, smaller(end - i, PP_ACT_BLOCK), scale, q + i, d++, sum++);
    }
}

/* One activation row in its quantised form. */
struct act {
    const int8_t *q;
    const float *d;
    const int32_t *sum;
};

static struct act act_row(const struct pp_acts *x, int64_t i)
{
    return (struct act){x->q + i * x->q_stride, x->d + i * x->b_stride, x->sum + i * x->b_stride};
}

/* --- quantised weights -------------------------------------------------------------------------------------------- */

static float half_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return pp_f16_to_f32(h);
}

/* Copies the four bytes that a row has in each of n slices, so that loops over them can be vectorised. */
static inline __attribute__((always_inline)) void take_lane(const uint8_t *slices, int lane, int n, uint8_t *bytes)
{
    for (int v = 0; v < n; v++)
        memcpy(bytes + 4 * v, slices + PP_SLICE * v + 4 * lane, 4);
}

/* The product of a weight row and an activation row. lane: the row within its group. */
static float dot_q8_0(const uint8_t *group, int lane, int64_t n_cols, struct act x)
{
    const uint8_t *slices = group + pp_pack_scale_bytes(n_cols);
    float acc = 0;
    for (int64_t b = 0; b < n_cols / 32; b++) {
        uint8_t w[32];
        int32_t isum = 0;
        take_lane(slices + 8 * PP_SLICE * b, lane, 8, w);
        for (int k = 0; k < 32; k++)
            isum += (w[k] - 128) * x.q[32 * b + k];
        float d = half_at(group + 32 * b + 2 * lane);
        acc = fmaf(d * x.d[b], (float)isum, acc);
    }
    return acc;
}

static float dot_q4_0(const uint8_t *group, int lane, int64_t n_cols, struct act x)
{
    const uint8_t *slices = group + pp_pack_scale_bytes(n_cols);
    float acc = 0;
    for (int64_t b = 0; b < n_cols / 32; b++) {
        uint8_t two[16];
        int32_t isum = 0;
        take_lane(slices + 4 * PP_SLICE * b, lane, 4, two);
        for (int k = 0; k < 16; k++)
            isum += ((two[k] & 15) - 8) * x.q[32 * b + k] + ((two[k] >> 4) - 8) * x.q[32 * b + 16 + k];
        float d = half_at(group + 32 * b + 2 * lane);
        acc = fmaf(d * x.d[b], (float)isum, acc);
    }
    return acc;
}

static float dot_q4_k(const uint8_t *group, int lane, int64_t n_cols, struct act x)
{
    const struct pp_q4_k_pack *p = (const struct pp_q4_k_pack *)group;
    float acc = 0;
    for (int64_t b = 0; b < n_cols / 32; b++) {
        const struct pp_q4_k_pack *super = p + b / 8;
        int sub = (int)(b % 8);
        const int shift = 4 * (sub % 2);
        uint8_t two[32];
        int32_t isum = 0;
        take_lane(super->q[sub / 2][0], lane, 8, two);
        for (int k = 0; k < 32; k++)
            isum += (two[k] >> shift & 15) * x.q[32 * b + k];
        float d = pp_f16_to_f32(super->d[lane]), dmin = pp_f16_to_f32(super->dmin[lane]);
        acc = fmaf((d * (float)super->sc[sub][lane]) * x.d[b], (float)isum, acc);
        acc = fmaf(-(dmin * (float)super->m[sub][lane]), x.d[b] * (float)x.sum[b], acc);
    }
    return acc;
}

/* A block's integer sum, with the integer scales multiplied in. q: its activations. */
static int32_t sum_q6_k(const struct pp_q6_k_pack *super, int block, int lane, const int8_t *q)
{
    /* Factors that shift the high bits of column k to bits 6 and 7, and those of column 16 + k to bits 2 and 3. */
    static const uint8_t to_6[16] = {4, 4, 4, 4, 1, 1, 1, 1, 4, 4, 4, 4, 1, 1, 1, 1};
    static const uint8_t to_2[16] = {1, 1, 1, 1, 4, 4, 4, 4, 1, 1, 1, 1, 4, 4, 4, 4};
    uint8_t low[16], high[16];
    int32_t isum0 = 0, isum1 = 0;
    take_lane(super->q[block].low[0], lane, 4, low);
    for (int v = 0; v < 4; v++)
        take_lane(super->q[block].high[v / 2], lane, 1, high + 4 * v);
    for (int k = 0; k < 16; k++) {
        const int first = (low[k] & 15) | (high[k] * to_6[k] >> 6 & 3) << 4;
        const int second = (low[k] >> 4) << 2 | (high[k] * to_2[k] >> 2 & 3);
        isum0 += (first - 32) * q[k];
        isum1 += (second - 32) * q[16 + k];
    }
    return super->sc[2 * block][lane] * isum0 + super->sc[2 * block + 1][lane] * isum1;
}

/* Blocks b and b + 1 are twins. */
static float dot_q6_k(const uint8_t *group, int lane, int64_t n_cols, struct act x)
{
    const struct pp_q6_k_pack *p = (const struct pp_q6_k_pack *)group;
    float acc = 0;
    for (int64_t b = 0; b < n_cols / 32; b += 2) {
        const struct pp_q6_k_pack *super = p + b / 8;
        int32_t isum = sum_q6_k(super, (int)(b % 8), lane, x.q + 32 * b) +
                       sum_q6_k(super, (int)(b % 8) + 1, lane, x.q + 32 * (b + 1));
        acc = fmaf(pp_f16_to_f32(super->d[lane]) * x.d[b], (float)isum, acc);
    }
    return acc;
}

typedef float dot_packed_fn(const uint8_t *group, int lane, int64_t n_cols, struct act x);

static inline __attribute__((always_inline)) void matmul_packed(const struct pp_matrix *w, int64_t row0, int64_t row1,
                                                                const struct pp_acts *x, int64_t m, float *y,
                                                                int64_t y_stride, dot_packed_fn *dot)
{
    for (int64_t row = row0; row < row1; row++)
        for (int64_t i = 0; i < m; i++)
            y[i * y_stride + row] =
                dot(pp_pack_group(w, row), (int)(row % PP_GROUP_ROWS), w->n_cols, act_row(x, i));
}

static void matmul_q8_0(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                        float *y, int64_t y_stride, void *scratch)
{
    (void)scratch;
    matmul_packed(w, row0, row1, x, m, y, y_stride, dot_q8_0);
}

static void matmul_q4_0(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                        float *y, int64_t y_stride, void *scratch)
{
    (void)scratch;
    matmul_packed(w, row0, row1, x, m, y, y_stride, dot_q4_0);
}

static void matmul_q4_k(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                        float *y, int64_t y_stride, void *scratch)
{
    (void)scratch;
    matmul_packed(w, row0, row1, x, m, y, y_stride, dot_q4_k);
}

static void matmul_q6_k(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                        float *y, int64_t y_stride, void *scratch)
{
    (void)scratch;
    matmul_packed(w, row0, row1, x, m, y, y_stride, dot_q6_k);
}

/* --- float weights ------------------------------------------------------------------------------------------------ */

enum { LANES = 16 };

static float sum_lanes(float p[LANES])
{
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            p[l] += p[l + half];
    return p[0];
}

/* The dot product of n weights of a float type, which need not be aligned, and n activations. */
static float dot_float(uint32_t type, const uint8_t *w, const float *x, int64_t n)
{
    enum { PART = 16 * LANES };
    const size_t size = type == PP_TYPE_F32 ? 4 : 2;
    float p[LANES] = {0};
    for (int64_t at = 0; at < n; at += PART) {
        const int64_t here = n - at < PART ? n - at : PART, whole = (here + LANES - 1) / LANES * LANES;
        float wk[PART], xk[PART]; /* with zeros up to a multiple of LANES */
        pp_dequantize_row(type, w + (size_t)at * size, wk, here);
        memcpy(xk, x + at, (size_t)here * sizeof *xk);
        memset(wk + here, 0, (size_t)(whole - here) * sizeof *wk);
        memset(xk + here, 0, (size_t)(whole - here) * sizeof *xk);
        for (int64_t k = 0; k < whole; k += LANES)
            for (int l = 0; l < LANES; l++)
                p[l] = fmaf(wk[k + l], xk[k + l], p[l]);
    }
    return sum_lanes(p);
}

static float dot(const float *a, const float *b, int64_t n)
{
    return dot_float(PP_TYPE_F32, (const uint8_t *)a, b, n);
}

static void matmul_float(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                         float *y, int64_t y_stride, void *scratch)
{
    (void)scratch;
    size_t row_bytes = (size_t)w->n_cols * (w->type == PP_TYPE_F32 ? 4 : 2);
    for (int64_t row = row0; row < row1; row++)
        for (int64_t i = 0; i < m; i++)
            y[i * y_stride + row] = dot_float(w->type, (const uint8_t *)w->data + (size_t)row * row_bytes,
                                              x->f32 + i * x->f32_stride, w->n_cols);
}

const struct pp_matmul_kernels pp_matmul_scalar = {
    .quantize = quantize,
    .dot = dot,
    .by_type =
        {
            [PP_TYPE_F32] = matmul_float,
            [PP_TYPE_F16] = matmul_float,
            [PP_TYPE_BF16] = matmul_float,
            [PP_TYPE_Q8_0] = matmul_q8_0,
            [PP_TYPE_Q4_0] = matmul_q4_0,
            [PP_TYPE_Q4_K] = matmul_q4_k,
            [PP_TYPE_Q6_K] = matmul_q6_k,
            PP_BLOCKS_BY(pp_matmul_blocks_scalar),
        },
};
