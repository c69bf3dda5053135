/* float_strips.h - products of float weights with many activation rows, for matmul_avx512.c. STRIP_ROWS weight rows are
 * converted to float32 in the thread's scratch, some hundred columns at a time. They stay in the L1 cache while they
 * are multiplied by all activation rows of a slab, three at a time. CHUNK_ROWS weight rows are multiplied by the same
 * columns of the slab before it goes on to the next columns, so that the L2 cache has to hold only these columns,
 * however long the rows are. Between two strips of columns the 16 partial sums of each product are kept, so that they
 * are added in the canonical order of matmul.h. Private to engine/cpu. */

enum {
    STRIP_ROWS = 8,
    STRIP_COLS = 768, /* at most: see strip_cols */
    NARROW_COLS = 704,
    STRIP_ACTS = 3,   /* 24 sums in registers */
    CHUNK_ROWS = 16,  /* weight rows multiplied by the same columns of a slab, which all but the first find in L2 */
    SLAB_ACTS = 192,  /* activation rows that use weights converted once, at most: a multiple of 3, and their sums for a
                       * chunk of weight rows fit the scratch */
};

/* Columns of a strip, a multiple of 16; results do not depend on it. The strip's weights, three rows of activations and
 * their sums must fit the L1 cache together: STRIP_COLS for one of 48 KiB, NARROW_COLS for 32 KiB. */
static int64_t strip_cols = STRIP_COLS;

__attribute__((constructor)) static void choose_strips(void)
{
    enum { WIDE_L1 = 40 * 1024 };
    const long l1 = sysconf(_SC_LEVEL1_DCACHE_SIZE); /* 0 or less if unknown */
    if (l1 > 0 && l1 < WIDE_L1)
        strip_cols = NARROW_COLS;
}

/* The 8 x 16 weights of a step are contiguous: a single pointer addresses them with small constant offsets. */
struct strip_memory {
    float w[STRIP_COLS / 16][STRIP_ROWS][16];
    float sums[CHUNK_ROWS / STRIP_ROWS][SLAB_ACTS][STRIP_ROWS][16];
};
_Static_assert(sizeof(struct strip_memory) <= PP_MATMUL_SCRATCH, "a strip and its sums");

/* A strip of converted weights, and the activations to multiply it by. */
struct strip_job {
    const float (*w)[STRIP_ROWS][16];    /* [n_cols / 16, rounded up] */
    float (*sums)[STRIP_ROWS][16];       /* [m], of the strip's rows */
    int64_t n_cols;        /* of the strip; its weights are padded with zeros */
    bool first, last;      /* whether these are the rows' first, last columns */
    const float *x;        /* [m, x_stride], from the strip's first column on */
    int64_t x_stride, m;
    float *y;              /* [m, y_stride], of the strip's first row */
    int64_t y_stride;
    __mmask8 live;         /* which of the strip's rows exist */
    const uint8_t *next;   /* first row of the next strip, prefetched meanwhile into the L2 cache: */
    size_t next_stride;    /* bytes from row to row */
    size_t next_lines;     /* cache lines of all its rows together */
    size_t lines_of_tile;  /* how many of them each tile prefetches */
};

/* Adds lanes l and l + 8: of a in the lower half of the result, of b in the upper half. */
INLINE __m512 fold8(__m512 a, __m512 b)
{
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}

/* Adds lanes l and l + 4 of each half of a, then of b. */
INLINE __m512 fold4(__m512 a, __m512 b)
{
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

/* Adds lanes l and l + 2 of each quarter of a, then of b. */
INLINE __m512 fold2(__m512 a, __m512 b)
{
    return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
}

/* The sums over the lanes of 8 vectors, added in the order of sum_lanes(). */
INLINE __m256 sum_lanes_of_8(const __m512 *a)
{
    __m512 s = fold2(fold4(fold8(a[0], a[1]), fold8(a[2], a[3])), fold4(fold8(a[4], a[5]), fold8(a[6], a[7])));
    s = _mm512_add_ps(s, _mm512_movehdup_ps(s)); /* rows 0 4 | 1 5 | 2 6 | 3 7 in even lanes */
    const __m512i at = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    return _mm512_castps512_ps256(_mm512_permutexvar_ps(at, s));
}

/* Multiplies 16 columns of the strip by M activation rows. */
INLINE void strip_step(const float (*w)[16], const float *x, int64_t x_stride, __mmask16 live,
                       __m512 (*acc)[STRIP_ROWS], const int M)
{
    __m512 xk[STRIP_ACTS];
    UNROLL for (int i = 0; i < M; i++)
        xk[i] = _mm512_maskz_loadu_ps(live, x + i * x_stride);
    UNROLL for (int r = 0; r < STRIP_ROWS; r++)
    {
        const __m512 wk = f_held(_mm512_load_ps(w[r]));
        UNROLL for (int i = 0; i < M; i++)
            acc[i][r] = _mm512_fmadd_ps(wk, xk[i], acc[i][r]);
    }
}

/* Prefetches a tile's share of the next strip. */
INLINE void prefetch_next(const struct strip_job *job, int64_t tile)
{
    const size_t end = ((size_t)tile + 1) * job->lines_of_tile;
    for (size_t l = (size_t)tile * job->lines_of_tile; l < end && l < job->next_lines; l++)
        __builtin_prefetch((const void *)((uintptr_t)job->next + l % STRIP_ROWS * job->next_stride +
                                          l / STRIP_ROWS * 64), 0, 2);
}

/* Multiplies the strip by activation rows i0 to i0 + M - 1, its tile number `tile`. Prefetches the next tile's sums, a
 * line with each step. G multiply-adds/s without and with that, medians of seven rounds in two starts, two cores of a
 * Zen 5, F16, 512 rows: 2,048 x 5,632 156 and 158, 125 and 128; 5,632 x 2,048 166 and 170, 174 and 173. Prefetching
 * also its activations: 137 and 156, 153 and 160, but one core 81 and 81, 76 and 68, and 256 rows of 2,048 x 2,048 162
 * and 158. On an Emerald Rapids there is no difference. */
INLINE void strip_tile(const struct strip_job *job, int64_t i0, int64_t tile, const int M)
{
    const float (*w)[STRIP_ROWS][16] = job->w;
    const float *x = job->x + i0 * job->x_stride;
    __m512 acc[STRIP_ACTS][STRIP_ROWS];
    UNROLL for (int i = 0; i < M; i++)
        UNROLL for (int r = 0; r < STRIP_ROWS; r++)
            acc[i][r] = job->first ? _mm512_setzero_ps() : _mm512_load_ps(job->sums[i0 + i][r]);
    prefetch_next(job, tile);
    uintptr_t sums = (uintptr_t)job->sums + (size_t)(i0 + M) * sizeof *job->sums;
    const uintptr_t sums_end = sums + (size_t)M * sizeof *job->sums;
#pragma GCC unroll 2
    for (int64_t k = job->n_cols / 16; k > 0; k--, w++, x += 16) {
        if (sums < sums_end)
            __builtin_prefetch((const void *)sums, 0, 3);
        sums += sizeof **job->sums;
        strip_step(*w, x, job->x_stride, 0xffff, acc, M);
    }
    if (job->n_cols % 16)
        strip_step(*w, x, job->x_stride, first_lanes(job->n_cols % 16), acc, M);
    UNROLL for (int i = 0; i < M; i++)
        if (job->last)
            _mm256_mask_storeu_ps(job->y + (i0 + i) * job->y_stride, job->live, sum_lanes_of_8(acc[i]));
        else
            UNROLL for (int r = 0; r < STRIP_ROWS; r++)
                _mm512_store_ps(job->sums[i0 + i][r], acc[i][r]);
}

static __attribute__((noinline)) void run_strip(const struct strip_job *job)
{
    int64_t i = 0, tile = 0;
    for (; i + STRIP_ACTS <= job->m; i += STRIP_ACTS)
        strip_tile(job, i, tile++, STRIP_ACTS);
    if (job->m - i == 2)
        strip_tile(job, i, tile, 2);
    else if (job->m - i == 1)
        strip_tile(job, i, tile, 1);
}

/* Converts n columns of a strip. Rows that do not exist, and columns from n up to a multiple of 16, become zeros. */
INLINE void convert_strip(const uint8_t *w, size_t row_bytes, int64_t n_rows, int64_t n, const uint32_t type,
                          float (*to)[STRIP_ROWS][16])
{
    int64_t k = 0;
    if (n_rows == STRIP_ROWS)
        for (; k + 16 <= n; k += 16)
            UNROLL for (int r = 0; r < STRIP_ROWS; r++)
                _mm512_store_ps(to[k / 16][r], load_floats(w + (size_t)r * row_bytes, k, 0xffff, type));
    for (; k < n; k += 16)
        for (int r = 0; r < STRIP_ROWS; r++)
            _mm512_store_ps(to[k / 16][r], load_floats(w + (size_t)r * row_bytes, k,
                                                       r < n_rows ? first_lanes(n - k) : 0, type));
}

/* Multiplies a chunk, weight rows row0 to row1 - 1, by a slab, rows i0 to i0 + m - 1 of x. */
INLINE void strip_chunk(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t i0,
                        int64_t m, float *y, int64_t y_stride, const uint32_t type, struct strip_memory *memory)
{
    const size_t size = type == PP_TYPE_F32 ? 4 : 2, row_bytes = (size_t)w->n_cols * size;
    const uint8_t *data = w->data;
    const int64_t n_strips = (w->n_cols + strip_cols - 1) / strip_cols;
    const int64_t width = ((w->n_cols + n_strips - 1) / n_strips + 15) / 16 * 16; /* of all strips but the last */
    const size_t n_lines = ((size_t)width * size + 63) / 64 * STRIP_ROWS;
    const size_t n_tiles = ((size_t)m + STRIP_ACTS - 1) / STRIP_ACTS;
    for (int64_t k = 0; k < w->n_cols; k += width) {
        const int64_t n = w->n_cols - k < width ? w->n_cols - k : width;
        const bool last = k + n == w->n_cols;
        for (int64_t row = row0; row < row1; row += STRIP_ROWS) {
            const int64_t n_rows = row1 - row < STRIP_ROWS ? row1 - row : STRIP_ROWS;
            int64_t next_row = row + STRIP_ROWS, next_k = k;
            if (next_row >= row1) { /* the chunk's next columns, or the first of the next chunk */
                next_row = last ? next_row : row0;
                next_k = last ? 0 : k + n;
            }
            const struct strip_job job = {
                .w = memory->w,
                .sums = memory->sums[(row - row0) / STRIP_ROWS],
                .n_cols = n,
                .first = k == 0,
                .last = last,
                .x = x->f32 + i0 * x->f32_stride + k,
                .x_stride = x->f32_stride,
                .m = m,
                .y = y + i0 * y_stride + row,
                .y_stride = y_stride,
                .live = (__mmask8)((1u << n_rows) - 1),
                .next = data + (size_t)next_row * row_bytes + (size_t)next_k * size,
                .next_stride = row_bytes,
                .next_lines = n_lines,
                .lines_of_tile = (n_lines + n_tiles - 1) / n_tiles,
            };
            convert_strip(data + (size_t)row * row_bytes + (size_t)k * size, row_bytes, n_rows, n, type, memory->w);
            run_strip(&job);
        }
    }
}

INLINE void float_strips(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                         float *y, int64_t y_stride, const uint32_t type, struct strip_memory *memory)
{
    const int64_t n_slabs = (m + SLAB_ACTS - 1) / SLAB_ACTS; /* equal: in a small one conversion dominates */
    const int64_t slab = ((m + n_slabs - 1) / n_slabs + STRIP_ACTS - 1) / STRIP_ACTS * STRIP_ACTS;
    for (int64_t i = 0; i < m; i += slab)
        for (int64_t row = row0; row < row1; row += CHUNK_ROWS)
            strip_chunk(w, row, row1 - row < CHUNK_ROWS ? row1 : row + CHUNK_ROWS, x, i, m - i < slab ? m - i : slab, y,
                        y_stride, type, memory);
}
