/* attention_amx.h - attention over KV in Q8_0 with AMX tiles: 16 queries at a time. A part of ops_body.h, behind
 * attention_body.h, whose sums it makes bit for bit: whole numbers, which are exact in any order.
 *
 * Scores: a tile of queries [16][64 bytes] holds a block of 32 dimensions and zeros beside it, so that two blocks of K,
 * 16 positions by 64 dimensions, which lie in a page as a tile has them, are multiplied one at a time.
 *
 * Values: a weight is 256 h + l, h signed, l not. Its two bytes lie side by side in memory; with each byte of V
 * followed by a zero, a tile of 16 queries by 32 weights, as it is, gives the sum of l v, and read from one byte
 * further on, that of h v. The tiles make them while vectors make the next queries' weights. */
enum {
    TILE_ROWS = 16,
    TILE_BYTES = 1024,
    MIN_TILE_ROWS = 9,                         /* fewer queries are left to vectors */
    WIDE_STEPS = PP_KV_CHUNK / (2 * LANES),    /* tiles of 32 positions */
    WIDE_BYTES = WIDE_STEPS * TILE_BYTES,      /* of 16 dimensions of a chunk */
};

_Static_assert((int)TILE_ROWS == (int)PP_PART_QUERIES, "a part of the queries is a tile");
_Static_assert((int)WEIGHTS_UNIT == 2 * (int)LANES, "a tile has the weights of 32 positions");

typedef int32_t tile_sums[TILE_ROWS][LANES];

/* Where things are in a->tiles (pp_attention_bytes). */
static inline int8_t *tile_queries(const struct pp_attention *a, int b)
{
    return (int8_t *)a->tiles + (size_t)b * (size_t)((n_queries(a) + TILE_ROWS - 1) / TILE_ROWS * TILE_BYTES);
}

static inline tile_sums *tile_starts(const struct pp_attention *a)
{
    return (tile_sums *)(a->tiles + a->tiles_fixed);
}

static inline tile_sums *sum_tiles(const struct pp_attention *a)
{
    return tile_starts(a) + a->kv->head_pad / PP_KV_BLOCK;
}

static inline uint8_t *wide_values(const struct pp_attention *a, int vec)
{
    return (uint8_t *)(sum_tiles(a) + PP_ATTENTION_SUM_TILES) + (size_t)vec * WIDE_BYTES;
}

/* Weights of 16 queries and their scales: two places, because one part's are made while another's are used. */
struct part_weights {
    int16_t *w;
    float *scale;
};

static inline struct part_weights part_weights(const struct pp_attention *a, int which)
{
    const int pad = a->kv->head_pad;
    if (which == 0)
        return (struct part_weights){a->w, a->w_scale};
    int16_t *w = (int16_t *)wide_values(a, pad / LANES);
    return (struct part_weights){w, (float *)(w + pad / PP_KV_BLOCK * (PP_PART_QUERIES * PP_KV_CHUNK))};
}

static inline void configure_tiles(void)
{
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config __attribute__((aligned(64))) = {
        .palette = 1,
        .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
        .rows = {16, 16, 16, 16, 16, 16, 16, 16},
    };
    _Static_assert(sizeof config == 64, "what ldtilecfg reads");
    _tile_loadconfig(&config);
}

/* The compiler does not know that tile loads read memory, nor what tile stores write. */
static inline void finish_stores(void)
{
    __asm__ volatile("" ::: "memory");
}

/* A query's quantised block, for scores. */
static void keep_tile_query(const struct pp_attention *a, int at, int b, const int8_t *q8)
{
    int8_t *row = tile_queries(a, b) + at * 64;
    memset(row, 0, 64);
    memcpy(row + b % 2 * PP_KV_BLOCK, q8, PP_KV_BLOCK);
}

/* --- scores ------------------------------------------------------------------------------------------------ */

/* What the sums of `live` queries begin with. */
static void fill_starts(const struct pp_attention *a, int q0, int live)
{
    const int n_q = n_queries(a);
    for (int b = 0; b < a->kv->head_pad / PP_KV_BLOCK; b++)
        for (int i = 0; i < TILE_ROWS; i++)
            _mm512_storeu_si512(tile_starts(a)[b][i],
                                _mm512_set1_epi32(i < live ? a->q_start[b * n_q + q0 + i] : 0));
}

/* Sums of 16 queries (in tiles 4 and 5) with a group's 16 positions, of two blocks or one. Registers alternate. */
ALWAYS_INLINE void multiply_keys(const uint8_t *k, const tile_sums *start, tile_sums *sums, const bool two,
                                 const int odd)
{
#define MULTIPLY_KEYS(keys, first, second)               \
    do {                                                 \
        _tile_loadd(keys, k, 64);                        \
        _tile_loadd(first, start[0], 64);                \
        _tile_dpbsud(first, 4, keys);                    \
        _tile_stored(first, sums[0], 64);                \
        if (two) {                                       \
            _tile_loadd(second, start[1], 64);           \
            _tile_dpbsud(second, 5, keys);               \
            _tile_stored(second, sums[1], 64);           \
        }                                                \
    } while (0)
    if (odd)
        MULTIPLY_KEYS(7, 2, 3);
    else
        MULTIPLY_KEYS(6, 0, 1);
#undef MULTIPLY_KEYS
}

/* Scores of a group begin with these blocks' shares, or grow by them. */
ALWAYS_INLINE void scale_scores(const struct pp_attention *a, const uint16_t *kd, const tile_sums *sums, int b,
                                const bool two, const bool first, int q0, int live, float *p)
{
    const int n_q = n_queries(a);
    const float *qd = a->q_scale + b * n_q + q0;
    const v16 d0 = v_load_f16(kd), d1 = two ? v_load_f16(kd + LANES) : d0;
    UNROLL_TWICE for (int i = 0; i < live; i++) {
        v16 scale = v_mul(v_set1(qd[i]), d0), whole = i_to_float(_mm512_loadu_si512(sums[0][i]));
        v16 s = first ? v_mul(scale, whole) : v_fma(scale, whole, v_load(p + i * PP_KV_CHUNK));
        if (two)
            s = v_fma(v_mul(v_set1(qd[n_q + i]), d1), i_to_float(_mm512_loadu_si512(sums[1][i])), s);
        v_store(p + i * PP_KV_CHUNK, s);
    }
}

/* Blocks b and, if two, b + 1 of all groups. While a group is scaled, the tiles multiply the next one. */
ALWAYS_INLINE void score_blocks(const struct pp_attention *a, const uint8_t *const *heads, int b, const bool two,
                                const bool first, int q0, int live, int n_groups)
{
    enum { IN_PAGE = PP_PAGE_TOKENS / LANES };
    const int n_blocks = a->kv->head_pad / PP_KV_BLOCK;
    const size_t group_bytes = (size_t)a->kv->head_pad * LANES, at = (size_t)b * PP_KV_BLOCK * LANES;
    const tile_sums *start = tile_starts(a) + b;
    tile_sums *sums = sum_tiles(a);
    _tile_loadd(4, tile_queries(a, b) + q0 * 64, 64);
    if (two)
        _tile_loadd(5, tile_queries(a, b + 1) + q0 * 64, 64);
    multiply_keys(heads[0] + at, start, sums, two, 0);
    for (int g = 0; g < n_groups; g++) {
        if (g + 1 < n_groups) {
            const uint8_t *k = heads[(g + 1) / IN_PAGE] + (size_t)((g + 1) % IN_PAGE) * group_bytes + at;
            if (g % 2)
                multiply_keys(k, start, sums, two, 0);
            else
                multiply_keys(k, start, sums + 2, two, 1);
        }
        finish_stores();
        const uint16_t *kd = (const uint16_t *)(heads[g / IN_PAGE] + a->kv->k_scales);
        scale_scores(a, kd + (g % IN_PAGE * n_blocks + b) * LANES, sums + g % 2 * 2, b, two, first, q0, live,
                     a->p + g * LANES);
    }
}

static void tile_scores(const struct pp_attention *a, const uint8_t *const *heads, int q0, int live, int n)
{
    const int n_blocks = a->kv->head_pad / PP_KV_BLOCK, n_groups = (n + LANES - 1) / LANES;
    fill_starts(a, q0, live);
    finish_stores();
    if (n_blocks > 1)
        score_blocks(a, heads, 0, true, true, q0, live, n_groups);
    else
        score_blocks(a, heads, 0, false, true, q0, live, n_groups);
    for (int b = 2; b < n_blocks; b += 2)
        if (b + 1 < n_blocks)
            score_blocks(a, heads, b, true, false, q0, live, n_groups);
        else
            score_blocks(a, heads, b, false, false, q0, live, n_groups);
}

/* --- values ------------------------------------------------------------------------------------------------ */

/* V of a chunk's n positions, a multiple of 32, each byte followed by a zero: for each 16 dimensions a tile for each 32
 * positions, whose rows are pairs in the order in which weights lie. */
static void widen_values(const struct pp_attention *a, const uint8_t *const *heads, int n)
{
    const size_t pair_bytes = 2 * (size_t)a->kv->head_pad;
    for (int at = 0; at < n; at += WEIGHTS_UNIT) {
        const uint8_t *values = heads[at / PP_PAGE_TOKENS] + a->kv->v + (size_t)(at % PP_PAGE_TOKENS / 2) * pair_bytes;
        for (int row = 0; row < TILE_ROWS; row++) {
            const uint8_t *from = values + (size_t)(row / 4 * 2 + row % 4 / 2 * 8 + row % 2) * pair_bytes;
            uint8_t *to = wide_values(a, 0) + at / WEIGHTS_UNIT * TILE_BYTES + row * 64;
            for (const uint8_t *end = from + pair_bytes; from < end; from += 32, to += WIDE_BYTES)
                _mm512_storeu_si512(to, _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)from)));
        }
    }
}

/* Values of a part of the queries, made in steps of a block and 32 positions. */
struct value_steps {
    const struct pp_attention *a;
    struct part_weights from;
    int live, n; /* queries; positions, a multiple of 32 */
    int b, at;   /* where the next step is; b == n_blocks behind the last */
    float *o;
};

static inline void scale_values(const struct value_steps *v, int b, const tile_sums *sums)
{
    float *o = v->o + b * PP_KV_BLOCK;
    for (int i = 0; i < v->live; i++, o += v->a->kv->head_pad)
        for (int half = 0; half < 2; half++) {
            i16x32 low = _mm512_loadu_si512(sums[2 * half][i]), high = _mm512_loadu_si512(sums[2 * half + 1][i]);
            i16x32 whole = _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
            v_store(o + half * LANES, v_mul(i_to_float(whole), v_set1(v->from.scale[i])));
        }
}

/* One step. Tiles 0 to 3 sum low and high bytes for the block's first 16 dimensions, then for the others; when they
 * have all positions, the block before this one, whose sums have long been stored, is scaled. */
static void multiply_values(struct value_steps *v)
{
    enum { W_STRIDE = PP_KV_CHUNK * sizeof(int16_t) };
    const uint8_t *w = (const uint8_t *)(v->from.w + v->b * (PP_PART_QUERIES * PP_KV_CHUNK) + v->at);
    const uint8_t *wide = wide_values(v->a, 2 * v->b) + v->at / WEIGHTS_UNIT * TILE_BYTES;
    if (v->at == 0) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    _tile_loadd(4, w, W_STRIDE);
    _tile_loadd(6, wide, 64);
    _tile_dpbusd(0, 4, 6);
    _tile_loadd(7, wide + WIDE_BYTES, 64);
    _tile_dpbusd(2, 4, 7);
    _tile_loadd(5, w + 1, W_STRIDE);
    _tile_dpbssd(1, 5, 6);
    _tile_dpbssd(3, 5, 7);
    v->at += WEIGHTS_UNIT;
    if (v->at < v->n)
        return;
    tile_sums *sums = sum_tiles(v->a) + v->b % 2 * 4;
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    _tile_stored(2, sums[2], 64);
    _tile_stored(3, sums[3], 64);
    if (v->b > 0)
        scale_values(v, v->b - 1, sum_tiles(v->a) + (v->b - 1) % 2 * 4);
    v->at = 0;
    v->b++;
}

static void finish_values(struct value_steps *v)
{
    const int n_blocks = v->a->kv->head_pad / PP_KV_BLOCK;
    if (v->live == 0)
        return;
    while (v->b < n_blocks)
        multiply_values(v);
    finish_stores();
    scale_values(v, n_blocks - 1, sum_tiles(v->a) + (n_blocks - 1) % 2 * 4);
    v->live = 0;
}

/* A part's probabilities as whole numbers, by vectors, while the tiles make the values of the part before. */
static void weigh_part(const struct pp_attention *a, struct part_weights to, int live, const int *n, int n_end,
                       int first_bad, float *m, float *l, struct value_steps *before)
{
    const int n_blocks = a->kv->head_pad / PP_KV_BLOCK;
    const int steps = (n_blocks * before->n / WEIGHTS_UNIT + live - 1) / live; /* a query */
    part_maxima(a, live, n, m);
    for (int i = 0; i < live; i++) {
        float largest = 0, *p = a->p + i * PP_KV_CHUNK;
        for (int s = 0; before->live && s < steps && before->b < n_blocks; s++)
            multiply_values(before);
        l[i] = powers(p, n[i], m[i], a->v_top, &largest);
        to.scale[i] = whole_weights(a, p, largest, n[i], n_end, to.w + i * PP_KV_CHUNK);
        if (n[i] > first_bad)
            to.scale[i] = NAN;
    }
    finish_values(before);
    finish_stores();
}

static void attention_chunk_tiles(const struct pp_attention *a, const uint8_t *const heads[PP_CHUNK_PAGES], int row,
                                  int n_rows, const int *n, const struct pp_attention_sums *to)
{
    const int q0 = row * a->group, q1 = q0 + n_rows * a->group;
    if (a->kv->type != PP_KV_Q8_0 || q1 - q0 < MIN_TILE_ROWS) {
        attention_chunk(a, heads, row, n_rows, n, to);
        return;
    }
    int limits[MAX_QUERIES] = {0}, q = q0, which = 0;
    const int most = query_limits(a, row, n_rows, n, limits), first_bad = load_scales(a, heads, most);
    struct value_steps values = {.a = a};
    configure_tiles();
    widen_values(a, heads, whole_steps(most));
    for (int live; q1 - q >= MIN_TILE_ROWS; q += live, which = !which) {
        live = q1 - q < TILE_ROWS ? q1 - q : TILE_ROWS;
        const int part_most = longest(live, limits + q), n_end = whole_steps(part_most);
        const struct part_weights w = part_weights(a, which);
        tile_scores(a, heads, q, live, part_most);
        weigh_part(a, w, live, limits + q, n_end, first_bad, to->m + q, to->l + q, &values);
        values = (struct value_steps){
            .a = a, .from = w, .live = live, .n = n_end, .o = to->o + q * a->kv->head_pad};
    }
    finish_values(&values);
    _tile_release(); /* tiles in use make every switch of threads dearer */
    for (int nq; q < q1; q += nq) {
        nq = next_tile(q1 - q);
        chunk_tile(a, heads, q, nq, limits + q, first_bad, to);
    }
}
