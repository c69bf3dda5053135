/* matmul_amx_strips.h - products of many activation rows: units of unpacked weights stay in the L2 cache while
 * activations stream past them, 32 rows and a strip of columns at a time. Private to matmul_amx.c.
 *
 * Two tiles of activations are multiplied by two tiles of weights, so that each tile is loaded once for two products.
 * This matters because on virtual machines there are periods in which a tile load takes 22 cycles instead of 8, and a
 * product up to 35. The sums of one block are scaled while the next blocks are multiplied. Neither sums nor
 * accumulators fit in registers. Both go through the L1 cache, so that no more than two blocks are in flight: four
 * blocks, with their activations, overflow it and took a third longer.
 *
 * While tile instructions are in flight, only one of the vector unit's two ports executes fused multiply-adds, products
 * and conversions (measured on a Granite Rapids: 48 of them take 24 cycles by themselves, and 48 cycles together with a
 * single tile load). Additions still use both ports. So a sum is converted to float by two additions: an integer
 * addition of the bits of a large constant, which yields the float constant + sum, and a float subtraction of the
 * constant. */

enum {
    STRIP = 16,               /* blocks whose activations are made ready at once */
    MAX_GROUPS = 8,           /* groups of weight rows whose accumulators are kept at a time */
    ACT_ROWS = 2 * TILE_ROWS, /* activation rows at a time */
    PRODUCTS = 4,             /* of a block: two tiles of weights times one or two of activations */
};

/* A unit in this file is one block of 32 columns of a group of 16 rows, or two such blocks that are twins. It is laid
 * out as in unpack_units.h with one vector, but has signed bytes: a tile [8 or 16][64]; float scale[16]; for WITH_MIN
 * float min[16]; for TWO_MINS float min[4][16]. With x for the block's activations:
 *   acc = fma(scale * dx, isum, acc)
 *   WITH_MIN: acc = fma(-min, dx * sum, acc)
 *   TWO_MINS: acc = fma(-min[h], dx * sum[h], acc) for the sums of 16 columns, h from 0 to 3
 * HALVED: a weight times its integer scale has at most 13 bits and a sign. It is split into 64 high + low, stored as
 * two tiles before the float scale, so that
 *   isum = 64 sum of high + sum of low
 * ODD: a weight times its integer scale is an odd number 2 u + 1 of 9 bits. The tile holds u and is multiplied twice:
 *   isum = sum of u q + sum of u q + sum of q */
INLINE int n_planes(const enum kind kind)
{
    return kind == HALVED ? 2 : 1;
}

/* Blocks of a unit. */
INLINE int unit_blocks(const enum kind kind)
{
    return is_twins(kind) ? 2 : 1;
}

INLINE size_t plane_bytes(const enum kind kind)
{
    return (size_t)(UNIT_TILE * unit_blocks(kind));
}

enum { MAX_UNIT_SCALES = 5 };

INLINE int n_unit_scales(const enum kind kind)
{
    return kind == TWO_MINS ? 5 : kind == WITH_MIN ? 2 : 1;
}

INLINE size_t unit_bytes(const enum kind kind)
{
    return plane_bytes(kind) * (size_t)n_planes(kind) + (size_t)(PP_SLICE * n_unit_scales(kind));
}

/* The two tiles of weights that are multiplied together are a couple: the tiles of two groups, or the high and the low
 * tile of one. Groups per couple: */
INLINE int couple_groups(const enum kind kind)
{
    return 2 / n_planes(kind);
}

INLINE size_t couple_bytes(const enum kind kind)
{
    return unit_bytes(kind) * (size_t)couple_groups(kind);
}

/* MAGIC_BITS + a sum are the float MAGIC + sum. HIGH_BITS + a sum of high are HIGH_MAGIC + 64 sum, that is
 * 1.5 * 2^29 + 64 sum. */
enum { HIGH_BITS = 0x4e400000 };
static const float HIGH_MAGIC = 805306368.0f;

/* In the thread's scratch. */
struct work {
    float acc[MAX_GROUPS][ACT_ROWS][PP_GROUP_ROWS];
    int32_t sums[2][PRODUCTS][TILE_ROWS][PP_GROUP_ROWS]; /* double-buffered: of even and of odd units */
    float d[ACT_ROWS][STRIP];                            /* scales of a strip's activations */
    float dsum[ACT_ROWS][STRIP];                         /* d * sum; ODD: MAGIC - the twins' sum */
    float half[2][ACT_ROWS][STRIP];                      /* d * sums of 16 columns */
    int8_t q[ACT_ROWS][32 * STRIP];                      /* copied activations of an incomplete tile */
    uint8_t units[] __attribute__((aligned(64)));        /* the rest of the scratch */
};

/* Bytes that may be read after the last unit: products run two units ahead of scaling, and the last two have no weights
 * to multiply. */
enum { BEHIND_UNITS = 2 * 2 * (UNIT_TILE * 2 * 2 + PP_SLICE * MAX_UNIT_SCALES) };

_Static_assert(sizeof(struct work) + BEHIND_UNITS + 160 * 1024 <= PP_MATMUL_SCRATCH,
               "a strip of the largest units in the scratch");

/* How many bytes of units are unpacked at a time. Accumulators are stored and loaded again from one part of the columns
 * to the next, so more is better, up to half of the L2 cache. */
INLINE int64_t units_bytes(const struct pp_acts *x)
{
    const size_t scratch = x->scratch_bytes ? x->scratch_bytes : PP_MATMUL_SCRATCH;
    return (int64_t)(scratch - sizeof(struct work) - BEHIND_UNITS);
}

/* Tile registers: 0 and 1 activations [16][32 or 64 bytes], 2 and 3 weights [8 or 16][64 bytes], 4 to 7 sums
 * [16][16 x 4 bytes]. A product of twins takes as long as one of a block. */
INLINE void shape_strip_tiles(const enum kind kind)
{
    const uint8_t deep = (uint8_t)(8 * unit_blocks(kind));
    const struct tile_shapes shapes = {
        .palette = 1,
        .row_bytes = {4 * deep, 4 * deep, 64, 64, 64, 64, 64, 64},
        .rows = {TILE_ROWS, TILE_ROWS, deep, deep, TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS},
    };
    shape_tiles(&shapes);
}

/* --- a strip of activations --------------------------------------------------------------------------------------- */

/* Stores d times the sums over 16 columns. Types of kind TWO_MINS have blocks of 256 columns, so the number of blocks
 * of 32 is even. */
INLINE void put_half_sums(struct work *k, const int8_t *q, const float *d, int64_t i, const int n_blocks)
{
    for (int j = 0; j < n_blocks; j += 2) {
        const __m128 two = scaled_half_sums(q + 32 * j, d + j);
        _mm_storel_pi((__m64 *)(void *)(k->half[0][i] + j), two);
        _mm_storeh_pi((__m64 *)(void *)(k->half[1][i] + j), two);
    }
}

/* True if activations can be read in place; else they are copied, to pad the last tile. The padding rows' values do not
 * matter, as their sums are not used. */
INLINE bool is_whole(int64_t live)
{
    return live % TILE_ROWS == 0;
}

/* Blocks [b, b + n_blocks) of the `live` (1 to ACT_ROWS) rows of x from `row` on. */
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
        for (int j = 0; kind == ODD && j < n_blocks; j += 2)
            k->dsum[i][j] = MAGIC - (float)(x->sum[at + j] + x->sum[at + j + 1]);
        if (kind == TWO_MINS)
            put_half_sums(k, q, x->d + at, i, n_blocks);
        if (!is_whole(live))
            memcpy(k->q[i], q, (size_t)(32 * n_blocks));
    }
    finish_stores();
}

/* --- products ----------------------------------------------------------------------------------------------------- */

/* The strip that is ready in k. */
struct strip {
    struct work *k;
    const int8_t *q; /* [ACT_ROWS, q_stride] */
    int64_t q_stride;
    const uint8_t *units; /* [n_couples][n_units][groups of a couple] */
    int n_couples, n_units;
};

/* The unit and activations that a unit's products multiply. */
struct factors {
    const uint8_t *couple;
    const int8_t *q;
    int u; /* in the strip */
};

/* The same couple's next units, or the next couple's first. */
INLINE struct factors next_factors(const struct strip *s, const struct factors *at, const int n_units,
                                   const enum kind kind)
{
    const int u = at->u + 1 == n_units ? 0 : at->u + 1;
    return (struct factors){at->couple + couple_bytes(kind), s->q + 32 * unit_blocks(kind) * u, u};
}

/* Product p of a unit: of weights p / n_acts and activations p % n_acts. First stores the unit before's product from
 * the same tile register, as its result has arrived by now. */
INLINE void multiply(const int p, int32_t (*before)[TILE_ROWS][PP_GROUP_ROWS], const enum kind kind, const int n_acts)
{
#define PRODUCT(sums, acts, weights)                      \
    do {                                                  \
        _tile_stored(sums, before[p], sizeof **before);   \
        _tile_zero(sums);                                 \
        _tile_dpbssd(sums, acts, weights);                \
        if (kind == ODD)                                  \
            _tile_dpbssd(sums, acts, weights);            \
    } while (0)
    if (p == 0)
        PRODUCT(4, 0, 2);
    else if (p == 1 && n_acts == 2)
        PRODUCT(5, 1, 2);
    else if (p == 1)
        PRODUCT(5, 0, 3);
    else if (p == 2)
        PRODUCT(6, 0, 3);
    else
        PRODUCT(7, 1, 3);
#undef PRODUCT
}

INLINE void load_first_tiles(const struct factors *at, int64_t q_stride)
{
    _tile_loadd(0, at->q, q_stride);
    _tile_loadd(2, at->couple, PP_SLICE);
}

/* After product p: loads the next product's operands, and others into the registers that p was the last to need. */
INLINE void load_tiles(const int p, const struct factors *at, const struct factors *next, int64_t q_stride,
                       const enum kind kind, const int n_acts)
{
    const uint8_t *second = at->couple + (n_planes(kind) == 2 ? plane_bytes(kind) : unit_bytes(kind));
    if (n_acts == 1) {
        if (p == 0)
            _tile_loadd(3, second, PP_SLICE);
        else
            load_first_tiles(next, q_stride);
    } else if (p == 0) {
        _tile_loadd(1, at->q + TILE_ROWS * q_stride, q_stride);
    } else if (p == 1) {
        _tile_loadd(3, second, PP_SLICE);
    } else if (p == 2) {
        _tile_loadd(0, next->q, q_stride);
    } else {
        _tile_loadd(2, next->couple, PP_SLICE);
    }
}

/* --- scaling ------------------------------------------------------------------------------------------------------ */

/* The operands of the unit that is being scaled, at activation row 0. */
struct scaled {
    float (*acc)[PP_GROUP_ROWS];                  /* [groups of the couple][ACT_ROWS] */
    int32_t (*sums)[TILE_ROWS][PP_GROUP_ROWS];    /* [PRODUCTS] */
    const float *d, *dsum, *half;                 /* [ACT_ROWS, STRIP], half of them two */
};

/* The sum of products of activation row `row` and group h of the couple. */
INLINE __m512 whole_sum(const struct scaled *at, const int row, const int h, const enum kind kind, const int n_acts)
{
    const int tile = row / TILE_ROWS, i = row % TILE_ROWS;
    const __m512i magic = _mm512_set1_epi32(MAGIC_BITS);
    const __m512i first = _mm512_load_si512(at->sums[n_acts * h + tile][i]);
    if (n_planes(kind) == 2) {
        const __m512i low = _mm512_load_si512(at->sums[n_acts + tile][i]);
        const __m512 high = _mm512_castsi512_ps(_mm512_add_epi32(first, _mm512_set1_epi32(HIGH_BITS)));
        /* 64 high - MAGIC is a multiple of 64 below 2^26 and so exact: only the whole sum is rounded, once. */
        return _mm512_add_ps(_mm512_sub_ps(high, _mm512_set1_ps(HIGH_MAGIC + MAGIC)),
                             _mm512_castsi512_ps(_mm512_add_epi32(low, magic)));
    }
    const __m512 more = kind == ODD ? _mm512_set1_ps(at->dsum[STRIP * row]) : _mm512_set1_ps(MAGIC);
    return _mm512_sub_ps(_mm512_castsi512_ps(_mm512_add_epi32(first, magic)), more);
}

INLINE void scale_row(const struct scaled *at, const int row, __m512 (*scale)[MAX_UNIT_SCALES], const enum kind kind,
                      const int n_acts)
{
    const __m512 d = _mm512_set1_ps(at->d[STRIP * row]);
    UNROLL for (int h = 0; h < couple_groups(kind); h++)
    {
        float *to = at->acc[ACT_ROWS * h + row];
        __m512 acc = _mm512_fmadd_ps(_mm512_mul_ps(scale[h][0], d), whole_sum(at, row, h, kind, n_acts),
                                     _mm512_load_ps(to));
        if (kind == WITH_MIN)
            acc = _mm512_fnmadd_ps(scale[h][1], _mm512_set1_ps(at->dsum[STRIP * row]), acc);
        for (int half = 0; kind == TWO_MINS && half < 4; half++)
            acc = _mm512_fnmadd_ps(scale[h][1 + half],
                                   _mm512_set1_ps(at->half[STRIP * (ACT_ROWS * (half % 2) + row) + half / 2]), acc);
        _mm512_store_ps(to, acc);
    }
}

/* Makes the compiler compute addresses where they are used, instead of keeping too many in registers. */
INLINE void forget_addresses(struct scaled *at, const enum kind kind)
{
    __asm__("" : "+r"(at->acc), "+r"(at->sums), "+r"(at->d));
    if (kind == WITH_MIN || kind == ODD)
        __asm__("" : "+r"(at->dsum));
    if (kind == TWO_MINS)
        __asm__("" : "+r"(at->half));
}

/* Scales the unit at `at` and multiplies the one at `from`, interleaved, so that neither waits for the other. */
INLINE void run_unit(const struct strip *s, struct scaled *at, __m512 (*scale)[MAX_UNIT_SCALES],
                     const struct factors *from, const struct factors *next,
                     int32_t (*before)[TILE_ROWS][PP_GROUP_ROWS], const enum kind kind, const int n_acts)
{
    enum { ROWS = 8, AHEAD = 4 };
    UNROLL for (int p = 0; p < 2 * n_acts; p++)
    {
        multiply(p, before, kind, n_acts);
        UNROLL for (int i = 0; i < ROWS; i++)
        {
            if (i == AHEAD)
                load_tiles(p, from, next, s->q_stride, kind, n_acts);
            forget_addresses(at, kind);
            scale_row(at, ROWS * p + i, scale, kind, n_acts);
        }
    }
}

/* Adds the products of a strip to k->acc. Unit t is scaled while unit t + 2 is multiplied, which stores
 * the sums of t + 1. */
INLINE void run_strip(const struct strip *s, const enum kind kind, const int n_acts)
{
    const int n_units = s->n_units, step = unit_blocks(kind);
    struct work *k = s->k;
    struct factors from = {s->units, s->q, 0};
    struct scaled at = {k->acc[0], NULL, k->d[0], k->dsum[0], k->half[0][0]};
    const uint8_t *couple = s->units;
    const int end = s->n_couples * n_units;
    load_first_tiles(&from, s->q_stride);
    for (int t = 0; t < 2; t++) {
        const struct factors next = next_factors(s, &from, n_units, kind);
        UNROLL for (int p = 0; p < 2 * n_acts; p++)
        {
            multiply(p, k->sums[(t + 1) % 2], kind, n_acts);
            load_tiles(p, &from, &next, s->q_stride, kind, n_acts);
        }
        from = next;
    }
    for (int t = 0, u = 0; t < end; t++, couple += couple_bytes(kind)) {
        const struct factors next = next_factors(s, &from, n_units, kind);
        __m512 scale[2][MAX_UNIT_SCALES];
        UNROLL for (int h = 0; h < couple_groups(kind); h++)
            UNROLL for (int i = 0; i < n_unit_scales(kind); i++)
                scale[h][i] = _mm512_load_ps(couple + unit_bytes(kind) * (size_t)h +
                                             plane_bytes(kind) * (size_t)n_planes(kind) + PP_SLICE * i);
        at.sums = k->sums[t % 2];
        run_unit(s, &at, scale, &from, &next, k->sums[(t + 1) % 2], kind, n_acts);
        from = next;
        at.d += step, at.dsum += step, at.half += step;
        if (++u == n_units) {
            u = 0;
            at.d -= step * n_units, at.dsum -= step * n_units, at.half -= step * n_units;
            at.acc += ACT_ROWS * couple_groups(kind);
        }
    }
}

/* One function per kind: the types share them. */
#define RUN_STRIP(name, kind)                                                           \
    static __attribute__((noinline)) void run_##name(const struct strip *s, int n_acts) \
    {                                                                                   \
        if (n_acts == 2)                                                                \
            run_strip(s, kind, 2);                                                      \
        else                                                                            \
            run_strip(s, kind, 1);                                                      \
    }
RUN_STRIP(plain, PLAIN)
RUN_STRIP(min, WITH_MIN)
RUN_STRIP(halved, HALVED)
RUN_STRIP(two_mins, TWO_MINS)
RUN_STRIP(odd, ODD)
RUN_STRIP(folded, FOLDED)
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

/* If the number of groups is odd, the last couple lacks one: see clear_absent(). */
INLINE int n_couples(const struct chunk *c, const enum kind kind)
{
    return (c->n_groups + couple_groups(kind) - 1) / couple_groups(kind);
}

/* Units are stored in the order of their use: strip by strip, and within a strip couple by couple. Unit u of group
 * g: */
INLINE uint8_t *unit_at(uint8_t *strip, int n_units, int g, int u, const enum kind kind)
{
    const int n = couple_groups(kind);
    return strip + couple_bytes(kind) * (size_t)(g / n * n_units + u) + unit_bytes(kind) * (size_t)(g % n);
}

/* Fills the missing group of the last couple with zeros, as it is multiplied and scaled like the others and should not
 * produce denormals, which are slow. */
INLINE void clear_absent(const struct chunk *c, uint8_t *strip, int n_units, const enum kind kind)
{
    if (c->n_groups % couple_groups(kind))
        for (int u = 0; u < n_units; u++)
            memset(unit_at(strip, n_units, c->n_groups, u, kind), 0, unit_bytes(kind));
}

INLINE int strip_units(const struct chunk *c, int64_t b, const enum kind kind)
{
    return strip_blocks(c, b) / unit_blocks(kind);
}

INLINE void unpack_chunk(const struct chunk *c, uint8_t *units, unpack_fn *unpack, const enum kind kind)
{
    uint8_t *strip = units;
    for (int64_t b = c->b0; b < c->b1; b += STRIP) {
        const int n = strip_units(c, b, kind);
        for (int g = 0; g < c->n_groups; g++) {
            const uint8_t *group = pp_pack_group(c->w, c->row0 + PP_GROUP_ROWS * g);
            for (int u = 0; u < n; u++)
                unpack(group, c->w->n_cols, b + unit_blocks(kind) * u, unit_at(strip, n, g, u, kind));
        }
        clear_absent(c, strip, n, kind);
        strip += couple_bytes(kind) * (size_t)(n_couples(c, kind) * n);
    }
}

/* Makes a unit of TWO_MINS or FOLDED twins from two blocks that a routine of unpack_units.h has unpacked: their slices,
 * then the scales of the first block and the minima of the second. */
INLINE void join_twins(const uint8_t *unpacked, size_t step, uint8_t *unit, __m512i offset, const enum kind kind)
{
    const size_t scales = plane_bytes(kind);
    UNROLL for (int v = 0; v < 2 * SLICES; v++)
    {
        const __m512i slice = _mm512_load_si512(unpacked + step * (size_t)(v / SLICES) + PP_SLICE * (v % SLICES));
        _mm512_store_si512(unit + PP_SLICE * v, _mm512_sub_epi8(slice, offset));
    }
    UNROLL for (int k = 0; k < n_unit_scales(kind); k++)
    {
        const size_t from = k < 3 ? (size_t)k : step / PP_SLICE + (size_t)k - 2;
        _mm512_store_ps(unit + scales + PP_SLICE * k, _mm512_load_ps(unpacked + UNIT_TILE + PP_SLICE * from));
    }
}

/* Unpacks a strip of a type with heads and bodies. The routines of unpack_units.h write unsigned bytes, which are made
 * signed; twins are unpacked to separate memory first, as their units are laid out differently. */
INLINE void unpack_blocks_strip(const struct chunk *c, uint8_t *strip, int64_t b, int g, uint8_t *elsewhere,
                                const enum kind kind)
{
    pp_unpack_fn *const unpack = pp_units_of_avx512(c->w->type)->unpack;
    const __m512i offset = _mm512_set1_epi8((char)unit_offset(c->w->type));
    const int n = strip_units(c, b, kind);
    const uint8_t *group = pp_pack_group(c->w, c->row0 + PP_GROUP_ROWS * g);
    const size_t step = unpacked_bytes(kind == ODD ? HALVED : kind, 1, PP_GROUP_ROWS);
    if (!is_twins(kind))
        unpack(group, c->w->n_cols, b, n, 0, unit_at(strip, n, g, 0, kind), couple_bytes(kind));
    for (int u = 0; u < n; u++) {
        uint8_t *unit = unit_at(strip, n, g, u, kind);
        if (is_twins(kind))
            unpack(group, c->w->n_cols, b + 2 * u, 2, 0, elsewhere, step);
        if (kind == HALVED)
            split_unpacked(elsewhere, step, unit, offset);
        else if (kind == ODD)
            halve_unpacked(elsewhere, step, unit, offset);
        else if (is_twins(kind))
            join_twins(elsewhere, step, unit, offset, kind);
        UNROLL for (int v = 0; kind == PLAIN && v < SLICES; v++)
        {
            __m512i *slice = (__m512i *)(void *)(unit + PP_SLICE * v);
            _mm512_store_si512(slice, _mm512_sub_epi8(_mm512_load_si512(slice), offset));
        }
    }
}

INLINE void unpack_blocks_chunk(const struct chunk *c, struct work *k, const enum kind kind)
{
    uint8_t *strip = k->units;
    for (int64_t b = c->b0; b < c->b1; b += STRIP) {
        for (int g = 0; g < c->n_groups; g++)
            unpack_blocks_strip(c, strip, b, g, (uint8_t *)k->sums, kind);
        clear_absent(c, strip, strip_units(c, b, kind), kind);
        strip += couple_bytes(kind) * (size_t)(n_couples(c, kind) * strip_units(c, b, kind));
    }
}

INLINE __mmask16 live_lanes(const struct chunk *c, int g)
{
    int64_t rows = c->row1 - c->row0 - PP_GROUP_ROWS * g;
    return (__mmask16)(rows < PP_GROUP_ROWS ? (1u << rows) - 1u : 0xffffu);
}

/* Sets the accumulators to 0 for the first columns, and later to the sums that the preceding columns left in y. */
static void load_accumulators(struct work *k, const struct chunk *c, int64_t live, const float *y, int64_t y_stride)
{
    for (int g = 0; g < c->n_groups; g++)
        for (int64_t i = 0; i < ACT_ROWS; i++)
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

/* Multiplies rows [i, i + live) of x, at most ACT_ROWS, by a chunk whose units are in k. */
INLINE void run_rows(struct work *k, const struct chunk *c, const struct pp_acts *x, int64_t i, int64_t live, float *y,
                     int64_t y_stride, const enum kind kind)
{
    struct strip s = {.k = k, .units = k->units, .n_couples = n_couples(c, kind)};
    const bool whole = is_whole(live);
    const int n_acts = live > TILE_ROWS ? 2 : 1;
    load_accumulators(k, c, live, y + i * y_stride, y_stride);
    for (int64_t b = c->b0; b < c->b1; b += STRIP) {
        const int n_blocks = strip_blocks(c, b);
        s.n_units = n_blocks / unit_blocks(kind);
        if (n_blocks == STRIP)
            make_strip_ready(k, x, i, live, b, STRIP, kind);
        else
            make_strip_ready(k, x, i, live, b, n_blocks, kind);
        s.q = whole ? x->q + i * x->q_stride + 32 * b : k->q[0];
        s.q_stride = whole ? x->q_stride : (int64_t)sizeof *k->q;
        (kind == PLAIN      ? run_plain
         : kind == WITH_MIN ? run_min
         : kind == HALVED   ? run_halved
         : kind == ODD      ? run_odd
         : kind == FOLDED   ? run_folded
                            : run_two_mins)(&s, n_acts);
        s.units += couple_bytes(kind) * (size_t)(s.n_couples * s.n_units);
    }
    store_accumulators(k, c, live, y + i * y_stride, y_stride);
}

/* Multiplies all rows of x, unpacking the weights chunk by chunk. unpack: NULL for a type with heads and bodies. */
INLINE void unpacked_tiles(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                           float *y, int64_t y_stride, struct work *k, unpack_fn *unpack, const enum kind kind)
{
    const int64_t n_blocks = w->n_cols / PP_ACT_BLOCK;
    shape_strip_tiles(kind);
    for (int64_t row = row0; row < row1; row += MAX_GROUPS * PP_GROUP_ROWS) {
        struct chunk c = {.w = w, .row0 = row, .row1 = row1};
        if (row1 - row > MAX_GROUPS * PP_GROUP_ROWS)
            c.row1 = row + MAX_GROUPS * PP_GROUP_ROWS;
        c.n_groups = (int)((c.row1 - row + PP_GROUP_ROWS - 1) / PP_GROUP_ROWS);
        const int64_t most = units_bytes(x) / (int64_t)couple_bytes(kind) / n_couples(&c, kind) * unit_blocks(kind) /
                             STRIP * STRIP;
        for (c.b0 = 0; c.b0 < n_blocks; c.b0 = c.b1) {
            c.b1 = c.b0 + most < n_blocks ? c.b0 + most : n_blocks;
            if (unpack)
                unpack_chunk(&c, k->units, unpack, kind);
            else
                unpack_blocks_chunk(&c, k, kind);
            for (int64_t i = 0; i < m; i += ACT_ROWS)
                run_rows(k, &c, x, i, m - i < ACT_ROWS ? m - i : ACT_ROWS, y, y_stride, kind);
        }
    }
    _tile_release();
}
