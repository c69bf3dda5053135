/* attention_body.h - attention as ops.h defines it, written once over vec.h; a part of ops_body.h.
 *
 * A few queries at a time go through a chunk, from scores to weighted values, so that their scores stay in the L1
 * cache. A register tile is some queries times some vectors of 16 (positions for scores, dimensions for values); a
 * vector of K or V is loaded and converted once for all queries of the tile. The including file defines for which
 * numbers of queries there are tiles (TILE_SIZES, one bit each) and how many accumulators the registers hold
 * (TILE_ACCUMULATORS). */

enum {
    TILE_MAX = 8,
    WIDE_MAX = 4,
    MAX_QUERIES = PP_MAX_GROUP > PP_TILE_QUERIES ? PP_MAX_GROUP : PP_TILE_QUERIES,
};

/* How many of n queries the next tile takes; chosen so that no tile is left that is too small to be fast. */
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

/* Vectors side by side in a tile of nq queries: 1, 2 or 4. */
ALWAYS_INLINE int tile_width(const int nq)
{
    return TILE_ACCUMULATORS / nq >= 4 ? 4 : TILE_ACCUMULATORS / nq >= 2 ? 2 : 1;
}

/* Runs CALL with nq as the compile-time constant NQ. */
#define FOR_TILE(nq, CALL)                                                                                             \
    do {                                                                                                               \
        if (TILE_SIZES >> 8 & 1 && (nq) == 8) { enum { NQ = 8 }; CALL; }                                               \
        else if (TILE_SIZES >> 6 & 1 && (nq) == 6) { enum { NQ = 6 }; CALL; }                                          \
        else if (TILE_SIZES >> 4 & 1 && (nq) == 4) { enum { NQ = 4 }; CALL; }                                          \
        else if (TILE_SIZES >> 3 & 1 && (nq) == 3) { enum { NQ = 3 }; CALL; }                                          \
        else if (TILE_SIZES >> 2 & 1 && (nq) == 2) { enum { NQ = 2 }; CALL; }                                          \
        else { enum { NQ = 1 }; CALL; }                                                                                \
    } while (0)

/* A position's page in the chunk, and its slot there; unsigned, so that division by a power of two is a shift. */
static inline size_t page_of(int at)
{
    return (unsigned)at / PP_PAGE_TOKENS;
}

static inline size_t slot_of(int at)
{
    return (unsigned)at % PP_PAGE_TOKENS;
}

static inline int n_queries(const struct pp_attention *a)
{
    return a->n_rows * a->group;
}

/* --- prefetching ------------------------------------------------------------------------------------------- */

/* A head's part of a page is too short for the hardware prefetchers to detect a stream. So K and V of the next chunk
 * are prefetched while this one is processed. If the current chunk has not been prefetched, except for K of its first
 * page, the rest of it comes first. With few queries a chunk takes little longer than reading it, and a processor has
 * few line fill buffers, so prefetches are spread evenly over the steps of the work; with many queries, over the
 * tiles. */
enum { ASKED_POSITIONS = 32, FEW_QUERIES = 16, LINE = 64 };

/* The same part of several pages, prefetched one line of each page after the other: a core reads memory faster with
 * four streams than with one (25 to 32 GB/s instead of 18 to 22, for parts of 8 KiB on a Zen 5). */
struct asked {
    const uint8_t *at[PP_CHUNK_PAGES];
    int n;
    size_t bytes;
};

struct requests {
    struct asked left[3];
    int i, n;    /* of `left`: the first that is not done, and their number */
    size_t from; /* the first byte of left[i] that is not prefetched yet */
    int n_lines; /* in all */
    int a_step;  /* lines to prefetch per step */
};

/* Adds a request for bytes from `from` on of the existing pages from number `first` on. */
static void add_request(struct requests *r, const uint8_t *const *pages, int first, size_t from, size_t bytes)
{
    struct asked *asked = &r->left[r->n];
    asked->n = 0;
    for (int i = first; i < PP_CHUNK_PAGES; i++)
        if (pages[i])
            asked->at[asked->n++] = pages[i] + from;
    asked->bytes = bytes;
    r->n += asked->n > 0 && bytes > 0;
    r->n_lines += asked->n * (int)((bytes + LINE - 1) / LINE);
}

static __attribute__((noinline)) void ask(struct requests *r, int n)
{
    for (; r->i < r->n; r->i++, r->from = 0) {
        const struct asked *asked = &r->left[r->i];
        for (; r->from < asked->bytes; r->from += LINE, n -= asked->n) {
            if (n <= 0)
                return;
            for (int i = 0; i < asked->n; i++)
                __builtin_prefetch(asked->at[i] + r->from, 0, 3);
        }
    }
}

ALWAYS_INLINE void ask_some(struct requests *r)
{
    if (r->a_step)
        ask(r, r->a_step);
}

/* Steps of the work on a tile, which call ask_some(). */
static int steps_of_tile(const struct pp_attention *a, int nq)
{
    const int wide = tile_width(nq), n_vecs = a->kv->v_pad / LANES;
    const int parts = pp_kv_integers(a->kv) ? PP_KV_CHUNK / ASKED_POSITIONS : PP_CHUNK_PAGES;
    const int side = pp_kv_integers(a->kv) && wide > 2 ? 2 : wide;
    return PP_KV_CHUNK / LANES / wide + nq + parts * ((n_vecs + side - 1) / side);
}

/* What to prefetch while a chunk is processed. */
static struct requests begin_requests(const struct pp_attention *a, const uint8_t *const *heads, int n_q)
{
    const struct pp_kv_layout *kv = a->kv;
    struct requests r = {0};
    const size_t k_bytes = pp_kv_key_bytes(kv);
    int first = 0;
    while (first < PP_CHUNK_PAGES && !heads[first])
        first++;
    if (a->unasked) {
        add_request(&r, heads, first + 1, 0, k_bytes);
        add_request(&r, heads, first, k_bytes, kv->head_bytes - k_bytes);
    }
    add_request(&r, a->next, 0, 0, kv->head_bytes);
    int steps = 0;
    for (int q = 0, nq; n_q <= FEW_QUERIES && q < n_q; q += nq) {
        nq = next_tile(n_q - q);
        steps += steps_of_tile(a, nq);
    }
    r.a_step = steps ? (r.n_lines + steps - 1) / steps : 0;
    return r;
}

/* Prefetches the share of the requests that falls to n of n_q queries. */
static inline void ask_for_share(struct requests *r, int n, int n_q)
{
    if (!r->a_step)
        ask(r, (r->n_lines * n + n_q - 1) / n_q);
}

/* --- queries ----------------------------------------------------------------------------------------------- */

#if defined(PP_OPS_AMX)
static void keep_tile_query(const struct pp_attention *a, int at, int b, const int8_t *q8);
#endif

static void quantize_query(const struct pp_attention *a, int at, const float *q)
{
    const struct pp_kv_layout *kv = a->kv;
    const int n_q = n_queries(a), dims = kv->scale_dims, steps = dims / PP_KV_BLOCK * DOT_STEPS;
    for (int b = 0; b < kv->head_pad / dims; b++) {
        int8_t q8[PP_KV_MOST_SCALED];
        int32_t sum = 0;
        a->q_scale[b * n_q + at] = quantize_values(q + b * dims, dims, q8);
        for (int i = 0; i < dims; i++)
            sum += q8[i];
        a->q_start[b * n_q + at] = V_ROUNDER_BITS + sum * (pp_kv_bytes(kv) ? -128 : -8);
        for (int step = 0; step < steps; step++)
            a->q_words[(b * steps + step) * n_q + at] = dot_query(q8, step);
#if defined(PP_OPS_AMX)
        if (pp_kv_bytes(kv))
            keep_tile_query(a, at, b, q8);
#endif
    }
}

static void attention_query(const struct pp_attention *a, int row, const float *q, float scale)
{
    const int n_q = n_queries(a), head_dim = a->kv->head_dim, head_pad = a->kv->head_pad;
    scale *= 1.44269504f; /* log2 e */
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

/* Loads the at-th vector of sixteen values of K or V in a page as floats. */
ALWAYS_INLINE v16 load_values(const enum pp_kv_type type, const uint8_t *values, size_t at)
{
    if (type == PP_KV_F32)
        return v_load((const float *)values + at);
    if (type == PP_KV_F16)
        return v_load_f16((const uint16_t *)values + at);
    return v_load_f8(values + at);
}

/* Computes the scores of nq queries with `wide` groups of 16 positions of a page. p: where the first query's score for
 * the first of these positions is stored. */
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

/* Integer sums over the dimensions that share the b-th scale, starting from q_start; k: their values in the first
 * group, k_stride bytes from the next group's. */
ALWAYS_INLINE void dot_block(const struct pp_attention *a, const enum pp_kv_type type, const uint8_t *k,
                             size_t k_stride, const int wide, int b, int q0, const int nq,
                             i16x32 sum[TILE_MAX][WIDE_MAX])
{
    const int n_q = n_queries(a), steps = a->kv->scale_dims / PP_KV_BLOCK * DOT_STEPS;
    const int32_t *q = a->q_words + b * steps * n_q + q0;
    const size_t four_steps = (size_t)(type == PP_KV_Q8_0 ? 1 : 2);
    UNROLL for (int i = 0; i < nq; i++)
        UNROLL for (int w = 0; w < wide; w++)
            sum[i][w] = i_set1(a->q_start[b * n_q + q0 + i]);
    for (int step = 0; step < steps; step += 4, k += 4 * PP_KV_BLOCK * LANES / DOT_STEPS / four_steps)
        UNROLL for (int s = 0; s < 4; s++, q += n_q)
            UNROLL for (int w = 0; w < wide; w++) {
                const uint8_t *kw = k + (size_t)w * k_stride;
                k16 x = type == PP_KV_Q8_0 ? dot_load_u8(kw, s) : dot_load_u4(kw, s);
                UNROLL for (int i = 0; i < nq; i++)
                    sum[i][w] = i_dot(sum[i][w], x, q[i]);
            }
}

/* An integer sum that began with V_ROUNDER_BITS, times d: rounded only once, because V_ROUNDER times an F16 number has
 * few bits. A sum of PP_KV_MOST_SCALED products of bytes is below 2^22. */
ALWAYS_INLINE v16 times_sum(v16 d, v16 minus_rounder, i16x32 sum)
{
    return v_fma(i_as_float(sum), d, minus_rounder);
}

/* Adds the contribution of the dimensions that share a scale to the scores; the first one's initialises them. */
ALWAYS_INLINE void score_block(const struct pp_attention *a, const enum pp_kv_type type, const uint8_t *k,
                               size_t k_stride, const uint16_t *kd, const int wide, int b, const bool first, int q0,
                               const int nq, float *p)
{
    const float *qd = a->q_scale + b * n_queries(a) + q0;
    const int n_scales = a->kv->head_pad / a->kv->scale_dims;
    i16x32 sum[TILE_MAX][WIDE_MAX];
    dot_block(a, type, k, k_stride, wide, b, q0, nq, sum);
    UNROLL for (int w = 0; w < wide; w++) {
        v16 d = v_load_f16(kd + w * n_scales * LANES), minus = v_mul(d, v_set1(-V_ROUNDER));
        UNROLL for (int i = 0; i < nq; i++) {
            float *to = p + i * PP_KV_CHUNK + w * LANES;
            v16 share = times_sum(d, minus, sum[i][w]);
            v_store(to, first ? v_mul(share, v_set1(qd[i])) : v_fma(share, v_set1(qd[i]), v_load(to)));
        }
    }
}

ALWAYS_INLINE void score_integers(const struct pp_attention *a, const enum pp_kv_type type, const uint8_t *head,
                                  int group, const int wide, int q0, const int nq, float *p)
{
    const int dims = a->kv->scale_dims, n_blocks = a->kv->head_pad / dims;
    const size_t block_bytes = (size_t)dims * LANES / (type == PP_KV_Q8_0 ? 1 : 2);
    const size_t group_bytes = block_bytes * (size_t)n_blocks;
    const uint16_t *kd = (const uint16_t *)(head + a->kv->k_scales) + group * n_blocks * LANES;
    const uint8_t *k = head + (size_t)group * group_bytes;
    score_block(a, type, k, group_bytes, kd, wide, 0, true, q0, nq, p);
    for (int b = 1; b < n_blocks; b++)
        score_block(a, type, k + (size_t)b * block_bytes, group_bytes, kd + b * LANES, wide, b, false, q0, nq, p);
}

/* Computes scores for the groups of 16 positions that contain any of those given. type: Q8_0 also stands for Q8. */
ALWAYS_INLINE void score_tile(const struct pp_attention *a, const enum pp_kv_type type, const uint8_t *const *heads,
                              int q0, const int nq, struct pp_span see, struct requests *soon)
{
    const int wide = tile_width(nq), n_groups = (see.end + LANES - 1) / LANES;
    for (int g = see.begin / LANES; g < n_groups;) {
        const uint8_t *head = heads[page_of(g * LANES)];
        const int group = (int)slot_of(g * LANES) / LANES;
        float *p = a->p + g * LANES;
        ask_some(soon);
        if (wide > 1 && g + wide <= n_groups && g % wide == 0) { /* wide divides a page's groups */
            if (type == PP_KV_Q8_0 || type == PP_KV_Q4_0)
                score_integers(a, type, head, group, wide, q0, nq, p);
            else
                score_floats(a, type, head, group, wide, q0, nq, p);
            g += wide;
        } else {
            if (type == PP_KV_Q8_0 || type == PP_KV_Q4_0)
                score_integers(a, type, head, group, 1, q0, nq, p);
            else
                score_floats(a, type, head, group, 1, q0, nq, p);
            g++;
        }
    }
}

typedef void tile_fn(const struct pp_attention *a, const uint8_t *const *heads, int q0, int nq, struct pp_span see,
                     struct requests *soon);

#define SCORES(name, type)                                                                                             \
    static void scores_##name(const struct pp_attention *a, const uint8_t *const *heads, int q0, int nq,               \
                              struct pp_span see, struct requests *soon)                                               \
    {                                                                                                                  \
        FOR_TILE(nq, score_tile(a, type, heads, q0, NQ, see, soon));                                                   \
    }
SCORES(f32, PP_KV_F32)
SCORES(f16, PP_KV_F16)
SCORES(fp8, PP_KV_FP8)
SCORES(q8_0, PP_KV_Q8_0)
SCORES(q4_0, PP_KV_Q4_0)
#undef SCORES

static tile_fn *const score_fns[] = {[PP_KV_F32] = scores_f32, [PP_KV_F16] = scores_f16, [PP_KV_FP8] = scores_fp8,
                                     [PP_KV_Q8] = scores_q8_0, [PP_KV_Q8_0] = scores_q8_0,
                                     [PP_KV_Q4_0] = scores_q4_0};

/* The largest of n scores, n a multiple of 16; with v_log, of their sums with it. */
ALWAYS_INLINE float largest_score(const float *p, const float *v_log, int n)
{
    v16 even = v_set1(-INFINITY), odd = even;
    for (int i = 0; i < n; i += 2 * LANES) {
        v16 s = v_load(p + i);
        even = v_max(v_log ? v_add(s, v_load(v_log + i)) : s, even);
        if (i + LANES < n) {
            s = v_load(p + i + LANES);
            odd = v_max(v_log ? v_add(s, v_load(v_log + i + LANES)) : s, odd);
        }
    }
    return v_largest(v_max(odd, even));
}

/* The reference m, which is subtracted from scores before 2^x. It is their maximum, or, if V is quantised, so much less
 * that powers times V's scales fill 16 bits: up to 2^14.9, or less if scores are so large that sums with them are
 * rounded coarsely. It is never within -1 .. 1, so that differences are not finer than v_exp2() expects. */
static inline float reference(float largest, bool integers)
{
    float m = largest;
    if (integers && fabsf(largest) <= FLT_MAX)
        m = fmaf(fabsf(largest), 0x1p-21f, largest - 14.9f);
    return fabsf(m) < 1 ? 1 : m;
}

/* Computes the references m of nq queries, and sets the scores of positions that a query does not attend to to
 * -infinity, up to a multiple of 16. */
ALWAYS_INLINE void part_references(const struct pp_attention *a, int nq, const struct pp_span *see, const float *v_log,
                                   float *m)
{
    for (int i = 0; i < nq; i++) {
        float *p = a->p + i * PP_KV_CHUNK;
        const int first = see[i].begin / LANES * LANES, last = (see[i].end - 1) / LANES * LANES;
        if (see[i].begin > first)
            v_store(p + first, v_keep(v_load(p + first), see[i].begin - first, LANES, -INFINITY));
        if (see[i].end % LANES)
            v_store(p + last, v_keep(v_load(p + last), 0, see[i].end - last, -INFINITY));
        m[i] = reference(largest_score(p + first, v_log ? v_log + first : NULL, last + LANES - first), v_log);
    }
}

/* Replaces the scores of nq queries by p = 2^(score - m); sets their m and l. */
static void softmax(const struct pp_attention *a, int nq, const struct pp_span *see, struct requests *soon, float *m,
                    float *l)
{
    part_references(a, nq, see, NULL, m); /* a loop of its own, since the rest depends on m */
    for (int i = 0; i < nq; i++) {
        ask_some(soon);
        float *p = a->p + i * PP_KV_CHUNK;
        const int first = see[i].begin / LANES * LANES;
        const v16 less = v_set1(m[i]);
        v16 sum = v_zero();
        UNROLL_TWICE for (int at = first; at < see[i].end; at += LANES) {
            v16 e = v_exp2(v_sub(v_load(p + at), less));
            v_store(p + at, e);
            sum = v_add(sum, e);
        }
        l[i] = v_sum(sum);
    }
}

/* --- merging ----------------------------------------------------------------------------------------------- */

/* The factors for o of up to PP_PART_QUERIES queries whose m and l are merged: o = o * old + chunk's o * chunk. */
struct merge_factors {
    float old[PP_PART_QUERIES], chunk[PP_PART_QUERIES];
};

_Static_assert((int)PP_PART_QUERIES == (int)LANES, "one vector holds a part's m");

/* Merges m and l of n queries of a chunk into those of `to`, from query q on. */
static struct merge_factors merge_sums(const struct pp_attention_sums *to, int q, int n, const float *m, const float *l)
{
    struct merge_factors f;
    const v16 old = v_load_n(to->m + q, n, 0), chunk = v_load_n(m, n, 0), larger = v_max(chunk, old);
    const v16 old_factor = v_exp2(v_sub(old, larger)), chunk_factor = v_exp2(v_sub(chunk, larger));
    v_store(f.old, old_factor);
    v_store(f.chunk, chunk_factor);
    v_store_n(to->m + q, larger, n);
    v_store_n(to->l + q, v_fma(v_load_n(l, n, 0), chunk_factor, v_mul(v_load_n(to->l + q, n, 0), old_factor)), n);
    return f;
}

/* Merges 16 dimensions of query i's o. */
ALWAYS_INLINE void merge_values(const struct merge_factors *f, int i, v16 chunk, float *o)
{
    v_store(o, v_fma(chunk, v_set1(f->chunk[i]), v_mul(v_load(o), v_set1(f->old[i]))));
}

/* o of n queries. */
static void merge_all_values(const struct pp_attention *a, const struct merge_factors *f, int n, const float *chunk,
                             float *o)
{
    const int pad = a->kv->v_pad;
    for (int i = 0; i < n; i++, chunk += pad, o += pad)
        for (int d = 0; d < pad; d += LANES)
            merge_values(f, i, v_load(chunk + d), o + d);
}

static void attention_merge(const struct pp_attention *a, int row, int n_rows, const struct pp_attention_sums *chunk,
                            const struct pp_attention_sums *to)
{
    const int pad = a->kv->v_pad, q1 = (row + n_rows) * a->group;
    for (int q = row * a->group, n; q < q1; q += n) {
        n = q1 - q < PP_PART_QUERIES ? q1 - q : PP_PART_QUERIES;
        const struct merge_factors f = merge_sums(to, q, n, chunk->m + q, chunk->l + q);
        merge_all_values(a, &f, n, chunk->o + q * pad, to->o + q * pad);
    }
}

/* --- values ------------------------------------------------------------------------------------------------ */

/* Positions of a chunk whose V is NaN or infinite. */
struct bad_values {
    bool any;
    uint64_t at[PP_KV_CHUNK / 64];
};

static void note_bad(struct pp_span see, float *scales, struct bad_values *bad)
{
    for (int i = see.begin; i < see.end; i++)
        if (!(fabsf(scales[i]) <= FLT_MAX)) {
            scales[i] = 0;
            bad->any = true;
            bad->at[i / 64] |= (uint64_t)1 << i % 64;
        }
}

static bool sees_bad(const struct bad_values *bad, struct pp_span see)
{
    for (int i = see.begin; bad->any && i < see.end; i++)
        if (bad->at[i / 64] >> i % 64 & 1)
            return true;
    return false;
}

#define LEAST_SCALE 0x1p-24f /* the smallest F16 number above 0 */

/* V's scales as floats, with zeros for NaN and infinity; see: multiples of 16. */
static void load_value_scales(const struct pp_attention *a, const uint8_t *const *heads, struct pp_span see,
                              struct bad_values *bad)
{
    for (int b = 0; b < a->kv->v_pad / a->kv->scale_dims; b++) {
        float *to = a->v_scale + b * PP_KV_CHUNK;
        v16 check = v_zero();
        for (int i = see.begin; i < see.end; i += LANES) {
            const uint16_t *vd = (const uint16_t *)(heads[page_of(i)] + a->kv->v_scales);
            v16 d = v_load_f16(vd + (size_t)b * PP_PAGE_TOKENS + slot_of(i));
            v_store(to + i, d);
            check = v_fma(d, v_zero(), check); /* not 0 if d is NaN or infinite */
        }
        if (v_sum(check) != 0)
            note_bad(see, to, bad);
        for (int i = see.begin; i < see.end; i += LANES) {
            v16 d = v_load(to + i), size = v_max(d, v_sub(v_zero(), d));
            v_store(a->v_log + i, v_max(size, b ? v_load(a->v_log + i) : v_set1(LEAST_SCALE)));
        }
    }
    for (int i = see.begin; i < see.end; i += LANES)
        v_store(a->v_log + i, v_log2_above(v_load(a->v_log + i)));
}

/* Whether sums of values start at zero or continue those of earlier positions. */
enum values_from { FROM_ZERO, FROM_SUMS };

/* o = (or o +=) the sum of p v over positions, ascending, for nq queries and `wide` vectors of dimensions. p, o: of the
 * first query. */
ALWAYS_INLINE void add_values(const struct pp_attention *a, const enum pp_kv_type type, const uint8_t *const *heads,
                              const float *p, const int nq, int vec, const int wide, struct pp_span see,
                              enum values_from from, struct requests *soon, float *o)
{
    const size_t pad = (size_t)a->kv->v_pad, size = type == PP_KV_F32 ? 4 : type == PP_KV_F16 ? 2 : 1;
    v16 acc[TILE_MAX][WIDE_MAX];
    o += vec * LANES;
    UNROLL for (int i = 0; i < nq; i++)
        UNROLL for (int w = 0; w < wide; w++)
            acc[i][w] = from == FROM_SUMS ? v_load(o + (size_t)i * pad + w * LANES) : v_zero();
    p += see.begin;
    for (int at = see.begin; at < see.end;) {
        const int slot = (int)slot_of(at), left = see.end - at;
        const int n = PP_PAGE_TOKENS - slot < left ? PP_PAGE_TOKENS - slot : left;
        ask_some(soon);
        const uint8_t *v = heads[page_of(at)] + a->kv->v + ((size_t)slot * pad + (size_t)(vec * LANES)) * size;
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

/* Runs add_values() for all vectors of dimensions. */
ALWAYS_INLINE void value_tile(const struct pp_attention *a, const enum pp_kv_type type, const uint8_t *const *heads,
                              const float *p, const int nq, struct pp_span see, enum values_from from,
                              struct requests *soon, float *o)
{
    const int wide = tile_width(nq), n_vecs = a->kv->v_pad / LANES;
    int vec = 0;
    for (; vec + wide <= n_vecs; vec += wide)
        add_values(a, type, heads, p, nq, vec, wide, see, from, soon, o);
    for (; wide > 1 && vec < n_vecs; vec++)
        add_values(a, type, heads, p, nq, vec, 1, see, from, soon, o);
}

typedef void float_values_fn(const struct pp_attention *a, const uint8_t *const *heads, const float *p, int nq,
                             struct pp_span see, enum values_from from, struct requests *soon, float *o);

#define VALUES(name, type)                                                                                             \
    static void values_##name(const struct pp_attention *a, const uint8_t *const *heads, const float *p, int nq,       \
                              struct pp_span see, enum values_from from, struct requests *soon, float *o)              \
    {                                                                                                                  \
        FOR_TILE(nq, value_tile(a, type, heads, p, NQ, see, from, soon, o));                                           \
    }
VALUES(f32, PP_KV_F32)
VALUES(f16, PP_KV_F16)
VALUES(fp8, PP_KV_FP8)
#undef VALUES

static float_values_fn *const value_fns[] = {[PP_KV_F32] = values_f32, [PP_KV_F16] = values_f16,
                                             [PP_KV_FP8] = values_fp8};

/* The span of positions that all of nq queries attend to; it may be empty. */
static struct pp_span common_span(int nq, const struct pp_span *see)
{
    struct pp_span all = see[0];
    for (int i = 1; i < nq; i++) {
        all.begin = see[i].begin > all.begin ? see[i].begin : all.begin;
        all.end = see[i].end < all.end ? see[i].end : all.end;
    }
    return all;
}

/* The smallest span with all positions that any of nq queries attends to. */
static struct pp_span whole_span(int nq, const struct pp_span *see)
{
    struct pp_span all = see[0];
    for (int i = 1; i < nq; i++) {
        all.begin = see[i].begin < all.begin ? see[i].begin : all.begin;
        all.end = see[i].end > all.end ? see[i].end : all.end;
    }
    return all;
}

/* Positions that all queries of a tile attend to are processed by the tile, the others query by query, so that no query
 * multiplies a position that it must not attend to, not even by zero: its V may be NaN. */
static void float_values(const struct pp_attention *a, const uint8_t *const *heads, int nq, const struct pp_span *see,
                         struct requests *soon, float *o)
{
    float_values_fn *values = value_fns[a->kv->type];
    const struct pp_span common = common_span(nq, see), whole = whole_span(nq, see);
    const size_t pad = (size_t)a->kv->v_pad;
    if (common.begin >= common.end) {
        for (int i = 0; i < nq; i++)
            values(a, heads, a->p + i * PP_KV_CHUNK, 1, see[i], FROM_ZERO, soon, o + (size_t)i * pad);
        return;
    }
    const enum values_from from = whole.begin < common.begin ? FROM_SUMS : FROM_ZERO;
    for (int i = 0; from == FROM_SUMS && i < nq; i++) /* positions before the common ones; for some queries none */
        values(a, heads, a->p + i * PP_KV_CHUNK, 1, (struct pp_span){see[i].begin, common.begin}, FROM_ZERO,
               soon, o + (size_t)i * pad);
    values(a, heads, a->p, nq, common, from, soon, o);
    for (int i = 0; i < nq; i++)
        if (see[i].end > common.end)
            values(a, heads, a->p + i * PP_KV_CHUNK, 1, (struct pp_span){common.end, see[i].end}, FROM_SUMS,
                   soon, o + (size_t)i * pad);
}

/* A span widened to multiples of n positions, which are multiplied together. */
static inline struct pp_span widened(struct pp_span see, int n)
{
    return (struct pp_span){see.begin / n * n, (see.end + n - 1) / n * n};
}

enum { WHOLE_STEP = 2 * LANES };

/* Widens what queries see to multiples of n, with scores whose powers are 0. */
static inline void widen_scores(float *p, struct pp_span *see, int n)
{
    const struct pp_span known = widened(*see, LANES);
    *see = widened(*see, n);
    for (int i = see->begin; i < known.begin; i += LANES)
        v_store(p + i, v_set1(-INFINITY));
    for (int i = known.end; i < see->end; i += LANES)
        v_store(p + i, v_set1(-INFINITY));
}

/* FP8 has one scale per position's V: multiplies the probabilities by it. */
static void scale_weights(const struct pp_attention *a, int nq, struct pp_span see)
{
    see = widened(see, LANES);
    for (int i = 0; i < nq; i++)
        for (int j = see.begin; j < see.end; j += LANES) {
            float *p = a->p + i * PP_KV_CHUNK + j;
            v_store(p, v_mul(v_load(p), v_load(a->v_scale + j)));
        }
}

static void load_fp8_scales(const struct pp_attention *a, const uint8_t *const *heads, struct pp_span see)
{
    for (int i = see.begin; i < see.end; i += LANES)
        v_store(a->v_scale + i, v_load_f16((const uint16_t *)(heads[page_of(i)] + a->kv->v_scales) + slot_of(i)));
}

/* Turns one query's scores into powers, and the powers times each of V's scales into integers w. In the rest of `all`,
 * the span of its tile, w is zero. w: the integers for the first scale. Returns the sum of the powers. */
static float whole_weights(const struct pp_attention *a, float *p, float m, struct pp_span see, struct pp_span all,
                           int16_t *w)
{
    enum { BLOCK = PP_PART_QUERIES * PP_KV_CHUNK };
    const v16 less = v_set1(m), rounder = v_set1(V_ROUNDER);
    const int n_blocks = a->kv->v_pad / a->kv->scale_dims;
    v16 sum = v_zero();
    widen_scores(p, &see, WHOLE_STEP);
    for (int i = see.begin; i < see.end; i += WHOLE_STEP) {
        v16 x = v_exp2_short(v_sub(v_load(p + i), less)), y = v_exp2_short(v_sub(v_load(p + i + LANES), less));
        const float *d = a->v_scale + i;
        sum = v_add(v_add(sum, x), y);
        for (int b = 0; b < n_blocks; b++, d += PP_KV_CHUNK)
            v_store_weights(w + b * BLOCK + i, v_fma(x, v_load(d), rounder), v_fma(y, v_load(d + LANES), rounder));
    }
    for (int b = 0; see.begin > all.begin && b < n_blocks; b++)
        memset(w + b * BLOCK + all.begin, 0, (size_t)(see.begin - all.begin) * sizeof *w);
    for (int b = 0; see.end < all.end && b < n_blocks; b++)
        memset(w + b * BLOCK + see.end, 0, (size_t)(all.end - see.end) * sizeof *w);
    return v_sum(sum);
}

/* Adds the integer sums over the positions to o, for nq queries and `wide` of the two vectors of a block; see:
 * multiples of 32. */
ALWAYS_INLINE void block_values(const struct pp_attention *a, const enum pp_kv_type type, const uint8_t *const *heads,
                                const int nq, int b, int half, const int wide, struct pp_span see,
                                const struct merge_factors *f, struct requests *soon, float *o)
{
    enum { FAR = WEIGHTS_UNIT / 4 }; /* distance in pairs between two halves that are interleaved */
    const size_t pad = (size_t)a->kv->v_pad;
    const size_t pair_bytes = type == PP_KV_Q8_0 ? 2 * pad : pad, block_bytes = type == PP_KV_Q8_0 ? 64 : 32;
    const int16_t *all_weights = a->w + b * PP_KV_BLOCK / a->kv->scale_dims * (PP_PART_QUERIES * PP_KV_CHUNK);
    i16x32 acc[TILE_MAX][WIDE_MAX];
    UNROLL for (int i = 0; i < nq; i++)
        UNROLL for (int w = 0; w < wide; w++)
            acc[i][w] = i_set1(0);
    for (int at = see.begin; at < see.end; at += WEIGHTS_UNIT) {
        const uint8_t *values = heads[page_of(at)] + a->kv->v + (size_t)b * block_bytes + slot_of(at) / 2 * pair_bytes;
        const int16_t *weights = all_weights + at;
        if (at % ASKED_POSITIONS == 0)
            ask_some(soon);
        for (const int16_t *end = weights + WEIGHTS_UNIT; weights < end; weights += 8, values += 2 * pair_bytes)
            UNROLL for (int j = 0; j < 4; j++) {
                const uint8_t *pair = values + (size_t)(j / 2 * FAR + j % 2) * pair_bytes;
                k16 v[2];
                UNROLL for (int w = 0; w < wide; w++)
                    v[w] = type == PP_KV_Q8_0 ? pair_load_i8(pair + (half + w) * 32) : pair_load_u4(pair, half + w);
                UNROLL for (int i = 0; i < nq; i++) {
                    int32_t both;
                    memcpy(&both, weights + i * PP_KV_CHUNK + 2 * j, sizeof both);
                    UNROLL for (int w = 0; w < wide; w++)
                        acc[i][w] = i_pair(acc[i][w], v[w], both);
                }
            }
    }
    o += b * PP_KV_BLOCK + half * LANES;
    UNROLL for (int i = 0; i < nq; i++)
        UNROLL for (int w = 0; w < wide; w++)
            merge_values(f, i, i_to_float(acc[i][w]), o + (size_t)i * pad + w * LANES);
}

ALWAYS_INLINE void block_tile(const struct pp_attention *a, const enum pp_kv_type type, const uint8_t *const *heads,
                              const int nq, struct pp_span see, const struct merge_factors *f,
                              struct requests *soon, float *o)
{
    for (int b = 0; b < a->kv->v_pad / PP_KV_BLOCK; b++) {
        if (tile_width(nq) > 1) {
            block_values(a, type, heads, nq, b, 0, 2, see, f, soon, o);
        } else {
            block_values(a, type, heads, nq, b, 0, 1, see, f, soon, o);
            block_values(a, type, heads, nq, b, 1, 1, see, f, soon, o);
        }
    }
}

static void block_values_q8_0(const struct pp_attention *a, const uint8_t *const *heads, int nq, struct pp_span see,
                              const struct merge_factors *f, struct requests *soon, float *o)
{
    FOR_TILE(nq, block_tile(a, PP_KV_Q8_0, heads, NQ, see, f, soon, o));
}

static void block_values_q4_0(const struct pp_attention *a, const uint8_t *const *heads, int nq, struct pp_span see,
                              const struct merge_factors *f, struct requests *soon, float *o)
{
    FOR_TILE(nq, block_tile(a, PP_KV_Q4_0, heads, NQ, see, f, soon, o));
}

/* --- a chunk and the whole --------------------------------------------------------------------------------- */

/* Expands what rows see to their queries, in limits. Returns the span of what any of them sees. */
static struct pp_span query_limits(const struct pp_attention *a, int row, int n_rows, const struct pp_span *see,
                                   struct pp_span limits[MAX_QUERIES])
{
    const int q0 = row * a->group, q1 = q0 + n_rows * a->group;
    for (int q = q0; q < q1; q++)
        limits[q] = see[q / a->group];
    return whole_span(q1 - q0, limits + q0);
}

/* Turns scores of nq queries into integers w; all: multiples of 32. */
static void integer_weights(const struct pp_attention *a, int nq, const struct pp_span *see, struct pp_span all,
                            struct requests *soon, float *m, float *l)
{
    part_references(a, nq, see, a->v_log, m);
    for (int i = 0; i < nq; i++) {
        ask_some(soon);
        l[i] = whole_weights(a, a->p + i * PP_KV_CHUNK, m[i], see[i], all, a->w + i * PP_KV_CHUNK);
    }
}

/* Sets o to NaN for those of queries q0 .. q1 - 1 that attend to a V that is NaN or infinite. */
static void spoil_values(const struct pp_attention *a, int q0, int q1, const struct pp_span *see,
                         const struct bad_values *bad, float *o)
{
    const int pad = a->kv->v_pad;
    for (int q = q0; bad->any && q < q1; q++)
        for (int d = 0; sees_bad(bad, see[q]) && d < pad; d++)
            o[q * pad + d] = NAN;
}

/* Applies the soft cap, and growth, to scores of queries q .. q + nq - 1; all: the positions that have scores. */
static void cap_scores(const struct pp_attention *a, int q, int nq, struct pp_span all)
{
    const int first = all.begin / LANES * LANES, end = (all.end + LANES - 1) / LANES * LANES;
    for (int i = 0; i < nq; i++) {
        float *p = a->p + i * PP_KV_CHUNK;
        apply_all(PP_FN_CAP, a->softcap, p + first, end - first, p + first);
        for (int k = first; a->growing && k < end; k++)
            p[k] *= a->growth[(q + i) / a->group];
    }
}

/* Applies ALiBi to scores of queries q .. q + nq - 1. */
static void sink_with_distance(const struct pp_attention *a, int q, int nq, struct pp_span all)
{
    for (int i = 0; i < nq; i++) {
        const float slope = a->slopes[(q + i) % a->group], at = a->at[(q + i) / a->group];
        float *p = a->p + i * PP_KV_CHUNK;
        for (int k = all.begin; k < all.end; k++)
            p[k] = fmaf(-slope, fabsf((float)k - at), p[k]);
    }
}

/* Processes queries q .. q + nq - 1, nq one of the tiles' sizes; values: where V is; see: what each sees. */
static void chunk_tile(const struct pp_attention *a, const uint8_t *const *heads, const uint8_t *const *values, int q,
                       int nq, const struct pp_span *see, struct requests *soon, const struct pp_attention_sums *to)
{
    const struct pp_span all = whole_span(nq, see), steps = widened(all, WHOLE_STEP);
    float m[TILE_MAX], l[TILE_MAX], *o = to->o + q * a->kv->v_pad;
    score_fns[a->kv->type](a, heads, q, nq, all, soon);
    if (a->softcap != 0.0f)
        cap_scores(a, q, nq, all);
    if (a->slopes)
        sink_with_distance(a, q, nq, all);
    if (pp_kv_integers(a->kv)) {
        integer_weights(a, nq, see, steps, soon, m, l);
        const struct merge_factors f = merge_sums(to, q, nq, m, l);
        (pp_kv_bytes(a->kv) ? block_values_q8_0 : block_values_q4_0)(a, values, nq, steps, &f, soon, o);
    } else {
        softmax(a, nq, see, soon, m, l);
        const struct merge_factors f = merge_sums(to, q, nq, m, l);
        if (a->kv->type == PP_KV_FP8)
            scale_weights(a, nq, all);
        float_values(a, values, nq, see, soon, a->o);
        merge_all_values(a, &f, nq, a->o, o);
    }
}

/* Loads V's scales of the positions that any query attends to; all: bounds are multiples of 16. */
static struct bad_values load_scales(const struct pp_attention *a, const uint8_t *const *heads, struct pp_span all)
{
    struct bad_values bad = {0};
    if (pp_kv_integers(a->kv))
        load_value_scales(a, heads, all, &bad);
    else if (a->kv->type == PP_KV_FP8)
        load_fp8_scales(a, heads, all);
    return bad;
}

static void attention_chunk(const struct pp_attention *a, const uint8_t *const heads[PP_CHUNK_PAGES], int row,
                            int n_rows, const struct pp_span *see, const struct pp_attention_sums *to)
{
    const int q0 = row * a->group, q1 = q0 + n_rows * a->group;
    struct pp_span limits[MAX_QUERIES] = {0};
    const struct pp_span all = widened(query_limits(a, row, n_rows, see, limits), WHOLE_STEP);
    const uint8_t *made[PP_CHUNK_PAGES], *const *values = value_pages(a, heads, all, made);
    const struct bad_values bad = load_scales(a, values, all);
    struct requests soon = begin_requests(a, heads, q1 - q0);
    for (int q = q0, nq; q < q1; q += nq) {
        nq = next_tile(q1 - q);
        ask_for_share(&soon, nq, q1 - q0);
        chunk_tile(a, heads, values, q, nq, limits + q, &soon, to);
    }
    spoil_values(a, q0, q1, limits, &bad, to->o);
}

static void attention_finish(const struct pp_attention *a, int row, const struct pp_attention_sums *total, float *out)
{
    const int v_dim = a->kv->v_dim, v_pad = a->kv->v_pad;
    for (int h = 0; h < a->group; h++, out += v_dim) {
        int q = row * a->group + h;
        for (int d = 0; d < v_dim; d++)
            out[d] = total->o[q * v_pad + d] / total->l[q];
    }
}
