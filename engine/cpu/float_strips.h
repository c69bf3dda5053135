/* float_strips.h - products with float weights and many activation rows for matmul_avx512.c: STRIP_ROWS weight rows are
 * converted to float32 once, STRIP_COLS columns at a time, into the thread's scratch, where they stay in the L1 cache
 * while all activation rows pass. The 16 partial sums of each product are kept beside them between two strips, so that
 * their order is the canonical one of matmul.h. Private to engine/cpu. */

enum {
    STRIP_ROWS = 8,
    STRIP_COLS = 768, /* at most */
    STRIP_ACTS = 3,   /* 24 sums in registers */
    /* Activation rows between two conversions of the same weights, at least and at most. */
    MIN_SLAB = 24,
    MAX_SLAB = 192,
};

/* How strips use the caches; results do not depend on it. */
struct strip_way {
    int64_t cols;       /* of a strip, a multiple of 16 */
    int64_t slab_bytes; /* activations between two conversions of the same weights: so few that they stay in the L2
                         * cache while one strip after another of an item's weights passes, yet enough to repay one */
};

/* Billions of multiply-adds a second on two cores, 512 rows of F16 with 2,048 and 5,632 columns. L1 caches of 48 KiB,
 * Granite Rapids (their peak is 214): 512 columns 140 and 110, 640 141 and 111, 768 145 and 109, 896 141 and 104, 1,024
 * 124 and 102. */
static const struct strip_way wide_strips = {STRIP_COLS, 1 << 20};
/* Of 32 KiB, which those sums and weights and the next activations do not fit together; Cascade Lake (their peak is
 * 153): as wide 33 and 31, these 45 and 46, with half a megabyte of activations 47 and 34. */
static const struct strip_way narrow_strips = {512, 1 << 18};
static const struct strip_way *strip_way = &wide_strips;

__attribute__((constructor)) static void choose_strips(void)
{
    const long l1 = sysconf(_SC_LEVEL1_DCACHE_SIZE); /* 0 or less: not known */
    if (l1 > 0 && l1 < 40 * 1024)
        strip_way = &narrow_strips;
}

struct strip_memory {
    float w[STRIP_ROWS][STRIP_COLS];
    float sums[MAX_SLAB][STRIP_ROWS][16];
};
_Static_assert(sizeof(struct strip_memory) <= PP_MATMUL_SCRATCH, "a strip and its sums");

/* What a strip meets. */
struct strip_job {
    struct strip_memory *memory;
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

/* A value that is to be loaded once: compilers would load it anew for each product, which are more loads than the
 * processor can do beside them (95 GMAC/s instead of 118). */
INLINE void hold(__m512 *a)
{
#if defined(__AVX512F__) /* not where the tests' software model stands for the instructions */
    __asm__("" : "+v"(*a));
#else
    (void)a;
#endif
}

/* 16 columns from k on of the strip, with M activation rows. */
INLINE void strip_step(const struct strip_memory *s, const float *x, int64_t x_stride, int64_t k, __mmask16 live,
                       __m512 (*acc)[STRIP_ROWS], const int M)
{
    __m512 xk[STRIP_ACTS];
    UNROLL for (int i = 0; i < M; i++)
        xk[i] = _mm512_maskz_loadu_ps(live, x + i * x_stride + k);
    UNROLL for (int r = 0; r < STRIP_ROWS; r++)
    {
        __m512 wk = _mm512_load_ps(s->w[r] + k);
        hold(&wk);
        UNROLL for (int i = 0; i < M; i++)
            acc[i][r] = _mm512_fmadd_ps(wk, xk[i], acc[i][r]);
    }
}

/* A tile's share of what will be converted next. */
INLINE void ask_for_next(const struct strip_job *job, int64_t tile)
{
    const size_t end = ((size_t)tile + 1) * job->lines_of_tile;
    for (size_t l = (size_t)tile * job->lines_of_tile; l < end && l < job->next_lines; l++)
        __builtin_prefetch((const void *)((uintptr_t)job->next + l % STRIP_ROWS * job->next_stride +
                                          l / STRIP_ROWS * 64), 0, 2);
}

/* Activation rows i0 to i0 + M - 1; the tile-th of its strip. */
INLINE void strip_tile(const struct strip_job *job, int64_t i0, int64_t tile, const int M)
{
    struct strip_memory *s = job->memory;
    const float *x = job->x + i0 * job->x_stride;
    __m512 acc[STRIP_ACTS][STRIP_ROWS];
    int64_t k = 0;
    UNROLL for (int i = 0; i < M; i++)
        UNROLL for (int r = 0; r < STRIP_ROWS; r++)
            acc[i][r] = job->first ? _mm512_setzero_ps() : _mm512_load_ps(s->sums[i0 + i][r]);
    ask_for_next(job, tile);
    for (; k + 16 <= job->n_cols; k += 16)
        strip_step(s, x, job->x_stride, k, 0xffff, acc, M);
    if (k < job->n_cols)
        strip_step(s, x, job->x_stride, k, first_lanes(job->n_cols - k), acc, M);
    UNROLL for (int i = 0; i < M; i++)
        if (job->last)
            _mm256_mask_storeu_ps(job->y + (i0 + i) * job->y_stride, job->live, sum_lanes_of_8(acc[i]));
        else
            UNROLL for (int r = 0; r < STRIP_ROWS; r++)
                _mm512_store_ps(s->sums[i0 + i][r], acc[i][r]);
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
                          struct strip_memory *to)
{
    for (int64_t r = 0; r < STRIP_ROWS; r++)
        for (int64_t k = 0; k < n; k += 16)
            _mm512_store_ps(to->w[r] + k, load_floats(w + (size_t)r * row_bytes, k,
                                                      r < n_rows ? first_lanes(n - k) : 0, type));
}

/* All columns of at most STRIP_ROWS rows with the rows [i0, i0 + m) of x. */
INLINE void strip_rows(const struct pp_matrix *w, int64_t row, int64_t n_rows, const struct pp_acts *x, int64_t i0,
                       int64_t m, float *y, int64_t y_stride, const uint32_t type, struct strip_memory *memory)
{
    const size_t size = type == PP_TYPE_F32 ? 4 : 2, row_bytes = (size_t)w->n_cols * size;
    const uint8_t *data = (const uint8_t *)w->data + (size_t)row * row_bytes;
    const struct strip_way *way = strip_way;
    const int64_t n_strips = (w->n_cols + way->cols - 1) / way->cols;
    const int64_t width = ((w->n_cols + n_strips - 1) / n_strips + 15) / 16 * 16; /* of all strips but the last */
    const size_t n_lines = ((size_t)width * size + 63) / 64 * STRIP_ROWS;
    const size_t n_tiles = ((size_t)m + STRIP_ACTS - 1) / STRIP_ACTS;
    for (int64_t k = 0; k < w->n_cols; k += width) {
        int64_t n = w->n_cols - k < width ? w->n_cols - k : width;
        bool last = k + n == w->n_cols;
        const struct strip_job job = {
            .memory = memory,
            .n_cols = n,
            .first = k == 0,
            .last = last,
            .x = x->f32 + i0 * x->f32_stride + k,
            .x_stride = x->f32_stride,
            .m = m,
            .y = y + i0 * y_stride + row,
            .y_stride = y_stride,
            .live = (__mmask8)((1u << n_rows) - 1),
            .next = last ? data + STRIP_ROWS * row_bytes : data + (size_t)(k + n) * size,
            .next_stride = row_bytes,
            .next_lines = n_lines,
            .lines_of_tile = (n_lines + n_tiles - 1) / n_tiles,
        };
        convert_strip(data + (size_t)k * size, row_bytes, n_rows, n, type, memory);
        run_strip(&job);
    }
}

INLINE void float_strips(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                         float *y, int64_t y_stride, const uint32_t type, struct strip_memory *memory)
{
    const int64_t fit = strip_way->slab_bytes / (int64_t)sizeof *x->f32 / w->n_cols;
    const int64_t slab = fit < MIN_SLAB ? MIN_SLAB : fit > MAX_SLAB ? MAX_SLAB : fit, n_slabs = (m + slab - 1) / slab;
    for (int64_t s = 0; s < n_slabs; s++) {
        int64_t i0 = s * m / n_slabs, rows = (s + 1) * m / n_slabs - i0;
        for (int64_t row = row0; row < row1; row += STRIP_ROWS)
            strip_rows(w, row, row1 - row < STRIP_ROWS ? row1 - row : STRIP_ROWS, x, i0, rows, y, y_stride, type,
                       memory);
    }
}
