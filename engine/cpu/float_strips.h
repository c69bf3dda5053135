/* float_strips.h - products with float weights and many activation rows for matmul_avx512.c: STRIP_ROWS weight rows are
 * converted to float32, some hundred columns at a time, into the thread's scratch, where they stay in the L1 cache
 * while the activation rows of a slab pass, three at a time. A block of CHUNK_ROWS weight rows meets those columns of
 * the slab before the next columns are begun, so that the L2 cache need not hold more of it, however long its rows
 * are. The 16 partial sums of each product are kept between two strips, so that their order is the canonical one of
 * matmul.h. Private to engine/cpu. */

enum {
    STRIP_ROWS = 8,
    STRIP_COLS = 768, /* at most */
    NARROW_COLS = 704,
    STRIP_ACTS = 3,   /* 24 sums in registers */
    CHUNK_ROWS = 16,  /* weight rows that meet the same columns of a slab: all but the first find them in L2 */
    SLAB_ACTS = 192,  /* activation rows between two conversions of the same weights, at most: whole threes, whose sums
                       * with a chunk's rows fit the scratch */
};

/* Columns of a strip, a multiple of 16; results do not depend on it. Its weights, three rows of activations and the
 * sums that pass must fit the L1 cache together: wide ones where that has 48 KiB, narrow ones where it has 32. */
static int64_t strip_cols = STRIP_COLS;

__attribute__((constructor)) static void choose_strips(void)
{
    enum { WIDE_L1 = 40 * 1024 };
    const long l1 = sysconf(_SC_LEVEL1_DCACHE_SIZE); /* 0 or less: not known */
    if (l1 > 0 && l1 < WIDE_L1)
        strip_cols = NARROW_COLS;
}

/* The 8 x 16 weights of a step lie together: one pointer walks through them, with small offsets in the instructions. */
struct strip_memory {
    float w[STRIP_COLS / 16][STRIP_ROWS][16];
    float sums[CHUNK_ROWS / STRIP_ROWS][SLAB_ACTS][STRIP_ROWS][16];
};
_Static_assert(sizeof(struct strip_memory) <= PP_MATMUL_SCRATCH, "a strip and its sums");

/* What a strip meets. */
struct strip_job {
    const float (*w)[STRIP_ROWS][16];    /* [n_cols / 16, rounded up] */
    float (*sums)[STRIP_ROWS][16];       /* [m], of the strip's rows */
    int64_t n_cols;        /* of the strip; beyond them its weights are zeros */
    bool first, last;      /* strip of its rows */
    const float *x;        /* [m, x_stride], from the strip's first column on */
    int64_t x_stride, m;
    float *y;              /* [m, y_stride], of the strip's first row */
    int64_t y_stride;
    __mmask8 live;         /* which rows there are */
    const uint8_t *next;   /* the first row of what will be converted next: asked for meanwhile, into the L2 cache, */
    size_t next_stride;    /* bytes from row to row, */
    size_t next_lines;     /* so many lines of all its rows, */
    size_t lines_of_tile;  /* and by each tile so many of those */
};

/* Lanes l and l + 8 of a, then of b. */
INLINE __m512 fold8(__m512 a, __m512 b)
{
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}

/* Lanes l and l + 4 of each 8. */
INLINE __m512 fold4(__m512 a, __m512 b)
{
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

/* Lanes l and l + 2 of each 4. */
INLINE __m512 fold2(__m512 a, __m512 b)
{
    return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
}

/* The sums of 8 vectors in the order of sum_lanes(). */
INLINE __m256 sum_lanes_of_8(const __m512 *a)
{
    __m512 s = fold2(fold4(fold8(a[0], a[1]), fold8(a[2], a[3])), fold4(fold8(a[4], a[5]), fold8(a[6], a[7])));
    s = _mm512_add_ps(s, _mm512_movehdup_ps(s)); /* rows 0 4 | 1 5 | 2 6 | 3 7 in even lanes */
    const __m512i at = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    return _mm512_castps512_ps256(_mm512_permutexvar_ps(at, s));
}

/* 16 columns of the strip with M activation rows. */
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

/* A tile's share of what will be converted next. */
INLINE void prefetch_next(const struct strip_job *job, int64_t tile)
{
    const size_t end = ((size_t)tile + 1) * job->lines_of_tile;
    for (size_t l = (size_t)tile * job->lines_of_tile; l < end && l < job->next_lines; l++)
        __builtin_prefetch((const void *)((uintptr_t)job->next + l % STRIP_ROWS * job->next_stride +
                                          l / STRIP_ROWS * 64), 0, 2);
}

/* Activation rows i0 to i0 + M - 1; the tile-th of its strip. The next one's sums are asked for, a line with each step:
 * two cores of a Zen 5, F16, 512 rows, medians of seven turns in two starts, billions of multiply-adds a second:
 * 2,048 x 5,632 156 and 158, 125 and 128; 5,632 x 2,048 166 and 170, 174 and 173. Its activations, too: 137 and 156,
 * 153 and 160, but one core 81 and 81, 76 and 68, and 256 rows of 2,048 x 2,048 162 and 158. On an Emerald Rapids all
 * are alike. */
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

/* Rows that are not there, and columns behind n up to a multiple of 16, become zeros. */
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

/* All columns of weight rows row0 to row1 - 1, a chunk, with the rows [i0, i0 + m) of x, a slab. */
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
    const int64_t n_slabs = (m + SLAB_ACTS - 1) / SLAB_ACTS; /* alike: a small one would be mostly conversion */
    const int64_t slab = ((m + n_slabs - 1) / n_slabs + STRIP_ACTS - 1) / STRIP_ACTS * STRIP_ACTS;
    for (int64_t i = 0; i < m; i += slab)
        for (int64_t row = row0; row < row1; row += CHUNK_ROWS)
            strip_chunk(w, row, row1 - row < CHUNK_ROWS ? row1 : row + CHUNK_ROWS, x, i, m - i < slab ? m - i : slab, y,
                        y_stride, type, memory);
}
