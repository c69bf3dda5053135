/* float_lanes.h - products of very many activation rows with F16 and BF16 weights, for matmul_avx2.c and
 * matmul_avx512.c. matmul.h defines a product as 16 partial sums, one for each "lane" l, over the columns l, l + 16, l
 * + 32, ... Here one lane is computed after the other. A panel of LANE_VECS vectors of weight rows is transposed once:
 * then the columns of a lane are contiguous, and a vector holds one column of LANES rows. The weights of a lane are
 * converted to float32, PIECE_STEPS columns at a time, and stay in the L1 cache while the activations pass in tiles of
 * 6 rows. A step, one column, takes 8 loads for 12 multiply-adds with 16 registers, or 10 for 24 with 32 registers; 6
 * of these loads broadcast an activation. Thus a multiply-add needs less cache bandwidth than where both factors are
 * vectors of columns (matmul_avx2_floats.h, float_strips.h), and weights are converted only once.
 *
 * Activations are rearranged beforehand (arrange_by_lane()): first one piece of a lane of all tiles, then the next
 * piece; within a piece, tile by tile, the 6 rows of each column side by side. Thus each panel reads them once from
 * front to back, or slab by slab if the sums of all tiles do not fit the scratch.
 *
 * Lanes are computed in the order 0, 8, 4, 12, 2, ... After each of them, sums whose partners are complete are added in
 * the order of matmul.h, so that at most SUMS_KEPT sums of a product are kept.
 *
 * The including file has defined: fvec, LANES, f_load, f_store (aligned), f_zero, f_set1, f_add, f_fma (a b + c),
 * f_held (returns its argument, forcing it into a register), load_lanes(row, k, type), which converts LANES weights
 * from column k on, and LANE_VECS, LANE_ACTS and PIECE_STEPS.
 *
 * Measured with AVX2 on two cores of a Zen 3 whose neighbours are busy, G multiply-adds/s with matmul_avx2_floats.h and
 * with this, medians of 15 or 21 rounds: 256 rows of 2,048 columns 51 and 70, of 5,632 columns 54 and 73; 96 rows 51
 * and 65, 48 rows 51 and 57, 36 rows 48 and 53, 30 rows 48 and 49, 24 rows 51 and 47. Tried and slower, where 256 rows
 * took 66 at that time: each activation row arranged by itself 59; prefetching tiles 59; keeping 16 partial sums of 512
 * columns instead of one lane after the other 51; two panels side by side 67 (but 49 instead of 57 with 5,632 columns);
 * a loop that is not unrolled 58. Tiles of 4 rows with panels of three vectors: 51 and 46 with 2,048 and 5,632 columns,
 * where these took 52 and 49. */

enum {
    ALL_LANES = 16,                /* partial sums of a product */
    LANE_ROWS = LANE_VECS * LANES, /* weight rows of a panel */
    TRANSPOSED_ROWS = 8,           /* weight rows that are transposed together */
    SUMS_KEPT = 5,                 /* sums of a product that are kept at most: 4 that wait, and the current one */
};

/* The n columns of a matrix give `steps` columns per lane, which are divided into pieces of equal length. */
struct lane_pieces {
    int64_t steps, piece;
};

INLINE struct lane_pieces pieces_of(int64_t n)
{
    const int64_t steps = (n + ALL_LANES - 1) / ALL_LANES, n_pieces = (steps + PIECE_STEPS - 1) / PIECE_STEPS;
    return (struct lane_pieces){steps, (steps + n_pieces - 1) / n_pieces};
}

/* The lane that is computed i-th: the four bits of i reversed. */
INLINE int lane_of(int i)
{
    return (i & 1) << 3 | (i & 2) << 1 | (i & 4) >> 1 | (i & 8) >> 3;
}

/* Transposes 8 vectors of 8 floats. */
INLINE void transpose_floats(__m256 *r)
{
    __m256 t[8], u[8];
    UNROLL for (int i = 0; i < 8; i += 2)
    {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    UNROLL for (int i = 0; i < 8; i += 4)
        UNROLL for (int k = 0; k < 2; k++)
        {
            u[i + 2 * k] = _mm256_shuffle_ps(t[i + k], t[i + k + 2], 0x44);
            u[i + 2 * k + 1] = _mm256_shuffle_ps(t[i + k], t[i + k + 2], 0xee);
        }
    UNROLL for (int i = 0; i < 4; i++)
    {
        r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

/* Transposes 8 vectors of 16 numbers of 16 bits: in each half of the vectors, the matrix of 8 x 8 numbers there. */
INLINE void transpose_words(__m256i *r)
{
    __m256i t[8], u[8];
    UNROLL for (int i = 0; i < 8; i += 2)
    {
        t[i] = _mm256_unpacklo_epi16(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_epi16(r[i], r[i + 1]);
    }
    UNROLL for (int i = 0; i < 8; i += 4)
        UNROLL for (int k = 0; k < 2; k++)
        {
            u[i + 2 * k] = _mm256_unpacklo_epi32(t[i + k], t[i + k + 2]);
            u[i + 2 * k + 1] = _mm256_unpackhi_epi32(t[i + k], t[i + k + 2]);
        }
    UNROLL for (int i = 0; i < 4; i++)
    {
        r[2 * i] = _mm256_unpacklo_epi64(u[i], u[i + 4]);
        r[2 * i + 1] = _mm256_unpackhi_epi64(u[i], u[i + 4]);
    }
}

/* --- activations -------------------------------------------------------------------------------------------------- */

/* Stores the first 6 of 8 floats. */
INLINE void store_six(float *to, __m256 v)
{
    _mm_storeu_ps(to, _mm256_castps256_ps128(v));
    _mm_storel_pi((__m64 *)(void *)(to + 4), _mm256_extractf128_ps(v, 1));
}

/* Arranges 16 columns, one of each lane, of a tile. out: that of the first lane; lanes are `stride` floats apart. */
INLINE void arrange_step(const float *x, int64_t x_stride, int rows, float *out, int64_t stride)
{
    for (int half = 0; half < 2; half++) {
        __m256 r[8];
        UNROLL for (int k = 0; k < 8; k++)
            r[k] = k < LANE_ACTS && k < rows ? _mm256_loadu_ps(x + k * x_stride + 8 * half) : _mm256_setzero_ps();
        transpose_floats(r);
        UNROLL for (int k = 0; k < 8; k++)
            store_six(out + stride * lane_of(8 * half + k), r[k]); /* lane_of() is its own inverse */
    }
}
_Static_assert(LANE_ACTS == 6, "as arrange_step() has it");

static void arrange_by_lane(const float *x, int64_t x_stride, int rows, int64_t n, int64_t tile, int64_t n_tiles,
                            float *out)
{
    const struct lane_pieces p = pieces_of(n);
    const int64_t lane = pp_by_lane_stride(LANE_ACTS, n_tiles * LANE_ACTS, n);
    for (int64_t first = 0; first < p.steps; first += p.piece) {
        const int64_t end = p.steps - first < p.piece ? p.steps : first + p.piece;
        float *to = out + (first * n_tiles + tile * (end - first)) * LANE_ACTS;
        for (int64_t s = first; s < end; s++, to += LANE_ACTS) {
            float rest[LANE_ACTS][ALL_LANES] = {{0}};
            if (ALL_LANES * (s + 1) <= n) {
                arrange_step(x + ALL_LANES * s, x_stride, rows, to, lane);
                continue;
            }
            for (int k = 0; k < rows; k++)
                memcpy(rest[k], x + k * x_stride + ALL_LANES * s, (size_t)(n - ALL_LANES * s) * sizeof *x);
            arrange_step(rest[0], ALL_LANES, rows, to, lane);
        }
    }
}

/* --- products ----------------------------------------------------------------------------------------------------- */

/* A panel of weight rows, and the activations to multiply it by. */
struct lane_job {
    const uint8_t *w;      /* the panel's first row */
    size_t row_bytes;
    int rows;              /* of the panel that exist */
    int64_t n;
    struct lane_pieces p;
    const float *x;        /* all tiles, arranged by arrange_by_lane() */
    int64_t n_tiles;
    uint16_t *transposed;  /* [ALL_LANES, transposed_lane()]: in each lane [p.steps, LANE_ROWS] */
    float *floats;         /* [PIECE_STEPS, LANE_ROWS]: the current piece, converted */
    float *sums;           /* [SUMS_KEPT, slab * LANE_ACTS, LANE_ROWS] */
    int64_t slab;          /* tiles that are multiplied by a panel together, at most */
    const uint8_t *next;   /* the next panel, to be prefetched meanwhile; or NULL */
};

/* Distance of lanes in a transposed panel: an odd number of cache lines, so that lanes do not compete for the same sets
 * of the L1 cache. */
INLINE int64_t transposed_lane(const struct lane_job *j)
{
    const int64_t numbers = j->p.steps * LANE_ROWS, line = 32;
    return numbers + (numbers / line % 2 ? 0 : line);
}

/* Transposes a panel. Rows that do not exist are replaced by the first row; their results are not read. 8 rows at a
 * time, because rows are often a power of two apart and compete for sets of the L1 cache: with few rows each cache line
 * is read completely before it is evicted. */
static __attribute__((noinline)) void transpose_panel(const struct lane_job *j)
{
    const int64_t lane = transposed_lane(j);
    for (int first = 0; first < LANE_ROWS; first += TRANSPOSED_ROWS) {
        const uint8_t *row[TRANSPOSED_ROWS];
        for (int k = 0; k < TRANSPOSED_ROWS; k++)
            row[k] = j->w + (size_t)(first + k < j->rows ? first + k : 0) * j->row_bytes;
        for (int64_t s = 0; s < j->p.steps; s++) {
            __m256i r[TRANSPOSED_ROWS];
            UNROLL for (int k = 0; k < TRANSPOSED_ROWS; k++)
                if (ALL_LANES * (s + 1) <= j->n) {
                    r[k] = _mm256_loadu_si256((const __m256i *)(const void *)(row[k] + 2 * ALL_LANES * s));
                } else {
                    uint16_t rest[ALL_LANES] = {0};
                    memcpy(rest, row[k] + 2 * ALL_LANES * s, (size_t)(j->n - ALL_LANES * s) * sizeof *rest);
                    r[k] = _mm256_loadu_si256((const __m256i *)rest);
                }
            transpose_words(r);
            UNROLL for (int k = 0; k < TRANSPOSED_ROWS; k++)
            {
                uint16_t *to = j->transposed + k * lane + s * LANE_ROWS + first;
                _mm_store_si128((__m128i *)(void *)to, _mm256_castsi256_si128(r[k]));
                _mm_store_si128((__m128i *)(void *)(to + TRANSPOSED_ROWS * lane), _mm256_extracti128_si256(r[k], 1));
            }
        }
    }
}

/* Converts a piece of a lane to float32. */
INLINE void convert_piece(const struct lane_job *j, int lane, int64_t first, int64_t steps, const uint32_t type)
{
    const uint8_t *from = (const uint8_t *)(j->transposed + lane * transposed_lane(j) + first * LANE_ROWS);
    for (int64_t k = 0; k < steps * LANE_ROWS; k += LANES)
        f_store(j->floats + k, load_lanes(from, k, type));
}

/* Multiplies a piece of a lane by a tile. sums: the tile's sums of this lane. After the lane's last piece, `add` of
 * the sums kept before these are added, `apart` floats from one to the next, and the result replaces the earliest of
 * them. */
INLINE void lane_tile(const float *w, const float *x, int64_t steps, float *sums, bool first, int add, int64_t apart)
{
    fvec acc[LANE_ACTS][LANE_VECS];
    UNROLL for (int i = 0; i < LANE_ACTS; i++)
        UNROLL for (int v = 0; v < LANE_VECS; v++)
            acc[i][v] = first ? f_zero() : f_load(sums + LANE_ROWS * i + LANES * v);
#pragma GCC unroll 4
    for (int64_t s = 0; s < steps; s++, w += LANE_ROWS, x += LANE_ACTS) {
        fvec ws[LANE_VECS];
        UNROLL for (int v = 0; v < LANE_VECS; v++)
            ws[v] = f_held(f_load(w + LANES * v));
        UNROLL for (int i = 0; i < LANE_ACTS; i++)
        {
            const fvec xi = f_held(f_set1(x[i]));
            UNROLL for (int v = 0; v < LANE_VECS; v++)
                acc[i][v] = f_fma(ws[v], xi, acc[i][v]);
        }
    }
    for (; add > 0; add--) {
        sums -= apart;
        UNROLL for (int i = 0; i < LANE_ACTS; i++)
            UNROLL for (int v = 0; v < LANE_VECS; v++)
                acc[i][v] = f_add(f_load(sums + LANE_ROWS * i + LANES * v), acc[i][v]);
    }
    UNROLL for (int i = 0; i < LANE_ACTS; i++)
        UNROLL for (int v = 0; v < LANE_VECS; v++)
            f_store(sums + LANE_ROWS * i + LANES * v, acc[i][v]);
}

/* Prefetches `some` more lines of the next panel. Returns how many have been prefetched so far. */
INLINE int64_t prefetch_panel(const struct lane_job *j, int64_t fetched, int64_t some)
{
    const int64_t n_lines = (int64_t)(j->row_bytes + 63) / 64 * LANE_ROWS;
    for (int64_t end = fetched + some; fetched < end && fetched < n_lines; fetched++)
        __builtin_prefetch((const void *)((uintptr_t)j->next + (size_t)(fetched % LANE_ROWS) * j->row_bytes +
                                          (size_t)(fetched / LANE_ROWS) * 64), 0, 2);
    return fetched;
}

/* Multiplies a panel by the tiles of a slab, with the results in `sums`. The last slab also prefetches the next panel,
 * but only in its last four lanes, lest activations evict it from the L2 cache again: AVX2, 96 rows of 2,048 columns, G
 * multiply-adds/s: 55.3 without, 57.7 in these four, 57.2 in all, 53.4 in the last lane only. */
INLINE void lane_panel(const struct lane_job *j, int64_t tile, int64_t end_tile, const uint32_t type)
{
    enum { PREFETCHING = 4 };
    const int64_t apart = j->slab * LANE_ACTS * LANE_ROWS;
    const int64_t stride = pp_by_lane_stride(LANE_ACTS, j->n_tiles * LANE_ACTS, j->n);
    const int64_t some = (int64_t)(j->row_bytes + 63) / 64 * LANE_ROWS / (PREFETCHING * (end_tile - tile)) + 1;
    const bool prefetches = j->next && end_tile == j->n_tiles;
    int64_t fetched = 0;
    float *sums = j->sums; /* of the current lane, after those that are kept */
    for (int i = 0; i < ALL_LANES; i++, sums += apart) {
        const int add = __builtin_ctz(~(unsigned)i); /* the carries when i is incremented: sums that are now complete */
        for (int64_t first = 0, steps; first < j->p.steps; first += steps) {
            steps = j->p.steps - first < j->p.piece ? j->p.steps - first : j->p.piece;
            convert_piece(j, lane_of(i), first, steps, type);
            const float *x = j->x + i * stride + (first * j->n_tiles + tile * steps) * LANE_ACTS;
            for (int64_t t = 0; t < end_tile - tile; t++, x += steps * LANE_ACTS) {
                if (prefetches && i >= ALL_LANES - PREFETCHING)
                    fetched = prefetch_panel(j, fetched, some);
                lane_tile(j->floats, x, steps, sums + t * LANE_ACTS * LANE_ROWS, first == 0,
                          first + steps == j->p.steps ? add : 0, apart);
            }
        }
        sums -= add * apart;
    }
}

INLINE void float_lanes(const struct pp_matrix *w, int64_t row0, int64_t row1, int64_t m, float *y, int64_t y_stride,
                        struct lane_job *j, const uint32_t type)
{
    for (int64_t row = row0; row < row1; row += LANE_ROWS) {
        j->w = (const uint8_t *)w->data + (size_t)row * j->row_bytes;
        j->rows = row1 - row < LANE_ROWS ? (int)(row1 - row) : LANE_ROWS;
        transpose_panel(j);
        j->next = row1 - row >= 2 * LANE_ROWS ? j->w + LANE_ROWS * j->row_bytes : NULL;
        for (int64_t tile = 0, end; tile < j->n_tiles; tile = end) {
            end = j->n_tiles - tile < j->slab ? j->n_tiles : tile + j->slab;
            lane_panel(j, tile, end, type);
            for (int64_t i = tile * LANE_ACTS; i < end * LANE_ACTS && i < m; i++)
                memcpy(y + i * y_stride + row, j->sums + (i - tile * LANE_ACTS) * LANE_ROWS,
                       (size_t)j->rows * sizeof *y);
        }
    }
}

#define FLOAT_LANES(TYPE, name)                                                                                        \
    static __attribute__((noinline)) void float_lanes_##name(const struct pp_matrix *w, int64_t row0, int64_t row1,    \
                                                             int64_t m, float *y, int64_t y_stride,                    \
                                                             struct lane_job *j)                                       \
    {                                                                                                                  \
        float_lanes(w, row0, row1, m, y, y_stride, j, PP_TYPE_##TYPE);                                                 \
    }
FLOAT_LANES(F16, f16)
FLOAT_LANES(BF16, bf16)
#undef FLOAT_LANES

/* Returns false, and does nothing, if these activations have not been arranged by lane. */
static bool matmul_by_lane(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                           float *y, int64_t y_stride, void *scratch)
{
    enum { PIECE_FLOATS = PIECE_STEPS * LANE_ROWS, ROOM = PP_MATMUL_SCRATCH / (int)sizeof(float) - PIECE_FLOATS };
    enum { MOST_TILES = ROOM / (SUMS_KEPT * LANE_ACTS * LANE_ROWS) };
    if (!x->by_lane || x->by_lane->rows != m || w->type == PP_TYPE_F32)
        return false;
    const int64_t n_tiles = (m + LANE_ACTS - 1) / LANE_ACTS, n_slabs = (n_tiles + MOST_TILES - 1) / MOST_TILES;
    struct lane_job j = {
        .row_bytes = (size_t)w->n_cols * 2,
        .n = w->n_cols,
        .p = pieces_of(w->n_cols),
        .x = x->by_lane->x,
        .n_tiles = n_tiles,
        .transposed = x->by_lane->panel,
        .floats = scratch,
        .sums = (float *)scratch + PIECE_FLOATS,
        .slab = (n_tiles + n_slabs - 1) / n_slabs,
    };
    if (w->type == PP_TYPE_F16)
        float_lanes_f16(w, row0, row1, m, y, y_stride, &j);
    else
        float_lanes_bf16(w, row0, row1, m, y, y_stride, &j);
    return true;
}
