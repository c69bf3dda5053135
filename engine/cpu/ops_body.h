/* ops_body.h - the bodies of ops.h, written once over vec.h. Included by ops_scalar.c, ops_avx2.c and ops_avx512.c,
 * which define OPS_TABLE, the name of the table, and HEAD_TILE and DIM_TILE, how many accumulators of attention fit the
 * registers. */
#include <float.h>

#include "engine/cpu/ops.h"

static inline v16 load_n(const float *p, int64_t n, float fill)
{
    if (n >= LANES)
        return v_load(p);
    float t[LANES];
    for (int l = 0; l < LANES; l++)
        t[l] = l < n ? p[l] : fill;
    return v_load(t);
}

static inline void store_n(float *p, v16 a, int64_t n)
{
    if (n >= LANES) {
        v_store(p, a);
        return;
    }
    float t[LANES];
    v_store(t, a);
    for (int l = 0; l < n; l++)
        p[l] = t[l];
}

static void rms_norm(const float *x, const float *w, float eps, int64_t n, float *y)
{
    v16 sum = v_zero();
    for (int64_t i = 0; i < n; i += LANES) {
        v16 a = load_n(x + i, n - i, 0);
        sum = v_fma(a, a, sum);
    }
    v16 s = v_set1(1.0f / sqrtf(v_sum(sum) / (float)n + eps));
    for (int64_t i = 0; i < n; i += LANES)
        store_n(y + i, v_mul(v_mul(load_n(x + i, n - i, 0), s), load_n(w + i, n - i, 0)), n - i);
}

static void swiglu(const float *g, const float *u, int64_t n, float *y)
{
    for (int64_t i = 0; i < n; i += LANES) {
        v16 a = load_n(g + i, n - i, 0);
        v16 silu = v_div(a, v_add(v_set1(1.0f), v_exp(v_sub(v_zero(), a))));
        store_n(y + i, v_mul(silu, load_n(u + i, n - i, 0)), n - i);
    }
}

static void add(float *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += LANES)
        store_n(y + i, v_add(load_n(y + i, n - i, 0), load_n(x + i, n - i, 0)), n - i);
}

static void add_scaled(float *y, const float *x, float scale, int64_t n)
{
    for (int64_t i = 0; i < n; i += LANES)
        store_n(y + i, v_fma(load_n(x + i, n - i, 0), v_set1(scale), load_n(y + i, n - i, 0)), n - i);
}

static void rope(float *x, int64_t rope_dim, bool neox, const float *cos_sin)
{
    int64_t half = rope_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        float *a = neox ? x + i : x + 2 * i;
        float *b = neox ? x + i + half : x + 2 * i + 1;
        float c = cos_sin[2 * i], s = cos_sin[2 * i + 1];
        float x0 = *a, x1 = *b;
        /* Fused by name: some compilers fuse the plain expression even when told not to, but only in vector code. */
        *a = fmaf(x0, c, -(x1 * s));
        *b = fmaf(x0, s, x1 * c);
    }
}

static void hadamard(float *x, int64_t n, int block)
{
    float norm = 1.0f / sqrtf((float)block);
    for (int64_t begin = 0; begin < n; begin += block) {
        float *seg = x + begin;
        for (int step = 1; step < block; step *= 2)
            for (int i = 0; i < block; i += 2 * step)
                for (int j = i; j < i + step; j++) {
                    float a = seg[j], b = seg[j + step];
                    seg[j] = a + b;
                    seg[j + step] = a - b;
                }
        for (int i = 0; i < block; i++)
            seg[i] *= norm;
    }
}

/* --- the KV cache ------------------------------------------------------------------------------------------ */

/* x [32] -> q, d = max|x| / 127; q = round to nearest even(x / d). Returns d: NaN with zeros in q if a value is not
 * finite. */
static float quantize_block(const float *x, int8_t *q)
{
    float amax = 0;
    int bad = 0;
    for (int i = 0; i < PP_KV_BLOCK; i++) {
        amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
        bad |= !(fabsf(x[i]) <= FLT_MAX);
    }
    float d = amax / 127.0f, inverse = 127.0f / amax;
    if (bad || inverse > FLT_MAX) { /* all zeros, or too near to it */
        memset(q, 0, PP_KV_BLOCK);
        return bad ? NAN : 0;
    }
    for (int i = 0; i < PP_KV_BLOCK; i++) {
        float whole = (x[i] * inverse + 12582912.0f) - 12582912.0f; /* |x * inverse| <= 127: rounds to nearest even */
        q[i] = (int8_t)whole;
    }
    return d;
}

static void store_q8(const struct pp_kv_layout *kv, uint8_t *head, int slot, const float *k, const float *v)
{
    int group = slot / PP_KV_GROUP, lane = slot % PP_KV_GROUP, n_blocks = kv->head_pad / PP_KV_BLOCK;
    uint8_t *kq = head + (size_t)group * (size_t)kv->head_pad * PP_KV_GROUP;
    uint16_t *kd = (uint16_t *)(head + kv->k_scales) + group * n_blocks * PP_KV_GROUP;
    int8_t *vq = (int8_t *)(head + kv->v) + (size_t)slot * (size_t)kv->head_pad;
    uint16_t *vd = (uint16_t *)(head + kv->v_scales);
    for (int b = 0; b < n_blocks; b++) {
        float x[PP_KV_BLOCK];
        int8_t q[PP_KV_BLOCK];
        for (int i = 0; i < PP_KV_BLOCK; i++)
            x[i] = b * PP_KV_BLOCK + i < kv->head_dim ? k[b * PP_KV_BLOCK + i] : 0;
        kd[b * PP_KV_GROUP + lane] = pp_f32_to_f16(quantize_block(x, q));
        for (int i = 0; i < PP_KV_BLOCK; i++) {
            int d = b * PP_KV_BLOCK + i;
            kq[(d / 4) * 64 + lane * 4 + d % 4] = (uint8_t)(q[i] + 128);
        }
        for (int i = 0; i < PP_KV_BLOCK; i++)
            x[i] = b * PP_KV_BLOCK + i < kv->head_dim ? v[b * PP_KV_BLOCK + i] : 0;
        vd[b * PP_PAGE_TOKENS + slot] = pp_f32_to_f16(quantize_block(x, vq + b * PP_KV_BLOCK));
    }
}

static void kv_store(const struct pp_kv_layout *kv, uint8_t *page, size_t head_offset, int slot, const float *k,
                     const float *v)
{
    uint8_t *head = page + head_offset;
    if (kv->type == PP_KV_Q8_0) {
        store_q8(kv, head, slot, k, v);
        return;
    }
    size_t k0 = (size_t)(slot / PP_KV_GROUP) * (size_t)kv->head_pad * PP_KV_GROUP + (size_t)(slot % PP_KV_GROUP);
    size_t v0 = (size_t)slot * (size_t)kv->head_pad;
    for (int d = 0; d < kv->head_pad; d++) {
        float kx = d < kv->head_dim ? k[d] : 0, vx = d < kv->head_dim ? v[d] : 0;
        size_t at = k0 + (size_t)d * PP_KV_GROUP;
        if (kv->type == PP_KV_F16) {
            ((uint16_t *)head)[at] = pp_f32_to_f16(kx);
            ((uint16_t *)(head + kv->v))[v0 + (size_t)d] = pp_f32_to_f16(vx);
        } else {
            ((float *)head)[at] = kx;
            ((float *)(head + kv->v))[v0 + (size_t)d] = vx;
        }
    }
}

/* --- attention --------------------------------------------------------------------------------------------- */

static void prepare_queries(const struct pp_attention *a)
{
    const struct pp_kv_layout *kv = a->kv;
    struct pp_attention_scratch *s = a->scratch;
    int n_blocks = kv->head_pad / PP_KV_BLOCK;
    for (int h = 0; h < a->n_q; h++) {
        float *q = s->q + h * kv->head_pad;
        for (int d = 0; d < kv->head_pad; d++)
            q[d] = d < kv->head_dim ? a->q[h * a->q_stride + d] * a->scale : 0;
        if (kv->type != PP_KV_Q8_0)
            continue;
        for (int b = 0; b < n_blocks; b++) {
            int8_t *q8 = s->q8 + h * kv->head_pad + b * PP_KV_BLOCK;
            s->q8_scale[h * n_blocks + b] = quantize_block(q + b * PP_KV_BLOCK, q8);
            int32_t sum = 0;
            for (int i = 0; i < PP_KV_BLOCK; i++)
                sum += q8[i];
            s->q8_sum[h * n_blocks + b] = sum;
        }
    }
}

/* The bytes of our head in the page of a position. */
static inline const uint8_t *head_at(const struct pp_attention *a, int64_t position)
{
    int64_t page = position / PP_PAGE_TOKENS;
    return page >= a->tail_page ? a->tail[page - a->tail_page] : a->pages[page] + a->head_offset;
}

/* Scores of 16 positions: sum over d ascending (floats), or over blocks ascending (Q8_0; exact integers in a block). */
static inline v16 scores_16(const struct pp_attention *a, const uint8_t *head, int group, int h)
{
    const struct pp_kv_layout *kv = a->kv;
    const struct pp_attention_scratch *s = a->scratch;
    v16 acc = v_zero();
    size_t k0 = (size_t)group * (size_t)kv->head_pad * PP_KV_GROUP;
    if (kv->type == PP_KV_Q8_0) {
        int n_blocks = kv->head_pad / PP_KV_BLOCK;
        const uint16_t *kd = (const uint16_t *)(head + kv->k_scales) + group * n_blocks * PP_KV_GROUP;
        for (int b = 0; b < n_blocks; b++) {
            const uint8_t *kq = head + k0 + b * PP_KV_BLOCK * PP_KV_GROUP;
            const int8_t *q8 = s->q8 + h * kv->head_pad + b * PP_KV_BLOCK;
            i16x32 isum = i_set1(-128 * s->q8_sum[h * n_blocks + b]); /* K is stored plus 128 */
            for (int j = 0; j < PP_KV_BLOCK / 4; j++)
                isum = i_dot4(isum, kq + j * 64, q8 + j * 4);
            v16 d = v_mul(v_set1(s->q8_scale[h * n_blocks + b]), v_load_f16(kd + b * PP_KV_GROUP));
            acc = v_fma(d, i_to_float(isum), acc);
        }
        return acc;
    }
    const float *q = s->q + h * kv->head_pad;
    if (kv->type == PP_KV_F16) {
        const uint16_t *k = (const uint16_t *)head + k0;
        for (int d = 0; d < kv->head_pad; d++)
            acc = v_fma(v_set1(q[d]), v_load_f16(k + d * PP_KV_GROUP), acc);
    } else {
        const float *k = (const float *)head + k0;
        for (int d = 0; d < kv->head_pad; d++)
            acc = v_fma(v_set1(q[d]), v_load(k + d * PP_KV_GROUP), acc);
    }
    return acc;
}

/* Fills scratch->p with the scores of positions begin .. begin + n - 1; what is beyond gets -inf. */
static void chunk_scores(const struct pp_attention *a, int64_t begin, int n)
{
    for (int g = 0; g < n; g += PP_KV_GROUP) {
        int64_t position = begin + g;
        const uint8_t *head = head_at(a, position);
        int group = (int)(position % PP_PAGE_TOKENS) / PP_KV_GROUP;
        for (int h = 0; h < a->n_q; h++) {
            float *p = a->scratch->p + h * PP_KV_CHUNK + g;
            v16 s = scores_16(a, head, group, h);
            v_store(p, n - g < PP_KV_GROUP ? v_keep_first(s, n - g, -INFINITY) : s);
        }
    }
}

/* p = exp(s - m) in place; returns m, and the sum in *l. n is a multiple of 16. */
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

/* out[h][d] for HEAD_TILE heads and DIM_TILE * 16 dimensions: sum over positions ascending of w v, where w is p, or p
 * times the scale of V's block. n_heads and n_vecs are constants at each call, so that the accumulators stay in
 * registers. */
static inline __attribute__((always_inline)) void chunk_values(const struct pp_attention *a, int64_t begin, int n,
                                                               int h0, const int n_heads, int j0, const int n_vecs)
{
    const struct pp_kv_layout *kv = a->kv;
    v16 acc[HEAD_TILE][DIM_TILE];
    for (int h = 0; h < n_heads; h++)
        for (int j = 0; j < n_vecs; j++)
            acc[h][j] = v_zero();
    for (int i = 0; i < n; i++) {
        int64_t position = begin + i;
        const uint8_t *head = head_at(a, position);
        size_t slot = (size_t)(position % PP_PAGE_TOKENS);
        size_t v0 = slot * (size_t)kv->head_pad + (size_t)(j0 * LANES);
        for (int j = 0; j < n_vecs; j++) {
            v16 v;
            float scale = 1;
            if (kv->type == PP_KV_Q8_0) {
                v = v_load_i8((const int8_t *)(head + kv->v) + v0 + j * LANES);
                scale = a->scratch->v_scale[(j0 + j) * LANES / PP_KV_BLOCK * PP_KV_CHUNK + i];
            } else if (kv->type == PP_KV_F16) {
                v = v_load_f16((const uint16_t *)(head + kv->v) + v0 + j * LANES);
            } else {
                v = v_load((const float *)(head + kv->v) + v0 + j * LANES);
            }
            for (int h = 0; h < n_heads; h++)
                acc[h][j] = v_fma(v_set1(a->scratch->p[(h0 + h) * PP_KV_CHUNK + i] * scale), v, acc[h][j]);
        }
    }
    for (int h = 0; h < n_heads; h++)
        for (int j = 0; j < n_vecs; j++)
            v_store(a->scratch->chunk_out + (h0 + h) * kv->head_pad + (j0 + j) * LANES, acc[h][j]);
}

/* V's scales of a chunk as floats: [blocks][256]. */
static void load_value_scales(const struct pp_attention *a, int64_t begin, int n)
{
    int n_blocks = a->kv->head_pad / PP_KV_BLOCK;
    for (int g = 0; g < n; g += LANES) {
        int64_t position = begin + g;
        const uint8_t *head = head_at(a, position);
        const uint16_t *vd = (const uint16_t *)(head + a->kv->v_scales) + position % PP_PAGE_TOKENS;
        for (int b = 0; b < n_blocks; b++)
            v_store(a->scratch->v_scale + b * PP_KV_CHUNK + g, v_load_f16(vd + b * PP_PAGE_TOKENS));
    }
}

static void chunk_values_all(const struct pp_attention *a, int64_t begin, int n)
{
    int n_vecs = a->kv->head_pad / LANES;
    int h = 0;
    if (a->kv->type == PP_KV_Q8_0)
        load_value_scales(a, begin, n);
    for (; h + HEAD_TILE <= a->n_q; h += HEAD_TILE) {
        int j = 0;
        for (; j + DIM_TILE <= n_vecs; j += DIM_TILE)
            chunk_values(a, begin, n, h, HEAD_TILE, j, DIM_TILE);
        for (; j < n_vecs; j++)
            chunk_values(a, begin, n, h, HEAD_TILE, j, 1);
    }
    for (; h < a->n_q; h++) {
        int j = 0;
        for (; j + DIM_TILE <= n_vecs; j += DIM_TILE)
            chunk_values(a, begin, n, h, 1, j, DIM_TILE);
        for (; j < n_vecs; j++)
            chunk_values(a, begin, n, h, 1, j, 1);
    }
}

static void attention(const struct pp_attention *a)
{
    const int head_dim = a->kv->head_dim, head_pad = a->kv->head_pad;
    float top[PP_MAX_GROUP], total[PP_MAX_GROUP];
    prepare_queries(a);
    for (int h = 0; h < a->n_q; h++) {
        top[h] = -INFINITY;
        total[h] = 0;
        for (int d = 0; d < head_dim; d++)
            a->out[h * a->out_stride + d] = 0;
    }
    for (int64_t begin = 0; begin < a->n_kv; begin += PP_KV_CHUNK) {
        int n = a->n_kv - begin < PP_KV_CHUNK ? (int)(a->n_kv - begin) : PP_KV_CHUNK;
        int n16 = (n + LANES - 1) / LANES * LANES;
        float m[PP_MAX_GROUP], l[PP_MAX_GROUP];
        chunk_scores(a, begin, n);
        for (int h = 0; h < a->n_q; h++)
            m[h] = chunk_softmax(a->scratch->p + h * PP_KV_CHUNK, n16, &l[h]);
        chunk_values_all(a, begin, n);
        for (int h = 0; h < a->n_q; h++) {
            float larger = m[h] > top[h] ? m[h] : top[h];
            float e[LANES] = {top[h] - larger, m[h] - larger};
            v_store(e, v_exp(v_load(e)));
            top[h] = larger;
            total[h] = total[h] * e[0] + l[h] * e[1];
            float *out = a->out + h * a->out_stride, *o = a->scratch->chunk_out + h * head_pad;
            for (int d = 0; d < head_dim; d += LANES)
                store_n(out + d,
                        v_fma(v_load(o + d), v_set1(e[1]), v_mul(load_n(out + d, head_dim - d, 0), v_set1(e[0]))),
                        head_dim - d);
        }
    }
    for (int h = 0; h < a->n_q; h++)
        for (int d = 0; d < head_dim; d++)
            a->out[h * a->out_stride + d] /= total[h];
}

const struct pp_cpu_ops OPS_TABLE = {
    .rms_norm = rms_norm,
    .swiglu = swiglu,
    .add = add,
    .rope = rope,
    .hadamard = hadamard,
    .kv_store = kv_store,
    .attention = attention,
    .add_scaled = add_scaled,
};
