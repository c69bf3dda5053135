/* matmul_amx_rows.h - products of up to 16 activation rows, one tile, past which the weights stream once. Private to
 * matmul_amx.c.
 *
 * Except for scaling the sums, the number of vector instructions per block does not depend on the number of activation
 * rows: at 8 rows of Q4_0 it is 46, instead of 101 with byte dot products. Three stages are interleaved, each working
 * on a "quad" of four blocks: the weights of quad t are unpacked to bytes (Q8_0 is read in place), quad t - 1 is
 * multiplied, and the sums of quad t - 2 are scaled. So no stage waits for memory that was just written. */

#ifndef PP_AMX_ROWS_SPAN /* tests have it shorter */
#define PP_AMX_ROWS_SPAN 1024
#endif

enum { QUAD = 4, ROWS_SPAN = PP_AMX_ROWS_SPAN /* blocks whose activations are prepared at once */ };

/* How a weight type is unpacked. unpack() writes block b as signed bytes, [8][64]; NULL: blocks are stored this way,
 * but as unsigned bytes, 128 too large. scales() returns a block's scales s0 and, with has_min, s1, as floats for
 *   acc = fma(s0 * dx, isum, acc)
 *   with has_min: acc = fma(-s1, dx * sum, acc) */
struct rows_type {
    void (*unpack)(const uint8_t *group, int64_t n_cols, int64_t b, uint8_t *tile);
    void (*scales)(const uint8_t *group, int64_t n_cols, int64_t b, __m512 *scale);
    bool has_min;
    size_t pace; /* bytes of a block, scales included */
};

INLINE void scales_plain(const uint8_t *group, int64_t n_cols, int64_t b, __m512 *scale)
{
    (void)n_cols;
    scale[0] = halves(group + 32 * b);
}

/* In the thread's scratch. */
struct rows_work {
    int32_t sums[2][QUAD][TILE_ROWS][PP_GROUP_ROWS]; /* double-buffered: of even and of odd quads */
    uint8_t tiles[2][QUAD][UNIT_TILE];
    float d[ROWS_SPAN * TILE_ROWS]; /* [n_blocks][M] */
    union {
        int32_t bias[ROWS_SPAN * TILE_ROWS]; /* -128 * sum, for weights that are read as unsigned bytes */
        float dsum[ROWS_SPAN * TILE_ROWS];   /* d * sum, for minima */
    } extra;
};

_Static_assert(sizeof(struct rows_work) <= PP_MATMUL_SCRATCH, "a thread's scratch");

/* Weight rows [row0, row1) times m rows of x, of the blocks [b0, b1): a multiple of QUAD. */
struct rows_job {
    const struct pp_matrix *w;
    const struct pp_acts *x;
    int64_t row0, row1, b0, b1, m;
    float *y;
    int64_t y_stride;
    struct rows_work *k;
};

/* Tile registers: 0 and 1 activations, 2 and 3 weights, 4 and 5 sums. */
INLINE void shape_row_tiles(int64_t m)
{
    const uint8_t rows = (uint8_t)m, deep = 8;
    const struct tile_shapes shapes = {
        .palette = 1,
        .row_bytes = {4 * deep, 4 * deep, 64, 64, 64, 64},
        .rows = {rows, rows, deep, deep, rows, rows},
    };
    shape_tiles(&shapes);
}

/* Prepares the activations' scales. Those of rows m to M - 1 are zeros: their sums are not used, but should not be
 * denormals, which are slow, or NaN. */
INLINE void make_rows_ready(const struct rows_job *job, const struct rows_type type, const int M)
{
    const struct pp_acts *x = job->x;
    struct rows_work *k = job->k;
    for (int64_t i = 0; i < M; i++)
        for (int64_t b = job->b0; b < job->b1; b++) {
            int64_t at = (b - job->b0) * M + i, from = i * x->b_stride + b;
            k->d[at] = i < job->m ? x->d[from] : 0;
            if (type.has_min)
                k->extra.dsum[at] = i < job->m ? x->d[from] * (float)x->sum[from] : 0;
            else if (!type.unpack)
                k->extra.bias[at] = i < job->m ? -128 * x->sum[from] : 0;
        }
}

/* The product of a block. Loading tiles, multiplying and storing the sums each have a latency of 16 to 52 cycles: back
 * to back, they would fill the out-of-order window with waiting instructions. So the step of a product also loads the
 * next one's operands and stores the sums of the one before. */
struct product {
    const int8_t *q;        /* of the first activation row */
    const uint8_t *weights; /* [8 slices] */
};

/* Multiplies what was loaded in the step before, stores what was multiplied then, and loads `next`. The registers
 * alternate with `odd`. */
INLINE void step(const int odd, const struct product next, int64_t q_stride, int32_t (*before)[PP_GROUP_ROWS],
                 const bool is_signed)
{
#define STEP(activations, weights_at, sums, next_activations, next_weights, sums_before)  \
    do {                                                                                  \
        _tile_zero(sums);                                                                 \
        if (is_signed)                                                                    \
            _tile_dpbssd(sums, activations, weights_at);                                  \
        else                                                                              \
            _tile_dpbsud(sums, activations, weights_at);                                  \
        _tile_loadd(next_activations, next.q, q_stride);                                  \
        _tile_loadd(next_weights, next.weights, PP_SLICE);                                \
        _tile_stored(sums_before, before, sizeof *before);                                \
    } while (0)
    if (odd)
        STEP(1, 3, 5, 0, 2, 4);
    else
        STEP(0, 2, 4, 1, 3, 5);
#undef STEP
}

/* Scales a block's sums and adds them to acc. at: the block's index in the span. */
INLINE void scale_block(const struct rows_work *k, int32_t (*sums)[PP_GROUP_ROWS], int64_t at,
                        const __m512 *scale, __m512 *acc, const struct rows_type type, const int M)
{
    const float *d = k->d + at * M;
    UNROLL for (int i = 0; i < M; i++)
    {
        __m512i isum = _mm512_load_si512(sums[i]);
        if (!type.unpack)
            isum = _mm512_add_epi32(isum, _mm512_set1_epi32(k->extra.bias[at * M + i]));
        acc[i] = _mm512_fmadd_ps(_mm512_mul_ps(scale[0], _mm512_set1_ps(d[i])), _mm512_cvtepi32_ps(isum), acc[i]);
        if (type.has_min)
            acc[i] = _mm512_fnmadd_ps(scale[1], _mm512_set1_ps(k->extra.dsum[at * M + i]), acc[i]);
    }
}

/* Where one of the three stages is: at the quad that begins with block b of the group at `row`. */
struct place {
    const uint8_t *group;
    int64_t row, b;
};

INLINE bool next_quad(const struct rows_job *job, struct place *at, size_t group_bytes) /* true: of another group */
{
    at->b += QUAD;
    if (at->b < job->b1)
        return false;
    *at = (struct place){at->group + group_bytes, at->row + PP_GROUP_ROWS, job->b0};
    return true;
}

INLINE __mmask16 rows_live(const struct rows_job *job, int64_t row)
{
    return (__mmask16)(job->row1 - row < PP_GROUP_ROWS ? (1u << (job->row1 - row)) - 1u : 0xffffu);
}

INLINE void load_sums(const struct rows_job *job, int64_t row, __m512 *acc, const int M)
{
    UNROLL for (int i = 0; i < M; i++)
        acc[i] = job->b0 && i < job->m ? _mm512_maskz_loadu_ps(rows_live(job, row), job->y + i * job->y_stride + row)
                                       : _mm512_setzero_ps();
}

INLINE void store_sums(const struct rows_job *job, int64_t row, const __m512 *acc, const int M)
{
    UNROLL for (int i = 0; i < M; i++)
        if (i < job->m)
            _mm512_mask_storeu_ps(job->y + i * job->y_stride + row, rows_live(job, row), acc[i]);
}

/* The operands of block j of the quad at `at`. */
INLINE struct product product_at(const struct rows_job *job, const struct place *at, uint8_t (*tiles)[UNIT_TILE],
                                 const int j, const struct rows_type type)
{
    const uint8_t *packed = at->group + pp_pack_scale_bytes(job->w->n_cols);
    return (struct product){job->x->q + 32 * (at->b + j), type.unpack ? tiles[j] : packed + UNIT_TILE * (at->b + j)};
}

/* In the first and in the last two iterations some stages have no quad: they process another one, and the result is not
 * used. */
INLINE void stream_rows(const struct rows_job *job, const struct rows_type type, const int M)
{
    struct rows_work *k = job->k;
    const int64_t n_cols = job->w->n_cols;
    const int64_t n_groups = (job->row1 - job->row0 + PP_GROUP_ROWS - 1) / PP_GROUP_ROWS;
    const int64_t n_quads = n_groups * ((job->b1 - job->b0) / QUAD);
    const size_t group_bytes = pp_pack_group_bytes(job->w->type, n_cols);
    struct place unpacked = {pp_pack_group(job->w, job->row0), job->row0, job->b0}, met = unpacked, scaled = unpacked;
    __m512 acc[TILE_ROWS];
    UNROLL for (int i = 0; i < M; i++)
        acc[i] = _mm512_setzero_ps();
    for (int64_t t = 0; t < n_quads + 2; t++) {
        int32_t(*sums)[TILE_ROWS][PP_GROUP_ROWS] = k->sums[t % 2];
        int32_t(*sums_met)[TILE_ROWS][PP_GROUP_ROWS] = k->sums[(t + 1) % 2];
        stream_ahead(unpacked.group + type.pace * (size_t)unpacked.b, type.pace * QUAD, pp_stream_way);
        UNROLL for (int j = 0; j < QUAD; j++)
        {
            __m512 scale[MAX_SCALES];
            if (type.unpack)
                type.unpack(unpacked.group, n_cols, unpacked.b + j, k->tiles[t % 2][j]);
            finish_stores();
            step(j % 2,
                 j + 1 < QUAD ? product_at(job, &met, k->tiles[(t + 1) % 2], j + 1, type)
                              : product_at(job, &unpacked, k->tiles[t % 2], 0, type),
                 job->x->q_stride, j > 0 ? sums_met[j - 1] : sums[QUAD - 1], type.unpack);
            type.scales(scaled.group, n_cols, scaled.b + j, scale);
            scale_block(k, sums[j], scaled.b + j - job->b0, scale, acc, type, M);
        }
        if (t + 1 < n_quads)
            next_quad(job, &unpacked, group_bytes);
        if (t >= 1 && t < n_quads)
            next_quad(job, &met, group_bytes);
        int64_t row = scaled.row;
        if (t >= 2 && next_quad(job, &scaled, group_bytes))
            store_sums(job, row, acc, M);
        if (t == 1 || (t >= 2 && t < n_quads + 1 && scaled.row != row))
            load_sums(job, scaled.row, acc, M);
    }
}

INLINE void few_and_ready(const struct rows_job *job, const struct rows_type type, const int M)
{
    make_rows_ready(job, type, M);
    stream_rows(job, type, M);
}

/* The whole product, for 1 to TILE_ROWS rows of x; n_cols is a multiple of 32 QUAD. */
INLINE void matmul_rows(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                        float *y, int64_t y_stride, void *scratch, const struct rows_type type)
{
    struct rows_job job = {w, x, row0, row1, 0, 0, m, y, y_stride, scratch};
    const int64_t n_blocks = w->n_cols / PP_ACT_BLOCK;
    shape_row_tiles(m);
    for (; job.b0 < n_blocks; job.b0 = job.b1) {
        job.b1 = job.b0 + ROWS_SPAN < n_blocks ? job.b0 + ROWS_SPAN : n_blocks;
        if (m <= 8)
            few_and_ready(&job, type, 8);
        else if (m <= 12)
            few_and_ready(&job, type, 12);
        else
            few_and_ready(&job, type, TILE_ROWS);
    }
    _tile_release();
}
