/* attention_amx.h - attention over KV in Q8 and Q8_0 with AMX tiles, 16 queries at a time. A part of ops_body.h,
 * included after attention_body.h, whose results it reproduces bit for bit: the sums are of integers and so exact in
 * any order.
 *
 * Scores: K pages store 16 positions by 64 dimensions in the layout of a tile. A tile of queries is [16][64 bytes]. If
 * only 32 dimensions share a scale, it holds these 32 and 32 zeros, so that each half of a tile of K is multiplied
 * separately.
 *
 * Values: a softmax weight is 256 h + l, h signed, l unsigned. Tiles of 16 queries by 64 positions hold one of the two
 * bytes each, and V is rearranged to match once for all queries. The tiles sum l v and h v while vector instructions
 * compute the next queries' weights.
 *
 * Loading a tile, multiplying it and storing the sums each have a latency of 16 to 52 cycles: back to back, they would
 * fill the out-of-order window with waiting instructions. So both loops are software pipelines: a step multiplies what
 * the step before loaded, and stores what it summed; vector code reads what was stored a step earlier still.
 *
 * For some 300 cycles after any tile instruction a Granite Rapids multiplies, compares and converts floats on only one
 * of its two vector ports; float additions, shuffles and integer instructions still use both. So this code avoids
 * multiplications, comparisons and conversions. (All tile work first, then all vector work at full speed, took 3 to 7 %
 * longer.) */
#include "engine/cpu/amx_tiles.h"

enum {
    TILE_ROWS = 16,
    TILE_BYTES = 1024,
    MIN_TILE_ROWS = 9,                         /* fewer queries are left to vectors */
    TILE_POSITIONS = 64,                       /* of weights and values */
    VALUE_BYTES = PP_KV_CHUNK * LANES,         /* of 16 dimensions of a chunk */
};

_Static_assert((int)TILE_ROWS == (int)PP_PART_QUERIES, "a part of the queries is a tile");
_Static_assert((int)PP_PAGE_TOKENS % (int)TILE_POSITIONS == 0, "a tile's positions are in one page");

typedef int32_t tile_sums[TILE_ROWS][LANES];

/* Where things are in a->tiles (pp_attention_bytes). */
static inline int8_t *tile_queries(const struct pp_attention *a, int b)
{
    return (int8_t *)a->tiles + (size_t)b * (size_t)((n_queries(a) + TILE_ROWS - 1) / TILE_ROWS * TILE_BYTES);
}

static inline tile_sums *sum_tiles(const struct pp_attention *a)
{
    return (tile_sums *)(a->tiles + a->tiles_fixed);
}

static inline uint8_t *tile_values(const struct pp_attention *a, int vec)
{
    return (uint8_t *)(sum_tiles(a) + PP_ATTENTION_SUM_TILES) + (size_t)vec * VALUE_BYTES;
}

enum { WEIGHT_ROW = 2 * PP_KV_CHUNK, WEIGHT_BLOCK = TILE_ROWS * WEIGHT_ROW }; /* bytes of a query, of all */

/* Weights of 16 queries: double-buffered, as one part's are computed while another's are used. Bytes
 * [v_pad / scale_dims][16 queries][256 / 64][low, high][64 positions in the order of split_weights()]. */
static inline uint8_t *part_weights(const struct pp_attention *a, int which)
{
    return which == 0 ? (uint8_t *)a->w : tile_values(a, a->kv->v_pad / LANES);
}

enum { TILE_DIMS = 64 };

/* The first tile of queries of the dimensions with the b-th scale. */
static inline int scale_tile(const struct pp_attention *a, int b)
{
    return a->kv->scale_dims < TILE_DIMS ? b : b * (a->kv->scale_dims / TILE_DIMS);
}

/* Stores, for the scores, the dimensions of the query in row `at` that share the b-th scale. */
static void keep_tile_query(const struct pp_attention *a, int at, int b, const int8_t *q8)
{
    const int dims = a->kv->scale_dims;
    if (dims < TILE_DIMS) {
        int8_t *row = tile_queries(a, b) + at * TILE_DIMS;
        memset(row, 0, TILE_DIMS);
        memcpy(row + b % 2 * dims, q8, (size_t)dims);
        return;
    }
    for (int i = 0; i < dims / TILE_DIMS; i++)
        memcpy(tile_queries(a, scale_tile(a, b) + i) + at * TILE_DIMS, q8 + i * TILE_DIMS, TILE_DIMS);
}

/* --- scores ------------------------------------------------------------------------------------------------ */

/* Which dimensions of a group's 16 positions a step multiplies. */
enum score_step {
    ONE_TILE,   /* up to 64 dimensions with one scale */
    TWO_SCALES, /* 32 dimensions with a scale, and 32 with the next one: two tiles of queries, two sums */
    TWO_TILES,  /* 128 dimensions with one scale: two tiles of queries, two of keys, one sum */
};

/* A step multiplies 16 queries (in tiles 4 and 5) by the 16 positions of a group. It stores the sums of the group
 * before, and loads the keys of the next, unless these are NULL. Tile registers alternate between even and odd steps;
 * `second` holds second sums or second keys. */
ALWAYS_INLINE void key_step(const uint8_t *next, tile_sums *before, const enum score_step step, const int odd)
{
#define KEY_STEP(keys, first, second, next_keys, first_before, second_before) \
    do {                                                                      \
        if (before) {                                                         \
            _tile_stored(first_before, before[0], 64);                        \
            if (step == TWO_SCALES)                                           \
                _tile_stored(second_before, before[1], 64);                   \
        }                                                                     \
        _tile_dpbsud(first, 4, keys);                                         \
        if (step == TWO_SCALES)                                               \
            _tile_dpbsud(second, 5, keys);                                    \
        if (step == TWO_TILES)                                                \
            _tile_dpbsud(first, 5, second);                                   \
        if (next) {                                                           \
            _tile_loadd(next_keys, next, 64);                                 \
            _tile_zero(first_before);                                         \
            if (step == TWO_SCALES)                                           \
                _tile_zero(second_before);                                    \
            if (step == TWO_TILES)                                            \
                _tile_loadd(second_before, next + TILE_BYTES, 64);            \
        }                                                                     \
    } while (0)
    if (odd)
        KEY_STEP(7, 2, 3, 6, 0, 1);
    else
        KEY_STEP(6, 0, 1, 7, 2, 3);
#undef KEY_STEP
}

/* The pipeline's prologue (load_keys) and epilogue (store_last_sums). Where the last 32 dimensions have a scale of
 * their own, the tile loads 32 more, whatever lies there (PP_KV_PADDING): the queries have zeros there. */
ALWAYS_INLINE void load_keys(const uint8_t *k, const enum score_step step)
{
    _tile_loadd(6, k, 64);
    _tile_zero(0);
    if (step == TWO_SCALES)
        _tile_zero(1);
    if (step == TWO_TILES)
        _tile_loadd(1, k + TILE_BYTES, 64);
}

ALWAYS_INLINE void store_last_sums(tile_sums *sums, const enum score_step step, const int odd)
{
    if (odd) {
        _tile_stored(2, sums[0], 64);
        if (step == TWO_SCALES)
            _tile_stored(3, sums[1], 64);
    } else {
        _tile_stored(0, sums[0], 64);
        if (step == TWO_SCALES)
            _tile_stored(1, sums[1], 64);
    }
}

/* Accumulator tiles start at zero, and the sums' initial value is added here. Loading a tile of it for each product is
 * no faster, and a third slower where tile loads are slow (matmul_amx_strips.h). */
ALWAYS_INLINE i16x32 from_start(const int32_t *sum, int32_t start)
{
    return _mm512_add_epi32(_mm512_loadu_si512(sum), _mm512_set1_epi32(start));
}

/* Scales these dimensions' sums and adds them to the scores of a group; `first`: stores them as the scores. */
ALWAYS_INLINE void scale_scores(const struct pp_attention *a, const uint16_t *kd, const tile_sums *sums, int b,
                                const enum score_step step, const bool first, int q0, int live, float *p)
{
    const bool two = step == TWO_SCALES;
    const int n_q = n_queries(a);
    const float *qd = a->q_scale + b * n_q + q0;
    const int32_t *start = a->q_start + b * n_q + q0;
    const v16 d0 = v_load_f16(kd), d1 = two ? v_load_f16(kd + LANES) : d0, rounder = v_set1(-V_ROUNDER);
    const v16 minus0 = v_mul(d0, rounder), minus1 = v_mul(d1, rounder);
    UNROLL_TWICE for (int i = 0; i < live; i++) {
        v16 share = times_sum(d0, minus0, from_start(sums[0][i], start[i]));
        v16 s = first ? v_mul(share, v_set1(qd[i])) : v_fma(share, v_set1(qd[i]), v_load(p + i * PP_KV_CHUNK));
        if (two)
            s = v_fma(times_sum(d1, minus1, from_start(sums[1][i], start[n_q + i])), v_set1(qd[n_q + i]), s);
        v_store(p + i * PP_KV_CHUNK, s);
    }
}

/* A group's keys of the dimensions with scale b, and that scale for each of its positions. */
static inline const uint8_t *group_keys(const struct pp_attention *a, const uint8_t *const *heads, int g, int b)
{
    enum { IN_PAGE = PP_PAGE_TOKENS / LANES };
    const int row = g % IN_PAGE * a->kv->head_pad + b * a->kv->scale_dims;
    return heads[g / IN_PAGE] + (size_t)row * LANES;
}

static inline const uint16_t *group_scales(const struct pp_attention *a, const uint8_t *const *heads, int g, int b)
{
    enum { IN_PAGE = PP_PAGE_TOKENS / LANES };
    const uint16_t *kd = (const uint16_t *)(heads[g / IN_PAGE] + a->kv->k_scales);
    return kd + (g % IN_PAGE * (a->kv->head_pad / a->kv->scale_dims) + b) * LANES;
}

/* Dimensions with scale b, and in steps of two scales with b + 1, of n_groups groups from g0 on. While the tiles
 * multiply a group, the one before the last is scaled. */
ALWAYS_INLINE void score_dims(const struct pp_attention *a, const uint8_t *const *heads, int b,
                              const enum score_step step, const bool first, int q0, int live, int g0, int n_groups)
{
    tile_sums *const sums = sum_tiles(a); /* of even groups, then of odd ones */
    _tile_loadd(4, tile_queries(a, scale_tile(a, b)) + q0 * TILE_DIMS, TILE_DIMS);
    if (step != ONE_TILE)
        _tile_loadd(5, tile_queries(a, scale_tile(a, b) + 1) + q0 * TILE_DIMS, TILE_DIMS);
    load_keys(group_keys(a, heads, g0, b), step);
    for (int g = 0; g <= n_groups; g++) {
        const uint8_t *next = g + 1 < n_groups ? group_keys(a, heads, g0 + g + 1, b) : NULL;
        if (g == n_groups)
            store_last_sums(sums + (g - 1) % 2 * 2, step, (g - 1) % 2);
        else if (g % 2)
            key_step(next, sums, step, 1);
        else
            key_step(next, g > 0 ? sums + 2 : NULL, step, 0);
        finish_stores();
        if (g > 1)
            scale_scores(a, group_scales(a, heads, g0 + g - 2, b), sums + g % 2 * 2, b, step, first, q0, live,
                         a->p + (g0 + g - 2) * LANES);
    }
    const int last = g0 + n_groups - 1;
    scale_scores(a, group_scales(a, heads, last, b), sums + (n_groups - 1) % 2 * 2, b, step, first, q0, live,
                 a->p + last * LANES);
}

static void tile_scores(const struct pp_attention *a, const uint8_t *const *heads, int q0, int live,
                        struct pp_span see)
{
    const int dims = a->kv->scale_dims, n_scales = a->kv->head_pad / dims, g0 = see.begin / LANES;
    const int n_groups = (see.end + LANES - 1) / LANES - g0, at_a_time = dims < TILE_DIMS ? 2 : 1;
#define SCORE_DIMS(b, step, first) score_dims(a, heads, b, step, first, q0, live, g0, n_groups)
    if (dims > TILE_DIMS)
        SCORE_DIMS(0, TWO_TILES, true);
    else if (at_a_time == 2 && n_scales > 1)
        SCORE_DIMS(0, TWO_SCALES, true);
    else
        SCORE_DIMS(0, ONE_TILE, true);
    for (int b = at_a_time; b < n_scales; b += at_a_time)
        if (dims > TILE_DIMS)
            SCORE_DIMS(b, TWO_TILES, false);
        else if (at_a_time == 2 && b + 1 < n_scales)
            SCORE_DIMS(b, TWO_SCALES, false);
        else
            SCORE_DIMS(b, ONE_TILE, false);
#undef SCORE_DIMS
}

/* --- values ------------------------------------------------------------------------------------------------ */

/* even: byte 2 i of `near` followed by byte 2 i of `far`, for every i; odd: likewise bytes 2 i + 1. */
struct byte_pairs {
    __m512i even, odd;
};

#define ODD_BYTES   0xAAAAAAAAAAAAAAAAu
#define HIGH_HALVES 0xCCCCCCCCCCCCCCCCu /* of 32 bits */

ALWAYS_INLINE struct byte_pairs even_and_odd(__m512i near, __m512i far)
{
    const __m512i swapped = _mm512_broadcast_i32x4(_mm_setr_epi32(0x02030001, 0x06070405, 0x0A0B0809, 0x0E0F0C0D));
    return (struct byte_pairs){_mm512_mask_shuffle_epi8(near, ODD_BYTES, far, swapped),
                               _mm512_mask_shuffle_epi8(far, ~ODD_BYTES, near, swapped)};
}

static inline __m512i as_bytes(v16 x)
{
    return _mm512_castps_si512(x);
}

/* Rearranges V of a chunk's positions (all: bounds are multiples of 64) to a tile for every 16 dimensions and 64
 * positions. A tile's row holds four positions, in the order in which split_weights() packs them: i, i + 32, i + 16,
 * i + 48. */
static void order_values(const struct pp_attention *a, const uint8_t *const *heads, struct pp_span all)
{
    enum { FAR = TILE_POSITIONS / 8 }; /* pairs: 16 positions */
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    const size_t pair_bytes = 2 * (size_t)a->kv->v_pad;
    for (int at = all.begin; at < all.end; at += TILE_POSITIONS) {
        const uint8_t *values = heads[page_of(at)] + a->kv->v + slot_of(at) / 2 * pair_bytes;
        for (int pair = 0; pair < FAR; pair++) {
            const uint8_t *from = values + (size_t)pair * pair_bytes;
            uint8_t *to = tile_values(a, 0) + at / TILE_POSITIONS * TILE_BYTES + pair * 128;
            for (const uint8_t *end = from + pair_bytes; from < end; from += 64, to += 2 * VALUE_BYTES) {
                struct byte_pairs near = even_and_odd(_mm512_loadu_si512(from),
                                                      _mm512_loadu_si512(from + 2 * FAR * pair_bytes));
                struct byte_pairs far = even_and_odd(_mm512_loadu_si512(from + FAR * pair_bytes),
                                                     _mm512_loadu_si512(from + 3 * FAR * pair_bytes));
                __m512i low = _mm512_unpacklo_epi16(near.even, far.even);
                __m512i high = _mm512_unpackhi_epi16(near.even, far.even);
                _mm512_storeu_si512(to, _mm512_permutex2var_epi32(low, first, high));
                _mm512_storeu_si512(to + VALUE_BYTES, _mm512_permutex2var_epi32(low, second, high));
                low = _mm512_unpacklo_epi16(near.odd, far.odd);
                high = _mm512_unpackhi_epi16(near.odd, far.odd);
                _mm512_storeu_si512(to + 64, _mm512_permutex2var_epi32(low, first, high));
                _mm512_storeu_si512(to + VALUE_BYTES + 64, _mm512_permutex2var_epi32(low, second, high));
            }
        }
    }
}

/* The low and the high bytes of the integers in x, to which V_ROUNDER was added. By shuffles only: they use the port
 * that float instructions leave free. */
ALWAYS_INLINE void split_weights(const v16 x[4], uint8_t *w)
{
    const __m512i to_high = _mm512_broadcast_i32x4(_mm_setr_epi32(0x01000100, 0x05040504, 0x09080908, 0x0D0C0D0C));
    __m512i near = _mm512_mask_shuffle_epi8(as_bytes(x[0]), HIGH_HALVES, as_bytes(x[1]), to_high);
    __m512i far = _mm512_mask_shuffle_epi8(as_bytes(x[2]), HIGH_HALVES, as_bytes(x[3]), to_high);
    const struct byte_pairs split = even_and_odd(near, far);
    _mm512_storeu_si512(w, split.even);
    _mm512_storeu_si512(w + 64, split.odd);
}

/* whole_weights() for tiles; all: bounds are multiples of 64. */
ALWAYS_INLINE float tile_weights(const struct pp_attention *a, float *p, float m, struct pp_span see,
                                 struct pp_span all, uint8_t *w)
{
    const v16 less = v_set1(m), rounder = v_set1(V_ROUNDER);
    const int n_scales = a->kv->v_pad / a->kv->scale_dims;
    v16 sum = v_zero();
    widen_scores(p, &see, TILE_POSITIONS);
    for (int i = see.begin; i < see.end; i += TILE_POSITIONS) {
        v16 e[4], x[4];
        UNROLL for (int j = 0; j < 4; j++) {
            e[j] = v_exp2_short(v_sub(v_load(p + i + j * LANES), less));
            sum = v_add(sum, e[j]);
        }
        const float *d = a->v_scale + i;
        for (int b = 0; b < n_scales; b++, d += PP_KV_CHUNK) {
            UNROLL for (int j = 0; j < 4; j++)
                x[j] = v_fma(e[j], v_load(d + j * LANES), rounder);
            split_weights(x, w + b * WEIGHT_BLOCK + 2 * i);
        }
    }
    for (int b = 0; see.begin > all.begin && b < n_scales; b++)
        memset(w + b * WEIGHT_BLOCK + 2 * all.begin, 0, 2 * (size_t)(see.begin - all.begin));
    for (int b = 0; see.end < all.end && b < n_scales; b++)
        memset(w + b * WEIGHT_BLOCK + 2 * see.end, 0, 2 * (size_t)(all.end - see.end));
    return v_sum(sum);
}

/* The weighted sums of V for a part of the queries, computed in steps of a block of dimensions and 64 positions. */
struct value_steps {
    const struct pp_attention *a;
    const uint8_t *w;
    int live;            /* queries */
    struct pp_span all;  /* positions: multiples of 64 */
    int b, at;           /* the next step's block and position; b == n_blocks after the last */
    struct merge_factors factors;
    float *o;
};

static inline void scale_values(const struct value_steps *v, int b, const tile_sums *sums)
{
    float *o = v->o + b * PP_KV_BLOCK;
    for (int i = 0; i < v->live; i++, o += v->a->kv->v_pad)
        for (int half = 0; half < 2; half++) {
            i16x32 low = _mm512_loadu_si512(sums[2 * half][i]), high = _mm512_loadu_si512(sums[2 * half + 1][i]);
            i16x32 whole = _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
            merge_values(&v->factors, i, i_to_float(whole), o + half * LANES);
        }
}

/* Loads the next step's weights (low bytes, high bytes) and values (the block's first 16 dimensions, its last 16). */
static inline void load_values_step(const struct value_steps *v)
{
    const uint8_t *w = v->w + v->b * PP_KV_BLOCK / v->a->kv->scale_dims * WEIGHT_BLOCK + 2 * v->at;
    const uint8_t *values = tile_values(v->a, 2 * v->b) + v->at / TILE_POSITIONS * TILE_BYTES;
    _tile_loadd(4, w, WEIGHT_ROW);
    _tile_loadd(5, w + 64, WEIGHT_ROW);
    _tile_loadd(6, values, 64);
    _tile_loadd(7, values + VALUE_BYTES, 64);
}

/* Multiplies what is loaded. Tiles 0 to 3 sum low and high bytes for the block's first 16 dimensions, then for its last
 * 16. Once they include all positions, the block before this one is scaled, whose sums were stored long ago. */
static void multiply_values(struct value_steps *v)
{
    const int n_blocks = v->a->kv->v_pad / PP_KV_BLOCK, b = v->b;
    if (v->at == v->all.begin) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    _tile_dpbusd(0, 4, 6);
    _tile_dpbssd(1, 5, 6);
    _tile_dpbusd(2, 4, 7);
    _tile_dpbssd(3, 5, 7);
    v->at += TILE_POSITIONS;
    const bool whole = v->at == v->all.end;
    if (whole) {
        v->at = v->all.begin;
        v->b++;
    }
    if (v->b < n_blocks)
        load_values_step(v);
    if (!whole)
        return;
    tile_sums *sums = sum_tiles(v->a) + b % 2 * 4;
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    _tile_stored(2, sums[2], 64);
    _tile_stored(3, sums[3], 64);
    if (b > 0)
        scale_values(v, b - 1, sum_tiles(v->a) + (b - 1) % 2 * 4);
}

/* Runs the remaining steps. */
static void finish_values(struct value_steps *v)
{
    const int n_blocks = v->a->kv->v_pad / PP_KV_BLOCK;
    if (v->live == 0)
        return;
    while (v->b < n_blocks)
        multiply_values(v);
    finish_stores();
    scale_values(v, n_blocks - 1, sum_tiles(v->a) + (n_blocks - 1) % 2 * 4);
    v->live = 0;
}

/* Turns a part's scores into integer weights with vector instructions, while the tiles sum the values of the part
 * before. */
static void weigh_part(const struct pp_attention *a, uint8_t *w, int live, const struct pp_span *see,
                       struct pp_span all, float *m, float *l, struct value_steps *before)
{
    const int n_blocks = a->kv->v_pad / PP_KV_BLOCK;
    const int n_before = (before->all.end - before->all.begin) / TILE_POSITIONS;
    const int steps = (n_blocks * n_before + live - 1) / live; /* a query */
    if (before->live)
        load_values_step(before);
    part_references(a, live, see, a->v_log, m);
    for (int i = 0; i < live; i++) {
        for (int s = 0; before->live && s < steps && before->b < n_blocks; s++)
            multiply_values(before);
        l[i] = tile_weights(a, a->p + i * PP_KV_CHUNK, m[i], see[i], all, w + i * WEIGHT_ROW);
    }
    finish_values(before);
    finish_stores();
}

static void attention_chunk_tiles(const struct pp_attention *a, const uint8_t *const heads[PP_CHUNK_PAGES], int row,
                                  int n_rows, const struct pp_span *see, const struct pp_attention_sums *to)
{
    const int q0 = row * a->group, q1 = q0 + n_rows * a->group;
    if (!pp_kv_bytes(a->kv) || q1 - q0 < MIN_TILE_ROWS || a->softcap != 0.0f || a->slopes) {
        attention_chunk(a, heads, row, n_rows, see, to);
        return;
    }
    struct pp_span limits[MAX_QUERIES] = {0};
    const struct pp_span all = widened(query_limits(a, row, n_rows, see, limits), TILE_POSITIONS);
    const uint8_t *made[PP_CHUNK_PAGES], *const *value_heads = value_pages(a, heads, all, made);
    const struct bad_values bad = load_scales(a, value_heads, all);
    float m[TILE_ROWS], l[TILE_ROWS];
    int q = q0, which = 0;
    static const struct tile_shapes whole = {
        .palette = 1,
        .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
        .rows = {16, 16, 16, 16, 16, 16, 16, 16},
    };
    struct value_steps values = {.a = a};
    struct requests soon = begin_requests(a, heads, q1 - q0);
    shape_tiles(&whole);
    order_values(a, value_heads, all);
    for (int live; q1 - q >= MIN_TILE_ROWS; q += live, which = !which) {
        live = q1 - q < TILE_ROWS ? q1 - q : TILE_ROWS;
        const struct pp_span seen = whole_span(live, limits + q), part = widened(seen, TILE_POSITIONS);
        uint8_t *w = part_weights(a, which);
        ask_for_share(&soon, live, q1 - q0);
        tile_scores(a, heads, q, live, seen);
        weigh_part(a, w, live, limits + q, part, m, l, &values);
        values = (struct value_steps){
            .a = a,
            .w = w,
            .live = live,
            .all = part,
            .at = part.begin,
            .factors = merge_sums(to, q, live, m, l),
            .o = to->o + q * a->kv->v_pad,
        };
    }
    if (values.live)
        load_values_step(&values);
    finish_values(&values);
    _tile_release();
    for (int nq; q < q1; q += nq) {
        nq = next_tile(q1 - q);
        chunk_tile(a, heads, value_heads, q, nq, limits + q, &soon, to);
    }
    spoil_values(a, q0, q1, limits, &bad, to->o);
}
