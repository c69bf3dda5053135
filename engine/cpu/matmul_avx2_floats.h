/* matmul_avx2_floats.h - products of many activation rows with float weights. Private to matmul_avx2.c.
 *
 * FLOAT_COLS columns of FLOAT_STRIP weight rows are converted to float32 once, side by side as the products want them,
 * and then meet up to FLOAT_PART activation rows, which are read where they lie. The 16 partial sums of a result are
 * two vectors that never meet before the end, so that a product takes first all the lower halves of its columns and
 * then all the upper ones: 3 weight rows times 4 activation rows fill the registers with sums. Between two pieces of
 * columns the partial sums wait in the scratch. */

enum { FLOAT_ROWS = 3, FLOAT_ACTS = 4, FLOAT_STRIP = 24, FLOAT_PART = 64, FLOAT_COLS = 1024 };

struct float_scratch {
    float w[FLOAT_STRIP * FLOAT_COLS];          /* per FLOAT_ROWS rows, or the rest: [2 halves][steps][rows][8] */
    float sums[FLOAT_STRIP][FLOAT_PART][2][8];
    float x_rest[FLOAT_PART][16];               /* the last columns, with zeros behind them */
};

_Static_assert(sizeof(struct float_scratch) <= PP_MATMUL_SCRATCH, "the float tiles fit their scratch");

/* A piece of columns: `steps` of 16, the last one perhaps short. */
struct float_piece {
    int64_t col0, steps, full;  /* full: how many are not short */
    bool first, last;           /* of the row */
};

/* R weight rows, converted. */
INLINE void float_convert(const uint8_t *rows, size_t row_bytes, int64_t n, struct float_piece p, float *to,
                          const uint32_t type, const int R)
{
    const size_t size = type == PP_TYPE_F32 ? 4 : 2;
    for (int r = 0; r < R; r++) {
        const uint8_t *row = rows + (size_t)r * row_bytes;
        float *low = to + 8 * r, *high = low + 8 * R * p.steps;
        for (int64_t k = 0; k < p.full; k++, low += 8 * R, high += 8 * R) {
            fetch_line(row + size * (size_t)(p.col0 + 16 * k), (size_t)R * row_bytes);
            _mm256_store_ps(low, load_floats(row, p.col0 + 16 * k, type));
            _mm256_store_ps(high, load_floats(row, p.col0 + 16 * k + 8, type));
        }
        if (p.full < p.steps) {
            uint8_t rest[16 * 4] = {0};
            int64_t from = p.col0 + 16 * p.full;
            memcpy(rest, row + size * (size_t)from, size * (size_t)(n - from));
            _mm256_store_ps(low, load_floats(rest, 0, type));
            _mm256_store_ps(high, load_floats(rest, 8, type));
        }
    }
}

INLINE void float_strip_convert(const struct pp_matrix *w, int64_t row, int64_t rows, struct float_piece p, float *to)
{
    size_t row_bytes = (size_t)w->n_cols * (w->type == PP_TYPE_F32 ? 4 : 2);
    for (int64_t r = 0; r < rows; r += FLOAT_ROWS, to += 16 * FLOAT_ROWS * p.steps) {
        const uint8_t *from = (const uint8_t *)w->data + (size_t)(row + r) * row_bytes;
        int n = (int)(rows - r < FLOAT_ROWS ? rows - r : FLOAT_ROWS);
        if (w->type == PP_TYPE_F32)
            float_convert(from, row_bytes, w->n_cols, p, to, PP_TYPE_F32, n);
        else if (w->type == PP_TYPE_F16)
            float_convert(from, row_bytes, w->n_cols, p, to, PP_TYPE_F16, n);
        else
            float_convert(from, row_bytes, w->n_cols, p, to, PP_TYPE_BF16, n);
    }
}

/* One half of the columns: R weight rows [steps][R][8] times M rows of x. */
INLINE void float_half(const float *w, const float *x, int64_t x_stride, const float (*x_rest)[16],
                       struct float_piece p, float (*sums)[FLOAT_PART][2][8], int half, const int R, const int M)
{
    __m256 acc[FLOAT_ROWS][FLOAT_ACTS];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int i = 0; i < M; i++)
            acc[r][i] = p.first ? _mm256_setzero_ps() : _mm256_load_ps(sums[r][i][half]);
    x += p.col0 + 8 * half;
    for (int64_t k = 0; k < p.full; k++, w += 8 * R, x += 16)
        UNROLL for (int i = 0; i < M; i++)
        {
            __m256 xk = _mm256_loadu_ps(x + i * x_stride);
            UNROLL for (int r = 0; r < R; r++)
                acc[r][i] = _mm256_fmadd_ps(_mm256_load_ps(w + 8 * r), xk, acc[r][i]);
        }
    if (p.full < p.steps)
        UNROLL for (int i = 0; i < M; i++)
            UNROLL for (int r = 0; r < R; r++)
                acc[r][i] = _mm256_fmadd_ps(_mm256_load_ps(w + 8 * r), _mm256_load_ps(x_rest[i] + 8 * half), acc[r][i]);
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int i = 0; i < M; i++)
            _mm256_store_ps(sums[r][i][half], acc[r][i]);
}

INLINE void float_product(const float *w, const float *x, int64_t x_stride, const float (*x_rest)[16],
                          struct float_piece p, float (*sums)[FLOAT_PART][2][8], float *y, int64_t y_stride,
                          const int R, const int M)
{
    for (int half = 0; half < 2; half++)
        float_half(w + half * 8 * R * p.steps, x, x_stride, x_rest, p, sums, half, R, M);
    if (p.last)
        for (int i = 0; i < M; i++)
            for (int r = 0; r < R; r++)
                y[i * y_stride + r] = sum_lanes(_mm256_load_ps(sums[r][i][0]), _mm256_load_ps(sums[r][i][1]));
}

/* The converted strip with M rows of x. */
INLINE void float_strip(struct float_scratch *s, int64_t rows, const float *x, int64_t x_stride, int64_t i,
                        struct float_piece p, float *y, int64_t y_stride, const int M)
{
    const float *w = s->w;
    for (int64_t r = 0; r < rows; r += FLOAT_ROWS, w += 16 * FLOAT_ROWS * p.steps) {
        float(*sums)[FLOAT_PART][2][8] = (float(*)[FLOAT_PART][2][8])s->sums[r][i];
        const float(*x_rest)[16] = (const float(*)[16])s->x_rest + i;
        if (rows - r >= FLOAT_ROWS)
            float_product(w, x, x_stride, x_rest, p, sums, y + r, y_stride, FLOAT_ROWS, M);
        else if (rows - r == 2)
            float_product(w, x, x_stride, x_rest, p, sums, y + r, y_stride, 2, M);
        else
            float_product(w, x, x_stride, x_rest, p, sums, y + r, y_stride, 1, M);
    }
}

INLINE void float_piece_product(struct float_scratch *s, int64_t rows, const float *x, int64_t x_stride, int64_t m,
                                struct float_piece p, float *y, int64_t y_stride)
{
    int64_t n_panels = (m + FLOAT_ACTS - 1) / FLOAT_ACTS;
    for (int64_t panel = 0; panel < n_panels; panel++) {
        int64_t i = panel_start(m, n_panels, panel);
        const float *xi = x + i * x_stride;
        float *out = y + i * y_stride;
        switch (panel_start(m, n_panels, panel + 1) - i) {
        case 1:
            float_strip(s, rows, xi, x_stride, i, p, out, y_stride, 1);
            break;
        case 2:
            float_strip(s, rows, xi, x_stride, i, p, out, y_stride, 2);
            break;
        case 3:
            float_strip(s, rows, xi, x_stride, i, p, out, y_stride, 3);
            break;
        default:
            float_strip(s, rows, xi, x_stride, i, p, out, y_stride, FLOAT_ACTS);
        }
    }
}

static void matmul_float_tiles(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x,
                               int64_t m, float *y, int64_t y_stride, struct float_scratch *s)
{
    int64_t n = w->n_cols, n_parts = (m + FLOAT_PART - 1) / FLOAT_PART;
    for (int64_t row = row0; row < row1; row += FLOAT_STRIP) {
        int64_t rows = row1 - row < FLOAT_STRIP ? row1 - row : FLOAT_STRIP;
        for (int64_t part = 0; part < n_parts; part++) {
            int64_t i = panel_start(m, n_parts, part), acts = panel_start(m, n_parts, part + 1) - i;
            const float *xi = x->f32 + i * x->f32_stride;
            if (n % 16)
                for (int64_t k = 0; k < acts; k++) {
                    memset(s->x_rest[k], 0, sizeof s->x_rest[k]);
                    memcpy(s->x_rest[k], xi + k * x->f32_stride + n / 16 * 16, (size_t)(n % 16) * sizeof(float));
                }
            for (int64_t col = 0; col < n; col += FLOAT_COLS) {
                int64_t cols = n - col < FLOAT_COLS ? n - col : FLOAT_COLS;
                struct float_piece p = {col, (cols + 15) / 16, cols / 16, col == 0, col + cols == n};
                float_strip_convert(w, row, rows, p, s->w);
                float_piece_product(s, rows, xi, x->f32_stride, acts, p, y + i * y_stride + row, y_stride);
            }
        }
    }
}
