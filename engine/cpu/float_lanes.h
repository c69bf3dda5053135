/* float_lanes.h - products of very many activation rows with F16 and BF16 weights, for matmul_avx2.c: one of the 16
 * partial sums of matmul.h after the other. A panel of 16 weight rows is turned once, so that the columns of a lane lie
 * together and a vector has a column of 8 rows. Of a lane the panel's weights are made floats, PIECE_STEPS columns at a
 * time, and stay in the first cache while all activations pass, 6 rows at a time: 12 sums in registers, and 8 loads for
 * 12 multiply-adds, of which 6 are of one number that all lanes of a vector get. So less comes from the caches for a
 * multiply-add than where both factors are vectors of columns (matmul_avx2_floats.h), and weights are converted once.
 *
 * Activations have to be arranged for that: in tiles of 6 rows, and first a piece of a lane of all tiles, then the next
 * piece. So each panel reads them once, from front to back.
 *
 * Lanes come in the order 0, 8, 4, 12, 2, ... With each one whichever partial sums are complete are added, as matmul.h
 * has it, so that SUMS_KEPT wait at most.
 *
 * Two cores of a Zen 3 whose neighbours are busy, G multiply-adds/s of the other way and of this one, medians of 15 or
 * 21 turns: 256 rows of 2,048 columns 51 and 70, of 5,632 columns 54 and 73; 96 rows 51 and 65, 48 rows 51 and 57, 36
 * rows 48 and 53, 30 rows 48 and 49, 24 rows 51 and 47. Lost, of 66 at that time with 256 rows: activation rows each
 * arranged by themselves 59, tiles asked for ahead 59, 16 partial sums of 512 columns kept instead of one lane after
 * the other 51, two panels side by side 67 (and 49 of 57 with 5,632 columns), a loop that is not unrolled 58.
 */

enum {
    ALL_LANES = 16,    /* partial sums of a product */
    LANE_ROWS = 16,    /* weight rows: two vectors */
    LANE_ACTS = PP_AVX2_LANE_ACTS,
    PIECE_STEPS = 256, /* columns of a lane, at most */
    SUMS_KEPT = 5,
};

/* The columns of a lane, in pieces that are alike. */
struct lane_pieces {
    int64_t steps, piece;
};

INLINE struct lane_pieces pieces_of(int64_t n)
{
    const int64_t steps = (n + ALL_LANES - 1) / ALL_LANES, n_pieces = (steps + PIECE_STEPS - 1) / PIECE_STEPS;
    return (struct lane_pieces){steps, (steps + n_pieces - 1) / n_pieces};
}

/* The i-th lane: i with its four bits the other way round. */
INLINE int lane_of(int i)
{
    return (i & 1) << 3 | (i & 2) << 1 | (i & 4) >> 1 | (i & 8) >> 3;
}

/* Turns 8 vectors of 8 floats. */
INLINE void turn_floats(__m256 *r)
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

/* Turns 8 vectors of 16 numbers of 16 bits: of both halves 8 x 8, each within its half. */
INLINE void turn_words(__m256i *r)
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

/* 16 columns of a tile, whose places in `out` are `stride` floats apart from lane to lane. */
INLINE void arrange_step(const float *x, int64_t x_stride, int rows, float *out, int64_t stride)
{
    for (int half = 0; half < 2; half++) {
        __m256 r[8];
        UNROLL for (int k = 0; k < 8; k++)
            r[k] = k < rows ? _mm256_loadu_ps(x + k * x_stride + 8 * half) : _mm256_setzero_ps();
        turn_floats(r);
        UNROLL for (int k = 0; k < 8; k++)
        {
            float *to = out + stride * lane_of(8 * half + k); /* which is its own inverse */
            _mm_storeu_ps(to, _mm256_castps256_ps128(r[k]));
            _mm_storel_pi((__m64 *)(void *)(to + 4), _mm256_extractf128_ps(r[k], 1));
        }
    }
}

static void arrange_by_lane(const float *x, int64_t x_stride, int rows, int64_t n, int64_t tile, int64_t n_tiles,
                            float *out)
{
    const struct lane_pieces p = pieces_of(n);
    const int64_t lane = p.steps * n_tiles * LANE_ACTS;
    for (int64_t first = 0; first < p.steps; first += p.piece) {
        const int64_t end = p.steps - first < p.piece ? p.steps : first + p.piece;
        float *to = out + (first * n_tiles + tile * (end - first)) * LANE_ACTS;
        for (int64_t s = first; s < end; s++, to += LANE_ACTS) {
            float rest[8][ALL_LANES] = {{0}}; /* as many as are turned together */
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

/* A panel of weight rows, and what it meets. */
struct lane_job {
    const uint8_t *w;      /* its first row */
    size_t row_bytes;
    int rows;              /* that there are */
    int64_t n;
    struct lane_pieces p;
    const float *x;        /* as arranged, of all tiles */
    int64_t n_tiles;
    uint16_t *turned;      /* [ALL_LANES, turned_lane()]: of a lane [p.steps, LANE_ROWS] */
    float *open;           /* [PIECE_STEPS, LANE_ROWS] */
    float *sums;           /* [SUMS_KEPT, n_tiles * LANE_ACTS, LANE_ROWS] */
    const uint8_t *next;   /* the panel behind it, if it is to be asked for meanwhile; else NULL */
};

/* Numbers from lane to lane of a turned panel: an odd number of lines, so that lanes do not compete for places in the
 * first cache. */
INLINE int64_t turned_lane(const struct lane_job *j)
{
    return j->p.steps * LANE_ROWS + (j->p.steps % 4 < 2 ? 32 : 0);
}

/* Rows that are not there are the first one once more: nobody reads what comes of them. 8 rows at a time, because rows
 * often do compete: each line is used up before the first cache loses it. */
static __attribute__((noinline)) void turn_panel(const struct lane_job *j)
{
    const int64_t lane = turned_lane(j);
    for (int half = 0; half < 2; half++) {
        const uint8_t *row[8];
        for (int k = 0; k < 8; k++)
            row[k] = j->w + (size_t)(8 * half + k < j->rows ? 8 * half + k : 0) * j->row_bytes;
        for (int64_t s = 0; s < j->p.steps; s++) {
            __m256i r[8];
            UNROLL for (int k = 0; k < 8; k++)
                if (ALL_LANES * (s + 1) <= j->n) {
                    r[k] = _mm256_loadu_si256((const __m256i *)(const void *)(row[k] + 2 * ALL_LANES * s));
                } else {
                    uint16_t rest[ALL_LANES] = {0};
                    memcpy(rest, row[k] + 2 * ALL_LANES * s, (size_t)(j->n - ALL_LANES * s) * sizeof *rest);
                    r[k] = _mm256_loadu_si256((const __m256i *)rest);
                }
            turn_words(r);
            UNROLL for (int k = 0; k < 8; k++)
            {
                uint16_t *to = j->turned + k * lane + s * LANE_ROWS + 8 * half;
                _mm_store_si128((__m128i *)(void *)to, _mm256_castsi256_si128(r[k]));
                _mm_store_si128((__m128i *)(void *)(to + 8 * lane), _mm256_extracti128_si256(r[k], 1));
            }
        }
    }
}

/* A piece of a lane, as floats. */
INLINE void open_piece(const struct lane_job *j, int lane, int64_t first, int64_t steps, const uint32_t type)
{
    const uint8_t *from = (const uint8_t *)(j->turned + lane * turned_lane(j) + first * LANE_ROWS);
    for (int64_t k = 0; k < steps * LANE_ROWS; k += LANES)
        _mm256_store_ps(j->open + k, load_floats(from, k, type));
}

/* A piece of a lane times a tile. `sums`: where those of this lane are, of the tile; with `add` they are complete, and
 * go to so many that wait before them, `apart` floats from one to the next. */
INLINE void lane_tile(const float *w, const float *x, int64_t steps, float *sums, bool first, int add, int64_t apart)
{
    __m256 acc[LANE_ACTS][2];
    UNROLL for (int i = 0; i < LANE_ACTS; i++)
        UNROLL for (int half = 0; half < 2; half++)
            acc[i][half] = first ? _mm256_setzero_ps() : _mm256_load_ps(sums + LANE_ROWS * i + LANES * half);
#pragma GCC unroll 4
    for (int64_t s = 0; s < steps; s++, w += LANE_ROWS, x += LANE_ACTS) {
        const __m256 w0 = held(_mm256_load_ps(w)), w1 = held(_mm256_load_ps(w + LANES));
        UNROLL for (int i = 0; i < LANE_ACTS; i++)
        {
            const __m256 xi = held(_mm256_broadcast_ss(x + i));
            acc[i][0] = _mm256_fmadd_ps(w0, xi, acc[i][0]);
            acc[i][1] = _mm256_fmadd_ps(w1, xi, acc[i][1]);
        }
    }
    for (; add > 0; add--) {
        sums -= apart;
        UNROLL for (int i = 0; i < LANE_ACTS; i++)
            UNROLL for (int half = 0; half < 2; half++)
                acc[i][half] = _mm256_add_ps(_mm256_load_ps(sums + LANE_ROWS * i + LANES * half), acc[i][half]);
    }
    UNROLL for (int i = 0; i < LANE_ACTS; i++)
        UNROLL for (int half = 0; half < 2; half++)
            _mm256_store_ps(sums + LANE_ROWS * i + LANES * half, acc[i][half]);
}

/* Asks for some lines of the next panel. Returns how many are asked for by now. */
INLINE int64_t ask_for_panel(const struct lane_job *j, int64_t asked, int64_t some)
{
    const int64_t n_lines = (int64_t)(j->row_bytes + 63) / 64 * LANE_ROWS;
    for (int64_t end = asked + some; asked < end && asked < n_lines; asked++)
        __builtin_prefetch((const void *)((uintptr_t)j->next + (size_t)(asked % LANE_ROWS) * j->row_bytes +
                                          (size_t)(asked / LANE_ROWS) * 64), 0, 2);
    return asked;
}

/* A panel with all tiles; their results are in `sums` then. The next panel is asked for with the last four
 * lanes, lest activations push it out of the second cache again: with 96 rows of 2,048 columns 55.3 without, 57.7 with
 * these four, 57.2 with all, 53.4 with the last one. */
INLINE void lane_panel(const struct lane_job *j, const uint32_t type)
{
    enum { ASKING = 4 };
    const int64_t apart = j->n_tiles * LANE_ACTS * LANE_ROWS;
    const int64_t some = (int64_t)(j->row_bytes + 63) / 64 * LANE_ROWS / (ASKING * j->n_tiles) + 1;
    int64_t asked = 0;
    float *sums = j->sums; /* of the present lane: behind those that wait */
    for (int i = 0; i < ALL_LANES; i++, sums += apart) {
        const int add = __builtin_ctz(~(unsigned)i); /* as in counting: this one, and what it completes */
        for (int64_t first = 0, steps; first < j->p.steps; first += steps) {
            steps = j->p.steps - first < j->p.piece ? j->p.steps - first : j->p.piece;
            open_piece(j, lane_of(i), first, steps, type);
            const float *x = j->x + (i * j->p.steps + first) * j->n_tiles * LANE_ACTS;
            for (int64_t t = 0; t < j->n_tiles; t++, x += steps * LANE_ACTS) {
                if (j->next && i >= ALL_LANES - ASKING)
                    asked = ask_for_panel(j, asked, some);
                lane_tile(j->open, x, steps, sums + t * LANE_ACTS * LANE_ROWS, first == 0,
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
        turn_panel(j);
        j->next = row1 - row >= 2 * LANE_ROWS ? j->w + LANE_ROWS * j->row_bytes : NULL;
        lane_panel(j, type);
        for (int64_t i = 0; i < m; i++)
            memcpy(y + i * y_stride + row, j->sums + i * LANE_ROWS, (size_t)j->rows * sizeof *y);
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

/* False: these are not arranged, or so many that there is no room for their sums. */
static bool matmul_by_lane(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                           float *y, int64_t y_stride, void *scratch)
{
    enum { OPEN = PIECE_STEPS * LANE_ROWS, ROOM = PP_MATMUL_SCRATCH / (int)sizeof(float) - OPEN };
    const int64_t n_tiles = (m + LANE_ACTS - 1) / LANE_ACTS;
    if (!x->by_lane || x->by_lane->rows != m || w->type == PP_TYPE_F32 ||
        n_tiles > ROOM / (SUMS_KEPT * LANE_ACTS * LANE_ROWS))
        return false;
    struct lane_job j = {
        .row_bytes = (size_t)w->n_cols * 2,
        .n = w->n_cols,
        .p = pieces_of(w->n_cols),
        .x = x->by_lane->x,
        .n_tiles = n_tiles,
        .turned = x->by_lane->panel,
        .open = scratch,
        .sums = (float *)scratch + OPEN,
    };
    if (w->type == PP_TYPE_F16)
        float_lanes_f16(w, row0, row1, m, y, y_stride, &j);
    else
        float_lanes_bf16(w, row0, row1, m, y, y_stride, &j);
    return true;
}
