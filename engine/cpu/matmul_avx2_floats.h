/* matmul_avx2_floats.h - products of many activation rows with float weights. Private to matmul_avx2.c.
 *
 * Weights and activations are read where they are. Weights are converted to float32 in registers, each time they are
 * multiplied by FLOAT_ACTS activation rows; the conversion uses execution ports that multiply-adds do not. The 16
 * partial sums of a result are two vectors that are not combined before the end. A product therefore goes first over
 * the lower halves of all steps of 16 columns, then over the upper halves, so that only one vector per result is needed
 * at a time: 3 weight rows by 4 activation rows fill the registers with sums. FLOAT_COLS columns of FLOAT_ACTS
 * activation rows stay in the L1 cache while FLOAT_STRIP weight rows pass, and those columns of the weight rows stay in
 * the L2 cache while FLOAT_PART activation rows pass. Between two pieces of columns the partial sums are kept in the
 * scratch.
 *
 * F16, 256 activation rows, 2,048 columns on one core of a Zen 3, G multiply-adds/s of 51 possible: strips of 64 rows
 * and parts of 32 41.2, 64 and 48 41.4, 96 and 32 40.8, 48 and 64 40.5, 24 and 128 40.0, 12 and 128 37.7; pieces of 512
 * columns 38.9, of 1,536 33.8; weights converted into the scratch first, strips of 24, 38. */

enum { FLOAT_ROWS = 3, FLOAT_ACTS = 4, FLOAT_STRIP = 64, FLOAT_PART = 32, FLOAT_COLS = 1024 };

struct float_scratch {
    float sums[FLOAT_STRIP][FLOAT_PART][2][8];
    float x_rest[FLOAT_PART][16];   /* the last n_cols % 16 columns, padded with zeros */
    float w_rest[FLOAT_STRIP][16];  /* the same of the weights, converted */
};

_Static_assert(sizeof(struct float_scratch) <= PP_MATMUL_SCRATCH, "the float tiles fit their scratch");

/* A piece of columns: `full` steps of 16, and perhaps a shorter one after them. */
struct float_piece {
    int64_t col0, full;
    bool first, last; /* whether these are the first, the last columns of the row */
    bool rest;        /* whether there is a shorter step */
};

/* Adds one half of each step's columns to the sums of R weight rows, from w on, and M rows of x. */
INLINE void float_half(const uint8_t *w, size_t row_bytes, const float (*w_rest)[16], const float *x, int64_t x_stride,
                       const float (*x_rest)[16], struct float_piece p, float (*sums)[FLOAT_PART][2][8], int half,
                       const uint32_t type, const int R, const int M)
{
    __m256 acc[FLOAT_ROWS][FLOAT_ACTS];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int i = 0; i < M; i++)
            acc[r][i] = p.first ? _mm256_setzero_ps() : _mm256_load_ps(sums[r][i][half]);
    x += p.col0 + 8 * half;
    for (int64_t k = 0; k < p.full; k++) {
        __m256 wk[FLOAT_ROWS];
        UNROLL for (int r = 0; r < R; r++)
            wk[r] = f_held(load_floats(w + (size_t)r * row_bytes, p.col0 + 8 * half + 16 * k, type));
        UNROLL for (int i = 0; i < M; i++)
        {
            const __m256 xk = f_held(_mm256_loadu_ps(x + i * x_stride + 16 * k));
            UNROLL for (int r = 0; r < R; r++)
                acc[r][i] = _mm256_fmadd_ps(wk[r], xk, acc[r][i]);
        }
    }
    if (p.rest)
        UNROLL for (int i = 0; i < M; i++)
            UNROLL for (int r = 0; r < R; r++)
                acc[r][i] = _mm256_fmadd_ps(_mm256_load_ps(w_rest[r] + 8 * half), _mm256_load_ps(x_rest[i] + 8 * half),
                                            acc[r][i]);
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int i = 0; i < M; i++)
            _mm256_store_ps(sums[r][i][half], acc[r][i]);
}

/* A strip of weight rows, and the activation rows to multiply it by. */
struct float_job {
    struct float_scratch *s;
    const uint8_t *w;
    size_t row_bytes;
    int64_t rows;
    const float *x;
    int64_t x_stride, m;
    float *y;
    int64_t y_stride;
};

/* R rows of the strip from r on times M rows of x from i on. */
INLINE void float_product(const struct float_job *j, int64_t r, int64_t i, struct float_piece p, const uint32_t type,
                          const int R, const int M)
{
    float(*sums)[FLOAT_PART][2][8] = (float(*)[FLOAT_PART][2][8])j->s->sums[r][i];
    const uint8_t *w = j->w + (size_t)r * j->row_bytes;
    const float *x = j->x + i * j->x_stride;
    float *y = j->y + i * j->y_stride + r;
    for (int half = 0; half < 2; half++)
        float_half(w, j->row_bytes, (const float(*)[16])j->s->w_rest + r, x, j->x_stride,
                   (const float(*)[16])j->s->x_rest + i, p, sums, half, type, R, M);
    for (int k = 0; p.last && k < M; k++)
        for (int l = 0; l < R; l++)
            y[k * j->y_stride + l] = sum_lanes(_mm256_load_ps(sums[l][k][0]), _mm256_load_ps(sums[l][k][1]));
}

/* M rows of x from i on times all rows of the strip. */
INLINE void float_strip(const struct float_job *j, int64_t i, struct float_piece p, const uint32_t type, const int M)
{
    int64_t r = 0;
    for (; j->rows - r == FLOAT_ROWS || j->rows - r > FLOAT_ROWS + 1; r += FLOAT_ROWS)
        float_product(j, r, i, p, type, FLOAT_ROWS, M);
    for (; j->rows - r >= 2; r += 2) /* two and two rather than three and one: one row has too few independent sums */
        float_product(j, r, i, p, type, 2, M);
    if (r < j->rows)
        float_product(j, r, i, p, type, 1, M);
}

/* All of the job's rows, over one piece of columns. */
INLINE void float_piece_product(const struct float_job *j, struct float_piece p, const uint32_t type)
{
    int64_t n_panels = (j->m + FLOAT_ACTS - 1) / FLOAT_ACTS;
    for (int64_t panel = 0; panel < n_panels; panel++) {
        int64_t i = panel_start(j->m, n_panels, panel);
        switch (panel_start(j->m, n_panels, panel + 1) - i) {
        case 1:
            float_strip(j, i, p, type, 1);
            break;
        case 2:
            float_strip(j, i, p, type, 2);
            break;
        case 3:
            float_strip(j, i, p, type, 3);
            break;
        default:
            float_strip(j, i, p, type, FLOAT_ACTS);
        }
    }
}

/* Copies the columns after the last whole step to x_rest and w_rest, padded with zeros. */
INLINE void float_rests(const struct float_job *j, int64_t n, const uint32_t type)
{
    const size_t size = type == PP_TYPE_F32 ? 4 : 2, used = (size_t)(n % 16);
    for (int64_t k = 0; used && k < j->m; k++) {
        memset(j->s->x_rest[k], 0, sizeof j->s->x_rest[k]);
        memcpy(j->s->x_rest[k], j->x + k * j->x_stride + n / 16 * 16, used * sizeof(float));
    }
    for (int64_t r = 0; used && r < j->rows; r++) {
        uint8_t rest[16 * 4] = {0};
        memcpy(rest, j->w + (size_t)r * j->row_bytes + (size_t)(n / 16 * 16) * size, used * size);
        _mm256_store_ps(j->s->w_rest[r], load_floats(rest, 0, type));
        _mm256_store_ps(j->s->w_rest[r] + 8, load_floats(rest, 8, type));
    }
}

INLINE void float_tiles(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                        float *y, int64_t y_stride, struct float_scratch *s, const uint32_t type)
{
    const int64_t n = w->n_cols, n_parts = (m + FLOAT_PART - 1) / FLOAT_PART;
    const size_t row_bytes = (size_t)n * (type == PP_TYPE_F32 ? 4 : 2);
    const int64_t strip = type == PP_TYPE_F32 ? FLOAT_STRIP / 2 : FLOAT_STRIP; /* the same number of bytes */
    for (int64_t row = row0; row < row1; row += strip)
        for (int64_t part = 0; part < n_parts; part++) {
            const int64_t i = panel_start(m, n_parts, part);
            const struct float_job j = {
                .s = s,
                .w = (const uint8_t *)w->data + (size_t)row * row_bytes,
                .row_bytes = row_bytes,
                .rows = row1 - row < strip ? row1 - row : strip,
                .x = x->f32 + i * x->f32_stride,
                .x_stride = x->f32_stride,
                .m = panel_start(m, n_parts, part + 1) - i,
                .y = y + i * y_stride + row,
                .y_stride = y_stride,
            };
            float_rests(&j, n, type);
            for (int64_t col = 0; col < n; col += FLOAT_COLS) {
                const int64_t cols = n - col < FLOAT_COLS ? n - col : FLOAT_COLS;
                float_piece_product(&j, (struct float_piece){col, cols / 16, col == 0, col + cols == n, cols % 16 != 0},
                                    type);
            }
        }
}

#define FLOAT_TILES(TYPE, name)                                                                                        \
    static void float_tiles_##name(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x,     \
                                   int64_t m, float *y, int64_t y_stride, struct float_scratch *s)                     \
    {                                                                                                                  \
        float_tiles(w, row0, row1, x, m, y, y_stride, s, PP_TYPE_##TYPE);                                              \
    }
FLOAT_TILES(F32, f32)
FLOAT_TILES(F16, f16)
FLOAT_TILES(BF16, bf16)
#undef FLOAT_TILES

static void matmul_float_tiles(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x,
                               int64_t m, float *y, int64_t y_stride, struct float_scratch *s)
{
    if (w->type == PP_TYPE_F32)
        float_tiles_f32(w, row0, row1, x, m, y, y_stride, s);
    else if (w->type == PP_TYPE_F16)
        float_tiles_f16(w, row0, row1, x, m, y, y_stride, s);
    else
        float_tiles_bf16(w, row0, row1, x, m, y, y_stride, s);
}
