/* matmul_amx_strips.h - many activation rows: units of opened weights stay in the L2 cache while tiles of 16 activation
 * rows pass them, a strip of columns at a time. Private to matmul_amx.c.
 *
 * What takes the time is not so much the tiles as the vector unit, which scales their sums: while tile instructions are
 * under way, only one of its two ports takes fused multiply-adds, products and conversions (measured on a Granite
 * Rapids: 48 of them in 24 cycles alone, in 48 beside a single tile load; a block's product with its loads and stores
 * takes 25 to 30). Additions keep both ports. So sums do not begin at 0 but at bits that make floats of them, which are
 * a constant too large: taking that off again is an addition, where a conversion would be a third operation beside the
 * product of the scales and the multiply-add. The low one of two tiles does begin at 0: with two to load, store and
 * begin it is the loads that take the time, and a conversion is cheaper than 16 more of them. */

enum {
    QUAD_BLOCKS = 4,          /* blocks that are multiplied while those before them are scaled */
    STRIP = 16,               /* blocks whose activations are made ready at once */
    MAX_GROUPS = 8,           /* groups of weight rows whose accumulators are kept at a time */
    MAX_PLANES = 2,
};

/* A unit here: one block of 32 columns of a group of 16 rows, as in open_units.h, of one vector, but with signed bytes:
 * a tile [8][64]; float scale[16]; of WITH_MIN float min[16]; of TWO_MINS float min0[16], min1[16]. With x the block's
 * activations:
 *   acc = fma(scale * dx, isum, acc)
 *   WITH_MIN: acc = fma(-min, dx * sum, acc)
 *   TWO_MINS: acc = fma(-min0, dx * sum0, acc), acc = fma(-min1, dx * sum1, acc)
 * HALVED: a weight times its whole-number scale has at most 13 bits and a sign. It is 64 high + low, two tiles that one
 * float scale follows, and so are the sums:
 *   isum = 64 sum of high + sum of low
 * ODD: of a weight times its whole-number scale, 2 u + 1 of 9 bits, the tile has u and is multiplied twice:
 *   isum = sum of u q + sum of u q + sum of q */
INLINE int n_planes(const enum kind kind)
{
    return kind == HALVED ? 2 : 1;
}

INLINE int n_unit_scales(const enum kind kind)
{
    return kind == HALVED ? 1 : n_scales(kind);
}

INLINE size_t unit_bytes(const enum kind kind)
{
    return (size_t)(UNIT_TILE * n_planes(kind) + PP_SLICE * n_unit_scales(kind));
}

/* What sums begin at: MAGIC_BITS, which makes the float MAGIC + sum of them; those of high, HIGH_BITS: their float is
 * HIGH_MAGIC + 64 sum, that is 1.5 * 2^29 + 64 sum; those of low, 0. */
enum { HIGH_BITS = 0x4e400000 };
static const float HIGH_MAGIC = 805306368.0f;

/* In the thread's scratch. */
struct work {
    float acc[MAX_GROUPS][TILE_ROWS][PP_GROUP_ROWS];
    int32_t sums[MAX_PLANES * QUAD_BLOCKS][TILE_ROWS][PP_GROUP_ROWS];
    float d[TILE_ROWS][STRIP];                          /* of a strip's blocks */
    float dsum[TILE_ROWS][STRIP];                       /* d * sum; of ODD MAGIC - sum */
    float half[2][TILE_ROWS][STRIP];                    /* d * sums of 16 columns */
    int8_t q[TILE_ROWS][32 * STRIP];                    /* of an incomplete one */
    int32_t begin[MAX_PLANES][PP_GROUP_ROWS];           /* HIGH_BITS last */
    uint8_t units[] __attribute__((aligned(64)));       /* what is left of the scratch */
};

_Static_assert(sizeof(struct work) + 160 * 1024 <= PP_MATMUL_SCRATCH, "a strip of the largest units in the scratch");

/* Of units at a time. Accumulators go to memory and back from one part of the columns to the next, so the more room the
 * better, up to half of the second cache. The tiles behind the last one are loaded, to no effect. */
INLINE int64_t units_bytes(const struct pp_acts *x)
{
    const size_t scratch = x->scratch_bytes ? x->scratch_bytes : PP_MATMUL_SCRATCH;
    return (int64_t)(scratch - sizeof(struct work) - UNIT_TILE * MAX_PLANES);
}

/* Tile registers: 0 and 1 activations [16][32 bytes], 2 and 3 weights [8][64 bytes] (of HALVED high and low), 4 to 7
 * sums [16][16 x 4 bytes]. */
static const struct tile_shapes strip_shapes = {
    .palette = 1,
    .row_bytes = {32, 32, 64, 64, 64, 64, 64, 64},
    .rows = {TILE_ROWS, TILE_ROWS, 8, 8, TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS},
};

/* --- a strip of activations --------------------------------------------------------------------------------------- */

/* TWO_MINS are types whose blocks have 256 columns, so the number of theirs is even. */
INLINE void put_half_sums(struct work *k, const int8_t *q, const float *d, int64_t i, const int n_blocks)
{
    for (int j = 0; j < n_blocks; j += 2) {
        const __m128 two = scaled_half_sums(q + 32 * j, d + j);
        _mm_storel_pi((__m64 *)(void *)(k->half[0][i] + j), two);
        _mm_storeh_pi((__m64 *)(void *)(k->half[1][i] + j), two);
    }
}

/* True if activations can be used where they lie; else a copy has what is missing of the tile's rows and of the last
 * quad's blocks. Whatever that is, nobody looks at what comes of it. */
INLINE bool is_whole(int64_t live, int n_blocks)
{
    return live == TILE_ROWS && n_blocks % QUAD_BLOCKS == 0;
}

/* Blocks [b, b + n_blocks) of the `live` (1 to 16) rows of x from `row` on. */
INLINE void make_strip_ready(struct work *k, const struct pp_acts *x, int64_t row, int64_t live, int64_t b,
                             const int n_blocks, const enum kind kind)
{
    const __mmask16 blocks = (__mmask16)((1u << n_blocks) - 1);
    for (int64_t i = 0; i < live; i++) {
        const int8_t *q = x->q + (row + i) * x->q_stride + 32 * b;
        const int64_t at = (row + i) * x->b_stride + b;
        const __m512 d = _mm512_maskz_loadu_ps(blocks, x->d + at);
        _mm512_store_ps(k->d[i], d);
        if (kind == WITH_MIN)
            _mm512_store_ps(k->dsum[i],
                            _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_maskz_loadu_epi32(blocks, x->sum + at))));
        if (kind == ODD)
            _mm512_store_ps(k->dsum[i],
                            _mm512_sub_ps(_mm512_set1_ps(MAGIC),
                                          _mm512_cvtepi32_ps(_mm512_maskz_loadu_epi32(blocks, x->sum + at))));
        if (kind == TWO_MINS)
            put_half_sums(k, q, x->d + at, i, n_blocks);
        if (!is_whole(live, n_blocks))
            memcpy(k->q[i], q, (size_t)(32 * n_blocks));
    }
    finish_stores();
}

/* --- products ----------------------------------------------------------------------------------------------------- */

/* What a product multiplies. */
struct factors {
    const int8_t *q;
    const uint8_t *unit;
};

/* The strip that is ready in k. */
struct strip {
    struct work *k;
    const int8_t *q; /* [TILE_ROWS, q_stride] */
    int64_t q_stride;
    const uint8_t *units; /* [n_groups][n_blocks rounded up to whole quads] */
    int n_groups, n_blocks;
};

INLINE int quads_of(const int n_blocks)
{
    return (n_blocks + QUAD_BLOCKS - 1) / QUAD_BLOCKS;
}

/* Loading tiles, multiplying and storing the sums each take 16 to 52 cycles until their result is there: one behind the
 * other they would fill the processor's window of instructions with waiting. So in the step of a product the next one
 * is loaded and one before is stored: of a plane the third before, of two planes the last. The registers alternate. */
INLINE void plane_step(const int j, const int32_t *begin, int32_t (*before)[PP_GROUP_ROWS], const struct factors next,
                       int64_t q_stride, const enum kind kind)
{
#define STEP(activations, weights, result, next_activations, next_weights, result_before) \
    do {                                                                                  \
        _tile_stored(result_before, before, sizeof *before);                              \
        _tile_loadd(result, begin, 0);                                                    \
        _tile_dpbssd(result, activations, weights);                                       \
        if (kind == ODD)                                                                  \
            _tile_dpbssd(result, activations, weights);                                   \
        _tile_loadd(next_weights, next.unit, PP_SLICE);                                   \
        _tile_loadd(next_activations, next.q, q_stride);                                  \
    } while (0)
    switch (j) {
    case 0:
        STEP(0, 2, 4, 1, 3, 5);
        break;
    case 1:
        STEP(1, 3, 5, 0, 2, 6);
        break;
    case 2:
        STEP(0, 2, 6, 1, 3, 7);
        break;
    default:
        STEP(1, 3, 7, 0, 2, 4);
    }
#undef STEP
}

INLINE void planes_step(const int j, const int32_t *begin, int32_t (*before)[TILE_ROWS][PP_GROUP_ROWS],
                        const struct factors next, int64_t q_stride)
{
#define STEP(activations, high, low, next_activations, high_before, low_before) \
    do {                                                                        \
        _tile_stored(high_before, before[0], sizeof **before);                  \
        _tile_loadd(high, begin, 0);                                            \
        _tile_dpbssd(high, activations, 2);                                     \
        _tile_loadd(2, next.unit, PP_SLICE);                                    \
        _tile_stored(low_before, before[1], sizeof **before);                   \
        _tile_zero(low);                                                        \
        _tile_dpbssd(low, activations, 3);                                      \
        _tile_loadd(3, next.unit + UNIT_TILE, PP_SLICE);                        \
        _tile_loadd(next_activations, next.q, q_stride);                        \
    } while (0)
    if (j % 2)
        STEP(1, 6, 7, 0, 4, 5);
    else
        STEP(0, 4, 5, 1, 6, 7);
#undef STEP
}

/* Product j of a quad. */
INLINE void multiply_block(struct work *k, const int j, const struct factors next, int64_t q_stride,
                           const enum kind kind)
{
    if (n_planes(kind) == 2)
        planes_step(j, k->begin[1], k->sums + 2 * ((j + 3) % QUAD_BLOCKS), next, q_stride);
    else
        plane_step(j, k->begin[0], k->sums[(j + 1) % QUAD_BLOCKS], next, q_stride, kind);
}

/* Instead, behind the last product: what is left to store. */
INLINE void store_block(struct work *k, const int j, const enum kind kind)
{
    enum { STRIDE = sizeof **k->sums };
    if (n_planes(kind) == 2 && j == 0) {
        _tile_stored(6, k->sums[6], STRIDE);
        _tile_stored(7, k->sums[7], STRIDE);
    } else if (n_planes(kind) == 1 && j == 0) {
        _tile_stored(5, k->sums[1], STRIDE);
    } else if (n_planes(kind) == 1 && j == 1) {
        _tile_stored(6, k->sums[2], STRIDE);
    } else if (n_planes(kind) == 1 && j == 2) {
        _tile_stored(7, k->sums[3], STRIDE);
    }
}

/* --- scaling ------------------------------------------------------------------------------------------------------ */

/* The sum of products of block b and activation row i. */
INLINE __m512 whole_sum(const struct work *k, const int b, int32_t (*sums)[TILE_ROWS][PP_GROUP_ROWS], const int i,
                        const enum kind kind)
{
    const __m512 first = _mm512_load_ps(sums[0][i]);
    if (kind == ODD)
        return _mm512_sub_ps(first, _mm512_set1_ps(k->dsum[i][b]));
    if (n_planes(kind) == 1)
        return _mm512_sub_ps(first, _mm512_set1_ps(MAGIC));
    return _mm512_add_ps(_mm512_sub_ps(first, _mm512_set1_ps(HIGH_MAGIC)),
                         _mm512_cvtepi32_ps(_mm512_load_si512(sums[1][i])));
}

/* Block b of the strip. */
INLINE void scale_unit(const struct work *k, const int b, const uint8_t *unit,
                       int32_t (*sums)[TILE_ROWS][PP_GROUP_ROWS], __m512 *acc, const enum kind kind)
{
    __m512 scale[MAX_SCALES];
    UNROLL for (int s = 0; s < n_unit_scales(kind); s++)
        scale[s] = _mm512_load_ps(unit + UNIT_TILE * n_planes(kind) + PP_SLICE * s);
    UNROLL for (int i = 0; i < TILE_ROWS; i++)
    {
        const __m512 d = _mm512_set1_ps(k->d[i][b]);
        acc[i] = _mm512_fmadd_ps(_mm512_mul_ps(scale[0], d), whole_sum(k, b, sums, i, kind), acc[i]);
        if (kind == WITH_MIN)
            acc[i] = _mm512_fnmadd_ps(scale[1], _mm512_set1_ps(k->dsum[i][b]), acc[i]);
        for (int half = 0; kind == TWO_MINS && half < 2; half++)
            acc[i] = _mm512_fnmadd_ps(scale[1 + half], _mm512_set1_ps(k->half[half][i][b]), acc[i]);
    }
}

/* The factors of block j of quad number `quad` of the group at `unit`, which may be the next one's first. */
INLINE struct factors factors_of(const int8_t *q, const uint8_t *unit, const int quad, const int j,
                                 const int n_quads, const enum kind kind)
{
    const int block = QUAD_BLOCKS * quad + j;
    return (struct factors){q + 32 * (block % (QUAD_BLOCKS * n_quads)), unit + unit_bytes(kind) * (size_t)block};
}

/* Quad number `quad` of the group at `unit` is scaled and the one behind it multiplied, if there is one. */
INLINE void run_quad(const struct strip *s, const uint8_t *unit, const int quad, const bool is_last,
                     const int n_blocks, __m512 *acc, const enum kind kind)
{
    const int n_quads = quads_of(n_blocks);
    struct work *k = s->k;
    UNROLL for (int j = 0; j < QUAD_BLOCKS; j++)
    {
        const int b = QUAD_BLOCKS * quad + j;
        __asm__("" : "+r"(k)); /* addresses are made where they are used, not kept in too many registers */
        if (is_last)
            store_block(k, j, kind);
        else
            multiply_block(k, j, factors_of(s->q, unit, quad + 1, j + 1, n_quads, kind), s->q_stride, kind);
        if (b < n_blocks)
            scale_unit(k, b, unit + unit_bytes(kind) * (size_t)b, k->sums + n_planes(kind) * j, acc, kind);
    }
}

/* Adds the products of a strip of n_blocks to k->acc. While a quad is scaled, the tiles multiply the next one. */
INLINE void run_strip(const struct strip *s, const int n_blocks, const enum kind kind)
{
    struct work *k = s->k;
    const uint8_t *unit = s->units;
    const int n_quads = quads_of(n_blocks);
    _tile_loadd(0, s->q, s->q_stride);
    _tile_loadd(2, unit, PP_SLICE);
    if (n_planes(kind) == 2)
        _tile_loadd(3, unit + UNIT_TILE, PP_SLICE);
    UNROLL for (int j = 0; j < QUAD_BLOCKS; j++)
        multiply_block(k, j, factors_of(s->q, unit, 0, j + 1, n_quads, kind), s->q_stride, kind);
    for (int g = 0; g < s->n_groups; g++, unit += unit_bytes(kind) * (size_t)(QUAD_BLOCKS * n_quads)) {
        __m512 acc[TILE_ROWS];
        UNROLL for (int i = 0; i < TILE_ROWS; i++)
            acc[i] = _mm512_load_ps(k->acc[g][i]);
        UNROLL for (int quad = 0; quad < n_quads - 1; quad++)
            run_quad(s, unit, quad, false, n_blocks, acc, kind);
        if (g + 1 < s->n_groups)
            run_quad(s, unit, n_quads - 1, false, n_blocks, acc, kind);
        else
            run_quad(s, unit, n_quads - 1, true, n_blocks, acc, kind);
        UNROLL for (int i = 0; i < TILE_ROWS; i++)
            _mm512_store_ps(k->acc[g][i], acc[i]);
    }
}

/* One function per kind: the types share them. */
#define RUN_STRIP(name, kind)                                                       \
    static __attribute__((noinline)) void run_##name(const struct strip *s)         \
    {                                                                               \
        if (s->n_blocks == STRIP)                                                   \
            run_strip(s, STRIP, kind);                                              \
        else                                                                        \
            run_strip(s, s->n_blocks, kind);                                        \
    }
RUN_STRIP(plain, PLAIN)
RUN_STRIP(min, WITH_MIN)
RUN_STRIP(halved, HALVED)
RUN_STRIP(two_mins, TWO_MINS)
RUN_STRIP(odd, ODD)
#undef RUN_STRIP

/* --- loops over strips -------------------------------------------------------------------------------------------- */

/* Weight rows [row0, row1), at most MAX_GROUPS groups, times columns of blocks [b0, b1). */
struct chunk {
    const struct pp_matrix *w;
    int64_t row0, row1, b0, b1;
    int n_groups;
};

INLINE int strip_blocks(const struct chunk *c, int64_t b)
{
    return c->b1 - b < STRIP ? (int)(c->b1 - b) : STRIP;
}

/* What is missing of its last quad. */
INLINE int absent_blocks(const struct chunk *c, int64_t b)
{
    return QUAD_BLOCKS * quads_of(strip_blocks(c, b)) - strip_blocks(c, b);
}

/* Units lie strip by strip, in a strip group by group: in the order they are used in. A group's last quad has room for
 * four blocks: those that are not there are multiplied, whatever they are, but not scaled. */
INLINE void unpack_chunk(const struct chunk *c, uint8_t *unit, unpack_fn *unpack, const enum kind kind)
{
    for (int64_t b = c->b0; b < c->b1; b += STRIP)
        for (int g = 0; g < c->n_groups; g++) {
            const uint8_t *group = pp_pack_group(c->w, c->row0 + PP_GROUP_ROWS * g);
            for (int64_t j = b; j < b + strip_blocks(c, b); j++, unit += unit_bytes(kind))
                unpack(group, c->w->n_cols, j, unit);
            unit += unit_bytes(kind) * (size_t)absent_blocks(c, b);
        }
}

/* The same of a type with heads and bodies: its bytes are opened as unsigned ones. Those of ODD are opened with more
 * scales than they keep, into the room of the next unit: one by one. */
INLINE void open_chunk(const struct chunk *c, uint8_t *unit, const enum kind kind)
{
    pp_open_fn *const open = pp_units_avx512[c->w->type].open;
    const __m512i offset = _mm512_set1_epi8((char)unit_offset(c->w->type));
    for (int64_t b = c->b0; b < c->b1; b += STRIP)
        for (int g = 0; g < c->n_groups; g++) {
            const int n = strip_blocks(c, b);
            const uint8_t *group = pp_pack_group(c->w, c->row0 + PP_GROUP_ROWS * g);
            if (kind != ODD)
                open(group, c->w->n_cols, b, n, 0, unit, unit_bytes(kind));
            for (int j = 0; j < n; j++, unit += unit_bytes(kind)) {
                if (kind == ODD) {
                    open(group, c->w->n_cols, b + j, 1, 0, unit, 0);
                    halve_opened(unit, offset);
                }
                if (kind == HALVED)
                    split_opened(unit, offset);
                UNROLL for (int v = 0; kind == PLAIN && v < SLICES; v++)
                {
                    __m512i *slice = (__m512i *)(void *)(unit + PP_SLICE * v);
                    _mm512_store_si512(slice, _mm512_sub_epi8(_mm512_load_si512(slice), offset));
                }
            }
            unit += unit_bytes(kind) * (size_t)absent_blocks(c, b);
        }
}

INLINE __mmask16 live_lanes(const struct chunk *c, int g)
{
    int64_t rows = c->row1 - c->row0 - PP_GROUP_ROWS * g;
    return (__mmask16)(rows < PP_GROUP_ROWS ? (1u << rows) - 1u : 0xffffu);
}

/* The accumulators start at 0, then at what the columns before this chunk have left in y. */
static void load_accumulators(struct work *k, const struct chunk *c, int64_t live, const float *y, int64_t y_stride)
{
    for (int g = 0; g < c->n_groups; g++)
        for (int64_t i = 0; i < TILE_ROWS; i++)
            _mm512_store_ps(k->acc[g][i], c->b0 && i < live ? _mm512_maskz_loadu_ps(live_lanes(c, g),
                                                                                    y + i * y_stride + c->row0 + 16 * g)
                                                            : _mm512_setzero_ps());
}

static void store_accumulators(const struct work *k, const struct chunk *c, int64_t live, float *y, int64_t y_stride)
{
    for (int g = 0; g < c->n_groups; g++)
        for (int64_t i = 0; i < live; i++)
            _mm512_mask_storeu_ps(y + i * y_stride + c->row0 + 16 * g, live_lanes(c, g), _mm512_load_ps(k->acc[g][i]));
}

/* Rows [i, i + live) of x with a chunk whose units are in k. */
INLINE void run_tile(struct work *k, const struct chunk *c, const struct pp_acts *x, int64_t i, int64_t live, float *y,
                     int64_t y_stride, const enum kind kind)
{
    struct strip s = {.k = k, .units = k->units, .n_groups = c->n_groups};
    load_accumulators(k, c, live, y + i * y_stride, y_stride);
    for (int64_t b = c->b0; b < c->b1; b += STRIP) {
        s.n_blocks = strip_blocks(c, b);
        if (s.n_blocks == STRIP)
            make_strip_ready(k, x, i, live, b, STRIP, kind);
        else
            make_strip_ready(k, x, i, live, b, s.n_blocks, kind);
        const bool whole = is_whole(live, s.n_blocks);
        s.q = whole ? x->q + i * x->q_stride + 32 * b : k->q[0];
        s.q_stride = whole ? x->q_stride : (int64_t)sizeof *k->q;
        (kind == PLAIN      ? run_plain
         : kind == WITH_MIN ? run_min
         : kind == HALVED   ? run_halved
         : kind == ODD      ? run_odd
                            : run_two_mins)(&s);
        s.units += unit_bytes(kind) * (size_t)(s.n_groups * QUAD_BLOCKS * quads_of(s.n_blocks));
    }
    store_accumulators(k, c, live, y + i * y_stride, y_stride);
}

/* All rows of x in tiles, the weights opened chunk by chunk. unpack: NULL for a type with heads and bodies. */
INLINE void opened_tiles(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                         float *y, int64_t y_stride, struct work *k, unpack_fn *unpack, const enum kind kind)
{
    const int64_t n_blocks = w->n_cols / PP_ACT_BLOCK;
    _mm512_store_si512(k->begin[0], _mm512_set1_epi32(MAGIC_BITS));
    _mm512_store_si512(k->begin[1], _mm512_set1_epi32(HIGH_BITS));
    shape_tiles(&strip_shapes);
    for (int64_t row = row0; row < row1; row += MAX_GROUPS * PP_GROUP_ROWS) {
        struct chunk c = {.w = w, .row0 = row, .row1 = row1};
        if (row1 - row > MAX_GROUPS * PP_GROUP_ROWS)
            c.row1 = row + MAX_GROUPS * PP_GROUP_ROWS;
        c.n_groups = (int)((c.row1 - row + PP_GROUP_ROWS - 1) / PP_GROUP_ROWS);
        const int64_t most = units_bytes(x) / (int64_t)unit_bytes(kind) / c.n_groups / STRIP * STRIP;
        for (c.b0 = 0; c.b0 < n_blocks; c.b0 = c.b1) {
            c.b1 = c.b0 + most < n_blocks ? c.b0 + most : n_blocks;
            if (unpack)
                unpack_chunk(&c, k->units, unpack, kind);
            else
                open_chunk(&c, k->units, kind);
            for (int64_t i = 0; i < m; i += TILE_ROWS)
                run_tile(k, &c, x, i, m - i < TILE_ROWS ? m - i : TILE_ROWS, y, y_stride, kind);
        }
    }
    _tile_release();
}
