/* float_rows.h - products of float weights with activation rows, in tiles of R weight rows times M activation rows.
 * Included by matmul_avx2.c, matmul_avx512.c and matmul_arm_body.h after their float_tile(). They define FLOAT_M, the
 * most activation rows of a tile, and FLOAT_R(m), the weight rows of a tile of m activation rows, such that the
 * accumulators fit the registers; FLOAT_R_SOON, the weight rows of a tile of one or two activation rows if weights are
 * prefetched line by line (PP_STREAM_SOON or PP_STREAM_LINES, stream_ahead.h); and FLOAT_BESIDE: whether
 * PP_WAY_BESIDE means to read the weights of a single activation row without prefetching. Private to engine/cpu. */

#include "engine/cpu/stream_ahead.h"

INLINE void float_rows(const struct pp_matrix *w, int64_t row0, int64_t row1, const float *x, int64_t x_stride,
                       float *y, int64_t y_stride, const uint32_t type, enum pp_stream_way how, const int R,
                       const int M)
{
    size_t row_bytes = (size_t)w->n_cols * (type == PP_TYPE_F32 ? 4 : 2);
    const uint8_t *data = w->data;
    int64_t row = row0;
    for (; row + R <= row1; row += R)
        float_tile(data + (size_t)row * row_bytes, row_bytes, x, x_stride, w->n_cols, y + row, y_stride, type, how,
                   R, M);
    for (; row < row1; row++)
        float_tile(data + (size_t)row * row_bytes, row_bytes, x, x_stride, w->n_cols, y + row, y_stride, type, how,
                   1, M);
}

INLINE void matmul_float(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                         float *y, int64_t y_stride, const uint32_t type)
{
    const enum pp_stream_way how = stream_way_of(x, m);
    const bool soon = how == PP_STREAM_SOON || how == PP_STREAM_LINES; /* both prefetch line by line */
    for (int64_t row = row0; row < row1; row += 64) { /* few enough rows to stay in the cache for all activations */
        int64_t end = row + 64 < row1 ? row + 64 : row1;
        for (int64_t i = 0; i < m; i += FLOAT_M) {
            const float *xi = x->f32 + i * x->f32_stride;
            float *out = y + i * y_stride;
            switch (m - i) {
            case 1:
                if (FLOAT_BESIDE && x->way == PP_WAY_BESIDE)
                    float_rows(w, row, end, xi, x->f32_stride, out, y_stride, type, PP_STREAM_NOT, FLOAT_R(1), 1);
                else if (soon)
                    float_rows(w, row, end, xi, x->f32_stride, out, y_stride, type, PP_STREAM_SOON, FLOAT_R_SOON, 1);
                else
                    float_rows(w, row, end, xi, x->f32_stride, out, y_stride, type, how, FLOAT_R(1), 1);
                break;
            case 2:
                if (soon)
                    float_rows(w, row, end, xi, x->f32_stride, out, y_stride, type, PP_STREAM_SOON, FLOAT_R_SOON, 2);
                else
                    float_rows(w, row, end, xi, x->f32_stride, out, y_stride, type, how, FLOAT_R(2), 2);
                break;
            case 3:
                float_rows(w, row, end, xi, x->f32_stride, out, y_stride, type, how, FLOAT_R(3), 3);
                break;
            default:
                float_rows(w, row, end, xi, x->f32_stride, out, y_stride, type, how, FLOAT_R(FLOAT_M), FLOAT_M);
            }
        }
    }
}

static void matmul_f32(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                       float *y, int64_t y_stride, void *scratch)
{
    (void)scratch;
    matmul_float(w, row0, row1, x, m, y, y_stride, PP_TYPE_F32);
}

static void matmul_f16(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                       float *y, int64_t y_stride, void *scratch)
{
    (void)scratch;
    matmul_float(w, row0, row1, x, m, y, y_stride, PP_TYPE_F16);
}

static void matmul_bf16(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                        float *y, int64_t y_stride, void *scratch)
{
    (void)scratch;
    matmul_float(w, row0, row1, x, m, y, y_stride, PP_TYPE_BF16);
}
