/* attention_body.h - attention as ops.h defines it, written once over vec.h; a part of ops_body.h.
 *
 * A register tile is some queries times some vectors of 16: of positions for scores, of dimensions for values. A
 * vector of K or V is loaded (and converted) once for all queries of the tile. The including file says which numbers
 * of queries it has tiles for (TILE_SIZES, a bit for each) and how many vectors of accumulators its registers hold
 * (TILE_ACCUMULATORS). */

#define ALWAYS_INLINE static inline __attribute__((always_inline))
#ifndef UNROLL
#define UNROLL _Pragma("GCC unroll 8")
#endif

enum { TILE_MAX = 8, WIDE_MAX = 4 };

/* How many of n queries the next tile takes. What is left over should not be a tile too thin to be fast. */
static inline int next_tile(int n)
{
    if (TILE_SIZES >> 8 & 1 && n >= 8)
        return 8;
    if (TILE_SIZES >> 6 & 1 && n >= 6 && n != 7 && n != 8)
        return 6;
    if (TILE_SIZES >> 4 & 1 && n >= 4 && !(TILE_SIZES >> 3 & 1 && n == 5))
        return 4;
    if (TILE_SIZES >> 3 & 1 && n >= 3)
        return 3;
    return TILE_SIZES >> 2 & 1 && n >= 2 ? 2 : 1;
}

/* Vectors beside each other in a tile of nq queries: 1, 2 or 4. */
ALWAYS_INLINE int tile_width(const int nq)
{
    return TILE_ACCUMULATORS / nq >= 4 ? 4 : TILE_ACCUMULATORS / nq >= 2 ? 2 : 1;
}

/* CALL with nq as a constant, which it names NQ. */
#define FOR_TILE(nq, CALL)                                                                                             \
    do {                                                                                                               \
        if (TILE_SIZES >> 8 & 1 && (nq) == 8) { enum { NQ = 8 }; CALL; }                                               \
        else if (TILE_SIZES >> 6 & 1 && (nq) == 6) { enum { NQ = 6 }; CALL; }                                          \
        else if (TILE_SIZES >> 4 & 1 && (nq) == 4) { enum { NQ = 4 }; CALL; }                                          \
        else if (TILE_SIZES >> 3 & 1 && (nq) == 3) { enum { NQ = 3 }; CALL; }                                          \
        else if (TILE_SIZES >> 2 & 1 && (nq) == 2) { enum { NQ = 2 }; CALL; }                                          \
        else { enum { NQ = 1 }; CALL; }                                                                                \
    } while (0)

static inline int n_queries(const struct pp_attention *a)
{
    return a->n_rows * a->group;
}

/* --- queries ----------------------------------------------------------------------------------------------- */

static void quantize_query(const struct pp_attention *a, int at, const float *q)
{
    const int n_q = n_queries(a), n_blocks = a->kv->head_pad / PP_KV_BLOCK;
    for (int b = 0; b < n_blocks; b++) {
        int8_t q8[PP_KV_BLOCK];
        int32_t sum = 0;
        a->q_scale[b * n_q + at] = quantize_block(q + b * PP_KV_BLOCK, q8);
        for (int i = 0; i < PP_KV_BLOCK; i++)
            sum += q8[i];
        a->q_start[b * n_q + at] = sum * (a->kv->type == PP_KV_Q8_0 ? -128 : -8);
        for (int step = 0; step < DOT_STEPS; step++)
            a->q_words[(b * DOT_STEPS + step) * n_q + at] = dot_query(q8, step);
    }
}

static void attention_query(const struct pp_attention *a, int row, const float *q, float scale)
{
    const int n_q = n_queries(a), head_dim = a->kv->head_dim, head_pad = a->kv->head_pad;
    for (int h = 0; h < a->group; h++, q += head_dim) {
        int at = row * a->group + h;
        float scaled[PP_MAX_HEAD_DIM];
        for (int d = 0; d < head_pad; d++)
            scaled[d] = d < head_dim ? q[d] * scale : 0;
        if (pp_kv_integers(a->kv))
            quantize_query(a, at, scaled);
        else
            for (int d = 0; d < head_pad; d++)
                a->q[d * n_q + at] = scaled[d];
    }
}

/* --- scores ------------------------------------------------------------------------------------------------ */

/* Sixteen floats of K or V, the at-th of a page's. */
ALWAYS_INLINE v16 load_values(const enum pp_kv_type type, const uint8_t *values, size_t at)
{
    if (type == PP_KV_F32)
        return v_load((const float *)values + at);
    if (type == PP_KV_F16)
        return v_load_f16((const uint16_t *)values + at);
    return v_load_f8(values + at);
}

/* Scores of nq queries with `wide` groups of 16 positions of a page; p: of the first query and position. */
ALWAYS_INLINE void score_floats(const struct pp_attention *a, const enum pp_kv_type type, const uint8_t *head,
                                int group, const int wide, int q0, const int nq, float *p)
{
    const size_t n_q = (size_t)n_queries(a), pad = (size_t)a->kv->head_pad, k0 = (size_t)group * pad * LANES;
    v16 acc[TILE_MAX][WIDE_MAX];
    UNROLL for (int i = 0; i < nq; i++)
        UNROLL for (int w = 0; w < wide; w++)
            acc[i][w] = v_zero();
    const float *q = a->q + q0;
    for (size_t d = 0; d < pad; d++, q += n_q)
        UNROLL for (int w = 0; w < wide; w++) {
            v16 k = load_values(type, head, k0 + (d + (size_t)w * pad) * LANES);
            UNROLL for (int i = 0; i < nq; i++)
                acc[i][w] = v_fma(v_set1(q[i]), k, acc[i][w]);
        }
    UNROLL for (int w = 0; w < wide; w++) {
        v16 scale = v_set1(1);
        if (type == PP_KV_FP8)
            scale = v_load_f16((const uint16_t *)(head + a->kv->k_scales) + (group + w) * LANES);
        UNROLL for (int i = 0; i < nq; i++)
            v_store(p + i * PP_KV_CHUNK + w * LANES, type == PP_KV_FP8 ? v_mul(acc[i][w], scale) : acc[i][w]);
    }
}

/* Whole numbers of one block of 32 dimensions; k: the block's of the first group, k_stride bytes to the next group's.
 * */
ALWAYS_INLINE void dot_block(const struct pp_attention *a, const enum pp_kv_type type, const uint8_t *k,
                             size_t k_stride, const int wide, int b, int q0, const int nq,
                             i16x32 sum[TILE_MAX][WIDE_MAX])
{
    const int n_q = n_queries(a);
    const int32_t *q = a->q_words + b * DOT_STEPS * n_q + q0;
    const size_t four_steps = (size_t)(type == PP_KV_Q8_0 ? 1 : 2);
    UNROLL for (int i = 0; i < nq; i++)
        UNROLL for (int w = 0; w < wide; w++)
            sum[i][w] = i_set1(a->q_start[b * n_q + q0 + i]);
    for (int step = 0; step < DOT_STEPS; step += 4, k += 4 * PP_KV_BLOCK * LANES / DOT_STEPS / four_steps)
        UNROLL for (int s = 0; s < 4; s++, q += n_q)
            UNROLL for (int w = 0; w < wide; w++) {
                const uint8_t *kw = k + (size_t)w * k_stride;
                k16 x = type == PP_KV_Q8_0 ? dot_load_u8(kw, s) : dot_load_u4(kw, s);
                UNROLL for (int i = 0; i < nq; i++)
                    sum[i][w] = i_dot(sum[i][w], x, q[i]);
            }
}

ALWAYS_INLINE void score_integers(const struct pp_attention *a, const enum pp_kv_type type, const uint8_t *head,
                                  int group, const int wide, int q0, const int nq, float *p)
{
    const int n_q = n_queries(a), n_blocks = a->kv->head_pad / PP_KV_BLOCK;
    const size_t block_bytes = (size_t)PP_KV_BLOCK * LANES / (type == PP_KV_Q8_0 ? 1 : 2);
    const size_t group_bytes = block_bytes * (size_t)n_blocks;
    const uint16_t *kd = (const uint16_t *)(head + a->kv->k_scales) + group * n_blocks * LANES;
    v16 acc[TILE_MAX][WIDE_MAX];
    UNROLL for (int i = 0; i < nq; i++)
        UNROLL for (int w = 0; w < wide; w++)
            acc[i][w] = v_zero();
    for (int b = 0; b < n_blocks; b++) {
        i16x32 sum[TILE_MAX][WIDE_MAX];
        dot_block(a, type, head + (size_t)group * group_bytes + (size_t)b * block_bytes, group_bytes, wide, b, q0, nq,
                  sum);
        UNROLL for (int w = 0; w < wide; w++) {
            v16 d = v_load_f16(kd + (w * n_blocks + b) * LANES);
            UNROLL for (int i = 0; i < nq; i++)
                acc[i][w] = v_fma(v_mul(v_set1(a->q_scale[b * n_q + q0 + i]), d), i_to_float(sum[i][w]), acc[i][w]);
        }
    }
    UNROLL for (int w = 0; w < wide; w++)
        UNROLL for (int i = 0; i < nq; i++)
            v_store(p + i * PP_KV_CHUNK + w * LANES, acc[i][w]);
}

ALWAYS_INLINE void score_tile(const struct pp_attention *a, const enum pp_kv_type type, const uint8_t *const *heads,
                              int q0, const int nq, int n)
{
    const int wide = tile_width(nq), n_groups = (n + LANES - 1) / LANES, in_page = PP_PAGE_TOKENS / LANES;
    for (int g = 0; g < n_groups;) {
        const uint8_t *head = heads[g / in_page];
        float *p = a->p + q0 * PP_KV_CHUNK + g * LANES;
        if (wide > 1 && g + wide <= n_groups && g % wide == 0) { /* wide divides a page's groups */
            if (type == PP_KV_Q8_0 || type == PP_KV_Q4_0)
                score_integers(a, type, head, g % in_page, wide, q0, nq, p);
            else
                score_floats(a, type, head, g % in_page, wide, q0, nq, p);
            g += wide;
        } else {
            if (type == PP_KV_Q8_0 || type == PP_KV_Q4_0)
                score_integers(a, type, head, g % in_page, 1, q0, nq, p);
            else
                score_floats(a, type, head, g % in_page, 1, q0, nq, p);
            g++;
        }
    }
}

typedef void tile_fn(const struct pp_attention *a, const uint8_t *const *heads, int q0, int nq, int n);

#define SCORES(name, type)                                                                                             \
    static void scores_##name(const struct pp_attention *a, const uint8_t *const *heads, int q0, int nq, int n)        \
    {                                                                                                                  \
        FOR_TILE(nq, score_tile(a, type, heads, q0, NQ, n));                                                           \
    }
SCORES(f32, PP_KV_F32)
SCORES(f16, PP_KV_F16)
SCORES(fp8, PP_KV_FP8)
SCORES(q8_0, PP_KV_Q8_0)
SCORES(q4_0, PP_KV_Q4_0)
#undef SCORES

static tile_fn *const score_fns[] = {[PP_KV_F32] = scores_f32, [PP_KV_F16] = scores_f16, [PP_KV_FP8] = scores_fp8,
                                     [PP_KV_Q8_0] = scores_q8_0, [PP_KV_Q4_0] = scores_q4_0};

/* p [n], n a multiple of 16: scores become exp(score - m). Returns m; *l: their sum. */
static float chunk_softmax(float *p, int n, float *l)
{
    v16 top = v_load(p);
    for (int i = LANES; i < n; i += LANES)
        top = v_max(v_load(p + i), top);
    float m = v_largest(top);
    v16 sum = v_zero();
    for (int i = 0; i < n; i += LANES) {
        v16 e = v_exp(v_sub(v_load(p + i), v_set1(m)));
        v_store(p + i, e);
        sum = v_add(sum, e);
    }
    *l = v_sum(sum);
    return m;
}

/* --- values ------------------------------------------------------------------------------------------------ */

/* V's scales of a chunk's n positions as floats [blocks, 256], and zeros where they are no numbers. first_bad [blocks]:
 * the first such position, or 256. */
static void load_value_scales(const struct pp_attention *a, const uint8_t *const *heads, int n, int *first_bad)
{
    for (int b = 0; b < a->kv->head_pad / PP_KV_BLOCK; b++) {
        float *to = a->v_scale + b * PP_KV_CHUNK;
        v16 check = v_zero();
        for (int i = 0; i < n; i += LANES) {
            const uint16_t *vd = (const uint16_t *)(heads[i / PP_PAGE_TOKENS] + a->kv->v_scales);
            v16 d = v_load_f16(vd + b * PP_PAGE_TOKENS + i % PP_PAGE_TOKENS);
            v_store(to + i, d);
            check = v_fma(d, v_zero(), check); /* not 0 if d is NaN or infinite */
        }
        first_bad[b] = PP_KV_CHUNK;
        if (v_sum(check) == 0)
            continue;
        for (int i = (n + LANES - 1) / LANES * LANES; i-- > 0;)
            if (!(fabsf(to[i]) <= FLT_MAX)) {
                to[i] = 0;
                first_bad[b] = i;
            }
    }
}

/* o += sum over positions from .. to - 1 ascending of p v, for nq queries and `wide` vectors of dimensions; from 0, o
 * is not read. */
ALWAYS_INLINE void add_values(const struct pp_attention *a, const enum pp_kv_type type, const uint8_t *const *heads,
                              int q0, const int nq, int vec, const int wide, int from, int to, float *o)
{
    const size_t pad = (size_t)a->kv->head_pad, size = type == PP_KV_F32 ? 4 : type == PP_KV_F16 ? 2 : 1;
    v16 acc[TILE_MAX][WIDE_MAX];
    o += (size_t)q0 * pad + (size_t)(vec * LANES);
    UNROLL for (int i = 0; i < nq; i++)
        UNROLL for (int w = 0; w < wide; w++)
            acc[i][w] = from ? v_load(o + (size_t)i * pad + w * LANES) : v_zero();
    const float *p = a->p + q0 * PP_KV_CHUNK + from;
    for (int at = from; at < to;) {
        const int slot = at % PP_PAGE_TOKENS, n = PP_PAGE_TOKENS - slot < to - at ? PP_PAGE_TOKENS - slot : to - at;
        const uint8_t *v = heads[at / PP_PAGE_TOKENS] + a->kv->v + ((size_t)slot * pad + (size_t)(vec * LANES)) * size;
        for (const float *end = p + n; p < end; p++, v += pad * size)
            UNROLL for (int w = 0; w < wide; w++) {
                v16 x = load_values(type, v, (size_t)(w * LANES));
                UNROLL for (int i = 0; i < nq; i++)
                    acc[i][w] = v_fma(v_set1(p[i * PP_KV_CHUNK]), x, acc[i][w]);
            }
        at += n;
    }
    UNROLL for (int i = 0; i < nq; i++)
        UNROLL for (int w = 0; w < wide; w++)
            v_store(o + (size_t)i * pad + w * LANES, acc[i][w]);
}

/* All vectors of dimensions. */
ALWAYS_INLINE void value_tile(const struct pp_attention *a, const enum pp_kv_type type, const uint8_t *const *heads,
                              int q0, const int nq, int from, int to, float *o)
{
    const int wide = tile_width(nq), n_vecs = a->kv->head_pad / LANES;
    int vec = 0;
    for (; vec + wide <= n_vecs; vec += wide)
        add_values(a, type, heads, q0, nq, vec, wide, from, to, o);
    for (; wide > 1 && vec < n_vecs; vec++)
        add_values(a, type, heads, q0, nq, vec, 1, from, to, o);
}

typedef void float_values_fn(const struct pp_attention *a, const uint8_t *const *heads, int q0, int nq, int from,
                             int to, float *o);

#define VALUES(name, type)                                                                                             \
    static void values_##name(const struct pp_attention *a, const uint8_t *const *heads, int q0, int nq, int from,     \
                              int to, float *o)                                                                        \
    {                                                                                                                  \
        FOR_TILE(nq, value_tile(a, type, heads, q0, NQ, from, to, o));                                                 \
    }
VALUES(f32, PP_KV_F32)
VALUES(f16, PP_KV_F16)
VALUES(fp8, PP_KV_FP8)
#undef VALUES

static float_values_fn *const value_fns[] = {[PP_KV_F32] = values_f32, [PP_KV_F16] = values_f16,
                                             [PP_KV_FP8] = values_fp8};

/* limits: of each query. A tile shares what all of its queries see; the rest is each one's own, so that nobody
 * multiplies a position that it must not see, were it only by zero. */
static void chunk_floats(const struct pp_attention *a, const uint8_t *const *heads, int q0, int q1, const int *limits,
                         float *o)
{
    float_values_fn *values = value_fns[a->kv->type];
    for (int nq; q0 < q1; q0 += nq) {
        nq = next_tile(q1 - q0);
        int common = PP_KV_CHUNK;
        for (int i = 0; i < nq; i++)
            common = limits[q0 + i] < common ? limits[q0 + i] : common;
        values(a, heads, q0, nq, 0, common, o);
        for (int i = 0; i < nq; i++)
            if (limits[q0 + i] > common)
                values(a, heads, q0 + i, 1, common, limits[q0 + i], o);
    }
}

/* p of a query times V's scales of a block, as whole numbers w up to 32767 with zeros from n on. Returns their scale.
 * */
static float whole_weights(const float *p, const float *v_scale, int n, int n_end, int16_t *w)
{
    const int whole = n / LANES * LANES;
    float product[PP_KV_CHUNK];
    v16 top = v_zero();
    for (int i = 0; i < n; i += LANES) {
        v16 x = v_mul(v_load(p + i), v_load(v_scale + i));
        if (i == whole)
            x = v_keep_first(x, n - whole, 0);
        v_store(product + i, x);
        top = v_max(v_max(x, v_sub(v_zero(), x)), top);
    }
    float largest = v_largest(top), inverse = 32767.0f / largest;
    v16 scale = v_set1(inverse <= FLT_MAX ? inverse : 0), limit = v_set1(32767.0f);
    int i = 0;
    for (; i < n; i += LANES) {
        v16 x = v_mul(v_load(product + i), scale);
        v_store_i16(w + i, v_min(v_max(x, v_sub(v_zero(), limit)), limit));
    }
    if (i < n_end)
        memset(w + i, 0, (size_t)(n_end - i) * sizeof *w);
    return largest / 32767.0f;
}

/* o = sum over n positions, for nq queries and `wide` of the two vectors of a block. */
ALWAYS_INLINE void block_values(const struct pp_attention *a, const enum pp_kv_type type, const uint8_t *const *heads,
                                int q0, const int nq, int b, int half, const int wide, int n, float *o)
{
    const size_t pad = (size_t)a->kv->head_pad;
    const size_t pair_bytes = type == PP_KV_Q8_0 ? 2 * pad : pad, block_bytes = type == PP_KV_Q8_0 ? 64 : 32;
    i16x32 acc[TILE_MAX][WIDE_MAX];
    UNROLL for (int i = 0; i < nq; i++)
        UNROLL for (int w = 0; w < wide; w++)
            acc[i][w] = i_set1(0);
    for (int begin = 0; begin < n; begin += PP_PAGE_TOKENS) {
        const uint8_t *values = heads[begin / PP_PAGE_TOKENS] + a->kv->v + (size_t)b * block_bytes;
        const int16_t *weights = a->w + q0 * PP_KV_CHUNK + begin;
        int end = n - begin < PP_PAGE_TOKENS ? n - begin : PP_PAGE_TOKENS;
        for (int at = 0; at < end; at += 2, values += pair_bytes, weights += 2)
            UNROLL for (int w = 0; w < wide; w++) {
                k16 v = type == PP_KV_Q8_0 ? pair_load_i8(values + (half + w) * 32) : pair_load_u4(values, half + w);
                UNROLL for (int i = 0; i < nq; i++) {
                    int32_t both;
                    memcpy(&both, weights + i * PP_KV_CHUNK, sizeof both);
                    acc[i][w] = i_pair(acc[i][w], v, both);
                }
            }
    }
    o += (size_t)q0 * pad + (size_t)(b * PP_KV_BLOCK + half * LANES);
    UNROLL for (int i = 0; i < nq; i++)
        UNROLL for (int w = 0; w < wide; w++)
            v_store(o + (size_t)i * pad + w * LANES, v_mul(i_to_float(acc[i][w]), v_set1(a->w_scale[q0 + i])));
}

ALWAYS_INLINE void block_tile(const struct pp_attention *a, const enum pp_kv_type type, const uint8_t *const *heads,
                              int q0, const int nq, int b, int n, float *o)
{
    if (tile_width(nq) > 1) {
        block_values(a, type, heads, q0, nq, b, 0, 2, n, o);
    } else {
        block_values(a, type, heads, q0, nq, b, 0, 1, n, o);
        block_values(a, type, heads, q0, nq, b, 1, 1, n, o);
    }
}

typedef void block_values_fn(const struct pp_attention *a, const uint8_t *const *heads, int q0, int nq, int b, int n,
                             float *o);

static void block_values_q8_0(const struct pp_attention *a, const uint8_t *const *heads, int q0, int nq, int b, int n,
                              float *o)
{
    FOR_TILE(nq, block_tile(a, PP_KV_Q8_0, heads, q0, NQ, b, n, o));
}

static void block_values_q4_0(const struct pp_attention *a, const uint8_t *const *heads, int q0, int nq, int b, int n,
                              float *o)
{
    FOR_TILE(nq, block_tile(a, PP_KV_Q4_0, heads, q0, NQ, b, n, o));
}

static void chunk_integers(const struct pp_attention *a, const uint8_t *const *heads, int q0, int q1,
                           const int *limits, int n_end, float *o)
{
    block_values_fn *values = a->kv->type == PP_KV_Q8_0 ? block_values_q8_0 : block_values_q4_0;
    const int n_blocks = a->kv->head_pad / PP_KV_BLOCK;
    int first_bad[PP_MAX_HEAD_DIM / PP_KV_BLOCK];
    load_value_scales(a, heads, n_end, first_bad);
    for (int b = 0; b < n_blocks; b++) {
        for (int q = q0; q < q1; q++) {
            a->w_scale[q] = whole_weights(a->p + q * PP_KV_CHUNK, a->v_scale + b * PP_KV_CHUNK, limits[q], n_end,
                                          a->w + q * PP_KV_CHUNK);
            if (limits[q] > first_bad[b])
                a->w_scale[q] = NAN;
        }
        for (int q = q0, nq; q < q1; q += nq) {
            nq = next_tile(q1 - q);
            values(a, heads, q, nq, b, n_end, o);
        }
    }
}

/* FP8 has one scale for a position's V: it goes into the probabilities. */
static void scale_weights(const struct pp_attention *a, const uint8_t *const *heads, int q0, int q1, int n_end)
{
    for (int i = 0; i < n_end; i += LANES)
        v_store(a->v_scale + i, v_load_f16((const uint16_t *)(heads[i / PP_PAGE_TOKENS] + a->kv->v_scales) +
                                           i % PP_PAGE_TOKENS));
    for (int q = q0; q < q1; q++)
        for (int i = 0; i < n_end; i += LANES) {
            float *p = a->p + q * PP_KV_CHUNK + i;
            v_store(p, v_mul(v_load(p), v_load(a->v_scale + i)));
        }
}

/* --- a chunk and the whole --------------------------------------------------------------------------------- */

static void attention_chunk(const struct pp_attention *a, const uint8_t *const heads[PP_CHUNK_PAGES], int row,
                            int n_rows, const int *n, const struct pp_attention_sums *to)
{
    const int q0 = row * a->group, q1 = q0 + n_rows * a->group;
    int limits[PP_MAX_GROUP > PP_TILE_QUERIES ? PP_MAX_GROUP : PP_TILE_QUERIES], n_end = 0;
    for (int q = q0; q < q1; q++) {
        limits[q] = n[q / a->group];
        n_end = limits[q] > n_end ? limits[q] : n_end;
    }
    n_end = (n_end + LANES - 1) / LANES * LANES;
    for (int q = q0, nq; q < q1; q += nq) {
        int longest = 0;
        nq = next_tile(q1 - q);
        for (int i = 0; i < nq; i++)
            longest = limits[q + i] > longest ? limits[q + i] : longest;
        score_fns[a->kv->type](a, heads, q, nq, longest);
    }
    for (int q = q0; q < q1; q++) {
        float *p = a->p + q * PP_KV_CHUNK;
        int last = (limits[q] - 1) / LANES * LANES;
        if (limits[q] % LANES)
            v_store(p + last, v_keep_first(v_load(p + last), limits[q] - last, -INFINITY));
        to->m[q] = chunk_softmax(p, last + LANES, &to->l[q]);
    }
    if (pp_kv_integers(a->kv)) {
        chunk_integers(a, heads, q0, q1, limits, n_end, to->o);
    } else {
        if (a->kv->type == PP_KV_FP8)
            scale_weights(a, heads, q0, q1, n_end);
        chunk_floats(a, heads, q0, q1, limits, to->o);
    }
}

static void attention_merge(const struct pp_attention *a, int row, int n_rows, const struct pp_attention_sums *chunk,
                            const struct pp_attention_sums *total)
{
    const int head_pad = a->kv->head_pad;
    for (int q = row * a->group; q < (row + n_rows) * a->group; q++) {
        float *out = total->o + q * head_pad, *o = chunk->o + q * head_pad;
        float larger = chunk->m[q] > total->m[q] ? chunk->m[q] : total->m[q];
        float e[LANES] = {total->m[q] - larger, chunk->m[q] - larger};
        v_store(e, v_exp(v_load(e)));
        total->m[q] = larger;
        total->l[q] = fmaf(chunk->l[q], e[1], total->l[q] * e[0]);
        for (int d = 0; d < head_pad; d += LANES)
            v_store(out + d, v_fma(v_load(o + d), v_set1(e[1]), v_mul(v_load(out + d), v_set1(e[0]))));
    }
}

static void attention_finish(const struct pp_attention *a, int row, const struct pp_attention_sums *total, float *out)
{
    const int head_dim = a->kv->head_dim, head_pad = a->kv->head_pad;
    for (int h = 0; h < a->group; h++, out += head_dim) {
        int q = row * a->group + h;
        for (int d = 0; d < head_dim; d++)
            out[d] = total->o[q * head_pad + d] / total->l[q];
    }
}
